"""Appending to standard tables, once: nothing there enforces a key.

A batch is one array-bound statement, so all of its rows are there or none. After a lost answer its first row is looked
for by its key. A statement that was given up may still be executed later than it was sent again; against that no look
helps, so readers take one row of each key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from loadgen.control.session import ControlSession
from loadgen.control.sql import NamedQuery
from loadgen.snowflake.session import RetryPolicy

Row = Sequence[Any]
Table = Mapping[str, NamedQuery]  # with `append`, and `find` that counts the rows of a key

# Of one statement. From STAGED_VALUES on the driver would make a stage and upload the binds to it: workers do no DDL.
ROWS_MAX = 500
BYTES_MAX = 900_000
STAGED_VALUES = 65_280
_SCALAR_BYTES = 24
_ESCAPED_BYTES = 6  # of a character that is not ASCII, in a request


def append_row(session: ControlSession, patience: RetryPolicy, table: Table, row: Row, *key: Any) -> None:
    """Append a row unless it is there: an earlier process may have written it and died before the answer."""
    look = _looker(session, table, key)
    if patience.call(look) is None:
        patience.settle(lambda: session.execute(table["append"], *row) == 1, look)


def append_rows(session: ControlSession, patience: RetryPolicy, table: Table, rows: Sequence[Row], *key: Any) -> None:
    """Append new rows in one statement; `key` is that of the first."""
    patience.settle(lambda: session.append(table["append"], rows) == len(rows), _looker(session, table, key))


def in_batches(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """The rows in groups that fit one statement; the same rows always give the same groups."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        row_bytes = sum(map(_bytes, row))
        if batch and (len(batch) == ROWS_MAX or size + row_bytes > BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += row_bytes
    if batch:
        yield batch


def _looker(session: ControlSession, table: Table, key: tuple[Any, ...]) -> Callable[[], bool | None]:
    return lambda: True if session.fetch(table["find"], *key)[0][0] else None


def _bytes(value: Any) -> int:
    if not isinstance(value, str):
        return _SCALAR_BYTES
    return len(value) if value.isascii() else _ESCAPED_BYTES * len(value)
