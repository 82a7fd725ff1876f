"""A comparison for people: verdict first, then what differs, then the numbers. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loadgen.log import printable
from loadgen.report import formatting
from loadgen.rules.bootstrap import CONFIDENCE, ConfidenceInterval
from loadgen.rules.comparability import Measure, SettingDifference
from loadgen.rules.comparison import Comparison, MeasuredRun, MetricChange

SHOWN_MAX = 10  # differences
VALUE_MAX = 40  # characters of one; a longer one only "changed"
NAME_MAX = 30
NAMES_SHOWN = 5  # of metrics, in a remark

_HEAD = ("", "A", "B", "change", "95 % interval", "limit", "verdict")
_GIVE_WAY = (("limit",), ("limit", "95 % interval"))  # columns, when the terminal is too narrow for all of them
_NOTE = (
    "* counts toward the verdict. Percentiles are interpolated, and up to 1 % off those of `loadgen runs show`.\n"
    "Two runs show the variation within a run, not from run to run: for that there is `loadgen trend`."
)


def comparison_text(comparison: Comparison, width: int | None = None) -> str:
    """Plain text; its table has at most `width` columns, when that is given and names are short."""
    parts = [
        f"{comparison.verdict.value.upper()}  {printable(comparison.reason, 500)}",
        *(_run(letter, run) for letter, run in (("A", comparison.a), ("B", comparison.b))),
        *_configuration(comparison.configuration),
        "",
        *_table(comparison.changes, width),
        *(f"  {printable(remark, 500)}" for remark in remarks(comparison)),
        "",
        _NOTE,
    ]
    return "\n".join(parts)


def differences_text(configuration: Sequence[SettingDifference], indent: str = "  ") -> str:
    """One line for each, as many as can be read at once."""
    lines = [f"{indent}{said(one)}" for one in configuration[:SHOWN_MAX]]
    if len(configuration) > SHOWN_MAX:
        lines.append(f"{indent}and {len(configuration) - SHOWN_MAX} more; --format json lists all")
    return "\n".join(lines)


def said(one: SettingDifference, sides: tuple[str, str] = ("A", "B")) -> str:
    """load.connections: 8 → 16"""
    key, a, b = printable(one.key, 80), value_text(one.a), value_text(one.b)
    if a is not None and b is not None:
        return f"{key}: {a} → {b}"
    if one.a is not None and one.b is not None:
        return f"{key} changed"
    return f"{key}: only in {sides[one.a is None]}"


def value_text(value: Any, limit: int = VALUE_MAX) -> str | None:
    """The value of a setting as its file would have it; None: it is too much for a line."""
    if value is None:
        return "not set"
    if isinstance(value, Mapping) or (isinstance(value, list) and any(isinstance(one, Mapping) for one in value)):
        return None
    text = " ".join(value.split()) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return None if len(text) > limit else printable(text, limit)


def percent(measure: Measure, value: float) -> str:
    """A change; of shares in percentage points."""
    return f"{100 * value:+.{3 if measure is Measure.ERROR_RATE else 1}f}"


def unit(measure: Measure) -> str:
    return "points" if measure is Measure.ERROR_RATE else "%"


def point(change: MetricChange) -> str:
    return (
        formatting.NONE if change.point is None else f"{percent(change.measure, change.point)} {unit(change.measure)}"
    )


def interval(change: MetricChange) -> str:
    measure, span = change.measure, change.span
    if span is None:
        return "cannot be bounded" if any(change.at_least) else "not enough data"
    match math.isfinite(span.low), math.isfinite(span.high):
        case True, True:
            return f"{percent(measure, span.low)} … {percent(measure, span.high)} {unit(measure)}"
        case True, False:
            return f"at least {percent(measure, span.low)} {unit(measure)}"
        case False, True:
            return f"at most {percent(measure, span.high)} {unit(measure)}"
    return "cannot be bounded"


def verdict(change: MetricChange) -> str:
    return f"{change.verdict.value} (uncorrected)" if change.uncorrected else change.verdict.value


def remarks(comparison: Comparison) -> Iterator[str]:
    """Notes on the numbers, each once."""
    for letter, names in zip("AB", comparison.unmatched, strict=True):
        if names:
            yield f"only in {letter}, not compared: {', '.join(names)}"
    yield from _doubts(comparison.changes)
    if any(change.uncorrected for change in comparison.changes):
        yield (
            "uncorrected: significant alone, not after correction for"
            f" {comparison.comparisons} comparisons (Bonferroni); it may be chance, and does not decide the verdict"
        )
    if any(change.measure is Measure.ERROR_RATE for change in comparison.changes):
        yield "points: percentage points; from 0.1 % to 0.6 % is +0.5 points"


def _doubts(changes: Sequence[MetricChange]) -> Iterator[str]:
    """Why an interval is not known or has no end, with the metrics that this is so for."""
    found: dict[str, list[str]] = {}
    for change in changes:
        if change.why and (change.span is None or not _is_bounded(change.span)):
            name = change.measure.value if change.statement is None else f"{change.statement}.{change.measure}"
            found.setdefault(change.why, []).append(name)
    for why, names in found.items():
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        yield why if len(names) == len(changes) else f"{', '.join(names[:NAMES_SHOWN])}{more}: {why}"


def _is_bounded(span: ConfidenceInterval) -> bool:
    return math.isfinite(span.low) and math.isfinite(span.high)


def _run(letter: str, run: MeasuredRun) -> str:
    started = f", started {run.started_at}" if run.started_at else ""
    return printable(f"  {letter} {run.run_id[:60]}  {run.scenario[:60]}{started}, measured {run.merged.seconds:.0f} s")


def _configuration(configuration: Sequence[SettingDifference]) -> Iterator[str]:
    varied = [one for one in configuration if one.varied]
    noted = [one for one in configuration if not one.varied]
    if not configuration:
        yield "  same scenario, same environment"
    if varied:
        yield f"  compared because of --vary:\n{differences_text(varied, '    ')}"
    if noted:
        yield f"  differs, and is not expected to matter:\n{differences_text(noted, '    ')}"


def _table(changes: Sequence[MetricChange], width: int | None) -> Iterator[str]:
    rows = _rows(changes)
    for left_out in ((), *_GIVE_WAY):
        shown = [column for column, name in enumerate(_HEAD) if name not in left_out]
        lines = formatting.aligned([[row[column] for column in shown] for row in rows], left=(0, len(shown) - 1))
        if width is None or max(map(len, lines)) <= width:
            break
    yield from lines
    if left_out:
        yield f"  not shown, as the terminal is too narrow: {' and '.join(left_out)}"


def _rows(changes: Sequence[MetricChange]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [_HEAD]
    statement: str | None = None
    for change in changes:
        if change.statement != statement:
            statement = change.statement
            rows.append((printable(statement or "", NAME_MAX), *[""] * (len(_HEAD) - 1)))
        rows.append(_row(change))
    return rows


def _row(change: MetricChange) -> tuple[str, ...]:
    mark = "*" if change.counts else " "
    indent = "" if change.statement is None else "  "
    return (
        f"{indent}{mark} {change.measure.value}",
        formatting.value_of(change.measure, change.a, at_least=change.at_least[0]),
        formatting.value_of(change.measure, change.b, at_least=change.at_least[1]),
        point(change),
        interval(change),
        f"{100 * change.limit:g} {unit(change.measure)}",
        verdict(change),
    )


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
        "a": _run_data(comparison.a),
        "b": _run_data(comparison.b),
        "configuration": configuration_data(comparison.configuration),
        "confidence": CONFIDENCE,
        "comparisons": comparison.comparisons,
        "only_in_a": list(comparison.unmatched[0]),
        "only_in_b": list(comparison.unmatched[1]),
        "metrics": [_change_data(change) for change in comparison.changes],
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


def _run_data(run: MeasuredRun) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "scenario": run.scenario,
        "started_at": run.started_at,
        "measured_seconds": round(run.merged.seconds, 6),
        "compared_seconds": len(run.series),
    }


def _change_data(change: MetricChange) -> dict[str, Any]:
    span = change.span
    return {
        "statement": change.statement,
        "metric": change.measure.value,
        "unit": _UNITS.get(change.measure, "ms"),
        "a": formatting.rounded(change.a),
        "b": formatting.rounded(change.b),
        "a_at_least": change.at_least[0],
        "b_at_least": change.at_least[1],
        "change": None if span is None else formatting.rounded(span.point),
        "low": None if span is None else formatting.rounded(span.low),
        "high": None if span is None else formatting.rounded(span.high),
        "limit": change.limit,
        "verdict": change.verdict.value,
        "counts": change.counts,
        "certain": change.certain,
        "why": change.why,
    }
