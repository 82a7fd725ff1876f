"""RUN_ATTEMPTS: the history of a queued run, one row per claim. Each attempt is a separate run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from loadgen.control.rows import ParsedRows, clip_text, parse_row, read_rows
from loadgen.control.session import ControlFailed, ControlSession
from loadgen.control.sql import load_queries
from loadgen.model.nightly import AttemptStatus, QueueStatus
from loadgen.snowflake.session import RetryPolicy

REASON_MAX = 2_000  # characters
LOST = "its runner did not renew the lease in time"
NOT_TOLD = "its runner ended before it could say more"

_Q = load_queries("run_attempts")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """A row. Times are naive UTC."""

    epoch: int
    owner: str
    run_id: str | None
    status: AttemptStatus
    exit_code: int | None
    reason: str | None
    started_at: datetime
    ended_at: datetime | None


def begin(session: ControlSession, patience: RetryPolicy, queue_id: str, epoch: int, owner: str) -> None:
    """An attempt begins. Harmless to repeat."""
    patience.call(lambda: _insert(session, queue_id, epoch, owner, AttemptStatus.RUNNING, None))


def mark_lost(session: ControlSession, patience: RetryPolicy, queue_id: str, epoch: int, owner: str) -> None:
    """The lease of this attempt has expired: it can never be accepted again, whatever it does. Harmless to repeat."""

    def write() -> None:
        if not _insert(session, queue_id, epoch, owner, AttemptStatus.LOST, LOST):
            session.execute(_Q["end"], AttemptStatus.LOST, None, None, LOST, queue_id, epoch)

    patience.call(write)


def set_run(session: ControlSession, patience: RetryPolicy, queue_id: str, epoch: int, run_id: str) -> None:
    patience.call(lambda: session.execute(_Q["set_run"], run_id, queue_id, epoch))


def end(
    session: ControlSession,
    patience: RetryPolicy,
    queue_id: str,
    epoch: int,
    status: AttemptStatus,
    *,
    run_id: str | None = None,
    exit_code: int | None = None,
    reason: str | None = None,
) -> None:
    """How the attempt ended, unless that is known already."""
    why = None if reason is None else clip_text(reason, REASON_MAX)
    patience.call(lambda: session.execute(_Q["end"], status, run_id, exit_code, why, queue_id, epoch))


def read(session: ControlSession, queue_id: str) -> ParsedRows[AttemptRow]:
    """All attempts, the first one first."""
    return read_rows(session.fetch(_Q["read"], queue_id), lambda row: parse_row("RUN_ATTEMPTS", AttemptRow, row))


def end_stale(session: ControlSession, patience: RetryPolicy) -> int:
    """End the attempts that their owners could not end any more, as the queue knows it. How many there were."""
    rows = patience.call(lambda: session.fetch(_Q["unsettled"]))
    for queue_id, epoch, newest, status, run_id, exit_code, reason in rows:
        if newest > epoch:
            end(session, patience, queue_id, int(epoch), AttemptStatus.LOST, reason=NOT_TOLD)
        else:
            known = _OF_QUEUE.get(status, AttemptStatus.LOST)  # of a status that loadgen never writes
            code = None if exit_code is None else int(exit_code)
            end(session, patience, queue_id, int(epoch), known, run_id=run_id, exit_code=code, reason=reason)
    return len(rows)


# What the last attempt was when the queue says this of the run.
_OF_QUEUE: dict[str, AttemptStatus] = {
    QueueStatus.QUEUED: AttemptStatus.FAILED,
    QueueStatus.COMPLETED: AttemptStatus.COMPLETED,
    QueueStatus.FAILED: AttemptStatus.FAILED,
    QueueStatus.CANCELLED: AttemptStatus.CANCELLED,
    QueueStatus.EXHAUSTED: AttemptStatus.FAILED,
}


def _insert(
    session: ControlSession, queue_id: str, epoch: int, owner: str, status: AttemptStatus, reason: str | None
) -> bool:
    """False: the row is there."""
    ended = int(status is not AttemptStatus.RUNNING)
    try:
        session.execute(_Q["begin"], status, reason, ended, queue_id, epoch, owner)
    except ControlFailed as error:
        if not error.failure.is_duplicate_key:
            raise
        return False
    return True
