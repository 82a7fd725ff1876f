"""Searching for the most connections that hold: pure, step by step.

    climb     start, then more by `increment`, until a step fails or the ceiling is reached
    confirm   the best level once more; if it fails now, the next lower level that held
    refine    halve the gap between the best level and the one that failed, until they are neighbours

A step fails by the first of: a queue in front of the warehouse, too many errors, a threshold, latency or throughput
worse than it may be, or a plateau (more connections, no more throughput). Latency is compared by the 95 % bounds of its
percentile: while they straddle the limit the step goes on, at most three times as long, then the estimate decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from loadgen.metrics.percentile import PERCENTILES
from loadgen.metrics.result import Merged
from loadgen.report.verdict import check_threshold
from loadgen.scenario.scenario import FindMax, Threshold
from loadgen.units import NS_PER_MS

PLATEAU_GAIN = 0.02  # over the last two steps
GAP_MIN = 0.05  # of the best level: closer than this nobody needs to know
EXTEND_MAX = 3.0  # times the length of a step


class Outcome(StrEnum):
    STABLE = "STABLE"
    QUEUE_DETECTED = "QUEUE_DETECTED"
    ERROR_THRESHOLD = "ERROR_THRESHOLD"
    SLO_FAILED = "SLO_FAILED"
    DEGRADED = "DEGRADED"
    PLATEAU = "PLATEAU"


class Stage(StrEnum):
    CLIMB = "climb"
    CONFIRM = "confirm"
    REFINE = "refine"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a step showed so far."""

    target: int
    seconds: float  # the shortest that a worker has measured
    merged: Merged
    queue_seen: bool = False

    @property
    def p95_ms(self) -> float | None:
        return p95_ms(self.merged)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A step that is over."""

    number: int
    seen: Seen
    outcome: Outcome
    reason: str
    low_confidence: bool = False

    @property
    def held(self) -> bool:
        return self.outcome is Outcome.STABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Where the search is. `target` is the level of the step under way; None when it is done."""

    config: FindMax
    thresholds: tuple[Threshold, ...] = ()
    stage: Stage = Stage.CLIMB
    target: int | None = None
    steps: tuple[Judged, ...] = ()
    best: Judged | None = None  # the highest level that held, and was confirmed once confirming has begun
    failed: Judged | None = None  # the lowest level above it that did not

    @classmethod
    def begin(cls, config: FindMax, thresholds: tuple[Threshold, ...] = ()) -> Search:
        return cls(config=config, thresholds=thresholds, target=config.start)

    @property
    def baseline_p95_ms(self) -> float | None:
        return self.steps[0].seen.p95_ms if self.steps else None

    @property
    def bounded(self) -> bool:
        """Did even the ceiling hold?"""
        return self.best is not None and self.failed is None

    def judge(self, seen: Seen) -> Judged | None:
        """What to make of the step under way; None: it needs more time."""
        if seen.queue_seen and self.config.stop_on_queue:
            return self._judged(seen, Outcome.QUEUE_DETECTED, "statements queued in front of the warehouse")
        if seen.seconds < self.config.step_s:
            return None
        last_chance = seen.seconds >= EXTEND_MAX * self.config.step_s
        for verdict in (self._errors(seen), self._slo(seen), self._latency(seen), self._throughput(seen)):
            if verdict is None:
                continue
            outcome, reason, sure = verdict
            if not sure and not last_chance:
                return None
            if outcome is not Outcome.STABLE:
                return self._judged(seen, outcome, reason, low_confidence=not sure)
        unsure = any(verdict is not None and not verdict[2] for verdict in (self._slo(seen), self._latency(seen)))
        return self._judged(seen, Outcome.STABLE, "held", low_confidence=unsure)

    def after(self, judged: Judged) -> Search:
        """The search with one more step judged, and the next one chosen."""
        after = replace(self, steps=(*self.steps, judged))
        if self.stage is Stage.CLIMB:
            return after._climbed(judged)
        if self.stage is Stage.CONFIRM:
            return after._confirmed(judged)
        return after._refined(judged)

    # --- where to go -------------------------------------------------------------------------------------------------

    def _climbed(self, judged: Judged) -> Search:
        if judged.held:
            climbed = replace(self, best=judged)
            if judged.seen.target >= self.config.maximum:
                return replace(climbed, stage=Stage.CONFIRM, target=judged.seen.target)
            target = min(judged.seen.target + self.config.increment, self.config.maximum)
            return replace(climbed, target=target)
        if self.best is None:
            return replace(self, failed=judged, stage=Stage.DONE, target=None)
        return replace(self, failed=judged, stage=Stage.CONFIRM, target=self.best.seen.target)

    def _confirmed(self, judged: Judged) -> Search:
        if judged.held:
            return replace(self, best=judged)._refine()
        lower = [step for step in self.steps if step.held and step.seen.target < judged.seen.target]
        if not lower:
            return replace(self, best=None, failed=judged, stage=Stage.DONE, target=None)
        best = max(lower, key=lambda step: step.seen.target)
        return replace(self, best=best, failed=judged, target=best.seen.target)

    def _refined(self, judged: Judged) -> Search:
        after = replace(self, best=judged) if judged.held else replace(self, failed=judged)
        return after._refine()

    def _refine(self) -> Search:
        assert self.best is not None
        done = replace(self, stage=Stage.DONE, target=None)
        if self.failed is None or not self.config.refine:
            return done
        low, high = self.best.seen.target, self.failed.seen.target
        if high - low <= 1 or high - low < GAP_MIN * low:
            return done
        return replace(self, stage=Stage.REFINE, target=(low + high) // 2)

    # --- what a step showed ------------------------------------------------------------------------------------------

    def _errors(self, seen: Seen) -> tuple[Outcome, str, bool] | None:
        rate = seen.merged.counts.error_rate
        limit = self.config.max_error_rate_pct / 100
        if rate is None:
            return Outcome.ERROR_THRESHOLD, "nothing ended in this step", True
        if rate <= limit:
            return None
        return Outcome.ERROR_THRESHOLD, f"{100 * rate:.2f} % of statements failed (limit {100 * limit:g} %)", True

    def _slo(self, seen: Seen) -> tuple[Outcome, str, bool] | None:
        sure = True
        for threshold in self.thresholds:
            checked = check_threshold(threshold.check, seen.merged)
            straddles = self._straddles(seen, threshold)
            if not checked.passed:
                return Outcome.SLO_FAILED, f"{checked.check} was not met", not straddles
            sure = sure and not straddles
        return None if sure else (Outcome.STABLE, "held", False)

    def _straddles(self, seen: Seen, threshold: Threshold) -> bool:
        check = threshold.check
        per_mille = PERCENTILES.get(check.metric.value)
        statements = seen.merged.tally.statements
        tally = seen.merged.tally.whole if check.statement is None else statements.get(check.statement)
        if per_mille is None or tally is None:
            return False
        bounds = tally.response_bounds(per_mille)
        low = -1.0 if bounds.low_ns is None else bounds.low_ns / NS_PER_MS
        return low <= check.limit and (bounds.high_ns is None or bounds.high_ns / NS_PER_MS >= check.limit)

    def _latency(self, seen: Seen) -> tuple[Outcome, str, bool] | None:
        baseline, p95_ms = self.baseline_p95_ms, seen.p95_ms
        if baseline is None or p95_ms is None:
            return None
        limit = baseline * (1 + self.config.latency_stability_pct / 100)
        bounds = seen.merged.tally.whole.response_bounds(950)
        worse = p95_ms > limit
        low_ms = None if bounds.low_ns is None else bounds.low_ns / NS_PER_MS
        high_ms = None if bounds.high_ns is None else bounds.high_ns / NS_PER_MS
        sure = (worse and low_ms is not None and low_ms > limit) or (
            not worse and high_ms is not None and high_ms <= limit
        )
        reason = f"p95 {p95_ms:.1f} ms is more than {self.config.latency_stability_pct:g} % above {baseline:.1f} ms"
        return (Outcome.DEGRADED, reason, sure) if worse else (Outcome.STABLE, "held", sure)

    def _throughput(self, seen: Seen) -> tuple[Outcome, str, bool] | None:
        held = [step for step in self.steps if step.held and step.seen.target < seen.target]
        if not held:
            return None
        best_qps = max(step.seen.merged.qps for step in held)
        floor = best_qps * (1 - self.config.qps_stability_pct / 100)
        qps = seen.merged.qps
        if qps < floor:
            reason = f"{qps:,.1f}/s is more than {self.config.qps_stability_pct:g} % below {best_qps:,.1f}/s"
            return Outcome.DEGRADED, reason, True
        if self._is_plateau(held, seen):
            reason = f"{qps:,.1f}/s is hardly more than two steps before, and p95 rose"
            return Outcome.PLATEAU, reason, True
        return None

    def _is_plateau(self, held: Sequence[Judged], seen: Seen) -> bool:
        if self.stage is not Stage.CLIMB or len(held) < 2:
            return False
        before = held[-2].seen
        gained = seen.merged.qps / before.merged.qps - 1 if before.merged.qps else 1.0
        rose = before.p95_ms is not None and seen.p95_ms is not None and seen.p95_ms > before.p95_ms
        return gained < PLATEAU_GAIN and rose

    def _judged(self, seen: Seen, outcome: Outcome, reason: str, *, low_confidence: bool = False) -> Judged:
        return Judged(
            number=len(self.steps) + 1, seen=seen, outcome=outcome, reason=reason, low_confidence=low_confidence
        )


def p95_ms(merged: Merged) -> float | None:
    """Of all statements; None: too few for it."""
    quantile = merged.tally.whole.response_at(950)
    return None if quantile is None else quantile.value_ns / NS_PER_MS
