"""A slow control plane delays the start of a run; it never shortens a warm-up or a stage. 300 ms per statement is the
latency of hybrid tables over a network. The lead of START does not grow with the number of workers. Seconds that a
paused worker did not report in heartbeats are read from the snapshots."""

from __future__ import annotations

import pytest

from tests.process.run_harness import MEASURES, Program, RunHarness, history
from tests.processes import wait_until

CONTROL = "RUN_STATUS|RUN_CONTROL_EVENTS|WORKER_HEARTBEATS"
AWAY_S = 13  # longer ago than the seconds in a heartbeat
WARMUP_S = 1.0
# Statements take far longer than a busy machine adds to them, so that a run has one verdict on any.
LATE = 0.8  # a window may open a little late on a busy machine; the announcement would cost more than all of it
pytestmark = pytest.mark.scenario(embedded={"slots": 32, "service_time": "300ms"})


def warm_ups(harness: RunHarness, run: Program) -> dict[str, float]:
    """By worker: how long its warm-up was."""
    sql = "SELECT WORKER_ID, SECONDS FROM WINDOW_RESULTS WHERE RUN_ID = ? AND PHASE = 'WARMUP' AND STEP_ID IS NULL"
    rows = harness.rows(sql, run.run_id)
    assert len(rows) == len(dict(rows)), "each worker warms up once"
    return {worker_id: float(seconds) for worker_id, seconds in rows}


@pytest.mark.slow
def test_a_slow_announcement_cuts_neither_the_warm_up_nor_the_first_stage(harness: RunHarness) -> None:
    stages = [{"duration": "2s", "connections": 3}, {"duration": "2s", "connections": 6}]
    load = {"connections": None, "duration": None, "stages": stages, "workers": 3, "warmup": f"{WARMUP_S:g}s"}
    run = harness.run(load=load)
    run.wait_for("starting workers")
    harness.server.fault(match=CONTROL, kind="latency", ms=300)

    run.ended()  # whether other programs disturbed the client is not judged here

    delivered = run.summary["delivered"]["by_window"]
    assert [one["planned_connection_seconds"] for one in delivered] == [6.0, 12.0]
    assert all(one["fraction"] >= 0.99 for one in delivered), delivered
    lengths = warm_ups(harness, run)
    assert sorted(lengths) == ["worker-0", "worker-1", "worker-2"]
    assert min(lengths.values()) >= LATE * WARMUP_S, lengths
    assert [stage["starts_s"] for stage in run.summary["stages"]] == pytest.approx([1.0, 3.0], abs=0.05)
    counted = history(harness.server, run.run_id)
    assert sum(counted.values()) == run.summary["totals"]["succeeded"]
    kinds = harness.rows("SELECT EVENT_TYPE FROM RUN_CONTROL_EVENTS WHERE RUN_ID = ? ORDER BY SEQUENCE_ID", run.run_id)
    assert [kind for (kind,) in kinds if kind in ("START", "SET_WORKER_TARGET")] == ["START"]


@pytest.mark.slow
def test_a_level_of_a_search_is_one_event_for_all_workers(harness: RunHarness) -> None:
    search = {"start": 3, "increment": 4, "maximum": 7, "step": "2s", "settle": "100ms", "latency_stability_pct": 900}
    load = {"mode": "find_max", "workers": 3, "connections": None, "duration": None, "warmup": "0s"}
    run = harness.run(load=load | {"find_max": search | {"qps_stability_pct": 90, "stop_on_queue": False}})

    assert run.ended() == 0, run.said
    steps = run.summary["find_max"]["steps"]
    assert [step["target"] for step in steps][:2] == [3, 7]
    sql = "SELECT EVENT_TYPE FROM RUN_CONTROL_EVENTS WHERE RUN_ID = ? AND EVENT_TYPE = 'SET_WORKER_TARGET'"
    assert len(harness.rows(sql, run.run_id)) == len(steps), "one each, not one per worker"


@pytest.mark.slow
def test_a_breach_while_the_control_plane_is_away_is_found(harness: RunHarness) -> None:
    """Seconds with statements of six seconds that no heartbeat contains: the first one that arrives is later."""
    server, slow = harness.server, {"check": "max < 4s", "window": "3s"}
    load = {"connections": 8, "workers": 2, "duration": f"{AWAY_S + 12}s"}
    run = harness.run(load=load, embedded={"service_time": "1s"}, thresholds=[slow])
    run.wait_for(MEASURES)
    wait_until(lambda: history(server, run.run_id)[None] > 20, "it has measured something")
    beats = "SELECT MAX(LAST_HEARTBEAT) < DATEADD(second, ?, SYSDATE()) FROM WORKER_HEARTBEATS WHERE RUN_ID = ?"
    server.fault(match="(UPDATE|MERGE).*WORKER_HEARTBEATS", kind="http_status", status=503)
    server.fault(match="^SELECT 1$", kind="latency", ms=6_000, count=4)
    wait_until(lambda: harness.rows(beats, -AWAY_S, run.run_id) == [(True,)], "no beat for longer than one tells of")
    server.clear_faults()

    assert run.ended() == 10, run.said
    (checked,) = [one for one in run.summary["thresholds"] if one["check"].startswith("max")]
    assert not checked["passed"]
    assert checked["value"] >= 6_000.0


@pytest.mark.slow
def test_a_run_reports_that_it_waits_for_a_control_plane_that_rejects_rows(harness: RunHarness) -> None:
    run = harness.run(load={"connections": 4, "duration": "3s"})
    run.wait_for(MEASURES)
    harness.server.fault(match="^INSERT", kind="http_status", status=503)
    run.wait_for("waiting for the control plane: the control plane in LOADGEN.CONTROL failed at ")
    harness.server.clear_faults()

    assert run.ended() == run.summary["exit_code"], run.said
    assert harness.state(run.run_id)[0] == "COMPLETED"
