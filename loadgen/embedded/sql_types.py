"""Snowflake's data types: how they are declared, stored in PostgreSQL, described to a driver and written as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.embedded.sql_errors import compilation, unsupported

TEXT_LENGTH_DEFAULT = 16_777_216
TEXT_LENGTH_MAX = 134_217_728
BINARY_LENGTH_DEFAULT = 8_388_608
TIME_SCALE_DEFAULT = 9
TIME_SCALE_STORED = 6  # PostgreSQL keeps microseconds; finer fractions are not stored
EPOCH_2000_DAYS = 10_957
EPOCH_2000_US = EPOCH_2000_DAYS * 86_400 * 1_000_000


def is_number(text: str) -> bool:
    """Whether a text is a whole number of limited length."""
    return text.isascii() and text.isdecimal() and len(text) <= 18


@dataclass(frozen=True, slots=True)
class SnowflakeType:
    """One data type; `kind` is the name the wire protocol uses, in upper case."""

    kind: str
    precision: int | None = None
    scale: int | None = None
    length: int | None = None

    @property
    def postgres(self) -> str:
        """The column type that stores it."""
        match self.kind:
            case "FIXED":
                return f"numeric({self.precision},{self.scale})"
            case "TEXT" if self.length and self.length < 10_485_760:  # PostgreSQL's own limit of varchar(n)
                return f"character varying({self.length})"
            case "TIMESTAMP_TZ" if self.scale is not None and self.scale <= TIME_SCALE_STORED:
                return f"sf.timestamp_tz_{self.scale}"  # a domain that says the scale
            case "TIME" | "TIMESTAMP_NTZ" | "TIMESTAMP_LTZ":
                name = {"TIME": "time", "TIMESTAMP_NTZ": "timestamp", "TIMESTAMP_LTZ": "timestamptz"}[self.kind]
                scale = TIME_SCALE_DEFAULT if self.scale is None else self.scale
                return f"{name}({scale})" if scale <= TIME_SCALE_STORED else name
        return POSTGRES_TYPES[self.kind]

    @property
    def sql(self) -> str:
        """The type as SHOW and DESCRIBE print it."""
        match self.kind:
            case "FIXED":
                return f"NUMBER({self.precision},{self.scale})"
            case "TEXT":
                return f"VARCHAR({self.length or TEXT_LENGTH_DEFAULT})"
            case "BINARY":
                return f"BINARY({self.length or BINARY_LENGTH_DEFAULT})"
            case "REAL":
                return "FLOAT"
            case "TIME" | "TIMESTAMP_NTZ" | "TIMESTAMP_LTZ" | "TIMESTAMP_TZ":
                return f"{self.kind}({self.scale})"
        return self.kind

    def rowtype(self, name: str, nullable: bool = True) -> dict[str, Any]:
        """The column's entry in a result's `rowtype`."""
        length = self.length
        if length is None and self.kind in ("TEXT", "BINARY"):
            length = TEXT_LENGTH_DEFAULT if self.kind == "TEXT" else BINARY_LENGTH_DEFAULT
        return {
            "name": name,
            "database": "",
            "schema": "",
            "table": "",
            "nullable": nullable,
            "type": self.kind.lower(),
            "byteLength": length if length is None or self.kind == "BINARY" else min(length * 4, TEXT_LENGTH_MAX),
            "length": length,
            "scale": self.scale,
            "precision": self.precision,
            "collation": None,
        }


POSTGRES_TYPES = {
    "FIXED": "numeric",
    "REAL": "double precision",
    "TEXT": "text",
    "BINARY": "bytea",
    "BOOLEAN": "boolean",
    "DATE": "date",
    "TIME": "time",
    "TIMESTAMP_NTZ": "timestamp",
    "TIMESTAMP_LTZ": "timestamptz",
    "TIMESTAMP_TZ": "sf.timestamp_tz",
    "VARIANT": "sf.variant",
    "OBJECT": "sf.object",
    "ARRAY": 'sf."array"',
}

NUMBER = SnowflakeType("FIXED", precision=38, scale=0)
TEXT = SnowflakeType("TEXT", length=TEXT_LENGTH_DEFAULT)
BOOLEAN = SnowflakeType("BOOLEAN")
REAL = SnowflakeType("REAL")
SEMI_STRUCTURED = ("VARIANT", "OBJECT", "ARRAY")
TIMESTAMP_LTZ = SnowflakeType("TIMESTAMP_LTZ", scale=9)
TIMESTAMP_NTZ = SnowflakeType("TIMESTAMP_NTZ", scale=9)

_NUMBERS = {"NUMBER", "DECIMAL", "DEC", "NUMERIC"}
_INTEGERS = {"INT", "INTEGER", "BIGINT", "SMALLINT", "TINYINT", "BYTEINT"}
_FLOATS = {"FLOAT", "FLOAT4", "FLOAT8", "DOUBLE", "DOUBLE PRECISION", "REAL"}
_STRINGS = {"VARCHAR", "STRING", "TEXT", "NVARCHAR", "NVARCHAR2", "CHAR VARYING", "NCHAR VARYING"}
_CHARS = {"CHAR", "CHARACTER", "NCHAR"}
_BINARIES = {"BINARY", "VARBINARY"}
_TIMES = {
    "TIME": "TIME",
    "DATETIME": "TIMESTAMP_NTZ",
    "TIMESTAMP": "TIMESTAMP_NTZ",
    "TIMESTAMP_NTZ": "TIMESTAMP_NTZ",
    "TIMESTAMPNTZ": "TIMESTAMP_NTZ",
    "TIMESTAMP WITHOUT TIME ZONE": "TIMESTAMP_NTZ",
    "TIMESTAMP_LTZ": "TIMESTAMP_LTZ",
    "TIMESTAMPLTZ": "TIMESTAMP_LTZ",
    "TIMESTAMP WITH LOCAL TIME ZONE": "TIMESTAMP_LTZ",
    "TIMESTAMP_TZ": "TIMESTAMP_TZ",
    "TIMESTAMPTZ": "TIMESTAMP_TZ",
    "TIMESTAMP WITH TIME ZONE": "TIMESTAMP_TZ",
}
_PLAIN = {"BOOLEAN": "BOOLEAN", "DATE": "DATE", "VARIANT": "VARIANT", "OBJECT": "OBJECT", "ARRAY": "ARRAY"}
REFUSED = {"GEOGRAPHY", "GEOMETRY", "VECTOR", "MAP", "FILE", "DECFLOAT", "UUID", "INTERVAL"}


def declared(name: str, arguments: Sequence[int]) -> SnowflakeType:
    """The type that `NAME(arguments)` declares; raises Snowflake's error for an unknown one."""
    name = name.upper()
    if name in _NUMBERS:
        return _number(arguments)
    if name in _STRINGS or name in _CHARS:
        length = arguments[0] if arguments else (1 if name in _CHARS else TEXT_LENGTH_DEFAULT)
        return SnowflakeType("TEXT", length=_bounded(length, 1, TEXT_LENGTH_MAX, name))
    if name in _BINARIES:
        return SnowflakeType(
            "BINARY", length=_bounded(arguments[0] if arguments else BINARY_LENGTH_DEFAULT, 1, 2**26, name)
        )
    if name in _TIMES:
        scale = arguments[0] if arguments else TIME_SCALE_DEFAULT
        return SnowflakeType(_TIMES[name], scale=_bounded(scale, 0, 9, name), precision=0)
    if name in REFUSED:
        raise unsupported(name)
    kind = "FIXED" if name in _INTEGERS else "REAL" if name in _FLOATS else _PLAIN.get(name)
    if kind is None or arguments:
        raise compilation(2040, "22000", f"Unsupported data type '{name}'.")
    return NUMBER if kind == "FIXED" else SnowflakeType(kind)


def _number(arguments: Sequence[int]) -> SnowflakeType:
    precision = arguments[0] if arguments else 38
    scale = arguments[1] if len(arguments) > 1 else 0
    _bounded(precision, 1, 38, "NUMBER")
    if not 0 <= scale <= min(37, precision):
        raise compilation(2041, "22000", f"Invalid scale: {scale}. Must be between 0 and {min(37, precision)}.")
    return SnowflakeType("FIXED", precision=precision, scale=scale)


def _bounded(value: int, low: int, high: int, name: str) -> int:
    if not low <= value <= high:
        raise compilation(1003, "42000", f"syntax error: {name}({value}) is out of range {low} to {high}.")
    return value


def described(typname: str, typmod: int) -> SnowflakeType:
    """The Snowflake type of a result column, from PostgreSQL's type name and modifier."""
    if typname == "numeric":
        if typmod < 4:
            return NUMBER
        scale = (typmod - 4) & 0x7FF
        return SnowflakeType(
            "FIXED", precision=((typmod - 4) >> 16) & 0xFFFF, scale=scale - 2048 if scale > 1023 else scale
        )
    if typname in ("varchar", "bpchar"):
        return SnowflakeType("TEXT", length=typmod - 4 if typmod >= 4 else TEXT_LENGTH_DEFAULT)
    if typname in _TIME_NAMES:
        return SnowflakeType(_TIME_NAMES[typname], scale=typmod if typmod >= 0 else 9, precision=0)
    if typname.startswith("timestamp_tz_"):
        return SnowflakeType("TIMESTAMP_TZ", scale=int(typname[-1]), precision=0)
    found = _DESCRIBED.get(typname)
    if found is None:  # other types of PostgreSQL are not returned
        raise unsupported("a result of this type")
    return found


_TIME_NAMES = {"time": "TIME", "timestamp": "TIMESTAMP_NTZ", "timestamptz": "TIMESTAMP_LTZ"}
_DESCRIBED = {
    "text": TEXT,
    "unknown": TEXT,
    "name": TEXT,
    "int2": NUMBER,
    "int4": NUMBER,
    "int8": SnowflakeType("FIXED", precision=18, scale=0),
    "float4": REAL,
    "float8": REAL,
    "bool": BOOLEAN,
    "bytea": SnowflakeType("BINARY", length=BINARY_LENGTH_DEFAULT),
    "date": SnowflakeType("DATE"),
    "timestamp_tz": SnowflakeType("TIMESTAMP_TZ", scale=9, precision=0),
    "jsonb": SnowflakeType("VARIANT"),
    "variant": SnowflakeType("VARIANT"),
    "object": SnowflakeType("OBJECT"),
    "array": SnowflakeType("ARRAY"),
}


def seconds_text(microseconds: int) -> str:
    """Microseconds as the wire's seconds with nine decimals."""
    sign = "-" if microseconds < 0 else ""
    whole, fraction = divmod(abs(microseconds), 1_000_000)
    return f"{sign}{whole}.{fraction:06d}000"


def shortener(scale: int) -> Callable[[str], str]:
    """Cuts the nine decimals of a time down to the column's scale; drivers require the exact number."""
    cut = 9 - scale + (1 if scale == 0 else 0)
    return lambda text: text[:-cut]


def padded(scale: int) -> Callable[[str], str]:
    """Gives a number exactly `scale` decimals."""

    def pad(text: str) -> str:
        whole, _, fraction = text.partition(".")
        return f"{whole}.{fraction:0<{scale}}" if len(fraction) < scale else text

    return pad
