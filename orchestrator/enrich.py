"""Enrichment: after a run, Snowflake's own times are joined to the statements that were logged, by their query ids.

It changes SF_* and ENRICHMENT_STATUS in QUERY_EXECUTIONS, RUN_STATUS.ENRICHMENT_STATUS, and nothing else: a run is what
it is, whether or not its history can be read. Doing it again is safe; what is ENRICHED stays.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlFailed, ControlSession, ParsedRows
from loadgen.control.tables import query_executions, run_status
from loadgen.control.tables.query_executions import PendingExecution, ServerTimes
from loadgen.errors import LoadgenError
from loadgen.log import event
from loadgen.model.run import RunEnrichment
from loadgen.rules.enrichment import EnrichmentResult, counts_of, reasons_of, status_of
from loadgen.scenario.model import EnrichmentMode, Scenario
from loadgen.snowflake import driver
from loadgen.snowflake.connect import connect
from loadgen.snowflake.driver import Connection
from loadgen.snowflake.failure import classify, describe
from loadgen.snowflake.profile import ConnectionProfile
from loadgen.snowflake.profile_lookup import find_profile
from loadgen.snowflake.session import NOT_RETRYABLE, RetryInterrupted, RetryPolicy, SnowflakeSession, login_failure
from loadgen.snowflake.settings import APPLICATION, CONTROL_TAG, control_settings, control_tag
from loadgen.units import NS_PER_S
from loadgen.values import dataclass
from orchestrator.enrichment_rules import (
    HISTORY_LATENCY_S,
    ROWS_MAX,
    EnrichmentScope,
    HistoryPage,
    HistorySlice,
    count_not_due,
    decide_enrichment,
    enrichment_scope,
    history_span,
    search_history,
)

STATEMENT_S = 60  # of one slice

_UNKNOWN_FORM = "the query history came back in a form that is not known"
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
# Control statements are left out, load of another run is not. Without an end of the range, statements that are still
# executing are there: others count with the time that they took of the span. Of more rows than the limit the newest are
# there: then the first that is there says from when on all are.
_USE = """
SELECT COUNT_IF(IS_OWN), COALESCE(SUM(IFF(IS_OWN, EXECUTION_TIME, 0)), 0),
       COUNT_IF(IS_OTHERS AND USED_MS > 0), COALESCE(SUM(IFF(IS_OTHERS, USED_MS, 0)), 0),
       IFF(COUNT(*) < {limit}, 0,
           DATEDIFF('millisecond', TO_TIMESTAMP_LTZ('{start}'), MIN(IFF(IS_RUNNING, NULL, END_TIME))))
FROM (
    SELECT EXECUTION_TIME, END_TIME, IS_RUNNING, IS_OTHERS,
           IS_OWN AND EXECUTION_TIME > 0 AND NOT IS_RUNNING AND END_TIME <= TO_TIMESTAMP_LTZ('{end}') AS IS_OWN,
           GREATEST(0, LEAST(IFF(IS_RUNNING, SHARED_MS, EXECUTION_TIME), SHARED_MS)) AS USED_MS
    FROM (
        SELECT EXECUTION_TIME, END_TIME, UPPER(EXECUTION_STATUS) = 'RUNNING' AS IS_RUNNING,
               STARTSWITH(COALESCE(QUERY_TAG, ''), ?) AS IS_OWN,
               NOT STARTSWITH(COALESCE(QUERY_TAG, ''), ?) AND NOT STARTSWITH(COALESCE(QUERY_TAG, ''), ?)
               AND COALESCE(QUERY_TAG, '') <> ? AND COALESCE(QUERY_TAG, '') <> ? AS IS_OTHERS,
               DATEDIFF('millisecond', GREATEST(START_TIME, TO_TIMESTAMP_LTZ('{start}')),
                   LEAST(IFF(UPPER(EXECUTION_STATUS) = 'RUNNING', CURRENT_TIMESTAMP(), END_TIME),
                         TO_TIMESTAMP_LTZ('{end}'))
               ) AS SHARED_MS
        FROM TABLE(INFORMATION_SCHEMA.QUERY_HISTORY_BY_WAREHOUSE(
            WAREHOUSE_NAME => '{warehouse}', END_TIME_RANGE_START => TO_TIMESTAMP_LTZ('{start}'),
            RESULT_LIMIT => {limit}))
    )
)
"""


class HistoryFailed(ControlFailed):
    """Snowflake's query history could not be read; the run itself is not affected."""

    remedy = "Try again with `loadgen enrich RUN`."


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseUse:
    """What the query history shows of the statements that executed on a warehouse in a span of time."""

    own: int
    own_ms: float
    others: int
    others_ms: float
    left_out_ms: float = 0.0  # the beginning of the span, of which it shows nothing


class QueryHistory(SnowflakeSession):
    """The server's query history of one run."""

    def __init__(self, profile: ConnectionProfile, run_id: str, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__(self._connect)
        self._profile, self._environ = profile, environ
        # Tags of load sessions begin like this: see loadgen.snowflake.settings.query_tag.
        self._tag = json.dumps({"app": APPLICATION, "run": run_id}, separators=(",", ":"))[:-1] + ","

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
            raise HistoryFailed(_UNKNOWN_FORM, NOT_RETRYABLE) from error

    def use(self, warehouse: str, span: HistorySlice, *, has_control_plane: bool = False) -> WarehouseUse:
        """By the run and by others; without MONITOR on the warehouse, a role sees only the statements of its user.

        `has_control_plane`: statements on the tables of the control plane execute on this warehouse, and are no load.
        Elsewhere a statement with their tag is foreign: another `loadgen capture`, or a tag that was copied.
        """
        control = CONTROL_TAG if has_control_plane else self._tag
        sql = _USE.format(warehouse=warehouse, start=_literal(span.start), end=_literal(span.end), limit=ROWS_MAX)
        try:
            ((own, own_ms, others, others_ms, left_out_ms),) = self._fetch(
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

    def _fetch(self, sql: str, *binds: Any) -> list[tuple[Any, ...]]:
        try:
            return self.rows(sql, binds)
        except LoadgenError:  # from opening: it says already what to do
            raise
        except Exception as error:  # the driver leaks exceptions of its libraries
            failure = classify(error)
            what = f"the query history could not be read with connection {self._profile.name}: {describe(error)}"
            remedy = "Set target.database, and run again." if failure.has_no_current_database else None
            raise HistoryFailed(what, failure, remedy=remedy) from error

    def _connect(self) -> Connection:
        tag = control_tag("enrich")
        settings = control_settings(self._profile, major=driver.major(), tag=tag, statement_limit_s=STATEMENT_S)
        try:
            return connect(self._profile, settings, environ=self._environ)
        except LoadgenError as error:
            raise HistoryFailed(str(error), login_failure(error), remedy=error.remedy) from error


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


log = logging.getLogger(__name__)
Answer = TypeVar("Answer")

AFTER_RUN_S = 90.0  # how long a run waits for its history; what is not there by then is left to `loadgen enrich`
PAUSE_S = 10.0
AHEAD_MAX = timedelta(hours=1)  # of the server: clocks of workers may be off
PAGE_ROWS = 50_000  # logged statements that are looked for at a time
ATTEMPTS = 3  # of one slice
EMPTY_SEARCHES_MAX = 3  # searches without any statement of the run, after which the history will not have it soon

_BEGINNING = (datetime(1970, 1, 1), "")  # noqa: DTZ001  naive UTC, as the tables have it


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrichmentOptions:
    """How hard to try. None: no limit, every page is looked at."""

    limit_s: float | None = AFTER_RUN_S
    wait: bool = True  # look again while some are too fresh to be missed
    enabled: EnrichmentMode | None = None  # None: as the scenario says
    told: Callable[[int], None] = lambda _: None  # after each look: how many are not there yet


def enrich_run(
    session: ControlSession,
    patience: RetryPolicy,
    run_id: str,
    scenario: Scenario,
    *,
    effort: EnrichmentOptions | None = None,
    environ: Mapping[str, str] = os.environ,
) -> EnrichmentResult:
    """Join what the history has, and say how far that went. Raises LoadgenError, and only for the control plane's sake.

    A history that cannot be read is a result (FAILED, with `error`). `patience.stop` ends waits and looks early. With
    `enrichment.enabled: false` nothing is looked for, and every statement stays as it is.
    """
    effort = effort or EnrichmentOptions()
    enabled = effort.enabled or scenario.enrichment
    if enabled is EnrichmentMode.OFF:
        return _left_alone(session, patience, run_id)
    aim = enrichment_scope(scenario, enabled)
    query_executions.skip(session, patience, run_id, sorted(aim.skipped))
    error: LoadgenError | None = None
    unreadable: dict[str, str] = {}
    try:
        open_history = partial(_open, scenario, session.place, run_id, environ)
        _Enricher(session, patience, run_id, aim, effort, open_history, unreadable).run()
    except HistoryFailed as failed:
        error = failed
        event(log, logging.WARNING, "enrichment_failed", run_id=run_id, what=str(failed))
    except RetryInterrupted:
        event(log, logging.INFO, "enrichment_interrupted", run_id=run_id)
    result = _result(session, patience, run_id, aim, error, unreadable)
    _publish(session, patience, run_id, result.status)
    return result


def _open(scenario: Scenario, place: ControlPlaneLocation, run_id: str, environ: Mapping[str, str]) -> QueryHistory:
    try:
        return QueryHistory(history_profile(scenario, place, environ), run_id, environ)
    except LoadgenError as error:
        raise HistoryFailed(str(error), NOT_RETRYABLE, remedy=error.remedy) from error


class _Enricher:
    """Looks, writes down what it found, waits, looks again."""

    def __init__(
        self,
        session: ControlSession,
        patience: RetryPolicy,
        run_id: str,
        aim: EnrichmentScope,
        effort: EnrichmentOptions,
        open_history: Callable[[], QueryHistory],
        unreadable: dict[str, str],
    ) -> None:
        """`unreadable` gets the rows that are left out, and why."""
        self._session, self._patience, self._run_id = session, patience, run_id
        self._aim, self._effort, self._open_history = aim, effort, open_history
        self._clock = patience.clock
        self._began_ns = self._clock.monotonic_ns()
        self._history: QueryHistory | None = None
        self._unreadable = unreadable
        self._looks = self._found = 0

    def run(self) -> None:
        try:
            while self._look() and self._is_worth_waiting and not self._is_over(PAUSE_S):
                if self._clock.wait(self._patience.stop, PAUSE_S):
                    return
        finally:
            if self._history is not None:
                self._history.close()

    @property
    def _is_worth_waiting(self) -> bool:
        """Some histories lag; that of a hybrid table, which a scenario need not say it reads, has nothing at all."""
        return self._effort.wait and (self._found > 0 or self._looks < EMPTY_SEARCHES_MAX)

    def _look(self) -> int:
        """One look at everything that is undecided. How many may still come."""
        coming = 0
        self._looks += 1
        for page in self._pages():
            history = self._opened()
            now = self._asked(history.now)
            page = self._begun(page, now)
            wanted = frozenset(row.query_id for row in page)
            found, complete = search_history(
                wanted, history_span(page, now), partial(self._read, history), self._is_over
            )
            self._found += len(found)
            decisions = decide_enrichment(page, found, now, history.latency_s, complete=complete)
            query_executions.enrich(self._session, self._patience, self._run_id, decisions)
            coming += count_not_due(page, found, now, history.latency_s)
            if self._is_over():
                break
        if coming:
            self._effort.told(coming)
        return coming

    def _begun(self, page: Sequence[PendingExecution], now: datetime) -> tuple[PendingExecution, ...]:
        """Without those that are still to begin: no history will ever show them."""
        for row in page:
            if row.start_time > now + AHEAD_MAX:
                self._unreadable[row.execution_id] = f"{row.execution_id} begins {row.start_time}"
        return tuple(row for row in page if row.execution_id not in self._unreadable)

    def _opened(self) -> QueryHistory:
        """Not before there is something to look for."""
        if self._history is None:
            self._history = self._open_history()
            _publish_pending(self._session, self._patience, self._run_id)
        return self._history

    def _pages(self) -> Iterator[tuple[PendingExecution, ...]]:
        after: tuple[datetime, str] | None = _BEGINNING
        while after is not None:
            rows, after = self._patience.call(partial(self._page, after))
            self._unreadable |= {str(error.key): str(error) for error in rows.unreadable}
            wanted = tuple(row for row in rows if row.statement_name not in self._aim.skipped)
            if wanted:
                yield wanted

    def _page(self, after: tuple[datetime, str]) -> tuple[ParsedRows[PendingExecution], tuple[datetime, str] | None]:
        return query_executions.undecided(
            self._session, self._run_id, after, PAGE_ROWS, skipped_too=self._aim.hybrid_too
        )

    def _read(self, history: QueryHistory, span: HistorySlice) -> HistoryPage:
        return self._asked(partial(history.read, span))

    def _asked(self, question: Callable[[], Answer]) -> Answer:
        return replace(self._patience, attempts=ATTEMPTS).call(question)

    def _is_over(self, ahead_s: float = 0.0) -> bool:
        """Interrupted, or the time would be used up so much later."""
        used_s = (self._clock.monotonic_ns() - self._began_ns) / NS_PER_S
        limit_s = self._effort.limit_s
        return self._patience.stop.is_set() or (limit_s is not None and used_s + ahead_s >= limit_s)


def _result(
    session: ControlSession,
    patience: RetryPolicy,
    run_id: str,
    aim: EnrichmentScope,
    error: LoadgenError | None,
    unreadable: Mapping[str, str],
) -> EnrichmentResult:
    tally = patience.call(lambda: query_executions.tally(session, run_id))
    counts = counts_of(tally)
    reasons = (
        *reasons_of(tally, transactions=aim.transactions, hybrid=aim.hybrid),
        *(
            [f"{len(unreadable):,} rows are unreadable, such as: {next(iter(unreadable.values()))}"]
            if unreadable
            else ()
        ),
        *map(str, tally.unreadable[:1]),
    )
    return EnrichmentResult(
        run_id=run_id,
        status=status_of(counts) if error is None else RunEnrichment.FAILED,
        counts=counts,
        reasons=reasons if error is None else (str(error), *reasons),
        ledger=patience.call(lambda: query_executions.ledger(session, run_id)),
        error=error,
    )


def _left_alone(session: ControlSession, patience: RetryPolicy, run_id: str) -> EnrichmentResult:
    tally = patience.call(lambda: query_executions.tally(session, run_id))
    _publish(session, patience, run_id, RunEnrichment.SKIPPED)
    return EnrichmentResult(
        run_id=run_id,
        status=RunEnrichment.SKIPPED,
        counts=counts_of(tally),
        reasons=("enrichment.enabled is false in the scenario",),
    )


def _publish(session: ControlSession, patience: RetryPolicy, run_id: str, status: RunEnrichment) -> None:
    """Where it says so already, nothing is written."""
    run = patience.call(lambda: run_status.read(session, run_id))
    if run is not None and run.enrichment_status != status.value:
        run_status.set_enrichment(session, patience, run_id, status.value)


def _publish_pending(session: ControlSession, patience: RetryPolicy, run_id: str) -> None:
    """For readers meanwhile. The result of an earlier enrichment stays until this one is done."""
    run = patience.call(lambda: run_status.read(session, run_id))
    if run is not None and run.enrichment_status is None:
        run_status.set_enrichment(session, patience, run_id, RunEnrichment.PENDING.value)
