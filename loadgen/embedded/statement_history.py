"""The history of all statements: reference data for measurements, and the rows of QUERY_HISTORY.

    statement = history.begin(context, sql_text, start_ms)     # the statement runs and has a query id
    statement.queued_ms = ...                                  # set by the task that executes it
    history.end(statement)                                     # stores a record; to be called exactly once

Ended statements are packed records of 108 bytes in a ring buffer with the newest million, in the order of their end.
Texts and contexts are stored once and dropped with the last record that uses them. Texts may use 256 MB; the oldest
records are dropped if they exceed this. Query ids are random, so they cannot be guessed.

Owner: the event loop. Times are epoch milliseconds of the server's clock, which must never decrease, because the
records are ordered by it.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeVar

import orjson

from loadgen.values import dataclass

RECORDS_MAX = 1_000_000
TEXT_BYTES_MAX = 256 * 1024 * 1024
SQL_CHARACTERS_MAX = 100_000  # as in Snowflake
MESSAGE_CHARACTERS_MAX = 10_000
RESULT_LIMIT_DEFAULT = 100
SEARCHED_MAX = 10_000  # records that a search by query id covers
RESULT_LIMIT_MAX = 10_000
ROWS_CHARACTERS_MAX = 50_000_000  # of the texts in one answer, which are repeated for each statement
BIND_BYTES_MAX = 64 * 1024 * 1024  # of all stored bind values; those of older statements become NULL
BINDS_OF_ONE_MAX = 10_000  # bytes per statement; Snowflake has an undocumented limit too
HISTORY_MS = 7 * 24 * 3600 * 1000.0  # QUERY_HISTORY reaches back 7 days

# Shorter statements of these types that use only hybrid tables have no row in QUERY_HISTORY.
UNRECORDED_MS = 500.0
UNRECORDED_TYPES = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "MERGE"})

# The columns of query_history(), in order. Times are epoch milliseconds; a running statement has the end time 0.
_COLUMNS = """
QUERY_ID VARCHAR, QUERY_TEXT VARCHAR, DATABASE_NAME VARCHAR, SCHEMA_NAME VARCHAR, QUERY_TYPE VARCHAR, SESSION_ID NUMBER,
USER_NAME VARCHAR, ROLE_NAME VARCHAR, WAREHOUSE_NAME VARCHAR, WAREHOUSE_SIZE VARCHAR, WAREHOUSE_TYPE VARCHAR,
CLUSTER_NUMBER NUMBER, QUERY_TAG VARCHAR, EXECUTION_STATUS VARCHAR, ERROR_CODE NUMBER, ERROR_MESSAGE VARCHAR,
START_TIME TIMESTAMP_LTZ, END_TIME TIMESTAMP_LTZ, TOTAL_ELAPSED_TIME NUMBER, COMPILATION_TIME NUMBER,
EXECUTION_TIME NUMBER, QUEUED_PROVISIONING_TIME NUMBER, QUEUED_REPAIR_TIME NUMBER, QUEUED_OVERLOAD_TIME NUMBER,
TRANSACTION_BLOCKED_TIME NUMBER, FAULT_HANDLING_TIME NUMBER, QUERY_RETRY_TIME NUMBER, BYTES_SCANNED NUMBER,
ROWS_PRODUCED NUMBER, ROWS_INSERTED NUMBER, ROWS_WRITTEN_TO_RESULT NUMBER, BYTES_WRITTEN_TO_RESULT NUMBER,
CREDITS_USED_CLOUD_SERVICES FLOAT, QUERY_PARAMETERIZED_HASH VARCHAR, TRANSACTION_ID NUMBER, USER_TYPE VARCHAR,
BIND_VALUES VARIANT
"""
COLUMNS = tuple((name, type_) for name, type_ in (column.split() for column in _COLUMNS.split(",")))

Row = tuple[str | int | float | None, ...]


class StatementContext(NamedTuple):
    """The context of a statement. USE and ALTER SESSION give the session a new one."""

    session_id: int
    user: str
    role: str | None = None
    database: str | None = None
    schema: str | None = None
    warehouse: str | None = None
    warehouse_size: str | None = None
    warehouse_type: str | None = None
    query_tag: str = ""


@dataclass(slots=True, eq=False)
class StatementRecord:
    """One statement. While it runs, its task sets the fields."""

    query_id: str
    context: StatementContext
    sql_text: str
    start_ms: float
    end_ms: float = 0.0  # 0: it still runs
    queued_ms: float = 0.0
    execution_ms: float = -1.0  # negative: the rest of the total time
    compile_ms: float = 0.0
    blocked_ms: float = 0.0
    rows: int = 0
    result_bytes: int = 0
    error_code: int = 0
    error_message: str = ""
    query_type: str = "UNKNOWN"
    hybrid_only: bool = False
    in_transaction: bool = False
    bindings: Mapping[str, Mapping[str, Any]] | None = None  # as received
    binds: bytes | None = b""  # of an ended statement: bind values as JSON, empty if it has none; None: dropped
    status: str = "running"  # running, queued, blocked or resuming_warehouse


class StatementHistory:
    """The running statements and the newest ended ones."""

    def __init__(
        self, *, now_ms: Callable[[], float], records_max: int = RECORDS_MAX, text_bytes: int = TEXT_BYTES_MAX
    ) -> None:
        self.running: dict[str, StatementRecord] = {}  # by query id, oldest first
        self._now_ms = now_ms
        self._records_max = records_max
        self._text_bytes_max = text_bytes
        self._records = mmap.mmap(-1, _RECORD.size * records_max)  # the system allocates memory as it is used
        self._first = 0  # position of the oldest record; the index in the ring is position modulo size
        self._next = 0
        self._shown = -1  # position of the newest record that QUERY_HISTORY shows
        self._binds: dict[int, bytes] = {}  # by position, oldest first
        self._bind_bytes = 0
        self._unbound = -1  # position of the newest record whose bind values were dropped
        self._texts: _InternedValues[str] = _InternedValues(
            "", lambda text: 160 + len(text) * (1 if text.isascii() else 4)
        )
        self._contexts: _InternedValues[StatementContext] = _InternedValues(
            StatementContext(0, ""), lambda context: 400 + len(context.query_tag)
        )

    @property
    def ended(self) -> int:
        """The number of statements that have ended since the start, including dropped ones."""
        return self._next

    @property
    def kept(self) -> int:
        return self._next - self._first

    def begin(self, context: StatementContext, sql_text: str, start_ms: float) -> StatementRecord:
        if len(sql_text) > SQL_CHARACTERS_MAX:
            sql_text = sql_text[:SQL_CHARACTERS_MAX]
        statement = StatementRecord(_id_text(b"\1" + os.urandom(15)), context, sql_text, start_ms)
        self.running[statement.query_id] = statement
        return statement

    def end(self, statement: StatementRecord) -> None:
        """Store a record. The clock is read here, so that records are in the order of their end."""
        del self.running[statement.query_id]
        end_ms = statement.end_ms = self._now_ms()
        total_ms = end_ms - statement.start_ms
        if statement.execution_ms < 0:
            waited_ms = statement.queued_ms + statement.compile_ms + statement.blocked_ms
            statement.execution_ms = max(0.0, total_ms - waited_ms)
        if self._next - self._first >= self._records_max:
            self._drop_oldest()
        position = self._next
        _RECORD.pack_into(
            self._records, position % self._records_max * _RECORD.size,
            _id_bytes(statement.query_id), statement.start_ms, end_ms, statement.queued_ms, statement.execution_ms,
            statement.compile_ms, statement.blocked_ms, statement.rows, statement.result_bytes, statement.error_code,
            self._contexts.keep(statement.context), self._texts.keep(statement.query_type),
            self._texts.keep(statement.sql_text), self._texts.keep(statement.error_message[:MESSAGE_CHARACTERS_MAX]),
            self._shown,
        )  # fmt: skip
        self._next = position + 1
        if _is_shown(statement, total_ms):
            self._shown = position
            if statement.bindings:
                self._keep_binds(position, _bind_values(statement.bindings))
        while self._texts.size_bytes + self._contexts.size_bytes > self._text_bytes_max and self.kept > 1:
            self._drop_oldest()

    def _keep_binds(self, position: int, binds: bytes) -> None:
        self._binds[position] = binds
        self._bind_bytes += 100 + len(binds)
        while self._bind_bytes > BIND_BYTES_MAX:
            self._unbound = next(iter(self._binds))
            self._bind_bytes -= 100 + len(self._binds.pop(self._unbound))

    def drop(self, statement: StatementRecord) -> None:
        """Remove a statement that was only described."""
        del self.running[statement.query_id]

    def find_running(self, query_id: str) -> StatementRecord | None:
        return self.running.get(query_id.lower())

    def find_ended(self, query_id: str) -> StatementRecord | None:
        """Search the newest ended statements."""
        wanted = _id_bytes(query_id)
        for position in range(self._next - 1, max(self._first, self._next - SEARCHED_MAX) - 1, -1):
            if self._unpack(position)[0] == wanted:
                return self._statement_at(position)
        return None

    def newest(self, count: int) -> Iterator[StatementRecord]:
        """Ended statements, newest first, including those that QUERY_HISTORY does not show."""
        return map(self._statement_at, range(self._next - 1, max(self._first, self._next - count) - 1, -1))

    def ground_truth(self, tag_substring: str = "", since_ms: float = 0.0) -> Iterator[bytes]:
        """JSON lines of ended statements that began at or after `since_ms`, in the order of their end.

        Reads one record at a time, so slow readers need no memory. Statements that end during the iteration are not
        included; records that are dropped during it are skipped.
        """
        stop = self._next
        position = bisect_left(range(stop), since_ms, lo=self._first, key=self._end_ms_at)
        while (position := max(position, self._first)) < stop:
            statement = self._statement_at(position)
            position += 1
            if statement.start_ms >= since_ms and tag_substring in statement.context.query_tag:
                yield _ground_truth_line(statement)

    def query_history(
        self,
        end_range_start_ms: float | None = None,
        end_range_end_ms: float | None = None,
        result_limit: int = RESULT_LIMIT_DEFAULT,
        *,
        session_id: int | None = None,
        user: str | None = None,
        warehouse: str | None = None,
    ) -> list[Row]:
        """The rows of INFORMATION_SCHEMA.QUERY_HISTORY, with COLUMNS, newest end first.

        Running statements come first; they are included only without an end of the range. The limit applies before
        WHERE.
        """
        if not 1 <= result_limit <= RESULT_LIMIT_MAX:
            raise ValueError(f"RESULT_LIMIT must be from 1 to {RESULT_LIMIT_MAX}, got {result_limit}")
        now_ms = self._now_ms()
        oldest_ms = max(now_ms - HISTORY_MS, end_range_start_ms or 0.0)
        rows: list[Row] = []
        characters = 0
        running = reversed(self.running.values()) if end_range_end_ms is None else ()
        for statement in chain(running, self._shown_backwards(end_range_end_ms)):
            if len(rows) >= result_limit or 0.0 < statement.end_ms < oldest_ms:
                break
            context = statement.context
            if (
                session_id in (None, context.session_id)
                and user in (None, context.user)
                and warehouse in (None, context.warehouse)
            ):
                rows.append(_row(statement, now_ms))
                characters += len(statement.sql_text) + len(statement.error_message) + len(context.query_tag)
                if characters > ROWS_CHARACTERS_MAX:
                    what = f"the texts of {len(rows)} statements have more than {ROWS_CHARACTERS_MAX:,} characters"
                    raise ValueError(f"{what}; use a lower RESULT_LIMIT or a shorter range")
        return rows

    def _shown_backwards(self, end_ms: float | None) -> Iterator[StatementRecord]:
        """The records that QUERY_HISTORY shows, newest first. Each one has the position of the previous one."""
        position = self._shown
        if end_ms is not None:
            after = bisect_right(range(self._next), end_ms, lo=self._first, key=self._end_ms_at)
            if after < self._next:
                position = self._shown_before(after)
        while position >= self._first:
            yield self._statement_at(position)
            position = self._shown_before(position)

    def _drop_oldest(self) -> None:
        *_, context, query_type, sql_text, error_message, _ = self._unpack(self._first)
        self._bind_bytes -= 100 + len(self._binds.pop(self._first)) if self._first in self._binds else 0
        self._first += 1
        self._contexts.drop(context)
        for text in (query_type, sql_text, error_message):
            self._texts.drop(text)

    def _statement_at(self, position: int) -> StatementRecord:
        (
            query_id, start_ms, end_ms, queued_ms, execution_ms, compile_ms, blocked_ms, rows, result_bytes, error_code,
            context, query_type, sql_text, error_message, _,
        ) = self._unpack(position)  # fmt: skip
        return StatementRecord(
            _id_text(query_id), self._contexts.values[context], self._texts.values[sql_text],
            start_ms, end_ms, queued_ms, execution_ms, compile_ms, blocked_ms, rows, result_bytes, error_code,
            self._texts.values[error_message], self._texts.values[query_type],
            binds=self._binds.get(position, None if position <= self._unbound else b""),
            status="failed_with_error" if error_code else "success",
        )  # fmt: skip

    def _unpack(self, position: int) -> tuple[Any, ...]:
        return _RECORD.unpack_from(self._records, position % self._records_max * _RECORD.size)

    def _end_ms_at(self, position: int) -> float:
        return float(self._unpack(position)[2])

    def _shown_before(self, position: int) -> int:
        return int(self._unpack(position)[-1])


def _id_text(query_id: bytes) -> str:
    """16 bytes in Snowflake's form of query ids, that of a UUID."""
    digits = query_id.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _id_bytes(query_id: str) -> bytes:
    """The bytes of a query id; empty for other texts."""
    try:
        found = bytes.fromhex(query_id.replace("-", ""))
    except ValueError:
        return b""
    return found if len(found) == 16 and _id_text(found) == query_id.lower() else b""


# query id; start, end, queued, execution; compile, blocked; rows, bytes; error code; context, query type, SQL text,
# error message (numbers of shared values); position of the newest record before this one that QUERY_HISTORY shows
_RECORD = struct.Struct("=16s 4d 2f 2q i 4I q")

T = TypeVar("T")


class _InternedValues(Generic[T]):
    """Values that are stored once, with a count of their uses, and dropped with the last use."""

    def __init__(self, nothing: T, bytes_of: Callable[[T], int]) -> None:
        self.values: list[T] = []
        self.size_bytes = 0
        self._nothing = nothing  # marks a dropped value
        self._bytes_of = bytes_of
        self._numbers: dict[T, int] = {}
        self._users: list[int] = []
        self._free: list[int] = []

    def keep(self, value: T) -> int:
        number = self._numbers.get(value)
        if number is None:
            return self._add(value)
        self._users[number] += 1
        return number

    def drop(self, number: int) -> None:
        self._users[number] -= 1
        if not self._users[number]:
            value = self.values[number]
            del self._numbers[value]
            self.values[number] = self._nothing
            self.size_bytes -= self._bytes_of(value)
            self._free.append(number)

    def _add(self, value: T) -> int:
        if not self._free:
            self._free.append(len(self.values))
            self.values.append(value)
            self._users.append(0)
        number = self._numbers[value] = self._free.pop()
        self.values[number] = value
        self._users[number] = 1
        self.size_bytes += self._bytes_of(value)
        return number


def _is_shown(statement: StatementRecord, total_ms: float) -> bool:
    return not (
        statement.hybrid_only
        and total_ms < UNRECORDED_MS
        and not statement.error_code
        and not statement.in_transaction
        and statement.query_type in UNRECORDED_TYPES
    )


def _ground_truth_line(statement: StatementRecord) -> bytes:
    line = {
        "query_id": statement.query_id, "session_id": statement.context.session_id,
        "query_tag": statement.context.query_tag, "sql_text": statement.sql_text,
        "start_ms": round(statement.start_ms, 3), "end_ms": round(statement.end_ms, 3),
        "queued_ms": round(statement.queued_ms, 3), "execution_ms": round(statement.execution_ms, 3),
        "total_ms": round(statement.end_ms - statement.start_ms, 3), "rows": statement.rows,
        "error_code": statement.error_code,
    }  # fmt: skip
    try:
        return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # an unpaired surrogate, which orjson does not write
        return json.dumps(line).encode() + b"\n"


def _row(statement: StatementRecord, now_ms: float) -> Row:
    context, rows, size_bytes = statement.context, statement.rows, statement.result_bytes
    is_dml = statement.query_type in ("INSERT", "UPDATE", "DELETE", "MERGE")
    return (
        statement.query_id, statement.sql_text, context.database, context.schema, statement.query_type,
        context.session_id, context.user, context.role, context.warehouse, context.warehouse_size,
        context.warehouse_type, 1 if context.warehouse else None, context.query_tag,
        statement.status, statement.error_code or None, statement.error_message or None,
        statement.start_ms, statement.end_ms, round((statement.end_ms or now_ms) - statement.start_ms),
        round(statement.compile_ms), round(max(0.0, statement.execution_ms)),
        0, 0, round(statement.queued_ms), round(statement.blocked_ms), 0, 0,
        size_bytes, rows, rows if statement.query_type == "INSERT" else 0, 1 if is_dml else rows, size_bytes,
        0.0, None, None, None, None if statement.binds is None else statement.binds.decode() or "[]",
    )  # fmt: skip


def _bind_values(bindings: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Bind values in the form of QUERY_HISTORY; NULL for array binds and large values."""
    values = [one.get("value") for one in bindings.values()]
    size = sum(len(value) for value in values if isinstance(value, (str, list)))
    if size > BINDS_OF_ONE_MAX or any(isinstance(value, (list, dict)) for value in values):
        return b"null"
    try:
        known = {name: {key: one.get(key) for key in ("type", "value")} for name, one in bindings.items()}
        return orjson.dumps(known)
    except TypeError:  # an unpaired surrogate
        return b"null"


# --- QUERY_HISTORY and AGGREGATE_QUERY_HISTORY of SNOWFLAKE.ACCOUNT_USAGE --------------------------------------------
#
# Rows appear without delay; Snowflake's latency is up to 45 minutes (QUERY_HISTORY) and 3 hours. QUERY_HISTORY has the
# rows of the table function. AGGREGATE_QUERY_HISTORY includes all statements, grouped by minute, session and text,
# because this server has no parameterized hashes.

ACCOUNT_USAGE = ("SNOWFLAKE", "ACCOUNT_USAGE")
AGGREGATED_MAX = 20_000  # newest statements; more would block the event loop
MINUTE_MS = 60_000.0
_AGGREGATE_COLUMNS = """
CALLS NUMBER, INTERVAL_START_TIME TIMESTAMP_LTZ, INTERVAL_END_TIME TIMESTAMP_LTZ, QUERY_PARAMETERIZED_HASH VARCHAR,
QUERY_TEXT VARCHAR, DATABASE_NAME VARCHAR, SCHEMA_NAME VARCHAR, QUERY_TYPE VARCHAR, SESSION_ID NUMBER,
USER_NAME VARCHAR, ROLE_NAME VARCHAR, WAREHOUSE_NAME VARCHAR, WAREHOUSE_SIZE VARCHAR, WAREHOUSE_TYPE VARCHAR,
QUERY_TAG VARCHAR, IS_CLIENT_GENERATED_STATEMENT BOOLEAN, ERRORS VARIANT, TOTAL_ELAPSED_TIME VARIANT
"""
_AGGREGATED = tuple((name, type_) for name, type_ in (column.split() for column in _AGGREGATE_COLUMNS.split(",")))
USAGE_VIEWS = {
    "QUERY_HISTORY": (*COLUMNS, ("IS_CLIENT_GENERATED_STATEMENT", "BOOLEAN")),
    "AGGREGATE_QUERY_HISTORY": _AGGREGATED,
}
_STATUS = {"failed_with_error": "fail"}  # status of the table function → status of the view

UsageRow = dict[str, object]


@dataclass(slots=True)
class _Group:
    """Executions of one text in one minute."""

    total_ms: list[int] = field(default_factory=list)
    errors: Counter[int] = field(default_factory=Counter)  # by code


def usage_rows(history: StatementHistory, view: str, now_ms: float) -> Iterator[UsageRow]:
    """The rows of a view; times are epoch milliseconds."""
    if view == "AGGREGATE_QUERY_HISTORY":
        yield from _aggregated(history)
        return
    for row in history.query_history(end_range_end_ms=now_ms, result_limit=RESULT_LIMIT_MAX):
        named: UsageRow = dict(zip((name for name, _ in COLUMNS), row, strict=True))
        status = str(named["EXECUTION_STATUS"])
        yield named | {"EXECUTION_STATUS": _STATUS.get(status, status), "IS_CLIENT_GENERATED_STATEMENT": False}


def _aggregated(history: StatementHistory) -> Iterator[UsageRow]:
    groups: dict[tuple[float, StatementContext, str, str], _Group] = {}
    characters = 0
    for one in history.newest(AGGREGATED_MAX):
        minute_ms = one.start_ms // MINUTE_MS * MINUTE_MS
        group = groups.setdefault((minute_ms, one.context, one.query_type, one.sql_text), _Group())
        if not group.total_ms:
            characters += len(one.sql_text) + len(one.context.query_tag)
        if characters > ROWS_CHARACTERS_MAX:
            raise ValueError(f"the texts of {len(groups)} statements have more than {ROWS_CHARACTERS_MAX:,} characters")
        group.total_ms.append(round(one.end_ms - one.start_ms))
        if one.error_code:
            group.errors[one.error_code] += 1
    for (minute_ms, context, query_type, text), group in groups.items():
        times = group.total_ms
        yield {
            "CALLS": len(times),
            "INTERVAL_START_TIME": minute_ms,
            "INTERVAL_END_TIME": minute_ms + MINUTE_MS,
            "QUERY_PARAMETERIZED_HASH": None,
            "QUERY_TEXT": text,
            "DATABASE_NAME": context.database,
            "SCHEMA_NAME": context.schema,
            "QUERY_TYPE": query_type,
            "SESSION_ID": context.session_id,
            "USER_NAME": context.user,
            "ROLE_NAME": context.role,
            "WAREHOUSE_NAME": context.warehouse,
            "WAREHOUSE_SIZE": context.warehouse_size,
            "WAREHOUSE_TYPE": context.warehouse_type,
            "QUERY_TAG": context.query_tag,
            "IS_CLIENT_GENERATED_STATEMENT": False,
            "ERRORS": [{"error_code": code, "count": count} for code, count in group.errors.items()],
            "TOTAL_ELAPSED_TIME": {
                "sum": sum(times), "avg": sum(times) / len(times), "min": min(times), "max": max(times)
            },
        }  # fmt: skip
