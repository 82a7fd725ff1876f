"""Results of statements in the form of the protocol, Snowflake's data types, and limits of the memory of results."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from loadgen.embedded.sql_errors import SqlError, compilation, unsupported
from loadgen.values import dataclass

# --- data types: their declaration, PostgreSQL type, description for drivers, and text form --------------------------

TEXT_LENGTH_DEFAULT = 16_777_216
TEXT_LENGTH_MAX = 134_217_728
BINARY_LENGTH_DEFAULT = 8_388_608
TIME_SCALE_DEFAULT = 9
TIME_SCALE_STORED = 6  # PostgreSQL stores microseconds
EPOCH_2000_DAYS = 10_957
EPOCH_2000_US = EPOCH_2000_DAYS * 86_400 * 1_000_000


def is_number(text: str) -> bool:
    """Whether a text is a whole number of at most 18 digits."""
    return text.isascii() and text.isdecimal() and len(text) <= 18


@dataclass(frozen=True, slots=True)
class SnowflakeType:
    """A data type; `kind` is its name in the protocol, in upper case."""

    kind: str
    precision: int | None = None
    scale: int | None = None
    length: int | None = None

    @property
    def postgres(self) -> str:
        """The PostgreSQL type of columns."""
        match self.kind:
            case "FIXED":
                return f"numeric({self.precision},{self.scale})"
            case "TEXT" if self.length and self.length < 10_485_760:  # PostgreSQL's own limit of varchar(n)
                return f"character varying({self.length})"
            case "TIMESTAMP_TZ" if self.scale is not None and self.scale <= TIME_SCALE_STORED:
                return f"sf.timestamp_tz_{self.scale}"  # a domain with the scale
            case "TIME" | "TIMESTAMP_NTZ" | "TIMESTAMP_LTZ":
                name = {"TIME": "time", "TIMESTAMP_NTZ": "timestamp", "TIMESTAMP_LTZ": "timestamptz"}[self.kind]
                scale = TIME_SCALE_DEFAULT if self.scale is None else self.scale
                return f"{name}({scale})" if scale <= TIME_SCALE_STORED else name
        return POSTGRES_TYPES[self.kind]

    @property
    def sql(self) -> str:
        """The type in SHOW and DESCRIBE."""
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
UNSUPPORTED_TYPES = {"GEOGRAPHY", "GEOMETRY", "VECTOR", "MAP", "FILE", "DECFLOAT", "UUID", "INTERVAL"}


def declared(name: str, arguments: Sequence[int]) -> SnowflakeType:
    """The type of a declaration `NAME(arguments)`. Raises Snowflake's error for an unknown type."""
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
    if name in UNSUPPORTED_TYPES:
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
    if found is None:
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
    """Microseconds as seconds with nine decimals, the form of the protocol."""
    sign = "-" if microseconds < 0 else ""
    whole, fraction = divmod(abs(microseconds), 1_000_000)
    return f"{sign}{whole}.{fraction:06d}000"


def shortener(scale: int) -> Callable[[str], str]:
    """A function that truncates nine decimals to the column's scale; drivers require the exact number of decimals."""
    cut = 9 - scale + (1 if scale == 0 else 0)
    return lambda text: text[:-cut]


def padded(scale: int) -> Callable[[str], str]:
    """A function that appends zeros to a number up to `scale` decimals."""

    def pad(text: str) -> str:
        whole, _, fraction = text.partition(".")
        return f"{whole}.{fraction:0<{scale}}" if len(fraction) < scale else text

    return pad


MIB = 1 << 20
RESULT_BYTES_MAX = 128 * MIB
CELLS_MAX = 2_000_000
RESULTS_BYTES_MAX = 256 * MIB
UNCOUNTED_BYTES = MIB
OVERSHOOT_BYTES = 16 * MIB
TOO_LARGE = 200011

Reject = Callable[[SqlError], None]


def result_too_large() -> SqlError:
    limits = f"{RESULT_BYTES_MAX // MIB} MiB or {CELLS_MAX:,} values"
    return SqlError(
        TOO_LARGE, "54000", f"Result is too large: it has more than {limits}. Select fewer rows or columns."
    )


def results_too_large() -> SqlError:
    text = f"Result is too large: the results of all sessions together have more than {RESULTS_BYTES_MAX // MIB} MiB."
    return SqlError(TOO_LARGE, "54000", f"{text} Repeat the statement when others have ended.")


def rows_max(columns: int) -> int:
    return CELLS_MAX // max(1, columns)


class ResultMemory:
    """The memory of all results, in bytes."""

    def __init__(self) -> None:
        self.used = 0
        self.lock = threading.RLock()  # reentrant: a charge may be garbage-collected while another one is added


class Charge:
    """The memory of one result. It is released with the last reference to the result."""

    __slots__ = ("_memory", "size")

    def __init__(self, memory: ResultMemory) -> None:
        self._memory = memory
        self.size = 0

    def add(self, size: int) -> bool:
        """False if the limit would be exceeded; then nothing is added."""
        with self._memory.lock:
            if self._memory.used + size > RESULTS_BYTES_MAX:
                return False
            self._memory.used += size
            self.size += size
        return True

    def release(self) -> None:
        with self._memory.lock:
            self._memory.used -= self.size
            self.size = 0

    def __del__(self) -> None:
        self.release()


class ResultSize:
    """The memory of formatted semi-structured values, in addition to the data from PostgreSQL."""

    def __init__(self, memory: ResultMemory, charge: Charge | None) -> None:
        self.charge = charge
        self._memory = memory
        self._characters = self._values = 0

    def add(self, characters: int, values: int) -> None:
        """Raises SqlError if a limit is exceeded."""
        self._characters += characters
        self._values += values
        if self._characters > RESULT_BYTES_MAX or self._values > CELLS_MAX:
            raise result_too_large()
        if self._characters > UNCOUNTED_BYTES:
            self.charge = self.charge or Charge(self._memory)
            if not self.charge.add(characters):
                raise results_too_large()


class ResultMemoryMeter(asyncio.Protocol):
    """Counts the bytes of results on one PostgreSQL connection."""

    def __init__(self, transport: asyncio.Transport, memory: ResultMemory) -> None:
        self._transport = transport
        self._memory = memory
        self._received = 0
        self._charge: Charge | None = None
        self._reject: Reject | None = None  # of the running statement
        inner = transport.get_protocol()
        assert isinstance(inner, asyncio.Protocol)
        self._deliver = inner.data_received
        # Other events are passed to the driver.
        self.connection_lost = inner.connection_lost  # type: ignore[method-assign]
        self.eof_received = inner.eof_received  # type: ignore[method-assign]
        self.pause_writing = inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]
        transport.set_protocol(self)

    def begin(self, reject: Reject) -> None:
        """Start the count of a statement. `reject` cancels the statement, and is called at most once."""
        self._received = 0
        self._reject = reject

    def end(self, *, failed: bool = False) -> Charge | None:
        """End the count; returns the memory of the result, None for a small one, which is not counted."""
        charge, self._charge, self._reject = self._charge, None, None
        self._received = 0  # data between two statements does not count
        if charge is not None and failed:
            charge.release()
        return charge

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if self._received > UNCOUNTED_BYTES:
            self._count(len(data))
        self._deliver(data)

    def _count(self, size: int) -> None:
        if self._charge is None:
            self._charge = Charge(self._memory)
        if self._received > RESULT_BYTES_MAX + OVERSHOOT_BYTES:
            self._transport.abort()
        full = not self._charge.add(size)
        if self._reject is not None and (full or self._received > RESULT_BYTES_MAX):
            reject, self._reject = self._reject, None
            reject(results_too_large() if full else result_too_large())


Row = Sequence[str | None]
KEPT_MAX = 500
KEPT_ROWS_MAX = 1_000
KEPT_CHARACTERS_MAX = 64 * 1024 * 1024  # of all results together


@dataclass(slots=True)
class StatementResult:
    rowtype: orjson.Fragment
    rows: Sequence[Row]
    statement_type: int
    count: int  # rows returned, or changed
    parameters_changed: bool = False
    array_bind_supported: bool = True
    charge: Charge | None = None  # memory of a large result


_KINDS = {"number": NUMBER, "time": TIMESTAMP_LTZ, "": TEXT}


def columns(names: str) -> list[tuple[str, SnowflakeType]]:
    """Columns from a list such as `created_on:time, name, rows:number`; text is the default type."""
    parts = [name.strip().partition(":") for name in names.split(",")]
    return [(name, _KINDS[kind]) for name, _, kind in parts]


def table(columns: Sequence[tuple[str, SnowflakeType]], rows: Sequence[Row], statement_type: int) -> StatementResult:
    rowtype = orjson.Fragment(orjson.dumps([kind.rowtype(name) for name, kind in columns]))
    return StatementResult(rowtype, rows, statement_type, len(rows))


_STATUS = orjson.Fragment(orjson.dumps([TEXT.rowtype("status")]))


def status(message: str, statement_type: int = 0x6000) -> StatementResult:
    """The one-row answer of a command."""
    return StatementResult(_STATUS, [[message]], statement_type, 1)


class ResultCache:
    """The newest results, for fetching by query id. Only the user who ran a statement can fetch its result."""

    def __init__(self) -> None:
        self._results: OrderedDict[str, tuple[str, StatementResult, int]] = OrderedDict()
        self._characters = 0

    def keep(self, query_id: str, user: str, result: StatementResult) -> None:
        if len(result.rows) > KEPT_ROWS_MAX:
            return
        length = sum(len(value) for row in result.rows for value in row if isinstance(value, str))
        if length > KEPT_CHARACTERS_MAX:
            return
        self._results[query_id] = (user, result, length)
        self._characters += length
        while len(self._results) > KEPT_MAX or self._characters > KEPT_CHARACTERS_MAX:
            self._characters -= self._results.popitem(last=False)[1][2]

    def get(self, query_id: str, user: str) -> StatementResult:
        owner, found, _ = self._results.get(query_id, ("", None, 0))
        if found is None or owner != user:
            raise SqlError(709, "02000", f"Statement {query_id[:60]} not found")
        return found


def text_of(value: Any) -> str | None:
    """A Python value as the text of a text column."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
