"""The mix: exact shares, well spread, the same wherever one begins to look."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.workload.mix import CYCLE_STEPS_MAX, Mix, Walk, walk_for

weights_lists = st.lists(st.integers(0, 60), min_size=1, max_size=8).filter(any)
places = st.integers(0, 10**12)


def test_the_order_is_that_of_smooth_weighted_round_robin():
    walk = walk_for([5, 1, 1], 0, 1)

    assert "".join("abc"[walk.at(k)[0]] for k in range(14)) == "aabacaaaabacaa"


@given(weights_lists, places, st.integers(0, 99))
def test_any_span_as_long_as_a_cycle_holds_each_statement_exactly_in_its_share(weights, start, lane):
    walk = walk_for(weights, lane, 100)

    drawn = Counter(walk.at(start + step)[0] for step in range(walk.mix.length))

    common = sum(weights) // walk.mix.length
    assert [drawn[statement] * common for statement in range(len(weights))] == weights


@given(weights_lists, st.integers(0, 99))
def test_occurrences_are_counted_without_gap_from_the_beginning_of_each_walk(weights, lane):
    walk = walk_for(weights, lane, 100)

    drawn: Counter[int] = Counter()
    for k in range(3 * walk.mix.length):
        statement, n = walk.at(k)
        assert n == drawn[statement]
        drawn[statement] += 1


@given(weights_lists)
def test_no_prefix_is_further_from_its_share_than_the_number_of_statements(weights):
    walk = walk_for(weights, 0, 1)

    drawn: Counter[int] = Counter()
    for k in range(walk.mix.length):
        drawn[walk.at(k)[0]] += 1
        for statement, weight in enumerate(weights):
            assert abs(drawn[statement] - (k + 1) * weight / sum(weights)) < len(weights)


@given(weights_lists, places)
def test_scaled_weights_are_the_same_mix(weights, k):
    once, scaled = walk_for(weights, 0, 1), walk_for([7 * weight for weight in weights], 0, 1)

    assert once.at(k) == scaled.at(k)


def test_lanes_begin_in_different_places_of_the_cycle():
    walks = [walk_for([80, 15, 5], lane, 20) for lane in range(20)]

    assert sorted(walk.phase for walk in walks) == list(range(20))
    assert Counter(walk.at(0)[0] for walk in walks) == {0: 16, 1: 3, 2: 1}


@settings(deadline=None)
@given(st.lists(st.integers(1, 20), min_size=2, max_size=5), st.integers(0, 9), st.integers(0, 1_000))
def test_what_was_drawn_before_is_counted_as_it_happened(weights, lane, first):
    walk = walk_for(weights, lane, 10)
    draws = np.arange(first, first + 5)

    counted = walk.counter(1, 0)(draws)

    expected: list[int] = []
    others = own = k = 0
    while len(expected) < len(draws):
        statement, _ = walk.at(k)
        if statement == 0:
            if own >= first:
                expected.append(others)
            own += 1
        others += statement == 1
        k += 1
    assert counted.tolist() == expected


@pytest.mark.parametrize("weights", [[], [0, 0], [3, -1], [CYCLE_STEPS_MAX, 1]])
def test_weights_that_make_no_mix_are_refused(weights):
    with pytest.raises(ValueError):
        Mix(weights)


def test_large_weights_with_a_common_factor_are_fine():
    assert Mix([80 * 10**9, 20 * 10**9]).length == 5


def test_a_walk_cannot_begin_outside_the_cycle():
    with pytest.raises(ValueError):
        Walk(Mix([1, 1]), 2)
