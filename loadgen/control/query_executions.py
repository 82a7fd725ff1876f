"""QUERY_EXECUTIONS: executed statements one by one, as far as the query log kept them; uploaded after the drain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from datetime import datetime
from typing import Any

from loadgen.control.batch import append_rows, in_batches
from loadgen.control.queries import queries
from loadgen.control.retry import Patience
from loadgen.control.session import ControlSession
from loadgen.control.storable import text

ERROR_MAX = 2_000  # characters

_Q = queries("query_executions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One executed statement. Columns as in the table, in its order."""

    execution_id: str
    run_id: str
    test_id: str
    worker_id: str
    query_id: str | None
    statement_name: str
    query_kind: str
    phase: str
    step_id: int | None
    start_time: datetime  # naive UTC
    due_lag_ms: float
    duration_ms: float
    rows_affected: int | None
    success: bool
    error_category: str | None
    error_code: int | None
    error: str | None


def append(session: ControlSession, patience: Patience, executions: Sequence[Execution]) -> None:
    """Append, PENDING. The same may be given again after a failure: what is there is not appended again."""
    for batch in in_batches([_row(execution) for execution in executions]):
        if not _is_there(session, patience, batch[0][:2]):
            append_rows(session, patience, _Q, batch, *batch[0][:2])


def count(session: ControlSession, run_id: str, worker_id: str) -> int:
    return int(session.fetch(_Q["count"], run_id, worker_id)[0][0])


def read(session: ControlSession, run_id: str, limit: int) -> tuple[tuple[Execution, str], ...]:
    """The first statements of a run in order of their start, each with its ENRICHMENT_STATUS."""
    names = Execution.__slots__
    return tuple(
        (Execution(**dict(zip(names, row[:-1], strict=True))), row[-1])
        for row in session.fetch(_Q["read"], run_id, limit)
    )


def _row(execution: Execution) -> tuple[Any, ...]:
    error = execution.error
    return astuple(replace(execution, error=None if error is None else text(error, ERROR_MAX)))


def _is_there(session: ControlSession, patience: Patience, key: Sequence[str]) -> bool:
    return bool(patience.call(lambda: session.fetch(_Q["find"], *key)[0][0]))
