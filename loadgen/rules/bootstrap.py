"""Confidence intervals of the difference between two runs, from their seconds. Pure: the same numbers give the same
intervals.

What happens in one second depends on the second before: a queue that has built up, a cluster that is busy. Samples are
therefore not resampled one by one, which would make every interval too narrow, but in blocks of neighbouring seconds
(circular block bootstrap). Only addable things are resampled: bucket counts and counts. A replicate's percentile comes
from its summed buckets, its rate from its summed counts and seconds.

    block length    1.14 (4 r² n / (1 - r²)²)^⅓ of n seconds, where r is the correlation of neighbouring seconds
                    (Andrews' rule for a block's weights); at least ⌈n^⅓⌉ and 5, at most a third of them
    replicates      2,000, computed as one product of matrices
    stages          are resampled separately: their difference is planned and not random
    few blocks      deviations are stretched, because few blocks understate the spread and make its estimate uncertain

Where only the buckets of a whole run are known (a single statement), the interval of a percentile is that of Woodruff:
the values at the ranks p ± z √(d p (1 - p) / n). `d` is the design effect: how much samples depend on one
another. It is measured on all statements together, for which both methods can be used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from loadgen.metrics.histogram import BUCKETS, EDGES_NS, IntArray
from loadgen.values import dataclass

FloatArray = NDArray[np.float64]

CONFIDENCE = 0.95
SECONDS_MIN = 10  # fewer seconds do not show the variation between seconds
SECONDS_MAX = 1_200  # in longer runs, neighbouring seconds are joined

_REPLICATES = 2_000
_BLOCK_MIN = 5
_BLOCKS_MIN = 3
_CORRELATION_MAX = 0.95
_STRATUM_MIN = 6  # a shorter stage is joined with the stage before it
_LOG_MAX = 700.0  # a larger logarithm has no finite exponential
_HALF = 0.5  # in place of a count of 0, which has no logarithm
# Logarithms of the bounds of each bucket. The first and the last bucket are open, and have one bound.
_LOG_LOW = np.log(np.concatenate((EDGES_NS[:1], EDGES_NS)).astype(np.float64))
_LOG_HIGH = np.log(np.concatenate((EDGES_NS, EDGES_NS[-1:])).astype(np.float64))


@dataclass(frozen=True, slots=True)
class ConfidenceInterval:
    """A change and its 95 % interval. Infinite: there is no bound on that side."""

    point: float
    low: float
    high: float

    def stretched(self, comparisons: int) -> ConfidenceInterval:
        """The interval for one of several comparisons that are all right in 95 of 100 cases (Bonferroni)."""
        factor = z_of(comparisons) / z_of(1)
        return ConfidenceInterval(
            self.point, self.point - factor * (self.point - self.low), self.point + factor * (self.high - self.point)
        )

    def relative(self) -> ConfidenceInterval:
        """The relative change for a difference of logarithms: 0.1 is 10 % more."""
        return ConfidenceInterval(*map(_relative, (self.point, self.low, self.high)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondSeries:
    """The seconds of a run that lie wholly in its measurement, in order: all workers together."""

    seconds: FloatArray  # length of each second
    buckets: IntArray  # (second, bucket): response times of successful statements
    sums_ns: FloatArray  # of these response times
    succeeded: Mapping[str, IntArray]  # by statement
    failed: Mapping[str, IntArray]
    stages: IntArray  # the stage of each second, from 0
    earlier: IntArray  # successful statements that began before the measurement: only for the rate in a chart

    def __len__(self) -> int:
        return len(self.seconds)

    def joined(self) -> SecondSeries:
        """At most SECONDS_MAX rows, each the sum of equally many seconds. A row has the stage of its first second."""
        size = -(-len(self) // SECONDS_MAX)
        if size <= 1:
            return self
        starts = np.arange(0, len(self), size)
        return SecondSeries(
            seconds=np.add.reduceat(self.seconds, starts),
            buckets=np.add.reduceat(self.buckets, starts, axis=0),
            sums_ns=np.add.reduceat(self.sums_ns, starts),
            succeeded={name: np.add.reduceat(counts, starts) for name, counts in self.succeeded.items()},
            failed={name: np.add.reduceat(counts, starts) for name, counts in self.failed.items()},
            stages=self.stages[starts],
            earlier=np.add.reduceat(self.earlier, starts),
        )


def _relative(logarithm: float) -> float:
    return math.copysign(math.inf, logarithm) if abs(logarithm) > _LOG_MAX else math.expm1(logarithm)


class BootstrapReplicates:
    """Replicates of a run: every statistic `_REPLICATES` times, as the deviation from its measured value."""

    def __init__(self, series: SecondSeries, seed: int) -> None:
        self._series = series = series.joined()
        strata = _strata(series)
        self._weights = _weights(strata, np.random.default_rng(seed))
        self._stretch = max(map(_stretch, strata))
        used = np.flatnonzero(series.buckets.any(axis=0))
        self._used = slice(used[0], used[-1] + 1) if len(used) else slice(0, 1)
        buckets = series.buckets[:, self._used].astype(np.float64)
        self._below, self._below_known = (
            np.cumsum(rows, axis=1) for rows in (self._weights @ buckets, buckets.sum(axis=0, keepdims=True))
        )
        self._log_quantiles: dict[int, FloatArray] = {}

    def log_quantile(self, per_mille: int) -> FloatArray:
        if per_mille not in self._log_quantiles:
            low, high = _LOG_LOW[self._used], _LOG_HIGH[self._used]
            drawn, known = (_log_quantiles(below, per_mille, low, high) for below in (self._below, self._below_known))
            self._log_quantiles[per_mille] = self._stretched(drawn - known)
        return self._log_quantiles[per_mille]

    def log_rate(self, name: str | None = None) -> FloatArray:
        """Succeeded samples per second, of a statement or of all."""
        return self._log_ratio(self._counts(self._series.succeeded, name), self._series.seconds)

    def log_mean(self) -> FloatArray:
        return self._log_ratio(self._series.sums_ns, self._series.buckets.sum(axis=1))

    def failed_share(self, name: str | None = None) -> FloatArray:
        failed = self._counts(self._series.failed, name)
        tried = failed + self._counts(self._series.succeeded, name)
        share = (self._weights @ failed) / np.maximum(self._weights @ tried, _HALF)
        return self._stretched(share - failed.sum() / max(tried.sum(), _HALF))

    def _counts(self, counts: Mapping[str, IntArray], name: str | None) -> FloatArray:
        none = np.zeros(len(self._series))
        if name is not None:
            return none + counts.get(name, 0)
        return none + sum(counts.values(), start=np.zeros(len(self._series), np.int64))

    def _log_ratio(self, above: NDArray[np.generic], below: NDArray[np.generic]) -> FloatArray:
        parts = [np.asarray(part, np.float64) for part in (above, below)]
        drawn, known = (
            [np.log(np.maximum(values, _HALF)) for values in found]
            for found in ([self._weights @ part for part in parts], [part.sum() for part in parts])
        )
        return self._stretched((drawn[0] - drawn[1]) - (known[0] - known[1]))

    def _stretched(self, deviations: FloatArray) -> FloatArray:
        return np.asarray(deviations * self._stretch)


def difference(point: float, first: FloatArray, second: FloatArray) -> ConfidenceInterval:
    """The interval of the difference second - first, measured as `point`, from the deviations of both runs."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(second - first, (tail, 1 - tail))
    return ConfidenceInterval(point, min(point, point + float(low)), max(point, point + float(high)))


def hull(one: ConfidenceInterval, other: ConfidenceInterval) -> ConfidenceInterval:
    """The smallest interval that contains both."""
    return ConfidenceInterval(one.point, min(one.low, other.low), max(one.high, other.high))


def z_of(comparisons: int) -> float:
    """How many standard deviations cover 95 % when several comparisons share the 5 % (Bonferroni)."""
    return NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / 2 / comparisons)


# --- from the buckets of a whole run ---------------------------------------------------------------------------------


def log_quantile(counts: IntArray, per_mille: float) -> float:
    """The logarithm of a percentile in ns, interpolated inside its bucket."""
    below = np.cumsum(counts[np.newaxis].astype(np.float64), axis=1)
    return float(_log_quantiles(below, per_mille, _LOG_LOW, _LOG_HIGH)[0])


def quantile_span(counts: IntArray, per_mille: int, effect: float) -> ConfidenceInterval:
    """The logarithm of a percentile between the values at Woodruff's ranks; `effect` is the design effect d."""
    p = per_mille / 1_000
    reach = 1_000 * z_of(1) * math.sqrt(effect * p * (1 - p) / max(int(counts.sum()), 1))
    low, high = per_mille - reach, per_mille + reach
    return ConfidenceInterval(
        log_quantile(counts, per_mille),
        log_quantile(counts, low) if low > 0 else -math.inf,
        log_quantile(counts, high) if high < 1_000 else math.inf,
    )


def quantile_difference(first: ConfidenceInterval, second: ConfidenceInterval) -> ConfidenceInterval:
    """The interval of second - first from the interval of each (square-and-add)."""
    return ConfidenceInterval(
        second.point - first.point,
        second.point - first.point - math.hypot(second.point - second.low, first.high - first.point),
        second.point - first.point + math.hypot(second.high - second.point, first.point - first.low),
    )


def design_effect(counts: IntArray, per_mille: int, deviations: FloatArray) -> float:
    """The number of samples that carry as much information as one independent sample; at least 1."""
    alone = quantile_span(counts, per_mille, 1.0)
    width = alone.high - alone.low
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(deviations, (tail, 1 - tail))
    return max(1.0, float((high - low) / width) ** 2) if 0 < width < math.inf else 1.0


def share_difference(failed: Sequence[int], tried: Sequence[int]) -> ConfidenceInterval:
    """The interval of a difference of shares by Newcombe's method, which is also valid if nothing failed."""
    (first, second), z = [part / max(whole, 1) for part, whole in zip(failed, tried, strict=True)], z_of(1)
    (low_a, high_a), (low_b, high_b) = (_wilson(part, whole, z) for part, whole in zip(failed, tried, strict=True))
    point = second - first
    return ConfidenceInterval(
        point, point - math.hypot(second - low_b, high_a - first), point + math.hypot(high_b - second, first - low_a)
    )


def _wilson(part: int, whole: int, z: float) -> tuple[float, float]:
    if not whole:
        return 0.0, 1.0
    share, square = part / whole, z * z
    centre = (share + square / (2 * whole)) / (1 + square / whole)
    reach = z * math.sqrt(share * (1 - share) / whole + square / (4 * whole * whole)) / (1 + square / whole)
    return min(share, max(0.0, centre - reach)), max(share, min(1.0, centre + reach))


def _log_quantiles(below: FloatArray, per_mille: float, low: FloatArray, high: FloatArray) -> FloatArray:
    """The logarithm of a percentile per row of cumulative counts. Inside a bucket, times are taken as log-uniform."""
    ranks = below[:, -1] * (per_mille / 1_000)
    found = np.minimum((below < ranks[:, np.newaxis]).sum(axis=1), below.shape[1] - 1)
    each = np.arange(len(below))
    before = np.where(found > 0, below[each, found - 1], 0.0)
    inside = np.maximum(below[each, found] - before, _HALF)
    share = np.clip((ranks - before) / inside, 0.0, 1.0)
    return np.asarray(low[found] + share * (high[found] - low[found]))


# --- blocks ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Stratum:
    """The seconds of one stage."""

    first: int
    length: int
    block: int


def _strata(series: SecondSeries) -> list[_Stratum]:
    starts = [0, *(np.flatnonzero(np.diff(series.stages)) + 1).tolist()]
    found: list[slice] = []
    for start, end in zip(starts, [*starts[1:], len(series)], strict=True):
        if found and min(end - start, found[-1].stop - found[-1].start) < _STRATUM_MIN:
            start = found.pop().start
        found.append(slice(start, end))
    return [_Stratum(part.start, part.stop - part.start, _block(series, part)) for part in found]


def _block(series: SecondSeries, part: slice) -> int:
    """The number of neighbouring seconds that are drawn together."""
    counts = series.buckets[part].sum(axis=1)
    length = len(counts)
    rates, means = counts / series.seconds[part], series.sums_ns[part] / np.maximum(counts, 1)
    correlation = max(_autocorrelation(rates), _autocorrelation(means))
    wanted = 1.1447 * math.cbrt(4 * correlation**2 * length / (1 - correlation**2) ** 2)
    return max(1, min(max(_BLOCK_MIN, math.ceil(math.cbrt(length)), math.ceil(wanted)), length // _BLOCKS_MIN))


def _autocorrelation(values: FloatArray) -> float:
    """The correlation of each value with the next; a negative one counts as 0."""
    apart = values - values.mean()
    total = float(apart @ apart)
    return min(max(float(apart[1:] @ apart[:-1]) / total, 0.0), _CORRELATION_MAX) if total > 0 else 0.0


def _stretch(stratum: _Stratum) -> float:
    """The factor for deviations: few blocks understate the spread, and its estimate requires Student's quantile."""
    freedom = 2 * (stratum.length / stratum.block - 1)  # of the two runs that are compared
    student = 1 + (z_of(1) ** 2 + 1) / (4 * freedom)  # to first order, in units of the normal quantile
    return student * math.sqrt(stratum.length / (stratum.length - stratum.block))


def _weights(strata: Sequence[_Stratum], rng: np.random.Generator) -> FloatArray:
    """(replicate, second): how often a replicate has drawn that second."""
    drawn = np.concatenate([_draw(stratum, rng) for stratum in strata], axis=1)
    total = drawn.shape[1]
    counts = np.bincount((drawn + total * np.arange(_REPLICATES)[:, np.newaxis]).ravel(), minlength=drawn.size)
    return counts.reshape(_REPLICATES, total).astype(np.float64)


def _draw(stratum: _Stratum, rng: np.random.Generator) -> IntArray:
    """Positions of drawn seconds, block by block, as many as the stage has. The last is followed by the first."""
    length, block = stratum.length, stratum.block
    starts = rng.integers(0, length, (_REPLICATES, -(-length // block)))
    drawn = (starts[:, :, np.newaxis] + np.arange(block)) % length
    return np.asarray(stratum.first + drawn.reshape(_REPLICATES, -1)[:, :length])


assert len(_LOG_LOW) == len(_LOG_HIGH) == BUCKETS
