"""Texts, comments, quotes and identifiers are read as Snowflake reads them, or refused as it refuses them."""

from __future__ import annotations

import pytest
from snowflake.connector.errors import Error

from tests.cases import in_one_test
from tests.contract.refused_builders import Refusals, check_wording, message

pytestmark = pytest.mark.any_driver


# --- texts, comments, quotes ------------------------------------------------------------------------------------------


@in_one_test(
    "text",
    ["SELECT 1; SELECT 2", "SELECT 1; DROP TABLE T", "BEGIN; COMMIT", "SELECT 1;\n-- and\nDELETE FROM T;",
     "DELETE FROM U; DELETE FROM T", "CREATE TABLE X (A NUMBER); DROP TABLE T", "SELECT 1;/**/DROP TABLE T"],
)  # fmt: skip
def test_several_statements_in_one_text_are_refused_and_none_is_run(refusals: Refusals, text: str) -> None:
    error = refusals.refusal(text)

    assert (error.errno, error.sqlstate) == (8, "0A000"), message(error)
    assert "Actual statement count 2 did not match the desired statement count 1." in message(error)


@in_one_test("text", ["-- nothing", "/* nothing */", ";", " ; "])
def test_a_text_without_a_statement_is_refused(refusals: Refusals, text: str) -> None:
    error = refusals.refusal(text)

    assert (error.errno, error.sqlstate) == (900, "42601"), message(error)


@in_one_test(
    ("text", "value"),
    [
        (r"SELECT 'a\'; DROP TABLE T; --'", "a'; DROP TABLE T; --"),
        (r"SELECT 'a\\'", "a\\"),
        (r"SELECT '\\''; DROP TABLE T; --'", "\\'; DROP TABLE T; --"),
        (r"SELECT $$'; DROP TABLE T; --$$", "'; DROP TABLE T; --"),
        (r"SELECT $$a\n'b$$", r"a\n'b"),
        (r"SELECT 'a\nb\tc'", "a\nb\tc"),
        (r"SELECT '\u26c4 \x41 \101'", "⛄ A A"),
        ("SELECT 'it''s'", "it's"),
        ("SELECT '/*' || ' -- ' || '*/' /* ; DROP TABLE T; */", "/* -- */"),
        ("SELECT 'a' -- ; DROP TABLE T", "a"),
        ("SELECT 'a' // ; DROP TABLE T", "a"),
        ("SELECT '$1' || '?' || ':1'", "$1?:1"),
        ("SELECT '%s' || '{0}'", "%s{0}"),
        ("SELECT 'ſ☃𐍈' || '\u202e'", "ſ☃𐍈\u202e"),
    ],
)  # fmt: skip
def test_quotes_escapes_and_comments_are_read_as_snowflake_reads_them(
    refusals: Refusals, text: str, value: str
) -> None:
    assert refusals.run(text) == [(value,)]
    refusals.check()


@in_one_test("value", ["'; DROP TABLE T; --", "\\", "\\'", "$$", "%s", "a\nb", "'", '"', "/*", "?", "☃", ""])
def test_a_bind_is_only_ever_a_value(refusals: Refusals, value: str) -> None:
    assert refusals.run("SELECT ?, LENGTH(?)", value, value) == [(value, len(value))]
    assert refusals.run("SELECT A FROM T WHERE B = ?", value) == []
    refusals.check()


@in_one_test(
    "text",
    [
        "SELECT 'unfinished",
        'SELECT "unfinished',
        "SELECT $$unfinished",
        "SELECT (1",
        "SELECT 1)",
        "SELECT /* 1",
    ],
)
def test_an_unfinished_text_is_a_syntax_error(refusals: Refusals, text: str) -> None:
    error = refusals.refusal(text)

    assert error.errno in (1003, 900), message(error)


@in_one_test(
    "text",
    [
        "SELECT 'a\x00b'", 'SELECT 1 AS "a\x00b"', "SELECT 1\x00; DROP TABLE T", "SELECT 'a\\0b'",
        'CREATE TABLE "a\x00b" (A NUMBER)', "\x00SELECT 1", "SELECT 1 -- \x00", "INSERT INTO U (C) VALUES ('a\x00b')",
    ],
)  # fmt: skip
def test_a_nul_character_does_no_harm(refusals: Refusals, text: str) -> None:
    try:
        refusals.run(text)
    except Error as error:
        check_wording(error, text)

    refusals.check()


def test_a_nul_character_in_a_bind_comes_back_or_is_refused(refusals: Refusals) -> None:
    try:
        rows = refusals.run("SELECT ?", "a\0b")
    except Error as error:
        check_wording(error, "SELECT ?")
    else:
        assert rows == [("a\0b",)]

    refusals.check()


def test_a_thousand_terms_are_no_problem(refusals: Refusals) -> None:
    assert refusals.run("SELECT " + " + ".join(["1"] * 1000)) == [(1000,)]
    assert refusals.run("SELECT A FROM T WHERE " + " OR ".join(f"A = {n}" for n in range(1000))) == [(1,)]
    assert refusals.run(f"SELECT A FROM T WHERE A IN ({', '.join(map(str, range(5000)))})") == [(1,)]


MONSTERS = {
    "parentheses": "SELECT " + "(" * 5000 + "1" + ")" * 5000,
    "subqueries": "SELECT " + "(SELECT " * 300 + "1" + ")" * 300,
    "nots": "SELECT " + "NOT " * 5000 + "TRUE",
    "minuses": "SELECT " + "- " * 5000 + "1",
    "cases": "SELECT " + "CASE WHEN TRUE THEN " * 500 + "1" + " END" * 500,
    "brackets": "SELECT " + "[" * 1000 + "]" * 1000,
    "unions": "SELECT 1 " + "UNION ALL SELECT 1 " * 5000,
    "megabyte": "SELECT '" + "x" * 1_100_000 + "'",
}


@in_one_test("monster", MONSTERS)
def test_a_monstrous_text_is_answered_or_refused_without_harm_to_others(refusals: Refusals, monster: str) -> None:
    text = MONSTERS[monster]
    try:
        refusals.run(text)
    except Error as error:
        check_wording(error, text)

    refusals.check()


# --- identifiers ------------------------------------------------------------------------------------------------------


HOSTILE_NAMES = [
    'a"b', "a.b", "a b", " a ", "a;b", "a'b", "--", "/* x */", "%s", "%(a)s", "{database}", "{0}", "$1", "?",
    ":x", "a\\b", "a\nb\tc", "été 漢字 😀", "\u202eevil", "select", "SELECT", "pg_class", "ctid", "xmin", "tableoid",
    "~binds", "~qualify", "a~b",
    "x" * 64, "x" * 255, "é" * 255, "😀" * 255, "1", "1a", "_", "*", "()", "null", "default", "',(SELECT 1),'",
]  # fmt: skip


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@in_one_test("kind", ["TABLE", "HYBRID TABLE"])
@in_one_test("name", HOSTILE_NAMES)
def test_a_quoted_name_may_be_anything(refusals: Refusals, name: str, kind: str) -> None:
    me = quoted(name)

    refusals.run(f"CREATE {kind} {me} ({me} NUMBER PRIMARY KEY, OTHER VARCHAR)")
    try:
        refusals.run(f"INSERT INTO {me} ({me}, OTHER) VALUES (?, 'x')", 7)
        refusals.run(f"UPDATE {me} SET {me} = {me} + 1 WHERE {me}.{me} = 7")

        assert refusals.run(f"SELECT {me} FROM {me}") == [(8,)]
        assert refusals.names(f"SELECT {me} FROM {me}") == [name]
        assert refusals.run(f"SELECT T.{me} AS {me} FROM PUBLIC.{me} AS T ORDER BY {me}") == [(8,)]
        assert refusals.names(f"SELECT * FROM {me}") == [name, "OTHER"]
        assert refusals.run(f"DESCRIBE TABLE {me}")[0][0] == name
        listed = refusals.run("SELECT TABLE_NAME FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_SCHEMA = 'PUBLIC'")
        assert (name,) in listed
    finally:
        refusals.run(f"DROP TABLE {me}")


@in_one_test("statement", [
    'CREATE TABLE "{0}" (A NUMBER)', 'CREATE TABLE X ("{0}" NUMBER)', 'CREATE SCHEMA "{0}"', 'CREATE DATABASE "{0}"',
    'CREATE VIEW "{0}" AS SELECT 1 AS A', 'CREATE WAREHOUSE "{0}"', 'ALTER TABLE T RENAME TO "{0}"',
    'ALTER TABLE T ADD COLUMN "{0}" NUMBER', 'ALTER TABLE T RENAME COLUMN A TO "{0}"',
])  # fmt: skip
@in_one_test("name", ["x" * 256, "é" * 256, "x" * 5000, ""])
def test_a_name_of_more_than_255_characters_or_none_is_refused(refusals: Refusals, name: str, statement: str) -> None:
    refusals.refusal(statement.format(name))


def test_long_names_that_differ_at_the_end_only_are_different(refusals: Refusals) -> None:
    stem = "n" * 250
    refusals.run(f'CREATE TABLE "{stem}1" ("{stem}1" NUMBER, "{stem}2" NUMBER)')
    refusals.run(f'CREATE TABLE "{stem}2" ("{stem}1" NUMBER)')
    refusals.run(f'INSERT INTO "{stem}1" ("{stem}2", "{stem}1") VALUES (2, 1)')

    assert refusals.run(f'SELECT * FROM "{stem}1"') == [(1, 2)]
    assert refusals.run(f'SELECT * FROM "{stem}2"') == []
    assert refusals.names(f'SELECT * FROM "{stem}1"') == [stem + "1", stem + "2"]


def test_names_of_255_characters_can_have_every_kind_of_key(refusals: Refusals) -> None:
    table, column = "t" * 255, "c" * 255

    refusals.run(f'CREATE HYBRID TABLE "{table}" ("{column}" NUMBER AUTOINCREMENT, "{column[1:]}" NUMBER,'
f' UNIQUE ("{column[1:]}"),'
                   f' PRIMARY KEY ("{column}"), INDEX "{"i" * 255}" ("{column[1:]}"))')  # fmt: skip
    refusals.run(f'INSERT INTO "{table}" ("{column[1:]}") VALUES (5)')

    assert refusals.run(f'SELECT * FROM "{table}"') == [(1, 5)]
    error = refusals.refusal(f'INSERT INTO "{table}" ("{column[1:]}") VALUES (5)')
    assert "Duplicate key value violates unique constraint" in message(error)


def test_names_that_differ_in_case_only_are_different(refusals: Refusals) -> None:
    refusals.run('CREATE TABLE "cased" ("a" NUMBER, "A" NUMBER)')
    refusals.run('INSERT INTO "cased" VALUES (1, 2)')

    assert refusals.run('SELECT "a", A, a, "A" FROM "cased"') == [(1, 2, 2, 2)]
    assert refusals.refusal("SELECT * FROM CASED").errno == 2003


def test_dots_in_names_never_mix_up_databases_and_schemas(refusals: Refusals) -> None:
    refusals.run('CREATE DATABASE "DOT.TED"')
    refusals.run('CREATE SCHEMA "DOT.TED"."S"')
    refusals.run('CREATE TABLE "DOT.TED"."S".T AS SELECT 1 AS A')
    try:
        refusals.run("CREATE DATABASE DOT")
        refusals.run('CREATE SCHEMA DOT."TED.S"')
        refusals.run('CREATE TABLE DOT."TED.S".T AS SELECT 2 AS A')

        assert refusals.run('SELECT A FROM "DOT.TED"."S".T') == [(1,)]
        assert refusals.run('SELECT A FROM DOT."TED.S".T') == [(2,)]
        refusals.run("DROP DATABASE DOT")
        assert refusals.run('SELECT A FROM "DOT.TED"."S".T') == [(1,)]
    finally:
        refusals.run('DROP DATABASE IF EXISTS "DOT.TED"')
        refusals.run("DROP DATABASE IF EXISTS DOT")
        refusals.run("USE SCHEMA REFUSED.PUBLIC")


@in_one_test("name", ["1a", "a-b", "a b", "$a", "a.b.c.d", "'a'", "@a", "a#b", "é;"])
def test_an_unquoted_name_with_other_characters_is_refused(refusals: Refusals, name: str) -> None:
    refusals.refusal(f"CREATE TABLE {name} (A NUMBER)")
