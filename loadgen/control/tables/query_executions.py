"""QUERY_EXECUTIONS: the statements in the query log, uploaded after the drain, and enriched from QUERY_HISTORY."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, replace
from datetime import datetime
from functools import partial
from typing import Any

from loadgen.control.session import (
    ControlSession,
    ParsedRows,
    RowUnreadable,
    append_rows,
    clip_text,
    in_batches,
    load_queries,
    parse_row,
    read_rows,
    row_values,
)
from loadgen.metrics.json_fields import NUMBER_MAX
from loadgen.model.run import RowEnrichment
from loadgen.rules.enrichment import SERVER_TIME_KINDS, EnrichmentCount, ServerTimeBreakdown, ServerTimeStats
from loadgen.snowflake.session import RetryPolicy
from loadgen.values import dataclass

ERROR_MAX = 2_000  # characters
DECISIONS_MAX = 5_000  # per statement; about half a megabyte
DURATION_MAX_MS = 1e10  # of one execution: four months
_YEARS = range(1970, 2200)

_Q = load_queries("query_executions")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingExecution:
    """A logged statement that is not enriched yet, and that QUERY_HISTORY may contain."""

    execution_id: str
    query_id: str
    statement_name: str
    start_time: datetime  # naive UTC, by the clock of the worker
    duration_ms: float
    status: RowEnrichment


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTimes:
    """The times of one statement on the server. Columns as in the table, in its order."""

    total_ms: float | None
    compile_ms: float | None = None
    execution_ms: float | None = None
    queued_overload_ms: float | None = None
    queued_provisioning_ms: float | None = None
    blocked_ms: float | None = None
    bytes_scanned: int | None = None
    cluster: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrichmentUpdate:
    """The result of the enrichment of one logged statement."""

    execution_id: str
    status: RowEnrichment
    times: ServerTimes = ServerTimes(total_ms=None)


def append(session: ControlSession, retries: RetryPolicy, executions: Sequence[Execution]) -> None:
    """Append statements as PENDING. The call may be repeated after a failure: stored batches are not appended again."""
    for batch in in_batches([_row(execution) for execution in executions]):
        if not _is_there(session, retries, batch[0][:2]):
            append_rows(session, retries, _Q, batch, *batch[0][:2])


def undecided(
    session: ControlSession, run_id: str, after: tuple[datetime, str], limit: int, *, skipped_too: bool
) -> tuple[ParsedRows[PendingExecution], tuple[datetime, str] | None]:
    """The next statements that are not enriched, in order of (start, id), after the position `after`; and the position
    of the last row, readable or not. None: there are no more rows."""
    start, execution_id = after
    rows = session.fetch(_Q["undecided"].limited(limit), run_id, int(skipped_too), start, start, execution_id)
    return read_rows(rows, _pending), (rows[-1][3], rows[-1][0]) if rows else None


def enrich(session: ControlSession, retries: RetryPolicy, run_id: str, decisions: Sequence[EnrichmentUpdate]) -> None:
    """Store results of the enrichment. Idempotent, and safe in several processes at once: ENRICHED rows stay."""
    for first in range(0, len(decisions), DECISIONS_MAX):
        batch = [
            (one.execution_id, one.status.value, *astuple(one.times))
            for one in decisions[first : first + DECISIONS_MAX]
        ]
        written = json.dumps(batch, separators=(",", ":"), allow_nan=False)
        retries.call(partial(session.execute, _Q["enrich"], written, run_id))


def skip(session: ControlSession, retries: RetryPolicy, run_id: str, statement_names: Sequence[str]) -> None:
    """Set PENDING rows without a query id, and those of the given statements, to SKIPPED."""
    retries.call(lambda: session.execute(_Q["skip_unidentified"], run_id))
    for name in statement_names:
        retries.call(partial(session.execute, _Q["skip_statement"], run_id, name))


def tally(session: ControlSession, run_id: str) -> ParsedRows[EnrichmentCount]:
    """The numbers of rows of a run by statement and ENRICHMENT_STATUS."""
    return read_rows(session.fetch(_Q["tally"], run_id), _count)


def ledger(session: ControlSession, run_id: str) -> ServerTimeBreakdown | None:
    """The times on the server over all enriched statements of the measurement. None: there are none."""
    samples, overhead_ms, *values = session.fetch(_Q["ledger"], run_id)[0]
    if not samples:
        return None
    if overhead_ms is None or not all(
        abs(value) <= NUMBER_MAX for value in (overhead_ms, *values) if value is not None
    ):
        raise RowUnreadable("QUERY_EXECUTIONS", run_id, "a server time is out of range")
    triples = zip(SERVER_TIME_KINDS, values[::3], values[1::3], values[2::3], strict=True)
    parts = {
        name: ServerTimeStats(mean_ms=float(mean), p50_ms=float(p50), p95_ms=float(p95))
        for name, mean, p50, p95 in triples
        if mean is not None
    }
    return ServerTimeBreakdown(samples=int(samples), overhead_ms=float(overhead_ms), parts=parts)


def _pending(row: tuple[Any, ...]) -> PendingExecution:
    found = parse_row("QUERY_EXECUTIONS", PendingExecution, row)
    if not 0.0 <= found.duration_ms <= DURATION_MAX_MS or found.start_time.year not in _YEARS:
        raise RowUnreadable("QUERY_EXECUTIONS", row[0], "start_time or duration_ms is out of range")
    return found


def _count(row: tuple[Any, ...]) -> EnrichmentCount:
    name, identified, *others = row
    found = (name, bool(identified), *others)
    return parse_row("QUERY_EXECUTIONS", EnrichmentCount, found, key=f"statement {name}")


def _row(execution: Execution) -> tuple[Any, ...]:
    error = execution.error
    return row_values(replace(execution, error=None if error is None else clip_text(error, ERROR_MAX)))


def _is_there(session: ControlSession, retries: RetryPolicy, key: Sequence[str]) -> bool:
    return bool(retries.call(lambda: session.fetch(_Q["find"], *key)[0][0]))
