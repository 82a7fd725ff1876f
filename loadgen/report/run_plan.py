"""The planned load of a run over time, as lines of its charts: connections and rates, with their ramps. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise

from loadgen.report.records import EventKind, RunRecord
from loadgen.rules.plan import plan_run
from loadgen.scenario.model import LoadMode, Scenario
from loadgen.workload.arrivals import rate_windows
from loadgen.workload.ramp import initial_connections

Corner = tuple[float, float]  # second since the start of the run, value


def planned_end_s(record: RunRecord) -> float:
    """The end of the planned load: of the plan or of the stored seconds, or STOP, whichever is earliest."""
    ends_s = [float(record.seconds[-1].end_s)]
    ends_s += [event.at_s for event in record.events if event.kind is EventKind.STOP]
    planned_s = None if record.scenario is None else plan_run(record.scenario.load).ends_s
    return max(min(ends_s if planned_s is None else [*ends_s, planned_s]), 0.0)


def planned_levels(record: RunRecord, end_s: float) -> tuple[Corner, ...]:
    """The corners of the planned number of connections over time: (second, connections). Empty if it is not known."""
    levels = sorted((event for event in record.events if event.connections is not None), key=lambda event: event.at_s)
    level = float(record.seconds[0].target)
    if record.scenario is not None and record.scenario.load.mode is not LoadMode.RATE:
        level = float(initial_connections(record.scenario.load))
    elif not levels:
        return ()
    corners = [(0.0, level)]
    for number, event in enumerate(levels):
        assert event.connections is not None
        next_s = min(levels[number + 1].at_s if number + 1 < len(levels) else end_s, end_s)
        if event.at_s > end_s:
            break
        reached_s = event.at_s + event.ramp_s
        target, done = float(event.connections), 1.0
        if reached_s > next_s:  # the next level begins, or the run ends, during the ramp
            done = (next_s - event.at_s) / event.ramp_s
        corners += [(event.at_s, level), (min(reached_s, next_s), level + done * (target - level))]
        level = corners[-1][1]
    return (*corners, (end_s, level))


def level_at(corners: Sequence[Corner], at_s: float) -> float:
    """The height of a line with these corners; where it jumps, after the jump."""
    found = corners[0][1]
    for (start_s, start), (stop_s, stop) in pairwise(corners):
        if start_s <= at_s:
            share = min((at_s - start_s) / (stop_s - start_s), 1.0) if stop_s > start_s else 1.0
            found = start + share * (stop - start)
    return found


def planned_rates(scenario: Scenario | None) -> tuple[Corner, ...]:
    """The corners of the planned rate of an open loop, from the warm-up on. Empty if there is none."""
    if scenario is None or scenario.load.mode is not LoadMode.RATE:
        return ()
    corners: list[Corner] = []
    at_s = 0.0
    for stage in chain.from_iterable(rate_windows(scenario.load)):
        corners.append((at_s, stage.first_rate_per_second))
        at_s += stage.duration_s
        corners.append((at_s, stage.rate_per_second))
    return tuple(corners)
