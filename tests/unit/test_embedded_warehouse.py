"""The warehouse model: slots, the queue in front of them, and that the delivered rate is slots ÷ service time.

Time is the event loop's and jumps: nothing here waits, and timers fire as late as a test wants.
"""

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.embedded.warehouse import (
    QueuedTooLong,
    Ticket,
    Warehouse,
    WarehouseDropped,
    Warehouses,
    WarehouseSettings,
    WarehouseSuspended,
    shortest_s,
    size_name,
)


class JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting for the next timer it moves the clock there, and beyond by as much as the test says."""

    def __init__(self, lateness_s: Callable[[], float]) -> None:
        super().__init__()
        self.now_s = 1000.0
        self._lateness_s = lateness_s

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "everyone waits for ever"
        if timeout > 0:
            self.now_s += timeout + self._lateness_s()
        return super().select(0)


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self, lateness_s: Callable[[], float] = lambda: 0.0) -> None:
        self.jumping = JumpingSelector(lateness_s)
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now_s


class LoopSleeper:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def sleep_until(self, deadline_s: float) -> asyncio.Future[None]:
        sleeper = self._loop.create_future()
        self._loop.call_at(deadline_s, self._wake, sleeper)
        return sleeper

    def _wake(self, sleeper: asyncio.Future[None]) -> None:
        if not sleeper.done():
            sleeper.set_result(None)


def run(scenario: Callable[[], Coroutine[Any, Any, Any]], lateness_s: Callable[[], float] = lambda: 0.0) -> Any:
    loop = JumpingLoop(lateness_s)
    try:
        return loop.run_until_complete(scenario())
    finally:
        loop.close()


def a_warehouse(*, slots: int = 0, suspended: bool = False, **changes: Any) -> Warehouse:
    loop = asyncio.get_running_loop()
    return Warehouse(
        WarehouseSettings(**{"name": "WH", **changes}),
        monotonic_s=loop.time,
        now_ms=lambda: loop.time() * 1000,
        sleeper=LoopSleeper(loop),
        slots=slots,
        suspended=suspended,
    )


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


# --- slots and their queue -------------------------------------------------------------------------------------------


def test_slots_come_from_the_override_or_from_concurrency_times_clusters():
    async def scenario():
        assert a_warehouse().limit == 8
        assert a_warehouse(min_cluster_count=3, max_cluster_count=5).limit == 24
        assert a_warehouse(slots=4, min_cluster_count=3, max_cluster_count=5).limit == 4

    run(scenario)


def test_a_free_slot_is_given_at_once_and_a_released_one_again():
    async def scenario():
        warehouse = a_warehouse(slots=1)
        ticket = warehouse.try_admit()
        assert ticket is not None
        assert ticket.queued_s == 0
        assert (warehouse.running, warehouse.queued) == (1, 0)
        assert warehouse.try_admit() is None

        ticket.release()
        ticket.release()

        assert warehouse.running == 0
        assert (await warehouse.admit()).queued_s == 0

    run(scenario)


def test_the_queue_is_first_come_first_served_and_its_time_is_counted():
    async def scenario():
        warehouse, order = a_warehouse(slots=1), []
        first = await warehouse.admit()

        async def statement(name):
            ticket = await warehouse.admit()
            order.append((name, ticket.queued_s))
            await asyncio.sleep(1)
            ticket.release()

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


def test_a_statement_cancelled_in_the_moment_of_its_turn_passes_the_slot_on():
    async def scenario():
        warehouse = a_warehouse(slots=1)
        holder = await warehouse.admit()
        unlucky = asyncio.create_task(warehouse.admit())
        lucky = asyncio.create_task(warehouse.admit())
        await settle()

        holder.release()
        unlucky.cancel()
        await settle()

        assert unlucky.cancelled()
        assert lucky.done()
        assert (warehouse.running, warehouse.queued) == (1, 0)

    run(scenario)


def test_a_statement_cancelled_just_before_its_turn_is_skipped():
    async def scenario():
        warehouse = a_warehouse(slots=1)
        holder = await warehouse.admit()
        unlucky = asyncio.create_task(warehouse.admit())
        lucky = asyncio.create_task(warehouse.admit())
        await settle()

        unlucky.cancel()
        holder.release()
        await settle()

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


@settings(max_examples=300, deadline=None)
@given(steps=STEPS)
def test_slots_never_leak_whatever_happens(steps):
    async def scenario():
        warehouse = a_warehouse(max_concurrency_level=2)
        gates: list[asyncio.Event] = []
        tasks: list[asyncio.Task[None]] = []
        left_queue: list[int] = []
        held: set[int] = set()

        async def statement(index, queued_timeout_s):
            ticket = warehouse.try_admit()
            assert ticket is None or warehouse.queued == 0, "overtook the queue"
            if ticket is None:
                ticket = await warehouse.admit(queued_timeout_s)
                left_queue.append(index)
            held.add(index)
            try:
                await gates[index].wait()
            finally:
                held.discard(index)
                ticket.release()

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


# --- late timers -----------------------------------------------------------------------------------------------------


def a_late_timer(seed: int, lateness_ms_max: float) -> Callable[[], float]:
    rng = random.Random(seed)
    return lambda: rng.uniform(0, lateness_ms_max / 1000)


async def drive(
    warehouse: Warehouse, *, clients: int, service_s: float, execute_s: float, seconds: float, think_s: float = 0.001
) -> tuple[int, list[float]]:
    """Closed-loop clients; returns how many statements ended and how long each took once it had its slot."""
    loop = asyncio.get_running_loop()
    end_s, taken_s = loop.time() + seconds, list[float]()

    async def client():
        while loop.time() < end_s:
            began_s = loop.time()
            ticket: Ticket = warehouse.try_admit() or await warehouse.admit()
            assert warehouse.running <= warehouse.limit
            if execute_s:
                await asyncio.sleep(execute_s)
            await ticket.serve(service_s)
            ticket.release()
            taken_s.append(loop.time() - began_s - ticket.queued_s)
            await asyncio.sleep(think_s)

    await asyncio.gather(*(client() for _ in range(clients)))
    return len(taken_s), taken_s


@pytest.mark.parametrize("service_ms", [2, 5, 20])
def test_late_timers_do_not_lower_the_rate_of_a_busy_warehouse(service_ms):
    async def scenario():
        return await drive(a_warehouse(slots=4), clients=16, service_s=service_ms / 1000, execute_s=0, seconds=20)

    count, taken_s = run(scenario, a_late_timer(1, lateness_ms_max=1.2))
    assert count / 20 == pytest.approx(4 / (service_ms / 1000), rel=0.01)
    assert min(taken_s) >= service_ms / 1000 - 1e-9, "no statement is faster than its service time"


def test_a_slot_that_came_free_before_the_statement_arrived_is_granted_as_of_its_arrival():
    async def scenario():
        warehouse = a_warehouse(slots=1)

        async def first():
            ticket = await warehouse.admit()
            await ticket.serve(0.020)
            ticket.release()

        async def second():
            await asyncio.sleep(0.0195)
            return (await warehouse.admit()).queued_s

        return (await asyncio.gather(first(), second()))[1]

    assert run(scenario, lambda: 0.001) == 0.0


def test_the_service_time_is_added_to_the_execution():
    async def scenario():
        return await drive(a_warehouse(slots=2), clients=8, service_s=0.010, execute_s=0.005, seconds=20)

    count, taken_s = run(scenario)
    assert count / 20 == pytest.approx(2 / 0.015, rel=0.01)
    assert min(taken_s) == pytest.approx(0.015)


def test_a_long_stall_is_not_made_good_beyond_one_service_time_per_slot():
    async def scenario():
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
        warehouse = a_warehouse(slots=4)
        working = asyncio.create_task(
            drive(warehouse, clients=16, service_s=0.020, execute_s=0, seconds=11, think_s=0.0)
        )
        await asyncio.sleep(5)
        loop.jumping.now_s += 5
        count, _ = await working
        return count

    count = run(scenario)
    in_six_seconds, per_client = 6 * 200, 16
    assert count <= in_six_seconds + 4 + 4 + per_client


def test_without_a_queue_nothing_is_carried_over():
    async def scenario():
        return await drive(a_warehouse(slots=4), clients=4, service_s=0.020, execute_s=0, seconds=5)

    _, taken_s = run(scenario, a_late_timer(2, lateness_ms_max=1.0))
    assert min(taken_s) >= 0.020 - 1e-9


# --- suspended and resumed -------------------------------------------------------------------------------------------


def test_an_idle_warehouse_suspends_itself_and_the_next_statement_resumes_it():
    async def scenario():
        warehouse = a_warehouse(auto_suspend_s=60)
        first = await warehouse.admit()
        await asyncio.sleep(100)
        assert warehouse.state == "STARTED", "a statement runs"
        first.release()
        await asyncio.sleep(59)
        assert (warehouse.state, warehouse.started_clusters) == ("STARTED", 1)
        await asyncio.sleep(2)
        assert (warehouse.state, warehouse.started_clusters) == ("SUSPENDED", 0)

        await warehouse.admit()

        assert warehouse.state == "STARTED"
        assert warehouse.resumed_on_ms == asyncio.get_running_loop().time() * 1000

    run(scenario)


def test_a_suspended_warehouse_without_auto_resume_refuses_statements_until_it_is_resumed():
    async def scenario():
        warehouse = a_warehouse(auto_resume=False, suspended=True)
        with pytest.raises(WarehouseSuspended):
            warehouse.try_admit()
        with pytest.raises(WarehouseSuspended):
            await warehouse.admit()

        warehouse.resume()

        assert warehouse.try_admit() is not None

    run(scenario)


def test_a_warehouse_suspended_under_load_serves_whom_it_had_accepted():
    async def scenario():
        warehouse = a_warehouse(slots=1, auto_resume=False)
        holder = await warehouse.admit()
        waiting = asyncio.create_task(warehouse.admit())
        await settle()

        warehouse.suspend()
        with pytest.raises(WarehouseSuspended):
            await warehouse.admit()
        holder.release()
        await settle()

        assert waiting.done()
        assert warehouse.running == 1

    run(scenario)


def test_a_warehouse_suspended_under_load_is_resumed_by_the_next_statement():
    async def scenario():
        warehouse = a_warehouse(slots=2)
        await warehouse.admit()
        warehouse.suspend()
        assert warehouse.state == "SUSPENDED"

        await warehouse.admit()

        assert warehouse.state == "STARTED"
        warehouse.suspend()
        warehouse.alter(auto_resume=False)
        with pytest.raises(WarehouseSuspended):
            await warehouse.admit()

    run(scenario)


# --- settings --------------------------------------------------------------------------------------------------------


def test_a_bad_change_raises_and_changes_nothing():
    async def scenario():
        warehouse = a_warehouse()
        before = warehouse.settings
        for change in (
            {"max_concurrency_level": 0},
            {"min_cluster_count": 2},
            {"size": "HUGE"},
            {"auto_suspend_s": -1},
        ):
            with pytest.raises(ValueError):
                warehouse.alter(**change)
        assert warehouse.settings is before
        assert warehouse.limit == 8

    run(scenario)


def test_warehouses_are_kept_by_name():
    async def scenario():
        loop = asyncio.get_running_loop()
        sleeper = LoopSleeper(loop)
        warehouses = Warehouses(monotonic_s=loop.time, now_ms=lambda: 0.0, sleeper=sleeper, slots=1)
        second = warehouses.add(WarehouseSettings(name="B"))
        first = warehouses.add(WarehouseSettings(name="A"), suspended=True)
        assert list(warehouses) == [first, second]
        assert (first.state, second.state) == ("SUSPENDED", "STARTED")
        with pytest.raises(ValueError, match="A exists already"):
            warehouses.add(WarehouseSettings(name="A"))

        warehouses.rename("B", "C")
        assert warehouses.get("C") is second
        assert "B" not in warehouses
        assert second.settings.name == "C"

        await second.admit()
        waiting = asyncio.create_task(second.admit())
        await settle()
        warehouses.drop("C")
        with pytest.raises(WarehouseDropped):
            await waiting
        assert warehouses.get("C") is None

    run(scenario)


@pytest.mark.parametrize(
    ("text", "size"),
    [("XSMALL", "X-Small"), ("'x-small'".strip("'"), "X-Small"), ("XXLARGE", "2X-Large"), ("X4LARGE", "4X-Large")],
)
def test_sizes_are_written_as_snowflake_shows_them(text, size):
    assert size_name(text) == size


def test_an_unknown_size_is_refused():
    with pytest.raises(ValueError, match="GIANT"):
        size_name("GIANT")


def test_zero_is_no_limit():
    assert shortest_s(0, 0) == 0
    assert shortest_s(0, 30, 5) == 5
