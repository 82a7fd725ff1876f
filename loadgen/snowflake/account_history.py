"""A session that reads a history of the account: of queries, or of metering."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from loadgen.errors import LoadgenError
from loadgen.snowflake import driver
from loadgen.snowflake.connect import connect
from loadgen.snowflake.driver import Connection
from loadgen.snowflake.failure import classify, describe
from loadgen.snowflake.profile import ConnectionProfile
from loadgen.snowflake.session import NOT_RETRYABLE, SnowflakeSession, StatementFailed, login_failure
from loadgen.snowflake.settings import control_settings, control_tag


class AccountHistorySession(SnowflakeSession):
    """Subclasses set what they read, the class of their errors, their role in the QUERY_TAG, and a time limit."""

    what: str
    failed: type[StatementFailed]
    role: str
    statement_limit_s: int

    def __init__(self, profile: ConnectionProfile, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__(self._connect)
        self._profile, self._environ = profile, environ

    def now(self) -> datetime:
        """The time in naive UTC, by the clock of the server whose history it is."""
        moment = self.fetch("SELECT SYSDATE()")[0][0]
        if not isinstance(moment, datetime):
            raise self.failed("the server did not return its time", NOT_RETRYABLE)
        return moment

    def fetch(self, sql: str, *binds: Any) -> list[tuple[Any, ...]]:
        with self.reading():
            return self.rows(sql, binds)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Raise `failed` for errors of the driver."""
        try:
            yield
        except LoadgenError:  # the login failed: the error has a remedy already
            raise
        except Exception as error:  # the driver also raises exceptions of its libraries
            failure = classify(error)
            text = f"{self.what} could not be read with connection {self._profile.name}: {describe(error)}"
            remedy = "Set target.database, and try again." if failure.has_no_current_database else None
            raise self.failed(text, failure, remedy=remedy) from error

    def _connect(self) -> Connection:
        settings = control_settings(
            self._profile,
            major=driver.major(),
            tag=control_tag(self.role),
            statement_limit_s=self.statement_limit_s,
        )
        try:
            return connect(self._profile, settings, environ=self._environ)
        except LoadgenError as error:
            raise self.failed(str(error), login_failure(error), remedy=error.remedy) from error
