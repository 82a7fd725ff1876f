"""Statements of the mix, made ready to execute: everything that can be decided once is decided here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from loadgen.model.sql_text import shape_of
from loadgen.model.workload import Query, Statement, StatementKind
from loadgen.snowflake.driver import Cursor
from loadgen.workload.draw import Row

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
