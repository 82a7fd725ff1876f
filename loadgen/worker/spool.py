"""What a worker has not stored yet: its folder in the spool, and how the contents get into the tables.

    executions.*    the query log
    unsent.jsonl    windows, snapshots, log lines and the result, as far as they could not be stored
    lock            held by the worker while it lives, and by an upload

Everything is stored once, however often it is tried: rows that are there are not written again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from loadgen.control.location import state_folder
from loadgen.control.session import ControlSession
from loadgen.control.tables import query_executions, test_logs, test_results, window_results, worker_metrics_snapshots
from loadgen.control.tables.query_executions import Execution
from loadgen.control.tables.test_logs import LogRow
from loadgen.control.tables.test_results import ResultRow
from loadgen.control.tables.worker_metrics_snapshots import MetricsSnapshot
from loadgen.metrics.outcome import Outcome
from loadgen.metrics.window import WindowRow
from loadgen.snowflake.session import RetryPolicy
from loadgen.values import dataclass
from loadgen.worker.arguments import WorkerArguments
from loadgen.worker.query_log import METADATA, RECORD_BYTES, RECORDS, QueryLogHeader, QueryLogReader, QueryLogRecord

SPOOL_VARIABLE = "LOADGEN_SPOOL_DIR"
BATCH_ROWS = 1_000
UNSENT = "unsent.jsonl"
LOCK = "lock"
# What there may be in a folder of the spool; all but the last are keys of lines in UNSENT.
WINDOW, SNAPSHOT, LOG, RESULT, EXECUTION = "window", "snapshot", "log_line", "result", "execution"
_MOMENTS = ("timestamp", "created_at")
_SPACE = uuid.UUID("6f1d3f0e-7d0b-5f5e-9a53-2f2a5b1f8c11")  # makes the ids of rows the same at every attempt


def spool_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where workers keep their query logs until they are uploaded."""
    if given := environ.get(SPOOL_VARIABLE):
        return Path(given)
    return state_folder(environ) / "spool"


def worker_spool_folder(arguments: WorkerArguments, test_id: str, environ: Mapping[str, str] = os.environ) -> Path:
    """This process's own folder: another one with the same worker id may have left its log."""
    return spool_folder(environ) / arguments.run_id / f"{arguments.worker_id}-{test_id[:8]}"


def spool_folders_by_run(spools: Iterable[Path]) -> dict[str, list[Path]]:
    """What processes have not stored, and is still in these spools: a folder each, by run."""
    found: dict[str, list[Path]] = {}
    for spool in spools:
        for path in sorted(spool.glob("*/*")):
            if path.is_dir():
                found.setdefault(path.parent.name, []).append(path)
    return found


def spooled(folder: Path) -> dict[str, dict[str, int]]:
    """How much is left of one run, by the name of its processes' folders and by kind."""
    found = {path.name: contents(path) for path in sorted(folder.glob("*")) if path.is_dir()}
    return {name: rows for name, rows in found.items() if rows}


def hold(folder: Path) -> int | None:
    """Have the folder to ourselves until this process ends or the result is closed; None: another process has it."""
    fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsentRows:
    """Rows that a process could not store."""

    windows: Sequence[WindowRow] = ()
    snapshots: Sequence[MetricsSnapshot] = ()
    logs: Sequence[LogRow] = ()
    result: ResultRow | None = None


def upload(
    session: ControlSession, patience: RetryPolicy, folder: Path, told: Callable[[int], None] = lambda _: None
) -> dict[str, int]:
    """Store what a worker left, and remove it. How much it was, by kind. When it fails, the folder stays."""
    stored = _send_rows(session, patience, folder / UNSENT) if (folder / UNSENT).exists() else {}
    if (folder / METADATA).exists():
        stored[EXECUTION] = _send_executions(session, patience, folder, told)
    shutil.rmtree(folder)
    with contextlib.suppress(OSError):  # other workers' folders are still there
        folder.parent.rmdir()
    return stored


def contents(folder: Path) -> dict[str, int]:
    """How much is in a folder of the spool, by kind."""
    found = Counter[str]()
    if (folder / UNSENT).exists():
        found.update(kind for line in (folder / UNSENT).read_text("utf-8").splitlines() for kind in json.loads(line))
        del found["run_id"]
    if (folder / RECORDS).exists():
        found[EXECUTION] = (folder / RECORDS).stat().st_size // RECORD_BYTES
    return {kind: count for kind, count in found.items() if count}


def keep(folder: Path, run_id: str, unsent: UnsentRows) -> None:
    """Write down what could not be stored."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    rows: list[tuple[str, Any]] = [
        *((WINDOW, row) for row in unsent.windows),
        *((SNAPSHOT, row) for row in unsent.snapshots),
        *((LOG, row) for row in unsent.logs),
        *((RESULT, row) for row in (unsent.result,) if row is not None),
    ]
    draft = folder / f"{UNSENT}.tmp"
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
        for kind, row in rows:
            file.write(json.dumps({"run_id": run_id, kind: asdict(row)}, default=datetime.isoformat) + "\n")
        file.flush()
        os.fsync(file.fileno())
    draft.rename(folder / UNSENT)


def _send_rows(session: ControlSession, patience: RetryPolicy, path: Path) -> dict[str, int]:
    rows: dict[str, list[dict[str, Any]]] = {WINDOW: [], RESULT: [], LOG: [], SNAPSHOT: []}
    run_id = ""
    for line in path.read_text("utf-8").splitlines():
        kept = json.loads(line)
        run_id = kept.pop("run_id")
        for kind, row in kept.items():
            rows[kind].append(row | {name: datetime.fromisoformat(row[name]) for name in _MOMENTS if name in row})
    for row in rows[WINDOW]:
        window_results.append(session, patience, run_id, WindowRow(**row))
    for row in rows[RESULT]:
        test_results.append(session, patience, ResultRow(**row))
    test_logs.append_missing(session, patience, run_id, [LogRow(**row) for row in rows[LOG]])
    worker_metrics_snapshots.append_missing(
        session, patience, run_id, [MetricsSnapshot(**row) for row in rows[SNAPSHOT]]
    )
    return {kind: len(found) for kind, found in rows.items() if found}


def _send_executions(session: ControlSession, patience: RetryPolicy, folder: Path, told: Callable[[int], None]) -> int:
    reader = QueryLogReader(folder)
    rows = (_execution(reader.header, record) for record in reader.records())
    uploaded = 0
    for batch in _batches(rows):
        query_executions.append(session, patience, batch)
        uploaded += len(batch)
        told(uploaded)
    return uploaded


def _batches(rows: Iterator[Execution]) -> Iterator[list[Execution]]:
    while batch := list(islice(rows, BATCH_ROWS)):
        yield batch


def _execution(header: QueryLogHeader, record: QueryLogRecord) -> Execution:
    category = None
    if record.outcome is not Outcome.SUCCEEDED:
        category = record.outcome.name
    return Execution(
        execution_id=str(uuid.uuid5(_SPACE, f"{header.run_id}/{header.test_id}/{record.number}")),
        run_id=header.run_id,
        test_id=header.test_id,
        worker_id=header.worker_id,
        query_id=record.query_id,
        statement_name=record.statement,
        query_kind=record.kind,
        phase=record.phase,
        step_id=record.step_id,
        start_time=record.start_time,
        due_lag_ms=record.due_lag_ms,
        duration_ms=record.duration_ms,
        rows_affected=record.rows,
        success=record.outcome is Outcome.SUCCEEDED,
        error_category=category,
        error_code=record.code,
        error=record.error,
    )
