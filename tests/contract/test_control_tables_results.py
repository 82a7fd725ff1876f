"""What is appended at the end of a run, through the real driver: every column comes back as it was written."""

from __future__ import annotations

import json
import uuid
from dataclasses import astuple, replace
from datetime import timedelta
from typing import Any

import pytest

from loadgen.control.session import REASON_MAX, ROWS_MAX, load_queries
from loadgen.control.tables import query_executions, run_measurements, run_status, test_logs, test_results
from loadgen.control.tables.query_executions import Execution
from loadgen.control.tables.run_measurements import StepRecord, WarehousePoll
from loadgen.control.tables.run_status import RunFigures
from loadgen.control.tables.test_results import ResultRow
from loadgen.model.run import Phase
from loadgen.worker.flush import ResultFlusher
from loadgen.worker.worker_state import WorkerLogLine, WorkerSharedState
from tests.contract.control_builders import HOSTILE, MOMENT, STORED, appends, log_row, raw_count
from tests.control_plane import ControlPlane, retries, step_row, stored_executions
from tests.embedded_server import EmbeddedServer
from tests.fake_clock import FakeClock
from tests.unit.worker_builders import ME, snapshot

# --- query executions ------------------------------------------------------------------------------------------------


def execution(run_id: str, **more: Any) -> Execution:
    fields: dict[str, Any] = {"execution_id": str(uuid.uuid4()), "run_id": run_id, "test_id": "t", "worker_id": "w0"}
    fields |= {"query_id": "01b", "statement_name": "by key", "query_kind": "READ", "phase": Phase.MEASUREMENT}
    fields |= {"step_id": 4, "start_time": MOMENT, "due_lag_ms": 0.25, "duration_ms": 12.75, "rows_affected": 3}
    fields |= {"success": False, "error_category": "QUERY_TIMEOUT", "error_code": 630, "error": "it's late"}
    return Execution(**(fields | more))


WENT_WELL: dict[str, Any] = {"success": True, "error_category": None, "error_code": None, "error": None}

WENT_WELL |= {"query_id": None, "step_id": None, "rows_affected": None}


def test_executions_come_back_as_they_were_written(session, run_id):
    written = [
        execution(run_id),
        execution(run_id, **WENT_WELL, start_time=MOMENT + timedelta(microseconds=1)),
        execution(run_id, worker_id="w1", start_time=MOMENT + timedelta(microseconds=2), error=HOSTILE),
    ]

    query_executions.append(session, retries(), written[:2])
    query_executions.append(session, retries(), written[2:])

    found = stored_executions(session, run_id)
    assert [one for one, _ in found] == [*written[:2], replace(written[2], error=STORED)]
    assert {status for _, status in found} == {"PENDING"}


def test_an_error_text_of_any_length_does_not_cost_the_batch(session, run_id):
    query_executions.append(session, retries(), [execution(run_id), execution(run_id, error="é" * 100_000)])

    lengths = sorted(len(one.error or "") for one, _ in stored_executions(session, run_id))

    assert lengths == [9, query_executions.ERROR_MAX]


def test_an_upload_is_split_into_statements_of_bounded_size(server, plane, session, run_id):
    count = 7 * ROWS_MAX + 1
    written = [execution(run_id) for _ in range(count)]
    before = appends(server, "QUERY_EXECUTIONS")

    query_executions.append(session, retries(), written)
    after = appends(server, "QUERY_EXECUTIONS")
    query_executions.append(session, retries(), written)  # again, after a crash

    assert after - before == -(-count // ROWS_MAX) == 8
    assert appends(server, "QUERY_EXECUTIONS") == after
    assert len(stored_executions(session, run_id)) == count
    assert raw_count(plane, "QUERY_EXECUTIONS", run_id) == count


# --- results, logs, steps, polls -------------------------------------------------------------------------------------


def result(run_id: str, **more: Any) -> ResultRow:
    fields: dict[str, Any] = {"test_id": run_id, "run_id": run_id, "worker_id": None, "worker_group_id": None}
    fields |= {"template_id": "t" * 64, "status": "COMPLETED", "created_at": MOMENT, "total_operations": 2**40}
    fields |= {"read_operations": 1, "write_operations": 2, "failed_operations": 0, "p50_latency_ms": 1.5}
    fields |= {"p95_latency_ms": 2.5, "p99_latency_ms": 3.5, "avg_latency_ms": 1.75}
    return ResultRow(**(fields | {"find_max_result": '{"best":16}', "summary": '{"b":1,"a":[]}'} | more))


NO_LATENCY = dict.fromkeys(["p50_latency_ms", "p95_latency_ms", "p99_latency_ms", "avg_latency_ms"])


def test_the_list_of_runs_has_the_figures_of_their_results(session, plane):
    run_id, another = plane.new_run(), plane.new_run()
    stored = result(run_id, failed_operations=7, summary='{"totals":{"qps":289.25}}')
    test_results.append(session, retries(), result(run_id, test_id="worker", worker_id="w0", worker_group_id=0))
    for row in (stored, replace(stored, total_operations=1)):  # the second came late, and counts for nothing
        session.execute(load_queries("test_results")["append"], *astuple(row))

    found = {
        run.run_id: figures for run, figures in run_status.listed(session, 1_000) if run.run_id in (run_id, another)
    }

    assert found == {run_id: RunFigures(operations=2**40, errors=7, qps=289.25, p95_ms=2.5), another: None}


def test_results_come_back_the_runs_own_first(session, run_id):
    bare: dict[str, Any] = {"find_max_result": None, "summary": None, **NO_LATENCY}
    rows = [
        result(run_id),
        result(run_id, test_id="z" + run_id[1:], worker_id="w0", worker_group_id=0, **bare),
        result(run_id, test_id="-" + run_id[1:], worker_id="w1", worker_group_id=1, status="FAILED"),
    ]
    before = run_status.server_time(session)
    for row in reversed(rows):
        test_results.append(session, retries(), row)

    found = test_results.read(session, run_id)

    plain = [replace(row, find_max_result=None, summary=None) for row in rows]
    assert [replace(row, find_max_result=None, summary=None) for row, _ in found] == plain
    assert [row.summary and json.loads(row.summary) for row, _ in found] == [{"b": 1, "a": []}, None, {"b": 1, "a": []}]
    assert [row.find_max_result and json.loads(row.find_max_result) for row, _ in found] == [
        {"best": 16},
        None,
        {"best": 16},
    ]
    assert all(before <= ended <= run_status.server_time(session) for _, ended in found)


def test_a_result_is_appended_once_by_the_first_writer(plane, session, run_id):
    test_results.append(session, retries(), result(run_id))
    test_results.append(session, retries(), result(run_id, status="FAILED"))

    assert [row.status for row, _ in test_results.read(session, run_id)] == ["COMPLETED"]
    assert raw_count(plane, "TEST_RESULTS", run_id) == 1


def test_a_summary_with_hostile_texts_is_stored(session, run_id):
    test_results.append(session, retries(), result(run_id, summary=json.dumps({"errors": [HOSTILE]})))

    ((row, _),) = test_results.read(session, run_id)
    assert json.loads(row.summary or "") == {"errors": [STORED]}


def test_logs_come_back_as_they_were_written_oldest_first(session, run_id):
    full = {"test_id": "t", "worker_id": "w0", "level": "ERROR", "details": {"stack": ["a", "b"], "n": None}}
    rows = [
        log_row(run_id, message="first"),
        log_row(run_id, message="", timestamp=MOMENT + timedelta(microseconds=1), **full),
        log_row(run_id, message=HOSTILE, timestamp=MOMENT + timedelta(seconds=1)),
    ]

    test_logs.append(session, retries(), rows[::-1])

    assert test_logs.newest(session, run_id, 10) == (*rows[:2], replace(rows[2], message=STORED))
    assert test_logs.newest(session, run_id, 2)[0] == rows[1]
    assert test_logs.newest(session, "another run", 10) == ()


def test_no_log_line_costs_another(session, run_id):
    circle: dict[str, Any] = {}
    circle["again"] = circle
    odd: list[Any] = [{"a": HOSTILE}, {"a": float("nan")}, {("t", 1): object}, circle, {"a": "x" * 2_000_000}]
    rows = [log_row(run_id, message="x" * 100_000), *(log_row(run_id, details=details) for details in odd)]

    test_logs.append(session, retries(), rows)

    found = test_logs.newest(session, run_id, 100)
    assert {row.log_id for row in found} == {row.log_id for row in rows}
    assert max(len(row.message) for row in found) == test_logs.MESSAGE_MAX
    assert {"a": STORED} in [row.details for row in found]


def test_many_logs_of_any_size_are_all_there(session, run_id):
    rows = [log_row(run_id, message="é" * 4_000, details={"n": number}) for number in range(700)]

    test_logs.append(session, retries(), rows)

    assert {row.log_id for row in test_logs.newest(session, run_id, 1_000)} == {row.log_id for row in rows}


def step(run_id: str, **more: Any) -> StepRecord:
    fields: dict[str, Any] = {"window_start_time": MOMENT, "window_end_time": MOMENT + timedelta(seconds=10)}
    fields |= {"succeeded": 100, "failed": 1, "qps": 10.1, "error_rate": 0.01, "queue_seen": True}
    fields |= {"p50_latency_ms": 1.0, "p95_latency_ms": 2.0, "p99_latency_ms": 3.0}
    return step_row(run_id, **(fields | more))


def test_steps_come_back_as_they_were_judged_the_first_time(plane, session, run_id):
    steps = [step(run_id), step_row(run_id, step_number=2), step(run_id, step_number=10)]

    for one in (*steps[::-1], step(run_id, outcome="FAILED")):
        run_measurements.append_step(session, retries(), one)

    assert run_measurements.read_steps(session, run_id) == tuple(steps)
    assert raw_count(plane, "FIND_MAX_STEP_HISTORY", run_id) == 3


def test_a_reason_of_any_kind_is_kept(session, run_id):
    run_measurements.append_step(session, retries(), step(run_id, reason=HOSTILE + "x" * 5_000))

    (found,) = run_measurements.read_steps(session, run_id)
    assert found.reason.startswith(STORED)
    assert len(found.reason) == REASON_MAX


def test_polls_of_the_warehouse_come_back_as_they_were_written(session, run_id):
    bare: dict[str, Any] = dict.fromkeys(["running", "queued", "started_clusters", "size", "raw"])
    full: dict[str, Any] = {
        "running": 3,
        "queued": 0,
        "started_clusters": 1,
        "size": "X-Small",
        "raw": json.dumps({"a": HOSTILE}),
    }
    polls = [
        WarehousePoll(run_id=run_id, timestamp=MOMENT, **full),
        WarehousePoll(run_id=run_id, timestamp=MOMENT + timedelta(microseconds=1), **bare),
    ]

    run_measurements.append_polls(session, retries(), polls)

    found = run_measurements.read_polls(session, run_id)
    assert [replace(one, raw=None) for one in found] == [replace(one, raw=None) for one in polls]
    assert json.loads(found[0].raw or "") == {"a": STORED}
    assert found[1].raw is None


def test_a_workers_result_is_there_from_its_beginning_and_finished_once(plane, run_id):
    finished = result(run_id, test_id="c" + run_id[1:], worker_id="worker-0", worker_group_id=0, find_max_result=None)
    begun = replace(finished, status="RUNNING", summary=None)
    test_results.begin(plane.session, retries(), begun)
    test_results.begin(plane.session, retries(), begun)
    assert [row.status for row, _ in test_results.read(plane.session, run_id)] == ["RUNNING"]
    test_results.abandon(plane.session, retries(), run_id)
    assert [row.status for row, _ in test_results.read(plane.session, run_id)] == ["FAILED"]

    for _ in range(2):
        test_results.append(plane.session, retries(), finished)
    test_results.abandon(plane.session, retries(), run_id)

    assert raw_count(plane, "TEST_RESULTS", run_id) == 1
    check_finished(plane, finished)


def check_finished(plane: ControlPlane, finished: ResultRow) -> None:
    ((row, _),) = test_results.read(plane.session, finished.run_id)
    assert replace(row, summary=None) == replace(finished, summary=None, find_max_result=None)
    assert json.loads(row.summary or "") == json.loads(finished.summary or "")


@pytest.mark.parametrize("fault", [{"errno": 625, "sqlstate": "57014"}, None], ids=["locked", "never begun"])
def test_a_worker_that_would_have_to_wait_for_the_table_appends_its_result(plane, run_id, fault):
    finished = result(run_id, test_id="c" + run_id[1:], worker_id="worker-0", worker_group_id=0, find_max_result=None)
    if fault is not None:
        test_results.begin(plane.session, retries(), replace(finished, status="RUNNING", summary=None))
        plane.server.fault(match="UPDATE TEST_RESULTS", kind="error", **fault)

    test_results.append(plane.session, retries(), finished)
    plane.server.clear_faults()

    check_finished(plane, finished)


# --- rows of a worker ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["TEST_LOGS", "WORKER_METRICS_SNAPSHOTS"])
def test_rows_of_a_write_that_was_given_up_are_not_there_twice(
    server: EmbeddedServer, plane: ControlPlane, run_id: str, table: str
) -> None:
    """The response was lost, and the worker was stopped before it could look it up."""
    shared = WorkerSharedState(clock=FakeClock())
    flusher = ResultFlusher(plane.session, replace(ME, run_id=run_id), "t", shared, shared.clock, period_s=5.0)
    shared.lines.append(WorkerLogLine(level="INFO", message="1", details=None, timestamp=MOMENT))
    flusher.put_snapshot(replace(snapshot(1), run_id=run_id, snapshot_id=str(uuid.uuid4())))
    server.fault(match=f"INSERT INTO {table}", kind="drop_reply")

    given_up = flusher.step(retries(attempts=1), everything=True)
    server.clear_faults()
    shared.lines.append(WorkerLogLine(level="INFO", message="2", details=None, timestamp=MOMENT))
    flusher.put_snapshot(replace(snapshot(2), run_id=run_id, snapshot_id=str(uuid.uuid4())))
    written = flusher.step(retries(), everything=True)

    assert (given_up, written) == (False, True)
    for name, key in (("TEST_LOGS", "LOG_ID"), ("WORKER_METRICS_SNAPSHOTS", "SNAPSHOT_ID")):
        sql = f"SELECT COUNT(*), COUNT(DISTINCT {key}) FROM {name} WHERE RUN_ID = ?"
        assert plane.rows(sql, run_id) == [(2, 2)], name
