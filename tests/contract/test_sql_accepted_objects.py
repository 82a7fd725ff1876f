"""The results of SHOW and DESCRIBE, warehouses and the session: as in Snowflake."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from snowflake.connector.errors import ProgrammingError

from tests.contract.accepted_builders import (
    an_id,
)
from tests.contract.sql import Sql

pytestmark = pytest.mark.any_driver


# --- SHOW, DESCRIBE, INFORMATION_SCHEMA ------------------------------------------------------------------------------


def test_describe_table_shows_types_nulls_defaults_and_keys(control: Sql) -> None:
    control(
        "CREATE TABLE X (A NUMBER(10, 2) DEFAULT 5 NOT NULL, B TIMESTAMP_LTZ(3), C VARIANT, D"
        " BINARY, E TIME, F BOOLEAN)"
    )

    described = {row["name"]: row for row in control.dicts("DESC TABLE X")}
    events = {row["name"]: row for row in control.dicts("DESCRIBE TABLE RUN_CONTROL_EVENTS")}

    assert [row["type"] for row in described.values()] == [
        "NUMBER(10,2)", "TIMESTAMP_LTZ(3)", "VARIANT", "BINARY(8388608)", "TIME(9)", "BOOLEAN",
    ]  # fmt: skip
    assert (described["A"]["null?"], described["A"]["default"]) == ("N", "5")
    assert [name for name, row in events.items() if row["primary key"] == "Y"] == ["RUN_ID", "SEQUENCE_ID"]
    assert [name for name, row in events.items() if row["unique key"] == "Y"] == ["EVENT_ID"]


def test_show_tables_lists_filters_and_counts(numbers: Sql, database: str) -> None:
    numbers("CREATE HYBRID TABLE HYB (ID NUMBER PRIMARY KEY)")
    numbers("CREATE SCHEMA OTHER")
    numbers("CREATE TABLE ELSEWHERE (A NUMBER)")
    numbers("USE SCHEMA PUBLIC")

    tables = {row["name"]: row for row in numbers.dicts("SHOW TABLES")}

    assert list(tables) == ["HYB", "N"]
    assert (tables["N"]["rows"], tables["N"]["kind"], tables["N"]["is_hybrid"]) == (10, "TABLE", "N")
    assert [row["name"] for row in numbers.dicts("SHOW HYBRID TABLES")] == ["HYB"]
    assert [row["name"] for row in numbers.dicts("SHOW TABLES LIKE 'h_b'")] == ["HYB"]
    assert [row["name"] for row in numbers.dicts("SHOW TABLES IN SCHEMA OTHER")] == ["ELSEWHERE"]
    assert [row["name"] for row in numbers.dicts(f"SHOW TABLES IN {database}.OTHER")] == ["ELSEWHERE"]
    assert len(numbers(f"SHOW TABLES IN DATABASE {database}")) == 3
    assert [row["name"] for row in numbers.dicts("SHOW TABLES STARTS WITH 'N'")] == ["N"]
    assert len(numbers("SHOW TABLES LIMIT 1")) == 1
    assert [row["column_name"] for row in numbers.dicts("SHOW COLUMNS IN TABLE N")] == ["I", "WORD", "G"]


def test_show_indexes_lists_the_keys_of_hybrid_tables(control: Sql) -> None:
    indexes = control.dicts("SHOW INDEXES IN TABLE RUN_CONTROL_EVENTS")

    assert [(row["is_unique"], row["columns"], row["status"]) for row in indexes] == [
        ("Y", "[RUN_ID, SEQUENCE_ID]", "ACTIVE"),
        ("Y", "[EVENT_ID]", "ACTIVE"),
    ]
    assert len(control("SHOW INDEXES")) == 5
    keys = control.dicts("SHOW PRIMARY KEYS IN TABLE RUN_LEASES")
    assert [(row["key_sequence"], row["column_name"]) for row in keys] == [(1, "RUN_ID"), (2, "EPOCH")]


def test_information_schema_knows_tables_columns_and_schemas(control: Sql, database: str) -> None:
    control("CREATE VIEW V AS SELECT RUN_ID FROM RUN_STATUS")

    tables = control("SELECT TABLE_NAME, TABLE_TYPE, IS_HYBRID FROM INFORMATION_SCHEMA.TABLES ORDER BY TABLE_NAME")
    columns = control(
        f"SELECT COLUMN_NAME, DATA_TYPE, IS_NULLABLE, CHARACTER_MAXIMUM_LENGTH, NUMERIC_PRECISION"
        f" FROM {database}.INFORMATION_SCHEMA.COLUMNS"
        " WHERE TABLE_SCHEMA = 'PUBLIC' AND TABLE_NAME = ? ORDER BY ORDINAL_POSITION",
        "RUN_LEASES",
    )

    assert ("V", "VIEW", "NO") in tables
    assert ("RUN_STATUS", "BASE TABLE", "YES") in tables
    assert columns == [
        ("RUN_ID", "TEXT", "NO", 36, None),
        ("EPOCH", "NUMBER", "NO", None, 38),
        ("OWNER", "TEXT", "NO", 100, None),
        ("EXPIRES_AT", "TIMESTAMP_NTZ", "NO", None, None),
    ]
    assert control.value("SELECT COUNT(*) FROM INFORMATION_SCHEMA.SCHEMATA WHERE SCHEMA_NAME = 'PUBLIC'") == 1
    assert control.value("SELECT COUNT(*) FROM INFORMATION_SCHEMA.DATABASES WHERE DATABASE_NAME = ?", database) == 1
    assert control.value("SELECT TABLE_NAME FROM INFORMATION_SCHEMA.VIEWS") == "V"


def test_show_parameters_shows_value_default_and_level(sql: Sql) -> None:
    sql("ALTER SESSION SET HYBRID_TABLE_LOCK_TIMEOUT = 5, QUERY_TAG = 'it''s a tag'")

    (timeout,) = sql.dicts("SHOW PARAMETERS LIKE 'HYBRID_TABLE_LOCK_TIMEOUT'")
    (autocommit,) = sql.dicts("SHOW PARAMETERS LIKE 'autocommit' IN SESSION")

    assert (timeout["value"], timeout["default"], timeout["level"], timeout["type"]) == (
        "5",
        "3600",
        "SESSION",
        "NUMBER",
    )
    assert (autocommit["value"], autocommit["default"]) == ("true", "true")
    assert sql.dicts("SHOW PARAMETERS LIKE 'QUERY_TAG'")[0]["value"] == "it's a tag"
    assert len(sql("SHOW PARAMETERS")) > 30


# --- warehouses ------------------------------------------------------------------------------------------------------


@pytest.fixture
def warehouse(sql: Sql, database: str) -> Iterator[str]:
    """A warehouse of the test's own, current in its session."""
    name = f"WH_{database}"
    sql(f"CREATE WAREHOUSE {name} WITH WAREHOUSE_SIZE = XSMALL AUTO_SUSPEND = 60 AUTO_RESUME = TRUE COMMENT = 'mine'")
    yield name
    sql("USE WAREHOUSE COMPUTE_WH")
    sql(f"DROP WAREHOUSE IF EXISTS {name}")


def test_a_warehouse_is_an_object_with_settings(sql: Sql, warehouse: str) -> None:
    (made,) = sql.dicts(f"SHOW WAREHOUSES LIKE '{warehouse}'")

    assert sql.value("SELECT CURRENT_WAREHOUSE()") == warehouse
    assert (made["size"], made["state"], made["auto_suspend"], made["comment"]) == ("X-Small", "STARTED", 60, "mine")
    assert (made["running"], made["queued"], made["started_clusters"], made["is_current"]) == (0, 0, 1, "Y")

    sql(f"ALTER WAREHOUSE {warehouse} SET WAREHOUSE_SIZE = 'LARGE', MAX_CONCURRENCY_LEVEL = 3 MAX_CLUSTER_COUNT = 2")

    (altered,) = sql.dicts(f"SHOW WAREHOUSES LIKE '{warehouse}'")
    (level,) = sql.dicts(f"SHOW PARAMETERS LIKE 'MAX_CONCURRENCY_LEVEL' IN WAREHOUSE {warehouse}")
    assert (altered["size"], altered["max_cluster_count"]) == ("Large", 2)
    assert (level["value"], level["default"]) == ("3", "8")
    assert "already exists" in sql.value(f"CREATE WAREHOUSE IF NOT EXISTS {warehouse}")
    with pytest.raises(ProgrammingError) as caught:
        sql(f"CREATE WAREHOUSE {warehouse}")
    assert caught.value.errno == 2002


def test_a_suspended_warehouse_resumes_for_a_query_unless_it_may_not(sql: Sql, warehouse: str) -> None:
    sql(f"ALTER WAREHOUSE {warehouse} SUSPEND")
    assert sql.dicts(f"SHOW WAREHOUSES LIKE '{warehouse}'")[0]["state"] == "SUSPENDED"
    assert sql.value("SELECT COUNT(*) FROM INFORMATION_SCHEMA.TABLES") == 0
    assert sql.dicts(f"SHOW WAREHOUSES LIKE '{warehouse}'")[0]["state"] == "STARTED"

    sql(f"ALTER WAREHOUSE {warehouse} SET AUTO_RESUME = FALSE")
    sql(f"ALTER WAREHOUSE {warehouse} SUSPEND")
    with pytest.raises(ProgrammingError) as caught:
        sql("SELECT COUNT(*) FROM INFORMATION_SCHEMA.TABLES")
    sql(f"ALTER WAREHOUSE {warehouse} RESUME IF SUSPENDED")

    assert (caught.value.errno, caught.value.sqlstate) == (606, "57P03")
    assert sql.value("SELECT COUNT(*) FROM INFORMATION_SCHEMA.TABLES") == 0


def test_without_a_warehouse_a_query_is_606_and_commands_go_on(sql: Sql, warehouse: str) -> None:
    sql("CREATE TABLE X (A NUMBER)")
    sql(f"DROP WAREHOUSE {warehouse}")

    with pytest.raises(ProgrammingError) as caught:
        sql("SELECT A FROM X")

    assert (caught.value.errno, caught.value.sqlstate) == (606, "57P03")
    assert "No active warehouse selected in the current session." in str(caught.value)
    assert sql(f"SHOW WAREHOUSES LIKE '{warehouse}'") == []
    assert sql.dicts("SHOW TABLES")[0]["name"] == "X"
    sql("USE WAREHOUSE COMPUTE_WH")
    assert sql("SELECT A FROM X") == []


def test_a_warehouse_that_is_dropped_or_altered_twice_is_an_error(sql: Sql, warehouse: str) -> None:
    sql(f"ALTER WAREHOUSE {warehouse} SUSPEND")
    for statement, errno in (
        (f"ALTER WAREHOUSE {warehouse} SUSPEND", 90064),
        ("ALTER WAREHOUSE NO_SUCH_WH RESUME", 2043),
        ("DROP WAREHOUSE NO_SUCH_WH", 2003),
        ("USE WAREHOUSE NO_SUCH_WH", 2043),
    ):
        with pytest.raises(ProgrammingError) as caught:
            sql(statement)
        assert caught.value.errno == errno, statement
    sql("DROP WAREHOUSE IF EXISTS NO_SUCH_WH")
    sql("ALTER WAREHOUSE IF EXISTS NO_SUCH_WH SUSPEND")
    sql(f"ALTER WAREHOUSE {warehouse} RESUME")
    with pytest.raises(ProgrammingError) as caught:
        sql(f"ALTER WAREHOUSE {warehouse} RESUME")
    assert caught.value.errno == 90063


# --- the session -----------------------------------------------------------------------------------------------------


def test_the_session_knows_where_it_is(sql: Sql, database: str) -> None:
    row = sql("SELECT CURRENT_DATABASE(), CURRENT_SCHEMA(), CURRENT_USER(), CURRENT_ROLE(), CURRENT_WAREHOUSE()")

    assert row == [(database, "PUBLIC", "TESTER", "ACCOUNTADMIN", "COMPUTE_WH")]
    assert sql.value("SELECT CURRENT_SESSION()") == str(sql.connection.session_id)
    first = sql.cursor.execute("SELECT 1").sfqid
    assert sql.value("SELECT LAST_QUERY_ID()") == first


def test_a_context_function_may_stand_anywhere_in_a_statement(sql: Sql, database: str) -> None:
    sql("CREATE TABLE X (A VARCHAR DEFAULT 'x', B VARCHAR)")

    sql("INSERT INTO X (B) SELECT CURRENT_DATABASE() || '.' || CURRENT_SCHEMA()")
    sql("INSERT INTO X VALUES (?, CURRENT_USER())", "bound")
    sql("UPDATE X SET A = CURRENT_ROLE() WHERE B LIKE CURRENT_DATABASE() || '%' AND A = ?", "x")

    assert sql("SELECT A, B FROM X ORDER BY A") == [("ACCOUNTADMIN", f"{database}.PUBLIC"), ("bound", "TESTER")]


def test_a_view_and_a_made_table_may_use_context_functions(sql: Sql, database: str) -> None:
    sql("CREATE TABLE X AS SELECT CURRENT_DATABASE() AS D, CURRENT_TIMESTAMP() AS T")
    sql("CREATE VIEW V AS SELECT CURRENT_SCHEMA() AS S")

    assert sql("SELECT D FROM X") == [(database,)]
    assert sql("SELECT S FROM V") == [("PUBLIC",)]


def test_a_statement_may_end_with_semicolons_and_hold_comments(sql: Sql) -> None:
    assert sql("SELECT 1;") == [(1,)]
    assert sql("-- first\nSELECT /* in */ 1 // last\n;") == [(1,)]


def test_query_history_contains_the_statements_of_the_session(sql: Sql, database: str) -> None:
    tag = an_id()
    sql("CREATE TABLE X (A NUMBER)")
    sql(f"ALTER SESSION SET QUERY_TAG = '{tag}'")
    sql("INSERT INTO X VALUES (1), (2)")
    query_id = sql.cursor.sfqid
    with pytest.raises(ProgrammingError):
        sql("SELECT 1 / 0 FROM X")

    rows = sql.dicts(
        "SELECT QUERY_ID, QUERY_TYPE, EXECUTION_STATUS, ERROR_CODE, ROWS_INSERTED,"
        " DATABASE_NAME, WAREHOUSE_NAME, TOTAL_ELAPSED_TIME"
        " FROM TABLE(INFORMATION_SCHEMA.QUERY_HISTORY_BY_SESSION(RESULT_LIMIT => 10)) WHERE QUERY_TAG = ? AND"
        " EXECUTION_STATUS <> 'running' AND QUERY_TYPE IN ('INSERT', 'SELECT') ORDER BY START_TIME",
        tag,
    )

    assert [row["EXECUTION_STATUS"] for row in rows] == ["success", "failed_with_error"]
    assert (rows[0]["QUERY_ID"], rows[0]["QUERY_TYPE"], rows[0]["ROWS_INSERTED"]) == (query_id, "INSERT", 2)
    assert (rows[0]["DATABASE_NAME"], rows[0]["WAREHOUSE_NAME"]) == (database, "COMPUTE_WH")
    assert int(rows[1]["ERROR_CODE"]) == 100051
