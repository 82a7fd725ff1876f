"""The effect of a fault on one attempt and on several, per major: the facts that retries and counts are built on.

`load` connections are the measured ones: exactly one attempt. `retrying` ones are as other programs open them: the
driver retries. The number of requests of a statement is read from the server's journal, its effect from the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from loadgen.model.counts import ErrorCategory
from loadgen.snowflake.connect import close
from loadgen.snowflake.failure import NotRetried, classify, describe
from loadgen.snowflake.profile import ConnectionProfile
from tests.contract.connection_builders import MAJOR
from tests.contract.fault_builders import ATTEMPTS, failure_of, retrying_connection, shown

HTML = "<html><body>Bad gateway</body></html>"
Open = Callable[[], Any]


@pytest.fixture
def giving_up(profile: ConnectionProfile) -> Iterator[Any]:
    """It has no time left after a few attempts."""
    connection = retrying_connection(profile, 5)
    yield connection
    close(connection)


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


def test_a_failure_without_retries_is_described_by_its_cause(load, statement):
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
