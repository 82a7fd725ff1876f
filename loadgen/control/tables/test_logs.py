"""TEST_LOGS: log lines of the processes of a run, appended in batches."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import datetime
from typing import Any

from loadgen.control.session import (
    ControlSession,
    ParsedRows,
    RowUnreadable,
    append_rows,
    clip_text,
    details_json,
    in_batches,
    json_object,
    load_queries,
    read_rows,
)
from loadgen.snowflake.session import RetryPolicy
from loadgen.values import dataclass

MESSAGE_MAX = 4_000  # characters
DETAILS_MAX = 16_000  # characters of JSON

_Q = load_queries("test_logs")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow:
    log_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    run_id: str
    test_id: str | None
    worker_id: str | None  # None: the orchestrator
    level: str
    message: str
    details: Mapping[str, Any] | None
    timestamp: datetime  # naive UTC


def append(session: ControlSession, retries: RetryPolicy, logs: Sequence[LogRow]) -> None:
    for batch in in_batches([_binds(row) for row in logs]):
        append_rows(session, retries, _Q, batch, *batch[0][:2])


def append_missing(session: ControlSession, retries: RetryPolicy, run_id: str, rows: Sequence[LogRow]) -> None:
    """Append the rows that are not stored yet."""
    if rows:
        there = {stored for (stored,) in retries.call(lambda: session.fetch(_Q["ids"], run_id))}
        append(session, retries, [row for row in rows if row.log_id not in there])


def newest(session: ControlSession, run_id: str, limit: int) -> ParsedRows[LogRow]:
    """The newest lines of a run, the oldest of them first."""
    return read_rows(reversed(session.fetch(_Q["newest"].limited(limit), run_id)), _row)


def _binds(row: LogRow) -> tuple[Any, ...]:
    details = None if row.details is None else details_json(row.details, DETAILS_MAX)
    message = clip_text(row.message, MESSAGE_MAX)
    return (row.log_id, row.run_id, row.test_id, row.worker_id, row.level, message, details, row.timestamp)


def _row(row: tuple[Any, ...]) -> LogRow:
    log_id, run_id, test_id, worker_id, level, message, details, timestamp = row
    if not isinstance(timestamp, datetime):
        raise RowUnreadable("TEST_LOGS", log_id, "timestamp is not a time")
    return LogRow(
        log_id=log_id,
        run_id=run_id,
        test_id=test_id,
        worker_id=worker_id,
        level=level,
        message=message,
        details=None if details is None else json_object("TEST_LOGS", log_id, "details", details),
        timestamp=timestamp,
    )
