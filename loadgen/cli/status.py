"""`loadgen status`: what a run is doing now."""

from __future__ import annotations

import json

import click

from loadgen.cli.common import echo
from loadgen.cli.control_session import control_options, with_control_session
from loadgen.cli.options import format_option


@click.command(epilog="\b\nExample:\n  loadgen status -c prod\n  loadgen status 20261115-0200-orders --format json")
@click.argument("run", metavar="[RUN]", default="latest")
@control_options
@format_option
def status(
    run: str, connection: str | None, database: str | None, schema: str | None, warehouse: str | None, output: str
) -> None:
    """Show what RUN is doing: its state, who leads it, what its workers say. Without RUN: the latest.

    RUN is the id of a run, a beginning that no other run has, latest, or latest~1 for the one before. Exit code 0
    whatever the state is, 2 when there is no such run, 3 when the control plane cannot be reached.
    """
    from loadgen.cli.common import print_lines, terminal_width
    from loadgen.cli.run_view import as_json, as_lines, look

    seen = with_control_session(
        lambda session, patience: look(session, patience, run),
        name="status",
        connection=connection,
        database=database,
        schema=schema,
        warehouse=warehouse,
    )
    if output == "json":
        echo(json.dumps(as_json(seen), indent=2))
    else:
        print_lines(as_lines(seen, terminal_width(), result=False))
