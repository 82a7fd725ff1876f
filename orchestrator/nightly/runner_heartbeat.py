"""Keeping a runner known and its lease alive: one thread, one connection, nothing else.

Each beat also extends the lease of what the runner does. As with a run's leader (loadgen.control.lease), the database
decides who holds it; the local clock is only used to stop trusting it sooner.
"""

from __future__ import annotations

import logging
import threading

from loadgen.clock import Clock
from loadgen.control.lease import LeaseTimes, LeaseTrust
from loadgen.control.session import ControlSession
from loadgen.control.tables import pool_workers, run_queue_claims
from loadgen.control.tables.pool_workers import PoolWorkerIdentity, RegistryReply
from loadgen.control.tables.run_queue_claims import QueueClaim
from loadgen.errors import LoadgenError
from loadgen.log import event
from loadgen.snowflake.session import RetryPolicy
from loadgen.threads import Service
from loadgen.values import dataclass

log = logging.getLogger(__name__)

_AGAIN_S = 1.0  # after a beat that failed
_JOIN_S = 20.0  # longer than two statements may take


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldClaim:
    """What the runner does, and until when it may trust that it is its own."""

    claim: QueueClaim
    trust: LeaseTrust
    run_id: str | None = None  # once it is known


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCounts:
    """What the runner has done."""

    completed: int = 0
    failed: int = 0


class RunnerHeartbeat(Service):
    """Owns `session`, which it closes. What is held and counted is said by the thread that does the runs."""

    def __init__(self, session: ControlSession, me: PoolWorkerIdentity, *, lease_s: float, clock: Clock) -> None:
        self.held: HeldClaim | None = None
        self.counted = AttemptCounts()
        self.registered = threading.Event()
        self.draining = threading.Event()  # set by the registry's answer, or by our own process
        self.error: BaseException | None = None  # why there are no beats
        self._session, self._me, self._lease_s, self._clock = session, me, lease_s, clock
        super().__init__("beats", self._keep)
        self._news = threading.Event()  # not to be kept until the next beat
        self._patience = RetryPolicy(stop=self.stopping, clock=clock)
        self._beat_s = pool_workers.beat_s(lease_s)
        self._idle_s: float | None = None
        self._drain_told = False

    def hold(self, held: HeldClaim | None) -> None:
        """What the runner does from now on."""
        self.held = held
        self._news.set()

    def set_idle(self, beat_s: float | None) -> None:
        """There is no work: beat this often. None: there is."""
        if beat_s != self._idle_s:
            self._idle_s = beat_s
            self._news.set()

    def stop(self) -> None:
        """The last word: this runner is OFFLINE. Bounded, and safe to call twice."""
        super().stop()
        self._news.set()
        self.join(_JOIN_S)

    def new_trust(self, begun_ns: int) -> LeaseTrust:
        """For a claim that was begun then."""
        times = LeaseTimes(ttl_s=self._lease_s, renew_s=self._beat_s, margin_s=self._lease_s / 12)
        return LeaseTrust(times, begun_ns)

    def step(self) -> bool:
        """One beat, with everything that belongs to it. False: it failed, and should be tried again soon."""
        try:
            self._beat()
        except LoadgenError as error:
            event(log, logging.WARNING, "beat_failed", runner=self._me.worker_id, why=str(error))
            return False
        return True

    # --- the thread --------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        try:
            self._heed(self._register())
        except LoadgenError as error:
            self.error = error
        self.registered.set()
        if self.error is None:
            try:
                self._keep_beating()
            except BaseException as error:  # a bug, or a panic of the driver: a runner without heartbeats must leave
                self.error = error
                self.draining.set()
            self._sign_off()
        self._session.close()

    def _keep_beating(self) -> None:
        wait_s = self._beat_s
        while not self.stopping.is_set():
            self._clock.wait(self._news, wait_s)
            self._news.clear()
            if not self.stopping.is_set():
                wait_s = self._beat_s if self.step() else min(self._beat_s, _AGAIN_S)

    def _beat(self) -> None:
        held, begun_ns = self.held, self._clock.monotonic_ns()
        answer = pool_workers.beat(
            self._session,
            self._me.worker_id,
            current_run=None if held is None else held.claim.queue_id,
            completed=self.counted.completed,
            failed=self.counted.failed,
            lease_s=self._lease_s,
            idle_s=self._idle_s if held is None else None,
            draining=self._drain_told,
        )
        if answer is None:
            event(log, logging.WARNING, "runner_was_forgotten", runner=self._me.worker_id)
            answer = self._register()
        if held is not None:  # it was there before the statement: none found means that it is not ours any more
            if run_queue_claims.extend(self._session, held.claim, self._lease_s, run_id=held.run_id):
                held.trust.renewed(begun_ns)
            else:
                held.trust.lose()
        self._heed(answer)

    def _heed(self, answer: RegistryReply) -> None:
        self._beat_s = answer.beat_s
        if answer.should_drain:
            self._drain_told = True
            self.draining.set()
        elif self.draining.is_set() and not self._drain_told:
            pool_workers.drain(self._session, self._patience, self._me.worker_id)
            self._drain_told = True

    def _register(self) -> RegistryReply:
        return pool_workers.register(
            self._session, self._patience, self._me, draining=self.draining.is_set(), lease_s=self._lease_s
        )

    def _sign_off(self) -> None:
        """With the last counts. It needs no patience: who is not heard is taken for gone."""
        patience = RetryPolicy(stop=threading.Event(), attempts=1, clock=self._clock)
        try:
            self._beat()
            pool_workers.offline(self._session, patience, self._me.worker_id)
        except LoadgenError as error:
            event(log, logging.INFO, "sign_off_failed", runner=self._me.worker_id, why=str(error))
