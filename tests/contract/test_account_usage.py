"""SNOWFLAKE.ACCOUNT_USAGE: QUERY_HISTORY, and AGGREGATE_QUERY_HISTORY, which has what the former leaves out."""

from __future__ import annotations

from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from snowflake.connector import DictCursor
from snowflake.connector.errors import ProgrammingError

from loadgen.capture.history import WarehouseHistory
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS, find_profile
from loadgen.snowflake.session import RetryPolicy

pytestmark = pytest.mark.any_driver


@pytest.fixture
def warehouse(connect: Any, database: str) -> str:
    """A warehouse that only this test uses."""
    name = f"{database}_WH"
    connect().cursor().execute(f"CREATE WAREHOUSE {name}")
    return name


def usage(cursor: Any, view: str, warehouse: str) -> list[dict[str, Any]]:
    sql = f"SELECT * FROM SNOWFLAKE.ACCOUNT_USAGE.{view} h WHERE h.WAREHOUSE_NAME = '{warehouse}'"
    return list(cursor.execute(sql).fetchall())


def test_the_history_has_the_columns_of_the_function_and_its_rows(connect, warehouse, database):
    cursor, reader = connect(warehouse=warehouse).cursor(), connect().cursor(DictCursor)
    cursor.execute("SELECT ?, 'x'", (5,))
    query_id = cursor.sfqid
    with pytest.raises(ProgrammingError):
        cursor.execute("SELECT * FROM missing_table")

    failed, found = sorted(usage(reader, "QUERY_HISTORY", warehouse), key=lambda row: row["QUERY_ID"] == query_id)

    assert (found["QUERY_TEXT"], found["EXECUTION_STATUS"], found["ROWS_PRODUCED"]) == ("SELECT ?, 'x'", "success", 1)
    assert failed["EXECUTION_STATUS"] == "fail"
    assert found["IS_CLIENT_GENERATED_STATEMENT"] is False
    assert found["END_TIME"] >= found["START_TIME"]


def test_statements_that_the_history_leaves_out_are_counted_by_minute(connect, warehouse):
    cursor, reader = connect(warehouse=warehouse).cursor(), connect().cursor(DictCursor)
    cursor.execute("CREATE HYBRID TABLE small (id INT PRIMARY KEY, v INT)")
    cursor.execute("INSERT INTO small VALUES (1, 1)")
    for number in range(5):
        cursor.execute("SELECT v FROM small WHERE id = ?", (number,))
    with pytest.raises(ProgrammingError):
        cursor.execute("SELECT missing FROM small")

    counted = usage(reader, "AGGREGATE_QUERY_HISTORY", warehouse)

    calls = {text: sum(row["CALLS"] for row in counted if row["QUERY_TEXT"] == text) for text in texts(counted)}
    assert calls["SELECT v FROM small WHERE id = ?"] == 5
    assert "SELECT v FROM small WHERE id = ?" not in texts(usage(reader, "QUERY_HISTORY", warehouse))
    assert all(row["INTERVAL_END_TIME"] - row["INTERVAL_START_TIME"] == timedelta(minutes=1) for row in counted)
    assert [row["ERRORS"] for row in counted if "missing" in row["QUERY_TEXT"]] != ["[]"]


def texts(rows: list[dict[str, Any]]) -> set[str]:
    return {row["QUERY_TEXT"] for row in rows}


def test_other_views_do_not_exist(cursor):
    with pytest.raises(ProgrammingError, match=r"SNOWFLAKE\.ACCOUNT_USAGE\.LOGIN_HISTORY"):
        cursor.execute("SELECT * FROM SNOWFLAKE.ACCOUNT_USAGE.LOGIN_HISTORY")
    with pytest.raises(ProgrammingError):
        cursor.execute("DELETE FROM SNOWFLAKE.ACCOUNT_USAGE.QUERY_HISTORY")


# --- what a capture reads of it --------------------------------------------------------------------------------------


@pytest.fixture
def history(server: Any, warehouse: str) -> Any:
    profile = find_profile("embedded", environ={EMBEDDED_ADDRESS: server.address}, overrides={})
    made = WarehouseHistory(profile, warehouse, RetryPolicy(stop=Event(), first_pause_s=0.01))
    yield made
    made.close()


def test_a_day_is_read_from_the_newest_to_the_oldest_and_after_a_lost_connection(
    connect, warehouse, history, server, monkeypatch
):
    monkeypatch.setattr(
        "loadgen.capture.history.RETENTION", timedelta(0)
    )  # everything is older than the function reaches
    monkeypatch.setattr("loadgen.capture.history.PAGE_ROWS", 7)
    cursor = connect(warehouse=warehouse).cursor()
    for number in range(30):
        cursor.execute("SELECT ?", (number,))
    now = history.now()
    server.fault(match="ACCOUNT_USAGE.QUERY_HISTORY", kind="error", errno=390114, count=1)

    parts = list(history.parts(now - timedelta(days=2), now))

    rows = [row for part in parts for row in part.rows]
    assert [row.binds for row in reversed(rows)] == [(("FIXED", str(number)),) for number in range(30)]
    left = [part.left_until for part in parts]
    assert left[-1] is None
    assert left[:-1] == sorted(left[:-1], reverse=True)
    assert len(parts) > 4


def test_statements_missing_in_the_history_are_counted(connect, warehouse, history):
    cursor = connect(warehouse=warehouse).cursor()
    cursor.execute("CREATE HYBRID TABLE small (id INT PRIMARY KEY)")
    for _ in range(9):
        cursor.execute("SELECT * FROM small")
    now = history.now()

    assert history.unrecorded(now - timedelta(hours=1), now) == 9
    assert history.unrecorded(now - timedelta(hours=3), now - timedelta(hours=2)) == 0
