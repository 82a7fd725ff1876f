"""Open loop: as many arrivals as planned, where they belong, without drift."""

import dataclasses
import math
import threading
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.model.workload import ClientPosition, Query, Sequence, Statement, StatementKind, Workload
from loadgen.scenario.model import ArrivalProcess, FindMaxSettings, Load, LoadMode, LoadStage
from loadgen.workload.arrivals import (
    CHUNK_ARRIVALS,
    ArrivalSchedule,
    RateStage,
    planned_arrivals,
    rate_windows,
    window_schedules,
)
from loadgen.workload.draw import StatementStream
from tests.unit.workload_statistics import assert_cumulates, assert_follows

rates = st.one_of(st.floats(0, 200), st.sampled_from([0.0, 1 / 3, 5 / 3, 0.1, 100.0]))
stages = st.builds(
    lambda duration_s, rate, start: RateStage(duration_s=duration_s, rate_per_second=rate, start_rate_per_second=start),
    st.floats(0, 20),
    rates,
    st.none() | rates,
)


def schedules(
    levels: list[RateStage],
    *,
    arrival: ArrivalProcess = ArrivalProcess.POISSON,
    workers: int = 1,
    seed: int = 1,
    series: int = 0,
) -> list[ArrivalSchedule]:
    return [
        ArrivalSchedule(levels, arrival=arrival, worker=worker, workers=workers, seed=seed, series=series)
        for worker in range(workers)
    ]


def dues(schedule: ArrivalSchedule) -> list[float]:
    return [schedule.due_s(i) for i in range(schedule.first, schedule.end)]


@settings(max_examples=60, deadline=None)
@given(st.lists(stages, max_size=4), st.integers(1, 9), st.sampled_from(ArrivalProcess), st.integers(0, 2**70))
def test_the_merged_schedule_has_exactly_the_planned_arrivals_each_in_its_stage(levels, workers, arrival, seed):
    parts = [dues(schedule) for schedule in schedules(levels, arrival=arrival, workers=workers, seed=seed)]

    assert all(part == sorted(part) for part in parts)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    merged = sorted(due for part in parts for due in part)
    assert len(merged) == planned_arrivals(levels) == sum(stage.arrivals for stage in levels)
    start_s, at = 0.0, 0
    for stage in levels:
        own = merged[at : at + stage.arrivals]
        assert all(start_s - 1e-9 <= due <= start_s + stage.duration_s + 1e-9 for due in own)
        start_s, at = start_s + stage.duration_s, at + stage.arrivals


@pytest.mark.parametrize(
    ("rate_per_second", "duration_s", "arrivals"),
    [(100.0, 60.0, 6_000), (1 / 3, 60.0, 20), (5 / 3, 60.0, 100), (0.1, 10.0, 1), (0.1, 3.0, 0), (0.0, 9.0, 0)],
)
def test_the_number_of_planned_arrivals_is_rate_times_duration(rate_per_second, duration_s, arrivals):
    assert RateStage(duration_s=duration_s, rate_per_second=rate_per_second).arrivals == arrivals


# --- uniform ---------------------------------------------------------------------------------------------------------


def test_uniform_arrivals_of_all_workers_together_are_evenly_spaced():
    parts = schedules([RateStage(duration_s=10.0, rate_per_second=10.0)], arrival=ArrivalProcess.UNIFORM, workers=3)

    assert [dues(part)[:3] for part in parts] == [[0.0, 0.3, 0.6], [0.1, 0.4, 0.7], [0.2, 0.5, 0.8]]
    assert sorted(due for part in parts for due in dues(part)) == [j / 10 for j in range(100)]


def test_uniform_arrivals_do_not_drift_in_ten_million():
    rate_per_second = 333.3
    (schedule,) = schedules(
        [RateStage(duration_s=40_000.0, rate_per_second=rate_per_second)], arrival=ArrivalProcess.UNIFORM
    )

    assert schedule.end == 13_332_000
    for i in (0, 1, 12_345, 9_999_999, 10_000_000, 13_331_999):
        assert schedule.due_s(i) == float(i / Fraction(rate_per_second)), "exact to the last bit"


def test_the_rate_changes_with_the_stage():
    levels = [RateStage(duration_s=1.0, rate_per_second=2.0), RateStage(duration_s=1.0, rate_per_second=4.0)]
    (schedule,) = schedules(levels, arrival=ArrivalProcess.UNIFORM)

    assert dues(schedule) == [0.0, 0.5, 1.0, 1.25, 1.5, 1.75]
    assert schedule.duration_s == 2.0


# --- poisson ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 3, 8])
@pytest.mark.parametrize(("rate_per_second", "duration_s"), [(2.0, 10_000.0), (500.0, 60.0), (5_000.0, 5.0)])
def test_gaps_between_merged_poisson_arrivals_are_exponential(rate_per_second, duration_s, workers):
    parts = schedules([RateStage(duration_s=duration_s, rate_per_second=rate_per_second)], workers=workers)

    merged = sorted(due for part in parts for due in dues(part))

    gaps = [following - one for one, following in pairwise(merged)]
    assert_cumulates(gaps, lambda gap: 1.0 - math.exp(-gap * rate_per_second))
    assert_cumulates(merged, lambda due: due / duration_s)


def test_each_workers_own_arrivals_are_poisson_too():
    part = schedules([RateStage(duration_s=100.0, rate_per_second=1_000.0)], workers=4)[2]

    gaps = [following - one for one, following in pairwise(dues(part))]

    assert_cumulates(gaps, lambda gap: 1.0 - math.exp(-gap * 250.0))


def test_the_variance_of_seconds_is_that_of_a_poisson_process():
    """Conditioning on the total must not make every second equal."""
    (schedule,) = schedules([RateStage(duration_s=4_000.0, rate_per_second=5.0)])
    per_second = [0] * 4_000
    for due in dues(schedule):
        per_second[int(due)] += 1

    masses = {n: math.exp(-5.0) * 5.0**n / math.factorial(n) for n in range(25)}
    assert_follows(per_second, {n: mass / sum(masses.values()) for n, mass in masses.items()})


def test_long_schedules_can_be_read_at_any_place_and_in_any_order():
    level = [RateStage(duration_s=3_600.0, rate_per_second=5_000.0)]
    (schedule,), (again,) = schedules(level), schedules(level)
    places = [17_999_999, 0, 9_000_000, 9_000_001, 12_345, 1]

    scattered = {i: schedule.due_s(i) for i in places}

    assert scattered == {i: again.due_s(i) for i in sorted(places)}
    assert [scattered[i] for i in sorted(places)] == sorted(scattered.values())
    assert all(abs(due - i / 5_000) < 3.0 for i, due in scattered.items())


def test_chunks_join_without_a_gap():
    (schedule,) = schedules([RateStage(duration_s=20.0, rate_per_second=CHUNK_ARRIVALS)])

    in_order = dues(schedule)

    assert in_order == sorted(in_order)
    assert len(set(in_order)) == len(in_order)


def test_seeds_workers_series_and_stages_have_separate_arrivals():
    level = RateStage(duration_s=10.0, rate_per_second=10.0)
    first, second = schedules([level, level], workers=2)

    assert dues(first) != dues(second)
    assert dues(first)[:50] != [due - 10.0 for due in dues(first)[50:]]
    assert dues(first) != dues(schedules([level, level], workers=2, seed=2)[0])
    assert dues(first) != dues(schedules([level, level], workers=2, series=1)[0])
    assert dues(first) == dues(schedules([level, level], workers=2)[0])


def test_the_arrivals_of_a_seed_never_change():
    levels = [ramp(60.0, 0.0, 500.0), *flat((600.0, 500.0))]
    schedule = schedules(levels, workers=3)[1]

    assert schedule.end == 105_000
    assert [schedule.due_s(i).hex() for i in (0, 1, 4_999, 5_000, 100_000, 104_999)] == [
        "0x1.ec037ce0cd7a2p-1",
        "0x1.2512d8f038483p+0",
        "0x1.dfee07e020404p+5",
        "0x1.e017f95f4ade6p+5",
        "0x1.3ab0c99bd7d5dp+9",
        "0x1.49ffbadd3b187p+9",
    ]


def test_many_threads_see_the_same_schedule():
    level = [RateStage(duration_s=10.0, rate_per_second=2_000.0)]
    (schedule,), (alone,) = schedules(level), schedules(level)
    expected = dues(alone)
    wrong: list[int] = []

    def read(first: int) -> None:
        wrong.extend(i for i in range(first, schedule.end, 8) if schedule.due_s(i) != expected[i])

    threads = [threading.Thread(target=read, args=(first,), name=f"reader-{first}") for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not wrong


# --- ramps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "end"), [(0.0, 200.0), (200.0, 0.0), (50.0, 150.0), (100.0, 100.0)])
def test_arrivals_of_a_ramp_follow_the_area_below_the_rate(start, end):
    stage = RateStage(duration_s=200.0, rate_per_second=end, start_rate_per_second=start)

    def area(t_s: float) -> float:
        return float(start * t_s + (end - start) * t_s * t_s / 400.0)

    assert stage.arrivals == 20_000
    (even,) = schedules([stage], arrival=ArrivalProcess.UNIFORM)
    assert all(abs(area(due) - j) < 1e-6 for j, due in enumerate(dues(even)))
    merged = sorted(due for part in schedules([stage], workers=3) for due in dues(part))
    assert_cumulates(merged, lambda due: area(due) / 20_000)
    areas = [area(due) for due in merged]
    assert_cumulates([b - a for a, b in pairwise(areas)], lambda gap: 1.0 - math.exp(-gap))


def flat(*parts: tuple[float, float]) -> tuple[RateStage, ...]:
    return tuple(RateStage(duration_s=duration_s, rate_per_second=rate) for duration_s, rate in parts)


def ramp(duration_s: float, start: float, end: float) -> RateStage:
    return RateStage(duration_s=duration_s, rate_per_second=end, start_rate_per_second=start)


def test_a_load_has_a_window_for_its_warm_up_and_one_for_each_stage():
    levels = (
        LoadStage(duration_s=60.0, rate_per_second=100.0),
        LoadStage(duration_s=30.0, rate_per_second=10.0, ramp_s=5.0),
    )
    plain = Load(mode=LoadMode.RATE, connections=8, rate_per_second=100.0)
    staged = Load(mode=LoadMode.RATE, connections=8, duration_s=90.0, stages=levels)

    assert rate_windows(plain) == (flat((10.0, 100.0)), flat((60.0, 100.0)))
    assert rate_windows(staged) == (
        flat((10.0, 100.0)),
        flat((60.0, 100.0)),
        (ramp(5.0, 100.0, 10.0), *flat((25.0, 10.0))),
    )


@pytest.mark.parametrize(
    ("warmup_s", "ramp_s", "windows"),
    [
        (10.0, 4.0, ((ramp(4.0, 0.0, 100.0), *flat((6.0, 100.0))), flat((60.0, 100.0)))),
        (10.0, 10.0, ((ramp(10.0, 0.0, 100.0),), flat((60.0, 100.0)))),
        (10.0, 40.0, ((ramp(10.0, 0.0, 25.0),), (ramp(30.0, 25.0, 100.0), *flat((30.0, 100.0))))),
        (0.0, 10.0, ((), (ramp(10.0, 0.0, 100.0), *flat((50.0, 100.0))))),
        (0.0, 0.0, ((), flat((60.0, 100.0)))),
    ],
)
def test_the_ramp_of_a_load_begins_with_the_warm_up_and_may_outlast_it(warmup_s, ramp_s, windows):
    load = Load(mode=LoadMode.RATE, connections=8, rate_per_second=100.0, warmup_s=warmup_s, ramp_s=ramp_s)

    assert rate_windows(load) == windows


def test_modes_without_a_rate_have_no_windows():
    for load in (
        Load(connections=8),
        Load(mode=LoadMode.FIND_MAX, connections=8, duration_s=None, find_max=FindMaxSettings()),
    ):
        with pytest.raises(ValueError):
            rate_windows(load)


# --- windows ---------------------------------------------------------------------------------------------------------

loads = st.builds(
    lambda rates, warmup_s, ramp_s, arrival: Load(
        mode=LoadMode.RATE,
        connections=8,
        duration_s=2.0 * len(rates),
        warmup_s=warmup_s,
        ramp_s=ramp_s,
        stages=tuple(LoadStage(duration_s=2.0, rate_per_second=rate, ramp_s=0.5) for rate in rates),
        arrival=arrival,
    ),
    st.lists(st.floats(0.1, 60), min_size=1, max_size=4),
    st.sampled_from([0.0, 1.0, 3.0]),
    st.sampled_from([0.0, 0.5, 2.0]),
    st.sampled_from(ArrivalProcess),
)


@settings(max_examples=40, deadline=None)
@given(loads, st.integers(1, 7), st.integers(0, 2**40))
def test_the_windows_of_a_run_are_numbered_through_and_each_begins_at_zero(load, workers, seed):
    runs = [window_schedules(load, worker=worker, workers=workers, seed=seed) for worker in range(workers)]

    planned = [planned_arrivals(stages) for stages in rate_windows(load)]
    for run in runs:
        assert [schedule.first for schedule in run] == [0, *(schedule.end for schedule in run[:-1])]
    for number, duration_s in enumerate([load.warmup_s, *(stage.duration_s for stage in load.stages)]):
        window = [run[number] for run in runs]
        assert sum(schedule.end - schedule.first for schedule in window) == planned[number]
        assert all(0.0 <= due <= duration_s + 1e-9 for schedule in window for due in dues(schedule))
        assert {schedule.duration_s for schedule in window} == {duration_s}
    ends = [run[-1].end for run in runs]
    assert max(ends) - min(ends) <= 1, "over the whole run, not only in each window"


@settings(max_examples=30, deadline=None)
@given(loads, st.integers(1, 7))
def test_no_key_of_the_warm_up_is_drawn_again_in_the_measurement(load, workers):
    insert = Statement(
        name="insert",
        kind=StatementKind.WRITE,
        weight=1,
        queries=(Query(sql="INSERT INTO T VALUES (?)", parameters=(Sequence(start=1),)),),
    )
    keys: list[object] = []
    for worker in range(workers):
        place = ClientPosition(worker=worker, workers=workers)
        drawer = StatementStream(Workload(statements=(insert,), seed=1), place, {}, open_loop=True)
        for schedule in window_schedules(load, worker=worker, workers=workers, seed=1):
            keys += [drawer.draw(i)[1][0][0] for i in range(schedule.first, schedule.end)]

    assert sorted(map(int, map(str, keys))) == list(range(1, 1 + sum(map(planned_arrivals, rate_windows(load)))))


def test_uniform_arrivals_continue_where_the_last_window_ended():
    load = Load(mode=LoadMode.RATE, connections=8, rate_per_second=1.0, warmup_s=2.0, duration_s=4.0)
    load = dataclasses.replace(load, arrival=ArrivalProcess.UNIFORM)

    runs = [window_schedules(load, worker=worker, workers=3, seed=1) for worker in range(3)]

    assert [[dues(schedule) for schedule in run] for run in runs] == [[[0.0], [1.0]], [[1.0], [2.0]], [[], [0.0, 3.0]]]


def test_the_first_window_is_the_warm_up_even_when_there_is_none():
    load = Load(mode=LoadMode.RATE, connections=8, rate_per_second=10.0, warmup_s=0.0, duration_s=2.0)

    warmup, measurement = window_schedules(load, worker=0, workers=1, seed=1)

    assert (warmup.first, warmup.end, warmup.duration_s) == (0, 0, 0.0)
    assert (measurement.first, measurement.end, measurement.duration_s) == (0, 20, 2.0)


def test_an_arrival_of_another_window_is_refused():
    load = Load(mode=LoadMode.RATE, connections=8, rate_per_second=10.0, warmup_s=1.0, duration_s=2.0)
    warmup, measurement = window_schedules(load, worker=0, workers=1, seed=1)

    assert (warmup.first, warmup.end, measurement.first, measurement.end) == (0, 10, 10, 30)
    for schedule, i in ((warmup, 10), (measurement, 9), (measurement, 30)):
        with pytest.raises(IndexError, match=f"there is no arrival {i}"):
            schedule.due_s(i)


# --- what is not there -----------------------------------------------------------------------------------------------


def test_an_arrival_that_is_not_planned_is_refused():
    (schedule,) = schedules([RateStage(duration_s=1.0, rate_per_second=3.0)])

    for i in (-1, 3):
        with pytest.raises(IndexError, match="the schedule has those from 0 up to 3"):
            schedule.due_s(i)


def test_a_worker_may_have_no_arrivals():
    assert [part.end for part in schedules([RateStage(duration_s=1.0, rate_per_second=2.0)], workers=4)] == [
        1,
        1,
        0,
        0,
    ]


@pytest.mark.parametrize(
    ("duration_s", "rate_per_second"), [(-1.0, 1.0), (1.0, -1.0), (math.nan, 1.0), (1.0, math.inf), (1e6, 1e6)]
)
def test_an_impossible_stage_is_rejected(duration_s, rate_per_second):
    with pytest.raises(ValueError):
        RateStage(duration_s=duration_s, rate_per_second=rate_per_second)
