"""DML: INSERT, UPDATE, DELETE, MERGE."""

from __future__ import annotations

from sqlglot import exp

from loadgen.embedded import postgres_names
from loadgen.embedded.catalog import CatalogTable
from loadgen.embedded.functions import FUNCTIONS
from loadgen.embedded.sql_errors import compilation, invalid_identifier, syntax_error, unsupported, values_clause
from loadgen.embedded.translate import parser
from loadgen.embedded.translate.emitter import Emitter, handles
from loadgen.embedded.translate.sources import binds_source, lookup, source

# Snowflake allows no semi-structured values, subqueries, aggregates and window functions in a VALUES clause.
_SEMI_STRUCTURED = frozenset(
    {
        "PARSE_JSON", "TRY_PARSE_JSON", "OBJECT_CONSTRUCT", "OBJECT_CONSTRUCT_KEEP_NULL", "ARRAY_CONSTRUCT",
        "ARRAY_CONSTRUCT_COMPACT", "TO_VARIANT", "TO_OBJECT", "TO_ARRAY", "OBJECT_INSERT", "OBJECT_DELETE",
        "ARRAY_APPEND", "ARRAY_CAT", "ARRAY_PREPEND", "SPLIT",
    }
)  # fmt: skip
_SEMI_TYPES = frozenset({"VARIANT", "OBJECT", "ARRAY", "STRUCT"})


def target_of(self: Emitter, node: exp.Expr) -> CatalogTable:
    if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
        raise unsupported("this target of a change")
    table = lookup(self, node)
    if table is None or table.kind == "VIEW":
        raise compilation(2, "0A000", "Unsupported feature 'changing a view'.")
    self.writes.append(table)
    return table


def _column(table: CatalogTable, node: exp.Expr) -> str:
    """A column of the target, unqualified as PostgreSQL requires it in SET and column lists."""
    if not isinstance(node, exp.Column | exp.Identifier):
        raise unsupported("this target of an assignment")
    name = parser.identifier(node.this if isinstance(node, exp.Column) else node)
    if table.column(name) is None:
        raise invalid_identifier(postgres_names.shown(name))
    return postgres_names.quoted(name)


@handles(exp.Insert, "this", "expression", "overwrite")
def _insert(self: Emitter, node: exp.Insert) -> str:
    into = node.this
    listed = into.expressions if isinstance(into, exp.Schema) else []
    target = into.this if isinstance(into, exp.Schema) else into
    table = target_of(self, target)
    if target.args.get("alias"):
        word = str(target.args["alias"].this.name)
        raise syntax_error(*parser.position(self.text, word), word)
    if node.args.get("overwrite"):
        raise unsupported("INSERT OVERWRITE")
    columns = [_column(table, column) for column in listed]
    body = node.expression
    expected = len(columns) or len(table.columns)
    names_text = f" ({', '.join(columns)})" if columns else ""
    if isinstance(body, exp.Values):
        self.inserts_values = True
        return f"INSERT INTO {table.relation}{names_text} {_insert_values(self, body, expected)}"
    if not isinstance(body, exp.Query):
        raise unsupported("INSERT form")
    if self.strict and self.binds.arrays:
        raise compilation(2049, "42601", "Bind variable ? not set.")
    width = _width(body)
    if width is not None and width != expected:
        raise _wrong_width(expected, width)
    return f"INSERT INTO {table.relation}{names_text} {self.emit(body)}"


def _width(query: exp.Expr) -> int | None:
    select = query.unnest() if isinstance(query, exp.Subquery) else query
    if not isinstance(select, exp.Select) or any(item.is_star for item in select.expressions):
        return None
    return len(select.expressions)


def _wrong_width(expected: int, got: int) -> Exception:
    text = f"Insert value list does not match column list expecting {expected} but got {got}"
    return compilation(2057, "42601", text)


def _insert_values(self: Emitter, body: exp.Values, expected: int) -> str:
    if any(body.args.get(part) for part in ("alias", "order", "limit", "offset", "pivots")):
        raise unsupported("VALUES with an alias in INSERT")
    rows, defaults = [], False
    for row in body.expressions:
        items = row.expressions if isinstance(row, exp.Tuple) else [row]
        if len(items) != expected:
            raise _wrong_width(expected, len(items))
        for item in items:
            _check_value(item)
        rows.append([_default(item) or self.emit(item) for item in items])
        defaults = defaults or any(_default(item) for item in items)
    if self.binds.arrays:
        if len(rows) != 1 or defaults:
            raise unsupported("array bind in a VALUES list of several rows or with DEFAULT")
        return f"SELECT {', '.join(rows[0])} FROM {binds_source(self)}"
    return "VALUES " + ", ".join(f"({', '.join(row)})" for row in rows)


def _default(item: exp.Expr) -> str:
    if isinstance(item, exp.Var):
        return "DEFAULT" if str(item.this).upper() == "DEFAULT" else ""
    column = isinstance(item, exp.Column) and not item.args.get("table") and not item.this.args.get("quoted")
    return "DEFAULT" if column and parser.identifier(item.this) == "DEFAULT" else ""


def _check_value(item: exp.Expr) -> None:
    for node in item.walk():
        semi = isinstance(node, exp.Array | exp.Struct | exp.JSONExtract) or (
            isinstance(node, exp.Cast) and str(node.to.this.value).upper() in _SEMI_TYPES
        )
        if isinstance(node, exp.Anonymous):
            name = str(node.this).upper()
            function = FUNCTIONS.get(name)
            semi = semi or name in _SEMI_STRUCTURED or (function is not None and function.kind == "aggregate")
        if semi or isinstance(node, exp.Query | exp.Window):
            raise values_clause(parser.shown(item))


@handles(exp.Update, "this", "expressions", "from_", "where")
def _update(self: Emitter, node: exp.Update) -> str:
    table = target_of(self, node.this)
    alias = _target_alias(node.this, table)
    values: dict[str, str] = {}
    constants: set[str] = set()
    for item in node.expressions:
        if not isinstance(item, exp.EQ):
            raise unsupported("UPDATE SET form")
        column, default = _column(table, item.this), _default(item.expression)
        if column in values:
            raise compilation(2025, "42S21", f"duplicate column name '{parser.identifier(item.this.this)}'")
        values[column] = default or self.emit(item.expression)
        if default or isinstance(item.expression, exp.Null | exp.Placeholder | exp.Literal):
            constants.add(column)
    if self.strict and table.hybrid:
        return _snapshot_update(self, node, table, values, constants)
    assignments = [f"{column} = {value}" for column, value in values.items()]
    text = f"UPDATE {table.relation} AS {alias} SET {', '.join(assignments)}"
    if not node.args.get("from_"):
        return text + _where(self, node)
    sources, where = source(self, node.args["from_"].this), _where(self, node)
    # The second count is the number of rows that several source rows match; they are updated once.
    multiple = f"SELECT 1 FROM {table.relation} AS {alias}, {sources}{where} GROUP BY {alias}.ctid HAVING count(*) > 1"
    return (
        f'WITH "~u" AS ({text} FROM {sources}{where} RETURNING 1)'
        f' SELECT (SELECT count(*) FROM "~u")::numeric, (SELECT count(*) FROM ({multiple}) AS "~m")::numeric'
    )


def _snapshot_update(
    self: Emitter, node: exp.Update, table: CatalogTable, values: dict[str, str], constants: set[str]
) -> str:
    """An UPDATE that selects rows and computes values from the snapshot at its start, and then writes whole rows.

    PostgreSQL evaluates the condition again if a row has changed while the statement waited for its lock. Here this
    condition compares the key only; everything else is computed from the snapshot (`MATERIALIZED`). Constants are not
    part of the snapshot, so that PostgreSQL gives them the type of their column.
    """
    alias = _target_alias(node.this, table)
    items, assignments = [], []
    for number, column in enumerate(postgres_names.quoted(column.name) for column in table.columns):
        if column in constants:
            assignments.append(f"{column} = {values[column]}")
        else:
            items.append(f'{values.get(column, f"{alias}.{column}")} AS "~v{number}"')
            assignments.append(f'{column} = {_SNAPSHOT}."~v{number}"')
    sources = f", {source(self, node.args['from_'].this)}" if node.args.get("from_") else ""
    seen = _snapshot(self, node, table, f"{table.relation} AS {alias}{sources}", alias, items)
    condition = _same_row(table, alias)
    change = f"UPDATE {table.relation} AS {alias} SET {', '.join(assignments)} FROM {_SNAPSHOT} WHERE {condition}"
    return f"{seen}, {_CHANGED} AS ({change} RETURNING 1) SELECT {_COUNT}, {_MULTIPLE}"


def _snapshot_delete(self: Emitter, node: exp.Delete, table: CatalogTable, alias: str) -> str:
    """A DELETE that selects and counts its rows from the snapshot at its start, as _snapshot_update."""
    using = "".join(f", {source(self, item)}" for item in node.args.get("using") or [])
    seen = _snapshot(self, node, table, f"{table.relation} AS {alias}{using}", alias, [])
    change = f"DELETE FROM {table.relation} AS {alias} USING {_SNAPSHOT} WHERE {_same_row(table, alias)}"
    return f"{seen}, {_CHANGED} AS ({change} RETURNING 1) SELECT {_COUNT}"


_SNAPSHOT, _CHANGED = '"~seen"', '"~done"'
_COUNT = f"(SELECT count(*) FROM {_SNAPSHOT})::numeric"
_MULTIPLE = f'(SELECT count(*) FROM {_SNAPSHOT} WHERE "~n" > 1)::numeric'


def _snapshot(self: Emitter, node: exp.Expr, table: CatalogTable, sources: str, alias: str, items: list[str]) -> str:
    """The rows of the snapshot: each once, with its key and the number of matching source rows."""
    keys = [f'{alias}.{name} AS "~k{n}"' for n, name in enumerate(_key(table))]
    matches = f'count(*) OVER (PARTITION BY {alias}.ctid) AS "~n"'
    select = f"SELECT DISTINCT ON ({alias}.ctid) {', '.join([*keys, matches, *items])} FROM {sources}"
    return f"WITH {_SNAPSHOT} AS MATERIALIZED ({select}{_where(self, node)})"


def _key(table: CatalogTable) -> list[str]:
    assert table.primary_key is not None  # every hybrid table has one
    return [postgres_names.quoted(name) for name in table.primary_key.columns]


def _same_row(table: CatalogTable, alias: str) -> str:
    return " AND ".join(f'{alias}.{name} = {_SNAPSHOT}."~k{n}"' for n, name in enumerate(_key(table)))


def _target_alias(node: exp.Table, table: CatalogTable) -> str:
    alias = node.args.get("alias")
    return postgres_names.quoted(parser.identifier(alias.this) if alias is not None else table.name)


def _where(self: Emitter, node: exp.Expr) -> str:
    where = node.args.get("where")
    return f" WHERE {self.emit(where.this)}" if where else ""


@handles(exp.Delete, "this", "using", "where")
def _delete(self: Emitter, node: exp.Delete) -> str:
    table = target_of(self, node.this)
    alias = _target_alias(node.this, table)
    if self.strict and table.hybrid:
        return _snapshot_delete(self, node, table, alias)
    text = f"DELETE FROM {table.relation} AS {alias}"
    if node.args.get("using"):
        text += " USING " + ", ".join(source(self, item) for item in node.args["using"])
    return text + _where(self, node)


@handles(exp.Merge, "this", "using", "on", "whens")
def _merge(self: Emitter, node: exp.Merge) -> str:
    table = target_of(self, node.this)
    alias = _target_alias(node.this, table)
    using = source(self, node.args["using"])
    text = f"MERGE INTO {table.relation} AS {alias} USING {using} ON {self.emit(node.args['on'])}"
    for when in node.args["whens"].expressions:
        text += _when(self, table, when)
    counted = ", ".join(
        f"count(*) FILTER (WHERE \"~a\" = '{action}')::numeric" for action in ("INSERT", "UPDATE", "DELETE")
    )
    return f'WITH "~m" AS ({text} RETURNING merge_action() AS "~a") SELECT {counted} FROM "~m"'


def _when(self: Emitter, table: CatalogTable, when: exp.When) -> str:
    if when.args.get("source"):
        raise unsupported("WHEN NOT MATCHED BY SOURCE")
    text = f" WHEN {'' if when.args['matched'] else 'NOT '}MATCHED"
    if when.args.get("condition"):
        text += f" AND {self.emit(when.args['condition'])}"
    then = when.args["then"]
    if isinstance(then, exp.Update):
        if not then.expressions:
            raise unsupported("UPDATE ALL BY NAME")
        pairs = [f"{_column(table, item.this)} = {self.emit(item.expression)}" for item in then.expressions]
        return f"{text} THEN UPDATE SET {', '.join(pairs)}"
    if isinstance(then, exp.Insert):
        columns = [_column(table, column) for column in then.this.expressions] if then.this is not None else []
        values = self.all(then.expression.expressions)
        listed = f" ({', '.join(columns)})" if columns else ""
        return f"{text} THEN INSERT{listed} VALUES ({', '.join(values)})"
    if str(getattr(then, "this", then)).upper() == "DELETE":
        return f"{text} THEN DELETE"
    raise unsupported("MERGE action")
