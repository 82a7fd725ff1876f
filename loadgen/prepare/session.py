"""A connection that is opened again when it is lost, and what is tried again on it.

Owner: the thread that prepares. Only `session_id` may be read by others: who wants to end a statement under way asks
the server, in a session of his own, to cancel what runs in that one.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential
from tenacity.stop import stop_when_event_set

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
from loadgen.snowflake.settings import control_settings, query_tag

ATTEMPTS = 10
WAIT_FIRST_S = 0.25
WAIT_MAX_S = 15.0
BATCH_ROWS = 10_000

_NO_WAREHOUSE = 606
_PRIVILEGES = range(3_000, 3_100)

log = logging.getLogger(__name__)
OpenConnection = Callable[[], Connection]
Result = TypeVar("Result")


class PrepareSession:
    """One session at a time. `stop` ends every wait."""

    def __init__(self, open_connection: OpenConnection, *, stop: threading.Event, clock: Clock) -> None:
        self._open = open_connection
        self._connection: Connection | None = open_connection()
        self._lost: list[int] = []  # sessions in which a statement may still run
        self._stop = stop
        self._clock = clock

    @property
    def session_id(self) -> int | None:
        connection = self._connection
        return None if connection is None else connection.session_id

    def read(self, sql: str, binds: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query; tried again when that may help."""
        return self.retried(lambda: self._cursor().execute(sql, tuple(binds) or None).fetchall(), sql)

    def rows(self, sql: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a query one by one, fetched in batches. Raises what the driver raises."""
        cursor = self._cursor().execute(sql)
        while batch := cursor.fetchmany(BATCH_ROWS):
            yield from batch
        cursor.close()

    def change(self, sql: str) -> None:
        """A statement that may be executed twice: CREATE … IF NOT EXISTS, DROP … IF EXISTS."""
        self.retried(lambda: self._cursor().execute(sql), sql)

    def execute_once(self, sql: str) -> None:
        """Raises what the driver raises."""
        self._noting_loss(lambda: self._cursor().execute(sql))

    def insert_once(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """One array-bound INSERT. Raises what the driver raises."""
        self._noting_loss(lambda: self._cursor().executemany(sql, rows))

    def retried(
        self, action: Callable[[], Result], what: str, *, also: Callable[[Failure], bool] = lambda _: False
    ) -> Result:
        """Do it, again after each failure that may pass, until it works, the attempts are used up or `stop` is set.

        Raises LoadgenError. The waits are the clock's, so `stop` ends them.
        """

        def may_pass(error: BaseException) -> bool:
            if isinstance(error, LoadgenError):
                return isinstance(error, ConnectFailed)  # while connecting again
            failure = classify(error)
            return failure.retryable or also(failure)

        retrying = Retrying(
            retry=retry_if_exception(may_pass),
            wait=wait_random_exponential(multiplier=WAIT_FIRST_S, max=WAIT_MAX_S),
            stop=stop_after_attempt(ATTEMPTS) | stop_when_event_set(self._stop),
            sleep=self._wait,
            before_sleep=_log_retry,
            reraise=True,
        )
        try:
            result: Result = retrying(self._noting_loss, action)
            return result
        except LoadgenError:
            raise
        except Exception as error:  # of the driver, or of the libraries it leaks exceptions of
            raise refused(error, what) from error

    def cancel_lost(self) -> None:
        """End what may still run in sessions whose answer was lost, so that it changes nothing behind our back."""
        while self._lost:
            try:
                cancel_session(self._cursor(), self._lost[0])
            except Exception as error:
                if isinstance(error, LoadgenError) or classify(error).retryable:
                    raise
                event(log, logging.INFO, "cancel_refused", error=describe(error))  # a session that is gone runs nothing
            del self._lost[0]

    def close(self) -> None:
        if self._connection is not None:
            close(self._connection)
            self._connection = None

    def _wait(self, seconds: float) -> None:
        self._clock.wait(self._stop, seconds)

    def _cursor(self) -> Cursor:
        if self._connection is None:
            self._connection = self._open()
        return self._connection.cursor()

    def _noting_loss(self, action: Callable[[], Result]) -> Result:
        try:
            return action()
        except Exception as error:
            failure = classify(error)
            lost = None if self._connection is None else self._connection.session_id
            if failure.unknown_outcome and lost is not None and lost not in self._lost:
                self._lost.append(lost)
            if failure.session_lost or failure.unknown_outcome:
                self.close()
            raise


def cancel_running(session: PrepareSession, open_connection: OpenConnection) -> None:
    """Cancel what runs in another thread's session, from a session of one's own; a failure is only logged."""
    number = session.session_id
    if number is None:
        return
    try:
        connection = open_connection()
        try:
            cancel_session(connection.cursor(), number)
        finally:
            close(connection)
    except Exception as error:  # the top of a thread; whoever waits has a limit of his own
        event(log, logging.WARNING, "cancel_failed", error=describe(error))


def cancel_session(cursor: Cursor, session_id: int) -> None:
    """Cancel every statement of a session."""
    cursor.execute(f"SELECT SYSTEM$CANCEL_ALL_QUERIES({int(session_id)})")


def refused(error: BaseException, what: str) -> LoadgenError:
    """The error to raise instead of the driver's; `what` is the statement, or says which one it was."""
    failure = classify(error)
    text = f"{describe(error)}\nin: {_shortened(what)}"
    if failure.sqlstate == "42501" or failure.code in _PRIVILEGES:
        remedy = "Ask for the missing grant. A hybrid table needs CREATE HYBRID TABLE on the schema, not CREATE TABLE."
        return PrivilegeMissing(text, remedy=remedy)
    if failure.code == _NO_WAREHOUSE:
        return ConfigurationError(text, remedy="Name a warehouse that the role may use: target.warehouse.")
    if failure.category is ErrorCategory.CONFIGURATION:
        remedy = "Correct prepare in the scenario. Objects it needs must exist, and be granted to the role."
        return ScenarioInvalid(text, remedy=remedy)
    return RunFailed(text, remedy="Run the same command again: it goes on where it ended.")


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 300 else f"{line[:299]}…"


def _log_retry(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome is not None else None
    if error is not None:
        event(log, logging.INFO, "statement_retried", attempt=state.attempt_number, error=describe(error))


# Chunks take a second or two; what a user writes under prepare.statements may copy a large table.
STATEMENT_LIMIT_S = 3_600
VERSION_MAX = 100  # characters


def target_profile(
    scenario: Scenario, name: str | None, *, environ: Mapping[str, str] = os.environ
) -> ConnectionProfile:
    """The connection of that name, or else the scenario's, into its target."""
    target = scenario.target
    overrides = {"warehouse": target.warehouse, "database": target.database, "schema": target.schema}
    return find_profile(name or scenario.connection, environ=environ, overrides=overrides)


def opener(
    profile: ConnectionProfile, scenario: Scenario, *, environ: Mapping[str, str] = os.environ
) -> OpenConnection:
    """Opens sessions for preparing. Control settings: the driver itself tries again, under the same request id."""
    tag = query_tag(run="prepare", worker=scenario.name)

    def open_connection() -> Connection:
        settings = control_settings(profile, major=driver.major(), tag=tag, statement_limit_s=STATEMENT_LIMIT_S)
        return connect(profile, settings, environ=environ)

    return open_connection


def server_version(session: PrepareSession) -> str | None:
    """Snowflake's release at the target. None: it does not say, which is no reason to measure nothing."""
    try:
        ((version,),) = session.read("SELECT CURRENT_VERSION()")
    except LoadgenError as error:
        event(log, logging.WARNING, "server_version_unknown", why=str(error))
        return None
    return printable(str(version), VERSION_MAX)
