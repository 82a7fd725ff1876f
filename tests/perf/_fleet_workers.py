"""Some workers of a fleet in one process: the product's heartbeat, control and flush threads, and clients that count.

What is missing is the load: no connection to a target, no statement, no collection of samples. A client is a number
that grows with time. What the control plane and the leader see is as of a worker that measures three statements.

Hundreds of threads share one interpreter here, which no worker of the product has to bear. Each of them that waits for
the interpreter wakes up once per switch interval to ask for it: with the 5 ms of the default, 300 waiting threads cost
60,000 wake-ups a second, and the processes do nothing else from then on. Hence the long interval: no thread here
computes for long. And a command counts from the moment for which it was announced, or at which the product's control
thread had read it when that is later; not from when the one thread that stands for all clients came to look.

Arguments: the run's id, the first worker's number, how many are here, how many there are. Prints one JSON document.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import uuid
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

import numpy as np

from loadgen.clock import SystemClock, monotonic_ns
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlSession
from loadgen.control.tables import run_status
from loadgen.control.tables.run_control_events import Event
from loadgen.control.tables.run_measurements import MetricsSnapshot
from loadgen.control.tables.worker_heartbeats import WorkerHeartbeat
from loadgen.metrics.histogram import Histogram
from loadgen.metrics.interval import MeasuredCounts
from loadgen.metrics.live_metrics import FULL_SECONDS_WORKERS_MAX, LiveMetrics, LiveSecond, write_live
from loadgen.metrics.recorder import Outcome, WindowState
from loadgen.metrics.tally import StatementTally, Tally, Times
from loadgen.metrics.window import WindowResult, WindowRow
from loadgen.model.counts import Counts
from loadgen.model.event import SetPhase
from loadgen.model.run import Phase, WorkerStatus
from loadgen.scenario.frozen import thaw
from loadgen.scenario.model import Scenario
from loadgen.snowflake.session import RetryPolicy
from loadgen.worker.arguments import WorkerArguments
from loadgen.worker.commands import CommandQueue
from loadgen.worker.control_loop import ControlLoop
from loadgen.worker.flush import ResultFlusher, result_row, started_row
from loadgen.worker.heartbeat import LAST_BEAT_S, Heartbeat, identity_of
from loadgen.worker.worker_state import WorkerSharedState

STATEMENTS = ("point_lookup", "pay", "checkout")
PER_CLIENT_S = 10  # statements a second
LOOK_S = 0.5
SWITCH_S = 0.5
START_S = 0.6  # between two workers of a process: three logins each, which cost far more than anything after them
SECONDS_KEPT = 15
NS = 10**9
_RESPONSES = np.random.default_rng(1).lognormal(17, 0.5, 200).astype(np.int64)  # as of 24 ms


@dataclass(slots=True)
class Followed:
    """When a worker did what it was told: moments of the machine's monotonic clock."""

    started_ns: int | None = None
    stopped_ns: int | None = None
    levels: dict[int, tuple[int, int]] | None = None  # by step: when its target was in force, and that target
    late: int = 0  # commands that were read after the moment for which they were announced


class DatedCommandQueue(CommandQueue):
    """Knows when each event was read."""

    def __init__(self, *who: Any, **settings: Any) -> None:
        super().__init__(*who, **settings)
        self.read_ns: dict[int, int] = {}

    def receive(self, event: Event, now_ns: int) -> str | None:
        self.read_ns.setdefault(event.sequence_id, now_ns)
        return super().receive(event, now_ns)


class CountingWorker:
    """look() now and then, by one thread for all workers of the process."""

    def __init__(
        self, arguments: WorkerArguments, place: ControlPlaneLocation, scenario: Scenario, template_id: str
    ) -> None:
        self.arguments, self._scenario, self._template_id = arguments, scenario, template_id
        self.followed = Followed(levels={})
        self.clock = SystemClock()
        self.shared = WorkerSharedState(clock=self.clock)
        self._timing, self._test_id = scenario.timing, str(uuid.uuid4())
        self._stopping = threading.Event()
        self._created_at = datetime.now(UTC).replace(tzinfo=None)
        self._target, self._step, self._step_ns, self._second_ns = 0, 0, 0, 0
        self._windows: list[WindowResult] = []
        self._seconds: list[LiveSecond] = []
        self.queue = DatedCommandQueue(
            arguments.worker_id,
            arguments.worker_group_id,
            arguments.worker_group_count,
            drain_s=self._timing.drain_s,
            drain_interrupt_s=self._timing.drain_interrupt_s,
            events_timeout_s=self._timing.events_poll_s,
        )
        sessions = {
            role: ControlSession(place, role=f"{arguments.worker_id}/{role}")
            for role in ("heartbeat", "control", "flush")
        }
        self._beats = Heartbeat(
            sessions["heartbeat"],
            identity_of(arguments, {"LOADGEN_HOSTNAME": arguments.worker_id}),
            self.shared,
            self._compose,
            period_s=self._timing.heartbeat_s,
            clock=self.clock,
        )
        self._flush = ResultFlusher(
            *(sessions["flush"], arguments, self._test_id, self.shared, self.clock),
            period_s=self._timing.flush_s,
            is_first=True,  # as the product's, once it is registered: nothing is replaced here
        )
        self._control = sessions["control"]
        self.threads = [
            threading.Thread(target=work, name=work.__name__, daemon=True)
            for work in (self._heartbeat_thread, self._control_thread, self._flush_thread)
        ]

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    # --- the product's threads ---------------------------------------------------------------------------------------

    def _heartbeat_thread(self) -> None:
        self._beats.run(self._retries())

    def _control_thread(self) -> None:
        loop = ControlLoop(
            self._control,
            self.arguments.run_id,
            self.shared,
            self.queue,
            self._timing,
            self.clock,
            wake=threading.Event(),
            begin=self._begin,
        )
        while not self._beats.registered.wait(1.0):
            if self.shared.ended.is_set():
                return
        self.shared.advance(WorkerStatus.WAITING)
        loop.watch(self._stopping)
        self._control.close()

    def _flush_thread(self) -> None:
        retries = self._retries()
        self._flush.run(self.shared.ended, retries)
        while self.followed.stopped_ns is None:  # the last window is not put before
            self._stopping.wait(LOOK_S)
        result = result_row(
            self._windows,
            MeasuredCounts(),
            self.arguments,
            test_id=self._test_id,
            template_id=self._template_id,
            status="COMPLETED",
            created_at=self._created_at,
        )
        self._flush.finish(retries, result, None)
        self.shared.advance(WorkerStatus.COMPLETED)
        self._beats.finish()
        self._beats.said_last.wait(LAST_BEAT_S)
        self._stopping.set()
        self._flush.session.close()

    def _begin(self, _: Phase | None) -> None:
        self.shared.advance(WorkerStatus.RUNNING)
        self.shared.say("INFO", "START")
        me, ids = self.arguments, {"test_id": self._test_id, "template_id": self._template_id}
        self._flush.put_start(started_row(me, **ids, created_at=self._created_at))

    def _retries(self) -> RetryPolicy:
        return RetryPolicy(stop=threading.Event(), clock=self.clock)

    # --- the clients -------------------------------------------------------------------------------------------------

    def look(self, now_ns: int) -> None:
        """Do what is due."""
        if self.shared.ended.is_set():
            if self.followed.stopped_ns is None:
                self.shared.advance(WorkerStatus.DRAINING)
                self._close(now_ns)
                self.followed.stopped_ns = now_ns
                self.shared.urgent.set()  # for the flush thread
            return
        for due in self.queue.take_due(now_ns):
            at_ns = max(due.at_ns, self.queue.read_ns.get(due.sequence_id, now_ns))
            self.followed.late += at_ns > due.at_ns
            if isinstance(due.command, SetPhase):
                self.followed.started_ns = self.followed.started_ns or at_ns
            elif due.command.step_id is not None:
                self._close(now_ns)
                self._target, self._step, self._step_ns = due.command.target_connections, due.command.step_id, at_ns
                assert self.followed.levels is not None
                self.followed.levels[self._step] = (at_ns, self._target)
        if self._step and now_ns - self._second_ns >= NS:
            self._second_ns = now_ns
            self._second(now_ns)

    def _close(self, now_ns: int) -> None:
        """The level is over: its window is final, and stored at once."""
        if self._step:
            window = self._window(now_ns, WindowState.FINAL)
            self._windows.append(window)
            row = WindowRow.of(window, worker_id=self.arguments.worker_id, epoch=self.queue.epoch)
            self._flush.put_window(row, forget=True)

    def _window(self, now_ns: int, state: WindowState) -> WindowResult:
        seconds = max(0.0, (now_ns - self._step_ns) / NS)
        each = max(1, round(self._target * PER_CLIENT_S * seconds / len(STATEMENTS)))
        times = Histogram.weighted(_RESPONSES, np.full(len(_RESPONSES), -(-each // len(_RESPONSES)), np.int64))
        tally = StatementTally(times={Outcome.SUCCEEDED: Times(times, times)})
        done = times.count * len(STATEMENTS)
        return WindowResult(
            window_id=self._step,
            phase=Phase.MEASUREMENT,
            step_id=self._step,
            state=state,
            seconds=seconds,
            counts=Counts(scheduled=done, succeeded=done),
            tally=Tally(statements=dict.fromkeys(STATEMENTS, tally)),
        )

    def _second(self, now_ns: int) -> None:
        """What one second leaves: in the heartbeat, and to be stored."""
        count, moment = self._target * PER_CLIENT_S, datetime.now(UTC).replace(tzinfo=None)
        times = _times(count)
        second = LiveSecond(
            ended_at=moment,
            seconds=1.0,
            phase=Phase.MEASUREMENT,
            executing=self._target,
            statements={"*": Counts(succeeded=times.count)},
            times={"*": times},
        )
        brief = self.arguments.worker_group_count > FULL_SECONDS_WORKERS_MAX
        self._seconds = [*self._seconds[1 - SECONDS_KEPT :], second.brief if brief else second]
        self._flush.put_snapshot(
            MetricsSnapshot(
                run_id=self.arguments.run_id,
                test_id=self._test_id,
                worker_id=self.arguments.worker_id,
                worker_group_id=self.arguments.worker_group_id,
                worker_group_count=self.arguments.worker_group_count,
                timestamp=moment,
                elapsed_seconds=(now_ns - self._step_ns) / NS,
                phase=Phase.MEASUREMENT.value,
                total_queries=count,
                read_count=count,
                write_count=0,
                error_count=0,
                qps=float(count),
                active_connections=self._target,
                target_connections=self._target,
                custom_metrics="{}",
                p50_latency_ms=None,
                p95_latency_ms=None,
                p99_latency_ms=None,
                avg_latency_ms=None,
                min_latency_ms=None,
                max_latency_ms=None,
                cpu_percent=None,
                memory_percent=None,
            )
        )

    def _compose(self, number: int) -> WorkerHeartbeat:
        under_way = (self._window(self.clock.monotonic_ns(), WindowState.OPEN),) if self._step else ()
        done = sum(window.counts.succeeded for window in (*self._windows, *under_way))
        stored = tuple(self.shared.stored_windows)
        windows = (*(one for one in self._windows if one.window_id not in stored), *under_way)
        live = LiveMetrics(
            elapsed_s=1.0,
            totals=Counts(scheduled=done, succeeded=done),
            measured=MeasuredCounts(queries=done, reads=done),
            windows=windows,
            seconds=tuple(self._seconds),
        )
        return WorkerHeartbeat(
            status=self.shared.status,
            phase=Phase.MEASUREMENT if self._step else None,
            count=number,
            target_connections=self._target,
            live_metrics=write_live(live),
            last_sequence_id=self.queue.last_sequence_id,
        )


@cache
def _times(count: int) -> Histogram:
    return Histogram.of(_RESPONSES[:count])


def main(run_id: str, first: int, here: int, workers: int) -> int:
    sys.setswitchinterval(SWITCH_S)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[first // here % len(cores)]})  # as the product's workers, for the same reason
    place = ControlPlaneLocation.from_environment()
    session = ControlSession(place, role="fleet")
    config, run = run_status.read_config(session, run_id), run_status.read(session, run_id)
    session.close()
    assert config is not None
    assert run is not None
    scenario = thaw(config, os.environ)
    fleet: list[CountingWorker] = []
    begun_s = time.monotonic()
    until_s = begun_s + scenario.timing.start_s + 600.0
    told_to_end: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told_to_end.append(number))
    while (now_s := time.monotonic()) < until_s and not told_to_end:
        if len(fleet) < here and now_s >= begun_s + len(fleet) * START_S:
            number = first + len(fleet)
            arguments = WorkerArguments(
                run_id=run_id, worker_id=f"worker-{number}", worker_group_id=number, worker_group_count=workers
            )
            fleet.append(CountingWorker(arguments, place, scenario, run.template_id))
            fleet[-1].start()
        for worker in fleet:
            worker.look(monotonic_ns())
        if len(fleet) == here and not any(thread.is_alive() for worker in fleet for thread in worker.threads):
            break
        time.sleep(max(0.0, now_s + LOOK_S - time.monotonic()))
    print(json.dumps([asdict(worker.followed) | {"code": _code(worker)} for worker in fleet]), flush=True)
    return 0


def _code(worker: CountingWorker) -> int | None:
    """None: it has not ended."""
    ending = worker.shared.ending
    return None if ending is None or worker.shared.status is not WorkerStatus.COMPLETED else int(ending.code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:5])))
