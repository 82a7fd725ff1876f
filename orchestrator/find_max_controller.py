"""Leading a search for the maximum: what the step under way shows, which one comes next, what the search has found.

The rules are those of `loadgen.rules.find_max`. Here windows of workers become observations, and answers become rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loadgen.control.tables.find_max_step_history import StepRecord
from loadgen.metrics.window import MergedWindows, WindowResult
from loadgen.model.run import Phase
from loadgen.rules.find_max import FindMaxSearch, SearchConfidence
from loadgen.rules.find_max_step import FindMaxSettings, JudgedStep, StepOutcome, client_limited_step
from loadgen.scenario.model import OnWorkerLoss, Scenario, Threshold
from orchestrator.find_max_observation import WorkerWindows, client_limit, observe_step, p95_ms, step_document
from orchestrator.worker_health import WorkerView


@dataclass(frozen=True, slots=True)
class StartStep:
    """Tell workers to go to the level of the step with this number."""

    number: int
    target: int


@dataclass(frozen=True, slots=True)
class SearchFinished:
    """The search is done."""

    reason: str


@dataclass(frozen=True, slots=True)
class MetricsMissing:
    """Nothing is known of the step: missing is never read as zero."""

    silent_s: float


SearchDecision = StartStep | SearchFinished | MetricsMissing


class FindMaxController:
    """One search. look() is called every tick while the run measures."""

    def __init__(
        self,
        config: FindMaxSettings,
        thresholds: tuple[Threshold, ...],
        *,
        missing_s: float,
        on_worker_loss: OnWorkerLoss = OnWorkerLoss.FAIL,
    ) -> None:
        self.search = FindMaxSearch(config=config)
        self._thresholds, self._missing_s, self._on_worker_loss = thresholds, missing_s, on_worker_loss
        self._asked: int | None = None  # the number of the step that workers were told about
        self._grew_s = 0.0  # when every worker had measured more of the step
        self._seconds = -1.0

    @property
    def number(self) -> int:
        """Of the step under way, from 1."""
        return len(self.search.steps) + 1

    def go_on(self, records: Sequence[StepRecord], windows_of: Callable[[int], WorkerWindows]) -> tuple[int, ...]:
        """These steps were judged by another leader: its verdicts stand, what was measured is known from the tables.

        Whether the bounds decided is not stored, so each step is judged again. The numbers of those that come out
        otherwise: they count as unsure.
        """
        unknown: list[int] = []
        for record in records:
            number, outcome = int(record.step_number), StepOutcome(record.outcome)
            windows, queue_seen = windows_of(number), bool(record.queue_seen)
            shown, _ = observe_step(int(record.target_connections), windows, self._thresholds, queue_seen=queue_seen)
            again = self.search.judge(shown)
            is_known = outcome is StepOutcome.CLIENT_LIMIT or (again is not None and again.outcome is outcome)
            unknown += [] if is_known else [number]
            low = not is_known or (again is not None and again.low_confidence)
            step = JudgedStep(number=number, shown=shown, outcome=outcome, reason=record.reason, low_confidence=low)
            self.search = self.search.after(step)
        return tuple(unknown)

    def stop(self, why: str) -> None:
        """Nothing more can be measured; without effect when the search is over."""
        if self.search.target is not None:
            self.search = replace(self.search, stopped=why)

    def look(
        self, crew: Sequence[WorkerView], now_s: float, *, queue_seen: bool
    ) -> tuple[tuple[JudgedStep, MergedWindows] | None, SearchDecision | None]:
        """The step that has just been judged, if one was, with what was measured in it; and what to do."""
        lost = [worker.why for worker in crew if worker.is_over]
        if lost:  # the number of workers is fixed: without one of them no level can be delivered
            self.stop(f"a worker was lost ({'; '.join(lost)})")
        target = self.search.target
        if target is None:
            return None, SearchFinished(self.search.answer().reason)
        if self._asked != self.number:
            return None, self._next(now_s)
        windows = [self._windows(worker) for worker in crew]
        limit = client_limit(target, {worker.worker_id: own for worker, own in zip(crew, windows, strict=True)})
        shown, merged = observe_step(target, windows, self._thresholds, queue_seen=queue_seen, client_limit=limit)
        if shown.seconds > self._seconds:
            self._seconds, self._grew_s = shown.seconds, now_s
        step = self.search.judge(shown)
        if step is None and now_s - self._grew_s > self._missing_s + self.search.config.settle_s:
            missing = self._missing(crew, windows, now_s)
            if missing is None or isinstance(missing, MetricsMissing):
                return None, missing
            step = client_limited_step(self.search.steps, shown, missing)
        if step is None:
            return None, None
        self.search = self.search.after(step)
        reason = self.search.answer().reason
        return (step, merged), SearchFinished(reason) if self.search.target is None else self._next(now_s)

    def is_open(self, crew: Sequence[WorkerView]) -> bool:
        """Has every worker opened the window of the step under way?"""
        return all(self._windows(worker) for worker in crew)

    # --- what it has found -------------------------------------------------------------------------------------------

    @property
    def decisive_step(self) -> int | None:
        """The step whose numbers are the run's: the last one at the level that was found, else the first."""
        best = self.search.answer().best
        return best.number if best is not None else 1 if self.search.steps else None

    @property
    def connections(self) -> int:
        """Of the decisive step."""
        best = self.search.answer().best
        return self.search.config.start if best is None else best.target

    @property
    def deciding_steps(self) -> tuple[JudgedStep, ...]:
        """Validity rests on these: the baseline, the best, the one that failed."""
        answer, start = self.search.answer(), self.search.config.start
        first = next((step for step in self.search.steps if step.target == start and step.held), None)
        return tuple(step for step in (first, answer.best, answer.failed) if step is not None)

    @property
    def deciding_levels(self) -> dict[int, int]:
        """Their connections, by the number of the step."""
        return {step.number: step.target for step in self.deciding_steps}

    @property
    def obstacle(self) -> str | None:
        """What makes the search worthless. The client may well be the limit above the best level."""
        answer = self.search.answer()
        if self.search.stopped is not None:
            return f"the search ended early: {self.search.stopped}"
        if answer.best is None and answer.limited is not None:
            return f"the client was the limit at {answer.limited.target} connections: {answer.limited.reason}"
        return None

    def state(self) -> dict[str, Any]:
        """FIND_MAX_STATE."""
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
        """FIND_MAX_RESULT and summary.json's find_max, with all that was measured in a step."""
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
        self._asked, self._seconds, self._grew_s = self.number, -1.0, now_s
        return StartStep(number=self.number, target=self.search.target)

    def _windows(self, worker: WorkerView) -> list[WindowResult]:
        """What a worker has measured in the step under way."""
        live = worker.live.windows if worker.live is not None else ()
        return [window for window in live if window.phase is Phase.MEASUREMENT and window.step_id == self.number]

    def _missing(self, crew: Sequence[WorkerView], windows: WorkerWindows, now_s: float) -> str | MetricsMissing | None:
        """Why the step does not get on: which load was not delivered; or nothing is heard. None: wait for the verdict
        on a worker that is silent, without which the run may go on."""
        behind = [
            worker
            for worker, own in zip(crew, windows, strict=True)
            if math.fsum(window.seconds for window in own) <= self._seconds or not own
        ]
        silent = [worker for worker in behind if worker.live is None or worker.silent_s >= self._missing_s]
        if silent and self._on_worker_loss is OnWorkerLoss.CONTINUE and len(silent) < len(crew):
            return None
        if silent or not behind:
            return MetricsMissing(now_s - self._grew_s)
        names = ", ".join(worker.worker_id for worker in behind)
        return f"{names}: the load of the step was not delivered for {now_s - self._grew_s:.0f} s"


def find_max_controller(scenario: Scenario) -> FindMaxController | None:
    """None: the scenario searches for nothing."""
    config = scenario.load.find_max
    if config is None:
        return None
    missing_s = scenario.timing.metrics_missing_s
    return FindMaxController(config, scenario.thresholds, missing_s=missing_s, on_worker_loss=scenario.on_worker_loss)
