"""Leads a search for the maximum: observes the current step, judges it, chooses the next step, and makes the result.

The rules are in `loadgen.rules.find_max`. This module makes observations from windows of workers, and rows from steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Any

from loadgen.control.session import ParsedRows
from loadgen.control.tables.run_measurements import StepRecord
from loadgen.metrics.tally import StatementTally
from loadgen.metrics.window import MergedWindows, WindowResult, merge
from loadgen.model.run import Phase
from loadgen.report.summary import latency_ms
from loadgen.results.run_snapshot import WorkerSnapshot
from loadgen.rules.client_health import ClientHealth, ClientPart, worst
from loadgen.rules.find_max import FindMaxSearch, SearchConfidence
from loadgen.rules.find_max_step import (
    ClientBound,
    JudgedStep,
    PercentileEstimate,
    StepObservation,
    StepOutcome,
    baseline_step,
    client_limited_step,
)
from loadgen.rules.thresholds import check_slo
from loadgen.rules.validity import shortfalls
from loadgen.scenario.model import EMBEDDED, FindMaxSettings, OnWorkerLoss, Scenario, Threshold
from loadgen.units import NS_PER_MS
from loadgen.values import dataclass
from orchestrator.lifecycle import MetricsMissing, SearchDecision, SearchFinished, StartStep
from orchestrator.run_result import client_effect, delivered_steps, service_mean_ms

WorkerWindows = Sequence[Sequence[WindowResult]]  # of each worker


@dataclass(frozen=True)
class ResponseTimes:
    """The response times of a step, for comparing p95."""

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
    shares_machine: bool = False,
) -> tuple[StepObservation, MergedWindows]:
    """The observation of a step, made from its windows, and the merged windows. The length of a step is the time that
    every worker has measured.

    `shares_machine`: the server runs on the machine of the workers.
    """
    merged = merge(windows, live=True)
    health = worst(ClientHealth.of(client_effect(own)) for own in windows)
    mean_ms = service_mean_ms([window for own in windows for window in own])
    shown = StepObservation(
        target=target,
        seconds=min((math.fsum(window.seconds for window in own) for own in windows), default=0.0),
        succeeded=merged.counts.succeeded,
        failed=merged.counts.failed,
        qps=merged.qps,
        latency=ResponseTimes(merged.tally.whole),
        slo=check_slo(thresholds, merged, health, mean_ms),
        queue_seen=queue_seen,
        client_limit=client_limit,
        client=ClientBound.of(health, mean_ms, shares_machine=shares_machine),
    )
    return shown, merged


def client_limit(target: int, windows: Mapping[str, Sequence[WindowResult]]) -> str | None:
    """Why a step does not show the limit of the server: a client was the limit, or load was missing. None: it does."""
    for worker_id, own in windows.items():
        health = ClientHealth.of(client_effect(own))
        part = ClientPart(where=worker_id, health=health, service_mean_ms=service_mean_ms(own))
        if part.limit is not None:
            return part.limit
    steps = {window.step_id for own in windows.values() for window in own}
    if not all(windows.values()):
        return None  # not all workers have begun the step
    missing = shortfalls(delivered_steps(windows, {number: target for number in steps if number is not None}))
    return f"the load was not delivered: {'; '.join(missing)}" if missing else None


def step_record(run_id: str, step: JudgedStep, merged: MergedWindows, now: datetime) -> StepRecord:
    """The row of a judged step. Its window is the measured time before `now`, which is the server's time."""
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


def step_document(step: JudgedStep, measured: MergedWindows) -> dict[str, Any]:
    """A judged step for summary.json, with the whole measurement of its window, which continues shortly after the
    verdict."""
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
    """p95 of all statements. None: too few samples."""
    return _at_ms(merged, 950)


def _at_ms(merged: MergedWindows, per_mille: int) -> float | None:
    quantile = merged.tally.whole.response_at(per_mille)
    return None if quantile is None else quantile.value_ns / NS_PER_MS


def _ms(bound_ns: int | None) -> float | None:
    return None if bound_ns is None else bound_ns / NS_PER_MS


class FindMaxController:
    """One search. observe() is called in every tick while the run measures."""

    def __init__(
        self,
        config: FindMaxSettings,
        thresholds: tuple[Threshold, ...],
        *,
        missing_s: float,
        on_worker_loss: OnWorkerLoss = OnWorkerLoss.FAIL,
        shares_machine: bool = False,
    ) -> None:
        self.search = FindMaxSearch(config=config)
        self._observe = partial(observe_step, thresholds=thresholds, shares_machine=shares_machine)
        self._missing_s, self._on_worker_loss = missing_s, on_worker_loss
        self._announced: int | None = None  # the number of the last step that was decided
        self._grew_s = 0.0  # when `_seconds` last grew
        self._seconds = -1.0  # of the current step that every worker has measured

    @property
    def number(self) -> int:
        """The number of the current step, from 1."""
        return len(self.search.steps) + 1

    def restore(self, records: Sequence[StepRecord], windows_of: Callable[[int], WorkerWindows]) -> tuple[int, ...]:
        """Add the steps that another leader has judged. Its verdicts are kept; the windows are read from the tables.

        The confidence of a verdict is not stored, so each step is judged again. Returns the numbers of the steps with
        another outcome: their confidence counts as low.
        """
        unknown: list[int] = []
        broken = [str(error) for error in records.unreadable] if isinstance(records, ParsedRows) else []
        for number, record in enumerate(records, start=1):
            if (problem := self._problem(number, record)) is not None:
                broken.append(problem)
                break
            outcome = StepOutcome(record.outcome)
            windows, queue_seen = windows_of(number), bool(record.queue_seen)
            shown, _ = self._observe(record.target_connections, windows, queue_seen=queue_seen)
            again = self.search.judge(shown)
            is_known = outcome is StepOutcome.CLIENT_LIMIT or (again is not None and again.outcome is outcome)
            unknown += [] if is_known else [number]
            low = not is_known or (again is not None and again.low_confidence)
            step = JudgedStep(number=number, shown=shown, outcome=outcome, reason=record.reason, low_confidence=low)
            self.search = self.search.after(step)
        if broken:  # the next step cannot be determined
            self.search = replace(self.search, stopped=f"a stored step is unreadable ({'; '.join(broken)})")
        return tuple(unknown)

    def _problem(self, number: int, record: StepRecord) -> str | None:
        """Why a stored step cannot be the one with this number."""
        if record.step_number != number:
            return f"step {number} is missing"
        if not 1 <= record.target_connections <= self.search.config.maximum:
            return f"step {number} has {record.target_connections} connections"
        return None if record.outcome in list(StepOutcome) else f"step {number} has an unknown outcome"

    def stop(self, why: str) -> None:
        """End the search before it has found its answer. Without effect when it has ended."""
        if self.search.target is not None:
            self.search = replace(self.search, stopped=why)

    def observe(
        self, workers: Sequence[WorkerSnapshot], now_s: float, *, queue_seen: bool
    ) -> tuple[tuple[JudgedStep, MergedWindows] | None, SearchDecision | None]:
        """The step that was just judged, if any, with its measurement; and the next decision, if any."""
        lost = [worker.why for worker in workers if worker.is_over]
        if lost:  # every level needs all workers
            self.stop(f"a worker was lost ({'; '.join(lost)})")
        target = self.search.target
        if target is None:
            return None, SearchFinished(self.search.answer().reason)
        if self._announced != self.number:
            return None, self._next(now_s)
        windows = [self._windows(worker) for worker in workers]
        limit = client_limit(target, {worker.worker_id: own for worker, own in zip(workers, windows, strict=True)})
        shown, merged = self._observe(target, windows, queue_seen=queue_seen, client_limit=limit)
        if shown.seconds > self._seconds:
            self._seconds, self._grew_s = shown.seconds, now_s
        step = self.search.judge(shown)
        if step is None and now_s - self._grew_s > self._missing_s + self.search.config.settle_s:
            missing = self._missing(workers, windows, now_s)
            if missing is None or isinstance(missing, MetricsMissing):
                return None, missing
            step = client_limited_step(self.search.steps, shown, missing)
        if step is None:
            return None, None
        self.search = self.search.after(step)
        reason = self.search.answer().reason
        return (step, merged), SearchFinished(reason) if self.search.target is None else self._next(now_s)

    def is_open(self, workers: Sequence[WorkerSnapshot]) -> bool:
        """Whether every worker has opened the window of the current step."""
        return all(self._windows(worker) for worker in workers)

    # --- the result --------------------------------------------------------------------------------------------------

    @property
    def decisive_step(self) -> int | None:
        """The step whose figures are those of the run: the last step at the level that was found, else the first."""
        best = self.search.answer().best
        return best.number if best is not None else 1 if self.search.steps else None

    @property
    def connections(self) -> int:
        """The connections of the decisive step."""
        best = self.search.answer().best
        return self.search.config.start if best is None else best.target

    @property
    def deciding_steps(self) -> tuple[JudgedStep, ...]:
        """The steps that the answer rests on: the baseline, the best, and the failed one. The failed one supports
        nothing where the client was the limit at a lower level."""
        answer, first = self.search.answer(), baseline_step(self.search.config, self.search.steps)
        failed = answer.failed if answer.limited is None else None
        return tuple(step for step in (first, answer.best, failed) if step is not None)

    @property
    def deciding_levels(self) -> dict[int, int]:
        """The connections of the deciding steps, by number of the step."""
        return {step.number: step.target for step in self.deciding_steps}

    @property
    def obstacle(self) -> str | None:
        """Why the result of the search is INVALID; None: it is not. A client limit above the best level is allowed."""
        answer = self.search.answer()
        if self.search.stopped is not None:
            return f"the search ended early: {self.search.stopped}"
        if answer.best is None and answer.limited is not None:
            return f"the client was the limit at {answer.limited.target} connections: {answer.limited.reason}"
        return None

    def state(self) -> dict[str, Any]:
        """The document in FIND_MAX_STATE."""
        search, best, failed = self.search, self.search.best, self.search.answer().failed
        return {
            "step": self.number,
            "target": search.target,
            "best": None if best is None else best.target,
            "failed": None if failed is None else failed.target,
            "baseline_p95_ms": search.baseline_p95_ms,
            "next": search.stage.value,
            "reason": search.steps[-1].reason if search.steps else "",
        }

    def result(self, measured: Callable[[int | None], MergedWindows], *, valid: bool) -> dict[str, Any]:
        """The document in FIND_MAX_RESULT, and `find_max` of summary.json. `measured` returns the windows of a step."""
        answer, decisive = self.search.answer(), measured(self.decisive_step)
        best, failed = answer.best, answer.failed
        return {
            "max_concurrency": None if best is None else best.target,
            "result": None if best is None else "TRUE_MAX" if answer.is_true_max and valid else "BOUNDED_MAX",
            "reason": answer.reason,
            "failed_at": None if failed is None else failed.target,
            "failed_outcome": None if failed is None else failed.outcome.value,
            "limited_at": None if answer.limited is None else answer.limited.target,
            "qps": None if best is None else round(decisive.qps, 3),
            "p95_ms": None if best is None else p95_ms(decisive),
            "confidence": None if best is None else (answer.confidence if valid else SearchConfidence.LOW).value,
            "decisive_step": self.decisive_step,
            "steps": [step_document(step, measured(step.number)) for step in self.search.steps],
        }

    # --- the step under way ------------------------------------------------------------------------------------------

    def _next(self, now_s: float) -> StartStep:
        assert self.search.target is not None
        self._announced, self._seconds, self._grew_s = self.number, -1.0, now_s
        return StartStep(number=self.number, target=self.search.target)

    def _windows(self, worker: WorkerSnapshot) -> list[WindowResult]:
        """The windows of a worker in the current step."""
        live = worker.live.windows if worker.live is not None else ()
        return [window for window in live if window.phase is Phase.MEASUREMENT and window.step_id == self.number]

    def _missing(
        self, workers: Sequence[WorkerSnapshot], windows: WorkerWindows, now_s: float
    ) -> str | MetricsMissing | None:
        """Why the step makes no progress: the workers whose load was not delivered, or MetricsMissing. None: wait until
        a silent worker counts as lost, because the run may continue without it."""
        behind = [
            worker
            for worker, own in zip(workers, windows, strict=True)
            if math.fsum(window.seconds for window in own) <= self._seconds or not own
        ]
        silent = [worker for worker in behind if worker.live is None or worker.silent_s >= self._missing_s]
        if silent and self._on_worker_loss is OnWorkerLoss.CONTINUE and len(silent) < len(workers):
            return None
        if silent or not behind:
            return MetricsMissing(now_s - self._grew_s)
        names = ", ".join(worker.worker_id for worker in behind)
        return f"{names}: the load of the step was not delivered for {now_s - self._grew_s:.0f} s"


def find_max_controller(scenario: Scenario) -> FindMaxController | None:
    """The controller of a scenario. None: it does not search for a maximum."""
    config = scenario.load.find_max
    if config is None:
        return None
    missing_s = scenario.timing.metrics_missing_s
    return FindMaxController(
        config,
        scenario.thresholds,
        missing_s=missing_s,
        on_worker_loss=scenario.on_worker_loss,
        shares_machine=scenario.connection == EMBEDDED,
    )
