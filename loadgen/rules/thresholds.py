"""Thresholds, compared with measured values. Pure.

A threshold is compared with every value that its metric may have: one number, "at least x" where statements were cut
off, or anything from the shortest to the longest sample where there are too few for a percentile. It passes when it
holds for all of these values, and fails when it holds for none. Otherwise it is undecided.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence

from loadgen.metrics.histogram import EMPTY, Histogram
from loadgen.metrics.percentile import PERCENTILES, Quantile, maximum, mean, quantile, samples_needed
from loadgen.metrics.stalls import MEDIAN_SAMPLES_MIN
from loadgen.metrics.tally import StatementTally
from loadgen.metrics.window import MergedWindows
from loadgen.model.threshold import Operator, ThresholdCheck, ThresholdMetric, threshold_words
from loadgen.rules.client_health import ClientHealth, client_share
from loadgen.rules.find_max_step import SloCheck
from loadgen.scenario.model import DEFAULT_THRESHOLD as DEFAULT
from loadgen.scenario.model import Threshold
from loadgen.units import NS_PER_MS
from loadgen.values import dataclass

_COMPARE: Mapping[Operator, Callable[[float, float], bool]] = {
    Operator.LT: operator.lt,
    Operator.LE: operator.le,
    Operator.GT: operator.gt,
    Operator.GE: operator.ge,
    Operator.EQ: operator.eq,
}
_PER_MILLE = {
    ThresholdMetric.SERVICE_P95: 950,
    ThresholdMetric.LAG_P99: 990,
    **{ThresholdMetric(name): at for name, at in PERCENTILES.items()},
}


# Metrics that never become smaller while a run measures.
_GROWS = (ThresholdMetric.QUERIES, ThresholdMetric.ERRORS, ThresholdMetric.MAX, ThresholdMetric.LONGEST_STALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A threshold and the measured value. None: there is no value, so the threshold failed."""

    check: str
    value: float | None
    passed: bool
    at_least: bool = False  # the value is this or more
    at_most: bool = False  # it is this or less
    undecided: bool = False  # the threshold may have been met, but does not count as passed
    too_few: str = ""  # the reason, if there are too few samples to decide it
    unmeasured: str = ""  # the reason, if its metric was not measured
    none_succeeded: bool = False  # there is no value, because every statement failed
    default: bool = False  # added because the scenario has no threshold on errors
    window_s: float | None = None  # the value is of the worst span of this length; None: of the whole measurement

    @property
    def words(self) -> str:
        return threshold_words(self.check, self.window_s)

    @property
    def is_empty(self) -> bool:
        """Whether it failed because its metric has no samples: nothing succeeded, or nothing was executed."""
        return self.value is None and not self.undecided

    @property
    def unknown(self) -> str:
        """Why the measured value cannot decide the threshold."""
        return self.too_few or self.unmeasured


def check_thresholds(thresholds: Sequence[Threshold], merged: MergedWindows) -> tuple[Checked, ...]:
    return tuple(check_threshold(threshold.check, merged, default=threshold is DEFAULT) for threshold in thresholds)


def check_threshold(check: ThresholdCheck, merged: MergedWindows, *, default: bool = False) -> Checked:
    """Compare. A metric without samples fails: there is no evidence that the threshold held."""
    if merged.folded and _scope(check, merged)[1] is not None:
        why = f"undecided: a worker did not report figures per statement, which {check.text} needs"
        return Checked(check=check.text, value=None, passed=False, undecided=True, unmeasured=why, default=default)
    found = _measure(check, merged)
    if found is None and check.metric is ThresholdMetric.LONGEST_STALL:
        why = f"undecided: no worker reported stalls, which {check.text} needs"
        return Checked(check=check.text, value=None, passed=False, undecided=True, unmeasured=why)
    if found is None:
        ended = tally_of(check, merged).ended
        only_failed = ended.failed > 0 and not ended.succeeded
        return Checked(check=check.text, value=None, passed=False, none_succeeded=only_failed, default=default)
    at_low, at_high = compare(check, found.low), compare(check, found.high)
    passed = at_low and at_high
    undecided = not passed and (at_low or at_high or found.low < check.limit < found.high)
    if undecided and found.needed:
        few = _too_few(check, found)
        return Checked(check=check.text, value=None, passed=False, undecided=True, too_few=few, default=default)
    if undecided and check.metric is ThresholdMetric.LONGEST_STALL:
        why = _hidden_stall(check, found)
        return Checked(check=check.text, value=None, passed=False, undecided=True, unmeasured=why)
    # The bound next to the limit decides: the worst possible value if it passed, the best possible value if it failed.
    value = found.high if found.high <= check.limit else found.low
    return Checked(
        check=check.text,
        value=value,
        passed=passed,
        at_least=value < found.high,
        at_most=value > found.low,
        undecided=undecided,
        default=default,
    )


def _too_few(check: ThresholdCheck, found: _Measured) -> str:
    subject = "all statements" if check.statement is None else check.statement
    return (
        f"too few samples for {check.metric} of {subject}: {found.samples:,}, at least {found.needed:,} are needed"
        f" to decide {check.text}"
    )


def _hidden_stall(check: ThresholdCheck, found: _Measured) -> str:
    return (
        f"undecided: {check.text} cannot be judged: for {found.high / 1_000:.1f} s every statement in flight may have"
        f" been stalled, but some had fewer than {MEDIAN_SAMPLES_MIN} samples for a median, or their worker was paused;"
        " use a longer warm-up, or leave the threshold out"
    )


def compare(check: ThresholdCheck, value: float) -> bool:
    return _COMPARE[check.operator](value, check.limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """Bounds of the value of a metric, in the unit of its limit."""

    low: float
    high: float  # infinite: it is the time of a statement that was cut off
    samples: int = 0
    needed: int = 0  # samples, of which there are too few


def _measure(check: ThresholdCheck, merged: MergedWindows) -> _Measured | None:
    """The bounds of the metric; None: there are no samples for it."""
    part, statement = _scope(check, merged)
    if check.metric is ThresholdMetric.LONGEST_STALL:
        known_ms = part.longest_stall_ms
        return None if known_ms is None else _Measured(low=known_ms, high=max(known_ms, part.possible_stall_ms))
    tally = tally_of(check, merged)
    if not tally.ended.succeeded + tally.ended.failed:
        return None
    if check.metric is ThresholdMetric.QPS:
        qps = part.qps if statement is None else part.statement_qps.get(statement, 0.0)
        return _Measured(low=qps * (1 - part.surplus_fraction), high=qps)
    return _counted(check.metric, tally) or _timed(check.metric, tally)


def _scope(check: ThresholdCheck, merged: MergedWindows) -> tuple[MergedWindows, str | None]:
    """The subject of a check: the run or one of its stages, and one statement or all."""
    if check.statement is not None and check.statement in merged.stages:
        return merged.stages[check.statement], None
    return merged, check.statement


def tally_of(check: ThresholdCheck, merged: MergedWindows) -> StatementTally:
    part, statement = _scope(check, merged)
    return part.tally.whole if statement is None else part.tally.statements.get(statement, StatementTally())


def _counted(metric: ThresholdMetric, tally: StatementTally) -> _Measured | None:
    ended, times = tally.ended, tally.succeeded.response
    tried = ended.succeeded + ended.failed
    match metric:
        case ThresholdMetric.ERRORS:
            return _exactly(ended.failed)
        case ThresholdMetric.QUERIES:
            return _exactly(tried)
        case ThresholdMetric.ERROR_RATE:
            return _exactly(ended.failed / tried)
        case ThresholdMetric.MIN:
            return _exactly(times.min_ns / NS_PER_MS if times.count else None)
    return None


def _timed(metric: ThresholdMetric, tally: StatementTally) -> _Measured | None:
    """A time; it may be a lower bound."""
    match metric:
        case ThresholdMetric.AVG:
            return _at(mean(*tally.responses))
        case ThresholdMetric.MAX:
            return _at(maximum(*tally.responses))
        case ThresholdMetric.SERVICE_P95:
            return _percentile(metric, *tally.services)
        case ThresholdMetric.LAG_P99:
            return _percentile(metric, tally.lag, tally.unsent)  # one that was never sent is at least that late
    return _percentile(metric, *tally.responses) if metric in _PER_MILLE else None


def _percentile(metric: ThresholdMetric, known: Histogram, cut_off: Histogram = EMPTY) -> _Measured | None:
    """The bounds of a percentile with too few samples: the shortest and the longest sample."""
    per_mille, every = _PER_MILLE[metric], known + cut_off
    found = quantile(per_mille, known, cut_off)
    if found is not None or not every.count:
        return _at(found)
    return _Measured(
        low=every.min_ns / NS_PER_MS,
        high=math.inf if cut_off.count else every.max_ns / NS_PER_MS,
        samples=every.count,
        needed=samples_needed(per_mille),
    )


def _exactly(value: float | None) -> _Measured | None:
    return None if value is None else _Measured(low=float(value), high=float(value))


def _at(found: Quantile | None) -> _Measured | None:
    if found is None:
        return None
    value = found.value_ns / NS_PER_MS
    if not found.at_least:
        return _exactly(value)
    return _Measured(low=value, high=math.inf if found.high_ns is None else found.high_ns / NS_PER_MS)


def has_failed(checked: Checked) -> bool:
    """Whether it has certainly failed. If no statement has ended, slow ones may still be under way."""
    return checked.value is not None and not checked.passed and not checked.undecided


def may_recover(check: ThresholdCheck, checked: Checked) -> bool:
    """Whether more samples can still change a failed threshold. For example, a count that is below its minimum grows.
    False for rates and percentiles: a threshold with `abort` judges them by what was measured so far."""
    if checked.value is None:
        return True
    if check.metric in _GROWS:
        return checked.value <= check.limit and check.operator not in (Operator.LT, Operator.LE)
    if check.metric is ThresholdMetric.MIN:
        return checked.value >= check.limit and check.operator not in (Operator.GT, Operator.GE)
    return False


def is_worse(checked: Checked, before: Checked | None, operator: Operator) -> bool:
    """A failed threshold is worse than an undecided one, and that is worse than a passed one."""
    if before is None or _badness(checked) != _badness(before):
        return before is None or _badness(checked) > _badness(before)
    if before.value is None or checked.value is None:
        return before.value is not None
    if operator in (Operator.GT, Operator.GE):
        return checked.value < before.value
    return checked.value > before.value


def _badness(checked: Checked) -> int:
    return 0 if checked.passed else 1 if checked.unknown else 2


# --- thresholds of a step of a search --------------------------------------------------------------------------------


def check_slo(
    thresholds: Sequence[Threshold], merged: MergedWindows, health: ClientHealth, mean_ms: float | None
) -> SloCheck:
    """The first threshold that is not met decides. Otherwise a threshold may be undecided, by its bounds or by too few
    samples."""
    sure = True
    for threshold in thresholds:
        checked = check_threshold(threshold.check, merged)
        straddles = _straddles(threshold.check, merged)
        if not checked.passed and not checked.unknown:
            value = checked.value
            share = None if value is None else client_share(threshold.check, value, health, mean_ms, open_loop=False)
            return SloCheck(missed=checked.check, sure=not straddles, by_client=share is not None)
        sure = sure and not straddles and not checked.unknown
    return SloCheck(sure=sure)


def _straddles(check: ThresholdCheck, merged: MergedWindows) -> bool:
    """Whether the 95 % bounds of a percentile lie on both sides of the limit."""
    per_mille = PERCENTILES.get(check.metric.value)
    if per_mille is None:
        return False
    bounds = tally_of(check, merged).response_bounds(per_mille)
    limit_ns = check.limit * NS_PER_MS
    is_low = bounds.low_ns is None or bounds.low_ns <= limit_ns
    return is_low and (bounds.high_ns is None or bounds.high_ns >= limit_ns)
