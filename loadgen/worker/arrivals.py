"""Open loop: a worker's arrivals in one window, dealt to whichever client is free."""

from __future__ import annotations

from bisect import bisect_right
from itertools import count

from loadgen.units import NS_PER_S
from loadgen.workload.arrivals import Schedule


class Arrivals:
    """take(): any client, without a lock. The rest: the conductor."""

    def __init__(self, window_id: int, schedule: Schedule, opened_ns: int) -> None:
        self.window_id = window_id
        self._schedule = schedule
        self._opened_ns = opened_ns
        self._next = count(schedule.first).__next__  # atomic
        self._end = schedule.end

    def take(self) -> int | None:
        """The number of the next arrival, which is the caller's now; None: there are no more in this window."""
        number = self._next()
        return number if number < self._end else None

    def due_ns(self, number: int) -> int:
        return self._opened_ns + round(self._schedule.due_s(number) * NS_PER_S)

    def untaken(self, closed_ns: int) -> range:
        """After the window has closed: the arrivals that were due in it and that nobody took."""
        first = min(self._next(), self._end)
        elapsed_s = (closed_ns - self._opened_ns) / NS_PER_S
        numbers = range(self._schedule.first, self._end)
        due = self._schedule.first + bisect_right(numbers, elapsed_s, key=self._schedule.due_s)
        return range(first, max(first, due))
