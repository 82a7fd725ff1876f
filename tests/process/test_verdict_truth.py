"""The verdict of runs with faults, compared with the history of the server: real processes, signals and faults.

A session of a closed loop was open between statements that follow each other; of an open loop there must be statements
in every part of the measurement. Less load is not VALID, and sufficient load is not INVALID for missing load. A band
around the limits is left out: the history does not show logins, and the edges of windows are not exact.
"""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.embedded_server import EmbeddedServer
from tests.process.run_harness import MEASURES, Program, RunHarness, history
from tests.processes import wait_until

DURATION_S, SERVICE_MS, RATE = 6, 50, 40
SHORT, WHOLE = 0.90, 0.97  # of what was planned
JOINED_MS = 600  # the longest time between two statements of a session that was there
PART_MS = 250  # of an open loop
SQL = "SELECT 'truth'"
LOGIN = "/session/v1/login-request"
CONTROL = "WORKER_HEARTBEATS|RUN_STATUS"
SESSION_GONE = {"kind": "error", "errno": 390111, "message": "Session no longer exists."}
UNAVAILABLE = {"kind": "http_status", "status": 503}
LOAD_REASONS = ("delivered", "planned load", "could be used", "could use", "worker lost")

_RATE = {"mode": "rate", "rate": f"{RATE}/s", "arrival": "uniform", "connections": None, "max_connections": 4}
MODES: dict[str, dict[str, Any]] = {
    "concurrency": {"connections": 4, "workers": 2},
    "stages": {
        "connections": None,
        "duration": None,
        "workers": 2,
        "stages": [{"duration": "3s", "connections": 2}, {"duration": "3s", "connections": 4}],
    },
    "rate": _RATE,
    "rate with max_lag": _RATE | {"max_lag": "500ms"},
    "processes": {"profile": "process", "workers": None, "connections": 2},
}


def terminate(harness: RunHarness, run: Program) -> None:
    run.worker("worker-0").send_signal(signal.SIGTERM)


def suspend(harness: RunHarness, run: Program) -> None:
    worker = run.worker("worker-0")
    worker.suspend()
    harness.server.wait_server_ms(2_000)
    worker.resume()


def drop_sessions(harness: RunHarness, run: Program) -> None:
    harness.server.fault(match=SQL, count=2, **SESSION_GONE)


def refuse_logins(harness: RunHarness, run: Program) -> None:
    harness.server.fault(match=LOGIN, **UNAVAILABLE)
    harness.server.inject_fault(match=SQL, count=4, **SESSION_GONE)
    harness.server.wait_server_ms(1_500)
    harness.server.clear_faults()


def interrupt_control(harness: RunHarness, run: Program) -> None:
    harness.server.fault(match=CONTROL, **UNAVAILABLE)
    harness.server.wait_server_ms(1_000)
    harness.server.clear_faults()


Fault = Callable[[RunHarness, Program], None]
EACH = ("concurrency", "stages", "rate", "processes")
_rng = random.Random(3)
CASES: list[tuple[str, Fault]] = [
    ("rate", refuse_logins),
    ("rate with max_lag", refuse_logins),
    *zip(_rng.sample(EACH, len(EACH)), (terminate, suspend, drop_sessions, interrupt_control), strict=True),
]
pytestmark = pytest.mark.scenario(
    embedded={"slots": 16, "service_time": f"{SERVICE_MS}ms"}, workload={"statements": [{"name": "truth", "sql": SQL}]}
)


@pytest.mark.slow  # test_pauses.py, test_worker_faults.py and test_delivered_load.py have one of each fault
@pytest.mark.parametrize(("mode", "fault"), CASES, ids=[f"{mode}, {fault.__name__}" for mode, fault in CASES])
def test_the_verdict_is_what_the_history_of_the_server_allows(harness: RunHarness, mode: str, fault: Fault) -> None:
    load = {"warmup": "0s", "duration": f"{DURATION_S}s", "workers": 1} | MODES[mode]
    run = harness.run(load=load, thresholds=["max < 1h", "error_rate <= 100%"])
    run.wait_for(MEASURES)
    wait_until(lambda: sum(history(harness.server, run.run_id).values()) >= 20, f"it measures: {run.said}")
    fault(harness, run)
    code = run.ended()

    found = delivered(harness.server, run.run_id, mode)

    summary = run.summary
    missing = [one for one in summary["validity"]["reasons"] if any(word in one for word in LOAD_REASONS)]
    if found < SHORT:
        assert code in (4, 5), f"{found:.3f}: {run.said}"
        assert summary["status"] == "FAILED" or missing, f"{found:.3f}: {summary['validity']}"
    if found > WHOLE:
        assert summary["status"] == "COMPLETED", run.said
        assert missing == [], f"{found:.3f}"


def delivered(server: EmbeddedServer, run_id: str, mode: str) -> float:
    """The smallest fraction of the plan in the run, and in each of its stages."""
    by_step: dict[int | None, list[dict[str, Any]]] = {}
    for line in server.history(run_id):
        tag = json.loads(line["query_tag"])
        if tag.get("phase") == "MEASUREMENT":
            by_step.setdefault(tag.get("step"), []).append(line)
    if mode == "stages":
        return min(sessions_there(by_step.get(step, []), 3_000, 2 * step) for step in (1, 2))
    if mode.startswith("rate"):
        return statements_there(by_step[None])
    return sessions_there(by_step[None], 1_000 * DURATION_S, MODES[mode]["connections"])


def sessions_there(lines: list[dict[str, Any]], length_ms: int, sessions: int) -> float:
    began_ms = min((line["start_ms"] for line in lines), default=0.0)
    there_ms = 0.0
    for session in {line["session_id"] for line in lines}:
        last_ms: float | None = None
        for line in sorted((one for one in lines if one["session_id"] == session), key=lambda one: one["start_ms"]):
            start_ms, end_ms = line["start_ms"], min(line["end_ms"], began_ms + length_ms)
            joins = last_ms is not None and start_ms - last_ms < JOINED_MS
            there_ms += max(0.0, end_ms - (last_ms if joins and last_ms is not None else start_ms))
            last_ms = end_ms
    return there_ms / (sessions * length_ms)


def statements_there(lines: list[dict[str, Any]]) -> float:
    began_ms = min(line["start_ms"] for line in lines)
    parts = {int((line["start_ms"] - began_ms) // PART_MS) for line in lines}
    planned = 1_000 * DURATION_S // PART_MS
    return min(len(lines) / (RATE * DURATION_S), len(parts & set(range(planned))) / planned)
