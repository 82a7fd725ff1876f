"""Planned load that was not delivered makes a run INVALID, for any reason: workers that end, logins that are rejected.
The history of the server contains the number of statements."""

from __future__ import annotations

import re
import signal
from typing import Any

import psutil
import pytest

from tests.process.run_harness import MEASURES, Program, RunHarness, history
from tests.processes import wait_until

LOGIN = "/session/v1/login-request"
TOKEN_EXPIRED = {"kind": "error", "errno": 390144, "message": "JWT token is invalid."}
SLOTS = 16
REFUSED = 12
pytestmark = pytest.mark.scenario(embedded={"slots": SLOTS, "service_time": "20ms"})


def worker_process(run: Program, worker_id: str) -> psutil.Process:
    """By the name that a worker gives its process."""
    (found,) = [process for pid in run.look() if (process := psutil.Process(pid)).name() == worker_id]
    return found


def measured(harness: RunHarness, run: Program, statements: int) -> None:
    run.wait_for(MEASURES)
    wait_until(lambda: history(harness.server, run.run_id)[None] >= statements, f"{statements} statements: {run.said}")


def reasons(run: Program) -> str:
    return "; ".join(run.summary["validity"]["reasons"])


def test_a_worker_that_leaves_early_is_missed(harness: RunHarness) -> None:
    load = {"connections": 4, "workers": 2, "warmup": "0s", "duration": "8s"}
    run = harness.run(load=load, embedded={"service_time": "100ms"})
    measured(harness, run, 20)
    worker_process(run, "worker-1").send_signal(signal.SIGTERM)

    assert run.ended() == 5, run.said

    summary: dict[str, Any] = run.summary
    assert summary["verdict"] == "invalid"
    assert "worker-1 delivered" in reasons(run)
    assert "worker-0 delivered" not in reasons(run)
    assert summary["totals"]["succeeded"] == history(harness.server, run.run_id)[None]
    assert summary["totals"]["qps"] == pytest.approx(
        summary["totals"]["succeeded"] / summary["measured_seconds"], rel=1e-3
    )


@pytest.mark.slow  # tests/process/test_verdict_truth.py refuses logins every time
@pytest.mark.parametrize(
    "refusal",
    [TOKEN_EXPIRED, {"kind": "http_status", "status": 503}],
    ids=["token expired", "service unavailable"],
)
def test_refused_logins_are_tried_again_counted_and_missed(harness: RunHarness, refusal: dict[str, Any]) -> None:
    run = harness.run(load={"connections": 4, "duration": "12s"}, connections={"max_age": "2s"})
    measured(harness, run, 20)
    harness.server.fault(match=LOGIN, count=REFUSED, **refusal)

    assert run.ended() == 5, run.said

    summary = run.summary
    assert "delivered load" in reasons(run)
    assert summary["totals"]["failed"] == 0
    assert summary["delivered"]["fraction"] < 0.99
    connections = summary["client"]["connections"]
    # One attempt may be several requests of the driver, and sessions of the control plane may be refused as well.
    assert 4 <= connections["refused"] <= REFUSED
    assert connections["reopened"]["max_age"] >= 4
    assert connections["last_refused"][-1]["worker_id"] == "worker-0"
    assert connections["last_refused"][-1]["second"] > 0
    assert re.search(r"[0-9]+ logins? refused, the last of worker-0: ", run.said), "it was told while the run went on"


@pytest.mark.slow
def test_a_worker_whose_logins_are_all_rejected_ends_with_the_reason(harness: RunHarness) -> None:
    run = harness.run(connections={"max_age": "1s"}, timing={"no_connection": "4s"})
    measured(harness, run, 20)
    harness.server.fault(match=LOGIN, **TOKEN_EXPIRED)
    wait_until(lambda: "no client has been connected" in run.said, f"the worker gives up: {run.said}")
    harness.server.clear_faults()

    assert run.ended() == 4, run.said

    assert "JWT token is invalid" in run.summary["exit_reason"]
    assert run.summary["client"]["connections"]["refused"] > 0
    assert "worker-0 delivered" in reasons(run)


@pytest.mark.slow
def test_a_run_whose_connections_mostly_log_in_is_invalid(harness: RunHarness) -> None:
    run = harness.run(load={"connections": 4, "duration": "8s"}, connections={"max_statements": 10})
    measured(harness, run, 20)
    harness.server.fault(match=LOGIN, kind="latency", ms=1_500)

    assert run.ended() == 5, run.said

    (said,) = [reason for reason in run.summary["validity"]["reasons"] if "logging in" in reason]
    share, replaced = re.fullmatch(  # type: ignore[union-attr]
        r"connections were logging in for ([0-9.]+) % of the planned time \(at most 10 %\): the load was not on the"
        r" server; connections.max_statements replaced ([0-9]+) connections: raise it, or find out why logins are slow",
        said,
    ).groups()
    delivered = run.summary["delivered"]
    spent_s, planned_s = delivered["logging_in_connection_seconds"], delivered["planned_connection_seconds"]
    assert float(share) == pytest.approx(100 * spent_s / planned_s, abs=0.051)
    assert int(replaced) == run.summary["client"]["connections"]["reopened"]["max_statements"]
    assert delivered["fraction"] >= 0.99, "a login in progress counts as delivered"


@pytest.mark.slow
def test_connections_of_a_higher_stage_are_open_before_it_begins(harness: RunHarness) -> None:
    stages = [{"duration": "3s", "connections": 2}, {"duration": "3s", "connections": 8}]
    harness.server.fault(match=LOGIN, kind="latency", ms=300)  # a login takes its time, as it does elsewhere
    run = harness.run(load={"connections": None, "duration": None, "stages": stages})

    run.ended()

    delivered = run.summary["delivered"]
    assert [one["step_id"] for one in delivered["by_window"]] == [1, 2]
    assert [one["planned_connection_seconds"] for one in delivered["by_window"]] == [6.0, 24.0]
    assert delivered["fraction"] >= 0.99, run.said
    assert run.summary["client"]["connections"]["opened"] == 8
    assert "load" not in reasons(run)


@pytest.mark.slow
def test_an_overloaded_server_is_judged_by_thresholds_and_an_aborted_plan_ends_at_the_abort(
    harness: RunHarness,
) -> None:
    rate = {"mode": "rate", "rate": "300/s", "max_connections": 2, "connections": None, "duration": "4s"}
    judged = harness.run(load=rate, thresholds=["p95 < 200ms"])
    aborted = harness.run(
        load=rate | {"duration": "60s"}, thresholds=[{"check": "p95 < 200ms", "window": "1s", "abort": True}]
    )
    unjudged = harness.run(load=rate, thresholds=["error_rate < 1%", "p50 > 1ms"])
    assert unjudged.ended() == 5, unjudged.said
    assert all(one["passed"] for one in unjudged.summary["thresholds"])
    assert "no threshold limits their response times" in reasons(unjudged)

    for run in (judged, aborted):
        run.ended()
        delivered = run.summary["delivered"]
        assert delivered["overload_arrivals"] > 0
        assert not [reason for reason in run.summary["validity"]["reasons"] if "load" in reason or "arrivals" in reason]
        assert not run.summary["thresholds"][0]["passed"]
    assert judged.summary["delivered"]["planned_arrivals"] == judged.summary["totals"]["scheduled"] == 1_200
    assert aborted.summary["delivered"]["planned_arrivals"] < 0.5 * 60 * 300


@pytest.mark.slow
def test_throughput_is_not_what_was_answered_after_the_measured_time(harness: RunHarness) -> None:
    """16 slots of 400 ms answer 40 statements a second, however many wait in front of them."""
    run = harness.run(
        load={"connections": 100, "workers": 1, "warmup": "0s", "duration": "5s"},
        embedded={"service_time": "400ms"},
        thresholds=["qps > 45"],
    )

    assert run.ended() == 10, run.said

    (check,) = [one for one in run.summary["thresholds"] if one["check"] == "qps > 45"]
    assert check["value"] <= SLOTS / 0.4
    assert any("too high" in warning for warning in run.summary["environment"]["warnings"])
