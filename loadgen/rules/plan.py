"""The plan of a run: windows and targets in time, counted from the zero that START announces. Pure."""

from __future__ import annotations

from bisect import bisect_left

from loadgen.model.run import Phase, worker_share
from loadgen.scenario.model import Load, LoadMode
from loadgen.units import NS_PER_MS, NS_PER_S
from loadgen.values import dataclass
from loadgen.workload.arrivals import window_schedules
from loadgen.workload.ramp import Ramp, connection_ns, follow, initial_connections
from loadgen.workload.replay import planned_until


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWindow:
    """A measured span. `step_id` is the number of its stage, from 1; None when there is only one."""

    step_id: int | None
    starts_s: float
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTarget:
    """A number of connections over all workers, reached in a straight line."""

    at_s: float
    connections: int
    ramp_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    measures_s: float  # when the measurement begins; before it, from zero on, is warm-up
    ends_s: float | None  # when the last window closes; None: find_max, whose results decide when it ends
    windows: tuple[PlannedWindow, ...] = ()  # without the warm-up
    targets: tuple[PlannedTarget, ...] = ()

    @property
    def first_phase(self) -> Phase:
        return Phase.WARMUP if self.measures_s > 0 else Phase.MEASUREMENT


def plan_run(load: Load) -> RunPlan:
    """The plan of a whole run."""
    if load.mode is LoadMode.FIND_MAX:
        return RunPlan(measures_s=load.warmup_s, ends_s=None)
    windows, at_s = [], load.warmup_s
    for number, stage in enumerate(load.levels, start=1):
        step_id = number if load.stages else None
        windows.append(PlannedWindow(step_id=step_id, starts_s=at_s, duration_s=stage.duration_s))
        at_s += stage.duration_s
    return RunPlan(measures_s=load.warmup_s, ends_s=at_s, windows=tuple(windows), targets=_targets(load, windows))


def _targets(load: Load, windows: list[PlannedWindow]) -> tuple[PlannedTarget, ...]:
    """The targets of a closed loop: the first level if it has a ramp, then every other stage."""
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


# --- the planned load of one worker by step; `until_s`: when an aborted plan ended -----------------------------------


def planned_connection_ms(
    load: Load, plan: RunPlan, worker: int, workers: int, until_s: float | None = None
) -> dict[int | None, int]:
    """Connection-milliseconds of the measured windows."""
    level = worker_share(initial_connections(load), worker, workers)
    targets = sorted(plan.targets, key=lambda target: target.at_s)
    lines = follow(
        Ramp(origin=level, target=level),
        ((_ns(one.at_s), worker_share(one.connections, worker, workers), one.ramp_s) for one in targets),
    )
    return {
        window.step_id: connection_ns(lines, _ns(window.starts_s), _ns(_end_s(window, until_s))) // NS_PER_MS
        for window in plan.windows
    }


def planned_arrivals(
    load: Load, plan: RunPlan, worker: int, workers: int, *, seed: int, until_s: float | None = None
) -> dict[int | None, int]:
    """Arrivals of the measured windows."""
    if load.replay is not None:
        (window,) = plan.windows
        part = (_end_s(window, until_s) - window.starts_s) / window.duration_s
        return {window.step_id: planned_until(load.replay, worker, part)}
    schedules = window_schedules(load, worker=worker, workers=workers, seed=seed)
    planned = {}
    for window in plan.windows:
        schedule, length_s = schedules[window.step_id or 1], _end_s(window, until_s) - window.starts_s
        if length_s < window.duration_s:
            numbers = range(schedule.first, schedule.end)
            planned[window.step_id] = bisect_left(numbers, length_s, key=schedule.due_s)
        else:
            planned[window.step_id] = schedule.end - schedule.first
    return planned


def _end_s(window: PlannedWindow, until_s: float | None) -> float:
    """When a window closes, but not before it opens."""
    end_s = window.starts_s + window.duration_s
    return end_s if until_s is None else max(window.starts_s, min(end_s, until_s))


def _ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)
