"""RUN_QUEUE as its runners see it: claim a run, keep it, end it or give it back.

    claim       the first candidate that no other runner takes; the row count of a guarded UPDATE decides
    extend      all leases of a runner, with each of its heartbeats; a lease that has passed is never revived
    finish      it ran, or never will
    give_back   to be tried again after a pause; EXHAUSTED after the last attempt, CANCELLED when that is wanted

Every write of an owner is rejected when its lease has expired: its results are not accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from loadgen.control.rows import clip_text, parse_row
from loadgen.control.session import ControlFailed, ControlSession
from loadgen.control.sql import load_queries
from loadgen.control.tables import run_attempts
from loadgen.control.tables.run_queue import REASON_MAX, labels_json, read, read_files
from loadgen.model.nightly import BaselineCheck, QueueStatus
from loadgen.snowflake.session import RetryPolicy

CANDIDATES = 10  # as many others may be faster

_Q = load_queries("run_queue")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueClaim:
    """One attempt at a queued run: every write of its owner carries it."""

    queue_id: str
    epoch: int
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedRun:
    """What a claimed row asks for."""

    name: str
    scenario: str
    files: Mapping[str, str]
    connection: str | None
    attempts: int  # this one included
    judging: BaselineCheck = field(default_factory=BaselineCheck)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptResult:
    """How an attempt ended."""

    run_id: str | None = None
    exit_code: int | None = None
    reason: str | None = None
    verdict: str | None = None  # of the run's summary; in no table of the queue


def claim(
    session: ControlSession,
    patience: RetryPolicy,
    owner: str,
    offers: tuple[str, ...],
    ttl_s: float,
    *,
    share: bool = False,
) -> QueueClaim | None:
    """The most urgent run that `owner`, who must be ONLINE, can do and gets; its attempt has begun. None: none.

    With `share` also one whose target is being measured by another.
    """
    rows = patience.call(lambda: session.fetch(_Q["candidates"].limited(CANDIDATES), labels_json(offers), int(share)))
    for queue_id, epoch, status, last_owner, target in rows:
        try:
            if status == QueueStatus.RUNNING:
                run_attempts.mark_lost(session, patience, queue_id, int(epoch), last_owner)
            got = _claim_one(session, patience, queue_id, int(epoch), "" if share else target, owner, ttl_s)
        except ControlFailed as error:
            if error.failure.retryable:
                raise
            # A number that cannot be counted on, for example: it would keep the others waiting forever.
            why = clip_text(f"it cannot be claimed: {error}", REASON_MAX)
            patience.call(partial(session.execute, _Q["refuse"], why, queue_id, int(epoch)))
            continue
        if got is not None:
            run_attempts.begin(session, patience, got.queue_id, got.epoch, got.owner)
            return got
    return None


def _claim_one(
    session: ControlSession, patience: RetryPolicy, queue_id: str, epoch: int, target: str, owner: str, ttl_s: float
) -> QueueClaim | None:
    ttl_ms = round(ttl_s * 1000)

    def write() -> bool:
        return session.execute(_Q["claim"], owner, ttl_ms, queue_id, epoch, owner, target) == 1

    def look() -> bool | None:
        """After a lost answer: is the claim ours, another's, or still free?"""
        row = read(session, queue_id)
        if row is None or row.epoch == epoch:
            return None
        return (row.epoch, row.owner) == (epoch + 1, owner)

    won = patience.settle(write, look)
    return QueueClaim(queue_id=queue_id, epoch=epoch + 1, owner=owner) if won else None


def wanted(session: ControlSession, claim: QueueClaim) -> ClaimedRun | None:
    """What to run; None: the claim belongs to another runner by now."""
    rows = session.fetch(_Q["claimed"], claim.queue_id, claim.epoch, claim.owner)
    if not rows:
        return None
    name, scenario, files, *others = rows[0]
    texts, judging = read_files("RUN_QUEUE", claim.queue_id, files)
    row = (name, scenario, *others)
    return parse_row("RUN_QUEUE", ClaimedRun, row, key=claim.queue_id, files=texts, judging=judging)


def extend(session: ControlSession, owner: str, ttl_s: float) -> int:
    """How many leases the owner has, all of them extended from now. One attempt: the owner retries."""
    return session.execute(_Q["extend"], round(ttl_s * 1000), owner)


def expire(session: ControlSession, patience: RetryPolicy, owner: str) -> int:
    """The owner is gone: release its runs at once. How many there were."""
    return patience.call(lambda: session.execute(_Q["expire"], owner))


def owners(session: ControlSession) -> tuple[str, ...]:
    """The runners that hold a lease."""
    return tuple(str(owner) for (owner,) in session.fetch(_Q["owners"]))


def look(session: ControlSession, claim: QueueClaim) -> QueueStatus | None:
    """RUNNING, or CANCEL_REQUESTED; None: the lease is over."""
    rows = session.fetch(_Q["look"], claim.queue_id, claim.epoch, claim.owner)
    return QueueStatus(rows[0][0]) if rows else None


def set_run(session: ControlSession, patience: RetryPolicy, claim: QueueClaim, run_id: str) -> None:
    """Make known which run this attempt is."""
    patience.call(lambda: session.execute(_Q["set_run"], run_id, claim.queue_id, claim.epoch, claim.owner))
    run_attempts.set_run(session, patience, claim.queue_id, claim.epoch, run_id)


def finish(
    session: ControlSession, patience: RetryPolicy, claim: QueueClaim, status: QueueStatus, result: AttemptResult
) -> bool:
    """The end of a queued run. False: the lease is over, and nothing was written."""
    assert status.is_terminal
    binds = (status, result.run_id, result.exit_code, _reason(result), claim.queue_id, claim.epoch, claim.owner)
    return _once(session, patience, claim, lambda: session.execute(_Q["finish"], *binds) == 1)


def give_back(
    session: ControlSession,
    patience: RetryPolicy,
    claim: QueueClaim,
    result: AttemptResult,
    *,
    pause_s: float,
    counts: bool,
) -> bool:
    """Let it be tried again after a pause. False: the lease is over, and nothing was written."""
    off = 0 if counts else 1
    binds = (
        *(off, off, off, round(pause_s * 1000), result.run_id, result.exit_code, _reason(result)),
        *(claim.queue_id, claim.epoch, claim.owner),
    )
    return _once(session, patience, claim, lambda: session.execute(_Q["give_back"], *binds) == 1)


def depth(session: ControlSession, offers: tuple[str, ...], *, share: bool = False) -> int:
    """How many runs could begin now, if there were enough runners with these capabilities."""
    return int(session.fetch(_Q["depth"], int(share), labels_json(offers), int(share))[0][0])


def end_abandoned(session: ControlSession, patience: RetryPolicy) -> int:
    """End the runs that were lost with their last attempt, or while they should be cancelled. How many there were."""
    rows = patience.call(lambda: session.fetch(_Q["abandoned"]))
    for queue_id, epoch, owner in rows:
        run_attempts.mark_lost(session, patience, queue_id, int(epoch), owner)
        _end_one(session, patience, queue_id, int(epoch))
    return len(rows)


def _end_one(session: ControlSession, patience: RetryPolicy, queue_id: str, epoch: int) -> None:
    patience.call(lambda: session.execute(_Q["end_abandoned"], run_attempts.LOST, queue_id, epoch))


def _once(session: ControlSession, patience: RetryPolicy, claim: QueueClaim, write: Callable[[], bool]) -> bool:
    """Write, and find out whether it was written when the answer is lost."""

    def look() -> bool | None:
        row = read(session, claim.queue_id)
        if row is None or row.epoch != claim.epoch:
            return False  # another runner's by now; the end of our attempt does not count any more
        held = row.status in (QueueStatus.RUNNING, QueueStatus.CANCEL_REQUESTED)
        return None if held else True

    return patience.settle(write, look)


def _reason(result: AttemptResult) -> str | None:
    return None if result.reason is None else clip_text(result.reason, REASON_MAX)
