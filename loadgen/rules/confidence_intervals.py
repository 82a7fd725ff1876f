"""Confidence intervals of the difference between two runs, and of the differences between arms of an experiment. Pure.

Two runs: intervals from their seconds. The same numbers give the same intervals.

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

Experiments: confidence sequences, which hold at every check, for differences of unknown variance. Closed form.

A difference is the logarithm of a ratio within a block. Differences of blocks are assumed to be independent and normal,
with unknown mean and variance. With probability 1 - `error` the intervals of all checks cover the mean. The error is
divided between two parts of each interval:

mixture   For a mean m and effects of variance g (in units of the unknown variance) the likelihood ratio

              E_n(m) = (1 + n g)^(-1/2) · ((1 + u) / (1 + u / (1 + n g)))^(n/2),   u = n (mean - m)² / ((n - 1) s²)

          does not depend on the unknown variance (right Haar prior on it), and is a martingale with mean 1 under m. By
          Ville's inequality the probability that E_n(m) ever reaches 1 / error is at most `error` (Lai 1976; Wang and
          Ramdas 2024). The means with E_n(m) below that are an interval around the observed mean. g = 1 suits
          differences about as large as their standard deviation; g = 100 decides larger ones after four blocks. The
          weighted sum of both is a martingale too.
last      Student's t at the planned last block: this check is fixed beforehand and needs no correction. A martingale
          is valid at unplanned checks too, so its interval is wider. This part has most of the error: it finds small
          differences, while large ones are decided early with little of it.

Each interval is intersected with those of earlier checks. If they are disjoint, the difference has most likely
changed over time, and the newest interval counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from loadgen.metrics.histogram import BUCKETS, EDGES_NS, IntArray
from loadgen.values import dataclass

# --- two runs --------------------------------------------------------------------------------------------------------

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


# --- experiments -----------------------------------------------------------------------------------------------------

MIXTURES = ((1.0, 0.75), (100.0, 0.25))  # variance of effects, and weight
LAST_PART = 0.8  # of the error, for the planned final check
ABOVE, BELOW, WITHIN, OPEN = 1, -1, 2, 0  # where an interval lies, relative to 0 and the margin


@lru_cache(maxsize=4_096)
def half_width(blocks: int, error: float, *, last: bool) -> float:
    """Half the width of the interval after this many blocks, in standard deviations of the differences; inf: none."""
    if blocks < 2:
        return math.inf
    width = _mixture_width(blocks, error * (1.0 - LAST_PART))
    return min(width, student_quantile(error * LAST_PART, blocks - 1) / math.sqrt(blocks)) if last else width


def _mixture_width(blocks: int, error: float) -> float:
    """The distance from the mean at which the weighted sum of the likelihood ratios reaches the bound."""
    bound = -math.log(error)
    if _mixture_log(math.inf, blocks) <= bound:
        return math.inf
    low, high = 0.0, 1.0
    while _mixture_log(high, blocks) < bound:
        high *= 2.0
    for _ in range(100):
        middle = (low + high) / 2.0
        low, high = (low, middle) if _mixture_log(middle, blocks) >= bound else (middle, high)
    return math.sqrt(high * (blocks - 1) / blocks)


def _mixture_log(u: float, blocks: int) -> float:
    """The logarithm of the weighted sum at u."""
    parts = []
    for effects, weight in MIXTURES:
        grown = 1.0 + blocks * effects
        ratio = grown if math.isinf(u) else (1.0 + u) / (1.0 + u / grown)
        parts.append(math.log(weight) + (blocks * math.log(ratio) - math.log(grown)) / 2.0)
    most = max(parts)
    return most + math.log(math.fsum(math.exp(part - most) for part in parts))


def confidence_sequence(
    differences: FloatArray, error: float, *, last: int | None, resolution: FloatArray | float = 0.0
) -> tuple[FloatArray, FloatArray]:
    """Lower and upper bounds after each block; blocks are the last axis. The check after `last` of them is the
    planned final one; None: not yet. `resolution` is the minimum half width: values are not measured more exactly."""
    shape = differences.shape
    counts = np.arange(1, shape[-1] + 1)
    factors = np.array([half_width(int(blocks), error, last=blocks == last) for blocks in counts])
    means, deviations = _running(differences, counts)
    lows, highs = np.full(shape, -np.inf), np.full(shape, np.inf)
    low, high = np.full(shape[:-1], -np.inf), np.full(shape[:-1], np.inf)
    for block in np.flatnonzero(np.isfinite(factors)):
        reach = np.maximum(factors[block] * deviations[..., block], resolution)
        below, above = means[..., block] - reach, means[..., block] + reach
        lower, upper = np.maximum(low, below), np.minimum(high, above)
        apart = lower > upper
        low, high = np.where(apart, below, lower), np.where(apart, above, upper)
        lows[..., block], highs[..., block] = low, high
    return lows, highs


def _running(differences: FloatArray, counts: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
    """Mean and standard deviation of the blocks up to each."""
    first = differences[..., :1]
    rest = differences - first  # squares of small numbers keep their digits
    means = rest.cumsum(axis=-1) / counts
    squares = (rest**2).cumsum(axis=-1) - counts * means**2
    return means + first, np.sqrt(np.maximum(squares, 0.0) / np.maximum(counts - 1, 1))


def judge(low: FloatArray, high: FloatArray, margin: float) -> NDArray[np.int64]:
    """ABOVE or BELOW when 0 is excluded, WITHIN when the interval lies inside the margin, else OPEN. Bounds are
    logarithms.

    WITHIN comes first: a difference that is significant and smaller than the margin does not matter.
    """
    edge = math.log1p(margin)
    within = (low > -edge) & (high < edge)
    return np.where(within, WITHIN, np.where(low > 0, ABOVE, np.where(high < 0, BELOW, OPEN)))


def is_mostly(happened: Sequence[bool], error: float) -> bool:
    """Whether something happens in more than half of all blocks, by the blocks so far. The bet on 19 of 20 is a
    supermartingale if it does not, so at any time this is wrong with probability `error` at most (Ville)."""
    bets = np.cumsum([math.log(1.9 if one else 0.1) for one in happened])
    return bool((bets >= -math.log(error)).any())


def minimum_detectable_difference(blocks: int, error: float, deviation: float, *, last: bool = True) -> float:
    """The difference, a fraction, that about nine of ten experiments detect in this many blocks; inf: none. `last`: the
    planned final check is after them. `deviation` is the standard deviation of the logarithm of one measurement."""
    needed = half_width(blocks, error, last=last) * math.sqrt(blocks)
    if math.isinf(needed):
        return math.inf
    spread = math.sqrt(1.0 + needed * needed / (2.0 * (blocks - 1)))  # standard deviation of a t value of that size
    return math.expm1((needed + 1.2816 * spread) * deviation * math.sqrt(2.0 / blocks))


@lru_cache(maxsize=4_096)
def student_quantile(error: float, freedom: int) -> float:
    """The t value whose absolute value is exceeded with this probability."""
    low, high = 0.0, 1.0
    while _student_tails(high, freedom) > error:
        high *= 2.0
    for _ in range(100):
        middle = (low + high) / 2.0
        if _student_tails(middle, freedom) > error:
            low = middle
        else:
            high = middle
    return high


def _student_tails(t: float, freedom: int) -> float:
    """P(|T| > t): for whole degrees of freedom a finite sum (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine2 = math.cos(angle) ** 2
    is_odd = freedom % 2 == 1
    term = math.cos(angle) if is_odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(3 if is_odd else 2, freedom - 1, 2):
        term *= cosine2 * (k - 1) / k
        total += term
    inside = 2.0 / math.pi * (angle + math.sin(angle) * total) if is_odd else math.sin(angle) * total
    return max(0.0, 1.0 - inside)
