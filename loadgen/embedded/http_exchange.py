"""One HTTP request and its answer, with the limits of both, and the answers of injected faults."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from loadgen.embedded import wire
from loadgen.embedded.fault_injection import InjectedFault
from loadgen.embedded.result import Charge
from loadgen.embedded.session import ServerSession
from loadgen.embedded.sql_errors import SqlError
from loadgen.values import dataclass

JSON_TYPE, LINES_TYPE, TEXT_TYPE = b"application/json", b"application/x-ndjson", b"text/plain; charset=utf-8"
READ_S = 60.0  # for a client to read a large answer
FROM_HERE = (b"none", b"same-origin")  # Sec-Fetch-Site of what is typed into a browser; programs do not send it

MIB = 1 << 20
FREE_BODY_BYTES = 64 * 1024  # of each body: what any connection may send
SMALL_BODY_BYTES = MIB
BODIES_BYTES_MAX = 256 * MIB  # of all bodies that arrive or are being answered, beyond what is free
SMALL_BODIES_BYTES = 32 * MIB  # of these, for small ones only
RETRY_AFTER = (b"retry-after", b"1")

ReceiveMessage = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class BodyMemory:
    """Memory of all request bodies, from their first byte until they are answered. Owner: the event loop."""

    def __init__(self) -> None:
        self.used = 0

    def grow(self, before: int, after: int) -> bool:
        """A body has grown from `before` to `after` bytes. False: no memory is left, and nothing was added."""
        more = _counted(after) - _counted(before)
        limit = BODIES_BYTES_MAX if after <= SMALL_BODY_BYTES else BODIES_BYTES_MAX - SMALL_BODIES_BYTES
        if more and self.used + more > limit:
            return False
        self.used += more
        return True

    def give_back(self, size: int) -> None:
        self.used -= _counted(size)


def _counted(size: int) -> int:
    return max(0, size - FREE_BODY_BYTES)


@dataclass(slots=True)
class HttpExchange:
    """One request that is being served."""

    method: str
    path: str
    query: dict[str, list[str]]
    body: bytes
    encoding: bytes
    token: str
    receive: ReceiveMessage
    send: Send
    transport: Any
    connection: Any  # uvicorn's protocol, with `on_lost`
    session: ServerSession | None = None
    sql_text: str | None = None
    request_id: str | None = None
    query_id: str | None = None
    binds: int = 0
    status: int = 200
    outcome: str = "ok"
    fault: InjectedFault | None = None
    charge: Charge | None = None  # memory of a large answer

    def first(self, name: str) -> str | None:
        values = self.query.get(name)
        return values[0] if values else None

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        """Set the callback for the end of the client's connection; one at a time."""
        self.connection.on_lost = callback


@asynccontextmanager
async def reading(
    scope: dict[str, Any],
    receive: ReceiveMessage,
    send: Send,
    bytes_max: Callable[[str], int],
    memory: BodyMemory,
) -> AsyncIterator[HttpExchange | None]:
    """The request; None: it was refused, or its client left. Its body counts in `memory` until the end of the block.

    `bytes_max` returns the largest body that the request's token allows.
    """
    exchange, foreign = _head(scope, receive, send)
    limit = bytes_max(exchange.token)
    chunks: list[bytes] = []
    size, refusal = 0, 403 if foreign else 0
    try:
        while True:
            message = await receive()
            if message["type"] != "http.request":
                yield None
                return
            chunk = message.get("body", b"")
            if not memory.grow(size, size + len(chunk)):
                refusal = refusal or 503
                break
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                refusal = refusal or 413
            if not message.get("more_body") or size > limit:
                break
        if refusal:
            chunks.clear()
            await respond(exchange, refusal, b"{}", more=[RETRY_AFTER] if refusal == 503 else ())
            yield None
            return
        exchange.body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        yield exchange
    finally:
        memory.give_back(size)


def _head(scope: dict[str, Any], receive: ReceiveMessage, send: Send) -> tuple[HttpExchange, bool]:
    """The request without its body, and whether a web page sent it.

    A browser sends Origin or Sec-Fetch-Site, or another Host when a page's name resolves to this machine. Web pages may
    not use a local server.
    """
    encoding = token = b""
    foreign = False
    for name, value in scope["headers"]:
        if name == b"authorization":
            token = value
        elif name == b"content-encoding":
            encoding = value
        elif name == b"origin" or (name == b"sec-fetch-site" and value not in FROM_HERE):
            foreign = True
        elif name == b"host":
            foreign = foreign or not _is_here(value)
    path = scope["path"]
    exchange = HttpExchange(
        method=scope["method"],
        path=path if path == "/" else path.rstrip("/"),
        query=_query(scope["query_string"]),
        body=b"",
        encoding=encoding,
        token=_token(token),
        receive=receive,
        send=send,
        transport=scope["extensions"]["loadgen.transport"]["transport"],
        connection=scope["extensions"]["loadgen.transport"]["connection"],
    )
    return exchange, foreign


def _query(text: bytes) -> dict[str, list[str]]:
    """The parameters of a request. Most are ids without an escape, for which the library's parser is slow."""
    if b"%" in text or b"+" in text or b";" in text:
        return parse_qs(text.decode("latin-1"))
    pairs = (part.partition("=") for part in text.decode("latin-1").split("&") if part)
    return {name: [value] for name, _, value in pairs if value}


def _is_here(host: bytes) -> bool:
    name = host.decode("latin-1").rpartition(":")[0] or host.decode("latin-1")
    return name in ("127.0.0.1", "localhost") or name.endswith(".localhost")


def _token(header: bytes) -> str:
    """`Snowflake Token="…"`, or `Bearer …`."""
    text = header.decode("latin-1")
    if 'Token="' in text:
        return text.split('Token="', 1)[1].rstrip('"')
    return text.rpartition(" ")[2]


async def respond(
    exchange: HttpExchange, status: int, body: bytes, kind: bytes = JSON_TYPE, more: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    exchange.status = status
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), *more]
    await exchange.send({"type": "http.response.start", "status": status, "headers": headers})
    await exchange.send({"type": "http.response.body", "body": body})
    if exchange.charge is not None:
        await _sent(exchange)


async def _sent(exchange: HttpExchange) -> None:
    """Wait until the client has read a large answer; the connection of one that does not is closed."""
    try:
        async with asyncio.timeout(READ_S):
            await exchange.connection.flow.drain()
    except TimeoutError:
        reset(exchange)


async def send_lines(exchange: HttpExchange, lines: Iterator[bytes]) -> None:
    """Send a long answer in pieces, so that the event loop serves other requests in between."""
    await exchange.send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", LINES_TYPE)]})
    piece: list[bytes] = []
    for line in lines:
        piece.append(line)
        if len(piece) >= 500:
            await exchange.send({"type": "http.response.body", "body": b"".join(piece), "more_body": True})
            piece.clear()
            await asyncio.sleep(0)
    await exchange.send({"type": "http.response.body", "body": b"".join(piece)})


def reset(exchange: HttpExchange) -> None:
    """End the connection with a TCP reset, as by a crashed peer or a middlebox."""
    exchange.status = 0
    transport = exchange.transport
    raw = transport.get_extra_info("socket")
    if raw is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


async def truncate(exchange: HttpExchange, body: bytes) -> None:
    headers = [(b"content-type", JSON_TYPE), (b"content-length", str(len(body)).encode())]
    await exchange.send({"type": "http.response.start", "status": 200, "headers": headers})
    await exchange.send({"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True})
    exchange.transport.close()


async def wait_gone(exchange: HttpExchange, ms: float | None) -> None:
    try:
        async with asyncio.timeout(ms / 1000 if ms else None):
            while (await exchange.receive())["type"] != "http.disconnect":
                pass
    except TimeoutError:
        exchange.outcome = "fault hang (time over)"


HEAD_BYTES_MAX = 64 * 1024  # of the request line and all headers
FRAMING_BYTES_MAX = 64 * 1024  # of lengths and extensions of chunks, and of trailers; more with a longer body
BODY_BYTES_PER_FRAMING_BYTE = 16
PIECE_BYTES = 16 * 1024  # what the parser gets between two looks at the limits
PIPELINED_MAX = 16  # requests that wait for the answer to the one before; drivers send one at a time
ARRIVAL_S = 60.0  # for a whole request
LOOK_S = 5.0
TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Protocol(HttpToolsProtocol):
    """One connection. Faults reach its transport; its end cancels the statement that its client waits for."""

    on_lost: Callable[[], None] | None = None
    began_s: float | None = None  # when the request that is arriving now began to
    _head_bytes: int | None = 0  # of the head that is arriving; None: it is whole
    _after_head_bytes = 0
    _body_bytes = 0

    def data_received(self, data: bytes) -> None:
        if len(data) <= PIECE_BYTES:
            self._parse(data)
            return
        for start in range(0, len(data), PIECE_BYTES):
            if self.transport.is_closing():
                return
            self._parse(data[start : start + PIECE_BYTES])

    def _parse(self, piece: bytes) -> None:
        if self._head_bytes is not None:
            self._head_bytes += len(piece)
        else:
            self._after_head_bytes += len(piece)
        super().data_received(piece)
        if self._head_bytes is not None:
            if self._head_bytes > HEAD_BYTES_MAX:
                self._refuse_head()
            return
        framing = self._after_head_bytes - self._body_bytes
        if framing > FRAMING_BYTES_MAX + self._body_bytes // BODY_BYTES_PER_FRAMING_BYTE:
            self.transport.abort()  # an answer may have begun already

    def _refuse_head(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(TOO_LONG)
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= PIPELINED_MAX:
            raise ValueError("too many requests at once")  # the parser stops there, and the connection is closed
        super().on_message_begin()
        self.began_s = time.monotonic()
        self.scope["extensions"] = {"loadgen.transport": {"transport": self.transport, "connection": self}}

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_bytes is not None:  # else it is a trailer, which nothing reads
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._head_bytes is not None and self._head_bytes > HEAD_BYTES_MAX - PIECE_BYTES:  # count exactly
            head = len(self.url) + sum(len(name) + len(value) + len(b": \r\n") for name, value in self.headers)
            if head > HEAD_BYTES_MAX:
                self._refuse_head()
                raise ValueError("too long a head")  # the parser stops there
        self._head_bytes = None
        self._after_head_bytes = self._body_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

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


BIG_ERROR_BYTES = 1 << 20
FAULT_ERRNO = 603  # of a fault that names none
EXPIRED = SqlError(390112, "08001", "Session token expired.  Authenticate again.")


async def struck(exchange: HttpExchange) -> bool:
    """Apply the fault before the request is served; True: the request is answered already."""
    fault = exchange.fault
    assert fault is not None
    exchange.outcome = f"fault {fault.kind}"
    if fault.ms and fault.kind != "hang":
        await asyncio.sleep(fault.ms / 1000)
    match fault.kind:
        case "error" | "big_error":
            text = fault.message or f"fault {fault.rule_id}: an error was asked for"
            if fault.kind == "big_error":
                text = "x" * BIG_ERROR_BYTES
            error = SqlError(fault.errno or FAULT_ERRNO, fault.sqlstate or "22000", text)
            await respond(exchange, 200, wire.refused(error))
        case "http_status":
            await respond(exchange, fault.status or 503, (fault.message or "").encode(), TEXT_TYPE)
        case "reset":
            reset(exchange)
        case "hang":
            await wait_gone(exchange, fault.ms)
            reset(exchange)
        case "expire_session":
            if exchange.session is not None:
                exchange.session.expired = True
            await respond(exchange, 200, wire.refused(EXPIRED))
        case _:
            return False
    return True


async def deliver(exchange: HttpExchange, body: bytes) -> None:
    fault = exchange.fault
    if fault is not None and fault.kind == "drop_reply":
        reset(exchange)
    elif fault is not None and fault.kind == "truncate":
        await truncate(exchange, body)
    else:
        await respond(exchange, 200, body)
