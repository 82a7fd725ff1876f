"""Cursors, as both majors of the driver use them: results, counts, binds."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
import snowflake.connector
from snowflake.connector import DictCursor
from snowflake.connector.errors import ProgrammingError

from tests.embedded_server import EmbeddedServer


def requests_with(server: EmbeddedServer, text: str) -> list[dict[str, Any]]:
    """The query requests whose SQL contains a text without characters that a URL would need to escape."""
    assert text.isidentifier()
    return list(server.ask(f"/__loadgen/journal?path=query-request&match={text}"))


# --- rowcount and results --------------------------------------------------------------------------------------------


def test_rowcount_is_the_number_of_selected_or_changed_rows(cursor):
    counts = {}
    for name, statement in {
        "create": "CREATE TABLE T (A INTEGER, B INTEGER)",
        "insert": "INSERT INTO T VALUES (1, 1), (2, 2), (3, 3)",
        "insert select": "INSERT INTO T SELECT A + 10, B FROM T WHERE A > 1",
        "update": "UPDATE T SET B = 0 WHERE A > 10",
        "update none": "UPDATE T SET B = 0 WHERE A > 100",
        "delete": "DELETE FROM T WHERE A = 1",
        "select": "SELECT * FROM T",
        "select none": "SELECT * FROM T WHERE FALSE",
        "merge": "MERGE INTO T USING (SELECT 2 AS K UNION ALL SELECT 99) S ON T.A = S.K"
        " WHEN MATCHED THEN UPDATE SET B = 7 WHEN NOT MATCHED THEN INSERT (A, B) VALUES (S.K, 8)",
    }.items():
        counts[name] = cursor.execute(statement).rowcount

    assert counts == {
        "create": 1,
        "insert": 3,
        "insert select": 2,
        "update": 2,
        "update none": 0,
        "delete": 1,
        "select": 4,
        "select none": 0,
        "merge": 2,
    }


def test_a_change_answers_its_counts_as_a_row(cursor):
    cursor.execute("CREATE TABLE T (A INTEGER)")

    assert cursor.execute("INSERT INTO T VALUES (1), (2)").fetchall() == [(2,)]
    assert cursor.execute("UPDATE T SET A = 5").fetchall() == [(2, 0)]
    assert cursor.execute("DELETE FROM T").fetchall() == [(2,)]


def test_a_compare_and_set_is_answered_by_its_rowcount(cursor):
    cursor.execute("CREATE HYBRID TABLE H (K INTEGER PRIMARY KEY, STATUS VARCHAR)")
    cursor.execute("INSERT INTO H VALUES (?, ?)", (1, "OLD"))

    first = cursor.execute("UPDATE H SET STATUS = ? WHERE K = ? AND STATUS = ?", ("NEW", 1, "OLD")).rowcount
    second = cursor.execute("UPDATE H SET STATUS = ? WHERE K = ? AND STATUS = ?", ("NEW", 1, "OLD")).rowcount

    assert (first, second) == (1, 0)


def test_every_statement_has_a_separate_query_id(cursor):
    ids = [cursor.execute(text).sfqid for text in ("SELECT 1", "SELECT 1", "CREATE TABLE T (A INTEGER)")]

    assert len(set(ids)) == 3
    assert all(len(query_id) == 36 for query_id in ids)
    assert cursor.execute("SELECT LAST_QUERY_ID()").fetchone() == (ids[-1],)


def test_a_failed_statement_has_a_query_id_too(cursor):
    with pytest.raises(ProgrammingError) as caught:
        cursor.execute("SELECT 1 / 0")

    assert caught.value.errno == 100051
    assert caught.value.sqlstate == "22012"
    assert len(caught.value.sfqid or "") == 36


def test_rows_can_be_fetched_one_by_one_in_batches_at_once_and_by_iterating(cursor):
    query = "SELECT SEQ4() FROM TABLE(GENERATOR(ROWCOUNT => 10)) ORDER BY 1"

    cursor.execute(query)
    parts = [
        cursor.fetchone(),
        cursor.fetchmany(3),
        cursor.fetchmany(0),
        cursor.fetchall(),
        cursor.fetchone(),
        cursor.fetchall(),
    ]
    iterated = [row for row in cursor.execute(query)]  # noqa: C416  (iterating is what is tested)

    assert parts == [(0,), [(1,), (2,), (3,)], [], [(n,) for n in range(4, 10)], None, []]
    assert iterated == [(n,) for n in range(10)]


def test_a_dict_cursor_gives_rows_by_column_name(connection):
    cursor = connection.cursor(DictCursor)

    rows = cursor.execute("SELECT 1 AS A, 'x' AS \"b\", COUNT(*) FROM (SELECT 1)").fetchall()

    assert rows == [{"A": 1, "b": "x", "COUNT(*)": 1}]


def test_cursors_of_one_connection_keep_their_results_apart(connection):
    first, second = connection.cursor(), connection.cursor()

    first.execute("SELECT SEQ4() FROM TABLE(GENERATOR(ROWCOUNT => 5)) ORDER BY 1")
    second.execute("SELECT 'other'")

    assert [first.fetchone(), second.fetchone(), first.fetchone()] == [(0,), ("other",), (1,)]
    assert len({first.sfqid, second.sfqid}) == 2


def test_a_cursor_works_again_after_an_error(cursor):
    cursor.execute("CREATE TABLE T (A INTEGER)")
    for broken, errno in (
        ("SELEC 1", 1003),
        ("SELECT * FROM NO_SUCH_TABLE", 2003),
        ("SELECT NO_SUCH_COLUMN FROM T", 904),
        ("SELECT NO_SUCH_FUNCTION(1)", 2140),
        ("INSERT INTO T VALUES ('x')", 100038),
    ):
        with pytest.raises(ProgrammingError) as caught:
            cursor.execute(broken)
        assert caught.value.errno == errno, broken

        assert cursor.execute("SELECT 7").fetchall() == [(7,)]
    assert cursor.execute("SELECT COUNT(*) FROM T").fetchone() == (0,)


@pytest.mark.parametrize(
    ("statement", "sqlstate"),
    [
        ("SELEC 1", "42000"),
        ("SELECT * FROM NO_SUCH_TABLE", "42S02"),  # of tables and views; databases and schemas have 02000
        ("SELECT NO_SUCH_COLUMN", "42000"),
        ("SELECT NO_SUCH_FUNCTION(1)", "42601"),
        ("SELECT 'x'::NUMBER", "22018"),
        ("USE DATABASE NO_SUCH_DATABASE", "02000"),
    ],
)
def test_an_error_has_snowflakes_sqlstate(cursor, statement, sqlstate):
    with pytest.raises(ProgrammingError) as caught:
        cursor.execute(statement)

    assert caught.value.sqlstate == sqlstate


def test_a_null_in_a_column_that_takes_none_is_the_one_integrity_error(cursor):
    cursor.execute("CREATE TABLE T (A INTEGER NOT NULL)")

    with pytest.raises(snowflake.connector.errors.IntegrityError) as caught:
        cursor.execute("INSERT INTO T VALUES (NULL)")

    assert caught.value.errno == 100072


def test_the_driver_can_describe_a_query_without_running_it(cursor):
    cursor.execute("CREATE TABLE T (A INTEGER, B VARCHAR(20))")

    selected = cursor.describe("SELECT A, B, A + 1 AS C FROM T WHERE A = ?", (1,))
    changed = cursor.describe("INSERT INTO T VALUES (1, 'x')")

    assert [(column.name, column.type_code) for column in selected] == [("A", 0), ("B", 2), ("C", 0)]
    assert [column.name for column in changed] == ["number of rows inserted"]
    assert cursor.execute("SELECT COUNT(*) FROM T").fetchone() == (0,)


def test_a_result_of_a_hundred_thousand_rows_arrives_whole(cursor):
    cursor.execute("SELECT SEQ4() AS N, 'row ' || SEQ4() AS S FROM TABLE(GENERATOR(ROWCOUNT => 100000))")

    rows = cursor.fetchall()

    assert cursor.rowcount == 100_000
    assert sorted(rows) == [(n, f"row {n}") for n in range(100_000)]


# --- binds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 1_000, 20_000])
def test_executemany_is_one_request_for_any_number_of_rows(server, cursor, database, count):
    rows = [(n, f"name {n}", n / 4, None if n % 3 == 0 else n % 2 == 0) for n in range(count)]
    cursor.execute(f"CREATE TABLE {database}_MANY (N INTEGER, S VARCHAR, F FLOAT, B BOOLEAN)")

    cursor.executemany(f"INSERT INTO {database}_MANY (N, S, F, B) VALUES (?, ?, ?, ?)", rows)

    assert cursor.rowcount == count
    assert cursor.execute(f"SELECT * FROM {database}_MANY ORDER BY N").fetchall() == rows
    # 5.x asks first, without binds, what the statement is.
    assert [entry["bind_count"] for entry in requests_with(server, f"{database}_MANY") if entry["bind_count"]] == [4]


def test_executemany_that_fails_inserts_nothing(cursor):
    cursor.execute("CREATE HYBRID TABLE H (K INTEGER PRIMARY KEY)")

    with pytest.raises(ProgrammingError) as caught:
        cursor.executemany("INSERT INTO H VALUES (?)", [(1,), (2,), (1,)])

    assert caught.value.errno == 200001
    assert cursor.execute("SELECT COUNT(*) FROM H").fetchone() == (0,)


def test_executemany_may_mix_the_types_of_a_column(cursor):
    cursor.execute("CREATE TABLE T (A NUMBER(12,2), B FLOAT, C VARCHAR)")

    cursor.executemany("INSERT INTO T VALUES (?, ?, ?)", [(1, 1, "a"), (Decimal("2.50"), 2.5, 5), (3, None, None)])

    assert cursor.execute("SELECT * FROM T ORDER BY A").fetchall() == [
        (Decimal("1.00"), 1.0, "a"),
        (Decimal("2.50"), 2.5, "5"),
        (Decimal("3.00"), None, None),
    ]


def test_executemany_of_a_change_runs_once_per_row(cursor):
    cursor.execute("CREATE TABLE T (K INTEGER, V VARCHAR)")
    cursor.executemany("INSERT INTO T VALUES (?, ?)", [(1, "a"), (2, "b"), (3, "c")])

    cursor.executemany("UPDATE T SET V = ? WHERE K = ?", [("x", 1), ("y", 3)])

    assert cursor.execute("SELECT V FROM T ORDER BY K").fetchall() == [("x",), ("b",), ("y",)]


def test_numeric_binds_may_be_used_in_any_order_and_more_than_once(connect):
    cursor = connect(paramstyle="numeric").cursor()

    row = cursor.execute("SELECT :2, :1, :2 || :1", ("a", "b")).fetchone()

    assert row == ("b", "a", "ba")


def test_binds_are_values_and_never_text(cursor):
    cursor.execute("CREATE TABLE T (S VARCHAR)")
    hostile = "x'); DROP TABLE T; --"

    cursor.execute("INSERT INTO T VALUES (?)", (hostile,))

    assert cursor.execute("SELECT S FROM T WHERE S = ?", (hostile,)).fetchall() == [(hostile,)]


def test_a_question_mark_in_a_text_is_no_bind(cursor):
    assert cursor.execute('SELECT \'what?\', ?, "?" FROM (SELECT 1 AS "?") /* ? */', (5,)).fetchall() == [
        ("what?", 5, 1)
    ]
