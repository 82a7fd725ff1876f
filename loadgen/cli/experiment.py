"""`loadgen experiment`: arms of a scenario, measured in random order until every comparison is decided.

`loadgen experiments`: past experiments."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadgen.cli.common import (
    echo,
    print_lines,
    print_verdict,
    terminal_width,
    text_table,
    unreadable_as_json,
    warn,
    warn_unreadable,
)
from loadgen.cli.options import (
    connection_option,
    control_access,
    control_options,
    count_option,
    format_option,
    html_option,
    output_dir_option,
    with_control_session,
)
from loadgen.cli.run import follow_run, job_roles, server_for
from loadgen.cli.signals import noted_signals
from loadgen.log import printable
from loadgen.process import available_cores, raise_priority

if TYPE_CHECKING:
    from loadgen.control.session import ControlSession, ParsedRows
    from loadgen.control.tables.experiments import ListedExperiment
    from loadgen.rules.experiment import ExperimentPlan
    from loadgen.scenario.experiment import LoadedExperiment
    from loadgen.scenario.model import Scenario
    from loadgen.snowflake.session import RetryPolicy


@click.command(
    epilog="\b\nExample:\n  loadgen experiment examples/experiments/two_queries.yaml --dry-run\n"
    "  loadgen experiment which.yaml -c prod\n  loadgen experiment which.yaml --resume latest"
)
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@connection_option
@click.option(
    "--dry-run", is_flag=True, help="Show the order, duration and worst-case credits, and connect to nothing."
)
@click.option("--resume", metavar="ID", help="Continue an experiment that was interrupted; `latest` is the newest.")
@output_dir_option("Files of the experiment go to DIR/<experiment id>, those of its runs to DIR/<run id>.")
@click.option(
    "--wait", is_flag=True, help="Wait while another run uses the warehouse, instead of ending with exit code 75."
)
@click.option("-q", "--quiet", is_flag=True, help="Print no progress; the result is still printed.")
@format_option
def experiment(
    file: Path,
    connection: str | None,
    dry_run: bool,
    resume: str | None,
    output_dir: Path,
    wait: bool,
    quiet: bool,
    output: str,
) -> int:
    """Compare arms of a scenario: measure each arm once per block, in random order, until every pair is decided.

    The intervals are valid after every block: over all pairs and metrics together, at most 5 % of experiments decide
    wrongly. The experiment stops when every pair is decided (better, worse, or equivalent within the margin), or when
    the budget of blocks, time or credits is spent. Each measurement is a run with the labels experiment, arm and block.

    Exit codes: 0 decided, 12 undecided, and those of `loadgen run`: 2 bad usage or file, 3 cannot connect, 4 runs
    failed, 5 runs were INVALID, 75 another run uses the warehouse, 128 + n stopped by signal n. Measurements are kept:
    --resume continues with the next block.
    """
    from loadgen.scenario.experiment import read_experiment

    loaded = read_experiment(file, environ=os.environ)
    for warning in loaded.warnings:
        warn(str(warning))
    if dry_run:
        from loadgen.rules.experiment import plan_loaded_experiment

        _print_plan(plan_loaded_experiment(loaded, cores=available_cores(), connection=connection), output)
        return 0
    scenarios = loaded.scenarios(available_cores(), connection)
    raise_priority()
    with server_for(next(iter(scenarios.values())), quiet=quiet):
        result = _run(loaded, scenarios, resume, output_dir, wait=wait, quiet=quiet)

    def tell() -> None:
        _print_result(result, output, output_dir / str(result["experiment_id"]))

    return print_verdict(int(result["exit_code"]), tell, stored=True)


def _print_plan(made: ExperimentPlan, output: str) -> None:
    from loadgen.rules.experiment import experiment_plan_data, experiment_plan_text

    echo(json.dumps(experiment_plan_data(made), indent=2) if output == "json" else experiment_plan_text(made))


def _run(
    loaded: LoadedExperiment,
    scenarios: Mapping[str, Scenario],
    resume: str | None,
    output_dir: Path,
    *,
    wait: bool,
    quiet: bool,
) -> dict[str, Any]:
    from loadgen.cli.display import RunLines
    from loadgen.clock import SystemClock
    from loadgen.control.location import ControlPlaneLocation
    from orchestrator.experiment.job import ExperimentJob

    place, clock = ControlPlaneLocation.of_scenario(next(iter(scenarios.values()))), SystemClock()
    job = ExperimentJob(
        loaded=loaded,
        scenarios=scenarios,
        runs_folder=output_dir,
        control=control_access(place, "experiment"),
        clock=clock,
        roles=job_roles(),
        follow=lambda run, status: follow_run(run, quiet=quiet, experiment=status),
        say=RunLines(clock, quiet=quiet).say,
        warn=warn,
        wait=wait,
    )
    job.open(resume)
    with noted_signals() as received:
        return job.run(received)


# --- `loadgen experiments`: past experiments, and the result of one --------------------------------------------------

LIMIT_MAX = 1_000


@click.group(epilog="\b\nExample:\n  loadgen experiments list -c prod\n  loadgen experiments show latest")
def experiments() -> None:
    """List experiments, show the result of one, and add what Snowflake metered."""


@experiments.command("list", epilog="\b\nExample:\n  loadgen experiments list -c prod -n 50")
@count_option("-n", "--limit", default=20, maximum=LIMIT_MAX, help_text="Maximum number of experiments.")
@control_options
@format_option
def list_experiments(limit: int, output: str, **place: str | None) -> None:
    """List the latest experiments, newest first. Times are UTC."""

    def read(session: ControlSession, retries: RetryPolicy) -> tuple[ParsedRows[ListedExperiment], frozenset[str]]:
        from loadgen.control.tables import experiments as table

        return retries.call(lambda: table.listed(session, limit)), retries.call(lambda: table.led(session))

    found, led = with_control_session(read, name="experiments", **place)
    rows = [_row(one, is_led=one.experiment_id in led) for one in found]
    if output == "json":
        echo(json.dumps({"experiments": rows, "unreadable": unreadable_as_json(found)}, indent=2))
        return
    warn_unreadable(found)
    if not rows:
        echo("there are no experiments yet: `loadgen experiment FILE` runs one")
        return
    head = ("EXPERIMENT", "NAME", "BEGUN", "STATUS")
    echo(text_table(head, [(one["experiment_id"], one["name"], one["created_at"], one["status"]) for one in rows]))


def _row(one: ListedExperiment, *, is_led: bool) -> dict[str, Any]:
    from loadgen.results.comparisons import status_of

    return {
        "experiment_id": one.experiment_id,
        "name": one.name,
        "created_at": f"{one.created_at:%Y-%m-%d %H:%M:%S}",
        "status": status_of(one.verdict, is_led=is_led),
        "exit_code": None if is_led else one.exit_code,
    }


@experiments.command("show", epilog="\b\nExample:\n  loadgen experiments show latest --html experiment.html")
@click.argument("experiment", metavar="EXPERIMENT")
@html_option("Write a self-contained HTML page.")
@control_options
@format_option
def show(experiment: str, html_file: Path | None, output: str, **place: str | None) -> None:
    """Show the result of an experiment, or its interim result.

    EXPERIMENT is an id, a unique prefix of one, or `latest`.
    """

    def read(session: ControlSession, retries: RetryPolicy) -> dict[str, Any]:
        from loadgen.results.comparisons import read_experiment_result

        return read_experiment_result(session, retries, experiment)

    result = with_control_session(read, name="experiments", **place)
    if html_file is not None:
        from loadgen.report.experiment_page import experiment_html
        from orchestrator.run_folder import write_file

        write_file(html_file, experiment_html(result))
    _print_result(result, output)


@experiments.command("enrich", epilog="\b\nExample:\n  loadgen experiments enrich latest -c prod")
@click.argument("experiment", metavar="EXPERIMENT")
@output_dir_option("Folder of experiments and runs. If it contains this experiment, its files are updated.")
@control_options
@format_option
def enrich(experiment: str, output_dir: Path, output: str, **place: str | None) -> None:
    """Add the credits that Snowflake metered for the warehouses of an experiment, and show its result.

    Metering has one row for each warehouse and hour, up to 3 hours late. The credits of each arm are known if every arm
    has a different warehouse; else only their sum is known. Other use of a warehouse in the same hours is included. The
    command may be repeated: the newest values count. The estimate and the decisions do not change. Exit code 3 if
    metering cannot be read, 4 if it has no rows yet, 75 if the experiment has not ended. EXPERIMENT as in
    `experiments show`.
    """

    def act(session: ControlSession, retries: RetryPolicy) -> dict[str, Any]:
        from loadgen.results.comparisons import read_experiment_result
        from orchestrator.experiment.metering import meter_experiment

        return read_experiment_result(session, retries, meter_experiment(session, retries, experiment))

    result = with_control_session(act, name="enrich", **place)
    folder = output_dir / str(result["experiment_id"])
    if folder.is_dir():
        from orchestrator.run_folder import write_experiment_files

        write_experiment_files(folder, result, warn)
        echo(f"updated the reports in {printable(str(folder))}", err=True)
    _print_result(result, output)


def _print_result(result: Mapping[str, Any], output: str, folder: Path | None = None) -> None:
    """Print the result, and the path of the report in `folder`."""
    from loadgen.report.experiment import experiment_text
    from loadgen.report.run_text import verdict_lines

    if output == "json":
        echo(json.dumps(result, indent=2))
        return
    text = experiment_text(result) if folder is None else f"{experiment_text(result)}\nreport: {folder / 'report.html'}"
    print_lines(verdict_lines(text, str(result["verdict"]), terminal_width()))
