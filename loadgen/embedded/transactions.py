"""Transactions of sessions: each keeps a backend from BEGIN to its end."""

from __future__ import annotations

import time
from collections.abc import Callable

from loadgen.embedded import sql_errors
from loadgen.embedded.backend_pool import BackendPool
from loadgen.embedded.session import ServerSession, ServerSessions, Transaction
from loadgen.embedded.table_locks import TableLocks


class Transactions:
    """Begins and ends them. Owner: the event loop."""

    def __init__(
        self, backends: BackendPool, sessions: ServerSessions, table_locks: TableLocks, now_ms: Callable[[], float]
    ) -> None:
        self._backends, self._sessions, self._table_locks, self._now_ms = backends, sessions, table_locks, now_ms
        self._last = int(now_ms()) * 1000

    def next_number(self) -> int:
        self._last += 1
        return self._last

    async def begin(self, session: ServerSession, name: str) -> Transaction:
        """Open a transaction; one that is open already goes on, as Snowflake ignores a second BEGIN."""
        if session.transaction is not None:
            return session.transaction
        backend = await self._backends.acquire_to_keep(session.timezone)
        await backend.connection.execute("BEGIN")
        number = self.next_number()
        session.transaction = Transaction(number, backend, name, self._now_ms(), time.monotonic())
        session.last_transaction = number
        return session.transaction

    async def end(self, session: ServerSession, verb: str) -> None:
        """COMMIT or ROLLBACK; without an open transaction both do nothing. A lost one cannot be committed."""
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

    async def lose(self, transaction: Transaction) -> None:
        """Roll a transaction back although its session did not ask; the session is told with its next statement."""
        transaction.lost = True
        connection = transaction.backend.connection
        if not connection.is_closed():
            transaction.backend.forget_settings()
            await connection.execute("ROLLBACK")
        await self._backends.release(transaction.backend)

    async def reap_idle(self) -> None:
        """End transactions that keep others waiting although nobody uses them."""
        now_s = time.monotonic()
        for session in list(self._sessions.by_number.values()):
            transaction = session.transaction
            if transaction is not None and transaction.is_abandoned(now_s, crowded=self._backends.crowded):
                await self.lose(transaction)
