"""A comparison for people: verdict first, then what differs, then the numbers. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from loadgen.log import plain
from loadgen.report.bootstrap import Span
from loadgen.report.compare import Change, Comparison, Measured, Verdict
from loadgen.report.likeness import Difference
from loadgen.report.limits import Measure

SHOWN_MAX = 20  # differences
VALUE_MAX = 60  # characters of one
NAME_MAX = 30

_HEAD = ("", "A", "B", "change", "95 % interval", "limit", "verdict")
_NOTE = (
    "* counts toward the verdict. Percentiles are interpolated, and up to 1 % off those of `loadgen runs show`.\n"
    "Two runs show how much seconds differ, not how much nights do."
)


def comparison_text(comparison: Comparison) -> str:
    """Plain text of at most 100 columns, as long as names are short."""
    parts = [
        f"{comparison.verdict.value.upper()}  {_line(comparison.reason, 500)}",
        *(_run(letter, run) for letter, run in (("A", comparison.a), ("B", comparison.b))),
        *_configuration(comparison.configuration),
        "",
        _table(comparison.changes),
        *_doubts(comparison.changes),
        "",
        _NOTE,
    ]
    return "\n".join(parts)


def differences_text(configuration: Sequence[Difference]) -> str:
    """One line for each."""
    lines = [f"  {_line(one.key, 80)}: {_value(one.a)} → {_value(one.b)}" for one in configuration[:SHOWN_MAX]]
    if len(configuration) > SHOWN_MAX:
        lines.append(f"  and {len(configuration) - SHOWN_MAX} more")
    return "\n".join(lines)


def amount(measure: Measure, value: float | None) -> str:
    if value is None:
        return "-"
    if measure is Measure.ERROR_RATE:
        return f"{100 * value:.3f} %"
    return f"{value:,.0f}" if measure is Measure.MAX_CONCURRENCY else f"{value:,.2f}"


def percent(measure: Measure, value: float) -> str:
    """A change; of shares in percentage points."""
    digits = 3 if measure is Measure.ERROR_RATE else 1
    return "∞" if math.isinf(value) else f"{100 * value:+.{digits}f}"


def unit(measure: Measure) -> str:
    return "pt" if measure is Measure.ERROR_RATE else "%"


def interval(measure: Measure, span: Span | None) -> str:
    return "-" if span is None else f"{percent(measure, span.low)} … {percent(measure, span.high)} {unit(measure)}"


def _run(letter: str, run: Measured) -> str:
    started = f", started {run.started_at}" if run.started_at else ""
    return (
        f"  {letter} {_line(run.run_id, 60)}  {_line(run.scenario, 60)}{started}, measured {run.merged.seconds:.0f} s"
    )


def _configuration(configuration: Sequence[Difference]) -> Iterator[str]:
    varied = [one for one in configuration if one.varied]
    noted = [one for one in configuration if not one.varied]
    if not configuration:
        yield "  same scenario, same surroundings"
    if varied:
        yield f"  compared because of --vary:\n{differences_text(varied)}"
    if noted:
        yield f"  differs, and is not expected to matter:\n{differences_text(noted)}"


def _table(changes: Sequence[Change]) -> str:
    rows: list[tuple[str, ...]] = [_HEAD]
    statement: str | None = None
    for change in changes:
        if change.statement != statement:
            statement = change.statement
            rows.append((_line(statement or "", NAME_MAX), *[""] * (len(_HEAD) - 1)))
        rows.append(_row(change))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    return "\n".join(
        "  ".join(
            f"{cell:<{width}}" if number in (0, len(_HEAD) - 1) else f"{cell:>{width}}"
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _row(change: Change) -> tuple[str, ...]:
    mark = "*" if change.counts else " "
    indent = "" if change.statement is None else "  "
    doubt = " (alone)" if change.verdict in (Verdict.WORSE, Verdict.BETTER) and not change.certain else ""
    point = "-" if change.span is None else f"{percent(change.measure, change.span.point)} {unit(change.measure)}"
    return (
        f"{indent}{mark} {change.measure.value}",
        amount(change.measure, change.a),
        amount(change.measure, change.b),
        point,
        interval(change.measure, change.span),
        f"{100 * change.limit:g} {unit(change.measure)}",
        f"{change.verdict.value}{doubt}",
    )


def _doubts(changes: Sequence[Change]) -> Iterator[str]:
    """Why nothing could be said, once per reason; and what "alone" means."""
    yield from dict.fromkeys(f"  {change.why}" for change in changes if change.span is None and change.why)
    if any(change.verdict in (Verdict.WORSE, Verdict.BETTER) and not change.certain for change in changes):
        yield "  (alone): not beyond chance among so many comparisons"


def _value(value: Any) -> str:
    return "not set" if value is None else _line(str(value), VALUE_MAX)


def _line(text: str, limit: int) -> str:
    return plain(" ".join(text.split()), limit)
