"""What a worker has not stored yet: a folder of its own in the spool, and how its contents get into the tables.

    executions.*    the query log
    unsent.jsonl    results that could not be stored
    lock            held by the worker while it lives, and by whoever uploads

Everything is stored once, however often it is tried: rows that are there are not written again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from itertools import islice
from pathlib import Path

from loadgen.control import query_executions, test_results, window_results
from loadgen.control.query_executions import Execution
from loadgen.control.retry import Patience
from loadgen.control.session import ControlSession
from loadgen.control.test_results import ResultRow
from loadgen.control.window_results import WindowResult
from loadgen.metrics.outcome import Outcome
from loadgen.model.run import Phase
from loadgen.worker.arguments import WorkerArguments
from loadgen.worker.query_log import FACTS, LogHeader, Record, SpoolReader

SPOOL_VARIABLE = "LOADGEN_SPOOL_DIR"
BATCH_ROWS = 1_000
UNSENT = "unsent.jsonl"
LOCK = "lock"
_SPACE = uuid.UUID("6f1d3f0e-7d0b-5f5e-9a53-2f2a5b1f8c11")  # makes the ids of rows the same at every attempt


def spool_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where workers keep their query logs until they are uploaded."""
    if given := environ.get(SPOOL_VARIABLE):
        return Path(given)
    state = environ.get("XDG_STATE_HOME", "")
    base = Path(state) if state.startswith("/") else Path(environ.get("HOME") or "/tmp") / ".local" / "state"
    return base / "loadgen" / "spool"


def spool_of(arguments: WorkerArguments, test_id: str, environ: Mapping[str, str] = os.environ) -> Path:
    """This process's own folder: another one with the same worker id may have left its log."""
    return spool_folder(environ) / arguments.run_id / f"{arguments.worker_id}-{test_id[:8]}"


def runs_left(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The runs of which something is still here."""
    return sorted(path.name for path in spool_folder(environ).glob("*") if left_behind(path.name, environ))


def left_behind(run_id: str, environ: Mapping[str, str] = os.environ) -> list[Path]:
    """What workers of a run have not stored, and is still here: a folder each."""
    return sorted(path for path in (spool_folder(environ) / run_id).glob("*") if path.is_dir())


def hold(folder: Path) -> int | None:
    """Have the folder to ourselves until this process ends or the result is closed; None: another process has it."""
    fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def upload(
    session: ControlSession, patience: Patience, folder: Path, told: Callable[[int], None] = lambda _: None
) -> int:
    """Store what a worker left, and remove it. How many executions it had. When it fails, the folder stays."""
    if (folder / UNSENT).exists():
        _send_results(session, patience, folder / UNSENT)
    uploaded = _send_executions(session, patience, folder, told) if (folder / FACTS).exists() else 0
    shutil.rmtree(folder)
    with contextlib.suppress(OSError):  # other workers' folders are still there
        folder.parent.rmdir()
    return uploaded


def keep_results(folder: Path, windows: Sequence[WindowResult], result: ResultRow) -> None:
    """Write down results that could not be stored."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lines = [json.dumps({"run_id": result.run_id, "window": asdict(window)}) for window in windows]
    lines.append(json.dumps({"run_id": result.run_id, "result": asdict(result)}, default=datetime.isoformat))
    draft = folder / f"{UNSENT}.tmp"
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        os.fsync(file.fileno())
    draft.rename(folder / UNSENT)


def _send_results(session: ControlSession, patience: Patience, path: Path) -> None:
    for line in path.read_text("utf-8").splitlines():
        kept = json.loads(line)
        if "window" in kept:
            window = kept["window"] | {"phase": Phase(kept["window"]["phase"])}
            window_results.append(session, patience, kept["run_id"], WindowResult(**window))
        else:
            created_at = datetime.fromisoformat(kept["result"].pop("created_at"))
            test_results.append(session, patience, ResultRow(**kept["result"], created_at=created_at))


def _send_executions(session: ControlSession, patience: Patience, folder: Path, told: Callable[[int], None]) -> int:
    reader = SpoolReader(folder)
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


def _execution(header: LogHeader, record: Record) -> Execution:
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
