"""A comparison of two runs as text, as JSON and as one HTML file: verdict, differences, numbers. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from loadgen.log import printable
from loadgen.metrics.histogram import IntArray
from loadgen.metrics.percentile import is_supported
from loadgen.report import formatting
from loadgen.report.formatting import fact_value, html, html_whole_ids, setting_name
from loadgen.report.html_page import note, plain_figure, section, short, stroke, table, verdict_page, whole
from loadgen.report.records import REACH_PARTS, stretches
from loadgen.report.svg import (
    LEFT,
    TICK_WIDTH,
    Axis,
    Chart,
    ChartBand,
    ChartDot,
    ChartLine,
    Point,
    linear_axis,
    log_axis,
    time_axis,
)
from loadgen.rules.comparability import Measure, SettingDifference
from loadgen.rules.comparison import ChangeVerdict, Comparison, MeasuredRun, MetricChange
from loadgen.rules.confidence_intervals import CONFIDENCE, ConfidenceInterval, log_quantile
from loadgen.units import NS_PER_MS

SHOWN_MAX = 10  # differences
VALUE_MAX = 40  # characters of a value; a longer value is shown as "changed"
NAME_MAX = 30
NAMES_SHOWN = 5  # names of metrics in a remark

_HEAD = ("", "A", "B", "change", "95 % interval", "limit", "verdict")
# Columns that are left out on a narrow terminal. The middle of the interval is near the change.
_GIVE_WAY = (("change",), ("change", "limit"), ("change", "limit", "95 % interval"))
_NOTE = (
    "* counts toward the verdict. Percentiles are interpolated, and differ by up to 1 % from `loadgen runs show`.\n"
    "Two runs show the variation within a run. `loadgen trend` shows the variation from run to run."
)


def comparison_text(comparison: Comparison, width: int | None = None) -> str:
    """Plain text. With `width`, its table has at most that many columns if names are short."""
    parts = [
        f"{comparison.verdict.value.upper()}  {printable(comparison.reason, 500)}",
        *(_run(letter, run) for letter, run in (("A", comparison.a), ("B", comparison.b))),
        *_configuration(comparison.configuration),
        "",
        *_table(comparison.changes, width),
        *(f"  {printable(remark, 500)}" for remark in remarks(comparison)),
        "",
        _NOTE,
    ]
    return "\n".join(parts)


def differences_text(configuration: Sequence[SettingDifference], indent: str = "  ") -> str:
    """One line for each of the first differences."""
    lines = [f"{indent}{said(one)}" for one in configuration[:SHOWN_MAX]]
    if len(configuration) > SHOWN_MAX:
        lines.append(f"{indent}and {len(configuration) - SHOWN_MAX} more; --format json lists all")
    return "\n".join(lines)


def said(one: SettingDifference, sides: tuple[str, str] = ("A", "B")) -> str:
    """One difference as text: load.connections: 8 → 16."""
    key, a, b = printable(setting_name(one.key), 80), *(value_text(_value_of(one, side)) for side in (one.a, one.b))
    if a is not None and b is not None:
        return f"{key}: {a} → {b}"
    if one.a is not None and one.b is not None:
        return f"{key} changed"
    return f"{key}: only in {sides[one.a is None]}"


def _value_of(one: SettingDifference, side: Any) -> Any:
    """A side of a difference: values of settings are those of a scenario file, where yes is true."""
    return side if setting_name(one.key) == one.key else fact_value(side)


def value_text(value: Any, limit: int = VALUE_MAX) -> str | None:
    """The value of a setting as in a scenario file; None: it is too long for a line."""
    if value is None:
        return "not set"
    if isinstance(value, Mapping) or (isinstance(value, list) and any(isinstance(one, Mapping) for one in value)):
        return None
    text = " ".join(value.split()) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return None if len(text) > limit else printable(text, limit)


def percent(measure: Measure, value: float) -> str:
    """A change in percent; for the error rate in percentage points."""
    return f"{100 * value:+z.{3 if measure is Measure.ERROR_RATE else 1}f}"


def unit(measure: Measure) -> str:
    return "pp" if measure is Measure.ERROR_RATE else "%"


def point(change: MetricChange) -> str:
    return (
        formatting.NONE if change.point is None else f"{percent(change.measure, change.point)} {unit(change.measure)}"
    )


def interval(change: MetricChange) -> str:
    measure, span = change.measure, change.span
    if span is None:
        return "cannot be bounded" if any(change.at_least) else "not enough data"
    match math.isfinite(span.low), math.isfinite(span.high):
        case True, True:
            return f"{percent(measure, span.low)} … {percent(measure, span.high)} {unit(measure)}"
        case True, False:
            return f"at least {percent(measure, span.low)} {unit(measure)}"
        case False, True:
            return f"at most {percent(measure, span.high)} {unit(measure)}"
    return "cannot be bounded"


def verdict(change: MetricChange) -> str:
    return f"{change.verdict.value} †" if change.uncorrected else change.verdict.value


def remarks(comparison: Comparison) -> Iterator[str]:
    """Remarks on the numbers, without duplicates."""
    for letter, names in zip("AB", comparison.unmatched, strict=True):
        if names:
            yield f"only in {letter}, not compared: {', '.join(names)}"
    yield from _doubts(comparison.changes)
    if any(change.uncorrected for change in comparison.changes):
        yield (
            "† uncorrected: significant alone, not after correction for"
            f" {comparison.comparisons} comparisons (Bonferroni); it may be random, and does not decide the verdict"
        )
    if any(change.measure is Measure.ERROR_RATE for change in comparison.changes):
        yield "pp: percentage points; from 0.1 % to 0.6 % is +0.5 pp"


def _doubts(changes: Sequence[MetricChange]) -> Iterator[str]:
    """The reasons for unknown and unbounded intervals, with their metrics."""
    found: dict[str, list[str]] = {}
    for change in changes:
        if change.why and (change.span is None or not _is_bounded(change.span)):
            name = change.measure.value if change.statement is None else f"{change.statement}.{change.measure}"
            found.setdefault(change.why, []).append(name)
    for why, names in found.items():
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        yield why if len(names) == len(changes) else f"{', '.join(names[:NAMES_SHOWN])}{more}: {why}"


def _is_bounded(span: ConfidenceInterval) -> bool:
    return math.isfinite(span.low) and math.isfinite(span.high)


def _run(letter: str, run: MeasuredRun) -> str:
    started = f", started {run.started_at}" if run.started_at else ""
    return printable(f"  {letter} {run.run_id[:60]}  {run.scenario[:60]}{started}, measured {run.merged.seconds:.0f} s")


def _configuration(configuration: Sequence[SettingDifference]) -> Iterator[str]:
    varied = [one for one in configuration if one.varied]
    noted = [one for one in configuration if not one.varied]
    if not configuration:
        yield "  same scenario, same environment"
    if varied:
        yield f"  compared because of --vary:\n{differences_text(varied, '    ')}"
    if noted:
        yield f"  differs, but should not affect the result:\n{differences_text(noted, '    ')}"


def _table(changes: Sequence[MetricChange], width: int | None) -> Iterator[str]:
    rows = _rows(changes)
    for left_out in ((), *_GIVE_WAY):
        shown = [column for column, name in enumerate(_HEAD) if name not in left_out]
        lines = formatting.aligned([[row[column] for column in shown] for row in rows], left=(0, len(shown) - 1))
        if width is None or max(map(len, lines)) <= width:
            break
    yield from lines
    if left_out:
        yield f"  not shown on this narrow terminal: {', '.join(left_out)}"


def _rows(changes: Sequence[MetricChange]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [_HEAD]
    statement: str | None = None
    for change in changes:
        if change.statement != statement:
            statement = change.statement
            rows.append((printable(statement or "", NAME_MAX), *[""] * (len(_HEAD) - 1)))
        rows.append(_row(change))
    return rows


def _row(change: MetricChange) -> tuple[str, ...]:
    mark = "*" if change.counts else " "
    indent = "" if change.statement is None else "  "
    return (
        f"{indent}{mark} {change.measure.value}",
        formatting.value_of(change.measure, change.a, at_least=change.at_least[0]),
        formatting.value_of(change.measure, change.b, at_least=change.at_least[1]),
        point(change),
        interval(change),
        f"{100 * change.limit:g} {unit(change.measure)}",
        verdict(change),
    )


SCHEMA_VERSION = 1
NOT_COMPARABLE = "not comparable"
NOT_COMPARABLE_EXIT = 2

UNITS: Mapping[Measure, str] = {Measure.QPS: "1/s", Measure.ERROR_RATE: "share", Measure.MAX_CONCURRENCY: "connections"}


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": comparison.verdict.value,
        "exit_code": comparison.exit_code,
        "reason": comparison.reason,
        "a": _run_data(comparison.a),
        "b": _run_data(comparison.b),
        "configuration": configuration_data(comparison.configuration),
        "confidence": CONFIDENCE,
        "comparisons": comparison.comparisons,
        "only_in_a": list(comparison.unmatched[0]),
        "only_in_b": list(comparison.unmatched[1]),
        "metrics": [_change_data(change) for change in comparison.changes],
    }


def refusal_data(
    a: str, b: str, reasons: Sequence[str], hint: str, configuration: Sequence[SettingDifference]
) -> dict[str, Any]:
    """The JSON document if two runs cannot be compared."""
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": NOT_COMPARABLE,
        "exit_code": NOT_COMPARABLE_EXIT,
        "reason": "; ".join(reasons),
        "reasons": list(reasons),
        "hint": hint,
        "a": {"run_id": a},
        "b": {"run_id": b},
        "configuration": configuration_data(configuration),
        "metrics": [],
    }


def configuration_data(configuration: Sequence[SettingDifference]) -> list[dict[str, Any]]:
    return [
        {"key": one.key, "a": one.a, "b": one.b, "matters": one.matters, "varied": one.varied} for one in configuration
    ]


def _run_data(run: MeasuredRun) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "scenario": run.scenario,
        "started_at": run.started_at,
        "measured_seconds": round(run.merged.seconds, 6),
        "compared_seconds": len(run.series),
    }


def _change_data(change: MetricChange) -> dict[str, Any]:
    span = change.span
    return {
        "statement": change.statement,
        "metric": change.measure.value,
        "unit": UNITS.get(change.measure, "ms"),
        "a": formatting.rounded(change.a),
        "b": formatting.rounded(change.b),
        "a_at_least": change.at_least[0],
        "b_at_least": change.at_least[1],
        "change": formatting.rounded(change.point),
        "low": None if span is None else formatting.rounded(span.low),
        "high": None if span is None else formatting.rounded(span.high),
        "limit": change.limit,
        "verdict": change.verdict.value,
        "counts": change.counts,
        "certain": change.certain,
        "why": change.why,
    }


# --- HTML: no script, nothing from the network -----------------------------------------------------------------------

COLOURS = ("s1", "s2")
LETTERS = ("A", "B")

_POINTS_MAX = 600  # points of a line; more are not visible
_LINE_MIN = 2  # points of a line
_CURVE = tuple(sorted({*range(10, 990, 20), *range(900, 1_000, 5), 999}))  # thousandths
_TICKS = {500: "50", 900: "90", 950: "95", 990: "99", 999: "99.9"}
_REACH = 3.0  # range of the chart of changes, in limits
_IN_LIMITS = ("≤ -3", "-2", "-1", "0", "+1", "+2", "≥ +3")  # values beyond the range are drawn at its end
_ROW_HEIGHT = 24
CHANGES_WIDTH = 366  # of the chart of changes: a phone shows all of it


def charts(comparison: Comparison) -> Iterator[Chart]:
    changes = [change for change in comparison.changes if change.statement is None and change.span is not None]
    if changes:
        yield _changes(changes)
    if comparison.a.find_max is not None:
        return  # seconds at different levels cannot be compared
    runs = (comparison.a, comparison.b)
    if all(len(run.series) for run in runs):
        yield from _over_time("rate", "qps", runs, _rates, "/s")
        yield from _over_time("p50", "p50", runs, lambda run: _quantiles(run, 500), " ms")
        yield from _over_time("p95", "p95", runs, lambda run: _quantiles(run, 950), " ms")
    curves = [_curve(run.merged.tally.whole.succeeded.response.counts) for run in runs]
    if all(curves):
        yield _percentiles(curves)


def _changes(changes: Sequence[MetricChange]) -> Chart:
    """The intervals in units of their limits, on one axis; to the right is worse."""
    lines, dots = [], []
    for row, change in enumerate(reversed(changes), 1):
        assert change.span is not None
        sign = 1 if change.measure.more_is_worse else -1
        low, point, high = (
            min(max(sign * value / change.limit, -_REACH), _REACH)
            for value in (change.span.low, change.span.point, change.span.high)
        )
        css = {"worse": "s2", "better": "s3"}.get(change.verdict.value, "s1")
        lines.append(ChartLine(name="", css=css, points=((low, row), (high, row))))
        dots.append(ChartDot(x=point, y=row, css=css, label=f"{change.measure.value}: {change.verdict.value}"))
    names = [change.measure.value for change in reversed(changes)]
    return Chart(
        chart_id="changes",
        title="Change from A to B, in units of each metric's limit",
        description="The change of each metric with its 95 % interval. ±1 is the limit; to the right is worse.",
        x=Axis(low=-_REACH, high=_REACH, ticks=tuple(zip(range(-3, 4), _IN_LIMITS, strict=True))),
        y=Axis(low=0.0, high=len(changes) + 1, ticks=tuple((row, name) for row, name in enumerate(names, 1))),
        lines=tuple(lines),
        dots=tuple(dots),
        bands=(ChartBand(start=-1.0, end=1.0, label="within limit", css="warmup"),),
        x_title="better ← limits → worse",
        height=60 + _ROW_HEIGHT * len(changes),
        width=CHANGES_WIDTH,
        left=max(LEFT, math.ceil(TICK_WIDTH * max(map(len, names))) + 8),
    )


def _over_time(
    chart_id: str,
    title: str,
    runs: Sequence[MeasuredRun],
    points_of: Callable[[MeasuredRun], list[Point]],
    unit: str,
) -> Iterator[Chart]:
    """A chart of both runs; none if a run has too few samples for a line."""
    lines = []
    for run, letter, css in zip(runs, LETTERS, COLOURS, strict=True):
        points = points_of(run)
        every = -(-len(points) // _POINTS_MAX)
        lines.append(ChartLine(name=letter, css=css, points=tuple(points[::every])))
    known = [[y for _, y in line.points if y is not None] for line in lines]
    if min(map(len, known)) < _LINE_MIN:
        return
    yield Chart(
        chart_id=chart_id,
        title=title,
        description="Run A and run B, each from the beginning of its measurement.",
        x=time_axis(max(float(run.series.seconds.sum()) for run in runs)),
        y=linear_axis(max(max(own) for own in known), unit=unit),
        lines=tuple(lines),
        both_sides=True,
    )


def _spans_s(run: MeasuredRun) -> list[tuple[float, float]]:
    ends_s = np.cumsum(run.series.seconds)
    return list(zip((ends_s - run.series.seconds).tolist(), ends_s.tolist(), strict=True))


def _rates(run: MeasuredRun) -> list[Point]:
    rates = ((run.series.buckets.sum(axis=1) + run.series.earlier) / run.series.seconds).tolist()
    return [((start_s + end_s) / 2, rate) for (start_s, end_s), rate in zip(_spans_s(run), rates, strict=True)]


def _quantiles(run: MeasuredRun, per_mille: int) -> list[Point]:
    """A percentile over time. Seconds with too few samples are joined, as in the report of a run."""
    buckets, spans_s = run.series.buckets, _spans_s(run)
    counts = [int(count) for count in buckets.sum(axis=1)]
    points: list[Point] = []
    for first, last in stretches(range(len(counts)), counts, spans_s, per_mille, spans_s[-1][1] / REACH_PARTS):
        row = buckets[first : last + 1].sum(axis=0)
        known = is_supported(per_mille, int(row.sum()))
        value = math.exp(log_quantile(row, per_mille)) / NS_PER_MS if known else None
        points.append(((spans_s[first][0] + spans_s[last][1]) / 2, value))
    return points


def _percentiles(curves: Sequence[Sequence[tuple[float, float]]]) -> Chart:
    values = [y for curve in curves for _, y in curve]
    return Chart(
        chart_id="percentiles",
        title="Percentile curve, ms",
        description="Response time of each percentile in each run; the tail is stretched.",
        x=Axis(low=0.0, high=_tail(999), ticks=tuple((_tail(at), label) for at, label in _TICKS.items())),
        y=log_axis(min(values), max(values), unit=" ms"),
        lines=tuple(
            ChartLine(name=letter, css=css, points=tuple(curve))
            for letter, css, curve in zip(LETTERS, COLOURS, curves, strict=True)
        ),
        x_title="percent of statements",
        both_sides=True,
    )


def _curve(counts: IntArray) -> list[tuple[float, float]]:
    total = int(counts.sum())
    return [(_tail(at), math.exp(log_quantile(counts, at)) / NS_PER_MS) for at in _CURVE if is_supported(at, total)]


def _tail(per_mille: int) -> float:
    """The position of a percentile on an axis with equal distances between nines."""
    return -math.log10(1 - per_mille / 1_000)


DIFFERENCES_MAX = 200
CELL_VALUE_MAX = 400  # characters of a value in the page

_CLASSES = {ChangeVerdict.WORSE: "failed", ChangeVerdict.BETTER: "passed", ChangeVerdict.EQUIVALENT: "passed"}
_CELLS = {ChangeVerdict.WORSE: "miss", ChangeVerdict.BETTER: "ok", ChangeVerdict.EQUIVALENT: "ok"}
_PAGE_HEAD = ("metric", "verdict", "A", "B", "change", "95 % interval", "limit")


def comparison_html(comparison: Comparison) -> str:
    """The whole file."""
    found = comparison.verdict
    title = f"{comparison.a.run_id} → {comparison.b.run_id}"
    return verdict_page(
        found.value,
        html(title),
        comparison.reason,
        _runs(comparison),
        _numbers(comparison),
        _pictures(comparison),
        _configuration_section(comparison.configuration),
        css=_CLASSES.get(found, "invalid"),
        heading=html_whole_ids(title),
        footer="Two runs show the variation within a run. <code>loadgen trend</code> shows the variation from run to"
        " run.",
    )


def _runs(comparison: Comparison) -> str:
    rows = [
        [
            *map(short, (letter, run.run_id, run.scenario, run.started_at or "–")),
            f'<td class="n">{run.merged.seconds:.0f} s</td>',
        ]
        for letter, run in zip(LETTERS, (comparison.a, comparison.b), strict=True)
    ]
    return section("runs", "Runs", table("runs", ("", "run", "scenario", "started", "measured"), rows, words=4))


def _numbers(comparison: Comparison) -> str:
    groups: dict[str | None, list[MetricChange]] = {}
    for change in comparison.changes:
        groups.setdefault(change.statement, []).append(change)
    tables = [
        table("all statements" if name is None else html(name, 200), _PAGE_HEAD, map(_change_cells, changes), words=2)
        for name, changes in groups.items()
    ]
    rule = note(
        f"* counts toward the verdict: {comparison.comparisons} comparisons. Percentiles are interpolated, and differ"
        " by up to 1 % from the reports of the runs."
    )
    notes = [note(f"{html(remark, 500)}.") for remark in remarks(comparison)]
    return section("numbers", "What changed", *tables, rule, *notes)


def _change_cells(change: MetricChange) -> Sequence[str]:
    measure = change.measure
    why = f' title="{html(change.why)}"' if change.why else ""
    numbers = (
        formatting.value_of(measure, change.a, at_least=change.at_least[0]),
        formatting.value_of(measure, change.b, at_least=change.at_least[1]),
        point(change),
        interval(change),
        f"{100 * change.limit:g} {unit(measure)}",
    )
    return (
        short(f"{measure.value}{' *' if change.counts else ''}"),
        f'<td class="{_CELLS.get(change.verdict, "w")}"{why}>{verdict(change)}</td>',
        *(f'<td class="n">{number}</td>' for number in numbers),
    )


def _pictures(comparison: Comparison) -> str:
    return section("pictures", "A and B in each chart", *map(_picture, charts(comparison)))


def _picture(chart: Chart) -> str:
    keys = (
        f'<span class="key">{stroke(css)}<span>{letter}</span></span>'
        for letter, css in zip(LETTERS, COLOURS, strict=True)
    )
    return plain_figure(chart, "" if chart.dots else "".join(keys))


def _configuration_section(configuration: Sequence[SettingDifference]) -> str:
    if not configuration:
        return section("configuration", "Configuration", note("Same scenario, same environment."))
    rows = [
        [
            *(whole(text, 500) for text in (setting_name(one.key), _value(one, one.a), _value(one, one.b))),
            short(_role(one)),
        ]
        for one in configuration[:DIFFERENCES_MAX]
    ]
    left = len(configuration) - len(rows)
    more = [note(f"{left} more are not shown.")] if left else []
    head = ("setting", "A", "B", "role")
    return section("configuration", "Configuration", table("what differs", head, rows, words=4), *more)


def _value(one: SettingDifference, side: object) -> str:
    return value_text(_value_of(one, side), CELL_VALUE_MAX) or "set"


def _role(one: SettingDifference) -> str:
    return "compared (--vary)" if one.varied else "should not affect the result"
