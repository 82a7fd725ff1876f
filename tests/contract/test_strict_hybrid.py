"""`embedded serve --strict-hybrid` and `--control-latency`: Snowflake's documentation read in the worst way."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import snowflake.connector
from snowflake.connector.errors import ProgrammingError

from tests.contract.lock_builders import PRIMARY_KEY, ConcurrentSessions, Sessions, outcome
from tests.contract.sql import Sql
from tests.contract.strict_pairs import ROWS, Pairs, harmful
from tests.control_plane import ControlPlane
from tests.embedded_server import EmbeddedServer

pytestmark = pytest.mark.any_driver

LATENCY_MS = 1_500
MAJOR = int(snowflake.connector.__version__.split(".")[0])


@pytest.fixture(scope="module")
def strict() -> Iterator[EmbeddedServer]:
    with EmbeddedServer("--strict-hybrid", "--control-latency", f"{LATENCY_MS}ms") as running:
        yield running


@pytest.fixture(scope="module")
def all_sessions(strict: EmbeddedServer) -> Iterator[Sessions]:
    """For `concurrent`: its sessions belong to the strict server here."""
    sessions = Sessions(strict)
    sessions.take(None, {})("CREATE OR REPLACE DATABASE LOCKS")
    yield sessions
    sessions.close()


@pytest.fixture
def claims(concurrent: ConcurrentSessions) -> Sql:
    """Two rows to claim."""
    sql = concurrent.session()
    sql("CREATE OR REPLACE HYBRID TABLE CLAIMS (ID NUMBER PRIMARY KEY, OWNER VARCHAR(9), N NUMBER, NOTE VARIANT)")
    sql("INSERT INTO CLAIMS SELECT 1, 'NONE', 0, PARSE_JSON('{\"a\": 1}') UNION ALL SELECT 2, 'NONE', 0, NULL")
    return sql


def after(concurrent: ConcurrentSessions, first: str, waiting: str) -> Any:
    """The row count of the statement that waits for the row of `first`, which is committed then."""
    holder, waiter = concurrent.sessions(2)
    holder("BEGIN")
    assert holder.count(first) == 1
    work = concurrent.start(waiter.count, waiting)
    concurrent.wait_blocked(waiting, work)
    holder("COMMIT")
    return outcome(work)


CLAIM = "UPDATE CLAIMS SET OWNER = '{}', N = N + 1 WHERE ID = 1 AND OWNER = 'NONE'"


def test_both_claimants_of_a_row_get_a_row_count_of_one(concurrent: ConcurrentSessions, claims: Sql):
    assert after(concurrent, CLAIM.format("A"), CLAIM.format("B")) == 1
    assert claims("SELECT OWNER, N FROM CLAIMS WHERE ID = 1") == [("B", 1)]


def test_a_write_after_a_wait_puts_back_the_columns_it_did_not_name(concurrent: ConcurrentSessions, claims: Sql):
    changed = "UPDATE CLAIMS SET OWNER = 'A', NOTE = NULL WHERE ID = 1"

    assert after(concurrent, changed, "UPDATE CLAIMS SET N = 7 WHERE ID = 1") == 1
    assert claims("SELECT OWNER, N, NOTE:a::NUMBER FROM CLAIMS WHERE ID = 1") == [("NONE", 7, 1)]


@pytest.mark.parametrize("waiting", [CLAIM.format("B"), "DELETE FROM CLAIMS WHERE ID = 1 AND OWNER = 'NONE'"])
def test_a_row_that_was_deleted_meanwhile_is_counted_and_stays_deleted(
    concurrent: ConcurrentSessions, claims: Sql, waiting: str
):
    assert after(concurrent, "DELETE FROM CLAIMS WHERE ID = 1", waiting) == 1
    assert claims("SELECT ID FROM CLAIMS") == [(2,)]


def test_a_delete_removes_a_row_that_no_longer_meets_its_condition(concurrent: ConcurrentSessions, claims: Sql):
    assert after(concurrent, CLAIM.format("A"), "DELETE FROM CLAIMS WHERE ID = 1 AND OWNER = 'NONE'") == 1
    assert claims("SELECT ID FROM CLAIMS") == [(2,)]


def test_a_statement_that_does_not_wait_does_what_it_always_does(claims: Sql):
    assert claims.count(CLAIM.format("A")) == 1
    assert claims.count(CLAIM.format("B")) == 0
    assert claims.count("UPDATE CLAIMS SET N = N + ?, OWNER = ? WHERE ID <= ?", 5, None, 2) == 2
    assert claims("SELECT ID, OWNER, N, NOTE IS NULL FROM CLAIMS ORDER BY ID") == [
        (1, None, 6, False), (2, None, 5, True)
    ]  # fmt: skip
    source = "(SELECT column1 AS ID, column2 AS V FROM VALUES (1, 8), (2, 9), (2, 9)) AS S"
    assert claims(f"UPDATE CLAIMS SET N = S.V FROM {source} WHERE CLAIMS.ID = S.ID") == [(2, 1)]
    assert claims("SELECT ID, N FROM CLAIMS ORDER BY ID") == [(1, 8), (2, 9)]
    assert claims.count("DELETE FROM CLAIMS WHERE ID > ?", 1) == 1


def test_an_enforced_key_still_decides(concurrent: ConcurrentSessions, claims: Sql):
    holder, waiter = concurrent.sessions(2)
    holder("BEGIN")
    holder("INSERT INTO CLAIMS VALUES (3, 'A', 0, NULL)")
    work = concurrent.start(waiter, "INSERT INTO CLAIMS VALUES (3, 'B', 0, NULL)")
    concurrent.wait_blocked("INSERT INTO CLAIMS VALUES (3, 'B'", work)
    holder("COMMIT")

    assert outcome(work) == PRIMARY_KEY


def test_standard_tables_are_not_concerned(concurrent: ConcurrentSessions):
    concurrent.session()("CREATE OR REPLACE TABLE CLAIMS_S (ID NUMBER, OWNER VARCHAR(9))")
    concurrent.session()("INSERT INTO CLAIMS_S VALUES (1, 'NONE')")
    claim = "UPDATE CLAIMS_S SET OWNER = '{}' WHERE ID = 1 AND OWNER = 'NONE'"

    assert after(concurrent, claim.format("A"), claim.format("B")) == 0


# --- binds -----------------------------------------------------------------------------------------------------------


def test_array_binds_in_insert_select_are_what_the_driver_makes_of_them(strict: EmbeddedServer):
    """Connector 4 sends them and is refused; connector 5 asks first, and sends one request per row."""
    tag = "array binds"
    connection = strict.connect(database="BINDS", schema="PUBLIC", session_parameters={"QUERY_TAG": tag})
    with connection:
        cursor = connection.cursor()
        cursor.execute("CREATE OR REPLACE TABLE T (ID NUMBER, V VARIANT)")
        rows = [(1, "1"), (2, "2"), (3, "3")]
        sql = "INSERT INTO T SELECT ?, PARSE_JSON(?)"
        if MAJOR < 5:
            with pytest.raises(ProgrammingError, match=r"Bind variable \? not set") as caught:
                cursor.executemany(sql, rows)
            assert caught.value.errno == 2049
        else:
            cursor.executemany(sql, rows)
            cursor.execute("SELECT COUNT(*) FROM T")
            assert cursor.fetchone() == (3,)
        cursor.executemany("INSERT INTO T (ID) VALUES (?)", [(4,), (5,)])
    sent = [line["sql_text"] for line in strict.history(tag) if line["error_code"] == 0]

    assert sent.count(sql) == (0 if MAJOR < 5 else len(rows))
    assert sent.count("INSERT INTO T (ID) VALUES (?)") == 1


def test_without_the_option_array_binds_and_limits_are_taken(lenient: EmbeddedServer):
    with lenient.connect(database="BINDS", schema="PUBLIC") as connection:
        cursor = connection.cursor()
        cursor.execute("CREATE OR REPLACE TABLE T (ID NUMBER, V VARIANT)")
        cursor.executemany(
            "INSERT INTO T SELECT column1, PARSE_JSON(column2) FROM VALUES (?, ?)", [(1, "1"), (2, None)]
        )
        rows = cursor.execute("SELECT ID, V FROM T ORDER BY ID LIMIT ?", (1,)).fetchall()
    sent = lenient.ask("/__loadgen/journal?match=INTO%20T%20SELECT")

    assert rows == [(1, "1")]
    assert sum(line["bind_count"] > 0 for line in sent) == 1


@pytest.mark.parametrize(("clause", "binds"), [("LIMIT ?", (1,)), ("LIMIT 1 OFFSET ?", (0,))])
def test_a_bind_in_limit_is_refused_in_snowflakes_words(claims: Sql, clause: str, binds: tuple[Any, ...]):
    word = clause.split()[-2].lower()
    with pytest.raises(ProgrammingError, match=rf"Invalid row count '\?' in {word} clause"):
        claims(f"SELECT ID FROM CLAIMS ORDER BY ID {clause}", *binds)

    assert claims("SELECT ID FROM CLAIMS ORDER BY ID LIMIT 1") == [(1,)]


# --- latency ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def control_table(strict: EmbeddedServer) -> str:
    connection = strict.connect(database="LOADGEN", schema="CONTROL")
    connection.cursor().execute("CREATE OR REPLACE HYBRID TABLE BEATS (ID NUMBER PRIMARY KEY, N NUMBER)")
    connection.close()
    return "LOADGEN.CONTROL.BEATS"


def total_ms(server: EmbeddedServer, tag: str, beginning: str) -> list[float]:
    return [line["total_ms"] for line in server.history(tag) if line["sql_text"].startswith(beginning)]


def test_statements_on_the_control_planes_tables_are_answered_later(strict: EmbeddedServer, control_table: str):
    tag = "latency"
    connection = strict.connect(database="OTHER", schema="PUBLIC", session_parameters={"QUERY_TAG": tag})
    with connection:
        cursor = connection.cursor()
        cursor.execute("CREATE OR REPLACE HYBRID TABLE T (ID NUMBER PRIMARY KEY)")
        for _ in range(3):
            cursor.execute("SELECT COUNT(*) FROM T")
        cursor.execute(f"INSERT INTO {control_table} VALUES (1, 0)")
        cursor.execute(f"UPDATE {control_table} SET N = 1 WHERE ID = 1")
        cursor.execute(f"SELECT T.ID FROM T JOIN {control_table} AS B ON B.ID = T.ID")
        with pytest.raises(ProgrammingError) as caught:
            cursor.execute(f"INSERT INTO {control_table} VALUES (1, 9)")
        assert caught.value.errno == PRIMARY_KEY

    assert min(total_ms(strict, tag, "SELECT COUNT(*) FROM T")) < LATENCY_MS
    late = [ms for text in ("INSERT", "UPDATE", "SELECT T.ID") for ms in total_ms(strict, tag, text)]
    assert len(late) == 4
    assert min(late) >= LATENCY_MS


def test_the_latency_holds_no_slot(strict: EmbeddedServer, control_table: str):
    strict.model("ONE_SLOT", slots=1)
    tag, sessions = "no slot", 3

    def read(_: int) -> None:
        with strict.connect(warehouse="ONE_SLOT", session_parameters={"QUERY_TAG": tag}) as connection:
            connection.cursor().execute(f"SELECT N FROM {control_table}")

    with ThreadPoolExecutor(sessions, thread_name_prefix="reader") as threads:
        list(threads.map(read, range(sessions)))
    lines = [line for line in strict.history(tag) if line["sql_text"].startswith("SELECT N")]

    assert len(lines) == sessions
    assert min(line["total_ms"] for line in lines) >= LATENCY_MS
    assert max(line["queued_ms"] for line in lines) < LATENCY_MS  # in a slot they would wait for one another


# --- statements of the control plane ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pairs(plane: ControlPlane) -> Iterator[Pairs]:
    with ThreadPoolExecutor(1, thread_name_prefix="second") as threads:
        made = Pairs(plane.server, plane.place.database, threads)
        yield made
        made.close()


def test_no_statement_of_the_control_plane_does_harm_by_acting_on_an_old_version(pairs):
    assert list(harmful(pairs)) == []


def test_an_old_version_would_be_seen(pairs):
    (row,) = (one for one in ROWS if one.table == "RUN_STATUS")
    move, publish = (next(one for one in row.statements if one[1] == name) for name in ("move", "publish"))

    assert pairs.waiting(row, move, publish) != pairs.serial(row, move, publish)
