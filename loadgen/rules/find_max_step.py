"""The verdict of one step of a search for the maximum.

A step fails by the first of: a queue in front of the warehouse, too many errors, a threshold, latency or throughput
worse than allowed, or a plateau (more connections, no more throughput). Percentiles are compared by their 95 % bounds:
while they do not decide, the step is extended, at most to three times its length; then the point estimate decides. A
step in which no statement has ended is extended as well, and has then failed.

A step in which the client was the limit, or whose load was not delivered, says nothing about the server. Neither does a
step that would fail by no more than the client may have added to its times, or taken from its throughput.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import reduce
from operator import add
from typing import Protocol, Self

from loadgen.rules.client_health import ClientHealth
from loadgen.scenario.model import FindMaxSettings
from loadgen.values import dataclass

PLATEAU_GAIN = 0.02  # of throughput, over two steps of the climb
EXTEND_MAX = 3  # times the length of a step


class StepOutcome(StrEnum):
    STABLE = "STABLE"
    QUEUE_DETECTED = "QUEUE_DETECTED"
    ERROR_THRESHOLD = "ERROR_THRESHOLD"
    SLO_FAILED = "SLO_FAILED"
    DEGRADED = "DEGRADED"
    PLATEAU = "PLATEAU"
    CLIENT_LIMIT = "CLIENT_LIMIT"  # neither held nor failed


# --- observations ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PercentileEstimate:
    """A percentile with its 95 % bounds; None: the samples set no bound on that side."""

    value_ms: float
    low_ms: float | None
    high_ms: float | None


class StepLatency(Protocol):
    """Response times of a step; those of several steps can be added."""

    @property
    def p95(self) -> PercentileEstimate | None: ...  # None: too few samples

    def __add__(self, other: Self, /) -> Self: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SloCheck:
    """The thresholds of the scenario, judged by the results of the step."""

    missed: str | None = None  # the first threshold that is not met
    sure: bool = True  # False: the bounds of a percentile do not decide it
    by_client: bool = False  # the threshold may be missed only because of the client


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientBound:
    """The largest errors of the figures of a step that the client may cause."""

    percentile_ms: float = 0.0  # added to a percentile, at most
    qps_fraction: float = 0.0  # of the throughput, missing at most
    advice: str = ""
    starved_server: str | None = None  # why the server, on the same machine, had no core to run on

    @classmethod
    def of(cls, health: ClientHealth, mean_ms: float | None, *, shares_machine: bool) -> ClientBound:
        """Late wake-ups of threads bound the errors of times, and of the throughput of a closed loop."""
        return cls(
            percentile_ms=health.wakeup_p99_ms or 0.0,
            qps_fraction=(health.wakeup_mean_ms or 0.0) / mean_ms if mean_ms else 0.0,
            advice=health.advice,
            starved_server=health.taken_cores if shares_machine else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepObservation:
    """The results of a step so far."""

    target: int
    seconds: float  # measured by every worker
    succeeded: int  # statements
    failed: int
    qps: float
    latency: StepLatency
    slo: SloCheck = SloCheck()
    queue_seen: bool = False
    client_limit: str | None = None  # why the step says nothing about the server
    client: ClientBound = ClientBound()


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedStep:
    """A judged step."""

    number: int  # from 1
    shown: StepObservation
    outcome: StepOutcome
    reason: str
    low_confidence: bool = False  # the point estimate decided, not its bounds

    @property
    def target(self) -> int:
        return self.shown.target

    @property
    def held(self) -> bool:
        return self.outcome is StepOutcome.STABLE

    @property
    def failed(self) -> bool:
        return not self.held and self.outcome is not StepOutcome.CLIENT_LIMIT


# --- the verdict -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finding:
    outcome: StepOutcome
    reason: str
    sure: bool = True


_HELD = _Finding(outcome=StepOutcome.STABLE, reason="held")


def judge(config: FindMaxSettings, steps: Sequence[JudgedStep], shown: StepObservation) -> JudgedStep | None:
    """The verdict of the step that follows these; None: it needs more time."""
    number = len(steps) + 1
    if shown.queue_seen and config.stop_on_queue and shown.client_limit is None:
        reason = "statements queued in front of the warehouse"
        return JudgedStep(number=number, shown=shown, outcome=StepOutcome.QUEUE_DETECTED, reason=reason)
    if shown.seconds < config.step_s:
        return None
    if shown.client_limit is not None:
        return client_limited_step(steps, shown, shown.client_limit)
    last_chance = shown.seconds >= EXTEND_MAX * config.step_s
    low_confidence = False
    for finding in _findings(config, steps, shown):
        if not finding.sure and not last_chance:
            return None
        low_confidence = low_confidence or not finding.sure
        if finding.outcome is not StepOutcome.STABLE:
            finding = _by_machine(finding, shown)
            outcome, reason = finding.outcome, finding.reason
            return JudgedStep(
                number=number, shown=shown, outcome=outcome, reason=reason, low_confidence=not finding.sure
            )
    # If the first step was slow, levels hold that would otherwise fail.
    low_confidence = low_confidence or shown.client.starved_server is not None
    return JudgedStep(
        number=number, shown=shown, outcome=_HELD.outcome, reason=_HELD.reason, low_confidence=low_confidence
    )


def client_limited_step(steps: Sequence[JudgedStep], shown: StepObservation, why: str) -> JudgedStep:
    """The next step, limited by the client: it says nothing about the server, however long it is extended."""
    return JudgedStep(number=len(steps) + 1, shown=shown, outcome=StepOutcome.CLIENT_LIMIT, reason=why)


def baseline_p95(config: FindMaxSettings, steps: Sequence[JudgedStep]) -> PercentileEstimate | None:
    """p95 of the baseline."""
    found = baseline_step(config, steps)
    return None if found is None else found.shown.latency.p95


def baseline_step(config: FindMaxSettings, steps: Sequence[JudgedStep]) -> JudgedStep | None:
    """The first step that held at the first level. A step that held with clearly less p95, at any level, takes its
    place: the first one was disturbed, since more connections make no server faster."""
    found = next((step for step in steps if step.target == config.start and step.held), None)
    lowest = None if found is None else found.shown.latency.p95
    for step in steps:
        other = step.shown.latency.p95 if step.held else None
        if lowest is None or other is None or other.value_ms >= lowest.value_ms:
            continue
        if _is_at_most(other.high_ms, 1.0, lowest.low_ms):
            found, lowest = step, other
    return found


def _findings(config: FindMaxSettings, steps: Sequence[JudgedStep], shown: StepObservation) -> Iterator[_Finding]:
    """The findings, in the order of their priority."""
    yield _errors(config, shown)
    yield _slo(shown)
    yield _latency(config, steps, shown)
    yield _throughput(config, steps, shown)


def _errors(config: FindMaxSettings, shown: StepObservation) -> _Finding:
    ended, limit = shown.succeeded + shown.failed, config.max_error_rate_pct / 100
    if not ended:  # statements may take longer than the step
        return _Finding(outcome=StepOutcome.ERROR_THRESHOLD, reason="nothing ended in this step", sure=False)
    rate = shown.failed / ended
    if rate <= limit:
        return _HELD
    reason = f"{100 * rate:.2f} % of statements failed (limit {100 * limit:g} %)"
    return _Finding(outcome=StepOutcome.ERROR_THRESHOLD, reason=reason)


def _slo(shown: StepObservation) -> _Finding:
    slo = shown.slo
    if slo.missed is None:
        return replace(_HELD, sure=slo.sure)
    finding = _Finding(outcome=StepOutcome.SLO_FAILED, reason=f"{slo.missed} was not met", sure=slo.sure)
    return _by_client(finding, shown) if slo.by_client else finding


def _latency(config: FindMaxSettings, steps: Sequence[JudgedStep], shown: StepObservation) -> _Finding:
    """The p95 of the step gives the direction, the bounds of all steps of this level decide whether it is certain: one
    disturbed step must not decide the next ones as well."""
    lowest = baseline_p95(config, steps)
    if lowest is None and shown.target == config.start:
        return _HELD  # this step is the baseline
    same = [step.shown.latency for step in steps if step.target == shown.target and (step.held or step.failed)]
    own, pooled = shown.latency.p95, reduce(add, same, shown.latency).p95
    if own is None or pooled is None or lowest is None:
        return replace(_HELD, sure=False)
    percent = config.latency_stability_pct
    factor = 1 + percent / 100
    if own.value_ms <= factor * lowest.value_ms:
        sure = any(_is_at_most(one.high_ms, factor, lowest.low_ms) for one in (own, pooled))
        return replace(_HELD, sure=sure)
    reason = f"p95 {own.value_ms:.1f} ms is more than {percent:g} % above {lowest.value_ms:.1f} ms"
    sure = pooled.low_ms is not None and lowest.high_ms is not None and pooled.low_ms > factor * lowest.high_ms
    finding = _Finding(outcome=StepOutcome.DEGRADED, reason=reason, sure=sure)
    may_hold = own.value_ms - shown.client.percentile_ms <= factor * lowest.value_ms
    return _by_client(finding, shown) if may_hold else finding


def _throughput(config: FindMaxSettings, steps: Sequence[JudgedStep], shown: StepObservation) -> _Finding:
    held = [step for step in steps if step.held and step.target < shown.target]
    best_qps = max(_level_qps(held).values(), default=0.0)
    if not best_qps:
        return _HELD
    possible_qps = shown.qps / (1 - min(shown.client.qps_fraction, 0.5))  # without the effect of the client
    limit_qps = best_qps * (1 - config.qps_stability_pct / 100)
    if shown.qps < limit_qps:
        reason = f"{shown.qps:,.1f}/s is more than {config.qps_stability_pct:g} % below {best_qps:,.1f}/s"
        finding = _Finding(outcome=StepOutcome.DEGRADED, reason=reason)
        return finding if possible_qps < limit_qps else _by_client(finding, shown)
    if config.is_climbed(shown.target) and _is_plateau(config, held, shown, shown.qps):
        reason = f"{shown.qps:,.1f}/s is not significantly more than two steps before, and p95 rose"
        finding = _Finding(outcome=StepOutcome.PLATEAU, reason=reason)
        return finding if _is_plateau(config, held, shown, possible_qps) else _by_client(finding, shown)
    return _HELD


def _level_qps(held: Sequence[JudgedStep]) -> dict[int, float]:
    """The throughput of each level, of all its steps together: the fastest single step is fast by chance."""
    levels: dict[int, list[StepObservation]] = {}
    for step in held:
        if step.shown.seconds:  # otherwise its measurement is lost
            levels.setdefault(step.target, []).append(step.shown)
    return {
        target: math.fsum(one.qps * one.seconds for one in known) / math.fsum(one.seconds for one in known)
        for target, known in levels.items()
    }


def _by_client(finding: _Finding, shown: StepObservation) -> _Finding:
    """The step may have failed only because of the client: then it says nothing about the server."""
    client = shown.client
    added = f"up to {client.percentile_ms:.1f} ms of p95 and {100 * client.qps_fraction:.1f} % of the throughput"
    advice = f"; {client.advice}" if client.advice else ""
    reason = f"{finding.reason}, which the client may have caused ({added}){advice}"
    return replace(finding, outcome=StepOutcome.CLIENT_LIMIT, reason=reason)


def _by_machine(finding: _Finding, shown: StepObservation) -> _Finding:
    """Times and errors of a server without a free core say nothing about it; a queue in front of its slots does."""
    starved = shown.client.starved_server
    if starved is None or finding.outcome is StepOutcome.CLIENT_LIMIT:
        return finding
    reason = f"{finding.reason}, but the server shares a machine that had no free core ({starved}): end other processes"
    return replace(finding, outcome=StepOutcome.CLIENT_LIMIT, reason=reason)


def _is_plateau(config: FindMaxSettings, held: Sequence[JudgedStep], shown: StepObservation, qps: float) -> bool:
    """Throughput gained less than 2 % over two steps of the climb, and less than half of what connections did."""
    climbed = {step.target: step.shown for step in held if config.is_climbed(step.target)}
    if len(climbed) < 2:
        return False
    before = climbed[sorted(climbed)[-2]]
    before_qps = _level_qps(held).get(before.target)
    gained = qps / before_qps - 1 if before_qps else 1.0
    most = min(PLATEAU_GAIN, 0.5 * (shown.target / before.target - 1))
    now_p95, before_p95 = shown.latency.p95, before.latency.p95
    return gained < most and now_p95 is not None and before_p95 is not None and now_p95.value_ms > before_p95.value_ms


def _is_at_most(bound_ms: float | None, factor: float, limit_ms: float | None) -> bool:
    """Whether both are known, and the first is at most `factor` times the second."""
    return bound_ms is not None and limit_ms is not None and bound_ms <= factor * limit_ms
