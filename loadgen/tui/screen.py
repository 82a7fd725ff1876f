"""A view as lines of text, for a screen of any size. Pure: the same view, size and moment give the same picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.text import Text

from loadgen.log import printable
from loadgen.tui import charts, find_max_panel, pages, panels, workers_panel
from loadgen.tui.draw import cut_between_words
from loadgen.tui.screen_state import ScreenState
from loadgen.tui.words import rate, time_of

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
        body = pages.errors(view, width, room)
    elif page is ScreenPage.HELP:
        body = pages.explanation(view, width, room)
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
    crew = workers_panel.lines_wanted(view, width, now_s)
    rungs = find_max_panel.lines_wanted(view)
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
            good=min(crew, 5 if view.ladder is None else 2),
            most=crew,
            apart=True,
        ),
        ScreenSection(
            draw=lambda limit: find_max_panel.find_max_panel(view, width, limit),
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
    """How many lines each section gets: first what it needs, in order; then blank lines between them; then what is
    good, whoever lacks least first; then all grow by turns to what they want."""
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
