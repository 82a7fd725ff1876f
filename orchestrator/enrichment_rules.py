"""What enrichment looks for in Snowflake's query history, where, and what becomes of each logged statement. Pure.

QUERY_HISTORY has no promise of how soon a statement appears; LATENCY_S is what is allowed before one counts as missing.
It reaches back seven days, and shows at most ROWS_MAX statements of the whole account at a time, however few of them
are ours: a slice of time that is full is halved.

Short statements that touch only hybrid tables leave no row there at all, and the few that do are the slow ones. So they
are looked for only when the scenario insists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from loadgen.control.tables.query_executions import EnrichmentUpdate, PendingExecution, ServerTimes
from loadgen.model.run import RowEnrichment
from loadgen.model.workload import Statement
from loadgen.scenario.model import EnrichmentMode, Scenario, TableType
from loadgen.snowflake.ident import QualifiedName
from loadgen.values import dataclass

ROWS_MAX = 10_000  # Snowflake's limit of one answer
HISTORY_LATENCY_S = 240.0  # about 45 s have been seen; nothing is promised
HISTORY_REACH = timedelta(days=7) - timedelta(minutes=1)  # beyond seven days the function fails
CLOCK_SKEW = timedelta(seconds=30)  # between the clocks of workers and server

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  naive UTC, as the tables have it
_MS = timedelta(milliseconds=1)
_NAME = re.compile(r"'(?:[^'\\]|''|\\.)*'|(?P<quoted>\"(?:[^\"]|\"\")+\")|(?P<word>[A-Za-z_][\w$]*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrichmentScope:
    """Which statements of a scenario are looked for."""

    transactions: frozenset[str]  # never: the log has one row for several statements, with the id of the last
    hybrid: frozenset[str]  # touch only hybrid tables
    hybrid_too: bool  # look for those as well

    @property
    def skipped(self) -> frozenset[str]:
        return self.transactions if self.hybrid_too else self.transactions | self.hybrid


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySlice:
    """A span of end times, in epoch milliseconds, both ends included."""

    start_ms: int
    end_ms: int

    def halves(self) -> tuple[HistorySlice, ...]:
        """The newer and the older; nothing when it is a millisecond already. They share their middle: times are finer
        than milliseconds."""
        if self.end_ms - self.start_ms <= 1:
            return ()
        middle_ms = (self.start_ms + self.end_ms) // 2
        return HistorySlice(start_ms=middle_ms, end_ms=self.end_ms), HistorySlice(
            start_ms=self.start_ms, end_ms=middle_ms
        )

    @property
    def start(self) -> datetime:
        return (_EPOCH + self.start_ms * _MS).replace(tzinfo=UTC)

    @property
    def end(self) -> datetime:
        return (_EPOCH + self.end_ms * _MS).replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPage:
    """What the history shows of a slice: statements by query id, among all that it has there."""

    found: Mapping[str, ServerTimes]
    seen: int

    @property
    def is_full(self) -> bool:
        return self.seen >= ROWS_MAX


def enrichment_scope(scenario: Scenario, enabled: EnrichmentMode) -> EnrichmentScope:
    statements = scenario.workload.statements
    transactions = frozenset(statement.name for statement in statements if statement.transaction)
    kinds = {QualifiedName.parse(table.name).parts[-1].name: table.type for table in scenario.prepare.tables}
    hybrid = frozenset(statement.name for statement in statements if _only_hybrid(statement, kinds))
    return EnrichmentScope(
        transactions=transactions, hybrid=hybrid - transactions, hybrid_too=enabled is EnrichmentMode.ON
    )


def history_span(rows: Sequence[PendingExecution], now: datetime) -> HistorySlice | None:
    """When the statements may have ended by the server's clock; None: longer ago than the history reaches."""
    if not rows:
        return None
    first = max(min(row.start_time for row in rows) - CLOCK_SKEW, now - HISTORY_REACH)
    last = min(max(map(_ended, rows)) + CLOCK_SKEW, now)
    if last <= first:
        return None
    return HistorySlice(start_ms=(first - _EPOCH) // _MS, end_ms=-((_EPOCH - last) // _MS))


def search_history(
    wanted: frozenset[str],
    span: HistorySlice | None,
    read: Callable[[HistorySlice], HistoryPage],
    is_over: Callable[[], bool],
) -> tuple[dict[str, ServerTimes], bool]:
    """What the history has of the wanted statements, oldest slice first, and whether it was seen whole."""
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
    """What changes, after a look at the history. `complete`: nothing that it has was kept from us."""
    return tuple(
        EnrichmentUpdate(execution_id=row.execution_id, status=status, times=times)
        for row in rows
        for status, times in [_verdict(row, found.get(row.query_id), now, latency_s, complete=complete)]
        if status is not row.status
    )


def count_not_due(
    rows: Sequence[PendingExecution], found: Mapping[str, ServerTimes], now: datetime, latency_s: float
) -> int:
    """How many were not found and are too fresh to be missed."""
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
    """Judged by the names in its text: of tables that the scenario makes, it must name hybrid ones only."""
    named = {kinds[name] for query in statement.queries for name in _names(query.sql) if name in kinds}
    return named == {TableType.HYBRID}


def _names(sql: str) -> Iterator[str]:
    for match in _NAME.finditer(sql):
        if match["word"]:
            yield match["word"].upper()
        elif match["quoted"]:
            yield match["quoted"][1:-1].replace('""', '"')
