"""Judging a finished run: is the number valid, and did it pass? Pure.

Validity comes first and is judged apart: an INVALID run never passes, however good its numbers look.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from loadgen.metrics.percentile import PERCENTILES, Quantile
from loadgen.metrics.result import Merged
from loadgen.metrics.tally import StatementTally
from loadgen.report.delivered import Delivered, shortfalls
from loadgen.scenario.scenario import Threshold
from loadgen.scenario.threshold import Check, Metric, Operator
from loadgen.units import NS_PER_MS

CPU_WARN_PERCENT = 60.0
CPU_INVALID_PERCENT = 85.0  # of one core, per worker
WAKEUP_INVALID_FRACTION = 0.10  # of the median service time
WAKEUP_INVALID_MS = 5.0
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHealth:
    """How loaded the load generator itself was: the worst worker counts. None: no worker said."""

    cpu_percent_of_core: float | None
    wakeup_p99_ms: float | None

    def saturation(self, service_p50_ms: float | None) -> str | None:
        """Why the client, and not the server, may be what was measured; None: it was not."""
        cpu_percent = self.cpu_percent_of_core
        if cpu_percent is not None and cpu_percent >= CPU_INVALID_PERCENT:
            return f"a worker used {cpu_percent:.0f} % of its core (limit {CPU_INVALID_PERCENT:.0f} %)"
        late_ms = self.wakeup_p99_ms
        if late_ms is None or service_p50_ms is None or late_ms <= WAKEUP_INVALID_MS:
            return None
        if late_ms > WAKEUP_INVALID_FRACTION * service_p50_ms:
            return f"its threads woke up {late_ms:.1f} ms late (p99); the median statement took {service_p50_ms:.1f} ms"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What validity is judged by."""

    merged: Merged
    client: ClientHealth
    lost_workers: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()  # what is missing from the record, or does not add up
    disturbed: bool = False  # another run may have used the warehouse
    delivered: Delivered | None = None  # None: what was planned is not known


def invalid_reasons(evidence: Evidence) -> list[str]:
    """Everything that makes a run's number worthless; empty: it is valid."""
    merged, reasons = evidence.merged, []
    reasons += [f"worker lost: {worker}" for worker in evidence.lost_workers]
    reasons += list(evidence.gaps)
    if evidence.disturbed:
        reasons.append("another run may have used the warehouse: the lease on it was lost, or somebody shares it")
    service = merged.tally.whole.service_at(500)
    saturated = evidence.client.saturation(None if service is None else service.value_ns / NS_PER_MS)
    if saturated is not None:
        reasons.append(f"the client was the limit: {saturated}")
    reasons += shortfalls(evidence.delivered)
    if merged.counts.succeeded < SAMPLES_MIN:
        reasons.append(f"too few samples: {merged.counts.succeeded} succeeded, at least {SAMPLES_MIN} are needed")
    return reasons


def check_thresholds(thresholds: Sequence[Threshold], merged: Merged) -> tuple[Checked, ...]:
    return tuple(check_threshold(threshold.check, merged) for threshold in thresholds)


def check_threshold(check: Check, merged: Merged) -> Checked:
    """Compare. An empty series fails: nobody knows whether it would have held. So does "at least so much" where a
    limit must not be exceeded."""
    value = measure(check, merged)
    passed = value is not None and _COMPARE[check.operator](value, check.limit)
    if passed and check.operator not in _OR_MORE and _is_lower_bound(check, merged):
        passed = False
    return Checked(check=check.text, value=value, passed=passed)


def measure(check: Check, merged: Merged) -> float | None:
    """The value of a metric, in the unit of its limit; None when there is none."""
    if check.statement is None:
        tally, qps = merged.tally.whole, merged.qps
    else:
        tally = merged.tally.statements.get(check.statement, StatementTally())
        qps = merged.statement_qps.get(check.statement, 0.0)
    return _metric(check.metric, tally, qps)


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
        case Metric.AVG:
            return times.sum_ns / times.count / NS_PER_MS if times.count else None
        case Metric.MIN:
            return times.min_ns / NS_PER_MS if times.count else None
        case Metric.MAX:
            return times.max_ns / NS_PER_MS if times.count else None
    quantile = _quantile(metric, tally)
    return None if quantile is None else quantile.value_ns / NS_PER_MS


def _quantile(metric: Metric, tally: StatementTally) -> Quantile | None:
    if metric is Metric.SERVICE_P95:
        return tally.service_at(950)
    if metric is Metric.LAG_P99:
        return tally.lag_at(990)
    per_mille = PERCENTILES.get(metric.value)
    return None if per_mille is None else tally.response_at(per_mille)


def _is_lower_bound(check: Check, merged: Merged) -> bool:
    """Is all that is known that it was at least so much? Statements that were cancelled might have taken longer."""
    tallies = merged.tally.statements
    tally = merged.tally.whole if check.statement is None else tallies.get(check.statement, StatementTally())
    quantile = _quantile(check.metric, tally)
    return quantile is not None and quantile.at_least
