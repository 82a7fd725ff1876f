"""ALTER TABLE, CREATE INDEX, DROP INDEX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import asyncpg

from loadgen.embedded import catalog as store
from loadgen.embedded import postgres_names, sql_errors
from loadgen.embedded.catalog import CatalogColumn, CatalogKey, CatalogTable
from loadgen.embedded.commands.objects import change_catalog, full_path
from loadgen.embedded.commands.registry import CommandCall, command
from loadgen.embedded.commands.tables import TableDraft, column_definition, make_index, make_sequence, read_type
from loadgen.embedded.result import StatementResult, status
from loadgen.embedded.translate.parser import TokenReader

Step = Callable[[CatalogTable, asyncpg.Connection], Any]
SUCCESS = "Statement executed successfully."


@command("ALTER_TABLE", "ALTER TABLE")
async def alter_table(call: CommandCall) -> StatementResult:
    cursor = call.cursor(2)
    if_exists = cursor.accept("IF", "EXISTS")
    path = full_path(call, cursor.path(), "ALTER TABLE")
    step = _step(call, cursor)
    cursor.end()
    catalog = call.engine.catalog

    async def work(backend: Any) -> Any:
        table = catalog.find(*path)
        if table is None or table.kind != "TABLE":
            if if_exists:
                return lambda: None
            raise sql_errors.missing_object("Table", ".".join(postgres_names.shown(part) for part in path))
        changed = await step(table, backend.connection)
        await store.delete_object(backend.connection, "table", table.path)
        await store.save_table(backend.connection, changed)
        tables = catalog.schema(path[0], path[1]).tables

        def done() -> None:
            tables.pop(table.name)
            tables[changed.name] = changed

        return done

    await change_catalog(call, work)
    return status(SUCCESS)


def _step(call: CommandCall, cursor: TokenReader) -> Step:
    if cursor.accept("ADD"):
        return _add(call, cursor)
    if cursor.accept("DROP"):
        return _drop(cursor)
    if cursor.accept("RENAME"):
        return _rename(call, cursor)
    if cursor.accept("ALTER") or cursor.accept("MODIFY"):
        return _modify(cursor)
    if cursor.accept("SET"):
        cursor.expect("COMMENT", "=")
        text = cursor.string()

        async def comment(table: CatalogTable, connection: asyncpg.Connection) -> CatalogTable:
            return replace(table, comment=text)

        return comment
    raise sql_errors.unsupported(f"ALTER TABLE {cursor.word()}")


def _add(call: CommandCall, cursor: TokenReader) -> Step:
    if cursor.word() in ("CONSTRAINT", "UNIQUE", "FOREIGN", "PRIMARY"):
        return _add_constraint(cursor)
    _ = cursor.accept("COLUMN")
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    draft = TableDraft()
    column_definition(call, cursor, draft)
    while cursor.accept(","):
        _ = cursor.accept("COLUMN")
        column_definition(call, cursor, draft)
    if draft.primary or draft.uniques or draft.foreign:
        raise sql_errors.unsupported("a key in ADD COLUMN; add it with ADD UNIQUE")

    async def add(table: CatalogTable, connection: asyncpg.Connection) -> CatalogTable:
        for column in draft.columns:
            if table.column(column.name) is not None:
                if if_not_exists:
                    continue
                raise sql_errors.compilation(
                    1430, "42601", f"column '{postgres_names.shown(column.name)}' already exists"
                )
            default = draft.defaults.get(column.name)
            if column.name in draft.identity:
                sequence = await make_sequence(connection, table, column, draft)
                default = f"nextval({postgres_names.literal(sequence)})::numeric"
            text = (
                f"ALTER TABLE {table.relation} ADD COLUMN {postgres_names.quoted(column.name)} {column.type.postgres}"
            )
            text += f" DEFAULT ({default})" if default else ""
            await connection.fetch(text + ("" if column.nullable else " NOT NULL"))
            table = store.with_column(table, column)
        return table

    return add


def _add_constraint(cursor: TokenReader) -> Step:
    if cursor.accept("CONSTRAINT"):
        cursor.name()
    if not cursor.accept("UNIQUE"):
        raise sql_errors.unsupported(f"ALTER TABLE ADD {cursor.word()}")
    columns = cursor.names()

    async def add(table: CatalogTable, connection: asyncpg.Connection) -> CatalogTable:
        key = CatalogKey(name=f"SYS_INDEX_{table.name}_UNIQUE_{'_'.join(columns)}", columns=columns)
        if table.hybrid:
            listed = ", ".join(postgres_names.quoted(column) for column in columns)
            name = postgres_names.quoted(f"{key.name}~{table.stamp}")
            await connection.execute(f"ALTER TABLE {table.relation} ADD CONSTRAINT {name} UNIQUE ({listed})")
        return replace(table, uniques=(*table.uniques, key))

    return add


def _drop(cursor: TokenReader) -> Step:
    _ = cursor.accept("COLUMN")
    if_exists = cursor.accept("IF", "EXISTS")
    columns = [cursor.name()]
    while cursor.accept(","):
        columns.append(cursor.name())

    async def drop(table: CatalogTable, connection: asyncpg.Connection) -> CatalogTable:
        for name in columns:
            if table.column(name) is None:
                if if_exists:
                    continue
                raise sql_errors.invalid_identifier(postgres_names.shown(name))
            if table.hybrid and table.primary_key and name in table.primary_key.columns:
                raise sql_errors.unsupported("dropping a column of the primary key")
            await connection.execute(f"ALTER TABLE {table.relation} DROP COLUMN {postgres_names.quoted(name)}")
            table = replace(table, columns=tuple(c for c in table.columns if c.name != name))
        return table

    return drop


def _rename(call: CommandCall, cursor: TokenReader) -> Step:
    if cursor.accept("COLUMN"):
        old = cursor.name()
        cursor.expect("TO")
        new = cursor.name()

        async def rename_column(table: CatalogTable, connection: asyncpg.Connection) -> CatalogTable:
            column = table.column(old)
            if column is None:
                raise sql_errors.invalid_identifier(postgres_names.shown(old))
            await connection.execute(
                f"ALTER TABLE {table.relation}"
                f" RENAME COLUMN {postgres_names.quoted(old)} TO {postgres_names.quoted(new)}"
            )
            return _replaced(table, old, replace(column, name=new))

        return rename_column
    cursor.expect("TO")
    path = full_path(call, cursor.path(), "ALTER TABLE")

    async def rename(table: CatalogTable, connection: asyncpg.Connection) -> CatalogTable:
        if path[:2] != table.path[:2]:
            raise sql_errors.unsupported("moving a table to another schema")
        if call.engine.catalog.find(*path) is not None:
            raise sql_errors.already_exists(postgres_names.shown(path[2]))
        await connection.execute(f"ALTER TABLE {table.relation} RENAME TO {postgres_names.quoted(path[2])}")
        return replace(table, name=path[2])

    return rename


def _replaced(table: CatalogTable, name: str, column: CatalogColumn) -> CatalogTable:
    """The table with one column replaced, also in its keys."""

    def key(old: CatalogKey) -> CatalogKey:
        return replace(old, columns=tuple(column.name if c == name else c for c in old.columns))

    return replace(
        table,
        columns=tuple(column if c.name == name else c for c in table.columns),
        primary_key=key(table.primary_key) if table.primary_key else None,
        uniques=tuple(map(key, table.uniques)),
        indexes=tuple(map(key, table.indexes)),
    )


def _modify(cursor: TokenReader) -> Step:
    _ = cursor.accept("COLUMN")
    name = cursor.name()
    if cursor.accept("SET", "NOT", "NULL"):
        return _nullability(name, False)
    if cursor.accept("DROP", "NOT", "NULL"):
        return _nullability(name, True)
    if cursor.accept("COMMENT"):
        text = cursor.string()

        async def comment(table: CatalogTable, connection: asyncpg.Connection) -> CatalogTable:
            return _replaced(table, name, replace(_existing(table, name), comment=text))

        return comment
    if cursor.accept("SET", "DATA", "TYPE") or cursor.accept("TYPE"):
        kind = read_type(cursor)

        async def retype(table: CatalogTable, connection: asyncpg.Connection) -> CatalogTable:
            column = _existing(table, name)
            if column.type.kind != kind.kind:
                text = f"cannot change column {postgres_names.shown(name)} from type {column.type.sql} to {kind.sql}"
                raise sql_errors.compilation(2108, "22000", text)
            await connection.execute(
                f"ALTER TABLE {table.relation} ALTER COLUMN {postgres_names.quoted(name)} TYPE {kind.postgres}"
            )
            return _replaced(table, name, replace(column, type=kind))

        return retype
    raise sql_errors.unsupported("ALTER TABLE ALTER COLUMN form")


def _existing(table: CatalogTable, name: str) -> CatalogColumn:
    column = table.column(name)
    if column is None:
        raise sql_errors.invalid_identifier(postgres_names.shown(name))
    return column


def _nullability(name: str, nullable: bool) -> Step:
    async def change_column(table: CatalogTable, connection: asyncpg.Connection) -> CatalogTable:
        column = _existing(table, name)
        verb = "DROP" if nullable else "SET"
        await connection.execute(
            f"ALTER TABLE {table.relation} ALTER COLUMN {postgres_names.quoted(name)} {verb} NOT NULL"
        )
        return _replaced(table, name, replace(column, nullable=nullable))

    return change_column


@command("CREATE_INDEX", "CREATE INDEX")
async def create_index(call: CommandCall) -> StatementResult:
    cursor = call.cursor(2)
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
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
            if if_not_exists:
                return lambda: None
            raise sql_errors.already_exists(postgres_names.shown(name))
        for column in (*columns, *include):
            if table.column(column) is None:
                raise sql_errors.invalid_identifier(postgres_names.shown(column))
        changed = replace(table, indexes=(*table.indexes, index))
        await make_index(backend.connection, table, index)
        await store.save_table(backend.connection, changed)
        return lambda: catalog.schema(path[0], path[1]).tables.__setitem__(table.name, changed)

    await change_catalog(call, work)
    return status(f"Index {postgres_names.shown(name)} successfully created.")


@command("DROP", "DROP INDEX")
async def drop_index(call: CommandCall) -> StatementResult:
    cursor = call.cursor(2)
    if_exists = cursor.accept("IF", "EXISTS")
    path = cursor.path()
    cursor.end()
    if len(path) < 2:
        raise cursor.unexpected()
    home = full_path(call, path[:-1], "DROP INDEX")
    name = path[-1]
    catalog = call.engine.catalog

    async def work(backend: Any) -> Any:
        table = catalog.table(*home, ".".join(postgres_names.shown(part) for part in path[:-1]))
        if all(index.name != name for index in table.indexes):
            if if_exists:
                return lambda: None
            raise sql_errors.missing_object("Index", postgres_names.shown(name))
        changed = replace(table, indexes=tuple(index for index in table.indexes if index.name != name))
        await backend.connection.execute(
            f"DROP INDEX {postgres_names.relation(home[0], home[1], f'{name}~{table.stamp}')}"
        )
        await store.save_table(backend.connection, changed)
        return lambda: catalog.schema(home[0], home[1]).tables.__setitem__(table.name, changed)

    await change_catalog(call, work)
    return status(f"{postgres_names.shown(name)} successfully dropped.")
