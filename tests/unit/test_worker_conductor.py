"""The conductor: windows at their moments, clients along their line, every planned arrival accounted for."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.metrics.result import window_discrepancy
from loadgen.metrics.windows import WindowState
from loadgen.model.event import SetPhase, SetWorkerTarget, Start, Stop
from loadgen.model.run import Phase
from loadgen.rules.find_max_step import FindMax
from loadgen.scenario.scenario import Arrival, Load, LoadMode
from loadgen.scenario.scenario import Stage as Level
from loadgen.units import NS_PER_MS, NS_PER_S
from loadgen.worker.arguments import WorkerArguments
from loadgen.worker.conductor import LEFTOVERS_AT_ONCE
from tests.unit.metrics_builders import sample
from tests.unit.worker_builders import Stage, poll, statement

WARMUP, MEASUREMENT = Phase.WARMUP, Phase.MEASUREMENT


def phase(name: Phase, duration_s: float | None = None, step_id: int | None = None) -> SetPhase:
    return SetPhase(phase=name, step_id=step_id, duration_ms=None if duration_s is None else duration_s * 1_000)


def target(connections: int, *, ramp_s: float = 0.0, step_id: int | None = None) -> SetWorkerTarget:
    return SetWorkerTarget(target_connections=connections, ramp_s=ramp_s, step_id=step_id)


# --- windows ---------------------------------------------------------------------------------------------------------


def test_a_run_warms_up_measures_for_its_time_and_then_waits():
    stage = Stage()
    stage.say(phase(MEASUREMENT, 60), at_s=10)

    stage.conductor.begin(WARMUP, None)
    assert stage.bench.go.is_set()
    assert stage.conductor.phase is WARMUP
    stage.run_to(30)
    assert stage.conductor.phase is MEASUREMENT
    stage.run_to(90)

    assert stage.spans() == [("WARMUP", None, 0.0, 10.0), ("MEASUREMENT", None, 10.0, 70.0)]
    assert not stage.bench.go.is_set()
    assert stage.windows.current is None
    assert stage.conductor.phase is Phase.COOLDOWN


def test_stages_follow_one_another_without_a_gap():
    stage = Stage()
    for number in (1, 2, 3):
        stage.say(phase(MEASUREMENT, 5, number), at_s=number * 5)

    stage.conductor.begin(WARMUP, None)
    stage.run_to(100)

    assert stage.spans() == [
        ("WARMUP", None, 0.0, 5.0),
        ("MEASUREMENT", 1, 5.0, 10.0),
        ("MEASUREMENT", 2, 10.0, 15.0),
        ("MEASUREMENT", 3, 15.0, 20.0),
    ]


def test_without_a_warm_up_nothing_is_sent_before_the_measurement_begins_as_announced():
    """All workers begin it together, and caches stay as cold as the scenario wants them."""
    stage = Stage()
    stage.say(phase(MEASUREMENT, 60), at_s=2)

    stage.conductor.begin(MEASUREMENT, 60.0)
    stage.run_to(100)

    assert stage.spans() == [("MEASUREMENT", None, 2.0, 62.0)]


def test_a_measurement_that_nobody_announced_lasts_as_long_as_the_scenario_says():
    stage = Stage()

    stage.conductor.begin(MEASUREMENT, 60.0)
    stage.run_to(100)

    assert stage.spans() == [("MEASUREMENT", None, 0.0, 60.0)]


def test_an_announced_cooldown_makes_no_warm_up_of_a_measurement():
    stage = Stage()
    stage.say(phase(Phase.COOLDOWN), at_s=30)

    stage.conductor.begin(MEASUREMENT, None)
    stage.run_to(100)

    assert stage.spans() == [("MEASUREMENT", None, 0.0, 30.0)]
    assert stage.conductor.phase is Phase.COOLDOWN


def test_a_late_joiner_measures_what_is_left():
    stage = Stage()
    stage.clock.advance(25)
    stage.say(phase(MEASUREMENT, 60), at_s=10)

    stage.conductor.begin(MEASUREMENT, 60.0)
    assert stage.windows.held() == ()
    stage.run_to(100)

    assert stage.spans() == [("MEASUREMENT", None, 25.0, 70.0)]


def test_a_phase_whose_time_is_over_lets_nobody_begin():
    stage = Stage()
    stage.clock.advance(100)
    stage.say(phase(MEASUREMENT, 60), at_s=10)

    stage.conductor.begin(MEASUREMENT, 60.0)
    stage.conductor.step()

    assert stage.windows.current is None
    assert not stage.bench.go.is_set()
    assert stage.spans() == [("MEASUREMENT", None, 100.0, 100.0)]
    assert stage.conductor.phase is Phase.COOLDOWN


def test_after_a_pause_only_the_last_of_several_phases_is_left_open():
    stage = Stage()
    stage.conductor.begin(WARMUP, None)
    for number in (1, 2, 3):
        stage.say(phase(MEASUREMENT, 5, number), at_s=number * 5)

    stage.clock.advance(17)
    stage.conductor.step()

    assert stage.spans() == [
        ("WARMUP", None, 0.0, 17.0),
        ("MEASUREMENT", 1, 17.0, 17.0),
        ("MEASUREMENT", 2, 17.0, 17.0),
        ("MEASUREMENT", 3, 17.0, None),
    ]
    stage.run_to(40)
    assert stage.spans()[-1] == ("MEASUREMENT", 3, 17.0, 20.0)


def test_the_next_window_takes_the_place_of_one_whose_time_is_over_in_the_same_moment():
    stage = Stage()
    stage.conductor.begin(MEASUREMENT, 10.0)
    stage.say(phase(MEASUREMENT, 10, 2), at_s=10)

    stage.run_to(10)

    assert stage.bench.go.is_set()
    assert stage.conductor.phase is MEASUREMENT


def test_begin_is_obeyed_once_and_not_after_the_end():
    stage = Stage()
    stage.conductor.begin(WARMUP, None)
    stage.conductor.begin(MEASUREMENT, 5.0)
    assert [span[0] for span in stage.spans()] == ["WARMUP"]

    late = Stage()
    late.conductor.finish()
    late.conductor.begin(MEASUREMENT, 5.0)
    assert late.spans() == []
    assert not late.bench.go.is_set()
    assert late.conductor.phase is None


def test_windows_are_numbered_on_from_what_a_predecessor_stored():
    stage = Stage(first_window=7)
    stage.say(phase(MEASUREMENT, 5), at_s=3)
    stage.conductor.begin(WARMUP, None)
    stage.run_to(10)

    assert [window.window_id for window in stage.windows.held()] == [7, 8]
    assert stage.bench.tag(8) == "MEASUREMENT/None"


def test_a_phase_that_only_the_row_tells_of_opens_its_window_after_a_while():
    stage = Stage()
    stage.conductor.begin(WARMUP, None)
    for second in range(1, 21):
        stage.run_to(second)
        stage.agenda.reconcile(poll(phase=MEASUREMENT), stage.clock.now_ns)

    stage.run_to(21)

    assert stage.spans() == [("WARMUP", None, 0.0, 6.0), ("MEASUREMENT", None, 6.0, None)]


def test_the_thread_does_what_is_due_and_ends_when_told():
    stage = Stage()
    stage.say(phase(MEASUREMENT, 5), at_s=2)
    stage.conductor.begin(WARMUP, None)

    class InTwentySeconds(threading.Event):
        def is_set(self) -> bool:
            return stage.now_s >= 20

    stage.conductor.run(InTwentySeconds())

    assert stage.spans() == [("WARMUP", None, 0.0, 2.0), ("MEASUREMENT", None, 2.0, 7.0)]


# --- the number of clients -------------------------------------------------------------------------------------------


def test_clients_follow_their_line_to_the_target():
    stage = Stage()
    stage.conductor.aim(2)
    stage.say(target(6, ramp_s=4), at_s=1)

    stage.run_to(10)

    assert stage.pool.sizes == [2, 3, 4, 5, 6]
    assert stage.conductor.target == 6


def test_a_new_target_in_the_middle_of_a_ramp_goes_on_from_there():
    stage = Stage()
    stage.conductor.aim(0)
    stage.say(target(10, ramp_s=10), at_s=0)
    stage.say(target(0, ramp_s=5), at_s=5)

    stage.run_to(20)

    assert stage.pool.sizes == [0, 1, 2, 3, 4, 5, 4, 3, 2, 1, 0]


@given(st.floats(0, 15), st.floats(0, 15))
def test_a_target_that_is_applied_late_leads_to_the_same_line(late_s, look_s):
    """A worker that was held up must have as many clients as it would have had."""
    levels = []
    for held_up_s in (0.0, late_s):
        stage = Stage()
        stage.conductor.aim(4)
        stage.say(target(20, ramp_s=10), at_s=0)
        stage.say(target(0, ramp_s=10), at_s=6)
        stage.clock.advance(held_up_s)
        stage.run_to(max(look_s, late_s))
        levels.append(stage.pool.wanted)

    assert levels[0] == levels[1]


def test_the_same_target_twice_changes_nothing():
    stage = Stage()
    stage.conductor.aim(4)
    for _ in range(3):
        stage.say(target(8))
    stage.run_to(5)

    assert stage.pool.sizes == [4, 8]


def test_finish_during_a_ramp_closes_everything_and_nothing_grows_again():
    stage = Stage()
    stage.conductor.aim(0)
    stage.conductor.begin(WARMUP, None)
    stage.say(target(100, ramp_s=100))
    stage.say(phase(MEASUREMENT, 60), at_s=50)
    stage.run_to(30)

    stage.conductor.finish()
    stage.conductor.finish()
    stage.conductor.aim(9)
    stage.run_to(200)

    assert stage.pool.wanted == 0
    assert stage.pool.draining
    assert stage.spans() == [("WARMUP", None, 0.0, 30.0)]
    assert stage.conductor.phase is Phase.COOLDOWN
    assert not stage.bench.go.is_set()


def test_stop_takes_effect_before_anything_that_was_due():
    stage = Stage()
    stage.conductor.begin(WARMUP, None)
    stage.say(phase(MEASUREMENT, 60), at_s=1)
    stage.say(target(50), at_s=1)
    stage.say(Stop(reason="x", drain_timeout_s=1.0))
    stage.say(target(60))
    stage.say(Start(expected_workers=1))

    stage.run_to(10)

    assert stage.pool.sizes == []
    assert [span[0] for span in stage.spans()] == ["WARMUP"]


def test_the_conductor_wakes_up_for_what_comes_next():
    stage = Stage()
    stage.say(phase(MEASUREMENT, 0.25), at_s=0.125)
    assert stage.conductor.step() == 0.125

    stage.clock.advance(0.125)
    assert stage.conductor.step() == 0.25
    stage.clock.advance(0.25)
    assert stage.conductor.step() == 0.5


# --- find_max --------------------------------------------------------------------------------------------------------

FIND = Load(mode=LoadMode.FIND_MAX, connections=50, duration_s=None, find_max=FindMax(settle_s=3.0))


def test_a_step_is_measured_once_its_target_is_reached_and_has_settled():
    stage = Stage(FIND)
    stage.conductor.aim(5)
    stage.conductor.begin(WARMUP, None)
    stage.pool.settled = False
    stage.say(target(15, step_id=1, ramp_s=2), at_s=10)
    stage.run_to(20)
    stage.pool.settled = True
    stage.run_to(40)
    stage.say(target(25, step_id=2), at_s=40)
    stage.run_to(50)

    assert stage.spans() == [
        ("WARMUP", None, 0.0, 10.0),
        ("WARMUP", 1, 10.0, 23.0),
        ("MEASUREMENT", 1, 23.0, 40.0),
        ("WARMUP", 2, 40.0, 43.0),
        ("MEASUREMENT", 2, 43.0, None),
    ]
    assert stage.conductor.phase is MEASUREMENT


def test_settling_does_not_begin_before_the_ramp_has_ended():
    stage = Stage(FIND)
    stage.conductor.aim(5)
    stage.say(target(15, step_id=1, ramp_s=20), at_s=0)

    stage.run_to(30)

    assert stage.spans() == [("WARMUP", 1, 0.0, 23.0), ("MEASUREMENT", 1, 23.0, None)]


def test_a_connection_that_is_lost_begins_the_settling_anew():
    stage = Stage(FIND)
    stage.say(target(5, step_id=1), at_s=0)
    stage.run_to(2)
    stage.pool.settled = False
    stage.run_to(2.5)
    stage.pool.settled = True
    stage.run_to(5.4)
    assert stage.conductor.phase is MEASUREMENT
    assert [span[0] for span in stage.spans()] == ["WARMUP"]

    stage.run_to(5.6)

    assert stage.spans()[-1][:3] == ("MEASUREMENT", 1, 5.5)


def test_a_target_that_is_never_reached_is_never_measured():
    stage = Stage(FIND)
    stage.pool.resize = lambda wanted, ahead=0: None  # type: ignore[method-assign]
    stage.say(target(5, step_id=1), at_s=0)

    stage.run_to(60)

    assert [span[0] for span in stage.spans()] == ["WARMUP"]


def test_only_steps_are_measured_whatever_phase_the_run_is_in():
    stage = Stage(FIND)
    stage.conductor.begin(MEASUREMENT, None)
    assert stage.conductor.phase is MEASUREMENT
    stage.run_to(1)
    stage.say(target(5, step_id=1))
    stage.run_to(2)
    stage.say(phase(MEASUREMENT))  # in the middle of settling
    stage.run_to(10)
    stage.say(phase(MEASUREMENT))  # in the middle of the step
    stage.run_to(11)

    assert stage.spans() == [
        ("WARMUP", None, 0.0, 1.0),
        ("WARMUP", 1, 1.0, 4.0),
        ("MEASUREMENT", 1, 4.0, None),
    ]


def test_a_step_that_is_settling_is_not_measured_after_the_end():
    stage = Stage(FIND)
    stage.conductor.begin(WARMUP, None)
    stage.say(target(5, step_id=1), at_s=1)
    stage.say(phase(Phase.COOLDOWN), at_s=2)

    stage.run_to(30)

    assert [span[0] for span in stage.spans()] == ["WARMUP", "WARMUP"]
    assert stage.windows.current is None
    assert stage.conductor.phase is Phase.COOLDOWN


def test_a_target_without_a_step_only_moves_clients():
    stage = Stage(FIND)
    stage.conductor.begin(WARMUP, None)
    stage.say(target(5))

    stage.run_to(10)

    assert stage.pool.wanted == 5
    assert len(stage.spans()) == 1


# --- open loop -------------------------------------------------------------------------------------------------------


def rate(
    level: float = 10.0,
    *,
    warmup_s: float = 0.0,
    duration_s: float = 10.0,
    levels: tuple[Level, ...] = (),
    arrival: Arrival = Arrival.UNIFORM,
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
    """Takes an arrival and sends it, as a client does; the test says when."""

    def __init__(self, stage: Stage, number: int) -> None:
        self.slot = stage.slots.get(number)
        self.stage = stage
        self.flying: list[tuple[int, int]] = []  # statement, window
        self.sent: list[int] = []

    def begin(self) -> None:
        arrivals = self.stage.bench.arrivals
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


def test_what_nobody_sent_is_skipped_once_and_the_window_becomes_final():
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


def test_a_window_that_was_cut_short_has_skipped_what_was_due_until_then():
    stage = Stage(rate())
    stage.say(phase(MEASUREMENT, 10), at_s=0)
    stage.run_to(3.05)

    stage.conductor.finish()
    stage.conductor.settle_all()
    stage.conductor.settle_all()

    assert counts_of(stage) == {0: (31, 31, 0)}
    assert stage.results()[0].state is WindowState.FINAL


@pytest.mark.parametrize("missing", [False, True])
def test_what_nobody_sent_is_overload_when_no_connection_was_missing(missing):
    stage = Stage(rate(arrival=Arrival.UNIFORM))
    stage.conductor.aim(2)
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


def test_a_window_with_more_leftovers_than_are_counted_at_once():
    stage = Stage(rate(2_500.0))
    stage.say(phase(MEASUREMENT, 10), at_s=0)
    stage.run_to(9)
    stage.clock.advance(1)

    assert stage.conductor.step() == 0.0
    assert stage.results()[0].counts.skipped == LEFTOVERS_AT_ONCE
    assert stage.results()[0].state is WindowState.CLOSED
    stage.run_to(11)

    assert counts_of(stage) == {0: (25_000, 25_000, 0)}
    assert stage.results()[0].state is WindowState.FINAL


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 900), min_size=1, max_size=4), st.sampled_from(Arrival), st.integers(0, 2))
def test_however_late_the_conductor_is_every_planned_arrival_is_accounted_for(late_ms, arrival, worker):
    """Windows open and close late by some milliseconds; none of the arrivals may fall into the cracks."""
    levels = tuple(Level(duration_s=2.0, rate_per_second=7.0 * number) for number in range(1, len(late_ms) + 1))
    me = WorkerArguments(run_id="r", worker_id="w", worker_group_id=worker, worker_group_count=3)
    stage = Stage(rate(levels=levels, arrival=arrival), arguments=me)
    for number in range(1, len(late_ms) + 1):
        stage.say(phase(MEASUREMENT, 2, number), at_s=number * 2)
    stage.conductor.begin(WARMUP, None)
    for number, late in enumerate(late_ms, 1):
        stage.clock.now_ns = stage.zero_ns + number * 2 * NS_PER_S + late * NS_PER_MS
        stage.conductor.step()
    stage.run_to(30)

    scheduled = [counts[0] for window, counts in counts_of(stage).items() if window > 0]
    planned = [schedule.end - schedule.first for schedule in stage.conductor._schedules[1:]]
    assert scheduled == planned
    assert all(result.state is WindowState.FINAL for result in stage.results())


def test_due_times_count_from_the_announced_moment():
    stage = Stage(rate())
    stage.say(phase(MEASUREMENT, 10), at_s=1)
    stage.conductor.begin(WARMUP, None)
    stage.clock.advance(1.03)
    stage.conductor.step()

    arrivals = stage.bench.arrivals
    assert arrivals is not None
    number = arrivals.take()
    assert number is not None
    assert arrivals.due_ns(number) == stage.zero_ns + NS_PER_S


def test_a_late_joiner_leaves_out_what_was_due_before_it_came():
    levels = tuple(Level(duration_s=10.0, rate_per_second=10.0) for _ in range(2))
    stage = Stage(rate(levels=levels))
    stage.clock.advance(14.5)
    stage.say(phase(MEASUREMENT, 10, 1), at_s=0)
    stage.say(phase(MEASUREMENT, 10, 2), at_s=10)

    stage.conductor.begin(MEASUREMENT, 20.0)
    stage.run_to(30)

    assert counts_of(stage) == {0: (0, 0, 0), 1: (55, 55, 0)}


def test_a_worker_that_was_held_up_answers_for_what_it_missed():
    levels = tuple(Level(duration_s=10.0, rate_per_second=10.0) for _ in range(2))
    stage = Stage(rate(levels=levels))
    stage.say(phase(MEASUREMENT, 10, 1), at_s=1)
    stage.say(phase(MEASUREMENT, 10, 2), at_s=11)
    stage.conductor.begin(WARMUP, None)

    stage.clock.advance(16)
    stage.run_to(40)

    assert counts_of(stage) == {0: (0, 0, 0), 1: (100, 100, 0), 2: (100, 100, 0)}


def test_a_warm_up_deals_nothing_that_is_due_in_the_measurement():
    """A client that waits for an arrival of the warm-up would send it in the first second of the measurement."""
    stage = Stage(rate(warmup_s=5.0))
    stage.clock.advance(0.7)
    stage.say(phase(MEASUREMENT, 10), at_s=5)
    stage.conductor.begin(WARMUP, None)
    arrivals = stage.bench.arrivals
    assert arrivals is not None

    dues_s = [(arrivals.due_ns(number) - stage.zero_ns) / NS_PER_S for number in iter(arrivals.take, None)]

    assert len(dues_s) == 44
    assert max(dues_s) <= 5.0


def test_numbers_go_on_from_window_to_window():
    levels = tuple(Level(duration_s=1.0, rate_per_second=5.0) for _ in range(2))
    stage = Stage(rate(warmup_s=1.0, levels=levels))
    stage.say(phase(MEASUREMENT, 1, 1), at_s=1)
    stage.say(phase(MEASUREMENT, 1, 2), at_s=2)
    stage.conductor.begin(WARMUP, None)
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

    assert stage.bench.arrivals is None
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


@settings(max_examples=100, deadline=None)
@given(moves, st.sampled_from(Arrival))
def test_the_identity_holds_for_any_course_of_windows_and_every_window_ends_final(course, arrival):
    levels = tuple(Level(duration_s=1.0 + number, rate_per_second=20.0) for number in range(3))
    stage = Stage(rate(warmup_s=1.0, levels=levels, arrival=arrival))
    stage.conductor.begin(WARMUP, None)
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
        stage.conductor.step()
    stage.conductor.finish()
    for client in clients:
        while client.flying:
            client.end()
    stage.conductor.settle_all()

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
