"""SCENARIO_CONFIG: written once, read back exactly, with the names others rely on and no secret."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.errors import ConfigurationError
from loadgen.scenario.document import ScenarioProblems
from loadgen.scenario.frozen import (
    FROZEN_VERSION,
    InvalidStoredScenario,
    freeze,
    frozen_config,
    secrets_in,
    template_id,
    thaw,
)
from loadgen.scenario.model import WorkerProfile, with_workers, workers_of
from loadgen.scenario.read import parse_scenario, portable_text, text_as_run
from tests.unit.test_scenario_fuzz import ENVIRON, RELAXED, damaged, scenario_data

ROOT = Path(__file__).resolve().parents[2]
TEXT = """\
version: 1
name: orders
labels: {team: checkout}
description: for ${WHO}, not $${WHO}
target: {warehouse: "${WH}", session: {A: "${PIN}"}}
workload:
  think_time: 5ms
  statements:
    - {name: a, sql: "SELECT ? -- ${PIN}", params: [{literal: "${PIN}"}]}
sharding: {enabled: false}
load: {connections: "${N}", workers: 2, warmup: 10s, duration: 1m}
"""
VALUES = {"WHO": "you", "WH": "BENCH_WH", "PIN": "1234-5678", "N": "8"}


def read(text=TEXT, environ=None):
    return parse_scenario(text, source="f.yaml", environ=VALUES if environ is None else environ).scenario


@settings(RELAXED, max_examples=40)
@given(scenario_data())
def test_what_is_thawed_equals_what_was_frozen(data):
    try:
        scenario = parse_scenario(json.dumps(data), source="f.yaml", environ=ENVIRON).scenario
    except ScenarioProblems:
        return

    again = thaw(freeze(scenario), ENVIRON)

    assert again == scenario
    assert repr(again).replace("w√rd", "${WORD}") == repr(scenario).replace(
        "w√rd", "${WORD}"
    )  # types too: 1 is not 1.0


def test_the_names_are_those_of_the_specification():
    config = frozen_config(read())

    assert config["frozen_version"] == FROZEN_VERSION
    workload = config["workload"]
    assert workload["load_mode"] == "CONCURRENCY"
    assert workload["concurrent_connections"] == 8
    assert (workload["warmup_seconds"], workload["duration_seconds"]) == (10.0, 60.0)
    assert config["scaling"] == {"worker_group_count": 2, "per_worker_connections": None}
    assert config["sharding"] == {"enabled": False}
    assert config["find_max"] is None


def test_the_other_modes_and_sharding_have_theirs():
    sharded = TEXT.replace("enabled: false", "enabled: true, key_range: [1, 1000000]").replace(
        'literal: "${PIN}"', "shard: {}"
    )
    search = TEXT.replace('connections: "${N}", workers: 2', "mode: find_max").replace("duration: 1m", "find_max: {}")
    rate = TEXT.replace('connections: "${N}"', "mode: rate, rate: 5/s").replace("  think_time: 5ms\n", "")

    assert frozen_config(read(sharded))["sharding"] == {
        "enabled": True,
        "total_partitions": 100,
        "key_column": "ID",
        "key_range": [1, 1_000_000],
    }
    find_max = frozen_config(read(search))["find_max"]
    assert frozen_config(read(search))["workload"]["load_mode"] == "FIND_MAX_CONCURRENCY"
    assert find_max["step_duration_seconds"] == 30.0
    assert {"qps_stability_pct", "latency_stability_pct", "max_error_rate_pct"} <= find_max.keys()
    assert frozen_config(read(rate))["workload"]["load_mode"] == "RATE"
    assert frozen_config(read(rate))["workload"]["rate_per_second"] == 5.0


def test_secrets_stay_references_and_everything_else_is_settled():
    """Other machines have other variables: what was resolved where the user typed is what is run."""
    text = freeze(read(TEXT.replace("PIN", "PIN_TOKEN"), VALUES | {"PIN_TOKEN": "1234-5678"}))

    assert "1234-5678" not in text
    config = json.loads(text)
    assert config["description"] == "for you, not $${WHO}"
    assert config["target"]["session"] == {"A": "${PIN_TOKEN}"}
    assert config["workload"]["statements"][0]["queries"][0]["sql"] == "SELECT ? -- ${PIN_TOKEN}"
    assert config["target"]["warehouse"] == "BENCH_WH"
    assert config["workload"]["concurrent_connections"] == 8
    assert thaw(freeze(read()), {}) == read()


def test_the_secrets_that_a_stored_scenario_needs_are_known():
    assert secrets_in(read()) == ()
    environ = VALUES | {"A_TOKEN": "x", "B_PASSWORD": "y"}
    assert secrets_in(read(TEXT.replace("${PIN}", "${B_PASSWORD}${A_TOKEN}"), environ)) == ("A_TOKEN", "B_PASSWORD")


@pytest.mark.parametrize(
    ("before", "after", "value"),
    [
        ("name: orders", 'name: "${DB_PASSWORD}"', "hunter22"),
        ('"${WH}"', '"${DB_PASSWORD}"', "HUNTER22"),
        ('"${N}"', '"${DB_PASSWORD}"', "8765"),
        ("duration: 1m", 'duration: "${DB_PASSWORD}"', "8765s"),
        ("workers: 2", 'workers: "${DB_PASSWORD}"', "7"),
        ("name: a,", 'name: "${DB_PASSWORD}",', "hunter22"),
        ('{literal: "${PIN}"}', '{text: {length: "${DB_PASSWORD}"}}', "8765"),
        ('{literal: "${PIN}"}', '{choice: {A: "${DB_PASSWORD}", B: 1}}', "8765"),
        ('{literal: "${PIN}"}', '{timestamp: {min: "${DB_PASSWORD}", max: "2999-01-01"}}', "2025-08-07"),
        ("sharding: {enabled: false}", 'thresholds: ["${DB_PASSWORD}"]', "p95 < 8765ms"),
        ("sharding: {enabled: false}", 'embedded: {service_time: "${DB_PASSWORD}"}', "8765ms"),
        ("sharding: {enabled: false}", 'values: {v: {file: "${DB_PASSWORD}"}}', "hunter22.csv"),
        ("sharding: {enabled: false}", 'values: {v: {file: f.csv, column: "${DB_PASSWORD}"}}', "hunter22"),
        (
            "sharding: {enabled: false}",
            'prepare: {tables: [{name: T, type: standard, columns: [{name: A, type: "${DB_PASSWORD}"}]}]}',
            "VARCHAR(8765)",
        ),
    ],
)
def test_a_secret_cannot_be_where_values_are_stored_as_they_were_resolved(before, after, value):
    assert TEXT.count(before) == 1
    text = TEXT.replace(before, after)
    read(text.replace("DB_PASSWORD", "NOTHING_SPECIAL"), VALUES | {"NOTHING_SPECIAL": value})  # else it would be fine

    with pytest.raises(ScenarioProblems, match="would store a secret with the run") as found:
        read(text, VALUES | {"DB_PASSWORD": value})

    assert len(found.value.problems) == 1, found.value
    assert value not in str(found.value)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("for ${WHO}", "for ${DB_PASSWORD}"),
        ("team: checkout", 'team: "x-${DB_PASSWORD}"'),
        ('A: "${PIN}"', 'A: "${DB_PASSWORD}"'),
        ("SELECT ? -- ${PIN}", "SELECT ? -- ${DB_PASSWORD}"),
        ('{literal: "${PIN}"}', '{literal: "${DB_PASSWORD}"}'),
        ('{literal: "${PIN}"}', '{choice: [a, "${DB_PASSWORD}"]}'),
        ('{literal: "${PIN}"}', '{text: {length: 5, alphabet: "${DB_PASSWORD}"}}'),
        ("sharding: {enabled: false}", 'values: {v: {query: "SELECT 1 -- ${DB_PASSWORD}"}}'),
        ("sharding: {enabled: false}", 'prepare: {statements: ["CREATE TABLE T (A INT) -- ${DB_PASSWORD}"]}'),
        ("sharding: {enabled: false}", 'spawner: {kind: spcs, compute_pool: P, image: "${DB_PASSWORD}"}'),
    ],
)
def test_a_secret_in_a_free_text_is_stored_as_its_name(before, after):
    assert TEXT.count(before) == 1

    scenario = read(TEXT.replace(before, after), VALUES | {"DB_PASSWORD": "hunter22"})

    assert "hunter22" not in freeze(scenario)
    assert "${DB_PASSWORD}" in freeze(scenario)
    assert "hunter22" not in repr(scenario)
    assert thaw(freeze(scenario), VALUES | {"DB_PASSWORD": "hunter22"}) == scenario
    other = read(TEXT.replace(before, after), VALUES | {"DB_PASSWORD": "changed9"})
    assert template_id(other) == template_id(scenario), "a new password is no new benchmark"


def test_references_are_filled_in_where_they_are_read():
    text = freeze(read(TEXT.replace("PIN", "PIN_TOKEN"), VALUES | {"PIN_TOKEN": "1234-5678"}))

    there = thaw(text, {"PIN_TOKEN": "0th3r-v4lue"})
    shown = thaw(text, None)

    assert there.description == "for you, not ${WHO}"
    assert there.workload.statements[0].queries[0].parameters[0].value == "0th3r-v4lue"  # type: ignore[union-attr]
    assert type(there.workload.statements[0].queries[0].sql) is str
    assert shown.target.session == {"A": "${PIN_TOKEN}"}
    with pytest.raises(ConfigurationError, match="needs the environment variable PIN_TOKEN"):
        thaw(text, {"WHO": "you"})


# --- for another machine ---------------------------------------------------------------------------------------------


ELSEWHERE = """\
version: 1
name: night
connection: ${TARGET:-embedded}
description: "not $${TARGET}"
labels: {by: "${WHO}", 'quo"te': "${ODD}"}
workload: {statements: [{name: a, sql: "SELECT '${WHO}', '${A_TOKEN:-none}'", weight: "${N}"}]}
notify: [{webhook: "${HOOK}"}, {command: [tell, "${WHO}"]}]
"""
HERE = {"TARGET": "prod", "WHO": "you", "N": "3", "A_TOKEN": "s3cret-s3cret", "HOOK": "https://x.example/s3cret-hook"}
ODD = "a: b # c\n\"'{[\\ ${no} $${no} \x7f\x9f\u2028 😀"


def test_a_scenario_means_the_same_on_a_machine_with_other_variables():
    loaded = parse_scenario(ELSEWHERE, source="f.yaml", environ=HERE | {"ODD": ODD})
    text = portable_text(loaded)

    for secret in ("s3cret-s3cret", "s3cret-hook"):
        assert secret not in text
    far = {"TARGET": "embedded", "WHO": "someone", "N": "9", "HOOK": "https://y.example", "A_TOKEN": "4n0ther"}
    there = parse_scenario(text, source="g.yaml", environ=far).scenario
    assert there.connection == "prod"
    assert (there.description, there.labels) == ("not ${TARGET}", {"by": "you", 'quo"te': ODD})
    (statement,) = there.workload.statements
    assert (statement.weight, statement.queries[0].sql) == (3, "SELECT 'you', '4n0ther'")
    assert [str(one.webhook or one.command[1]) for one in there.notify] == ["https://y.example", "you"]
    with pytest.raises(ScenarioProblems, match="A_TOKEN is not set"):
        parse_scenario(text, source="g.yaml", environ={"HOOK": "https://y.example"})
    settled = parse_scenario(text, source="g.yaml", environ=HERE).scenario
    assert template_id(settled) == template_id(loaded.scenario)
    assert settled == loaded.scenario


def test_a_scenario_without_variables_is_kept_as_it_was_written():
    text = TEXT.replace("${WHO}", "me").replace("${WH}", "W").replace("${PIN}", "p").replace("${N}", "8")

    assert portable_text(parse_scenario(text, source="f.yaml", environ={})) == text


labels_given = st.dictionaries(st.text("abc.${", min_size=1, max_size=5), st.text(max_size=8), max_size=2)


@settings(RELAXED, max_examples=60)
@given(
    scenario_data(),
    st.sampled_from([None, "prod", "true", "${WORD}", "1e3"]),
    labels_given,
    st.sampled_from([[], ["load.warmup=7s"], ["name=other", 'labels.by="${WORD}"']]),
)
def test_the_kept_scenario_is_the_one_that_was_run(data, connection, labels, overrides):
    try:
        loaded = parse_scenario(json.dumps(data), source="f.yaml", overrides=overrides, environ=ENVIRON)
    except ScenarioProblems:
        return
    run = dataclasses.replace(
        loaded.scenario,
        connection=loaded.scenario.connection if connection is None else connection,
        labels={**loaded.scenario.labels, **labels},
    )

    kept = text_as_run(loaded, connection=connection, labels=labels)

    assert parse_scenario(kept, source="scenario.yaml", environ={}).scenario == run


COMMENTED = """version: 1
name: nightly  # of the shop
connection: embedded
# the rate of a Monday
load: {mode: rate, rate: 5/s, max_connections: 4}
workload: {statements: [{name: a, sql: "SELECT '${WHO}', '${A_TOKEN}'"}]}
"""


def test_the_kept_scenario_shows_options_and_keeps_comments_and_no_secret():
    environ = {"WHO": "you", "A_TOKEN": "s3cret-s3cret"}
    loaded = parse_scenario(COMMENTED, source="f.yaml", overrides=["load.rate=6/s"], environ=environ)

    kept = text_as_run(loaded, connection="prod", labels={"team": "checkout"})

    again = parse_scenario(kept, source="scenario.yaml", environ={"A_TOKEN": "4n0ther"}).scenario
    assert (again.connection, again.load.rate_per_second, again.labels) == ("prod", 6.0, {"team": "checkout"})
    assert again.workload.statements[0].queries[0].sql == "SELECT 'you', '4n0ther'"
    assert "\n# # the rate of a Monday\n" in kept
    assert "s3cret" not in kept
    plain = COMMENTED.replace("${WHO}", "me").replace("${A_TOKEN}", "none")
    assert text_as_run(parse_scenario(plain, source="f.yaml", environ={}), connection="embedded", labels={}) == plain


@settings(RELAXED, max_examples=30)
@given(scenario_data())
def test_a_frozen_scenario_means_the_same_in_another_environment(data):
    try:
        loaded = parse_scenario(json.dumps(data), source="f.yaml", environ=ENVIRON)
    except ScenarioProblems:
        return

    assert parse_scenario(portable_text(loaded), source="g.yaml", environ={}).scenario == loaded.scenario


def test_a_default_that_was_used_is_stored_as_the_value():
    text = TEXT.replace("for ${WHO}, not $${WHO}", "for ${NOBODY:-me}")

    assert json.loads(freeze(read(text)))["description"] == "for me"


def test_the_template_id_ignores_what_names_a_scenario_and_nothing_else():
    first = read()
    renamed = dataclasses.replace(first, name="other", labels={}, description=None)
    changed = dataclasses.replace(first, connection="prod")
    elsewhere = read(environ=VALUES | {"WH": "OTHER_WH"})

    assert template_id(renamed) == template_id(first)
    assert len({template_id(first), template_id(changed), template_id(elsewhere)}) == 3
    assert template_id(thaw(freeze(renamed), None)) == template_id(thaw(freeze(first), None))


@pytest.mark.parametrize("text", ["", "null", "[]", "{", "{}", '{"frozen_version": 2}', "[" * 100_000])
def test_what_is_no_stored_scenario_is_refused(text):
    with pytest.raises(InvalidStoredScenario):
        thaw(text, {})


@settings(RELAXED, max_examples=70)
@given(st.integers(0, 2**32))
def test_a_damaged_configuration_is_refused_or_read_and_nothing_else(seed):
    config = damaged(frozen_config(read()), seed)

    try:
        thaw(json.dumps(config), VALUES)
    except ConfigurationError as error:
        said = str(error)
    else:
        said = ""

    assert "1234-5678" not in said


def test_workers_are_settled_before_freezing():
    scenario = read(TEXT.replace("workers: 2", "workers: auto").replace('"${N}"', "60"))

    assert workers_of(scenario.load, cores=2) == 2
    assert workers_of(scenario.load, cores=64) == 3
    assert with_workers(scenario, cores=64).load.workers == 3
    assert workers_of(dataclasses.replace(scenario.load, connections=1), cores=8) == 1
    assert workers_of(dataclasses.replace(scenario.load, per_worker_connections=15), cores=8) == 4
    assert workers_of(dataclasses.replace(scenario.load, profile=WorkerProfile.PROCESS, connections=7), cores=2) == 7


def test_reading_a_stored_scenario_needs_no_yaml_reader():
    code = (
        "import sys, loadgen.scenario.frozen, loadgen.scenario.model; "
        "sys.exit(any(name.split('.')[0] == 'ruamel' for name in sys.modules))"
    )

    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
