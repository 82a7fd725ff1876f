"""Publishes events for workers, numbered and each once, and the targets that RUN_STATUS repeats."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import datetime, timedelta

from loadgen.clock import Clock
from loadgen.control.session import ControlSession
from loadgen.control.tables import run_control_events, run_status
from loadgen.control.tables.run_control_events import Event, NewEvent, effective_time
from loadgen.control.tables.run_status import EVERY_WORKER, ConnectionTarget, Run, read_targets
from loadgen.log import event
from loadgen.model.event import KnownCommand, PlannedCommand, SetPhase, SetRunTarget, Start, Stop, encode_command
from loadgen.model.run import Phase
from loadgen.results.run_snapshot import WorkerSnapshot
from loadgen.rules.plan import RunPlan
from loadgen.scenario.settings import TimingSettings
from loadgen.snowflake.session import RetryPolicy
from loadgen.snowflake.settings import CONTROL_STATEMENT_S
from loadgen.units import NS_PER_S
from loadgen.values import dataclass
from orchestrator.leadership import Leadership

# Before a worker has read an event: the insertion, whose answer may be late, the update of RUN_STATUS, the worker's
# poll, and the query of events.
STATEMENTS_PER_ANNOUNCEMENT = 4
# Slower statements are exceptions: announcements do not allow for them. A step that is announced too late begins later,
# but a plan is cut, so START allows for every statement that succeeds.
LATENCY_MAX_S = 2.0
START_LATENCY_MAX_S = float(CONTROL_STATEMENT_S)


def lead_ms(timing: TimingSettings, latency_s: float, most_s: float = LATENCY_MAX_S) -> int:
    """How long ahead a change is announced, so that all workers switch together."""
    waits_s = timing.status_poll_s + STATEMENTS_PER_ANNOUNCEMENT * min(latency_s, most_s)
    return round((timing.announce_s + waits_s) * 1000)


def start_event(plan: RunPlan, workers: int, lead_ms: int) -> NewEvent:
    """START with the whole plan. A target precedes the window that begins at the same moment."""
    parts = [
        _planned(target.at_s, SetRunTarget(total_connections=target.connections, ramp_s=target.ramp_s, reason="plan"))
        for target in plan.targets
    ]
    if plan.first_phase is Phase.WARMUP:
        parts.append(_planned(0.0, SetPhase(phase=Phase.WARMUP)))
    for window in plan.windows:
        command = SetPhase(phase=Phase.MEASUREMENT, step_id=window.step_id, duration_ms=window.duration_s * 1000)
        parts.append(_planned(window.starts_s, command))
    if not plan.windows:  # find_max: the steps are announced one by one
        parts.append(_planned(plan.measures_s, SetPhase(phase=Phase.MEASUREMENT)))
    parts.sort(key=lambda part: part.at_ms)
    return NewEvent(command=Start(expected_workers=workers, lead_ms=lead_ms, plan=tuple(parts)))


def step_event(step_id: int, connections: int, lead_ms: int) -> NewEvent:
    """The next step of a search: one event for all workers. Each worker computes its share."""
    command = SetRunTarget(total_connections=connections, step_id=step_id, lead_ms=lead_ms, reason="find_max")
    return NewEvent(command=command)


def search_end_event(lead_ms: int) -> NewEvent:
    """The end of a search: all workers close their last window together. Without it each would measure until it has
    read STOP."""
    return NewEvent(command=SetPhase(phase=Phase.COOLDOWN, lead_ms=lead_ms))


def _planned(at_s: float, command: SetPhase | SetRunTarget) -> PlannedCommand:
    return PlannedCommand(at_ms=round(at_s * 1000), command=command)


log = logging.getLogger(__name__)

LATENCIES_KEPT = 5  # of the newest statements: the slowest counts as the latency of the control plane


@dataclass(slots=True, kw_only=True)
class Announcement:
    """An event that every worker must acknowledge by LAST_SEQUENCE_ID in its heartbeats."""

    sequence_id: int
    what: str
    within_s: float
    overdue_s: float  # on the monotonic clock of this process
    named: set[str] = field(default_factory=set)  # workers that were reported

    def late(self, workers: Sequence[WorkerSnapshot], now_s: float) -> list[str]:
        """A sentence for each worker that has not acknowledged in time. Each worker is reported once."""
        new = [one.worker_id for one in workers if self._is_late(one, now_s) and one.worker_id not in self.named]
        self.named.update(new)
        return [f"{worker_id} did not acknowledge {self.what} within {self.within_s:.1f} s" for worker_id in new]

    def _is_late(self, worker: WorkerSnapshot, now_s: float) -> bool:
        """Judged only by a heartbeat after the time limit: worker_health decides about silent workers."""
        if worker.row is None or worker.is_over:
            return False
        return worker.row.beat.last_sequence_id < self.sequence_id and now_s - worker.silent_s >= self.overdue_s


class EventPublisher:
    """Belongs to the thread of the leader."""

    def __init__(
        self,
        session: ControlSession,
        retries: RetryPolicy,
        leadership: Leadership,
        timing: TimingSettings,
        clock: Clock,
    ) -> None:
        self._session, self._retries, self._leadership = session, retries, leadership
        self._timing, self._clock = timing, clock
        self._targets: dict[str, ConnectionTarget] = {}
        self._start: NewEvent | None = None  # START as it was published, or sent without an answer
        self._step: NewEvent | None = None  # the last step of a search, in the same way
        self._search_end: NewEvent | None = None  # the end of a search, in the same way
        self.closes_s: float | None = None  # when workers close the last window of a search, by this process's clock
        self._announced: Announcement | None = None  # the newest: acknowledging it acknowledges all earlier ones
        self._awaiting_insert_time: tuple[int, Start | SetRunTarget] | None = (
            None  # its time of insertion has not been read
        )
        self._server_clock: tuple[datetime, float] | None = None  # server time, and the monotonic time of that answer
        self.zero: datetime | None = None  # when the plan begins, by the server's clock; None: not known yet
        self.zero_s: float | None = None  # the same moment on the monotonic clock of this process
        self.latencies_s: deque[float] = deque(maxlen=LATENCIES_KEPT)  # of control statements
        self.next_sequence_id = 1

    @property
    def targets(self) -> Mapping[str, ConnectionTarget]:
        """The targets that RUN_STATUS repeats, for workers that miss an event."""
        return dict(self._targets)

    @property
    def lead_ms(self) -> int:
        """How long ahead a change has to be announced at the current latency of the control plane."""
        return lead_ms(self._timing, self._latency_s)

    @property
    def _latency_s(self) -> float:
        """The latency of the control plane."""
        return max(self.latencies_s, default=0.0)

    def resume(self, run: Run) -> list[Event]:
        """Continue after another leader. Returns the events that it has published."""
        self._targets = dict(read_targets(run.worker_targets))
        published = self.read_published()
        self.next_sequence_id = max(run.next_sequence_id, published[-1].sequence_id + 1 if published else 1)
        return published

    def start(self, plan: RunPlan, workers: int) -> None:
        """START: the plan begins `lead_ms` after the server has inserted the event."""
        if not self._leadership.is_first:  # another leader may have published START: workers follow that event
            self.read_published()
        if self.zero is not None:
            return
        if self._start is None:  # otherwise it may be stored: publishing the same event again changes nothing
            self._start = start_event(plan, workers, lead_ms(self._timing, self._latency_s, START_LATENCY_MAX_S))
        self.publish(self._start)

    def step(self, step_id: int, connections: int) -> None:
        """The next step of a search. After a failure the same event is published again."""
        before = None if self._step is None else self._step.command
        if not isinstance(before, SetRunTarget) or before.step_id != step_id:
            self._step = step_event(step_id, connections, self.lead_ms)
        assert self._step is not None
        self.publish(self._step)

    def end_search(self) -> None:
        """Close the last window of a search. After a failure the same event is published again."""
        self._search_end = self._search_end or search_end_event(self.lead_ms)
        self.publish(self._search_end)
        ahead_ms = run_control_events.lead_ms(self._search_end.command) or 0
        self.closes_s = self._now_s() + ahead_ms / 1000  # at the latest, because it counts from the insertion

    def stop(self, reason: str, drain_s: float) -> None:
        self.publish(NewEvent(command=Stop(reason=reason, drain_timeout_s=drain_s)))

    @property
    def undated_event(self) -> int:
        """Number of the event whose time of insertion must be read; 0: none."""
        return 0 if self._awaiting_insert_time is None else self._awaiting_insert_time[0]

    def note_run(self, run: Run) -> None:
        """Take the server's time, and the time of insertion of that event, from a row that was just read."""
        now_s = self._now_s()
        if run.server_time is None:
            return
        self._server_clock = (run.server_time, now_s)
        if self._awaiting_insert_time is None or run.event_at is None:
            return
        (number, command), self._awaiting_insert_time = self._awaiting_insert_time, None
        moment = effective_time(command, run.event_at)
        if isinstance(command, Start):
            self.zero = moment
            self.zero_s = now_s + (moment - run.server_time).total_seconds()
            return
        target = ConnectionTarget(
            target_connections=command.total_connections,
            sequence_id=number,
            step_id=command.step_id,
            ramp_s=command.ramp_s,
            effective_at=moment.isoformat(timespec="milliseconds"),
        )
        self._targets = {EVERY_WORKER: target}

    @property
    def server_now(self) -> datetime:
        """The server's time: as it was last read, plus the time since then by this process's clock."""
        assert self._server_clock is not None, "the run was not read yet"
        moment, read_s = self._server_clock
        return moment + timedelta(seconds=self._now_s() - read_s)

    def late_acknowledgements(self, workers: Sequence[WorkerSnapshot]) -> list[str]:
        """A sentence for each worker that has not acknowledged the newest announcement in time, once."""
        return [] if self._announced is None else self._announced.late(workers, self._now_s())

    def read_published(self) -> list[Event]:
        """Read all events of the run. START determines when the plan begins."""
        published = list(run_control_events.catch_up(self._session, self._leadership.term.key, 0))
        read_s = self._now_s()
        starts = [one for one in published if isinstance(one.command, Start)]
        if starts:
            due_in_ms = -starts[-1].age_ms if starts[-1].due_in_ms is None else starts[-1].due_in_ms
            zero_s = read_s + due_in_ms / 1000
            server_time = run_status.server_time(self._session)
            self.zero = server_time + timedelta(seconds=zero_s - self._now_s())
            self.zero_s = zero_s
        return published

    def publish(self, new: NewEvent) -> None:
        """Append an event. After a failure the same event can be published again: it is stored once."""
        term, command = self._leadership.term, new.command
        number = run_control_events.emit(self._session, self._retries, term, new, self.next_sequence_id)
        self.next_sequence_id = number + 1
        if isinstance(command, (Start, SetRunTarget)):
            self._awaiting_insert_time = (number, command)
        self._await_acknowledgements(command, number)
        event(log, logging.INFO, "event_published", number=number, what=command)

    def _await_acknowledgements(self, command: KnownCommand, number: int) -> None:
        """A worker reads the event before it takes effect; its next heartbeat acknowledges it."""
        ahead_s = (run_control_events.lead_ms(command) or 0) / 1000
        within_s = ahead_s + self._timing.status_poll_s + 2 * self._timing.heartbeat_s + self._timing.tick_s
        self._announced = Announcement(
            sequence_id=number,
            what=f"event {number} ({encode_command(command)[0]})",
            within_s=within_s,
            overdue_s=self._now_s() + within_s,
        )

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / NS_PER_S
