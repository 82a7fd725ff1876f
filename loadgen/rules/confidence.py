"""Confidence sequences: intervals that hold at every look, for differences of unknown variance. Closed form. Pure.

A difference is the logarithm of a ratio within a block. Differences of blocks are assumed to be independent and normal,
with unknown mean and variance. With probability 1 - `error` the intervals of all looks cover the mean. Each interval is
the intersection of three, among which the error is divided:

mixture   For a mean m and effects of variance g (in units of the unknown variance) the likelihood ratio

              E_n(m) = (1 + n g)^(-1/2) · ((1 + u) / (1 + u / (1 + n g)))^(n/2),   u = n (mean - m)² / ((n - 1) s²)

          does not depend on the unknown variance (right Haar prior on it), and is a martingale with mean 1 under m. By
          Ville's inequality the probability that E_n(m) ever reaches 1 / error is at most `error` (Lai 1976; Wang and
          Ramdas 2024). The means with E_n(m) below that are an interval around the observed mean. The mixture with
          g = 1 suits differences about as large as their standard deviation; the one with g = 100 decides larger
          differences after three or four blocks.
last      Student's t at the planned last block: that look is fixed beforehand, so it needs no correction. A martingale
          is valid at looks that are not planned, and its interval is wider for that: without this part, six
          comparisons would miss every fifth difference of 5 % at 3 % noise, with it every twentieth.

Each interval is intersected with those of earlier looks. If they are disjoint, the difference has most likely changed
over time, and the newest interval counts.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

MIXTURES = ((1.0, 0.4), (100.0, 0.1))  # variance of effects, and its part of the error
LAST_PART = 0.5
ABOVE, BELOW, WITHIN, OPEN = 1, -1, 2, 0  # what an interval says of a difference


@lru_cache(maxsize=4_096)
def half_width(blocks: int, error: float, *, last: bool) -> float:
    """Half the width of the interval after this many blocks, in standard deviations of the differences; inf: none."""
    if blocks < 2:
        return math.inf
    widths = [_mixture_width(blocks, effects, error * part) for effects, part in MIXTURES]
    if last:
        widths.append(student_quantile(error * LAST_PART, blocks - 1) / math.sqrt(blocks))
    return min(widths)


def _mixture_width(blocks: int, effects: float, error: float) -> float:
    grown = 1.0 + blocks * effects
    bound = math.exp((math.log(grown) - 2.0 * math.log(error)) / blocks)
    if bound >= grown:
        return math.inf
    u = (bound - 1.0) / (1.0 - bound / grown)
    return math.sqrt(u * (blocks - 1) / blocks)


def confidence_sequence(
    differences: FloatArray, error: float, *, last: int | None, resolution: FloatArray | float = 0.0
) -> tuple[FloatArray, FloatArray]:
    """Lower and upper bounds after each block; blocks are the last axis. The look after `last` of them is the planned
    last one; None: it has not come. `resolution` is the minimum half width: values are not measured more exactly."""
    shape = differences.shape
    lows, highs = np.full(shape, -np.inf), np.full(shape, np.inf)
    low, high = np.full(shape[:-1], -np.inf), np.full(shape[:-1], np.inf)
    for blocks in range(2, shape[-1] + 1):
        seen = differences[..., :blocks]
        factor = half_width(blocks, error, last=blocks == last)
        if math.isfinite(factor):
            mean = seen.mean(axis=-1)
            reach = np.maximum(factor * seen.std(axis=-1, ddof=1), resolution)
            lower, upper = np.maximum(low, mean - reach), np.minimum(high, mean + reach)
            apart = lower > upper
            low, high = np.where(apart, mean - reach, lower), np.where(apart, mean + reach, upper)
        lows[..., blocks - 1], highs[..., blocks - 1] = low, high
    return lows, highs


def judge(low: FloatArray, high: FloatArray, margin: float) -> NDArray[np.int64]:
    """ABOVE or BELOW when 0 is excluded, WITHIN when the interval lies inside the margin, else OPEN. Bounds are
    logarithms.

    WITHIN comes first: a difference that is significant and smaller than the margin does not matter.
    """
    edge = math.log1p(margin)
    within = (low > -edge) & (high < edge)
    return np.where(within, WITHIN, np.where(low > 0, ABOVE, np.where(high < 0, BELOW, OPEN)))


def minimum_detectable_difference(blocks: int, error: float, deviation: float) -> float:
    """The difference, a fraction, that about nine of ten experiments detect in this many blocks. `deviation` is the
    standard deviation of the logarithm of one measurement."""
    needed = student_quantile(error * LAST_PART, blocks - 1)
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
