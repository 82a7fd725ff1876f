"""What `loadgen prepare` shows on stderr while it works: a bar on a terminal, else a line now and then, or nothing.

The main thread draws; the newest progress is all it needs.
"""

from __future__ import annotations

import os
import sys
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from loadgen.cli.common import echo
from loadgen.clock import Clock
from loadgen.log import printable
from loadgen.prepare.prepare import PreparationProgress as State
from loadgen.prepare.prepare import PreparationStep
from loadgen.units import NS_PER_S, counted

LINE_S = 10.0

_WORDS = {PreparationStep.LOOKING: "looking at what is there", PreparationStep.STATEMENTS: "running prepare.statements"}


class PreparationDisplay(Protocol):
    """Shows where a preparation is. Called by the main thread only."""

    def show(self, state: State) -> None: ...
    def say(self, text: str) -> None: ...
    def close(self) -> None: ...


def preparation_display(*, quiet: bool, clock: Clock) -> PreparationDisplay:
    """The display that fits where stderr goes."""
    if quiet:
        return NoProgress()
    if sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb"):
        return ProgressBars()
    return ProgressLines(clock)


class NoProgress:
    """--quiet."""

    def show(self, state: State) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class ProgressLines:
    """One line at once, at each new table, and every ten seconds: for files, pipes and cron."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: State | None = None
        self._last_ns = 0
        self._first_rows, self._first_ns = 0, 0  # of the table that is being filled

    def show(self, state: State) -> None:
        now_ns = self._clock.monotonic_ns()
        is_new = self._last is None or (self._last.step, self._last.table) != (state.step, state.table)
        if is_new:
            self._first_rows, self._first_ns = state.rows_there, now_ns
        if is_new or now_ns - self._last_ns >= LINE_S * NS_PER_S:
            self._last, self._last_ns = state, now_ns
            self.say(progress_line(state, state.rows_there - self._first_rows, (now_ns - self._first_ns) / NS_PER_S))

    def say(self, text: str) -> None:
        echo(printable(text), err=True)

    def close(self) -> None:
        """Nothing to put back."""


def progress_line(state: State, rows: int, seconds: float) -> str:
    """One state in words; `rows` were added in the last `seconds`."""
    if not state.table:
        return _WORDS.get(state.step, str(state.step))
    if state.step is PreparationStep.VERIFYING:
        return f"{state.table}: counting {counted(state.rows, 'row')}"
    text = f"{state.table}: {state.rows_there:,} of {counted(state.rows, 'row')}"
    if rows and seconds:
        rate = rows / seconds
        text += f", {rate:,.0f} rows/s, {(state.rows - state.rows_there) / rate:,.0f} s left"
    return text


class ProgressBars:
    """A bar per table."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            _Rows(),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True),
            auto_refresh=False,  # a second thread would draw at the same time
        )
        self._tasks: dict[str, TaskID] = {}
        self._progress.start()

    def show(self, state: State) -> None:
        name = printable(state.table or _WORDS.get(state.step, str(state.step)))
        if name not in self._tasks:
            total = state.rows if state.table else None
            self._tasks[name] = self._progress.add_task(name, total=total, completed=state.rows_there)
        if not state.table:  # nothing that could be measured: it moves while it lasts
            self._progress.update(self._tasks[name], refresh=True)
            return
        looking = self._tasks.pop(printable(_WORDS[PreparationStep.LOOKING]), None)
        if looking is not None:
            self._progress.remove_task(looking)
        self._progress.update(self._tasks[name], completed=state.rows_there, refresh=True)

    def say(self, text: str) -> None:
        self._progress.console.print(printable(text), markup=False, highlight=False)

    def close(self) -> None:
        """Give the terminal back: the cursor shows again, and what follows begins on a new line."""
        for name in _WORDS.values():
            if name in self._tasks:
                self._progress.remove_task(self._tasks.pop(name))
        self._progress.stop()


class _Rows(ProgressColumn):
    """Rows there, rows wanted, rows per second."""

    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text("")
        speed = f" {task.speed:,.0f} rows/s" if task.speed and not task.finished else ""
        return Text(f"{task.completed:,.0f} of {task.total:,.0f} rows{speed}")
