"""A search for the maximum, led: which step is under way, what it shows, what comes next. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from loadgen.control.find_max_step_history import StepRecord
from loadgen.metrics.result import Merged, WindowResult, merge
from loadgen.model.run import Phase
from loadgen.scenario.scenario import FindMax, Threshold
from orchestrator.crew import WorkerView
from orchestrator.find_max import Judged, Outcome, Search, Seen, p95_ms


@dataclass(frozen=True, slots=True)
class NextStep:
    """Tell workers to go to the level of the step with this number."""

    number: int
    target: int


@dataclass(frozen=True, slots=True)
class Over:
    """The search is done."""

    reason: str


@dataclass(frozen=True, slots=True)
class Blind:
    """Workers say nothing about the step: missing is never read as zero."""

    silent_s: float


Order = NextStep | Over | Blind


class Seeker:
    """One search. look() is called every tick while the run measures."""

    def __init__(self, config: FindMax, thresholds: tuple[Threshold, ...], *, missing_s: float) -> None:
        self.search = Search.begin(config, thresholds)
        self._missing_s = missing_s
        self._asked: int | None = None  # the number of the step that workers were told about
        self._heard_s = 0.0  # when all workers last said something of the step
        self._seconds = -1.0

    @property
    def number(self) -> int:
        """Of the step under way, from 1."""
        return len(self.search.steps) + 1

    def go_on(
        self, steps: Sequence[StepRecord], windows_of: Callable[[int], Sequence[Sequence[WindowResult]]]
    ) -> tuple[int, ...]:
        """Another leader has judged these steps: its judgement stands, what was measured is known from the tables.

        How sure it was is not stored, so each step is judged again. The numbers of those that came out otherwise: they
        count as unsure.
        """
        unknown: list[int] = []
        for step in steps:
            windows = windows_of(step.step_number)
            seconds = min((sum(window.seconds for window in own) for own in windows), default=0.0)
            seen = Seen(
                target=step.target_connections, seconds=seconds, merged=merge(windows), queue_seen=step.queue_seen
            )
            again = self.search.judge(seen)
            is_known = again is not None and again.outcome == step.outcome
            unknown += [] if is_known else [step.step_number]
            judged = Judged(
                number=step.step_number,
                seen=seen,
                outcome=Outcome(step.outcome),
                reason=step.reason,
                low_confidence=again is None or not is_known or again.low_confidence,
            )
            self.search = self.search.after(judged)
        return tuple(unknown)

    def look(self, crew: Sequence[WorkerView], now_s: float, *, queue_seen: bool) -> tuple[Judged | None, Order | None]:
        """The step that has just been judged, if one was, and what to do."""
        if self.search.target is None:
            return None, Over(self.reason)
        if self._asked != self.number:
            return None, self._next(now_s)
        seen = self._seen(crew, queue_seen)
        if seen.seconds > self._seconds:
            self._seconds, self._heard_s = seen.seconds, now_s
        elif now_s - self._heard_s > self._missing_s + self.search.config.settle_s:
            return None, Blind(now_s - self._heard_s)
        judged = self.search.judge(seen)
        if judged is None:
            return None, None
        self.search = self.search.after(judged)
        return judged, Over(self.reason) if self.search.target is None else self._next(now_s)

    def is_open(self, crew: Sequence[WorkerView]) -> bool:
        """Has every worker opened the window of the step under way?"""
        return all(self._windows(worker) for worker in crew)

    @property
    def reason(self) -> str:
        """How it came out, in one sentence."""
        search = self.search
        if search.best is None:
            why = search.failed.reason if search.failed is not None else "nothing was measured"
            return f"not even {search.config.start} connections held: {why}"
        level = search.best.seen.target
        if search.failed is None:
            return f"{level} connections held, and more were not tried"
        return f"{level} connections held; {search.failed.seen.target} did not: {search.failed.reason}"

    def state(self) -> dict[str, Any]:
        """FIND_MAX_STATE."""
        search = self.search
        return {
            "step": self.number,
            "target": search.target,
            "best": None if search.best is None else search.best.seen.target,
            "failed": None if search.failed is None else search.failed.seen.target,
            "baseline_p95_ms": search.baseline_p95_ms,
            "next": search.stage.value,
            "reason": search.steps[-1].reason if search.steps else "",
        }

    def result(self, decisive: Merged) -> dict[str, Any]:
        """FIND_MAX_RESULT and summary.json's find_max.

        `decisive`: all that was measured in the step whose numbers are the run's. It went on for a moment after it was
        judged, so the same step among `steps`, which are as they were judged, differs a little.
        """
        search = self.search
        best, failed = search.best, search.failed
        return {
            "max_concurrency": None if best is None else best.seen.target,
            "result": None if best is None else "BOUNDED_MAX" if search.bounded else "TRUE_MAX",
            "reason": self.reason,
            "failed_at": None if failed is None else failed.seen.target,
            "failed_outcome": None if failed is None else failed.outcome.value,
            "qps": None if best is None else round(decisive.qps, 3),
            "p95_ms": None if best is None else p95_ms(decisive),
            "confidence": None if best is None else "low" if best.low_confidence else "high",
            "steps": [_step(judged) for judged in search.steps],
        }

    def _next(self, now_s: float) -> NextStep:
        assert self.search.target is not None
        self._asked, self._seconds, self._heard_s = self.number, -1.0, now_s
        return NextStep(number=self.number, target=self.search.target)

    def _seen(self, crew: Sequence[WorkerView], queue_seen: bool) -> Seen:
        """The windows of this step over all workers; none counts before each has opened its own."""
        windows = [self._windows(worker) for worker in crew]
        measured = [sum(window.seconds for window in own) for own in windows]
        assert self.search.target is not None
        return Seen(
            target=self.search.target,
            seconds=min(measured, default=0.0),
            merged=merge(windows, live=True),
            queue_seen=queue_seen,
        )

    def _windows(self, worker: WorkerView) -> list[WindowResult]:
        """What a worker has measured in the step under way."""
        live = worker.live.windows if worker.live is not None else ()
        return [window for window in live if window.phase is Phase.MEASUREMENT and window.step_id == self.number]


def step_record(run_id: str, judged: Judged, now: datetime) -> StepRecord:
    """A judged step, as a row. `now` is the server's time: its window is the time before it that was measured."""
    seen, whole = judged.seen, judged.seen.merged.tally.whole

    def ms(per_mille: int) -> float | None:
        quantile = whole.response_at(per_mille)
        return None if quantile is None else quantile.value_ns / 1e6

    return StepRecord(
        run_id=run_id,
        step_number=judged.number,
        target_connections=seen.target,
        window_start_time=now - timedelta(seconds=seen.seconds),
        window_end_time=now,
        succeeded=seen.merged.counts.succeeded,
        failed=seen.merged.counts.failed,
        qps=seen.merged.qps,
        p50_latency_ms=ms(500),
        p95_latency_ms=ms(950),
        p99_latency_ms=ms(990),
        error_rate=seen.merged.counts.error_rate,
        queue_seen=seen.queue_seen,
        outcome=judged.outcome.value,
        reason=judged.reason,
    )


def _step(judged: Judged) -> dict[str, Any]:
    return {
        "step": judged.number,
        "target": judged.seen.target,
        "outcome": judged.outcome.value,
        "reason": judged.reason,
        "seconds": round(judged.seen.seconds, 3),
        "qps": round(judged.seen.merged.qps, 3),
        "p95_ms": judged.seen.p95_ms,
        "failed": judged.seen.merged.counts.failed,
        "low_confidence": judged.low_confidence,
    }
