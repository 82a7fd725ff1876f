"""Who owns a run and its warehouse: which runs may be recovered, and one run at a time on a warehouse."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from loadgen.control.tables.run_control_events import PastEvent
from loadgen.control.tables.run_leases import LeaseHolder
from loadgen.control.tables.run_status import UnfinishedRun
from loadgen.model.event import Command, Recipient, Start, Stop
from loadgen.model.run import WorkerStatus
from loadgen.results.run_snapshot import WorkerHealth
from loadgen.snowflake.profile_lookup import find_profile
from orchestrator.leadership import NEVER_LED_S, active_worker, why_not_recoverable
from orchestrator.recover import workers_at_last_heartbeat
from orchestrator.run_result import planned_until_s
from orchestrator.warehouse import KEY_MAX, TargetWarehouse, busy_text
from tests.unit.run_builders import RUN, WORKER

# --- who may be recovered --------------------------------------------------------------------------------------------


def unfinished(lease_over_ms: int | None, beat_age_ms: int | None, update_age_ms: int = 10**9) -> UnfinishedRun:
    return UnfinishedRun(
        run_id="r",
        lease_over_ms=lease_over_ms,
        beat_age_ms=beat_age_ms,
        update_age_ms=update_age_ms,
    )


@pytest.mark.parametrize(
    ("run", "said", "free_in_s"),
    [
        (unfinished(-5_000, 10**9), "it is led", None),
        (unfinished(0, 10**9), "its last statements may take 10 s", 10.0),
        (unfinished(9_000, 10**9), "its last statements may take 1 s", 1.0),
        (unfinished(10_000, 10**9), "its last statements may take 0 s", 0.0),
        (unfinished(None, None, 599_000), "has no leader yet", None),
    ],
)
def test_a_run_that_may_still_have_a_leader_is_no_orphan(run, said, free_in_s):
    left = why_not_recoverable(run)

    assert left is not None
    assert (said in left.why, left.free_in_s) == (True, free_in_s)


def test_the_leader_of_a_run_that_is_left_alone_is_named():
    holder = LeaseHolder(epoch=1, owner="build-7:4711:abc", remaining_ms=5_000)

    led, lost = why_not_recoverable(unfinished(-5_000, 0), holder), why_not_recoverable(unfinished(2_000, 0), holder)

    assert led is not None
    assert lost is not None
    assert led.why == "it is led by process 4711 on build-7: its lease expires in 5 s unless it is renewed"
    assert lost.why == "process 4711 on build-7 no longer leads it, and its last statements may take 8 s to end"
    assert why_not_recoverable(unfinished(10_001, 0), holder) is None


@pytest.mark.parametrize(
    "run",
    [
        unfinished(10_001, 60_001),
        unfinished(10_001, None),
        unfinished(None, None, round(NEVER_LED_S * 1000) + 1),
    ],
)
def test_a_run_without_any_living_process_is_an_orphan(run):
    assert why_not_recoverable(run) is None


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

    assert (active_worker([row], 60.0) is not None) == alive


def test_of_a_lost_run_only_workers_that_reported_it_are_completed():
    done = replace(WORKER, beat=replace(WORKER.beat, status=WorkerStatus.COMPLETED))

    assert [worker.health for worker in workers_at_last_heartbeat(RUN, [done])] == [
        WorkerHealth.DONE,
        WorkerHealth.MISSING,
    ]
    assert [worker.health for worker in workers_at_last_heartbeat(RUN, [WORKER])] == [
        WorkerHealth.DEAD,
        WorkerHealth.MISSING,
    ]


# --- one run at a time on a warehouse --------------------------------------------------------------------------------


def test_the_key_of_a_warehouse_fits_its_column_and_stays_different():
    short = TargetWarehouse(account="ACME", name="BENCH_WH").key
    long = {TargetWarehouse(account="A" * 60, name="W" * 200 + str(number)).key for number in range(3)}

    assert short == "warehouse:ACME/BENCH_WH"
    assert {len(key) for key in long} == {KEY_MAX}
    assert len(long) == 3


# --- what was planned of a run that is recovered ---------------------------------------------------------------------


def said(command: Command, second: float) -> PastEvent:
    at = datetime(2026, 11, 15) + timedelta(seconds=second)  # noqa: DTZ001
    return PastEvent(command=command, address=Recipient(), created_at=at)


START = said(Start(expected_workers=1, lead_ms=2_000), 10.0)


@pytest.mark.parametrize(
    ("events", "until_s"),
    [
        ([], 0.0),
        ([START], None),
        ([START, said(Stop(reason="duration", drain_timeout_s=9.0), 72.0)], None),
        ([START, said(Stop(reason="user", drain_timeout_s=9.0), 30.0)], 18.0),
        ([START, said(Stop(reason="user", drain_timeout_s=9.0), 11.0)], 0.0),
    ],
)
def test_the_plan_of_a_recovered_run_ends_at_the_announced_time(events, until_s):
    assert planned_until_s(events) == until_s


@pytest.mark.parametrize(
    ("named", "name"), [("bench_wh", "BENCH_WH"), ('"bench_wh"', "bench_wh"), (None, "default of loadgen")]
)
def test_a_warehouse_is_known_by_the_name_that_snowflake_knows(named, name):
    environ = {"LOADGEN_EMBEDDED_ADDRESS": "127.0.0.1:1"}
    profile = find_profile("embedded", environ=environ, overrides={"warehouse": named})

    assert TargetWarehouse.of_profile(profile) == TargetWarehouse(account="EMBEDDED", name=name)


def test_the_owner_of_the_warehouse_is_named():
    warehouse = TargetWarehouse(account="A", name="W")
    holder = LeaseHolder(epoch=3, owner="build-7:4711:abc nightly load", remaining_ms=10_000)

    assert busy_text(warehouse, holder) == (
        "warehouse W is in use by another run: scenario nightly load, process 4711 on build-7"
    )
    gone = busy_text(warehouse, replace(holder, remaining_ms=-4_000))
    assert gone.endswith("process 4711 on build-7; it is free in 6 s")
