"""Closed loop: when a client may go on, and how many connections are wanted at a moment.

Levels over time, ramps included, are computed from the moment alone; nothing is added up on the way. Worker and
orchestrator follow the same `Ramp`s, so what one plans is what the other is measured by.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from loadgen.model.worker import worker_share
from loadgen.scenario.model import Load, LoadMode
from loadgen.units import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """How many clients a worker wants at a moment: a straight line from where it was to its target.

    Whole numbers only, so the line is a staircase; it never runs ahead of the line.
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
        """When the number is next another one; None: it stays."""
        steps = abs(self.target - self.origin)
        elapsed_ns = max(0, now_ns - self.began_ns)
        if elapsed_ns >= self.duration_ns or not steps:
            return None
        moved = steps * elapsed_ns // self.duration_ns
        return self.began_ns + -(-(moved + 1) * self.duration_ns // steps)

    def levels(self, from_ns: int, to_ns: int) -> Iterator[tuple[int, int]]:
        """The staircase between two moments: (connections, nanoseconds) of every step of it."""
        while from_ns < to_ns:
            change_ns = self.next_change_ns(from_ns)
            until_ns = to_ns if change_ns is None else min(change_ns, to_ns)
            yield self.at(from_ns), until_ns - from_ns
            from_ns = until_ns


def follow(first: Ramp, targets: Iterable[tuple[int, int, float]]) -> tuple[Ramp, ...]:
    """The lines of a worker, each of which begins where the one before it is: (began_ns, target, seconds), in order."""
    lines = [first]
    for began_ns, target, seconds in targets:
        origin = lines[-1].at(began_ns)
        lines.append(Ramp.toward(target, origin=origin, began_ns=began_ns, seconds=seconds))
    return tuple(lines)


def connection_ns(lines: Sequence[Ramp], from_ns: int, to_ns: int) -> int:
    """Connection-nanoseconds that these lines plan between two moments."""
    planned_ns = 0
    for number, line in enumerate(lines):
        began_ns = line.began_ns if number else from_ns
        ends_ns = lines[number + 1].began_ns if number + 1 < len(lines) else to_ns
        levels = line.levels(max(from_ns, began_ns), min(to_ns, ends_ns))
        planned_ns += sum(level * length_ns for level, length_ns in levels)
    return planned_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionStage:
    """A level of connections for a time, reached from the level before it in a straight line."""

    duration_s: float
    connections: int
    ramp_s: float = 0.0  # at the beginning of duration_s; 0: at once

    def __post_init__(self) -> None:
        if self.connections < 0 or not 0.0 <= self.ramp_s <= self.duration_s:
            raise ValueError(f"a stage needs connections of 0 or more and a ramp within its duration: {self}")


class ConnectionPlan:
    """How many connections a run wants at each moment, and each worker's part of them."""

    def __init__(self, stages: Sequence[ConnectionStage], *, initial: int = 0) -> None:
        if not stages or initial < 0:
            raise ValueError("a plan needs a stage, and begins with 0 connections or more")
        self.stages = tuple(stages)
        self.initial = initial
        self._starts_ns = [0]
        for stage in stages:
            self._starts_ns.append(self._starts_ns[-1] + round(stage.duration_s * NS_PER_S))

    @property
    def duration_s(self) -> float:
        return self._starts_ns[-1] / NS_PER_S

    @property
    def peak(self) -> int:
        """The highest level there ever is."""
        return max(self.initial, *(stage.connections for stage in self.stages))

    def target_at(self, t_s: float) -> int:
        """All connections wanted `t_s` after the beginning; after the end, as at the end."""
        t_ns = round(t_s * NS_PER_S)
        if t_ns < 0:
            return self.initial
        number = min(bisect_right(self._starts_ns, t_ns), len(self.stages)) - 1
        stage = self.stages[number]
        before = self.stages[number - 1].connections if number else self.initial
        elapsed_ns, ramp_ns = t_ns - self._starts_ns[number], round(stage.ramp_s * NS_PER_S)
        if elapsed_ns >= ramp_ns:
            return stage.connections
        gained = abs(stage.connections - before) * elapsed_ns // ramp_ns
        return before + gained if stage.connections >= before else before - gained

    def worker_target_at(self, t_s: float, worker: int, workers: int) -> int:
        """One worker's part of it."""
        return worker_share(self.target_at(t_s), worker, workers)


def connection_plan(load: Load) -> ConnectionPlan:
    """The connections of a run from the beginning of its warm-up, which is at the first level.

    The first level is reached from min_connections in the load's ramp, which may last into the first stage; a stage
    without warm-up before it may have its own ramp instead. An open loop has its ceiling from the beginning.
    """
    levels = load.levels
    if not levels or load.mode is LoadMode.FIND_MAX:
        raise ValueError("the connections of find_max are decided step by step")
    if load.mode is LoadMode.RATE:
        duration_s = load.warmup_s + sum(stage.duration_s for stage in levels)
        return ConnectionPlan([ConnectionStage(duration_s=duration_s, connections=load.connections)])
    first_ramp_s = load.ramp_s or (0.0 if load.warmup_s else levels[0].ramp_s)
    stages = []
    for number, stage in enumerate(levels):
        if stage.connections is None:
            raise ValueError("a stage of a closed loop needs connections")
        before_s, ramp_s = (0.0, stage.ramp_s) if number else (load.warmup_s, first_ramp_s)
        stages.append(
            ConnectionStage(duration_s=before_s + stage.duration_s, connections=stage.connections, ramp_s=ramp_s)
        )
    return ConnectionPlan(stages, initial=load.min_connections)


def initial_connections(load: Load) -> int:
    """How many connections, over all workers, are open before a run starts."""
    if load.find_max is not None and load.mode is LoadMode.FIND_MAX:
        return load.find_max.start
    if load.mode is LoadMode.CONCURRENCY and (load.ramp_s or load.stages):
        return connection_plan(load).target_at(0.0)
    return load.connections
