"""The ramp controller: windows at their planned times, clients along their ramp."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from loadgen.model.event import Start, Stop
from loadgen.model.run import Phase
from loadgen.scenario.model import FindMaxSettings, Load, LoadMode
from tests.unit.worker_builders import MEASUREMENT, WARMUP, Stage, phase, poll, target

# --- windows ---------------------------------------------------------------------------------------------------------


def test_a_run_warms_up_measures_for_its_time_and_then_waits():
    stage = Stage()
    stage.say(phase(MEASUREMENT, 60), at_s=10)

    stage.ramp_controller.begin(WARMUP, None)
    assert stage.context.go.is_set()
    assert stage.ramp_controller.phase is WARMUP
    stage.run_to(30)
    assert stage.ramp_controller.phase is MEASUREMENT
    stage.run_to(90)

    assert stage.spans() == [("WARMUP", None, 0.0, 10.0), ("MEASUREMENT", None, 10.0, 70.0)]
    assert not stage.context.go.is_set()
    assert stage.windows.current is None
    assert stage.ramp_controller.phase is Phase.COOLDOWN


def test_stages_follow_one_another_without_a_gap():
    stage = Stage()
    for number in (1, 2, 3):
        stage.say(phase(MEASUREMENT, 5, number), at_s=number * 5)

    stage.ramp_controller.begin(WARMUP, None)
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

    stage.ramp_controller.begin(MEASUREMENT, 60.0)
    stage.run_to(100)

    assert stage.spans() == [("MEASUREMENT", None, 2.0, 62.0)]


def test_an_unannounced_measurement_lasts_as_long_as_in_the_scenario():
    stage = Stage()

    stage.ramp_controller.begin(MEASUREMENT, 60.0)
    stage.run_to(100)

    assert stage.spans() == [("MEASUREMENT", None, 0.0, 60.0)]


def test_an_announced_cooldown_makes_no_warm_up_of_a_measurement():
    stage = Stage()
    stage.say(phase(Phase.COOLDOWN), at_s=30)

    stage.ramp_controller.begin(MEASUREMENT, None)
    stage.run_to(100)

    assert stage.spans() == [("MEASUREMENT", None, 0.0, 30.0)]
    assert stage.ramp_controller.phase is Phase.COOLDOWN


def test_a_late_joiner_measures_what_is_left():
    stage = Stage()
    stage.clock.advance(25)
    stage.say(phase(MEASUREMENT, 60), at_s=10)

    stage.ramp_controller.begin(MEASUREMENT, 60.0)
    assert stage.windows.held() == ()
    stage.run_to(100)

    assert stage.spans() == [("MEASUREMENT", None, 25.0, 70.0)]


def test_a_phase_whose_time_is_over_starts_no_statement():
    stage = Stage()
    stage.clock.advance(100)
    stage.say(phase(MEASUREMENT, 60), at_s=10)

    stage.ramp_controller.begin(MEASUREMENT, 60.0)
    stage.ramp_controller.step()

    assert stage.windows.current is None
    assert not stage.context.go.is_set()
    assert stage.spans() == [("MEASUREMENT", None, 100.0, 100.0)]
    assert stage.ramp_controller.phase is Phase.COOLDOWN


def test_after_a_pause_only_the_last_of_several_phases_is_left_open():
    stage = Stage()
    stage.ramp_controller.begin(WARMUP, None)
    for number in (1, 2, 3):
        stage.say(phase(MEASUREMENT, 5, number), at_s=number * 5)

    stage.clock.advance(17)
    stage.ramp_controller.step()

    assert stage.spans() == [
        ("WARMUP", None, 0.0, 17.0),
        ("MEASUREMENT", 1, 17.0, 17.0),
        ("MEASUREMENT", 2, 17.0, 17.0),
        ("MEASUREMENT", 3, 17.0, None),
    ]
    stage.run_to(40)
    assert stage.spans()[-1] == ("MEASUREMENT", 3, 17.0, 20.0)


def test_the_next_window_replaces_one_whose_time_is_over_at_the_same_time():
    stage = Stage()
    stage.ramp_controller.begin(MEASUREMENT, 10.0)
    stage.say(phase(MEASUREMENT, 10, 2), at_s=10)

    stage.run_to(10)

    assert stage.context.go.is_set()
    assert stage.ramp_controller.phase is MEASUREMENT


def test_begin_is_obeyed_once_and_not_after_the_end():
    stage = Stage()
    stage.ramp_controller.begin(WARMUP, None)
    stage.ramp_controller.begin(MEASUREMENT, 5.0)
    assert [span[0] for span in stage.spans()] == ["WARMUP"]

    late = Stage()
    late.ramp_controller.finish()
    late.ramp_controller.begin(MEASUREMENT, 5.0)
    assert late.spans() == []
    assert not late.context.go.is_set()
    assert late.ramp_controller.phase is None


def test_windows_are_numbered_on_from_those_of_a_predecessor():
    stage = Stage(first_window=7)
    stage.say(phase(MEASUREMENT, 5), at_s=3)
    stage.ramp_controller.begin(WARMUP, None)
    stage.run_to(10)

    assert [window.window_id for window in stage.windows.held()] == [7, 8]
    assert stage.context.tag(8) == "MEASUREMENT/None"


def test_a_phase_that_only_the_row_contains_opens_its_window_after_a_while():
    stage = Stage()
    stage.ramp_controller.begin(WARMUP, None)
    for second in range(1, 21):
        stage.run_to(second)
        stage.command_queue.reconcile(poll(phase=MEASUREMENT), stage.clock.now_ns)

    stage.run_to(21)

    assert stage.spans() == [("WARMUP", None, 0.0, 6.0), ("MEASUREMENT", None, 6.0, None)]


def test_the_thread_executes_due_commands_and_ends_when_stopped():
    stage = Stage()
    stage.say(phase(MEASUREMENT, 5), at_s=2)
    stage.ramp_controller.begin(WARMUP, None)

    class InTwentySeconds(threading.Event):
        def is_set(self) -> bool:
            return stage.now_s >= 20

    stage.ramp_controller.run(InTwentySeconds())

    assert stage.spans() == [("WARMUP", None, 0.0, 2.0), ("MEASUREMENT", None, 2.0, 7.0)]


# --- the number of clients -------------------------------------------------------------------------------------------


def test_clients_follow_their_ramp_to_the_target():
    stage = Stage()
    stage.ramp_controller.set_first_target(2)
    stage.say(target(6, ramp_s=4), at_s=1)

    stage.run_to(10)

    assert stage.pool.sizes == [2, 3, 4, 5, 6]
    assert stage.ramp_controller.target == 6


def test_a_new_target_in_the_middle_of_a_ramp_continues_from_there():
    stage = Stage()
    stage.ramp_controller.set_first_target(0)
    stage.say(target(10, ramp_s=10), at_s=0)
    stage.say(target(0, ramp_s=5), at_s=5)

    stage.run_to(20)

    assert stage.pool.sizes == [0, 1, 2, 3, 4, 5, 4, 3, 2, 1, 0]


@given(st.floats(0, 15), st.floats(0, 15))
def test_a_target_that_is_applied_late_leads_to_the_same_ramp(late_s, look_s):
    """A worker that was held up must have as many clients as it would have had."""
    levels = []
    for held_up_s in (0.0, late_s):
        stage = Stage()
        stage.ramp_controller.set_first_target(4)
        stage.say(target(20, ramp_s=10), at_s=0)
        stage.say(target(0, ramp_s=10), at_s=6)
        stage.clock.advance(held_up_s)
        stage.run_to(max(look_s, late_s))
        levels.append(stage.pool.wanted)

    assert levels[0] == levels[1]


def test_the_same_target_twice_changes_nothing():
    stage = Stage()
    stage.ramp_controller.set_first_target(4)
    for _ in range(3):
        stage.say(target(8))
    stage.run_to(5)

    assert stage.pool.sizes == [4, 8]


def test_finish_during_a_ramp_closes_everything_and_nothing_grows_again():
    stage = Stage()
    stage.ramp_controller.set_first_target(0)
    stage.ramp_controller.begin(WARMUP, None)
    stage.say(target(100, ramp_s=100))
    stage.say(phase(MEASUREMENT, 60), at_s=50)
    stage.run_to(30)

    stage.ramp_controller.finish()
    stage.ramp_controller.finish()
    stage.ramp_controller.set_first_target(9)
    stage.run_to(200)

    assert stage.pool.wanted == 0
    assert stage.pool.draining
    assert stage.spans() == [("WARMUP", None, 0.0, 30.0)]
    assert stage.ramp_controller.phase is Phase.COOLDOWN
    assert not stage.context.go.is_set()


def test_stop_takes_effect_before_anything_that_was_due():
    stage = Stage()
    stage.ramp_controller.begin(WARMUP, None)
    stage.say(phase(MEASUREMENT, 60), at_s=1)
    stage.say(target(50), at_s=1)
    stage.say(Stop(reason="x", drain_timeout_s=1.0))
    stage.say(target(60))
    stage.say(Start(expected_workers=1))

    stage.run_to(10)

    assert stage.pool.sizes == []
    assert [span[0] for span in stage.spans()] == ["WARMUP"]


def test_the_ramp_controller_wakes_up_for_the_next_command():
    stage = Stage()
    stage.say(phase(MEASUREMENT, 0.25), at_s=0.125)
    assert stage.ramp_controller.step() == 0.125

    stage.clock.advance(0.125)
    assert stage.ramp_controller.step() == 0.25
    stage.clock.advance(0.25)
    assert stage.ramp_controller.step() == 0.5


# --- find_max --------------------------------------------------------------------------------------------------------


FIND = Load(mode=LoadMode.FIND_MAX, connections=50, duration_s=None, find_max=FindMaxSettings(settle_s=3.0))


def test_a_step_is_measured_once_its_target_is_reached_and_has_settled():
    stage = Stage(FIND)
    stage.ramp_controller.set_first_target(5)
    stage.ramp_controller.begin(WARMUP, None)
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
        ("WARMUP", 2, 40.0, 44.5),
        ("MEASUREMENT", 2, 44.5, None),
    ]
    assert stage.ramp_controller.phase is MEASUREMENT


def test_workers_measure_a_step_together_though_their_logins_differ():
    for login_s in (0.1, 1.4):
        stage = Stage(FIND)
        stage.pool.settled = False
        stage.say(target(15, step_id=1), at_s=10)
        stage.run_to(10 + login_s)
        stage.pool.settled = True
        stage.run_to(20)
        assert stage.spans()[-1][:3] == ("MEASUREMENT", 1, 14.5)


def test_settling_does_not_begin_before_the_ramp_has_ended():
    stage = Stage(FIND)
    stage.ramp_controller.set_first_target(5)
    stage.say(target(15, step_id=1, ramp_s=20), at_s=0)

    stage.run_to(30)

    assert stage.spans() == [("WARMUP", 1, 0.0, 23.0), ("MEASUREMENT", 1, 23.0, None)]


def test_a_lost_connection_restarts_the_settling():
    stage = Stage(FIND)
    stage.say(target(5, step_id=1), at_s=0)
    stage.run_to(2)
    stage.pool.settled = False
    stage.run_to(2.5)
    stage.pool.settled = True
    stage.run_to(5.4)
    assert stage.ramp_controller.phase is MEASUREMENT
    assert [span[0] for span in stage.spans()] == ["WARMUP"]

    stage.run_to(5.6)

    assert stage.spans()[-1][:3] == ("MEASUREMENT", 1, 5.5)


def test_a_target_that_is_never_reached_is_never_measured():
    stage = Stage(FIND)
    stage.pool.resize = lambda wanted, ahead=0: None  # type: ignore[method-assign]
    stage.say(target(5, step_id=1), at_s=0)
    stage.run_to(60)

    assert [span[0] for span in stage.spans()] == ["WARMUP"]


def test_only_steps_are_measured_in_any_phase_of_the_run():
    stage = Stage(FIND)
    stage.ramp_controller.begin(MEASUREMENT, None)
    assert stage.ramp_controller.phase is MEASUREMENT
    stage.run_to(1)
    stage.say(target(5, step_id=1))
    stage.run_to(2)
    stage.say(phase(MEASUREMENT))  # in the middle of settling
    stage.run_to(10)
    stage.say(phase(MEASUREMENT))  # in the middle of the step
    stage.run_to(11)

    assert stage.spans() == [
        ("WARMUP", None, 0.0, 1.0),
        ("WARMUP", 1, 1.0, 5.5),
        ("MEASUREMENT", 1, 5.5, None),
    ]


def test_a_step_that_is_settling_is_not_measured_after_the_end():
    stage = Stage(FIND)
    stage.ramp_controller.begin(WARMUP, None)
    stage.say(target(5, step_id=1), at_s=1)
    stage.say(phase(Phase.COOLDOWN), at_s=2)

    stage.run_to(30)

    assert [span[0] for span in stage.spans()] == ["WARMUP", "WARMUP"]
    assert stage.windows.current is None
    assert stage.ramp_controller.phase is Phase.COOLDOWN


def test_a_target_without_a_step_only_moves_clients():
    stage = Stage(FIND)
    stage.ramp_controller.begin(WARMUP, None)
    stage.say(target(5))

    stage.run_to(10)

    assert stage.pool.wanted == 5
    assert len(stage.spans()) == 1
