"""Who owns a run that has not ended: its leader, its workers, or nobody any more.

The lease says who leads. A leader whose process has ended on this machine leads no more: its lease is expired at once,
and a successor waits for the takeover margin only. What is less certain waits until the lease expires by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadgen.control.process_identity import is_running
from loadgen.control.session import ControlSession
from loadgen.control.tables import run_leases
from loadgen.control.tables.run_leases import TAKEOVER_MARGIN_S, LeaseHolder
from loadgen.control.tables.run_status import UnfinishedRun
from loadgen.control.tables.worker_heartbeats import HeartbeatRow
from loadgen.log import event
from loadgen.scenario.model import Scenario, SpawnerKind
from loadgen.snowflake.session import RetryPolicy

log = logging.getLogger(__name__)

DEAD_AFTER_S = 60.0  # where the run's own timing cannot be read
NEVER_LED_S = 600.0  # storing the value pools of a new run takes a while, and nobody leads it yet
LOOK_S = 1.0  # how often to look whether workers have ended
_ON_THIS_MACHINE = (SpawnerKind.LOCAL, SpawnerKind.SUBPROCESS)  # workers run where their orchestrator does


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRun:
    """A run that was left alone."""

    run_id: str
    why: str
    has_ended: bool = False
    living: bool = False  # nobody leads it, and its workers work on
    free_in_s: float | None = None  # nobody leads it, and it can be ended after this time


def why_not_recoverable(run: UnfinishedRun, holder: LeaseHolder | None = None) -> SkippedRun | None:
    """Why nobody else may lead a run; None: somebody may."""
    if run.lease_over_ms is None:
        age_s = run.update_age_ms / 1000
        not_yet = SkippedRun(run_id=run.run_id, why=f"it was made {age_s:.0f} s ago, and is not led yet")
        return None if age_s > NEVER_LED_S else not_yet
    over_s = run.lease_over_ms / 1000
    who = "its leader" if holder is None else run_leases.describe_owner(holder.owner)
    if over_s < 0:
        why = f"it is led by {who}: its lease lasts {-over_s:.0f} s more, and longer when it is renewed"
        return SkippedRun(run_id=run.run_id, why=why)
    if over_s <= TAKEOVER_MARGIN_S:
        free_in_s = TAKEOVER_MARGIN_S - over_s
        why = f"{who} leads it no more, and its last statements may take {free_in_s:.0f} s to end"
        return SkippedRun(run_id=run.run_id, why=why, free_in_s=free_in_s)
    return None


def expire_dead_holder(session: ControlSession, patience: RetryPolicy, run_id: str) -> tuple[LeaseHolder | None, bool]:
    """Who holds the lease, and whether its process has ended on this machine: then the lease is over from now on."""
    holder = patience.call(lambda: run_leases.read(session, run_id))
    if holder is None or not run_leases.is_owner_dead(holder.owner):
        return holder, False
    if holder.remaining_ms > 0:
        patience.call(lambda: run_leases.expire(session, run_id, holder))
        event(log, logging.INFO, "lease_expired", run=run_id, owner=holder.owner, why="its process has ended")
    return replace(holder, remaining_ms=min(0, holder.remaining_ms)), True


def active_worker(beats: Sequence[HeartbeatRow], silent_s: float) -> str | None:
    """Which worker may still work; None: all have ended, or been silent for too long. Pure."""
    alive = [row for row in beats if not row.beat.status.is_terminal and row.age_ms <= silent_s * 1000]
    if not alive:
        return None
    newest = min(alive, key=lambda row: row.age_ms)
    return f"{newest.identity.worker_id} was heard {newest.age_ms / 1000:.0f} s ago, and has not ended"


def active_worker_of(beats: Sequence[HeartbeatRow], scenario: Scenario | None, *, gone: bool) -> str | None:
    """Which worker may still work. Those of a leader that has ended on this machine are processes of this machine."""
    if gone and scenario is not None and scenario.spawner.kind in _ON_THIS_MACHINE:
        beats = tuple(row for row in beats if is_running(row.identity.pid))
    return active_worker(beats, _silent_s(scenario))


def left_to_workers(run_id: str, heard: str, scenario: Scenario | None, *, gone: bool) -> SkippedRun:
    """Workers that were started by their leader end with it; only others can be led on."""
    if gone and scenario is not None and scenario.spawner.kind in _ON_THIS_MACHINE:
        return SkippedRun(run_id=run_id, why=f"its workers have not ended yet: {heard}", free_in_s=LOOK_S)
    return SkippedRun(run_id=run_id, why=heard, living=True)


def _silent_s(scenario: Scenario | None) -> float:
    return DEAD_AFTER_S if scenario is None else scenario.timing.dead_s
