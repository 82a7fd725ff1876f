"""Experiment files: what they mean, and every mistake at once, at its line and column."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadgen.cli.experiment import experiment
from loadgen.model.experiment import ExperimentMetric
from loadgen.model.warehouse import RATES_DATE, WarehouseKind
from loadgen.scenario.document import ScenarioProblems
from loadgen.scenario.experiment import LoadedExperiment, read_experiment
from loadgen.scenario.read import read_scenario
from orchestrator.experiment.state import config_of, fingerprint_of, only_connections_differ

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples" / "experiments").glob("*.yaml"))
SCENARIO = """\
version: 1
name: s
connection: embedded
workload: {statements: [{name: point, sql: SELECT 1}]}
load: {connections: 4, warmup: 1s, duration: 5s}
"""
MINIMAL = """\
version: 1
name: e
scenario: s.yaml
arms:
  few: {}
  many: {set: {load.connections: 8}}
reference: few
metrics: {p95: 5%, point.p99: 10%}
"""


def read(folder: Path, text: str = MINIMAL, scenario: str = SCENARIO) -> LoadedExperiment:
    (folder / "s.yaml").write_text(scenario)
    (folder / "e.yaml").write_text(text)
    return read_experiment(folder / "e.yaml", environ={"SIZE": "16"})


def problems(folder: Path, text: str, scenario: str = SCENARIO) -> list[str]:
    with pytest.raises(ScenarioProblems) as found:
        read(folder, text, scenario)
    return [str(problem).replace(f"{folder}/", "") for problem in found.value.problems]


def test_an_arm_is_the_scenario_with_its_changes(tmp_path):
    loaded = read(tmp_path)

    assert {name: arm.scenario.load.connections for name, arm in loaded.arms.items()} == {"few": 4, "many": 8}
    assert loaded.file.margins == {ExperimentMetric.parse("p95"): 0.05, ExperimentMetric.parse("point.p99"): 0.10}
    assert (loaded.file.blocks.minimum, loaded.file.blocks.maximum, loaded.file.washout_s) == (4, 20, 0.0)
    assert loaded.folder == tmp_path
    assert loaded.warnings == ()


def test_changes_may_be_texts_numbers_lists_and_variables(tmp_path):
    change = (
        '{load.connections: "${SIZE}", load.duration: 7s, target.use_cached_result: true, thresholds: "[p95 < 1s]"}'
    )
    loaded = read(tmp_path, MINIMAL.replace("{load.connections: 8}", change))

    scenario = loaded.arms["many"].scenario
    assert (scenario.load.connections, scenario.load.duration_s, scenario.target.use_cached_result) == (16, 7.0, True)
    assert [one.check.text for one in scenario.thresholds] == ["p95 < 1s"]


@pytest.mark.parametrize("written", ["OTHER_WH", "{name: OTHER_WH}"])
def test_an_arm_may_have_another_warehouse(tmp_path, written):
    loaded = read(tmp_path, MINIMAL.replace("many: {set", f"many: {{warehouse: {written}, set"))

    assert loaded.arms["many"].scenario.target.warehouse == "OTHER_WH"


def test_a_warehouse_is_made_for_one_arm_and_has_a_name(tmp_path):
    arms = "few: {warehouse: A}\n  many: {warehouse: {name: A, create: true}, set: {load.connections: 8}}\n"
    shared = MINIMAL.replace("few: {}\n  many: {set: {load.connections: 8}}\n", arms)

    assert problems(tmp_path, shared) == [
        "e.yaml:6:39 arms.many.warehouse.create: makes a warehouse that arm few uses too, got 'true'; give each of them"
        " a different name"
    ]
    for other in ("a", "'\"A\"'"):
        assert len(problems(tmp_path, shared.replace("warehouse: A}", f"warehouse: {other}}}"))) == 1
    assert problems(tmp_path, shared.replace("name: A, ", "")) == [
        "e.yaml:6:30 arms.many.warehouse.create: has no name, got 'true'; add the name of a warehouse to be made"
    ]
    assert read(tmp_path, shared.replace("few: {warehouse: A}", "few: {}")).file.arms["many"].settings == {}


def test_rates_may_be_replaced(tmp_path):
    prices = "price: {credit: 3, currency: USD, rates: {date: '2027-01-01', gen1: {XS: 1.5}}}\n"

    table = read(tmp_path, MINIMAL + prices).file.price.table

    assert (table.date, table.of("X-Small", WarehouseKind.GEN1)) == ("2027-01-01", 1.5)
    assert table.of("X-Small", WarehouseKind.GEN2) is None
    assert read(tmp_path).file.price.table.date == RATES_DATE


MISTAKES = """\
version: 1
name: e
scenari: s.yaml
scenario: s.yaml
arms:
  few: {sett: {load.connections: 8}}
  "a b": {set: {load.connections: many, load.warmup: 2s}}
  more: {set: {load.nothing: 1}}
reference: none
metrics: {p96: 5%, error_rate: 1%, nowhere.p95: 5%, price: 0%, rare.p50: 5%}
limits: [p95 < fast, other.p95 < 5ms]
blocks: {minimum: 9, maximum: 3}
budget: {credits: -1, time: 5}
price: {rates: {date: now, gen1: {Huge: 3}}}
"""


def test_every_problem_is_reported_at_its_place(tmp_path):
    assert problems(tmp_path, MISTAKES) == [
        "e.yaml:3:1 scenari: 'scenari' is not a known key; did you mean scenario?",
        "e.yaml:6:9 arms.few.sett: 'sett' is not a known key; did you mean set?",
        "e.yaml:7:3 arms.a b: is not the name of an arm; write letters, digits, underscores, dots and dashes, at most"
        " 40",
        "e.yaml:10:11 metrics.p96: is not a metric of experiments; did you mean p99?",
        "e.yaml:10:20 metrics.error_rate: error_rate has no ratio: it may be 0; put it in limits: error_rate < 1%",
        "e.yaml:10:60 metrics.price: is not a margin, got '0%'; write percent above 0% and at most 100%, such as 5%",
        "e.yaml:11:10 limits.0: has a limit that does not fit p95, got 'p95 < fast'; write a duration, such as 50ms"
        " or 1.5s",
        "e.yaml:12:19 blocks.minimum: is above maximum, 3, got '9'; lower it, or raise maximum",
        "e.yaml:13:19 budget.credits: must be above 0 and at most 1e+06, got '-1'",
        "e.yaml:13:29 budget.time: is not a duration: the unit is missing, got '5'; write one number and one unit, such"
        " as 500ms, 30s or 5m",
        "e.yaml:14:35 price.rates.gen1.Huge: the key is not a warehouse size; sizes are X-Small, Small, Medium, Large,"
        " X-Large, 2X-Large, 3X-Large, 4X-Large, 5X-Large, 6X-Large",
    ]


def test_problems_in_overrides_are_reported_where_they_are_written(tmp_path):
    text = MINIMAL.replace("{load.connections: 8}", "{load.connections: many, load.durations: 5s}")

    assert problems(tmp_path, text) == [
        "e.yaml:6:16 arms.many.set.load.connections: is not a count, got 'many'; write a whole number, such as"
        " 250, 10k (thousand), 1m (million) or 2b (billion)",
        "e.yaml:6:40 arms.many.set.load.durations: 'durations' is not a known key; did you mean duration?",
    ]


def test_an_experiment_in_place_of_a_scenario_is_reported_once(tmp_path):
    (tmp_path / "e.yaml").write_text(MINIMAL, "utf-8")

    with pytest.raises(ScenarioProblems) as told:
        read_scenario(tmp_path / "e.yaml", environ={})

    assert str(told.value) == f"{tmp_path / 'e.yaml'} is an experiment, not a scenario"
    assert told.value.remedy == "Run it with `loadgen experiment FILE`."


def test_problems_of_the_scenario_are_reported_once(tmp_path):
    found = problems(tmp_path, MINIMAL, SCENARIO.replace("warmup: 1s", "warmup: soon"))

    assert len(found) == 1
    assert found[0].startswith("s.yaml:5:32 load.warmup: is not a duration")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("few: {}", "few: {set: {control.schema: OTHER}}", "many: has another control plane than the first arm"),
        ("few: {}", "few: {set: {connection: prod}}", "many: has another connection than the first arm"),
        ("  many: {set: {load.connections: 8}}\n", "", "arms: an experiment has 2 to 8 arms"),
        ("reference: few", "reference: none", "reference: is not an arm, got 'none'; arms are few, many"),
        ("point.p99", "rare.p99", "metrics.rare.p99: arm few sends no such statement"),
        ("point.p99", "price.p99", "metrics.price.p99: arm few sends no such statement"),
        ("point.p99", "point.price", "metrics.point.price: price is of all statements together; write price"),
        ("scenario: s.yaml", "scenario: gone.yaml", "scenario: cannot be read: No such file or directory"),
    ],
)
def test_incompatible_sections_are_reported(tmp_path, old, new, told):
    assert any(told in one for one in problems(tmp_path, MINIMAL.replace(old, new)))


def test_a_search_is_no_measurement_of_one_load(tmp_path):
    searching = SCENARIO.replace("connections: 4, warmup: 1s, duration: 5s", "mode: find_max")

    found = problems(tmp_path, MINIMAL.replace("{load.connections: 8}", "{load.warmup: 1s}"), searching)

    assert [one for one in found if "few: its load.mode is find_max, and experiments measure one load" in one]


def test_a_threshold_that_aborts_would_cut_a_measurement(tmp_path):
    found = problems(tmp_path, MINIMAL, SCENARIO + "thresholds: [{check: p95 < 1s, abort: true}]\n")

    assert found[0].endswith("aborts the measurement; use limits of the experiment instead")


def test_equal_arms_are_an_a_a_comparison_and_worth_a_warning(tmp_path):
    loaded = read(tmp_path, MINIMAL.replace("{set: {load.connections: 8}}", "{}"))

    assert [one.what for one in loaded.warnings] == ["is the same as arm few: an A/A comparison"]


@pytest.mark.parametrize(
    ("warehouse", "count"), [("{name: W, size: Small}", 1), ("{name: W, create: true}", 1), ("W", 0)]
)
def test_a_warehouse_with_cold_caches_and_no_warmup_is_worth_a_warning(tmp_path, warehouse, count):
    text = MINIMAL.replace("many: {set", f"many: {{warehouse: {warehouse}, set")

    cold = read(tmp_path, text, SCENARIO.replace("warmup: 1s", "warmup: 0s")).warnings

    assert [one.what for one in cold if "its caches are cold" in one.what] == [one.what for one in cold][:count]
    assert len(cold) == count
    assert read(tmp_path, text).warnings == ()


def test_a_file_that_is_not_there_is_one_problem(tmp_path):
    with pytest.raises(ScenarioProblems, match="cannot be read") as caught:
        read_experiment(tmp_path / "e.yaml", environ={})

    assert [one.hint for one in caught.value.problems] == ["copy a file of examples/experiments to start from"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_valid_and_can_be_planned(path):
    loaded = read_experiment(path, environ={})

    assert loaded.warnings == ()
    result = CliRunner().invoke(experiment, [str(path), "--dry-run", "--format", "json"], standalone_mode=False)
    assert result.exception is None
    assert json.loads(result.output)["arms"] == list(loaded.arms)


def test_all_examples_are_there():
    assert {path.stem for path in EXAMPLES} == {"two_queries", "hybrid_or_standard", "warehouse_size", "gen2"}


ON_A_WAREHOUSE = MINIMAL.replace("many: {set: {load.connections: 8}}", "many: {warehouse: {name: W, size: Small}}")


@pytest.mark.parametrize(
    ("settings", "is_same"),
    [
        ("{name: W, size: S}", True),
        ("{name: W, size: Small, create: false}", True),
        ("{name: W, size: 4X-Large}", False),
        ("{name: W, size: Small, max_clusters: 5}", False),
        ("{name: W, size: Small, create: true}", False),
        ("{name: W}", False),
        ("{name: X, size: Small}", False),
    ],
)
def test_arms_with_other_settings_of_a_warehouse_are_another_experiment(tmp_path, settings, is_same):
    begun = fingerprint_of(config_of(read(tmp_path, ON_A_WAREHOUSE)))

    resumed = fingerprint_of(config_of(read(tmp_path, ON_A_WAREHOUSE.replace("{name: W, size: Small}", settings))))

    assert (resumed == begun) is is_same


@pytest.mark.parametrize(
    ("many", "is_true"),
    [
        ("{set: {load.connections: 8}}", True),
        ("{set: {load.connections: 8, load.duration: 6s}}", False),
        ("{set: {load.connections: 8}, warehouse: W}", False),
        ("{set: {load.connections: 8}, warehouse: {name: W, size: Small}}", False),
    ],
)
def test_a_scaling_curve_needs_arms_that_differ_in_connections_alone(tmp_path, many, is_true):
    loaded = read(tmp_path, MINIMAL.replace("{set: {load.connections: 8}}", many))

    assert only_connections_differ(loaded) is is_true
