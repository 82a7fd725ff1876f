"""RUN_QUEUE: queued runs, as users see them. Runners claim and end them with run_queue_claims.

A row contains the text of the scenario and the texts of its value files, so that a runner needs no other files.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, field
from datetime import datetime
from typing import Any

from loadgen.control.session import (
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
from loadgen.control.tables.run_attempts import Wish
from loadgen.errors import UsageError
from loadgen.log import printable
from loadgen.model.nightly import ATTEMPTS_MAX, BaselineCheck, QueueStatus
from loadgen.snowflake.session import RetryPolicy
from loadgen.values import dataclass

KEY_MAX = 200  # characters
NAME_MAX = 255
TARGET_MAX = 200
REQUIRES_MAX = 16_000  # characters of its JSON; also in the SQL
REASON_MAX = 2_000
TEXTS_BYTES_MAX = 900_000  # Snowflake recommends at most 1 MB for a statement, including binds
BASELINE_KEY = "/judging"  # an entry among the files that cannot be a file, because their names are relative
_SLUG_MAX = 19
_CONTENT = ("its scenario", "its value files or baseline", "--connection", "--requires", "--priority")  # of find_key
_SHOW_IDS = "`loadgen queue list` shows the ids."

_Q = load_queries("run_queue")
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
            if error.failure.is_duplicate_key and (found := look()) is not None:
                return found
            raise
        return EnqueueResult(queue_id=queue_id, is_new=True)

    def look() -> EnqueueResult | None:
        rows = session.fetch(_Q["find_key"], key)
        if not rows:
            return None
        found, *content = rows[0]
        differs = tuple(
            name for name, is_one, was in zip(_CONTENT, wanted_content, content, strict=True) if is_one != was
        )
        return EnqueueResult(queue_id=found, is_new=found == queue_id, differs=differs)

    return retries.settle(write, look)


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
    found = retries.call(lambda: [str(row[0]) for row in session.fetch(_Q["beginning_with"].limited(3), name)])
    if found and (found[0] == name or len(found) == 1):
        return found[0]
    shown = printable(name, 80)
    if found:
        raise UsageError(
            f"the ids of several queued runs begin with {shown!r}: {', '.join(found)}", remedy="Write more of the id."
        )
    raise UsageError(f"there is no queued run {shown!r}", remedy=_SHOW_IDS)


def cancel(session: ControlSession, retries: RetryPolicy, queue_id: str, reason: str) -> QueuedRun:
    """Request the end of a queued run. Returns the row afterwards."""
    run_attempts.wish(session, retries, queue_id, Wish.CANCELLED, reason, of=_CANCELLABLE)
    return _there(session, retries, queue_id)


def retry(session: ControlSession, retries: RetryPolicy, queue_id: str, reason: str) -> QueuedRun:
    """Queue a run again that ended without a result, with the full number of attempts. Returns the row afterwards."""
    run_attempts.wish(session, retries, queue_id, Wish.RETRIED, reason, of=_RETRYABLE)
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
