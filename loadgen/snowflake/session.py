"""A session that is opened on demand and reopened after a lost connection, and the policy for retries.

A session belongs to one thread from its first statement to close(), and never to a main thread. Each statement is one
attempt, which succeeds or raises: an error is never returned as an empty result. The settings of the connection limit
the time of every call. Callers that need retries wrap calls in a RetryPolicy.

After a lost answer it is unknown whether the statement was executed. So `RetryPolicy.settle` takes a look-up: after an
unknown outcome the row is read, and the statement is sent again only when the row does not exist.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any, TypeVar

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    wait_exponential,
    wait_random_exponential,
)

from loadgen.clock import Clock, SystemClock
from loadgen.errors import LoadgenError
from loadgen.model.counts import ErrorCategory
from loadgen.snowflake.connect import close
from loadgen.snowflake.driver import Connection, Cursor
from loadgen.snowflake.failure import Failure, classify, describe
from loadgen.snowflake.ident import Identifier
from loadgen.values import dataclass

Result = TypeVar("Result")
OpenConnection = Callable[[], Connection]

ATTEMPTS = 10
FIRST_PAUSE_S = 1.0
PAUSE_MAX_S = 30.0

NOT_RETRYABLE = Failure(category=ErrorCategory.CONFIGURATION)


class StatementFailed(LoadgenError):
    """A statement or a login failed; `failure` classifies the error."""

    exit_code = 3
    remedy = "Check the role of the connection."

    def __init__(self, what: str, failure: Failure, *, remedy: str | None = None) -> None:
        super().__init__(what, remedy=remedy)
        self.failure = failure


class RetryInterrupted(LoadgenError):
    """The stop event was set during the pause before the next attempt."""

    exit_code = 4
    remedy = "The last error is in the log."


class SnowflakeSession:
    """At most one connection at a time. Other threads may read `session_id` only."""

    def __init__(self, open_connection: OpenConnection) -> None:
        self._open_connection = open_connection
        self._connection: Connection | None = None
        self._owner: int | None = None

    @property
    def session_id(self) -> int | None:
        connection = self._connection
        return None if connection is None else connection.session_id

    @contextmanager
    def cursor(self) -> Iterator[Cursor]:
        """A cursor for one statement. Raises the exceptions of the driver; LoadgenError when the login fails."""
        self._check_thread()
        try:
            cursor = self.open().cursor()
            try:
                yield cursor
            finally:
                cursor.close()
        except LoadgenError:  # the login failed: the error has a remedy already
            raise
        except Exception as error:  # the driver also raises exceptions of its libraries
            failure = classify(error)
            if self._is_lost(failure):
                self.close()
            raise

    def rows(self, sql: str, binds: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        with self.cursor() as cursor:
            found: list[tuple[Any, ...]] = cursor.execute(sql, tuple(binds) or None).fetchall()
            return found

    def named_rows(self, sql: str) -> list[dict[str, Any]]:
        """All rows, each as a mapping by column name in lower case: for SHOW and DESCRIBE."""
        with self.cursor() as cursor:
            cursor.execute(sql)
            names = [column[0].lower() for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def open(self) -> Connection:
        """The open connection; opens one if necessary."""
        if self._connection is None:
            self._connection = self._open_connection()
        return self._connection

    def close(self) -> None:
        """Log out. Safe to call twice; a later statement opens a new connection."""
        if self._connection is not None:
            close(self._connection)
            self._connection = None

    def _is_lost(self, failure: Failure) -> bool:
        """Whether this failure ends the connection, so that the next statement opens a new one."""
        return failure.session_lost

    def _check_thread(self) -> None:
        """Two threads that share a connection would receive each other's answers."""
        me = threading.get_ident()
        if self._owner is None:
            self._owner = me
        assert self._owner == me, "a session belongs to one thread"


def warehouse_row(show: Callable[[str], Sequence[dict[str, Any]]], warehouse: Identifier) -> dict[str, Any] | None:
    """The row of SHOW WAREHOUSES; `show` executes it. None: this role does not see the warehouse."""
    rows = show(f"SHOW WAREHOUSES{warehouse.like}")
    return next((row for row in rows if row.get("name") == warehouse.name), None)


def login_failure(error: LoadgenError) -> Failure:
    """The failure behind an error of connect(), which raises LoadgenError from the exception of the driver."""
    return NOT_RETRYABLE if error.__cause__ is None else classify(error.__cause__)


def is_retryable(error: BaseException) -> bool:
    return isinstance(error, StatementFailed) and error.failure.retryable


def is_retryable_soon(error: BaseException) -> bool:
    """Retryable, except after a timeout: for callers that handle a timeout in another way than by waiting again."""
    return isinstance(error, StatementFailed) and error.failure.retryable and not error.failure.is_timeout


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often to retry, and with which pauses. Pauses double; `stop` ends a pause early."""

    stop: threading.Event
    attempts: int = ATTEMPTS
    first_pause_s: float = FIRST_PAUSE_S
    pause_max_s: float = PAUSE_MAX_S
    jitter: bool = False  # random pauses up to the doubled ones, for several processes that write to one table
    clock: Clock = field(default_factory=SystemClock)
    retryable: Callable[[BaseException], bool] = is_retryable
    note: Callable[[BaseException], None] | None = None  # called with each failure before the pause

    def call(self, action: Callable[[], Result]) -> Result:
        """Repeat an idempotent action until it succeeds or the attempts are used up."""
        pauses = wait_random_exponential if self.jitter else wait_exponential
        retrying = Retrying(
            retry=retry_if_exception(self.retryable),
            stop=stop_after_attempt(self.attempts),
            wait=pauses(multiplier=self.first_pause_s, max=max(self.first_pause_s, self.pause_max_s)),
            sleep=lambda _: None,
            before_sleep=self._pause,
            reraise=True,
        )
        return retrying(action)

    def settle(self, write: Callable[[], Result], look_up: Callable[[], Result | None]) -> Result:
        """Execute a write that must take effect once. `look_up` returns the result of an earlier attempt, or None."""
        in_doubt = False

        def attempt() -> Result:
            nonlocal in_doubt
            if in_doubt and (found := look_up()) is not None:
                return found
            try:
                return write()
            except StatementFailed as error:
                if error.failure.is_duplicate_key and in_doubt and (found := look_up()) is not None:
                    return found
                in_doubt = in_doubt or error.failure.unknown_outcome
                raise

        return self.call(attempt)

    def _pause(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        if self.note is not None and error is not None:
            self.note(error)
        pause_s = state.next_action.sleep if state.next_action is not None else 0.0
        if self.clock.wait(self.stop, pause_s):
            last = describe(error) if error is not None else "unknown"
            raise RetryInterrupted(f"stopped during the pause before a retry; the last error: {last}") from error
