"""The judgements of `loadgen doctor`, and how checks are run: without a server."""

import threading
from datetime import UTC, datetime, timedelta
from unittest.mock import Mock

import pytest

from loadgen.control.location import ControlPlaneLocation
from loadgen.control.setup.installer import Prerequisites, SchemaState, migrations
from loadgen.doctor import findings
from loadgen.doctor.check_context import (
    DoctorSessions,
    DoctorTarget,
    Finding,
    FindingLevel,
    KnownFacts,
    WarehouseDescription,
    failed,
    ok,
    warning,
)
from loadgen.doctor.checks import BoundedExecutor, CheckedFinding, CheckTimeout, DoctorCheck, exit_code, run_checks
from loadgen.errors import ConfigurationError
from loadgen.scenario.read import LoadedScenario, parse_scenario
from loadgen.snowflake.connect import ConnectionProbe
from loadgen.snowflake.ident import Identifier
from loadgen.snowflake.profile_lookup import find_profile
from tests.processes import PATIENCE_S

PASSWORD = "planted-Passw0rd-7193"
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


def scenario(more: str = "", connection: str = "prod") -> LoadedScenario:
    text = f"version: 1\nname: a\nconnection: {connection}\nworkload: {{statements: [{{name: a, sql: SELECT 1}}]}}\n"
    return parse_scenario(text + more, source="a.yaml", environ={})


def probe_of(**more) -> ConnectionProbe:
    facts = dict.fromkeys(("server_version", "account", "region", "user", "role", "warehouse", "database", "schema"))
    return ConnectionProbe(**{**facts, "round_trips_ms": (1.0,), **more})


@pytest.fixture
def environ(tmp_path):
    """A home folder with one connection, `prod`."""
    folder = tmp_path / ".snowflake"
    folder.mkdir()
    file = folder / "connections.toml"
    file.write_text(f'[prod]\naccount = "acct"\nuser = "ann"\npassword = "{PASSWORD}"\nwarehouse = "bench_wh"\n')
    file.chmod(0o600)
    return {"HOME": str(tmp_path)}


# --- the machine -----------------------------------------------------------------------------------------------------


def test_cores_are_counted_against_the_connections():
    assert findings.processor(2, None).level is FindingLevel.OK
    assert findings.processor(2, 50).level is FindingLevel.OK
    few = findings.processor(2, 51)
    assert few.level is FindingLevel.WARNING
    assert "3 cores" in str(few.remedy)


@pytest.mark.parametrize(
    ("free_mb", "workers", "connections", "mark"),
    [(499, 1, None, "warning"), (500, 1, None, "ok"), (263, 2, 64, "failed"), (600, 2, 64, "ok")],
)
def test_memory_is_counted_against_the_workers(free_mb, workers, connections, mark):
    assert findings.memory(free_mb, workers, connections).level == mark


@pytest.mark.parametrize(
    ("limit", "connections", "mark"),
    [(256, None, "warning"), (1024, None, "ok"), (256, 96, "ok"), (256, 97, "failed"), (-1, 5000, "ok")],
)
def test_open_files_are_counted_against_the_connections_of_a_worker(limit, connections, mark):
    assert findings.open_files(limit, connections).level == mark


def test_a_clock_of_1970_is_reported():
    assert findings.wall_clock(datetime(1970, 1, 1, tzinfo=UTC)).level is FindingLevel.FAILED
    assert findings.wall_clock(NOON).level is FindingLevel.OK


def test_the_check_of_this_machine_prints_its_resources():
    assert findings.free_mb() > 0
    assert findings.versions().message.startswith("Python 3.")


# --- configuration ---------------------------------------------------------------------------------------------------


def test_every_field_is_shown_with_its_origin_and_no_secret(environ):
    environ["SNOWFLAKE_CONNECTIONS_PROD_ROLE"] = "RUNNER"

    (found,) = findings.connection(find_profile("prod", environ=environ))

    origin = f"{environ['HOME']}/.snowflake/connections.toml [prod]"
    assert [line.split(maxsplit=2) for line in found.details] == [
        ["account", "acct", origin],
        ["password", "****", origin],
        ["role", "RUNNER", "$SNOWFLAKE_CONNECTIONS_PROD_ROLE"],
        ["user", "ann", origin],
        ["warehouse", "bench_wh", origin],
    ]
    assert PASSWORD not in str(found)


def test_warnings_of_the_connection_are_findings(environ):
    environ |= {"SNOWFLAKE_CONNECTIONS_PROD_LOGIN_TIMEOUT": "5", "SNOWFLAKE_CONNECTIONS_PROD_WARHOUSE": "x"}

    _, misspelt, unused = findings.connection(find_profile("prod", environ=environ))

    assert (misspelt.level, unused.level) == (FindingLevel.WARNING, FindingLevel.WARNING)
    assert "did you mean warehouse?" in misspelt.message
    assert "login_timeout" in unused.message


def test_a_control_plane_on_the_warehouse_of_the_target_is_reported(environ):
    def found(more: str) -> Finding:
        loaded = scenario(more)
        place = ControlPlaneLocation.of_scenario(loaded.scenario)
        subject = DoctorTarget(connection="prod", place=place, loaded=loaded, environ=environ)
        return findings.scenario(subject)[-1]

    assert found("").level is FindingLevel.OK
    assert (
        found("control: {warehouse: BENCH_WH}\n").level is FindingLevel.WARNING
    )  # the connection's own, in lower case
    assert found("control: {warehouse: BENCH_WH, share_warehouse: true}\n").level is FindingLevel.OK


# --- the other end ---------------------------------------------------------------------------------------------------


def test_a_long_round_trip_is_reported():
    assert findings.round_trip(probe_of(round_trips_ms=(20.0, 49.0, 90.0))).level is FindingLevel.OK
    assert findings.round_trip(probe_of(round_trips_ms=(20.0, 51.0, 90.0))).level is FindingLevel.WARNING


@pytest.mark.parametrize("role", ["ACCOUNTADMIN", "SECURITYADMIN", "ORGADMIN"])
def test_administrators_are_warned(environ, role):
    found = findings.role(probe_of(role=role), find_profile("prod", environ=environ))

    assert found.level is FindingLevel.WARNING
    assert "loadgen grants" in str(found.remedy)


def test_other_roles_and_the_embedded_server_s_only_one_are_fine(environ):
    embedded = find_profile("embedded", environ={"LOADGEN_EMBEDDED_ADDRESS": "127.0.0.1:1"})

    assert findings.role(probe_of(role="LOADGEN_RUN"), find_profile("prod", environ=environ)).level is FindingLevel.OK
    assert findings.role(probe_of(role="ACCOUNTADMIN"), embedded).level is FindingLevel.OK


@pytest.mark.parametrize(
    ("region", "here", "mark"),
    [
        ("AWS_US_WEST_2", 0, "ok"),
        ("PUBLIC.AZURE_WESTEUROPE", 0, "ok"),
        ("GCP_EUROPE_WEST4", 0, "failed"),
        ("PUBLIC.GCP_US_CENTRAL1", 0, "failed"),
        ("AWS_US_GOV_WEST_1", 0, "failed"),
        ("GCP_EUROPE_WEST4", 4, "ok"),  # what exists is available, whatever the check assumed
        (None, 0, "ok"),
    ],
)
def test_regions_without_hybrid_tables_are_known(region, here, mark):
    found = findings.hybrid_tables(region, is_embedded=False, hybrid_here=here)

    assert found.level == mark
    assert mark == "ok" or "control: {connection: embedded}" in str(found.remedy)


def test_the_clock_offset_is_that_of_the_quickest_reading():
    readings = [
        findings.ClockReading(before=NOON, server=NOON + timedelta(seconds=9.9), trip_s=3.0),
        findings.ClockReading(before=NOON, server=NOON + timedelta(seconds=5.1), trip_s=0.2),
    ]

    found = findings.offset(readings)

    assert found.seconds == pytest.approx(5.0)
    assert found.error_s == pytest.approx(0.1)


@pytest.mark.parametrize(("seconds", "error_s", "mark"), [(1.9, 0.0, "ok"), (-600, 0.1, "warning"), (5, 4, "ok")])
def test_an_offset_is_printed_only_as_precisely_as_it_is_known(seconds, error_s, mark):
    assert findings.clock_offset(findings.ClockOffset(seconds=seconds, error_s=error_s)).level == mark


# --- the control plane -----------------------------------------------------------------------------------------------


def test_what_is_not_there_is_named():
    place = ControlPlaneLocation()
    found = findings.prerequisites(
        Prerequisites(warehouse=False, database=True, schema=False), place, is_embedded=False
    )

    assert found.level is FindingLevel.FAILED
    assert found.message.endswith('warehouse "LOADGEN_CONTROL_WH", schema "LOADGEN"."CONTROL"')
    there = Prerequisites(warehouse=True, database=True, schema=True)
    assert findings.prerequisites(there, place, is_embedded=True).details == ()
    fine = findings.prerequisites(there, place, is_embedded=False)
    assert fine.level is FindingLevel.OK
    assert fine.details == ("an idle `loadgen pool run` starts the warehouse every 10m: about 2.4 credits a day",)


def test_tables_that_are_missing_stop_a_run_on_an_account():
    none = SchemaState(schema_exists=True, applied=())
    all_there = SchemaState(schema_exists=True, applied=tuple(migration.version for migration in migrations()))

    assert findings.tables(none, is_embedded=False).level is FindingLevel.FAILED
    assert findings.tables(none, is_embedded=True).level is FindingLevel.WARNING
    assert findings.tables(all_there, is_embedded=False).level is FindingLevel.OK
    assert (findings.hybrid_count(none), findings.hybrid_count(all_there)) == (0, 19)


# --- the warehouse ---------------------------------------------------------------------------------------------------

ROW = {
    "name": "BENCH_WH", "state": "STARTED", "type": "STANDARD", "size": "Medium", "generation": "2",
    "min_cluster_count": 2, "max_cluster_count": 2, "auto_suspend": 60, "auto_resume": "true",
    "enable_query_acceleration": "false",
}  # fmt: skip


def marks(row: dict[str, object], **more) -> list[str]:
    found = WarehouseDescription.from_row({**ROW, **row}, 8)
    options = {"is_embedded": False, "connections": 8, **more}
    return [str(each.level) for each in findings.judge(found, **options)]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({}, ["ok"]),
        ({"state": "SUSPENDED"}, ["ok"]),
        ({"state": "SUSPENDED", "auto_resume": "false"}, ["failed"]),
        ({"auto_suspend": None}, ["ok", "warning"]),
        ({"auto_suspend": 0}, ["ok", "warning"]),
        ({"enable_query_acceleration": "true"}, ["ok", "warning"]),
        ({"min_cluster_count": 1}, ["ok", "warning"]),
        ({"generation": None, "min_cluster_count": None, "max_cluster_count": None}, ["ok"]),
    ],
)
def test_disturbances_of_a_measurement_are_reported(row, expected):
    assert marks(row) == expected


def test_the_embedded_server_s_defaults_are_no_concern():
    assert marks({"auto_suspend": None, "enable_query_acceleration": "true"}, is_embedded=True) == ["ok"]


def test_the_warehouse_is_described():
    (found,) = findings.judge(WarehouseDescription.from_row(ROW, 8), is_embedded=False, connections=17)

    assert found.message == '"BENCH_WH": Medium, generation 2, 2 clusters, suspends after 60 s, started'
    assert found.details == (
        "MAX_CONCURRENCY_LEVEL 8 per cluster: about 16 statements at once",
        "the scenario has 17 connections: statements may be queued",
    )


@pytest.mark.parametrize(
    ("name", "sql"),
    [
        ("BENCH_WH", "SHOW WAREHOUSES LIKE 'BENCH_WH'"),
        ("it's", "SHOW WAREHOUSES"),
        ("a\\", "SHOW WAREHOUSES"),
        ("100%", "SHOW WAREHOUSES"),
        ("größe", "SHOW WAREHOUSES"),
    ],
)
def test_only_harmless_names_become_part_of_a_literal(name, sql):
    assert f"SHOW WAREHOUSES{Identifier(name).like}" == sql


# --- how checks are run ----------------------------------------------------------------------------------------------


def check(name: str, run, *needs: str, **more) -> DoctorCheck:
    return DoctorCheck(section="s", name=name, run=lambda _: run(), needs=needs, **more)


def new_lane() -> BoundedExecutor[DoctorSessions]:
    subject = DoctorTarget(connection=None, place=ControlPlaneLocation())
    return BoundedExecutor(lambda: DoctorSessions(subject, KnownFacts()), name="test")


def run(*checks: DoctorCheck) -> list[CheckedFinding]:
    return list(run_checks(checks, new_lane(), limit_s=PATIENCE_S))


def test_checks_that_depend_on_a_failed_check_are_skipped_with_the_reason():
    found = run(
        check("a", Mock(side_effect=ConfigurationError("broken", remedy="Mend it."))),
        check("b", lambda: [ok("fine")], "a"),
        check("c", lambda: [ok("fine")], "b"),
        check("d", lambda: [ok("fine")]),
    )

    assert [(each.finding.level, each.finding.message) for each in found] == [
        ("failed", "broken"),
        ("skipped", "skipped, because check 'a' failed"),
        ("skipped", "skipped, because check 'a' failed"),
        ("ok", "fine"),
    ]
    assert found[0].finding.remedy == "Mend it."


def test_a_check_that_never_ends_is_given_up_and_the_next_one_runs():
    never, lane = threading.Event(), new_lane()

    (first,) = run_checks([check("a", lambda: never.wait() and [])], lane, limit_s=0.2)
    (second,) = run_checks([check("b", lambda: [ok("fine")])], lane, limit_s=PATIENCE_S)
    never.set()

    assert (first.finding.level, second.finding.level) == ("failed", "ok")
    assert first.finding.message == "no answer within 0.2 s"


def test_a_bug_in_one_check_does_not_hide_the_others(caplog):
    found = run(check("a", Mock(side_effect=ZeroDivisionError("oops"))), check("b", lambda: [ok("fine")]))

    assert [each.finding.level for each in found] == ["failed", "ok"]
    assert "unexpected ZeroDivisionError: oops" in found[0].finding.message
    assert "check_failed check=a" in caplog.text


class Owned:
    """What the thread of a lane owns: records in which threads it was opened and closed."""

    def __init__(self) -> None:
        self.made_by, self.closed_by = threading.get_ident(), 0
        self.is_closed = threading.Event()

    def close(self) -> None:
        self.closed_by = threading.get_ident()
        self.is_closed.set()


def test_a_thread_left_behind_keeps_its_belongings_to_itself_and_closes_them_in_the_end():
    going_on = threading.Event()
    lane = BoundedExecutor(Owned, name="test")

    first = lane.do(lambda owned: owned, limit_s=PATIENCE_S)
    with pytest.raises(CheckTimeout):
        lane.do(lambda _: going_on.wait(), limit_s=0.05)
    second = lane.do(lambda owned: owned, limit_s=PATIENCE_S)

    assert len({first.made_by, second.made_by, threading.get_ident()}) == 3
    assert not first.is_closed.is_set()
    going_on.set()
    assert first.is_closed.wait(PATIENCE_S)
    assert first.closed_by == first.made_by
    lane.close(limit_s=PATIENCE_S)
    lane.close(limit_s=PATIENCE_S)
    assert second.closed_by == second.made_by


def test_an_own_timeout_of_a_look_is_no_time_out_of_the_lane():
    lane = BoundedExecutor(Owned, name="test")

    with pytest.raises(TimeoutError, match="mine"):
        lane.do(lambda _: Mock(side_effect=TimeoutError("mine"))(), limit_s=PATIENCE_S)
    assert lane.do(lambda _: 1, limit_s=PATIENCE_S) == 1


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ([(ok("x"), 3), (warning("x", "y"), 2)], 0),
        ([(failed("x", "y"), 3)], 3),
        ([(failed("x", "y"), 3), (failed("x", "y"), 2)], 2),
    ],
)
def test_the_exit_code_is_2_for_a_configuration_3_for_the_rest_0_without_failures(found, code):
    examined = [CheckedFinding(check=check("a", list, exit_code=own), finding=finding) for finding, own in found]

    assert exit_code(examined) == code
