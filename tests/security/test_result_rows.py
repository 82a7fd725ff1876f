"""Attacks by rows of results: a reading command shows the other rows, or an error with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import pytest

from loadgen.control.tables import query_executions, run_status, schedules
from loadgen.control.tables.query_executions import Execution
from loadgen.control.tables.run_queue import QueueRequest
from loadgen.control.tables.schedules import NewSchedule
from loadgen.errors import LoadgenError
from loadgen.model.nightly import FireOutcome, Overlap, ScheduleFire
from loadgen.results.comparisons import read_pair
from loadgen.results.run_details import read_run_details
from loadgen.results.stored_summary import read_summary
from loadgen.scenario.frozen import freeze
from loadgen.scenario.settings import TargetSettings
from tests.command_line import Ask
from tests.contract.test_report import finished_run
from tests.control_plane import ControlPlane, retries
from tests.security.hostile_rows import DESCRIBED, RESULT_TABLES, plant_copies
from tests.unit.report_builders import scenario

READ = ("runs list -n 500", "runs show {a}", "runs logs {a} -n 500", "status {a}", "trend orders-mix")
REPORTS = tuple(f"report {{a}} --format {kind}" for kind in ("text", "json", "html", "md", "junit", "csv"))
COMPARE = "compare {a} {b}"
COMMANDS: dict[str, tuple[str, ...]] = {
    "TEST_RESULTS": (*READ, REPORTS[0], COMPARE, "watch {a}"),
    "WINDOW_RESULTS": (*REPORTS[:3], COMPARE, "watch {a}"),
    "FIND_MAX_STEP_HISTORY": REPORTS[:3],
    "WAREHOUSE_POLL_SNAPSHOTS": (*REPORTS[1:3], "trend orders-mix", COMPARE),
    "WORKER_METRICS_SNAPSHOTS": (*REPORTS, COMPARE, "watch {a}"),
    "QUERY_EXECUTIONS": (REPORTS[1], "enrich {a}"),
    "RUN_CONTROL_EVENTS": REPORTS[1:4],
    "TEST_LOGS": ("runs logs {a} -n 500", *REPORTS[1:3], "watch {a}"),
    "SCHEDULE_FIRES": ("schedule show nightly", "schedule list", "schedule tick"),
}
# What a good row shows, where that is not the id of the run.
GOOD = {
    "runs logs {a} -n 500": "said WARNING",
    "trend orders-mix": "orders-mix",
    REPORTS[5]: "MEASUREMENT",
    "schedule show nightly": "SKIPPED",
    "schedule list": "nightly",
    "schedule tick": "nothing is due",
}
JSON = ("runs", "status", "trend", "compare", "schedule")

Asked = Callable[[str], tuple[int, str, str]]  # the command with placeholders


class Kept:
    """A control plane with two finished runs, and a copy of each table as it was."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.a, self.b = finished_run(plane), finished_run(plane)
        config = freeze(scenario(target=TargetSettings(database=plane.place.database, schema=plane.place.schema)))
        ended = "STATUS = 'COMPLETED', VERDICT = 'passed', END_TIME = UPDATED_AT"
        plane.change(f"UPDATE RUN_STATUS SET {ended}, SCENARIO_CONFIG = ?", config)
        run = run_status.read(plane.session, self.a)
        assert run is not None
        assert run.start_time is not None
        one = Execution(
            execution_id="e", run_id=self.a, test_id=self.a, worker_id="worker-0", query_id="q", statement_name="look",
            query_kind="read", phase="MEASUREMENT", step_id=None, start_time=run.start_time, due_lag_ms=0.0,
            duration_ms=5.0, rows_affected=1, success=True, error_category=None, error_code=None, error=None,
        )  # fmt: skip
        query_executions.append(plane.session, retries(), [one])
        wanted = QueueRequest(name="orders", scenario="version: 1", files={})
        known = {"cron": "0 2 1 1 *", "timezone": "Europe/Berlin", "max_catchup": 1, "overlap": Overlap.QUEUE}
        made = NewSchedule(name="nightly", wanted=wanted, **known)  # type: ignore[arg-type]
        schedule = schedules.add(plane.session, retries(), made)
        moment = schedules.as_utc(run_status.server_time(plane.session)) + timedelta(hours=1)
        fire = ScheduleFire(at=moment, outcome=FireOutcome.SKIPPED)
        assert schedules.record_fire(plane.session, retries(), schedule, fire)
        for table in (*RESULT_TABLES, "RUN_STATUS"):
            plane.change(f"CREATE TABLE KEPT_{table} AS SELECT * FROM {table}")
            self.forget(table)

    def plant_results(self) -> list[str]:
        """Runs like the first one, each with a result that has one hostile value. Their ids."""
        ids = plant_copies(self.plane, "TEST_RESULTS", "KEPT_TEST_RESULTS", self.a, "RUN_ID")
        self.plane.change(
            "UPDATE TEST_RESULTS SET SUMMARY = PARSE_JSON(REPLACE(TO_JSON(SUMMARY), ?, RUN_ID))"
            " WHERE STARTSWITH(RUN_ID, 'h') AND SUMMARY IS NOT NULL",
            self.a,
        )
        columns = [name for name, *_ in self.plane.rows(DESCRIBED, self.plane.place.schema, "RUN_STATUS")]
        chosen = ", ".join("R.RUN_ID" if name == "RUN_ID" else f"S.{name}" for name in columns)
        self.plane.change(
            f"INSERT INTO RUN_STATUS ({', '.join(columns)}) SELECT {chosen} FROM KEPT_RUN_STATUS S"
            " JOIN TEST_RESULTS R ON STARTSWITH(R.RUN_ID, 'h') WHERE S.RUN_ID = ?",
            self.a,
        )
        return ids

    def forget(self, table: str) -> None:
        self.plane.change(f"DELETE FROM {table}")
        self.plane.change(f"INSERT INTO {table} SELECT * FROM KEPT_{table}")


@pytest.fixture(scope="module")
def kept(plane: ControlPlane) -> Kept:
    return Kept(plane)


@pytest.fixture
def asked(ask: Ask, kept: Kept) -> Asked:
    return lambda words: ask(*words.format(a=kept.a, b=kept.b).split())


def test_every_command_works_as_long_as_no_row_is_hostile(asked: Asked) -> None:
    for words in dict.fromkeys(words for group in COMMANDS.values() for words in group):
        code, _, err = asked(words)
        assert (code, "left out" in err, "unreadable" in err) == (0, False, False), (words, err)


@pytest.mark.parametrize("table", RESULT_TABLES)
def test_no_value_of_any_column_is_a_bug_or_hides_the_good_rows(kept: Kept, asked: Asked, table: str) -> None:
    planted = plant_copies(kept.plane, table, f"KEPT_{table}", kept.a)
    assert len(planted) > 10
    if table == "TEST_RESULTS":
        kept.plant_results()
    try:
        told = ""
        for words in COMMANDS[table]:
            code, out, err = asked(words)
            told += out + err
            check(words, code, out, err)
            assert code != 0 or GOOD.get(words, kept.a) in out, (words, out[:2_000])
            if words.split()[0] in JSON:
                json.loads(asked(f"{words} --format json")[1])
    finally:
        kept.forget(table)
        kept.forget("RUN_STATUS")
    assert "unreadable" in told or "left out" in told


def test_no_value_of_a_result_is_a_bug_of_a_reader(kept: Kept) -> None:
    """Each run that has one. All readers read it in one way; some ask it of two of them."""
    session, read, unreadable = kept.plane.session, 0, set()
    try:
        for number, run_id in enumerate(kept.plant_results()):
            problem = ""
            try:
                read_summary(session, retries(), run_id)
                read += 1
            except LoadgenError as error:
                problem = str(error)
            unreadable.add(problem.partition(" is unreadable: ")[2].partition(" ")[0].rstrip(":"))
            if number % 8 == 0:
                assert read_run_details(session, retries(), run_id).summary_problem == (problem or None)
                with suppress(LoadgenError):
                    read_pair(session, retries(), (run_id, kept.b), ())
    finally:
        kept.forget("TEST_RESULTS")
        kept.forget("RUN_STATUS")
    assert read > 20
    assert unreadable >= {"summary", "p95_latency_ms"}


def check(words: str, code: int, out: str, err: str) -> None:
    """The good rows are shown, or the reason why not; a comparison is rejected."""
    where = f"{words}, {code}: {err[:3_000]}"
    assert "Traceback" not in err, where
    assert "unexpected" not in err, where
    assert code in ((0, 2, 4) if words.startswith("compare") else (0,)), where
    assert code == 0 or ("error: " in err and "hint: " in err), where
    assert code != 0 or out.strip(), where
    assert "\x1b" not in out + err, where
