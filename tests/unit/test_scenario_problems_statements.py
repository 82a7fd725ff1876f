"""Mistakes in statements and in a scenario as a whole."""

from __future__ import annotations

import os

import pytest

from loadgen.model.workload import databases_of
from loadgen.scenario.file import LoadSection
from loadgen.scenario.key_reader import declared_keys
from loadgen.scenario.read import parse_scenario
from loadgen.scenario.settings import QueryLogSettings, SpawnerSettings
from tests.unit.scenario_builders import GOOD, MINIMAL, problems, problems_of


def warnings_of(top="", param="{literal: 1}", load="", statement=""):
    text = GOOD.format(top=top, param=param, load=load, statement=statement)
    return [str(warning) for warning in parse_scenario(text, source="f.yaml", environ={}).warnings]


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("    - {name: a, sql: SELECT 1}", "workload.statements.1.name: is the name of another statement too"),
        ("    - {name: b}", "workload.statements.1.sql: is missing"),
        ("    - {sql: SELECT 1}", "workload.statements.1.name: is missing"),
        ("    - {name: b, sql: SELECT 1, transaction: [{sql: SELECT 1}]}", "sql or transaction, not both"),
        ("    - {name: b, transaction: []}", "workload.statements.1.transaction: is empty"),
        ("    - {name: b, transaction: [{sql: SELECT 1}], expect: {rows: 1}}", "does not belong to a transaction"),
        ("    - {name: b, transaction: [{sql: COMMIT}]}", "COMMIT begins or ends a transaction"),
        ("    - {name: b, transaction: [{sql: SELECT ?, params: [{previous: 0}]}]}", "no parameter comes before it"),
        (
            "    - {name: b, transaction: [{sql: 'SELECT ?, ?', params: [{literal: 1}, {previous: 1}]}]}",
            "only parameters 0 to 0 come before it",
        ),
        ("    - {name: b, kind: read, sql: DELETE FROM T}", "is read, but DELETE writes"),
        ("    - {name: b, sql: CALL P()}", "workload.statements.1.kind: is missing: CALL may read or write"),
        ("    - {name: b, sql: 'SELECT ?, ?', params: [{literal: 1}]}", "2 ? are in the SQL, and 1 parameter is given"),
        ("    - {name: b, sql: SELECT 1, params: [{literal: 1}]}", "0 ? are in the SQL, and 1 parameter is given"),
        ("    - {name: b, sql: SELECT 1; SELECT 2}", "contains 2 statements"),
        ("    - {name: b, sql: SELECT 1, weight: 999999}\n    - {name: c, sql: SELECT 1, weight: 9}", "make a cycle"),
        (
            "    - {name: b, sql: INSERT INTO T SELECT ?, params: [{sequence: {sharded: true}}]}\n"
            "    - {name: c, sql: SELECT ?, params: [{latest: {min: 1, max: 9, follows: b}}]}\n"
            "sharding: {enabled: true}",
            "latest.follows: is a statement with a sharded sequence",
        ),
        (
            "    - {name: b, sql: INSERT INTO T SELECT ?, params: [{sequence: {}}]}\n"
            "    - {name: c, sql: SELECT ?, params: [{latest: {sharded: true, follows: b}}]}\n"
            "sharding: {enabled: true}",
            "latest.follows: does not go with sharded",
        ),
        (
            "    - {name: b, sql: SELECT 1, weight: 0}\nthresholds: [b.p95 < 1s]",
            "thresholds.0: names a statement that is never sent",
        ),
        (
            "    - {name: b, sql: SELECT ?, params: [{shard: }]}\nsharding: {enabled: true, key_range: [1, 1]}",
            "key_range: has fewer keys than the 2 workers that may share it",  # 32 connections on two cores or more
        ),
        ("    - {name: ' b', sql: SELECT 1}", "nor begin or end with a space"),
        ('    - {name: "b\\u202e\\n", sql: SELECT 1}', "nor begin or end with a space"),
    ],
)
def test_statements_that_cannot_be(statement, words):
    found = problems_of(statement=statement)

    assert len(found) == 1, found
    assert words in found[0]


@pytest.mark.parametrize("key", ["window: 1s", "after: 1s", "abort: true"])
def test_a_search_judges_each_step_as_a_whole(key):
    found = problems_of(top=f"thresholds: [{{check: p95 < 1s, {key}}}]", load="mode: find_max")

    assert len(found) == 1, found
    assert f"thresholds.0.{key.split(':')[0]}: belongs to modes concurrency and rate" in found[0]


def test_an_index_names_a_column_once():
    found = problems_of(
        top="prepare: {tables: [{name: T, columns: [{name: A, type: INT, primary_key: true}], "
        "indexes: [{columns: [A, a]}]}]}"
    )

    assert found == [
        "f.yaml:3:106 prepare.tables.0.indexes.0.columns.1: is in this index twice, got 'a'; name each column once"
    ]


def test_weights_of_zero_send_nothing():
    found = problems("version: 1\nname: x\nworkload: {statements: [{name: a, sql: SELECT 1, weight: 0}]}\n")

    assert found == [
        "f.yaml:3:12 workload.statements: all weights are 0, so nothing would be sent; give one a weight",
    ]


def test_a_scenario_without_statements_has_nothing_to_send():
    assert "there is nothing to send" in problems("version: 1\nname: x\n")[0]
    assert "there is nothing to send" in problems("version: 1\nname: x\nworkload: {}\n")[0]


def test_a_search_may_have_a_process_for_each_connection_up_to_a_limit():
    assert warnings_of(load="mode: find_max, profile: process, find_max: {maximum: 64}") == []
    assert problems(MINIMAL + "load: {mode: find_max, profile: process, find_max: {maximum: 65}}\n") == [
        "f.yaml:4:33 load.profile: process with mode find_max would start 65 processes at once,"
        " one per connection of maximum, got 'process';"
        " set load.find_max.maximum to 64 or less, or use profile: thread"
    ]


# Each key that some values of another key exclude, with such a value and a valid value of the key.
EXCLUDED = [
    (path, f"{declared.applies.selector}: {other}", key, declared.default)
    for path, section in (("load", LoadSection), ("query_log", QueryLogSettings), ("spawner", SpawnerSettings))
    for key, declared in declared_keys(section).items()
    if declared.applies is not None
    for other in type(declared.applies.values[0])
    if other not in declared.applies.values
]


@pytest.mark.parametrize(("path", "selector", "key", "default"), EXCLUDED)
def test_a_key_that_does_not_apply_is_a_problem_even_with_its_default(path, selector, key, default):
    values = {"stages": "[{duration: 1s}]", "find_max": "{start: 5}", "max_lag": "1s", "rate": "1/s"}
    value = values.get(key, "X1" if path == "spawner" else default or 1)

    found = problems(MINIMAL + f"{path}: {{{selector}, {key}: {value}}}\n")

    assert any(f" {path}.{key}: belongs to {selector.partition(':')[0]} " in problem for problem in found), found


def test_what_works_but_is_hardly_meant_is_a_warning():
    assert "is not used by any parameter" in warnings_of(top="values: {p: {query: SELECT 1}}")[0]
    assert "never sent" in warnings_of(statement="    - {name: b, sql: SELECT 1, weight: 0}")[0]
    assert "some will have none" in warnings_of(load="connections: 2, workers: 4")[0]
    assert "some will have none" in warnings_of(load="mode: find_max, find_max: {maximum: 6}, workers: 7")[0]
    assert "is read for connection embedded only" in warnings_of(top="connection: prod\nembedded: {slots: 4}")[0]
    assert "begins below its level" in warnings_of(load="ramp: 20s")[0]


def test_a_load_in_the_database_of_the_control_plane_is_a_warning():
    def found(top: str) -> bool:
        return any("share one limit of operations" in warning for warning in warnings_of(top=top))

    assert found("connection: prod\ntarget: {database: loadgen}")
    assert found("connection: prod\ntarget: {database: BENCH}\ncontrol: {database: '\"BENCH\"'}")
    assert not found("connection: prod\ntarget: {database: BENCH}")
    assert not found("connection: embedded\ntarget: {database: LOADGEN}")  # which has no such limit
    assert not found("connection: prod\ntarget: {database: LOADGEN}\ncontrol: {connection: other}")
    columns = "type: standard, columns: [{name: A, type: INT}]"
    assert found(f"connection: prod\nprepare: {{tables: [{{name: loadgen.public.t, {columns}}}]}}")
    assert not found(f"connection: prod\nprepare: {{tables: [{{name: bench.loadgen.t, {columns}}}]}}")
    assert found('connection: prod\nprepare: {statements: [CREATE VIEW V AS SELECT 1 FROM "LOADGEN" . s.t]}')


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("SELECT * FROM a.b.c JOIN d.e ON TRUE", ('"A"',)),
        ('SELECT \'a.b.c\' FROM "x.y"."B"."c" -- d.e.f', ('"x.y"',)),
        ("SELECT a.b.c.d, e.f.g FROM a . b /* */ . c, e.f.g", ('"A"', '"E"')),
        ("SELECT 1.2.3, t.v:a.b.c, ?", ()),
        ("SELECT 1", ()),
        ("", ()),
    ],
)
def test_the_databases_of_a_text_are_the_first_of_three_parts(sql, found):
    assert databases_of(sql) == found


def test_problems_of_one_part_do_not_hide_or_cause_those_of_another():
    found = problems_of(
        top="thresholds: [gone.p95 < 1ms]\nsharding: {enabled: maybe}",
        load="connections: many, per_worker_connections: 3, workers: 5",
        statement="    - {sql: SELECT ?}\n    - {name: c, sql: SELECT ?}",
    )

    assert [problem.split(" ")[1] for problem in found] == [
        "sharding.enabled:",
        "workload.statements.1.name:",
        "workload.statements.1.sql:",
        "workload.statements.2.sql:",
        "load.connections:",
    ]


def test_elements_behind_one_that_was_wrong_keep_their_places():
    found = problems_of(param="{literal: 1}, 5, {uniform: {min: 9, max: 1}}")

    assert found[0].startswith("f.yaml:8:30 workload.statements.0.params.1: must name a generator")
    assert found[1].startswith("f.yaml:8:57 workload.statements.0.params.2.uniform.max: is below min")


def test_files_of_pools_are_checked(tmp_path):
    (tmp_path / "regions.csv").write_text("NAME,CODE\nNorth,N\n")
    text = GOOD.format(top="values: {r: {file: regions.csv, column: CODE}}", param="{pool: r}", load="", statement="")

    parse_scenario(text, source="f.yaml", folder=tmp_path, environ={})

    assert "is not a column of the file" in problems(text.replace("CODE", "SIZE"), folder=tmp_path)[0]
    assert "has 2 columns" in problems(text.replace(", column: CODE", ""), folder=tmp_path)[0]
    assert "No such file" in problems(text.replace("regions.csv", "gone.csv"), folder=tmp_path)[0]
    (tmp_path / "regions.csv").write_text("NAME, CODE ,SIZE,SIZE\nNorth,N,1,2\n")  # spaces are no part of a name
    parse_scenario(text, source="f.yaml", folder=tmp_path, environ={})
    assert "the name of several columns" in problems(text.replace("CODE", "SIZE"), folder=tmp_path)[0]
    os.mkfifo(tmp_path / "pipe.csv")
    for name in ("pipe.csv", "."):
        assert "values.r.file: is not a file" in problems(text.replace("regions.csv", name), folder=tmp_path)[0]


@pytest.mark.parametrize(
    ("statement", "is_reported"),
    [
        ("{name: pay, weight: x, sql: SELECT 1}", True),
        ("{name: [], weight: x, sql: SELECT 1}", False),
        ("{weight: x, sql: SELECT 1}", False),
        ("7", False),
    ],
)
def test_a_threshold_on_an_unknown_statement_is_reported_although_a_weight_is_wrong(statement, is_reported):
    text = (
        "version: 1\nname: x\nconnection: embedded\nload: {connections: 1, duration: 1s}\n"
        f"workload: {{statements: [{{name: a, sql: SELECT 1}}, {statement}]}}\nthresholds: [pya.p99 < 1s]\n"
    )

    found = problems(text)

    assert any("names a statement that does not exist" in one for one in found) is is_reported
    assert any("workload.statements.1" in one for one in found)
