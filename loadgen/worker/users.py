"""The logical users of a worker, as whom statements with `session: true` are executed.

A user belongs to one slot, and so to one connection at a time: users of the run are dealt to the workers, and those of
a worker to its slots, each in turn. What happens to the sessions of a slot when its connection is gone:

    strict   they expire; the users have others over the next connection, which remember other values
    hint     they go on over the next connection of the slot; while it has none, until their time to live is over

The end of the load ends no session: those that live then are `current` in the results.

    Seat     the users of one slot, in place of its drawer. Belongs to the slot's client.
    Users    all seats. sweep(): the ramp controller. counts: the main thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from loadgen.clock import Clock
from loadgen.model.counts import UserSessionCounts
from loadgen.model.run import worker_share
from loadgen.model.workload import ClientPosition
from loadgen.scenario.model import Scenario
from loadgen.scenario.settings import SessionAffinity
from loadgen.snowflake.driver import Cursor
from loadgen.snowflake.settings import session_tag
from loadgen.units import NS_PER_S
from loadgen.worker.sessions import StatementExecutor, with_tag
from loadgen.workload.draw import Row, StatementStream
from loadgen.workload.pools import Pool
from loadgen.workload.users import RememberedParameters, RememberedValues, UserSession, UserSessionTable

SWEEP_S = 60.0


class LogicalUsers:
    """Seats are made by the thread that makes slots."""

    def __init__(
        self, scenario: Scenario, worker: int, workers: int, clients: int, pools: Mapping[str, Pool], clock: Clock
    ) -> None:
        """`clients`: the most that this worker has; each slot below has a seat."""
        self._scenario, self._worker, self._workers = scenario, worker, workers
        self._clients, self._pools, self._clock = clients, pools, clock
        self._users = worker_share(scenario.sessions.count, worker, workers)
        statements = scenario.workload.statements
        self._blanks = tuple(RememberedParameters(one, statements) if one.session else None for one in statements)
        self._seats: list[SlotUsers] = []
        self._swept_ns = clock.monotonic_ns()
        self._closed = False

    def seat(self, client: int, drawer: StatementStream) -> SlotUsers:
        """The users of a slot, who draw from its drawer."""
        scenario, users = self._scenario, worker_share(self._users, client, self._clients)
        place = ClientPosition(
            worker=self._worker,
            workers=self._workers,
            client=client,
            clients=self._clients,
            lanes=scenario.load.connections,
        )
        memory = RememberedValues(scenario.workload, place, self._pools, users)
        sessions = scenario.sessions

        def make(user: int, incarnation: int) -> UserSession:
            number = (user * self._clients + client) * self._workers + self._worker  # among all users of the run
            return UserSession(
                user=user,
                incarnation=incarnation,
                values=memory.values(user, incarnation),
                tag=session_tag(incarnation * sessions.count + number, sessions.metadata),
            )

        book = UserSessionTable(users, round(sessions.ttl_s * NS_PER_S), make)
        strict = sessions.affinity is SessionAffinity.STRICT
        seat = SlotUsers(book, memory, drawer, self._blanks, self._clock, strict=strict)
        self._seats.append(seat)
        return seat

    def sweep(self) -> None:
        """Once a minute, however often it is called."""
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._swept_ns >= SWEEP_S * NS_PER_S and not self._closed:
            self._swept_ns = now_ns
            for seat in self._seats:
                seat.book.sweep(now_ns)

    def close(self) -> None:
        """The load ends: what is over by now expires, and nothing after it ends a session. Safe to call twice."""
        now_ns = self._clock.monotonic_ns()
        for seat in tuple(self._seats):
            seat.strict = False
            if not self._closed:  # up to a minute after the last sweep, many may have expired unused
                seat.book.sweep(now_ns)
        self._closed = True

    @property
    def counts(self) -> UserSessionCounts:
        return sum((seat.book.counts for seat in tuple(self._seats)), UserSessionCounts())


class UserStatement(NamedTuple):
    """A statement of a user, before it is sent."""

    seat: SlotUsers
    session: UserSession
    row: Row
    bare: Row  # without what the session remembers
    blanks: RememberedParameters


class SlotUsers:
    """Draws as the slot's drawer does, and says whose statement it is."""

    def __init__(
        self,
        book: UserSessionTable,
        memory: RememberedValues,
        drawer: StatementStream,
        blanks: Sequence[RememberedParameters | None],
        clock: Clock,
        *,
        strict: bool,
    ) -> None:
        self.book, self.strict = book, strict
        self.tag = ""  # QUERY_TAG of the connection
        self._memory, self._drawer, self._blanks, self._clock = memory, drawer, blanks, clock

    def ahead(self, k: int) -> list[tuple[int, Row]]:
        """One: which session it belongs to is not known before its turn."""
        return [self.draw(k)]

    def draw(self, k: int) -> tuple[int, Row]:
        number, row = self._drawer.draw(k)
        blanks = self._blanks[number]
        if blanks is None:
            return number, row
        drawn: Any = self._drawn(self._memory.user(k), row, blanks)  # for in_session(); others only carry it there
        return number, drawn

    def disconnected(self) -> None:
        if self.strict:
            self.book.lose()

    def execute(self, run: StatementExecutor, cursor: Cursor, drawn: UserStatement) -> int:
        """Execute a statement in its session; in the user's next one, if that has expired since it was drawn."""
        book, clock = self.book, self._clock
        while not book.begin(drawn.session, clock.monotonic_ns()):
            drawn = self._drawn(drawn.session.user, drawn.bare, drawn.blanks)
        tagged = with_tag(cursor, self.tag[:-1] + drawn.session.tag)
        try:
            return run(tagged, drawn.row)
        finally:
            book.end(clock.monotonic_ns())

    def _drawn(self, user: int, bare: Row, blanks: RememberedParameters) -> UserStatement:
        session = self.book.prepare(user, self._clock.monotonic_ns())
        return UserStatement(self, session, blanks.filled(bare, session.values), bare, blanks)


def in_session(run: StatementExecutor) -> StatementExecutor:
    """A statement that is executed as a user."""

    def execute(cursor: Cursor, drawn: Any) -> int:
        seat: SlotUsers = drawn.seat
        return seat.execute(run, cursor, drawn)

    return execute
