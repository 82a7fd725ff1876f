"""One clock, so that tests can move time.

Kinds of time, never subtracted from one another:

    monotonic_ns  durations and due times inside this process; may stand still while the machine sleeps
    boottime_ns   the same, but counts the time the machine was suspended: how stale is what I know?
    utc_now       labels for people and rows
    SYSDATE()     the database's own time, read by SQL alone: leases, heartbeats, anything compared across processes

Nothing sleeps: every wait is a wait on the event that would end it early.
"""

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

_NS_PER_S = 1_000_000_000
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """Where all waiting and time reading goes through."""

    def monotonic_ns(self) -> int:
        """Nanoseconds since some fixed moment; never goes back."""

    def boottime_ns(self) -> int:
        """Like monotonic_ns, and goes on while the machine is suspended."""

    def utc_now(self) -> datetime:
        """The wall clock, aware, in UTC; may jump."""

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait until `event` is set or the time has passed; says whether it is set."""


class SystemClock:
    """The machine's real clocks."""

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def boottime_ns(self) -> int:
        if _SUSPEND_COUNTING_CLOCK is None:
            return time.monotonic_ns()
        return time.clock_gettime_ns(_SUSPEND_COUNTING_CLOCK)

    def utc_now(self) -> datetime:
        return datetime.now(UTC)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(min(max(timeout_s, 0.0), threading.TIMEOUT_MAX))


class FakeClock:
    """Time moves only when something waits, or when the test says so. Single-threaded tests only."""

    def __init__(self, *, utc_start: datetime = _EPOCH) -> None:
        self.now_ns = 0
        self.suspended_ns = 0
        self._utc_start = utc_start

    def monotonic_ns(self) -> int:
        return self.now_ns

    def boottime_ns(self) -> int:
        return self.now_ns + self.suspended_ns

    def utc_now(self) -> datetime:
        return self._utc_start + timedelta(microseconds=self.boottime_ns() // 1000)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        if not event.is_set():
            self.advance(max(timeout_s, 0.0))
        return event.is_set()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now_ns += round(seconds * _NS_PER_S)

    def suspend(self, seconds: float) -> None:
        """Let the machine sleep: the monotonic clock stands still, the others go on."""
        self.suspended_ns += round(seconds * _NS_PER_S)


def _suspend_counting_clock() -> int | None:
    """The id of a clock that counts suspend: CLOCK_BOOTTIME on Linux, CLOCK_MONOTONIC (which does) on macOS."""
    for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC"):
        clock_id = getattr(time, name, None)
        try:
            if clock_id is not None:
                time.clock_gettime_ns(clock_id)
                return int(clock_id)
        except OSError:  # known to Python, refused by this kernel
            continue
    return None


_SUSPEND_COUNTING_CLOCK = _suspend_counting_clock()
