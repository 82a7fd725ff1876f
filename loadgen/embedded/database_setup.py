"""The setup of PostgreSQL: the role that runs statements, the library of functions, the catalogue's table.

The superuser performs the setup, on a separate connection and in one transaction, if the cluster is new or was set up
by another version. Everything else runs as STATEMENT_ROLE, which owns the users' schemas and tables and has no
privileges on files, programs, large objects, languages, other databases or server settings. A statement that the
emitter accepts by mistake could therefore access the users' data only.

The superuser's search_path contains only schemas that no other role can change, and the superuser does not evaluate
expressions of users.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import asyncpg

from loadgen.embedded import catalog as store
from loadgen.embedded import functions
from loadgen.embedded.backend_pool import CONNECT_S, SEARCH_PATH
from loadgen.embedded.catalog import INFORMATION_SCHEMA, META_DDL, CatalogDatabase, CatalogSchema, now_ms
from loadgen.embedded.commands.objects import make_database, make_schema, new_database
from loadgen.embedded.postgres import STATEMENT_ROLE, SUPERUSER, PostgresServer
from loadgen.embedded.postgres_names import SNOWFLAKE_NAME_LENGTH
from loadgen.embedded.session import DEFAULT_WAREHOUSE, LoginRequest
from loadgen.embedded.warehouse import CONTROL_WAREHOUSE, WarehouseSettings
from loadgen.errors import EmbeddedServerError

if TYPE_CHECKING:
    from loadgen.embedded.engine import Engine
    from loadgen.embedded.session import ServerSession


# PostgreSQL's functions with side effects, or with access to data outside the database, are VOLATILE. The role may
# execute those that the library and the server use; the privilege for the others is revoked.
VOLATILE_ALLOWED = (
    "gen_random_uuid",
    "nextval",
    "pg_advisory_xact_lock",
    "pg_try_advisory_xact_lock",
    "random",
    "set_config",  # changes only settings that a role may SET
)

# Settings that the role has made for itself would outlive the server. Older versions stored their digest in
# meta.object.
_UP_TO_DATE = """
SELECT FROM meta.setup
WHERE digest = $1
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_db_role_setting)
   AND NOT EXISTS (SELECT FROM meta.object WHERE kind = 'functions')
"""

_ROLE = f"""
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{STATEMENT_ROLE}') THEN
        CREATE ROLE {STATEMENT_ROLE};
    END IF;
END
$$;
ALTER ROLE {STATEMENT_ROLE} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS;
ALTER ROLE {STATEMENT_ROLE} RESET ALL;
ALTER ROLE {STATEMENT_ROLE} IN DATABASE postgres RESET ALL;
CREATE TABLE IF NOT EXISTS meta.setup (digest text NOT NULL);
"""

# A function cannot be replaced by one with other parameter names, nor dropped while a view or a default uses it. So the
# parameter names of an older library are removed before its functions are replaced, in the same transaction.
_UNNAME_PARAMETERS = """
UPDATE pg_proc SET proargnames = CASE WHEN proargmodes IS NULL THEN NULL ELSE ARRAY(
    SELECT CASE WHEN mode IN ('i', 'b', 'v') THEN '' ELSE name END
    FROM unnest(proargnames, proargmodes) WITH ORDINALITY AS argument(name, mode, position) ORDER BY position) END
WHERE pronamespace = to_regnamespace('sf') AND proargnames IS NOT NULL
"""

# The privilege CREATE on the database would include the installation of extensions; so a function creates schemas.
_PRIVILEGES = f"""
REVOKE ALL ON DATABASE postgres, template1 FROM PUBLIC, {STATEMENT_ROLE};
REVOKE ALL ON SCHEMA public FROM PUBLIC, {STATEMENT_ROLE};
REVOKE ALL ON LANGUAGE sql, plpgsql FROM PUBLIC, {STATEMENT_ROLE};
GRANT CONNECT, TEMPORARY ON DATABASE postgres TO {STATEMENT_ROLE};
GRANT USAGE ON SCHEMA sf, meta TO {STATEMENT_ROLE};
GRANT USAGE ON ALL SEQUENCES IN SCHEMA sf TO {STATEMENT_ROLE};
GRANT SELECT, INSERT, UPDATE, DELETE ON meta.object TO {STATEMENT_ROLE};
GRANT SELECT ON meta.setup TO {STATEMENT_ROLE};

CREATE OR REPLACE FUNCTION meta.create_schema(name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('CREATE SCHEMA %I AUTHORIZATION {STATEMENT_ROLE}', name);
END
$$;
REVOKE ALL ON FUNCTION meta.create_schema(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION meta.create_schema(text) TO {STATEMENT_ROLE};

DO $$
BEGIN
    EXECUTE (
        SELECT 'REVOKE ALL ON ROUTINE ' || string_agg(oid::regprocedure::text, ', ') || ' FROM PUBLIC'
        FROM pg_proc
        WHERE pronamespace = 'pg_catalog'::regnamespace AND provolatile = 'v'
            AND proname <> ALL ('{{{",".join(VOLATILE_ALLOWED)}}}')
    );
END
$$;
"""

# In earlier versions the superuser owned the users' objects. Its own objects are in the schemas named here.
_OWNERSHIP = f"""
DO $$
DECLARE
    command text;
BEGIN
    FOR command IN
        WITH home AS (
            SELECT oid, nspname FROM pg_namespace
            WHERE nspowner = '{SUPERUSER}'::regrole AND nspname <> ALL ('{{sf,meta,public,information_schema}}')
                AND NOT starts_with(nspname, 'pg_')
        )
        SELECT format('ALTER SCHEMA %I OWNER TO {STATEMENT_ROLE}', nspname) FROM home
        UNION ALL
        SELECT format('ALTER TABLE %I.%I OWNER TO {STATEMENT_ROLE}', home.nspname, object.relname)
        FROM pg_class AS object JOIN home ON home.oid = object.relnamespace
        WHERE object.relkind IN ('r', 'S') AND object.relowner = '{SUPERUSER}'::regrole
    LOOP
        EXECUTE command;
    END LOOP;
END
$$;
DELETE FROM meta.object WHERE kind = 'functions';
"""


def _digest() -> str:
    """A digest of the setup, which changes with every change of the setup."""
    texts = (functions.script(), META_DDL, _ROLE, _PRIVILEGES, _OWNERSHIP)
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


async def is_up_to_date(connection: asyncpg.Connection) -> bool:
    """Whether this version has performed the setup; `connection` is one of STATEMENT_ROLE."""
    try:
        return await connection.fetchrow(_UP_TO_DATE, _digest()) is not None
    except asyncpg.PostgresConnectionError:
        raise
    except asyncpg.PostgresError:
        return False


async def set_up(postgres: PostgresServer) -> None:
    """Set up a new cluster, or update one of another version, in one transaction."""
    connection = await asyncpg.connect(
        **postgres.connect_kwargs(SUPERUSER), timeout=CONNECT_S, server_settings={"search_path": SEARCH_PATH}
    )
    try:
        async with connection.transaction():
            await connection.execute(META_DDL + _ROLE + _UNNAME_PARAMETERS)
            await connection.execute(functions.script())
            await connection.execute(_PRIVILEGES + _OWNERSHIP)
            await connection.execute("DELETE FROM meta.setup")
            await connection.execute("INSERT INTO meta.setup VALUES ($1)", _digest())
    except asyncpg.PostgresConnectionError:
        raise
    except asyncpg.PostgresError as error:
        what = f"the data directory was made by another version of loadgen ({error})"
        raise EmbeddedServerError(what, remedy="Choose another directory with --data-dir, or remove it.") from None
    finally:
        connection.terminate()  # a regular close would fail if PostgreSQL has ended


DATABASES = {"LOADGEN": ("CONTROL",), "BENCH": ()}
WAREHOUSES = (DEFAULT_WAREHOUSE, "BENCH_WH", CONTROL_WAREHOUSE)


async def create_initial_objects(engine: Engine) -> None:
    """Load the warehouses, and create the objects of a new account. Can be repeated."""
    catalog = engine.catalog
    backend = await engine.backends.acquire("UTC")
    try:
        rows = await backend.connection.fetch("SELECT body FROM meta.object WHERE kind = 'warehouse'")
        for row in rows:
            settings = WarehouseSettings(**json.loads(row[0]))
            if settings.name not in engine.warehouses:
                engine.warehouses.add(settings)
        fresh = not catalog.databases
    finally:
        await engine.backends.release(backend)
    if fresh:
        for name, schemas in DATABASES.items():
            await _database(engine, name)
            for schema in schemas:
                await _schema(engine, catalog.databases[name], schema)
        for name in WAREHOUSES:
            await _warehouse(engine, name)


async def open_session(engine: Engine, session: ServerSession, login: LoginRequest) -> None:
    """Set the context of a new session; objects that the login names are created if missing."""
    session.parameters = dict(login.session_parameters)
    warehouse = login.warehouse or DEFAULT_WAREHOUSE
    if warehouse not in engine.warehouses:
        await _warehouse(engine, warehouse)
    found = engine.warehouses.get(warehouse)
    session.warehouse, session.warehouse_size = warehouse, found.settings.size if found else None
    if login.database:
        if login.database not in engine.catalog.databases and len(login.database) <= SNOWFLAKE_NAME_LENGTH:
            await _database(engine, login.database)
        database = engine.catalog.databases.get(login.database)
        if database is not None:
            session.database = database.name
            schema = login.schema or "PUBLIC"
            if login.schema and schema not in database.schemas and schema != INFORMATION_SCHEMA:
                await _schema(engine, database, schema)
            session.schema = schema if schema in database.schemas or schema == INFORMATION_SCHEMA else None
    session.changed()


async def _database(engine: Engine, name: str) -> None:
    async def work(connection: asyncpg.Connection) -> None:
        if name not in engine.catalog.databases:
            database = new_database(name)
            async with connection.transaction():
                await make_database(connection, database)
            engine.catalog.databases[name] = database

    await _change(engine, work)


async def _schema(engine: Engine, database: CatalogDatabase, name: str) -> None:
    async def work(connection: asyncpg.Connection) -> None:
        if name not in database.schemas:
            schema = CatalogSchema(database.name, name, created_ms=now_ms())
            async with connection.transaction():
                await make_schema(connection, schema)
            database.schemas[name] = schema

    await _change(engine, work)


async def _warehouse(engine: Engine, name: str) -> None:
    async def work(connection: asyncpg.Connection) -> None:
        if name not in engine.warehouses:
            now = engine.now_ms()
            settings = WarehouseSettings(name=name, created_on_ms=now, updated_on_ms=now)
            await store.save_object(connection, "warehouse", [name], asdict(settings))
            engine.warehouses.add(settings)

    await _change(engine, work)


async def _change(engine: Engine, work: Callable[[asyncpg.Connection], Awaitable[None]]) -> None:
    backend = await engine.backends.acquire("UTC")
    try:
        async with engine.catalog.changing:
            await work(backend.connection)
            engine.catalog.changed()
    finally:
        await engine.backends.release(backend)
