"""Queries: SELECT and set operations."""

from __future__ import annotations

import re
from typing import Any

from sqlglot import exp

from loadgen.embedded import postgres_names
from loadgen.embedded.functions import FUNCTIONS
from loadgen.embedded.sql_errors import compilation, syntax_error, unsupported
from loadgen.embedded.translate import parser
from loadgen.embedded.translate.emitter import SCALE_MAX, Emitter, NameScope, handles, scale_of, whole_number
from loadgen.embedded.translate.sources import from_clause, lookup

_QUERY_PARTS = ("with_", "order", "limit", "offset")
_SELECT_PARTS = (
    *_QUERY_PARTS,
    "expressions",
    "distinct",
    "from_",
    "joins",
    "laterals",
    "where",
    "group",
    "having",
    "qualify",
    "locks",
)


@handles(exp.Select, *_SELECT_PARTS)
def select(self: Emitter, node: exp.Select) -> str:
    outer = self.scope
    names_given, self.result_names = self.result_names, []
    prefix, ctes = _with(self, node)
    self.result_names = names_given
    self.scopes.append(NameScope(ctes=outer.ctes | ctes))
    try:
        return prefix + _select_body(self, node)
    finally:
        self.scopes.pop()


def _select_body(self: Emitter, node: exp.Select) -> str:
    names_given, self.result_names = self.result_names, []
    sources = from_clause(self, node)  # first, because it defines aliases and the rows of SEQ4()
    self.result_names = names_given
    aliases = _aliases(self, node)
    distinct = node.args.get("distinct")
    if distinct is not None and distinct.args.get("on"):
        raise unsupported("DISTINCT ON")
    if not node.expressions:
        raise syntax_error(*parser.position(self.text, "FROM"), "FROM")
    outermost = len(self.scopes) == 2
    texts, self.result_names = self.result_names, []
    if len(texts) != len(node.expressions):
        texts = [parser.shown(item) for item in node.expressions]
    projections = []
    for position, item in enumerate(node.expressions):
        self.scope.aliases = _earlier(aliases, node.expressions[:position])
        name = _result_name(item, texts[position])
        if (
            outermost
            and len(name.encode()) > postgres_names.POSTGRES_NAME_BYTES
            and not isinstance(item, exp.Alias | exp.Column)
        ):
            self.long_names[f"~{position}"] = name
            name = f"~{position}"
        projections.append(_projection(self, item, name))
    if outermost:
        self.not_null = _not_null(self, node)
    self.scope.aliases = aliases
    head, text = f"SELECT {'DISTINCT ' if distinct else ''}{', '.join(projections)}", sources
    if node.args.get("where"):
        text += f" WHERE {self.emit(node.args['where'].this)}"
    if node.args.get("group"):
        text += _group(self, node)
    if node.args.get("having"):
        text += f" HAVING {self.emit(node.args['having'].this)}"
    if node.args.get("qualify"):
        return _qualify(self, node, head, text, texts)
    return head + text + _ordered_tail(self, node, aliases) + _lock(self, node)


def _earlier(aliases: dict[str, exp.Expr], items: list[exp.Expr]) -> dict[str, exp.Expr]:
    """The aliases that a select item may use: those of the items before it."""
    seen = {parser.identifier(item.args["alias"]) for item in items if isinstance(item, exp.Alias)}
    return {name: value for name, value in aliases.items() if name in seen}


def _aliases(self: Emitter, node: exp.Select) -> dict[str, exp.Expr]:
    """Aliases for WHERE, GROUP BY, HAVING and QUALIFY. Columns of the same name have priority, as in Snowflake."""
    columns = _known_columns(self, node)
    if columns is None:
        return {}
    named = [item for item in node.expressions if isinstance(item, exp.Alias)]
    pairs = {parser.identifier(item.args["alias"]): item.this for item in named}
    return {name: exp.Paren(this=value.copy()) for name, value in pairs.items() if name not in columns}


def _known_columns(self: Emitter, node: exp.Select) -> set[str] | None:
    """The columns of all sources; None if they are not known from the catalogue."""
    columns: set[str] = set()
    sources = [node.args["from_"].this] if node.args.get("from_") else []
    sources += [join.this for join in node.args.get("joins") or []]
    for source in sources:
        if isinstance(source, exp.Subquery) and isinstance(source.this, exp.Select):
            inner = source.this.expressions
            if any(item.is_star for item in inner):
                return None
            columns |= {_result_name(item, parser.shown(item)) for item in inner}
            continue
        if not isinstance(source, exp.Table) or not isinstance(source.this, exp.Identifier):
            return None
        table = lookup(self, source)
        if table is None:
            return None
        columns |= {column.name for column in table.columns}
    return columns


def _projection(self: Emitter, item: exp.Expr, name: str) -> str:
    if isinstance(item.unalias().unnest(), exp.Tuple):
        raise syntax_error(*parser.position(self.text, ","), ",")
    if isinstance(item, exp.Alias):
        if not name:
            raise syntax_error(*parser.position(self.text, "AS"), "AS")
        return f"{_scaled(self, item.this)} AS {postgres_names.quoted(name)}"
    if len(name.encode()) > postgres_names.POSTGRES_NAME_BYTES and not isinstance(item, exp.Column):
        return self.emit(item)  # a column of an inner query, which cannot be referenced by name
    text = _scaled(self, item)
    if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and _plain(self, item)):
        return text
    return f"{text} AS {postgres_names.quoted(name)}"


def _scaled(self: Emitter, item: exp.Expr) -> str:
    """A select item; a computed number gets the scale of Snowflake's rules."""
    text = self.emit(item)
    if len(self.scopes) != 2 or isinstance(item, exp.Column | exp.Cast) or item.is_star:
        return text
    scale = scale_of(self, item)
    return text if scale is None else f"({text})::numeric(38,{min(scale, SCALE_MAX)})"


def _not_null(self: Emitter, node: exp.Select) -> set[str]:
    """Result columns that are NOT NULL columns of a single table."""
    source = node.args["from_"].this if node.args.get("from_") and not node.args.get("joins") else None
    table = lookup(self, source) if isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier) else None
    if table is None:
        return set()
    solid = {column.name for column in table.columns if not column.nullable}
    if any(item.is_star for item in node.expressions):
        return solid
    return {parser.identifier(item.this) for item in node.expressions if isinstance(item, exp.Column)} & solid


def _plain(self: Emitter, item: exp.Column) -> bool:
    """Whether the result has the name of the column, which is not replaced by an alias."""
    name = "" if isinstance(item.this, exp.Star) else parser.identifier(item.this)
    return name not in self.scope.aliases


def _group(self: Emitter, node: exp.Select) -> str:
    group = node.args["group"]
    for part in ("grouping_sets", "cube", "rollup", "totals"):
        if group.args.get(part):
            raise unsupported(f"GROUP BY {part.upper().replace('_', ' ')}")
    if group.args.get("all"):
        plain = [item for item in node.expressions if not _aggregates(item)]
        items = [self.emit(item.this if isinstance(item, exp.Alias) else item) for item in plain]
        return f" GROUP BY {', '.join(items)}" if items else ""
    items = [whole_number(item) or self.emit(item) for item in group.expressions]
    return f" GROUP BY {', '.join(items)}"


def _aggregates(node: exp.Expr) -> bool:
    for call in node.find_all(exp.Anonymous):
        function = FUNCTIONS.get(str(call.this).upper())
        if function is not None and function.kind == "aggregate" and not isinstance(call.parent, exp.Window):
            return True
    return False


def _qualify(self: Emitter, node: exp.Select, head: str, rest: str, texts: list[str]) -> str:
    """QUALIFY: an inner query computes the condition, an outer one applies it."""
    if not any(part.find(exp.Window) for part in (*node.expressions, node.args["qualify"])):
        raise compilation(2, "0A000", "QUALIFY needs a window function, in the select list or in its condition.")
    columns = ", ".join(postgres_names.quoted(_result_name(i, t)) for i, t in zip(node.expressions, texts, strict=True))
    if any(item.is_star for item in node.expressions):
        if len(self.scopes) != 2:
            raise unsupported("QUALIFY with * inside another query")
        columns, self.last_hidden = "*", True  # the condition is the last column, which is not returned
    condition = self.emit(node.args["qualify"].this)
    order = f" ORDER BY {', '.join(self.all(node.args['order'].expressions))}" if node.args.get("order") else ""
    inner = f'{head}, ({condition}) AS "~qualify"{rest}{order}'
    self.scope.aliases = {}
    return f'SELECT {columns} FROM ({inner}) AS "~q" WHERE "~qualify"{_limit(self, node)}'


def _result_name(item: exp.Expr, text: str) -> str:
    """The name of a result column: its alias, its own name, or the expression's text in upper case."""
    if isinstance(item, exp.Alias):
        return parser.identifier(item.args["alias"])
    if isinstance(item, exp.Column):
        return parser.identifier(item.this)
    return text.upper()


def _ordered_tail(self: Emitter, node: exp.Select, aliases: dict[str, exp.Expr]) -> str:
    """ORDER BY and LIMIT. PostgreSQL accepts an alias in ORDER BY only alone, not in an expression."""
    self.scope.aliases = {}
    order = node.args.get("order")
    if order is None:
        return _limit(self, node)
    items = []
    for item in order.expressions:
        self.scope.aliases = {} if isinstance(item.this, exp.Column) else aliases
        items.append(self.emit(item))
    self.scope.aliases = {}
    return f" ORDER BY {', '.join(items)}{_limit(self, node)}"


def _tail(self: Emitter, node: exp.Expr) -> str:
    order = node.args.get("order")
    text = f" ORDER BY {', '.join(self.all(order.expressions))}" if order else ""
    return text + _limit(self, node)


def _limit(self: Emitter, node: exp.Expr) -> str:
    text = ""
    for key, word in (("limit", "LIMIT"), ("offset", "OFFSET")):
        part = node.args.get(key)
        if part is not None and not isinstance(part, exp.Limit | exp.Offset):
            raise unsupported("FETCH")
        if part is not None:
            value = part.expression
            if isinstance(value, exp.Literal) and value.is_string and not value.this:
                continue  # an empty string means no limit
            if self.strict and isinstance(value, exp.Placeholder):
                raise compilation(1014, "22023", f"Invalid row count '?' in {word.lower()} clause")
            number = whole_number(value)
            if number is None and not isinstance(value, exp.Null | exp.Placeholder):
                raise compilation(1015, "22023", f"{word} must be a non-negative whole number.")
            text += f" {word} {number or f'({self.emit(value)})::bigint'}"
    return text


# FOR UPDATE is the last clause; only NOWAIT, or WAIT with a number of seconds, may follow.
_LOCK = re.compile(r"\bFOR\s+UPDATE(?:\s+NOWAIT|\s+WAIT\s+\d{1,9})?[\s;]*$", re.IGNORECASE)


def _lock(self: Emitter, node: exp.Select) -> str:
    locks = node.args.get("locks") or []
    if not locks:
        return ""
    if any(not table.hybrid for table in self.reads) or not self.reads:
        raise compilation(2, "0A000", "Unsupported feature 'FOR UPDATE on tables that are not hybrid'.")
    shaped = any(node.args.get(part) for part in ("group", "having", "distinct", "qualify", "joins", "with_"))
    if shaped or len(self.scopes) > 2 or any(_aggregates(item) or item.find(exp.Window) for item in node.expressions):
        raise unsupported("FOR UPDATE with joins, aggregates, DISTINCT or GROUP BY")
    lock = locks[0]
    if not self.typed_nulls and not _LOCK.search(self.text):
        raise unsupported("this form of FOR UPDATE")
    if len(locks) > 1 or not lock.args.get("update") or lock.args.get("expressions") or lock.args.get("key"):
        raise unsupported("FOR UPDATE form")
    self.lock_wait = lock.args.get("wait") or True  # a literal number of seconds, else NOWAIT, the documented default
    if self.typed_nulls:
        return ""
    return " FOR UPDATE" if isinstance(self.lock_wait, exp.Literal) else " FOR UPDATE NOWAIT"


def _with(self: Emitter, node: exp.Expr) -> tuple[str, frozenset[str]]:
    clause = node.args.get("with_")
    if clause is None:
        return "", frozenset()
    seen: set[str] = set()
    parts = []
    recursive = bool(clause.args.get("recursive")) or any(_reads_itself(cte) for cte in clause.expressions)
    for cte in clause.expressions:
        if cte.args.get("materialized") is not None or not isinstance(cte.this, exp.Query):
            raise syntax_error(*parser.position(self.text, "AS"), "AS")
        name = parser.identifier(cte.args["alias"].this)
        columns = [postgres_names.quoted(parser.identifier(c)) for c in cte.args["alias"].args.get("columns") or []]
        self.scopes.append(NameScope(ctes=self.scope.ctes | seen | ({name} if recursive else set())))
        try:
            body = self.emit(cte.this)
        finally:
            self.scopes.pop()
        seen.add(name)
        parts.append(f"{postgres_names.quoted(name)}{'(' + ', '.join(columns) + ')' if columns else ''} AS ({body})")
    return f"WITH {'RECURSIVE ' if recursive else ''}{', '.join(parts)} ", frozenset(seen)


def _reads_itself(cte: exp.CTE) -> bool:
    """Whether a CTE is recursive: in Snowflake the word RECURSIVE is optional."""
    name = parser.identifier(cte.args["alias"].this)
    return any(
        not table.args.get("db") and parser.identifier(table.this) == name for table in cte.this.find_all(exp.Table)
    )


def _set_operation(word: str) -> Any:
    def emit(self: Emitter, node: Any) -> str:
        names_given, self.result_names = self.result_names, []
        prefix, ctes = _with(self, node)
        self.result_names = names_given
        self.scopes.append(NameScope(ctes=self.scope.ctes | ctes))
        try:
            left, right = self.emit(node.this), self.emit(node.expression)
            every = " ALL" if node.args.get("distinct") is False else ""
            return f"{prefix}({left}) {word}{every} ({right}){_tail(self, node)}"
        finally:
            self.scopes.pop()

    return emit


for _type, _word in ((exp.Union, "UNION"), (exp.Except, "EXCEPT"), (exp.Intersect, "INTERSECT")):
    handles(_type, "this", "expression", "distinct", *_QUERY_PARTS)(_set_operation(_word))


@handles(exp.Subquery, "this", "order", "limit", "offset")
def _subquery(self: Emitter, node: exp.Subquery) -> str:
    """A scalar subquery, or a parenthesised query."""
    return f"({self.emit(node.this)}{_tail(self, node)})"


@handles(exp.Values, "expressions", *_QUERY_PARTS)
def _values(self: Emitter, node: exp.Values) -> str:
    raise unsupported("VALUES outside FROM and INSERT")
