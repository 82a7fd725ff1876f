"""`loadgen setup` and `loadgen doctor` as processes: two at once, killed in the middle, stopped, without a server."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

import pytest

from loadgen.control.setup.installer import migrations
from loadgen.embedded.datadir import DATA_DIR_VARIABLE
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS
from tests.embedded_server import EmbeddedServer
from tests.processes import PATIENCE_S, PROGRAM, ROOT, reachable_directory, start_program

VERSIONS = {migration.version for migration in migrations()}
TABLES = sorted(["SCHEMA_VERSION", *(table for migration in migrations() for table, _ in migration.tables)])


def environ(home: Any, **more: str) -> dict[str, str]:
    return {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **more}


def start(server: EmbeddedServer, home: Any, *words: str) -> subprocess.Popen[str]:
    return start_program(words, environ(home, **{EMBEDDED_ADDRESS: server.address}), home)


def setup_of(database: str) -> list[str]:
    return ["setup", "-c", "embedded", "--database", database, "--warehouse", f"{database}_WH"]


def made(server: EmbeddedServer, database: str) -> tuple[list[str], set[int]]:
    """(tables, recorded versions)"""
    connection = server.connect(database=database, schema="CONTROL")
    try:
        cursor = connection.cursor()
        tables = sorted(row[1] for row in cursor.execute(f"SHOW TABLES IN SCHEMA {database}.CONTROL").fetchall())
        versions = {int(row[0]) for row in cursor.execute("SELECT VERSION FROM SCHEMA_VERSION").fetchall()}
    finally:
        connection.close()
    return tables, versions


def read_until(process: subprocess.Popen[str], end: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if end in line:
            return
    pytest.fail(f"it ended before {end}: {process.communicate()[1]}")


def test_two_at_once_both_succeed(server, tmp_path):
    # Slow enough that both see nothing there, and meet at every table.
    server.fault(match="^CREATE", kind="latency", ms=150)

    both = [start(server, tmp_path, *setup_of("TWINS")) for _ in range(2)]
    ends = [process.communicate(timeout=PATIENCE_S) for process in both]

    assert [process.returncode for process in both] == [0, 0], ends
    assert all(out.splitlines()[-1] == 'the control plane in "TWINS"."CONTROL" is ready' for out, _ in ends)
    assert made(server, "TWINS") == (TABLES, VERSIONS)


def test_a_setup_that_was_killed_is_completed_by_the_next(server, tmp_path):
    server.fault(match="CREATE TABLE IF NOT EXISTS TEST_LOGS", kind="hang")
    first = start(server, tmp_path, *setup_of("KILLED"))
    read_until(first, "IF NOT EXISTS TEST_RESULTS")

    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=PATIENCE_S)

    tables, versions = made(server, "KILLED")
    assert "TEST_RESULTS" in tables
    assert "TEST_LOGS" not in tables
    assert versions == set()
    server.clear_faults()
    second = start(server, tmp_path, *setup_of("KILLED"))
    out, errors = second.communicate(timeout=PATIENCE_S)
    assert (second.returncode, errors) == (0, "")
    assert out.splitlines()[-1].endswith("is ready")
    assert made(server, "KILLED") == (TABLES, VERSIONS)


@pytest.mark.parametrize(
    ("words", "struck", "last"),
    [
        (setup_of("STOPPED"), "CREATE HYBRID TABLE IF NOT EXISTS RUN_STATUS", "IF NOT EXISTS SCHEMA_VERSION"),
        (["doctor", "-c", "embedded"], "SHOW WAREHOUSES", "write control tables"),
    ],
    ids=["setup", "doctor"],
)
def test_ctrl_c_ends_it_at_once_and_without_noise(server, tmp_path, words, struck, last):
    server.fault(match=struck, kind="hang")
    process = start(server, tmp_path, *words)
    read_until(process, last)

    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 130
    assert errors.strip() == "error: stopped"


@pytest.mark.slow  # test_readme.py prepares, and test_embedded_launch.py sets up, with a server of the command's own
def test_without_a_server_one_is_started(tmp_path):
    with reachable_directory() as directory:
        done = subprocess.run(
            [*PROGRAM, "setup", "-c", "embedded"],
            env=environ(tmp_path, **{DATA_DIR_VARIABLE: str(directory / "data")}),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == 'the control plane in "LOADGEN"."CONTROL" is ready'


def test_a_rejected_connection_is_reported_at_once(tmp_path):
    folder = tmp_path / ".snowflake"
    folder.mkdir()
    file = folder / "connections.toml"
    file.touch(mode=0o600)
    file.write_text(
        '[x]\naccount = "a"\nuser = "u"\npassword = "p4ssw0rd"\nhost = "127.0.0.1"\nport = 1\nprotocol = "http"'
    )

    done = subprocess.run(
        [*PROGRAM, "setup", "-c", "x"],
        env=environ(tmp_path),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    assert done.returncode == 3
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["error", "hint"]
    assert "nothing listens at 127.0.0.1:1" in done.stderr
