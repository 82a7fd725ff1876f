"""`loadgen upload`: finish what workers of a run could not store themselves."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loadgen.cli.away import away_from_main_thread
from loadgen.cli.place import format_option, meant, place_options, serving
from loadgen.errors import Busy, UsageError
from loadgen.log import plain

if TYPE_CHECKING:
    from loadgen.control.place import ControlPlace
    from loadgen.control.session import ControlFailed

ATTEMPTS = 5  # half a minute of pauses; a person waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """One worker's folder, which is gone now."""

    folder: str
    executions: int


@click.command(epilog="\b\nExample:\n  loadgen upload 20261115-0200-orders-7f3a")
@click.argument("run", metavar="RUN")
@click.option("-c", "--connection", metavar="NAME", help="The control plane's connection.")
@place_options
@format_option
def upload(
    run: str, connection: str | None, database: str | None, schema: str | None, warehouse: str | None, output: str
) -> None:
    """Store what the workers of RUN left on this machine, when the control plane was away.

    Their query logs and unsent results are in $LOADGEN_SPOOL_DIR, or in loadgen/spool of the user's state directory;
    they are removed once they are stored. Safe to repeat: nothing is stored twice. RUN may be the beginning of a run's
    id. Exit code 0 also when nothing is left, 3 when the control plane cannot be reached, 75 when a worker still runs.
    """
    run_id, folders = _found(run)
    aim = meant(None, connection, database=database, schema=schema, warehouse=warehouse)
    uploaded: list[Uploaded] = []
    busy: list[str] = []
    if folders:
        with serving(aim.place.connection):
            away_from_main_thread(lambda: _upload(aim.place, folders, uploaded, busy), name="upload")
    if busy:
        raise Busy(
            f"still in use, and not uploaded: {', '.join(busy)}",
            remedy="Wait for the workers to end; they upload by themselves when they can.",
        )
    if output == "json":
        workers = [{"folder": one.folder, "executions": one.executions} for one in uploaded]
        click.echo(json.dumps({"run_id": run_id, "workers": workers}, indent=2))
        return
    for one in uploaded:
        click.echo(f"{one.folder}: results and {one.executions:,} executions are stored")
    if not uploaded:
        click.echo(f"nothing to upload: no worker of run {plain(run_id)} left anything in {_spool()}")


def _spool() -> Path:
    from loadgen.worker.upload import spool_folder

    return spool_folder()


def _found(run: str) -> tuple[str, list[Path]]:
    """The run that is meant, and its folders."""
    from loadgen.worker.arguments import is_id
    from loadgen.worker.upload import left_behind, runs_left

    if not is_id(run):
        raise UsageError(
            f"{plain(run, 100)!r} is no id of a run", remedy="`loadgen runs list` shows the runs there are."
        )
    if folders := left_behind(run):
        return run, folders
    near = [run_id for run_id in runs_left() if run_id.startswith(run)]
    if len(near) > 1:
        raise UsageError(f"{run} is the beginning of several runs: {', '.join(near[:5])}", remedy="Write more of it.")
    return (near[0], left_behind(near[0])) if near else (run, [])


def _upload(place: ControlPlace, folders: list[Path], uploaded: list[Uploaded], busy: list[str]) -> None:
    from loadgen.control.retry import Patience
    from loadgen.control.session import ControlSession
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
            uploaded.append(Uploaded(folder=folder.name, executions=store(session, patience, folder)))
            os.close(lock)
    finally:
        session.close()


def _note(error: ControlFailed) -> None:
    click.echo(f"the control plane does not answer, trying again: {plain(str(error))}", err=True)
