"""Entries of the allow-list of functions, and the translation of calls; aggregates, window and table functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from loadgen.embedded import postgres_names as identifiers
from loadgen.embedded.sql_errors import unsupported
from loadgen.values import dataclass

Kind = Literal["scalar", "aggregate", "window", "table"]
Form = Callable[["FunctionCall"], str]

INTEGER = "numeric(38,0)"
FLOAT = "double precision"

# Letters of `SqlFunction.takes`: the function that converts an argument of any type, and the type of a NULL literal.
# For arguments of the right type the functions return their argument, and PostgreSQL's planner removes the call.
_READERS = {
    "t": ("sf.cast_text", "text"),
    "s": ("sf.as_string", "text"),  # text, or bytes
    "x": ("sf.as_bytes", "bytea"),
    "n": ("sf.as_number", "numeric"),  # NUMBER, or FLOAT
    "i": ("sf.cast_number", "numeric"),
    "f": ("sf.cast_float", "double precision"),
    "b": ("sf.cast_boolean", "boolean"),
    "v": ("sf.cast_variant", "jsonb"),
    "j": ("", "jsonb"),  # VARIANT, OBJECT or ARRAY; no implicit conversion to one
    "m": ("sf.as_moment", "timestamp"),  # a date, a time or text
    "r": ("", "timestamp"),  # a date or a time
    "d": ("sf.as_date", "date"),
    "w": ("sf.as_wall", "timestamp"),
    "-": ("", ""),
}


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a call: its translated text, with kind and value from the syntax tree.

    The text is never parsed, because a literal in it may contain any text; `kind` and `value` describe the argument.
    """

    text: str
    kind: Literal["", "text", "number", "null", "unit", "variant"] = ""  # a literal, a date unit, a certain VARIANT
    value: str = ""  # of a literal or a unit

    @classmethod
    def literal(cls, value: str) -> Argument:
        return cls(f"{identifiers.literal(value)}::text", "text", value)

    @classmethod
    def unit(cls, name: str) -> Argument:
        return cls(identifiers.literal(name), "unit", name)


def read(letter: str, argument: Argument) -> str:
    """The argument, converted as `letter` requires."""
    reader, type_name = _READERS[letter]
    if argument.kind == "null" and type_name:
        return f"NULL::{type_name}"
    plain = (letter in "ts" and argument.kind == "text") or (letter in "ni" and argument.kind == "number")
    return argument.text if plain or not reader else f"{reader}({argument.text})"


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderItem:
    """One item of ORDER BY; its text is never parsed, because a literal in it may contain any text."""

    value: str
    descending: bool = False
    nulls: Literal["", "FIRST", "LAST"] = ""

    @property
    def text(self) -> str:
        return f"{self.value}{' DESC' if self.descending else ''}{f' NULLS {self.nulls}' if self.nulls else ''}"


Order = tuple[OrderItem, ...]


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call with converted arguments."""

    function: SqlFunction
    arguments: tuple[str, ...]
    raw: tuple[Argument, ...]  # the arguments without conversion
    distinct: bool = False
    order_by: Order = ()
    over: str | None = None  # the text in the parentheses of OVER

    def part(self, name: str, *arguments: str, where: str = "") -> str:
        """One aggregate or window function with the DISTINCT, ORDER BY and OVER of this call."""
        inside = ("DISTINCT " if self.distinct else "") + ", ".join(arguments)
        inside += f" ORDER BY {', '.join(item.text for item in self.order_by)}" if self.order_by else ""
        text = f"{name}({inside})" + (f" FILTER (WHERE {where})" if where else "")
        return text if self.over is None else f"({text} OVER ({self.over}))"


@dataclass(frozen=True, slots=True)
class SqlFunction:
    """An entry of the allow-list."""

    name: str
    least: int
    most: int | None  # None: any number
    target: str = ""  # PostgreSQL's name; empty when `form` writes the call
    kind: Kind = "scalar"
    takes: str = ""  # one letter per argument (see _READERS), the last for all others; empty: no conversion
    unit_arguments: tuple[int, ...] = ()  # arguments that are names of date units
    integer_arguments: tuple[int, ...] = ()  # arguments that PostgreSQL requires as integers
    result: str = ""  # type of a cast of the result
    returns: str = ""  # OBJECT or ARRAY, which are both jsonb in PostgreSQL
    variant: bool = False  # always returns a VARIANT
    whole_frame: bool = False  # the default window frame is the whole partition
    form: Form | None = None

    def emit(
        self, arguments: Sequence[Argument], *, distinct: bool = False, order_by: Order = (), over: str | None = None
    ) -> str:
        """The call as PostgreSQL's text.

        `order_by` is the list of WITHIN GROUP, `over` the text in OVER's parentheses. They are passed on because some
        functions are translated to several calls.
        """
        taken = [read(self._letter(index), argument) for index, argument in enumerate(arguments)]
        if distinct:  # with DISTINCT, the order has to use the same expression as the argument
            used = {argument.text: text for argument, text in zip(arguments, taken, strict=True)}
            order_by = tuple(replace(item, value=used.get(item.value, item.value)) for item in order_by)
        call = FunctionCall(self, tuple(taken), tuple(arguments), distinct, order_by, over)
        text = self.form(call) if self.form is not None else call.part(self.target, *taken)
        return f"({text})::{self.result}" if self.result else text

    def _letter(self, index: int) -> str:
        if not self.takes or index in self.unit_arguments:
            return "-"
        return self.takes[min(index, len(self.takes) - 1)]


def rows(
    names: str,
    arity: str,
    target: str | Form,
    takes: str = "",
    *,
    kind: Kind = "scalar",
    units: tuple[int, ...] = (),
    integers: tuple[int, ...] = (),
    result: str = "",
    returns: str = "",
    variant: bool = False,
    whole_frame: bool = False,
) -> list[SqlFunction]:
    """The entries of a function with several names, or of several functions whose target `=` is their own name.

    Arity is `2`, `1-3`, or `1-` for no limit.
    """
    least, dash, most = arity.partition("-")
    limit = (int(most) if most else None) if dash else int(least)
    return [
        SqlFunction(
            name=name,
            least=int(least),
            most=limit,
            target=name.lower() if target == "=" else target if isinstance(target, str) else "",
            kind=kind,
            takes=takes,
            unit_arguments=units,
            integer_arguments=integers,
            result=result,
            returns=returns,
            variant=variant,
            whole_frame=whole_frame,
            form=None if isinstance(target, str) else target,
        )
        for name in names.split()
    ]


_SPELLINGS = {
    "year": "y yy yyy yyyy yr years yrs",
    "quarter": "q qtr qtrs quarters",
    "month": "mm mon mons months",
    "week": "w wk weekofyear woy wy weeks",
    "weekiso": "week_iso weekofyeariso weekofyear_iso",
    "day": "d dd days dayofmonth",
    "dayofweek": "weekday dow dw",
    "dayofweekiso": "weekday_iso dow_iso dw_iso dayofweek_iso",
    "dayofyear": "yearday doy dy",
    "yearofweek": "",
    "yearofweekiso": "",
    "hour": "h hh hr hours hrs",
    "minute": "m mi min minutes mins",
    "second": "s sec seconds secs",
    "millisecond": "ms msec milliseconds",
    "microsecond": "us usec microseconds",
    "nanosecond": "ns nsec nanosec nsecond nanoseconds nanosecs nseconds",
    "epoch_second": "epoch epoch_seconds",
    "epoch_millisecond": "epoch_milliseconds",
    "epoch_microsecond": "epoch_microseconds",
    "epoch_nanosecond": "epoch_nanoseconds",
    "timezone_hour": "tzh",
    "timezone_minute": "tzm",
}
_UNITS = {word: unit for unit, words in _SPELLINGS.items() for word in (unit, *words.split())}

# A DATE plus one of these units is a DATE; with smaller units it is a timestamp.
DAY_UNITS = frozenset({"year", "quarter", "month", "week", "day"})


def normal_unit(text: str) -> str | None:
    """The full name of a date or time unit, in lower case; None for other texts."""
    return _UNITS.get(text.strip().lower())


# --- aggregates, window functions and table functions ----------------------------------------------------------------


def _count(call: FunctionCall) -> str:
    """COUNT(a, b) counts the rows in which no argument is NULL."""
    if call.order_by:
        raise unsupported(f"{call.function.name} with WITHIN GROUP")
    if len(call.arguments) == 1:
        return call.part("count", *call.arguments)
    present = " AND ".join(f"{argument} IS NOT NULL" for argument in call.arguments)
    inside = f"({', '.join(call.arguments)})" if call.distinct else "*"
    return call.part("count", inside, where=present)


def _count_distinct(call: FunctionCall) -> str:
    return _count(FunctionCall(call.function, call.arguments, call.raw, True, call.order_by, call.over))


def _count_if(call: FunctionCall) -> str:
    return call.part("count", f"CASE WHEN {call.arguments[0]} THEN 1 END")


def _average(call: FunctionCall) -> str:
    return f"sf.average({call.part('sum', *call.arguments)}, {call.part('count', *call.arguments)})"


def _variance(name: str) -> Form:
    return lambda call: f"sf.variance({call.part(name, *call.arguments)}, {call.part('sum', *call.arguments)})"


def _collected(name: str) -> Form:
    """A function over the array of all values of the group."""
    return lambda call: f"{name}({call.part('array_agg', call.arguments[0])})"


def _median(call: FunctionCall) -> str:
    return f"sf.percentile_cont({call.part('array_agg', *call.arguments)}, 0.5)"


def _percentile(name: str) -> Form:
    """PERCENTILE_x(fraction) WITHIN GROUP (ORDER BY value [DESC]), also as a window function."""

    def form(call: FunctionCall) -> str:
        if len(call.order_by) != 1:
            raise unsupported(f"{call.function.name} without one value to order by")
        (item,) = call.order_by
        inner = FunctionCall(call.function, (), (), call.distinct, (), call.over)
        values = inner.part("array_agg", f"sf.as_number({item.value})")
        return f"{name}({values}, {call.arguments[0]}, {str(item.descending).lower()})"

    return form


def _approx_percentile(call: FunctionCall) -> str:
    value, fraction = call.arguments
    return f"sf.percentile_cont({call.part('array_agg', f'sf.cast_float({value})')}, {fraction})"


def _listagg(call: FunctionCall) -> str:
    value, *delimiter = call.arguments
    return f"coalesce({call.part('string_agg', value, *(delimiter or [repr('')]))}, '')"


def _array_agg(call: FunctionCall) -> str:
    return f"coalesce({call.part('jsonb_agg_strict', *call.arguments)}, '[]'::jsonb)"


def _array_unique_agg(call: FunctionCall) -> str:
    return _array_agg(FunctionCall(call.function, call.arguments, call.raw, True, call.order_by, call.over))


def _object_agg(call: FunctionCall) -> str:
    text = call.part("jsonb_object_agg_unique_strict", *call.arguments, where=f"{call.arguments[0]} IS NOT NULL")
    return f"coalesce({text}, '{{}}'::jsonb)"


def _extreme_by(*, descending: bool) -> Form:
    """MIN_BY(value, key[, n]): the value of the row with the lowest key, or an array of the first n values."""

    def form(call: FunctionCall) -> str:
        value, key, *count = call.arguments
        ordered = FunctionCall(
            call.function, (), (), call.distinct, (OrderItem(value=key, descending=descending),), call.over
        )
        found = ordered.part("array_agg", value, where=f"{key} IS NOT NULL")
        return f"to_jsonb(({found})[1:{count[0]}::integer])" if count else f"({found})[1]"

    return form


def _hash_agg(call: FunctionCall) -> str:
    columns = ", ".join(argument.text for argument in call.raw)
    return f"sf.wrapped(coalesce({call.part('sum', f'hash_record_extended(ROW({columns}), 0)')}, 0))"


def _boolxor(call: FunctionCall) -> str:
    return f"({call.part('count', f'CASE WHEN {call.arguments[0]} THEN 1 END')} = 1)"


def _bits(name: str) -> Form:
    return lambda call: call.part(name, f"({call.arguments[0]})::bigint")


def _ratio(call: FunctionCall) -> str:
    return f"sf.div({call.arguments[0]}, nullif({call.part('sum', *call.arguments)}, 0))"


def _grouping(call: FunctionCall) -> str:
    if call.distinct or call.order_by or call.over is not None:
        raise unsupported(f"{call.function.name} with DISTINCT, WITHIN GROUP or OVER")
    return call.part("grouping", *call.arguments)


AGGREGATES: list[SqlFunction] = [
    *rows("COUNT", "1-", _count, kind="aggregate", result=INTEGER),
    *rows("COUNT_IF", "1", _count_if, kind="aggregate", result=INTEGER),
    *rows("APPROX_COUNT_DISTINCT HLL", "1-", _count_distinct, kind="aggregate", result=INTEGER),
    *rows("SUM", "1", "sum", "n", kind="aggregate"),
    *rows("AVG", "1", _average, "n", kind="aggregate"),
    *rows("MIN", "1", "sf.min", kind="aggregate"),
    *rows("MAX", "1", "sf.max", kind="aggregate"),
    *rows("ANY_VALUE", "1", "any_value", kind="aggregate"),
    *rows("MEDIAN", "1", _median, "n", kind="aggregate"),
    *rows("MODE", "1", _collected("sf.mode"), kind="aggregate"),
    *rows("PERCENTILE_CONT", "1", _percentile("sf.percentile_cont"), "i", kind="aggregate"),
    *rows("PERCENTILE_DISC", "1", _percentile("sf.percentile_disc"), "i", kind="aggregate"),
    *rows("APPROX_PERCENTILE", "2", _approx_percentile, "fi", kind="aggregate"),
    *rows("STDDEV STDDEV_SAMP", "1", "stddev_samp", "n", kind="aggregate", result=FLOAT),
    *rows("STDDEV_POP", "1", "stddev_pop", "n", kind="aggregate", result=FLOAT),
    *rows("VARIANCE VARIANCE_SAMP VAR_SAMP", "1", _variance("var_samp"), "n", kind="aggregate"),
    *rows("VARIANCE_POP VAR_POP", "1", _variance("var_pop"), "n", kind="aggregate"),
    *rows("SKEW", "1", _collected("sf.skew"), "f", kind="aggregate"),
    *rows("KURTOSIS", "1", _collected("sf.kurtosis"), "f", kind="aggregate"),
    *rows("CORR COVAR_POP COVAR_SAMP", "2", "=", "f", kind="aggregate"),
    *rows("REGR_AVGX REGR_AVGY REGR_INTERCEPT REGR_R2 REGR_SLOPE", "2", "=", "f", kind="aggregate"),
    *rows("REGR_SXX REGR_SXY REGR_SYY", "2", "=", "f", kind="aggregate"),
    *rows("REGR_COUNT", "2", "regr_count", "f", kind="aggregate", result=INTEGER),
    *rows("LISTAGG", "1-2", _listagg, "t", kind="aggregate"),
    *rows("ARRAY_AGG ARRAYAGG", "1", _array_agg, "v", kind="aggregate", returns="ARRAY"),
    *rows("ARRAY_UNIQUE_AGG", "1", _array_unique_agg, "v", kind="aggregate", returns="ARRAY"),
    *rows("OBJECT_AGG", "2", _object_agg, "tv", kind="aggregate", returns="OBJECT"),
    *rows("MIN_BY", "2-3", _extreme_by(descending=False), kind="aggregate"),
    *rows("MAX_BY", "2-3", _extreme_by(descending=True), kind="aggregate"),
    *rows("HASH_AGG", "1-", _hash_agg, kind="aggregate", result=INTEGER),
    *rows("BOOLAND_AGG", "1", "bool_and", "b", kind="aggregate"),
    *rows("BOOLOR_AGG", "1", "bool_or", "b", kind="aggregate"),
    *rows("BOOLXOR_AGG", "1", _boolxor, "b", kind="aggregate"),
    *rows("BITAND_AGG BIT_AND_AGG", "1", _bits("bit_and"), "i", kind="aggregate", result=INTEGER),
    *rows("BITOR_AGG BIT_OR_AGG", "1", _bits("bit_or"), "i", kind="aggregate", result=INTEGER),
    *rows("BITXOR_AGG BIT_XOR_AGG", "1", _bits("bit_xor"), "i", kind="aggregate", result=INTEGER),
    *rows("GROUPING GROUPING_ID", "1-", _grouping, kind="aggregate", result=INTEGER),
]

WINDOWS: list[SqlFunction] = [
    *rows("ROW_NUMBER", "0", "row_number", kind="window", result=INTEGER),
    *rows("RANK", "0", "rank", kind="window", result=INTEGER),
    *rows("DENSE_RANK", "0", "dense_rank", kind="window", result=INTEGER),
    *rows("PERCENT_RANK", "0", "percent_rank", kind="window"),
    *rows("CUME_DIST", "0", "cume_dist", kind="window"),
    *rows("NTILE", "1", "ntile", kind="window", integers=(0,), result=INTEGER),
    *rows("LAG", "1-3", "lag", kind="window", integers=(1,)),
    *rows("LEAD", "1-3", "lead", kind="window", integers=(1,)),
    *rows("FIRST_VALUE", "1", "first_value", kind="window", whole_frame=True),
    *rows("LAST_VALUE", "1", "last_value", kind="window", whole_frame=True),
    *rows("NTH_VALUE", "2", "nth_value", kind="window", integers=(1,), whole_frame=True),
    *rows("RATIO_TO_REPORT", "1", _ratio, "n", kind="window"),
    *rows("CONDITIONAL_TRUE_EVENT", "1", _count_if, kind="window", result=INTEGER),
]

TABLES: list[SqlFunction] = [
    *rows("FLATTEN", "1-5", "sf.flatten", kind="table"),
    *rows("GENERATOR", "0-2", "", kind="table"),
]
