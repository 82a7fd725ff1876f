"""Schedules in memory, for a year of ticks in a second: the tables with the guards of their SQL, and a wire on which
schedulers die and overtake one another. The real SQL is tried by tests/contract/test_schedules.py."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from loadgen.control.session import ControlFailed, ControlSession, NamedQuery
from loadgen.model.counts import ErrorCategory
from loadgen.model.nightly import QueueStatus
from loadgen.snowflake.failure import Failure

DUPLICATE = Failure(category=ErrorCategory.SNOWFLAKE_ERROR, is_duplicate_key=True)
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
ZONES = (
    *("Europe/Berlin", "America/New_York", "Australia/Lord_Howe"),  # the last moves its clock by half an hour
    *("Africa/Cairo", "America/Havana"),  # midnight is skipped, and repeated
    *("UTC", "Asia/Kolkata"),  # without
)


class Died(BaseException):
    """The process was killed: none of its code catches this."""


@dataclass(slots=True)
class Row:
    cron: str
    timezone: str
    max_catchup: int
    overlap: str
    last_fire_at: datetime  # naive, as in the table
    enabled: bool = True
    reason: str | None = None


@dataclass(slots=True)
class FireEntry:
    outcome: str
    written_at: datetime
    queue_id: str | None = None


@dataclass(slots=True)
class Tables:
    now: datetime  # the server's clock, naive
    schedules: dict[str, Row] = field(default_factory=dict)
    fires: dict[tuple[str, datetime], FireEntry] = field(default_factory=dict)
    queue: dict[str, str] = field(default_factory=dict)  # idempotency key: queue id
    queued: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # idempotency key: what is run
    ended: set[str] = field(default_factory=set)  # queue ids

    def runs(self, schedule_id: str) -> list[datetime]:
        """For which fires there is a run."""
        beginning = f"schedule:{schedule_id}:"
        times = [key.removeprefix(beginning) for key in self.queue if key.startswith(beginning)]
        return sorted(datetime.strptime(time, "%Y-%m-%dT%H:%M:%SZ") for time in times)  # noqa: DTZ007


class Wire:
    """What a scheduler takes for its session. `before` is called ahead of each statement, with its number."""

    def __init__(self, tables: Tables, before: Callable[[int], None] = lambda _: None) -> None:
        self.tables, self._before, self.statements, self._limit = tables, before, 0, 0

    @property
    def session(self) -> ControlSession:
        return cast(ControlSession, self)

    def fetch(self, query: NamedQuery, *binds: Any) -> list[tuple[Any, ...]]:
        self._count()
        if limit := re.search(r"LIMIT (\d+)$", query.sql):
            self._limit = int(limit[1])
        found: list[tuple[Any, ...]] = getattr(self, f"_{query.name.replace('.', '_')}")(*binds)
        return found

    def execute(self, query: NamedQuery, *binds: Any) -> int:
        self._count()
        touched: int = getattr(self, f"_{query.name.replace('.', '_')}")(*binds)
        return touched

    def _count(self) -> None:
        self.statements += 1
        self._before(self.statements)

    def _run_status_server_time(self) -> list[tuple[Any, ...]]:
        return [(self.tables.now,)]

    def _schedules_enabled(self, after: str) -> list[tuple[Any, ...]]:
        rows = sorted((key, row) for key, row in self.tables.schedules.items() if row.enabled and key > after)
        return [
            (
                *(key, f"name of {key}", row.cron, row.timezone, "s", None, "", "[]", 0, row.enabled),
                *(row.max_catchup, row.overlap, row.last_fire_at, row.reason, row.last_fire_at, row.last_fire_at),
                self.tables.now,
            )
            for key, row in rows[: self._limit]
        ]

    def _schedules_wanted(self, schedule_id: str) -> list[tuple[Any, ...]]:
        there = schedule_id in self.tables.schedules
        return [("s", "version: 1", json.dumps({}), None, "", "[]", 0)] if there else []

    def _schedules_settle(self, at: str, schedule_id: str, _: str) -> int:
        row = self.tables.schedules.get(schedule_id)
        if row is None or row.last_fire_at >= datetime.fromisoformat(at):
            return 0
        row.last_fire_at, row.reason = datetime.fromisoformat(at), None
        return 1

    def _schedules_settle_first(self, _: str, __: str) -> int:
        raise ControlFailed("there already", DUPLICATE)

    _schedules_store_failure_first = _schedules_settle_first

    def _schedules_store_failure(self, reason: str, schedule_id: str, _: str) -> int:
        known, self.tables.schedules[schedule_id].reason = self.tables.schedules[schedule_id].reason, reason
        return int(known != reason)

    def _schedule_fires_record(self, at: str, outcome: str, schedule_id: str, _: str) -> int:
        row, moment = self.tables.schedules.get(schedule_id), datetime.fromisoformat(at)
        if row is None or not row.enabled or row.last_fire_at >= moment:
            return 0
        if (schedule_id, moment) in self.tables.fires:
            raise ControlFailed("there already", DUPLICATE)
        self.tables.fires[schedule_id, moment] = FireEntry(str(outcome), self.tables.now)
        return 1

    def _schedule_fires_due(self) -> list[tuple[Any, ...]]:
        found = [key for key, entry in self.tables.fires.items() if entry.outcome == "DUE"]
        return [
            (schedule_id, at, f"name of {schedule_id}" if schedule_id in self.tables.schedules else None)
            for schedule_id, at in found[: self._limit]
        ]

    def _schedule_fires_queued(self, queue_id: str, schedule_id: str, at: str) -> int:
        entry = self.tables.fires[schedule_id, datetime.fromisoformat(at)]
        if entry.outcome != "DUE":
            return 0
        entry.outcome, entry.queue_id = "QUEUED", queue_id
        return 1

    def _schedule_fires_last_run(self, schedule_id: str) -> list[tuple[Any, ...]]:
        found = [
            (at, entry)
            for (key, at), entry in self.tables.fires.items()
            if key == schedule_id and entry.outcome in ("DUE", "QUEUED")
        ]
        if not found:
            return []
        _, last = max(found, key=lambda pair: pair[0])
        status = QueueStatus.COMPLETED if last.queue_id in self.tables.ended else QueueStatus.RUNNING
        return [(last.outcome, status if last.queue_id else None)]

    def _schedule_fires_delete_old(self, *_: Any) -> int:
        return 0

    def _schedule_fires_remove(self, schedule_id: str) -> int:
        gone = [key for key in self.tables.fires if key[0] == schedule_id]
        for key in gone:
            del self.tables.fires[key]
        return len(gone)

    def _run_queue_add(self, queue_id: str, key: str, name: str, *more: Any) -> int:
        if key in self.tables.queue:
            raise ControlFailed("there already", DUPLICATE)
        self.tables.queue[key] = queue_id
        scenario, files, connection, _, requires, priority, *_ = more
        self.tables.queued[key] = scenario, files, connection, requires, priority
        return 1

    def _run_queue_find_key(self, key: str) -> list[tuple[Any, ...]]:
        return [(self.tables.queue[key], *self.tables.queued[key])] if key in self.tables.queue else []


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)
