"""What follows from a load: the number of workers, and the rates of an open loop.

The number of arrivals of a stage is planned: its rate times its duration (the area below the rate, when that changes),
rounded to an integer. The due time of each statement is drawn in `loadgen.workload.arrivals`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.model.workload import ARRIVALS_MAX
from loadgen.scenario.model import CONNECTIONS_PER_WORKER, Load, LoadStage, Scenario, WorkerProfile


def workers_of(load: Load, cores: int) -> int:
    """The number of workers; `auto` is one per 25 connections, as many as there are cores, at least one."""
    if load.workers is not None:
        return load.workers
    if load.profile is WorkerProfile.PROCESS:
        return load.connections
    if load.per_worker_connections is not None:
        return load.connections // load.per_worker_connections
    return max(1, min(cores, -(-load.connections // CONNECTIONS_PER_WORKER)))


def with_workers(scenario: Scenario, cores: int) -> Scenario:
    """The scenario with its number of workers settled, as it must be before a run is created."""
    load = dataclasses.replace(scenario.load, workers=workers_of(scenario.load, cores))
    return dataclasses.replace(scenario, load=load)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateStage:
    """A rate for a time: constant, or changing in a straight line from `start_rate_per_second`."""

    duration_s: float
    rate_per_second: float
    start_rate_per_second: float | None = None

    def __post_init__(self) -> None:
        rates = (self.rate_per_second, self.first_rate_per_second)
        if not (0.0 <= self.duration_s < math.inf and min(rates) >= 0.0 and max(rates) < math.inf):
            raise ValueError(f"a stage needs a duration and rates of 0 or more: {self}")
        if not self.expected <= ARRIVALS_MAX:
            raise ValueError(f"a stage has at most {ARRIVALS_MAX:,} arrivals: {self}")

    @property
    def first_rate_per_second(self) -> float:
        return self.rate_per_second if self.start_rate_per_second is None else self.start_rate_per_second

    @property
    def expected(self) -> float:
        """The area below the rate."""
        if self.start_rate_per_second is None:
            return self.duration_s * self.rate_per_second
        return self.duration_s * (self.start_rate_per_second + self.rate_per_second) / 2.0

    @property
    def arrivals(self) -> int:
        """How many statements are planned, over all workers."""
        return math.floor(self.expected + 0.5)


def planned_arrivals(stages: Sequence[RateStage]) -> int:
    """How many statements these stages plan, over all workers."""
    return sum(stage.arrivals for stage in stages)


def rate_windows(load: Load) -> tuple[tuple[RateStage, ...], ...]:
    """The rates of an open loop, one tuple per window: the warm-up (at the first level), then each stage.

    The first level is reached from 0 in the load's ramp, which may last into the first stage; a stage without warm-up
    before it may have its own ramp instead. Without warm-up its window is empty.
    """
    levels = [(stage.duration_s, _rate_of(stage), stage.ramp_s) for stage in load.levels]
    if not levels:
        raise ValueError("there are no rates in this mode of load")
    duration_s, level, own_ramp_s = levels[0]
    ramp_s = load.ramp_s or (0.0 if load.warmup_s else own_ramp_s)
    if ramp_s > load.warmup_s:
        reached = level * load.warmup_s / ramp_s
        first = _window(load.warmup_s, 0.0, reached, load.warmup_s)
        windows = [first, _window(duration_s, reached, level, ramp_s - load.warmup_s)]
    else:
        windows = [_window(load.warmup_s, 0.0, level, ramp_s), _window(duration_s, level, level, 0.0)]
    for duration_s, rate, ramp_s in levels[1:]:
        windows.append(_window(duration_s, level, rate, ramp_s))
        level = rate
    return tuple(windows)


def _window(duration_s: float, before: float, rate: float, ramp_s: float) -> tuple[RateStage, ...]:
    ramp = RateStage(duration_s=ramp_s, rate_per_second=rate, start_rate_per_second=before)
    hold = RateStage(duration_s=max(0.0, duration_s - ramp_s), rate_per_second=rate)
    return tuple(stage for stage in (ramp, hold) if stage.duration_s > 0.0)


def _rate_of(stage: LoadStage) -> float:
    if stage.rate_per_second is None:
        raise ValueError("a stage of an open loop needs a rate")
    return stage.rate_per_second
