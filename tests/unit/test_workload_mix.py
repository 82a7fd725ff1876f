"""The mix: exact shares, well spread, the same wherever one begins to look."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.model.workload import CYCLE_MAX, Query, Statement, StatementKind, Workload
from loadgen.workload.draw import MixCycle, MixSequence, mix_sequence

weights_lists = st.lists(st.integers(0, 60), min_size=1, max_size=8).filter(any)
places = st.integers(0, 10**12)


def test_the_order_is_that_of_smooth_weighted_round_robin():
    walk = mix_sequence([5, 1, 1], 0)

    assert "".join("abc"[walk.at(k)[0]] for k in range(14)) == "aabacaaaabacaa"


@given(weights_lists, places, st.integers(0, 99))
def test_any_span_as_long_as_a_cycle_holds_each_statement_exactly_in_its_share(weights, start, lane):
    walk = mix_sequence(weights, lane)

    drawn = Counter(walk.at(start + step)[0] for step in range(walk.mix.length))

    common = sum(weights) // walk.mix.length
    assert [drawn[statement] * common for statement in range(len(weights))] == weights


@given(weights_lists, st.integers(0, 99))
def test_occurrences_are_counted_without_gap_from_the_beginning_of_each_walk(weights, lane):
    walk = mix_sequence(weights, lane)

    drawn: Counter[int] = Counter()
    for k in range(3 * walk.mix.length):
        statement, n = walk.at(k)
        assert n == drawn[statement]
        drawn[statement] += 1


@given(weights_lists)
def test_no_prefix_is_further_from_its_share_than_the_number_of_statements(weights):
    walk = mix_sequence(weights, 0)

    drawn: Counter[int] = Counter()
    for k in range(walk.mix.length):
        drawn[walk.at(k)[0]] += 1
        for statement, weight in enumerate(weights):
            assert abs(drawn[statement] - (k + 1) * weight / sum(weights)) < len(weights)


@given(weights_lists, places)
def test_scaled_weights_are_the_same_mix(weights, k):
    once, scaled = mix_sequence(weights, 0), mix_sequence([7 * weight for weight in weights], 0)

    assert once.at(k) == scaled.at(k)


def test_lanes_begin_in_different_places_of_the_cycle():
    walks = [mix_sequence([80, 15, 5], lane) for lane in range(20)]

    assert sorted(walk.phase for walk in walks) == list(range(20))
    assert Counter(walk.at(0)[0] for walk in walks) == {0: 16, 1: 3, 2: 1}


@given(weights_lists, st.integers(0, 500))
def test_as_many_lanes_as_the_cycle_is_long_hold_each_statement_in_its_share_at_every_draw(weights, k):
    length = mix_sequence(weights, 0).mix.length

    drawn = Counter(mix_sequence(weights, lane).at(k)[0] for lane in range(length))

    assert [drawn[statement] * (sum(weights) // length) for statement in range(len(weights))] == weights


@pytest.mark.parametrize("length", [97, 100, 1_000, 30_030])
@pytest.mark.parametrize("lanes", [2, 3, 5, 8, 13])
def test_the_first_lanes_are_spread_over_the_cycle_however_many_there_may_be(length, lanes):
    """A ramp opens the first lanes only, and a search for the maximum begins with few of many."""
    phases = sorted(mix_sequence([length - 1, 1], lane).phase for lane in range(lanes))

    gaps = [after - before for before, after in pairwise([*phases, phases[0] + length])]
    assert max(gaps) <= 2 * length / lanes
    assert min(gaps) >= length / lanes / 3


@settings(deadline=None)
@given(st.lists(st.integers(1, 20), min_size=2, max_size=5), st.integers(0, 9), st.integers(0, 1_000))
def test_what_was_drawn_before_is_counted_as_it_happened(weights, lane, first):
    walk = mix_sequence(weights, lane)
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


@pytest.mark.parametrize("weights", [[], [0, 0], [3, -1], [CYCLE_MAX, 1]])
def test_weights_that_make_no_mix_are_refused(weights):
    with pytest.raises(ValueError):
        MixCycle(weights)


def test_large_weights_with_a_common_factor_are_fine():
    assert MixCycle([80 * 10**9, 20 * 10**9]).length == 5


def test_a_walk_cannot_begin_outside_the_cycle():
    with pytest.raises(ValueError):
        MixSequence(MixCycle([1, 1]), 2)


def test_the_heaviest_statements_are_named_in_the_order_of_the_scenario():
    weights = {"a": 1, "b": 5, "c": 1, "d": 9}
    statements = tuple(
        Statement(name=name, kind=StatementKind.READ, weight=weight, queries=(Query(sql="select 1"),))
        for name, weight in weights.items()
    )
    workload = Workload(statements=statements, seed=1)

    assert workload.heaviest(2) == ["b", "d"]
    assert workload.heaviest(3) == ["a", "b", "d"]
    assert workload.heaviest(9) == list("abcd")
