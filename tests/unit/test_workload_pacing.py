"""Closed loop: how many connections are wanted when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.scenario.model import FindMaxSettings, Load, LoadMode, LoadStage
from loadgen.workload.ramp import ConnectionPlan, ConnectionStage, connection_plan

stages = st.builds(
    lambda duration_s, connections, ramp: ConnectionStage(
        duration_s=duration_s, connections=connections, ramp_s=duration_s * ramp
    ),
    st.floats(0.001, 1_000),
    st.integers(0, 1_000),
    st.floats(0, 1),
)


@pytest.mark.parametrize(
    ("t_s", "target"),
    [(-1.0, 2), (0.0, 2), (2.5, 4), (4.999, 5), (5.0, 6), (7.5, 8), (9.999, 9), (10.0, 10), (30.0, 10), (1e9, 10)],
)
def test_connections_grow_in_a_straight_line_and_stay(t_s, target):
    plan = ConnectionPlan([ConnectionStage(duration_s=60.0, connections=10, ramp_s=10.0)], initial=2)

    assert plan.target_at(t_s) == target


def test_stages_follow_one_another():
    plan = ConnectionPlan(
        [
            ConnectionStage(duration_s=60.0, connections=16),
            ConnectionStage(duration_s=120.0, connections=64),
            ConnectionStage(duration_s=30.0, connections=4, ramp_s=30.0),
        ]
    )

    assert [plan.target_at(t) for t in (0, 59.999, 60, 179.999, 180, 195, 209.999, 210)] == [
        16,
        16,
        64,
        64,
        64,
        34,
        5,
        4,
    ]
    assert (plan.duration_s, plan.peak) == (210.0, 64)


@given(st.lists(stages, min_size=1, max_size=4), st.integers(0, 100), st.floats(-1, 5_000), st.integers(1, 20))
def test_the_parts_of_all_workers_add_up_at_any_moment(levels, initial, t_s, workers):
    plan = ConnectionPlan(levels, initial=initial)

    targets = [plan.worker_target_at(t_s, worker, workers) for worker in range(workers)]

    assert sum(targets) == plan.target_at(t_s)
    assert max(targets) - min(targets) <= 1
    assert 0 <= plan.target_at(t_s) <= plan.peak


@given(st.integers(0, 500), st.integers(0, 500), st.lists(st.floats(0, 10), min_size=2, max_size=20))
def test_a_ramp_never_turns_back(initial, connections, moments):
    plan = ConnectionPlan([ConnectionStage(duration_s=10.0, connections=connections, ramp_s=10.0)], initial=initial)

    levels = [plan.target_at(t_s) for t_s in sorted(moments)]

    assert levels == sorted(levels, reverse=connections < initial)
    assert plan.target_at(10.0) == connections


@pytest.mark.parametrize(("connections", "ramp_s"), [(-1, 0.0), (1, 11.0), (1, -1.0)])
def test_a_stage_that_cannot_be_is_refused(connections, ramp_s):
    with pytest.raises(ValueError):
        ConnectionStage(duration_s=10.0, connections=connections, ramp_s=ramp_s)


def test_a_plan_needs_a_stage():
    with pytest.raises(ValueError):
        ConnectionPlan([])


# --- from the scenario -----------------------------------------------------------------------------------------------


def test_the_ramp_of_a_load_begins_with_the_warm_up_and_may_outlast_it():
    plan = connection_plan(Load(connections=41, min_connections=1, warmup_s=10.0, duration_s=60.0, ramp_s=20.0))

    assert [plan.target_at(t) for t in (0, 10, 19.999, 20, 70)] == [1, 21, 40, 41, 41]
    assert plan.duration_s == 70.0


def test_stages_of_a_load_follow_its_warm_up():
    levels = (
        LoadStage(duration_s=60.0, connections=16),
        LoadStage(duration_s=120.0, connections=64, ramp_s=12.0),
        LoadStage(duration_s=30.0, connections=8),
    )
    plan = connection_plan(Load(connections=64, warmup_s=10.0, duration_s=210.0, stages=levels))

    assert [plan.target_at(t) for t in (0, 69.9, 70, 76, 82, 189.9, 190, 220)] == [16, 16, 16, 40, 64, 64, 8, 8]


def test_without_a_warm_up_the_first_stage_may_have_a_ramp_of_its_own():
    level = (LoadStage(duration_s=10.0, connections=11, ramp_s=10.0),)
    plan = connection_plan(Load(connections=11, warmup_s=0.0, duration_s=10.0, stages=level))

    assert [plan.target_at(t) for t in (0, 5, 10)] == [1, 6, 11]


def test_an_open_loop_has_its_ceiling_and_find_max_no_plan():
    rate = Load(mode=LoadMode.RATE, connections=64, rate_per_second=100.0)

    assert (connection_plan(rate).target_at(0), connection_plan(rate).duration_s) == (64, 70.0)
    with pytest.raises(ValueError, match="step by step"):
        connection_plan(Load(mode=LoadMode.FIND_MAX, connections=500, duration_s=None, find_max=FindMaxSettings()))
