"""Events of a run in the tables: their place on the time axis, and when stages began."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from loadgen.control.tables.run_control_events import PastEvent
from loadgen.control.tables.run_measurements import StepRecord
from loadgen.model.event import (
    ALL_WORKERS,
    Command,
    EventScope,
    PlannedCommand,
    Recipient,
    SetPhase,
    SetRunTarget,
    SetWorkerTarget,
    Start,
    Stop,
)
from loadgen.model.run import Phase
from loadgen.report.records import EventKind, RunEvent
from loadgen.results.run_record import events_of, stage_names
from loadgen.scenario.model import LoadStage
from orchestrator.run_result import MeasuredWindows, stage_results, stage_starts
from tests.unit.orchestrator_builders import tally, window
from tests.unit.report_builders import START
from tests.unit.scenario_builders import MINIMAL, read


def said(at_s: float, command: Command, address: Recipient = ALL_WORKERS) -> PastEvent:
    return PastEvent(command=command, address=address, created_at=START + timedelta(seconds=at_s))


def moment(at_s: float) -> str:
    return (START + timedelta(seconds=at_s)).isoformat(timespec="milliseconds")


def target(at_s: float, worker: int, connections: int) -> PastEvent:
    command = SetWorkerTarget(target_connections=connections, effective_at=moment(at_s))
    return said(0.0, command, Recipient(scope=EventScope.WORKER, worker_id=f"worker-{worker}"))


def stage(at_s: float, number: int | None) -> PastEvent:
    return said(0.0, SetPhase(phase=Phase.MEASUREMENT, step_id=number, effective_at=moment(at_s)))


def step(number: int, outcome: str, **more: Any) -> StepRecord:
    known: dict[str, Any] = {
        "run_id": "r", "step_number": number, "target_connections": 4 * number,
        "window_start_time": START, "window_end_time": START + timedelta(seconds=10 * number),
        "succeeded": 1, "failed": 0, "qps": 1.0, "p50_latency_ms": None, "p95_latency_ms": None,
        "p99_latency_ms": None, "error_rate": 0.0, "queue_seen": False, "outcome": outcome, "reason": "because",
    }  # fmt: skip
    return StepRecord(**(known | more))


def labels(events: tuple[RunEvent, ...]) -> list[tuple[float, str, EventKind]]:
    return [(event.at_s, event.label, event.kind) for event in events]


def test_start_stop_and_levels_are_events_in_the_order_of_time() -> None:
    commands = [
        *(target(0.0, worker, 4) for worker in (0, 1)),
        stage(4.0, 1),
        *(target(12.0, worker, 16) for worker in (0, 1)),
        stage(12.0, 2),
        said(0.5, Start(expected_workers=2)),
        said(24.5, Stop(reason="duration", drain_timeout_s=120.0)),
    ]
    events = events_of(commands, (), {}, START)
    assert labels(events) == [
        (0.0, "8 conn.", EventKind.LEVEL),
        (0.5, "START", EventKind.START),
        (4.0, "stage 1", EventKind.LEVEL),
        (12.0, "stage 2, 32 conn.", EventKind.LEVEL),
        (24.5, "STOP", EventKind.STOP),
    ]
    assert [event.text for event in events] == [
        "target 8 connections",
        "START: 2 workers",
        "stage 1 begins",
        "stage 2 begins, target 32 connections",
        "STOP: the plan is complete",
    ]


PLAN = (
    PlannedCommand(at_ms=0, command=SetPhase(phase=Phase.WARMUP)),
    PlannedCommand(at_ms=4_000, command=SetPhase(phase=Phase.MEASUREMENT, step_id=1, duration_ms=8_000.0)),
    PlannedCommand(at_ms=12_000, command=SetRunTarget(total_connections=32)),
    PlannedCommand(at_ms=12_000, command=SetPhase(phase=Phase.MEASUREMENT, step_id=2, duration_ms=12_000.0)),
)


def test_the_plan_of_start_counts_from_the_moment_it_announces() -> None:
    """Which is the start of the run: START itself was written before it."""
    start = said(-3.5, Start(expected_workers=2, lead_ms=3_500, plan=PLAN))
    assert labels(events_of([start], (), {}, START)) == [
        (0.0, "START", EventKind.START),
        (4.0, "stage 1", EventKind.LEVEL),
        (12.0, "stage 2, 32 conn.", EventKind.LEVEL),
    ]
    assert stage_starts([start], START) == {1: 4.0, 2: 12.0}


def test_a_level_of_a_search_is_an_event_at_its_moment() -> None:
    command = SetRunTarget(total_connections=14, step_id=2, lead_ms=2_500)
    assert labels(events_of([said(6.0, command)], (), {}, START)) == [(8.5, "14 conn.", EventKind.LEVEL)]


def test_a_run_without_stages_has_a_measurement() -> None:
    assert labels(events_of([stage(3.0, None)], (), {}, START)) == [(3.0, "measurement", EventKind.LEVEL)]


def test_a_stage_with_a_name_begins_under_its_name() -> None:
    events = events_of([stage(4.0, 1), stage(12.0, 2)], (), {}, START, stages={2: "peak"})
    assert [(event.label, event.text) for event in events] == [
        ("stage 1", "stage 1 begins"),
        ("peak", "peak begins"),
    ]


def test_names_of_stages_are_those_of_the_result_and_for_the_rest_those_of_the_scenario() -> None:
    level = "duration: 5s, connections: 1"
    scenario = read(f"{MINIMAL}load: {{stages: [{{{level}, name: low}}, {{{level}}}, {{{level}, name: late}}]}}\n")

    assert stage_names({"stages": [{"stage": 1, "name": "peak"}]}, scenario) == {1: "peak", 3: "late"}
    assert stage_names({}, None) == {}


def test_events_announced_for_a_time_after_stop_are_left_out() -> None:
    stop = said(8.0, Stop(reason="cancelled", drain_timeout_s=20.0))
    assert [event.label for event in events_of([stage(4.0, 1), stage(12.0, 2), stop], (), {}, START)] == [
        "stage 1",
        "STOP",
    ]


def test_judged_steps_are_events_with_their_outcome() -> None:
    steps = [step(1, "STABLE"), step(2, "DEGRADED"), step(3, "STABLE", window_end_time=None)]
    events = events_of([], steps, {}, START)
    assert labels(events) == [(10.0, "✓", EventKind.HELD), (20.0, "✗", EventKind.BROKEN)]
    assert events[1].text == "step 2, 8 connections: DEGRADED, because"


def test_a_lost_worker_is_an_event_at_its_last_heartbeat() -> None:
    (event,) = events_of([], (), {"worker-1": START + timedelta(seconds=7.5)}, START)
    assert (event.at_s, event.label, event.kind) == (7.5, "worker-1 lost", EventKind.LOST)


def test_refused_logins_and_lost_connections_are_events_with_their_errors() -> None:
    known = {"worker_id": "worker-1", "at": "2026-11-15T02:00:09.000Z", "slot": 3, "code": 390_111, "text": "gone"}
    connections = {
        "last_refused": [known | {"second": -0.4, "count": 1}, known | {"second": None}],
        "last_lost": [known | {"second": 9.0, "count": 4, "reason": "session_lost"}],
    }

    events = events_of([], (), {}, START, connections)

    assert labels(events) == [(0.0, "refused", EventKind.REFUSED), (9.0, "connection lost", EventKind.RECONNECT)]
    assert [event.text for event in events] == [
        "worker-1: 1 login refused: 390111: gone",
        "worker-1: 4 connections lost (session lost): 390111: gone",
    ]


def test_events_shortly_before_the_start_are_at_the_start() -> None:
    (event,) = events_of([said(-0.2, Start(expected_workers=1))], (), {}, START)
    assert (event.at_s, event.text) == (0.0, "START: 1 worker")


# --- stages ----------------------------------------------------------------------------------------------------------


def test_stages_are_merged_over_workers_each_with_its_own_windows() -> None:
    def windows(*counts: int) -> tuple[Any, ...]:
        return tuple(
            window({"s": tally((10.0,) * count)}, seconds=4.0, step_id=number, window_id=number)
            for number, count in enumerate(counts, start=1)
        )

    gathered = MeasuredWindows(windows={"worker-0": windows(100, 300), "worker-1": windows(100, 500)}, gaps=())
    levels = (
        LoadStage(duration_s=4.0, connections=8),
        LoadStage(duration_s=4.0, connections=32),
        LoadStage(duration_s=4.0, connections=4),
    )
    starts_s = stage_starts([stage(4.0, 1), stage(8.25, 2), stage(12.0, 3), stage(3.0, None)], START)
    first, second = stage_results(levels, gathered, starts_s)  # the third was announced, and never measured
    assert (first.number, first.starts_s, first.connections, first.merged.counts.succeeded) == (1, 4.0, 8, 200)
    assert (second.number, second.starts_s, second.connections, second.merged.counts.succeeded) == (2, 8.25, 32, 800)
    assert second.merged.qps == pytest.approx(200.0)


def test_a_stage_that_was_never_announced_is_none() -> None:
    gathered = MeasuredWindows(windows={"worker-0": (window(step_id=1),)}, gaps=())
    assert stage_results((LoadStage(duration_s=4.0, connections=8),), gathered, {}) == ()


def test_a_step_that_the_client_limited_is_neither_held_nor_broken():
    (event,) = [one for one in events_of([], [step(4, "CLIENT_LIMIT")], {}, START) if "step" in one.text]

    assert (event.kind, event.label) == (EventKind.LIMITED, "○")
