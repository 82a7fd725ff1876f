"""The other pages of the screen: every kind of error, and what the keys and marks mean."""

from __future__ import annotations

import textwrap

from rich.text import Text

from loadgen.tui.screen_state import ScreenState
from loadgen.tui.words import one_line, percent

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
    """Most frequent first, each with one example, then what workers said last."""
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
