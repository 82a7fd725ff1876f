"""Sessions that make load: how they are opened, tagged, described with, and cancelled."""

from __future__ import annotations

import os
from collections.abc import Mapping

from loadgen.errors import ConfigurationError, RunFailed
from loadgen.log import printable
from loadgen.model.run import Phase
from loadgen.model.workload import Statement
from loadgen.scenario.model import Scenario
from loadgen.snowflake import driver
from loadgen.snowflake.connect import close, connect
from loadgen.snowflake.driver import Connection
from loadgen.snowflake.failure import classify, describe
from loadgen.snowflake.profile_lookup import find_profile
from loadgen.snowflake.settings import control_settings, load_settings, query_tag

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
