"""Sessions and logins, as both majors of the driver use them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import snowflake.connector
from snowflake.connector.errors import Error, ProgrammingError

from tests.processes import PATIENCE_S

MAJOR = int(snowflake.connector.__version__.split(".")[0])


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
