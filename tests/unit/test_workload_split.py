"""One total over many workers: exact, disjoint, covering."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.model.run import worker_share
from loadgen.model.workload import ClientPosition, KeyRange
from loadgen.workload.draw_context import (
    check_place,
    check_worker,
    lane_of_client,
    lane_of_worker,
    shard_of,
    shard_range,
)
from tests.unit.generator_builders import places

workers = st.integers(1, 200)


@given(st.integers(0, 10**12), workers)
def test_shares_add_up_and_differ_by_at_most_one(total, count):
    parts = [worker_share(total, index, count) for index in range(count)]

    assert sum(parts) == total
    assert max(parts) - min(parts) <= 1
    assert parts == sorted(parts, reverse=True), "the remainder goes to the low ids"


@given(st.integers(-(10**12), 10**12), st.integers(0, 10**9), workers)
def test_shard_ranges_are_disjoint_in_order_and_cover_all_keys(low, size, count):
    keys = KeyRange(low=low, high=low + size)

    parts = [shard_range(keys, worker, count) for worker in range(count)]

    assert parts[0].low == keys.low
    assert parts[-1].high == keys.high
    assert all(one.high == following.low for one, following in pairwise(parts))
    assert {part.size for part in parts[:-1]} <= {size // count}


def test_the_keys_of_three_workers_are_disjoint_and_cover_the_range():
    parts = [shard_range(KeyRange(low=1, high=1_000_001), worker, 3) for worker in range(3)]

    assert [(part.low, part.high) for part in parts] == [(1, 333_334), (333_334, 666_667), (666_667, 1_000_001)]


def test_more_workers_than_keys_leave_all_to_the_last():
    parts = [shard_range(KeyRange(low=0, high=2), worker, 3).size for worker in range(3)]

    assert parts == [0, 0, 2]


def test_the_shard_of_a_worker_wraps_around_the_partitions():
    assert [shard_of(worker, 3) for worker in range(7)] == [0, 1, 2, 0, 1, 2, 0]


# --- lanes -----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 300), st.integers(1, 40))
def test_every_client_of_a_run_has_a_separate_lane(total, count):
    lanes = [lane_of_client(place) for worker in range(count) for place in places(worker, count, total)]

    assert sorted(lane.number for lane in lanes) == list(range(total))
    assert {lane.count for lane in lanes} == {total}


@given(st.integers(1, 300), st.integers(0, 300), st.integers(1, 40))
def test_what_is_open_below_the_ceiling_are_the_first_lanes(total, target, count):
    target = min(target, total)

    opened = [
        lane_of_client(place).number
        for worker in range(count)
        for place in places(worker, count, total)[: worker_share(target, worker, count)]
    ]

    assert sorted(opened) == list(range(target))


@given(st.integers(1, 300), st.integers(1, 40))
def test_a_place_is_one_that_the_split_makes_and_no_other(total, count):
    for worker in range(count):
        own = places(worker, count, total)
        for place in own:
            check_place(place)
        for wrong in ({"clients": len(own) + 1}, {"client": len(own)}, {"client": -1}, {"lanes": total + count}):
            odd = {"worker": worker, "workers": count, "clients": len(own), "lanes": total, **wrong}
            with pytest.raises(ValueError):
                check_place(ClientPosition(**odd))


def test_a_worker_without_lanes_has_no_place_but_is_a_lane_of_an_open_loop():
    assert [len(places(worker, 3, 2)) for worker in range(3)] == [1, 1, 0]
    with pytest.raises(ValueError, match="worker 2 of 3 has 0 of 2 lanes, not 1"):
        check_place(ClientPosition(worker=2, workers=3, lanes=2))
    with pytest.raises(ValueError, match="there is no client 0 of 0"):
        check_place(ClientPosition(worker=2, workers=3, clients=0, lanes=2))

    check_worker(2, 3)
    assert lane_of_worker(ClientPosition(worker=2, workers=3)).number == 2


@pytest.mark.parametrize(("worker", "count"), [(-1, 3), (3, 3), (0, 0)])
def test_a_worker_that_does_not_exist_is_refused(worker, count):
    with pytest.raises(ValueError, match="there is no worker"):
        check_worker(worker, count)
    with pytest.raises(ValueError, match="there is no worker"):
        check_place(ClientPosition(worker=worker, workers=count))


def test_in_an_open_loop_the_workers_are_the_lanes():
    lane = lane_of_worker(ClientPosition(worker=2, workers=5, client=3, clients=8, lanes=40))

    assert (lane.number, lane.count) == (2, 5)


@pytest.mark.parametrize(("index", "count"), [(-1, 3), (3, 3), (0, 0)])
def test_a_part_that_does_not_exist_is_refused(index, count):
    with pytest.raises(ValueError, match="there is no part"):
        worker_share(10, index, count)


def test_nothing_negative_can_be_split():
    with pytest.raises(ValueError):
        worker_share(-1, 0, 1)
    with pytest.raises(ValueError):
        shard_of(0, 0)
