"""A worker process: one life, from its arguments to its exit code.

    main thread   signals, one harvest a second, the decision to end; never a call of the driver
    heartbeat     one UPDATE a second                      (heartbeat.py)
    control       sets everything up, then follows the run (control_loop.py)
    flush         writes what was measured                 (flush.py)
    ramp          windows, and the number of clients       (conductor.py)
    probe         how late threads wake up                 (gauges.py)
    client-N      the load                                 (client.py)

It ends by os._exit: the interpreter would wait for its threads, and one driver call that hangs would hold it for ever.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Mapping

from loadgen import __version__
from loadgen.clock import Clock, SystemClock
from loadgen.control import run_status, value_pools
from loadgen.control.place import ControlPlace
from loadgen.control.retry import Patience
from loadgen.control.session import ControlFailed, ControlSession
from loadgen.control.test_results import ResultRow
from loadgen.control.worker_heartbeats import Beat, WorkerIdentity
from loadgen.errors import LoadgenError
from loadgen.log import event
from loadgen.model.run import Phase
from loadgen.model.worker import WorkerExit, WorkerStatus
from loadgen.scenario.frozen import thaw
from loadgen.scenario.scenario import Scenario, Timing
from loadgen.units import NS_PER_S
from loadgen.worker.arguments import WorkerArguments
from loadgen.worker.board import Board, Ending, ending_for
from loadgen.worker.control_loop import ControlLoop
from loadgen.worker.flush import Flush
from loadgen.worker.gauges import Gauges
from loadgen.worker.heartbeat import Heartbeat
from loadgen.worker.measuring import Measuring
from loadgen.worker.parts import Parts, assemble, first_target
from loadgen.worker.upload import spool_of
from loadgen.workload.pools import Pool

log = logging.getLogger(__name__)

HARVEST_S = 1.0
CANCEL_S = 5.0  # how long statements that were cancelled on the server may take to come back
STORE_S = 600.0  # how long storing results and the query log may take


class Worker:
    """run() is the main thread's; methods that begin with `_` and end in `_thread` are the other threads' work."""

    def __init__(
        self, arguments: WorkerArguments, place: ControlPlace, *, environ: Mapping[str, str], clock: Clock | None = None
    ) -> None:
        self._arguments, self._place, self._environ = arguments, place, environ
        self._clock = clock or SystemClock()
        self._test_id = str(uuid.uuid4())
        self._board = Board(clock=self._clock)
        self._stopping = threading.Event()  # every thread ends
        self._storing = threading.Event()  # the flush thread writes what is left, and ends
        self._hurry = threading.Event()  # do not wait for statements under way
        self._stored = threading.Event()
        self._timing = Timing()
        self._parts: Parts | None = None
        self._measuring: Measuring | None = None
        self._result: ResultRow | None = None
        self._gauges = Gauges(self._clock)
        self._created_at = self._clock.utc_now().replace(tzinfo=None)
        self._beats = Heartbeat(
            self._session("heartbeat"),
            self._identity(),
            self._board,
            self._compose,
            period_s=self._timing.heartbeat_s,
            clock=self._clock,
        )

    # --- the main thread ---------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Live, and say with which code to exit."""
        self._board.contact()
        self._start("heartbeat", lambda: self._beats.run(self._patience()))
        self._start("control", self._control_thread)
        self._start("probe", lambda: self._gauges.probe(self._stopping))
        ending = self._live()
        return self._end(ending)

    def stop(self, reason: str) -> None:
        """Asked from outside: drain. Asked again: do not wait for statements under way."""
        if self._board.ending is not None:
            self._hurry.set()
        event(log, logging.INFO, "worker_stopping", why=reason)
        self._board.end(Ending(code=WorkerExit.CLEAN, drain_s=self._timing.drain_interrupt_s))

    def orphaned(self, reason: str) -> None:
        self._board.end(Ending(code=WorkerExit.FATAL, error=reason, drain_s=self._timing.drain_interrupt_s))

    def _live(self) -> Ending:
        """Harvest every second until there is a reason to end."""
        due_ns = self._clock.monotonic_ns()
        silent_s, contacts = 0.0, 0
        while not self._board.ended.is_set():
            due_ns += round(HARVEST_S * NS_PER_S)
            wait_s = (due_ns - self._clock.monotonic_ns()) / NS_PER_S
            if wait_s < -5 * HARVEST_S:  # the process was paused: begin counting anew
                due_ns, wait_s = self._clock.monotonic_ns(), 0.0
            self._clock.wait(self._board.ended, wait_s)
            self._harvest()
            # Counted in seconds of being awake: a pause of this process is not a silence of the control plane.
            silent_s = silent_s + HARVEST_S if self._board.contacts == contacts else 0.0
            contacts = self._board.contacts
            if silent_s > self._timing.no_connection_s:
                text = f"the control plane has not answered for {silent_s:.0f} s"
                self._board.end(Ending(code=WorkerExit.NO_CONTROL_PLANE, error=text))
        assert self._board.ending is not None
        return self._board.ending

    def _harvest(self) -> None:
        gauge = self._gauges.read()
        board = self._board
        board.cpu_percent, board.memory_percent = gauge.cpu_percent, gauge.memory_percent
        if self._measuring is not None:
            self._measuring.step(gauge)

    # --- the end -----------------------------------------------------------------------------------------------------

    def _end(self, ending: Ending) -> int:
        board, parts = self._board, self._parts
        if parts is not None and board.status in (WorkerStatus.WAITING, WorkerStatus.RUNNING, WorkerStatus.STARTING):
            board.status = WorkerStatus.DRAINING
            self._drain(parts, ending.drain_s)
        final = board.ending or ending  # something worse may have come up
        if parts is not None:
            self._store(parts, final)
            final = board.ending or final
        self._stopping.set()
        board.status = WorkerStatus.COMPLETED if final.code is WorkerExit.CLEAN else WorkerStatus.DEAD
        board.last_error = final.error or board.last_error
        if final.error is not None:
            sys.stderr.write(f"error: {self._arguments.worker_id}: {final.error}\n")
            sys.stderr.flush()
        self._beats.finish()
        return int(final.code)

    def _drain(self, parts: Parts, drain_s: float) -> None:
        """Begin nothing new, wait for what is under way, cancel the rest on the server, and account for all of it."""
        parts.conductor.finish()
        deadline_ns = self._clock.monotonic_ns() + round(drain_s * NS_PER_S)
        self._wait(lambda: parts.pool.drained, deadline_ns, unless=self._hurry)
        sessions = parts.pool.cancel()
        if sessions:
            self._board.say("WARNING", f"{len(sessions)} statements were still running and are cancelled")
            self._start("cancel", lambda: self._cancel_thread(parts, sessions))
            deadline_ns = self._clock.monotonic_ns() + round(CANCEL_S * NS_PER_S)
            self._wait(lambda: not parts.pool.executing, deadline_ns)
        abandoned = parts.pool.abandon()
        if abandoned:
            self._board.say("WARNING", f"{abandoned} statements never came back; they count as cancelled")
        parts.conductor.settle_all()
        self._harvest()
        self._harvest()  # windows become final with the harvest after the one that saw their last sample

    def _wait(self, done: Callable[[], bool], deadline_ns: int, unless: threading.Event | None = None) -> None:
        """Until it is done or time is over, harvesting all the while."""
        harvest_ns = self._clock.monotonic_ns()
        never = unless or threading.Event()
        while not done() and not never.is_set():
            now_ns = self._clock.monotonic_ns()
            if now_ns >= deadline_ns:
                return
            if now_ns >= harvest_ns + HARVEST_S * NS_PER_S:
                harvest_ns = now_ns
                self._harvest()
            self._clock.wait(never, min(0.05, (deadline_ns - now_ns) / NS_PER_S))

    def _store(self, parts: Parts, ending: Ending) -> None:
        """Have the flush thread write everything that is left; beats go on meanwhile."""
        assert self._measuring is not None
        self._measuring.hand_on(everything=True)
        if parts.query_log is not None:
            parts.query_log.close()
        self._board.say("INFO", f"ended: {ending.error or 'as told'}")
        self._result = self._measuring.result(
            "COMPLETED" if ending.code is WorkerExit.CLEAN else "FAILED", self._created_at
        )
        if ending.code is not WorkerExit.NO_CONTROL_PLANE:
            self._storing.set()
            self._board.urgent.set()
            self._clock.wait(self._stored, STORE_S)
        if not self._stored.is_set() or self._board.ending is not ending:
            self._measuring.keep(spool_of(self._arguments, self._environ), self._result)

    # --- other threads -----------------------------------------------------------------------------------------------

    def _control_thread(self) -> None:
        session, patience = self._session("control"), self._patience()
        try:
            scenario = self._read_scenario(session, patience)
            if scenario is None:
                return
            pools = value_pools.load(session, patience, self._arguments.run_id)
            parts = self._assemble(scenario, pools)
            if self._ready(parts):
                self._board.status = WorkerStatus.WAITING
                self._follow(session, parts)
        except LoadgenError as error:
            self._board.end(ending_for(error))
        except Exception as error:  # a bug of ours: the worker must not live on without this thread
            log.exception("control_thread_died")
            self._board.end(Ending(code=WorkerExit.FATAL, error=f"{type(error).__name__}: {error}"))
        finally:
            session.close()

    def _read_scenario(self, session: ControlSession, patience: Patience) -> Scenario | None:
        """The run's scenario; None when the run is over before this worker came."""
        run_id = self._arguments.run_id
        text = patience.call(lambda: run_status.read_config(session, run_id))
        run = patience.call(lambda: run_status.read(session, run_id))
        self._board.contact()
        if text is None or run is None:
            self._board.end(Ending(code=WorkerExit.CONFIGURATION, error=f"there is no run {run_id}"))
            return None
        if run.status.is_terminal:
            self._board.end(Ending(code=WorkerExit.CLEAN))
            return None
        return thaw(text, self._environ)

    def _assemble(self, scenario: Scenario, pools: Mapping[str, Pool]) -> Parts:
        self._timing = scenario.timing
        self._beats.period_s = scenario.timing.heartbeat_s
        parts = assemble(
            scenario,
            self._arguments,
            pools,
            test_id=self._test_id,
            spool=spool_of(self._arguments, self._environ),
            failed=self._board.failed,
            clock=self._clock,
            environ=self._environ,
        )
        flush = Flush(
            self._session("flush"),
            self._arguments,
            self._test_id,
            self._board,
            self._clock,
            period_s=scenario.timing.flush_s,
        )
        self._measuring = Measuring(parts, flush, self._board, self._arguments, self._test_id, self._clock)
        self._parts = parts
        self._start("flush", lambda: self._flush_thread(parts, flush))
        self._start("ramp", lambda: parts.conductor.run(self._stopping))
        return parts

    def _ready(self, parts: Parts) -> bool:
        """Have every statement described and every connection open. False: the worker is ending."""
        parts.bench.sessions.describe(parts.scenario.workload.statements)
        parts.conductor.aim(first_target(parts.scenario, self._arguments))
        if parts.pool.wanted == 0:
            self._board.say("INFO", "this worker's part of the connections is 0: it waits with nothing to do")
        while not parts.pool.settled:
            refused = parts.pool.refused()
            if refused is not None:
                raise refused
            if self._clock.wait(self._board.ended, 0.05):
                return False
        gc.collect()
        gc.freeze()  # what is there now stays; the collector need not look at it in every measured second
        return True

    def _follow(self, session: ControlSession, parts: Parts) -> None:
        def begin(phase: Phase) -> None:
            parts.conductor.begin(phase, parts.scenario.load.duration_s if phase is Phase.MEASUREMENT else None)
            self._board.status = WorkerStatus.RUNNING

        loop = ControlLoop(
            session,
            self._arguments.run_id,
            self._board,
            parts.agenda,
            self._timing,
            self._clock,
            wake=parts.conductor.wake,
            begin=begin,
        )
        loop.watch(self._stopping)

    def _flush_thread(self, parts: Parts, flush: Flush) -> None:
        patience = self._patience()
        flush.run(self._storing, patience)
        try:
            if self._result is not None:
                flush.finish(patience, self._result, parts.query_log.folder if parts.query_log else None)
        except LoadgenError as error:
            event(log, logging.WARNING, "results_not_stored", what=str(error))
            self._board.end(ending_for(error))
        finally:
            flush.session.close()
            self._stored.set()

    def _cancel_thread(self, parts: Parts, sessions: list[int]) -> None:
        try:
            parts.bench.sessions.cancel(sessions)
        except Exception as error:  # the statements have a time limit of their own
            event(log, logging.WARNING, "cancel_failed", what=str(error))

    # --- small things ------------------------------------------------------------------------------------------------

    def _compose(self, count: int) -> Beat:
        """What the next beat says. Any thread: it only reads."""
        board, parts = self._board, self._parts
        return Beat(
            status=board.status,
            phase=None if parts is None else parts.conductor.phase,
            count=count,
            active_connections=0 if parts is None else parts.pool.executing,
            open_connections=0 if parts is None else parts.pool.open,
            target_connections=0 if parts is None else parts.conductor.target,
            last_error=board.last_error,
            error_count=board.error_count,
            live_metrics=board.live_metrics,
            last_sequence_id=0 if parts is None else parts.agenda.last_sequence_id,
            cpu_percent=board.cpu_percent,
            memory_percent=board.memory_percent,
        )

    def _identity(self) -> WorkerIdentity:
        labels = self._environ.get("LOADGEN_LABELS")
        return WorkerIdentity(
            run_id=self._arguments.run_id,
            worker_id=self._arguments.worker_id,
            worker_group_id=self._arguments.worker_group_id,
            hostname=socket.gethostname()[:255],
            pid=os.getpid(),
            version=__version__,
            labels=json.dumps(labels) if labels else None,
        )

    def _session(self, role: str) -> ControlSession:
        return ControlSession(self._place, role=f"{self._arguments.worker_id}/{role}", environ=self._environ)

    def _patience(self) -> Patience:
        return Patience(stop=self._stopping, clock=self._clock, note=_note)

    def _start(self, name: str, work: Callable[[], None]) -> None:
        threading.Thread(target=work, name=name, daemon=True).start()


def _note(error: ControlFailed) -> None:
    event(log, logging.WARNING, "control_plane_retry", what=str(error))
