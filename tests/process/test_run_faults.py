"""Faults of a run: its orchestrator is killed, its control plane is unreachable, its user interrupts it, its limits are
exceeded. In every case nothing is left running, the run ends, and every number is that of the server.

Whether a result is valid depends on the load of this machine as well: where a test needs a verdict, its statements
take much longer than a busy machine delays them.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadgen.control.lease import LeaseTimes
from loadgen.control.session import ControlSession
from loadgen.control.tables.run_status import Fenced
from orchestrator.leadership import Leadership
from tests.control_plane import ControlPlane, retries
from tests.embedded_server import EmbeddedServer
from tests.fake_clock import FakeClock
from tests.process.run_harness import MEASURES, TIMING, Program, RunHarness, history, run_harness
from tests.processes import reachable_directory, wait_until

SLOTS = 16
SLOW = {"statements": [{"name": "slow", "sql": "SELECT SYSTEM$WAIT(100)"}]}
NAP = {"statements": [{"name": "nap", "sql": "SELECT SYSTEM$WAIT(200, 'MILLISECONDS')"}]}
PATIENT = {"statement_timeout": "2m"}
ENDS_SOON = {"warmup": "0s", "duration": "1s"}
RESULTS_READ = "FROM TEST_RESULTS WHERE RUN_ID"  # by the orchestrator alone, when every worker is over
pytestmark = pytest.mark.scenario(embedded={"slots": SLOTS, "service_time": "20ms"})


def under_way(server: EmbeddedServer) -> int:
    return int(server.ask("/__loadgen/stats")["under_way"])


def left_open(server: EmbeddedServer, since_ms: float) -> set[int]:
    """Sessions of workers that were not closed."""
    used = {line["session_id"] for line in server.ask(f"/__loadgen/history?tag=worker-&since={since_ms}")}
    closed = {
        line["session_id"] for line in server.ask("/__loadgen/journal?path=/session") if line["path"] == "/session"
    }
    return used - closed


# --- the orchestrator is killed --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_orchestrator_killed_in_any_phase_leaves_nothing_and_its_run_is_ended(harness: RunHarness) -> None:
    """However slow the machine: no phase ends before its run is killed. Runs begin before results are slow to read: a
    run that begins ends what others have left, and reads their results."""
    server, since_ms = harness.server, harness.server.ask("/__loadgen/stats")["now_ms"]
    led = {"timing": {"lease_ttl": "1h"}}
    runs = {
        "STARTING PREPARING": harness.run(**led),
        "RUNNING WARMUP": harness.run(load={"warmup": "1h"}, **led),
        MEASURES: harness.run(load={"duration": "1h"}, **led),
    }
    for state, run in runs.items():
        run.wait_for(state)
        if state == MEASURES:
            wait_until(lambda: history(server, runs[MEASURES].run_id)[None] > 20, "it has measured something")
        run.kill()
    runs["STOPPING"] = stopping = harness.run(workload=SLOW, target=PATIENT, load=ENDS_SOON, **led)
    stopping.wait_for("STARTING PREPARING")
    processing = harness.run(load=ENDS_SOON, **led)
    processing.wait_for("STARTING PREPARING")
    server.fault(match=RESULTS_READ, kind="latency", ms=60_000)
    stopping.wait_for("STOPPING")
    stopping.kill()
    wait_until(lambda: harness.state(processing.run_id)[1] == "PROCESSING", "it makes its results")
    processing.kill()
    server.clear_faults()

    every = [*runs.values(), processing]
    for run in every:
        run.wait_alone()
    wait_until(lambda: under_way(server) == 0, "nothing runs on the server")
    assert left_open(server, since_ms) == set()
    harness.expire(*(run.run_id for run in every))
    recovery = harness.recover()
    assert recovery.ended() == 0, recovery.said

    assert {one["status"] for one in recovery.printed["recovered"]} == {"FAILED"}
    for run in every:
        status, phase, reason = harness.state(run.run_id)
        assert (status, phase) == ("FAILED", "PROCESSING")
        assert "its orchestrator was lost" in reason
    for run in (runs[MEASURES], processing):  # the workers have stored what they measured, to the last statement
        assert stored(harness, run)["totals"]["succeeded"] == history(server, run.run_id)[None] > 0
    cut = stored(harness, runs[MEASURES])
    assert 0 < cut["delivered"]["fraction"] < 0.99, "most of its hour was never measured"
    assert any("delivered load was" in reason for reason in cut["validity"]["reasons"])
    assert stored(harness, processing)["delivered"]["fraction"] > 0.5
    assert stored(harness, runs["RUNNING WARMUP"])["delivered"]["fraction"] == 0.0, "its plan had begun"


def stored(harness: RunHarness, run: Program) -> dict[str, Any]:
    sql = "SELECT SUMMARY FROM TEST_RESULTS WHERE RUN_ID = ? AND WORKER_ID IS NULL"
    ((text,),) = harness.rows(sql, run.run_id)
    return dict(json.loads(text))


# --- the server freezes over the end of the measurement --------------------------------------------------------------


@pytest.mark.slow
def test_a_freeze_that_outlasts_the_measurement_is_seen_in_full(harness: RunHarness) -> None:
    """Every statement in flight takes longer than the whole measurement, whenever it was sent in it."""
    run = harness.run(
        workload=NAP,
        target=PATIENT,
        load={"connections": 8, "duration": "5s"},
        thresholds=["longest_stall < 1s", {"check": "p95 < 5s", "window": "5s"}],
    )
    run.wait_for(MEASURES)
    wait_until(lambda: history(harness.server, run.run_id)[None] >= 40, f"it has a median: {run.said}")
    harness.server.fault(match="SYSTEM.WAIT", kind="latency", ms=8_000, count=8)

    run.ended()

    stall, late = run.summary["thresholds"][:2]
    assert (stall["passed"], late["passed"]) == (False, False)
    assert run.summary["stalls"]["spans_s"][-1][1] > 7.0, "until they were answered"
    assert late["value"] > 5_000


# --- the user is impatient -------------------------------------------------------------------------------------------


def interrupt(run: Program, *numbers: int) -> None:
    """Each signal after the previous one was handled."""
    for number, heard in zip(numbers, ("again to cancel them", "cancelling", "ended at once"), strict=False):
        run.send(number)
        if number is not numbers[-1] or len(numbers) == 3:
            wait_until(lambda: heard in run.said or run.process.poll() is not None, f"{heard}: {run.said}")  # noqa: B023


def check_gone(harness: RunHarness, run: Program, code: int, status: str | None) -> None:
    assert run.ended() == code, run.said
    run.wait_alone()
    if status is not None:
        assert (run.summary["status"], run.summary["exit_code"]) == (status, code)
        assert harness.state(run.run_id)[0] == status


def test_interrupted_before_any_worker_works(harness: RunHarness) -> None:
    starting = harness.run()
    starting.wait_for("STARTING PREPARING")
    interrupt(starting, signal.SIGTERM)
    check_gone(harness, starting, 143, "CANCELLED")
    harness.server.fault(match="/session/v1/login-request", kind="hang")

    connecting = harness.run()
    connecting.wait_for("connecting")
    interrupt(connecting, signal.SIGINT, signal.SIGINT, signal.SIGINT)

    check_gone(harness, connecting, 130, None)
    assert "statements may still be running on the server" in connecting.said


@pytest.mark.slow
def test_interrupted_while_statements_are_under_way(harness: RunHarness) -> None:
    """They would take a hundred seconds. The second signal cancels them; after the third the workers do."""
    warming = harness.run(workload=SLOW, target=PATIENT, load={"warmup": "60s"})
    measuring = harness.run(workload=SLOW, target=PATIENT, load={"warmup": "0s"})
    warming.wait_for("RUNNING WARMUP")
    measuring.wait_for(MEASURES)
    wait_until(lambda: under_way(harness.server) >= 4, "four statements are under way")

    interrupt(warming, signal.SIGINT, signal.SIGINT)
    interrupt(measuring, signal.SIGINT, signal.SIGINT, signal.SIGINT)

    check_gone(harness, warming, 130, "CANCELLED")
    check_gone(harness, measuring, 130, None)
    wait_until(lambda: under_way(harness.server) == 0, "nothing runs on the server")


@pytest.mark.slow
def test_interrupted_while_it_ends(harness: RunHarness) -> None:
    """Measurements are kept, and the exit code shows that the user interrupted the run."""
    draining = harness.run(workload=SLOW, target=PATIENT, load=ENDS_SOON)
    impatient = harness.run(workload=SLOW, target=PATIENT, load=ENDS_SOON)
    processing = harness.run(load=ENDS_SOON)
    processing.wait_for(MEASURES)
    harness.server.fault(match=RESULTS_READ, kind="latency", ms=6_000, count=1)
    wait_until(lambda: harness.state(processing.run_id)[1] == "PROCESSING", "it makes its results")
    interrupt(processing, signal.SIGTERM)
    for run in (draining, impatient):
        run.wait_for("STOPPING")

    interrupt(draining, signal.SIGINT)
    interrupt(impatient, signal.SIGINT, signal.SIGINT)

    check_gone(harness, processing, 143, "COMPLETED")
    assert processing.summary["totals"]["succeeded"] == history(harness.server, processing.run_id)[None] > 0
    for run in (draining, impatient):
        check_gone(harness, run, 130, "COMPLETED")
    wait_until(lambda: under_way(harness.server) == 0, "nothing runs on the server")


# --- the control plane goes away -------------------------------------------------------------------------------------


@pytest.fixture
def data_dir() -> Iterator[Path]:
    with reachable_directory() as folder:
        yield folder / "data"


def test_a_control_plane_that_is_killed_and_comes_back_costs_no_worker_and_no_statement(
    server: EmbeddedServer, tmp_path: Path, data_dir: Path
) -> None:
    """The tables are on one server, the warehouse under test on another. The outage is longer than the limit for silent
    workers, and than the lease; the measurement ends while the run has no leader."""
    timing = TIMING | {"heartbeat": "200ms", "status_poll": "200ms", "stale": "1s", "dead": "1500ms"}
    timing |= {"lease_ttl": "3s", "lease_renew": "1s", "lease_margin": "1s"}
    with (
        EmbeddedServer("--strict-hybrid", data_dir=data_dir) as control,
        run_harness(control, tmp_path, {"account": server}) as harness,
    ):
        run = harness.run(
            connection="account",
            control={"connection": "embedded"},
            workload=NAP,
            load={"connections": 8, "duration": "5s"},
            timing=timing,
        )
        run.wait_for(MEASURES)
        wait_until(lambda: history(server, run.run_id)[None] > 20, "it has measured something")
        control.process.kill()
        control.process.wait()
        (log,) = run.folder.glob("runs/*/logs/worker-0.log")
        wait_until(lambda: log.read_text("utf-8").count("poll_failed") > 15, "it has been away for seconds")
        with EmbeddedServer("--strict-hybrid", "--port", str(control.port), data_dir=data_dir) as back:
            harness.server = back
            harness.expire(run.run_id)
            code, summary = run.ended(), run.summary
            run.wait_alone()

            assert code == 0, run.said
            assert "another run" not in summary["exit_reason"]  # no other run could take the warehouse, and none did
            assert "lease_reclaimed" in run.said
            assert run.said.count("tick_missed") == run.said.count("control_plane_back missed_ticks=") > 0
            assert [worker["status"] for worker in summary["worker_results"]] == ["DONE"]
            totals = summary["totals"]
            assert totals["scheduled"] == totals["succeeded"] == history(server, run.run_id)[None]
            assert harness.state(run.run_id)[0] == summary["status"] == "COMPLETED"
            sql = "SELECT WORKER_ID FROM WINDOW_RESULTS WHERE RUN_ID = ? AND PHASE = 'MEASUREMENT' ORDER BY 1"
            assert harness.rows(sql, run.run_id) == [("worker-0",)]


def test_a_leader_that_lost_its_lease_is_not_ended_by_one_failed_response(server: EmbeddedServer) -> None:
    plane = ControlPlane(server)
    run_id = plane.new_run()
    times = LeaseTimes(ttl_s=3.0, renew_s=1.0, margin_s=1.0)
    session = plane.open("leader")
    leadership = Leadership(
        run_id,
        times,
        session,
        retries(attempts=50),
        lease_session=lambda: ControlSession(plane.place, role="lease", environ=plane.environ),
        clock=FakeClock(),
    )
    leadership.claim()
    plane.expire(run_id, since_s=1)
    server.fault(match="FROM RUN_LEASES", kind="http_status", probability=0.5)
    try:
        with pytest.raises(Fenced, match="is led by another process now"):
            leadership.reclaim(threading.Event())
    finally:
        server.clear_faults()
        leadership.resign(releasing=False)
        plane.close()


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow  # unit tests and the simulation decide all of it
def test_guardrails_thresholds_and_a_rate_that_is_too_high(harness: RunHarness) -> None:
    slow = harness.run(  # alone: its client must not wait for the starts of others
        workload=NAP,
        load={"connections": 8},
        thresholds=[{"check": "p95 < 5ms", "window": "2s", "after": "1s", "abort": True}],
    )
    assert slow.ended() == 10, slow.said
    assert (slow.summary["status"], slow.summary["thresholds"][0]["passed"]) == ("COMPLETED", False)
    assert "p95 < 5ms in every 2 s was not met" in harness.state(slow.run_id)[2]
    assert slow.summary["measured_seconds"] < 60
    polled = {"warehouse_poll": "200ms"}
    costly = harness.run(timing=polled, guardrails={"max_credits": 1e-9})
    warming = harness.run(timing=polled, load={"warmup": "60s"}, guardrails={"max_credits": 5e-3})
    offered = harness.run(
        load={"mode": "rate", "rate": "150/s", "max_connections": 2, "connections": None, "duration": "3s"},
    )

    spent = "the warehouse has cost {} credits or more, which is guardrails.max_credits"
    assert costly.ended() == 4
    assert f"{spent.format('1e-09')}; the run has not begun" in costly.said, "preparing tables costs as well"
    assert not list(costly.folder.glob("runs/*/summary.json"))
    said = spent.format("0.005")
    assert warming.ended() == 4
    assert (warming.summary["status"], warming.summary["exit_reason"]) == ("FAILED", said)
    assert harness.state(warming.run_id) == ("FAILED", "PROCESSING", said)
    assert warming.summary["totals"]["scheduled"] == 0
    assert MEASURES not in warming.said

    assert offered.ended() == 5
    summary, totals = offered.summary, offered.summary["totals"]
    assert any("because every connection was executing" in reason for reason in summary["validity"]["reasons"])
    assert (totals["scheduled"], totals["skipped"] > 0) == (450, True)
    assert summary["latency_ms"]["p50"] > 5 * summary["service_ms"]["p95"]  # waiting counts
    for run in (warming, slow, offered):
        run.wait_alone()
        assert run.summary["totals"]["succeeded"] == history(harness.server, run.run_id)[None]
    check_grows(harness, offered)


def check_grows(harness: RunHarness, run: Program) -> None:
    """Second by second statements have waited longer."""
    sql = (
        "SELECT P50_LATENCY_MS FROM WORKER_METRICS_SNAPSHOTS WHERE RUN_ID = ? AND PHASE = 'MEASUREMENT'"
        " AND P50_LATENCY_MS IS NOT NULL ORDER BY TIMESTAMP"
    )
    seconds = [row[0] for row in harness.rows(sql, run.run_id)]
    assert len(seconds) >= 3
    assert seconds == sorted(seconds)


def test_a_cost_that_cannot_be_seen_cannot_be_limited(server: EmbeddedServer, tmp_path: Path) -> None:
    with run_harness(server, tmp_path, {"account": server}) as harness:
        limited: dict[str, Any] = {"guardrails": {"max_credits": 1}, "control": {"connection": "embedded"}}
        unnamed = harness.run(connection="account", target={"warehouse": None}, **limited)
        assert unnamed.ended() == 2, unnamed.said
        assert "guardrails.max_credits is set, and no warehouse is named" in unnamed.said
        server.fault(match="SHOW WAREHOUSES", kind="error", errno=3001, message="not for you")

        refused = harness.run(connection="account", **limited)

        assert refused.ended() == 2, refused.said
        assert "could not be read: " in refused.said
        assert "hint: Name a warehouse on which the role has MONITOR or USAGE" in refused.said
        assert not list(refused.folder.glob("runs/*"))


# --- what a user can get wrong ---------------------------------------------------------------------------------------


def test_results_that_could_not_be_written_are_reported_before_there_is_a_run(harness: RunHarness) -> None:
    (harness.home / "file").touch()

    run = harness.run("--output-dir", harness.home / "file" / "runs")

    assert run.ended() == 2, run.said
    assert "hint: " in run.said
    assert harness.rows("SELECT COUNT(*) FROM RUN_STATUS WHERE STATUS = 'PREPARED'") == [(0,)]
