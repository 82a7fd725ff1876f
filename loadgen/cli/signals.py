"""Signals that end a command gracefully."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Ctrl-C, `kill`, a terminal that was closed, Ctrl-\. Whoever ignores one of the last two, as `nohup` does, means it.
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_UNLESS_IGNORED = tuple(getattr(signal, name) for name in ("SIGHUP", "SIGQUIT") if hasattr(signal, name))


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """The signals that have come, in order; handlers only take note, and are put back at the end."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    wanted = [number for number in _UNLESS_IGNORED if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in (*_SIGNALS, *wanted)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
