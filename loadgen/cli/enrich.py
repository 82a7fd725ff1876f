"""`loadgen enrich`: join times of the query history to logged statements. `loadgen upload`: store spooled results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loadgen.cli.common import echo, warn
from loadgen.cli.options import (
    control_options,
    embedded_server_if_needed,
    format_option,
    output_dir_option,
    with_control_session,
)
from loadgen.control.location import resolve_target
from loadgen.errors import LoadgenError, UsageError
from loadgen.log import printable
from loadgen.threads import run_in_thread
from loadgen.units import counted
from orchestrator.run_folder import rewrite_reports

if TYPE_CHECKING:
    from loadgen.control.location import ControlPlaneLocation
    from loadgen.rules.enrichment import EnrichmentResult
    from orchestrator.upload import SpoolAccess, UploadedFolder


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
        from loadgen.model.run import is_id
        from loadgen.report.summary import with_enrichment

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
    is spooled, 2 if there is no such run, 3 if the control plane cannot be reached, 75 if a worker still runs.
    """
    from loadgen.control.tables.run_status import is_latest
    from orchestrator.upload import find_spooled, latest_run_id, refresh_run_folder, upload_spooled

    aim, spool = resolve_target(None, **place), spool_access()
    if is_latest(run):
        with embedded_server_if_needed(aim.place.connection):
            run = run_in_thread(lambda: latest_run_id(aim.place, run, _note), name="upload")
    found = find_spooled(spool, output_dir, run)
    uploaded: list[UploadedFolder] = []
    if not found.folders:
        found = replace(found, run_id=_stored_run_id(aim.place, run) or found.run_id)
    else:
        with embedded_server_if_needed(aim.place.connection):
            uploaded, record = run_in_thread(lambda: upload_spooled(aim.place, spool, found, _note), name="upload")
        folder = output_dir / found.run_id
        if refresh_run_folder(folder, record):
            echo(f"updated the reports in {printable(str(folder))}", err=True)
    for one in uploaded:
        if one.damaged:
            warn(f"{one.folder}: {counted(one.damaged, 'record')} of the query log could not be read, and are lost")
    if output == "json":
        workers = [
            {
                "folder": one.folder,
                "executions": one.rows.get("execution", 0),
                "rows": one.rows,
                "damaged": one.damaged,
            }
            for one in uploaded
        ]
        echo(json.dumps({"run_id": found.run_id, "workers": workers}, indent=2))
        return
    from loadgen.report.summary import describe_rows

    for one in uploaded:
        echo(f"{one.folder}: {describe_rows(one.rows) or 'no rows'} stored")
    if not uploaded:
        places = f"{printable(str(spool.default_folder()))} or {printable(str(output_dir))}"
        echo(f"nothing to upload: no spooled results of run {printable(found.run_id)} in {places}")


def _stored_run_id(place: ControlPlaneLocation, run: str) -> str | None:
    """As stored_run_id(), for a run of which nothing is spooled here. None: the control plane cannot be asked."""
    from orchestrator.upload import stored_run_id

    try:
        with embedded_server_if_needed(place.connection):
            return run_in_thread(lambda: stored_run_id(place, run), name="upload")
    except UsageError:
        raise
    except LoadgenError:
        return None


def spool_access() -> SpoolAccess:
    """The functions of the worker that read and write the spool."""
    from loadgen.worker import flush
    from orchestrator.upload import SpoolAccess

    return SpoolAccess(
        variable=flush.SPOOL_VARIABLE,
        default_folder=flush.spool_folder,
        keep_result=lambda folder, run_id, row: flush.spool_rows(folder, run_id, flush.UnsentRows(result=row)),
        contents=flush.spooled,
        folders_by_run=flush.spool_folders_by_run,
        lock=flush.lock_spool_folder,
        store=flush.upload,
    )


def _note(error: BaseException) -> None:
    echo(f"the control plane does not respond; trying again: {printable(str(error))}", err=True)
