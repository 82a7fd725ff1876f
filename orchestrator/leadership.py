"""A term of office over a run: claimed, kept by a thread of its own, lost, regained, left."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from loadgen.clock import Clock
from loadgen.control.lease import LeaseKeeper, LeaseTimes
from loadgen.control.session import ControlSession
from loadgen.control.tables import run_leases
from loadgen.control.tables.run_leases import Lease
from loadgen.control.tables.run_status import Fenced
from loadgen.errors import Busy
from loadgen.log import event
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
