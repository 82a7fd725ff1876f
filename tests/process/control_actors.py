"""Orchestrators whose requests pass through a network that loses, delays and repeats them."""

from __future__ import annotations

import copy
import time
from enum import Enum
from typing import Any

from loadgen.control.lease import LeaseKeeper, LeaseTimes
from loadgen.control.session import ControlFailed, ControlSession, NamedQuery
from loadgen.control.tables.run_leases import Lease
from loadgen.control.tables.run_status import Run
from loadgen.model.counts import ErrorCategory
from loadgen.snowflake.failure import Failure
from tests.control_plane import ControlPlane
from tests.embedded_server import EmbeddedServer
from tests.fake_clock import FakeClock

TIMES = LeaseTimes()  # 30 s, trusted for 25
NO_ANSWER = Failure(category=ErrorCategory.CONNECTION, retryable=True, unknown_outcome=True)


class RequestOutcome(Enum):
    """What becomes of the next change that an actor sends."""

    ANSWERED = "executed, and answered"
    LOST = "executed, and the answer lost: it is looked up, and retried"
    HELD = "held back on the way; given up, it may arrive later"
    REPEATED = "held back on the way; it is looked up and retried, and the first may arrive later"
    COPIED = "executed, answered, and a copy may arrive later"


class RunningClock(FakeClock):
    """Moves when the test says so, and in real time."""

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + time.monotonic_ns()


class ActorSession(ControlSession):
    """Its requests pass through a network that can hold them back or keep a copy."""

    outcome = RequestOutcome.ANSWERED
    network: list[tuple[NamedQuery, tuple[Any, ...]]]

    def execute(self, query: NamedQuery, *binds: Any) -> int:
        outcome, self.outcome = self.outcome, RequestOutcome.ANSWERED
        if outcome in (RequestOutcome.HELD, RequestOutcome.REPEATED, RequestOutcome.COPIED):
            self.network.append((query, binds))
        if outcome in (RequestOutcome.HELD, RequestOutcome.REPEATED):
            raise ControlFailed("no answer", NO_ANSWER)
        return super().execute(query, *binds)


class Actor:
    """An orchestrator: a connection, a clock, and perhaps a lease with its keeper."""

    def __init__(self, plane: ControlPlane, name: str) -> None:
        self.session = ActorSession(plane.place, role=name, environ=plane.environ)
        self.reset([])

    def reset(self, network: list[tuple[NamedQuery, tuple[Any, ...]]]) -> None:
        self.session.network = network
        self.session.outcome = RequestOutcome.ANSWERED
        self.clock = RunningClock()
        self.forget()

    def forget(self) -> None:
        self.keeper: LeaseKeeper | None = None
        self.view: Run | None = None

    def take(self, term: Lease, begun_ns: int) -> None:
        self.keeper = LeaseKeeper(self.session, term, TIMES, claimed_ns=begun_ns, clock=self.clock)

    @property
    def keeping(self) -> LeaseKeeper:
        assert self.keeper is not None
        return self.keeper

    @property
    def would_act(self) -> bool:
        """Whether it may act on its lease. A copy is asked, because asking ends trust that has expired."""
        if self.keeper is None:
            return False
        same = copy.copy(self.keeper)
        same._trust = copy.copy(same._trust)
        return same.trusted


class World:
    """What outlives one example: the server, its tables, and the actors' connections."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.server = server
        self.plane = ControlPlane(server)
        self.actors = [Actor(self.plane, f"actor {number}") for number in range(3)]

    def close(self) -> None:
        for actor in self.actors:
            actor.session.close()
        self.plane.close()


class Taken(Exception):
    """A key was there already."""


def execute_late(session: ControlSession, query: NamedQuery, binds: tuple[Any, ...]) -> None:
    try:
        session.execute(query, *binds)
    except ControlFailed as error:
        if not error.failure.is_duplicate_key:
            raise
        raise Taken from error
