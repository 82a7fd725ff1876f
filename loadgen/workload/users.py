"""The sessions of the users of one client: which users have one, when it was last used, and how many were created.

    prepare   returns the session of a user's next statement: the current one, or the next one, which is not begun yet
    begin     marks it as used; the first time it is created
    end       the statement has ended; the time to live of the session begins
    sweep     expires sessions that were idle for their time to live
    lose      expires all sessions, because their connection has ended

The values that the next session remembers are drawn when it is prepared, before the statement is measured. A session
may expire between prepare and begin; begin then returns False, and another session must be prepared. Pure: the caller
passes the time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from loadgen.errors import ScenarioInvalid
from loadgen.model.counts import UserSessionCounts
from loadgen.model.workload import (
    ClientPosition,
    KeyRange,
    Parameter,
    Previous,
    Remembered,
    Statement,
    Uniform,
    Workload,
)
from loadgen.values import dataclass
from loadgen.workload.draw import Row
from loadgen.workload.draw_context import DrawContext
from loadgen.workload.generators import Value, make_generator
from loadgen.workload.pools import Pool


@dataclass(slots=True, kw_only=True)
class UserSession:
    """One session of a user, numbered from 0 per user."""

    user: int  # number among the users of the client
    incarnation: int
    values: tuple[Value, ...]  # remembered values
    tag: str  # text that it adds to QUERY_TAG
    used_ns: int = 0


class UserSessionTable:
    """sweep() and counts: any thread. Everything else: the thread that executes the statements."""

    def __init__(self, users: int, ttl_ns: int, make: Callable[[int, int], UserSession]) -> None:
        """`make` draws a session: the arguments are the user and the number among the user's sessions, both from 0."""
        self._ttl_ns, self._make = ttl_ns, make
        self._lock = threading.Lock()  # guards everything below
        self._next = [0] * users  # by user: the number of the next session
        self._living: dict[int, UserSession] = {}  # by user
        self._busy: UserSession | None = None  # the session whose statement is executed
        self._created = 0

    def prepare(self, user: int, now_ns: int) -> UserSession:
        with self._lock:
            living = self._living.get(user)
            if living is not None and not self._is_over(living, now_ns):
                return living
            # An expired session that is not swept yet is still listed; the next one follows it.
            number = self._next[user]
        return self._make(user, number)

    def begin(self, session: UserSession, now_ns: int) -> bool:
        """Mark the session as used. False: it has expired since it was prepared."""
        with self._lock:
            living = self._living.get(session.user)
            if living is not None and self._is_over(living, now_ns):
                del self._living[session.user]
                living = None
            if living is None:
                if session.incarnation != self._next[session.user]:
                    return False
                self._living[session.user] = session
                self._next[session.user] += 1
                self._created += 1
            elif living is not session:
                return False
            session.used_ns = now_ns
            self._busy = session
            return True

    def end(self, now_ns: int) -> None:
        with self._lock:
            if self._busy is not None:
                self._busy.used_ns = now_ns
                self._busy = None

    def lose(self) -> None:
        with self._lock:
            self._living.clear()

    def sweep(self, now_ns: int) -> None:
        with self._lock:
            for session in [one for one in self._living.values() if self._is_over(one, now_ns)]:
                del self._living[session.user]

    @property
    def counts(self) -> UserSessionCounts:
        with self._lock:
            return UserSessionCounts(created=self._created, expired=self._created - len(self._living))

    def _is_over(self, session: UserSession, now_ns: int) -> bool:
        """Whether it has expired. A session does not expire while its statement is executed."""
        return session is not self._busy and now_ns - session.used_ns >= self._ttl_ns


# Stand for the number of a statement, and are above all of them, so that no bits are shared with statements.
_REMEMBERED, _TURNS = 1 << 20, (1 << 20) + 1


class RememberedValues:
    """The remembered values of the users of one client, and the order of users. Any thread."""

    def __init__(self, workload: Workload, place: ClientPosition, pools: Mapping[str, Pool], users: int) -> None:
        source = DrawContext(
            seed=workload.seed, statement=_REMEMBERED, place=place, sharding=workload.sharding, pools=pools
        )
        remembered = remembered_values(workload.statements)
        self._users = users
        self._generators = []
        for position, (name, parameter) in enumerate(remembered.items()):
            try:
                self._generators.append(make_generator(parameter, replace(source, position=position)))
            except ValueError as error:
                raise ScenarioInvalid(f"remembered {name}: {error}") from error
        turns = DrawContext(seed=workload.seed, statement=_TURNS, place=place)
        self._turns = make_generator(Uniform(keys=KeyRange(low=0, high=users)), turns)

    def user(self, k: int) -> int:
        """The user of draw k; all users have equal probability."""
        return self._turns.take(k)  # type: ignore[return-value]  # a Uniform of whole numbers

    def values(self, user: int, incarnation: int) -> tuple[Value, ...]:
        """The values of a user's session with this number."""
        number = incarnation * self._users + user
        return tuple(generator.take(number) for generator in self._generators)


def remembered_values(statements: tuple[Statement, ...]) -> dict[str, Parameter]:
    """Every remembered name, in the order of the scenario, and the generator of its value."""
    return {
        parameter.name: parameter.of
        for statement in statements
        for query in statement.queries
        for parameter in query.parameters
        if isinstance(parameter, Remembered)
    }


class RememberedParameters:
    """The positions of remembered values in the parameters of a statement; `previous` may repeat one."""

    def __init__(self, statement: Statement, statements: tuple[Statement, ...]) -> None:
        numbers = {name: number for number, name in enumerate(remembered_values(statements))}
        meant: list[Parameter] = []
        self._queries: list[tuple[tuple[int, int], ...]] = []  # of each query: position, number of the value
        for query in statement.queries:
            first = len(meant)
            for parameter in query.parameters:
                meant.append(meant[parameter.index] if isinstance(parameter, Previous) else parameter)
            self._queries.append(
                tuple((at, numbers[one.name]) for at, one in enumerate(meant[first:]) if isinstance(one, Remembered))
            )

    def filled(self, row: Row, values: tuple[Value, ...]) -> Row:
        return tuple(
            _filled(parameters, blanks, values) if blanks else parameters
            for parameters, blanks in zip(row, self._queries, strict=True)
        )


def _filled(
    parameters: tuple[Value, ...], blanks: tuple[tuple[int, int], ...], values: tuple[Value, ...]
) -> tuple[Value, ...]:
    filled = list(parameters)
    for at, number in blanks:
        filled[at] = values[number]
    return tuple(filled)
