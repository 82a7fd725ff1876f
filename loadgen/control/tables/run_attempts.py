"""RUN_ATTEMPTS and RUN_ATTEMPT_ENDS: the turns of a queued run, and the ends of its attempts.

A turn is an attempt of a runner, or a request of a user (to cancel or to retry). The enforced key (QUEUE_ID, EPOCH)
decides which process inserts the next turn. The same key of RUN_ATTEMPT_ENDS decides how an attempt ended: its owner
inserts the end, or a process that finds the lease of the attempt expired. Rows are never updated, so an insert may be
repeated. The state of a queued run follows from its last two turns. RUN_QUEUE repeats this state, and `settle` updates
it there.
"""

from __future__ import annotations

from dataclasses import astuple
from datetime import datetime
from enum import StrEnum
from typing import Any

from loadgen.control.session import (
    REASON_MAX,
    ControlFailed,
    ControlSession,
    ParsedRows,
    clip_text,
    load_queries,
    parse_row,
    read_rows,
)
from loadgen.control.tables.run_leases import TAKEOVER_MARGIN_S
from loadgen.model.nightly import AttemptStatus, QueueStatus
from loadgen.snowflake.session import RetryPolicy
from loadgen.values import dataclass

LOST = "its runner did not renew the lease in time"
_EVER_MS = 100 * 365 * 86_400_000  # longer than any lease
_SETTLE_MAX = 10  # other processes may settle the same row

_Q = load_queries("run_attempts")
_QUEUE = load_queries("run_queue")


class UserRequest(StrEnum):
    """The request of a user, which is a turn."""

    CANCELLED = "CANCELLED"
    RETRIED = "RETRIED"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """A row. Times are naive UTC."""

    number: int  # among the attempts at the queued run, from 1
    epoch: int  # among its turns
    owner: str
    run_id: str | None
    status: AttemptStatus
    exit_code: int | None
    reason: str | None
    started_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """The state of a queued run, as RUN_QUEUE repeats it. Columns as in the table."""

    status: str  # a QueueStatus, unless another program wrote it
    epoch: int
    owner: str | None
    attempts: int
    run_id: str | None
    exit_code: int | None
    reason: str | None
    available_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    queue_status: str
    run_id: str | None
    exit_code: int | None
    reason: str | None
    attempts: int
    available_at: datetime
    ended_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTurn:
    """An attempt; without an owner, a request."""

    epoch: int
    owner: str
    status: str
    run_id: str | None
    reason: str | None
    attempts: int
    started_at: datetime
    end: AttemptEnd | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    repeated: QueueState  # the state in RUN_QUEUE
    turns: tuple[QueueTurn, ...]  # the last two, the newest first

    @property
    def last_turn(self) -> int:
        """The epoch of the last turn. A row that another program wrote may have no turns; then its own epoch."""
        return self.turns[0].epoch if self.turns else self.repeated.epoch

    @property
    def state(self) -> QueueState:
        return _state(self.turns, self.repeated)


def read(session: ControlSession, queue_id: str) -> ParsedRows[AttemptRow]:
    """All attempts, in order."""
    return read_rows(session.fetch(_Q["read"], queue_id), lambda row: parse_row("RUN_ATTEMPTS", AttemptRow, row))


def read_facts(session: ControlSession, queue_id: str) -> QueueFacts | None:
    """The last turns of a queued run, and its state in RUN_QUEUE. None: there is no such run."""
    rows = session.fetch(_Q["facts"], queue_id)
    if not rows:
        return None
    turns = tuple(_turn(queue_id, row[9:]) for row in rows if row[9] is not None)
    return QueueFacts(repeated=parse_row("RUN_QUEUE", QueueState, rows[0][:9], key=queue_id), turns=turns)


def settle(session: ControlSession, retries: RetryPolicy, queue_id: str) -> None:
    """Update RUN_QUEUE to the state of the turns. The UPDATE may have waited for another one, so check it
    afterwards."""

    def write() -> None:
        for _ in range(_SETTLE_MAX):
            facts = read_facts(session, queue_id)
            if facts is None or facts.state == facts.repeated:
                return
            session.execute(_QUEUE["settle"], *astuple(facts.state), queue_id)

    retries.call(write)


def request(
    session: ControlSession,
    retries: RetryPolicy,
    queue_id: str,
    wanted: UserRequest,
    reason: str,
    *,
    of: frozenset[QueueStatus],
) -> None:
    """Insert the next turn for a user, if the run is in one of the states `of` at that time. Idempotent."""

    def write() -> None:
        while (facts := read_facts(session, queue_id)) is not None and facts.state.status in of:
            try:
                session.execute(_Q["request"], queue_id, facts.last_turn + 1, wanted, clip_text(reason, REASON_MAX))
            except ControlFailed as error:
                if not error.failure.is_duplicate_key:
                    raise

    retries.call(write)
    settle(session, retries, queue_id)


def mark_lost(
    session: ControlSession, retries: RetryPolicy, queue_id: str, epoch: int, *, gone: str | None = None
) -> None:
    """End an attempt whose lease has expired. Later writes of its owner are rejected.

    With `gone`, the reason, also an attempt whose lease is valid: its owner is known to have ended.
    """
    until_ms = _EVER_MS if gone is not None else -TAKEOVER_MARGIN_S * 1000

    def write() -> None:
        try:
            session.execute(_Q["mark_lost"], clip_text(gone or LOST, REASON_MAX), queue_id, epoch, until_ms)
        except ControlFailed as error:
            if not error.failure.is_duplicate_key:  # the attempt has an end already
                raise

    retries.call(write)
    settle(session, retries, queue_id)


def _turn(queue_id: str, row: tuple[Any, ...]) -> QueueTurn:
    end = parse_row("RUN_ATTEMPT_ENDS", AttemptEnd, row[7:], key=queue_id) if row[7] is not None else None
    return parse_row("RUN_ATTEMPTS", QueueTurn, row[:7], key=queue_id, end=end)


def _state(turns: tuple[QueueTurn, ...], repeated: QueueState) -> QueueState:
    if not turns or turns[0].epoch < repeated.epoch:  # written by an older loadgen, or by another program
        return repeated
    turn = turns[0]
    if turn.owner:
        return _attempted(turn, repeated)
    if turn.status == UserRequest.RETRIED:
        return QueueState(
            status=QueueStatus.QUEUED, epoch=turn.epoch, owner=None, attempts=0, run_id=None, exit_code=None,
            reason=_noted(turn, repeated, turn.reason), available_at=turn.started_at, ended_at=None,
        )  # fmt: skip
    return _cancelled(turn, turns[1] if len(turns) > 1 and turns[1].owner else None, repeated)


def _attempted(turn: QueueTurn, repeated: QueueState) -> QueueState:
    """The last turn is an attempt."""
    end = turn.end
    if end is None:
        return QueueState(
            status=QueueStatus.RUNNING, epoch=turn.epoch, owner=turn.owner, attempts=turn.attempts, run_id=None,
            exit_code=None, reason=None, available_at=repeated.available_at, ended_at=None,
        )  # fmt: skip
    again = end.queue_status == QueueStatus.QUEUED
    return QueueState(
        status=end.queue_status, epoch=turn.epoch, owner=turn.owner, attempts=end.attempts, run_id=end.run_id,
        exit_code=end.exit_code, reason=_noted(turn, repeated, end.reason) if again else end.reason,
        available_at=end.available_at, ended_at=None if again else end.ended_at,
    )  # fmt: skip


def _cancelled(turn: QueueTurn, attempt: QueueTurn | None, repeated: QueueState) -> QueueState:
    """The last turn is a request to cancel, possibly while an attempt was running."""
    if attempt is not None and attempt.end is None:
        return QueueState(
            status=QueueStatus.CANCEL_REQUESTED, epoch=attempt.epoch, owner=attempt.owner, attempts=attempt.attempts,
            run_id=None, exit_code=None, reason=turn.reason, available_at=repeated.available_at, ended_at=None,
        )  # fmt: skip
    end = None if attempt is None else attempt.end
    done = end is not None and end.queue_status in (QueueStatus.COMPLETED, QueueStatus.FAILED)
    return QueueState(
        status=end.queue_status if end is not None and done else QueueStatus.CANCELLED,
        epoch=turn.epoch,
        owner=None if attempt is None else attempt.owner,
        attempts=repeated.attempts if end is None else end.attempts,
        run_id=None if end is None else end.run_id,
        exit_code=None if end is None else end.exit_code,
        reason=end.reason or turn.reason if end is not None and done else turn.reason,
        available_at=repeated.available_at,
        ended_at=turn.started_at if end is None else max(end.ended_at, turn.started_at),
    )


def _noted(turn: QueueTurn, repeated: QueueState, reason: str | None) -> str | None:
    """The reason of a waiting run: a note about this turn in RUN_QUEUE (run_queue.note) stays."""
    noted = repeated.status == QueueStatus.QUEUED and repeated.epoch == turn.epoch and repeated.reason is not None
    return repeated.reason if noted else reason
