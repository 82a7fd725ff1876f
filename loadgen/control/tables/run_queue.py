"""RUN_QUEUE: queued runs. Users add, read, cancel and retry them; runners claim, keep, end or return them.

A row contains the text of the scenario and the texts of its value files, so that a runner needs no other files.

    claim       insert the next turn of the first candidate that no other runner claims; an enforced key decides
    extend      extend the lease, with each heartbeat of the runner; an expired lease is never extended
    finish      store the final status
    release     return the run for another attempt after a pause; it becomes EXHAUSTED after the last attempt, and
                CANCELLED if a user has requested that

A write of an owner is rejected when its lease has expired or its attempt has ended: its results are not accepted then.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, field
from datetime import datetime
from functools import partial
from typing import Any

from loadgen.control.session import (
    REASON_MAX,
    ControlFailed,
    ControlSession,
    ParsedRows,
    RowUnreadable,
    clean_text,
    clip_text,
    load_queries,
    parse_row,
    read_rows,
)
from loadgen.control.tables import run_attempts
from loadgen.control.tables.run_attempts import AttemptRow, UserRequest
from loadgen.errors import UsageError
from loadgen.model.nightly import ATTEMPTS_MAX, AttemptStatus, BaselineCheck, QueueStatus
from loadgen.model.run import IDS_SHOWN, chosen_id
from loadgen.snowflake.session import RetryPolicy
from loadgen.values import dataclass

KEY_MAX = 200  # characters
NAME_MAX = 255
TARGET_MAX = 200
REQUIRES_MAX = 16_000  # characters of its JSON; also in the SQL
TEXTS_BYTES_MAX = 900_000  # Snowflake recommends at most 1 MB for a statement, including binds
BASELINE_KEY = "/judging"  # an entry among the files that cannot be a file, because their names are relative
_SLUG_MAX = 19
CANDIDATES = 10  # to claim: other runners may claim the first ones
_CONTENT = ("its scenario", "its value files or baseline", "--connection", "--requires", "--priority")  # of find_key
_SHOW_IDS = "`loadgen queue list` shows the ids."

_Q = load_queries("run_queue")
_TURNS = load_queries("run_attempts")
_CANCELLABLE = frozenset((QueueStatus.QUEUED, QueueStatus.RUNNING))
_RETRYABLE = frozenset((QueueStatus.FAILED, QueueStatus.CANCELLED, QueueStatus.EXHAUSTED))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRequest:
    """A run to queue. A second request with the same idempotency key adds nothing."""

    name: str  # of the scenario
    scenario: str  # its text with the values of variables, except secrets
    files: Mapping[str, str]  # the text of each value file by its name in the scenario
    connection: str | None = None  # instead of the connection of the scenario
    target: str = ""  # at most one run at a time measures a target; empty: unknown, and no run waits for it
    requires: tuple[str, ...] = ()  # key=value: capabilities that the runner must have
    priority: int = 0  # higher first
    judging: BaselineCheck = field(default_factory=BaselineCheck)
    idempotency_key: str | None = None  # None: a unique key
    not_before: datetime | None = None  # naive UTC
    max_attempts: int = ATTEMPTS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueueResult:
    queue_id: str
    is_new: bool  # False: a run with this key is in the queue already
    differs: tuple[str, ...] = ()  # the properties in which that run differs from the request


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedRun:
    """A row without its texts. Times are naive UTC."""

    queue_id: str
    idempotency_key: str
    name: str
    connection: str | None
    target: str
    requires: tuple[str, ...]
    priority: int
    status: QueueStatus
    available_at: datetime
    owner: str | None
    epoch: int
    attempts: int
    max_attempts: int
    run_id: str | None
    exit_code: int | None
    reason: str | None
    created_at: datetime
    ended_at: datetime | None
    updated_at: datetime
    available_in_ms: int  # until it may be claimed, or the lease of a running one expires; negative: since then

    @property
    def is_under_way(self) -> bool:
        return self.status in (QueueStatus.RUNNING, QueueStatus.CANCEL_REQUESTED)

    def follows(self, reason: str) -> bool:
        """Whether the last change was the request of a user with this reason."""
        return self.reason == reason

    @property
    def lease_expired_s(self) -> int | None:
        """The time since the lease of a running run expired; None: the lease is valid, or the run is not running."""
        return -self.available_in_ms // 1000 if self.is_under_way and self.available_in_ms < 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRun:
    """A queued run that may be claimed now."""

    queue_id: str
    name: str
    requires: tuple[str, ...]
    waited_s: int


def new_queue_id(name: str) -> str:
    """A readable id, made unique by a random suffix."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_SLUG_MAX].strip("-")
    return f"{slug or 'run'}-{secrets.token_hex(8)}"


def add(session: ControlSession, retries: RetryPolicy, wanted: QueueRequest) -> EnqueueResult:
    """Add a run to the queue, once for each idempotency key."""
    queue_id = new_queue_id(wanted.name)
    key = wanted.idempotency_key or queue_id
    scenario, files, requires = clean_text(wanted.scenario), write_files(wanted), labels_json(wanted.requires)
    wanted_content = (scenario, files, wanted.connection, requires, wanted.priority)
    binds = (
        *(queue_id, key, clip_text(wanted.name, NAME_MAX), scenario, files),
        *(wanted.connection, clip_text(wanted.target, TARGET_MAX), requires, wanted.priority),
        *(None if wanted.not_before is None else wanted.not_before.isoformat(sep=" "), wanted.max_attempts),
    )

    def write() -> EnqueueResult:
        try:
            session.execute(_Q["add"], *binds)
        except ControlFailed as error:
            if error.failure.is_duplicate_key and (found := look_up()) is not None:
                return found
            raise
        return EnqueueResult(queue_id=queue_id, is_new=True)

    def look_up() -> EnqueueResult | None:
        rows = session.fetch(_Q["find_key"], key)
        if not rows:
            return None
        found, *content = rows[0]
        differs = tuple(
            name for name, is_one, was in zip(_CONTENT, wanted_content, content, strict=True) if is_one != was
        )
        return EnqueueResult(queue_id=found, is_new=found == queue_id, differs=differs)

    return retries.settle(write, look_up)


def check_key(key: str | None) -> None:
    """UsageError if the idempotency key cannot be stored."""
    if key is not None and not 1 <= len(key) <= KEY_MAX:
        raise UsageError(f"--idempotency-key has {len(key)} characters", remedy=f"Write 1 to {KEY_MAX} characters.")


def read(session: ControlSession, queue_id: str) -> QueuedRun | None:
    rows = session.fetch(_Q["read"], queue_id)
    return _queued(rows[0]) if rows else None


def newest(session: ControlSession, limit: int, *, status: QueueStatus | None = None) -> ParsedRows[QueuedRun]:
    """The newest rows of the queue, the newest first."""
    if status is None:
        return read_rows(session.fetch(_Q["newest"].limited(limit)), _queued)
    return read_rows(session.fetch(_Q["newest_in"].limited(limit), status), _queued)


def waiting(session: ControlSession) -> ParsedRows[WaitingRun]:
    """Queued runs that may be claimed now, in the order of priority; at most 100."""
    return read_rows(session.fetch(_Q["waiting"]), lambda row: parse_row("RUN_QUEUE", WaitingRun, row))


def note(session: ControlSession, retries: RetryPolicy, queue_id: str, reason: str) -> bool:
    """Store why a run waits. False: the same reason is stored already, or the run does not wait any more."""
    why = clip_text(reason, REASON_MAX)
    noted = retries.call(lambda: session.execute(_Q["note"], why, queue_id, why)) == 1
    if noted:
        run_attempts.settle(session, retries, queue_id)  # the run may have been claimed in the meantime
    return noted


def read_scenario_text(session: ControlSession, queue_id: str) -> str | None:
    rows = session.fetch(_Q["scenario"], queue_id)
    return str(rows[0][0]) if rows else None


def find(session: ControlSession, retries: RetryPolicy, name: str) -> str:
    """The id that equals `name`, or the only id that begins with it."""
    some = _Q["beginning_with"].limited(IDS_SHOWN + 1)
    ids = retries.call(lambda: [str(row[0]) for row in session.fetch(some, name)])
    return chosen_id(name, ids, noun="queued run", remedy=_SHOW_IDS)


def read_all(
    session: ControlSession, retries: RetryPolicy, name: str
) -> tuple[QueuedRun, BaselineCheck, ParsedRows[AttemptRow]]:
    """The queued run with this id, or a unique beginning of it; its baseline; and its attempts."""
    queue_id = find(session, retries, name)
    row = _there(session, retries, queue_id)
    judging = retries.call(lambda: read_judging(session, queue_id))
    return row, judging, retries.call(lambda: run_attempts.read(session, queue_id))


def cancel(session: ControlSession, retries: RetryPolicy, queue_id: str, reason: str) -> QueuedRun:
    """Request the end of a queued run. Returns the row afterwards."""
    run_attempts.request(session, retries, queue_id, UserRequest.CANCELLED, reason, of=_CANCELLABLE)
    return _there(session, retries, queue_id)


def retry(session: ControlSession, retries: RetryPolicy, queue_id: str, reason: str) -> QueuedRun:
    """Queue a run again that ended without a result, with the full number of attempts. Returns the row afterwards."""
    run_attempts.request(session, retries, queue_id, UserRequest.RETRIED, reason, of=_RETRYABLE)
    return _there(session, retries, queue_id)


def read_judging(session: ControlSession, queue_id: str) -> BaselineCheck:
    rows = session.fetch(_Q["read_files"], queue_id)
    return read_files("RUN_QUEUE", queue_id, rows[0][0])[1] if rows else BaselineCheck()


def write_files(wanted: QueueRequest) -> str:
    """The texts of the value files, and the baseline check, as JSON."""
    files = {clean_text(name): clean_text(content) for name, content in wanted.files.items()}
    if wanted.judging != BaselineCheck():
        files[BASELINE_KEY] = json.dumps(asdict(wanted.judging), separators=(",", ":"))
    return json.dumps(files, separators=(",", ":"))


def texts_bytes(wanted: QueueRequest) -> int:
    """The size of the texts of a run in the statement that adds it."""
    return len(clean_text(wanted.scenario).encode()) + len(write_files(wanted))


def read_files(table: str, key: str, written: object) -> tuple[dict[str, str], BaselineCheck]:
    """Parse the text of write_files in the row `key` of a table. RowUnreadable if it is invalid."""
    try:
        found = _texts(written)
        judging = found.pop(BASELINE_KEY, None)
        return found, BaselineCheck() if judging is None else _judging(json.loads(judging))
    except (ValueError, TypeError, RecursionError) as error:
        raise RowUnreadable(table, key, f"files: {error}") from None


def _texts(written: object) -> dict[str, str]:
    found = json.loads(written) if isinstance(written, str) else None
    if not isinstance(found, dict) or not all(isinstance(content, str) for content in found.values()):
        raise ValueError("not a JSON object of texts")
    return found


def _judging(found: Any) -> BaselineCheck:
    if not isinstance(found, dict) or not found.keys() <= {"baseline", "confirm"}:
        raise ValueError("not a baseline")
    baseline, confirm = found.get("baseline"), found.get("confirm", False)
    if not isinstance(baseline, str | None) or not isinstance(confirm, bool):
        raise ValueError("not a baseline")
    return BaselineCheck(baseline=baseline, confirm=confirm)


def labels_json(words: tuple[str, ...]) -> str:
    """key=value words as JSON for comparisons in SQL: sorted, without duplicates."""
    return json.dumps(sorted({clean_text(word) for word in words}), separators=(",", ":"))


def _there(session: ControlSession, retries: RetryPolicy, queue_id: str) -> QueuedRun:
    row = retries.call(lambda: read(session, queue_id))
    if row is None:
        raise UsageError(f"there is no queued run {queue_id}", remedy=_SHOW_IDS)
    return row


def _queued(row: tuple[Any, ...]) -> QueuedRun:
    return parse_row("RUN_QUEUE", QueuedRun, row)


# --- Runners ----------------------------------------------------------------------------------------------------------

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

    def look_up() -> bool | None:
        """After a lost answer: True if the turn is ours, False if another process has it, None if it is free."""
        rows = session.fetch(_TURNS["owner"], *key)
        return bool(rows[0][0] == turn.owner) if rows else None

    def write() -> bool | None:
        binds = (*key, attempts, round(ttl_s * 1000), turn.owner, turn.owner, turn.owner, target)
        return True if session.execute(_TURNS["claim"], *binds) == 1 else None

    return _unless_taken(lambda: retries.settle(write, look_up))


def _unless_taken(insert: Callable[[], bool | None]) -> bool | None:
    """False: another process has inserted the key."""
    try:
        return insert()
    except ControlFailed as error:
        if error.failure.is_duplicate_key:
            return False
        raise


def claimed_run(session: ControlSession, claim: QueueClaim) -> ClaimedRun | None:
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


def claim_status(session: ControlSession, claim: QueueClaim) -> QueueStatus | None:
    """RUNNING or CANCEL_REQUESTED; None: the lease has expired."""
    key = (claim.queue_id, claim.epoch)
    rows = session.fetch(_TURNS["read_state"], claim.queue_id, claim.epoch + 1, *key, claim.owner, *key)
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


def release(
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

    def look_up() -> bool | None:
        """After a lost answer: any end other than LOST was written by the owner."""
        rows = session.fetch(_TURNS["ended"], *key)
        return bool(rows[0][0] != AttemptStatus.LOST) if rows else None

    def write() -> bool:
        return session.execute(_TURNS["end"], *binds) == 1

    ended = _unless_taken(lambda: retries.settle(write, look_up)) or False
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
