"""The control plane in memory: the statements of schemas/queries, each by its name, with their guards and keys.

A statement is executed in two moments, as in READ COMMITTED: it begins, and sees the tables as they are; it commits,
and the row that it changes is read again. Between the two are up to 8 s, after which the server ends it. Every write is
checked against rules that are independent of the guards, so a missing guard is detected.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from loadgen.control.session import NamedQuery
from loadgen.control.tables.run_leases import TAKEOVER_MARGIN_S
from loadgen.model.event import EventType
from loadgen.model.run import PHASES, RUN_TRANSITIONS, Phase, RunStatus, WorkerStatus
from tests.unit.simulation.rules import Mutation, Rule, Violation
from tests.unit.simulation.standard_tables import ZERO, Commit, StandardTables

EVENTS_MAX = 100  # rows per poll
STATUS, COUNT = 2, 4  # their places in a row of beats


class Taken(Exception):
    """The key exists already."""


@dataclass(slots=True)
class Lease:
    epoch: int
    owner: str
    expires_s: float
    claimed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EventRow:
    number: int
    event_id: str
    epoch: int
    kind: str
    data: str
    created_s: float
    due_s: float | None


CANCELLABLE = (RunStatus.PREPARED, RunStatus.STARTING, RunStatus.RUNNING)


class Tables(StandardTables):
    """The tables of one run. Statements have the names of schemas/queries; times are seconds of the server's clock."""

    def __init__(self, clock: Callable[[], float], mutation: Mutation | None = None) -> None:
        super().__init__(clock)
        self.mutation = mutation
        self.leases: list[Lease] = []
        self.replacing: defaultdict[str, list[Lease]] = defaultdict(list)
        self.wish: str | None = None  # the reason of a user who requested the end
        self.events: list[EventRow] = []
        self.beats: dict[str, list[Any]] = {}
        self.beaten_s: dict[str, float] = {}
        self.longest_silence_s: defaultdict[str, float] = defaultdict(float)
        self.created: tuple[Any, ...] = ()
        self.enrichment: str | None = None
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

    def fetch(self, query: NamedQuery, binds: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = getattr(self, f"_{query.name.replace('.', '_')}")(*binds)
        return rows

    def begin(self, query: NamedQuery, binds: tuple[Any, ...]) -> Commit:
        """A change: its commit returns the number of rows, or raises Taken."""
        commit: Commit = getattr(self, f"_{query.name.replace('.', '_')}")(*binds)
        return commit

    @property
    def lease_over_s(self) -> float | None:
        return self.now_s - max(lease.expires_s for lease in self.leases) if self.leases else None

    def begin_many(self, query: NamedQuery, rows: Sequence[Sequence[Any]]) -> Commit:
        """The same for an array-bound INSERT: all rows or none."""
        commits = [self.begin(query, tuple(row)) for row in rows]
        return lambda: sum(commit() for commit in commits)

    # --- RUN_LEASES ----------------------------------------------------------------------------------------------

    def _leases_of(self, key: str) -> list[Lease]:
        """The lease of the run; or, with the name of a worker, the lease to replace that worker."""
        return self.replacing[key] if "/" in key else self.leases

    def _run_leases_newest(self, key: str) -> list[tuple[Any, ...]]:
        leases = self._leases_of(key)
        if not leases:
            return []
        lease = leases[-1]
        left_s = lease.expires_s - self.now_s
        if self.mutation is Mutation.MARGIN and left_s < 0:
            left_s -= TAKEOVER_MARGIN_S
        return [(lease.epoch, lease.owner, round(left_s * 1000))]

    def _run_leases_claim_first(self, key: str, owner: str, ttl_ms: int) -> Commit:
        leases, expires_s = self._leases_of(key), self.now_s + ttl_ms / 1000

        def commit() -> int:
            if leases:
                raise Taken
            leases.append(Lease(1, owner, expires_s, self.now_s))
            return 1

        return commit

    def _run_leases_claim_next(self, owner: str, ttl_ms: int, key: str, epoch: int, margin_ms: int) -> Commit:
        leases = self._leases_of(key)
        margin_s = 0.0 if self.mutation is Mutation.MARGIN else margin_ms / 1000
        free = leases[epoch - 1].expires_s < self.now_s + margin_s
        expires_s = self.now_s + ttl_ms / 1000

        def commit() -> int:
            if not free:
                return 0
            if len(leases) > epoch:
                raise Taken
            if leases[-1].expires_s > self.now_s:
                raise Violation(Rule.TERMS, f"term {epoch + 1} began before term {epoch} was over")
            leases.append(Lease(epoch + 1, owner, expires_s, self.now_s))
            return 1

        return commit

    def _run_leases_renew(self, ttl_ms: int, key: str, epoch: int, owner: str) -> Commit:
        leases, begun_s = self._leases_of(key), self.now_s

        def commit() -> int:
            lease = leases[epoch - 1]
            living = lease.expires_s > begun_s or self.mutation is Mutation.RENEWAL
            if lease.owner != owner or not living:
                return 0
            if len(leases) > epoch:
                raise Violation(Rule.TERMS, f"term {epoch} was renewed beside its successor")
            if lease.expires_s <= self.now_s - TAKEOVER_MARGIN_S:
                raise Violation(Rule.TERMS, f"term {epoch} came back to life")
            lease.expires_s = begun_s + ttl_ms / 1000
            return 1

        return commit

    _run_leases_release = _run_leases_renew

    def _holds(self, epoch: int, owner: str) -> bool:
        lease = self.leases[epoch - 1]
        return lease.owner == owner and (lease.expires_s > self.now_s or self.mutation is Mutation.FENCING)

    def _wrote(self, epoch: int, what: str) -> None:
        if epoch < len(self.leases):
            raise Violation(Rule.FENCE, f"{what} of term {epoch}, and term {len(self.leases)} has begun")

    # --- RUN_STATUS ----------------------------------------------------------------------------------------------

    def _run_status_create(self, *binds: Any) -> Commit:
        def commit() -> int:
            if self.created:
                raise Taken
            self.created = binds
            return 1

        return commit

    def _run_status_created(self, *binds: Any) -> list[tuple[Any, ...]]:
        run_id, template_id, config = binds
        return [
            (int(bool(self.created) and (self.created[0], *self.created[2::2][:2]) == (run_id, template_id, config)),)
        ]

    def _run_status_read(self, _: str, number: int, key: str) -> list[tuple[Any, ...]]:
        if not self.created:
            return []
        _, _, template_id, name, _, workers = self.created
        is_at = (self.seen_status, self.phase, self._moment(self.started_s), None, None, self._moment(self.ended_s))
        knows = (workers, *self.counted, 0, 0, 0.0, None, self.targets, self.next_sequence_id, self.lease_epoch)
        said = (self.reason if self.seen_status is self.status else self.wish, self.verdict, self.enrichment)
        event_at = next((self._moment(row.created_s) for row in self.events if row.number == number), None)
        last = (ZERO, self._moment(self.updated_s), self.status, self._moment(self.now_s), event_at)
        return [(key, template_id, name, *is_at, *knows, *said, *last)]

    @property
    def seen_status(self) -> RunStatus:
        return RunStatus.CANCELLING if self.wish is not None and self.status in CANCELLABLE else self.status

    def _run_status_poll(self, _: str, __: str) -> list[tuple[Any, ...]]:
        over_s = self.lease_over_s
        over_ms = None if over_s is None else round(over_s * 1000)
        moment = self._moment(self.now_s)
        return [(self.seen_status, self.phase, self.next_sequence_id, self.lease_epoch, self.targets, moment, over_ms)]

    def _run_status_server_time(self) -> list[tuple[Any, ...]]:
        return [(self._moment(self.now_s),)]

    def _run_status_config(self, _: str) -> list[tuple[Any, ...]]:
        return [(self.created[4],)] if self.created else []

    def _run_status_set_enrichment(self, status: str, _: str) -> Commit:
        def commit() -> int:
            self.enrichment = status
            return 1

        return commit

    def _run_status_unfinished(self) -> list[tuple[Any, ...]]:
        if self.ended_s is not None or not self.created:
            return []
        over_s = self.lease_over_s
        beaten_s = max(self.beaten_s.values(), default=None)
        ages = (over_s, None if beaten_s is None else self.now_s - beaten_s, self.now_s - self.updated_s)
        return [(self.created[0], *(None if age_s is None else round(age_s * 1000) for age_s in ages))]

    def _run_status_move(self, *binds: Any) -> Commit:
        to, to_phase, reason, verdict, epoch, started, _, _, _, _, ends, _, status, _, phase, _, _, owner = binds
        held = self._holds(epoch, owner)

        def commit() -> int:
            wished = status == RunStatus.CANCELLING and self.status in CANCELLABLE
            there = (self.phase, self.ended_s) == (phase, None) and (self.status == status or wished)
            if not held or not there:
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
        active = self.status in CANCELLABLE

        def commit() -> int:
            if active and self.wish is not None:
                raise Taken
            self.wish = reason if active else self.wish
            return int(active)

        return commit

    def _go(self, to: RunStatus, to_phase: Phase, reason: str | None) -> None:
        allowed = to in RUN_TRANSITIONS[self.status] or (to is self.status and not to.is_terminal)
        if not allowed or PHASES.index(to_phase) < PHASES.index(self.phase):
            raise Violation(Rule.STEPS, f"{self.status}/{self.phase} became {to}/{to_phase}")
        if to is RunStatus.STOPPING and self.stopping_s is None:
            self.stopping_s = self.now_s
        result = self.run_result()
        if to.is_terminal and result is not None and result[5] != to:
            raise Violation(Rule.RESULT, f"its result says {result[5]}, and it became {to}")
        self.status, self.phase, self.reason = to, to_phase, reason or self.reason
        self.updated_s = self.now_s

    # --- RUN_CONTROL_EVENTS --------------------------------------------------------------------------------------

    def _run_control_events_emit(self, *binds: Any) -> Commit:
        number, event_id, kind, data, _, epoch, owner = binds
        held = self._holds(epoch, owner)
        created_s = self.now_s  # SYSDATE() of the statement, not of its commit
        moment = json.loads(data).get("effective_at")
        due_s = None if moment is None else (datetime.fromisoformat(moment) - ZERO).total_seconds()

        def commit() -> int:
            if not held:
                return 0
            there = any(event.event_id == event_id for event in self.events)
            if (there or number <= len(self.events)) and self.mutation is not Mutation.NUMBERS:
                raise Taken
            self._wrote(epoch, f"a {kind}")
            again = any((event.epoch, event.kind) == (epoch, kind) for event in self.events)
            if again and kind in (EventType.START, EventType.STOP):
                raise Violation(Rule.ONCE, f"term {epoch} said {kind} again")
            if there or number != len(self.events) + 1:
                raise Violation(Rule.NUMBERS, f"{number} followed {len(self.events)}, there before: {there}")
            self.events.append(EventRow(number, event_id, epoch, kind, data, created_s, due_s))
            return 1

        return commit

    def _run_control_events_find(self, event_id: str) -> list[tuple[Any, ...]]:
        return [(row.number,) for row in self.events if row.event_id == event_id]

    def _run_control_events_last(self, _: str) -> list[tuple[Any, ...]]:
        return [(len(self.events) or None,)]

    def _run_control_events_poll(self, _: str, after: int) -> list[tuple[Any, ...]]:
        rows, now = self.events[after : after + EVENTS_MAX], self._moment(self.now_s)
        return [(row.number, row.event_id, row.epoch, row.kind, row.data, *self._times_ms(row), now) for row in rows]

    def _times_ms(self, row: EventRow) -> tuple[int, int | None]:
        due_ms = None if row.due_s is None else round((row.due_s - self.now_s) * 1000)
        return round((self.now_s - row.created_s) * 1000), due_ms

    def _run_control_events_history(self, _: str) -> list[tuple[Any, ...]]:
        return [(row.number, row.kind, row.data, self._moment(row.created_s)) for row in self.events]

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
            silent_s = self.now_s - self.beaten_s[worker_id]
            self.longest_silence_s[worker_id] = max(self.longest_silence_s[worker_id], silent_s)
            self.beaten_s[worker_id] = self.now_s
            return 1

        return commit

    def _worker_heartbeats_replace(self, *binds: Any) -> Commit:
        *who, _, worker_id, _, count, silent_ms, key, epoch, owner = binds
        lease = self.replacing[key][epoch - 1]
        held = lease.owner == owner and lease.expires_s > self.now_s

        def commit() -> int:
            row = self.beats[worker_id]
            silent = self.beaten_s[worker_id] < self.now_s + silent_ms / 1000
            over = silent or row[STATUS] in (WorkerStatus.DEAD, WorkerStatus.COMPLETED)
            if not held or row[COUNT] != count or not over:
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
