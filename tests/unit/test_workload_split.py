"""One total over many workers: exact, disjoint, covering."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.model.split import share
from loadgen.model.workload import KeyRange, Place
from loadgen.workload.split import (
    lane_of_client,
    lane_of_worker,
    rate_share,
    shard_of,
    shard_range,
    shares,
)

workers = st.integers(1, 200)


@given(st.integers(0, 10**12), workers)
def test_shares_add_up_and_differ_by_at_most_one(total, count):
    parts = [share(total, index, count) for index in range(count)]

    assert sum(parts) == total
    assert max(parts) - min(parts) <= 1
    assert parts == sorted(parts, reverse=True), "the remainder goes to the low ids"
    assert shares(total, count) == tuple(parts)


@given(st.floats(0, 1e9), workers)
def test_rate_shares_add_up_exactly(rate_per_second, count):
    parts = [rate_share(rate_per_second, index, count) for index in range(count)]

    assert sum(parts) == Fraction(rate_per_second)


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


@given(st.integers(1, 20), st.integers(1, 20))
def test_every_client_of_a_run_has_a_lane_of_its_own(worker_count, client_count):
    lanes = [
        lane_of_client(Place(worker=worker, workers=worker_count, client=client, clients=client_count))
        for worker in range(worker_count)
        for client in range(client_count)
    ]

    assert sorted(lane.number for lane in lanes) == list(range(worker_count * client_count))
    assert {lane.count for lane in lanes} == {worker_count * client_count}


def test_in_an_open_loop_the_workers_are_the_lanes():
    lane = lane_of_worker(Place(worker=2, workers=5, client=3, clients=8))

    assert (lane.number, lane.count) == (2, 5)


@pytest.mark.parametrize(("index", "count"), [(-1, 3), (3, 3), (0, 0)])
def test_a_part_that_does_not_exist_is_refused(index, count):
    with pytest.raises(ValueError, match="there is no part"):
        share(10, index, count)


def test_nothing_negative_can_be_split():
    with pytest.raises(ValueError):
        share(-1, 0, 1)
    with pytest.raises(ValueError):
        shard_of(0, 0)
