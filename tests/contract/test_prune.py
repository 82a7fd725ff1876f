"""Deleting old runs, and statements with a separate time limit because they take long. Both majors of the connector."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from loadgen.control.session import ControlFailed, ControlSession, NamedQuery
from loadgen.control.tables import experiments, prune, test_logs
from loadgen.control.tables.experiments import ChangedWarehouse
from loadgen.control.tables.run_status import read
from loadgen.snowflake.session import NOT_RETRYABLE, RetryPolicy
from orchestrator.recover import leaderless_run_on, recover_orphans
from tests.contract.control_builders import log_row
from tests.contract.run_builders import Led, S
from tests.contract.test_experiments import CONFIG, measurement
from tests.control_plane import ControlPlane, retries
from tests.fake_clock import FakeClock
from tests.unit.test_experiment_metering import METERING

pytestmark = pytest.mark.any_driver


class InterruptedSession(ControlSession):
    """Its second part of runs is not deleted from RUN_STATUS."""

    parts = 0

    def execute(self, query: NamedQuery, *binds: Any) -> int:
        if query.name == "prune.run_status":
            self.parts += 1
            if self.parts == 2:
                raise ControlFailed("interrupted", NOT_RETRYABLE)
        return super().execute(query, *binds)


class BrokenSession(ControlSession):
    """One statement fails."""

    at = ""

    def execute(self, query: NamedQuery, *binds: Any) -> int:
        if query.name == self.at:
            raise ControlFailed("interrupted", NOT_RETRYABLE)
        return super().execute(query, *binds)


def test_only_runs_that_ended_long_enough_ago_are_deleted_and_all_of_them(plane, led):
    ended, living = led(S.COMPLETED), led(S.RUNNING)
    session = plane.session
    test_logs.append(session, retries(), [log_row(ended.run_id), log_row(living.run_id)])

    assert prune.find_old(session, retries(), 3_600.0).runs == ()
    found = prune.find_old(session, retries(), -60.0)
    assert ended.run_id in {run.id for run in found.runs}
    assert living.run_id not in {run.id for run in found.runs}
    deleted = prune.delete(session, retries(), found)

    assert deleted["RUN_STATUS"] >= 1
    assert deleted["TEST_LOGS"] == 1
    assert deleted["RUN_LEASES"] >= 1
    assert read(session, ended.run_id) is None
    assert read(session, living.run_id) is not None
    assert len(test_logs.newest(session, living.run_id, 10)) == 1
    assert prune.delete(session, retries(), found) == {}


def made_old(plane: ControlPlane, run: Led, hours: int) -> None:
    plane.change("UPDATE RUN_STATUS SET END_TIME = DATEADD(hour, ?, SYSDATE()) WHERE RUN_ID = ?", -hours, run.run_id)


def remaining(plane: ControlPlane, runs: Sequence[Led]) -> list[bool]:
    return [read(plane.session, run.run_id) is not None for run in runs]


def test_runs_are_deleted_in_parts_the_oldest_first_and_a_repetition_goes_on_from_there(plane, led):
    runs = [led(S.COMPLETED) for _ in range(5)]
    for number, run in enumerate(runs):
        made_old(plane, run, 100 - number)
    found = prune.find_old(plane.session, retries(), 48 * 3600.0)
    interrupted = InterruptedSession(plane.place, role="prune", environ=plane.environ)

    with pytest.raises(ControlFailed):
        prune.delete(interrupted, retries(), found, part_runs=2)
    interrupted.close()
    after_failure = remaining(plane, runs)
    again = prune.find_old(plane.session, retries(), 48 * 3600.0)
    prune.delete(plane.session, retries(), again, part_runs=2)

    assert [run.id for run in found.runs] == [run.run_id for run in runs]
    assert after_failure == [False, False, True, True, True]
    assert len(again.runs) == 3
    assert remaining(plane, runs) == [False] * 5


def test_a_part_that_takes_too_long_is_made_smaller_and_not_repeated_as_it_is(plane, led):
    runs = [led(S.COMPLETED) for _ in range(4)]
    for number, run in enumerate(runs):
        made_old(plane, run, 100 - number)
    found, clock = prune.find_old(plane.session, retries(), 48 * 3600.0), FakeClock()
    plane.server.fault(match="^DELETE FROM QUERY_EXECUTIONS", kind="error", errno=630, sqlstate="57014", count=2)

    deleted = prune.delete(plane.session, retries(clock=clock), found, part_runs=4)
    plane.server.fault(match="^DELETE FROM QUERY_EXECUTIONS", kind="error", errno=630, sqlstate="57014")
    last = led(S.COMPLETED)
    made_old(plane, last, 100)
    with pytest.raises(ControlFailed, match=r"prune\.query_executions"):  # one run, and still too much
        prune.delete(plane.session, retries(), prune.find_old(plane.session, retries(), 48 * 3600.0))
    plane.server.clear_faults()

    assert deleted["RUN_STATUS"] == 4
    assert remaining(plane, runs) == [False] * 4
    assert clock.monotonic_ns() == FakeClock().monotonic_ns()  # it did not wait between


def test_of_the_leases_of_a_warehouse_the_newest_stays(plane):
    key, other = f"warehouse:A/{uuid.uuid4()}", f"warehouse:A/{uuid.uuid4()}"
    for one, number in ((key, 3), (other, 1)):
        for _ in range(number):
            plane.claim(one)
            plane.expire(one, since_s=100 * 3600.0)
    living = plane.new_run()
    plane.claim(living)
    plane.expire(living, since_s=100 * 3600.0)

    prune.delete(plane.session, retries(), prune.find_old(plane.session, retries(), 48 * 3600.0))

    assert [epoch for epoch, _, _ in plane.leases(key)] == [3]
    assert [epoch for epoch, _, _ in plane.leases(other)] == [1]
    assert [epoch for epoch, _, _ in plane.leases(living)] == [1]
    assert plane.claim(key).epoch == 4


@pytest.mark.parametrize(("role", "limit_s"), [("orchestrator", 8), ("prune", 300), ("enrich", 300)])
def test_statements_that_take_long_have_a_separate_time_limit(plane, role, limit_s):
    session = plane.open(role)

    (row,) = session.named_rows("SHOW PARAMETERS LIKE 'STATEMENT_TIMEOUT_IN_SECONDS' IN SESSION")

    assert int(row["value"]) == limit_s


def test_a_slow_search_for_unfinished_runs_does_not_delay_a_run(plane):
    plane.server.fault(match="FROM RUN_STATUS S LEFT JOIN RUN_LEASES", kind="error", errno=630, sqlstate="57014")
    clock = FakeClock()
    waiting = RetryPolicy(stop=threading.Event(), clock=clock)

    again = recover_orphans(plane.session, waiting, by="me", show=print)
    working = leaderless_run_on(plane.session, waiting, lambda _: True)
    plane.server.clear_faults()

    assert (again, working) == (False, None)
    assert clock.monotonic_ns() == FakeClock().monotonic_ns()


class OldExperiment:
    """One that ended a hundred hours ago, with a row in each of its tables."""

    def __init__(self, plane: ControlPlane, *, restored: bool = True, hours: int = 100) -> None:
        self.plane, self.id, session = plane, uuid.uuid4().hex, plane.session
        self.lease_key = f"{experiments.LEASE_PREFIX}{self.id}"
        experiments.create(session, retries(), self.id, "old", json.dumps(CONFIG), "f" * 64)
        experiments.begin_block(session, retries(), self.id, 1, 1)
        experiments.record(session, retries(), self.id, measurement(run_id=f"run-{self.id[:20]}"))
        experiments.meter(session, retries(), self.id, METERING)
        experiments.finish(session, retries(), self.id, 1, {"verdict": "decided", "exit_code": 0})
        self.changed = [self._changed(f"warehouse:{self.id}/{number}") for number in (1, 2)]
        for one in self.changed if restored else self.changed[:1]:
            experiments.record_restore(session, retries(), one)
        plane.change(
            "UPDATE EXPERIMENTS SET CREATED_AT = DATEADD(hour, ?, SYSDATE()) WHERE EXPERIMENT_ID = ?", -hours, self.id
        )

    def _changed(self, key: str) -> ChangedWarehouse:
        one = ChangedWarehouse(
            experiment_id=self.id, epoch=1, warehouse_key=key, warehouse='"W"', connection=None, settings={}
        )
        experiments.record_warehouse(self.plane.session, retries(), one)
        return one

    def rows(self) -> dict[str, int]:
        names = ("BLOCKS", "MEASUREMENTS", "ENDS", "METERINGS", "WAREHOUSES", "WAREHOUSE_RESTORES")
        tables = ("EXPERIMENTS", *(f"EXPERIMENT_{name}" for name in names))
        counts = {
            table: self.plane.rows(f"SELECT COUNT(*) FROM {table} WHERE EXPERIMENT_ID = ?", self.id)[0][0]
            for table in tables
        }
        return {table: int(number) for table, number in counts.items() if number}


def prune_now(plane: ControlPlane, session: ControlSession | None = None) -> dict[str, int]:
    found = prune.find_old(plane.session, retries(), 48 * 3600.0)
    return prune.delete(session or plane.session, retries(), found)


def test_an_old_experiment_is_deleted_from_every_table(plane):
    old, fresh = OldExperiment(plane), OldExperiment(plane, hours=1)
    plane.claim(old.lease_key)
    plane.expire(old.lease_key, since_s=99 * 3600.0)
    before = fresh.rows()

    found = prune.find_old(plane.session, retries(), 48 * 3600.0)
    deleted = prune_now(plane)

    assert old.id in {one.id for one in found.experiments}
    assert (old.rows(), plane.leases(old.lease_key)) == ({}, [])
    assert deleted["EXPERIMENT_WAREHOUSES"] == deleted["EXPERIMENT_WAREHOUSE_RESTORES"] == 2
    assert fresh.rows() == before
    assert len(before) == 7


def test_an_experiment_whose_warehouse_is_not_restored_is_kept_until_it_is(plane):
    left = OldExperiment(plane, restored=False)
    before = left.rows()
    prune_now(plane)
    assert left.rows() == before

    experiments.record_restore(plane.session, retries(), left.changed[1])
    prune_now(plane)

    assert left.rows() == {}


def test_an_experiment_that_a_process_leads_is_kept(plane):
    led_now = OldExperiment(plane)
    found = prune.find_old(plane.session, retries(), 48 * 3600.0)
    plane.claim(led_now.lease_key)  # resumed after the look
    before = led_now.rows()

    prune.delete(plane.session, retries(), found)
    prune_now(plane)

    assert led_now.rows() == before
    assert len(plane.leases(led_now.lease_key)) == 1


@pytest.mark.parametrize("at", ["experiment_warehouse_restores", "experiments", "experiment_lease"])
def test_a_deletion_that_was_interrupted_is_finished_by_the_next_and_leaves_nothing_to_restore(plane, at):
    old = OldExperiment(plane)
    broken = BrokenSession(plane.place, role="prune", environ=plane.environ)
    broken.at = f"prune.{at}"

    with pytest.raises(ControlFailed):
        prune_now(plane, broken)
    broken.close()
    assert not [one for one in experiments.changed_warehouses(plane.session) if one.experiment_id == old.id]
    plane.expire(old.lease_key, since_s=99 * 3600.0)
    prune_now(plane)

    assert (old.rows(), plane.leases(old.lease_key)) == ({}, [])
