"""A worker process that is stopped and continued: what it measured is not taken for what the server did."""

from __future__ import annotations

import pytest

from tests.process.run_harness import MEASURES, RunHarness, history
from tests.processes import wait_until

LONG = {"statements": [{"name": "long", "sql": "SELECT SYSTEM$WAIT(1)"}]}
pytestmark = pytest.mark.scenario(embedded={"slots": 16, "service_time": "100ms"})


@pytest.mark.parametrize("stored", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_worker_that_was_paused_is_not_taken_for_a_slow_server(harness: RunHarness, stored: bool) -> None:
    """Its results cannot be stored, so its last heartbeat must contain the pause."""
    run = harness.run(load={"warmup": "0s", "duration": "8s"})
    run.wait_for(MEASURES)
    if not stored:
        harness.server.fault(
            match="INSERT INTO WINDOW_RESULTS", kind="error", errno=603, sqlstate="53100", message="full"
        )
    wait_until(lambda: history(harness.server, run.run_id)[None] > 4, "it has measured something")
    worker = run.worker("worker-0")
    worker.suspend()
    sql = "SELECT COUNT(*) FROM WORKER_HEARTBEATS WHERE RUN_ID = ? AND LAST_HEARTBEAT < DATEADD(second, -2, SYSDATE())"
    wait_until(lambda: harness.rows(sql, run.run_id) == [(1,)], "it has been silent for two seconds")
    worker.resume()

    assert run.ended() == 5, run.said
    summary = run.summary
    assert any("the client was the limit: worker-0 was paused for " in one for one in summary["validity"]["reasons"])
    assert summary["client"]["saturated"]
    gap_percent = summary["client"]["gap_percent"]
    assert 10.0 < gap_percent < 90.0
    assert summary["delivered"]["fraction"] <= 1.01 - gap_percent / 100, "nobody could send meanwhile"
    assert summary["stalls"]["total_ms"] < 1_000, "it was not the server"
    assert not any("stalled" in warning for warning in summary["environment"]["warnings"])


@pytest.mark.slow
def test_many_short_pauses_of_a_worker_are_seen_beside_long_statements(harness: RunHarness) -> None:
    run = harness.run(workload=LONG, load={"warmup": "0s", "duration": "8s", "connections": 16})
    run.wait_for(MEASURES)
    worker = run.worker("worker-0")
    while "ending:" not in run.said:
        worker.suspend()
        harness.server.wait_server_ms(200)
        worker.resume()
        more = history(harness.server, run.run_id)[None] + 4
        wait_until(
            lambda more=more: history(harness.server, run.run_id)[None] >= more or "ending:" in run.said,  # type: ignore[misc]
            "more statements have ended",
        )

    assert run.ended() == 5, run.said
    assert any("the client was the limit: worker-0 was paused" in one for one in run.summary["validity"]["reasons"])
    assert run.summary["client"]["paused_percent"] > 5.0
