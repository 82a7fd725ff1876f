"""A trend for people: verdict first, then each metric as a line of small bars, then what changed when. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from loadgen.log import printable
from loadgen.report import formatting
from loadgen.report.compare import said
from loadgen.report.run_text import UNLIMITED_WIDTH
from loadgen.rules.comparability import Measure
from loadgen.rules.trend import RUNS_MIN, ConfirmedChange, MetricTrend, OtherSeries, Trend, TrendVerdict, is_undecided

FACTS_SHOWN = 6
OTHERS_SHOWN = 5
NAME_MAX = 30

_BARS = "▁▂▃▄▅▆▇█"
_HEAD = ("metric", "oldest first", "usual", "newest", "change", "state")
_LEFT = (0, 1, 5)  # columns of words
_OF_COMPARED = (2, 4, 5)  # columns that say nothing before there is something usual
SIDES = ("those", "these")
BARS_MIN = 5


def trend_text(trend: Trend, last: int, width: int | None = None) -> str:
    """Plain text; the bars are the newest `last` runs, oldest first, or fewer where `width` has no room."""
    parts = [
        f"{trend.verdict.value.upper()}  {printable(reason_text(trend), 500)}",
        *_runs(trend),
        *([""] if trend.tracks else []),
        *_table(trend, last, width),
        *_changes(trend),
    ]
    return "\n".join(map(printable, parts))


def usual(track: MetricTrend) -> float | None:
    """What the newest value was measured against; None: too few are known."""
    course = track.course
    baseline = course.baselines[-1] if course.baselines else None
    if course.shifts and course.shifts[-1].confirmed == len(course.baselines) - 1:
        baseline = course.shifts[-1].before
    return None if baseline is None else track.value(baseline.centre)


def newest_change(track: MetricTrend) -> float | None:
    level = usual(track)
    if level is None:
        return None
    value = track.values[-1]
    return value - level if track.measure is Measure.ERROR_RATE else value / level - 1


def state(trend: Trend, track: MetricTrend) -> str:
    """A word for the newest night of one metric."""
    for step in trend.steps:
        if step.track is track and step.new:
            return "REGRESSION" if step.worse else "improved"
    if any(one is track for one, _ in trend.suspicions):
        return "suspected"
    if is_undecided(len(trend.nights), track):
        return "undecided"
    return "learning" if usual(track) is None else "steady"


def series_text(trend: Trend) -> str:
    """Which runs are compared."""
    nights = trend.nights
    if len(nights) == 1:
        return f"1 comparable run, {nights[0].run_id}, of {nights[0].started:%Y-%m-%d %H:%M} UTC"
    return (
        f"{len(nights)} comparable runs, {nights[0].started:%Y-%m-%d %H:%M} to {nights[-1].started:%Y-%m-%d %H:%M} UTC;"
        f" the newest is {nights[-1].run_id}"
    )


def key_text(trend: Trend) -> str:
    """What they have in common."""
    key = trend.nights[-1].key
    parts = [
        "same settings",
        f"driver {key.driver_major}.x{'' if key.driver_lightened else ', not lightened'}",
        f"{key.workers} worker{'s' if key.workers > 1 else ''}",
        f"{key.cores} cores" if key.cores else "cores not known",
        *([f"warehouse {printable(key.warehouse_size, 40)}"] if key.warehouse_size else []),
    ]
    return ", ".join(parts)


def _runs(trend: Trend) -> Iterator[str]:
    if trend.nights:
        yield f"  {printable(trend.scenario, 60)}: {series_text(trend)}"
        yield f"  in common: {key_text(trend)}"
    for other in trend.others[-OTHERS_SHOWN:]:
        apart = [said(one, SIDES) for one in other.differences]
        more = f", and {len(apart) - FACTS_SHOWN} more" if len(apart) > FACTS_SHOWN else ""
        runs = f"{other.runs} run{'s' if other.runs > 1 else ''}"
        yield (
            f"  not comparable: {runs} until {other.newest.started:%Y-%m-%d %H:%M};"
            f" {', '.join(apart[:FACTS_SHOWN]) or 'a setting of the scenario differs'}{more}"
        )
    if trend.left_out:
        yield f"  left out: {count_phrase(trend.left_out)}"
    if trend.last_left_out:
        yield f"  the last of them: {printable(trend.last_left_out, 500)}"


def _table(trend: Trend, last: int, width: int | None) -> list[str]:
    lines = list(_lines(trend, last)) if trend.tracks else []
    over = max(map(len, lines), default=0) - (width or UNLIMITED_WIDTH)
    shown = min(last, len(trend.nights))
    return lines if over <= 0 or shown <= BARS_MIN else list(_lines(trend, max(BARS_MIN, shown - over)))


def _lines(trend: Trend, last: int) -> Iterator[str]:
    rows = [_HEAD, *(_row(trend, track, last) for track in trend.tracks)]
    hidden = set() if any(usual(track) is not None for track in trend.tracks) else set(_OF_COMPARED)
    if len(trend.nights) == 1:
        hidden.add(1)
    columns = [column for column in range(len(_HEAD)) if column not in hidden]
    left = [place for place, column in enumerate(columns) if column in _LEFT]
    yield from formatting.aligned([[row[column] for column in columns] for row in rows], left)


def _row(trend: Trend, track: MetricTrend, last: int) -> tuple[str, ...]:
    return (
        printable(track.name, NAME_MAX),
        bars(track.values[-last:]),
        formatting.value_of(track.measure, usual(track)),
        newest_text(track),
        change_text(track),
        state(trend, track),
    )


def newest_text(track: MetricTrend) -> str:
    return formatting.value_of(track.measure, track.values[-1], at_least=track.newest_at_least)


def change_text(track: MetricTrend) -> str:
    change = newest_change(track)
    if change is None:
        return formatting.NONE
    return formatting.bounded(amount(track.measure, change), at_least=track.newest_at_least)


def bars(values: Sequence[float]) -> str:
    """From the lowest to the highest."""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(_BARS[min(int((value - low) / span * len(_BARS)), len(_BARS) - 1)] for value in values)


def _changes(trend: Trend) -> Iterator[str]:
    if trend.steps:
        yield ""
        yield "changes:"
    for start in sorted({step.start for step in trend.steps}):
        together = [step for step in trend.steps if step.start == start]
        night = trend.nights[start]
        yield f"  {night.started:%Y-%m-%d %H:%M}  {night.run_id}"
        yield from (f"    {_step(step)}" for step in together)
        facts = trend.changed_at(start)
        said = [f"{printable(name, 60)} {_fact(a)} → {_fact(b)}" for name, (a, b) in facts.items()]
        more = f" and {len(said) - FACTS_SHOWN} more" if len(said) > FACTS_SHOWN else ""
        yield f"    with it changed: {', '.join(said[:FACTS_SHOWN]) or 'nothing that is recorded'}{more}"


def _step(step: ConfirmedChange) -> str:
    track = step.track
    before, after = track.value(step.shift.before.centre), track.value(step.shift.after)
    return (
        f"{printable(change_phrase(step), 2 * NAME_MAX)}, {'worse' if step.worse else 'better'}:"
        f" {formatting.value_of(track.measure, before)} →"
        f" {formatting.value_of(track.measure, after, at_least=step.shift.at_least)}"
    )


def _fact(value: str | None) -> str:
    return "not known" if value is None else printable(value, 60)


# --- the verdict in words --------------------------------------------------------------------------------------------


def reason_text(trend: Trend) -> str:
    """What decided the verdict, in one line."""
    nights = trend.nights
    if not nights:
        return _no_runs(trend)
    match trend.verdict:
        case TrendVerdict.LEARNING:
            return f"{RUNS_MIN} comparable runs are needed to judge the newest; {len(nights)} found"
        case TrendVerdict.STEADY:
            return _known_change(trend) or "the newest run is as usual"
        case TrendVerdict.UNDECIDED:
            return _undecided(trend)
        case TrendVerdict.SUSPECTED:
            shown = ", ".join(
                f"{track.name} {amount(track.measure, change, at_least=track.newest_at_least)}"
                for track, change in trend.suspicions
            )
            return f"{shown}, in one run; another run will confirm or refute it"
    worse = trend.verdict is TrendVerdict.REGRESSION
    decisive = [step for step in trend.steps if step.new and step.worse is worse]
    since = nights[min(step.start for step in decisive)].run_id
    return f"{', '.join(map(change_phrase, decisive))} since {since}"


def _no_runs(trend: Trend) -> str:
    why = f": {count_phrase(trend.left_out)}" if trend.left_out else ""
    return f"{trend.scenario} has no run that counts{why}; {RUNS_MIN} comparable runs are needed"


def _known_change(trend: Trend) -> str:
    """A change that led to the current, worse level, and was reported before; empty: there is none."""
    if not trend.steps or not trend.steps[-1].worse:
        return ""
    last = trend.steps[-1]
    return f"no new change; {change_phrase(last)} since {trend.nights[last.start].run_id} is known"


def _undecided(trend: Trend) -> str:
    bounds = [track for track in trend.tracks if is_undecided(len(trend.nights), track)]
    shown = ", ".join(
        f"{track.name} is at least {formatting.value_of(track.measure, track.values[-1])}" for track in bounds
    )
    searched = all(track.measure is Measure.MAX_CONCURRENCY for track in bounds)
    why = "the client was the limit" if searched else "statements timed out or were cancelled"
    return f"{shown}: {why}, so it may be as usual or worse"


def change_phrase(step: ConfirmedChange) -> str:
    """p95 +25.0 %"""
    return f"{step.track.name} {amount(step.track.measure, step.change, at_least=step.shift.at_least)}"


def count_phrase(left_out: Mapping[str, int]) -> str:
    """2 are INVALID, 1 is FAILED."""
    return ", ".join(
        f"{count} {why if count > 1 else why.replace('are ', 'is ', 1).replace('have ', 'has ', 1)}"
        for why, count in sorted(left_out.items())
    )


def amount(measure: Measure, change: float, *, at_least: bool = False) -> str:
    """A change, with its sign."""
    unit = "points" if measure is Measure.ERROR_RATE else "%"
    return f"{'at least ' if at_least else ''}{100 * change:+.1f} {unit}"


_UNITS = {Measure.QPS: "per second", Measure.ERROR_RATE: "share", Measure.MAX_CONCURRENCY: "connections"}


def trend_data(trend: Trend, last: int) -> dict[str, Any]:
    """Metrics list the values of the newest `last` runs; all runs of the series were judged."""
    newest = trend.nights[-1] if trend.nights else None
    first = max(len(trend.nights) - last, 0)
    return {
        "scenario": trend.scenario,
        "verdict": trend.verdict.value,
        "exit_code": trend.exit_code,
        "reason": reason_text(trend),
        "newest": None if newest is None else newest.run_id,
        "series": None if newest is None else asdict(newest.key),
        "runs_in_series": len(trend.nights),
        "runs_needed": RUNS_MIN,
        "left_out": dict(trend.left_out),
        "last_left_out": trend.last_left_out,
        "other_series": [_other_data(other) for other in trend.others],
        "runs": [
            {"run_id": night.run_id, "created_at": f"{night.started.isoformat(timespec='seconds')}Z"}
            for night in trend.nights[first:]
        ],
        "metrics": [_track_data(trend, track, first) for track in trend.tracks],
        "changes": [_step_data(trend, step) for step in trend.steps],
    }


def _track_data(trend: Trend, track: MetricTrend, first: int) -> dict[str, Any]:
    values: list[float | None] = [None] * len(trend.nights)
    at_least = [False] * len(trend.nights)
    for place, (number, value) in enumerate(zip(track.nights, track.values, strict=True)):
        values[number], at_least[number] = round(value, 6), place in track.at_least
    return {
        "statement": track.statement,
        "metric": track.measure.value,
        "unit": _UNITS.get(track.measure, "ms"),
        "values": values[first:],
        "at_least": at_least[first:],  # of the values: those that are lower bounds
        "usual": formatting.rounded(usual(track)),
        "newest": formatting.rounded(track.values[-1]),
        "change": formatting.rounded(newest_change(track)),
        "limit": track.limit,
        "state": state(trend, track).lower(),
    }


def _step_data(trend: Trend, step: ConfirmedChange) -> dict[str, Any]:
    track = step.track
    return {
        "statement": track.statement,
        "metric": track.measure.value,
        "since": trend.nights[step.start].run_id,
        "confirmed_by": trend.nights[step.confirmed].run_id,
        "before": formatting.rounded(track.value(step.shift.before.centre)),
        "after": formatting.rounded(track.value(step.shift.after)),
        "change": formatting.rounded(step.change),
        "at_least": step.shift.at_least,
        "worse": step.worse,
        "new": step.new,
        "changed_with_it": {name: {"from": a, "to": b} for name, (a, b) in trend.changed_at(step.start).items()},
    }


def _other_data(other: OtherSeries) -> dict[str, Any]:
    return {
        "series": asdict(other.key),
        "runs": other.runs,
        "newest": other.newest.run_id,
        "differs_in": [{"key": one.key, "there": one.a, "here": one.b} for one in other.differences],
    }
