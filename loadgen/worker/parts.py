"""Putting a worker together, once its scenario is known."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from loadgen.clock import Clock
from loadgen.metrics.harvester import Harvester
from loadgen.metrics.windows import Windows
from loadgen.model.outcome import ErrorCategory
from loadgen.model.split import share
from loadgen.scenario.scenario import LoadMode, QueryLogMode, Scenario
from loadgen.worker.agenda import Agenda
from loadgen.worker.arguments import WorkerArguments
from loadgen.worker.bench import Bench, Slots, ceiling_of, make_runs
from loadgen.worker.conductor import Conductor
from loadgen.worker.load_sessions import LoadSessions
from loadgen.worker.pool import ClientPool
from loadgen.worker.query_log import LogHeader, QueryLog
from loadgen.workload.pacing import connection_plan
from loadgen.workload.pools import Pool

Failed = Callable[[str, ErrorCategory, int | None, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Everything that makes and measures load."""

    scenario: Scenario
    windows: Windows
    harvester: Harvester
    bench: Bench
    pool: ClientPool
    agenda: Agenda
    conductor: Conductor
    query_log: QueryLog | None


def assemble(
    scenario: Scenario,
    arguments: WorkerArguments,
    pools: Mapping[str, Pool],
    *,
    test_id: str,
    spool: Path,
    failed: Failed,
    clock: Clock,
    environ: Mapping[str, str] = os.environ,
) -> Parts:
    load, statements = scenario.load, scenario.workload.statements
    windows = Windows()
    harvester = Harvester(windows, statements, open_loop=load.mode is LoadMode.RATE, started_ns=clock.monotonic_ns())
    query_log = None
    if scenario.query_log.mode is not QueryLogMode.NONE:
        header = LogHeader(
            run_id=arguments.run_id,
            worker_id=arguments.worker_id,
            test_id=test_id,
            statements=tuple((statement.name, statement.kind) for statement in statements),
            utc_at_zero=clock.utc_now() - timedelta(microseconds=clock.monotonic_ns() / 1_000),
        )
        query_log = QueryLog(spool, header, scenario.query_log)
    bench = Bench(
        scenario=scenario,
        windows=windows,
        sessions=LoadSessions(scenario, run_id=arguments.run_id, worker_id=arguments.worker_id, environ=environ),
        runs=make_runs(scenario),
        opening=threading.Semaphore(scenario.connections.open_parallel),
        failed=failed,
    )
    slots = Slots(scenario, arguments, pools, harvester, query_log)
    pool = ClientPool(bench, slots)
    agenda = Agenda(
        arguments.worker_id,
        arguments.worker_group_id,
        drain_s=scenario.timing.drain_s,
        patience_s=scenario.timing.events_poll_s,
    )
    conductor = Conductor(bench, pool, agenda, arguments, slots.spare() if bench.open_loop else None, clock)
    return Parts(
        scenario=scenario,
        windows=windows,
        harvester=harvester,
        bench=bench,
        pool=pool,
        agenda=agenda,
        conductor=conductor,
        query_log=query_log,
    )


def first_target(scenario: Scenario, arguments: WorkerArguments) -> int:
    """How many connections a worker opens before START."""
    load, place = scenario.load, (arguments.worker_group_id, arguments.worker_group_count)
    if load.find_max is not None and load.mode is LoadMode.FIND_MAX:
        return share(load.find_max.start, *place)
    if load.mode is LoadMode.CONCURRENCY and (load.ramp_s or load.stages):
        return connection_plan(load).worker_target_at(0.0, *place)
    return ceiling_of(scenario, arguments)
