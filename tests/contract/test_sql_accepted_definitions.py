"""Definitions and constraints that Snowflake accepts: the embedded server makes and keeps them."""

from __future__ import annotations

from decimal import Decimal

import pytest
from snowflake.connector.errors import Error, ProgrammingError

from tests.contract.accepted_builders import (
    PRIMARY_KEY,
)
from tests.contract.sql import Sql

pytestmark = pytest.mark.any_driver


# --- definitions -----------------------------------------------------------------------------------------------------


def test_a_table_can_be_replaced_kept_and_dropped(sql: Sql) -> None:
    sql("CREATE TABLE X (A NUMBER)")
    sql("INSERT INTO X VALUES (1)")
    sql("CREATE TABLE IF NOT EXISTS X (B NUMBER)")
    assert sql("SELECT A FROM X") == [(1,)]

    sql("CREATE OR REPLACE TABLE X (B NUMBER)")
    assert sql("SELECT B FROM X") == []
    sql("CREATE OR REPLACE HYBRID TABLE X (C NUMBER PRIMARY KEY)")
    assert sql.names("SELECT * FROM X") == ["C"]
    sql("DROP TABLE X")
    sql("DROP TABLE IF EXISTS X")

    with pytest.raises(ProgrammingError) as caught:
        sql("SELECT * FROM X")
    assert caught.value.errno == 2003


def test_columns_can_be_added_dropped_and_renamed(sql: Sql) -> None:
    sql("CREATE TABLE X (A NUMBER, B VARCHAR)")
    sql("INSERT INTO X VALUES (1, 'b')")

    sql("ALTER TABLE X ADD COLUMN C NUMBER DEFAULT 7")
    sql("ALTER TABLE X ADD D VARCHAR, E FLOAT")
    sql("ALTER TABLE X ADD COLUMN IF NOT EXISTS C NUMBER")
    sql("ALTER TABLE X RENAME COLUMN B TO BB")
    sql("ALTER TABLE X DROP COLUMN A, E")
    sql("ALTER TABLE IF EXISTS NO_SUCH ADD COLUMN Z NUMBER")

    assert sql.dicts("SELECT * FROM X") == [{"BB": "b", "C": 7, "D": None}]
    sql("INSERT INTO X (BB) VALUES ('c')")
    assert sql("SELECT C FROM X WHERE BB = 'c'") == [(7,)]


def test_columns_can_be_made_wider_and_nullable(sql: Sql) -> None:
    sql("CREATE TABLE X (A VARCHAR(2) NOT NULL, B NUMBER(3, 0))")

    sql("ALTER TABLE X ALTER COLUMN A SET DATA TYPE VARCHAR(5)")
    sql("ALTER TABLE X MODIFY COLUMN A DROP NOT NULL")
    sql("ALTER TABLE X ALTER B TYPE NUMBER(10, 0)")
    sql("INSERT INTO X VALUES ('abcde', 1234567890), (NULL, NULL)")

    assert [(row["type"], row["null?"]) for row in sql.dicts("DESCRIBE TABLE X")] == [
        ("VARCHAR(5)", "Y"),
        ("NUMBER(10,0)", "Y"),
    ]
    with pytest.raises(ProgrammingError) as caught:
        sql("INSERT INTO X (A) VALUES ('abcdef')")
    assert caught.value.errno == 100078


def test_a_renamed_table_leaves_its_name_free_for_another(sql: Sql) -> None:
    for kind in ("TABLE", "HYBRID TABLE"):
        definition = f"CREATE {kind} X (ID NUMBER AUTOINCREMENT PRIMARY KEY, A NUMBER UNIQUE)"
        sql(definition)
        sql("INSERT INTO X (A) VALUES (10)")

        sql("ALTER TABLE X RENAME TO Y")
        sql(definition)
        sql("INSERT INTO X (A) VALUES (20)")
        sql("INSERT INTO Y (A) VALUES (30)")

        assert sql("SELECT ID, A FROM X") == [(1, 20)]
        assert sql("SELECT ID, A FROM Y ORDER BY A") == [(1, 10), (2, 30)]
        sql("DROP TABLE X")
        sql("INSERT INTO Y (A) VALUES (40)")
        assert sql.value("SELECT MAX(ID) FROM Y") == 3
        sql("DROP TABLE Y")


def test_an_index_can_be_dropped_also_after_its_table_was_renamed(sql: Sql) -> None:
    sql("CREATE HYBRID TABLE X (ID NUMBER PRIMARY KEY, A NUMBER, B NUMBER, INDEX I1 (A), INDEX I2 (B) INCLUDE (A))")
    sql("DROP INDEX X.I1")
    sql("ALTER TABLE X RENAME TO Y")
    sql("CREATE HYBRID TABLE X (ID NUMBER PRIMARY KEY, A NUMBER, INDEX I2 (A))")

    sql("DROP INDEX Y.I2")

    assert [index["name"] for index in sql.dicts("SHOW INDEXES IN TABLE Y") if index["is_unique"] == "N"] == []
    assert [index["name"] for index in sql.dicts("SHOW INDEXES IN TABLE X") if index["is_unique"] == "N"] == ["I2"]


def test_a_table_is_made_from_a_query(sql: Sql) -> None:
    assert sql.value(
        "CREATE TABLE X AS SELECT SEQ4() AS ID, 'a' AS S, 1.5 AS D FROM TABLE(GENERATOR(ROWCOUNT => 3))"
    ) == ("Table X successfully created.")
    sql("CREATE TABLE Y (I NUMBER(10, 0), T VARCHAR(5)) AS SELECT ID, S FROM X WHERE ID > 0")
    sql("CREATE HYBRID TABLE Z (ID NUMBER PRIMARY KEY, S VARCHAR) AS SELECT ID, S FROM X")

    assert sql("SELECT * FROM X ORDER BY ID") == [(n, "a", Decimal("1.5")) for n in range(3)]
    assert sql("SELECT * FROM Y ORDER BY I") == [(1, "a"), (2, "a")]
    assert [row["type"] for row in sql.dicts("DESCRIBE TABLE Y")] == ["NUMBER(10,0)", "VARCHAR(5)"]
    with pytest.raises(ProgrammingError) as caught:
        sql("INSERT INTO Z VALUES (1, 'again')")
    assert caught.value.errno == PRIMARY_KEY


def test_a_view_shows_what_its_query_would(numbers: Sql) -> None:
    numbers("CREATE VIEW ODD (NUMBER_OF, NAME) AS SELECT I, WORD FROM N WHERE G = 'odd'")
    numbers("CREATE OR REPLACE VIEW SMALL AS SELECT * FROM ODD WHERE NUMBER_OF < 4")
    numbers("CREATE VIEW IF NOT EXISTS SMALL AS SELECT 1 AS A")

    assert numbers("SELECT NAME FROM SMALL ORDER BY NUMBER_OF") == [("one",), ("three",)]
    assert [view["name"] for view in numbers.dicts("SHOW VIEWS")] == ["ODD", "SMALL"]
    numbers("DROP VIEW SMALL")
    assert [view["name"] for view in numbers.dicts("SHOW VIEWS")] == ["ODD"]


def test_a_view_outlives_the_replacement_of_what_it_reads(sql: Sql) -> None:
    sql("CREATE TABLE X (A NUMBER)")
    sql("CREATE VIEW V1 AS SELECT A FROM X")
    sql("CREATE VIEW V2 AS SELECT A + 1 AS B FROM V1")

    sql("CREATE OR REPLACE TABLE X (A NUMBER, NEW VARCHAR)")
    sql("INSERT INTO X (A) VALUES (5)")
    after_table = sql("SELECT B FROM V2")
    sql("CREATE OR REPLACE VIEW V1 AS SELECT A * 10 AS A FROM X")

    assert after_table == [(6,)]
    assert sql("SELECT B FROM V2") == [(51,)]


def test_a_view_does_not_stop_changes_of_its_table(sql: Sql) -> None:
    sql("CREATE TABLE X (A NUMBER, B VARCHAR(5), C NUMBER)")
    sql("CREATE VIEW V AS SELECT A, B, C FROM X")

    sql("ALTER TABLE X ALTER COLUMN B SET DATA TYPE VARCHAR(10)")
    sql("ALTER TABLE X ADD COLUMN D NUMBER")
    sql("ALTER TABLE X DROP COLUMN C")
    sql("INSERT INTO X (A, B) VALUES (1, 'longer')")

    assert sql("SELECT A, B FROM X") == [(1, "longer")]


@pytest.mark.parametrize("kind", ["TABLE", "HYBRID TABLE"])
def test_truncate_empties_a_table(sql: Sql, kind: str) -> None:
    sql(f"CREATE {kind} X (A NUMBER PRIMARY KEY)")
    sql("INSERT INTO X VALUES (1), (2)")

    sql("TRUNCATE TABLE X")
    sql("TRUNCATE TABLE IF EXISTS NO_SUCH")

    assert sql("SELECT * FROM X") == []
    sql("INSERT INTO X VALUES (1)")


def test_comments_are_kept_and_shown(sql: Sql) -> None:
    sql("CREATE TABLE X (A NUMBER COMMENT 'the a') COMMENT = 'the x'")
    assert sql.dicts("SHOW TABLES LIKE 'x'")[0]["comment"] == "the x"
    assert sql.dicts("DESCRIBE TABLE X")[0]["comment"] == "the a"

    sql("COMMENT ON TABLE X IS 'it''s new'")
    sql("ALTER TABLE X ALTER COLUMN A COMMENT 'newer'")

    assert sql.value("SELECT COMMENT FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_NAME = 'X'") == "it's new"
    assert sql.value("SELECT COMMENT FROM INFORMATION_SCHEMA.COLUMNS WHERE TABLE_NAME = 'X'") == "newer"


def test_defaults_fill_what_an_insert_leaves_out(sql: Sql) -> None:
    sql(
        "CREATE TABLE X (A NUMBER, B NUMBER DEFAULT 1 + 1, C VARCHAR DEFAULT 'it''s, ok', D"
        " BOOLEAN DEFAULT FALSE NOT NULL,"
        " E TIMESTAMP_NTZ DEFAULT SYSDATE(), F VARCHAR DEFAULT UUID_STRING(), G DATE DEFAULT CURRENT_DATE())"
    )
    sql("INSERT INTO X (A) VALUES (1)")
    sql("INSERT INTO X (A, B, C) VALUES (2, DEFAULT, NULL)")

    rows = sql("SELECT A, B, C, D, E IS NOT NULL, LENGTH(F), G IS NOT NULL FROM X ORDER BY A")

    assert rows == [(1, 2, "it's, ok", False, True, 36, True), (2, 2, None, False, True, 36, True)]
    assert sql.value("SELECT COUNT(DISTINCT F) FROM X") == 2


@pytest.mark.parametrize("kind", ["TABLE", "HYBRID TABLE"])
def test_autoincrement_counts_from_its_start_by_its_step(sql: Sql, kind: str) -> None:
    sql(f"CREATE {kind} X (ID NUMBER AUTOINCREMENT START 100 INCREMENT 10 PRIMARY KEY, A VARCHAR)")

    sql("INSERT INTO X (A) VALUES ('a'), ('b')")
    sql("INSERT INTO X (A) SELECT 'c'")
    sql("INSERT INTO X VALUES (5, 'mine')")

    assert sql("SELECT ID FROM X ORDER BY A") == [(100,), (110,), (120,), (5,)]


@pytest.mark.parametrize(
    "option",
    [
        "AUTOINCREMENT",
        "IDENTITY",
        "IDENTITY(1, 1)",
        "AUTOINCREMENT ORDER",
        "AUTOINCREMENT NOORDER",
    ],
)
def test_identity_is_another_word_for_autoincrement(sql: Sql, option: str) -> None:
    sql(f"CREATE TABLE X (ID NUMBER {option}, A NUMBER)")
    sql("INSERT INTO X (A) VALUES (0)")

    assert sql("SELECT ID FROM X") == [(1,)]


def test_a_column_added_later_has_the_properties_of_its_definition(sql: Sql) -> None:
    sql("CREATE HYBRID TABLE X (ID NUMBER PRIMARY KEY)")
    for definition, check in (
        ("U VARCHAR UNIQUE", lambda: sql("INSERT INTO X (ID, U) VALUES (1, 'same'), (2, 'same')")),
        ("R NUMBER REFERENCES X (ID)", lambda: sql("INSERT INTO X (ID, R) VALUES (3, 99)")),
        ("P NUMBER PRIMARY KEY", None),
    ):
        try:
            sql(f"ALTER TABLE X ADD COLUMN {definition}")
        except ProgrammingError:
            continue  # refusing it is fine; taking it and forgetting the key is not
        assert check is not None
        with pytest.raises(ProgrammingError):
            check()


def test_autoincrement_of_a_column_added_to_an_empty_table_counts(sql: Sql) -> None:
    sql("CREATE TABLE X (A NUMBER)")
    sql("ALTER TABLE X ADD COLUMN ID NUMBER AUTOINCREMENT")
    sql("INSERT INTO X (A) VALUES (0)")

    assert sql("SELECT ID FROM X") == [(1,)]


def test_databases_and_schemas_come_and_go(sql: Sql, database: str) -> None:
    sql("CREATE SCHEMA S1 COMMENT = 'one'")
    assert sql("SELECT CURRENT_DATABASE(), CURRENT_SCHEMA()") == [(database, "S1")]
    sql("CREATE TABLE X AS SELECT 1 AS A")
    sql(f"CREATE DATABASE {database}_TWO")
    sql("CREATE TABLE X AS SELECT 2 AS A")
    sql(f"USE SCHEMA {database}.PUBLIC")

    assert sql(f"SELECT A FROM S1.X UNION ALL SELECT A FROM {database}_TWO.PUBLIC.X ORDER BY 1") == [(1,), (2,)]
    assert {row["name"] for row in sql.dicts(f"SHOW SCHEMAS IN DATABASE {database}")} >= {
        "S1",
        "PUBLIC",
        "INFORMATION_SCHEMA",
    }
    assert [row["name"] for row in sql.dicts(f"SHOW DATABASES LIKE '{database}\\\\_TWO'")] == [f"{database}_TWO"]
    sql(f"USE DATABASE {database}_TWO")
    assert sql("SELECT CURRENT_SCHEMA()") == [("PUBLIC",)]
    sql(f"DROP DATABASE {database}_TWO")
    assert sql("SELECT CURRENT_DATABASE()") == [(None,)]
    with pytest.raises(ProgrammingError) as caught:
        sql("SELECT * FROM X")
    assert (caught.value.errno, caught.value.sqlstate) == (90105, "22000")


# --- constraints -----------------------------------------------------------------------------------------------------


@pytest.fixture
def orders(sql: Sql) -> Sql:
    sql("CREATE HYBRID TABLE CUSTOMERS (ID NUMBER PRIMARY KEY, EMAIL VARCHAR(100) UNIQUE)")
    sql(
        "CREATE HYBRID TABLE ORDERS (ID NUMBER NOT NULL, CUSTOMER_ID NUMBER NOT NULL, NOTE"
        " VARCHAR(5), PRIMARY KEY (ID),"
        " FOREIGN KEY (CUSTOMER_ID) REFERENCES CUSTOMERS (ID), INDEX BY_CUSTOMER (CUSTOMER_ID))"
    )
    sql("INSERT INTO CUSTOMERS VALUES (1, 'a@x'), (2, NULL), (3, NULL)")
    sql("INSERT INTO ORDERS VALUES (10, 1, 'n')")
    return sql


VIOLATIONS = [
    ("INSERT INTO CUSTOMERS VALUES (1, 'b@x')", 200001, "22000", "Primary key already exists"),
    ("INSERT INTO CUSTOMERS VALUES (7, 'c@x'), (7, 'd@x')", 200001, "22000", "Primary key already exists"),
    ("UPDATE CUSTOMERS SET ID = 2 WHERE ID = 3", 200001, "22000", "Primary key already exists"),
    (
        "INSERT INTO CUSTOMERS VALUES (4, 'a@x')",
        None,
        "22000",
        'Duplicate key value violates unique constraint "SYS_INDEX_',
    ),
    (
        "UPDATE CUSTOMERS SET EMAIL = 'a@x' WHERE ID = 2",
        None,
        "22000",
        "Duplicate key value violates unique constraint",
    ),
    ("INSERT INTO CUSTOMERS VALUES (NULL, 'x')", 100072, "22000", "NULL result in a non-nullable column"),
    ("INSERT INTO ORDERS (ID) VALUES (11)", 100072, "22000", "NULL result in a non-nullable column"),
    ("UPDATE ORDERS SET CUSTOMER_ID = NULL", 100072, "22000", "NULL result in a non-nullable column"),
    ("INSERT INTO ORDERS VALUES (11, 99, NULL)", 200009, "22000", "Foreign key constraint"),
    ("DELETE FROM CUSTOMERS WHERE ID = 1", 200009, "22000", "Foreign key constraint"),
    ("UPDATE CUSTOMERS SET ID = 50 WHERE ID = 1", 200009, "22000", "Foreign key constraint"),
    ("INSERT INTO ORDERS VALUES (11, 1, 'too long')", 100078, "22000", "is too long and would be truncated"),
]


@pytest.mark.parametrize(("statement", "errno", "sqlstate", "wording"), VIOLATIONS, ids=[v[0] for v in VIOLATIONS])
def test_a_hybrid_table_enforces_its_constraints(
    orders: Sql, statement: str, errno: int | None, sqlstate: str, wording: str
) -> None:
    before = (orders("SELECT * FROM CUSTOMERS ORDER BY ID"), orders("SELECT * FROM ORDERS"))

    with pytest.raises(Error) as caught:
        orders(statement)

    assert errno in (None, caught.value.errno)
    assert caught.value.sqlstate == sqlstate
    assert wording in str(caught.value)
    assert (orders("SELECT * FROM CUSTOMERS ORDER BY ID"), orders("SELECT * FROM ORDERS")) == before


def test_a_unique_column_may_be_null_many_times(orders: Sql) -> None:
    assert orders.value("SELECT COUNT(*) FROM CUSTOMERS WHERE EMAIL IS NULL") == 2


def test_a_standard_table_accepts_keys_and_does_not_enforce_them(sql: Sql) -> None:
    sql("CREATE TABLE P (ID NUMBER PRIMARY KEY, U VARCHAR UNIQUE)")
    sql("CREATE TABLE C (ID NUMBER, P_ID NUMBER REFERENCES P (ID), CONSTRAINT UQ UNIQUE (P_ID) NOT ENFORCED)")

    sql("INSERT INTO P VALUES (1, 'x'), (1, 'x')")
    sql("INSERT INTO C VALUES (1, 99), (2, 99)")

    assert sql.value("SELECT COUNT(*) FROM P WHERE ID = 1") == 2
    with pytest.raises(Error) as caught:
        sql("INSERT INTO P VALUES (NULL, 'y')")
    assert caught.value.errno == 100072


def test_a_unique_key_added_later_is_enforced(orders: Sql) -> None:
    orders("ALTER TABLE ORDERS ADD CONSTRAINT ONE_NOTE UNIQUE (NOTE)")

    with pytest.raises(ProgrammingError) as caught:
        orders("INSERT INTO ORDERS VALUES (11, 1, 'n')")
    assert "Duplicate key value violates unique constraint" in str(caught.value)
