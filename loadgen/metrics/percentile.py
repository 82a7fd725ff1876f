"""Percentiles by rank: when they may be stated, and their confidence bounds; means and maxima."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from loadgen.metrics.histogram import EMPTY, OVERFLOW, Histogram, IntArray
from loadgen.values import dataclass

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
