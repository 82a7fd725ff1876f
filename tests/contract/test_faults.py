"""What each fault looks like through the real driver, per major: the facts that retries and counts are built on.

`load` connections are the measured ones: one attempt, whatever happens. `retrying` ones are as other programs open
them: the driver tries again. How many requests a statement really was is read from the server's journal, what it did
from the table.
"""

from __future__ import annotations

import json
import threading
import urllib.error
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from loadgen.errors import ConnectFailed
from loadgen.model.outcome import ErrorCategory
from loadgen.snowflake import driver
from loadgen.snowflake.connect import close, connect
from loadgen.snowflake.failure import NotRetried, classify, describe
from loadgen.snowflake.lookup import EMBEDDED_ADDRESS, find_profile
from loadgen.snowflake.profile import Profile
from loadgen.snowflake.settings import control_settings, load_settings
from tests.embedded_server import EmbeddedServer
from tests.processes import PATIENCE_S, wait_until

MAJOR = driver.major()
HTML = "<html><body>Bad gateway</body></html>"
ATTEMPTS = 4  # of a retrying connection of 5.x

Open = Callable[[], Any]


def profile_of(server: EmbeddedServer, database: str) -> Profile:
    return find_profile(
        "embedded",
        environ={EMBEDDED_ADDRESS: server.address},
        overrides={"database": database, "schema": "PUBLIC"},
    )


@pytest.fixture
def profile(server: EmbeddedServer, database: str) -> Profile:
    return profile_of(server, database)


@pytest.fixture
def fresh() -> Iterator[EmbeddedServer]:
    """A server without a past: what its first rule draws is the same every time."""
    with EmbeddedServer("--engine", "null", "--seed", "7") as running:
        yield running


@pytest.fixture
def load(profile: Profile) -> Iterator[Any]:
    connection = connect(profile, load_settings(profile, major=MAJOR, statement_limit_s=20, tag="load"))
    yield connection
    close(connection)


def retrying_connection(profile: Profile, limit_s: int) -> Any:
    """One of a driver that tries again: 4.x until its time is over, 5.x as often as it may."""
    settings = control_settings(profile, major=MAJOR, tag="retrying", statement_limit_s=60)
    arguments = {key: value for key, value in settings.arguments.items() if key != "backoff_policy"}
    more = {"retry_max_attempts": ATTEMPTS} if MAJOR >= 5 else {"network_timeout": limit_s}
    return connect(profile, replace(settings, arguments=arguments | more))


@pytest.fixture
def retrying(profile: Profile) -> Iterator[Any]:
    """It has the time to get over what passes."""
    connection = retrying_connection(profile, 60)
    yield connection
    close(connection)


@pytest.fixture
def giving_up(profile: Profile) -> Iterator[Any]:
    """It has no time left after a few attempts."""
    connection = retrying_connection(profile, 5)
    yield connection
    close(connection)


class Statement:
    """One statement that nobody else sends, so that faults and the journal can be told to look for it."""

    def __init__(self, server: EmbeddedServer, database: str) -> None:
        self._server = server
        self._since_ms = server.now_ms()
        self.mark = f"MARK_{database}"
        self.sql = f"SELECT 7 AS {self.mark}"

    def fault(self, **rule: Any) -> None:
        self._server.fault(match=self.mark, **rule)

    @property
    def requests(self) -> list[dict[str, Any]]:
        return list(self._server.ask(f"/__loadgen/journal?match={self.mark}&since={self._since_ms}"))

    @property
    def executions(self) -> int:
        lines = self._server.ask(f"/__loadgen/history?since={self._since_ms}")
        return sum(self.mark in line["sql_text"] for line in lines)


@pytest.fixture
def statement(server: EmbeddedServer, database: str) -> Statement:
    return Statement(server, database)


def failure_of(connection: Any, sql: str) -> Exception:
    """What the statement raises; afterwards the connection must work, or say that it is lost."""
    try:
        connection.cursor().execute(sql).fetchall()
    except Exception as error:  # 4.x lets exceptions of its HTTP library through
        return error
    raise AssertionError("the statement succeeded")


def shown(error: Exception) -> tuple[str, int | None]:
    """The class and the number an application sees; behind NotRetried, what was not retried."""
    failure = classify(error)
    return type(error).__name__, failure.code


# --- one attempt -----------------------------------------------------------------------------------------------------

# fault, (class, number) in 5.x, (class, number) in 4.x, whether the statement may have been executed in 4.x
LOAD_FAULTS: list[tuple[dict[str, Any], tuple[str, int | None], tuple[str, int | None], bool]] = [
    ({"kind": "http_status", "status": 503}, ("OperationalError", 4), ("NotRetried", 290503), True),
    ({"kind": "http_status", "status": 429}, ("OperationalError", 4), ("NotRetried", 290429), False),
    ({"kind": "http_status", "status": 403}, ("InternalError", 6), ("NotRetried", 290403), False),
    ({"kind": "http_status", "status": 502, "message": HTML}, ("OperationalError", 4), ("NotRetried", 290502), True),
    ({"kind": "http_status", "status": 200, "message": HTML}, ("InternalError", 6), ("NotRetried", None), True),
    ({"kind": "reset"}, ("OperationalError", 4), ("NotRetried", None), True),
    ({"kind": "truncate"}, ("InternalError", 6), ("ChunkedEncodingError", None), True),
    ({"kind": "drop_reply"}, ("OperationalError", 4), ("NotRetried", None), True),
]
LOAD_IDS = ["-".join(str(value) for key, value in row[0].items() if key != "message") for row in LOAD_FAULTS]


@pytest.mark.parametrize(("fault", "in_5", "in_4", "unknown_in_4"), LOAD_FAULTS, ids=LOAD_IDS)
def test_a_measured_statement_is_sent_exactly_once(load, statement, fault, in_5, in_4, unknown_in_4):
    statement.fault(**fault)

    error = failure_of(load, statement.sql)

    failure = classify(error)
    assert [request["retry_count"] for request in statement.requests] == [0]
    assert shown(error) == (in_5 if MAJOR >= 5 else in_4)
    assert failure.category is ErrorCategory.CONNECTION
    assert failure.retryable
    assert failure.unknown_outcome is (True if MAJOR >= 5 else unknown_in_4)
    assert not failure.session_lost


@pytest.mark.parametrize("fault", [row[0] for row in LOAD_FAULTS], ids=LOAD_IDS)
def test_a_connection_works_again_after_the_fault(load, statement, fault):
    statement.fault(count=1, **fault)
    failure_of(load, statement.sql)

    rows = load.cursor().execute(statement.sql).fetchall()

    assert rows == [(7,)]


def test_what_was_not_retried_is_described_by_its_cause(load, statement):
    statement.fault(kind="http_status", status=503)

    error = failure_of(load, statement.sql)

    # 5.x has an option that forbids the second attempt; in 4.x only an exception can.
    assert isinstance(error, NotRetried) is (MAJOR == 4)
    assert "503" in describe(error)


# --- several attempts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "http_status", "status": 503},
        {"kind": "http_status", "status": 429},
        {"kind": "http_status", "status": 502, "message": HTML},
        {"kind": "reset"},
    ],
    ids=["503", "429", "502", "reset"],
)
def test_a_retried_statement_survives_a_fault_that_passes(retrying, statement, fault):
    statement.fault(count=1, **fault)

    rows = retrying.cursor().execute(statement.sql).fetchall()

    requests = statement.requests
    assert rows == [(7,)]
    assert [request["retry_count"] for request in requests] == [0, 1]
    assert len({request["request_id"] for request in requests}) == 1
    assert statement.executions == 1


@pytest.mark.parametrize(
    ("fault", "in_5", "in_4"),
    [
        ({"kind": "http_status", "status": 503}, ("OperationalError", 4), ("ServiceUnavailableError", 580503)),
        pytest.param(
            *({"kind": "http_status", "status": 429}, ("OperationalError", 4), ("TooManyRequests", 580429)),
            marks=pytest.mark.slow,  # as 503, and 4.x takes as long
        ),
        ({"kind": "reset"}, ("OperationalError", 4), ("OperationalError", 250003)),
    ],
    ids=["503", "429", "reset"],
)
def test_a_retried_statement_gives_up_on_a_fault_that_stays(giving_up, statement, fault, in_5, in_4):
    statement.fault(**fault)

    error = failure_of(giving_up, statement.sql)

    counts = [request["retry_count"] for request in statement.requests]
    assert counts == list(range(ATTEMPTS if MAJOR >= 5 else len(counts)))
    assert len(counts) > 1
    assert shown(error) == (in_5 if MAJOR >= 5 else in_4)
    assert classify(error).category is ErrorCategory.CONNECTION
    assert statement.executions == 0


@pytest.mark.parametrize(
    "fault", [{"status": 403}, {"status": 200, "message": HTML}], ids=["forbidden", "html instead of json"]
)
def test_a_refusal_at_the_door_is_final_in_5_and_tried_again_in_4(retrying, statement, fault):
    statement.fault(kind="http_status", count=1, **fault)

    if MAJOR >= 5:
        error = failure_of(retrying, statement.sql)
        assert shown(error) == ("InternalError", 6)
        assert len(statement.requests) == 1
    else:
        assert retrying.cursor().execute(statement.sql).fetchall() == [(7,)]
        assert len(statement.requests) == 2


def test_a_cut_answer_is_not_tried_again_even_by_a_retrying_driver(retrying, statement):
    statement.fault(kind="truncate", count=1)

    error = failure_of(retrying, statement.sql)

    assert shown(error) == (("InternalError", 6) if MAJOR >= 5 else ("ChunkedEncodingError", None))
    assert classify(error).unknown_outcome
    assert len(statement.requests) == statement.executions == 1


# --- the answer is lost, the work is done ----------------------------------------------------------------------------


def test_an_insert_whose_answer_was_lost_has_happened_once(server, load, database):
    cursor = load.cursor()
    cursor.execute(f"CREATE TABLE LOST_{database} (A INTEGER)")
    server.fault(match=f"INSERT INTO LOST_{database}", kind="drop_reply", count=1)

    error = failure_of(load, f"INSERT INTO LOST_{database} VALUES (1)")

    assert classify(error).unknown_outcome
    assert cursor.execute(f"SELECT COUNT(*) FROM LOST_{database}").fetchone() == (1,)


def test_an_insert_that_the_driver_sent_again_has_happened_once(server, retrying, database):
    """The second request carries the id of the first: the server gives the first answer again."""
    cursor = retrying.cursor()
    cursor.execute(f"CREATE TABLE TWICE_{database} (A INTEGER)")
    server.fault(match=f"INSERT INTO TWICE_{database}", kind="drop_reply", count=1)

    rowcount = cursor.execute(f"INSERT INTO TWICE_{database} VALUES (1)").rowcount

    inserts = [
        (entry["outcome"], entry["retry_count"])
        for entry in server.ask(f"/__loadgen/journal?match=TWICE_{database}")
        if entry["sql_text"].startswith("INSERT")
    ]
    assert rowcount == 1
    assert inserts == [("fault drop_reply", 0), ("repeated", 1)]
    assert cursor.execute(f"SELECT COUNT(*) FROM TWICE_{database}").fetchone() == (1,)


def test_a_cut_answer_to_an_insert_leaves_one_row(server, load, database):
    cursor = load.cursor()
    cursor.execute(f"CREATE TABLE CUT_{database} (A INTEGER)")
    server.fault(match=f"INSERT INTO CUT_{database}", kind="truncate", count=1)

    failure_of(load, f"INSERT INTO CUT_{database} VALUES (1)")

    assert cursor.execute(f"SELECT COUNT(*) FROM CUT_{database}").fetchone() == (1,)


@pytest.mark.parametrize("kind", ["reset", "http_status", "error", "big_error"])
def test_a_fault_that_strikes_first_leaves_nothing_behind(server, load, database, kind):
    cursor = load.cursor()
    cursor.execute(f"CREATE TABLE NONE_{database} (A INTEGER)")
    more = {"http_status": {"status": 503}, "error": {"errno": 625}}.get(kind, {})
    server.fault(match=f"INSERT INTO NONE_{database}", kind=kind, **more)

    failure_of(load, f"INSERT INTO NONE_{database} VALUES (1)")

    assert cursor.execute(f"SELECT COUNT(*) FROM NONE_{database}").fetchone() == (0,)


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
    # 4.x hears of its own abort from the server, 5.x stops listening.
    assert shown(error) == (("OperationalError", 14) if MAJOR >= 5 else ("ProgrammingError", 604))
    assert [line["error_code"] for line in lines] == [604]


def test_a_hang_of_bounded_time_ends_in_a_lost_connection(load, statement):
    statement.fault(kind="hang", ms=300, count=1)

    error = failure_of(load, statement.sql)

    assert classify(error).category is ErrorCategory.CONNECTION
    assert [entry["outcome"] for entry in statement.requests] == ["fault hang (time over)"]
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


def test_a_session_that_is_gone_is_an_error_on_both_kinds_of_connection(load, retrying, statement):
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


def test_an_expired_session_is_renewed_without_a_word(server, load, statement):
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
    profile, refused = profile_of(fresh, database), []

    for _ in range(40):
        try:
            close(connect(profile, control_settings(profile, major=MAJOR, tag="t")))
        except ConnectFailed as error:
            refused.append(str(error))

    (rule,) = fresh.ask("/__loadgen/faults")
    assert rule["fired"] == len(refused)
    assert 3 <= len(refused) <= 22
    assert all("do not fit" in text for text in refused)


def test_a_login_that_fails_once_with_503_is_a_failed_login_for_load(server, profile):
    server.fault(match="/session/v1/login-request", kind="http_status", status=503)

    with pytest.raises(ConnectFailed) as caught:
        connect(profile, load_settings(profile, major=MAJOR, statement_limit_s=20, tag="t"))

    assert "not available at the moment" in str(caught.value)


def test_a_server_that_does_not_answer_logout_delays_closing_by_little(server, profile):
    connection = connect(profile, load_settings(profile, major=MAJOR, statement_limit_s=20, tag="t"))
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


# --- rules -----------------------------------------------------------------------------------------------------------


def test_count_limits_how_often_a_rule_strikes(server, load, statement):
    statement.fault(kind="error", errno=100183, count=2)
    outcomes = []

    for _ in range(4):
        try:
            outcomes.append(load.cursor().execute(statement.sql).fetchall())
        except Exception as error:
            outcomes.append(classify(error).code)

    (rule,) = server.ask("/__loadgen/faults")
    assert outcomes == [100183, 100183, [(7,)], [(7,)]]
    assert (rule["fired"], rule["count"]) == (2, 2)


def test_probability_strikes_about_as_often_as_it_says(fresh, database):
    profile = profile_of(fresh, database)
    fresh.fault(match="SELECT 7", kind="error", errno=100183, probability=0.25)
    connection = connect(profile, load_settings(profile, major=MAJOR, statement_limit_s=20, tag="t"))
    codes = []

    for _ in range(200):
        try:
            connection.cursor().execute("SELECT 7")
        except Exception as error:
            codes.append(classify(error).code)
    close(connection)

    assert set(codes) == {100183}
    assert fresh.ask("/__loadgen/faults")[0]["fired"] == len(codes)
    assert 25 <= len(codes) <= 80  # more than four standard deviations to both sides


def test_a_rule_strikes_only_what_it_matches_whatever_the_case(server, load, database):
    server.fault(match=rf"from\s+struck_{database.lower()}\b", kind="error", errno=100183)
    cursor = load.cursor()
    cursor.execute(f"CREATE TABLE STRUCK_{database} (A INTEGER)")
    cursor.execute(f"CREATE TABLE STRUCK_{database}_NOT (A INTEGER)")

    error = failure_of(load, f"SELECT A FROM  Struck_{database} WHERE A > 0")

    assert classify(error).code == 100183
    assert cursor.execute(f"SELECT A FROM STRUCK_{database}_NOT").fetchall() == []


def test_the_first_rule_that_strikes_wins(load, statement):
    statement.fault(kind="error", errno=111, sqlstate="22000", count=1)
    statement.fault(kind="error", errno=222, sqlstate="22000")

    codes = [classify(failure_of(load, statement.sql)).code for _ in range(2)]

    assert codes == [111, 222]


def test_deleting_the_rules_ends_all_faults(server, load, statement):
    statement.fault(kind="error", errno=100183)
    failure_of(load, statement.sql)

    answer = server.ask("/__loadgen/faults", method="DELETE")

    assert answer == {"cleared": 1}
    assert server.ask("/__loadgen/faults") == []
    assert load.cursor().execute(statement.sql).fetchall() == [(7,)]


def test_rules_can_be_given_as_a_list_all_or_none(server, load, statement):
    good = {"match": statement.mark, "kind": "reset"}

    answer = server.ask("/__loadgen/faults", method="POST", body=[good, good])
    with pytest.raises(urllib.error.HTTPError):
        server.ask("/__loadgen/faults", method="POST", body=[good, {"match": "x", "kind": "earthquake"}])

    assert len(answer["ids"]) == len(server.ask("/__loadgen/faults")) == 2


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"match": "x", "kind": "earthquake"}, ["kind must be one of latency, error", "'earthquake'"]),
        ({"match": "x"}, ["kind must be one of"]),
        ({"kind": "reset"}, ["match must be a regular expression"]),
        ({"match": "(", "kind": "reset"}, ["match is not a regular expression"]),
        ({"match": "x", "kind": "latency"}, ["kind latency needs ms"]),
        ({"match": "x", "kind": "http_status", "status": 99}, ["status must be a whole number from 100 to 599"]),
        ({"match": "x", "kind": "error", "errno": "625"}, ["errno must be a whole number", "'625'"]),
        ({"match": "x", "kind": "reset", "probability": 1.5}, ["probability must be a number from 0 to 1, got 1.5"]),
        ({"match": "x", "kind": "reset", "count": 0}, ["count must be a whole number from 1"]),
        ({"match": "x", "kind": "reset", "typo": 1}, ["typo is not a field of a fault rule"]),
        ({"kind": "latency", "probability": 2}, ["match", "ms", "probability"]),
        ("not an object", ["object"]),
        ([1], ["a fault rule is an object"]),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_with_every_problem_named(server, rule, words):
    with pytest.raises(urllib.error.HTTPError) as caught:
        server.ask("/__loadgen/faults", method="POST", body=rule)

    text = json.loads(caught.value.read())["error"]
    assert caught.value.code == 400
    for word in words:
        assert word in text
    assert server.ask("/__loadgen/faults") == []
