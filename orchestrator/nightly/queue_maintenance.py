"""Maintenance of a queue that several pools share: end abandoned runs, remove silent runners, count waiting runs.

Everything here is harmless to do twice and by several at once.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from loadgen.clock import Clock
from loadgen.control.session import ControlSession
from loadgen.control.tables import pool_workers, run_queue, run_queue_claims
from loadgen.control.tables.run_queue_claims import QueueDepth
from loadgen.errors import LoadgenError
from loadgen.log import event
from loadgen.model.nightly import UNCLAIMED_AFTER_S, unmet_requirements
from loadgen.snowflake.session import RetryPolicy
from loadgen.threads import Service
from loadgen.units import NS_PER_S
from loadgen.values import dataclass
from orchestrator.nightly.pool import PollPace
from orchestrator.nightly.queued_scenario import HostPermissions, restrict_notifications

log = logging.getLogger(__name__)

PRUNE_S = 3600.0
GONE = "the process of its runner has ended"


class QueueMaintenance(Service):
    """A thread that looks at the queue, for all runners of a pool. Owns `session`, which it closes."""

    def __init__(
        self, session: ControlSession, offers: tuple[str, ...], *, share: bool, pace: PollPace, clock: Clock
    ) -> None:
        self._session, self._offers, self._share = session, offers, share
        self._pace, self._clock = pace, clock
        self._idle_looks = 0  # in a row that found no work
        self._failures = 0  # looks in a row that failed
        self._gone: deque[tuple[str, str]] = deque()  # runners of this pool whose processes have ended, and how
        self._news = threading.Event()  # not to be kept until the next look
        self._due_ns: int | None = None  # when the next queued run is due
        self.open_runs = 0  # queued for any pool, or under way
        self._depth: QueueDepth | None = None
        self._lock = threading.Lock()  # guards _depth
        super().__init__("queue", self._maintain)
        self._patience = RetryPolicy(stop=self.stopping, attempts=1, clock=clock)
        self._prune_ns = clock.monotonic_ns()

    def take_depth(self) -> QueueDepth | None:
        """What waits for a runner; None: not read since the last call."""
        self.check()  # a pool must not go on without it
        with self._lock:
            depth, self._depth = self._depth, None
            return depth

    def idle_beat_s(self) -> float | None:
        """How often runners should beat, because there is no work for them; None: there may be some."""
        return self._pace.idle_poll_s if self._pace.is_idle(self._idle_looks) else None

    def wake(self) -> None:
        """Look now: something was queued."""
        self._idle_looks = 0
        self._news.set()

    def release(self, worker_id: str, why: str) -> None:
        """The process of this runner has ended: others can take its run at once."""
        self._gone.append((worker_id, why))
        self.wake()

    def stop(self) -> None:
        super().stop()
        self._news.set()

    def step(self) -> None:
        """One look, and everything that is to be done."""
        session, patience = self._session, self._patience
        self._release_gone()
        if self._clock.monotonic_ns() >= self._prune_ns:
            pool_workers.prune(session, patience)
            pool_workers.silent_offline(session, patience)
            self._prune_ns = self._clock.monotonic_ns() + round(PRUNE_S * NS_PER_S)
        found = run_queue_claims.open_runs(session, self._offers)
        self.open_runs = found.total
        self._due_ns = None
        if found.due_in_s is not None:
            self._due_ns = self._clock.monotonic_ns() + round(found.due_in_s * NS_PER_S)
        if not found.is_work:
            self._idle_looks += 1
            self._set_depth(QueueDepth())
            return
        self._idle_looks = 0
        self._set_depth(run_queue_claims.depth(session, self._offers, share=self._share))
        self._expire_gone()
        pool_workers.silent_offline(session, patience)
        ended = run_queue_claims.end_abandoned(session, patience)
        ended += run_queue_claims.refuse_unclaimable(session, patience)
        if ended:
            event(log, logging.INFO, "queue_tidied", runs=ended)

    def _release_gone(self) -> None:
        while self._gone:
            self._expire(*self._gone[0])
            self._gone.popleft()

    def _set_depth(self, depth: QueueDepth) -> None:
        with self._lock:
            self._depth = depth

    def _expire_gone(self) -> None:
        """Runners whose process has ended on this machine keep no run, though their leases would last longer."""
        for owner in filter(pool_workers.is_gone, run_queue_claims.owners(self._session)):
            self._expire(owner, GONE)

    def _expire(self, owner: str, why: str) -> None:
        run_queue_claims.expire(self._session, self._patience, owner, why)
        pool_workers.offline(self._session, self._patience, owner)
        event(log, logging.INFO, "claims_expired", runner=owner, why=why)

    def _maintain(self) -> None:
        while not self.stopping.is_set():
            self._failures += 1
            try:
                self.step()
                self._failures = 0
            except LoadgenError as error:
                event(log, logging.WARNING, "queue_look_failed", why=str(error))
            except Exception as error:  # the top of a thread: an error must be visible in the log of the pool
                event(log, logging.ERROR, "queue_look_failed", why=f"{type(error).__name__}: {error}")
            self._clock.wait(self._news, self._pause_s())
            self._news.clear()
        with suppress(LoadgenError):  # then their leases expire
            self._release_gone()
        self._session.close()

    def _pause_s(self) -> float:
        due_in_s = None if self._due_ns is None else (self._due_ns - self._clock.monotonic_ns()) / NS_PER_S
        return self._pace.pause_s(self._idle_looks, self._failures, due_in_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnclaimedRun:
    queue_id: str
    name: str
    reason: str


def find_unclaimed_runs(
    session: ControlSession, patience: RetryPolicy, *, after_s: int = 0
) -> tuple[UnclaimedRun, ...]:
    """Runs that have waited for at least `after_s` and that no online runner can take."""
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
    are sent if this host allows them."""
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
    from loadgen.scenario.read import parse_scenario  # both take long to import, and are rarely needed
    from orchestrator.nightly.notify import notify_not_started

    try:
        text = patience.call(lambda: run_queue.read_scenario_text(session, one.queue_id))
        loaded = parse_scenario(text or "", source=one.queue_id, environ=os.environ, variables=allowed.variables)
        scenario = restrict_notifications(loaded.scenario, allowed, warn)
    except LoadgenError as error:
        warn(f"{one.queue_id}: no notification was sent: {error}")
        return
    notify_not_started(scenario, one.queue_id, one.reason, warn)
