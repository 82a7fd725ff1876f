"""The `enrichment` part of summary.json. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadgen.metrics.percentile import PERCENTILES, is_supported
from loadgen.model.run import RowEnrichment
from loadgen.rules.enrichment import (
    SERVER_TIME_KINDS,
    EnrichmentResult,
    ServerTimeBreakdown,
    ServerTimeStats,
)


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
