"""Histograms of times: counts per bucket, and the exact number, sum, minimum and maximum.

Histograms add, in any order and grouping. Percentiles do not add, and are computed last.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from loadgen.values import dataclass

IntArray = NDArray[np.int64]

FIRST_NS = 1_000
INNER_BUCKETS = 1_113  # up to an hour; divisible by every coarseness
BUCKETS = INNER_BUCKETS + 2
OVERFLOW = BUCKETS - 1
COARSENESSES = (1, 3, 7)  # how many inner buckets are joined into one; odd, so that one of them is in the middle

_FIXED_POINT = 10**30


def _edges_ns() -> IntArray:
    edges, edge = [], FIRST_NS * _FIXED_POINT
    for _ in range(INNER_BUCKETS + 1):
        edges.append(edge // _FIXED_POINT)
        edge = edge * 102 // 100
    return np.array(edges, np.int64)


EDGES_NS = _edges_ns()
LOWEST_NS = np.concatenate(([0], EDGES_NS))  # of each bucket, the shortest time in it
HIGHEST_NS = np.concatenate((EDGES_NS - 1, [np.iinfo(np.int64).max]))  # and the longest
for _array in (EDGES_NS, LOWEST_NS, HIGHEST_NS):
    _array.flags.writeable = False


def buckets_of(times_ns: IntArray | int) -> IntArray:
    """The bucket of each time."""
    return np.asarray(np.searchsorted(EDGES_NS, times_ns, side="right"))


_EDGES = EDGES_NS.tolist()


def bucket_of(time_ns: int) -> int:
    """The bucket of one time."""
    return bisect_right(_EDGES, time_ns)


def group_of(bucket: int, coarseness: int) -> int:
    """The number of a bucket after joining `coarseness` inner buckets; the first and the last bucket are not joined."""
    return (bucket - 1) // coarseness + 1


def join(counts: IntArray, coarseness: int) -> IntArray:
    """Counts by group."""
    inner = counts[1:-1].reshape(-1, coarseness).sum(axis=1)
    return np.concatenate((counts[:1], inner, counts[-1:]))


def spread(groups: IntArray, coarseness: int) -> IntArray:
    """Counts by bucket: the bucket in the middle of a group gets the count of the group."""
    counts = np.zeros(BUCKETS, np.int64)
    counts[0], counts[-1] = groups[0], groups[-1]
    counts[1 + coarseness // 2 : -1 : coarseness] = groups[1:-1]
    return counts


def _no_counts() -> IntArray:
    return np.zeros(BUCKETS, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Histogram:
    """Immutable; `of`, `weighted` and `+` create new histograms."""

    counts: IntArray = field(default_factory=_no_counts)
    count: int = 0
    sum_ns: int = 0
    min_ns: int = 0  # without meaning in an empty histogram
    max_ns: int = 0
    coarseness: int = 1  # the most buckets that were joined in any part; 1: none

    def __post_init__(self) -> None:
        self.counts.flags.writeable = False  # histograms may share an array

    @classmethod
    def of(cls, times_ns: IntArray) -> Histogram:
        """The histogram of non-negative times."""
        if not len(times_ns):
            return EMPTY
        times_ns = np.sort(times_ns)  # sorting and searching takes less time than searching unsorted values
        if times_ns[0] < 0:
            raise ValueError(f"a time cannot be negative: {times_ns[0]} ns")
        counts = np.bincount(buckets_of(times_ns), minlength=BUCKETS)
        return cls(
            counts=counts,
            count=len(times_ns),
            sum_ns=_exact_sum(times_ns),
            min_ns=int(times_ns[0]),
            max_ns=int(times_ns[-1]),
        )

    @classmethod
    def weighted(cls, times_ns: IntArray, weights: IntArray) -> Histogram:
        """The histogram in which each time is counted with its weight."""
        kept = weights > 0
        times_ns, weights = times_ns[kept], weights[kept]
        if not len(times_ns):
            return EMPTY
        counts = np.zeros(BUCKETS, np.int64)
        np.add.at(counts, buckets_of(times_ns), weights)
        return cls(
            counts=counts,
            count=int(weights.sum()),
            sum_ns=sum(time_ns * weight for time_ns, weight in zip(times_ns.tolist(), weights.tolist(), strict=True)),
            min_ns=int(times_ns.min()),
            max_ns=int(times_ns.max()),
        )

    def __add__(self, other: Histogram) -> Histogram:
        if not self.count or not other.count:
            return self if self.count else other
        counts = self.counts + other.counts
        return Histogram(
            counts=counts,
            count=self.count + other.count,
            sum_ns=self.sum_ns + other.sum_ns,
            min_ns=min(self.min_ns, other.min_ns),
            max_ns=max(self.max_ns, other.max_ns),
            coarseness=max(self.coarseness, other.coarseness),
        )

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Histogram) and self._exact == other._exact and bool((self.counts == other.counts).all())
        )

    def __hash__(self) -> int:
        return hash(self._exact)

    @property
    def _exact(self) -> tuple[int, ...]:
        return self.count, self.sum_ns, self.min_ns, self.max_ns, self.coarseness

    @property
    def mean_ns(self) -> float | None:
        return self.sum_ns / self.count if self.count else None

    def count_from(self, least_ns: int) -> int:
        """The number of times of at least `least_ns`, within the width of a bucket."""
        return int(self.counts[bucket_of(least_ns) :].sum())

    @property
    def error_max(self) -> float:
        """The largest relative error of a value read from a bucket, from 1 µs to an hour."""
        return max(0.01, math.pow(1.02, self.coarseness / 2.0) - 1.0)

    def coarse(self, coarseness: int) -> Histogram:
        """The same times in joined buckets: shorter JSON, larger error."""
        if coarseness == self.coarseness or not self.count:
            return self
        if self.coarseness != 1:
            raise ValueError("joined buckets cannot be joined again with another coarseness")
        counts = spread(join(self.counts, coarseness), coarseness)
        return Histogram(
            counts=counts,
            count=self.count,
            sum_ns=self.sum_ns,
            min_ns=self.min_ns,
            max_ns=self.max_ns,
            coarseness=coarseness,
        )

    def bucket_at(self, rank: int) -> int:
        """The bucket of the rank-th shortest time, counted from 1."""
        return int(np.searchsorted(np.cumsum(self.counts), rank))

    def span_ns(self, bucket: int) -> tuple[int, int]:
        """The shortest and the longest time that may be counted in this bucket."""
        first = last = bucket
        if 0 < bucket < OVERFLOW:  # the outer two are never joined
            half = self.coarseness // 2
            first, last = max(bucket - half, 1), min(bucket + half, OVERFLOW - 1)
        return max(int(LOWEST_NS[first]), self.min_ns), min(int(HIGHEST_NS[last]), self.max_ns)


def _exact_sum(sorted_ns: IntArray) -> int:
    if int(sorted_ns[-1]) * len(sorted_ns) < 2**63:
        return int(sorted_ns.sum())
    return sum(sorted_ns.tolist())


EMPTY = Histogram()


# --- Percentiles by rank: when they may be stated, and their confidence bounds ---------------------------------------
#
# Percentiles are in thousandths (950 is p95), so that ranks are exact. The p-th percentile of n times is the time with
# rank ⌈p n⌉, counted from the shortest.
#
# Support. With fewer than 1 / (1 - p) samples that rank is n, and the percentile would be the maximum. So a percentile
# is stated if at least one sample lies above it: p50 from 2 samples on, p95 from 20, p99 from 100, p999 from 1,000. The
# confidence bounds show how precise it is.
#
# Censoring. Percentiles are over successful samples: a failure does not show how long success takes. But a sample that
# was cut off (by a timeout or a cancellation) would have taken at least as long as it did, so it is included as a lower
# bound. The percentile is then between two values: one for the case that each of these samples took no longer, and one
# for the case that each took forever. If both values are the same, the percentile is known; otherwise it is stated as
# "at least" the lower one. A threshold is met if both values satisfy it. A mean and a maximum that include such a
# sample are lower bounds as well.
#
# Confidence. The number of samples below the true percentile has a binomial distribution, whatever the distribution of
# times. So there are two ranks between which the true percentile lies in 95 of 100 cases. Latencies depend on one
# another and therefore contain less information than their number suggests: the bounds are narrower than they should
# be.

PERCENTILES = {"p50": 500, "p90": 900, "p95": 950, "p99": 990, "p999": 999}
_TAIL = 0.025  # on each side


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantile:
    """A percentile, a mean or a maximum that may be a lower bound."""

    value_ns: int
    at_least: bool = False  # value_ns is a lower bound
    high_ns: int | None = None  # upper bound of a lower bound; None with at_least: there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceBounds:
    """The true percentile lies between these bounds in 95 of 100 cases. None: the samples give no bound on that
    side."""

    low_ns: int | None
    high_ns: int | None


def rank_of(per_mille: int, count: int) -> int:
    """The rank, from 1, of a percentile among `count` values."""
    return -(-per_mille * count // 1_000)


def is_supported(per_mille: int, count: int) -> bool:
    """Whether at least one of `count` values is above the percentile."""
    return 0 < rank_of(per_mille, count) < count


def samples_needed(per_mille: int) -> int:
    """The smallest number of values that supports a percentile."""
    return -(-1_000 // (1_000 - per_mille))


def quantile(per_mille: int, succeeded: Histogram, cut_off: Histogram = EMPTY) -> Quantile | None:
    """The percentile, with an error of at most `error_max` of the histograms; None: too few samples."""
    everything = succeeded + cut_off
    if not is_supported(per_mille, everything.count):
        return None
    rank = rank_of(per_mille, everything.count)
    bucket = everything.bucket_at(rank)
    known = rank <= succeeded.count and succeeded.bucket_at(rank) == bucket
    low_ns, high_ns = everything.span_ns(bucket)[0], succeeded.span_ns(bucket)[1]
    if known and bucket != OVERFLOW:
        return Quantile(value_ns=_middle_ns(low_ns, high_ns))
    return Quantile(value_ns=low_ns, at_least=True, high_ns=_highest_ns(rank, succeeded))


def _highest_ns(rank: int, succeeded: Histogram) -> int | None:
    """The value of this rank if all cut-off statements took forever; None: it would be one of those."""
    if rank > succeeded.count or (bucket := succeeded.bucket_at(rank)) == OVERFLOW:
        return None
    return succeeded.span_ns(bucket)[1]


def mean(succeeded: Histogram, cut_off: Histogram = EMPTY) -> Quantile | None:
    mean_ns = (succeeded + cut_off).mean_ns
    return None if mean_ns is None else Quantile(value_ns=round(mean_ns), at_least=bool(cut_off.count))


def maximum(succeeded: Histogram, cut_off: Histogram = EMPTY) -> Quantile | None:
    everything = succeeded + cut_off
    return Quantile(value_ns=everything.max_ns, at_least=bool(cut_off.count)) if everything.count else None


def _middle_ns(low_ns: int, high_ns: int) -> int:
    """The middle of a bucket by ratio, so that the relative error is half of its width."""
    middle_ns = round(2 * low_ns * high_ns / (low_ns + high_ns)) if high_ns else 0
    return min(max(middle_ns, low_ns), high_ns)


def quantile_bounds(per_mille: int, succeeded: Histogram, cut_off: Histogram = EMPTY) -> ConfidenceBounds:
    """The 95 % confidence bounds of a percentile, at the outer edges of their buckets."""
    everything = succeeded + cut_off
    low_rank, high_rank = bound_ranks(per_mille, everything.count)
    low_ns = high_ns = None
    if low_rank >= 1:
        low_ns = everything.span_ns(everything.bucket_at(low_rank))[0]
    if high_rank <= succeeded.count:  # a higher rank is that of a cut-off sample, or above all samples
        high_ns = succeeded.span_ns(succeeded.bucket_at(high_rank))[1]
    return ConfidenceBounds(low_ns=low_ns, high_ns=high_ns)


@lru_cache(maxsize=4_096)
def bound_ranks(per_mille: int, count: int) -> tuple[int, int]:
    """The ranks (from 1) of the values that bound a percentile; 0 or count + 1: there is no such value.

    Let X of the values be below the true percentile. The value of rank r lies above it when X < r, and below it when
    X ≥ r. So the lower bound has the highest rank with P(X < r) ≤ 2.5 %, the upper the lowest with P(X ≥ r) ≤ 2.5 %.
    """
    if count == 0:
        return 0, 1
    p = per_mille / 1_000
    centre, reach = round(count * p), 20 + round(12 * (count * p * (1 - p)) ** 0.5)
    first, last = max(centre - reach, 0), min(centre + reach, count)
    k = np.arange(first, last, dtype=np.float64)
    log_ratios = np.log((count - k) / (k + 1)) + np.log(p / (1 - p))  # of the probability of k + 1 to that of k
    logs = np.concatenate(([0.0], np.cumsum(log_ratios)))
    chances = np.exp(logs - logs.max())
    chances /= chances.sum()  # the omitted tails are negligible
    at_most, at_least = np.cumsum(chances), np.cumsum(chances[::-1])[::-1]
    return first + int((at_most <= _TAIL).sum()), first + int((at_least > _TAIL).sum())


def exact_quantile_ns(per_mille: int, sorted_ns: IntArray) -> int | None:
    """The percentile of sorted times; None: there are too few."""
    if not is_supported(per_mille, len(sorted_ns)):
        return None
    return int(sorted_ns[rank_of(per_mille, len(sorted_ns)) - 1])
