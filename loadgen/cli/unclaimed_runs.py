"""Queued runs that no runner takes: told by lists and ticks, and once to those whom the scenario notifies."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loadgen.cli.allowed import HostPermissions, restrict_notifications
from loadgen.control.tables import pool_workers, run_queue
from loadgen.errors import LoadgenError
from loadgen.model.nightly import unmet_requirements
from loadgen.scenario.read import parse_scenario
from orchestrator.nightly.notify import notify_not_started

if TYPE_CHECKING:
    from loadgen.control.session import ControlSession
    from loadgen.snowflake.session import RetryPolicy

UNCLAIMED_AFTER_S = 120  # a pool without a runner starts one sooner


@dataclass(frozen=True, slots=True, kw_only=True)
class UnclaimedRun:
    queue_id: str
    name: str
    reason: str


def find_unclaimed_runs(
    session: ControlSession, patience: RetryPolicy, *, after_s: int = 0
) -> tuple[UnclaimedRun, ...]:
    """Runs that have waited so long, and that no runner which is online can take."""
    waiting = patience.call(lambda: run_queue.waiting(session))
    offers = patience.call(lambda: pool_workers.offers(session)) if waiting else ()
    found = ((one, unmet_requirements(one.requires, offers)) for one in waiting if one.waited_s >= after_s)
    return tuple(
        UnclaimedRun(queue_id=one.queue_id, name=one.name, reason=why) for one, why in found if why is not None
    )


def notify_unclaimed_runs(
    session: ControlSession, patience: RetryPolicy, allowed: HostPermissions, warn: Callable[[str], None]
) -> tuple[UnclaimedRun, ...]:
    """Those that have waited for too long, once each: the row says so from now on, and its scenario's notifications
    are sent, as far as this host allows them."""
    told = []
    for one in find_unclaimed_runs(session, patience, after_s=UNCLAIMED_AFTER_S):
        if run_queue.note(session, patience, one.queue_id, f"it waits: {one.reason}"):
            told.append(one)
            _notify(session, patience, one, allowed, warn)
    return tuple(told)


def _notify(
    session: ControlSession,
    patience: RetryPolicy,
    one: UnclaimedRun,
    allowed: HostPermissions,
    warn: Callable[[str], None],
) -> None:
    try:
        text = patience.call(lambda: run_queue.read_scenario_text(session, one.queue_id))
        loaded = parse_scenario(text or "", source=one.queue_id, environ=os.environ, variables=allowed.variables)
        scenario = restrict_notifications(loaded.scenario, allowed, warn)
    except LoadgenError as error:
        warn(f"{one.queue_id}: no notification was sent: {error}")
        return
    notify_not_started(scenario, one.queue_id, one.reason, warn)
