"""The control thread: reads what the run's leader says, and puts it on the agenda.

Before START it asks every second whether the run is on; then it polls RUN_STATUS every second, and reads events when
their number moved and at least every five seconds. One failed poll is followed by the next one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from loadgen.clock import Clock
from loadgen.control import run_control_events, run_status
from loadgen.control.run_status import RunPoll
from loadgen.control.session import ControlFailed, ControlSession
from loadgen.log import event
from loadgen.model.event import Start, Stop
from loadgen.model.run import Phase
from loadgen.model.worker import WorkerExit
from loadgen.scenario.scenario import Timing
from loadgen.units import NS_PER_S
from loadgen.worker.agenda import Agenda
from loadgen.worker.board import Board, Ending

log = logging.getLogger(__name__)


class ControlLoop:
    """watch() is the thread's work once the worker is ready to start."""

    def __init__(
        self,
        session: ControlSession,
        run_id: str,
        board: Board,
        agenda: Agenda,
        timing: Timing,
        clock: Clock,
        *,
        wake: threading.Event,
        begin: Callable[[Phase], None],
    ) -> None:
        """`wake` is set whenever the agenda may have changed; `begin` is called once, at START."""
        self._session, self._run_id, self._board, self._agenda = session, run_id, board, agenda
        self._timing, self._clock, self._wake = timing, clock, wake
        self._begin = begin
        self._events_ns = 0
        self._started = self._stopped = False

    def watch(self, stopping: threading.Event) -> None:
        """Wait for START, then follow the run until told to stop."""
        waiting_since_ns = self._clock.monotonic_ns()
        while not stopping.is_set():
            began_ns = self._clock.monotonic_ns()
            if not self._started and self._overdue(waiting_since_ns):
                text = f"nobody said START within {self._timing.start_s:g} s"
                self._board.end(Ending(code=WorkerExit.NO_START, error=text))
                return
            try:
                self.step()
                self._board.contact()
            except ControlFailed as error:
                event(log, logging.WARNING, "poll_failed", code=error.failure.code)
            spent_s = (self._clock.monotonic_ns() - began_ns) / NS_PER_S
            self._clock.wait(stopping, max(0.0, self._timing.status_poll_s - spent_s))

    def step(self) -> None:
        """One poll, and the events when there are new ones."""
        poll = run_status.poll(self._session, self._run_id)
        if poll is None:
            self._board.end(Ending(code=WorkerExit.CONFIGURATION, error=f"run {self._run_id} is gone"))
            return
        now_ns = self._clock.monotonic_ns()
        if self._are_due(poll, now_ns):
            self._read_events(start_only=not self._started)
            self._events_ns = now_ns
        self._note(self._agenda.reconcile(poll, self._clock.monotonic_ns()))
        self._judge(poll)
        self._wake.set()

    def _are_due(self, poll: RunPoll, now_ns: int) -> bool:
        behind = poll.next_sequence_id > self._agenda.last_sequence_id + 1
        old = now_ns - self._events_ns >= self._timing.events_poll_s * NS_PER_S
        return behind or old or not self._started

    def _read_events(self, *, start_only: bool) -> None:
        """Before START only START is taken (and STOP obeyed); the rest stays where it is, to be read after it."""
        for one in run_control_events.catch_up(self._session, self._run_id, self._agenda.last_sequence_id):
            if start_only and not isinstance(one.command, (Start, Stop)):
                continue
            if start_only:
                self._agenda.notice(one.command)
            else:
                self._note(self._agenda.receive(one, self._clock.monotonic_ns()))

    def _judge(self, poll: RunPoll) -> None:
        if self._agenda.started and not self._started and self._agenda.stop is None:
            self._started = True
            self._read_events(start_only=False)
            self._begin(poll.phase if poll.phase in (Phase.WARMUP, Phase.MEASUREMENT) else Phase.WARMUP)
        if self._agenda.stop is not None:
            stop = self._agenda.stop
            if self._stopped:
                return
            self._stopped = True
            self._board.say("INFO", f"STOP: {stop.reason}")
            self._board.end(Ending(code=WorkerExit.CLEAN, drain_s=stop.drain_timeout_s))
        elif poll.lease_over_ms is not None and poll.lease_over_ms > self._timing.orchestrator_lost_s * 1000:
            text = f"nobody has led run {self._run_id} for {poll.lease_over_ms / 1000:.0f} s"
            self._board.end(Ending(code=WorkerExit.FATAL, error=text, drain_s=self._timing.drain_interrupt_s))

    def _overdue(self, since_ns: int) -> bool:
        return self._clock.monotonic_ns() - since_ns > self._timing.start_s * NS_PER_S

    def _note(self, sentence: str | None) -> None:
        if sentence is not None:
            self._board.say("WARNING", sentence)
            event(log, logging.WARNING, "agenda", what=sentence)
