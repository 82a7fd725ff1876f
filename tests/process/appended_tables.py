"""Every table that is appended to: rows for it, how they are written in several calls, and how they are counted."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from loadgen.control.session import ControlSession
from loadgen.control.tables import query_executions, run_measurements, test_logs, test_results, value_pools
from loadgen.metrics.window import WindowRow
from loadgen.model.run import Phase
from loadgen.snowflake.session import RetryPolicy
from loadgen.workload.pools import Pool
from tests.control_plane import ControlPlane, result_row, step_row, stored_executions

MOMENT = datetime(2026, 11, 20, 1, 2, 3, 456789)  # noqa: DTZ001  naive UTC, as the tables have it


def retries(attempts: int = 15) -> RetryPolicy:
    return RetryPolicy(stop=threading.Event(), attempts=attempts, first_pause_s=0.01)


# --- what is written -------------------------------------------------------------------------------------------------


def window(number: int) -> WindowRow:
    return WindowRow(
        worker_id=f"w{number % 3}",
        window_id=number,
        epoch=1,
        phase=Phase.MEASUREMENT.value,
        step_id=None,
        seconds=1.5,
        counts="{}",
        buckets="{}",
    )


def snapshot(run_id: str, number: int) -> run_measurements.MetricsSnapshot:
    numbers = ["total_queries", "read_count", "write_count", "error_count", "active_connections", "target_connections"]
    times = [f"{name}_latency_ms" for name in ("p50", "p95", "p99", "avg", "min", "max")]
    fields: dict[str, Any] = dict.fromkeys([*times, "phase", "cpu_percent", "memory_percent"]) | dict.fromkeys(
        numbers, 1
    )
    fields |= {"run_id": run_id, "test_id": "t", "worker_id": "w0", "worker_group_id": 0, "worker_group_count": 1}
    fields |= {"timestamp": MOMENT + timedelta(seconds=number), "elapsed_seconds": 1.0, "qps": 1.0}
    return run_measurements.MetricsSnapshot(**fields, custom_metrics='{"a":1}')


def execution(run_id: str, number: int) -> query_executions.Execution:
    fields: dict[str, Any] = dict.fromkeys(
        ["query_id", "step_id", "rows_affected", "error_category", "error_code", "error"]
    )
    fields |= {"run_id": run_id, "test_id": "t", "worker_id": "w0", "statement_name": "s", "query_kind": "READ"}
    fields |= {"phase": "MEASUREMENT", "start_time": MOMENT, "due_lag_ms": 0.5, "duration_ms": 1.5, "success": True}
    return query_executions.Execution(**fields, execution_id=str(uuid.uuid4()))


def result(run_id: str, number: int) -> test_results.ResultRow:
    return result_row(run_id, test_id=str(uuid.uuid4()), worker_id=f"w{number}", worker_group_id=number)


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


def step(run_id: str, number: int) -> run_measurements.StepRecord:
    return step_row(run_id, step_number=number)


def warehouse_poll(run_id: str, number: int) -> run_measurements.WarehousePoll:
    moment = MOMENT + timedelta(seconds=number)
    return run_measurements.WarehousePoll(
        run_id=run_id, timestamp=moment, running=1, queued=0, started_clusters=1, size="X", raw="{}"
    )


def pool(number: int) -> Pool:
    return Pool(f"p{number}", tuple("x" * 400_000 for _ in range(5)) if number == 0 else (number,))


# --- the same rows, by row or in batches -----------------------------------------------------------------------------

CALLS = 20
PER_CALL = 30
Append = Callable[[ControlSession, RetryPolicy, Any], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One table: what to append call by call, and how many rows it must have then."""

    table: str
    key: str
    make: Callable[[str], Sequence[Any]]  # the arguments of each call
    append: Callable[[ControlSession, RetryPolicy, str, Any], None]
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
        append=run_measurements.append_window,
        read=lambda session, run_id: len(run_measurements.read_windows(session, run_id)),
        rows=CALLS,
    ),
    Kind(
        table="VALUE_POOLS",
        key="POOL, CHUNK",
        make=ones(lambda _, number: pool(number)),
        append=value_pools.store,
        read=lambda session, run_id: len(value_pools.load(session, retries(), run_id)) + 2,
        rows=CALLS + 2,  # the first pool has three chunks
    ),
    Kind(
        table="TEST_RESULTS",
        key="TEST_ID",
        make=ones(result),
        append=lambda session, retries, _, row: test_results.append(session, retries, row),
        read=lambda session, run_id: len(test_results.read(session, run_id)),
        rows=CALLS,
    ),
    Kind(
        table="FIND_MAX_STEP_HISTORY",
        key="STEP_NUMBER",
        make=ones(step),
        append=lambda session, retries, _, row: run_measurements.append_step(session, retries, row),
        read=lambda session, run_id: len(run_measurements.read_steps(session, run_id)),
        rows=CALLS,
    ),
    Kind(
        table="QUERY_EXECUTIONS",
        key="EXECUTION_ID",
        make=batches(execution),
        append=lambda session, retries, _, rows: query_executions.append(session, retries, rows),
        read=lambda session, run_id: len(stored_executions(session, run_id)),
        rows=CALLS * PER_CALL,
    ),
    Kind(
        table="WORKER_METRICS_SNAPSHOTS",
        key="SNAPSHOT_ID",
        make=batches(snapshot),
        append=lambda session, retries, _, rows: run_measurements.append_snapshots(session, retries, rows),
        read=lambda session, run_id: len(run_measurements.read_snapshots(session, run_id)),
        rows=CALLS * PER_CALL,
    ),
    Kind(
        table="TEST_LOGS",
        key="LOG_ID",
        make=batches(log_row),
        append=lambda session, retries, _, rows: test_logs.append(session, retries, rows),
        read=lambda session, run_id: len(test_logs.newest(session, run_id, 10_000)),
        rows=CALLS * PER_CALL,
    ),
    Kind(
        table="WAREHOUSE_POLL_SNAPSHOTS",
        key="SNAPSHOT_ID",
        make=batches(warehouse_poll),
        append=lambda session, retries, _, rows: run_measurements.append_polls(session, retries, rows),
        read=lambda session, run_id: len(run_measurements.read_polls(session, run_id)),
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
