"""Intervals that may be looked at after every block, with the variance unknown. Closed form. Pure.

A difference is the logarithm of a ratio within a block. Differences of blocks are taken as independent and normal, with
an unknown mean and an unknown variance; the interval covers the mean at all looks together with probability
1 - `error`. It is the intersection of three, each of which has a part of the error:

mixture   For a mean m and effects of variance g (in units of the unknown variance) the likelihood ratio

              E_n(m) = (1 + n g)^(-1/2) · ((1 + u) / (1 + u / (1 + n g)))^(n/2),   u = n (mean - m)² / ((n - 1) s²)

          does not depend on the unknown variance (right Haar prior on it), and is a martingale with mean 1 under m. So
          by Ville's inequality E_n(m) ever reaches 1 / error with probability at most `error` (Lai 1976; Wang and
          Ramdas 2024). Means with E_n(m) below that are an interval around the mean. One with g = 1 is for differences
          about as large as their deviation, one with g = 100 decides larger ones after three or four blocks.
last      Student's t at the planned last block: that look is fixed beforehand, so it needs no correction. Martingales
          pay for looks that are not planned; without this part, six comparisons would miss every fifth difference of
          5 % at 3 % noise, with it every twentieth.

An interval may be intersected with those of earlier looks. Where they have nothing in common, a difference that is not
steady is more likely than a look that failed, and the newest interval counts.
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
    """Of the interval after this many blocks, in standard deviations of the differences; inf: nothing is known yet."""
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
    last one; None: it has not come. `resolution` is the least half width: values are not known better."""
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

    WITHIN comes first: a difference that is certain and smaller than the margin does not matter.
    """
    edge = math.log1p(margin)
    within = (low > -edge) & (high < edge)
    return np.where(within, WITHIN, np.where(low > 0, ABOVE, np.where(high < 0, BELOW, OPEN)))


def smallest_found(blocks: int, error: float, deviation: float) -> float:
    """About which difference (a fraction) nine of ten experiments find in this many blocks, when the logarithms of
    single measurements deviate by this much."""
    needed = student_quantile(error * LAST_PART, blocks - 1)
    spread = math.sqrt(1.0 + needed * needed / (2.0 * (blocks - 1)))  # of a t value that is about as large
    return math.expm1((needed + 1.2816 * spread) * deviation * math.sqrt(2.0 / blocks))


@lru_cache(maxsize=4_096)
def student_quantile(error: float, freedom: int) -> float:
    """The t value that is exceeded, on either side, with this probability."""
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
