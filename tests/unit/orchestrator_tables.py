"""The control plane in memory, for the simulation: the tables with the guards of their SQL.

A statement is executed in two moments, as READ COMMITTED does: it begins, and sees the tables as they are; it commits,
and the row it changes is looked at once more. Between the two lie up to 8 s, after which the server ends it. Whatever
is written is checked against rules that know nothing of the guards, so a guard that is missing shows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from loadgen.control.queries import Query
from loadgen.control.run_leases import TAKEOVER_MARGIN_S
from loadgen.model.event import EventType
from loadgen.model.outcome import ErrorCategory
from loadgen.model.run import PHASES, STEPS, Phase, RunStatus
from loadgen.model.worker import WorkerStatus
from loadgen.snowflake.failure import Failure

ZERO = datetime(2026, 11, 15)  # noqa: DTZ001  as Snowflake has it: naive UTC
NO_ANSWER = Failure(category=ErrorCategory.CONNECTION, retryable=True, unknown_outcome=True)
DUPLICATE = Failure(category=ErrorCategory.SNOWFLAKE_ERROR, duplicate_key=True)
EVENTS_MAX = 100  # rows per poll
STATUS, COUNT = 2, 4  # their places in a row of beats
Commit = Callable[[], int]


class Rule(StrEnum):
    """What holds at every step, whatever happens."""

    STEPS = "a run takes only the steps that it may take, and ends once"
    TERMS = "there is one term at a time, and one that is over does not come back"
    FENCE = "nothing of a term is written once its successor has begun"
    NUMBERS = "events have numbers without gaps, and each is there once"
    RESULT = "the result of a run is there once, as far as readers see, and is what the run says"
    ANSWER = "what a leader was told is so"
    TRUST = "whoever trusts his term holds the newest one"
    ONCE = "a leader who knows that he was heard does not repeat himself"
    OBEY = "no worker obeys an older term after a newer one"
    LOAD = "load begins once, not before it was asked for, and not after the end"
    PLAN = "a worker opens each window of the plan once"
    ALONE = "a worker that nobody leads ends"
    OUTAGE = "an outage of the control plane kills nobody"
    KNOWN_LOSS = "a run whose leader saw that a worker was lost is not completed"
    LOSS = "a run that lost a worker before it began to stop is not completed"
    COLLEAGUE = "a run is recovered only when none of its workers is alive"
    END = "every run and every worker comes to an end in time"


class Broken(StrEnum):
    """What can be broken on purpose, to see that it is noticed."""

    FENCING = "writes are taken from terms that are over"
    MARGIN = "a successor does not wait for statements under way"
    RENEWAL = "a term that is over can be renewed"
    PLACE = "a run is moved from wherever it is"
    NUMBERS = "neither the number nor the id of an event is a key"
    MEMORY = "a leader forgets what was carried out"
    LIVENESS = "time without an observation counts as silence"
    LOSS = "a leader misses that a worker was lost"
    ORPHANS = "workers do not look for whom they work"
    RECOVERY = "nobody ends the runs of the dead"


class Violation(AssertionError):
    def __init__(self, rule: Rule, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule


class Taken(Exception):
    """A key is there already."""


@dataclass(slots=True)
class Lease:
    epoch: int
    owner: str
    expires_s: float


@dataclass(frozen=True, slots=True)
class EventRow:
    number: int
    event_id: str
    epoch: int
    kind: str
    data: str
    created_s: float
    due_s: float | None


class Tables:
    """One run. Statements by the names they have in schemas/queries; times are seconds of the server's clock."""

    def __init__(self, workers: int, broken: Broken | None = None) -> None:
        self.now_s, self.broken = 0.0, broken
        self.leases: list[Lease] = []
        self.events: list[EventRow] = []
        self.beats: dict[str, list[Any]] = {}
        self.beaten_s: dict[str, float] = {}
        self.results: list[tuple[Any, ...]] = []
        self.status, self.phase = RunStatus.PREPARED, Phase.PREPARING
        self.reason: str | None = None
        self.verdict: str | None = None
        self.started_s: float | None = None
        self.stopping_s: float | None = None
        self.ended_s: float | None = None
        self.lease_epoch, self.next_sequence_id = 0, 1
        self.targets: str | None = None
        self.counted = (0, 0, 0)
        self.updated_s = 0.0
        self._workers = workers

    def fetch(self, query: Query, binds: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = getattr(self, f"_{query.name.replace('.', '_')}")(*binds)
        return rows

    def begin(self, query: Query, binds: tuple[Any, ...]) -> Commit:
        """A change: what is called at its commit gives the number of rows, or raises Taken."""
        commit: Commit = getattr(self, f"_{query.name.replace('.', '_')}")(*binds)
        return commit

    @property
    def lease_over_s(self) -> float | None:
        return self.now_s - max(lease.expires_s for lease in self.leases) if self.leases else None

    def _moment(self, second: float | None) -> datetime | None:
        return None if second is None else ZERO + timedelta(seconds=second)

    # --- RUN_LEASES ----------------------------------------------------------------------------------------------

    def _run_leases_newest(self, _: str) -> list[tuple[Any, ...]]:
        if not self.leases:
            return []
        lease = self.leases[-1]
        left_s = lease.expires_s - self.now_s
        if self.broken is Broken.MARGIN and left_s < 0:
            left_s -= TAKEOVER_MARGIN_S
        return [(lease.epoch, lease.owner, round(left_s * 1000))]

    def _run_leases_claim_first(self, _: str, owner: str, ttl_ms: int) -> Commit:
        expires_s = self.now_s + ttl_ms / 1000

        def commit() -> int:
            if self.leases:
                raise Taken
            self.leases.append(Lease(1, owner, expires_s))
            return 1

        return commit

    def _run_leases_claim_next(self, owner: str, ttl_ms: int, _: str, epoch: int, margin_ms: int) -> Commit:
        margin_s = 0.0 if self.broken is Broken.MARGIN else margin_ms / 1000
        free = self.leases[epoch - 1].expires_s < self.now_s + margin_s
        expires_s = self.now_s + ttl_ms / 1000

        def commit() -> int:
            if not free:
                return 0
            if len(self.leases) > epoch:
                raise Taken
            if self.leases[-1].expires_s > self.now_s:
                raise Violation(Rule.TERMS, f"term {epoch + 1} began before term {epoch} was over")
            self.leases.append(Lease(epoch + 1, owner, expires_s))
            return 1

        return commit

    def _run_leases_renew(self, ttl_ms: int, _: str, epoch: int, owner: str) -> Commit:
        begun_s = self.now_s

        def commit() -> int:
            lease = self.leases[epoch - 1]
            living = lease.expires_s > begun_s or self.broken is Broken.RENEWAL
            if lease.owner != owner or not living:
                return 0
            if len(self.leases) > epoch:
                raise Violation(Rule.TERMS, f"term {epoch} was renewed beside its successor")
            if lease.expires_s <= self.now_s - TAKEOVER_MARGIN_S:
                raise Violation(Rule.TERMS, f"term {epoch} came back to life")
            lease.expires_s = begun_s + ttl_ms / 1000
            return 1

        return commit

    _run_leases_release = _run_leases_renew

    def _holds(self, epoch: int, owner: str) -> bool:
        lease = self.leases[epoch - 1]
        return lease.owner == owner and (lease.expires_s > self.now_s or self.broken is Broken.FENCING)

    def _wrote(self, epoch: int, what: str) -> None:
        if epoch < len(self.leases):
            raise Violation(Rule.FENCE, f"{what} of term {epoch}, and term {len(self.leases)} has begun")

    # --- RUN_STATUS ----------------------------------------------------------------------------------------------

    def _run_status_read(self, key: str) -> list[tuple[Any, ...]]:
        is_at = (self.status, self.phase, self._moment(self.started_s), None, None, self._moment(self.ended_s))
        knows = (self._workers, *self.counted, 0, 0, 0.0, None, self.targets, self.next_sequence_id, self.lease_epoch)
        return [(key, "template", "name", *is_at, *knows, self.reason, self.verdict, None, ZERO, ZERO)]

    def _run_status_poll(self, _: str, __: str) -> list[tuple[Any, ...]]:
        over_s = None if self.broken is Broken.ORPHANS else self.lease_over_s
        over_ms = None if over_s is None else round(over_s * 1000)
        moment = self._moment(self.now_s)
        return [(self.status, self.phase, self.next_sequence_id, self.lease_epoch, self.targets, moment, over_ms)]

    def _run_status_server_time(self) -> list[tuple[Any, ...]]:
        return [(self._moment(self.now_s),)]

    def _run_status_config(self, _: str) -> list[tuple[Any, ...]]:
        return [("written by another version",)]  # whoever recovers ends it without a result of his own

    def _run_status_unfinished(self) -> list[tuple[Any, ...]]:
        if self.ended_s is not None:
            return []
        over_s = self.lease_over_s
        beaten_s = max(self.beaten_s.values(), default=None)
        ages = (over_s, None if beaten_s is None else self.now_s - beaten_s, self.now_s - self.updated_s)
        return [("run", self.status, *(None if age_s is None else round(age_s * 1000) for age_s in ages))]

    def _run_status_move(self, *binds: Any) -> Commit:
        to, to_phase, reason, verdict, epoch, started, _, _, _, _, ends, _, status, phase, _, _, owner = binds
        held = self._holds(epoch, owner)

        def commit() -> int:
            there = (self.status, self.phase, self.ended_s) == (status, phase, None)
            if not held or not (there or self.broken is Broken.PLACE):
                return 0
            self._wrote(epoch, f"a step to {to}")
            self._go(RunStatus(to), Phase(to_phase), reason)
            self.verdict, self.lease_epoch = verdict or self.verdict, epoch
            if started and self.started_s is None:
                self.started_s = self.now_s
            if ends:
                self.ended_s = self.now_s
            return 1

        return commit

    def _run_status_publish(self, *binds: Any) -> Commit:
        *counted, _, _, _, _, targets, number, epoch, _, _, _, owner = binds
        held = self._holds(epoch, owner)

        def commit() -> int:
            if not held or self.ended_s is not None:
                return 0
            self._wrote(epoch, "numbers")
            self.counted, self.targets, self.lease_epoch = tuple(counted), targets, epoch
            self.next_sequence_id = max(self.next_sequence_id, number)
            self.updated_s = self.now_s
            return 1

        return commit

    def _run_status_cancel(self, reason: str, _: str) -> Commit:
        def commit() -> int:
            if self.status not in (RunStatus.PREPARED, RunStatus.STARTING, RunStatus.RUNNING):
                return 0
            self._go(RunStatus.CANCELLING, self.phase, reason)
            return 1

        return commit

    def _go(self, to: RunStatus, to_phase: Phase, reason: str | None) -> None:
        allowed = to in STEPS[self.status] or (to is self.status and not to.is_terminal)
        if not allowed or PHASES.index(to_phase) < PHASES.index(self.phase):
            raise Violation(Rule.STEPS, f"{self.status}/{self.phase} became {to}/{to_phase}")
        if to is RunStatus.STOPPING and self.stopping_s is None:
            self.stopping_s = self.now_s
        if to.is_terminal and self.results and self.results[0][5] != to:
            raise Violation(Rule.RESULT, f"its result says {self.results[0][5]}, and it became {to}")
        self.status, self.phase, self.reason = to, to_phase, reason or self.reason
        self.updated_s = self.now_s

    # --- RUN_CONTROL_EVENTS --------------------------------------------------------------------------------------

    def _run_control_events_emit(self, *binds: Any) -> Commit:
        _, event_id, kind, data, _, epoch, owner = binds
        held, number = self._holds(epoch, owner), len(self.events) + 1
        moment = json.loads(data).get("effective_at")
        due_s = None if moment is None else (datetime.fromisoformat(moment) - ZERO).total_seconds()

        def commit() -> int:
            if not held:
                return 0
            there = any(event.event_id == event_id for event in self.events)
            if (there or number <= len(self.events)) and self.broken is not Broken.NUMBERS:
                raise Taken
            self._wrote(epoch, f"a {kind}")
            if there or number != len(self.events) + 1:
                raise Violation(Rule.NUMBERS, f"{number} followed {len(self.events)}, there before: {there}")
            self.events.append(EventRow(number, event_id, epoch, kind, data, self.now_s, due_s))
            return 1

        return commit

    def _run_control_events_find(self, event_id: str) -> list[tuple[Any, ...]]:
        return [
            (row.number, ZERO + timedelta(seconds=row.created_s), self._times_ms(row)[0])
            for row in self.events
            if row.event_id == event_id
        ]

    def _run_control_events_poll(self, _: str, after: int) -> list[tuple[Any, ...]]:
        rows = self.events[after : after + EVENTS_MAX]
        return [(row.number, row.event_id, row.epoch, row.kind, row.data, *self._times_ms(row)) for row in rows]

    def _times_ms(self, row: EventRow) -> tuple[int, int | None]:
        due_ms = None if row.due_s is None else round((row.due_s - self.now_s) * 1000)
        return round((self.now_s - row.created_s) * 1000), due_ms

    def is_said(self, kind: EventType) -> bool:
        return any(event.kind == kind for event in self.events)

    # --- WORKER_HEARTBEATS ---------------------------------------------------------------------------------------

    def _worker_heartbeats_register(self, _: str, worker_id: str, group: int, *who: Any) -> Commit:
        def commit() -> int:
            if worker_id in self.beats:
                raise Taken
            self.beats[worker_id] = [
                worker_id,
                group,
                WorkerStatus.STARTING,
                None,
                1,
                0,
                0,
                0,
                None,
                0,
                None,
                0,
                *who,
                None,
                None,
            ]
            self.beaten_s[worker_id] = self.now_s
            return 1

        return commit

    def _worker_heartbeats_beat(self, *binds: Any) -> Commit:
        status, phase, *said, cpu, memory, _, worker_id, host, pid, count = binds

        def commit() -> int:
            row = self.beats[worker_id]
            if row[12:14] != [host, pid] or row[COUNT] >= count:
                return 0
            row[2:12], row[16:18] = [status, phase, *said], [cpu, memory]
            self.beaten_s[worker_id] = self.now_s
            return 1

        return commit

    def _worker_heartbeats_replace(self, *binds: Any) -> Commit:
        *who, _, worker_id, _, count, silent_ms = binds

        def commit() -> int:
            row = self.beats[worker_id]
            silent = self.beaten_s[worker_id] < self.now_s + silent_ms / 1000
            if row[COUNT] != count or not (row[STATUS] in (WorkerStatus.DEAD, WorkerStatus.COMPLETED) or silent):
                return 0
            row[STATUS:] = [WorkerStatus.STARTING, None, 1, 0, 0, 0, None, 0, None, 0, *who, None, None]
            self.beaten_s[worker_id] = self.now_s
            return 1

        return commit

    def _worker_heartbeats_read(self, _: str) -> list[tuple[Any, ...]]:
        return [
            (*row[:4], round((self.now_s - self.beaten_s[worker_id]) * 1000), *row[4:])
            for worker_id, row in sorted(self.beats.items())
        ]

    # --- TEST_RESULTS: no key is enforced, readers take the first --------------------------------------------------

    def _test_results_append(self, *row: Any) -> Commit:
        def commit() -> int:
            self.results.append(row)
            return 1

        return commit

    def _test_results_find(self, _: str, __: str) -> list[tuple[Any, ...]]:
        return [(len(self.results),)]

    def _test_results_read(self, _: str) -> list[tuple[Any, ...]]:
        return [(*row[:7], ZERO, *row[7:]) for row in self.results[:1]]
