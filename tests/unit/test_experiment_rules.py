"""Experiments: order, decisions, when to stop, frontier, price."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from loadgen.embedded.performance_model import PerformanceModel
from loadgen.model.experiment import Decision, ExperimentEnding, ExperimentMetric
from loadgen.model.warehouse import Cloud, WarehouseKind, snowflake_rates
from loadgen.rules.experiment import (
    BlockValues,
    ExperimentBudget,
    ExperimentDesign,
    ExperimentProgress,
    block_order,
    blocks_to_decide,
    compare_arms,
    decision_between,
    dominated_arms,
    next_step,
)
from loadgen.rules.measurement import MeasurementFigures
from loadgen.rules.price import WarehouseSample, credits_between

P95, QPS, PRICE = map(ExperimentMetric.parse, ("p95", "qps", "price"))
RATES = snowflake_rates(Cloud.AWS)
HOUR = 3600.0


def design(arms=("a", "b"), margins=None, *, minimum=2, maximum=20, seed=1):
    return ExperimentDesign(
        arms=tuple(arms),
        reference=arms[0],
        margins=margins or {P95: 0.05},
        blocks_min=minimum,
        blocks_max=maximum,
        seed=seed,
    )


def blocks_of(truth, count, *, seed=1, noise=0.03):
    """Blocks with these true values by arm and metric, a level that changes from block to block, and noise."""
    rng = np.random.default_rng(seed)
    return [
        BlockValues(
            number=number,
            values={
                arm: {metric: value * level * math.exp(rng.normal(0, noise)) for metric, value in by.items()}
                for arm, by in truth.items()
            },
        )
        for number, level in enumerate(rng.uniform(0.8, 1.2, count), 1)
    ]


def progress(**changes):
    usual = {"begun": 0, "lost_in_a_row": 0, "elapsed_s": 0.0, "credits": None, "longest_block_s": 60.0}
    return ExperimentProgress(**{**usual, "costliest_block_credits": 0.0, **changes})


# --- order -----------------------------------------------------------------------------------------------------------


def test_a_block_has_every_arm_once_and_the_seed_decides_the_order():
    three = design(("a", "b", "c"))

    orders = [block_order(three, block) for block in range(1, 31)]

    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert orders == [block_order(three, block) for block in range(1, 31)]
    assert orders != [block_order(design(("a", "b", "c"), seed=2), block) for block in range(1, 31)]


def test_each_order_of_arms_is_as_frequent_as_the_others():
    seen = Counter(block_order(design(("a", "b", "c")), block) for block in range(6_000))

    assert len(seen) == 6
    assert all(880 <= count <= 1_120 for count in seen.values())  # 1,000 expected, four deviations


def test_the_reference_is_what_others_are_compared_with():
    pairs = ExperimentDesign(
        arms=("a", "b", "c"), reference="b", margins={P95: 0.05}, blocks_min=2, blocks_max=4, seed=1
    ).pairs

    assert pairs == (("b", "a"), ("b", "c"), ("a", "c"))


def test_the_error_is_divided_among_all_pairs_and_metrics():
    assert design(("a", "b", "c"), {P95: 0.05, QPS: 0.05}).error_each == pytest.approx(0.05 / 6)


# --- decisions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "factor", "decision"),
    [
        (P95, 1.3, Decision.WORSE),
        (P95, 0.7, Decision.BETTER),
        (QPS, 1.3, Decision.BETTER),
        (QPS, 0.7, Decision.WORSE),
        (PRICE, 0.7, Decision.BETTER),
    ],
)
def test_whether_more_is_better_depends_on_the_metric(metric, factor, decision):
    truth = {"a": {metric: 10.0}, "b": {metric: 10.0 * factor}}

    (found,) = compare_arms(design(margins={metric: 0.05}), blocks_of(truth, 10), final=False)

    assert found.decision is decision
    assert found.change == pytest.approx(factor - 1, abs=0.05)
    assert found.low < factor - 1 < found.high
    assert len(found.by_block) == 10


def test_arms_that_differ_less_than_the_margin_are_equivalent():
    truth = {"a": {P95: 10.0}, "b": {P95: 10.1}}

    (found,) = compare_arms(design(), blocks_of(truth, 20, noise=0.01), final=True)

    assert found.decision is Decision.EQUIVALENT


def test_nothing_is_decided_before_there_is_a_block():
    (found,) = compare_arms(design(), [], final=False)

    assert (found.decision, found.change, found.low, found.high) == (Decision.UNDECIDED, None, -1.0, math.inf)


def test_values_in_the_same_bucket_are_known_to_one_percent():
    (found,) = compare_arms(design(), blocks_of({"a": {P95: 10.0}, "b": {P95: 10.0}}, 8, noise=0.0), final=False)

    assert found.low == pytest.approx(-1 / 101)
    assert found.high == pytest.approx(0.01)


def test_a_decision_can_be_asked_for_in_both_directions():
    found = compare_arms(design(), blocks_of({"a": {P95: 10.0}, "b": {P95: 20.0}}, 8), final=False)

    assert decision_between(found, P95, "b", "a") is Decision.WORSE
    assert decision_between(found, P95, "a", "b") is Decision.BETTER
    with pytest.raises(KeyError):
        decision_between(found, QPS, "a", "b")


def test_the_number_of_blocks_is_estimated_from_those_so_far():
    plan = design(maximum=20)
    blocks = blocks_of({"a": {P95: 10.0}, "b": {P95: 10.6}}, 20, seed=5)
    (early,) = compare_arms(plan, blocks[:3], final=False)
    (none,) = compare_arms(plan, blocks[:1], final=False)

    needed = blocks_to_decide(plan, early)

    assert early.decision is Decision.UNDECIDED
    assert needed is not None
    assert 4 <= needed <= 20
    assert blocks_to_decide(plan, none) is None
    to_and_fro = [
        BlockValues(number=number, values={"a": {P95: 10.0}, "b": {P95: 10.0 * factor}})
        for number, factor in enumerate((1.3, 0.77, 1.3, 0.77), 1)
    ]
    (hopeless,) = compare_arms(plan, to_and_fro, final=False)
    assert blocks_to_decide(plan, hopeless) is None


# --- when to stop ----------------------------------------------------------------------------------------------------

FAR_APART = {"a": {P95: 10.0}, "b": {P95: 20.0}}
ALIKE = {"a": {P95: 10.0}, "b": {P95: 10.4}}


NO_LIMIT = ExperimentBudget()


def step(truth=ALIKE, count=5, budget=NO_LIMIT, *, minimum=2, maximum=20, **changes):
    plan, blocks = design(minimum=minimum, maximum=maximum), blocks_of(truth, count)
    found = compare_arms(plan, blocks, final=False)
    return next_step(plan, blocks, found, progress(**{"begun": count, **changes}), budget)


def test_an_experiment_ends_once_everything_is_decided_and_the_minimum_is_reached():
    assert step(FAR_APART, 6) is ExperimentEnding.DECIDED
    assert step(FAR_APART, 6, minimum=7) is None


def test_an_undecided_experiment_goes_on_until_its_last_block():
    assert step() is None
    assert step(maximum=5) is ExperimentEnding.BLOCKS
    assert step(begun=20) is ExperimentEnding.BLOCKS


def test_two_lost_blocks_in_a_row_end_it():
    assert step(lost_in_a_row=1) is None
    assert step(lost_in_a_row=2) is ExperimentEnding.LOST_BLOCKS


def test_no_block_is_begun_that_may_exceed_the_budget():
    hour = ExperimentBudget(time_s=HOUR)
    assert step(budget=hour, elapsed_s=HOUR - 60) is None
    assert step(budget=hour, elapsed_s=HOUR - 59) is ExperimentEnding.TIME
    two = ExperimentBudget(credits=2.0)
    assert step(budget=two, credits=1.5, costliest_block_credits=0.5) is None
    assert step(budget=two, credits=1.6, costliest_block_credits=0.5) is ExperimentEnding.CREDITS


# --- frontier --------------------------------------------------------------------------------------------------------

# The embedded server's model, with its known speeds and credits. 8 connections, 4 slots for each cluster.
MODEL = PerformanceModel(
    speed={"X-Small": 1.0, "Small": 1.9, "Medium": 3.5, "Large": 3.0}, generation={"1": 1.0, "2": 1.6}
)
ARMS = {  # size, generation, clusters
    "xs": ("X-Small", "1", 1),
    "xs2": ("X-Small", "2", 1),
    "s": ("Small", "1", 1),
    "m": ("Medium", "1", 1),
    "l": ("Large", "1", 1),
    "three-xs": ("X-Small", "1", 3),
}
CONNECTIONS, SLOTS, SERVICE_S, MEASURED_S = 8, 4, 0.1, 600.0


def modelled(size, generation, clusters):
    """What a measurement on such a warehouse finds: all connections share the slots."""
    service_s = SERVICE_S * MODEL.time_factor(size, generation, math.inf)
    busy = min(CONNECTIONS, SLOTS * clusters)
    kind = WarehouseKind.GEN2 if generation == "2" else WarehouseKind.GEN1
    samples = [WarehouseSample(at_s=0.0, size=size, kind=kind, clusters=clusters)]
    figures = MeasurementFigures(
        values={},
        latency_ms={},
        qps=busy / service_s,
        error_rate=0.0,
        statements=round(MEASURED_S * busy / service_s),
        credits=credits_between(samples, 0.0, MEASURED_S, RATES),
    )
    return {PRICE: figures.price(3.0), P95: 1e3 * service_s * CONNECTIONS / busy}


def test_credits_of_the_model_are_those_of_the_rate_table():
    for size, generation, _ in ARMS.values():
        kind = WarehouseKind.GEN2 if generation == "2" else WarehouseKind.GEN1
        assert RATES.of(size, kind) == pytest.approx(MODEL.credits_per_hour(size, generation))


@pytest.mark.parametrize("seed", range(20))
def test_the_frontier_of_the_embedded_model_is_exactly_right(seed):
    known = {arm: modelled(*warehouse) for arm, warehouse in ARMS.items()}
    true = {
        arm
        for arm, mine in known.items()
        if not any(
            other is not mine and all(other[metric] <= mine[metric] for metric in mine) for other in known.values()
        )
    }
    plan = design(tuple(ARMS), {PRICE: 0.05, P95: 0.05}, minimum=4)
    blocks: list[BlockValues] = []
    every = blocks_of(known, plan.blocks_max, seed=seed)
    ended = None
    while ended is None:
        blocks.append(every[len(blocks)])
        found = compare_arms(plan, blocks, final=len(blocks) == plan.blocks_max)
        ended = next_step(plan, blocks, found, progress(begun=len(blocks)), ExperimentBudget())

    dominated = dominated_arms(plan, found, plan.arms)

    assert true == {"xs2", "s", "m"}
    assert dominated is not None
    assert ARMS.keys() - dominated.keys() == true
    assert "m" in dominated["l"]
    assert "xs2" in dominated["xs"]


def test_what_is_undecided_dominates_nothing():
    plan = design(("a", "b"), {PRICE: 0.05, P95: 0.05})
    found = compare_arms(plan, [], final=False)

    assert dominated_arms(plan, found, plan.arms) == {}


def test_without_price_or_latency_there_is_no_frontier():
    plan = design()

    assert dominated_arms(plan, compare_arms(plan, [], final=False), plan.arms) is None
