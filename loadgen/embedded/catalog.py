"""The catalogue: databases, schemas, tables and views, kept in memory and in PostgreSQL.

Owner: the event loop. A change is one PostgreSQL transaction with the DDL and the catalogue rows (PostgreSQL's DDL is
transactional), so a crash leaves both or neither. The memory changes after the commit. `version` counts the changes;
plans of statements are cached per version.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, field, replace
from typing import Any

import asyncpg

from loadgen.embedded import postgres_names
from loadgen.embedded.result import SnowflakeType
from loadgen.embedded.sql_errors import missing_object
from loadgen.values import dataclass

INFORMATION_SCHEMA = "INFORMATION_SCHEMA"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogColumn:
    name: str
    type: SnowflakeType
    nullable: bool = True
    default: str | None = None  # as the user wrote it
    autoincrement: bool = False
    comment: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogKey:
    """A primary, unique or foreign key, or a secondary index."""

    name: str
    columns: tuple[str, ...]
    include: tuple[str, ...] = ()
    references: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogTable:
    """A standard or hybrid table, or a view."""

    database: str
    schema: str
    name: str
    kind: str = "TABLE"  # TABLE | VIEW
    hybrid: bool = False
    transient: bool = False
    columns: tuple[CatalogColumn, ...] = ()
    primary_key: CatalogKey | None = None
    uniques: tuple[CatalogKey, ...] = ()
    foreign_keys: tuple[CatalogKey, ...] = ()
    indexes: tuple[CatalogKey, ...] = ()
    comment: str = ""
    text: str = ""  # of a view: its CREATE statement
    query: str = ""  # of a view: its query, which replaces its name in statements
    stamp: str = ""  # makes the names of keys and indexes unique, also after a rename
    created_ms: int = 0

    @property
    def path(self) -> tuple[str, str, str]:
        return (self.database, self.schema, self.name)

    @property
    def relation(self) -> str:
        return postgres_names.relation(*self.path)

    @property
    def qualified(self) -> str:
        return ".".join(postgres_names.shown(part) for part in self.path)

    def column(self, name: str) -> CatalogColumn | None:
        return next((column for column in self.columns if column.name == name), None)


@dataclass(slots=True)
class CatalogSchema:
    database: str
    name: str
    comment: str = ""
    created_ms: int = 0
    tables: dict[str, CatalogTable] = field(default_factory=dict)


@dataclass(slots=True)
class CatalogDatabase:
    name: str
    comment: str = ""
    transient: bool = False
    created_ms: int = 0
    schemas: dict[str, CatalogSchema] = field(default_factory=dict)


META_DDL = """
CREATE SCHEMA IF NOT EXISTS meta;
CREATE TABLE IF NOT EXISTS meta.object (kind text NOT NULL, key text NOT NULL, body jsonb NOT NULL,
                                        PRIMARY KEY (kind, key));
"""


class Catalog:
    """All objects of the account."""

    def __init__(self) -> None:
        self.databases: dict[str, CatalogDatabase] = {}
        self.version = 0
        self.changing = asyncio.Lock()  # serializes DDL statements

    def changed(self) -> None:
        self.version += 1

    def database(self, name: str) -> CatalogDatabase:
        found = self.databases.get(name)
        if found is None:
            raise missing_object("Database", postgres_names.shown(name))
        return found

    def schema(self, database: str, name: str) -> CatalogSchema:
        found = self.database(database).schemas.get(name)
        if found is None:
            raise missing_object("Schema", f"{postgres_names.shown(database)}.{postgres_names.shown(name)}")
        return found

    def find(self, database: str, schema: str, name: str) -> CatalogTable | None:
        parent = self.databases.get(database)
        container = parent.schemas.get(schema) if parent else None
        return container.tables.get(name) if container else None

    def table(self, database: str, schema: str, name: str, shown: str) -> CatalogTable:
        found = self.find(database, schema, name)
        if found is None:
            raise missing_object("Object", shown)
        return found

    def tables(self, database: str | None = None, schema: str | None = None) -> Iterator[CatalogTable]:
        for parent in self.databases.values():
            if database in (None, parent.name):
                for container in parent.schemas.values():
                    if schema in (None, container.name):
                        yield from container.tables.values()

    async def load(self, connection: asyncpg.Connection) -> None:
        """Read the stored catalogue, at the start and after a restart of PostgreSQL."""
        rows = await connection.fetch("SELECT kind, key, body FROM meta.object ORDER BY kind, key")
        bodies: dict[str, list[dict[str, Any]]] = {"database": [], "schema": [], "table": []}
        for kind, _key, body in rows:
            bodies.setdefault(kind, []).append(json.loads(body))
        # Existing objects are updated in place, because running statements refer to them.
        known = {name: self.databases.get(name) for name in (body["name"] for body in bodies["database"])}
        self.databases.clear()
        for body in bodies["database"]:
            database = known[body["name"]] or CatalogDatabase(**body)
            self.databases[database.name] = database
            mine = [schema for schema in bodies["schema"] if schema["database"] == database.name]
            schemas = {
                schema["name"]: database.schemas.get(schema["name"]) or CatalogSchema(**schema) for schema in mine
            }
            database.schemas.clear()
            database.schemas.update(schemas)
            for schema in schemas.values():
                schema.tables.clear()
        for body in bodies["table"]:
            table = table_from(body)
            self.databases[table.database].schemas[table.schema].tables[table.name] = table
            for name in (table.name, *(column.name for column in table.columns)):
                postgres_names.stored(name)  # registers long names
        self.changed()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def table_from(body: dict[str, Any]) -> CatalogTable:
    columns = tuple(
        CatalogColumn(**{**column, "type": SnowflakeType(**column["type"])}) for column in body.pop("columns")
    )
    keys: dict[str, Any] = {
        name: tuple(_key(key) for key in body.pop(name)) for name in ("uniques", "foreign_keys", "indexes")
    }
    primary = body.pop("primary_key")
    return CatalogTable(**body, **keys, columns=columns, primary_key=_key(primary) if primary else None)


def _key(body: dict[str, Any]) -> CatalogKey:
    return CatalogKey(**{**body, "columns": tuple(body["columns"]), "include": tuple(body["include"])})


async def save_object(connection: asyncpg.Connection, kind: str, path: Sequence[str], body: dict[str, Any]) -> None:
    """Write a catalogue row, in the transaction of the caller that contains the DDL."""
    await connection.execute(
        "INSERT INTO meta.object (kind, key, body) VALUES ($1, $2, $3)"
        " ON CONFLICT (kind, key) DO UPDATE SET body = excluded.body",
        kind,
        key_of(path),
        json.dumps(body),
    )


async def delete_object(connection: asyncpg.Connection, kind: str, path: Sequence[str]) -> None:
    await connection.execute("DELETE FROM meta.object WHERE kind = $1 AND key = $2", kind, key_of(path))


async def save_table(connection: asyncpg.Connection, table: CatalogTable) -> None:
    await save_object(connection, "table", table.path, asdict(table))


def key_of(path: Sequence[str]) -> str:
    return json.dumps(list(path))


def with_column(table: CatalogTable, column: CatalogColumn) -> CatalogTable:
    return replace(table, columns=(*table.columns, column))
