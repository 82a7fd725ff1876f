"""Who owns a run and its warehouse: which runs may be recovered, and one run at a time on a warehouse."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from loadgen.control import run_leases
from loadgen.control.run_control_events import PastEvent
from loadgen.control.run_leases import Holder
from loadgen.control.run_status import Unfinished
from loadgen.model.event import Address, Command, Start, Stop
from loadgen.model.run import RunStatus
from loadgen.model.worker import WorkerStatus
from loadgen.snowflake.lookup import find_profile
from orchestrator.crew import Health
from orchestrator.recover import NEVER_LED_S, obstacle, planned_until_s, signs_of_life, silent_crew
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


def test_what_is_said_of_a_lease_that_lasts_is_known():
    here = Holder(epoch=1, owner=run_leases.new_owner(), remaining_ms=5_000)
    name, _, token = here.owner.rpartition(":")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    gone = replace(here, owner=f"{name.rpartition(':')[0]}:{ended.pid}:{token}")
    elsewhere = replace(gone, owner=f"{gone.owner.rpartition(':')[0]}:{'0' * 20}")

    assert obstacle(unfinished(-5_000, 0), here) == (
        f"it is led by {run_leases.process_of(here.owner)}: its lease lasts 5 s more, and longer when it is renewed"
    )
    assert obstacle(unfinished(-5_000, 0), gone) == (
        f"{run_leases.process_of(gone.owner)}, which led it, is gone: it can be recovered in 15 s"
    )
    assert f"it is led by process {ended.pid} on " in (obstacle(unfinished(-5_000, 0), elsewhere) or "")
    assert obstacle(unfinished(10_001, 0), gone) is None


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


# --- one run at a time on a warehouse --------------------------------------------------------------------------------


def test_the_key_of_a_warehouse_fits_its_column_and_stays_different():
    short = Warehouse(account="ACME", name="BENCH_WH").key
    long = {Warehouse(account="A" * 60, name="W" * 200 + str(number)).key for number in range(3)}

    assert short == "warehouse:ACME/BENCH_WH"
    assert {len(key) for key in long} == {KEY_MAX}
    assert len(long) == 3


# --- what was planned of a run that is recovered ---------------------------------------------------------------------


def said(command: Command, second: float) -> PastEvent:
    at = datetime(2026, 11, 15) + timedelta(seconds=second)  # noqa: DTZ001
    return PastEvent(command=command, address=Address(), created_at=at)


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
def test_the_plan_of_a_run_that_is_recovered_ends_where_its_leader_said_so(events, until_s):
    assert planned_until_s(events) == until_s


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
