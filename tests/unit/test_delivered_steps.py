"""Delivered load of the steps of a search: each worker opens and closes the window of a step itself."""

from __future__ import annotations

from dataclasses import replace

from loadgen.metrics.connections import ConnectionTime
from loadgen.metrics.stalls import WindowStalls
from loadgen.metrics.window import WindowResult
from loadgen.rules.validity import Portion, shortfalls
from orchestrator.run_result import delivered_steps
from tests.unit.orchestrator_builders import window


def measured(planned_ms: int, delivered_ms: int, *, step_id: int) -> WindowResult:
    return window(step_id=step_id, connections=ConnectionTime(planned_ms=planned_ms, delivered_ms=delivered_ms))


def stepped(planned_ms: int, delivered_ms: int, *, opened_ms: int, step_id: int = 1) -> WindowResult:
    stalls = WindowStalls(from_ms=opened_ms, until_ms=opened_ms + 10_000)
    return replace(measured(planned_ms, delivered_ms, step_id=step_id), stalls=stalls, seconds=10.0)


def test_each_worker_of_a_search_has_its_own_plan() -> None:
    windows = {
        "worker-0": [stepped(30_000, 30_000, opened_ms=4_000)],
        "worker-1": [stepped(29_000, 28_000, opened_ms=4_500), stepped(9, 9, opened_ms=50_000, step_id=2)],
    }

    assert delivered_steps(windows, {1: 6}).portions == {
        ("worker-0", 1): Portion(planned=30_000),
        ("worker-1", 1): Portion(planned=29_000, missing=1_000),
    }


def test_what_was_measured_of_a_step_before_its_last_worker_came_was_not_delivered() -> None:
    windows = {
        "worker-0": [stepped(40_000, 40_000, opened_ms=4_000)],
        "worker-1": [stepped(20_000, 20_000, opened_ms=9_500)],  # of 7 connections it has 3
    }

    found = delivered_steps(windows, {1: 7})

    assert found.portions["worker-1", 1] == Portion(planned=35_000, missing=15_000)
    assert any("delivered load was" in reason for reason in shortfalls(found))


def test_what_was_measured_of_a_step_after_a_worker_had_stopped_was_not_delivered() -> None:
    windows = {
        "worker-0": [stepped(40_000, 40_000, opened_ms=4_000)],
        "worker-1": [replace(stepped(20_000, 20_000, opened_ms=4_000), seconds=5.0)],  # of 7 connections it has 3
    }

    assert delivered_steps(windows, {1: 7}, closed=True).portions["worker-1", 1] == Portion(
        planned=33_500, missing=13_500
    )
    assert delivered_steps(windows, {1: 7}).portions["worker-1", 1] == Portion(planned=20_000)


def test_a_worker_without_a_window_has_delivered_nothing_of_a_step() -> None:
    windows = {"worker-0": [stepped(40_000, 40_000, opened_ms=4_000)], "worker-1": []}

    assert delivered_steps(windows, {1: 8}).portions["worker-1", 1] == Portion(planned=40_000, missing=40_000)
