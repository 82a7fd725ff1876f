"""A comparison as JSON data, version 1: the contract for scripts. Pure.

`change`, `low` and `high` are shares (0.1 is 10 % more), of an error rate differences of shares; null where there is no
bound, or nothing can be said. `metrics` holds one entry per metric and statement; `statement` null: all together. Keys
of `configuration` are those of a scenario file; what only one of the runs has is null in the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from loadgen.rules.bootstrap import CONFIDENCE
from loadgen.rules.comparability import Measure, SettingDifference
from loadgen.rules.comparison import Comparison, MeasuredRun, MetricChange

SCHEMA_VERSION = 1
NOT_COMPARABLE = "not comparable"
NOT_COMPARABLE_EXIT = 2

_UNITS = {Measure.QPS: "1/s", Measure.ERROR_RATE: "share", Measure.MAX_CONCURRENCY: "connections"}


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": comparison.verdict.value,
        "exit_code": comparison.exit_code,
        "reason": comparison.reason,
        "a": _run(comparison.a),
        "b": _run(comparison.b),
        "configuration": configuration_data(comparison.configuration),
        "confidence": CONFIDENCE,
        "comparisons": comparison.comparisons,
        "only_in_a": list(comparison.unmatched[0]),
        "only_in_b": list(comparison.unmatched[1]),
        "metrics": [_change(change) for change in comparison.changes],
    }


def refusal_data(
    a: str, b: str, reasons: Sequence[str], hint: str, configuration: Sequence[SettingDifference]
) -> dict[str, Any]:
    """In its place when two runs cannot be compared."""
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": NOT_COMPARABLE,
        "exit_code": NOT_COMPARABLE_EXIT,
        "reason": "; ".join(reasons),
        "reasons": list(reasons),
        "hint": hint,
        "a": {"run_id": a},
        "b": {"run_id": b},
        "configuration": configuration_data(configuration),
        "metrics": [],
    }


def configuration_data(configuration: Sequence[SettingDifference]) -> list[dict[str, Any]]:
    return [
        {"key": one.key, "a": one.a, "b": one.b, "matters": one.matters, "varied": one.varied} for one in configuration
    ]


def _run(run: MeasuredRun) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "scenario": run.scenario,
        "started_at": run.started_at,
        "measured_seconds": round(run.merged.seconds, 6),
        "compared_seconds": len(run.series),
    }


def _change(change: MetricChange) -> dict[str, Any]:
    span = change.span
    return {
        "statement": change.statement,
        "metric": change.measure.value,
        "unit": _UNITS.get(change.measure, "ms"),
        "a": _number(change.a),
        "b": _number(change.b),
        "a_at_least": change.at_least[0],
        "b_at_least": change.at_least[1],
        "change": None if span is None else _number(span.point),
        "low": None if span is None else _number(span.low),
        "high": None if span is None else _number(span.high),
        "limit": change.limit,
        "verdict": change.verdict.value,
        "counts": change.counts,
        "certain": change.certain,
        "why": change.why,
    }


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 6)
