"""SCHEDULE_FIRES: what became of each time that a schedule came due.

    record   DUE, SKIPPED or MISSED, once: the enforced key decides between several schedulers
    queued   DUE → QUEUED, after its run is in the queue

A scheduler that dies between the two leaves DUE behind, and the next one queues the run; the queue's idempotency key
makes it the same run when the first had come that far. So no fire is lost and none has two runs.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from loadgen.control.session import ControlFailed, ControlSession, ParsedRows, load_queries, parse_row, read_rows
from loadgen.control.tables.schedules import as_utc, utc_text
from loadgen.model.nightly import FireOutcome, QueueStatus, ScheduleFire
from loadgen.snowflake.session import RetryPolicy
from loadgen.values import dataclass

KEPT_DAYS = 90

_NOT_ENDED = frozenset(status.value for status in QueueStatus if not status.is_terminal)

_Q = load_queries("schedule_fires")


@dataclass(frozen=True, slots=True, kw_only=True)
class FireRow:
    """A fire, and where its run stands. Times are aware, in UTC."""

    at: datetime
    outcome: FireOutcome
    queue_id: str | None
    queue_status: QueueStatus | None
    run_id: str | None
    exit_code: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DueFire:
    """A fire whose run is not known to be queued."""

    schedule_id: str
    at: datetime
    name: str | None  # of the schedule; None: it was removed


def record(session: ControlSession, patience: RetryPolicy, schedule_id: str, fire: ScheduleFire) -> bool:
    """Record what becomes of a fire. False: another scheduler was faster, or it was decided before."""
    at = utc_text(fire.at)

    def write() -> bool:
        try:
            return session.execute(_Q["record"], at, fire.outcome, schedule_id, at) == 1
        except ControlFailed as error:
            if error.failure.is_duplicate_key:
                return False
            raise

    def look() -> bool | None:
        """After a lost answer: a fire that is DUE may be queued by any scheduler."""
        rows = session.fetch(_Q["recorded"], schedule_id, at)
        return rows[0][0] == fire.outcome if rows else None

    return patience.settle(write, look)


def due(session: ControlSession, limit: int) -> tuple[DueFire, ...]:
    """Fires that are not known to be queued, the newest first."""
    return tuple(
        DueFire(schedule_id=schedule_id, at=as_utc(at), name=name)
        for schedule_id, at, name in session.fetch(_Q["due"].limited(limit))
    )


def queued(session: ControlSession, patience: RetryPolicy, schedule_id: str, at: datetime, queue_id: str) -> None:
    patience.call(lambda: session.execute(_Q["queued"], queue_id, schedule_id, utc_text(at)))


def busy(session: ControlSession, schedule_id: str) -> bool:
    """Has the run of the last fire not ended?"""
    rows = session.fetch(_Q["last_run"], schedule_id)
    if not rows:
        return False
    outcome, status = rows[0]
    return outcome == FireOutcome.DUE or status in _NOT_ENDED


def newest(session: ControlSession, schedule_id: str, limit: int) -> ParsedRows[FireRow]:
    """The last fires, newest first."""
    return read_rows(session.fetch(_Q["newest"].limited(limit), schedule_id), _row)


def forget(session: ControlSession, patience: RetryPolicy, schedule_id: str) -> None:
    """Delete fires older than the retention."""
    patience.call(lambda: session.execute(_Q["forget"], schedule_id, -KEPT_DAYS))


def remove(session: ControlSession, patience: RetryPolicy, schedule_id: str) -> None:
    """Delete all of them, once their schedule is gone."""
    patience.call(lambda: session.execute(_Q["remove"], schedule_id))


def _row(row: tuple[Any, ...]) -> FireRow:
    read = parse_row("SCHEDULE_FIRES", FireRow, row)
    return replace(read, at=as_utc(read.at))
