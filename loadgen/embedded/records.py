"""From PostgreSQL's records to a statement's result."""

from __future__ import annotations

from typing import Any

import asyncpg
import orjson

from loadgen.embedded.json_format import format_json
from loadgen.embedded.result import StatementResult
from loadgen.embedded.result_memory import Charge, ResultMemory, ResultSize
from loadgen.embedded.sql_errors import SqlError
from loadgen.embedded.sql_types import NUMBER, SnowflakeType, padded
from loadgen.embedded.threads import in_thread
from loadgen.embedded.translate.planner import StatementPlan, rowtype

JSON_CHARACTERS_AT_ONCE = 16_384  # of the semi-structured values of one result; more are formatted by a thread


async def result_of(
    plan: StatementPlan, records: list[asyncpg.Record], charge: Charge | None, memory: ResultMemory
) -> StatementResult:
    """The result of a query. A large one is made by a thread: others are served meanwhile."""
    size = ResultSize(memory, charge)
    try:
        if charge is None and (not plan.json_columns or _json_characters(plan, records) <= JSON_CHARACTERS_AT_ONCE):
            result = selected(plan, records, size)
        else:
            result = await in_thread(lambda: selected(plan, records, size), "large-result")
    except BaseException:
        if size.charge is not None:
            size.charge.give_back()
        raise
    result.charge = size.charge
    return result


def _json_characters(plan: StatementPlan, records: list[asyncpg.Record]) -> int:
    return sum(len(record[index] or "") for record in records for index in plan.json_columns)


def selected(plan: StatementPlan, records: list[asyncpg.Record], size: ResultSize) -> StatementResult:
    rows: list[list[Any]] = [list(record)[:-1] if plan.last_hidden else list(record) for record in records]
    for index, convert in plan.converters:
        for row in rows:
            if row[index] is not None:
                row[index] = convert(row[index])
    for index in plan.json_columns:
        for row in rows:
            if row[index] is not None:
                row[index] = format_json(row[index], size)
    assert plan.rowtype is not None
    described: orjson.Fragment = _scaled(plan, rows) or plan.rowtype
    return StatementResult(described, rows, plan.statement_type, len(rows))


def changed(plan: StatementPlan, records: list[asyncpg.Record], status: str) -> StatementResult:
    assert plan.rowtype is not None
    if records:  # MERGE, and UPDATE with FROM, count for themselves
        counts = [str(value) for value in records[0]]
        changed_rows = sum(map(int, counts)) if plan.kind == "MERGE" else int(counts[0])
        return StatementResult(plan.rowtype, [counts], plan.statement_type, changed_rows)
    count = status.rsplit(" ", 1)[-1]
    row = [count, "0"] if plan.kind == "UPDATE" else [count]
    return StatementResult(plan.rowtype, [row], plan.statement_type, int(count))


DIGITS_MAX = 38


def _digits(text: str) -> int:
    return len(text.partition(".")[0].lstrip("-"))


def _scaled(plan: StatementPlan, rows: list[list[Any]]) -> orjson.Fragment | None:
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
            columns[index] = (name, SnowflakeType("FIXED", precision=38, scale=min(scale, 37)))
            pad = padded(scale)
            for row in rows:
                row[index] = pad(row[index]) if row[index] is not None else None
    return rowtype(plan, columns) if changed else None
