"""Pools as processes: runners that are killed and stopped, capabilities, wishes, the end of a pool, one real run."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadgen.cli.main import main
from loadgen.control.tables import pool_workers, run_attempts, run_leases, run_queue, run_status
from loadgen.model.nightly import PoolWorkerStatus, QueueStatus
from loadgen.model.run import RunStatus
from orchestrator.warehouse import TargetWarehouse
from tests.control_plane import ControlPlane, retries
from tests.embedded_server import EmbeddedServer
from tests.process.pool_harness import FaultPlan, PoolHarness, assert_all_is_well, assert_taken_in_order, wait_for
from tests.process.run_harness import write_connections

RUNNERS, RUNS = 4, 24
SCENARIO = """
version: 1
name: pooled
connection: embedded
embedded: {service_time: 200ms}
target: {warehouse: POOL_WH, database: BENCH, schema: PUBLIC}
values: {keys: {file: keys.csv, column: K}}
workload: {statements: [{name: nap, sql: "SELECT ?", params: [{pool: keys}]}]}
notify: [{command: [sh, -c, "cat > told.json"], on: [always]}]
load: {connections: 2, profile: process, warmup: 0s, duration: 4s}
timing: {tick: 200ms, heartbeat: 200ms, status_poll: 150ms, events_poll: 600ms, flush: 500ms, announce: 500ms}
"""


@pytest.fixture
def harness(server: EmbeddedServer, tmp_path: Path) -> Iterator[PoolHarness]:
    plane = ControlPlane(server)
    made = PoolHarness(plane, tmp_path)
    try:
        yield made
    finally:
        made.close()
        plane.close()


def row(harness: PoolHarness, queue_id: str) -> run_queue.QueuedRun:
    found = run_queue.read(harness.plane.session, queue_id)
    assert found is not None
    return found


@pytest.mark.slow
def test_runs_survive_runners_that_are_killed_and_stopped(harness):
    chance = random.Random(4711)
    queued = [
        harness.add(f"r{number}", {"ms": chance.randint(50, 800), "fails": number % 4 == 0}, priority=number % 3)
        for number in range(RUNS)
    ]
    hopeless = harness.add("hopeless", {"ms": 10, "exit": 4}, max_attempts=2)
    harness.start(f"--min={RUNNERS}", f"--max={RUNNERS}", "--grace=10s")
    wait_for(lambda: len(harness.runner_pids()) >= 2, "runners register", harness)

    signals = harness.inject_faults(FaultPlan(kills=3, stops=2, every_s=0.7), chance)
    wait_for(lambda: not harness.unfinished(), "every run ends", harness)
    wait_for(
        lambda: all(one.ended_at for each in harness.attempts().values() for one in each), "all attempts end", harness
    )

    assert len(signals) >= 3
    how = assert_all_is_well(harness, [*queued, hopeless])
    assert_taken_in_order(harness)
    assert row(harness, hopeless).status is QueueStatus.EXHAUSTED
    assert how[QueueStatus.COMPLETED] == RUNS  # five disturbances cannot cost one run five attempts


def test_runners_take_matching_runs_obey_requests_and_end_gracefully(harness):
    """One pool of one runner: a capability it lacks, a cancelled run, a drained runner, and a signal during a run."""
    foreign = harness.add("foreign", {"ms": 1}, requires=("zone=us",), priority=9)
    cancelled = harness.add("cancelled", {"ms": 600_000})
    done = harness.add("done", {"ms": 1, "exit": 10}, requires=("zone=eu", "os=linux"))
    bad = harness.add("bad", {"ms": 1, "exit": 2})
    pool = harness.start("--min=1", "--max=1", "--labels=zone=eu", "--grace=1s")
    wait_for(lambda: row(harness, cancelled).run_id, "the run's id is known while it runs", harness)

    run_queue.cancel(harness.plane.session, retries(), cancelled, "enough")
    wait_for(
        lambda: row(harness, done).status.is_terminal and row(harness, bad).status.is_terminal,
        "the others end",
        harness,
    )
    seen = {name: row(harness, name) for name in (foreign, cancelled, done, bad)}
    (runner,) = online(harness)
    pool_workers.drain(harness.plane.session, retries(), runner)
    wait_for(
        lambda: online(harness) not in ([], [runner]), "another runner takes the place of the drained one", harness
    )
    interrupted = harness.add("interrupted", {"ms": 600_000})
    wait_for(lambda: row(harness, interrupted).run_id, "it runs", harness)
    pool.send_signal(signal.SIGTERM)
    code = pool.wait(60)

    assert (seen[foreign].status, seen[foreign].epoch) == (QueueStatus.QUEUED, 0)
    assert (seen[cancelled].status, seen[cancelled].reason) == (QueueStatus.CANCELLED, "enough")
    assert (seen[done].status, seen[done].exit_code) == (QueueStatus.COMPLETED, 10)
    assert (seen[bad].status, seen[bad].attempts) == (QueueStatus.FAILED, 1)
    assert code == 0
    assert (row(harness, interrupted).status, row(harness, interrupted).attempts) == (QueueStatus.QUEUED, 0)
    assert [one.status for one in run_attempts.read(harness.plane.session, interrupted)] == ["INTERRUPTED"]
    assert online(harness) == []
    assert sorted(path.name for path in (harness.folder / "runs").glob("run-*")) == sorted(
        f"run-{queue_id[-16:]}-1" for queue_id in (cancelled, done, bad, interrupted)
    )


def test_the_run_of_a_killed_pool_goes_on_in_the_next_one_at_once(harness):
    """No process was left to report the end; the lease would last for an hour."""
    queue_id = harness.add("killed", {"ms": 600_000})
    pool = harness.start("--min=1", "--max=1", lease_s=3600.0)
    wait_for(lambda: row(harness, queue_id).run_id, "it runs", harness)
    (runner,) = online(harness)
    (pid,) = harness.runner_pids()
    pool.kill()
    os.kill(pid, signal.SIGKILL)
    pool.wait()

    harness.start("--min=1", "--max=1", "--grace=1s", lease_s=3600.0)

    wait_for(lambda: row(harness, queue_id).epoch == 2, "another runner has it", harness)
    assert row(harness, queue_id).owner not in (None, runner)
    assert next(one.status for one in run_attempts.read(harness.plane.session, queue_id)) == "LOST"
    assert runner not in online(harness)


@pytest.mark.slow
def test_a_real_run_goes_through_the_queue(harness, capsys, monkeypatch):
    """Added, executed and listed with the commands that a user types. The file is removed before the run begins, and
    another run has the warehouse at first. Each client is a separate process."""
    file, keys = harness.folder / "pooled.yaml", harness.folder / "keys.csv"
    file.write_text(SCENARIO, "utf-8")
    keys.write_text("K\n1\n2\n", "utf-8")
    for key, value in harness.plane.environ.items():
        monkeypatch.setenv(key, value)

    def ask(*words: str) -> dict[str, Any]:
        code = main([*words, "--format=json", "--database", harness.plane.place.database, "-c", "embedded"])
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert code == 0, answer
        return answer

    judged = ("--baseline=trend", "--confirm")
    queue_id = ask("queue", "add", str(file), *judged, "--idempotency-key=night-1", "--requires=zone=eu")["queue_id"]
    again = ask("queue", "add", str(file), *judged, "--idempotency-key=night-1", "--requires=zone=eu")
    file.unlink()
    keys.unlink()
    held = harness.plane.claim(TargetWarehouse(account="EMBEDDED", name="POOL_WH").key, ttl_s=600.0)
    allowed = "--allow-command=sh"
    harness.start("--min=1", "--max=1", "--labels=zone=eu", allowed, fake_program=False, lease_s=60.0)  # not to be lost
    wait_for(lambda: row(harness, queue_id).exit_code, "the warehouse is in use", harness)
    busy = row(harness, queue_id)
    run_leases.release(harness.plane.session, held)
    harness.plane.change("UPDATE RUN_QUEUE SET AVAILABLE_AT = SYSDATE() WHERE QUEUE_ID = ?", queue_id)
    wait_for(lambda: row(harness, queue_id).status.is_terminal, "the run ends", harness)

    wait_for(lambda: ask("pool", "stats")["idle_workers"], "the registry hears of it", harness)
    shown, stats = ask("queue", "show", queue_id[:-4]), ask("pool", "stats")
    assert again == {"queue_id": queue_id, "added": False}
    assert (busy.status, busy.exit_code, busy.attempts, busy.available_in_ms > 0) == (QueueStatus.QUEUED, 75, 0, True)
    assert busy.reason is not None
    assert busy.reason.startswith("warehouse POOL_WH is in use by another run")
    assert (shown["status"], shown["attempts"]) == ("COMPLETED", 1), shown["history"]
    assert {(one["status"], one["exit_code"]) for one in shown["history"][:-1]} == {("SKIPPED", 75)}
    assert shown["exit_code"] == 0
    run = run_status.read(harness.plane.session, shown["run_id"])
    assert run is not None
    assert run.status is RunStatus.COMPLETED
    summary = json.loads((harness.folder / "runs" / run.run_id / "summary.json").read_text("utf-8"))
    assert [one["succeeded"] > 0 for one in summary["worker_results"]] == [True, True]
    clients = "SELECT TARGET_CONNECTIONS, COUNT(DISTINCT PID) FROM WORKER_HEARTBEATS WHERE RUN_ID = ? GROUP BY 1"
    assert harness.plane.rows(clients, run.run_id) == [(1, 2)]
    if summary["validity"]["valid"]:
        assert summary["baseline"]["verdict"] == "learning"
    told = json.loads((harness.folder / "told.json").read_text("utf-8"))
    assert (told["run_id"], told["exit_code"]) == (run.run_id, shown["exit_code"])
    assert (stats["total_workers"], stats["processing_workers"]) == (1, 0)
    ended = f"runner-1 ended {queue_id}: COMPLETED {summary['verdict']}, exit code 0"
    for line in (f"runner-1 claimed {queue_id}, attempt 1", f"runner-1 started {queue_id} as run {run.run_id}", ended):
        wait_for(lambda line=line: line in harness.log(), line, harness)  # type: ignore[misc]
    assert (stats["total_completed"], stats["total_failed"]) == (1, 0)
    assert next(iter(stats["workers"].values())).keys() == {"status", "current_run", "completed", "failed"}


def online(harness: PoolHarness) -> list[str]:
    page = pool_workers.page(harness.plane.session, retries(), 100, status=PoolWorkerStatus.ONLINE)
    return [worker.identity.worker_id for worker in page.workers]


IDLE_POLL_S = 3.0
LOOKS_AN_HOUR = 6  # with --idle-poll 10m, the default


@pytest.mark.slow
def test_an_idle_pool_lets_the_warehouse_sleep_and_wakes_up_for_work(harness):
    server = harness.plane.server
    write_connections(harness.folder, {"account": server})
    harness.place[1] = "account"  # an embedded control plane costs nothing: there is no back-off
    begun_ms = server.ask("/__loadgen/history")[-1]["end_ms"]

    def history() -> list[dict[str, Any]]:
        return [line for line in server.ask("/__loadgen/history") if line["start_ms"] > begun_ms]

    def idle_looks() -> list[float]:
        """The times at which the pool polled an empty queue after the idle interval."""
        times_ms = [line["start_ms"] for line in history() if line["sql_text"].startswith("SELECT SUM(IFF(STATUS")]
        return [now for before, now in itertools.pairwise(times_ms) if now - before > IDLE_POLL_S * 900]

    harness.start("--max=1", f"--idle-poll={IDLE_POLL_S}s")
    wait_for(lambda: len(idle_looks()) > LOOKS_AN_HOUR, "an hour of looks", harness)
    first_ms, *_, last_ms = idle_looks()[: LOOKS_AN_HOUR + 1]
    statements = [line["sql_text"] for line in history() if first_ms <= line["start_ms"] < last_ms]
    queue_id = harness.add("late", {"ms": 50})
    wait_for(lambda: row(harness, queue_id).status is QueueStatus.COMPLETED, "it is done", harness)

    assert len(statements) < 30, "\n".join(sorted(statements))
    (line,) = [line for line in harness.log().splitlines() if "credits a day" in line]
    assert line.startswith("while nothing is queued, one poll per 3s keeps ")
