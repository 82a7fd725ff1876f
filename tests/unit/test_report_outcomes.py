"""The outcome of a threshold without a value: the files of a run and the live view agree, and the verdict stays."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from typing import Any

import pytest

from loadgen.metrics.window import MergedWindows
from loadgen.model.threshold import ThresholdMetric, parse_threshold
from loadgen.report import formatting
from loadgen.report.exports import junit_xml
from loadgen.report.run_text import summary_text
from loadgen.rules.thresholds import Checked, check_threshold
from loadgen.tui.threshold_panel import thresholds_page
from tests.unit.orchestrator_builders import merged, tally
from tests.unit.report_builders import record, stages, summary
from tests.unit.tui_builders import MEASUREMENT

WRONG = merged({"look": tally((), failed=40)})  # a statement with an error in it
COUNTED = {"qps": "qps > 100", "error_rate": "error_rate < 1%", "errors": "errors == 0", "queries": "queries > 1k"}
TIMED = [one.value for one in ThresholdMetric if one.value not in (*COUNTED, "longest_stall")]


def checked(text: str, measured: MergedWindows = WRONG) -> Checked:
    return check_threshold(parse_threshold(text), measured)


def result(*found: Checked, measured: MergedWindows = WRONG) -> dict[str, Any]:
    return summary(measured, ("look",), checked=found)


@pytest.mark.parametrize("metric", TIMED)
def test_a_time_is_undecided_if_every_statement_failed(metric: str) -> None:
    one = checked(f"{metric} < 1s")
    (threshold,) = result(one)["thresholds"]

    assert formatting.outcome(threshold, result(one)) == "undecided"
    assert formatting.undecided(threshold, result(one)) == formatting.NONE_SUCCEEDED


@pytest.mark.parametrize("text", COUNTED.values())
def test_what_counts_statements_is_missed_if_every_statement_failed(text: str) -> None:
    (threshold,) = result(checked(text))["thresholds"]

    assert formatting.outcome(threshold, result(checked(text))) == "missed"


def test_verdict_and_exit_code_of_a_wrong_statement_stay() -> None:
    found = result(checked("p95 < 50ms"))

    assert (found["verdict"], found["exit_code"]) == ("failed", 10)


def test_the_live_view_says_what_the_result_says_once_a_statement_has_failed() -> None:
    one = checked("p95 < 50ms")
    live = "\n".join(line.plain for line in thresholds_page(replace(MEASUREMENT, checked=(one,)), 120))
    final = next(line for line in summary_text(result(one)).splitlines() if "p95 < 50ms: " in line)

    for shown in (live, final):
        assert shown.lstrip().startswith(formatting.OUTCOME_SIGNS["undecided"])
        assert formatting.NONE_SUCCEEDED in shown
    early = checked("p95 < 50ms", merged({"look": tally(())}))
    assert formatting.NONE_SUCCEEDED not in "".join(
        line.plain for line in thresholds_page(replace(MEASUREMENT, checked=(early,)), 120)
    )


def test_the_reason_is_of_the_statement_or_stage_that_the_threshold_names() -> None:
    measured = merged({"look": tally((10.0,) * 100), "pay": tally((), failed=40)})
    broken = stages(merged=WRONG)
    found = summary(measured, ("look", "pay"), stages=broken)

    def why(text: str) -> str:
        return formatting.undecided({"check": text, "value": None, "passed": False}, found)

    assert why("pay.p95 < 1s") == why("stage 1.p95 < 1s") == formatting.NONE_SUCCEEDED
    assert why("look.lag_p99 < 1s") == why("never.p95 < 1s") == formatting.NO_SAMPLES
    assert why("pay.error_rate < 1%") == ""


def test_the_message_of_junit_says_that_no_statement_succeeded() -> None:
    facts = {"checked": (checked("p95 < 50ms"), checked("errors == 0")), "merged": WRONG}
    messages = [case.get("message") for case in ElementTree.fromstring(junit_xml(record(facts=facts))).iter("failure")]

    assert messages == [f"undecided: {formatting.NONE_SUCCEEDED}", "measured 40"]
