"""A statement's result: columns and rows in the protocol's form, and the memory that results may take."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from loadgen.embedded.sql_errors import SqlError
from loadgen.embedded.sql_types import NUMBER, TEXT, TIMESTAMP_LTZ, SnowflakeType

MIB = 1 << 20
RESULT_BYTES_MAX = 128 * MIB
CELLS_MAX = 2_000_000
RESULTS_BYTES_MAX = 256 * MIB
UNCOUNTED_BYTES = MIB
OVERSHOOT_BYTES = 16 * MIB
TOO_LARGE = 200011

Refuse = Callable[[SqlError], None]


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
    """Memory of all results."""

    def __init__(self) -> None:
        self.used = 0
        self.lock = threading.RLock()  # a charge may be garbage-collected while another is added


class Charge:
    """Memory of one result. It is returned when the last reference to the result is gone."""

    __slots__ = ("_memory", "size")

    def __init__(self, memory: ResultMemory) -> None:
        self._memory = memory
        self.size = 0

    def add(self, size: int) -> bool:
        """False: no memory is left, and nothing was added."""
        with self._memory.lock:
            if self._memory.used + size > RESULTS_BYTES_MAX:
                return False
            self._memory.used += size
            self.size += size
        return True

    def give_back(self) -> None:
        with self._memory.lock:
            self._memory.used -= self.size
            self.size = 0

    def __del__(self) -> None:
        self.give_back()


class ResultSize:
    """Memory of formatted semi-structured values, in addition to what PostgreSQL sent."""

    def __init__(self, memory: ResultMemory, charge: Charge | None) -> None:
        self.charge = charge
        self._memory = memory
        self._characters = self._values = 0

    def add(self, characters: int, values: int) -> None:
        """Raises SqlError when that is too much."""
        self._characters += characters
        self._values += values
        if self._characters > RESULT_BYTES_MAX or self._values > CELLS_MAX:
            raise result_too_large()
        if self._characters > UNCOUNTED_BYTES:
            self.charge = self.charge or Charge(self._memory)
            if not self.charge.add(characters):
                raise results_too_large()


class ResultMemoryMeter(asyncio.Protocol):
    """Counts what arrives on one PostgreSQL connection."""

    def __init__(self, transport: asyncio.Transport, memory: ResultMemory) -> None:
        self._transport = transport
        self._memory = memory
        self._received = 0
        self._charge: Charge | None = None
        self._refuse: Refuse | None = None  # of the running statement
        inner = transport.get_protocol()
        assert isinstance(inner, asyncio.Protocol)
        self._deliver = inner.data_received
        # What is not counted is passed to the driver.
        self.connection_lost = inner.connection_lost  # type: ignore[method-assign]
        self.eof_received = inner.eof_received  # type: ignore[method-assign]
        self.pause_writing = inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]
        transport.set_protocol(self)

    def begin(self, refuse: Refuse) -> None:
        """The statement whose result comes next; `refuse` cancels it, and is called at most once."""
        self._received = 0
        self._refuse = refuse

    def end(self, *, failed: bool = False) -> Charge | None:
        """Memory of its result; None: a small one, which is not counted."""
        charge, self._charge, self._refuse = self._charge, None, None
        self._received = 0  # what comes between two statements is no result
        if charge is not None and failed:
            charge.give_back()
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
        if self._refuse is not None and (full or self._received > RESULT_BYTES_MAX):
            refuse, self._refuse = self._refuse, None
            refuse(results_too_large() if full else result_too_large())


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
    charge: Charge | None = None  # of a large one, while it is referenced


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
    """The newest results, for clients that ask again by query id. Each belongs to the user who ran the statement."""

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
    """A Python value as a text column shows it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
