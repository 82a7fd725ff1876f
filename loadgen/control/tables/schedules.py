"""SCHEDULES, SCHEDULE_PROGRESS, SCHEDULE_FIRES: which scenario runs when, and the outcome of each due time (fire).

A row of SCHEDULES holds the text of the scenario and the texts of its value files, like a queued run. A fire is stored
in two steps:

    record_fire    DUE, SKIPPED or MISSED, once: the enforced key decides between several schedulers
    fire_queued    DUE becomes QUEUED after the run of the fire is in the queue

A scheduler that ends between the two steps leaves a DUE fire, and the next scheduler queues its run. The idempotency
key of the queue prevents a second run when the first scheduler had already queued one. So no fire is lost or run twice.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from loadgen.control.session import (
    REASON_MAX,
    ControlFailed,
    ControlSession,
    NamedQuery,
    ParsedRows,
    RowUnreadable,
    clean_text,
    clip_text,
    load_queries,
    parse_row,
    read_rows,
    text_list,
)
from loadgen.control.tables.run_queue import NAME_MAX, TARGET_MAX, QueueRequest, labels_json, read_files, write_files
from loadgen.errors import UsageError
from loadgen.log import printable
from loadgen.model.nightly import FireOutcome, Overlap, QueueStatus, ScheduleFire
from loadgen.snowflake.session import RetryPolicy
from loadgen.values import dataclass

SCHEDULE_NAME_MAX = 100  # characters
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{SCHEDULE_NAME_MAX - 1}}}")
LISTED_MAX = 10_000
FIRES_KEPT_DAYS = 90

_NOT_ENDED = frozenset(status.value for status in QueueStatus if not status.is_terminal)

_Q = load_queries("schedules")
_FIRES = load_queries("schedule_fires")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSchedule:
    name: str
    cron: str
    timezone: str
    max_catchup: int
    overlap: Overlap
    wanted: QueueRequest  # what each fire queues; without an idempotency key and a time


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRow:
    """A row without its texts. Times are aware, in UTC. Most fields are checked where they are used, so that one
    invalid row does not prevent the others from being read."""

    schedule_id: str
    name: str
    cron: str
    timezone: str
    scenario_name: str
    connection: str | None
    target: str
    requires: str  # a JSON list
    priority: int
    enabled: bool
    max_catchup: int
    overlap: str  # of Overlap
    last_fire_at: datetime
    reason: str | None
    created_at: datetime
    updated_at: datetime

    @property
    def labels(self) -> tuple[str, ...]:
        """`requires`; an invalid text, which any user of the table may have written, as it is."""
        try:
            found = json.loads(self.requires)
        except (ValueError, RecursionError):
            return (self.requires,)
        return tuple(map(str, found)) if isinstance(found, list) else (self.requires,)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnabledSchedules:
    rows: ParsedRows[ScheduleRow]
    last_id: str | None  # of these rows; None: this is the last page
    now: datetime | None  # the time of the server, aware; None: there are no rows


def check_new(name: str, max_catchup: int, overlap: Overlap) -> None:
    """UsageError if a schedule cannot have this name, or these settings together."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{printable(name, 60)!r} is not a valid name for a schedule",
            remedy="Use at most 100 letters, digits, dots, dashes and underscores, for example nightly-eu.",
        )
    if max_catchup > 1 and overlap is Overlap.SKIP:
        raise UsageError(
            f"--max-catchup {max_catchup} queues several runs at once, but --overlap skip allows one",
            remedy="Add --overlap queue, or leave --max-catchup at 1.",
        )


def add(session: ControlSession, retries: RetryPolicy, new: NewSchedule) -> str:
    """Insert a schedule, enabled from now on. Returns its id. UsageError when the name exists."""
    schedule_id = str(uuid.uuid4())
    wanted = new.wanted
    binds = (
        *(schedule_id, new.name, new.cron, new.timezone, clip_text(wanted.name, NAME_MAX), clean_text(wanted.scenario)),
        *(write_files(wanted), wanted.connection, clip_text(wanted.target, TARGET_MAX), labels_json(wanted.requires)),
        *(wanted.priority, new.max_catchup, new.overlap),
    )
    try:
        retries.settle(
            lambda: session.execute(_Q["add"], *binds) == 1,
            lambda: True if session.fetch(_Q["added"], schedule_id)[0][0] else None,
        )
    except ControlFailed as error:
        if error.failure.is_duplicate_key:
            raise UsageError(
                f"schedule {printable(new.name, SCHEDULE_NAME_MAX)!r} exists already",
                remedy="Choose another name, or remove it first with `loadgen schedule remove`.",
            ) from error
        raise
    return schedule_id


def find(session: ControlSession, retries: RetryPolicy, name: str) -> ScheduleRow:
    """The schedule of that name; UsageError when there is none."""
    rows = retries.call(lambda: session.fetch(_Q["read"], clean_text(name)))
    if not rows:
        raise UsageError(
            f"there is no schedule {printable(name, SCHEDULE_NAME_MAX)!r}",
            remedy="`loadgen schedule list` shows the schedules there are.",
        )
    return _row(rows[0])


def by_name(session: ControlSession) -> ParsedRows[ScheduleRow]:
    """All schedules, in the order of their names."""
    return read_rows(session.fetch(_Q["by_name"].limited(LISTED_MAX)), _row)


def enabled(session: ControlSession, after: str, limit: int) -> EnabledSchedules:
    """The next enabled schedules after an id."""
    found = session.fetch(_Q["enabled"].limited(limit), after)
    return EnabledSchedules(
        rows=read_rows([row[:-1] for row in found], _row),
        last_id=str(found[-1][0]) if len(found) == limit else None,
        now=as_utc(found[-1][-1]) if found else None,
    )


def wanted(session: ControlSession, schedule_id: str) -> QueueRequest | None:
    """What a fire of this schedule queues; None: the schedule was removed."""
    rows = session.fetch(_Q["wanted"], schedule_id)
    if not rows:
        return None
    name, scenario, files, connection, target, requires, priority = rows[0]
    texts, judging = read_files("SCHEDULES", schedule_id, files)
    try:
        words = text_list(requires)
    except ValueError as error:
        raise RowUnreadable("SCHEDULES", schedule_id, f"requires: {error}") from None
    return QueueRequest(
        name=name,
        scenario=scenario,
        files=texts,
        judging=judging,
        connection=connection,
        target=target,
        requires=words,
        priority=int(priority),
    )


def settle(session: ControlSession, retries: RetryPolicy, schedule_id: str, moment: datetime) -> None:
    """Store that every fire up to `moment` has its outcome."""
    at = utc_text(moment)
    _either(session, retries, (_Q["settle"], at, schedule_id, at), (_Q["settle_first"], at, schedule_id))


def store_failure(session: ControlSession, retries: RetryPolicy, schedule_id: str, reason: str) -> bool:
    """Store why a schedule cannot fire. False: the same reason is stored already."""
    why = clip_text(reason, REASON_MAX)
    return _either(
        session, retries, (_Q["store_failure"], why, schedule_id, why), (_Q["store_failure_first"], why, schedule_id)
    )


def enable(session: ControlSession, retries: RetryPolicy, schedule_id: str, *, catch_up: bool) -> None:
    """Fire from now on; with `catch_up` also the missed fires that its catch-up policy allows."""
    query = _Q["enable_with_past"] if catch_up else _Q["enable"]
    retries.call(lambda: session.execute(query, schedule_id))


def disable(session: ControlSession, retries: RetryPolicy, schedule_id: str) -> None:
    retries.call(lambda: session.execute(_Q["disable"], schedule_id))


def remove(session: ControlSession, retries: RetryPolicy, schedule_id: str) -> None:
    retries.call(lambda: session.execute(_Q["remove"], schedule_id))
    retries.call(lambda: session.execute(_Q["remove_progress"], schedule_id))


def _either(
    session: ControlSession,
    retries: RetryPolicy,
    update: tuple[NamedQuery, *tuple[str, ...]],
    insert: tuple[NamedQuery, *tuple[str, ...]],
) -> bool:
    """Update the row in SCHEDULE_PROGRESS, or insert it. False: the row exists and needs no change."""

    def write() -> bool:
        try:
            return session.execute(*update) == 1 or session.execute(*insert) == 1
        except ControlFailed as error:
            if error.failure.is_duplicate_key:
                return False
            raise

    return retries.call(write)


def utc_text(moment: datetime) -> str:
    """A time as TO_TIMESTAMP_NTZ reads it: UTC, without a zone."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ")


def as_utc(moment: datetime) -> datetime:
    """A time from a table, which is naive and in UTC, as an aware time."""
    return moment.replace(tzinfo=UTC)


def _row(row: tuple[Any, ...]) -> ScheduleRow:
    read = parse_row("SCHEDULES", ScheduleRow, row)
    last_fire_at, created_at, updated_at = map(as_utc, (read.last_fire_at, read.created_at, read.updated_at))
    return replace(read, last_fire_at=last_fire_at, created_at=created_at, updated_at=updated_at)


# --- Fires -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FireRow:
    """A fire and the state of its run. Times are aware, in UTC."""

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
    name: str | None  # of the schedule; None: the schedule was removed


def record_fire(session: ControlSession, retries: RetryPolicy, schedule_id: str, fire: ScheduleFire) -> bool:
    """Store the outcome of a fire. False: an outcome is stored already, for example by another scheduler."""
    at = utc_text(fire.at)

    def write() -> bool:
        try:
            return session.execute(_FIRES["record"], at, fire.outcome, schedule_id, at) == 1
        except ControlFailed as error:
            if error.failure.is_duplicate_key:
                return False
            raise

    def look_up() -> bool | None:
        """After a lost answer: any scheduler may queue a fire that is DUE."""
        rows = session.fetch(_FIRES["recorded"], schedule_id, at)
        return rows[0][0] == fire.outcome if rows else None

    return retries.settle(write, look_up)


def due_fires(session: ControlSession, limit: int) -> tuple[DueFire, ...]:
    """Fires that are not known to be queued, the newest first."""
    return tuple(
        DueFire(schedule_id=schedule_id, at=as_utc(at), name=name)
        for schedule_id, at, name in session.fetch(_FIRES["due"].limited(limit))
    )


def fire_queued(session: ControlSession, retries: RetryPolicy, schedule_id: str, at: datetime, queue_id: str) -> None:
    """Store that the run of a fire is in the queue."""
    retries.call(lambda: session.execute(_FIRES["queued"], queue_id, schedule_id, utc_text(at)))


def has_open_run(session: ControlSession, schedule_id: str) -> bool:
    """Whether the run of the last fire has not ended."""
    rows = session.fetch(_FIRES["last_run"], schedule_id)
    if not rows:
        return False
    outcome, status = rows[0]
    return outcome == FireOutcome.DUE or status in _NOT_ENDED


def newest_fires(session: ControlSession, schedule_id: str, limit: int) -> ParsedRows[FireRow]:
    """The newest fires of a schedule, the newest first."""
    return read_rows(session.fetch(_FIRES["newest"].limited(limit), schedule_id), _fire)


def delete_old_fires(session: ControlSession, retries: RetryPolicy, schedule_id: str) -> None:
    """Delete the fires of a schedule that are older than the retention time."""
    retries.call(lambda: session.execute(_FIRES["delete_old"], schedule_id, -FIRES_KEPT_DAYS))


def remove_fires(session: ControlSession, retries: RetryPolicy, schedule_id: str) -> None:
    """Delete all fires of a schedule that was removed."""
    retries.call(lambda: session.execute(_FIRES["remove"], schedule_id))


def _fire(row: tuple[Any, ...]) -> FireRow:
    read = parse_row("SCHEDULE_FIRES", FireRow, row)
    return replace(read, at=as_utc(read.at))
