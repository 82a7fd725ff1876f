"""The session for preparing tables, and its retries.

The session belongs to the thread that prepares. To end a running statement, another thread cancels it on the server, by
`session_id`, in a second session.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from loadgen.clock import Clock
from loadgen.errors import (
    ConfigurationError,
    ConnectFailed,
    LoadgenError,
    PrivilegeMissing,
    RunFailed,
    ScenarioInvalid,
)
from loadgen.log import event, printable
from loadgen.model.counts import ErrorCategory
from loadgen.scenario.model import Scenario
from loadgen.snowflake import driver
from loadgen.snowflake.connect import close, connect
from loadgen.snowflake.driver import Connection, Cursor
from loadgen.snowflake.failure import Failure, classify, describe
from loadgen.snowflake.profile import ConnectionProfile
from loadgen.snowflake.profile_lookup import find_profile
from loadgen.snowflake.session import OpenConnection, RetryPolicy, SnowflakeSession
from loadgen.snowflake.settings import control_settings, query_tag

WAIT_FIRST_S = 0.25
WAIT_MAX_S = 15.0
BATCH_ROWS = 10_000

log = logging.getLogger(__name__)
Result = TypeVar("Result")


class PreparationStopped(LoadgenError):
    """`stop` was set before the preparation was complete."""

    exit_code = 130
    remedy = "Run the same command to continue."


class PrepareSession(SnowflakeSession):
    """Opened immediately, so that a failed login is reported first. `stop` ends every wait, and no statement is sent
    after it."""

    def __init__(self, open_connection: OpenConnection, *, stop: threading.Event, clock: Clock) -> None:
        super().__init__(open_connection)
        self._stop = stop
        self._lost: list[int] = []  # sessions in which a statement may still run
        self._retry = RetryPolicy(
            stop=stop, clock=clock, first_pause_s=WAIT_FIRST_S, pause_max_s=WAIT_MAX_S, jitter=True, note=_log_retry
        )
        self.open()

    def read(self, sql: str, binds: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query, retried."""
        return self.retried(lambda: self.rows(sql, binds), sql)

    def batches(self, sql: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a query, fetched in batches. Raises the exceptions of the driver."""
        with self.cursor() as cursor:
            cursor.execute(sql)
            while batch := cursor.fetchmany(BATCH_ROWS):
                yield from batch

    def change(self, sql: str) -> None:
        """Execute an idempotent statement, with retries: CREATE … IF NOT EXISTS, DROP … IF EXISTS."""
        self.retried(lambda: self.execute_once(sql), sql)

    def execute_once(self, sql: str) -> None:
        """Execute a statement without retries. Raises the exceptions of the driver."""
        with self.cursor() as cursor:
            cursor.execute(sql)

    def insert_once(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """One array-bound INSERT, without retries. Raises the exceptions of the driver."""
        with self.cursor() as cursor:
            cursor.executemany(sql, rows)

    def retried(
        self, action: Callable[[], Result], what: str, *, also: Callable[[Failure], bool] = lambda _: False
    ) -> Result:
        """Repeat an action until it succeeds, fails permanently, the attempts are used up, or `stop` is set.

        Raises LoadgenError.
        """

        def may_pass(error: BaseException) -> bool:
            if isinstance(error, LoadgenError):
                return isinstance(error, ConnectFailed)  # during a reconnect
            failure = classify(error)
            return failure.retryable or also(failure)

        if self._stop.is_set():
            raise PreparationStopped("stopped before the preparation was complete")
        try:
            return replace(self._retry, retryable=may_pass).call(action)
        except LoadgenError:
            raise
        except Exception as error:  # of the driver, or of its libraries
            raise refused(error, what) from error

    def cancel_lost(self) -> None:
        """Cancel statements that may still run in sessions whose answer was lost, before they change something
        later."""
        while self._lost:
            try:
                with self.cursor() as cursor:
                    cancel_session(cursor, self._lost[0])
            except Exception as error:
                if isinstance(error, LoadgenError) or classify(error).retryable:
                    raise
                event(log, logging.INFO, "cancel_refused", error=describe(error))
            del self._lost[0]

    def _is_lost(self, failure: Failure) -> bool:
        lost = self.session_id
        if failure.unknown_outcome and lost is not None and lost not in self._lost:
            self._lost.append(lost)
        return failure.session_lost or failure.unknown_outcome


def cancel_running(session: PrepareSession, open_connection: OpenConnection) -> None:
    """Cancel the statement in the session of another thread, by a second session. A failure is only logged."""
    number = session.session_id
    if number is None:
        return
    try:
        connection = open_connection()
        try:
            cancel_session(connection.cursor(), number)
        finally:
            close(connection)
    except Exception as error:  # nothing above catches it; the waiting thread has a separate time limit
        event(log, logging.WARNING, "cancel_failed", error=describe(error))


def cancel_session(cursor: Cursor, session_id: int) -> None:
    """Cancel every statement of a session."""
    cursor.execute(f"SELECT SYSTEM$CANCEL_ALL_QUERIES({int(session_id)})")


def refused(error: BaseException, what: str) -> LoadgenError:
    """The error to raise instead of the exception of the driver. `what` is the statement or its name."""
    failure = classify(error)
    text = f"{describe(error)}\nin: {_shortened(what)}"
    if failure.is_missing_privilege:
        remedy = "Ask for the missing grant. Hybrid tables need CREATE HYBRID TABLE on the schema, not CREATE TABLE."
        return PrivilegeMissing(text, remedy=remedy)
    if failure.has_no_warehouse:
        return ConfigurationError(text, remedy="Set target.warehouse to a warehouse that the role may use.")
    if failure.category is ErrorCategory.CONFIGURATION:
        remedy = "Correct `prepare` in the scenario. Its objects must exist, and be granted to the role."
        return ScenarioInvalid(text, remedy=remedy)
    return RunFailed(text, remedy="Repeat the same command: it continues where it ended.")


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 300 else f"{line[:299]}…"


def _log_retry(error: BaseException) -> None:
    event(log, logging.INFO, "statement_retried", error=describe(error))


# Chunks take a second or two, but a statement under prepare.statements may copy a large table.
STATEMENT_LIMIT_S = 3_600
VERSION_MAX = 100  # characters


def target_profile(
    scenario: Scenario, name: str | None, *, environ: Mapping[str, str] = os.environ
) -> ConnectionProfile:
    """The profile of this connection, or that of the scenario, with the target of the scenario."""
    target = scenario.target
    overrides = {"warehouse": target.warehouse, "database": target.database, "schema": target.schema}
    return find_profile(name or scenario.connection, environ=environ, overrides=overrides)


def opener(
    profile: ConnectionProfile, scenario: Scenario, *, environ: Mapping[str, str] = os.environ
) -> OpenConnection:
    """Opens connections for preparing, with a long statement limit. PrepareSession retries."""
    tag = query_tag(run="prepare", worker=scenario.name)

    def open_connection() -> Connection:
        settings = control_settings(profile, major=driver.major(), tag=tag, statement_limit_s=STATEMENT_LIMIT_S)
        return connect(profile, settings, environ=environ)

    return open_connection


def server_version(session: PrepareSession) -> str | None:
    """The release of Snowflake at the target. None: it cannot be read, which does not prevent a run."""
    try:
        ((version,),) = session.read("SELECT CURRENT_VERSION()")
    except LoadgenError as error:
        event(log, logging.WARNING, "server_version_unknown", why=str(error))
        return None
    return printable(str(version), VERSION_MAX)
