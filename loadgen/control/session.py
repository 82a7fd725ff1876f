"""Statements by name on one session of the control plane."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

from loadgen.control.location import ControlPlaneLocation
from loadgen.control.rows import rows_json
from loadgen.control.sql import NamedQuery
from loadgen.errors import LoadgenError
from loadgen.log import printable
from loadgen.snowflake import driver
from loadgen.snowflake.connect import connect
from loadgen.snowflake.driver import Connection, Cursor
from loadgen.snowflake.failure import Failure, classify, describe
from loadgen.snowflake.session import SnowflakeSession, StatementFailed, login_failure
from loadgen.snowflake.settings import CONTROL_STATEMENT_S, control_settings, control_tag

# Roles whose statements read or delete much. They write nothing under a lease, whose takeover margin rests on the limit
# of all other roles.
LONG_STATEMENTS_S = {"enrich": 300, "prune": 300}


class ControlFailed(StatementFailed):
    """A statement of the control plane failed."""

    remedy = "Check the control plane with `loadgen doctor`."


class ControlSession(SnowflakeSession):
    """Each call is one attempt; see `loadgen.snowflake.session`."""

    def __init__(
        self,
        place: ControlPlaneLocation,
        *,
        role: str,
        environ: Mapping[str, str] = os.environ,
        statement_limit_s: int | None = None,
    ) -> None:
        """`statement_limit_s`: None: that of the role."""
        super().__init__(self._connect)
        self.place = place
        self._tag = control_tag(role)
        self._environ = environ
        self._statement_limit_s = statement_limit_s or LONG_STATEMENTS_S.get(role, CONTROL_STATEMENT_S)

    def fetch(self, query: NamedQuery, *binds: Any) -> list[tuple[Any, ...]]:
        """All rows of a SELECT."""
        with self.named_cursor(query.name) as cursor:
            rows: list[tuple[Any, ...]] = cursor.execute(query.sql, _bound(binds)).fetchall()
            return rows

    def execute(self, query: NamedQuery, *binds: Any) -> int:
        """The number of rows that an INSERT, UPDATE or DELETE touched."""
        with self.named_cursor(query.name) as cursor:
            return int(cursor.execute(query.sql, _bound(binds)).rowcount or 0)

    def append(self, query: NamedQuery, rows: Sequence[Sequence[Any]]) -> int:
        """Insert many rows with one statement, which takes them as JSON in one bind: all of them or none."""
        return self.execute(query, rows_json(rows))

    @contextmanager
    def named_cursor(self, name: str) -> Iterator[Cursor]:
        """A cursor for one statement; its failures are ControlFailed and name the statement."""
        self._check_thread()  # a bug of the caller, not a failed statement
        try:
            with self.cursor() as cursor:
                yield cursor
        except LoadgenError:
            raise
        except Exception as error:  # the driver leaks exceptions of its libraries
            raise _explained(name, error, classify(error), self.place) from error

    def _connect(self) -> Connection:
        profile = self.place.profile(self._environ)
        settings = control_settings(
            profile, major=driver.major(), tag=self._tag, statement_limit_s=self._statement_limit_s
        )
        try:
            return connect(profile, settings, environ=self._environ)
        except LoadgenError as error:
            failure = login_failure(error)
            if not failure.retryable:
                raise
            raise ControlFailed(str(error), failure, remedy=error.remedy) from error


OpenSession = Callable[[str], ControlSession]  # makes a session for a role, the name of which is in its QUERY_TAG


def _bound(values: Sequence[Any]) -> tuple[Any, ...]:
    """Binds as both majors take them: 4.x knows a text by its class, and refuses a StrEnum."""
    return tuple(value.value if isinstance(value, Enum) else value for value in values)


def _explained(name: str, error: Exception, failure: Failure, place: ControlPlaneLocation) -> ControlFailed:
    where = printable(f"{place.database}.{place.schema}", 300)
    what = f"the control plane in {where} failed at {name}: {describe(error)}"
    if failure.is_disk_full:
        return ControlFailed(what, failure, remedy="Free space on it, then try again.")
    if failure.is_missing_object:
        return ControlFailed(what, failure, remedy="Create or update its tables with `loadgen setup`.")
    if failure.is_missing_privilege:
        return ControlFailed(what, failure, remedy="`loadgen grants` prints what the role needs.")
    return ControlFailed(what, failure)
