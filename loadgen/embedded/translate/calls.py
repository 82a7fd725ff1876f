"""Calls: casts, functions, window functions, access to semi-structured values.

`FUNCTIONS` contains all functions that may be called; other names are unknown functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlglot import exp

from loadgen.embedded import postgres_names
from loadgen.embedded.functions import FUNCTIONS, SqlFunction, normal_unit
from loadgen.embedded.functions.function import Argument, Order
from loadgen.embedded.result import POSTGRES_TYPES, SnowflakeType, declared
from loadgen.embedded.sql_errors import compilation, syntax_error, unknown_function, unsupported, wrong_arity
from loadgen.embedded.translate import parser
from loadgen.embedded.translate.emitter import (
    CAST_NAMES,
    CONTEXT_FUNCTIONS,
    Emitter,
    handles,
    is_float,
    order_item,
    whole_number,
)

SEQUENCES = frozenset({"SEQ1", "SEQ2", "SEQ4", "SEQ8"})


# --- casts --------------------------------------------------------------------------------------------------------


def type_of(node: exp.DataType) -> SnowflakeType:
    """The Snowflake type of a type in the syntax tree."""
    kind = node.this
    name = str(kind.value if isinstance(kind, exp.DataType.Type) else kind).upper()
    plain = all(isinstance(part, exp.DataTypeParam) and part.this.is_int for part in node.expressions)
    arguments = [int(str(part.this.this)) for part in node.expressions] if plain else []
    if not plain or (node.args.get("nested") and node.expressions):
        raise unsupported(f"data type {parser.shown(node)}")
    return declared(_TYPE_NAMES.get(name, name), arguments)


_TYPE_NAMES = {
    "DECIMAL": "NUMBER",
    "TIMESTAMPNTZ": "TIMESTAMP_NTZ",
    "TIMESTAMPLTZ": "TIMESTAMP_LTZ",
    "TIMESTAMPTZ": "TIMESTAMP_TZ",
    "USERDEFINED": "?",
    "STRUCT": "OBJECT",
}


CLOCKS = frozenset({"CURRENT_TIMESTAMP", "CURRENT_TIME", "LOCALTIMESTAMP", "LOCALTIME", "SYSTIMESTAMP"})
_TIMES = frozenset({"TIME", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "TIMESTAMP_TZ"})
_MODIFIED = _TIMES | {"FIXED", "TEXT"}


def cast(value: str, kind: SnowflakeType, attempt: bool = False) -> str:
    """An explicit cast of `value` with Snowflake's errors; TRY_CAST (`attempt`) returns NULL instead."""
    call = f"sf.{'try_' if attempt else ''}cast_{CAST_NAMES[kind.kind]}({value})"
    if kind.kind in _TIMES and kind.scale is not None and kind.scale < 6:
        call = f"sf.cut({call}, {kind.scale})"  # PostgreSQL would round
    elif kind.kind == "FIXED" and attempt:
        call = f"sf.within({call}, {kind.precision}, {kind.scale})"
    elif kind.postgres == "text" or kind.kind not in _MODIFIED:
        return call
    return f"{call}::{kind.postgres}"


@handles(exp.Cast, "this", "to")
def _cast(self: Emitter, node: exp.Cast) -> str:
    kind = type_of(node.to)  # first, so that an unsupported type is reported before errors of the value
    return cast(self.emit(node.this), kind)


@handles(exp.TryCast, "this", "to", "requires_string", "safe", "probe_date_format")
def _try_cast(self: Emitter, node: exp.TryCast) -> str:
    return cast(self.emit(node.this), type_of(node.to), attempt=True)


# --- semi-structured ----------------------------------------------------------------------------------------------


@handles(exp.JSONExtract, "this", "expression", "variant_extract", "requires_json", "only_json_types", "expressions")
def _json_extract(self: Emitter, node: exp.JSONExtract) -> str:
    value = self.emit(node.this)
    for step in node.expression.expressions:
        if isinstance(step, exp.JSONPathRoot):
            continue
        if not isinstance(step, exp.JSONPathKey | exp.JSONPathSubscript) or not isinstance(step.this, str | int):
            raise unsupported("path expression")
        key = f"{step.this}::numeric" if isinstance(step.this, int) else f"{postgres_names.literal(step.this)}::text"
        value = f"sf.get({value}, {key})"
    return value


@handles(exp.Bracket, "this", "expressions", "offset", "safe", "json_access", "returns_list_for_maps")
def _bracket(self: Emitter, node: exp.Bracket) -> str:
    if len(node.expressions) != 1:
        raise unsupported("array slice")
    return f"sf.get({self.emit(node.this)}, {self.emit(node.expressions[0])})"


@handles(exp.Array, "expressions", "bracket_notation")
def _array(self: Emitter, node: exp.Array) -> str:
    return call_text(known_function("ARRAY_CONSTRUCT"), [argument_of(self, item) for item in node.expressions])


@handles(exp.Struct, "expressions")
def _struct(self: Emitter, node: exp.Struct) -> str:
    arguments: list[Argument] = []
    for pair in node.expressions:
        if not isinstance(pair, exp.PropertyEQ):
            raise unsupported("object literal")
        arguments += [Argument.literal(str(pair.this.name)), argument_of(self, pair.expression)]
    return call_text(known_function("OBJECT_CONSTRUCT"), arguments)


# --- functions ----------------------------------------------------------------------------------------------------


@handles(exp.Anonymous, "this", "expressions")
def _function(self: Emitter, node: exp.Anonymous) -> str:
    return call_of(self, node)


def call_of(self: Emitter, node: exp.Anonymous, *, order_by: Order = (), over: str | None = None) -> str:
    """A function call, with its WITHIN GROUP (ORDER BY …) and OVER (…)."""
    name = str(node.this).upper()
    if name in CONTEXT_FUNCTIONS:
        return self.context_value(name)
    if name in SEQUENCES:
        row = '"~generator1"."i" - 1' if self.scope.generators == 1 else "row_number() OVER () - 1"
        return f"({row})::numeric(38,0)"
    function = known_function(name)
    if function.kind == "table" or (function.kind == "window" and over is None):
        raise unknown_function(name)
    check_arity(function, node)
    if name in CLOCKS and node.expressions and not node.expressions[0].is_int:
        raise compilation(1015, "22023", f"the precision of {name} is a whole number")
    distinct = False
    arguments = []
    for index, argument in enumerate(node.expressions):
        if index in function.unit_arguments:
            arguments.append(Argument.unit(unit_of(argument)))
        elif isinstance(argument, exp.Distinct):
            distinct = True
            listed = argument.expressions
            if listed and isinstance(listed[0], exp.Tuple):
                listed = listed[0].expressions
            if not listed:
                raise syntax_error(*parser.position(self.text, ")"), ")")
            arguments += [argument_of(self, item) for item in listed]
        elif isinstance(argument, exp.Kwarg | exp.Lambda):
            raise unsupported("named argument")
        elif index in function.integer_arguments:
            arguments.append(Argument(f"({self.emit(argument)})::integer"))
        else:
            arguments.append(argument_of(self, argument))
    return call_text(function, arguments, distinct=distinct, order_by=order_by, over=over)


def argument_of(self: Emitter, node: exp.Expr) -> Argument:
    """A node as an argument: its translation, with kind and value of the node."""
    text = self.emit(node)
    if isinstance(node, exp.RawString) or (isinstance(node, exp.Literal) and node.is_string):
        return Argument(text, "text", str(node.this))
    if isinstance(node, exp.Literal):
        return Argument(text, "" if is_float(node) else "number", str(node.this))
    if isinstance(node, exp.Null) or (isinstance(node, exp.Placeholder) and self.bind_type(node) == "NULL"):
        return Argument(text, "null")
    return Argument(text, "variant" if _gives_variant(node) else "")


def _gives_variant(node: exp.Expr) -> bool:
    if isinstance(node, exp.Anonymous):
        function = FUNCTIONS.get(str(node.this).upper())
        return function is not None and function.variant
    if isinstance(node, exp.Cast) and not isinstance(node, exp.TryCast):
        return type_of(node.to).kind == "VARIANT"
    return isinstance(node, exp.JSONExtract | exp.Bracket | exp.Dot)


def call_text(
    function: SqlFunction,
    arguments: list[Argument],
    *,
    distinct: bool = False,
    order_by: Order = (),
    over: str | None = None,
) -> str:
    text = function.emit(arguments, distinct=distinct, order_by=order_by, over=over)
    return f"({text})::{POSTGRES_TYPES[function.returns]}" if function.returns else text


def known_function(name: str) -> SqlFunction:
    function = FUNCTIONS.get(name)
    if function is None:
        raise unknown_function(name)
    return function


def check_arity(function: SqlFunction, node: exp.Anonymous) -> None:
    count = len(node.expressions)
    if count < function.least or (function.most is not None and count > function.most):
        raise wrong_arity(parser.shown(node), function.least, function.most, count)


def unit_of(node: exp.Expr) -> str:
    plain = isinstance(node, exp.Literal | exp.Var)
    word = str(node.this) if plain else parser.identifier(node.this if isinstance(node, exp.Column) else node)
    unit = normal_unit(word)
    if unit is None:
        raise compilation(2151, "22023", f"'{word}' is not a valid date/time component.")
    return unit


@handles(exp.WithinGroup, "this", "expression")
def _within_group(self: Emitter, node: exp.WithinGroup) -> str:
    return _grouped(self, node, None)


def _grouped(self: Emitter, node: exp.WithinGroup, over: str | None) -> str:
    if not isinstance(node.this, exp.Anonymous):
        raise unsupported("WITHIN GROUP")
    if node.expression is None:  # WITHIN GROUP ()
        raise syntax_error(*parser.position(self.text, ")"), ")")
    order = tuple(order_item(self, item) for item in node.expression.expressions)
    return call_of(self, node.this, order_by=order, over=over)


@handles(exp.Window, "this", "partition_by", "order", "spec", "over")
def _window(self: Emitter, node: exp.Window) -> str:
    inner = node.this.this if isinstance(node.this, exp.RespectNulls) else node.this
    if isinstance(inner, exp.IgnoreNulls):
        raise unsupported("IGNORE NULLS")
    call = inner.this if isinstance(inner, exp.WithinGroup) else inner
    if not isinstance(call, exp.Anonymous):
        raise unsupported("OVER")
    parts = []
    if node.args.get("partition_by"):
        parts.append("PARTITION BY " + ", ".join(self.all(node.args["partition_by"])))
    if node.args.get("order"):
        parts.append("ORDER BY " + ", ".join(self.all(node.args["order"].expressions)))
    if node.args.get("spec"):
        parts.append(_frame(self, node.args["spec"]))
    elif known_function(str(call.this).upper()).whole_frame and node.args.get("order"):
        parts.append("ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING")
    over = " ".join(parts)
    return _grouped(self, inner, over) if isinstance(inner, exp.WithinGroup) else call_of(self, call, over=over)


def _frame(self: Emitter, spec: exp.WindowSpec) -> str:
    kind = str(spec.args.get("kind") or "").upper()
    if kind not in ("ROWS", "RANGE") or spec.args.get("exclude"):
        raise unsupported("window frame")

    def edge(which: str) -> str:
        value, side = spec.args.get(which), spec.args.get(f"{which}_side")
        if not isinstance(value, str):
            value = whole_number(value)
        if value is None or str(side or "").upper() not in ("", "PRECEDING", "FOLLOWING"):
            raise unsupported("window frame")
        return f"{value} {side}" if side else value

    return f"{kind} BETWEEN {edge('start')} AND {edge('end')}"


@handles(exp.Extract, "this", "expression")
def _extract(self: Emitter, node: exp.Extract) -> str:
    return f"sf.date_part({postgres_names.literal(unit_of(node.this))}, {self.emit(node.expression)})"


@handles(exp.StrPosition, "this", "substr", "clamp_position")
def _position(self: Emitter, node: exp.StrPosition) -> str:
    return f"sf.position({self.emit(node.args['substr'])}, {self.emit(node.this)})"


@handles(exp.Interval, "this", "unit")
def _interval(self: Emitter, node: exp.Interval) -> str:
    unit = normal_unit(parser.identifier(node.args["unit"]) if node.args.get("unit") else "day")
    if unit is None or not isinstance(node.this, exp.Literal):
        raise unsupported("INTERVAL")
    return f"{postgres_names.literal(f'{node.this.this} {unit}')}::interval"


def _clock(target: str) -> Callable[[Emitter, Any], str]:
    def emit(self: Emitter, node: Any) -> str:
        if node.this is not None and not (isinstance(node.this, exp.Literal) and node.this.is_int):
            raise compilation(1015, "22023", "the fraction of a second is given as a whole number")
        return target

    return emit


handles(exp.CurrentTimestamp, "this", "sysdate")(_clock("sf.current_timestamp()"))
handles(exp.CurrentDate)(_clock("sf.current_date()"))
handles(exp.Localtime, "this")(_clock("sf.current_time()"))


@handles(exp.CurrentUser)
def _current_user(self: Emitter, node: exp.CurrentUser) -> str:
    return self.context_value("CURRENT_USER")


@handles(exp.AtTimeZone, "this", "zone")
def _at_time_zone(self: Emitter, node: exp.AtTimeZone) -> str:
    raise unsupported("AT TIME ZONE")
