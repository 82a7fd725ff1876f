"""A worker process, from its arguments to its exit code.

    main thread   signals, collects samples every second, decides to end; never calls the driver
    heartbeat     one UPDATE a second                      (heartbeat.py)
    control       sets everything up, then follows the run (control_loop.py)
    flush         writes what was measured                 (flush.py, spool.py)
    ramp          windows, and the number of clients       (ramp_controller.py)
    probe         how late threads wake up                 (self_monitor.py)
    client-N      the load                                 (client.py)

It ends by os._exit: the interpreter would wait for its threads, and one driver call that hangs would hold it for ever.
"""

from __future__ import annotations

import logging
import shutil
import sys
import threading
import uuid
from collections.abc import Callable, Mapping

from loadgen.clock import Clock, SystemClock
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlSession, OpenSession
from loadgen.control.tables import run_measurements, run_status, value_pools
from loadgen.control.tables.test_results import ResultRow
from loadgen.errors import LoadgenError
from loadgen.log import event, printable
from loadgen.model.run import Phase, WorkerExit, WorkerStatus
from loadgen.scenario.frozen import thaw
from loadgen.scenario.model import Scenario
from loadgen.scenario.settings import TimingSettings
from loadgen.snowflake.session import RetryPolicy
from loadgen.threads import Service, ThreadDied
from loadgen.units import NS_PER_S
from loadgen.worker.arguments import InvalidWorkerArguments, WorkerArguments
from loadgen.worker.collector import MetricsCollector
from loadgen.worker.control_loop import ControlLoop, ControlPlaneWatchdog
from loadgen.worker.flush import ResultFlusher, hold, started_row, worker_spool_folder
from loadgen.worker.heartbeat import Heartbeat, identity_of
from loadgen.worker.self_monitor import SelfMonitor
from loadgen.worker.startup import WorkerComponents, assemble, compose, drain, open_connections
from loadgen.worker.worker_state import ExitReason, WorkerSharedState, exit_reason_for

log = logging.getLogger(__name__)

HARVEST_S = 1.0
LOOK_S = 0.05
STORE_S = 600.0  # how long storing results and the query log may take
LOGOUT_S = 2.0  # how long the threads may take to close their sessions
HURRY_S = 1.5  # the same after a second signal; what is not stored by then is in the spool


class Worker:
    """run() is the main thread's; methods that begin with `_` and end in `_thread` are the other threads' work."""

    def __init__(
        self,
        arguments: WorkerArguments,
        place: ControlPlaneLocation,
        *,
        environ: Mapping[str, str],
        clock: Clock | None = None,
        open_session: OpenSession | None = None,
    ) -> None:
        self._arguments, self._environ = arguments, environ
        self._open_session = open_session or (lambda role: ControlSession(place, role=role, environ=environ))
        self._clock = clock or SystemClock()
        self._test_id = str(uuid.uuid4())
        self._shared = WorkerSharedState(clock=self._clock)
        self._stopping = threading.Event()  # every thread ends
        self._storing = threading.Event()  # the flush thread writes what is left, and ends
        self._hurry = threading.Event()  # do not wait for statements under way
        self._stored = threading.Event()  # it has ended
        self._all_stored = False  # it has written all of it
        self._kept = False  # what was not written is in the spool
        self._spool = worker_spool_folder(arguments, self._test_id, environ)
        self._silence = ControlPlaneWatchdog()
        self._threads: list[Service] = []
        self._timing = TimingSettings().for_workers(arguments.worker_group_count)  # until the scenario is known
        self._parts: WorkerComponents | None = None
        self._measuring: MetricsCollector | None = None
        self._result: ResultRow | None = None
        self._template_id = ""  # as the run has it: here secrets are filled in
        self._self_monitor = SelfMonitor(self._clock)
        self._created_at = self._clock.utc_now().replace(tzinfo=None)
        self._beats = Heartbeat(
            self._session("heartbeat"),
            identity_of(arguments, environ),
            self._shared,
            lambda count: compose(self._shared, self._parts, count),
            period_s=self._timing.heartbeat_s,
            clock=self._clock,
        )

    # --- the main thread ---------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Run until there is a reason to end; the exit code."""
        try:
            self._start("heartbeat", lambda: self._beats.run(self._patience(self._stopping)))
            self._start("control", self._control_thread)
            self._start("probe", lambda: self._self_monitor.probe(self._stopping))
            self._live()
            return self._end()
        except Exception as error:  # a bug: the parent must not wait for this process for ever
            log.exception("thread_died thread=main")
            self._died(ThreadDied(f"thread main: {type(error).__name__}: {error}"))
            self._stopping.set()
            return self._say_goodbye(self._shared.ending)

    def stop(self, reason: str) -> None:
        """Asked from outside: drain. Asked again: do not wait for statements under way."""
        if self._shared.ending is not None:
            self._hurry.set()
        event(log, logging.INFO, "worker_stopping", why=reason)
        self._shared.end(ExitReason(code=WorkerExit.CLEAN, drain_s=self._timing.drain_interrupt_s, signal=reason))

    def orphaned(self, reason: str) -> None:
        was_ending = self._shared.ending is not None
        self._shared.end(ExitReason(code=WorkerExit.FATAL, error=reason, drain_s=self._timing.drain_interrupt_s))
        if was_ending and not self._clock.wait(self._stopping, self._timing.drain_interrupt_s):
            self._hurry.set()  # the drain began with more time than is left to a worker without a parent

    def _live(self) -> None:
        """Collect samples every second until there is a reason to end."""
        due_ns = self._clock.monotonic_ns()
        while not self._shared.ended.is_set():
            due_ns += round(HARVEST_S * NS_PER_S)
            if self._parts is not None:
                due_ns = self._parts.ramp_controller.aligned_ns(due_ns, round(HARVEST_S * NS_PER_S))
            wait_s = (due_ns - self._clock.monotonic_ns()) / NS_PER_S
            if wait_s < -5 * HARVEST_S:  # the process was paused: begin counting anew
                due_ns, wait_s = self._clock.monotonic_ns(), 0.0
            self._clock.wait(self._shared.ended, wait_s)
            self._harvest()
            self._listen()

    def _harvest(self) -> None:
        resources = self._self_monitor.read()
        shared = self._shared
        shared.cpu_percent, shared.memory_percent = resources.cpu_percent, resources.memory_percent
        if self._measuring is not None:
            self._measuring.step(resources)

    def _listen(self) -> None:
        """Every second."""
        self._silence.count(self._shared, HARVEST_S)
        ending = self._silence.ending(self._shared, self._timing)
        if ending is not None:
            self._shared.end(ending)

    @property
    def _is_alone(self) -> bool:
        return self._silence.is_alone(self._timing)

    # --- the end -----------------------------------------------------------------------------------------------------

    def _end(self) -> int:
        shared, parts = self._shared, self._parts
        assert shared.ending is not None
        shared.advance(WorkerStatus.DRAINING)
        if parts is not None:
            if shared.ending.replaced and self._measuring is not None:
                self._measuring.forfeit()
            drain(parts, shared, self._wait, hurry=self._hurry)
            self._harvest()
            self._harvest()  # a window becomes final with the collection after the one that saw its last sample
            self._store(shared.ending)  # something worse may have come up meanwhile
        self._stopping.set()
        return self._say_goodbye(shared.ending)

    def _say_goodbye(self, ending: ExitReason | None) -> int:
        """The last heartbeat, and on stderr what went wrong."""
        assert ending is not None
        shared, me = self._shared, self._arguments
        shared.advance(WorkerStatus.COMPLETED if ending.code is WorkerExit.CLEAN else WorkerStatus.DEAD)
        shared.last_error = ending.error or shared.last_error
        if ending.error is not None:
            hint = f"\nhint: {printable(ending.hint)}" if ending.hint else ""
            sys.stderr.write(f"error: {me.worker_id}: {printable(ending.error)}{hint}\n")
        if self._kept:
            sys.stderr.write(f"{me.worker_id}: not everything was stored; `loadgen upload {me.run_id}` does it later\n")
        sys.stderr.flush()
        self._beats.finish()
        self._close_sessions()
        return int(ending.code)

    def _close_sessions(self) -> None:
        """Give the threads the time to log out, which they do at their end: sessions live on for hours otherwise."""
        until_ns = self._clock.monotonic_ns() + round(LOGOUT_S * NS_PER_S)
        for thread in self._threads:
            thread.join(max(0.0, (until_ns - self._clock.monotonic_ns()) / NS_PER_S))

    def _wait(
        self, done: Callable[[], bool], limit_s: Callable[[], float], unless: threading.Event | None = None
    ) -> None:
        """Until it is done, time is over, or `unless` is set; collects samples and watches the control plane."""
        self._watch_over(done, limit_s, unless, self._harvest)

    def _watch_over(
        self,
        done: Callable[[], bool],
        limit_s: Callable[[], float],
        unless: threading.Event | None,
        each_second: Callable[[], None],
    ) -> None:
        begun_ns = second_ns = self._clock.monotonic_ns()
        never = unless or threading.Event()
        while not done() and not never.is_set():
            now_ns = self._clock.monotonic_ns()
            left_s = limit_s() - (now_ns - begun_ns) / NS_PER_S
            if left_s <= 0:
                return
            if now_ns >= second_ns + HARVEST_S * NS_PER_S:
                second_ns = now_ns
                each_second()
                self._listen()
            self._clock.wait(never, min(LOOK_S, left_s))

    def _store(self, ending: ExitReason) -> None:
        """Have the flush thread write everything that is left, and spool the rest. Heartbeats go on meanwhile."""
        assert self._measuring is not None
        if ending.replaced:
            self._storing.set()
            self._shared.urgent.set()
            return
        self._measuring.hand_on(everything=True)
        self._measuring.close_log()
        clean = ending.code is WorkerExit.CLEAN
        self._shared.say("INFO" if clean else "ERROR", f"ended: {ending.error or ending.signal or 'as told'}")
        status = "COMPLETED" if clean else "FAILED"
        self._result = self._measuring.result(status, self._created_at, self._template_id)
        if not self._is_alone:
            self._storing.set()
            self._shared.urgent.set()
            self._watch_over(
                lambda: self._stored.is_set() or self._is_alone, lambda: STORE_S, self._hurry, lambda: None
            )
        if not self._all_stored:
            self._keep()
        if self._hurry.is_set() and not self._is_alone:
            self._watch_over(self._stored.is_set, lambda: HURRY_S, None, lambda: None)
        if self._all_stored and self._kept:
            self._kept = False
            shutil.rmtree(self._spool, ignore_errors=True)
        elif self._kept:
            self._measuring.tell_unstored(self._spool)

    def _keep(self) -> None:
        assert self._measuring is not None
        assert self._result is not None
        try:
            self._measuring.keep(self._spool, self._result)
            self._kept = True
        except OSError as error:
            if not self._all_stored:  # else the flush thread is just removing the folder, having stored it all
                text = f"unsent results could not be spooled to {self._spool}: {error.strerror}"
                self._shared.end(ExitReason(code=WorkerExit.FATAL, error=text))

    # --- other threads -----------------------------------------------------------------------------------------------

    def _control_thread(self) -> None:
        session = self._session("control")
        try:
            scenario = self._read_scenario(session, self._patience(self._stopping))
            if scenario is not None and self._is_registered():
                parts, loop = self._assemble(session, scenario)
                if open_connections(parts, self._arguments, loop, self._shared, self._clock):
                    self._shared.advance(WorkerStatus.WAITING)
                    loop.watch(self._stopping)
        except LoadgenError as error:
            if self._parts is None:  # there is no flush thread yet that would write it
                self._shared.say("ERROR", f"ended: {error}")
                once = RetryPolicy(stop=self._stopping, clock=self._clock, attempts=1)
                self._flush(session, period_s=1.0).step(once, everything=False)
            self._shared.end(exit_reason_for(error))
        finally:
            session.close()

    def _is_registered(self) -> bool:
        """Wait until the row is ours: two processes with one id must not both generate load. False: the worker ends."""
        while not self._beats.registered.is_set():
            if self._clock.wait(self._shared.ended, LOOK_S):
                return False
        return True

    def _read_scenario(self, session: ControlSession, patience: RetryPolicy) -> Scenario | None:
        """The run's scenario; None when the run is over before this worker came."""
        run_id = self._arguments.run_id
        text = patience.call(lambda: run_status.read_config(session, run_id))
        run = patience.call(lambda: run_status.read(session, run_id))
        self._shared.contact()
        if text is None or run is None:
            hint = "`loadgen runs list` shows the runs there are; LOADGEN_CONTROL_* say where they are looked for."
            self._shared.end(ExitReason(code=WorkerExit.CONFIGURATION, error=f"there is no run {run_id}", hint=hint))
            return None
        if run.status.is_terminal:
            self._shared.end(ExitReason(code=WorkerExit.CLEAN))
            return None
        if self._arguments.worker_group_count != run.workers_expected:
            raise InvalidWorkerArguments(
                f"--worker-group-count is {self._arguments.worker_group_count}, and run {run_id} has"
                f" {run.workers_expected} workers"
            )
        self._template_id = run.template_id
        return thaw(text, self._environ)

    def _assemble(self, session: ControlSession, scenario: Scenario) -> tuple[WorkerComponents, ControlLoop]:
        me, patience = self._arguments, self._patience(self._stopping)
        self._timing = scenario.timing
        self._beats.period_s = scenario.timing.heartbeat_s
        stored = (
            []
            if self._beats.is_first
            else patience.call(lambda: list(run_measurements.read_windows(session, me.run_id)))
        )
        parts = assemble(
            scenario,
            me,
            value_pools.load(session, patience, me.run_id, me.worker_group_id),
            test_id=self._test_id,
            spool=self._spool,
            shared=self._shared,
            first_window=max((row.window_id + 1 for row in stored if row.worker_id == me.worker_id), default=0),
            clock=self._clock,
            environ=self._environ,
        )
        if parts.query_log is not None:
            hold(self._spool)
        flush = self._flush(self._session("flush"), scenario.timing.flush_s)
        self._measuring = MetricsCollector(parts, flush, self._shared, me, self._test_id, self._clock)
        self._parts = parts
        self._start("flush", lambda: self._flush_thread(parts, flush))
        self._start("ramp", lambda: parts.ramp_controller.run(self._stopping))
        return parts, self._loop(session, parts, flush)

    def _loop(self, session: ControlSession, parts: WorkerComponents, flush: ResultFlusher) -> ControlLoop:
        def begin(phase: Phase | None) -> None:
            load = parts.scenario.load
            # The row may be behind the event. Without a warm-up there is only one phase to begin with.
            phase = phase or (Phase.WARMUP if load.warmup_s else Phase.MEASUREMENT)
            if self._shared.advance(WorkerStatus.RUNNING):
                self._shared.say("INFO", f"START, in {phase}")
                flush.put_start(self._started())
                parts.ramp_controller.begin(phase, load.duration_s if phase is Phase.MEASUREMENT else None)

        command_queue, wake = parts.command_queue, parts.ramp_controller.wake
        return ControlLoop(
            session,
            self._arguments.run_id,
            self._shared,
            command_queue,
            self._timing,
            self._clock,
            wake=wake,
            begin=begin,
        )

    def _flush_thread(self, parts: WorkerComponents, flush: ResultFlusher) -> None:
        try:
            flush.run(self._storing, self._patience(self._storing))
            if self._result is not None:
                folder = parts.query_log.folder if parts.query_log else None
                flush.finish(self._patience(self._stopping), self._result, folder)
                self._all_stored = True
        except LoadgenError as error:
            # The main thread keeps what is left: nothing is lost, and heartbeats have reported what was measured.
            event(log, logging.WARNING, "results_not_stored", what=str(error))
            self._shared.last_error = str(error)
        finally:
            flush.session.close()
            self._stored.set()

    def _started(self) -> ResultRow:
        me, template_id = self._arguments, self._template_id
        return started_row(me, test_id=self._test_id, template_id=template_id, created_at=self._created_at)

    # --- small things ------------------------------------------------------------------------------------------------

    def _session(self, role: str) -> ControlSession:
        return self._open_session(f"{self._arguments.worker_id}/{role}")

    def _flush(self, session: ControlSession, period_s: float) -> ResultFlusher:
        who = (self._arguments, self._test_id, self._shared, self._clock)
        return ResultFlusher(session, *who, period_s=period_s, is_first=self._beats.is_first)

    def _patience(self, stop: threading.Event) -> RetryPolicy:
        return RetryPolicy(stop=stop, clock=self._clock, note=_note)

    def _start(self, name: str, work: Callable[[], None]) -> None:
        thread = Service(name, work, stopping=self._stopping, died=self._died)
        self._threads.append(thread)
        thread.start()

    def _died(self, error: ThreadDied) -> None:
        """The worker must not go on without that thread."""
        self._shared.end(ExitReason(code=WorkerExit.FATAL, error=str(error), hint=error.remedy))


def _note(error: BaseException) -> None:
    event(log, logging.WARNING, "control_plane_retry", what=str(error))
