"""Functions that become another expression than one call: CASE, COALESCE, operators, a choice of functions."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.embedded import postgres_names
from loadgen.embedded.functions.function import DAY_UNITS, Argument, Form, FunctionCall, normal_unit, read


def together(values: Sequence[Argument]) -> list[str]:
    """Branches of one expression, for which PostgreSQL requires one type.

    Next to a VARIANT every branch becomes one. A string literal next to another type is untyped, so that it gets that
    type: NVL(order_date, '2024-01-01') is a DATE.
    """
    if any(value.kind == "variant" for value in values):
        return [read("v", value) for value in values]
    if all(value.kind == "text" for value in values):
        return [value.text for value in values]
    return [postgres_names.literal(value.value) if value.kind == "text" else value.text for value in values]


def iff(call: FunctionCall) -> str:
    yes, no = together(call.raw[1:])
    return f"CASE WHEN {call.arguments[0]} THEN {yes} ELSE {no} END"


def nvl2(call: FunctionCall) -> str:
    yes, no = together(call.raw[1:])
    return f"CASE WHEN {call.arguments[0]} IS NOT NULL THEN {yes} ELSE {no} END"


def coalesce(call: FunctionCall) -> str:
    return f"coalesce({', '.join(together(call.raw))})"


def decode(call: FunctionCall) -> str:
    """DECODE(value, search, result, …[, default]): NULL finds NULL."""
    value, *rest = call.raw
    results = together([*rest[1::2], *(rest[-1:] if len(rest) % 2 else [])])
    branches = [
        f"WHEN {value.text} IS NOT DISTINCT FROM {search.text} THEN {result}"
        for search, result in zip(rest[0 : len(rest) // 2 * 2 : 2], results, strict=False)
    ]
    otherwise = f" ELSE {results[-1]}" if len(rest) % 2 else ""
    return f"CASE {' '.join(branches)}{otherwise} END"


def extreme(name: str, *, ignore_nulls: bool = False) -> Form:
    """GREATEST and LEAST: NULL when any argument is, unlike PostgreSQL's."""

    def form(call: FunctionCall) -> str:
        values = together(call.raw)
        text = f"{name}({', '.join(values)})"
        if ignore_nulls or len(values) == 1:
            return text
        uncertain = [text for text, value in zip(values, call.raw, strict=True) if value.kind != "text"]
        missing = " OR ".join(f"{text} IS NULL" for text in uncertain)
        return f"CASE WHEN {missing} THEN NULL ELSE {text} END" if missing else text

    return form


def expression(pattern: str) -> Form:
    """A text with the arguments put in: {0}, {1} …"""
    return lambda call: pattern.format(*call.arguments)


def constant(text: str) -> Form:
    """The same text whatever the arguments are, such as an unused precision."""
    return lambda call: text


def concat(call: FunctionCall) -> str:
    return f"({' || '.join(call.arguments)})"


def concat_ws(call: FunctionCall) -> str:
    separator, *values = call.arguments
    return f"({f' || {separator} || '.join(values)})"


def _is_format(call: FunctionCall, index: int = 1) -> bool:
    return len(call.raw) > index and call.raw[index].kind == "text"


def to_number(attempt: bool) -> Form:
    """TO_NUMBER(value[, format][, precision[, scale]]), which is NUMBER(38,0) by default."""
    name = "sf.try_cast_number" if attempt else "sf.cast_number"

    def form(call: FunctionCall) -> str:
        value, rest = call.raw[0], list(call.raw[1:])
        if _is_format(call):
            text = f"{name}({value.text}, {rest.pop(0).text})"
        else:
            text = f"{name}({value.text})" if not attempt else f"{name}({read('t', value)})"
        digits = _integer(rest[0]) if rest else 38
        places = _integer(rest[1]) if len(rest) > 1 else 0
        if attempt:
            text = f"sf.within({text}, {digits}, {places})"
        return f"({text})::numeric({digits},{places})"

    return form


def _integer(argument: Argument) -> int:
    """A precision or scale, which must be a constant as in Snowflake."""
    whole = argument.kind == "number" and argument.value.isdigit()
    return min(int(argument.value), 38) if whole else 38


def cast(name: str, *, attempt: bool = False) -> Form:
    """TO_DATE and similar: sf.cast_x(value), or with a format or scale behind it."""
    target = f"sf.{'try_' if attempt else ''}cast_{name}"

    def form(call: FunctionCall) -> str:
        first, *rest = call.raw
        value = read("t", first) if attempt or first.kind == "null" else first.text
        return f"{target}({', '.join([value, *(argument.text for argument in rest)])})"

    return form


def double(attempt: bool) -> Form:
    """TO_DOUBLE(value[, format])."""
    prefix = "sf.try_cast" if attempt else "sf.cast"

    def form(call: FunctionCall) -> str:
        if len(call.raw) > 1:
            return f"{prefix}_number({call.raw[0].text}, {call.raw[1].text})::double precision"
        return f"{prefix}_float({read('t', call.raw[0]) if attempt else call.raw[0].text})"

    return form


def dateadd(call: FunctionCall) -> str:
    """By the unit: a DATE plus days stays a DATE, plus hours it becomes a timestamp."""
    name = "sf.dateadd" if call.raw[0].value in DAY_UNITS else "sf.dateadd_time"
    return f"{name}({', '.join(call.arguments)})"


def date_part(unit: str) -> Form:
    return lambda call: f"sf.date_part('{unit}', {call.arguments[0]})"


def truncate(call: FunctionCall) -> str:
    """TRUNC(number[, scale]), or TRUNC(date, 'month')."""
    value, *rest = call.raw
    unit = normal_unit(rest[0].value) if rest and rest[0].kind == "text" else None
    if unit is not None:
        return f"sf.date_trunc('{unit}', {value.text})"
    return f"sf.trunc({', '.join([read('n', value), *(read('i', scale) for scale in rest)])})"


def convert_timezone(call: FunctionCall) -> str:
    if len(call.raw) == 2:
        return f"sf.convert_timezone({call.arguments[0]}, sf.cast_ltz({call.raw[1].text}))"
    source, target = call.arguments[:2]
    return f"sf.convert_timezone({source}, {target}, sf.cast_ntz({call.raw[2].text}))"


def from_parts(kind: str) -> Form:
    """TIMESTAMP_x_FROM_PARTS(year … nanosecond[, zone]), or (date, time)."""

    def form(call: FunctionCall) -> str:
        if len(call.raw) == 2:
            day, clock = read("d", call.raw[0]), call.raw[1].text
            return f"sf.cast_{kind}(sf.ntz_from_parts({day}, {clock}))"
        numbers = [read("i", part) for part in call.raw[:7]]
        zone = [argument.text for argument in call.raw[7:]]
        return f"sf.{kind}_from_parts({', '.join([*numbers, *zone])})"

    return form


def array_construct(call: FunctionCall) -> str:
    """Not one call: PostgreSQL limits a call to 100 arguments."""
    return f"to_jsonb(ARRAY[{', '.join(call.arguments)}]::jsonb[])"


def object_construct(keep_null: bool) -> Form:
    def form(call: FunctionCall) -> str:
        keys = ", ".join(read("t", key) for key in call.raw[::2])
        values = [read("v", value) for value in call.raw[1::2]]
        if keep_null:
            values = [f"coalesce({value}, 'null'::jsonb)" for value in values]
        return f"sf.object_construct(ARRAY[{keys}]::text[], ARRAY[{', '.join(values)}]::jsonb[])"

    return form


def row_hash(call: FunctionCall) -> str:
    """HASH(…): one 64-bit number over all arguments, equal for equal values."""
    columns = ", ".join("NULL::text" if argument.kind == "null" else argument.text for argument in call.raw)
    return f"hash_record_extended(ROW({columns}), 0)"


def like(operator: str) -> Form:
    def form(call: FunctionCall) -> str:
        value, pattern, *escape = call.arguments
        return f"({value} {operator} {pattern} ESCAPE {escape[0] if escape else repr('')})"

    return form
