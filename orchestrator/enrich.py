"""Enrichment: after a run, joins the times in Snowflake's query history to the logged statements, by query id.

It changes only the columns SF_* and ENRICHMENT_STATUS of QUERY_EXECUTIONS, RUN_STATUS.ENRICHMENT_STATUS, and the parts
of the summary that show it. The verdict of a run is stored before, and does not depend on it. It is safe to repeat:
rows that are ENRICHED do not change.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlSession, ParsedRows
from loadgen.control.tables import query_executions, run_status, test_results
from loadgen.control.tables.query_executions import EnrichmentUpdate, PendingExecution, ServerTimes
from loadgen.errors import Busy, LoadgenError, RunFailed
from loadgen.log import event
from loadgen.model.run import RowEnrichment, RunEnrichment
from loadgen.model.workload import Statement
from loadgen.report.records import RunRecord
from loadgen.report.summary import with_enrichment
from loadgen.results.run_record import update_stored_summary
from loadgen.results.stored_summary import read_summary
from loadgen.rules.enrichment import EnrichmentResult, counts_of, reasons_of, status_of
from loadgen.scenario.frozen import thaw
from loadgen.scenario.model import EnrichmentMode, Scenario, TableType
from loadgen.snowflake.ident import QualifiedName
from loadgen.snowflake.session import NOT_RETRYABLE, RetryInterrupted, RetryPolicy
from loadgen.units import NS_PER_S
from loadgen.values import dataclass
from orchestrator.query_history import (
    EPOCH,
    MS,
    HistoryFailed,
    HistoryPage,
    HistorySlice,
    QueryHistory,
    history_profile,
)

HISTORY_REACH = timedelta(days=7) - timedelta(minutes=1)  # beyond seven days the function fails
CLOCK_SKEW = timedelta(seconds=30)  # between the clocks of workers and server

_NAME = re.compile(r"'(?:[^'\\]|''|\\.)*'|(?P<quoted>\"(?:[^\"]|\"\")+\")|(?P<word>[A-Za-z_][\w$]*)", re.DOTALL)

# --- Which statements to look for, where, and the next status of each: pure ------------------------------------------
#
# Snowflake does not promise how soon a statement appears in QUERY_HISTORY; a statement counts as missing after
# HISTORY_LATENCY_S. The history reaches back seven days and shows at most ROWS_MAX statements of the whole account per
# query, however few of them belong to the run: a time slice that is full is halved.
#
# Short statements that touch only hybrid tables leave no row in the history, and the few that do are the slow ones. So
# they are looked up only if the scenario requests it.


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrichmentScope:
    """Which statements of a scenario are looked up in the history."""

    transactions: frozenset[str]  # not looked up: the log has one row for several statements, with the last query id
    hybrid: frozenset[str]  # statements that touch only hybrid tables
    hybrid_too: bool  # look for them as well

    @property
    def skipped(self) -> frozenset[str]:
        return self.transactions if self.hybrid_too else self.transactions | self.hybrid


def enrichment_scope(scenario: Scenario, enabled: EnrichmentMode) -> EnrichmentScope:
    statements = scenario.workload.statements
    transactions = frozenset(statement.name for statement in statements if statement.transaction)
    kinds = {QualifiedName.parse(table.name).parts[-1].name: table.type for table in scenario.prepare.tables}
    hybrid = frozenset(statement.name for statement in statements if _only_hybrid(statement, kinds))
    return EnrichmentScope(
        transactions=transactions, hybrid=hybrid - transactions, hybrid_too=enabled is EnrichmentMode.ON
    )


def history_span(rows: Sequence[PendingExecution], now: datetime) -> HistorySlice | None:
    """The span in which the statements may have ended, by the server's clock. None: before the history begins."""
    if not rows:
        return None
    first = max(min(row.start_time for row in rows) - CLOCK_SKEW, now - HISTORY_REACH)
    last = min(max(map(_ended, rows)) + CLOCK_SKEW, now)
    if last <= first:
        return None
    return HistorySlice(start_ms=(first - EPOCH) // MS, end_ms=-((EPOCH - last) // MS))


def search_history(
    wanted: frozenset[str],
    span: HistorySlice | None,
    read: Callable[[HistorySlice], HistoryPage],
    is_over: Callable[[], bool],
) -> tuple[dict[str, ServerTimes], bool]:
    """The server's times of the wanted statements, and whether the whole history was read. Oldest slice first."""
    found: dict[str, ServerTimes] = {}
    ahead = [] if span is None else [span]
    complete = True
    while ahead and len(found) < len(wanted):
        if is_over():
            return found, False
        part = ahead.pop()
        page = read(part)
        found |= {query_id: times for query_id, times in page.found.items() if query_id in wanted}
        if page.is_full:
            halves = part.halves()
            complete = complete and bool(halves)
            ahead += halves
    return found, complete


def decide_enrichment(
    rows: Sequence[PendingExecution],
    found: Mapping[str, ServerTimes],
    now: datetime,
    latency_s: float,
    *,
    complete: bool,
) -> tuple[EnrichmentUpdate, ...]:
    """The rows that change after a search. `complete`: the search has read the whole history."""
    return tuple(
        EnrichmentUpdate(execution_id=row.execution_id, status=status, times=times)
        for row in rows
        for status, times in [_verdict(row, found.get(row.query_id), now, latency_s, complete=complete)]
        if status is not row.status
    )


def count_not_due(
    rows: Sequence[PendingExecution], found: Mapping[str, ServerTimes], now: datetime, latency_s: float
) -> int:
    """How many rows were not found, but ended too recently to count as missing."""
    return sum(row.query_id not in found and not _is_due(row, now, latency_s) for row in rows)


def _verdict(
    row: PendingExecution, times: ServerTimes | None, now: datetime, latency_s: float, *, complete: bool
) -> tuple[RowEnrichment, ServerTimes]:
    nothing = ServerTimes(total_ms=None)
    if times is not None:
        return (RowEnrichment.FAILED, nothing) if times.total_ms is None else (RowEnrichment.ENRICHED, times)
    if row.status is RowEnrichment.NOT_FOUND:
        return row.status, nothing
    if _ended(row) < now - HISTORY_REACH:
        return RowEnrichment.SKIPPED, nothing
    if complete and _is_due(row, now, latency_s):
        return RowEnrichment.NOT_FOUND, nothing
    return RowEnrichment.PENDING, nothing


def _is_due(row: PendingExecution, now: datetime, latency_s: float) -> bool:
    return _ended(row) + timedelta(seconds=latency_s) <= now


def _ended(row: PendingExecution) -> datetime:
    return row.start_time + timedelta(milliseconds=row.duration_ms)


def _only_hybrid(statement: Statement, kinds: Mapping[str, TableType]) -> bool:
    """Whether the statement names hybrid tables only, among the tables that the scenario prepares."""
    named = {kinds[name] for query in statement.queries for name in _names(query.sql) if name in kinds}
    return named == {TableType.HYBRID}


def _names(sql: str) -> Iterator[str]:
    for match in _NAME.finditer(sql):
        if match["word"]:
            yield match["word"].upper()
        elif match["quoted"]:
            yield match["quoted"][1:-1].replace('""', '"')


# --- Enrichment of a run ---------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")

AFTER_RUN_S = 90.0  # how long a run waits for its history; `loadgen enrich` does the rest later
PAUSE_S = 10.0
AHEAD_MAX = timedelta(hours=1)  # by which the clock of a worker may be ahead of the server's
PAGE_ROWS = 50_000  # logged statements that are looked up at a time
ATTEMPTS = 3  # of one slice
EMPTY_SEARCHES_MAX = 3  # waiting ends after this number of searches without any statement of the run

_BEGINNING = (EPOCH, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrichmentOptions:
    """Limits of an enrichment."""

    limit_s: float | None = AFTER_RUN_S  # None: no limit, all pages are searched
    wait: bool = True  # search again while statements may still appear in the history
    enabled: EnrichmentMode | None = None  # None: as in the scenario
    on_progress: Callable[[int], None] = lambda _: (
        None
    )  # called after each search with the number of expected statements


def enrich_run(
    session: ControlSession,
    retries: RetryPolicy,
    run_id: str,
    scenario: Scenario,
    *,
    options: EnrichmentOptions | None = None,
    environ: Mapping[str, str] = os.environ,
) -> EnrichmentResult:
    """Enrich the logged statements of a run. Raises LoadgenError only if the control plane fails.

    If the history cannot be read, the result is FAILED, with `error`. Setting `retries.stop` ends waits and searches.
    With `enrichment.enabled: false` nothing is searched, and no row changes.
    """
    options = options or EnrichmentOptions()
    enabled = options.enabled or scenario.enrichment
    if enabled is EnrichmentMode.OFF:
        return _left_alone(session, retries, run_id)
    aim = enrichment_scope(scenario, enabled)
    query_executions.skip(session, retries, run_id, sorted(aim.skipped))
    error: LoadgenError | None = None
    unreadable: dict[str, str] = {}
    try:
        open_history = partial(_open, scenario, session.place, run_id, environ)
        _Enricher(session, retries, run_id, aim, options, open_history, unreadable).run()
    except HistoryFailed as failed:
        error = failed
        event(log, logging.WARNING, "enrichment_failed", run_id=run_id, what=str(failed))
    except RetryInterrupted:
        event(log, logging.INFO, "enrichment_interrupted", run_id=run_id)
    result = _result(session, retries, run_id, aim, error, unreadable)
    _publish(session, retries, run_id, result.status)
    return result


def enrich_result(
    session: ControlSession,
    retries: RetryPolicy,
    run_id: str,
    scenario: Scenario,
    *,
    environ: Mapping[str, str] = os.environ,
) -> EnrichmentResult:
    """Enrich a run whose result is stored, and amend its summary."""
    found = enrich_run(session, retries, run_id, scenario, environ=environ)
    stored = read_summary(session, retries, run_id)
    if stored is not None and (amended := with_enrichment(stored, found)) != stored:
        test_results.amend(session, retries, run_id, json.dumps(amended))
    return found


def enrich_again(
    session: ControlSession,
    retries: RetryPolicy,
    name: str,
    *,
    hybrid: bool,
    wait: bool,
    on_progress: Callable[[int], None],
) -> tuple[EnrichmentResult, RunRecord | None]:
    """Enrich an ended run, and update its stored summary. Returns the result, and the record for its reports; None: the
    summary was not updated. `on_progress` is called with the number of statements that the history may not show yet."""
    run = run_status.find_run(session, retries, name)
    if not run.status.is_terminal:
        raise Busy(
            f"run {run.run_id} is still {run.status}: its statements are logged when it ends",
            remedy="Wait for its end; it is enriched then. `loadgen status` shows what it does.",
        )
    config = retries.call(lambda: run_status.read_config(session, run.run_id))
    if config is None:
        raise RunFailed(f"run {run.run_id} does not exist any more", remedy="`loadgen runs list` shows all runs.")
    scenario = thaw(config, os.environ)
    asked = EnrichmentMode.ON if hybrid or scenario.enrichment is EnrichmentMode.ON else EnrichmentMode.AUTO
    options = EnrichmentOptions(limit_s=None, wait=wait, enabled=asked)
    if wait:
        options = replace(options, on_progress=on_progress)
    result = enrich_run(session, retries, run.run_id, scenario, options=options)
    if result.error is not None:
        return result, None
    amended = update_stored_summary(session, retries, run.run_id, lambda summary: with_enrichment(summary, result))
    return result, amended


def _open(scenario: Scenario, place: ControlPlaneLocation, run_id: str, environ: Mapping[str, str]) -> QueryHistory:
    try:
        return QueryHistory(history_profile(scenario, place, environ), run_id, environ)
    except LoadgenError as error:
        raise HistoryFailed(str(error), NOT_RETRYABLE, remedy=error.remedy) from error


class _Enricher:
    """Searches the history, stores what it has found, waits, and searches again."""

    def __init__(
        self,
        session: ControlSession,
        retries: RetryPolicy,
        run_id: str,
        aim: EnrichmentScope,
        options: EnrichmentOptions,
        open_history: Callable[[], QueryHistory],
        unreadable: dict[str, str],
    ) -> None:
        """`unreadable` receives the rows that are left out, with the reason."""
        self._session, self._retries, self._run_id = session, retries, run_id
        self._aim, self._options, self._open_history = aim, options, open_history
        self._clock = retries.clock
        self._began_ns = self._clock.monotonic_ns()
        self._history: QueryHistory | None = None
        self._unreadable = unreadable
        self._searches = self._found = 0

    def run(self) -> None:
        try:
            while self._search() and self._is_worth_waiting and not self._is_over(PAUSE_S):
                if self._clock.wait(self._retries.stop, PAUSE_S):
                    return
        finally:
            if self._history is not None:
                self._history.close()

    @property
    def _is_worth_waiting(self) -> bool:
        """Whether to search again. False after some empty searches: the history has no statement of hybrid tables, and
        a scenario does not always show that it uses them."""
        return self._options.wait and (self._found > 0 or self._searches < EMPTY_SEARCHES_MAX)

    def _search(self) -> int:
        """Search for all undecided statements. Returns how many may still appear."""
        coming = 0
        self._searches += 1
        for page in self._pages():
            history = self._opened()
            now = self._retried(history.now)
            page = self._begun(page, now)
            wanted = frozenset(row.query_id for row in page)
            found, complete = search_history(
                wanted, history_span(page, now), partial(self._read, history), self._is_over
            )
            self._found += len(found)
            decisions = decide_enrichment(page, found, now, history.latency_s, complete=complete)
            query_executions.enrich(self._session, self._retries, self._run_id, decisions)
            coming += count_not_due(page, found, now, history.latency_s)
            if self._is_over():
                break
        if coming:
            self._options.on_progress(coming)
        return coming

    def _begun(self, page: Sequence[PendingExecution], now: datetime) -> tuple[PendingExecution, ...]:
        """The rows without those that begin in the future: no history will ever show them."""
        for row in page:
            if row.start_time > now + AHEAD_MAX:
                self._unreadable[row.execution_id] = f"{row.execution_id} begins {row.start_time}"
        return tuple(row for row in page if row.execution_id not in self._unreadable)

    def _opened(self) -> QueryHistory:
        """The history, which is opened when the first statement is looked up."""
        if self._history is None:
            self._history = self._open_history()
            _publish_pending(self._session, self._retries, self._run_id)
        return self._history

    def _pages(self) -> Iterator[tuple[PendingExecution, ...]]:
        after: tuple[datetime, str] | None = _BEGINNING
        while after is not None:
            rows, after = self._retries.call(partial(self._page, after))
            self._unreadable |= {str(error.key): str(error) for error in rows.unreadable}
            wanted = tuple(row for row in rows if row.statement_name not in self._aim.skipped)
            if wanted:
                yield wanted

    def _page(self, after: tuple[datetime, str]) -> tuple[ParsedRows[PendingExecution], tuple[datetime, str] | None]:
        return query_executions.undecided(
            self._session, self._run_id, after, PAGE_ROWS, skipped_too=self._aim.hybrid_too
        )

    def _read(self, history: QueryHistory, span: HistorySlice) -> HistoryPage:
        return self._retried(partial(history.read, span))

    def _retried(self, query: Callable[[], Answer]) -> Answer:
        return replace(self._retries, attempts=ATTEMPTS).call(query)

    def _is_over(self, ahead_s: float = 0.0) -> bool:
        """Whether the enrichment was interrupted, or its time limit will have passed in `ahead_s` seconds."""
        used_s = (self._clock.monotonic_ns() - self._began_ns) / NS_PER_S
        limit_s = self._options.limit_s
        return self._retries.stop.is_set() or (limit_s is not None and used_s + ahead_s >= limit_s)


def _result(
    session: ControlSession,
    retries: RetryPolicy,
    run_id: str,
    aim: EnrichmentScope,
    error: LoadgenError | None,
    unreadable: Mapping[str, str],
) -> EnrichmentResult:
    tally = retries.call(lambda: query_executions.tally(session, run_id))
    counts, dropped = counts_of(tally), _dropped(session, retries, run_id)
    reasons = (
        *reasons_of(tally, transactions=aim.transactions, hybrid=aim.hybrid, dropped=dropped),
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
        dropped=dropped,
        reasons=reasons if error is None else (str(error), *reasons),
        ledger=retries.call(lambda: query_executions.ledger(session, run_id)),
        error=error,
    )


def _left_alone(session: ControlSession, retries: RetryPolicy, run_id: str) -> EnrichmentResult:
    tally = retries.call(lambda: query_executions.tally(session, run_id))
    _publish(session, retries, run_id, RunEnrichment.SKIPPED)
    return EnrichmentResult(
        run_id=run_id,
        status=RunEnrichment.SKIPPED,
        counts=counts_of(tally),
        dropped=_dropped(session, retries, run_id),
        reasons=("enrichment.enabled is false in the scenario",),
    )


def _dropped(session: ControlSession, retries: RetryPolicy, run_id: str) -> int:
    """The number of statements that are missing in the query logs of the workers."""
    rows = retries.call(lambda: test_results.read(session, run_id))
    dropped = [test_results.dropped_rows(row) for row, _ in rows]
    return sum(counts.get(kind, 0) for counts in dropped for kind in ("query_log_rows", "query_log_unwritten"))


def _publish(session: ControlSession, retries: RetryPolicy, run_id: str, status: RunEnrichment) -> None:
    """Set the enrichment status of the run, if it differs."""
    run = retries.call(lambda: run_status.read(session, run_id))
    if run is not None and run.enrichment_status != status.value:
        run_status.set_enrichment(session, retries, run_id, status.value)


def _publish_pending(session: ControlSession, retries: RetryPolicy, run_id: str) -> None:
    """Show readers that the enrichment has begun. The status of an earlier enrichment is kept until this one ends."""
    run = retries.call(lambda: run_status.read(session, run_id))
    if run is not None and run.enrichment_status is None:
        run_status.set_enrichment(session, retries, run_id, RunEnrichment.PENDING.value)
