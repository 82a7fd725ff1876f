"""The lease of a run: claimed, renewed, lost, reclaimed, released; which process holds it; requests to stop a run.

When the process of a leader has ended on this machine, its lease is expired at once, and a successor waits for the
takeover margin only. Otherwise a successor waits until the lease expires.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from loadgen.clock import Clock
from loadgen.control.lease import LeaseKeeper, LeaseTimes
from loadgen.control.session import ControlSession
from loadgen.control.tables import run_control_events, run_leases, run_status
from loadgen.control.tables.run_control_events import NewEvent
from loadgen.control.tables.run_leases import TAKEOVER_MARGIN_S, Lease, LeaseHolder
from loadgen.control.tables.run_status import Fenced, Run, StatusChange, UnfinishedRun
from loadgen.control.tables.worker_heartbeats import HeartbeatRow
from loadgen.errors import Busy, LoadgenError
from loadgen.log import event, printable
from loadgen.model.event import Stop
from loadgen.model.run import RunStatus
from loadgen.process import is_running
from loadgen.scenario.frozen import thaw
from loadgen.scenario.model import Scenario
from loadgen.scenario.settings import SpawnerKind, TimingSettings
from loadgen.snowflake.session import RetryPolicy
from loadgen.values import dataclass
from orchestrator.lifecycle import CANCELLED

log = logging.getLogger(__name__)

RECLAIM_PERIOD_S = 1.0  # between attempts to claim a lost lease again
STOP_TTL_S = 20.0  # of the lease of a process that stops a run without a leader: for a few statements
_STOPS = " stop"  # the end of the owner of such a lease


class Leadership:
    """Used by the leader's thread, with its session; a separate thread renews the lease, with a separate session."""

    def __init__(
        self,
        run_id: str,
        times: LeaseTimes,
        session: ControlSession,
        retries: RetryPolicy,
        *,
        lease_session: Callable[[], ControlSession],
        clock: Clock,
    ) -> None:
        """`lease_session` opens the session that renews a lease, one for each lease."""
        self._run_id, self._times = run_id, times
        self._session, self._retries = session, retries
        self._lease_session, self._clock = lease_session, clock
        self._keeper: LeaseKeeper | None = None

    @property
    def term(self) -> Lease:
        assert self._keeper is not None, "no lease was claimed"
        return self._keeper.lease

    @property
    def is_first(self) -> bool:
        """True: no other leader has published or stored anything of this run."""
        return self.term.epoch == 1

    def claim(self) -> None:
        """Claim the lease. Raises Busy when another process leads the run. One that only stops it is waited for."""
        owner, waited_s = run_leases.new_owner(), 0.0
        while not self._claim(owner):
            holder = self._retries.call(lambda: run_leases.read(self._session, self._run_id))
            stops = holder is not None and holder.owner.endswith(_STOPS)
            if not stops or waited_s >= STOP_TTL_S + TAKEOVER_MARGIN_S:
                raise Busy(f"run {self._run_id} is led by {'another process' if holder is None else holder.owner}")
            self._clock.wait(self._retries.stop, RECLAIM_PERIOD_S)
            waited_s += RECLAIM_PERIOD_S

    def resign(self, *, releasing: bool) -> None:
        """Stop renewing the lease. With `releasing` the next leader does not have to wait until it expires."""
        if self._keeper is not None:
            self._keeper.stop(releasing=releasing)

    def require_trust(self) -> None:
        """Raises Fenced when the lease may have expired."""
        assert self._keeper is not None, "no lease was claimed"
        if not self._keeper.trusted:
            raise Fenced(f"the lease of run {self._run_id} (epoch {self.term.epoch}) may have expired")

    def reclaim(self, woken: threading.Event) -> None:
        """Claim the next lease after a lost one. Raises Fenced when another process leads the run."""
        lost = self.term
        self.resign(releasing=False)
        owner = run_leases.new_owner()
        by = "another process now"
        for _ in range(round((2 * self._times.ttl_s + run_leases.TAKEOVER_MARGIN_S) / RECLAIM_PERIOD_S)):
            if self._claim(owner):
                event(log, logging.WARNING, "lease_reclaimed", epoch=self.term.epoch)
                return
            holder = self._retries.call(lambda: run_leases.read(self._session, self._run_id))
            if holder is not None and holder.remaining_ms > 0 and holder.epoch > lost.epoch:
                by = f"another process now: {run_leases.describe_owner(holder.owner)}"
                break
            self._clock.wait(woken, RECLAIM_PERIOD_S)
            woken.clear()
        raise Fenced(f"run {self._run_id} is led by {by}", remedy=f"`loadgen watch {self._run_id}` shows it.")

    def _claim(self, owner: str) -> bool:
        claimed_ns = self._clock.monotonic_ns()
        lease = run_leases.claim(self._session, self._retries, self._run_id, owner, self._times.ttl_s)
        if lease is None:
            return False
        self._keeper = LeaseKeeper(self._lease_session(), lease, self._times, claimed_ns=claimed_ns, clock=self._clock)
        self._keeper.start()
        return True


DEAD_AFTER_S = 60.0  # if the timing of the run cannot be read
NEVER_LED_S = 600.0  # a new run has no leader while its value pools are stored
CLAIM_DELAY_S = 0.1  # the server's clock has milliseconds
WORKERS_CHECK_S = 1.0  # between checks whether workers have ended
_ON_THIS_MACHINE = (SpawnerKind.LOCAL, SpawnerKind.SUBPROCESS)  # workers run on the machine of their orchestrator


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRun:
    """A run that was not recovered."""

    run_id: str
    why: str
    has_ended: bool = False
    living: bool = False  # no process leads the run, and its workers continue
    free_in_s: float | None = None  # no process leads the run, and it can be ended after this time


def why_not_recoverable(run: UnfinishedRun, holder: LeaseHolder | None = None) -> SkippedRun | None:
    """Why another process must not take the run over. None: it may."""
    if run.lease_over_ms is None:
        age_s = run.update_age_ms / 1000
        not_yet = SkippedRun(run_id=run.run_id, why=f"it was created {age_s:.0f} s ago, and has no leader yet")
        return None if age_s > NEVER_LED_S else not_yet
    over_s = run.lease_over_ms / 1000
    who = "its leader" if holder is None else run_leases.describe_owner(holder.owner)
    if over_s < 0:
        why = f"it is led by {who}: its lease expires in {-over_s:.0f} s unless it is renewed"
        return SkippedRun(run_id=run.run_id, why=why)
    if over_s <= TAKEOVER_MARGIN_S:
        free_in_s = TAKEOVER_MARGIN_S - over_s
        why = f"{who} no longer leads it, and its last statements may take {free_in_s:.0f} s to end"
        return SkippedRun(run_id=run.run_id, why=why, free_in_s=free_in_s)
    return None


def expire_dead_holder(session: ControlSession, retries: RetryPolicy, run_id: str) -> tuple[LeaseHolder | None, bool]:
    """The holder of the lease, and whether its process has ended on this machine. If so, the lease is expired now."""
    holder = retries.call(lambda: run_leases.read(session, run_id))
    if holder is None or not run_leases.is_owner_dead(holder.owner):
        return holder, False
    if holder.remaining_ms > 0:
        retries.call(lambda: run_leases.expire(session, run_id, holder))
        event(log, logging.INFO, "lease_expired", run=run_id, owner=holder.owner, why="its process has ended")
    return replace(holder, remaining_ms=min(0, holder.remaining_ms)), True


def active_worker(beats: Sequence[HeartbeatRow], silent_s: float) -> str | None:
    """A sentence about a worker that may still be active. None: all have ended, or been silent for `silent_s`. Pure."""
    alive = [row for row in beats if not row.beat.status.is_terminal and row.age_ms <= silent_s * 1000]
    if not alive:
        return None
    newest = min(alive, key=lambda row: row.age_ms)
    return f"{newest.identity.worker_id} sent a heartbeat {newest.age_ms / 1000:.0f} s ago, and has not ended"


def active_worker_of(beats: Sequence[HeartbeatRow], scenario: Scenario | None, *, leader_ended: bool) -> str | None:
    """As active_worker(). `leader_ended`: the process of the leader has ended on this machine. Then local workers are
    processes of this machine, so it is known whether they run."""
    if leader_ended and scenario is not None and scenario.spawner.kind in _ON_THIS_MACHINE:
        beats = tuple(row for row in beats if is_running(row.identity.pid))
    return active_worker(beats, _silent_s(scenario))


def skipped_for_workers(run_id: str, active: str, scenario: Scenario | None, *, leader_ended: bool) -> SkippedRun:
    """A run whose workers are active. Local workers end with their leader; other runs can be taken over."""
    if leader_ended and scenario is not None and scenario.spawner.kind in _ON_THIS_MACHINE:
        return SkippedRun(run_id=run_id, why=f"its workers have not ended yet: {active}", free_in_s=WORKERS_CHECK_S)
    return SkippedRun(run_id=run_id, why=active, living=True)


def _silent_s(scenario: Scenario | None) -> float:
    return DEAD_AFTER_S if scenario is None else scenario.timing.dead_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """A run after a request to end it. `by_us`: this request ends the run, not an earlier one."""

    run: Run
    by_us: bool
    holder: LeaseHolder | None

    @property
    def is_led(self) -> bool:
        return self.holder is not None and self.holder.remaining_ms > 0


def request_stop(
    session: ControlSession, retries: RetryPolicy, run_id: str, by: str, why: str | None = None
) -> StopRequest:
    """Request the end of a run: its leader ends it. Without a leader this process stores that it is CANCELLING, and
    tells the workers. If the process of its leader has ended on this machine, its lease is expired now."""
    moment = retries.call(lambda: run_status.server_time(session))
    reason = f"stopped by {by} at {moment:%Y-%m-%d %H:%M:%S} UTC{f': {printable(why, 500)}' if why else ''}"
    run = run_status.cancel(session, retries, run_id, reason)
    holder, _ = expire_dead_holder(session, retries, run_id)
    asked = StopRequest(run=run, by_us=run.reason == reason, holder=holder)
    if run.status is RunStatus.CANCELLING and not asked.is_led:
        _stop_without_leader(session, retries, run_id, holder)
    return asked


def _stop_without_leader(
    session: ControlSession, retries: RetryPolicy, run_id: str, holder: LeaseHolder | None
) -> None:
    """Store CANCELLING and publish STOP under a lease that is released at once, unless another process leads the run
    by then: it does both. The last statements of a lost leader have ended after the takeover margin."""
    if holder is not None and not holder.may_be_succeeded:
        retries.clock.wait(retries.stop, TAKEOVER_MARGIN_S + holder.remaining_ms / 1000 + CLAIM_DELAY_S)
    lease = run_leases.claim(session, retries, run_id, run_leases.new_owner() + _STOPS, STOP_TTL_S)
    if lease is None:
        return
    try:
        run = retries.call(lambda: run_status.read(session, run_id))
        if run is None or run.status is not RunStatus.CANCELLING:
            return
        stored, status = run.stored_status or run.status, run.status
        change = StatusChange(status=stored, phase=run.phase, to=status, to_phase=run.phase, reason=run.reason)
        if stored is not status:
            run_status.move(session, retries, lease, change)
        published = retries.call(lambda: run_control_events.history(session, run_id))
        if not any(isinstance(one.command, Stop) for one in published):
            drain_s = _timing(session, retries, run_id).drain_interrupt_s
            stop = NewEvent(command=Stop(reason=CANCELLED, drain_timeout_s=drain_s))
            run_control_events.emit(session, retries, lease, stop, len(published) + 1)
        event(log, logging.INFO, "run_stopped_without_leader", run=run_id, epoch=lease.epoch)
    except Fenced as error:
        event(log, logging.WARNING, "run_not_stopped", run=run_id, why=str(error))
    finally:
        release_lease(session, lease)


def release_lease(session: ControlSession, lease: Lease) -> None:
    """Release a lease that was claimed for a few statements."""
    try:
        run_leases.release(session, lease)
    except LoadgenError as error:  # the lease expires by itself
        event(log, logging.DEBUG, "lease_release_failed", key=lease.key, why=str(error))


def stored_scenario(session: ControlSession, retries: RetryPolicy, run_id: str) -> Scenario | None:
    """The scenario of a run, whose variables stay ${NAME}. None: another version has stored it."""
    text = retries.call(lambda: run_status.read_config(session, run_id))
    try:
        return None if text is None else thaw(text, None)
    except LoadgenError as error:
        event(log, logging.WARNING, "scenario_unreadable", run=run_id, why=str(error))
        return None


def _timing(session: ControlSession, retries: RetryPolicy, run_id: str) -> TimingSettings:
    scenario = stored_scenario(session, retries, run_id)
    return TimingSettings() if scenario is None else scenario.timing
