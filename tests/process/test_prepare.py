"""`loadgen prepare` as a process: every example, killed and stopped in the middle, on a terminal and off."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from loadgen.cli.main import main
from tests import SCENARIO_EXAMPLES
from tests.embedded_server import EmbeddedServer
from tests.processes import PATIENCE_S, PROGRAM, ROOT, wait_until

PREPARE = [*PROGRAM, "prepare"]
TABLE = "BENCH.PUBLIC.BULK"
ROWS = 40_000
SCENARIO = f"""
version: 1
name: bulk
connection: embedded
target: {{database: BENCH, schema: PUBLIC}}
prepare:
  tables:
    - name: BULK
      rows: {ROWS}
      columns:
        - {{name: ID, type: INTEGER, primary_key: true, generate: {{sequence: {{start: 1}}}}}}
        - {{name: N, type: INTEGER, generate: {{uniform: {{min: 1, max: 9}}}}}}
  statements: []
workload: {{statements: [{{name: s, sql: SELECT 1}}]}}
"""
SHOW_CURSOR = b"\x1b[?25h"


@pytest.fixture
def cursor(server: EmbeddedServer) -> Iterator[Any]:
    """No table is there before, no fault afterwards."""
    with server.connect(database="BENCH", schema="PUBLIC") as connection:
        cursor = connection.cursor()
        cursor.execute(f"DROP TABLE IF EXISTS {TABLE}")
        yield cursor
    server.clear_faults()


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "bulk.yaml"
    path.write_text(SCENARIO, "utf-8")
    return path


def environment(server: EmbeddedServer | None, **more: str) -> dict[str, str]:
    address = {} if server is None else {"LOADGEN_EMBEDDED_ADDRESS": server.address}
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("LOADGEN_", "SNOWFLAKE_"))}
    return kept | {"PYTHONPATH": str(ROOT)} | address | more


def prepare(server: EmbeddedServer | None, *arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    command = [*PREPARE, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=environment(server, **more))


@contextmanager
def preparing(server: EmbeddedServer, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*PREPARE, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(server),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def rows_there(cursor: Any) -> int:
    found = cursor.execute("SELECT COUNT(*) FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_NAME = 'BULK'").fetchone()
    return int(cursor.execute(f"SELECT COUNT(*) FROM {TABLE}").fetchone()[0]) if found[0] else 0


def counts(cursor: Any) -> tuple[int, int, int, int]:
    sql = f"SELECT COUNT(*), COUNT(DISTINCT ID), MIN(ID), MAX(ID) FROM {TABLE}"
    rows, different, first, last = cursor.execute(sql).fetchone()
    return rows, different, first, last


def slowly(server: EmbeddedServer, ms: int = 1_200) -> None:
    """Each INSERT takes so long that chunks stay small, and there is time to look between them."""
    server.fault(match="INSERT INTO", kind="latency", ms=ms)


# --- examples --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SCENARIO_EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_prepared_and_a_second_time_nothing_is_done(server, path, monkeypatch, capsys):
    """In one process; rows by the ten thousand would only take longer: test_readme.py prepares the quickstart as it is.
    YCSB's six files share one table."""
    monkeypatch.setenv("LOADGEN_EMBEDDED_ADDRESS", server.address)
    is_long = re.search(r"rows: \d\dk", path.read_text("utf-8")) is not None
    fewer = ["--set", "prepare.tables.0.rows=2k"] if is_long else []
    fewer += ["--set", "target.database=PREPARED"]  # the examples themselves are run in BENCH

    first = main(["prepare", str(path), *fewer])
    inserts = len(server.ask("/__loadgen/journal?match=INSERT%20INTO"))
    said = capsys.readouterr()
    second = main(["prepare", str(path), *fewer, "--format", "json"])

    assert (first, second) == (0, 0), said.err
    assert "prepared in" in said.out
    assert {table["outcome"] for table in json.loads(capsys.readouterr().out)["tables"]} == {"already there"}
    assert len(server.ask("/__loadgen/journal?match=INSERT%20INTO")) == inserts


@pytest.mark.slow
def test_no_server_and_no_setting_are_needed(scratch):
    done = prepare(None, ROOT / "examples" / "quickstart.yaml", LOADGEN_EMBEDDED_DATA_DIR=str(scratch / "data"))

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("BENCH.PUBLIC.QUICKSTART_ORDERS: created, 10,000 rows in ")


# --- interrupted -----------------------------------------------------------------------------------------------------


def test_a_killed_preparation_goes_on_where_it_was(server, cursor, scenario):
    slowly(server)
    with preparing(server, scenario) as process:
        wait_until(lambda: rows_there(cursor) > 0, "the first rows")
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_S)
    wait_until(lambda: server.ask("/__loadgen/stats")["running"] == 0, "the killed one's last statement is over")
    killed_at = rows_there(cursor)
    server.clear_faults()
    assert 0 < killed_at < ROWS

    done = prepare(server, scenario)

    assert done.returncode == 0, done.stderr
    # Its last statement may have been on the network, and have reached the server after the process had ended.
    added = re.search(rf"resumed, ([0-9,]+) of {ROWS:,} rows added", done.stdout)
    assert added is not None, done.stdout
    assert 0 < int(added[1].replace(",", "")) <= ROWS - killed_at
    assert counts(cursor) == (ROWS, ROWS, 1, ROWS)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_a_signal_ends_it_after_the_statement_with_a_hint_to_continue(server, cursor, scenario, number, code):
    slowly(server, ms=500)
    with preparing(server, scenario) as process:
        wait_until(lambda: rows_there(cursor) > 0, "the first rows")
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)

    there = rows_there(cursor)
    assert process.returncode == code, err
    assert out == ""
    assert f"error: stopped: {TABLE} has {there:,} of {ROWS:,} rows" in err
    assert "hint: Run the same command to continue." in err
    assert err.startswith("looking for existing tables\n")
    assert 0 < there < ROWS


def test_a_statement_that_does_not_end_is_cancelled_on_the_server(server, cursor, scenario):
    text = SCENARIO.replace("statements: []", "statements: [SELECT SYSTEM$WAIT(600)]")
    scenario.write_text(text.replace(f"rows: {ROWS}", "rows: 10"), "utf-8")
    with preparing(server, scenario, "--format", "json") as process:
        assert process.stderr is not None
        assert any("running prepare.statements" in line for line in iter(process.stderr.readline, ""))
        wait_until(lambda: server.ask("/__loadgen/stats")["running"] == 1, "the statement runs")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 130, err
    assert json.loads(out)["error"]["exit_code"] == 130
    assert "stopped; the running statement ended with: " in err
    assert server.ask("/__loadgen/stats")["running"] == 0


def test_a_second_signal_ends_it_at_once(server, cursor, scenario):
    server.fault(match="INSERT INTO", kind="hang", ms=60_000)
    with preparing(server, scenario) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        assert any(f"0 of {ROWS:,}" in line for line in lines)
        process.send_signal(signal.SIGINT)
        assert any("Ctrl-C again" in line for line in lines)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 130
    assert "stopped before the running statement ended" in err


def test_on_a_terminal_there_is_a_bar_and_ctrl_c_gives_the_terminal_back(server, cursor, scenario):
    slowly(server, ms=500)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*PREPARE, str(scenario)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(server, TERM="xterm", COLUMNS="100"),
        start_new_session=True,
        preexec_fn=take_terminal,
    )
    os.close(theirs)
    shown = b""
    try:
        while b"rows/s" not in shown:
            shown += read_some(ours)
        os.write(ours, b"\x03")  # as the key does: the terminal sends SIGINT
        while piece := read_some(ours):
            shown += piece
        code = process.wait(PATIENCE_S)
    finally:
        process.kill()
        process.wait()
        os.close(ours)

    text = shown.decode("utf-8", "replace")
    assert code == 130, text
    assert re.search(rf"stopped: {re.escape(TABLE)} has (at least )?[0-9,]+ of {ROWS:,} rows", text)
    assert "Run the same command to continue." in text
    assert shown.rfind(SHOW_CURSOR) > shown.rfind(b"\x1b[?25l") >= 0


def take_terminal() -> None:
    """In the child: make stdin the terminal whose Ctrl-C is for us."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def read_some(descriptor: int) -> bytes:
    """The next output of the terminal; empty when its last process has ended."""
    assert select.select([descriptor], [], [], PATIENCE_S)[0], "the terminal shows nothing"
    try:
        return os.read(descriptor, 65_536)
    except OSError:
        return b""


@pytest.mark.slow
def test_colours_and_cursor_movements_stay_away_from_a_dumb_terminal(server, cursor, scenario):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*PREPARE, str(scenario)], stdout=theirs, stderr=theirs, env=environment(server, TERM="dumb", NO_COLOR="1")
    )
    os.close(theirs)
    shown = b""
    while piece := read_some(ours):
        shown += piece
    os.close(ours)

    assert process.wait(PATIENCE_S) == 0
    assert b"\x1b" not in shown
    assert b"rows" in shown


def test_quiet_prints_only_the_result(server, cursor, scenario):
    done = prepare(server, scenario, "--quiet", "--set", "prepare.tables.0.rows=10")

    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith(f"{TABLE}: created, 10 rows in ")


# --- whose table -----------------------------------------------------------------------------------------------------


def test_a_table_in_the_way_is_refused_and_drop_makes_it_anew(server, cursor, scenario, monkeypatch, capsys):
    monkeypatch.setenv("LOADGEN_EMBEDDED_ADDRESS", server.address)
    fewer = ("--set", "prepare.tables.0.rows=10")
    cursor.execute(f"CREATE TABLE {TABLE} (ID INTEGER)")

    def run(*arguments: str) -> tuple[int, str]:
        code = main(["prepare", str(scenario), *arguments])
        return code, "".join(capsys.readouterr())

    refused, said = run(*fewer)
    assert refused == 2
    assert "not created by loadgen" in said
    refused, said = run(*fewer, "--drop")
    assert refused == 2
    assert "Add --force to drop it" in said
    assert run(*fewer, "--drop", "--force")[0] == 0
    refused, said = run("--set", "prepare.tables.0.rows=20")
    assert refused == 2
    assert "it was made for 10 rows, the scenario says 20" in said
    assert "hint: --drop drops it" in said
    made, said = run("--set", "prepare.tables.0.rows=20", "--drop")
    assert made == 0
    assert "dropped and created again, 20 rows" in said
    assert counts(cursor) == (20, 20, 1, 20)
