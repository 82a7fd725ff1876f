"""Each kind of parameter against its definition: what may come out, how often, and of which type."""

import math
import uuid
from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.errors import RunFailed
from loadgen.model.workload import (
    Choice,
    Hotspot,
    KeyRange,
    Latest,
    Literal,
    Normal,
    Parameter,
    Place,
    PoolOrder,
    PoolValue,
    Previous,
    Sequence,
    Shard,
    Sharding,
    Text,
    Timestamp,
    Uniform,
    UniformFloat,
    Uuid,
    Zipfian,
)
from loadgen.workload.chunks import CHUNK_VALUES, Generator, Source
from loadgen.workload.generators import make_generator
from loadgen.workload.pools import Pool
from loadgen.workload.split import places, shard_range
from loadgen.workload.zipfian import fnv1a_64
from tests.unit.workload_statistics import assert_cumulates, assert_follows

KEYS = KeyRange(low=101, high=201)
LOW, HIGH = datetime(2024, 1, 1), datetime(2024, 1, 2)  # noqa: DTZ001  naive is the definition
POOLS = {"city": Pool("city", ("Graz", "Lyon", "Turku", "Zadar", "Brno"))}
SHARDING = Sharding(total_partitions=4, key_column="ID", keys=KeyRange(low=1, high=1_001))
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
DRAWS = 40_000


def made(
    parameter: Parameter, *, open_loop: bool = False, statement: int = 0, position: int = 0, **place: int
) -> Generator:
    where = {"worker": 0, "workers": 1, "clients": 1, **place}  # all workers have as many clients
    source = Source(
        seed=1,
        statement=statement,
        position=position,
        place=Place(**where, lanes=where["workers"] * where["clients"]),
        open_loop=open_loop,
        sharding=SHARDING,
        pools=POOLS,
    )
    return make_generator(parameter, source)


def drawn(parameter: Parameter, count: int = DRAWS, **where: Any) -> list[Any]:
    generator = made(parameter, **where)
    return [generator.take(n) for n in range(count)]


def walks(parameter: Parameter, lanes: int, workers: int, draws: int, size: int = 1) -> list[list[Any]]:
    """What each client of a closed loop draws."""
    pools = {"numbers": Pool("numbers", tuple(range(size)))}
    own = [place for worker in range(workers) for place in places(worker, workers, lanes)]
    generators = [make_generator(parameter, Source(seed=1, place=place, pools=pools)) for place in own]
    return [[generator.take(n) for n in range(draws)] for generator in generators]


# --- all kinds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_values_are_plain_python_values(kind):
    values = drawn(ALL_KINDS[kind], 600)

    assert {type(value) for value in values} <= set(PLAIN_TYPES)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_value_depends_on_its_number_and_not_on_what_was_drawn_before(kind):
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


def test_uniform_keys_are_all_alike():
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


def test_a_fraction_is_meant_as_people_write_it():
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


def test_sharded_keys_come_from_the_workers_part():
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


def test_a_range_of_its_own_can_be_sharded_too():
    assert set(drawn(Uniform(keys=KEYS, sharded=True), 2_000, worker=1, workers=2)) == set(range(151, 201))


def test_shard_is_the_workers_partition():
    assert [drawn(Shard(), 1, worker=worker, workers=6)[0] for worker in range(6)] == [0, 1, 2, 3, 0, 1]


# --- sequences -------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 144), st.integers(1, 12), st.integers(0, 600), st.integers(-(10**20), 10**20))
def test_sequences_of_all_clients_have_no_gap_and_no_overlap(lanes, workers, count, start):
    union: list[int] = []
    for own in walks(Sequence(start=start), lanes, workers, count):
        assert all(one < following for one, following in pairwise(own))
        union += own

    assert sorted(union) == list(range(start, start + lanes * count))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(0, 600))
def test_sequences_of_all_schedules_have_no_gap_and_no_overlap(workers, count):
    union: list[Any] = []
    for worker in range(workers):
        generator = made(Sequence(start=1), open_loop=True, worker=worker, workers=workers)
        union += [generator.take(i) for i in range(count)]

    assert sorted(union) == list(range(1, 1 + workers * count))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 15))
def test_sharded_sequences_of_a_workers_clients_have_no_gap_and_no_overlap(lanes, workers, count):
    for worker in range(workers):
        part, own = shard_range(SHARDING.keys, worker, workers), places(worker, workers, lanes)
        count = min(count, part.size // max(1, len(own)))
        sources = [Source(seed=1, place=place, sharding=SHARDING) for place in own]

        taken: list[Any] = []
        for source in sources:
            generator = make_generator(Sequence(sharded=True), source)
            taken += [generator.take(n) for n in range(count)]

        assert sorted(taken) == list(range(part.low, part.low + len(own) * count))


@settings(max_examples=60, deadline=None)
@given(st.integers(9, 81), st.integers(1, 9))
def test_sharded_sequences_use_every_key_of_the_range_once_and_then_say_so(lanes, workers):
    union: list[int] = []
    for place in (place for worker in range(workers) for place in places(worker, workers, lanes)):
        generator = make_generator(Sequence(sharded=True), Source(seed=1, place=place, sharding=SHARDING))
        own: list[int] = []
        with pytest.raises(RunFailed, match="all keys"):
            own.extend(generator.take(n) for n in range(2_000))  # type: ignore[misc]
        union += own

    assert sorted(union) == list(range(1, 1_001))


def test_a_worker_without_clients_still_has_its_lane_of_an_open_loop():
    place = Place(worker=2, workers=3)

    drawn = make_generator(Sequence(start=10), Source(seed=1, place=place, open_loop=True))

    assert [drawn.take(n) for n in range(3)] == [12, 15, 18]
    with pytest.raises(ValueError, match="worker 2 of 3 has 0 of 1 lanes"):
        Source(seed=1, place=place)


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


def test_bounded_normal_numbers_are_those_that_lie_within():
    values = drawn(Normal(mean=0.0, stddev=1.0, low=-0.5, high=2.0))
    below, within = normal_cumulated(-0.5), normal_cumulated(2.0) - normal_cumulated(-0.5)

    assert min(values) >= -0.5
    assert max(values) < 2.0
    assert_cumulates(values, lambda x: (normal_cumulated(x) - below) / within)


def test_whole_normal_numbers_are_rounded_before_the_bounds_are_looked_at():
    values = drawn(Normal(mean=3.0, stddev=2.0, low=0, high=7, whole=True))
    masses = {n: normal_cumulated((n + 0.5 - 3) / 2) - normal_cumulated((n - 0.5 - 3) / 2) for n in range(7)}

    assert_follows(values, {n: mass / sum(masses.values()) for n, mass in masses.items()})


def test_a_normal_without_spread_is_its_mean():
    assert set(drawn(Normal(mean=2.0, stddev=0.0, whole=True), 300)) == {2}


# --- texts, identifiers, moments, choices ----------------------------------------------------------------------------


def test_letters_of_a_text_are_all_alike():
    letters = "".join(drawn(Text(length=20, alphabet="abcdefg"), 4_000))

    assert_follows(letters, dict.fromkeys("abcdefg", 1 / 7))


def test_lengths_of_a_text_are_all_alike():
    assert_follows(map(len, drawn(Text(length=2, length_max=6), 20_000)), dict.fromkeys(range(2, 7), 0.2))


def test_any_character_can_be_in_an_alphabet():
    assert set("".join(drawn(Text(length=5, alphabet="aé€𝄞"), 500))) == set("aé€𝄞")
    many = "".join(chr(0x4E00 + number) for number in range(5_000))
    assert len(set("".join(drawn(Text(length=100, alphabet=many), 500)))) > 4_900


@pytest.mark.parametrize("length", [0, 1, 1_000, 100_000])
def test_a_text_has_the_length_that_was_asked_for(length):
    assert {len(text) for text in drawn(Text(length=length), 3)} == {length}


def test_identifiers_have_the_layout_of_version_4_and_do_not_repeat():
    texts = drawn(Uuid(), 5_000)
    parsed = [uuid.UUID(text) for text in texts]

    assert [str(one) for one in parsed] == texts
    assert {(one.version, one.variant) for one in parsed} == {(4, uuid.RFC_4122)}
    assert len(set(texts)) == len(texts)
    assert_follows("".join(text[:8] for text in texts), dict.fromkeys("0123456789abcdef", 1 / 16))


def test_moments_are_uniform_naive_and_exact_to_the_microsecond():
    moments = drawn(Timestamp(low=LOW, high=HIGH))

    assert min(moments) >= LOW
    assert max(moments) < HIGH
    assert all(moment.tzinfo is None for moment in moments)
    assert_cumulates([(moment - LOW).total_seconds() for moment in moments], lambda s: s / 86_400)
    assert_follows((moment.microsecond % 10 for moment in moments), dict.fromkeys(range(10), 0.1))


def test_moments_before_1970_are_moments_too():
    low, high = datetime(1800, 1, 1), datetime(1800, 1, 1, 0, 0, 0, 3)  # noqa: DTZ001

    assert set(drawn(Timestamp(low=low, high=high), 300)) == {low.replace(microsecond=us) for us in range(3)}


def test_choices_follow_their_weights():
    weighted = drawn(Choice(values=("NEW", "PAID", "SHIPPED", "NEVER"), weights=(70, 20, 10, 0)))
    plain = drawn(Choice(values=("a", "b", "c")))

    assert_follows(weighted, {"NEW": 0.7, "PAID": 0.2, "SHIPPED": 0.1})
    assert_follows(plain, dict.fromkeys("abc", 1 / 3))


# --- pools -----------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 30), st.integers(1, 6), st.integers(1, 500))
def test_no_two_clients_walk_the_same_values_until_the_pool_is_used_up(lanes, workers, size):
    rounds = size // lanes

    taken = [value for walk in walks(PoolValue(pool="numbers"), lanes, workers, rounds, size) for value in walk]

    assert sorted(taken) == list(range(rounds * lanes))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 6), st.integers(1, 60))
def test_clients_that_keep_step_use_all_values_alike_and_each_client_comes_to_all_of_them(lanes, workers, size):
    taken = walks(PoolValue(pool="numbers"), lanes, workers, size, size)

    period = size // math.gcd(lanes, size)
    for first in range(0, size, period):
        together = Counter(value for walk in taken for value in walk[first : first + period])
        assert together == dict.fromkeys(range(size), lanes * period // size)
    assert all(sorted(walk) == list(range(size)) for walk in taken)


def test_a_pool_that_is_used_up_begins_again():
    cities = POOLS["city"].values

    assert drawn(PoolValue(pool="city"), 12) == [*cities, *cities, *cities[:2]]


def test_pool_values_are_drawn_as_their_order_says():
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
def test_what_has_nothing_to_draw_is_refused_at_once(parameter):
    with pytest.raises(ValueError):
        made(parameter)


def test_a_worker_without_keys_is_told():
    source = Source(seed=1, place=Place(worker=0, workers=3))

    with pytest.raises(ValueError, match="worker 0 has no keys: 2 are not enough for 3 workers"):
        make_generator(Uniform(keys=KeyRange(low=0, high=2), sharded=True), source)
    with pytest.raises(ValueError, match="needs sharding"):
        make_generator(Shard(), source)


def zipf_probabilities(items: int, theta: float) -> list[float]:
    """The published formula."""
    masses = [1.0 / (rank + 1) ** theta for rank in range(items)]
    return [mass / math.fsum(masses) for mass in masses]


def normal_cumulated(x: float) -> float:
    return (1.0 + math.erf(x / math.sqrt(2.0))) / 2.0


def hashed_ranks(count: int) -> list[int]:
    return [abs(value) % 100 for value in fnv1a_64(np.arange(count)).tolist()]
