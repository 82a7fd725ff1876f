"""What Snowflake refuses, the embedded server refuses; what the server cannot do, it refuses by name.

Nothing of the database behind it shows through: no function, syntax, type, catalogue, name or wording of its own.
After every refusal the session goes on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from snowflake.connector.errors import Error

from tests.embedded_server import EmbeddedServer

pytestmark = pytest.mark.any_driver

INTERNAL_ERROR = 603
# Wordings of the database behind the server. A word that the statement itself brought may be repeated to the user.
FOREIGN_WORDS = (
    r"\brelation\b", r"ERROR:", r"asyncpg", r"postgres", r"\bpg_", r"column .* does not exist", r"\btuple\b",
    r"(function|operator|type|schema|table|role) .* does not exist$", r"at or near", r"double precision", r"jsonb",
    r"character varying", r"\bsf\.", r"\bmeta\.", r"plpgsql", r"PL/", r"CONTEXT", r"HINT", r"\bbackend\b", r"\$\d",
    r"[A-Za-z]+Error\b", r"sqlglot", r"J_S_O_N", r"PK~", r"FK~", r'"~',
)  # fmt: skip


FURNITURE = (
    "CREATE OR REPLACE DATABASE REFUSED",
    "CREATE TABLE T (A NUMBER, B VARCHAR, V VARIANT)",
    "INSERT INTO T SELECT 1, 'x', PARSE_JSON('{\"k\": [1, 2]}')",
    "CREATE TABLE U (A NUMBER, C VARCHAR)",
    "CREATE HYBRID TABLE H (ID NUMBER PRIMARY KEY, N NUMBER)",
    "INSERT INTO H VALUES (1, 10)",
    "CREATE HYBRID TABLE RUN_STATUS (RUN_ID VARCHAR(36) PRIMARY KEY, NEXT_SEQUENCE_ID NUMBER, STATUS VARCHAR,"
    " WORKER_TARGETS VARIANT, END_TIME TIMESTAMP_NTZ)",
    "CREATE HYBRID TABLE RUN_CONTROL_EVENTS (EVENT_ID VARCHAR(36) PRIMARY KEY, RUN_ID VARCHAR(36), EVENT_DATA VARIANT)",
    "CREATE TABLE WORKER_METRICS_SNAPSHOTS (SNAPSHOT_ID VARCHAR, CUSTOM_METRICS VARIANT)",
    'CREATE TABLE TEST_LOGS (LOG_ID VARCHAR, DETAILS VARIANT, "TIMESTAMP" TIMESTAMP_NTZ)',
)
INTACT = "SELECT (SELECT COUNT(*) FROM T WHERE A = 1 AND B = 'x'), (SELECT COUNT(*) FROM T), (SELECT SUM(N) FROM H)"


class Session:
    """One connection for the whole file: each refusal has to leave it, and the tables, as they were."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.furnish()

    def furnish(self) -> None:
        cursor = self.connection.cursor()
        for statement in FURNITURE:
            cursor.execute(statement)

    def run(self, statement: str, *binds: Any) -> list[tuple[Any, ...]]:
        cursor = self.connection.cursor()
        cursor.execute(statement, binds) if binds else cursor.execute(statement)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows

    def names(self, query: str) -> list[str]:
        """The names of a query's columns."""
        cursor = self.connection.cursor()
        return [column[0] for column in cursor.execute(query).description]

    def check(self) -> None:
        """The session goes on, and nothing has happened to the tables."""
        assert self.run(INTACT) == [(1, 1, 10)], "a refused statement has changed something"

    def refusal(self, statement: str, *binds: Any) -> Error:
        """The error of a refused statement, after checking what holds for all of them."""
        try:
            answer = self.run(statement, *binds)
        except Error as error:
            check_wording(error, statement)
            self.check()
            return error
        self.furnish()  # it did something; the next test shall find what it expects
        raise AssertionError(f"accepted, with the answer {str(answer)[:200]}")


@pytest.fixture(scope="module")
def session(server: EmbeddedServer) -> Iterator[Session]:
    connection = server.connect(database="REFUSED", schema="PUBLIC")
    yield Session(connection)
    connection.close()


def message(error: Error) -> str:
    """The server's text alone: the driver puts ids around it."""
    return re.sub(r"\(request_id=[^)]*\)|[0-9a-f]{8}-[0-9a-f-]{27}", "", str(error)).strip()


def check_wording(error: Error, statement: str) -> None:
    text = message(error)
    assert error.errno, text
    assert error.errno > 100 or error.errno in (2, 8), f"the driver could not read the answer: {text}"
    assert error.errno != INTERNAL_ERROR, text
    assert re.fullmatch(r"[0-9A-Z]{5}", error.sqlstate or ""), text
    for pattern in FOREIGN_WORDS:
        found = re.search(pattern, text)
        assert found is None or found.group().lower() in statement.lower(), f"{found.group()!r} in: {text}"


# --- statements of the specification that Snowflake rejects -----------------------------------------------------------


@dataclass(frozen=True)
class Refused:
    row: str
    statement: str
    errno: int
    sqlstate: str
    wording: str
    binds: tuple[Any, ...] = ()


VALUES_CLAUSE = r"Invalid expression \[PARSE_JSON\(.*\)\] in VALUES clause"
REJECTED = [
    Refused(
        "1-update-returning",
        "UPDATE RUN_STATUS SET NEXT_SEQUENCE_ID = NEXT_SEQUENCE_ID + 1 WHERE RUN_ID = 'r'"
        " RETURNING NEXT_SEQUENCE_ID - 1",
        1003,
        "42000",
        r"syntax error line 1 at position \d+ unexpected 'RETURNING'",
    ),
    Refused(
        "1-insert-returning",
        "INSERT INTO RUN_STATUS (RUN_ID) VALUES ('r') RETURNING RUN_ID",
        1003,
        "42000",
        "unexpected '(RETURNING|RUN_ID)'",
    ),
    Refused(
        "1-delete-returning",
        "DELETE FROM RUN_STATUS RETURNING RUN_ID",
        1003,
        "42000",
        "unexpected '(RETURNING|RUN_ID)'",
    ),
    Refused(
        "1-merge-returning",
        "MERGE INTO RUN_STATUS AS T USING (SELECT 'r' AS RUN_ID) AS S ON T.RUN_ID = S.RUN_ID"
        " WHEN MATCHED THEN UPDATE SET STATUS = 'x' RETURNING T.RUN_ID",
        1003,
        "42000",
        "unexpected 'RETURNING'",
    ),
    Refused(
        "2-event-values",
        "INSERT INTO RUN_CONTROL_EVENTS (EVENT_ID, RUN_ID, EVENT_DATA) VALUES (?, ?, PARSE_JSON(?))",
        2014,
        "22000",
        VALUES_CLAUSE,
        ("e", "r", "{}"),
    ),
    Refused(
        "2-event-values-literal",
        "INSERT INTO RUN_CONTROL_EVENTS VALUES ('e', 'r', PARSE_JSON('{\"a\": 1}'))",
        2014,
        "22000",
        VALUES_CLAUSE,
    ),
    Refused(
        "3-metrics-values",
        "INSERT INTO WORKER_METRICS_SNAPSHOTS VALUES (?, PARSE_JSON(?))",
        2014,
        "22000",
        VALUES_CLAUSE,
        ("s", "{}"),
    ),
    Refused(
        "4-log-values",
        "INSERT INTO TEST_LOGS VALUES (?, PARSE_JSON(?), CURRENT_TIMESTAMP())",
        2014,
        "22000",
        VALUES_CLAUSE,
        ("l", "{}"),
    ),
    Refused(
        "5-object-insert-of-two",
        "UPDATE RUN_STATUS SET WORKER_TARGETS = OBJECT_INSERT(COALESCE(WORKER_TARGETS, OBJECT_CONSTRUCT()), ?)",
        938,
        "22023",
        r"not enough arguments for function \[OBJECT_INSERT\(.*expected 3, got 2",
        ("{}",),
    ),
    Refused(
        "6-execute-service",
        "CALL SYSTEM$EXECUTE_SERVICE('pool', 'spec')",
        2140,
        "42601",
        r"Unknown function SYSTEM\$EXECUTE_SERVICE",
    ),
    Refused(
        "6-execute-service-selected",
        "SELECT SYSTEM$EXECUTE_SERVICE('pool', 'spec')",
        2140,
        "42601",
        r"Unknown function SYSTEM\$EXECUTE_SERVICE",
    ),
    Refused(
        "7-named-bind",
        "SELECT * FROM RUN_STATUS WHERE RUN_ID = :run_id",
        2049,
        "42601",
        "(?i)Bind variable :run_id not set",
    ),
    Refused(
        "7-named-bind-in-update",
        "UPDATE RUN_STATUS SET STATUS = :status WHERE RUN_ID = :run_id",
        2049,
        "42601",
        "(?i)Bind variable :status not set",
    ),
    Refused(
        "7-named-bind-beside-binds",
        "UPDATE RUN_STATUS SET STATUS = ? WHERE RUN_ID = :run_id",
        2049,
        "42601",
        "(?i)Bind variable :run_id not set",
        ("x",),
    ),
    Refused("8-now", "UPDATE RUN_STATUS SET END_TIME = NOW()", 2140, "42601", "Unknown function NOW"),
    Refused(
        "21-create-or-alter-hybrid",
        "CREATE OR ALTER HYBRID TABLE RUN_STATUS (RUN_ID VARCHAR(36) PRIMARY KEY, X NUMBER)",
        1003,
        "42000",
        "CREATE OR ALTER|unexpected",
    ),
    Refused(
        "21-create-or-alter-of-a-hybrid-table",
        "CREATE OR ALTER TABLE H (ID NUMBER PRIMARY KEY, N NUMBER, X NUMBER)",
        2,
        "0A000",
        "CREATE OR ALTER",
    ),
]


@pytest.mark.parametrize("rejected", REJECTED, ids=lambda rejected: rejected.row)
def test_a_statement_of_the_specification_that_snowflake_rejects_is_rejected(
    session: Session, rejected: Refused
) -> None:
    error = session.refusal(rejected.statement, *rejected.binds)

    assert (error.errno, error.sqlstate) == (rejected.errno, rejected.sqlstate), message(error)
    assert re.search(rejected.wording, message(error))


@pytest.mark.parametrize(
    "value",
    [
        "OBJECT_CONSTRUCT('a', 1)", "ARRAY_CONSTRUCT(1)", "[1, 2]", "{'a': 1}", "TO_VARIANT(1)", "'1'::VARIANT",
        "(SELECT 1)", "MAX(1)", "COUNT(*)", "ROW_NUMBER() OVER (ORDER BY 1)", "TRY_PARSE_JSON('1')",
        "COALESCE(PARSE_JSON('1'), NULL)",
    ],
)  # fmt: skip
def test_a_values_clause_takes_no_semi_structured_value_subquery_aggregate_or_window(
    session: Session, value: str
) -> None:
    error = session.refusal(f"INSERT INTO WORKER_METRICS_SNAPSHOTS VALUES ('s', {value})")

    assert (error.errno, error.sqlstate) == (2014, "22000"), message(error)
    assert "in VALUES clause" in message(error)


@pytest.mark.parametrize(
    ("statement", "line", "position", "word"),
    [
        ("SELEKT 1", 1, 0, "SELEKT"),
        ("UPDATE T SET A = 1 RETURNING A", 1, 19, "RETURNING"),
        ("INSERT INTO T (A) VALUES (1) ON CONFLICT DO NOTHING", 1, 29, "ON"),
        ("SELECT A\nFROM T\nWHERE A = = 1", 3, 10, "="),
        ("CREATE TABLE X (A NUMBER) INHERITS (T)", 1, 26, "INHERITS"),
    ],
)
def test_a_syntax_error_points_at_the_word_it_means(
    session: Session, statement: str, line: int, position: int, word: str
) -> None:
    error = session.refusal(statement)

    assert (error.errno, error.sqlstate) == (1003, "42000")
    assert f"syntax error line {line} at position {position} unexpected '{word}'." in message(error)


def test_an_unknown_column_is_named_with_its_place(session: Session) -> None:
    error = session.refusal("SELECT A,\n  NO_SUCH FROM T")

    assert (error.errno, error.sqlstate) == (904, "42000")
    assert "error line 2 at position 2" in message(error)
    assert "invalid identifier 'NO_SUCH'" in message(error)


@pytest.mark.parametrize(
    "statement",
    ["SELECT * FROM NO_SUCH", "INSERT INTO NO_SUCH VALUES (1)", "UPDATE NO_SUCH SET A = 1", "DELETE FROM NO_SUCH",
     "SELECT * FROM NO_SUCH.T", "SELECT * FROM NO_SUCH.PUBLIC.T", "DROP TABLE NO_SUCH", "DESCRIBE TABLE NO_SUCH",
     "ALTER TABLE NO_SUCH ADD COLUMN A NUMBER", "TRUNCATE TABLE NO_SUCH"],
)  # fmt: skip
def test_an_object_that_is_not_there_is_2003(session: Session, statement: str) -> None:
    error = session.refusal(statement)

    sqlstate = "02000" if "NO_SUCH." in statement else "42S02"  # of databases and schemas, and of what is in them
    assert (error.errno, error.sqlstate) == (2003, sqlstate), message(error)
    assert re.search(r"'(\w+\.)*NO_SUCH(\.\w+)*' does not exist or not authorized", message(error))


@pytest.mark.parametrize("statement", ["USE DATABASE NO_SUCH", "USE SCHEMA NO_SUCH", "USE WAREHOUSE NO_SUCH"])
def test_using_what_is_not_there_is_2043(session: Session, statement: str) -> None:
    error = session.refusal(statement)

    assert (error.errno, error.sqlstate) == (2043, "02000")
    assert "Object does not exist, or operation cannot be performed." in message(error)


# --- nothing of the database behind it --------------------------------------------------------------------------------

FOREIGN_FUNCTIONS = """
pg_sleep(0) pg_read_file('/etc/passwd') pg_read_binary_file('/etc/passwd') pg_ls_dir('/') pg_stat_file('/')
lo_import('/etc/passwd') lo_export(1,'/tmp/x') lo_get(1) now() clock_timestamp() statement_timestamp()
transaction_timestamp() timeofday() string_agg('a',',') generate_series(1,3) version() current_setting('port')
set_config('a.b','c',false) txid_current() pg_current_xact_id() pg_backend_pid() inet_server_addr() quote_ident('a')
quote_literal('a') format('%s','a') to_jsonb(1) json_build_object('a',1) jsonb_build_object('a',1)
row_to_json(1) json_agg(1) jsonb_agg(1) jsonb_set('{}','a','b') gen_random_uuid() uuidv7() encode('a','hex')
query_to_xml('select_1',true,true,'') database_to_xml(true,true,'') xmlparse('a') dblink('a','b') nextval('s')
currval('s') setval('s',1) lastval() pg_advisory_lock(1) pg_try_advisory_xact_lock(1) pg_terminate_backend(1)
pg_cancel_backend(1) pg_reload_conf() pg_typeof(1) age(1) date_bin(1,2,3) make_date(2024,1,1) make_interval(1)
to_regclass('a') has_table_privilege('a','b') obj_description(1) pg_get_viewdef(1) pg_size_pretty(1)
pg_total_relation_size('t') unnest([1]) string_to_array('a,b',',') regexp_matches('a','b') cardinality([1])
regexp_split_to_table('a','b') trim_scale(1) random_normal() bool_and(true) every(true) convert_from('a','utf8')
sha224('a') sha256('a') overlay('a','b',1,1) btrim('a') to_hex(1) quote_nullable('a') starts_with('a','b')
array_append_text([1],2) array_dims([1]) array_upper([1],1) num_nonnulls(1) num_nulls(1) merge_action()
pg_export_snapshot() pg_logical_emit_message(true,'a','b') pg_file_write('a','b',true) ts_rank(1,2) to_tsvector('a')
cast_number('1') fail('x')
""".split()  # noqa: SIM905


@pytest.mark.parametrize("call", FOREIGN_FUNCTIONS)
def test_a_function_that_snowflake_does_not_have_is_unknown(session: Session, call: str) -> None:
    error = session.refusal(f"SELECT {call}")

    assert (error.errno, error.sqlstate) == (2140, "42601"), message(error)
    assert f"Unknown function {call.partition('(')[0].upper()}" in message(error)


@pytest.mark.parametrize(
    "call",
    ["pg_catalog.pg_sleep(0)", "pg_catalog.now()", "pg_catalog.upper('a')", "sf.fail('x')", "sf.cast_number('1')",
     "sf.get(V, 'k')", "meta.x()", '"pg_sleep"(0)', '"pg_catalog"."pg_sleep"(0)', '"upper"(\'a\')',
     "information_schema._pg_truetypid(1)", "REFUSED.PUBLIC.pg_sleep(0)"],
)  # fmt: skip
def test_a_function_cannot_be_reached_through_a_schema_or_quotes(session: Session, call: str) -> None:
    error = session.refusal(f"SELECT {call} FROM T")

    assert error.errno in (2140, 2141), message(error)
    assert "Unknown" in message(error)


@pytest.mark.parametrize(
    "source",
    [
        "generate_series(1, 3)", "TABLE(generate_series(1, 3))", "LATERAL generate_series(1, 3)", "pg_ls_dir('/')",
        "TABLE(pg_ls_dir('/'))", "pg_catalog.pg_ls_dir('/')", "TABLE(sf.flatten([1]))",
        "ROWS FROM (generate_series(1, 3))", "json_each('{}')", "jsonb_to_recordset('[]') AS X(A NUMBER)",
        "unnest([1, 2])", "TABLE(information_schema.now())", "TABLE(pg_read_file('/etc/passwd'))",
        "T, LATERAL jsonb_array_elements(V)",
    ],
)  # fmt: skip
def test_a_table_function_that_snowflake_does_not_have_is_refused(session: Session, source: str) -> None:
    error = session.refusal(f"SELECT * FROM {source}")

    assert error.errno in (2, 1003, 2140, 2141, 2142), message(error)


def test_random_is_snowflakes_a_64_bit_integer(session: Session) -> None:
    values = [row[0] for row in session.run("SELECT RANDOM() FROM TABLE(GENERATOR(ROWCOUNT => 50))")]

    assert all(isinstance(value, int) and -(2**63) <= value < 2**63 for value in values)
    assert len(set(values)) == 50
    assert max(map(abs, values)) > 2**32


FOREIGN_QUERIES = [
    "SELECT DISTINCT ON (A) A FROM T", "SELECT A FROM T LIMIT ALL", "SELECT FROM T", "TABLE T",
    "SELECT A INTO X FROM T", "SELECT * FROM ONLY T", "SELECT 1 ISNULL", "SELECT 1 NOTNULL",
    "SELECT 'a' SIMILAR TO 'b'", "SELECT 1 BETWEEN SYMMETRIC 3 AND 0", "SELECT ROW(1, 2)", "SELECT (1, 2)",
    "SELECT A FROM T ORDER BY A USING <", "WITH X AS MATERIALIZED (SELECT 1 AS A) SELECT * FROM X",
    "WITH X AS NOT MATERIALIZED (SELECT 1 AS A) SELECT * FROM X", "SELECT A FROM T FETCH FIRST 1 ROW WITH TIES",
    "SELECT SUM(A) OVER W FROM T WINDOW W AS (ORDER BY A)",
    "SELECT SUM(A) OVER (ORDER BY A GROUPS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM T",
    "SELECT SUM(A) OVER (ORDER BY A ROWS BETWEEN 1 PRECEDING AND CURRENT ROW EXCLUDE CURRENT ROW) FROM T",
    "SELECT A FROM T WHERE A = ANY (ARRAY[1, 2])", "SELECT ARRAY[1, 2]", "SELECT (ARRAY[1, 2])[1]",
    "SELECT ARRAY(SELECT 1)", "SELECT 'a' COLLATE \"C\"", "SELECT 1 OPERATOR(pg_catalog.+) 2",
    "SELECT T.* FROM T AS T(A, B, C, D, E)", "SELECT A FROM T TABLESAMPLE SYSTEM_ROWS(1)", "SELECT CURRENT_CATALOG",
    "SELECT SESSION_USER", "SELECT X.A FROM T",
]  # fmt: skip
FOREIGN_CHANGES = [
    "INSERT INTO H VALUES (1, 1) ON CONFLICT DO NOTHING",
    "INSERT INTO H VALUES (1, 1) ON CONFLICT (ID) DO UPDATE SET N = 2", "INSERT INTO T DEFAULT VALUES",
    "UPDATE ONLY T SET A = 1", "DELETE FROM ONLY T", "UPDATE T SET (A, B) = (1, 'x')", "UPDATE T SET A = ROW(1)",
    "DELETE FROM T WHERE CURRENT OF C", "INSERT INTO T AS X VALUES (1, 'a', NULL)",
    "INSERT INTO T OVERRIDING SYSTEM VALUE VALUES (1, 'a', NULL)", "UPDATE T SET V['k'] = 1",
    "WITH GONE AS (DELETE FROM T) SELECT 1", "WITH GONE AS (DELETE FROM T RETURNING *) SELECT * FROM GONE",
    "WITH NEW AS (INSERT INTO T (A) VALUES (5)) SELECT 1", "WITH NEW AS (UPDATE T SET A = 2) SELECT 1",
    "TRUNCATE T, U", "TRUNCATE T RESTART IDENTITY", "TRUNCATE ONLY T",
]  # fmt: skip
FOREIGN_OPERATORS = [
    "SELECT 'a' ~ 'b'", "SELECT 'a' ~* 'b'", "SELECT 'a' !~ 'b'", "SELECT 'a' !~* 'b'", "SELECT 'a' ~~ 'b'",
    "SELECT 1 # 2", "SELECT 1 & 2", "SELECT 1 | 2", "SELECT ~1", "SELECT 1 << 2", "SELECT 1 >> 2", "SELECT 2 ^ 3",
    "SELECT |/ 4", "SELECT @ -1", "SELECT V -> 'k' FROM T", "SELECT V ->> 'k' FROM T", "SELECT V #> 'k' FROM T",
    "SELECT V #>> 'k' FROM T", "SELECT V @> '{}' FROM T", "SELECT V <@ '{}' FROM T", "SELECT V ?| 'k' FROM T",
    "SELECT V @? '$' FROM T", "SELECT V - 'k' FROM T", "SELECT 'a' ^@ 'b'", "SELECT B'101' & B'110'",
]  # fmt: skip
FOREIGN_LITERALS = [
    "SELECT E'a\\nb'", "SELECT U&'\\0061'", 'SELECT U&"\\0061" FROM T', "SELECT B'101'", "SELECT $tag$x$tag$",
    "SELECT 'a'\n'b'", "SELECT '1'::json", "SELECT '{}'::jsonb", "SELECT 1::int[]", "SELECT '{1}'::int[]",
    "SELECT 'T'::regclass", "SELECT 'now'::regproc", "SELECT 1::oid", "SELECT '<a/>'::xml", "SELECT '1'::money",
    "SELECT 'a'::bytea", "SELECT '127.0.0.1'::inet", "SELECT 'a'::name", "SELECT '[1,2]'::int4range",
    "SELECT 1::serial", "SELECT '1 day'::interval", "SELECT 'a'::tsvector", "SELECT '(1,2)'::point",
    "SELECT 'a'::citext", "SELECT '101'::bit(3)", "SELECT 'a'::bpchar", "SELECT 'a'::text[]",
    "SELECT 'x'::sf.variant", "SELECT 1::pg_catalog.int4", "SELECT CAST('1' AS REFUSED.T)", "SELECT '(1,x,)'::T",
    "SELECT '16bf5a0e-7b0e-4c0e-8f5b-6f0a3b1f7a11'::uuid",
]  # fmt: skip
FOREIGN_DEFINITIONS = [
    "CREATE UNLOGGED TABLE X (A NUMBER)", "CREATE TABLE X (A NUMBER) INHERITS (T)", "CREATE TABLE X (A SERIAL)",
    "CREATE TABLE X (A NUMBER) WITH (fillfactor = 10)", "CREATE TABLE X (A NUMBER) PARTITION BY RANGE (A)",
    "CREATE TABLE X (A NUMBER) TABLESPACE pg_default", "CREATE TABLE X OF T", "CREATE TABLE X (LIKE T)",
    "CREATE TABLE X (A JSONB)", "CREATE TABLE X (A NUMBER[])", "CREATE TABLE X (A BYTEA)", "CREATE TABLE X (A UUID)",
    "CREATE TABLE X (A MONEY)", "CREATE TABLE X (A INTERVAL)", "CREATE TABLE X (A OID)", "CREATE TABLE X (A T)",
    "CREATE TABLE X (A NUMBER, EXCLUDE USING gist (A WITH =))", "CREATE TABLE X ()", "CREATE TABLE X",
    "CREATE UNIQUE INDEX I ON H (N)", "CREATE INDEX I ON H USING btree (N)", "CREATE INDEX CONCURRENTLY I ON H (N)",
    "CREATE INDEX I ON H (N) WHERE N > 1", "CREATE INDEX I ON H (UPPER(N))",
    "CREATE INDEX I ON H (N DESC NULLS LAST)", "CREATE VIEW X AS SELECT 1 AS A WITH CHECK OPTION",
    "CREATE VIEW X AS DELETE FROM T", "CREATE TABLE X AS TABLE T", "CREATE TABLE X AS SELECT 1 AS A WITH NO DATA",
    "CREATE TABLE X AS EXECUTE P", "ALTER TABLE T OWNER TO postgres", "ALTER TABLE T SET (fillfactor = 10)",
    "ALTER TABLE T ENABLE ROW LEVEL SECURITY", "ALTER TABLE T SET SCHEMA pg_catalog", "ALTER TABLE T INHERIT U",
    "ALTER TABLE T DISABLE TRIGGER ALL", "DROP TABLE T, U", "CREATE TABLE X (A NUMBER DEFAULT pg_sleep(0))",
    "CREATE TABLE X (A NUMBER DEFAULT (SELECT 1))", "CREATE TABLE X (A NUMBER DEFAULT nextval('s'))",
    "ALTER TABLE T ADD COLUMN Z NUMBER DEFAULT pg_backend_pid()",
]  # fmt: skip
FOREIGN_STATEMENTS = [
    "COPY T FROM PROGRAM 'id'", "COPY T TO PROGRAM 'cat'", "COPY T FROM '/etc/passwd'", "COPY T TO STDOUT",
    "COPY (SELECT 1) TO STDOUT", "LISTEN X", "NOTIFY X", "UNLISTEN *", "VACUUM", "VACUUM FULL T", "ANALYZE T",
    "REINDEX TABLE T", "CLUSTER T", "CHECKPOINT", "DISCARD ALL", "LOAD 'x'", "EXPLAIN ANALYZE SELECT 1",
    "EXPLAIN (ANALYZE, BUFFERS) SELECT 1", "PREPARE P AS SELECT 1", "EXECUTE P", "DEALLOCATE ALL",
    "DECLARE C CURSOR FOR SELECT 1", "FETCH 1 FROM C", "MOVE 1 IN C", "CLOSE C", "SET search_path TO pg_catalog",
    "SET LOCAL lock_timeout = 0", "SET SESSION AUTHORIZATION postgres", "SET ROLE postgres", "SET TIME ZONE 'UTC'",
    "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", "RESET ALL", "SHOW search_path", "SHOW ALL",
    "SHOW server_version", "DO $$ BEGIN PERFORM 1; END $$", "CREATE EXTENSION plpython3u",
    "CREATE TYPE X AS (A NUMBER)", "CREATE DOMAIN X AS NUMBER", "CREATE AGGREGATE X (NUMBER) (sfunc = a, stype = b)",
    "CREATE OPERATOR === (leftarg = int)", "CREATE CAST (text AS int) WITHOUT FUNCTION",
    "CREATE RULE R AS ON SELECT TO T DO INSTEAD NOTHING", "CREATE TRIGGER X BEFORE INSERT ON T EXECUTE FUNCTION F()",
    "CREATE POLICY P ON T", "CREATE PUBLICATION P FOR ALL TABLES",
    "CREATE SUBSCRIPTION S CONNECTION '' PUBLICATION P", "CREATE SERVER S FOREIGN DATA WRAPPER W",
    "CREATE FOREIGN TABLE X (A NUMBER)", "CREATE LANGUAGE plpython3u", "CREATE TABLESPACE X LOCATION '/tmp'",
    'CREATE COLLATION X FROM "C"', "CREATE STATISTICS S ON A FROM T", "CREATE ACCESS METHOD M TYPE TABLE HANDLER H",
    "CREATE EVENT TRIGGER X ON ddl_command_start EXECUTE FUNCTION F()",
    "CREATE FUNCTION F() RETURNS int LANGUAGE sql AS $$ SELECT 1 $$", "ALTER SYSTEM SET fsync = off",
    "ALTER ROLE postgres SUPERUSER", "ALTER DATABASE postgres SET fsync = off", "SECURITY LABEL ON TABLE T IS 'x'",
    "LOCK TABLE T", "SAVEPOINT X", "ROLLBACK TO SAVEPOINT X", "RELEASE SAVEPOINT X",
    "BEGIN ISOLATION LEVEL SERIALIZABLE", "BEGIN READ ONLY", "START TRANSACTION READ ONLY", "COMMIT AND CHAIN",
    "COMMIT PREPARED 'x'", "PREPARE TRANSACTION 'x'", "ABORT", "END", "REFRESH MATERIALIZED VIEW X",
    "IMPORT FOREIGN SCHEMA S FROM SERVER V INTO P", "REASSIGN OWNED BY a TO b", "DROP OWNED BY a",
    "COMMENT ON DATABASE postgres IS 'x'", "CREATE ROLE postgres SUPERUSER",
]  # fmt: skip


FOREIGN_SYNTAX = [
    *FOREIGN_QUERIES,
    *FOREIGN_CHANGES,
    *FOREIGN_OPERATORS,
    *FOREIGN_LITERALS,
    *FOREIGN_DEFINITIONS,
    *FOREIGN_STATEMENTS,
]


@pytest.mark.parametrize("statement", FOREIGN_SYNTAX)
def test_syntax_that_snowflake_does_not_have_is_refused(session: Session, statement: str) -> None:
    session.refusal(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT COUNT(*) FROM pg_class", "SELECT * FROM pg_catalog.pg_class", 'SELECT * FROM "pg_catalog"."pg_class"',
        "SELECT * FROM REFUSED.pg_catalog.pg_class", "SELECT * FROM pg_stat_activity", "SELECT * FROM pg_shadow",
        "SELECT * FROM pg_settings", "SELECT * FROM meta.object", 'SELECT * FROM "meta"."object"',
        "SELECT * FROM sf.variant", 'SELECT * FROM "REFUSED.PUBLIC"."T"', 'SELECT * FROM "pg_temp"."~described"',
        "SELECT * FROM postgres.public.t", "SELECT * FROM information_schema.pg_user_mappings",
        "SELECT * FROM information_schema.sql_features", 'SELECT * FROM INFORMATION_SCHEMA."tables"',
        "DELETE FROM meta.object", "INSERT INTO meta.object VALUES ('a', 'b', 'c')",
        "UPDATE pg_catalog.pg_authid SET rolsuper = true", "DROP TABLE meta.object", "DROP SCHEMA meta",
        "DROP SCHEMA sf", "DROP SCHEMA pg_catalog", "DROP DATABASE postgres", "CREATE TABLE pg_catalog.x (A NUMBER)",
        "TRUNCATE meta.object", "CREATE VIEW X AS SELECT * FROM pg_catalog.pg_class", "USE SCHEMA pg_catalog",
        'USE SCHEMA "pg_catalog"', "USE DATABASE postgres", "DESCRIBE TABLE pg_class",
        "DESCRIBE TABLE pg_catalog.pg_class", "SHOW TABLES IN SCHEMA pg_catalog", "SHOW TABLES IN DATABASE postgres",
        "ALTER TABLE pg_catalog.pg_class ADD COLUMN X NUMBER", "SHOW COLUMNS IN TABLE pg_catalog.pg_class",
    ],
)  # fmt: skip
def test_the_catalogues_behind_the_server_are_not_there(session: Session, statement: str) -> None:
    error = session.refusal(statement)

    assert error.errno in (2003, 2043), message(error)


@pytest.mark.parametrize(
    "expression",
    [
        '"ctid"', '"xmin"', '"xmax"', '"cmin"', '"cmax"', '"tableoid"', 'T."ctid"', "T", '"T"', '"T"."row_to_json"',
        'T."to_jsonb"', 'T."pg_column_size"', 'T."text"', 'T."varchar"', '"~binds"."c1"', '"~generator"."i"',
        "T::VARCHAR", "COUNT(T)", "TO_VARCHAR(T)", "TO_JSON(T)",
    ],
)  # fmt: skip
def test_neither_system_columns_nor_whole_rows_can_be_selected(session: Session, expression: str) -> None:
    error = session.refusal(f"SELECT {expression} FROM T")

    assert (error.errno, error.sqlstate) == (904, "42000"), message(error)
    assert "invalid identifier" in message(error)


@pytest.mark.parametrize(
    "statement",
    ["SELECT A FROM T LIMIT '(SELECT 1)'", "SELECT A FROM T LIMIT '1 OFFSET 0'",
     "SELECT A FROM T LIMIT '(SELECT COUNT(*) FROM pg_catalog.pg_class)'",
     "SELECT A FROM T LIMIT 1 OFFSET '(SELECT 0 FROM pg_catalog.pg_sleep(0))'", "SELECT A FROM T LIMIT -1",
     "SELECT A FROM T LIMIT 1.5", "SELECT A FROM T LIMIT A", "SELECT A FROM T LIMIT (SELECT 1)",
     "SELECT SEQ4() FROM TABLE(GENERATOR(ROWCOUNT => (SELECT 1)))"],
)  # fmt: skip
def test_a_row_limit_is_a_constant_whole_number(session: Session, statement: str) -> None:
    session.refusal(statement)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM H FOR SHARE", "SELECT * FROM H FOR KEY SHARE", "SELECT * FROM H FOR NO KEY UPDATE",
        "SELECT * FROM H FOR UPDATE OF H", "SELECT * FROM H FOR UPDATE SKIP LOCKED",
        "SELECT * FROM H FOR UPDATE WAIT 1.5", "SELECT * FROM H FOR UPDATE WAIT 'x'",
        "SELECT * FROM H FOR UPDATE WAIT -1", "SELECT * FROM H FOR UPDATE WAIT", "SELECT * FROM H FOR UPDATE LIMIT 1",
        "SELECT * FROM H FOR UPDATE FOR UPDATE", "SELECT * FROM T FOR UPDATE", "SELECT 1 FOR UPDATE",
        "SELECT H.ID FROM H JOIN H AS G ON G.ID = H.ID FOR UPDATE", "SELECT ID FROM (SELECT ID FROM H FOR UPDATE)",
        "SELECT ID FROM H UNION SELECT ID FROM H FOR UPDATE", "SELECT DISTINCT N FROM H FOR UPDATE",
        "SELECT COUNT(*) FROM H FOR UPDATE", "SELECT N FROM H GROUP BY N FOR UPDATE",
        "SELECT ROW_NUMBER() OVER (ORDER BY ID) FROM H FOR UPDATE",
        "WITH X AS (SELECT ID FROM H FOR UPDATE) SELECT * FROM X",
    ],
)  # fmt: skip
def test_for_update_has_only_the_forms_of_hybrid_tables(session: Session, query: str) -> None:
    session.run("BEGIN")

    try:
        session.refusal(query)
    finally:
        session.run("ROLLBACK")


def test_for_update_needs_a_transaction(session: Session) -> None:
    error = session.refusal("SELECT * FROM H FOR UPDATE")

    assert "FOR UPDATE" in message(error)


def test_for_update_is_not_for_create_table_as_select(session: Session) -> None:
    session.refusal("CREATE TABLE X AS SELECT * FROM H FOR UPDATE")
    session.refusal("SELECT * FROM X")


# --- texts, comments, quotes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["SELECT 1; SELECT 2", "SELECT 1; DROP TABLE T", "BEGIN; COMMIT", "SELECT 1;\n-- and\nDELETE FROM T;",
     "DELETE FROM U; DELETE FROM T", "CREATE TABLE X (A NUMBER); DROP TABLE T", "SELECT 1;/**/DROP TABLE T"],
)  # fmt: skip
def test_several_statements_in_one_text_are_refused_and_none_is_run(session: Session, text: str) -> None:
    error = session.refusal(text)

    assert (error.errno, error.sqlstate) == (8, "0A000"), message(error)
    assert "Actual statement count 2 did not match the desired statement count 1." in message(error)


@pytest.mark.parametrize("text", ["-- nothing", "/* nothing */", ";", " ; "])
def test_a_text_without_a_statement_is_refused(session: Session, text: str) -> None:
    error = session.refusal(text)

    assert (error.errno, error.sqlstate) == (900, "42601"), message(error)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"SELECT 'a\'; DROP TABLE T; --'", "a'; DROP TABLE T; --"),
        (r"SELECT 'a\\'", "a\\"),
        (r"SELECT '\\''; DROP TABLE T; --'", "\\'; DROP TABLE T; --"),
        (r"SELECT $$'; DROP TABLE T; --$$", "'; DROP TABLE T; --"),
        (r"SELECT $$a\n'b$$", r"a\n'b"),
        (r"SELECT 'a\nb\tc'", "a\nb\tc"),
        (r"SELECT '\u26c4 \x41 \101'", "⛄ A A"),
        ("SELECT 'it''s'", "it's"),
        ("SELECT '/*' || ' -- ' || '*/' /* ; DROP TABLE T; */", "/* -- */"),
        ("SELECT 'a' -- ; DROP TABLE T", "a"),
        ("SELECT 'a' // ; DROP TABLE T", "a"),
        ("SELECT '$1' || '?' || ':1'", "$1?:1"),
        ("SELECT '%s' || '{0}'", "%s{0}"),
        ("SELECT 'ſ☃𐍈' || '\u202e'", "ſ☃𐍈\u202e"),
    ],
)  # fmt: skip
def test_quotes_escapes_and_comments_are_read_as_snowflake_reads_them(session: Session, text: str, value: str) -> None:
    assert session.run(text) == [(value,)]
    session.check()


@pytest.mark.parametrize(
    "value", ["'; DROP TABLE T; --", "\\", "\\'", "$$", "%s", "a\nb", "'", '"', "/*", "?", "☃", ""]
)
def test_a_bind_is_only_ever_a_value(session: Session, value: str) -> None:
    assert session.run("SELECT ?, LENGTH(?)", value, value) == [(value, len(value))]
    assert session.run("SELECT A FROM T WHERE B = ?", value) == []
    session.check()


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 'unfinished",
        'SELECT "unfinished',
        "SELECT $$unfinished",
        "SELECT (1",
        "SELECT 1)",
        "SELECT /* 1",
    ],
)
def test_an_unfinished_text_is_a_syntax_error(session: Session, text: str) -> None:
    error = session.refusal(text)

    assert error.errno in (1003, 900), message(error)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 'a\x00b'", 'SELECT 1 AS "a\x00b"', "SELECT 1\x00; DROP TABLE T", "SELECT 'a\\0b'",
        'CREATE TABLE "a\x00b" (A NUMBER)', "\x00SELECT 1", "SELECT 1 -- \x00", "INSERT INTO U (C) VALUES ('a\x00b')",
    ],
)  # fmt: skip
def test_a_nul_character_does_no_harm(session: Session, text: str) -> None:
    try:
        session.run(text)
    except Error as error:
        check_wording(error, text)

    session.check()


def test_a_nul_character_in_a_bind_comes_back_or_is_refused(session: Session) -> None:
    try:
        rows = session.run("SELECT ?", "a\0b")
    except Error as error:
        check_wording(error, "SELECT ?")
    else:
        assert rows == [("a\0b",)]

    session.check()


def test_a_thousand_terms_are_no_problem(session: Session) -> None:
    assert session.run("SELECT " + " + ".join(["1"] * 1000)) == [(1000,)]
    assert session.run("SELECT A FROM T WHERE " + " OR ".join(f"A = {n}" for n in range(1000))) == [(1,)]
    assert session.run(f"SELECT A FROM T WHERE A IN ({', '.join(map(str, range(5000)))})") == [(1,)]


MONSTERS = {
    "parentheses": "SELECT " + "(" * 5000 + "1" + ")" * 5000,
    "subqueries": "SELECT " + "(SELECT " * 300 + "1" + ")" * 300,
    "nots": "SELECT " + "NOT " * 5000 + "TRUE",
    "minuses": "SELECT " + "- " * 5000 + "1",
    "cases": "SELECT " + "CASE WHEN TRUE THEN " * 500 + "1" + " END" * 500,
    "brackets": "SELECT " + "[" * 1000 + "]" * 1000,
    "unions": "SELECT 1 " + "UNION ALL SELECT 1 " * 5000,
    "megabyte": "SELECT '" + "x" * 1_100_000 + "'",
}


@pytest.mark.parametrize("monster", MONSTERS)
def test_a_monstrous_text_is_answered_or_refused_but_harms_nobody(session: Session, monster: str) -> None:
    text = MONSTERS[monster]
    try:
        session.run(text)
    except Error as error:
        check_wording(error, text)

    session.check()


# --- identifiers ------------------------------------------------------------------------------------------------------

HOSTILE_NAMES = [
    'a"b', "a.b", "a b", " a ", "a;b", "a'b", "--", "/* x */", "%s", "%(a)s", "{database}", "{0}", "$1", "?",
    ":x", "a\\b", "a\nb\tc", "été 漢字 😀", "\u202eevil", "select", "SELECT", "pg_class", "ctid", "xmin", "tableoid",
    "~binds", "~qualify", "a~b",
    "x" * 64, "x" * 255, "é" * 255, "😀" * 255, "1", "1a", "_", "*", "()", "null", "default", "',(SELECT 1),'",
]  # fmt: skip


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@pytest.mark.parametrize("kind", ["TABLE", "HYBRID TABLE"])
@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=lambda name: ascii(name)[:24])
def test_a_quoted_name_may_be_anything(session: Session, name: str, kind: str) -> None:
    me = quoted(name)

    session.run(f"CREATE {kind} {me} ({me} NUMBER PRIMARY KEY, OTHER VARCHAR)")
    try:
        session.run(f"INSERT INTO {me} ({me}, OTHER) VALUES (?, 'x')", 7)
        session.run(f"UPDATE {me} SET {me} = {me} + 1 WHERE {me}.{me} = 7")

        assert session.run(f"SELECT {me} FROM {me}") == [(8,)]
        assert session.names(f"SELECT {me} FROM {me}") == [name]
        assert session.run(f"SELECT T.{me} AS {me} FROM PUBLIC.{me} AS T ORDER BY {me}") == [(8,)]
        assert session.names(f"SELECT * FROM {me}") == [name, "OTHER"]
        assert session.run(f"DESCRIBE TABLE {me}")[0][0] == name
        listed = session.run("SELECT TABLE_NAME FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_SCHEMA = 'PUBLIC'")
        assert (name,) in listed
    finally:
        session.run(f"DROP TABLE {me}")


@pytest.mark.parametrize("statement", [
    'CREATE TABLE "{0}" (A NUMBER)', 'CREATE TABLE X ("{0}" NUMBER)', 'CREATE SCHEMA "{0}"', 'CREATE DATABASE "{0}"',
    'CREATE VIEW "{0}" AS SELECT 1 AS A', 'CREATE WAREHOUSE "{0}"', 'ALTER TABLE T RENAME TO "{0}"',
    'ALTER TABLE T ADD COLUMN "{0}" NUMBER', 'ALTER TABLE T RENAME COLUMN A TO "{0}"',
])  # fmt: skip
@pytest.mark.parametrize("name", ["x" * 256, "é" * 256, "x" * 5000, ""], ids=["256", "256-wide", "5000", "empty"])
def test_a_name_of_more_than_255_characters_or_none_is_refused(session: Session, name: str, statement: str) -> None:
    session.refusal(statement.format(name))


def test_long_names_that_differ_at_the_end_only_are_different(session: Session) -> None:
    stem = "n" * 250
    session.run(f'CREATE TABLE "{stem}1" ("{stem}1" NUMBER, "{stem}2" NUMBER)')
    session.run(f'CREATE TABLE "{stem}2" ("{stem}1" NUMBER)')
    session.run(f'INSERT INTO "{stem}1" ("{stem}2", "{stem}1") VALUES (2, 1)')

    assert session.run(f'SELECT * FROM "{stem}1"') == [(1, 2)]
    assert session.run(f'SELECT * FROM "{stem}2"') == []
    assert session.names(f'SELECT * FROM "{stem}1"') == [stem + "1", stem + "2"]


def test_names_of_255_characters_can_have_every_kind_of_key(session: Session) -> None:
    table, column = "t" * 255, "c" * 255

    session.run(f'CREATE HYBRID TABLE "{table}" ("{column}" NUMBER AUTOINCREMENT, "{column[1:]}" NUMBER,'
f' UNIQUE ("{column[1:]}"),'
                   f' PRIMARY KEY ("{column}"), INDEX "{"i" * 255}" ("{column[1:]}"))')  # fmt: skip
    session.run(f'INSERT INTO "{table}" ("{column[1:]}") VALUES (5)')

    assert session.run(f'SELECT * FROM "{table}"') == [(1, 5)]
    error = session.refusal(f'INSERT INTO "{table}" ("{column[1:]}") VALUES (5)')
    assert "Duplicate key value violates unique constraint" in message(error)


def test_names_that_differ_in_case_only_are_different(session: Session) -> None:
    session.run('CREATE TABLE "cased" ("a" NUMBER, "A" NUMBER)')
    session.run('INSERT INTO "cased" VALUES (1, 2)')

    assert session.run('SELECT "a", A, a, "A" FROM "cased"') == [(1, 2, 2, 2)]
    assert session.refusal("SELECT * FROM CASED").errno == 2003


def test_dots_in_names_never_mix_up_databases_and_schemas(session: Session) -> None:
    session.run('CREATE DATABASE "DOT.TED"')
    session.run('CREATE SCHEMA "DOT.TED"."S"')
    session.run('CREATE TABLE "DOT.TED"."S".T AS SELECT 1 AS A')
    try:
        session.run("CREATE DATABASE DOT")
        session.run('CREATE SCHEMA DOT."TED.S"')
        session.run('CREATE TABLE DOT."TED.S".T AS SELECT 2 AS A')

        assert session.run('SELECT A FROM "DOT.TED"."S".T') == [(1,)]
        assert session.run('SELECT A FROM DOT."TED.S".T') == [(2,)]
        session.run("DROP DATABASE DOT")
        assert session.run('SELECT A FROM "DOT.TED"."S".T') == [(1,)]
    finally:
        session.run('DROP DATABASE IF EXISTS "DOT.TED"')
        session.run("DROP DATABASE IF EXISTS DOT")
        session.run("USE SCHEMA REFUSED.PUBLIC")


@pytest.mark.parametrize("name", ["1a", "a-b", "a b", "$a", "a.b.c.d", "'a'", "@a", "a#b", "é;"])
def test_an_unquoted_name_with_other_characters_is_refused(session: Session, name: str) -> None:
    session.refusal(f"CREATE TABLE {name} (A NUMBER)")


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


@pytest.mark.parametrize(("statement", "errno", "sqlstate"), FAILING, ids=[row[0] for row in FAILING])
def test_an_error_speaks_snowflakes_language(
    session: Session, statement: str, errno: int | None, sqlstate: str | None
) -> None:
    error = session.refusal(statement)

    assert errno in (None, error.errno), message(error)
    assert sqlstate in (None, error.sqlstate), message(error)


def test_an_ambiguous_column_is_called_so(session: Session) -> None:
    error = session.refusal("SELECT A FROM T JOIN U ON T.A = U.A")

    assert "ambiguous column name 'A'" in message(error)


def test_more_binds_than_placeholders_or_fewer_are_refused(session: Session) -> None:
    assert session.refusal("SELECT ?, ?", 1).errno == 2049
    assert session.run("SELECT ?, ?", 1, "a") == [(1, "a")]


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


@pytest.mark.parametrize(("word", "statement"), NAMED, ids=[statement for _, statement in NAMED])
def test_what_the_server_cannot_do_is_refused_by_name(session: Session, word: str, statement: str) -> None:
    error = session.refusal(statement)

    assert re.search(rf"(?<![A-Z]){word}", message(error).upper()), message(error)
