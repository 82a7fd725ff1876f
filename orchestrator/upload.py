"""The spool of a run: directories for rows that its processes could not store, and `loadgen upload`, which stores them.

Workers write the spool, so its functions come from the worker.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlSession
from loadgen.control.tables import run_status
from loadgen.control.tables.test_results import ResultRow
from loadgen.errors import Busy, UsageError
from loadgen.log import printable
from loadgen.model.run import chosen_id, is_id
from loadgen.report.records import RunRecord
from loadgen.report.summary import with_unstored
from loadgen.results.run_record import update_stored_summary
from loadgen.snowflake.session import RetryPolicy
from loadgen.values import dataclass
from orchestrator.run_folder import SPOOL, remove_if_empty, rewrite_reports

_SHOW_RUNS = "`loadgen runs list` shows the runs."
ATTEMPTS = 5  # half a minute of pauses, because a user waits

Note = Callable[[BaseException], None]  # called with each failure before the next attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolAccess:
    """Functions of the worker that read and write the spool. The command line passes them in."""

    variable: str  # of the environment, which names the directory to a worker
    default_folder: Callable[[], Path]  # of workers that no `loadgen run` has started
    keep_result: Callable[[Path, str, ResultRow], None]  # folder, run id, row
    contents: Callable[[Path], dict[str, dict[str, int]]]  # rows by folder and kind, of one run
    folders_by_run: Callable[[Iterable[Path]], dict[str, list[Path]]]  # one for each process with unsent rows
    lock: Callable[[Path], int | None]  # a descriptor that holds the lock; None: another process holds it
    # Stores the rows, and removes the folder. Returns the rows by kind, and the number of damaged records.
    store: Callable[[ControlSession, RetryPolicy, Path], tuple[dict[str, int], int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadedFolder:
    """The folder of one process, which is deleted now, and the number of rows of each kind that were in it."""

    folder: str
    rows: dict[str, int]
    damaged: int  # records of its query log that could not be read


@dataclass(frozen=True, slots=True, kw_only=True)
class SpooledRun:
    """A run, and the folders on this machine with rows that its processes could not store."""

    run_id: str
    folders: tuple[Path, ...]


def latest_run_id(place: ControlPlaneLocation, name: str, note: Note) -> str:
    """The run id for `latest` or `latest~N`, from the tables."""
    with closing(ControlSession(place, role="upload")) as session:
        return run_status.find_run(session, _retries(note), name).run_id


def stored_run_id(place: ControlPlaneLocation, name: str) -> str:
    """The run id in the tables that is or begins with `name`. UsageError if there is no such run, or more than one."""
    with closing(ControlSession(place, role="upload")) as session:
        return run_status.find_run(session, RetryPolicy(stop=threading.Event(), attempts=1), name).run_id


def find_spooled(spool: SpoolAccess, runs_folder: Path, run: str) -> SpooledRun:
    """The run with this id, or the only one with spooled rows whose id begins with it. Looks into the default spool of
    workers, and into those in the folders of runs. Connects to nothing."""
    if not is_id(run):
        raise UsageError(f"{printable(run, 100)!r} is not a run id", remedy=_SHOW_RUNS)
    left = spool.folders_by_run([spool.default_folder(), *sorted(runs_folder.glob(f"*/{SPOOL}"))])
    near = sorted(run_id for run_id in left if run_id.startswith(run))
    run_id = chosen_id(run, near, noun="run", remedy=_SHOW_RUNS) if near else run
    return SpooledRun(run_id=run_id, folders=tuple(left.get(run_id, ())))


def upload_spooled(
    place: ControlPlaneLocation, spool: SpoolAccess, found: SpooledRun, note: Note
) -> tuple[list[UploadedFolder], RunRecord | None]:
    """Store the rows of the run. Returns its record as well if its summary was amended: no rows are missing any more.
    Raises Busy for folders whose processes still run, after the other folders were stored."""
    uploaded: list[UploadedFolder] = []
    busy: list[str] = []
    retries = _retries(note)
    with closing(ControlSession(place, role="upload")) as session:
        for folder in found.folders:
            lock = spool.lock(folder)
            if lock is None:
                busy.append(folder.name)
                continue
            rows, damaged = spool.store(session, retries, folder)
            uploaded.append(UploadedFolder(folder=folder.name, rows=rows, damaged=damaged))
            os.close(lock)
        if busy:
            raise Busy(
                f"spool folders are in use and were not uploaded: {', '.join(busy)}",
                remedy="Wait for the workers to end; they upload their rows themselves when they can.",
            )
        record = update_stored_summary(session, retries, found.run_id, lambda summary: with_unstored(summary, {}))
    return uploaded, record


def refresh_run_folder(folder: Path, record: RunRecord | None) -> bool:
    """Write the reports in the folder of a run again whose rows are stored now. False: nothing was written."""
    remove_if_empty(folder / SPOOL)
    return record is not None and rewrite_reports(folder, record, lambda summary: with_unstored(summary, {}))


def _retries(note: Note) -> RetryPolicy:
    return RetryPolicy(stop=threading.Event(), attempts=ATTEMPTS, note=note)
