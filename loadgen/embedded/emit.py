"""Expressions: from Snowflake's syntax tree to PostgreSQL's text, refusing everything that is not on a list.

Two lists decide: `HANDLERS` names every node type that may occur, each with the parts it may have; `FUNCTIONS`
(functions.py) names every function. Nothing is passed through because nobody thought of it. Numbers are always
numeric or double precision in the emitted text, strings always text, so that overloads resolve alike everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sqlglot import exp

from loadgen.embedded import dialect, names
from loadgen.embedded.catalog import Catalog, Table
from loadgen.embedded.failure import (
    SqlError,
    compilation,
    invalid_identifier,
    syntax_error,
    unknown_function,
    unsupported,
)
from loadgen.embedded.types import POSTGRES_TYPES

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
class Binds:
    """What is known of a statement's binds before it runs: their types, and the number of each `?` in the text."""

    types: tuple[str, ...] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)
    arrays: bool = False  # each bind is a column of many rows


@dataclass(slots=True)
class Scope:
    """The names one SELECT can see beside the catalogue."""

    ctes: frozenset[str] = frozenset()
    tables: dict[str, frozenset[str]] = field(default_factory=dict)  # alias → columns, for tables of the catalogue
    generators: int = 0  # TABLE(GENERATOR(…)) in FROM
    aliases: dict[str, exp.Expr] = field(default_factory=dict)


@dataclass(slots=True)
class Demand:
    """A table function that the server itself answers: its arguments as SQL, its rows as one JSON parameter."""

    parameter: str
    function: str
    arguments: dict[str, str]


Handler = Callable[["Emitter", Any], str]


def part_names(node: exp.Expr) -> list[str]:
    """The parts of a node that are really there; `False`, `None` and empty lists are not."""
    return [name for name, value in node.args.items() if value not in (None, False, [], "")]


class Emitter:
    """Emits one statement; collects the tables it touches and the parameters it needs."""

    HANDLERS: ClassVar[dict[type[exp.Expr], tuple[frozenset[str], Handler]]] = {}

    def __init__(
        self, catalog: Catalog, database: str | None, schema: str | None, binds: Binds, *, typed_nulls: bool = False
    ) -> None:
        self.typed_nulls = typed_nulls  # parameters become NULLs of their type, where none are possible (a view)
        self.catalog = catalog
        self.database = database
        self.schema = schema
        self.binds = binds
        self.text = ""  # the statement, for the positions in errors
        self.long_names: dict[str, str] = {}  # results whose name PostgreSQL has no room for
        self.not_null: set[str] = set()  # results that cannot be NULL
        self.result_names: list[str] = []  # the source texts of the outermost select list
        self.parameters: list[
            int | str
        ] = []  # what PostgreSQL's $1, $2 … are: numbers of binds, names of context values
        self.demands: list[Demand] = []
        self.reads: list[Table] = []
        self.writes: list[Table] = []
        self.scopes: list[Scope] = [Scope()]
        self.lock_wait: Any = None  # of FOR UPDATE: a literal number of seconds, or nothing
        self.system_tables = False  # reads INFORMATION_SCHEMA or a table function of the server

    # --- the one way in -------------------------------------------------------------------------------------------

    def emit(self, node: exp.Expr) -> str:
        entry = self.HANDLERS.get(type(node))
        if entry is None:
            raise self.refused(node)
        allowed, handler = entry
        for name in part_names(node):
            if name not in allowed:
                raise self.refused_part(node, name)
        return handler(self, node)

    def all(self, nodes: list[exp.Expr]) -> list[str]:
        return [self.emit(node) for node in nodes]

    def refused(self, node: exp.Expr) -> SqlError:
        if isinstance(node, exp.Func):
            return unknown_function(node.sql_name())
        return unsupported(type(node).__name__)

    def refused_part(self, node: exp.Expr, name: str) -> SqlError:
        word = name.rstrip("_").upper()
        if word in ("RETURNING", "CONFLICT"):
            shown = "ON" if word == "CONFLICT" else word
            return syntax_error(*dialect.position(self.text, shown), shown)
        return unsupported(f"{type(node).__name__.upper()} {word}")

    @property
    def scope(self) -> Scope:
        return self.scopes[-1]

    # --- parameters -----------------------------------------------------------------------------------------------

    def bind(self, number: int) -> str:
        """The user's bind number `number` (from 1), cast to the type it was sent with."""
        if not 1 <= number <= len(self.binds.types):
            raise compilation(2049, "42601", "Bind variable ? not set.")
        kind = self.binds.types[number - 1]
        if kind == "NULL":
            return "NULL"
        value = f'"~binds"."c{number}"' if self.binds.arrays else self.parameter(number)
        if kind == "TIMESTAMP_TZ" or (kind == "BINARY" and self.binds.arrays):  # these travel as text
            return f"sf.cast_{CAST_NAMES[kind]}({value}::text)"
        return f"{value}::{POSTGRES_TYPES[kind] if kind in SCALAR_BINDS else 'text'}"

    def parameter(self, key: int | str) -> str:
        """The PostgreSQL parameter for a bind (its number) or a context value (its name), numbered by first use."""
        if self.typed_nulls:
            return "NULL"
        if key not in self.parameters:
            self.parameters.append(key)
        return f"${self.parameters.index(key) + 1}"

    def context_value(self, name: str) -> str:
        return f"{self.parameter(name)}::text"


def handles(
    node_type: type[exp.Expr], *parts: str
) -> Callable[[Callable[[Emitter, Any], str]], Callable[[Emitter, Any], str]]:
    """Registers the emitter of one node type, with the parts of the node it takes care of."""

    def register(handler: Callable[[Emitter, Any], str]) -> Callable[[Emitter, Any], str]:
        Emitter.HANDLERS[node_type] = (frozenset(parts), handler)
        return handler

    return register


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
    (exp.Add, "+"),
    (exp.Sub, "-"),
    (exp.Mul, "*"),
    (exp.DPipe, "||"),
    (exp.NullSafeEQ, "IS NOT DISTINCT FROM"),
    (exp.NullSafeNEQ, "IS DISTINCT FROM"),
):
    handles(_type, "this", "expression", "safe")(_binary(_operator))


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
    """`x <> ALL (SELECT …)`, which is also how NOT IN (SELECT …) is read."""

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
        # Snowflake has no default escape character; PostgreSQL's backslash has to be switched off.
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
        return f"{names.literal(str(node.this))}::text"
    text = str(node.this)
    return f"{text}::{'double precision' if 'e' in text.lower() else 'numeric'}"


@handles(exp.RawString, "this")
def _raw_string(self: Emitter, node: exp.RawString) -> str:
    return f"{names.literal(str(node.this))}::text"


@handles(exp.HexString, "this", "is_integer")
def _hex_string(self: Emitter, node: exp.HexString) -> str:
    return f"decode({names.literal(str(node.this))}, 'hex')"


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
    mark = str(node.this)
    if mark in self.binds.numbers:
        return self.bind(self.binds.numbers[mark])
    if mark.isdigit():
        return self.bind(int(mark))
    raise compilation(2049, "42601", f"Bind variable :{mark.upper()} not set.")


@handles(exp.Column, "this", "table", "db", "catalog")
def _column(self: Emitter, node: exp.Column) -> str:
    if isinstance(node.this, exp.Star):
        last = "*"
    else:
        name = dialect.identifier(node.this)
        table = node.args.get("table")
        if table is None and name in self.scope.aliases:
            return self.emit(self.scope.aliases[name])
        if table is None and not node.this.args.get("quoted") and name in CONTEXT_FUNCTIONS:
            return self.context_value(name)
        if table is None and _is_table(self, name):
            raise invalid_identifier(names.shown(name), *dialect.position(self.text, name))
        last = names.quoted(name)
    path = [dialect.identifier(node.args[key]) for key in ("catalog", "db", "table") if node.args.get(key)]
    if len(path) < 2:
        return ".".join([*(names.quoted(name) for name in path), last])
    database = path[0] if len(path) == 3 else self.database or ""
    return f"{names.relation(database, path[-2], path[-1])}.{last}"


def _is_table(self: Emitter, name: str) -> bool:
    """PostgreSQL would take the name of a table for its whole row."""
    return name in self.scope.tables and not any(name in columns for columns in self.scope.tables.values())


@handles(exp.Dot, "this", "expression")
def _dot(self: Emitter, node: exp.Dot) -> str:
    """`src.value:a.b` style access behind a column; anything else with a dot is a call we do not know."""
    if isinstance(node.expression, exp.Anonymous):
        raise unknown_function(dialect.shown(node).partition("(")[0])
    key = dialect.identifier(node.expression)
    return f"sf.get({self.emit(node.this)}, {names.literal(key)}::text)"


@handles(exp.Ordered, "this", "desc", "nulls_first")
def _ordered(self: Emitter, node: exp.Ordered) -> str:
    item = node.this
    ordinal = isinstance(item, exp.Literal) and item.is_int
    text = str(item.this) if ordinal else self.emit(item)
    descending = bool(node.args.get("desc"))
    nulls_first = node.args.get("nulls_first")
    # NULL is the largest value in both systems, unless said otherwise.
    nulls = (
        "" if nulls_first is None or bool(nulls_first) == descending else f" NULLS {'FIRST' if nulls_first else 'LAST'}"
    )
    return f"{text}{' DESC' if descending else ''}{nulls}"
