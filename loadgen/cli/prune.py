"""`loadgen runs prune`: delete what old runs left in the control plane."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from loadgen.cli.control_session import control_options, place_given, with_control_session
from loadgen.cli.duration import duration_s
from loadgen.cli.place import format_option
from loadgen.log import plain

if TYPE_CHECKING:
    from loadgen.control.prune import OldRun
    from loadgen.control.retry import Patience
    from loadgen.control.session import ControlSession


@click.command("prune", epilog="\b\nExample:\n  loadgen runs prune --older-than 90d --dry-run")
@click.option("--older-than", "age", metavar="TIME", required=True, help="Only runs that ended so long ago: 90d, 12h.")
@click.option("--dry-run", is_flag=True, help="Say which, and delete nothing.")
@control_options
@format_option
def prune(age: str, dry_run: bool, output: str, **place: str | None) -> None:
    """Delete old runs from every control table: states, results, logs and samples. Files of runs are not touched.

    A run that has not ended is never deleted. Trends and comparisons lose what is deleted. Safe to repeat.
    """
    age_s = duration_s(age, "--older-than")

    def work(session: ControlSession, patience: Patience) -> tuple[tuple[OldRun, ...], dict[str, int]]:
        from loadgen.control.prune import delete, old_runs

        before, found = old_runs(session, patience, age_s)
        return found, {} if dry_run or not found else delete(session, patience, before)

    found, deleted = with_control_session(
        work,
        name="prune",
        **place_given(place),
    )
    click.echo(json.dumps(_as_json(found, deleted), indent=2) if output == "json" else _as_text(found, deleted))


def _as_text(found: tuple[OldRun, ...], deleted: dict[str, int]) -> str:
    if not found:
        return "no run is that old"
    lines = [f"{run.run_id}  {plain(run.scenario, 60)}  ended {run.ended_at:%Y-%m-%d %H:%M} UTC" for run in found]
    if not deleted:
        return "\n".join([*lines, f"{len(found)} runs would be deleted"])
    rows = sum(deleted.values())
    return "\n".join([*lines, f"{len(found)} runs are deleted: {rows:,} rows of {len(deleted)} tables"])


def _as_json(found: tuple[OldRun, ...], deleted: dict[str, int]) -> dict[str, Any]:
    return {
        "runs": [
            {"run_id": run.run_id, "scenario": run.scenario, "ended_at": f"{run.ended_at.isoformat()}Z"}
            for run in found
        ],
        "deleted": deleted,
    }
