"""Turns PostgreSQL's records into a statement's result."""

from __future__ import annotations

import json
import re
from dataclasses import field
from typing import Any

import asyncpg
import orjson

from loadgen.embedded.result import NUMBER, Charge, ResultMemory, ResultSize, SnowflakeType, StatementResult, padded
from loadgen.embedded.sql_errors import SqlError
from loadgen.embedded.threads import in_thread
from loadgen.embedded.translate.planner import StatementPlan, rowtype
from loadgen.values import dataclass

DEPTH_MAX = 1_000  # each level adds two spaces to every line inside it
COUNTED_AT_ONCE = 1_000  # values
_TOKEN = re.compile(r'\s*([\[\]{},:"]|[^\s\[\]{},:"]+)')


@dataclass(slots=True)
class _Container:
    """An array or object that is being read."""

    opening: str
    closing: str
    values: list[Any] = field(default_factory=list)  # texts, and lists of texts and lists
    keys: list[str] = field(default_factory=list)  # of an object, as JSON strings
    is_leaf: bool = True  # it holds no other non-empty container

    def lines(self, depth: int) -> Any:
        """One text for a leaf, parts otherwise, so that no text is copied once per level."""
        if not self.values:
            return self.opening + self.closing
        newline = "\n" + "  " * depth
        inner = newline + "  "
        values = self._members() if self.opening == "{" else self.values
        if self.is_leaf:
            return f"{self.opening}{inner}{f',{inner}'.join(values)}{newline}{self.closing}"
        parts = [self.opening]
        for value in values:
            parts += (inner if len(parts) == 1 else f",{inner}", value)
        return [*parts, newline, self.closing]

    def _members(self) -> list[Any]:
        pairs = sorted(zip(self.keys, self.values, strict=True), key=lambda pair: _decoded(pair[0]))
        return [f"{key}: {value}" if isinstance(value, str) else [f"{key}: ", value] for key, value in pairs]


def format_json(text: str, size: ResultSize) -> str:
    """Two spaces of indent, keys in order, numbers untouched. `size` raises when the result takes too much memory."""
    root = _Container("", "")
    open_containers = [root]
    inner = root
    position, count, characters = 0, 0, 0
    while (found := _TOKEN.match(text, position)) is not None:
        token, position = found[1], found.end()
        if token in ",:":
            continue
        if token == '"':
            start, position = position - 1, _string_end(text, position)
            token = text[start:position]
        count += 1
        characters += len(token) + 2 * len(open_containers)
        if count >= COUNTED_AT_ONCE:
            size.add(characters, count)
            count = characters = 0
        if token in "[{":
            if len(open_containers) > DEPTH_MAX:
                raise too_deep()
            inner = _Container(token, "]" if token == "[" else "}")
            open_containers.append(inner)
        elif token in "]}":
            closed = open_containers.pop()
            inner = open_containers[-1]
            inner.values.append(closed.lines(len(open_containers) - 1))
            inner.is_leaf = inner.is_leaf and not closed.values
        elif inner.opening == "{" and len(inner.keys) == len(inner.values):
            inner.keys.append(token)
        else:
            inner.values.append(token)
    size.add(characters, count)
    return _joined(root.values)


def too_deep() -> SqlError:
    return SqlError(100069, "22P02", f"Semi-structured value is nested too deeply: the limit is {DEPTH_MAX:,} levels.")


def _string_end(text: str, start: int) -> int:
    """The position after the quote that ends the string whose content begins at `start`."""
    while True:
        quote = text.index('"', start)
        before = quote
        while before > start and text[before - 1] == "\\":
            before -= 1
        start = quote + 1
        if (quote - before) % 2 == 0:
            return start


def _decoded(key: str) -> str:
    return str(json.loads(key)) if "\\" in key else key[1:-1]


def _joined(parts: list[Any]) -> str:
    flat: list[str] = []
    open_lists = [iter(parts)]
    while open_lists:
        for part in open_lists[-1]:
            if isinstance(part, str):
                flat.append(part)
            else:
                open_lists.append(iter(part))
                break
        else:
            open_lists.pop()
    return flat[0] if len(flat) == 1 else "".join(flat)


JSON_CHARACTERS_AT_ONCE = 16_384  # of the semi-structured values of one result; more are formatted by a thread


async def result_of(
    plan: StatementPlan, records: list[asyncpg.Record], charge: Charge | None, memory: ResultMemory
) -> StatementResult:
    """The result of a query. A large one is made by a thread, so that the event loop serves others."""
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
    if records:  # MERGE, and UPDATE with FROM, return their counts
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
    """The description with scales found in the rows: expressions have no declared scale."""
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
