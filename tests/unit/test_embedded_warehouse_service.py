"""The warehouse model: the delivered rate is slots ÷ service time; suspending and resuming; settings."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from loadgen.embedded.warehouse import (
    CONTROL_WAREHOUSE,
    VirtualWarehouse,
    VirtualWarehouses,
    WarehouseDropped,
    WarehouseModel,
    WarehouseSettings,
    WarehouseSlot,
    WarehouseSuspended,
    shortest_s,
    size_name,
)
from tests.unit.warehouse_builders import JumpingLoop, LoopSleeper, a_warehouse, run, settle

# --- late timers -----------------------------------------------------------------------------------------------------


def a_late_timer(seed: int, lateness_ms_max: float) -> Callable[[], float]:
    rng = random.Random(seed)
    return lambda: rng.uniform(0, lateness_ms_max / 1000)


async def drive(
    warehouse: VirtualWarehouse,
    *,
    clients: int,
    service_s: float,
    execute_s: float,
    seconds: float,
    think_s: float = 0.001,
) -> tuple[int, list[float]]:
    """Closed-loop clients; returns how many statements ended and how long each took once it had its slot."""
    loop = asyncio.get_running_loop()
    end_s, taken_s = loop.time() + seconds, list[float]()

    async def client():
        while loop.time() < end_s:
            began_s = loop.time()
            slot: WarehouseSlot = warehouse.try_admit() or await warehouse.admit()
            assert warehouse.running <= warehouse.limit
            if execute_s:
                await asyncio.sleep(execute_s)
            await slot.serve(service_s)
            slot.release()
            taken_s.append(loop.time() - began_s - slot.queued_s)
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
            slot = await warehouse.admit()
            await slot.serve(0.020)
            slot.release()

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
        default = WarehouseModel(slots=1)
        warehouses = VirtualWarehouses(monotonic_s=loop.time, now_ms=lambda: 0.0, sleeper=sleeper, default=default)
        second = warehouses.add(WarehouseSettings(name="B"))
        first = warehouses.add(WarehouseSettings(name="A"), suspended=True)
        assert list(warehouses) == [first, second]
        assert (first.state, second.state) == ("SUSPENDED", "STARTED")
        with pytest.raises(ValueError, match="A exists already"):
            warehouses.add(WarehouseSettings(name="A"))

        assert warehouses.get("B") is second
        assert "C" not in warehouses

        await second.admit()
        waiting = asyncio.create_task(second.admit())
        await settle()
        warehouses.drop("B")
        with pytest.raises(WarehouseDropped):
            await waiting
        assert warehouses.get("C") is None

    run(scenario)


def test_the_server_s_options_are_the_model_of_every_warehouse_but_the_control_plane_s():
    async def scenario():
        loop = asyncio.get_running_loop()
        default = WarehouseModel.of(2, "20ms")
        warehouses = VirtualWarehouses(
            monotonic_s=loop.time, now_ms=lambda: 0.0, sleeper=LoopSleeper(loop), default=default, seed=7
        )
        one = warehouses.add(WarehouseSettings(name="A"))
        control = warehouses.add(WarehouseSettings(name=CONTROL_WAREHOUSE))
        assert (one.limit, control.limit, control.service_time) == (2, 8, None)
        assert one.service_time is not None

        warehouses.set_model("A", WarehouseModel.of(0, "lognormal(20ms,0.3)"))
        assert one.limit == 8
        drawn = [one.service_time.sample_s() for _ in range(3)]
        warehouses.set_model("A", WarehouseModel.of(0, "lognormal(20ms,0.3)"))
        assert [one.service_time.sample_s() for _ in range(3)] == drawn, "the same seed, the same times for each run"

        warehouses.set_model("A", None)
        assert one.model == default

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
