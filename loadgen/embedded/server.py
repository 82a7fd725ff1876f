"""The server process: PostgreSQL below, HTTP above, and an orderly life from start to stop."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from loadgen import __version__
from loadgen.embedded import account, functions
from loadgen.embedded.app import App
from loadgen.embedded.backends import Backends
from loadgen.embedded.catalog import META_DDL, Catalog
from loadgen.embedded.datadir import Address, DataDir
from loadgen.embedded.engine import Engine
from loadgen.embedded.executor import Executor
from loadgen.embedded.history import History
from loadgen.embedded.null import NullEngine
from loadgen.embedded.postgres import Postgres
from loadgen.embedded.service_time import Alarm, ServiceTime, parse_service_time
from loadgen.embedded.services import Services
from loadgen.embedded.session import Sessions
from loadgen.embedded.usage import Usage
from loadgen.embedded.warehouse import Warehouses
from loadgen.errors import EmbeddedServerError

HOST = "127.0.0.1"
BACKENDS_MAX = 380
POSTGRES_CONNECTIONS = 400
HOUSEKEEPING_S = 5.0
DRAIN_S = 2.0
RECURSION_MAX = 15_000  # frames: a statement of a thousand terms is a tree a thousand levels deep
FULL_S = 1.0  # how often a full disk is looked at
RESTARTS_MAX = 5  # of PostgreSQL within a minute; then the server gives up


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `loadgen embedded serve` was asked for."""

    port: int
    data_dir: Path
    engine: str  # postgres | null
    service_time: str | None  # a SPEC that parse_service_time takes
    slots: int
    seed: int
    until_eof: bool = False  # started by a command for itself: see loadgen.embedded.usage

    @property
    def about(self) -> dict[str, Any]:
        """What whoever joins must know: it decides what is measured here."""
        shaping = {"engine": self.engine, "service_time": self.service_time, "slots": self.slots}
        return shaping | {"until_eof": self.until_eof, "pid": os.getpid()}


class _Protocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, with the transport within reach: faults have to break connections."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {"loadgen.transport": {"transport": self.transport}}


def serve(options: Options, ready: Callable[[Address], None]) -> None:
    """Serve until SIGTERM or SIGINT, or `until_eof`; `ready` is told the address. Call it on the main thread."""
    sys.setrecursionlimit(RECURSION_MAX)
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # requests that end with the server are no news
    _open_standard_streams()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(options, ready))


def _open_standard_streams() -> None:
    """A daemon's closed stdin, stdout and stderr: their numbers must not be given to sockets."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


async def _serve(options: Options, ready: Callable[[Address], None]) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stopping.set)
    listener = _listen(options.port)
    alarm = Alarm(time.monotonic)
    try:
        if options.engine == "null":
            await _serve_http(_null_engine(options, alarm), options, listener, stopping, ready)
            return
        with DataDir.claim(options.data_dir) as data_dir:
            async with _engine(options, data_dir, alarm, stopping) as engine:

                def publish(address: Address) -> None:
                    data_dir.publish(address, started_at=datetime.now(UTC), version=__version__)
                    ready(address)

                await _serve_http(engine, options, listener, stopping, publish)
    finally:
        alarm.close()
        listener.close()


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError as error:
        listener.close()
        what = f"cannot listen on {HOST}:{port}: {error.strerror}"
        raise EmbeddedServerError(what, remedy="Choose another port, or 0 for any free one.") from None
    listener.listen(1024)
    listener.setblocking(False)
    return listener


def _parts(options: Options, alarm: Alarm) -> dict[str, Any]:
    spec = parse_service_time(options.service_time)
    return {
        "warehouses": Warehouses(monotonic_s=time.monotonic, now_ms=_now_ms, sleeper=alarm, slots=options.slots),
        "history": History(now_ms=_now_ms, pid=os.getpid()),
        "sessions": Sessions(),
        "service_time": ServiceTime(spec, options.seed) if spec is not None else None,
        "services": Services(),
        "now_ms": _now_ms,
    }


def _now_ms() -> float:
    """The server's clock: epoch milliseconds that only go forward."""
    return _START_MS + (time.perf_counter() - _START_S) * 1000


_START_MS, _START_S = time.time() * 1000, time.perf_counter()


def _null_engine(options: Options, alarm: Alarm) -> NullEngine:
    return NullEngine(**_parts(options, alarm))


@asynccontextmanager
async def _engine(options: Options, data_dir: DataDir, alarm: Alarm, stopping: asyncio.Event) -> AsyncIterator[Engine]:
    postgres = Postgres(data_dir, max_connections=POSTGRES_CONNECTIONS)
    await postgres.start()
    backends = Backends(lambda: postgres.connect_kwargs, BACKENDS_MAX, data_dir.path)
    guard: asyncio.Task[None] | None = None
    try:
        engine = Engine(catalog=Catalog(), backends=backends, **_parts(options, alarm))
        await _prepare(engine)
        await account.furnish(engine)
        guard = asyncio.create_task(_guard(engine, postgres, stopping), name="postgres-guard")
        yield engine
    finally:
        problem = await _ended(guard)
        await backends.close()
        await postgres.stop()
        if problem is not None:
            raise problem


async def _ended(guard: asyncio.Task[None] | None) -> EmbeddedServerError | None:
    """Stop the guard; what it could not mend is why the server stops."""
    if guard is None:
        return None
    guard.cancel()
    (problem,) = await asyncio.gather(guard, return_exceptions=True)
    return problem if isinstance(problem, EmbeddedServerError) else None


async def _prepare(engine: Engine) -> None:
    """Bring a started PostgreSQL up to date: functions, catalogue."""
    backend = await engine.backends.acquire("UTC", urgent=True)
    try:
        async with engine.catalog.changing:
            await _load_functions(backend.connection)
            await engine.catalog.load(backend.connection)
    finally:
        await engine.backends.release(backend)


# A function cannot be replaced by one with other parameter names, nor dropped while a view or a default uses it. So the
# names of an older library's parameters are taken away before the new one replaces them, in the same transaction.
_UNNAME_PARAMETERS = """
UPDATE pg_proc SET proargnames = CASE WHEN proargmodes IS NULL THEN NULL ELSE ARRAY(
    SELECT CASE WHEN mode IN ('i', 'b', 'v') THEN '' ELSE name END
    FROM unnest(proargnames, proargmodes) WITH ORDINALITY AS argument(name, mode, position) ORDER BY position) END
WHERE pronamespace = 'sf'::regnamespace AND proargnames IS NOT NULL
"""


async def _load_functions(connection: Any) -> None:
    """The library of SQL functions, run again only when it changed."""
    text = functions.script()
    digest = hashlib.sha256(text.encode()).hexdigest()
    await connection.execute(META_DDL)
    known = await connection.fetchval("SELECT body FROM meta.object WHERE kind = 'functions' AND key = 'digest'")
    if known == f'"{digest}"':
        return
    async with connection.transaction():
        if known is not None:
            await connection.execute(_UNNAME_PARAMETERS)
        try:
            await connection.execute(text)
        except asyncpg.PostgresError as error:
            what = f"the data directory was made by another version of loadgen ({error})"
            raise EmbeddedServerError(what, remedy="Choose another directory with --data-dir, or remove it.") from None
        await connection.execute(
            "INSERT INTO meta.object VALUES ('functions', 'digest', $1)"
            " ON CONFLICT (kind, key) DO UPDATE SET body = excluded.body",
            f'"{digest}"',
        )


async def _guard(engine: Engine, postgres: Postgres, stopping: asyncio.Event) -> None:
    """Restart PostgreSQL when it dies under us; end transactions that nobody has touched for long.

    Raises EmbeddedServerError, and stops the server, when PostgreSQL cannot be kept alive.
    """
    restarts: list[float] = []
    death = asyncio.create_task(postgres.wait_dead(), name="postgres-wait")
    try:
        while True:
            done, _ = await asyncio.wait((death,), timeout=HOUSEKEEPING_S)
            if not done:
                await engine.reap_idle_transactions()
                continue
            engine.backends.up.clear()
            await _lose_all(engine)
            while not await _restarted(engine, postgres, restarts):
                pass
            death = asyncio.create_task(postgres.wait_dead(), name="postgres-wait")
    finally:
        death.cancel()
        stopping.set()


async def _lose_all(engine: Engine) -> None:
    """Every open transaction is gone with the database; its session is told with its next statement."""
    for session in engine.sessions.by_number.values():
        if session.transaction is not None and not session.transaction.lost:
            session.transaction.lost = True
            engine.backends.discard(session.transaction.backend)
    await engine.backends.close()


async def _restarted(engine: Engine, postgres: Postgres, restarts: list[float]) -> bool:
    """One attempt; statements wait until the database is back and the catalogue read. On a full disk it is put off:
    statements are told of that."""
    if engine.backends.disk_full() is not None:
        await asyncio.sleep(FULL_S)
        return False
    now_s = time.monotonic()
    restarts[:] = [moment for moment in restarts if moment > now_s - 60] + [now_s]
    if len(restarts) > RESTARTS_MAX:
        what = f"PostgreSQL died {len(restarts)} times within a minute"
        raise EmbeddedServerError(what, remedy=f"Its log is {postgres.log_path}.")
    try:
        await postgres.restart()
        await _prepare(engine)
    except (EmbeddedServerError, asyncpg.PostgresError, OSError):
        return False
    engine.backends.up.set()
    return True


async def _serve_http(
    executor: Executor,
    options: Options,
    listener: socket.socket,
    stopping: asyncio.Event,
    ready: Callable[[Address], None],
) -> None:
    usage = Usage(options.about)
    app = App(executor, usage, now_ms=_now_ms, seed=options.seed)
    config = uvicorn.Config(
        app, http=_Protocol, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
        date_header=False, timeout_keep_alive=600, timeout_graceful_shutdown=int(DRAIN_S), backlog=1024,
    )  # fmt: skip
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    serving = asyncio.create_task(_quietly(server, listener), name="http")
    while not server.started and not serving.done():
        await asyncio.sleep(0.005)
    gc.freeze()  # what is there now stays; the collector need not look at it again
    host, port = listener.getsockname()[:2]
    ends = [serving, asyncio.create_task(stopping.wait(), name="stopping")]
    if options.until_eof:
        unused = usage.unused(executor, lambda: len(server.server_state.connections))
        ends.append(asyncio.create_task(unused, name="unused"))
    try:
        ready(Address(host=host, port=port))  # raises when nobody can be told any more
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        usage.leaving = True  # from here on nobody is let in who would lose the server a moment later
        for end in ends[1:]:
            end.cancel()
        await _shut(server, serving)


async def _shut(server: uvicorn.Server, serving: asyncio.Task[None]) -> None:
    """End the HTTP side. Statements under way are not waited for: their client sees a lost connection."""
    server.should_exit = True
    server.force_exit = True
    for connection in list(server.server_state.connections):
        connection.transport.abort()
    await serving


async def _quietly(server: uvicorn.Server, listener: socket.socket) -> None:
    """uvicorn without its own signal handling: the process has one place for that."""
    config = server.config
    if not config.loaded:
        config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listener])
    if not server.should_exit:
        await server.main_loop()
    await server.shutdown(sockets=[listener])
