"""Running statements, the transactions of sessions, and locks."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import asyncpg

from loadgen.embedded import sql_errors
from loadgen.embedded.backend_pool import Backend, BackendPool
from loadgen.embedded.catalog import CatalogTable
from loadgen.embedded.result import ResultCache, StatementResult
from loadgen.embedded.session import LoginRequest, ServerSession, ServerSessions, Transaction, Value, checked
from loadgen.embedded.sql_errors import SqlError, lock_timed_out, too_many_lock_waiters, too_many_waiters
from loadgen.embedded.statement_history import StatementHistory, StatementRecord
from loadgen.embedded.warehouse import VirtualWarehouses, WarehouseSlot
from loadgen.values import dataclass

if TYPE_CHECKING:
    from loadgen.embedded.commands.services import ContainerServices


@dataclass(frozen=True, slots=True)
class QueryRequest:
    """A query request of a driver."""

    text: str
    bindings: Mapping[str, Mapping[str, Any]] | None = None
    parameters: Mapping[str, Any] | None = None
    describe_only: bool = False
    request_id: str = ""


@dataclass(slots=True)
class RunningStatement:
    """A running statement. Owner: its task; other tasks only call cancel()."""

    statement: StatementRecord
    session: ServerSession
    request: QueryRequest
    task: asyncio.Task[Any]
    backend: Backend | None = None  # set while PostgreSQL executes it
    slot: WarehouseSlot | None = None
    reason: SqlError | None = None
    blocked_since_s: float = 0.0

    def parameter(self, name: str) -> Value:
        """The value of a parameter: that of the statement, else that of the session."""
        given = self.request.parameters.get(name) if self.request.parameters else None
        return self.session.get(name) if given is None else checked(name, given)

    def check(self) -> None:
        """Raises the reason of the cancellation if the statement was cancelled."""
        if self.reason is not None:
            raise self.reason

    def cancel(self, reason: SqlError) -> None:
        if self.reason is not None:
            return
        self.reason = reason
        if self.backend is None:
            self.task.cancel()
            return
        self.backend.cancel()


RequestKey = tuple[str, str]  # user and request id: users cannot reach statements of other users


class Executor:
    """The base of both engines: runs statements for sessions."""

    def __init__(
        self,
        *,
        warehouses: VirtualWarehouses,
        history: StatementHistory,
        sessions: ServerSessions,
        services: ContainerServices,
        now_ms: Callable[[], float],
    ) -> None:
        self.warehouses = warehouses
        self.history = history
        self.sessions = sessions
        self.services = services
        self.now_ms = now_ms
        self.results = ResultCache()
        self.running: dict[str, RunningStatement] = {}  # by query id
        self.by_request: dict[RequestKey, RunningStatement] = {}

    async def execute(self, session: ServerSession, request: QueryRequest) -> tuple[StatementRecord, StatementResult]:
        """Run a statement and complete its history record. Raises SqlError."""
        raise NotImplementedError

    async def close(self, session: ServerSession) -> None:
        """End a session: cancel its statements and roll back its transaction."""
        raise NotImplementedError

    async def enter(self, session: ServerSession, login: LoginRequest) -> None:
        """Set the context of a new session."""
        raise NotImplementedError


WAITERS_MAX = 20
SUSPECT_AFTER_S = 0.02  # a DML statement that takes longer may be waiting for a row lock
POLL_S = 0.02


class TableLocks:
    """Exclusive locks for DML on standard tables, with a limit of waiters."""

    def __init__(self, backends: BackendPool) -> None:
        self._backends = backends
        self._waiting: dict[tuple[str, str, str], int] = {}
        self._holders: dict[tuple[str, str, str], tuple[str, int]] = {}  # query id and transaction

    async def take(
        self, backend: Backend, table: CatalogTable, running: RunningStatement, transaction: int, timeout_s: int
    ) -> None:
        """Take the lock of a table until the end of the backend's transaction."""
        key = zlib.crc32("\0".join(table.path).encode())
        connection = backend.connection
        got = await connection.fetchval("SELECT pg_try_advisory_xact_lock(7, $1::int4)::text", str(key - 2**31))
        if got != "true":
            await self._wait(backend, table, running, key, timeout_s)
        self._holders[table.path] = (running.statement.query_id, transaction)

    async def _wait(
        self, backend: Backend, table: CatalogTable, running: RunningStatement, key: int, timeout_s: int
    ) -> None:
        waiting = self._waiting.get(table.path, 0)
        if waiting >= WAITERS_MAX:
            holder, transaction = self._holders.get(table.path, ("", 0))
            raise too_many_waiters(table.name, holder, transaction, running.statement.query_id)
        if not await self._backends.keep(backend):
            raise too_many_lock_waiters(running.statement.query_id)
        self._waiting[table.path] = waiting + 1
        if running.slot is not None:
            running.slot.release()
        started_s = time.monotonic()
        running.statement.status = "blocked"
        try:
            await backend.set_lock_timeout(timeout_s)
            await backend.connection.execute(f"SELECT pg_advisory_xact_lock(7, {key - 2**31})")
        except asyncpg.LockNotAvailableError:
            raise lock_timed_out(running.statement.query_id) from None
        finally:
            running.statement.blocked_ms += (time.monotonic() - started_s) * 1000
            self._waiting[table.path] -= 1

    def forget(self, transaction: int) -> None:
        """Remove the holder entries of a transaction that has ended."""
        for path in [path for path, holder in self._holders.items() if holder[1] == transaction]:
            del self._holders[path]


class LockMonitor:
    """Detects statements that wait for a row lock.

    A DML statement that has run for 20 ms may be waiting. While there are such statements, one task polls PostgreSQL
    for those that wait. They release their warehouse slot, and the waiting time counts as blocked time.
    """

    def __init__(self, backends: BackendPool) -> None:
        self._backends = backends
        self._suspects: dict[int, RunningStatement] = {}  # by backend pid
        self._task: asyncio.Task[None] | None = None

    def start(self, running: RunningStatement) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(SUSPECT_AFTER_S, self._suspect, running)

    def _suspect(self, running: RunningStatement) -> None:
        if running.backend is None:
            return
        self._suspects[running.backend.pid] = running
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._poll(), name="lock-watch")

    async def _poll(self) -> None:
        backend = await self._backends.acquire_extra("UTC")  # waiting statements may use all backends
        try:
            while self._suspects:
                self._suspects = {
                    pid: running
                    for pid, running in self._suspects.items()
                    if running.backend is not None and running.backend.pid == pid
                }
                rows = await backend.connection.fetch(
                    "SELECT pid::text FROM pg_stat_activity"
                    " WHERE wait_event_type = 'Lock' AND backend_type = 'client backend'"
                )
                waiting = {int(row[0]) for row in rows}
                for pid, running in list(self._suspects.items()):
                    if running.backend is not None and running.backend.pid == pid:  # it may have ended during the query
                        _set_blocked(running, pid in waiting)
                        if pid in waiting and not await self._backends.keep(running.backend):
                            running.cancel(too_many_lock_waiters(running.statement.query_id))
                await asyncio.sleep(POLL_S)
        finally:
            await self._backends.release(backend)


def _set_blocked(running: RunningStatement, waiting: bool) -> None:
    now_s = time.monotonic()
    if waiting and not running.blocked_since_s:
        running.blocked_since_s = now_s
        running.statement.status = "blocked"
        if running.slot is not None:
            running.slot.release()
    elif not waiting and running.blocked_since_s:
        running.statement.blocked_ms += (now_s - running.blocked_since_s) * 1000
        running.blocked_since_s = 0.0
        running.statement.status = "running"


class Transactions:
    """Begins and ends transactions. A transaction has a backend until its end. Owner: the event loop."""

    def __init__(
        self, backends: BackendPool, sessions: ServerSessions, table_locks: TableLocks, now_ms: Callable[[], float]
    ) -> None:
        self._backends, self._sessions, self._table_locks, self._now_ms = backends, sessions, table_locks, now_ms
        self._last = int(now_ms()) * 1000

    def next_number(self) -> int:
        self._last += 1
        return self._last

    async def begin(self, session: ServerSession, name: str) -> Transaction:
        """Open a transaction, or return the open one: Snowflake ignores a second BEGIN."""
        if session.transaction is not None:
            return session.transaction
        backend = await self._backends.acquire_to_keep(session.timezone)
        await backend.connection.execute("BEGIN")
        number = self.next_number()
        session.transaction = Transaction(number, backend, name, self._now_ms(), time.monotonic())
        session.last_transaction = number
        return session.transaction

    async def end(self, session: ServerSession, verb: str) -> None:
        """COMMIT or ROLLBACK the open transaction, if any. A lost transaction cannot be committed."""
        transaction, session.transaction = session.transaction, None
        if transaction is None:
            return
        try:
            if transaction.lost or transaction.backend.connection.is_closed():
                if verb == "COMMIT":
                    raise sql_errors.transaction_lost()
            else:
                if verb == "ROLLBACK":
                    transaction.backend.forget_settings()
                await transaction.backend.connection.execute(verb)
        finally:
            self._table_locks.forget(transaction.number)
            if not transaction.lost:
                await self._backends.release(transaction.backend)

    async def abort(self, transaction: Transaction) -> None:
        """Roll a transaction back; the next statement of the session gets an error."""
        transaction.lost = True
        connection = transaction.backend.connection
        if not connection.is_closed():
            transaction.backend.forget_settings()
            await connection.execute("ROLLBACK")
        await self._backends.release(transaction.backend)

    async def reap_idle(self) -> None:
        """Abort idle transactions that block others."""
        now_s = time.monotonic()
        for session in list(self._sessions.by_number.values()):
            transaction = session.transaction
            if transaction is not None and transaction.is_abandoned(now_s, crowded=self._backends.crowded):
                await self.abort(transaction)
