"""The HTTP side: which request is answered how. An ASGI application for uvicorn."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from loadgen.embedded import login, wire
from loadgen.embedded.exchange import (
    TEXT_TYPE,
    Exchange,
    Receive,
    Send,
    read,
    reset,
    respond,
    send_lines,
    truncate,
    wait_gone,
    within,
)
from loadgen.embedded.executor import Executor
from loadgen.embedded.failure import SqlError, canceled
from loadgen.embedded.faults import FaultInvalid, FaultRules
from loadgen.embedded.journal import Entry, Journal
from loadgen.embedded.running import Request
from loadgen.embedded.session import Session
from loadgen.embedded.usage import Usage
from loadgen.embedded.warehouse_models import WarehouseModels

_log = logging.getLogger(__name__)
ANSWER_WITHIN_S = 45.0  # then the client is told to ask again, as Snowflake does
ANSWERS_KEPT = 500
BIG_ERROR_BYTES = 1 << 20
FAULT_ERRNO = 603  # of a fault that names none
GONE = SqlError(390111, "08001", "Session no longer exists. New login required to access the service.")
EXPIRED = SqlError(390112, "08001", "Session token expired.  Authenticate again.")


class App:
    """Routes requests; owns the faults, the journal and the answers of statements that outlived their request."""

    def __init__(self, executor: Executor, usage: Usage, *, now_ms: Callable[[], float], seed: int) -> None:
        self.executor = executor
        self.usage = usage
        self.faults = FaultRules(seed)
        self.journal = Journal()
        models = WarehouseModels(executor.warehouses)
        self._now_ms = now_ms
        self._under_way: dict[str, asyncio.Task[bytes]] = {}  # by request id
        self._answers: OrderedDict[str, asyncio.Task[bytes]] = OrderedDict()  # by query id
        self._routes: dict[tuple[str, str], Callable[[Exchange], Awaitable[bytes]]] = {
            ("POST", "/queries/v1/query-request"): self._query,
            ("POST", "/session/v1/login-request"): self._login,
            ("POST", "/session"): self._logout,
            ("POST", "/session/token-request"): self._renew,
            ("POST", "/session/heartbeat"): self._heartbeat,
            ("POST", "/queries/v1/abort-request"): self._abort,
            ("POST", "/telemetry/send"): self._telemetry,
            ("POST", "/telemetry/send/sessionless"): self._telemetry,
            ("GET", "/__loadgen/stats"): self._stats,
            ("POST", "/__loadgen/faults"): self._add_fault,
            ("GET", "/__loadgen/faults"): self._list_faults,
            ("DELETE", "/__loadgen/faults"): self._clear_faults,
            ("POST", "/__loadgen/warehouses"): models.post,
            ("DELETE", "/__loadgen/warehouses"): models.delete,
            ("GET", "/__loadgen/services"): self._list_services,
            ("POST", "/__loadgen/services"): self._report_service,
        }

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        exchange = await read(scope, receive, send)
        if exchange is None:
            return
        started_s = time.perf_counter()
        at_ms = self._now_ms()
        try:
            await self._answer(exchange)
        finally:
            if not exchange.path.startswith("/__loadgen"):
                ended_s = self.usage.used_s = time.perf_counter()
                self._note(exchange, at_ms, (ended_s - started_s) * 1000)

    async def _answer(self, exchange: Exchange) -> None:
        stream = self._stream(exchange)
        if stream is not None:
            await send_lines(exchange, stream)
            return
        if (exchange.method, exchange.path) == ("GET", "/__loadgen/hold"):
            await self.usage.hold(exchange)
            return
        route = self._routes.get((exchange.method, exchange.path)) or self._by_id(exchange)
        if route is None:
            await respond(exchange, 404, b'{"error": "no such path"}')
            return
        if self.faults.armed and exchange.path != "/queries/v1/query-request":
            exchange.fault = self.faults.pick_path(exchange.path)
            if exchange.fault is not None and await self._struck(exchange):
                return
        try:
            body = await route(exchange)
        except _Answered:
            return
        except SqlError as error:
            exchange.outcome = str(error.errno)
            body = wire.refused(error, getattr(error, "query_id", None))
        except (wire.BadRequest, FaultInvalid) as error:
            await respond(exchange, error.status, wire.dumps({"error": str(error)}))
            return
        await self._deliver(exchange, body)

    def _by_id(self, exchange: Exchange) -> Callable[[Exchange], Awaitable[bytes]] | None:
        parts = exchange.path.split("/")
        if exchange.method == "GET" and len(parts) == 4 and parts[1] == "queries" and parts[3] == "result":
            return self._result
        if exchange.method == "POST" and len(parts) == 4 and parts[1] == "queries" and parts[3] == "abort-request":
            return self._abort_by_id
        if exchange.method == "GET" and exchange.path.startswith("/monitoring/queries/"):
            return self._monitor
        return None

    def _note(self, exchange: Exchange, at_ms: float, duration_ms: float) -> None:
        session = exchange.session
        retries = exchange.first("retryCount") or ""
        self.journal.append(
            Entry(
                at_ms, exchange.method, exchange.path, session.number if session else None, exchange.request_id,
                exchange.query_id, exchange.sql_text, exchange.binds, exchange.status, exchange.outcome, duration_ms,
                int(retries) if wire.is_number(retries) else 0,
            )
        )  # fmt: skip

    # --- statements ---------------------------------------------------------------------------------------------------

    def _authorised(self, exchange: Exchange) -> Session:
        session = self.executor.sessions.by_token.get(exchange.token)
        if session is None:
            raise GONE
        exchange.session = session
        if session.expired:
            raise EXPIRED
        return session

    async def _query(self, exchange: Exchange) -> bytes:
        message = wire.parse(exchange.body, exchange.encoding)
        text = message.get("sqlText")
        if not isinstance(text, str):
            raise wire.BadRequest("sqlText is missing")
        exchange.sql_text = text
        request_id = exchange.request_id = exchange.first("requestId") or str(uuid.uuid4())
        bindings, parameters = _objects(message)
        exchange.binds = len(bindings) if bindings else 0
        session = self._authorised(exchange)
        if self.faults.armed:
            exchange.fault = self.faults.pick(text)
            if exchange.fault is not None and await self._struck(exchange):
                raise _Answered
        known = session.replies.get(request_id)
        if known is not None:
            exchange.outcome = "repeated"
            return known
        task = self._under_way.get(request_id)
        if task is None:
            request = Request(text, bindings, parameters, bool(message.get("describeOnly")), request_id)
            task = asyncio.get_running_loop().create_task(self._execute(session, request, exchange))
            self._under_way[request_id] = task
            task.add_done_callback(lambda _: self._under_way.pop(request_id, None))
        if message.get("asyncExec"):
            return await self._postponed(task, request_id, asynchronous=True)
        if await within(task, ANSWER_WITHIN_S):
            return task.result()
        return await self._postponed(task, request_id, asynchronous=False)

    async def _execute(self, session: Session, request: Request, exchange: Exchange) -> bytes:
        try:
            statement, result = await self.executor.execute(session, request)
            exchange.query_id = statement.query_id
            reply = wire.answered(session, statement.query_id, result, request.bindings)
        except SqlError as error:
            exchange.query_id = getattr(error, "query_id", None)
            exchange.outcome = str(error.errno)
            reply = wire.refused(error, exchange.query_id)
        except Exception as error:  # a bug of ours must not become a broken connection
            exchange.outcome = f"bug: {type(error).__name__}: {error}"[:300]
            _log.error("statement_crashed %s", request.text[:200], exc_info=error)
            internal = SqlError(603, "XX000", f"SQL execution internal error: {type(error).__name__}.")
            reply = wire.refused(internal, exchange.query_id)
        session.remember(request.request_id, reply)
        return reply

    async def _postponed(self, task: asyncio.Task[bytes], request_id: str, *, asynchronous: bool) -> bytes:
        """Tell the client to ask for the result later, by the id that the statement has as soon as it has begun."""
        await asyncio.sleep(0)
        running = self.executor.by_request.get(request_id)
        if running is not None:
            query_id = running.statement.query_id
        else:  # it has ended already, or this engine does not tell
            query_id = str(wire.parse(await task, b"").get("data", {}).get("queryId"))
        self._keep(query_id, task)
        return wire.in_progress(query_id, asynchronous)

    def _keep(self, query_id: str, task: asyncio.Task[bytes]) -> None:
        self._answers[query_id] = task
        while len(self._answers) > ANSWERS_KEPT:
            self._answers.popitem(last=False)

    async def _result(self, exchange: Exchange) -> bytes:
        session = self._authorised(exchange)
        query_id = exchange.query_id = exchange.path.split("/")[2]
        task = self._answers.get(query_id)
        if task is None:
            return wire.answered(session, query_id, self.executor.results.get(query_id), None)
        return task.result() if await within(task, ANSWER_WITHIN_S) else wire.in_progress(query_id, False)

    async def _monitor(self, exchange: Exchange) -> bytes:
        session = self._authorised(exchange)
        query_id = exchange.path.rsplit("/", 1)[-1]
        history = self.executor.history
        statement = history.find_running(query_id) or history.find_ended(query_id)
        if statement is None:
            return wire.done({"queries": []})
        state = statement.status.upper()
        query = {"id": query_id, "status": state, "state": state, "sessionId": session.number}
        code = f"{statement.error_code:06d}" if statement.error_code else ""
        query |= {"errorCode": code, "errorMessage": statement.error_message}
        return wire.done({"queries": [query]})

    async def _abort_by_id(self, exchange: Exchange) -> bytes:
        self._authorised(exchange)
        running = self.executor.running.get(exchange.path.split("/")[2])
        if running is not None:
            running.cancel(canceled())
        return wire.done()

    async def _abort(self, exchange: Exchange) -> bytes:
        self._authorised(exchange)
        message = wire.parse(exchange.body, exchange.encoding)
        running = self.executor.by_request.get(str(message.get("requestId") or ""))
        if running is not None:
            running.cancel(canceled())
        return wire.done()

    # --- sessions -----------------------------------------------------------------------------------------------------

    async def _login(self, exchange: Exchange) -> bytes:
        wishes = login.wishes(wire.parse(exchange.body, exchange.encoding), exchange.query)
        session = self.executor.sessions.open(wishes.user, wishes.role, wishes.client)
        exchange.session = session
        try:
            await self.executor.enter(session, wishes)
        except BaseException:
            self.executor.sessions.close(session)
            raise
        return wire.logged_in(session)

    async def _logout(self, exchange: Exchange) -> bytes:
        if exchange.first("delete") != "true":
            raise wire.BadRequest("POST /session needs delete=true")
        session = self.executor.sessions.by_token.get(exchange.token)
        if session is None:
            raise GONE
        exchange.session = session
        await self.executor.close(session)
        return wire.done()

    async def _renew(self, exchange: Exchange) -> bytes:
        session = self.executor.sessions.by_master.get(exchange.token)
        if session is None:
            raise SqlError(390114, "08001", "Authentication token has expired.  The user must authenticate again.")
        exchange.session = session
        self.executor.sessions.renew(session)
        return wire.renewed(session)

    async def _heartbeat(self, exchange: Exchange) -> bytes:
        self._authorised(exchange)
        return wire.done()

    async def _telemetry(self, exchange: Exchange) -> bytes:
        return wire.done("Log Received")

    # --- faults -------------------------------------------------------------------------------------------------------

    async def _struck(self, exchange: Exchange) -> bool:
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

    async def _deliver(self, exchange: Exchange, body: bytes) -> None:
        fault = exchange.fault
        if fault is not None and fault.kind == "drop_reply":
            reset(exchange)
        elif fault is not None and fault.kind == "truncate":
            await truncate(exchange, body)
        else:
            await respond(exchange, 200, body)

    # --- the server about itself --------------------------------------------------------------------------------------

    def _stream(self, exchange: Exchange) -> Iterator[bytes] | None:
        if exchange.method != "GET":
            return None
        since = exchange.first("since") or "0"
        since_ms = float(since) if wire.is_number(since.replace(".", "", 1)) else 0.0
        if exchange.path == "/__loadgen/history":
            return self.executor.history.ground_truth(exchange.first("tag") or "", since_ms)
        if exchange.path == "/__loadgen/journal":
            path, match = exchange.first("path") or "", exchange.first("match") or ""
            return self.journal.lines(since_ms=since_ms, path=path, match=match)
        return None

    async def _stats(self, exchange: Exchange) -> bytes:
        executor = self.executor
        warehouses = {w.settings.name: w.now() for w in executor.warehouses}
        return wire.dumps(
            {
                "open_sessions": len(executor.sessions),
                "running": sum(w.running for w in executor.warehouses),
                "queued": sum(w.queued for w in executor.warehouses),
                "statements": executor.history.ended,
                "under_way": len(executor.history.running),
                "open_transactions": sum(1 for s in executor.sessions.by_number.values() if s.transaction is not None),
                "warehouses": warehouses,
                "holders": self.usage.holders,
                "options": self.usage.about,
                "now_ms": self._now_ms(),
            }
        )

    async def _add_fault(self, exchange: Exchange) -> bytes:
        posted = wire.parse_any(exchange.body, exchange.encoding)
        return wire.dumps({"ids": self.faults.add(posted)})

    async def _list_faults(self, exchange: Exchange) -> bytes:
        return wire.dumps(self.faults.listing())

    async def _clear_faults(self, exchange: Exchange) -> bytes:
        return wire.dumps({"cleared": self.faults.clear()})

    async def _list_services(self, exchange: Exchange) -> bytes:
        return wire.dumps(self.executor.services.listing())

    async def _report_service(self, exchange: Exchange) -> bytes:
        known = self.executor.services.report(wire.parse(exchange.body, exchange.encoding))
        return wire.dumps({"known": known})


def _objects(message: dict[str, Any]) -> tuple[dict[str, dict[str, Any]] | None, dict[str, Any] | None]:
    """The binds and the statement's parameters, each an object or absent."""
    bindings, parameters = message.get("bindings"), message.get("parameters")
    if not isinstance(bindings, dict | None) or not all(isinstance(bind, dict) for bind in (bindings or {}).values()):
        raise wire.BadRequest("bindings is not an object of objects")
    if not isinstance(parameters, dict | None):
        raise wire.BadRequest("parameters is not an object")
    return bindings, parameters


class _Answered(Exception):
    """The fault has answered already."""
