"""Closed loop: how many connections a run plans at each moment, from the plan that the leader announces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.rules.plan import plan_run
from loadgen.scenario.model import FindMaxSettings, Load, LoadMode, LoadStage
from loadgen.units import NS_PER_S
from loadgen.workload.ramp import Ramp, follow, initial_connections


def level_at(load: Load, t_s: float) -> int:
    """Connections of all workers, `t_s` after the zero of the run."""
    initial, now_ns = initial_connections(load), round(t_s * NS_PER_S)
    targets = ((round(one.at_s * NS_PER_S), one.connections, one.ramp_s) for one in plan_run(load).targets)
    lines = follow(Ramp(origin=initial, target=initial), targets)
    return [line for line in lines if line.began_ns <= now_ns][-1].at(now_ns)


@pytest.mark.parametrize(
    ("t_s", "target"),
    [(0.0, 2), (2.5, 4), (4.999, 5), (5.0, 6), (7.5, 8), (9.999, 9), (10.0, 10), (30.0, 10), (1e9, 10)],
)
def test_connections_grow_in_a_straight_line_and_stay(t_s, target):
    load = Load(connections=10, min_connections=2, warmup_s=0.0, duration_s=60.0, ramp_s=10.0)

    assert level_at(load, t_s) == target


def test_the_ramp_of_a_load_begins_with_the_warm_up_and_may_outlast_it():
    load = Load(connections=41, min_connections=1, warmup_s=10.0, duration_s=60.0, ramp_s=20.0)

    assert [level_at(load, t_s) for t_s in (0, 10, 19.999, 20, 70)] == [1, 21, 40, 41, 41]


def test_stages_of_a_load_follow_its_warm_up():
    levels = (
        LoadStage(duration_s=60.0, connections=16),
        LoadStage(duration_s=120.0, connections=64, ramp_s=12.0),
        LoadStage(duration_s=30.0, connections=8),
    )
    load = Load(connections=64, warmup_s=10.0, duration_s=210.0, stages=levels)

    moments_s = (0, 69.9, 70, 76, 82, 189.9, 190, 220)
    assert [level_at(load, t_s) for t_s in moments_s] == [16, 16, 16, 40, 64, 64, 8, 8]


def test_without_a_warm_up_the_first_stage_may_have_a_separate_ramp():
    level = (LoadStage(duration_s=10.0, connections=11, ramp_s=10.0),)
    load = Load(connections=11, warmup_s=0.0, duration_s=10.0, stages=level)

    assert [level_at(load, t_s) for t_s in (0, 5, 10)] == [1, 6, 11]


def test_after_a_warm_up_the_first_stage_is_reached_before_it():
    level = (LoadStage(duration_s=10.0, connections=11, ramp_s=10.0),)
    load = Load(connections=11, warmup_s=5.0, duration_s=10.0, stages=level)

    assert [level_at(load, t_s) for t_s in (0, 5, 10)] == [11, 11, 11]


@given(st.integers(0, 500), st.integers(1, 500), st.lists(st.floats(0, 10), min_size=2, max_size=20))
def test_a_ramp_never_turns_back(initial, connections, moments):
    load = Load(connections=connections, min_connections=initial, warmup_s=0.0, duration_s=10.0, ramp_s=10.0)

    levels = [level_at(load, t_s) for t_s in sorted(moments)]

    assert levels == sorted(levels, reverse=connections < initial)
    assert level_at(load, 10.0) == connections


def test_an_open_loop_has_its_ceiling_and_find_max_its_first_level_from_the_beginning():
    rate = Load(mode=LoadMode.RATE, connections=64, rate_per_second=100.0)
    search = Load(mode=LoadMode.FIND_MAX, connections=500, duration_s=None, find_max=FindMaxSettings(start=7))

    assert (initial_connections(rate), plan_run(rate).targets) == (64, ())
    assert (initial_connections(search), plan_run(search).targets) == (7, ())
