"""The protocol's JSON: reads requests and writes answers."""

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

BODY_BYTES_MAX = 64 * 1024 * 1024  # of a request with a session, plain and inflated
LOGIN_BODY_BYTES_MAX = 64 * 1024  # of a request without one
INLINE_BYTES = 256 * 1024  # of a body; a larger one is checked by a thread
VALUES_MAX = 1_000_000  # of one body: twice what array binds may have
COUNTED_BYTES = 1 << 20  # at a time
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
    """A request's body without gzip. Raises BadRequest when it is larger, or has more values, than allowed.

    A large body is checked by a thread, so that the event loop serves others meanwhile.
    """
    compressed = encoding == b"gzip" or body[:2] == b"\x1f\x8b"
    if len(body) <= INLINE_BYTES:
        small, more = _inflated(body, min(bytes_max, INLINE_BYTES)) if compressed else (body, False)
        if not more:
            return small
    return await in_thread(lambda: _checked(body, compressed, bytes_max), "large-body")


def _inflated(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    """The first `bytes_max` bytes, and whether there are more."""
    inflater = zlib.decompressobj(wbits=31)
    try:
        return inflater.decompress(body, bytes_max), bool(inflater.unconsumed_tail)
    except zlib.error:
        raise BadRequest("the body is not gzip") from None


def _checked(body: bytes, compressed: bool, bytes_max: int) -> bytes:
    if compressed:
        body, more = _inflated(body, bytes_max)
        if more:
            raise BadRequest("the body is too large")
    if _values(body) > VALUES_MAX:
        raise BadRequest(f"the body has more than {VALUES_MAX:,} values: send them in several requests")
    return body


def _values(body: bytes) -> int:
    """How many values the JSON text has at most: opening brackets and commas outside of strings.

    It is counted before parsing: the parser does not let other threads run, and an empty object takes 64 bytes.
    """
    found = _marks(body)
    if found <= VALUES_MAX:
        return found
    plain = body
    if b"\\" in body:
        plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # every quote that is left begins or ends a string
    strings = plain.count(b'"') // 2
    if strings > 2 * VALUES_MAX:  # at least half of them are no keys
        return strings // 2
    return _marks(b"".join(plain.split(b'"')[::2]))


def _marks(text: bytes) -> int:
    pieces = range(0, len(text), COUNTED_BYTES)
    return sum(text.count(mark, start, start + COUNTED_BYTES) for start in pieces for mark in (b",", b"{", b"["))


def parse(body: bytes) -> dict[str, Any]:
    """A request's body as an object."""
    parsed = parse_any(body)
    if not isinstance(parsed, dict):
        raise BadRequest("the body is not an object")
    return parsed


def parse_any(body: bytes) -> Any:
    """A request's body as JSON, an empty one as {}."""
    if not body:
        return {}
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        raise BadRequest("the body is not JSON") from None


def dumps(value: Any) -> bytes:
    return orjson.dumps(value)


def done(data: Any = None) -> bytes:
    return dumps({"data": data, "message": None, "code": None, "success": True})


def refused(error: SqlError, query_id: str | None = None) -> bytes:
    """An error answer; `code` has six digits as Snowflake's has."""
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
    return _lenient({"data": data, "code": code, "message": error.message, "success": False, "headers": None})


def _lenient(value: dict[str, Any]) -> bytes:
    try:
        return dumps(value)
    except TypeError:  # half a surrogate pair in a message that quotes the user's text
        value["message"] = str(value["message"]).encode("utf-8", "replace").decode()
        return dumps(value)


def parameters_of(session: ServerSession) -> list[dict[str, Any]]:
    return [{"name": name, "value": session.get(name)} for name in PARAMETERS]


def logged_in(session: ServerSession) -> bytes:
    info = {
        "databaseName": session.database,
        "schemaName": session.schema,
        "warehouseName": session.warehouse,
        "roleName": session.role,
    }
    return done(
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
            "parameters": parameters_of(session),
            "sessionInfo": info,
            "idToken": None,
            "responseData": None,
        }
    )


def renewed(session: ServerSession) -> bytes:
    return done(
        {
            "sessionToken": session.token,
            "validityInSecondsST": TOKEN_VALIDITY_S,
            "masterToken": session.master_token,
            "validityInSecondsMT": MASTER_VALIDITY_S,
            "sessionId": session.number,
        }
    )


def answered(session: ServerSession, query_id: str, result: StatementResult, binds: Mapping[str, Any] | None) -> bytes:
    """The answer to a query."""
    data: dict[str, Any] = {
        "parameters": parameters_of(session) if result.parameters_changed else session.shown_parameters,
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
    return dumps({"data": data, "message": None, "code": None, "success": True})


def in_progress(query_id: str, asynchronous: bool) -> bytes:
    data = {
        "getResultUrl": f"/queries/{query_id}/result",
        "queryId": query_id,
        "queryAbortsAfterSecs": 300,
        "progressDesc": None,
    }
    code = IN_PROGRESS_ASYNC if asynchronous else IN_PROGRESS
    return dumps({"data": data, "code": code, "message": "Query execution in progress.", "success": asynchronous})
