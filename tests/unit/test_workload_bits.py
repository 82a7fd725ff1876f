"""The ground of everything random: bits, and arithmetic that is the same on every machine."""

import math

import numpy as np
import pytest

from loadgen.workload import random_bits
from loadgen.workload.random_bits import SMALL_SIZE_MAX, RandomBits
from tests.unit.workload_statistics import assert_cumulates, assert_follows

WORDS = [12227645786093787849, 3974116405244816753, 11637372065616480746]
LOGARITHMS = [
    "-0x1.4b927f32bffb8p+4",
    "-0x1.26bb1bbb55515p+1",
    "0x0.0p+0",
    "0x1.62e42fefa39efp-1",
    "0x1.193ea7aad030bp+0",
    "0x1.2d79559791e31p+3",
]
EXPONENTIALS = [
    "0x1.fffffff768fa1p-1",
    "0x1.cf46d99d52b3ap-1",
    "0x1.78b56362cef38p-2",
    "0x1.152aaa3bf81ccp-3",
    "0x1.97db0ccceb0afp-5",
    "0x0.0000000000001p-1022",
]


def test_the_words_of_a_key_never_change():
    assert RandomBits(1, 1, 2, 3).words(3).tolist() == WORDS


def test_other_keys_and_seeds_give_other_words():
    streams = [(1, 0), (1, 1), (2, 0), (1, 0, 0), (1 << 40, 0)]

    assert len({int(RandomBits(*stream).words(1)[0]) for stream in streams}) == len(streams)


@pytest.mark.parametrize("stream", [(-1, 0), (0, -1), (0, 1 << 32)])
def test_a_key_that_would_be_ambiguous_is_refused(stream):
    with pytest.raises(ValueError):
        RandomBits(*stream)


def test_units_are_uniform_from_0_to_1():
    units = RandomBits(1, 7).units(50_000).tolist()

    assert min(units) >= 0.0
    assert max(units) < 1.0
    assert_cumulates(units, lambda x: x)


@pytest.mark.parametrize("size", [1, 2, 3, 10, 64, 1_000])
def test_numbers_below_a_size_are_uniform(size):
    for draw in (RandomBits(1, size).below, RandomBits(2, size).small_below):
        values = draw(size, 40_000).tolist()
        if size == 1:
            assert set(values) == {0}
        else:
            assert_follows(values, dict.fromkeys(range(size), 1 / size))


def test_sizes_near_two_to_the_64th_are_drawn_again_without_bias():
    size = (1 << 63) - 1  # half of all words must be drawn again, nearly

    values = RandomBits(1, 1).below(size, 20_000)

    assert_cumulates((values / size).tolist(), lambda x: x)


def test_small_sizes_are_exact_where_16_bits_do_not_divide_evenly():
    values = RandomBits(3, 1).small_below(SMALL_SIZE_MAX - 1, 200_000).tolist()

    assert_follows(values, dict.fromkeys(range(SMALL_SIZE_MAX - 1), 1 / (SMALL_SIZE_MAX - 1)))


@pytest.mark.parametrize("count", [1, 10, 64, 100])
def test_coins_show_heads_by_the_binomial_distribution(count):
    heads = [RandomBits(1, count, number).coin_heads(count) for number in range(2_000)]

    assert_follows(heads, {n: math.comb(count, n) / 2**count for n in range(count + 1)})


def test_millions_of_coins_are_counted_in_parts():
    count = 10_000_001

    heads = RandomBits(1, 1).coin_heads(count)

    assert abs(heads - count / 2) < 4 * math.sqrt(count) / 2


# --- logarithm, exponential, power -----------------------------------------------------------------------------------


def test_logarithm_and_exponential_agree_with_the_library_to_a_few_units_of_the_last_place():
    units = RandomBits(1, 1).units(5_000) + 2.0**-60
    positive = np.concatenate([units, units * 1e-300, units * 1e300, 1.0 + (units - 0.5) * 1e-5])
    real = (units - 0.5) * 1_400

    logs, exps = random_bits.log(positive), random_bits.exp(real)

    wanted_logs = np.array([math.log(x) for x in positive.tolist()])
    wanted_exps = np.array([math.exp(x) for x in real.tolist()])
    assert np.all(np.abs(logs - wanted_logs) <= 4 * np.spacing(np.abs(wanted_logs)))
    assert np.all(np.abs(exps - wanted_exps) <= 4 * np.spacing(wanted_exps))


def test_powers_are_near_enough_to_be_called_exact():
    x = RandomBits(2, 1).units(5_000) * 1e10 + 1.0

    ratio = random_bits.power(x, -0.99) / np.array([value**-0.99 for value in x.tolist()])

    assert np.all(np.abs(ratio - 1.0) < 1e-13)


def test_bits_of_logarithm_and_exponential_never_change():
    x = np.array([1e-9, 0.1, 1.0, 2.0, 3.0, 12345.678])

    assert [value.hex() for value in random_bits.log(x).tolist()] == LOGARITHMS
    assert [value.hex() for value in random_bits.exp(-x).tolist()] == EXPONENTIALS


def test_values_beyond_the_range_of_floats_are_clamped():
    assert random_bits.exp(np.array([-1e9]))[0] < 1e-300
    assert random_bits.exp(np.array([1e9]))[0] > 1e300
