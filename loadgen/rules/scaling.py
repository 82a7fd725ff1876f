"""Throughput over connections by the Universal Scalability Law: X(N) = γ N / (1 + α (N - 1) + β N (N - 1)). Pure.

α is contention, β coherence; both are at least 0. In the form N / X = (1 + α (N - 1) + β N (N - 1)) / γ the law is
linear, so it is fitted by least squares of relative errors. Intervals come from a parametric bootstrap with a fixed
seed. The law holds for a fixed configuration: the curve is shown, and no decision uses it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loadgen.units import counted
from loadgen.values import dataclass

FloatArray = NDArray[np.float64]
LEVELS_MIN = 6  # enough for points on both sides of the knee
SCATTER_MAX = 0.10  # relative deviation of the measured throughput from the law
RESAMPLES = 300
CURVE_POINTS = 60  # drawn points of the curve
REACH = 2.0  # a peak above this multiple of the highest level counts as not observed
_SEED = 20261117
_TAILS = (2.5, 97.5)  # percent


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingCurve:
    per_connection: Estimate  # γ: throughput of one connection
    contention: Estimate  # α
    coherence: Estimate  # β
    peak: Estimate | None  # connections; None: no peak was observed
    scatter: float  # relative deviation of the points from the curve

    def throughput(self, connections: float) -> float:
        slowed = 1 + self.contention.value * (connections - 1)
        return (
            self.per_connection.value * connections / (slowed + self.coherence.value * connections * (connections - 1))
        )

    def points(self, highest: float) -> tuple[tuple[float, float], ...]:
        """Points to draw, from one connection to `highest`."""
        at = [1.0 + (highest - 1.0) * part / CURVE_POINTS for part in range(CURVE_POINTS + 1)]
        return tuple((connections, self.throughput(connections)) for connections in at)


def fit_scaling(points: Sequence[tuple[float, float]]) -> ScalingCurve | str:
    """The curve for points of (connections, throughput), or a text: why there is none."""
    known = [(float(n), float(x)) for n, x in points if n >= 1 and x > 0]
    levels = len({n for n, _ in known})
    if levels < LEVELS_MIN:
        return f"{counted(levels, 'level')} of connections, and a scaling curve needs {LEVELS_MIN}"
    n, x = (np.array(column) for column in zip(*known, strict=True))
    fitted = _fit(n, n / x)
    scatter = _scatter(n, n / x, fitted)
    if scatter > SCATTER_MAX:
        return f"throughput deviates from the law by {100 * scatter:.0f} %"
    drawn = np.array([_fit(n, resampled) for resampled in _resampled(n, fitted, scatter)])
    return ScalingCurve(
        per_connection=_estimate(1 / fitted[0], 1 / drawn[:, 0]),
        contention=_estimate(fitted[1] / fitted[0], drawn[:, 1] / drawn[:, 0]),
        coherence=_estimate(fitted[2] / fitted[0], drawn[:, 2] / drawn[:, 0]),
        peak=_peak(fitted, drawn, float(n.max())),
        scatter=scatter,
    )


def _terms(n: FloatArray) -> FloatArray:
    return np.column_stack((np.ones_like(n), n - 1, n * (n - 1)))


def _fit(n: FloatArray, y: FloatArray) -> FloatArray:
    """The coefficients (1, α, β) / γ with the smallest sum of squared relative errors, α and β at least 0."""
    weighted, best, least = _terms(n) / y[:, None], np.array([float(y.mean()), 0.0, 0.0]), math.inf
    for kept in ((0, 1, 2), (0, 1), (0, 2), (0,)):
        solved, *_ = np.linalg.lstsq(weighted[:, kept], np.ones_like(y), rcond=None)
        found = np.zeros(3)
        found[list(kept)] = solved
        error = float(((weighted @ found - 1) ** 2).sum())
        if found[0] > 0 and (found[1:] >= 0).all() and error < least:
            best, least = found, error
    return best


def _scatter(n: FloatArray, y: FloatArray, fitted: FloatArray) -> float:
    residuals = (_terms(n) @ fitted) / y - 1
    return math.sqrt(float((residuals**2).sum()) / max(len(y) - 3, 1))


def _resampled(n: FloatArray, fitted: FloatArray, scatter: float) -> FloatArray:
    noise = np.random.default_rng(_SEED).normal(0.0, scatter, (RESAMPLES, len(n)))
    return np.asarray((_terms(n) @ fitted)[None, :] * np.exp(noise))


def _estimate(value: float, drawn: FloatArray) -> Estimate:
    low, high = np.percentile(drawn, _TAILS).tolist()
    return Estimate(float(value), min(low, float(value)), max(high, float(value)))


def _peak(fitted: FloatArray, drawn: FloatArray, highest: float) -> Estimate | None:
    """Where throughput is highest; None: it, or its interval, reaches far above the measured levels."""
    peaks = _peaks(np.vstack((fitted, drawn)))
    found = _estimate(float(peaks[0]), peaks[1:])
    return found if found.value <= REACH * highest and found.high <= REACH * highest else None


def _peaks(coefficients: FloatArray) -> FloatArray:
    alpha = coefficients[:, 1] / coefficients[:, 0]
    beta = np.maximum(coefficients[:, 2] / coefficients[:, 0], 1e-12)
    return np.asarray(np.sqrt(np.maximum(1 - alpha, 0.0) / beta))


def scaling_text(curve: ScalingCurve) -> str:
    """The curve in one sentence, with a note on what it is."""
    one = curve.per_connection
    parts = (
        f"contention {_percent(curve.contention)}, coherence {_percent(curve.coherence)}, one connection"
        f" {one.value:.3g}/s ({one.low:.3g} to {one.high:.3g}), scatter of the points {100 * curve.scatter:.1f} %"
    )
    if curve.peak is None:
        return f"Universal Scalability Law: {parts}; no peak was observed. A model of these points, not a verdict."
    peak = f"peak at {curve.peak.value:.0f} connections ({curve.peak.low:.0f} to {curve.peak.high:.0f})"
    return f"Universal Scalability Law: {parts}; {peak}. A model of these points, not a verdict."


def _percent(one: Estimate) -> str:
    return f"{100 * one.value:.3g} % ({100 * one.low:.2g} to {100 * one.high:.2g})"
