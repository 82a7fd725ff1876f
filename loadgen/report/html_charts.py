"""Charts of the HTML report that have an axis of time, and what its script shows under the cursor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadgen.report import figures
from loadgen.report.foreign import html
from loadgen.report.html_parts import figure
from loadgen.report.record import RunRecord
from loadgen.report.svg import Axis, Band, Chart, Line, clock, linear_axis, log_axis, time_axis
from loadgen.report.timeline import Second, spans, thin
from loadgen.scenario.scenario import LoadMode

POINTS_MAX = 300
MARKS_MAX = 60
LOG_FROM = 25.0  # the highest value is so many times the median: then a linear axis would show nothing else
MEASUREMENT = "MEASUREMENT"

Values = Sequence[float | None]
Format = Callable[[float | None], str]


@dataclass(frozen=True, slots=True)
class Hover:
    """What the script shows under the cursor, by chart. Charts with one axis move together."""

    axes: dict[str, Any] = field(default_factory=dict)
    charts: dict[str, Any] = field(default_factory=dict)

    def add(self, chart: Chart, axis: str, places: Iterable[tuple[float, str]], shown: Sequence[Sequence[str]]) -> None:
        if axis not in self.axes:
            known = list(places)
            self.axes[axis] = {"px": [round(chart.px(x), 1) for x, _ in known], "at": [label for _, label in known]}
        values = [[None if value == figures.NONE else value for value in line] for line in shown]
        self.charts[chart.chart_id] = {"axis": axis, "values": values}


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One line over time."""

    name: str
    css: str
    values: Values
    shown: Format
    unit: str = ""
    stepped: bool = False
    filled: bool = False


# --- over time -------------------------------------------------------------------------------------------------------


class Timeline:
    """Charts with one axis of time."""

    def __init__(self, record: RunRecord, hover: Hover) -> None:
        self._record, self._hover = record, hover
        self.points = thin(record.seconds, POINTS_MAX)
        last = record.seconds[-1]
        self._end_s = float(last.at_s + last.length_s)
        self._axis = time_axis(self._end_s)

    @property
    def joined_s(self) -> int:
        return max(point.length_s for point in self.points)

    def throughput(self) -> str:
        done = Track(
            name="done", css="s1", values=self._of(lambda one: one.qps), shown=figures.rate, unit="/s", filled=True
        )
        planned = self._planned_rate()
        tracks = [done]
        if any(value is not None for value in planned):
            tracks.append(
                Track(name="offered", css="s4", values=planned, shown=figures.rate, unit="/s", stepped=True),
            )
        return self._chart("qps", "Throughput, succeeded per second", tracks, marked=True)

    def latency(self) -> str:
        tracks = [
            Track(
                name=name,
                css=css,
                values=self._of(lambda one, per_mille=per_mille: one.response_ms(per_mille)),  # type: ignore[misc]
                shown=figures.ms,
                unit=" ms",
            )
            for name, per_mille, css in (("p50", 500, "s1"), ("p95", 950, "s2"), ("p99", 990, "s4"))
        ]
        return self._chart("latency", "Response time, ms", tracks)

    def connections(self) -> str:
        tracks = [
            Track(
                name="executing", css="s1", values=self._of(lambda one: one.executing), shown=figures.count, filled=True
            ),
            Track(name="target", css="s3", values=self._of(lambda one: one.target), shown=figures.count, stepped=True),
        ]
        return self._chart("connections", "Connections", tracks, height=140)

    def failures(self) -> str:
        """Empty when nothing failed."""
        kinds = [("failed", "s2"), ("skipped", "s4"), ("cancelled", "s5")]
        tracks = [
            Track(
                name=name,
                css=css,
                values=self._of(lambda one, name=name: getattr(one.counts, name) / one.length_s),  # type: ignore[misc]
                shown=figures.rate,
                unit="/s",
            )
            for name, css in kinds
            if any(getattr(second.counts, name) for second in self.points)
        ]
        return self._chart("failures", "Not succeeded, per second", tracks, height=140) if tracks else ""

    def client(self) -> str:
        values = self._of(lambda one: one.cpu_percent)
        if not any(value is not None for value in values):
            return ""
        track = Track(name="CPU", css="s3", values=values, shown=figures.plain_percent)
        return self._chart("cpu", "CPU of the busiest worker, percent of a core", [track], height=130)

    def _of(self, value: Callable[[Second], float | None]) -> list[float | None]:
        return [value(point) for point in self.points]

    def _chart(self, name: str, title: str, tracks: Sequence[Track], *, height: int = 190, marked: bool = False) -> str:
        places = [point.at_s + point.length_s / 2 for point in self.points]
        chart = Chart(
            chart_id=name,
            title=title,
            description=_described(tracks),
            x=self._axis,
            y=_value_axis([value for track in tracks for value in track.values]),
            lines=tuple(
                Line(
                    name=track.name,
                    css=track.css,
                    points=tuple(zip(places, track.values, strict=True)),
                    stepped=track.stepped,
                    filled=track.filled,
                )
                for track in tracks
            ),
            bands=_bands(self.points),
            marks=self._marks() if marked else tuple((at_s, "") for at_s, _ in self._marks()),
            height=height,
        )
        shown = [[track.shown(value) for value in track.values] for track in tracks]
        self._hover.add(chart, "time", zip(places, map(_moment, self.points), strict=True), shown)
        return figure(chart, [(track.css, track.name, track.unit) for track in tracks], "time")

    def _marks(self) -> tuple[tuple[float, str], ...]:
        inside = [mark for mark in self._record.marks if 0 < mark.at_s < self._end_s]
        return tuple((mark.at_s, html(mark.label, 40)) for mark in inside[:MARKS_MAX])

    def _planned_rate(self) -> list[float | None]:
        """What was to be offered in each second of the measurement."""
        scenario = self._record.scenario
        nothing: list[float | None] = [None] * len(self.points)
        if scenario is None or scenario.load.mode is not LoadMode.RATE:
            return nothing
        begin = next((point.at_s for point in self.points if point.phase == MEASUREMENT), None)
        if begin is None:
            return nothing
        planned = []
        for point in self.points:
            left_s, rate = point.at_s - begin, None
            for level in scenario.load.levels if left_s >= 0 else ():
                rate = level.rate_per_second
                left_s -= math.ceil(level.duration_s)
                if left_s < 0:
                    break
            planned.append(rate)
        return planned


def _moment(point: Second) -> str:
    end = f" – {clock(point.at_s + point.length_s)}" if point.length_s > 1 else ""
    return f"at {clock(point.at_s)}{end}, {_phase(point.phase or '', False)}"


def _bands(points: Sequence[Second]) -> tuple[Band, ...]:
    bands, measured = [], False
    for phase, start, end in spans(points):
        css = "measured" if phase == MEASUREMENT else "warmup"
        bands.append(Band(start=start, end=end, label=html(_phase(phase, measured), 40), css=css))
        measured = measured or phase == MEASUREMENT
    return tuple(band for band in bands if band.css != "measured")


def _phase(phase: str, again: bool) -> str:
    """A warm-up between two steps is the time in which the next one settles."""
    names = {"WARMUP": "settling" if again else "warm-up", MEASUREMENT: "measured"}
    return names.get(phase, phase.lower())


def _described(tracks: Sequence[Track]) -> str:
    said = []
    for track in tracks:
        known = sorted(value for value in track.values if value is not None)
        if known:
            low, middle, high = (track.shown(value) for value in (known[0], known[len(known) // 2], known[-1]))
            said.append(
                f"{track.name}: lowest {low}{track.unit}, median {middle}{track.unit}, highest {high}{track.unit}"
            )
    return html("; ".join(said) or "nothing was measured", 1_000)


def _value_axis(values: Values) -> Axis:
    known = sorted(value for value in values if value is not None)
    positive = [value for value in known if value > 0]
    if positive and known[-1] > LOG_FROM * positive[len(positive) // 2] and len(positive) == len(known):
        return log_axis(positive[0], positive[-1])
    return linear_axis(known[-1] if known else 1.0)


def warehouse_chart(record: RunRecord, hover: Hover) -> str:
    """Statements that ran and that waited, as the warehouse itself counted them."""
    polls = [poll for poll in record.polls if poll.at_s >= 0]
    step = -(-len(polls) // POINTS_MAX) or 1
    polls = polls[::step]
    running: Values = [None if poll.running is None else float(poll.running) for poll in polls]
    queued: Values = [None if poll.queued is None else float(poll.queued) for poll in polls]
    tracks = [
        Track(name="running", css="s1", values=running, shown=figures.count, filled=True),
        Track(name="queued", css="s2", values=queued, shown=figures.count),
    ]
    places = [poll.at_s for poll in polls]
    end_s = max([*places, *(float(second.at_s + 1) for second in record.seconds[-1:])])
    chart = Chart(
        chart_id="polls",
        title="Statements in the warehouse",
        description=_described(tracks),
        x=time_axis(end_s),
        y=_value_axis([*running, *queued]),
        lines=tuple(
            Line(name=one.name, css=one.css, points=tuple(zip(places, one.values, strict=True)), filled=one.filled)
            for one in tracks
        ),
        height=150,
    )
    shown = [[track.shown(value) for value in track.values] for track in tracks]
    hover.add(chart, "polls", ((at_s, f"at {clock(at_s)}") for at_s in places), shown)
    return figure(chart, [(track.css, track.name, track.unit) for track in tracks])
