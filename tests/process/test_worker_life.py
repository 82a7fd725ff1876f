"""Every step of a worker's life and every exit code, with real processes against a real server."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import reduce
from operator import add

import psutil
import pytest

from loadgen.control.tables import run_measurements, run_status
from loadgen.control.tables.worker_heartbeats import WorkerHeartbeat
from loadgen.metrics.histogram import EMPTY
from loadgen.metrics.live_metrics import read_live
from loadgen.model.event import EventScope, Recipient, SetPhase, Stop
from loadgen.model.run import Phase, RunStatus
from loadgen.results.run_record import worker_seconds
from loadgen.tui.history import coarsen_second
from tests.control_plane import retries
from tests.embedded_server import EmbeddedServer
from tests.process.worker_driver import GET, NAP, Led, Worker, WorkerHarness, adds_up, worker_harness
from tests.processes import wait_until

PUT = {
    "name": "put",
    "kind": "write",
    "sql": "INSERT INTO KV (ID, V) VALUES (?, 'x')",
    "params": [{"sequence": {"start": 1000}}],
}


@pytest.fixture(scope="module")
def harness(server: EmbeddedServer) -> Iterator[WorkerHarness]:
    yield from worker_harness(server)


# --- a whole life ----------------------------------------------------------------------------------------------------


def test_a_run_from_start_to_end(harness: WorkerHarness) -> None:
    before = wait_until(lambda: harness.server.ask("/__loadgen/stats")["open_sessions"], "the server answers")
    run = harness.run(
        {"connections": 4, "warmup": "30s", "duration": "30s"},
        statements=[GET | {"weight": 4}, PUT],
        query_log={"mode": "all"},
    )
    worker = run.spawn(environ={"LOADGEN_LABELS": "zone=eu,disk=ssd"})
    assert run.wait_beat(lambda beat: beat.status in ("STARTING", "WAITING"), "it registers", worker).count >= 1
    labels = harness.plane.rows("SELECT LABELS FROM WORKER_HEARTBEATS WHERE RUN_ID = ?", run.run_id)
    assert labels == [('["disk=ssd","zone=eu"]',)]
    run.move(RunStatus.STARTING)
    waiting = run.wait_status("WAITING", worker)
    assert (waiting.open_connections, waiting.target_connections, waiting.active_connections) == (4, 4, 0)
    assert waiting.phase is None
    run.start()
    running = run.wait_status("RUNNING", worker)
    assert running.phase is Phase.WARMUP
    run.wait_ended(50, worker)
    wait_until(lambda: run.seen().results and run.seen().result.status == "RUNNING", "its result has begun")
    run.emit(SetPhase(phase=Phase.MEASUREMENT, duration_ms=1_500, effective_at=run.soon(0.5)))
    run.move(RunStatus.RUNNING, Phase.MEASUREMENT)
    run.wait_beat(lambda beat: beat.phase is Phase.MEASUREMENT, "it measures", worker)
    # It closes its window by itself; STOP only confirms.
    run.wait_beat(lambda beat: beat.phase is Phase.COOLDOWN, "its window has closed", worker)
    wait_until(lambda: run.totals().in_flight == 0, "everything that began in it has ended")
    name = psutil.Process(worker.process.pid).name()
    run.stop()

    assert worker.exit_code() == 0, worker.said
    assert worker.said == ""
    assert name == "worker-0"  # what ps and top show
    last = run.beat()
    assert (last.status, last.phase, last.open_connections, last.last_error) == ("COMPLETED", Phase.COOLDOWN, 0, None)
    seen = run.seen()
    for phase in (Phase.WARMUP, Phase.MEASUREMENT):
        window = seen.of(phase)
        assert adds_up(window)
        assert window.counts.failed == window.counts.cancelled == window.counts.skipped == 0
        assert window.counts.succeeded == len(run.history(phase)) > 0
    measured = seen.of(Phase.MEASUREMENT)
    assert (seen.result.status, seen.result.total_operations) == ("COMPLETED", measured.counts.succeeded)
    assert seen.result.read_operations + seen.result.write_operations == measured.counts.succeeded
    assert run.executions() == sum(window.counts.scheduled for window in seen.windows)
    _beat_tells_what_is_stored(run, last)
    assert not list(harness.spool.glob("*"))
    assert harness.plane.rows("SELECT COUNT(*) FROM TEST_RESULTS WHERE RUN_ID = ?", run.run_id) == [(1,)]
    _check_told(run)
    _nothing_is_left(worker, harness, before)


def _beat_tells_what_is_stored(run: Led, beat: WorkerHeartbeat) -> None:
    """So a view that reads beats and one that reads the tables show the same seconds."""
    told = read_live(beat.live_metrics or "").seconds
    stored = {
        one.ended_at: one for one in worker_seconds(run_measurements.read_snapshots(run.plane.session, run.run_id), [])
    }

    assert told
    for second in told:
        row = coarsen_second(stored[second.ended_at])
        assert (row.seconds, row.phase) == (second.seconds, second.phase)
        assert {name: row.statements[name] for name in second.statements} == second.statements
        assert row.response == reduce(add, second.times.values(), EMPTY)


def _check_told(run: Led) -> None:
    """What happened to it is in the tables: its phases second by second, and its turns line by line."""
    said = run.logs("INFO")
    turns = ["START, in WARMUP", "phase WARMUP", "phase MEASUREMENT", "phase COOLDOWN", "ended: after STOP"]
    assert [line for line in said if line in turns] == turns
    assert "target 4 connections" in said
    assert run.logs("ERROR") == []
    seconds = run_measurements.read_snapshots(run.plane.session, run.run_id)
    phases = [row.phase for row in seconds]
    assert list(dict.fromkeys(phases)) == ["WARMUP", "MEASUREMENT", "COOLDOWN"]
    # Even of the last second, which is very short, the share of cores is one that this machine has.
    assert all(0.0 <= (row.cpu_percent or 0.0) <= 100.0 * (os.cpu_count() or 1) for row in seconds)
    assert 0.0 <= (run.beat().cpu_percent or 0.0) <= 100.0 * (os.cpu_count() or 1)


def _nothing_is_left(worker: Worker, harness: WorkerHarness, sessions: int) -> None:
    assert not psutil.pid_exists(worker.process.pid) or worker.process.poll() is not None
    with pytest.raises(ProcessLookupError):
        os.killpg(worker.process.pid, 0)
    wait_until(lambda: harness.server.ask("/__loadgen/stats")["open_sessions"] <= sessions, "its sessions are closed")


# --- 0: an orderly end, before there was any load --------------------------------------------------------------------


@pytest.mark.slow
def test_a_waiting_worker_obeys_every_way_to_end(harness: WorkerHarness) -> None:
    runs = {name: harness.run() for name in ("STOP", "CANCELLING", "STOPPING", "FAILED", "SIGTERM", "TERMINAL")}
    other = harness.run({"connections": 4}, workers=2)
    runs["TERMINAL"].move(RunStatus.FAILED)
    workers = {name: run.spawn() for name, run in runs.items()} | {"other": other.spawn(0)}
    assert workers["TERMINAL"].exit_code() == 0, "a run that is over before the worker came"
    for name, run in runs.items():
        if name != "TERMINAL":
            run.move(RunStatus.STARTING)
            run.wait_status("WAITING", workers[name])
    other.wait_status("WAITING", workers["other"])

    runs["STOP"].stop()
    run_status.cancel(harness.plane.session, retries(), runs["CANCELLING"].run_id, "a user wants it")
    runs["STOPPING"].move(RunStatus.STOPPING, Phase.COOLDOWN)
    runs["FAILED"].move(RunStatus.FAILED)
    workers["SIGTERM"].signal(signal.SIGTERM)
    other.emit(Stop(reason="not you", drain_timeout_s=1), Recipient(scope=EventScope.WORKER, worker_id="worker-1"))
    other.emit(Stop(reason="nor you", drain_timeout_s=1), Recipient(scope=EventScope.WORKER_GROUP, worker_group_id=1))

    for name in ("STOP", "CANCELLING", "STOPPING", "FAILED", "SIGTERM"):
        assert workers[name].exit_code() == 0, (name, workers[name].said)
        assert runs[name].wait_status("COMPLETED").last_error is None
        assert runs[name].seen().windows == []
    seen = other.beat().count
    other.wait_beat(lambda beat: beat.count > seen + 3, "the STOP of another run is ignored", workers["other"])
    assert other.beat().status == "WAITING"
    other.stop()
    assert workers["other"].exit_code() == 0


# --- 1: configuration ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_permanent_errors_end_it_with_1_and_the_reason(harness: WorkerHarness) -> None:
    refused = harness.run(statements=[NAP, {"name": "broken", "kind": "read", "sql": "SELECT NOTHERE FROM KV"}])
    strange = harness.run(workers=2)
    spool = harness.run(query_log={"mode": "all"})
    duplicate = harness.run()
    (harness.folder / "file").write_text("")
    workers = {
        "unknown": harness.spawn(
            ["--run-id", "no-such-run", "--worker-group-id", "0", "--worker-group-count", "1"], {}
        ),
        "refused": refused.spawn(),
        "count": harness.spawn(["--run-id", strange.run_id, "--worker-group-id", "0", "--worker-group-count", "3"], {}),
        "spool": spool.spawn(environ={"LOADGEN_SPOOL_DIR": str(harness.folder / "file" / "spool")}),
        "database": refused.spawn(worker_id="worker-9", environ={"LOADGEN_CONTROL_DATABASE": "NOWHERE"}),
        "first": duplicate.spawn(),
    }
    duplicate.wait_status("WAITING", workers["first"])
    workers["second"] = duplicate.spawn()

    for name, said in (
        ("unknown", "there is no run no-such-run"),
        ("refused", "statement broken: SQL compilation error"),
        ("count", "--worker-group-count is 3, and run"),
        ("spool", "the query log cannot be kept in"),
        ("database", "failed at"),
        ("second", "worker worker-0 of run"),
    ):
        assert workers[name].exit_code() == 1, (name, workers[name].said)
        assert said in workers[name].said
        assert "error: worker-" in workers[name].said
        assert "hint: " in workers[name].said
    assert "statement broken: SQL compilation error" in refused.wait_dead()
    for led, ended in ((refused, "statement broken"), (strange, "--worker-group-count"), (spool, "the query log")):
        (line,) = led.logs("ERROR")
        assert line.startswith(f"ended: {ended}")
    # The duplicate has not touched the row of the one that lives.
    assert duplicate.beat().status == "WAITING"
    duplicate.stop()
    assert workers["first"].exit_code() == 0


# --- 3 and 4: no leader ----------------------------------------------------------------------------------------------


def take_row(harness: WorkerHarness, run: Led, worker: Worker) -> None:
    """Write another process into the row of a worker, until the worker has seen it.

    A beat that waits for this very statement writes back what it saw when it began, the process id too: `replace` is
    for rows of workers that were silent for long, and has no such beat to fear.
    """
    pid = worker.process.pid + 1

    def taken() -> bool:
        harness.plane.change("UPDATE WORKER_HEARTBEATS SET PID = ? WHERE RUN_ID = ?", pid, run.run_id)
        return worker.gone() is not None

    wait_until(taken, f"the worker ends whose row is another's: {worker.said}")


@pytest.mark.slow
def test_without_a_leader_a_worker_ends(harness: WorkerHarness) -> None:
    unstarted = harness.run(timing={"start": "1s"})
    lost = harness.run(timing={"orchestrator_lost": "3s"})
    orphan, replaced = harness.run(), harness.run()
    reader, writer = os.pipe()
    workers = {
        "unstarted": unstarted.spawn(),
        "orphan": orphan.spawn(environ={"LOADGEN_PARENT_FD": str(reader)}, pass_fds=(reader,)),
        "lost": lost.started(),
        "replaced": replaced.started(),
    }
    os.close(reader)
    lost.wait_ended(20, workers["lost"])
    replaced.wait_ended(20, workers["replaced"])

    harness.plane.expire(lost.run_id, since_s=3.5)
    orphan.wait_status("WAITING", workers["orphan"])
    os.close(writer)
    take_row(harness, replaced, workers["replaced"])

    for name, run, code, said in (
        ("unstarted", unstarted, 3, "no START within 1 s"),
        ("lost", lost, 4, "has had no leader for"),
        ("orphan", orphan, 4, "the parent process is gone"),
    ):
        assert workers[name].exit_code() == code, (name, workers[name].said)
        assert said in workers[name].said
        assert said in run.wait_dead()
    window = lost.seen().of(Phase.MEASUREMENT)
    assert adds_up(window)
    assert window.counts.succeeded + window.counts.failed == len(lost.history(Phase.MEASUREMENT))
    assert lost.seen().result.status == "FAILED"
    # A replaced worker leaves the row, and the results, to its successor.
    assert workers["replaced"].exit_code() == 4
    assert "was replaced by another process" in workers["replaced"].said
    assert replaced.beat().status == "RUNNING"
    assert replaced.seen().windows == []


def test_a_late_process_replaces_a_dead_one(harness: WorkerHarness) -> None:
    run = harness.run({"warmup": "30s", "duration": "30s"})
    first = run.started()
    run.wait_ended(20, first)
    run.emit(SetPhase(phase=Phase.MEASUREMENT))
    run.move(RunStatus.RUNNING, Phase.MEASUREMENT)
    run.wait_beat(lambda beat: beat.phase is Phase.MEASUREMENT, "it measures", first)
    wait_until(lambda: run.seen().windows, "its warm-up is stored")
    _die(run, first)

    second = run.spawn()
    run.wait_beat(lambda beat: beat.status == "RUNNING" and beat.phase is Phase.MEASUREMENT, "it measures", second)
    run.wait_ended(20, second)
    run.stop()

    assert second.exit_code() == 0, second.said
    warmup, measured = run.seen().windows
    assert (warmup.phase, measured.phase) == (Phase.WARMUP, Phase.MEASUREMENT)
    assert adds_up(measured)
    assert measured.counts.succeeded >= 20


@pytest.mark.slow
def test_no_process_takes_a_place_whose_values_it_would_draw_again(harness: WorkerHarness) -> None:
    adding = harness.run({"connections": 1}, statements=[{**PUT, "sql": "SELECT ?::NUMBER"}])
    _die(adding, adding.started())

    again = adding.spawn()

    assert again.exit_code() == 1
    assert "worker-0 of run" in again.said
    assert "statement put would draw values again that process" in again.said
    assert "hint: Start a new run" in again.said
    assert adding.beat().status == "RUNNING"


def _die(run: Led, worker: Worker) -> None:
    """Long ago."""
    worker.signal(signal.SIGKILL)
    assert worker.exit_code() == -signal.SIGKILL
    run.plane.change(
        "UPDATE WORKER_HEARTBEATS SET LAST_HEARTBEAT = DATEADD(second, -11, LAST_HEARTBEAT) WHERE RUN_ID = ?",
        run.run_id,
    )
