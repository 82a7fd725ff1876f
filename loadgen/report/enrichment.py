"""The `enrichment` part of summary.json: how many logged statements have the server's times, why not all, and where
they spent their time. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.control.tables.query_executions import (
    SERVER_TIME_KINDS,
    EnrichmentCount,
    ServerTimeBreakdown,
    ServerTimeStats,
)
from loadgen.errors import LoadgenError
from loadgen.metrics.percentile import PERCENTILES, is_supported
from loadgen.model.run import RowEnrichment, RunEnrichment


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrichmentResult:
    """How far the enrichment of a run has come."""

    run_id: str
    status: RunEnrichment
    counts: Mapping[RowEnrichment, int]
    reasons: tuple[str, ...] = ()  # why not every statement is enriched
    ledger: ServerTimeBreakdown | None = None
    error: LoadgenError | None = None  # why the history could not be read

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def coverage_percent(self) -> float | None:
        """None: nothing was logged."""
        total = self.total
        return 100.0 * self.counts.get(RowEnrichment.ENRICHED, 0) / total if total else None

    @property
    def overhead_ms(self) -> float | None:
        """For client.overhead_ms: the median of client service time less server time, of the same statements."""
        return None if self.ledger is None else round(self.ledger.overhead_ms, 6)


def counts_of(tally: Sequence[EnrichmentCount]) -> dict[RowEnrichment, int]:
    return {status: sum(row.count for row in tally if row.status is status) for status in RowEnrichment}


def status_of(counts: Mapping[RowEnrichment, int]) -> RunEnrichment:
    """What the rows say of the run."""
    if counts[RowEnrichment.PENDING]:
        return RunEnrichment.PENDING
    if counts[RowEnrichment.NOT_FOUND] or counts[RowEnrichment.FAILED]:
        return RunEnrichment.PARTIAL
    return RunEnrichment.ENRICHED if counts[RowEnrichment.ENRICHED] else RunEnrichment.SKIPPED


def reasons_of(
    tally: Sequence[EnrichmentCount], *, transactions: frozenset[str], hybrid: frozenset[str]
) -> tuple[str, ...]:
    """Why not every logged statement is enriched, most definite first."""
    return tuple(f"{count:,} {why}" for count, why in _reasons(tally, transactions, hybrid) if count) or (
        () if tally else ("the query log kept no statement",)
    )


def _reasons(
    tally: Sequence[EnrichmentCount], transactions: frozenset[str], hybrid: frozenset[str]
) -> Iterator[tuple[int, str]]:
    skipped = [row for row in tally if row.status is RowEnrichment.SKIPPED]
    known = [row for row in skipped if row.identified]
    missing = [row for row in tally if row.status is RowEnrichment.NOT_FOUND]
    yield _sum(row for row in skipped if not row.identified), "got no query id: the connection failed"
    yield (
        _sum(row for row in known if row.statement_name in transactions),
        "are transactions, which the history has only statement by statement",
    )
    yield (
        _sum(row for row in known if row.statement_name in hybrid),
        "touch only hybrid tables: Snowflake keeps no row of short ones (it counts them in AGGREGATE_QUERY_HISTORY,"
        " hours later)",
    )
    yield (
        _sum(row for row in known if row.statement_name not in transactions | hybrid),
        "ended longer ago than the 7 days that the history reaches back",
    )
    yield (
        _sum(row for row in missing if row.statement_name in hybrid),
        "touch only hybrid tables and are not in the history, which keeps the slow ones of their kind: the times"
        " below are not typical",
    )
    yield (
        _sum(row for row in missing if row.statement_name not in hybrid),
        "are not in the history; it keeps no row of short statements that touch only hybrid tables",
    )
    yield _sum(row for row in tally if row.status is RowEnrichment.FAILED), "are in the history without times"
    yield _sum(row for row in tally if row.status is RowEnrichment.PENDING), "may still appear in the history"


def enrichment_document(result: EnrichmentResult) -> dict[str, Any]:
    """summary.json's `enrichment`, also what `loadgen enrich --format json` prints."""
    coverage = result.coverage_percent
    return {
        "status": result.status.value,
        "coverage_percent": None if coverage is None else round(coverage, 3),
        "total": result.total,
        **{status.value.lower(): result.counts.get(status, 0) for status in RowEnrichment},
        "reason": "; ".join(result.reasons) or None,
        "ledger_ms": {} if result.ledger is None else _ledger(result.ledger),
        "ledger_samples": 0 if result.ledger is None else result.ledger.samples,
    }


def with_enrichment(summary: Mapping[str, Any], result: EnrichmentResult) -> dict[str, Any]:
    """A summary.json with its enrichment as it is now."""
    client = {**summary["client"], "overhead_ms": result.overhead_ms}
    return {**summary, "client": client, "enrichment": enrichment_document(result)}


def _ledger(ledger: ServerTimeBreakdown) -> dict[str, Any]:
    return {name: _part(ledger.parts[name], ledger.samples) for name in SERVER_TIME_KINDS if name in ledger.parts}


def _part(part: ServerTimeStats, samples: int) -> dict[str, float | None]:
    """Percentiles that so few samples cannot support are None."""
    stated = {"p50": part.p50_ms, "p95": part.p95_ms}
    return {
        "mean": round(part.mean_ms, 6),
        **{
            name: round(value, 6) if is_supported(PERCENTILES[name], samples) else None
            for name, value in stated.items()
        },
    }


def _sum(rows: Iterator[EnrichmentCount]) -> int:
    return sum(row.count for row in rows)
