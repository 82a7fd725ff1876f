"""What the warehouse under test has cost since it was first looked at, estimated from the looks at it. Pure."""

from __future__ import annotations

from loadgen.model.credits import credits_per_hour
from loadgen.units import NS_PER_S

HOUR_S = 3600.0


class CreditMeter:
    """look() with every look. One thread; `credits` may be read by others."""

    def __init__(self) -> None:
        self._since_ns: int | None = None
        self._rate = 0.0  # credits per hour, by the look before
        self.credits = 0.0

    def until(self, now_ns: int) -> float:
        """The same until now: since the last look it has been as that showed."""
        since_ns = now_ns if self._since_ns is None else self._since_ns
        return self.credits + self._rate * max(0, now_ns - since_ns) / NS_PER_S / HOUR_S

    def look(self, size: str | None, clusters: int, now_ns: int) -> None:
        """Between two looks it was as the first of them showed."""
        self.credits = self.until(now_ns)
        self._since_ns = now_ns
        self._rate = (credits_per_hour(size or "") or 0.0) * clusters
