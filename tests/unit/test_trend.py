"""Trends: the verdict on the newest night, and only like beside like."""

from __future__ import annotations

import numpy as np
import pytest

from loadgen.report.trend import reason_text, trend_data, trend_html, trend_text
from loadgen.rules.comparability import Measure
from loadgen.rules.trend import RUNS_MIN, SeriesKey, TrendVerdict, series_of, trend_of, values_of
from tests.unit.trend_builders import KEY, P95, QUIET, hung, night, nights_of, noise, trend

# --- verdicts --------------------------------------------------------------------------------------------------------


def test_a_regression_is_suspected_then_confirmed_then_known():
    verdicts = [trend([*QUIET, *[50.0] * more]) for more in range(4)]

    assert [one.verdict for one in verdicts] == [
        TrendVerdict.STEADY,
        TrendVerdict.SUSPECTED,
        TrendVerdict.REGRESSION,
        TrendVerdict.STEADY,
    ]
    assert [one.exit_code for one in verdicts] == [0, 0, 11, 0]
    assert "p95 +2" in reason_text(verdicts[1])
    assert reason_text(verdicts[2]).endswith("since night-030")
    assert "no new change; known: " in reason_text(verdicts[3])


def test_every_regression_that_lasts_is_known():
    found = trend([*QUIET, *[50.0] * 3])

    known = reason_text(found).removeprefix("no new change; known: ")

    assert [part.split()[0] for part in known.removesuffix(" since night-030").split(", ")] == [
        track.name for track in found.tracks if any(step.track is track for step in found.steps)
    ]
    assert len(known.split(", ")) > 2


def test_a_second_regression_within_three_nights_of_the_first_is_reported_as_new():
    for gap in (1, 2, 3):
        values = [*QUIET, *[52.0] * (1 + gap), 67.6, 67.6]

        before, found, after = trend(values[:-1]), trend(values), trend([*values, 67.6])

        assert before.verdict is TrendVerdict.SUSPECTED
        assert (found.verdict, found.exit_code) == (TrendVerdict.REGRESSION, 11)
        assert reason_text(found).endswith(f"since night-{31 + gap:03d}")
        assert after.verdict is TrendVerdict.STEADY


def test_a_second_step_that_another_metric_shows_a_night_later_is_reported_once():
    values = [*QUIET, 52.0, 52.0, 52.0, 67.6, 67.6, 67.6]
    late = nights_of(values)
    late[33] = night(33, {**late[33].values, (None, Measure.P50): 26.0})  # the median moved a night after p95

    assert trend_of("orders", late[:-1], {}).verdict is TrendVerdict.REGRESSION
    assert any(step.start == 34 and step.confirmed == 35 for step in trend_of("orders", late, {}).steps)
    assert trend_of("orders", late, {}).verdict is TrendVerdict.STEADY


def test_a_newest_p95_that_is_at_least_something_is_never_steady():
    above, twice, below = hung([*QUIET, 80.0]), hung([*QUIET, 80.0, 90.0], 2), hung([*QUIET, 30.0])
    within = hung([*QUIET, 44.5])  # beyond the limit, and not beyond chance

    assert above.verdict is TrendVerdict.SUSPECTED
    assert reason_text(above).startswith("p95 at least +10")
    assert (twice.verdict, twice.exit_code) == (TrendVerdict.REGRESSION, 11)
    assert reason_text(twice).startswith("p95 at least +1")
    for undecided, value in ((below, "30.00"), (within, "44.50")):
        assert (undecided.verdict, undecided.exit_code) == (TrendVerdict.UNDECIDED, 0)
        assert reason_text(undecided) == (
            f"p95 is at least {value} ms: statements timed out or were cancelled,"
            " so it may be in the usual range or worse"
        )


def test_lower_bounds_are_shown_as_such_everywhere():
    found = hung([*QUIET, 30.0])

    (line,) = [line for line in trend_text(found, 30).splitlines() if line.startswith("p95 ")]
    assert "≥ 30.00 ms" in line
    assert line.endswith("undecided")
    (p95,) = [one for one in trend_data(found, 3)["metrics"] if (one["statement"], one["metric"]) == (None, "p95")]
    assert (p95["at_least"], p95["state"]) == ([False, False, True], "undecided")
    page = trend_html(found, 30)
    assert page.count("≥ 30.00 ms") >= 2
    assert "Triangles: lower bounds" in page


def test_an_improvement_is_reported_and_is_no_failure():
    found = trend([*QUIET, 30.0, 30.0])

    assert (found.verdict, found.exit_code) == (TrendVerdict.IMPROVED, 0)


def test_a_metric_that_follows_a_night_later_is_no_new_regression():
    values = [*QUIET, 50.0, 50.0, 50.0]
    late = nights_of(values)
    for number in (30,):  # the median moved a night after p95
        late[number] = night(number, {**late[number].values, (None, Measure.P50): values[29] / 2})

    assert trend_of("orders", late[:-1], {}).verdict is TrendVerdict.REGRESSION
    assert any(step.start == 31 and step.confirmed == 32 for step in trend_of("orders", late, {}).steps)
    assert trend_of("orders", late, {}).verdict is TrendVerdict.STEADY


def test_errors_are_judged_in_points():
    runs = [
        night(number, {P95: 40.0, (None, Measure.ERROR_RATE): 0.02 if number >= 20 else 0.0001}) for number in range(22)
    ]

    found = trend_of("orders", runs, {})

    assert found.verdict is TrendVerdict.REGRESSION
    assert reason_text(found) == "error_rate +2.0 pp since night-020"


def test_few_runs_are_for_learning():
    assert trend(QUIET[:3]).verdict is TrendVerdict.LEARNING
    assert trend_of("orders", [], {"have the verdict error": 2}).verdict is TrendVerdict.LEARNING
    assert trend(QUIET[: RUNS_MIN - 1]).verdict is TrendVerdict.LEARNING
    assert trend(QUIET[:RUNS_MIN]).verdict is TrendVerdict.STEADY


def test_the_number_of_missing_runs_is_reported():
    found = trend(QUIET[:3])

    assert reason_text(found) == f"{RUNS_MIN} comparable runs are needed to judge the newest; 3 found"
    assert (trend_data(found, 30)["runs_needed"], trend_data(found, 30)["runs_in_series"]) == (6, 3)
    for shown in (trend_text(found, 30), trend_html(found, 30)):
        assert reason_text(found) in shown


def test_noise_in_all_metrics_at_once_is_silent_too():
    for seed in range(5):
        p95 = 40 * np.exp(noise(100 + seed, 120))

        found = trend_of("orders", nights_of(list(p95)), {})

        assert (found.steps, found.exit_code) == ((), 0)


# --- which runs are comparable ---------------------------------------------------------------------------------------


def test_another_key_is_another_series_and_the_newest_run_decides_which_is_shown():
    other = SeriesKey(template_id="t", driver_major="4", workers=2, cores=2, warehouse_size="X-Small")
    runs = [night(number, {P95: 40.0}, key=other if number in (0, 1, 5) else KEY) for number in range(8)]

    series = series_of(runs)

    assert list(series) == [other, KEY]
    assert [one.run_id for one in series[KEY]] == ["night-002", "night-003", "night-004", "night-006", "night-007"]
    assert list(series_of(runs[:6])) == [KEY, other]


def test_values_come_from_the_summary_and_lower_bounds_are_marked():
    summary = {
        "find_max": None,
        "latency_ms": {"p50": 20.0, "p95": 40.0, "at_least": ["p95"]},
        "totals": {"qps": 100.0, "error_rate": 0.0},
        "statements": {"a": {"latency_ms": {"p95": 30.0}}, "b": {"latency_ms": {"p95": None}}},
    }

    values, at_least = values_of(summary)
    assert values == {
        P95: 40.0,
        (None, Measure.P50): 20.0,
        (None, Measure.QPS): 100.0,
        (None, Measure.ERROR_RATE): 0.0,
        ("a", Measure.P95): 30.0,
    }
    assert at_least == {P95}
    searched = {**summary, "find_max": {"max_concurrency": 45}}
    assert values_of(searched) == ({(None, Measure.MAX_CONCURRENCY): 45.0}, frozenset())


def test_other_changes_of_that_night_are_reported():
    runs = nights_of([*QUIET, 50.0, 50.0])
    for number, one in enumerate(runs):
        driver = "5.2.0" if number >= 30 else "5.1.0"
        runs[number] = night(number, one.values, facts={"environment.driver": driver, "environment.python": "3.11"})

    found = trend_of("orders", runs, {})

    assert found.changed_at(30) == {"environment.driver": ("5.1.0", "5.2.0")}
    assert "also changed: driver 5.1.0 → 5.2.0" in trend_text(found, 30)


@pytest.mark.parametrize(
    ("found", "bound"),
    [
        ({"max_concurrency": 16, "result": "TRUE_MAX", "limited_at": None}, False),
        ({"max_concurrency": 500, "result": "BOUNDED_MAX", "limited_at": None}, False),  # the ceiling of the scenario
        ({"max_concurrency": 12, "result": "BOUNDED_MAX", "limited_at": 14}, True),
        ({"max_concurrency": 8, "result": "BOUNDED_MAX", "steps": [{"target": 8}, {"target": 16}]}, True),
        ({"max_concurrency": 8, "result": "BOUNDED_MAX", "confidence": "low"}, True),  # the steps ran out
        ({"max_concurrency": 12, "result": "BOUNDED_MAX"}, False),  # of an older run
    ],
)
def test_a_maximum_that_the_client_bounded_is_a_lower_bound(found, bound):
    values, at_least = values_of({"find_max": found})

    assert values == {(None, Measure.MAX_CONCURRENCY): float(found["max_concurrency"])}
    assert at_least == ({(None, Measure.MAX_CONCURRENCY)} if bound else set())
