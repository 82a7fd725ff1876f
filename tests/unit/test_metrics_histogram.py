"""Buckets: fixed, exact beside them, addable, coarser when asked."""

from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.metrics.histogram import (
    BUCKETS,
    COARSENESSES,
    EDGES_NS,
    EMPTY,
    HIGHEST_NS,
    INNER_BUCKETS,
    LOWEST_NS,
    OVERFLOW,
    Histogram,
    buckets_of,
    group_of,
    join,
    spread,
)
from tests.unit.metrics_builders import HOUR_NS, histogram, time_lists, times_ns


def test_edges_are_two_percent_apart_from_a_microsecond_to_an_hour():
    assert EDGES_NS[0] == 1_000
    assert HOUR_NS < EDGES_NS[-1] < 1.05 * HOUR_NS
    assert len(EDGES_NS) == INNER_BUCKETS + 1
    exact = [1_000 * 1.02**i for i in range(len(EDGES_NS))]
    assert np.abs(EDGES_NS - exact).max() <= 1.0 + 1e-9 * max(exact)
    assert EDGES_NS[:4].tolist() == [1_000, 1_020, 1_040, 1_061]
    assert EDGES_NS[500].item() == 19_956_569  # stored numbers mean these: they must not move
    assert EDGES_NS[-1].item() == int(1_000 * 102**INNER_BUCKETS // 100**INNER_BUCKETS)


def test_no_time_in_a_bucket_is_more_than_one_percent_from_what_stands_for_it():
    lowest, highest = LOWEST_NS[1:OVERFLOW], HIGHEST_NS[1:OVERFLOW]

    worst = (highest - lowest) / (highest + lowest)  # of the value in the harmonic middle, at either end

    assert worst.max() <= 0.01


@given(times_ns)
def test_every_time_has_the_bucket_whose_edges_enclose_it(time_ns):
    bucket = int(buckets_of(time_ns))

    assert LOWEST_NS[bucket] <= time_ns <= HIGHEST_NS[bucket]
    assert bucket in (0, OVERFLOW) or EDGES_NS[bucket - 1] <= time_ns < EDGES_NS[bucket]


@given(time_lists)
def test_number_sum_minimum_and_maximum_are_exact(times):
    made = histogram(times)

    assert (made.count, made.sum_ns, made.min_ns, made.max_ns) == (len(times), sum(times), min(times), max(times))
    assert made.mean_ns == pytest.approx(sum(times) / len(times))
    assert int(made.counts.sum()) == len(times)


@given(st.lists(time_lists, min_size=1, max_size=5), st.randoms())
def test_the_sum_of_parts_is_the_whole_in_any_order_and_grouping(parts, random):
    histograms = [histogram(part) for part in parts] + [EMPTY]
    left_to_right = reduce(add, histograms)
    random.shuffle(histograms)
    while len(histograms) > 1:  # any tree of additions
        right = histograms.pop(random.randrange(len(histograms)))
        at = random.randrange(len(histograms))
        histograms[at] = histograms[at] + right

    assert histograms[0] == left_to_right == histogram([time for part in parts for time in part])


def test_nothing_changes_a_histogram():
    made = histogram([5, 6])

    with pytest.raises(ValueError, match="read-only"):
        made.counts[0] += 1
    with pytest.raises(ValueError, match="negative"):
        histogram([5, -1])
    assert made + EMPTY is made
    assert EMPTY.mean_ns is None
    assert Histogram.of(np.array([], np.int64)) == EMPTY
    assert made != histogram([5, 7])


@given(st.sampled_from(COARSENESSES), st.integers(0, BUCKETS - 1))
def test_a_group_of_buckets_is_stood_for_by_its_middle(coarseness, bucket):
    counts = np.zeros(BUCKETS, np.int64)
    counts[bucket] = 3

    groups = join(counts, coarseness)

    assert groups.nonzero()[0].tolist() == [group_of(bucket, coarseness)]
    assert (join(spread(groups, coarseness), coarseness) == groups).all()
    (middle,) = spread(groups, coarseness).nonzero()[0].tolist()
    assert abs(middle - bucket) <= coarseness // 2
    assert (middle in (0, OVERFLOW)) == (bucket in (0, OVERFLOW))


@settings(max_examples=25)
@given(time_lists, st.sampled_from(COARSENESSES), time_lists)
def test_a_coarse_histogram_encloses_every_time_and_contains_its_precision(times, coarseness, others):
    coarse = histogram(times).coarse(coarseness)

    assert (coarse.count, coarse.sum_ns) == (len(times), sum(times))
    for rank, time_ns in enumerate(sorted(times), 1):
        low, high = coarse.span_ns(coarse.bucket_at(rank))
        assert low <= time_ns <= high
    assert (coarse + histogram(others)).coarseness == (histogram(others) + coarse).coarseness == coarseness
    assert coarse.error_max == pytest.approx({1: 0.01, 3: 0.03, 7: 0.07}[coarseness], rel=0.03)


def test_joined_buckets_cannot_be_joined_once_more():
    with pytest.raises(ValueError, match="joined"):
        histogram([5_000]).coarse(3).coarse(7)
