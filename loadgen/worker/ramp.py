"""How many clients a worker wants at a moment: a straight line from where it was to its target."""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.units import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """Whole numbers only, so the line is a staircase; it never runs ahead of the line."""

    origin: int
    target: int
    began_ns: int = 0
    duration_ns: int = 0

    @classmethod
    def toward(cls, target: int, *, origin: int, began_ns: int, seconds: float) -> Ramp:
        return cls(origin=origin, target=target, began_ns=began_ns, duration_ns=max(0, round(seconds * NS_PER_S)))

    def at(self, now_ns: int) -> int:
        elapsed_ns = max(0, now_ns - self.began_ns)
        if elapsed_ns >= self.duration_ns:
            return self.target
        moved = abs(self.target - self.origin) * elapsed_ns // self.duration_ns
        return self.origin + moved if self.target >= self.origin else self.origin - moved

    def next_change_ns(self, now_ns: int) -> int | None:
        """When the number is next another one; None: it stays."""
        steps = abs(self.target - self.origin)
        elapsed_ns = max(0, now_ns - self.began_ns)
        if elapsed_ns >= self.duration_ns or not steps:
            return None
        moved = steps * elapsed_ns // self.duration_ns
        return self.began_ns + -(-(moved + 1) * self.duration_ns // steps)
