"""Judging a finished run: is the number valid, and did it pass? Pure.

Validity comes first and is judged apart: an INVALID run never passes, however good its numbers look.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from loadgen.metrics.percentile import PERCENTILES, Quantile, maximum, mean
from loadgen.metrics.result import Merged
from loadgen.metrics.tally import StatementTally
from loadgen.report.client_health import ClientHealth, ClientVerdict, client_share
from loadgen.report.delivered import Delivered, shortfalls
from loadgen.scenario.scenario import DEFAULT_THRESHOLD as DEFAULT
from loadgen.scenario.scenario import Threshold
from loadgen.scenario.threshold import Check, Metric, Operator
from loadgen.units import NS_PER_MS

SAMPLES_MIN = 20

_COMPARE: Mapping[Operator, Callable[[float, float], bool]] = {
    Operator.LT: operator.lt,
    Operator.LE: operator.le,
    Operator.GT: operator.gt,
    Operator.GE: operator.ge,
    Operator.EQ: operator.eq,
}
_OR_MORE = (Operator.GT, Operator.GE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A threshold and what was measured. None: nothing was, and that fails."""

    check: str
    value: float | None
    passed: bool
    at_least: bool = False  # the value is this or more: statements were cut off
    undecided: bool = False  # so the threshold may have been met all the same; it is not passed
    default: bool = False  # the scenario has none on errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What validity is judged by."""

    merged: Merged
    client: ClientVerdict
    delivered: Delivered | None  # None: it is not known, and the run is not valid
    lost_workers: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()  # what is missing from the record, or does not add up
    disturbed: bool = False  # another run may have used the warehouse


def invalid_reasons(evidence: Evidence) -> list[str]:
    """Everything that makes a run's number worthless; empty: it is valid."""
    merged, reasons = evidence.merged, []
    reasons += [f"worker lost: {worker}" for worker in evidence.lost_workers]
    reasons += list(evidence.gaps)
    if evidence.disturbed:
        reasons.append("another run may have used the warehouse: the lease on it was lost, or somebody shares it")
    reasons += list(evidence.client.invalid)
    reasons += shortfalls(evidence.delivered)
    if merged.counts.succeeded < SAMPLES_MIN:
        reasons.append(f"too few samples: {merged.counts.succeeded} succeeded, at least {SAMPLES_MIN} are needed")
    return reasons


def undecided(
    thresholds: Sequence[Threshold],
    checked: Sequence[Checked],
    client: ClientHealth,
    merged: Merged,
    *,
    open_loop: bool,
) -> list[str]:
    """Why it is not known whether the run has failed: but for the client, every threshold that was missed may have been
    met. Empty: none was missed, or one certainly was."""
    reasons = []
    for threshold, result in zip(thresholds, checked, strict=True):
        if result.passed:
            continue
        check, mean_ns = threshold.check, _tally_of(threshold.check, merged).succeeded.service.mean_ns
        mean_ms, share = None if mean_ns is None else mean_ns / NS_PER_MS, None
        if result.value is not None:
            share = client_share(check, result.value, client, mean_ms, open_loop=open_loop)
        if share is None or result.value is None:
            return []
        unit = "/s" if check.metric is Metric.QPS else " ms"
        reasons.append(
            f"undecided: {check.text} was missed with {result.value:,.1f}{unit}, of which the client may account for"
            f" {share:,.1f}{unit}; {client.advice}"
        )
    return reasons


def check_thresholds(thresholds: Sequence[Threshold], merged: Merged) -> tuple[Checked, ...]:
    return tuple(check_threshold(threshold.check, merged, default=threshold == DEFAULT) for threshold in thresholds)


def check_threshold(check: Check, merged: Merged, *, default: bool = False) -> Checked:
    """Compare. An empty series fails: nothing says that it would have held. A lower bound passes only if it decides."""
    value = measure(check, merged)
    if value is None:
        return Checked(check=check.text, value=None, passed=False, default=default)
    holds = compare(check, value)
    if not _is_lower_bound(check, merged):
        return Checked(check=check.text, value=value, passed=holds, default=default)
    passed = holds and check.operator in _OR_MORE
    undecided = not passed and (check.operator in _OR_MORE or holds or value < check.limit)
    return Checked(check=check.text, value=value, passed=passed, at_least=True, undecided=undecided, default=default)


def compare(check: Check, value: float) -> bool:
    return _COMPARE[check.operator](value, check.limit)


def measure(check: Check, merged: Merged) -> float | None:
    """The value of a metric, in the unit of its limit; None when there is none."""
    part, statement = _scope(check, merged)
    if check.metric is Metric.LONGEST_STALL:
        return part.longest_stall_ms
    qps = part.qps if statement is None else part.statement_qps.get(statement, 0.0)
    return _metric(check.metric, _tally_of(check, merged), qps)


def _scope(check: Check, merged: Merged) -> tuple[Merged, str | None]:
    """What a check is about: the whole or one of its stages, and there one statement or all."""
    if check.statement is not None and check.statement in merged.stages:
        return merged.stages[check.statement], None
    return merged, check.statement


def _tally_of(check: Check, merged: Merged) -> StatementTally:
    part, statement = _scope(check, merged)
    return part.tally.whole if statement is None else part.tally.statements.get(statement, StatementTally())


def _metric(metric: Metric, tally: StatementTally, qps: float) -> float | None:
    ended, times = tally.ended, tally.succeeded.response
    tried = ended.succeeded + ended.failed
    if not tried:
        return None
    match metric:
        case Metric.QPS:
            return qps
        case Metric.ERRORS:
            return float(ended.failed)
        case Metric.QUERIES:
            return float(tried)
        case Metric.ERROR_RATE:
            return ended.failed / tried
        case Metric.MIN:
            return times.min_ns / NS_PER_MS if times.count else None
    known = _known(metric, tally)
    return None if known is None else known.value_ns / NS_PER_MS


def _known(metric: Metric, tally: StatementTally) -> Quantile | None:
    """A time that may be a lower bound."""
    match metric:
        case Metric.AVG:
            return mean(*tally.responses)
        case Metric.MAX:
            return maximum(*tally.responses)
        case Metric.SERVICE_P95:
            return tally.service_at(950)
        case Metric.LAG_P99:
            return tally.lag_at(990)
    per_mille = PERCENTILES.get(metric.value)
    return None if per_mille is None else tally.response_at(per_mille)


def _is_lower_bound(check: Check, merged: Merged) -> bool:
    """Is all that is known that it was at least so much? Statements that were cut off would have taken longer."""
    known = _known(check.metric, _tally_of(check, merged))
    return known is not None and known.at_least
