"""What is known about SQL without a database, and which names are names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.identifiers import canonical, is_name, is_qualified_name
from loadgen.model.workload import preparation_refusal, shape_of, workload_refusal
from loadgen.snowflake.ident import Identifier, InvalidIdentifier, QualifiedName


@pytest.mark.parametrize(
    ("sql", "binds"),
    [
        ("SELECT 1", 0),
        ("SELECT ? FROM t WHERE a = ?", 2),
        ("SELECT '?' || ?", 1),
        ("SELECT 'it''s ?' || ?", 1),
        (r"SELECT 'it\'s ?' || ?", 1),
        (r"SELECT '\\' || ?", 1),
        ('SELECT "a?" FROM "b""?" WHERE c = ?', 1),
        ("SELECT $$ ? ' $$, ?", 1),
        ("SELECT $$ $ ? $$, ?", 1),
        ("SELECT ? -- ? and '\n, ?", 2),
        ("SELECT ? // ?\n, ?", 2),
        ("SELECT ? /* ? * / ? */ , ?", 2),
        ("SELECT v:path[0]?::int, ?", 2),
        ("SELECT a FROM t WHERE b = ?;", 1),
        ("SELECT $1, ?", 1),
    ],
)
def test_binds_are_counted_outside_of_texts_names_and_comments(sql, binds):
    assert shape_of(sql).binds == binds
    assert workload_refusal(shape_of(sql)) is None


@pytest.mark.parametrize(
    ("sql", "verb"),
    [
        ("select 1", "SELECT"),
        ("  -- what\n /* it */ With x as (select 1) select * from x", "WITH"),
        ("((SELECT 1) UNION (SELECT 2))", "SELECT"),
        ("'select'", ""),
        ("", ""),
    ],
)
def test_the_verb_is_the_first_word(sql, verb):
    assert shape_of(sql).verb == verb


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("USE WAREHOUSE X", "changes the session"),
        ("use role accountadmin", "changes the session"),
        ("ALTER SESSION SET TIMEZONE = 'UTC'", "changes the session"),
        ("/* x */ alter /* y */ session set a = 1", "changes the session"),
        ("SET A = 1", "changes the session"),
        ("BEGIN", "transaction"),
        ("START TRANSACTION", "transaction"),
        ("commit", "transaction"),
        ("ROLLBACK", "transaction"),
        ("PUT file:/x @y", "moves files"),
        ("GET @y file:/x", "moves files"),
        ("CREATE TABLE T (A INT)", "is not a statement of a workload"),
        ("DROP TABLE T", "is not a statement of a workload"),
        ("ALTER TABLE T ADD B INT", "is not a statement of a workload"),
        ("TRUNCATE TABLE T", "is not a statement of a workload"),
        ("SHOW TABLES", "begins with one of"),
        ("EXECUTE IMMEDIATE 'x'", "begins with one of"),
        ("SELECT 1; SELECT 2", "contains 2 statements"),
        ("SELECT 1; -- harmless\n DROP TABLE T", "contains 2 statements"),
        ("SELECT 1; ''", "contains 2 statements"),
        ("-- only a comment", "contains no statement"),
        (";", "contains no statement"),
        ("SELECT 'x", "is not closed"),
        ('SELECT "x', "is not closed"),
        ("SELECT $$x", "is not closed"),
        ("SELECT /* x", "is not closed"),
    ],
)
def test_what_is_no_statement_of_a_workload_is_refused(sql, words):
    wrong = workload_refusal(shape_of(sql))

    assert wrong is not None
    assert words in wrong[0]


@pytest.mark.parametrize(
    "sql", ["INSERT INTO T VALUES (1)", "MERGE INTO T USING S ON 1=1", "CALL P(?)", "delete from t"]
)
def test_statements_that_read_or_write_are_taken(sql):
    assert workload_refusal(shape_of(sql)) is None


def test_preparation_may_define_but_not_change_the_session():
    assert preparation_refusal(shape_of("CREATE VIEW V AS SELECT 1")) is None
    assert preparation_refusal(shape_of("USE SCHEMA X")) is not None
    assert preparation_refusal(shape_of("INSERT INTO T VALUES (?)")) is not None


@given(st.text(st.sampled_from(list("aZ_$9 \"'.;-\n\0é"))) | st.text(max_size=300))
def test_a_name_is_what_the_connections_take_for_one(text):
    for accepted, parse in ((is_name(text), Identifier.parse), (is_qualified_name(text), QualifiedName.parse)):
        try:
            sql = parse(text).sql
        except InvalidIdentifier:
            assert not accepted
        else:
            assert accepted
            assert canonical(text) == sql


@pytest.mark.parametrize(
    "text", ['x"; DROP TABLE y; --', "a.b.c.d", "$$", "'", "a\\b", "a\nb", "IDENTIFIER(", "a\0", ""]
)
def test_hostile_names_are_refused(text):
    assert not is_name(text)
    assert not is_qualified_name(text)
