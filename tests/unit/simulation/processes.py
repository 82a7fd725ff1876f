"""Worker and orchestrator processes: the real classes on simulated clocks. They can be paused and killed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, cast

from loadgen.control.session import ControlSession, NamedQuery
from loadgen.errors import LoadgenError
from loadgen.model.run import Phase, ProcessEnd
from loadgen.results.run_snapshot import RunSnapshot
from loadgen.snowflake.session import RetryPolicy
from loadgen.units import NS_PER_S
from loadgen.worker.arguments import WorkerArguments
from loadgen.worker.self_monitor import PROBE_S, ResourceReading, WakeupDelay
from loadgen.worker.worker import Worker
from orchestrator.recover import recover_runs
from orchestrator.service import OrchestratorService
from orchestrator.spawn.spawner import ObservedWorkers, WorkerOrder
from tests.unit.simulation.rules import Mutation
from tests.unit.simulation.scheduler import Killed
from tests.unit.simulation.standard_tables import ZERO
from tests.unit.simulation.target import BUSY_FACTOR
from tests.unit.simulation.wires import PLACE, RequestOutcome, Wire

if TYPE_CHECKING:
    from tests.unit.simulation.world import World

RECOVER_S = 5.0  # between two polls for orphaned runs
_PROBE_NS = round(PROBE_S * NS_PER_S)


class ProcessClock:
    """The clocks of a process. They continue while its machine is suspended."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._scheduler = process.world.scheduler
        self.stood_still_ns = 0  # the mutation STANDSTILL: time while it was suspended

    def monotonic_ns(self) -> int:
        return self._scheduler.now_ns - self.stood_still_ns

    def utc_now(self) -> datetime:
        return ZERO.replace(tzinfo=UTC) + timedelta(microseconds=self.monotonic_ns() // 1_000)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s)


class Process:
    """A process that runs, can be paused, and ends."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.clock = ProcessClock(self)
        self.gone = False
        self.never = threading.Event()
        self.ended_s: float | None = None
        self.code: int | None = None
        self.paused_until_ns = 0
        self.pauses: list[tuple[int, int]] = []
        self.suspensions: list[tuple[int, int]] = []  # those during which its machine was suspended
        self.slow_until_s = 0.0  # responses to its reads come late,
        self.slowness = RequestOutcome.HELD_BACK  # in this way
        self.cut_off_until_s = 0.0  # from the control plane
        self.mute_until_s = 0.0  # its heartbeats or its renewals do not arrive

    def begin(self, after_s: float = 0.0) -> None:
        def start() -> None:
            if not self.gone:
                self.world.scheduler.spawn(self, self._live, self.name)

        scheduler = self.world.scheduler
        scheduler.at(scheduler.now_s + after_s, start)

    def pause(self, seconds: float) -> None:
        """Paused by a signal, or by the machine."""
        now_ns = self.world.scheduler.now_ns
        until_ns = now_ns + round(seconds * NS_PER_S)
        if until_ns > self.paused_until_ns:
            since_ns = max(now_ns, self.paused_until_ns)
            self.pauses.append((since_ns, until_ns))
            self.paused_until_ns = until_ns

    def suspend(self, seconds: float) -> None:
        """Its machine is suspended: waits continue afterwards, whereas they expire during a pause by a signal."""
        if self.world.scheduler.now_ns >= self.paused_until_ns:
            self.pause(seconds)
            self.world.scheduler.postpone(self, round(seconds * NS_PER_S))
            self.suspensions.append(self.pauses[-1])
            if self.world.mutation is Mutation.STANDSTILL:
                self.clock.stood_still_ns += round(seconds * NS_PER_S)

    def kill(self) -> None:
        self._exit(-9)

    @property
    def is_running(self) -> bool:
        return not self.gone

    def _live(self) -> None:
        code = self.main()
        if not self.gone:
            self._exit(code)

    def main(self) -> int:
        raise NotImplementedError

    def _exit(self, code: int) -> None:
        if not self.gone:
            scheduler = self.world.scheduler
            self.gone, self.code, self.ended_s = True, code, scheduler.now_s
            self.world.note("exit", self.name, str(code))
            scheduler.wake(self)
            self.world.process_ended(self)

    def open_session(self, role: str) -> ControlSession:
        return cast(ControlSession, Wire(self.world.tables, SessionNetwork(self, role)))

    def soon(self, work: Callable[[], object], name: str) -> None:
        if not self.gone:  # as the signal thread does
            self.world.scheduler.spawn(self, work, name)


class SessionNetwork:
    """The outcome of the statements of one session."""

    def __init__(self, process: Process, role: str) -> None:
        self._process, self._world, self._role = process, process.world, role
        self._mutable = role.endswith(("heartbeat", "lease"))

    def note(self, query: NamedQuery) -> None:
        self._world.statements.append((self._process.name, self._role, query.name))

    def outcome(self, *, changes: bool) -> RequestOutcome:
        world, process, now_s = self._world, self._process, self._world.scheduler.now_s
        if process.gone:
            raise Killed
        if now_s < world.away_until_s:
            return RequestOutcome.AWAY
        if now_s < process.cut_off_until_s or (self._mutable and now_s < process.mute_until_s):
            return RequestOutcome.LATE if changes and world.rng.random() < 0.3 else RequestOutcome.AWAY
        if now_s < process.slow_until_s and not changes:
            return process.slowness
        return world.outcome(changes=changes)

    def refuses(self, query: NamedQuery) -> bool:
        world = self._world
        return query.name == "query_executions.append" and world.scheduler.now_s < world.log_refused_until_s

    def latency_s(self) -> float:
        return self._world.latency_s()

    def silence_s(self) -> float:
        return self._world.rng.choice((0.01, 0.2, 2.0, 8.0))

    def held_s(self) -> float:
        return self._world.rng.choice((0.6, 0.6, 0.9, 1.2, 5.0))

    def later(self, outcome: RequestOutcome, happens: Callable[[], None]) -> None:
        self._world.later(outcome, happens)

    def sleep(self, seconds: float) -> None:
        if seconds > 0.0:
            self._world.scheduler.sleep(seconds)
        elif self._process.gone:
            raise Killed


class SimulatedMonitor:
    """The load of a worker: none. And the lateness of its threads: by its pauses, and while it is busy."""

    def __init__(self, clock: ProcessClock) -> None:
        self._clock = clock
        self._told_ns = clock.monotonic_ns()
        self._paused = 0  # number of pauses that were reported

    def probe(self, stopping: threading.Event) -> None:
        stopping.wait()

    def read(self) -> ResourceReading:
        from_ns, now_ns = self._told_ns, self._clock.monotonic_ns()
        process = self._clock.process
        by_breakage = {None: [], Mutation.PAUSES: process.pauses, Mutation.STANDSTILL: process.suspensions}
        unseen = by_breakage.get(process.world.mutation, [])
        pauses = [pause for pause in process.pauses[self._paused :] if pause not in unseen]
        self._paused = len(process.pauses)
        waits, at_ns = [], from_ns
        for since_ns, until_ns in pauses:
            if since_ns > at_ns:
                waits.append(WakeupDelay(at_ns, since_ns, 0))
            begun_ns = max(at_ns, since_ns - _PROBE_NS // 2)
            waits.append(WakeupDelay(begun_ns, until_ns, max(0, until_ns - begun_ns - _PROBE_NS)))
            at_ns = until_ns
        waits.append(WakeupDelay(at_ns, now_ns, 0))
        waits = [part for wait in waits for part in self._busy(wait)]
        self._told_ns = now_ns
        return ResourceReading(
            cpu_percent=1.0,
            memory_percent=1.0,
            wakeup_p99_ms=0.0,
            from_ns=from_ns,
            to_ns=now_ns,
            cores=2,
            waits=tuple(wait for wait in waits if wait.to_ns > wait.from_ns),
        )

    def _busy(self, wait: WakeupDelay) -> Iterator[WakeupDelay]:
        """The parts of a wait: a client that is short of CPU wakes up as much later as its statements are slower."""
        process, at_ns = self._clock.process, wait.from_ns
        assert isinstance(process, WorkerProcess)
        world = process.world
        for span in () if wait.late_ns or world.mutation is Mutation.BUSY else world.target.busy:
            since_ns, until_ns = (round(moment_s * NS_PER_S) for moment_s in (span.from_s, span.to_s))
            since_ns, until_ns = max(at_ns, since_ns), min(wait.to_ns, until_ns)
            if process.worker_id in span.workers and since_ns < until_ns:
                yield WakeupDelay(at_ns, since_ns, 0)
                yield WakeupDelay(since_ns, until_ns, round(BUSY_FACTOR * world.service_s * NS_PER_S))
                at_ns = until_ns
        yield wait._replace(from_ns=at_ns)


class WorkerProcess(Process):
    """`loadgen worker`."""

    def __init__(self, world: World, order: WorkerOrder, pid: int) -> None:
        super().__init__(world, f"{order.worker_id}:{pid}")
        self.worker_id, self.pid, self.order = order.worker_id, pid, order
        self._worker: Worker | None = None

    def main(self) -> int:
        order = self.order
        arguments = WorkerArguments(
            run_id=order.run_id,
            worker_id=order.worker_id,
            worker_group_id=order.worker_group_id,
            worker_group_count=order.worker_group_count,
        )
        self._worker = Worker(
            arguments, PLACE, environ=self.world.environ, clock=self.clock, open_session=self.open_session
        )
        return self._worker.run()

    @property
    def joined_s(self) -> float | None:
        """The time at which its first window opened."""
        parts = None if self._worker is None else self._worker._parts
        joined_ns = None if parts is None else parts.ramp_controller._joined_ns
        return None if joined_ns is None else joined_ns / NS_PER_S

    @property
    def measured(self) -> tuple[float, float] | None:
        """When its measurement was due by its own estimate, and the uncertainty that it reports."""
        if self._worker is None or self._worker._parts is None or self._worker._collector is None:
            return None
        zero_ns, windows = self._worker._parts.ramp_controller._zero_ns, self._worker._collector._final
        told_ms = [one.uncertain_ms for one in windows if one.phase is Phase.MEASUREMENT]
        return None if zero_ns is None or not told_ms else (zero_ns / NS_PER_S, max(told_ms) / 1_000)

    def terminate(self) -> None:
        """SIGTERM. It ends the process if no handler is set yet."""
        if self._worker is None:
            self._exit(-15)
        else:
            worker = self._worker
            self.soon(lambda: worker.stop("SIGTERM"), "signals")

    def orphaned(self) -> None:
        if self._worker is not None:
            worker = self._worker
            self.soon(lambda: worker.parent_ended("the parent process is gone"), "parent-watch")
        else:
            self._exit(4)


class LocalSpawner:
    """A Spawner of local child processes: it sees their ends, and they notice the end of their parent."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._children: list[WorkerProcess] = []

    def start(self, orders: tuple[WorkerOrder, ...]) -> None:
        self._children = [self._world.start_worker(order) for order in orders]

    def ended(self) -> tuple[ProcessEnd, ...]:
        return tuple(
            ProcessEnd(worker_id=child.worker_id, code=child.code or 0) for child in self._children if child.gone
        )

    def running(self) -> int:
        return sum(not child.gone for child in self._children)

    def terminate(self, *, hard: bool) -> None:
        for child in self._children:
            if not child.gone:
                child.kill() if hard else child.terminate()

    def close(self) -> None:
        """Nothing to release."""

    def orphan(self) -> None:
        for child in self._children:
            child.orphaned()


class RemoteSpawner(ObservedWorkers):
    """A Spawner on other machines: only the heartbeats of workers are visible."""

    def __init__(self, world: World, *, starts: bool) -> None:
        self._world, self._starts = world, starts

    def start(self, orders: tuple[WorkerOrder, ...]) -> None:
        for order in orders if self._starts else ():
            self._world.start_worker(order)


class OrchestratorProcess(Process):
    """`loadgen run`, or `loadgen runs recover`, which takes over a run that lost its leader."""

    def __init__(self, world: World, name: str, *, begun: bool) -> None:
        super().__init__(world, name)
        self._begun = begun
        self._children = LocalSpawner(world) if not world.elsewhere and not begun else None
        self.service = OrchestratorService(
            PLACE,
            lambda _: self._children or RemoteSpawner(world, starts=not begun),
            environ=world.environ,
            clock=self.clock,
            open_session=self.open_session,
        )
        self.is_leading = not begun

    def main(self) -> int:
        world = self.world
        self.is_leading = True
        try:
            if not self._begun:
                self.service.create_run(world.scenario, run_id=world.run_id)
            lead = self.service.take_over if self._begun else self.service.start_run
            lead(world.run_id, self._told)
        except LoadgenError as error:
            world.note("gave up", self.name, str(error))
            return error.exit_code
        finally:
            self.is_leading = not self._begun
        return 0

    def interrupt(self) -> None:
        if not self.gone:
            self.world.note("interrupt", self.name)
            self.service.interrupt()

    def kill(self) -> None:
        if not self.gone:
            super().kill()
            if self._children is not None:
                self._children.orphan()

    def _told(self, snapshot: RunSnapshot) -> None:
        self.world.seen_by(snapshot)

    def _live(self) -> None:
        super()._live()
        if self._children is not None:
            self._children.orphan()


class Recovery(OrchestratorProcess):
    """Repeats `loadgen runs recover`: ends an orphaned run, and continues a run without a leader."""

    def main(self) -> int:
        session = self.open_session("recover")
        retries = RetryPolicy(stop=self.never, clock=self.clock, attempts=3)
        while not self.world.tables.status.is_terminal:
            try:
                done, left = recover_runs(session, retries, by="a user")
                for one in done:
                    self.world.recovered(one)
                if any(one.living for one in left) and self.world.may_lead(self) and super().main() == 0:
                    return 0
            except LoadgenError as error:
                self.world.note("recovery failed", str(error))
            self.world.scheduler.sleep(RECOVER_S)
        return 0
