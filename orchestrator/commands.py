"""From a plan to events: who is told what, for which moment of the server's clock. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from loadgen.control.run_control_events import NewEvent
from loadgen.model.event import Address, Scope, SetPhase, SetWorkerTarget
from loadgen.model.split import share
from orchestrator.plan import PlannedTarget, PlannedWindow, RunPlan


def plan_events(plan: RunPlan, worker_ids: Sequence[str], zero: datetime) -> list[NewEvent]:
    """Everything a fixed plan has to say, in the order of time; `zero` is the server's time at which it begins."""
    timed: list[tuple[float, int, list[NewEvent]]] = []
    for target in plan.targets:
        timed.append((target.at_s, 0, target_events(target, worker_ids, zero)))
    for window in plan.windows:
        timed.append((window.starts_s, 1, [NewEvent(command=_set_phase(window, zero))]))
    return [event for _, _, events in sorted(timed, key=lambda entry: entry[:2]) for event in events]


def target_events(
    target: PlannedTarget,
    worker_ids: Sequence[str],
    zero: datetime,
    *,
    step_id: int | None = None,
    reason: str = "plan",
) -> list[NewEvent]:
    """One event per worker: its own part of the connections."""
    moment = _iso(zero + timedelta(seconds=target.at_s))
    return [
        NewEvent(
            command=SetWorkerTarget(
                target_connections=share(target.connections, number, len(worker_ids)),
                step_id=step_id,
                ramp_s=target.ramp_s,
                effective_at=moment,
                reason=reason,
            ),
            address=Address(scope=Scope.WORKER, worker_id=worker_id),
        )
        for number, worker_id in enumerate(worker_ids)
    ]


def _set_phase(window: PlannedWindow, zero: datetime) -> SetPhase:
    return SetPhase(
        phase=window.phase,
        step_id=window.step_id,
        duration_ms=window.duration_s * 1000,
        effective_at=_iso(zero + timedelta(seconds=window.starts_s)),
    )


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")
