"""Histograms of times: counts per bucket, and the exact number, sum, minimum and maximum.

Histograms add, in any order and grouping. Percentiles do not add, and are computed last.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import field

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
