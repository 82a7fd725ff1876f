"""Entries of a query log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from loadgen.metrics.recorder import FailedOutcome, Outcome, Window
from loadgen.model.run import Phase
from loadgen.model.workload import StatementKind
from loadgen.scenario.settings import QueryLogMode
from loadgen.scenario.settings import QueryLogSettings as Policy
from loadgen.worker.query_log import QueryLogEntry, QueryLogHeader, QueryLogWriter

QUERY_ID = "01b2c3d4-0000-1111-2222-333344445555"
HEADER = QueryLogHeader(
    run_id="run",
    worker_id="worker-0",
    test_id="test",
    statements=(("point lookup", StatementKind.READ), ("zahlen‽", StatementKind.WRITE)),
    utc_at_zero=datetime(2026, 11, 15, 2, tzinfo=UTC),
)
WINDOWS = (
    Window(window_id=0, phase=Phase.WARMUP, opened_ns=0),
    Window(window_id=1, phase=Phase.MEASUREMENT, step_id=7, opened_ns=0),
    Window(window_id=2**32 - 1, phase=Phase.MEASUREMENT, opened_ns=0),
)
EVERYTHING = Policy(mode=QueryLogMode.ALL)


def entry(
    *,
    query_id: str | None = QUERY_ID,
    statement: int = 0,
    window: int = 1,
    due_ns: int = 1_000,
    sent_ns: int = 2_000,
    done_ns: int = 3_000,
    rows: int | None = 1,
    outcome: Outcome | FailedOutcome = Outcome.SUCCEEDED,
) -> QueryLogEntry:
    return query_id, statement, window, due_ns, sent_ns, done_ns, rows, outcome


def write(folder: Path, entries: Sequence[QueryLogEntry], policy: Policy = EVERYTHING) -> QueryLogWriter:
    log = QueryLogWriter(folder, HEADER, policy)
    log.slot(0).entries.extend(entries)
    log.keep(WINDOWS)
    log.close()
    return log
