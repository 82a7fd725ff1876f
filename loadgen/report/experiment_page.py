"""An experiment as one HTML file, without scripts and without access to the network. Pure.

Its only input is experiment.json, so a stored result gives the same page on any machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loadgen.model.experiment import ExperimentMetric, ExperimentMetricKind
from loadgen.model.warehouse import SIZES
from loadgen.report import formatting
from loadgen.report.experiment import (
    arm_numbers,
    change_text,
    comparison_sentence,
    confidence_text,
    credits_head,
    frontier_text,
    interval_text,
    metering_text,
    value_text,
)
from loadgen.report.formatting import html
from loadgen.report.html_page import note, plain_figure, section, short, table, text, verdict_page
from loadgen.report.svg import LEFT, TICK_WIDTH, Axis, Chart, ChartBand, ChartDot, ChartLine, linear_axis
from loadgen.rules.scaling import fit_scaling, scaling_text
from loadgen.units import counted
from loadgen.values import dataclass

_CLASSES = {"decided": "passed", "failed": "failed", "cancelled": "cancelled"}
_CELLS = {"better": "ok", "worse": "miss", "equivalent": "ok"}
_ARM_HEAD = ("arm", "blocks", "qps", "p50", "p95", "p99", "error rate", "limits held", "credits")
_PAIR_HEAD = ("metric", "arm", "compared with", "decision", "change", "interval", "margin")


def experiment_html(document: Mapping[str, Any]) -> str:
    """The HTML file."""
    blocks = document["blocks"]
    blocks_text = (
        f"{counted(len(blocks['complete']), 'complete block')} of {blocks['begun']} begun, at most {blocks['maximum']}"
    )
    why, experiment_id = html(document["exit_reason"], 500), html(document["experiment_id"])
    about = f'<p class="sub">{why}. {blocks_text}. Experiment {experiment_id}.</p>'
    return verdict_page(
        str(document["verdict"]),
        html(document["name"], 200),
        str(document["answer"]),
        _arms(document),
        _pairs(document),
        *chart_sections(document),
        _measurements(document),
        css=_CLASSES.get(str(document["verdict"]), "invalid"),
        about=about,
        footer="Each measurement is a run: <code>loadgen runs show ID</code>.",
    )


def _arms(document: Mapping[str, Any]) -> str:
    currency = html(document["price"]["currency"], 10)
    head = (*credits_head(_ARM_HEAD, document), f"{currency} per 1,000", "frontier")
    rows = [_arm(arm, is_reference=arm["arm"] == document["reference"]) for arm in document["arms"]]
    notes = []
    if document["limits"]:
        limits = ", ".join(html(limit, 100) for limit in document["limits"])
        notes.append(
            note(f"Limits: {limits}. Statements of a measurement outside the limits cost credits, but do not count.")
        )
    if document["credits"] is not None:
        date = html(document["price"]["rates_date"], 40)
        notes.append(note(f"Credits and prices are estimated from polls of the warehouse, with the rates of {date}."))
    if (metered := metering_text(document)) is not None:
        notes.append(note(html(metered, 1_000)))
    return section("arms", "Arms", table("arms", head, rows, last_words=1), *notes)


def _arm(arm: Mapping[str, Any], *, is_reference: bool) -> Sequence[str]:
    name = f"{arm['arm']} (reference)" if is_reference else arm["arm"]
    numbers = (f'<td class="n">{number}</td>' for number in arm_numbers(arm, unit=" ms"))
    return (short(name), *numbers, short(frontier_text(arm), 200))


def _pairs(document: Mapping[str, Any]) -> str:
    rows = [
        (
            short(one["metric"]),
            short(one["b"]),
            short(one["a"]),
            f'<td class="{_CELLS.get(one["decision"], "w")}">{html(one["decision"])}</td>',
            f'<td class="n">{formatting.NONE if one["change"] is None else change_text(one["change"])}</td>',
            f'<td class="n">{interval_text(one["low"], one["high"])}</td>',
            f'<td class="n">{100 * one["margin"]:.1f} %</td>',
        )
        for one in document["comparisons"]
    ]
    rule = note(
        f"Intervals hold simultaneously, after every block, with {confidence_text(document)} probability. Equivalent:"
        " the interval lies inside the margin. Undecided does not mean equal."
    )
    sentences = "".join(f"<li>{html(comparison_sentence(one), 500)}</li>" for one in document["comparisons"])
    listed = f"<details><summary>In words</summary><ul>{sentences}</ul></details>"
    return section("pairs", "Every pair", table("pairs", _PAIR_HEAD, rows, words=4), rule, listed)


def _measurements(document: Mapping[str, Any]) -> str:
    head = ("block", "arm", "attempt", "run", "outcome", "seconds", *document["metrics"], "reason")
    rows = []
    for one in document["measurements"]:
        values = [measured_value(one, metric) for metric in document["metrics"]]
        shown = [formatting.NONE if value is None else f"{value:.4g}" for value in values]
        rows.append(
            [
                *(short(str(cell)) for cell in (one["block"], one["arm"], one["attempt"], one["run_id"] or "–")),
                short(one["outcome"]),
                f'<td class="n">{one["seconds"]:.0f}</td>',
                *(f'<td class="n">{cell}</td>' for cell in shown),
                text(one["reason"], 500),
            ]
        )
    heads = [html(str(title), 60) for title in head]
    return section("measurements", "Measurements", table("measurements", heads, rows, words=5, last_words=1))


# --- Charts ----------------------------------------------------------------------------------------------------------

_COLOURS = {"better": "s3", "worse": "s2", "equivalent": "s1"}
_ROW_HEIGHT = 26
_ARM_MAX = 22  # characters of an arm in the label of a pair
_REACH_MAX = 10.0  # highest change that the axis shows
_LINES_MAX = 200  # blocks in a chart
_PRICE = ExperimentMetricKind.PRICE.value

Picture = tuple[Chart, Sequence[str]]  # a chart and the texts of its legend


def chart_sections(document: Mapping[str, Any]) -> Iterator[str]:
    """All sections with charts, in the order of the page."""
    yield _pictures("differences", "Differences, with their margins", list(_forests(document)))
    yield _pictures("frontier", "Price and response time", list(_frontier(document)))
    yield _pictures("blocks", "Every block", list(_blocks(document)))
    yield _scaling(document)
    yield _sizes(document)


def _pictures(name: str, title: str, charts: Sequence[Picture]) -> str:
    if not charts:
        return ""
    return section(name, title, *(_picture(chart, keys) for chart, keys in charts))


def _picture(chart: Chart, keys: Sequence[str]) -> str:
    legend = "".join(f'<span class="key"><span>{key}</span></span>' for key in keys)
    return plain_figure(chart, legend)


def block_values(document: Mapping[str, Any], metric: str) -> dict[int, dict[str, float]]:
    """Values by complete block and arm. A measurement outside the limits has no price."""
    complete = set(document["blocks"]["complete"])
    found: dict[int, dict[str, float]] = {}
    for one in document["measurements"]:
        value = measured_value(one, metric)
        if one["block"] in complete and value is not None:
            found.setdefault(one["block"], {})[one["arm"]] = value
    return found


def measured_value(measurement: Mapping[str, Any], metric: str) -> float | None:
    """The value of a measurement; None: unknown, or the price of a measurement outside the limits."""
    figures = measurement["figures"]
    if measurement["outcome"] != "OK" or figures is None or metric not in figures["values"]:
        return None
    is_outside = metric == _PRICE and not all(figures["limits"].values())
    return None if is_outside else float(figures["values"][metric])


# --- differences -----------------------------------------------------------------------------------------------------


def _forests(document: Mapping[str, Any]) -> Iterator[Picture]:
    """A chart for each metric: the interval of every pair, and the margin as a band."""
    for number, (metric, margin) in enumerate(document["metrics"].items()):
        found = [one for one in document["comparisons"] if one["metric"] == metric and one["change"] is not None]
        if found:
            yield _forest(f"forest{number}", metric, float(margin), found), ()


def _forest(chart_id: str, metric: str, margin: float, found: Sequence[Mapping[str, Any]]) -> Chart:
    ends = [value for one in found for value in (one["change"], one["low"], one["high"]) if value is not None]
    x = _change_axis(min(*ends, -2.0 * margin), max(*ends, 2.0 * margin))
    lines, dots = [], []
    for row, one in enumerate(reversed(found), 1):
        low = x.low if one["low"] is None else max(one["low"], x.low)
        high = x.high if one["high"] is None else min(one["high"], x.high)
        css = _COLOURS.get(one["decision"], "limit")
        lines.append(ChartLine(name="", css=css, points=((low, row), (high, row))))
        label = (
            f"{html(one['b'])} compared with {html(one['a'])}: {html(one['decision'])}, {change_text(one['change'])}"
        )
        dots.append(ChartDot(x=min(max(one["change"], x.low), x.high), y=row, css=css, label=label))
        for change in one["by_block"][-_LINES_MAX:]:
            place = min(max(change, x.low), x.high)
            dots.append(ChartDot(x=place, y=row - 0.28, css="limit", label=change_text(change), radius=1.8))
    names = [" / ".join(_shortened(one[arm], _ARM_MAX) for arm in ("b", "a")) for one in reversed(found)]
    better = "→ better" if ExperimentMetric.parse(metric).kind.more_is_better else "better ←"
    return Chart(
        chart_id=chart_id,
        title=f"{html(metric, 100)}: change of each arm compared with another",
        description="Estimate and interval of each pair; small dots are single blocks; the band is the margin.",
        x=x,
        y=Axis(low=0.3, high=len(found) + 0.7, ticks=tuple((row, html(name)) for row, name in enumerate(names, 1))),
        lines=tuple(lines),
        dots=tuple(dots),
        bands=(ChartBand(start=-margin, end=margin, label="equivalent", css="warmup"),),
        x_title=f"change ({better})",
        height=64 + _ROW_HEIGHT * len(found),
        left=max(LEFT, round(TICK_WIDTH * max(map(len, names))) + 12),
    )


def _shortened(name: str, length_max: int) -> str:
    return name if len(name) <= length_max else f"{name[: length_max - 1]}…"


def _change_axis(low: float, high: float) -> Axis:
    """An axis from a round number below 0 to one above 0. A change is at least -100 %."""
    low, high = max(low, -1.0), min(high, _REACH_MAX)
    step = linear_axis(100 * (high - low), ticks=6).ticks[1][0] / 100
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    values = [max(number * step, -1.0) for number in range(first, last + 1)]
    ticks = tuple((value, f"{100 * value:+g} %" if value else "0") for value in values)
    return Axis(low=values[0], high=values[-1], ticks=ticks)


# --- frontier --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """The value of an arm with its interval; None: no value, or no bound on this side."""

    low: float | None
    value: float | None
    high: float | None


def _frontier(document: Mapping[str, Any]) -> Iterator[Picture]:
    """Price against latency: dominated arms are grey, arms outside the limits are crosses."""
    latency = next((text for text in document["metrics"] if ExperimentMetric.parse(text).kind.is_latency), None)
    if latency is None or _PRICE not in document["metrics"]:
        return
    spans = {metric: _spans(document, metric) for metric in (latency, _PRICE)}
    arms = [arm for arm in document["arms"] if spans[latency][arm["arm"]].value is not None]
    if len(arms) < 2 or not any(arm["price_per_1000"] for arm in arms):
        return
    ends = {
        metric: [end for span in by_arm.values() for end in (span.value, span.high) if end is not None]
        for metric, by_arm in spans.items()
    }
    x, y = linear_axis(1.1 * max(ends[latency]), unit=" ms"), linear_axis(1.1 * max(ends[_PRICE]))
    lines, dots = [], []
    for arm in arms:
        wide, tall = spans[latency][arm["arm"]], spans[_PRICE][arm["arm"]]
        at_x, at_y = wide.value or 0.0, y.high if tall.value is None else tall.value
        css = "s1" if arm["on_frontier"] else "limit"
        across = ((_end(wide.low, x.low), at_y), (_end(wide.high, x.high), at_y))
        upright = ((at_x, _end(tall.low, y.low)), (at_x, _end(tall.high, y.high)))
        intervals = [across, upright] if tall.value is not None else [across]
        lines += [ChartLine(name="", css=css, points=points) for points in intervals]
        lines.append(ChartLine(name=html(_shortened(arm["arm"], _ARM_MAX)), css=css, points=((at_x, at_y),)))
        label = _arm_label(arm, latency, at_x, document["price"]["currency"])
        dots.append(ChartDot(x=at_x, y=at_y, css=css, label=label, cross=not arm["serving"]))
    currency = html(document["price"]["currency"], 10)
    chart = Chart(
        chart_id="pareto",
        title=f"Price of 1,000 statements inside the limits ({currency}) against {html(latency, 60)}",
        description="Lower and further left is better. Grey arms are dominated; crosses are outside the limits.",
        x=x,
        y=y,
        lines=tuple(lines),
        dots=tuple(dots),
        x_title=f"{html(latency, 60)}; intervals are those of the difference from the mean of all arms",
        height=300,
        names_width=round(TICK_WIDTH * max(len(_shortened(arm["arm"], _ARM_MAX)) for arm in arms)) + 12,
    )
    yield chart, ["grey: dominated", "cross: outside the limits, at the top if it has no price"]


def _end(value: float | None, edge: float) -> float:
    """The end of an interval; an unbounded one extends to the edge of the chart."""
    return edge if value is None else value


def _spans(document: Mapping[str, Any], metric: str) -> dict[str, _Span]:
    """Intervals by arm. The interval of an arm is the mean of the intervals of its differences from all arms: they hold
    simultaneously, so their mean holds too. Arms with measurements outside the limits give no bounds of prices."""
    values = _estimates(document, metric)
    bounding = [
        arm["arm"]
        for arm in document["arms"]
        if arm["arm"] in values and (metric != _PRICE or arm["limits_held"] == arm["measurements"])
    ]
    level = math.fsum(math.log(values[arm]) for arm in bounding) / max(len(bounding), 1)
    found = {}
    for arm in (arm["arm"] for arm in document["arms"]):
        sides = []
        for side in ("low", "high"):
            changes = [_difference(document, metric, other, arm, side) for other in bounding if other != arm]
            known = [change for change in changes if change is not None]
            is_bound = bool(changes) and len(known) == len(changes) and arm in values
            sides.append(math.exp(level + math.fsum(known) / len(bounding)) if is_bound else None)
        found[arm] = _Span(low=sides[0], value=values.get(arm), high=sides[1])
    return found


def _difference(document: Mapping[str, Any], metric: str, other: str, arm: str, side: str) -> float | None:
    """The bound of log(arm / other) on this side; None: there is none."""
    for one in document["comparisons"]:
        if one["metric"] == metric and (one["a"], one["b"]) == (other, arm):
            return _log(one[side])
        if one["metric"] == metric and (one["a"], one["b"]) == (arm, other):
            bound = _log(one["high" if side == "low" else "low"])
            return None if bound is None else -bound
    return None


def _log(change: float | None) -> float | None:
    return None if change is None or change <= -1 else math.log1p(change)


def _estimates(document: Mapping[str, Any], metric: str) -> dict[str, float]:
    """The estimate of each arm: the geometric mean over complete blocks, as in comparisons."""
    if metric == _PRICE:
        return {arm["arm"]: arm["price_per_1000"] for arm in document["arms"] if arm["price_per_1000"]}
    found: dict[str, list[float]] = {}
    for by_arm in block_values(document, metric).values():
        for arm, value in by_arm.items():
            found.setdefault(arm, []).append(math.log(value))
    return {arm: math.exp(math.fsum(logs) / len(logs)) for arm, logs in found.items()}


def _arm_label(arm: Mapping[str, Any], latency: str, value: float, currency: str) -> str:
    shown = value_text(ExperimentMetric.parse(latency), value, currency)
    price = value_text(ExperimentMetric.parse(_PRICE), arm["price_per_1000"], currency)
    return html(f"{arm['arm']}: {latency} {shown}, price {price}", 200)


# --- blocks ----------------------------------------------------------------------------------------------------------


def _blocks(document: Mapping[str, Any]) -> Iterator[Picture]:
    """A chart for each metric, with each block as a line through its arms."""
    arms = [arm["arm"] for arm in document["arms"]]
    for number, metric in enumerate(document["metrics"]):
        values = block_values(document, metric)
        if not values:
            continue
        lines = [
            ChartLine(
                name="",
                css=f"s{block % 6 + 1}",
                points=tuple((float(place), by_arm.get(arm)) for place, arm in enumerate(arms)),
            )
            for block, by_arm in list(values.items())[:_LINES_MAX]
        ]
        dots = [
            ChartDot(
                x=float(place), y=by_arm[arm], css=f"s{block % 6 + 1}", label=f"block {block}, {html(arm)}", radius=2.5
            )
            for block, by_arm in list(values.items())[:_LINES_MAX]
            for place, arm in enumerate(arms)
            if arm in by_arm
        ]
        highest = max(value for by_arm in values.values() for value in by_arm.values())
        kind = ExperimentMetric.parse(metric).kind
        unit = "" if kind is ExperimentMetricKind.PRICE else "/s" if kind is ExperimentMetricKind.QPS else " ms"
        ticks = tuple((float(place), html(arm, 20)) for place, arm in enumerate(arms))
        chart = Chart(
            chart_id=f"blocks{number}",
            title=f"{html(metric, 100)}: each line is a block",
            description="Parallel lines show a difference that holds within every block.",
            x=Axis(low=-0.2, high=len(arms) - 0.8, ticks=ticks),
            y=linear_axis(highest, unit=unit),
            lines=tuple(lines),
            dots=tuple(dots),
            height=240,
        )
        yield chart, ()


# --- scaling ---------------------------------------------------------------------------------------------------------


def _throughputs(document: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """(arm, statements per second) of every usable measurement."""
    for one in document["measurements"]:
        if one["outcome"] == "OK" and one["figures"] is not None and one["figures"]["qps"]:
            yield one["arm"], float(one["figures"]["qps"])


def _scaling(document: Mapping[str, Any]) -> str:
    """Throughput over connections, if all arms differ in their number."""
    levels = {arm["arm"]: arm.get("connections") for arm in document["arms"]}
    if not all(isinstance(level, int) for level in levels.values()) or len(set(levels.values())) < len(levels):
        return ""
    points = [(float(levels[arm]), qps) for arm, qps in _throughputs(document)]
    if not points:
        return ""
    is_one = document.get("only_connections_differ")
    found = fit_scaling(points) if is_one else "arms differ in more than connections"
    highest, most = max(x for x, _ in points), max(y for _, y in points)
    drawn = () if isinstance(found, str) else (ChartLine(name="", css="s4", points=found.points(highest)),)
    chart = Chart(
        chart_id="scaling",
        title="qps by connections",
        description="Each dot is a measurement.",
        x=linear_axis(1.05 * highest),
        y=linear_axis(1.1 * most),
        lines=drawn,
        dots=tuple(ChartDot(x=x, y=y, css="s1", label=html(f"{x:,.0f} connections: {y:,.1f}/s")) for x, y in points),
        x_title="connections",
        height=260,
    )
    text = f"No scaling curve: {found}." if isinstance(found, str) else scaling_text(found)
    return section("scaling", "Scaling", _picture(chart, []), note(html(text)))


def _sizes(document: Mapping[str, Any]) -> str:
    """Throughput over the size of the warehouse, if arms differ in it. Each size has twice the nodes of the previous
    one, so the axis is logarithmic. No curve is fitted, because sizes are different configurations."""
    found = {arm["arm"]: arm.get("warehouse") or {} for arm in document["arms"]}
    sizes = {arm: SIZES.index(one["size"]) for arm, one in found.items() if one.get("size") in SIZES}
    points = [(arm, qps) for arm, qps in _throughputs(document) if arm in sizes]
    if len(sizes) < len(found) or len(set(sizes.values())) < 2 or not points:
        return ""
    kinds = list(dict.fromkeys((found[arm]["kind"], found[arm]["clusters"]) for arm in sizes))
    colours = {arm: f"s{kinds.index((found[arm]['kind'], found[arm]['clusters'])) % 6 + 1}" for arm in sizes}
    shown = range(min(sizes.values()), max(sizes.values()) + 1)
    chart = Chart(
        chart_id="sizes",
        title="qps by size of the warehouse",
        description="Each dot is a measurement. Colours are generations and numbers of clusters.",
        x=Axis(
            low=2.0 ** (shown[0] - 0.3),
            high=2.0 ** (shown[-1] + 0.3),
            ticks=tuple((2.0**step, SIZES[step]) for step in shown),
            log=True,
        ),
        y=linear_axis(1.1 * max(qps for _, qps in points)),
        dots=tuple(
            ChartDot(x=2.0 ** sizes[arm], y=qps, css=colours[arm], label=html(_size_label(arm, found[arm], qps), 200))
            for arm, qps in points
        ),
        height=260,
    )
    return section("sizes", "qps by size", _picture(chart, []))


def _size_label(arm: str, warehouse: Mapping[str, Any], qps: float) -> str:
    return (
        f"{arm}: {warehouse['size']}, {warehouse['kind']}, clusters {warehouse['clusters']}: {formatting.rate(qps)}/s"
    )
