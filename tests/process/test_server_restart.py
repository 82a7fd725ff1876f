"""Everything in an embedded server survives its restart."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from loadgen.embedded.datadir import DataDir
from loadgen.embedded.postgres import STATEMENT_ROLE, SUPERUSER, PostgresServer
from tests.process.served import Wire, serving

LONG = "A_NAME_LONGER_THAN_WHAT_THE_DATABASE_BELOW_CAN_HOLD_" * 3  # 156 bytes; PostgreSQL stops at 63

OBJECTS = f"""
CREATE DATABASE KEEP COMMENT = 'to be kept'
CREATE SCHEMA KEEP.OTHER
CREATE DATABASE GONE
DROP DATABASE GONE
CREATE TABLE KEEP.OTHER.PLAIN (N NUMBER(10,2) NOT NULL, T VARCHAR(50) DEFAULT 'none', D DATE, V VARIANT)
INSERT INTO KEEP.OTHER.PLAIN SELECT 1.5, 'Grüße', '2024-02-29', PARSE_JSON('{{"a": [1, null]}}')
INSERT INTO KEEP.OTHER.PLAIN (N) VALUES (-2)
CREATE HYBRID TABLE KEEP.OTHER.KEYED (ID NUMBER AUTOINCREMENT PRIMARY KEY, CODE VARCHAR UNIQUE, W TIMESTAMP_NTZ, \
INDEX BY_W (W) INCLUDE (CODE))
INSERT INTO KEEP.OTHER.KEYED (CODE, W) VALUES ('a', '2024-01-01 00:00:00'), ('b', NULL)
CREATE TABLE KEEP.OTHER.COUNTED (ID NUMBER AUTOINCREMENT START 100 INCREMENT 10, X NUMBER)
INSERT INTO KEEP.OTHER.COUNTED (X) VALUES (1), (2)
CREATE VIEW KEEP.OTHER.SEEN AS SELECT ID, UPPER(CODE) AS C FROM KEEP.OTHER.KEYED WHERE ID > 1
CREATE TABLE KEEP.PUBLIC.{LONG}1 ({LONG}A NUMBER, {LONG}B NUMBER)
CREATE TABLE KEEP.PUBLIC.{LONG}2 ({LONG}A NUMBER, {LONG}B NUMBER)
INSERT INTO KEEP.PUBLIC.{LONG}1 VALUES (1, 2)
INSERT INTO KEEP.PUBLIC.{LONG}2 VALUES (3, 4)
CREATE SCHEMA KEEP.{LONG}S
CREATE VIEW KEEP.{LONG}S.{LONG}V AS SELECT {LONG}B FROM KEEP.PUBLIC.{LONG}2
CREATE TABLE KEEP.PUBLIC."odd ""name"" ä" ("lower" NUMBER)
INSERT INTO KEEP.PUBLIC."odd ""name"" ä" VALUES (7)
CREATE WAREHOUSE KEEP_WH WITH WAREHOUSE_SIZE = 'LARGE' MAX_CLUSTER_COUNT = 3 MIN_CLUSTER_COUNT = 2 \
AUTO_SUSPEND = 123 AUTO_RESUME = FALSE MAX_CONCURRENCY_LEVEL = 5 COMMENT = 'kept'
CREATE WAREHOUSE GONE_WH
DROP WAREHOUSE GONE_WH
USE WAREHOUSE COMPUTE_WH
ALTER WAREHOUSE COMPUTE_WH SET WAREHOUSE_SIZE = 'MEDIUM' STATEMENT_TIMEOUT_IN_SECONDS = 77
"""
LOOKS = f"""
SHOW SCHEMAS IN DATABASE KEEP
SHOW TABLES IN DATABASE KEEP
SHOW VIEWS IN DATABASE KEEP
SHOW INDEXES IN TABLE KEEP.OTHER.KEYED
DESCRIBE TABLE KEEP.OTHER.PLAIN
DESCRIBE TABLE KEEP.OTHER.KEYED
DESCRIBE TABLE KEEP.OTHER.COUNTED
DESCRIBE TABLE KEEP.PUBLIC.{LONG}1
SELECT N, T, D, V FROM KEEP.OTHER.PLAIN ORDER BY N
SELECT ID, CODE, W FROM KEEP.OTHER.KEYED ORDER BY CODE
SELECT ID, X FROM KEEP.OTHER.COUNTED ORDER BY X
SELECT C FROM KEEP.OTHER.SEEN ORDER BY C
SELECT {LONG}A, {LONG}B FROM KEEP.PUBLIC.{LONG}1
SELECT {LONG}A, {LONG}B FROM KEEP.PUBLIC.{LONG}2
SELECT {LONG}B FROM KEEP.{LONG}S.{LONG}V
SELECT "lower" FROM KEEP.PUBLIC."odd ""name"" ä"
SHOW PARAMETERS IN WAREHOUSE KEEP_WH
SHOW PARAMETERS IN WAREHOUSE COMPUTE_WH
"""
PASSING = {"state", "started_clusters", "running", "queued", "is_current", "available", "resumed_on"}


def seen(connection: Any) -> dict[str, Any]:
    """Everything that a user can query, without values that change by themselves."""
    looks: dict[str, Any] = {}
    for text in LOOKS.strip().splitlines():
        cursor = connection.cursor().execute(text)
        looks[text] = ([column.name for column in cursor.description], cursor.fetchall())
    cursor = connection.cursor().execute("SHOW DATABASES")
    looks["databases"] = sorted(row[1] for row in cursor.fetchall())
    cursor = connection.cursor().execute("SHOW WAREHOUSES")
    names = [column.name for column in cursor.description]
    for row in cursor.fetchall():
        look = dict(zip(names, row, strict=True))
        looks[f"warehouse {look['name']}"] = {name: value for name, value in look.items() if name not in PASSING}
    return looks


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL])
def test_everything_survives_a_restart(scratch, number):
    with serving(scratch / "data") as server:
        with server.connect() as connection:
            for text in OBJECTS.replace("\\\n", "").strip().splitlines():
                connection.cursor().execute(text)
        with server.connect() as connection:  # its context is not the other's, as after the restart
            before = seen(connection)
        server.stop(number)

    with serving(scratch / "data") as server, server.connect() as connection:
        assert seen(connection) == before
        assert "KEEP" in before["databases"]
        assert "GONE" not in before["databases"]
        assert "warehouse GONE_WH" not in before
        assert before["warehouse KEEP_WH"]["size"] == "Large"
        cursor = connection.cursor().execute("USE SCHEMA KEEP.OTHER")
        with pytest.raises(Exception, match="Duplicate key value"):
            cursor.execute("INSERT INTO KEYED (CODE) VALUES ('a')")
        with pytest.raises(Exception, match="already exists"):
            cursor.execute(f"CREATE TABLE KEEP.PUBLIC.{LONG}1 (X NUMBER)")
        cursor.execute("INSERT INTO KEYED (CODE) VALUES ('later')")
        cursor.execute("INSERT INTO COUNTED (X) VALUES (3)")
        assert cursor.execute("SELECT COUNT(*), COUNT(DISTINCT ID) FROM KEYED").fetchall() == [(3, 3)]
        assert cursor.execute("SELECT MIN(ID) > 110 FROM COUNTED WHERE X = 3").fetchall() == [(True,)]


def test_a_directory_with_functions_of_another_version_is_brought_up_to_date(scratch):
    data = scratch / "data"
    with serving(data) as server:
        wire = Wire(server, databaseName="OLD")
        wire.sql("CREATE TABLE T (S VARCHAR DEFAULT INITCAP('a b'), V VARIANT)")
        wire.sql("CREATE VIEW SPLIT AS SELECT SPLIT_PART(S, ' ', 2) AS P, V:a::NUMBER AS A FROM T")
        wire.sql("INSERT INTO T (V) SELECT PARSE_JSON('{\"a\": 5}')")
    asyncio.run(make_functions_older(data))

    with serving(data) as server:
        wire = Wire(server, databaseName="OLD")
        assert wire.sql("SELECT P, A FROM SPLIT") == [["B", "5"]]
        wire.sql("INSERT INTO T (V) SELECT NULL")
        wire.sql("ALTER TABLE T ADD COLUMN X NUMBER")
        assert wire.sql("SELECT COUNT(S) FROM T") == [["2"]]
        wire.sql("DROP DATABASE OLD")


async def make_functions_older(path: Path) -> None:
    """Simulates an older version: functions with other parameter names, which PostgreSQL cannot replace, and all
    objects owned by the superuser, because the role did not exist."""
    with DataDir.claim(path) as data_dir:
        postgres = PostgresServer(data_dir, max_connections=20)
        await postgres.start()
        connection = await asyncpg.connect(**postgres.connect_kwargs(SUPERUSER))
        renamed = await connection.execute(
            "UPDATE pg_proc SET proargnames[1] = 'older_' || proargnames[1]"
            " WHERE pronamespace = 'sf'::regnamespace AND proargnames[1] <> ''"
        )
        await connection.execute(
            "DROP TABLE meta.setup; DROP FUNCTION meta.create_schema;"
            f"REASSIGN OWNED BY {STATEMENT_ROLE} TO {SUPERUSER}; DROP OWNED BY {STATEMENT_ROLE};"
            f"DROP ROLE {STATEMENT_ROLE};"
            "INSERT INTO meta.object VALUES ('functions', 'digest', '\"older\"')"
        )
        await connection.close()
        await postgres.stop()
    assert renamed != "UPDATE 0"


@pytest.mark.slow
def test_query_ids_and_sessions_of_two_lives_differ(home):
    found: list[tuple[str, str]] = []
    for _ in range(2):
        with serving(home) as server, server.connect() as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT 1")
            found.append((cursor.sfqid, str(connection.session_id)))

    assert len({query_id for query_id, _ in found}) == 2
    assert len({session_id for _, session_id in found}) == 2
