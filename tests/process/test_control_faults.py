"""Every appended table, and heartbeats, while the control plane loses answers, resets, delays and refuses.

What was said to be written is there, once; the raw rows are counted, not what readers make of them.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from loadgen.control import (
    find_max_step_history,
    query_executions,
    run_status,
    test_logs,
    test_results,
    value_pools,
    warehouse_poll_snapshots,
    window_results,
    worker_heartbeats,
    worker_metrics_snapshots,
)
from loadgen.control.retry import Patience
from loadgen.control.session import ControlFailed, ControlSession
from loadgen.model.run import Phase
from loadgen.model.worker import WorkerStatus
from loadgen.workload.pools import Pool
from tests.control_plane import ControlPlane
from tests.embedded_server import EmbeddedServer

MOMENT = datetime(2026, 11, 20, 1, 2, 3, 456789)  # noqa: DTZ001  naive UTC, as the tables have it


def patience(attempts: int = 15) -> Patience:
    return Patience(stop=threading.Event(), attempts=attempts, first_pause_s=0.01)


# --- what is written -------------------------------------------------------------------------------------------------


def window(number: int) -> window_results.WindowResult:
    return window_results.WindowResult(
        worker_id=f"w{number % 3}",
        window_id=number,
        epoch=1,
        phase=Phase.MEASUREMENT,
        step_id=None,
        seconds=1.5,
        counts="{}",
        buckets="{}",
    )


def snapshot(run_id: str, number: int) -> worker_metrics_snapshots.Snapshot:
    numbers = ["total_queries", "read_count", "write_count", "error_count", "active_connections", "target_connections"]
    times = [f"{name}_latency_ms" for name in ("p50", "p95", "p99", "avg", "min", "max")]
    fields: dict[str, Any] = dict.fromkeys([*times, "phase", "cpu_percent", "memory_percent"]) | dict.fromkeys(
        numbers, 1
    )
    fields |= {"run_id": run_id, "test_id": "t", "worker_id": "w0", "worker_group_id": 0, "worker_group_count": 1}
    fields |= {"timestamp": MOMENT + timedelta(seconds=number), "elapsed_seconds": 1.0, "qps": 1.0}
    return worker_metrics_snapshots.Snapshot(**fields, custom_metrics='{"a":1}')


def execution(run_id: str, number: int) -> query_executions.Execution:
    fields: dict[str, Any] = dict.fromkeys(
        ["query_id", "step_id", "rows_affected", "error_category", "error_code", "error"]
    )
    fields |= {"run_id": run_id, "test_id": "t", "worker_id": "w0", "statement_name": "s", "query_kind": "READ"}
    fields |= {"phase": "MEASUREMENT", "start_time": MOMENT, "due_lag_ms": 0.5, "duration_ms": 1.5, "success": True}
    return query_executions.Execution(**fields, execution_id=str(uuid.uuid4()))


def result(run_id: str, number: int) -> test_results.ResultRow:
    times = ["p50_latency_ms", "p95_latency_ms", "p99_latency_ms", "avg_latency_ms", "find_max_result"]
    fields: dict[str, Any] = dict.fromkeys(times) | {
        f"{name}_operations": 1 for name in ("total", "read", "write", "failed")
    }
    fields |= {"run_id": run_id, "worker_id": f"w{number}", "worker_group_id": number, "template_id": "t"}
    fields |= {"status": "COMPLETED", "created_at": MOMENT, "summary": '{"a":1}'}
    return test_results.ResultRow(**fields, test_id=str(uuid.uuid4()))


def log_row(run_id: str, number: int) -> test_logs.LogRow:
    return test_logs.LogRow(
        run_id=run_id,
        test_id=None,
        worker_id=None,
        level="INFO",
        message=f"line {number}",
        details={"n": number},
        timestamp=MOMENT + timedelta(seconds=number),
    )


def step(run_id: str, number: int) -> find_max_step_history.StepRecord:
    times = [
        "window_start_time",
        "window_end_time",
        "qps",
        "p50_latency_ms",
        "p95_latency_ms",
        "p99_latency_ms",
        "error_rate",
    ]
    fields: dict[str, Any] = dict.fromkeys(times) | {"run_id": run_id, "step_number": number, "target_connections": 1}
    fields |= {"succeeded": 1, "failed": 0, "queue_seen": False, "outcome": "PASSED", "reason": "x"}
    return find_max_step_history.StepRecord(**fields)


def warehouse_poll(run_id: str, number: int) -> warehouse_poll_snapshots.WarehousePoll:
    moment = MOMENT + timedelta(seconds=number)
    return warehouse_poll_snapshots.WarehousePoll(
        run_id=run_id, timestamp=moment, running=1, queued=0, started_clusters=1, size="X", raw="{}"
    )


def pool(number: int) -> Pool:
    return Pool(f"p{number}", tuple("x" * 400_000 for _ in range(5)) if number == 0 else (number,))


# --- how it is written, in so many calls -----------------------------------------------------------------------------

CALLS = 20
PER_CALL = 30
Append = Callable[[ControlSession, Patience, Any], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One table: what to append call by call, and how many rows it must have then."""

    table: str
    key: str
    make: Callable[[str], Sequence[Any]]  # the arguments of each call
    append: Callable[[ControlSession, Patience, str, Any], None]
    read: Callable[[ControlSession, str], int]
    rows: int


def batches(make: Callable[[str, int], Any]) -> Callable[[str], list[list[Any]]]:
    return lambda run_id: [
        [make(run_id, call * PER_CALL + number) for number in range(PER_CALL)] for call in range(CALLS)
    ]


def ones(make: Callable[[str, int], Any]) -> Callable[[str], list[Any]]:
    return lambda run_id: [make(run_id, call) for call in range(CALLS)]


KINDS = [
    Kind(
        table="WINDOW_RESULTS",
        key="WORKER_ID, WINDOW_ID",
        make=ones(lambda _, number: window(number)),
        append=window_results.append,
        read=lambda session, run_id: len(window_results.read(session, run_id)),
        rows=CALLS,
    ),
    Kind(
        table="VALUE_POOLS",
        key="POOL, CHUNK",
        make=ones(lambda _, number: pool(number)),
        append=value_pools.store,
        read=lambda session, run_id: len(value_pools.load(session, patience(), run_id)) + 2,
        rows=CALLS + 2,  # the first pool has three chunks
    ),
    Kind(
        table="TEST_RESULTS",
        key="TEST_ID",
        make=ones(result),
        append=lambda session, patient, _, row: test_results.append(session, patient, row),
        read=lambda session, run_id: len(test_results.read(session, run_id)),
        rows=CALLS,
    ),
    Kind(
        table="FIND_MAX_STEP_HISTORY",
        key="STEP_NUMBER",
        make=ones(step),
        append=lambda session, patient, _, row: find_max_step_history.append(session, patient, row),
        read=lambda session, run_id: len(find_max_step_history.read(session, run_id)),
        rows=CALLS,
    ),
    Kind(
        table="QUERY_EXECUTIONS",
        key="EXECUTION_ID",
        make=batches(execution),
        append=lambda session, patient, _, rows: query_executions.append(session, patient, rows),
        read=lambda session, run_id: len(query_executions.read(session, run_id, 10_000)),
        rows=CALLS * PER_CALL,
    ),
    Kind(
        table="WORKER_METRICS_SNAPSHOTS",
        key="SNAPSHOT_ID",
        make=batches(snapshot),
        append=lambda session, patient, _, rows: worker_metrics_snapshots.append(session, patient, rows),
        read=lambda session, run_id: len(worker_metrics_snapshots.read(session, run_id)),
        rows=CALLS * PER_CALL,
    ),
    Kind(
        table="TEST_LOGS",
        key="LOG_ID",
        make=batches(log_row),
        append=lambda session, patient, _, rows: test_logs.append(session, patient, rows),
        read=lambda session, run_id: len(test_logs.newest(session, run_id, 10_000)),
        rows=CALLS * PER_CALL,
    ),
    Kind(
        table="WAREHOUSE_POLL_SNAPSHOTS",
        key="SNAPSHOT_ID",
        make=batches(warehouse_poll),
        append=lambda session, patient, _, rows: warehouse_poll_snapshots.append(session, patient, rows),
        read=lambda session, run_id: len(warehouse_poll_snapshots.read(session, run_id)),
        rows=CALLS * PER_CALL,
    ),
]


def raw(plane: ControlPlane, kind: Kind, run_id: str) -> tuple[int, int]:
    """(rows, keys) that are in the table."""
    sql = (
        f"SELECT COALESCE(SUM(N), 0), COUNT(*) FROM"
        f" (SELECT COUNT(*) AS N FROM {kind.table} WHERE RUN_ID = ? GROUP BY {kind.key})"
    )
    rows, keys = plane.rows(sql, run_id)[0]
    return int(rows), int(keys)


# --- faults ----------------------------------------------------------------------------------------------------------

TABLES = "|".join(kind.table for kind in KINDS)
WRITES = f"INSERT INTO ({TABLES}|WORKER_HEARTBEATS)|UPDATE WORKER_HEARTBEATS"
ANYTHING = f"(INTO|FROM|UPDATE) ({TABLES}|WORKER_HEARTBEATS)"


def break_the_control_plane(server: EmbeddedServer) -> None:
    server.fault(match=WRITES, kind="latency", ms=5_000, count=4)
    server.fault(match=WRITES, kind="drop_reply", probability=0.1)
    server.fault(match=WRITES, kind="truncate", probability=0.03)
    server.fault(match=ANYTHING, kind="reset", probability=0.04)
    server.fault(match=ANYTHING, kind="http_status", status=503, probability=0.04)
    server.fault(match=ANYTHING, kind="error", errno=625, sqlstate="57014", probability=0.02)
    server.fault(match=ANYTHING, kind="expire_session", probability=0.02)


class Writers:
    """A thread with a session of its own for each thing to do; what one raises is raised by join()."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def start(self, name: str, work: Callable[[ControlSession], None]) -> None:
        thread = threading.Thread(target=self._run, args=(name, work), name=name)
        self._threads.append(thread)
        thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _run(self, name: str, work: Callable[[ControlSession], None]) -> None:
        session = ControlSession(self._plane.place, role=name, environ=self._plane.environ)
        try:
            work(session)
        except BaseException as error:
            self._errors.append(error)
        finally:
            session.close()


def append_all(kind: Kind, run_id: str) -> Callable[[ControlSession], None]:
    def work(session: ControlSession) -> None:
        for arguments in kind.make(run_id):
            kind.append(session, patience(), run_id, arguments)

    return work


def beat_on(me: worker_heartbeats.WorkerIdentity, beats: int) -> Callable[[ControlSession], None]:
    """A worker's heartbeat: one attempt per beat, the next number for the next; the last one has to arrive."""

    def work(session: ControlSession) -> None:
        worker_heartbeats.register(session, patience(), me, silent_ms=60_000)
        said = worker_heartbeats.Beat(status=WorkerStatus.RUNNING, phase=Phase.WARMUP, count=1)
        arrived = False
        while said.count <= beats or not arrived:
            said = replace(said, count=said.count + 1, error_count=said.count, last_error="it's odd\0")
            try:
                assert worker_heartbeats.beat(session, me, said), "taken for another's"
                arrived = True
            except ControlFailed as error:
                if not error.failure.retryable:
                    raise
                arrived = False

    return work


def test_nothing_is_lost_and_nothing_is_written_twice(plane):
    run_id = plane.new_run()
    workers = [
        worker_heartbeats.WorkerIdentity(
            run_id=run_id, worker_id=f"w{number}", worker_group_id=number, hostname="h", pid=number, version="1"
        )
        for number in range(2)
    ]
    writers = Writers(plane)

    break_the_control_plane(plane.server)
    for kind in KINDS:
        writers.start(kind.table, append_all(kind, run_id))
    for me in workers:
        writers.start(me.worker_id, beat_on(me, beats=60))
    writers.join()
    struck = {rule["kind"]: rule["fired"] for rule in plane.server.ask("/__loadgen/faults")}
    plane.server.clear_faults()

    assert {kind.table: raw(plane, kind, run_id) for kind in KINDS} == {
        kind.table: (kind.rows, kind.rows) for kind in KINDS
    }
    assert {kind.table: kind.read(plane.session, run_id) for kind in KINDS} == {kind.table: kind.rows for kind in KINDS}
    beats = [row.beat for row in worker_heartbeats.read(plane.session, run_id)]
    assert [beat.error_count for beat in beats] == [beat.count - 1 for beat in beats]
    assert len(beats) == 2
    assert min(beat.count for beat in beats) > 60
    assert struck["latency"] == 4
    assert struck["drop_reply"] >= 15
    assert min(struck.values()) > 0


NOT_LOOKED_FOR = ("WORKER_METRICS_SNAPSHOTS", "TEST_LOGS", "WAREHOUSE_POLL_SNAPSHOTS")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.table)
def test_who_gave_up_and_tries_again_adds_nothing(plane, kind):
    """The rows landed, the answer did not, and patience was over: later the same is given once more."""
    run_id = plane.new_run()
    plane.server.fault(match=f"INSERT INTO {kind.table}", kind="drop_reply", probability=0.5)
    landed = 0

    for arguments in kind.make(run_id):
        before, _ = raw(plane, kind, run_id)
        while gave_up(lambda: kind.append(plane.session, patience(attempts=1), run_id, arguments)):  # noqa: B023
            landed += raw(plane, kind, run_id)[0] > before

    assert landed > 0
    rows, keys = raw(plane, kind, run_id)
    assert (rows > keys) is (kind.table in NOT_LOOKED_FOR)  # their readers take one row of each key
    assert keys == kind.read(plane.session, run_id) == kind.rows


def gave_up(action: Callable[[], None]) -> bool:
    try:
        action()
    except ControlFailed as error:
        if not error.failure.unknown_outcome:
            raise
        return True
    return False


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.table)
def test_a_refusal_is_not_tried_again(plane, kind):
    """A statement that cannot work is an error at once, not after ten attempts."""
    run_id = plane.new_run()
    plane.server.fault(
        match=f"INSERT INTO {kind.table}", kind="error", errno=2003, sqlstate="02000", message="no table"
    )

    with pytest.raises(ControlFailed) as refused:
        kind.append(plane.session, patience(), run_id, kind.make(run_id)[1])

    assert "loadgen setup" in refused.value.remedy
    (rule,) = plane.server.ask("/__loadgen/faults")
    assert rule["fired"] == 1
    assert raw(plane, kind, run_id) == (0, 0)


def test_two_that_finish_the_same_run_at_once_leave_one_result_to_readers(plane):
    """A leader and its successor: nothing enforces the key of a standard table, so both may get through."""
    run_id = plane.new_run()
    mine = replace(result(run_id, 0), test_id=run_id)
    barrier = threading.Barrier(4)
    writers = Writers(plane)

    def work(session: ControlSession) -> None:
        run_status.server_time(session)
        barrier.wait()
        test_results.append(session, patience(), mine)

    for number in range(4):
        writers.start(f"finisher-{number}", work)
    writers.join()

    assert len(test_results.read(plane.session, run_id)) == 1
