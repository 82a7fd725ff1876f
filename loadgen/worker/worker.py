"""A worker process, from its arguments to its exit code.

    main thread   signals, collects samples every second, decides to end; never calls the driver
    heartbeat     one UPDATE per second                                  (heartbeat.py)
    control       sets the worker up, then reads the leader's commands   (control_loop.py)
    flush         stores windows, snapshots, logs and the result         (flush.py)
    ramp          opens windows, changes the number of clients           (ramp_controller.py)
    probe         measures how late threads wake up                      (self_monitor.py)
    client-N      generates load                                         (client.py)

The process ends by os._exit(): the interpreter would wait for its threads, and one hanging driver call would block it.
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
from loadgen.control.tables import run_measurements, run_status, test_results, value_pools
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
from loadgen.worker.flush import ResultFlusher, lock_spool_folder, started_row, worker_spool_folder
from loadgen.worker.heartbeat import HURRIED_BEAT_S, LAST_BEAT_S, Heartbeat, identity_of
from loadgen.worker.self_monitor import SelfMonitor
from loadgen.worker.startup import WorkerComponents, assemble, compose, drain, open_connections
from loadgen.worker.worker_state import ExitReason, WorkerSharedState, exit_reason_for

log = logging.getLogger(__name__)

HARVEST_S = 1.0  # between collections of samples
LOOK_S = 0.05  # between checks of a condition that is waited for
STORE_S = 600.0  # for storing results and the query log
LOGOUT_S = 2.0  # for the threads to close their sessions, and to cancel the last statements
HURRY_S = 1.5  # for storing results after a second signal; the rest is spooled


class Worker:
    """run() belongs to the main thread. Methods that end in `_thread` are executed by other threads."""

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
        self._stopping = threading.Event()  # all threads must end
        self._storing = threading.Event()  # the flush thread must store the rest, and end
        self._hurry = threading.Event()  # do not wait for statements under way
        self._stored = threading.Event()  # the flush thread has ended
        self._all_stored = False  # the flush thread has stored all results
        self._spooled = False  # unsent results are in the spool
        self._spool = worker_spool_folder(arguments, self._test_id, environ)
        self._watchdog = ControlPlaneWatchdog()
        self._threads: list[Service] = []
        self._timing = TimingSettings().for_workers(arguments.worker_group_count)  # until the scenario is known
        self._parts: WorkerComponents | None = None
        self._collector: MetricsCollector | None = None
        self._result: ResultRow | None = None
        self._template_id = ""  # of the run: the id of this scenario differs, because secrets are filled in
        self._self_monitor = SelfMonitor(self._clock)
        self._created_at = self._clock.utc_now().replace(tzinfo=None)
        self._heartbeat = Heartbeat(
            self._session("heartbeat"),
            identity_of(arguments, environ),
            self._shared,
            lambda count: compose(self._shared, self._parts, count),
            period_s=self._timing.heartbeat_s,
            clock=self._clock,
        )

    # --- the main thread ---------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Run until there is a reason to end. Returns the exit code."""
        try:
            self._start("heartbeat", lambda: self._heartbeat.run(self._retries(self._stopping)))
            self._start("control", self._control_thread)
            self._start("probe", lambda: self._self_monitor.probe(self._stopping))
            self._collect_until_ended()
            return self._end()
        except Exception as error:  # a bug: the parent must not wait for this process for ever
            log.exception("thread_died thread=main")
            self._died(ThreadDied(f"thread main: {type(error).__name__}: {error}"))
            self._stopping.set()
            return self._finish(self._shared.ending)

    def stop(self, reason: str) -> None:
        """Request the end: drain. The second request: do not wait for statements under way."""
        if self._shared.ending is not None:
            self._hurry.set()
        event(log, logging.INFO, "worker_stopping", why=reason)
        self._shared.end(ExitReason(code=WorkerExit.CLEAN, drain_s=self._timing.drain_interrupt_s, signal=reason))

    def parent_ended(self, reason: str) -> None:
        """End, within the time of an interrupted drain, because the parent process has ended."""
        was_ending = self._shared.ending is not None
        self._shared.end(ExitReason(code=WorkerExit.FATAL, error=reason, drain_s=self._timing.drain_interrupt_s))
        if was_ending and not self._clock.wait(self._stopping, self._timing.drain_interrupt_s):
            self._hurry.set()  # the drain had begun with a longer limit

    def _collect_until_ended(self) -> None:
        """Collect samples every second until there is a reason to end."""
        due_ns = self._clock.monotonic_ns()
        while not self._shared.ended.is_set():
            due_ns += round(HARVEST_S * NS_PER_S)
            if self._parts is not None:
                due_ns = self._parts.ramp_controller.aligned_ns(due_ns, round(HARVEST_S * NS_PER_S))
            wait_s = (due_ns - self._clock.monotonic_ns()) / NS_PER_S
            if wait_s < -5 * HARVEST_S:  # the process was paused: do not catch up
                due_ns, wait_s = self._clock.monotonic_ns(), 0.0
            self._clock.wait(self._shared.ended, wait_s)
            self._collect()
            self._check_control_plane()

    def _collect(self) -> None:
        resources = self._self_monitor.read()
        shared = self._shared
        shared.cpu_percent, shared.memory_percent = resources.cpu_percent, resources.memory_percent
        if self._collector is not None:
            self._collector.step(resources)

    def _check_control_plane(self) -> None:
        """Called every second: end if the control plane has been unreachable for too long."""
        self._watchdog.count(self._shared, HARVEST_S)
        ending = self._watchdog.ending(self._shared, self._timing)
        if ending is not None:
            self._shared.end(ending)

    @property
    def _is_control_plane_lost(self) -> bool:
        return self._watchdog.is_unreachable(self._timing)

    # --- the end -----------------------------------------------------------------------------------------------------

    def _end(self) -> int:
        shared, parts = self._shared, self._parts
        assert shared.ending is not None
        shared.advance(WorkerStatus.DRAINING)
        if parts is not None:
            if shared.ending.replaced and self._collector is not None:
                self._collector.stop_storing_windows()
            drain(parts, shared, self._wait, self._start, hurry=self._hurry)
            self._collect()
            self._collect()  # a window becomes final in the collection after the one with its last sample
            self._store(shared.ending)  # read again: an error during the drain outweighs an earlier reason
        self._stopping.set()
        return self._finish(shared.ending)

    def _finish(self, ending: ExitReason | None) -> int:
        """Write the error to stderr, send the last heartbeat, and close the sessions. Returns the exit code."""
        assert ending is not None
        shared, me = self._shared, self._arguments
        shared.advance(WorkerStatus.COMPLETED if ending.code is WorkerExit.CLEAN else WorkerStatus.DEAD)
        shared.last_error = ending.error or shared.last_error
        if ending.error is not None:
            hint = f"\nhint: {printable(ending.hint)}" if ending.hint else ""
            sys.stderr.write(f"error: {me.worker_id}: {printable(ending.error)}{hint}\n")
        if self._spooled:
            sys.stderr.write(f"{me.worker_id}: not everything was stored; store it with `loadgen upload {me.run_id}`\n")
        sys.stderr.flush()
        self._heartbeat.finish()
        self._wait_with(lambda: False, self._last_beat_limit_s, self._heartbeat.said_last, lambda: None)
        self._close_sessions()
        return int(ending.code)

    def _last_beat_limit_s(self) -> float:
        return HURRIED_BEAT_S if self._hurry.is_set() or self._is_control_plane_lost else LAST_BEAT_S

    def _close_sessions(self) -> None:
        """Wait until the threads have logged out at their end: otherwise the sessions stay open for hours. Statements
        that are not cancelled yet would continue on the server."""
        until_ns = self._clock.monotonic_ns() + round(LOGOUT_S * NS_PER_S)
        for thread in self._threads:
            thread.join(max(0.0, (until_ns - self._clock.monotonic_ns()) / NS_PER_S))

    def _wait(
        self, done: Callable[[], bool], limit_s: Callable[[], float], unless: threading.Event | None = None
    ) -> None:
        """Wait until `done`, the limit, or `unless` is set. Samples are collected meanwhile, and the control plane is
        checked."""
        self._wait_with(done, limit_s, unless, self._collect)

    def _wait_with(
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
                self._check_control_plane()
            self._clock.wait(never, min(LOOK_S, left_s))

    def _store(self, ending: ExitReason) -> None:
        """Make the flush thread store the rest of the results, and spool what it cannot store. Heartbeats continue
        meanwhile."""
        assert self._collector is not None
        if ending.replaced:
            self._storing.set()
            self._shared.urgent.set()
            return
        self._collector.queue_windows(everything=True)
        self._collector.close_log()
        clean = ending.code is WorkerExit.CLEAN
        self._shared.say("INFO" if clean else "ERROR", f"ended: {ending.error or ending.signal or 'after STOP'}")
        status = test_results.COMPLETED if clean else "FAILED"
        self._result = self._collector.result(status, self._created_at, self._template_id)
        if not self._is_control_plane_lost:
            self._storing.set()
            self._shared.urgent.set()
            self._wait_with(
                lambda: self._stored.is_set() or self._is_control_plane_lost,
                lambda: STORE_S,
                self._hurry,
                lambda: None,
            )
        if not self._all_stored:
            self._spool_results()
        if self._hurry.is_set() and not self._is_control_plane_lost:
            self._wait_with(self._stored.is_set, lambda: HURRY_S, None, lambda: None)
        if self._all_stored and self._spooled:
            self._spooled = False
            shutil.rmtree(self._spool, ignore_errors=True)
        elif self._spooled:
            self._collector.report_unstored(self._spool)

    def _spool_results(self) -> None:
        assert self._collector is not None
        assert self._result is not None
        try:
            self._collector.spool(self._spool, self._result)
            self._spooled = True
        except OSError as error:
            if not self._all_stored:  # otherwise the flush thread has stored all, and is removing the folder
                text = f"unsent results could not be spooled to {self._spool}: {error.strerror}"
                self._shared.end(ExitReason(code=WorkerExit.FATAL, error=text))

    # --- other threads -----------------------------------------------------------------------------------------------

    def _control_thread(self) -> None:
        session = self._session("control")
        try:
            scenario = self._read_scenario(session, self._retries(self._stopping))
            if scenario is not None and self._is_registered():
                parts, loop = self._assemble(session, scenario)
                if open_connections(parts, self._arguments, loop, self._shared, self._clock):
                    self._shared.advance(WorkerStatus.WAITING)
                    loop.watch(self._stopping)
        except LoadgenError as error:
            if self._parts is None:  # there is no flush thread yet that would store the log line
                self._shared.say("ERROR", f"ended: {error}")
                once = RetryPolicy(stop=self._stopping, clock=self._clock, attempts=1)
                self._flush(session, period_s=1.0).step(once, everything=False)
            self._shared.end(exit_reason_for(error))
        finally:
            session.close()

    def _is_registered(self) -> bool:
        """Wait until this process is registered: two processes with one id must not both generate load. Returns False
        if the worker ends."""
        while not self._heartbeat.registered.is_set():
            if self._clock.wait(self._shared.ended, LOOK_S):
                return False
        return True

    def _read_scenario(self, session: ControlSession, retries: RetryPolicy) -> Scenario | None:
        """The run's scenario. None: the run does not exist or has ended."""
        run_id = self._arguments.run_id
        text = retries.call(lambda: run_status.read_config(session, run_id))
        run = retries.call(lambda: run_status.read(session, run_id))
        self._shared.contact()
        if text is None or run is None:
            hint = "`loadgen runs list` shows all runs; LOADGEN_CONTROL_* name the control plane."
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
        me, retries = self._arguments, self._retries(self._stopping)
        self._timing = scenario.timing
        self._heartbeat.period_s = scenario.timing.heartbeat_s
        stored = (
            []
            if self._heartbeat.is_first
            else retries.call(lambda: list(run_measurements.read_windows(session, me.run_id)))
        )
        parts = assemble(
            scenario,
            me,
            value_pools.load(session, retries, me.run_id, me.worker_group_id),
            test_id=self._test_id,
            spool=self._spool,
            shared=self._shared,
            first_window=max((row.window_id + 1 for row in stored if row.worker_id == me.worker_id), default=0),
            clock=self._clock,
            environ=self._environ,
        )
        if parts.query_log is not None:
            lock_spool_folder(self._spool)
        flush = self._flush(self._session("flush"), scenario.timing.flush_s)
        self._collector = MetricsCollector(parts, flush, self._shared, me, self._test_id, self._clock)
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
            flush.run(self._storing, self._retries(self._storing))
            if self._result is not None:
                folder = parts.query_log.folder if parts.query_log else None
                flush.finish(self._retries(self._stopping), self._result, folder)
                self._all_stored = True
        except LoadgenError as error:
            # The main thread spools the rest; heartbeats have reported the windows.
            event(log, logging.WARNING, "results_not_stored", what=str(error))
            self._shared.last_error = str(error)
        finally:
            flush.session.close()
            self._stored.set()

    def _started(self) -> ResultRow:
        me, template_id = self._arguments, self._template_id
        return started_row(me, test_id=self._test_id, template_id=template_id, created_at=self._created_at)

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _session(self, role: str) -> ControlSession:
        return self._open_session(f"{self._arguments.worker_id}/{role}")

    def _flush(self, session: ControlSession, period_s: float) -> ResultFlusher:
        who = (self._arguments, self._test_id, self._shared, self._clock)
        return ResultFlusher(session, *who, period_s=period_s, is_first=self._heartbeat.is_first)

    def _retries(self, stop: threading.Event) -> RetryPolicy:
        return RetryPolicy(stop=stop, clock=self._clock, note=_note)

    def _start(self, name: str, work: Callable[[], None]) -> None:
        thread = Service(name, work, stopping=self._stopping, died=self._died)
        self._threads.append(thread)
        thread.start()

    def _died(self, error: ThreadDied) -> None:
        """End the worker: it cannot continue without that thread."""
        self._shared.end(ExitReason(code=WorkerExit.FATAL, error=str(error), hint=error.remedy))


def _note(error: BaseException) -> None:
    event(log, logging.WARNING, "control_plane_retry", what=str(error))
