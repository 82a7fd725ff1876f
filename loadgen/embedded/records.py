"""From PostgreSQL's records to a statement's result."""

from __future__ import annotations

from typing import Any

import asyncpg
import orjson

from loadgen.embedded.failure import SqlError
from loadgen.embedded.plan import Plan, rowtype
from loadgen.embedded.result import Result
from loadgen.embedded.types import NUMBER, SnowType, padded


def selected(plan: Plan, records: list[asyncpg.Record]) -> Result:
    rows: list[list[Any]] = [list(record)[:-1] if plan.last_hidden else list(record) for record in records]
    for index, convert in plan.converters:
        for row in rows:
            if row[index] is not None:
                row[index] = convert(row[index])
    assert plan.rowtype is not None
    described: orjson.Fragment = _scaled(plan, rows) or plan.rowtype
    return Result(described, rows, plan.statement_type, len(rows))


def changed(plan: Plan, records: list[asyncpg.Record], status: str) -> Result:
    assert plan.rowtype is not None
    if records:  # MERGE, and UPDATE with FROM, count for themselves
        counts = [str(value) for value in records[0]]
        changed_rows = sum(map(int, counts)) if plan.kind == "MERGE" else int(counts[0])
        return Result(plan.rowtype, [counts], plan.statement_type, changed_rows)
    count = status.rsplit(" ", 1)[-1]
    row = [count, "0"] if plan.kind == "UPDATE" else [count]
    return Result(plan.rowtype, [row], plan.statement_type, int(count))


DIGITS_MAX = 38


def _digits(text: str) -> int:
    return len(text.partition(".")[0].lstrip("-"))


def _scaled(plan: Plan, rows: list[list[Any]]) -> orjson.Fragment | None:
    """The description with each number's scale, where only the rows tell it: expressions have no declared scale."""
    columns = list(plan.columns)
    changed = False
    for index, (name, kind) in enumerate(columns):
        if kind is not NUMBER:
            continue
        if any(row[index] and len(row[index]) > DIGITS_MAX and _digits(row[index]) > DIGITS_MAX for row in rows):
            raise SqlError(100046, "22003", "Number out of representable range: more than 38 digits")
        scale = max((len(row[index]) - row[index].index(".") - 1 for row in rows if row[index] and "." in row[index]),
                    default=0)  # fmt: skip
        if scale:
            changed = True
            columns[index] = (name, SnowType("FIXED", precision=38, scale=min(scale, 37)))
            pad = padded(scale)
            for row in rows:
                row[index] = pad(row[index]) if row[index] is not None else None
    return rowtype(plan, columns) if changed else None
