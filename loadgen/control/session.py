"""One connection to the control plane, owned by one thread from open to close.

Every call is one attempt that succeeds or raises: an error is never an empty answer. A session that was lost is
replaced with the next call. Who wants patience wraps calls with `retry`.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from loadgen.control.location import ControlPlaneLocation
from loadgen.control.sql import NamedQuery
from loadgen.errors import LoadgenError
from loadgen.log import printable
from loadgen.model.counts import ErrorCategory
from loadgen.snowflake import driver
from loadgen.snowflake.connect import close, connect
from loadgen.snowflake.driver import Connection, Cursor
from loadgen.snowflake.failure import DISK_FULL, Failure, classify, describe
from loadgen.snowflake.settings import CONTROL_STATEMENT_S, control_settings

_MISSING_OBJECT = (2003, 2043, 90105, 90106)  # a table; or the database, or the schema around it
_MISSING_PRIVILEGE = (3001, 3041)


class ControlFailed(LoadgenError):
    """A statement of the control plane failed; `failure` says how."""

    exit_code = 3
    remedy = "Check the control plane with `loadgen doctor`."

    def __init__(self, what: str, failure: Failure, *, remedy: str | None = None) -> None:
        super().__init__(what, remedy=remedy)
        self.failure = failure


class ControlSession:
    """Statements by name, rows as tuples. Not for two threads, and never for a main thread."""

    def __init__(
        self,
        place: ControlPlaneLocation,
        *,
        role: str,
        environ: Mapping[str, str] = os.environ,
        statement_limit_s: int = CONTROL_STATEMENT_S,
    ) -> None:
        self.place = place
        self._tag = json.dumps({"app": "loadgen", "control": role}, separators=(",", ":"))
        self._environ = environ
        self._statement_limit_s = statement_limit_s
        self._connection: Connection | None = None
        self._owner: int | None = None

    def fetch(self, query: NamedQuery, *binds: Any) -> list[tuple[Any, ...]]:
        """All rows of a SELECT."""
        bound = _bound(binds)
        rows: list[tuple[Any, ...]] = self._call(query, lambda cursor: cursor.execute(query.sql, bound).fetchall())
        return rows

    def execute(self, query: NamedQuery, *binds: Any) -> int:
        """The number of rows that an INSERT, UPDATE or DELETE touched."""
        bound = _bound(binds)
        return int(self._call(query, lambda cursor: cursor.execute(query.sql, bound).rowcount) or 0)

    def append(self, query: NamedQuery, rows: Sequence[Sequence[Any]]) -> int:
        """Insert many rows with one array-bound statement: all of them or none."""

        def insert(cursor: Cursor) -> int | None:
            cursor.executemany(query.sql, [_bound(row) for row in rows])
            return cursor.rowcount

        return int(self._call(query, insert) or 0)

    def close(self) -> None:
        """Log out. Safe to call twice; a later call opens a new session."""
        if self._connection is not None:
            close(self._connection)
            self._connection = None

    def _call(self, query: NamedQuery, action: Any) -> Any:
        self._check_thread()
        try:
            if self._connection is None:
                self._connection = self._open()
            cursor = self._connection.cursor()
            try:
                return action(cursor)
            finally:
                cursor.close()
        except LoadgenError:  # from opening: it says already what to do
            raise
        except Exception as error:  # the driver leaks exceptions of its libraries
            failure = classify(error)
            if failure.session_lost:
                self.close()
            raise _explained(query, error, failure, self.place) from error

    def _open(self) -> Connection:
        profile = self.place.profile(self._environ)
        settings = control_settings(
            profile, major=driver.major(), tag=self._tag, statement_limit_s=self._statement_limit_s
        )
        try:
            return connect(profile, settings, environ=self._environ)
        except LoadgenError as error:
            failure = classify(error.__cause__) if error.__cause__ is not None else _BAD_CONFIGURATION
            if not failure.retryable:
                raise
            raise ControlFailed(str(error), failure, remedy=error.remedy) from error

    def _check_thread(self) -> None:
        """A connection that two threads use would give one the other's answer."""
        me = threading.get_ident()
        if self._owner is None:
            self._owner = me
        assert self._owner == me, "a control session belongs to one thread"


OpenSession = Callable[[str], ControlSession]  # makes a session for a role, the name of which is in its QUERY_TAG

_BAD_CONFIGURATION = Failure(category=ErrorCategory.CONFIGURATION)


def _bound(values: Sequence[Any]) -> tuple[Any, ...]:
    """Binds as both majors take them: 4.x knows a text by its class, and refuses a StrEnum."""
    return tuple(value.value if isinstance(value, Enum) else value for value in values)


def _explained(query: NamedQuery, error: Exception, failure: Failure, place: ControlPlaneLocation) -> ControlFailed:
    where = printable(f"{place.database}.{place.schema}", 300)
    what = f"the control plane in {where} failed at {query.name}: {describe(error)}"
    if failure.sqlstate == DISK_FULL:
        return ControlFailed(what, failure, remedy="Free space on it, then try again.")
    if failure.code in _MISSING_OBJECT:
        return ControlFailed(what, failure, remedy="Make or update its tables with `loadgen setup`.")
    if failure.code in _MISSING_PRIVILEGE or failure.sqlstate == "42501":
        return ControlFailed(what, failure, remedy="`loadgen grants` prints what the role needs.")
    return ControlFailed(what, failure)
