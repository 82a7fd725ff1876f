"""What somebody must do for a queue that several pools share: end what its owners left, forget who is gone, count.

Everything here is harmless to do twice and by several at once.
"""

from __future__ import annotations

import logging
import threading

from loadgen.clock import Clock
from loadgen.control.session import ControlSession
from loadgen.control.tables import pool_workers, run_attempts, run_queue_claims
from loadgen.errors import LoadgenError
from loadgen.log import event
from loadgen.snowflake.session import RetryPolicy
from loadgen.units import NS_PER_S

log = logging.getLogger(__name__)

PRUNE_S = 3600.0
_JOIN_S = 15.0


class QueueMaintenance:
    """A thread that looks at the queue every `poll_s`. Owns `session`, which it closes."""

    def __init__(
        self, session: ControlSession, offers: tuple[str, ...], *, share: bool, poll_s: float, clock: Clock
    ) -> None:
        self._session, self._offers, self._share = session, offers, share
        self._poll_s, self._clock = poll_s, clock
        self._depth: int | None = None
        self._lock = threading.Lock()  # guards _depth
        self._stopping = threading.Event()
        self._patience = RetryPolicy(stop=self._stopping, attempts=1, clock=clock)
        self._prune_ns = clock.monotonic_ns()
        self._thread = threading.Thread(target=self._run, name="queue", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def join(self) -> None:
        self._thread.join(_JOIN_S)

    def take_depth(self) -> int | None:
        """How many runs wait; None: nobody has looked since this was asked last."""
        with self._lock:
            depth, self._depth = self._depth, None
            return depth

    def step(self) -> None:
        """One look, and everything that is to be done."""
        session, patience = self._session, self._patience
        depth = run_queue_claims.depth(session, self._offers, share=self._share)
        with self._lock:
            self._depth = depth
        self._expire_gone()
        pool_workers.silent_offline(session, patience)
        ended = run_queue_claims.end_abandoned(session, patience)
        settled = run_attempts.end_stale(session, patience)
        if ended or settled:
            event(log, logging.INFO, "queue_tidied", runs_ended=ended, attempts_settled=settled)
        if self._clock.monotonic_ns() >= self._prune_ns:
            pool_workers.prune(session, patience)
            self._prune_ns = self._clock.monotonic_ns() + round(PRUNE_S * NS_PER_S)

    def _expire_gone(self) -> None:
        """Runners whose process has ended on this machine keep no run, though their leases would last longer."""
        for owner in filter(pool_workers.is_gone, run_queue_claims.owners(self._session)):
            run_queue_claims.expire(self._session, self._patience, owner)
            pool_workers.offline(self._session, self._patience, owner)
            event(log, logging.INFO, "claims_expired", runner=owner, why="its process has ended")

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.step()
            except LoadgenError as error:
                event(log, logging.WARNING, "queue_look_failed", why=str(error))
            except Exception as error:  # the top of a thread: a pool must not go on without anybody noticing
                event(log, logging.ERROR, "queue_look_failed", why=f"{type(error).__name__}: {error}")
            self._clock.wait(self._stopping, self._poll_s)
        self._session.close()
