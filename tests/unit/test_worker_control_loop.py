"""What a worker makes of what it reads of its run, row by row: when it begins, when it ends, and with which code."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import pytest

from loadgen.control.session import ControlSession, NamedQuery
from loadgen.model.event import Command, KnownCommand, PlannedCommand, SetPhase, Start, encode_command
from loadgen.model.run import Phase, RunStatus, WorkerExit
from loadgen.scenario.settings import TimingSettings
from loadgen.units import NS_PER_S
from loadgen.worker.commands import CommandQueue
from loadgen.worker.control_loop import ControlLoop, ControlPlaneWatchdog
from loadgen.worker.worker_state import ExitReason, WorkerSharedState
from tests.fake_clock import FakeClock
from tests.unit.simulation.tables import EventRow, Lease, Tables
from tests.unit.simulation.wires import RequestOutcome, Wire
from tests.unit.worker_builders import STOP

TIMING = TimingSettings()
START = Start(expected_workers=1)
PLANNED = Start(
    expected_workers=1, lead_ms=3_000, plan=(PlannedCommand(at_ms=0, command=SetPhase(phase=Phase.WARMUP)),)
)
R, P, X = RunStatus, Phase, WorkerExit


class OneTurn(threading.Event):
    """Lets a thread's loop go round once."""

    turns = 0

    def is_set(self) -> bool:
        self.turns += 1
        return self.turns > 1


class Network:
    """Every statement has the outcome that the test sets, at once."""

    def __init__(self, outcome: Callable[[], RequestOutcome]) -> None:
        self._fate = outcome
        self.sent: list[str] = []

    def note(self, query: NamedQuery) -> None:
        self.sent.append(query.name)

    def outcome(self, *, changes: bool) -> RequestOutcome:
        return self._fate()

    def refuses(self, query: NamedQuery) -> bool:
        return False

    def latency_s(self) -> float:
        return 0.0

    def silence_s(self) -> float:
        return 0.0

    def held_s(self) -> float:
        return 0.0

    def later(self, outcome: RequestOutcome, happens: Callable[[], None]) -> None:
        """Nothing is under way here."""

    def sleep(self, seconds: float) -> None:
        """Nothing takes time here."""


class Follower:
    """A control loop on tables that the test fills."""

    def __init__(self, status: RunStatus, phase: Phase, *said: Command, lease_over_s: float | None) -> None:
        self.clock = FakeClock()
        self.tables = Tables(lambda: 0.0)
        self.tables.status, self.tables.phase = status, phase
        if lease_over_s is not None:
            self.tables.leases.append(Lease(1, "leader", -lease_over_s))
        for number, command in enumerate(said, start=1):
            kind, data = encode_command(cast(KnownCommand, command))
            self.tables.events.append(EventRow(number, str(number), 1, kind, data, 0.0, None))
        self.outcome = RequestOutcome.ANSWERED
        self.worker_state = WorkerSharedState(clock=self.clock)
        self.begun: list[Phase | None] = []
        self.network = Network(lambda: self.outcome)
        session = cast(ControlSession, Wire(self.tables, self.network))
        command_queue = CommandQueue(
            "worker-0",
            0,
            1,
            drain_s=TIMING.drain_s,
            drain_interrupt_s=TIMING.drain_interrupt_s,
            events_timeout_s=TIMING.events_poll_s,
        )
        self.loop = ControlLoop(
            session,
            "run",
            self.worker_state,
            command_queue,
            TIMING,
            self.clock,
            wake=threading.Event(),
            begin=self.begun.append,
        )

    def publish(self, command: KnownCommand, at_s: float = 0.0) -> None:
        """As the leader does: an event, and in the row that there is one more."""
        kind, data = encode_command(command)
        number = len(self.tables.events) + 1
        self.tables.events.append(EventRow(number, str(number), 1, kind, data, at_s, None))
        self.tables.next_sequence_id = number + 1

    @property
    def code(self) -> WorkerExit | None:
        return None if self.worker_state.ending is None else self.worker_state.ending.code


@dataclass(frozen=True, kw_only=True)
class Row:
    status: RunStatus
    phase: Phase = Phase.PREPARING
    said: tuple[Command, ...] = ()
    lease_over_s: float | None = -20.0
    begins: tuple[Phase | None, ...] = ()
    code: WorkerExit | None = None
    drain_s: float = 0.0


ROWS = {
    "not led yet": Row(status=R.PREPARED, lease_over_s=None),
    "others connect": Row(status=R.STARTING),
    "START": Row(status=R.STARTING, said=(START,), begins=(None,)),  # the row is behind the event
    "START, and the row says where": Row(status=R.RUNNING, phase=P.WARMUP, said=(START,), begins=(P.WARMUP,)),
    "START with a plan": Row(status=R.STARTING, said=(PLANNED,), begins=(None,)),
    "RUNNING without START": Row(status=R.RUNNING, phase=P.MEASUREMENT, begins=(P.MEASUREMENT,)),
    "START and STOP": Row(status=R.RUNNING, phase=P.WARMUP, said=(START, STOP), code=X.CLEAN, drain_s=7.0),
    "STOP before START": Row(status=R.STARTING, said=(STOP,), code=X.CLEAN, drain_s=7.0),
    "STOPPING without STOP": Row(status=R.STOPPING, phase=P.COOLDOWN, code=X.CLEAN, drain_s=120.0),
    "STOPPING with STOP": Row(status=R.STOPPING, phase=P.COOLDOWN, said=(START, STOP), code=X.CLEAN, drain_s=7.0),
    "CANCELLING": Row(status=R.CANCELLING, phase=P.WARMUP, said=(START,), code=X.CLEAN, drain_s=20.0),
    "COMPLETED": Row(status=R.COMPLETED, phase=P.PROCESSING, code=X.CLEAN, drain_s=120.0),
    "FAILED": Row(status=R.FAILED, phase=P.PROCESSING, code=X.CLEAN, drain_s=120.0),
    "CANCELLED, without a leader": Row(status=R.CANCELLED, lease_over_s=999.0, code=X.CLEAN, drain_s=120.0),
    "the lease is over": Row(status=R.RUNNING, phase=P.MEASUREMENT, lease_over_s=5.0, begins=(P.MEASUREMENT,)),
    "over for a minute": Row(status=R.RUNNING, phase=P.MEASUREMENT, lease_over_s=60.0, begins=(P.MEASUREMENT,)),
    "over for more": Row(
        status=R.RUNNING,
        phase=P.MEASUREMENT,
        lease_over_s=60.1,
        begins=(P.MEASUREMENT,),
        code=X.FATAL,
        drain_s=20.0,
    ),
    "no leader before START": Row(status=R.STARTING, lease_over_s=61.0, code=X.FATAL, drain_s=20.0),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_rows(row: Row) -> None:
    follower = Follower(row.status, row.phase, *row.said, lease_over_s=row.lease_over_s)
    for _ in range(3):  # what was found once changes nothing when it is found again
        follower.loop.watch(OneTurn())
        assert tuple(follower.begun) == row.begins
        assert follower.code is row.code
        assert (follower.worker_state.ending.drain_s if follower.worker_state.ending else 0.0) == row.drain_s
    assert follower.worker_state.contacts == 3


@pytest.mark.parametrize(("status", "at_first_s"), [(R.CANCELLING, 20.0), (R.STOPPING, 120.0)])
def test_a_worker_that_reads_the_state_of_the_run_first_drains_as_long_as_stop_requires(
    status: RunStatus, at_first_s: float
) -> None:
    follower = Follower(status, P.MEASUREMENT, lease_over_s=-20.0)
    follower.loop.watch(OneTurn())
    assert (follower.code, follower.worker_state.drain_s) == (X.CLEAN, at_first_s)

    follower.publish(STOP)
    follower.loop.watch(OneTurn())

    assert (follower.code, follower.worker_state.drain_s) == (X.CLEAN, 7.0)


def test_stop_does_not_lengthen_the_drain_of_a_worker_that_ends_for_another_reason() -> None:
    follower = Follower(R.CANCELLING, P.MEASUREMENT, lease_over_s=-20.0)
    follower.worker_state.end(ExitReason(code=X.CLEAN, drain_s=3.0))  # SIGTERM
    follower.loop.watch(OneTurn())
    follower.publish(STOP)
    follower.loop.watch(OneTurn())

    assert follower.worker_state.drain_s == 3.0


def test_a_worker_that_is_not_ready_begins_nothing_and_obeys_the_end() -> None:
    follower = Follower(R.RUNNING, P.WARMUP, START, lease_over_s=-20.0)
    follower.loop.look()
    assert (follower.begun, follower.code) == ([], None)
    follower.tables.status = R.CANCELLING
    follower.clock.advance(TIMING.status_poll_s)
    follower.loop.look()
    assert (follower.begun, follower.code) == ([], X.CLEAN)


@pytest.mark.parametrize(("waited_s", "code"), [(120.0, None), (120.1, X.NO_START)])
def test_a_worker_that_does_not_become_ready_gives_up(waited_s: float, code: WorkerExit | None) -> None:
    follower = Follower(R.STARTING, P.PREPARING, lease_over_s=-20.0)
    follower.clock.advance(waited_s)
    follower.loop.look()
    assert follower.code is code


def test_a_poll_without_a_response_is_no_contact_and_the_next_one_finds_what_was_missed() -> None:
    follower = Follower(R.RUNNING, P.WARMUP, START, lease_over_s=-20.0)
    follower.outcome = RequestOutcome.AWAY
    follower.loop.watch(OneTurn())
    assert (follower.begun, follower.code, follower.worker_state.contacts) == ([], None, 0)
    follower.outcome = RequestOutcome.ANSWERED
    follower.loop.watch(OneTurn())
    assert (follower.begun, follower.code, follower.worker_state.contacts) == ([P.WARMUP], None, 1)


def watch_for(follower: Follower, polls: int) -> None:
    """The loop goes round until it has polled so often."""
    stopping, sent = threading.Event(), follower.network.sent

    def note(query: NamedQuery) -> None:
        sent.append(query.name)
        if sent.count("run_status.poll") == polls:
            stopping.set()

    follower.network.note = note  # type: ignore[method-assign]
    follower.loop.watch(stopping)


def test_a_worker_that_waits_for_start_reads_events_when_there_are_some_and_at_intervals() -> None:
    follower = Follower(R.STARTING, P.PREPARING, lease_over_s=-20.0)
    watch_for(follower, 12)
    assert follower.network.sent.count("run_control_events.poll") == 3, "at once, and every 5 s"

    before = len(follower.network.sent)
    follower.publish(START)
    follower.loop.watch(OneTurn())

    assert follower.network.sent[before:] == ["run_status.poll", "run_control_events.poll"]
    assert len(follower.begun) == 1


def test_workers_that_are_ready_together_do_not_poll_together() -> None:
    second_s = []
    for _ in range(20):
        follower = Follower(R.STARTING, P.PREPARING, lease_over_s=-20.0)
        watch_for(follower, 2)
        second_s.append(follower.clock.now_ns / NS_PER_S)

    assert max(second_s) <= TIMING.status_poll_s
    assert max(second_s) - min(second_s) > TIMING.status_poll_s / 4, "of 20 random ones"


# --- moments of the plan ---------------------------------------------------------------------------------------------


class TimedFollower(Follower):
    """Server and worker share one clock; responses take as long as the test sets."""

    def __init__(self, *said: Command) -> None:
        super().__init__(R.RUNNING, P.WARMUP, *said, lease_over_s=-20.0)
        self.tables._clock = lambda: self.clock.now_ns / NS_PER_S
        self.back_s: list[float] = []  # of each answer in turn; then 0
        self.command_queue = self.loop._command_queue
        fetch = self.tables.fetch

        def slow(query: NamedQuery, binds: tuple[object, ...]) -> list[tuple[object, ...]]:
            rows = fetch(query, binds)
            self.clock.advance(self.back_s.pop(0) if self.back_s else 0.0)
            return rows

        self.tables.fetch = slow  # type: ignore[method-assign]

    @property
    def zero_s(self) -> float:
        at_ns = self.command_queue.next_ns()
        assert at_ns is not None
        return at_ns / NS_PER_S


@pytest.mark.parametrize("polls_before", [0, 3])
def test_a_slow_response_to_the_read_of_start_does_not_move_the_plan(polls_before: int) -> None:
    """Nothing else would notice: all windows of this worker would be as long as planned, and seconds later."""
    follower = TimedFollower()
    follower.tables.status = R.STARTING
    for _ in range(polls_before):
        follower.loop.watch(OneTurn())
    begun_s = follower.clock.now_ns / NS_PER_S
    follower.publish(replace(PLANNED, lead_ms=8_000), begun_s)
    follower.back_s = [0.0, 5.0]  # the poll, and the events
    follower.loop.watch(OneTurn())

    assert follower.zero_s == pytest.approx(begun_s + 8.0, abs=0.002)


def test_the_estimate_of_a_time_improves_with_every_response_until_it_has_come() -> None:
    follower = TimedFollower(replace(PLANNED, lead_ms=8_000))
    follower.back_s = [3.0, 3.0]
    follower.loop.watch(OneTurn())
    assert follower.zero_s == pytest.approx(8.0 + 1.5, abs=0.01), "in the middle of what is possible"

    follower.loop.watch(OneTurn())  # answered at once
    assert follower.zero_s == pytest.approx(8.0, abs=0.002)


def test_windows_keep_their_distance_once_the_plan_has_begun() -> None:
    later = PlannedCommand(at_ms=20_000, command=SetPhase(phase=P.MEASUREMENT))
    follower = TimedFollower(replace(PLANNED, plan=(*PLANNED.plan, later)))
    follower.back_s = [0.5, 2.0]
    follower.loop.watch(OneTurn())
    follower.clock.advance(3.0)
    (warmup,) = follower.command_queue.take_due(follower.clock.now_ns)
    follower.loop.watch(OneTurn())  # answered at once: it is known now how far off it was

    assert follower.zero_s == warmup.at_ns / NS_PER_S + 20.0
    (measurement,) = follower.command_queue.take_due(10**12)
    assert warmup.uncertain_ns == measurement.uncertain_ns == pytest.approx(0.251 * NS_PER_S, rel=0.01)


class Listener:
    """The main thread of a worker whose beats may arrive while its polls do not, second by second."""

    def __init__(self) -> None:
        self.follower = Follower(R.RUNNING, P.MEASUREMENT, START, lease_over_s=-20.0)
        self.silence = ControlPlaneWatchdog()

    def seconds(self, count: int, *, polls: RequestOutcome | None, beats: bool = True) -> ExitReason | None:
        """Advance by this many seconds; without `polls` there is none, as while connections are opened. Returns the
        end, if any."""
        worker_state = self.follower.worker_state
        for _ in range(count):
            if polls is not None:
                self.follower.outcome = polls
                self.follower.loop.watch(OneTurn())
            if beats:
                worker_state.contact()
            self.silence.count(worker_state, 1.0)
        return self.silence.ending(worker_state, TIMING)


def test_a_worker_whose_polls_fail_while_its_heartbeats_arrive_ends() -> None:
    listener = Listener()
    assert listener.seconds(60, polls=RequestOutcome.AWAY) is None
    assert listener.seconds(1, polls=RequestOutcome.ANSWERED) is None
    assert listener.seconds(60, polls=RequestOutcome.AWAY) is None
    ending = listener.seconds(1, polls=RequestOutcome.AWAY)
    assert ending is not None
    assert (ending.code, ending.error) == (X.NO_CONTROL_PLANE, "the state of the run could not be read for 61 s")


def test_a_worker_that_does_not_poll_does_not_end_for_it() -> None:
    listener = Listener()
    assert listener.seconds(1, polls=RequestOutcome.AWAY) is None
    assert listener.seconds(100, polls=None) is None


def test_a_worker_that_is_ending_need_not_poll() -> None:
    listener = Listener()
    listener.follower.worker_state.end(ExitReason(code=X.CLEAN))
    assert listener.seconds(100, polls=RequestOutcome.AWAY) is None
    ending = listener.seconds(61, polls=RequestOutcome.AWAY, beats=False)
    assert ending is not None
    assert ending.error == "the control plane has not answered for 61 s"
