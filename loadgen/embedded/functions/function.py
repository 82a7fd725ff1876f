"""One function of Snowflake, and how a call of it becomes PostgreSQL's text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from loadgen.embedded import postgres_names as identifiers

Kind = Literal["scalar", "aggregate", "window", "table"]
Form = Callable[["FunctionCall"], str]

INTEGER = "numeric(38,0)"
FLOAT = "double precision"

# What a letter of `Function.takes` makes of an argument: a function that every type passes through, and the type of a
# bare NULL. The functions leave a value of the right type as it is, and the planner removes the call.
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
    "m": ("sf.as_moment", "timestamp"),  # text too
    "r": ("", "timestamp"),  # any date or time, but no text
    "d": ("sf.as_date", "date"),
    "w": ("sf.as_wall", "timestamp"),
    "-": ("", ""),
}


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a call: its text for PostgreSQL, and what the syntax tree says it is.

    The text is final. What has to be known of an argument is taken from `kind` and `value`, never from its text: a
    literal in it may contain any text.
    """

    text: str
    kind: Literal["", "text", "number", "null", "unit", "variant"] = ""  # a literal, a date unit, a sure VARIANT
    value: str = ""  # of a literal or a unit

    @classmethod
    def literal(cls, value: str) -> Argument:
        return cls(f"{identifiers.literal(value)}::text", "text", value)

    @classmethod
    def unit(cls, name: str) -> Argument:
        return cls(identifiers.literal(name), "unit", name)


def read(letter: str, argument: Argument) -> str:
    """The argument as the letter wants it."""
    reader, type_name = _READERS[letter]
    if argument.kind == "null" and type_name:
        return f"NULL::{type_name}"
    plain = (letter in "ts" and argument.kind == "text") or (letter in "ni" and argument.kind == "number")
    return argument.text if plain or not reader else f"{reader}({argument.text})"


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderItem:
    """One item of ORDER BY. Emitted text is never parsed again: a literal in it may contain any text."""

    value: str
    descending: bool = False
    nulls: Literal["", "FIRST", "LAST"] = ""

    @property
    def text(self) -> str:
        return f"{self.value}{' DESC' if self.descending else ''}{f' NULLS {self.nulls}' if self.nulls else ''}"


Order = tuple[OrderItem, ...]


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call whose arguments are emitted and read as the function takes them."""

    function: SqlFunction
    arguments: tuple[str, ...]
    raw: tuple[Argument, ...]  # the arguments as the user gave them
    distinct: bool = False
    order_by: Order = ()
    over: str | None = None  # what stands in the parentheses of OVER

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
    takes: str = ""  # one letter per argument (see _READERS), the last for all that follow; empty: as they come
    unit_arguments: tuple[int, ...] = ()  # where a bare word or a string names a date unit
    integer_arguments: tuple[int, ...] = ()  # where a native function wants an integer
    result: str = ""  # a type to cast the result to: integers keep no decimals, and the driver is told so
    returns: str = ""  # OBJECT or ARRAY, which PostgreSQL's jsonb does not tell apart
    variant: bool = False  # surely gives a VARIANT
    whole_frame: bool = False  # its window is the whole partition when no frame is written
    form: Form | None = None

    def emit(
        self, arguments: Sequence[Argument], *, distinct: bool = False, order_by: Order = (), over: str | None = None
    ) -> str:
        """The call as PostgreSQL's text.

        `order_by` is the list of WITHIN GROUP, `over` the inside of OVER's parentheses; both are part of the call
        because some calls become several.
        """
        taken = [read(self._letter(index), argument) for index, argument in enumerate(arguments)]
        if distinct:  # what is aggregated and what it is ordered by have to be the same expression
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
    """The entries of one function under all its names, or of several whose target `=` is their own name.

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

# Added to a DATE these keep it a DATE; the smaller ones make a timestamp of it.
DAY_UNITS = frozenset({"year", "quarter", "month", "week", "day"})


def normal_unit(text: str) -> str | None:
    """The full name of a date or time unit, in lower case; None when it is no unit."""
    return _UNITS.get(text.strip().lower())
