"""One step of a search for the maximum: from the windows of workers to an observation, and from a verdict to a row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from loadgen.control.tables.find_max_step_history import StepRecord
from loadgen.metrics.percentile import PERCENTILES
from loadgen.metrics.tally import StatementTally
from loadgen.metrics.window import MergedWindows, WindowResult, merge
from loadgen.report.client_health import ClientHealth
from loadgen.report.delivered import shortfalls
from loadgen.report.summary import latency_ms
from loadgen.report.verdict import check_threshold
from loadgen.rules.find_max_step import JudgedStep, PercentileEstimate, SloCheck, StepObservation
from loadgen.scenario.model import Threshold
from loadgen.units import NS_PER_MS
from orchestrator.run_result import client_effect, delivered_steps, service_mean_ms

WorkerWindows = Sequence[Sequence[WindowResult]]  # of each worker


@dataclass(frozen=True)
class ResponseTimes:
    """What p95 is compared by."""

    tally: StatementTally

    @cached_property
    def p95(self) -> PercentileEstimate | None:
        quantile, bounds = self.tally.response_at(950), self.tally.response_bounds(950)
        if quantile is None:
            return None
        return PercentileEstimate(
            value_ms=quantile.value_ns / NS_PER_MS, low_ms=_ms(bounds.low_ns), high_ms=_ms(bounds.high_ns)
        )

    def __add__(self, other: ResponseTimes) -> ResponseTimes:
        return ResponseTimes(self.tally + other.tally)


def observe_step(
    target: int,
    windows: WorkerWindows,
    thresholds: Sequence[Threshold] = (),
    *,
    queue_seen: bool = False,
    client_limit: str | None = None,
) -> tuple[StepObservation, MergedWindows]:
    """What the windows of a step show; none counts for longer than the worker that has measured least."""
    merged = merge(windows, live=True)
    shown = StepObservation(
        target=target,
        seconds=min((math.fsum(window.seconds for window in own) for own in windows), default=0.0),
        succeeded=merged.counts.succeeded,
        failed=merged.counts.failed,
        qps=merged.qps,
        latency=ResponseTimes(merged.tally.whole),
        slo=_slo(merged, thresholds),
        queue_seen=queue_seen,
        client_limit=client_limit,
    )
    return shown, merged


def client_limit(target: int, windows: Mapping[str, Sequence[WindowResult]]) -> str | None:
    """Why a step says nothing about the server: the client was its limit, or the load was not there. None: it does."""
    for worker_id, own in windows.items():
        health = ClientHealth.of(client_effect(own))
        limit = health.saturation(service_mean_ms(own))
        if limit is not None:
            return f"the client was the limit: {worker_id} {limit}; {health.advice}"
    steps = {window.step_id for own in windows.values() for window in own}
    if not all(windows.values()):
        return None  # it has not begun everywhere
    missing = shortfalls(delivered_steps(windows, {number: target for number in steps if number is not None}))
    return f"the load was not delivered: {'; '.join(missing)}" if missing else None


def step_record(run_id: str, step: JudgedStep, merged: MergedWindows, now: datetime) -> StepRecord:
    """A judged step, as a row. `now` is the server's time: its window is the time before it that was measured."""
    return StepRecord(
        run_id=run_id,
        step_number=step.number,
        target_connections=step.target,
        window_start_time=now - timedelta(seconds=step.shown.seconds),
        window_end_time=now,
        succeeded=merged.counts.succeeded,
        failed=merged.counts.failed,
        qps=merged.qps,
        p50_latency_ms=_at_ms(merged, 500),
        p95_latency_ms=p95_ms(merged),
        p99_latency_ms=_at_ms(merged, 990),
        error_rate=merged.counts.error_rate,
        queue_seen=step.shown.queue_seen,
        outcome=step.outcome.value,
        reason=step.reason,
    )


def _slo(merged: MergedWindows, thresholds: Sequence[Threshold]) -> SloCheck:
    """The first threshold that is not met decides; else bounds, or too few samples, may leave one open."""
    sure = True
    for threshold in thresholds:
        checked = check_threshold(threshold.check, merged)
        straddles = _straddles(merged, threshold)
        if not checked.passed and not checked.too_few:
            return SloCheck(missed=checked.check, sure=not straddles)
        sure = sure and not straddles and not checked.too_few
    return SloCheck(sure=sure)


def _straddles(merged: MergedWindows, threshold: Threshold) -> bool:
    """Do the bounds of its percentile lie on both sides of the limit?"""
    check = threshold.check
    per_mille = PERCENTILES.get(check.metric.value)
    statements = merged.tally.statements
    tally = merged.tally.whole if check.statement is None else statements.get(check.statement)
    if per_mille is None or tally is None:
        return False
    bounds = tally.response_bounds(per_mille)
    low_ms, high_ms = _ms(bounds.low_ns), _ms(bounds.high_ns)
    return (low_ms is None or low_ms <= check.limit) and (high_ms is None or high_ms >= check.limit)


def step_document(step: JudgedStep, measured: MergedWindows) -> dict[str, Any]:
    """A judged step, with all that was measured in its window: it went on for a moment after the verdict."""
    return {
        "step": step.number,
        "target": step.target,
        "outcome": step.outcome.value,
        "reason": step.reason,
        "seconds": round(measured.seconds, 3),
        "succeeded": measured.counts.succeeded,
        "failed": measured.counts.failed,
        "qps": round(measured.qps, 3),
        "error_rate": measured.counts.error_rate or 0.0,
        "p95_ms": p95_ms(measured),
        "latency_ms": latency_ms(measured.tally.whole),
        "low_confidence": step.low_confidence,
    }


def p95_ms(merged: MergedWindows) -> float | None:
    """Of all statements; None: too few for it."""
    return _at_ms(merged, 950)


def _at_ms(merged: MergedWindows, per_mille: int) -> float | None:
    quantile = merged.tally.whole.response_at(per_mille)
    return None if quantile is None else quantile.value_ns / NS_PER_MS


def _ms(bound_ns: int | None) -> float | None:
    return None if bound_ns is None else bound_ns / NS_PER_MS
