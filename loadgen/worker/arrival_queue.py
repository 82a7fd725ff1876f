"""Open loop: a worker's arrivals in one window, dealt to whichever client is free."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import count

from loadgen.units import NS_PER_S
from loadgen.workload.arrivals import ArrivalSchedule


class ArrivalQueue:
    """take(): any client, without a lock. close(): the conductor.

    A number is dealt once: to a client, or to the conductor when the window has closed.
    """

    def __init__(
        self,
        window_id: int,
        schedule: ArrivalSchedule,
        opened_ns: int,
        *,
        since_ns: int | None = None,
        until_ns: int | None = None,
    ) -> None:
        """Due times count from `opened_ns`. `since_ns`: what was due before it is left out. `until_ns`: the window is
        known to close then; a client that waited for a later arrival would send it in the next window's time."""
        self.window_id = window_id
        self._schedule = schedule
        self._opened_ns = opened_ns
        self._end = schedule.end if until_ns is None else self._due_by(until_ns)
        first = schedule.first if since_ns is None or since_ns <= opened_ns else self._due_by(since_ns - 1)
        self._next = count(first).__next__  # atomic

    def take(self) -> int | None:
        """The number of the next arrival, which is the caller's now; None: there are no more in this window."""
        number = self._next()
        return number if number < self._end else None

    def due_ns(self, number: int) -> int:
        return self._opened_ns + round(self._schedule.due_s(number) * NS_PER_S)

    def close(self, closed_ns: int) -> Iterator[int]:
        """The window has closed: the arrivals that were due in it and that nobody has taken, or ever will."""
        # Clients may be taking at this moment. The end is only moved down to what was due, and every number below it
        # goes to whoever asks first, so none is lost and none is dealt twice.
        self._end = min(self._end, self._due_by(closed_ns))
        return iter(self.take, None)

    def _due_by(self, moment_ns: int) -> int:
        """The first number that is due after this moment."""
        schedule = self._schedule
        if moment_ns >= self._opened_ns + round(schedule.duration_s * NS_PER_S):
            return schedule.end
        return schedule.first + bisect_right(range(schedule.first, schedule.end), moment_ns, key=self.due_ns)
