"""FROM: tables, joins, subqueries, VALUES and table functions."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from loadgen.embedded import postgres_names, statement_history, warehouse
from loadgen.embedded.catalog import INFORMATION_SCHEMA, CatalogTable
from loadgen.embedded.sql_errors import (
    compilation,
    missing_object,
    no_current_database,
    no_current_schema,
    syntax_error,
    unknown_table_function,
    unsupported,
)
from loadgen.embedded.statement_history import ACCOUNT_USAGE, USAGE_VIEWS
from loadgen.embedded.translate import parser
from loadgen.embedded.translate.emitter import Emitter, NameScope, ServerTableFunction
from loadgen.embedded.translate.parser import subqueries_in, too_deep

# Each view is a query on the stored catalogue; {database} is the name of the database as a literal.
_TABLE = "FROM meta.object o WHERE o.kind = 'table' AND o.body->>'database' = {database}"
_CREATED = "to_timestamp((o.body->>'created_ms')::numeric / 1000.0)"

INFORMATION_VIEWS: dict[str, str] = {
    "DATABASES": (
        "SELECT o.body->>'name' AS \"DATABASE_NAME\", 'ACCOUNTADMIN'::text AS \"DATABASE_OWNER\","
        " CASE WHEN (o.body->>'transient')::boolean THEN 'YES' ELSE 'NO' END AS \"IS_TRANSIENT\","
        f' o.body->>\'comment\' AS "COMMENT", {_CREATED} AS "CREATED"'
        " FROM meta.object o WHERE o.kind = 'database' AND {database} IS NOT NULL"
    ),
    "SCHEMATA": (
        "SELECT o.body->>'database' AS \"CATALOG_NAME\", o.body->>'name' AS \"SCHEMA_NAME\","
        " 'ACCOUNTADMIN'::text AS \"SCHEMA_OWNER\", 'NO'::text AS \"IS_TRANSIENT\","
        f' o.body->>\'comment\' AS "COMMENT", {_CREATED} AS "CREATED"'
        " FROM meta.object o WHERE o.kind = 'schema' AND o.body->>'database' = {database}"
    ),
    "TABLES": (
        "SELECT o.body->>'database' AS \"TABLE_CATALOG\", o.body->>'schema' AS \"TABLE_SCHEMA\","
        " o.body->>'name' AS \"TABLE_NAME\", 'ACCOUNTADMIN'::text AS \"TABLE_OWNER\","
        " CASE o.body->>'kind' WHEN 'VIEW' THEN 'VIEW' ELSE 'BASE TABLE' END AS \"TABLE_TYPE\","
        " CASE WHEN (o.body->>'transient')::boolean THEN 'YES' ELSE 'NO' END AS \"IS_TRANSIENT\","
        " CASE WHEN (o.body->>'hybrid')::boolean THEN 'YES' ELSE 'NO' END AS \"IS_HYBRID\","
        f' o.body->>\'comment\' AS "COMMENT", {_CREATED} AS "CREATED" {_TABLE}'
    ),
    "VIEWS": (
        "SELECT o.body->>'database' AS \"TABLE_CATALOG\", o.body->>'schema' AS \"TABLE_SCHEMA\","
        " o.body->>'name' AS \"TABLE_NAME\", 'ACCOUNTADMIN'::text AS \"TABLE_OWNER\","
        f' o.body->>\'text\' AS "VIEW_DEFINITION", o.body->>\'comment\' AS "COMMENT", {_CREATED} AS "CREATED"'
        f" {_TABLE} AND o.body->>'kind' = 'VIEW'"
    ),
    "COLUMNS": (
        "SELECT o.body->>'database' AS \"TABLE_CATALOG\", o.body->>'schema' AS \"TABLE_SCHEMA\","
        " o.body->>'name' AS \"TABLE_NAME\", c.column_->>'name' AS \"COLUMN_NAME\","
        ' c.position_::numeric AS "ORDINAL_POSITION", c.column_->>\'default\' AS "COLUMN_DEFAULT",'
        " CASE WHEN (c.column_->>'nullable')::boolean THEN 'YES' ELSE 'NO' END AS \"IS_NULLABLE\","
        " CASE c.column_->'type'->>'kind' WHEN 'FIXED' THEN 'NUMBER' WHEN 'REAL' THEN 'FLOAT'"
        " ELSE c.column_->'type'->>'kind' END AS \"DATA_TYPE\","
        " (c.column_->'type'->>'length')::numeric AS \"CHARACTER_MAXIMUM_LENGTH\","
        " CASE c.column_->'type'->>'kind' WHEN 'FIXED' THEN (c.column_->'type'->>'precision')::numeric END"
        ' AS "NUMERIC_PRECISION",'
        " CASE c.column_->'type'->>'kind' WHEN 'FIXED' THEN (c.column_->'type'->>'scale')::numeric END"
        ' AS "NUMERIC_SCALE", c.column_->>\'comment\' AS "COMMENT"'
        " FROM meta.object o, jsonb_array_elements(o.body->'columns') WITH ORDINALITY AS c(column_, position_)"
        " WHERE o.kind = 'table' AND o.body->>'database' = {database}"
    ),
    "INDEXES": (
        "SELECT o.body->>'database' AS \"TABLE_CATALOG\", o.body->>'schema' AS \"TABLE_SCHEMA\","
        " o.body->>'name' AS \"TABLE_NAME\", i.key_->>'name' AS \"NAME\", 'ACTIVE'::text AS \"STATUS\","
        " 'NO'::text AS \"IS_UNIQUE\""
        " FROM meta.object o, jsonb_array_elements(o.body->'indexes') AS i(key_)"
        " WHERE o.kind = 'table' AND o.body->>'database' = {database}"
    ),
}


_RANGE = {"END_TIME_RANGE_START", "END_TIME_RANGE_END", "RESULT_LIMIT"}
QUERY_HISTORY_FUNCTIONS: dict[str, set[str]] = {
    "QUERY_HISTORY": _RANGE,
    "QUERY_HISTORY_BY_SESSION": _RANGE | {"SESSION_ID"},
    "QUERY_HISTORY_BY_USER": _RANGE | {"USER_NAME"},
    "QUERY_HISTORY_BY_WAREHOUSE": _RANGE | {"WAREHOUSE_NAME"},
}

METERING_FUNCTION = "WAREHOUSE_METERING_HISTORY"
_METERING = ("DATE_RANGE_START", "DATE_RANGE_END", "WAREHOUSE_NAME")  # also positional, in this order

_HISTORY_TYPES = {
    "VARCHAR": "text",
    "NUMBER": "numeric",
    "FLOAT": "double precision",
    "TIMESTAMP_LTZ": "timestamptz",
    "VARIANT": "jsonb",
    "BOOLEAN": "boolean",
}


def history_record(columns: Sequence[tuple[str, str]] = statement_history.COLUMNS) -> str:
    """The column definitions of the rows of a server function."""
    return "(" + ", ".join(f'"{name}" {_HISTORY_TYPES[kind]}' for name, kind in columns) + ")"


def from_clause(self: Emitter, node: exp.Select) -> str:
    clause = node.args.get("from_")
    if clause is None:
        if node.args.get("joins") or node.args.get("laterals"):
            raise unsupported("JOIN without FROM")
        return ""
    return f" FROM {_joined(self, clause.this, node)}"


def _joined(self: Emitter, first: exp.Expr, node: exp.Expr) -> str:
    text = source(self, first)
    for join in node.args.get("joins") or []:
        text += _join(self, join)
    for lateral in node.args.get("laterals") or []:
        text += f", {source(self, lateral)}"
    return text


VIEW_DEPTH_MAX = 60
_JOIN_SIDES = {"", "LEFT", "RIGHT", "FULL"}
_JOIN_KINDS = {"", "INNER", "OUTER", "CROSS"}


def _join(self: Emitter, join: exp.Join) -> str:
    side, kind = (str(join.args.get(key) or "").upper() for key in ("side", "kind"))
    method = str(join.args.get("method") or "").upper()
    refused = [p for p in ("global_", "hint", "match_condition", "nearest", "directed", "expressions", "pivots")
               if join.args.get(p)]  # fmt: skip
    if side not in _JOIN_SIDES or kind not in _JOIN_KINDS or method not in ("", "NATURAL") or refused:
        raise unsupported(" ".join(filter(None, (method, side, kind, "JOIN"))))
    right = source(self, join.this)
    condition = join.args.get("on")
    using = join.args.get("using")
    if using == []:  # USING ()
        raise syntax_error(*parser.position(self.text, ")"), ")")
    if condition is None and not using and method != "NATURAL":
        if side:
            raise compilation(2, "0A000", f"Unsupported feature '{side} JOIN without a condition'.")
        return f" CROSS JOIN {right}"
    text = f"{' NATURAL' if method else ''}{f' {side}' if side else ''} JOIN {right}"
    if using:
        listed = (item.this if isinstance(item, exp.Column) else item for item in using)
        columns = ", ".join(postgres_names.quoted(parser.identifier(item)) for item in listed)
        return f"{text} USING ({columns})"
    return f"{text} ON {self.emit(condition)}" if condition is not None else text


def source(self: Emitter, node: exp.Expr) -> str:
    """One item of FROM."""
    if isinstance(node, exp.Table):
        return _table(self, node)
    if isinstance(node, exp.Subquery):
        return _subquery_source(self, node)
    if isinstance(node, exp.Values):
        return _values_source(self, node)
    if isinstance(node, exp.Lateral):
        return _lateral(self, node)
    if isinstance(node, exp.Paren):
        return f"({source(self, node.this)})"
    raise unsupported(f"FROM {type(node).__name__.upper()}")


def _alias(node: exp.Expr, columns: tuple[str, ...] = (), default: str = "") -> str:
    alias = node.args.get("alias")
    name = parser.identifier(alias.this) if alias is not None and alias.this is not None else default
    given = [parser.identifier(column) for column in (alias.args.get("columns") or [])] if alias is not None else []
    wanted = (*given, *columns[len(given) :])
    text = f" AS {postgres_names.quoted(name)}" if name else ""
    return text + (f"({', '.join(postgres_names.quoted(column) for column in wanted)})" if wanted else "")


def _subquery_source(self: Emitter, node: exp.Subquery) -> str:
    for part in ("pivots", "sample", "with_", "where", "group"):
        if node.args.get(part):
            raise unsupported(part.upper())
    inner = node.this
    if isinstance(inner, exp.Table | exp.Subquery | exp.Values) and not node.args.get("alias"):
        return f"({_joined(self, inner, node)})"
    body = _values_body(self, inner) if isinstance(inner, exp.Values) else self.emit(inner)
    columns = _column_names(inner) if isinstance(inner, exp.Values) else ()
    text = f"({body}){_alias(node, columns, default='~s')}"
    for join in node.args.get("joins") or []:
        text += _join(self, join)
    return text


def _column_names(node: exp.Values) -> tuple[str, ...]:
    rows = node.expressions
    width = len(rows[0].expressions) if rows and isinstance(rows[0], exp.Tuple) else 1
    return tuple(f"COLUMN{number}" for number in range(1, width + 1))


def _values_body(self: Emitter, node: exp.Values) -> str:
    rows = [row.expressions if isinstance(row, exp.Tuple) else [row] for row in node.expressions]
    if self.binds.arrays:
        if len(rows) != 1:
            raise compilation(2, "0A000", "Unsupported feature 'array bind in a VALUES list of several rows'.")
        return f"SELECT {', '.join(self.all(rows[0]))} FROM {binds_source(self)}"
    return "VALUES " + ", ".join("(" + ", ".join(self.all(row)) + ")" for row in rows)


def binds_source(self: Emitter) -> str:
    """The rows of an array bind as a relation, in their order."""
    arrays = ", ".join(f"{self.parameter(number)}::text[]" for number in range(1, len(self.binds.types) + 1))
    columns = ", ".join(f'"c{number}"' for number in range(1, len(self.binds.types) + 1))
    return f'unnest({arrays}) AS "~binds"({columns})'


def _values_source(self: Emitter, node: exp.Values) -> str:
    return f"({_values_body(self, node)}){_alias(node, _column_names(node), default='VALUES')}"


def _table(self: Emitter, node: exp.Table) -> str:
    for part in ("pivots", "hints", "system_time", "version", "format", "pattern", "when", "only", "partition",
                 "changes", "rows_from", "sample", "indexed", "ordinality"):  # fmt: skip
        if node.args.get(part):
            raise unsupported({"when": "AT | BEFORE", "sample": "SAMPLE"}.get(part, part.upper()))
    if not isinstance(node.this, exp.Identifier):
        return _table_function(self, node, node.this)
    name = parser.identifier(node.this)
    text = ""
    if not node.args.get("db") and name in self.scope.ctes:
        text = postgres_names.quoted(name) + _alias(node)
    else:
        table = lookup(self, node)
        if table is not None:
            alias = node.args.get("alias")
            shown = parser.identifier(alias.this) if alias is not None and alias.this is not None else table.name
            columns = tuple(column.name for column in table.columns)
            self.scope.tables[shown] = table
            if table.kind == "VIEW":
                text = f"({view_query(self, table)}){_alias(node, columns, default=table.name)}"
            else:
                self.reads.append(table)
                text = table.relation + _alias(node, default=table.name)
        elif resolve(self, node)[:2] == ACCOUNT_USAGE:
            text = _usage_view(self, node, name)
        else:
            self.system_tables = True
            text = system_view(self, node) + _alias(node, default=name)
    for join in node.args.get("joins") or []:
        text += _join(self, join)
    return text


def view_query(self: Emitter, view: CatalogTable) -> str:
    """The query of a view. Its names are resolved in the schema of the view."""
    if len(self.scopes) > VIEW_DEPTH_MAX:
        raise too_deep()
    outside = (self.database, self.schema, self.text, self.scopes)
    self.database, self.schema, self.text = view.database, view.schema, view.query
    self.scopes = [*outside[3], NameScope()]
    try:
        tokens = parser.tokens_of(view.query)
        self.budget.add_view(len(tokens), subqueries_in(tokens))
        return self.emit(parser.parse(view.query, tokens))
    finally:
        self.database, self.schema, self.text, self.scopes = outside


def resolve(self: Emitter, node: exp.Table) -> tuple[str, str, str]:
    """The complete path of a table name; missing parts are those of the session."""
    parts = [parser.identifier(node.args[key]) for key in ("catalog", "db") if node.args.get(key)]
    name = parser.identifier(node.this)
    if len(parts) == 2:
        return parts[0], parts[1], name
    if self.database is None:
        raise no_current_database("SELECT")
    if parts:
        return self.database, parts[0], name
    if self.schema is None:
        raise no_current_schema("SELECT")
    return self.database, self.schema, name


def lookup(self: Emitter, node: exp.Table) -> CatalogTable | None:
    """The table; None for a CTE or a view of INFORMATION_SCHEMA or ACCOUNT_USAGE. Raises 2003 if it does not exist."""
    if not node.args.get("db") and parser.identifier(node.this) in self.scope.ctes:
        return None
    database, schema, name = resolve(self, node)
    if (database, schema) == ACCOUNT_USAGE:
        return None
    if schema == INFORMATION_SCHEMA and database in self.catalog.databases:
        return None
    shown = ".".join(postgres_names.shown(parser.identifier(p)) for p in node.parts)
    if database not in self.catalog.databases:
        raise missing_object("Database", postgres_names.shown(database))
    if schema not in self.catalog.databases[database].schemas:
        raise missing_object("Schema", f"{postgres_names.shown(database)}.{postgres_names.shown(schema)}")
    return self.catalog.table(database, schema, name, shown)


def system_view(self: Emitter, node: exp.Table) -> str:
    database, _schema, name = resolve(self, node)
    if name not in INFORMATION_VIEWS:
        raise missing_object(
            "Object", f"{postgres_names.shown(database)}.{INFORMATION_SCHEMA}.{postgres_names.shown(name)}"
        )
    return f"({INFORMATION_VIEWS[name].format(database=postgres_names.literal(database))})"


def _usage_view(self: Emitter, node: exp.Table, name: str) -> str:
    """A view of SNOWFLAKE.ACCOUNT_USAGE, translated like a server function without arguments."""
    if name not in USAGE_VIEWS:
        raise missing_object("Object", ".".join((*ACCOUNT_USAGE, postgres_names.shown(name))))
    return _server_function(
        self, node, f"{ACCOUNT_USAGE[1]}.{name}", {}, history_record(USAGE_VIEWS[name]), default=name
    )


def _lateral(self: Emitter, node: exp.Lateral) -> str:
    for part in ("view", "cross_apply", "ordinality"):
        if node.args.get(part):
            raise unsupported(f"LATERAL {part.upper()}")
    inner = node.this
    if isinstance(inner, exp.Subquery):
        return f"LATERAL ({self.emit(inner.this)}){_alias(node, default='~l')}"
    return f"LATERAL {_table_function(self, node, inner)}"


_FLATTEN_COLUMNS = ("SEQ", "KEY", "PATH", "INDEX", "VALUE", "THIS")


def _table_function(self: Emitter, node: exp.Expr, call: exp.Expr) -> str:
    """TABLE(FLATTEN(…)), TABLE(GENERATOR(…)), TABLE(INFORMATION_SCHEMA.QUERY_HISTORY(…))."""
    if isinstance(call, exp.Anonymous) and str(call.this).upper() == "TABLE" and len(call.expressions) == 1:
        call = call.expressions[0]
    path = []
    if isinstance(call, exp.Dot):
        *before, call = call.flatten()
        path = [parser.identifier(part) for part in before]
    if not isinstance(call, exp.Anonymous):
        raise unsupported("table function")
    name = str(call.this).upper()
    arguments = _named_arguments(call)
    if name == "FLATTEN" and not path:
        return _flatten(self, node, arguments)
    if name == "GENERATOR" and not path:
        return _generator(self, arguments)
    in_schema = path[-1:] == [INFORMATION_SCHEMA] or self.schema == INFORMATION_SCHEMA
    if (name in QUERY_HISTORY_FUNCTIONS or name == METERING_FUNCTION) and in_schema:
        if len(path) < 2 and self.database is None:
            raise no_current_database("SELECT")
        if name == METERING_FUNCTION:
            return _metering(self, node, arguments)
        return _history(self, node, name, arguments)
    raise unknown_table_function(name)


def _named_arguments(call: exp.Anonymous) -> dict[str, exp.Expr]:
    arguments: dict[str, exp.Expr] = {}
    for position, argument in enumerate(call.expressions):
        if isinstance(argument, exp.Kwarg):
            arguments[str(argument.this.name).upper()] = argument.expression
        else:
            arguments[str(position)] = argument
    return arguments


def _flatten(self: Emitter, node: exp.Expr, arguments: dict[str, exp.Expr]) -> str:
    given = {key if key != "0" else "INPUT": self.emit(value) for key, value in arguments.items()}
    unknown = given.keys() - {"INPUT", "PATH", "OUTER", "RECURSIVE", "MODE"}
    if unknown or "INPUT" not in given:
        raise compilation(2144, "42601", "Invalid argument names for table function FLATTEN.")
    values = [
        given["INPUT"],
        given.get("PATH", "NULL::text"),
        given.get("OUTER", "FALSE"),
        given.get("RECURSIVE", "FALSE"),
        given.get("MODE", "'BOTH'::text"),
    ]
    return f"sf.flatten({', '.join(values)}){_alias(node, _FLATTEN_COLUMNS, default='~f')}"


def _generator(self: Emitter, arguments: dict[str, exp.Expr]) -> str:
    rows = arguments.get("ROWCOUNT")
    if rows is None or arguments.keys() - {"ROWCOUNT"}:
        raise unsupported("GENERATOR without ROWCOUNT, or with TIMELIMIT")
    if not (isinstance(rows, exp.Placeholder) or (isinstance(rows, exp.Literal) and rows.is_int)):
        raise compilation(1015, "22023", "ROWCOUNT must be a constant whole number.")
    self.scope.generators += 1
    return f'generate_series(1, ({self.emit(rows)})::bigint) AS "~generator{self.scope.generators}"("i")'


def _metering(self: Emitter, node: exp.Expr, arguments: dict[str, exp.Expr]) -> str:
    given = {_METERING[int(key)] if key in ("0", "1", "2") else key: value for key, value in arguments.items()}
    unknown = [key for key in given if key not in _METERING]
    if unknown or "DATE_RANGE_START" not in given:
        what = f"Invalid argument name '{unknown[0]}'" if unknown else "Missing argument 'DATE_RANGE_START'"
        raise compilation(2144, "42601", f"{what} for table function {METERING_FUNCTION}.")
    return _server_function(self, node, METERING_FUNCTION, given, history_record(warehouse.METERING_COLUMNS))


def _server_function(
    self: Emitter, node: exp.Expr, name: str, arguments: dict[str, exp.Expr], record: str, *, default: str = "~h"
) -> str:
    """A table function whose rows the server itself provides; `record` defines their columns."""
    function = ServerTableFunction(
        f"server function {len(self.server_functions)}",
        name,
        {key: self.emit(value) for key, value in arguments.items()},
    )
    self.server_functions.append(function)
    self.system_tables = True
    rows = self.context_value(function.parameter)
    return f"jsonb_to_recordset({rows}::jsonb){_alias(node, default=default)}{record}"


def _history(self: Emitter, node: exp.Expr, name: str, arguments: dict[str, exp.Expr]) -> str:
    allowed = QUERY_HISTORY_FUNCTIONS[name]
    unknown = [key for key in arguments if key not in allowed]
    if unknown:
        raise compilation(2144, "42601", f"Invalid argument name '{unknown[0]}' for table function {name}.")
    return _server_function(self, node, name, arguments, history_record())
