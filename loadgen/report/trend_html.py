"""A trend as one HTML file: no script, nothing from the network, and a policy that forbids both. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loadgen.report.foreign import html
from loadgen.report.html_parts import note, number, section, table, text
from loadgen.report.html_style import POLICY, STYLE
from loadgen.report.limits import Measure
from loadgen.report.svg import Axis, Chart, Dot, Line, Mark, linear_axis, svg
from loadgen.report.trend import Track, Trend, Verdict, amount
from loadgen.report.trend_text import newest_change, shown, state, usual

CHARTS_MAX = 30
ROWS_MAX = 500

_CLASSES = {
    Verdict.REGRESSION: "failed",
    Verdict.SUSPECTED: "invalid",
    Verdict.LEARNING: "cancelled",
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


def trend_html(trend: Trend, last: int) -> str:
    """The whole file; charts show the last so many nights."""
    verdict, name = trend.verdict, html(trend.scenario)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{html(POLICY)}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{verdict.value}: {name}</title><style>{STYLE}</style></head>"
        f'<body class="{_CLASSES.get(verdict, "passed")}"><header>'
        f'<div class="banner"><span class="verdict">{verdict.value.upper()}</span><h1>{name}</h1></div>'
        f'<p class="why">{html(trend.reason)}</p>{_about(trend)}</header><main>'
        f"{_numbers(trend)}{_pictures(trend, last)}{_changes(trend)}{_apart(trend)}{_runs(trend, last)}"
        "</main><footer><p>Every night is judged as it would have been then, against the runs before it.</p></footer>"
        "</body></html>\n"
    )


def _about(trend: Trend) -> str:
    if not trend.nights:
        return ""
    first, newest = trend.nights[0], trend.nights[-1]
    return (
        f'<p class="sub">{len(trend.nights)} like runs from {first.started:%Y-%m-%d} to'
        f" {newest.started:%Y-%m-%d %H:%M} UTC, the newest {html(newest.run_id)}</p>"
    )


def _numbers(trend: Trend) -> str:
    rows = []
    for track in trend.tracks:
        change, word, level = newest_change(track), state(trend, track), usual(track)
        css = "miss" if word == "REGRESSION" else "ok" if word == "improved" else ""
        rows.append(
            [
                text(track.name),
                number(level, shown(track.measure, level)),
                number(track.values[-1], shown(track.measure, track.values[-1])),
                number(change, "–" if change is None else amount(track.measure, change)),
                f'<td class="n">{100 * track.limit:g} {"points" if track.measure is Measure.ERROR_RATE else "%"}</td>',
                f'<td class="{css}">{word or "as usual"}</td>',
            ]
        )
    head = ("metric", "usual", "newest", "change", "limit", "")
    return section("numbers", "The newest run", table("metrics of the newest run", head, rows, last_words=1))


def _pictures(trend: Trend, last: int) -> str:
    shown_tracks = trend.tracks[:CHARTS_MAX]
    more = [note(f"{len(trend.tracks) - CHARTS_MAX} more are not shown.")] if len(trend.tracks) > CHARTS_MAX else []
    legend = note(
        "Dashed lines: between them nothing is suspected. Vertical lines and crosses: confirmed changes, from their"
        " first run on. Dots: one run alone, suspected."
    )
    pictures = [_figure(trend, track, number, last) for number, track in enumerate(shown_tracks)]
    return section("pictures", "Night by night", legend, *pictures, *more)


def _figure(trend: Trend, track: Track, serial: int, last: int) -> str:
    chart = chart_of(trend, track, f"c{serial}", last)
    return (
        f'<figure><figcaption><strong>{chart.title}</strong></figcaption><div class="plot">{svg(chart)}</div></figure>'
    )


def chart_of(trend: Trend, track: Track, chart_id: str, last: int) -> Chart:
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
        description="One value per run, oldest first, with the range in which a run is as usual.",
        x=_dates(trend, first),
        y=linear_axis(max(heights, default=1.0) * 1.05 or 1.0, unit=_unit(track.measure)),
        lines=(
            *(Line(name="", css="s5", points=bound) for bound in bounds),
            Line(name=_NAMES.get(track.measure, track.measure.value), css="s1", points=values),
        ),
        marks=tuple(Mark(at=float(start), label=_mark(trend, start)) for start in _starts(track, first)),
        dots=tuple(_dots(trend, track, first, unit)),
    )


def _dates(trend: Trend, first: int) -> Axis:
    numbers = range(first, len(trend.nights))
    every = -(-len(numbers) // _LABELS) or 1
    days = {trend.nights[night].started.date() for night in numbers}
    form = "%m-%d" if len(days) > 1 else "%H:%M"
    ticks = tuple((float(night), trend.nights[night].started.strftime(form)) for night in numbers[::every])
    return Axis(low=float(first), high=float(max(len(trend.nights) - 1, first + 1)), ticks=ticks)


def _unit(measure: Measure) -> str:
    return {Measure.QPS: "", Measure.MAX_CONCURRENCY: "", Measure.ERROR_RATE: " %"}.get(measure, " ms")


def _starts(track: Track, first: int) -> list[int]:
    return [track.nights[shift.start] for shift in track.course.shifts if track.nights[shift.start] >= first]


def _mark(trend: Trend, start: int) -> str:
    return f"since {trend.nights[start].started:%m-%d}"


def _dots(trend: Trend, track: Track, first: int, unit: float) -> Iterator[Dot]:
    certain: set[int] = set()
    for shift in track.course.shifts:
        word = "worse" if track.is_worse(shift.size) else "better"
        certain.update(range(shift.start, shift.confirmed + 1))
        for place in range(shift.start, shift.confirmed + 1):
            yield from _dot(trend, track, place, first, unit, word, cross=True)
    for place in sorted(set(track.course.suspected) - certain):
        yield from _dot(trend, track, place, first, unit, "suspected", cross=False)


def _dot(trend: Trend, track: Track, place: int, first: int, unit: float, word: str, *, cross: bool) -> Sequence[Dot]:
    night = track.nights[place]
    if night < first:
        return ()
    css = "s3" if word == "better" else "s2"
    label = f"{word}: {html(trend.nights[night].run_id)}"
    return (Dot(x=float(night), y=unit * track.values[place], css=css, label=label, cross=cross),)


def _changes(trend: Trend) -> str:
    rows = []
    for step in reversed(trend.steps):
        facts = trend.changed_at(step.start)
        said = "; ".join(f"{name}: {a or 'not known'} → {b or 'not known'}" for name, (a, b) in facts.items())
        rows.append(
            [
                f'<td class="w">{trend.nights[step.start].started:%Y-%m-%d}</td>',
                text(trend.nights[step.start].run_id),
                text(step.track.name),
                f'<td class="{"miss" if step.worse else "ok"}">{amount(step.track.measure, step.change)}</td>',
                text(said or "nothing that is recorded", 1_000),
            ]
        )
    if not rows:
        return section("changes", "Changes", note("None."))
    head = ("since", "run", "metric", "change", "what else changed with it")
    return section("changes", "Changes", table("confirmed changes, newest first", head, rows, words=5))


def _apart(trend: Trend) -> str:
    """Runs that are not like these."""
    rows = [
        [
            f'<td class="w">{other.newest.started:%Y-%m-%d}</td>',
            text(other.newest.run_id),
            f'<td class="n">{other.runs}</td>',
            text("; ".join(f"{one.key}: {_set(one.a)} there, {_set(one.b)} here" for one in other.differences), 1_000),
        ]
        for other in reversed(trend.others)
    ]
    parts = [table("other series", ("until", "newest run", "runs", "differs in"), rows, words=2, last_words=1)]
    if trend.left_out:
        left = ", ".join(f"{count} {html(why)}" for why, count in sorted(trend.left_out.items()))
        parts.append(note(f"Part of no series: {left}."))
    return section("apart", "Not compared with these", *parts) if rows or trend.left_out else ""


def _set(value: object) -> str:
    return "not set" if value is None else str(value)


def _runs(trend: Trend, last: int) -> str:
    rows = []
    first = max(len(trend.nights) - min(last, ROWS_MAX), 0)
    whole = [track for track in trend.tracks if track.statement is None]
    for night in reversed(range(first, len(trend.nights))):
        values = [trend.nights[night].values.get((None, track.measure)) for track in whole]
        rows.append(
            [
                f'<td class="w">{trend.nights[night].started:%Y-%m-%d %H:%M}</td>',
                text(trend.nights[night].run_id),
                *(number(value, shown(track.measure, value)) for track, value in zip(whole, values, strict=True)),
            ]
        )
    head = ("made (UTC)", "run", *(track.measure.value for track in whole))
    return section("runs", "Runs", table("runs of this series, newest first", head, rows, words=2))
