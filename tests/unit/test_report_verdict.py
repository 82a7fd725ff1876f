"""Is the number valid, and did it pass? Every reason, every metric, every exit code in its order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.window import MergedWindows
from loadgen.model.threshold import ThresholdMetric, parse_threshold
from loadgen.report import formatting
from loadgen.report.summary import RunFacts
from loadgen.rules.client_health import ClientHealth, ClientHealthByScope, ClientVerdict
from loadgen.rules.thresholds import Checked, check_threshold, check_thresholds
from loadgen.rules.validity import Delivered, Evidence, Portion, RunVerdict, invalid_reasons, undecided, verdict_of
from loadgen.scenario.model import DEFAULT_THRESHOLD, Threshold
from tests.cases import in_one_test
from tests.unit.orchestrator_builders import merged, tally
from tests.unit.report_builders import summary

HUNDRED = tuple(float(value) for value in range(1, 101))  # 1 ms to 100 ms
IDLE = ClientVerdict(health=ClientHealth(), invalid=(), warnings=())
SATURATED = ClientVerdict(health=ClientHealth(saturated=True), invalid=("the client was the limit: …",), warnings=())


def evidence(found: MergedWindows | None = None, client: ClientVerdict = IDLE, **more: Any) -> Evidence:
    known = {"delivered": short_of(1.0), **more}
    return Evidence(merged=merged() if found is None else found, client=client, **known)


def short_of(fraction: float) -> Delivered:
    missing = round(100_000 * (1 - fraction))
    return Delivered(portions={("worker-0", None): Portion(planned=100_000, missing=missing)})


# --- validity --------------------------------------------------------------------------------------------------------


def test_a_quiet_run_is_valid() -> None:
    assert invalid_reasons(evidence()) == []


@pytest.mark.parametrize(
    ("given_evidence", "said"),
    [
        (evidence(client=SATURATED), "the client was the limit"),
        (evidence(lost_workers=("worker-1 was killed by signal 9",)), "worker lost: worker-1 was killed by signal 9"),
        (evidence(gaps=("worker-0 measured nothing",)), "worker-0 measured nothing"),
        (evidence(delivered=short_of(0.98)), "delivered load was 98.0 %"),
        (evidence(merged({"s": tally((1.0,) * 19)})), "too few samples: 19"),
        (evidence(merged({})), "too few samples: 0"),
    ],
)
def test_reasons(given_evidence: Evidence, said: str) -> None:
    (reason,) = invalid_reasons(given_evidence)
    assert said in reason


@pytest.mark.parametrize(
    "given_evidence",
    [
        evidence(delivered=short_of(0.99)),
        evidence(merged({"s": tally((1.0,) * 20)})),
        evidence(merged({"s": tally((1.0,) * 2, failed=18)})),
    ],
)
def test_what_is_no_reason(given_evidence: Evidence) -> None:
    assert invalid_reasons(given_evidence) == []


def test_all_reasons_are_given() -> None:
    found = invalid_reasons(
        evidence(
            merged({"s": tally((1.0,) * 5)}), SATURATED, lost_workers=("a", "b"), gaps=("c",), delivered=short_of(0.96)
        )
    )
    assert len(found) == 6


# --- thresholds ------------------------------------------------------------------------------------------------------

MEASURED = [
    ("p50 < 60ms", 50.0, True),
    ("p90 <= 80ms", 90.0, False),
    ("p95 < 96ms", 95.0, True),
    ("p99 > 98ms", 99.0, True),
    ("p999 < 1s", 100.0, True),  # a hundred samples are too few for it, but none of them took so long
    ("p999 < 50ms", None, False),
    ("avg <= 50.5ms", 50.5, True),
    ("min >= 1ms", 1.0, True),
    ("max < 100ms", 100.0, False),
    ("qps > 9", 10.0, True),
    ("error_rate < 10%", 25 / 125, False),
    ("errors == 25", 25.0, True),
    ("queries >= 125", 125.0, True),
    ("service_p95 < 96ms", 95.0, True),
    ("lag_p99 < 1s", None, False),  # a closed loop has none
    ("s.p50 < 60ms", 50.0, True),
    ("s.qps > 11", 10.0, False),
    ("never.p50 < 1h", None, False),
    ("never.qps < 10", None, False),
    ("never.errors < 10", None, False),
    ("longest_stall < 1s", None, False),  # not measured
]


@pytest.mark.parametrize(("text", "value", "passed"), MEASURED)
def test_metrics(text: str, value: float | None, passed: bool) -> None:
    found = check_threshold(parse_threshold(text), merged({"s": tally(HUNDRED, failed=25)}))
    assert found.check == text
    assert found.value == (None if value is None else pytest.approx(value, rel=0.011))
    assert found.passed is passed


def test_every_metric_has_been_tried() -> None:
    assert {parse_threshold(text).metric for text, _, _ in MEASURED} == set(ThresholdMetric)


@in_one_test("metric", [one for one in ThresholdMetric if one is not ThresholdMetric.LONGEST_STALL])
@in_one_test("operator", ["<", "<=", ">", ">=", "=="])
@in_one_test("found", [merged({}), merged({"s": tally((), skipped=3)}), merged({"s": tally((), cancelled_ms=(5.0,))})])
def test_an_empty_series_fails_every_check(metric: ThresholdMetric, operator: str, found: MergedWindows) -> None:
    unit = {"error_rate": "%", "qps": "", "errors": "", "queries": ""}.get(metric.value, "ms")
    check = parse_threshold(f"{metric} {operator} 0{unit}")
    assert check_threshold(check, found) == Checked(check=check.text, value=None, passed=False)


def test_lag_is_measured_in_an_open_loop() -> None:
    found = merged({"s": tally(HUNDRED, lag_ms=(2.0,) * 200)})
    assert check_threshold(parse_threshold("lag_p99 < 3ms"), found).value == pytest.approx(2.0, rel=0.011)


def test_at_least_so_much_does_not_pass_an_upper_limit() -> None:
    """Ten statements were cancelled after 5 ms: p95 is at least 90 ms, and its upper bound is unknown."""
    found = merged({"s": tally(tuple(range(1, 91)), cancelled_ms=(5.0,) * 10)})
    below = check_threshold(parse_threshold("p95 < 1s"), found)
    assert below.value is not None
    assert not below.passed
    assert not check_threshold(parse_threshold("s.p95 <= 1h"), found).passed
    assert check_threshold(parse_threshold("p95 > 50ms"), found).passed
    assert check_threshold(parse_threshold("min < 2ms"), found).passed


@pytest.mark.parametrize(
    ("text", "passed", "undecided", "bound"),
    [
        ("p95 < 500ms", True, False, "at_most"),  # the 377th of 396, and 380 are known
        ("p95 < 100ms", False, False, "at_least"),
        ("p95 < 369ms", False, True, "at_least"),  # between what it is at least and at most
        ("p95 > 100ms", True, False, "at_least"),
        ("p99 < 1h", False, True, "at_least"),  # it is among those cut off, if they took long
        ("service_p95 < 500ms", True, False, "at_most"),
    ],
)
def test_a_percentile_below_all_that_was_cut_off_is_bounded_from_above(
    text: str, passed: bool, undecided: bool, bound: str
) -> None:
    found = merged({"s": tally(tuple(map(float, range(1, 381))), cancelled_ms=(2.0,) * 16)})

    checked = check_threshold(parse_threshold(text), found)

    assert (checked.passed, checked.undecided) == (passed, undecided)
    assert [name for name in ("at_least", "at_most") if getattr(checked, name)] == [bound]


def test_only_the_threshold_that_the_file_does_not_have_is_a_default() -> None:
    written = Threshold(check=DEFAULT_THRESHOLD.check)
    found = check_thresholds([written, DEFAULT_THRESHOLD], merged({"s": tally(HUNDRED)}))

    assert [one.default for one in found] == [False, True]


TIMED_OUT = merged({"s": tally((10.0,) * 88, timed_out_ms=(30_000.0,) * 12)})


@pytest.mark.parametrize(
    ("text", "value", "passed", "undecided"),
    [
        ("p95 < 50ms", 30_000.0, False, False),  # the bound is above it
        ("p95 < 1m", 30_000.0, False, True),
        ("p95 > 20s", 30_000.0, True, False),
        ("p95 > 1m", 30_000.0, False, True),
        ("service_p95 < 50ms", 30_000.0, False, False),
        ("max <= 30s", 30_000.0, False, True),
        ("max < 20s", 30_000.0, False, False),
        ("avg < 3s", 3_608.8, False, False),
        ("avg < 4s", 3_608.8, False, True),
        ("avg == 1s", 3_608.8, False, False),
    ],
)
def test_a_statement_that_timed_out_took_at_least_that_long(
    text: str, value: float, passed: bool, undecided: bool
) -> None:
    found = check_threshold(parse_threshold(text), TIMED_OUT)
    assert found.value == pytest.approx(value, rel=0.011)
    assert (found.passed, found.at_least, found.undecided) == (passed, True, undecided)


def test_what_lies_below_the_statements_cut_off_is_known() -> None:
    for text in ("p50 < 50ms", "min < 50ms"):
        found = check_threshold(parse_threshold(text), TIMED_OUT)
        assert (found.passed, found.at_least) == (True, False)


def test_arrivals_that_were_never_sent_took_at_least_their_age() -> None:
    found = merged({"s": tally((10.0,) * 90, skipped=10, unsent_ms=(5_000.0,) * 10)})
    for text in ("avg < 100ms", "max < 1s", "p95 < 1s"):
        checked = check_threshold(parse_threshold(text), found)
        assert (checked.passed, checked.at_least, checked.undecided) == (False, True, False)


FORTY = merged({"s": tally(HUNDRED[:40])})  # 1 ms to 40 ms: too few for p99


@pytest.mark.parametrize(
    ("text", "passed", "undecided", "value", "bound"),
    [
        ("p99 < 50ms", True, False, 40.0, "at_most"),  # none took so long
        ("p99 < 40ms", False, True, None, None),  # the longest may be what p99 is
        ("p99 <= 40ms", True, False, 40.0, "at_most"),
        ("s.p99 < 30ms", False, True, None, None),
        ("p99 < 1ms", False, False, 1.0, "at_least"),  # every one took as long
        ("p99 > 0.5ms", True, False, 1.0, "at_least"),
        ("p99 > 20ms", False, True, None, None),
        ("p99 > 40ms", False, False, 40.0, "at_most"),
        ("p99 == 20ms", False, True, None, None),
        ("p99 == 41ms", False, False, 40.0, "at_most"),
        ("p95 < 30ms", False, False, 38.0, None),  # forty are enough for p95
    ],
)
def test_too_few_samples_for_a_percentile_decide_only_what_holds_for_all_or_none_of_them(
    text: str, passed: bool, undecided: bool, value: float | None, bound: str | None
) -> None:
    found = check_threshold(parse_threshold(text), FORTY)

    assert (found.passed, found.undecided, bool(found.too_few)) == (passed, undecided, undecided)
    assert found.value == (None if value is None else pytest.approx(value, rel=0.011))
    assert [name for name in ("at_least", "at_most") if getattr(found, name)] == [name for name in (bound,) if name]


def test_too_few_samples_of_which_one_was_cut_off_pass_no_upper_limit() -> None:
    found = check_threshold(parse_threshold("p99 < 1h"), merged({"s": tally((10.0,) * 40, timed_out_ms=(20.0,))}))

    assert (found.passed, found.undecided) == (False, True)


def open_thresholds(found: MergedWindows, *texts: str) -> list[str]:
    thresholds = [Threshold(check=parse_threshold(text)) for text in texts]
    checked = [check_threshold(threshold.check, found) for threshold in thresholds]
    return undecided(thresholds, checked, ClientHealthByScope(run=ClientHealth()), found, open_loop=False)


@pytest.mark.parametrize("text", ["longest_stall < 1s", "longest_stall > 1s"])
def test_a_threshold_on_stalls_that_no_worker_reported_is_undecided(text: str) -> None:
    threshold = Threshold(check=parse_threshold(text))
    known = merged({"s": tally(HUNDRED)})

    (found,) = check_thresholds([threshold], known)

    assert (found.value, found.passed, found.undecided) == (None, False, True)
    assert undecided([threshold], [found], ClientHealthByScope(run=ClientHealth()), known, open_loop=False) == [
        f"undecided: no worker reported stalls, which {text} needs"
    ]
    (told,) = check_thresholds([threshold], replace(known, stalls=((0, 1_500),)))
    assert (told.value, told.undecided, told.passed) == (1_500.0, False, text == "longest_stall > 1s")


def test_a_run_with_too_few_samples_to_decide_is_invalid_and_states_how_many_are_needed() -> None:
    few = "too few samples for p99 of s: 40, at least 100 are needed to decide s.p99 < 30ms"

    assert open_thresholds(FORTY, "s.p99 < 30ms", "p95 < 1s") == [few]
    assert open_thresholds(FORTY, "p999 < 30ms")[0].startswith("too few samples for p999 of all statements: 40, at")
    assert open_thresholds(FORTY, "s.p99 < 30ms", "p95 < 30ms") == []  # that one certainly failed
    assert open_thresholds(FORTY, "never.p99 < 30ms") == []  # and so has a statement that was never executed


@given(
    st.lists(st.integers(1, 100), min_size=1, max_size=150), st.sampled_from(["<", "<=", ">", ">=", "=="]), st.data()
)
def test_more_samples_of_the_same_kind_never_turn_a_decision(
    times: list[int], operator: str, data: st.DataObject
) -> None:
    """A decision that too few samples allow is the one that any number of samples from the same range comes to."""
    check = parse_threshold(f"p99 {operator} {data.draw(st.integers(0, 101))}ms")
    few = check_threshold(check, merged({"s": tally(tuple(map(float, times)))}))
    shown = st.lists(st.sampled_from(times), min_size=100, max_size=100)
    many = check_threshold(check, merged({"s": tally(tuple(float(one) for one in data.draw(shown)))}))

    if len(times) < 100 and not few.undecided:
        assert many.passed is few.passed


@given(st.floats(0.1, 1e4), st.sampled_from(["<", "<=", ">", ">=", "=="]))
def test_a_comparison_evaluates_its_operator(limit: float, operator: str) -> None:
    found = merged({"s": tally((50.0,) * 100)})
    check = parse_threshold(f"max {operator} {limit:.3f}ms")
    expected = {"<": check.limit > 50, "<=": check.limit >= 50, ">": check.limit < 50, ">=": check.limit <= 50}
    assert check_threshold(check, found).passed is expected.get(operator, check.limit == 50)


# --- the verdict and its exit code -----------------------------------------------------------------------------------

MISSED, MET = Checked(check="p95 < 5ms", value=9.0, passed=False), Checked(check="qps > 1", value=2.0, passed=True)


EMPTY = Checked(check="a.p50 < 1s", value=None, passed=False)
ERRORS = Checked(check="errors < 5", value=1_200.0, passed=False)


def facts(**more: Any) -> RunFacts:
    known: dict[str, Any] = {
        "run_id": "r",
        "scenario": "s",
        "status": "COMPLETED",
        "started_at": None,
        "connections": 1,
        "statements": (),
        "merged": merged(),
        "invalid": (),
        "checked": (),
        "client": ClientHealth(),
        "workers": (),
    }
    return RunFacts(**(known | more))


@pytest.mark.parametrize(
    ("known", "verdict", "code", "reason"),
    [
        ({}, RunVerdict.PASSED, 0, "done"),
        ({"checked": (MET,)}, RunVerdict.PASSED, 0, "every threshold was met"),
        ({"checked": (MET, MISSED)}, RunVerdict.FAILED, 10, "not met: p95 < 5ms"),
        ({"checked": (EMPTY, MISSED)}, RunVerdict.FAILED, 10, "not met: p95 < 5ms, a.p50 < 1s (no samples)"),
        (
            {"checked": (EMPTY, ERRORS), "merged": merged({"s": tally((), failed=1_200)})},
            RunVerdict.FAILED,
            10,
            "no statement succeeded (1,200 × s: SNOWFLAKE_ERROR 100051: it failed); not met: errors < 5, a.p50 < 1s (no"
            " samples)",
        ),
        ({"checked": (MET,), "aborted": True, "reason": "why"}, RunVerdict.FAILED, 10, "why"),
        ({"checked": (MISSED,), "invalid": ("why",)}, RunVerdict.INVALID, 5, "why"),
        ({"checked": (MET,), "invalid": ("why", "and")}, RunVerdict.INVALID, 5, "why; and"),
        ({"status": "CANCELLED", "reason": "stopped", "invalid": ("why",)}, RunVerdict.CANCELLED, 130, "stopped"),
        ({"status": "CANCELLED", "reason": "stopped", "signal": 15}, RunVerdict.CANCELLED, 143, "stopped"),
        (
            {"status": "FAILED", "reason": "lost", "invalid": ("why",), "checked": (MISSED,), "signal": 2},
            RunVerdict.ERROR,
            4,
            "lost",
        ),
    ],
)
def test_the_first_that_applies_decides(known: dict[str, Any], verdict: RunVerdict, code: int, reason: str) -> None:
    assert verdict_of(facts(**known)) == (verdict, code, reason)


@given(
    st.sampled_from(["p50", "p95", "max", "min"]),
    st.sampled_from(["<", "<=", ">", ">=", "=="]),
    st.integers(1, 40),
    st.lists(st.integers(1, 40), min_size=1, max_size=40),
    st.lists(st.integers(1, 40), max_size=20),
)
def test_the_outcome_of_a_threshold_in_a_report_is_that_of_the_verdict(metric, sign, limit, known, cut_off) -> None:
    """summary.json has the bounds of the value; reports must read the same outcome from them."""
    found = merged({"look": tally(tuple(map(float, known)), timed_out_ms=tuple(map(float, cut_off)))})
    checked = check_threshold(parse_threshold(f"{metric} {sign} {limit}ms"), found)
    whole = summary(found, ("look",), checked=(checked,))

    outcome = formatting.outcome(whole["thresholds"][0], whole)

    assert outcome == ("met" if checked.passed else "undecided" if checked.undecided else "missed")
