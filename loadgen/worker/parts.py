"""Putting a worker together, once its scenario is known."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from loadgen.clock import Clock
from loadgen.control.worker_heartbeats import Beat
from loadgen.errors import ConfigurationError
from loadgen.metrics.connections import ConnectionMeter
from loadgen.metrics.harvester import Harvester
from loadgen.metrics.windows import Windows
from loadgen.model.split import share
from loadgen.scenario.scenario import LoadMode, QueryLogMode, Scenario
from loadgen.worker.agenda import Agenda
from loadgen.worker.arguments import WorkerArguments
from loadgen.worker.bench import Bench, Slots, ceiling_of, make_runs
from loadgen.worker.board import Board
from loadgen.worker.conductor import Conductor
from loadgen.worker.load_sessions import LoadSessions
from loadgen.worker.pool import ClientPool
from loadgen.worker.query_log import LogHeader, QueryLog
from loadgen.worker.users import Users
from loadgen.workload.pacing import initial_connections
from loadgen.workload.pools import Pool


class SpoolUnusable(ConfigurationError):
    """The folder for the query log cannot be written to."""

    exit_code = 1
    remedy = "Set LOADGEN_SPOOL_DIR to a folder that can be written to, or query_log: {mode: none} in the scenario."


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
    users: Users | None  # None: the scenario has no sessions


def assemble(
    scenario: Scenario,
    arguments: WorkerArguments,
    pools: Mapping[str, Pool],
    *,
    test_id: str,
    spool: Path,
    board: Board,
    first_window: int,
    clock: Clock,
    environ: Mapping[str, str] = os.environ,
) -> Parts:
    load, statements = scenario.load, scenario.workload.statements
    windows, connections = Windows(), ConnectionMeter()
    harvester = Harvester(
        windows,
        statements,
        open_loop=load.mode is LoadMode.RATE,
        started_ns=clock.monotonic_ns(),
        connections=connections,
    )
    query_log = _query_log(scenario, arguments, test_id, spool, clock)
    bench = Bench(
        scenario=scenario,
        windows=windows,
        sessions=LoadSessions(scenario, run_id=arguments.run_id, worker_id=arguments.worker_id, environ=environ),
        runs=make_runs(scenario),
        opening=threading.Semaphore(scenario.connections.open_parallel),
        failed=board.failed,
        connections=connections,
        clock=clock,
    )
    users = _users(scenario, arguments, pools, clock)
    slots = Slots(scenario, arguments, pools, harvester, query_log, users)
    pool = ClientPool(bench, slots, warn=lambda text: board.say("WARNING", text))
    agenda = Agenda(
        arguments.worker_id,
        arguments.worker_group_id,
        arguments.worker_group_count,
        drain_s=scenario.timing.drain_s,
        drain_interrupt_s=scenario.timing.drain_interrupt_s,
        patience_s=scenario.timing.events_poll_s,
    )
    spare = slots.spare() if bench.open_loop else None
    conductor = Conductor(
        bench, pool, agenda, arguments, spare, clock, first_window, lambda text: board.say("INFO", text)
    )
    return Parts(
        scenario=scenario,
        windows=windows,
        harvester=harvester,
        bench=bench,
        pool=pool,
        agenda=agenda,
        conductor=conductor,
        query_log=query_log,
        users=users,
    )


def compose(board: Board, parts: Parts | None, count: int) -> Beat:
    """What the beat with this number says. Any thread: it only reads."""
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


def _users(scenario: Scenario, arguments: WorkerArguments, pools: Mapping[str, Pool], clock: Clock) -> Users | None:
    if not scenario.sessions.count:
        return None
    worker, workers = arguments.worker_group_id, arguments.worker_group_count
    return Users(scenario, worker, workers, ceiling_of(scenario, arguments), pools, clock)


def _query_log(
    scenario: Scenario, arguments: WorkerArguments, test_id: str, spool: Path, clock: Clock
) -> QueryLog | None:
    if scenario.query_log.mode is QueryLogMode.NONE:
        return None
    header = LogHeader(
        run_id=arguments.run_id,
        worker_id=arguments.worker_id,
        test_id=test_id,
        statements=tuple((statement.name, statement.kind) for statement in scenario.workload.statements),
        utc_at_zero=clock.utc_now() - timedelta(microseconds=clock.monotonic_ns() / 1_000),
    )
    try:
        return QueryLog(spool, header, scenario.query_log)
    except OSError as error:
        raise SpoolUnusable(f"the query log cannot be kept in {spool}: {error.strerror}") from error


def first_target(scenario: Scenario, arguments: WorkerArguments) -> int:
    """How many connections a worker opens before START."""
    return share(initial_connections(scenario.load), arguments.worker_group_id, arguments.worker_group_count)
