"""Logins of clients: refused ones are tried again and counted, higher levels are connected ahead of their time, and a
worker whose clients are all refused ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snowflake.connector.errors import OperationalError

from loadgen.clock import SystemClock
from loadgen.errors import ConfigurationError, LoadgenError
from loadgen.metrics.connections import (
    FAILURES_KEPT,
    ConnectionFailure,
    ConnectionMeter,
    LoginCounts,
    ReconnectReason,
    logins_data,
    read_logins,
)
from loadgen.metrics.json_fields import InvalidMetrics, JsonFields
from loadgen.metrics.live_metrics import LIMIT_BYTES
from loadgen.metrics.recorder import WindowRegistry
from loadgen.metrics.sample_collector import SampleCollector
from loadgen.metrics.window import dump
from loadgen.model.counts import ErrorCategory
from loadgen.model.run import Phase, WorkerExit, WorkerStatus
from loadgen.scenario.model import Load
from loadgen.scenario.settings import ConnectionPolicy, TimingSettings
from loadgen.snowflake.driver import Cursor
from loadgen.worker.client import Client, ClientPool
from loadgen.worker.client_context import ClientContext, ClientSlots
from loadgen.worker.control_loop import TargetWatchdog
from loadgen.worker.sessions import LOGIN_PAUSE_MAX_S, LoadSessions, login_pause_s
from loadgen.worker.worker_state import WorkerSharedState
from loadgen.workload.draw import Row
from loadgen.workload.ramp import Ramp
from tests.fake_clock import FakeClock
from tests.processes import wait_until
from tests.unit.worker_builders import ME, scenario

HANG_S = 30.0


class Connected:
    """A connection that is there, and that only counts."""

    session_id = 1
    sfqid = None

    def cursor(self) -> object:
        return self

    def execute(self, sql: str) -> None:
        """QUERY_TAG is switched."""

    def close(self) -> None:
        pass


class ScriptedSessions:
    """Opens sessions, or rejects them with the given errors first."""

    def __init__(self, *refusals: LoadgenError) -> None:
        self.refusals = list(refusals)
        self.opened = 0

    def tag(self, phase: Phase | None, step_id: int | None) -> str:
        return f"{phase}/{step_id}"

    def open(self, tag: str) -> Connected:
        if self.refusals:
            raise self.refusals.pop(0)
        self.opened += 1
        return Connected()


class RecordingClock(FakeClock):
    """Remembers how long it was waited."""

    def __init__(self) -> None:
        super().__init__()
        self.waits_s: list[float] = []

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self.waits_s.append(timeout_s)
        return super().wait(event, timeout_s)


class ClientHarness:
    """A bench for clients without a server: a window is open, statements call `statement`."""

    def __init__(
        self,
        sessions: ScriptedSessions,
        statement: Callable[[], None],
        policy: ConnectionPolicy | None = None,
        clock: Any = None,
    ) -> None:
        self.failures: list[tuple[Any, ...]] = []
        windows, self.clock, self.connections = WindowRegistry(), clock or SystemClock(), ConnectionMeter()
        made = scenario(Load(connections=4))
        self.harvester = SampleCollector(
            windows, made.workload.statements, open_loop=False, started_ns=0, connections=self.connections
        )

        def run(cursor: Cursor, row: Row) -> int:
            statement()
            return 1

        self.context = ClientContext(
            scenario=made if policy is None else replace(made, connections=policy),
            windows=windows,
            sessions=cast(LoadSessions, sessions),
            runs=(run,),
            opening=threading.Semaphore(4),
            failed=lambda *what: self.failures.append(what),
            connections=self.connections,
            clock=self.clock,
        )
        self.slots = ClientSlots(made, ME, {}, self.harvester, None)
        windows.open(0, phase=Phase.MEASUREMENT, at_ns=self.clock.monotonic_ns())
        self.connections.plan(Ramp(origin=4, target=4), self.clock.monotonic_ns())
        self.connections.open(0, self.clock.monotonic_ns(), None)
        self.context.go.set()


# --- a client --------------------------------------------------------------------------------------------------------


def test_a_rejected_client_retries_with_growing_pauses_and_is_counted() -> None:
    clock = RecordingClock()
    sessions = ScriptedSessions(*[ConfigurationError("the token was refused: invalid or expired")] * 7)
    harness = ClientHarness(sessions, lambda: client.leave(), clock=clock)
    client = Client(harness.slots.get(0), harness.context)

    client.run()

    assert len(clock.waits_s) == 7
    for number, wait_s in enumerate(clock.waits_s, start=1):
        longest_s = min(2.0**number, LOGIN_PAUSE_MAX_S)
        assert longest_s / 2 <= wait_s <= longest_s
    assert sessions.opened == 1
    assert client.error is None
    assert client.refused is None, "it is connected"
    logins = harness.connections.logins
    assert (logins.opened, logins.refused, dict(logins.reopened)) == (1, 7, {})
    assert logins.last_refused[-1].text == "the token was refused: invalid or expired"
    assert [failure[1] for failure in harness.failures] == [ErrorCategory.CONFIGURATION] * 7
    time = harness.connections.time(0, clock.now_ns)
    assert time.planned_ms == pytest.approx(4 * sum(clock.waits_s) * 1_000, abs=10)
    assert time.delivered_ms <= 10, "waits and refused logins are missing"


def test_a_client_that_pauses_after_failures_delivers_nothing() -> None:
    paused: list[bool] = []

    def no_answer() -> None:
        paused.append(harness.connections.complete_since_ns is not None)
        if len(paused) == 4:
            client.leave()
        raise OSError("no answer")

    harness = ClientHarness(ScriptedSessions(), no_answer)
    harness.connections.plan(Ramp(origin=1, target=1), 0)
    client = Client(harness.slots.get(0), harness.context)

    with patch.object(harness.connections, "paused", wraps=harness.connections.paused) as told:
        client.run()

    assert paused == [True] * 4, "while it executes its connection counts"
    assert told.call_count == 3


def test_a_client_that_must_leave_does_not_wait_for_its_next_login() -> None:
    harness = ClientHarness(ScriptedSessions(*[ConfigurationError("no")] * 1_000), lambda: None)
    client = Client(harness.slots.get(0), harness.context)
    thread = threading.Thread(target=client.run, name="client", daemon=True)
    thread.start()
    wait_until(lambda: harness.connections.logins.refused, "a login is refused")

    client.leave()

    assert client.ended.wait(HANG_S)


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (ConnectionPolicy(max_statements=2), ReconnectReason.MAX_STATEMENTS),
        (ConnectionPolicy(max_age_s=1e-9), ReconnectReason.MAX_AGE),
    ],
)
def test_the_reason_of_a_new_login_is_known(policy: ConnectionPolicy, why: ReconnectReason) -> None:
    done = iter(range(100))
    harness = ClientHarness(ScriptedSessions(), lambda: client.leave() if next(done) == 6 else None, policy)
    client = Client(harness.slots.get(0), harness.context)

    client.run()

    logins = harness.connections.logins
    assert logins.opened > 3
    assert logins.reopened == {why: logins.opened - 1}
    assert logins.refused == 0


def test_a_lost_session_is_reported_with_time_slot_and_error() -> None:
    done = iter(range(100))

    def lost_at_first() -> None:
        if next(done) < 2:
            raise OperationalError(msg="Session no longer exists.", errno=390_111)
        client.leave()

    harness = ClientHarness(ScriptedSessions(), lost_at_first, clock=RecordingClock())
    client = Client(harness.slots.get(3), harness.context)

    client.run()

    logins = harness.connections.logins
    assert logins.reopened == {ReconnectReason.SESSION_LOST: 2}
    assert [(one.slot, one.reason, one.code, one.count) for one in logins.last_lost] == [
        (3, ReconnectReason.SESSION_LOST, 390_111, 2)
    ]
    assert "Session no longer exists." in logins.last_lost[0].text
    assert logins.last_lost[0].at == harness.clock.utc_now().replace(tzinfo=None)


def test_a_connection_lost_when_its_client_leaves_is_not_reported() -> None:
    """The end of every run cancels statements, and nothing is opened again."""

    def lost_at_the_end() -> None:
        client.leave()
        raise OperationalError(msg="Session no longer exists.", errno=390_111)

    harness = ClientHarness(ScriptedSessions(), lost_at_the_end)
    client = Client(harness.slots.get(0), harness.context)

    client.run()

    assert harness.connections.logins.last_lost == ()


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_pauses_between_rejected_logins_are_bounded(attempts: int, part: float) -> None:
    assert 1.0 <= login_pause_s(attempts, part) <= LOGIN_PAUSE_MAX_S


# --- clients ---------------------------------------------------------------------------------------------------------


def test_clients_of_a_higher_level_are_connected_ahead_of_it_and_send_nothing() -> None:
    done = threading.Semaphore(0)
    harness = ClientHarness(ScriptedSessions(), lambda: done.release())
    pool = ClientPool(harness.context, harness.slots, warn=lambda text: None)

    pool.resize(1, ahead=3)
    while pool.open < 3:
        assert done.acquire(timeout=HANG_S)
    for _ in range(10):
        assert done.acquire(timeout=HANG_S)
    assert [harness.slots.get(slot).k > 0 for slot in range(3)] == [True, False, False]

    pool.resize(3, ahead=3)
    while not all(harness.slots.get(slot).k for slot in range(3)):
        assert done.acquire(timeout=HANG_S)
    assert harness.connections.logins.opened == 3, "nobody connected again"

    pool.resize(1)
    while pool.open > 1:
        assert done.acquire(timeout=HANG_S)
    pool.drain()
    while not pool.drained:
        done.acquire(timeout=0.01)


# --- a worker --------------------------------------------------------------------------------------------------------


def working(status: WorkerStatus = WorkerStatus.RUNNING) -> WorkerSharedState:
    return WorkerSharedState(clock=FakeClock(), status=status)


REFUSED = LoginCounts(
    refused=9,
    last_refused=(ConnectionFailure(at=FakeClock().utc_now().replace(tzinfo=None), code=390_144, text="JWT is bad"),),
)


def test_a_worker_without_a_connection_ends_after_a_minute_with_the_reason() -> None:
    timing, disconnected = TimingSettings(), TargetWatchdog()
    for _ in range(59):
        disconnected.count(wanted=8, connected=0, awake_s=1.0)
        assert disconnected.ending(working(), timing, REFUSED) is None
    disconnected.count(wanted=8, connected=0, awake_s=1.0)

    ending = disconnected.ending(working(), timing, REFUSED)

    assert ending is not None
    assert ending.code is WorkerExit.FATAL
    assert ending.error == "no client has been connected for 60 s: JWT is bad"
    assert ending.hint


@pytest.mark.parametrize(("wanted", "connected"), [(8, 1), (0, 0)])
def test_one_connection_is_enough_and_none_when_none_is_planned(wanted: int, connected: int) -> None:
    timing, disconnected = TimingSettings(), TargetWatchdog()
    for _ in range(59):
        disconnected.count(wanted=8, connected=0, awake_s=1.0)

    disconnected.count(wanted=wanted, connected=connected, awake_s=1.0)
    disconnected.count(wanted=8, connected=0, awake_s=1.0)

    assert disconnected.ending(working(), timing, REFUSED) is None


@pytest.mark.parametrize("status", [WorkerStatus.STARTING, WorkerStatus.DRAINING])
def test_a_worker_that_is_not_ready_or_ends_is_not_ended_for_it(status: WorkerStatus) -> None:
    disconnected = TargetWatchdog(since_s=1_000.0)

    assert disconnected.ending(working(status), TimingSettings(), REFUSED) is None


@pytest.mark.parametrize("at", ["yesterday", 7, None])
def test_a_rejection_without_a_time_is_rejected(at) -> None:
    said = {**logins_data(LoginCounts()), "last_refused": [{"at": at, "code": None, "text": "no"}]}

    with pytest.raises(InvalidMetrics):
        read_logins(JsonFields(said, "x"))


def test_the_failures_of_a_heartbeat_take_less_than_half_of_it() -> None:
    """With any texts, in JSON of ASCII characters."""
    longest = [
        ConnectionFailure.of(FakeClock().utc_now(), 10**6, 10**9 + at, "\U0001f600" * 10**4)
        for at in range(FAILURES_KEPT)
    ]
    logins = LoginCounts(opened=10**9, refused=10**9, last_refused=tuple(longest), last_lost=tuple(longest))

    assert len(dump(logins_data(logins))) < LIMIT_BYTES / 2
