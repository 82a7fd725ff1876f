"""Operators, literals, names and binds."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from sqlglot import exp

from loadgen.embedded import postgres_names
from loadgen.embedded.functions.function import OrderItem
from loadgen.embedded.sql_errors import invalid_identifier, syntax_error, unknown_function, unsupported
from loadgen.embedded.translate import dialect
from loadgen.embedded.translate.emitter import CONTEXT_FUNCTIONS, Emitter, handles


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
    """An operand of arithmetic: a text is a number here, or PostgreSQL would take `variant - text` for its own."""
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
        return f"{postgres_names.literal(str(node.this))}::text"
    text = str(node.this)
    if _NUMBER.fullmatch(text) is None:
        raise syntax_error(*dialect.position(self.text, text), text)
    return f"{text}::{'double precision' if is_float(node) else 'numeric'}"


_NUMBER = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def is_float(number: exp.Literal) -> bool:
    return "e" in str(number.this).lower()


def whole_number(node: exp.Expr | None) -> str | None:
    """The digits of a literal whole number; None for anything else."""
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
        name = dialect.identifier(node.this)
        table = node.args.get("table")
        if table is None and name in self.scope.aliases:
            return self.emit(self.scope.aliases[name])
        if table is None and not node.this.args.get("quoted") and name in CONTEXT_FUNCTIONS:
            return self.context_value(name)
        if table is None and _is_table(self, name):
            raise invalid_identifier(postgres_names.shown(name), *dialect.position(self.text, name))
        last = postgres_names.quoted(name)
    # Every source has an alias, so a schema before the table's name is redundant.
    table = node.args.get("table")
    return f"{postgres_names.quoted(dialect.identifier(table))}.{last}" if table is not None else last


def _is_table(self: Emitter, name: str) -> bool:
    """PostgreSQL would take the name of a table for its whole row."""
    return name in self.scope.tables and all(table.column(name) is None for table in self.scope.tables.values())


@handles(exp.Dot, "this", "expression")
def _dot(self: Emitter, node: exp.Dot) -> str:
    """`src.value:a.b` style access behind a column; anything else with a dot is an unknown function."""
    if isinstance(node.expression, exp.Anonymous):
        raise unknown_function(dialect.shown(node).partition("(")[0])
    key = dialect.identifier(node.expression)
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
    """The scale, or None when it is no number of fixed scale or is unknown."""
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
    name = dialect.identifier(node.this)
    alias = dialect.identifier(node.args["table"]) if node.args.get("table") else None
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
    """Six more decimals, but not beyond twelve."""
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
