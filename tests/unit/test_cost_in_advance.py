"""The worst-case cost that `loadgen experiment --dry-run` and `loadgen doctor` show in advance."""

from __future__ import annotations

import math

import pytest

from loadgen.doctor import findings
from loadgen.doctor.check_context import FindingLevel, WarehouseDescription
from loadgen.rules.experiment import design_of, experiment_plan_data, experiment_plan_text, plan_experiment
from loadgen.rules.scenario_plan import plan
from loadgen.scenario.experiment import read_experiment
from orchestrator.experiment.warehouse_settings import worst_cases
from tests.unit.test_doctor import ROW, scenario

# --- an experiment ---------------------------------------------------------------------------------------------------


def planned(folder, arms="{a: {}, b: {set: {load.connections: 8}}}", more=""):
    (folder / "s.yaml").write_text(
        "version: 1\nname: s\nconnection: prod\nworkload: {statements: [{name: a, sql: SELECT 1}]}\n"
        "load: {connections: 4, warmup: 10s, duration: 50s}\n"
    )
    (folder / "e.yaml").write_text(
        f"version: 1\nname: e\nscenario: s.yaml\narms: {arms}\nreference: a\n"
        f"metrics: {{p95: 5%}}\nwashout: 5s\nblocks: {{minimum: 4, maximum: 10}}\n{more}"
    )
    loaded = read_experiment(folder / "e.yaml", environ={})
    scenarios = {name: arm.scenario for name, arm in loaded.arms.items()}
    plans = {name: plan(arm, cores=2) for name, arm in loaded.arms.items()}
    return plan_experiment(loaded.file, design_of(loaded.file), scenarios, plans)


def test_a_plan_shows_order_time_worst_case_credits_and_the_detectable_difference(tmp_path):
    made = planned(tmp_path)

    assert made.block_s == 2 * (5 + 10 + 50)
    assert made.longest_s == 10 * 2 * 2 * (5 + 10 + 50 + 120)
    assert made.credits is not None
    assert made.credits.by_size["X-Small"] == pytest.approx(1.35 * 10 * 2 * 2 * 180 / 3600)
    assert made.credits.total is None
    assert 0.04 < made.detectable < 0.08
    text = experiment_plan_text(made)
    assert "block 1: " in text
    assert "4 blocks at least, about 8m 40s; all 10, about 21m 40s." in text
    assert "if every arm had a warehouse of this size: X-Small 2.70, Small 5.40" in text
    told = experiment_plan_data(made)["credits"]
    assert math.isclose(told["by_size"]["Small"], 2 * made.credits.by_size["X-Small"])


SIZED = (
    "{a: {warehouse: {name: A, size: Small, generation: 1, query_acceleration: true}},"
    " b: {warehouse: {name: B, size: X-Small, generation: 2, max_clusters: 3}}}"
)


def test_a_plan_has_the_credits_of_each_arm_by_its_size_generation_and_clusters(tmp_path):
    made = planned(tmp_path, SIZED, "budget: {credits: 0.6}\n")

    each_h = 10 * 2 * 180 / 3600
    assert made.credits is not None
    assert dict(made.credits.by_arm) == {"a": pytest.approx(2 * each_h), "b": pytest.approx(3 * 1.35 * each_h)}
    assert made.credits.total == pytest.approx((2 + 3 * 1.35) * each_h)
    assert made.credits.by_size == {}
    assert made.credits.block == pytest.approx((2 + 3 * 1.35) * 60 / 3600)
    text = experiment_plan_text(made)
    assert "by arm: a 2.00, b 4.05; together 6.05." in text
    assert "budget.credits, 0.6, has room for 5 blocks at most." in text
    assert "Without query acceleration, which is on for a: its credits are not estimated." in text


def test_a_plan_counts_a_warehouse_that_an_arm_creates_as_the_run_does(tmp_path):
    """Without a size it is X-Small; its generation depends on the account."""
    arms = "{a: {warehouse: {name: A, create: true}}, b: {warehouse: {name: B, create: true, size: Small}}}"

    made = planned(tmp_path, arms)

    loaded = read_experiment(tmp_path / "e.yaml", environ={})
    run = worst_cases(loaded, {name: arm.scenario for name, arm in loaded.arms.items()})
    assert made.credits is not None
    assert made.credits.by_arm == {name: pytest.approx(10 * 2 * (each or 0.0)) for name, each in run.items()}
    assert run == {"a": pytest.approx(1.35 * 180 / 3600), "b": pytest.approx(2 * 1.35 * 180 / 3600)}
    assert made.credits.by_size == {}


def test_an_arm_whose_size_is_not_known_has_a_table_beside_the_others(tmp_path):
    arms = "{a: {warehouse: {name: A, size: Small}}, b: {warehouse: {name: B, min_clusters: 2, max_clusters: 2}}}"

    made = planned(tmp_path, arms, "budget: {credits: 9}\n")

    assert made.credits is not None
    assert (dict(made.credits.by_arm), made.credits.block) == ({"a": pytest.approx(2.7)}, None)
    assert made.credits.by_size["Medium"] == pytest.approx(1.35 * (2 + 2 * 4))
    assert "budget.credits is 9: no block is begun that may exceed it." in experiment_plan_text(made)
    assert "if every other arm had a warehouse of this size: X-Small 5.40" in experiment_plan_text(made)


@pytest.mark.parametrize(("time", "blocks"), [("1h", 10), ("11m", 5), ("5m", 2)])
def test_the_detectable_difference_is_for_the_blocks_that_the_budget_allows(tmp_path, time, blocks):
    whole, short = planned(tmp_path), planned(tmp_path, more=f"budget: {{time: {time}}}\n")

    assert short.blocks_possible == experiment_plan_data(short)["blocks_in_budget"] == blocks
    text = experiment_plan_text(short)
    assert (short.detectable > whole.detectable) is (blocks < 10)
    assert ("within the 5 blocks that the budget allows" in text) is (blocks == 5)
    assert ("With blocks.maximum: 5 the planned final check would be after them:" in text) is (blocks == 5)
    assert ("None within the 2 blocks that the budget allows." in text) is (blocks == 2)
    assert ("2 blocks at most, and 4 are needed to decide" in text) is (blocks == 2)
    assert experiment_plan_data(planned(tmp_path, more="budget: {time: 5m}\n"))["found_at_3_percent_noise"] is None


# --- doctor ----------------------------------------------------------------------------------------------------------


def test_the_cost_counts_every_cluster_for_as_long_as_the_run_can_last():
    planned = plan(scenario("load: {warmup: 0s, duration: 58m}\ntiming: {drain: 2m}\n"), cores=2).cost
    found = WarehouseDescription.from_row(ROW, 8)

    told = findings.cost(planned, found, None)

    assert told.level is FindingLevel.OK
    assert told.message.startswith(
        "at most 12.15 credits: 10.80 for Medium, 2 clusters, and 1.35 for the control warehouse"
    )
    assert told.details[0].startswith("at the rate of generation 2.")
    assert findings.cost(planned, found, 12.1).level is FindingLevel.WARNING
    assert "X-Small 1.35, Small 2.70" in findings.cost(planned, None, None).message
    assert findings.cost(None, None, None).message.startswith("none")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"generation": None}, "at most 9.35 credits: 8.00 for Medium"),
        ({"type": "SNOWPARK-OPTIMIZED", "generation": None}, "at most 13.35 credits: 12.00 for Medium"),
        ({"type": "ADAPTIVE", "size": None}, "at most, in credits by size: "),
    ],
)
def test_the_cost_is_that_of_the_kind_of_the_warehouse(row, message):
    planned = plan(scenario("load: {warmup: 0s, duration: 58m}\ntiming: {drain: 2m}\n"), cores=2).cost

    told = findings.cost(planned, WarehouseDescription.from_row({**ROW, **row}, 8), None)

    assert told.message.startswith(message)
