"""A login has to end before the connection time of its window is known: no window is final before that."""

from __future__ import annotations

import threading
from datetime import datetime

from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.connections import ConnectionFailure, ConnectionMeter, ReconnectReason
from loadgen.metrics.recorder import WindowRegistry, WindowState
from loadgen.metrics.sample_collector import SampleCollector
from loadgen.metrics.window import WindowResult
from loadgen.model.run import Phase
from loadgen.rules.validity import Delivered, delivered_connections, shortfalls
from loadgen.scenario.settings import ConnectionPolicy
from loadgen.units import NS_PER_MS, NS_PER_S
from loadgen.worker.client import ClientPool
from loadgen.workload.ramp import Ramp
from tests.processes import wait_until
from tests.unit.metrics_builders import statement
from tests.unit.test_worker_logins import ClientHarness, Connected, ScriptedSessions

NO = ConnectionFailure(at=datetime(2026, 11, 15, 2, 0, 0), code=390_144, text="no")  # noqa: DTZ001 (naive UTC)
CONNECTIONS, MEASURED_S = 8, 60
HANG_S = 30.0


class Windows:
    """A collector with its meter, and a plan of this many connections."""

    def __init__(self, planned: int) -> None:
        self.meter, self.windows = ConnectionMeter(), WindowRegistry()
        self.meter.plan(Ramp(origin=planned, target=planned), 0)
        self.collector = SampleCollector(
            self.windows, [statement("a")], open_loop=False, started_ns=0, connections=self.meter
        )

    def open(self, window_id: int, at_ns: int) -> None:
        self.windows.open(window_id, phase=Phase.MEASUREMENT, at_ns=at_ns, step_id=window_id)
        self.meter.open(window_id, at_ns, None)

    def close(self, at_ns: int) -> None:
        self.windows.close(at_ns=at_ns)
        self.meter.close(at_ns)

    def results(self, now_ns: int) -> dict[int, WindowResult]:
        self.collector.harvest(now_ns)
        return {result.window_id: result for result in self.collector.results(now_ns)}


def test_logins_that_hang_at_the_end_and_are_refused_then_make_the_load_short() -> None:
    bench = Windows(CONNECTIONS)
    for slot in range(CONNECTIONS):
        bench.meter.login_succeeded(slot, 0, None)
    bench.open(1, 0)
    for slot in range(CONNECTIONS):
        bench.meter.login_began(slot, round(54.5 * NS_PER_S), again=True)
    bench.close(MEASURED_S * NS_PER_S)

    at_close = bench.results(61 * NS_PER_S)[1]
    for slot in range(CONNECTIONS):
        bench.meter.login_refused(slot, round(69.5 * NS_PER_S), NO)
    refused = bench.results(70 * NS_PER_S)[1]

    assert (at_close.state, refused.state) == (WindowState.CLOSED, WindowState.FINAL)
    planned = {("worker-0", 1): CONNECTIONS * MEASURED_S * 1_000}
    (reason,) = shortfalls(Delivered(portions=delivered_connections({"worker-0": [refused]}, planned)))[:1]
    assert reason.startswith("delivered load was 90.8 %")


moves = st.lists(
    st.tuples(
        st.integers(1, 40),
        st.integers(0, 2),
        st.sampled_from(["login", "wait", "connect", "refuse", "leave", "next window", "close"]),
    ),
    max_size=30,
)


@given(moves)
def test_the_connection_time_of_a_final_window_is_that_of_successful_logins_and_does_not_change(
    many: list[tuple[int, int, str]],
) -> None:
    bench, now_ns, opened, final = Windows(3), 0, 1, dict[int, WindowResult]()
    bench.open(1, 0)
    spent: list[tuple[int, int, bool]] = []  # when a login began and ended, and whether it succeeded
    running: dict[int, int] = {}

    def ended(slot: int, *, succeeded: bool = False) -> None:
        spent.extend([(running.pop(slot), now_ns, succeeded)] if slot in running else [])

    for gap_ms, slot, move in many:
        now_ns += gap_ms * NS_PER_MS
        if move == "login":
            bench.meter.login_began(slot, now_ns, again=True)
            running.setdefault(slot, now_ns)
        elif move == "wait" and slot not in running:
            bench.meter.login_waits(slot, now_ns)
        elif move == "connect":
            ended(slot, succeeded=True)
            bench.meter.login_succeeded(slot, now_ns, ReconnectReason.MAX_AGE)
        elif move == "refuse":
            ended(slot)
            bench.meter.login_refused(slot, now_ns, NO)
        elif move == "leave":
            ended(slot)
            bench.meter.gone(slot, now_ns)
        elif move == "close":
            bench.close(now_ns)
        elif move == "next window":
            opened += 1
            bench.open(opened, now_ns)
        results = bench.results(now_ns)
        held = {window.window_id: window for window in bench.windows.held()}
        for window_id, result in results.items():
            window = held[window_id]
            inside = [
                (succeeded, max(0, min(until, window.closed_ns or now_ns) - max(since, window.opened_ns)))
                for since, until, succeeded in (*spent, *((since, now_ns, True) for since in running.values()))
            ]
            assert result.connections is not None
            assert result.connections.logging_in_ms * NS_PER_MS == sum(ns for succeeded, ns in inside if succeeded)
            if result.state is WindowState.FINAL:
                assert final.setdefault(window_id, result).connections == result.connections
    if running == {}:
        bench.close(now_ns)
        bench.results(now_ns)
        assert {result.state for result in bench.results(now_ns).values()} == {WindowState.FINAL}


class HangingSessions(ScriptedSessions):
    """The second login hangs."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs, self.go = threading.Event(), threading.Event()

    def open(self, tag: str) -> Connected:
        if self.opened:
            self.hangs.set()
            assert self.go.wait(HANG_S)
        return super().open(tag)


def test_a_login_that_outlasts_the_drain_is_missing() -> None:
    sessions = HangingSessions()
    harness = ClientHarness(sessions, lambda: None, ConnectionPolicy(max_statements=1))
    pool = ClientPool(harness.context, harness.slots, warn=lambda text: None)
    harness.connections.plan(Ramp(origin=1, target=1), harness.clock.monotonic_ns())
    pool.resize(1)
    assert sessions.hangs.wait(HANG_S)
    now_ns = harness.clock.monotonic_ns()
    harness.context.windows.close(at_ns=now_ns)
    harness.connections.close(now_ns)
    pool.drain()

    harness.harvester.harvest(harness.clock.monotonic_ns())
    (before,) = harness.harvester.results(harness.clock.monotonic_ns())
    pool.abandon()
    harness.harvester.harvest(harness.clock.monotonic_ns())
    (result,) = harness.harvester.results(harness.clock.monotonic_ns())

    sessions.go.set()
    wait_until(lambda: pool.drained, "the client ends")
    assert (before.state, result.state) == (WindowState.CLOSED, WindowState.FINAL)
    assert result.connections is not None
    assert result.connections.logging_in_ms == 0
