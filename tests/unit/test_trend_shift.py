"""Shifts in a series: no alarm on noise, quick detection of steps, and the effect of lower bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from loadgen.rules.trend import BASELINE_RUNS_MIN, ChangePointAnalysis, detect_change_points
from tests.unit.trend_builders import noise

LIMIT = math.log(1.1)
SEEDS = 40

# --- noise and steps -------------------------------------------------------------------------------------------------


def test_200_nights_of_noise_are_silent():
    courses = [detect_change_points(noise(seed, 200), limit=LIMIT, usual=0.05) for seed in range(SEEDS)]

    assert max(len(course.suspected) for course in courses) <= 1
    assert [course.shifts for course in courses if course.shifts] == []
    assert sum(len(course.suspected) for course in courses) <= 4  # seldom at all


def test_a_step_of_25_percent_is_confirmed_within_two_nights():
    """By chance a night of the new level may look like one of the old: the third night decides then."""
    delays = []
    for seed in range(SEEDS):
        values = noise(1_000 + seed, 64)
        values[60:] += math.log(1.25)

        shifts = [
            shift for shift in detect_change_points(values, limit=LIMIT, usual=0.05).shifts if shift.confirmed >= 60
        ]

        assert shifts
        assert abs(shifts[0].start - 60) <= 1
        assert shifts[0].size == pytest.approx(math.log(1.25), abs=0.12)
        delays.append(shifts[0].confirmed - 60)
    assert sum(delay <= 1 for delay in delays) >= 0.95 * SEEDS
    assert max(delays) <= 2


def test_a_step_that_comes_before_much_is_known_is_found_all_the_same():
    missed = []
    for seed in range(100):
        values = noise(5_000 + seed, 22)
        values[10:] += math.log(1.25)
        if not any(shift.size > 0 for shift in detect_change_points(values, limit=LIMIT, usual=0.05).shifts):
            missed.append(seed)

    assert len(missed) <= 1


@pytest.mark.parametrize("step", [1.5, 2.0, 1 / 1.5])
@pytest.mark.parametrize("at", [20, 70])
def test_large_steps_are_where_a_plain_search_finds_them(step, at):
    """The reference: the split of the series that leaves the least squares on both sides."""
    values = noise(7, 90)
    values[at:] += math.log(step)

    shifts = detect_change_points(values, limit=LIMIT, usual=0.05).shifts

    costs = [values[:cut].var() * cut + values[cut:].var() * (90 - cut) for cut in range(2, 88)]
    assert [shift.start for shift in shifts] == [2 + int(np.argmin(costs))] == [at]
    assert shifts[0].confirmed == at + 1


def test_one_bad_night_is_suspected_and_never_confirmed():
    values = noise(3, 40)
    values[30] += math.log(2.0)

    course = detect_change_points(values, limit=LIMIT, usual=0.05)

    assert (course.suspected, course.shifts) == ((30,), ())


def test_a_change_below_the_limit_is_no_change_however_certain():
    values = np.concatenate((np.zeros(30), np.full(30, math.log(1.08))))

    assert detect_change_points(values, limit=LIMIT, usual=0.001).shifts == ()


def test_too_few_nights_decide_nothing():
    values = [0.0] * (BASELINE_RUNS_MIN - 1) + [math.log(3.0)]

    assert detect_change_points(values, limit=LIMIT, usual=0.05).suspected == ()
    assert detect_change_points([0.0, *values], limit=LIMIT, usual=0.05).suspected == (BASELINE_RUNS_MIN,)


def test_after_a_step_the_new_level_is_the_usual_one_and_the_way_back_is_found():
    values = noise(5, 60, 0.02)
    values[20:40] += math.log(1.5)

    shifts = detect_change_points(values, limit=LIMIT, usual=0.05).shifts

    assert [(shift.start, round(math.exp(shift.size), 1)) for shift in shifts] == [(20, 1.5), (40, 0.7)]


@pytest.mark.parametrize("gap", [1, 2, 3])
def test_a_second_step_of_30_percent_soon_after_a_confirmed_one_is_found(gap):
    """`gap` nights after the first was confirmed. The new level is known by two to four nights then."""
    delays = []
    for seed in range(SEEDS):
        values = noise(2_000 + seed, 80)
        values[60:] += math.log(1.3)
        first = next(one for one in detect_change_points(values, limit=LIMIT, usual=0.05).shifts if one.confirmed >= 60)
        second = first.confirmed + gap
        values[second:] += math.log(1.3)

        shifts = detect_change_points(values, limit=LIMIT, usual=0.05).shifts

        found = [one for one in shifts if one.confirmed >= second and abs(one.start - second) <= 1 and one.size > 0.1]
        delays.append(found[0].confirmed - second if found else 99)
    assert sum(delay <= 7 for delay in delays) >= 0.95 * SEEDS
    assert sum(delay <= 1 for delay in delays) >= 0.8 * SEEDS


def test_a_second_step_after_quiet_nights_is_confirmed_on_its_second_night():
    values = noise(5, 60, 0.02)
    values[30:] += math.log(1.3)
    values[33:] += math.log(1.3)

    shifts = detect_change_points(values, limit=LIMIT, usual=0.05).shifts

    assert [(shift.start, shift.confirmed, round(math.exp(shift.size), 1)) for shift in shifts] == [
        (30, 31, 1.3),
        (33, 34, 1.3),
    ]


@pytest.mark.parametrize("step", [1.25, 1.5, 1 / 1.3])
def test_the_nights_after_a_step_are_silent(step):
    """Many checks of a level with few nights: noise does not become a second step."""
    again = 0
    for seed in range(100):
        values = noise(8_000 + seed, 80)
        values[30:] += math.log(step)
        again += (
            sum(shift.confirmed >= 30 for shift in detect_change_points(values, limit=LIMIT, usual=0.05).shifts) - 1
        )

    assert again <= 2


def test_two_nights_of_another_level_are_a_step_there_and_a_step_back():
    values = noise(5, 60, 0.02)
    values[30:32] += math.log(1.5)

    shifts = detect_change_points(values, limit=LIMIT, usual=0.05).shifts

    assert [(shift.start, shift.size > 0) for shift in shifts] == [(30, True), (32, False)]


# --- lower bounds ----------------------------------------------------------------------------------------------------


def bounded(values: Sequence[float], *at_least: int) -> ChangePointAnalysis:
    return detect_change_points(values, limit=LIMIT, usual=0.05, at_least=at_least)


def test_a_lower_bound_above_the_range_is_suspected_and_one_below_decides_nothing():
    usual = list(noise(4, 20, 0.02))

    assert bounded([*usual, 0.5], 20).suspected == (20,)
    for nothing in (-0.5, 0.0, 0.05):
        assert (bounded([*usual, nothing], 20).suspected, bounded([*usual, nothing], 20).shifts) == ((), ())


def test_lower_bounds_confirm_a_step_but_are_no_part_of_a_baseline():
    usual = list(noise(4, 20, 0.02))

    (shift,) = bounded([*usual, 0.5, 0.6], 20, 21).shifts
    assert (shift.start, shift.confirmed, shift.at_least) == (20, 21, True)

    (mixed,) = bounded([*usual, 0.5, 0.0, 0.6], 21, 22).shifts  # the night between is not known
    assert (mixed.start, mixed.confirmed, mixed.at_least) == (20, 22, True)

    low = bounded([*usual, *[-2.0] * 10, 0.0], *range(20, 30))
    assert low.baselines[30] == low.baselines[20]
    assert (low.suspected, low.shifts) == ((), ())


def test_many_series_that_are_checked_together_share_the_chance_of_a_false_alarm():
    alone = detect_change_points(noise(1, 30), limit=LIMIT, usual=0.05)
    shared = detect_change_points(noise(1, 30), limit=LIMIT, usual=0.05, alike=20)

    assert shared.range_at(29)[1] > alone.range_at(29)[1]  # type: ignore[index]
