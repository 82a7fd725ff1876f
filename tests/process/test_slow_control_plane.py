"""Runs on a control plane whose statements take 300 ms, with the times that users have: they end as on a quick one.

`tests/unit/test_simulation.py` has more of them, and every kind of load. Here are the processes, the signals and the
driver. Two runs at once save time, not work: most of it is waiting.
"""

from __future__ import annotations

import json
import signal
import statistics
from collections.abc import Iterator
from typing import Any

import pytest

from tests.embedded_server import EmbeddedServer
from tests.process.run_harness import MEASURES, TIMING, Program, RunHarness, history, run_harness
from tests.processes import ROOT, wait_until

LATENCY = "lognormal(300ms,0.3)"
USUAL = dict.fromkeys(TIMING)  # the product's own, not the quick ones of other tests
QUICKSTART = ROOT / "examples" / "quickstart.yaml"
OF_MACHINE = "the client was"  # the limit, or paused: the fault of other programs, not of the control plane
WHOLE = 0.9  # of a window's load
EVENTS = "SELECT EVENT_TYPE FROM RUN_CONTROL_EVENTS WHERE RUN_ID = ? ORDER BY SEQUENCE_ID"


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunHarness]:
    with EmbeddedServer("--strict-hybrid", "--control-latency", LATENCY) as slow:
        # Statements take far longer than a busy machine adds to them.
        model = {"slots": 32, "service_time": "300ms"}
        with run_harness(slow, tmp_path_factory.mktemp("slow"), embedded=model, timing=USUAL) as made:
            yield made


def check_valid(summary: dict[str, Any], code: int) -> None:
    """Other programs may have taken the cores of a client; then some load may be missing, but not as much as an
    announcement that came too late would cost: seconds."""
    reasons = summary["validity"]["reasons"]
    disturbed = any(reason.startswith(OF_MACHINE) for reason in reasons)
    assert disturbed or not reasons, reasons
    assert (summary["status"], code) == ("COMPLETED", 5 if disturbed else 0), summary["exit_reason"]
    assert all(one["fraction"] > WHOLE for one in summary["delivered"]["by_window"]), summary["delivered"]


def check_passed(harness: RunHarness, run: Program) -> dict[str, Any]:
    """It has measured exactly the planned statements, and its workers have ended. Its summary."""
    code, summary = run.ended(), run.summary
    check_valid(summary, code)
    assert all(one["passed"] for one in summary["thresholds"])
    found, executed = summary.get("find_max"), history(harness.server, run.run_id)
    measured = sum(executed.values()) if found is None else executed[found["decisive_step"]]
    assert measured == summary["totals"]["succeeded"] > 0
    run.wait_alone()
    return summary


def check_cancelled(harness: RunHarness, run: Program) -> str:
    """It ended as requested, kept its measurements, and left nothing. Returns the reason of its row."""
    assert run.ended() == 130, run.said
    summary = run.summary
    assert (summary["status"], summary["verdict"]) == ("CANCELLED", "cancelled")
    assert summary["totals"]["succeeded"] == sum(history(harness.server, run.run_id).values()) > 0
    assert summary["totals"]["cancelled"] == 0, "what was under way could end"
    run.wait_alone()
    status, _, reason = harness.state(run.run_id)
    assert status == "CANCELLED"
    return reason


def test_a_run_is_stopped_in_its_second_stage(harness: RunHarness) -> None:
    stages = [{"duration": "3s", "connections": 2}, {"duration": "5m", "connections": 6}]
    stopped = harness.run(load={"connections": None, "duration": None, "stages": stages, "warmup": "0s"})
    stopped.wait_for(MEASURES)
    wait_until(lambda: history(harness.server, stopped.run_id)[2], "it is in its second stage")

    asked = harness.start("stop", stopped.run_id, "-c", "embedded", "--reason", "enough seen", "--format", "json")

    assert asked.ended() == 0, asked.said
    assert (asked.printed["asked"], asked.printed["status"]) == (True, "CANCELLING")
    assert check_cancelled(harness, stopped).endswith("enough seen")
    assert stopped.summary["delivered"]["by_window"][0]["planned_connection_seconds"] == 6.0
    assert [kind for (kind,) in harness.rows(EVENTS, stopped.run_id)] == ["START", "STOP"], "one event has the plan"
    polls = [line for line in harness.server.history() if " RUN_STATUS " in line["sql_text"]]
    assert statistics.median(line["end_ms"] - line["start_ms"] for line in polls) > 200, "they were slow"


@pytest.mark.slow
def test_a_run_is_interrupted(harness: RunHarness) -> None:
    run = harness.run(load={"duration": "5m"})
    run.wait_for(MEASURES)
    wait_until(lambda: history(harness.server, run.run_id)[None], "it has measured")

    run.send(signal.SIGINT)

    assert check_cancelled(harness, run) == "stopped by the user"


@pytest.mark.slow
def test_the_quickstart_passes(harness: RunHarness) -> None:
    run = harness.start("run", QUICKSTART, "--set", "load.duration=8s", "--format", "json")

    summary = check_passed(harness, run)

    assert [one["passed"] for one in summary["thresholds"]] == [True, True]


@pytest.mark.slow
def test_eight_workers_follow_their_stages_together(harness: RunHarness) -> None:
    stages = [{"duration": "4s", "connections": 8}, {"duration": "4s", "connections": 24}]
    run = harness.run(load={"connections": None, "duration": None, "stages": stages, "workers": 8, "warmup": "2s"})

    summary = check_passed(harness, run)

    assert [one["planned_connection_seconds"] for one in summary["delivered"]["by_window"]] == [32.0, 96.0]
    assert [one["status"] for one in summary["worker_results"]] == ["DONE"] * 8
    assert [kind for (kind,) in harness.rows(EVENTS, run.run_id)] == ["START", "STOP"]


@pytest.mark.slow
def test_a_search_finds_its_maximum_with_an_event_for_each_level(harness: RunHarness) -> None:
    search = {"start": 3, "increment": 4, "maximum": 7, "step": "4s", "settle": "500ms", "latency_stability_pct": 900}
    load = {"mode": "find_max", "workers": 3, "connections": None, "duration": None, "warmup": "0s"}
    run = harness.run(load=load | {"find_max": search | {"qps_stability_pct": 90, "stop_on_queue": False}})

    found = check_passed(harness, run)["find_max"]

    assert [step["target"] for step in found["steps"]][:2] == [3, 7]
    assert (found["result"], found["max_concurrency"]) == ("BOUNDED_MAX", 7), found
    levels = [kind for (kind,) in harness.rows(EVENTS, run.run_id) if kind == "SET_WORKER_TARGET"]
    assert len(levels) == len(found["steps"])


@pytest.mark.slow
def test_an_open_loop_sends_every_arrival(harness: RunHarness) -> None:
    load = {"mode": "rate", "rate": "20/s", "max_connections": 24, "connections": None, "duration": "6s", "workers": 2}
    run = harness.run(load=load, thresholds=["p95 < 2s", "error_rate < 1%"])

    summary = check_passed(harness, run)

    assert summary["delivered"]["planned_arrivals"] == summary["totals"]["scheduled"] == 120


@pytest.mark.slow
def test_a_run_whose_orchestrator_was_killed_is_recovered_with_what_it_measured(harness: RunHarness) -> None:
    run = harness.run(load={"duration": "5m", "workers": 2})
    run.wait_for(MEASURES)
    wait_until(lambda: history(harness.server, run.run_id)[None] > 20, "it has measured")

    run.kill()
    run.wait_alone()
    harness.expire(run.run_id)
    recovery = harness.recover()

    assert recovery.ended() == 0, recovery.said
    assert [(one["run_id"], one["status"]) for one in recovery.printed["recovered"]] == [(run.run_id, "FAILED")]
    assert "its orchestrator was lost" in harness.state(run.run_id)[2]
    sql = "SELECT SUMMARY FROM TEST_RESULTS WHERE RUN_ID = ? AND WORKER_ID IS NULL"
    ((text,),) = harness.rows(sql, run.run_id)
    assert json.loads(text)["totals"]["succeeded"] == history(harness.server, run.run_id)[None]


@pytest.mark.slow
def test_a_queued_run_is_done_by_a_pool(harness: RunHarness) -> None:
    file = harness.home / "queued.yaml"
    file.write_text(harness.text(1_000, load={"duration": "4s"}), "utf-8")
    added = harness.start("queue", "add", file, "-c", "embedded", "--format", "json")
    assert added.ended() == 0, added.said
    queue_id = added.printed["queue_id"]

    pool = harness.start("pool", "run", "--max", "1", "-c", "embedded")
    sql = "SELECT STATUS, ATTEMPTS, EXIT_CODE FROM RUN_QUEUE WHERE QUEUE_ID = ?"
    wait_until(
        lambda: harness.rows(sql, queue_id)[0][0] not in ("QUEUED", "RUNNING"),
        "it is done",
        unless=lambda: pool.process.poll() is not None and pool.said,
    )
    pool.send(signal.SIGTERM)

    assert pool.ended() == 0, pool.said
    pool.wait_alone()
    (row,) = harness.rows(sql, queue_id)
    summary = pool.summary
    assert row == ("COMPLETED", 1, summary["exit_code"]), pool.said
    check_valid(summary, row[2])
    assert sum(history(harness.server, summary["run_id"]).values()) == summary["totals"]["succeeded"] > 0
