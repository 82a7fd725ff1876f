"""The verdict of a run whose workers have ended, from the windows that they measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadgen.metrics.connections import ConnectionTime
from loadgen.metrics.histogram import Histogram
from loadgen.metrics.stalls import WindowStalls
from loadgen.metrics.tally import StatementTally
from loadgen.metrics.window import ClientResourceUse, WindowResult
from loadgen.model.run import RunStatus, WorkerStatus
from loadgen.report.summary import RunFacts
from loadgen.results.run_snapshot import WorkerHealth, WorkerSnapshot
from loadgen.rules.validity import RunVerdict, verdict_of
from loadgen.scenario.model import Scenario
from loadgen.scenario.read import parse_scenario
from orchestrator.aggregation import RunAggregator
from orchestrator.guardrails import LimitMonitor
from orchestrator.lifecycle import PLAN_COMPLETED, THRESHOLD_MISSED
from orchestrator.run_facts import Circumstances, EndedRun, judge_run
from orchestrator.run_result import gather_windows
from tests.unit.orchestrator_builders import MS, live, tally, view, window
from tests.unit.run_builders import RUN

BASE = """
version: 1
name: judged
connection: embedded
target: {database: BENCH, schema: PUBLIC}
workload: {statements: [{name: s, sql: SELECT 1}]}
"""


def read(load: str, thresholds: str) -> Scenario:
    text = f"{BASE}load: {load}\nthresholds: {thresholds}\n"
    return parse_scenario(text, source="judged.yaml", environ={}).scenario


def effect(seconds: float, late_ms: float = 0.1, *, paused_percent: float = 0.0) -> ClientResourceUse:
    """Of a client that was paused for a part of the time, `late_ms` each time."""
    length_ms = round(1_000 * seconds)
    paused_ms = round(length_ms * paused_percent / 100)
    times = np.array([round(0.1 * MS), round(late_ms * MS)], np.int64)
    late = Histogram.weighted(times, np.array([length_ms - paused_ms, paused_ms], np.int64))
    return ClientResourceUse(elapsed_ms=length_ms, cpu_ms=length_ms // 10, cores=2, late=late)


def measured(
    known: StatementTally,
    seconds: float,
    connections: int,
    *,
    step_id: int | None = None,
    client: ClientResourceUse | None = None,
) -> WindowResult:
    """The window of a worker whose connections were open."""
    planned_ms, from_ms = round(1_000 * connections * seconds), 1_000 * round(seconds) * ((step_id or 1) - 1)
    return replace(
        window({"s": known}, seconds=seconds, step_id=step_id, window_id=step_id or 1),
        connections=ConnectionTime(planned_ms=planned_ms, delivered_ms=planned_ms),
        client=client or effect(seconds),
        stalls=WindowStalls(from_ms=from_ms, until_ms=from_ms + round(1_000 * seconds)),
    )


def ended(scenario: Scenario, *workers: tuple[WindowResult, ...]) -> tuple[EndedRun, list[WorkerSnapshot]]:
    views = [
        view(WorkerHealth.DONE, WorkerStatus.COMPLETED, number=number, live=live(*windows))
        for number, windows in enumerate(workers)
    ]
    run = replace(RUN, status=RunStatus.COMPLETED)
    gathered = gather_windows(views, [])
    return EndedRun(run=run, scenario=scenario, workers=tuple(views), gathered=gathered, results=(), events=()), views


def judge(scenario: Scenario, *workers: tuple[WindowResult, ...], **known: Any) -> RunFacts:
    """`known`: how the run ended, if not with its plan."""
    run, views = ended(scenario, *workers)
    progress = RunAggregator(scenario.thresholds, scenario.judged_stages)
    progress.note(views)
    limits = LimitMonitor(
        scenario.judged_thresholds,
        scenario.guardrails,
        scenario.timing,
        progress,
        open_loop=scenario.load.is_open_loop,
    )
    circumstances = {"status": RunStatus.COMPLETED, "reason": "why", "stop": PLAN_COMPLETED, **known}
    return judge_run(run, limits, None, Circumstances(**circumstances))


OVERLOADED = tally((20.0,) * 1_500, lag_ms=(5.0,) * 1_500, skipped=1_000, unsent_ms=(400.0,) * 1_000)


@pytest.mark.parametrize(
    "threshold",
    [
        "lag_p99 < 1ms",
        "{check: qps > 450, window: 5s}",
        "service_p95 < 10ms",
        "error_rate < 1%",
        "{check: p95 < 50ms, window: 10s, after: 30s}",
        "p95 < 50ms",
    ],
)
def test_an_open_loop_that_a_threshold_aborted_has_failed_whatever_its_thresholds_limit(threshold: str) -> None:
    """The server answered 1,500 of 2,500 arrivals in 5 s. The threshold that ended the run was certainly missed."""
    check = threshold if threshold.startswith("{") else f"{{check: {threshold}}}"
    load = "{mode: rate, rate: 500/s, arrival: uniform, max_connections: 10, workers: 1, warmup: 0s, duration: 60s}"
    scenario = read(load, f"[{check[:-1]}, abort: true}}]")

    facts = judge(scenario, (measured(OVERLOADED, 5.0, 10),), stop=THRESHOLD_MISSED, stopped_s=5.0)

    assert (facts.delivered and facts.delivered.run.overload) == 1_000
    assert verdict_of(facts)[:2] == (RunVerdict.FAILED, 10), facts.invalid


def test_an_open_loop_that_ended_as_planned_needs_a_limit_of_its_response_times() -> None:
    load = "{mode: rate, rate: 500/s, arrival: uniform, max_connections: 10, workers: 1, warmup: 0s, duration: 5s}"

    facts = judge(read(load, "[qps > 450]"), (measured(OVERLOADED, 5.0, 10),))

    assert "no threshold limits their response times" in verdict_of(facts)[2]


STAGES = """{mode: concurrency, workers: 2, warmup: 0s, stages: [{duration: 60s, connections: 4},
  {duration: 60s, connections: 8, name: peak}]}"""
CALM, PEAK = tally((250.0,) * 1_000), tally((300.0,) * 1_000)


@pytest.mark.parametrize(
    ("thresholds", "verdict"),
    [
        ("[peak.p95 < 50ms]", RunVerdict.FAILED),  # the server took 300 ms, and the client was in time
        ("[peak.p95 < 50ms, stage 1.p95 < 10ms]", RunVerdict.FAILED),
        ("[stage 1.p95 < 10ms]", RunVerdict.INVALID),  # its client may have added 400 ms
        ("[p95 < 50ms]", RunVerdict.INVALID),  # of the run: some of its samples may be late
        ("[s.p95 < 50ms]", RunVerdict.INVALID),
        ("[peak.p95 < 1s]", RunVerdict.PASSED),
    ],
)
def test_a_threshold_on_a_stage_is_judged_by_the_client_in_this_stage(thresholds: str, verdict: RunVerdict) -> None:
    """In the first stage one worker was paused for 1.5 % of the time, which is a warning."""
    paused = effect(60.0, 400.0, paused_percent=1.5)
    workers = [
        (measured(CALM, 60.0, 2, step_id=1, client=client), measured(PEAK, 60.0, 4, step_id=2))
        for client in (paused, effect(60.0))
    ]

    facts = judge(read(STAGES, thresholds), *workers)

    assert verdict_of(facts)[0] is verdict, (facts.invalid, facts.checked)
    assert any("worker-0 in stage 1 was paused for 1.5 %" in text for text in facts.environment["warnings"])


@pytest.mark.parametrize(
    ("thresholds", "verdict"),
    [
        ("[]", RunVerdict.FAILED),
        ("[error_rate > 0%, errors >= 0]", RunVerdict.FAILED),
        ("[error_rate <= 100%]", RunVerdict.PASSED),
    ],
)
def test_a_run_with_errors_passes_only_with_a_limit_that_allows_them(thresholds: str, verdict: RunVerdict) -> None:
    load = "{mode: concurrency, connections: 4, workers: 1, warmup: 0s, duration: 60s}"

    facts = judge(read(load, thresholds), (measured(tally((20.0,) * 40, failed=1_960), 60.0, 4),))

    assert verdict_of(facts)[0] is verdict, (facts.invalid, facts.checked)
