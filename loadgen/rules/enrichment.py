"""How many logged statements have the server's times, why not all, and where the time went. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from loadgen.errors import LoadgenError
from loadgen.model.run import RowEnrichment, RunEnrichment
from loadgen.units import counted
from loadgen.values import dataclass

SERVER_TIME_KINDS = (
    "total",
    "compile",
    "execution",
    "queued_overload",
    "queued_provisioning",
    "blocked",
)  # of the ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrichmentCount:
    """The number of rows of a statement with a status. Rows without a query id cannot be joined."""

    statement_name: str
    identified: bool
    status: RowEnrichment
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTimeStats:
    """One kind of time over all statements of the ledger."""

    mean_ms: float
    p50_ms: float
    p95_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTimeBreakdown:
    """Where `samples` measured statements spent their time on the server, and what the client added (the median)."""

    samples: int
    overhead_ms: float
    parts: dict[str, ServerTimeStats]  # those of PARTS that the server reported


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrichmentResult:
    """The state of the enrichment of a run."""

    run_id: str
    status: RunEnrichment
    counts: Mapping[RowEnrichment, int]
    dropped: int = 0  # statements that are missing in the query log: beyond max_rows, or it could not be written
    reasons: tuple[str, ...] = ()  # why not every statement is enriched
    ledger: ServerTimeBreakdown | None = None
    error: LoadgenError | None = None  # why the history could not be read

    @property
    def total(self) -> int:
        return sum(self.counts.values()) + self.dropped

    @property
    def coverage_percent(self) -> float | None:
        """Percent of the logged statements that are enriched; None: nothing was logged."""
        total = self.total
        return 100.0 * self.counts.get(RowEnrichment.ENRICHED, 0) / total if total else None

    @property
    def overhead_ms(self) -> float | None:
        """client.overhead_ms: the median of client service time less server time, of the same statements."""
        return None if self.ledger is None else round(self.ledger.overhead_ms, 6)


def counts_of(tally: Sequence[EnrichmentCount]) -> dict[RowEnrichment, int]:
    return {status: sum(row.count for row in tally if row.status is status) for status in RowEnrichment}


def status_of(counts: Mapping[RowEnrichment, int]) -> RunEnrichment:
    """The enrichment status of a run, from the statuses of its rows."""
    if counts[RowEnrichment.PENDING]:
        return RunEnrichment.PENDING
    if counts[RowEnrichment.NOT_FOUND] or counts[RowEnrichment.FAILED]:
        return RunEnrichment.PARTIAL
    return RunEnrichment.ENRICHED if counts[RowEnrichment.ENRICHED] else RunEnrichment.SKIPPED


def reasons_of(
    tally: Sequence[EnrichmentCount], *, transactions: frozenset[str], hybrid: frozenset[str], dropped: int = 0
) -> tuple[str, ...]:
    """Why not every logged statement is enriched; the most certain reasons come first."""
    missing = (dropped, "did not reach the query log: more than query_log.max_rows, or it could not be written")
    return tuple(
        f"{counted(count, 'statement')} {why}"
        for count, why in (missing, *_reasons(tally, transactions, hybrid))
        if count
    ) or (() if tally else ("the query log kept no statement",))


def _reasons(
    tally: Sequence[EnrichmentCount], transactions: frozenset[str], hybrid: frozenset[str]
) -> Iterator[tuple[int, str]]:
    skipped = [row for row in tally if row.status is RowEnrichment.SKIPPED]
    known = [row for row in skipped if row.identified]
    missing = [row for row in tally if row.status is RowEnrichment.NOT_FOUND]
    yield _sum(row for row in skipped if not row.identified), "got no query id: the connection failed"
    yield (
        _sum(row for row in known if row.statement_name in transactions),
        "consisted of several SQL statements (transactions), which the history has one by one",
    )
    yield (
        _sum(row for row in known if row.statement_name in hybrid),
        "touched only hybrid tables: Snowflake keeps no row of short ones (it counts them in AGGREGATE_QUERY_HISTORY,"
        " hours later)",
    )
    yield (
        _sum(row for row in known if row.statement_name not in transactions | hybrid),
        "ended longer ago than the 7 days that the history reaches back",
    )
    yield (
        _sum(row for row in missing if row.statement_name in hybrid),
        "touched only hybrid tables and did not appear in the history, which keeps the slow ones of their kind: the"
        " times below are not typical",
    )
    yield (
        _sum(row for row in missing if row.statement_name not in hybrid),
        "did not appear in the history; it keeps no row of short statements that touch only hybrid tables",
    )
    yield _sum(row for row in tally if row.status is RowEnrichment.FAILED), "appeared in the history without times"
    yield _sum(row for row in tally if row.status is RowEnrichment.PENDING), "may still appear in the history"


def _sum(rows: Iterator[EnrichmentCount]) -> int:
    return sum(row.count for row in rows)
