"""`loadgen enrich`: join Snowflake's own times to what a run has logged, as often as one likes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loadgen.cli.common import echo
from loadgen.cli.options import control_options, format_option, output_dir_option, with_control_session
from loadgen.errors import Busy, RunFailed
from loadgen.log import printable
from loadgen.units import counted

if TYPE_CHECKING:
    from loadgen.control.session import ControlSession
    from loadgen.report.records import RunRecord
    from loadgen.rules.enrichment import EnrichmentResult
    from loadgen.snowflake.session import RetryPolicy


@click.command(
    epilog="\b\nExample:\n  loadgen enrich latest -c prod --wait\n  loadgen enrich 20261115-0200-orders-7f3a"
)
@click.argument("run", metavar="RUN")
@click.option("--wait", is_flag=True, help="Wait for statements that the history may not show yet: a few minutes.")
@click.option("--hybrid", is_flag=True, help="Look also for statements that touch only hybrid tables.")
@output_dir_option("Where the folder of the run is; its files are written again if it is there.")
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
    """Join Snowflake's own times, from its query history, to the statements that RUN has logged.

    `loadgen run` does it for as long as a minute and a half; this goes on from there, also where the scenario has
    enrichment.enabled: false. The history reaches back seven days. Of statements that touch only hybrid tables it keeps
    few, and those the slow ones, so they are left out without --hybrid. Safe to repeat: what is enriched stays. The
    stored result says how far it has come, and so do summary.json and the reports in the folder of the run; the run's
    status and what it measured are not touched. RUN as for `loadgen runs show`. Exit code 0 also when not everything
    was found, 3 when the history cannot be read, 75 while the run has not ended.
    """
    result, record = with_control_session(
        lambda session, patience: _enrich(session, patience, run, wait=wait, hybrid=hybrid),
        name="enrich",
        **place,
    )
    if result.error is not None:
        raise result.error
    if record is not None:
        from loadgen.cli.report import rewrite_reports
        from loadgen.report.summary import with_enrichment
        from loadgen.worker.arguments import is_id

        folder = output_dir / result.run_id
        if is_id(result.run_id) and rewrite_reports(folder, record, lambda summary: with_enrichment(summary, result)):
            echo(f"wrote the reports in {printable(str(folder))} again", err=True)
    echo(json.dumps(_as_json(result), indent=2) if output == "json" else "\n".join(_lines(result)))


def _enrich(
    session: ControlSession, patience: RetryPolicy, name: str, *, wait: bool, hybrid: bool
) -> tuple[EnrichmentResult, RunRecord | None]:
    from loadgen.cli.report import update_stored_summary
    from loadgen.control import run_lookup
    from loadgen.control.tables import run_status
    from loadgen.report.summary import with_enrichment
    from loadgen.scenario.frozen import thaw
    from loadgen.scenario.model import EnrichmentMode
    from orchestrator.enrich import EnrichmentOptions, enrich_run

    run = run_lookup.find_run(session, patience, name)
    if not run.status.is_terminal:
        raise Busy(
            f"run {run.run_id} is still {run.status}: its statements are logged when it ends",
            remedy="Wait for its end; it is enriched then. `loadgen status` shows what it does.",
        )
    config = patience.call(lambda: run_status.read_config(session, run.run_id))
    if config is None:
        raise RunFailed(f"run {run.run_id} has vanished", remedy="`loadgen runs list` shows the runs there are.")
    scenario = thaw(config, os.environ)
    asked = EnrichmentMode.ON if hybrid or scenario.enrichment is EnrichmentMode.ON else EnrichmentMode.AUTO
    effort = EnrichmentOptions(limit_s=None, wait=wait, enabled=asked, told=_tell if wait else lambda _: None)
    result = enrich_run(session, patience, run.run_id, scenario, effort=effort)
    if result.error is not None:
        return result, None
    return result, update_stored_summary(
        session, patience, run.run_id, lambda summary: with_enrichment(summary, result)
    )


def _tell(coming: int) -> None:
    echo(f"not in the history yet: {counted(coming, 'statement')}; looking again", err=True)


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
        yield f"time in Snowflake, of {document['ledger_samples']:,} measured statements that succeeded, in ms:"
        yield f"  {'':<20}{'mean':>10}{'p50':>10}{'p95':>10}"
    for name, part in ledger.items():
        yield f"  {name.replace('_', ' '):<20}" + "".join(f"{_ms(part[key]):>10}" for key in ("mean", "p50", "p95"))
    if result.overhead_ms is not None:
        yield f"the client added {result.overhead_ms:,.2f} ms (median)"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"
