"""Confidence sequences: intervals that hold at every check, for differences of unknown variance. Closed form. Pure.

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
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

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
