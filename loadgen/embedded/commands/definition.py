"""The parenthesised part of CREATE TABLE: columns, keys, indexes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from loadgen.embedded import postgres_names, sql_errors
from loadgen.embedded.catalog import CatalogColumn, CatalogKey
from loadgen.embedded.commands import CommandCall
from loadgen.embedded.sql_types import REFUSED, SnowflakeType, declared
from loadgen.embedded.translate import dialect
from loadgen.embedded.translate.emitter import BindTypes, Emitter
from loadgen.embedded.translate.token_reader import TokenReader

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
    word = cursor.take().text.upper()
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
