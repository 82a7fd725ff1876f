"""What CREATE TABLE and CREATE VIEW define: columns, keys and indexes of a table, the query of a view.

A view is stored as its text, which replaces its name in a query: it sees its tables as they are then, and does not
prevent their change.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any

from loadgen.embedded import catalog as store
from loadgen.embedded import postgres_names, sql_errors
from loadgen.embedded.catalog import CatalogColumn, CatalogKey, CatalogTable, now_ms
from loadgen.embedded.commands import CommandCall, command
from loadgen.embedded.commands.objects import change, full_path, head
from loadgen.embedded.result import REFUSED, SnowflakeType, StatementResult, declared, status
from loadgen.embedded.translate import dialect
from loadgen.embedded.translate.emitter import BindTypes, Emitter
from loadgen.embedded.translate.planner import StatementPlan, describe
from loadgen.embedded.translate.token_reader import TokenReader, word_of
from loadgen.values import dataclass

_TYPE_SUFFIXES = (("DOUBLE", "PRECISION"), ("CHAR", "VARYING"), ("NCHAR", "VARYING"))


@dataclass(slots=True)
class TableDraft:
    """A table as its definition is read."""

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
        if cursor.word() in ("PRIMARY", "UNIQUE", "FOREIGN", "CONSTRAINT"):  # columns of these names are quoted
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
    if word in REFUSED:
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
    """The source text of a DEFAULT expression: up to a comma, a closing parenthesis or the next option."""
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
    tree = dialect.parse_expression(text)
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


@command("CREATE", "CREATE VIEW", "CREATE SECURE VIEW")
async def create_view(call: CommandCall) -> StatementResult:
    cursor = call.cursor(1)
    replacing = cursor.accept("OR", "REPLACE")
    _ = cursor.accept("SECURE")
    cursor.expect("VIEW")
    absent, _present = head(cursor)
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
        if existing is not None and absent:
            return lambda: None
        if existing is not None and (not replacing or existing.kind != "VIEW"):
            raise sql_errors.already_exists(existing.qualified)
        await describe(plan, backend, catalog.version)
        found = _view_columns(plan, columns)
        view = CatalogTable(
            database=database, schema=schema_name, name=name, kind="VIEW", columns=found, comment=comment,
            text=call.request.text, query=body, created_ms=now_ms(),
        )  # fmt: skip
        await store.store_table(backend.connection, view)
        return lambda: schema.tables.__setitem__(name, view)

    await change(call, work)
    return status(f"View {postgres_names.shown(name)} successfully created.")


def query_plan(call: CommandCall, body: str, database: str | None, schema: str | None) -> StatementPlan:
    """The plan of a query inside a DDL statement."""
    plan = call.engine.planner.plan(body, dialect.tokens_of(body), database, schema, (), False)
    if plan.kind != "SELECT" or plan.demands or plan.for_update or plan.last_hidden:
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
