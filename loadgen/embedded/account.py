"""The account an embedded server begins with, and what a login may add to it.

An empty account has nobody to ask for a database. So the names that the documentation uses are there from the start,
and a login that names a database, schema or warehouse which does not exist creates it. USE creates nothing.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import asyncpg

from loadgen.embedded import catalog as store
from loadgen.embedded.catalog import INFORMATION_SCHEMA, CatalogDatabase, CatalogSchema, now_ms
from loadgen.embedded.commands.objects import make_database, make_schema, new_database
from loadgen.embedded.login import DEFAULT_WAREHOUSE, LoginRequest
from loadgen.embedded.postgres_names import SNOWFLAKE_NAME_LENGTH
from loadgen.embedded.warehouse import CONTROL_WAREHOUSE, WarehouseSettings

if TYPE_CHECKING:
    from loadgen.embedded.engine import Engine
    from loadgen.embedded.session import ServerSession

DATABASES = {"LOADGEN": ("CONTROL",), "BENCH": ()}
WAREHOUSES = (DEFAULT_WAREHOUSE, "BENCH_WH", CONTROL_WAREHOUSE)


async def create_initial_objects(engine: Engine) -> None:
    """Load warehouses, and make what a new account begins with; safe to repeat."""
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


async def open_session(engine: Engine, session: ServerSession, wishes: LoginRequest) -> None:
    """Give a new session its context."""
    session.parameters = dict(wishes.session_parameters)
    warehouse = wishes.warehouse or DEFAULT_WAREHOUSE
    if warehouse not in engine.warehouses:
        await _warehouse(engine, warehouse)
    found = engine.warehouses.get(warehouse)
    session.warehouse, session.warehouse_size = warehouse, found.settings.size if found else None
    if wishes.database:
        if wishes.database not in engine.catalog.databases and len(wishes.database) <= SNOWFLAKE_NAME_LENGTH:
            await _database(engine, wishes.database)
        database = engine.catalog.databases.get(wishes.database)
        if database is not None:
            session.database = database.name
            schema = wishes.schema or "PUBLIC"
            if wishes.schema and schema not in database.schemas and schema != INFORMATION_SCHEMA:
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
            await store.store(connection, "warehouse", [name], asdict(settings))
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
