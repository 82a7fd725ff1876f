"""Two runs of one scenario, A before and B after: changes, their confidence intervals, and the verdict. Pure.

Each metric is judged by its change from A to B, the 95 % interval of the change, and a limit (`comparability`):

    equivalent      the whole interval lies within ± limit
    worse, better   the interval excludes 0, and the change is beyond the limit, in the bad or good direction
    inconclusive    otherwise: a longer measurement may decide

The overall verdict uses the metrics that count: qps, p50, p95 and error_rate of all statements together, p50 and p95 of
every statement, and every metric with a limit from the user. Among this many metrics, one lies outside its 95 %
interval by chance now and then. So the verdict is

    worse           if a metric that counts is worse, also with its interval widened for their number (Bonferroni)
    better          if none is, and a metric of all statements together is better in the same way
    equivalent      if none is, and all that count of all statements together are equivalent
    inconclusive    otherwise

Two runs show the variation between seconds, not the variation between nights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from loadgen.errors import UsageError
from loadgen.log import printable
from loadgen.metrics.percentile import Quantile, mean
from loadgen.metrics.tally import StatementTally
from loadgen.metrics.window import MergedWindows
from loadgen.rules.comparability import ChangeLimits, Measure, SettingDifference
from loadgen.rules.confidence_intervals import (
    SECONDS_MIN,
    BootstrapReplicates,
    ConfidenceInterval,
    FloatArray,
    SecondSeries,
    design_effect,
    difference,
    hull,
    log_quantile,
    quantile_difference,
    quantile_span,
    share_difference,
)
from loadgen.units import NS_PER_MS, counted
from loadgen.values import dataclass

COUNTING = (Measure.QPS, Measure.P50, Measure.P95, Measure.ERROR_RATE)
COUNTING_OF_STATEMENT = (Measure.P50, Measure.P95)
REGRESSION = 11  # exit code

_WHOLE = (Measure.QPS, Measure.AVG, Measure.P50, Measure.P90, Measure.P95, Measure.P99, Measure.ERROR_RATE)
_OF_STATEMENT = (Measure.QPS, Measure.P50, Measure.P95, Measure.P99, Measure.ERROR_RATE)
_LONGER_MAX = 100  # above this factor no longer measurement is suggested
_TOO_FEW = "there are too few samples to bound the change"
_SEEDS = (1, 2)  # of A and of B, so that they are resampled differently


class ChangeVerdict(StrEnum):
    WORSE = "worse"
    BETTER = "better"
    EQUIVALENT = "equivalent"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """The results of one run."""

    run_id: str
    scenario: str
    started_at: str | None
    merged: MergedWindows
    series: SecondSeries
    find_max: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricChange:
    """One metric, of one statement or (None) of all. `span` None: there is no interval, for the reason in `why`."""

    statement: str | None
    measure: Measure
    a: float | None  # ms, per second, a share, or a number of connections
    b: float | None
    span: ConfidenceInterval | None  # a difference of shares, else a relative change: 0.1 is 10 % more
    limit: float
    verdict: ChangeVerdict
    counts: bool  # for the overall verdict
    certain: bool  # the verdict holds for the widened interval too
    why: str = ""
    at_least: tuple[bool, bool] = (False, False)  # of a, of b: a lower bound, because statements were cut off

    @property
    def point(self) -> float | None:
        """The change, which may be known without an interval."""
        if self.span is not None:
            return self.span.point
        if self.a is None or self.b is None or any(self.at_least):
            return None
        if self.measure is Measure.ERROR_RATE:
            return self.b - self.a
        return self.b / self.a - 1 if self.a > 0 else None

    @property
    def uncorrected(self) -> bool:
        """Better or worse by the uncorrected interval only, not by the one corrected for the number of comparisons."""
        return self.verdict in (ChangeVerdict.WORSE, ChangeVerdict.BETTER) and not self.certain


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    a: MeasuredRun
    b: MeasuredRun
    configuration: tuple[SettingDifference, ...]
    changes: tuple[MetricChange, ...]
    verdict: ChangeVerdict
    reason: str

    @property
    def unmatched(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Statements that only A has, and that only B has: they are not compared."""
        a, b = (run.merged.tally.statements for run in (self.a, self.b))
        return tuple(name for name in a if name not in b), tuple(name for name in b if name not in a)

    @property
    def comparisons(self) -> int:
        """The number of comparisons that count; they share the probability of a false alarm."""
        return sum(change.counts for change in self.changes)

    @property
    def exit_code(self) -> int:
        return REGRESSION if self.verdict is ChangeVerdict.WORSE else 0


def compare(
    a: MeasuredRun, b: MeasuredRun, limits: ChangeLimits, configuration: Sequence[SettingDifference] = ()
) -> Comparison:
    """Compare two runs, which must be comparable: see `comparability`."""
    names = [name for name in a.merged.tally.statements if name in b.merged.tally.statements]
    searched = a.find_max is not None and b.find_max is not None
    _check_limits(limits, names, searched=searched)
    found = [_maximum(a, b)] if searched else list(_changes(a, b, names))
    counting = sum(_counts(one, limits) for one in found)
    changes = tuple(_judged(one, limits, counting) for one in found)
    verdict = _overall(changes)
    return Comparison(
        a=a, b=b, configuration=tuple(configuration), changes=changes, verdict=verdict, reason=_reason(verdict, changes)
    )


# --- judging ---------------------------------------------------------------------------------------------------------


def judge(span: ConfidenceInterval, limit: float, *, more_is_worse: bool) -> ChangeVerdict:
    if -limit < span.low and span.high < limit:
        return ChangeVerdict.EQUIVALENT
    if span.point > limit and span.low > 0:
        return ChangeVerdict.WORSE if more_is_worse else ChangeVerdict.BETTER
    if span.point < -limit and span.high < 0:
        return ChangeVerdict.BETTER if more_is_worse else ChangeVerdict.WORSE
    return ChangeVerdict.INCONCLUSIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A change before it is judged."""

    statement: str | None
    measure: Measure
    a: float | None
    b: float | None
    span: ConfidenceInterval | None = None  # of a difference of shares, else of logarithms
    why: str = ""
    at_least: tuple[bool, bool] = (False, False)


def _counts(found: _Found, limits: ChangeLimits) -> bool:
    if (found.statement, found.measure) in limits.given or found.measure is Measure.MAX_CONCURRENCY:
        return True
    return found.measure in (COUNTING if found.statement is None else COUNTING_OF_STATEMENT)


def _judged(found: _Found, limits: ChangeLimits, comparisons: int) -> MetricChange:
    limit, measure = limits.of(found.statement, found.measure), found.measure
    span, verdict, certain, why = None, ChangeVerdict.INCONCLUSIVE, False, found.why
    if found.span is not None:
        span, wide = (
            one if measure is Measure.ERROR_RATE else one.relative()
            for one in (found.span, found.span.stretched(max(comparisons, 1)))
        )
        verdict = judge(span, limit, more_is_worse=measure.more_is_worse)
        certain = judge(wide, limit, more_is_worse=measure.more_is_worse) is verdict
        if verdict is ChangeVerdict.INCONCLUSIVE:
            why = _doubt(measure, span, limit)
    return MetricChange(
        statement=found.statement,
        measure=measure,
        a=found.a,
        b=found.b,
        span=span,
        limit=limit,
        verdict=verdict,
        counts=_counts(found, limits),
        certain=certain,
        why=why,
        at_least=found.at_least,
    )


def _doubt(measure: Measure, span: ConfidenceInterval, limit: float) -> str:
    """The reason why there is no verdict, and roughly how much longer to measure: the width of an interval shrinks
    with the square root of the time."""
    size, reach = abs(span.point), max(span.point - span.low, span.high - span.point)
    if math.isinf(reach):
        searched = measure is Measure.MAX_CONCURRENCY
        return "a search ended at its highest level: the maximum may be higher" if searched else _TOO_FEW
    room = size if size > limit else limit - size  # the largest half width that gives a verdict
    what = "the interval is too wide to tell" if span.low <= 0 <= span.high else "it may or may not exceed the limit"
    if room <= 0 or reach > _LONGER_MAX**0.5 * room:
        return what
    return f"{what}; measuring {math.ceil((reach / room) ** 2)} times as long may decide it"


def _overall(changes: Sequence[MetricChange]) -> ChangeVerdict:
    counting = [change for change in changes if change.counts]
    whole = [change for change in counting if change.statement is None]
    if any(change.verdict is ChangeVerdict.WORSE and change.certain for change in counting):
        return ChangeVerdict.WORSE
    if any(change.verdict is ChangeVerdict.BETTER and change.certain for change in whole):
        return ChangeVerdict.BETTER
    if whole and all(change.verdict is ChangeVerdict.EQUIVALENT for change in whole):
        return ChangeVerdict.EQUIVALENT
    return ChangeVerdict.INCONCLUSIVE


def _reason(verdict: ChangeVerdict, changes: Sequence[MetricChange]) -> str:
    """The decisive metrics in one line."""
    counting = [change for change in changes if change.counts]
    if verdict in (ChangeVerdict.WORSE, ChangeVerdict.BETTER):
        decisive = [change for change in counting if change.verdict is verdict and change.certain]
        return ", ".join(_change_text(change) for change in decisive[:3]) + (", …" if len(decisive) > 3 else "")
    if verdict is ChangeVerdict.EQUIVALENT:
        parts = sum(change.verdict is not ChangeVerdict.EQUIVALENT for change in counting)  # statements
        undecided = f"; {counted(parts, 'metric')} of single statements undecided" if parts else ""
        return f"all statements together are within their limits{undecided}"
    open_ones: dict[str, list[str]] = {}
    for change in counting:
        if change.statement is None and change.verdict is not ChangeVerdict.EQUIVALENT:
            open_ones.setdefault(change.why or change.verdict.value, []).append(change.measure.value)
    return "; ".join(f"{', '.join(names)}: {why}" for why, names in list(open_ones.items())[:3])


def _change_text(change: MetricChange) -> str:
    name = f"{change.statement}.{change.measure}" if change.statement is not None else change.measure.value
    assert change.span is not None
    unit = " points" if change.measure is Measure.ERROR_RATE else " %"
    return f"{name} {100 * change.span.point:+z.1f}{unit} (limit {100 * change.limit:g}{unit})"


def _check_limits(limits: ChangeLimits, names: Sequence[str], *, searched: bool) -> None:
    for statement, measure in limits.given:
        known = {Measure.MAX_CONCURRENCY} if searched else set(_WHOLE) if statement is None else set(_OF_STATEMENT)
        if statement is not None and statement not in names:
            raise UsageError(
                f"--limit: the runs have no common statement {printable(statement, 100)}",
                remedy=f"They share {', '.join(printable(name, 60) for name in names[:20])}.",
            )
        if measure not in known:
            subject = "a search for the maximum" if searched else "a statement" if statement else "runs of this kind"
            raise UsageError(
                f"--limit: {measure} is not compared for {subject}",
                remedy=f"There it is {' '.join(one for one in Measure if one in known)}.",
            )


# --- changes and their intervals -------------------------------------------------------------------------------------


class _Pair:
    """Bootstrap replicates of both runs."""

    def __init__(self, a: MeasuredRun, b: MeasuredRun) -> None:
        self.runs = (a, b)
        short = [name for name, run in zip("AB", self.runs, strict=True) if len(run.series) < SECONDS_MIN]
        known = min(len(run.series) for run in self.runs)
        self.too_short = (
            f"only {known} full seconds of measurement in {' and '.join(short)}, at least {SECONDS_MIN} are needed"
            if short
            else ""
        )
        pairs = () if self.too_short else zip(self.runs, _SEEDS, strict=True)
        self._drawn = [BootstrapReplicates(run.series, seed) for run, seed in pairs]
        self._effects: dict[int, list[float]] = {}

    def ratio(self, a: float, b: float, deviations: Sequence[FloatArray]) -> ConfidenceInterval:
        return difference(math.log(b / a), *deviations)

    def deviations(self, measure: Measure, name: str | None) -> list[FloatArray]:
        if measure.per_mille is not None:
            return [drawn.log_quantile(measure.per_mille) for drawn in self._drawn]
        if measure is Measure.QPS:
            return [drawn.log_rate(name) for drawn in self._drawn]
        if measure is Measure.AVG:
            return [drawn.log_mean() for drawn in self._drawn]
        return [drawn.failed_share(name) for drawn in self._drawn]

    def effects(self, per_mille: int) -> list[float]:
        """The design effect of each run: how much its samples depend on one another."""
        if per_mille not in self._effects:
            self._effects[per_mille] = [
                design_effect(run.merged.tally.whole.every_response.counts, per_mille, drawn.log_quantile(per_mille))
                for run, drawn in zip(self.runs, self._drawn, strict=True)
            ]
        return self._effects[per_mille]


def _changes(a: MeasuredRun, b: MeasuredRun, names: Sequence[str]) -> Iterator[_Found]:
    pair = _Pair(a, b)
    for name, measures in ((None, _WHOLE), *((name, _OF_STATEMENT) for name in names)):
        for measure in measures:
            yield _change(pair, name, measure)


def _change(pair: _Pair, name: str | None, measure: Measure) -> _Found:
    tallies = [run.merged.tally.whole if name is None else run.merged.tally.statements[name] for run in pair.runs]
    a, b = (_value(run, tally, name, measure) for run, tally in zip(pair.runs, tallies, strict=True))
    bounds = _is_bound(tallies[0], measure), _is_bound(tallies[1], measure)
    why = pair.too_short or _obstacle(measure, (a, b), bounds)
    if why:
        return _Found(statement=name, measure=measure, a=a, b=b, why=why, at_least=bounds)
    assert a is not None
    assert b is not None
    if measure is Measure.ERROR_RATE:
        failed = [tally.ended.failed for tally in tallies]
        tried = [tally.ended.failed + tally.ended.succeeded for tally in tallies]
        span = hull(difference(b - a, *pair.deviations(measure, name)), share_difference(failed, tried))
    elif measure.per_mille is not None and name is not None:
        spans = [
            quantile_span(tally.every_response.counts, measure.per_mille, effect)
            for tally, effect in zip(tallies, pair.effects(measure.per_mille), strict=True)
        ]
        span = quantile_difference(*spans)
    else:
        span = pair.ratio(a, b, pair.deviations(measure, name))
    return _Found(statement=name, measure=measure, a=a, b=b, span=span)


def _value(run: MeasuredRun, tally: StatementTally, name: str | None, measure: Measure) -> float | None:
    """A metric of the whole measurement. Percentiles are interpolated: buckets of 2 % would hide changes."""
    tried = tally.ended.succeeded + tally.ended.failed
    if measure is Measure.QPS:
        return run.merged.qps if name is None else run.merged.statement_qps.get(name, 0.0)
    if measure is Measure.ERROR_RATE:
        return tally.ended.failed / tried if tried else None
    known = _known(tally, measure)
    if known is None or known.at_least or measure.per_mille is None:
        return None if known is None else known.value_ns / NS_PER_MS
    return math.exp(log_quantile(tally.every_response.counts, measure.per_mille)) / NS_PER_MS


def _known(tally: StatementTally, measure: Measure) -> Quantile | None:
    """A percentile or the mean."""
    if measure is Measure.AVG:
        return mean(*tally.responses)
    return None if measure.per_mille is None else tally.response_at(measure.per_mille)


def _is_bound(tally: StatementTally, measure: Measure) -> bool:
    """Whether the value is only a lower bound."""
    known = _known(tally, measure)
    return known is not None and known.at_least


def _obstacle(measure: Measure, values: Sequence[float | None], bounds: Sequence[bool]) -> str:
    """Why there is no interval; empty: there is one."""
    for run, value, bound in zip("AB", values, bounds, strict=True):
        if value is None or (measure is not Measure.ERROR_RATE and value <= 0):
            return f"too few samples in {run}"
        if bound:
            return f"only a lower bound is known in {run}: statements timed out or were cancelled"
    return ""


def _maximum(a: MeasuredRun, b: MeasuredRun) -> _Found:
    """The change of the maximum, which lies between the highest level that held and the lowest one that failed."""
    (low_a, high_a), (low_b, high_b) = _bracket(a), _bracket(b)
    held_a, failed_a, held_b, failed_b = map(math.log, (low_a, high_a, low_b, high_b))
    span = ConfidenceInterval(held_b - held_a, held_b - failed_a, failed_b - held_a)
    return _Found(statement=None, measure=Measure.MAX_CONCURRENCY, a=low_a, b=low_b, span=span)


def _bracket(run: MeasuredRun) -> tuple[float, float]:
    """The level that held, and the lowest level that is known to have failed; infinite when none failed."""
    assert run.find_max is not None
    held, failed = run.find_max["max_concurrency"], run.find_max.get("failed_at")
    return float(held), float(failed) if failed else math.inf
