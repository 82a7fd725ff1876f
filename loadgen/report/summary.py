"""summary.json: the result of a run, and the contract for scripts. Schema version 1. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from loadgen.metrics.histogram import EMPTY, Histogram
from loadgen.metrics.percentile import PERCENTILES, Quantile, is_supported, maximum, mean, quantile
from loadgen.metrics.stalls import stalls_document
from loadgen.metrics.tally import StatementTally
from loadgen.metrics.window import MergedWindows
from loadgen.model.capture import Replay
from loadgen.model.counts import UserSessionCounts
from loadgen.model.run import RowEnrichment
from loadgen.model.workload import Statement, StatementKind
from loadgen.report.run_replay import replay_document
from loadgen.rules.client_health import ClientHealth
from loadgen.rules.enrichment import (
    SERVER_TIME_KINDS,
    EnrichmentResult,
    ServerTimeBreakdown,
    ServerTimeStats,
)
from loadgen.rules.thresholds import Checked
from loadgen.rules.validity import Delivered, verdict_of
from loadgen.units import NS_PER_MS
from loadgen.values import dataclass

SCHEMA_VERSION = 1
_UNSTORED = "not stored yet: "

_CLIENT = (
    *("cpu_percent_of_core", "worst_minute_cpu_percent", "wakeup_mean_ms", "wakeup_p99_ms"),
    *("gap_percent", "paused_percent"),
)
# The order of keys at every level of the document; other keys follow in alphabetical order.
_ORDER = (
    *("schema_version", "run_id", "scenario", "worker_id", "status", "verdict", "exit_code", "exit_reason"),
    *("validity", "valid", "reasons", "started_at", "stage", "name", "starts_s", "measured_seconds", "connections"),
    *("rate", "workers", "totals"),
    *("statement", "category", "code", "count", "example", "check", "value", "passed"),
    *("max_concurrency", "result", "step", "target", "outcome", "reason", "failed_at", "failed_outcome"),
    *("limited_at", "seconds"),
    *("scheduled", "skipped", "succeeded", "failed", "cancelled", "reads", "writes", "qps", "error_rate"),
    *(*PERCENTILES, "avg", "min", "max", "at_least", "cut_off"),
    *(
        "rows_avg",
        "p95_ms",
        "latency_ms",
        "service_ms",
        "lag_ms",
        "statements",
        "stages",
        "errors",
        "thresholds",
        "find_max",
    ),
    *("planned_connection_seconds", "delivered_connection_seconds", "logging_in_connection_seconds"),
    *("planned_arrivals", "sent_arrivals", "overload_arrivals", "fraction", "by_worker", "by_window", "step_id"),
    *("worker_results", "delivered", "stalls", "longest_ms", "total_ms", "spans_s", *_CLIENT),
    *("others_cores", "stolen_cores", "overhead_ms", "saturated", "client"),
    *("opened", "reopened", "refused", "last_refused", "last_lost", "at", "second", "slot", "text"),
    *("created", "expired", "current", "sessions"),
    *("capture", "speed", "users", "kept_sessions", "pseudonyms", "client_lag_avg_ms"),
    *("history", "captured", "left_out", "unrecorded", "due", "limit_ms", "sent_late", "by_client", "recorded_failed"),
    *("recorded", "replayed", "slower_ms", "coverage", "late", "new_errors"),
    *("compared", "replay"),
    *("confidence", "low_confidence", "decisive_step", "steps", "environment", "enrichment"),
)
_PLACES = {key: place for place, key in enumerate(_ORDER)}
_FRACTIONS = {
    *("measured_seconds", "seconds", "value", "qps", "error_rate", "p95_ms", *PERCENTILES, "avg", "min", "max"),
    *("rate", "starts_s", "window_seconds"),
    *(*_CLIENT, "others_cores", "stolen_cores", "overhead_ms"),
    *("planned_connection_seconds", "delivered_connection_seconds", "logging_in_connection_seconds", "fraction"),
    *("second", "longest_ms", "total_ms", "speed", "slower_ms", "client_lag_avg_ms", "rows_avg"),
    "limit_ms",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerResult:
    """The result of one worker."""

    worker_id: str
    status: str
    succeeded: int
    failed: int
    qps: float
    cpu_percent_of_core: float | None = None
    wakeup_p99_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """The measurements of one stage of the load, over all workers."""

    number: int  # from 1
    name: str
    starts_s: float  # since the start of the run
    connections: int | None  # of a closed loop
    rate_per_second: float | None  # of an open loop
    merged: MergedWindows


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The input of a summary."""

    run_id: str
    scenario: str
    status: str
    started_at: str | None
    connections: int
    statements: Sequence[Statement]
    merged: MergedWindows
    invalid: Sequence[str]
    checked: Sequence[Checked]
    client: ClientHealth
    workers: Sequence[WorkerResult]
    reason: str = ""
    open_loop: bool = False
    stages: Sequence[StageResult] = ()
    find_max: Mapping[str, Any] | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    enrichment: Mapping[str, Any] = field(default_factory=dict)
    overhead_ms: float | None = None  # median of the time that the client adds to the time of the server
    signal: int | None = None  # the signal that ended the run
    sessions: UserSessionCounts | None = None  # of logical users; None: the scenario has none
    delivered: Delivered | None = None  # None: the planned load is not known
    logins: Mapping[str, Any] | None = None  # of load connections; None: not reported
    unstored: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # rows in spools, by worker and kind
    replay: Replay | None = None  # None: another mode
    aborted: bool = False  # a threshold ended the run before its plan was carried out


def summarize(facts: RunFacts) -> dict[str, Any]:
    """The document."""
    verdict, exit_code, reason = verdict_of(facts)
    merged = facts.merged
    document = {
        "schema_version": SCHEMA_VERSION,
        "run_id": facts.run_id,
        "scenario": facts.scenario,
        "status": facts.status,
        "verdict": verdict.value,
        "exit_code": exit_code,
        "exit_reason": reason,
        "validity": {"valid": not facts.invalid, "reasons": list(facts.invalid)},
        "started_at": facts.started_at,
        "measured_seconds": round(merged.seconds, 6),
        "connections": facts.connections,
        "workers": len(facts.workers),
        "totals": _totals(facts),
        **_times(merged.tally.whole, open_loop=facts.open_loop),
        "statements": _statements(merged),
        "stages": [_stage(stage) for stage in facts.stages],
        "errors": _errors(merged),
        "thresholds": [
            {
                "check": checked.check,
                "value": _rounded(checked.value),
                "passed": checked.passed,
                **({"at_least": True} if checked.at_least else {}),
                **({"at_most": True} if checked.at_most else {}),
                **({"too_few_samples": True} if checked.too_few else {}),
                **({"not_measured": True} if checked.unmeasured else {}),
                **({"default": True} if checked.default else {}),
                **({} if checked.window_s is None else {"window_seconds": checked.window_s}),
            }
            for checked in facts.checked
        ],
        **({"aborted": True} if facts.aborted else {}),
        "find_max": facts.find_max,
        "worker_results": [_worker(worker) for worker in facts.workers],
        "delivered": None if facts.delivered is None else facts.delivered.document(),
        "stalls": stalls_document(merged.stalls),
        "client": _client(facts),
        **({} if facts.sessions is None else {"sessions": facts.sessions.document()}),
        **({} if facts.replay is None else {"replay": _replay(facts, facts.replay)}),
        "environment": dict(facts.environment),
        "enrichment": dict(facts.enrichment),
    }
    ordered = in_order(document, [statement.name for statement in facts.statements])
    return with_unstored(ordered, facts.unstored)


def with_unstored(summary: Mapping[str, Any], unstored: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """The document with the rows that are not stored yet, by process; without such rows it has no key `unstored`."""
    amended = {key: value for key, value in summary.items() if key != "unstored"}
    warnings = [one for one in summary["environment"].get("warnings") or () if not one.startswith(_UNSTORED)]
    if unstored:
        amended["unstored"] = {process: dict(rows) for process, rows in sorted(unstored.items())}
        parts = [f"{process} {describe_rows(rows)}" for process, rows in amended["unstored"].items()]
        how = f"`loadgen upload {summary['run_id']}` stores them (with the --output-dir of the run)"
        warnings.append(f"{_UNSTORED}{'; '.join(parts)}: {how}")
    if warnings or "warnings" in summary["environment"]:
        amended["environment"] = {**summary["environment"], "warnings": warnings}
    return amended


def describe_rows(rows: Mapping[str, int]) -> str:
    """The number of rows of each kind, as text."""
    named = ((count, kind.replace("_", " ")) for kind, count in rows.items())
    return ", ".join(f"{count:,} {kind if count == 1 else f'{kind}s'}" for count, kind in named)


def in_order(document: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The document with its keys in the defined order, and statements in the order of the scenario. A VARIANT column
    returns keys in another order, and 20 for 20.0."""
    measured = document["statements"]
    known = [name for name in names if name in measured]
    statements = {name: _in_order(measured[name]) for name in (*known, *sorted(set(measured) - set(known)))}
    return {key: statements if key == "statements" else value for key, value in _in_order(document).items()}


def _in_order(value: Any, key: str = "") -> Any:
    if isinstance(value, Mapping):
        keys = sorted(value, key=lambda inner: (_PLACES.get(inner, len(_PLACES)), inner))
        return {inner: _in_order(value[inner], inner) for inner in keys}
    if isinstance(value, (list, tuple)):
        return [_in_order(one) for one in value]
    return float(value) if key in _FRACTIONS and isinstance(value, int) else value


def _totals(facts: RunFacts) -> dict[str, Any]:
    counts = facts.merged.counts
    reads, writes = _reads_and_writes(facts)
    return {
        "scheduled": counts.scheduled,
        "skipped": counts.skipped,
        "succeeded": counts.succeeded,
        "failed": counts.failed,
        "cancelled": counts.cancelled,
        "reads": reads,
        "writes": writes,
        "qps": round(facts.merged.qps, 3),
        "error_rate": counts.error_rate or 0.0,
    }


def _times(whole: StatementTally, *, open_loop: bool) -> dict[str, Any]:
    """Response, service and lag times. In a closed loop, service times equal response times, and there is no lag."""
    response = latency_ms(whole)
    if not open_loop:
        return {"latency_ms": response, "service_ms": response, "lag_ms": {}}
    return {"latency_ms": response, "service_ms": _times_ms(*whole.services), "lag_ms": lag_ms(whole)}


def _statements(merged: MergedWindows) -> dict[str, Any]:
    return {
        name: {
            "succeeded": tally.ended.succeeded,
            "failed": tally.ended.failed,
            "qps": round(merged.statement_qps.get(name, 0.0), 3),
            "latency_ms": latency_ms(tally),
        }
        for name, tally in merged.tally.statements.items()
    }


def _replay(facts: RunFacts, replay: Replay) -> dict[str, Any]:
    service_ms = {name: _times_ms(*tally.services) for name, tally in facts.merged.tally.statements.items()}
    document = replay_document(replay, [one.name for one in facts.statements], facts.merged, service_ms)
    return document | {"client_lag_avg_ms": _rounded(facts.client.sent_late_mean_ms)}


def _errors(merged: MergedWindows) -> list[dict[str, Any]]:
    """Errors, most frequent first. Statement None: further kinds of errors, which are not kept by statement."""
    found = [
        {
            "statement": key.statement,
            "category": key.category.value,
            "code": key.code,
            "count": group.count,
            "example": group.example,
        }
        for key, group in merged.tally.errors.items()
    ]
    return sorted(found, key=lambda one: (-one["count"], one["category"], one["code"] or 0, one["statement"] or ""))


def _stage(stage: StageResult) -> dict[str, Any]:
    counts = stage.merged.counts
    return {
        "stage": stage.number,
        "name": stage.name,
        "starts_s": round(stage.starts_s, 3),
        "measured_seconds": round(stage.merged.seconds, 6),
        "connections": stage.connections,
        "rate": stage.rate_per_second,
        **{name: getattr(counts, name) for name in ("scheduled", "skipped", "succeeded", "failed", "cancelled")},
        "qps": round(stage.merged.qps, 3),
        "error_rate": counts.error_rate or 0.0,
        "latency_ms": latency_ms(stage.merged.tally.whole),
    }


def _client(facts: RunFacts) -> dict[str, Any]:
    return {
        "cpu_percent_of_core": _rounded(facts.client.cpu_percent_of_core),
        "worst_minute_cpu_percent": _rounded(facts.client.worst_cpu_percent),
        "wakeup_mean_ms": _rounded(facts.client.wakeup_mean_ms),
        "wakeup_p99_ms": _rounded(facts.client.wakeup_p99_ms),
        "gap_percent": _rounded(facts.client.gap_percent),
        "paused_percent": _rounded(facts.client.paused_percent),
        "client_lag_avg_ms": _rounded(facts.client.sent_late_mean_ms),
        "others_cores": _rounded(facts.client.others_cores),
        "stolen_cores": _rounded(facts.client.stolen_cores),
        "overhead_ms": _rounded(facts.overhead_ms),
        "saturated": facts.client.saturated,
        "connections": None if facts.logins is None else dict(facts.logins),
    }


def latency_ms(tally: StatementTally) -> dict[str, Any]:
    """Response times; None if there are too few samples. `at_least` lists lower bounds. `cut_off` counts samples
    without an end: statements that timed out, were cancelled, or were never sent."""
    return _times_ms(*tally.responses)


def lag_ms(tally: StatementTally) -> dict[str, Any]:
    """The lag of an open loop. An arrival that was never sent is at least as late as it was old."""
    return _times_ms(tally.lag, tally.unsent)


def _times_ms(times: Histogram, cut_off: Histogram = EMPTY) -> dict[str, Any]:
    found = {name: quantile(per_mille, times, cut_off) for name, per_mille in PERCENTILES.items()}
    found |= {"avg": mean(times, cut_off), "max": maximum(times, cut_off)}
    values: dict[str, Any] = {name: _ms(known) for name, known in found.items()}
    values["min"] = _rounded(times.min_ns / NS_PER_MS) if times.count else None
    at_least = [name for name, known in found.items() if known is not None and known.at_least]
    values |= {"at_least": at_least} if at_least else {}
    return values | ({"cut_off": cut_off.count} if cut_off.count else {})


def _reads_and_writes(facts: RunFacts) -> tuple[int, int]:
    kinds = {statement.name: statement.kind for statement in facts.statements}
    reads = writes = 0
    for name, tally in facts.merged.tally.statements.items():
        tried = tally.ended.succeeded + tally.ended.failed
        if kinds.get(name) is StatementKind.READ:
            reads += tried
        else:
            writes += tried
    return reads, writes


def _worker(worker: WorkerResult) -> dict[str, Any]:
    return {
        "worker_id": worker.worker_id,
        "status": worker.status,
        "succeeded": worker.succeeded,
        "failed": worker.failed,
        "qps": round(worker.qps, 3),
        "cpu_percent_of_core": _rounded(worker.cpu_percent_of_core),
        "wakeup_p99_ms": _rounded(worker.wakeup_p99_ms),
    }


def _ms(known: Quantile | None) -> float | None:
    return None if known is None else _rounded(known.value_ns / NS_PER_MS)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def enrichment_document(result: EnrichmentResult) -> dict[str, Any]:
    """The part `enrichment` of summary.json, which `loadgen enrich --format json` prints too."""
    coverage = result.coverage_percent
    return {
        "status": result.status.value,
        "coverage_percent": None if coverage is None else round(coverage, 3),
        "total": result.total,
        **{status.value.lower(): result.counts.get(status, 0) for status in RowEnrichment},
        **({"dropped": result.dropped} if result.dropped else {}),
        "reason": "; ".join(result.reasons) or None,
        "ledger_ms": {} if result.ledger is None else _ledger(result.ledger),
        "ledger_samples": 0 if result.ledger is None else result.ledger.samples,
    }


def with_enrichment(summary: Mapping[str, Any], result: EnrichmentResult) -> dict[str, Any]:
    """The summary with the current enrichment, its keys in the defined order."""
    client = {**summary["client"], "overhead_ms": result.overhead_ms}
    return {**summary, "client": client, "enrichment": _in_order(enrichment_document(result))}


def _ledger(ledger: ServerTimeBreakdown) -> dict[str, Any]:
    return {name: _part(ledger.parts[name], ledger.samples) for name in SERVER_TIME_KINDS if name in ledger.parts}


def _part(part: ServerTimeStats, samples: int) -> dict[str, float | None]:
    """The statistics of a part; percentiles with too few samples are None."""
    stated = {"p50": part.p50_ms, "p95": part.p95_ms}
    return {
        "mean": round(part.mean_ms, 6),
        **{
            name: round(value, 6) if is_supported(PERCENTILES[name], samples) else None
            for name, value in stated.items()
        },
    }
