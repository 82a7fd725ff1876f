"""The part of the screen about a search for the maximum: where it is, and the steps it has judged."""

from __future__ import annotations

from rich.text import Text

from loadgen.tui.draw import LABEL, NOTHING, cell, label, ms, one_line, rate, whole, wrapped
from loadgen.tui.screen_state import FindMaxStatus, FindMaxStepLine, ScreenState
from loadgen.units import counted

_STAGES = {
    "climb": "climbing",
    "confirm": "confirming the best",
    "verify": "confirming that it fails",
    "refine": "bisecting",
    "repeat": "measuring again",
}


def find_max(view: ScreenState, width: int, limit: int) -> list[Text]:
    search = view.ladder
    if search is None:
        return []
    lines = [_head(search, view)]
    room = limit - 1
    if room > 0 and (where := _where(search)) is not None:
        room -= 1
        lines.append(where)
    if room > 0 and search.rungs:
        rungs = [_rung(rung, width) for rung in reversed(search.rungs)]
        shown = whole(rungs, room) or [rungs[0][:room]]
        lines += [line for rung in reversed(shown) for line in rung]
    return lines


def lines_wanted(view: ScreenState, width: int, rungs: int) -> int:
    """Of a search, with its last steps."""
    return 0 if view.ladder is None else 2 + sum(len(_rung(rung, width)) for rung in view.ladder.rungs[-rungs:])


def _head(search: FindMaxStatus, view: ScreenState) -> Text:
    text = label("find max")
    if search.target is None:
        return text.append("over" if search.stage == "done" else f"step {search.step} is about to begin", style="bold")
    text.append(f"step {search.step}: {counted(search.target, 'connection')}", style="bold")
    text.append(f", {_STAGES.get(search.stage, one_line(search.stage, 20))}")
    window = view.window
    if window is not None and window.name == f"step {search.step}":
        text.append(f", measured {window.seconds:.0f} of {search.step_s:g} s")
        if window.seconds > search.step_s:
            text.append(", undecided: it goes on", style="yellow")
    else:
        text.append(", settling")
    return text


def _where(search: FindMaxStatus) -> Text:
    best = NOTHING if search.best is None else str(search.best)
    failed = NOTHING if search.failed is None else str(search.failed)
    text = Text(" " * LABEL + f"best {best}, failed {failed}")
    if search.next_if_held is not None:
        text.append(f"; next {search.next_if_held} if it holds")
    return text


def _rung(rung: FindMaxStepLine, width: int) -> list[Text]:
    """A reason that does not fit beside the numbers stands below them."""
    mark, style = ("✓", "green") if rung.held else ("✗", "bold red")
    if rung.outcome == "CLIENT_LIMIT":
        mark, style = "?", "yellow"
    text = Text.assemble(
        " " * LABEL,
        (mark, style),
        f"{rung.target:>6}  ",
        (cell(one_line(rung.outcome, 15), 15), "" if rung.held else style.removeprefix("bold ")),
    )
    text.append(f"{NOTHING if rung.qps is None else rate(rung.qps):>8}/s  p95 {ms(rung.p95_ms):>7} ms")
    reason = Text(one_line(rung.reason), style="dim")
    if text.cell_len + 2 + reason.cell_len <= width:
        return [Text.assemble(text, "  ", reason)]
    return [text, *wrapped(Text.assemble(" " * (LABEL + 2), reason), width, indent=LABEL + 2)]
