"""How response times spread, in the HTML report: two charts side by side, and how many fell into which range."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from loadgen.metrics.histogram import HIGHEST_NS, LOWEST_NS, Histogram, group_of
from loadgen.report import formatting
from loadgen.report.formatting import html, html_name
from loadgen.report.page import figure, note, number, table
from loadgen.report.records import RunRecord
from loadgen.report.svg import Axis, Chart, ChartLine, ChartMarker, Point, linear_axis, log_axis
from loadgen.units import NS_PER_MS

BARS_MAX = 56
CURVES_MAX = 4  # of single statements
RANGES_MAX = 12
RANGED_MAX = 6  # statements with a separate column
WIDTH = 540


def percentile_curve(record: RunRecord) -> str:
    """How long the fastest 50, 90, 99 … percent took at most: the tail is drawn out."""
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
    """As far as a sample lies above it, and none below it was cut off: what is beyond is not known."""
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
    """How the samples spread."""
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
        title="Spread of response times, percent of the samples",
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
    """How many samples took how long, of all statements and of the heaviest ones."""
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
    said = table("Response times by range, of what succeeded", head, rows)
    return said + note(
        "Counted from buckets that are 2 % wide: a sample within 1 % of an edge may be counted on its other side."
    )


def range_edges_ms(low_ms: float, high_ms: float) -> list[float]:
    """Edges on a 1-2-5 scale around these times, of at most RANGES_MAX ranges: far apart in proportion, else alike."""
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
    """How many lie between each edge and the next; a bucket counts where its middle is."""
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
    """As long as its part of the longest one."""
    return (
        '<svg class="share" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="bar" width="{100 * share:.1f}" height="8"/></svg>'
    )
