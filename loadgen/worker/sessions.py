"""Sessions that make load: how they are opened, tagged, described with, and cancelled."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from loadgen.errors import ConfigurationError, RunFailed
from loadgen.log import printable
from loadgen.model.counts import ErrorCategory
from loadgen.model.run import Phase
from loadgen.model.workload import Query, Statement, StatementKind, shape_of
from loadgen.scenario.model import Scenario
from loadgen.snowflake import driver
from loadgen.snowflake.connect import close, connect
from loadgen.snowflake.driver import Connection, Cursor
from loadgen.snowflake.failure import Failure, classify, describe
from loadgen.snowflake.profile_lookup import find_profile
from loadgen.snowflake.settings import control_settings, load_settings, query_tag
from loadgen.workload.draw import Row

LOGIN_PAUSE_MAX_S = 30.0  # between refused logins


class StatementRefused(ConfigurationError):
    """A statement of the mix cannot work: found before the first sample, not in ten thousand failed ones."""

    exit_code = 1
    remedy = "Correct the scenario, or prepare its tables: `loadgen prepare FILE`."


class LoadSessions:
    """Everything about the target that does not change during a run. Any thread."""

    def __init__(
        self, scenario: Scenario, *, run_id: str, worker_id: str, environ: Mapping[str, str] = os.environ
    ) -> None:
        target = scenario.target
        overrides = {"warehouse": target.warehouse, "database": target.database, "schema": target.schema}
        given = {name: value for name, value in overrides.items() if value is not None}
        connection = environ.get("LOADGEN_CONNECTION") or scenario.connection
        self._profile = find_profile(connection, environ=environ, overrides=given)
        self._target = target
        self._environ = environ
        self._run_id, self._worker_id = run_id, worker_id

    def open(self, tag: str) -> Connection:
        settings = load_settings(
            self._profile,
            major=driver.major(),
            statement_limit_s=self._target.statement_timeout_s,
            tag=tag,
            use_cached_result=self._target.use_cached_result,
            session={name: value for name, value in self._target.session.items() if value is not None},
        )
        return connect(self._profile, settings, environ=self._environ)

    def tag(self, phase: Phase | None, step_id: int | None) -> str:
        """QUERY_TAG of the statements of a window: how the server's history is joined to our counts."""
        name = None if phase is None else phase.value
        return query_tag(run=self._run_id, worker=self._worker_id, phase=name, step=step_id)

    def describe(self, statements: tuple[Statement, ...]) -> None:
        """Have the server compile every statement without executing it; StatementRefused names the first it cannot.

        What may work a moment later is raised as it came.
        """
        connection = self.open(self.tag(None, None))
        try:
            for statement in statements:
                for query in statement.queries:
                    _describe(connection, statement.name, query.sql, len(query.parameters))
        finally:
            close(connection)

    def cancel(self, session_ids: list[int]) -> None:
        """End what is still running in these sessions, on the server. One that fails does not keep the others from it;
        afterwards RunFailed tells."""
        failed: list[str] = []
        connection: Connection | None = None
        for session_id in session_ids:
            try:
                connection = connection or self._control()
                connection.cursor().execute("SELECT SYSTEM$CANCEL_ALL_QUERIES(?)", (session_id,))
            except Exception as error:  # the driver leaks exceptions of its libraries
                failed.append(describe(error))
                if connection is not None:  # it may be of no use any more
                    close(connection)
                    connection = None
        if connection is not None:
            close(connection)
        if failed:
            raise RunFailed(f"{len(failed)} of {len(session_ids)} sessions could not be cancelled: {failed[0]}")

    def _control(self) -> Connection:
        settings = control_settings(self._profile, major=driver.major(), tag=self.tag(None, None))
        return connect(self._profile, settings, environ=self._environ)


def login_pause_s(attempts: int, part: float) -> float:
    """How long to wait after consecutive refused logins: from 1 s to LOGIN_PAUSE_MAX_S, twice as long each time.
    `part`, from 0 to 1, is random, so that clients do not come back all at once."""
    longest_s = min(LOGIN_PAUSE_MAX_S, 2.0 ** min(attempts, 20))
    return longest_s * (1.0 + part) / 2.0


def _describe(connection: Connection, name: str, sql: str, parameters: int) -> None:
    cursor = connection.cursor()
    try:
        # Values are needed for the number of binds only; NULL fits every type.
        cursor.describe(sql, (None,) * parameters)
    except Exception as error:
        if classify(error).retryable:
            raise
        raise StatementRefused(f"statement {printable(name, 80)}: {describe(error)}") from error
    finally:
        cursor.close()


# --- Statements of the mix, made ready to execute: everything that can be decided once is decided here ---------------

FETCH_ROWS = 1_000  # at a time; they are counted and dropped, so a large result needs no memory

StatementExecutor = Callable[[Cursor, Row], int]  # executes, fetches everything, says how many rows there were


class CheckFailed(Exception):
    """A statement succeeded with another number of rows than the scenario expects."""


def compile_statement(statement: Statement) -> StatementExecutor:
    """A function that executes a statement, or all of a transaction, with drawn parameters."""
    run = _transaction(statement.queries) if statement.transaction else _single(statement.queries[0])
    return run if statement.expected_rows is None else _checked(run, statement.expected_rows)


def compile_recorded(kind: StatementKind) -> StatementExecutor:
    """A function that executes a recorded statement: its row is its text, and its bind values."""

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
            cursor.execute("BEGIN")  # inside, because it may have worked although its answer was lost
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
    """Let go of the row locks. When even that fails the session is not used again: see Client."""
    try:
        cursor.execute("ROLLBACK")
    except Exception as error:
        raise RollbackFailed(failed) from error


class RollbackFailed(Exception):
    """The transaction may still be open, and hold its locks, in the session. `failed` is why it was to be undone."""

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
    """The same cursor for statements, each of which brings this QUERY_TAG."""
    return cast("Cursor", TaggedCursor(cursor, tag))


class TaggedCursor:
    """What statements use of a cursor; each gets this QUERY_TAG by itself, and the connection keeps its own."""

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
    """What a statement failed with, and in words."""
    if isinstance(error, CheckFailed):
        return Failure(category=ErrorCategory.CHECK), str(error)
    cause = error.failed if isinstance(error, RollbackFailed) else error
    return classify(cause), describe(cause)
