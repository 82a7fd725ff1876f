"""From a plan to events: what workers are told, and how long ahead. Pure."""

from __future__ import annotations

from loadgen.control.tables.run_control_events import NewEvent
from loadgen.model.event import PlannedCommand, SetPhase, SetRunTarget, Start
from loadgen.model.run import Phase
from loadgen.scenario.model import TimingSettings
from orchestrator.plan import RunPlan

# Between the insertion of an event and its reader: the look-up of its number, its publication in RUN_STATUS, the
# worker's poll, and the reading itself.
STATEMENTS_PER_ANNOUNCEMENT = 4
LATENCY_MAX_S = 2.0  # a statement that took longer was an exception: nobody waits for the next one


def lead_ms(timing: TimingSettings, latency_s: float) -> int:
    """How long ahead a change is announced, so that all workers switch together."""
    waits_s = timing.status_poll_s + STATEMENTS_PER_ANNOUNCEMENT * min(latency_s, LATENCY_MAX_S)
    return round((timing.announce_s + waits_s) * 1000)


def start_event(plan: RunPlan, workers: int, lead_ms: int) -> NewEvent:
    """START with the whole plan: a target comes before the window that begins with it."""
    parts = [
        _planned(target.at_s, SetRunTarget(total_connections=target.connections, ramp_s=target.ramp_s, reason="plan"))
        for target in plan.targets
    ]
    if plan.first_phase is Phase.WARMUP:
        parts.append(_planned(0.0, SetPhase(phase=Phase.WARMUP)))
    for window in plan.windows:
        command = SetPhase(phase=Phase.MEASUREMENT, step_id=window.step_id, duration_ms=window.duration_s * 1000)
        parts.append(_planned(window.starts_s, command))
    if not plan.windows:  # find_max: its steps are announced one by one
        parts.append(_planned(plan.measures_s, SetPhase(phase=Phase.MEASUREMENT)))
    parts.sort(key=lambda part: part.at_ms)
    return NewEvent(command=Start(expected_workers=workers, lead_ms=lead_ms, plan=tuple(parts)))


def step_event(step_id: int, connections: int, lead_ms: int) -> NewEvent:
    """The next step of a search: one event, and every worker keeps its share."""
    command = SetRunTarget(total_connections=connections, step_id=step_id, lead_ms=lead_ms, reason="find_max")
    return NewEvent(command=command)


def _planned(at_s: float, command: SetPhase | SetRunTarget) -> PlannedCommand:
    return PlannedCommand(at_ms=round(at_s * 1000), command=command)
