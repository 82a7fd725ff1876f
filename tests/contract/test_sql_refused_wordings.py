"""A refusal speaks Snowflake's language; what the server cannot do, it refuses by name."""

from __future__ import annotations

import re

import pytest

from tests.cases import in_one_test
from tests.contract.refused_builders import Refusals, message

pytestmark = pytest.mark.any_driver
# --- wordings ---------------------------------------------------------------------------------------------------------
FAILING = [
    ("SELECT 1 / 0", 100051, "22012"),
    ("SELECT MOD(1, 0)", 100051, "22012"),
    ("SELECT 'abc'::NUMBER", 100038, "22018"),
    ("SELECT TO_NUMBER('1x')", 100038, "22018"),
    ("SELECT A + 'abc' FROM T", 100038, "22018"),
    ("INSERT INTO T (A) VALUES ('abc')", 100038, "22018"),
    ("SELECT 'abc'::DATE", None, None),
    ("SELECT '2024-13-45'::TIMESTAMP_NTZ", None, None),
    ("SELECT 'maybe'::BOOLEAN", None, None),
    ("SELECT PARSE_JSON('{')", None, None),
    ("SELECT 'zz'::BINARY", None, None),
    ("SELECT 99999999999999999999999999999999999999 * 10", None, None),
    ("SELECT 1000::NUMBER(3, 0)", None, None),
    ("INSERT INTO H (ID, N) VALUES (1, 1)", 200001, "22000"),
    ("INSERT INTO H (ID, N) VALUES (NULL, 1)", 100072, "22000"),
    ("INSERT INTO H (N) VALUES (1)", 100072, "22000"),
    ("INSERT INTO T (A) VALUES (1), ('abc')", None, None),
    ("SELECT * FROM VALUES (1), ('abc')", None, None),
    ("INSERT INTO T (A) VALUES (1, 2)", 2057, "42601"),
    ("INSERT INTO T (A, B) VALUES (1)", 2057, "42601"),
    ("INSERT INTO U SELECT 1", 2057, "42601"),
    ("INSERT INTO U SELECT * FROM T", None, None),
    ("INSERT INTO T (NO_SUCH) VALUES (1)", 904, "42000"),
    ("INSERT INTO T (A, A) VALUES (1, 1)", None, None),
    ("UPDATE T SET NO_SUCH = 1", 904, "42000"),
    ("UPDATE T SET A = 1, A = 2", None, None),
    ("UPDATE T SET A = NO_SUCH", 904, "42000"),
    ("DELETE FROM T WHERE NO_SUCH = 1", 904, "42000"),
    ("SELECT NO_SUCH.A FROM T", 904, "42000"),
    ("SELECT T.NO_SUCH FROM T", 904, "42000"),
    ("SELECT A FROM T GROUP BY B", 979, "42601"),
    ("SELECT A, COUNT(*) FROM T", 979, "42601"),
    ("SELECT A FROM T WHERE COUNT(*) > 1", None, None),
    ("SELECT A FROM T WHERE ROW_NUMBER() OVER (ORDER BY A) = 1", None, None),
    ("SELECT SUM(SUM(A)) FROM T", None, None),
    ("SELECT (SELECT A FROM T UNION ALL SELECT 2)", 90150, "22000"),
    ("SELECT (SELECT A, B FROM T)", None, None),
    ("SELECT A FROM T WHERE A IN (SELECT A, B FROM T)", None, None),
    ("SELECT 1 UNION SELECT 1, 2", None, None),
    ("SELECT A FROM T ORDER BY 5", None, None),
    ("SELECT A FROM T ORDER BY NO_SUCH", 904, "42000"),
    ("SELECT UPPER()", 938, "22023"),
    ("SELECT UPPER('a', 'b')", 939, "22023"),
    ("SELECT SQRT(-1)", None, None),
    ("SELECT LN(0)", None, None),
    ("SELECT A AND TRUE FROM T WHERE B", None, None),
    ("SELECT V + 1 FROM T", None, None),
    ("SELECT V:k + 1 FROM T", None, None),
    ("SELECT DATEADD(NO_SUCH, 1, SYSDATE())", None, None),
    ("SELECT DATEDIFF(day, 'abc', SYSDATE())", None, None),
    ("SELECT SUBSTR('abc', 'x')", None, None),
    ("SELECT REGEXP_LIKE('a', '(')", None, None),
    ("SELECT T1.A FROM T AS T1, T AS T1", None, None),
    ("SELECT * FROM T NATURAL JOIN NO_SUCH", 2003, "42S02"),
    ("SELECT * FROM T JOIN U USING (NO_SUCH)", None, None),
    ("WITH X AS (SELECT 1) SELECT * FROM Y", 2003, "42S02"),
    ("WITH T AS (SELECT 1 AS A) (SELECT A FROM T) ORDER BY 1", 2, "0A000"),
    ("SELECT GROUPING(A) OVER (PARTITION BY A) FROM T", 2, "0A000"),
    ("SELECT COUNT(A, B) WITHIN GROUP (ORDER BY A) FROM T", 2, "0A000"),
    ("SELECT 1e", 1003, "42000"),
    ("WITH X(A, B) AS (SELECT 1) SELECT * FROM X", None, None),
    ("SELECT * FROM TABLE(FLATTEN())", None, None),
    ("SELECT * FROM TABLE(FLATTEN(NO_SUCH => 1))", None, None),
    ("SELECT * FROM TABLE(INFORMATION_SCHEMA.QUERY_HISTORY(RESULT_LIMIT => 0))", None, None),
    ("SELECT * FROM TABLE(INFORMATION_SCHEMA.QUERY_HISTORY(NO_SUCH => 1))", None, None),
    ("SELECT * FROM TABLE(INFORMATION_SCHEMA.QUERY_HISTORY(END_TIME_RANGE_START => 'abc'))", None, None),
    ("CREATE TABLE T (A NUMBER)", 2002, "42710"),
    ("CREATE VIEW T AS SELECT 1 AS A", 2002, "42710"),
    ("CREATE TABLE X (A NUMBER, A NUMBER)", 2025, None),
    ("CREATE TABLE X (A NUMBER(39, 0))", None, None),
    ("CREATE TABLE X (A NUMBER(10, 11))", None, None),
    ("CREATE TABLE X (A VARCHAR(0))", None, None),
    ("CREATE TABLE X (A VARCHAR(999999999))", None, None),
    ("CREATE TABLE X (A TIMESTAMP_NTZ(10))", None, None),
    ("CREATE TABLE X (A NO_SUCH)", None, None),
    ("CREATE TABLE X (A NUMBER DEFAULT 'abc')", None, None),
    ("CREATE TABLE X (A NUMBER, PRIMARY KEY (NO_SUCH))", 904, "42000"),
    ("CREATE TABLE IF NOT EXISTS X", None, None),
    ("CREATE OR REPLACE TABLE IF NOT EXISTS X (A NUMBER)", 1003, "42000"),
    ("CREATE OR REPLACE HYBRID TABLE IF NOT EXISTS X (A NUMBER PRIMARY KEY)", 1003, "42000"),
    ("CREATE OR REPLACE DATABASE IF NOT EXISTS X", 1003, "42000"),
    ("CREATE OR REPLACE SCHEMA IF NOT EXISTS X", 1003, "42000"),
    ("CREATE OR REPLACE VIEW IF NOT EXISTS X AS SELECT A FROM T", 1003, "42000"),
    ("CREATE OR REPLACE WAREHOUSE IF NOT EXISTS X", 1003, "42000"),
    ("CREATE HYBRID TABLE X (A NUMBER)", None, "0A000"),
    ("CREATE HYBRID TABLE X (A VARIANT PRIMARY KEY)", None, None),
    ("CREATE HYBRID TABLE X (A NUMBER PRIMARY KEY, V VARIANT, INDEX I (V))", None, None),
    ("CREATE HYBRID TABLE X (A NUMBER PRIMARY KEY, B NUMBER, V VARIANT, INDEX I (B) INCLUDE (V))", None, None),
    ("CREATE HYBRID TABLE X (A TIMESTAMP_TZ PRIMARY KEY)", None, None),
    ("CREATE HYBRID TABLE X (A NUMBER PRIMARY KEY, B NUMBER REFERENCES NO_SUCH (A))", 2003, "42S02"),
    ("CREATE HYBRID TABLE X (A NUMBER PRIMARY KEY, B NUMBER REFERENCES H (N))", None, None),
    ("CREATE HYBRID TABLE X (A NUMBER PRIMARY KEY, B NUMBER REFERENCES H (NO_SUCH))", None, None),
    ("CREATE HYBRID TABLE X (A NUMBER PRIMARY KEY, B VARCHAR REFERENCES H (ID))", None, None),
    ("CREATE HYBRID TABLE X (A NUMBER PRIMARY KEY) CLUSTER BY (A)", None, None),
    ("CREATE TRANSIENT HYBRID TABLE X (A NUMBER PRIMARY KEY)", None, None),
    ("CREATE HYBRID TABLE X AS SELECT 1 AS A", None, "0A000"),
    ("CREATE TABLE X AS SELECT 1, 1", None, None),
    ("CREATE TABLE X AS SELECT NO_SUCH FROM T", 904, "42000"),
    ("CREATE TABLE X (A, B) AS SELECT 1", None, None),
    ("CREATE INDEX I ON T (A)", None, None),
    ("CREATE INDEX I ON H (NO_SUCH)", 904, "42000"),
    ("DROP INDEX H.NO_SUCH", 2003, "02000"),
    ("ALTER TABLE T DROP COLUMN NO_SUCH", None, None),
    ("ALTER TABLE T ADD COLUMN A NUMBER", None, None),
    ("ALTER TABLE T RENAME COLUMN NO_SUCH TO X", None, None),
    ("ALTER TABLE T RENAME COLUMN A TO B", None, None),
    ("ALTER TABLE T RENAME TO U", 2002, "42710"),
    ("ALTER TABLE T ALTER COLUMN A SET DATA TYPE VARCHAR", None, None),
    ("ALTER TABLE H DROP COLUMN ID", None, None),
    ("ALTER TABLE H ADD PRIMARY KEY (N)", None, None),
    ("ALTER TABLE U ADD COLUMN Z NUMBER DEFAULT 'abc'", None, None),
    ("ALTER SESSION SET NO_SUCH = 1", None, "22023"),
    ("ALTER SESSION SET TIMEZONE = 'Mars/Olympus'", None, "22023"),
    ("ALTER SESSION SET STATEMENT_TIMEOUT_IN_SECONDS = 'soon'", None, "22023"),
    ("ALTER SESSION SET LOCK_TIMEOUT = -1", None, "22023"),
    ("ALTER SESSION UNSET NO_SUCH", None, "22023"),
    ("ALTER WAREHOUSE NO_SUCH SUSPEND", 2043, "02000"),
    ("CREATE WAREHOUSE X WAREHOUSE_SIZE = 'ENORMOUS'", None, "22023"),
    ("CREATE WAREHOUSE X NO_SUCH = 1", None, None),
    ("CREATE WAREHOUSE X MAX_CONCURRENCY_LEVEL = 0", None, None),
    ("CREATE WAREHOUSE X MIN_CLUSTER_COUNT = 3 MAX_CLUSTER_COUNT = 2", None, None),
    ("SHOW TABLES IN SCHEMA NO_SUCH", None, None),
    ("SHOW PARAMETERS IN WAREHOUSE NO_SUCH", None, None),
    ("DESCRIBE WAREHOUSE NO_SUCH", None, None),
    ("SELECT SYSTEM$CANCEL_QUERY('no such id')", None, None),
    ("SELECT SYSTEM$CANCEL_QUERY()", None, None),
    ("SELECT SYSTEM$WAIT('long')", None, None),
    ("SELECT SYSTEM$WAIT(1, 'FORTNIGHTS')", None, None),
    ("SELECT SYSTEM$ABORT_SESSION('x')", None, None),
    ("MERGE INTO T USING U ON T.A = U.A WHEN MATCHED THEN UPDATE SET NO_SUCH = 1", 904, "42000"),
    ("MERGE INTO T USING NO_SUCH AS S ON T.A = S.A WHEN MATCHED THEN DELETE", 2003, "42S02"),
    ("MERGE INTO T USING U ON T.A = U.A WHEN NOT MATCHED THEN INSERT (A) VALUES (1, 2)", None, None),
    ("MERGE INTO T USING U ON T.A = U.A WHEN NOT MATCHED THEN UPDATE SET A = 1", None, None),
    ("SELECT ?", 2049, "42601"),
    ("SELECT CURRENT_TIMESTAMP('x')", None, None),
    ("SELECT INTERVAL '1 day'", None, None),
    ("SELECT SYSDATE() - SYSDATE()", None, None),
    ("SELECT X'zz'", None, None),
    ("SELECT 1 AS", None, None),
    ("SELECT * FROM", None, None),
    ("INSERT INTO", None, None),
    ("CREATE", None, None),
    ("SHOW", None, None),
    ("ALTER", None, None),
    ("USE", None, None),
    ("DROP", None, None),
    ("DESCRIBE", None, None),
]  # fmt: skip


@in_one_test(("statement", "errno", "sqlstate"), FAILING)
def test_an_error_speaks_snowflakes_language(
    refusals: Refusals, statement: str, errno: int | None, sqlstate: str | None
) -> None:
    error = refusals.refusal(statement)

    assert errno in (None, error.errno), message(error)
    assert sqlstate in (None, error.sqlstate), message(error)


def test_an_ambiguous_column_is_called_so(refusals: Refusals) -> None:
    error = refusals.refusal("SELECT A FROM T JOIN U ON T.A = U.A")

    assert "ambiguous column name 'A'" in message(error)


def test_more_binds_than_placeholders_or_fewer_are_refused(refusals: Refusals) -> None:
    assert refusals.refusal("SELECT ?, ?", 1).errno == 2049
    assert refusals.run("SELECT ?, ?", 1, "a") == [(1, "a")]


# --- what the server does not do --------------------------------------------------------------------------------------


UNSUPPORTED = {
    "GRANT": ["GRANT SELECT ON TABLE T TO ROLE R", "GRANT ROLE R TO USER U", "GRANT USAGE ON WAREHOUSE W TO ROLE R"],
    "REVOKE": ["REVOKE SELECT ON TABLE T FROM ROLE R"],
    "PUT": ["PUT file:///tmp/none.csv @~"],
    "GET": ["GET @~/none.csv file:///tmp/"],
    "LIST": ["LIST @~"],
    "REMOVE": ["REMOVE @~/none.csv"],
    "COPY": ["COPY INTO T FROM @~/none.csv", "COPY INTO @~/none.csv FROM T", "COPY INTO H FROM @STAGE"],
    "STAGE": [
        "CREATE STAGE S", "CREATE OR REPLACE STAGE S", "DROP STAGE S", "SHOW STAGES",
    ],
    "FILE": ["CREATE FILE FORMAT F TYPE = CSV", "CREATE OR REPLACE FILE FORMAT F TYPE = CSV"],
    "STREAM": ["CREATE STREAM S ON TABLE T", "CREATE OR REPLACE STREAM S ON TABLE T", "SHOW STREAMS"],
    "TASK": ["CREATE TASK X SCHEDULE = '1 MINUTE' AS SELECT 1", "EXECUTE TASK X", "ALTER TASK X RESUME"],
    "PIPE": ["CREATE PIPE P AS COPY INTO T FROM @S"],
    "SEQUENCE": ["CREATE SEQUENCE S", "CREATE OR REPLACE SEQUENCE S START = 1", "DROP SEQUENCE S"],
    "FUNCTION": ["CREATE FUNCTION F() RETURNS NUMBER AS '1'", "CREATE OR REPLACE FUNCTION F() RETURNS NUMBER AS '1'"],
    "PROCEDURE": ["CREATE PROCEDURE P() RETURNS NUMBER LANGUAGE SQL AS 'BEGIN RETURN 1; END'"],
    "CALL": ["CALL P()", "CALL P(1, 'a')"],
    "EXECUTE IMMEDIATE": ["EXECUTE IMMEDIATE 'SELECT 1'", "EXECUTE IMMEDIATE $$ BEGIN RETURN 1; END $$"],
    "SCRIPTING": [
        "BEGIN SELECT 1; END", "BEGIN\n  LET X := 1;\n  RETURN X;\nEND;", "DECLARE X NUMBER; BEGIN RETURN 1; END",
    ],
    "ROLE": ["CREATE ROLE R", "DROP ROLE R"],
    "USER": ["CREATE USER U PASSWORD = 'x'", "ALTER USER U SET PASSWORD = 'x'", "SHOW USERS"],
    "TEMP": [
        "CREATE TEMPORARY TABLE X (A NUMBER)", "CREATE TEMP TABLE X (A NUMBER)",
        "CREATE OR REPLACE TEMP TABLE X (A NUMBER)", "CREATE TEMPORARY VIEW X AS SELECT 1 AS A",
    ],
    "MATERIALIZED": [
        "CREATE MATERIALIZED VIEW X AS SELECT A FROM T", "CREATE OR REPLACE MATERIALIZED VIEW X AS SELECT A FROM T",
    ],
    "DYNAMIC": ["CREATE DYNAMIC TABLE X TARGET_LAG = '1 minute' WAREHOUSE = W AS SELECT A FROM T"],
    "EXTERNAL": ["CREATE EXTERNAL TABLE X LOCATION = @S FILE_FORMAT = (TYPE = CSV)"],
    "ICEBERG": ["CREATE ICEBERG TABLE X (A NUMBER) CATALOG = 'SNOWFLAKE'"],
    "CLONE": ["CREATE TABLE X CLONE T", "CREATE DATABASE X CLONE REFUSED", "CREATE SCHEMA X CLONE PUBLIC"],
    "LIKE": ["CREATE TABLE X LIKE T"],
    "MASKING": ["CREATE MASKING POLICY P AS (V VARCHAR) RETURNS VARCHAR -> V"],
    "NETWORK": ["CREATE NETWORK POLICY P"],
    "TAG": ["CREATE TAG X"],
    "ALERT": ["CREATE ALERT X SCHEDULE = '1 MINUTE' IF (EXISTS (SELECT 1)) THEN SELECT 1"],
    "SHARE": ["CREATE SHARE X"],
    "RESOURCE": ["CREATE RESOURCE MONITOR M WITH CREDIT_QUOTA = 1"],
    "INTEGRATION": ["CREATE STORAGE INTEGRATION I TYPE = EXTERNAL_STAGE"],
    "SECRET": ["CREATE SECRET X TYPE = GENERIC_STRING SECRET_STRING = 'x'"],
    "COMPUTE": ["CREATE COMPUTE POOL P MIN_NODES = 1 MAX_NODES = 1 INSTANCE_FAMILY = CPU_X64_XS"],
    "SERVICE": ["CREATE SERVICE S IN COMPUTE POOL P FROM SPECIFICATION 'x'"],
    "UNDROP": ["UNDROP TABLE T"],
    "SET": ["SET X = 1", "SET (X, Y) = (1, 2)"],
    "UNSET": ["UNSET X"],
    "PIVOT": ["SELECT * FROM T PIVOT (SUM(A) FOR B IN ('x', 'y'))", "SELECT * FROM T UNPIVOT (Z FOR N IN (A))"],
    "SAMPLE": [
        "SELECT * FROM T SAMPLE (10)", "SELECT * FROM T TABLESAMPLE BERNOULLI (10)",
        "SELECT * FROM T SAMPLE (5 ROWS)",
    ],
    r"'AT\b": ["SELECT * FROM T AT (OFFSET => -60)", "SELECT * FROM T AT (TIMESTAMP => SYSDATE())"],
    "BEFORE": ["SELECT * FROM T BEFORE (STATEMENT => 'x')"],
    "CHANGES": ["SELECT * FROM T CHANGES (INFORMATION => DEFAULT) AT (OFFSET => -60)"],
    "CONNECT": ["SELECT A FROM T START WITH A = 1 CONNECT BY PRIOR A = A"],
    "MATCH": ["SELECT * FROM T MATCH_RECOGNIZE (ORDER BY A MEASURES FIRST(A) AS X PATTERN (P+) DEFINE P AS A > 0)"],
    "ASOF": ["SELECT * FROM T ASOF JOIN U MATCH_CONDITION (T.A >= U.A)"],
    "OVERWRITE": ["INSERT OVERWRITE INTO T SELECT 1, 'a', NULL"],
    "(INSERT ALL|MULTI.?TABLE)": ["INSERT ALL INTO T (A) VALUES (A) INTO U (A) VALUES (A) SELECT 1 AS A"],
    "RESULT_SCAN": ["SELECT A FROM TABLE(RESULT_SCAN(LAST_QUERY_ID()))"],
    "GEOGRAPHY": ["SELECT TO_GEOGRAPHY('POINT(1 1)')", "CREATE TABLE X (A GEOGRAPHY)"],
    "VECTOR": ["CREATE TABLE X (A VECTOR(FLOAT, 3))", "SELECT [1, 2]::VECTOR(INT, 2)"],
    "COLLATE": ["CREATE TABLE X (A VARCHAR COLLATE 'en')", "SELECT COLLATE('a', 'en')"],
    "TIMELIMIT": ["SELECT SEQ4() FROM TABLE(GENERATOR(TIMELIMIT => 1))"],
    "ACCOUNT": ["ALTER ACCOUNT SET TIMEZONE = 'UTC'"],
    "SWAP": ["ALTER TABLE T SWAP WITH U"],
    "CLUSTER": ["ALTER TABLE T CLUSTER BY (A)"],
    "INTERACTIVE": ["CREATE INTERACTIVE WAREHOUSE W"],
    "ADAPTIVE": ["CREATE ADAPTIVE WAREHOUSE W"],
    "LOCKS": ["SHOW LOCKS"],
    "MULTI_STATEMENT_COUNT": ["ALTER SESSION SET MULTI_STATEMENT_COUNT = 0"],
    "QUOTED_IDENTIFIERS_IGNORE_CASE": ["ALTER SESSION SET QUOTED_IDENTIFIERS_IGNORE_CASE = TRUE"],
    "CLUSTERING_INFORMATION": ["SELECT SYSTEM$CLUSTERING_INFORMATION('T')"],
    r"SYSTEM\$": ["SELECT A, SYSTEM$WAIT(0) FROM T"],
}  # fmt: skip
NAMED = [(word, statement) for word, statements in UNSUPPORTED.items() for statement in statements]


@in_one_test(("word", "statement"), NAMED)
def test_what_the_server_cannot_do_is_refused_by_name(refusals: Refusals, word: str, statement: str) -> None:
    error = refusals.refusal(statement)

    assert re.search(rf"(?<![A-Z]){word}", message(error).upper()), message(error)
