"""The control thread: reads the leader's commands from the tables into the command queue.

It polls RUN_STATUS every second. It reads events when their number has changed, and at least every five seconds. Until
the worker is ready, only STOP matters; then START; then all commands. After a failed poll the next one follows.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from loadgen.clock import Clock
from loadgen.control.session import ControlSession
from loadgen.control.tables import run_control_events, run_status
from loadgen.control.tables.run_status import RunPoll
from loadgen.errors import LoadgenError
from loadgen.log import event
from loadgen.metrics.connections import LoginCounts
from loadgen.model.event import Stop
from loadgen.model.run import Phase, RunStatus, WorkerExit, WorkerStatus
from loadgen.scenario.settings import TimingSettings
from loadgen.units import NS_PER_S
from loadgen.values import dataclass
from loadgen.worker.commands import CommandQueue
from loadgen.worker.worker_state import ExitReason, WorkerSharedState

log = logging.getLogger(__name__)

_ON = (RunStatus.PREPARED, RunStatus.STARTING, RunStatus.RUNNING)


class ControlLoop:
    """look() is called while the worker starts; then the thread executes watch()."""

    def __init__(
        self,
        session: ControlSession,
        run_id: str,
        shared: WorkerSharedState,
        command_queue: CommandQueue,
        timing: TimingSettings,
        clock: Clock,
        *,
        wake: threading.Event,
        begin: Callable[[Phase | None], None],
    ) -> None:
        """`wake` is set when the command queue may have changed. `begin` is called once, at START, with the phase of
        the run if that is warm-up or measurement."""
        self._session, self._run_id, self._shared, self._command_queue = session, run_id, shared, command_queue
        self._timing, self._clock, self._wake = timing, clock, wake
        self._begin = begin
        self._events_ns: int | None = None  # when events were last read
        self._since_ns = clock.monotonic_ns()  # start of the wait that timing.start limits
        self._looked_ns: int | None = None
        self._ready = self._started = False
        self._stopped: ExitReason | None = None  # the reason from STOP, or from the status of the run before STOP

    def look(self) -> None:
        """While the worker starts: poll for the end of the run. Calls between two polls have no effect."""
        now_ns = self._clock.monotonic_ns()
        if self._is_overdue():
            text = f"not ready within {self._timing.start_s:g} s: {self._shared.last_error or 'connections are slow'}"
            self._shared.end(ExitReason(code=WorkerExit.NO_START, error=text))
        elif self._looked_ns is None or now_ns - self._looked_ns >= self._timing.status_poll_s * NS_PER_S:
            self._looked_ns = now_ns
            self._try_step()

    def watch(self, stopping: threading.Event) -> None:
        """The worker is ready: wait for START, then read commands until stopped."""
        self._ready = True
        self._since_ns = self._clock.monotonic_ns()
        # Workers that are ready together must not poll together.
        pause_s = random.uniform(0.0, self._timing.status_poll_s)
        while not stopping.is_set():
            began_ns = self._clock.monotonic_ns()
            if not self._started and self._is_overdue():
                text = f"no START within {self._timing.start_s:g} s"
                hint = f"Check that an orchestrator leads run {self._run_id}: `loadgen runs show {self._run_id}`."
                self._shared.end(ExitReason(code=WorkerExit.NO_START, error=text, hint=hint))
                return
            self._try_step()
            spent_s = (self._clock.monotonic_ns() - began_ns) / NS_PER_S
            self._clock.wait(stopping, max(0.0, pause_s - spent_s))
            pause_s = self._timing.status_poll_s

    def _try_step(self) -> None:
        try:
            self.step()
        except LoadgenError as error:
            # Also a refused login: it may be temporary. The watchdog ends a worker whose polls fail for too long.
            event(log, logging.WARNING, "poll_failed", what=str(error))
            self._shared.missed_polls += 1
        else:
            self._shared.polls += 1
            self._shared.contact()

    def step(self) -> None:
        """Poll once, and read the events if there are new ones."""
        sent_ns = self._clock.monotonic_ns()
        poll = run_status.poll(self._session, self._run_id)
        if poll is None:
            self._shared.end(ExitReason(code=WorkerExit.CONFIGURATION, error=f"run {self._run_id} no longer exists"))
            return
        now_ns = self._clock.monotonic_ns()
        self._command_queue.note_time(poll.server_time, sent_ns, now_ns)
        if self._are_due(poll, now_ns):
            self._read_events(poll)
            self._events_ns = now_ns
        if self._ready or poll.status not in _ON:  # targets and phases are for a worker that has its first connections
            self._note(self._command_queue.reconcile(poll, self._clock.monotonic_ns()))
        self._judge(poll)
        self._wake.set()

    def _are_due(self, poll: RunPoll, now_ns: int) -> bool:
        behind = poll.next_sequence_id > self._command_queue.last_sequence_id + 1
        read_ns = self._events_ns
        return behind or read_ns is None or now_ns - read_ns >= self._timing.events_poll_s * NS_PER_S

    def _read_events(self, poll: RunPoll) -> None:
        """Read new events. Before START only START and STOP are noted. Events are taken when the worker is ready and
        the run has started."""
        last, sent_ns = self._command_queue.last_sequence_id, self._clock.monotonic_ns()
        arrived = list(run_control_events.catch_up(self._session, self._run_id, last))
        now_ns = self._clock.monotonic_ns()
        if arrived and arrived[-1].server_time is not None:
            self._command_queue.note_time(arrived[-1].server_time, sent_ns, now_ns)
        if not self._started:
            for one in arrived:
                self._command_queue.notice(one)
        if self._ready and (self._command_queue.started or poll.status is RunStatus.RUNNING):
            for one in arrived:
                self._note(self._command_queue.receive(one, now_ns))

    def _judge(self, poll: RunPoll) -> None:
        if self._ready and self._command_queue.started and not self._started and self._command_queue.stop is None:
            self._started = True
            self._begin(poll.phase if poll.phase in (Phase.WARMUP, Phase.MEASUREMENT) else None)
        if self._command_queue.stop is not None:
            self._stop(self._command_queue.stop)
        elif poll.lease_over_ms is not None and poll.lease_over_ms > self._timing.orchestrator_lost_s * 1000:
            text = f"run {self._run_id} has had no leader for {poll.lease_over_ms / 1000:.0f} s"
            self._shared.end(ExitReason(code=WorkerExit.FATAL, error=text, drain_s=self._timing.drain_interrupt_s))

    def _stop(self, stop: Stop) -> None:
        ending = ExitReason(code=WorkerExit.CLEAN, drain_s=stop.drain_timeout_s)
        if self._stopped is None:
            self._shared.say("INFO", f"STOP: {stop.reason}")
            self._shared.end(ending)
        elif ending != self._stopped:
            self._shared.amend(self._stopped, ending)
        self._stopped = ending

    def _is_overdue(self) -> bool:
        return self._clock.monotonic_ns() - self._since_ns > self._timing.start_s * NS_PER_S

    def _note(self, sentence: str | None) -> None:
        if sentence is not None:
            self._shared.say("WARNING", sentence)
            event(log, logging.WARNING, "command", what=sentence)


_HINT = "Check it with `loadgen doctor`."
_TARGET_HINT = "`loadgen connections test` tries the connection; has its token expired, or its user been locked?"
_WORKING = (WorkerStatus.WAITING, WorkerStatus.RUNNING)


@dataclass(slots=True)
class ControlPlaneWatchdog:
    """How long the control plane has been unreachable. Belongs to the main thread, which calls count() every second."""

    unreachable_s: float = 0.0  # since the last answer
    unpolled_s: float = 0.0  # from the first to the last of the consecutive failed polls
    _since_failure_s: float = 0.0  # since the first of them
    _contacts: int = 0
    _polls: int = 0
    _missed: int = 0

    def count(self, shared: WorkerSharedState, awake_s: float) -> None:
        self.unreachable_s = self.unreachable_s + awake_s if shared.contacts == self._contacts else 0.0
        missed = shared.missed_polls != self._missed
        if shared.polls != self._polls:
            self.unpolled_s = self._since_failure_s = 0.0
        elif missed or self._since_failure_s:
            self._since_failure_s += awake_s
            # Only failed polls count: while connections are opened there may be no poll for long.
            self.unpolled_s = self._since_failure_s if missed else self.unpolled_s
        self._contacts, self._polls, self._missed = shared.contacts, shared.polls, shared.missed_polls

    def is_unreachable(self, timing: TimingSettings) -> bool:
        return self.unreachable_s > timing.no_connection_s

    def cannot_poll(self, timing: TimingSettings) -> bool:
        """Whether polls fail although other statements succeed."""
        return self.unpolled_s > timing.no_connection_s and self.unreachable_s == 0.0

    def ending(self, shared: WorkerSharedState, timing: TimingSettings) -> ExitReason | None:
        """Why the worker has to end; None: it has not. A worker that is already ending needs no polls."""
        if self.is_unreachable(timing):
            text = f"the control plane has not answered for {self.unreachable_s:.0f} s"
        elif self.cannot_poll(timing) and not shared.ended.is_set():
            text = f"the state of the run could not be read for {self.unpolled_s:.0f} s"
        else:
            return None
        return ExitReason(code=WorkerExit.NO_CONTROL_PLANE, error=text, hint=_HINT)


@dataclass(slots=True)
class TargetWatchdog:
    """Measures how long no client has been connected although clients are wanted. Belongs to the main thread, which
    calls count() every second."""

    since_s: float = 0.0

    def count(self, *, wanted: int, connected: int, awake_s: float) -> None:
        self.since_s = self.since_s + awake_s if wanted and not connected else 0.0

    def ending(self, shared: WorkerSharedState, timing: TimingSettings, logins: LoginCounts) -> ExitReason | None:
        """Why a worker without any connection has to end. While it starts, timing.start limits its time instead."""
        if self.since_s < timing.no_connection_s or shared.status not in _WORKING:
            return None
        why = f": {logins.last_refused[-1].text}" if logins.last_refused else ""
        text = f"no client has been connected for {self.since_s:.0f} s{why}"
        return ExitReason(code=WorkerExit.FATAL, error=text, hint=_TARGET_HINT)
