"""What a table is meant to be, its SQL, and the marker in its comment by which we know that we made it, and how.

    loadgen:prepare:1:<digest>:<type>:<rows>:<seed>:<columns>:<indexes>:<values>

The digest is over everything that changes the table or its rows; the parts after it are there to say what differs. The
seed is - when no value depends on it. A table without such a comment is not ours, and never touched.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import zlib
from dataclasses import asdict, fields
from datetime import datetime
from decimal import Decimal
from typing import Self

from loadgen.model.workload import (
    Choice,
    KeyRange,
    Literal,
    Normal,
    Parameter,
    Scalar,
    Sequence,
    Text,
    Timestamp,
    Uniform,
    UniformFloat,
    Uuid,
)
from loadgen.scenario.model import ColumnSpec, Scenario, TableSpec, TableType
from loadgen.snowflake.ident import LENGTH_MAX, Identifier, QualifiedName
from loadgen.values import dataclass

# --- A column's generator as an SQL expression over N, the number of the row from 0 ----------------------------------
#
# Randomness is a digest of seed, table, column and N, so the same row has the same values in whichever statement it
# is made, and on every server: RANDOM(seed) would give others for other chunks. A remainder of 64 bits favours the
# small numbers of a range by at most one part in 2**14, at the largest range that is taken; for ordinary ones by far
# less than any sample could show.
#
# Texts are digests in base64, whose 64 symbols are mapped to the alphabet, those that do not divide evenly left out.
# Of 10**12 texts about one is too short. Generators without an SQL form (zipfian, hotspot, bounded normal, very long
# texts and large alphabets) give None; `rows` makes their tables.

ROW = "N"  # what the row's number is called in a statement
SIZE_MAX = 1 << 50  # of a range of whole numbers; a century of microseconds is just above it
CHOICES_MAX = 100  # more would make a CASE that is slow to go through
DIGESTS_MAX = 16  # of one text
TOO_SHORT = 1e-12  # chance that the digests of a text hold too few symbols

_FLOAT_STEPS = 1 << 53
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_SYMBOLS = _LETTERS.upper() + _LETTERS + "0123456789+/"  # of base64
_DIGEST_SYMBOLS = 85  # of a SHA-512; the 86th holds two bits only
_DIGITS_MAX = 38  # of a NUMBER


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlRandom:
    """The random numbers of one column; each `draw` is a separate stream."""

    seed: int
    table: int  # see table_number
    column: int

    def message(self, draw: str) -> str:
        return f"'{self.seed}.{self.table}.{self.column}.{draw}.' || {ROW}"

    def below(self, size: int, draw: str = "0") -> str:
        """Whole numbers from 0 up to, not including, `size`."""
        return f"MOD(MD5_NUMBER_LOWER64({self.message(draw)}), {size})"

    def unit(self, draw: str = "0") -> str:
        """Numbers from 0 up to, not including, 1."""
        return f"({self.below(_FLOAT_STEPS, draw)}::FLOAT / {_FLOAT_STEPS})"


def table_number(name: str) -> int:
    """Tells apart the random numbers of a scenario's tables: no two shall agree row by row."""
    return zlib.crc32(name.encode())


def sql_value(parameter: Parameter, draws: SqlRandom) -> str | None:
    """The expression; None when there is none."""
    match parameter:
        case Literal(value=value):
            return literal(value)
        case Sequence(start=start, sharded=False):
            return f"{ROW} + {start}" if start >= 0 else f"{ROW} - {-start}"
        case Uniform(keys=KeyRange() as keys, sharded=False):
            return _whole(keys, draws)
        case UniformFloat():
            return _fraction(parameter, draws)
        case Normal(low=None, high=None):
            return _normal(parameter, draws)
        case Choice():
            return _choice(parameter, draws)
        case Text():
            return _text(parameter, draws)
        case Uuid():
            return _uuid(draws)
        case Timestamp():
            return _sql_moment(parameter, draws)
        case _:
            return None


def literal(value: Scalar) -> str:
    """A value as SQL. Backslashes are doubled too: they escape in Snowflake's texts."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return str(value)
        case float():
            exact = f"{Decimal(repr(value)):f}"
            return exact if len(exact.strip("-").replace(".", "")) <= _DIGITS_MAX else _float(value)
        case _:
            return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def _float(value: float) -> str:
    return f"'{value!r}'::FLOAT"


def _whole(keys: KeyRange, draws: SqlRandom) -> str | None:
    return f"{keys.low} + {draws.below(keys.size)}" if keys.size <= SIZE_MAX else None


def _fraction(parameter: UniformFloat, draws: SqlRandom) -> str | None:
    span = parameter.high - parameter.low
    if not math.isfinite(span):
        return None
    # Rounding must not reach the upper end, which is not included.
    last = math.nextafter(parameter.high, parameter.low)
    return f"LEAST({_float(parameter.low)} + {draws.unit()} * {_float(span)}, {_float(last)})"


def _normal(parameter: Normal, draws: SqlRandom) -> str:
    """Box and Muller's transformation of two numbers; the first is never 0."""
    radius = f"SQRT(-2 * LN(({draws.below(_FLOAT_STEPS)} + 1)::FLOAT / {_FLOAT_STEPS}))"
    value = f"{_float(parameter.mean)} + {_float(parameter.stddev)} * {radius} * COS(2 * PI() * {draws.unit('1')})"
    return f"ROUND({value})" if parameter.whole else value


def _choice(parameter: Choice, draws: SqlRandom) -> str | None:
    weights = parameter.weights or (1,) * len(parameter.values)
    total = sum(weights)
    if len(parameter.values) > CHOICES_MAX or total > SIZE_MAX:
        return None
    texts = [literal(value) for value in alike(parameter.values)]
    point, cases, end = draws.below(total), "", 0
    for text, weight in zip(texts, weights, strict=True):
        end += weight
        cases += f" WHEN {point} < {end} THEN {text}" if weight else ""
    return f"CASE{cases} END"


def alike(values: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    """Values of several kinds as texts: a column of an INSERT has one type, and the table's decides in the end."""
    kinds = {_kind(value) for value in values if value is not None}
    return values if len(kinds) < 2 else tuple(None if value is None else _as_text(value) for value in values)


def _kind(value: Scalar) -> str:
    if isinstance(value, bool):
        return "boolean"
    return "text" if isinstance(value, str) else "number"


def _as_text(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _text(parameter: Text, draws: SqlRandom) -> str | None:
    longest = parameter.length if parameter.length_max is None else parameter.length_max
    size = len(parameter.alphabet)
    if longest == 0:
        return "''"
    digests = _digests_for(longest, size) if size <= len(_SYMBOLS) else None
    if digests is None:
        return None
    messages = [draws.message(f"t{number}") for number in range(digests)]
    symbols = " || ".join(f"LEFT(BASE64_ENCODE(SHA2_BINARY({m}, 512)), {_DIGEST_SYMBOLS})" for m in messages)
    if parameter.alphabet == _LETTERS:  # the same text in a fraction of the time: what is no letter is removed
        letters = f"LOWER({symbols})"
        for symbol in _SYMBOLS[52:]:
            letters = f"REPLACE({letters}, {literal(symbol)}, '')"
    else:
        letters = f"TRANSLATE({symbols}, {literal(_SYMBOLS)}, {literal(parameter.alphabet * (len(_SYMBOLS) // size))})"
    lengths = longest - parameter.length + 1
    length = str(longest) if lengths == 1 else f"{parameter.length} + {draws.below(lengths)}"
    return f"LEFT({letters}, {length})"


def _digests_for(length: int, alphabet_size: int) -> int | None:
    """How many digests a text needs, so that what is left of their symbols is long enough."""
    kept = len(_SYMBOLS) // alphabet_size * alphabet_size / len(_SYMBOLS)
    for digests in range(1, DIGESTS_MAX + 1):
        if _chance_of_fewer(length, digests * _DIGEST_SYMBOLS, kept) < TOO_SHORT:
            return digests
    return None


def _chance_of_fewer(wanted: int, symbols: int, kept: float) -> float:
    """P(Binomial(symbols, kept) < wanted)."""
    if kept == 1.0:
        return float(symbols < wanted)
    if symbols < wanted:
        return 1.0
    log_all = math.lgamma(symbols + 1)
    return sum(
        math.exp(
            log_all
            - math.lgamma(count + 1)
            - math.lgamma(symbols - count + 1)
            + count * math.log(kept)
            + (symbols - count) * math.log1p(-kept)
        )
        for count in range(wanted)
    )


def _uuid(draws: SqlRandom) -> str:
    """Version 4: the digest but for its 13th digit, and two bits of its 17th."""
    digest = f"MD5({draws.message('0')})"
    variant = f"TRANSLATE(SUBSTR({digest}, 17, 1), '0123456789abcdef', '89ab89ab89ab89ab')"
    return (
        f"SUBSTR({digest}, 1, 8) || '-' || SUBSTR({digest}, 9, 4) || '-4' || SUBSTR({digest}, 14, 3) || '-' || "
        f"{variant} || SUBSTR({digest}, 18, 3) || '-' || SUBSTR({digest}, 21, 12)"
    )


def _sql_moment(parameter: Timestamp, draws: SqlRandom) -> str | None:
    span = parameter.high - parameter.low
    span_us = (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds
    if span_us > SIZE_MAX:
        return None
    low = parameter.low.isoformat(sep=" ", timespec="microseconds")
    return f"DATEADD(microsecond, {draws.below(span_us)}, '{low}'::TIMESTAMP_NTZ)"


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


# --- Every SQL text that a preparation sends; names are always quoted identifiers, numbers come from loadgen ---------

WHERE_AM_I = "SELECT CURRENT_DATABASE(), CURRENT_SCHEMA()"


def read_comment(database: Identifier) -> str:
    """Takes schema and name as binds. No row: no such table, or none that the role may see."""
    return f"SELECT COMMENT FROM {database.sql}.INFORMATION_SCHEMA.TABLES WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?"


def read_one_row(name: QualifiedName) -> str:
    return f"SELECT 1 FROM {name.sql} LIMIT 1"


def create_table(definition: TableDefinition) -> str:
    """With its indexes inside: those made later are built in the background, and not there when a run begins."""
    table = definition.table
    key = [Identifier.parse(column.name).sql for column in table.columns if column.primary_key]
    parts = [
        f"{Identifier.parse(column.name).sql} {column.type}{' NOT NULL' if column.primary_key else ''}"
        for column in table.columns
    ]
    if key:
        parts.append(f"PRIMARY KEY ({', '.join(key)})")
    for number, index in enumerate(table.indexes, 1):
        columns = ", ".join(Identifier.parse(column).sql for column in index)
        parts.append(f"INDEX {_index_name(definition.name, number).sql} ({columns})")
    kind = "HYBRID TABLE" if definition.is_hybrid else "TABLE"
    body = ",\n  ".join(parts)
    return (
        f"CREATE {kind} IF NOT EXISTS {definition.name.sql} (\n  {body}\n) COMMENT = {literal(definition.marker.text)}"
    )


def _index_name(table: QualifiedName, number: int) -> Identifier:
    ending = f"_IDX{number}"
    return Identifier(table.parts[-1].name[: LENGTH_MAX - len(ending)] + ending)


def drop_table(name: QualifiedName) -> str:
    return f"DROP TABLE IF EXISTS {name.sql}"


def insert_generated(definition: TableDefinition, first: int, count: int) -> str:
    """Rows that the server makes. SEQ8 alone may leave gaps; numbering its rows closes them."""
    values = ",\n  ".join(definition.values or ())
    number = f"ROW_NUMBER() OVER (ORDER BY SEQ8()) - 1 + {first} AS {ROW}"
    return (
        f"INSERT INTO {definition.name.sql} ({_columns(definition)})\nSELECT\n  {values}\n"
        f"FROM (SELECT {number} FROM TABLE(GENERATOR(ROWCOUNT => {count})))"
    )


def insert_bound(definition: TableDefinition) -> str:
    """Rows that are made here, one array of binds per column."""
    binds = ", ".join("?" for _ in definition.filled)
    return f"INSERT INTO {definition.name.sql} ({_columns(definition)}) VALUES ({binds})"


def _columns(definition: TableDefinition) -> str:
    return ", ".join(Identifier.parse(column.name).sql for column in definition.filled)


def count_rows(definition: TableDefinition) -> tuple[str, tuple[int, ...]]:
    """How many of the prepared rows are there: number, different ones, smallest and largest of a sequence.

    What a constraint enforces is not counted a second time.
    """
    identity = definition.identity
    if identity is None:
        return f"SELECT COUNT(*), COUNT(*), NULL, NULL FROM {definition.name.sql}", ()
    column = identity.column.sql
    different = "COUNT(*)" if definition.identity_enforced else f"COUNT(DISTINCT {column})"
    bounds = identity.bounds(definition.rows)
    if bounds is None:
        return f"SELECT COUNT(*), {different}, NULL, NULL FROM {definition.name.sql}", ()
    return (
        f"SELECT COUNT(*), {different}, MIN({column}), MAX({column}) FROM {definition.name.sql}"
        f" WHERE {column} BETWEEN ? AND ?"
    ), bounds
