"""`loadgen runs prune`: delete what old runs left in the control plane, and what their attempts left here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadgen.cli.common import echo
from loadgen.cli.control_session import control_options, location_arguments, with_control_session
from loadgen.cli.duration import duration_s
from loadgen.cli.options import format_option
from loadgen.log import printable
from loadgen.units import counted

if TYPE_CHECKING:
    from loadgen.control.retry import RetryPolicy
    from loadgen.control.session import ControlSession
    from loadgen.control.tables.prune import OldRun, PruneCandidates
    from orchestrator.nightly.attempt_folders import AttemptFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneResult:
    """What was found, and what was done about it."""

    found: PruneCandidates
    folders: tuple[AttemptFolder, ...]
    stuck: tuple[AttemptFolder, ...]  # could not be deleted
    deleted: dict[str, int]  # rows by table; empty: nothing was
    dry_run: bool


@click.command("prune", epilog="\b\nExample:\n  loadgen runs prune --older-than 90d --dry-run")
@click.option("--older-than", "age", metavar="TIME", required=True, help="Only what ended so long ago: 90d, 12h.")
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs"),
    show_default=True,
    help="Where a pool on this machine has its runs: what its failed attempts left there is deleted.",
)
@click.option("--dry-run", is_flag=True, help="Say which, and delete nothing.")
@control_options
@format_option
def prune(age: str, output_dir: Path, dry_run: bool, output: str, **place: str | None) -> None:
    """Delete old runs from the control plane, and what failed attempts left on this machine.

    Deletes the states, results, logs and samples of runs, old queued runs with their attempts, and the folders
    DIR/.queue/<id>.<n> of attempts without a result. DIR/<run id> is not touched.

    What has not ended is never deleted, nor what waits in the queue. Trends and comparisons lose what is deleted, and
    idempotency keys are forgotten. Safe to repeat.
    """
    age_s = duration_s(age, "--older-than")

    def work(session: ControlSession, patience: RetryPolicy) -> PruneResult:
        from loadgen.control.tables.prune import delete, look
        from orchestrator.nightly.attempt_folders import remove

        found = look(session, patience, age_s)
        folders = _unneeded(session, patience, output_dir, age_s)
        stuck: tuple[AttemptFolder, ...] = ()
        deleted: dict[str, int] = {}
        if not dry_run:
            stuck = tuple(folder for folder in folders if not remove(folder))
            folders = tuple(folder for folder in folders if folder not in stuck)
            deleted = delete(session, patience, found.before) if found.runs or found.queued else {}
        return PruneResult(found=found, folders=folders, stuck=stuck, deleted=deleted, dry_run=dry_run)

    pruned = with_control_session(work, name="prune", **location_arguments(place))
    for folder in pruned.stuck:
        echo(f"warning: could not delete {printable(str(folder.path), 200)}: may you write to it?", err=True)
    echo(json.dumps(_as_json(pruned), indent=2) if output == "json" else _as_text(pruned))


def _unneeded(
    session: ControlSession, patience: RetryPolicy, output_dir: Path, age_s: float
) -> tuple[AttemptFolder, ...]:
    """Folders of attempts at what is not in the queue any more."""
    from loadgen.clock import SystemClock
    from loadgen.control.rows import RowUnreadable
    from loadgen.control.tables import run_queue
    from orchestrator.nightly.attempt_folders import old_folders

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
    if not (found.runs or found.queued or pruned.folders):
        return "nothing else is that old" if pruned.stuck else "nothing is that old"
    lines = [*_lines("run", found.runs), *_lines("queued", found.queued)]
    lines += [f"folder  {printable(str(folder.path), 200)}" for folder in pruned.folders]
    all_of_it = (
        f"{counted(len(found.runs), 'run')}, {counted(len(found.queued), 'queued run')} and"
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
        "folders": [str(folder.path) for folder in pruned.folders],
        "stuck": [str(folder.path) for folder in pruned.stuck],
        "deleted": pruned.deleted,
    }


def _what(one: OldRun) -> dict[str, str]:
    return {"scenario": one.scenario, "ended_at": f"{one.ended_at.isoformat()}Z"}
