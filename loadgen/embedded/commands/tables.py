"""CREATE TABLE and CREATE HYBRID TABLE, with their columns, keys and indexes; CREATE VIEW.

A view is stored as the text of its query, which replaces the view's name in a statement. The query is resolved when the
statement runs, and a view does not prevent changes of its tables.
"""

from __future__ import annotations

import secrets
from dataclasses import field, replace
from typing import Any

import asyncpg

from loadgen.embedded import catalog as store
from loadgen.embedded import postgres_names, sql_errors
from loadgen.embedded.backend_pool import Backend
from loadgen.embedded.catalog import CatalogColumn, CatalogKey, CatalogTable, now_ms
from loadgen.embedded.commands.objects import change_catalog, full_path, read_create, read_if_not_exists
from loadgen.embedded.commands.registry import CommandCall, command
from loadgen.embedded.result import NUMBER, UNSUPPORTED_TYPES, SnowflakeType, StatementResult, declared, status
from loadgen.embedded.translate import parser
from loadgen.embedded.translate.emitter import BindTypes, Emitter
from loadgen.embedded.translate.parser import TokenReader, word_of
from loadgen.embedded.translate.planner import StatementPlan, describe
from loadgen.values import dataclass

_TYPE_SUFFIXES = (("DOUBLE", "PRECISION"), ("CHAR", "VARYING"), ("NCHAR", "VARYING"))
_UNINDEXED = ("VARIANT", "OBJECT", "ARRAY")
_OPTIONS = {"COMMENT", "DATA_RETENTION_TIME_IN_DAYS", "MAX_DATA_EXTENSION_TIME_IN_DAYS", "CHANGE_TRACKING",
            "ENABLE_SCHEMA_EVOLUTION", "DEFAULT_DDL_COLLATION", "COPY"}  # fmt: skip


# --- columns, keys and indexes of a definition ------------------------------------------------------------------------


@dataclass(slots=True)
class TableDraft:
    """The parsed definition of a table."""

    columns: list[CatalogColumn] = field(default_factory=list)
    defaults: dict[str, str] = field(default_factory=dict)  # column → PostgreSQL expression
    identity: dict[str, tuple[int, int]] = field(default_factory=dict)  # column → start, step
    primary: tuple[str, ...] = ()
    uniques: list[tuple[str, ...]] = field(default_factory=list)
    foreign: list[tuple[tuple[str, ...], list[str], tuple[str, ...]]] = field(default_factory=list)
    indexes: list[CatalogKey] = field(default_factory=list)


def definitions(call: CommandCall, cursor: TokenReader, hybrid: bool) -> TableDraft:
    draft = TableDraft()
    cursor.expect("(")
    while True:
        if cursor.word() in (
            "PRIMARY",
            "UNIQUE",
            "FOREIGN",
            "CONSTRAINT",
        ):  # as names of columns these words have to be quoted
            _table_constraint(cursor, draft)
        elif cursor.word() == "INDEX" and cursor.word(2) == "(" and hybrid:
            cursor.expect("INDEX")
            draft.indexes.append(index_definition(cursor))
        else:
            column_definition(call, cursor, draft)
        if not cursor.accept(","):
            break
    cursor.expect(")")
    seen: set[str] = set()
    for column in draft.columns:
        if column.name in seen:
            raise sql_errors.compilation(2025, "42S21", f"duplicate column name '{postgres_names.shown(column.name)}'")
        seen.add(column.name)
    return draft


def index_definition(cursor: TokenReader) -> CatalogKey:
    name = cursor.name()
    columns = cursor.names()
    include = cursor.names() if cursor.accept("INCLUDE") else ()
    return CatalogKey(name=name, columns=columns, include=include)


def _table_constraint(cursor: TokenReader, draft: TableDraft) -> None:
    if cursor.accept("CONSTRAINT"):
        cursor.name()
    if cursor.accept("PRIMARY", "KEY"):
        draft.primary = cursor.names()
    elif cursor.accept("UNIQUE"):
        draft.uniques.append(cursor.names())
    elif cursor.accept("FOREIGN", "KEY"):
        columns = cursor.names()
        draft.foreign.append((columns, *_references(cursor)))
    else:
        raise cursor.unexpected()
    _constraint_properties(cursor)


def _references(cursor: TokenReader) -> tuple[list[str], tuple[str, ...]]:
    cursor.expect("REFERENCES")
    path = cursor.path()
    return path, cursor.names() if cursor.word() == "(" else ()


def _constraint_properties(cursor: TokenReader) -> None:
    while cursor.word() in ("NOT", "ENFORCED", "DEFERRABLE", "INITIALLY", "ENABLE", "VALIDATE", "RELY", "NORELY"):
        if cursor.word() == "NOT" and cursor.word(1) == "NULL":
            return
        cursor.take()
        _ = cursor.accept("DEFERRED") or cursor.accept("IMMEDIATE")


def read_type(cursor: TokenReader) -> SnowflakeType:
    word = word_of(cursor.take())
    for first, second in _TYPE_SUFFIXES:
        if word == first and cursor.accept(second):
            word = f"{first} {second}"
    if word == "TIMESTAMP" and cursor.word() in ("WITH", "WITHOUT"):
        word = f"{word} {cursor.take().text.upper()}"
        if cursor.accept("LOCAL"):
            word += " LOCAL"
        cursor.expect("TIME", "ZONE")
        word += " TIME ZONE"
    if word in UNSUPPORTED_TYPES:
        raise sql_errors.unsupported(word)
    arguments = []
    if cursor.accept("("):
        arguments.append(cursor.integer())
        while cursor.accept(","):
            arguments.append(cursor.integer())
        cursor.expect(")")
    return declared(word, arguments)


def column_definition(call: CommandCall, cursor: TokenReader, draft: TableDraft) -> None:
    name = cursor.name()
    column = CatalogColumn(name=name, type=read_type(cursor))
    while cursor.word() not in (",", ")", "") or (not cursor.done and not cursor.word()):
        column = _column_option(call, cursor, draft, column)
    draft.columns.append(column)


def _column_option(call: CommandCall, cursor: TokenReader, draft: TableDraft, column: CatalogColumn) -> CatalogColumn:
    if cursor.accept("NOT", "NULL"):
        return replace(column, nullable=False)
    if cursor.accept("NULL"):
        return column
    if cursor.accept("DEFAULT"):
        text = default_text(cursor)
        draft.defaults[column.name] = default_sql(call, text)
        return replace(column, default=text)
    if cursor.accept("AUTOINCREMENT") or cursor.accept("IDENTITY"):
        draft.identity[column.name] = _identity(cursor)
        return replace(column, autoincrement=True)
    if cursor.accept("COMMENT"):
        return replace(column, comment=cursor.string())
    if cursor.accept("CONSTRAINT"):
        cursor.name()
        return column
    if cursor.accept("PRIMARY", "KEY"):
        draft.primary = (column.name,)
    elif cursor.accept("UNIQUE"):
        draft.uniques.append((column.name,))
    elif cursor.word() == "REFERENCES" or cursor.accept("FOREIGN", "KEY"):
        draft.foreign.append(((column.name,), *_references(cursor)))
    elif cursor.accept("COLLATE"):
        raise sql_errors.unsupported("COLLATE")
    else:
        raise cursor.unexpected()
    _constraint_properties(cursor)
    return column


_DEFAULT_ENDS = {"NOT", "NULL", "COMMENT", "PRIMARY", "UNIQUE", "REFERENCES", "CONSTRAINT", "FOREIGN"}


def default_text(cursor: TokenReader) -> str:
    """The source text of a DEFAULT expression, which ends before a comma, a closing parenthesis or the next option."""
    first = cursor.index
    while not cursor.done and cursor.word() not in (",", ")"):
        if cursor.index > first and cursor.word() in _DEFAULT_ENDS:
            break
        if cursor.word() == "(":
            cursor.skip_parentheses()
        else:
            cursor.take()
    if cursor.index == first:
        raise cursor.unexpected()
    return cursor.source(first, cursor.index - 1)


def default_sql(call: CommandCall, text: str) -> str:
    tree = parser.parse_expression(text)
    emitter = Emitter(call.engine.catalog, None, None, BindTypes())
    sql = emitter.emit(tree)
    if emitter.parameters or emitter.reads:
        raise sql_errors.unsupported("this DEFAULT")
    return sql


def _identity(cursor: TokenReader) -> tuple[int, int]:
    start, step = 1, 1
    if cursor.accept("("):
        start = cursor.integer()
        cursor.expect(",")
        step = cursor.integer()
        cursor.expect(")")
    if cursor.accept("START"):
        _ = cursor.accept("WITH") or cursor.accept("=")
        start = cursor.integer()
    if cursor.accept("INCREMENT"):
        _ = cursor.accept("BY") or cursor.accept("=")
        step = cursor.integer()
    _ = cursor.accept("ORDER") or cursor.accept("NOORDER")
    return start, step


# --- CREATE TABLE -----------------------------------------------------------------------------------------------------


@command(
    "CREATE_TABLE",
    "CREATE TABLE", "CREATE HYBRID TABLE", "CREATE TRANSIENT TABLE", "CREATE TEMPORARY", "CREATE TEMP", "CREATE LOCAL",
    "CREATE GLOBAL", "CREATE VOLATILE", "CREATE OR ALTER",
)  # fmt: skip
async def create_table(call: CommandCall) -> StatementResult:
    cursor = call.cursor(1)
    replacing = _or_replace(cursor)
    transient = cursor.accept("TRANSIENT")
    hybrid = cursor.accept("HYBRID")
    if cursor.word() in ("TEMP", "TEMPORARY", "LOCAL", "GLOBAL", "VOLATILE"):
        raise sql_errors.unsupported("TEMPORARY TABLE")
    cursor.expect("TABLE")
    if_not_exists = read_if_not_exists(cursor, replacing)
    path = full_path(call, cursor.path(), "CREATE TABLE")
    draft = definitions(call, cursor, hybrid) if cursor.word() == "(" else TableDraft()
    comment = _options(cursor, hybrid)
    query = _query(call, cursor)
    cursor.end()
    if not draft.columns and query is None:
        raise cursor.unexpected()
    _check_hybrid(draft, hybrid, transient, query is not None)
    table = CatalogTable(
        database=path[0], schema=path[1], name=path[2], hybrid=hybrid, transient=transient, comment=comment,
        columns=tuple(draft.columns), created_ms=now_ms(), stamp=secrets.token_hex(4),
    )  # fmt: skip
    existed = call.engine.catalog.find(*path) is not None
    await _create(call, table, draft, query, if_not_exists=if_not_exists, replacing=replacing)
    shown = postgres_names.shown(table.name)
    return status(
        f"{shown} already exists, statement succeeded."
        if existed and if_not_exists
        else f"Table {shown} successfully created."
    )


def _or_replace(cursor: TokenReader) -> bool:
    """Read OR REPLACE. OR ALTER is rejected: Snowflake has none for hybrid tables, this server none for others."""
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


def _check_hybrid(draft: TableDraft, hybrid: bool, transient: bool, from_query: bool) -> None:
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


# --- creation of the table --------------------------------------------------------------------------------------------


async def _create(
    call: CommandCall,
    table: CatalogTable,
    draft: TableDraft,
    query: StatementPlan | None,
    *,
    if_not_exists: bool,
    replacing: bool,
) -> None:
    catalog = call.engine.catalog
    schema = catalog.schema(table.database, table.schema)

    async def work(backend: Any) -> Any:
        existing = schema.tables.get(table.name)
        if existing is not None:
            if if_not_exists:
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
        await store.save_table(backend.connection, made)
        return lambda: schema.tables.__setitem__(made.name, made)

    await change_catalog(call, work)


async def _filled(call: CommandCall, backend: Backend, table: CatalogTable, query: StatementPlan) -> CatalogTable:
    """Fill a new table with the rows of its query; the rows determine the scale of undeclared numbers."""
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
    """The table with its keys; the columns of the primary key become NOT NULL."""
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
            # Evaluated now, so that a default that does not fit its column is rejected before the first INSERT.
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


# --- CREATE VIEW ------------------------------------------------------------------------------------------------------


@command("CREATE", "CREATE VIEW", "CREATE SECURE VIEW")
async def create_view(call: CommandCall) -> StatementResult:
    cursor = call.cursor(1)
    replacing, _, if_not_exists = read_create(cursor, "VIEW", "SECURE")
    database, schema_name, name = full_path(call, cursor.path(), "CREATE VIEW")
    columns = cursor.names() if cursor.word() == "(" else ()
    comment = ""
    if cursor.accept("COMMENT"):
        cursor.expect("=")
        comment = cursor.string()
    cursor.expect("AS")
    if call.request.bindings:
        raise sql_errors.unsupported("bind variable in a view")
    catalog = call.engine.catalog
    schema = catalog.schema(database, schema_name)
    body = cursor.source(cursor.index, len(cursor.tokens) - 1)
    plan = query_plan(call, body, database, schema_name)

    async def work(backend: Any) -> Any:
        existing = schema.tables.get(name)
        if existing is not None and if_not_exists:
            return lambda: None
        if existing is not None and (not replacing or existing.kind != "VIEW"):
            raise sql_errors.already_exists(existing.qualified)
        await describe(plan, backend, catalog.version)
        found = _view_columns(plan, columns)
        view = CatalogTable(
            database=database, schema=schema_name, name=name, kind="VIEW", columns=found, comment=comment,
            text=call.request.text, query=body, created_ms=now_ms(),
        )  # fmt: skip
        await store.save_table(backend.connection, view)
        return lambda: schema.tables.__setitem__(name, view)

    await change_catalog(call, work)
    return status(f"View {postgres_names.shown(name)} successfully created.")


def query_plan(call: CommandCall, body: str, database: str | None, schema: str | None) -> StatementPlan:
    """The plan of the query of CREATE TABLE … AS or CREATE VIEW."""
    plan = call.engine.planner.plan(body, parser.tokens_of(body), database, schema, (), False)
    if plan.kind != "SELECT" or plan.server_functions or plan.for_update or plan.last_hidden:
        raise sql_errors.unsupported("this query inside CREATE")
    return plan


def _view_columns(plan: StatementPlan, given: tuple[str, ...]) -> tuple[CatalogColumn, ...]:
    found = given or tuple(name for name, _ in plan.columns)
    if len(found) != len(plan.columns):
        text = f"Invalid column definition list: {len(found)} names for {len(plan.columns)} columns."
        raise sql_errors.compilation(2026, "42601", text)
    duplicate = next((name for name in found if found.count(name) > 1), None)
    if duplicate is not None:
        raise sql_errors.compilation(2025, "42S21", f"duplicate column name '{postgres_names.shown(duplicate)}'")
    return tuple(CatalogColumn(name=name, type=kind) for name, (_, kind) in zip(found, plan.columns, strict=True))
