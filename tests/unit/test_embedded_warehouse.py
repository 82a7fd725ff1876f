"""The warehouse model: slots, and the queue in front of them.

Time jumps to the next timer: hours pass in no time, and nothing depends on how busy the machine is.
"""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.embedded.warehouse import (
    QueuedTooLong,
)
from tests.unit.warehouse_builders import a_warehouse, run, settle


def test_slots_come_from_the_override_or_from_concurrency_times_clusters():
    async def scenario():
        assert a_warehouse().limit == 8
        assert a_warehouse(min_cluster_count=3, max_cluster_count=5).limit == 24
        assert a_warehouse(slots=4, min_cluster_count=3, max_cluster_count=5).limit == 4

    run(scenario)


def test_a_free_slot_is_given_at_once_and_a_released_one_again():
    async def scenario():
        warehouse = a_warehouse(slots=1)
        slot = warehouse.try_admit()
        assert slot is not None
        assert slot.queued_s == 0
        assert (warehouse.running, warehouse.queued) == (1, 0)
        assert warehouse.try_admit() is None

        slot.release()
        slot.release()

        assert warehouse.running == 0
        assert (await warehouse.admit()).queued_s == 0

    run(scenario)


def test_the_queue_is_first_come_first_served_and_its_time_is_counted():
    async def scenario():
        warehouse, order = a_warehouse(slots=1), []
        first = await warehouse.admit()

        async def statement(name):
            slot = await warehouse.admit()
            order.append((name, slot.queued_s))
            await asyncio.sleep(1)
            slot.release()

        tasks = [asyncio.create_task(statement(name)) for name in "abc"]
        await asyncio.sleep(2)
        assert (warehouse.running, warehouse.queued) == (1, 3)
        first.release()
        assert warehouse.try_admit() is None, "nobody overtakes the queue"
        await asyncio.gather(*tasks)
        assert [name for name, _ in order] == ["a", "b", "c"]
        assert [queued_s for _, queued_s in order] == pytest.approx([2, 3, 4])
        assert (warehouse.running, warehouse.queued) == (0, 0)

    run(scenario)


def test_a_statement_that_waits_for_a_lock_gives_its_slot_back_early():
    async def scenario():
        warehouse = a_warehouse(slots=1)
        blocked = await warehouse.admit()
        waiting = asyncio.create_task(warehouse.admit())
        await settle()

        blocked.release()
        await settle()
        assert waiting.done()
        before_s = asyncio.get_running_loop().time()
        await blocked.serve(0.5)
        blocked.release()

        assert asyncio.get_running_loop().time() == pytest.approx(before_s + 0.5)
        assert warehouse.running == 1

    run(scenario)


def test_a_cancelled_statement_leaves_the_queue_at_once():
    async def scenario():
        warehouse = a_warehouse(slots=1)
        await warehouse.admit()
        waiting = [asyncio.create_task(warehouse.admit()) for _ in range(3)]
        await settle()

        waiting[1].cancel()
        await settle()

        assert (warehouse.running, warehouse.queued) == (1, 2)

    run(scenario)


@pytest.mark.parametrize("cancelled_first", [True, False], ids=["before its turn", "at its turn"])
def test_the_slot_of_a_cancelled_statement_goes_to_the_next_one(cancelled_first):
    async def scenario():
        warehouse = a_warehouse(slots=1)
        holder = await warehouse.admit()
        unlucky = asyncio.create_task(warehouse.admit())
        lucky = asyncio.create_task(warehouse.admit())
        await settle()

        for act in (unlucky.cancel, holder.release) if cancelled_first else (holder.release, unlucky.cancel):
            act()
        await settle()

        assert unlucky.cancelled()
        assert lucky.done()
        assert (warehouse.running, warehouse.queued) == (1, 0)

    run(scenario)


STEPS = st.lists(
    st.one_of(
        st.just(("arrive", 0)),
        st.tuples(st.just("arrive until"), st.integers(1, 3)),
        st.tuples(st.just("finish"), st.integers(0, 30)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("resize"), st.integers(1, 5)),
        st.tuples(st.just("pass time"), st.integers(1, 3)),
        st.just(("settle", 0)),
    ),
    max_size=60,
)


@settings(max_examples=100, deadline=None)
@given(steps=STEPS)
def test_slots_never_leak_in_any_order_of_events(steps):
    async def scenario():
        warehouse = a_warehouse(max_concurrency_level=2)
        gates: list[asyncio.Event] = []
        tasks: list[asyncio.Task[None]] = []
        left_queue: list[int] = []
        held: set[int] = set()

        async def statement(index, queued_timeout_s):
            slot = warehouse.try_admit()
            assert slot is None or warehouse.queued == 0, "overtook the queue"
            if slot is None:
                slot = await warehouse.admit(queued_timeout_s)
                left_queue.append(index)
            held.add(index)
            try:
                await gates[index].wait()
            finally:
                held.discard(index)
                slot.release()

        for action, value in steps:
            if action.startswith("arrive"):
                gates.append(asyncio.Event())
                tasks.append(asyncio.create_task(statement(len(gates) - 1, value)))
            elif action == "finish" and gates:
                gates[value % len(gates)].set()
            elif action == "cancel" and tasks:
                tasks[value % len(tasks)].cancel()
            elif action == "resize":
                warehouse.alter(max_concurrency_level=value)
            elif action == "pass time":
                await asyncio.sleep(value)
            elif action == "settle":
                await settle()
                assert warehouse.running == len(held)
                assert warehouse.queued == 0 or warehouse.running >= warehouse.limit, "idle slot, waiting statement"
            assert len(held) <= 5

        warehouse.alter(max_concurrency_level=1)
        for gate in gates:
            gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, None | asyncio.CancelledError | QueuedTooLong) for result in results)
        assert (warehouse.running, warehouse.queued, held) == (0, 0, set())
        assert left_queue == sorted(left_queue), "first come, first served"

    run(scenario)


def test_more_slots_let_waiting_statements_in_and_fewer_hold_new_ones_back():
    async def scenario():
        warehouse = a_warehouse(max_concurrency_level=1)
        tasks = [asyncio.create_task(warehouse.admit()) for _ in range(4)]
        await settle()
        assert (warehouse.running, warehouse.queued) == (1, 3)

        warehouse.alter(max_concurrency_level=3)
        await settle()
        assert (warehouse.running, warehouse.queued) == (3, 1)

        warehouse.alter(max_concurrency_level=1)
        for task in tasks[:2]:
            task.result().release()
        await settle()
        assert (warehouse.running, warehouse.queued) == (1, 1)
        tasks[2].result().release()
        await settle()
        assert (warehouse.running, warehouse.queued) == (1, 0)

    run(scenario)


@pytest.mark.parametrize(("session_s", "warehouse_s", "expected_s"), [(3, 0, 3), (0, 5, 5), (3, 5, 3), (7, 5, 5)])
def test_the_lower_queue_limit_ends_the_wait(session_s, warehouse_s, expected_s):
    async def scenario():
        warehouse = a_warehouse(slots=1, statement_queued_timeout_s=warehouse_s)
        holder = await warehouse.admit()
        began_s = asyncio.get_running_loop().time()

        with pytest.raises(QueuedTooLong) as caught:
            await warehouse.admit(session_s)

        assert caught.value.timeout_s == expected_s
        assert asyncio.get_running_loop().time() == pytest.approx(began_s + expected_s)
        assert warehouse.queued == 0
        holder.release()
        assert warehouse.running == 0

    run(scenario)


def test_a_queue_limit_that_is_not_reached_changes_nothing():
    async def scenario():
        warehouse = a_warehouse(slots=1)
        holder = await warehouse.admit()
        waiting = asyncio.create_task(warehouse.admit(3))
        await asyncio.sleep(2)
        holder.release()
        await asyncio.sleep(10)
        assert waiting.result().queued_s == pytest.approx(2)

    run(scenario)
