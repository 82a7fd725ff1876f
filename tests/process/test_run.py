"""`loadgen run` as a user types it: real workers, real signals, and counts that the server confirms one by one.

Whether a number is valid is judged by how busy this machine was as well. So where a test needs a verdict, statements
are long beside what a busy machine adds to them.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.embedded_server import EmbeddedServer
from tests.process.run_harness import MEASURES, Program, RunHarness
from tests.processes import PATIENCE_S, PROGRAM, ROOT, alive, wait_until

QUICKSTART = ROOT / "examples" / "quickstart.yaml"
SHORT = ["--set", "load.warmup=1s", "--set", "load.duration=6s"]
ENDLESS = ["--set", "load.warmup=1s", "--set", "load.duration=5m"]
TOTALS = ("skipped", "succeeded", "failed", "cancelled")
RATE = """
version: 1
name: by-the-clock
connection: embedded
embedded: {service_time: 400ms}
target: {warehouse: BENCH_WH, database: BENCH, schema: PUBLIC}
workload: {statements: [{name: one, sql: SELECT 1}]}
load: {mode: rate, rate: 20/s, max_connections: 24, warmup: 1s, duration: 4s, workers: 1}
thresholds: [p95 < 1ms, error_rate < 1%]
"""
SLOW = """
version: 1
name: slow
connection: embedded
target: {warehouse: BENCH_WH, database: BENCH, schema: PUBLIC, statement_timeout: 2m}
workload: {statements: [{name: sleep, sql: SELECT SYSTEM$WAIT(60)}]}
load: {connections: 2}
"""
BULK = """
version: 1
name: bulk
connection: embedded
target: {database: BENCH, schema: PUBLIC}
prepare:
  tables:
    - name: RUN_BULK
      rows: 5m
      columns: [{name: ID, type: INTEGER, primary_key: true, generate: {sequence: {start: 1}}}]
workload: {statements: [{name: one, sql: SELECT 1}]}
"""


def executed(server: EmbeddedServer, run_id: str) -> Counter[str]:
    """What the server executed for the measurement of a run, by the first word of each statement."""
    lines = server.ask(f"/__loadgen/history?tag={run_id}")
    measured = [line for line in lines if json.loads(line["query_tag"])["phase"] == "MEASUREMENT"]
    return Counter(line["sql_text"].split()[0] for line in measured if not line["sql_text"].startswith("ALTER"))


def check_left_in_order(harness: RunHarness, run: Program, status: str, workers: int) -> None:
    """No process, no lease; one row for the run, and one for each worker that could still write."""
    summary = run.summary
    wait_until(lambda: not alive(run.pids), "every worker is gone")
    run_id = summary["run_id"]
    assert harness.rows("SELECT STATUS, VERDICT FROM RUN_STATUS WHERE RUN_ID = ?", run_id) == [
        (status, summary["verdict"])
    ]
    living = "SELECT COUNT(*) FROM RUN_LEASES WHERE RUN_ID = ? AND EXPIRES_AT > SYSDATE()"
    assert harness.rows(living, run_id) == [(0,)]
    sql = "SELECT WORKER_ID, STATUS, TOTAL_OPERATIONS FROM TEST_RESULTS WHERE RUN_ID = ? AND SUMMARY IS NOT NULL"
    results = harness.rows(sql, run_id)
    totals = summary["totals"]
    assert [row for row in results if row[0] is None] == [(None, status, totals["succeeded"] + totals["failed"])]
    assert sorted(row[0] for row in results if row[0]) == [f"worker-{number}" for number in range(workers)]


def check_against_the_server(harness: RunHarness, summary: dict[str, Any]) -> None:
    """Statement by statement, exactly."""
    totals, statements = summary["totals"], summary["statements"]
    assert totals["scheduled"] == sum(totals[name] for name in TOTALS)
    counted = {name: one["succeeded"] + one["failed"] for name, one in statements.items()}
    served = executed(harness.server, summary["run_id"])
    assert {"point_lookup": served["SELECT"], "pay": served["UPDATE"]} == counted
    assert sum(counted.values()) == totals["succeeded"] + totals["failed"] == totals["reads"] + totals["writes"]


@pytest.mark.parametrize("workers", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_the_quickstart_and_what_it_leaves(harness: RunHarness, workers: int) -> None:
    run = harness.start("run", QUICKSTART, *SHORT, "--set", f"load.workers={workers}", "--format", "json", "--quiet")
    code, summary = run.ended(), run.summary
    assert run.said == ""  # --quiet
    assert json.loads(run.out) == summary
    assert summary["exit_code"] == code
    assert code == 0, run.out
    assert (summary["status"], summary["connections"], summary["workers"]) == ("COMPLETED", 8, workers)
    assert [check["passed"] for check in summary["thresholds"]] == [True, True]
    assert harness.rows("SELECT CURRENT_VERSION()") == [(summary["environment"]["server"],)]
    check_against_the_server(harness, summary)
    check_left_in_order(harness, run, "COMPLETED", workers)
    # The mix is exact per cycle of 5 in each of 8 clients: 4 reads, 1 write.
    statements = summary["statements"]
    assert abs(statements["point_lookup"]["succeeded"] - 4 * statements["pay"]["succeeded"]) <= 4 * 8
    assert sum(worker["succeeded"] for worker in summary["worker_results"]) == summary["totals"]["succeeded"]
    registered = "SELECT WORKERS_REGISTERED, WORKERS_ACTIVE, WORKERS_COMPLETED FROM RUN_STATUS WHERE RUN_ID = ?"
    assert harness.rows(registered, summary["run_id"]) == [(workers, 0, workers)]


def test_a_killed_worker_fails_the_run_and_what_was_measured_is_kept(harness: RunHarness) -> None:
    run = harness.start("run", QUICKSTART, *ENDLESS, "--set", "load.workers=2")
    run.wait_for(MEASURES)
    wait_until(lambda: executed(harness.server, run.run_id)["SELECT"] > 50, "both have measured something")
    run.worker("worker-1").kill()
    assert run.ended() == 4
    summary = run.summary
    assert (summary["status"], summary["verdict"], summary["exit_code"]) == ("FAILED", "error", 4)
    assert "worker-1 was killed by signal 9" in summary["exit_reason"]
    assert "worker lost: worker-1 was killed by signal 9" in " ".join(summary["validity"]["reasons"])
    assert summary["totals"]["succeeded"] > 0
    assert [worker["status"] for worker in summary["worker_results"]] == ["DONE", "DEAD"]
    assert run.out.startswith("ERROR  quickstart")
    check_left_in_order(harness, run, "FAILED", 1)
    sql = "SELECT STATUS FROM TEST_RESULTS WHERE RUN_ID = ? AND WORKER_ID = 'worker-1' ORDER BY END_TIME"
    assert harness.rows(sql, summary["run_id"]) == [("FAILED",)]  # it could not write its result any more


def test_one_signal_ends_a_run_gracefully(harness: RunHarness) -> None:
    run = harness.start("run", QUICKSTART, *ENDLESS, "--format", "json")
    run.wait_for(MEASURES)
    run.process.send_signal(signal.SIGINT)
    assert run.ended() == 130
    summary = run.summary
    assert json.loads(run.out) == summary
    assert (summary["status"], summary["verdict"]) == ("CANCELLED", "cancelled")
    assert summary["totals"]["cancelled"] == 0  # what was under way could end
    check_against_the_server(harness, summary)
    check_left_in_order(harness, run, "CANCELLED", 1)


@pytest.mark.slow
def test_the_second_signal_cancels_what_is_under_way(harness: RunHarness, tmp_path: Path) -> None:
    """The statements sleep for a minute, and the drain would wait for them for twenty seconds."""
    path = tmp_path / "slow.yaml"
    path.write_text(SLOW, "utf-8")
    run = harness.start("run", path, "--set", "load.warmup=0s", "--set", "load.duration=5m")
    wait_until(lambda: run.look() and harness.server.ask("/__loadgen/stats")["running"] == 2, "both clients are busy")
    run.wait_for(MEASURES)
    run.process.send_signal(signal.SIGTERM)
    run.wait_for("again to cancel them")
    run.process.send_signal(signal.SIGINT)
    assert run.ended() == 143  # the first signal counts
    assert (run.summary["status"], run.summary["exit_code"]) == ("CANCELLED", 143)
    assert run.summary["worker_results"][0]["status"] == "DONE"  # it was asked, not killed
    wait_until(lambda: not alive(run.pids), "every worker is gone")
    wait_until(lambda: harness.server.ask("/__loadgen/stats")["running"] == 0, "nothing runs on the server")


def test_a_signal_before_there_is_a_run(harness: RunHarness, tmp_path: Path) -> None:
    path = tmp_path / "bulk.yaml"
    path.write_text(BULK, "utf-8")
    run = harness.start("run", path, "--format", "json")
    run.wait_for("of 5,000,000 rows")
    run.process.send_signal(signal.SIGINT)
    assert run.ended() == 130
    assert json.loads(run.out)["error"]["exit_code"] == 130
    assert "\nhint: " in run.said
    assert not list(run.folder.glob("runs/*"))


def test_offered_load_is_delivered_and_a_missed_threshold_is_exit_code_10(harness: RunHarness, tmp_path: Path) -> None:
    path = tmp_path / "rate.yaml"
    path.write_text(RATE, "utf-8")
    run = harness.start("run", path, "--format", "json")
    code, summary = run.ended(), run.summary
    assert json.loads(run.out) == summary
    totals = summary["totals"]
    assert (totals["scheduled"], totals["skipped"]) == (80, 0)
    assert totals["succeeded"] + totals["failed"] == executed(harness.server, summary["run_id"])["SELECT"] == 80
    assert [check["passed"] for check in summary["thresholds"]] == [False, True]
    assert code == 10, run.out
    assert summary["lag_ms"]["p50"] is not None
    check_left_in_order(harness, run, "COMPLETED", 1)


# --- runs that never begin -------------------------------------------------------------------------------------------


def connections_file(harness: RunHarness, name: str, port: int) -> None:
    folder = harness.home / ".snowflake"
    folder.mkdir(exist_ok=True)
    file = folder / "connections.toml"
    file.write_text(
        f'[{name}]\naccount = "embedded"\nuser = "tester"\npassword = "any"\nhost = "127.0.0.1"\n'
        f'port = {port}\nprotocol = "http"\n',
        "utf-8",
    )
    file.chmod(0o600)


def test_a_scenario_that_cannot_be(harness: RunHarness, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(RATE.replace("rate: 20/s", "rote: 20/s"), "utf-8")
    run = harness.start("run", path, "--format", "json")
    assert run.ended() == 2
    assert json.loads(run.out)["error"]["exit_code"] == 2
    assert "error: " in run.said
    assert "rote" in run.said


def test_an_unreachable_target(harness: RunHarness) -> None:
    connections_file(harness, "nowhere", 9)  # the discard port: no process listens there
    run = harness.start("run", QUICKSTART, *SHORT, "-c", "nowhere", "--format", "json")
    assert run.ended() == 3, run.said
    assert json.loads(run.out)["error"]["exit_code"] == 3
    assert "hint: " in run.said
    assert not list(run.folder.glob("runs/*"))


def test_without_control_tables_the_hint_is_setup(harness: RunHarness) -> None:
    connections_file(harness, "account", harness.server.port)
    run = harness.start("run", QUICKSTART, *SHORT, "-c", "account", "--set", "control.database=NOBODY_SET_UP")
    assert run.ended() in (2, 3), run.said
    assert "loadgen setup" in run.said.split("hint: ")[1]


def test_a_reader_that_leaves_is_no_error(harness: RunHarness) -> None:
    words = [*PROGRAM, "run", str(QUICKSTART), "--dry-run"]
    with subprocess.Popen(words, env=harness.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 141
        assert process.stderr.read() == b""
