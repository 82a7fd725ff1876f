"""What the warehouse under test has cost since it was first looked at, estimated from the looks at it. Pure."""

from __future__ import annotations

from loadgen.model.credits import credits_per_hour
from loadgen.units import NS_PER_S

HOUR_S = 3600.0


class Meter:
    """look() with every look. One thread; `credits` may be read by others."""

    def __init__(self) -> None:
        self._since_ns: int | None = None
        self._rate = 0.0  # credits per hour, by the look before
        self.credits = 0.0

    def look(self, size: str | None, clusters: int, now_ns: int) -> None:
        """Between two looks it was as the first of them showed."""
        if self._since_ns is not None:
            self.credits += self._rate * (now_ns - self._since_ns) / NS_PER_S / HOUR_S
        self._since_ns = now_ns
        self._rate = (credits_per_hour(size or "") or 0.0) * clusters
