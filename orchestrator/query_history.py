"""Reading Snowflake's query history with a session of its own, at the account under test. Owner: whoever enriches."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlFailed
from loadgen.control.tables.query_executions import ServerTimes
from loadgen.errors import LoadgenError
from loadgen.model.outcome import ErrorCategory
from loadgen.scenario.model import Scenario
from loadgen.snowflake import driver
from loadgen.snowflake.connect import close, connect
from loadgen.snowflake.driver import Connection
from loadgen.snowflake.failure import Failure, classify, describe
from loadgen.snowflake.profile import ConnectionProfile
from loadgen.snowflake.profile_lookup import find_profile
from loadgen.snowflake.settings import APPLICATION, control_settings
from orchestrator.enrichment_rules import HISTORY_LATENCY_S, ROWS_MAX, HistoryPage, HistorySlice

STATEMENT_S = 60  # of one slice
NOT_RETRYABLE = Failure(category=ErrorCategory.CONFIGURATION)  # trying again does not help
_NO_DATABASE = (90105, 90106)

_NOW = "SELECT SYSDATE()"
# The limit counts before any condition, so how many rows there were must be known to know whether some were kept back.
# The one with number 1 is there to say so when none is ours. Times cannot be bound.
_READ = """
SELECT QUERY_ID, TOTAL_ELAPSED_TIME, COMPILATION_TIME, EXECUTION_TIME, QUEUED_OVERLOAD_TIME, QUEUED_PROVISIONING_TIME,
       TRANSACTION_BLOCKED_TIME, BYTES_SCANNED, CLUSTER_NUMBER, COUNT(*) OVER () AS SEEN
FROM TABLE(INFORMATION_SCHEMA.QUERY_HISTORY(
    END_TIME_RANGE_START => TO_TIMESTAMP_LTZ('{start}'), END_TIME_RANGE_END => TO_TIMESTAMP_LTZ('{end}'),
    RESULT_LIMIT => {limit}))
QUALIFY STARTSWITH(QUERY_TAG, ?) OR ROW_NUMBER() OVER (ORDER BY END_TIME, QUERY_ID) = 1
"""


class HistoryFailed(ControlFailed):
    """Snowflake's query history could not be read; the run itself is not affected."""

    remedy = "Try again with `loadgen enrich RUN`."


class QueryHistory:
    """One session, opened when it is needed and again when it was lost. Not for two threads."""

    def __init__(self, profile: ConnectionProfile, run_id: str, environ: Mapping[str, str] = os.environ) -> None:
        self._profile, self._environ = profile, environ
        # Tags of load sessions begin like this: see loadgen.snowflake.settings.query_tag.
        self._tag = json.dumps({"app": APPLICATION, "run": run_id}, separators=(",", ":"))[:-1] + ","
        self._connection: Connection | None = None

    @property
    def latency_s(self) -> float:
        """How long after its end a statement may be missing. In the embedded server it is there before its answer."""
        return 0.0 if self._profile.is_embedded else HISTORY_LATENCY_S

    def now(self) -> datetime:
        """Naive UTC, by the clock of the server whose history it is."""
        moment = self._fetch(_NOW)[0][0]
        if not isinstance(moment, datetime):
            raise HistoryFailed("the server does not tell the time", NOT_RETRYABLE)
        return moment

    def read(self, span: HistorySlice) -> HistoryPage:
        sql = _READ.format(start=_literal(span.start), end=_literal(span.end), limit=ROWS_MAX)
        rows = self._fetch(sql, self._tag)
        try:
            found = {str(row[0]): _times(row) for row in rows}
            return HistoryPage(found=found, seen=int(rows[0][-1]) if rows else 0)
        except (ValueError, TypeError, IndexError) as error:
            raise HistoryFailed("the query history came back in a form that is not known", NOT_RETRYABLE) from error

    def close(self) -> None:
        """Log out. Safe to call twice."""
        if self._connection is not None:
            close(self._connection)
            self._connection = None

    def _fetch(self, sql: str, *binds: Any) -> list[tuple[Any, ...]]:
        try:
            if self._connection is None:
                self._connection = self._open()
            cursor = self._connection.cursor()
            try:
                rows: list[tuple[Any, ...]] = cursor.execute(sql, binds or None).fetchall()
                return rows
            finally:
                cursor.close()
        except LoadgenError:  # from opening: it says already what to do
            raise
        except Exception as error:  # the driver leaks exceptions of its libraries
            failure = classify(error)
            if failure.session_lost:
                self.close()
            what = f"the query history could not be read with connection {self._profile.name}: {describe(error)}"
            remedy = "Set target.database, and run again." if failure.code in _NO_DATABASE else None
            raise HistoryFailed(what, failure, remedy=remedy) from error

    def _open(self) -> Connection:
        tag = json.dumps({"app": APPLICATION, "control": "enrich"}, separators=(",", ":"))
        settings = control_settings(self._profile, major=driver.major(), tag=tag, statement_limit_s=STATEMENT_S)
        try:
            return connect(self._profile, settings, environ=self._environ)
        except LoadgenError as error:
            failure = classify(error.__cause__) if error.__cause__ is not None else NOT_RETRYABLE
            raise HistoryFailed(str(error), failure, remedy=error.remedy) from error


def history_profile(scenario: Scenario, place: ControlPlaneLocation, environ: Mapping[str, str]) -> ConnectionProfile:
    """The scenario's connection. On the control plane's warehouse where both are one account: the one under test
    should be free to suspend itself."""
    shared = place.connection == scenario.connection
    overrides = {
        "database": scenario.target.database,
        "schema": scenario.target.schema,
        "warehouse": place.warehouse if shared else scenario.target.warehouse,
    }
    return find_profile(scenario.connection, environ=environ, overrides=overrides)


def _literal(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")


def _times(row: tuple[Any, ...]) -> ServerTimes:
    total, compile_, execution, overload, provisioning, blocked = (
        None if value is None else float(value) for value in row[1:7]
    )
    scanned, cluster = (None if value is None else int(value) for value in row[7:9])
    return ServerTimes(
        total_ms=total,
        compile_ms=compile_,
        execution_ms=execution,
        queued_overload_ms=overload,
        queued_provisioning_ms=provisioning,
        blocked_ms=blocked,
        bytes_scanned=scanned,
        cluster=cluster,
    )
