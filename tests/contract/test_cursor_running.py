"""Statements under way: their parameters, timeouts, cancellation, and execution in the background."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from snowflake.connector.errors import Error, ProgrammingError

from tests.processes import PATIENCE_S, wait_until

# Nothing but a cancellation or a timeout ends them.
LONG_QUERY = "SELECT COUNT(*) FROM TABLE(GENERATOR(ROWCOUNT => 100000)) A, TABLE(GENERATOR(ROWCOUNT => 100000)) B"
LONG_WAIT = "SELECT SYSTEM$WAIT(240)"


def running_query_id(cursor: Any, session_id: int) -> str | None:
    """The id of the statement that a session executes now."""
    rows = cursor.execute(
        "SELECT QUERY_ID FROM TABLE(INFORMATION_SCHEMA.QUERY_HISTORY_BY_SESSION("
        f"SESSION_ID => {session_id})) WHERE UPPER(EXECUTION_STATUS) = 'RUNNING'"
    ).fetchall()
    return rows[0][0] if rows else None


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


def test_a_failure_in_the_background_is_raised_when_its_result_is_asked_for(connection, cursor):
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
