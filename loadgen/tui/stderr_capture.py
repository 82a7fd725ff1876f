"""What others print to stderr while the screen is shown: kept, shown in the event log, and printed afterwards."""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from loadgen.log import printable

LINES_MAX = 1_000
LINE_MAX = 2_000


class CapturedStderr(io.TextIOBase):
    """Looks like stderr. Any thread may write; `told` hears of each whole line."""

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
    """Nothing reaches `stream` past the screen; what was caught is printed to it in the end."""
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
            stream.write(f"{line}\n")
        stream.flush()
