"""The allow-list of scalar functions: names, arity, target and conversions of arguments."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.embedded import postgres_names
from loadgen.embedded.functions.function import (
    DAY_UNITS,
    FLOAT,
    INTEGER,
    Argument,
    Form,
    FunctionCall,
    SqlFunction,
    normal_unit,
    read,
    rows,
)

# --- functions that are translated to other expressions than one call ------------------------------------------------


def common_type(values: Sequence[Argument]) -> list[str]:
    """The branches of one expression, for which PostgreSQL requires a common type.

    If one branch is a VARIANT, all become VARIANTs. A string literal is untyped beside other types, so that it gets
    their type: NVL(order_date, '2024-01-01') is a DATE.
    """
    if any(value.kind == "variant" for value in values):
        return [read("v", value) for value in values]
    if all(value.kind == "text" for value in values):
        return [value.text for value in values]
    return [postgres_names.literal(value.value) if value.kind == "text" else value.text for value in values]


def iff(call: FunctionCall) -> str:
    yes, no = common_type(call.raw[1:])
    return f"CASE WHEN {call.arguments[0]} THEN {yes} ELSE {no} END"


def nvl2(call: FunctionCall) -> str:
    yes, no = common_type(call.raw[1:])
    return f"CASE WHEN {call.arguments[0]} IS NOT NULL THEN {yes} ELSE {no} END"


def coalesce(call: FunctionCall) -> str:
    return f"coalesce({', '.join(common_type(call.raw))})"


def decode(call: FunctionCall) -> str:
    """DECODE(value, search, result, …[, default]): NULL is equal to NULL."""
    value, *rest = call.raw
    results = common_type([*rest[1::2], *(rest[-1:] if len(rest) % 2 else [])])
    branches = [
        f"WHEN {value.text} IS NOT DISTINCT FROM {search.text} THEN {result}"
        for search, result in zip(rest[0 : len(rest) // 2 * 2 : 2], results, strict=False)
    ]
    otherwise = f" ELSE {results[-1]}" if len(rest) % 2 else ""
    return f"CASE {' '.join(branches)}{otherwise} END"


def extreme(name: str, *, ignore_nulls: bool = False) -> Form:
    """GREATEST and LEAST: NULL if any argument is NULL, unlike in PostgreSQL."""

    def form(call: FunctionCall) -> str:
        values = common_type(call.raw)
        text = f"{name}({', '.join(values)})"
        if ignore_nulls or len(values) == 1:
            return text
        uncertain = [text for text, value in zip(values, call.raw, strict=True) if value.kind != "text"]
        missing = " OR ".join(f"{text} IS NULL" for text in uncertain)
        return f"CASE WHEN {missing} THEN NULL ELSE {text} END" if missing else text

    return form


def expression(pattern: str) -> Form:
    """A text with the arguments in place of {0}, {1} …"""
    return lambda call: pattern.format(*call.arguments)


def constant(text: str) -> Form:
    """A text that does not depend on the arguments, such as an unused precision."""
    return lambda call: text


def concat(call: FunctionCall) -> str:
    return f"({' || '.join(call.arguments)})"


def concat_ws(call: FunctionCall) -> str:
    separator, *values = call.arguments
    return f"({f' || {separator} || '.join(values)})"


def _has_format(call: FunctionCall) -> bool:
    return len(call.raw) > 1 and call.raw[1].kind == "text"


def to_number(attempt: bool) -> Form:
    """TO_NUMBER(value[, format][, precision[, scale]]), with NUMBER(38,0) as the default."""
    name = "sf.try_cast_number" if attempt else "sf.cast_number"

    def form(call: FunctionCall) -> str:
        value, rest = call.raw[0], list(call.raw[1:])
        if _has_format(call):
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
    """TO_DATE and similar functions: sf.cast_x(value), or sf.cast_x(value, format or scale)."""
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
    """DATEADD: a DATE plus days is a DATE; plus hours it is a timestamp."""
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
    """An array expression, because PostgreSQL limits a call to 100 arguments."""
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


CONDITIONAL: list[SqlFunction] = [
    *rows("IFF", "3", iff),
    *rows("NVL IFNULL", "2", coalesce),
    *rows("COALESCE", "2-", coalesce),
    *rows("NVL2", "3", nvl2),
    *rows("DECODE", "3-", decode),
    *rows("NULLIF", "2", "nullif"),
    *rows("NULLIFZERO", "1", expression("nullif({0}, 0)"), "n"),
    *rows("ZEROIFNULL", "1", expression("coalesce({0}, 0)"), "n"),
    *rows("EQUAL_NULL", "2", expression("({0} IS NOT DISTINCT FROM {1})")),
    *rows("GREATEST", "1-", extreme("greatest")),
    *rows("LEAST", "1-", extreme("least")),
    *rows("GREATEST_IGNORE_NULLS", "1-", extreme("greatest", ignore_nulls=True)),
    *rows("LEAST_IGNORE_NULLS", "1-", extreme("least", ignore_nulls=True)),
    *rows("REGR_VALX", "2", expression("CASE WHEN {0} IS NOT NULL THEN {1} END"), "n"),
    *rows("REGR_VALY", "2", expression("CASE WHEN {1} IS NOT NULL THEN {0} END"), "n"),
    *rows("BOOLAND", "2", "sf.booland", "i"),
    *rows("BOOLOR", "2", "sf.boolor", "i"),
    *rows("BOOLXOR", "2", "sf.boolxor", "i"),
    *rows("BOOLNOT", "1", "sf.boolnot", "i"),
]

NUMBERS: list[SqlFunction] = [
    *rows("ABS", "1", "abs", "n"),
    *rows("CEIL", "1-2", "sf.ceil", "ni"),
    *rows("FLOOR", "1-2", "sf.floor", "ni"),
    *rows("ROUND", "1-3", "sf.round", "nit"),
    *rows("TRUNC TRUNCATE", "1-2", truncate),
    *rows("MOD", "2", "sf.mod", "n"),
    *rows("DIV0", "2", "sf.div0", "n"),
    *rows("DIV0NULL", "2", "sf.div0null", "n"),
    *rows("SIGN", "1", "sf.sign", "n", result=INTEGER),
    *rows("NEGATE", "1", "sf.negate", "n"),
    *rows("FACTORIAL", "1", "sf.factorial", "i", result=INTEGER),
    *rows("SQRT", "1", "sqrt", "f"),
    *rows("CBRT", "1", "cbrt", "f"),
    *rows("SQUARE", "1", expression("power({0}, 2)"), "f"),
    *rows("POWER POW", "2", "power", "f"),
    *rows("EXP", "1", "exp", "f"),
    *rows("LN", "1", "ln", "f"),
    *rows("LOG", "2", "sf.log", "f"),
    *rows("PI", "0", "pi"),
    *rows("DEGREES", "1", "degrees", "f"),
    *rows("RADIANS", "1", "radians", "f"),
    *rows("SIN COS TAN COT ASIN ACOS ATAN SINH COSH TANH ASINH ACOSH ATANH", "1", "=", "f"),
    *rows("ATAN2", "2", "atan2", "f"),
    *rows("HAVERSINE", "4", "sf.haversine", "f"),
    *rows("WIDTH_BUCKET", "4", "sf.width_bucket", "i", result=INTEGER),
    *rows("BITAND BIT_AND", "2", "sf.bitand", "i", result=INTEGER),
    *rows("BITOR BIT_OR", "2", "sf.bitor", "i", result=INTEGER),
    *rows("BITXOR BIT_XOR", "2", "sf.bitxor", "i", result=INTEGER),
    *rows("BITNOT BIT_NOT", "1", "sf.bitnot", "i", result=INTEGER),
    *rows("BITSHIFTLEFT BIT_SHIFTLEFT", "2", "sf.bitshiftleft", "i", result=INTEGER),
    *rows("BITSHIFTRIGHT BIT_SHIFTRIGHT", "2", "sf.bitshiftright", "i", result=INTEGER),
    *rows("BITCOUNT", "1", "sf.bitcount", "i", result=INTEGER),
    *rows("GETBIT", "2", "sf.getbit", "i", result=INTEGER),
]

GENERATORS: list[SqlFunction] = [
    *rows("RANDOM", "0-1", "sf.random", "i", result=INTEGER),
    *rows("UNIFORM", "3", "sf.uniform", "nni"),
    *rows("NORMAL", "3", "sf.normal", "ffi"),
    *rows("ZIPF", "3", "sf.zipf", "fii", result=INTEGER),
    *rows("RANDSTR", "2", "sf.randstr", "i"),
    *rows("UUID_STRING", "0-2", "sf.uuid_string", "t"),
    *rows("HASH", "1-", row_hash, result=INTEGER),
]

STRINGS: list[SqlFunction] = [
    *rows("CONCAT", "1-", concat, "t"),
    *rows("CONCAT_WS", "2-", concat_ws, "t"),
    *rows("UPPER", "1", "sf.upper", "t"),
    *rows("LOWER", "1", "sf.lower", "t"),
    *rows("INITCAP", "1-2", "sf.initcap", "t"),
    *rows("LENGTH LEN", "1", "sf.length", "s", result=INTEGER),
    *rows("OCTET_LENGTH", "1", "sf.octet_length", "s", result=INTEGER),
    *rows("BIT_LENGTH", "1", expression("8 * sf.octet_length({0})"), "s", result=INTEGER),
    *rows("RTRIMMED_LENGTH", "1", "sf.rtrimmed_length", "t", result=INTEGER),
    *rows("SUBSTR SUBSTRING", "2-3", "sf.substr", "sii"),
    *rows("LEFT", "2", 'sf."left"', "si"),
    *rows("RIGHT", "2", 'sf."right"', "si"),
    *rows("CHARINDEX POSITION", "2-3", "sf.position", "tti", result=INTEGER),
    *rows("CONTAINS", "2", "sf.contains", "t"),
    *rows("STARTSWITH", "2", "starts_with", "t"),
    *rows("ENDSWITH", "2", "sf.endswith", "t"),
    *rows("LIKE", "2-3", like("LIKE"), "t"),
    *rows("ILIKE", "2-3", like("ILIKE"), "t"),
    *rows("TRIM", "1-2", "btrim", "t"),
    *rows("LTRIM", "1-2", "ltrim", "t"),
    *rows("RTRIM", "1-2", "rtrim", "t"),
    *rows("LPAD", "2-3", "sf.lpad", "tit"),
    *rows("RPAD", "2-3", "sf.rpad", "tit"),
    *rows("REPEAT", "2", "sf.repeat", "ti"),
    *rows("SPACE", "1", "sf.space", "i"),
    *rows("REPLACE", "2-3", "sf.replace", "t"),
    *rows("REVERSE", "1", "reverse", "t"),
    *rows("TRANSLATE", "3", "translate", "t"),
    *rows("INSERT", "4", "sf.insert", "tiit"),
    *rows("ASCII", "1", "sf.ascii", "t", result=INTEGER),
    *rows("UNICODE", "1", "sf.unicode", "t", result=INTEGER),
    *rows("CHR CHAR", "1", "sf.chr", "i"),
    *rows("SPLIT", "2", "sf.split", "t", returns="ARRAY"),
    *rows("SPLIT_PART", "3", "sf.split_part", "tti"),
    *rows("STRTOK", "1-3", "sf.strtok", "tti"),
    *rows("STRTOK_TO_ARRAY", "1-2", "sf.strtok_to_array", "t", returns="ARRAY"),
    *rows("EDITDISTANCE", "2-3", "sf.editdistance", "tti", result=INTEGER),
    *rows("REGEXP_LIKE RLIKE", "2-3", "sf.regexp_like", "t"),
    *rows("REGEXP_COUNT", "2-4", "sf.regexp_count", "ttit", result=INTEGER),
    *rows("REGEXP_REPLACE", "2-6", "sf.regexp_replace", "tttiit"),
    *rows("REGEXP_SUBSTR", "2-6", "sf.regexp_substr", "ttiiti"),
    *rows("REGEXP_INSTR", "2-7", "sf.regexp_instr", "ttiiiti", result=INTEGER),
    *rows("REGEXP_SUBSTR_ALL REGEXP_EXTRACT_ALL", "2-6", "sf.regexp_substr_all", "ttiiti", returns="ARRAY"),
]

BYTES: list[SqlFunction] = [
    *rows("HEX_ENCODE", "1-2", "sf.hex_encode", "xi"),
    *rows("HEX_DECODE_STRING", "1", "sf.hex_decode_string", "t"),
    *rows("HEX_DECODE_BINARY", "1", "sf.cast_binary", "t"),
    *rows("TRY_HEX_DECODE_STRING", "1", "sf.try_hex_decode_string", "t"),
    *rows("TRY_HEX_DECODE_BINARY", "1", "sf.read_hex", "t"),
    *rows("BASE64_ENCODE", "1", "sf.base64_encode", "x"),
    *rows("BASE64_DECODE_STRING", "1", "sf.base64_decode_string", "t"),
    *rows("BASE64_DECODE_BINARY", "1", "sf.base64_decode_binary", "t"),
    *rows("TRY_BASE64_DECODE_STRING", "1", "sf.try_base64_decode_string", "t"),
    *rows("TRY_BASE64_DECODE_BINARY", "1", "sf.read_base64", "t"),
    *rows("MD5 MD5_HEX", "1", "sf.md5", "x"),
    *rows("MD5_BINARY", "1", "sf.md5_binary", "x"),
    *rows("MD5_NUMBER_UPPER64", "1", expression("sf.md5_number({0}, 0)"), "x", result=INTEGER),
    *rows("MD5_NUMBER_LOWER64", "1", expression("sf.md5_number({0}, 1)"), "x", result=INTEGER),
    *rows("SHA1 SHA1_HEX", "1", "sf.sha1", "x"),
    *rows("SHA1_BINARY", "1", "sf.sha1_binary", "x"),
    *rows("SHA2 SHA2_HEX", "1-2", "sf.sha2", "xi"),
    *rows("SHA2_BINARY", "1-2", "sf.sha2_binary", "xi"),
]

CONVERSIONS: list[SqlFunction] = [
    *rows("TO_CHAR TO_VARCHAR", "1-2", cast("text")),
    *rows("TO_NUMBER TO_DECIMAL TO_NUMERIC", "1-4", to_number(attempt=False)),
    *rows("TRY_TO_NUMBER TRY_TO_DECIMAL TRY_TO_NUMERIC", "1-4", to_number(attempt=True)),
    *rows("TO_DOUBLE", "1-2", double(attempt=False)),
    *rows("TRY_TO_DOUBLE", "1-2", double(attempt=True)),
    *rows("TO_BOOLEAN", "1", cast("boolean")),
    *rows("TRY_TO_BOOLEAN", "1", cast("boolean", attempt=True)),
    *rows("TO_BINARY", "1-2", cast("binary")),
    *rows("TRY_TO_BINARY", "1-2", cast("binary", attempt=True)),
    *rows("TO_DATE DATE", "1-2", cast("date")),
    *rows("TRY_TO_DATE", "1-2", cast("date", attempt=True)),
    *rows("TO_TIME TIME", "1-2", cast("time")),
    *rows("TRY_TO_TIME", "1-2", cast("time", attempt=True)),
    *rows("TO_TIMESTAMP TO_TIMESTAMP_NTZ", "1-2", cast("ntz")),
    *rows("TRY_TO_TIMESTAMP TRY_TO_TIMESTAMP_NTZ", "1-2", cast("ntz", attempt=True)),
    *rows("TO_TIMESTAMP_LTZ", "1-2", cast("ltz")),
    *rows("TRY_TO_TIMESTAMP_LTZ", "1-2", cast("ltz", attempt=True)),
    *rows("TO_TIMESTAMP_TZ", "1-2", cast("tz")),
    *rows("TRY_TO_TIMESTAMP_TZ", "1-2", cast("tz", attempt=True)),
    *rows("TO_VARIANT", "1", cast("variant"), variant=True),
    *rows("TO_OBJECT", "1", "sf.cast_object", "j", returns="OBJECT"),
    *rows("TO_ARRAY", "1", "sf.cast_array", "v", returns="ARRAY"),
    *rows("TO_JSON", "1", "sf.json_text", "j"),
    *rows("PARSE_JSON", "1", "sf.parse_json", "t", variant=True),
    *rows("TRY_PARSE_JSON", "1", "sf.read_json", "t", variant=True),
    *rows("CHECK_JSON", "1", "sf.check_json", "t"),
]

CLOCK: list[SqlFunction] = [
    *rows("CURRENT_TIMESTAMP LOCALTIMESTAMP", "0-1", constant("sf.current_timestamp()")),
    *rows("GETDATE SYSTIMESTAMP", "0", constant("sf.current_timestamp()")),
    *rows("SYSDATE", "0", "sf.sysdate"),
    *rows("CURRENT_DATE", "0", "sf.current_date"),
    *rows("CURRENT_TIME LOCALTIME", "0-1", constant("sf.current_time()")),
]

_PARTS = {
    "YEAR": "year",
    "QUARTER": "quarter",
    "MONTH": "month",
    "WEEK WEEKOFYEAR": "week",
    "WEEKISO": "weekiso",
    "DAY DAYOFMONTH": "day",
    "DAYOFWEEK": "dayofweek",
    "DAYOFWEEKISO": "dayofweekiso",
    "DAYOFYEAR": "dayofyear",
    "YEAROFWEEK": "yearofweek",
    "YEAROFWEEKISO": "yearofweekiso",
    "HOUR": "hour",
    "MINUTE": "minute",
    "SECOND": "second",
}

DATES: list[SqlFunction] = [
    *rows("DATEADD TIMESTAMPADD TIMEADD", "3", dateadd, "-im", units=(0,)),
    *rows("DATEDIFF TIMESTAMPDIFF TIMEDIFF", "3", "sf.datediff", "-mm", units=(0,), result=INTEGER),
    *rows("DATE_TRUNC", "2", "sf.date_trunc", "-r", units=(0,)),
    *rows("DATE_PART", "2", "sf.date_part", "-r", units=(0,), result=INTEGER),
    *(row for names, unit in _PARTS.items() for row in rows(names, "1", date_part(unit), "r", result=INTEGER)),
    *rows("LAST_DAY", "1-2", "sf.last_day", "d-", units=(1,)),
    *rows("NEXT_DAY", "2", "sf.next_day", "dt"),
    *rows("PREVIOUS_DAY", "2", "sf.previous_day", "dt"),
    *rows("DAYNAME", "1", "sf.dayname", "d"),
    *rows("MONTHNAME", "1", "sf.monthname", "d"),
    *rows("ADD_MONTHS", "2", "sf.add_months", "mi"),
    *rows("MONTHS_BETWEEN", "2", "sf.months_between", "w"),
    *rows("TIME_SLICE", "3-4", "sf.time_slice", "ri-t", units=(2,)),
    *rows("CONVERT_TIMEZONE", "2-3", convert_timezone, "tt-"),
    *rows("DATE_FROM_PARTS DATEFROMPARTS", "3", "sf.date_from_parts", "i"),
    *rows("TIME_FROM_PARTS TIMEFROMPARTS", "3-4", "sf.time_from_parts", "i"),
    *rows("TIMESTAMP_FROM_PARTS TIMESTAMPFROMPARTS", "2-7", from_parts("ntz")),
    *rows("TIMESTAMP_NTZ_FROM_PARTS TIMESTAMPNTZFROMPARTS", "2-7", from_parts("ntz")),
    *rows("TIMESTAMP_LTZ_FROM_PARTS TIMESTAMPLTZFROMPARTS", "2-7", from_parts("ltz")),
    *rows("TIMESTAMP_TZ_FROM_PARTS TIMESTAMPTZFROMPARTS", "2-8", from_parts("tz")),
]


def _is(kind: str) -> Form:
    return expression(f"sf.is_type({{0}}, '{kind}')")


def _as(kind: str, cast: str = "") -> Form:
    """The value if the VARIANT is of this kind, else NULL."""
    inner = f"sf.as_type({{0}}, '{kind}')"
    return expression(f"{cast}({inner})" if cast else inner)


VARIANTS: list[SqlFunction] = [
    *rows("GET", "2", "sf.get", "j-", variant=True),
    *rows("GET_PATH", "2", "sf.get_path", "jt", variant=True),
    *rows("GET_IGNORE_CASE", "2", "sf.get_ignore_case", "jt", variant=True),
    *rows("JSON_EXTRACT_PATH_TEXT", "2", "sf.json_extract_path_text", "t"),
    *rows("TYPEOF", "1", "sf.typeof", "j"),
    *rows("STRIP_NULL_VALUE", "1", "sf.strip_null_value", "j"),
    *rows("IS_NULL_VALUE", "1", _is("null"), "j"),
    *rows("IS_ARRAY", "1", _is("array"), "j"),
    *rows("IS_OBJECT", "1", _is("object"), "j"),
    *rows("IS_BOOLEAN", "1", _is("boolean"), "j"),
    *rows("IS_CHAR IS_VARCHAR", "1", _is("string"), "j"),
    *rows("IS_DECIMAL IS_DOUBLE IS_REAL", "1", _is("number"), "j"),
    *rows("IS_INTEGER", "1", "sf.is_integer", "j"),
    *rows("AS_CHAR AS_VARCHAR", "1", _as("string", "sf.cast_text"), "j"),
    *rows("AS_NUMBER AS_DECIMAL", "1", _as("number", "sf.cast_number"), "j", result=INTEGER),
    *rows("AS_INTEGER", "1", "sf.as_integer", "j", result=INTEGER),
    *rows("AS_DOUBLE AS_REAL", "1", _as("number", "sf.cast_float"), "j", result=FLOAT),
    *rows("AS_BOOLEAN", "1", _as("boolean", "sf.cast_boolean"), "j"),
    *rows("AS_OBJECT", "1", _as("object"), "j", returns="OBJECT"),
    *rows("AS_ARRAY", "1", _as("array"), "j", returns="ARRAY"),
    *rows("OBJECT_CONSTRUCT", "0-", object_construct(keep_null=False), returns="OBJECT"),
    *rows("OBJECT_CONSTRUCT_KEEP_NULL", "0-", object_construct(keep_null=True), returns="OBJECT"),
    *rows("OBJECT_INSERT", "3-4", "sf.object_insert", "jtvb", returns="OBJECT"),
    *rows("OBJECT_DELETE", "2-", "sf.object_delete", "jt", returns="OBJECT"),
    *rows("OBJECT_PICK", "2-", "sf.object_pick", "j-", returns="OBJECT"),
    *rows("OBJECT_KEYS", "1", "sf.object_keys", "j", returns="ARRAY"),
    *rows("ARRAY_CONSTRUCT", "0-", array_construct, "v", returns="ARRAY"),
    *rows("ARRAY_CONSTRUCT_COMPACT", "1-", "sf.array_construct_compact", "v", returns="ARRAY"),
    *rows("ARRAY_SIZE", "1", "sf.array_size", "j", result=INTEGER),
    *rows("ARRAY_APPEND", "2", "sf.array_append", "jv", returns="ARRAY"),
    *rows("ARRAY_PREPEND", "2", "sf.array_prepend", "jv", returns="ARRAY"),
    *rows("ARRAY_INSERT", "3", "sf.array_insert", "jiv", returns="ARRAY"),
    *rows("ARRAY_CAT", "2", "sf.array_cat", "j", returns="ARRAY"),
    *rows("ARRAY_CONTAINS", "2", "sf.array_contains", "vj"),
    *rows("ARRAY_POSITION", "2", "sf.array_position", "vj", result=INTEGER),
    *rows("ARRAY_SLICE", "3", "sf.array_slice", "jii", returns="ARRAY"),
    *rows("ARRAY_TO_STRING", "2", "sf.array_to_string", "jt"),
    *rows("ARRAY_DISTINCT", "1", "sf.array_distinct", "j", returns="ARRAY"),
    *rows("ARRAY_COMPACT", "1", "sf.array_compact", "j", returns="ARRAY"),
    *rows("ARRAY_REVERSE", "1", "sf.array_reverse", "j", returns="ARRAY"),
    *rows("ARRAY_SORT", "1-2", "sf.array_sort", "jb", returns="ARRAY"),
    *rows("ARRAY_MIN", "1", "sf.array_min", "j"),
    *rows("ARRAY_MAX", "1", "sf.array_max", "j"),
    *rows("ARRAY_INTERSECTION", "2", "sf.array_intersection", "j", returns="ARRAY"),
    *rows("ARRAY_EXCEPT", "2", "sf.array_except", "j", returns="ARRAY"),
    *rows("ARRAYS_OVERLAP", "2", "sf.arrays_overlap", "j"),
    *rows("ARRAY_GENERATE_RANGE", "2-3", "sf.array_generate_range", "i", returns="ARRAY"),
    *rows("ARRAY_FLATTEN", "1", "sf.array_flatten", "j", returns="ARRAY"),
]

SCALARS: list[SqlFunction] = [
    *CONDITIONAL,
    *NUMBERS,
    *GENERATORS,
    *STRINGS,
    *BYTES,
    *CONVERSIONS,
    *CLOCK,
    *DATES,
    *VARIANTS,
]
