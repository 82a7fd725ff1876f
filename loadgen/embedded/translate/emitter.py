"""Translates Snowflake's syntax tree to PostgreSQL's text, rejecting everything that is not on a list.

Two lists decide: `HANDLERS` names every node type that may occur, each with the parts it may have; `FUNCTIONS`
names every function. Unknown nodes are rejected, never passed on. Numbers are always
numeric or double precision in the emitted text, strings always text, so that overloads resolve alike everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, ClassVar

from sqlglot import exp

from loadgen.embedded.catalog import Catalog, CatalogTable
from loadgen.embedded.result import POSTGRES_TYPES, is_number
from loadgen.embedded.sql_errors import SqlError, compilation, syntax_error, unknown_function, unsupported
from loadgen.embedded.translate import dialect
from loadgen.embedded.translate.statement_limits import current_budget
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
    """What is known of a statement's binds before it runs: their types, and the number of each `?` in the text."""

    types: tuple[str, ...] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)
    arrays: bool = False  # each bind is a column of many rows


@dataclass(slots=True)
class NameScope:
    """The names that one SELECT can use besides the catalogue."""

    ctes: frozenset[str] = frozenset()
    tables: dict[str, CatalogTable] = field(default_factory=dict)  # by alias, those of the catalogue
    generators: int = 0  # TABLE(GENERATOR(…)) in FROM
    aliases: dict[str, exp.Expr] = field(default_factory=dict)


@dataclass(slots=True)
class ServerTableFunction:
    """A table function that the server itself answers: its arguments as SQL, its rows as one JSON parameter."""

    parameter: str
    function: str
    arguments: dict[str, str]


Handler = Callable[["Emitter", Any], str]


def part_names(node: exp.Expr) -> list[str]:
    """The parts that a node has; `False`, `None` and empty lists are not."""
    return [name for name, value in node.args.items() if value not in (None, False, [], "")]


class Emitter:
    """Emits one statement; collects the tables it touches and the parameters it needs."""

    HANDLERS: ClassVar[dict[type[exp.Expr], tuple[frozenset[str], Handler]]] = {}

    def __init__(
        self, catalog: Catalog, database: str | None, schema: str | None, binds: BindTypes, *,
        typed_nulls: bool = False, strict: bool = False,
    ) -> None:  # fmt: skip
        self.budget = current_budget()  # of steps; each node is one
        self.typed_nulls = typed_nulls  # parameters become NULLs of their type, where none are possible (a view)
        self.strict = strict  # read Snowflake's documentation in the worst way: see docs/embedded.md
        self.inserts_values = False  # INSERT … VALUES, the form that certainly takes array binds
        self.catalog = catalog
        self.database = database
        self.schema = schema
        self.binds = binds
        self.text = ""  # the statement, for the positions in errors
        self.long_names: dict[str, str] = {}  # results whose name is too long for PostgreSQL
        self.last_hidden = False  # the last column is not returned
        self.not_null: set[str] = set()  # results that cannot be NULL
        self.result_names: list[str] = []  # the source texts of the outermost select list
        # What PostgreSQL's $1, $2 … are: numbers of binds, names of context values.
        self.parameters: dict[int | str, int] = {}
        self.demands: list[ServerTableFunction] = []
        self.reads: list[CatalogTable] = []
        self.writes: list[CatalogTable] = []
        self.scopes: list[NameScope] = [NameScope()]
        self.lock_wait: Any = None  # of FOR UPDATE: a literal number of seconds, or nothing
        self._inside = 0  # characters of the parts of the node that is being emitted
        self.system_tables = False  # reads INFORMATION_SCHEMA or a table function of the server

    # --- the one way in -------------------------------------------------------------------------------------------

    def emit(self, node: exp.Expr) -> str:
        self.budget.spend()
        entry = self.HANDLERS.get(type(node))
        if entry is None:
            raise self.refused(node)
        allowed, handler = entry
        for name in part_names(node):
            if name not in allowed:
                raise self.refused_part(node, name)
        outside, self._inside = self._inside, 0
        translated = handler(self, node)
        self.budget.write(len(translated) - self._inside, self.text)
        self._inside = outside + len(translated)
        return translated

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
    def scope(self) -> NameScope:
        return self.scopes[-1]

    # --- parameters -----------------------------------------------------------------------------------------------

    def bind_number(self, node: exp.Placeholder) -> int:
        """Which bind of the user a `?` or `:1` stands for, from 1."""
        mark = str(node.this)
        number = self.binds.numbers.get(mark) or (int(mark) if is_number(mark) else None)
        if number is None:
            raise compilation(2049, "42601", f"Bind variable :{mark.upper()} not set.")
        if not 1 <= number <= len(self.binds.types):
            raise compilation(2049, "42601", "Bind variable ? not set.")
        return number

    def bind_type(self, node: exp.Placeholder) -> str:
        """The type that a bind was sent with, or TEXT where it travels as text and is not converted."""
        kind = self.binds.types[self.bind_number(node) - 1]
        return kind if kind in SCALAR_BINDS or kind in ("NULL", "TIMESTAMP_TZ") else "TEXT"

    def bind(self, node: exp.Placeholder) -> str:
        """A bind of the user, cast to the type it was sent with."""
        number, kind = self.bind_number(node), self.bind_type(node)
        if kind == "NULL":
            return "NULL"
        value = f'"~binds"."c{number}"' if self.binds.arrays else self.parameter(number)
        if kind == "TIMESTAMP_TZ" or (kind == "BINARY" and self.binds.arrays):  # these travel as text
            return f"sf.cast_{CAST_NAMES[kind]}({value}::text)"
        return f"{value}::{POSTGRES_TYPES[kind]}"

    def parameter(self, key: int | str) -> str:
        """The PostgreSQL parameter for a bind (its number) or a context value (its name), numbered by first use."""
        if self.typed_nulls:
            return "NULL"
        return f"${self.parameters.setdefault(key, len(self.parameters) + 1)}"

    def context_value(self, name: str) -> str:
        return f"{self.parameter(name)}::text"


def handles(
    node_type: type[exp.Expr], *parts: str
) -> Callable[[Callable[[Emitter, Any], str]], Callable[[Emitter, Any], str]]:
    """Registers the emitter of one node type, with the parts of the node that it handles."""

    def register(handler: Callable[[Emitter, Any], str]) -> Callable[[Emitter, Any], str]:
        Emitter.HANDLERS[node_type] = (frozenset(parts), handler)
        return handler

    return register
