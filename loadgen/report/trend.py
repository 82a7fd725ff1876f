"""The trend of a scenario as text, as JSON and as one HTML file: verdict, metrics over time, changes. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from loadgen.clock import utc_iso
from loadgen.log import printable
from loadgen.report import formatting
from loadgen.report.compare import UNITS, said, unit
from loadgen.report.formatting import html, html_whole_ids
from loadgen.report.html_page import note, number, plain_figure, section, short, table, verdict_page, whole
from loadgen.report.run_text import UNLIMITED_WIDTH
from loadgen.report.svg import Axis, Chart, ChartDot, ChartLine, ChartMarker, linear_axis, with_lanes
from loadgen.rules.comparability import Measure, Subject
from loadgen.rules.trend import (
    RUNS_MIN,
    ConfirmedChange,
    MetricTrend,
    OtherSeries,
    Trend,
    TrendRun,
    TrendVerdict,
    is_undecided,
)

FACTS_SHOWN = 6
OTHERS_SHOWN = 5
NAME_MAX = 30

_BARS = "▁▂▃▄▅▆▇█"
_HEAD = ("metric", "oldest first", "usual", "newest", "change", "state")
_LEFT = (0, 1, 5)  # columns with text
_OF_COMPARED = (2, 4, 5)  # columns that are empty without a baseline
SIDES = ("those", "these")
BARS_MIN = 5


def trend_text(trend: Trend, last: int, width: int | None = None) -> str:
    """Plain text. Bars show the newest `last` runs, oldest first, or fewer if `width` has no room."""
    parts = [
        f"{trend.verdict.value.upper()}  {printable(reason_text(trend), 500)}",
        *_runs(trend),
        *([""] if trend.tracks else []),
        *_table(trend, last, width),
        *_changes(trend),
    ]
    return "\n".join(map(printable, parts))


def usual(track: MetricTrend) -> float | None:
    """The baseline of the newest value; None: too few values are known."""
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
    """The state of one metric in the newest run, in one word."""
    for step in trend.steps:
        if step.track is track and step.new:
            return "REGRESSION" if step.worse else "improved"
    if any(one is track for one, _ in trend.suspicions):
        return "suspected"
    if is_undecided(len(trend.runs), track):
        return "undecided"
    return "learning" if usual(track) is None else "steady"


def series_text(trend: Trend) -> str:
    """The runs of the series."""
    runs = trend.runs
    if len(runs) == 1:
        return f"1 comparable run, {runs[0].run_id}, of {runs[0].started:%Y-%m-%d %H:%M} UTC"
    return (
        f"{len(runs)} comparable runs, {runs[0].started:%Y-%m-%d %H:%M} to {runs[-1].started:%Y-%m-%d %H:%M} UTC;"
        f" the newest is {runs[-1].run_id}"
    )


def key_text(trend: Trend) -> str:
    """The common properties of the runs."""
    key = trend.runs[-1].key
    off = key.driver_lightened  # as it usually is
    telemetry = "" if off is True else f" ({formatting.fact_name('driver_lightened')}: {formatting.fact_value(off)})"
    parts = [
        "same settings",
        f"driver {key.driver_major}.x{telemetry}",
        f"{key.workers} worker{'s' if key.workers > 1 else ''}",
        f"{key.cores} cores" if key.cores else "cores not known",
        *([f"warehouse {printable(key.warehouse_size, 40)}"] if key.warehouse_size else []),
    ]
    return ", ".join(parts)


def _runs(trend: Trend) -> Iterator[str]:
    if trend.runs:
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
    shown = min(last, len(trend.runs))
    return lines if over <= 0 or shown <= BARS_MIN else list(_lines(trend, max(BARS_MIN, shown - over)))


def _lines(trend: Trend, last: int) -> Iterator[str]:
    rows = [_HEAD, *(_row(trend, track, last) for track in trend.tracks)]
    hidden = set() if any(usual(track) is not None for track in trend.tracks) else set(_OF_COMPARED)
    if len(trend.runs) == 1:
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
    """Bars between the lowest and the highest value."""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(_BARS[min(int((value - low) / span * len(_BARS)), len(_BARS) - 1)] for value in values)


def _changes(trend: Trend) -> Iterator[str]:
    if trend.steps:
        yield ""
        yield "changes:"
    for start in sorted({step.start for step in trend.steps}):
        together = [step for step in trend.steps if step.start == start]
        run = trend.runs[start]
        yield f"  {run.started:%Y-%m-%d %H:%M}  {run.run_id}"
        yield from (f"    {_step(step)}" for step in together)
        facts = trend.changed_at(start)
        differences = [
            f"{printable(formatting.setting_name(name), 60)} {_fact(a)} → {_fact(b)}" for name, (a, b) in facts.items()
        ]
        more = f" and {len(differences) - FACTS_SHOWN} more" if len(differences) > FACTS_SHOWN else ""
        yield f"    also changed: {', '.join(differences[:FACTS_SHOWN]) or 'no recorded fact'}{more}"


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
    """The reason of the verdict, in one line."""
    runs = trend.runs
    if not runs:
        why = f": {count_phrase(trend.left_out)}" if trend.left_out else ""
        return f"{trend.scenario} has no run that counts{why}; {RUNS_MIN} comparable runs are needed"
    match trend.verdict:
        case TrendVerdict.LEARNING:
            return f"{RUNS_MIN} comparable runs are needed to judge the newest; {len(runs)} found"
        case TrendVerdict.STEADY:
            return _known_changes(trend) or "the newest run is in the usual range"
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
    since = runs[min(step.start for step in decisive)].run_id
    return f"{_phrases(decisive)} since {since}"


def _known_changes(trend: Trend) -> str:
    """Regressions that were reported before and still last; empty if there are none."""
    newest = {step.track.name: step for step in trend.steps}  # of each metric
    lasting = [step for step in newest.values() if step.worse]
    listed = [
        f"{_phrases([step for step in lasting if step.start == start])} since {trend.runs[start].run_id}"
        for start in sorted({step.start for step in lasting})
    ]
    return f"no new change; known: {'; '.join(listed)}" if listed else ""


def _phrases(steps: Sequence[ConfirmedChange]) -> str:
    more = f" and {len(steps) - FACTS_SHOWN} more" if len(steps) > FACTS_SHOWN else ""
    return ", ".join(map(change_phrase, steps[:FACTS_SHOWN])) + more


def _undecided(trend: Trend) -> str:
    bounds = [track for track in trend.tracks if is_undecided(len(trend.runs), track)]
    shown = ", ".join(
        f"{track.name} is at least {formatting.value_of(track.measure, track.values[-1])}" for track in bounds
    )
    searched = all(track.measure is Measure.MAX_CONCURRENCY for track in bounds)
    why = "the client was the limit" if searched else "statements timed out or were cancelled"
    return f"{shown}: {why}, so it may be in the usual range or worse"


def change_phrase(step: ConfirmedChange) -> str:
    """p95 +25.0 %"""
    return f"{step.track.name} {amount(step.track.measure, step.change, at_least=step.shift.at_least)}"


def count_phrase(left_out: Mapping[str, int]) -> str:
    """Counts as text: 2 are INVALID, 1 has the verdict error."""
    return ", ".join(
        f"{count} {why if count > 1 else why.replace('are ', 'is ', 1).replace('have ', 'has ', 1)}"
        for why, count in sorted(left_out.items())
    )


def amount(measure: Measure, change: float, *, at_least: bool = False) -> str:
    """A change with its sign and unit."""
    return f"{'at least ' if at_least else ''}{100 * change:+z.1f} {unit(measure)}"


def trend_data(trend: Trend, last: int) -> dict[str, Any]:
    """The JSON document. Metrics list the newest `last` runs; all runs of the series were judged."""
    newest = trend.runs[-1] if trend.runs else None
    first = max(len(trend.runs) - last, 0)
    return {
        "scenario": trend.scenario,
        "verdict": trend.verdict.value,
        "exit_code": trend.exit_code,
        "reason": reason_text(trend),
        "newest": None if newest is None else newest.run_id,
        "series": None if newest is None else asdict(newest.key),
        "runs_in_series": len(trend.runs),
        "runs_needed": RUNS_MIN,
        "left_out": dict(trend.left_out),
        "last_left_out": trend.last_left_out,
        "other_series": [_other_data(other) for other in trend.others],
        "runs": [{"run_id": run.run_id, "created_at": utc_iso(run.created, "seconds")} for run in trend.runs[first:]],
        "metrics": [_track_data(trend, track, first) for track in trend.tracks],
        "changes": [_step_data(trend, step) for step in trend.steps],
    }


def _track_data(trend: Trend, track: MetricTrend, first: int) -> dict[str, Any]:
    values: list[float | None] = [None] * len(trend.runs)
    at_least = [False] * len(trend.runs)
    for place, (index, value) in enumerate(zip(track.runs, track.values, strict=True)):
        values[index], at_least[index] = round(value, 6), place in track.at_least
    return {
        "statement": track.statement,
        "metric": track.measure.value,
        "unit": UNITS.get(track.measure, "ms"),
        "values": values[first:],
        "at_least": at_least[first:],  # which values are lower bounds
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
        "since": trend.runs[step.start].run_id,
        "confirmed_by": trend.runs[step.confirmed].run_id,
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


# --- HTML: no script, nothing from the network -----------------------------------------------------------------------

CHARTS_MAX = 30
ROWS_MAX = 500

_CLASSES = {
    TrendVerdict.REGRESSION: "failed",
    TrendVerdict.SUSPECTED: "invalid",
    TrendVerdict.UNDECIDED: "invalid",
    TrendVerdict.LEARNING: "cancelled",
}
_AXIS_UNITS = {Measure.QPS: "/s", Measure.MAX_CONCURRENCY: "", Measure.ERROR_RATE: " %"}
WIDTH, HEIGHT = 960, 190
LANES_MAX = 3  # lines of labels of changes
_LABELS = 8  # dates below a chart
_ONE_DAY = ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f")
_MANY_DAYS = ("%m-%d", "%Y-%m-%d", "%m-%d %H:%M", "%Y-%m-%d %H:%M", "%m-%d %H:%M:%S")
_POINT = 2.6  # radius of a run
_RING = 8.0  # radius of the ring around the newest
_MARGIN = 0.015  # share of the width after the newest run, for its ring


def trend_html(trend: Trend, last: int) -> str:
    """The HTML file. Charts show the newest `last` runs."""
    return verdict_page(
        trend.verdict.value,
        html(trend.scenario),
        reason_text(trend),
        _numbers(trend),
        _pictures(trend, last),
        _change_table(trend),
        _apart(trend),
        _run_table(trend, last),
        css=_CLASSES.get(trend.verdict, "passed"),
        about=_about(trend),
        footer="Each run is judged against the runs before it only.",
    )


def _about(trend: Trend) -> str:
    if not trend.runs:
        return ""
    return f'<p class="sub">{html_whole_ids(series_text(trend))}. In common: {html(key_text(trend))}.</p>'


def _numbers(trend: Trend) -> str:
    """A table of all metrics; columns of the comparison only if there is a baseline."""
    if not trend.tracks:
        return ""
    compared = any(usual(track) is not None for track in trend.tracks)
    rows = [_metric(trend, track, compared=compared) for track in trend.tracks]
    head = ("metric", "usual", "newest", "change", "limit", "state") if compared else ("metric", "newest")
    words = 1 if compared else 0
    return section("numbers", "The newest run", table("metrics of the newest run", head, rows, last_words=words))


def _metric(trend: Trend, track: MetricTrend, *, compared: bool) -> list[str]:
    name, newest = short(track.name, 200), number(track.values[-1], newest_text(track))
    if not compared:
        return [name, newest]
    word, level = state(trend, track), usual(track)
    css = "miss" if word == "REGRESSION" else "ok" if word == "improved" else ""
    return [
        name,
        number(level, formatting.value_of(track.measure, level)),
        newest,
        number(newest_change(track), change_text(track)),
        f'<td class="n">{100 * track.limit:g} {unit(track.measure)}</td>',
        f'<td class="{css or "w"}">{word}</td>',
    ]


def _pictures(trend: Trend, last: int) -> str:
    """Charts of all metrics; none for a single run."""
    if len(trend.runs) < 2:
        return ""
    shown_tracks = trend.tracks[:CHARTS_MAX]
    more = [note(f"{len(trend.tracks) - CHARTS_MAX} more are not shown.")] if len(trend.tracks) > CHARTS_MAX else []
    pictures = [
        plain_figure(chart_of(trend, track, f"c{number}", last), css="plot newest")
        for number, track in enumerate(shown_tracks)
    ]
    return section("pictures", "Run by run", note(_legend(trend)), *pictures, *more)


def _legend(trend: Trend) -> str:
    """The legend, with the signs that occur."""
    tracks = trend.tracks
    parts = ["Each dot is a run; the ring is the newest."]
    if any(one is not None for track in tracks for one in track.course.baselines):
        parts.append("Dashed lines: the usual range.")
    if any(set(track.course.suspected) - _changed(track).keys() for track in tracks):
        parts.append("Large dots: suspected in one run only.")
    if trend.steps:
        parts.append("Vertical lines and crosses: confirmed changes, from their first run on.")
    if any(track.at_least for track in tracks):
        parts.append(
            "Triangles: lower bounds, because statements timed out or were cancelled, or the client was the limit."
        )
    return " ".join(parts)


def chart_of(trend: Trend, track: MetricTrend, chart_id: str, last: int) -> Chart:
    """A chart of the values, their usual range, and changes."""
    first = max(len(trend.runs) - last, 0)
    factor = 100.0 if track.measure is Measure.ERROR_RATE else 1.0
    seen = [place for place, index in enumerate(track.runs) if index >= first]
    values = tuple((float(track.runs[place]), factor * track.values[place]) for place in seen)
    ranges = [(float(track.runs[place]), track.course.range_at(place)) for place in seen]
    least = 0.0 if track.measure is Measure.ERROR_RATE else -math.inf
    bounds = [
        tuple((x, None if found is None else factor * track.value(max(found[side], least))) for x, found in ranges)
        for side in (0, 1)
    ]
    heights = [y for line in (values, *bounds) for _, y in line if y is not None]
    chart = Chart(
        chart_id=chart_id,
        title=html(track.name, 200),
        description="One value per run, oldest first, with the usual range.",
        x=_dates(trend, first),
        y=linear_axis(max(heights, default=1.0) * 1.05 or 1.0, unit=_AXIS_UNITS.get(track.measure, " ms")),
        lines=(
            *(ChartLine(name="", css="s5", points=bound) for bound in bounds),
            ChartLine(name="", css="s1", points=values),
        ),
        both_sides=True,
        marks=tuple(_marks(trend, track, first)),
        width=WIDTH,
        height=HEIGHT,
        dots=tuple(_dots(trend, track, first, factor)),
    )
    return with_lanes(chart, LANES_MAX)


def _dates(trend: Trend, first: int) -> Axis:
    every = -(-(len(trend.runs) - first) // _LABELS) or 1
    numbers = range(len(trend.runs) - 1, first - 1, -every)[::-1]  # the newest is one of them
    labels = _labels([trend.runs[index].started for index in numbers])
    ticks = tuple((float(index), label) for index, label in zip(numbers, labels, strict=True))
    last = float(max(len(trend.runs) - 1, first + 1))
    return Axis(low=float(first), high=last + _MARGIN * (last - first), ticks=ticks)


def _labels(moments: Sequence[datetime]) -> list[str]:
    """The shortest labels that all differ."""
    one_day = len({moment.date() for moment in moments}) == 1
    for form in _ONE_DAY if one_day else _MANY_DAYS:
        labels = [moment.strftime(form) for moment in moments]
        if len(set(labels)) == len(labels):
            return labels
    return [f"{label} ({number})" for number, label in enumerate(labels, 1)]


def _marks(trend: Trend, track: MetricTrend, first: int) -> Iterator[ChartMarker]:
    starts = [track.runs[shift.start] for shift in track.course.shifts if track.runs[shift.start] >= first]
    one_day = trend.runs[first].started.date() == trend.runs[-1].started.date()
    for start in starts:
        moment = trend.runs[start].started.strftime(_ONE_DAY[0] if one_day else _MANY_DAYS[0])
        yield ChartMarker(at=float(start), label=f"since {moment}")


def _changed(track: MetricTrend) -> dict[int, str]:
    """The indexes of values that show a confirmed change, with its direction."""
    return {
        place: "worse" if track.is_worse(shift.size) else "better"
        for shift in track.course.shifts
        for place in range(shift.start, shift.confirmed + 1)
    }


def _dots(trend: Trend, track: MetricTrend, first: int, factor: float) -> Iterator[ChartDot]:
    """A point for each run, with a shape for its state, and a ring around the newest run."""
    changed = _changed(track)
    for place, index in enumerate(track.runs):
        if index < first:
            continue
        bound, suspected = place in track.at_least, place in track.course.suspected
        word = changed.get(place, "suspected" if suspected else "")
        value = formatting.value_of(track.measure, track.values[place], at_least=bound)
        run = trend.runs[index]
        dot = ChartDot(
            x=float(index),
            y=factor * track.values[place],
            css={"": "s1", "better": "s3"}.get(word, "s2"),
            label=f"{word + ': ' if word else ''}{html(run.run_id)}, {run.started:%Y-%m-%d %H:%M} UTC, {value}",
            cross=place in changed and not bound,
            at_least=bound,
            radius=5.0 if suspected or bound else _POINT,
        )
        yield dot
        if index == len(trend.runs) - 1:
            yield replace(dot, cross=False, at_least=False, ring=True, radius=_RING, label=f"newest: {dot.label}")


def _change_table(trend: Trend) -> str:
    def row(step: ConfirmedChange) -> list[str]:
        run, facts = trend.runs[step.start], trend.changed_at(step.start).items()
        with_it = "; ".join(
            f"{formatting.setting_name(name)}: {a or 'not known'} → {b or 'not known'}" for name, (a, b) in facts
        )
        change = amount(step.track.measure, step.change, at_least=step.shift.at_least)
        return [
            short(step.track.name, 200),
            f'<td class="{"miss" if step.worse else "ok"}">{change}</td>',
            f'<td class="w">{run.started:%Y-%m-%d %H:%M}</td>',
            short(run.run_id),
            whole(with_it or "no recorded fact", 1_000),
        ]

    rows = map(row, sorted(trend.steps, key=lambda step: -step.start))
    head = ("metric", "change", "since", "run", "what else changed")
    listed = table("confirmed changes, newest first", head, rows, words=5)
    return section("changes", "Changes", listed) if trend.steps else ""


def _apart(trend: Trend) -> str:
    """Runs that are not comparable, and runs that were left out."""
    rows = [
        [
            f'<td class="w">{other.newest.started:%Y-%m-%d %H:%M}</td>',
            short(other.newest.run_id),
            f'<td class="n">{other.runs}</td>',
            whole("; ".join(said(one, SIDES) for one in other.differences) or "a setting of the scenario", 1_000),
        ]
        for other in reversed(trend.others)
    ]
    parts = []
    if rows:
        head = ("until", "newest run", "runs", "differs in (those → these)")
        parts.append(table("runs that are not comparable with these", head, rows, words=2, last_words=1))
    if trend.left_out:
        last = f" The last of them: {html(trend.last_left_out)}." if trend.last_left_out else ""
        parts.append(note(f"Left out: {html(count_phrase(trend.left_out))}.{last}"))
    return section("apart", "Not compared with these", *parts) if parts else ""


def _run_table(trend: Trend, last: int) -> str:
    if not trend.runs:
        return ""
    first = max(len(trend.runs) - min(last, ROWS_MAX), 0)
    measures = [track.measure for track in trend.tracks if track.statement is None]
    rows = [
        [
            f'<td class="w">{run.started:%Y-%m-%d %H:%M}</td>',
            short(run.run_id),
            *(_value(run, (None, measure)) for measure in measures),
        ]
        for run in reversed(trend.runs[first:])
    ]
    head = ("started (UTC)", "run", *(measure.value for measure in measures))
    return section("runs", "Runs", table("runs of this series, newest first", head, rows, words=2))


def _value(run: TrendRun, subject: Subject) -> str:
    value = run.values.get(subject)
    return number(value, formatting.value_of(subject[1], value, at_least=subject in run.at_least))
