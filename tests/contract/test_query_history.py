"""QUERY_HISTORY with Snowflake's habits, also in what it leaves out."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from snowflake.connector import DictCursor
from snowflake.connector.errors import ProgrammingError

from tests.processes import PATIENCE_S, wait_until

pytestmark = pytest.mark.any_driver

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UNRECORDED_MS = 500  # a statement on hybrid tables alone that is shorter than this leaves no row


def history(
    cursor: Any, arguments: str = "", *, where: str = "TRUE", columns: str = "*", function: str = ""
) -> list[Any]:
    """Rows of one of the functions, in the order it gives them."""
    source = f"TABLE(INFORMATION_SCHEMA.QUERY_HISTORY{function}({arguments}))"
    return list(cursor.execute(f"SELECT {columns} FROM {source} WHERE {where}").fetchall())


@pytest.fixture
def named(connect: Callable[..., Any], database: str) -> Any:
    """A cursor that gives rows by name, in a separate untagged session."""
    return connect().cursor(DictCursor)


# --- the functions of Snowflake --------------------------------------------------------------------------------------


def test_a_statement_is_found_by_its_id_with_snowflakes_columns(tagged, named, database):
    tagged.execute("SELECT SEQ4() FROM TABLE(GENERATOR(ROWCOUNT => 7))")
    query_id = tagged.sfqid

    (row,) = history(named, "RESULT_LIMIT => 1000", where=f"QUERY_ID = '{query_id}'")

    assert {
        "QUERY_ID", "QUERY_TAG", "QUERY_TEXT", "QUERY_TYPE", "SESSION_ID", "USER_NAME", "ROLE_NAME", "DATABASE_NAME",
        "SCHEMA_NAME", "WAREHOUSE_NAME", "WAREHOUSE_SIZE", "WAREHOUSE_TYPE", "CLUSTER_NUMBER", "EXECUTION_STATUS",
        "ERROR_CODE", "ERROR_MESSAGE", "START_TIME", "END_TIME", "TOTAL_ELAPSED_TIME", "COMPILATION_TIME",
        "EXECUTION_TIME", "QUEUED_PROVISIONING_TIME", "QUEUED_REPAIR_TIME", "QUEUED_OVERLOAD_TIME",
        "TRANSACTION_BLOCKED_TIME", "BYTES_SCANNED", "ROWS_PRODUCED", "ROWS_WRITTEN_TO_RESULT",
        "BYTES_WRITTEN_TO_RESULT", "CREDITS_USED_CLOUD_SERVICES", "QUERY_PARAMETERIZED_HASH", "USER_TYPE",
        "FAULT_HANDLING_TIME", "QUERY_RETRY_TIME", "TRANSACTION_ID", "BIND_VALUES", "ROWS_INSERTED",
    } <= row.keys()  # fmt: skip
    assert (row["QUERY_TAG"], row["QUERY_TYPE"], row["ROWS_PRODUCED"]) == (database, "SELECT", 7)
    assert row["QUERY_TEXT"] == "SELECT SEQ4() FROM TABLE(GENERATOR(ROWCOUNT => 7))"
    assert (row["DATABASE_NAME"], row["SCHEMA_NAME"], row["USER_NAME"]) == (database, "PUBLIC", "TESTER")
    assert (row["WAREHOUSE_NAME"], row["CLUSTER_NUMBER"]) == ("COMPUTE_WH", 1)
    assert row["EXECUTION_STATUS"].upper() == "SUCCESS"
    assert (row["ERROR_CODE"], row["ERROR_MESSAGE"]) == (None, None)
    assert row["START_TIME"] <= row["END_TIME"]


def test_times_are_instants_and_durations_whole_milliseconds(tagged, named):
    tagged.execute("SELECT SYSTEM$WAIT(200, 'MILLISECONDS')")

    (row,) = history(named, "RESULT_LIMIT => 1000", where=f"QUERY_ID = '{tagged.sfqid}'")

    assert row["TOTAL_ELAPSED_TIME"] >= 200
    assert abs(row["END_TIME"] - row["START_TIME"] - timedelta(milliseconds=row["TOTAL_ELAPSED_TIME"])) <= timedelta(
        milliseconds=1
    )
    assert row["START_TIME"].utcoffset() is not None
    parts = ("COMPILATION_TIME", "EXECUTION_TIME", "QUEUED_OVERLOAD_TIME", "TRANSACTION_BLOCKED_TIME")
    assert all(type(row[name]) is int and row[name] >= 0 for name in parts)
    assert abs(sum(row[name] for name in parts) - row["TOTAL_ELAPSED_TIME"]) <= 4  # each is rounded


def test_bind_values_are_kept_with_their_types(tagged, named):
    tagged.execute("SELECT ?, ?, ?", (5, "five", None))
    bound = tagged.sfqid
    tagged.execute("SELECT 1")

    rows = history(named, "RESULT_LIMIT => 1000", where=f"QUERY_ID IN ('{bound}', '{tagged.sfqid}')")

    without, given = (json.loads(row["BIND_VALUES"]) for row in rows)
    assert without == []
    assert [given[name]["value"] for name in ("1", "2", "3")] == ["5", "five", None]
    assert [given[name]["type"] for name in ("1", "2")] == ["FIXED", "TEXT"]


def test_array_binds_are_null(tagged, named):
    tagged.execute("CREATE OR REPLACE TABLE bound (a INT)")
    tagged.executemany("INSERT INTO bound (a) VALUES (?)", [(1,), (2,)])

    (row,) = history(named, "RESULT_LIMIT => 1000", where=f"QUERY_ID = '{tagged.sfqid}'")

    assert row["BIND_VALUES"] is None


def test_a_hundred_rows_are_given_unless_more_are_asked_for(tagged, named):
    for _ in range(120):
        tagged.execute("SELECT 1")

    assert len(history(named)) == 100
    assert len(history(named, "RESULT_LIMIT => 110")) == 110
    assert len(history(named, "RESULT_LIMIT => 1")) == 1


def test_the_limit_counts_before_the_where_clause(tagged, named, database):
    tagged.execute("SELECT 'looked for'")
    wanted = tagged.sfqid
    for _ in range(20):
        tagged.execute("SELECT 'in front of it'")

    assert history(named, "RESULT_LIMIT => 10", where=f"QUERY_ID = '{wanted}'") == []
    assert len(history(named, "RESULT_LIMIT => 10000", where=f"QUERY_ID = '{wanted}'")) == 1


@pytest.mark.parametrize("limit", [0, -1, 10_001])
def test_a_limit_out_of_range_is_refused(cursor, limit):
    with pytest.raises(ProgrammingError) as caught:
        history(cursor, f"RESULT_LIMIT => {limit}")

    assert caught.value.sqlstate == "22023"
    assert "RESULT_LIMIT" in str(caught.value)


def test_the_newest_end_comes_first(tagged, named):
    for number in range(10):
        tagged.execute(f"SELECT {number}")

    ended = [row["END_TIME"] for row in history(named, "RESULT_LIMIT => 50") if row["END_TIME"] != EPOCH]

    assert ended == sorted(ended, reverse=True)


def test_a_time_range_cuts_out_what_ended_in_it(tagged, named, server):
    ids = []
    bounds = []
    for number in range(3):
        bounds.append(server.now_ms())
        tagged.execute(f"SELECT {number}")
        ids.append(tagged.sfqid)
        server.wait_server_ms(10)
    low, high = (datetime.fromtimestamp(bounds[index] / 1000, UTC).isoformat() for index in (1, 2))

    rows = history(
        named,
        f"END_TIME_RANGE_START => '{low}'::TIMESTAMP_LTZ, END_TIME_RANGE_END => '{high}'::TIMESTAMP_LTZ,"
        " RESULT_LIMIT => 1000",
        where=f"SESSION_ID = {tagged.connection.session_id}",
    )
    after = history(
        named,
        f"END_TIME_RANGE_START => TO_TIMESTAMP_LTZ('{low}'), RESULT_LIMIT => 1000",
        where=f"SESSION_ID = {tagged.connection.session_id}",
    )

    assert [row["QUERY_ID"] for row in rows] == [ids[1]]
    assert [row["QUERY_ID"] for row in after] == [ids[2], ids[1]]


def test_a_time_range_may_be_computed(tagged, named):
    tagged.execute("SELECT 1")
    query_id = tagged.sfqid

    rows = history(
        named,
        "END_TIME_RANGE_START => DATEADD('minute', -5, CURRENT_TIMESTAMP()), END_TIME_RANGE_END => CURRENT_TIMESTAMP(),"
        " RESULT_LIMIT => 10000",
        where=f"QUERY_ID = '{query_id}'",
    )
    older = history(
        named, "END_TIME_RANGE_END => DATEADD('hour', -1, CURRENT_TIMESTAMP())", where=f"QUERY_ID = '{query_id}'"
    )

    assert len(rows) == 1
    assert older == []


def test_history_by_session_is_of_one_session_and_by_default_of_the_own(connect, tagged):
    other = connect().cursor()
    tagged.execute("SELECT 'theirs'")
    other.execute("SELECT 'mine'")
    session = tagged.connection.session_id

    theirs = history(other, f"SESSION_ID => {session}", function="_BY_SESSION", columns="QUERY_ID, SESSION_ID")
    own = history(other, function="_BY_SESSION", columns="QUERY_TEXT, SESSION_ID")

    assert (tagged.sfqid, session) in theirs
    assert {number for _, number in theirs} == {session}
    assert {number for _, number in own} == {other.connection.session_id}
    assert "SELECT 'mine'" in [text for text, _ in own]


def test_history_by_user_is_of_one_user(server, named, database):
    connection = server.connect(user=f"user_{database}")
    connection.cursor().execute("SELECT 'by that user'")
    connection.close()

    rows = history(named, f"USER_NAME => 'USER_{database}', RESULT_LIMIT => 1000", function="_BY_USER")

    assert [row["QUERY_TEXT"] for row in rows if row["QUERY_TYPE"] == "SELECT"] == ["SELECT 'by that user'"]
    assert {row["USER_NAME"] for row in rows} == {f"USER_{database}"}


def test_history_by_warehouse_is_of_one_warehouse(connect, named, database):
    cursor = connect(warehouse=f"WH_{database}").cursor()
    cursor.execute("SELECT 'on that warehouse'")

    rows = history(named, f"WAREHOUSE_NAME => 'WH_{database}', RESULT_LIMIT => 1000", function="_BY_WAREHOUSE")

    assert "SELECT 'on that warehouse'" in [row["QUERY_TEXT"] for row in rows]
    assert {row["WAREHOUSE_NAME"] for row in rows} == {f"WH_{database}"}


def test_the_functions_need_a_database_or_a_qualified_name(server, database):
    connection = server.connect()
    cursor = connection.cursor()
    for number in range(5):
        cursor.execute("SELECT ?", (number,))

    with pytest.raises(ProgrammingError) as caught:
        cursor.execute("SELECT * FROM TABLE(INFORMATION_SCHEMA.QUERY_HISTORY())")
    cursor.execute("SELECT COUNT(*) FROM TABLE(BENCH.INFORMATION_SCHEMA.QUERY_HISTORY(RESULT_LIMIT => 5))")
    qualified = cursor.fetchone()
    connection.close()

    assert caught.value.errno == 90105
    assert qualified == (5,)


def test_a_running_statement_is_shown_with_the_epoch_as_its_end(connect, named):
    busy = connect(session_parameters={"QUERY_TAG": "busy"})
    ended = threading.Event()

    def run() -> None:
        try:
            busy.cursor().execute("SELECT SYSTEM$WAIT(240)")
        except Exception:  # it is cancelled below
            ended.set()

    thread = threading.Thread(target=run, name="busy")
    thread.start()
    mine = f"SESSION_ID => {busy.session_id}"
    the_wait = "QUERY_TEXT LIKE '%WAIT(240)'"
    (row,) = wait_until(lambda: history(named, mine, function="_BY_SESSION", where=the_wait), "it is shown")
    bounded = history(
        named, f"{mine}, END_TIME_RANGE_END => CURRENT_TIMESTAMP()", function="_BY_SESSION", where=the_wait
    )
    named.execute("SELECT SYSTEM$CANCEL_QUERY(?)", (row["QUERY_ID"],))
    thread.join(PATIENCE_S)

    (cancelled,) = history(named, mine, function="_BY_SESSION", where=the_wait)
    assert row["EXECUTION_STATUS"].upper() == "RUNNING"
    assert row["END_TIME"] == EPOCH
    assert bounded == []
    assert ended.is_set()
    assert cancelled["EXECUTION_STATUS"].upper() == "FAILED_WITH_ERROR"
    assert (int(cancelled["ERROR_CODE"]), cancelled["ERROR_MESSAGE"]) == (604, "SQL execution canceled")


@pytest.mark.parametrize(
    ("statement", "code"), [("SELECT 1 / 0", 100051), ("SELECT * FROM NO_SUCH_TABLE", 2003), ("SELEC 1", 1003)]
)
def test_a_failed_statement_is_shown_with_its_error(tagged, named, statement, code):
    with pytest.raises(ProgrammingError) as caught:
        tagged.execute(statement)

    (row,) = history(named, "RESULT_LIMIT => 1000", where=f"QUERY_ID = '{caught.value.sfqid}'")

    assert row["EXECUTION_STATUS"].upper() == "FAILED_WITH_ERROR"
    assert int(row["ERROR_CODE"]) == code
    assert row["ERROR_MESSAGE"] in str(caught.value)
    assert row["QUERY_TEXT"] == statement


def test_a_text_that_no_table_can_hold_does_not_hide_the_other_statements(tagged, named, database):
    with pytest.raises(ProgrammingError):
        tagged.execute("SELECT 'a\0b'")
    tagged.execute("SELECT 'after it'")

    rows = history(named, "RESULT_LIMIT => 1000", where=f"QUERY_TAG = '{database}'")

    assert [row["QUERY_TEXT"] for row in rows] == ["SELECT 'after it'", "SELECT 'a\ufffdb'"]


# --- what Snowflake leaves out ---------------------------------------------------------------------------------------


def test_short_statements_on_hybrid_tables_alone_leave_no_row_but_are_in_the_ground_truth(
    tagged, named, server, database
):
    tagged.execute("CREATE HYBRID TABLE H (K INTEGER PRIMARY KEY, V VARCHAR)")
    tagged.execute("CREATE TABLE S (K INTEGER, V VARCHAR)")
    ids = {}
    for name, statement in {
        "hybrid insert": "INSERT INTO H VALUES (1, 'a')",
        "hybrid select": "SELECT * FROM H WHERE K = 1",
        "hybrid update": "UPDATE H SET V = 'b' WHERE K = 1",
        "hybrid delete": "DELETE FROM H WHERE K = 2",
        "standard insert": "INSERT INTO S VALUES (1, 'a')",
        "standard select": "SELECT * FROM S",
        "both": "SELECT * FROM H JOIN S ON H.K = S.K",
        "neither": "SELECT 1",
        "show": "SHOW TABLES",
    }.items():
        ids[name] = tagged.execute(statement).sfqid

    shown = {row["QUERY_ID"] for row in history(named, "RESULT_LIMIT => 1000", where=f"QUERY_TAG = '{database}'")}
    took_ms = {line["query_id"]: line["total_ms"] for line in server.history(database)}

    slow = {name for name, query_id in ids.items() if took_ms[query_id] >= UNRECORDED_MS}  # the machine may be busy
    assert {name for name, query_id in ids.items() if query_id in shown} == slow | {
        "standard insert", "standard select", "both", "neither", "show",
    }  # fmt: skip


def test_hybrid_statements_that_fail_or_run_in_a_transaction_are_shown(tagged, named, database):
    tagged.execute("CREATE HYBRID TABLE H (K INTEGER PRIMARY KEY)")
    tagged.execute("BEGIN")
    inside = tagged.execute("INSERT INTO H VALUES (1)").sfqid
    tagged.execute("COMMIT")
    with pytest.raises(ProgrammingError) as caught:
        tagged.execute("INSERT INTO H VALUES (1)")

    shown = {row["QUERY_ID"]: row for row in history(named, "RESULT_LIMIT => 1000", where=f"QUERY_TAG = '{database}'")}

    assert inside in shown
    assert int(shown[caught.value.sfqid]["ERROR_CODE"]) == 200001


def test_a_slow_hybrid_statement_is_shown(connect, tagged, named):
    tagged.execute("CREATE HYBRID TABLE H (K INTEGER PRIMARY KEY, V INTEGER)")
    tagged.execute("INSERT INTO H VALUES (1, 0)")
    holder = connect().cursor()
    holder.execute("BEGIN")
    holder.execute("UPDATE H SET V = 1 WHERE K = 1")
    thread = threading.Thread(target=lambda: tagged.execute("UPDATE H SET V = 2 WHERE K = 1"), name="blocked")
    thread.start()
    mine = f"SESSION_ID => {tagged.connection.session_id}"
    long_enough = f"TOTAL_ELAPSED_TIME > {UNRECORDED_MS} AND QUERY_TEXT LIKE 'UPDATE%'"

    (blocked,) = wait_until(lambda: history(named, mine, function="_BY_SESSION", where=long_enough), "it is slow")
    holder.execute("COMMIT")
    thread.join(PATIENCE_S)

    (row,) = history(named, mine, function="_BY_SESSION", where=long_enough)
    assert blocked["EXECUTION_STATUS"].upper() == "BLOCKED"
    assert row["QUERY_ID"] == blocked["QUERY_ID"] == tagged.sfqid
    assert row["EXECUTION_STATUS"].upper() == "SUCCESS"
    assert row["TRANSACTION_BLOCKED_TIME"] > 0
