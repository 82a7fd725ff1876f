"""Credits of a warehouse, metered as Snowflake's documentation has it: by the second, at least a minute for each start.

A start is whatever adds to the rate: a resume, a further cluster, the added part of a larger size. What stops within a
minute of its start is billed for the minute. Credits are those of the performance model. They are kept in memory: a
restart of the server forgets them.
"""

from __future__ import annotations

from collections import deque

HOUR_MS = 3_600_000.0
BILLED_MIN_MS = 60_000.0
KEPT_MS = 14 * 24 * HOUR_MS
COLUMNS = (
    ("START_TIME", "TIMESTAMP_LTZ"),
    ("END_TIME", "TIMESTAMP_LTZ"),
    ("WAREHOUSE_NAME", "VARCHAR"),
    ("CREDITS_USED", "FLOAT"),
    ("CREDITS_USED_COMPUTE", "FLOAT"),
    ("CREDITS_USED_CLOUD_SERVICES", "FLOAT"),
)


class WarehouseMeter:
    """change() whenever the rate may have changed."""

    def __init__(self, at_ms: float) -> None:
        self._rate = 0.0  # credits per hour
        self._since_ms = at_ms
        self._spans: deque[tuple[float, float, float]] = deque()  # from, to, credits per hour
        self._charges: deque[tuple[float, float]] = deque()  # when, credits: the rest of a first minute
        self._starts: list[tuple[float, float]] = []  # when, credits per hour; the newest last

    def change(self, at_ms: float, rate: float) -> None:
        """From this moment on it costs this many credits per hour."""
        if rate == self._rate:
            return
        self._spans.append((self._since_ms, at_ms, self._rate))
        if rate > self._rate:
            self._starts.append((at_ms, rate - self._rate))
        else:
            self._stop(at_ms, self._rate - rate)
        self._rate, self._since_ms = rate, at_ms
        while self._spans and self._spans[0][1] < at_ms - KEPT_MS:
            self._spans.popleft()
        while self._charges and self._charges[0][0] < at_ms - KEPT_MS:
            self._charges.popleft()

    def _stop(self, at_ms: float, rate: float) -> None:
        """Those that started last stop first; the rest of their first minute is billed at once."""
        while rate > 1e-9 and self._starts:
            begun_ms, part = self._starts.pop()
            taken = min(part, rate)
            short_ms = max(0.0, BILLED_MIN_MS - (at_ms - begun_ms))
            self._charges.append((at_ms, taken * short_ms / HOUR_MS))
            if part > taken:
                self._starts.append((begun_ms, part - taken))
            rate -= taken

    def hours(self, begin_ms: float, end_ms: float, now_ms: float) -> list[tuple[float, float]]:
        """(begin of the hour, credits) of every hour of the range in which it cost something."""
        found: dict[float, float] = {}
        for first_ms, last_ms, rate in (*self._spans, (self._since_ms, now_ms, self._rate)):
            hour_ms = first_ms - first_ms % HOUR_MS
            while rate and hour_ms < last_ms:
                spent_ms = min(last_ms, hour_ms + HOUR_MS) - max(first_ms, hour_ms)
                found[hour_ms] = found.get(hour_ms, 0.0) + rate * spent_ms / HOUR_MS
                hour_ms += HOUR_MS
        for at_ms, credits in self._charges:
            hour_ms = at_ms - at_ms % HOUR_MS
            found[hour_ms] = found.get(hour_ms, 0.0) + credits
        return [
            (hour_ms, credits)
            for hour_ms, credits in sorted(found.items())
            if credits > 0 and hour_ms + HOUR_MS > begin_ms and hour_ms < end_ms
        ]
