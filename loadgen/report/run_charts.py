"""Charts of the HTML report over time, with the values for the cursor.

A line connects known values. It is interrupted where workers stored nothing. The first and the last second have no
rate, because only a part of them is known; the line skips them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from itertools import chain, pairwise
from typing import Any

from loadgen.metrics.connections import LoginCounts
from loadgen.metrics.histogram import Histogram
from loadgen.model.threshold import InvalidThreshold, ThresholdCheck, ThresholdMetric, parse_threshold, threshold_words
from loadgen.report import formatting
from loadgen.report.formatting import html
from loadgen.report.html_page import figure
from loadgen.report.records import (
    REACH_PARTS,
    EventKind,
    RunEvent,
    RunRecord,
    RunSecond,
    is_gap,
    percentile_line,
    spans,
    thin,
)
from loadgen.report.svg import (
    Axis,
    Chart,
    ChartBand,
    ChartLimit,
    ChartLine,
    ChartMarker,
    Point,
    clock,
    linear_axis,
    log_axis,
    time_axis,
    with_lanes,
)
from loadgen.rules.plan import plan_run
from loadgen.scenario.model import LoadMode, Scenario
from loadgen.values import dataclass
from loadgen.workload.arrivals import rate_windows
from loadgen.workload.ramp import initial_connections

CHARTED_MAX = 6  # statements with a separate line in charts
MARKS_MAX = 80
_RANKS = {EventKind.START: 2, EventKind.STOP: 2, EventKind.LOST: 1}  # events that are marked first
LANES_MAX = 3  # lines of labels of marks
LOG_FROM = 25.0  # from this ratio of the highest value to the median on, the axis is logarithmic
LIMIT_REACH = (
    4.0  # a limit up to this multiple of the highest value is on the axis; a higher one is named above the chart
)
EDGE_S = 1.5  # maximum distance of the row in which a phase begins from the announced moment
AFTER_S = 10.0  # events up to this time after the last second are shown
MEASUREMENT = "MEASUREMENT"
RESPONSE = (
    ThresholdMetric.P50,
    ThresholdMetric.P90,
    ThresholdMetric.P95,
    ThresholdMetric.P99,
    ThresholdMetric.P999,
    ThresholdMetric.AVG,
    ThresholdMetric.MAX,
)

Values = Sequence[float | None]
Corner = tuple[float, float]  # second since the start of the run, value
Format = Callable[[float | None], str]


@dataclass(frozen=True, slots=True)
class HoverData:
    """The values that the script shows under the cursor, by chart. Charts with a common axis show the same moment."""

    axes: dict[str, Any] = field(default_factory=dict)
    charts: dict[str, Any] = field(default_factory=dict)

    def add(self, chart: Chart, axis: str, places: Iterable[tuple[float, str]], shown: Sequence[Sequence[str]]) -> None:
        if axis not in self.axes:
            known = list(places)
            self.axes[axis] = {"px": [round(chart.px(x), 1) for x, _ in known], "at": [label for _, label in known]}
        values = [[None if value == formatting.NONE else value for value in line] for line in shown]
        self.charts[chart.chart_id] = {"axis": axis, "values": values}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartSeries:
    """One line over time."""

    name: str
    css: str
    values: Values  # of each point
    drawn: tuple[Point, ...]
    shown: Format
    unit: str = ""
    stepped: bool = False
    filled: bool = False
    label: bool = True  # write the name at the end of the line, in addition to the legend

    @property
    def is_known(self) -> bool:
        return any(value is not None for value in self.values)


def statement_colours(record: RunRecord) -> dict[str, str]:
    """The statements with separate lines in charts, those with the highest weights, each with its class of colour."""
    measured = record.summary["statements"]
    heaviest = record.statement_names() if record.scenario is None else record.scenario.workload.heaviest(CHARTED_MAX)
    charted = [name for name in heaviest if name in measured][:CHARTED_MAX]
    return {name: f"s{number}" for number, name in enumerate(charted, start=1)}


# --- limits ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCheck:
    """A threshold of a run, as its charts show it."""

    check: ThresholdCheck
    outcome: str  # met, missed, undecided
    window_s: float | None


def checks_of(summary: Mapping[str, Any]) -> list[JudgedCheck]:
    """The thresholds of a run whose texts can be parsed."""
    found = []
    for one in summary["thresholds"]:
        try:
            check = parse_threshold(one["check"])
        except InvalidThreshold:
            continue
        outcome = formatting.outcome(one, summary)
        found.append(JudgedCheck(check=check, outcome=outcome, window_s=one.get("window_seconds")))
    return found


def limit_of(judged: JudgedCheck, css: str = "", span: tuple[float, float] | None = None) -> ChartLimit:
    check = judged.check
    value = 100 * check.limit if check.metric is ThresholdMetric.ERROR_RATE else check.limit
    words = threshold_words(html(check.text, 80), judged.window_s)
    css = f"{css} missed" if judged.outcome == "missed" else css
    return ChartLimit(value=value, label=f"{formatting.OUTCOME_SIGNS[judged.outcome]} {words}", css=css, span=span)


# --- over time -------------------------------------------------------------------------------------------------------


class Timeline:
    """Charts with a common time axis."""

    def __init__(self, record: RunRecord, hover: HoverData) -> None:
        self._record, self._hover = record, hover
        self.points = thin(record.seconds, record.span_s)
        last = record.seconds[-1]
        self.events = tuple(event for event in record.events if event.at_s <= last.end_s + AFTER_S)
        self._end_s = max([float(last.end_s), *(event.at_s for event in self.events)])
        self._reach_s = max(REACH_PARTS * record.span_s, self._end_s / REACH_PARTS)
        self.axis = time_axis(self._end_s)
        levels = [event.at_s for event in self.events if event.kind is EventKind.LEVEL]
        self.bands = (*_bands(self.points, levels), *_stalls(record.summary, self.points, levels))

    @property
    def joined_s(self) -> int:
        return max(point.length_s for point in self.points)

    def throughput(self) -> str:
        tracks = [self.track("qps", "s1", [one.qps for one in self.points], formatting.rate, unit="/s", filled=True)]
        offered = planned_rates(self._record.scenario)
        if offered:
            tracks.append(self._planned("offered", "s4", offered, formatting.rate, unit="/s"))
        return self.chart(
            "qps",
            "qps: statements that succeeded, per second",
            tracks,
            self._limits(ThresholdMetric.QPS),
            labelled=True,
        )

    def latency(self) -> str:
        times = [point.every_response for point in self.points]
        kinds = (("p50", 500, "s1"), ("p95", 950, "s2"), ("p99", 990, "s4"))
        tracks = [self.percentile(name, css, times, per_mille) for name, per_mille, css in kinds]
        known = [track for track in tracks if track.is_known]
        return self.chart("latency", "Response time, ms", known, self._limits(*RESPONSE)) if known else ""

    def connections(self) -> str:
        executing = [one.executing for one in self.points]
        tracks = [self.track("executing", "s1", executing, formatting.count, filled=True), self._target()]
        return self.chart("connections", "Connections", tracks, height=140)

    def _target(self) -> ChartSeries:
        """The announced number of connections with its ramps; if it is not known, that of the workers."""
        corners = planned_levels(self._record, planned_end_s(self._record))
        if not corners:
            targets = [one.target for one in self.points]
            return self.track("target", "s3", targets, formatting.count, stepped=True)
        return self._planned("target", "s3", corners, formatting.count)

    def _planned(self, name: str, css: str, corners: Sequence[Corner], shown: Format, unit: str = "") -> ChartSeries:
        end_s = planned_end_s(self._record)  # statements may still end after it
        drawn = (*(corner for corner in corners if corner[0] < end_s), (end_s, level_at(corners, end_s)))
        middles_s = [(point.at_s + point.end_s) / 2 for point in self.points]
        values = [level_at(corners, at_s) if at_s <= end_s else None for at_s in middles_s]
        return ChartSeries(name=name, css=css, values=values, drawn=drawn, shown=shown, unit=unit)

    def failures(self) -> str:
        """Charts of failures; empty if no statement failed, was skipped or cancelled."""
        kinds = [("failed", "s2"), ("skipped", "s4"), ("cancelled", "s5")]
        ended = [one.every_count for one in self.points]
        counts = {(name, css): [getattr(one, name) for one in ended] for name, css in kinds}
        failures = self._per_second("failures", "Not succeeded, per second", counts)
        if not failures:
            return ""
        rates = [None if one.error_rate is None else 100 * one.error_rate for one in ended]
        failed = self.track("error rate", "s2", rates, formatting.plain_percent)
        return (
            self.chart(
                "error-rate",
                "Error rate, percent of answered statements",
                [failed],
                self._limits(ThresholdMetric.ERROR_RATE),
                height=140,
            )
            + failures
        )

    def logins(self) -> str:
        """The chart of logins; empty if every connection was opened once and never lost."""
        logins = [one.logins or LoginCounts() for one in self.points]
        counts = {
            ("replaced as planned", "s3"): [sum(one.reopened.values()) - one.lost for one in logins],
            ("lost", "s2"): [one.lost for one in logins],
            ("refused", "s4"): [one.refused for one in logins],
        }
        return self._per_second("logins", "Connections replaced or lost, and logins refused, per second", counts)

    def _per_second(self, name: str, title: str, counts: Mapping[tuple[str, str], Sequence[int]]) -> str:
        """Rates of the counts that are not always 0; empty if there are none."""
        lengths_s = [point.length_s for point in self.points]
        tracks = [
            self.track(kind, css, [of / s for of, s in zip(own, lengths_s, strict=True)], formatting.rate, unit="/s")
            for (kind, css), own in counts.items()
            if any(own)
        ]
        return self.chart(name, title, tracks, height=140) if tracks else ""

    def client(self) -> str:
        track = self.track("CPU", "s3", [one.cpu_percent for one in self.points], formatting.plain_percent)
        title = "CPU of the busiest worker, percent of a core"
        return self.chart("cpu", title, [track], height=130) if track.is_known else ""

    # --- parts -------------------------------------------------------------------------------------------------------

    def track(self, name: str, css: str, values: Values, shown: Format, **more: Any) -> ChartSeries:
        """A line with a value for each point."""
        drawn = self._interrupted((place, place, value) for place, value in enumerate(values))
        return ChartSeries(name=name, css=css, values=values, drawn=drawn, shown=shown, **more)

    def percentile(self, name: str, css: str, times: Sequence[Histogram], per_mille: int, **more: Any) -> ChartSeries:
        """A percentile of the samples of each point; no values if most of the run has too few samples."""
        stretches = percentile_line(self.points, times, per_mille, self._reach_s)
        values: list[float | None] = [None] * len(self.points)
        for stretch in stretches:
            values[stretch.first : stretch.last + 1] = [stretch.value] * (stretch.last + 1 - stretch.first)
        if 2 * sum(value is not None for value in values) < len(values):
            return ChartSeries(name=name, css=css, values=[None] * len(values), drawn=(), shown=formatting.ms)
        drawn = self._interrupted((stretch.first, stretch.last, stretch.value) for stretch in stretches)
        return ChartSeries(name=name, css=css, values=values, drawn=drawn, shown=formatting.ms, unit=" ms", **more)

    def marks(self, *, labelled: bool = False) -> tuple[ChartMarker, ...]:
        return tuple(_mark(event, labelled=labelled) for event in self._marked)

    @property
    def unmarked(self) -> int:
        """The number of events without a mark."""
        return len(self.events) - len(self._marked)

    @property
    def _marked(self) -> tuple[RunEvent, ...]:
        """At most MARKS_MAX events in order of time: START and STOP, then lost workers, then the newest."""
        ranked = sorted(range(len(self.events)), key=lambda place: (_RANKS.get(self.events[place].kind, 0), place))
        return tuple(self.events[place] for place in sorted(ranked[-MARKS_MAX:]))

    def chart(
        self,
        name: str,
        title: str,
        tracks: Sequence[ChartSeries],
        limits: Sequence[ChartLimit] = (),
        *,
        height: int = 190,
        width: int = 960,
        labelled: bool = False,
        missing: str = "",
    ) -> str:
        drawn = Chart(
            chart_id=name,
            title=title,
            description=described(tracks),
            x=self.axis,
            y=value_axis([value for track in tracks for value in track.values], limits),
            lines=tuple(
                ChartLine(
                    name=html(track.name) if track.label else "",
                    css=track.css,
                    points=track.drawn,
                    stepped=track.stepped,
                    filled=track.filled,
                )
                for track in tracks
            ),
            bands=self.bands,
            marks=self.marks(labelled=labelled),
            limits=tuple(limits),
            height=height,
            width=width,
            both_sides=True,
        )
        chart = with_lanes(drawn, LANES_MAX, 1 if labelled and limits else 0)
        places = [(point.at_s + point.end_s) / 2 for point in self.points]
        shown = [[track.shown(value) for value in track.values] for track in tracks]
        self._hover.add(chart, f"time-{chart.right}", zip(places, map(_moment, self.points), strict=True), shown)
        keys = [(track.css, html(track.name, 200), track.unit) for track in tracks]
        return figure(chart, keys, "time", missing=missing)

    def _interrupted(self, values: Iterable[tuple[int, int, float | None]]) -> tuple[Point, ...]:
        """A line through the known values of (first point, last point, value), with gaps where nothing was stored."""
        drawn: list[Point] = []
        before: RunSecond | None = None
        for first, last, value in values:
            start, end = self.points[first], self.points[last]
            if before is not None and is_gap(before, start):
                drawn.append((float(before.end_s), None))
            if value is not None:
                drawn.append(((start.at_s + end.end_s) / 2, value))
            before = end
        return tuple(drawn)

    def _limits(self, *metrics: ThresholdMetric) -> list[ChartLimit]:
        """Limits of thresholds for all statements together; those of a stage over its time."""
        colours = {ThresholdMetric.P50: "s1", ThresholdMetric.P95: "s2", ThresholdMetric.P99: "s4"}
        spans_s: dict[str | None, tuple[float, float] | None] = {None: None}
        for stage in self._record.summary.get("stages") or ():
            spans_s[str(stage["name"])] = stage["starts_s"], stage["starts_s"] + stage["measured_seconds"]
        return [
            limit_of(judged, colours.get(judged.check.metric, ""), spans_s[judged.check.statement])
            for judged in checks_of(self._record.summary)
            if judged.check.statement in spans_s and judged.check.metric in metrics
        ]


def _mark(event: RunEvent, *, labelled: bool) -> ChartMarker:
    title = html(f"{clock(event.at_s)}: {event.text}", 300)
    return ChartMarker(
        at=event.at_s, label=html(event.label, 40) if labelled else "", title=title, css=event.kind.value
    )


def _moment(point: RunSecond) -> str:
    end = f" – {clock(point.end_s)}" if point.length_s > 1 else ""
    return f"at {clock(point.at_s)}{end}, {_phase(point.phase or '', False)}"


def _stalls(summary: Mapping[str, Any], points: Sequence[RunSecond], levels: Sequence[float]) -> tuple[ChartBand, ...]:
    """Spans in which every statement in flight was overdue; their times count from the start of the measurement."""
    known = (summary.get("stalls") or {}).get("spans_s", ())
    began_s = next((_exact(start, levels) for phase, start, _ in spans(points) if phase == MEASUREMENT), None)
    if began_s is None:
        return ()
    first_s, last_s = points[0].at_s, points[-1].end_s  # a stall may extend beyond the chart
    return tuple(
        ChartBand(
            start=max(first_s, began_s + start),
            end=min(last_s, began_s + end),
            label=f"stall {formatting.seconds(end - start)}",
            css="stall",
        )
        for start, end in known
    )


def _exact(edge: float, levels: Sequence[float]) -> float:
    """The announced moment of a phase near this edge, or else the edge: seconds have one phase each."""
    return min((level for level in levels if abs(level - edge) <= EDGE_S), key=lambda at: abs(at - edge), default=edge)


def _levels_at(edge: int, edges: Sequence[int], levels: Sequence[float]) -> list[float]:
    """The announced moments that belong to this end of a phase: a phase may be as short as a second."""
    return [level for level in levels if min(edges, key=lambda other: abs(other - level)) == edge]


def _bands(points: Sequence[RunSecond], levels: Sequence[float]) -> tuple[ChartBand, ...]:
    """Bands for the phases that are not measured."""
    bands, measured = [], False
    phases = spans(points)
    edges = [end for *_, end in phases]  # the first phase begins with START
    for phase, start, end in phases:
        if phase != MEASUREMENT:
            label = html(_phase(phase, measured), 40)
            first_s, last_s = (_exact(edge, _levels_at(edge, edges, levels)) for edge in (start, end))
            bands.append(ChartBand(start=first_s, end=last_s, label=label, css="warmup"))
        measured = measured or phase == MEASUREMENT
    return tuple(bands)


def _phase(phase: str, again: bool) -> str:
    """The name of a phase. A warm-up between two steps is called settling."""
    names = {"WARMUP": "settling" if again else "warm-up", MEASUREMENT: "measured"}
    return names.get(phase, phase.lower())


def described(tracks: Sequence[ChartSeries]) -> str:
    """A description of the lines for screen readers."""
    parts = []
    for track in tracks:
        known = sorted(value for value in track.values if value is not None)
        if known:
            low, middle, high = (track.shown(value) for value in (known[0], known[len(known) // 2], known[-1]))
            parts.append(
                f"{track.name}: lowest {low}{track.unit}, median {middle}{track.unit}, highest {high}{track.unit}"
            )
    return html("; ".join(parts) or "nothing was measured", 1_000)


def value_axis(values: Values, limits: Sequence[ChartLimit] = ()) -> Axis:
    """An axis for these values, and for limits that are not far above them."""
    known = sorted(value for value in values if value is not None)
    highest = known[-1] if known else 1.0
    near = [limit.value for limit in limits if limit.value <= LIMIT_REACH * highest]
    positive = [value for value in known if value > 0]
    if positive and highest > LOG_FROM * positive[len(positive) // 2] and len(positive) == len(known):
        return log_axis(min([positive[0], *(value for value in near if value > 0)]), max([highest, *near]))
    return linear_axis(max([highest, *near]), whole=all(float(value).is_integer() for value in (*known, *near)))


# --- the planned load: connections and rates, with their ramps --------------------------------------------------------


def planned_end_s(record: RunRecord) -> float:
    """The end of the planned load: of the plan or of the stored seconds, or STOP, whichever is earliest."""
    ends_s = [float(record.seconds[-1].end_s)]
    ends_s += [event.at_s for event in record.events if event.kind is EventKind.STOP]
    planned_s = None if record.scenario is None else plan_run(record.scenario.load).ends_s
    return max(min(ends_s if planned_s is None else [*ends_s, planned_s]), 0.0)


def planned_levels(record: RunRecord, end_s: float) -> tuple[Corner, ...]:
    """The corners of the planned number of connections over time: (second, connections). Empty if it is not known."""
    levels = sorted((event for event in record.events if event.connections is not None), key=lambda event: event.at_s)
    level = float(record.seconds[0].target)
    if record.scenario is not None and record.scenario.load.mode is not LoadMode.RATE:
        level = float(initial_connections(record.scenario.load))
    elif not levels:
        return ()
    corners = [(0.0, level)]
    for number, event in enumerate(levels):
        assert event.connections is not None
        next_s = min(levels[number + 1].at_s if number + 1 < len(levels) else end_s, end_s)
        if event.at_s > end_s:
            break
        reached_s = event.at_s + event.ramp_s
        target, done = float(event.connections), 1.0
        if reached_s > next_s:  # the next level begins, or the run ends, during the ramp
            done = (next_s - event.at_s) / event.ramp_s
        corners += [(event.at_s, level), (min(reached_s, next_s), level + done * (target - level))]
        level = corners[-1][1]
    return (*corners, (end_s, level))


def level_at(corners: Sequence[Corner], at_s: float) -> float:
    """The height of a line with these corners; where it jumps, after the jump."""
    found = corners[0][1]
    for (start_s, start), (stop_s, stop) in pairwise(corners):
        if start_s <= at_s:
            share = min((at_s - start_s) / (stop_s - start_s), 1.0) if stop_s > start_s else 1.0
            found = start + share * (stop - start)
    return found


def planned_rates(scenario: Scenario | None) -> tuple[Corner, ...]:
    """The corners of the planned rate of an open loop, from the warm-up on. Empty if there is none."""
    if scenario is None or scenario.load.mode is not LoadMode.RATE:
        return ()
    corners: list[Corner] = []
    at_s = 0.0
    for stage in chain.from_iterable(rate_windows(scenario.load)):
        corners.append((at_s, stage.first_rate_per_second))
        at_s += stage.duration_s
        corners.append((at_s, stage.rate_per_second))
    return tuple(corners)
