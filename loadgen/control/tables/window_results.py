"""WINDOW_RESULTS: what each worker measured in each window, final. A run's results are made from these rows."""

from __future__ import annotations

from loadgen.control.batch import append_row
from loadgen.control.session import ControlSession
from loadgen.control.sql import load_queries
from loadgen.metrics.window_codec import WindowRow
from loadgen.snowflake.session import RetryPolicy

_Q = load_queries("window_results")


def append(session: ControlSession, patience: RetryPolicy, run_id: str, window: WindowRow) -> None:
    append_row(session, patience, _Q, (run_id, *window.to_row()), run_id, window.worker_id, window.window_id)


def read(session: ControlSession, run_id: str) -> tuple[WindowRow, ...]:
    return tuple(map(WindowRow.from_row, session.fetch(_Q["read"], run_id)))
