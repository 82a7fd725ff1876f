"""Requests that never end, and many at once, by hand: rejected, without delaying other clients."""

from __future__ import annotations

import gzip
import json
import select
import socket
from contextlib import ExitStack, closing, suppress
from typing import Any

import pytest

from loadgen.embedded import http_exchange
from loadgen.embedded import wire as protocol
from loadgen.embedded.session import SESSIONS_MAX
from loadgen.embedded.translate.planner import ARRAY_VALUES_MAX
from tests.embedded_server import EmbeddedServer
from tests.process.served import Refused, Wire, copied_data, serving
from tests.processes import PATIENCE_S, reachable_directory, wait_until
from tests.security.test_entrance import ask

BEGINNING = b"GET /__loadgen/stats HTTP/1.1\r\nHost: 127.0.0.1\r\n"
PIECE = 64 * 1024


def sent_until_closed(server: EmbeddedServer, beginning: bytes, piece: bytes, most: int) -> tuple[int, bytes]:
    """How many bytes the server took, and the first that it answered."""
    with closing(socket.create_connection((server.host, server.port), timeout=PATIENCE_S)) as connection:
        connection.sendall(beginning)
        sent = 0
        try:
            while sent < most:
                connection.sendall(piece)
                sent += len(piece)
        except OSError:
            pass
        try:
            return sent, connection.recv(4_096)
        except OSError:
            return sent, b""


@pytest.mark.parametrize(
    ("beginning", "piece"),
    [
        (b"GET /", b"a" * PIECE),
        (BEGINNING + b"X: ", b"a" * PIECE),
        (BEGINNING, b"X: " + b"a" * PIECE + b"\r\n"),
        (BEGINNING, b"X: a\r\n" * (PIECE // 6)),
    ],
    ids=["address", "value", "long headers", "short headers"],
)
def test_a_head_without_end_is_cut_off(server: EmbeddedServer, beginning: bytes, piece: bytes):
    most = 50 << 20
    other = Wire(server)

    sent, answer = sent_until_closed(server, beginning, piece, most)

    assert sent < most
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    assert other.answers()


CHUNKED = b"POST /session/v1/login-request HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("beginning", "piece"),
    [
        (CHUNKED + b"2\r\n{}\r\n0\r\n", b"a:\r\n" * (PIECE // 4)),
        (CHUNKED + b"2\r\n{}\r\n0\r\na: ", b"a" * PIECE),
        (CHUNKED + b"2;", b"a" * PIECE),
        (CHUNKED, b"1;" + b"a" * 1_000 + b"\r\n \r\n"),
        (CHUNKED, b"1\r\n \r\n" * (PIECE // 6)),
    ],
    ids=["trailers", "one trailer", "one extension", "extensions", "chunks of one byte"],
)
def test_a_chunked_body_without_end_is_cut_off_before_login(server: EmbeddedServer, beginning: bytes, piece: bytes):
    """The parser would hold the event loop for a minute, and keep every trailer."""
    most = 20 << 20
    other = Wire(server)

    sent, answer = sent_until_closed(server, beginning, piece, most)

    assert sent < most
    assert answer == b""
    assert other.answers()


def test_a_chunked_body_with_trailers_is_read(server: EmbeddedServer):
    login = json.dumps(
        {"data": {"LOGIN_NAME": "someone", "PASSWORD": server.password or "any"}, "more": "x" * 50_000}
    ).encode()
    chunks = b"".join(b"%x;a=b\r\n%s\r\n" % (len(part), part) for part in pieces(login, 1_000))
    with closing(socket.create_connection((server.host, server.port), timeout=PATIENCE_S)) as connection:
        connection.sendall(CHUNKED + chunks + b"0\r\nExpires: never\r\n\r\n")

        answer = b""
        while b'"token"' not in answer:
            more = connection.recv(65_536)
            assert more, answer
            answer += more


def pieces(whole: bytes, size: int) -> list[bytes]:
    return [whole[start : start + size] for start in range(0, len(whole), size)]


@pytest.mark.parametrize("size", [66_000, 90_000, 120_000, 200_000])
def test_a_whole_head_that_is_too_long_is_refused(server: EmbeddedServer, size: int):
    with closing(socket.create_connection((server.host, server.port), timeout=PATIENCE_S)) as connection:
        connection.sendall(BEGINNING + b"X: " + b"a" * size + b"\r\n\r\n")

        assert connection.recv(4_096).startswith(b"HTTP/1.1 431")


def test_requests_that_do_not_wait_for_an_answer_are_not_queued_without_end(server: EmbeddedServer):
    many = BEGINNING + b"\r\n"
    other = Wire(server)

    sent, _ = sent_until_closed(server, b"", many * 1_000, 50 << 20)

    assert sent < 50 << 20
    assert other.answers()


def test_a_head_of_the_usual_length_passes_in_any_pieces(server: EmbeddedServer):
    head = BEGINNING + b"X: " + b"a" * 8_000 + b"\r\n\r\n"
    with closing(socket.create_connection((server.host, server.port), timeout=PATIENCE_S)) as connection:
        for index in range(0, len(head), 1_000):
            connection.sendall(head[index : index + 1_000])

        assert connection.recv(4_096).startswith(b"HTTP/1.1 200")


def test_a_request_that_does_not_arrive_in_time_is_cut_off():
    class Transport:
        aborted = False

        def abort(self) -> None:
            self.aborted = True

    class Connection:
        def __init__(self, began_s: float | None) -> None:
            self.began_s, self.transport = began_s, Transport()

    arriving: list[Any] = [Connection(began_s) for began_s in (None, 0.0, 100.0)]

    http_exchange.cut_off(arriving, 100.0)

    assert [one.transport.aborted for one in arriving] == [False, True, False]


def test_bodies_that_are_still_arriving_are_limited_together(server: EmbeddedServer):
    wire = Wire(server)
    length = 60 << 20
    with ExitStack() as stack:
        arriving = [stack.enter_context(closing(begun_request(server, wire.token, length))) for _ in range(5)]
        for connection in arriving:
            with suppress(OSError):  # one that was refused need not take the rest
                connection.sendall(b" " * (length - 1))
        refused = wait_until(lambda: select.select(arriving, [], [], 0)[0], "one body too many is refused")
        answer = refused[0].recv(4_096)

        assert answer.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in answer
        assert len(refused) < len(arriving)
        assert wire.sql(f"SELECT 1 /* {'x' * 300_000} */") == [["1"]]
    wait_until(wire.answers, "nothing is left of them")


def begun_request(server: EmbeddedServer, token: str, length: int) -> socket.socket:
    """One whose body is to come."""
    connection = socket.create_connection((server.host, server.port), timeout=PATIENCE_S)
    head = f'POST /queries/v1/query-request HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Snowflake Token="{token}"\r\n'
    connection.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode())
    return connection


def test_memory_of_bodies_is_released():
    memory = http_exchange.BodyMemory()
    small, most = http_exchange.SMALL_BODY_BYTES, http_exchange.BODIES_BYTES_MAX

    assert memory.grow(0, http_exchange.FREE_BODY_BYTES)
    assert memory.used == 0
    assert memory.grow(0, most - http_exchange.SMALL_BODIES_BYTES)
    assert not memory.grow(0, 2 * small)
    assert memory.grow(0, small)
    memory.release(small)
    memory.release(most - http_exchange.SMALL_BODIES_BYTES)
    assert memory.used == 0


def test_a_request_id_that_is_too_long_is_refused(server: EmbeddedServer):
    status, body = Wire(server).post(f"/queries/v1/query-request?requestId={'x' * 1_000}", {"sqlText": "SELECT 1"})

    assert (status, b"requestId is longer than" in body) == (400, True)


def test_sessions_that_are_never_used_do_not_keep_others_out():
    with reachable_directory() as path, serving(copied_data(path / "data")) as server:
        used = Wire(server, "used")
        assert used.answers()
        greedy, who = Wire(server, "greedy"), {"data": {"LOGIN_NAME": "greedy", "PASSWORD": "any"}}
        for _ in range(SESSIONS_MAX):
            assert b'"token"' in greedy.post("/session/v1/login-request", who)[1]

        assert Wire(server, "other").answers()
        assert used.answers()
        assert server.ask("/__loadgen/stats")["open_sessions"] == SESSIONS_MAX


def test_too_many_values_in_an_array_bind_are_refused(server: EmbeddedServer):
    wire = Wire(server)
    wire.sql("CREATE DATABASE IF NOT EXISTS ARRAYS")
    wire.sql("CREATE OR REPLACE TABLE ARRAYS.PUBLIC.T (X NUMBER)")
    binds = {"1": {"type": "FIXED", "value": ["1"] * (ARRAY_VALUES_MAX + 1)}}

    with pytest.raises(Refused, match=f"more than {ARRAY_VALUES_MAX}"):
        wire.sql("INSERT INTO ARRAYS.PUBLIC.T VALUES (?)", bindings=binds)

    assert wire.sql("SELECT COUNT(*) FROM ARRAYS.PUBLIC.T") == [["0"]]


def test_a_body_of_too_many_values_is_refused_before_it_is_parsed(server: EmbeddedServer):
    """The parser would hold the event loop for a second, and take a gigabyte."""
    wire = Wire(server)
    token = {"Authorization": f'Snowflake Token="{wire.token}"', "Content-Encoding": "gzip"}
    bodies = [
        b'{"sqlText": "SELECT 1", "more": [' + (value + b",") * many + value + b"]}"
        for value, many in ((b"{}", protocol.VALUES_MAX // 2 + 1), (b"[]", 20_000_000), (b'""', 20_000_000))
    ]
    texts = json.dumps({"sqlText": "SELECT 1", "more": "[{,\\" * protocol.VALUES_MAX}).encode()

    refused = [ask(server, "POST", "/queries/v1/query-request", gzip.compress(body, 1), **token) for body in bodies]
    of_texts, _ = ask(server, "POST", "/queries/v1/query-request", gzip.compress(texts, 1), **token)

    for status, answer in refused:
        assert (status, b"more than 1,000,000 values" in answer) == (400, True)
    assert of_texts == 200  # brackets and commas inside strings are no values
