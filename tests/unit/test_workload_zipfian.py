"""Zipfian against the formula that YCSB publishes, and YCSB's own numbers."""

import math
from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from loadgen.workload.generators import SCRAMBLED_ITEMS, TABLE_RANKS, fnv1a_64, scrambled, zipfian
from loadgen.workload.random_bits import RandomBits
from tests.unit.workload_statistics import assert_follows, chi_square_excess


@pytest.mark.parametrize("theta", [0.0, 0.2, 0.5, 0.99])
@pytest.mark.parametrize("items", [2, 3, 10, 1_000, TABLE_RANKS, 50_000])
def test_ranks_have_the_published_probabilities(items, theta):
    ranks = zipfian(theta).ranks(RandomBits(1, items).units(200_000), items).tolist()

    assert_follows(ranks, published(items, theta))


def test_one_item_is_always_drawn():
    assert set(zipfian(0.99).ranks(RandomBits(1, 1).units(100), 1).tolist()) == {0}


def test_the_approximation_that_ycsb_draws_with_is_another_distribution():
    """So the test above is sharp enough to distinguish them."""
    items, theta = 100, 0.99
    units = RandomBits(1, items).units(200_000)

    approximated = Counter(gray(units, items, theta).tolist())

    assert chi_square_excess(approximated, published(items, theta)) > 2.0
    exact = Counter(zipfian(theta).ranks(units, items).tolist())
    assert exact[0] == approximated[0], "the most frequent item is exact in both"
    assert exact[1] == approximated[1], "and so is the second"


@pytest.mark.parametrize("theta", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("items", [1, 2, TABLE_RANKS, TABLE_RANKS + 1, 1_000_000])
def test_zeta_is_the_sum_that_defines_it(items, theta):
    assert math.isclose(
        zipfian(theta).zeta(np.array([items]))[0],
        math.fsum(i**-theta for i in range(1, items + 1)),
        rel_tol=1e-9,
    )


def test_zeta_of_the_scrambled_generator_is_the_constant_in_ycsb():
    assert math.isclose(zipfian(0.99).zeta(np.array([SCRAMBLED_ITEMS]))[0], 26.46902820178302, rel_tol=1e-9)


@pytest.mark.parametrize("items", [10**6, 10**10, 1 << 53, 1 << 62])
def test_ranks_stay_below_the_number_of_items(items):
    units = np.array([0.0, 0.5, 1.0 - 2.0**-53])

    ranks = zipfian(0.99).ranks(units, items).tolist()

    assert ranks[0] == 0
    assert ranks == sorted(ranks)
    assert items * (1 - 1e-4) < ranks[-1] < items


def test_a_number_of_items_for_each_draw_is_as_good_as_one_for_all():
    units = RandomBits(3, 1).units(1_000)
    items = np.tile(np.array([5, 4_096, 10**6, 10**9]), 250)

    together = zipfian(0.99).ranks(units, items)

    assert together.tolist() == [
        int(zipfian(0.99).ranks(units[at : at + 1], int(count))[0]) for at, count in enumerate(items)
    ]


def test_the_hash_is_the_one_of_ycsb():
    """The first keys of every YCSB table: user6284781860667377211, user8517097267634966620, …"""
    hashes = np.abs(fnv1a_64(np.array([0, 1, 2]))).tolist()

    assert hashes == [6284781860667377211, 8517097267634966620, 1820151046732198393]
    assert scrambled(np.array([0, 1]), 1_000).tolist() == [211, 620]


def published(items: int, theta: float) -> dict[int, float]:
    masses = [1.0 / (rank + 1) ** theta for rank in range(items)]
    zeta = math.fsum(masses)
    return {rank: mass / zeta for rank, mass in enumerate(masses)}


def gray(units: NDArray[np.float64], items: int, theta: float) -> NDArray[np.int64]:
    """Gray et al., "Quickly generating billion-record synthetic databases", 1994."""
    zeta = math.fsum(i**-theta for i in range(1, items + 1))
    eta = (1 - (2 / items) ** (1 - theta)) / (1 - (1 + 0.5**theta) / zeta)
    ranks: NDArray[np.int64] = (items * (eta * units - eta + 1) ** (1 / (1 - theta))).astype(np.int64)
    ranks[units * zeta < 1 + 0.5**theta] = 1
    ranks[units * zeta < 1] = 0
    return ranks
