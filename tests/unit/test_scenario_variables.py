"""Variables of the environment and --set: where they may be, and where their values are never shown."""

from __future__ import annotations

import copy
import pickle

import pytest

from loadgen.log import redact
from loadgen.model.workload import (
    Literal,
    StatementKind,
)
from loadgen.rules.scenario_plan import plan, plan_text
from loadgen.scenario.document import EnvironmentText, ScenarioProblems
from loadgen.scenario.frozen import freeze, thaw
from loadgen.scenario.model import with_workers
from loadgen.scenario.read import parse_scenario
from tests.unit.scenario_builders import MINIMAL, problems, read

# --- variables of the environment ------------------------------------------------------------------------------------


def test_variables_are_filled_in_texts_and_typed_by_their_key():
    text = (
        "version: 1\nname: ${NAME}\nconnection: ${WHERE:-embedded}\nseed: ${SEED}\n"
        "description: a $${literal} and $ and ${NAME}-${GONE:-}\n"
        "workload: {statements: [{name: a, sql: SELECT 1}]}\nload: {duration: '${FOR}', connections: '${N:-4}'}\n"
    )

    scenario = read(text, {"NAME": "n", "SEED": "7", "FOR": "30s"})

    assert (scenario.name, scenario.connection, scenario.workload.seed) == ("n", "embedded", 7)
    assert scenario.description == "a ${literal} and $ and n-"
    assert (scenario.load.duration_s, scenario.load.connections) == (30.0, 4)


def test_a_variable_is_resolved_once_where_the_user_types():
    environ = {"FIRST": "${SECOND}", "SECOND": "resolved twice"}

    scenario = read(MINIMAL + "description: a ${FIRST}\n", environ)

    assert scenario.description == "a ${SECOND}"
    assert thaw(freeze(with_workers(scenario, cores=1)), environ).description == "a ${SECOND}"


def test_a_variable_cannot_add_keys_or_lines():
    scenario = read(MINIMAL + "description: ${EVIL}\n", {"EVIL": "x\nload: {connections: 9999}"})

    assert scenario.description == "x\nload: {connections: 9999}"
    assert scenario.load.connections == 32


def test_keys_are_never_filled_in():
    assert "'${KEY}' is not a known key" in problems(MINIMAL + "${KEY}: 1\n", {"KEY": "seed"})[0]


def test_a_variable_that_is_not_set_or_not_named_is_a_problem_with_its_place():
    found = problems(MINIMAL + "description: ${UNSET}\nlabels: {a: '${', b: '${9}'}\n")

    assert found == [
        "f.yaml:4:14 description: the environment variable UNSET is not set, got '${UNSET}'; set it, or give a "
        "default: ${UNSET:-…}",
        "f.yaml:5:13 labels.a: has a ${ that names no variable, got '${'; write ${NAME} or ${NAME:-default}, and $${ "
        "for a literal ${",
        "f.yaml:5:22 labels.b: has a ${ that names no variable, got '${9}'; write ${NAME} or ${NAME:-default}, and $${ "
        "for a literal ${",
    ]


SECRET = "hunter2-hunter2"
WITH_SECRETS_EVERYWHERE = """\
version: ${S}
name: x
description: ${S}
labels: {a: "${S}"}
connection: "${S}\\n"
target: {warehouse: "${S}", session: {A: "${S}"}, statement_timeout: "${S}"}
prepare: {tables: [{name: "${S}", rows: "${S}", columns: [{name: "${S}", type: "${S}"}]}], statements: ["${S}"]}
values: {p: {query: "${S}"}, q: {file: "${S}"}}
workload:
  statements:
    - {name: "${S}", sql: "${S}", params: [{literal: "${S}"}, {pool: "${S}"}, {choice: {a: "${S}"}}]}
    - {name: b, sql: "SELECT ?", params: [{latest: {min: "${S}", max: 5, follows: "${S}"}}]}
    - {name: c, sql: "SELECT ?", params: [{latest: {min: 1, max: 5, follows: "${S}x"}}]}
load: {connections: "${S}", mode: "${S}", duration: "${S}"}
thresholds: ["${S}", "y${S}.p95 < 5ms"]
embedded: {service_time: "${S}"}
"""


def test_a_value_of_the_environment_is_never_in_a_message(tmp_path):
    with pytest.raises(ScenarioProblems) as found:
        parse_scenario(WITH_SECRETS_EVERYWHERE, source="f.yaml", folder=tmp_path, environ={"S": SECRET})

    assert len(found.value.problems) > 10
    assert SECRET not in str(found.value)
    assert "got '${S}'" in str(found.value)


def test_a_value_of_the_environment_is_never_in_a_plan():
    text = MINIMAL + "description: ${S}\nlabels: {a: '${S}'}\ntarget: {session: {A: '${S}'}}\n"
    loaded = parse_scenario(text, source="f.yaml", environ={"S": SECRET})

    text = plan_text(plan(loaded, cores=2))

    assert SECRET not in text
    assert "${S}" in text
    assert "line 4, environment variable S" in text
    assert SECRET not in repr(loaded.scenario)


def test_a_variable_with_a_secret_name_is_masked_in_logs():
    read(MINIMAL + "description: ${MY_TOKEN}\n", {"MY_TOKEN": "opensesame-17"})

    assert "opensesame-17" not in redact("the server said opensesame-17")


def test_texts_of_the_environment_are_texts_wherever_they_go():
    text = EnvironmentText("value", "${NAME}", "v")

    for same in (text, copy.deepcopy(text), pickle.loads(pickle.dumps(text))):
        assert same == "value"
        assert (same.template, same.stored) == ("${NAME}", "v")
        assert repr(same) == "'${NAME}'"
        assert type(str(same)) is str


# --- --set -----------------------------------------------------------------------------------------------------------


def test_set_replaces_adds_and_is_typed_by_the_key():
    text = MINIMAL.replace("SELECT 1", "SELECT 1, weight: 5")

    scenario = read(
        text,
        overrides=[
            "load.connections=64",
            "name=123",
            "target.use_cached_result=true",
            "workload.statements.a.weight=7",
            "workload.statements.0.kind=write",
            "thresholds=[p95 < 5ms, qps > 1]",
            "load.duration = 90s",
            "load.per_worker_connections=null",
            "seed=5",
            "seed=6",
        ],
    )

    assert (scenario.load.connections, scenario.name, scenario.load.duration_s) == (64, "123", 90.0)
    assert scenario.target.use_cached_result is True
    assert scenario.workload.statements[0].weight == 7
    assert scenario.workload.statements[0].kind is StatementKind.WRITE
    assert [threshold.check.text for threshold in scenario.thresholds] == ["p95 < 5ms", "qps > 1"]
    assert scenario.workload.seed == 6


def test_set_gives_a_literal_the_type_it_looks_like():
    text = MINIMAL.replace("sql: SELECT 1", "sql: SELECT ?, params: [{literal: 1}]")

    for given, value in (
        ("5", 5),
        ("1.5", 1.5),
        ("true", True),
        ("x y", "x y"),
        ("null", None),
        ("2026-01-01", "2026-01-01"),
    ):
        scenario = read(text, overrides=[f"workload.statements.a.params.0.literal={given}"])

        assert scenario.workload.statements[0].queries[0].parameters == (Literal(value=value),)


def test_set_does_not_fill_in_variables():
    assert read(MINIMAL, {"X": "y"}, overrides=["description=${X}"]).description == "${X}"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("load.conections=64", "--set load.conections=64 load.conections: 'conections' is not a known key; did you"),
        ("load.connections=many", "--set load.connections=many load.connections: is not a count, got 'many'; "),
        ("load", "--set load: is not path=value"),
        ("=5", "--set =5: is not path=value"),
        ("load..x=5", "is not path=value"),
        ("name.first=5", "name is one value and has no keys"),
        ("workload.statements.7.weight=5", "workload.statements has no element '7'; it has 0, or by name: a"),
        ("workload.statements.pay.weight=5", "workload.statements has no element 'pay'"),
        ("thresholds=[p95", "the value cannot be read as YAML"),
        ("thresholds=[&a x]", "the value cannot be read as YAML"),
        ("target.password=hunter2", "--set target.password=**** target: the key 'password' looks like a secret"),
    ],
)
def test_a_set_that_does_not_fit_is_a_problem(override, message):
    found = problems(MINIMAL, overrides=[override])

    assert len(found) == 1
    assert message in found[0]
    assert "hunter2" not in found[0]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("load.connections", "--set 'load.connections' is not path=value"),
        ("=4", "--set '=4' is not path=value"),
        ("load.connections:4", "--set 'load.connections:4' is not path=value"),
        ("statements.5", "--set 'statements.5' is not path=value"),
        ("workload.statements.5=x", "--set 'workload.statements.5=x': workload.statements has no element '5'"),
        ("seed=[p95", "--set 'seed=[p95': the value cannot be read as YAML"),
    ],
)
def test_the_error_names_the_set_that_does_not_fit(override, message):
    with pytest.raises(ScenarioProblems) as found:
        read(MINIMAL, overrides=[override])

    assert str(found.value) == message
    assert found.value.remedy


def test_the_error_of_a_set_does_not_show_a_secret():
    with pytest.raises(ScenarioProblems) as found:
        read(MINIMAL, overrides=["name.password=hunter2"])

    assert "hunter2" not in str(found.value)
    assert "--set 'name.password=****': name is one value" in str(found.value)
