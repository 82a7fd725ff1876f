"""The emitter walks Snowflake's syntax tree and writes PostgreSQL's text; operators, literals, names and binds.

Two lists decide what is accepted: `HANDLERS` names every node type that may occur, each with the parts it may have;
`FUNCTIONS` names every function. Everything else is rejected, never passed on. In the emitted text numbers are always
numeric or double precision, and strings always text, so that overloaded functions resolve alike everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, ClassVar

from sqlglot import exp

from loadgen.embedded import postgres_names
from loadgen.embedded.catalog import Catalog, CatalogTable
from loadgen.embedded.functions.function import OrderItem
from loadgen.embedded.result import POSTGRES_TYPES, is_number
from loadgen.embedded.sql_errors import (
    SqlError,
    compilation,
    invalid_identifier,
    syntax_error,
    unknown_function,
    unsupported,
)
from loadgen.embedded.translate import parser
from loadgen.embedded.translate.parser import current_budget
from loadgen.values import dataclass

CONTEXT_FUNCTIONS = frozenset(
    {
        "CURRENT_SESSION", "CURRENT_USER", "CURRENT_ROLE", "CURRENT_WAREHOUSE", "CURRENT_DATABASE", "CURRENT_SCHEMA",
        "CURRENT_SCHEMAS", "CURRENT_ACCOUNT", "CURRENT_ACCOUNT_NAME", "CURRENT_ORGANIZATION_NAME", "CURRENT_REGION",
        "CURRENT_VERSION", "CURRENT_CLIENT", "CURRENT_TRANSACTION", "CURRENT_IP_ADDRESS", "CURRENT_AVAILABLE_ROLES",
        "CURRENT_SECONDARY_ROLES", "CURRENT_STATEMENT", "LAST_QUERY_ID", "LAST_TRANSACTION",
    }
)  # fmt: skip
CAST_NAMES = {
    "FIXED": "number",
    "REAL": "float",
    "TEXT": "text",
    "BINARY": "binary",
    "BOOLEAN": "boolean",
    "DATE": "date",
    "TIME": "time",
    "TIMESTAMP_NTZ": "ntz",
    "TIMESTAMP_LTZ": "ltz",
    "TIMESTAMP_TZ": "tz",
    "VARIANT": "variant",
    "OBJECT": "object",
    "ARRAY": "array",
}


SCALAR_BINDS = frozenset(
    {"FIXED", "REAL", "TEXT", "BINARY", "BOOLEAN", "DATE", "TIME", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ"}
)


@dataclass(frozen=True, slots=True)
class BindTypes:
    """The types of a statement's binds, and the number of each `?` in the text."""

    types: tuple[str, ...] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)
    arrays: bool = False  # each bind is a column of many rows


@dataclass(slots=True)
class NameScope:
    """The names that one SELECT can use, besides those of the catalogue."""

    ctes: frozenset[str] = frozenset()
    tables: dict[str, CatalogTable] = field(default_factory=dict)  # by alias
    generators: int = 0  # TABLE(GENERATOR(…)) in FROM
    aliases: dict[str, exp.Expr] = field(default_factory=dict)


@dataclass(slots=True)
class ServerTableFunction:
    """A table function of the server itself: its arguments as SQL; its rows become one JSON parameter."""

    parameter: str
    function: str
    arguments: dict[str, str]


Handler = Callable[["Emitter", Any], str]


def part_names(node: exp.Expr) -> list[str]:
    """The parts of a node that are set: not `False`, `None` or empty."""
    return [name for name, value in node.args.items() if value not in (None, False, [], "")]


class Emitter:
    """Translates one statement; collects its tables and parameters."""

    HANDLERS: ClassVar[dict[type[exp.Expr], tuple[frozenset[str], Handler]]] = {}

    def __init__(
        self, catalog: Catalog, database: str | None, schema: str | None, binds: BindTypes, *,
        typed_nulls: bool = False, strict: bool = False,
    ) -> None:  # fmt: skip
        self.budget = current_budget()  # each node is one step
        self.typed_nulls = typed_nulls  # replaces parameters by NULLs of their type, for a view
        self.strict = strict  # --strict-hybrid: see docs/embedded.md
        self.inserts_values = False  # INSERT … VALUES, which always accepts array binds
        self.catalog = catalog
        self.database = database
        self.schema = schema
        self.binds = binds
        self.text = ""  # the statement, for positions in errors
        self.long_names: dict[str, str] = {}  # of result columns, if too long for PostgreSQL
        self.last_hidden = False  # the last column is not returned
        self.not_null: set[str] = set()  # result columns that cannot be NULL
        self.result_names: list[str] = []  # the source texts of the outermost select list
        # Numbers of binds or names of context values → numbers of PostgreSQL's parameters $1, $2 …
        self.parameters: dict[int | str, int] = {}
        self.server_functions: list[ServerTableFunction] = []
        self.reads: list[CatalogTable] = []
        self.writes: list[CatalogTable] = []
        self.scopes: list[NameScope] = [NameScope()]
        self.lock_wait: Any = None  # of FOR UPDATE: a literal number of seconds, True without one
        self._inside = 0  # characters of the parts of the current node
        self.system_tables = False  # reads INFORMATION_SCHEMA or a table function of the server

    def emit(self, node: exp.Expr) -> str:
        """Translate a node. Raises SqlError for a node, or a part of it, that is not on the list."""
        self.budget.spend()
        entry = self.HANDLERS.get(type(node))
        if entry is None:
            raise self.unsupported_node(node)
        allowed, handler = entry
        for name in part_names(node):
            if name not in allowed:
                raise self.unsupported_part(node, name)
        outside, self._inside = self._inside, 0
        translated = handler(self, node)
        self.budget.add_characters(len(translated) - self._inside, self.text)
        self._inside = outside + len(translated)
        return translated

    def all(self, nodes: list[exp.Expr]) -> list[str]:
        return [self.emit(node) for node in nodes]

    def unsupported_node(self, node: exp.Expr) -> SqlError:
        if isinstance(node, exp.Func):
            return unknown_function(node.sql_name())
        return unsupported(type(node).__name__)

    def unsupported_part(self, node: exp.Expr, name: str) -> SqlError:
        word = name.rstrip("_").upper()
        if word in ("RETURNING", "CONFLICT"):
            shown = "ON" if word == "CONFLICT" else word
            return syntax_error(*parser.position(self.text, shown), shown)
        return unsupported(f"{type(node).__name__.upper()} {word}")

    @property
    def scope(self) -> NameScope:
        return self.scopes[-1]

    # --- parameters -----------------------------------------------------------------------------------------------

    def bind_number(self, node: exp.Placeholder) -> int:
        """The number of the bind of a `?` or `:1`, from 1."""
        mark = str(node.this)
        number = self.binds.numbers.get(mark) or (int(mark) if is_number(mark) else None)
        if number is None:
            raise compilation(2049, "42601", f"Bind variable :{mark.upper()} not set.")
        if not 1 <= number <= len(self.binds.types):
            raise compilation(2049, "42601", "Bind variable ? not set.")
        return number

    def bind_type(self, node: exp.Placeholder) -> str:
        """The type of a bind as sent by the client; TEXT for types that are sent as text and not converted."""
        kind = self.binds.types[self.bind_number(node) - 1]
        return kind if kind in SCALAR_BINDS or kind in ("NULL", "TIMESTAMP_TZ") else "TEXT"

    def bind(self, node: exp.Placeholder) -> str:
        """The parameter of a bind, cast to its type."""
        number, kind = self.bind_number(node), self.bind_type(node)
        if kind == "NULL":
            return "NULL"
        value = f'"~binds"."c{number}"' if self.binds.arrays else self.parameter(number)
        if kind == "TIMESTAMP_TZ" or (kind == "BINARY" and self.binds.arrays):  # sent as text
            return f"sf.cast_{CAST_NAMES[kind]}({value}::text)"
        return f"{value}::{POSTGRES_TYPES[kind]}"

    def parameter(self, key: int | str) -> str:
        """The PostgreSQL parameter of a bind (by number) or a context value (by name), numbered by first use."""
        if self.typed_nulls:
            return "NULL"
        return f"${self.parameters.setdefault(key, len(self.parameters) + 1)}"

    def context_value(self, name: str) -> str:
        return f"{self.parameter(name)}::text"


def handles(
    node_type: type[exp.Expr], *parts: str
) -> Callable[[Callable[[Emitter, Any], str]], Callable[[Emitter, Any], str]]:
    """Registers the handler of a node type, with the parts of the node that it supports."""

    def register(handler: Callable[[Emitter, Any], str]) -> Callable[[Emitter, Any], str]:
        Emitter.HANDLERS[node_type] = (frozenset(parts), handler)
        return handler

    return register


# --- operators --------------------------------------------------------------------------------------------------------


def _binary(operator: str) -> Callable[[Emitter, Any], str]:
    return lambda self, node: f"({self.emit(node.this)} {operator} {self.emit(node.expression)})"


for _type, _operator in (
    (exp.EQ, "="),
    (exp.NEQ, "<>"),
    (exp.LT, "<"),
    (exp.LTE, "<="),
    (exp.GT, ">"),
    (exp.GTE, ">="),
    (exp.And, "AND"),
    (exp.Or, "OR"),
    (exp.DPipe, "||"),
    (exp.NullSafeEQ, "IS NOT DISTINCT FROM"),
    (exp.NullSafeNEQ, "IS DISTINCT FROM"),
):
    handles(_type, "this", "expression", "safe")(_binary(_operator))


def _arithmetic(operator: str) -> Callable[[Emitter, Any], str]:
    def emit(self: Emitter, node: Any) -> str:
        return f"({_number(self, node.this)} {operator} {_number(self, node.expression)})"

    return emit


def _number(self: Emitter, node: exp.Expr) -> str:
    """An operand of arithmetic. Texts are cast to numbers: `variant - text` has another meaning in PostgreSQL."""
    is_text = (isinstance(node, exp.Literal) and node.is_string) or (
        isinstance(node, exp.Placeholder) and self.bind_type(node) == "TEXT"
    )
    return f"sf.cast_number({self.emit(node)})" if is_text else self.emit(node)


handles(exp.Add, "this", "expression")(_arithmetic("+"))
handles(exp.Sub, "this", "expression")(_arithmetic("-"))
handles(exp.Mul, "this", "expression")(_arithmetic("*"))


@handles(exp.Div, "this", "expression", "typed", "safe")
def _div(self: Emitter, node: exp.Div) -> str:
    return f"sf.div({self.emit(node.this)}, {self.emit(node.expression)})"


@handles(exp.Mod, "this", "expression")
def _mod(self: Emitter, node: exp.Mod) -> str:
    return f"sf.mod({self.emit(node.this)}, {self.emit(node.expression)})"


@handles(exp.Neg, "this")
def _neg(self: Emitter, node: exp.Neg) -> str:
    return f"(- {self.emit(node.this)})"


@handles(exp.Not, "this")
def _not(self: Emitter, node: exp.Not) -> str:
    return f"(NOT {self.emit(node.this)})"


@handles(exp.Paren, "this")
def _paren(self: Emitter, node: exp.Paren) -> str:
    return f"({self.emit(node.this)})"


@handles(exp.Is, "this", "expression")
def _is(self: Emitter, node: exp.Is) -> str:
    return f"({self.emit(node.this)} IS {self.emit(node.expression)})"


@handles(exp.Between, "this", "low", "high")
def _between(self: Emitter, node: exp.Between) -> str:
    return f"({self.emit(node.this)} BETWEEN {self.emit(node.args['low'])} AND {self.emit(node.args['high'])})"


@handles(exp.In, "this", "expressions", "query")
def _in(self: Emitter, node: exp.In) -> str:
    query = node.args.get("query")
    inside = self.emit(query) if query else "(" + ", ".join(self.all(node.expressions)) + ")"
    return f"({self.emit(node.this)} IN {inside})"


def _quantified(word: str) -> Callable[[Emitter, Any], str]:
    """`x <> ALL (SELECT …)`, which is also sqlglot's form of NOT IN (SELECT …)."""

    def emit(self: Emitter, node: Any) -> str:
        query = node.this
        if not isinstance(query, exp.Subquery | exp.Select | exp.SetOperation):
            raise unsupported(word)
        text = self.emit(query)
        return f"{word} {text}" if isinstance(query, exp.Subquery) else f"{word} ({text})"

    return emit


handles(exp.All, "this")(_quantified("ALL"))
handles(exp.Any, "this")(_quantified("ANY"))


@handles(exp.Exists, "this")
def _exists(self: Emitter, node: exp.Exists) -> str:
    return f"EXISTS ({self.emit(node.this)})"


def _like(operator: str) -> Callable[[Emitter, Any], str]:
    def emit(self: Emitter, node: Any) -> str:
        pattern = node.expression
        subject = self.emit(node.this)
        negated = "NOT " if node.args.get("negate") else ""
        if isinstance(pattern, exp.Any | exp.All):
            items = pattern.this.expressions if isinstance(pattern.this, exp.Tuple) else [pattern.this.unnest()]
            joiner = " OR " if isinstance(pattern, exp.Any) else " AND "
            tests = joiner.join(f"{subject} {operator} {self.emit(item)} ESCAPE ''" for item in items)
            return f"({negated}({tests}))"
        # Snowflake has no default escape character; PostgreSQL's default, the backslash, is disabled.
        return f"({subject} {negated}{operator} {self.emit(pattern)} ESCAPE '')"

    return emit


handles(exp.Like, "this", "expression", "negate")(_like("LIKE"))
handles(exp.ILike, "this", "expression", "negate")(_like("ILIKE"))


@handles(exp.Escape, "this", "expression")
def _escape(self: Emitter, node: exp.Escape) -> str:
    like = node.this
    if not isinstance(like, exp.Like | exp.ILike):
        raise syntax_error(1, 0, "ESCAPE")
    operator = "LIKE" if isinstance(like, exp.Like) else "ILIKE"
    negated = "NOT " if like.args.get("negate") else ""
    left, right = self.emit(like.this), self.emit(like.expression)
    return f"({left} {negated}{operator} {right} ESCAPE {self.emit(node.expression)})"


@handles(exp.RegexpLike, "this", "expression", "full_match")
def _rlike(self: Emitter, node: exp.RegexpLike) -> str:
    return f"sf.regexp_like({self.emit(node.this)}, {self.emit(node.expression)})"


@handles(exp.Case, "this", "ifs", "default")
def _case(self: Emitter, node: exp.Case) -> str:
    text = "CASE"
    if node.this is not None:
        text += f" {self.emit(node.this)}"
    for branch in node.args["ifs"]:
        text += f" WHEN {self.emit(branch.this)} THEN {self.emit(branch.args['true'])}"
    default = node.args.get("default")
    return text + (f" ELSE {self.emit(default)} END" if default is not None else " END")


@handles(exp.Tuple, "expressions")
def _tuple(self: Emitter, node: exp.Tuple) -> str:
    return "(" + ", ".join(self.all(node.expressions)) + ")"


# --- literals, names, binds ---------------------------------------------------------------------------------------


@handles(exp.Literal, "this", "is_string")
def _literal(self: Emitter, node: exp.Literal) -> str:
    if node.is_string:
        return f"{postgres_names.literal(str(node.this))}::text"
    text = str(node.this)
    if _NUMBER.fullmatch(text) is None:
        raise syntax_error(*parser.position(self.text, text), text)
    return f"{text}::{'double precision' if is_float(node) else 'numeric'}"


_NUMBER = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def is_float(number: exp.Literal) -> bool:
    return "e" in str(number.this).lower()


def whole_number(node: exp.Expr | None) -> str | None:
    """The digits of a literal whole number; None for other nodes."""
    text = str(node.this) if isinstance(node, exp.Literal) and not node.is_string else ""
    return text if text.isascii() and text.isdigit() else None


@handles(exp.RawString, "this")
def _raw_string(self: Emitter, node: exp.RawString) -> str:
    return f"{postgres_names.literal(str(node.this))}::text"


@handles(exp.HexString, "this", "is_integer")
def _hex_string(self: Emitter, node: exp.HexString) -> str:
    return f"decode({postgres_names.literal(str(node.this))}, 'hex')"


@handles(exp.Boolean, "this")
def _boolean(self: Emitter, node: exp.Boolean) -> str:
    return "TRUE" if node.this else "FALSE"


@handles(exp.Null)
def _null(self: Emitter, node: exp.Null) -> str:
    return "NULL"


@handles(exp.Star)
def _star(self: Emitter, node: exp.Star) -> str:
    return "*"


@handles(exp.Placeholder, "this", "jdbc")
def _placeholder(self: Emitter, node: exp.Placeholder) -> str:
    return self.bind(node)


@handles(exp.Column, "this", "table", "db", "catalog")
def _column(self: Emitter, node: exp.Column) -> str:
    if isinstance(node.this, exp.Star):
        last = "*"
    else:
        name = parser.identifier(node.this)
        table = node.args.get("table")
        if table is None and name in self.scope.aliases:
            return self.emit(self.scope.aliases[name])
        if table is None and not node.this.args.get("quoted") and name in CONTEXT_FUNCTIONS:
            return self.context_value(name)
        if table is None and _is_table(self, name):
            raise invalid_identifier(postgres_names.shown(name), *parser.position(self.text, name))
        last = postgres_names.quoted(name)
    # Every source has an alias, so a schema before the table's name is redundant.
    table = node.args.get("table")
    return f"{postgres_names.quoted(parser.identifier(table))}.{last}" if table is not None else last


def _is_table(self: Emitter, name: str) -> bool:
    """Whether the name is that of a table, which PostgreSQL would accept as its whole row."""
    return name in self.scope.tables and all(table.column(name) is None for table in self.scope.tables.values())


@handles(exp.Dot, "this", "expression")
def _dot(self: Emitter, node: exp.Dot) -> str:
    """Access such as `src.value:a.b` after a column; other uses of a dot are unknown functions."""
    if isinstance(node.expression, exp.Anonymous):
        raise unknown_function(parser.shown(node).partition("(")[0])
    key = parser.identifier(node.expression)
    return f"sf.get({self.emit(node.this)}, {postgres_names.literal(key)}::text)"


@handles(exp.Ordered, "this", "desc", "nulls_first")
def _ordered(self: Emitter, node: exp.Ordered) -> str:
    return order_item(self, node).text


def order_item(self: Emitter, node: exp.Ordered) -> OrderItem:
    item = node.this
    text = whole_number(item) or self.emit(item)
    descending = bool(node.args.get("desc"))
    nulls_first = node.args.get("nulls_first")
    # NULL is the largest value in both systems, unless NULLS FIRST or LAST is given.
    as_usual = nulls_first is None or bool(nulls_first) == descending
    return OrderItem(value=text, descending=descending, nulls="" if as_usual else "FIRST" if nulls_first else "LAST")


SCALE_MAX = 37
_DIVISION_SCALE_MAX = 12
_KEEPING = frozenset(
    {
        "SUM", "MIN", "MAX", "ANY_VALUE", "ABS", "COALESCE", "NVL", "IFNULL", "ZEROIFNULL", "NULLIFZERO", "NULLIF",
        "GREATEST", "LEAST", "MOD", "LAG", "LEAD", "FIRST_VALUE", "LAST_VALUE",
    }
)  # fmt: skip


def scale_of(self: Emitter, node: exp.Expr) -> int | None:
    """The scale of a number; None if it is unknown or not fixed."""
    if isinstance(node, exp.Paren | exp.Neg | exp.Alias | exp.Window | exp.Distinct):
        inner = node.expressions[0] if isinstance(node, exp.Distinct) else node.this
        return scale_of(self, inner)
    if isinstance(node, exp.Literal):
        text = str(node.this)
        return None if node.is_string or "e" in text.lower() else len(text.partition(".")[2])
    if isinstance(node, exp.Column):
        return _column_scale(self, node)
    if isinstance(node, exp.Binary):
        return _binary_scale(node, scale_of(self, node.this), scale_of(self, node.expression))
    if isinstance(node, exp.Anonymous):
        return _call(self, str(node.this).upper(), node.expressions)
    return None


def _column_scale(self: Emitter, node: exp.Column) -> int | None:
    name = parser.identifier(node.this)
    alias = parser.identifier(node.args["table"]) if node.args.get("table") else None
    found = [table.column(name) for shown, table in self.scope.tables.items() if alias in (None, shown)]
    columns = [column for column in found if column is not None]
    return columns[0].type.scale if len(columns) == 1 and columns[0].type.kind == "FIXED" else None


def _binary_scale(node: exp.Binary, left: int | None, right: int | None) -> int | None:
    if left is None or right is None:
        return None
    if isinstance(node, exp.Add | exp.Sub | exp.Mod):
        return max(left, right)
    if isinstance(node, exp.Mul):
        return min(left + right, max(left, right, _DIVISION_SCALE_MAX))
    return divided(left) if isinstance(node, exp.Div) else None


def divided(scale: int) -> int:
    """The scale of a quotient: six more decimals, at most twelve."""
    return max(scale, min(scale + 6, _DIVISION_SCALE_MAX))


def _call(self: Emitter, name: str, arguments: list[exp.Expr]) -> int | None:
    values = arguments[:1] if name in ("LAG", "LEAD", "FIRST_VALUE", "LAST_VALUE", "AVG") else arguments
    scales = [scale_of(self, value) for value in values if not isinstance(value, exp.Null)]
    known = [scale for scale in scales if scale is not None]
    if not known or len(known) != len(scales):
        return None
    if name == "AVG":
        return divided(known[0])
    return max(known) if name in _KEEPING else None
