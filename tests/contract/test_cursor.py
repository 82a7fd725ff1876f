"""Cursors, connections and logins, as both majors of the driver use them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
import snowflake.connector
from snowflake.connector import DictCursor

from tests.embedded_server import EmbeddedServer
from tests.processes import PATIENCE_S, wait_until

MAJOR = int(snowflake.connector.__version__.split(".")[0])
Error = snowflake.connector.errors.Error
ProgrammingError = snowflake.connector.errors.ProgrammingError
# Nothing but a cancellation or a timeout ends them.
LONG_QUERY = "SELECT COUNT(*) FROM TABLE(GENERATOR(ROWCOUNT => 100000)) A, TABLE(GENERATOR(ROWCOUNT => 100000)) B"
LONG_WAIT = "SELECT SYSTEM$WAIT(240)"


def requests_with(server: EmbeddedServer, text: str) -> list[dict[str, Any]]:
    """The query requests whose SQL contains a text without characters that a URL would need to escape."""
    assert text.isidentifier()
    return list(server.ask(f"/__loadgen/journal?path=query-request&match={text}"))


def running_query_id(cursor: Any, session_id: int) -> str | None:
    """The id of the statement that a session executes now."""
    rows = cursor.execute(
        "SELECT QUERY_ID FROM TABLE(INFORMATION_SCHEMA.QUERY_HISTORY_BY_SESSION("
        f"SESSION_ID => {session_id})) WHERE UPPER(EXECUTION_STATUS) = 'RUNNING'"
    ).fetchall()
    return rows[0][0] if rows else None


# --- rowcount and results --------------------------------------------------------------------------------------------


def test_rowcount_says_how_many_rows_were_selected_or_changed(cursor):
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


def test_every_statement_has_a_query_id_of_its_own(cursor):
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
def test_executemany_is_one_request_whatever_the_number_of_rows(server, cursor, database, count):
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


# --- parameters of statements and sessions ---------------------------------------------------------------------------


def test_session_parameters_given_at_login_are_in_force(server, connect):
    cursor = connect(
        session_parameters={"QUERY_TAG": "tag of the login", "LOCK_TIMEOUT": 17, "TIMEZONE": "UTC"}
    ).cursor()

    rows = cursor.execute("SHOW PARAMETERS IN SESSION").fetchall()

    values = {row[0]: row[1] for row in rows}
    assert (values["QUERY_TAG"], values["LOCK_TIMEOUT"], values["TIMEZONE"]) == ("tag of the login", "17", "UTC")


def test_a_query_tag_can_be_given_to_one_statement(server, connect, database):
    cursor = connect(session_parameters={"QUERY_TAG": f"{database} session"}).cursor()

    ids = [
        cursor.execute("SELECT 1").sfqid,
        cursor.execute("SELECT 2", _statement_params={"QUERY_TAG": f"{database} statement"}).sfqid,
        cursor.execute("SELECT 3").sfqid,
    ]

    tags = {line["query_id"]: line["query_tag"] for line in server.ask(f"/__loadgen/history?tag={database}")}
    assert [tags.get(query_id) for query_id in ids] == [
        f"{database} session",
        f"{database} statement",
        f"{database} session",
    ]


@pytest.mark.parametrize("statement", [LONG_WAIT, LONG_QUERY], ids=["waiting", "computing"])
def test_a_statement_timeout_ends_the_statement_with_630(cursor, statement):
    cursor.execute("ALTER SESSION SET STATEMENT_TIMEOUT_IN_SECONDS = 1")

    with pytest.raises(ProgrammingError) as caught:
        cursor.execute(statement)

    assert (caught.value.errno, caught.value.sqlstate) == (630, "57014")
    assert "timeout of 1 second(s)" in str(caught.value)
    assert cursor.execute("SELECT 7", _statement_params={"STATEMENT_TIMEOUT_IN_SECONDS": 60}).fetchall() == [(7,)]


def test_a_timeout_can_be_given_to_one_statement(cursor):
    with pytest.raises(ProgrammingError) as caught:
        cursor.execute(LONG_WAIT, _statement_params={"STATEMENT_TIMEOUT_IN_SECONDS": 1})

    assert caught.value.errno == 630
    assert cursor.execute("SHOW PARAMETERS LIKE 'STATEMENT_TIMEOUT_IN_SECONDS'").fetchone()[1] == "172800"


@pytest.mark.parametrize("statement", [LONG_WAIT, LONG_QUERY], ids=["waiting", "computing"])
def test_another_session_can_cancel_a_statement(connect, statement):
    victim, other = connect(), connect()
    caught: list[Any] = []

    def run() -> None:
        try:
            victim.cursor().execute(statement)
        except Error as error:
            caught.append(error)

    thread = threading.Thread(target=run, name="victim")
    thread.start()
    cursor = other.cursor()
    query_id = wait_until(lambda: running_query_id(cursor, victim.session_id), "the statement runs")
    answer = cursor.execute("SELECT SYSTEM$CANCEL_QUERY(?)", (query_id,)).fetchone()
    thread.join(PATIENCE_S)

    assert answer == (f"query [{query_id}] terminated.",)
    assert [(error.errno, error.sqlstate, error.sfqid) for error in caught] == [(604, "57014", query_id)]
    assert victim.cursor().execute("SELECT 7").fetchall() == [(7,)]


def test_cancelling_what_has_ended_or_never_was_does_no_harm(cursor):
    ended = cursor.execute("SELECT 1").sfqid

    answer = cursor.execute("SELECT SYSTEM$CANCEL_QUERY(?)", (ended,)).fetchone()[0]
    with pytest.raises(ProgrammingError):
        cursor.execute("SELECT SYSTEM$CANCEL_QUERY('no such id')")

    assert "not currently executing" in answer


# --- asynchronous execution ------------------------------------------------------------------------------------------


def test_a_statement_can_run_in_the_background_and_be_fetched_later(connect, connection, cursor):
    cursor.execute("CREATE HYBRID TABLE H (K INTEGER PRIMARY KEY, V INTEGER)")
    cursor.execute("INSERT INTO H VALUES (1, 0)")
    holder = connect().cursor()
    holder.execute("BEGIN")
    holder.execute("UPDATE H SET V = 1 WHERE K = 1")  # what runs in the background must wait for this

    cursor.execute_async("UPDATE H SET V = V + 10 WHERE K = 1")
    query_id = cursor.sfqid
    running = connection.is_still_running(connection.get_query_status(query_id))
    holder.execute("COMMIT")
    cursor.get_results_from_sfqid(query_id)

    assert running
    assert cursor.fetchall() == [(1, 0)]
    assert cursor.description[0].name == "number of rows updated"
    assert connection.get_query_status(query_id).name == "SUCCESS"


def test_another_cursor_can_fetch_what_a_first_one_started(connection):
    first, second = connection.cursor(), connection.cursor()
    first.execute_async("SELECT SEQ4() FROM TABLE(GENERATOR(ROWCOUNT => 1000)) ORDER BY 1")

    second.get_results_from_sfqid(first.sfqid)

    assert second.fetchall() == [(n,) for n in range(1_000)]


def test_a_failure_in_the_background_is_told_to_whoever_asks(connection, cursor):
    cursor.execute_async("SELECT 1 / (SELECT 0)")
    query_id = cursor.sfqid

    status = wait_until(
        lambda: (
            not connection.is_still_running(connection.get_query_status(query_id))
            and connection.get_query_status(query_id)
        ),
        "the statement has ended",
    )
    with pytest.raises(ProgrammingError) as caught:
        connection.get_query_status_throw_if_error(query_id)

    assert status.name == "FAILED_WITH_ERROR"
    assert connection.is_an_error(status)
    assert caught.value.errno == 100051


def test_the_status_of_a_statement_can_be_asked_by_its_id(connection, cursor):
    succeeded = cursor.execute("SELECT 1").sfqid
    with pytest.raises(ProgrammingError) as caught:
        cursor.execute("SELECT 1 / 0")

    statuses = [connection.get_query_status(query_id).name for query_id in (succeeded, caught.value.sfqid)]

    assert statuses == ["SUCCESS", "FAILED_WITH_ERROR"]


def test_a_statement_that_never_was_has_no_status(connection):
    status = connection.get_query_status("01b2c3d4-0000-0000-0000-000000000000")

    assert status.name == "NO_DATA"


def test_a_statement_in_the_background_can_be_aborted_by_its_id(connection, cursor):
    cursor.execute_async(LONG_WAIT)
    query_id = cursor.sfqid

    aborted = cursor.abort_query(query_id)

    assert aborted
    wait_until(
        lambda: not connection.is_still_running(connection.get_query_status(query_id)), "the statement has ended"
    )


def test_a_connection_can_be_asked_whether_it_is_still_good(server, connection):
    number = connection.session_id

    assert connection.is_valid()

    beats = server.ask("/__loadgen/journal?path=/session/heartbeat")
    assert number in [entry["session_id"] for entry in beats]


# --- sessions --------------------------------------------------------------------------------------------------------


def test_closing_a_connection_ends_its_session(server):
    connection = server.connect()
    number = connection.session_id
    opened = server.ask("/__loadgen/stats")["open_sessions"]

    connection.close()

    assert server.ask("/__loadgen/stats")["open_sessions"] == opened - 1
    deletes = server.ask("/__loadgen/journal?path=/session")
    assert number in [entry["session_id"] for entry in deletes if entry["path"] == "/session"]


def test_closing_a_connection_rolls_its_transaction_back(connect):
    first, second = connect(), connect().cursor()
    second.execute("CREATE TABLE T (A INTEGER)")
    cursor = first.cursor()
    cursor.execute("BEGIN")
    cursor.execute("INSERT INTO T VALUES (1)")

    first.close()

    assert second.execute("SELECT COUNT(*) FROM T").fetchone() == (0,)


def test_two_hundred_sessions_at_once_get_their_own_answers(server):
    count = 200
    everyone_in, counted = threading.Barrier(count + 1), threading.Event()
    setup = server.connect(database="CROWD", schema="PUBLIC")
    setup.cursor().execute("CREATE OR REPLACE HYBRID TABLE T (N INTEGER PRIMARY KEY)")
    before = server.ask("/__loadgen/stats")["open_sessions"]

    def client(number: int) -> tuple[list[Any], int]:
        connection = server.connect(database="CROWD", schema="PUBLIC")
        try:
            everyone_in.wait(PATIENCE_S)
            counted.wait(PATIENCE_S)
            cursor = connection.cursor()
            query = "SELECT ?, ? * 2, CURRENT_SESSION()"
            answers = [cursor.execute(query, (number, number)).fetchone() for _ in range(3)]
            cursor.execute("INSERT INTO CROWD.PUBLIC.T VALUES (?)", (number,))
            return answers, connection.session_id
        finally:
            connection.close()

    with ThreadPoolExecutor(count, thread_name_prefix="client") as pool:
        futures = [pool.submit(client, number) for number in range(count)]
        everyone_in.wait(PATIENCE_S)
        opened = server.ask("/__loadgen/stats")["open_sessions"]
        counted.set()
        results = [future.result(PATIENCE_S) for future in futures]

    assert opened == before + count
    assert len({session for _, session in results}) == count
    for number, (answers, session) in enumerate(results):
        assert answers == [(number, number * 2, str(session))] * 3
    assert setup.cursor().execute("SELECT COUNT(*), SUM(N) FROM T").fetchone() == (count, sum(range(count)))
    setup.close()
    assert server.ask("/__loadgen/stats")["open_sessions"] == before - 1


def test_autocommit_off_needs_a_commit(connect):
    writer, reader = connect(autocommit=False), connect().cursor()
    reader.execute("CREATE TABLE T (A INTEGER)")
    cursor = writer.cursor()

    cursor.execute("INSERT INTO T VALUES (1)")
    before = reader.execute("SELECT COUNT(*) FROM T").fetchone()
    writer.commit()
    after = reader.execute("SELECT COUNT(*) FROM T").fetchone()
    cursor.execute("INSERT INTO T VALUES (2)")
    writer.rollback()

    assert (before, after) == ((0,), (1,))
    assert reader.execute("SELECT A FROM T").fetchall() == [(1,)]


def test_autocommit_can_be_switched_during_a_session(connection, connect):
    reader = connect().cursor()
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE T (A INTEGER)")

    connection.autocommit(False)
    cursor.execute("INSERT INTO T VALUES (1)")
    hidden = reader.execute("SELECT COUNT(*) FROM T").fetchone()
    connection.rollback()
    connection.autocommit(True)
    cursor.execute("INSERT INTO T VALUES (2)")

    assert hidden == (0,)
    assert reader.execute("SELECT A FROM T").fetchall() == [(2,)]


def test_commit_and_rollback_without_a_transaction_are_harmless(connection):
    connection.commit()
    connection.rollback()

    assert connection.cursor().execute("SELECT CURRENT_TRANSACTION()").fetchone() == (None,)


def test_the_time_zone_of_a_new_session_is_los_angeles(cursor):
    parameter = cursor.execute("SHOW PARAMETERS LIKE 'TIMEZONE'").fetchone()
    now, today = cursor.execute("SELECT CURRENT_TIMESTAMP(), SYSDATE()").fetchone()

    assert parameter[1] == "America/Los_Angeles"
    assert now.utcoffset() in (timedelta(hours=-8), timedelta(hours=-7))
    assert today.tzinfo is None


# --- logging in ------------------------------------------------------------------------------------------------------


def test_a_login_without_database_has_none_until_it_uses_one(server, database):
    connection = server.connect()
    cursor = connection.cursor()
    before = cursor.execute("SELECT CURRENT_DATABASE(), CURRENT_SCHEMA()").fetchone()

    with pytest.raises(ProgrammingError) as caught:
        cursor.execute("CREATE TABLE T (A INTEGER)")
    cursor.execute(f"CREATE DATABASE {database}")
    after = cursor.execute("SELECT CURRENT_DATABASE(), CURRENT_SCHEMA()").fetchone()
    connection.close()

    assert before == (None, None)
    assert caught.value.errno == 90105
    assert after == (database, "PUBLIC")


def test_what_a_login_names_and_does_not_exist_is_created(server, database):
    connection = server.connect(database=database, schema="fresh", warehouse=f"{database}_wh")
    cursor = connection.cursor()

    row = cursor.execute("SELECT CURRENT_DATABASE(), CURRENT_SCHEMA(), CURRENT_WAREHOUSE()").fetchone()
    listed = cursor.execute(f"SHOW WAREHOUSES LIKE '{database}_WH'").fetchall()
    connection.close()

    assert row == (database, "FRESH", f"{database}_WH")
    assert len(listed) == 1
    assert (connection.database, connection.schema) == (database, "FRESH")


@pytest.mark.parametrize("what", ["DATABASE", "SCHEMA", "WAREHOUSE"])
def test_use_of_an_unknown_object_is_refused_and_changes_nothing(cursor, what):
    before = cursor.execute("SELECT CURRENT_DATABASE(), CURRENT_SCHEMA(), CURRENT_WAREHOUSE()").fetchone()

    with pytest.raises(ProgrammingError) as caught:
        cursor.execute(f"USE {what} NO_SUCH_THING")

    assert (caught.value.errno, caught.value.sqlstate) == (2043, "02000")
    assert cursor.execute("SELECT CURRENT_DATABASE(), CURRENT_SCHEMA(), CURRENT_WAREHOUSE()").fetchone() == before


def test_use_changes_what_the_connection_knows_of_itself(connection, cursor):
    cursor.execute("CREATE SCHEMA SECOND")
    cursor.execute("USE SCHEMA PUBLIC")
    first = connection.schema

    cursor.execute("USE SCHEMA SECOND")

    assert (first, connection.schema) == ("PUBLIC", "SECOND")


def test_a_login_without_a_password_is_refused(server):
    with pytest.raises(Error) as caught:
        server.connect(password="")
    # Neither driver sends such a login, other clients may.
    answer = server.ask("/session/v1/login-request", method="POST", body={"data": {"LOGIN_NAME": "me", "PASSWORD": ""}})

    assert caught.value.errno == (251006 if MAJOR == 4 else 7)
    assert (answer["success"], answer["code"]) == (False, "390100")


def test_any_user_may_log_in_and_is_known_by_the_name_in_capitals(server):
    connection = server.connect(user="jane.doe@example.com", role="analyst")

    row = connection.cursor().execute("SELECT CURRENT_USER(), CURRENT_ROLE()").fetchone()
    connection.close()

    assert row == ("JANE.DOE@EXAMPLE.COM", "ANALYST")


def test_a_closed_connection_refuses_work(connection):
    connection.close()

    with pytest.raises(Error) as caught:
        connection.cursor().execute("SELECT 1")

    assert connection.is_closed()
    assert caught.value.errno == 250002
