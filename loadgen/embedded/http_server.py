"""Builds engine, warehouses, sessions and the HTTP server; restarts PostgreSQL; the null engine."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import time
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import asyncpg
import uvicorn
from uvicorn.server import ServerState

from loadgen import __version__
from loadgen.embedded import database_setup, sql_errors
from loadgen.embedded.admin import ServerUsage, WarehouseModels
from loadgen.embedded.app import App
from loadgen.embedded.backend_pool import Backend, BackendPool
from loadgen.embedded.catalog import Catalog
from loadgen.embedded.commands.services import ContainerServices
from loadgen.embedded.datadir import PASSWORD_FILE, DataDir, ListenAddress
from loadgen.embedded.engine import Engine
from loadgen.embedded.event_loop import WakeupTimer
from loadgen.embedded.http_exchange import HttpConnection, cut_off_slow_requests
from loadgen.embedded.performance_model import ControlLatency
from loadgen.embedded.postgres import STATEMENT_ROLE, PostgresServer
from loadgen.embedded.result import NUMBER, StatementResult, table
from loadgen.embedded.session import (
    DEFAULT_WAREHOUSE,
    Authenticator,
    LoginRequest,
    ServerSession,
    ServerSessions,
    load_or_create_password,
)
from loadgen.embedded.statement_history import StatementHistory, StatementRecord
from loadgen.embedded.transactions import Executor, QueryRequest
from loadgen.embedded.warehouse import QueuedTooLong, VirtualWarehouses, WarehouseModel, WarehouseSettings
from loadgen.errors import EmbeddedServerError
from loadgen.log import event
from loadgen.service_time import parse_service_time

if TYPE_CHECKING:
    from loadgen.embedded.server import Ready, ServerOptions  # which imports this module when it starts

_log = logging.getLogger(__name__)
_ROW = table([("1", NUMBER)], [["1"]], 0x1000)


class NullEngine(Executor):
    """Answers every statement with one row; has sessions, warehouse slots, service times and history."""

    async def enter(self, session: ServerSession, login: LoginRequest) -> None:
        session.parameters = dict(login.session_parameters)
        session.database, session.schema = login.database, login.schema
        session.warehouse = login.warehouse or DEFAULT_WAREHOUSE
        if session.warehouse not in self.warehouses:
            self.warehouses.add(WarehouseSettings(name=session.warehouse, created_on_ms=self.now_ms()))

    async def execute(self, session: ServerSession, request: QueryRequest) -> tuple[StatementRecord, StatementResult]:
        statement = self.history.begin(session.context, request.text, self.now_ms())
        statement.query_type = "SELECT"
        try:
            warehouse = self.warehouses.get(session.warehouse or "")
            assert warehouse is not None
            slot = warehouse.try_admit() or await warehouse.admit()
            try:
                statement.queued_ms = slot.queued_s * 1000
                if warehouse.service_time is not None:
                    await slot.serve(warehouse.service_s())
            finally:
                slot.release()
            statement.rows = 1
        except QueuedTooLong as error:
            raise sql_errors.queue_timed_out(int(error.timeout_s)) from None
        except asyncio.CancelledError:
            statement.error_code = 604
            raise
        finally:
            self.history.end(statement)
        return statement, _ROW

    async def close(self, session: ServerSession) -> None:
        self.sessions.close(session)


BACKENDS_MAX = 380
BACKLOG = 1024
HOUSEKEEPING_S = 5.0
KEEP_ALIVE_S = 600
GC_THRESHOLD = (700, 10, 10)  # of Python; higher values make pauses rarer but longer
DISK_FULL_POLL_S = 1.0
RESTARTS_MAX = 5  # of PostgreSQL within a minute; then the server stops


async def serve_null(options: ServerOptions, listener: socket.socket, stopping: asyncio.Event, ready: Ready) -> None:
    """Serve without a database until `stopping`. The password file is in a temporary directory."""
    timer = WakeupTimer(time.monotonic)
    with ExitStack() as stack:
        stack.callback(timer.close)
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="loadgen-null-"))) if options.auth else None
        engine = NullEngine(**_parts(options, timer))
        await _serve_http(engine, options, folder, listener, stopping, ready)


async def serve_postgres(
    options: ServerOptions,
    data_dir: DataDir,
    postgres: PostgresServer,
    listener: socket.socket,
    stopping: asyncio.Event,
    ready: Ready,
) -> None:
    """Serve until `stopping`, on a PostgreSQL that accepts connections and is restarted if it ends."""

    def publish(address: ListenAddress, password_file: Path | None) -> None:
        data_dir.publish(address, started_at=datetime.now(UTC), version=__version__)
        ready(address, password_file)

    timer = WakeupTimer(time.monotonic)
    backends = BackendPool(lambda: postgres.connect_kwargs(STATEMENT_ROLE), BACKENDS_MAX, data_dir.path)
    guard: asyncio.Task[None] | None = None
    try:
        engine = Engine(
            catalog=Catalog(),
            backends=backends,
            strict=options.strict_hybrid,
            control_latency=_control_latency(options, timer),
            **_parts(options, timer),
        )
        await _prepare(engine, postgres)
        await database_setup.create_initial_objects(engine)
        if not options.auth:  # clients take the file as a sign that passwords are checked
            (data_dir.path / PASSWORD_FILE).unlink(missing_ok=True)
        guard = asyncio.create_task(_guard(engine, postgres, stopping), name="postgres-guard")
        await _serve_http(engine, options, data_dir.path, listener, stopping, publish)
    finally:
        problem = await _ended(guard)
        await backends.close()
        timer.close()
        if problem is not None:
            raise problem


def _parts(options: ServerOptions, timer: WakeupTimer) -> dict[str, Any]:
    default = WarehouseModel.of(options.slots, options.service_time)
    return {
        "warehouses": VirtualWarehouses(
            monotonic_s=time.monotonic,
            now_ms=_now_ms,
            sleeper=timer,
            default=default,
            seed=options.seed,
            performance=options.performance,
        ),
        "history": StatementHistory(now_ms=_now_ms),
        "sessions": ServerSessions(),
        "services": ContainerServices(),
        "now_ms": _now_ms,
    }


def _control_latency(options: ServerOptions, timer: WakeupTimer) -> ControlLatency | None:
    spec = parse_service_time(options.control_latency)
    return None if spec is None else ControlLatency(spec, options.control_schemas, options.seed, timer)


def _now_ms() -> float:
    """The server's clock: epoch milliseconds that never decrease."""
    return _START_MS + (time.perf_counter() - _START_S) * 1000


_START_MS, _START_S = time.time() * 1000, time.perf_counter()


async def _ended(guard: asyncio.Task[None] | None) -> EmbeddedServerError | None:
    """Stop the guard; returns its error, which has stopped the server."""
    if guard is None:
        return None
    guard.cancel()
    (problem,) = await asyncio.gather(guard, return_exceptions=True)
    if problem is None or isinstance(problem, (asyncio.CancelledError, EmbeddedServerError)):
        return problem if isinstance(problem, EmbeddedServerError) else None
    return EmbeddedServerError(f"PostgreSQL can no longer be monitored: {type(problem).__name__}: {problem}")


async def _prepare(engine: Engine, postgres: PostgresServer) -> None:
    """Set up PostgreSQL if necessary, and load the catalogue."""
    backend = await _first_backend(engine.backends, postgres)
    try:
        async with engine.catalog.changing:
            await engine.catalog.load(backend.connection)
    finally:
        await engine.backends.release(backend)


async def _first_backend(backends: BackendPool, postgres: PostgresServer) -> Backend:
    """Connect; the superuser connects only if the setup is not up to date."""
    with suppress(asyncpg.InvalidAuthorizationSpecificationError):  # the role does not exist yet
        backend = await backends.acquire("UTC", urgent=True)
        ready = False
        try:
            ready = await database_setup.is_up_to_date(backend.connection)
        finally:
            if not ready:
                backends.discard(backend)
        if ready:
            return backend
    await database_setup.set_up(postgres)
    return await backends.acquire("UTC", urgent=True)


async def _guard(engine: Engine, postgres: PostgresServer, stopping: asyncio.Event) -> None:
    """Restart PostgreSQL when it ends; abort transactions that have been idle too long.

    Stops the server and raises EmbeddedServerError if PostgreSQL ends too often.
    """
    restarts: list[float] = []
    death = asyncio.create_task(postgres.wait_dead(), name="postgres-wait")
    try:
        while True:
            done, _ = await asyncio.wait((death,), timeout=HOUSEKEEPING_S)
            if not done:
                await engine.transactions.reap_idle()
                continue
            engine.backends.up.clear()
            await _mark_transactions_lost(engine)
            while not await _restart(engine, postgres, restarts):
                pass
            death = asyncio.create_task(postgres.wait_dead(), name="postgres-wait")
    finally:
        death.cancel()
        stopping.set()


async def _mark_transactions_lost(engine: Engine) -> None:
    """Open transactions were lost with the database; the next statement of their sessions gets an error."""
    for session in engine.sessions.by_number.values():
        if session.transaction is not None and not session.transaction.lost:
            session.transaction.lost = True
            engine.backends.discard(session.transaction.backend)
    await engine.backends.close()


async def _restart(engine: Engine, postgres: PostgresServer, restarts: list[float]) -> bool:
    """Try to restart PostgreSQL; statements wait meanwhile. While the disk is full, statements fail instead."""
    if engine.backends.disk_full() is not None:
        await asyncio.sleep(DISK_FULL_POLL_S)
        return False
    now_s = time.monotonic()
    restarts[:] = [moment for moment in restarts if moment > now_s - 60] + [now_s]
    if len(restarts) > RESTARTS_MAX:
        what = f"PostgreSQL ended unexpectedly {len(restarts)} times within a minute"
        raise EmbeddedServerError(what, remedy=f"Its log is {postgres.log_path}.")
    try:
        await postgres.restart()
        await _prepare(engine, postgres)
    except (EmbeddedServerError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        return False
    except Exception as error:  # the driver raises various errors if PostgreSQL ends again
        event(_log, logging.WARNING, "postgresql_not_restarted", why=f"{type(error).__name__}: {error}")
        return False
    engine.backends.up.set()
    return True


# --- HTTP ------------------------------------------------------------------------------------------------------------


async def _serve_http(
    executor: Executor,
    options: ServerOptions,
    folder: Path | None,
    listener: socket.socket,
    stopping: asyncio.Event,
    ready: Ready,
) -> None:
    """Serve with uvicorn's protocol, but without its server, which polls for its end ten times a second."""
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # no log of requests that are aborted at the stop
    password_file = folder / PASSWORD_FILE if folder is not None and options.auth else None
    authenticator = Authenticator(load_or_create_password(password_file.parent) if password_file is not None else None)
    usage = ServerUsage(options.description)
    models = WarehouseModels(executor.warehouses, folder)
    app = App(executor, usage, authenticator, models, now_ms=_now_ms, seed=options.seed)
    config = uvicorn.Config(
        app, http=HttpConnection, ws="none", lifespan="off",
        log_config=None, access_log=False, server_header=False, date_header=False, timeout_keep_alive=KEEP_ALIVE_S,
    )  # fmt: skip
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: HttpConnection(config=config, server_state=state, app_state={}), sock=listener, backlog=BACKLOG
    )
    gc.set_threshold(*GC_THRESHOLD)
    gc.freeze()  # these objects are not collected before the server ends
    host, port = listener.getsockname()[:2]
    ends: list[asyncio.Task[Any]] = [asyncio.create_task(stopping.wait(), name="stopping")]
    slow = asyncio.create_task(cut_off_slow_requests(state.connections), name="slow-requests")
    if options.until_eof:
        unused = usage.wait_unused(executor, lambda: len(state.connections))
        ends.append(asyncio.create_task(unused, name="unused"))
    try:
        ready(ListenAddress(host=host, port=port), password_file)  # raises if stdout is closed
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        usage.is_stopping = True  # from here on `hold` is rejected
        for end in (*ends, slow):
            end.cancel()
        server.close()
        # Running statements are not awaited: their clients lose the connection.
        for connection in list(state.connections):
            connection.transport.abort()
