"""The ramp controller with an open loop: every planned arrival accounted for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.metrics.connections import ConnectionFailure, ReconnectReason
from loadgen.metrics.recorder import WindowState
from loadgen.metrics.window import window_discrepancy
from loadgen.model.run import Phase
from loadgen.scenario.model import ArrivalProcess, Load, LoadMode
from loadgen.scenario.model import LoadStage as Level
from loadgen.units import NS_PER_MS, NS_PER_S
from loadgen.worker.arguments import WorkerArguments
from loadgen.worker.ramp_controller import UNSENT_ARRIVALS_BATCH
from tests.unit.metrics_builders import sample
from tests.unit.worker_builders import MEASUREMENT, WARMUP, Stage, phase, statement, target


def rate(
    level: float = 10.0,
    *,
    warmup_s: float = 0.0,
    duration_s: float = 10.0,
    levels: tuple[Level, ...] = (),
    arrival: ArrivalProcess = ArrivalProcess.UNIFORM,
) -> Load:
    return Load(
        mode=LoadMode.RATE,
        connections=4,
        warmup_s=warmup_s,
        duration_s=duration_s,
        rate_per_second=None if levels else level,
        stages=levels,
        arrival=arrival,
    )


class Client:
    """Takes an arrival and sends it, as a client does, when the test says so."""

    def __init__(self, stage: Stage, number: int) -> None:
        self.slot = stage.slots.get(number)
        self.stage = stage
        self.flying: list[tuple[int, int]] = []  # statement, window
        self.sent: list[int] = []

    def begin(self) -> None:
        arrivals = self.stage.context.arrivals
        window = self.slot.recorder.begin()
        index = arrivals.take() if arrivals is not None and window == arrivals.window_id else None
        if index is None:
            if window is not None:
                self.slot.recorder.unbegin(window)
            return
        assert window is not None
        self.sent.append(index)
        self.flying.append((self.slot.drawer.draw(index)[0], window))

    def end(self) -> None:
        if self.flying:
            number, window = self.flying.pop()
            self.slot.recorder.append(sample(statement=number, window=window))


def counts_of(stage: Stage) -> dict[int, tuple[int, int, int]]:
    """Scheduled, skipped, succeeded of every window."""
    return {
        result.window_id: (result.counts.scheduled, result.counts.skipped, result.counts.succeeded)
        for result in stage.results()
    }


def test_unsent_arrivals_are_skipped_once_and_the_window_becomes_final():
    stage = Stage(rate())
    stage.say(phase(MEASUREMENT, 10), at_s=0)
    stage.run_to(5)
    client = Client(stage, 0)
    for _ in range(3):
        client.begin()
        client.end()
    client.begin()

    stage.run_to(12)
    assert counts_of(stage) == {0: (100, 96, 3)}
    assert stage.results()[0].state is WindowState.CLOSED
    client.end()

    assert counts_of(stage) == {0: (100, 96, 4)}
    assert stage.results()[0].state is WindowState.FINAL


def test_a_window_that_was_cut_short_has_skipped_the_arrivals_that_were_due_until_then():
    stage = Stage(rate())
    stage.say(phase(MEASUREMENT, 10), at_s=0)
    stage.run_to(3.05)

    stage.ramp_controller.finish()
    stage.ramp_controller.count_all_unsent()
    stage.ramp_controller.count_all_unsent()

    assert counts_of(stage) == {0: (31, 31, 0)}
    assert stage.results()[0].state is WindowState.FINAL


@pytest.mark.parametrize("missing", [False, True])
def test_unsent_arrivals_are_overload_when_no_connection_was_missing(missing):
    stage = Stage(rate(arrival=ArrivalProcess.UNIFORM))
    stage.ramp_controller.set_first_target(2)
    for slot in range(1 if missing else 2):
        stage.connections.login_succeeded(slot, stage.clock.now_ns, None)
    stage.say(phase(MEASUREMENT, 10), at_s=0)
    stage.run_to(11)

    (result,) = stage.results()

    unsent, skipped = result.tally.whole.unsent, result.counts.skipped
    assert skipped > 0
    assert unsent.count == (0 if missing else skipped)
    if not missing:  # each as old as it was when the window closed
        assert unsent.max_ns == 10 * NS_PER_S
        assert 0 < unsent.min_ns < 10 * NS_PER_S / skipped + NS_PER_MS


def test_arrivals_due_while_connections_were_missing_are_no_overload_though_all_are_open_again():
    stage = Stage(rate(arrival=ArrivalProcess.UNIFORM))
    stage.ramp_controller.set_first_target(2)
    for slot in range(2):
        stage.connections.login_succeeded(slot, stage.clock.now_ns, None)
    stage.say(phase(MEASUREMENT, 10), at_s=0)
    stage.run_to(3)
    refused = ConnectionFailure(at=stage.clock.utc_now().replace(tzinfo=None), code=None, text="503")
    stage.connections.login_refused(0, stage.clock.now_ns, refused)
    stage.run_to(8)
    stage.connections.login_succeeded(0, stage.clock.now_ns, ReconnectReason.SESSION_LOST)
    stage.run_to(11)

    (result,) = stage.results()

    assert result.counts.skipped == 100, "no client has taken any"
    unsent = result.tally.whole.unsent
    assert unsent.count == 20, "those that were due in the last two seconds, since which every connection was there"
    assert unsent.max_ns == 2 * NS_PER_S
    assert result.connections is not None
    assert (result.connections.planned_ms, result.connections.delivered_ms) == (20_000, 15_000)


def test_a_window_with_more_leftovers_than_are_counted_at_once():
    stage = Stage(rate(2_500.0))
    stage.say(phase(MEASUREMENT, 10), at_s=0)
    stage.run_to(9)
    stage.clock.advance(1)

    assert stage.ramp_controller.step() == 0.0
    assert stage.results()[0].counts.skipped == UNSENT_ARRIVALS_BATCH
    assert stage.results()[0].state is WindowState.CLOSED
    stage.run_to(11)

    assert counts_of(stage) == {0: (25_000, 25_000, 0)}
    assert stage.results()[0].state is WindowState.FINAL


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 900), min_size=1, max_size=4), st.sampled_from(ArrivalProcess), st.integers(0, 2))
def test_however_late_the_ramp_controller_is_every_planned_arrival_is_accounted_for(late_ms, arrival, worker):
    """Windows open and close late by some milliseconds; none of the arrivals may fall into the cracks."""
    levels = tuple(Level(duration_s=2.0, rate_per_second=7.0 * number) for number in range(1, len(late_ms) + 1))
    me = WorkerArguments(run_id="r", worker_id="w", worker_group_id=worker, worker_group_count=3)
    stage = Stage(rate(levels=levels, arrival=arrival), arguments=me)
    for number in range(1, len(late_ms) + 1):
        stage.say(phase(MEASUREMENT, 2, number), at_s=number * 2)
    stage.ramp_controller.begin(WARMUP, None)
    for number, late in enumerate(late_ms, 1):
        stage.clock.now_ns = stage.zero_ns + number * 2 * NS_PER_S + late * NS_PER_MS
        stage.ramp_controller.step()
    stage.run_to(30)

    scheduled = [counts[0] for window, counts in counts_of(stage).items() if window > 0]
    planned = [schedule.end - schedule.first for schedule in stage.ramp_controller._schedules[1:]]
    assert scheduled == planned
    assert all(result.state is WindowState.FINAL for result in stage.results())


def test_due_times_count_from_the_announced_time():
    stage = Stage(rate())
    stage.say(phase(MEASUREMENT, 10), at_s=1)
    stage.ramp_controller.begin(WARMUP, None)
    stage.clock.advance(1.03)
    stage.ramp_controller.step()

    arrivals = stage.context.arrivals
    assert arrivals is not None
    number = arrivals.take()
    assert number is not None
    assert arrivals.due_ns(number) == stage.zero_ns + NS_PER_S


def test_a_window_that_opens_late_has_its_connection_time_from_its_opening():
    stage = Stage(rate())
    stage.ramp_controller.set_first_target(1)
    stage.connections.login_succeeded(0, stage.clock.now_ns, None)
    stage.say(phase(MEASUREMENT, 10), at_s=1)
    stage.ramp_controller.begin(WARMUP, None)
    stage.clock.advance(3.0)
    stage.run_to(12)

    _, result = stage.results()

    assert result.seconds == pytest.approx(8.0)
    assert result.connections is not None
    assert (result.connections.planned_ms, result.connections.delivered_ms) == (8_000, 8_000)


def test_a_late_worker_leaves_out_the_arrivals_that_were_due_before_it_joined():
    levels = tuple(Level(duration_s=10.0, rate_per_second=10.0) for _ in range(2))
    stage = Stage(rate(levels=levels))
    stage.clock.advance(14.5)
    stage.say(phase(MEASUREMENT, 10, 1), at_s=0)
    stage.say(phase(MEASUREMENT, 10, 2), at_s=10)

    stage.ramp_controller.begin(MEASUREMENT, 20.0)
    stage.run_to(30)

    assert counts_of(stage) == {0: (0, 0, 0), 1: (55, 55, 0)}


def test_an_arrival_that_is_due_with_the_opening_of_the_first_window_is_not_left_out():
    """Threads wake up a moment after the time for which the window was announced."""
    stage = Stage(rate())
    stage.say(phase(MEASUREMENT, 10), at_s=1)
    stage.ramp_controller.begin(MEASUREMENT, 10.0)

    stage.clock.advance(1.0001)
    stage.run_to(12)

    assert counts_of(stage) == {0: (100, 100, 0)}


def test_a_delayed_worker_accounts_for_the_arrivals_it_missed():
    levels = tuple(Level(duration_s=10.0, rate_per_second=10.0) for _ in range(2))
    stage = Stage(rate(levels=levels))
    stage.say(phase(MEASUREMENT, 10, 1), at_s=1)
    stage.say(phase(MEASUREMENT, 10, 2), at_s=11)
    stage.ramp_controller.begin(WARMUP, None)

    stage.clock.advance(16)
    stage.run_to(40)

    assert counts_of(stage) == {0: (0, 0, 0), 1: (100, 100, 0), 2: (100, 100, 0)}


def test_a_warm_up_takes_no_arrival_that_is_due_in_the_measurement():
    """A client that waits for an arrival of the warm-up would send it in the first second of the measurement."""
    stage = Stage(rate(warmup_s=5.0))
    stage.clock.advance(0.7)
    stage.say(phase(MEASUREMENT, 10), at_s=5)
    stage.ramp_controller.begin(WARMUP, None)
    arrivals = stage.context.arrivals
    assert arrivals is not None

    dues_s = [(arrivals.due_ns(number) - stage.zero_ns) / NS_PER_S for number in iter(arrivals.take, None)]

    assert len(dues_s) == 44
    assert max(dues_s) <= 5.0


def test_numbers_go_on_from_window_to_window():
    levels = tuple(Level(duration_s=1.0, rate_per_second=5.0) for _ in range(2))
    stage = Stage(rate(warmup_s=1.0, levels=levels))
    stage.say(phase(MEASUREMENT, 1, 1), at_s=1)
    stage.say(phase(MEASUREMENT, 1, 2), at_s=2)
    stage.ramp_controller.begin(WARMUP, None)
    client = Client(stage, 0)
    for tenth in range(35):
        stage.run_to(tenth / 10)
        client.begin()
        client.end()

    assert client.sent == sorted(set(client.sent))
    assert client.sent[-1] == 14


@pytest.mark.parametrize("step_id", [99, -1, -2])
def test_a_stage_that_the_scenario_does_not_have_has_no_arrivals(step_id):
    stage = Stage(rate())
    stage.say(phase(MEASUREMENT, 10, step_id))
    stage.run_to(5)

    assert stage.context.arrivals is None
    assert stage.windows.current == 0


moves = st.lists(
    st.one_of(
        st.tuples(st.just("pause"), st.integers(0, 3_000)),
        st.tuples(st.just("phase"), st.integers(0, 5)),
        st.tuples(st.just("ahead"), st.integers(0, 3_000)),
        st.tuples(st.just("client"), st.integers(0, 2)),
        st.tuples(st.just("end"), st.integers(0, 2)),
        st.tuples(st.just("harvest"), st.just(0)),
        st.tuples(st.just("target"), st.integers(0, 4)),
    ),
    max_size=40,
)
PHASES = [
    phase(WARMUP),
    phase(MEASUREMENT, 2.0, 1),
    phase(MEASUREMENT, 1.0, 2),
    phase(MEASUREMENT, None, 3),
    phase(Phase.COOLDOWN),
    phase(MEASUREMENT, 0.0, 1),
]


@settings(max_examples=40, deadline=None)
@given(moves, st.sampled_from(ArrivalProcess))
def test_the_identity_holds_for_any_sequence_of_windows_and_every_window_becomes_final(course, arrival):
    levels = tuple(Level(duration_s=1.0 + number, rate_per_second=20.0) for number in range(3))
    stage = Stage(rate(warmup_s=1.0, levels=levels, arrival=arrival))
    stage.ramp_controller.begin(WARMUP, None)
    clients = [Client(stage, number) for number in range(3)]
    for what, value in course:
        if what == "pause":
            stage.clock.advance(value / 1_000)
        elif what == "phase":
            stage.say(PHASES[value])
        elif what == "ahead":
            stage.say(phase(MEASUREMENT, 1.5, 2), at_s=stage.now_s + value / 1_000)
        elif what == "client":
            clients[value].begin()
        elif what == "end":
            clients[value].end()
        elif what == "target":
            stage.say(target(value))
        elif what == "harvest":
            assert [window_discrepancy(result) for result in stage.results() if window_discrepancy(result)] == []
            continue
        stage.ramp_controller.step()
    stage.ramp_controller.finish()
    for client in clients:
        while client.flying:
            client.end()
    stage.ramp_controller.count_all_unsent()

    results = stage.results()
    assert {result.state for result in results} <= {WindowState.FINAL}
    assert [window_discrepancy(result) for result in results if window_discrepancy(result)] == []
    assert sum(result.counts.succeeded for result in results) == sum(len(client.sent) for client in clients)
    assert all(result.counts.in_flight == 0 for result in results)


def test_leftovers_are_counted_by_statement():
    stage = Stage(rate(), statements=(statement("a", weight=3), statement("b", weight=1)))
    stage.say(phase(MEASUREMENT, 10), at_s=0)
    stage.run_to(12)

    (result,) = stage.results()
    assert {name: tally.skipped for name, tally in result.tally.statements.items()} == {"a": 75, "b": 25}
