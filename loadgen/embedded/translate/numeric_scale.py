"""The scale of a number that is computed, as far as the text and the catalogue tell it.

PostgreSQL does not say the scale of an expression. Where every part is a column or a literal of known scale, the rules
of Snowflake give it; elsewhere it is read off the rows.
"""

from __future__ import annotations

from sqlglot import exp

from loadgen.embedded.translate import dialect
from loadgen.embedded.translate.emitter import Emitter

SCALE_MAX = 37
_DIVISION_SCALE_MAX = 12
_KEEPING = frozenset(
    {
        "SUM", "MIN", "MAX", "ANY_VALUE", "ABS", "COALESCE", "NVL", "IFNULL", "ZEROIFNULL", "NULLIFZERO", "NULLIF",
        "GREATEST", "LEAST", "MOD", "LAG", "LEAD", "FIRST_VALUE", "LAST_VALUE",
    }
)  # fmt: skip


def scale_of(self: Emitter, node: exp.Expr) -> int | None:
    """The scale, or None when it is no number of fixed scale or cannot be told."""
    if isinstance(node, exp.Paren | exp.Neg | exp.Alias | exp.Window | exp.Distinct):
        inner = node.expressions[0] if isinstance(node, exp.Distinct) else node.this
        return scale_of(self, inner)
    if isinstance(node, exp.Literal):
        text = str(node.this)
        return None if node.is_string or "e" in text.lower() else len(text.partition(".")[2])
    if isinstance(node, exp.Column):
        return _column(self, node)
    if isinstance(node, exp.Binary):
        return _binary(node, scale_of(self, node.this), scale_of(self, node.expression))
    if isinstance(node, exp.Anonymous):
        return _call(self, str(node.this).upper(), node.expressions)
    return None


def _column(self: Emitter, node: exp.Column) -> int | None:
    name = dialect.identifier(node.this)
    alias = dialect.identifier(node.args["table"]) if node.args.get("table") else None
    found = [table.column(name) for shown, table in self.scope.tables.items() if alias in (None, shown)]
    columns = [column for column in found if column is not None]
    return columns[0].type.scale if len(columns) == 1 and columns[0].type.kind == "FIXED" else None


def _binary(node: exp.Binary, left: int | None, right: int | None) -> int | None:
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
