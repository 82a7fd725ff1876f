"""One quantity has one name wherever people read it, and one place in summary.json."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from loadgen.model.run import RowEnrichment, RunEnrichment
from loadgen.report.compare import comparison_data
from loadgen.report.exports import report_markdown
from loadgen.report.run_text import summary_text
from loadgen.report.summary import in_order, with_enrichment
from loadgen.report.trend import trend_data
from loadgen.rules.comparability import ChangeLimits
from loadgen.rules.comparison import compare
from loadgen.rules.enrichment import EnrichmentResult
from loadgen.tui.panels import errors
from tests.unit.orchestrator_builders import merged, tally
from tests.unit.report_builders import MANY, page, record, stages
from tests.unit.trend_builders import QUIET, trend
from tests.unit.tui_builders import MEASUREMENT
from tests.unit.warehouse_runs import run_of

OPEN = merged({"look": tally(MANY, skipped=7)})


def test_a_metric_has_the_same_unit_in_the_json_of_compare_and_trend() -> None:
    compared = comparison_data(compare(run_of(1, seconds=12), run_of(2, seconds=12), ChangeLimits()))
    units = {one["metric"]: one["unit"] for one in compared["metrics"]}
    followed = {one["metric"]: one["unit"] for one in trend_data(trend(QUIET), 30)["metrics"]}

    assert units.keys() & followed.keys() >= {"qps", "p95", "error_rate"}
    assert [name for name in units.keys() & followed.keys() if units[name] != followed[name]] == []


def test_the_columns_of_stages_have_the_names_of_the_report() -> None:
    run = record(facts={"stages": stages()})
    (head,) = re.findall(r"^\| stage \|.*$", report_markdown(run), re.MULTILINE)

    assert set(re.findall(r"[\w ]*\w", head)) >= {" succeeded", " qps", " error rate"}
    assert " count" not in head


def test_arrivals_that_were_not_sent_are_skipped_everywhere() -> None:
    run = record(("look",), facts={"merged": OPEN, "open_loop": True})
    live = errors(replace(MEASUREMENT, window=replace(MEASUREMENT.window, skipped=7)), 120, 5)  # type: ignore[type-var]

    for text in (live[0].plain, summary_text(run.summary)):
        assert "7 skipped" in text
    assert "skipped" in page(run).words


def test_the_overhead_of_the_client_has_one_name() -> None:
    run = record(facts={"overhead_ms": 1.75})

    assert "client overhead 1.75 ms" in summary_text(run.summary)
    assert "client overhead" in page(run).words


def test_a_summary_with_its_enrichment_has_the_order_that_the_tables_give() -> None:
    """summary.json is written with the enrichment, and `loadgen report --format json` reads it from the tables."""
    run = record()
    found = EnrichmentResult(run_id="r", status=RunEnrichment.ENRICHED, counts={RowEnrichment.ENRICHED: 2})
    amended = with_enrichment(run.summary, found)

    assert json.dumps(amended) == json.dumps(in_order(amended, ("look", "pay")))
