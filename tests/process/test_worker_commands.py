"""How a worker starts, and how it obeys the events and the row of its run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from loadgen.control.tables.run_leases import Lease
from loadgen.control.tables.run_status import ConnectionTarget
from loadgen.model.event import EventScope, Recipient, SetPhase, SetWorkerTarget, Start
from loadgen.model.run import Phase, RunStatus
from tests.embedded_server import EmbeddedServer
from tests.process.worker_driver import Led, Worker, WorkerHarness, adds_up, worker_harness
from tests.processes import wait_until


@pytest.fixture(scope="module")
def harness(server: EmbeddedServer) -> Iterator[WorkerHarness]:
    yield from worker_harness(server)


# --- the start gate --------------------------------------------------------------------------------------------------


def test_how_a_worker_starts(harness: WorkerHarness) -> None:
    # The row contains RUNNING, and no START event ever comes.
    silent = harness.run()
    # A worker that comes late begins where the run is, and keeps what is left of the window.
    late = harness.run({"warmup": "30s", "duration": "30s"})

    late.move(RunStatus.STARTING)
    late.start()
    late.emit(SetPhase(phase=Phase.MEASUREMENT, duration_ms=600_000, effective_at=late.soon(-595)))
    late.move(RunStatus.RUNNING, Phase.MEASUREMENT)
    workers = [silent.spawn(), late.spawn()]
    silent.move(RunStatus.STARTING)
    silent.wait_status("WAITING", workers[0])
    silent.move(RunStatus.RUNNING, Phase.MEASUREMENT)

    _measures(silent, workers[0])
    late.wait_beat(lambda beat: beat.phase is Phase.COOLDOWN, "what was left of its window is over", workers[1])
    for run, worker in zip((silent, late), workers, strict=True):
        _end(run, worker)
    assert [window.phase for window in late.seen().windows] == [Phase.MEASUREMENT]
    assert late.seen().of(Phase.MEASUREMENT).seconds < 300  # what was left of ten minutes that began long ago


@pytest.mark.slow
def test_how_a_worker_starts_when_events_come_out_of_turn(harness: WorkerHarness) -> None:
    # START comes while the worker connects, and RUN_STATUS is behind it; without a warm-up there is one way to begin.
    early = harness.run()
    # A SET_PHASE that is older than START is applied after it.
    phased = harness.run({"warmup": "30s", "duration": "30s"})

    early.move(RunStatus.STARTING)
    early.emit(Start(expected_workers=1))
    workers = [early.spawn(), phased.spawn()]
    phased.move(RunStatus.STARTING)
    phased.wait_status("WAITING", workers[1])
    phased.emit(SetPhase(phase=Phase.MEASUREMENT))
    phased.move(RunStatus.RUNNING, Phase.WARMUP)
    phased.emit(Start(expected_workers=1))

    for run, worker in zip((early, phased), workers, strict=True):
        _measures(run, worker)
    assert phased.beat().last_sequence_id == 2
    for run, worker in zip((early, phased), workers, strict=True):
        _end(run, worker)


def _measures(run: Led, worker: Worker) -> None:
    run.wait_beat(lambda beat: beat.status == "RUNNING" and beat.phase is Phase.MEASUREMENT, "it measures", worker)
    run.wait_ended(5, worker)


def _end(run: Led, worker: Worker) -> None:
    run.stop()
    assert worker.exit_code() == 0, worker.said
    windows = run.seen().windows
    assert windows[-1].phase is Phase.MEASUREMENT
    assert [window.phase for window in windows[:-1]] in ([], [Phase.WARMUP])
    assert all(adds_up(window) for window in windows)


@pytest.mark.slow
def test_how_many_connections_a_worker_opens(harness: WorkerHarness) -> None:
    shared = harness.run({"connections": 5}, workers=3)
    little = harness.run({"connections": 1}, workers=2)
    fixed = harness.run({"per_worker_connections": 3, "connections": 6}, workers=2)
    cases = [(shared, 0, 2), (shared, 1, 2), (shared, 2, 1), (little, 0, 1), (little, 1, 0), (fixed, 1, 3)]
    workers = [run.spawn(group) for run, group, _ in cases]
    for run in (shared, little, fixed):
        run.move(RunStatus.STARTING)

    # Open connections that wait for START cost nothing: clients that spun would keep the others from connecting.
    shared.wait_beat(
        lambda beat: beat.status == "WAITING" and (beat.cpu_percent or 100) < 40, "it is quiet", workers[0]
    )
    for worker, (run, group, connections) in zip(workers, cases, strict=True):
        beat = run.wait_status("WAITING", worker, f"worker-{group}")
        assert (beat.open_connections, beat.target_connections) == (connections, connections)
    little.start()
    idle = little.wait_status("RUNNING", workers[4], "worker-1")
    assert idle.open_connections == 0
    for run in (shared, little, fixed):
        run.stop()
    for worker in workers:
        assert worker.exit_code() == 0, worker.said
    assert little.seen("worker-1").of(Phase.MEASUREMENT).counts.scheduled == 0


# --- commands --------------------------------------------------------------------------------------------------------


def _opened(run: Led, worker: Worker, connections: int) -> None:
    run.wait_beat(lambda beat: beat.open_connections == connections, f"{connections} are open", worker)


def test_targets_by_event_by_row_and_for_others(harness: WorkerHarness) -> None:
    slow_flush = {"events_poll": "300ms", "flush": "60s"}  # warnings do not wait for it
    run = harness.run({"connections": 8, "warmup": "30s", "duration": "30s"}, timing=slow_flush)
    worker = run.started()
    _opened(run, worker, 8)

    for address, connections in (
        (Recipient(scope=EventScope.WORKER, worker_id="worker-0"), 3),
        (Recipient(scope=EventScope.WORKER_GROUP, worker_group_id=0), 4),
        (Recipient(), 2),
    ):
        run.emit(SetWorkerTarget(target_connections=connections), address)
        _opened(run, worker, connections)
    # The first is unreadable, the second is for another worker, the third belongs to an expired lease.
    harness.plane.change(
        "INSERT INTO RUN_CONTROL_EVENTS (RUN_ID, SEQUENCE_ID, EVENT_ID, EPOCH, EVENT_TYPE, EVENT_DATA, CREATED_AT)"
        " SELECT ?, ?, ?, 1, 'DANCE', '{}', SYSDATE()",
        run.run_id,
        run.next_sequence_id,
        f"{run.run_id}-dance",
    )
    run.emit(SetWorkerTarget(target_connections=7), Recipient(scope=EventScope.WORKER, worker_id="worker-7"))
    last = run.emit(SetWorkerTarget(target_connections=6))
    _opened(run, worker, 6)
    assert run.beat().last_sequence_id == last
    wait_until(lambda: any("DANCE" in line for line in run.logs("WARNING")), "the strange event is told")
    # Events that never arrived: only the row contains it.
    unseen = run.emit(SetWorkerTarget(target_connections=7), Recipient(scope=EventScope.WORKER, worker_id="worker-7"))
    run.targets = {"worker-0": ConnectionTarget(target_connections=5, sequence_id=unseen)}
    run.publish()
    _opened(run, worker, 5)
    run.move(RunStatus.RUNNING, Phase.MEASUREMENT)
    run.wait_beat(lambda beat: beat.phase is Phase.MEASUREMENT, "the phase of the row is believed", worker)
    wait_until(lambda: any("RUN_STATUS" in line for line in run.logs("WARNING")), "that is told")
    # A new leader has begun: events of the old one are ignored.
    harness.plane.expire(run.run_id, since_s=11)
    old, run.term = run.term, harness.plane.claim(run.run_id, ttl_s=600)
    assert run.term.epoch == old.epoch + 1
    run.targets = {}
    run.emit(SetWorkerTarget(target_connections=4))
    _opened(run, worker, 4)
    _emit_late(harness, run, old, SetWorkerTarget(target_connections=1))
    run.emit(SetWorkerTarget(target_connections=3))
    _opened(run, worker, 3)
    wait_until(lambda: any("has epoch 1" in line for line in run.logs("WARNING")), "the old term's event is told")
    run.stop()

    assert worker.exit_code() == 0, worker.said
    assert all(adds_up(window) for window in run.seen().windows)


def _emit_late(harness: WorkerHarness, run: Led, term: Lease, command: SetWorkerTarget) -> None:
    """An event of an expired lease that was delayed on the network."""
    harness.plane.change(
        "INSERT INTO RUN_CONTROL_EVENTS (RUN_ID, SEQUENCE_ID, EVENT_ID, EPOCH, EVENT_TYPE, EVENT_DATA, CREATED_AT)"
        " SELECT ?, ?, ?, ?, 'SET_WORKER_TARGET', ?, SYSDATE()",
        run.run_id,
        run.next_sequence_id,
        f"{run.run_id}-late",
        term.epoch,
        f'{{"target_connections": {command.target_connections}}}',
    )
