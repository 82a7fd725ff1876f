"""A runner's beats, one by one: being known, being forgotten, keeping a lease, hearing of a wish to drain."""

from __future__ import annotations

import pytest

from loadgen.clock import SystemClock
from loadgen.control.tables import pool_workers, run_queue
from loadgen.control.tables.pool_workers import PoolWorkerIdentity
from loadgen.control.tables.run_queue import QueueClaim
from loadgen.model.nightly import PoolWorkerStatus
from orchestrator.nightly.runner import AttemptCounts, HeldClaim, RunnerHeartbeat
from tests.contract.queue_builders import shift_queue_times
from tests.control_plane import ControlPlane, retries

pytestmark = pytest.mark.any_driver

LEASE_S = 600.0
ME = PoolWorkerIdentity(
    worker_id="bench-1", hostname="bench", pid=1, version="1", task_queue="Q", labels=(), capabilities=()
)


@pytest.fixture
def beats(plane: ControlPlane) -> RunnerHeartbeat:
    """Of a runner that has not registered yet; its thread is ours."""
    for table in ("RUN_QUEUE", "RUN_ATTEMPTS", "RUN_ATTEMPT_ENDS", "POOL_WORKERS", "STOP_REQUESTS"):
        plane.change(f"DELETE FROM {table}")
    return RunnerHeartbeat(plane.session, ME, lease_s=LEASE_S, clock=SystemClock())


def seen(plane: ControlPlane) -> pool_workers.PoolWorker:
    return pool_workers.find(plane.session, retries(), ME.worker_id)


def claimed(plane: ControlPlane, beats: RunnerHeartbeat) -> tuple[QueueClaim, HeldClaim]:
    run_queue.add(plane.session, retries(), run_queue.QueueRequest(name="n", scenario="s", files={}))
    begun_ns = SystemClock().monotonic_ns()
    claim = run_queue.claim(plane.session, retries(), ME.worker_id, (), LEASE_S)
    assert claim is not None
    held = HeldClaim(claim=claim, trust=beats.new_trust(begun_ns))
    beats.hold(held)
    return claim, held


@pytest.mark.parametrize("why", ["never known", "taken for dead", "pruned"])
def test_a_beat_that_finds_no_row_registers(plane, beats, why):
    if why != "never known":
        assert beats.step()
        pool_workers.offline(plane.session, retries(), ME.worker_id)
    if why == "pruned":
        plane.change("DELETE FROM POOL_WORKERS")

    assert beats.step()

    assert seen(plane).status is PoolWorkerStatus.ONLINE


def test_a_heartbeat_contains_the_run_of_the_runner_and_extends_its_lease(plane, beats):
    beats.step()
    claim, held = claimed(plane, beats)
    beats.counted = AttemptCounts(completed=2, failed=1)
    shift_queue_times(plane, LEASE_S - 200, claim.queue_id)

    assert beats.step()

    worker, row = seen(plane), run_queue.read(plane.session, claim.queue_id)
    assert (worker.current_run, worker.completed, worker.failed) == (claim.queue_id, 2, 1)
    assert row is not None
    assert row.available_in_ms > 200 * 1000
    assert held.trust.holds(SystemClock().monotonic_ns())


def test_a_lease_that_has_passed_is_lost_at_the_next_beat(plane, beats):
    beats.step()
    claim, held = claimed(plane, beats)
    shift_queue_times(plane, LEASE_S + 1, claim.queue_id)

    assert beats.step()

    assert not held.trust.holds(SystemClock().monotonic_ns())


def test_a_runner_reads_the_request_to_drain_and_reports_its_state(plane, beats):
    beats.step()
    pool_workers.drain(plane.session, retries(), ME.worker_id)
    assert beats.step()
    heard = beats.draining.is_set()

    other = RunnerHeartbeat(plane.session, ME, lease_s=LEASE_S, clock=SystemClock())
    plane.change("DELETE FROM POOL_WORKERS")
    other.step()
    other.draining.set()
    assert other.step()

    assert heard
    assert seen(plane).status is PoolWorkerStatus.DRAINING


def test_a_runner_that_drains_comes_back_as_one_that_drains(plane, beats):
    beats.step()
    beats.draining.set()
    beats.step()
    plane.change("DELETE FROM POOL_WORKERS")

    assert beats.step()

    assert seen(plane).status is PoolWorkerStatus.DRAINING


def test_a_beat_that_is_not_answered_is_no_loss_of_trust(plane, beats):
    beats.step()
    _, held = claimed(plane, beats)
    plane.server.fault(match="^UPDATE POOL_WORKERS", count=1, kind="drop_reply")

    assert not beats.step()
    assert held.trust.holds(SystemClock().monotonic_ns())
    assert beats.step()
