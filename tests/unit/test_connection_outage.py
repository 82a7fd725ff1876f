"""Connections that the server refused or lost are not blamed on the client."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.connections import ConnectionTime
from loadgen.rules.client_health import judge_client
from orchestrator.run_result import MeasuredWindows, client_parts, outage_cause
from tests.unit.test_client_health import measured, part


@given(
    sent_late_ms=st.sampled_from([0.5, 379.0]),
    missing_ms=st.sampled_from([0, 1_700]),
    busy=st.sampled_from([{}, {"cpu_percent_of_core": 90.0}, {"wakeup_mean_ms": 40.0}, {"gap_percent": 5.0}]),
    cause=st.sampled_from([None, "7 logins were refused"]),
)
def test_the_client_is_not_blamed_for_connections_that_the_server_refused(sent_late_ms, missing_ms, busy, cause):
    late = replace(part(sent_late_mean_ms=sent_late_ms, others_cores=2.0, **busy), missing_ms=missing_ms)

    verdict = judge_client([late], outage=cause)

    blames_server = bool(missing_ms and cause and not busy and sent_late_ms > 2.0)
    assert bool(verdict.invalid) == (bool(busy) or sent_late_ms > 2.0)
    assert verdict.health.saturated == (bool(verdict.invalid) and not blames_server)
    for reason in verdict.invalid:
        assert ("7 logins were refused" in reason) == blames_server
        assert ("client was the limit" in reason) != blames_server
        assert not (blames_server and "other processes" in reason)


def test_lost_connections_and_refused_logins_are_named_and_planned_replacements_are_not() -> None:
    failure = {"worker_id": "worker-1", "code": 390111, "text": "Session no longer exists."}
    none = {"refused": 0, "reopened": {"max_age": 3}, "last_refused": [], "last_lost": []}

    assert outage_cause(none) is None
    assert outage_cause(none | {"refused": 1, "reopened": {"session_lost": 8}, "last_lost": [failure]}) == (
        "1 login was refused, the last of a worker: no reason reported;"
        " the server lost 8 connections, the last of worker-1: 390111: Session no longer exists."
    )


def test_the_connection_time_that_a_worker_missed_is_that_of_its_windows() -> None:
    time = ConnectionTime(planned_ms=10_000, delivered_ms=8_300)
    stages = [replace(measured(1, 100.0, 1.0), connections=time), measured(2, 100.0, 1.0, window_id=2)]

    assert [one.missing_ms for one in client_parts(MeasuredWindows(windows={"worker-0": tuple(stages)}, gaps=()))] == [
        1_700,
        0,
    ]
