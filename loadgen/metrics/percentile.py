"""Percentiles by rank: when they may be stated, and how sure they are.

Percentiles are written in thousandths (950 is p95), so that ranks are exact. The p-th percentile of n times is the one
with rank ⌈p n⌉, counted from the shortest.

Support. With fewer than 1 / (1 - p) samples that rank is n: the "percentile" would be another word for the maximum. So
a percentile is stated when at least one sample lies above it: p50 from 2 samples on, p95 from 20, p99 from 100, p999
from 1,000. How much such a number is worth, the confidence bounds say.

Censoring. They are over successful samples; a failure says nothing about how long success takes. A sample that was cut
off (it timed out, or was cancelled) says something: it would have taken at least as long as it did. So these are
counted in. Their true times lie anywhere above, and the percentile with them: it is at least what ranks say when each
took no longer, and at most what they say when each took for ever. When the two agree it is stated as known, else as "at
least" the lower one; a threshold that both satisfy is met. A mean and a maximum with any cut-off sample are lower
bounds as well.

Confidence. The number of samples below the true percentile is binomial, whatever the distribution. So two ranks can
be found between which the true percentile lies in 95 of 100 cases. Samples that depend on one another (and latencies
do) carry less than their number; the bounds are then narrower than they should be.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from loadgen.metrics.histogram import EMPTY, OVERFLOW, Histogram, IntArray
from loadgen.values import dataclass

PERCENTILES = {"p50": 500, "p90": 900, "p95": 950, "p99": 990, "p999": 999}
_TAIL = 0.025  # on each side


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantile:
    """A percentile; a mean or a maximum too, wherever it may be a lower bound."""

    value_ns: int
    at_least: bool = False  # it is this or more
    high_ns: int | None = None  # and at most this, where it is known; None with at_least: there is no upper bound


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceBounds:
    """Between these the true percentile lies, in 95 of 100 cases. None: the samples set no bound on that side."""

    low_ns: int | None
    high_ns: int | None


def rank_of(per_mille: int, count: int) -> int:
    """From 1: the rank of a percentile among `count` values."""
    return -(-per_mille * count // 1_000)


def is_supported(per_mille: int, count: int) -> bool:
    """Is at least one of `count` values above the percentile?"""
    return 0 < rank_of(per_mille, count) < count


def samples_needed(per_mille: int) -> int:
    """The smallest number of values that supports a percentile."""
    return -(-1_000 // (1_000 - per_mille))


def quantile(per_mille: int, succeeded: Histogram, cut_off: Histogram = EMPTY) -> Quantile | None:
    """The percentile, right to `error_max` of the histograms; None when there are too few samples."""
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
    """The value of this rank if every statement cut off took for ever; None: then it would be one of those."""
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
    """As far from the one as from the other, in proportion: the error is half of what a bucket spans."""
    middle_ns = round(2 * low_ns * high_ns / (low_ns + high_ns)) if high_ns else 0
    return min(max(middle_ns, low_ns), high_ns)


def quantile_bounds(per_mille: int, succeeded: Histogram, cut_off: Histogram = EMPTY) -> ConfidenceBounds:
    """The 95 % confidence bounds of a percentile, at the outer edges of their buckets: never too narrow."""
    everything = succeeded + cut_off
    low_rank, high_rank = bound_ranks(per_mille, everything.count)
    low_ns = high_ns = None
    if low_rank >= 1:
        low_ns = everything.span_ns(everything.bucket_at(low_rank))[0]
    if high_rank <= succeeded.count:  # above that, it is among those that never ended, or above all
        high_ns = succeeded.span_ns(succeeded.bucket_at(high_rank))[1]
    return ConfidenceBounds(low_ns=low_ns, high_ns=high_ns)


@lru_cache(maxsize=4_096)
def bound_ranks(per_mille: int, count: int) -> tuple[int, int]:
    """Ranks (from 1) of the values that bound a percentile; 0 or count + 1: there is no such value.

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
    chances /= chances.sum()  # those further out are too small to matter
    at_most, at_least = np.cumsum(chances), np.cumsum(chances[::-1])[::-1]
    return first + int((at_most <= _TAIL).sum()), first + int((at_least > _TAIL).sum())


def exact_quantile_ns(per_mille: int, sorted_ns: IntArray) -> int | None:
    """The percentile of raw times, in order; None when there are too few."""
    if not is_supported(per_mille, len(sorted_ns)):
        return None
    return int(sorted_ns[rank_of(per_mille, len(sorted_ns)) - 1])
