"""SCHEDULES: which scenario is to be run when, and up to when that is settled.

A row holds the scenario's text and the texts of its value files, as a queued run does.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from loadgen.control.session import (
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
from loadgen.model.nightly import Overlap
from loadgen.snowflake.session import RetryPolicy
from loadgen.values import dataclass

SCHEDULE_NAME_MAX = 100  # characters
REASON_MAX = 2_000
LISTED_MAX = 10_000

_Q = load_queries("schedules")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSchedule:
    name: str
    cron: str
    timezone: str
    max_catchup: int
    overlap: Overlap
    wanted: QueueRequest  # what each fire queues; without key and time


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRow:
    """A row without its texts. Times are aware, in UTC. Checked where a field is used: one bad
    row must not keep others from being read."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class EnabledSchedules:
    rows: ParsedRows[ScheduleRow]
    last_id: str | None  # of these; None: there are no more after them
    now: datetime | None  # the server's time, aware; None: there are no rows


def add(session: ControlSession, patience: RetryPolicy, new: NewSchedule) -> str:
    """A new schedule, enabled from now on; its id. UsageError when the name is taken."""
    schedule_id = str(uuid.uuid4())
    wanted = new.wanted
    binds = (
        *(schedule_id, new.name, new.cron, new.timezone, clip_text(wanted.name, NAME_MAX), clean_text(wanted.scenario)),
        *(write_files(wanted), wanted.connection, clip_text(wanted.target, TARGET_MAX), labels_json(wanted.requires)),
        *(wanted.priority, new.max_catchup, new.overlap),
    )
    try:
        patience.settle(
            lambda: session.execute(_Q["add"], *binds) == 1,
            lambda: True if session.fetch(_Q["added"], schedule_id)[0][0] else None,
        )
    except ControlFailed as error:
        if error.failure.is_duplicate_key:
            raise UsageError(
                f"there is a schedule {printable(new.name, SCHEDULE_NAME_MAX)!r} already",
                remedy="Choose another name, or remove it first with `loadgen schedule remove`.",
            ) from error
        raise
    return schedule_id


def find(session: ControlSession, patience: RetryPolicy, name: str) -> ScheduleRow:
    """The schedule of that name; UsageError when there is none."""
    rows = patience.call(lambda: session.fetch(_Q["read"], clean_text(name)))
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
    """What a fire of it queues; None: it was removed."""
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


def settle(session: ControlSession, patience: RetryPolicy, schedule_id: str, moment: datetime) -> None:
    """Everything up to then is decided."""
    at = utc_text(moment)
    _either(session, patience, (_Q["settle"], at, schedule_id, at), (_Q["settle_first"], at, schedule_id))


def complain(session: ControlSession, patience: RetryPolicy, schedule_id: str, reason: str) -> bool:
    """Say why it cannot be fired. False: that is known."""
    why = clip_text(reason, REASON_MAX)
    return _either(session, patience, (_Q["complain"], why, schedule_id, why), (_Q["complain_first"], why, schedule_id))


def enable(session: ControlSession, patience: RetryPolicy, schedule_id: str, *, catch_up: bool) -> None:
    """Fire it from now on; with `catch_up` also what it has missed, as far as its policy goes."""
    query = _Q["enable_with_past"] if catch_up else _Q["enable"]
    patience.call(lambda: session.execute(query, schedule_id))


def disable(session: ControlSession, patience: RetryPolicy, schedule_id: str) -> None:
    patience.call(lambda: session.execute(_Q["disable"], schedule_id))


def remove(session: ControlSession, patience: RetryPolicy, schedule_id: str) -> None:
    patience.call(lambda: session.execute(_Q["remove"], schedule_id))
    patience.call(lambda: session.execute(_Q["remove_progress"], schedule_id))


def _either(
    session: ControlSession,
    patience: RetryPolicy,
    update: tuple[NamedQuery, *tuple[str, ...]],
    insert: tuple[NamedQuery, *tuple[str, ...]],
) -> bool:
    """Change the row in SCHEDULE_PROGRESS, or insert it. False: it is there, and there is nothing to change."""

    def write() -> bool:
        try:
            return session.execute(*update) == 1 or session.execute(*insert) == 1
        except ControlFailed as error:
            if error.failure.is_duplicate_key:
                return False
            raise

    return patience.call(write)


def utc_text(moment: datetime) -> str:
    """As TO_TIMESTAMP_NTZ reads it: UTC, without a zone."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ")


def as_utc(moment: datetime) -> datetime:
    """As the tables have it: naive, and meant as UTC."""
    return moment.replace(tzinfo=UTC)


def _row(row: tuple[Any, ...]) -> ScheduleRow:
    read = parse_row("SCHEDULES", ScheduleRow, row)
    last_fire_at, created_at, updated_at = map(as_utc, (read.last_fire_at, read.created_at, read.updated_at))
    return replace(read, last_fire_at=last_fire_at, created_at=created_at, updated_at=updated_at)
