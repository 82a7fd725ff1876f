"""Charts of the HTML report: over time, with the values for the cursor; distribution of response times.

A line connects known values. It is interrupted where workers stored nothing. The first and the last second have no
rate, because only a part of them is known; the line skips them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from loadgen.metrics.connections import LoginCounts
from loadgen.metrics.histogram import HIGHEST_NS, LOWEST_NS, Histogram, group_of
from loadgen.model.threshold import InvalidThreshold, ThresholdCheck, ThresholdMetric, parse_threshold, threshold_words
from loadgen.report import formatting
from loadgen.report.formatting import html, html_name
from loadgen.report.page import figure, note, number, table
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
from loadgen.report.run_plan import Corner, level_at, planned_levels, planned_rates
from loadgen.report.svg import (
    LANE,
    Axis,
    Chart,
    ChartBand,
    ChartLimit,
    ChartLine,
    ChartMarker,
    Point,
    clock,
    lanes_for,
    linear_axis,
    log_axis,
    time_axis,
)
from loadgen.units import NS_PER_MS
from loadgen.values import dataclass

MARKS_MAX = 80
LANES_MAX = 3  # lines of labels of marks
LOG_FROM = 25.0  # from this ratio of the highest value to the median on, the axis is logarithmic
LIMIT_REACH = 2.0  # a limit up to this multiple of the highest value is on the axis; a higher one is shown by an arrow
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


# --- limits ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCheck:
    """A threshold of a run, as its charts show it."""

    check: ThresholdCheck
    passed: bool | None  # None: undecided
    window_s: float | None


def checks_of(summary: Mapping[str, Any]) -> list[JudgedCheck]:
    """The thresholds of a run whose texts can be parsed."""
    found = []
    for one in summary["thresholds"]:
        try:
            check = parse_threshold(one["check"])
        except InvalidThreshold:
            continue
        passed = None if formatting.is_unknown(one) else bool(one["passed"])
        found.append(JudgedCheck(check=check, passed=passed, window_s=one.get("window_seconds")))
    return found


def limit_of(judged: JudgedCheck, css: str = "", span: tuple[float, float] | None = None) -> ChartLimit:
    check, passed = judged.check, judged.passed
    value = 100 * check.limit if check.metric is ThresholdMetric.ERROR_RATE else check.limit
    words = threshold_words(html(check.text, 80), judged.window_s)
    label = f"{'?' if passed is None else '✓' if passed else '✗'} {words}"
    return ChartLimit(value=value, label=label, css=f"{css} missed" if passed is False else css, span=span)


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
        self._axis = time_axis(self._end_s)
        levels = [event.at_s for event in self.events if event.kind is EventKind.LEVEL]
        self._bands = (*_bands(self.points, levels), *_stalls(record.summary, self.points, levels))

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
        corners = planned_levels(self._record, float(self._record.seconds[-1].end_s))
        if not corners:
            targets = [one.target for one in self.points]
            return self.track("target", "s3", targets, formatting.count, stepped=True)
        return self._planned("target", "s3", corners, formatting.count)

    def _planned(self, name: str, css: str, corners: Sequence[Corner], shown: Format, unit: str = "") -> ChartSeries:
        end_s = float(self._record.seconds[-1].end_s)  # a run may end before its plan
        drawn = (*(corner for corner in corners if corner[0] < end_s), (end_s, level_at(corners, end_s)))
        values = [level_at(corners, (point.at_s + point.end_s) / 2) for point in self.points]
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
        return self._per_second("logins", "Connections opened again, and logins refused, per second", counts)

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
    ) -> str:
        marks = tuple(_mark(event, labelled=labelled) for event in self.events[:MARKS_MAX])
        lanes = lanes_for(marks, self._axis, width, LANES_MAX) + (1 if labelled and limits else 0)
        chart = Chart(
            chart_id=name,
            title=title,
            description=described(tracks),
            x=self._axis,
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
            bands=self._bands,
            marks=marks,
            limits=tuple(limits),
            height=height + LANE * (lanes - 1),
            width=width,
            lanes=lanes,
        )
        places = [(point.at_s + point.end_s) / 2 for point in self.points]
        shown = [[track.shown(value) for value in track.values] for track in tracks]
        self._hover.add(chart, f"time-{chart.right}", zip(places, map(_moment, self.points), strict=True), shown)
        return figure(chart, [(track.css, html(track.name, 200), track.unit) for track in tracks], "time")

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


def _bands(points: Sequence[RunSecond], levels: Sequence[float]) -> tuple[ChartBand, ...]:
    """Bands for the phases that are not measured."""
    bands, measured = [], False
    for phase, start, end in spans(points):
        if phase != MEASUREMENT:
            label = html(_phase(phase, measured), 40)
            bands.append(ChartBand(start=_exact(start, levels), end=_exact(end, levels), label=label, css="warmup"))
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
    return linear_axis(max([highest, *near]))


# --- The distribution of response times: two charts, and the number of samples in each range -------------------------

BARS_MAX = 56
CURVES_MAX = 4  # for single statements
RANGES_MAX = 12
RANGED_MAX = 6  # statements with a separate column
WIDTH = 540


def percentile_curve(record: RunRecord) -> str:
    """The response time of each percentile, with a stretched tail."""
    assert record.merged is not None
    whole, statements = record.merged.tally.whole, record.merged.tally.statements
    curves = [("all" if len(statements) > 1 else "response", _curve(*whole.responses))]
    if record.summary["lag_ms"]:
        curves.append(("service", _curve(*whole.services)))
    elif len(statements) > 1:
        busiest = sorted(statements, key=lambda name: (-statements[name].succeeded.response.count, name))[:CURVES_MAX]
        for name in (name for name in record.statement_names() if name in busiest):
            curves.append((name, _curve(*statements[name].responses)))
    points = [point for _, curve in curves for point in curve]
    if not points:
        return ""
    furthest = max(x for x, _ in points)
    ticks = [(0.0, "0"), *((_tail(p), f"{100 * p:.6g}") for p in (0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999))]
    shown = tuple(tick for tick in ticks if tick[0] <= furthest + 0.02)
    heights = [y for _, y in points if y is not None]
    chart = Chart(
        chart_id="curve",
        title="Percentile curve, ms",
        description="Response time by percentile; the table of times has the same numbers.",
        x=Axis(low=0.0, high=max(furthest, 0.31), ticks=shown),
        y=log_axis(min(heights), max(heights)),
        lines=tuple(ChartLine(name="", css=f"s{number}", points=curve) for number, (_, curve) in enumerate(curves, 1)),
        x_title="percent of the samples",
        width=WIDTH,
        height=270,
    )
    return figure(chart, [(f"s{number}", html_name(name, 200), "") for number, (name, _) in enumerate(curves, 1)])


def _curve(succeeded: Histogram, cut_off: Histogram) -> tuple[Point, ...]:
    """The known part of the curve: up to the last sample, or to the first one that was cut off."""
    everything, done, points = succeeded + cut_off, 0, []
    for bucket in np.flatnonzero(everything.counts).tolist():
        if cut_off.counts[bucket]:
            break
        low_ns, high_ns = everything.span_ns(bucket)
        value_ms = (low_ns + high_ns) / 2 / NS_PER_MS
        points.append((_tail(done / everything.count), value_ms))
        done += int(everything.counts[bucket])
        if done < everything.count:
            points.append((_tail(done / everything.count), value_ms))
    return tuple(points)


def _tail(fraction: float) -> float:
    return -math.log10(1.0 - fraction)


def histogram_chart(record: RunRecord) -> str:
    """The histogram of response times."""
    assert record.merged is not None
    times = record.merged.tally.whole.succeeded.response
    used = np.flatnonzero(times.counts).tolist()
    if not used:
        return ""
    first, last = used[0], used[-1]
    size = times.coarseness * max(math.ceil((last - first + 1) / BARS_MAX / times.coarseness), 1)
    heights: dict[int, int] = {}
    for bucket in used:
        group = group_of(bucket, size)
        heights[group] = heights.get(group, 0) + int(times.counts[bucket])
    bars = tuple((*_group_ms(group, size), 100 * count / times.count) for group, count in sorted(heights.items()))
    low_ms, high_ms = max(bars[0][0], 0.001), bars[-1][1]
    latency = record.summary["latency_ms"]
    marks = tuple(
        ChartMarker(at=latency[name], label=title)
        for name, title in formatting.PERCENTILES.items()
        if name in ("p50", "p95", "p99") and latency[name] is not None
    )
    chart = Chart(
        chart_id="histogram",
        title="Distribution of response times, percent of the samples",
        description=html(
            f"Half of the samples took {formatting.ms(latency['p50'])} ms or less;"
            f" shortest {formatting.ms(latency['min'])} ms, longest {formatting.ms(latency['max'])} ms."
        ),
        x=log_axis(low_ms, high_ms),
        y=linear_axis(max(height for _, _, height in bars), unit=" %"),
        bars=bars,
        marks=marks,
        x_title="response time, ms",
        width=WIDTH,
        height=270,
    )
    return figure(chart, [])


def _group_ms(group: int, size: int) -> tuple[float, float]:
    first = (group - 1) * size + 1
    last = min(first + size - 1, len(HIGHEST_NS) - 2)
    return int(LOWEST_NS[first]) / NS_PER_MS, (int(HIGHEST_NS[last]) + 1) / NS_PER_MS


# --- ranges ----------------------------------------------------------------------------------------------------------


def ranges(record: RunRecord) -> str:
    """The number of samples in ranges of response times, for all statements and for those with the highest weights."""
    assert record.merged is not None
    whole, statements = record.merged.tally.whole.succeeded.response, record.merged.tally.statements
    if not whole.count:
        return ""
    edges_ms = range_edges_ms(whole.min_ns / NS_PER_MS, whole.max_ns / NS_PER_MS)
    counts = range_counts(whole, edges_ms)
    names = record.statement_names()[:RANGED_MAX] if len(statements) > 1 else []
    columns = [(statements[name].succeeded.response, name) for name in names if name in statements]
    shares = [[count / max(own.count, 1) for count in range_counts(own, edges_ms)] for own, _ in columns]
    used = [place for place, count in enumerate(counts) if count]
    rows, below = [], 0
    for place in range(used[0], used[-1] + 1):
        count = counts[place]
        below += count
        rows.append(
            [
                f'<td class="w">{_bound(edges_ms[place])} to {_bound(edges_ms[place + 1])}</td>',
                number(count, formatting.count(count)),
                f'<td class="n">{formatting.percent(count / whole.count)}</td>',
                f"<td>{_bar(count / max(counts))}</td>",
                f'<td class="n">{formatting.percent(below / whole.count)}</td>',
                *(f'<td class="n">{formatting.percent(share[place])}</td>' for share in shares),
            ]
        )
    head = ["range", "samples", "share", "", "up to here", *(html_name(name, 200) for _, name in columns)]
    body = table("Response times by range, of statements that succeeded", head, rows)
    return body + note(
        "Counts come from buckets that are 2 % wide: a sample within 1 % of an edge may count on the other side."
    )


def range_edges_ms(low_ms: float, high_ms: float) -> list[float]:
    """Edges of at most RANGES_MAX ranges around these times: of equal width within a decade, else on a 1-2-5 scale."""
    low_ms, high_ms = max(low_ms, 0.001), max(high_ms, low_ms, 0.001)
    if high_ms < 10 * low_ms:
        for step in (float(f"{factor}e{power}") for power in range(-4, 15) for factor in (1, 2, 5)):
            first, last = math.floor(low_ms / step), math.floor(high_ms / step) + 1
            if last - first <= RANGES_MAX:
                return [round(step * place, 6) for place in range(first, last + 1)]
    for factors in ((1, 2, 5), (1,)):
        scale = [float(f"{factor}e{power}") for power in range(-3, 15) for factor in factors]
        first, last = bisect_right(scale, low_ms) - 1, bisect_right(scale, high_ms)
        edges = scale[first : last + 1]
        if len(edges) <= RANGES_MAX + 1:
            break
    return edges


def range_counts(times: Histogram, edges_ms: Sequence[float]) -> list[int]:
    """The number of samples between each two edges; a bucket counts at its middle."""
    counts = [0] * (len(edges_ms) - 1)
    for bucket in np.flatnonzero(times.counts).tolist():
        low_ns, high_ns = times.span_ns(bucket)
        middle_ms = math.sqrt(max(low_ns, 1) * max(high_ns, 1)) / NS_PER_MS
        place = bisect_right(edges_ms, middle_ms) - 1
        counts[min(max(place, 0), len(counts) - 1)] += int(times.counts[bucket])
    return counts


def _bound(edge_ms: float) -> str:
    return f"{edge_ms:g} ms" if edge_ms < 1_000 else f"{edge_ms / 1_000:g} s"


def _bar(share: float) -> str:
    """A bar; `share` is its part of the longest bar."""
    return (
        '<svg class="share" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="bar" width="{100 * share:.1f}" height="8"/></svg>'
    )
