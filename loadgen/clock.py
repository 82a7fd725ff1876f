"""The clock. All code reads the time and waits through it, so that tests can move the time.

There are three kinds of time, which are never subtracted from one another:

    monotonic_ns  durations and due times inside this process. It continues while the machine is suspended, so a
                  suspension is a pause like any other
    utc_now       labels for people and rows
    SYSDATE()     the time of the database, read only in SQL: leases, heartbeats, everything that processes compare

`ServerTime` converts a time of the database to monotonic_ns, with the possible error.

No code sleeps: every wait is a wait for an event that can end it early.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple, Protocol, overload

from loadgen.units import NS_PER_S, NS_PER_US

_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
READINGS_KEPT = 30  # the newest: two clocks drift apart
RESOLUTION_NS = 1_000_000  # of times from the server


def _goes_on_while_suspended() -> Callable[[], int]:
    """CLOCK_BOOTTIME on Linux, CLOCK_MONOTONIC on macOS; elsewhere the monotonic clock of Python."""
    for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC"):
        clock_id = getattr(time, name, None)
        try:
            if clock_id is not None:
                time.clock_gettime_ns(clock_id)
                return partial(time.clock_gettime_ns, clock_id)
        except OSError:  # known to Python, but not supported by this kernel
            continue
    return time.monotonic_ns


monotonic_ns: Callable[[], int] = _goes_on_while_suspended()  # the clock of SystemClock as a function, for clients


def monotonic() -> float:
    """monotonic_ns() in seconds."""
    return monotonic_ns() / NS_PER_S


class Clock(Protocol):
    """The interface for reading the time and for waiting."""

    def monotonic_ns(self) -> int:
        """Nanoseconds since a fixed moment. Never decreases, and continues while the machine is suspended."""

    def utc_now(self) -> datetime:
        """The wall clock, aware, in UTC; may jump."""

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait until `event` is set or the time has passed. Returns whether it is set."""


class SystemClock:
    """The clocks of the machine."""

    def monotonic_ns(self) -> int:
        return monotonic_ns()

    def utc_now(self) -> datetime:
        return datetime.now(UTC)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(min(max(timeout_s, 0.0), threading.TIMEOUT_MAX))


@overload
def utc_iso(moment: datetime, timespec: str = "milliseconds") -> str: ...
@overload
def utc_iso(moment: None, timespec: str = "milliseconds") -> None: ...
def utc_iso(moment: datetime | None, timespec: str = "milliseconds") -> str | None:
    """A UTC time, naive or aware, in ISO 8601 with Z, as documents have it."""
    return None if moment is None else f"{moment.replace(tzinfo=None).isoformat(timespec=timespec)}Z"


class Moment(NamedTuple):
    """A time of the server by the clock of this process: within `uncertain_ns` of `at_ns`."""

    at_ns: int
    uncertain_ns: int = 0


class ServerTime:
    """How far the clock of the server is ahead of the clock of this process. One thread calls note(), any thread reads.

    The server read its clock after the request was sent and before the answer arrived. So each answer gives a range for
    the difference of the clocks. The intersection of the ranges of the newest answers is narrower than each of them.
    """

    def __init__(self) -> None:
        self._readings: deque[tuple[int, int]] = deque(maxlen=READINGS_KEPT)  # the lower and the upper bound
        self._ahead: tuple[int, int] | None = None

    def note(self, server_time: datetime, sent_ns: int, answered_ns: int) -> None:
        moment_ns = _server_ns(server_time)
        self._readings.append((moment_ns - answered_ns - RESOLUTION_NS, moment_ns - sent_ns + RESOLUTION_NS))
        least_ns, most_ns = self._readings[-1]
        for low_ns, high_ns in reversed(self._readings):
            if max(least_ns, low_ns) > min(most_ns, high_ns):
                break  # one of the clocks was set since then
            least_ns, most_ns = max(least_ns, low_ns), min(most_ns, high_ns)
        self._ahead = (least_ns, most_ns)

    def moment(self, server_time: datetime) -> Moment | None:
        """The local time of a time of the server; None: the time of the server has not been read yet."""
        if self._ahead is None:
            return None
        least_ns, most_ns = self._ahead
        return Moment(_server_ns(server_time) - (least_ns + most_ns) // 2, (most_ns - least_ns + 1) // 2)


def _server_ns(moment: datetime) -> int:
    return (moment.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND * NS_PER_US
