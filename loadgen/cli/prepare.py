"""`loadgen prepare`: create and fill the tables of a scenario. The main thread displays, waits and handles signals; the
threads of loadgen.prepare.prepare call the driver."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadgen.cli.common import echo, warn
from loadgen.cli.options import connection_option, experiment_remedy, format_option, override_option
from loadgen.cli.signals import display_preparation, noted_signals
from loadgen.clock import Clock, SystemClock
from loadgen.errors import UsageError
from loadgen.log import printable
from loadgen.threads import exit_code_after
from loadgen.units import counted

if TYPE_CHECKING:
    from loadgen.prepare.prepare import PreparationResult, PreparedTable
    from loadgen.scenario.model import Scenario

SQL_SHOWN_MAX = 1_000_000  # characters of one statement; those of a scenario are shorter


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@connection_option
@override_option("prepare.tables.0.rows=1m")
@click.option(
    "--drop", is_flag=True, help="Drop the scenario's tables that loadgen has created, and create them again."
)
@click.option(
    "--force", is_flag=True, help="With --drop: also drop tables of these names that loadgen has NOT created."
)
@click.option("--dry-run", is_flag=True, help="Print the SQL that would be sent, and connect to nothing.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@format_option
def prepare(
    file: Path,
    connection: str | None,
    overrides: Sequence[str],
    drop: bool,
    force: bool,
    dry_run: bool,
    quiet: bool,
    output: str,
) -> None:
    """Create and fill the tables that a scenario lists under prepare, then run its prepare.statements.

    Complete tables are not changed, and incomplete ones are filled up; so the same command continues after Ctrl-C or a
    crash. Additional rows are not changed either. Each table gets a marker in its comment. A table without the marker,
    or with another definition, is an error, and is not changed unless --drop is given. There is no prompt: --drop and
    --force confirm. Tables of type existing must exist.
    """
    if force and not drop:
        raise UsageError("--force works with --drop only", remedy="Add --drop, or leave --force out.")
    with experiment_remedy("Prepare the file that it names under scenario; `loadgen experiment FILE` prepares it too."):
        scenario = _scenario(file, overrides)
    if dry_run:
        _print_plan(scenario, drop, output)
        return
    with _server_for(scenario, connection):
        done = _prepare(scenario, connection, drop=drop, force=force, quiet=quiet, clock=SystemClock())
    echo(_as_json(done) if output == "json" else _as_text(done))


def _scenario(file: Path, overrides: Sequence[str]) -> Scenario:
    from loadgen.scenario.read import read_scenario

    loaded = read_scenario(file, overrides=overrides, environ=os.environ)
    for warning in loaded.warnings:
        warn(str(warning))
    return loaded.scenario


def _server_for(scenario: Scenario, connection: str | None) -> AbstractContextManager[object]:
    """The embedded server, if the connection leads to it. Any running server is used, because nothing is measured."""
    from loadgen.scenario.model import EMBEDDED
    from loadgen.scenario.settings import EmbeddedEngine

    if (connection or scenario.connection) != EMBEDDED:
        return nullcontext()
    if scenario.embedded.engine is EmbeddedEngine.NULL:
        raise UsageError("embedded.engine null has no tables to prepare", remedy="Leave embedded.engine out.")
    from loadgen.embedded.client import embedded_server

    return embedded_server()


def _prepare(
    scenario: Scenario, connection: str | None, *, drop: bool, force: bool, quiet: bool, clock: Clock
) -> PreparationResult:
    from loadgen.cli.display import preparation_display
    from loadgen.prepare.prepare import PreparationJob
    from loadgen.prepare.session import PreparationStopped, opener, target_profile

    profile = target_profile(scenario, connection)
    for warning in profile.warnings:
        warn(warning)
    job = PreparationJob(scenario, opener(profile, scenario), drop=drop, force=force, clock=clock)
    display = preparation_display(quiet=quiet, clock=clock)
    with noted_signals() as received:
        try:
            job.start()
            display_preparation(job, display, received, clock)
        finally:
            display.close()
    try:
        return job.result()
    except PreparationStopped as stopped:
        if received:
            stopped.exit_code = exit_code_after(received)
        raise


# --- output ----------------------------------------------------------------------------------------------------------


def _as_text(done: PreparationResult) -> str:
    lines = [f"{table.name}: {_outcome_text(table)}" for table in done.tables]
    if done.statements:
        lines.append(f"prepare.statements: {done.statements} executed")
    lines.append(f"prepared in {done.seconds:.1f} s")
    return "\n".join(map(printable, lines))


def _outcome_text(table: PreparedTable) -> str:
    from loadgen.prepare.prepare import TableOutcome

    match table.outcome:
        case TableOutcome.EXISTING:
            return "existing, readable"
        case TableOutcome.READY:
            return f"complete, {counted(table.rows, 'row')}"
        case TableOutcome.RESUMED:
            return f"resumed, {table.rows_added:,} of {counted(table.rows, 'row')} added in {table.seconds:.1f} s"
        case TableOutcome.CREATED:
            how = "dropped and created again" if table.dropped else "created"
            return f"{how}, {counted(table.rows, 'row')} in {table.seconds:.1f} s"


def _as_json(done: PreparationResult) -> str:
    data: dict[str, Any] = asdict(done)
    data["seconds"] = round(done.seconds, 3)
    for table in data["tables"]:
        table["seconds"] = round(table["seconds"], 3)
    return json.dumps(data, indent=2)


def _print_plan(scenario: Scenario, drop: bool, output: str) -> None:
    from loadgen.prepare.prepare import dry_run

    planned = dry_run(scenario, drop=drop)
    if output == "json":
        echo(json.dumps({"dry_run": True, "statements": [asdict(one) for one in planned]}, indent=2))
    elif planned:
        echo("\n\n".join(printable(f"-- {one.note}\n{one.sql};", SQL_SHOWN_MAX, multiline=True) for one in planned))
    else:
        echo("-- the scenario lists nothing under prepare")
