"""Appending to standard tables, once: nothing there enforces a key.

A batch is one statement with its rows as JSON in one bind, so all of them are there or none. (Array binds of an
INSERT … SELECT are rejected by Snowflake with connector 4, and sent row by row by connector 5.) After a lost answer the
first row of a batch is looked for by its key. A statement that was given up may still be executed later than it was
sent again; against that no look helps, so readers take one row of each key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from loadgen.control.rows import rows_json
from loadgen.control.session import ControlSession
from loadgen.control.sql import NamedQuery
from loadgen.snowflake.session import RetryPolicy

Row = Sequence[Any]
Table = Mapping[str, NamedQuery]  # with `append`, and `find` that counts the rows of a key

# Of one statement. Snowflake recommends 1 MB at most, binds included.
ROWS_MAX = 500
BYTES_MAX = 900_000


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
        row_bytes = len(rows_json([row]))
        if batch and (len(batch) == ROWS_MAX or size + row_bytes > BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += row_bytes
    if batch:
        yield batch


def _looker(session: ControlSession, table: Table, key: tuple[Any, ...]) -> Callable[[], bool | None]:
    return lambda: True if session.fetch(table["find"], *key)[0][0] else None
