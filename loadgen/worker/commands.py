"""The commands of the leader to a worker, and when each takes effect. Pure, so that tests can try every message order.

The control thread adds the commands that it reads; the ramp thread takes out those that are due. Rules:

- events are taken in the order of their numbers, each once; events for other workers are skipped
- commands with an older epoch than the newest one seen are ignored: their leader has been replaced
- START may carry a plan, which cancels everything that was announced before it and has not begun. The times of its
  parts count from the time of START. A later command cancels earlier ones of its kind for the same time or later
- a target for the whole run stands for this worker's share of it
- STOP takes effect at once; later commands are ignored. If a worker has read the status of the run first, it still
  drains as STOP defines
- times are those of the server. They are converted to the clock of this process by all answers that carry the server's
  time, more exactly with each answer, until the first command of an event is due. From then on the other commands of
  the event keep their distances, so that no window is shortened
- RUN_STATUS repeats phase and targets, often before their events are read. They are applied, as the event would be,
  after RUN_STATUS has been ahead of the events for a while: targets by their numbers, a phase only if it is a later one
"""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

from loadgen.clock import ServerTime
from loadgen.control.tables.run_control_events import Event
from loadgen.control.tables.run_status import EVERY_WORKER, ConnectionTarget, RunPoll
from loadgen.model.event import SetPhase, SetRunTarget, SetWorkerTarget, Start, Stop, UnknownCommand
from loadgen.model.run import PHASES, Phase, RunStatus, worker_share
from loadgen.values import dataclass

_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000
_ENDING = (RunStatus.STOPPING, RunStatus.CANCELLING)
_WINDOWS = (Phase.WARMUP, Phase.MEASUREMENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class DueCommand:
    """A command, and the time `at_ns` at which it takes effect."""

    at_ns: int
    sequence_id: int
    command: SetPhase | SetWorkerTarget
    epoch: int = 0  # of the lease that announced it
    uncertain_ns: int = 0  # the largest error of `at_ns`
    moment: datetime | None = None  # the time by the server's clock; None: not known, so `at_ns` is not corrected


class _Due(NamedTuple):
    """When a command takes effect, as in DueCommand."""

    at_ns: int
    uncertain_ns: int = 0
    moment: datetime | None = None

    def after(self, later_ms: int) -> _Due:
        moment = None if self.moment is None else self.moment + timedelta(milliseconds=later_ms)
        return _Due(self.at_ns + later_ms * _NS_PER_MS, self.uncertain_ns, moment)


class CommandQueue:
    """The commands for one worker. Any thread may call it."""

    def __init__(
        self,
        worker_id: str,
        worker_group_id: int,
        workers: int,
        *,
        drain_s: float,
        drain_interrupt_s: float,
        events_timeout_s: float,
    ) -> None:
        """`drain_s`, `drain_interrupt_s`: time limits of the drain before STOP is read, after the plan and after a
        user's request. `events_timeout_s`: how long RUN_STATUS must be ahead of the events before it is applied."""
        self._me = (worker_id, worker_group_id)
        self._workers = workers
        self._drain_s, self._drain_interrupt_s = drain_s, drain_interrupt_s
        self._events_timeout_ns = round(events_timeout_s * _NS_PER_S)
        self._behind_since_ns: int | None = None
        self._lock = threading.Lock()  # guards everything here; attributes without an underscore may be read without it
        self._pending: list[DueCommand] = []  # in the order in which they are due
        self._server = ServerTime()
        self._begun: set[int] = set()  # events of which a command was taken out
        self._target: int | None = None  # the newest target, applied or pending
        self._target_sequence = 0  # number of its event
        self._target_applied = 0  # number of the event of the newest applied target
        self._phase_ahead = Phase.PREPARING  # the latest phase that was begun or announced
        self.epoch = 0  # of the newest lease seen
        self.last_sequence_id = 0
        self.started = False
        self.has_plan = False  # START contained the plan, and so when the first window opens
        self.stop: Stop | None = None

    # --- received commands -------------------------------------------------------------------------------------------

    def receive(self, event: Event, now_ns: int) -> str | None:
        """Add the commands of an event. Returns a sentence for the log if the event was ignored or unknown."""
        with self._lock:
            if event.sequence_id <= self.last_sequence_id:
                return None
            self.last_sequence_id = event.sequence_id
            if event.epoch < self.epoch:
                return f"event {event.sequence_id} has epoch {event.epoch}, which is older than {self.epoch}: ignored"
            self.epoch = event.epoch
            command = event.command
            if isinstance(command, UnknownCommand):
                return f"event {event.sequence_id} ({command.event_type[:50]}) was not understood: {command.why[:200]}"
            if not event.address.includes(*self._me):
                return None
            due = self._due(event.due_in_ms, event.server_time, now_ns)
            if isinstance(command, Start):
                self._start(command, event.sequence_id, due)
            elif isinstance(command, Stop):
                self._stop(command)
            else:
                self._announce(self._mine(command), event.sequence_id, due)
            return None

    def note_time(self, server_time: datetime, sent_ns: int, answered_ns: int) -> None:
        """Note an answer with the server's time: the times of pending commands become more exact."""
        with self._lock:
            self._server.note(server_time, sent_ns, answered_ns)
            self._pending = sorted(map(self._dated, self._pending), key=_in_order)

    def notice(self, event: Event) -> None:
        """Before START: note START and STOP without taking the event."""
        with self._lock:
            if event.epoch < self.epoch or not event.address.includes(*self._me):
                return
            if isinstance(event.command, Start):
                self.started = True
            elif isinstance(event.command, Stop):
                self._stop(event.command)

    def reconcile(self, poll: RunPoll, now_ns: int) -> str | None:
        """Compare with RUN_STATUS. Returns a sentence for the log if a command was missed, which is applied now."""
        with self._lock:
            if poll.status in _ENDING or poll.status.is_terminal:
                if self.stop is None:
                    drain_s = self._drain_interrupt_s if poll.status is RunStatus.CANCELLING else self._drain_s
                    self._stop(Stop(reason=f"the run is {poll.status}", drain_timeout_s=drain_s))
                return None
            if poll.lease_epoch < self.epoch or poll.status is not RunStatus.RUNNING:
                return None
            self.started = True
            missed = self._missed(poll, now_ns)
            if not missed:
                self._behind_since_ns = None
                return None
            # The leader writes the row and the event in two statements: usually the event is read a moment later.
            if self._behind_since_ns is None:
                self._behind_since_ns = now_ns
            if now_ns - self._behind_since_ns < self._events_timeout_ns:
                return None
            self._behind_since_ns = None
            for item in missed:
                due = _Due(item.at_ns, item.uncertain_ns, item.moment)
                self._announce(item.command, item.sequence_id, due)
            return "found in RUN_STATUS, but in no event: " + ", ".join(str(one.command) for one in missed)

    def began(self, phase: Phase) -> None:
        """The worker has opened its first window, in this phase."""
        with self._lock:
            self._note_phase(phase)

    # --- due commands ------------------------------------------------------------------------------------------------

    def take_due(self, now_ns: int) -> list[DueCommand]:
        """Take out the commands that are due, in order."""
        with self._lock:
            due = [item for item in self._pending if item.at_ns <= now_ns]
            self._pending = self._pending[len(due) :]
            self._begun.update(item.sequence_id for item in due)
            targets = (item.sequence_id for item in due if isinstance(item.command, SetWorkerTarget))
            self._target_applied = max(self._target_applied, *targets, 0)
            return due

    def next_ns(self) -> int | None:
        """When the next command is due. None: there is no pending command."""
        with self._lock:
            return self._pending[0].at_ns if self._pending else None

    def next_phase(self) -> tuple[int, Phase] | None:
        """The next announced phase and its time, which may have passed. None: no phase is announced."""
        with self._lock:
            for item in self._pending:
                if isinstance(item.command, SetPhase):
                    return item.at_ns, item.command.phase
            return None

    def targets(self) -> list[tuple[int, SetWorkerTarget]]:
        """The announced targets and their times, in order."""
        with self._lock:
            return [(item.at_ns, item.command) for item in self._pending if isinstance(item.command, SetWorkerTarget)]

    # --- under the lock ----------------------------------------------------------------------------------------------

    def _start(self, start: Start, sequence_id: int, zero: _Due) -> None:
        self.started = True
        if start.plan and self.stop is None:
            self.has_plan = True
            self._pending = [item for item in self._pending if item.sequence_id > sequence_id]
            for part in start.plan:
                self._put(self._mine(part.command), sequence_id, zero.after(part.at_ms))

    def _mine(self, command: SetPhase | SetWorkerTarget | SetRunTarget) -> SetPhase | SetWorkerTarget:
        """The command for this worker: its share of a target of the run."""
        return command.share_of(self._me[1], self._workers) if isinstance(command, SetRunTarget) else command

    def _due(self, due_in_ms: int | None, read_at: datetime | None, now_ns: int) -> _Due:
        """The time that is `due_in_ms` after the server's time in an answer that has just arrived."""
        if due_in_ms is None:
            return _Due(now_ns)
        at = None if read_at is None else read_at + timedelta(milliseconds=due_in_ms)
        known = None if at is None else self._server.moment(at)
        return _Due(now_ns + due_in_ms * _NS_PER_MS) if known is None else _Due(*known, at)

    def _dated(self, item: DueCommand) -> DueCommand:
        """The command with a more exact time, unless a command of the same event has begun."""
        known = None if item.moment is None or item.sequence_id in self._begun else self._server.moment(item.moment)
        return item if known is None else replace(item, at_ns=known.at_ns, uncertain_ns=known.uncertain_ns)

    def _announce(self, command: SetPhase | SetWorkerTarget, sequence_id: int, due: _Due) -> None:
        old = isinstance(command, SetWorkerTarget) and self._is_old(sequence_id, due.at_ns)
        if self.stop is None and not old:
            self._put(command, sequence_id, due)

    def _put(self, command: SetPhase | SetWorkerTarget, sequence_id: int, due: _Due) -> None:
        if isinstance(command, SetPhase):
            self._note_phase(command.phase)
        else:
            self._target_sequence = max(self._target_sequence, sequence_id)
            self._target = command.target_connections
        kept = [
            item
            for item in self._pending
            if type(item.command) is not type(command)
            or (item.at_ns < due.at_ns and item.epoch == self.epoch)
            or item.sequence_id >= sequence_id
        ]
        new = DueCommand(**due._asdict(), sequence_id=sequence_id, command=command, epoch=self.epoch)
        self._pending = sorted([*kept, new], key=_in_order)

    def _is_old(self, sequence_id: int, at_ns: int) -> bool:
        """Whether this target, or a later one that cancels it, was taken from RUN_STATUS before its event was read."""
        if not sequence_id:
            return False
        return sequence_id <= self._target_applied or any(
            item.sequence_id == sequence_id or (item.sequence_id > sequence_id and item.at_ns <= at_ns)
            for item in self._pending
            if isinstance(item.command, SetWorkerTarget)
        )

    def _missed(self, poll: RunPoll, now_ns: int) -> list[DueCommand]:
        """The commands that RUN_STATUS implies and that no event has brought."""
        missed = []
        target = self._target_in_status(poll)
        if target is not None and self._is_newer(target):
            command = SetWorkerTarget(
                target_connections=target.target_connections, step_id=target.step_id, ramp_s=target.ramp_s
            )
            due = self._due(_until_ms(target.effective_at, poll.server_time), poll.server_time, now_ns)
            missed.append(DueCommand(**due._asdict(), sequence_id=target.sequence_id or 0, command=command))
        # A worker begins in the current phase of the run, and continues from there.
        begun = self._phase_ahead is not Phase.PREPARING
        if begun and poll.phase in _WINDOWS and PHASES.index(poll.phase) > PHASES.index(self._phase_ahead):
            missed.append(DueCommand(at_ns=now_ns, sequence_id=0, command=SetPhase(phase=poll.phase)))
        return missed

    def _target_in_status(self, poll: RunPoll) -> ConnectionTarget | None:
        """This worker's target in RUN_STATUS: its own, or its share of the target of the run, whichever is newer."""
        own, total = poll.targets.get(self._me[0]), poll.targets.get(EVERY_WORKER)
        if total is None or (own is not None and (own.sequence_id or 0) > (total.sequence_id or 0)):
            return own
        return replace(total, target_connections=worker_share(total.target_connections, self._me[1], self._workers))

    def _is_newer(self, target: ConnectionTarget) -> bool:
        """Whether its event is later than all events read; without a number, whether the target differs."""
        if target.sequence_id is None:
            return target.target_connections != self._target
        return target.sequence_id > self._target_sequence

    def _note_phase(self, phase: Phase) -> None:
        self._phase_ahead = max(self._phase_ahead, phase, key=PHASES.index)

    def _stop(self, stop: Stop) -> None:
        self.stop = stop
        self._pending.clear()


def _in_order(item: DueCommand) -> tuple[int, int]:
    return item.at_ns, item.sequence_id


def _until_ms(effective_at: str | None, server_time: datetime) -> int:
    """Milliseconds until the time. As in the query of events, an unreadable time counts as now."""
    try:
        moment = datetime.fromisoformat(effective_at) if effective_at else server_time
        return round((moment.replace(tzinfo=None) - server_time).total_seconds() * 1000)
    except ValueError:
        return 0
