"""The times of a run: windows and targets, and the events that contain them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.control.tables.run_control_events import NewEvent
from loadgen.model.event import PlannedCommand, SetPhase, SetRunTarget, Start
from loadgen.model.run import Phase
from loadgen.results.run_snapshot import WorkerHealth, WorkerSnapshot
from loadgen.rules.plan import RunPlan, plan_run, planned_arrivals, planned_connection_ms
from loadgen.scenario.model import ArrivalProcess, FindMaxSettings, Load, LoadMode, LoadStage
from loadgen.scenario.settings import TimingSettings
from loadgen.snowflake.settings import CONTROL_STATEMENT_S
from orchestrator.event_publisher import (
    LATENCY_MAX_S,
    START_LATENCY_MAX_S,
    Announcement,
    lead_ms,
    start_event,
    step_event,
)
from tests.unit.orchestrator_builders import view


def staged(*stages: LoadStage, warmup_s: float = 10.0, ramp_s: float = 0.0) -> Load:
    return Load(
        connections=max(stage.connections or 1 for stage in stages),
        warmup_s=warmup_s,
        ramp_s=ramp_s,
        duration_s=sum(stage.duration_s for stage in stages),
        stages=stages,
    )


def up(connections: int, duration_s: float = 30.0, ramp_s: float = 0.0) -> LoadStage:
    return LoadStage(duration_s=duration_s, connections=connections, ramp_s=ramp_s)


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
        "without warm-up it measures from the start",
        Load(connections=8, warmup_s=0.0),
        [(None, 0.0, 60.0)],
        [],
        60.0,
        Phase.MEASUREMENT,
    ),
    (
        "a short warm-up is as long as it says",
        Load(connections=8, warmup_s=0.5),
        [(None, 0.5, 60.0)],
        [],
        60.5,
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
        [(1, 0.0, 30.0), (2, 30.0, 30.0)],
        [(0.0, 4, 3.0), (30.0, 8, 0.0)],
        60.0,
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
        Load(mode=LoadMode.FIND_MAX, connections=500, duration_s=None, find_max=FindMaxSettings()),
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
    plan = plan_run(load)
    assert windows(plan) == wins
    assert targets(plan) == goals
    assert plan.ends_s == ends_s
    assert plan.first_phase is first
    assert plan.measures_s == load.warmup_s


@given(
    st.lists(st.tuples(st.integers(1, 500), st.floats(1, 1e4), st.floats(0, 10)), min_size=1, max_size=20),
    st.floats(0, 1_000),
)
def test_windows_follow_one_another_without_gap_and_targets_begin_with_them(
    levels: list[tuple[int, float, float]], warmup_s: float
) -> None:
    load = staged(*(up(*level) for level in levels), warmup_s=warmup_s)
    plan = plan_run(load)
    ends = [window.starts_s + window.duration_s for window in plan.windows]
    assert [window.starts_s for window in plan.windows] == [plan.measures_s, *ends[:-1]]
    assert plan.ends_s == ends[-1]
    assert {target.at_s for target in plan.targets} <= {0.0, *(window.starts_s for window in plan.windows)}
    assert [target.connections for target in plan.targets][-len(levels) + 1 :] == [n for n, _, _ in levels[1:]] or len(
        levels
    ) == 1
    assert plan.measures_s == warmup_s


# --- events ----------------------------------------------------------------------------------------------------------


def planned(new: NewEvent) -> list[tuple[int, SetPhase | SetRunTarget]]:
    assert isinstance(new.command, Start)
    return [(part.at_ms, part.command) for part in new.command.plan]


def test_start_contains_the_plan_in_the_order_of_time_and_a_target_before_its_window() -> None:
    plan = plan_run(staged(up(4), up(16, 20.0, 5.0)))
    assert planned(start_event(plan, 3, 3_000)) == [
        (0, SetPhase(phase=Phase.WARMUP)),
        (10_000, SetPhase(phase=Phase.MEASUREMENT, step_id=1, duration_ms=30_000.0)),
        (40_000, SetRunTarget(total_connections=16, ramp_s=5.0, reason="plan")),
        (40_000, SetPhase(phase=Phase.MEASUREMENT, step_id=2, duration_ms=20_000.0)),
    ]


@pytest.mark.parametrize("warmup_s", [0.0, 5.0])
def test_the_steps_of_a_search_follow_its_start(warmup_s: float) -> None:
    plan = plan_run(
        Load(mode=LoadMode.FIND_MAX, connections=500, duration_s=None, find_max=FindMaxSettings(), warmup_s=warmup_s)
    )
    warm = [(0, SetPhase(phase=Phase.WARMUP))] if warmup_s else []
    measured = (round(warmup_s * 1000), SetPhase(phase=Phase.MEASUREMENT))
    assert planned(start_event(plan, 3, 3_000)) == [*warm, measured]
    step = SetRunTarget(total_connections=8, step_id=3, lead_ms=3_000, reason="find_max")
    assert step_event(3, 8, 3_000).command == step


def test_an_event_is_as_large_for_a_hundred_workers_as_for_one() -> None:
    plan = plan_run(staged(up(4), up(16)))
    one, many = start_event(plan, 1, 3_000).command, start_event(plan, 100, 3_000).command
    assert isinstance(one, Start)
    assert isinstance(many, Start)
    assert one.plan == many.plan
    assert (one.expected_workers, many.expected_workers) == (1, 100)
    assert all(isinstance(part, PlannedCommand) for part in many.plan)


LEADS = [
    # announce, poll, latency → lead
    (2.0, 1.0, 0.0, 3_000),
    (2.0, 1.0, 0.3, 4_200),
    (0.5, 0.2, 0.01, 740),
    (2.0, 10.0, 0.3, 13_200),
    (0.0, 1.0, 0.0, 1_000),
    (2.0, 1.0, 60.0, 11_000),  # one statement that hung does not put the start off for minutes
]


@pytest.mark.parametrize(("announce_s", "poll_s", "latency_s", "expected"), LEADS)
def test_the_lead_covers_the_poll_and_the_latency_of_the_control_plane(
    announce_s: float, poll_s: float, latency_s: float, expected: int
) -> None:
    timing = TimingSettings(announce_s=announce_s, status_poll_s=poll_s)
    assert lead_ms(timing, latency_s) == expected
    assert expected >= 1000 * (announce_s + poll_s + 2 * min(latency_s, LATENCY_MAX_S))
    lead_s = lead_ms(timing, latency_s, START_LATENCY_MAX_S) / 1000
    assert lead_s >= announce_s + poll_s + 4 * min(latency_s, CONTROL_STATEMENT_S), "START is moved, never cut"


# --- what is to be delivered -----------------------------------------------------------------------------------------


def connection_ms(load: Load, workers: int, until_s: float | None = None) -> dict[int | None, int]:
    """Over all workers."""
    plan, total = plan_run(load), dict[int | None, int]()
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


RATES = Load(mode=LoadMode.RATE, connections=8, rate_per_second=50.0, arrival=ArrivalProcess.UNIFORM)


def arrivals(workers: int, until_s: float | None = None) -> list[int]:
    plan = plan_run(RATES)
    parts = [planned_arrivals(RATES, plan, worker, workers, seed=1, until_s=until_s) for worker in range(workers)]
    return [part[None] for part in parts]


def test_the_planned_arrivals_are_those_of_all_workers() -> None:
    assert arrivals(1) == [3_000]
    assert sum(arrivals(7)) == 3_000
    assert max(arrivals(7)) - min(arrivals(7)) <= 1


def test_the_planned_arrivals_of_a_run_that_was_aborted_are_those_that_were_due() -> None:
    assert sum(arrivals(2, until_s=20.0)) == pytest.approx(500, abs=2)
    assert arrivals(2, until_s=9.0) == [0, 0]


# --- acknowledgements ------------------------------------------------------------------------------------------------


def test_a_worker_whose_heartbeats_do_not_acknowledge_an_event_in_time_is_named_once() -> None:
    announced = Announcement(sequence_id=3, what="event 3 (START)", within_s=5.0, overdue_s=105.0)
    current, behind = view(number=0, last_sequence_id=3), view(number=1, last_sequence_id=2)

    assert announced.late([current, behind], now_s=104.9) == []
    assert announced.late([current, behind], now_s=105.0) == [
        "worker-1 did not acknowledge event 3 (START) within 5.0 s"
    ]
    assert announced.late([current, behind], now_s=106.0) == []


@pytest.mark.parametrize(
    "worker",
    [
        view(last_sequence_id=0, silent_s=2.0),  # its last heartbeat was sent before the time limit
        view(WorkerHealth.DEAD, last_sequence_id=0),
        view(WorkerHealth.MISSING, None),
    ],
    ids=["silent", "lost", "never registered"],
)
def test_a_worker_without_heartbeats_after_the_time_limit_is_not_late(worker: WorkerSnapshot) -> None:
    announced = Announcement(sequence_id=1, what="event 1 (START)", within_s=5.0, overdue_s=105.0)

    assert announced.late([worker], now_s=106.0) == []
