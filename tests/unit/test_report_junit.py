"""junit.xml: its counts agree with the verdict."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from loadgen.report.exports import junit_xml
from loadgen.rules.thresholds import Checked
from tests.unit.report_builders import HOSTILE_NAME, hostile, record

MISSED = Checked(check="p99 < 10ms", value=29.5, passed=False)
MET = Checked(check="p95 < 50ms", value=20.0, passed=True)


def suite(**facts: Any) -> ElementTree.Element:
    found = ElementTree.fromstring(junit_xml(record(facts=facts))).find("testsuite")
    assert found is not None
    return found


def counts(found: ElementTree.Element) -> tuple[int, int, int]:
    tests, failures, errors = (int(found.get(name) or -1) for name in ("tests", "failures", "errors"))
    cases = found.findall("testcase")
    assert (tests, failures, errors) == (
        len(cases),
        sum(case.find("failure") is not None for case in cases),
        sum(case.find("error") is not None for case in cases),
    )
    return tests, failures, errors


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"checked": (MET,)}, (3, 0, 0)),
        ({"checked": ()}, (2, 0, 0)),
        ({"checked": (MET, MISSED)}, (4, 1, 0)),
        ({"checked": (MET,), "invalid": ("too few samples",)}, (3, 1, 0)),
        ({"checked": (), "status": "FAILED", "reason": "worker-1 died"}, (2, 0, 1)),
        ({"checked": (), "status": "CANCELLED", "reason": "stopped"}, (2, 0, 1)),
    ],
)
def test_every_way_to_end_is_counted(facts: dict[str, Any], expected: tuple[int, int, int]) -> None:
    assert counts(suite(**facts)) == expected


def test_a_missed_threshold_shows_the_measured_value() -> None:
    (failure,) = suite(checked=(MET, MISSED)).iter("failure")
    assert failure.get("message") == "measured 29.50 ms"


def test_a_threshold_with_a_window_is_named_with_it() -> None:
    sliding = Checked(check="p99 < 100ms", value=230.2, passed=False, window_s=10.0)
    found = suite(checked=(sliding,))

    assert "p99 < 100ms in every 10 s" in [case.get("name") for case in found.iter("testcase")]
    assert [failure.get("message") for failure in found.iter("failure")] == ["worst 230.2 ms"]


def test_an_undecided_threshold_shows_no_measured_value() -> None:
    few = Checked(check="p99 < 10ms", value=None, passed=False, undecided=True, too_few="why")

    assert [failure.get("message") for failure in suite(checked=(few,)).iter("failure")] == [
        "undecided: too few samples"
    ]


def test_a_threshold_without_a_value_fails_with_a_message() -> None:
    (failure,) = suite(checked=(Checked(check="p99 < 1s", value=None, passed=False),)).iter("failure")
    assert failure.get("message") == "undecided: no samples"


@pytest.mark.parametrize("status", ["FAILED", "CANCELLED"])
def test_what_an_unfinished_run_leaves_undecided_is_skipped(status: str) -> None:
    few = Checked(check="p99 < 1s", value=None, passed=False, undecided=True, too_few="why")
    found = suite(checked=(MET, MISSED, few), status=status, reason="stopped")

    assert counts(found) == (5, 1, 1)
    assert found.get("skipped") == "1"
    (skipped,) = [case.get("name") for case in found.iter("testcase") if case.find("skipped") is not None]
    assert skipped == few.check


def test_what_a_complete_run_leaves_undecided_is_a_failure() -> None:
    few = Checked(check="p99 < 1s", value=None, passed=False, undecided=True, too_few="why")
    found = suite(checked=(few,))

    assert (counts(found), found.get("skipped")) == ((3, 1, 0), "0")


def test_it_is_valid_xml_with_any_texts() -> None:
    text = junit_xml(hostile())
    root = ElementTree.fromstring(text)
    names = [case.get("name") for case in root.iter("testcase")]
    assert f"{HOSTILE_NAME}.p95 < 50ms" in names
    assert not set(text) & {"\x00", "\x1b"}
    assert len(text) < 100_000


def test_the_numbers_are_those_of_the_summary() -> None:
    run = record()
    properties = {one.get("name"): one.get("value") for one in ElementTree.fromstring(junit_xml(run)).iter("property")}
    assert float(properties["latency_p95_ms"] or 0) == run.summary["latency_ms"]["p95"]
    assert float(properties["qps"] or 0) == run.summary["totals"]["qps"]
