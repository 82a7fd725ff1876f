"""The start and the end of the load: components are assembled, statements described, connections opened; drained.

A worker becomes WAITING when every statement is described and every connection is open.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Protocol

from loadgen.clock import Clock
from loadgen.control.tables.worker_heartbeats import WorkerHeartbeat
from loadgen.errors import ConfigurationError, RunFailed
from loadgen.log import event
from loadgen.metrics.connections import ConnectionMeter
from loadgen.metrics.recorder import WindowRegistry
from loadgen.metrics.sample_collector import SampleCollector
from loadgen.model.counts import ErrorCategory
from loadgen.model.run import worker_share
from loadgen.scenario.model import Load, LoadMode, Scenario
from loadgen.scenario.settings import QueryLogMode
from loadgen.snowflake.failure import classify, describe
from loadgen.units import counted
from loadgen.values import dataclass
from loadgen.worker.arguments import WorkerArguments
from loadgen.worker.client import ClientPool
from loadgen.worker.client_context import ClientContext, ClientSlots, compile_statements, max_clients
from loadgen.worker.commands import CommandQueue
from loadgen.worker.control_loop import ControlLoop
from loadgen.worker.query_log import QueryLogHeader, QueryLogWriter
from loadgen.worker.ramp_controller import RampController
from loadgen.worker.sessions import LoadSessions, LogicalUsers
from loadgen.worker.worker_state import WorkerSharedState
from loadgen.workload.pools import Pool
from loadgen.workload.ramp import initial_connections
from loadgen.workload.replay import POOL_NAME, RecordedStream


class SpoolUnusable(ConfigurationError):
    """The folder for the query log cannot be written."""

    exit_code = 1
    remedy = "Set LOADGEN_SPOOL_DIR to a folder that can be written to, or query_log: {mode: none} in the scenario."


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerComponents:
    """The objects that generate and measure load."""

    scenario: Scenario
    windows: WindowRegistry
    harvester: SampleCollector
    context: ClientContext
    pool: ClientPool
    command_queue: CommandQueue
    ramp_controller: RampController
    query_log: QueryLogWriter | None
    users: LogicalUsers | None  # None: the scenario has no sessions


def assemble(
    scenario: Scenario,
    arguments: WorkerArguments,
    pools: Mapping[str, Pool],
    *,
    test_id: str,
    spool: Path,
    shared: WorkerSharedState,
    first_window: int,
    clock: Clock,
    environ: Mapping[str, str] = os.environ,
) -> WorkerComponents:
    load, workload = scenario.load, scenario.workload
    windows, connections = WindowRegistry(), ConnectionMeter()
    harvester = SampleCollector(
        windows,
        workload.statements,
        open_loop=load.is_open_loop,
        thinks=workload.think_time_s > 0,
        started_ns=clock.monotonic_ns(),
        connections=connections,
    )
    query_log = _query_log(scenario, arguments, test_id, spool, clock)
    recorded = _recorded(load, arguments, pools)
    context = ClientContext(
        scenario=scenario,
        windows=windows,
        sessions=LoadSessions(scenario, run_id=arguments.run_id, worker_id=arguments.worker_id, environ=environ),
        runs=compile_statements(scenario),
        opening=threading.Semaphore(scenario.connections.open_parallel),
        failed=shared.failed,
        connections=connections,
        recorded=recorded,
        clock=clock,
    )
    users = _users(scenario, arguments, pools, clock)
    slots = ClientSlots(scenario, arguments, pools, harvester, query_log, users, recorded)
    pool = ClientPool(context, slots, warn=lambda text: shared.say("WARNING", text))
    command_queue = CommandQueue(
        arguments.worker_id,
        arguments.worker_group_id,
        arguments.worker_group_count,
        drain_s=scenario.timing.drain_s,
        drain_interrupt_s=scenario.timing.drain_interrupt_s,
        events_timeout_s=scenario.timing.events_poll_s,
    )
    say = partial(shared.say, "INFO")
    spare = slots.spare() if context.open_loop else None
    ramp_controller = RampController(context, pool, command_queue, arguments, spare, clock, first_window, say)
    return WorkerComponents(
        scenario=scenario,
        windows=windows,
        harvester=harvester,
        context=context,
        pool=pool,
        command_queue=command_queue,
        ramp_controller=ramp_controller,
        query_log=query_log,
        users=users,
    )


def _recorded(load: Load, arguments: WorkerArguments, pools: Mapping[str, Pool]) -> RecordedStream | None:
    """The recorded statements of this worker in mode replay."""
    if load.mode is not LoadMode.REPLAY:
        return None
    pool = pools.get(f"{POOL_NAME}{arguments.worker_group_id}")
    if pool is None:
        raise RunFailed("the statements to replay were not stored", remedy="Run the scenario again.")
    return RecordedStream(pool, load.duration_s or 0.0)


def compose(shared: WorkerSharedState, parts: WorkerComponents | None, count: int) -> WorkerHeartbeat:
    """The heartbeat with this number. It only reads, so any thread may call it."""
    return WorkerHeartbeat(
        status=shared.status,
        phase=None if parts is None else parts.ramp_controller.phase,
        count=count,
        active_connections=0 if parts is None else parts.pool.executing,
        open_connections=0 if parts is None else parts.pool.open,
        target_connections=0 if parts is None else parts.ramp_controller.target,
        last_error=shared.last_error,
        error_count=shared.error_count,
        live_metrics=shared.live_metrics,
        last_sequence_id=0 if parts is None else parts.command_queue.last_sequence_id,
        cpu_percent=shared.cpu_percent,
        memory_percent=shared.memory_percent,
    )


def _users(
    scenario: Scenario, arguments: WorkerArguments, pools: Mapping[str, Pool], clock: Clock
) -> LogicalUsers | None:
    if not scenario.sessions.count:
        return None
    worker, workers = arguments.worker_group_id, arguments.worker_group_count
    return LogicalUsers(scenario, worker, workers, max_clients(scenario, arguments), pools, clock)


def _query_log(
    scenario: Scenario, arguments: WorkerArguments, test_id: str, spool: Path, clock: Clock
) -> QueryLogWriter | None:
    if scenario.query_log.mode is QueryLogMode.NONE:
        return None
    header = QueryLogHeader(
        run_id=arguments.run_id,
        worker_id=arguments.worker_id,
        test_id=test_id,
        statements=tuple((statement.name, statement.kind) for statement in scenario.workload.statements),
        utc_at_zero=clock.utc_now() - timedelta(microseconds=clock.monotonic_ns() / 1_000),
    )
    try:
        return QueryLogWriter(spool, header, scenario.query_log)
    except OSError as error:
        raise SpoolUnusable(f"the query log cannot be kept in {spool}: {error.strerror}") from error


def first_target(scenario: Scenario, arguments: WorkerArguments) -> int:
    """The number of connections that a worker opens before START."""
    return worker_share(initial_connections(scenario.load), arguments.worker_group_id, arguments.worker_group_count)


LOOK_S = 0.05  # between checks whether all connections are open
GC_THRESHOLD = (700, 10, 10)  # the default of Python: a higher one makes pauses rarer, but longer
PAUSE_S = 1.0  # before the next attempt to reach the server


def open_connections(
    parts: WorkerComponents, arguments: WorkerArguments, loop: ControlLoop, shared: WorkerSharedState, clock: Clock
) -> bool:
    """Describe the statements and open all connections. Returns False if the worker ends meanwhile. Raises the error of
    a statement or login that is refused."""
    if not _describe(parts, loop, shared, clock):
        return False
    parts.ramp_controller.set_first_target(first_target(parts.scenario, arguments))
    if parts.pool.wanted == 0:
        shared.say("INFO", "this worker's share of the connections is 0: it generates no load")
    while not parts.pool.settled:
        refused = parts.pool.refused()
        if refused is not None:
            raise refused
        loop.look()
        if clock.wait(shared.ended, LOOK_S):
            return False
    gc.collect()
    gc.set_threshold(*GC_THRESHOLD)
    gc.freeze()  # objects that exist now are kept: the collector does not have to visit them during the measurement
    return True


def _describe(parts: WorkerComponents, loop: ControlLoop, shared: WorkerSharedState, clock: Clock) -> bool:
    """Describe the statements, and retry while the server is unreachable. Returns False if the worker ends."""
    while True:
        try:
            # Recorded statements are not described: they were executed before, and are not texts of the scenario.
            statements = () if parts.context.recorded is not None else parts.scenario.workload.statements
            parts.context.sessions.describe(statements)
            return True
        except Exception as error:  # the driver leaks exceptions of its libraries
            cause = error.__cause__ or error
            failure = classify(cause)
            if not failure.retryable:
                raise
            shared.failed("", ErrorCategory.CONNECTION, failure.code, describe(cause))
        loop.look()
        if clock.wait(shared.ended, random.uniform(PAUSE_S / 2, PAUSE_S)):
            return False


log = logging.getLogger(__name__)

CANCEL_S = 5.0  # for statements to return after they were cancelled on the server
FORCED_CANCEL_S = 1.0  # the same after a second signal


class DrainWait(Protocol):
    def __call__(
        self, done: Callable[[], bool], limit_s: Callable[[], float], unless: threading.Event | None = None
    ) -> None:
        """Wait until `done`, the limit, or `unless` is set. Samples are collected meanwhile."""


def drain(
    parts: WorkerComponents,
    shared: WorkerSharedState,
    wait: DrainWait,
    start: Callable[[str, Callable[[], None]], None],
    *,
    hurry: threading.Event,
) -> None:
    """End the load: let statements finish, cancel the others, count unsent arrivals. For the main thread. `start`
    starts a thread of the worker. After one more collection every sample is recorded."""
    parts.ramp_controller.finish()
    wait(lambda: parts.pool.drained, lambda: shared.drain_s, unless=hurry)
    sessions = parts.pool.cancel()
    if sessions:
        shared.say("WARNING", f"still running, and now cancelled: {counted(len(sessions), 'statement')}")
        start("cancel", partial(_cancel, parts, sessions))
        wait(lambda: parts.pool.drained, lambda: FORCED_CANCEL_S if hurry.is_set() else CANCEL_S)
    abandoned = parts.pool.abandon()
    if abandoned:
        shared.say("WARNING", f"did not return, and counted as cancelled: {counted(abandoned, 'statement')}")
    parts.ramp_controller.count_all_unsent()


def _cancel(parts: WorkerComponents, sessions: list[int]) -> None:
    try:
        parts.context.sessions.cancel(sessions)
    except Exception as error:  # each statement has a time limit
        event(log, logging.WARNING, "cancel_failed", what=str(error))
