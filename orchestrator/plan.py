"""What a run with a fixed plan does when: windows and targets in time, counted from the moment it starts. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.model.run import Phase
from loadgen.scenario.scenario import Load, LoadMode


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWindow:
    """A measured span. `step_id` is the number of its stage, from 1; None when there is only one."""

    step_id: int | None
    starts_s: float
    duration_s: float
    phase: Phase = Phase.MEASUREMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTarget:
    """A number of connections over all workers, reached in a straight line."""

    at_s: float
    connections: int
    ramp_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    measures_s: float  # when the measurement begins
    ends_s: float | None  # when the last window closes; None: find_max, which ends when it knows
    windows: tuple[PlannedWindow, ...] = ()
    targets: tuple[PlannedTarget, ...] = ()

    @property
    def first_phase(self) -> Phase:
        return Phase.WARMUP if self.warm else Phase.MEASUREMENT

    warm: bool = True


def plan_run(load: Load, *, announce_s: float) -> RunPlan:
    """The whole course of a run. Nothing begins sooner than `announce_s`, so that all workers begin together."""
    measures_s = max(load.warmup_s, announce_s)
    warm = load.warmup_s > 0
    if load.mode is LoadMode.FIND_MAX:
        return RunPlan(measures_s=measures_s, ends_s=None, warm=warm)
    windows, at_s = [], measures_s
    for number, stage in enumerate(load.levels, start=1):
        step_id = number if load.stages else None
        windows.append(PlannedWindow(step_id=step_id, starts_s=at_s, duration_s=stage.duration_s))
        at_s += stage.duration_s
    return RunPlan(
        measures_s=measures_s, ends_s=at_s, windows=tuple(windows), targets=_targets(load, windows), warm=warm
    )


def _targets(load: Load, windows: list[PlannedWindow]) -> tuple[PlannedTarget, ...]:
    """In a closed loop: the first level when it has a ramp, then every other stage."""
    if load.mode is not LoadMode.CONCURRENCY:
        return ()
    targets = []
    for number, (stage, window) in enumerate(zip(load.levels, windows, strict=True)):
        assert stage.connections is not None
        if number:
            targets.append(PlannedTarget(at_s=window.starts_s, connections=stage.connections, ramp_s=stage.ramp_s))
        elif load.ramp_s:
            targets.append(PlannedTarget(at_s=0.0, connections=stage.connections, ramp_s=load.ramp_s))
        elif stage.ramp_s and not load.warmup_s:
            targets.append(PlannedTarget(at_s=window.starts_s, connections=stage.connections, ramp_s=stage.ramp_s))
    return tuple(targets)
