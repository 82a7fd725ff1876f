"""`loadgen run`: execute and measure a scenario.

thread         does                                                         owns
main           displays, waits, handles signals; never calls the driver     the terminal
orchestrator   prepares, creates and leads the run (orchestrator.job)       its sessions
lease          renews the lease                                             a separate session
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadgen.cli.common import echo, print_lines, print_verdict, run_labels, terminal_width, warn
from loadgen.cli.options import (
    allow_options,
    baseline_options,
    check_confirm,
    connection_option,
    control_access,
    format_option,
    output_dir_option,
    override_option,
)
from loadgen.cli.signals import display_run, noted_signals
from loadgen.errors import UsageError
from loadgen.log import LINE_LIMIT, printable
from loadgen.process import available_cores, raise_priority, user_and_host

if TYPE_CHECKING:
    from loadgen.report.experiment import ExperimentStatus
    from loadgen.scenario.model import Scenario
    from loadgen.scenario.read import LoadedScenario
    from orchestrator.job import JobRoles, RunJob
    from orchestrator.nightly.queue import HostPermissions


@click.command(
    epilog="\b\nExample:\n  loadgen run examples/quickstart.yaml\n  loadgen run nightly.yaml -c prod --quiet"
)
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@connection_option
@override_option("load.connections=64")
@click.option("--label", "labels", metavar="KEY=VALUE", multiple=True, help="Add a label to the run. May be repeated.")
@output_dir_option("Files of a run go to DIR/<run id>.")
@click.option(
    "--wait", is_flag=True, help="Wait while another run uses the warehouse, instead of ending with exit code 75."
)
@click.option(
    "--share-warehouse",
    is_flag=True,
    help="Measure although other runs use the warehouse; the result says so, and the other runs become INVALID.",
)
@baseline_options
@click.option("--dry-run", is_flag=True, help="Show the plan, and connect to nothing.")
@click.option("-q", "--quiet", is_flag=True, help="Print no progress; the result is still printed.")
@format_option
@click.option(
    "--from-queue",
    is_flag=True,
    hidden=True,
    help="The scenario comes from the queue: it may use only what --allow-… names.",
)
@allow_options(hidden=True)
def run(
    file: Path,
    connection: str | None,
    overrides: Sequence[str],
    labels: Sequence[str],
    output_dir: Path,
    wait: bool,
    share_warehouse: bool,
    baseline: str | None,
    confirm: bool,
    dry_run: bool,
    quiet: bool,
    output: str,
    from_queue: bool,
    **allow: Any,
) -> int:
    """Run a scenario: prepare what is missing, start workers, warm up, measure, and print the result.

    Exit codes: 0 passed, 2 bad usage or scenario, 3 cannot connect, 4 the run failed, 5 finished but INVALID, 10 a
    threshold failed, 11 worse than the --baseline, 75 another run uses the warehouse, 128 + n stopped by signal n
    (129 SIGHUP, 130 SIGINT, 131 SIGQUIT, 143 SIGTERM).

    The first Ctrl-C, or another of these signals, ends the run gracefully and reports what was measured. The second
    cancels running statements. The third ends the program at once.
    """
    allowed = _permissions(allow) if from_queue else None
    loaded = _read(file, overrides, allowed)
    if dry_run:
        _print_plan(file, loaded, connection, output)
        return 0
    scenario = _scenario(loaded, connection, labels, allowed)
    check_confirm(baseline, confirm)
    if wait and share_warehouse:
        raise UsageError("--wait and --share-warehouse exclude each other", remedy="Leave one of them out.")
    raise_priority()
    from loadgen.clock import SystemClock
    from loadgen.control.location import ControlPlaneLocation
    from orchestrator.job import RunJob
    from orchestrator.nightly.baseline import baseline_judge, wants_second_run
    from orchestrator.nightly.notify import notify_when_done

    place = ControlPlaneLocation.of_scenario(scenario)
    make_job = partial(
        RunJob,
        scenario=scenario,
        folder=file.resolve().parent,
        runs_folder=output_dir,
        clock=SystemClock(),
        roles=job_roles(),
        text=_text_as_run(loaded, connection, labels),
        wait=wait,
        share=share_warehouse,
    )
    with notify_when_done(scenario, warn) as notification, server_for(scenario, quiet=quiet):
        judge = baseline_judge(baseline, control_access(place, "baseline"))
        notification.summary = _run(make_job(), judge, quiet=quiet, output=output, again=confirm)
        if confirm and wants_second_run(notification.summary):
            echo("a regression is suspected: one more run is needed to confirm it", err=True)
            notification.summary = _run(make_job(), judge, quiet=quiet, output=output, again=False)
    return int(notification.summary["exit_code"])


def job_roles() -> JobRoles:
    """What the orchestrator needs from the worker, the embedded server and the terminal."""
    from loadgen.cli.enrich import spool_access
    from loadgen.cli.worker import run_child
    from loadgen.embedded.client import warehouse_model
    from orchestrator.job import JobRoles

    return JobRoles(
        worker_entry=run_child,
        warehouse_model=warehouse_model,
        spool=spool_access(),
        user=user_and_host(),
        show=lambda line: echo(printable(line, LINE_LIMIT), err=True, wrap=line.startswith("warning: ")),
    )


Judge = Callable[[dict[str, Any]], dict[str, Any]]


def _run(job: RunJob, judge: Judge, *, quiet: bool, output: str, again: bool) -> dict[str, Any]:
    """Run the job, print its summary, and return it. A failure to print is a warning: the verdict is also in the files,
    the tables and the exit code."""
    from loadgen.report.run_text import summary_lines
    from orchestrator.nightly.baseline import baseline_text, wants_second_run

    def tell(summary: dict[str, Any]) -> None:
        print_verdict(int(summary["exit_code"]), partial(show, summary), stored=True)

    def show(summary: dict[str, Any]) -> None:
        if output == "json":
            if not (again and wants_second_run(summary)):  # only one document is printed: that of the second run
                echo(json.dumps(summary, indent=2))
            return
        assert job.output is not None
        report = job.output / "report.html"
        shown = str(report) if report.is_file() else None
        print_lines(summary_lines(_said_once(summary), str(job.output), report=shown, width=terminal_width()))
        if "baseline" in summary:
            echo(printable(baseline_text(summary["baseline"])))

    return follow_run(job, quiet=quiet, judge=judge, tell=tell)


def _said_once(summary: dict[str, Any]) -> dict[str, Any]:
    """The summary of a failed run without the reasons that repeat why it ended, which is the first line of its text."""
    if summary["verdict"] != "error":
        return summary
    repeated = f"worker lost: {summary['exit_reason']}"
    reasons = [why for why in summary["validity"]["reasons"] if why != repeated]
    return {**summary, "validity": {**summary["validity"], "reasons": reasons}}


def follow_run(
    job: RunJob,
    *,
    quiet: bool,
    judge: Judge = lambda summary: summary,
    tell: Callable[[dict[str, Any]], None] = lambda _: None,
    experiment: ExperimentStatus | None = None,
) -> dict[str, Any]:
    """Run the job, display its progress, pass on signals, write its files, and `tell` its summary."""
    from loadgen.cli.display import RunDisplay

    shown = RunDisplay(job.scenario, job.clock, quiet=quiet, experiment=experiment)
    with noted_signals() as received, closing(shown) as display:
        job.start()
        display_run(job, display, received)
    finished = job.result(received)
    with noted_signals():
        job.write_summary()
    summary = judge(dict(finished.summary))
    with noted_signals():  # the verdict is known, so signals must not prevent printing it
        missing = job.write_files(summary, warn)
        tell(summary)
        if missing:  # after the result, so that the warning is not overlooked
            how = f"`loadgen report {summary['run_id']} --out FILE` makes each of them, once there is room"
            warn(f"not written in {job.output}: {', '.join(missing)}; {how}")
        display.verdict(summary)
    return summary


def _permissions(allow: Mapping[str, Any]) -> HostPermissions:
    from orchestrator.nightly.queue import HostPermissions

    return HostPermissions.of_options(allow)


def _read(file: Path, overrides: Sequence[str], allowed: HostPermissions | None) -> LoadedScenario:
    """Read the file once: it may be a pipe, and it may change during the run."""
    from loadgen.scenario.read import read_scenario

    variables = None if allowed is None else allowed.variables
    return read_scenario(file, overrides=overrides, environ=os.environ, variables=variables)


def _text_as_run(loaded: LoadedScenario, connection: str | None, labels: Sequence[str]) -> str:
    from loadgen.scenario.read import text_as_run

    return text_as_run(loaded, connection=connection, labels=run_labels(labels, loaded.scenario.labels))


def _scenario(
    loaded: LoadedScenario, connection: str | None, labels: Sequence[str], allowed: HostPermissions | None = None
) -> Scenario:
    from loadgen.scenario.model import with_workers

    for warning in loaded.warnings:
        warn(str(warning))
    scenario = loaded.scenario
    if connection is not None:
        scenario = dataclasses.replace(scenario, connection=connection)
    scenario = dataclasses.replace(scenario, labels={**scenario.labels, **run_labels(labels, scenario.labels)})
    if allowed is not None:
        from orchestrator.nightly.queue import apply_permissions, with_control_plane_of_queue

        scenario = apply_permissions(with_control_plane_of_queue(scenario), allowed, warn)
    return with_workers(scenario, available_cores())


@contextlib.contextmanager
def server_for(scenario: Scenario, *, quiet: bool) -> Iterator[None]:
    """Keep the embedded server running if the target or the control plane is there, and print its address."""
    from loadgen.scenario.model import EMBEDDED
    from loadgen.scenario.settings import EmbeddedEngine

    if EMBEDDED not in (scenario.connection, scenario.control.connection):
        yield
        return
    if scenario.embedded.engine is EmbeddedEngine.NULL:
        raise UsageError(
            "embedded.engine null has no tables, so it cannot store a run", remedy="Leave embedded.engine out."
        )
    from loadgen.cli.display import RunLines
    from loadgen.clock import SystemClock
    from loadgen.embedded.client import embedded_server, server_line

    with embedded_server() as address:
        RunLines(SystemClock(), quiet=quiet).say(server_line(address))
        yield


def _print_plan(file: Path, loaded: LoadedScenario, connection: str | None, output: str) -> None:
    """Print the plan; for workers in Kubernetes the manifest of their Job, with the plan as a comment."""
    from loadgen.cli.validate import FileValidation, validation_json, validation_text
    from loadgen.rules.scenario_plan import plan
    from loadgen.scenario.settings import SpawnerKind

    result = FileValidation(file=str(file), warnings=loaded.warnings, plan=plan(loaded, cores=available_cores()))
    shown = validation_json([result]) if output == "json" else validation_text([result])
    if loaded.scenario.spawner.kind is SpawnerKind.KUBERNETES:
        shown = _with_manifest(shown, loaded, connection, output)
    echo(shown)


def _with_manifest(shown: str, loaded: LoadedScenario, connection: str | None, output: str) -> str:
    from loadgen.control.location import ControlPlaneLocation
    from loadgen.scenario.model import with_workers
    from orchestrator.spawn.containers import planned_manifest
    from orchestrator.spawn.kubernetes_job import manifest_text
    from orchestrator.spawn.spawner import worker_environment

    scenario = with_workers(loaded.scenario, available_cores())
    if connection is not None:
        scenario = dataclasses.replace(scenario, connection=connection)
    variables = worker_environment(scenario, ControlPlaneLocation.of_scenario(scenario))
    manifest = planned_manifest(scenario, variables, warn)
    if output == "json":
        return json.dumps({**json.loads(shown), "manifest": manifest}, indent=2)
    comment = "\n".join(f"# {line}".rstrip() for line in shown.splitlines())
    return f"{comment}\n#\n# RUN_ID is replaced by the id of the run.\n{manifest_text([manifest])}"
