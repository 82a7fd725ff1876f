"""CREATE and DROP of databases and schemas; DROP, TRUNCATE and COMMENT of tables and views; catalogue changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from typing import Any, TypeVar

import asyncpg

from loadgen.embedded import catalog as store
from loadgen.embedded import postgres_names, sql_errors
from loadgen.embedded.backend_pool import Backend
from loadgen.embedded.catalog import INFORMATION_SCHEMA, CatalogDatabase, CatalogSchema, now_ms
from loadgen.embedded.commands.registry import CommandCall, command
from loadgen.embedded.result import StatementResult, status
from loadgen.embedded.translate import parser
from loadgen.embedded.translate.parser import TokenReader

LOCK_WAIT_S = 60.0
LOCK_RETRY_S = 0.03
T = TypeVar("T")
Work = Callable[[Backend], Awaitable[Callable[[], object]]]


async def change_catalog(call: CommandCall, work: Work) -> None:
    """Change the catalogue. The session's transaction is committed first, as by every DDL statement."""
    engine = call.engine
    if call.session.transaction is not None:
        async with call.session.transaction.lock:
            await engine.transactions.end(call.session, "COMMIT")
    # The backend is acquired before the lock: a restart of PostgreSQL needs the lock, and acquire() waits for it.
    backend = await engine.backends.acquire(call.session.timezone)
    call.running.backend = backend
    deadline_s = time.monotonic() + LOCK_WAIT_S
    try:
        while not await _attempt(call, backend, work):
            if time.monotonic() > deadline_s:
                raise sql_errors.lock_timed_out(call.running.statement.query_id)
            await asyncio.sleep(LOCK_RETRY_S)
            if call.running.reason is not None:
                raise call.running.reason
    finally:
        call.running.backend = None
        await engine.backends.release(backend)


async def _attempt(call: CommandCall, backend: Backend, work: Work) -> bool:
    """Try the change; False after a short lock wait: a DDL statement blocks all later ones in the lock queue."""
    catalog = call.engine.catalog
    async with catalog.changing:
        try:
            async with backend.connection.transaction():
                await backend.connection.execute("SET LOCAL lock_timeout = 30")  # milliseconds
                done = await work(backend)
        except asyncpg.LockNotAvailableError:
            return False
        done()
        catalog.changed()
    return True


def full_path(call: CommandCall, path: list[str], verb: str) -> tuple[str, str, str]:
    """A name of one to three parts; missing parts are those of the session."""
    session = call.session
    if len(path) == 3:
        return path[0], path[1], path[2]
    if session.database is None:
        raise sql_errors.no_current_database(verb)
    if len(path) == 2:
        return session.database, path[0], path[1]
    if session.schema is None:
        raise sql_errors.no_current_schema(verb)
    return session.database, session.schema, path[0]


def options(cursor: TokenReader) -> dict[str, str]:
    """The properties `NAME = value` up to the end of the statement."""
    found: dict[str, str] = {}
    while not cursor.done:
        if cursor.word() == "CLONE":
            raise sql_errors.unsupported("CLONE")
        name = cursor.name()
        cursor.expect("=")
        found[name] = cursor.value()
        cursor.accept(",")
    return found


_IGNORED_OPTIONS = {
    "COMMENT",
    "DATA_RETENTION_TIME_IN_DAYS",
    "MAX_DATA_EXTENSION_TIME_IN_DAYS",
    "DEFAULT_DDL_COLLATION",
}


def checked_options(cursor: TokenReader) -> dict[str, str]:
    found = options(cursor)
    for name in found:
        if name not in _IGNORED_OPTIONS:
            raise sql_errors.unsupported(name)
    return found


def read_create(cursor: TokenReader, kind: str, modifier: str) -> tuple[bool, bool, bool]:
    """Read the beginning of CREATE up to the name: whether OR REPLACE, the modifier and IF NOT EXISTS are given."""
    replacing, modified = cursor.accept("OR", "REPLACE"), cursor.accept(modifier)
    cursor.expect(kind)
    return replacing, modified, read_if_not_exists(cursor, replacing)


def read_if_not_exists(cursor: TokenReader, replacing: bool) -> bool:
    """Read IF NOT EXISTS, which excludes OR REPLACE."""
    found = cursor.accept("IF", "NOT", "EXISTS")
    if found and replacing:
        raise sql_errors.compilation(1003, "42000", "options IF NOT EXISTS and OR REPLACE are incompatible.")
    return found


# --- databases and schemas ------------------------------------------------------------------------------------------


async def make_database(connection: asyncpg.Connection, database: CatalogDatabase) -> None:
    body = asdict(database)
    body.pop("schemas")
    await store.save_object(connection, "database", [database.name], body)
    for schema in database.schemas.values():
        await make_schema(connection, schema)


async def make_schema(connection: asyncpg.Connection, schema: CatalogSchema) -> None:
    body = asdict(schema)
    body.pop("tables")
    await store.save_object(connection, "schema", [schema.database, schema.name], body)
    stored = postgres_names.stored(postgres_names.schema_key(schema.database, schema.name))
    await connection.fetchval("SELECT meta.create_schema($1)::text", stored)


def new_database(name: str, comment: str = "", transient: bool = False) -> CatalogDatabase:
    database = CatalogDatabase(name, comment=comment, transient=transient, created_ms=now_ms())
    database.schemas["PUBLIC"] = CatalogSchema(name, "PUBLIC", created_ms=now_ms())
    return database


@command("CREATE", "CREATE DATABASE", "CREATE TRANSIENT DATABASE")
async def create_database(call: CommandCall) -> StatementResult:
    cursor = call.cursor(1)
    replacing, transient, if_not_exists = read_create(cursor, "DATABASE", "TRANSIENT")
    name = cursor.name()
    given = checked_options(cursor)
    return await _create(
        call, "Database", call.engine.catalog.databases, name, if_not_exists=if_not_exists, replacing=replacing,
        made=new_database(name, given.get("COMMENT", ""), transient), make=make_database, drop=drop_schemas,
        context=(name, "PUBLIC"),
    )  # fmt: skip


@command("CREATE", "CREATE SCHEMA", "CREATE TRANSIENT SCHEMA")
async def create_schema(call: CommandCall) -> StatementResult:
    cursor = call.cursor(1)
    replacing, _, if_not_exists = read_create(cursor, "SCHEMA", "TRANSIENT")
    path = cursor.path()
    _ = cursor.accept("WITH", "MANAGED", "ACCESS")
    given = checked_options(cursor)
    database_name = path[-2] if len(path) > 1 else call.session.database
    if database_name is None:
        raise sql_errors.no_current_database("CREATE SCHEMA")
    name = path[-1]
    catalog = call.engine.catalog
    database = catalog.database(database_name)
    if name == INFORMATION_SCHEMA:
        raise sql_errors.already_exists(name)

    schema = CatalogSchema(database.name, name, comment=given.get("COMMENT", ""), created_ms=now_ms())
    return await _create(
        call, "Schema", database.schemas, name, if_not_exists=if_not_exists, replacing=replacing, made=schema,
        make=make_schema, drop=drop_schema, context=(database.name, name),
    )  # fmt: skip


async def _create(
    call: CommandCall,
    kind: str,
    holder: dict[str, T],
    name: str,
    *,
    if_not_exists: bool,
    replacing: bool,
    made: T,
    make: Callable[[asyncpg.Connection, T], Awaitable[None]],
    drop: Callable[[asyncpg.Connection, T], Awaitable[None]],
    context: tuple[str, str],
) -> StatementResult:
    """CREATE DATABASE or SCHEMA; `context` is the new database and schema of the session."""
    existed, shown = name in holder, postgres_names.shown(name)

    async def work(backend: Any) -> Any:
        if name in holder:
            if if_not_exists:
                return lambda: None
            if not replacing:
                raise sql_errors.already_exists(shown)
            await drop(backend.connection, holder[name])
        await make(backend.connection, made)
        return lambda: holder.__setitem__(name, made)

    await change_catalog(call, work)
    if existed and if_not_exists:
        return status(f"{shown} already exists, statement succeeded.")
    call.session.database, call.session.schema = context
    call.session.changed()
    return status(f"{kind} {shown} successfully created.")


async def drop_schemas(connection: asyncpg.Connection, database: CatalogDatabase) -> None:
    for schema in database.schemas.values():
        await drop_schema(connection, schema)
    await store.delete_object(connection, "database", [database.name])


async def drop_schema(connection: asyncpg.Connection, schema: CatalogSchema) -> None:
    for table in schema.tables.values():
        await store.delete_object(connection, "table", table.path)
    await store.delete_object(connection, "schema", [schema.database, schema.name])
    await connection.execute(
        f"DROP SCHEMA IF EXISTS {postgres_names.schema_name(schema.database, schema.name)} CASCADE"
    )


# --- DROP, TRUNCATE, COMMENT ------------------------------------------------------------------------------------------


@command("DROP", "DROP DATABASE", "DROP SCHEMA")
async def drop_container(call: CommandCall) -> StatementResult:
    cursor = call.cursor(1)
    kind = cursor.take().text.upper()
    if_exists = cursor.accept("IF", "EXISTS")
    path = cursor.path()
    _ = cursor.accept("CASCADE") or cursor.accept("RESTRICT")
    cursor.end()
    catalog, session = call.engine.catalog, call.session
    shown = ".".join(postgres_names.shown(part) for part in path)

    async def work(backend: Any) -> Any:
        if kind == "DATABASE":
            found = catalog.databases.get(path[-1])
            if found is None:
                return _missing(kind, shown, if_exists)
            await drop_schemas(backend.connection, found)
            return lambda: catalog.databases.pop(found.name)
        owner = catalog.databases.get(path[-2] if len(path) > 1 else session.database or "")
        schema = owner.schemas.get(path[-1]) if owner else None
        if owner is None or schema is None:
            return _missing(kind, shown, if_exists)
        await drop_schema(backend.connection, schema)
        return lambda: owner.schemas.pop(schema.name)

    await change_catalog(call, work)
    _leave_dropped(call)
    return status(f"{path[-1]} successfully dropped.")


def _missing(kind: str, shown: str, if_exists: bool) -> Any:
    if not if_exists:
        raise sql_errors.missing_object(kind.capitalize(), shown)
    return lambda: None


def _leave_dropped(call: CommandCall) -> None:
    session, databases = call.session, call.engine.catalog.databases
    if session.database is not None and session.database not in databases:
        session.database = session.schema = None
    elif session.database and session.schema and session.schema not in databases[session.database].schemas:
        session.schema = None
    session.changed()


@command("DROP", "DROP TABLE", "DROP VIEW", "DROP HYBRID TABLE")
async def drop_table(call: CommandCall) -> StatementResult:
    cursor = call.cursor(1)
    _ = cursor.accept("HYBRID")
    kind = cursor.take().text.upper()
    if_exists = cursor.accept("IF", "EXISTS")
    path = cursor.path()
    _ = cursor.accept("CASCADE") or cursor.accept("RESTRICT")
    cursor.end()
    database, schema_name, name = full_path(call, path, f"DROP {kind}")
    catalog = call.engine.catalog

    async def work(backend: Any) -> Any:
        table = catalog.find(database, schema_name, name)
        if table is None or table.kind != kind:
            return _missing(kind, ".".join(postgres_names.shown(part) for part in path), if_exists)
        if kind == "TABLE":
            await backend.connection.execute(f"DROP TABLE {table.relation} CASCADE")
        await store.delete_object(backend.connection, "table", table.path)
        return lambda: catalog.schema(table.database, table.schema).tables.pop(table.name)

    existed = catalog.find(database, schema_name, name) is not None
    await change_catalog(call, work)
    if not existed:
        return status(f"Drop statement executed successfully ({postgres_names.shown(name)} already dropped).")
    return status(f"{postgres_names.shown(name)} successfully dropped.")


@command("TRUNCATE_TABLE", "TRUNCATE")
async def truncate(call: CommandCall) -> StatementResult:
    """TRUNCATE; inside a transaction it is run as a DELETE, which can be rolled back."""
    cursor = call.cursor(1)
    _ = cursor.accept("TABLE")
    if_exists = cursor.accept("IF", "EXISTS")
    path = cursor.path()
    cursor.end()
    database, schema, name = full_path(call, path, "TRUNCATE")
    table = call.engine.catalog.find(database, schema, name)
    if table is None or table.kind != "TABLE":
        _missing("TABLE", ".".join(postgres_names.shown(part) for part in path), if_exists)
        return status("Statement executed successfully.")
    if call.session.transaction is not None or not call.session.autocommit:
        text = "DELETE FROM " + ".".join('"' + part.replace('"', '""') + '"' for part in table.path)
        plan = call.engine.planner.plan(text, parser.tokens_of(text), None, None, (), False)
        await call.engine.run_plan(plan, call.running)
        return status("Statement executed successfully.")

    async def work(backend: Any) -> Any:
        await backend.connection.execute(f"TRUNCATE {table.relation}")
        return lambda: None

    await change_catalog(call, work)
    return status("Statement executed successfully.")


@command("COMMENT", "COMMENT")
async def comment(call: CommandCall) -> StatementResult:
    cursor = call.cursor(1)
    if_exists = cursor.accept("IF", "EXISTS")
    cursor.expect("ON")
    kind = cursor.take().text.upper()
    if kind not in ("TABLE", "VIEW"):
        raise sql_errors.unsupported(f"COMMENT ON {kind}")
    path = cursor.path()
    cursor.expect("IS")
    text = cursor.string()
    cursor.end()
    database, schema, name = full_path(call, path, "COMMENT")

    async def work(backend: Any) -> Any:
        table = call.engine.catalog.find(database, schema, name)
        if table is None:
            return _missing(kind, postgres_names.shown(name), if_exists)
        changed = replace(table, comment=text)
        await store.save_table(backend.connection, changed)
        return lambda: call.engine.catalog.schema(database, schema).tables.__setitem__(name, changed)

    await change_catalog(call, work)
    return status("Statement executed successfully.")
