"""The live view: when to draw, what keys do. The main thread calls it often; it does little each time.

A frame costs some milliseconds of a processor that may be making load as well. So one is drawn when something was
learnt, when a key was pressed, and once a second for the clocks; never more than four in a second.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TextIO

from rich.console import Console, ConsoleDimensions

from loadgen.clock import Clock
from loadgen.tui.screen import ScreenPage, render
from loadgen.tui.screen_state import ScreenState
from loadgen.tui.terminal import Terminal, capture_stderr
from loadgen.units import NS_PER_S

FRAME_MIN_S = 0.25
FRAME_MAX_S = 1.0

_PAGES = {"e": ScreenPage.ERRORS, "?": ScreenPage.HELP}
_REDRAW = "\x0c"  # Ctrl-L


class LiveScreen:
    """Open from construction to close(). Raises OSError when the terminal goes away."""

    def __init__(self, stream: TextIO, clock: Clock, told: Callable[[str], None]) -> None:
        """`told` is called with lines that other code prints meanwhile."""
        self._clock = clock
        self._console = Console(file=stream, force_terminal=True, highlight=False, markup=False, emoji=False)
        self._page = ScreenPage.RUN
        self._shown: tuple[ScreenState, ScreenPage, tuple[int, int]] | None = None
        self._drawn_s = -FRAME_MAX_S
        self._terminal = Terminal(stream.fileno())
        self._undo = ExitStack()
        try:
            self._undo.enter_context(capture_stderr(stream, told))  # the last to end: it prints
            self._undo.callback(self._terminal.close)
            self._undo.enter_context(self._terminal.noting_stops())
            self._terminal.enter()
        except BaseException:
            self.close()
            raise

    def show(self, view: ScreenState) -> str:
        """Draw if it is time to. Returns the keys that the screen does not handle."""
        self._terminal.obey_stops()
        self._terminal.flush()
        others = self._obey(self._terminal.keys())
        now_s = self._clock.monotonic_ns() / NS_PER_S
        what = (view, self._page, self._terminal.size)
        since_s = now_s - self._drawn_s
        if since_s >= FRAME_MAX_S or (since_s >= FRAME_MIN_S and what != self._shown):
            self._draw(view, now_s)
            self._shown = what
        return others

    def close(self) -> None:
        """The terminal as it was. Safe to call twice."""
        self._undo.close()

    def _obey(self, typed: str) -> str:
        others = ""
        for key in typed:
            if key in _PAGES:
                self._page = ScreenPage.RUN if self._page is _PAGES[key] else _PAGES[key]
            elif key == _REDRAW:
                self._terminal.enter()
                self._shown = None
            else:
                others += key
        return others

    def _draw(self, view: ScreenState, now_s: float) -> None:
        width, height = self._terminal.size
        self._console.size = ConsoleDimensions(width, height)
        with self._console.capture() as capture:
            self._console.print(render(view, width, height, now_s, self._page), end="")
        if self._terminal.draw(capture.get()):
            self._drawn_s = now_s
