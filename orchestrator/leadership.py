"""A term of office over a run: claimed, kept by a thread of its own, lost, regained, left."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from loadgen.clock import Clock
from loadgen.control.lease import LeaseKeeper, LeaseTimes
from loadgen.control.process_identity import is_running
from loadgen.control.session import ControlSession
from loadgen.control.tables import run_leases, run_status
from loadgen.control.tables.run_leases import TAKEOVER_MARGIN_S, Lease, LeaseHolder
from loadgen.control.tables.run_status import Fenced, Run, UnfinishedRun
from loadgen.control.tables.worker_heartbeats import HeartbeatRow
from loadgen.errors import Busy
from loadgen.log import event, printable
from loadgen.scenario.model import Scenario, SpawnerKind
from loadgen.snowflake.session import RetryPolicy

log = logging.getLogger(__name__)

RECLAIM_PERIOD_S = 1.0  # how often one that lost its term tries for the next


class Leadership:
    """The leader's thread, with the leader's session; keeping the lease has a thread and a session of its own."""

    def __init__(
        self,
        run_id: str,
        times: LeaseTimes,
        session: ControlSession,
        patience: RetryPolicy,
        *,
        lease_session: Callable[[], ControlSession],
        clock: Clock,
    ) -> None:
        """`lease_session` makes the session on which a lease is renewed, one for each."""
        self._run_id, self._times = run_id, times
        self._session, self._patience = session, patience
        self._lease_session, self._clock = lease_session, clock
        self._keeper: LeaseKeeper | None = None

    @property
    def term(self) -> Lease:
        assert self._keeper is not None, "no term was claimed"
        return self._keeper.term

    def take(self) -> None:
        """Claim the run; Busy when somebody leads it."""
        if not self._claim(run_leases.new_owner()):
            holder = run_leases.read(self._session, self._run_id)
            who = "somebody else" if holder is None else holder.owner
            raise Busy(f"run {self._run_id} is led by {who}")

    def leave(self, *, releasing: bool) -> None:
        """End the term; with `releasing` the next leader need not wait for it to expire."""
        if self._keeper is not None:
            self._keeper.stop(releasing=releasing)

    def require_trust(self) -> None:
        """Fenced unless the term may be acted on now."""
        assert self._keeper is not None, "no term was claimed"
        if not self._keeper.trusted:
            raise Fenced(f"term {self.term.epoch} over run {self._run_id} is not to be trusted any more")

    def regain(self, woken: threading.Event) -> None:
        """Lost the term: stop commanding, claim the next one like anyone else, and carry on if it was won."""
        lost = self.term
        self.leave(releasing=False)
        owner = run_leases.new_owner()
        for _ in range(round((2 * self._times.ttl_s + run_leases.TAKEOVER_MARGIN_S) / RECLAIM_PERIOD_S)):
            if self._claim(owner):
                event(log, logging.WARNING, "term_regained", epoch=self.term.epoch)
                return
            holder = self._patience.call(lambda: run_leases.read(self._session, self._run_id))
            if holder is not None and holder.remaining_ms > 0 and holder.epoch > lost.epoch:
                break
            self._clock.wait(woken, RECLAIM_PERIOD_S)
            woken.clear()
        raise Fenced(f"run {self._run_id} is led by somebody else now")

    def _claim(self, owner: str) -> bool:
        claimed_ns = self._clock.boottime_ns()
        term = run_leases.claim(self._session, self._patience, self._run_id, owner, self._times.ttl_s)
        if term is None:
            return False
        self._keeper = LeaseKeeper(self._lease_session(), term, self._times, claimed_ns=claimed_ns, clock=self._clock)
        self._keeper.start()
        return True


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """A run after it was asked to end. `by_us`: this request ends it, not an earlier one."""

    run: Run
    by_us: bool
    holder: LeaseHolder | None

    @property
    def is_led(self) -> bool:
        return self.holder is not None and self.holder.remaining_ms > 0


def request_stop(
    session: ControlSession, patience: RetryPolicy, run_id: str, by: str, why: str | None = None
) -> StopRequest:
    """Ask a run to end. The lease of a leader whose process has ended on this machine is expired at once."""
    moment = patience.call(lambda: run_status.server_time(session))
    reason = f"stopped by {by} at {moment:%Y-%m-%d %H:%M:%S} UTC{f': {printable(why, 500)}' if why else ''}"
    run = run_status.cancel(session, patience, run_id, reason)
    holder, _ = expire_dead_holder(session, patience, run_id)
    return StopRequest(run=run, by_us=run.reason == reason, holder=holder)
