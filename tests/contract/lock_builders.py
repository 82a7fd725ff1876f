"""Many sessions, threads to use them in, and tables for single tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from snowflake.connector.errors import Error

from tests.contract.sql import Sql
from tests.embedded_server import EmbeddedServer
from tests.processes import PATIENCE_S, wait_until

PRIMARY_KEY, LOCKED, TIMED_OUT, CANCELED = 200001, 625, 630, 604
# A statement that ought not to wait is given this long before it fails, instead of hanging the test.
IMPATIENT = {"STATEMENT_TIMEOUT_IN_SECONDS": 60}
_numbers = itertools.count(1)


class Sessions:
    """Connections of the whole file: opening one costs more than most tests. One with settings is new."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server
        self._free: list[Sql] = []
        self._alike: list[Sql] = []  # without settings
        self.used: list[Sql] = []

    def take(self, warehouse: str | None, parameters: dict[str, Any]) -> Sql:
        plain = warehouse is None and not parameters
        if plain and self._free:
            sql = self._free.pop()
        else:
            sql = Sql(
                self._server.connect(
                    database="LOCKS",
                    schema="PUBLIC",
                    warehouse=warehouse or "COMPUTE_WH",
                    session_parameters=IMPATIENT | parameters,
                )
            )
            self._alike += [sql] if plain else []
        self.used.append(sql)
        return sql

    def give_back(self, *, reusable: bool) -> None:
        used, self.used = self.used, []
        for sql in used:
            if reusable and sql in self._alike and not sql.connection.is_closed():
                sql("ROLLBACK")
                self._free.append(sql)
            else:
                sql.connection.close()

    def close(self) -> None:
        self.give_back(reusable=False)
        for sql in self._free:
            sql.connection.close()


class ConcurrentSessions:
    """Sessions, threads to use them in, and a check of who waits for a lock."""

    def __init__(self, sessions: Sessions, threads: ThreadPoolExecutor) -> None:
        self._sessions = sessions
        self._threads = threads
        self._works: list[Future[Any]] = []

    def session(self, *, warehouse: str | None = None, **parameters: Any) -> Sql:
        return self._sessions.take(warehouse, parameters)

    def sessions(self, count: int, *, warehouse: str | None = None, **parameters: Any) -> list[Sql]:
        return [self.session(warehouse=warehouse, **parameters) for _ in range(count)]

    def start(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future = self._threads.submit(work, *arguments)
        self._works.append(future)
        return future

    def all(self, work: Callable[[Sql], Any], sessions: list[Sql]) -> list[Any]:
        """The results of the same work in all the sessions at once."""
        return [future.result(PATIENCE_S) for future in [self.start(work, sql) for sql in sessions]]

    def wait_blocked(self, text: str, waiting: Future[Any] | list[Future[Any]]) -> None:
        """Returns when as many statements that begin with this text wait for a lock as there are works that do."""
        works = waiting if isinstance(waiting, list) else [waiting]
        watcher = self.session()

        def blocked() -> bool:
            for work in works:
                assert not work.done(), f"did not wait: {outcome(work)}"
            return bool(watcher.value(BLOCKED, text) == len(works))

        wait_until(blocked, f"{len(works)} × {text!r} blocked")

    def settled(self) -> bool:
        return all(work.done() for work in self._works)


BLOCKED = (
    "SELECT COUNT(*) FROM TABLE(INFORMATION_SCHEMA.QUERY_HISTORY(RESULT_LIMIT => 1000))"
    " WHERE EXECUTION_STATUS = 'blocked' AND DATABASE_NAME = 'LOCKS' AND STARTSWITH(QUERY_TEXT, ?)"
)


def outcome(work: Future[Any]) -> Any:
    """What the work returned, or the number of the error it met."""
    try:
        return work.result(PATIENCE_S)
    except Error as error:
        return error.errno


def make_table(concurrent: ConcurrentSessions, kind: str) -> str:
    """A table of the test's own with the rows 1, 2, 3."""
    sql, name = concurrent.session(), f"{kind[0]}_{next(_numbers)}"
    sql(f"CREATE {kind} {name} (ID NUMBER PRIMARY KEY, N NUMBER)")
    sql(f"INSERT INTO {name} VALUES (1, 0), (2, 0), (3, 0)")
    return name


def add(table: str, row: int) -> str:
    return f"UPDATE {table} SET N = N + 1 WHERE ID = {row}"
