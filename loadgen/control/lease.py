"""Keeping a lease: one thread, one session, nothing else.

The database decides who holds a lease. The local clock is used for one thing only: to stop trusting it sooner. Trust is
counted from the moment a renewal was *begun*, on a clock that goes on while the machine is suspended, and ends a margin
before the lease does. So a slow answer never lengthens it, and a process that was paused wakes up without it.

    trusted until = begin of the last renewal that succeeded + TTL − margin

The leader asks `trusted` before each command, and SQL asks again (`EXPIRES_AT > SYSDATE()`).
"""

from __future__ import annotations

import logging

from loadgen.clock import Clock, SystemClock
from loadgen.control.session import ControlSession
from loadgen.control.tables.run_leases import Lease, release, renew
from loadgen.errors import ConfigurationError, LoadgenError
from loadgen.log import event
from loadgen.threads import Service
from loadgen.values import dataclass

log = logging.getLogger(__name__)

_NS_PER_S = 1_000_000_000
_JOIN_S = 15.0  # longer than one statement may take


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """How long a lease lasts, how often it is renewed, how much sooner its holder stops."""

    ttl_s: float = 30.0
    renew_s: float = 5.0
    margin_s: float = 5.0

    def __post_init__(self) -> None:
        if not 0 < self.renew_s * 1.2 < self.ttl_s - self.margin_s or self.margin_s <= 0:
            raise ConfigurationError(
                f"a lease of {self.ttl_s:g} s with a margin of {self.margin_s:g} s cannot be kept by renewing it every"
                f" {self.renew_s:g} s",
                remedy="Make lease_ttl larger than lease_margin and 1.2 × lease_renew together.",
            )


class LeaseTrust:
    """Until when the holder may act. Written by the thread that renews, read by everyone."""

    def __init__(self, times: LeaseTimes, begun_ns: int) -> None:
        self._span_ns = round((times.ttl_s - times.margin_s) * _NS_PER_S)
        self._until_ns = begun_ns + self._span_ns
        self._lost = False

    def renewed(self, begun_ns: int) -> None:
        """A renewal that was begun then has succeeded. A lost lease stays lost, whatever arrives late."""
        self._until_ns = max(self._until_ns, begun_ns + self._span_ns)

    def lose(self) -> None:
        self._lost = True

    def holds(self, now_ns: int) -> bool:
        if not self._lost and now_ns < self._until_ns:
            return True
        self._lost = True  # once doubted, never trusted again: a successor may have begun in between
        return False


class LeaseKeeper(Service):
    """Renews a lease until it is stopped or lost. Owns `session`, which it closes."""

    def __init__(
        self,
        session: ControlSession,
        term: Lease,
        times: LeaseTimes,
        *,
        claimed_ns: int,
        clock: Clock | None = None,
    ) -> None:
        """`claimed_ns` is the boot time at which the claim was begun."""
        self.term = term
        self._session = session
        self._times = times
        self._clock = clock or SystemClock()
        self._trust = LeaseTrust(times, claimed_ns)
        self._releasing = False
        super().__init__("lease", self._keep, died=lambda _: self._trust.lose())

    @property
    def trusted(self) -> bool:
        """May the holder act now? False is final."""
        return self._trust.holds(self._clock.monotonic_ns())

    def stop(self, *, releasing: bool = True) -> None:
        """End the thread; with `releasing`, a successor need not wait. Safe to call twice."""
        self._releasing = releasing
        super().stop()
        self.join(_JOIN_S)

    def _keep(self) -> None:
        while not self._clock.wait(self.stopping, self._times.renew_s):
            if not self.step():
                break
        if self._releasing and self.trusted:
            self._release()
        self._session.close()

    def step(self) -> bool:
        """One renewal. False: the lease is lost."""
        begun_ns = self._clock.monotonic_ns()
        if not self._trust.holds(begun_ns):
            event(
                log, logging.WARNING, "lease_lost", key=self.term.key, epoch=self.term.epoch, why="no renewal in time"
            )
            return False
        try:
            if renew(self._session, self.term, self._times.ttl_s):
                self._trust.renewed(begun_ns)
                return True
        except LoadgenError as error:
            # Not known whether it was extended: trust is as it was, and the next renewal will tell. A new session may
            # also be refused for good (ConnectFailed); that must not end the thread before trust has ended.
            event(log, logging.WARNING, "lease_renewal_failed", key=self.term.key, why=str(error))
            return True
        self._trust.lose()
        event(log, logging.WARNING, "lease_lost", key=self.term.key, epoch=self.term.epoch, why="refused")
        return False

    def _release(self) -> None:
        try:
            release(self._session, self.term)
        except LoadgenError as error:  # it expires by itself
            event(log, logging.DEBUG, "lease_release_failed", key=self.term.key, why=str(error))
        self._trust.lose()
