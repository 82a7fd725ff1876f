"""A client that has nothing left to send."""

from __future__ import annotations

import threading
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snowflake.connector.errors import ProgrammingError

from loadgen.clock import monotonic_ns
from loadgen.metrics.interval import SampleBatch
from loadgen.metrics.recorder import FailedOutcome, Outcome, WindowRegistry
from loadgen.metrics.sample_collector import SampleCollector
from loadgen.model.counts import ErrorCategory
from loadgen.model.run import Phase
from loadgen.scenario.model import LoadMode, Scenario
from loadgen.snowflake.driver import Connection
from loadgen.units import NS_PER_MS, NS_PER_S
from loadgen.worker import client as client_module
from loadgen.worker.arguments import WorkerArguments
from loadgen.worker.client import Client
from loadgen.worker.client_context import ArrivalQueue, ClientContext, ClientSlots
from loadgen.worker.sessions import LoadSessions
from loadgen.workload.arrivals import window_schedules
from loadgen.workload.ramp import Ramp
from tests.unit.scenario_builders import EMBEDDED, read

KEYS = 10
SCENARIO = f"""{EMBEDDED}
sharding: {{enabled: true, total_partitions: 1, key_column: ID, key_range: [1, {KEYS}]}}
workload:
  statements:
    - {{name: put, sql: INSERT INTO T (ID) VALUES (?), params: [{{sequence: {{sharded: true}}}}]}}
"""


class Connected:
    """An open connection without statements."""

    session_id = 1

    def cursor(self) -> object:
        return self

    def close(self) -> None:
        pass


class ConnectedClient(Client):
    """Has its connection without a server; its session has the tag of the open window."""

    def _connect(self) -> bool:
        self._connection, self._tagged = cast(Connection, Connected()), 0
        self._set_limits()
        return True


def client_of(scenario: Scenario, failures: list[tuple[Any, ...]], *, now_ns: int | None = None) -> Client:
    now_ns = monotonic_ns() if now_ns is None else now_ns
    windows, open_loop = WindowRegistry(), scenario.load.mode is LoadMode.RATE
    harvester = SampleCollector(windows, scenario.workload.statements, open_loop=open_loop, started_ns=now_ns)
    context = ClientContext(
        scenario=scenario,
        windows=windows,
        sessions=LoadSessions(
            scenario, run_id="r", worker_id="worker-0", environ={"LOADGEN_EMBEDDED_ADDRESS": "127.0.0.1:1"}
        ),
        runs=(lambda cursor, row: 1,),
        opening=threading.Semaphore(),
        failed=lambda *what: failures.append(what),
    )
    windows.open(0, phase=Phase.MEASUREMENT, at_ns=now_ns)
    if open_loop:
        context.arrivals = ArrivalQueue(0, window_schedules(scenario.load, worker=0, workers=1, seed=1)[-1], 0)
    arguments = WorkerArguments(run_id="r", worker_id="worker-0", worker_group_id=0, worker_group_count=1)
    return ConnectedClient(ClientSlots(scenario, arguments, {}, harvester, None).get(0), context)


@pytest.mark.parametrize(
    "load",
    [
        "load: {connections: 1, workers: 1, warmup: 0s, duration: 60s}",
        "load: {mode: rate, rate: 100/s, max_connections: 1, workers: 1, warmup: 0s, duration: 60s}",
    ],
)
def test_a_client_without_a_value_left_gives_up_with_the_reason(load):
    failures: list[tuple[Any, ...]] = []
    client = client_of(read(SCENARIO + load), failures)

    client.run()

    assert client.error is not None
    assert "has given all keys" in str(client.error)
    assert [what[:2] for what in failures] == [("", ErrorCategory.CONFIGURATION)]
    recorder = client.slot.recorder
    assert len(recorder.take()) == recorder.begun(0) == KEYS, "what was begun was recorded"


@pytest.mark.parametrize(
    ("category", "waited_s", "counted"),
    [
        ("CONNECTION", 6.0, "QUERY_TIMEOUT"),  # the client's own limit, or a connection lost beyond it
        ("CONNECTION", 1.0, "QUERY_TIMEOUT"),
        ("CONNECTION", 0.9, "CONNECTION"),  # reset, HTTP 503: how long it would have taken is not known
        ("SNOWFLAKE_ERROR", 6.0, "SNOWFLAKE_ERROR"),  # the server has finished it
        ("QUERY_TIMEOUT", 1.0, "QUERY_TIMEOUT"),
    ],
)
def test_a_statement_without_a_response_within_its_limit_has_timed_out(category, waited_s, counted):
    failed = FailedOutcome.after(waited_s, ErrorCategory[category], 14, "Query timed out after 6s", limit_s=1.0)

    assert failed.category is ErrorCategory[counted]
    assert failed.answered == (category != "CONNECTION"), "else the query id would be that of the statement before"


@pytest.mark.parametrize(("waited_s", "cut_off"), [(0.9, False), (1.0, True), (3.0, True)])
def test_a_connection_that_is_lost_while_the_server_is_silent_cuts_the_statement_off(waited_s, cut_off):
    lost = FailedOutcome.after(waited_s, ErrorCategory.CONNECTION, 4, "connection closed", limit_s=30.0)
    samples: list[Any] = [(0, 0, 0, 0, 10 * NS_PER_MS, Outcome.SUCCEEDED)] * 80
    samples += [(0, 0, 0, 0, round(waited_s * NS_PER_S), lost)] * 20

    read = SampleBatch.of(samples, open_loop=False).tallies(["read"], {})[0].statements["read"]

    assert (lost.category, read.ended.failed) == (ErrorCategory.CONNECTION, 20)
    assert read.cut_off.response.count == (20 if cut_off else 0)


@pytest.mark.parametrize(
    ("code", "text", "cut_off"),
    [
        (625, "aborted because a lock it needs was not released in time", True),
        (625, "aborted because it was the victim of a deadlock", True),
        (625, "aborted because the number of waiters for this lock exceeds the 20 statements limit", False),
        (604, "SQL execution canceled", True),  # by another session
        (630, "Statement reached its statement or warehouse timeout", True),
        (100051, "Division by zero", False),
    ],
)
def test_a_statement_that_was_ended_early_counts_with_its_time_as_a_lower_bound(code, text, cut_off):
    client = client_of(read(READ + CLOSED), [])
    slow = client._failed(0, ProgrammingError(text, errno=code, sqlstate="22012" if code == 100051 else "57014"), 0)
    samples = [(0, 0, 0, 0, 10 * NS_PER_MS, Outcome.SUCCEEDED)] * 880 + [(0, 0, 0, 0, 30 * NS_PER_S, slow)] * 120

    told = SampleBatch.of(samples, open_loop=False).tallies(["read"], {})[0].statements["read"]

    p95 = told.response_at(950)
    assert p95 is not None
    assert p95.at_least == cut_off
    assert (p95.value_ns > NS_PER_S) == cut_off
    assert (told.succeeded.response.count, told.failed) == (880, 120), "failed all the same"


CLOSED = "load: {connections: 1, workers: 1, warmup: 0s, duration: 60s}"
LATEST = """
workload:
  statements:
    - {name: insert, kind: write, sql: INSERT INTO T VALUES (?), params: [{sequence: {start: 101}}]}
    - {name: read, sql: SELECT ?, params: [{latest: {min: 1, max: 100, follows: insert}}]}
"""


@pytest.mark.parametrize("load", [CLOSED, "load: {mode: rate, rate: 100/s, max_connections: 1, workers: 1}"])
def test_reads_of_the_latest_keys_do_not_send_keys_whose_insert_failed(load):
    client = client_of(read(EMBEDDED + LATEST + load), [])
    there, hits = set(range(1, 101)), list[bool]()

    def insert(_: object, row: Any) -> int:
        if len(hits) % 2:
            raise ProgrammingError("no", errno=100072, sqlstate="22000")
        there.add(row[0][0])
        return 1

    def select(_: object, row: Any) -> int:
        hits.append(row[0][0] in there)
        if len(hits) == 300:
            client.leave()
        return 1

    client._context.runs = (insert, select)
    client.run()

    assert len(hits) == 300
    assert all(hits)
    assert len(there) > 200, "keys were inserted meanwhile"


# --- an open loop: what is late because of the client ----------------------------------------------------------------

LATE_NS = 20 * NS_PER_S
RATE = "load: {mode: rate, rate: 4/s, max_connections: 1, workers: 1, warmup: 0s, duration: 60s, arrival: uniform"
READ = f"{EMBEDDED}workload: {{statements: [{{name: read, sql: SELECT 1}}]}}\n"


class ScriptedTime:
    """Passes only where a test says so."""

    now_ns = 3_600 * NS_PER_S


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> ScriptedTime:
    """The clock of the client."""
    scripted = ScriptedTime()
    monkeypatch.setattr(client_module, "monotonic_ns", lambda: scripted.now_ns)
    monkeypatch.setattr(client_module, "monotonic", lambda: scripted.now_ns / NS_PER_S)
    return scripted


def late_client(more: str, time: ScriptedTime, *, complete_ago_ns: int | None, sends: int = 1) -> Client:
    """The schedule of its window began 20 s ago. Its pool has been complete for so long; None: it is not."""
    client = client_of(read(f"{READ}{RATE}{more}}}"), [], now_ns=time.now_ns)
    context, now_ns = client._context, time.now_ns
    schedule = window_schedules(context.scenario.load, worker=0, workers=1, seed=1)[-1]
    context.arrivals = ArrivalQueue(0, schedule, now_ns - LATE_NS)
    context.connections.plan(Ramp(origin=1, target=1), 0)
    if complete_ago_ns is not None:
        context.connections.login_succeeded(0, now_ns - complete_ago_ns, None)
    sent = iter(range(1, sends + 1))

    def run(cursor: object, row: object) -> int:
        if next(sent) == sends:
            client.leave()
        return 1

    context.runs = (run,)
    return client


@pytest.mark.parametrize(("complete_ago_ns", "is_overload"), [(LATE_NS + NS_PER_S, True), (0, False), (None, False)])
def test_an_arrival_given_up_is_overload_only_if_no_connection_was_missing_since_it_was_due(
    time, complete_ago_ns, is_overload
):
    client = late_client(", max_lag: 5s", time, complete_ago_ns=complete_ago_ns)

    client.run()

    given_up = [one for one in client.slot.recorder.take() if one[5] is Outcome.SKIPPED]
    assert len(given_up) == 60, "those of the first 15 s"
    assert {done_ns > due_ns for _, _, due_ns, _, done_ns, _ in given_up} == {is_overload}


@pytest.mark.parametrize(("complete_ago_ns", "is_clients"), [(LATE_NS + NS_PER_S, False), (0, True), (None, True)])
def test_a_backlog_sent_after_reconnecting_is_lag_of_the_client(time, complete_ago_ns, is_clients):
    client = late_client("", time, complete_ago_ns=complete_ago_ns, sends=3)

    client.run()

    lags_ns = [lag_ns for window, lag_ns in client._context.client_lags if window == 0]
    assert len(lags_ns) == 3
    if is_clients:
        assert min(lags_ns) > 19 * NS_PER_S
    else:
        assert max(lags_ns) == 0, "the connection has just become free"


def test_making_parameters_is_lag_of_the_client(time):
    client = late_client("", time, complete_ago_ns=LATE_NS + NS_PER_S)
    draw = client.slot.drawer.draw

    class Slow:
        """Takes its time."""

        def draw(self, index: int) -> Any:
            time.now_ns += 20 * NS_PER_MS
            return draw(index)

    client.slot.drawer = cast(Any, Slow())

    client.run()

    ((_, lag_ns),) = client._context.client_lags
    assert lag_ns == 20 * NS_PER_MS


class SlowDrawer:
    """Drawing takes this time; the client leaves after 70 draws."""

    def __init__(self, client: Client, time: ScriptedTime, takes_ns: int) -> None:
        self._client, self._time, self._takes_ns = client, time, takes_ns
        self._draw, self.dues_ns = client.slot.drawer.draw, list[int]()

    def draw(self, index: int) -> Any:
        arrivals = self._client._context.arrivals
        assert arrivals is not None
        self.dues_ns.append(arrivals.due_ns(index))
        self._time.now_ns += self._takes_ns
        if len(self.dues_ns) == 70:
            self._client.leave()
        return self._draw(index)


@given(st.integers(0, 4_000), st.sampled_from([0.5, 2.0, 5.0]))
def test_an_arrival_given_up_is_overload_only_if_it_was_late_before_the_client_was_slow(
    slow_ms: int, max_lag_s: float
) -> None:
    """And the lag of the client that makes it late is counted."""
    scripted = ScriptedTime()
    now = {"monotonic_ns": lambda: scripted.now_ns, "monotonic": lambda: scripted.now_ns / NS_PER_S}
    with patch.multiple(client_module, **now):
        client = late_client(f", max_lag: {max_lag_s}s", scripted, complete_ago_ns=LATE_NS + NS_PER_S, sends=10**6)
        drawer = SlowDrawer(client, scripted, slow_ms * NS_PER_MS)
        client.slot.drawer = cast(Any, drawer)
        free_ns = scripted.now_ns
        client.run()

    samples, lags_ns = client.slot.recorder.take(), list[int]()
    assert len(samples) == len(drawer.dues_ns) == 70
    for (_, _, given_ns, sent_ns, done_ns, outcome), due_ns in zip(samples, drawer.dues_ns, strict=True):
        waited_ns = max(0, free_ns - due_ns)
        is_overload = waited_ns >= 0.9 * max_lag_s * NS_PER_S
        if outcome is Outcome.SKIPPED and sent_ns >= due_ns:
            assert done_ns - given_ns == (sent_ns - due_ns if is_overload else 0)
        if sent_ns >= due_ns and not (outcome is Outcome.SKIPPED and is_overload):
            lags_ns.append(sent_ns - due_ns - waited_ns)
        free_ns = free_ns if outcome is Outcome.SKIPPED else done_ns
    assert [lag_ns for _, lag_ns in client._context.client_lags] == lags_ns
