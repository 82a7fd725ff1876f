"""What is measured during a run: standard tables that are only appended to.

WINDOW_RESULTS             one row per window and worker, final; the results of a run are computed from these rows
WORKER_METRICS_SNAPSHOTS   one row per second and worker, appended in batches
FIND_MAX_STEP_HISTORY      one row per judged step of a search for the maximum
WAREHOUSE_POLL_SNAPSHOTS   the state of the warehouse under test, one row per poll
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import astuple, field, replace
from datetime import datetime
from typing import Any

from loadgen.control.session import (
    REASON_MAX,
    ControlSession,
    ParsedRows,
    RowUnreadable,
    append_row,
    append_rows,
    clean_json,
    clip_text,
    in_batches,
    load_queries,
    parse_row,
    read_rows,
    row_values,
)
from loadgen.metrics.window import WindowRow
from loadgen.snowflake.session import RetryPolicy
from loadgen.values import dataclass

WINDOW_ID_MAX = 2**31
POLL_COUNT_MAX = 1_000_000  # statements or clusters

_WINDOWS = load_queries("window_results")
_SNAPSHOTS = load_queries("worker_metrics_snapshots")
_STEPS = load_queries("find_max_step_history")
_POLLS = load_queries("warehouse_poll_snapshots")


# --- WINDOW_RESULTS --------------------------------------------------------------------------------------------------


def append_window(
    session: ControlSession, retries: RetryPolicy, run_id: str, window: WindowRow, *, fresh: bool = False
) -> None:
    """Append a window once. `fresh`: no other process has used this worker id."""
    key = (run_id, window.worker_id, window.window_id)
    append_row(session, retries, _WINDOWS, (run_id, *window.to_row()), *key, fresh=fresh)


def read_windows(session: ControlSession, run_id: str) -> ParsedRows[WindowRow]:
    return read_rows(session.fetch(_WINDOWS["read"], run_id), _window)


def _window(row: tuple[Any, ...]) -> WindowRow:
    key = f"{row[0]}, window {row[1]}"
    found = parse_row("WINDOW_RESULTS", WindowRow, row, key=key)
    if not 0 <= found.window_id <= WINDOW_ID_MAX:  # a replacement worker continues with the next id
        raise RowUnreadable("WINDOW_RESULTS", key, f"window_id is not between 0 and {WINDOW_ID_MAX}")
    return found


# --- WORKER_METRICS_SNAPSHOTS ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSnapshot:
    """Counts are since the start of the measurement; rates and times are of the last second. Columns as in the table,
    in its order."""

    snapshot_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    run_id: str
    test_id: str
    worker_id: str
    worker_group_id: int
    worker_group_count: int
    timestamp: datetime  # naive UTC
    elapsed_seconds: float
    phase: str | None
    total_queries: int
    read_count: int
    write_count: int
    error_count: int
    qps: float
    p50_latency_ms: float | None
    p95_latency_ms: float | None
    p99_latency_ms: float | None
    avg_latency_ms: float | None
    min_latency_ms: float | None
    max_latency_ms: float | None
    active_connections: int
    target_connections: int
    cpu_percent: float | None
    memory_percent: float | None
    custom_metrics: str | None  # JSON


def append_snapshots(session: ControlSession, retries: RetryPolicy, snapshots: Sequence[MetricsSnapshot]) -> None:
    rows = [row_values(replace(snapshot, custom_metrics=clean_json(snapshot.custom_metrics))) for snapshot in snapshots]
    for batch in in_batches(rows):
        append_rows(session, retries, _SNAPSHOTS, batch, *batch[0][:2])


def append_missing_snapshots(
    session: ControlSession, retries: RetryPolicy, run_id: str, rows: Sequence[MetricsSnapshot]
) -> None:
    """Append the rows that are not stored yet."""
    if rows:
        stored = {snapshot_id for (snapshot_id,) in retries.call(lambda: session.fetch(_SNAPSHOTS["ids"], run_id))}
        append_snapshots(session, retries, [row for row in rows if row.snapshot_id not in stored])


def read_snapshots(session: ControlSession, run_id: str) -> ParsedRows[MetricsSnapshot]:
    """All seconds of a run, in order."""
    return read_rows(session.fetch(_SNAPSHOTS["read"], run_id), _snapshot)


def newest_snapshots(session: ControlSession, run_id: str, within_s: int) -> ParsedRows[MetricsSnapshot]:
    """The seconds of a run that ended in the last `within_s` seconds, in order."""
    return read_rows(session.fetch(_SNAPSHOTS["newest"], run_id, -within_s), _snapshot)


def _snapshot(row: tuple[Any, ...]) -> MetricsSnapshot:
    return parse_row("WORKER_METRICS_SNAPSHOTS", MetricsSnapshot, row)


# --- FIND_MAX_STEP_HISTORY -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One judged step. Columns as in the table, in its order."""

    run_id: str
    step_number: int
    target_connections: int
    window_start_time: datetime | None
    window_end_time: datetime | None
    succeeded: int
    failed: int
    qps: float | None
    p50_latency_ms: float | None
    p95_latency_ms: float | None
    p99_latency_ms: float | None
    error_rate: float | None
    queue_seen: bool
    outcome: str
    reason: str


def append_step(session: ControlSession, retries: RetryPolicy, step: StepRecord, *, fresh: bool = False) -> None:
    """Append a step once: a successor may judge the last step of a dead leader again. `fresh`: this process is the
    first leader of the run."""
    row = astuple(replace(step, reason=clip_text(step.reason, REASON_MAX)))
    append_row(session, retries, _STEPS, row, step.run_id, step.step_number, fresh=fresh)


def read_steps(session: ControlSession, run_id: str) -> ParsedRows[StepRecord]:
    return read_rows(
        session.fetch(_STEPS["read"], run_id),
        lambda row: parse_row("FIND_MAX_STEP_HISTORY", StepRecord, row, key=f"{row[0]}, step {row[1]}"),
    )


# --- WAREHOUSE_POLL_SNAPSHOTS ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehousePoll:
    """One poll of the warehouse. Columns as in the table, in its order."""

    snapshot_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    run_id: str
    timestamp: datetime  # naive UTC
    running: int | None
    queued: int | None
    started_clusters: int | None
    size: str | None
    raw: str | None  # JSON


def append_polls(session: ControlSession, retries: RetryPolicy, polls: Sequence[WarehousePoll]) -> None:
    for batch in in_batches([row_values(replace(poll, raw=clean_json(poll.raw))) for poll in polls]):
        append_rows(session, retries, _POLLS, batch, *batch[-1][:2])  # an earlier call may have stored the first ones


def read_polls(session: ControlSession, run_id: str) -> ParsedRows[WarehousePoll]:
    return read_rows(session.fetch(_POLLS["read"], run_id), _poll)


def newest_polls(session: ControlSession, run_id: str, limit: int) -> ParsedRows[WarehousePoll]:
    """The newest polls of a run, the oldest of them first."""
    return read_rows(reversed(session.fetch(_POLLS["newest"].limited(limit), run_id)), _poll)


def last_polls_of_scenario(
    session: ControlSession, scenario: str, limit: int
) -> dict[str, tuple[str | None, str | None]]:
    """SIZE and RAW of the last poll of each of the newest runs of a scenario, by run id."""
    return {run_id: (size, raw) for run_id, size, raw in session.fetch(_POLLS["of_scenario"].limited(limit), scenario)}


def _poll(row: tuple[Any, ...]) -> WarehousePoll:
    found = parse_row("WAREHOUSE_POLL_SNAPSHOTS", WarehousePoll, row)
    counts = {name: getattr(found, name) for name in ("running", "queued", "started_clusters")}
    for name, count in counts.items():
        if count is not None and not 0 <= count <= POLL_COUNT_MAX:
            raise RowUnreadable("WAREHOUSE_POLL_SNAPSHOTS", found.snapshot_id, f"{name} is {count}")
    return found
