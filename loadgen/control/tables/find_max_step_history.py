"""FIND_MAX_STEP_HISTORY: the steps of a search for the maximum, as they were judged."""

from __future__ import annotations

from dataclasses import astuple, replace
from datetime import datetime

from loadgen.control.session import (
    ControlSession,
    ParsedRows,
    append_row,
    clip_text,
    load_queries,
    parse_row,
    read_rows,
)
from loadgen.snowflake.session import RetryPolicy
from loadgen.values import dataclass

REASON_MAX = 2_000  # characters

_Q = load_queries("find_max_step_history")


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


def append(session: ControlSession, patience: RetryPolicy, step: StepRecord, *, fresh: bool = False) -> None:
    """Append a step once: a successor may judge the last step of a dead leader again; `fresh`: there is none."""
    row = astuple(replace(step, reason=clip_text(step.reason, REASON_MAX)))
    append_row(session, patience, _Q, row, step.run_id, step.step_number, fresh=fresh)


def read(session: ControlSession, run_id: str) -> ParsedRows[StepRecord]:
    return read_rows(
        session.fetch(_Q["read"], run_id),
        lambda row: parse_row("FIND_MAX_STEP_HISTORY", StepRecord, row, key=f"{row[0]}, step {row[1]}"),
    )
