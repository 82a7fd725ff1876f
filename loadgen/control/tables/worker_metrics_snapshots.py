"""WORKER_METRICS_SNAPSHOTS: one second of one worker per row, appended in batches."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import field, replace
from datetime import datetime
from typing import Any

from loadgen.control.session import (
    ControlSession,
    ParsedRows,
    append_rows,
    clean_json,
    in_batches,
    load_queries,
    parse_row,
    read_rows,
    row_values,
)
from loadgen.snowflake.session import RetryPolicy
from loadgen.values import dataclass

_Q = load_queries("worker_metrics_snapshots")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSnapshot:
    """Counts since the measurement began; rates and times of the last second. Columns as in the table, in its order."""

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


def append(session: ControlSession, patience: RetryPolicy, snapshots: Sequence[MetricsSnapshot]) -> None:
    rows = [row_values(replace(snapshot, custom_metrics=clean_json(snapshot.custom_metrics))) for snapshot in snapshots]
    for batch in in_batches(rows):
        append_rows(session, patience, _Q, batch, *batch[0][:2])


def append_missing(
    session: ControlSession, patience: RetryPolicy, run_id: str, rows: Sequence[MetricsSnapshot]
) -> None:
    """The same for rows of which some may have been stored before."""
    if rows:
        there = {stored for (stored,) in patience.call(lambda: session.fetch(_Q["ids"], run_id))}
        append(session, patience, [row for row in rows if row.snapshot_id not in there])


def read(session: ControlSession, run_id: str) -> ParsedRows[MetricsSnapshot]:
    """All seconds of a run, in order."""
    return read_rows(session.fetch(_Q["read"], run_id), _snapshot)


def newest(session: ControlSession, run_id: str, within_s: int) -> ParsedRows[MetricsSnapshot]:
    """The seconds of a run that ended within this time, in order."""
    return read_rows(session.fetch(_Q["newest"], run_id, -within_s), _snapshot)


def _snapshot(row: tuple[Any, ...]) -> MetricsSnapshot:
    return parse_row("WORKER_METRICS_SNAPSHOTS", MetricsSnapshot, row)
