"""Value pools: bounded, in order, the same for every worker.

A pool is read once, from a query or a CSV file, stored in chunks of JSON text, and read back by each worker. JSON has
fewer types than a database; what it lacks is written as an object with one key, such as {"decimal": "1.50"}.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, BinaryIO

from loadgen.errors import LoadgenError, RunFailed, ScenarioInvalid
from loadgen.values import dataclass

POOL_VALUES_MAX = 1_000_000
POOL_BYTES_MAX = 256 << 20  # of JSON text; every worker holds it in memory
CHUNK_BYTES_MAX = 900_000  # of one statement: Snowflake recommends 1 MB at most, binds included
CSV_LINE_BYTES_MAX = 1_000_000
_ENVELOPE_BYTES = 100  # of a chunk, around its values

PoolScalar = str | int | float | bool | bytes | Decimal | datetime | date | time | None

_WRITERS: dict[type, tuple[str, Callable[[Any], str]]] = {
    Decimal: ("decimal", str),
    datetime: ("timestamp", datetime.isoformat),
    date: ("date", date.isoformat),
    time: ("time", time.isoformat),
    bytes: ("binary", bytes.hex),
    bytearray: ("binary", bytearray.hex),
}
_READERS: dict[str, Callable[[str], PoolScalar]] = {
    "decimal": Decimal,
    "timestamp": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "binary": bytes.fromhex,
    "float": float,
}


@dataclass(frozen=True, slots=True)
class Pool:
    """Values in order, at least one."""

    name: str
    values: tuple[PoolScalar, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ScenarioInvalid(f"value pool {self.name}: it is empty", remedy="Give it at least one value.")
        if len(self.values) > POOL_VALUES_MAX:
            raise _too_many(f"value pool {self.name}")


def to_chunks(pool: Pool) -> Iterator[str]:
    """The pool as JSON texts of at most CHUNK_BYTES_MAX ASCII characters each, in order."""
    texts: list[str] = []
    first = size = 0
    for number, (_, text) in enumerate(_bounded(pool.name, pool.values)):
        if size + len(text) + _ENVELOPE_BYTES > CHUNK_BYTES_MAX:
            yield _chunk(first, len(pool.values), texts)
            texts, first, size = [], number, 0
        texts.append(text)
        size += len(text) + 1
    yield _chunk(first, len(pool.values), texts)


def from_chunks(name: str, chunks: Iterable[str]) -> Pool:
    """The pool that was stored. Raises RunFailed if a chunk is missing, out of order, or unreadable."""
    values: list[PoolScalar] = []
    expected = None
    for text in chunks:
        try:
            chunk = json.loads(text, object_hook=_decoded)
            first, expected, part = chunk["first"], chunk["of"], chunk["values"]
        except (ValueError, ArithmeticError, LookupError, TypeError) as error:
            raise _damaged(name, f"chunk {text[:40]!r} cannot be read") from error
        if first != len(values):
            raise _damaged(name, f"value {len(values)} should follow, but the chunk begins with {first}")
        values += part
    if len(values) != expected:
        raise _damaged(name, f"{len(values)} values were read, {'some' if expected is None else expected} were stored")
    return Pool(name, tuple(values))


def pool_from_rows(name: str, rows: Iterable[Sequence[Any]]) -> Pool:
    """The first column of a query's rows, in order. Reads at most one row more than a pool may have."""
    values = tuple(value for value, _ in _bounded(name, (row[0] for row in rows)))
    if not values:
        raise ScenarioInvalid(
            f"value pool {name}: its query gives no rows",
            remedy="Fill the table it reads from (`loadgen prepare` does), or change the query.",
        )
    return Pool(name, values)


def read_csv_column(file: BinaryIO, column: str | None, *, name: str, source: str) -> Pool:
    """One column (None: the only one) of a UTF-8 CSV file with a header, as texts. `source` names it in messages."""
    rows = csv.reader(_lines(file, source), strict=True)
    try:
        header = next(rows, None)
        if header is None:
            raise _bad_csv(source, 1, "the file is empty; its first line must name the columns")
        at = _column_at(header, column, source)
        values: list[PoolScalar] = []
        size = 0
        for row in rows:
            if not row:
                continue
            if len(row) != len(header):
                raise _bad_csv(source, rows.line_num, f"{len(row)} fields, but the header names {len(header)} columns")
            values.append(row[at])
            size += len(row[at])
            _check_size(source, len(values), size)
    except csv.Error as error:
        raise _bad_csv(source, max(1, rows.line_num), str(error)) from error
    if not values:
        raise _bad_csv(source, max(1, rows.line_num), "there is no row below the header")
    return Pool(name, tuple(values))


def _lines(file: BinaryIO, source: str) -> Iterator[str]:
    number = 0
    while line := file.readline(CSV_LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > CSV_LINE_BYTES_MAX:
            raise _bad_csv(source, number, f"the line is longer than {CSV_LINE_BYTES_MAX:,} bytes")
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise _bad_csv(source, number, f"byte {error.start + 1} of the line is not UTF-8") from error


def _column_at(header: Sequence[str], column: str | None, source: str) -> int:
    names = [name.strip() for name in header]
    shown = ", ".join(names[:20]) + (" …" if len(names) > 20 else "")
    if column is None:
        if len(names) == 1:
            return 0
        raise _bad_csv(source, 1, f"there are several columns; name one of them: {shown}")
    found = names.count(column)
    if found == 1:
        return names.index(column)
    if found:
        raise _bad_csv(source, 1, f"the column {column!r} occurs {found} times; there are {shown}")
    raise _bad_csv(source, 1, f"there is no column {column!r}; there are {shown}")


def _chunk(first: int, total: int, texts: list[str]) -> str:
    return f'{{"first": {first}, "of": {total}, "values": [{",".join(texts)}]}}'


def _bounded(pool: str, values: Iterable[Any]) -> Iterator[tuple[PoolScalar, str]]:
    """Each value with its JSON text. Raises ScenarioInvalid at the first value that cannot be stored."""
    size = 0
    for number, value in enumerate(values):
        text = _encoded(value, pool, number)
        if len(text) + _ENVELOPE_BYTES > CHUNK_BYTES_MAX:
            raise ScenarioInvalid(
                f"value pool {pool}: value {number} takes {len(text):,} bytes, more than fits a chunk",
                remedy=f"Use values of less than {CHUNK_BYTES_MAX:,} bytes.",
            )
        size += len(text) + 1
        _check_size(f"value pool {pool}", number + 1, size)
        yield value, text


def _check_size(source: str, count: int, size: int) -> None:
    if count > POOL_VALUES_MAX:
        raise _too_many(source)
    if size > POOL_BYTES_MAX:
        raise ScenarioInvalid(
            f"{source}: its values take more than {POOL_BYTES_MAX >> 20} MB", remedy="Use fewer or shorter values."
        )


def _encoded(value: PoolScalar, pool: str, number: int) -> str:
    if value is None or isinstance(value, (str, int)):
        return json.dumps(value)
    if isinstance(value, float):
        return json.dumps(value) if math.isfinite(value) else json.dumps({"float": repr(value)})
    writer = _WRITERS.get(type(value))
    if writer is None:
        raise ScenarioInvalid(
            f"value pool {pool}: value {number} is a {type(value).__name__}, which cannot be bound as a parameter",
            remedy="Cast it in the query of the pool, for example to VARCHAR.",
        )
    kind, write = writer
    return json.dumps({kind: write(value)})


def _decoded(found: dict[str, Any]) -> Any:
    if len(found) != 1:
        return found  # the chunk itself
    (kind, text), *_ = found.items()
    return _READERS[kind](text)


def _damaged(name: str, what: str) -> LoadgenError:
    return RunFailed(
        f"value pool {name} was not stored completely: {what}",
        remedy="Run the scenario again; a pool is stored again for every run.",
    )


def _too_many(source: str) -> ScenarioInvalid:
    return ScenarioInvalid(
        f"{source}: more than {POOL_VALUES_MAX:,} values", remedy="Use fewer; a query can end with LIMIT, or SAMPLE."
    )


def _bad_csv(source: str, line: int, what: str) -> ScenarioInvalid:
    return ScenarioInvalid(f"{source}:{line}: {what}", remedy="Correct the file; it must be UTF-8 CSV with a header.")
