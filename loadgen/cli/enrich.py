"""`loadgen enrich`: join times of the query history to logged statements. `loadgen upload`: store spooled results."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loadgen.cli.common import echo
from loadgen.cli.options import (
    control_options,
    embedded_server_if_needed,
    format_option,
    output_dir_option,
    resolve_target,
    with_control_session,
)
from loadgen.errors import Busy, UsageError
from loadgen.log import printable
from loadgen.threads import run_in_thread
from loadgen.units import counted
from loadgen.values import dataclass
from orchestrator.run_folder import SPOOL, remove_if_empty, rewrite_reports

if TYPE_CHECKING:
    from loadgen.control.location import ControlPlaneLocation
    from loadgen.report.records import RunRecord
    from loadgen.rules.enrichment import EnrichmentResult


@click.command(
    epilog="\b\nExample:\n  loadgen enrich latest -c prod --wait\n  loadgen enrich 20261115-0200-orders-7f3a"
)
@click.argument("run", metavar="RUN")
@click.option("--wait", is_flag=True, help="Wait a few minutes for statements that the history may not show yet.")
@click.option("--hybrid", is_flag=True, help="Also look for statements that use hybrid tables only.")
@output_dir_option("Folder of runs. If it contains this run, its files are updated.")
@control_options
@format_option
def enrich(
    run: str,
    wait: bool,
    hybrid: bool,
    output_dir: Path,
    output: str,
    **place: str | None,
) -> None:
    """Join server-side times from Snowflake's query history to the logged statements of RUN.

    `loadgen run` does this for at most a minute and a half; this command continues it, also if the scenario has
    enrichment.enabled: false. The history covers seven days. Of statements that use hybrid tables only, the history
    contains few, mostly slow ones, so they are left out without --hybrid. The command may be repeated; enriched
    statements stay enriched. It updates the coverage in the stored result, and in summary.json and the reports in the
    folder of the run. The status and the measurements of the run do not change. RUN as in `loadgen runs show`. Exit
    code 0 even if not all statements were found, 3 if the history cannot be read, 75 if the run has not ended.
    """
    from orchestrator.enrich import enrich_again

    result, record = with_control_session(
        lambda session, retries: enrich_again(session, retries, run, hybrid=hybrid, wait=wait, on_progress=_tell),
        name="enrich",
        **place,
    )
    if result.error is not None:
        raise result.error
    if record is not None:
        from loadgen.report.summary import with_enrichment
        from loadgen.worker.arguments import is_id

        folder = output_dir / result.run_id
        if is_id(result.run_id) and rewrite_reports(folder, record, lambda summary: with_enrichment(summary, result)):
            echo(f"updated the reports in {printable(str(folder))}", err=True)
    echo(json.dumps(_as_json(result), indent=2) if output == "json" else "\n".join(_lines(result)))


def _tell(coming: int) -> None:
    echo(f"not in the history yet: {counted(coming, 'statement')}; trying again", err=True)


def _as_json(result: EnrichmentResult) -> dict[str, object]:
    from loadgen.report.summary import enrichment_document

    return {"run_id": result.run_id, **enrichment_document(result), "overhead_ms": result.overhead_ms}


def _lines(result: EnrichmentResult) -> Iterator[str]:
    from loadgen.report.summary import enrichment_document

    document = enrichment_document(result)
    coverage = result.coverage_percent
    share = (
        "nothing was logged" if coverage is None else f"{coverage:.1f} % of {counted(result.total, 'logged statement')}"
    )
    yield f"run {printable(result.run_id)}: {result.status}, {share}"
    yield "  " + "  ".join(f"{status} {count:,}" for status, count in result.counts.items())
    if result.reasons:
        yield "why not all:"
    for reason in result.reasons:
        yield f"  {printable(reason, 500)}"
    ledger = document["ledger_ms"]
    if ledger:
        yield f"time in Snowflake in ms, of {document['ledger_samples']:,} measured statements that succeeded:"
        yield f"  {'':<20}{'avg':>10}{'p50':>10}{'p95':>10}"
    for name, part in ledger.items():
        yield f"  {name.replace('_', ' '):<20}" + "".join(f"{_ms(part[key]):>10}" for key in ("mean", "p50", "p95"))
    if result.overhead_ms is not None:
        yield f"the client added {result.overhead_ms:,.2f} ms (median)"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


# --- `loadgen upload`: store spooled results of a run ----------------------------------------------------------------

ATTEMPTS = 5  # half a minute of pauses, because a user waits


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadedFolder:
    """The folder of one process, which is deleted now, and the number of rows of each kind that were in it."""

    folder: str
    rows: dict[str, int]


@click.command(epilog="\b\nExample:\n  loadgen upload 20261115-0200-orders-7f3a")
@click.argument("run", metavar="RUN")
@control_options
@output_dir_option("Folder of runs: workers of this machine spool unsent rows to DIR/<run id>/spool.")
@format_option
def upload(
    run: str,
    output_dir: Path,
    output: str,
    **place: str | None,
) -> None:
    """Store the spooled results of RUN: rows on this machine that its processes could not store.

    Workers that `loadgen run` started spool query logs and unsent rows to the folder of the run, other workers to
    $LOADGEN_SPOOL_DIR, or to loadgen/spool in the user's state directory. Stored files are deleted. The command may be
    repeated: nothing is stored twice. RUN is a run id, a unique prefix of one, or `latest`. Exit code 0 even if nothing
    is spooled, 3 if the control plane cannot be reached, 75 if a worker still runs.
    """
    aim = resolve_target(None, **place)
    run = _named(aim.place, run)
    run_id, folders = _found(run, _spools(output_dir))
    uploaded: list[UploadedFolder] = []
    busy: list[str] = []
    if folders:
        with embedded_server_if_needed(aim.place.connection):
            record = run_in_thread(lambda: _upload(aim.place, run_id, folders, uploaded, busy), name="upload")
        if record is not None:
            _rewrite(output_dir / run_id, record)
        remove_if_empty(output_dir / run_id / SPOOL)
    if busy:
        raise Busy(
            f"spool folders are in use and were not uploaded: {', '.join(busy)}",
            remedy="Wait for the workers to end; they upload their rows themselves when they can.",
        )
    if output == "json":
        workers = [
            {"folder": one.folder, "executions": one.rows.get("execution", 0), "rows": one.rows} for one in uploaded
        ]
        echo(json.dumps({"run_id": run_id, "workers": workers}, indent=2))
        return
    from loadgen.report.summary import describe_rows

    for one in uploaded:
        echo(f"{one.folder}: {describe_rows(one.rows) or 'no rows'} stored")
    if not uploaded:
        places = f"{printable(str(_own_spool()))} or {printable(str(output_dir))}"
        echo(f"nothing to upload: no spooled results of run {printable(run_id)} in {places}")


def _named(place: ControlPlaneLocation, name: str) -> str:
    """The run id for `latest`, from the tables; other names are resolved by the folders on this machine."""
    from loadgen.control.session import ControlSession
    from loadgen.control.tables import run_status
    from loadgen.snowflake.session import RetryPolicy

    if not run_status.is_latest(name):
        return name

    def look() -> str:
        session = ControlSession(place, role="upload")
        try:
            retries = RetryPolicy(stop=threading.Event(), attempts=ATTEMPTS, note=_note)
            return run_status.find_run(session, retries, name).run_id
        finally:
            session.close()

    with embedded_server_if_needed(place.connection):
        return run_in_thread(look, name="upload")


def _own_spool() -> Path:
    from loadgen.worker.flush import spool_folder

    return spool_folder()


def _spools(output_dir: Path) -> list[Path]:
    """The default spool of workers, and the spools in the folders of runs."""
    return [_own_spool(), *sorted(output_dir.glob(f"*/{SPOOL}"))]


def _found(run: str, spools: list[Path]) -> tuple[str, list[Path]]:
    """The id of the named run, and its folders."""
    from loadgen.worker.arguments import is_id
    from loadgen.worker.flush import spool_folders_by_run

    if not is_id(run):
        raise UsageError(f"{printable(run, 100)!r} is not a run id", remedy="`loadgen runs list` shows all runs.")
    left = spool_folders_by_run(spools)
    near = [run] if run in left else sorted(run_id for run_id in left if run_id.startswith(run))
    if len(near) > 1:
        raise UsageError(
            f"{run} is a prefix of several run ids: {', '.join(near[:5])}", remedy="Write a longer prefix."
        )
    return (near[0], left[near[0]]) if near else (run, [])


def _upload(
    place: ControlPlaneLocation, run_id: str, folders: list[Path], uploaded: list[UploadedFolder], busy: list[str]
) -> RunRecord | None:
    """Store the rows. Returns the record of the run, if its summary was amended: no rows are missing any more."""
    from loadgen.control.session import ControlSession
    from loadgen.report.summary import with_unstored
    from loadgen.results.run_record import update_stored_summary
    from loadgen.snowflake.session import RetryPolicy
    from loadgen.worker.flush import lock_spool_folder
    from loadgen.worker.flush import upload as store

    retries = RetryPolicy(stop=threading.Event(), attempts=ATTEMPTS, note=_note)
    session = ControlSession(place, role="upload")
    try:
        for folder in folders:
            lock = lock_spool_folder(folder)
            if lock is None:
                busy.append(folder.name)
                continue
            uploaded.append(UploadedFolder(folder=folder.name, rows=store(session, retries, folder)))
            os.close(lock)
        if busy:
            return None
        return update_stored_summary(session, retries, run_id, lambda summary: with_unstored(summary, {}))
    finally:
        session.close()


def _rewrite(folder: Path, record: RunRecord) -> None:
    from loadgen.report.summary import with_unstored

    if rewrite_reports(folder, record, lambda summary: with_unstored(summary, {})):
        echo(f"updated the reports in {printable(str(folder))}", err=True)


def _note(error: BaseException) -> None:
    echo(f"the control plane does not respond; trying again: {printable(str(error))}", err=True)
