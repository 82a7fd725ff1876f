"""Searches for the maximum whose worker or orchestrator is killed: the result contains what was measured before."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from tests.process.run_harness import MEASURES, Program, RunHarness, history
from tests.processes import wait_until

# Levels hold on any machine: the search needs more time than the test has.
SEARCH = {
    "start": 2,
    "increment": 2,
    "maximum": 200,
    "step": "1s",
    "settle": "200ms",
    "stop_on_queue": False,
    "qps_stability_pct": 100,
    "latency_stability_pct": 10_000,
}
LOAD = {"mode": "find_max", "workers": 2, "connections": None, "duration": None, "warmup": "0s", "find_max": SEARCH}
JUDGED = "SELECT STEP_NUMBER, TARGET_CONNECTIONS, OUTCOME FROM FIND_MAX_STEP_HISTORY WHERE RUN_ID = ? ORDER BY 1"
RESULT = "SELECT FIND_MAX_RESULT, SUMMARY FROM TEST_RESULTS WHERE RUN_ID = ? AND WORKER_ID IS NULL"
pytestmark = pytest.mark.scenario(embedded={"service_time": "200ms"})


def searching(harness: RunHarness, **sections: Any) -> Program:
    """A run that has judged three steps of its search."""
    run = harness.run(load=LOAD, **sections)
    run.wait_for(MEASURES)
    wait_until(
        lambda: len(harness.rows(JUDGED, run.run_id)) >= 3,
        "three steps are judged",
        unless=lambda: run.process.poll() is not None and run.said,
    )
    return run


def is_lower_bound(found: dict[str, Any], why: str) -> bool:
    steps = {step["step"]: step for step in found["steps"]}
    decisive = steps[found["decisive_step"]]
    return (
        (found["result"], found["confidence"]) == ("BOUNDED_MAX", "low")
        and (decisive["target"], decisive["outcome"]) == (found["max_concurrency"], "STABLE")
        and why in found["reason"]
    )


@pytest.mark.slow
def test_a_search_that_may_go_on_without_a_worker_ends_with_what_it_knows(harness: RunHarness) -> None:
    run = searching(harness, on_worker_loss="continue")
    ((pid,),) = harness.rows(
        "SELECT PID FROM WORKER_HEARTBEATS WHERE RUN_ID = ? AND WORKER_ID = 'worker-1'", run.run_id
    )
    os.kill(int(pid), signal.SIGKILL)

    assert run.ended() == 5, run.said

    summary = run.summary
    assert (summary["status"], summary["verdict"]) == ("COMPLETED", "invalid")
    assert is_lower_bound(summary["find_max"], "a worker was lost (worker-1"), summary["find_max"]
    assert summary["connections"] == summary["find_max"]["max_concurrency"]
    assert "printed nothing" not in run.said


@pytest.mark.slow
def test_a_search_whose_orchestrator_is_killed_is_recovered_with_the_steps_it_judged(harness: RunHarness) -> None:
    run = searching(harness)
    run.kill()
    run.wait_alone()
    harness.expire(run.run_id)

    recovery = harness.recover(run.run_id)

    assert recovery.ended() == 0, recovery.said
    ((stored, text),) = harness.rows(RESULT, run.run_id)
    found, summary = json.loads(stored), json.loads(text)
    assert found == summary["find_max"]
    assert is_lower_bound(found, "its orchestrator was lost"), found
    told = [(step["step"], step["target"], step["outcome"]) for step in found["steps"]]
    assert told == harness.rows(JUDGED, run.run_id)
    assert summary["totals"]["succeeded"] == history(harness.server, run.run_id)[found["decisive_step"]] > 0
