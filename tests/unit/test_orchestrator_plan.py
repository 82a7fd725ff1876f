"""What a run does when: windows and targets, and the events that say so."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.model.event import Scope, SetPhase, SetWorkerTarget
from loadgen.model.run import Phase
from loadgen.rules.find_max_step import FindMax
from loadgen.scenario.scenario import Arrival, Load, LoadMode, Stage
from orchestrator.commands import plan_events, target_events
from orchestrator.plan import (
    PlannedTarget,
    PlannedWindow,
    RunPlan,
    plan_run,
    planned_arrivals,
    planned_connection_ms,
)

ANNOUNCE_S = 2.0
ZERO = datetime.fromisoformat("2026-11-15T02:00:00")  # naive UTC, as the server says it
WORKERS = ("worker-0", "worker-1", "worker-2")


def staged(*stages: Stage, warmup_s: float = 10.0, ramp_s: float = 0.0) -> Load:
    return Load(
        connections=max(stage.connections or 1 for stage in stages),
        warmup_s=warmup_s,
        ramp_s=ramp_s,
        duration_s=sum(stage.duration_s for stage in stages),
        stages=stages,
    )


def up(connections: int, duration_s: float = 30.0, ramp_s: float = 0.0) -> Stage:
    return Stage(duration_s=duration_s, connections=connections, ramp_s=ramp_s)


def windows(plan: RunPlan) -> list[tuple[int | None, float, float]]:
    return [(window.step_id, window.starts_s, window.duration_s) for window in plan.windows]


def targets(plan: RunPlan) -> list[tuple[float, int, float]]:
    return [(target.at_s, target.connections, target.ramp_s) for target in plan.targets]


PLANS = [
    # what, load, windows, targets, end, first phase
    (
        "a plain run",
        Load(connections=8),
        [(None, 10.0, 60.0)],
        [],
        70.0,
        Phase.WARMUP,
    ),
    (
        "without warm-up it measures from the start, which is announced all the same",
        Load(connections=8, warmup_s=0.0),
        [(None, ANNOUNCE_S, 60.0)],
        [],
        62.0,
        Phase.MEASUREMENT,
    ),
    (
        "a warm-up shorter than an announcement",
        Load(connections=8, warmup_s=0.5),
        [(None, ANNOUNCE_S, 60.0)],
        [],
        62.0,
        Phase.WARMUP,
    ),
    (
        "a ramp is part of the warm-up",
        Load(connections=8, ramp_s=5.0),
        [(None, 10.0, 60.0)],
        [(0.0, 8, 5.0)],
        70.0,
        Phase.WARMUP,
    ),
    (
        "stages are numbered from 1; the first is where workers begin",
        staged(up(4), up(16, 20.0, 5.0), up(2, 10.0)),
        [(1, 10.0, 30.0), (2, 40.0, 20.0), (3, 60.0, 10.0)],
        [(40.0, 16, 5.0), (60.0, 2, 0.0)],
        70.0,
        Phase.WARMUP,
    ),
    (
        "without warm-up the first stage's own ramp is measured",
        staged(up(4, 30.0, 3.0), up(8), warmup_s=0.0),
        [(1, 2.0, 30.0), (2, 32.0, 30.0)],
        [(2.0, 4, 3.0), (32.0, 8, 0.0)],
        62.0,
        Phase.MEASUREMENT,
    ),
    (
        "a rate is the workers' own business",
        Load(mode=LoadMode.RATE, connections=64, rate_per_second=500.0, duration_s=20.0),
        [(None, 10.0, 20.0)],
        [],
        30.0,
        Phase.WARMUP,
    ),
    (
        "find_max ends when it knows",
        Load(mode=LoadMode.FIND_MAX, connections=500, duration_s=None, find_max=FindMax()),
        [],
        [],
        None,
        Phase.WARMUP,
    ),
]


@pytest.mark.parametrize(("what", "load", "wins", "goals", "ends_s", "first"), PLANS, ids=[row[0] for row in PLANS])
def test_plans(
    what: str,
    load: Load,
    wins: list[tuple[int | None, float, float]],
    goals: list[tuple[float, int, float]],
    ends_s: float | None,
    first: Phase,
) -> None:
    plan = plan_run(load, announce_s=ANNOUNCE_S)
    assert windows(plan) == wins
    assert targets(plan) == goals
    assert plan.ends_s == ends_s
    assert plan.first_phase is first
    assert plan.measures_s == max(load.warmup_s, ANNOUNCE_S)


@given(
    st.lists(st.tuples(st.integers(1, 500), st.floats(1, 1e4), st.floats(0, 10)), min_size=1, max_size=20),
    st.floats(0, 1_000),
)
def test_windows_follow_one_another_without_gap_and_targets_begin_with_them(
    levels: list[tuple[int, float, float]], warmup_s: float
) -> None:
    load = staged(*(up(*level) for level in levels), warmup_s=warmup_s)
    plan = plan_run(load, announce_s=ANNOUNCE_S)
    ends = [window.starts_s + window.duration_s for window in plan.windows]
    assert [window.starts_s for window in plan.windows] == [plan.measures_s, *ends[:-1]]
    assert plan.ends_s == ends[-1]
    assert {target.at_s for target in plan.targets} <= {0.0, *(window.starts_s for window in plan.windows)}
    assert [target.connections for target in plan.targets][-len(levels) + 1 :] == [n for n, _, _ in levels[1:]] or len(
        levels
    ) == 1
    assert plan.measures_s >= ANNOUNCE_S


# --- events ----------------------------------------------------------------------------------------------------------


def test_events_come_in_the_order_of_time_and_a_target_before_the_window_it_belongs_to() -> None:
    plan = plan_run(staged(up(4), up(16, 20.0, 5.0)), announce_s=ANNOUNCE_S)
    said = [new.command for new in plan_events(plan, WORKERS, ZERO)]
    kinds = [type(command).__name__ for command in said]
    assert kinds == ["SetPhase", "SetWorkerTarget", "SetWorkerTarget", "SetWorkerTarget", "SetPhase"]
    first, last = said[0], said[-1]
    assert isinstance(first, SetPhase)
    assert isinstance(last, SetPhase)
    assert first == SetPhase(
        phase=Phase.MEASUREMENT, step_id=1, duration_ms=30_000.0, effective_at="2026-11-15T02:00:10.000"
    )
    assert last.step_id == 2
    assert last.effective_at == "2026-11-15T02:00:40.000"


def test_every_worker_is_told_its_own_part() -> None:
    target = PlannedTarget(at_s=1.5, connections=8, ramp_s=2.0)
    events = target_events(target, WORKERS, ZERO, step_id=3, reason="find_max")
    assert [new.address.worker_id for new in events] == list(WORKERS)
    assert all(new.address.scope is Scope.WORKER for new in events)
    commands = [new.command for new in events]
    assert [command.target_connections for command in commands if isinstance(command, SetWorkerTarget)] == [3, 3, 2]
    assert commands[0] == SetWorkerTarget(
        target_connections=3, step_id=3, ramp_s=2.0, effective_at="2026-11-15T02:00:01.500", reason="find_max"
    )


@given(st.integers(0, 2_000), st.integers(1, 100))
def test_parts_add_up(connections: int, workers: int) -> None:
    names = [f"worker-{number}" for number in range(workers)]
    events = target_events(PlannedTarget(at_s=0, connections=connections, ramp_s=0), names, ZERO)
    parts = [new.command.target_connections for new in events if isinstance(new.command, SetWorkerTarget)]
    assert sum(parts) == connections
    assert max(parts) - min(parts) <= 1


def test_the_same_beginning_gives_the_same_events() -> None:
    """A plan that could not be announced whole is announced on, and must not have moved meanwhile."""
    plan = RunPlan(
        measures_s=10,
        ends_s=20,
        windows=(PlannedWindow(step_id=None, starts_s=10, duration_s=10),),
        targets=(PlannedTarget(at_s=0, connections=9, ramp_s=1),),
    )
    said = [(new.command, new.address) for new in plan_events(plan, WORKERS, ZERO)]
    assert said == [(new.command, new.address) for new in plan_events(plan, WORKERS, ZERO)]
    later = plan_events(plan, WORKERS, ZERO + timedelta(seconds=1))
    assert said != [(new.command, new.address) for new in later]


# --- what is to be delivered -----------------------------------------------------------------------------------------


def connection_ms(load: Load, workers: int, until_s: float | None = None) -> dict[int | None, int]:
    """Over all workers."""
    plan, total = plan_run(load, announce_s=ANNOUNCE_S), dict[int | None, int]()
    for worker in range(workers):
        for step_id, planned_ms in planned_connection_ms(load, plan, worker, workers, until_s).items():
            total[step_id] = total.get(step_id, 0) + planned_ms
    return total


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_planned_connection_time_is_that_of_all_workers(workers: int) -> None:
    assert connection_ms(Load(connections=8), workers) == {None: 8 * 60_000}
    assert connection_ms(staged(up(2), up(8), up(4)), workers) == {1: 60_000, 2: 240_000, 3: 120_000}
    ramped = connection_ms(staged(up(2), up(8, ramp_s=30.0)), workers)
    assert ramped[1] == 60_000
    assert 2 * 30_000 + 30_000 * 6 / 2 - workers * 30_000 <= ramped[2] <= 2 * 30_000 + 30_000 * 6 / 2


def test_the_plan_of_a_run_that_was_aborted_ends_there() -> None:
    load = staged(up(2), up(8), up(4))  # measured from 10 s on

    assert connection_ms(load, 2, until_s=45.0) == {1: 60_000, 2: 8 * 5_000, 3: 0}
    assert connection_ms(load, 2, until_s=5.0) == {1: 0, 2: 0, 3: 0}
    assert connection_ms(load, 2, until_s=1_000.0) == connection_ms(load, 2)


RATES = Load(mode=LoadMode.RATE, connections=8, rate_per_second=50.0, arrival=Arrival.UNIFORM)


def arrivals(workers: int, until_s: float | None = None) -> list[int]:
    plan = plan_run(RATES, announce_s=ANNOUNCE_S)
    parts = [planned_arrivals(RATES, plan, worker, workers, seed=1, until_s=until_s) for worker in range(workers)]
    return [part[None] for part in parts]


def test_the_planned_arrivals_are_those_of_all_workers() -> None:
    assert arrivals(1) == [3_000]
    assert sum(arrivals(7)) == 3_000
    assert max(arrivals(7)) - min(arrivals(7)) <= 1


def test_the_planned_arrivals_of_a_run_that_was_aborted_are_those_that_were_due() -> None:
    assert sum(arrivals(2, until_s=20.0)) == pytest.approx(500, abs=2)
    assert arrivals(2, until_s=9.0) == [0, 0]
