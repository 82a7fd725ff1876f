"""The marker of a table, what counts as a difference, and what is read from a count."""

from __future__ import annotations

import pytest

from loadgen.errors import RunFailed
from loadgen.prepare.fill import RowCounts, beginning
from loadgen.prepare.table_definition import (
    TableDefinition,
    TableMarker,
    count_rows,
    create_table,
    differences,
    is_ours,
    shown,
)
from loadgen.snowflake.ident import Identifier, QualifiedName
from tests.unit.scenario_builders import only_table

TABLE = """
      type: hybrid
      rows: 1000
      columns:
        - {name: ID, type: "NUMBER(38,0)", primary_key: true, generate: {sequence: {start: 1}}}
        - {name: C, type: INTEGER, generate: {uniform: {min: 1, max: 9}}}
      indexes: [{columns: [C]}]
"""


def definition_of(table: str = TABLE, *, name: str = "T", seed: int = 1) -> TableDefinition:
    text = (
        f"version: 1\nname: x\nseed: {seed}\nprepare:\n  tables:\n    - name: {name}{table}"
        "workload: {statements: [{name: s, sql: SELECT 1}]}\n"
    )
    return only_table(text)


def test_a_marker_is_read_back():
    marker = definition_of().marker

    assert TableMarker.parse(marker.text) == marker
    assert marker.text.startswith("loadgen:prepare:1:")
    assert len(marker.text) < 120


@pytest.mark.parametrize("comment", [None, "", "ours", "loadgen", "my loadgen:prepare:1:x"])
def test_a_comment_without_the_marker_is_not_ours(comment):
    assert not is_ours(comment)


@pytest.mark.parametrize("comment", ["loadgen:prepare:2:x:y", "loadgen:prepare:1:only"])
def test_a_marker_of_another_version_is_ours_and_differs(comment):
    assert is_ours(comment)
    assert TableMarker.parse(comment) is None
    assert differences(TableMarker.parse(comment), definition_of().marker) == [
        "it was made by another version of loadgen"
    ]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (TABLE.replace("rows: 1000", "rows: 2k"), "it was made for 1,000 rows, the scenario says 2,000"),
        (TABLE.replace("C, type: INTEGER", "C, type: FLOAT"), "its columns, their types or its primary key"),
        (TABLE.replace("max: 9", "max: 8"), "its values were generated in another way"),
        (TABLE.replace("start: 1", "start: 2"), "its values were generated in another way"),
        (TABLE.replace("indexes: [{columns: [C]}]", "indexes: []"), "its indexes are not those"),
        (
            TABLE.replace("hybrid", "standard").replace("indexes: [{columns: [C]}]", ""),
            "it is a hybrid table, the scenario says standard",
        ),
    ],
)
def test_differences_are_described_in_words(changed, words):
    found = differences(definition_of().marker, definition_of(changed).marker)

    assert definition_of(changed).marker.digest != definition_of().marker.digest
    assert any(words in difference for difference in found)


def test_the_seed_counts_only_where_values_depend_on_it():
    fixed = TABLE.replace("{uniform: {min: 1, max: 9}}", "{literal: 5}")

    assert definition_of(seed=1).marker != definition_of(seed=2).marker
    assert "seed 1, the scenario has 2" in differences(definition_of().marker, definition_of(seed=2).marker)[0]
    assert definition_of(fixed, seed=1).marker == definition_of(fixed, seed=2).marker


def test_the_spelling_of_names_and_types_does_not_matter():
    same = TABLE.replace("name: ID", "name: id").replace("INTEGER", "integer").replace("[C]", "['\"C\"']")

    assert definition_of(same, name="t").marker == definition_of().marker


def test_the_table_is_made_with_its_key_its_indexes_and_its_marker():
    definition = definition_of()

    assert create_table(definition) == (
        'CREATE HYBRID TABLE IF NOT EXISTS "D"."S"."T" (\n  "ID" NUMBER(38,0) NOT NULL,\n  "C" INTEGER,\n'
        f'  PRIMARY KEY ("ID"),\n  INDEX "T_IDX1" ("C")\n) COMMENT = \'{definition.marker.text}\''
    )


def test_names_are_quoted_and_shown_plainly_where_they_can_be():
    definition = definition_of(name="""'"a "" ; --".t'""")

    assert '"a "" ; --"."T"' in create_table(definition)
    assert shown(QualifiedName((Identifier("D"), Identifier("a b"), Identifier("T")))) == 'D."a b".T'


# --- counting --------------------------------------------------------------------------------------------------------


def tally(rows: int, different: int | None = None, first: int | None = None, last: int | None = None) -> RowCounts:
    return RowCounts(rows=rows, different=rows if different is None else different, first=first, last=last)


def test_only_the_prepared_rows_of_a_sequence_count():
    sql, binds = count_rows(definition_of(TABLE.replace("start: 1", "start: 501")))

    assert 'WHERE "ID" BETWEEN ? AND ?' in sql
    assert binds == (501, 1500)
    assert "DISTINCT" not in sql  # the primary key of a hybrid table is enforced


def test_an_unenforced_key_is_counted():
    standard = TABLE.replace("hybrid", "standard").replace("indexes: [{columns: [C]}]", "")

    assert 'COUNT(DISTINCT "ID")' in count_rows(definition_of(standard))[0]


def test_a_sequence_in_a_text_is_not_compared_by_size():
    sql, binds = count_rows(definition_of(TABLE.replace('"NUMBER(38,0)"', "VARCHAR")))

    assert "BETWEEN" not in sql
    assert binds == ()


@pytest.mark.parametrize(
    ("found", "there"),
    [(tally(0), 0), (tally(7, first=1, last=7), 7), (tally(1000, first=1, last=1000), 1000)],
)
def test_what_is_there_is_a_beginning(found, there):
    assert beginning(definition_of(), found) == there


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (tally(6, first=1, last=7), "with gaps among them"),
        (tally(6, first=2, last=7), "with gaps among them"),
        (tally(8, 7, first=1, last=7), "contains 8 rows, some with duplicate values in column"),
    ],
)
def test_gaps_and_duplicates_are_errors(found, words):
    with pytest.raises(RunFailed, match=words) as error:
        beginning(definition_of(), found)

    assert "--drop" in error.value.remedy


def test_without_a_sequence_more_rows_than_wanted_are_enough():
    uuid = TABLE.replace("{sequence: {start: 1}}", "{uuid: {}}").replace('"NUMBER(38,0)"', "VARCHAR(36)")

    assert beginning(definition_of(uuid), tally(1_500)) == 1000
    assert beginning(definition_of(uuid), tally(400)) == 400
