"""The connections of a closed loop over time.

Levels, including ramps, are computed from the current time only; nothing is accumulated. Worker and orchestrator use
the same `Ramp`s, so that a run is compared with its plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from loadgen.scenario.model import Load, LoadMode
from loadgen.units import NS_PER_S
from loadgen.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """The number of clients of a worker over time: a straight line from its origin to its target.

    The numbers are whole, so the line is a staircase that is never ahead of the line.
    """

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
        """The time of the next change of the number; None: it stays."""
        steps = abs(self.target - self.origin)
        elapsed_ns = max(0, now_ns - self.began_ns)
        if elapsed_ns >= self.duration_ns or not steps:
            return None
        moved = steps * elapsed_ns // self.duration_ns
        return self.began_ns + -(-(moved + 1) * self.duration_ns // steps)

    def levels(self, from_ns: int, to_ns: int) -> Iterator[tuple[int, int]]:
        """The staircase between two times: (connections, nanoseconds) of each step."""
        while from_ns < to_ns:
            change_ns = self.next_change_ns(from_ns)
            until_ns = to_ns if change_ns is None else min(change_ns, to_ns)
            yield self.at(from_ns), until_ns - from_ns
            from_ns = until_ns


def follow(first: Ramp, targets: Iterable[tuple[int, int, float]]) -> tuple[Ramp, ...]:
    """The lines of a worker, each from the level of the previous line. `targets`: (began_ns, target, seconds)."""
    lines = [first]
    for began_ns, target, seconds in targets:
        origin = lines[-1].at(began_ns)
        lines.append(Ramp.toward(target, origin=origin, began_ns=began_ns, seconds=seconds))
    return tuple(lines)


def connection_ns(lines: Sequence[Ramp], from_ns: int, to_ns: int) -> int:
    """Connection-nanoseconds that these lines plan between two times."""
    planned_ns = 0
    for number, line in enumerate(lines):
        began_ns = line.began_ns if number else from_ns
        ends_ns = lines[number + 1].began_ns if number + 1 < len(lines) else to_ns
        levels = line.levels(max(from_ns, began_ns), min(to_ns, ends_ns))
        planned_ns += sum(level * length_ns for level, length_ns in levels)
    return planned_ns


def initial_connections(load: Load) -> int:
    """The number of connections of all workers that are open before a run starts: with a ramp `min_connections`."""
    if load.find_max is not None and load.mode is LoadMode.FIND_MAX:
        return load.find_max.start
    if load.mode is LoadMode.CONCURRENCY and (load.ramp_s or load.stages):
        first = load.levels[0]
        assert first.connections is not None, "a stage of a closed loop has connections"
        is_ramped = load.ramp_s or (first.ramp_s and not load.warmup_s)
        return load.min_connections if is_ramped else first.connections
    return load.connections
