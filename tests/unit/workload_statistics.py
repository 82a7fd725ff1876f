"""Chi-square and Kolmogorov-Smirnov tests for fixed seeds: correct draws fail one in a thousand times."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Z_ONE_IN_A_THOUSAND = 3.0902  # the normal quantile of 0.999
KS_ONE_IN_A_THOUSAND = 1.9495  # sqrt(-ln(0.001 / 2) / 2)
EXPECTED_MIN = 8.0  # cells with fewer expected are joined


def assert_follows(values: Iterable[Any], probabilities: dict[Any, float]) -> None:
    """Chi-square: each value occurs as often as its probability says, and no other value occurs."""
    counts = Counter(values)
    assert set(counts) <= set(probabilities), f"never expected: {sorted(set(counts) - set(probabilities))[:5]}"
    assert chi_square_excess(counts, probabilities) < 1.0


def chi_square_excess(counts: Counter[Any], probabilities: dict[Any, float]) -> float:
    """The statistic divided by its critical value: above 1 the distribution is another."""
    total = sum(counts.values())
    assert math.isclose(sum(probabilities.values()), 1.0, rel_tol=1e-9)
    statistic, cells, joined_count, joined_expected = 0.0, 0, 0, 0.0
    for value, probability in probabilities.items():
        joined_count += counts[value]
        joined_expected += probability * total
        if joined_expected >= EXPECTED_MIN:
            statistic += (joined_count - joined_expected) ** 2 / joined_expected
            cells, joined_count, joined_expected = cells + 1, 0, 0.0
    if joined_expected > 0.0:  # the rest is small; leaving it out would only make the test weaker
        cells += 1
        statistic += (joined_count - joined_expected) ** 2 / max(joined_expected, EXPECTED_MIN)
    return statistic / chi_square_critical(cells - 1)


def chi_square_critical(degrees: int) -> float:
    """Wilson and Hilferty's approximation of the 0.999 quantile, good to a percent from three degrees on."""
    spread = 2.0 / (9.0 * degrees)
    return degrees * (1.0 - spread + Z_ONE_IN_A_THOUSAND * math.sqrt(spread)) ** 3


def assert_cumulates(values: Sequence[float], cumulated: Callable[[float], float]) -> None:
    """Kolmogorov-Smirnov: the values have this cumulative distribution."""
    distance = ks_distance(values, cumulated)
    assert distance < KS_ONE_IN_A_THOUSAND / math.sqrt(len(values)), f"distance {distance}"


def ks_distance(values: Sequence[float], cumulated: Callable[[float], float]) -> float:
    """The greatest distance between the values' own cumulative distribution and the given one."""
    count = len(values)
    distance = 0.0
    for number, value in enumerate(sorted(values)):
        wanted = cumulated(value)
        distance = max(distance, wanted - number / count, (number + 1) / count - wanted)
    return distance
