"""uvicorn's HTTP protocol with limits: how long the head of a request may be, how long a request may take to arrive,
and how many may come before the first is answered.

Without them the parser joins the pieces of a header one by one, which takes quadratic time; a request that does not go
on is waited for without end; and requests are queued without end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES_MAX = 64 * 1024  # of the request line and all headers, and what arrived with their end
PIPELINED_MAX = 16  # requests that wait for the answer to the one before; drivers send one at a time
ARRIVAL_S = 60.0  # for a whole request
LOOK_S = 5.0
TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Protocol(HttpToolsProtocol):
    """One connection. The transport is within reach (faults have to break connections), and its end calls back: a
    statement whose client is gone is cancelled."""

    on_lost: Callable[[], None] | None = None
    began_s: float | None = None  # when the request that is arriving now began to
    _head_bytes: int | None = 0  # of the head that is arriving; None: it is whole

    def data_received(self, data: bytes) -> None:
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes is not None and self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self.transport.write(TOO_LONG)
            self.transport.close()

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= PIPELINED_MAX:
            raise ValueError("too many requests at once")  # the parser stops there, and the connection is closed
        super().on_message_begin()
        self.began_s = time.monotonic()
        self._head_bytes = 0
        self.scope["extensions"] = {"loadgen.transport": {"transport": self.transport, "connection": self}}

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self.began_s = None
        self._head_bytes = 0
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()


async def cut_off_slow_requests(connections: Iterable[Any]) -> None:
    """End connections whose request does not arrive, until cancelled."""
    while True:
        await asyncio.sleep(LOOK_S)
        cut_off(connections, time.monotonic())


def cut_off(connections: Iterable[Any], now_s: float) -> None:
    for connection in list(connections):
        if connection.began_s is not None and now_s - connection.began_s > ARRIVAL_S:
            connection.transport.abort()
