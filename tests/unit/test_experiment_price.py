"""Experiments: what a warehouse costs, and prices of arms that break their limits."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import datetime

import numpy as np
import pytest

from loadgen.embedded.performance_model import PerformanceModel
from loadgen.embedded.warehouse import WarehouseMeter
from loadgen.model.experiment import Decision, ExperimentEnding
from loadgen.model.warehouse import Cloud, WarehouseKind, shown_row, size_name, snowflake_rates
from loadgen.results.run_record import resumed_s
from loadgen.rules.confidence_intervals import is_mostly
from loadgen.rules.experiment import compare_arms, next_step
from loadgen.rules.price import WarehouseSample, billed_credits, credits_between, price_inside
from tests.unit.test_experiment_rules import HOUR, NO_LIMIT, P95, PRICE, RATES, blocks_of, design, progress

# --- price -----------------------------------------------------------------------------------------------------------


def sample(at_s, size="X-Small", clusters=1, kind=WarehouseKind.GEN1):
    return WarehouseSample(at_s=at_s, size=size, kind=kind, clusters=clusters)


@pytest.mark.parametrize(
    ("size", "kind", "rate"),
    [
        ("X-Small", WarehouseKind.GEN1, 1.0),
        ("XSMALL", WarehouseKind.GEN1, 1.0),
        ("6X-Large", WarehouseKind.GEN1, 512.0),
        ("Small", WarehouseKind.GEN2, 2.7),
        ("5X-Large", WarehouseKind.GEN2, None),
        ("Medium", WarehouseKind.SNOWPARK_OPTIMIZED, 6.0),
        ("Small", WarehouseKind.SNOWPARK_OPTIMIZED, None),
        ("ADAPTIVE", WarehouseKind.GEN1, None),
        (None, WarehouseKind.GEN1, None),
    ],
)
def test_rates_are_by_size_and_kind(size, kind, rate):
    assert RATES.of(size, kind) == (None if rate is None else pytest.approx(rate))


def test_generation_2_is_cheaper_on_azure():
    assert snowflake_rates(Cloud.AZURE).of("Small", WarehouseKind.GEN2) == 2.5


@pytest.mark.parametrize("text", ["2X-Large", "2XLARGE", "X2LARGE", "XXLARGE", "2x-large"])
def test_sizes_have_several_spellings(text):
    assert size_name(text) == "2X-Large"


def test_credits_are_rate_by_clusters_by_time():
    samples = [sample(-5), sample(HOUR / 2, clusters=2), sample(HOUR, size="Small", clusters=1)]

    assert credits_between(samples, 0, HOUR / 2, RATES) == pytest.approx(0.5)
    assert credits_between(samples, 0, HOUR, RATES) == pytest.approx(0.5 + 1.0)
    assert credits_between(samples, 0, 2 * HOUR, RATES) == pytest.approx(0.5 + 1.0 + 2.0)


def test_a_span_before_the_first_look_is_as_that_shows():
    assert credits_between([sample(10)], 0, HOUR, RATES) == pytest.approx(1.0)


def test_what_was_not_seen_or_has_no_rate_has_no_price():
    assert credits_between([], 0, 10, RATES) is None
    assert credits_between([sample(0, size="ADAPTIVE")], 0, 10, RATES) is None


def test_a_cluster_that_starts_is_billed_for_at_least_a_minute():
    samples = [sample(0), sample(10, clusters=2), sample(20), sample(100)]

    assert billed_credits(samples, 100, RATES) == pytest.approx((100 + 10 + 50) / HOUR)
    assert billed_credits([sample(0), sample(10, clusters=2), sample(90)], 100, RATES) == pytest.approx(
        (100 + 80) / HOUR
    )


COURSES = {
    "a resume, and a suspend at the end": [(5, "X-Small", 1)],
    "a short resume": [(5, "X-Small", 1), (20, "X-Small", 0)],
    "two resumes in a minute": [(5, "X-Small", 1), (20, "X-Small", 0), (30, "X-Small", 1), (45, "X-Small", 0)],
    "a larger size for a moment": [(1, "Small", 1), (70, "Large", 1), (80, "Small", 1)],
    "a larger size at the end": [(1, "Small", 1), (85, "Medium", 1)],
    "clusters that come and go": [(2, "Small", 1), (30, "Small", 3), (50, "Small", 2), (95, "Small", 1)],
    "a larger size, more clusters, then less of both": [(2, "Small", 1), (30, "Medium", 2), (60, "X-Small", 1)],
}


@pytest.mark.parametrize("kind", [WarehouseKind.GEN1, WarehouseKind.GEN2])
@pytest.mark.parametrize("course", COURSES.values(), ids=COURSES.keys())
def test_the_estimate_is_what_the_embedded_server_meters(course, kind):
    """A warehouse that was suspended before, is seen at every change, and is suspended at the end of the run."""
    generation, end_s = "2" if kind is WarehouseKind.GEN2 else "1", 100.0
    meter, model = WarehouseMeter(0.0), PerformanceModel()
    for at_s, size, clusters in course:
        meter.change(1e3 * at_s, clusters * model.credits_per_hour(size, generation))
    meter.change(1e3 * end_s, 0.0)
    metered = sum(credits for _, credits in meter.hours(0.0, 1e3 * HOUR, 1e3 * HOUR))
    samples = [sample(at_s, size, clusters, kind) for at_s, size, clusters in course]

    suspended = sample(0, course[0][1], 0, kind)
    assert billed_credits([suspended, *samples], end_s, RATES) == pytest.approx(metered)
    resumed = [replace(samples[0], at_s=samples[0].at_s + 1, resumed_s=samples[0].at_s), *samples[1:]]
    assert billed_credits(resumed, end_s, RATES) == pytest.approx(metered)


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ("2026-11-17 23:00:05.250000+00:00", 5.25),
        ("2026-11-17 14:59:00-08:00", -60.0),
        ("2026-11-17 23:00:05", None),
        ("null", None),
        (None, None),
        (7, None),
    ],
)
def test_the_time_of_a_resume_is_that_of_show_warehouses(told, seconds):
    assert resumed_s(shown_row(json.dumps({"resumed_on": told})), datetime.fromisoformat("2026-11-17T23:00")) == seconds


def test_a_warehouse_that_ran_before_has_no_first_minute_in_this_run():
    before = replace(sample(1), resumed_s=-30.0)

    assert billed_credits([before], 21, RATES) == pytest.approx(20 / HOUR)
    assert billed_credits([replace(before, resumed_s=0.5)], 21, RATES) == pytest.approx(60 / HOUR)
    assert billed_credits([sample(1)], 21, RATES) == pytest.approx(20 / HOUR)
    assert billed_credits([], 21, RATES) is None
    assert billed_credits([sample(1, "ADAPTIVE")], 21, RATES) is None


def test_measurements_outside_the_limits_cost_and_serve_nothing():
    assert price_inside([0.15], 1) == pytest.approx(0.15)
    assert price_inside([0.1, 0.4], 2) == pytest.approx(0.2)
    assert price_inside([0.15, 0.15], 1) == pytest.approx(0.30)
    assert price_inside([0.15], 0) is None
    assert price_inside([], 0) is None


# --- limits ----------------------------------------------------------------------------------------------------------

CHEAP = {"a": {PRICE: 1.0}, "b": {PRICE: 0.5}}
DEAR = {"a": {PRICE: 1.0}, "b": {PRICE: 2.0}}


def compared(truth, outside, count=12):
    """Prices of a and b; `outside` has the arms that break the limits in each of the first blocks."""
    plan = replace(design(margins={PRICE: 0.05}), has_limits=True)
    breaks = [*map(frozenset, outside), *[frozenset()] * count]
    blocks = [replace(one, outside=broken) for one, broken in zip(blocks_of(truth, count), breaks, strict=False)]
    return (plan, blocks, *compare_arms(plan, blocks, final=False))


def test_an_arm_that_breaks_its_limits_once_is_never_the_cheaper_one():
    *_, whole = compared(CHEAP, [])
    *_, broken = compared(CHEAP, ["b"])

    assert (whole.decision, whole.high < 0) == (Decision.BETTER, True)
    assert (broken.decision, broken.high) == (Decision.UNDECIDED, math.inf)
    assert broken.low == pytest.approx(whole.low)
    assert 1 + broken.change == pytest.approx((1 + whole.change) * 12 / 11)


def test_an_arm_that_is_dearer_also_with_all_its_statements_is_dearer():
    *_, broken = compared(DEAR, ["b"])
    *_, other = compared(CHEAP, ["a"])
    *_, both = compared(DEAR, ["a", "b"])

    assert (broken.decision, other.decision, both.decision) == (Decision.WORSE, Decision.BETTER, Decision.UNDECIDED)


def test_arms_of_the_same_price_are_not_equivalent_if_one_of_them_breaks_its_limits():
    same = {"a": {PRICE: 1.0}, "b": {PRICE: 1.001}}
    *_, whole = compared(same, [], count=20)
    *_, broken = compared(same, ["a"], count=20)

    assert (whole.decision, broken.decision) == (Decision.EQUIVALENT, Decision.UNDECIDED)


def test_an_arm_that_breaks_its_limits_again_and_again_is_outside_and_ends_the_experiment():
    plan, blocks, early = compared(CHEAP, ["b"] * 10, count=10)
    assert (early.decision, early.change) == (Decision.UNDECIDED, None)
    plan, blocks, found = compared(CHEAP, ["b"] * 11, count=11)

    assert (found.decision, found.change) == (Decision.OUTSIDE, None)
    assert next_step(plan, blocks, [found], progress(begun=11), NO_LIMIT) is ExperimentEnding.DECIDED


def test_other_metrics_do_not_depend_on_limits():
    plan = replace(design(margins={P95: 0.05, PRICE: 0.05}), has_limits=True)
    truth = {"a": {P95: 10.0, PRICE: 1.0}, "b": {P95: 5.0, PRICE: 1.0}}
    blocks = [replace(one, outside=frozenset({"b"})) for one in blocks_of(truth, 12)]

    assert compare_arms(plan, blocks, final=False)[0].decision is Decision.BETTER
    assert 2 * plan.error_each + 2 * plan.error_outside == pytest.approx(0.05)  # two comparisons, two arms


def test_an_arm_that_holds_its_limits_in_half_of_its_measurements_is_rarely_called_outside():
    rng = np.random.default_rng(5)
    called = [is_mostly((rng.random(20) < 0.5).tolist(), 0.05) for _ in range(4_000)]

    assert 0.0 < np.mean(called) <= 0.05
    assert not is_mostly([], 0.05)
