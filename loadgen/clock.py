"""One clock, so that tests can move time.

Kinds of time, never subtracted from one another:

    monotonic_ns  durations and due times inside this process; goes on while the machine is suspended, so that this is a
                  pause like any other: of a measurement, and of what is known
    utc_now       labels for people and rows
    SYSDATE()     the database's own time, read by SQL alone: leases, heartbeats, anything compared across processes

One bridge: `ServerTime` says when a moment of the database is by monotonic_ns, and how exactly that is known.

Nothing sleeps: every wait is a wait on the event that would end it early.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple, Protocol

_NS_PER_S = 1_000_000_000
_NS_PER_US = 1_000
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
READINGS_KEPT = 30  # the newest: two clocks drift apart
RESOLUTION_NS = 1_000_000  # of the server's times


def _goes_on_while_suspended() -> Callable[[], int]:
    """CLOCK_BOOTTIME on Linux, CLOCK_MONOTONIC on macOS; where there is neither, what Python has."""
    for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC"):
        clock_id = getattr(time, name, None)
        try:
            if clock_id is not None:
                time.clock_gettime_ns(clock_id)
                return partial(time.clock_gettime_ns, clock_id)
        except OSError:  # known to Python, refused by this kernel
            continue
    return time.monotonic_ns


monotonic_ns: Callable[[], int] = _goes_on_while_suspended()  # for clients: what SystemClock has, without a look-up


def monotonic() -> float:
    """The same in seconds."""
    return monotonic_ns() / _NS_PER_S


class Clock(Protocol):
    """Where all waiting and time reading goes through."""

    def monotonic_ns(self) -> int:
        """Nanoseconds since some fixed moment; never goes back, and goes on while the machine is suspended."""

    def utc_now(self) -> datetime:
        """The wall clock, aware, in UTC; may jump."""

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait until `event` is set or the time has passed; says whether it is set."""


class SystemClock:
    """The machine's real clocks."""

    def monotonic_ns(self) -> int:
        return monotonic_ns()

    def utc_now(self) -> datetime:
        return datetime.now(UTC)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(min(max(timeout_s, 0.0), threading.TIMEOUT_MAX))


class FakeClock:
    """Time moves only when something waits, or when the test says so. Single-threaded tests only."""

    def __init__(self, *, utc_start: datetime = _EPOCH) -> None:
        self.now_ns = 0
        self._utc_start = utc_start

    def monotonic_ns(self) -> int:
        return self.now_ns

    def utc_now(self) -> datetime:
        return self._utc_start + timedelta(microseconds=self.now_ns // _NS_PER_US)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        if not event.is_set():
            self.advance(max(timeout_s, 0.0))
        return event.is_set()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now_ns += round(seconds * _NS_PER_S)


class Moment(NamedTuple):
    """A moment of the server by this process's clock: it lies within `uncertain_ns` of `at_ns`."""

    at_ns: int
    uncertain_ns: int = 0


class ServerTime:
    """How far the server's clock is ahead of this process's. One thread notes, any reads.

    An answer that has the server's time says it within its round trip: the server looked at its clock after the request
    was sent, and before the answer came. What all of the newest answers say together is narrower than the best of them.
    """

    def __init__(self) -> None:
        self._readings: deque[tuple[int, int]] = deque(maxlen=READINGS_KEPT)  # ahead at least, and at most
        self._ahead: tuple[int, int] | None = None

    def note(self, server_time: datetime, sent_ns: int, answered_ns: int) -> None:
        moment_ns = _server_ns(server_time)
        self._readings.append((moment_ns - answered_ns - RESOLUTION_NS, moment_ns - sent_ns + RESOLUTION_NS))
        least_ns, most_ns = self._readings[-1]
        for low_ns, high_ns in reversed(self._readings):
            if max(least_ns, low_ns) > min(most_ns, high_ns):
                break  # one of the two clocks was set since then
            least_ns, most_ns = max(least_ns, low_ns), min(most_ns, high_ns)
        self._ahead = (least_ns, most_ns)

    def moment(self, server_time: datetime) -> Moment | None:
        """None: the server's time was not read yet."""
        if self._ahead is None:
            return None
        least_ns, most_ns = self._ahead
        return Moment(_server_ns(server_time) - (least_ns + most_ns) // 2, (most_ns - least_ns + 1) // 2)


def _server_ns(moment: datetime) -> int:
    return (moment.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND * _NS_PER_US
