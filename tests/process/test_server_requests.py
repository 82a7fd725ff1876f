"""Requests that make no sense are refused and hurt no other client."""

import contextlib
import gzip
import json
import re
import socket
import struct
import uuid
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from tests.process.served import Server, Wire, copied_data, serving
from tests.processes import PATIENCE_S, reachable_directory, wait_until

LOGIN, QUERY = "/session/v1/login-request", "/queries/v1/query-request"
ENOUGH = {"LOGIN_NAME": "A", "PASSWORD": "x"}
SELECT = {"sqlText": "SELECT 1"}


@pytest.fixture(scope="module")
def target() -> Iterator[Server]:
    """One server for all bad requests: each must leave it whole for the next."""
    with reachable_directory() as path, serving(copied_data(path / "data")) as server:
        yield server


@pytest.fixture(scope="module")
def transaction(target: Server) -> Iterator[Wire]:
    """A well-behaved session with an open transaction. It can be committed after all bad requests."""
    session = Wire(target, databaseName="CANARY")
    session.sql("CREATE HYBRID TABLE CANARY (ID NUMBER PRIMARY KEY)")
    session.sql("BEGIN")
    session.sql("INSERT INTO CANARY VALUES (1)")
    yield session
    session.sql("COMMIT")
    assert session.sql("SELECT ID FROM CANARY") == [["1"]]
    session.close()


@pytest.fixture
def canary(target: Server, transaction: Wire) -> Iterator[None]:
    """The transaction must not notice anything of a test, and no error is logged."""
    said = len(target.errors)
    yield
    assert transaction.sql("SELECT ID FROM CANARY") == [["1"]]
    assert target.process.poll() is None
    assert "Z error " not in target.errors[said:]  # the log level; bad requests deserve a warning at most


BODIES = [b"", b"not json", b"null", b"[]", b'"x"', b"{}", b'{"data": ', b"\xff\xfe", b"[" * 100_000, b"1" * 10_000]
LOGINS = [
    {"data": []},
    {"data": "x"},
    {"data": {"LOGIN_NAME": {}, "PASSWORD": []}},
    {"data": {"LOGIN_NAME": ["A"], "PASSWORD": {"a": 1}}},
    {"data": ENOUGH | {"SESSION_PARAMETERS": [1]}},
    {"data": ENOUGH | {"SESSION_PARAMETERS": "x"}},
    {"data": ENOUGH | {"SESSION_PARAMETERS": {"TIMEZONE": {}, "AUTOCOMMIT": [], "QUERY_TAG": None}}},
    {"data": ENOUGH | {"SESSION_PARAMETERS": {"TIMEZONE": "../../etc/passwd"}}},
    {"data": ENOUGH | {"SESSION_PARAMETERS": {"STATEMENT_TIMEOUT_IN_SECONDS": "²"}}},
    {"data": ENOUGH | {"AUTHENTICATOR": 5, "CLIENT_ENVIRONMENT": 5, "CLIENT_APP_ID": {}}},
]
QUERIES: list[dict[str, Any]] = [
    {"sqlText": None},
    {"sqlText": 5},
    {"sqlText": ""},
    {"sqlText": ";"},
    {"sqlText": "\0"},
    {"sqlText": "SELECT '\0'"},
    {"sqlText": "SELECT '\ud800'"},
    {"sqlText": "SELECT " + "(" * 50_000},
    {"sqlText": "SELECT " + "1 + " * 50_000 + "1"},
    {"sqlText": "SELECT ?", "bindings": True},
    {"sqlText": "SELECT ?", "bindings": 5},
    {"sqlText": "SELECT ?", "bindings": "x"},
    {"sqlText": "SELECT ?", "bindings": [1]},
    {"sqlText": "SELECT ?", "bindings": {"1": 5}},
    {"sqlText": "SELECT ?", "bindings": {"1": None}},
    {"sqlText": "SELECT ?", "bindings": {"1": {}}},
    {"sqlText": "SELECT ?", "bindings": {"2": {"type": "TEXT", "value": "x"}}},
    {"sqlText": "SELECT ?", "bindings": {"1": {"type": 5, "value": {}}}},
    {"sqlText": "SELECT ?", "bindings": {"1": {"type": "FIXED", "value": "one"}}},
    {"sqlText": "SELECT ?", "bindings": {"1": {"type": "DATE", "value": "9" * 30}}},
    {"sqlText": "SELECT ?", "bindings": {"1": {"type": "TIMESTAMP_TZ", "value": "x y z"}}},
    {"sqlText": "SELECT ?", "bindings": {"1": {"type": "NONSENSE", "value": "1"}}},
    {"sqlText": "SELECT ?", "bindings": {"1": {"type": "TEXT", "value": [["a"], {}]}}},
    SELECT | {"parameters": []},
    SELECT | {"parameters": 5},
    SELECT | {"parameters": {"QUERY_TAG": {}, "STATEMENT_TIMEOUT_IN_SECONDS": "x"}},
    SELECT | {"parameters": {"MULTI_STATEMENT_COUNT": []}},
    SELECT | {"describeOnly": "maybe", "asyncExec": 0, "sequenceId": {}},
    {"sqlText": "SELECT ?", "describeOnly": True, "bindings": 1},
]
PATHS = [
    ("GET", "/"),
    ("POST", "/"),
    ("GET", "//"),
    ("GET", QUERY),
    ("DELETE", QUERY),
    ("BREW", QUERY),
    ("OPTIONS", "*"),
    ("POST", f"{QUERY}/more"),
    ("POST", "/nothing/here"),
    ("GET", "/%ff%fe%00"),
    ("GET", "/../../etc/passwd"),
    ("GET", "/" + "x" * 60_000),
    ("GET", "/queries//result"),
    ("GET", "/queries/x/result"),
    ("GET", f"/queries/{'x' * 10_000}/result"),
    ("GET", "/monitoring/queries/"),
    ("GET", "/monitoring/queries/x"),
    ("POST", "/session"),
    ("POST", "/session?delete=maybe"),
    ("POST", "/session/token-request"),
    ("POST", "/queries/v1/abort-request"),
    ("POST", f"{QUERY}?requestId=%ff&requestId=&=&&retryCount=%C2%B2"),
    ("POST", f"{QUERY}?retryCount={'9' * 5_000}"),
    ("GET", "/__loadgen/history?since=%C2%B2"),
    ("GET", "/__loadgen/history?since=-1"),
    ("GET", "/__loadgen/history?since=nan&tag=%ff"),
    ("GET", f"/__loadgen/journal?since={'9' * 5_000}"),
    ("GET", "/__loadgen/journal?match=(&since=."),
    ("GET", "/__loadgen/nothing"),
    ("POST", "/__loadgen/faults"),
    ("POST", "/__loadgen/services"),
]
FAULTS: list[Any] = [
    {},
    [1],
    [[]],
    {"match": 5},
    {"match": "(", "kind": "error"},
    {"match": "x", "kind": "nothing"},
    {"match": "x", "kind": "latency", "ms": "long"},
    {"match": "x", "kind": "error", "probability": 7, "count": -1},
]


def assert_refused_politely(status: int, body: bytes) -> None:
    """An answer in HTTP's 4xx, or an answer of the protocol that names no exception of Python."""
    assert status == 200 or 400 <= status < 500, (status, body[:300])
    assert re.search(rb"internal error: \w+\.", body) is None


@pytest.mark.parametrize("path", [LOGIN, QUERY, "/queries/v1/abort-request", "/__loadgen/faults", "/telemetry/send"])
@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_a_body_that_violates_the_protocol_is_rejected(target, canary, path, body):
    wire = Wire(target)

    assert_refused_politely(*wire.post(path, body))


@pytest.mark.parametrize("body", LOGINS, ids=range(len(LOGINS)))
def test_a_login_with_fields_of_the_wrong_kind_is_refused_or_entered(target, canary, body):
    assert_refused_politely(*Wire(target).post(LOGIN, body))


@pytest.mark.parametrize("body", QUERIES, ids=range(len(QUERIES)))
def test_a_query_with_fields_of_the_wrong_kind_is_refused_or_answered(target, canary, body):
    wire = Wire(target)

    assert_refused_politely(*wire.post(f"{QUERY}?requestId={uuid.uuid4()}", body))
    assert wire.answers()


@pytest.mark.parametrize(("method", "path"), PATHS, ids=[f"{method} {path[:40]}" for method, path in PATHS])
def test_a_path_or_method_that_means_nothing_is_refused_or_ignored(target, canary, method, path):
    assert_refused_politely(*Wire(target).post(path, SELECT if path.startswith(QUERY) else b"", method))


@pytest.mark.parametrize("body", FAULTS, ids=range(len(FAULTS)))
def test_a_fault_that_makes_no_sense_is_refused(target, canary, body):
    status, answer = Wire(target).post("/__loadgen/faults", body)

    assert status == 400, answer
    assert target.ask("/__loadgen/faults") == []


@pytest.mark.parametrize("body", [{"name": 5, "logs": []}, {"logs": "x"}, {"name": "X", "status": {}}])
def test_a_report_of_a_service_that_makes_no_sense_is_refused(target, canary, body):
    assert_refused_politely(*Wire(target).post("/__loadgen/services", body))


@pytest.mark.parametrize("more", [{}, {"describeOnly": True}])
def test_an_asynchronous_query_needs_no_request_id(target, canary, more):
    wire = Wire(target)

    status, body = wire.post(QUERY, {"sqlText": "SELECT SYSTEM$WAIT(1)", "asyncExec": True} | more)

    assert_refused_politely(status, body)
    assert json.loads(body)["data"]["queryId"]


@pytest.mark.parametrize("token", ["", "None", "x" * 10_000, "ü", '"', "Basic eDp5", "Bearer", 'Snowflake Token="'])
def test_a_wrong_token_opens_nothing(target, canary, token):
    wire = Wire(target)
    wire.token = ""

    status, body = wire.post(QUERY, SELECT, Authorization=token.encode().decode("latin-1"))

    assert status == 200
    assert json.loads(body)["success"] is False
    assert json.loads(body)["code"].startswith("3901")


@pytest.mark.parametrize(
    "body",
    [b"not gzip", b"\x1f\x8b", gzip.compress(b"not json"), gzip.compress(json.dumps(SELECT).encode())[:-10], b""],
    ids=["plain", "magic only", "not json", "cut", "empty"],
)
def test_a_body_that_is_not_gzip_is_refused(target, canary, body):
    status, _ = Wire(target).post(QUERY, body, **{"Content-Encoding": "gzip"})

    assert status == 400


def test_a_gzip_bomb_is_refused_without_its_memory(target, canary):
    wire = Wire(target)
    before = psutil.Process(target.process.pid).memory_info().rss
    bomb = gzip.compress(b'{"sqlText": "' + b" " * (1 << 29), compresslevel=1)

    status, _ = wire.post(QUERY, bomb, **{"Content-Encoding": "gzip"})

    assert 400 <= status < 500
    assert wire.answers()
    assert psutil.Process(target.process.pid).memory_info().rss - before < 512 << 20


def test_a_body_without_end_is_refused_and_not_kept(target, canary):
    piece = b" " * (1 << 20)
    with socket.create_connection((target.host, target.port), timeout=PATIENCE_S) as raw:
        raw.sendall(f"POST {QUERY} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {1 << 40}\r\n\r\n".encode())
        with contextlib.suppress(OSError):  # it may well hang up in the middle
            for _ in range(600):
                raw.sendall(piece)
        assert raw.recv(65_536).startswith(b"HTTP/1.1 413 ")
    assert psutil.Process(target.process.pid).memory_info().rss < 1 << 30


RAW = {
    "binary": bytes(range(256)) * 40,
    "zeros": bytes(100_000),
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "line without end": b"G" * 200_000,
    "old": b"GET /\r\n\r\n",
    "http 2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no colon": b"GET / HTTP/1.1\r\nHost x\r\n\r\n",
    "bad path": b"GET /\xff\xfe HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "negative length": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
    "huge length": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
    "bad chunk": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "upgrade": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "connect": b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\n\r\n",
    "expect": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\n" + b"".join(b"H%d: x\r\n" % number for number in range(20_000)) + b"\r\n",
    "half a header": b"POST /queries/v1/query-request HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Le",
    "half a body": b"POST /queries/v1/query-request HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{",
    "two at once": b"GET /a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
}


@pytest.mark.parametrize("reset", [False, True], ids=["close", "reset"])
@pytest.mark.parametrize("name", RAW)
def test_bytes_that_are_no_request_do_no_harm(target, canary, name, reset):
    with socket.create_connection((target.host, target.port), timeout=PATIENCE_S) as raw:
        with contextlib.suppress(OSError):  # it may well hang up in the middle
            raw.sendall(RAW[name])
        if reset:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return
        answer = b""
        with contextlib.suppress(OSError):
            raw.shutdown(socket.SHUT_WR)
            while piece := raw.recv(65_536):
                answer += piece
    assert re.match(rb"(HTTP/1\.[01] [1234]\d\d |$)", answer), answer[:300]
    assert b"HTTP/1.1 5" not in answer


def test_idle_connections_do_not_keep_others_out(target, canary):
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection((target.host, target.port), timeout=PATIENCE_S))

        assert Wire(target).answers()


def test_a_client_that_disconnects_during_a_statement_does_no_harm(target, canary):
    before = target.ask("/__loadgen/stats")["statements"]
    for _ in range(20):
        wire = Wire(target)
        body = json.dumps({"sqlText": "SELECT SYSTEM$WAIT(1)"})
        wire.http.request("POST", QUERY, body, {"Authorization": f'Snowflake Token="{wire.token}"'})
        wire.close()

    wait_until(lambda: target.ask("/__loadgen/stats")["statements"] >= before + 20, "the statements over")
    assert target.ask("/__loadgen/stats")["running"] == 0


@pytest.mark.parametrize("origin", ["https://example.com", "http://127.0.0.1:8085", "null"])
def test_a_web_page_is_refused_and_changes_nothing(target, canary, origin):
    wire = Wire(target, databaseName="WEB")
    wire.sql("CREATE OR REPLACE TABLE T (X NUMBER)")
    fault = {"match": "nothing", "kind": "error"}
    target.fault(**fault)

    asked = [
        wire.post(QUERY, {"sqlText": "INSERT INTO T VALUES (1)"}, Origin=origin),
        wire.post(LOGIN, {"data": ENOUGH}, Origin=origin),
        wire.post("/__loadgen/faults", fault, Origin=origin),
        wire.post("/__loadgen/faults", b"", "DELETE", Origin=origin),
        wire.post("/__loadgen/history", b"", "GET", Origin=origin),
        wire.post(QUERY, b"", "OPTIONS", Origin=origin),
    ]

    assert [status for status, _ in asked] == [403] * len(asked)
    assert wire.sql("SELECT COUNT(*) FROM T") == [["0"]]
    assert len(target.ask("/__loadgen/faults")) == 1
    target.clear_faults()
