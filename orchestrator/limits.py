"""Limits that are watched while a run measures: thresholds that abort, and guardrails of the client. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.metrics.result import Merged, WindowResult, merge
from loadgen.model.run import Phase, RunStatus
from loadgen.report.verdict import check_threshold
from loadgen.scenario.scenario import GuardrailAction, Guardrails, Threshold, Timing
from orchestrator.course import Ending
from orchestrator.crew import Health, WorkerView

BREACHES = 3  # looks in a row; one busy second is no trend
MEASURED_MIN_S = 1.0  # by every worker, before anything is judged: a window that has just opened has no rate yet


class Limits:
    """look() every tick of the measurement: the first limit that ends the run, if any."""

    def __init__(self, thresholds: Sequence[Threshold], guardrails: Guardrails, timing: Timing) -> None:
        self._aborting = [threshold for threshold in thresholds if threshold.abort]
        self._guardrails, self._timing = guardrails, timing
        self._breaches = 0
        self.warnings: list[str] = []

    def look(self, crew: Sequence[WorkerView], measured_s: float) -> Ending | None:
        """`measured_s`: since the measurement began."""
        return self._thresholds(crew, measured_s) or self._guard(crew)

    def _thresholds(self, crew: Sequence[WorkerView], measured_s: float) -> Ending | None:
        if not self._aborting:
            return None
        if (
            min((_measured_s(worker) for worker in crew if worker.health is not Health.DEAD), default=0)
            < MEASURED_MIN_S
        ):
            return None
        merged = merge_measured(crew)
        for threshold in self._aborting:
            if measured_s < threshold.after_s + (threshold.window_s or 0.0):
                continue
            checked = check_threshold(threshold.check, merged)
            if not checked.passed and checked.value is not None:
                return Ending(
                    status=RunStatus.COMPLETED,
                    reason=f"{threshold.check.text} was not met ({checked.value:.6g}), and aborts the run",
                    stop="threshold",
                    drain_s=self._timing.drain_s,
                )
        return None

    def _guard(self, crew: Sequence[WorkerView]) -> Ending | None:
        over = [text for worker in crew if (text := self._over(worker)) is not None]
        self._breaches = self._breaches + 1 if over else 0
        if self._breaches < BREACHES:
            return None
        if self._guardrails.action is GuardrailAction.WARN:
            self.warnings += [text for text in over if text not in self.warnings]
            return None
        return Ending(status=RunStatus.FAILED, reason=over[0], stop="guardrail", drain_s=self._timing.drain_interrupt_s)

    def _over(self, worker: WorkerView) -> str | None:
        beat = None if worker.row is None else worker.row.beat
        if beat is None or beat.memory_percent is None:
            return None
        if beat.memory_percent > self._guardrails.max_memory_percent:
            return f"{worker.worker_id} uses {beat.memory_percent:.0f} % of the memory"
        return None


def merge_measured(crew: Sequence[WorkerView]) -> Merged:
    """What workers say of the measurement so far."""
    return merge([_measured(worker) for worker in crew])


def _measured(worker: WorkerView) -> list[WindowResult]:
    windows = () if worker.live is None else worker.live.windows
    return [window for window in windows if window.phase is Phase.MEASUREMENT]


def _measured_s(worker: WorkerView) -> float:
    return sum(window.seconds for window in _measured(worker))
