"""The JSON of Snowflake's protocol: parses requests and writes answers."""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping
from typing import Any

import orjson

from loadgen.embedded.event_loop import in_thread
from loadgen.embedded.result import StatementResult
from loadgen.embedded.session import PARAMETERS, ServerSession
from loadgen.embedded.sql_errors import SqlError

BODY_BYTES_MAX = 64 * 1024 * 1024  # of a request with a session, before and after decompression
LOGIN_BODY_BYTES_MAX = 64 * 1024  # of a request without a session
INLINE_BYTES = 256 * 1024  # larger bodies are checked in a thread
VALUES_MAX = 1_000_000  # of one body: twice the limit of array binds
COUNTED_BYTES = 1 << 20  # per step of the count
TOKEN_VALIDITY_S = 3_600
MASTER_VALIDITY_S = 14_400
IN_PROGRESS, IN_PROGRESS_ASYNC = "333333", "333334"


class BadRequest(Exception):
    """The body does not follow the protocol."""

    status = 400


class Conflict(BadRequest):
    """The request would disturb another client."""

    status = 409


async def plain_body(body: bytes, encoding: bytes, bytes_max: int) -> bytes:
    """The decompressed body of a request. Raises BadRequest if it is too large or has too many values.

    Large bodies are checked in a thread, because they would block the event loop.
    """
    compressed = encoding == b"gzip" or body[:2] == b"\x1f\x8b"
    if len(body) <= INLINE_BYTES:
        plain, is_longer = _inflated(body, min(bytes_max, INLINE_BYTES)) if compressed else (body, False)
        if not is_longer:
            return plain
    return await in_thread(lambda: _checked(body, compressed, bytes_max), "large-body")


def _inflated(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    """The first `bytes_max` decompressed bytes, and whether the body is longer."""
    inflater = zlib.decompressobj(wbits=31)
    try:
        return inflater.decompress(body, bytes_max), bool(inflater.unconsumed_tail)
    except zlib.error:
        raise BadRequest("the body is not gzip") from None


def _checked(body: bytes, compressed: bool, bytes_max: int) -> bytes:
    if compressed:
        body, is_longer = _inflated(body, bytes_max)
        if is_longer:
            raise BadRequest("the body is too large")
    if _count_values(body) > VALUES_MAX:
        raise BadRequest(f"the body has more than {VALUES_MAX:,} values: send them in several requests")
    return body


def _count_values(body: bytes) -> int:
    """An upper limit of the number of values in a JSON text: opening brackets and commas outside of strings.

    They are counted before parsing, because the parser blocks other threads and an empty object takes 64 bytes.
    """
    found = _count_separators(body)
    if found <= VALUES_MAX:
        return found
    plain = body
    if b"\\" in body:
        plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # every remaining quote begins or ends a string
    strings = plain.count(b'"') // 2
    if strings > 2 * VALUES_MAX:  # at least half of them are values, not keys
        return strings // 2
    return _count_separators(b"".join(plain.split(b'"')[::2]))


def _count_separators(text: bytes) -> int:
    pieces = range(0, len(text), COUNTED_BYTES)
    return sum(text.count(mark, start, start + COUNTED_BYTES) for start in pieces for mark in (b",", b"{", b"["))


def parse(body: bytes) -> dict[str, Any]:
    """Parse the body of a request, which has to be an object."""
    parsed = parse_any(body)
    if not isinstance(parsed, dict):
        raise BadRequest("the body is not an object")
    return parsed


def parse_any(body: bytes) -> Any:
    """Parse the body of a request as JSON; an empty body is {}."""
    if not body:
        return {}
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        raise BadRequest("the body is not JSON") from None


def dumps(value: Any) -> bytes:
    return orjson.dumps(value)


def success(data: Any = None) -> bytes:
    return dumps({"data": data, "message": None, "code": None, "success": True})


def failure(error: SqlError, query_id: str | None = None) -> bytes:
    """The answer for an error; `code` has six digits as in Snowflake."""
    code = f"{error.errno:06d}"
    data = {
        "internalError": False,
        "errorCode": code,
        "age": 0,
        "sqlState": error.sqlstate,
        "queryId": query_id,
        "line": -1,
        "pos": -1,
        "type": "COMPILATION" if error.message.startswith("SQL compilation") else "EXECUTION",
    }
    return _dumps_any_text({"data": data, "code": code, "message": error.message, "success": False, "headers": None})


def _dumps_any_text(value: dict[str, Any]) -> bytes:
    try:
        return dumps(value)
    except TypeError:  # the message quotes a text of the user with an unpaired surrogate
        value["message"] = str(value["message"]).encode("utf-8", "replace").decode()
        return dumps(value)


def _parameters(session: ServerSession) -> list[dict[str, Any]]:
    return [{"name": name, "value": session.get(name)} for name in PARAMETERS]


def login_answer(session: ServerSession) -> bytes:
    info = {
        "databaseName": session.database,
        "schemaName": session.schema,
        "warehouseName": session.warehouse,
        "roleName": session.role,
    }
    return success(
        {
            "token": session.token,
            "masterToken": session.master_token,
            "validityInSeconds": TOKEN_VALIDITY_S,
            "masterValidityInSeconds": MASTER_VALIDITY_S,
            "displayUserName": session.user,
            "serverVersion": "9.99.0",
            "firstLogin": False,
            "healthCheckInterval": 45,
            "sessionId": session.number,
            "parameters": _parameters(session),
            "sessionInfo": info,
            "idToken": None,
            "responseData": None,
        }
    )


def renewal_answer(session: ServerSession) -> bytes:
    return success(
        {
            "sessionToken": session.token,
            "validityInSecondsST": TOKEN_VALIDITY_S,
            "masterToken": session.master_token,
            "validityInSecondsMT": MASTER_VALIDITY_S,
            "sessionId": session.number,
        }
    )


def query_answer(
    session: ServerSession, query_id: str, result: StatementResult, binds: Mapping[str, Any] | None
) -> bytes:
    data: dict[str, Any] = {
        "parameters": _parameters(session) if result.parameters_changed else session.shown_parameters,
        "rowtype": result.rowtype,
        "rowset": result.rows,
        "total": result.count,
        "returned": len(result.rows),
        "queryId": query_id,
        "databaseProvider": None,
        "finalDatabaseName": session.database,
        "finalSchemaName": session.schema,
        "finalWarehouseName": session.warehouse,
        "finalRoleName": session.role,
        "numberOfBinds": len(binds) if binds else 0,
        "arrayBindSupported": result.array_bind_supported,
        "statementTypeId": result.statement_type,
        "version": 1,
        "sendResultTime": time.time_ns() // 1_000_000,
        "queryResultFormat": "json",
    }
    return success(data)


def in_progress(query_id: str, asynchronous: bool) -> bytes:
    data = {
        "getResultUrl": f"/queries/{query_id}/result",
        "queryId": query_id,
        "queryAbortsAfterSecs": 300,
        "progressDesc": None,
    }
    code = IN_PROGRESS_ASYNC if asynchronous else IN_PROGRESS
    return dumps({"data": data, "code": code, "message": "Query execution in progress.", "success": asynchronous})
