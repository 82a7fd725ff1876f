"""What answers that do not come, and errors of the server, look like through the real driver, per major."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from loadgen.errors import ConnectFailed
from loadgen.model.counts import ErrorCategory
from loadgen.snowflake.connect import close, connect
from loadgen.snowflake.failure import classify, describe
from tests.contract.connection_builders import MAJOR, control_of, load_of, profile_of
from tests.contract.fault_builders import Statement, failure_of, shown
from tests.embedded_server import EmbeddedServer
from tests.processes import PATIENCE_S, wait_until

# --- no answer -------------------------------------------------------------------------------------------------------


def waits_a_second(server: EmbeddedServer, database: str, *, for_the_socket: bool = False) -> Any:
    """A connection whose statements are given up after a second; logging in may take longer."""
    if MAJOR >= 5:
        return server.connect(database=database, schema="PUBLIC", query_timeout=1)
    connection = server.connect(database=database, schema="PUBLIC")
    connection._network_timeout = 1
    connection._socket_timeout = 1 if for_the_socket else None
    return connection


def works(connection: Any) -> bool:
    try:
        return bool(connection.cursor().execute("SELECT 7").fetchall() == [(7,)])
    except Exception as error:
        if classify(error).category is not ErrorCategory.CONNECTION:
            raise
        return False  # a second was not enough for it


def test_a_client_limit_ends_a_statement_that_gets_no_answer_and_aborts_it_on_the_server(server, database):
    connection = waits_a_second(server, database, for_the_socket=True)
    hanging = Statement(server, database)
    hanging.fault(kind="hang")

    error = failure_of(connection, hanging.sql)

    def aborts() -> list[dict[str, Any]]:
        entries = server.ask("/__loadgen/journal?path=abort-request")
        return [entry for entry in entries if entry["session_id"] == connection.session_id]

    seen = wait_until(aborts, "it is aborted")  # 5.x does not wait for the answer to its abort
    wait_until(lambda: hanging.requests, "it is over")  # only then it is in the journal
    server.clear_faults()
    wait_until(lambda: works(connection), "the connection works again")
    connection.close()
    assert shown(error) == (("OperationalError", 14) if MAJOR >= 5 else ("OperationalError", 250003))
    assert getattr(error, "sqlstate", None) == ("HYT00" if MAJOR >= 5 else "n/a")
    assert classify(error).category is ErrorCategory.CONNECTION
    assert classify(error).unknown_outcome
    assert len(seen) == 1
    assert [entry["outcome"] for entry in hanging.requests] == ["fault hang"]


def test_an_abort_request_ends_the_statement_on_the_server(server, database):
    """The server works, but longer than the client waits."""
    connection = waits_a_second(server, database)
    sql = f"SELECT SYSTEM$WAIT(240) AS ABORTED_{database}"

    error = failure_of(connection, sql)

    # 5.x does not wait for the answer to its abort.
    lines = wait_until(
        lambda: [line for line in server.ask("/__loadgen/history") if line["sql_text"] == sql], "it is over"
    )
    connection.close()
    # 4.x learns of its abort from the server, 5.x stops listening.
    assert shown(error) == (("OperationalError", 14) if MAJOR >= 5 else ("ProgrammingError", 604))
    assert [line["error_code"] for line in lines] == [604]


def test_a_hang_of_bounded_time_ends_in_a_lost_connection(load, statement):
    statement.fault(kind="hang", ms=300, count=1)

    error = failure_of(load, statement.sql)

    assert classify(error).category is ErrorCategory.CONNECTION
    assert [entry["outcome"] for entry in statement.requests] == ["fault hang (timeout)"]
    assert statement.executions == 0


# --- answers of the server -------------------------------------------------------------------------------------------


def test_latency_delays_and_changes_nothing_else(server, load, statement):
    statement.fault(kind="latency", ms=200)

    rows = load.cursor().execute(statement.sql).fetchall()

    (request,) = statement.requests
    assert rows == [(7,)]
    assert request["duration_ms"] >= 200
    assert request["outcome"] == "fault latency"


@pytest.mark.parametrize(
    ("errno", "sqlstate", "category"),
    [
        (625, "57014", ErrorCategory.SNOWFLAKE_ERROR),
        (630, "57014", ErrorCategory.QUERY_TIMEOUT),
        (604, "57014", ErrorCategory.SNOWFLAKE_ERROR),
        (200001, "22000", ErrorCategory.SNOWFLAKE_ERROR),
        (100051, "22012", ErrorCategory.SNOWFLAKE_ERROR),
        (2003, "42S02", ErrorCategory.CONFIGURATION),
        (390111, "08001", ErrorCategory.CONNECTION),
    ],
)
def test_an_error_of_the_server_keeps_its_number_state_and_text(load, statement, errno, sqlstate, category):
    statement.fault(kind="error", errno=errno, sqlstate=sqlstate, message="as the test wanted")

    error = failure_of(load, statement.sql)

    failure = classify(error)
    assert (failure.code, failure.sqlstate, failure.category) == (errno, sqlstate, category)
    assert describe(error) == "as the test wanted"
    assert len(statement.requests) == 1


def test_an_expired_session_is_an_error_on_both_kinds_of_connection(load, retrying, statement):
    statement.fault(kind="error", errno=390111, sqlstate="08001")

    errors = [failure_of(connection, statement.sql) for connection in (load, retrying)]

    assert [shown(error) for error in errors] == [("ProgrammingError", 390111)] * 2
    assert all(classify(error).session_lost for error in errors)
    assert len(statement.requests) == 2


@pytest.mark.filterwarnings("ignore:`ReauthenticationRequest`:FutureWarning")  # 5.x about its own next release
def test_a_master_token_that_expired_needs_a_new_login(load, statement):
    statement.fault(kind="error", errno=390114, sqlstate="08001")

    failure = classify(failure_of(load, statement.sql))

    assert (failure.code, failure.category) == (390114, ErrorCategory.CONNECTION)
    assert failure.session_lost


def test_a_session_that_an_administrator_ended_is_lost(load, retrying, statement):
    retrying.cursor().execute(f"SELECT SYSTEM$ABORT_SESSION({load.session_id})")

    error = failure_of(load, statement.sql)

    assert shown(error) == ("ProgrammingError", 390111)
    assert classify(error).session_lost


def test_an_expired_session_is_renewed_without_a_warning(server, load, statement):
    number = load.session_id
    statement.fault(kind="expire_session", count=1)

    rows = load.cursor().execute(statement.sql).fetchall()

    renewals = [entry for entry in server.ask("/__loadgen/journal?path=token-request") if entry["session_id"] == number]
    assert rows == [(7,)]
    assert load.session_id == number
    assert len(renewals) == 1
    assert [entry["outcome"] for entry in statement.requests] == ["fault expire_session", "ok"]
    assert statement.executions == 1
    assert load.cursor().execute("SELECT CURRENT_SESSION()").fetchone() == (str(number),)


def test_an_expired_session_that_cannot_be_renewed_is_lost(server, load, statement):
    statement.fault(kind="expire_session", count=1)
    server.fault(match="/session/token-request", kind="error", errno=390114, sqlstate="08001", count=20)

    error = failure_of(load, statement.sql)

    failure = classify(error)
    assert shown(error) == (("DatabaseError", 250001) if MAJOR >= 5 else ("ProgrammingError", 390114))
    assert failure.category is ErrorCategory.CONNECTION
    assert failure.session_lost
    assert statement.executions == 0


def test_an_error_text_of_a_megabyte_arrives_whole_and_is_described_briefly(load, statement):
    statement.fault(kind="big_error", errno=100183)

    error = failure_of(load, statement.sql)

    assert shown(error) == ("ProgrammingError", 100183)
    assert len(str(error)) > 1_000_000
    assert len(describe(error)) <= 2_000
    assert len(statement.requests) == 1


# --- logging in and out ----------------------------------------------------------------------------------------------


def test_a_share_of_all_logins_can_be_refused(fresh, database):
    fresh.fault(match="/session/v1/login-request", kind="error", errno=390100, sqlstate="28000", probability=0.3)
    profile, refused = profile_of(fresh.address, database=database), []

    for _ in range(40):
        try:
            close(connect(profile, control_of(profile)))
        except ConnectFailed as error:
            refused.append(str(error))

    (rule,) = fresh.ask("/__loadgen/faults")
    assert rule["fired"] == len(refused)
    assert 3 <= len(refused) <= 22
    assert all("or password is wrong" in text for text in refused)


def test_a_login_that_fails_once_with_503_is_a_failed_login_for_load(server, profile):
    server.fault(match="/session/v1/login-request", kind="http_status", status=503)

    with pytest.raises(ConnectFailed) as caught:
        connect(profile, load_of(profile))

    assert "not available at the moment" in str(caught.value)


def test_a_server_that_does_not_answer_logout_delays_closing_by_little(server, profile):
    connection = connect(profile, load_of(profile))
    since_ms = server.now_ms()
    # Without its limits the driver would wait longer than this for an answer: 15 s (5.x) or 30 s (4.x).
    server.fault(match="/session$", kind="hang", ms=14_000)
    closing = threading.Thread(target=close, args=(connection,), name="closer", daemon=True)
    closing.start()

    def logouts() -> list[str]:
        entries = server.ask(f"/__loadgen/journal?path=/session&since={since_ms}")
        return [entry["outcome"] for entry in entries if entry["path"] == "/session"]

    outcomes = wait_until(logouts, "the logout is over")
    closing.join(PATIENCE_S)

    assert not closing.is_alive()
    assert outcomes == ["fault hang"]  # the client went away before the time was over
