"""Scenarios, events and polls for the tests of the worker; valid by default. And stand-ins for its own parts."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from loadgen.control.tables.run_control_events import Event
from loadgen.control.tables.run_measurements import MetricsSnapshot
from loadgen.control.tables.run_status import ConnectionTarget, RunPoll
from loadgen.metrics.connections import ConnectionMeter
from loadgen.metrics.recorder import WindowRegistry
from loadgen.metrics.sample_collector import SampleCollector
from loadgen.metrics.window import WindowResult
from loadgen.model.event import ALL_WORKERS, Command, Recipient, SetPhase, SetWorkerTarget, Stop
from loadgen.model.run import Phase, RunStatus
from loadgen.model.workload import Query, Statement, StatementKind, Workload
from loadgen.scenario.model import Load, LoadMode, Scenario
from loadgen.units import NS_PER_S
from loadgen.worker.arguments import WorkerArguments
from loadgen.worker.client_context import ClientContext, ClientSlots
from loadgen.worker.commands import CommandQueue, DueCommand
from loadgen.worker.ramp_controller import RampController
from tests.fake_clock import FakeClock

SERVER_TIME = datetime(2026, 11, 15, 2, 0, 0)  # noqa: DTZ001  as Snowflake has it: naive UTC
WARMUP, MEASUREMENT = Phase.WARMUP, Phase.MEASUREMENT
STOP = Stop(reason="duration", drain_timeout_s=7.0)
ME = WorkerArguments(run_id="run", worker_id="worker-0", worker_group_id=0, worker_group_count=1)


def statement(name: str = "read", sql: str = "SELECT 1", weight: int = 1) -> Statement:
    return Statement(name=name, kind=StatementKind.READ, weight=weight, queries=(Query(sql=sql),))


def scenario(load: Load | None = None, statements: Sequence[Statement] = (statement(),)) -> Scenario:
    return Scenario(name="s", workload=Workload(statements=tuple(statements), seed=1), load=load or Load(connections=4))


def command_queue(
    *,
    worker_id: str = "worker-0",
    group: int = 0,
    workers: int = 1,
    drain_s: float = 120.0,
    events_timeout_s: float = 5.0,
) -> CommandQueue:
    return CommandQueue(
        worker_id, group, workers, drain_s=drain_s, drain_interrupt_s=drain_s / 6, events_timeout_s=events_timeout_s
    )


def event(
    sequence_id: int, command: Command, *, epoch: int = 1, due_in_ms: int | None = None, to: Recipient = ALL_WORKERS
) -> Event:
    return Event(
        sequence_id=sequence_id,
        event_id=str(sequence_id),
        epoch=epoch,
        command=command,
        address=to,
        age_ms=0,
        due_in_ms=due_in_ms,
    )


def poll(
    *,
    status: RunStatus = RunStatus.RUNNING,
    phase: Phase = Phase.WARMUP,
    epoch: int = 1,
    targets: Mapping[str, ConnectionTarget] | None = None,
) -> RunPoll:
    return RunPoll(
        status=status,
        phase=phase,
        next_sequence_id=1,
        lease_epoch=epoch,
        targets=targets or {},
        server_time=SERVER_TIME,
        lease_over_ms=-1,
    )


def snapshot(number: int) -> MetricsSnapshot:
    counts = ("total_queries", "read_count", "write_count", "error_count", "active_connections", "target_connections")
    times = (f"{name}_latency_ms" for name in ("p50", "p95", "p99", "avg", "min", "max"))
    numbers: dict[str, Any] = {**dict.fromkeys(counts, 0), **dict.fromkeys(times, 1.0)}
    return MetricsSnapshot(
        snapshot_id=str(number),
        run_id=ME.run_id,
        test_id="test",
        worker_id=ME.worker_id,
        worker_group_id=0,
        worker_group_count=1,
        timestamp=SERVER_TIME,
        elapsed_seconds=float(number),
        phase="MEASUREMENT",
        qps=1.0,
        cpu_percent=None,
        memory_percent=None,
        custom_metrics=None,
        **numbers,
    )


class Pool:
    """The clients as the ramp controller sees them: connections are open when the test says so."""

    def __init__(self) -> None:
        self.wanted = self.ahead = 0
        self.sizes: list[int] = []
        self.settled = True
        self.draining = False

    def resize(self, wanted: int, ahead: int = 0) -> None:
        if not self.draining:
            if wanted != self.wanted or not self.sizes:
                self.sizes.append(wanted)
            self.wanted, self.ahead = wanted, max(wanted, ahead)

    def reap(self) -> None:
        pass

    def drain(self) -> None:
        self.draining, self.wanted, self.ahead = True, 0, 0


class Sessions:
    """Only the tags; opening a connection raises AttributeError."""

    def tag(self, phase: Phase | None, step_id: int | None) -> str:
        return f"{phase}/{step_id}"


class Stage:
    """A ramp controller with its surroundings, but without clients: time moves when the test says so."""

    def __init__(
        self,
        load: Load | None = None,
        *,
        statements: Sequence[Statement] = (statement(),),
        arguments: WorkerArguments = ME,
        first_window: int = 0,
    ) -> None:
        self.clock = FakeClock()
        self.clock.now_ns = 1_000 * NS_PER_S
        self.scenario = scenario(load, statements)
        self.windows = WindowRegistry()
        open_loop = self.scenario.load.mode is LoadMode.RATE
        self.connections = ConnectionMeter()
        self.harvester = SampleCollector(
            self.windows,
            statements,
            open_loop=open_loop,
            started_ns=self.clock.now_ns,
            connections=self.connections,
        )
        self.context = ClientContext(
            scenario=self.scenario,
            windows=self.windows,
            sessions=Sessions(),  # type: ignore[arg-type]
            runs=(),
            opening=threading.Semaphore(),
            failed=lambda *_: None,
            connections=self.connections,
            clock=self.clock,
        )
        self.slots = ClientSlots(self.scenario, arguments, {}, self.harvester, None)
        self.pool = Pool()
        me = {"group": arguments.worker_group_id, "workers": arguments.worker_group_count}
        self.command_queue = command_queue(worker_id=arguments.worker_id, **me)
        spare = self.slots.spare() if open_loop else None
        self.ramp_controller = RampController(
            self.context,
            self.pool,  # type: ignore[arg-type]
            self.command_queue,
            arguments,
            spare,
            self.clock,
            first_window,
        )
        self.zero_ns = self.clock.now_ns
        self._number = 0

    @property
    def now_s(self) -> float:
        """Since the test began."""
        return (self.clock.now_ns - self.zero_ns) / NS_PER_S

    def say(self, command: Command, *, at_s: float | None = None) -> None:
        """An event that takes effect at this second of the test; None: at once."""
        self._number += 1
        due_in_ms = None if at_s is None else round((at_s - self.now_s) * 1_000)
        self.command_queue.receive(event(self._number, command, due_in_ms=due_in_ms), self.clock.now_ns)

    def run_to(self, second: float) -> None:
        """As the thread of the ramp controller: step, wait, step."""
        end_ns = self.zero_ns + round(second * NS_PER_S)
        while True:
            wait_s = self.ramp_controller.step()
            left_ns = end_ns - self.clock.now_ns
            if left_ns <= 0:
                return
            self.clock.now_ns += min(left_ns, max(1, round(wait_s * NS_PER_S)))

    def results(self) -> list[WindowResult]:
        """Every window so far, after a harvest."""
        self.harvester.harvest(self.clock.now_ns)
        return list(self.harvester.results(self.clock.now_ns))

    def spans(self) -> list[tuple[str, int | None, float, float | None]]:
        """Phase, step, from and to of every window, in seconds of the test."""
        return [
            (
                window.phase.value,
                window.step_id,
                self._second(window.opened_ns),
                None if window.closed_ns is None else self._second(window.closed_ns),
            )
            for window in self.windows.held()
        ]

    def _second(self, moment_ns: int) -> float:
        return round((moment_ns - self.zero_ns) / NS_PER_S, 6)


def phase(name: Phase, duration_s: float | None = None, step_id: int | None = None) -> SetPhase:
    return SetPhase(phase=name, step_id=step_id, duration_ms=None if duration_s is None else duration_s * 1_000)


def target(number: int, **fields: object) -> SetWorkerTarget:
    return SetWorkerTarget(target_connections=number, **fields)  # type: ignore[arg-type]


def measure(step_id: int | None = None, **fields: object) -> SetPhase:
    return SetPhase(phase=Phase.MEASUREMENT, step_id=step_id, **fields)  # type: ignore[arg-type]


def stored(
    number: int, sequence_id: int | None, *, in_s: float | None = None, step_id: int | None = None
) -> ConnectionTarget:
    effective_at = None if in_s is None else (SERVER_TIME + timedelta(seconds=in_s)).isoformat(timespec="milliseconds")
    return ConnectionTarget(
        target_connections=number, sequence_id=sequence_id, step_id=step_id, effective_at=effective_at
    )


def receive_all(of: CommandQueue, events: Iterable[Event], now_ns: int = 0) -> None:
    for one in events:
        of.receive(one, now_ns)


def numbers(taken: Iterable[DueCommand]) -> list[int]:
    return [due.sequence_id for due in taken]


def connections(taken: Iterable[DueCommand]) -> list[int]:
    return [due.command.target_connections for due in taken if isinstance(due.command, SetWorkerTarget)]
