"""Limits of a run: thresholds and guardrails of the client while it measures, the cost from its start on. Pure.

A threshold with a `window` must hold in every span of that length: the worst span counts, during the run and in the
result. A threshold without a `window` is judged by the whole measurement so far. An undecided threshold ends no run:
neither does one that was missed by no more than the client may have caused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from loadgen.metrics.window import MergedWindows
from loadgen.model.run import RunStatus
from loadgen.model.threshold import ThresholdMetric
from loadgen.report.formatting import measured
from loadgen.results.run_snapshot import WorkerHealth, WorkerSnapshot
from loadgen.rules.client_health import ClientHealth
from loadgen.rules.thresholds import (
    Checked,
    check_threshold,
    check_thresholds,
    compare,
    has_failed,
    is_worse,
    may_recover,
)
from loadgen.rules.validity import client_part
from loadgen.scenario.model import Threshold
from loadgen.scenario.settings import GuardrailAction, GuardrailSettings, TimingSettings
from orchestrator.aggregation import RunAggregator
from orchestrator.lifecycle import THRESHOLD_MISSED, RunEnding

WAREHOUSE_UNSEEN_MAX_S = 60.0  # without a poll the cost of a growing warehouse is not observed
CONSECUTIVE_BREACHES = 3  # ticks in a row: a single busy second does not count
_RATES = (ThresholdMetric.QPS, ThresholdMetric.QUERIES)
MEASURED_MIN_S = 1.0  # by every worker, before thresholds are judged: a window that has just opened has no rate


class WarehouseCost(Protocol):
    """The observed cost of the target warehouse."""

    @property
    def credits(self) -> float: ...
    @property
    def unseen_s(self) -> float: ...  # time since the last successful poll


class LimitMonitor:
    """Checks the limits of one run. check() is called in every tick of the measurement."""

    def __init__(
        self,
        thresholds: Sequence[Threshold],
        guardrails: GuardrailSettings,
        timing: TimingSettings,
        progress: RunAggregator,
        *,
        open_loop: bool = False,
    ) -> None:
        self._thresholds, self._open_loop = tuple(thresholds), open_loop
        self._guardrails, self._timing, self._progress = guardrails, timing, progress
        self._worst: dict[int, Checked] = {}  # the worst span of each threshold with a window
        self._decided: dict[int, Checked] = {}  # thresholds that ended the run: later measurements do not count
        self._breaches = self._busy = 0
        self.warnings: list[str] = []

    def check(self, workers: Sequence[WorkerSnapshot], measured_s: float) -> RunEnding | None:
        """The ending that the first violated limit demands; None: no limit is violated. `measured_s`: since the
        measurement began."""
        return self._judge(workers, measured_s) or self._guard(workers)

    def cost(self, warehouse: WarehouseCost | None) -> RunEnding | None:
        """The ending that the cost limit demands, in any phase. `guardrails.action` does not apply to it."""
        reason = None if warehouse is None else costs_too_much(warehouse, self._guardrails.max_credits)
        return None if reason is None else self._ending(reason)

    def warn_of_uncertain_steps(self, steps: Sequence[int]) -> None:
        """Steps of a search that another leader has judged and whose confidence is not known."""
        text = "was judged before the run was taken over; its confidence is not stored and counts as low"
        self.warn([f"step {number} {text}" for number in steps])

    def current(self) -> tuple[Checked, ...]:
        """Every threshold, judged by the measurement so far."""
        return self.final(self._progress.merged)

    def final(self, merged: MergedWindows) -> tuple[Checked, ...]:
        """Every threshold, judged as it ended the run, else by its worst span if it has a window, else by the whole
        measurement."""
        known = self._worst | self._decided
        return tuple(known.get(number, one) for number, one in enumerate(check_thresholds(self._thresholds, merged)))

    def complete(self, merged: MergedWindows, measured_s: Mapping[str, float], until_s: float) -> tuple[Checked, ...]:
        """As final(), after the measurement: spans that were not judged yet are judged first, even if a worker has not
        reported them. No span is known to have been met then. `measured_s`: the measured time of each worker;
        `until_s`: the end of the plan, which bounds what a damaged row may report."""
        self._judge_seconds(min(self._progress.seconds.reported, round(max(until_s, merged.seconds))))
        self._judge_drain()
        unreported = self._progress.seconds.unreported(measured_s)
        return tuple(
            _unmeasured(checked, unreported) if unreported and checked.passed and threshold.window_s else checked
            for threshold, checked in zip(self._thresholds, self.final(merged), strict=True)
        )

    # --- thresholds --------------------------------------------------------------------------------------------------

    def _judge(self, workers: Sequence[WorkerSnapshot], measured_s: float) -> RunEnding | None:
        waited = [worker.worker_id for worker in workers if not worker.is_over]
        ended = [worker.worker_id for worker in workers if worker.is_over and worker.health is not WorkerHealth.DEAD]
        measuring = waited or ended  # a worker that has ended measures nothing any more
        if not self._is_measured(measuring):
            return None
        for number, threshold in enumerate(self._thresholds):
            check = threshold.check
            if threshold.window_s is not None or measured_s < threshold.after_s:
                continue
            checked = check_threshold(check, self._progress.merged)
            if may_recover(check, checked) or not self._is_measured(measuring, check.statement):
                continue
            if self._aborts(threshold, checked):
                return self._aborted(number, checked)
        return self._judge_seconds(self._progress.seconds.complete(waited, ended))

    def _is_measured(self, workers: Sequence[str], subject: str | None = None) -> bool:
        """Whether all of these workers have measured the run, or the stage that is the subject, for long enough."""
        return min((self._progress.measured_s(one, subject) for one in workers), default=0.0) >= MEASURED_MIN_S

    def _judge_seconds(self, until: int) -> RunEnding | None:
        """Judge every span that ends at a second up to `until` and was not judged before."""
        seconds, ending = self._progress.seconds, None
        sliding = [(number, one) for number, one in enumerate(self._thresholds) if one.window_s is not None]
        while sliding and seconds.closed < until:
            seconds.close(seconds.closed + 1)
            for number, threshold in sliding:
                checked = self._span(threshold) if seconds.closed >= threshold.after_s else None
                if checked is None:
                    continue
                if is_worse(checked, self._worst.get(number), threshold.check.operator):
                    self._worst[number] = checked
                if ending is None and self._aborts(threshold, checked):
                    ending = self._aborted(number, checked)
        return ending

    def _judge_drain(self) -> None:
        """Judge again every span with statements that ended in the drain. Rates do not change: they count statements
        that ended in the measurement."""
        seconds = self._progress.seconds
        first = seconds.settle()
        if first is None:
            return
        for number, threshold in enumerate(self._thresholds):
            if threshold.window_s is None or threshold.check.metric in _RATES:
                continue
            for until in range(max(first, math.ceil(threshold.after_s)), seconds.closed + 1):
                checked = self._span(threshold, until)
                if checked and is_worse(checked, self._worst.get(number), threshold.check.operator):
                    self._worst[number] = checked

    def _span(self, threshold: Threshold, until: int | None = None) -> Checked | None:
        """The threshold, judged over the span that ends at `until` (default: the newest second). None: the span was not
        measured in full, or no statement ended in it. A statement counts in the span in which it ends."""
        assert threshold.window_s is not None
        check, length_s = threshold.check, float(math.ceil(threshold.window_s))  # spans have whole seconds
        span = self._progress.seconds.span(length_s, check.statement, until=until)
        if span is None:
            return None
        checked = replace(check_threshold(check, span), window_s=length_s)
        if checked.value is None and not checked.undecided:  # nothing ended
            return replace(checked, value=0.0, passed=compare(check, 0.0)) if check.metric in _RATES else None
        if checked.too_few:
            return replace(checked, too_few=f"{checked.too_few}, in each span of {length_s:g} s")
        return checked

    def _aborts(self, threshold: Threshold, checked: Checked) -> bool:
        """Whether it has certainly failed, also without what the client may have caused, and ends the run."""
        if not threshold.abort or not has_failed(checked):
            return False
        progress, check = self._progress, threshold.check
        health = progress.client.of(check.statement)
        return client_part(check, checked, health, progress.merged, open_loop=self._open_loop) is None

    def _aborted(self, number: int, checked: Checked) -> RunEnding:
        self._decided.setdefault(number, checked)
        return RunEnding(
            status=RunStatus.COMPLETED,
            reason=f"{checked.words} was not met ({measured(checked.check, checked.value)}), and aborts the run",
            stop=THRESHOLD_MISSED,
            drain_s=self._timing.drain_s,
        )

    # --- guardrails --------------------------------------------------------------------------------------------------

    def _guard(self, workers: Sequence[WorkerSnapshot]) -> RunEnding | None:
        workers = [worker for worker in workers if not worker.is_over]  # the last heartbeat of an ended worker is stale
        self._warn_busy(workers)
        over = [text for worker in workers if (text := self._over(worker)) is not None]
        self._breaches = self._breaches + 1 if over else 0
        return self._breached(over) if self._breaches >= CONSECUTIVE_BREACHES else None

    def _breached(self, over: list[str]) -> RunEnding | None:
        if self._guardrails.action is GuardrailAction.WARN:
            self.warn(over)
            return None
        return self._ending(over[0])

    def _ending(self, reason: str) -> RunEnding:
        return RunEnding(
            status=RunStatus.FAILED, reason=reason, stop="guardrail", drain_s=self._timing.drain_interrupt_s
        )

    def _over(self, worker: WorkerSnapshot) -> str | None:
        beat, limits = None if worker.row is None else worker.row.beat, self._guardrails
        if beat is None:
            return None
        if beat.memory_percent is not None and beat.memory_percent > limits.max_memory_percent:
            return f"{worker.worker_id} uses more than {limits.max_memory_percent:g} % of the memory"
        if beat.cpu_percent is not None and beat.cpu_percent > limits.max_cpu_percent:
            return f"{worker.worker_id} uses more than {limits.max_cpu_percent:g} % of its core"
        return None

    def _warn_busy(self, workers: Sequence[WorkerSnapshot]) -> None:
        busy = [
            f"{worker.worker_id} {warning}: {health.advice}"
            for worker in workers
            if worker.row is not None
            and (warning := (health := ClientHealth(cpu_percent_of_core=worker.row.beat.cpu_percent)).warning(None))
        ]
        self._busy = self._busy + 1 if busy else 0
        if self._busy >= CONSECUTIVE_BREACHES:
            self.warn(busy)

    def warn(self, texts: Sequence[str]) -> None:
        """Add warnings, each text once."""
        self.warnings += [text for text in texts if text not in self.warnings]


def _unmeasured(checked: Checked, unreported: str) -> Checked:
    why = f"undecided: {checked.words} cannot be judged: {unreported}"
    return replace(checked, value=None, passed=False, undecided=True, unmeasured=why, at_least=False, at_most=False)


def costs_too_much(warehouse: WarehouseCost, max_credits: float | None) -> str | None:
    """Why the cost limit ends a run or its preparation. None: it does not."""
    if max_credits is None:
        return None
    if warehouse.credits >= max_credits:
        return f"the warehouse has cost {max_credits:g} credits or more, which is guardrails.max_credits"
    if warehouse.unseen_s > WAREHOUSE_UNSEEN_MAX_S:
        why = f"the warehouse could not be observed for {warehouse.unseen_s:.0f} s"
        return f"{why}, and guardrails.max_credits limits what it may cost"
    return None
