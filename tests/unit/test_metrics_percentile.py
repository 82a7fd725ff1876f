"""Percentiles from buckets against exact order statistics: never more than they know."""

import math
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loadgen.metrics.histogram import COARSENESSES, EDGES_NS
from loadgen.metrics.percentile import (
    PERCENTILES,
    bound_ranks,
    exact_quantile_ns,
    is_supported,
    quantile,
    quantile_bounds,
    rank_of,
)
from tests.unit.metrics_builders import HOUR_NS, MS, histogram, time_lists

per_milles = st.one_of(st.sampled_from(sorted(PERCENTILES.values())), st.integers(1, 999))


@settings(max_examples=100)
@example([2 * HOUR_NS] * 10, 500, COARSENESSES[0])  # longer than the last bucket
@given(time_lists, per_milles, st.sampled_from(COARSENESSES))
def test_a_percentile_is_within_its_error_of_the_exact_order_statistic(times, per_mille, coarseness):
    made = histogram(times).coarse(coarseness)
    found = quantile(per_mille, made)

    if not is_supported(per_mille, len(times)):
        assert found is None
        return
    exact = sorted(times)[math.ceil(per_mille * len(times) / 1_000 - 1e-9) - 1]
    assert exact_quantile_ns(per_mille, np.sort(np.array(times))) == exact
    assert found is not None
    if found.at_least:
        assert exact >= EDGES_NS[-1]
        assert EDGES_NS[-1] <= found.value_ns <= exact
    elif exact < 1_000:
        assert abs(found.value_ns - exact) < 1_000
    else:
        assert abs(found.value_ns - exact) <= made.error_max * exact + 1  # + 1: whole nanoseconds


@given(st.integers(0, 10**13), st.integers(2, 500), per_milles)
def test_of_constant_times_every_percentile_is_exact(time_ns, count, per_mille):
    found = quantile(per_mille, histogram([time_ns] * count))

    assert found is None or found.value_ns == time_ns


@pytest.mark.parametrize(("name", "least"), [("p50", 2), ("p90", 10), ("p95", 20), ("p99", 100), ("p999", 1_000)])
def test_a_percentile_needs_a_sample_above_it(name, least):
    per_mille = PERCENTILES[name]

    assert quantile(per_mille, histogram([MS] * (least - 1))) is None
    assert quantile(per_mille, histogram([MS] * least)) is not None
    assert quantile(per_mille, histogram([])) is None


def test_ranks_are_exact_where_floating_point_would_not_be():
    assert rank_of(550, 20) == 11  # 0.55 * 20 is a little more than 11
    assert rank_of(999, 1_000) == 999


@given(
    st.lists(st.integers(1_000, HOUR_NS), max_size=80),
    st.lists(st.integers(1_000, HOUR_NS), max_size=20),
    per_milles,
    st.randoms(),
)
@example([1_012], [1_000], 1, Random(0))  # both in one bucket, the cancelled one first
def test_the_statement_about_a_percentile_holds_for_every_duration_of_cancelled_samples(
    times, cancelled, per_mille, random
):
    found = quantile(per_mille, histogram(times), histogram(cancelled))
    truths = sorted(times + [at_least * random.choice([1, 1, 2, 1_000]) for at_least in cancelled])

    if found is None:
        assert not is_supported(per_mille, len(truths))
    else:
        truth = truths[rank_of(per_mille, len(truths)) - 1]
        assert truth * 1.01 + 1 >= found.value_ns
        assert found.at_least or truth <= found.value_ns * 1.01 + 1


def test_a_percentile_among_the_cancelled_is_at_least_their_time():
    done, cut = histogram([10 * MS] * 90), histogram([5_000 * MS] * 10)

    p50, p95 = quantile(500, done, cut), quantile(950, done, cut)

    assert p50 is not None
    assert (p50.value_ns, p50.at_least) == (10 * MS, False)
    assert p95 is not None
    assert p95.at_least
    assert p95.value_ns == pytest.approx(5_000 * MS, rel=0.02)
    assert p95.value_ns <= 5_000 * MS
    assert quantile_bounds(950, done, cut).high_ns is None


def test_statements_that_all_hang_still_give_a_lower_bound():
    found = quantile(500, histogram([]), histogram([120_000 * MS] * 8))

    assert found is not None
    assert found.at_least
    assert found.value_ns == 120_000 * MS


@pytest.mark.parametrize(
    ("per_mille", "count", "low", "high"),
    [
        (950, 200, 184, 197),
        (990, 200, 195, 201),  # 201: no sample is an upper bound
        (950, 1_000, 936, 964),
        (990, 1_000, 983, 997),
        (950, 2_000, 1_880, 1_920),
        (999, 3_000, 2_993, 3_001),
        (500, 5, 0, 6),
        (500, 6, 1, 6),
    ],
)
def test_ranks_of_the_bounds_are_those_computed_with_whole_numbers(per_mille, count, low, high):
    assert bound_ranks(per_mille, count) == (low, high)


@settings(max_examples=30)
@given(st.integers(1, 400), per_milles)
def test_ranks_of_the_bounds_leave_two_and_a_half_percent_on_each_side(count, per_mille):
    p = per_mille / 1_000
    chances = [math.comb(count, k) * p**k * (1 - p) ** (count - k) for k in range(count + 1)]

    low, high = bound_ranks(per_mille, count)

    assert sum(chances[:low]) <= 0.025 + 1e-9
    assert low > count or sum(chances[: low + 1]) > 0.025 - 1e-9
    assert sum(chances[high:]) <= 0.025 + 1e-9
    assert high == 0 or sum(chances[high - 1 :]) > 0.025 - 1e-9


def test_bounds_of_very_many_samples_are_found_quickly_and_close():
    low, high = bound_ranks(950, 100_000_000)

    assert (low, high) == pytest.approx((95_000_000 - 4_272, 95_000_000 + 4_272), abs=3)  # 1.96 standard deviations


def test_bounds_enclose_the_true_percentile_as_often_as_they_promise():
    random = np.random.default_rng(7)
    true_ns = math.exp(17 + 0.5 * 1.6448536269514722)
    inside, rounds = 0, 400
    for _ in range(rounds):
        bounds = quantile_bounds(950, histogram(random.lognormal(17, 0.5, 300).astype(np.int64).tolist()))
        assert bounds.low_ns is not None
        assert bounds.high_ns is not None
        inside += bounds.low_ns <= true_ns <= bounds.high_ns

    assert inside / rounds >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / rounds)


@given(time_lists, per_milles)
def test_bounds_enclose_the_percentile_itself(times, per_mille):
    found, bounds = quantile(per_mille, histogram(times)), quantile_bounds(per_mille, histogram(times))

    if found is not None and bounds.low_ns is not None:
        assert bounds.low_ns <= found.value_ns
    if found is not None and bounds.high_ns is not None:
        assert found.value_ns <= bounds.high_ns


@pytest.mark.parametrize(
    ("name", "draw", "inverse", "density"),
    [
        (
            "lognormal",
            lambda random, n: random.lognormal(17, 0.6, n),
            lambda p, z: math.exp(17 + 0.6 * z),
            lambda x, p, z: math.exp(-z * z / 2) / math.sqrt(2 * math.pi) / (0.6 * x),
        ),
        (
            "exponential",
            lambda random, n: random.exponential(20 * MS, n),
            lambda p, z: -20 * MS * math.log(1 - p),
            lambda x, p, z: (1 - p) / (20 * MS),
        ),
        (
            "uniform",
            lambda random, n: random.uniform(5 * MS, 50 * MS, n),
            lambda p, z: 5 * MS + p * 45 * MS,
            lambda x, p, z: 1 / (45 * MS),
        ),
    ],
)
@pytest.mark.parametrize(("per_mille", "z"), [(500, 0.0), (950, 1.644854), (990, 2.326348), (999, 3.090232)])
def test_quantiles_of_known_distributions_are_found(name, draw, inverse, density, per_mille, z):
    n, p = 200_000, per_mille / 1_000
    found = quantile(per_mille, histogram(draw(np.random.default_rng(11), n).astype(np.int64)))
    true_ns = inverse(p, z)
    sampling_ns = 4 * math.sqrt(p * (1 - p) / n) / density(true_ns, p, z)  # four standard errors of an order statistic

    assert found is not None
    assert abs(found.value_ns - true_ns) <= 0.01 * true_ns + sampling_ns
