"""The pool of PostgreSQL connections ("backends") that all sessions share.

A statement acquires a backend and releases it; a transaction has one until its end. Free backends are selected by time
zone, because a backend's TimeZone has to be that of the session, and a change costs a round trip. The codecs return
values in the text form of Snowflake's protocol, so results need no second conversion.

Owner: the event loop. A backend runs one statement at a time.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
from asyncpg.prepared_stmt import PreparedStatement

from loadgen.embedded import sql_errors
from loadgen.embedded.result import (
    EPOCH_2000_DAYS,
    EPOCH_2000_US,
    Charge,
    Reject,
    ResultMemory,
    ResultMemoryMeter,
    result_too_large,
    rows_max,
    seconds_text,
)
from loadgen.embedded.sql_errors import SqlError

STATEMENTS_PREPARED_MAX = 400  # per backend; the least recently used one is closed
CONNECT_S = 20.0
KEPT_PERCENT_MAX = 80  # of the backends, for transactions and for statements that wait for a lock
SEARCH_PATH = "pg_catalog, sf, pg_temp"  # without its name pg_temp would be searched first
WAL_SEGMENT_BYTES = 16 << 20  # PostgreSQL stops if it cannot create the next segment

Encoder = Callable[[Any], Any]


def _instant(value: Any) -> tuple[int]:
    """Epoch nanoseconds of a bind → PostgreSQL's microseconds since 2000."""
    return (int(value) // 1000 - EPOCH_2000_US,)


# type → (encode a bind, decode a result, asyncpg's format)
_CODECS: dict[str, tuple[Encoder, Encoder, str]] = {
    "numeric": (str, str, "text"),
    "int4": (str, str, "text"),
    "int8": (str, str, "text"),
    "float8": (str, lambda t: {"Infinity": "inf", "-Infinity": "-inf"}.get(t, t), "text"),
    "bool": (str, lambda t: "1" if t == "t" else "0", "text"),
    "bytea": (lambda h: "\\x" + h, lambda t: t[2:].upper(), "text"),
    "date": (lambda ms: (int(ms) // 86_400_000 - EPOCH_2000_DAYS,), lambda t: str(t[0] + EPOCH_2000_DAYS), "tuple"),
    "time": (lambda ns: (int(ns) // 1000,), lambda t: seconds_text(t[0]), "tuple"),
    "timestamp": (_instant, lambda t: seconds_text(t[0] + EPOCH_2000_US), "tuple"),
    "timestamptz": (_instant, lambda t: seconds_text(t[0] + EPOCH_2000_US), "tuple"),
    "jsonb": (str, str, "text"),  # formatted later, with the result
}


class Backend:
    """One PostgreSQL connection with its prepared statements."""

    def __init__(self, connection: asyncpg.Connection, timezone: str, memory: ResultMemory) -> None:
        self.connection = connection
        self.timezone = timezone
        self.pid = connection.get_server_pid()
        self.lock_timeout_s = -1
        self.catalog_version = -1
        self.kept = False  # used by a transaction or a statement that waits for a lock
        self.extra = False  # beyond the limit of the pool: closed after use
        self.cancel_sent = False  # a cancel signal was sent, which may arrive late
        self.meter = ResultMemoryMeter(connection._transport, memory)
        self._prepared: OrderedDict[str, PreparedStatement[Any]] = OrderedDict()

    def cancel(self) -> None:
        """Cancel the running statement with a signal, which also works if all backends are in use."""
        if not self.connection.is_closed():
            self.cancel_sent = True
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGINT)

    async def prepare(self, sql: str, catalog_version: int) -> PreparedStatement[Any]:
        if catalog_version != self.catalog_version:
            self._prepared.clear()  # PostgreSQL rejects plans whose result type a DDL statement has changed
            self.catalog_version = catalog_version
        found = self._prepared.get(sql)
        if found is not None:
            self._prepared.move_to_end(sql)
            return found
        statement = await self.connection.prepare(sql)
        self._prepared[sql] = statement
        if len(self._prepared) > STATEMENTS_PREPARED_MAX:
            self._prepared.popitem(last=False)
        return statement

    async def fetch(
        self,
        prepared: PreparedStatement[Any],
        arguments: list[Any],
        columns: int,
        *,
        reject: Reject,
        check: Callable[[], None],
    ) -> tuple[list[asyncpg.Record], Charge | None]:
        """The records of a statement and their memory. `reject` cancels the statement if they are too large.

        `check` raises an error if the statement was cancelled.
        """
        limit = rows_max(columns)
        self.meter.begin(reject)
        try:
            # prepared.fetch() calls this method without a limit of rows.
            records = await prepared._PreparedStatement__bind_execute(arguments, limit + 1, None)
            check()  # the cancel signal may have arrived after the statement
            if len(records) > limit:
                raise result_too_large()
        except BaseException:
            records = []  # the traceback keeps this frame alive
            self.meter.end(failed=True)
            raise
        return records, self.meter.end()

    async def set_lock_timeout(self, seconds: int) -> None:
        """Set the time limit of lock waits; 0 means no wait, unlike PostgreSQL's 0."""
        if seconds != self.lock_timeout_s:
            await self.connection.execute(f"SET lock_timeout = {max(1, min(seconds * 1000, 2**31 - 1))}")
            self.lock_timeout_s = seconds

    def forget_settings(self) -> None:
        """To be called after a rollback, which resets settings; they are set again when they are needed."""
        self.lock_timeout_s = -1
        self.timezone = ""

    async def set_timezone(self, timezone: str) -> None:
        await self.connection.execute("SELECT set_config('TimeZone', $1, false)", timezone)
        self.timezone = timezone


class BackendPool:
    """A pool that grows up to a limit; then statements wait in order of arrival."""

    def __init__(self, connect_kwargs: Callable[[], dict[str, Any]], limit: int, data_dir: Path) -> None:
        self._connect_kwargs = connect_kwargs
        self.data_dir = data_dir
        self._limit = limit
        self._count = 0
        self._free: list[Backend] = []  # the last one is used first
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.memory = ResultMemory()
        self._keeping = asyncio.Semaphore(max(1, limit * KEPT_PERCENT_MAX // 100))
        self.up = asyncio.Event()  # cleared while PostgreSQL is being restarted
        self.up.set()

    async def acquire(self, timezone: str, *, urgent: bool = False) -> Backend:
        """Get a backend. During a restart of PostgreSQL, only the restart itself (`urgent`) gets one."""
        if not urgent and not self.up.is_set():
            if (full := self.disk_full()) is not None:
                raise full
            await asyncio.wait_for(self.up.wait(), CONNECT_S)
        while True:
            backend = self._take(timezone)
            if backend is not None:
                if backend.timezone != timezone:
                    await backend.set_timezone(timezone)
                return backend
            if self._count < self._limit:
                return await self._open(timezone)
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn

    async def acquire_to_keep(self, timezone: str) -> Backend:
        """Get a backend for a transaction. A part of the backends is reserved for single statements."""
        await self._keeping.acquire()
        try:
            backend = await self.acquire(timezone)
        except BaseException:
            self._keeping.release()
            raise
        backend.kept = True
        return backend

    async def keep(self, backend: Backend) -> bool:
        """Count the backend of a statement that waits for a lock as kept. False if the limit is reached."""
        if backend.kept:
            return True
        if self._keeping.locked():
            return False
        await self._keeping.acquire()  # does not wait: it is not locked
        backend.kept = True
        return True

    async def acquire_extra(self, timezone: str) -> Backend:
        """Get a backend without waiting, beyond the limit if necessary. For internal use, one at a time."""
        if self._free or self._count < self._limit:
            return await self.acquire(timezone)
        backend = await self._open(timezone)
        backend.extra = True
        return backend

    @property
    def crowded(self) -> bool:
        """Whether the next transaction has to wait for the end of another one."""
        return self._keeping.locked()

    def _unkeep(self, backend: Backend) -> None:
        if backend.kept:
            backend.kept = False
            self._keeping.release()

    def disk_full(self) -> SqlError | None:
        """The error for a full disk; None if the disk is not full."""
        free = shutil.disk_usage(self.data_dir).free
        return sql_errors.disk_full(self.data_dir) if free < WAL_SEGMENT_BYTES else None

    def _take(self, timezone: str) -> Backend | None:
        free = self._free
        for index in range(len(free) - 1, -1, -1):
            if free[index].timezone == timezone:
                return free.pop(index)
        # The time zone of a free backend is changed only if the limit is reached.
        return free.pop() if free and self._count >= self._limit else None

    async def _open(self, timezone: str) -> Backend:
        self._count += 1
        try:
            connection = await asyncpg.connect(
                **self._connect_kwargs(),
                timeout=CONNECT_S,
                statement_cache_size=0,
                server_settings={"TimeZone": timezone, "application_name": "loadgen", "search_path": SEARCH_PATH},
            )
            for name, (encode, decode, form) in _CODECS.items():
                await connection.set_type_codec(name, schema="pg_catalog", encoder=encode, decoder=decode, format=form)
            _share_priority(connection.get_server_pid())
        except BaseException:
            self._count -= 1
            self._wake()
            raise
        return Backend(connection, timezone, self.memory)

    async def release(self, backend: Backend) -> None:
        """Return a backend to the pool. A broken one, or one in a transaction, is closed."""
        self._unkeep(backend)
        connection = backend.connection
        if backend.cancel_sent and not connection.is_closed():
            # A cancel signal that arrives late must not cancel the next statement.
            backend.cancel_sent = False
            try:
                await connection.fetchval("SELECT 1")
            except asyncpg.QueryCanceledError:
                backend.cancel_sent = False
            except (asyncpg.PostgresError, OSError):
                connection.terminate()
        if backend.extra or connection.is_closed() or connection.is_in_transaction():
            self.discard(backend)
        else:
            self._free.append(backend)
        self._wake()

    def discard(self, backend: Backend) -> None:
        self._unkeep(backend)
        if not backend.connection.is_closed():
            backend.connection.terminate()
        self._count = max(0, self._count - 1)
        self._wake()

    def _wake(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    async def close(self) -> None:
        """Close all free connections, after PostgreSQL has stopped or before it stops."""
        for backend in self._free:
            backend.connection.terminate()
        self._count = max(0, self._count - len(self._free))
        self._free.clear()
        self._wake()


@asynccontextmanager
async def savepoint(backend: Backend, *, keep: bool) -> AsyncIterator[None]:
    """Run the block in a savepoint, which is rolled back after an error, and unless `keep`.

    Reads are rolled back to release their locks, for which a later DDL statement would wait.
    """
    connection = backend.connection
    await connection.execute("SAVEPOINT s")
    undo = "ROLLBACK TO SAVEPOINT s; RELEASE SAVEPOINT s"
    try:
        yield
    except BaseException:
        if not connection.is_closed():
            backend.forget_settings()
            await connection.execute(undo)
        raise
    if not keep:
        backend.forget_settings()
    await connection.execute("RELEASE SAVEPOINT s" if keep else undo)


def _share_priority(pid: int) -> None:
    """Give a backend the priority of this process: Linux schedules process sessions as groups (autogroup)."""
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    if niceness < 0:
        with suppress(OSError):
            Path(f"/proc/{pid}/autogroup").write_text(str(niceness))
