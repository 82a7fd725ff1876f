"""An HTTP request and its answer, with limits of memory and time, and the answers of injected faults."""

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
READ_S = 60.0  # time limit of a client to read a large answer
# Sec-Fetch-Site of addresses that are typed into a browser; programs do not send the header.
ALLOWED_FETCH_SITES = (b"none", b"same-origin")

MIB = 1 << 20
FREE_BODY_BYTES = 64 * 1024  # of each body, not counted
SMALL_BODY_BYTES = MIB
BODIES_BYTES_MAX = 256 * MIB  # of all bodies that are received or processed, without FREE_BODY_BYTES
SMALL_BODIES_BYTES = 32 * MIB  # the part of it that is reserved for small bodies
RETRY_AFTER = (b"retry-after", b"1")

ReceiveMessage = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class BodyMemory:
    """Counts the memory of all request bodies, from the first byte until the answer. Owner: the event loop."""

    def __init__(self) -> None:
        self.used = 0

    def grow(self, before: int, after: int) -> bool:
        """Add the growth of a body from `before` to `after` bytes. False if it exceeds the limit; nothing is added."""
        added = _counted(after) - _counted(before)
        limit = BODIES_BYTES_MAX if after <= SMALL_BODY_BYTES else BODIES_BYTES_MAX - SMALL_BODIES_BYTES
        if added and self.used + added > limit:
            return False
        self.used += added
        return True

    def release(self, size: int) -> None:
        self.used -= _counted(size)


def _counted(size: int) -> int:
    return max(0, size - FREE_BODY_BYTES)


@dataclass(slots=True)
class HttpExchange:
    """A request and the state of its answer."""

    method: str
    path: str
    query: dict[str, list[str]]
    body: bytes
    encoding: bytes
    token: str
    receive: ReceiveMessage
    send: Send
    transport: Any
    connection: Any  # an HttpConnection
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

    def on_disconnect(self, callback: Callable[[], None] | None) -> None:
        """Set or remove the callback for the end of the client's connection."""
        self.connection.on_lost = callback


@asynccontextmanager
async def read_request(
    scope: dict[str, Any],
    receive: ReceiveMessage,
    send: Send,
    bytes_max: Callable[[str], int],
    memory: BodyMemory,
) -> AsyncIterator[HttpExchange | None]:
    """Receive a request; None if it was rejected or the client disconnected.

    Its body counts in `memory` until the end of the block. `bytes_max` returns the size limit of the body for a token.
    """
    exchange, is_from_page = _read_head(scope, receive, send)
    limit = bytes_max(exchange.token)
    chunks: list[bytes] = []
    size, error_status = 0, 403 if is_from_page else 0
    try:
        while True:
            message = await receive()
            if message["type"] != "http.request":
                yield None
                return
            chunk = message.get("body", b"")
            if not memory.grow(size, size + len(chunk)):
                error_status = error_status or 503
                break
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                error_status = error_status or 413
            if not message.get("more_body") or size > limit:
                break
        if error_status:
            chunks.clear()
            await respond(exchange, error_status, b"{}", headers=[RETRY_AFTER] if error_status == 503 else ())
            yield None
            return
        exchange.body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        yield exchange
    finally:
        memory.release(size)


def _read_head(scope: dict[str, Any], receive: ReceiveMessage, send: Send) -> tuple[HttpExchange, bool]:
    """The request without its body, and whether a web page sent it: web pages must not use a local server.

    For a page, a browser sends Origin or Sec-Fetch-Site, or a foreign Host if the page's name resolves to this machine.
    """
    encoding = token = b""
    is_from_page = False
    for name, value in scope["headers"]:
        if name == b"authorization":
            token = value
        elif name == b"content-encoding":
            encoding = value
        elif name == b"origin" or (name == b"sec-fetch-site" and value not in ALLOWED_FETCH_SITES):
            is_from_page = True
        elif name == b"host":
            is_from_page = is_from_page or not _is_loopback(value)
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
    return exchange, is_from_page


def _query(text: bytes) -> dict[str, list[str]]:
    """Parse the query string. Most contain ids without escapes, for which parse_qs is slow."""
    if b"%" in text or b"+" in text or b";" in text:
        return parse_qs(text.decode("latin-1"))
    pairs = (part.partition("=") for part in text.decode("latin-1").split("&") if part)
    return {name: [value] for name, _, value in pairs if value}


def _is_loopback(host: bytes) -> bool:
    name = host.decode("latin-1").rpartition(":")[0] or host.decode("latin-1")
    return name in ("127.0.0.1", "localhost") or name.endswith(".localhost")


def _token(header: bytes) -> str:
    """The token of `Snowflake Token="…"`, `Bearer …` or `Basic …`."""
    text = header.decode("latin-1")
    if 'Token="' in text:
        return text.split('Token="', 1)[1].rstrip('"')
    return text.rpartition(" ")[2]


async def respond(
    exchange: HttpExchange,
    status: int,
    body: bytes,
    content_type: bytes = JSON_TYPE,
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> None:
    exchange.status = status
    listed = [(b"content-type", content_type), (b"content-length", str(len(body)).encode()), *headers]
    await exchange.send({"type": "http.response.start", "status": status, "headers": listed})
    await exchange.send({"type": "http.response.body", "body": body})
    if exchange.charge is not None:
        await _wait_sent(exchange)


async def _wait_sent(exchange: HttpExchange) -> None:
    """Wait until the client has read a large answer; after a timeout the connection is reset."""
    try:
        async with asyncio.timeout(READ_S):
            await exchange.connection.flow.drain()
    except TimeoutError:
        reset(exchange)


async def send_lines(exchange: HttpExchange, lines: Iterator[bytes]) -> None:
    """Send a long answer in pieces, so that other requests are served in between."""
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
    """End the connection with a TCP reset, as a crashed peer or a middlebox does."""
    exchange.status = 0
    transport = exchange.transport
    raw = transport.get_extra_info("socket")
    if raw is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


async def truncate(exchange: HttpExchange, body: bytes) -> None:
    """Send half of the body and close the connection."""
    headers = [(b"content-type", JSON_TYPE), (b"content-length", str(len(body)).encode())]
    await exchange.send({"type": "http.response.start", "status": 200, "headers": headers})
    await exchange.send({"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True})
    exchange.transport.close()


async def wait_disconnect(exchange: HttpExchange, ms: float | None) -> None:
    """Wait until the client disconnects; at most `ms` if given."""
    try:
        async with asyncio.timeout(ms / 1000 if ms else None):
            while (await exchange.receive())["type"] != "http.disconnect":
                pass
    except TimeoutError:
        exchange.outcome = "fault hang (timeout)"


HEAD_BYTES_MAX = 64 * 1024  # of the request line and all headers
FRAMING_BYTES_MAX = 64 * 1024  # of chunk sizes, chunk extensions and trailers; the limit grows with the body
BODY_BYTES_PER_FRAMING_BYTE = 16
PIECE_BYTES = 16 * 1024  # input of the parser between two checks of the limits
PIPELINED_MAX = 16  # requests that wait for the answer to an earlier one; drivers do not pipeline
ARRIVAL_S = 60.0  # time limit to receive a request
CHECK_S = 5.0
HEAD_TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class HttpConnection(HttpToolsProtocol):
    """An HTTP connection. Faults use its transport; its end cancels the statement that the client waits for."""

    on_lost: Callable[[], None] | None = None
    began_s: float | None = None  # start of the request that is being received
    _head_bytes: int | None = 0  # received bytes of the head; None: the head is complete
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
                self._reject_head()
            return
        framing = self._after_head_bytes - self._body_bytes
        if framing > FRAMING_BYTES_MAX + self._body_bytes // BODY_BYTES_PER_FRAMING_BYTE:
            self.transport.abort()  # no error answer: another one may have begun

    def _reject_head(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(HEAD_TOO_LONG)
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= PIPELINED_MAX:
            raise ValueError("too many pipelined requests")  # the parser stops, and the connection is closed
        super().on_message_begin()
        self.began_s = time.monotonic()
        self.scope["extensions"] = {"loadgen.transport": {"transport": self.transport, "connection": self}}

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_bytes is not None:  # trailers are ignored
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if (
            self._head_bytes is not None and self._head_bytes > HEAD_BYTES_MAX - PIECE_BYTES
        ):  # may be too long: count exactly
            head = len(self.url) + sum(len(name) + len(value) + len(b": \r\n") for name, value in self.headers)
            if head > HEAD_BYTES_MAX:
                self._reject_head()
                raise ValueError("the head is too long")  # the parser stops
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
    """Close connections whose request is not received in time, until cancelled."""
    while True:
        await asyncio.sleep(CHECK_S)
        cut_off(connections, time.monotonic())


def cut_off(connections: Iterable[Any], now_s: float) -> None:
    for connection in list(connections):
        if connection.began_s is not None and now_s - connection.began_s > ARRIVAL_S:
            connection.transport.abort()


BIG_ERROR_BYTES = 1 << 20
FAULT_ERRNO = 603  # default of a fault rule
EXPIRED = SqlError(390112, "08001", "Session token expired.  Authenticate again.")


async def apply_fault(exchange: HttpExchange) -> bool:
    """Apply the fault before the request is served; True if that has ended the request."""
    fault = exchange.fault
    assert fault is not None
    exchange.outcome = f"fault {fault.kind}"
    if fault.ms and fault.kind != "hang":
        await asyncio.sleep(fault.ms / 1000)
    match fault.kind:
        case "error" | "big_error":
            text = fault.message or f"injected by fault rule {fault.rule_id}"
            if fault.kind == "big_error":
                text = "x" * BIG_ERROR_BYTES
            error = SqlError(fault.errno or FAULT_ERRNO, fault.sqlstate or "22000", text)
            await respond(exchange, 200, wire.failure(error))
        case "http_status":
            await respond(exchange, fault.status or 503, (fault.message or "").encode(), TEXT_TYPE)
        case "reset":
            reset(exchange)
        case "hang":
            await wait_disconnect(exchange, fault.ms)
            reset(exchange)
        case "expire_session":
            if exchange.session is not None:
                exchange.session.expired = True
            await respond(exchange, 200, wire.failure(EXPIRED))
        case _:
            return False
    return True


async def deliver(exchange: HttpExchange, body: bytes) -> None:
    """Send the answer, or what a fault makes of it."""
    fault = exchange.fault
    if fault is not None and fault.kind == "drop_reply":
        reset(exchange)
    elif fault is not None and fault.kind == "truncate":
        await truncate(exchange, body)
    else:
        await respond(exchange, 200, body)
