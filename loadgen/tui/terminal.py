"""The terminal of the live view: alternate screen, keys without waiting, size. Everything is restored at the end.

The terminal is opened again, in non-blocking mode, for this process only: neither a stopped terminal (Ctrl-S) nor a
slow line can block the program. Unwritten output is kept, and nothing new is drawn until it is written.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import select
import signal
import sys
import termios
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TextIO

from rich.console import Console, ConsoleDimensions

from loadgen.clock import Clock
from loadgen.log import columns_of, printable
from loadgen.report.run_text import wrapped_text
from loadgen.tui.screen import ScreenPage, render
from loadgen.tui.screen_state import ScreenState
from loadgen.units import NS_PER_S

_ENTER = b"\x1b[?1049h\x1b[?25l\x1b[2J"  # alternate screen, no cursor, empty
_LEAVE = b"\x1b[0m\x1b[?25h\x1b[?1049l"
_LAST_WORDS_MS = 1_000  # maximum wait for a terminal that does not read, when the view is closed
_FRAME_MS = 20  # maximum wait if a frame does not fit into the buffer of the terminal
_FALLBACK = (80, 24)

Settings = list[int | list[bytes | int]]  # in the form of termios


def is_usable(stream: TextIO | None, environ: Mapping[str, str]) -> bool:
    """Whether the screen can be drawn: not in CI, without cursor control, or in the background."""
    if stream is None or not stream.isatty() or environ.get("CI"):
        return False
    if environ.get("TERM", "") in ("", "dumb") or "utf" not in (stream.encoding or "").lower():
        return False
    return _in_foreground(stream.fileno())


def _in_foreground(fd: int) -> bool:
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:  # not the controlling terminal: using it cannot stop this process
        return True


class Terminal:
    """Used by one thread. enter() and leave() may be called repeatedly and in any order."""

    def __init__(self, fd: int) -> None:
        """`fd` is a descriptor of the terminal. Raises OSError if the terminal cannot be opened."""
        self._fd = os.open(os.ttyname(fd), os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: Settings | None = None  # the settings to restore; None: not entered
        self._unwritten = b""
        self._stopped = self._continued = False

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines. They are read each time, so a resize needs no signal."""
        try:
            columns, lines = os.get_terminal_size(self._fd)
        except OSError:
            return _FALLBACK
        return (columns, lines) if columns and lines else _FALLBACK

    def enter(self) -> None:
        if self._before is None:
            self._before = termios.tcgetattr(self._fd)
        self._set_keys()
        self._unwritten = b""
        self._write(_ENTER)

    def leave(self) -> None:
        """Restore the terminal."""
        if self._before is None:
            return
        self._finish(_LAST_WORDS_MS)
        self._unwritten = _LEAVE
        self._finish(_LAST_WORDS_MS)
        with contextlib.suppress(termios.error, OSError):  # the terminal is gone
            termios.tcsetattr(self._fd, termios.TCSANOW, self._before)  # not DRAIN, which waits for the reader
        self._before = None

    def close(self) -> None:
        if self._fd >= 0:
            self.leave()
            os.close(self._fd)
            self._fd = -1

    def flush(self) -> None:
        """Write the rest of the last frame, as far as the terminal accepts it now."""
        self._finish(0)

    def draw(self, lines: str) -> bool:
        """Draw a frame. False: it was skipped, because the last one is not written yet, or the view is not entered."""
        if self._before is None:
            return False
        self.flush()
        if self._unwritten:
            return False
        text = lines.replace("\n", "\x1b[K\r\n")
        self._write(f"\x1b[H{text}\x1b[K\x1b[J".encode("utf-8", "replace"))
        self._finish(_FRAME_MS)
        return True

    def keys(self) -> str:
        """The keys typed since the last call, without sequences of arrow and function keys."""
        typed = b""
        if self._before is None:
            return ""
        with contextlib.suppress(BlockingIOError, OSError):
            while part := os.read(self._fd, 1024):
                typed += part
        return "" if b"\x1b" in typed else typed.decode("utf-8", "replace")

    # --- Ctrl-Z ------------------------------------------------------------------------------------------------------

    @contextmanager
    def noting_stops(self) -> Iterator[None]:
        """Handlers only record the signals; obey_stops() handles them between frames."""

        def stopped(number: int, frame: FrameType | None) -> None:
            self._stopped = True

        def continued(number: int, frame: FrameType | None) -> None:
            self._continued = True

        before = {
            signal.SIGTSTP: signal.signal(signal.SIGTSTP, stopped),
            signal.SIGCONT: signal.signal(signal.SIGCONT, continued),
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def obey_stops(self) -> None:
        """Stop the process with a restored terminal; enter it again when the process continues."""
        if self._stopped:
            self._stopped = False
            self.leave()
            noted = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTSTP)
            signal.signal(signal.SIGTSTP, noted)
            self._continued = True  # also if the system did not stop the process, because no shell could continue it
        if self._continued:  # the shell may still use the terminal, if the process continues in the background
            self._continued = False
            if _in_foreground(self._fd):
                self.enter()

    # --- writing -----------------------------------------------------------------------------------------------------

    def _set_keys(self) -> None:
        """Deliver keys immediately and without echo; Ctrl-C and Ctrl-Z stay signals."""
        settings = termios.tcgetattr(self._fd)
        settings[3] &= ~(termios.ICANON | termios.ECHO)
        settings[6][termios.VMIN], settings[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self._fd, termios.TCSANOW, settings)

    def _write(self, data: bytes) -> None:
        self._unwritten += data
        with contextlib.suppress(BlockingIOError):
            while self._unwritten:
                self._unwritten = self._unwritten[os.write(self._fd, self._unwritten) :]

    def _finish(self, wait_ms: int) -> None:
        """Write the rest, while the terminal accepts some of it within `wait_ms`."""
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        with contextlib.suppress(OSError):
            while self._unwritten and poll.poll(wait_ms):
                self._write(b"")


LINES_MAX = 1_000
LINE_MAX = 2_000


class CapturedStderr(io.TextIOBase):
    """Replaces stderr. Any thread may write; `told` is called with each complete line."""

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, told: Callable[[str], None]) -> None:
        self.lines: deque[str] = deque(maxlen=LINES_MAX)
        self._told = told
        self._lock = threading.Lock()  # guards _part
        self._part = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._lock:
            *whole, part = (self._part + text).split("\n")
            self._part = part[-LINE_MAX:]
        for line in whole:
            if line.strip():
                self.lines.append(printable(line, LINE_MAX))
                self._told(line)
        return len(text)


@contextmanager
def capture_stderr(stream: TextIO, told: Callable[[str], None]) -> Iterator[None]:
    """Capture output to `stream` while the screen is shown; print it at the end."""
    caught = CapturedStderr(told)
    handlers = [
        handler
        for handler in logging.getLogger().handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream is stream
    ]
    before = sys.stderr
    sys.stderr = caught
    for handler in handlers:
        handler.setStream(caught)
    try:
        yield
    finally:
        sys.stderr = before
        for handler in handlers:
            handler.setStream(stream)
        for line in caught.lines:
            stream.write(f"{line if (width := columns_of(stream)) is None else wrapped_text(line, width)}\n")
        stream.flush()


# --- The live view: when to draw, what keys do. The main thread calls it several times per second --------------------
#
# A frame costs some milliseconds of a processor that may also run workers. So a frame is drawn for new data, for a key,
# and once a second for the clocks, at most four times per second.

FRAME_MIN_S = 0.25
FRAME_MAX_S = 1.0

_PAGES = {"e": ScreenPage.ERRORS, "t": ScreenPage.THRESHOLDS, "?": ScreenPage.HELP, "x": ScreenPage.EXPERIMENT}
_REDRAW = "\x0c"  # Ctrl-L


class LiveScreen:
    """Open from construction to close(). Raises OSError when the terminal is lost."""

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
            self._undo.enter_context(capture_stderr(stream, told))  # ends last, because it prints
            self._undo.callback(self._terminal.close)
            self._undo.enter_context(self._terminal.noting_stops())
            self._terminal.enter()
        except BaseException:
            self.close()
            raise

    def show(self, view: ScreenState) -> str:
        """Draw, if a new frame is due. Returns the keys that the screen does not handle."""
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
        """Restore the terminal. May be called twice."""
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
