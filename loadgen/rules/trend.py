"""The runs of a scenario over time: is the newest worse than usual, since when, and what else changed? Pure.

Only comparable runs form a series: the same TEMPLATE_ID, major version of the driver, number of workers and cores, and
warehouse size. The newest run determines the series. Runs that are not COMPLETED, are INVALID, or found no maximum
belong to no series. Each metric is judged by `change_points`:

    learning    too few runs: RUNS_MIN are needed
    steady      no new change
    undecided   the newest value is a lower bound within the usual range
    suspected   the newest run alone is worse; the next run confirms or refutes it
    regression  the newest run confirms that it is worse: exit code 11
    improved    the newest run confirms that it is better

A regression is reported once. From the next night on it is known, also when another metric shows the same step later.
Metrics of all statements together move together, and each is judged separately; p95 of single statements share the
probability of a false alarm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from loadgen.rules.change_points import NIGHTS_MIN, ChangePoint, ChangePointAnalysis, detect_change_points
from loadgen.rules.comparability import DEFAULTS, Measure, SettingDifference, Subject
from loadgen.values import dataclass

REGRESSION = 11  # exit code
RUNS_MIN = NIGHTS_MIN + 1  # comparable runs: those that say what is usual, and the newest

_WHOLE = (Measure.P95, Measure.P50, Measure.QPS, Measure.ERROR_RATE)
_USUAL = 0.05  # by how much nights differ, for all that is known before there are any
_USUAL_POINTS = 0.0025  # the same of error rates
_SAME_STEP = 2  # runs between the beginnings of what is one step in two metrics


class TrendVerdict(StrEnum):
    LEARNING = "learning"
    STEADY = "steady"
    UNDECIDED = "undecided"
    SUSPECTED = "suspected"
    REGRESSION = "regression"
    IMPROVED = "improved"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesKey:
    """What runs of one series share."""

    template_id: str
    driver_major: str
    workers: int
    cores: int | None
    warehouse_size: str | None  # None: not observed
    driver_lightened: bool | str = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendRun:
    """A run that counts."""

    run_id: str
    started: datetime  # naive UTC
    key: SeriesKey
    values: Mapping[Subject, float]  # ms, per second, a share, or a number of connections
    facts: Mapping[str, str]  # what may explain a change
    at_least: frozenset[Subject] = frozenset()  # those of the values that are lower bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricTrend:
    """One metric through the nights of a series. Positions in `course` are those of `nights`."""

    statement: str | None
    measure: Measure
    nights: tuple[int, ...]  # those that have a value, as numbers in the series
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
        """A difference of the judged scale as people read it: relative, of shares as it is."""
        return difference if self.measure is Measure.ERROR_RATE else math.expm1(difference)

    def value(self, scaled: float) -> float:
        return scaled if self.measure is Measure.ERROR_RATE else math.exp(scaled)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedChange:
    """A confirmed change of one metric. Numbers are those of nights in the series."""

    track: MetricTrend
    shift: ChangePoint
    start: int
    confirmed: int
    worse: bool
    new: bool  # the newest night confirmed it, and no night before did in another metric

    @property
    def change(self) -> float:
        return self.track.change(self.shift.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherSeries:
    """Runs of the same scenario that are not like these, and in what they differ."""

    key: SeriesKey
    runs: int
    newest: TrendRun
    differences: tuple[SettingDifference, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    scenario: str
    nights: tuple[TrendRun, ...]  # of the newest run's series, oldest first
    tracks: tuple[MetricTrend, ...]
    steps: tuple[ConfirmedChange, ...]  # oldest first
    suspicions: tuple[tuple[MetricTrend, float], ...]  # worse in the newest night alone: change
    others: tuple[OtherSeries, ...]
    left_out: Mapping[str, int]  # why, how many runs
    last_left_out: str | None  # the newest of them, and why
    verdict: TrendVerdict

    @property
    def exit_code(self) -> int:
        return REGRESSION if self.verdict is TrendVerdict.REGRESSION else 0

    def changed_at(self, night: int) -> dict[str, tuple[str | None, str | None]]:
        """Facts that are not those of the night before."""
        if night == 0:
            return {}
        before, now = self.nights[night - 1].facts, self.nights[night].facts
        return {
            name: (before.get(name), now.get(name))
            for name in sorted(before.keys() | now.keys())
            if before.get(name) != now.get(name)
        }


def trend_of(
    scenario: str,
    nights: Sequence[TrendRun],
    left_out: Mapping[str, int],
    others: Sequence[OtherSeries] = (),
    last_left_out: str | None = None,
) -> Trend:
    """Judge one series, oldest night first."""
    subjects = _subjects(nights)
    statements = sum(statement is not None for statement, _ in subjects)
    tracks = [_track(nights, subject, statements) for subject in subjects]
    steps = _steps(tracks, len(nights))
    suspicions = [(track, change) for track in tracks if (change := _suspicion(track, len(nights))) is not None]
    return Trend(
        scenario=scenario,
        nights=tuple(nights),
        tracks=tuple(tracks),
        steps=tuple(steps),
        suspicions=tuple(suspicions),
        others=tuple(others),
        left_out=dict(left_out),
        last_left_out=last_left_out,
        verdict=_verdict(tracks, steps, suspicions, len(nights)),
    )


def series_of(nights: Sequence[TrendRun]) -> dict[SeriesKey, list[TrendRun]]:
    """By key; the series of the newest night comes last."""
    found: dict[SeriesKey, list[TrendRun]] = {}
    for night in nights:
        found.setdefault(night.key, []).append(night)
    return dict(sorted(found.items(), key=lambda item: nights.index(item[1][-1])))


def values_of(summary: Mapping[str, Any]) -> tuple[dict[Subject, float], frozenset[Subject]]:
    """The metrics of a summary.json, and which of them are lower bounds: statements were cut off, or a search was
    limited by the client."""
    searched = summary.get("find_max")
    if searched:
        subject = (None, Measure.MAX_CONCURRENCY)
        # The scenario's maximum is the same every night; a limit of the client is not.
        limited = searched.get("limited_at") is not None
        return {subject: float(searched["max_concurrency"])}, frozenset({subject} if limited else ())
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


# --- tracks ----------------------------------------------------------------------------------------------------------


def _subjects(nights: Sequence[TrendRun]) -> list[Subject]:
    """Those of the newest night: all together first, then statements by name."""
    known = nights[-1].values if nights else {}
    order = [*_WHOLE, *(measure for measure in Measure if measure not in _WHOLE)]
    return sorted(known, key=lambda subject: (subject[0] is not None, subject[0] or "", order.index(subject[1])))


def _track(nights: Sequence[TrendRun], subject: Subject, statements: int) -> MetricTrend:
    statement, measure = subject
    numbers = [number for number, night in enumerate(nights) if subject in night.values]
    values = [nights[number].values[subject] for number in numbers]
    at_least = frozenset(place for place, number in enumerate(numbers) if subject in nights[number].at_least)
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
        nights=tuple(numbers),
        values=tuple(values),
        course=course,
        at_least=at_least,
    )


def _steps(tracks: Sequence[MetricTrend], nights: int) -> list[ConfirmedChange]:
    by_track = [
        [
            ConfirmedChange(
                track=track,
                shift=shift,
                start=track.nights[shift.start],
                confirmed=track.nights[shift.confirmed],
                worse=track.is_worse(shift.size),
                new=track.nights[shift.confirmed] == nights - 1,
            )
            for shift in track.course.shifts
        ]
        for track in tracks
    ]
    found = [
        replace(step, new=step.new and not any(_was_told(step, own, other) for other in by_track if other is not own))
        for own in by_track
        for step in own
    ]
    return sorted(found, key=lambda step: (step.start, step.confirmed))


def _was_told(step: ConfirmedChange, own: Sequence[ConfirmedChange], others: Sequence[ConfirmedChange]) -> bool:
    """Did another metric confirm this step before? Two that begin within _SAME_STEP runs are one step, but each step of
    the other metric is only one of this one's: a second step soon after the first is new."""
    left = [other for other in others if other.worse is step.worse]
    for mine in (one for one in own if one.worse is step.worse):
        near = [other for other in left if abs(other.start - mine.start) <= _SAME_STEP]
        match = min(near, key=lambda other: abs(other.start - mine.start), default=None)
        if mine is step:
            return match is not None and match.confirmed < step.confirmed
        if match is not None:
            left.remove(match)
    return False


def _suspicion(track: MetricTrend, nights: int) -> float | None:
    """By how much the newest night is worse, if it is suspected."""
    last = len(track.nights) - 1
    if last < 0 or track.nights[last] != nights - 1 or last not in track.course.suspected:
        return None
    baseline = track.course.baselines[last]
    assert baseline is not None
    scaled = track.values[last] if track.measure is Measure.ERROR_RATE else math.log(track.values[last])
    difference = scaled - baseline.centre
    return track.change(difference) if track.is_worse(difference) else None


# --- verdict ---------------------------------------------------------------------------------------------------------


def is_undecided(trend_nights: int, track: MetricTrend) -> bool:
    """Is the newest value a lower bound that shows nothing?"""
    last = len(track.values) - 1
    if last < 0 or track.nights[last] != trend_nights - 1 or not track.newest_at_least:
        return False
    return last not in track.course.suspected and all(shift.confirmed != last for shift in track.course.shifts)


def _verdict(
    tracks: Sequence[MetricTrend], steps: Sequence[ConfirmedChange], suspicions: Sequence[object], nights: int
) -> TrendVerdict:
    new = [step for step in steps if step.new]
    if any(step.worse for step in new):
        return TrendVerdict.REGRESSION
    if suspicions:
        return TrendVerdict.SUSPECTED
    if not any(track.course.baselines and track.course.baselines[-1] is not None for track in tracks):
        return TrendVerdict.LEARNING
    if any(is_undecided(nights, track) for track in tracks):
        return TrendVerdict.UNDECIDED
    return TrendVerdict.IMPROVED if new else TrendVerdict.STEADY
