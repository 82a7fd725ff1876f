"""Every step of a worker's life and every exit code, with real processes against a real server."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import reduce
from operator import add

import psutil
import pytest

from loadgen.cli.run_record import worker_seconds
from loadgen.control import run_status, worker_metrics_snapshots
from loadgen.control.run_leases import Term
from loadgen.control.run_status import Target
from loadgen.control.worker_heartbeats import Beat
from loadgen.metrics.histogram import EMPTY
from loadgen.metrics.live import read_live
from loadgen.model.event import Address, Scope, SetPhase, SetWorkerTarget, Start, Stop
from loadgen.model.run import Phase, RunStatus
from loadgen.tui.history import coarse
from tests.control_plane import patience
from tests.embedded_server import EmbeddedServer
from tests.process.worker_driver import GET, NAP, Led, Stage, Worker, adds_up, staged
from tests.processes import wait_until

PUT = {
    "name": "put",
    "kind": "write",
    "sql": "INSERT INTO KV (ID, V) VALUES (?, 'x')",
    "params": [{"sequence": {"start": 1000}}],
}


@pytest.fixture(scope="module")
def stage(server: EmbeddedServer) -> Iterator[Stage]:
    yield from staged(server)


# --- a whole life ----------------------------------------------------------------------------------------------------


def test_a_run_from_start_to_end(stage: Stage) -> None:
    before = wait_until(lambda: stage.server.ask("/__loadgen/stats")["open_sessions"], "the server answers")
    run = stage.run(
        {"connections": 4, "warmup": "30s", "duration": "30s"},
        statements=[GET | {"weight": 4}, PUT],
        query_log={"mode": "all"},
    )
    worker = run.spawn(environ={"LOADGEN_LABELS": "zone=eu,disk=ssd"})
    assert run.wait_beat(lambda beat: beat.status in ("STARTING", "WAITING"), "it registers", worker).count >= 1
    labels = stage.plane.rows("SELECT LABELS FROM WORKER_HEARTBEATS WHERE RUN_ID = ?", run.run_id)
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
    began_ms = [line["start_ms"] for line in run.history(Phase.MEASUREMENT)]
    assert measured.seconds * 1000 >= max(began_ms) - min(began_ms)  # a slow machine opens it late, and closes it late
    assert (seen.result.status, seen.result.total_operations) == ("COMPLETED", measured.counts.succeeded)
    assert seen.result.read_operations + seen.result.write_operations == measured.counts.succeeded
    assert run.executions() == sum(window.counts.scheduled for window in seen.windows)
    _beat_tells_what_is_stored(run, last)
    assert not list(stage.spool.glob("*"))
    assert stage.plane.rows("SELECT COUNT(*) FROM TEST_RESULTS WHERE RUN_ID = ?", run.run_id) == [(1,)]
    _check_told(run)
    _nothing_is_left(worker, stage, before)


def _beat_tells_what_is_stored(run: Led, beat: Beat) -> None:
    """So a view that reads beats and one that reads the tables show the same seconds."""
    told = read_live(beat.live_metrics or "").seconds
    stored = {one.ended_at: one for one in worker_seconds(worker_metrics_snapshots.read(run.plane.session, run.run_id))}

    assert told
    for second in told:
        row = coarse(stored[second.ended_at])
        assert (row.seconds, row.phase) == (second.seconds, second.phase)
        assert {name: row.statements[name] for name in second.statements} == second.statements
        assert row.response == reduce(add, second.times.values(), EMPTY)


def _check_told(run: Led) -> None:
    """What happened to it is in the tables: its phases second by second, and its turns line by line."""
    said = run.logs("INFO")
    turns = ["START, in WARMUP", "phase WARMUP", "phase MEASUREMENT", "phase COOLDOWN", "ended: as told"]
    assert [line for line in said if line in turns] == turns
    assert "target 4 connections" in said
    assert run.logs("ERROR") == []
    seconds = worker_metrics_snapshots.read(run.plane.session, run.run_id)
    phases = [row.phase for row in seconds]
    assert list(dict.fromkeys(phases)) == ["WARMUP", "MEASUREMENT", "COOLDOWN"]
    # Even of the last second, which is very short, the share of cores is one that this machine has.
    assert all(0.0 <= (row.cpu_percent or 0.0) <= 100.0 * (os.cpu_count() or 1) for row in seconds)
    assert 0.0 <= (run.beat().cpu_percent or 0.0) <= 100.0 * (os.cpu_count() or 1)


def _nothing_is_left(worker: Worker, stage: Stage, sessions: int) -> None:
    assert not psutil.pid_exists(worker.process.pid) or worker.process.poll() is not None
    with pytest.raises(ProcessLookupError):
        os.killpg(worker.process.pid, 0)
    wait_until(lambda: stage.server.ask("/__loadgen/stats")["open_sessions"] <= sessions, "its sessions are closed")


# --- 0: an orderly end, before there was any load --------------------------------------------------------------------


def test_a_waiting_worker_obeys_every_way_to_end(stage: Stage) -> None:
    runs = {name: stage.run() for name in ("STOP", "CANCELLING", "STOPPING", "FAILED", "SIGTERM", "TERMINAL")}
    other = stage.run({"connections": 4}, workers=2)
    runs["TERMINAL"].move(RunStatus.FAILED)
    workers = {name: run.spawn() for name, run in runs.items()} | {"other": other.spawn(0)}
    assert workers["TERMINAL"].exit_code() == 0, "a run that is over before the worker came"
    for name, run in runs.items():
        if name != "TERMINAL":
            run.move(RunStatus.STARTING)
            run.wait_status("WAITING", workers[name])
    other.wait_status("WAITING", workers["other"])

    runs["STOP"].stop()
    run_status.cancel(stage.plane.session, patience(), runs["CANCELLING"].run_id, "a user wants it")
    runs["STOPPING"].move(RunStatus.STOPPING, Phase.COOLDOWN)
    runs["FAILED"].move(RunStatus.FAILED)
    workers["SIGTERM"].signal(signal.SIGTERM)
    other.emit(Stop(reason="not you", drain_timeout_s=1), Address(scope=Scope.WORKER, worker_id="worker-1"))
    other.emit(Stop(reason="nor you", drain_timeout_s=1), Address(scope=Scope.WORKER_GROUP, worker_group_id=1))

    for name in ("STOP", "CANCELLING", "STOPPING", "FAILED", "SIGTERM"):
        assert workers[name].exit_code() == 0, (name, workers[name].said)
        assert runs[name].wait_status("COMPLETED").last_error is None
        assert runs[name].seen().windows == []
    seen = other.beat().count
    other.wait_beat(lambda beat: beat.count > seen + 3, "the STOP of somebody else is passed over", workers["other"])
    assert other.beat().status == "WAITING"
    other.stop()
    assert workers["other"].exit_code() == 0


# --- 1: configuration ------------------------------------------------------------------------------------------------


def test_what_cannot_work_ends_with_1_and_says_why(stage: Stage) -> None:
    refused = stage.run(statements=[NAP, {"name": "broken", "kind": "read", "sql": "SELECT NOTHERE FROM KV"}])
    strange = stage.run(workers=2)
    spool = stage.run(query_log={"mode": "all"})
    duplicate = stage.run()
    (stage.folder / "file").write_text("")
    workers = {
        "unknown": stage.spawn(["--run-id", "no-such-run", "--worker-group-id", "0", "--worker-group-count", "1"], {}),
        "refused": refused.spawn(),
        "count": stage.spawn(["--run-id", strange.run_id, "--worker-group-id", "0", "--worker-group-count", "3"], {}),
        "spool": spool.spawn(environ={"LOADGEN_SPOOL_DIR": str(stage.folder / "file" / "spool")}),
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


# --- 3 and 4: nobody leads -------------------------------------------------------------------------------------------


def test_without_a_leader_a_worker_ends(stage: Stage) -> None:
    unstarted = stage.run(timing={"start": "1s"})
    lost = stage.run(timing={"orchestrator_lost": "3s"})
    orphan, replaced = stage.run(), stage.run()
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

    stage.plane.expire(lost.run_id, since_s=3.5)
    orphan.wait_status("WAITING", workers["orphan"])
    os.close(writer)
    stage.plane.change("UPDATE WORKER_HEARTBEATS SET PID = PID + 1 WHERE RUN_ID = ?", replaced.run_id)

    for name, run, code, said in (
        ("unstarted", unstarted, 3, "nobody said START within 1 s"),
        ("lost", lost, 4, "nobody has led run"),
        ("orphan", orphan, 4, "the parent process is gone"),
    ):
        assert workers[name].exit_code() == code, (name, workers[name].said)
        assert said in workers[name].said
        assert said in run.wait_dead()
    window = lost.seen().of(Phase.MEASUREMENT)
    assert adds_up(window)
    assert window.counts.succeeded + window.counts.failed == len(lost.history(Phase.MEASUREMENT))
    assert lost.seen().result.status == "FAILED"
    # Whoever was replaced leaves the row, and the results, to the other.
    assert workers["replaced"].exit_code() == 4
    assert "was replaced by another process" in workers["replaced"].said
    assert replaced.beat().status == "RUNNING"
    assert replaced.seen().windows == []


def test_a_late_process_takes_the_place_of_a_dead_one(stage: Stage) -> None:
    run = stage.run({"warmup": "30s", "duration": "30s"})
    adding = stage.run({"connections": 1}, statements=[{**PUT, "sql": "SELECT ?::NUMBER"}])
    first, adds = run.started(), adding.started()
    run.wait_ended(20, first)
    run.emit(SetPhase(phase=Phase.MEASUREMENT))
    run.move(RunStatus.RUNNING, Phase.MEASUREMENT)
    run.wait_beat(lambda beat: beat.phase is Phase.MEASUREMENT, "it measures", first)
    wait_until(lambda: run.seen().windows, "its warm-up is stored")
    for one, led in ((first, run), (adds, adding)):
        one.signal(signal.SIGKILL)
        assert one.exit_code() == -signal.SIGKILL
        stage.plane.change(
            "UPDATE WORKER_HEARTBEATS SET LAST_HEARTBEAT = DATEADD(second, -11, LAST_HEARTBEAT) WHERE RUN_ID = ?",
            led.run_id,
        )

    second, again = run.spawn(), adding.spawn()
    run.wait_beat(lambda beat: beat.status == "RUNNING" and beat.phase is Phase.MEASUREMENT, "it measures", second)
    run.wait_ended(20, second)
    run.stop()

    assert second.exit_code() == 0, second.said
    warmup, measured = run.seen().windows
    assert (warmup.phase, measured.phase) == (Phase.WARMUP, Phase.MEASUREMENT)
    assert adds_up(measured)
    assert measured.counts.succeeded >= 20
    # Unless it would draw what must not be drawn twice. What the dead one said last stays.
    assert again.exit_code() == 1
    assert "worker-0 of run" in again.said
    assert "statement put would draw values again that process" in again.said
    assert "hint: Start a new run" in again.said
    assert adding.beat().status == "RUNNING"


# --- the start gate --------------------------------------------------------------------------------------------------


def test_how_a_worker_starts(stage: Stage) -> None:
    # The row says RUNNING, and no START event ever comes.
    silent = stage.run()
    # START comes while the worker connects, and RUN_STATUS is behind it; without a warm-up there is one way to begin.
    early = stage.run()
    # A SET_PHASE that is older than START is applied after it.
    phased = stage.run({"warmup": "30s", "duration": "30s"})
    # A worker that comes late begins where the run is, and keeps what is left of the window.
    late = stage.run({"warmup": "30s", "duration": "30s"})

    early.move(RunStatus.STARTING)
    early.emit(Start(expected_workers=1))
    late.move(RunStatus.STARTING)
    late.start()
    late.emit(SetPhase(phase=Phase.MEASUREMENT, duration_ms=600_000, effective_at=late.soon(-595)))
    late.move(RunStatus.RUNNING, Phase.MEASUREMENT)
    runs = {"silent": silent, "early": early, "phased": phased, "late": late}
    workers = {name: run.spawn() for name, run in runs.items()}
    for run in (silent, phased):
        run.move(RunStatus.STARTING)
    silent.wait_status("WAITING", workers["silent"])
    phased.wait_status("WAITING", workers["phased"])
    silent.move(RunStatus.RUNNING, Phase.MEASUREMENT)
    phased.emit(SetPhase(phase=Phase.MEASUREMENT))
    phased.move(RunStatus.RUNNING, Phase.WARMUP)
    phased.emit(Start(expected_workers=1))

    for name in ("silent", "early", "phased"):
        runs[name].wait_beat(
            lambda beat: beat.status == "RUNNING" and beat.phase is Phase.MEASUREMENT, f"{name} measures", workers[name]
        )
        runs[name].wait_ended(5, workers[name])
    assert phased.beat().last_sequence_id == 2
    late.wait_beat(lambda beat: beat.phase is Phase.COOLDOWN, "what was left of its window is over", workers["late"])
    for name, run in runs.items():
        run.stop()
        assert workers[name].exit_code() == 0, workers[name].said
        windows = run.seen().windows
        assert windows[-1].phase is Phase.MEASUREMENT
        assert [window.phase for window in windows[:-1]] in ([], [Phase.WARMUP])
        assert all(adds_up(window) for window in windows)
    assert [window.phase for window in late.seen().windows] == [Phase.MEASUREMENT]
    assert late.seen().of(Phase.MEASUREMENT).seconds < 300  # what was left of ten minutes that began long ago


def test_how_many_connections_a_worker_opens(stage: Stage) -> None:
    shared = stage.run({"connections": 5}, workers=3)
    little = stage.run({"connections": 1}, workers=2)
    fixed = stage.run({"per_worker_connections": 3, "connections": 6}, workers=2)
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


def test_targets_by_event_by_row_and_for_others(stage: Stage) -> None:
    slow_flush = {"events_poll": "300ms", "flush": "60s"}  # warnings do not wait for it
    run = stage.run({"connections": 8, "warmup": "30s", "duration": "30s"}, timing=slow_flush)
    worker = run.started()
    _opened(run, worker, 8)

    for address, connections in (
        (Address(scope=Scope.WORKER, worker_id="worker-0"), 3),
        (Address(scope=Scope.WORKER_GROUP, worker_group_id=0), 4),
        (Address(), 2),
    ):
        run.emit(SetWorkerTarget(target_connections=connections), address)
        _opened(run, worker, connections)
    # Nobody understands the first, the second is for another, the third is of a term that is over.
    stage.plane.change(
        "INSERT INTO RUN_CONTROL_EVENTS (RUN_ID, SEQUENCE_ID, EVENT_ID, EPOCH, EVENT_TYPE, EVENT_DATA, CREATED_AT)"
        " SELECT ?, ?, ?, 1, 'DANCE', '{}', SYSDATE()",
        run.run_id,
        run.next_sequence_id,
        f"{run.run_id}-dance",
    )
    run.emit(SetWorkerTarget(target_connections=7), Address(scope=Scope.WORKER, worker_id="worker-7"))
    last = run.emit(SetWorkerTarget(target_connections=6))
    _opened(run, worker, 6)
    assert run.beat().last_sequence_id == last
    wait_until(lambda: any("DANCE" in line for line in run.logs("WARNING")), "the strange event is told")
    # Events that never arrived: the row alone says it.
    unseen = run.emit(SetWorkerTarget(target_connections=7), Address(scope=Scope.WORKER, worker_id="worker-7"))
    run.targets = {"worker-0": Target(target_connections=5, sequence_id=unseen)}
    run.publish()
    _opened(run, worker, 5)
    run.move(RunStatus.RUNNING, Phase.MEASUREMENT)
    run.wait_beat(lambda beat: beat.phase is Phase.MEASUREMENT, "the phase of the row is believed", worker)
    wait_until(lambda: any("RUN_STATUS" in line for line in run.logs("WARNING")), "that is told")
    # A new leader has begun: what the old one says is ignored.
    stage.plane.expire(run.run_id, since_s=11)
    old, run.term = run.term, stage.plane.claim(run.run_id, ttl_s=600)
    assert run.term.epoch == old.epoch + 1
    run.targets = {}
    run.emit(SetWorkerTarget(target_connections=4))
    _opened(run, worker, 4)
    _emit_late(stage, run, old, SetWorkerTarget(target_connections=1))
    run.emit(SetWorkerTarget(target_connections=3))
    _opened(run, worker, 3)
    wait_until(lambda: any("of term 1" in line for line in run.logs("WARNING")), "the old term's event is told")
    run.stop()

    assert worker.exit_code() == 0, worker.said
    assert all(adds_up(window) for window in run.seen().windows)


def _emit_late(stage: Stage, run: Led, term: Term, command: SetWorkerTarget) -> None:
    """An event of a term that is over, as if it had been held up on its way."""
    stage.plane.change(
        "INSERT INTO RUN_CONTROL_EVENTS (RUN_ID, SEQUENCE_ID, EVENT_ID, EPOCH, EVENT_TYPE, EVENT_DATA, CREATED_AT)"
        " SELECT ?, ?, ?, ?, 'SET_WORKER_TARGET', ?, SYSDATE()",
        run.run_id,
        run.next_sequence_id,
        f"{run.run_id}-late",
        term.epoch,
        f'{{"target_connections": {command.target_connections}}}',
    )
