"""The Universal Scalability Law: known parameters are found again, and what does not fit is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from loadgen.rules.scaling import ScalingCurve, fit_scaling, scaling_text

LEVELS = (1, 2, 4, 8, 16, 32, 64, 96)


def law(n, gamma=100.0, alpha=0.03, beta=0.0004):
    return gamma * n / (1 + alpha * (n - 1) + beta * n * (n - 1))


def fitted(points) -> ScalingCurve:
    found = fit_scaling(points)
    assert isinstance(found, ScalingCurve), found
    return found


def test_a_law_without_noise_is_found_exactly():
    found = fitted([(n, law(n)) for n in LEVELS])

    assert found.per_connection.value == pytest.approx(100.0)
    assert found.contention.value == pytest.approx(0.03)
    assert found.coherence.value == pytest.approx(0.0004)
    assert found.peak is not None
    assert found.peak.value == pytest.approx(math.sqrt(0.97 / 0.0004))
    assert found.throughput(24) == pytest.approx(law(24))
    assert "peak at 49 connections" in scaling_text(found)


def test_intervals_hold_the_truth_in_most_cases():
    rng = np.random.default_rng(7)
    inside = []
    for _ in range(12):
        found = fitted([(n, law(n) * math.exp(rng.normal(0, 0.02))) for n in LEVELS for _ in range(2)])
        inside.append(found.contention.low <= 0.03 <= found.contention.high)
        assert found.contention.low <= found.contention.value <= found.contention.high

    assert sum(inside) >= 9


def test_without_coherence_no_peak_is_claimed():
    found = fitted([(n, law(n, beta=0.0)) for n in LEVELS])

    assert found.coherence.value == pytest.approx(0.0, abs=1e-9)
    assert found.peak is None
    assert "no peak was observed" in scaling_text(found)


def test_linear_scaling_has_neither_contention_nor_coherence():
    found = fitted([(n, 50.0 * n * (1.001 if n % 3 else 0.999)) for n in LEVELS])

    assert found.contention.value < 0.001
    assert found.coherence.value < 1e-4
    assert found.contention.low >= 0


def test_fewer_than_six_levels_are_refused_however_many_points_there_are():
    assert fit_scaling([(n, law(n)) for n in (1, 2, 4, 8, 16)] * 5) == (
        "5 levels of connections, and a scaling curve needs 6"
    )
    assert isinstance(fit_scaling([]), str)


def test_points_that_do_not_follow_the_law_are_refused():
    found = fit_scaling([(n, law(n) * (2.0 if n in (4, 32) else 1.0)) for n in LEVELS])

    assert isinstance(found, str)
    assert "deviates from the law" in found


def test_the_same_points_give_the_same_intervals():
    points = [(n, law(n) * (1.02 if n % 3 else 0.98)) for n in LEVELS]

    assert fit_scaling(points) == fit_scaling(points)
