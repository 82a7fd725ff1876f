"""A clock that tests move."""

import threading
from datetime import UTC, datetime, timedelta

from loadgen.units import NS_PER_S

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    """A clock for single-threaded tests. Its time moves only during a wait, or by advance()."""

    def __init__(self, *, utc_start: datetime = EPOCH) -> None:
        self.now_ns = 0
        self._utc_start = utc_start

    def monotonic_ns(self) -> int:
        return self.now_ns

    def utc_now(self) -> datetime:
        return self._utc_start + timedelta(microseconds=self.now_ns // 1_000)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        if not event.is_set():
            self.advance(max(timeout_s, 0.0))
        return event.is_set()

    def advance(self, seconds: float) -> None:
        """Move the time forward."""
        self.now_ns += round(seconds * NS_PER_S)
