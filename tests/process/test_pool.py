"""Pools as processes: runners that are killed and stopped, capabilities, wishes, the end of a pool, one real run."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
from typing import Any

import pytest

from loadgen.cli.main import main
from loadgen.control.tables import pool_workers, run_attempts, run_leases, run_queue, run_status
from loadgen.model.nightly import PoolWorkerStatus, QueueStatus
from loadgen.model.run import RunStatus
from orchestrator.warehouse import TargetWarehouse
from tests.control_plane import retries
from tests.process.pool_harness import FaultPlan, PoolHarness, assert_all_is_well, assert_taken_in_order
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


@pytest.mark.slow
def test_runs_survive_runners_that_are_killed_and_stopped(pools):
    chance = random.Random(4711)
    queued = [
        pools.add(f"r{number}", {"ms": chance.randint(50, 800), "fails": number % 4 == 0}, priority=number % 3)
        for number in range(RUNS)
    ]
    hopeless = pools.add("hopeless", {"ms": 10, "exit": 4}, max_attempts=2)
    pools.start(f"--min={RUNNERS}", f"--max={RUNNERS}", "--grace=10s")
    pools.wait_until(lambda: len(pools.runner_pids()) >= 2, "runners register")

    signals = pools.inject_faults(FaultPlan(kills=3, stops=2, every_s=0.7), chance)
    pools.wait_until(lambda: not pools.unfinished(), "every run ends")
    pools.wait_until(
        lambda: all(one.ended_at for each in pools.attempts().values() for one in each), "all attempts end"
    )

    assert len(signals) >= 3
    how = assert_all_is_well(pools, [*queued, hopeless])
    assert_taken_in_order(pools)
    assert pools.row(hopeless).status is QueueStatus.EXHAUSTED
    assert how[QueueStatus.COMPLETED] == RUNS  # five disturbances cannot cost one run five attempts


def test_runners_take_matching_runs_obey_requests_and_end_gracefully(pools):
    """One pool of one runner: a capability it lacks, a cancelled run, a drained runner, and a signal during a run."""
    foreign = pools.add("foreign", {"ms": 1}, requires=("zone=us",), priority=9)
    cancelled = pools.add("cancelled", {"ms": 600_000})
    done = pools.add("done", {"ms": 1, "exit": 10}, requires=("zone=eu", "os=linux"))
    bad = pools.add("bad", {"ms": 1, "exit": 2})
    pool = pools.start("--min=1", "--max=1", "--labels=zone=eu", "--grace=1s")
    pools.wait_until(lambda: pools.row(cancelled).run_id, "the run's id is known while it runs")

    run_queue.cancel(pools.plane.session, retries(), cancelled, "enough")
    pools.wait_until(
        lambda: pools.row(done).status.is_terminal and pools.row(bad).status.is_terminal,
        "the others end",
    )
    seen = {name: pools.row(name) for name in (foreign, cancelled, done, bad)}
    (runner,) = online(pools)
    pool_workers.drain(pools.plane.session, retries(), runner)
    pools.wait_until(lambda: online(pools) not in ([], [runner]), "another runner takes the place of the drained one")
    interrupted = pools.add("interrupted", {"ms": 600_000})
    pools.wait_until(lambda: pools.row(interrupted).run_id, "it runs")
    pool.send_signal(signal.SIGTERM)
    code = pool.wait(60)

    assert (seen[foreign].status, seen[foreign].epoch) == (QueueStatus.QUEUED, 0)
    assert (seen[cancelled].status, seen[cancelled].reason) == (QueueStatus.CANCELLED, "enough")
    assert (seen[done].status, seen[done].exit_code) == (QueueStatus.COMPLETED, 10)
    assert (seen[bad].status, seen[bad].attempts) == (QueueStatus.FAILED, 1)
    assert code == 0
    assert (pools.row(interrupted).status, pools.row(interrupted).attempts) == (QueueStatus.QUEUED, 0)
    assert [one.status for one in run_attempts.read(pools.plane.session, interrupted)] == ["INTERRUPTED"]
    assert online(pools) == []
    assert sorted(path.name for path in (pools.folder / "runs").glob("run-*")) == sorted(
        f"run-{queue_id[-16:]}-1" for queue_id in (cancelled, done, bad, interrupted)
    )


def test_the_run_of_a_killed_pool_goes_on_in_the_next_one_at_once(pools):
    """No process was left to report the end; the lease would last for an hour."""
    queue_id = pools.add("killed", {"ms": 600_000})
    pool = pools.start("--min=1", "--max=1", lease_s=3600.0)
    pools.wait_until(lambda: pools.row(queue_id).run_id, "it runs")
    (runner,) = online(pools)
    (pid,) = pools.runner_pids()
    pool.kill()
    os.kill(pid, signal.SIGKILL)
    pool.wait()

    pools.start("--min=1", "--max=1", "--grace=1s", lease_s=3600.0)

    pools.wait_until(lambda: pools.row(queue_id).epoch == 2, "another runner has it")
    assert pools.row(queue_id).owner not in (None, runner)
    assert next(one.status for one in run_attempts.read(pools.plane.session, queue_id)) == "LOST"
    assert runner not in online(pools)


@pytest.mark.slow
def test_a_real_run_goes_through_the_queue(pools, capsys, monkeypatch):
    """Added, executed and listed with the commands that a user types. The file is removed before the run begins, and
    another run has the warehouse at first. Each client is a separate process."""
    file, keys = pools.folder / "pooled.yaml", pools.folder / "keys.csv"
    file.write_text(SCENARIO, "utf-8")
    keys.write_text("K\n1\n2\n", "utf-8")
    for key, value in pools.plane.environ.items():
        monkeypatch.setenv(key, value)

    def ask(*words: str) -> dict[str, Any]:
        code = main([*words, "--format=json", "--database", pools.plane.place.database, "-c", "embedded"])
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert code == 0, answer
        return answer

    judged = ("--baseline=trend", "--confirm")
    queue_id = ask("queue", "add", str(file), *judged, "--idempotency-key=night-1", "--requires=zone=eu")["queue_id"]
    again = ask("queue", "add", str(file), *judged, "--idempotency-key=night-1", "--requires=zone=eu")
    file.unlink()
    keys.unlink()
    held = pools.plane.claim(TargetWarehouse(account="EMBEDDED", name="POOL_WH").key, ttl_s=600.0)
    allowed = "--allow-command=sh"
    pools.start("--min=1", "--max=1", "--labels=zone=eu", allowed, fake_program=False, lease_s=60.0)  # not to be lost
    pools.wait_until(lambda: pools.row(queue_id).exit_code, "the warehouse is in use")
    busy = pools.row(queue_id)
    run_leases.release(pools.plane.session, held)
    pools.plane.change("UPDATE RUN_QUEUE SET AVAILABLE_AT = SYSDATE() WHERE QUEUE_ID = ?", queue_id)
    pools.wait_until(lambda: pools.row(queue_id).status.is_terminal, "the run ends")

    pools.wait_until(lambda: ask("pool", "stats")["idle_workers"], "the registry hears of it")
    shown, stats = ask("queue", "show", queue_id[:-4]), ask("pool", "stats")
    assert again == {"queue_id": queue_id, "added": False}
    assert (busy.status, busy.exit_code, busy.attempts, busy.available_in_ms > 0) == (QueueStatus.QUEUED, 75, 0, True)
    assert busy.reason is not None
    assert busy.reason.startswith("warehouse POOL_WH is in use by another run")
    assert (shown["status"], shown["attempts"]) == ("COMPLETED", 1), shown["history"]
    assert {(one["status"], one["exit_code"]) for one in shown["history"][:-1]} == {("SKIPPED", 75)}
    assert shown["exit_code"] == 0
    run = run_status.read(pools.plane.session, shown["run_id"])
    assert run is not None
    assert run.status is RunStatus.COMPLETED
    summary = json.loads((pools.folder / "runs" / run.run_id / "summary.json").read_text("utf-8"))
    assert [one["succeeded"] > 0 for one in summary["worker_results"]] == [True, True]
    clients = "SELECT TARGET_CONNECTIONS, COUNT(DISTINCT PID) FROM WORKER_HEARTBEATS WHERE RUN_ID = ? GROUP BY 1"
    assert pools.plane.rows(clients, run.run_id) == [(1, 2)]
    if summary["validity"]["valid"]:
        assert summary["baseline"]["verdict"] == "learning"
    told = json.loads((pools.folder / "told.json").read_text("utf-8"))
    assert (told["run_id"], told["exit_code"]) == (run.run_id, shown["exit_code"])
    assert (stats["total_workers"], stats["processing_workers"]) == (1, 0)
    ended = f"runner-1 ended {queue_id}: COMPLETED {summary['verdict']}, exit code 0"
    for line in (f"runner-1 claimed {queue_id}, attempt 1", f"runner-1 started {queue_id} as run {run.run_id}", ended):
        pools.wait_until(lambda line=line: line in pools.log(), line)
    assert (stats["total_completed"], stats["total_failed"]) == (1, 0)
    assert next(iter(stats["workers"].values())).keys() == {"status", "current_run", "completed", "failed"}


def online(pools: PoolHarness) -> list[str]:
    page = pool_workers.page(pools.plane.session, retries(), 100, status=PoolWorkerStatus.ONLINE)
    return [worker.identity.worker_id for worker in page.workers]


IDLE_POLL_S = 3.0
LOOKS_AN_HOUR = 6  # with --idle-poll 10m, the default


@pytest.mark.slow
def test_an_idle_pool_lets_the_warehouse_sleep_and_wakes_up_for_work(pools):
    server = pools.plane.server
    write_connections(pools.folder, {"account": server})
    pools.place[1] = "account"  # an embedded control plane costs nothing: there is no back-off
    begun_ms = server.ask("/__loadgen/history")[-1]["end_ms"]

    def history() -> list[dict[str, Any]]:
        return [line for line in server.ask("/__loadgen/history") if line["start_ms"] > begun_ms]

    def idle_looks() -> list[float]:
        """The times at which the pool polled an empty queue after the idle interval."""
        times_ms = [line["start_ms"] for line in history() if line["sql_text"].startswith("SELECT SUM(IFF(STATUS")]
        return [now for before, now in itertools.pairwise(times_ms) if now - before > IDLE_POLL_S * 900]

    pools.start("--max=1", f"--idle-poll={IDLE_POLL_S}s")
    pools.wait_until(lambda: len(idle_looks()) > LOOKS_AN_HOUR, "an hour of looks")
    first_ms, *_, last_ms = idle_looks()[: LOOKS_AN_HOUR + 1]
    statements = [line["sql_text"] for line in history() if first_ms <= line["start_ms"] < last_ms]
    queue_id = pools.add("late", {"ms": 50})
    pools.wait_until(lambda: pools.row(queue_id).status is QueueStatus.COMPLETED, "it is done")

    assert len(statements) < 30, "\n".join(sorted(statements))
    (line,) = [line for line in pools.log().splitlines() if "credits a day" in line]
    assert line.startswith("while nothing is queued, one poll per 3s keeps ")
