"""Snowflake's query history: statements of a run with the server's times, and what executed on a warehouse."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlFailed
from loadgen.control.tables.query_executions import ServerTimes
from loadgen.scenario.model import Scenario
from loadgen.snowflake.account_history import AccountHistorySession
from loadgen.snowflake.ident import text_literal, timestamp_literal
from loadgen.snowflake.profile import ConnectionProfile
from loadgen.snowflake.profile_lookup import find_profile
from loadgen.snowflake.session import NOT_RETRYABLE
from loadgen.snowflake.settings import APPLICATION, CONTROL_TAG, control_tag
from loadgen.values import dataclass

ROWS_MAX = 10_000  # Snowflake's limit of one answer
HISTORY_LATENCY_S = 240.0  # about 45 s were observed; Snowflake documents no limit
STATEMENT_S = 60  # of one slice

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  naive UTC, as the tables have it
MS = timedelta(milliseconds=1)

_UNKNOWN_FORM = "the answer of the query history has an unknown form"
# RESULT_LIMIT applies before any condition. The number of rows shows whether it has cut some off; row number 1 carries
# that number if no row belongs to the run. Times cannot be bound.
_READ = """
SELECT QUERY_ID, TOTAL_ELAPSED_TIME, COMPILATION_TIME, EXECUTION_TIME, QUEUED_OVERLOAD_TIME, QUEUED_PROVISIONING_TIME,
       TRANSACTION_BLOCKED_TIME, BYTES_SCANNED, CLUSTER_NUMBER, COUNT(*) OVER () AS SEEN
FROM TABLE(INFORMATION_SCHEMA.QUERY_HISTORY(
    END_TIME_RANGE_START => {start}, END_TIME_RANGE_END => {end}, RESULT_LIMIT => {limit}))
QUALIFY STARTSWITH(QUERY_TAG, ?) OR ROW_NUMBER() OVER (ORDER BY END_TIME, QUERY_ID) = 1
"""
# Control statements are left out, load of another run is not. Without an end of the range the result includes
# statements that still execute: foreign ones count with their part of the span. If there are more rows than the limit,
# the newest are returned: the result is complete from the oldest returned row on.
_USE = """
SELECT COUNT_IF(IS_OWN), COALESCE(SUM(IFF(IS_OWN, EXECUTION_TIME, 0)), 0),
       COUNT_IF(IS_OTHERS AND USED_MS > 0), COALESCE(SUM(IFF(IS_OTHERS, USED_MS, 0)), 0),
       IFF(COUNT(*) < {limit}, 0,
           DATEDIFF('millisecond', {start}, MIN(IFF(IS_RUNNING, NULL, END_TIME))))
FROM (
    SELECT EXECUTION_TIME, END_TIME, IS_RUNNING, IS_OTHERS,
           IS_OWN AND EXECUTION_TIME > 0 AND NOT IS_RUNNING AND END_TIME <= {end} AS IS_OWN,
           GREATEST(0, LEAST(IFF(IS_RUNNING, SHARED_MS, EXECUTION_TIME), SHARED_MS)) AS USED_MS
    FROM (
        SELECT EXECUTION_TIME, END_TIME, UPPER(EXECUTION_STATUS) = 'RUNNING' AS IS_RUNNING,
               STARTSWITH(COALESCE(QUERY_TAG, ''), ?) AS IS_OWN,
               NOT STARTSWITH(COALESCE(QUERY_TAG, ''), ?) AND NOT STARTSWITH(COALESCE(QUERY_TAG, ''), ?)
               AND COALESCE(QUERY_TAG, '') <> ? AND COALESCE(QUERY_TAG, '') <> ? AS IS_OTHERS,
               DATEDIFF('millisecond', GREATEST(START_TIME, {start}),
                   LEAST(IFF(UPPER(EXECUTION_STATUS) = 'RUNNING', CURRENT_TIMESTAMP(), END_TIME), {end})
               ) AS SHARED_MS
        FROM TABLE(INFORMATION_SCHEMA.QUERY_HISTORY_BY_WAREHOUSE(
            WAREHOUSE_NAME => {warehouse}, END_TIME_RANGE_START => {start},
            RESULT_LIMIT => {limit}))
    )
)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySlice:
    """A span of end times, in milliseconds since 1970, including both ends."""

    start_ms: int
    end_ms: int

    def halves(self) -> tuple[HistorySlice, ...]:
        """The newer half and the older half, which share their middle because times are finer than milliseconds. Empty
        for a slice of one millisecond."""
        if self.end_ms - self.start_ms <= 1:
            return ()
        middle_ms = (self.start_ms + self.end_ms) // 2
        return HistorySlice(start_ms=middle_ms, end_ms=self.end_ms), HistorySlice(
            start_ms=self.start_ms, end_ms=middle_ms
        )

    @property
    def start(self) -> datetime:
        return (EPOCH + self.start_ms * MS).replace(tzinfo=UTC)

    @property
    def end(self) -> datetime:
        return (EPOCH + self.end_ms * MS).replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPage:
    """The rows of a slice: times by query id of the run's statements, and the number of all statements."""

    found: Mapping[str, ServerTimes]
    seen: int

    @property
    def is_full(self) -> bool:
        return self.seen >= ROWS_MAX


class HistoryFailed(ControlFailed):
    """Snowflake's query history could not be read; the run itself is not affected."""

    remedy = "Try again with `loadgen enrich RUN`."


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseUse:
    """Statements that executed on a warehouse in a span of time, according to the query history."""

    own: int
    own_ms: float
    others: int
    others_ms: float
    left_out_ms: float = 0.0  # length of the beginning of the span that the history does not show


class QueryHistory(AccountHistorySession):
    """A session that reads the query history for one run."""

    what, failed, role, statement_limit_s = "the query history", HistoryFailed, "enrich", STATEMENT_S

    def __init__(self, profile: ConnectionProfile, run_id: str, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__(profile, environ)
        # Tags of load sessions begin like this: see loadgen.snowflake.settings.query_tag.
        self._tag = json.dumps({"app": APPLICATION, "run": run_id}, separators=(",", ":"))[:-1] + ","

    @property
    def latency_s(self) -> float:
        """How long after its end a statement may be missing. On the embedded server it is never missing."""
        return 0.0 if self._profile.is_embedded else HISTORY_LATENCY_S

    def read(self, span: HistorySlice) -> HistoryPage:
        sql = _READ.format(start=timestamp_literal(span.start), end=timestamp_literal(span.end), limit=ROWS_MAX)
        rows = self.fetch(sql, self._tag)
        try:
            found = {str(row[0]): _times(row) for row in rows}
            return HistoryPage(found=found, seen=int(rows[0][-1]) if rows else 0)
        except (ValueError, TypeError, IndexError) as error:
            raise HistoryFailed(_UNKNOWN_FORM, NOT_RETRYABLE) from error

    def use(self, warehouse: str, span: HistorySlice, *, has_control_plane: bool = False) -> WarehouseUse:
        """The statements of the run and foreign ones. Without MONITOR on the warehouse, a role sees only the statements
        of its user.

        `has_control_plane`: control statements execute on this warehouse, and do not count. On another warehouse a
        statement with their tag is foreign: another `loadgen capture`, or a tag that was copied.
        """
        control = CONTROL_TAG if has_control_plane else self._tag
        sql = _USE.format(
            warehouse=text_literal(warehouse),
            start=timestamp_literal(span.start),
            end=timestamp_literal(span.end),
            limit=ROWS_MAX,
        )
        try:
            ((own, own_ms, others, others_ms, left_out_ms),) = self.fetch(
                sql, self._tag, self._tag, control, control_tag("enrich"), control_tag("warehouse-poll")
            )
            return WarehouseUse(
                own=int(own),
                own_ms=float(own_ms),
                others=int(others),
                others_ms=float(others_ms),
                left_out_ms=max(0.0, float(left_out_ms)),
            )
        except (ValueError, TypeError) as error:
            raise HistoryFailed(_UNKNOWN_FORM, NOT_RETRYABLE) from error


def history_profile(scenario: Scenario, place: ControlPlaneLocation, environ: Mapping[str, str]) -> ConnectionProfile:
    """The scenario's connection, for reading the history. If the control plane has the same connection, its warehouse
    is used, so that the warehouse under test can suspend itself."""
    shared = place.connection == scenario.connection
    overrides = {
        "database": scenario.target.database,
        "schema": scenario.target.schema,
        "warehouse": place.warehouse if shared else scenario.target.warehouse,
    }
    return find_profile(scenario.connection, environ=environ, overrides=overrides)


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
