"""Preparing a scenario's tables: created, found, resumed; foreign tables are never changed."""

from __future__ import annotations

import pytest

from loadgen.errors import ConfigurationError, PrivilegeMissing, RunFailed
from loadgen.prepare.fill import TableState
from loadgen.prepare.prepare import PreparationProgress, PreparationStep, TableConflict, TableOutcome
from tests.contract.prepare_builders import KEY, NUMBER, SKEWED, table

pytestmark = pytest.mark.any_driver


# --- making and finding ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["hybrid", "standard"])
@pytest.mark.parametrize("second", [NUMBER, SKEWED], ids=["by server", "bound"])
def test_a_second_preparation_does_nothing(harness, kind, second):
    scenario = harness.scenario(table(f"{KEY}, {second}", kind=kind))
    assert harness.states(scenario) == [TableState.MISSING]

    first = harness.prepare(scenario)
    inserts = harness.sent("INSERT")
    again = harness.prepare(scenario)

    assert [(one.outcome, one.rows_added) for one in first.tables] == [(TableOutcome.CREATED, 3000)]
    assert [(one.outcome, one.rows_added) for one in again.tables] == [(TableOutcome.READY, 0)]
    assert harness.sent("INSERT") == inserts > 0
    assert harness.counts("T") == (3000, 3000)
    assert harness.states(scenario) == [TableState.READY]
    assert [told.rows_there for told in harness.told if told.step is PreparationStep.FILLING][-1] == 3000


def test_a_hybrid_table_has_its_index_and_enforces_its_key(harness):
    harness.prepare(harness.scenario(table(f"{KEY}, {NUMBER}", rows=10, more=", indexes: [{columns: [N]}]")))

    assert harness.rows("SELECT NAME FROM INFORMATION_SCHEMA.INDEXES WHERE TABLE_NAME = 'T'") == [("T_IDX1",)]
    with pytest.raises(Exception, match="200001"):
        harness.cursor.execute("INSERT INTO T (ID) VALUES (1)")


def test_odd_names_stay_names(harness):
    """A name that would be a statement, were it not quoted."""
    columns = f'{KEY}, {{name: \'"b ""; DROP"\', type: INTEGER, generate: {{literal: 5}}}}'

    harness.prepare(harness.scenario(table(columns, name="'\"a; DROP TABLE x --\"'", rows=5)))

    assert harness.rows('SELECT "b ""; DROP" FROM "a; DROP TABLE x --" LIMIT 1') == [(5,)]


def test_tables_without_rows_are_made_empty(harness):
    scenario = harness.scenario(table("{name: ID, type: INTEGER, primary_key: true}", rows=0))

    assert harness.prepare(scenario).tables[0].outcome is TableOutcome.CREATED
    harness.cursor.execute("INSERT INTO T (ID) VALUES (5)")
    assert harness.prepare(scenario).tables[0].outcome is TableOutcome.READY
    assert harness.rows("SELECT ID FROM T") == [(5,)]


# --- whose table -----------------------------------------------------------------------------------------------------


def test_a_foreign_table_is_refused_and_stays(harness):
    harness.cursor.execute("CREATE TABLE T (MINE INTEGER) COMMENT = 'precious'")
    harness.cursor.execute("INSERT INTO T VALUES (1)")
    scenario = harness.scenario(f"{table(KEY, name='FIRST')}, {table(KEY)}")

    for how in ({}, {"drop": True}):
        with pytest.raises(TableConflict, match="not created by loadgen") as error:
            harness.prepare(scenario, **how)
        assert "--force" in error.value.remedy

    assert error.value.exit_code == 2
    assert harness.rows("SELECT MINE FROM T") == [(1,)]
    assert harness.rows("SELECT COUNT(*) FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_NAME = 'FIRST'") == [(0,)]
    assert harness.prepare(scenario, drop=True, force=True).tables[1].dropped
    assert harness.counts("T") == (3000, 3000)


def test_another_definition_is_refused_until_it_is_dropped(harness):
    harness.prepare(harness.scenario(table(KEY, rows=100)))
    changed = harness.scenario(table(f"{KEY}, {NUMBER}", rows=200))

    with pytest.raises(TableConflict, match="made for 100 rows, the scenario says 200; its columns") as error:
        harness.prepare(changed)
    assert "--drop" in error.value.remedy
    assert harness.counts("T") == (100, 100)
    assert harness.states(changed) == [TableState.DIFFERENT]

    done = harness.prepare(changed, drop=True)
    assert [(one.outcome, one.dropped) for one in done.tables] == [(TableOutcome.CREATED, True)]
    assert harness.counts("T") == (200, 200)


def test_an_existing_table_must_be_readable_and_is_never_touched(harness):
    scenario = harness.scenario("{name: THEIRS, type: existing}")
    with pytest.raises(ConfigurationError, match="THEIRS has type existing, but cannot be read"):
        harness.prepare(scenario)
    harness.cursor.execute("CREATE TABLE THEIRS (A INTEGER)")
    harness.cursor.execute("INSERT INTO THEIRS VALUES (1)")

    done = harness.prepare(scenario, drop=True, force=True)

    assert [one.outcome for one in done.tables] == [TableOutcome.EXISTING]
    assert harness.rows("SELECT A FROM THEIRS") == [(1,)]


SHARDED = (
    "workload: {{statements: [{{name: s, sql: SELECT ?, params: [{{uniform: {{sharded: true}}}}]}}]}}\n"
    "sharding: {{enabled: true, key_column: {column}, key_range: [1, 1000]}}\n"
)


@pytest.mark.parametrize("column", ["customer_id", "OWN", "'\"Mixed\"'"])
def test_the_key_column_may_be_of_an_existing_table_or_of_a_prepared_one(harness, column):
    harness.cursor.execute('CREATE TABLE THEIRS (CUSTOMER_ID INTEGER, "Mixed" INTEGER)')
    own = "{name: T, rows: 10, columns: [{name: own, type: INT, primary_key: true, generate: {sequence: {}}}]}"
    scenario = harness.scenario(f"{{name: THEIRS, type: existing}}, {own}", top=SHARDED.format(column=column))

    assert [one.outcome for one in harness.prepare(scenario).tables] == [TableOutcome.EXISTING, TableOutcome.CREATED]


def test_a_key_column_that_no_existing_table_has_is_refused_before_anything_is_changed(harness):
    harness.cursor.execute("CREATE TABLE THEIRS (CUSTOMER_ID INTEGER)")
    scenario = harness.scenario("{name: THEIRS, type: existing}", top=SHARDED.format(column="CUSTOMER"))

    with pytest.raises(ConfigurationError, match="no table of prepare has the column CUSTOMER, which is") as error:
        harness.prepare(scenario)

    assert error.value.remedy == "Name one of their columns: CUSTOMER_ID."


def test_a_missing_privilege_and_a_missing_database_have_hints(harness):
    harness.server.fault(match=f'CREATE HYBRID.*"{harness.database}"', kind="error", errno=3001, sqlstate="42501")
    with pytest.raises(PrivilegeMissing, match="CREATE HYBRID TABLE") as error:
        harness.prepare(harness.scenario(table(KEY)))
    assert "CREATE HYBRID TABLE on the schema" in error.value.remedy

    with pytest.raises(ConfigurationError, match=r"database .* cannot be used"):
        harness.prepare(harness.scenario(table(KEY, name="NOWHERE_AT_ALL.PUBLIC.T")))


# --- rows that are there ---------------------------------------------------------------------------------------------


def test_rows_beyond_the_prepared_ones_are_left_alone(harness):
    scenario = harness.scenario(table(f"{KEY}, {NUMBER}", rows=100))
    harness.prepare(scenario)
    harness.cursor.execute("INSERT INTO T (ID, N) VALUES (101, 1), (5000, 1), (-1, 1)")

    assert harness.prepare(scenario).tables[0].outcome is TableOutcome.READY
    assert harness.counts("T") == (103, 103)


def test_rows_missing_at_the_end_are_filled_up(harness):
    scenario = harness.scenario(table(f"{KEY}, {NUMBER}", rows=100))
    harness.prepare(scenario)
    before = harness.rows("SELECT ID, N FROM T ORDER BY ID")
    harness.cursor.execute("DELETE FROM T WHERE ID > 60")
    assert harness.states(scenario) == [TableState.INCOMPLETE]

    done = harness.prepare(scenario)

    assert [(one.outcome, one.rows_added) for one in done.tables] == [(TableOutcome.RESUMED, 40)]
    assert harness.rows("SELECT ID, N FROM T ORDER BY ID") == before


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("hybrid", "DELETE FROM T WHERE ID = 50", "with gaps among them"),
        ("standard", "INSERT INTO T SELECT * FROM T WHERE ID <= 7", 'some with duplicate values in column "ID"'),
    ],
)
def test_gaps_and_duplicates_among_the_prepared_rows_are_errors(harness, kind, change, words):
    scenario = harness.scenario(table(f"{KEY}, {NUMBER}", kind=kind, rows=100))
    harness.prepare(scenario)
    harness.cursor.execute(change)

    with pytest.raises(RunFailed, match=words) as error:
        harness.prepare(scenario)

    assert harness.states(scenario) == [TableState.DAMAGED]
    assert "--drop" in error.value.remedy
    assert harness.prepare(scenario, drop=True).tables[0].rows_added == 100


def test_without_a_sequence_all_rows_count(harness):
    column = "{name: ID, type: VARCHAR(36), primary_key: true, generate: {uuid: {}}}"
    scenario = harness.scenario(f"{table(column)}, {table(NUMBER, name='U', kind='standard')}")
    harness.prepare(scenario)
    harness.cursor.execute("INSERT INTO T (ID) VALUES ('new')")
    harness.cursor.execute("DELETE FROM U WHERE N = 3")
    left = harness.rows("SELECT COUNT(*) FROM U")[0][0]

    done = harness.prepare(scenario)

    assert [one.outcome for one in done.tables] == [TableOutcome.READY, TableOutcome.RESUMED]
    assert done.tables[1].rows_added == 3000 - left > 0
    assert harness.counts("T") == (3001, 3001)


def test_rows_that_another_session_inserts_meanwhile_are_noticed_where_no_column_distinguishes_them(harness):
    scenario = harness.scenario(table(NUMBER, kind="standard"))

    def intrude(progress: PreparationProgress) -> None:
        if progress.step is PreparationStep.FILLING and progress.rows_there == 1000:
            harness.cursor.execute("INSERT INTO T VALUES (1)")

    with pytest.raises(RunFailed, match="has 3,001 rows instead of 3,000"):
        harness.prepare(scenario, progress=intrude)
