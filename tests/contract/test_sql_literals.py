"""What stands in a literal stays in it: no clause around it is taken apart again once it is PostgreSQL's text."""

from __future__ import annotations

import pytest

from tests.cases import in_one_test

HOSTILE = (
    " NULLS x",
    " NULLS FIRST), pg_sleep(0), ('",
    "a DESC",
    " DESC NULLS LAST",
    "x', (SELECT current_user), 'y",
    "DISTINCT ",
    "$$ $1 ? :1 %s {0}",
    "\\",
    '"',
    "--",
    "/* */ ;",
    "::text",
)
pytestmark = pytest.mark.any_driver


def literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


@in_one_test("text", HOSTILE)
@in_one_test(
    ("sql", "expected"),
    [
        ("SELECT PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY IFF('a' = {0}, 1, 2)) FROM T", 2),
        ("SELECT PERCENTILE_DISC(0.5) WITHIN GROUP (ORDER BY IFF({0} = {0}, 1, 2) DESC NULLS LAST) FROM T", 1),
        ("SELECT MIN_BY({0}, IFF(V = {0}, 1, 2)) FROM T", None),
        ("SELECT LISTAGG(DISTINCT {0}, '') WITHIN GROUP (ORDER BY {0} DESC) FROM T", None),
        ("SELECT ARRAY_AGG({0}) WITHIN GROUP (ORDER BY {0})[0]::VARCHAR FROM T", None),
        ("SELECT MAX({0}) OVER (PARTITION BY {0} ORDER BY {0} NULLS FIRST) FROM T LIMIT 1", None),
        ("SELECT {0} FROM T QUALIFY ROW_NUMBER() OVER (ORDER BY {0} DESC) = 1", None),
        ("SELECT COALESCE(NULL, {0}, V) FROM T LIMIT 1", None),
        ("SELECT NVL2({0}, IFF(V = {0}, V, {0}), GREATEST({0}, V)) FROM T LIMIT 1", None),
        ('SELECT "a""; --" FROM (SELECT {0} AS "a""; --" FROM T LIMIT 1)', None),
        ("WITH C AS (SELECT {0} AS L FROM T) SELECT L FROM C QUALIFY ROW_NUMBER() OVER (ORDER BY {0}) = 1", None),
    ],
)
def test_a_literal_survives_every_clause(cursor, sql, expected, text):
    cursor.execute("CREATE OR REPLACE TABLE T (V VARCHAR) AS SELECT COLUMN1 FROM VALUES ('a'), ('b')")

    ((found,),) = cursor.execute(sql.format(literal(text))).fetchall()

    assert found == (text if expected is None else expected)


@in_one_test("text", HOSTILE)
def test_a_literal_survives_a_default(cursor, text):
    cursor.execute(f"CREATE OR REPLACE TABLE D (X NUMBER, L VARCHAR DEFAULT {literal(text)})")
    cursor.execute("INSERT INTO D (X) VALUES (1)")

    assert cursor.execute("SELECT L FROM D").fetchall() == [(text,)]


@in_one_test("text", ["SYSTEM$X", "FROM", "ALL"])
def test_a_word_in_quotes_is_no_word_of_the_statement(cursor, text):
    cursor.execute(f"SELECT '{text}', CURRENT_TIMESTAMP, 1+1, PARSE_JSON('[7]') AS \"ARRAY\", \"ARRAY\"[0]")

    assert [column.name for column in cursor.description][1:4] == ["CURRENT_TIMESTAMP", "1+1", "ARRAY"]
    ((first, _, two, _, element),) = cursor.fetchall()
    assert (first, two, element) == (text, 2, "7")
