"""`loadgen runs`: look back at runs, end those that nobody leads any more, and delete old ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from loadgen.cli.control_session import control_options, place_given, with_control_session
from loadgen.cli.duration import duration_s
from loadgen.cli.place import format_option
from loadgen.cli.prune import prune
from loadgen.cli.recover import recover
from loadgen.errors import UsageError
from loadgen.log import plain

if TYPE_CHECKING:
    from loadgen.cli.run_view import Look
    from loadgen.control.retry import Patience
    from loadgen.control.run_status import Run
    from loadgen.control.session import ControlSession
    from loadgen.control.test_logs import LogRow
    from loadgen.model.run import RunStatus

LIMIT_MAX = 10_000


@click.group(
    epilog="\b\nExample:\n  loadgen runs list -c prod\n  loadgen runs show latest\n  loadgen runs logs latest -n 20"
)
def runs() -> None:
    """Look back at runs: list them, show one, read its log; end those whose orchestrator was lost; delete old ones."""


@runs.command("list", epilog="\b\nExample:\n  loadgen runs list -c prod -n 50 --status FAILED --within 7d")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, LIMIT_MAX),
    default=20,
    show_default=True,
    metavar="N",
    help="At most so many, the newest first.",
)
@click.option("--status", metavar="STATUS", help="Only those, for instance FAILED.")
@click.option("--scenario", metavar="NAME", help="Only runs of this scenario.")
@click.option("--within", metavar="TIME", help="Only runs made within this time, for instance 12h.")
@control_options
@format_option
def list_runs(
    limit: int, status: str | None, scenario: str | None, within: str | None, output: str, **place: str | None
) -> None:
    """List the latest runs, newest first."""
    wanted_status = None if status is None else _status(status)
    within_s = None if within is None else duration_s(within, "--within")

    def look(session: ControlSession, patience: Patience) -> tuple[tuple[Run, ...], datetime]:
        from loadgen.control import run_status

        found = patience.call(
            lambda: run_status.newest(session, limit, status=wanted_status, scenario=scenario, within_s=within_s)
        )
        return found, patience.call(lambda: run_status.server_time(session))

    found, now = with_control_session(look, name="runs", **place_given(place))
    if output == "json":
        from loadgen.cli.run_view import run_as_json

        click.echo(json.dumps({"runs": [run_as_json(run) for run in found]}, indent=2))
        return
    none = "there are no such runs" if status or scenario or within else "there are no runs yet"
    click.echo(_table(found, now) if found else none)


@runs.command("show", epilog="\b\nExample:\n  loadgen runs show latest~1 -c prod --format json")
@click.argument("run", metavar="RUN")
@control_options
@format_option
def show(run: str, output: str, **place: str | None) -> None:
    """Show RUN: how it ended or where it is, its workers, and its result.

    RUN is the id of a run, a beginning that no other run has, latest, or latest~1 for the one before.
    """

    def look(session: ControlSession, patience: Patience) -> Look:
        from loadgen.cli.run_view import look

        return look(session, patience, run, summary=True)

    seen = with_control_session(look, name="runs", **place_given(place))
    from loadgen.cli.run_view import as_json, as_text

    if output == "json":
        click.echo(json.dumps({**as_json(seen), "summary": seen.summary}, indent=2))
        return
    click.echo(as_text(seen))


@runs.command("logs", epilog="\b\nExample:\n  loadgen runs logs latest -c prod -n 20")
@click.argument("run", metavar="RUN")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, LIMIT_MAX),
    default=100,
    show_default=True,
    metavar="N",
    help="At most so many lines, the last ones.",
)
@control_options
@format_option
def logs(run: str, limit: int, output: str, **place: str | None) -> None:
    """Print what the workers of RUN had to say, oldest first. Times are UTC.

    Warnings are there at once, everything else some seconds later. RUN as for `loadgen runs show`.
    """

    def look(session: ControlSession, patience: Patience) -> tuple[str, tuple[LogRow, ...]]:
        from loadgen.control import run_names, test_logs

        run_id = run_names.find(session, patience, run).run_id
        return run_id, patience.call(lambda: test_logs.newest(session, run_id, limit))

    run_id, lines = with_control_session(look, name="runs", **place_given(place))
    if output == "json":
        click.echo(json.dumps({"run_id": run_id, "lines": [_line_as_json(line) for line in lines]}, indent=2))
        return
    click.echo("\n".join(map(_line, lines)) if lines else f"run {run_id} has logged nothing yet")


def _status(text: str) -> RunStatus:
    from loadgen.model.run import RunStatus

    try:
        return RunStatus(text.upper())
    except ValueError:
        known = ", ".join(status.value for status in RunStatus)
        raise UsageError(f"there is no status {plain(text, 40)!r}", remedy=f"Choose one of {known}.") from None


# --- as text and JSON ------------------------------------------------------------------------------------------------


def _table(found: Sequence[Run], now: datetime) -> str:
    from loadgen.cli.run_view import lasted

    head = ("RUN", "STATUS", "VERDICT", "LASTED", "OPERATIONS", "ERRORS")
    rows = [
        (
            run.run_id,
            run.status.value,
            run.verdict or "-",
            lasted(run, now),
            f"{run.total_ops:,}",
            f"{run.error_count:,}",
        )
        for run in found
    ]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            f"{cell:<{width}}" if number < 3 else f"{cell:>{width}}"
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    )


def _line(line: LogRow) -> str:
    moment = line.timestamp.isoformat(sep=" ", timespec="milliseconds")
    details = f"  {json.dumps(line.details, ensure_ascii=False)}" if line.details else ""
    said = plain(f"{line.message}{details}").replace("\n", "\n    ")
    return f"{moment}  {line.worker_id or 'orchestrator'}  {line.level:<7}  {said}"


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
