"""Statements and their parameters together: the same for the same seed, in the same order."""

import json
import math
import threading
from collections import Counter
from datetime import datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.errors import RunFailed, ScenarioInvalid
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
    Previous,
    Query,
    Sequence,
    Shard,
    Sharding,
    Statement,
    StatementKind,
    Text,
    Timestamp,
    Uniform,
    UniformFloat,
    Uuid,
    Workload,
    Zipfian,
)
from loadgen.workload.draw import StatementStream
from loadgen.workload.draw_context import lane_of_client
from loadgen.workload.generators import zipfian
from loadgen.workload.pools import Pool
from tests.unit.generator_builders import places

KEYS = KeyRange(low=1, high=1_000_001)
POOLS = {"order_id": Pool("order_id", tuple(range(5_000, 6_000)))}
ONLY = ClientPosition(worker=0, workers=1)
CLOSED_LOOP = [
    (0, ((5000,),)),
    (0, ((5473,),)),
    (0, ((5467,),)),
    (1, (("SHIPPED", 5003),)),
    (0, ((5011,),)),
    (0, ((5070,),)),
    (0, ((5002,),)),
    (0, ((5061,),)),
    (0, ((5165,),)),
    (2, ((1000004, 992937), (1000004,))),
]
OPEN_LOOP = [(0, ((5008,),)), (0, ((5055,),)), (0, ((5029,),)), (0, ((5039,),)), (1, (("PAID", 5001),))]
FIRST_VALUES = [
    "436642",
    "0.8082886764137636",
    "-1.3242937977653921",
    "54",
    "36",
    "377212",
    "650274",
    "71956",
    "999993",
    "2000007",
    "None",
    "'NEW'",
    "'esgmvx'",
    "'δδβ'",
    "'58bf5d49-872e-4082-80e2-9ae52999a67b'",
    "datetime.datetime(2024, 7, 28, 2, 3, 13, 443671)",
    "5007",
    "5145",
    "1",
    "115",
]
LATER_VALUES = [
    "423784",
    "0.7451457703009978",
    "-2.3534196599552124",
    "44",
    "632583",
    "287930",
    "25186",
    "187522",
    "2014992",
    "2015007",
    "None",
    "'PAID'",
    "'sswdtrk'",
    "'ββγ'",
    "'87369ff1-df85-4cb0-924d-e0b749be8eae'",
    "datetime.datetime(2024, 6, 22, 4, 11, 1, 312785)",
    "5007",
    "5967",
    "1",
    "196",
]


def statement(name: str, weight: int, *queries: tuple[Parameter, ...]) -> Statement:
    return Statement(
        name=name,
        kind=StatementKind.READ,
        weight=weight,
        queries=tuple(Query(sql=f"SELECT {number}", parameters=query) for number, query in enumerate(queries)),
        transaction=len(queries) > 1,
    )


def workload(*statements: Statement, seed: int = 1) -> Workload:
    sharding = Sharding(total_partitions=10, key_column="ID", keys=KeyRange(low=1, high=301))
    return Workload(statements=statements, seed=seed, sharding=sharding)


def orders(seed: int = 1) -> Workload:
    """The mix of the documentation: point reads, payments, and a transaction."""
    return workload(
        statement("point_lookup", 80, (PoolValue(pool="order_id", order=PoolOrder.ZIPFIAN),)),
        statement("pay", 15, (Choice(values=("PAID", "SHIPPED")), PoolValue(pool="order_id"))),
        statement("checkout", 5, (Sequence(start=1_000_001), Uniform(keys=KEYS)), (Previous(index=0),)),
        seed=seed,
    )


def every_kind() -> Workload:
    low, high = datetime(2024, 1, 1), datetime(2025, 1, 1)  # noqa: DTZ001  naive is the definition
    numbers: tuple[Parameter, ...] = (
        Uniform(keys=KEYS),
        UniformFloat(low=-1.0, high=1.0),
        Normal(mean=0.0, stddev=1.0),
        Normal(mean=50.0, stddev=20.0, low=0, high=101, whole=True),
        Zipfian(keys=KEYS),
        Zipfian(keys=KEYS, scrambled=True),
        Zipfian(keys=KEYS, theta=0.5),
        Hotspot(keys=KEYS),
        Latest(keys=KEYS, follows="insert"),
    )
    others: tuple[Parameter, ...] = (
        Literal(value=None),
        Choice(values=("NEW", "PAID"), weights=(3, 1)),
        Text(length=4, length_max=8),
        Text(length=3, alphabet="αβγδ"),
        Uuid(),
        Timestamp(low=low, high=high),
        PoolValue(pool="order_id"),
        PoolValue(pool="order_id", order=PoolOrder.UNIFORM),
        Shard(),
        Uniform(keys=None, sharded=True),
    )
    return workload(
        statement("numbers", 2, numbers),
        statement("insert", 1, (Sequence(start=2_000_000),)),
        statement("others", 1, others),
    )


def draws(drawer: StatementStream, count: int) -> list[Any]:
    return [drawer.draw(k) for k in range(count)]


# --- order and repetition --------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_statements_in_the_same_order():
    place = ClientPosition(worker=1, workers=2, client=3, clients=4, lanes=8)

    assert draws(StatementStream(orders(), place, POOLS), 1_000) == draws(
        StatementStream(orders(), place, POOLS), 1_000
    )
    assert draws(StatementStream(orders(), place, POOLS), 1_000) != draws(
        StatementStream(orders(seed=2), place, POOLS), 1_000
    )


def test_clients_differ_in_statements_and_parameters():
    clients = [place for worker in range(2) for place in places(worker, 2, 5)]

    seen = {json.dumps(draws(StatementStream(orders(), place, POOLS), 50)) for place in clients}

    assert len(seen) == len(clients)


def test_a_draw_does_not_depend_on_the_draws_before_it():
    in_order = draws(StatementStream(orders(), ONLY, POOLS), 20_000)
    drawer = StatementStream(orders(), ONLY, POOLS)

    assert [drawer.draw(k) for k in (19_999, 5, 6_000, 0)] == [in_order[k] for k in (19_999, 5, 6_000, 0)]


def test_statements_occur_in_their_shares_and_all_their_values_are_used():
    drawn = draws(StatementStream(orders(), ONLY, POOLS), 2_000)

    assert Counter(number for number, _ in drawn) == {0: 1_600, 1: 300, 2: 100}
    assert [row[0][1] for number, row in drawn if number == 1] == list(range(5_000, 5_300))
    assert [row[0][0] for number, row in drawn if number == 2] == list(range(1_000_001, 1_000_101))


def test_in_an_open_loop_any_client_draws_the_same_for_an_index():
    by_one = StatementStream(
        orders(), ClientPosition(worker=1, workers=3, client=0, clients=9, lanes=27), POOLS, open_loop=True
    )
    by_another = StatementStream(
        orders(), ClientPosition(worker=1, workers=3, client=8, clients=9, lanes=27), POOLS, open_loop=True
    )

    assert draws(by_one, 500) == draws(by_another, 500)
    assert draws(by_one, 500) != draws(
        StatementStream(orders(), ClientPosition(worker=2, workers=3), POOLS, open_loop=True), 500
    )


def test_threads_that_share_a_drawer_get_the_same_draws_as_one_thread():
    expected = draws(StatementStream(orders(), ONLY, POOLS, open_loop=True), 8_000)
    shared = StatementStream(orders(), ONLY, POOLS, open_loop=True)
    wrong: list[int] = []

    def client(first: int) -> None:
        wrong.extend(i for i in range(first, 8_000, 8) if shared.draw(i) != expected[i])

    threads = [threading.Thread(target=client, args=(first,), name=f"client-{first}") for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not wrong


# --- golden values: changing a stream changes every benchmark that is compared with an older one ---------------------


def test_the_statements_of_a_seed_never_change():
    assert (
        draws(StatementStream(orders(), ClientPosition(worker=1, workers=2, client=1, clients=4, lanes=8), POOLS), 10)
        == CLOSED_LOOP
    )
    assert draws(StatementStream(orders(), ClientPosition(worker=1, workers=2), POOLS, open_loop=True), 5) == OPEN_LOOP


def test_the_values_of_every_generator_never_change():
    drawer = StatementStream(every_kind(), ClientPosition(worker=1, workers=3, client=2, clients=5, lanes=15), POOLS)
    first = dict(reversed(draws(drawer, 8)))
    later = dict(reversed([drawer.draw(k) for k in range(4_000, 4_008)]))

    assert [repr(value) for value in (*first[0][0], *first[1][0], *first[2][0])] == FIRST_VALUES
    assert [repr(value) for value in (*later[0][0], *later[1][0], *later[2][0])] == LATER_VALUES


# --- previous, latest, empty, ending ---------------------------------------------------------------------------------


def test_previous_repeats_a_parameter_of_the_same_transaction():
    transfer = statement(
        "transfer",
        1,
        (Uniform(keys=KEYS), Uuid()),
        (Previous(index=1), Uniform(keys=KEYS)),
        (Previous(index=3), Previous(index=2), Previous(index=0)),
    )

    for _, (first, second, third) in draws(StatementStream(workload(transfer), ONLY, {}), 500):
        assert second[0] == first[1]
        assert third == (second[1], first[1], first[0])


@pytest.mark.parametrize("index", [-1, 1, 2])
def test_previous_cannot_look_ahead(index):
    bad = statement("bad", 1, (Literal(value=1), Previous(index=index)))

    with pytest.raises(ScenarioInvalid, match="statement bad, parameter 1: `previous` names parameter"):
        StatementStream(workload(bad), ONLY, {})


READ_LATEST = (
    statement("read", 3, (Latest(keys=KeyRange(low=1, high=101), follows="insert"),)),
    statement("insert", 1, (Sequence(start=101),)),
)


@pytest.mark.parametrize("open_loop", [False, True])
def test_latest_follows_what_this_lane_has_inserted(open_loop):
    place = ClientPosition(worker=1, workers=2, client=2, clients=3, lanes=6)

    there, hits, expected = list(range(1, 101)), 0, 0.0
    for number, ((key,),) in draws(StatementStream(workload(*READ_LATEST), place, {}, open_loop=open_loop), 8_000):
        if number == 1:
            assert key > there[-1]
            there.append(key)
        else:
            assert key in there
            hits += key in there[-3:]
            expected += sum(rank**-0.99 for rank in (1, 2, 3)) / zipfian(0.99).zeta(np.array([len(there)]))[0]
    assert abs(hits - expected) < 3.3 * math.sqrt(expected), "the newest three keys, of ever more"


@settings(deadline=None, max_examples=20)
@given(
    st.integers(1, 4),
    st.integers(1, 60),
    st.lists(st.integers(1, 60), min_size=1, max_size=6),
    st.sampled_from((1, 50, 101, 102, 5_000)),
)
def test_reads_of_the_latest_keys_hit_what_exists_however_many_lanes_are_open(workers, ceiling, levels, start):
    """As in find_max: most lanes are not open yet, some are closed again, each at a different count."""
    mix = workload(READ_LATEST[0], statement("insert", 1, (Sequence(start=start),)))
    lanes = sorted(
        (place for worker in range(workers) for place in places(worker, workers, ceiling)),
        key=lambda place: lane_of_client(place).number,
    )
    drawers, count = {place: StatementStream(mix, place, {}) for place in lanes}, Counter[ClientPosition]()
    there: set[Any] = set(range(1, 101))
    for level in levels:
        for turn in range(30):
            for number, place in enumerate(lanes[:level]):
                for _ in range(1 + (number + turn) % 3 // 2):  # some lanes are faster
                    statement_number, ((key,),) = drawers[place].draw(count[place])
                    count[place] += 1
                    if statement_number == 1:
                        there.add(key)
                    else:
                        assert key in there, (key, place, level)


@pytest.mark.parametrize(
    ("follows", "message"), [("nobody", "which is no statement"), ("read", "which has no sequence")]
)
def test_latest_must_follow_a_sequence(follows, message):
    mix = workload(statement("read", 1, (Latest(keys=KEYS, follows=follows),)))

    with pytest.raises(ScenarioInvalid, match=message):
        StatementStream(mix, ONLY, {})


def test_statements_may_have_no_parameters():
    mix = workload(statement("ping", 1, ()), statement("both", 1, (), (Literal(value=7),), ()))

    assert draws(StatementStream(mix, ONLY, {}), 4) == [
        (0, ((),)),
        (1, ((), (7,), ())),
        (0, ((),)),
        (1, ((), (7,), ())),
    ]


def test_a_statement_of_weight_zero_is_never_drawn():
    mix = workload(statement("never", 0, (Uuid(),)), statement("always", 1, ()))

    assert {number for number, _ in draws(StatementStream(mix, ONLY, {}), 100)} == {1}


def test_a_sharded_sequence_ends_with_the_keys_of_its_worker():
    mix = workload(statement("insert", 1, (Sequence(sharded=True), Text(length=5))))
    drawer = StatementStream(mix, ClientPosition(worker=0, workers=3), {})

    assert [row[0][0] for _, row in draws(drawer, 100)] == list(range(1, 101))
    with pytest.raises(RunFailed, match="has given all keys"):
        drawer.draw(100)
    with pytest.raises(RunFailed, match="has given all keys"):
        drawer.draw(100_000)


def test_long_texts_do_not_change_other_values():
    beside = [
        [row[0][0] for _, row in draws(StatementStream(workload(statement("s", 1, (Uuid(), text))), ONLY, {}), 600)]
        for text in (Text(length=5), Text(length=3_000))
    ]

    assert beside[0] == beside[1]


def test_a_value_that_cannot_be_drawn_is_named():
    with pytest.raises(ScenarioInvalid, match="workload: the weights add up to a cycle of 1,000,003 statements"):
        StatementStream(workload(statement("one", 1_000_000, ()), statement("two", 3, ())), ONLY, {})
    with pytest.raises(ScenarioInvalid, match="statement point_lookup, parameter 0: there is no value pool 'order_id'"):
        StatementStream(orders(), ONLY, {})
