"""Numbers and keys against their definition: what may come out, how often, and of which type."""

from __future__ import annotations

import math
from datetime import datetime
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.errors import RunFailed
from loadgen.model.workload import (
    Choice,
    ClientPosition,
    Hotspot,
    KeyRange,
    Latest,
    Literal,
    Normal,
    Parameter,
    PoolOrder,
    PoolValue,
    Sequence,
    Shard,
    Text,
    Timestamp,
    Uniform,
    UniformFloat,
    Uuid,
    Zipfian,
)
from loadgen.workload.draw_context import CHUNK_VALUES, DrawContext, shard_range
from loadgen.workload.generators import fnv1a_64, make_generator
from tests.unit.generator_builders import (
    HIGH,
    KEYS,
    LOW,
    SHARDING,
    drawn,
    made,
    places,
    walks,
    zipf_probabilities,
)
from tests.unit.workload_statistics import assert_cumulates, assert_follows

ALL_KINDS: dict[str, Parameter] = {
    "literal": Literal(value="x"),
    "choice": Choice(values=("a", 1, 2.5, True, None)),
    "uniform": Uniform(keys=KEYS),
    "uniform_float": UniformFloat(low=0.0, high=1.0),
    "normal": Normal(mean=10.0, stddev=2.0),
    "normal_whole": Normal(mean=10.0, stddev=2.0, whole=True),
    "zipfian": Zipfian(keys=KEYS),
    "scrambled": Zipfian(keys=KEYS, scrambled=True),
    "hotspot": Hotspot(keys=KEYS),
    "latest": Latest(keys=KEYS),
    "sequence": Sequence(),
    "text": Text(length=3, length_max=9),
    "uuid": Uuid(),
    "timestamp": Timestamp(low=LOW, high=HIGH),
    "pool_sequential": PoolValue(pool="city"),
    "pool_uniform": PoolValue(pool="city", order=PoolOrder.UNIFORM),
    "pool_zipfian": PoolValue(pool="city", order=PoolOrder.ZIPFIAN),
    "shard": Shard(),
}
PLAIN_TYPES = (str, int, float, bool, datetime, type(None))


def normal_cumulated(x: float) -> float:
    return (1.0 + math.erf(x / math.sqrt(2.0))) / 2.0


def hashed_ranks(count: int) -> list[int]:
    return [abs(value) % 100 for value in fnv1a_64(np.arange(count)).tolist()]


# --- all kinds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_values_are_plain_python_values(kind):
    values = drawn(ALL_KINDS[kind], 600)

    assert {type(value) for value in values} <= set(PLAIN_TYPES)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_value_depends_on_its_number_and_not_on_earlier_draws(kind):
    in_order = drawn(ALL_KINDS[kind], 3 * CHUNK_VALUES)
    generator = made(ALL_KINDS[kind])

    assert [generator.take(n) for n in (700, 3, 299, 300, 3, 0)] == [in_order[n] for n in (700, 3, 299, 300, 3, 0)]


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_in_an_open_loop_it_does_not_matter_which_client_draws(kind):
    by_one = made(ALL_KINDS[kind], open_loop=True, worker=1, workers=3, client=0, clients=9)
    by_another = made(ALL_KINDS[kind], open_loop=True, worker=1, workers=3, client=7, clients=9)

    assert [by_one.take(n) for n in range(300)] == [by_another.take(n) for n in range(300)]


@pytest.mark.parametrize("kind", sorted(ALL_KINDS.keys() - {"literal", "shard"}))
@pytest.mark.parametrize("other", ["client", "worker"])
def test_other_clients_and_workers_draw_other_values(kind, other):
    where = {"workers": 2, "clients": 3}

    assert drawn(ALL_KINDS[kind], 50, **where) != drawn(ALL_KINDS[kind], 50, **where, **{other: 1})


@pytest.mark.parametrize("kind", sorted(ALL_KINDS.keys() - {"literal", "shard", "sequence", "pool_sequential"}))
@pytest.mark.parametrize("other", ["statement", "position", "open_loop"])
def test_other_statements_positions_and_kinds_of_loop_draw_other_values(kind, other):
    assert drawn(ALL_KINDS[kind], 50) != drawn(ALL_KINDS[kind], 50, **{other: 1})


# --- keys ------------------------------------------------------------------------------------------------------------


def test_uniform_keys_are_uniform():
    assert_follows(drawn(Uniform(keys=KEYS)), dict.fromkeys(range(101, 201), 0.01))


@pytest.mark.parametrize("size", [1, 2 * 10**18])
def test_a_range_may_have_one_key_or_as_many_as_64_bits_hold(size):
    keys = KeyRange(low=-(10**18), high=size - 10**18)

    for parameter in (Uniform(keys=keys), Zipfian(keys=keys), Zipfian(keys=keys, scrambled=True), Latest(keys=keys)):
        values = drawn(parameter, 2_000)
        assert keys.low <= min(values) <= max(values) < keys.high
        assert len(set(values)) > (1_000 if size > 1 else 0)


def test_hot_keys_get_their_share():
    hot, cold = range(101, 121), range(121, 201)
    probabilities = dict.fromkeys(hot, 0.8 / len(hot)) | dict.fromkeys(cold, 0.2 / len(cold))

    assert_follows(drawn(Hotspot(keys=KEYS, hot_fraction=0.2, hot_share=0.8)), probabilities)


def test_a_fraction_is_decimal():
    values = drawn(Hotspot(keys=KEYS, hot_fraction=0.29, hot_share=1.0), 5_000)

    assert set(values) == set(range(101, 130)), "0.29 * 100 is 28.999999999999996"


@pytest.mark.parametrize(("fraction", "expected"), [(0.0, {101}), (1.0, set(range(101, 201)))])
def test_there_is_always_a_hot_key(fraction, expected):
    assert set(drawn(Hotspot(keys=KEYS, hot_fraction=fraction, hot_share=1.0), 5_000)) == expected


def test_zipfian_keys_begin_with_the_most_frequent():
    assert_follows(drawn(Zipfian(keys=KEYS)), {101 + rank: p for rank, p in enumerate(zipf_probabilities(100, 0.99))})


def test_latest_keys_end_with_the_most_frequent():
    assert_follows(drawn(Latest(keys=KEYS)), {200 - rank: p for rank, p in enumerate(zipf_probabilities(100, 0.99))})


def test_scrambled_keys_take_the_probability_of_all_ranks_that_are_hashed_to_them():
    ranks_known, zeta = 200_000, 26.46902820178302
    expected = dict.fromkeys(range(101, 201), 0.0)
    masses = [(rank + 1) ** -0.99 / zeta for rank in range(ranks_known)]
    for key, mass in zip(hashed_ranks(ranks_known), masses, strict=True):
        expected[101 + key] += mass
    others = (1.0 - sum(masses)) / 100  # ten billion further ranks, evenly hashed

    assert_follows(drawn(Zipfian(keys=KEYS, scrambled=True)), {key: mass + others for key, mass in expected.items()})


def test_sharded_keys_come_from_the_partition_of_the_worker():
    for parameter in (
        Uniform(keys=None, sharded=True),
        Zipfian(keys=None, sharded=True),
        Zipfian(keys=None, sharded=True, scrambled=True),
        Hotspot(keys=None, sharded=True),
        Latest(keys=None, sharded=True),
    ):
        parts = [set(drawn(parameter, 20_000, worker=worker, workers=3)) for worker in range(3)]

        assert parts[0] <= set(range(1, 334))
        assert parts[1] <= set(range(334, 667))
        assert parts[2] <= set(range(667, 1_001))
    assert set().union(
        *(drawn(Uniform(keys=None, sharded=True), 20_000, worker=w, workers=3) for w in range(3))
    ) == set(range(1, 1_001))


def test_a_separate_range_can_be_sharded_too():
    assert set(drawn(Uniform(keys=KEYS, sharded=True), 2_000, worker=1, workers=2)) == set(range(151, 201))


def test_shard_is_the_workers_partition():
    assert [drawn(Shard(), 1, worker=worker, workers=6)[0] for worker in range(6)] == [0, 1, 2, 3, 0, 1]


# --- sequences -------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 144), st.integers(1, 12), st.integers(0, 600), st.integers(-(10**20), 10**20))
def test_sequences_of_all_clients_have_no_gap_and_no_overlap(lanes, workers, count, start):
    union: list[int] = []
    for own in walks(Sequence(start=start), lanes, workers, count):
        assert all(one < following for one, following in pairwise(own))
        union += own

    assert sorted(union) == list(range(start, start + lanes * count))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(0, 600))
def test_sequences_of_all_schedules_have_no_gap_and_no_overlap(workers, count):
    union: list[Any] = []
    for worker in range(workers):
        generator = made(Sequence(start=1), open_loop=True, worker=worker, workers=workers)
        union += [generator.take(i) for i in range(count)]

    assert sorted(union) == list(range(1, 1 + workers * count))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 15))
def test_sharded_sequences_of_a_workers_clients_have_no_gap_and_no_overlap(lanes, workers, count):
    for worker in range(workers):
        part, own = shard_range(SHARDING.keys, worker, workers), places(worker, workers, lanes)
        count = min(count, part.size // max(1, len(own)))
        sources = [DrawContext(seed=1, place=place, sharding=SHARDING) for place in own]

        taken: list[Any] = []
        for source in sources:
            generator = make_generator(Sequence(sharded=True), source)
            taken += [generator.take(n) for n in range(count)]

        assert sorted(taken) == list(range(part.low, part.low + len(own) * count))


@settings(max_examples=30, deadline=None)
@given(st.integers(9, 81), st.integers(1, 9))
def test_sharded_sequences_use_every_key_of_the_range_once_and_then_report_the_end(lanes, workers):
    union: list[int] = []
    for place in (place for worker in range(workers) for place in places(worker, workers, lanes)):
        generator = make_generator(Sequence(sharded=True), DrawContext(seed=1, place=place, sharding=SHARDING))
        own: list[int] = []
        with pytest.raises(RunFailed, match="all keys"):
            own.extend(generator.take(n) for n in range(2_000))  # type: ignore[misc]
        union += own

    assert sorted(union) == list(range(1, 1_001))


def test_a_worker_without_clients_still_has_its_lane_of_an_open_loop():
    place = ClientPosition(worker=2, workers=3)

    drawn = make_generator(Sequence(start=10), DrawContext(seed=1, place=place, open_loop=True))

    assert [drawn.take(n) for n in range(3)] == [12, 15, 18]
    with pytest.raises(ValueError, match="worker 2 of 3 has 0 of 1 lanes"):
        DrawContext(seed=1, place=place)


def test_a_sharded_sequence_of_an_open_loop_goes_through_the_workers_keys():
    generator = made(Sequence(sharded=True), open_loop=True, worker=1, workers=2, client=5, clients=7)

    assert [generator.take(i) for i in range(500)] == list(range(501, 1_001))


# --- numbers ---------------------------------------------------------------------------------------------------------


def test_floats_are_uniform_over_their_interval():
    values = drawn(UniformFloat(low=-3.0, high=5.0))

    assert min(values) >= -3.0
    assert max(values) < 5.0
    assert_cumulates(values, lambda x: (x + 3.0) / 8.0)


def test_an_interval_may_be_as_wide_or_as_narrow_as_floats_allow():
    assert all(math.isfinite(value) for value in drawn(UniformFloat(low=-1.7e308, high=1.7e308), 1_000))
    assert set(drawn(UniformFloat(low=1.0, high=math.nextafter(1.0, 2.0)), 1_000)) == {1.0}


def test_normal_numbers_are_normally_distributed():
    assert_cumulates(drawn(Normal(mean=100.0, stddev=15.0)), lambda x: normal_cumulated((x - 100.0) / 15.0))


def test_bounded_normal_numbers_lie_within_their_bounds():
    values = drawn(Normal(mean=0.0, stddev=1.0, low=-0.5, high=2.0))
    below, within = normal_cumulated(-0.5), normal_cumulated(2.0) - normal_cumulated(-0.5)

    assert min(values) >= -0.5
    assert max(values) < 2.0
    assert_cumulates(values, lambda x: (normal_cumulated(x) - below) / within)


def test_whole_normal_numbers_are_rounded_before_the_bounds_are_checked():
    values = drawn(Normal(mean=3.0, stddev=2.0, low=0, high=7, whole=True))
    masses = {n: normal_cumulated((n + 0.5 - 3) / 2) - normal_cumulated((n - 0.5 - 3) / 2) for n in range(7)}

    assert_follows(values, {n: mass / sum(masses.values()) for n, mass in masses.items()})


def test_a_normal_without_spread_is_its_mean():
    assert set(drawn(Normal(mean=2.0, stddev=0.0, whole=True), 300)) == {2}
