"""loadgen's own way into Snowflake against a real server: settings, errors and their kinds."""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from loadgen.errors import ConnectFailed, LoadgenError
from loadgen.model.counts import ErrorCategory
from loadgen.snowflake.connect import close, connect
from loadgen.snowflake.failure import Failure, classify
from loadgen.snowflake.profile import ConnectionProfile
from loadgen.snowflake.settings import ConnectionSettings, probe_settings, query_tag
from tests.contract.connection_builders import MAJOR, control_of, load_of, profile_of
from tests.embedded_server import EmbeddedServer
from tests.processes import PATIENCE_S, wait_until

SETTINGS: dict[str, Callable[[ConnectionProfile], ConnectionSettings]] = {
    "load": load_of,
    "control": control_of,
    "probe": lambda profile: probe_settings(profile, major=MAJOR),
}
every_purpose = pytest.mark.parametrize("purpose", SETTINGS)


def classified(cursor: Any, sql: str, *binds: Any) -> Failure:
    try:
        cursor.execute(sql, binds) if binds else cursor.execute(sql)
    except Exception as error:  # classify() must accept every error of the driver
        return classify(error)
    raise AssertionError("the statement succeeded")


# --- opening and closing ---------------------------------------------------------------------------------------------


@every_purpose
def test_a_connection_opens_works_and_closes_without_output(profile, caplog, capfd, purpose):
    with warnings.catch_warnings(record=True) as warned, caplog.at_level(logging.WARNING):
        warnings.simplefilter("always")
        connection = connect(profile, SETTINGS[purpose](profile))
        rows = connection.cursor().execute("SELECT 1").fetchall()
        close(connection)

    printed = capfd.readouterr()
    assert rows == [(1,)]
    assert connection.is_closed()
    assert [str(warning.message) for warning in warned] == []
    assert [record.getMessage() for record in caplog.records] == []
    assert (printed.out, printed.err) == ("", "")


@every_purpose
def test_the_session_parameters_arrive(open_connection, profile, purpose):
    cursor = open_connection(SETTINGS[purpose](profile)).cursor()

    values = {row[0]: row[1] for row in cursor.execute("SHOW PARAMETERS IN SESSION").fetchall()}

    common = {
        "TIMEZONE": "UTC",
        "AUTOCOMMIT": "true",
        "ABORT_DETACHED_QUERY": "true",
        "CLIENT_TELEMETRY_ENABLED": "false",
    }
    own = {
        "load": {"USE_CACHED_RESULT": "false", "STATEMENT_TIMEOUT_IN_SECONDS": "20", "QUERY_TAG": "load"},
        "control": {
            "STATEMENT_TIMEOUT_IN_SECONDS": "8",
            "QUERY_TAG": "control",
            "READ_LATEST_WRITES": "true",
            "HYBRID_TABLE_LOCK_TIMEOUT": "5",
        },
        "probe": {"STATEMENT_TIMEOUT_IN_SECONDS": "10", "QUERY_TAG": '{"app": "loadgen"}'},
    }[purpose]
    expected = common | own
    assert {name: values.get(name) for name in expected} == expected


def test_sessions_are_in_utc_in_every_account(open_connection):
    now, clock = open_connection().cursor().execute("SELECT CURRENT_TIMESTAMP(), SYSDATE()").fetchone()

    assert now.utcoffset().total_seconds() == 0
    assert abs((now.replace(tzinfo=None) - clock).total_seconds()) < 60  # other zones are half an hour away at least


def test_the_tag_of_a_load_session_joins_the_history_to_the_run(server, open_connection, profile, database):
    tag = query_tag(run=database, worker="worker-0", phase="MEASURE", step=3)
    cursor = open_connection(load_of(profile, tag=tag)).cursor()
    cursor.execute("SELECT 1")

    (line,) = server.ask(f"/__loadgen/history?tag={database}")

    assert json.loads(line["query_tag"]) == {
        "app": "loadgen", "run": database, "worker": "worker-0", "phase": "MEASURE", "step": 3,
    }  # fmt: skip
    assert line["query_id"] == cursor.sfqid


@every_purpose
def test_a_connection_makes_no_request_but_login_statements_and_logout(server, profile, purpose):
    connection = connect(profile, SETTINGS[purpose](profile))
    number = connection.session_id
    cursor = connection.cursor()
    for value in range(120):  # 4.x would send its telemetry after a hundred events
        cursor.execute("SELECT ?", (value,)).fetchall()
    close(connection)

    paths = [entry["path"] for entry in server.ask("/__loadgen/journal") if entry["session_id"] == number]
    telemetry = [entry for entry in server.ask("/__loadgen/journal?path=telemetry") if entry["session_id"] == number]

    assert paths == ["/session/v1/login-request", *["/queries/v1/query-request"] * 120, "/session"]
    assert telemetry == []


def test_closing_twice_is_harmless(profile):
    connection = connect(profile, load_of(profile))

    close(connection)
    close(connection)

    assert connection.is_closed()


def test_binds_go_to_the_server(server, open_connection, database):
    cursor = open_connection().cursor()

    cursor.execute(f"SELECT ? AS BOUND_{database}", ("value",))

    (entry,) = server.ask(f"/__loadgen/journal?match=BOUND_{database}")
    assert (entry["sql_text"], entry["bind_count"]) == (f"SELECT ? AS BOUND_{database}", 1)


# --- kinds of failure ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "code", "category"),
    [
        ("SELEC 1", 1003, ErrorCategory.CONFIGURATION),
        ("SELECT * FROM NO_SUCH_TABLE", 2003, ErrorCategory.CONFIGURATION),
        ("USE DATABASE NO_SUCH_DATABASE", 2043, ErrorCategory.CONFIGURATION),
        ("SELECT NO_SUCH_COLUMN FROM H", 904, ErrorCategory.CONFIGURATION),
        ("SELECT 1 / 0", 100051, ErrorCategory.SNOWFLAKE_ERROR),
        ("SELECT 'x'::NUMBER", 100038, ErrorCategory.SNOWFLAKE_ERROR),
        ("INSERT INTO H VALUES (1, 2)", 200001, ErrorCategory.SNOWFLAKE_ERROR),
        ("INSERT INTO H VALUES (NULL, 2)", 100072, ErrorCategory.SNOWFLAKE_ERROR),
        ("UPDATE H SET V = 1 WHERE K = 1 RETURNING V", 1003, ErrorCategory.CONFIGURATION),
    ],
)
def test_an_error_of_the_server_is_classified_by_its_number(open_connection, sql, code, category):
    cursor = open_connection().cursor()
    cursor.execute("CREATE HYBRID TABLE H (K INTEGER NOT NULL PRIMARY KEY, V INTEGER)")
    cursor.execute("INSERT INTO H VALUES (1, 1)")

    failure = classified(cursor, sql)

    assert (failure.code, failure.category) == (code, category)
    assert failure.query_id is not None
    assert len(failure.query_id) == 36
    assert failure.is_duplicate_key is (code == 200001)
    assert not failure.unknown_outcome
    assert not failure.session_lost
    assert cursor.execute("SELECT 7").fetchall() == [(7,)]


def test_a_unique_constraint_refuses_as_a_duplicate_key(open_connection):
    cursor = open_connection().cursor()
    cursor.execute("CREATE HYBRID TABLE H (K INTEGER PRIMARY KEY, E VARCHAR(36), UNIQUE (E))")
    cursor.execute("INSERT INTO H VALUES (1, 'same')")

    failure = classified(cursor, "INSERT INTO H VALUES (?, ?)", 2, "same")

    assert failure.is_duplicate_key
    assert failure.category is ErrorCategory.SNOWFLAKE_ERROR


def test_the_statement_limit_ends_a_statement_as_a_timeout(open_connection, profile):
    cursor = open_connection(load_of(profile, statement_limit_s=1)).cursor()

    failure = classified(cursor, "SELECT SYSTEM$WAIT(240)")

    assert (failure.code, failure.category) == (630, ErrorCategory.QUERY_TIMEOUT)
    assert not failure.unknown_outcome


def test_a_lock_that_is_not_released_in_time_is_a_conflict(open_connection, profile):
    holder, waiter = open_connection().cursor(), open_connection(control_of(profile)).cursor()
    holder.execute("CREATE HYBRID TABLE H (K INTEGER PRIMARY KEY, V INTEGER)")
    holder.execute("INSERT INTO H VALUES (1, 0)")
    holder.execute("BEGIN")
    holder.execute("UPDATE H SET V = 1 WHERE K = 1")
    waiter.execute("ALTER SESSION SET HYBRID_TABLE_LOCK_TIMEOUT = 1")

    failure = classified(waiter, "UPDATE H SET V = 2 WHERE K = 1")
    holder.execute("ROLLBACK")

    assert failure.category is ErrorCategory.SNOWFLAKE_ERROR
    assert failure.is_lock_conflict
    assert failure.retryable
    assert waiter.execute("UPDATE H SET V = 2 WHERE K = 1").rowcount == 1


def test_a_cancelled_statement_is_known_as_such(open_connection):
    victim, other = open_connection(), open_connection().cursor()
    caught: list[Failure] = []
    thread = threading.Thread(
        target=lambda: caught.append(classified(victim.cursor(), "SELECT SYSTEM$WAIT(240)")), name="victim"
    )
    thread.start()

    def cancelled() -> bool:
        answer = other.execute(f"SELECT SYSTEM$CANCEL_ALL_QUERIES({victim.session_id})").fetchone()
        return not answer[0].startswith("0")

    wait_until(cancelled, "it is cancelled")
    thread.join(PATIENCE_S)

    (failure,) = caught
    assert failure.code == 604
    assert failure.cancelled


@pytest.mark.parametrize("purpose", ["load", "probe", "control"])
def test_a_port_without_a_listener_is_reported_with_a_remedy(closed_port, purpose):
    profile = profile_of(f"127.0.0.1:{closed_port}")

    with pytest.raises(ConnectFailed) as caught:
        connect(profile, SETTINGS[purpose](profile))

    assert f"nothing listens at 127.0.0.1:{closed_port}" in str(caught.value)
    assert "loadgen embedded serve" in caught.value.remedy
    assert caught.value.exit_code == 3
    assert caught.value.__cause__ is not None
    assert classify(caught.value.__cause__).category is ErrorCategory.CONNECTION


def test_a_rejected_login_is_reported_with_a_remedy(server, profile):
    server.fault(match="/session/v1/login-request", kind="error", errno=390100, sqlstate="28000",
                 message="Incorrect username or password was specified.")  # fmt: skip

    with pytest.raises(LoadgenError) as caught:
        connect(profile, load_of(profile))

    assert "or password is wrong" in str(caught.value)


def test_a_server_that_is_killed_under_a_session_is_a_lost_connection():
    """The only test that needs a separate server. The null engine is enough, and starts quickly."""
    with EmbeddedServer("--engine", "null") as own:
        profile = profile_of(own.address)
        load, control = connect(profile, load_of(profile)), connect(profile, control_of(profile, statement_limit_s=1))
        assert load.cursor().execute("SELECT 1").fetchall() == [(1,)]
        own.stop(signal.SIGKILL)

        failures = [classified(connection.cursor(), "SELECT 1") for connection in (load, control)]
        for connection in (load, control):
            close(connection)
        with pytest.raises(ConnectFailed) as caught:
            connect(profile, load_of(profile))

    assert [failure.category for failure in failures] == [ErrorCategory.CONNECTION] * 2
    assert all(failure.retryable for failure in failures)
    assert "nothing listens" in str(caught.value)


# --- work of the driver that has no use ------------------------------------------------------------------------------


def test_a_statement_is_not_inspected_for_telemetry_and_its_debug_events_are_dropped(
    profile: ConnectionProfile, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[str] = []

    def watch(frame: Any, event: str, _: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)

    connection = connect(profile, load_of(profile))
    try:
        cursor = connection.cursor()
        sys.setprofile(watch)
        try:
            cursor.execute("SELECT ?", (1,))
            rows = cursor.fetchall()
        finally:
            sys.setprofile(None)
    finally:
        close(connection)

    assert rows == [(1,)]
    assert not {"_send_api_usage", "_passed_argument_names", "_get_sf_core_stdlib_logger"} & set(called)
    if MAJOR >= 5:
        assert called.count("_logger_callback") > 5  # else there is nothing left to be saved
        assert told_of_the_core(caplog) == ["an error", "a warning"]


def told_of_the_core(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What comes through of an event of each level."""
    from snowflake.connector._internal import api_client

    caplog.clear()
    for level, text in enumerate(("an error", "a warning", "news", "details")):
        api_client._logger_callback(level, text, "core.rs", 1, "f", "snowflake.connector.anything")
    return [record.message for record in caplog.records]
