"""`loadgen setup`: the tables of the control plane, made and brought up to date."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loadgen.cli.common import echo, run_in_thread
from loadgen.cli.options import (
    embedded_server_if_needed,
    format_option,
    interactive_retries,
    location_options,
    print_scenario_warnings,
    resolve_target,
    scenario_options,
)
from loadgen.log import printable

if TYPE_CHECKING:
    from loadgen.control.location import ControlPlaneLocation
    from loadgen.control.setup.installer import SetupState


@click.command()
@scenario_options
@location_options
@click.option("--dry-run", is_flag=True, help="Connect and look, print the SQL that is missing, change nothing.")
@format_option
def setup(
    file: Path | None,
    connection: str | None,
    dry_run: bool,
    output: str,
    **location: str | None,
) -> None:
    """Create or update the tables in which loadgen keeps its runs.

    They go to LOADGEN.CONTROL, or to where the scenario FILE says under control. Database, schema and an X-Small
    separate warehouse are created when they are missing and the role may do it; else the statements that an
    administrator must run are shown. Safe to repeat, at any time and by several at once: what is there is left alone.
    Tables of a newer loadgen are not touched (exit code 2).
    """
    aim = resolve_target(file, connection, **location)
    print_scenario_warnings(aim.loaded)
    stop = threading.Event()
    try:
        with embedded_server_if_needed(aim.place.connection):
            found, steps = run_in_thread(
                lambda: _run(aim.place, stop, dry_run=dry_run, loud=output == "text"), name="setup"
            )
    finally:
        stop.set()  # after Ctrl-C the thread is left behind, and has nothing to say any more
    if output == "json":
        echo(json.dumps(_as_json(found, steps, dry_run), indent=2))
    elif dry_run:
        echo(_script(found))
    elif not steps:
        echo(f"nothing to do: the control plane in {found.place.schema_name} is current")
    else:
        echo(f"the control plane in {found.place.schema_name} is ready")


def _run(
    place: ControlPlaneLocation, stop: threading.Event, *, dry_run: bool, loud: bool
) -> tuple[SetupState, list[str]]:
    from loadgen.control.setup.installer import apply_setup, inspect_setup

    patience = interactive_retries(stop)
    found = inspect_setup(place, patience)
    steps: list[str] = []

    def told(step: str) -> None:
        steps.append(step)
        if loud:
            echo(printable(step))

    if not dry_run and not found.is_current:
        apply_setup(found, patience, told)
    return found, steps


def _script(found: SetupState) -> str:
    if found.is_current:
        return f"-- Nothing to do: the control plane in {found.place.schema_name} is current."
    title = f"-- What `loadgen setup` would execute in {found.place.schema_name}. Nothing has been changed."
    return "\n".join([title, *(f"{statement};" for statement in found.statements)])


def _as_json(found: SetupState, steps: list[str], dry_run: bool) -> dict[str, object]:
    place = found.place
    result: dict[str, object] = {
        "connection": place.connection,
        "database": place.database,
        "schema": place.schema,
        "warehouse": place.warehouse,
        "changed": bool(steps),
    }
    return {**result, "statements": found.statements} if dry_run else {**result, "steps": steps}
