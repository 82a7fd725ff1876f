"""The second wall: SQL that got past the translation still cannot leave the users' own tables."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import asyncpg
import pytest

from loadgen.embedded import functions
from loadgen.embedded.backend_pool import SEARCH_PATH
from loadgen.embedded.database_setup import VOLATILE_ALLOWED
from loadgen.embedded.postgres import STATEMENT_ROLE, SUPERUSER
from tests.cases import in_one_test
from tests.embedded_server import EmbeddedServer
from tests.processes import ROOT
from tests.security.raw_postgres import RawPostgres

DENIED = "42501"
READ_A_FILE = {
    "pg_read_file": "SELECT pg_read_file('/etc/passwd')",
    "pg_read_file of the cluster": "SELECT pg_read_file('postgresql.conf')",
    "pg_read_binary_file": "SELECT pg_read_binary_file('/etc/passwd')",
    "pg_ls_dir": "SELECT pg_ls_dir('/')",
    "pg_stat_file": "SELECT pg_stat_file('/etc/passwd')",
    "pg_ls_waldir": "SELECT pg_ls_waldir()",
    "pg_hba_file_rules": "SELECT * FROM pg_hba_file_rules",
    "pg_file_settings": "SELECT * FROM pg_file_settings",
    "pg_current_logfile": "SELECT pg_current_logfile()",
    "COPY FROM file": "CREATE TEMP TABLE c (l text); COPY c FROM '/etc/passwd'",
    "lo_import": "SELECT lo_import('/etc/passwd')",
}
WRITE_A_FILE = {
    "COPY TO file": "COPY (SELECT 1) TO '/tmp/loadgen-attack'",
    "lo_export": "SELECT lo_export(1, '/tmp/loadgen-attack')",
    "lo_from_bytea": "SELECT lo_from_bytea(0, 'x')",
    "lo_create": "SELECT lo_create(0)",
    "lo_creat": "SELECT lo_creat(-1)",
    "lo_put": "SELECT lo_put(1, 0, 'x')",
    "lo_open": "SELECT lo_open(1, 131072)",
    "tablespace": "CREATE TABLESPACE attack LOCATION '/tmp'",
}
RUN_A_PROGRAM = {
    "COPY FROM PROGRAM": "CREATE TEMP TABLE p (l text); COPY p FROM PROGRAM 'id'",
    "COPY TO PROGRAM": "COPY (SELECT 1) TO PROGRAM 'cat'",
    "archive_command": "ALTER SYSTEM SET archive_command = 'id'",
}
LOAD_A_LIBRARY = {
    "LOAD": "LOAD 'plpgsql'",
    "extension": "CREATE EXTENSION vector",
    "trusted extension": "DROP EXTENSION plpgsql",
    "C function": "CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE c AS 'libc', 'system'",
    "internal function": "CREATE FUNCTION pg_temp.f(text) RETURNS text LANGUAGE internal AS 'pg_read_file_all'",
    "PL/pgSQL function": "CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN 1; END'",
    "SQL function": "CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "DO": "DO 'BEGIN END'",
    "language": "CREATE LANGUAGE attack HANDLER plpgsql_call_handler",
    "session_preload_libraries": "SET session_preload_libraries = 'attack'",
    "dynamic_library_path": "SET dynamic_library_path = '/tmp'",
    "preload for the role": "ALTER ROLE CURRENT_USER SET session_preload_libraries = 'attack'",
}
CHANGE_SETTINGS = {
    "ALTER SYSTEM": "ALTER SYSTEM SET fsync = off",
    "pg_reload_conf": "SELECT pg_reload_conf()",
    "SET": "SET log_statement = 'all'",
    "set_config": "SELECT set_config('log_min_messages', 'debug5', false)",
    "pg_settings": "UPDATE pg_settings SET setting = 'all' WHERE name = 'log_statement'",
    "replica": "SET session_replication_role = 'replica'",
    "database": "ALTER DATABASE postgres SET TimeZone = 'UTC'",
    "GRANT SET": "GRANT SET ON PARAMETER log_statement TO CURRENT_USER",
    "rotate the log": "SELECT pg_rotate_logfile()",
    "switch the WAL": "SELECT pg_switch_wal()",
    "checkpoint": "CHECKPOINT",
    "statistics": "SELECT pg_stat_reset()",
}
BECOME_SUPERUSER = {
    "CREATE ROLE": "CREATE ROLE attacker",
    "CREATE USER SUPERUSER": "CREATE USER attacker SUPERUSER",
    "ALTER itself": "ALTER ROLE CURRENT_USER SUPERUSER",
    "ALTER the superuser": f"ALTER ROLE {SUPERUSER} PASSWORD 'x'",
    "SET ROLE": f"SET ROLE {SUPERUSER}",
    "SESSION AUTHORIZATION": f"SET SESSION AUTHORIZATION {SUPERUSER}",
    "membership": f"GRANT {SUPERUSER} TO CURRENT_USER",
    "predefined role": "GRANT pg_read_server_files TO CURRENT_USER",
    "pg_authid": "UPDATE pg_authid SET rolsuper = true",
    "passwords": "SELECT rolpassword FROM pg_authid",
    "pg_proc": "UPDATE pg_proc SET prosecdef = true",
    "owner of another": f"ALTER FUNCTION sf.fail OWNER TO {STATEMENT_ROLE}",
    "terminate": "SELECT pg_terminate_backend(pid) FROM pg_stat_activity",
    "replication slot": "SELECT pg_create_physical_replication_slot('attack')",
}
OTHER_DATABASES = {
    "CREATE DATABASE": "CREATE DATABASE attack",
    "ALTER DATABASE": "ALTER DATABASE template1 RENAME TO attack",
    "foreign data": "CREATE FOREIGN DATA WRAPPER attack",
    "subscription": "CREATE SUBSCRIPTION attack CONNECTION 'dbname=template1' PUBLICATION p",
    "publication": "CREATE PUBLICATION attack",
    "schema": "CREATE SCHEMA attack",
}
# What the superuser's own SQL finds by name must not be a user's.
SHADOW_ITS_FUNCTIONS = {
    "function of sf": "CREATE OR REPLACE FUNCTION sf.pi() RETURNS int RETURN 3",
    "table in sf": "CREATE TABLE sf.pg_proc (x int)",
    "operator in sf": "CREATE OPERATOR sf.= (LEFTARG = text, RIGHTARG = text, FUNCTION = texteq)",
    "type in sf": "CREATE TYPE sf.attack AS (x int)",
    "table in pg_catalog": "CREATE TABLE pg_catalog.attack (x int)",
    "view in meta": "CREATE VIEW meta.attack AS SELECT 1",
    "table in public": "CREATE TABLE public.attack (x int)",
    "drop of sf": "DROP SCHEMA sf CASCADE",
    "rename of sf": "ALTER SCHEMA sf RENAME TO old_sf",
    "trigger on meta": "CREATE TRIGGER t BEFORE DELETE ON meta.object EXECUTE FUNCTION tsvector_update_trigger()",
    "rule on meta": "CREATE RULE r AS ON DELETE TO meta.object DO INSTEAD NOTHING",
    "columns of meta": "ALTER TABLE meta.object ADD COLUMN attack int DEFAULT 1",
    "digest of the set-up": "UPDATE meta.setup SET digest = 'x'",
    "event trigger": "CREATE EVENT TRIGGER t ON ddl_command_end EXECUTE FUNCTION sf.fail()",
    "cast": "CREATE CAST (text AS jsonb) WITHOUT FUNCTION",
    "function that makes schemas": "ALTER FUNCTION meta.create_schema(text) RESET ALL",
}  # fmt: skip
ATTACKS = {
    "read a file": READ_A_FILE,
    "write a file": WRITE_A_FILE,
    "run a program": RUN_A_PROGRAM,
    "load a library": LOAD_A_LIBRARY,
    "change settings": CHANGE_SETTINGS,
    "become superuser": BECOME_SUPERUSER,
    "reach another database": OTHER_DATABASES,
    "shadow what the superuser calls": SHADOW_ITS_FUNCTIONS,
}


@in_one_test(("aim", "way", "sql"), [(aim, way, sql) for aim, ways in ATTACKS.items() for way, sql in ways.items()])
def test_raw_sql_is_denied(postgres, aim, way, sql):
    with pytest.raises(asyncpg.PostgresError) as caught:
        postgres.execute(sql)

    assert caught.value.sqlstate == DENIED


@pytest.mark.parametrize("role", [STATEMENT_ROLE, SUPERUSER])
@pytest.mark.parametrize("database", ["template1", "template0"])
def test_no_other_database_lets_it_in(server, role, database):
    with asyncio.Runner() as runner, pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):
        RawPostgres(runner, server.data_dir, role, database)


def test_of_the_functions_that_act_it_may_call_those_that_are_used(postgres):
    found = postgres.rows(
        "SELECT DISTINCT proname::text FROM pg_proc WHERE provolatile = 'v' AND has_function_privilege(oid, 'EXECUTE')"
        " AND pronamespace = 'pg_catalog'::regnamespace"
    )
    code = functions.script() + "".join(path.read_text() for path in (ROOT / "loadgen/embedded").rglob("*.py"))

    assert {name for (name,) in found} == set(VOLATILE_ALLOWED)
    assert [name for name in VOLATILE_ALLOWED if f"{name}(" not in code] == []


def test_it_owns_and_inherits_nothing_but_the_users_schemas(postgres):
    attributes = "rolsuper, rolcreaterole, rolcreatedb, rolreplication, rolbypassrls"
    owned = "SELECT nspname::text FROM pg_namespace WHERE nspowner = current_user::regrole"

    assert postgres.rows(f"SELECT {attributes} FROM pg_roles WHERE rolname = current_user") == [(False,) * 5]
    assert postgres.rows("SELECT roleid FROM pg_auth_members WHERE member = current_user::regrole") == []
    assert postgres.rows("SELECT has_database_privilege(current_database(), 'CREATE')") == [(False,)]
    assert [name for (name,) in postgres.rows(owned) if "." not in name] == []


def test_only_the_function_that_makes_schemas_has_its_owners_rights(postgres):
    found = postgres.rows(
        "SELECT oid::regprocedure::text, proconfig FROM pg_proc"
        " WHERE prosecdef AND has_function_privilege(oid, 'EXECUTE')"
    )

    assert found == [("meta.create_schema(text)", ["search_path=pg_catalog, pg_temp"])]


def test_the_search_path_of_the_superuser_has_no_schema_that_the_role_may_change(postgres):
    for schema in SEARCH_PATH.split(", ")[:-1]:
        assert postgres.rows("SELECT has_schema_privilege($1, 'CREATE')", schema) == [(False,)]
        owners = "SELECT DISTINCT proowner::regrole::text FROM pg_proc WHERE pronamespace = $1::regnamespace"
        assert postgres.rows(owners, schema) == [(SUPERUSER,)]


def test_a_temporary_table_does_not_stand_in_for_a_catalogue_of_postgresql(postgres):
    postgres.execute("CREATE TEMP TABLE pg_stat_activity (pid int)")

    try:
        assert len(postgres.rows("SELECT pid FROM pg_stat_activity WHERE pid = pg_backend_pid()")) == 1
    finally:
        postgres.execute("DROP TABLE pg_temp.pg_stat_activity")


@pytest.fixture
def hostile_schema(postgres: RawPostgres) -> Iterator[str]:
    name = 'a".b; ALTER ROLE loadgen_statements SUPERUSER; --'
    yield name
    with contextlib.suppress(asyncpg.PostgresError):
        postgres.execute('DROP SCHEMA "' + name.replace('"', '""') + '"')


def test_the_name_of_a_schema_is_never_executed(postgres, hostile_schema):
    postgres.rows("SELECT meta.create_schema($1)", hostile_schema)

    made = postgres.rows("SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = $1", hostile_schema)
    assert made == [(STATEMENT_ROLE,)]
    assert postgres.rows("SELECT rolsuper FROM pg_roles WHERE rolname = current_user") == [(False,)]


def test_users_statements_run_as_the_role(server: EmbeddedServer, cursor, postgres):
    cursor.execute("CREATE TABLE MINE (X NUMBER)")
    cursor.execute("INSERT INTO MINE VALUES (1)")

    owners = "SELECT DISTINCT relowner::regrole::text FROM pg_class WHERE relname = 'MINE'"
    roles = "SELECT DISTINCT usename::text FROM pg_stat_activity WHERE application_name = 'loadgen'"
    assert postgres.rows(owners) == [(STATEMENT_ROLE,)]
    assert postgres.rows(roles) == [(STATEMENT_ROLE,)]
