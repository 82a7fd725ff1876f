"""`sessions` of a scenario: what it becomes, how it is stored, and what cannot be."""

import json

import pytest

from loadgen.errors import ScenarioInvalid
from loadgen.model.workload import Remembered, Uniform
from loadgen.rules.scenario_plan import plan
from loadgen.scenario.frozen import freeze, frozen_config, template_id, thaw
from loadgen.scenario.model import with_workers
from loadgen.scenario.read import parse_scenario
from loadgen.scenario.settings import SessionAffinity, UserSessionSettings
from tests.unit.scenario_builders import problems, read

CUSTOMER = "{remembered: customer, of: {uniform: {min: 1, max: 10k}}}"
SCENARIO = """\
version: 1
name: shop
workload:
  statements:
    - {{name: basket, {mark}sql: SELECT ?, params: [{param}]}}
    - {{name: pay, {mark}sql: SELECT ?, params: [{second}]}}
{sessions}
load: {{connections: 4}}
"""


def text(sessions="sessions: {count: 8}", *, mark="session: true, ", param=CUSTOMER, second="{remembered: customer}"):
    return SCENARIO.format(sessions=sessions, mark=mark, param=param, second=second)


def parsed(written):
    return parse_scenario(written, source="f.yaml", environ={})


def test_sessions_and_their_statements_are_read():
    section = "sessions: {count: 1k, affinity: strict, ttl: 10m, max: 2k, metadata: {team: checkout}}"

    scenario = read(text(section))

    assert scenario.sessions == UserSessionSettings(
        count=1_000, affinity=SessionAffinity.STRICT, ttl_s=600.0, max=2_000, metadata={"team": "checkout"}
    )
    assert [statement.session for statement in scenario.workload.statements] == [True, True]


def test_a_name_stands_for_one_value_wherever_it_is_written():
    statements = read(text()).workload.statements

    (first,), (second,) = (statement.queries[0].parameters for statement in statements)
    assert first == second
    assert isinstance(first, Remembered)
    assert isinstance(first.of, Uniform)


def test_what_is_stored_is_read_back():
    scenario = with_workers(read(text("sessions: {count: 9, metadata: {a: b}}")), 2)

    assert thaw(freeze(scenario), {}) == scenario


def test_a_scenario_without_sessions_is_stored_as_it_always_was():
    without = read(text("", mark="", param="{literal: 1}", second="{literal: 2}"))

    config = frozen_config(without)

    assert "sessions" not in config
    assert "session" not in json.dumps(config["workload"])
    assert thaw(freeze(without), {}) == without
    assert template_id(without) != template_id(read(text()))


def test_the_plan_shows_them_only_where_they_have_an_effect():
    shown = {setting.path for setting in plan(parsed(text()), cores=2).settings}
    unused = {
        setting.path
        for setting in plan(parsed(text("", mark="", param="{literal: 1}", second="{literal: 2}")), cores=2).settings
    }

    assert {"sessions.count", "sessions.ttl", "workload.statements.0.session"} <= shown
    assert not [path for path in unused if "session" in path and path != "target.session"]


def test_over_quota_is_an_error_of_the_configuration():
    with pytest.raises(ScenarioInvalid) as refused:
        read(text("sessions: {count: 20k}"))

    assert refused.value.exit_code == 2
    assert "20,000 sessions are over the quota: max is 10,000" in str(refused.value)
    assert "lower count, or raise max" in str(refused.value)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (text("sessions: {count: 6, max: 5}"), "sessions.count: 6 sessions are over the quota: max is 5"),
        (text("sessions: {count: 3}"), "sessions.count: 3 users are too few for 4 connections"),
        (text("sessions: {count: -1}"), "sessions.count: must be from 0"),
        (text("sessions: {count: 8, affinity: loose}"), "sessions.affinity: must be strict or hint"),
        (text("sessions: {count: 8, metadata: {a: 1}}"), "sessions.metadata.a: must be a text"),
        (text('sessions: {count: 8, metadata: {"": x}}'), "the key must not be empty"),
        (text('sessions: {count: 8, metadata: {"": [1]}}'), "metadata.: the key must not be empty"),
        (text('sessions: {count: 8, metadata: {"": [1]}}'), "metadata.: must be a text"),
        (
            text("sessions: {count: 8, metadata: {" + ", ".join(f"k{n}: {'é' * 40}" for n in range(5)) + "}}"),
            "sessions.metadata: has 1,241 characters as JSON, and QUERY_TAG has room for 1,000",
        ),
        (
            text(mark="", param="{literal: 1}", second="{literal: 2}"),
            "sessions.count: no statement is executed in a session",
        ),
        (
            text(second="{literal: 2}")
            .replace("basket, ", "basket, weight: 0, ")
            .replace("pay, session: true, ", "pay, "),
            "sessions.count: no statement is executed in a session",
        ),
        (text(second=CUSTOMER), "params.0.of: has a generator in another place already"),
        (text(second="{remembered: custmer}"), "params.0.remembered: has no generator"),
        (text(second="{remembered: x, of: {previous: 0}}"), "of.previous: belongs to one statement"),
        (text(second="{remembered: x, of: {remembered: customer}}"), "of.remembered: belongs to one statement"),
        (text(second="{remembered: x, of: {pool: nowhere}}"), "of.pool: is not a pool under values"),
        (text(second="{remembered: x, of: {uniform: {min: 5, max: 1}}}"), "of.uniform.max: is below min"),
        (text(second="{remembered: x, of: {unifrom: {}}}"), "'unifrom' is not a generator; did you mean uniform?"),
        (text(second="{remembered: x, of: {uniform: {sharded: true}}}"), "of.uniform.sharded: needs sharding"),
    ],
)
def test_impossible_settings_are_reported_with_their_place(written, words):
    found = problems(written)

    assert any(words in problem for problem in found), found


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("sessions: {affinity: strict}", "sessions.affinity: has no effect: there are no sessions"),
        ("sessions: {ttl: 5m}", "sessions.ttl: has no effect: there are no sessions"),
        ("", "workload.statements.0.session: requires users, but sessions.count is 0"),
    ],
)
def test_without_users_nothing_else_has_an_effect(section, words):
    marked = "session: true, " if not section else ""
    found = problems(text(section, mark=marked, param="{literal: 1}", second="{literal: 2}"))

    assert words in found[0]
    assert ";" in found[0], "a hint"


def test_only_a_session_can_remember():
    written = text().replace("name: pay, session: true, ", "name: pay, ")

    assert problems(written) == [
        "f.yaml:6:56 workload.statements.1.params.0.remembered: needs a session, got 'customer'; "
        "add session: true to the statement"
    ]


def test_a_column_remembers_nothing():
    table = (
        "prepare: {tables: [{name: T, type: standard, columns: [{name: A, type: INT, generate: "
        "{remembered: x, of: {uuid: {}}}}]}]}\n"
    )

    assert any("remembered cannot fill a column" in problem for problem in problems(table + text()))
