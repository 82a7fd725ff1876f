"""Queued runs that no runner takes: told by lists and ticks, and once to those whom the scenario notifies."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loadgen.cli.allowed import Allowed, admitted_to_notify
from loadgen.cli.notify import tell_waiting
from loadgen.control import pool_workers, run_queue
from loadgen.errors import LoadgenError
from loadgen.model.queue import unmet
from loadgen.scenario.read import parse_scenario

if TYPE_CHECKING:
    from loadgen.control.retry import Patience
    from loadgen.control.session import ControlSession

PATIENCE_S = 120  # a pool without a runner starts one sooner


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranded:
    queue_id: str
    name: str
    reason: str


def stranded(session: ControlSession, patience: Patience, *, after_s: int = 0) -> tuple[Stranded, ...]:
    """Runs that have waited so long, and that no runner which is online can take."""
    waiting = patience.call(lambda: run_queue.waiting(session))
    offers = patience.call(lambda: pool_workers.offers(session)) if waiting else ()
    found = ((one, unmet(one.requires, offers)) for one in waiting if one.waited_s >= after_s)
    return tuple(Stranded(queue_id=one.queue_id, name=one.name, reason=why) for one, why in found if why is not None)


def tell_stranded(
    session: ControlSession, patience: Patience, allowed: Allowed, warn: Callable[[str], None]
) -> tuple[Stranded, ...]:
    """Those that have waited for too long, once each: the row says so from now on, and its scenario's notifications
    are sent, as far as this host allows them."""
    told = []
    for one in stranded(session, patience, after_s=PATIENCE_S):
        if run_queue.note(session, patience, one.queue_id, f"it waits: {one.reason}"):
            told.append(one)
            _notify(session, patience, one, allowed, warn)
    return tuple(told)


def _notify(
    session: ControlSession, patience: Patience, one: Stranded, allowed: Allowed, warn: Callable[[str], None]
) -> None:
    try:
        text = patience.call(lambda: run_queue.read_scenario_text(session, one.queue_id))
        loaded = parse_scenario(text or "", source=one.queue_id, environ=os.environ, variables=allowed.variables)
        scenario = admitted_to_notify(loaded.scenario, allowed, warn)
    except LoadgenError as error:
        warn(f"{one.queue_id}: no notification was sent: {error}")
        return
    tell_waiting(scenario, one.queue_id, one.reason, warn)
