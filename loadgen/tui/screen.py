"""A screen state as lines of text, for any size of the terminal. Pure."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.text import Text

from loadgen.log import printable
from loadgen.model.run import Phase
from loadgen.report.formatting import bounded
from loadgen.tui import panels
from loadgen.tui.draw import (
    LABEL,
    NOTHING,
    cell,
    chart,
    clock,
    cut_between_words,
    label,
    one_line,
    percent,
    rate,
    short,
    time_of,
)
from loadgen.tui.experiment_panel import experiment, experiment_lines
from loadgen.tui.history import RECENT_S, HistorySecond
from loadgen.tui.screen_state import LatencyDistribution, ScreenState
from loadgen.tui.threshold_panel import thresholds, thresholds_page
from loadgen.units import NS_PER_MS
from loadgen.values import dataclass

# --- Charts of the screen: throughput and p95 over time, with axes, and how response times are spread ----------------

FIGURES = 23  # columns of the numbers beside a chart
AXIS = 8  # columns of the numbers of an axis, and its line
SCALE_MAX = 6  # maximum columns of one second
BAR_MAX = 8  # columns of a bar of a histogram
HISTOGRAM_MIN = 5  # minimum lines of a readable chart

_TICKS_MIN = 3
_TICKS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600)
_NICE = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0)


@dataclass(frozen=True, slots=True)
class ChartSpan:
    """The part of the run in the charts: from `first_s` on, with `scale` columns per second."""

    first_s: int
    seconds: int
    scale: int

    @property
    def columns(self) -> int:
        return self.seconds * self.scale


def span(view: ScreenState, width: int) -> ChartSpan:
    """The planned run if it fits, else its last part."""
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
    mean = f"avg {short(window.qps) if window is not None and window.seconds else NOTHING}"
    most = f"peak {NOTHING if peak is None else bounded(short(peak.qps), at_least=peak.at_least)}"
    figures = [now, f"{mean}/s", f"{most}/s"]
    if limit <= 2:
        figures = [f"{now} {most}/s", f"{mean}/s"]
    return _over_time("qps", "", "cyan", "/s", figures, lambda second: second.qps, view, width, limit, now_s)


def latency(view: ScreenState, width: int, limit: int, now_s: float) -> list[Text]:
    """Percentiles of the last seconds, with a chart of p95."""
    recent = view.recent
    times = [None] * 4 if recent is None else [recent.p50, recent.p95, recent.p99, recent.most]
    names = ("p50", "p95", "p99", "max")
    p50, p95, p99, most = (f"{name} {time_of(time)}" for name, time in zip(names, times, strict=True))
    title, caption = "response", f"last {RECENT_S} s"
    figures = [f"{p50} {p95}", f"{p99} {most}"] if limit <= 3 else [p50, p95, p99, most]
    if limit == 1:  # without a line for the caption
        title, figures = caption, [f"{p50} {p95} ms"]
    return _over_time(
        title, caption, "magenta", " ms", figures, lambda second: second.p95_ms, view, width, limit, now_s
    )


def time_axis(view: ScreenState, width: int) -> list[Text]:
    """The time axis below the charts, from the start of the run; on its left, the metric in the chart of latency."""
    shown = span(view, width)
    step_s = next((step for step in _TICKS_S if step * shown.scale >= 10), _TICKS_S[-1])
    first = -(-shown.first_s // step_s) * step_s
    ticks = range(first, shown.first_s + shown.seconds, step_s)
    marks = [((tick - shown.first_s) * shown.scale, clock(tick)) for tick in ticks]
    line = " response chart: p95".ljust(LABEL + FIGURES + AXIS - 2 - len("elapsed"))
    line += f"elapsed{_axis_line(marks, shown.columns)[AXIS - 2 :]}"
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
    """Numbers on the left, a chart on the right; the warm-up and old data are dim."""
    old = view.old_s(now_s) is not None
    shown = span(view, width)
    known = {second.at_s: second for second in view.history}
    seconds = [known.get(shown.first_s + place // shown.scale) for place in range(shown.columns)]
    values = [value_of(second) if second is not None and _is_under_load(second, known) else None for second in seconds]
    top = nice_top(max((value for value in values if value is not None), default=0.0))

    def style(place: int) -> str:
        second = seconds[place]
        return "dim" if old or (second is not None and second.phase is Phase.WARMUP) else colour

    borders = [place for place in range(0, shown.columns, shown.scale) if _is_border(seconds[place], known)]
    drawn = chart(values, height, style=style, top=top, borders=borders)
    scale = _scale(top, height, unit)
    lines = []
    for number in range(height):
        line = label(title if number == 0 else subtitle if number == 1 else "")
        figure = figures[number] if number < len(figures) else ""
        line.append(cell(figure, FIGURES), style="dim" if old else "bold" if number == 0 else "")
        lines.append(Text.assemble(line, (scale[number], "dim"), drawn[number]))
    return lines


def _is_under_load(second: HistorySecond, known: Mapping[int, HistorySecond]) -> bool:
    """Whether there was load in the whole second: not in the cool-down, and not in the second in which it begins."""
    following = known.get(second.at_s + 1, second)
    return Phase.COOLDOWN not in (second.phase, following.phase)


def _is_border(second: HistorySecond | None, known: Mapping[int, HistorySecond]) -> bool:
    """Whether the load or a phase begins in this second."""
    if second is None:
        return False
    before = known.get(second.at_s - 1)
    return second.qps is None if before is None else before.phase is not second.phase


# --- axes ------------------------------------------------------------------------------------------------------------


def nice_top(value: float) -> float:
    """The end of an axis: a round number that is at least the value."""
    if value <= 0.0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(value))
    return next(size * nice for nice in _NICE if size * nice >= value * (1 - 1e-9))


def _scale(top: float, height: int, unit: str) -> list[str]:
    """The labels of a vertical axis, line by line: its end, its middle if there is room, and 0."""
    end, middle = short(top), short(top / 2)
    if len(f"{end}{unit}") >= AXIS:  # 2000 ms instead of 2,000 ms, so that the line of the axis stays in its column
        end, middle = end.replace(",", ""), middle.replace(",", "")
    if len(f"{end}{unit}") >= AXIS:
        unit = unit.lstrip()
    numbers = [""] * height
    numbers[-1] = "0"
    if height >= 5:
        numbers[height // 2] = middle
    numbers[0] = f"{end}{unit}"
    return [f"{cell(number, AXIS - 1, right=True)}{'┤' if number else '│'}" for number in numbers]


def _axis_line(marks: Sequence[tuple[int, str]], columns: int) -> str:
    """A horizontal axis with marks at their columns; marks that do not fit are left out."""
    line = ""
    for column, text in marks:
        if column >= len(line) + (1 if line else 0) and column + len(text) <= columns:
            line += "─" * (column - len(line)) + text
    return " " * (AXIS - 1) + "└" + line + "─" * (columns - len(line))


# --- the distribution of response times ------------------------------------------------------------------------------


def histogram(view: ScreenState, width: int, limit: int) -> list[Text]:
    """The histogram of response times on a logarithmic axis, with the percentiles below it."""
    window = view.window
    if window is None or window.spread is None or limit < HISTOGRAM_MIN:
        return []
    room = width - LABEL - AXIS - 2
    edges, counts = _fitting(window.spread, room)
    bar = max(1, min(room // len(counts), BAR_MAX))
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

    ticks = [(column(tick), f"{tick:g} ms") for tick in _ticks_ms(edges[0], edges[-1])]
    lines.append(Text.assemble(" " * LABEL, (_axis_line(ticks, len(shares)), "dim")))
    lines.append(_percentiles(window.spread, column, len(shares)))
    return lines


def _ticks_ms(low: float, high: float) -> list[float]:
    """Round numbers for the axis; more of them on a narrow range."""
    for digits in ((1, 2, 5), _NICE[:-1]):
        ticks = [digit * 10.0**power for power in range(-3, 7) for digit in digits]
        shown = [tick for tick in ticks if low <= tick <= high]
        if len(shown) >= _TICKS_MIN:
            break
    return shown


def _fitting(spread: LatencyDistribution, room: int) -> tuple[list[float], list[int]]:
    """Edges and counts, with neighbours added up so that they fit."""
    each = -(-len(spread.counts) // max(1, room))
    counts = [sum(spread.counts[place : place + each]) for place in range(0, len(spread.counts), each)]
    edges = [max(edge, 1e-6) for edge in [*spread.edges_ms[:-1:each], spread.edges_ms[-1]]]
    return edges, counts


def _percentiles(spread: LatencyDistribution, column: Callable[[float], int], columns: int) -> Text:
    """The percentiles below their places; beside one another without arrows where they are too near."""
    words = [f"{one_line(name, 4)} {time_of(found)}" for name, found in spread.percentiles]
    line = ""
    for word, (_, found) in zip(words, spread.percentiles, strict=True):
        place = min(column(found.value_ns / NS_PER_MS), columns - 1)
        if place < len(line):
            line = f"{', '.join(words)} ms"
            break
        line += " " * (place - len(line)) + f"↑{word} "
    return Text.assemble(" " * (LABEL + AXIS), (line.rstrip(), "bold"))


_HELP = """
 qps         statements that succeeded, per second: now, average of the window,
             and the highest second of this phase (of the last three minutes)
 response    times in ms, of the last ten seconds; in an open loop from the
             scheduled time
 charts      one column or more per second, dim in the warm-up; ┊ a phase begins
 statement   of the named window: warm-up, stage or step; small bars show the
             last seconds, from 0 to the number behind them
 workers     ● running  ○ starting  ◌ waiting  ◒ draining  ✓ done
             ◐ stale  ✗ dead  · no heartbeat yet
 client CPU  of the busiest worker, in percent of one core: ! from 60 %; ✗ from
             85 %: the client is the limit, and the run becomes INVALID
 thresholds  ✓ met so far  ✗ MISSED so far  ○ no data yet, or undecided: the
             value is not known exactly enough, and does not count as met
 –           too few samples
 ≥  ≤        at least, at most: cut-off statements, missing seconds, few samples
 no update   time since the last data; the countdown continues as planned
 log         the last events; times are UTC
 e  t  ?     errors, all thresholds, this page; again: back     Ctrl-L  redraw
"""
_OF_EXPERIMENT = " x  the experiment, and back   b / a: b compared with a   ✗ not usable"
_STOP = " q  stop gracefully, as Ctrl-C does; Ctrl-C again cancels running statements"
_LEAVE = " q  leave this view: the run continues (`loadgen stop RUN` stops it)"


def explanation(view: ScreenState, room: int) -> list[Text]:
    more = [] if view.experiment is None else [Text(_OF_EXPERIMENT)]
    lines = [Text(line) for line in _HELP.splitlines()]
    return [*lines[: room - 1 - len(more)], *more, Text(_LEAVE if view.quits else _STOP)]


def errors(view: ScreenState, width: int, room: int) -> list[Text]:
    """The page of errors: the most frequent first, each with an example, then the last errors of workers."""
    lines = [Text("")]
    if not view.errors:
        lines.append(Text(" no statement has failed"))
    total = sum(group.count for group in view.errors)
    for group in view.errors:
        head = Text.assemble((f" {panels.error_name(group)}", "bold red"))
        lines += [head.append(f"  {percent(group.count / total)} of errors", style="dim")]
        lines += _wrapped(one_line(group.example, 400), width)
    earlier = view.failed - total
    if earlier > 0 and view.errors:
        lines.append(Text(f" {earlier:,} more occurred before this view was opened", style="dim"))
    for worker in view.workers:
        if worker.said:
            lines.append(Text(f" {one_line(worker.worker_id, 40)} last error", style="bold"))
            lines += _wrapped(one_line(worker.said, 400), width)
    return _fitted(lines, room)


def _fitted(lines: list[Text], room: int) -> list[Text]:
    """The lines of a page; those without room are counted."""
    if len(lines) <= room:
        return lines
    return [*lines[: room - 1], Text(f" … {len(lines) - room + 1} more lines", style="dim")]


def _wrapped(text: str, width: int) -> list[Text]:
    return [Text(f"     {line}") for line in textwrap.wrap(text, max(10, width - 6))]


# What Ctrl-C does while a run stops, by the number of requests before it.
_NEXT_INTERRUPT = (
    "Ctrl-C twice: cancel running statements",
    "Ctrl-C again: cancel running statements",
    "Ctrl-C again: end this program at once",
)


def keys(view: ScreenState, width: int) -> Text:
    """The last line: the keys, and what Ctrl-C does, in the longest form that fits."""
    pages = f"e errors   t thresholds   {'' if view.experiment is None else 'x experiment   '}? help"
    if view.quits:
        forms = [f"q leave{'' if view.stopping else ', the run continues'}   {pages}", f"q leave   {pages}"]
    elif view.stopping:
        interrupt = _NEXT_INTERRUPT[min(view.interrupts, 2)]
        forms = [f"{interrupt}   {pages}", f"{interrupt}   ? help"]
    else:
        stops = ["q stop the run", "q stop"] if view.experiment is None else ["q stop"]  # else it stops both
        ends = [f"   {_NEXT_INTERRUPT[0]}", "   Ctrl-C twice: cancel statements", ""]
        forms = [f"{stop}   {pages}{end}" for end in ends for stop in stops]
    return Text(f" {next((form for form in forms if len(form) < width), forms[-1])}", style="dim")


WIDTH_MIN, HEIGHT_MIN = 60, 12  # on a smaller screen only two lines are shown
WIDE, TALL = 100, 50  # minimum size for a histogram
SMALL = 20  # lines; on a lower screen charts have one line


class ScreenPage(Enum):
    RUN = "run"
    ERRORS = "errors"
    HELP = "help"
    THRESHOLDS = "thresholds"
    EXPERIMENT = "experiment"


@dataclass(frozen=True, slots=True)
class ScreenImage:
    """Lines, each cut at the edge of the screen, because a wrapped line would move all others."""

    lines: tuple[Text, ...]
    width: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for number, line in enumerate(self.lines):
            if number:
                yield Segment.line()
            cut = cut_between_words(line, self.width)
            cut.stylize_before(cut.style)  # render() ignores it where a text has no other style
            for segment in cut.render(console):
                yield Segment(printable(segment.text), segment.style)  # in case a part of the screen did not escape it


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenSection:
    """A part of the screen with at least `least` lines, preferably `good`, at most `most`. `apart`: after a blank line,
    if there is room."""

    draw: Callable[[int], list[Text]]
    least: int = 1
    good: int = 1
    most: int = 1
    apart: bool = False


def render(view: ScreenState, width: int, height: int, now_s: float, page: ScreenPage = ScreenPage.RUN) -> ScreenImage:
    """The screen: exactly `height` lines of at most `width` columns."""
    if width < WIDTH_MIN or height < HEIGHT_MIN:
        return _small(view, width, height, now_s)
    head = panels.header(view, width, now_s)
    room = height - len(head) - 1
    if page is ScreenPage.ERRORS:
        body = errors(view, width, room)
    elif page is ScreenPage.HELP:
        body = explanation(view, room)
    elif page is ScreenPage.THRESHOLDS:
        body = _fitted([Text(""), *thresholds_page(view, width)], room)
    elif page is ScreenPage.EXPERIMENT and view.experiment is not None:
        body = _fitted([Text(""), *experiment_lines(view, width)], room)
    else:
        body = _body(_sections(view, width, height, now_s), room)
    body = [*body[:room], *[Text("")] * (room - len(body))]
    return ScreenImage((*head, *body, keys(view, width)), width)


def _small(view: ScreenState, width: int, height: int, now_s: float) -> ScreenImage:
    recent = view.recent
    numbers = "" if recent is None or recent.qps is None else f" {rate(recent.qps)}/s p95 {time_of(recent.p95)} ms"
    lines = [panels.header(view, width, now_s)[1], Text(f"{numbers}  {view.failed} failed  (window too small)")]
    return ScreenImage(tuple([*lines, *[Text("")] * height][:height]), width)


def _sections(view: ScreenState, width: int, height: int, now_s: float) -> list[ScreenSection]:
    """The parts of the screen from the top. Before the run exists: thresholds and events."""
    events = _log_section(view, width)
    entries = len(thresholds(view, width, 10))
    limits = ScreenSection(
        draw=lambda limit: thresholds(view, width, limit), least=min(entries, 1), good=entries, most=entries
    )
    if not view.status:
        return [_experiment(view, width), replace(limits, apart=True), events]
    rows = len(view.window.statements) if view.window is not None else 0
    statement_lines = panels.statement_lines(view, width)
    worker_lines = panels.worker_lines(view, width, now_s)
    seen = 0 if view.warehouse is None else 1
    warned = panels.warning_lines(view, width)
    high = 15 if height >= TALL else 9
    low = 2 if height >= SMALL else 1  # a chart of one line has no zero
    spread = view.window is not None and view.window.spread is not None
    bars = 11 if spread and height >= TALL and width >= WIDE else 0
    return [
        _experiment(view, width),
        ScreenSection(draw=lambda limit: panels.load(view, width, limit), apart=True),
        ScreenSection(draw=lambda limit: throughput(view, width, limit, now_s), least=low, good=2, most=high),
        ScreenSection(draw=lambda limit: latency(view, width, limit, now_s), least=low, good=2, most=high),
        ScreenSection(draw=lambda limit: time_axis(view, width)),
        ScreenSection(draw=lambda limit: histogram(view, width, limit), least=bars, good=bars, most=bars, apart=True),
        ScreenSection(
            draw=lambda limit: panels.errors(view, width, limit),
            least=panels.error_lines(view, width, 1),
            good=panels.error_lines(view, width, 2),
            most=panels.error_lines(view, width, 4),
        ),
        limits,
        ScreenSection(
            draw=lambda limit: panels.statements(view, width, limit),
            least=min(1 + rows, 4),
            good=min(statement_lines, 6),
            most=statement_lines,
            apart=True,
        ),
        ScreenSection(
            draw=lambda limit: panels.workers(view, width, limit, now_s),
            good=min(worker_lines, 5 if view.find_max is None else 2),
            most=worker_lines,
            apart=True,
        ),
        ScreenSection(
            draw=lambda limit: panels.find_max(view, width, limit),
            least=min(panels.find_max_lines(view, width, 2 if height >= SMALL else 1), height // 4),
            good=panels.find_max_lines(view, width, 5),
            most=panels.find_max_lines(view, width, 12),
            apart=True,
        ),
        ScreenSection(draw=lambda limit: panels.warehouse(view, width, limit), least=seen, good=seen, most=seen),
        ScreenSection(
            draw=lambda limit: panels.warnings(view, width, limit), least=min(warned, 1), good=warned, most=warned
        ),
        events,
    ]


def _log_section(view: ScreenState, width: int) -> ScreenSection:
    return ScreenSection(
        draw=lambda limit: panels.log(view, width, limit),
        least=max(1, panels.log_lines(view, width, 1)),
        good=panels.log_lines(view, width, 2),
        most=panels.log_lines(view, width, 10),
        apart=True,
    )


def _experiment(view: ScreenState, width: int) -> ScreenSection:
    wanted = len(experiment_lines(view, width))
    return ScreenSection(
        draw=lambda limit: experiment(view, width, limit),
        least=min(wanted, 4),
        good=min(wanted, 6),
        most=wanted,
        apart=True,
    )


def _body(sections: Sequence[ScreenSection], room: int) -> list[Text]:
    given = distribute_lines(sections, room)
    spare = room - sum(given)
    lines: list[Text] = []
    for section, limit in zip(sections, given, strict=True):
        if not limit:
            continue
        if section.apart and spare > 0:
            spare -= 1
            lines.append(Text(""))
        lines += section.draw(limit)
    return lines


def distribute_lines(sections: Sequence[ScreenSection], room: int) -> list[int]:
    """The number of lines of each section: first the minimum of each, in order; then blank lines; then the preferred
    sizes, smallest deficit first; then all grow in turns to their maximum."""
    given = []
    for section in sections:
        given.append(min(section.least, max(room, 0)))
        room -= given[-1]
    room -= sum(section.apart and lines > 0 for section, lines in zip(sections, given, strict=True))
    shown = [place for place, lines in enumerate(given) if lines]
    for place in sorted(shown, key=lambda place: sections[place].good - given[place]):
        more = max(0, min(sections[place].good - given[place], room))
        given[place] += more
        room -= more
    while room > 0 and any(given[place] < sections[place].most for place in shown):
        for place in shown:
            if room > 0 and given[place] < sections[place].most:
                given[place] += 1
                room -= 1
    return given
