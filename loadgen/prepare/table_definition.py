"""What a table is meant to be, and the marker in its comment by which we know that we made it, and how.

    loadgen:prepare:1:<digest>:<type>:<rows>:<seed>:<columns>:<indexes>:<values>

The digest is over everything that changes the table or its rows; the parts after it are there to say what differs. The
seed is - when no value depends on it. A table without such a comment is not ours, and never touched.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Self

from loadgen.model.workload import Literal, Sequence, Uuid
from loadgen.prepare.sql_values import SqlRandom, sql_value, table_number
from loadgen.scenario.model import ColumnSpec, Scenario, TableSpec, TableType
from loadgen.snowflake.ident import Identifier, QualifiedName

OURS = "loadgen:prepare:"
VERSION = "1"  # of the marker, and of how rows are made from a definition
_ORDINARY = re.compile(r"[A-Z_][A-Z0-9_$]*")
_SHORT = 8  # hexadecimal digits of the parts' digests
_WHOLE_TYPES = ("NUMBER", "DECIMAL", "NUMERIC", "INT", "BIGINT", "SMALLINT", "TINYINT", "BYTEINT")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMarker:
    """The content of a marker comment."""

    digest: str
    type: str
    rows: str
    seed: str
    columns: str
    indexes: str
    values: str

    @property
    def text(self) -> str:
        return OURS + ":".join([VERSION, *(getattr(self, field.name) for field in fields(self))])

    @classmethod
    def parse(cls, comment: str) -> Self | None:
        """None when it is not ours, or of another version."""
        version, *parts = comment.removeprefix(OURS).split(":")
        names = [field.name for field in fields(cls)]
        if not is_ours(comment) or version != VERSION or len(parts) != len(names):
            return None
        return cls(**dict(zip(names, parts, strict=True)))


def shown(name: QualifiedName) -> str:
    """A name for people: quotes only where they are needed."""
    return ".".join(part.name if _ORDINARY.fullmatch(part.name) else part.sql for part in name.parts)


def is_ours(comment: str | None) -> bool:
    return comment is not None and comment.startswith(OURS)


def differences(made: TableMarker | None, wanted: TableMarker) -> list[str]:
    """What differs between a table of ours and the scenario, in plain words."""
    if made is None:
        return ["it was made by another version of loadgen"]
    found = []
    if made.type != wanted.type:
        found.append(f"it is a {made.type} table, the scenario says {wanted.type}")
    if made.rows != wanted.rows:
        found.append(f"it was made for {_number(made.rows)} rows, the scenario says {_number(wanted.rows)}")
    if made.columns != wanted.columns:
        found.append("its columns, their types or its primary key are not those of the scenario")
    if made.indexes != wanted.indexes:
        found.append("its indexes are not those of the scenario")
    if made.values != wanted.values:
        found.append("its values were generated in another way")
    if made.seed != wanted.seed:
        found.append(f"its values were generated with seed {made.seed}, the scenario has {wanted.seed}")
    return found or ["its definition is not that of the scenario"]


def _number(digits: str) -> str:
    return f"{int(digits):,}" if digits.isdigit() else digits


@dataclass(frozen=True, slots=True, kw_only=True)
class RowIdentity:
    """The column that identifies rows: a sequence, whose values are row numbers, or another without duplicates."""

    column: Identifier
    start: int | None  # of a sequence

    def bounds(self, rows: int) -> tuple[int, int] | None:
        """The first and the last value of the prepared rows."""
        return None if self.start is None else (self.start, self.start + rows - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDefinition:
    """A table to make: names parsed, values decided, marker computed."""

    name: QualifiedName
    table: TableSpec
    seed: int
    filled: tuple[ColumnSpec, ...]  # the columns that get values
    values: tuple[str, ...] | None  # SQL expressions for them; None: the rows are made here
    identity: RowIdentity | None
    marker: TableMarker

    @property
    def rows(self) -> int:
        return self.table.rows

    @property
    def is_hybrid(self) -> bool:
        return self.table.type is TableType.HYBRID

    @property
    def identity_enforced(self) -> bool:
        """Does the database itself refuse the same row twice?"""
        key = [column for column in self.table.columns if column.primary_key]
        own = self.identity is not None and len(key) == 1 and Identifier.parse(key[0].name) == self.identity.column
        return own and self.is_hybrid


def define(table: TableSpec, scenario: Scenario, name: QualifiedName) -> TableDefinition:
    """The definition of a table that is not `existing`. `name` is its full name."""
    seed = scenario.workload.seed
    filled = tuple(column for column in table.columns if column.generate is not None) or table.columns[:1]
    return TableDefinition(
        name=name,
        table=table,
        seed=seed,
        filled=filled,
        values=_expressions(table, filled, seed, name),
        identity=_identity(table),
        marker=_marker(table, seed, name),
    )


def _expressions(
    table: TableSpec, filled: tuple[ColumnSpec, ...], seed: int, name: QualifiedName
) -> tuple[str, ...] | None:
    found = []
    for column in filled:
        number = table.columns.index(column)
        draws = SqlRandom(seed=seed, table=table_number(name.parts[-1].name), column=number)
        expression = sql_value(column.generate or Literal(value=None), draws)
        if expression is None:
            return None
        found.append(expression)
    return tuple(found)


def _identity(table: TableSpec) -> RowIdentity | None:
    key_first = sorted(table.columns, key=lambda column: not column.primary_key)
    for column in key_first:
        if isinstance(column.generate, Sequence) and column.type.upper().startswith(_WHOLE_TYPES):
            return RowIdentity(column=Identifier.parse(column.name), start=column.generate.start)
    for column in key_first:
        # A sequence in a text column is not ordered for the database, but still identifies rows.
        if isinstance(column.generate, Sequence) or (column.primary_key and isinstance(column.generate, Uuid)):
            return RowIdentity(column=Identifier.parse(column.name), start=None)
    return None


def _marker(table: TableSpec, seed: int, name: QualifiedName) -> TableMarker:
    depends = any(not isinstance(column.generate, (Literal, Sequence, type(None))) for column in table.columns)
    # The names of table and columns as the catalogue has them: `orders` and "ORDERS" are the same.
    columns = [
        [Identifier.parse(column.name).name, " ".join(column.type.upper().split()), column.primary_key]
        for column in table.columns
    ]
    indexes = [[Identifier.parse(column).name for column in index] for index in table.indexes]
    values = [
        None if column.generate is None else [type(column.generate).__name__, asdict(column.generate)]
        for column in table.columns
    ]
    parts = {
        "type": str(table.type),
        "rows": str(table.rows),
        "seed": str(seed) if depends and table.rows else "-",
        "columns": _digest(columns)[:_SHORT],
        "indexes": _digest(indexes)[:_SHORT],
        "values": _digest(values if table.rows else None)[:_SHORT],
    }
    whole = [VERSION, name.parts[-1].name, parts, columns, indexes, values if table.rows else None]
    return TableMarker(digest=_digest(whole)[: 2 * _SHORT], **parts)


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, default=_moment, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _moment(value: object) -> str:
    assert isinstance(value, datetime), f"{type(value).__name__} in a generator"
    return value.isoformat()
