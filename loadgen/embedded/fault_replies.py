"""What a fault does to a request: before it is served, and to its answer."""

from __future__ import annotations

import asyncio

from loadgen.embedded import wire
from loadgen.embedded.http_exchange import TEXT_TYPE, HttpExchange, reset, respond, truncate, wait_gone
from loadgen.embedded.sql_errors import SqlError

BIG_ERROR_BYTES = 1 << 20
FAULT_ERRNO = 603  # of a fault that names none
EXPIRED = SqlError(390112, "08001", "Session token expired.  Authenticate again.")


async def struck(exchange: HttpExchange) -> bool:
    """Do what the fault says before the request is served; True: that was all."""
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
