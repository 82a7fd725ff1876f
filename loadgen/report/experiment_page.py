"""An experiment as one HTML file: no script, nothing from the network, and a policy that forbids both. Pure.

It is made from experiment.json alone, so a stored result gives the same page anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loadgen.model.experiment import ExperimentMetric, ExperimentMetricKind
from loadgen.report import formatting
from loadgen.report.experiment import arm_numbers, change_text, comparison_sentence, frontier_text, value_text
from loadgen.report.formatting import html
from loadgen.report.page import note, section, short, table, text, verdict_page
from loadgen.report.svg import Axis, Chart, ChartBand, ChartDot, ChartLine, linear_axis, svg
from loadgen.rules.scaling import fit_scaling, scaling_text
from loadgen.units import counted

_CLASSES = {"decided": "passed", "failed": "failed", "cancelled": "cancelled"}
_CELLS = {"better": "ok", "worse": "miss", "equivalent": "ok"}
_COLOURS = {"better": "s3", "worse": "s2", "equivalent": "s1", "undecided": "limit"}
_ROW_HEIGHT = 26
_NAME_MAX = 9  # characters of a label beside an axis
_REACH_MAX = 10.0  # highest change that the axis shows
_LINES_MAX = 200  # blocks in a chart
_ARM_HEAD = ("arm", "blocks", "statements/s", "p50", "p95", "p99", "errors", "limits held", "credits")
_PAIR_HEAD = ("metric", "arm", "compared with", "decision", "change", "interval", "margin")


def experiment_html(document: Mapping[str, Any]) -> str:
    """The whole file."""
    blocks = document["blocks"]
    told = (
        f"{counted(len(blocks['complete']), 'complete block')} of {blocks['begun']} begun, at most {blocks['maximum']}"
    )
    why, experiment_id = html(document["exit_reason"], 500), html(document["experiment_id"])
    about = f'<p class="sub">{why}. {told}. Experiment {experiment_id}.</p>'
    return verdict_page(
        str(document["verdict"]),
        html(document["name"], 200),
        str(document["answer"]),
        _arms(document),
        _pairs(document),
        _pictures("differences", "Differences, with their margins", list(_forests(document))),
        _pictures("frontier", "Price and latency", list(_frontier(document))),
        _pictures("blocks", "Every block", list(_blocks(document))),
        _scaling(document),
        _measurements(document),
        css=_CLASSES.get(str(document["verdict"]), "invalid"),
        about=about,
        footer="Each measurement is an ordinary run: <code>loadgen runs show ID</code>.",
    )


def _arms(document: Mapping[str, Any]) -> str:
    currency = html(document["price"]["currency"], 10)
    head = (*_ARM_HEAD, f"{currency} per 1,000", "frontier")
    rows = [_arm(arm, is_reference=arm["arm"] == document["reference"]) for arm in document["arms"]]
    said = []
    if document["limits"]:
        limits = ", ".join(html(limit, 100) for limit in document["limits"])
        said.append(note(f"Limits: {limits}. A measurement that breaks one adds cost and no served statements."))
    if document["credits"] is not None:
        date = html(document["price"]["rates_date"], 40)
        said.append(note(f"Credits and prices are estimated from polls of the warehouse, with the rates of {date}."))
    return section("arms", "Arms", table("arms", head, rows, last_words=1), *said)


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
            f'<td class="n">{change_text(one["low"])} to {change_text(one["high"])}</td>',
            f'<td class="n">{one["margin"]:.1%}</td>',
        )
        for one in document["comparisons"]
    ]
    rule = note(
        f"All intervals hold simultaneously, at every look, with {1 - document['error']:.0%} probability. Equivalent:"
        " the interval lies inside the margin. Undecided is not the same as equal."
    )
    sentences = "".join(f"<li>{html(comparison_sentence(one), 500)}</li>" for one in document["comparisons"])
    listed = f"<details><summary>In words</summary><ul>{sentences}</ul></details>"
    return section("pairs", "Every pair", table("pairs", _PAIR_HEAD, rows, words=4), rule, listed)


Picture = tuple[Chart, Sequence[str]]  # a chart and the texts of its legend


def _pictures(name: str, title: str, charts: Sequence[Picture]) -> str:
    if not charts:
        return ""
    return section(name, title, *(_picture(chart, keys) for chart, keys in charts))


def _picture(chart: Chart, keys: Sequence[str]) -> str:
    legend = "".join(f'<span class="key"><span>{key}</span></span>' for key in keys)
    return (
        f'<figure><figcaption><strong>{chart.title}</strong><span class="keys">{legend}</span></figcaption>'
        f'<div class="plot">{svg(chart)}</div></figure>'
    )


# --- charts ----------------------------------------------------------------------------------------------------------


def _forests(document: Mapping[str, Any]) -> Iterator[Picture]:
    """One for each metric: the interval of every pair, and the margin as a band."""
    for number, (metric, margin) in enumerate(document["metrics"].items()):
        found = [one for one in document["comparisons"] if one["metric"] == metric and one["change"] is not None]
        if found:
            names = [html(f"{one['b']} / {one['a']}", 100) for one in reversed(found)]
            keys: list[str] = []
            if any(len(name) > _NAME_MAX for name in names):  # labels beside an axis must be short
                keys = [f"{row}: {name}" for row, name in enumerate(names, 1)][::-1]
                names = [str(row) for row in range(1, len(names) + 1)]
            yield _forest(f"forest{number}", metric, float(margin), found, names), keys


def _forest(
    chart_id: str, metric: str, margin: float, found: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> Chart:
    ends = [value for one in found for value in (one["change"], one["low"], one["high"]) if value is not None]
    x = _change_axis(min(*ends, -2.0 * margin), max(*ends, 2.0 * margin))
    lines, dots = [], []
    for row, one in enumerate(reversed(found), 1):
        low = x.low if one["low"] is None else max(one["low"], x.low)
        high = x.high if one["high"] is None else min(one["high"], x.high)
        css = _COLOURS[one["decision"]]
        lines.append(ChartLine(name="", css=css, points=((low, row), (high, row))))
        label = (
            f"{html(one['b'])} compared with {html(one['a'])}: {html(one['decision'])}, {change_text(one['change'])}"
        )
        dots.append(ChartDot(x=min(max(one["change"], x.low), x.high), y=row, css=css, label=label))
        for change in one["by_block"][-_LINES_MAX:]:
            place = min(max(change, x.low), x.high)
            dots.append(ChartDot(x=place, y=row - 0.28, css="limit", label=change_text(change), radius=1.8))
    better = "→ better" if ExperimentMetric.parse(metric).kind.more_is_better else "better ←"
    return Chart(
        chart_id=chart_id,
        title=f"{html(metric, 100)}: change of each arm compared with another",
        description="Estimate and interval of each pair; small dots are single blocks; the band is the margin.",
        x=x,
        y=Axis(low=0.3, high=len(found) + 0.7, ticks=tuple((row, name) for row, name in enumerate(names, 1))),
        lines=tuple(lines),
        dots=tuple(dots),
        bands=(ChartBand(start=-margin, end=margin, label="equivalent", css="warmup"),),
        x_title=f"change ({better})",
        height=64 + _ROW_HEIGHT * len(found),
    )


def _change_axis(low: float, high: float) -> Axis:
    """From a round number below 0 to one above; a change is never below -100 %."""
    low, high = max(low, -1.0), min(high, _REACH_MAX)
    step = linear_axis(100 * (high - low), ticks=6).ticks[1][0] / 100
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    values = [number * step for number in range(first, last + 1)]
    ticks = tuple((value, f"{100 * value:+g} %" if value else "0") for value in values)
    return Axis(low=values[0], high=values[-1], ticks=ticks)


def _frontier(document: Mapping[str, Any]) -> Iterator[Picture]:
    """Price against latency: dominated arms are grey, arms outside the limits are crosses."""
    latency = next((text for text in document["metrics"] if ExperimentMetric.parse(text).kind.is_latency), None)
    price = ExperimentMetricKind.PRICE.value
    places = {} if latency is None else _places(document, latency, price)
    if latency is None or price not in document["metrics"] or len(places) < 2:
        return
    spans = [span for place in places.values() for span in place]
    lines, dots = [], []
    for arm in (arm for arm in document["arms"] if arm["arm"] in places):
        (x_low, x, x_high), (y_low, y, y_high) = places[arm["arm"]]
        css = "s1" if arm["on_frontier"] else "limit"
        lines.append(ChartLine(name="", css=css, points=((x_low, y), (x_high, y))))
        lines.append(ChartLine(name="", css=css, points=((x, y_low), (x, y_high))))
        lines.append(ChartLine(name=html(arm["arm"], 12), css=css, points=((x, y),)))
        dots.append(
            ChartDot(x=x, y=y, css=css, label=_arm_label(arm, latency, x, y, document), cross=not arm["serving"])
        )
    highest = [max(span[2] for span in spans[axis::2]) for axis in (0, 1)]
    chart = Chart(
        chart_id="pareto",
        title=f"Price of 1,000 statements against {html(latency, 60)}",
        description="Lower and further left is better. Grey arms are dominated; crosses are outside the limits.",
        x=linear_axis(1.1 * highest[0], unit=" ms"),
        y=linear_axis(1.1 * highest[1]),
        lines=tuple(lines),
        dots=tuple(dots),
        x_title=f"{html(latency, 60)}; intervals are those compared with {html(document['reference'], 40)}",
        height=300,
    )
    yield chart, ["grey: dominated", "cross: outside the limits"]


Span = tuple[float, float, float]  # low, estimate, high


def _places(document: Mapping[str, Any], latency: str, price: str) -> dict[str, tuple[Span, Span]]:
    """The position of every arm with its interval compared with the reference, which has none."""
    values = {metric: _means(document, metric) for metric in (latency, price)}
    reference = document["reference"]
    places = {}
    for arm in (arm["arm"] for arm in document["arms"]):
        spans = []
        for metric in (latency, price):
            base, mean = values[metric].get(reference), values[metric].get(arm)
            if base is None or mean is None:
                break
            pair = [
                one
                for one in document["comparisons"]
                if (one["metric"], one["a"], one["b"]) == (metric, reference, arm)
            ]
            low, high = (pair[0]["low"], pair[0]["high"]) if pair else (None, None)
            spans.append((mean if low is None else base * (1 + low), mean, mean if high is None else base * (1 + high)))
        if len(spans) == 2:
            places[arm] = (spans[0], spans[1])
    return places


def _means(document: Mapping[str, Any], metric: str) -> dict[str, float]:
    """The geometric mean of every arm, over complete blocks."""
    found: dict[str, list[float]] = {}
    for by_arm in _values(document, metric).values():
        for arm, value in by_arm.items():
            found.setdefault(arm, []).append(math.log(value))
    return {arm: math.exp(math.fsum(logs) / len(logs)) for arm, logs in found.items()}


def _values(document: Mapping[str, Any], metric: str) -> dict[int, dict[str, float]]:
    """By complete block and arm."""
    complete = set(document["blocks"]["complete"])
    found: dict[int, dict[str, float]] = {}
    for one in document["measurements"]:
        if one["block"] in complete and one["outcome"] == "OK" and metric in one["figures"]["values"]:
            found.setdefault(one["block"], {})[one["arm"]] = float(one["figures"]["values"][metric])
    return found


def _arm_label(arm: Mapping[str, Any], latency: str, x: float, y: float, document: Mapping[str, Any]) -> str:
    currency = document["price"]["currency"]
    shown = value_text(ExperimentMetric.parse(latency), x, currency)
    return html(f"{arm['arm']}: {latency} {shown}, price {y:.3g} {currency}", 200)


def _blocks(document: Mapping[str, Any]) -> Iterator[Picture]:
    """One for each metric: every block as a line through its arms."""
    arms = [arm["arm"] for arm in document["arms"]]
    for number, metric in enumerate(document["metrics"]):
        values = _values(document, metric)
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


def _scaling(document: Mapping[str, Any]) -> str:
    """Throughput over connections, when every arm has a different number of them."""
    levels = {arm["arm"]: arm.get("connections") for arm in document["arms"]}
    if not all(isinstance(level, int) for level in levels.values()) or len(set(levels.values())) < len(levels):
        return ""
    points = [
        (float(levels[one["arm"]]), float(one["figures"]["qps"]))
        for one in document["measurements"]
        if one["outcome"] == "OK" and one["figures"] is not None and one["figures"]["qps"]
    ]
    if not points:
        return ""
    found = fit_scaling(points)
    highest, most = max(x for x, _ in points), max(y for _, y in points)
    drawn = () if isinstance(found, str) else (ChartLine(name="", css="s4", points=found.points(highest)),)
    chart = Chart(
        chart_id="scaling",
        title="Throughput by connections, per second",
        description="Each dot is a measurement.",
        x=linear_axis(1.05 * highest),
        y=linear_axis(1.1 * most),
        lines=drawn,
        dots=tuple(ChartDot(x=x, y=y, css="s1", label=html(f"{x:,.0f} connections: {y:,.1f}/s")) for x, y in points),
        x_title="connections",
        height=260,
    )
    said = f"No scaling curve: {found}." if isinstance(found, str) else scaling_text(found)
    return section("scaling", "Scaling", _picture(chart, []), note(html(said)))


def _measurements(document: Mapping[str, Any]) -> str:
    head = ("block", "arm", "attempt", "run", "outcome", "seconds", *document["metrics"], "reason")
    rows = []
    for one in document["measurements"]:
        values = (one["figures"] or {"values": {}})["values"]
        shown = [f"{values[metric]:.4g}" if metric in values else formatting.NONE for metric in document["metrics"]]
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
