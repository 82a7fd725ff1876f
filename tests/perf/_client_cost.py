"""The cost of a client's loop around a no-op statement: no server, no driver, one thread."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from loadgen.clock import SystemClock, monotonic_ns
from loadgen.metrics.recorder import WindowRegistry
from loadgen.metrics.sample_collector import SampleCollector
from loadgen.model.run import Phase
from loadgen.scenario.model import LoadMode, Scenario, with_workers
from loadgen.scenario.read import parse_scenario
from loadgen.snowflake.driver import Connection
from loadgen.worker.arguments import WorkerArguments
from loadgen.worker.client import Client
from loadgen.worker.client_context import ArrivalQueue, ClientContext, ClientSlots
from loadgen.worker.query_log import QueryLogHeader, QueryLogWriter
from loadgen.worker.sessions import LoadSessions
from loadgen.workload.arrivals import window_schedules

ROUNDS = 7
PACED_PER_S = 2_000  # arrivals that the loop waits for
_ENVIRON = {"LOADGEN_EMBEDDED_ADDRESS": "127.0.0.1:1"}  # no connection is opened
_ARGUMENTS = WorkerArguments(run_id="bench", worker_id="worker-0", worker_group_id=0, worker_group_count=1)
_SCENARIO = """
version: 1
name: client-cost
connection: embedded
target: {warehouse: BENCH_WH, database: BENCH, schema: PUBLIC}
workload:
  statements:
    - {name: get, kind: read, weight: 8, sql: "SELECT V FROM KV WHERE ID = ?",
       params: [{uniform: {min: 1, max: 10000}}]}
    - {name: put, kind: write, weight: 2, sql: "UPDATE KV SET V = ? WHERE ID = ?",
       params: [{text: {length: 20}}, {uniform: {min: 1, max: 10000}}]}
"""
_CLOSED = "load: {connections: 1, workers: 1, duration: 1h}\n"
_OPEN = "load: {mode: rate, rate: 2000/s, arrival: uniform, max_connections: 1, workers: 1, warmup: 0s, duration: 1h}\n"


class _Cursor:
    sfqid = "01b2c3d4-0000-0000-0000-000000000000"


class _Connection:
    """The part of a connection that the loop uses."""

    session_id = 1

    def cursor(self) -> _Cursor:
        return _Cursor()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopCost:
    """Microseconds of processor time of the client's thread, per statement: median of several rounds."""

    closed_us: float
    overdue_us: float  # open loop, arrivals that are late already
    paced_us: float  # open loop, arrivals that are waited for, one by one
    sleep_us: float  # a bare loop of time.sleep() until the same moments: what the kernel takes for waking a thread


def loop_cost(statements: int) -> LoopCost:
    paced = max(200, statements // 100)  # these take real time
    return LoopCost(
        closed_us=_median_us(_CLOSED, statements, late_s=0.0),
        overdue_us=_median_us(_OPEN, statements, late_s=2.0 * statements / PACED_PER_S),
        paced_us=_median_us(_OPEN, paced, late_s=0.0),
        sleep_us=statistics.median(_sleep_us(paced) for _ in range(ROUNDS)),
    )


def _sleep_us(count: int) -> float:
    start_s, begun_ns = time.monotonic(), time.thread_time_ns()
    for number in range(count):
        left_s = start_s + number / PACED_PER_S - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)
    return (time.thread_time_ns() - begun_ns) / count / 1_000


def _median_us(load: str, statements: int, *, late_s: float) -> float:
    return statistics.median(_round_us(load, statements, late_s) for _ in range(ROUNDS))


def _round_us(load: str, statements: int, late_s: float) -> float:
    limit = f"connections: {{max_statements: {statements}}}\n"  # this is how the loop ends
    scenario = with_workers(parse_scenario(_SCENARIO + load + limit, source="bench", environ={}).scenario, 1)
    with tempfile.TemporaryDirectory() as folder:
        client = _client(scenario, _query_log(scenario, Path(folder)), late_s)
        loop = client._open_loop if scenario.load.mode is LoadMode.RATE else client._closed_loop
        begun_ns = time.thread_time_ns()
        loop()
        spent_ns = time.thread_time_ns() - begun_ns
        done = len(client.slot.recorder.take())
        assert done == statements, f"{done} statements were recorded, not {statements}"
        return spent_ns / statements / 1_000


def _client(scenario: Scenario, query_log: QueryLogWriter, late_s: float) -> Client:
    """A client in an open window, as if it had just connected."""
    now_ns, windows = monotonic_ns(), WindowRegistry()
    open_loop = scenario.load.mode is LoadMode.RATE
    harvester = SampleCollector(windows, scenario.workload.statements, open_loop=open_loop, started_ns=now_ns)
    bench = ClientContext(
        scenario=scenario,
        windows=windows,
        sessions=LoadSessions(scenario, run_id="bench", worker_id="worker-0", environ=_ENVIRON),
        runs=tuple(lambda cursor, row: 1 for _ in scenario.workload.statements),
        opening=threading.Semaphore(),
        failed=_failed,
    )
    windows.open(0, phase=Phase.MEASUREMENT, at_ns=now_ns)
    if open_loop:
        schedule = window_schedules(scenario.load, worker=0, workers=1, seed=1)[1]
        bench.arrivals = ArrivalQueue(0, schedule, now_ns - round(late_s * 1e9))
    client = Client(ClientSlots(scenario, _ARGUMENTS, {}, harvester, query_log).get(0), bench)
    client._connection = cast(Connection, _Connection())
    client._set_limits()
    return client


def _query_log(scenario: Scenario, folder: Path) -> QueryLogWriter:
    header = QueryLogHeader(
        run_id="bench",
        worker_id="worker-0",
        test_id="bench",
        statements=tuple((statement.name, statement.kind) for statement in scenario.workload.statements),
        utc_at_zero=SystemClock().utc_now(),
    )
    return QueryLogWriter(folder, header, scenario.query_log)


def _failed(*what: object) -> None:
    raise AssertionError(f"a statement that does nothing failed: {what}")
