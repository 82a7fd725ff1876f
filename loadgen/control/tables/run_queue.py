"""RUN_QUEUE: queued runs, as users see them. How runners claim and end them: loadgen.control.tables.run_queue_claims.

A row holds the scenario's text and the texts of its value files: the runner needs no file of the user's machine.
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
REQUIRES_MAX = 16_000  # of its JSON; written in the SQL too
REASON_MAX = 2_000
TEXTS_BYTES_MAX = 900_000  # Snowflake recommends 1 MB at most for a statement, binds included
BASELINE_KEY = "/judging"  # among the files, and never one of them: those lie beside the scenario
_SLUG_MAX = 19
_CONTENT = ("its scenario", "its value files or baseline", "--connection", "--requires", "--priority")  # of find_key
_SHOW_IDS = "`loadgen queue list` shows what there is."

_Q = load_queries("run_queue")
_CANCELLABLE = frozenset((QueueStatus.QUEUED, QueueStatus.RUNNING))
_RETRYABLE = frozenset((QueueStatus.FAILED, QueueStatus.CANCELLED, QueueStatus.EXHAUSTED))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRequest:
    """A run to be had. Of two with the same key there is one."""

    name: str  # of the scenario
    scenario: str  # its text, with variables filled in, but for secrets
    files: Mapping[str, str]  # the text of each value file, by the name that the scenario gives it
    connection: str | None = None  # instead of the scenario's
    target: str = ""  # what one run at a time may measure; empty: not known, and never waited for
    requires: tuple[str, ...] = ()  # key=value: what its runner must offer
    priority: int = 0  # higher first
    judging: BaselineCheck = field(default_factory=BaselineCheck)
    idempotency_key: str | None = None  # None: a unique one
    not_before: datetime | None = None  # naive UTC
    max_attempts: int = ATTEMPTS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueueResult:
    queue_id: str
    is_new: bool  # False: one with this key was there
    differs: tuple[str, ...] = ()  # in what that one is another run


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
    available_in_ms: int  # negative: since when it may be taken; of a run under way: since when its lease is over

    @property
    def is_under_way(self) -> bool:
        return self.status in (QueueStatus.RUNNING, QueueStatus.CANCEL_REQUESTED)

    @property
    def lease_expired_s(self) -> int | None:
        """For how long a run under way has not had a runner that renews its lease; None: it has one, or needs none."""
        return -self.available_in_ms // 1000 if self.is_under_way and self.available_in_ms < 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRun:
    """A queued run that could begin."""

    queue_id: str
    name: str
    requires: tuple[str, ...]
    waited_s: int


def new_queue_id(name: str) -> str:
    """Says what is wanted; the end makes it unique."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_SLUG_MAX].strip("-")
    return f"{slug or 'run'}-{secrets.token_hex(8)}"


def add(session: ControlSession, patience: RetryPolicy, wanted: QueueRequest) -> EnqueueResult:
    """Put a run into the queue, once for each idempotency key."""
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

    return patience.settle(write, look)


def read(session: ControlSession, queue_id: str) -> QueuedRun | None:
    rows = session.fetch(_Q["read"], queue_id)
    return _queued(rows[0]) if rows else None


def newest(session: ControlSession, limit: int, *, status: QueueStatus | None = None) -> ParsedRows[QueuedRun]:
    """The latest queued runs, newest first."""
    if status is None:
        return read_rows(session.fetch(_Q["newest"].limited(limit)), _queued)
    return read_rows(session.fetch(_Q["newest_in"].limited(limit), status), _queued)


def waiting(session: ControlSession) -> ParsedRows[WaitingRun]:
    """Queued runs that could begin now, the most urgent first; at most 100."""
    return read_rows(session.fetch(_Q["waiting"]), lambda row: parse_row("RUN_QUEUE", WaitingRun, row))


def note(session: ControlSession, patience: RetryPolicy, queue_id: str, reason: str) -> bool:
    """Say why a run waits. False: that is known, or it does not wait any more."""
    why = clip_text(reason, REASON_MAX)
    noted = patience.call(lambda: session.execute(_Q["note"], why, queue_id, why)) == 1
    if noted:
        run_attempts.settle(session, patience, queue_id)  # it may have been claimed meanwhile
    return noted


def read_scenario_text(session: ControlSession, queue_id: str) -> str | None:
    rows = session.fetch(_Q["scenario"], queue_id)
    return str(rows[0][0]) if rows else None


def find(session: ControlSession, patience: RetryPolicy, name: str) -> str:
    """The id that `name` is, or is the only beginning of."""
    found = patience.call(lambda: [str(row[0]) for row in session.fetch(_Q["beginning_with"].limited(3), name)])
    if found and (found[0] == name or len(found) == 1):
        return found[0]
    shown = printable(name, 80)
    if found:
        raise UsageError(
            f"{shown!r} is the beginning of several queued runs: {', '.join(found)}", remedy="Write more of it."
        )
    raise UsageError(f"there is no queued run {shown!r}", remedy=_SHOW_IDS)


def cancel(session: ControlSession, patience: RetryPolicy, queue_id: str, reason: str) -> QueuedRun:
    """Ask for its end. The row afterwards says what became of it."""
    run_attempts.wish(session, patience, queue_id, Wish.CANCELLED, reason, of=_CANCELLABLE)
    return _there(session, patience, queue_id)


def retry(session: ControlSession, patience: RetryPolicy, queue_id: str, reason: str) -> QueuedRun:
    """Put one that ended without a result back into the queue, with all its attempts. The row afterwards."""
    run_attempts.wish(session, patience, queue_id, Wish.RETRIED, reason, of=_RETRYABLE)
    return _there(session, patience, queue_id)


def read_judging(session: ControlSession, queue_id: str) -> BaselineCheck:
    rows = session.fetch(_Q["read_files"], queue_id)
    return read_files("RUN_QUEUE", queue_id, rows[0][0])[1] if rows else BaselineCheck()


def write_files(wanted: QueueRequest) -> str:
    """The texts that a run needs, and what it is judged by."""
    files = {clean_text(name): clean_text(content) for name, content in wanted.files.items()}
    if wanted.judging != BaselineCheck():
        files[BASELINE_KEY] = json.dumps(asdict(wanted.judging), separators=(",", ":"))
    return json.dumps(files, separators=(",", ":"))


def texts_bytes(wanted: QueueRequest) -> int:
    """How long the texts of a run are in the statement that adds it."""
    return len(clean_text(wanted.scenario).encode()) + len(write_files(wanted))


def read_files(table: str, key: str, written: object) -> tuple[dict[str, str], BaselineCheck]:
    """What write_files wrote for the row `key` of a table; RowUnreadable for anything else."""
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
    """key=value words as SQL compares them: sorted, each once."""
    return json.dumps(sorted({clean_text(word) for word in words}), separators=(",", ":"))


def _there(session: ControlSession, patience: RetryPolicy, queue_id: str) -> QueuedRun:
    row = patience.call(lambda: read(session, queue_id))
    if row is None:
        raise UsageError(f"there is no queued run {queue_id}", remedy=_SHOW_IDS)
    return row


def _queued(row: tuple[Any, ...]) -> QueuedRun:
    return parse_row("RUN_QUEUE", QueuedRun, row)
