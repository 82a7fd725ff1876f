"""The server process: its options, its signals, PostgreSQL as its child, and its start and stop.

PostgreSQL is launched first. The modules that answer statements are imported while it starts.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from loadgen.embedded.datadir import DataDir, ListenAddress
from loadgen.embedded.performance_model import PerformanceModel
from loadgen.embedded.postgres import PostgresServer
from loadgen.errors import EmbeddedServerError
from loadgen.values import dataclass

HOST = "127.0.0.1"
POSTGRES_CONNECTIONS = 400
RECURSION_MAX = 15_000  # frames: a statement of a thousand terms is a tree a thousand levels deep


# Called with the address and the password file; None: no password is checked.
Ready = Callable[[ListenAddress, Path | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What `loadgen embedded serve` was asked for."""

    port: int
    data_dir: Path
    engine: str  # postgres | null
    service_time: str | None  # a SPEC for parse_service_time; for warehouses without a model
    slots: int  # for the same warehouses
    seed: int
    strict_hybrid: bool = False  # hybrid tables as the worst reading of Snowflake's documentation has them
    control_latency: str | None = None  # a SPEC: how much later statements on the control plane's tables are answered
    control_schemas: tuple[str, ...] = ()  # DATABASE.SCHEMA, *.SCHEMA
    performance: PerformanceModel | None = None  # of warehouses, by size and generation
    auth: bool = False  # check a password, kept in a file of the data directory
    until_eof: bool = False  # started by a command: see loadgen.embedded.admin.ServerUsage

    @property
    def about(self) -> dict[str, Any]:
        """The server's description of itself, for `/__loadgen/hold` and `/__loadgen/stats`."""
        kept = None if self.engine == "null" else os.path.realpath(self.data_dir)
        model = {"service_time": self.service_time, "slots": self.slots, "data_dir": kept}
        model |= {"strict_hybrid": self.strict_hybrid, "control_latency": self.control_latency}
        return model | {"engine": self.engine, "until_eof": self.until_eof, "pid": os.getpid()}


def serve(options: ServerOptions, ready: Ready) -> None:
    """Serve until SIGTERM or SIGINT, or `until_eof`; `ready` is called with the address. Call it on the main thread."""
    sys.setrecursionlimit(RECURSION_MAX)
    _open_standard_streams()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(options, ready))


def _open_standard_streams() -> None:
    """Reopen a daemon's closed stdin, stdout and stderr, so that no socket gets their numbers."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


async def _serve(options: ServerOptions, ready: Ready) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stopping.set)
    listener = _listen(options.port)
    try:
        if options.engine == "null":
            from loadgen.embedded.http_server import serve_null

            await serve_null(options, listener, stopping, ready)
            return
        with DataDir.claim(options.data_dir) as data_dir:
            postgres = PostgresServer(data_dir, max_connections=POSTGRES_CONNECTIONS)
            try:
                await postgres.launch()
                from loadgen.embedded.http_server import serve_postgres

                await postgres.wait_ready()
                await serve_postgres(options, data_dir, postgres, listener, stopping, ready)
            finally:
                await postgres.stop()
    finally:
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
