"""Texts, moments, choices and pools against their definition; and what cannot be drawn."""

from __future__ import annotations

import math
import uuid
from collections import Counter
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.model.workload import (
    Choice,
    ClientPosition,
    Hotspot,
    KeyRange,
    Normal,
    PoolOrder,
    PoolValue,
    Previous,
    Shard,
    Text,
    Timestamp,
    Uniform,
    UniformFloat,
    Uuid,
    Zipfian,
)
from loadgen.workload.draw_context import DrawContext
from loadgen.workload.generators import make_generator
from tests.unit.generator_builders import (
    HIGH,
    KEYS,
    LOW,
    POOLS,
    drawn,
    made,
    walks,
    zipf_probabilities,
)
from tests.unit.workload_statistics import assert_cumulates, assert_follows

# --- texts, identifiers, moments, choices ----------------------------------------------------------------------------


def test_letters_of_a_text_are_uniform():
    letters = "".join(drawn(Text(length=20, alphabet="abcdefg"), 4_000))

    assert_follows(letters, dict.fromkeys("abcdefg", 1 / 7))


def test_lengths_of_a_text_are_uniform():
    assert_follows(map(len, drawn(Text(length=2, length_max=6), 20_000)), dict.fromkeys(range(2, 7), 0.2))


def test_any_character_can_be_in_an_alphabet():
    assert set("".join(drawn(Text(length=5, alphabet="aé€𝄞"), 500))) == set("aé€𝄞")
    many = "".join(chr(0x4E00 + number) for number in range(5_000))
    assert len(set("".join(drawn(Text(length=100, alphabet=many), 500)))) > 4_900


@pytest.mark.parametrize("length", [0, 1, 1_000, 100_000])
def test_a_text_has_the_requested_length(length):
    assert {len(text) for text in drawn(Text(length=length), 3)} == {length}


def test_identifiers_have_the_layout_of_version_4_and_do_not_repeat():
    texts = drawn(Uuid(), 5_000)
    parsed = [uuid.UUID(text) for text in texts]

    assert [str(one) for one in parsed] == texts
    assert {(one.version, one.variant) for one in parsed} == {(4, uuid.RFC_4122)}
    assert len(set(texts)) == len(texts)
    assert_follows("".join(text[:8] for text in texts), dict.fromkeys("0123456789abcdef", 1 / 16))


def test_times_are_uniform_naive_and_exact_to_the_microsecond():
    moments = drawn(Timestamp(low=LOW, high=HIGH))

    assert min(moments) >= LOW
    assert max(moments) < HIGH
    assert all(moment.tzinfo is None for moment in moments)
    assert_cumulates([(moment - LOW).total_seconds() for moment in moments], lambda s: s / 86_400)
    assert_follows((moment.microsecond % 10 for moment in moments), dict.fromkeys(range(10), 0.1))


def test_times_before_1970_are_valid():
    low, high = datetime(1800, 1, 1), datetime(1800, 1, 1, 0, 0, 0, 3)  # noqa: DTZ001

    assert set(drawn(Timestamp(low=low, high=high), 300)) == {low.replace(microsecond=us) for us in range(3)}


def test_choices_follow_their_weights():
    weighted = drawn(Choice(values=("NEW", "PAID", "SHIPPED", "NEVER"), weights=(70, 20, 10, 0)))
    plain = drawn(Choice(values=("a", "b", "c")))

    assert_follows(weighted, {"NEW": 0.7, "PAID": 0.2, "SHIPPED": 0.1})
    assert_follows(plain, dict.fromkeys("abc", 1 / 3))


# --- pools -----------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 30), st.integers(1, 6), st.integers(1, 500))
def test_no_two_clients_draw_the_same_values_until_the_pool_is_used_up(lanes, workers, size):
    rounds = size // lanes

    taken = [value for walk in walks(PoolValue(pool="numbers"), lanes, workers, rounds, size) for value in walk]

    assert sorted(taken) == list(range(rounds * lanes))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60), st.integers(1, 6), st.integers(1, 60))
def test_clients_in_step_use_all_values_equally_and_each_client_uses_all_of_them(lanes, workers, size):
    taken = walks(PoolValue(pool="numbers"), lanes, workers, size, size)

    period = size // math.gcd(lanes, size)
    for first in range(0, size, period):
        together = Counter(value for walk in taken for value in walk[first : first + period])
        assert together == dict.fromkeys(range(size), lanes * period // size)
    assert all(sorted(walk) == list(range(size)) for walk in taken)


def test_a_pool_that_is_used_up_begins_again():
    cities = POOLS["city"].values

    assert drawn(PoolValue(pool="city"), 12) == [*cities, *cities, *cities[:2]]


def test_pool_values_are_drawn_by_their_order():
    cities = POOLS["city"].values
    ranks = dict(zip(cities, zipf_probabilities(5, 0.5), strict=True))

    assert_follows(drawn(PoolValue(pool="city", order=PoolOrder.UNIFORM)), dict.fromkeys(cities, 0.2))
    assert_follows(drawn(PoolValue(pool="city", order=PoolOrder.ZIPFIAN, theta=0.5)), ranks)


# --- what cannot be drawn --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parameter",
    [
        Uniform(keys=None),
        Uniform(keys=KeyRange(low=5, high=5)),
        Uniform(keys=KeyRange(low=0, high=(1 << 62) + 1)),
        Uniform(keys=KeyRange(low=1 << 63, high=(1 << 63) + 5)),
        Zipfian(keys=KEYS, theta=1.0),
        Zipfian(keys=KEYS, theta=-0.1),
        Hotspot(keys=KEYS, hot_share=1.1),
        UniformFloat(low=1.0, high=1.0),
        UniformFloat(low=0.0, high=math.inf),
        Normal(mean=0.0, stddev=1.0, low=5.0),
        Normal(mean=0.0, stddev=-1.0),
        Normal(mean=0.45, stddev=0.01, low=0.4, high=2.0, whole=True),  # all are rounded to 0
        Normal(mean=0.5, stddev=1e-300, low=1.0, whole=True),
        Normal(mean=0.5, stddev=0.0, low=1.0, whole=True),
        Normal(mean=1e19, stddev=1.0, whole=True),
        Text(length=-1),
        Text(length=5, length_max=4),
        Text(length=5, alphabet=""),
        Text(length=5, alphabet="\ud800"),
        Timestamp(low=HIGH, high=LOW),
        Timestamp(low=LOW.replace(tzinfo=UTC), high=HIGH.replace(tzinfo=UTC)),
        Choice(values=()),
        Choice(values=("a",), weights=(1, 2)),
        Choice(values=("a",), weights=(0,)),
        PoolValue(pool="nowhere"),
        Previous(index=0),
    ],
)
def test_a_generator_without_values_is_rejected_at_once(parameter):
    with pytest.raises(ValueError):
        made(parameter)


def test_a_worker_without_keys_is_reported():
    source = DrawContext(seed=1, place=ClientPosition(worker=0, workers=3))

    with pytest.raises(ValueError, match="worker 0 has no keys: 2 are not enough for 3 workers"):
        make_generator(Uniform(keys=KeyRange(low=0, high=2), sharded=True), source)
    with pytest.raises(ValueError, match="needs sharding"):
        make_generator(Shard(), source)
