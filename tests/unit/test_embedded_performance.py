"""The performance model of warehouses: speed, resume, cold cache, scale-out. Time jumps to the next timer."""

from __future__ import annotations

import asyncio
import json
import math

import pytest

from loadgen.cli.embedded import _performance
from loadgen.embedded.performance_model import PerformanceModel, parse_performance_model, read_performance_model
from loadgen.embedded.warehouse import HOUR_MS, WarehouseMeter
from loadgen.errors import UsageError
from tests.unit.warehouse_builders import a_warehouse, run

FULL = {
    "speed": {"X-Small": 1, "Small": 2, "Medium": 4.0},
    "generation": {"1": 1, "2": 1.5},
    "resume": "2s",
    "cold": {"factor": 3, "decay": "10s"},
    "scale_out": "5s",
}


def test_a_model_is_read_from_its_file(tmp_path):
    file = tmp_path / "model.json"
    file.write_text(json.dumps(FULL))

    assert read_performance_model(file) == PerformanceModel(
        speed={"X-Small": 1.0, "Small": 2.0, "Medium": 4.0},
        generation={"1": 1.0, "2": 1.5},
        resume_s=2.0,
        cold_factor=3.0,
        cold_decay_s=10.0,
        scale_out_s=5.0,
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"sped": {}},
            "has the key 'sped'; known are speed, generation, resume, cold, scale_out, credits, generation_credits",
        ),
        ({"speed": {"Tiny": 1}}, "speed has the key 'Tiny'"),
        ({"speed": {"Small": 0}}, "speed.Small is not a number from 0.001 to 1000"),
        ({"speed": {"Small": True}}, "speed.Small is not a number"),
        ({"speed": [1]}, "speed is not a JSON object"),
        ({"generation": {"3": 1}}, "generation has the key '3'"),
        ({"resume": 2}, "resume is not a time up to an hour"),
        ({"resume": "2 days"}, "resume is not a time up to an hour"),
        ({"cold": {"factor": "hot"}}, "cold.factor is not a number"),
        ({"cold": {"depth": 1}}, "cold is not like"),
    ],
)
def test_errors_in_a_model_are_reported(change, told):
    with pytest.raises(ValueError, match=told.replace("(", r"\(")):
        parse_performance_model({**FULL, **change})


@pytest.mark.parametrize(
    ("content", "told"), [("{", "is not JSON"), ("[]", "is not a JSON object"), (None, "cannot be")]
)
def test_a_file_that_is_no_model_is_an_error_of_the_option(tmp_path, content, told):
    file = tmp_path / "model.json"
    if content is not None:
        file.write_text(content)

    with pytest.raises(UsageError, match=f"--model .*model.json.*{told}") as error:
        _performance(file)
    assert error.value.remedy == "docs/embedded.md describes the file."


def test_without_a_model_all_warehouses_are_equally_fast():
    assert PerformanceModel().time_factor("6X-Large", "2", 0.0) == 1.0


def test_speed_is_by_size_and_generation_and_a_cold_cache_warms_up():
    model = parse_performance_model(FULL)

    assert model.time_factor("X-Small", "1", math.inf) == 1.0
    assert model.time_factor("Medium", "2", math.inf) == pytest.approx(1 / 6)
    assert model.time_factor("Large", "1", math.inf) == 1.0  # not named
    assert model.time_factor("X-Small", "1", 0.0) == 3.0
    assert model.time_factor("X-Small", "1", 10.0) == pytest.approx(1 + 2 / math.e)
    assert model.time_factor("Small", "1", 0.0) == 1.5


def test_statements_take_the_time_of_their_warehouse():
    async def scenario():
        model = parse_performance_model(FULL)
        warehouse = a_warehouse(performance=model, service_time="100ms", generation="1")
        assert warehouse.service_s() == pytest.approx(0.1)
        warehouse.alter(size="Small")
        assert warehouse.service_s() == pytest.approx(0.15)  # cold
        await asyncio.sleep(1_000)
        assert warehouse.service_s() == pytest.approx(0.05)
        warehouse.alter(max_concurrency_level=4)
        assert warehouse.service_s() == pytest.approx(0.05)  # no other nodes: the cache stays

    run(scenario)


def test_a_suspended_warehouse_serves_after_it_has_resumed():
    async def scenario():
        loop = asyncio.get_running_loop()
        warehouse = a_warehouse(performance=parse_performance_model(FULL), suspended=True, service_time="100ms")
        begun = loop.time()
        slots_held = await asyncio.gather(warehouse.admit(), warehouse.admit())

        assert loop.time() - begun == pytest.approx(2.0)
        assert [slot.queued_s for slot in slots_held] == [pytest.approx(2.0)] * 2
        assert (warehouse.state, warehouse.running) == ("STARTED", 2)
        assert warehouse.try_admit() is not None

    run(scenario)


def test_a_queue_starts_further_clusters_one_at_a_time():
    async def scenario():
        model = parse_performance_model(FULL)
        warehouse = a_warehouse(performance=model, max_concurrency_level=1, max_cluster_count=3)
        first = await warehouse.admit()
        waiting = [asyncio.create_task(warehouse.admit()) for _ in range(3)]
        await asyncio.sleep(4.9)
        assert (warehouse.started_clusters, warehouse.queued) == (1, 3)
        await asyncio.sleep(0.2)
        assert (warehouse.started_clusters, warehouse.queued) == (2, 2)
        await asyncio.sleep(5)
        assert (warehouse.started_clusters, warehouse.queued) == (3, 1)
        await asyncio.sleep(50)
        assert (warehouse.started_clusters, warehouse.queued) == (3, 1)  # the most it may have
        first.release()
        for slot in await asyncio.gather(*waiting):
            slot.release()
        warehouse.alter(max_cluster_count=2)
        assert warehouse.started_clusters == 2

    run(scenario)


def test_without_scale_out_in_the_model_the_minimum_of_clusters_runs():
    async def scenario():
        warehouse = a_warehouse(max_concurrency_level=1, max_cluster_count=3)
        await warehouse.admit()
        waiting = asyncio.create_task(warehouse.admit())
        await asyncio.sleep(1_000)
        assert (warehouse.started_clusters, warehouse.queued) == (1, 1)
        waiting.cancel()

    run(scenario)


# --- metering --------------------------------------------------------------------------------------------------------

MINUTE_MS = 60_000.0


def total(meter: WarehouseMeter, now_ms: float) -> float:
    return sum(credits for _, credits in meter.hours(0.0, now_ms + HOUR_MS, now_ms))


def test_credits_are_rate_by_time_in_each_hour():
    meter = WarehouseMeter(0.0)
    meter.change(0.5 * HOUR_MS, 2.0)
    meter.change(1.25 * HOUR_MS, 4.0)
    meter.change(2.0 * HOUR_MS, 0.0)

    (first, first_credits), (second, second_credits) = meter.hours(0.0, 9 * HOUR_MS, 5 * HOUR_MS)
    assert (first, second) == (0.0, HOUR_MS)
    assert first_credits == pytest.approx(1.0)
    assert second_credits == pytest.approx(0.25 * 2 + 0.75 * 4)
    assert [hour for hour, _ in meter.hours(HOUR_MS, 9 * HOUR_MS, 5 * HOUR_MS)] == [HOUR_MS]


def test_each_start_is_billed_for_at_least_a_minute():
    meter = WarehouseMeter(0.0)
    meter.change(0.0, 60.0)  # a credit a minute
    meter.change(10_000.0, 0.0)
    meter.change(20_000.0, 60.0)
    meter.change(30_000.0, 0.0)
    assert total(meter, 40_000.0) == pytest.approx(2.0)
    meter.change(1_000_000.0, 60.0)
    meter.change(1_000_000.0 + 2 * MINUTE_MS, 120.0)  # a further cluster
    meter.change(1_000_000.0 + 2.5 * MINUTE_MS, 60.0)
    assert total(meter, 1_000_000.0 + 2.5 * MINUTE_MS) == pytest.approx(2.0 + 2.5 + 0.5 + 0.5)


def test_a_warehouse_is_metered_while_it_runs():
    async def scenario():
        model = parse_performance_model({"credits": {"Small": 3}, "generation_credits": {"2": 2}})
        warehouse = a_warehouse(performance=model, generation="1", auto_suspend_s=600)

        def spent() -> float:
            return sum(credits for _, credits in warehouse.credits_by_hour(0.0, math.inf)) * 3600

        await asyncio.sleep(100)
        assert spent() == pytest.approx(100)
        warehouse.alter(size="Small", generation="2")
        await asyncio.sleep(100)
        assert spent() == pytest.approx(100 + 100 * 6)
        await asyncio.sleep(10_000)  # it suspends itself after ten minutes
        assert warehouse.state == "SUSPENDED"
        assert spent() == pytest.approx(100 + 500 * 6)
        warehouse.resume()
        warehouse.suspend()
        assert spent() == pytest.approx(100 + 500 * 6 + 60 * 6)

    run(scenario)
