"""What a client does for the metrics: two calls around a statement, without a lock.

    window = recorder.begin()               counts one more statement, in the window that is open now
    …execute, fetch…
    recorder.append((statement, window, due_ns, sent_ns, done_ns, outcome))

A statement whose turn came too late is begun too, and appended with SKIPPED. When every connection was executing, done
is when it was given up; else its three times are the same, and say nothing. Whatever was begun must be appended exactly
once, by the client or on its behalf, or its window never becomes final.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from loadgen.metrics.outcome import FailedOutcome, Outcome
from loadgen.metrics.window_registry import WindowRegistry

# (number of the statement in the workload, window, due_ns, sent_ns, done_ns, outcome); closed loop: due = sent
Sample = tuple[int, int, int, int, int, Outcome | FailedOutcome]


class Recorder:
    """Statements of one client. begin(), append(): that client's thread only. take(), begun: the harvester only."""

    __slots__ = ("_begun", "_samples", "_windows", "append")

    def __init__(self, windows: WindowRegistry) -> None:
        self._windows = windows
        self._begun: dict[int, list[int]] = {}  # by window, one number each; as many entries as the run has windows
        self._samples: deque[Sample] = deque()  # append and popleft are atomic
        self.append: Callable[[Sample], None] = self._samples.append

    def begin(self) -> int | None:
        """The window that the next statement belongs to; None: no window is open, so start nothing."""
        windows = self._windows
        while True:
            window = windows.current
            if window is None:
                return None
            sheet = self.sheet(window)
            sheet[0] += 1
            # It may have closed before we were counted, and whoever closed it may have found nobody in it. Looked at
            # in this order, and under one interpreter lock, either they see our count or we see that it has closed.
            if windows.current == window:
                return window
            sheet[0] -= 1

    def sheet(self, window: int) -> list[int]:
        """How many statements were begun in a window, for a client that does what begin() does by itself."""
        return self._begun.setdefault(window, [0])

    def skip(self, window: int, statement: int, age_ns: int = 0) -> None:
        """An arrival of this window was never sent. Only while something else of ours is begun in it.

        `age_ns`: how long it had been due, when every connection was executing.
        """
        self.sheet(window)[0] += 1
        self.append((statement, window, 0, 0, age_ns, Outcome.SKIPPED))

    def unbegin(self, window: int) -> None:
        """Take back a begin() whose statement does not belong to that window after all."""
        self._begun[window][0] -= 1

    def begun(self, window: int) -> int:
        """How many statements this client has begun in a window."""
        sheet = self._begun.get(window)
        return 0 if sheet is None else sheet[0]

    def take(self) -> list[Sample]:
        """All samples that are there now, oldest first; those that come meanwhile wait for the next time."""
        popleft = self._samples.popleft
        return [popleft() for _ in range(len(self._samples))]
