"""Sessions to the target: opened, tagged, cancelled; statements of the mix, ready to execute; the logical users whose
statements they execute."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from loadgen.clock import Clock
from loadgen.errors import ConfigurationError, RunFailed
from loadgen.log import printable
from loadgen.model.counts import ErrorCategory, UserSessionCounts
from loadgen.model.run import Phase, worker_share
from loadgen.model.workload import ClientPosition, Query, Statement, StatementKind, shape_of
from loadgen.scenario.model import Scenario
from loadgen.scenario.settings import SessionAffinity
from loadgen.snowflake import driver
from loadgen.snowflake.connect import close, connect
from loadgen.snowflake.driver import Connection, Cursor
from loadgen.snowflake.failure import Failure, classify, describe
from loadgen.snowflake.profile_lookup import find_profile
from loadgen.snowflake.settings import control_settings, load_settings, query_tag, session_tag
from loadgen.units import NS_PER_S
from loadgen.workload.draw import Row, StatementStream
from loadgen.workload.pools import Pool
from loadgen.workload.users import RememberedParameters, RememberedValues, UserSession, UserSessionTable

LOGIN_PAUSE_MAX_S = 30.0  # between refused logins
CANCEL_CONNECTIONS = 16  # the most that cancel statements at the same time
CANCEL_LIMIT_S = 2  # for cancelling the statements of one session


class StatementRefused(ConfigurationError):
    """The server cannot compile a statement of the mix. It is found before the load begins."""

    exit_code = 1


class LoadSessions:
    """Opens sessions to the target of a run. Any thread."""

    def __init__(
        self, scenario: Scenario, *, run_id: str, worker_id: str, environ: Mapping[str, str] = os.environ
    ) -> None:
        target = scenario.target
        overrides = {"warehouse": target.warehouse, "database": target.database, "schema": target.schema}
        given = {name: value for name, value in overrides.items() if value is not None}
        connection = environ.get("LOADGEN_CONNECTION") or scenario.connection
        self.profile = find_profile(connection, environ=environ, overrides=given)
        self._target = target
        self._environ = environ
        self._run_id, self._worker_id = run_id, worker_id

    def open(self, tag: str) -> Connection:
        settings = load_settings(
            self.profile,
            major=driver.major(),
            statement_limit_s=self._target.statement_timeout_s,
            tag=tag,
            use_cached_result=self._target.use_cached_result,
            session={name: value for name, value in self._target.session.items() if value is not None},
        )
        return connect(self.profile, settings, environ=self._environ)

    def tag(self, phase: Phase | None, step_id: int | None) -> str:
        """QUERY_TAG of the statements of a window, by which the query history is joined to the counts."""
        name = None if phase is None else phase.value
        return query_tag(run=self._run_id, worker=self._worker_id, phase=name, step=step_id)

    def describe(self, statements: tuple[Statement, ...]) -> None:
        """Let the server compile every statement without executing it. Raises StatementRefused for the first one that
        it cannot compile. Temporary errors are raised unchanged.
        """
        connection = self.open(self.tag(None, None))
        try:
            for statement in statements:
                for query in statement.queries:
                    _describe(connection, statement.name, query.sql, len(query.parameters))
        finally:
            close(connection)

    def cancel(self, session_ids: list[int]) -> None:
        """Cancel the statements of these sessions on the server, over several connections: a cancellation that hangs
        delays no others. If some fail, RunFailed is raised at the end."""
        left, failed = deque(session_ids), deque[str]()
        threads = [
            threading.Thread(target=self._cancel_next, args=(left, failed), name=f"cancel-{number}", daemon=True)
            for number in range(min(CANCEL_CONNECTIONS, len(session_ids)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise RunFailed(f"{len(failed)} of {len(session_ids)} sessions could not be cancelled: {failed[0]}")

    def _cancel_next(self, left: deque[int], failed: deque[str]) -> None:
        """Cancel sessions until none is left, one after the other."""
        connection: Connection | None = None
        while True:
            try:
                session_id = left.popleft()
            except IndexError:
                break
            try:
                connection = connection or self._control()
                connection.cursor().execute("SELECT SYSTEM$CANCEL_ALL_QUERIES(?)", (session_id,))
            except Exception as error:  # the driver leaks exceptions of its libraries
                failed.append(describe(error))
                if connection is not None:  # it may be broken
                    close(connection)
                    connection = None
        if connection is not None:
            close(connection)

    def _control(self) -> Connection:
        settings = control_settings(
            self.profile, major=driver.major(), tag=self.tag(None, None), statement_limit_s=CANCEL_LIMIT_S
        )
        return connect(self.profile, settings, environ=self._environ)


def login_pause_s(attempts: int, part: float) -> float:
    """The pause after consecutive refused logins: from 1 s to LOGIN_PAUSE_MAX_S, doubled each time. `part` is a random
    number from 0 to 1, so that clients do not all return at once."""
    longest_s = min(LOGIN_PAUSE_MAX_S, 2.0 ** min(attempts, 20))
    return longest_s * (1.0 + part) / 2.0


def _describe(connection: Connection, name: str, sql: str, parameters: int) -> None:
    cursor = connection.cursor()
    try:
        # Only the number of binds matters; NULL fits every type.
        cursor.describe(sql, (None,) * parameters)
    except Exception as error:
        if classify(error).retryable:
            raise
        shown = printable(name, 80)
        remedy = f"Check the SQL of statement {shown}."  # as loadgen.model.run.error_hint, which reads the message
        raise StatementRefused(f"statement {shown}: {describe(error)}", remedy=remedy) from error
    finally:
        cursor.close()


# --- Statements of the mix, ready to execute: decisions that do not depend on the draw are made once -----------------

FETCH_ROWS = 1_000  # per fetch; rows are counted and dropped, so a large result needs little memory

StatementExecutor = Callable[[Cursor, Row], int]  # executes a statement, fetches all rows, returns their number


class CheckFailed(Exception):
    """A statement returned another number of rows than the scenario expects."""


def compile_statement(statement: Statement) -> StatementExecutor:
    """A function that executes a statement, or all statements of a transaction, with drawn parameters."""
    run = _transaction(statement.queries) if statement.transaction else _single(statement.queries[0])
    return run if statement.expected_rows is None else _checked(run, statement.expected_rows)


def compile_recorded(kind: StatementKind) -> StatementExecutor:
    """A function that executes a recorded statement, whose row is its text and its bind values."""

    def run(cursor: Any, row: Row) -> int:
        (sql,), binds = row
        cursor.execute(sql, binds)
        return _fetch_all(cursor) if kind is StatementKind.READ else _touched(cursor)

    return run


def _single(query: Query) -> StatementExecutor:
    sql = query.sql

    def read(cursor: Any, row: Row) -> int:
        cursor.execute(sql, row[0])
        rows = len(cursor.fetchmany(FETCH_ROWS))
        return rows if rows < FETCH_ROWS else rows + _fetch_all(cursor)

    def write(cursor: Any, row: Row) -> int:
        cursor.execute(sql, row[0])
        return _touched(cursor)

    return read if shape_of(sql).reads else write


def _transaction(queries: Sequence[Query]) -> StatementExecutor:
    steps = [(query.sql, _counter(query)) for query in queries]

    def run(cursor: Cursor, row: Row) -> int:
        try:
            cursor.execute("BEGIN")  # inside `try`: it may have succeeded although its answer was lost
            rows = 0
            for (sql, count), parameters in zip(steps, row, strict=True):
                cursor.execute(sql, parameters)
                rows += count(cursor)
            cursor.execute("COMMIT")
        except Exception as error:
            _roll_back(cursor, error)
            raise
        return rows

    return run


def _roll_back(cursor: Cursor, failed: Exception) -> None:
    """Roll back, to release the row locks. If that fails, the session is not used any more: see Client."""
    try:
        cursor.execute("ROLLBACK")
    except Exception as error:
        raise RollbackFailed(failed) from error


class RollbackFailed(Exception):
    """The rollback of a transaction failed, so the session may still hold its locks. `failed`: the original error."""

    def __init__(self, failed: Exception) -> None:
        super().__init__(str(failed))
        self.failed = failed


def _checked(run: StatementExecutor, expected: int) -> StatementExecutor:
    def check(cursor: Cursor, row: Row) -> int:
        rows = run(cursor, row)
        if rows != expected:
            raise CheckFailed(f"{rows} rows, and the scenario expects {expected}")
        return rows

    return check


def _counter(query: Query) -> Callable[[Any], int]:
    return _fetch_all if shape_of(query.sql).reads else _touched


def _fetch_all(cursor: Any) -> int:
    rows = 0
    while batch := cursor.fetchmany(FETCH_ROWS):
        rows += len(batch)
        if len(batch) < FETCH_ROWS:
            break
    return rows


def _touched(cursor: Any) -> int:
    return int(cursor.rowcount or 0)


def with_tag(cursor: Cursor, tag: str) -> Cursor:
    """The cursor for statements that carry this QUERY_TAG."""
    return cast("Cursor", TaggedCursor(cursor, tag))


class TaggedCursor:
    """The part of a cursor that statements use. Each statement carries this QUERY_TAG; the tag of the connection does
    not change."""

    __slots__ = ("_cursor", "_parameters")

    def __init__(self, cursor: Any, tag: str) -> None:
        self._cursor: Cursor = cursor._cursor if isinstance(cursor, TaggedCursor) else cursor
        self._parameters = {"QUERY_TAG": tag}

    def execute(self, command: str, parameters: Sequence[Any] | None = None, /) -> None:
        self._cursor.execute(command, parameters, _statement_params=self._parameters)

    def fetchmany(self, size: int, /) -> list[Any]:
        return self._cursor.fetchmany(size)

    @property
    def rowcount(self) -> int | None:
        return self._cursor.rowcount

    @property
    def sfqid(self) -> str | None:
        return self._cursor.sfqid


def judged(error: Exception) -> tuple[Failure, str]:
    """The classified failure of a statement, and its text."""
    if isinstance(error, CheckFailed):
        return Failure(category=ErrorCategory.CHECK), str(error)
    cause = error.failed if isinstance(error, RollbackFailed) else error
    return classify(cause), describe(cause)


# --- Logical users ---------------------------------------------------------------------------------------------------
#
# The logical users of a worker, as whom statements with `session: true` are executed.
#
# A user belongs to one slot, and so to one connection at a time. The users of the run are distributed in turn over the
# workers, and the users of a worker over its slots. When the connection of a slot is lost, its user sessions:
#
#     strict   expire; over the next connection the users begin new sessions, which remember other values
#     hint     continue over the next connection of the slot, unless their time to live ends before
#
# The end of the load ends no user session: the results count live ones as `current`.
#
#     SlotUsers      the users of one slot, in the place of its StatementStream. Belongs to the slot's client.
#     LogicalUsers   the users of all slots. The ramp controller calls sweep(); the main thread reads counts.

SWEEP_S = 60.0


class LogicalUsers:
    """All logical users of a worker. seat() is called by the thread that makes slots."""

    def __init__(
        self, scenario: Scenario, worker: int, workers: int, clients: int, pools: Mapping[str, Pool], clock: Clock
    ) -> None:
        """`clients`: the maximum number of slots of this worker."""
        self._scenario, self._worker, self._workers = scenario, worker, workers
        self._clients, self._pools, self._clock = clients, pools, clock
        self._users = worker_share(scenario.sessions.count, worker, workers)
        statements = scenario.workload.statements
        self._blanks = tuple(RememberedParameters(one, statements) if one.session else None for one in statements)
        self._seats: list[SlotUsers] = []
        self._swept_ns = clock.monotonic_ns()
        self._closed = False

    def seat(self, client: int, drawer: StatementStream) -> SlotUsers:
        """The users of a slot, which draw from its stream of statements."""
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
        """Expire user sessions, at most once a minute."""
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._swept_ns >= SWEEP_S * NS_PER_S and not self._closed:
            self._swept_ns = now_ns
            for seat in self._seats:
                seat.book.sweep(now_ns)

    def close(self) -> None:
        """End the load: expire sessions whose time is over, and no other session after that. Safe to call twice."""
        now_ns = self._clock.monotonic_ns()
        for seat in tuple(self._seats):
            seat.strict = False
            if not self._closed:  # the last sweep may have been a minute ago
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
    """Draws statements as the slot's stream does, and assigns each to a user session."""

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
        """One statement only: the user session of a later one is not known yet."""
        return [self.draw(k)]

    def draw(self, k: int) -> tuple[int, Row]:
        number, row = self._drawer.draw(k)
        blanks = self._blanks[number]
        if blanks is None:
            return number, row
        drawn: Any = self._drawn(self._memory.user(k), row, blanks)  # for in_session(); others only carry it there
        return number, drawn

    @property
    def follows(self) -> bool:
        return self._drawer.follows

    def current(self, number: int, row: Any) -> Any:
        """As StatementStream.current()."""
        if not isinstance(row, UserStatement):
            return self._drawer.current(number, row)
        bare = self._drawer.current(number, row.bare)
        return row._replace(row=row.blanks.filled(bare, row.session.values), bare=bare)

    def succeeded(self, number: int, row: Any) -> None:
        self._drawer.succeeded(number, row.row if isinstance(row, UserStatement) else row)

    def disconnected(self) -> None:
        if self.strict:
            self.book.lose()

    def execute(self, run: StatementExecutor, cursor: Cursor, drawn: UserStatement) -> int:
        """Execute a statement in its user session or, if that has expired since the draw, in the user's next one."""
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
    """A function that executes a statement in a user session."""

    def execute(cursor: Cursor, drawn: Any) -> int:
        seat: SlotUsers = drawn.seat
        return seat.execute(run, cursor, drawn)

    return execute
