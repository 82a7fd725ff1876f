"""What `loadgen run` and `loadgen watch` show: the live view on a terminal, else lines; and how a leader's look at the
run becomes a view."""

from __future__ import annotations

import logging
import os
import sys
import termios
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from loadgen.cli.run_job import JobStatus
from loadgen.cli.run_lines import RunLines
from loadgen.clock import Clock
from loadgen.log import event
from loadgen.results.timeline import WorkerSecond
from loadgen.scenario.model import Scenario, SpawnerKind
from loadgen.tui.live_screen import LiveScreen
from loadgen.tui.presenter import ScreenPresenter
from loadgen.tui.screen_state import ScreenState, TableProgress
from loadgen.tui.snapshot import DisplaySnapshot, WorkerDisplayState, WorkerSnapshot
from loadgen.tui.terminal import is_usable
from loadgen.units import NS_PER_S
from orchestrator.run_snapshot import RunSnapshot
from orchestrator.worker_health import WorkerHealth, WorkerView

log = logging.getLogger(__name__)

_UNWELL = {
    WorkerHealth.MISSING: WorkerDisplayState.MISSING,
    WorkerHealth.STALE: WorkerDisplayState.STALE,
    WorkerHealth.DEAD: WorkerDisplayState.DEAD,
    WorkerHealth.DONE: WorkerDisplayState.DONE,
}


class LiveDisplay:
    """The screen, or lines when there is none, or when it cannot be drawn. Called by the main thread only."""

    def __init__(self, clock: Clock, *, quiet: bool, only_lines: bool = False) -> None:
        self._lines = RunLines(clock, quiet=quiet)
        self._heard: deque[str] = deque()  # what other threads printed, for the log
        self._screen: LiveScreen | None = None
        if not quiet and not only_lines and is_usable(sys.stderr, os.environ):
            try:
                self._screen = LiveScreen(sys.stderr, clock, self._heard.append)
            except (OSError, termios.error) as error:  # such as a terminal that cannot be opened by its name
                self._fall_back(error)

    @property
    def is_screen(self) -> bool:
        return self._screen is not None

    def heard(self) -> list[str]:
        """What was printed since the last call, and not seen because of the screen."""
        return [self._heard.popleft() for _ in range(len(self._heard))]

    def show(self, view: ScreenState) -> str:
        """Which keys were pressed."""
        if self._screen is not None:
            try:
                return self._screen.show(view)
            except Exception as error:  # a fault of the picture must not cost the measurement
                self._fall_back(error)
        self._lines.show(view)
        return ""

    def say(self, text: str) -> None:
        """A line of its own; with a screen it is for the log of the view instead."""
        self._lines.say(text)

    def close(self) -> None:
        """The terminal as it was."""
        if self._screen is not None:
            self._screen.close()
            self._screen = None

    def _fall_back(self, error: Exception) -> None:
        self.close()
        event(log, logging.WARNING, "screen_failed", why=f"{type(error).__name__}: {error}")


class RunDisplay:
    """The display of `loadgen run`."""

    def __init__(self, scenario: Scenario, clock: Clock, *, quiet: bool) -> None:
        self._clock = clock
        self._viewer = ScreenPresenter(scenario)
        by_hand = scenario.spawner.kind is SpawnerKind.EXTERNAL  # commands are printed, for a person to copy
        self._display = LiveDisplay(clock, quiet=quiet, only_lines=by_hand)
        self._with_screen = self._display.is_screen
        self._seen: JobStatus | None = None
        self._view: ScreenState | None = None
        self._asked = False

    def show(self, now: JobStatus) -> bool:
        """True once: the user wants the run to end."""
        for line in self._display.heard():
            self._log(line)
        if self._view is None or now is not self._seen or now.tick is None:
            self._seen, self._view = now, self._next(now)
        asks = "q" in self._display.show(self._view) and not self._asked
        self._asked = self._asked or asks
        return asks

    def say(self, text: str) -> None:
        if self._display.is_screen:
            self._log(text)
        else:
            self._display.say(text)

    def verdict(self, summary: Mapping[str, Any]) -> None:
        """The last line in line mode; on a terminal the result that follows says it."""
        if not self._with_screen:
            verdict = f"{str(summary['verdict']).upper()}, exit code {summary['exit_code']}: {summary['exit_reason']}"
            self._display.say(f"{summary['run_id']} {verdict}")

    def close(self) -> None:
        self._display.close()

    def _log(self, text: str) -> None:
        self._viewer.say(self._moment, text)
        if self._view is not None:
            self._view = replace(self._view, log=self._viewer.log)

    def _next(self, now: JobStatus) -> ScreenState:
        seen_s = self._clock.monotonic_ns() / NS_PER_S
        if now.tick is not None:
            return self._viewer.look(display_snapshot(now.tick, seen_s, self._moment))
        progress = now.progress
        filling = None
        if progress is not None and progress.table:
            filling = TableProgress(table=progress.table, rows_there=progress.rows_there, rows=progress.rows)
        return self._viewer.doing(now.doing, seen_s, run_id=now.run_id, filling=filling)

    @property
    def _moment(self) -> datetime:
        return self._clock.utc_now()


def display_snapshot(
    tick: RunSnapshot, seen_s: float, moment: datetime, stored: tuple[WorkerSecond, ...] = ()
) -> DisplaySnapshot:
    """A leader's look, as the view wants it."""
    return DisplaySnapshot(
        seen_s=seen_s,
        moment=moment,
        run=tick.run,
        workers=tuple(map(_worker, tick.crew)),
        elapsed_s=tick.elapsed_s,
        measures_s=tick.measures_s,
        ends_s=tick.ends_s,
        ending=None if tick.ending is None else tick.ending.reason,
        checked=tick.checked,
        warnings=tick.warnings,
        steps=tick.find_max_steps,
        polls=tick.polls,
        stored=stored,
    )


def _worker(worker: WorkerView) -> WorkerSnapshot:
    state = _UNWELL.get(worker.health)
    if state is None:
        state = WorkerDisplayState.RUNNING if worker.status is None else WorkerDisplayState(worker.status.value.lower())
    return WorkerSnapshot(
        worker_id=worker.worker_id,
        state=state,
        row=worker.row,
        live=worker.live,
        silent_s=worker.silent_s if worker.row is None else worker.row.age_ms / 1000,
        why=worker.why if state is WorkerDisplayState.DEAD else "",
    )
