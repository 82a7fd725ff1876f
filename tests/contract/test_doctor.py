"""`loadgen doctor` against a real server: finds problems, prints hints, changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from loadgen.cli.doctor import doctor
from loadgen.cli.setup import setup
from loadgen.clock import SystemClock
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.setup.grants import control_needs
from loadgen.doctor import checks as all_checks
from loadgen.doctor.check_context import DoctorSessions, DoctorTarget, KnownFacts
from loadgen.doctor.checks import BoundedExecutor, run_checks
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS
from tests.embedded_server import EmbeddedServer
from tests.processes import PATIENCE_S, ROOT

pytestmark = pytest.mark.any_driver

PASSWORD = "planted-Passw0rd-7193"
QUICKSTART = ROOT / "examples" / "quickstart.yaml"
DENIED = {"kind": "error", "errno": 3001, "sqlstate": "42501", "message": "Insufficient privileges"}
Doctor = Callable[..., Result]


@pytest.fixture(autouse=True)
def environment(server: EmbeddedServer, database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Everything in the test's own database; `real` is a connection that is not called embedded."""
    for name in ("SNOWFLAKE_HOME", "LOADGEN_CONNECTION", "LOADGEN_CONTROL_CONNECTION", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(EMBEDDED_ADDRESS, server.address)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOADGEN_CONTROL_DATABASE", database)
    write_connection(tmp_path, server.port)


def write_connection(home: Path, port: int) -> None:
    folder = home / ".snowflake"
    folder.mkdir(exist_ok=True)
    file = folder / "connections.toml"
    file.touch(mode=0o600)
    file.write_text(
        f'[real]\naccount = "acct"\nuser = "ann"\npassword = "{PASSWORD}"\nhost = "127.0.0.1"\nport = {port}\n'
        'protocol = "http"\nwarehouse = "BENCH_WH"\n'
    )


def run(*arguments: str, command: Any = doctor) -> Result:
    result = CliRunner().invoke(command, list(arguments), standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result


def looked(*arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """(exit code, {check: its worst finding})"""
    told = json.loads(run("--format", "json", *arguments).stdout)
    order = ["ok", "skipped", "warning", "failed"]
    found: dict[str, dict[str, Any]] = {}
    for each in sorted(told["checks"], key=lambda each: order.index(each["mark"])):
        found[each["check"]] = each
    return told["exit_code"], found


def marks(found: dict[str, dict[str, Any]], mark: str) -> set[str]:
    return {name for name, each in found.items() if each["mark"] == mark}


# --- what is well ----------------------------------------------------------------------------------------------------


def test_after_setup_all_is_well_on_the_embedded_server():
    run("-c", "embedded", command=setup)

    code, found = looked("-c", "embedded", str(QUICKSTART))

    assert code == 0
    # The examples' control place is LOADGEN.CONTROL, which this test's setup has not made.
    assert marks(found, "failed") == set()
    code, found = looked("-c", "embedded")
    del found["round trip"]  # a busy machine is far away
    assert (code, marks(found, "ok")) == (0, set(found))
    needs = control_needs().values()
    for name, privilege in (("read control tables", "SELECT"), ("write control tables", "INSERT")):
        count = sum(privilege in needed for needed in needs)
        assert found[name]["message"] == f"all {count} tables"


def test_the_list_of_checks_is_complete():
    _, found = looked("-c", "embedded", str(QUICKSTART))

    assert list(dict.fromkeys(each["section"] for each in found.values()))
    assert set(found) == {
        "processor", "memory", "open files", "clock", "versions", "embedded server", "connection", "scenario", "log-in",
        "round trip",
        "place", "tables", "hybrid tables", "clock offset", "role", "read control tables", "write control tables",
        "warehouse", "schema", "worst case",
    }  # fmt: skip


def test_text_shows_marks_remedies_origins_and_no_secret(database):
    result = run("-c", "real")

    assert result.return_value == 3
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert "✓ log-in" in result.stdout
    assert any(line.startswith("✗ place") and database in line for line in lines)
    assert "→ `loadgen setup` creates them, or prints what an administrator must do." in lines
    assert any(line.startswith("· tables") and "because check 'place' failed" in line for line in lines)
    assert any(line.split()[:2] == ["password", "****"] and line.endswith("connections.toml [real]") for line in lines)
    assert lines[-1] == "1 problem, 2 warnings"  # the administrator's role, and query acceleration
    assert PASSWORD not in result.output


def test_a_dumb_terminal_gets_ascii(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")

    text = run("-c", "real").stdout

    assert text.isascii()
    assert "x place" in text
    assert "-> `loadgen setup`" in text


def test_nothing_is_changed(server, database):
    before = len(server.ask("/__loadgen/history"))

    looked("-c", "real")

    connection = server.connect()
    names = [row[1] for row in connection.cursor().execute("SHOW DATABASES").fetchall()]
    connection.close()
    verbs = {statement["sql_text"].split()[0] for statement in server.ask("/__loadgen/history")[before:]}
    assert database not in names
    assert verbs == {"SELECT", "USE", "SHOW"}


def test_trying_to_write_writes_nothing(server, database):
    run("-c", "real", command=setup)
    connection = server.connect(database=database, schema="CONTROL")
    cursor = connection.cursor()
    cursor.execute("INSERT INTO RUN_LEASES SELECT 'r', 1, 'me', SYSDATE()")
    before = cursor.execute("SELECT * FROM RUN_LEASES").fetchall()

    code, found = looked("-c", "real")

    after = cursor.execute("SELECT * FROM RUN_LEASES").fetchall()
    counts = cursor.execute("SELECT (SELECT COUNT(*) FROM RUN_STATUS), (SELECT COUNT(*) FROM TEST_LOGS)").fetchone()
    connection.close()
    assert (code, found["write control tables"]["mark"]) == (0, "ok")
    assert (before, counts) == (after, (0, 0))


# --- what is not -----------------------------------------------------------------------------------------------------


def test_a_connection_that_does_not_exist_is_a_configuration_problem():
    code, found = looked("-c", "reel")

    assert code == 2
    assert found["connection"]["hint"] == "Did you mean 'real'?"
    assert marks(found, "skipped") == set(found) - marks(found, "ok") - {"connection"}
    assert {"processor", "versions"} <= marks(found, "ok")


def test_a_file_that_others_may_write_is_a_configuration_problem(tmp_path):
    file = tmp_path / ".snowflake" / "connections.toml"
    file.chmod(0o666)

    code, found = looked()

    assert (code, marks(found, "failed")) == (2, {"connection"})
    assert found["connection"]["hint"] == f"Run: chmod 600 {file}"


def test_a_port_without_a_listener_is_reported_and_the_rest_skipped(tmp_path, closed_port):
    write_connection(tmp_path, closed_port)

    code, found = looked("-c", "real")

    assert (code, marks(found, "failed")) == (3, {"log-in"})
    assert f"nothing listens at 127.0.0.1:{closed_port}" in found["log-in"]["message"]
    assert found["log-in"]["hint"] == "Check host and port of [real]."
    assert found["tables"]["message"] == "skipped, because check 'log-in' failed"


def test_a_missing_embedded_server_is_reported(monkeypatch, closed_port):
    monkeypatch.setenv(EMBEDDED_ADDRESS, f"127.0.0.1:{closed_port}")

    code, found = looked("-c", "embedded")

    assert (code, marks(found, "failed")) == (3, {"embedded server"})
    assert "unset LOADGEN_EMBEDDED_ADDRESS" in found["embedded server"]["hint"]
    assert found["connection"]["mark"] == "skipped"


def test_tables_that_are_not_there_yet(server, database):
    connection = server.connect(database=database, schema="CONTROL")  # which makes them
    connection.close()

    code, found = looked("-c", "real")

    assert (code, found["tables"]["mark"], found["tables"]["hint"]) == (3, "failed", "Run `loadgen setup`.")
    assert found["read control tables"]["message"] == "skipped, because check 'tables' failed"
    code, found = looked("-c", "embedded")
    assert (code, found["tables"]["mark"]) == (0, "warning")


def test_tables_of_a_newer_loadgen(server, database):
    run("-c", "real", command=setup)
    connection = server.connect(database=database, schema="CONTROL")
    connection.cursor().execute("INSERT INTO SCHEMA_VERSION SELECT 999, 'later', 'x', SYSDATE(), 'me'")
    connection.close()

    code, found = looked("-c", "real")

    assert (code, found["tables"]["mark"]) == (3, "failed")
    assert "newer than this loadgen" in found["tables"]["message"]


@pytest.mark.parametrize(
    ("match", "check", "said"),
    [
        ('SELECT COUNT.* FROM "TEST_LOGS"', "read control tables", 'SELECT is refused on "TEST_LOGS"'),
        ('INSERT INTO "(TEST_LOGS|VALUE_POOLS)"', "write control tables", 'refused on "TEST_LOGS", "VALUE_POOLS"'),
        ("UPDATE WORKER_HEARTBEATS", "write control tables", 'UPDATE is refused on "WORKER_HEARTBEATS"'),
    ],
)
def test_missing_rights_on_control_tables_are_named(server, match, check, said):
    run("-c", "real", command=setup)
    server.fault(match=match, **DENIED)

    code, found = looked("-c", "real")

    assert (code, marks(found, "failed")) == (3, {check})
    assert said in found[check]["message"]
    assert "loadgen grants" in found[check]["hint"]


def test_a_warehouse_that_is_not_there(tmp_path, server):
    scenario = tmp_path / "a.yaml"
    scenario.write_text(
        "version: 1\nname: a\nconnection: real\ntarget: {warehouse: NO_SUCH_WH, database: BENCH, schema: NO_SUCH}\n"
        "workload: {statements: [{name: a, sql: SELECT 1}]}\n"
    )

    code, found = looked(str(scenario))

    assert code == 3
    assert 'GRANT USAGE, MONITOR ON WAREHOUSE "NO_SUCH_WH" TO ROLE "ACCOUNTADMIN";' in found["warehouse"]["hint"]
    assert found["schema"]["message"] == '"BENCH"."NO_SUCH" does not exist, or this role has no privilege on it'
    assert found["worst case"]["message"].startswith("at most, in credits by size: X-Small ")


def test_a_connection_in_the_database_of_the_control_plane_is_a_warning(tmp_path, database):
    file = tmp_path / "a.yaml"
    scenario = (
        f"version: 1\nname: a\nconnection: real\ncontrol: {{database: {database}}}\n"
        "workload: {statements: [{name: a, sql: SELECT 1}]}\n"
    )
    connections = tmp_path / ".snowflake" / "connections.toml"
    with connections.open("a") as text:
        text.write(f"database = '{database.lower()}'\n")

    file.write_text(scenario)
    _, found = looked(str(file))
    file.write_text(f"{scenario}target: {{database: ELSEWHERE}}\n")
    _, apart = looked(str(file))

    assert found["scenario"]["mark"] == "warning"
    assert "share one limit of operations" in found["scenario"]["message"]
    assert apart["scenario"]["mark"] == "ok"


def test_the_settings_of_the_warehouse_and_the_cost_on_it(tmp_path, server, database):
    name = f"{database}_WH"
    connection = server.connect()
    connection.cursor().execute(
        f"CREATE WAREHOUSE {name} WITH WAREHOUSE_SIZE = MEDIUM MIN_CLUSTER_COUNT = 1 MAX_CLUSTER_COUNT = 3"
        " AUTO_SUSPEND = 0 MAX_CONCURRENCY_LEVEL = 4 INITIALLY_SUSPENDED = TRUE ENABLE_QUERY_ACCELERATION = FALSE"
    )
    connection.close()
    scenario = tmp_path / "a.yaml"
    scenario.write_text(
        f"version: 1\nname: a\nconnection: real\ntarget: {{warehouse: {name}, database: BENCH, schema: PUBLIC}}\n"
        "workload: {statements: [{name: a, sql: SELECT 1}]}\nload: {connections: 20}\nguardrails: {max_credits: 0.1}\n"
    )

    told = json.loads(run("--format", "json", str(scenario)).stdout)

    first, *more = [each for each in told["checks"] if each["check"] == "warehouse"]
    assert first["message"] == f'"{name}": Medium, generation 2, 1 to 3 clusters, never suspends, suspended'
    assert first["details"] == [
        "MAX_CONCURRENCY_LEVEL 4 per cluster: about 12 statements at once",
        "the scenario has 20 connections: statements may be queued",
        "the first statement resumes it: make the warm-up long enough",
    ]
    assert [each["mark"] for each in more] == ["warning", "warning"]
    cost = next(each for each in told["checks"] if each["check"] == "worst case")
    assert cost["mark"] == "warning"
    assert "for Medium, 1 to 3 clusters" in cost["message"]


def test_a_server_that_does_not_answer_costs_bounded_time_and_not_the_other_checks(server):
    """The lane is given up during SHOW WAREHOUSES; what comes after it gets a new one."""
    server.fault(match="SHOW WAREHOUSES", kind="hang", ms=3_000)  # the driver waits for it
    subject, facts = DoctorTarget(connection="real", place=ControlPlaneLocation(connection="real")), KnownFacts()
    lane = BoundedExecutor(lambda: DoctorSessions(subject, facts), name="test")
    checks = {check.name: check for check in all_checks.checks(subject, SystemClock())}

    (log_in,) = run_checks([checks["log-in"]], lane)
    (warehouse,) = run_checks([checks["warehouse"]], lane, limit_s=1.0)
    (offset,) = run_checks([checks["clock offset"]], lane)
    lane.close(limit_s=PATIENCE_S)

    assert (log_in.finding.level, offset.finding.level) == ("ok", "ok")
    assert warehouse.finding.message == "no answer within 1 s"


def test_hostile_texts_reach_the_terminal_harmlessly(server):
    server.fault(match="SHOW WAREHOUSES", kind="error", errno=2140, message="\x1b[2Jevil\x07\nerror: no")

    text = run("-c", "real").stdout

    assert "\x1b[2J" not in text
    assert "\x07" not in text
    assert "␛[2Jevil␇ error: no" in text  # on one line
