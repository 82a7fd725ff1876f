"""Runs statements: session → command or plan → warehouse slot → PostgreSQL → result, with one history record each.

Owner: the event loop. A statement runs in the task of its HTTP request. `RunningStatement.cancel` cancels it while it
queues, sleeps or runs in PostgreSQL.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import field
from typing import Any

import asyncpg
import orjson

from loadgen.embedded import database_setup, postgres_names, sql_errors
from loadgen.embedded.backend_pool import Backend, BackendPool, savepoint
from loadgen.embedded.catalog import Catalog, CatalogTable
from loadgen.embedded.commands import registry
from loadgen.embedded.commands.system import context_value, server_function_rows
from loadgen.embedded.event_loop import in_thread
from loadgen.embedded.performance_model import ControlLatency
from loadgen.embedded.result import NUMBER, Charge, ResultMemory, ResultSize, SnowflakeType, StatementResult, padded
from loadgen.embedded.session import LoginRequest, ServerSession, Transaction
from loadgen.embedded.sql_errors import SqlError
from loadgen.embedded.statement_history import StatementRecord
from loadgen.embedded.transactions import (
    Executor,
    LockMonitor,
    QueryRequest,
    RunningStatement,
    TableLocks,
    Transactions,
)
from loadgen.embedded.translate import parser, planner
from loadgen.embedded.translate.parser import PlanningThread, check_command, split_compound_tokens
from loadgen.embedded.translate.planner import Planner, StatementPlan, describe, rowtype
from loadgen.embedded.warehouse import (
    QueuedTooLong,
    VirtualWarehouse,
    WarehouseDropped,
    WarehouseSuspended,
    shortest_s,
)
from loadgen.values import dataclass

TIMEOUT_WATCHED_S = 86_400  # longer time limits are ignored


class Engine(Executor):
    """Runs statements on PostgreSQL; one per server."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        backends: BackendPool,
        strict: bool,
        control_latency: ControlLatency | None,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self._control_latency = control_latency
        self.catalog = catalog
        self.backends = backends
        self.planner = Planner(catalog, strict=strict)
        self.planning = PlanningThread()
        self.table_locks = TableLocks(backends)
        self.lock_watch = LockMonitor(backends)
        self.transactions = Transactions(backends, self.sessions, self.table_locks, self.now_ms)

    # --- one statement ----------------------------------------------------------------------------------------------

    async def execute(self, session: ServerSession, request: QueryRequest) -> tuple[StatementRecord, StatementResult]:
        context = session.context
        tag = request.parameters.get("QUERY_TAG") if request.parameters else None
        if tag:
            context = context._replace(query_tag=str(tag))
        statement = self.history.begin(context, request.text, self.now_ms())
        statement.bindings = request.bindings
        task = asyncio.current_task()
        assert task is not None
        running = RunningStatement(statement, session, request, task)
        self.running[statement.query_id] = running
        key = (session.user, request.request_id)
        self.by_request[key] = running
        try:
            result = await self._run_within_timeout(running)
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

    async def _abort_on_error(self, session: ServerSession) -> None:
        transaction = session.transaction
        if transaction is not None and not transaction.lost and session.get("TRANSACTION_ABORT_ON_ERROR"):
            await self.transactions.abort(transaction)

    async def _run_within_timeout(self, running: RunningStatement) -> StatementResult:
        """Run within the statement timeout; a cancellation raises the error of its reason."""
        limit_s = self._limit_s(running)
        timer = None
        if limit_s and limit_s < TIMEOUT_WATCHED_S:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(limit_s, running.cancel, sql_errors.timed_out(int(limit_s)))
        try:
            return await self._dispatch(running)
        except asyncio.CancelledError:
            if running.reason is None:
                raise
            running.task.uncancel()
            raise running.reason from None
        except asyncpg.PostgresError as error:
            if running.reason is not None and error.sqlstate in sql_errors.CANCELLED:
                raise running.reason from None
            raise self._snowflake_error(error, running) from None
        except (asyncpg.InterfaceError, ConnectionError, OSError) as error:
            if running.reason is not None:
                raise running.reason from None
            if "the server expects" in str(error):  # asyncpg's text: the translation does not use a bind
                raise sql_errors.unsupported("argument that is no constant") from None
            restarted = "SQL execution internal error: the database behind the server restarted."
            raise self.backends.disk_full() or SqlError(sql_errors.INTERNAL, "XX000", restarted) from None
        except QueuedTooLong as error:
            raise sql_errors.queue_timed_out(int(error.timeout_s)) from None
        except (WarehouseSuspended, WarehouseDropped):
            raise sql_errors.no_warehouse() from None
        finally:
            if timer is not None:
                timer.cancel()

    def _snowflake_error(self, error: asyncpg.PostgresError, running: RunningStatement) -> SqlError:
        if error.sqlstate == sql_errors.DISK_FULL:
            return sql_errors.disk_full(self.backends.data_dir)
        found = sql_errors.from_postgres(error, running.statement.query_id)
        if found.errno == sql_errors.INTERNAL:
            return self.backends.disk_full() or found
        if found.errno == sql_errors.INVALID_IDENTIFIER and "invalid identifier" in found.message:
            name = postgres_names.full(found.message.rsplit("'", 2)[1])
            found = sql_errors.invalid_identifier(name, *parser.position(running.request.text, name))
        return found

    def _limit_s(self, running: RunningStatement) -> float:
        limit = running.parameter("STATEMENT_TIMEOUT_IN_SECONDS")
        warehouse = self.warehouses.get(running.session.warehouse or "")
        return shortest_s(float(limit), float(warehouse.settings.statement_timeout_s) if warehouse else 0.0)

    async def _dispatch(self, running: RunningStatement) -> StatementResult:
        session, request = running.session, running.request
        types, arrays = planner.signature(request.bindings)
        if request.describe_only and not types:
            # The binds are not known yet: TEXT is accepted everywhere.
            tokens = await self.planning.run(request.text, lambda: parser.tokens_of(request.text))
            types = ("TEXT",) * len(parser.placeholders(tokens))
        key = (request.text, session.database, session.schema, types, arrays)
        plan = self.planner.cached(key)
        if plan is None:
            tokens = await self.planning.run(request.text, lambda: parser.tokens_of(request.text))
            command = registry.find(tokens)
            if command is not None:
                check_command(tokens)
                running.statement.query_type = command.query_type
                if request.describe_only:
                    return command.description()
                words = split_compound_tokens(request.text, tokens)
                return await command.run(registry.CommandCall(self, session, words, request, running))
            namespace = (session.database, session.schema)
            version = self.catalog.version
            plan = await self.planning.run(
                request.text, lambda: self.planner.plan(request.text, tokens, *namespace, types, arrays)
            )
            if version == self.catalog.version:  # unless the catalogue changed while a long text was planned
                self.planner.keep(key, plan)
            running.statement.compile_ms = self.now_ms() - running.statement.start_ms
        running.statement.query_type = plan.kind
        running.statement.hybrid_only = plan.hybrid_only
        if request.describe_only:
            return await self._describe(session, plan)
        return await self.run_plan(plan, running)

    async def _describe(self, session: ServerSession, plan: StatementPlan) -> StatementResult:
        if plan.rowtype is None:
            backend = await self.backends.acquire(session.timezone)
            try:
                await describe(plan, backend, self.catalog.version)
            finally:
                await self.backends.release(backend)
        assert plan.rowtype is not None
        return StatementResult(plan.rowtype, [], plan.statement_type, 0, array_bind_supported=plan.array_bindable)

    # --- plans ------------------------------------------------------------------------------------------------------

    def warehouse_of(self, session: ServerSession) -> VirtualWarehouse:
        warehouse = self.warehouses.get(session.warehouse) if session.warehouse else None
        if warehouse is None:
            raise sql_errors.no_warehouse()
        return warehouse

    async def run_plan(self, plan: StatementPlan, running: RunningStatement) -> StatementResult:
        if self._control_latency is None:
            return await self._in_slot(plan, running)
        try:
            result = await self._in_slot(plan, running)
        except Exception:  # errors are delayed too
            await self._control_latency.delay(plan.tables)
            raise
        await self._control_latency.delay(plan.tables)
        return result

    async def _in_slot(self, plan: StatementPlan, running: RunningStatement) -> StatementResult:
        warehouse = self.warehouse_of(running.session)
        slot = warehouse.try_admit()
        if slot is None:
            running.statement.status = "queued"
            queued_s = running.parameter("STATEMENT_QUEUED_TIMEOUT_IN_SECONDS")
            slot = await warehouse.admit(queued_timeout_s=float(queued_s))
            running.statement.status = "running"
            running.statement.queued_ms = slot.queued_s * 1000
        running.slot = slot
        granted_s = time.monotonic()
        try:
            result = await self._on_backend(plan, running)
            if warehouse.service_time is not None:
                # The execution time is part of the service time, so that the model's rate is exact.
                used_s = time.monotonic() - granted_s
                await slot.serve(max(0.0, warehouse.service_s() - used_s))
            return result
        finally:
            slot.release()

    async def _on_backend(self, plan: StatementPlan, running: RunningStatement) -> StatementResult:
        session = running.session
        transaction = session.transaction
        if transaction is None and not session.autocommit and plan.reads_tables:
            transaction = await self.transactions.begin(session, "")
        if transaction is not None:
            return await self._in_transaction(transaction, plan, running)
        if plan.for_update:
            raise sql_errors.compilation(2, "0A000", "Unsupported feature 'FOR UPDATE outside a transaction'.")
        backend = await self.backends.acquire(session.timezone)
        running.backend = backend
        try:
            if plan.locked_table is None:
                return await self._run(backend, plan, running)
            async with backend.connection.transaction():
                await self._lock_table(backend, plan.locked_table, running, self.transactions.next_number())
                return await self._run(backend, plan, running)
        finally:
            running.backend = None
            await self.backends.release(backend)

    async def _in_transaction(
        self, transaction: Transaction, plan: StatementPlan, running: RunningStatement
    ) -> StatementResult:
        """Run within a savepoint: in Snowflake a failed statement does not end the transaction."""
        session = running.session
        async with transaction.lock:
            if session.transaction is not transaction:
                raise SqlError(603, "22000", "The transaction was ended by another statement of the session.")
            if transaction.lost or transaction.backend.connection.is_closed():
                raise sql_errors.transaction_lost()
            transaction.touched_s = time.monotonic()
            transaction.hybrid = transaction.hybrid or plan.hybrid_only
            running.statement.in_transaction = True
            backend = running.backend = transaction.backend
            try:
                if backend.timezone != session.timezone:
                    await backend.set_timezone(session.timezone)
                async with savepoint(backend, keep=plan.kind != "SELECT" or plan.for_update):
                    if plan.locked_table is not None:
                        await self._lock_table(backend, plan.locked_table, running, transaction.number)
                    return await self._run(backend, plan, running)
            finally:
                running.backend = None
                transaction.touched_s = time.monotonic()

    async def _lock_table(
        self, backend: Backend, table: CatalogTable, running: RunningStatement, transaction: int
    ) -> None:
        """Serialize DML on a standard table; at most 20 statements may wait."""
        await self.table_locks.take(backend, table, running, transaction, int(running.parameter("LOCK_TIMEOUT")))
        running.statement.status = "running"

    async def _run(self, backend: Backend, plan: StatementPlan, running: RunningStatement) -> StatementResult:
        version = self.catalog.version
        prepared = await backend.prepare(plan.sql, version)
        if plan.rowtype is None:
            await describe(plan, backend, version)
        arguments = await self.arguments(backend, plan, running) if plan.parameters else []
        watched = plan.kind != "SELECT" or plan.for_update
        if watched:
            limit_s = running.parameter("HYBRID_TABLE_LOCK_TIMEOUT")
            await backend.set_lock_timeout(int(limit_s) if plan.lock_wait_s is None else plan.lock_wait_s)
        running.check()
        watch = self.lock_watch.start(running) if watched else None
        try:
            records, charge = await backend.fetch(
                prepared, arguments, len(plan.columns), reject=running.cancel, check=running.check
            )
        finally:
            if watch is not None:
                watch.cancel()
        if plan.kind != "SELECT":
            return dml_result(plan, records, prepared.get_statusmsg())
        return await query_result(plan, records, charge, self.backends.memory)

    async def arguments(self, backend: Backend, plan: StatementPlan, running: RunningStatement) -> list[Any]:
        values: list[Any] = []
        for key in plan.parameters:
            function = next((one for one in plan.server_functions if one.parameter == key), None)
            if isinstance(key, int):
                values.append(planner.value(running.request.bindings or {}, plan.binds, key))
            elif function is not None:
                values.append(await server_function_rows(self, backend, running, function))
            else:
                values.append(context_value(running.session, key, running.statement.query_id))
        if plan.binds.arrays:
            planner.check_lengths(values)
        return values

    async def enter(self, session: ServerSession, login: LoginRequest) -> None:
        await database_setup.open_session(self, session, login)

    async def close(self, session: ServerSession) -> None:
        self.sessions.close(session)
        for running in list(self.running.values()):
            if running.session is session:
                running.cancel(sql_errors.canceled())
        if session.transaction is not None:
            async with session.transaction.lock:
                await self.transactions.end(session, "ROLLBACK")


# --- PostgreSQL's records as a result ---------------------------------------------------------------------------------

DEPTH_MAX = 1_000  # each level adds two spaces to all lines inside it
COUNTED_AT_ONCE = 1_000  # values
_TOKEN = re.compile(r'\s*([\[\]{},:"]|[^\s\[\]{},:"]+)')


@dataclass(slots=True)
class _Container:
    """An array or object that is being read."""

    opening: str
    closing: str
    values: list[Any] = field(default_factory=list)  # texts, and lists of texts and lists
    keys: list[str] = field(default_factory=list)  # of an object, as JSON strings
    is_leaf: bool = True  # contains no non-empty container

    def lines(self, depth: int) -> Any:
        """One text for a leaf, else a list of parts, so that texts are not copied once per level."""
        if not self.values:
            return self.opening + self.closing
        newline = "\n" + "  " * depth
        inner = newline + "  "
        values = self._members() if self.opening == "{" else self.values
        if self.is_leaf:
            return f"{self.opening}{inner}{f',{inner}'.join(values)}{newline}{self.closing}"
        parts = [self.opening]
        for value in values:
            parts += (inner if len(parts) == 1 else f",{inner}", value)
        return [*parts, newline, self.closing]

    def _members(self) -> list[Any]:
        pairs = sorted(zip(self.keys, self.values, strict=True), key=lambda pair: _decoded(pair[0]))
        return [f"{key}: {value}" if isinstance(value, str) else [f"{key}: ", value] for key, value in pairs]


def format_json(text: str, size: ResultSize) -> str:
    """JSON with an indent of two spaces, ordered keys and unchanged numbers. Raises SqlError if it is too large."""
    root = _Container("", "")
    open_containers = [root]
    inner = root
    position, count, characters = 0, 0, 0
    while (found := _TOKEN.match(text, position)) is not None:
        token, position = found[1], found.end()
        if token in ",:":
            continue
        if token == '"':
            start, position = position - 1, _string_end(text, position)
            token = text[start:position]
        count += 1
        characters += len(token) + 2 * len(open_containers)
        if count >= COUNTED_AT_ONCE:
            size.add(characters, count)
            count = characters = 0
        if token in "[{":
            if len(open_containers) > DEPTH_MAX:
                raise too_deep()
            inner = _Container(token, "]" if token == "[" else "}")
            open_containers.append(inner)
        elif token in "]}":
            closed = open_containers.pop()
            inner = open_containers[-1]
            inner.values.append(closed.lines(len(open_containers) - 1))
            inner.is_leaf = inner.is_leaf and not closed.values
        elif inner.opening == "{" and len(inner.keys) == len(inner.values):
            inner.keys.append(token)
        else:
            inner.values.append(token)
    size.add(characters, count)
    return _joined(root.values)


def too_deep() -> SqlError:
    return SqlError(100069, "22P02", f"Semi-structured value is nested too deeply: the limit is {DEPTH_MAX:,} levels.")


def _string_end(text: str, start: int) -> int:
    """The position after the closing quote of the string whose content begins at `start`."""
    while True:
        quote = text.index('"', start)
        before = quote
        while before > start and text[before - 1] == "\\":
            before -= 1
        start = quote + 1
        if (quote - before) % 2 == 0:
            return start


def _decoded(key: str) -> str:
    return str(json.loads(key)) if "\\" in key else key[1:-1]


def _joined(parts: list[Any]) -> str:
    flat: list[str] = []
    open_lists = [iter(parts)]
    while open_lists:
        for part in open_lists[-1]:
            if isinstance(part, str):
                flat.append(part)
            else:
                open_lists.append(iter(part))
                break
        else:
            open_lists.pop()
    return flat[0] if len(flat) == 1 else "".join(flat)


JSON_CHARACTERS_AT_ONCE = 16_384  # of semi-structured values; larger results are formatted in a thread


async def query_result(
    plan: StatementPlan, records: list[asyncpg.Record], charge: Charge | None, memory: ResultMemory
) -> StatementResult:
    """The result of a query. A large one is converted in a thread, because it would block the event loop."""
    size = ResultSize(memory, charge)
    try:
        if charge is None and (not plan.json_columns or _json_characters(plan, records) <= JSON_CHARACTERS_AT_ONCE):
            result = _converted(plan, records, size)
        else:
            result = await in_thread(lambda: _converted(plan, records, size), "large-result")
    except BaseException:
        if size.charge is not None:
            size.charge.release()
        raise
    result.charge = size.charge
    return result


def _json_characters(plan: StatementPlan, records: list[asyncpg.Record]) -> int:
    return sum(len(record[index] or "") for record in records for index in plan.json_columns)


def _converted(plan: StatementPlan, records: list[asyncpg.Record], size: ResultSize) -> StatementResult:
    rows: list[list[Any]] = [list(record)[:-1] if plan.last_hidden else list(record) for record in records]
    for index, convert in plan.converters:
        for row in rows:
            if row[index] is not None:
                row[index] = convert(row[index])
    for index in plan.json_columns:
        for row in rows:
            if row[index] is not None:
                row[index] = format_json(row[index], size)
    assert plan.rowtype is not None
    described: orjson.Fragment = _scaled(plan, rows) or plan.rowtype
    return StatementResult(described, rows, plan.statement_type, len(rows))


def dml_result(plan: StatementPlan, records: list[asyncpg.Record], status: str) -> StatementResult:
    assert plan.rowtype is not None
    if records:  # MERGE and UPDATE … FROM return their counts
        counts = [str(value) for value in records[0]]
        changed_rows = sum(map(int, counts)) if plan.kind == "MERGE" else int(counts[0])
        return StatementResult(plan.rowtype, [counts], plan.statement_type, changed_rows)
    count = status.rsplit(" ", 1)[-1]
    row = [count, "0"] if plan.kind == "UPDATE" else [count]
    return StatementResult(plan.rowtype, [row], plan.statement_type, int(count))


DIGITS_MAX = 38


def _digits(text: str) -> int:
    return len(text.partition(".")[0].lstrip("-"))


def _scaled(plan: StatementPlan, rows: list[list[Any]]) -> orjson.Fragment | None:
    """The description with the scales of the rows, because expressions have no declared scale."""
    columns = list(plan.columns)
    changed = False
    for index, (name, kind) in enumerate(columns):
        if kind is not NUMBER:
            continue
        if any(row[index] and len(row[index]) > DIGITS_MAX and _digits(row[index]) > DIGITS_MAX for row in rows):
            raise SqlError(100046, "22003", "Number out of representable range: more than 38 digits")
        scale = max((len(row[index]) - row[index].index(".") - 1 for row in rows if row[index] and "." in row[index]),
                    default=0)  # fmt: skip
        if scale:
            changed = True
            columns[index] = (name, SnowflakeType("FIXED", precision=38, scale=min(scale, 37)))
            pad = padded(scale)
            for row in rows:
                row[index] = pad(row[index]) if row[index] is not None else None
    return rowtype(plan, columns) if changed else None
