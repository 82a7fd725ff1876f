"""A trend for people: verdict first, then each metric as a line of small bars, then what changed when. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loadgen.log import plain
from loadgen.report import figures
from loadgen.report.limits import Measure
from loadgen.report.trend import Step, Track, Trend, amount

FACTS_SHOWN = 6
OTHERS_SHOWN = 5
NAME_MAX = 30

_BARS = "▁▂▃▄▅▆▇█"
_HEAD = ("", "", "usual", "newest", "change", "")


def trend_text(trend: Trend, last: int) -> str:
    """Plain text; the bars are the last so many nights, oldest first."""
    parts = [
        f"{trend.verdict.value.upper()}  {_line(trend.reason, 500)}",
        *_runs(trend),
        *([""] if trend.tracks else []),
        *_table(trend, last),
        *_changes(trend),
    ]
    return "\n".join(parts)


def shown(measure: Measure, value: float | None) -> str:
    """A value with its unit."""
    if value is None:
        return figures.count(None)
    match measure:
        case Measure.ERROR_RATE:
            return figures.percent(value)
        case Measure.QPS:
            return f"{figures.rate(value)}/s"
        case Measure.MAX_CONCURRENCY:
            return figures.count(value)
    return f"{figures.ms(value)} ms"


def usual(track: Track) -> float | None:
    """What the newest value was measured against; None: too few are known."""
    course = track.course
    baseline = course.baselines[-1] if course.baselines else None
    if course.shifts and course.shifts[-1].confirmed == len(course.baselines) - 1:
        baseline = course.shifts[-1].before
    return None if baseline is None else track.value(baseline.centre)


def newest_change(track: Track) -> float | None:
    level = usual(track)
    if level is None:
        return None
    value = track.values[-1]
    return value - level if track.measure is Measure.ERROR_RATE else value / level - 1


def state(trend: Trend, track: Track) -> str:
    """A word for the newest night of one metric."""
    for step in trend.steps:
        if step.track is track and step.new:
            return "REGRESSION" if step.worse else "improved"
    if any(one is track for one, _ in trend.suspicions):
        return "suspected"
    if usual(track) is None:
        return "learning"
    return ""


def _runs(trend: Trend) -> Iterator[str]:
    nights = trend.nights
    if nights:
        key = nights[-1].key
        size = f", warehouse {_line(key.warehouse_size, 40)}" if key.warehouse_size else ""
        yield (
            f"  {_line(trend.scenario, 60)}: {len(nights)} like runs from {nights[0].started:%Y-%m-%d}"
            f" to {nights[-1].started:%Y-%m-%d %H:%M} UTC, the newest {nights[-1].run_id}"
        )
        yield f"  driver {key.driver_major}, workers {key.workers}, cores {key.cores or '?'}{size}"
    for other in trend.others[-OTHERS_SHOWN:]:
        keys = [_line(one.key, 60) for one in other.differences]
        apart = ", ".join(keys[:FACTS_SHOWN]) + (", …" if len(keys) > FACTS_SHOWN else "")
        yield (
            f"  apart: {other.runs} runs until {other.newest.started:%Y-%m-%d}, which differ in"
            f" {apart or 'a setting of the scenario'}"
        )
    if trend.left_out:
        yield f"  left out: {', '.join(f'{count} {why}' for why, count in sorted(trend.left_out.items()))}"
    if trend.last_left_out:
        yield f"  the last of them: {_line(trend.last_left_out, 500)}"


def _table(trend: Trend, last: int) -> Iterator[str]:
    if not trend.tracks:
        return
    rows = [_HEAD, *(_row(trend, track, last) for track in trend.tracks)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    for row in rows:
        yield "  ".join(
            f"{cell:<{width}}" if number in (0, 1, len(_HEAD) - 1) else f"{cell:>{width}}"
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()


def _row(trend: Trend, track: Track, last: int) -> tuple[str, ...]:
    change = newest_change(track)
    return (
        _line(track.name, NAME_MAX),
        bars(track.values[-last:]),
        shown(track.measure, usual(track)),
        shown(track.measure, track.values[-1]),
        "-" if change is None else amount(track.measure, change),
        state(trend, track),
    )


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
        yield f"  {night.started:%Y-%m-%d}  {night.run_id}"
        yield from (f"    {_step(step)}" for step in together)
        facts = trend.changed_at(start)
        said = [f"{_line(name, 60)} {_fact(a)} → {_fact(b)}" for name, (a, b) in facts.items()]
        more = f" and {len(said) - FACTS_SHOWN} more" if len(said) > FACTS_SHOWN else ""
        yield f"    with it changed: {', '.join(said[:FACTS_SHOWN]) or 'nothing that is recorded'}{more}"


def _step(step: Step) -> str:
    track = step.track
    before, after = track.value(step.shift.before.centre), track.value(step.shift.after)
    word = "worse" if step.worse else "better"
    return (
        f"{_line(track.name, NAME_MAX)} {amount(track.measure, step.change)}, {word}: {shown(track.measure, before)}"
        f" → {shown(track.measure, after)}"
    )


def _fact(value: str | None) -> str:
    return "not known" if value is None else _line(value, 60)


def _line(text: str, limit: int) -> str:
    return plain(" ".join(text.split()), limit)
