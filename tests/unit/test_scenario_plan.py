"""`--plan`: what a run would do, in plain words, and where every value comes from."""

import dataclasses
import re
from pathlib import Path

import pytest

from loadgen.rules.find_max import find_max_cap
from loadgen.rules.scenario_plan import ScenarioPlan, plan, plan_data, plan_text
from loadgen.scenario.frozen import freeze, thaw
from loadgen.scenario.model import FindMaxSettings
from loadgen.scenario.read import parse_scenario, read_scenario
from loadgen.workload.arrivals import window_schedules
from tests.processes import ROOT
from tests.unit.scenario_builders import MINIMAL, problems, read

TEXT = """\
version: 1
name: orders-mix
connection: ${WHERE}
target: {warehouse: BENCH_WH}
prepare:
  tables:
    - {name: ORDERS, rows: 100k, columns: [{name: ID, type: INT, primary_key: true, generate: {sequence: {}}}]}
    - {name: NATIONS, type: existing}
values: {order_id: {query: SELECT ID FROM ORDERS}}
workload:
  statements:
    - {name: read, weight: 2, sql: SELECT * FROM ORDERS WHERE ID = ?, params: [{pool: order_id}]}
    - {name: pay, transaction: [{sql: SELECT 1}, {sql: UPDATE ORDERS SET A = 1}]}
load:
  warmup: 10s
  ramp: 5s
  stages:
    - {duration: 1m, connections: 16}
    - {duration: 90s, connections: 33, ramp: 10s}
thresholds: [p95 < 50ms]
"""

GOLDEN = """\
f.yaml: orders-mix

  Keeps up to 33 connections busy in 2 stages, for 2m 30s, after a warm-up of 10s.
  Runs against prod, warehouse BENCH_WH.
  Passes if 2 thresholds hold, with the default error_rate < 5%.

Timeline
  at 0s      warm-up  for 10s     16 connections, reached in 5s, not measured
  at 10s     stage 1  for 1m      16 connections
  at 1m 10s  stage 2  for 1m 30s  33 connections, reached in 10s

Statements
   66.67%  read   read
   33.33%  write  pay     transaction of 2

Workers
  2 (one per 25 connections, at most one per core, 2 cores here): 1 × 17 connections and 1 × 16 connections

To prepare
  ORDERS   hybrid    100,000 rows
  NATIONS  existing  must exist
  100,000 rows in total, unless they exist
  value pool order_id from a query

Cost
  At most, in credits by the size of the warehouse: X-Small 0.10, Small 0.21, Medium 0.42, Large 0.84, X-Large 1.68.
  Plus 0.10 for the control warehouse, if it is X-Small.
  Assumed: one cluster of a standard warehouse of generation 2, at 1.35 credits per hour for X-Small and twice that for each size up (generation 1: 1 credit), running for 4m 40s; costs of preparing and of idling until it suspends are added.

Values and where they come from
"""  # noqa: E501 - a line of output is as long as it is


def made(text=TEXT, overrides=(), cores=2) -> ScenarioPlan:
    return plan(
        parse_scenario(text, source="f.yaml", overrides=overrides, environ={"WHERE": "prod", "UNUSED": "1"}),
        cores=cores,
    )


def origins(text=TEXT, overrides=()):
    return {setting.path: (setting.value, setting.origin) for setting in made(text, overrides).settings}


def test_the_plan_describes_the_run_in_plain_words():
    text = plan_text(made())

    assert text.partition("where they come from\n")[0] + "where they come from\n" == GOLDEN


def test_defaults_of_timing_are_counted_in_the_text_and_listed_in_the_data():
    plain = made(overrides=["timing.drain=7s"])
    hidden = [one.path for one in plain.settings if one.path.startswith("timing.") and one.origin == "default"]

    lines = plan_text(plain).splitlines()

    assert len(hidden) > 10
    assert [line.split() for line in lines if line.startswith("  timing.")] == [
        ["timing.drain", "7s", "--set", "timing.drain=7s"]
    ]
    assert lines[-1] == f"  and {len(hidden)} defaults of timing: `validate --plan --format json` shows every value"
    assert any(line.split() == ["load.stages.0.ramp", "0s", "default"] for line in lines)
    assert {one["path"] for one in plan_data(plain)["settings"]} >= set(hidden)


def test_every_value_has_its_origin():
    found = origins(overrides=["guardrails.max_credits=3"])

    assert found["name"] == ("orders-mix", "line 2")
    assert found["connection"] == ("${WHERE}", "line 3, environment variable WHERE")
    assert found["load.warmup"] == ("10s", "line 15")
    assert found["load.stages.1.ramp"] == ("10s", "line 19")
    assert found["load.stages.0.ramp"] == ("0s", "default")
    assert found["guardrails.max_credits"] == ("3", "--set guardrails.max_credits=3")
    assert found["control.warehouse"] == ("LOADGEN_CONTROL_WH", "default")
    assert found["timing.registration"] == ("1m", "default")
    assert found["target.session"] == ("none", "default")
    assert found["workload.statements.0.kind"] == ("read", "derived from its SQL")
    assert found["workload.statements.0.params.0"] == ("{pool: order_id}", "line 12")
    assert found["load.workers"][0] == "2"
    assert found["load.workers"][1].startswith("computed: one per 25 connections")


def test_what_has_no_effect_is_not_listed():
    found = origins()

    assert not {"load.connections", "load.rate", "load.find_max.start", "embedded.slots", "sessions.count"} & set(found)
    assert "sharding.enabled" in found
    assert "sharding.key_column" not in found


def test_an_open_loop_knows_how_many_statements_to_expect():
    text = TEXT[: TEXT.index("\nload:") + 1] + "load: {mode: rate, rate: 30/s, duration: 10s}\n"

    found = made(text)

    assert [share.expected for share in found.shares] == [200, 100]
    assert found.summary[0].startswith("Sends 30/s on schedule (poisson arrivals) over at most 64 connections")


def test_what_is_expected_is_what_the_schedules_plan():
    """Ramps included, and the warm-up left out."""
    load = (
        "load: {mode: rate, warmup: 10s, ramp: 20s, stages: [{duration: 20s, rate: 30/s}, "
        "{duration: 10s, rate: 60/s, ramp: 10s}]}\n"
    )
    scenario = parse_scenario(
        TEXT[: TEXT.index("\nload:") + 1] + load, source="f.yaml", environ={"WHERE": "x"}
    ).scenario

    found = made(TEXT[: TEXT.index("\nload:") + 1] + load)

    runs = [window_schedules(scenario.load, worker=worker, workers=2, seed=1) for worker in range(2)]
    planned = sum(schedule.end - schedule.first for run in runs for schedule in run[1:])
    assert planned == 225 + 300 + 450
    assert [share.expected for share in found.shares] == [planned * 2 // 3, planned // 3]


def test_the_embedded_server_costs_nothing():
    assert made(overrides=["connection=embedded"]).cost is None
    assert "None: the embedded server" in plan_text(made(overrides=["connection=embedded"]))


def test_a_search_has_a_cap_on_steps_and_time():
    text = TEXT[: TEXT.index("\nload:") + 1] + "load: {mode: find_max, warmup: 0s}\n"

    found = made(text)

    assert found.find_max is not None
    assert found.find_max.levels[:3] == (5, 15, 25)
    assert found.find_max.levels[-2:] == (495, 500)
    assert found.cost is not None
    assert found.cost.longest_s == found.find_max.longest_s + 120
    assert f"At most {found.find_max.steps} steps" in plan_text(found)


@pytest.mark.parametrize(
    ("config", "levels", "clear", "repeats"),
    [
        (FindMaxSettings(start=4, increment=4, maximum=12, refine=False), (4, 8, 12), 3 + 2, 6),
        (FindMaxSettings(start=4, increment=4, maximum=12), (4, 8, 12), 3 + 2 + 2, 6),
        (FindMaxSettings(start=5, maximum=5), (5,), 1 + 2, 6),
        (FindMaxSettings(start=5, increment=10, maximum=20), (5, 15, 20), 3 + 2 + 4, 6),
        (FindMaxSettings(start=40, increment=2, maximum=42), (40, 42), 2 + 2 + 1, 6),
        (FindMaxSettings(start=1, increment=1, maximum=8), (1, 2, 3, 4, 5, 6, 7, 8), 8 + 2, 8),
    ],
)
def test_the_cap_counts_climbing_confirming_bisecting_and_repeats(config, levels, clear, repeats):
    cap = find_max_cap(config)

    assert (cap.levels, cap.steps) == (levels, clear + repeats)
    assert cap.steps_s == clear * 33
    assert cap.longest_s == (clear + repeats) * 93


def test_the_plan_is_data_too():
    assert plan_data(made())["workers"] == 2
    assert plan_data(made()) == dataclasses.asdict(made())


@pytest.mark.parametrize(
    ("thresholds", "mode", "judged"),
    [
        ("[]", "concurrency", ["error_rate < 5%"]),
        ("[p95 < 1s, a.errors == 0]", "rate, rate: 10/s", ["p95 < 1s", "a.errors == 0", "error_rate < 5%"]),
        ("[error_rate <= 100%]", "concurrency", ["error_rate <= 100%"]),
        ("[error_rate < 5%]", "concurrency", ["error_rate < 5%"]),
        ("[errors < 10]", "concurrency", ["errors < 10"]),
        ("[errors == 0]", "concurrency", ["errors == 0"]),
        ("[{check: error_rate < 9%, after: 55s, abort: true}]", "concurrency", ["error_rate < 9%"]),
        ("[{check: error_rate < 9%, window: 5s, after: 5s}]", "concurrency", ["error_rate < 9%"]),
        # These do not limit all errors: some from below only, one in the end only, one of a stage
        ("[error_rate > 0%]", "concurrency", ["error_rate > 0%", "error_rate < 5%"]),
        ("[errors >= 0]", "concurrency", ["errors >= 0", "error_rate < 5%"]),
        (
            "[{check: error_rate < 9%, window: 5s, after: 55s}]",
            "concurrency",
            ["error_rate < 9%", "error_rate < 5%"],
        ),
        (
            "[peak.error_rate < 9%]",
            "concurrency, stages: [{duration: 9s, connections: 1, name: peak}]",
            ["peak.error_rate < 9%", "error_rate < 5%"],
        ),
        ("[]", "find_max", []),
    ],
)
def test_errors_of_all_statements_are_judged_by_default(thresholds, mode, judged):
    text = MINIMAL + f"thresholds: {thresholds}\nload: {{mode: {mode}}}\n"
    scenario = read(text)

    assert [one.check.text for one in scenario.judged_thresholds] == judged
    said = [line for line in made(text).summary if "default error_rate" in line]
    assert bool(said) == (len(judged) > len(scenario.thresholds))
    assert thaw(freeze(scenario), {}).judged_thresholds == scenario.judged_thresholds


STAGED = MINIMAL + "load: {stages: [{duration: 5s, connections: 1}, {duration: 5s, connections: 2, name: peak}]}\n"


def test_stages_have_names_that_thresholds_may_use():
    scenario = read(STAGED + "thresholds: [peak.p95 < 50ms, stage 1.qps > 5, a.p95 < 1s, peak.longest_stall < 2s]\n")

    assert scenario.judged_stages == {"stage 1": 1, "peak": 2}
    assert thaw(freeze(scenario), {}).load.stages == scenario.load.stages
    assert '"name"' not in freeze(read(STAGED.replace(", name: peak", ""))).partition('"stages"')[2].partition("]")[0]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (STAGED + "thresholds: [peek.p95 < 50ms]\n", "did you mean peak?"),
        (STAGED + "thresholds: [{check: peak.p95 < 50ms, window: 2s}]\n", "a stage is judged as a whole"),
        (STAGED.replace("name: peak", "name: stage 1"), "is the name of another stage too"),
        (STAGED.replace("name: peak", "name: a") + "thresholds: [a.p95 < 1s]\n", "of a statement and of a stage"),
    ],
)
def test_names_of_stages_are_checked(text, what):
    (problem,) = problems(text)
    assert what in problem


@pytest.mark.parametrize(
    ("column", "prepared"),
    [("CUSTOMER_ID", "{name: CUSTOMERS, columns: [{name: customer_id, type: INT, primary_key: true}]}"),
     ("KEY_OF_OURS", "{name: CUSTOMERS, type: existing}")],
)  # fmt: skip
def test_the_plan_shows_how_keys_are_divided(column, prepared):
    text = sharded(column, prepared)
    found = plan(parse_scenario(text, source="f.yaml", folder=Path(), environ={}), cores=2)

    assert found.sharding == f"keys 1 to 1,001 of {column}: 500 for each worker"
    assert f"  {found.sharding}\n" in plan_text(found)


def test_a_key_column_that_no_prepared_table_has_is_a_problem():
    text = sharded("CUSTOMER_ID", "{name: T, columns: [{name: ID, type: INT, primary_key: true}]}")

    assert [str(one) for one in problems(text)] == [
        "f.yaml:7:39 sharding.key_column: is a column of no table of prepare, got 'CUSTOMER_ID';"
        " name one of their columns: ID"
    ]


def sharded(column: str, prepared: str) -> str:
    return f"""\
version: 1
name: sharded
connection: embedded
prepare: {{tables: [{prepared}]}}
workload: {{statements: [{{name: s, sql: SELECT ?, params: [{{uniform: {{sharded: true}}}}]}}]}}
load: {{connections: 4, workers: 2}}
sharding: {{enabled: true, key_column: {column}, key_range: [1, 1001]}}
"""


def test_the_comment_of_the_example_of_a_search_has_the_time_of_its_plan():
    example = ROOT / "examples" / "find_max.yaml"
    text = plan_text(plan(read_scenario(example, environ={}), cores=2))

    (limit,) = re.findall(r"At most (\w+) when no step is repeated", text)

    assert f"at most {limit} when none is repeated" in example.read_text("utf-8")
