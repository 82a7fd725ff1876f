"""Nothing of the database behind the server shows: none of its functions, syntax, types, catalogues or names."""

from __future__ import annotations

import pytest

from tests.cases import in_one_test
from tests.contract.refused_builders import Refusals, message

pytestmark = pytest.mark.any_driver
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


@in_one_test("call", FOREIGN_FUNCTIONS)
def test_a_function_that_snowflake_does_not_have_is_unknown(refusals: Refusals, call: str) -> None:
    error = refusals.refusal(f"SELECT {call}")

    assert (error.errno, error.sqlstate) == (2140, "42601"), message(error)
    assert f"Unknown function {call.partition('(')[0].upper()}" in message(error)


@in_one_test(
    "call",
    ["pg_catalog.pg_sleep(0)", "pg_catalog.now()", "pg_catalog.upper('a')", "sf.fail('x')", "sf.cast_number('1')",
     "sf.get(V, 'k')", "meta.x()", '"pg_sleep"(0)', '"pg_catalog"."pg_sleep"(0)', '"upper"(\'a\')',
     "information_schema._pg_truetypid(1)", "REFUSED.PUBLIC.pg_sleep(0)"],
)  # fmt: skip
def test_a_function_cannot_be_reached_through_a_schema_or_quotes(refusals: Refusals, call: str) -> None:
    error = refusals.refusal(f"SELECT {call} FROM T")

    assert error.errno in (2140, 2141), message(error)
    assert "Unknown" in message(error)


@in_one_test(
    "source",
    [
        "generate_series(1, 3)", "TABLE(generate_series(1, 3))", "LATERAL generate_series(1, 3)", "pg_ls_dir('/')",
        "TABLE(pg_ls_dir('/'))", "pg_catalog.pg_ls_dir('/')", "TABLE(sf.flatten([1]))",
        "ROWS FROM (generate_series(1, 3))", "json_each('{}')", "jsonb_to_recordset('[]') AS X(A NUMBER)",
        "unnest([1, 2])", "TABLE(information_schema.now())", "TABLE(pg_read_file('/etc/passwd'))",
        "T, LATERAL jsonb_array_elements(V)",
    ],
)  # fmt: skip
def test_a_table_function_that_snowflake_does_not_have_is_refused(refusals: Refusals, source: str) -> None:
    error = refusals.refusal(f"SELECT * FROM {source}")

    assert error.errno in (2, 1003, 2140, 2141, 2142), message(error)


def test_random_is_snowflakes_a_64_bit_integer(refusals: Refusals) -> None:
    values = [row[0] for row in refusals.run("SELECT RANDOM() FROM TABLE(GENERATOR(ROWCOUNT => 50))")]

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


@in_one_test("statement", FOREIGN_SYNTAX)
def test_syntax_that_snowflake_does_not_have_is_refused(refusals: Refusals, statement: str) -> None:
    refusals.refusal(statement)


@in_one_test(
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
def test_the_catalogues_behind_the_server_are_not_there(refusals: Refusals, statement: str) -> None:
    error = refusals.refusal(statement)

    assert error.errno in (2003, 2043), message(error)


@in_one_test(
    "expression",
    [
        '"ctid"', '"xmin"', '"xmax"', '"cmin"', '"cmax"', '"tableoid"', 'T."ctid"', "T", '"T"', '"T"."row_to_json"',
        'T."to_jsonb"', 'T."pg_column_size"', 'T."text"', 'T."varchar"', '"~binds"."c1"', '"~generator"."i"',
        "T::VARCHAR", "COUNT(T)", "TO_VARCHAR(T)", "TO_JSON(T)",
    ],
)  # fmt: skip
def test_neither_system_columns_nor_whole_rows_can_be_selected(refusals: Refusals, expression: str) -> None:
    error = refusals.refusal(f"SELECT {expression} FROM T")

    assert (error.errno, error.sqlstate) == (904, "42000"), message(error)
    assert "invalid identifier" in message(error)


@in_one_test(
    "statement",
    ["SELECT A FROM T LIMIT '(SELECT 1)'", "SELECT A FROM T LIMIT '1 OFFSET 0'",
     "SELECT A FROM T LIMIT '(SELECT COUNT(*) FROM pg_catalog.pg_class)'",
     "SELECT A FROM T LIMIT 1 OFFSET '(SELECT 0 FROM pg_catalog.pg_sleep(0))'", "SELECT A FROM T LIMIT -1",
     "SELECT A FROM T LIMIT 1.5", "SELECT A FROM T LIMIT A", "SELECT A FROM T LIMIT (SELECT 1)",
     "SELECT SEQ4() FROM TABLE(GENERATOR(ROWCOUNT => (SELECT 1)))"],
)  # fmt: skip
def test_a_row_limit_is_a_constant_whole_number(refusals: Refusals, statement: str) -> None:
    refusals.refusal(statement)


@in_one_test(
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
def test_for_update_has_only_the_forms_of_hybrid_tables(refusals: Refusals, query: str) -> None:
    refusals.run("BEGIN")

    try:
        refusals.refusal(query)
    finally:
        refusals.run("ROLLBACK")


def test_for_update_needs_a_transaction(refusals: Refusals) -> None:
    error = refusals.refusal("SELECT * FROM H FOR UPDATE")

    assert "FOR UPDATE" in message(error)


def test_for_update_is_not_for_create_table_as_select(refusals: Refusals) -> None:
    refusals.refusal("CREATE TABLE X AS SELECT * FROM H FOR UPDATE")
    refusals.refusal("SELECT * FROM X")
