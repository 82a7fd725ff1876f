"""A trend as one HTML file: no script, nothing from the network, and a policy that forbids both. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from loadgen.report import formatting
from loadgen.report.compare import said
from loadgen.report.formatting import html
from loadgen.report.page import note, number, section, short, table, verdict_page, whole
from loadgen.report.svg import Axis, Chart, ChartDot, ChartLine, ChartMarker, linear_axis, svg
from loadgen.report.trend import (
    SIDES,
    amount,
    change_text,
    count_phrase,
    key_text,
    newest_change,
    newest_text,
    reason_text,
    series_text,
    state,
    usual,
)
from loadgen.rules.comparability import Measure, Subject
from loadgen.rules.trend import MetricTrend, Trend, TrendRun, TrendVerdict

CHARTS_MAX = 30
ROWS_MAX = 500

_CLASSES = {
    TrendVerdict.REGRESSION: "failed",
    TrendVerdict.SUSPECTED: "invalid",
    TrendVerdict.UNDECIDED: "invalid",
    TrendVerdict.LEARNING: "cancelled",
}
_TITLES = {
    Measure.P95: "Response time, p95",
    Measure.P50: "Response time, p50",
    Measure.QPS: "Statements per second",
    Measure.ERROR_RATE: "Failed share",
    Measure.MAX_CONCURRENCY: "Maximum of connections",
}
_NAMES = {Measure.ERROR_RATE: "errors", Measure.MAX_CONCURRENCY: "maximum"}  # there is little room behind a line
_LABELS = 8  # dates below a chart
_ONE_DAY = ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f")
_MANY_DAYS = ("%m-%d", "%Y-%m-%d", "%m-%d %H:%M", "%Y-%m-%d %H:%M", "%m-%d %H:%M:%S")
_POINT = 2.6  # radius of a run
_RING = 8.0  # radius of the ring around the newest
_MARGIN = 0.015  # of a chart's width behind the newest, for the ring


def trend_html(trend: Trend, last: int) -> str:
    """The whole file; charts show the newest `last` runs."""
    return verdict_page(
        trend.verdict.value,
        html(trend.scenario),
        reason_text(trend),
        _numbers(trend),
        _pictures(trend, last),
        _changes(trend),
        _apart(trend),
        _runs(trend, last),
        css=_CLASSES.get(trend.verdict, "passed"),
        about=_about(trend),
        footer="Every run is judged as it would have been when it was the newest, against the runs before it.",
    )


def _about(trend: Trend) -> str:
    if not trend.nights:
        return ""
    return f'<p class="sub">{html(series_text(trend))}. In common: {html(key_text(trend))}.</p>'


def _numbers(trend: Trend) -> str:
    """Of each metric. What it is compared with comes only when there is something."""
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
        f'<td class="n">{100 * track.limit:g} {"points" if track.measure is Measure.ERROR_RATE else "%"}</td>',
        f'<td class="{css or "w"}">{word}</td>',
    ]


def _pictures(trend: Trend, last: int) -> str:
    """A single run is no course."""
    if len(trend.nights) < 2:
        return ""
    shown_tracks = trend.tracks[:CHARTS_MAX]
    more = [note(f"{len(trend.tracks) - CHARTS_MAX} more are not shown.")] if len(trend.tracks) > CHARTS_MAX else []
    pictures = [_figure(trend, track, number, last) for number, track in enumerate(shown_tracks)]
    return section("pictures", "Run by run", note(_legend(trend)), *pictures, *more)


def _legend(trend: Trend) -> str:
    """What is in the pictures, and nothing else."""
    tracks = trend.tracks
    parts = ["Each dot is a run; the ring is the newest."]
    if any(one is not None for track in tracks for one in track.course.baselines):
        parts.append("Dashed lines: the usual range; between them nothing is suspected.")
    if any(set(track.course.suspected) - _changed(track).keys() for track in tracks):
        parts.append("Large dots: suspected, in that run alone.")
    if trend.steps:
        parts.append("Vertical lines and crosses: confirmed changes, from their first run on.")
    if any(track.at_least for track in tracks):
        parts.append(
            "Triangles: at least this much; statements timed out or were cancelled, or the client was the limit."
        )
    return " ".join(parts)


def _figure(trend: Trend, track: MetricTrend, serial: int, last: int) -> str:
    chart = chart_of(trend, track, f"c{serial}", last)
    title = f"<figcaption><strong>{chart.title}</strong></figcaption>"
    return f'<figure>{title}<div class="plot newest">{svg(chart)}</div></figure>'


def chart_of(trend: Trend, track: MetricTrend, chart_id: str, last: int) -> Chart:
    """Values, the range in which they are as usual, and what was found."""
    first = max(len(trend.nights) - last, 0)
    unit = 100.0 if track.measure is Measure.ERROR_RATE else 1.0
    seen = [place for place, night in enumerate(track.nights) if night >= first]
    values = tuple((float(track.nights[place]), unit * track.values[place]) for place in seen)
    ranges = [(float(track.nights[place]), track.course.range_at(place)) for place in seen]
    bounds = [
        tuple(
            (x, None if found is None else unit * track.value(max(found[side], 0.0) if unit > 1 else found[side]))
            for x, found in ranges
        )
        for side in (0, 1)
    ]
    heights = [y for line in (values, *bounds) for _, y in line if y is not None]
    title = _TITLES.get(track.measure, track.measure.value)
    return Chart(
        chart_id=chart_id,
        title=title if track.statement is None else f"{html(track.statement, 80)}: {title}",
        description="One value per run, oldest first, with the usual range.",
        x=_dates(trend, first),
        y=linear_axis(max(heights, default=1.0) * 1.05 or 1.0, unit=_unit(track.measure)),
        lines=(
            *(ChartLine(name="", css="s5", points=bound) for bound in bounds),
            ChartLine(name=_NAMES.get(track.measure, track.measure.value), css="s1", points=values),
        ),
        marks=tuple(_marks(trend, track, first)),
        dots=tuple(_dots(trend, track, first, unit)),
    )


def _dates(trend: Trend, first: int) -> Axis:
    numbers = range(first, len(trend.nights))
    every = -(-len(numbers) // _LABELS) or 1
    labels = _labels([trend.nights[night].started for night in numbers[::every]])
    ticks = tuple((float(night), label) for night, label in zip(numbers[::every], labels, strict=True))
    last = float(max(len(trend.nights) - 1, first + 1))
    return Axis(low=float(first), high=last + _MARGIN * (last - first), ticks=ticks)


def _labels(moments: Sequence[datetime]) -> list[str]:
    """As short as possible while all differ."""
    one_day = len({moment.date() for moment in moments}) == 1
    for form in _ONE_DAY if one_day else _MANY_DAYS:
        labels = [moment.strftime(form) for moment in moments]
        if len(set(labels)) == len(labels):
            return labels
    return [f"{label} ({number})" for number, label in enumerate(labels, 1)]


def _unit(measure: Measure) -> str:
    return {Measure.QPS: "/s", Measure.MAX_CONCURRENCY: "", Measure.ERROR_RATE: " %"}.get(measure, " ms")


def _marks(trend: Trend, track: MetricTrend, first: int) -> Iterator[ChartMarker]:
    starts = [track.nights[shift.start] for shift in track.course.shifts if track.nights[shift.start] >= first]
    one_day = trend.nights[first].started.date() == trend.nights[-1].started.date()
    for start in starts:
        moment = trend.nights[start].started.strftime(_ONE_DAY[0] if one_day else _MANY_DAYS[0])
        yield ChartMarker(at=float(start), label=f"since {moment}")


def _changed(track: MetricTrend) -> dict[int, str]:
    """The values that show a confirmed change, and in which direction."""
    return {
        place: "worse" if track.is_worse(shift.size) else "better"
        for shift in track.course.shifts
        for place in range(shift.start, shift.confirmed + 1)
    }


def _dots(trend: Trend, track: MetricTrend, first: int, unit: float) -> Iterator[ChartDot]:
    """A point for each run, in the shape of what was found; and a ring around the newest."""
    changed = _changed(track)
    for place, night in enumerate(track.nights):
        if night < first:
            continue
        bound, suspected = place in track.at_least, place in track.course.suspected
        word = changed.get(place, "suspected" if suspected else "")
        value = formatting.value_of(track.measure, track.values[place], at_least=bound)
        run = trend.nights[night]
        dot = ChartDot(
            x=float(night),
            y=unit * track.values[place],
            css={"": "s1", "better": "s3"}.get(word, "s2"),
            label=f"{word + ': ' if word else ''}{html(run.run_id)}, {run.started:%Y-%m-%d %H:%M} UTC, {value}",
            cross=place in changed and not bound,
            at_least=bound,
            radius=5.0 if suspected or bound else _POINT,
        )
        yield dot
        if night == len(trend.nights) - 1:
            yield replace(dot, cross=False, at_least=False, ring=True, radius=_RING, label=f"newest: {dot.label}")


def _changes(trend: Trend) -> str:
    rows = []
    for step in reversed(trend.steps):
        facts = trend.changed_at(step.start)
        with_it = "; ".join(f"{name}: {a or 'not known'} → {b or 'not known'}" for name, (a, b) in facts.items())
        rows.append(
            [
                f'<td class="w">{trend.nights[step.start].started:%Y-%m-%d %H:%M}</td>',
                short(trend.nights[step.start].run_id),
                short(step.track.name, 200),
                f'<td class="{"miss" if step.worse else "ok"}">'
                f"{amount(step.track.measure, step.change, at_least=step.shift.at_least)}</td>",
                whole(with_it or "nothing that is recorded", 1_000),
            ]
        )
    if not rows:
        return ""
    head = ("since", "run", "metric", "change", "what else changed with it")
    return section("changes", "Changes", table("confirmed changes, newest first", head, rows, words=5))


def _apart(trend: Trend) -> str:
    """Runs that are not like these."""
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


def _runs(trend: Trend, last: int) -> str:
    if not trend.nights:
        return ""
    rows = []
    first = max(len(trend.nights) - min(last, ROWS_MAX), 0)
    whole = [track for track in trend.tracks if track.statement is None]
    for night in reversed(range(first, len(trend.nights))):
        made = trend.nights[night]
        rows.append(
            [
                f'<td class="w">{made.started:%Y-%m-%d %H:%M}</td>',
                short(made.run_id),
                *(_value(made, (None, track.measure)) for track in whole),
            ]
        )
    head = ("started (UTC)", "run", *(track.measure.value for track in whole))
    return section("runs", "Runs", table("runs of this series, newest first", head, rows, words=2))


def _value(night: TrendRun, subject: Subject) -> str:
    value = night.values.get(subject)
    return number(value, formatting.value_of(subject[1], value, at_least=subject in night.at_least))
