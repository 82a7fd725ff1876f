"""`loadgen runs`: list and show runs, recover runs without a leader, delete old runs. `loadgen status`: one run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadgen.cli.common import (
    duration_s,
    echo,
    parse_status,
    print_lines,
    print_verdict,
    terminal_width,
    text_table,
    unreadable_as_json,
    utc_stamp,
    warn,
    warn_unreadable,
)
from loadgen.cli.options import (
    control_options,
    count_option,
    embedded_server_if_needed,
    format_option,
    output_dir_option,
    with_control_session,
)
from loadgen.cli.run import follow_run, job_roles
from loadgen.clock import SystemClock
from loadgen.control.location import resolve_target
from loadgen.log import printable
from loadgen.process import user_and_host
from loadgen.threads import run_in_thread
from loadgen.units import counted

if TYPE_CHECKING:
    from loadgen.control.session import ControlSession, ParsedRows
    from loadgen.control.tables.prune import OldRun
    from loadgen.control.tables.run_status import Run, RunFigures
    from loadgen.control.tables.test_logs import LogRow
    from loadgen.report.run_text import TextLine
    from loadgen.snowflake.session import RetryPolicy
    from orchestrator.nightly.queue import PruneResult
    from orchestrator.recover import RecoveryOutcome

    Listed = tuple[Run, RunFigures | None]


# --- `loadgen runs recover`: end runs whose orchestrator was lost, or take them over ---------------------------------


@click.command("recover", epilog="\b\nExample:\n  loadgen runs recover -c prod")
@click.argument("run", metavar="[RUN]", required=False)
@output_dir_option("Results of a run that is taken over go to DIR/<run id>.")
@click.option("--end-only", is_flag=True, help="Only end runs; do not take over a run whose workers are alive.")
@control_options
@format_option
def recover(run: str | None, output_dir: Path, end_only: bool, output: str, **place: str | None) -> int:
    """End runs whose orchestrator was lost, or take them over. Without RUN: all such runs.

    Such a run ends as FAILED, with everything that was recorded. A run whose workers are alive (started by hand, or in
    containers) is taken over and led to its end, as `loadgen run` would have done; Ctrl-C stops it. Each command takes
    over one run, and lists the others. A run is taken over only some seconds after its lease has expired. The lease of
    an orchestrator that has ended on this machine counts as expired at once. The command may be repeated, and several
    users may start it at the same time. Exit code 75 if RUN still has a leader.

    Without RUN the command also restores warehouse settings that were changed by experiments whose process has ended.
    Exit code 4 if a warehouse could not be restored.
    """
    from orchestrator.recover import recover_all

    outcome = recover_all(
        lambda action: with_control_session(action, name="recover", **place),
        run,
        by=user_and_host(),
        take_over=not end_only,
        say=lambda line: echo(printable(line), err=True),
        clock=SystemClock(),
    )
    taken: dict[str, Any] | None = None
    if outcome.takeable:
        outcome, taken = _take_over_first(outcome, place, output_dir)

    def tell() -> None:
        if output == "json":
            echo(json.dumps(_recovery_as_json(outcome, taken), indent=2))
        else:
            _print(outcome, taken)

    return print_verdict(outcome.exit_code(taken if run is not None else None), tell)


def _take_over_first(
    outcome: RecoveryOutcome, place: dict[str, str | None], output_dir: Path
) -> tuple[RecoveryOutcome, dict[str, Any] | None]:
    """Take over the first run, and lead it to its end. The other runs are listed first, because their workers do
    not wait."""
    from orchestrator.job import RunAlreadyEnded

    first, *others = (one.run_id for one in outcome.takeable)
    for run_id in map(printable, others):
        echo(f"run {run_id} has no leader either: `loadgen runs recover {run_id}` takes it over", err=True)
    try:
        summary = take_over(first, place, output_dir)
    except RunAlreadyEnded:
        return outcome.with_takeover(first, has_ended=True), None
    return outcome.with_takeover(first, has_ended=False), summary


def _print(outcome: RecoveryOutcome, taken: Mapping[str, Any] | None) -> None:
    from loadgen.report.run_text import summary_lines

    lines = [f"run {one.run_id} is {one.status} now: {one.reason}" for one in outcome.ended]
    lines += [f"run {one.run_id} was not changed: {one.why}" for one in outcome.unchanged]
    lines += [
        f"warehouse {one.warehouse}, which experiment {one.experiment_id} created, was dropped"
        if one.restored and one.is_made
        else f"warehouse {one.warehouse} has the settings from before experiment {one.experiment_id} again"
        if one.restored
        else f"warehouse {one.warehouse} still has the settings of experiment {one.experiment_id}: {one.why}"
        for one in outcome.settings
    ]
    if not lines and taken is None:
        lines = ["nothing to recover: every run has ended or has a leader"]
    for line in lines:
        echo(printable(line, 1_000))
    if taken is not None:
        print_lines(summary_lines(taken, width=terminal_width()))


def _recovery_as_json(outcome: RecoveryOutcome, taken: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        "recovered": [
            {"run_id": one.run_id, "status": one.status.value, "reason": one.reason} for one in outcome.ended
        ],
        "left": [{"run_id": one.run_id, "why": one.why} for one in outcome.unchanged],
        "led_on": [] if taken is None else [taken],
        "settings": [
            {
                "experiment_id": one.experiment_id,
                "warehouse": one.warehouse,
                "restored": one.restored,
                "why": one.why,
            }
            for one in outcome.settings
        ],
    }


def take_over(run_id: str, place: Mapping[str, str | None], output_dir: Path) -> dict[str, Any]:
    """Take over the run, and lead it to its end. Returns its summary."""
    from orchestrator.job import takeover_job

    aim = resolve_target(
        None, place["connection"], **{name: value for name, value in place.items() if name != "connection"}
    )
    with embedded_server_if_needed(aim.place.connection):
        job = run_in_thread(
            lambda: takeover_job(aim.place, run_id, output_dir, job_roles(), clock=SystemClock()), name="take-over"
        )
        with embedded_server_if_needed(
            job.scenario.connection
        ):  # the target may be the embedded server while the control plane is not
            return follow_run(job, quiet=False)


# --- `loadgen runs` --------------------------------------------------------------------------------------------------


@click.command("prune", epilog="\b\nExample:\n  loadgen runs prune --older-than 90d --dry-run")
@click.option(
    "--older-than", "age", metavar="TIME", required=True, help="Minimum time since the end of a run: 90d, 12h."
)
@output_dir_option("The folder of runs of a pool on this machine: folders of its failed attempts are deleted.")
@click.option("--dry-run", is_flag=True, help="List what would be deleted, and delete nothing.")
@control_options
@format_option
def prune(age: str, output_dir: Path, dry_run: bool, output: str, **place: str | None) -> None:
    """Delete old runs from the control plane, and folders of failed attempts from this machine.

    Deletes the states, results, logs and samples of runs, old queued runs with their attempts, old experiments, and the
    folders DIR/.queue/<id>.<n> of attempts without a result. DIR/<run id> is not changed.

    Never deleted are runs that have not ended, runs that wait in the queue, and experiments whose warehouse settings
    were not restored (`loadgen runs recover` restores them). An experiment has ended when no process leads it. Deleted
    runs no longer appear in trends and comparisons, and their idempotency keys can be used again. The command may be
    repeated.
    """
    from orchestrator.nightly.queue import prune_old_runs

    age_s = duration_s(age, "--older-than")

    def work(session: ControlSession, retries: RetryPolicy) -> PruneResult:
        return prune_old_runs(session, retries, age_s, output_dir, clock=SystemClock(), dry_run=dry_run)

    pruned = with_control_session(work, name="prune", **place)
    for folder in pruned.stuck:
        warn(f"{folder.path} could not be deleted: check its permissions")
    echo(json.dumps(_as_json(pruned), indent=2) if output == "json" else _as_text(pruned))


def _as_text(pruned: PruneResult) -> str:
    found = pruned.found
    if not (found.runs or found.queued or found.experiments or pruned.folders or any(pruned.deleted.values())):
        return "nothing else is old enough" if pruned.stuck else "nothing is old enough"
    lines = [
        *_lines("run", found.runs),
        *_lines("queued", found.queued),
        *_lines("experiment", found.experiments),
    ]
    lines += [f"folder  {printable(str(folder.path), 200)}" for folder in pruned.folders]
    all_of_it = (
        f"{counted(len(found.runs), 'run')}, {counted(len(found.queued), 'queued run')},"
        f" {counted(len(found.experiments), 'experiment')} and"
        f" {counted(len(pruned.folders), 'folder')}"
    )
    if pruned.dry_run:
        return "\n".join([*lines, f"would delete {all_of_it}"])
    return "\n".join([*lines, f"deleted {all_of_it}: {counted(sum(pruned.deleted.values()), 'row')}"])


def _lines(kind: str, found: Sequence[OldRun]) -> list[str]:
    return [
        f"{kind}  {one.id}  {printable(one.scenario, 60)}  ended {one.ended_at:%Y-%m-%d %H:%M} UTC" for one in found
    ]


def _as_json(pruned: PruneResult) -> dict[str, Any]:
    found = pruned.found
    return {
        "runs": [{"run_id": one.id, **_what(one)} for one in found.runs],
        "queued": [{"queue_id": one.id, **_what(one)} for one in found.queued],
        "experiments": [{"experiment_id": one.id, "name": one.scenario, **_ended(one)} for one in found.experiments],
        "folders": [str(folder.path) for folder in pruned.folders],
        "stuck": [str(folder.path) for folder in pruned.stuck],
        "deleted": pruned.deleted,
    }


def _what(one: OldRun) -> dict[str, str]:
    return {"scenario": one.scenario, **_ended(one)}


def _ended(one: OldRun) -> dict[str, str]:
    return {"ended_at": f"{one.ended_at.isoformat()}Z"}


LIMIT_MAX = 10_000
VERDICTS = ("passed", "missed", "invalid", "cancelled", "error")  # as the list shows them

_NUMBERS = ("LASTED", "QPS", "P95 MS", "STATEMENTS", "ERRORS")  # columns aligned to the right
_SPARE = ("SCENARIO", "STATEMENTS", "ERRORS")  # columns left out on a narrow terminal


@click.group(
    epilog="\b\nExample:\n  loadgen runs list -c prod\n  loadgen runs show latest\n  loadgen runs logs latest -n 20"
)
def runs() -> None:
    """List runs, show one, print its log, recover runs whose orchestrator was lost, delete old runs."""


@runs.command("list", epilog="\b\nExample:\n  loadgen runs list -c prod -n 50 --verdict missed --within 7d")
@count_option("-n", "--limit", default=20, maximum=LIMIT_MAX, help_text="Maximum number of runs.")
@click.option("--status", metavar="STATUS", help="Only runs with this status, for example RUNNING.")
@click.option("--verdict", type=click.Choice(VERDICTS), help="Only runs with this verdict.")
@click.option("--scenario", metavar="NAME", help="Only runs of this scenario.")
@click.option("--within", metavar="TIME", help="Only runs created within this time, for example 12h.")
@control_options
@format_option
def list_runs(
    limit: int,
    status: str | None,
    verdict: str | None,
    scenario: str | None,
    within: str | None,
    output: str,
    **place: str | None,
) -> None:
    """List the latest runs, newest first: start, duration, throughput, p95 and verdict.

    For a run that has not ended, the current throughput is shown. Times are UTC.
    """
    from loadgen.model.run import RunStatus
    from loadgen.report.formatting import verdict_of_word

    wanted_status = None if status is None else parse_status(status, RunStatus)
    wanted_verdict = None if verdict is None else verdict_of_word(verdict)
    within_s = None if within is None else duration_s(within, "--within")

    def read(session: ControlSession, retries: RetryPolicy) -> tuple[ParsedRows[Listed], datetime]:
        from loadgen.control.tables import run_status

        found = retries.call(
            lambda: run_status.listed(
                session, limit, status=wanted_status, verdict=wanted_verdict, scenario=scenario, within_s=within_s
            )
        )
        return found, retries.call(lambda: run_status.server_time(session))

    found, now = with_control_session(read, name="runs", **place)
    if output == "json":
        from loadgen.results.run_details import run_as_json

        document = {"runs": [run_as_json(*one, now) for one in found], "unreadable": unreadable_as_json(found)}
        echo(json.dumps(document, indent=2))
        return
    warn_unreadable(found)
    if found:
        print_lines(_table(found, now, terminal_width()))
    else:
        echo("no runs found" if status or verdict or scenario or within else "there are no runs yet")


@runs.command("show", epilog="\b\nExample:\n  loadgen runs show latest~1 -c prod --format json")
@click.argument("run", metavar="RUN")
@control_options
@format_option
def show(run: str, output: str, **place: str | None) -> None:
    """Show RUN: its state, its workers, and its result.

    RUN is a run id, a unique prefix of one, `latest`, or `latest~1` for the run before.
    """

    _show(run, place, output, result=True)


@runs.command("logs", epilog="\b\nExample:\n  loadgen runs logs latest -c prod -n 20")
@click.argument("run", metavar="RUN")
@count_option(
    "-n", "--limit", default=100, maximum=LIMIT_MAX, help_text="Maximum number of lines; the last ones are printed."
)
@control_options
@format_option
def logs(run: str, limit: int, output: str, **place: str | None) -> None:
    """Print the log lines of RUN's workers, oldest first. Times are UTC.

    Workers store warnings at once, and other lines after some seconds. RUN as in `loadgen runs show`.
    """

    def read(session: ControlSession, retries: RetryPolicy) -> tuple[str, ParsedRows[LogRow]]:
        from loadgen.control.tables import run_status, test_logs

        run_id = run_status.find_run(session, retries, run).run_id
        return run_id, retries.call(lambda: test_logs.newest(session, run_id, limit))

    run_id, lines = with_control_session(read, name="runs", **place)
    if output == "json":
        document = {"run_id": run_id, "lines": [_line_as_json(line) for line in lines]}
        echo(json.dumps({**document, "unreadable": unreadable_as_json(lines)}, indent=2))
        return
    warn_unreadable(lines)
    echo("\n".join(map(_line, lines)) if lines else f"run {printable(run_id)} has no log lines yet")


@click.command(epilog="\b\nExample:\n  loadgen status -c prod\n  loadgen status 20261115-0200-orders --format json")
@click.argument("run", metavar="[RUN]", default="latest")
@control_options
@format_option
def status(run: str, output: str, **place: str | None) -> None:
    """Show the state of RUN, its leader, and its workers. Without RUN: the latest run.

    RUN is a run id, a unique prefix of one, `latest`, or `latest~1` for the run before. Exit code 0 for every state, 2
    if there is no such run, 3 if the control plane cannot be reached.
    """
    _show(run, place, output, result=False)


def _show(run: str, place: dict[str, str | None], output: str, *, result: bool) -> None:
    """Print the state of a run; with `result`, also the summary of an ended run."""
    from loadgen.results.run_details import read_run_details, run_details_as_json, run_details_lines

    seen = with_control_session(
        lambda session, retries: read_run_details(session, retries, run), name="runs" if result else "status", **place
    )
    warn_unreadable(seen.workers)
    if seen.summary_problem:
        warn(seen.summary_problem)
    if output == "json":
        summary = {"summary": seen.summary} if result else {}
        echo(json.dumps({**run_details_as_json(seen), **summary}, indent=2))
    else:
        print_lines(run_details_lines(seen, terminal_width(), result=result))


# --- as text and JSON ------------------------------------------------------------------------------------------------


def _table(found: Sequence[Listed], now: datetime, width: int | None) -> list[TextLine]:
    """The columns that the terminal has room for; all of them if stdout is not a terminal."""
    from loadgen.report.run_text import VERDICT_COLOURS, TextLine, columns
    from loadgen.results.run_details import outcome

    rows = [_cells(run, figures, now) for run, figures in found]
    for left_out, gap in ((), 2), (("SCENARIO",), 2), (_SPARE, 2), (_SPARE, 1):
        head = [name for name in rows[0] if name not in left_out]
        right = [number for number, name in enumerate(head) if name in _NUMBERS]
        lines = text_table(head, [[row[name] for name in head] for row in rows], right=right, gap=gap).splitlines()
        if width is None or max(map(columns, lines)) <= width:
            break
    words = [outcome(run) for run, _ in found]
    verdicts = (
        TextLine(line, f" {word}", VERDICT_COLOURS.get(word)) for line, word in zip(lines[1:], words, strict=True)
    )
    return [TextLine(lines[0]), *verdicts]


def _cells(run: Run, figures: RunFigures | None, now: datetime) -> dict[str, str]:
    from loadgen.results.run_details import lasted, outcome

    operations, errors = (run.total_ops, run.error_count) if figures is None else (figures.operations, figures.errors)
    qps = run.current_qps if figures is None else figures.qps
    return {
        "RUN": run.run_id,
        "SCENARIO": printable(run.test_name, 40),
        "START (UTC)": f"{run.start_time or run.created_at:%m-%d %H:%M}",
        "LASTED": lasted(run, now),
        "QPS": "-" if qps is None else f"{qps:,.1f}" if qps < 1_000 else f"{qps:,.0f}",
        "P95 MS": "-" if figures is None or figures.p95_ms is None else _p95(figures.p95_ms, figures.p95_at_least),
        "STATEMENTS": f"{operations:,}",
        "ERRORS": f"{errors:,}",
        "VERDICT": outcome(run),
    }


def _p95(p95_ms: float, at_least: bool) -> str:
    from loadgen.report.formatting import bounded

    return bounded(f"{p95_ms:,.1f}" if p95_ms < 1_000 else f"{p95_ms:,.0f}", at_least=at_least)


def _line(line: LogRow) -> str:
    moment = line.timestamp.isoformat(sep=" ", timespec="milliseconds")
    details = f"  {json.dumps(line.details, ensure_ascii=False)}" if line.details else ""
    return printable(f"{moment}  {line.worker_id or 'orchestrator'}  {line.level:<7}  {line.message}{details}")


def _line_as_json(line: LogRow) -> dict[str, Any]:
    return {
        "timestamp": utc_stamp(line.timestamp),
        "worker_id": line.worker_id,
        "level": line.level,
        "message": line.message,
        "details": line.details,
    }


runs.add_command(recover)
runs.add_command(prune)
