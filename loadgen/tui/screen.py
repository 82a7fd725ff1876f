"""A view as lines of text, for a screen of any size. Pure: the same view, size and moment give the same picture."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.text import Text

from loadgen.log import printable
from loadgen.tui import charts, panels, workers_panel
from loadgen.tui.draw import cut_between_words, one_line, percent, rate, time_of
from loadgen.tui.screen_state import ScreenState

_HELP = """
 QPS         statements that succeeded, per second: now, mean of the window, and
             the highest second of this phase (of the last three minutes)
 latency     of the last ten seconds; in an open loop from the scheduled time
 charts      one column or more per second, dim in the warm-up; ┊ a phase begins
 statement   of the window named beside it: warm-up, a stage, a step; small bars
             are its last seconds, from 0 to the number behind them
 workers     ● running  ○ starting  ◌ waiting  ◒ draining  ✓ done
             ◐ stale  ✗ dead  · no heartbeat yet
 client CPU  of the busiest worker, of one core: ! from 60 %; ✗ from 85 % on
             the client is the limit, and the run will be INVALID
 thresholds  ✓ met so far  ✗ MISSED so far  ○ nothing to judge yet
 –           too few samples to say
 ≥           at least: statements were cut off, or seconds are missing
 no news     for how long nothing was heard: all numbers are that old, and the
             countdown is the plan's
 log         the last lines; times are UTC

 e  errors, and back     ?  this page, and back     Ctrl-L  draw again
"""
_STOP = " q  stop gracefully, as Ctrl-C does; Ctrl-C again cancels running statements"
_LEAVE = " q  leave this view: the run goes on (`loadgen stop RUN` stops it)"


def explanation(view: ScreenState, width: int, room: int) -> list[Text]:
    return [*(Text(line) for line in _HELP.splitlines()), Text(_LEAVE if view.quits else _STOP)][:room]


def errors(view: ScreenState, width: int, room: int) -> list[Text]:
    """Most frequent first, each with one example, then the last errors of workers."""
    lines = [Text("")]
    if not view.errors:
        lines.append(Text(" no statement has failed"))
    total = sum(group.count for group in view.errors)
    for group in view.errors:
        code = "" if group.code is None else f" {group.code}"
        head = Text.assemble((f" {group.count:,} × {one_line(group.category, 30)}{code}", "bold red"))
        lines += [head.append(f"  {percent(group.count / total)} of errors", style="dim")]
        lines += _wrapped(one_line(group.example, 400), width)
    earlier = view.failed - total
    if earlier > 0 and view.errors:
        lines.append(Text(f" {earlier:,} more happened before this view was opened", style="dim"))
    for worker in view.workers:
        if worker.said:
            lines.append(Text(f" {one_line(worker.worker_id, 40)} said last", style="bold"))
            lines += _wrapped(one_line(worker.said, 400), width)
    if len(lines) > room:
        lines = [*lines[: room - 1], Text(f" … {len(lines) - room + 1} more lines", style="dim")]
    return lines


def _wrapped(text: str, width: int) -> list[Text]:
    return [Text(f"     {line}") for line in textwrap.wrap(text, max(10, width - 6))]


WIDTH_MIN, HEIGHT_MIN = 60, 12  # below this there are two lines, and no more
WIDE, TALL = 100, 50  # from here on there is room for a histogram
ROOMY = 30  # lines, for a search with its steps and charts


class ScreenPage(Enum):
    RUN = "run"
    ERRORS = "errors"
    HELP = "help"


@dataclass(frozen=True, slots=True)
class ScreenImage:
    """Lines, each cut at the edge: nothing ever wraps, so nothing can push the rest away."""

    lines: tuple[Text, ...]
    width: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for number, line in enumerate(self.lines):
            if number:
                yield Segment.line()
            cut = cut_between_words(line, self.width)
            cut.stylize_before(cut.style)  # render() leaves it out where a text has no other style
            for segment in cut.render(console):
                yield Segment(printable(segment.text), segment.style)  # whatever a part of the screen has missed


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenSection:
    """A part of `least` lines, better `good`, at most `most`. `apart`: after a blank line, when there is room."""

    draw: Callable[[int], list[Text]]
    least: int = 1
    good: int = 1
    most: int = 1
    apart: bool = False


def render(view: ScreenState, width: int, height: int, now_s: float, page: ScreenPage = ScreenPage.RUN) -> ScreenImage:
    """The picture of a view: exactly `height` lines, none wider than `width`."""
    if width < WIDTH_MIN or height < HEIGHT_MIN:
        return _small(view, width, height, now_s)
    head = panels.header(view, width, now_s)
    room = height - len(head) - 1
    if page is ScreenPage.ERRORS:
        body = errors(view, width, room)
    elif page is ScreenPage.HELP:
        body = explanation(view, width, room)
    else:
        body = _body(_sections(view, width, height, now_s), room)
    body = [*body[:room], *[Text("")] * (room - len(body))]
    return ScreenImage((*head, *body, panels.keys(view, width)), width)


def _small(view: ScreenState, width: int, height: int, now_s: float) -> ScreenImage:
    recent = view.recent
    numbers = "" if recent is None or recent.qps is None else f" {rate(recent.qps)}/s p95 {time_of(recent.p95)} ms"
    lines = [panels.header(view, width, now_s)[1], Text(f"{numbers}  {view.failed} failed  (window too small)")]
    return ScreenImage(tuple([*lines, *[Text("")] * height][:height]), width)


def _sections(view: ScreenState, width: int, height: int, now_s: float) -> list[ScreenSection]:
    """From the top down. Before there is a run, what is checked and what happened."""
    told = max(1, min(len(view.log), 10))
    events = ScreenSection(draw=lambda limit: panels.log(view, width, limit), good=min(told, 2), most=told, apart=True)
    lamps = len(panels.thresholds(view, width, 10))
    limits = ScreenSection(
        draw=lambda limit: panels.thresholds(view, width, limit), least=min(lamps, 1), good=lamps, most=lamps
    )
    if not view.status:
        return [replace(limits, apart=True), events]
    rows = len(view.window.statements) if view.window is not None else 0
    worker_lines = workers_panel.lines_wanted(view, width, now_s)
    rungs = panels.lines_wanted(view)
    seen = 0 if view.warehouse is None else 1
    warned = len(view.warnings)
    kinds = 1 + min(len(view.errors), 4)
    high = 11 if height >= TALL else 7
    axis = 0 if view.ladder is not None and height < ROOMY else 1  # steps of a search say more than their charts
    good = 1 + axis
    spread = view.window is not None and view.window.spread is not None
    bars = 11 if spread and height >= TALL and width >= WIDE else 0
    return [
        ScreenSection(draw=lambda limit: panels.load(view, width, limit), apart=True),
        ScreenSection(draw=lambda limit: charts.throughput(view, width, limit, now_s), good=good, most=high),
        ScreenSection(draw=lambda limit: charts.latency(view, width, limit, now_s), good=good, most=high),
        ScreenSection(draw=lambda limit: charts.time_axis(view, width), least=axis, good=axis, most=axis),
        ScreenSection(
            draw=lambda limit: charts.histogram(view, width, limit), least=bars, good=bars, most=bars, apart=True
        ),
        ScreenSection(
            draw=lambda limit: panels.errors(view, width, limit), least=min(kinds, 2), good=min(kinds, 3), most=kinds
        ),
        limits,
        ScreenSection(
            draw=lambda limit: panels.statements(view, width, limit),
            least=min(1 + rows, 4),
            good=min(1 + rows, 6),
            most=1 + rows,
            apart=True,
        ),
        ScreenSection(
            draw=lambda limit: workers_panel.workers(view, width, limit, now_s),
            good=min(worker_lines, 5 if view.ladder is None else 2),
            most=worker_lines,
            apart=True,
        ),
        ScreenSection(
            draw=lambda limit: panels.find_max_panel(view, width, limit),
            least=min(rungs, 2),
            good=min(rungs, 7),
            most=rungs,
            apart=True,
        ),
        ScreenSection(draw=lambda limit: panels.warehouse(view, width, limit), least=seen, good=seen, most=seen),
        ScreenSection(
            draw=lambda limit: panels.warnings(view, width, limit), least=min(warned, 1), good=warned, most=warned
        ),
        events,
    ]


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
    """How many lines each section gets: first its minimum, in order; then blank lines between them; then its good
    size, smallest deficit first; then all grow by turns to their maximum."""
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
