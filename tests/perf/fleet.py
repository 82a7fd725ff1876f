"""Whether the control plane carries a fleet: workers that register, start together, follow levels and stop.

    ./bin/bench fleet                         10, 100 and 1,000 workers
    ./bin/bench fleet --workers 100           10 and 100
    ./bin/bench fleet --workers 100 --only    100

One embedded server is the control plane. The product's leader is in this process; workers are in a few processes: their
heartbeat, control and flush threads are the product's, their clients only count. So figures are of the control plane,
and a machine with two cores is enough. Wanted of every fleet: all register and start within a second of each other, all
follow three levels and stop, none is taken for stale, and querying and merging all heartbeats takes the leader at most
half a second of processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from loadgen.clock import SystemClock
from loadgen.control.session import ControlSession
from loadgen.control.tables import worker_heartbeats
from loadgen.model.run import Phase, ProcessEnd, RunStatus
from loadgen.results.run_snapshot import RunSnapshot, WorkerHealth
from loadgen.scenario.model import Scenario
from loadgen.scenario.read import parse_scenario
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS
from orchestrator.aggregation import RunAggregator
from orchestrator.leader import Leader
from orchestrator.lifecycle import MoveRun, RunEnding, RunObservation, SearchFinished, SearchUpdate, StartStep
from orchestrator.service import OrchestratorService
from orchestrator.spawn.spawner import WorkerOrder
from orchestrator.worker_health import assess_workers
from tests.control_plane import ControlPlane
from tests.embedded_server import EmbeddedServer
from tests.perf._cleanup import cleaned_up
from tests.perf._figures import Figure, report
from tests.processes import ROOT

SIZES = (10, 100, 1_000)
LEVELS = 3
LEVEL_S = 25.0
PROCESSES = 8  # of workers
SPREAD_MAX_S = 1.0
MERGE_MAX_S = 0.5
NS = 1e9
SCENARIO = """
version: 1
name: fleet
connection: embedded
target: {{warehouse: BENCH_WH, database: BENCH, schema: PUBLIC}}
workload:
  statements:
    - {{name: point_lookup, weight: 80, sql: SELECT 1}}
    - {{name: pay, kind: write, weight: 15, sql: SELECT 2}}
    - {{name: checkout, kind: write, weight: 5, sql: SELECT 3}}
load:
  mode: find_max
  workers: {workers}
  warmup: 0s
  find_max: {{start: {workers}, increment: {workers}, maximum: {top}, step: 30s}}
query_log: {{mode: none}}
timing: {{registration: 900s, start: 900s}}
"""


class FleetSpawner:
    """Processes with many workers each."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self._processes: list[subprocess.Popen[str]] = []
        self._orders: tuple[WorkerOrder, ...] = ()

    def start(self, orders: tuple[WorkerOrder, ...]) -> None:
        self._orders, each = orders, -(-len(orders) // PROCESSES)
        for first in range(0, len(orders), each):
            here = min(each, len(orders) - first)
            words = (orders[0].run_id, first, here, len(orders))
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-P", "-m", "tests.perf._fleet_workers", *map(str, words)],
                    stdout=subprocess.PIPE,
                    text=True,
                    env=self._environment | {"PYTHONPATH": str(ROOT)},
                )
            )

    def followed(self) -> list[dict[str, Any]]:
        """What every worker has done. Waits for their end."""
        return [worker for process in self._processes for worker in json.loads(process.communicate()[0] or "[]")]

    def ended(self) -> tuple[ProcessEnd, ...]:
        """Only those whose process failed: the others report their end themselves."""
        codes, each = [process.poll() for process in self._processes], -(-len(self._orders) // PROCESSES)
        return tuple(
            ProcessEnd(worker_id=order.worker_id, code=code)
            for order in self._orders
            if (code := codes[order.worker_group_id // each])
        )

    def cpu_s(self) -> float:
        return sum(sum(psutil.Process(process.pid).cpu_times()[:2]) for process in self._processes)

    def running(self) -> int:
        return sum(process.poll() is None for process in self._processes)

    def terminate(self, *, hard: bool) -> None:
        for process in self._processes:
            process.kill() if hard else process.terminate()

    def close(self) -> None:
        """Their end is waited for by followed()."""


@dataclass(slots=True)
class Meter:
    """Counters at the beginning and the end of the levels."""

    server: EmbeddedServer
    workers: Callable[[], float]  # processor time of their processes
    at: list[tuple[float, float, float, float, int]] = field(default_factory=list)

    def read(self) -> None:
        tree = [psutil.Process(self.server.process.pid)]
        tree += tree[0].children(recursive=True)
        server_s = sum(sum(process.cpu_times()[:2]) for process in tree)
        statements = self.server.ask("/__loadgen/stats")["statements"]
        self.at.append((time.monotonic(), time.process_time(), server_s, self.workers(), statements))

    def rates(self) -> tuple[float, float, float, float]:
        """Cores of the leader, of the control plane and of the workers, and statements a second."""
        (begun_s, *before), (ended_s, *after) = self.at[0], self.at[-1]
        leader, server, workers, statements = (
            (late - early) / (ended_s - begun_s) for early, late in zip(before, after, strict=True)
        )
        return leader, server, workers, statements


class LevelLeader(Leader):
    """Publishes levels at fixed times: nothing is searched for."""

    meter: Meter
    levels: list[int]
    _due_s = 0.0

    def _look_at_search(self, view: RunObservation, measured_s: float) -> SearchUpdate | None:
        waits = self._state.next_step is not None or view.phase is not Phase.MEASUREMENT
        if waits or view.status is not RunStatus.RUNNING or measured_s < self._due_s:
            return None
        if not self.levels:
            self.meter.read()
            return SearchUpdate(step=None, decision=SearchFinished("all levels are done"))
        if not self._due_s:
            self.meter.read()
        self._due_s = measured_s + LEVEL_S
        number = LEVELS - len(self.levels) + 1
        return SearchUpdate(step=None, decision=StartStep(number, self.levels.pop(0)))


class Fleet:
    """One run with this many workers."""

    def __init__(self, plane: ControlPlane, workers: int) -> None:
        self._plane, self.workers = plane, workers
        self.stale: set[str] = set()
        environment = {**os.environ, **plane.environ, **plane.place.to_environment()}
        self._spawner = FleetSpawner(environment)
        self.meter = Meter(plane.server, self._spawner.cpu_s)
        text = SCENARIO.format(workers=workers, top=workers * LEVELS)
        self._scenario: Scenario = parse_scenario(text, source="fleet", environ=os.environ).scenario
        self.ending: RunEnding | None = None
        self.failure: BaseException | None = None

    def run(self) -> list[dict[str, Any]]:
        """What every worker has done."""
        thread = threading.Thread(target=self._lead, name="leader")
        thread.start()
        thread.join()
        if self.failure is not None:
            raise self.failure
        return self._spawner.followed()

    def _lead(self) -> None:
        try:
            self._lead_run()
        except BaseException as error:
            self.failure = error
            self._spawner.terminate(hard=True)

    def _lead_run(self) -> None:
        plane, environ = self._plane, self._plane.environ
        service = OrchestratorService(plane.place, environ=environ)
        self.run_id = service.create_run(self._scenario)
        scenario = service._scenario(self.run_id)
        session = ControlSession(plane.place, role="orchestrator", environ=environ)
        leader = LevelLeader(
            self.run_id,
            scenario,
            self._spawner,
            session=session,
            lease_session=lambda: ControlSession(plane.place, role="lease", environ=environ),
            clock=SystemClock(),
            on_snapshot=self._told,
        )
        leader.meter, leader.levels = self.meter, [self.workers * level for level in range(1, LEVELS + 1)]
        leader.claim()
        leader.move(leader.read_run(), MoveRun(RunStatus.STARTING, Phase.PREPARING))
        orders = tuple(
            WorkerOrder(
                run_id=self.run_id, worker_id=worker_id, worker_group_id=number, worker_group_count=self.workers
            )
            for number, worker_id in enumerate(leader.worker_ids)
        )
        self._spawner.start(orders)
        try:
            self.ending = leader.lead()
        finally:
            leader.resign(releasing=True)
        self.merge_s = merge_s(session, self.run_id, leader.worker_ids)
        session.close()

    def _told(self, snapshot: RunSnapshot) -> None:
        over = (WorkerHealth.STALE, WorkerHealth.DEAD)
        self.stale |= {worker.worker_id for worker in snapshot.workers if worker.health in over}


def merge_s(session: ControlSession, run_id: str, worker_ids: Sequence[str]) -> float:
    """Processor time of this process for all heartbeats, none known before: the query, judging, adding up."""
    best_s = float("inf")
    for _ in range(5):
        begun_s = time.process_time()
        rows = worker_heartbeats.read(session, run_id)
        workers = assess_workers(worker_ids, rows, (), {}, stale_s=60.0, dead_s=120.0)
        RunAggregator(()).note(workers)
        best_s = min(best_s, time.process_time() - begun_s)
    return best_s


def figures_of(fleet: Fleet, followed: Sequence[dict[str, Any]]) -> list[Figure]:
    of, whole = f"{fleet.workers:,} workers: ", fleet.workers
    leader, server, workers, statements = fleet.meter.rates()
    started = [worker["started_ns"] for worker in followed if worker["started_ns"] is not None]
    right = {str(step): step for step in range(1, LEVELS + 1)}  # a connection more for each worker
    levels = [{step: target for step, (_, target) in worker["levels"].items()} == right for worker in followed]
    begun = [[worker["levels"][step][0] for worker in followed if step in worker["levels"]] for step in right]
    stopped = [worker["stopped_ns"] for worker in followed if worker["code"] == 0]
    assert fleet.ending is not None
    done = fleet.ending.status is RunStatus.COMPLETED
    return [
        Figure(
            name=of + "the run ended as planned", value=done, unit="", aim="= 1", met=done, note=fleet.ending.reason
        ),
        _all(of + "started", len(started), whole),
        _at_most(of + "start spread", spread_s(started), "s", SPREAD_MAX_S),
        _all(of + "followed all levels", sum(levels), whole),
        _at_most(of + "widest spread of a level", max(map(spread_s, begun)), "s", SPREAD_MAX_S),
        _at_most(of + "commands read too late", sum(worker["late"] for worker in followed), "commands", 0),
        _all(of + "stopped, code 0", len(stopped), whole),
        Figure(name=of + "stop spread", value=spread_s(stopped), unit="s"),
        _at_most(of + "taken for stale or dead", len(fleet.stale), "workers", 0),
        Figure(name=of + "statements", value=statements, unit="/s", note=f"{statements / whole:.3f} per worker"),
        Figure(name=of + "leader", value=leader, unit="cores"),
        Figure(name=of + "control plane", value=server, unit="cores", note=f"{1e3 * server / statements:.2f} ms each"),
        Figure(name=of + "worker processes", value=workers, unit="cores"),
        _at_most(of + "query and merge of all heartbeats", fleet.merge_s, "s", MERGE_MAX_S),
    ]


def spread_s(moments_ns: Sequence[int]) -> float:
    return (max(moments_ns) - min(moments_ns)) / NS if moments_ns else float("inf")


def _all(name: str, value: int, whole: int) -> Figure:
    return Figure(name=name, value=value, unit="workers", aim=f"= {whole:,}", met=value == whole)


def _at_most(name: str, value: float, unit: str, limit: float) -> Figure:
    return Figure(name=name, value=value, unit=unit, aim=f"≤ {limit:g}", met=value <= limit)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=SIZES[-1], help="of the largest fleet")
    parser.add_argument("--only", action="store_true", help="leave the smaller ones out")
    parser.add_argument("--format", choices=["text", "json"], default="text")
    given = parser.parse_args()
    smaller = () if given.only else (size for size in SIZES if size < given.workers)
    sizes = [*smaller, given.workers]
    figures: list[Figure] = []
    for workers in sizes:
        with cleaned_up(), EmbeddedServer() as server:
            os.environ[EMBEDDED_ADDRESS] = server.address
            plane = ControlPlane(server)
            try:
                fleet = Fleet(plane, workers)
                figures += figures_of(fleet, fleet.run())
            finally:
                plane.close()
    return report(figures, given.format)


if __name__ == "__main__":
    sys.exit(main())
