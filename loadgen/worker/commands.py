"""What a worker has been told to do, and when: pure, so that every order of messages can be tried.

The control thread puts in what it reads; the thread that conducts the clients takes out what is due. Rules:

- events are taken in the order of their numbers, each once; those for others are passed over
- commands of a lease older than the newest one seen are ignored: their author has been replaced
- START may carry a plan, which takes back all that was announced before it and has not begun; the moments of its parts
  count from the moment of START. A later command takes back what earlier ones of its kind announced for its moment or
  after it
- a target for the whole run is this worker's share of it
- STOP is obeyed at once, and after it nothing is; who saw the state of the run first still drains as STOP says
- moments are the server's. When they are by this process's clock is estimated from all answers that have the server's
  time, and more exactly with each one, until the first command of an event is due: from then on its others keep their
  distance, so that no window is cut
- RUN_STATUS repeats phase and targets, often before their events are read. It is believed when it has been ahead for a
  while, targets by their numbers, a phase only when it lies ahead; then it is applied as the event would have been
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
    """A command whose moment has come; `at_ns` is the moment it was meant for."""

    at_ns: int
    sequence_id: int
    command: SetPhase | SetWorkerTarget
    epoch: int = 0  # of the lease that announced it
    uncertain_ns: int = 0  # how far from at_ns that moment may be
    moment: datetime | None = None  # by the server's clock; None: not known, so at_ns stays as it is


class _Due(NamedTuple):
    """When a command takes effect, as in DueCommand."""

    at_ns: int
    uncertain_ns: int = 0
    moment: datetime | None = None

    def after(self, later_ms: int) -> _Due:
        moment = None if self.moment is None else self.moment + timedelta(milliseconds=later_ms)
        return _Due(self.at_ns + later_ms * _NS_PER_MS, self.uncertain_ns, moment)


class CommandQueue:
    """One worker's orders. Any thread."""

    def __init__(
        self,
        worker_id: str,
        worker_group_id: int,
        workers: int,
        *,
        drain_s: float,
        drain_interrupt_s: float,
        patience_s: float,
    ) -> None:
        """How long the drain may take until STOP says it, of a plan that is done and of a user's wish. `patience_s`:
        for so long RUN_STATUS may be ahead of the events before it is believed."""
        self._me = (worker_id, worker_group_id)
        self._workers = workers
        self._drain_s, self._drain_interrupt_s = drain_s, drain_interrupt_s
        self._patience_ns = round(patience_s * _NS_PER_S)
        self._behind_since_ns: int | None = None
        self._lock = threading.Lock()  # guards everything here; what has no underscore may be read without it
        self._pending: list[DueCommand] = []  # in the order in which they are due
        self._server = ServerTime()
        self._begun: set[int] = set()  # events of which a command was taken out
        self._target: int | None = None  # the newest one seen, applied or pending
        self._target_sequence = 0  # of its event
        self._target_applied = 0  # the newest one that was taken out
        self._phase_ahead = Phase.PREPARING  # the furthest phase that was begun or announced
        self.epoch = 0  # of the newest lease seen
        self.last_sequence_id = 0
        self.started = False
        self.has_plan = False  # START said when the first window opens
        self.stop: Stop | None = None

    # --- what comes in -----------------------------------------------------------------------------------------------

    def receive(self, event: Event, now_ns: int) -> str | None:
        """Take an event over. A sentence when it was not what one would expect, for the log."""
        with self._lock:
            if event.sequence_id <= self.last_sequence_id:
                return None
            self.last_sequence_id = event.sequence_id
            if event.epoch < self.epoch:
                return f"event {event.sequence_id} is of term {event.epoch}, and term {self.epoch} has begun: ignored"
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
        """An answer has the server's time: what was announced is due at a moment that is known more exactly now."""
        with self._lock:
            self._server.note(server_time, sent_ns, answered_ns)
            self._pending = sorted(map(self._dated, self._pending), key=_in_order)

    def notice(self, event: Event) -> None:
        """Before START: see START and STOP without taking anything off the table of events."""
        with self._lock:
            if event.epoch < self.epoch or not event.address.includes(*self._me):
                return
            if isinstance(event.command, Start):
                self.started = True
            elif isinstance(event.command, Stop):
                self._stop(event.command)

    def reconcile(self, poll: RunPoll, now_ns: int) -> str | None:
        """Compare with what RUN_STATUS says. A sentence when something had been missed."""
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
            # The leader writes the row and the event one after the other, and we read them so: the event is on its way.
            if self._behind_since_ns is None:
                self._behind_since_ns = now_ns
            if now_ns - self._behind_since_ns < self._patience_ns:
                return None
            self._behind_since_ns = None
            for item in missed:
                due = _Due(item.at_ns, item.uncertain_ns, item.moment)
                self._announce(item.command, item.sequence_id, due)
            return "found in RUN_STATUS, and no event of it was seen: " + ", ".join(str(one.command) for one in missed)

    def began(self, phase: Phase) -> None:
        """The worker has opened its first window, in this phase."""
        with self._lock:
            self._see(phase)

    # --- what goes out -----------------------------------------------------------------------------------------------

    def take_due(self, now_ns: int) -> list[DueCommand]:
        """What is to be done now, in order; it is taken off the command queue."""
        with self._lock:
            due = [item for item in self._pending if item.at_ns <= now_ns]
            self._pending = self._pending[len(due) :]
            self._begun.update(item.sequence_id for item in due)
            targets = (item.sequence_id for item in due if isinstance(item.command, SetWorkerTarget))
            self._target_applied = max(self._target_applied, *targets, 0)
            return due

    def next_ns(self) -> int | None:
        """When the next command is due; None: nothing is announced."""
        with self._lock:
            return self._pending[0].at_ns if self._pending else None

    def next_phase(self) -> tuple[int, Phase] | None:
        """When which phase begins next, as it was announced; the moment may have passed."""
        with self._lock:
            for item in self._pending:
                if isinstance(item.command, SetPhase):
                    return item.at_ns, item.command.phase
            return None

    def targets(self) -> list[tuple[int, SetWorkerTarget]]:
        """Targets that are announced, and when each begins, in order."""
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
        """What a command means for this worker."""
        return command.share_of(self._me[1], self._workers) if isinstance(command, SetRunTarget) else command

    def _due(self, due_in_ms: int | None, read_at: datetime | None, now_ns: int) -> _Due:
        """`due_in_ms` after the server's time in an answer that came now."""
        if due_in_ms is None:
            return _Due(now_ns)
        at = None if read_at is None else read_at + timedelta(milliseconds=due_in_ms)
        known = None if at is None else self._server.moment(at)
        return _Due(now_ns + due_in_ms * _NS_PER_MS) if known is None else _Due(*known, at)

    def _dated(self, item: DueCommand) -> DueCommand:
        """With its moment as it is known now, unless something of the same event has begun."""
        known = None if item.moment is None or item.sequence_id in self._begun else self._server.moment(item.moment)
        return item if known is None else replace(item, at_ns=known.at_ns, uncertain_ns=known.uncertain_ns)

    def _announce(self, command: SetPhase | SetWorkerTarget, sequence_id: int, due: _Due) -> None:
        old = isinstance(command, SetWorkerTarget) and self._is_old(sequence_id, due.at_ns)
        if self.stop is None and not old:
            self._put(command, sequence_id, due)

    def _put(self, command: SetPhase | SetWorkerTarget, sequence_id: int, due: _Due) -> None:
        if isinstance(command, SetPhase):
            self._see(command.phase)
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
        """Has RUN_STATUS told us of this target, or of one that takes it back, before its event came?"""
        if not sequence_id:
            return False
        return sequence_id <= self._target_applied or any(
            item.sequence_id == sequence_id or (item.sequence_id > sequence_id and item.at_ns <= at_ns)
            for item in self._pending
            if isinstance(item.command, SetWorkerTarget)
        )

    def _missed(self, poll: RunPoll, now_ns: int) -> list[DueCommand]:
        """What RUN_STATUS knows and we do not."""
        missed = []
        target = self._told(poll)
        if target is not None and self._is_news(target):
            command = SetWorkerTarget(
                target_connections=target.target_connections, step_id=target.step_id, ramp_s=target.ramp_s
            )
            due = self._due(_until_ms(target.effective_at, poll.server_time), poll.server_time, now_ns)
            missed.append(DueCommand(**due._asdict(), sequence_id=target.sequence_id or 0, command=command))
        # A worker begins in whatever phase the run is in, and goes on from there.
        begun = self._phase_ahead is not Phase.PREPARING
        if begun and poll.phase in _WINDOWS and PHASES.index(poll.phase) > PHASES.index(self._phase_ahead):
            missed.append(DueCommand(at_ns=now_ns, sequence_id=0, command=SetPhase(phase=poll.phase)))
        return missed

    def _told(self, poll: RunPoll) -> ConnectionTarget | None:
        """This worker's target in RUN_STATUS: its own, or its share of that of the run, whichever is newer."""
        own, total = poll.targets.get(self._me[0]), poll.targets.get(EVERY_WORKER)
        if total is None or (own is not None and (own.sequence_id or 0) > (total.sequence_id or 0)):
            return own
        return replace(total, target_connections=worker_share(total.target_connections, self._me[1], self._workers))

    def _is_news(self, target: ConnectionTarget) -> bool:
        """Is its event later than those seen? Without a number: is it another target than the last one?"""
        if target.sequence_id is None:
            return target.target_connections != self._target
        return target.sequence_id > self._target_sequence

    def _see(self, phase: Phase) -> None:
        self._phase_ahead = max(self._phase_ahead, phase, key=PHASES.index)

    def _stop(self, stop: Stop) -> None:
        self.stop = stop
        self._pending.clear()


def _in_order(item: DueCommand) -> tuple[int, int]:
    return item.at_ns, item.sequence_id


def _until_ms(effective_at: str | None, server_time: datetime) -> int:
    """As the query of events has it: a moment that cannot be read is now."""
    try:
        moment = datetime.fromisoformat(effective_at) if effective_at else server_time
        return round((moment.replace(tzinfo=None) - server_time).total_seconds() * 1000)
    except ValueError:
        return 0
