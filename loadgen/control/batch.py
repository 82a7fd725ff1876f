"""Appending to standard tables, once: nothing there enforces a key.

A batch is one array-bound statement, so all of its rows are there or none. After a lost answer its first row is looked
for by its key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from loadgen.control.queries import Query
from loadgen.control.retry import Patience
from loadgen.control.session import ControlSession

Item = TypeVar("Item")
Table = Mapping[str, Query]  # with `append`, and `find` that counts the rows of a key

ROWS_MAX = 500  # of one statement: with its binds it stays under a megabyte


def append_row(session: ControlSession, patience: Patience, table: Table, row: Sequence[Any], *key: Any) -> None:
    """Append a row unless it is there: somebody may have tried before, and died before he knew."""
    look = _looker(session, table, key)
    if patience.call(look) is None:
        patience.settle(lambda: session.execute(table["append"], *row) == 1, look)


def append_rows(
    session: ControlSession, patience: Patience, table: Table, rows: Sequence[Sequence[Any]], *key: Any
) -> None:
    """Append new rows in one statement; `key` is that of the first."""
    patience.settle(lambda: session.append(table["append"], rows) == len(rows), _looker(session, table, key))


def in_batches(items: Sequence[Item], size: int = ROWS_MAX) -> Iterator[Sequence[Item]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]


def _looker(session: ControlSession, table: Table, key: tuple[Any, ...]) -> Callable[[], bool | None]:
    return lambda: True if session.fetch(table["find"], *key)[0][0] else None
