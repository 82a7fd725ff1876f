"""The runs of a scenario over time: whether the newest is worse than usual, since when, and what else changed. Pure.

Only comparable runs form a series: the same TEMPLATE_ID, major version of the driver, number of workers and cores, and
warehouse size. The newest run determines the series. Runs that are not COMPLETED, are INVALID, or found no maximum
belong to no series. Each metric is judged by the change points of its series:

    learning    too few runs: RUNS_MIN are needed
    steady      no new change
    undecided   the newest value is a lower bound within the usual range
    suspected   the newest run alone is worse; the next run confirms or refutes it
    regression  the newest run confirms that it is worse: exit code 11
    improved    the newest run confirms that it is better

A regression is reported once. From the next run on it is known, also when another metric shows the same step later.
Metrics of all statements together move together, and each is judged separately; p95 of single statements share the
probability of a false alarm.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from statistics import NormalDist, fmean, median
from typing import Any

from loadgen.rules.comparability import DEFAULTS, Measure, SettingDifference, Subject
from loadgen.values import dataclass

# --- Shifts in a series of values -------------------------------------------------------------------------------------
# A search for change points over the whole series (E-divisive, as in Hunter) is certain of a change only after several
# values of the new level, but a regression has to be reported after one or two runs. So each run is tested against the
# last stable segment by a robust t-test, and a change is confirmed only by two runs in a row or more. Centre and spread
# are those of the segment after each value was limited to three deviations (of the median) around its median: one
# outlier cannot move them, and clean values lose little. The spread is moderated by `usual`, as if ten runs had shown
# it before, so that a short series, or one that varies little by chance, does not raise an alarm.
#
#     suspected   one run deviates by more than the limit, and by more than chance (3.5 standard deviations)
#     confirmed   the last 2 to 8 runs together do (4.2), and each of them by half the limit and half their mean;
#                 a new segment begins with the first of them
#
# A suspected run that the next run does not confirm stays in the segment. Among series of 200 runs without a change,
# whose values differ by 5 %, one in thirteen has a suspected run, and one in 140 a confirmed shift. A step of 25 % is
# confirmed by its second run 19 times of 20, else by the third or fourth. More than four runs are needed for small
# steps and for steps at the beginning of a series: a step that is not confirmed becomes part of the segment, and is
# not found any more.
#
# The first runs after a shift are tested as well, from the second run of the new segment on: against the centre of the
# new segment, with the spread of the segment before and its degrees of freedom, until the new segment has enough runs.
# These are few runs, so 3.5 standard deviations confirm a shift here; after one shift in 500 a second one is confirmed
# that does not exist. A second step of 30 % that begins within three runs after a confirmed one is confirmed by its
# second run 9 times of 10, and missed once in 50 times.
#
# A lower bound can show that a run is worse, never that it is as usual. Above the usual range it is suspected and
# confirms like any value; otherwise it is ignored. It is never part of a baseline.

BASELINE_RUNS_MIN = 5  # of a segment against which a run can be tested
NEW_BASELINE_RUNS_MIN = 2  # of a segment after a shift, which uses the spread of the segment before
BASELINE_RUNS_MAX = 60  # the newest runs of the segment
TOGETHER_MAX = 8

_SUSPECTED_Z = 3.5
_CONFIRMED_Z = 4.2
_MAD = 1.4826  # makes the median of deviations a standard deviation
_PULLED_IN = 3.0  # the limit for values, in such deviations around the median
_EFFICIENCY = 0.9  # of the limited values, in degrees of freedom
_CENTRE = 1.1  # variance of the centre of limited values, relative to that of a mean
_USUAL_RUNS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineLevel:
    """The level that a run is compared with."""

    centre: float
    spread: float  # from run to run: a standard deviation
    freedom: float  # degrees of it
    runs: int

    def reach(self, together: int, z: float) -> float:
        """The largest distance from the centre that the mean of several runs has by chance."""
        apart = self.spread * math.sqrt(1 / together + _CENTRE / self.runs)
        return apart * _student(z, self.freedom)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """A change from one level to another."""

    start: int  # the first value of the new level
    confirmed: int  # the value that made it certain
    before: BaselineLevel
    after: float  # the mean of the values between the two, both included
    at_least: bool = False  # some of them are lower bounds, and so is the mean

    @property
    def size(self) -> float:
        return self.after - self.before.centre


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePointAnalysis:
    """The judgement of a series. Numbers are positions in it."""

    shifts: tuple[ChangePoint, ...]
    suspected: tuple[int, ...]
    baselines: tuple[BaselineLevel | None, ...]  # before each value; None: too few runs
    limit: float
    z_suspected: float

    def range_at(self, position: int) -> tuple[float, float] | None:
        """The values between which no change is suspected."""
        baseline = self.baselines[position]
        if baseline is None:
            return None
        reach = max(self.limit, baseline.reach(1, self.z_suspected))
        return baseline.centre - reach, baseline.centre + reach


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """The rules for a shift of a series."""

    limit: float
    usual: float
    z_suspected: float
    z_confirmed: float

    def is_suspected(self, value: float, baseline: BaselineLevel) -> bool:
        return abs(value - baseline.centre) > max(self.limit, baseline.reach(1, self.z_suspected))


def detect_change_points(
    values: Iterable[float],
    *,
    limit: float,
    usual: float,
    alike: int = 1,
    at_least: Collection[int] = (),
) -> ChangePointAnalysis:
    """Judge each run by the runs before it. `usual` is the deviation that is assumed before runs have shown one.
    `alike` is the number of series that are judged in the same way and share the probability of a false alarm.
    `at_least` are the positions of lower bounds."""
    rule = _Rule(
        limit=limit,
        usual=usual,
        z_suspected=_shared(_SUSPECTED_Z, alike),
        z_confirmed=_shared(_CONFIRMED_Z, alike),
    )
    shifts: list[ChangePoint] = []
    suspected: list[int] = []
    baselines: list[BaselineLevel | None] = []
    segment = _Segment()
    for position, value in enumerate(map(float, values)):
        baseline = segment.baseline(rule.usual)
        baselines.append(baseline)
        bound = position in at_least
        if bound and (baseline is None or value < baseline.centre or not rule.is_suspected(value, baseline)):
            continue  # the value may be any above: not part of a segment, and no sign of a shift
        segment = segment.with_run(_RunValue(position=position, value=value, bound=bound))
        if baseline is None:
            continue
        shift = _confirmed(segment, rule)
        if shift is not None:
            shifts.append(shift)
            segment = segment.since(shift)
        elif rule.is_suspected(value, baseline):
            suspected.append(position)
    return ChangePointAnalysis(
        shifts=tuple(shifts),
        suspected=tuple(suspected),
        baselines=tuple(baselines),
        limit=limit,
        z_suspected=rule.z_suspected,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunValue:
    position: int
    value: float
    bound: bool  # the value is a lower bound


@dataclass(frozen=True, slots=True)
class _Segment:
    """Runs of one level, and the level before it."""

    runs: tuple[_RunValue, ...] = ()
    before: BaselineLevel | None = None

    def with_run(self, run: _RunValue) -> _Segment:
        return _Segment((*self.runs, run), self.before)

    def since(self, shift: ChangePoint) -> _Segment:
        return _Segment(tuple(run for run in self.runs if run.position >= shift.start), shift.before)

    def baseline(self, usual: float, without_last: int = 0) -> BaselineLevel | None:
        """The level of all runs except the newest ones. Lower bounds are left out: they would lower the centre."""
        known = self.runs[: len(self.runs) - without_last][-BASELINE_RUNS_MAX:]
        values = [run.value for run in known if not run.bound]
        if len(values) >= BASELINE_RUNS_MIN:
            return _baseline(values, usual, _USUAL_RUNS)
        if self.before is not None and len(values) >= NEW_BASELINE_RUNS_MIN:
            return _baseline(values, self.before.spread, self.before.freedom)
        return None


def _confirmed(segment: _Segment, rule: _Rule) -> ChangePoint | None:
    for together in range(2, min(TOGETHER_MAX, len(segment.runs)) + 1):
        baseline = segment.baseline(rule.usual, without_last=together)
        if baseline is None:
            return None
        runs = segment.runs[-together:]
        apart = [run.value - baseline.centre for run in runs]
        mean = fmean(apart)
        weakest = min(math.copysign(1.0, mean) * one for one in apart)
        if weakest <= rule.limit / 2:  # a larger number of runs includes this one
            return None
        all_show_it = weakest > abs(mean) / 2  # otherwise a single run may determine the mean
        # After a shift, a segment with few runs is tested with the lower limit.
        z = rule.z_confirmed if baseline.runs >= BASELINE_RUNS_MIN else rule.z_suspected
        if all_show_it and abs(mean) > max(rule.limit, baseline.reach(together, z)):
            return ChangePoint(
                start=runs[0].position,
                confirmed=runs[-1].position,
                before=baseline,
                after=baseline.centre + mean,
                at_least=any(run.bound for run in runs),
            )
    return None


def _baseline(values: Sequence[float], usual: float, usual_runs: float) -> BaselineLevel:
    middle = median(values)
    deviation = max(_MAD * median([abs(value - middle) for value in values]), usual / 2)
    low, high = middle - _PULLED_IN * deviation, middle + _PULLED_IN * deviation
    pulled = [min(max(value, low), high) for value in values]
    centre = fmean(pulled)
    own = _EFFICIENCY * (len(values) - 1)
    own_variance = sum((value - centre) ** 2 for value in pulled) / (len(values) - 1)
    freedom = own + usual_runs
    variance = (own * own_variance + usual_runs * usual**2) / freedom
    return BaselineLevel(centre=centre, spread=math.sqrt(variance), freedom=freedom, runs=len(values))


def _student(z: float, freedom: float) -> float:
    """Student's quantile with the tail probability of z standard deviations (Wallace's approximation)."""
    return math.sqrt(freedom * math.expm1((z * (8 * freedom + 3) / (8 * freedom + 1)) ** 2 / freedom))


def _shared(z: float, alike: int) -> float:
    """The threshold with the same probability as z over several tests together (Bonferroni)."""
    normal = NormalDist()
    return -normal.inv_cdf(normal.cdf(-z) / alike)


# --- The runs of a scenario ------------------------------------------------------------------------------------------

REGRESSION = 11  # exit code
RUNS_MIN = BASELINE_RUNS_MIN + 1  # comparable runs: those of the baseline, and the newest

_WHOLE = (Measure.P95, Measure.P50, Measure.QPS, Measure.ERROR_RATE)
_USUAL = 0.05  # the assumed deviation of runs before any are known
_USUAL_POINTS = 0.0025  # the same for error rates
_SAME_STEP = 2  # two metrics show the same step if it begins within this number of runs


class TrendVerdict(StrEnum):
    LEARNING = "learning"
    STEADY = "steady"
    UNDECIDED = "undecided"
    SUSPECTED = "suspected"
    REGRESSION = "regression"
    IMPROVED = "improved"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesKey:
    """The properties that all runs of one series share."""

    template_id: str
    driver_major: str
    workers: int
    cores: int | None
    warehouse_size: str | None  # None: not observed
    driver_lightened: bool | str = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendRun:
    """A run that is part of a series."""

    run_id: str
    created: datetime  # naive UTC
    started: datetime  # naive UTC
    key: SeriesKey
    values: Mapping[Subject, float]  # ms, per second, a share, or a number of connections
    facts: Mapping[str, str]  # facts that may explain a change
    at_least: frozenset[Subject] = frozenset()  # the values that are lower bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricTrend:
    """One metric through the runs of a series. Positions in `course` are those of `runs`."""

    statement: str | None
    measure: Measure
    runs: tuple[int, ...]  # the runs with a value, as positions in the series
    values: tuple[float, ...]
    course: ChangePointAnalysis
    at_least: frozenset[int] = frozenset()  # positions of values that are lower bounds

    @property
    def newest_at_least(self) -> bool:
        return len(self.values) - 1 in self.at_least

    @property
    def name(self) -> str:
        return self.measure.value if self.statement is None else f"{self.statement}.{self.measure}"

    @property
    def limit(self) -> float:
        return DEFAULTS[self.measure]

    def is_worse(self, change: float) -> bool:
        return (change > 0) is self.measure.more_is_worse

    def change(self, difference: float) -> float:
        """The change to show for a difference on the judged scale: relative; for shares, the difference itself."""
        return difference if self.measure is Measure.ERROR_RATE else math.expm1(difference)

    def value(self, scaled: float) -> float:
        return scaled if self.measure is Measure.ERROR_RATE else math.exp(scaled)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedChange:
    """A confirmed change of one metric. `start` and `confirmed` are positions of runs in the series."""

    track: MetricTrend
    shift: ChangePoint
    start: int
    confirmed: int
    worse: bool
    new: bool  # the newest run confirmed it, and no earlier run confirmed it in another metric

    @property
    def change(self) -> float:
        return self.track.change(self.shift.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherSeries:
    """Another series of the same scenario, and the differences from the judged series."""

    key: SeriesKey
    runs: int
    newest: TrendRun
    differences: tuple[SettingDifference, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    scenario: str
    runs: tuple[TrendRun, ...]  # of the newest run's series, oldest first
    tracks: tuple[MetricTrend, ...]
    steps: tuple[ConfirmedChange, ...]  # oldest first
    suspicions: tuple[tuple[MetricTrend, float], ...]  # worse in the newest run alone: change
    others: tuple[OtherSeries, ...]
    left_out: Mapping[str, int]  # reason: number of runs
    last_left_out: str | None  # the newest of them, with its reason
    verdict: TrendVerdict

    @property
    def exit_code(self) -> int:
        return REGRESSION if self.verdict is TrendVerdict.REGRESSION else 0

    def changed_at(self, number: int) -> dict[str, tuple[str | None, str | None]]:
        """Facts that differ from those of the previous run."""
        if number == 0:
            return {}
        before, now = self.runs[number - 1].facts, self.runs[number].facts
        return {
            name: (before.get(name), now.get(name))
            for name in sorted(before.keys() | now.keys())
            if before.get(name) != now.get(name)
        }


def trend_of(
    scenario: str,
    runs: Sequence[TrendRun],
    left_out: Mapping[str, int],
    others: Sequence[OtherSeries] = (),
    last_left_out: str | None = None,
) -> Trend:
    """Judge one series, oldest run first."""
    subjects = _subjects(runs)
    statements = sum(statement is not None for statement, _ in subjects)
    tracks = [_track(runs, subject, statements) for subject in subjects]
    steps = _steps(tracks, len(runs))
    suspicions = [(track, change) for track in tracks if (change := _suspicion(track, len(runs))) is not None]
    return Trend(
        scenario=scenario,
        runs=tuple(runs),
        tracks=tuple(tracks),
        steps=tuple(steps),
        suspicions=tuple(suspicions),
        others=tuple(others),
        left_out=dict(left_out),
        last_left_out=last_left_out,
        verdict=_verdict(tracks, steps, suspicions, len(runs)),
    )


def series_of(runs: Sequence[TrendRun]) -> dict[SeriesKey, list[TrendRun]]:
    """The series by key; that of the newest run comes last."""
    found: dict[SeriesKey, list[TrendRun]] = {}
    for run in runs:
        found.setdefault(run.key, []).append(run)
    return dict(sorted(found.items(), key=lambda item: runs.index(item[1][-1])))


def values_of(summary: Mapping[str, Any]) -> tuple[dict[Subject, float], frozenset[Subject]]:
    """The metrics of a summary.json, and which of them are lower bounds: statements were cut off, or a search was
    limited by the client."""
    searched = summary.get("find_max")
    if searched:
        subject = (None, Measure.MAX_CONCURRENCY)
        return {subject: float(searched["max_concurrency"])}, frozenset({subject} if _is_lower_bound(searched) else ())
    times: dict[str | None, Mapping[str, Any]] = {None: summary["latency_ms"]}
    if len(summary["statements"]) > 1:
        times |= {name: one["latency_ms"] for name, one in summary["statements"].items()}
    wanted = [
        (name, measure)
        for name in times
        for measure in (Measure.P95, Measure.P50)
        if name is None or measure is Measure.P95
    ]
    found = {subject: times[subject[0]].get(subject[1].value) for subject in wanted}
    found[None, Measure.QPS] = summary["totals"]["qps"]
    known = {subject: float(value) for subject, value in found.items() if value}
    bounds = frozenset(subject for subject in wanted if subject[1].value in times[subject[0]].get("at_least", ()))
    return {**known, (None, Measure.ERROR_RATE): float(summary["totals"]["error_rate"])}, bounds & known.keys()


def _is_lower_bound(find_max: Mapping[str, Any]) -> bool:
    """Whether the client was the limit, or the steps ran out, below the real maximum. The maximum that the scenario
    allows is the same every run, and counts as the answer."""
    highest = max((step["target"] for step in find_max.get("steps") or ()), default=0)
    undecided = highest > find_max["max_concurrency"] or find_max.get("confidence") == "low"
    return find_max.get("result") == "BOUNDED_MAX" and (find_max.get("limited_at") is not None or undecided)


# --- tracks ----------------------------------------------------------------------------------------------------------


def _subjects(runs: Sequence[TrendRun]) -> list[Subject]:
    """The metrics of the newest run: first those of all statements together, then by statement name."""
    known = runs[-1].values if runs else {}
    order = [*_WHOLE, *(measure for measure in Measure if measure not in _WHOLE)]
    return sorted(known, key=lambda subject: (subject[0] is not None, subject[0] or "", order.index(subject[1])))


def _track(runs: Sequence[TrendRun], subject: Subject, statements: int) -> MetricTrend:
    statement, measure = subject
    numbers = [number for number, run in enumerate(runs) if subject in run.values]
    values = [runs[number].values[subject] for number in numbers]
    at_least = frozenset(place for place, number in enumerate(numbers) if subject in runs[number].at_least)
    limit = DEFAULTS[measure]
    if measure is Measure.ERROR_RATE:
        course = detect_change_points(values, limit=limit, usual=_USUAL_POINTS)
    else:
        course = detect_change_points(
            [math.log(value) for value in values],
            limit=math.log1p(limit),
            usual=_USUAL,
            alike=1 if statement is None else statements,
            at_least=at_least,
        )
    return MetricTrend(
        statement=statement,
        measure=measure,
        runs=tuple(numbers),
        values=tuple(values),
        course=course,
        at_least=at_least,
    )


def _steps(tracks: Sequence[MetricTrend], runs: int) -> list[ConfirmedChange]:
    by_track = [
        [
            ConfirmedChange(
                track=track,
                shift=shift,
                start=track.runs[shift.start],
                confirmed=track.runs[shift.confirmed],
                worse=track.is_worse(shift.size),
                new=track.runs[shift.confirmed] == runs - 1,
            )
            for shift in track.course.shifts
        ]
        for track in tracks
    ]
    found = [
        replace(step, new=step.new and not any(_is_known(step, own, other) for other in by_track if other is not own))
        for own in by_track
        for step in own
    ]
    return sorted(found, key=lambda step: step.start)  # then in the order of the metrics


def _is_known(step: ConfirmedChange, own: Sequence[ConfirmedChange], others: Sequence[ConfirmedChange]) -> bool:
    """Whether another metric confirmed this step before.

    Two steps that begin within _SAME_STEP runs are the same, but each step of the other metric matches only one step of
    this metric: a second step soon after the first is new.
    """
    left = [other for other in others if other.worse is step.worse]
    for mine in (one for one in own if one.worse is step.worse):
        near = [other for other in left if abs(other.start - mine.start) <= _SAME_STEP]
        match = min(near, key=lambda other: abs(other.start - mine.start), default=None)
        if mine is step:
            return match is not None and match.confirmed < step.confirmed
        if match is not None:
            left.remove(match)
    return False


def _suspicion(track: MetricTrend, runs: int) -> float | None:
    """The amount by which the newest run is worse, if a change is suspected."""
    last = len(track.runs) - 1
    if last < 0 or track.runs[last] != runs - 1 or last not in track.course.suspected:
        return None
    baseline = track.course.baselines[last]
    assert baseline is not None
    scaled = track.values[last] if track.measure is Measure.ERROR_RATE else math.log(track.values[last])
    difference = scaled - baseline.centre
    return track.change(difference) if track.is_worse(difference) else None


# --- verdict ---------------------------------------------------------------------------------------------------------


def is_undecided(trend_runs: int, track: MetricTrend) -> bool:
    """Whether the newest value is a lower bound that decides nothing."""
    last = len(track.values) - 1
    if last < 0 or track.runs[last] != trend_runs - 1 or not track.newest_at_least:
        return False
    return last not in track.course.suspected and all(shift.confirmed != last for shift in track.course.shifts)


def _verdict(
    tracks: Sequence[MetricTrend], steps: Sequence[ConfirmedChange], suspicions: Sequence[object], runs: int
) -> TrendVerdict:
    new = [step for step in steps if step.new]
    if any(step.worse for step in new):
        return TrendVerdict.REGRESSION
    if suspicions:
        return TrendVerdict.SUSPECTED
    if not any(track.course.baselines and track.course.baselines[-1] is not None for track in tracks):
        return TrendVerdict.LEARNING
    if any(is_undecided(runs, track) for track in tracks):
        return TrendVerdict.UNDECIDED
    return TrendVerdict.IMPROVED if new else TrendVerdict.STEADY
