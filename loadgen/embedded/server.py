"""The server process: options, signals, start and stop, PostgreSQL as a child process.

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
RECURSION_MAX = 15_000  # frames: the tree of a statement with 1,000 terms has 1,000 levels


# Called with the address and the password file, which is None if no password is checked.
Ready = Callable[[ListenAddress, Path | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options of `loadgen embedded serve`."""

    port: int
    data_dir: Path
    engine: str  # postgres | null
    service_time: str | None  # a SPEC of parse_service_time, for warehouses without a model
    slots: int  # for warehouses without a model
    seed: int
    strict_hybrid: bool = False  # least favourable behaviour of hybrid tables, see docs/embedded.md
    control_latency: str | None = None  # a SPEC: delay of answers to statements on tables of the control plane
    control_schemas: tuple[str, ...] = ()  # of these tables: DATABASE.SCHEMA or *.SCHEMA
    performance: PerformanceModel | None = None  # --model
    auth: bool = False  # check the password that is stored in the data directory
    until_eof: bool = False  # the server was started by a command: see loadgen.embedded.admin.ServerUsage

    @property
    def description(self) -> dict[str, Any]:
        """The options as shown by `/__loadgen/hold` and `/__loadgen/stats`."""
        data_dir = None if self.engine == "null" else os.path.realpath(self.data_dir)
        model = {"service_time": self.service_time, "slots": self.slots, "data_dir": data_dir}
        model |= {"strict_hybrid": self.strict_hybrid, "control_latency": self.control_latency}
        return model | {"engine": self.engine, "until_eof": self.until_eof, "pid": os.getpid()}


def serve(options: ServerOptions, ready: Ready) -> None:
    """Serve until a signal, or the end of an `until_eof` server. To be called on the main thread."""
    sys.setrecursionlimit(RECURSION_MAX)
    _open_standard_streams()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(options, ready))


def _open_standard_streams() -> None:
    """Reopen closed stdin, stdout and stderr of a daemon. Otherwise sockets would get their file descriptors."""
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
