"""Who may be recovered, and who may run on a warehouse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadgen.control.find_max_step_history import StepRecord
from loadgen.control.run_leases import Holder
from loadgen.control.run_status import Unfinished
from loadgen.model.run import RunStatus
from loadgen.model.worker import WorkerStatus
from loadgen.snowflake.lookup import find_profile
from orchestrator.crew import Health
from orchestrator.recover import NEVER_LED_S, best_step, obstacle, signs_of_life, silent_crew
from orchestrator.warehouse_lease import KEY_MAX, Warehouse, busy_text
from tests.unit.run_builders import RUN, WORKER

# --- who may be recovered --------------------------------------------------------------------------------------------


def unfinished(lease_over_ms: int | None, beat_age_ms: int | None, update_age_ms: int = 10**9) -> Unfinished:
    return Unfinished(
        run_id="r",
        status=RunStatus.RUNNING,
        lease_over_ms=lease_over_ms,
        beat_age_ms=beat_age_ms,
        update_age_ms=update_age_ms,
    )


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (unfinished(-5_000, 10**9), "it is led"),
        (unfinished(0, 10**9), "it is led"),
        (unfinished(9_000, 10**9), "its leader may still write for 1 s"),
        (unfinished(10_000, 10**9), "its leader may still write"),
        (unfinished(None, None, 599_000), "not led yet"),
    ],
)
def test_a_run_that_somebody_may_still_care_for_is_no_orphan(run, said):
    assert said in (obstacle(run) or "")


@pytest.mark.parametrize(
    "run",
    [
        unfinished(10_001, 60_001),
        unfinished(10_001, None),
        unfinished(None, None, round(NEVER_LED_S * 1000) + 1),
    ],
)
def test_a_run_that_everybody_has_left_is_an_orphan(run):
    assert obstacle(run) is None


@pytest.mark.parametrize(
    ("status", "age_ms", "alive"),
    [
        (WorkerStatus.RUNNING, 60_000, True),
        (WorkerStatus.RUNNING, 60_001, False),
        (WorkerStatus.DRAINING, 0, True),
        (WorkerStatus.COMPLETED, 0, False),
        (WorkerStatus.DEAD, 0, False),
    ],
)
def test_a_worker_lives_until_it_ends_or_is_silent_for_too_long(status, age_ms, alive):
    row = replace(WORKER, beat=replace(WORKER.beat, status=status), age_ms=age_ms)

    assert (signs_of_life([row], 60.0) is not None) == alive


def test_of_a_lost_run_only_workers_that_said_so_are_done():
    done = replace(WORKER, beat=replace(WORKER.beat, status=WorkerStatus.COMPLETED))

    assert [worker.health for worker in silent_crew(RUN, [done])] == [Health.DONE, Health.MISSING]
    assert [worker.health for worker in silent_crew(RUN, [WORKER])] == [Health.DEAD, Health.MISSING]


def step(number: int, target: int, outcome: str) -> StepRecord:
    return StepRecord(
        run_id="r",
        step_number=number,
        target_connections=target,
        window_start_time=None,
        window_end_time=None,
        succeeded=1,
        failed=0,
        qps=1.0,
        p50_latency_ms=1.0,
        p95_latency_ms=1.0,
        p99_latency_ms=1.0,
        error_rate=0.0,
        queue_seen=False,
        outcome=outcome,
        reason="",
    )


@pytest.mark.parametrize(
    ("steps", "best"),
    [
        ([], 1),
        ([step(1, 5, "SLO_FAILED")], 1),
        ([step(1, 5, "STABLE"), step(2, 15, "STABLE"), step(3, 25, "DEGRADED"), step(4, 15, "STABLE")], 4),
        ([step(1, 5, "STABLE"), step(2, 15, "STABLE"), step(3, 10, "STABLE")], 2),
    ],
)
def test_the_numbers_of_a_lost_search_are_those_of_its_best_step(steps, best):
    assert best_step(steps) == best


# --- one run at a time on a warehouse --------------------------------------------------------------------------------


def test_the_key_of_a_warehouse_fits_its_column_and_stays_different():
    short = Warehouse(account="ACME", name="BENCH_WH").key
    long = {Warehouse(account="A" * 60, name="W" * 200 + str(number)).key for number in range(3)}

    assert short == "warehouse:ACME/BENCH_WH"
    assert {len(key) for key in long} == {KEY_MAX}
    assert len(long) == 3


@pytest.mark.parametrize(
    ("named", "name"), [("bench_wh", "BENCH_WH"), ('"bench_wh"', "bench_wh"), (None, "default of loadgen")]
)
def test_a_warehouse_is_known_by_the_name_that_snowflake_knows(named, name):
    environ = {"LOADGEN_EMBEDDED_ADDRESS": "127.0.0.1:1"}
    profile = find_profile("embedded", environ=environ, overrides={"warehouse": named})

    assert Warehouse.of_profile(profile) == Warehouse(account="EMBEDDED", name=name)


def test_whoever_has_the_warehouse_is_named():
    warehouse = Warehouse(account="A", name="W")
    holder = Holder(epoch=3, owner="build-7:4711:abc nightly load", remaining_ms=10_000)

    assert busy_text(warehouse, holder) == (
        "warehouse W is in use by another run: scenario nightly load, process 4711 on build-7"
    )
    gone = busy_text(warehouse, replace(holder, remaining_ms=-4_000))
    assert gone.endswith("process 4711 on build-7; it is free in 6 s")
