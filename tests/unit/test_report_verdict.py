"""Is the number valid, and did it pass? Every reason, every metric, every exit code in its order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.result import Merged
from loadgen.report.client_health import ClientHealth, ClientVerdict
from loadgen.report.delivered import Delivered, Portion
from loadgen.report.summary import RunFacts, Verdict, verdict_of
from loadgen.report.verdict import (
    Checked,
    Evidence,
    check_threshold,
    invalid_reasons,
    measure,
)
from loadgen.scenario.threshold import Metric, parse_check
from tests.unit.orchestrator_builders import merged, tally

HUNDRED = tuple(float(value) for value in range(1, 101))  # 1 ms to 100 ms
IDLE = ClientVerdict(health=ClientHealth(), invalid=(), warnings=())
SATURATED = ClientVerdict(health=ClientHealth(saturated=True), invalid=("the client was the limit: …",), warnings=())


def evidence(found: Merged | None = None, client: ClientVerdict = IDLE, **more: Any) -> Evidence:
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
    ("p999 < 1s", None, False),  # a hundred samples say nothing about it
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
    ("longest_stall < 1s", None, False),  # nobody measured it
]


@pytest.mark.parametrize(("text", "value", "passed"), MEASURED)
def test_metrics(text: str, value: float | None, passed: bool) -> None:
    found = check_threshold(parse_check(text), merged({"s": tally(HUNDRED, failed=25)}))
    assert found.check == text
    assert found.value == (None if value is None else pytest.approx(value, rel=0.011))
    assert found.passed is passed


def test_every_metric_has_been_tried() -> None:
    assert {parse_check(text).metric for text, _, _ in MEASURED} == set(Metric)


@pytest.mark.parametrize("metric", list(Metric))
@pytest.mark.parametrize("operator", ["<", "<=", ">", ">=", "=="])
@pytest.mark.parametrize(
    "found", [merged({}), merged({"s": tally((), skipped=3)}), merged({"s": tally((), cancelled_ms=(5.0,))})]
)
def test_an_empty_series_fails_every_check(metric: Metric, operator: str, found: Merged) -> None:
    unit = {"error_rate": "%", "qps": "", "errors": "", "queries": ""}.get(metric.value, "ms")
    check = parse_check(f"{metric} {operator} 0{unit}")
    assert check_threshold(check, found) == Checked(check=check.text, value=None, passed=False)


def test_lag_is_measured_in_an_open_loop() -> None:
    found = merged({"s": tally(HUNDRED, lag_ms=(2.0,) * 200)})
    assert measure(parse_check("lag_p99 < 3ms"), found) == pytest.approx(2.0, rel=0.011)


def test_at_least_so_much_does_not_pass_an_upper_limit() -> None:
    """Ten statements were cancelled after 5 ms: p95 is 90 ms or more, and nobody knows how much more."""
    found = merged({"s": tally(tuple(range(1, 91)), cancelled_ms=(5.0,) * 10)})
    below = check_threshold(parse_check("p95 < 1s"), found)
    assert below.value is not None
    assert not below.passed
    assert not check_threshold(parse_check("s.p95 <= 1h"), found).passed
    assert check_threshold(parse_check("p95 > 50ms"), found).passed
    assert check_threshold(parse_check("min < 2ms"), found).passed


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
    found = check_threshold(parse_check(text), TIMED_OUT)
    assert found.value == pytest.approx(value, rel=0.011)
    assert (found.passed, found.at_least, found.undecided) == (passed, True, undecided)


def test_what_lies_below_the_statements_cut_off_is_known() -> None:
    for text in ("p50 < 50ms", "min < 50ms"):
        found = check_threshold(parse_check(text), TIMED_OUT)
        assert (found.passed, found.at_least) == (True, False)


def test_arrivals_that_were_never_sent_took_at_least_their_age() -> None:
    found = merged({"s": tally((10.0,) * 90, skipped=10, unsent_ms=(5_000.0,) * 10)})
    for text in ("avg < 100ms", "max < 1s", "p95 < 1s"):
        checked = check_threshold(parse_check(text), found)
        assert (checked.passed, checked.at_least, checked.undecided) == (False, True, False)


@given(st.floats(0.1, 1e4), st.sampled_from(["<", "<=", ">", ">=", "=="]))
def test_a_comparison_is_what_it_says(limit: float, operator: str) -> None:
    found = merged({"s": tally((50.0,) * 100)})
    check = parse_check(f"max {operator} {limit:.3f}ms")
    expected = {"<": check.limit > 50, "<=": check.limit >= 50, ">": check.limit < 50, ">=": check.limit <= 50}
    assert check_threshold(check, found).passed is expected.get(operator, check.limit == 50)


# --- the verdict and its exit code -----------------------------------------------------------------------------------

MISSED, MET = Checked(check="p95 < 5ms", value=9.0, passed=False), Checked(check="qps > 1", value=2.0, passed=True)


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
        ({}, Verdict.PASSED, 0, "done"),
        ({"checked": (MET,)}, Verdict.PASSED, 0, "every threshold was met"),
        ({"checked": (MET, MISSED)}, Verdict.FAILED, 10, "not met: p95 < 5ms"),
        ({"checked": (MISSED,), "invalid": ("why",)}, Verdict.INVALID, 5, "why"),
        ({"checked": (MET,), "invalid": ("why", "and")}, Verdict.INVALID, 5, "why; and"),
        ({"status": "CANCELLED", "reason": "stopped", "invalid": ("why",)}, Verdict.CANCELLED, 130, "stopped"),
        ({"status": "CANCELLED", "reason": "stopped", "signal": 15}, Verdict.CANCELLED, 143, "stopped"),
        (
            {"status": "FAILED", "reason": "lost", "invalid": ("why",), "checked": (MISSED,), "signal": 2},
            Verdict.ERROR,
            4,
            "lost",
        ),
    ],
)
def test_the_first_that_applies_decides(known: dict[str, Any], verdict: Verdict, code: int, reason: str) -> None:
    assert verdict_of(facts(**known)) == (verdict, code, reason)
