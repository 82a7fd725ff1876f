"""RUN_QUEUE as runners see it: claim a run, keep it, end it or return it.

    claim       insert the next turn of the first candidate that no other runner claims; an enforced key decides
    extend      extend the lease, with each heartbeat of the runner; an expired lease is never extended
    finish      store the final status
    give_back   return the run for another attempt after a pause; it becomes EXHAUSTED after the last attempt, and
                CANCELLED if a user has requested that

A write of an owner is rejected when its lease has expired or its attempt has ended: its results are not accepted then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import partial

from loadgen.control.session import ControlFailed, ControlSession, clip_text, load_queries, parse_row
from loadgen.control.tables import run_attempts
from loadgen.control.tables.run_queue import REASON_MAX, REQUIRES_MAX, labels_json, read_files
from loadgen.model.nightly import AttemptStatus, BaselineCheck, QueueStatus
from loadgen.snowflake.session import RetryPolicy
from loadgen.values import dataclass

CANDIDATES = 10  # other runners may claim the first ones

_Q = load_queries("run_queue")
_TURNS = load_queries("run_attempts")
# The end of the attempt for each final status of the queued run.
_ENDED: dict[QueueStatus, AttemptStatus] = {
    QueueStatus.COMPLETED: AttemptStatus.COMPLETED,
    QueueStatus.FAILED: AttemptStatus.FAILED,
    QueueStatus.CANCELLED: AttemptStatus.CANCELLED,
    QueueStatus.EXHAUSTED: AttemptStatus.FAILED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueClaim:
    """One attempt at a queued run. Every write of its owner contains it."""

    queue_id: str
    epoch: int
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedRun:
    """The content of a claimed run."""

    name: str
    scenario: str
    files: Mapping[str, str]
    connection: str | None
    attempts: int  # that count against the maximum, including this one
    number: int  # of this attempt among all attempts at this run
    judging: BaselineCheck = field(default_factory=BaselineCheck)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptResult:
    """How an attempt ended."""

    run_id: str | None = None
    exit_code: int | None = None
    reason: str | None = None
    verdict: str | None = None  # from the summary of the run; not stored in the queue


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepth:
    """Numbers of runs that wait for a runner."""

    waiting: int = 0
    startable: int = 0  # those that could start with enough runners: one for each free target


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRuns:
    """Numbers of runs that are queued or running."""

    under_way: int = 0
    total: int = 0
    due_in_s: float | None = None  # until the next run that this pool can execute; None: there is none

    @property
    def is_work(self) -> bool:
        """Whether a run is running or due."""
        return self.under_way > 0 or (self.due_in_s is not None and self.due_in_s <= 0)


def claim(
    session: ControlSession,
    retries: RetryPolicy,
    owner: str,
    offers: tuple[str, ...],
    ttl_s: float,
    *,
    share: bool = False,
) -> QueueClaim | None:
    """Claim the first run in the order of priority that `owner`, which must be ONLINE, can execute. None: there is
    none.

    With `share` also a run whose target another run measures at present.
    """
    candidates = _Q["candidates"].limited(CANDIDATES)
    rows = retries.call(lambda: session.fetch(candidates, labels_json(offers), int(share), int(share)))
    for queue_id, epoch, status, attempts, target in rows:
        try:
            if status == QueueStatus.RUNNING and not _is_lost(session, retries, queue_id, int(epoch)):
                continue
            turn = QueueClaim(queue_id=queue_id, epoch=int(epoch) + 1, owner=owner)
            won = _take(session, retries, turn, int(attempts) + 1, "" if share else target, ttl_s)
        except ControlFailed as error:
            if error.failure.retryable:
                raise
            # For example, an epoch out of range: this run would block all others forever.
            why = clip_text(f"it cannot be claimed: {error}", REASON_MAX)
            retries.call(partial(session.execute, _Q["refuse"], why, queue_id, int(epoch)))
            continue
        if won is not None:
            run_attempts.settle(session, retries, queue_id)
        if won:
            return turn
    return None


def _is_lost(session: ControlSession, retries: RetryPolicy, queue_id: str, epoch: int) -> bool:
    """End an attempt whose lease has expired. False: its owner has extended or ended it, or it was the last one."""
    run_attempts.mark_lost(session, retries, queue_id, epoch)
    facts = retries.call(lambda: run_attempts.read_facts(session, queue_id))
    if facts is None or facts.last_turn != epoch:
        return False
    return facts.state.status == QueueStatus.QUEUED or not facts.turns  # without turns: written by another program


def _take(
    session: ControlSession, retries: RetryPolicy, turn: QueueClaim, attempts: int, target: str, ttl_s: float
) -> bool | None:
    """Insert the turn. False: another process has inserted it. None: it is free, but the run cannot be claimed."""
    key = (turn.queue_id, turn.epoch)

    def look() -> bool | None:
        """After a lost answer: True if the turn is ours, False if another process has it, None if it is free."""
        rows = session.fetch(_TURNS["owner"], *key)
        return bool(rows[0][0] == turn.owner) if rows else None

    def write() -> bool | None:
        binds = (*key, attempts, round(ttl_s * 1000), turn.owner, turn.owner, turn.owner, target)
        return True if session.execute(_TURNS["claim"], *binds) == 1 else None

    return _unless_taken(lambda: retries.settle(write, look))


def _unless_taken(insert: Callable[[], bool | None]) -> bool | None:
    """False: another process has inserted the key."""
    try:
        return insert()
    except ControlFailed as error:
        if error.failure.is_duplicate_key:
            return False
        raise


def wanted(session: ControlSession, claim: QueueClaim) -> ClaimedRun | None:
    """The content of a claimed run; None: the claim has ended."""
    rows = session.fetch(_TURNS["wanted"], claim.queue_id, claim.epoch, claim.queue_id, claim.epoch, claim.owner)
    if not rows:
        return None
    name, scenario, files, *others = rows[0]
    texts, judging = read_files("RUN_QUEUE", claim.queue_id, files)
    row = (name, scenario, *others)
    return parse_row("RUN_QUEUE", ClaimedRun, row, key=claim.queue_id, files=texts, judging=judging)


def extend(session: ControlSession, claim: QueueClaim, ttl_s: float, *, run_id: str | None = None) -> bool:
    """Extend the lease, counted from now, and store the id of the run if it is known. False: the lease has expired. One
    attempt: the owner repeats it."""
    key = (claim.queue_id, claim.epoch)
    return session.execute(_TURNS["extend"], round(ttl_s * 1000), run_id, *key, claim.owner, *key) == 1


def expire(session: ControlSession, retries: RetryPolicy, owner: str, why: str) -> int:
    """Release the runs of an owner that has ended, with the reason `why`. Returns their number."""
    rows = retries.call(lambda: session.fetch(_TURNS["open_of"], owner))
    for queue_id, epoch in rows:
        run_attempts.mark_lost(session, retries, queue_id, int(epoch), gone=why)
    return len(rows)


def owners(session: ControlSession) -> tuple[str, ...]:
    """The runners that execute a run."""
    return tuple(str(owner) for (owner,) in session.fetch(_Q["owners"]))


def look(session: ControlSession, claim: QueueClaim) -> QueueStatus | None:
    """RUNNING or CANCEL_REQUESTED; None: the lease has expired."""
    key = (claim.queue_id, claim.epoch)
    rows = session.fetch(_TURNS["look"], claim.queue_id, claim.epoch + 1, *key, claim.owner, *key)
    if not rows:
        return None
    return QueueStatus.CANCEL_REQUESTED if rows[0][0] else QueueStatus.RUNNING


def set_run(session: ControlSession, retries: RetryPolicy, claim: QueueClaim, run_id: str) -> None:
    """Store the id of the run of this attempt."""
    key = (claim.queue_id, claim.epoch)
    retries.call(lambda: session.execute(_TURNS["set_run"], run_id, *key, claim.owner, *key))


def finish(
    session: ControlSession, retries: RetryPolicy, claim: QueueClaim, status: QueueStatus, result: AttemptResult
) -> bool:
    """End a queued run. False: the lease has expired, and nothing was written."""
    assert status.is_terminal
    return _end(session, retries, claim, result, (_ENDED[status], status), off=0, pause_s=0.0)


def give_back(
    session: ControlSession,
    retries: RetryPolicy,
    claim: QueueClaim,
    result: AttemptResult,
    *,
    pause_s: float,
    counts: bool,
    status: AttemptStatus = AttemptStatus.FAILED,
) -> bool:
    """Return a run for another attempt after a pause. False: the lease has expired, and nothing was written."""
    return _end(session, retries, claim, result, (status, None), off=0 if counts else 1, pause_s=pause_s)


def _end(
    session: ControlSession,
    retries: RetryPolicy,
    claim: QueueClaim,
    result: AttemptResult,
    became: tuple[AttemptStatus, QueueStatus | None],
    *,
    off: int,
    pause_s: float,
) -> bool:
    reason = None if result.reason is None else clip_text(result.reason, REASON_MAX)
    key = (claim.queue_id, claim.epoch)
    binds = (*became, off, result.run_id, result.exit_code, reason, off, round(pause_s * 1000), *key, claim.owner)

    def look() -> bool | None:
        """After a lost answer: any end other than LOST was written by the owner."""
        rows = session.fetch(_TURNS["ended"], *key)
        return bool(rows[0][0] != AttemptStatus.LOST) if rows else None

    def write() -> bool:
        return session.execute(_TURNS["end"], *binds) == 1

    ended = _unless_taken(lambda: retries.settle(write, look)) or False
    run_attempts.settle(session, retries, claim.queue_id)
    return ended


def open_runs(session: ControlSession, offers: tuple[str, ...]) -> OpenRuns:
    """The queued and running runs, for a pool whose runners have these capabilities."""
    ((under_way, total, due_ms),) = session.fetch(_Q["open_runs"], labels_json(offers))
    return OpenRuns(
        under_way=int(under_way or 0), total=int(total), due_in_s=None if due_ms is None else int(due_ms) / 1000
    )


def depth(session: ControlSession, offers: tuple[str, ...], *, share: bool = False) -> QueueDepth:
    """The runs that wait for runners with these capabilities."""
    ((waiting, startable),) = session.fetch(_Q["depth"], int(share), labels_json(offers))
    return QueueDepth(waiting=int(waiting), startable=int(startable))


def end_abandoned(session: ControlSession, retries: RetryPolicy) -> int:
    """End the attempts whose lease has expired, and settle their runs. Returns their number."""
    rows = retries.call(lambda: session.fetch(_Q["unsettled"]))
    for queue_id, epoch in rows:
        run_attempts.mark_lost(session, retries, queue_id, int(epoch))
    return len(rows)


def refuse_unclaimable(session: ControlSession, retries: RetryPolicy) -> int:
    """End the queued runs that cannot be claimed because REQUIRES is too long. Returns their number."""
    why = f"it cannot be claimed: REQUIRES has more than {REQUIRES_MAX:,} characters"
    return retries.call(lambda: session.execute(_Q["refuse_long"], why))
