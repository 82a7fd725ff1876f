"""Comparing two runs: how metrics are judged against limits, and over all; the seconds that are compared."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from loadgen.control.tables.run_measurements import MetricsSnapshot
from loadgen.errors import UsageError
from loadgen.metrics.tally import Tally
from loadgen.model.run import Phase
from loadgen.report.compare import comparison_data, comparison_html, comparison_text
from loadgen.report.formatting import rounded
from loadgen.results.comparisons import measured_seconds
from loadgen.rules.comparability import ChangeLimits, Measure, parse_limits
from loadgen.rules.comparison import ChangeVerdict, compare, judge
from loadgen.rules.confidence_intervals import (
    ConfidenceInterval,
    SecondSeries,
    design_effect,
    log_quantile,
    quantile_difference,
    quantile_span,
    share_difference,
)
from tests.unit.orchestrator_builders import tally, times, window
from tests.unit.warehouse_runs import run_of, second_row

# --- one metric ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("span", "verdict"),
    [
        (ConfidenceInterval(0.01, -0.02, 0.04), ChangeVerdict.EQUIVALENT),
        (ConfidenceInterval(0.05, 0.03, 0.07), ChangeVerdict.EQUIVALENT),  # a change, and a tolerated one
        (ConfidenceInterval(0.05, -0.01, 0.11), ChangeVerdict.INCONCLUSIVE),
        (ConfidenceInterval(0.09, 0.07, 0.11), ChangeVerdict.INCONCLUSIVE),
        (ConfidenceInterval(0.12, 0.08, 0.16), ChangeVerdict.WORSE),
        (ConfidenceInterval(0.30, -0.10, 0.70), ChangeVerdict.INCONCLUSIVE),
        (ConfidenceInterval(-0.12, -0.16, -0.08), ChangeVerdict.BETTER),
        (ConfidenceInterval(0.12, -math.inf, math.inf), ChangeVerdict.INCONCLUSIVE),
    ],
)
def test_a_change_is_judged_by_its_interval_and_its_limit(span, verdict):
    assert judge(span, 0.10, more_is_worse=True) is verdict


def test_less_throughput_is_worse():
    assert judge(ConfidenceInterval(-0.12, -0.16, -0.08), 0.05, more_is_worse=False) is ChangeVerdict.WORSE
    assert judge(ConfidenceInterval(0.12, 0.08, 0.16), 0.05, more_is_worse=False) is ChangeVerdict.BETTER


def test_an_interval_is_wider_for_one_of_many():
    alone = ConfidenceInterval(0.0, -1.96, 1.96)

    assert alone.stretched(1) == alone
    assert alone.stretched(5).high == pytest.approx(2.576, abs=0.001)


def test_a_percentile_is_interpolated_between_the_bounds_of_its_bucket():
    even = times(*np.linspace(10.0, 20.0, 1_001))

    found_ms = math.exp(log_quantile(even.counts, 500)) / 1e6

    assert found_ms == pytest.approx(15.0, rel=0.002)


def test_dependent_samples_are_worth_less():
    counts = times(*np.linspace(10.0, 20.0, 1_001)).counts
    alone = quantile_span(counts, 500, 1.0)

    wide = quantile_span(counts, 500, 4.0)

    assert (wide.high - wide.low) / (alone.high - alone.low) == pytest.approx(2.0, rel=0.05)
    spread = np.linspace(alone.low - alone.point, alone.high - alone.point, 1_001) * 3
    assert design_effect(counts, 500, spread) == pytest.approx(9 * 0.95**2, rel=0.05)
    assert design_effect(counts, 500, np.zeros(100)) == 1.0


def test_few_samples_set_no_bound_to_a_high_percentile():
    counts = times(*np.linspace(10.0, 20.0, 120)).counts

    span = quantile_difference(*(quantile_span(counts, 990, 1.0) for _ in range(2)))

    assert span.point == 0.0
    assert (span.low, span.high) == (-math.inf, math.inf)


def test_no_failure_among_few_samples_proves_little_and_among_many_much():
    few, many = (share_difference((0, 0), (whole, whole)) for whole in (100, 100_000))

    assert few.high > 0.03
    assert 0 < many.high < 0.0001
    assert share_difference((0, 30), (1_000, 1_000)).low > 0.015


# --- limits ----------------------------------------------------------------------------------------------------------


def test_limits_are_the_defaults_unless_they_are_given():
    limits = parse_limits(["p95=20%", "pay.p95=5 %", "a.b.p50=1%"])

    assert limits.of(None, Measure.P95) == limits.of("look", Measure.P95) == pytest.approx(0.20)
    assert limits.of("pay", Measure.P95) == pytest.approx(0.05)
    assert limits.of("a.b", Measure.P50) == pytest.approx(0.01)
    assert limits.of(None, Measure.QPS) == 0.05


@pytest.mark.parametrize("text", ["p95", "p95=10", "p95=0%", "p95=-1%", "p95=x%", "p96=1%", "=1%", "", "p95=1e3%"])
def test_what_is_no_limit_is_refused_with_a_way_to_write_it(text):
    with pytest.raises(UsageError) as refused:
        parse_limits([text])

    assert "such as --limit p95=10%" in refused.value.remedy


@pytest.mark.parametrize("text", ["ghost.p95=1%", "pay.avg=1%", "max_concurrency=1%"])
def test_a_limit_for_what_is_not_compared_is_refused(text):
    with pytest.raises(UsageError):
        compare(run_of(1, seconds=12), run_of(2, seconds=12), parse_limits([text]))


def test_a_metric_with_a_limit_counts():
    a, b = run_of(1, seconds=12), run_of(2, seconds=12)

    plain, asked = compare(a, b, ChangeLimits()), compare(a, b, parse_limits(["pay.p99=200%", "p99=1%"]))

    assert (plain.comparisons, asked.comparisons) == (8, 10)
    assert plain.verdict is ChangeVerdict.EQUIVALENT
    assert asked.verdict is ChangeVerdict.INCONCLUSIVE
    assert asked.reason.startswith("p99: ")


# --- over all --------------------------------------------------------------------------------------------------------


def test_an_inconclusive_comparison_says_how_much_longer_to_measure():
    runs = [run_of(seed, seconds=12, clients=2, service="lognormal(150ms,0.6)") for seed in (1, 2)]

    comparison = compare(runs[0], runs[1], ChangeLimits())

    assert comparison.verdict is ChangeVerdict.INCONCLUSIVE
    pattern = r"qps: the interval is too wide to tell; measuring \d+ times as long may decide it"
    assert re.search(pattern, comparison.reason)


def test_a_long_run_is_compared_in_longer_spans():
    run = run_of(1, seconds=12)
    series = SecondSeries(
        seconds=np.tile(run.series.seconds, 400),
        buckets=np.tile(run.series.buckets, (400, 1)),
        sums_ns=np.tile(run.series.sums_ns, 400),
        succeeded={name: np.tile(counts, 400) for name, counts in run.series.succeeded.items()},
        failed={},
        stages=np.repeat([0, 1], 2_400),
        earlier=np.zeros(4_800, np.int64),
    )

    joined = series.joined()

    assert (len(series), len(joined)) == (4_800, 1_200)
    assert joined.buckets.sum() == series.buckets.sum()
    assert joined.seconds.tolist() == [4.0] * 1_200
    assert np.bincount(joined.stages).tolist() == [600, 600]


def test_too_few_seconds_are_inconclusive():
    comparison = compare(run_of(1, seconds=8), run_of(2, seconds=60, slower=2.0), ChangeLimits())

    assert comparison.verdict is ChangeVerdict.INCONCLUSIVE
    why = "only 8 full seconds of measurement in A, at least 10 are needed"
    assert comparison.reason == f"qps, p50, p95, error_rate: {why}"
    assert {change.span for change in comparison.changes} == {None}
    (p95,) = [line for line in comparison_text(comparison).splitlines() if line.startswith("* p95")]
    assert re.search(r"\+\d+\.\d %  not enough data ", p95)
    assert comparison_text(comparison).count(why) == 2  # in the verdict, and below the table
    metrics = comparison_data(comparison)["metrics"]
    assert {(entry["low"], entry["high"]) for entry in metrics} == {(None, None)}
    assert [entry["change"] for entry in metrics] == [rounded(change.point) for change in comparison.changes]
    assert None not in [entry["change"] for entry in metrics if entry["statement"] is None]


def test_a_percentile_of_cancelled_statements_is_a_lower_bound_and_not_compared():
    a, b = run_of(1, seconds=12), run_of(2, seconds=12)
    hung = replace(
        b.merged, tally=Tally(statements={"look": tally((50.0,) * 100, cancelled_ms=(9_000.0,) * 20), "pay": tally()})
    )

    comparison = compare(a, replace(b, merged=hung), ChangeLimits())

    by_name = {(change.statement, change.measure): change for change in comparison.changes}
    assert (
        by_name["look", Measure.P95].why == "only a lower bound is known in B: statements timed out or were cancelled"
    )
    assert by_name["pay", Measure.P95].span is not None
    lines = comparison_text(comparison).splitlines()
    shown = next(line for line in lines[lines.index("look") :] if line.startswith("  * p95"))
    assert re.search(r" ms  ≥ [\d,.]+ ms +–  +cannot be bounded +10 %  inconclusive$", shown)
    (entry,) = [
        one for one in comparison_data(comparison)["metrics"] if (one["statement"], one["metric"]) == ("look", "p95")
    ]
    assert (entry["a_at_least"], entry["b_at_least"], entry["change"]) == (False, True, None)


@pytest.mark.parametrize(
    ("a", "b", "verdict", "code"),
    [
        ((40, 42), (40, 42), ChangeVerdict.EQUIVALENT, 0),
        ((40, 42), (30, 31), ChangeVerdict.WORSE, 11),
        ((30, 31), (40, 42), ChangeVerdict.BETTER, 0),
        ((40, None), (40, None), ChangeVerdict.INCONCLUSIVE, 0),  # the ceiling was reached: the upper end is unknown
    ],
)
def test_searches_are_compared_by_the_maximum_they_found(a, b, verdict, code):
    runs = [
        replace(run_of(seed, seconds=12), find_max={"max_concurrency": held, "failed_at": failed})
        for seed, (held, failed) in ((1, a), (2, b))
    ]

    comparison = compare(runs[0], runs[1], ChangeLimits())

    assert [change.measure for change in comparison.changes] == [Measure.MAX_CONCURRENCY]
    assert (comparison.verdict, comparison.exit_code) == (verdict, code)
    assert re.search(r"max_concurrency +\d+ connections +\d+ connections", comparison_text(comparison))
    assert "<svg" in comparison_html(comparison)
    json.dumps(comparison_data(comparison), allow_nan=False)


# --- seconds ---------------------------------------------------------------------------------------------------------


def snapshot(
    worker: str, at_s: float, count: int, *, phase: Phase = Phase.MEASUREMENT, failed: int = 0
) -> MetricsSnapshot:
    statements = {"s": tally((10.0,) * count, failed=failed)} if count else {}
    return second_row("r", worker, at_s, Tally(statements=statements), phase=phase)


def test_only_seconds_that_lie_wholly_in_the_measurement_are_used():
    """It began somewhere in the row that ends at 11 s, and lasted 5 s: until some moment between 15 and 16 s."""
    rows = [
        snapshot("w", at_s, count) for at_s, count in ((11, 3), (12, 4), (13, 5), (14, 6), (15, 7), (16, 2), (17, 0))
    ]

    series = measured_seconds([snapshot("w", 10, 9, phase=Phase.WARMUP), *rows], {"w": [window(seconds=5.0)]})

    assert series.succeeded["s"].tolist() == [4, 5, 6, 7]
    assert series.seconds.tolist() == [1.0] * 4


def test_workers_are_added_and_stages_kept_apart():
    rows = [snapshot(worker, at_s, 2, failed=1) for at_s in range(9) for worker in ("w", "v")]
    windows = [window(seconds=3.0), window(seconds=5.0, window_id=2)]

    series = measured_seconds(rows, {"w": windows, "v": windows})

    assert series.succeeded["s"].tolist() == [4] * 7
    assert series.failed["s"].tolist() == [2] * 7
    assert series.buckets.sum(axis=1).tolist() == [4] * 7
    assert series.seconds.tolist() == [1.0] * 7
    assert series.stages.tolist() == [0, 0, 0, 1, 1, 1, 1]


def test_a_worker_that_left_no_rows_leaves_no_seconds():
    assert len(measured_seconds([snapshot("w", 1, 2)], {"w": [window()], "v": [window()]})) == 0
    assert len(measured_seconds([], {})) == 0


def test_planned_stages_do_not_make_a_change_uncertain():
    """Half of the run at twice the rate: resampled as one, the rate would seem to vary by a third."""
    a = run_of(1)
    factor = np.where(np.arange(60) < 30, 1, 2)
    staged = replace(
        a.series,
        buckets=a.series.buckets * factor[:, np.newaxis],
        succeeded={name: counts * factor for name, counts in a.series.succeeded.items()},
    )
    blind, told = (replace(staged, stages=stages) for stages in (np.zeros(60, np.int64), np.arange(60) // 30))

    widths = [
        change.span.high - change.span.low
        for series in (blind, told)
        for change in compare(replace(a, series=series), replace(a, series=series), ChangeLimits()).changes
        if (change.statement, change.measure) == (None, Measure.QPS) and change.span is not None
    ]

    assert widths[1] < widths[0] / 5
