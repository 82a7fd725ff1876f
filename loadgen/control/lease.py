"""Keeps a lease: one thread with one session renews it.

The database decides which process holds a lease. The holder uses its local clock only to stop trusting the lease before
it expires. Trust counts from the moment a renewal was *sent*, on a clock that continues while the machine is suspended,
and ends a margin before the lease. So a slow answer does not extend it, and a process that was paused has lost it.

    trusted until = time at which the last successful renewal was sent + TTL − margin

The leader checks `trusted` before each command, and SQL checks the lease again (`EXPIRES_AT > SYSDATE()`).
"""

from __future__ import annotations

import logging

from loadgen.clock import Clock, SystemClock
from loadgen.control.session import ControlSession
from loadgen.control.tables.run_leases import Lease, release, renew
from loadgen.errors import ConfigurationError, LoadgenError
from loadgen.log import event
from loadgen.threads import Service
from loadgen.units import NS_PER_S
from loadgen.values import dataclass

log = logging.getLogger(__name__)

_JOIN_S = 15.0  # longer than the time limit of one statement


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """Duration of a lease, interval of renewals, and how long before the end its holder stops trusting it."""

    ttl_s: float = 30.0
    renew_s: float = 5.0
    margin_s: float = 5.0

    def __post_init__(self) -> None:
        if not 0 < self.renew_s * 1.2 < self.ttl_s - self.margin_s or self.margin_s <= 0:
            raise ConfigurationError(
                f"a lease of {self.ttl_s:g} s with a margin of {self.margin_s:g} s cannot be kept with renewals every"
                f" {self.renew_s:g} s",
                remedy="Set lease_ttl to more than lease_margin + 1.2 × lease_renew.",
            )


class LeaseTrust:
    """Until when the holder may act. Written by the thread that renews, read by any thread."""

    def __init__(self, times: LeaseTimes, begun_ns: int) -> None:
        self._span_ns = round((times.ttl_s - times.margin_s) * NS_PER_S)
        self._until_ns = begun_ns + self._span_ns
        self._lost = False

    def renewed(self, begun_ns: int) -> None:
        """A renewal that was sent at `begun_ns` succeeded. A lost lease stays lost, even after a late success."""
        self._until_ns = max(self._until_ns, begun_ns + self._span_ns)

    def lose(self) -> None:
        self._lost = True

    def holds(self, now_ns: int) -> bool:
        if not self._lost and now_ns < self._until_ns:
            return True
        self._lost = True  # never trusted again: a successor may have claimed it in the meantime
        return False


class LeaseKeeper(Service):
    """Renews a lease until it is stopped or the lease is lost. Owns and closes `session`."""

    def __init__(
        self,
        session: ControlSession,
        lease: Lease,
        times: LeaseTimes,
        *,
        claimed_ns: int,
        clock: Clock | None = None,
    ) -> None:
        """`claimed_ns` is the monotonic time at which the claim was sent."""
        self.lease = lease
        self._session = session
        self._times = times
        self._clock = clock or SystemClock()
        self._trust = LeaseTrust(times, claimed_ns)
        self._releasing = False
        super().__init__("lease", self._keep, died=lambda _: self._trust.lose())

    @property
    def trusted(self) -> bool:
        """Whether the holder may act now. False is final."""
        return self._trust.holds(self._clock.monotonic_ns())

    def stop(self, *, releasing: bool = True) -> None:
        """End the thread. With `releasing`, a successor does not have to wait. Safe to call twice."""
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
        """Renew once. False: the lease is lost."""
        begun_ns = self._clock.monotonic_ns()
        if not self._trust.holds(begun_ns):
            event(
                log, logging.WARNING, "lease_lost", key=self.lease.key, epoch=self.lease.epoch, why="no renewal in time"
            )
            return False
        try:
            if renew(self._session, self.lease, self._times.ttl_s):
                self._trust.renewed(begun_ns)
                return True
        except LoadgenError as error:
            # The outcome is unknown, so trust does not change, and the next renewal shows it. A new session may also be
            # rejected permanently (ConnectFailed); the thread must not end before trust has ended.
            event(log, logging.WARNING, "lease_renewal_failed", key=self.lease.key, why=str(error))
            return True
        self._trust.lose()
        event(log, logging.WARNING, "lease_lost", key=self.lease.key, epoch=self.lease.epoch, why="refused")
        return False

    def _release(self) -> None:
        try:
            release(self._session, self.lease)
        except LoadgenError as error:  # the lease expires without it
            event(log, logging.DEBUG, "lease_release_failed", key=self.lease.key, why=str(error))
        self._trust.lose()
