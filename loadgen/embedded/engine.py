"""Runs statements: session → route → plan → warehouse slot → PostgreSQL → result, and a record of every one.

Owner: the event loop. A statement runs in the task of its HTTP request. It can be cancelled from outside while it
queues, sleeps or runs in PostgreSQL (`Running.cancel`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import asyncpg

from loadgen.embedded import account, binding, commands, dialect, failure, names
from loadgen.embedded.backends import Backend, Backends, savepoint
from loadgen.embedded.catalog import Catalog
from loadgen.embedded.cursor import single_words
from loadgen.embedded.failure import SqlError
from loadgen.embedded.history import History, Statement
from loadgen.embedded.locks import LockWatch, TableLocks
from loadgen.embedded.login import Wishes
from loadgen.embedded.plan import Plan, Planner, describe
from loadgen.embedded.records import changed, selected
from loadgen.embedded.result import KeptResults, Result
from loadgen.embedded.running import Request, RequestKey, Running, setting
from loadgen.embedded.services import Services
from loadgen.embedded.session import Session, Sessions, Transaction
from loadgen.embedded.statement_limits import Planning, check_command
from loadgen.embedded.warehouse import (
    QueuedTooLong,
    Warehouse,
    WarehouseDropped,
    Warehouses,
    WarehouseSuspended,
    shortest_s,
)

TIMEOUT_WATCHED_S = 86_400  # a longer limit than a day is not worth a timer per statement
IDLE_TRANSACTION_S = 300.0


class Engine:
    """Everything a statement needs. One per server."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        backends: Backends,
        warehouses: Warehouses,
        history: History,
        sessions: Sessions,
        services: Services,
        now_ms: Callable[[], float],
    ) -> None:
        self.catalog = catalog
        self.backends = backends
        self.warehouses = warehouses
        self.history = history
        self.sessions = sessions
        self.services = services
        self.now_ms = now_ms
        self.planner = Planner(catalog)
        self.planning = Planning()
        self.results = KeptResults()
        self.table_locks = TableLocks()
        self.lock_watch = LockWatch(backends)
        self.running: dict[str, Running] = {}  # by query id
        self.by_request: dict[RequestKey, Running] = {}
        self.transactions = int(now_ms()) * 1000

    # --- one statement ----------------------------------------------------------------------------------------------

    async def execute(self, session: Session, request: Request) -> tuple[Statement, Result]:
        """Run one statement. Raises SqlError; the record of it is complete either way."""
        context = session.context
        tag = request.parameters.get("QUERY_TAG") if request.parameters else None
        if tag:
            context = context._replace(query_tag=str(tag))
        statement = self.history.begin(context, request.text, self.now_ms())
        task = asyncio.current_task()
        assert task is not None
        running = Running(statement, session, task, self.backends)
        self.running[statement.query_id] = running
        key = (session.user, request.request_id)
        self.by_request[key] = running
        try:
            result = await self._limited(session, request, running)
            statement.rows = result.count
            if not request.describe_only:
                self.results.keep(statement.query_id, session.user, result)
            return statement, result
        except SqlError as error:
            statement.error_code, statement.error_message = error.errno, error.message
            await self._abort_on_error(session)
            error.query_id = statement.query_id  # type: ignore[attr-defined]
            raise
        finally:
            if running.blocked_since_s:
                statement.blocked_ms += (time.monotonic() - running.blocked_since_s) * 1000
            if request.describe_only:
                self.history.drop(statement)
            else:
                session.last_query_id = statement.query_id
                self.history.end(statement)
            self.running.pop(statement.query_id, None)
            self.by_request.pop(key, None)

    async def _abort_on_error(self, session: Session) -> None:
        transaction = session.transaction
        if transaction is not None and not transaction.lost and session.get("TRANSACTION_ABORT_ON_ERROR"):
            await self.lose(transaction)

    async def _limited(self, session: Session, request: Request, running: Running) -> Result:
        """Run within the statement timeout, and turn a cancellation into the error that its cause deserves."""
        limit_s = self._limit_s(session, request)
        timer = None
        if limit_s and limit_s < TIMEOUT_WATCHED_S:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(limit_s, running.cancel, failure.timed_out(int(limit_s)))
        try:
            return await self._dispatch(session, request, running)
        except asyncio.CancelledError:
            if running.reason is None:
                raise
            running.task.uncancel()
            raise running.reason from None
        except asyncpg.PostgresError as error:
            if running.reason is not None and error.sqlstate == "57014":
                raise running.reason from None
            raise self._translated(error, request, running) from None
        except (asyncpg.InterfaceError, ConnectionError, OSError) as error:
            if "the server expects" in str(error):  # asyncpg's words: the translation has left out a bind or the like
                raise failure.unsupported("argument that is no constant") from None
            restarted = "SQL execution internal error: the database behind the server restarted."
            raise self.backends.disk_full() or SqlError(failure.INTERNAL, "XX000", restarted) from None
        except QueuedTooLong as error:
            raise failure.queue_timed_out(int(error.timeout_s)) from None
        except (WarehouseSuspended, WarehouseDropped):
            raise failure.no_warehouse() from None
        finally:
            if timer is not None:
                timer.cancel()

    def _translated(self, error: asyncpg.PostgresError, request: Request, running: Running) -> SqlError:
        if error.sqlstate == failure.DISK_FULL:
            return failure.disk_full(self.backends.data_dir)
        found = failure.from_postgres(error, running.statement.query_id)
        if found.errno == failure.INTERNAL:
            return self.backends.disk_full() or found
        if found.errno == failure.INVALID_IDENTIFIER and "invalid identifier" in found.message:
            name = names.full(found.message.rsplit("'", 2)[1])
            found = failure.invalid_identifier(name, *dialect.position(request.text, name))
        return found

    def _limit_s(self, session: Session, request: Request) -> float:
        limit = setting(session, request, "STATEMENT_TIMEOUT_IN_SECONDS")
        warehouse = self.warehouses.get(session.warehouse or "")
        return shortest_s(float(limit), float(warehouse.settings.statement_timeout_s) if warehouse else 0.0)

    async def _dispatch(self, session: Session, request: Request, running: Running) -> Result:
        types, arrays = binding.signature(request.bindings)
        if request.describe_only and not types:
            # Binds come later: they are taken for texts, which fit everywhere.
            tokens = await self.planning.run(request.text, lambda: dialect.tokens_of(request.text))
            types = ("TEXT",) * len(dialect.placeholders(tokens))
        key = (request.text, session.database, session.schema, types, arrays)
        plan = self.planner.cached(key)
        if plan is None:
            tokens = await self.planning.run(request.text, lambda: dialect.tokens_of(request.text))
            command = commands.find(tokens)
            if command is not None:
                check_command(tokens)
                running.statement.query_type = command.query_type
                if request.describe_only:
                    return command.description()
                words = single_words(request.text, tokens)
                return await command.run(commands.Call(self, session, words, request, running))
            place = (session.database, session.schema)
            version = self.catalog.version
            plan = await self.planning.run(
                request.text, lambda: self.planner.plan(request.text, tokens, *place, types, arrays)
            )
            if version == self.catalog.version:  # a long text was planned while others changed the catalogue
                self.planner.keep(key, plan)
            running.statement.compile_ms = self.now_ms() - running.statement.start_ms
        running.statement.query_type = plan.kind
        running.statement.hybrid_only = plan.hybrid_only
        if request.describe_only:
            return await self._describe(session, plan)
        return await self.run_plan(session, plan, request, running)

    async def _describe(self, session: Session, plan: Plan) -> Result:
        if plan.rowtype is None:
            backend = await self.backends.acquire(session.timezone)
            try:
                await describe(plan, backend, self.catalog.version)
            finally:
                await self.backends.release(backend)
        assert plan.rowtype is not None
        return Result(plan.rowtype, [], plan.statement_type, 0, array_bind_supported=plan.kind == "INSERT")

    # --- plans ------------------------------------------------------------------------------------------------------

    def warehouse_of(self, session: Session) -> Warehouse:
        warehouse = self.warehouses.get(session.warehouse) if session.warehouse else None
        if warehouse is None:
            raise failure.no_warehouse()
        return warehouse

    async def run_plan(self, session: Session, plan: Plan, request: Request, running: Running) -> Result:
        warehouse = self.warehouse_of(session)
        ticket = warehouse.try_admit()
        if ticket is None:
            running.statement.status = "queued"
            queued_s = setting(session, request, "STATEMENT_QUEUED_TIMEOUT_IN_SECONDS")
            ticket = await warehouse.admit(queued_timeout_s=float(queued_s))
            running.statement.status = "running"
            running.statement.queued_ms = ticket.queued_s * 1000
        running.ticket = ticket
        granted_s = time.monotonic()
        try:
            result = await self._on_backend(session, plan, request, running)
            if warehouse.service_time is not None:
                # What PostgreSQL needed is part of the service time, so that the model's rate is exact.
                used_s = time.monotonic() - granted_s
                await ticket.serve(max(0.0, warehouse.service_time.sample_s() - used_s))
            return result
        finally:
            ticket.release()

    async def _on_backend(self, session: Session, plan: Plan, request: Request, running: Running) -> Result:
        transaction = session.transaction
        if transaction is None and not session.autocommit and plan.reads_tables:
            transaction = await self.begin(session, "")
        if transaction is not None:
            return await self._in_transaction(session, transaction, plan, request, running)
        if plan.for_update:
            raise failure.compilation(2, "0A000", "Unsupported feature 'FOR UPDATE outside a transaction'.")
        backend = await self.backends.acquire(session.timezone)
        running.backend = backend
        try:
            if plan.locked_table is None:
                return await self._run(backend, session, plan, request, running)
            async with backend.connection.transaction():
                await self._lock_table(backend, session, plan, request, running, None)
                return await self._run(backend, session, plan, request, running)
        finally:
            running.backend = None
            await self.backends.release(backend)

    async def _in_transaction(
        self, session: Session, transaction: Transaction, plan: Plan, request: Request, running: Running
    ) -> Result:
        """A savepoint around the statement: in Snowflake a failed statement does not end the transaction."""
        async with transaction.lock:
            if session.transaction is not transaction:
                raise SqlError(603, "22000", "The transaction was ended by another statement of the session.")
            if transaction.lost or transaction.backend.connection.is_closed():
                raise failure.transaction_lost()
            transaction.touched_s = time.monotonic()
            transaction.hybrid = transaction.hybrid or plan.hybrid_only
            running.statement.in_transaction = True
            backend = running.backend = transaction.backend
            try:
                if backend.timezone != session.timezone:
                    await backend.set_timezone(session.timezone)
                async with savepoint(backend, keep=plan.kind != "SELECT" or plan.for_update):
                    if plan.locked_table is not None:
                        await self._lock_table(backend, session, plan, request, running, transaction)
                    return await self._run(backend, session, plan, request, running)
            finally:
                running.backend = None
                transaction.touched_s = time.monotonic()

    async def _lock_table(
        self,
        backend: Backend,
        session: Session,
        plan: Plan,
        request: Request,
        running: Running,
        transaction: Transaction | None,
    ) -> None:
        """Changes of a standard table are made one after the other; at most 20 may wait."""
        assert plan.locked_table is not None
        number = transaction.number if transaction else self._next_transaction()
        limit_s = int(setting(session, request, "LOCK_TIMEOUT"))
        await self.table_locks.take(backend, plan.locked_table, running, number, limit_s)
        running.statement.status = "running"

    async def _run(self, backend: Backend, session: Session, plan: Plan, request: Request, running: Running) -> Result:
        version = self.catalog.version
        prepared = await backend.prepare(plan.sql, version)
        if plan.rowtype is None:
            await describe(plan, backend, version)
        arguments = await self.arguments(backend, session, plan, request, running) if plan.parameters else []
        watched = plan.kind != "SELECT" or plan.for_update
        if watched:
            limit_s = setting(session, request, "HYBRID_TABLE_LOCK_TIMEOUT")
            await backend.set_lock_timeout(int(limit_s) if plan.lock_wait_s is None else plan.lock_wait_s)
        if running.reason is not None:
            raise running.reason
        watch = self.lock_watch.start(running) if watched else None
        try:
            records = await prepared.fetch(*arguments)
        finally:
            if watch is not None:
                watch.cancel()
        if plan.kind == "SELECT":
            return selected(plan, records)
        return changed(plan, records, prepared.get_statusmsg())

    async def arguments(
        self, backend: Backend, session: Session, plan: Plan, request: Request, running: Running
    ) -> list[Any]:
        values: list[Any] = []
        for key in plan.parameters:
            demand = next((demand for demand in plan.demands if demand.parameter == key), None)
            if isinstance(key, int):
                values.append(binding.value(request.bindings or {}, plan.binds, key))
            elif demand is not None:
                values.append(await commands.demanded(self, backend, session, demand))
            else:
                values.append(commands.context_value(session, key, running.statement.query_id))
        if plan.binds.arrays:
            binding.check_lengths(values)
        return values

    # --- transactions -------------------------------------------------------------------------------------------------

    def _next_transaction(self) -> int:
        self.transactions += 1
        return self.transactions

    async def begin(self, session: Session, name: str) -> Transaction:
        """Open a transaction; one that is open already goes on, as Snowflake ignores a second BEGIN."""
        if session.transaction is not None:
            return session.transaction
        backend = await self.backends.acquire(session.timezone)
        await backend.connection.execute("BEGIN")
        number = self._next_transaction()
        session.transaction = Transaction(number, backend, name, self.now_ms(), time.monotonic())
        session.last_transaction = number
        return session.transaction

    async def end(self, session: Session, verb: str) -> None:
        """COMMIT or ROLLBACK; without an open transaction both do nothing. A lost one cannot be committed."""
        transaction, session.transaction = session.transaction, None
        if transaction is None:
            return
        try:
            if transaction.lost or transaction.backend.connection.is_closed():
                if verb == "COMMIT":
                    raise failure.transaction_lost()
            else:
                if verb == "ROLLBACK":
                    transaction.backend.forget_settings()
                await transaction.backend.connection.execute(verb)
        finally:
            self.table_locks.forget(transaction.number)
            if not transaction.lost:
                await self.backends.release(transaction.backend)

    async def lose(self, transaction: Transaction) -> None:
        """Roll a transaction back although its session did not ask; the session is told with its next statement."""
        transaction.lost = True
        connection = transaction.backend.connection
        if not connection.is_closed():
            transaction.backend.forget_settings()
            await connection.execute("ROLLBACK")
        await self.backends.release(transaction.backend)

    async def reap_idle_transactions(self) -> None:
        """End transactions on hybrid tables that nobody has touched for five minutes: their row locks block others."""
        limit_s = time.monotonic() - IDLE_TRANSACTION_S
        for session in list(self.sessions.by_number.values()):
            transaction = session.transaction
            if transaction is None or transaction.lost or not transaction.hybrid:
                continue
            if transaction.touched_s < limit_s and not transaction.lock.locked():
                await self.lose(transaction)

    async def enter(self, session: Session, wishes: Wishes) -> None:
        await account.enter(self, session, wishes)

    async def close(self, session: Session) -> None:
        """End a session: its statements are cancelled, its transaction rolled back."""
        self.sessions.close(session)
        for running in list(self.running.values()):
            if running.session is session:
                running.cancel(failure.canceled())
        if session.transaction is not None:
            async with session.transaction.lock:
                await self.end(session, "ROLLBACK")
