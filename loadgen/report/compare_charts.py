"""The pictures of a comparison: both runs over each other, and every change against its limit. Pure.

A is always the first colour, B the second, and each line carries its letter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from loadgen.metrics.buckets import IntArray
from loadgen.metrics.percentile import is_supported
from loadgen.report.bootstrap import log_quantile
from loadgen.report.comparison import Comparison, MeasuredRun, MetricChange
from loadgen.report.limits import Measure
from loadgen.report.svg import Axis, Chart, ChartBand, ChartDot, ChartLine, linear_axis, log_axis, time_axis
from loadgen.units import NS_PER_MS

COLOURS = ("s1", "s2")
LETTERS = ("A", "B")

_POINTS_MAX = 600  # of a line; more cannot be seen
_CURVE = tuple(sorted({*range(10, 990, 20), *range(900, 1_000, 5), 999}))  # thousandths
_TICKS = {500: "50", 900: "90", 950: "95", 990: "99", 999: "99.9"}
_REACH = 3.0  # how many limits the picture of changes shows
_IN_LIMITS = ("≤ -3", "-2", "-1", "0", "+1", "+2", "≥ +3")  # what is further out is drawn at the end
_ROW_HEIGHT = 24
_SHORT = {Measure.ERROR_RATE: "errors", Measure.MAX_CONCURRENCY: "maximum"}  # beside an axis there is little room


def charts(comparison: Comparison) -> Iterator[Chart]:
    changes = [change for change in comparison.changes if change.statement is None and change.span is not None]
    if changes:
        yield _changes(changes)
    if comparison.a.find_max is not None:
        return  # seconds of different levels say nothing about each other
    runs = (comparison.a, comparison.b)
    if all(len(run.series) for run in runs):
        yield _over_time("rate", "Statements per second", runs, _rates, "/s")
        yield _over_time("p50", "Response time, p50 of each second", runs, lambda run: _quantiles(run, 500), " ms")
        yield _over_time("p95", "Response time, p95 of each second", runs, lambda run: _quantiles(run, 950), " ms")
    curves = [_curve(run.merged.tally.whole.succeeded.response.counts) for run in runs]
    if all(curves):
        yield _percentiles(curves)


def _changes(changes: Sequence[MetricChange]) -> Chart:
    """Each interval in units of its limit, so that all can share one axis; to the right is worse."""
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
    names = [_SHORT.get(change.measure, change.measure.value) for change in reversed(changes)]
    return Chart(
        chart_id="changes",
        title="Change from A to B, in units of each metric's limit",
        description="Each metric's change with its 95 % interval. Within ±1 it is tolerated; to the right is worse.",
        x=Axis(low=-_REACH, high=_REACH, ticks=tuple(zip(range(-3, 4), _IN_LIMITS, strict=True))),
        y=Axis(low=0.0, high=len(changes) + 1, ticks=tuple((row, name) for row, name in enumerate(names, 1))),
        lines=tuple(lines),
        dots=tuple(dots),
        bands=(ChartBand(start=-1.0, end=1.0, label="within the limit", css="warmup"),),
        x_title="better ← limits → worse",
        height=60 + _ROW_HEIGHT * len(changes),
    )


def _over_time(
    chart_id: str,
    title: str,
    runs: Sequence[MeasuredRun],
    values_of: Callable[[MeasuredRun], list[float | None]],
    unit: str,
) -> Chart:
    lines = []
    for run, letter, css in zip(runs, LETTERS, COLOURS, strict=True):
        ends_s = np.cumsum(run.series.seconds).tolist()
        every = -(-len(ends_s) // _POINTS_MAX)
        points = tuple(zip(ends_s, values_of(run), strict=True))[::every]
        lines.append(ChartLine(name=letter, css=css, points=points))
    known = [y for line in lines for _, y in line.points if y is not None]
    return Chart(
        chart_id=chart_id,
        title=title,
        description="Run A and run B, both from the beginning of their measurement.",
        x=time_axis(max(line.points[-1][0] for line in lines)),
        y=linear_axis(max(known, default=1.0), unit=unit),
        lines=tuple(lines),
    )


def _rates(run: MeasuredRun) -> list[float | None]:
    return list((run.series.buckets.sum(axis=1) / run.series.seconds).tolist())


def _quantiles(run: MeasuredRun, per_mille: int) -> list[float | None]:
    return [
        math.exp(log_quantile(row, per_mille)) / NS_PER_MS if is_supported(per_mille, int(row.sum())) else None
        for row in run.series.buckets
    ]


def _percentiles(curves: Sequence[Sequence[tuple[float, float]]]) -> Chart:
    values = [y for curve in curves for _, y in curve]
    return Chart(
        chart_id="percentiles",
        title="Response time by percentile",
        description="How long the fastest share of statements took in each run; the tail is stretched.",
        x=Axis(low=0.0, high=_tail(999), ticks=tuple((_tail(at), label) for at, label in _TICKS.items())),
        y=log_axis(min(values), max(values), unit=" ms"),
        lines=tuple(
            ChartLine(name=letter, css=css, points=tuple(curve))
            for letter, css, curve in zip(LETTERS, COLOURS, curves, strict=True)
        ),
        x_title="percent of statements",
    )


def _curve(counts: IntArray) -> list[tuple[float, float]]:
    total = int(counts.sum())
    return [(_tail(at), math.exp(log_quantile(counts, at)) / NS_PER_MS) for at in _CURVE if is_supported(at, total)]


def _tail(per_mille: int) -> float:
    """Where a percentile stands: each nine as far from the next."""
    return -math.log10(1 - per_mille / 1_000)
