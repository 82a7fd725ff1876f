"""`loadgen experiment`: arms of a scenario, measured in random order until every comparison is decided.

`loadgen experiments`: past experiments."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections.abc import Callable, Mapping
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
from loadgen.errors import LoadgenError
from loadgen.log import printable
from loadgen.process import available_cores, raise_priority
from loadgen.threads import run_in_thread

if TYPE_CHECKING:
    from loadgen.clock import Clock
    from loadgen.control.session import ControlSession, ParsedRows
    from loadgen.control.tables.experiments import ListedExperiment
    from loadgen.report.experiment import ExperimentStatus
    from loadgen.rules.experiment import ExperimentPlan
    from loadgen.scenario.experiment import LoadedExperiment
    from loadgen.scenario.model import Scenario
    from loadgen.snowflake.session import RetryPolicy
    from orchestrator.experiment.blocks import ArmRun


TICK_S = 0.1


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
    scenarios = _scenarios(loaded, connection)
    if dry_run:
        _print_plan(plan_of(loaded, connection), output)
        return 0
    raise_priority()
    with server_for(next(iter(scenarios.values())), quiet=quiet):
        result = _run(loaded, scenarios, resume, output_dir, wait=wait, quiet=quiet)

    def tell() -> None:
        _print_result(result, output, output_dir / str(result["experiment_id"]))

    return print_verdict(int(result["exit_code"]), tell, stored=True)


def _scenarios(loaded: LoadedExperiment, connection: str | None) -> dict[str, Scenario]:
    from loadgen.scenario.model import with_workers

    found = {}
    for name, arm in loaded.arms.items():
        scenario = arm.scenario
        if connection is not None:
            scenario = dataclasses.replace(scenario, connection=connection)
        found[name] = with_workers(scenario, available_cores())
    return found


def plan_of(loaded: LoadedExperiment, connection: str | None = None) -> ExperimentPlan:
    """The plan of the experiment on this machine."""
    from loadgen.rules.experiment import design_of, plan_experiment
    from loadgen.rules.scenario_plan import plan

    scenarios = _scenarios(loaded, connection)
    arms = {
        name: plan(dataclasses.replace(arm, scenario=scenarios[name]), cores=available_cores())
        for name, arm in loaded.arms.items()
    }
    return plan_experiment(loaded.file, design_of(loaded.file), scenarios, arms)


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
    from loadgen.control.setup.installer import ensure_tables
    from loadgen.snowflake.session import RetryPolicy
    from orchestrator.experiment.blocks import ExperimentActions, ExperimentLoop
    from orchestrator.experiment.state import ExperimentStore, find_experiment
    from orchestrator.experiment.warehouse_settings import ArmWarehouseSettings, worst_cases
    from orchestrator.run_folder import make_run_folder, make_runs_folder, new_run_id, write_experiment_files

    clock = SystemClock()
    place = ControlPlaneLocation.of_scenario(next(iter(scenarios.values())))
    control = control_access(place, "experiment")
    make_runs_folder(output_dir)
    run_in_thread(lambda: ensure_tables(place, RetryPolicy(stop=threading.Event(), clock=clock)), name="setup")
    if resume is not None:
        store = ExperimentStore(control, find_experiment(control, resume, loaded))
    else:
        store = ExperimentStore(control, new_run_id(loaded.file.name, clock.utc_now()))
        store.create(loaded)
    lines = RunLines(clock, quiet=quiet)
    lines.say(f"experiment {store.experiment_id}")

    def print_progress(text: str) -> None:
        lines.say(printable(f"experiment {store.experiment_id}: {text}", 500))

    settings = ArmWarehouseSettings(loaded, scenarios, place, clock=clock, tell=print_progress, wait=wait)

    with noted_signals() as received, store.leading(place, clock=clock):
        assert store.lease is not None
        epoch = store.lease.epoch
        actions = ExperimentActions(
            measure=_measure(loaded, output_dir, clock, wait=wait, quiet=quiet),
            set_up=lambda arm: _watched(lambda stop: settings.apply(arm, store.experiment_id, epoch, stop), received),
            restore=lambda: _watched(settings.restore, received),
            worst_case=lambda: run_in_thread(lambda: worst_cases(loaded, scenarios), name="settings"),
            pause=lambda seconds: _pause(clock, received, seconds),
            print_line=print_progress,
            clock=clock,
        )
        result = ExperimentLoop(loaded, scenarios, store, actions).run()
        folder = output_dir / store.experiment_id
        make_run_folder(folder)
        write_experiment_files(folder, result, warn)
    return result


def _measure(
    loaded: LoadedExperiment, output_dir: Path, clock: Clock, *, wait: bool, quiet: bool
) -> Callable[[str, Scenario, ExperimentStatus], ArmRun]:
    from loadgen.scenario.read import portable_text
    from orchestrator.experiment.blocks import ArmRun
    from orchestrator.job import RunJob

    begun = [False]  # after the first run, the experiment waits for a warehouse that another run uses

    def measure(arm: str, scenario: Scenario, status: ExperimentStatus) -> ArmRun:
        job = RunJob(
            scenario=scenario,
            folder=loaded.folder,
            runs_folder=output_dir,
            clock=clock,
            roles=job_roles(),
            text=portable_text(loaded.arms[arm]),
            wait=wait or begun[0],
        )
        begun[0] = True
        return ArmRun(summary=follow_run(job, quiet=quiet, experiment=status), record=job.record)

    return measure


def _watched(action: Callable[[threading.Event], None], received: list[int]) -> None:
    """Run `action` in a thread. A signal sets its event, and becomes the exit code of the error that follows."""
    before, stop, done = len(received), threading.Event(), threading.Event()

    def watch() -> None:
        while not done.wait(TICK_S):
            if len(received) > before:
                stop.set()

    threading.Thread(target=watch, name="signals", daemon=True).start()
    try:
        run_in_thread(lambda: action(stop), name="settings")
    except LoadgenError as error:
        if len(received) > before:
            error.exit_code = 128 + received[before]
        raise
    finally:
        done.set()


def _pause(clock: Clock, received: list[int], seconds: float) -> int | None:
    """Wait. Returns the first signal that was received, if any."""
    never, until_ns = threading.Event(), clock.monotonic_ns() + round(seconds * 1e9)
    while not received and clock.monotonic_ns() < until_ns:
        clock.wait(never, TICK_S)
    return received[0] if received else None


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

    def look(session: ControlSession, retries: RetryPolicy) -> tuple[ParsedRows[ListedExperiment], frozenset[str]]:
        from loadgen.control.tables import experiments as table

        return retries.call(lambda: table.listed(session, limit)), retries.call(lambda: table.led(session))

    found, led = with_control_session(look, name="experiments", **place)
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

    def look(session: ControlSession, retries: RetryPolicy) -> dict[str, Any]:
        from loadgen.results.comparisons import read_experiment_result

        return read_experiment_result(session, retries, experiment)

    result = with_control_session(look, name="experiments", **place)
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
