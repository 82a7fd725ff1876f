"""`loadgen upload`: store what the processes of a run could not store themselves."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loadgen.cli.away import away_from_main_thread
from loadgen.cli.common import echo
from loadgen.cli.place import format_option, meant, place_options, serving
from loadgen.cli.runs_folder import SPOOL
from loadgen.errors import Busy, UsageError
from loadgen.log import printable

if TYPE_CHECKING:
    from loadgen.control.place import ControlPlace
    from loadgen.control.session import ControlFailed
    from loadgen.report.record import RunRecord

ATTEMPTS = 5  # half a minute of pauses; a person waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """One process's folder, which is gone now, and how many rows of which kind it had."""

    folder: str
    rows: dict[str, int]


@click.command(epilog="\b\nExample:\n  loadgen upload 20261115-0200-orders-7f3a")
@click.argument("run", metavar="RUN")
@click.option("-c", "--connection", metavar="NAME", help="The control plane's connection.")
@place_options
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs"),
    show_default=True,
    help="Where the folders of runs are: workers of this machine keep what is unsent in DIR/<run id>/spool.",
)
@format_option
def upload(
    run: str,
    connection: str | None,
    database: str | None,
    schema: str | None,
    warehouse: str | None,
    output_dir: Path,
    output: str,
) -> None:
    """Store what the processes of RUN left on this machine, when the control plane did not take it.

    Workers that `loadgen run` started keep their query logs and unsent rows in the run's folder, others in
    $LOADGEN_SPOOL_DIR, or in loadgen/spool of the user's state directory. They are removed once they are stored.
    Safe to repeat: nothing is stored twice. RUN may be the beginning of a run's id. Exit code 0 also when nothing is
    left, 3 when the control plane cannot be reached, 75 when a worker still runs.
    """
    spools = _spools(output_dir)
    run_id, folders = _found(run, spools)
    aim = meant(None, connection, database=database, schema=schema, warehouse=warehouse)
    uploaded: list[Uploaded] = []
    busy: list[str] = []
    if folders:
        with serving(aim.place.connection):
            record = away_from_main_thread(lambda: _upload(aim.place, run_id, folders, uploaded, busy), name="upload")
        if record is not None:
            _rewrite(output_dir / run_id, record)
    if busy:
        raise Busy(
            f"still in use, and not uploaded: {', '.join(busy)}",
            remedy="Wait for the workers to end; they upload by themselves when they can.",
        )
    if output == "json":
        workers = [
            {"folder": one.folder, "executions": one.rows.get("execution", 0), "rows": one.rows} for one in uploaded
        ]
        echo(json.dumps({"run_id": run_id, "workers": workers}, indent=2))
        return
    from loadgen.report.summary import counted

    for one in uploaded:
        echo(f"{one.folder}: {counted(one.rows) or 'no rows'} are stored")
    if not uploaded:
        places = ", ".join(printable(str(spool)) for spool in spools)
        echo(f"nothing to upload: no process of run {printable(run_id)} left anything in {places}")


def _spools(output_dir: Path) -> list[Path]:
    """Where workers that nobody told otherwise keep things, and where those of runs do."""
    from loadgen.worker.upload import spool_folder

    return [spool_folder(), *sorted(output_dir.glob(f"*/{SPOOL}"))]


def _found(run: str, spools: list[Path]) -> tuple[str, list[Path]]:
    """The run that is meant, and its folders."""
    from loadgen.worker.arguments import is_id
    from loadgen.worker.upload import left_behind

    if not is_id(run):
        raise UsageError(
            f"{printable(run, 100)!r} is no id of a run", remedy="`loadgen runs list` shows the runs there are."
        )
    left = left_behind(spools)
    near = [run] if run in left else sorted(run_id for run_id in left if run_id.startswith(run))
    if len(near) > 1:
        raise UsageError(f"{run} is the beginning of several runs: {', '.join(near[:5])}", remedy="Write more of it.")
    return (near[0], left[near[0]]) if near else (run, [])


def _upload(
    place: ControlPlace, run_id: str, folders: list[Path], uploaded: list[Uploaded], busy: list[str]
) -> RunRecord | None:
    """The run's record when its summary was amended: it says what was not stored, and all is now."""
    from loadgen.cli.amended_files import amend_stored
    from loadgen.control.retry import Patience
    from loadgen.control.session import ControlSession
    from loadgen.report.summary import with_unstored
    from loadgen.worker.upload import hold
    from loadgen.worker.upload import upload as store

    patience = Patience(stop=threading.Event(), attempts=ATTEMPTS, note=_note)
    session = ControlSession(place, role="upload")
    try:
        for folder in folders:
            lock = hold(folder)
            if lock is None:
                busy.append(folder.name)
                continue
            uploaded.append(Uploaded(folder=folder.name, rows=store(session, patience, folder)))
            os.close(lock)
        if busy:
            return None
        return amend_stored(session, patience, run_id, lambda summary: with_unstored(summary, {}))
    finally:
        session.close()


def _rewrite(folder: Path, record: RunRecord) -> None:
    from loadgen.cli.amended_files import rewrite_files
    from loadgen.report.summary import with_unstored

    if rewrite_files(folder, record, lambda summary: with_unstored(summary, {})):
        echo(f"wrote the reports in {printable(str(folder))} again", err=True)


def _note(error: ControlFailed) -> None:
    echo(f"the control plane does not answer, trying again: {printable(str(error))}", err=True)
