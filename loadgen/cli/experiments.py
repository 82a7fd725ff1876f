"""`loadgen experiments`: past experiments, and the result of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadgen.cli.common import (
    echo,
    print_lines,
    terminal_width,
    text_table,
    unreadable_as_json,
    warn_unreadable,
)
from loadgen.cli.options import control_options, count_option, format_option, html_option, with_control_session

if TYPE_CHECKING:
    from loadgen.control.rows import ParsedRows
    from loadgen.control.session import ControlSession
    from loadgen.control.tables.experiments import ListedExperiment
    from loadgen.snowflake.session import RetryPolicy

LIMIT_MAX = 1_000


@click.group(epilog="\b\nExample:\n  loadgen experiments list -c prod\n  loadgen experiments show latest")
def experiments() -> None:
    """List experiments, and show the result of one."""


@experiments.command("list", epilog="\b\nExample:\n  loadgen experiments list -c prod -n 50")
@count_option(
    "-n", "--limit", default=20, maximum=LIMIT_MAX, help_text="Maximum number of experiments, the newest first."
)
@control_options
@format_option
def list_experiments(limit: int, output: str, **place: str | None) -> None:
    """List the latest experiments, newest first. Times are UTC."""

    def look(session: ControlSession, patience: RetryPolicy) -> tuple[ParsedRows[ListedExperiment], frozenset[str]]:
        from loadgen.control.tables import experiments as table

        return patience.call(lambda: table.listed(session, limit)), patience.call(lambda: table.led(session))

    found, led = with_control_session(look, name="experiments", **place)
    rows = [_row(one, is_led=one.experiment_id in led) for one in found]
    if output == "json":
        echo(json.dumps({"experiments": rows, "unreadable": unreadable_as_json(found)}, indent=2))
        return
    warn_unreadable(found)
    if not rows:
        echo("no experiment yet: `loadgen experiment FILE` makes one")
        return
    head = ("EXPERIMENT", "NAME", "BEGUN", "STATUS")
    echo(text_table(head, [(one["experiment_id"], one["name"], one["created_at"], one["status"]) for one in rows]))


def _row(one: ListedExperiment, *, is_led: bool) -> dict[str, Any]:
    from loadgen.results.experiments import status_of

    return {
        "experiment_id": one.experiment_id,
        "name": one.name,
        "created_at": f"{one.created_at:%Y-%m-%d %H:%M:%S}",
        "status": status_of(one.verdict, is_led=is_led),
        "exit_code": None if is_led else one.exit_code,
    }


@experiments.command("show", epilog="\b\nExample:\n  loadgen experiments show latest --html experiment.html")
@click.argument("experiment", metavar="EXPERIMENT")
@html_option("Write the report page to this file.")
@control_options
@format_option
def show(experiment: str, html_file: Path | None, output: str, **place: str | None) -> None:
    """Show the result of an experiment, or what is known so far. EXPERIMENT is an id, its beginning, or `latest`."""

    def look(session: ControlSession, patience: RetryPolicy) -> dict[str, Any]:
        from loadgen.results.experiments import read_experiment_result

        return read_experiment_result(session, patience, experiment)

    result = with_control_session(look, name="experiments", **place)
    if html_file is not None:
        from loadgen.cli.report import write_file
        from loadgen.report.experiment_page import experiment_html

        write_file(html_file, experiment_html(result))
    if output == "json":
        echo(json.dumps(result, indent=2))
        return
    from loadgen.report.experiment import experiment_text
    from loadgen.report.run_text import verdict_lines

    print_lines(verdict_lines(experiment_text(result), str(result["verdict"]), terminal_width()))
