"""CREATE TABLE and CREATE HYBRID TABLE, with their columns, keys and indexes; CREATE INDEX."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

import asyncpg

from loadgen.embedded import catalog as store
from loadgen.embedded import postgres_names, sql_errors
from loadgen.embedded.backend_pool import Backend
from loadgen.embedded.catalog import CatalogColumn, CatalogKey, CatalogTable, now_ms
from loadgen.embedded.commands import CommandCall, command
from loadgen.embedded.commands.definition import TableDraft, definitions, query_plan
from loadgen.embedded.commands.objects import change, full_path, head
from loadgen.embedded.result import NUMBER, SnowflakeType, StatementResult, status
from loadgen.embedded.translate.planner import StatementPlan, describe
from loadgen.embedded.translate.token_reader import TokenReader

_UNINDEXED = ("VARIANT", "OBJECT", "ARRAY")
_OPTIONS = {"COMMENT", "DATA_RETENTION_TIME_IN_DAYS", "MAX_DATA_EXTENSION_TIME_IN_DAYS", "CHANGE_TRACKING",
            "ENABLE_SCHEMA_EVOLUTION", "DEFAULT_DDL_COLLATION", "COPY"}  # fmt: skip


@command(
    "CREATE_TABLE",
    "CREATE TABLE", "CREATE HYBRID TABLE", "CREATE TRANSIENT TABLE", "CREATE TEMPORARY", "CREATE TEMP", "CREATE LOCAL",
    "CREATE GLOBAL", "CREATE VOLATILE", "CREATE OR ALTER",
)  # fmt: skip
async def create_table(call: CommandCall) -> StatementResult:
    cursor = call.cursor(1)
    replacing = _flavour(cursor)
    transient = cursor.accept("TRANSIENT")
    hybrid = cursor.accept("HYBRID")
    if cursor.word() in ("TEMP", "TEMPORARY", "LOCAL", "GLOBAL", "VOLATILE"):
        raise sql_errors.unsupported("TEMPORARY TABLE")
    cursor.expect("TABLE")
    absent, _ = head(cursor)
    if absent and replacing:
        raise sql_errors.compilation(1003, "42000", "options IF NOT EXISTS and OR REPLACE are incompatible.")
    path = full_path(call, cursor.path(), "CREATE TABLE")
    draft = definitions(call, cursor, hybrid) if cursor.word() == "(" else TableDraft()
    comment = _options(cursor, hybrid)
    query = _query(call, cursor)
    cursor.end()
    if not draft.columns and query is None:
        raise cursor.unexpected()
    _check_hybrid(call, draft, hybrid, transient, query is not None)
    table = CatalogTable(
        database=path[0], schema=path[1], name=path[2], hybrid=hybrid, transient=transient, comment=comment,
        columns=tuple(draft.columns), created_ms=now_ms(), stamp=secrets.token_hex(4),
    )  # fmt: skip
    existed = call.engine.catalog.find(*path) is not None
    await _create(call, table, draft, query, absent=absent, replacing=replacing)
    shown = postgres_names.shown(table.name)
    return status(
        f"{shown} already exists, statement succeeded."
        if existed and absent
        else f"Table {shown} successfully created."
    )


def _flavour(cursor: TokenReader) -> bool:
    """OR REPLACE or not; OR ALTER is rejected: not allowed for hybrid tables, not supported for others."""
    if cursor.accept("OR", "REPLACE"):
        return True
    if cursor.accept("OR", "ALTER"):
        if cursor.word() == "HYBRID":
            raise sql_errors.compilation(
                1003, "42000", "syntax error: CREATE OR ALTER is not supported for hybrid tables."
            )
        raise sql_errors.unsupported("CREATE OR ALTER")
    return False


def _options(cursor: TokenReader, hybrid: bool) -> str:
    comment = ""
    while not cursor.done and cursor.word() not in ("AS", "LIKE", "CLONE"):
        if cursor.accept("CLUSTER", "BY"):
            if hybrid:
                raise sql_errors.unsupported("clustering key on a hybrid table")
            cursor.skip_parentheses()
            continue
        name = cursor.name()
        if name not in _OPTIONS:
            cursor.index -= 1
            raise cursor.unexpected()
        if name == "COPY":
            cursor.expect("GRANTS")
            continue
        cursor.expect("=")
        value = cursor.value()
        comment = value if name == "COMMENT" else comment
        cursor.accept(",")
    return comment


def _query(call: CommandCall, cursor: TokenReader) -> StatementPlan | None:
    if cursor.word() in ("LIKE", "CLONE"):
        raise sql_errors.unsupported(f"CREATE TABLE … {cursor.word()}")
    if not cursor.accept("AS"):
        return None
    if call.request.bindings:
        raise sql_errors.unsupported("bind variable in CREATE TABLE … AS")
    body = cursor.source(cursor.index, len(cursor.tokens) - 1)
    cursor.index = len(cursor.tokens)
    return query_plan(call, body, call.session.database, call.session.schema)


# --- rules of hybrid tables -------------------------------------------------------------------------------------------


def _check_hybrid(call: CommandCall, draft: TableDraft, hybrid: bool, transient: bool, from_query: bool) -> None:
    by_name = {column.name: column for column in draft.columns}
    keyed = [draft.primary, *draft.uniques, *(columns for columns, _, _ in draft.foreign)]
    for columns in [*keyed, *(key.columns + key.include for key in draft.indexes)]:
        for name in columns:
            if name not in by_name:
                raise sql_errors.invalid_identifier(postgres_names.shown(name))
    if not hybrid:
        return
    if transient:
        raise sql_errors.unsupported("TRANSIENT hybrid table")
    if not draft.primary:
        text = "Hybrid table must have a PRIMARY KEY constraint defined."
        raise sql_errors.compilation(391410 if not from_query else 391411, "0A000", text)
    for columns in [*keyed, *(key.columns + key.include for key in draft.indexes)]:
        for name in columns:
            if by_name[name].type.kind in _UNINDEXED:
                kind = by_name[name].type.kind
                text = f"Column '{postgres_names.shown(name)}' of type {kind} cannot be part of an index."
                raise sql_errors.compilation(391463, "0A000", text)
    for columns in keyed:
        for name in columns:
            if by_name[name].type.kind == "TIMESTAMP_TZ":
                text = f"Column '{postgres_names.shown(name)}' of type TIMESTAMP_TZ cannot be part of a constraint."
                raise sql_errors.compilation(391463, "0A000", text)


# --- making it --------------------------------------------------------------------------------------------------------


async def _create(
    call: CommandCall,
    table: CatalogTable,
    draft: TableDraft,
    query: StatementPlan | None,
    *,
    absent: bool,
    replacing: bool,
) -> None:
    catalog = call.engine.catalog
    schema = catalog.schema(table.database, table.schema)

    async def work(backend: Any) -> Any:
        existing = schema.tables.get(table.name)
        if existing is not None:
            if absent:
                return lambda: None
            if not replacing:
                raise sql_errors.already_exists(existing.qualified)
            if existing.kind == "TABLE":
                await backend.connection.execute(f"DROP TABLE {existing.relation} CASCADE")
        columns = table.columns
        if query is not None:
            await describe(query, backend, catalog.version)
            columns = _query_columns(query, columns)
        made = keyed_table(replace(table, columns=columns), draft, catalog)
        await make_table(backend.connection, made, draft)
        if query is not None:
            made = await _filled(call, backend, made, query)
        await store.store_table(backend.connection, made)
        return lambda: schema.tables.__setitem__(made.name, made)

    await change(call, work)


async def _filled(call: CommandCall, backend: Backend, table: CatalogTable, query: StatementPlan) -> CatalogTable:
    """Fill a new table from its query, and derive the scale of undeclared numbers from the rows."""
    open_numbers = [column for column in table.columns if column.type is NUMBER]
    for column in open_numbers:
        await backend.connection.execute(_retype(table, column, "numeric"))
    arguments = await call.engine.arguments(backend, query, call.running)
    await backend.connection.fetch(f"INSERT INTO {table.relation} {query.sql}", *arguments)
    for column in open_numbers:
        found = await backend.connection.fetchval(
            f"SELECT max(scale({postgres_names.quoted(column.name)}))::text FROM {table.relation}"
        )
        typed = SnowflakeType("FIXED", precision=38, scale=min(int(found or 0), 37))
        await backend.connection.execute(_retype(table, column, typed.postgres))
        columns = tuple(replace(c, type=typed) if c.name == column.name else c for c in table.columns)
        table = replace(table, columns=columns)
    return table


def _retype(table: CatalogTable, column: CatalogColumn, kind: str) -> str:
    return f"ALTER TABLE {table.relation} ALTER COLUMN {postgres_names.quoted(column.name)} TYPE {kind}"


def _query_columns(query: StatementPlan, given: tuple[CatalogColumn, ...]) -> tuple[CatalogColumn, ...]:
    if given:
        if len(given) != len(query.columns):
            raise sql_errors.compilation(2057, "42601", "Column list does not match the query's columns.")
        return given
    found = tuple(CatalogColumn(name=name, type=kind) for name, kind in query.columns)
    if len({column.name for column in found}) != len(found):
        raise sql_errors.compilation(2025, "42S21", "duplicate column name in the query")
    return found


def keyed_table(table: CatalogTable, draft: TableDraft, catalog: store.Catalog) -> CatalogTable:
    """The table with its keys named; the columns of a primary key may not be NULL."""
    columns = tuple(replace(c, nullable=c.nullable and c.name not in draft.primary) for c in table.columns)
    foreign = []
    for number, (keys, path, targets) in enumerate(draft.foreign, 1):
        parent = _parent(table, path, catalog)
        wanted = targets or (parent.primary_key.columns if parent.primary_key else ())
        _check_types(table, keys, parent, wanted)
        foreign.append(
            CatalogKey(name=f"FK~{table.stamp}~{number}", columns=keys, include=wanted, references=parent.relation)
        )
    return replace(
        table,
        columns=columns,
        primary_key=CatalogKey(name=f"PK~{table.stamp}", columns=draft.primary) if draft.primary else None,
        uniques=tuple(
            CatalogKey(name=f"SYS_INDEX_{table.name}_UNIQUE_{'_'.join(unique)}", columns=unique)
            for unique in draft.uniques
        ),
        foreign_keys=tuple(foreign),
        indexes=tuple(draft.indexes),
    )


def _check_types(table: CatalogTable, keys: tuple[str, ...], parent: CatalogTable, wanted: tuple[str, ...]) -> None:
    pairs = [(table.column(key), parent.column(target)) for key, target in zip(keys, wanted, strict=False)]
    same = all(mine and theirs and mine.type.kind == theirs.type.kind for mine, theirs in pairs)
    if len(keys) != len(wanted) or not same:
        raise sql_errors.compilation(2050, "42601", "A foreign key and the key it refers to must have the same types.")


def _parent(table: CatalogTable, path: list[str], catalog: store.Catalog) -> CatalogTable:
    full = [table.database, table.schema, *path][-3:] if len(path) < 3 else path
    if len(path) == 2:
        full = [table.database, *path]
    return catalog.table(full[0], full[1], full[2], ".".join(postgres_names.shown(part) for part in path))


async def make_table(connection: asyncpg.Connection, table: CatalogTable, draft: TableDraft) -> None:
    """Create the PostgreSQL table. Keys of standard tables are recorded and not enforced, as in Snowflake."""
    lines = []
    for column in table.columns:
        line = f"{postgres_names.quoted(column.name)} {column.type.postgres}"
        if column.name in draft.identity:
            sequence = postgres_names.literal(await make_sequence(connection, table, column, draft))
            line += f" DEFAULT nextval({sequence})::numeric"
        elif column.name in draft.defaults:
            # A default that does not fit its column is refused now, not at the first insert.
            await connection.fetchval(f"SELECT (({draft.defaults[column.name]})::{column.type.postgres}) IS NULL")
            line += f" DEFAULT ({draft.defaults[column.name]})"
        lines.append(line + ("" if column.nullable else " NOT NULL"))
    if table.hybrid:
        lines += _constraints(table)
    await connection.fetch(f"CREATE TABLE {table.relation} ({', '.join(lines)}) WITH (fillfactor = 70)")
    for index in table.indexes:
        await make_index(connection, table, index)


def _constraints(table: CatalogTable) -> list[str]:
    lines = []
    if table.primary_key is not None:
        lines.append(
            f"CONSTRAINT {postgres_names.quoted(table.primary_key.name)}"
            f" PRIMARY KEY ({_listed(table.primary_key.columns)})"
        )
    for unique in table.uniques:
        lines.append(
            f"CONSTRAINT {postgres_names.quoted(f'{unique.name}~{table.stamp}')} UNIQUE ({_listed(unique.columns)})"
        )
    for key in table.foreign_keys:
        lines.append(
            f"CONSTRAINT {postgres_names.quoted(key.name)} FOREIGN KEY ({_listed(key.columns)})"
            f" REFERENCES {key.references} ({_listed(key.include)})"
        )
    return lines


def _listed(columns: tuple[str, ...]) -> str:
    return ", ".join(postgres_names.quoted(column) for column in columns)


async def make_index(connection: asyncpg.Connection, table: CatalogTable, index: CatalogKey) -> None:
    include = f" INCLUDE ({_listed(index.include)})" if index.include else ""
    name = postgres_names.quoted(f"{index.name}~{table.stamp}")
    await connection.execute(f"CREATE INDEX {name} ON {table.relation} ({_listed(index.columns)}){include}")


async def make_sequence(
    connection: asyncpg.Connection, table: CatalogTable, column: CatalogColumn, draft: TableDraft
) -> str:
    start, step = draft.identity[column.name]
    name = postgres_names.relation(table.database, table.schema, f"{column.name}~{table.stamp}")
    low = f" MINVALUE {min(start, -(2**62))}" if step < 0 or start < 1 else ""
    await connection.execute(f"CREATE SEQUENCE {name} START {start} INCREMENT {step}{low}")
    return name


@command("CREATE_INDEX", "CREATE INDEX")
async def create_index(call: CommandCall) -> StatementResult:
    cursor = call.cursor(2)
    absent, _ = head(cursor)
    name = cursor.name()
    cursor.expect("ON")
    path = full_path(call, cursor.path(), "CREATE INDEX")
    columns = cursor.names()
    include = cursor.names() if cursor.accept("INCLUDE") else ()
    cursor.end()
    catalog = call.engine.catalog
    index = CatalogKey(name=name, columns=columns, include=include)

    async def work(backend: Any) -> Any:
        table = catalog.table(*path, ".".join(postgres_names.shown(part) for part in path))
        if not table.hybrid:
            raise sql_errors.unsupported("CREATE INDEX on a table that is not hybrid")
        if any(existing.name == name for existing in table.indexes):
            if absent:
                return lambda: None
            raise sql_errors.already_exists(postgres_names.shown(name))
        for column in (*columns, *include):
            if table.column(column) is None:
                raise sql_errors.invalid_identifier(postgres_names.shown(column))
        changed = replace(table, indexes=(*table.indexes, index))
        await make_index(backend.connection, table, index)
        await store.store_table(backend.connection, changed)
        return lambda: catalog.schema(path[0], path[1]).tables.__setitem__(table.name, changed)

    await change(call, work)
    return status(f"Index {postgres_names.shown(name)} successfully created.")
