"""The HTTP side: which request is answered how. An ASGI application for uvicorn."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import field
from typing import Any

from loadgen.embedded import wire
from loadgen.embedded.admin import PREFIX, Admin, RequestLog, RequestLogEntry, ServerUsage, WarehouseModels
from loadgen.embedded.event_loop import in_thread, within
from loadgen.embedded.fault_injection import FaultRules, InvalidFaultRule
from loadgen.embedded.http_exchange import (
    EXPIRED,
    BodyMemory,
    HttpExchange,
    ReceiveMessage,
    Send,
    deliver,
    reading,
    respond,
    send_lines,
    struck,
)
from loadgen.embedded.result import Charge, StatementResult, is_number
from loadgen.embedded.session import Authenticator, ServerSession, read_login_request
from loadgen.embedded.sql_errors import SqlError, canceled
from loadgen.embedded.transactions import Executor, QueryRequest, RequestKey
from loadgen.values import dataclass

_log = logging.getLogger(__name__)
ANSWER_WITHIN_S = 45.0  # then the client is answered to poll, as by Snowflake
ANSWERS_KEPT = 500
LARGE_ANSWERS_KEPT = 1  # of those that count in the memory for results
GONE = SqlError(390111, "08001", "Session no longer exists. New login required to access the service.")
NOT_EXECUTING = SqlError(605, "57014", "Identified SQL statement is not currently executing.")
GONE_GRACE_S = 5.0  # for a driver to repeat a request whose connection was lost
POLL_GRACE_S = 60.0  # for one that was told to poll
TOO_MANY_SESSIONS = 390193
REQUEST_ID_CHARACTERS_MAX = 200  # drivers send a UUID; kept with the session's answers
CHALLENGE = (b"www-authenticate", b'Basic realm="loadgen"')


@dataclass(slots=True)
class Waited:
    """A statement's task, and the requests that wait for it."""

    task: asyncio.Task[bytes]
    key: RequestKey
    clients: set[int] = field(default_factory=set)  # requests whose connection is open
    detached: bool = False  # executed asynchronously: no client need be connected
    left_s: float = 0.0  # when the last of them left, by the monotonic clock
    charge: Charge | None = None  # memory of a large answer


class App:
    """Routes requests; owns faults, request log, and the answers of statements that outlived their request."""

    def __init__(
        self,
        executor: Executor,
        usage: ServerUsage,
        entrance: Authenticator,
        models: WarehouseModels,
        *,
        now_ms: Callable[[], float],
        seed: int,
    ) -> None:
        self.executor = executor
        self.entrance = entrance
        self.usage = usage
        self.faults = FaultRules(seed)
        self.journal = RequestLog()
        self._bodies = BodyMemory()
        self._now_ms = now_ms
        self._admin = Admin(executor, usage, models, self.faults, self.journal, now_ms)
        self._under_way: dict[RequestKey, Waited] = {}
        self._answers: OrderedDict[str, Waited] = OrderedDict()  # by query id
        self._routes: dict[tuple[str, str], Callable[[HttpExchange], Awaitable[bytes]]] = {
            ("POST", "/queries/v1/query-request"): self._query,
            ("POST", "/session/v1/login-request"): self._login,
            ("POST", "/session"): self._logout,
            ("POST", "/session/token-request"): self._renew,
            ("POST", "/session/heartbeat"): self._heartbeat,
            ("POST", "/queries/v1/abort-request"): self._abort,
            ("POST", "/telemetry/send"): self._telemetry,
            ("POST", "/telemetry/send/sessionless"): self._telemetry,
            **self._admin.routes,
        }

    async def __call__(self, scope: dict[str, Any], receive: ReceiveMessage, send: Send) -> None:
        if scope["type"] != "http":
            return
        async with reading(scope, receive, send, self._body_bytes_max, self._bodies) as exchange:
            if exchange is not None:
                await self._noted(exchange)

    async def _noted(self, exchange: HttpExchange) -> None:
        started_s = time.perf_counter()
        at_ms = self._now_ms()
        try:
            await self._answer(exchange)
        finally:
            if not exchange.path.startswith(PREFIX):
                ended_s = self.usage.used_s = time.perf_counter()
                self._note(exchange, at_ms, (ended_s - started_s) * 1000)

    def _body_bytes_max(self, token: str) -> int:
        """The largest body allowed: small before login."""
        sessions = self.executor.sessions
        known = token in sessions.by_token or token in sessions.by_master
        known = known or (self.entrance.checks and self.entrance.admits(token))
        return wire.BODY_BYTES_MAX if known else wire.LOGIN_BODY_BYTES_MAX

    async def _answer(self, exchange: HttpExchange) -> None:
        if exchange.path.startswith(PREFIX) and not self.entrance.admits(exchange.token):
            await respond(exchange, 401, b'{"error": "the password is missing or wrong"}', more=[CHALLENGE])
            return
        stream = self._admin.stream(exchange)
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
            if exchange.fault is not None and await struck(exchange):
                return
        try:
            limit = self._body_bytes_max(exchange.token)
            exchange.body = await wire.plain_body(exchange.body, exchange.encoding, limit)
            body = await route(exchange)
        except _Answered:
            return
        except SqlError as error:
            exchange.outcome = str(error.errno)
            body = wire.refused(error, getattr(error, "query_id", None))
        except (wire.BadRequest, InvalidFaultRule) as error:
            await respond(exchange, error.status, wire.dumps({"error": str(error)}))
            return
        await deliver(exchange, body)

    def _by_id(self, exchange: HttpExchange) -> Callable[[HttpExchange], Awaitable[bytes]] | None:
        parts = exchange.path.split("/")
        if exchange.method == "GET" and len(parts) == 4 and parts[1] == "queries" and parts[3] == "result":
            return self._result
        if exchange.method == "POST" and len(parts) == 4 and parts[1] == "queries" and parts[3] == "abort-request":
            return self._abort_by_id
        if exchange.method == "GET" and exchange.path.startswith("/monitoring/queries/"):
            return self._monitor
        return None

    def _note(self, exchange: HttpExchange, at_ms: float, duration_ms: float) -> None:
        session = exchange.session
        retries = exchange.first("retryCount") or ""
        self.journal.append(
            RequestLogEntry(
                at_ms, exchange.method, exchange.path, session.number if session else None, exchange.request_id,
                exchange.query_id, exchange.sql_text, exchange.binds, exchange.status, exchange.outcome, duration_ms,
                int(retries) if is_number(retries) else 0,
            )
        )  # fmt: skip

    # --- statements ---------------------------------------------------------------------------------------------------

    def _authorised(self, exchange: HttpExchange) -> ServerSession:
        session = self.executor.sessions.by_token.get(exchange.token)
        if session is None:
            raise GONE
        exchange.session = session
        session.used_s = time.monotonic()
        if session.expired:
            raise EXPIRED
        return session

    async def _query(self, exchange: HttpExchange) -> bytes:
        message = wire.parse(exchange.body)
        text = message.get("sqlText")
        if not isinstance(text, str):
            raise wire.BadRequest("sqlText is missing")
        exchange.sql_text = text
        request_id = exchange.request_id = exchange.first("requestId") or str(uuid.uuid4())
        if len(request_id) > REQUEST_ID_CHARACTERS_MAX:
            raise wire.BadRequest(f"requestId is longer than {REQUEST_ID_CHARACTERS_MAX} characters")
        bindings, parameters = _objects(message)
        exchange.binds = len(bindings) if bindings else 0
        session = self._authorised(exchange)
        session.executed = True
        if self.faults.armed:
            exchange.fault = self.faults.pick(text)
            if exchange.fault is not None and await struck(exchange):
                raise _Answered
        known = session.replies.get(request_id)
        if known is not None:
            exchange.outcome = "repeated"
            return known
        key = (session.user, request_id)
        waited = self._under_way.get(key)
        if waited is None:
            request = QueryRequest(text, bindings, parameters, bool(message.get("describeOnly")), request_id)
            task = asyncio.get_running_loop().create_task(self._execute(session, request, exchange))
            waited = self._under_way[key] = Waited(task, key)
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        asynchronous = bool(message.get("asyncExec"))
        if not asynchronous and await self._has_answer(waited, exchange):
            return waited.task.result()
        return await self._postponed(waited, asynchronous=asynchronous)

    async def _has_answer(self, waited: Waited, exchange: HttpExchange) -> bool:
        """Wait for the statement, as one of its clients. False: the client shall poll, and is expected back."""
        waited.clients.add(id(exchange))
        exchange.on_gone(lambda: self._client_left(waited, exchange, GONE_GRACE_S))
        try:
            answered = await within(waited.task, ANSWER_WITHIN_S)
        finally:
            exchange.on_gone(None)
            self._client_left(waited, exchange, POLL_GRACE_S)
        exchange.charge = waited.charge if answered else None
        return answered

    def _client_left(self, waited: Waited, exchange: HttpExchange, grace_s: float) -> None:
        """Its connection has ended, or it was told to poll. Drivers come back, so the statement is cancelled later."""
        if id(exchange) in waited.clients and not self.usage.leaving and not waited.task.done():
            waited.left_s = time.monotonic()
            asyncio.get_running_loop().call_later(grace_s, self._cancel_unwaited, waited, waited.left_s)
        waited.clients.discard(id(exchange))

    def _cancel_unwaited(self, waited: Waited, left_s: float) -> None:
        """Unless a client came back since, be it to leave again."""
        running = self.executor.by_request.get(waited.key)
        if running is not None and not waited.clients and not waited.detached and waited.left_s == left_s:
            running.cancel(SqlError(604, "57014", "SQL execution canceled: the client's connection ended."))

    async def _execute(self, session: ServerSession, request: QueryRequest, exchange: HttpExchange) -> bytes:
        try:
            statement, result = await self.executor.execute(session, request)
            exchange.query_id = statement.query_id
            if result.charge is None:
                reply = wire.answered(session, statement.query_id, result, request.bindings)
            else:
                reply = await self._large(session, request, statement.query_id, result)
        except SqlError as error:
            exchange.query_id = getattr(error, "query_id", None)
            exchange.outcome = str(error.errno)
            reply = wire.refused(error, exchange.query_id)
        except Exception as error:  # a bug in the server must not break the connection
            exchange.outcome = f"bug: {type(error).__name__}: {error}"[:300]
            if not self.usage.leaving:  # else PostgreSQL has ended under it, as it should
                _log.error("statement_crashed %s", request.text[:200], exc_info=error)
            internal = SqlError(603, "XX000", f"SQL execution internal error: {type(error).__name__}.")
            reply = wire.refused(internal, exchange.query_id)
        session.remember(request.request_id, reply)
        return reply

    async def _large(
        self, session: ServerSession, request: QueryRequest, query_id: str, result: StatementResult
    ) -> bytes:
        """A large answer, encoded by a thread; the waiting request holds its memory."""
        waited = self._under_way[session.user, request.request_id]
        waited.charge = result.charge
        return await in_thread(lambda: wire.answered(session, query_id, result, request.bindings), "large-answer")

    async def _postponed(self, waited: Waited, *, asynchronous: bool) -> bytes:
        """Answer that the client shall poll for the result by the statement's query id."""
        waited.detached = waited.detached or asynchronous
        await asyncio.sleep(0)
        running = self.executor.by_request.get(waited.key)
        if running is not None:
            query_id = running.statement.query_id
        else:  # it has ended already, or the null engine runs it
            query_id = str(wire.parse(await waited.task).get("data", {}).get("queryId"))
        self._keep(query_id, waited)
        return wire.in_progress(query_id, asynchronous)

    def _keep(self, query_id: str, waited: Waited) -> None:
        self._answers[query_id] = waited
        waited.task.add_done_callback(lambda _: self._trim())
        self._trim()

    def _trim(self) -> None:
        """Drop the oldest answers without a waiting request: ended ones before the newest large one."""
        while len(self._answers) > ANSWERS_KEPT:
            self._answers.popitem(last=False)
        large = [query_id for query_id, waited in self._answers.items() if waited.charge is not None]
        for query_id in large[:-LARGE_ANSWERS_KEPT]:
            del self._answers[query_id]

    async def _result(self, exchange: HttpExchange) -> bytes:
        session = self._authorised(exchange)
        query_id = exchange.query_id = exchange.path.split("/")[2]
        waited = self._answers.get(query_id)
        if waited is None or waited.key[0] != session.user:
            return wire.answered(session, query_id, self.executor.results.get(query_id, session.user), None)
        return waited.task.result() if await self._has_answer(waited, exchange) else wire.in_progress(query_id, False)

    async def _monitor(self, exchange: HttpExchange) -> bytes:
        session = self._authorised(exchange)
        query_id = exchange.path.rsplit("/", 1)[-1]
        history = self.executor.history
        statement = history.find_running(query_id) or history.find_ended(query_id)
        if statement is None or statement.context.user != session.user:
            return wire.done({"queries": []})
        state = statement.status.upper()
        query = {"id": query_id, "status": state, "state": state, "sessionId": session.number}
        code = f"{statement.error_code:06d}" if statement.error_code else ""
        query |= {"errorCode": code, "errorMessage": statement.error_message}
        return wire.done({"queries": [query]})

    async def _abort_by_id(self, exchange: HttpExchange) -> bytes:
        session = self._authorised(exchange)
        running = self.executor.running.get(exchange.path.split("/")[2])
        if running is not None:
            if running.session.user != session.user:
                raise NOT_EXECUTING
            running.cancel(canceled())
        return wire.done()

    async def _abort(self, exchange: HttpExchange) -> bytes:
        session = self._authorised(exchange)
        message = wire.parse(exchange.body)
        running = self.executor.by_request.get((session.user, str(message.get("requestId") or "")))
        if running is not None:
            running.cancel(canceled())
        return wire.done()

    # --- sessions -----------------------------------------------------------------------------------------------------

    async def _login(self, exchange: HttpExchange) -> bytes:
        message = wire.parse(exchange.body)
        wishes = read_login_request(message, exchange.query, self.entrance)
        await self._make_room()
        session = self.executor.sessions.open(wishes.user, wishes.role, wishes.client)
        exchange.session = session
        try:
            await self.executor.enter(session, wishes)
        except BaseException:
            self.executor.sessions.close(session)
            raise
        return wire.logged_in(session)

    async def _make_room(self) -> None:
        """Refuse one session too many; those that are idle for as long as a login is valid go first, then the one that
        is idle for longest of those that never executed a statement."""
        sessions = self.executor.sessions
        if len(sessions) < sessions.limit:
            return
        for session in sessions.idle(time.monotonic() - wire.MASTER_VALIDITY_S) or sessions.longest_unused():
            await self.executor.close(session)
        if len(sessions) >= sessions.limit:
            raise SqlError(TOO_MANY_SESSIONS, "08004", f"Too many sessions: {sessions.limit} are open.")

    async def _logout(self, exchange: HttpExchange) -> bytes:
        if exchange.first("delete") != "true":
            raise wire.BadRequest("POST /session needs delete=true")
        session = self.executor.sessions.by_token.get(exchange.token)
        if session is None:
            raise GONE
        exchange.session = session
        await self.executor.close(session)
        return wire.done()

    async def _renew(self, exchange: HttpExchange) -> bytes:
        session = self.executor.sessions.by_master.get(exchange.token)
        if session is None:
            raise SqlError(390114, "08001", "Authentication token has expired.  The user must authenticate again.")
        exchange.session = session
        self.executor.sessions.renew(session)
        return wire.renewed(session)

    async def _heartbeat(self, exchange: HttpExchange) -> bytes:
        self._authorised(exchange)
        return wire.done()

    async def _telemetry(self, exchange: HttpExchange) -> bytes:
        return wire.done("Log Received")


def _objects(message: dict[str, Any]) -> tuple[dict[str, dict[str, Any]] | None, dict[str, Any] | None]:
    """The binds and the statement's parameters, each an object or absent."""
    bindings, parameters = message.get("bindings"), message.get("parameters")
    if not isinstance(bindings, dict | None) or not all(isinstance(bind, dict) for bind in (bindings or {}).values()):
        raise wire.BadRequest("bindings is not an object of objects")
    if not isinstance(parameters, dict | None):
        raise wire.BadRequest("parameters is not an object")
    return bindings, parameters


class _Answered(Exception):
    """A fault has answered the request already."""
