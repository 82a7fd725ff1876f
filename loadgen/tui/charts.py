"""Charts of the screen: throughput and p95 over time, with axes, and how response times are spread."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.text import Text

from loadgen.model.run import Phase
from loadgen.report.formatting import bounded
from loadgen.tui.draw import LABEL, NOTHING, cell, chart, clock, label, one_line, rate, short, time_of
from loadgen.tui.history import HistorySecond
from loadgen.tui.screen_state import LatencyDistribution, ScreenState
from loadgen.units import NS_PER_MS

FIGURES = 23  # columns of the numbers beside a chart
AXIS = 8  # columns of the numbers of an axis, and its line
SCALE_MAX = 6  # columns of one second, at most
HISTOGRAM_MIN = 5  # lines: a lower chart is not readable

_TICKS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600)
_TICKS_MS = tuple(digit * 10.0**power for power in range(-3, 7) for digit in (1, 2, 5))
_NICE = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0)


@dataclass(frozen=True, slots=True)
class ChartSpan:
    """What part of the run the charts show: from `first_s` on, a second in `scale` columns."""

    first_s: int
    seconds: int
    scale: int

    @property
    def columns(self) -> int:
        return self.seconds * self.scale


def span(view: ScreenState, width: int) -> ChartSpan:
    """The whole run while it fits, as the plan has it, else its last part."""
    room = max(1, width - LABEL - FIGURES - AXIS - 1)
    newest_s = view.history[-1].at_s if view.history else 0
    if view.plan_s is not None:
        whole_s = max(math.ceil(view.plan_s) + 1, newest_s + 1)
        if whole_s <= room:
            return ChartSpan(0, whole_s, min(room // whole_s, SCALE_MAX))
    return ChartSpan(max(0, newest_s - room + 1), room, 1)


# --- over time -------------------------------------------------------------------------------------------------------


def throughput(view: ScreenState, width: int, limit: int, now_s: float) -> list[Text]:
    recent, window, peak = view.recent, view.window, view.peak
    now = f"{NOTHING if recent is None or recent.qps is None else rate(recent.qps)}/s"
    mean = f"mean {short(window.qps) if window is not None and window.seconds else NOTHING}"
    most = f"peak {NOTHING if peak is None else bounded(short(peak.qps), at_least=peak.at_least)}"
    figures = [now, f"{mean}/s", f"{most}/s"]
    if limit <= 2:
        figures = [f"{now} {most}"] if limit == 1 else [now, f"{mean} {most}"]
    return _over_time("QPS", "", "cyan", "/s", figures, lambda second: second.qps, view, width, limit, now_s)


def latency(view: ScreenState, width: int, limit: int, now_s: float) -> list[Text]:
    """Percentiles of the last seconds; the chart is p95."""
    recent = view.recent
    times = [None] * 4 if recent is None else [recent.p50, recent.p95, recent.p99, recent.most]
    names = ("p50", "p95", "p99", "max")
    p50, p95, p99, most = (f"{name} {time_of(time)}" for name, time in zip(names, times, strict=True))
    figures = [f"{p50} {p95}", f"{p99} {most}"] if limit <= 3 else [p50, p95, p99, most]
    return _over_time(
        "latency ms", "chart: p95", "magenta", " ms", figures, lambda second: second.p95_ms, view, width, limit, now_s
    )


def time_axis(view: ScreenState, width: int) -> list[Text]:
    """Below the charts: time since the start of the run."""
    shown = span(view, width)
    step_s = next((step for step in _TICKS_S if step * shown.scale >= 10), _TICKS_S[-1])
    first = -(-shown.first_s // step_s) * step_s
    ticks = range(first, shown.first_s + shown.seconds, step_s)
    marks = [((tick - shown.first_s) * shown.scale, clock(tick)) for tick in ticks]
    line = f"{'elapsed':>{LABEL + FIGURES + AXIS - 2}}{_axis_line(marks, shown.columns)[AXIS - 2 :]}"
    return [Text(line, style="dim")]


def _over_time(
    title: str,
    subtitle: str,
    colour: str,
    unit: str,
    figures: Sequence[str],
    value_of: Callable[[HistorySecond], float | None],
    view: ScreenState,
    width: int,
    height: int,
    now_s: float,
) -> list[Text]:
    """Numbers on the left, a chart on the right; dim where it is warm-up, and when it is old."""
    old = view.old_s(now_s) is not None
    shown = span(view, width)
    known = {second.at_s: second for second in view.history}
    seconds = [known.get(shown.first_s + place // shown.scale) for place in range(shown.columns)]
    values = [None if second is None else value_of(second) for second in seconds]
    top = nice_top(max((value for value in values if value is not None), default=0.0))

    def style(place: int) -> str:
        second = seconds[place]
        return "dim" if old or (second is not None and second.phase is Phase.WARMUP) else colour

    borders = [place for place in range(0, shown.columns, shown.scale) if _is_border(seconds[place])]
    drawn = chart(values, height, style=style, top=top, borders=borders)
    scale = _scale(top, height, unit)
    lines = []
    for number in range(height):
        line = label(title if number == 0 else subtitle if number == 1 else "")
        figure = figures[number] if number < len(figures) else ""
        line.append(cell(figure, FIGURES), style="dim" if old else "bold" if number == 0 else "")
        lines.append(Text.assemble(line, (scale[number], "dim"), drawn[number]))
    return lines


def _is_border(second: HistorySecond | None) -> bool:
    """Does a phase begin in it? Then only a part of it was measured, and its throughput is not known."""
    return second is not None and second.qps is None


# --- axes ------------------------------------------------------------------------------------------------------------


def nice_top(value: float) -> float:
    """The end of an axis: a round number that is not below the value."""
    if value <= 0.0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(value))
    return next(size * nice for nice in _NICE if size * nice >= value * (1 - 1e-9))


def _scale(top: float, height: int, unit: str) -> list[str]:
    """The numbers of a vertical axis, line by line: its end, its middle when there is room, and nothing."""
    numbers = [""] * height
    numbers[-1] = "0"
    if height >= 5:
        numbers[height // 2] = short(top / 2)
    numbers[0] = f"{short(top)}{unit}"
    return [f"{number:>{AXIS - 1}}{'┤' if number else '│'}" for number in numbers]


def _axis_line(marks: Sequence[tuple[int, str]], columns: int) -> str:
    """A horizontal axis: each mark begins in the column that it names; those that do not fit are left out."""
    line = ""
    for column, text in marks:
        if column >= len(line) + (1 if line else 0) and column + len(text) <= columns:
            line += "─" * (column - len(line)) + text
    return " " * (AXIS - 1) + "└" + line + "─" * (columns - len(line))


# --- how times are spread --------------------------------------------------------------------------------------------


def histogram(view: ScreenState, width: int, limit: int) -> list[Text]:
    """Response times of the window, on a logarithmic axis; below it, where the percentiles are."""
    window = view.window
    if window is None or window.spread is None or limit < HISTOGRAM_MIN:
        return []
    room = width - LABEL - AXIS - 2
    edges, counts = _fitting(window.spread, room)
    bar = max(1, min(room // len(counts), 4))
    total, height = sum(counts), limit - 3
    shares = [100.0 * count / total for count in counts for _ in range(bar)]
    top = nice_top(max(shares))
    drawn = chart([share or None for share in shares], height, style=lambda _: "magenta", top=top)
    scale = _scale(top, height, " %")
    title = f"statements by response time, {one_line(window.name, 40)} so far"
    lines = [label("histogram").append(title, style="dim")]
    lines += [Text.assemble(" " * LABEL, (scale[number], "dim"), drawn[number]) for number in range(height)]

    def column(value_ms: float) -> int:
        lowest, highest = math.log(edges[0]), math.log(edges[-1])
        return round((math.log(max(value_ms, edges[0])) - lowest) / max(highest - lowest, 1e-9) * len(shares))

    ticks = [(column(tick), f"{tick:g} ms") for tick in _TICKS_MS if edges[0] <= tick <= edges[-1]]
    lines.append(Text.assemble(" " * LABEL, (_axis_line(ticks, len(shares)), "dim")))
    lines.append(_percentiles(window.spread, column, len(shares)))
    return lines


def _fitting(spread: LatencyDistribution, room: int) -> tuple[list[float], list[int]]:
    """As many bars as there is room for: neighbours are added up."""
    each = -(-len(spread.counts) // max(1, room))
    counts = [sum(spread.counts[place : place + each]) for place in range(0, len(spread.counts), each)]
    edges = [max(edge, 1e-6) for edge in [*spread.edges_ms[:-1:each], spread.edges_ms[-1]]]
    return edges, counts


def _percentiles(spread: LatencyDistribution, column: Callable[[float], int], columns: int) -> Text:
    line = ""
    for name, found in spread.percentiles:
        place = min(column(found.value_ns / NS_PER_MS), columns - 1)
        if place >= len(line):
            line += " " * (place - len(line)) + f"↑{one_line(name, 4)} {time_of(found)} "
    return Text.assemble(" " * (LABEL + AXIS), (line.rstrip(), "bold"))
