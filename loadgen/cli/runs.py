"""`loadgen runs`: show past runs, end those that no process leads any more, and delete old ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadgen.cli.common import (
    duration_s,
    echo,
    print_lines,
    terminal_width,
    text_table,
    unreadable_as_json,
    warn_unreadable,
)
from loadgen.cli.options import (
    control_options,
    count_option,
    format_option,
    output_dir_option,
    with_control_session,
)
from loadgen.cli.recover import recover
from loadgen.errors import UsageError
from loadgen.log import printable
from loadgen.units import counted
from loadgen.values import dataclass

if TYPE_CHECKING:
    from loadgen.cli.status import RunDetails
    from loadgen.control.session import ControlSession, ParsedRows
    from loadgen.control.tables.prune import OldRun, PruneCandidates
    from loadgen.control.tables.run_status import Run, RunFigures
    from loadgen.control.tables.test_logs import LogRow
    from loadgen.model.run import RunStatus
    from loadgen.report.run_text import TextLine
    from loadgen.snowflake.session import RetryPolicy
    from orchestrator.nightly.attempt import AttemptFolder

    Listed = tuple[Run, RunFigures | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneResult:
    """What was found, and what was done about it."""

    found: PruneCandidates
    folders: tuple[AttemptFolder, ...]
    stuck: tuple[AttemptFolder, ...]  # could not be deleted
    deleted: dict[str, int]  # rows by table; empty: nothing was
    dry_run: bool


@click.command("prune", epilog="\b\nExample:\n  loadgen runs prune --older-than 90d --dry-run")
@click.option(
    "--older-than", "age", metavar="TIME", required=True, help="Minimum time since the end of a run: 90d, 12h."
)
@output_dir_option("Where a pool on this machine has its runs: what its failed attempts left there is deleted.")
@click.option("--dry-run", is_flag=True, help="Say which, and delete nothing.")
@control_options
@format_option
def prune(age: str, output_dir: Path, dry_run: bool, output: str, **place: str | None) -> None:
    """Delete old runs from the control plane, and what failed attempts left on this machine.

    Deletes the states, results, logs and samples of runs, old queued runs with their attempts, old experiments, and the
    folders DIR/.queue/<id>.<n> of attempts without a result. DIR/<run id> is not touched.

    What has not ended is never deleted, nor what waits in the queue, nor an experiment that left a warehouse with other
    settings: `loadgen runs recover` restores them first. An experiment has ended when no process leads it. Trends and
    comparisons lose what is deleted, and idempotency keys are forgotten. Safe to repeat.
    """
    age_s = duration_s(age, "--older-than")

    def work(session: ControlSession, patience: RetryPolicy) -> PruneResult:
        from loadgen.control.tables.prune import delete, look
        from orchestrator.nightly.attempt import remove

        found = look(session, patience, age_s)
        folders = _unneeded(session, patience, output_dir, age_s)
        stuck: tuple[AttemptFolder, ...] = ()
        deleted: dict[str, int] = {}
        if not dry_run:
            stuck = tuple(folder for folder in folders if not remove(folder))
            folders = tuple(folder for folder in folders if folder not in stuck)
            deleted = delete(session, patience, found)
        return PruneResult(found=found, folders=folders, stuck=stuck, deleted=deleted, dry_run=dry_run)

    pruned = with_control_session(work, name="prune", **place)
    for folder in pruned.stuck:
        echo(f"warning: could not delete {printable(str(folder.path), 200)}: may you write to it?", err=True)
    echo(json.dumps(_as_json(pruned), indent=2) if output == "json" else _as_text(pruned))


def _unneeded(
    session: ControlSession, patience: RetryPolicy, output_dir: Path, age_s: float
) -> tuple[AttemptFolder, ...]:
    """Folders of attempts at what is not in the queue any more."""
    from loadgen.clock import SystemClock
    from loadgen.control.session import RowUnreadable
    from loadgen.control.tables import run_queue
    from orchestrator.nightly.attempt import old_folders

    def has_ended(queue_id: str) -> bool:
        try:
            row = patience.call(lambda: run_queue.read(session, queue_id))
        except RowUnreadable:
            return False
        return row is None or row.status.is_terminal

    before_s = SystemClock().utc_now().timestamp() - age_s
    return tuple(folder for folder in old_folders(output_dir, before_s) if has_ended(folder.queue_id))


def _as_text(pruned: PruneResult) -> str:
    found = pruned.found
    if not (found.runs or found.queued or found.experiments or pruned.folders or any(pruned.deleted.values())):
        return "nothing else is that old" if pruned.stuck else "nothing is that old"
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

_NUMBERS = ("LASTED", "QPS", "P95 MS", "STATEMENTS", "ERRORS")  # columns that are aligned to the right
_SPARE = ("SCENARIO", "STATEMENTS", "ERRORS")  # columns that a narrow terminal does without


@click.group(
    epilog="\b\nExample:\n  loadgen runs list -c prod\n  loadgen runs show latest\n  loadgen runs logs latest -n 20"
)
def runs() -> None:
    """List runs, show one, read its log, recover runs whose orchestrator was lost, delete old ones."""


@runs.command("list", epilog="\b\nExample:\n  loadgen runs list -c prod -n 50 --status FAILED --within 7d")
@count_option("-n", "--limit", default=20, maximum=LIMIT_MAX, help_text="Maximum number of runs, the newest first.")
@click.option("--status", metavar="STATUS", help="Only those, for instance FAILED.")
@click.option("--scenario", metavar="NAME", help="Only runs of this scenario.")
@click.option("--within", metavar="TIME", help="Only runs made within this time, for instance 12h.")
@control_options
@format_option
def list_runs(
    limit: int, status: str | None, scenario: str | None, within: str | None, output: str, **place: str | None
) -> None:
    """List the latest runs, newest first: when each began, how long it took, throughput, p95 and verdict.

    Figures are those of the result; of a run that goes on, its throughput now. Times are UTC.
    """
    wanted_status = None if status is None else _status(status)
    within_s = None if within is None else duration_s(within, "--within")

    def look(session: ControlSession, patience: RetryPolicy) -> tuple[ParsedRows[Listed], datetime]:
        from loadgen.control.tables import run_status

        found = patience.call(
            lambda: run_status.listed(session, limit, status=wanted_status, scenario=scenario, within_s=within_s)
        )
        return found, patience.call(lambda: run_status.server_time(session))

    found, now = with_control_session(look, name="runs", **place)
    if output == "json":
        from loadgen.cli.status import run_as_json

        told = {"runs": [run_as_json(*one, now) for one in found], "unreadable": unreadable_as_json(found)}
        echo(json.dumps(told, indent=2))
        return
    warn_unreadable(found)
    if found:
        print_lines(_table(found, now, terminal_width()))
    else:
        echo("there are no such runs" if status or scenario or within else "there are no runs yet")


@runs.command("show", epilog="\b\nExample:\n  loadgen runs show latest~1 -c prod --format json")
@click.argument("run", metavar="RUN")
@control_options
@format_option
def show(run: str, output: str, **place: str | None) -> None:
    """Show RUN: how it ended or where it is, its workers, and its result.

    RUN is the id of a run, a beginning that no other run has, latest, or latest~1 for the one before.
    """

    def look(session: ControlSession, patience: RetryPolicy) -> RunDetails:
        from loadgen.cli.status import look

        return look(session, patience, run)

    seen = with_control_session(look, name="runs", **place)
    warn_unreadable(seen.workers)
    if seen.summary_problem:
        echo(f"warning: {printable(seen.summary_problem, 500)}", err=True)
    from loadgen.cli.status import as_json, as_lines

    if output == "json":
        echo(json.dumps({**as_json(seen), "summary": seen.summary}, indent=2))
    else:
        print_lines(as_lines(seen, terminal_width(), result=True))


@runs.command("logs", epilog="\b\nExample:\n  loadgen runs logs latest -c prod -n 20")
@click.argument("run", metavar="RUN")
@count_option("-n", "--limit", default=100, maximum=LIMIT_MAX, help_text="Maximum number of lines, the last ones.")
@control_options
@format_option
def logs(run: str, limit: int, output: str, **place: str | None) -> None:
    """Print the log lines of RUN's workers, oldest first. Times are UTC.

    Warnings are there at once, everything else some seconds later. RUN as for `loadgen runs show`.
    """

    def look(session: ControlSession, patience: RetryPolicy) -> tuple[str, ParsedRows[LogRow]]:
        from loadgen.control import run_lookup
        from loadgen.control.tables import test_logs

        run_id = run_lookup.find_run(session, patience, run).run_id
        return run_id, patience.call(lambda: test_logs.newest(session, run_id, limit))

    run_id, lines = with_control_session(look, name="runs", **place)
    if output == "json":
        told = {"run_id": run_id, "lines": [_line_as_json(line) for line in lines]}
        echo(json.dumps({**told, "unreadable": unreadable_as_json(lines)}, indent=2))
        return
    warn_unreadable(lines)
    echo("\n".join(map(_line, lines)) if lines else f"run {printable(run_id)} has logged nothing yet")


def _status(text: str) -> RunStatus:
    from loadgen.model.run import RunStatus

    try:
        return RunStatus(text.upper())
    except ValueError:
        known = ", ".join(status.value for status in RunStatus)
        raise UsageError(f"there is no status {printable(text, 40)!r}", remedy=f"Choose one of {known}.") from None


# --- as text and JSON ------------------------------------------------------------------------------------------------


def _table(found: Sequence[Listed], now: datetime, width: int | None) -> list[TextLine]:
    """As many columns as the terminal has room for; through a pipe, all of them."""
    from loadgen.cli.status import outcome
    from loadgen.report.run_text import VERDICT_COLOURS, TextLine, columns

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
    from loadgen.cli.status import lasted, outcome

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
        "timestamp": f"{line.timestamp.isoformat(timespec='milliseconds')}Z",
        "worker_id": line.worker_id,
        "level": line.level,
        "message": line.message,
        "details": line.details,
    }


runs.add_command(recover)
runs.add_command(prune)
