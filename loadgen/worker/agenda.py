"""What a worker has been told to do, and when: pure, so that every order of messages can be tried.

The control thread puts in what it reads; the thread that conducts the clients takes out what is due. Rules:

- events are applied once, in the order of their numbers; those for others are passed over
- commands of a term older than the newest one seen are ignored: their author has been replaced
- STOP is obeyed at once, whatever else was announced
- RUN_STATUS repeats phase and targets; what it says is applied only when no event with its number was seen, and a
  phase only when it lies ahead, exactly as the event would have been
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import datetime

from loadgen.control.run_control_events import Event
from loadgen.control.run_status import RunPoll, Target
from loadgen.model.event import Command, SetPhase, SetWorkerTarget, Start, Stop, Unknown
from loadgen.model.run import PHASES, Phase, RunStatus

_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000
_ENDING = (RunStatus.STOPPING, RunStatus.CANCELLING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A command whose moment has come; `at_ns` is the moment it was meant for."""

    at_ns: int
    sequence_id: int
    command: SetPhase | SetWorkerTarget


class Agenda:
    """One worker's orders. Any thread."""

    def __init__(self, worker_id: str, worker_group_id: int, *, drain_s: float, patience_s: float) -> None:
        """`patience_s`: for so long RUN_STATUS may be ahead of the events before it is believed."""
        self._me = (worker_id, worker_group_id)
        self._drain_s = drain_s
        self._patience_ns = round(patience_s * _NS_PER_S)
        self._behind_since_ns: int | None = None
        self._lock = threading.Lock()
        self._pending: list[Due] = []
        self.epoch = 0  # of the newest term seen
        self._target: int | None = None  # the newest one seen, applied or pending
        self._target_sequence = 0  # of its event
        self._phase_ahead = Phase.PREPARING  # the furthest phase that was announced
        self.last_sequence_id = 0
        self.started = False
        self.stop: Stop | None = None

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
            if isinstance(command, Unknown):
                return f"event {event.sequence_id} ({command.event_type[:50]}) was not understood: {command.why[:200]}"
            if not event.address.includes(*self._me):
                return None
            if isinstance(command, Start):
                self.started = True
            elif isinstance(command, Stop):
                self._stop(command)
            else:
                self._announce(command, event.sequence_id, now_ns + (event.due_in_ms or 0) * _NS_PER_MS)
            return None

    def notice(self, command: Command) -> None:
        """Before START: see START and STOP without taking anything off the table of events."""
        with self._lock:
            if isinstance(command, Start):
                self.started = True
            elif isinstance(command, Stop):
                self._stop(command)

    def reconcile(self, poll: RunPoll, now_ns: int) -> str | None:
        """Compare with what RUN_STATUS says. A sentence when something had been missed."""
        with self._lock:
            if poll.status in _ENDING or poll.status.is_terminal:
                if self.stop is None:
                    self._stop(Stop(reason=f"the run is {poll.status}", drain_timeout_s=self._drain_s))
                return None
            if poll.lease_epoch < self.epoch or poll.status is not RunStatus.RUNNING:
                return None
            self.started = True
            target = poll.targets.get(self._me[0])
            if target is not None and self._is_news(target):
                command = SetWorkerTarget(
                    target_connections=target.target_connections, step_id=target.step_id, ramp_s=target.ramp_s
                )
                at_ns = now_ns + max(0, _until_ms(target.effective_at, poll.server_time)) * _NS_PER_MS
                self._announce(command, target.sequence_id or 0, at_ns)
                return f"target {target.target_connections} was found in RUN_STATUS before its event was seen"
            return self._reconcile_phase(poll.phase, now_ns)

    def take_due(self, now_ns: int) -> list[Due]:
        """What is to be done now, in order; it is taken off the agenda."""
        with self._lock:
            due = [item for item in self._pending if item.at_ns <= now_ns]
            self._pending = [item for item in self._pending if item.at_ns > now_ns]
            return due

    def opens_by(self, now_ns: int) -> bool:
        """Is a window announced that should be open by now?"""
        with self._lock:
            return any(item.at_ns <= now_ns and isinstance(item.command, SetPhase) for item in self._pending)

    def next_ns(self) -> int | None:
        """When the next command is due; None: nothing is announced."""
        with self._lock:
            return self._pending[0].at_ns if self._pending else None

    def _is_news(self, target: Target) -> bool:
        """Is its event later than those seen? Without a number: is it another target than the last one?"""
        if target.sequence_id is None:
            return target.target_connections != self._target
        return target.sequence_id > self._target_sequence

    def _announce(self, command: SetPhase | SetWorkerTarget, sequence_id: int, at_ns: int) -> None:
        if isinstance(command, SetPhase):
            self._phase_ahead = max(self._phase_ahead, command.phase, key=PHASES.index)
        else:
            self._target_sequence = max(self._target_sequence, sequence_id)
            self._target = command.target_connections
        self._pending.append(Due(at_ns=at_ns, sequence_id=sequence_id, command=command))
        self._pending.sort(key=lambda item: (item.at_ns, item.sequence_id))

    def _reconcile_phase(self, phase: Phase, now_ns: int) -> str | None:
        """Only what a SET_PHASE would say: a worker begins in whatever phase the run is in, and goes on from there."""
        if phase not in (Phase.WARMUP, Phase.MEASUREMENT):
            return None
        if self._phase_ahead is Phase.PREPARING:
            self._phase_ahead = phase
            return None
        if PHASES.index(phase) <= PHASES.index(self._phase_ahead):
            self._behind_since_ns = None
            return None
        # The leader writes the row and the event one after the other: the event, with its duration, is on its way.
        if self._behind_since_ns is None:
            self._behind_since_ns = now_ns
        if now_ns - self._behind_since_ns < self._patience_ns:
            return None
        self._announce(SetPhase(phase=phase), 0, now_ns)
        return f"phase {phase} was found in RUN_STATUS before its event was seen"

    def _stop(self, stop: Stop) -> None:
        self.stop = stop
        self._pending.clear()


def _until_ms(effective_at: str | None, server_time: datetime) -> int:
    try:
        moment = datetime.fromisoformat(effective_at) if effective_at else server_time
        return round((moment.replace(tzinfo=None) - server_time).total_seconds() * 1000)
    except ValueError:
        return 0
