"""What commands show on stderr while they work, drawn by the main thread. `run` and `watch`: the live view on a
terminal, else lines. `prepare`: a bar on a terminal, else a line every ten seconds."""

from __future__ import annotations

import logging
import os
import sys
import termios
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from loadgen.cli.common import echo
from loadgen.clock import Clock
from loadgen.log import event, printable
from loadgen.model.run import error_hint
from loadgen.prepare.prepare import PreparationProgress, PreparationStep
from loadgen.report.experiment import ExperimentStatus
from loadgen.report.formatting import verdict_word
from loadgen.results.run_snapshot import WorkerDisplayState
from loadgen.scenario.model import Scenario
from loadgen.scenario.settings import SpawnerKind
from loadgen.tui.draw import clock as as_clock
from loadgen.tui.draw import one_line, percent, rate, time_of
from loadgen.tui.presenter import ScreenPresenter
from loadgen.tui.screen_state import LogEntry, ScreenState, TableProgress
from loadgen.tui.terminal import LiveScreen, is_usable
from loadgen.units import NS_PER_S, counted
from orchestrator.job import JobStatus

log = logging.getLogger(__name__)

LINE_S = 9.8  # below ten seconds by one tick, so that the interval between two lines never exceeds ten seconds
LINE_MAX = 1_000  # characters
_ENDING = "ending: "  # begins the entry of the log that says why the run ends


class RunLines:
    """Progress as lines of text; the main thread calls it several times per second. If the reader of stderr is gone, it
    stops printing, and the measurement continues."""

    def __init__(self, clock: Clock, *, quiet: bool) -> None:
        self._clock, self._silent = clock, quiet
        self._last_key: object = None
        self._last_ns = 0
        self._last_printed: LogEntry | None = None  # the last entry of the log that was printed
        self._ending = ""  # why the run ends: the state of a worker may repeat it

    def show(self, view: ScreenState) -> None:
        now_ns = self._clock.monotonic_ns()
        for line in self._new(view.log):
            if line.text.startswith(_ENDING):
                self._ending = line.text.removeprefix(_ENDING)
            if line.text not in (_state(view), self._ending):
                self.say(f"{view.run_id or view.scenario}: {line.text}")
        key = (view.status, view.phase, view.run_id, *(() if view.status else (view.doing, _table(view))))
        if key != self._last_key or now_ns - self._last_ns >= LINE_S * NS_PER_S:
            self._last_key, self._last_ns = key, now_ns
            self.say(status_line(view, now_ns / NS_PER_S))

    def say(self, text: str) -> None:
        if self._silent:
            return
        line = f"{self._clock.utc_now():%Y-%m-%dT%H:%M:%SZ} {one_line(text, LINE_MAX)}"
        try:
            echo(line, err=True)
        except OSError:
            self._silent = True

    def _new(self, log: tuple[LogEntry, ...]) -> tuple[LogEntry, ...]:
        """The entries that were added to the log since the last call."""
        index = next((place for place, line in enumerate(log) if line is self._last_printed), -1)
        if log:
            self._last_printed = log[-1]
        return log[index + 1 :]


def status_line(view: ScreenState, now_s: float) -> str:
    """The state of a run in one line."""
    if not view.status:
        table = _table(view)
        where = f": {table} {view.filling.rows_there:,} of {counted(view.filling.rows, 'row')}" if view.filling else ""
        return f"{view.doing}{where}{f' of run {view.run_id}' if view.run_id else ''}"
    offered = view.offered
    parts = [f"{view.run_id} {_state(view)}{_time(view, now_s)}"]
    if view.workers:
        working = sum(
            worker.state in (WorkerDisplayState.RUNNING, WorkerDisplayState.WAITING) for worker in view.workers
        )
        parts.append(f"{working} of {counted(len(view.workers), 'worker')}")
    parts.append(f"{offered.open} of {counted(offered.target, 'connection')}")
    parts += _numbers(view)
    old_s = view.old_s(now_s)
    if old_s is not None:
        parts.append(f"no update for {old_s:.0f} s")
    if view.doing:
        parts.append(view.doing)
    return ", ".join(parts)


def _numbers(view: ScreenState) -> list[str]:
    if view.recent is None or view.window is None:
        return []
    recent, window = view.recent, view.window
    numbers = [f"p50 {time_of(recent.p50)} p95 {time_of(recent.p95)} p99 {time_of(recent.p99)} ms"]
    if recent.qps is not None:  # None after the last statement
        offered = view.offered.rate_per_s  # 0 after the end of the schedule
        numbers.insert(0, f"{rate(recent.qps)}/s" + (f" of {rate(offered)}/s" if offered else ""))
    failed, tried = (view.failed, view.tried) if view.tried else (window.failed, window.failed + window.succeeded)
    if tried:  # not at the beginning of a phase
        numbers.append(f"{failed} of {tried} failed{f' ({percent(failed / tried)})' if failed else ''}")
    if view.find_max is not None and view.find_max.target is not None:
        numbers.append(f"step {view.find_max.step}: {counted(view.find_max.target, 'connection')}")
    cpu_percent = view.client_cpu_percent
    return numbers if cpu_percent is None else [*numbers, f"client CPU {cpu_percent:.0f} %"]


def _time(view: ScreenState, now_s: float) -> str:
    if view.since_s is None:
        return ""
    passed_s = max(0.0, now_s - view.since_s)
    if view.until_s is None:
        return f" {as_clock(passed_s)}"
    whole_s = view.until_s - view.since_s
    return f" {as_clock(min(passed_s, whole_s))} of {as_clock(whole_s)}"


def _state(view: ScreenState) -> str:
    return f"{view.status} {view.phase or ''}".rstrip()


def _table(view: ScreenState) -> str:
    return "" if view.filling is None else view.filling.table


class LiveDisplay:
    """The live view, or lines where it cannot be drawn. Called by the main thread only."""

    def __init__(self, clock: Clock, *, quiet: bool, only_lines: bool = False) -> None:
        self._lines = RunLines(clock, quiet=quiet)
        self._heard: deque[str] = deque()  # lines that other threads printed, for the log
        self._screen: LiveScreen | None = None
        if not quiet and not only_lines and is_usable(sys.stderr, os.environ):
            try:
                self._screen = LiveScreen(sys.stderr, clock, self._heard.append)
            except (OSError, termios.error) as error:  # for example a terminal that cannot be opened by its name
                self._fall_back(error)

    @property
    def is_screen(self) -> bool:
        return self._screen is not None

    def heard(self) -> list[str]:
        """Lines that were printed since the last call, and that the screen hides."""
        return [self._heard.popleft() for _ in range(len(self._heard))]

    def show(self, view: ScreenState) -> str:
        """Draw, and return the keys that were pressed."""
        if self._screen is not None:
            try:
                return self._screen.show(view)
            except Exception as error:  # an error of the display must not end the measurement
                self._fall_back(error)
        self._lines.show(view)
        return ""

    def say(self, text: str) -> None:
        """Print one line."""
        self._lines.say(text)

    def close(self) -> None:
        """Restore the terminal."""
        if self._screen is not None:
            self._screen.close()
            self._screen = None

    def _fall_back(self, error: Exception) -> None:
        self.close()
        event(log, logging.WARNING, "screen_failed", why=f"{type(error).__name__}: {error}")


class RunDisplay:
    """The display of `loadgen run`."""

    def __init__(
        self, scenario: Scenario, clock: Clock, *, quiet: bool, experiment: ExperimentStatus | None = None
    ) -> None:
        """`experiment`: the experiment that the run belongs to."""
        self._clock = clock
        self._viewer = ScreenPresenter(scenario, experiment=experiment)
        by_hand = scenario.spawner.kind is SpawnerKind.EXTERNAL  # commands are printed for the user to copy
        self._display = LiveDisplay(clock, quiet=quiet, only_lines=by_hand)
        self._with_screen = self._display.is_screen
        self._seen: JobStatus | None = None
        self._view: ScreenState | None = None
        self._asked = False

    def show(self, now: JobStatus) -> bool:
        """Draw. Returns True once, when the user requests the end of the run."""
        for line in self._display.heard():
            self._log(line)
        if self._view is None or now is not self._seen or now.snapshot is None:
            self._seen, self._view = now, self._next(now)
        asks = "q" in self._display.show(self._view) and not self._asked
        self._asked = self._asked or asks
        return asks

    def interrupted(self) -> None:
        """Show from now on that the user has requested the end of the run once more."""
        self._viewer.interrupt(self._clock.monotonic_ns() / NS_PER_S)
        if self._view is not None:
            self._view = self._viewer.interrupted(self._view)

    def say(self, text: str) -> None:
        if self._display.is_screen:
            self._log(text)
        else:
            self._display.say(text)

    def verdict(self, summary: Mapping[str, Any]) -> None:
        """Print the verdict, and what to do about an error. On a terminal, the result shows the verdict."""
        if not self._with_screen:
            word = verdict_word(str(summary["verdict"])).upper()
            verdict = f"{word}, exit code {summary['exit_code']}: {summary['exit_reason']}"
            self._display.say(f"{summary['run_id']} {verdict}")
        hint = error_hint(str(summary["exit_reason"])) if summary["verdict"] == "error" else None
        if hint is not None and self._with_screen:
            echo(f"hint: {printable(hint)}", err=True)
        elif hint is not None:
            self._display.say(f"hint: {hint}")

    def close(self) -> None:
        self._display.close()

    def _log(self, text: str) -> None:
        self._viewer.say(self._clock.utc_now(), text)
        if self._view is not None:
            self._view = replace(self._view, log=self._viewer.log)

    def _next(self, now: JobStatus) -> ScreenState:
        if now.snapshot is not None:
            return self._viewer.update(now.snapshot)
        seen_s, progress = self._clock.monotonic_ns() / NS_PER_S, now.progress
        filling = None
        if progress is not None and progress.table:
            filling = TableProgress(table=progress.table, rows_there=progress.rows_there, rows=progress.rows)
        return self._viewer.doing(now.doing, seen_s, run_id=now.run_id, filling=filling)


# --- preparation -----------------------------------------------------------------------------------------------------

PREPARATION_LINE_S = 10.0
BARS_MAX = 100  # columns
ECHO_COLUMNS = 5  # ^C twice, and the cursor

_STEP_WORDS = {
    PreparationStep.LOOKING: "looking for existing tables",
    PreparationStep.STATEMENTS: "running prepare.statements",
}


class PreparationDisplay(Protocol):
    """Shows the progress of a preparation. Called by the main thread only."""

    def show(self, state: PreparationProgress) -> None: ...
    def say(self, text: str) -> None: ...
    def close(self) -> None: ...


def preparation_display(*, quiet: bool, clock: Clock) -> PreparationDisplay:
    """Bars on a terminal, lines elsewhere, nothing with --quiet."""
    if quiet:
        return NoProgress()
    if sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb"):
        return ProgressBars()
    return ProgressLines(clock)


class NoProgress:
    """--quiet."""

    def show(self, state: PreparationProgress) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class ProgressLines:
    """A line at the start, at each new table, and every ten seconds: for files, pipes and cron."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: PreparationProgress | None = None
        self._last_ns = 0
        self._first_rows, self._first_ns = 0, 0  # of the table that is being filled

    def show(self, state: PreparationProgress) -> None:
        now_ns = self._clock.monotonic_ns()
        is_new = self._last is None or (self._last.step, self._last.table) != (state.step, state.table)
        if is_new:
            self._first_rows, self._first_ns = state.rows_there, now_ns
        if is_new or now_ns - self._last_ns >= PREPARATION_LINE_S * NS_PER_S:
            self._last, self._last_ns = state, now_ns
            self.say(progress_line(state, state.rows_there - self._first_rows, (now_ns - self._first_ns) / NS_PER_S))

    def say(self, text: str) -> None:
        echo(printable(text), err=True)

    def close(self) -> None:
        """Nothing."""


def progress_line(state: PreparationProgress, rows: int, seconds: float) -> str:
    """A state in words; `rows` were added in the last `seconds`."""
    if not state.table:
        return _STEP_WORDS.get(state.step, str(state.step))
    if state.step is PreparationStep.VERIFYING:
        return f"{state.table}: counting {counted(state.rows, 'row')}"
    text = f"{state.table}: {state.rows_there:,} of {counted(state.rows, 'row')}"
    if rows and seconds:
        rate = rows / seconds
        text += f", {rate:,.0f} rows/s, {(state.rows - state.rows_there) / rate:,.0f} s left"
    return text


class _BeforeEcho:
    """Leaves room for the ^C that a terminal writes behind the bars. In the last column it would begin a new line, and
    the bars would be drawn once more below the old ones."""

    def __init__(self, shown: RenderableType) -> None:
        self._shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Constrain(self._shown, min(max(options.max_width - ECHO_COLUMNS, 1), BARS_MAX))


class Bars(Progress):
    """The bars of all tables."""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield _BeforeEcho(self.make_tasks_table(self.tasks))


class ProgressBars:
    """A bar per table."""

    def __init__(self) -> None:
        self._progress = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),  # the room that the numbers leave
            _Rows(Column(no_wrap=True)),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True),
            auto_refresh=False,  # a second thread would draw at the same time
        )
        self._tasks: dict[str, TaskID] = {}
        self._progress.start()

    def show(self, state: PreparationProgress) -> None:
        name = printable(state.table or _STEP_WORDS.get(state.step, str(state.step)))
        if name not in self._tasks:
            total = state.rows if state.table else None
            self._tasks[name] = self._progress.add_task(name, total=total, completed=state.rows_there)
        if not state.table:  # without a total the bar only shows activity
            self._progress.update(self._tasks[name], refresh=True)
            return
        looking = self._tasks.pop(printable(_STEP_WORDS[PreparationStep.LOOKING]), None)
        if looking is not None:
            self._progress.remove_task(looking)
        self._progress.update(self._tasks[name], completed=state.rows_there, refresh=True)

    def say(self, text: str) -> None:
        self._progress.console.print(printable(text), markup=False, highlight=False)

    def close(self) -> None:
        """Restore the terminal: show the cursor, and begin a new line."""
        for name in _STEP_WORDS.values():
            if name in self._tasks:
                self._progress.remove_task(self._tasks.pop(name))
        self._progress.stop()


class _Rows(ProgressColumn):
    """Existing rows, required rows, rows per second."""

    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text("")
        speed = f" {task.speed:,.0f} rows/s" if task.speed and not task.finished else ""
        return Text(f"{task.completed:,.0f} of {task.total:,.0f} rows{speed}")
