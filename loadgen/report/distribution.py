"""The distribution of response times in the HTML report: percentile curve, histogram, number of samples by range."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from loadgen.metrics.histogram import HIGHEST_NS, LOWEST_NS, Histogram, group_of
from loadgen.report import formatting
from loadgen.report.formatting import html, html_name
from loadgen.report.html_page import figure, not_drawn, note, number, table
from loadgen.report.records import RunRecord
from loadgen.report.run_charts import statement_colours
from loadgen.report.svg import Axis, Chart, ChartLine, ChartMarker, Point, linear_axis, log_axis
from loadgen.units import NS_PER_MS

BARS_MAX = 56
CURVES_MAX = 4  # for single statements
RANGES_MAX = 12
RANGED_MAX = 6  # statements with a separate column
WIDTH = 540
CUT_EARLY = "statements were cut off after the shortest times"


def percentile_curve(record: RunRecord) -> str:
    """The response time of each percentile, with a stretched tail."""
    assert record.merged is not None
    whole, statements = record.merged.tally.whole, record.merged.tally.statements
    name = "all" if len(statements) > 1 else "response"
    found = [(name, "ink", whole.responses)]
    if record.summary["lag_ms"]:
        found.append(("service", "s2", whole.services))
    elif len(statements) > 1:
        colours = statement_colours(record)
        measured = [name for name in colours if name in statements]
        measured.sort(key=lambda name: (-statements[name].succeeded.response.count, name))
        found += [
            (name, colours[name], statements[name].responses) for name in colours if name in measured[:CURVES_MAX]
        ]
    curves = [(name, css, curve) for name, css, samples in found if len(curve := _curve(*samples)) > 1]
    lacking = [(name, cut_off.count) for name, _, (_, cut_off) in found if name not in {drawn for drawn, *_ in curves}]
    missing = not_drawn({name: CUT_EARLY if cut_off else formatting.TOO_FEW for name, cut_off in lacking})
    if not curves:
        return note(f"The percentile curve is {missing}.")
    points = [point for _, _, curve in curves for point in curve]
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
        lines=tuple(ChartLine(name="", css=css, points=curve) for _, css, curve in curves),
        x_title="percent of the samples",
        width=WIDTH,
        height=270,
        both_sides=True,
    )
    return figure(chart, [(css, html_name(name, 200), "") for name, css, _ in curves], missing=missing)


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
        both_sides=True,
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
