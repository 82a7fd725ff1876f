"""WINDOW_RESULTS: what each worker measured in each window, final. A run's results are made from these rows."""

from __future__ import annotations

from typing import Any

from loadgen.control.session import (
    ControlSession,
    ParsedRows,
    RowUnreadable,
    append_row,
    load_queries,
    parse_row,
    read_rows,
)
from loadgen.metrics.window import WindowRow
from loadgen.snowflake.session import RetryPolicy

NUMBER_MAX = 2**31  # of a window

_Q = load_queries("window_results")


def append(
    session: ControlSession, patience: RetryPolicy, run_id: str, window: WindowRow, *, fresh: bool = False
) -> None:
    """Append a window once; `fresh`: no other process has had the worker's id."""
    key = (run_id, window.worker_id, window.window_id)
    append_row(session, patience, _Q, (run_id, *window.to_row()), *key, fresh=fresh)


def read(session: ControlSession, run_id: str) -> ParsedRows[WindowRow]:
    return read_rows(session.fetch(_Q["read"], run_id), _window)


def _window(row: tuple[Any, ...]) -> WindowRow:
    key = f"{row[0]}, window {row[1]}"
    found = parse_row("WINDOW_RESULTS", WindowRow, row, key=key)
    if not 0 <= found.window_id <= NUMBER_MAX:  # a worker goes on from it
        raise RowUnreadable("WINDOW_RESULTS", key, "window_id is no number of a window")
    return found
