"""Who uses the server, and when one that nobody owns any more may go.

`loadgen embedded serve --until-eof` is started by a command for itself: its stdin is a pipe whose other end only that
command holds, so the kernel tells of the command's end, kill -9 included. But others may have joined meanwhile, and
must not lose the server under their feet. So after the end of stdin it goes on

    while anybody holds it     another command of loadgen keeps `GET /__loadgen/hold` open for as long as it runs;
                               its connection, too, ends with the process
    while a client works       a session is open, and a request ended or a client waited for a statement in the last 3 s

and stops as soon as neither is true. Open sessions alone do not count: a killed client never logs out, so its session
stays for ever. Nor does a statement whose client is gone, and nothing is left that could wait for it once the last
connection has ended. Requests to `/__loadgen/…` look at the server and do not use it.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from loadgen.embedded import wire
from loadgen.embedded.http_exchange import LINES_TYPE, HttpExchange, respond, wait_gone
from loadgen.embedded.running import Executor

IDLE_S = 3.0
LOOK_S = 0.1


class ServerUsage:
    """What is known about the users. Only the event loop's thread touches it."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        self.about = about  # how the server was started
        self.holders = 0
        self.used_s = time.perf_counter()  # when a client last got an answer or was seen waiting for one
        self.leaving = False

    async def hold(self, exchange: HttpExchange) -> None:
        """Answer what this server is, and count as a user until the other side goes. 503: it is leaving already."""
        if self.leaving:
            await respond(exchange, 503, b'{"error": "the server is stopping"}')
            return
        self.holders += 1
        try:
            headers = [(b"content-type", LINES_TYPE)]
            await exchange.send({"type": "http.response.start", "status": 200, "headers": headers})
            line = wire.dumps(self.about) + b"\n"
            await exchange.send({"type": "http.response.body", "body": line, "more_body": True})
            await wait_gone(exchange, None)
        finally:
            self.holders -= 1

    async def unused(self, executor: Executor, connections: Callable[[], int]) -> None:
        """Wait for stdin to end and for everybody to have gone; from then on nobody can join."""
        await _stdin_ended()
        while True:
            now_s = time.perf_counter()
            if executor.history.running and connections():
                self.used_s = now_s
            if may_stop(holders=self.holders, sessions=len(executor.sessions), idle_s=now_s - self.used_s):
                self.leaving = True
                return
            await asyncio.sleep(LOOK_S)


def may_stop(*, holders: int, sessions: int, idle_s: float) -> bool:
    """The rule of this module, for a server whose starter is gone."""
    return holders == 0 and (sessions == 0 or idle_s >= IDLE_S)


async def _stdin_ended() -> None:
    """Read stdin to its end, in a thread: the event loop cannot watch every kind of file. A daemon holds up nobody."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def read() -> None:
        with suppress(OSError):  # cannot be read: as good as ended
            while os.read(0, 4096):
                pass
        with suppress(RuntimeError):  # the loop was closed first: a signal stopped the server
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=read, name="stdin", daemon=True).start()
    await ended.wait()
