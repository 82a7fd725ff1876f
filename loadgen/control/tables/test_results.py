"""TEST_RESULTS: one row per run, appended at its end, and one per worker, appended at its start.

Each row has one writer. Later only the summary of a run changes, when more of its statements are enriched.
"""

from __future__ import annotations

import json
from dataclasses import astuple
from datetime import datetime
from typing import Any

from loadgen.control.session import (
    ControlFailed,
    ControlSession,
    ParsedRows,
    RowUnreadable,
    append_row,
    clean_json,
    load_queries,
    parse_row,
    read_rows,
)
from loadgen.snowflake.session import RetryPolicy
from loadgen.values import dataclass

_Q = load_queries("test_results")
COMPLETED = "COMPLETED"  # the status of the result of a worker that ended as ordered


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """The row of a run has its RUN_ID as TEST_ID, and no worker. Columns as in the table, in its order, without
    END_TIME."""

    test_id: str
    run_id: str
    worker_id: str | None
    worker_group_id: int | None
    template_id: str
    status: str
    created_at: datetime  # naive UTC
    total_operations: int
    read_operations: int
    write_operations: int
    failed_operations: int
    p50_latency_ms: float | None
    p95_latency_ms: float | None
    p99_latency_ms: float | None
    avg_latency_ms: float | None
    find_max_result: str | None  # JSON
    summary: str | None  # JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioResult:
    """The result of a run in a list of runs of one scenario."""

    run_id: str
    template_id: str
    status: str
    created_at: datetime  # naive UTC
    summary: str | None  # JSON
    scenario_config: str  # of loadgen.scenario.frozen


def dropped_rows(row: ResultRow) -> dict[str, int]:
    """Number of rows that a worker neither stored nor spooled, by kind. Empty: none, or the row is of another
    version."""
    try:
        dropped: Any = json.loads(row.summary or "{}").get("dropped") if row.worker_id is not None else None
        counts = {str(kind): int(count) for kind, count in dropped.items()} if dropped else {}
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError):
        return {}
    return {kind: count for kind, count in counts.items() if count > 0}


def begin(session: ControlSession, retries: RetryPolicy, result: ResultRow, *, fresh: bool = False) -> None:
    """Insert the row of a worker that has started, as RUNNING; append() completes it. `fresh`: it is the first
    attempt."""
    row = astuple(result)[:5]
    started = {"append": _Q["begin"], "find": _Q["any"]}
    append_row(session, retries, started, (*row, result.created_at), result.test_id, result.run_id, fresh=fresh)


def append(session: ControlSession, retries: RetryPolicy, result: ResultRow, *, fresh: bool = False) -> None:
    """Store a result once: the predecessor of a leader may have stored it already.

    `fresh`: this process has no predecessor.
    """
    *columns, find_max_result, summary = astuple(result)
    if result.worker_id is not None:
        finished = _finish(session, retries, result, columns, summary)
        if finished:
            return
        fresh = fresh and finished is None  # otherwise an answer may have been lost
    row = (*columns, clean_json(find_max_result), clean_json(summary))
    append_row(session, retries, _Q, row, result.test_id, result.run_id, fresh=fresh)


def _finish(
    session: ControlSession, retries: RetryPolicy, result: ResultRow, columns: list[Any], summary: str | None
) -> int | None:
    """Update the row of begin(). An UPDATE locks the whole table, and many workers end at the same time: on a lock
    conflict (None) a worker appends a second row, which readers prefer."""
    binds = (columns[5], *columns[7:], clean_json(summary), result.test_id, result.run_id)

    def finish() -> int | None:
        try:
            return session.execute(_Q["finish"], *binds)
        except ControlFailed as error:
            if error.failure.is_lock_conflict:
                return None
            raise

    return retries.call(finish)


def abandon(session: ControlSession, retries: RetryPolicy, run_id: str) -> None:
    """Set the RUNNING rows of workers that will not complete them to FAILED."""
    retries.call(lambda: session.execute(_Q["abandon"], run_id))


def amend(session: ControlSession, retries: RetryPolicy, run_id: str, summary: str) -> None:
    """Replace the summary (JSON) of the result of a run."""
    retries.call(lambda: session.execute(_Q["amend"], clean_json(summary), run_id, run_id))


def read(session: ControlSession, run_id: str) -> ParsedRows[tuple[ResultRow, datetime]]:
    """The result of the run, followed by those of the workers, each with its END_TIME."""
    return read_rows(session.fetch(_Q["read"], run_id), _result)


def completed_workers(session: ControlSession, run_id: str) -> frozenset[str]:
    """The workers that have ended as ordered and stored all of their windows: their result is stored after these."""
    rows = (row for row, _ in read(session, run_id))
    return frozenset(row.worker_id for row in rows if row.worker_id is not None and row.status == COMPLETED)


def stored_summary(session: ControlSession, run_id: str) -> str | None:
    """The SUMMARY of a run; None: it has no result. Raises RowUnreadable if its row is invalid."""
    rows = read(session, run_id)
    for error in rows.unreadable:
        if error.key == run_id:
            raise error
    return next((row.summary for row, _ in rows if row.test_id == run_id), None)


def of_scenario(session: ControlSession, scenario: str, limit: int) -> ParsedRows[ScenarioResult]:
    """The results of the newest runs of a scenario, the newest first."""
    rows = session.fetch(_Q["of_scenario"].limited(limit), scenario)
    return read_rows(rows, lambda row: parse_row("TEST_RESULTS", ScenarioResult, row))


def _result(row: tuple[Any, ...]) -> tuple[ResultRow, datetime]:
    end_time = row[7]
    if not isinstance(end_time, datetime):
        raise RowUnreadable("TEST_RESULTS", row[0], "end_time is not a time")
    return parse_row("TEST_RESULTS", ResultRow, (*row[:7], *row[8:])), end_time
