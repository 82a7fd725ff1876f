"""The ASGI application: routes requests, runs statements, and keeps answers for clients that poll or repeat."""

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
from loadgen.embedded.event_loop import ends_within, in_thread
from loadgen.embedded.fault_injection import FaultRules, InvalidFaultRule
from loadgen.embedded.http_exchange import (
    EXPIRED,
    BodyMemory,
    HttpExchange,
    ReceiveMessage,
    Send,
    apply_fault,
    deliver,
    read_request,
    respond,
    send_lines,
)
from loadgen.embedded.result import Charge, StatementResult, is_number
from loadgen.embedded.session import Authenticator, ServerSession, read_login_request
from loadgen.embedded.sql_errors import SqlError, canceled
from loadgen.embedded.transactions import Executor, QueryRequest, RequestKey
from loadgen.values import dataclass

_log = logging.getLogger(__name__)
ANSWER_WITHIN_S = 45.0  # after this time the client gets the answer to poll, as from Snowflake
ANSWERS_KEPT = 500
LARGE_ANSWERS_KEPT = 1  # of answers that count in the memory of results
NO_SESSION = SqlError(390111, "08001", "Session no longer exists. New login required to access the service.")
NOT_EXECUTING = SqlError(605, "57014", "Identified SQL statement is not currently executing.")
GONE_GRACE_S = 5.0  # time for a driver to repeat a request after its connection was lost
POLL_GRACE_S = 60.0  # time for a driver to poll
TOO_MANY_SESSIONS = 390193
REQUEST_ID_CHARACTERS_MAX = 200  # drivers send a UUID
CHALLENGE = (b"www-authenticate", b'Basic realm="loadgen"')


@dataclass(slots=True)
class PendingStatement:
    """The task of a statement, and the requests that wait for it."""

    task: asyncio.Task[bytes]
    key: RequestKey
    clients: set[int] = field(default_factory=set)  # ids of waiting requests with an open connection
    detached: bool = False  # executed asynchronously: it continues without clients
    left_s: float = 0.0  # monotonic time when the last client stopped waiting
    charge: Charge | None = None  # memory of a large answer


class App:
    """Routes requests; owns the fault rules, the request log, and the answers for clients that poll."""

    def __init__(
        self,
        executor: Executor,
        usage: ServerUsage,
        authenticator: Authenticator,
        models: WarehouseModels,
        *,
        now_ms: Callable[[], float],
        seed: int,
    ) -> None:
        self.executor = executor
        self.authenticator = authenticator
        self.usage = usage
        self.faults = FaultRules(seed)
        self.request_log = RequestLog()
        self._bodies = BodyMemory()
        self._now_ms = now_ms
        self._admin = Admin(executor, usage, models, self.faults, self.request_log, now_ms)
        self._pending: dict[RequestKey, PendingStatement] = {}
        self._answers: OrderedDict[str, PendingStatement] = OrderedDict()  # by query id
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
        async with read_request(scope, receive, send, self._body_bytes_max, self._bodies) as exchange:
            if exchange is not None:
                await self._answer_and_log(exchange)

    async def _answer_and_log(self, exchange: HttpExchange) -> None:
        started_s = time.perf_counter()
        at_ms = self._now_ms()
        try:
            await self._answer(exchange)
        finally:
            if not exchange.path.startswith(PREFIX):
                ended_s = self.usage.used_s = time.perf_counter()
                self._log_request(exchange, at_ms, (ended_s - started_s) * 1000)

    def _body_bytes_max(self, token: str) -> int:
        """The size limit of the body, which is lower before the login."""
        sessions = self.executor.sessions
        known = token in sessions.by_token or token in sessions.by_master
        known = known or (self.authenticator.is_enabled and self.authenticator.accepts_basic(token))
        return wire.BODY_BYTES_MAX if known else wire.LOGIN_BODY_BYTES_MAX

    async def _answer(self, exchange: HttpExchange) -> None:
        if exchange.path.startswith(PREFIX) and not self.authenticator.accepts_basic(exchange.token):
            await respond(exchange, 401, b'{"error": "the password is missing or wrong"}', headers=[CHALLENGE])
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
            if exchange.fault is not None and await apply_fault(exchange):
                return
        try:
            limit = self._body_bytes_max(exchange.token)
            exchange.body = await wire.plain_body(exchange.body, exchange.encoding, limit)
            body = await route(exchange)
        except _RequestEnded:
            return
        except SqlError as error:
            exchange.outcome = str(error.errno)
            body = wire.failure(error, getattr(error, "query_id", None))
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

    def _log_request(self, exchange: HttpExchange, at_ms: float, duration_ms: float) -> None:
        session = exchange.session
        retries = exchange.first("retryCount") or ""
        self.request_log.append(
            RequestLogEntry(
                at_ms, exchange.method, exchange.path, session.number if session else None, exchange.request_id,
                exchange.query_id, exchange.sql_text, exchange.binds, exchange.status, exchange.outcome, duration_ms,
                int(retries) if is_number(retries) else 0,
            )
        )  # fmt: skip

    # --- statements ---------------------------------------------------------------------------------------------------

    def _authorized_session(self, exchange: HttpExchange) -> ServerSession:
        session = self.executor.sessions.by_token.get(exchange.token)
        if session is None:
            raise NO_SESSION
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
        bindings, parameters = _binds_and_parameters(message)
        exchange.binds = len(bindings) if bindings else 0
        session = self._authorized_session(exchange)
        session.executed = True
        if self.faults.armed:
            exchange.fault = self.faults.pick(text)
            if exchange.fault is not None and await apply_fault(exchange):
                raise _RequestEnded
        known = session.replies.get(request_id)
        if known is not None:
            exchange.outcome = "repeated"
            return known
        key = (session.user, request_id)
        pending = self._pending.get(key)
        if pending is None:
            request = QueryRequest(text, bindings, parameters, bool(message.get("describeOnly")), request_id)
            task = asyncio.get_running_loop().create_task(self._execute(session, request, exchange))
            pending = self._pending[key] = PendingStatement(task, key)
            task.add_done_callback(lambda _: self._pending.pop(key, None))
        asynchronous = bool(message.get("asyncExec"))
        if not asynchronous and await self._wait_for(pending, exchange):
            return pending.task.result()
        return await self._answer_to_poll(pending, asynchronous=asynchronous)

    async def _wait_for(self, pending: PendingStatement, exchange: HttpExchange) -> bool:
        """Wait for the statement as one of its clients. False after a timeout: the client has to poll."""
        pending.clients.add(id(exchange))
        exchange.on_disconnect(lambda: self._client_stopped_waiting(pending, exchange, GONE_GRACE_S))
        try:
            answered = await ends_within(pending.task, ANSWER_WITHIN_S)
        finally:
            exchange.on_disconnect(None)
            self._client_stopped_waiting(pending, exchange, POLL_GRACE_S)
        exchange.charge = pending.charge if answered else None
        return answered

    def _client_stopped_waiting(self, pending: PendingStatement, exchange: HttpExchange, grace_s: float) -> None:
        """The client disconnected or has to poll. The statement is cancelled if it does not come back in time."""
        if id(exchange) in pending.clients and not self.usage.is_stopping and not pending.task.done():
            pending.left_s = time.monotonic()
            asyncio.get_running_loop().call_later(grace_s, self._cancel_if_abandoned, pending, pending.left_s)
        pending.clients.discard(id(exchange))

    def _cancel_if_abandoned(self, pending: PendingStatement, left_s: float) -> None:
        """Cancel the statement, unless a client has waited for it since `left_s`."""
        running = self.executor.by_request.get(pending.key)
        if running is not None and not pending.clients and not pending.detached and pending.left_s == left_s:
            running.cancel(SqlError(604, "57014", "SQL execution canceled: the client's connection ended."))

    async def _execute(self, session: ServerSession, request: QueryRequest, exchange: HttpExchange) -> bytes:
        try:
            statement, result = await self.executor.execute(session, request)
            exchange.query_id = statement.query_id
            if result.charge is None:
                reply = wire.query_answer(session, statement.query_id, result, request.bindings)
            else:
                reply = await self._large(session, request, statement.query_id, result)
        except SqlError as error:
            exchange.query_id = getattr(error, "query_id", None)
            exchange.outcome = str(error.errno)
            reply = wire.failure(error, exchange.query_id)
        except Exception as error:  # a bug in the server must not break the connection
            exchange.outcome = f"bug: {type(error).__name__}: {error}"[:300]
            if not self.usage.is_stopping:  # otherwise PostgreSQL was stopped during the statement
                _log.error("statement_crashed %s", request.text[:200], exc_info=error)
            internal = SqlError(603, "XX000", f"SQL execution internal error: {type(error).__name__}.")
            reply = wire.failure(internal, exchange.query_id)
        session.remember(request.request_id, reply)
        return reply

    async def _large(
        self, session: ServerSession, request: QueryRequest, query_id: str, result: StatementResult
    ) -> bytes:
        """Encode a large answer in a thread; the waiting request holds the charge of its memory."""
        pending = self._pending[session.user, request.request_id]
        pending.charge = result.charge
        return await in_thread(lambda: wire.query_answer(session, query_id, result, request.bindings), "large-answer")

    async def _answer_to_poll(self, pending: PendingStatement, *, asynchronous: bool) -> bytes:
        """The answer that tells the client to poll for the result by query id."""
        pending.detached = pending.detached or asynchronous
        await asyncio.sleep(0)
        running = self.executor.by_request.get(pending.key)
        if running is not None:
            query_id = running.statement.query_id
        else:  # it has ended, or the null engine runs it
            query_id = str(wire.parse(await pending.task).get("data", {}).get("queryId"))
        self._keep(query_id, pending)
        return wire.in_progress(query_id, asynchronous)

    def _keep(self, query_id: str, pending: PendingStatement) -> None:
        self._answers[query_id] = pending
        pending.task.add_done_callback(lambda _: self._trim())
        self._trim()

    def _trim(self) -> None:
        """Drop the oldest answers, and all large answers but the newest."""
        while len(self._answers) > ANSWERS_KEPT:
            self._answers.popitem(last=False)
        large = [query_id for query_id, pending in self._answers.items() if pending.charge is not None]
        for query_id in large[:-LARGE_ANSWERS_KEPT]:
            del self._answers[query_id]

    async def _result(self, exchange: HttpExchange) -> bytes:
        session = self._authorized_session(exchange)
        query_id = exchange.query_id = exchange.path.split("/")[2]
        pending = self._answers.get(query_id)
        if pending is None or pending.key[0] != session.user:
            return wire.query_answer(session, query_id, self.executor.results.get(query_id, session.user), None)
        return pending.task.result() if await self._wait_for(pending, exchange) else wire.in_progress(query_id, False)

    async def _monitor(self, exchange: HttpExchange) -> bytes:
        session = self._authorized_session(exchange)
        query_id = exchange.path.rsplit("/", 1)[-1]
        history = self.executor.history
        statement = history.find_running(query_id) or history.find_ended(query_id)
        if statement is None or statement.context.user != session.user:
            return wire.success({"queries": []})
        state = statement.status.upper()
        query = {"id": query_id, "status": state, "state": state, "sessionId": session.number}
        code = f"{statement.error_code:06d}" if statement.error_code else ""
        query |= {"errorCode": code, "errorMessage": statement.error_message}
        return wire.success({"queries": [query]})

    async def _abort_by_id(self, exchange: HttpExchange) -> bytes:
        session = self._authorized_session(exchange)
        running = self.executor.running.get(exchange.path.split("/")[2])
        if running is not None:
            if running.session.user != session.user:
                raise NOT_EXECUTING
            running.cancel(canceled())
        return wire.success()

    async def _abort(self, exchange: HttpExchange) -> bytes:
        session = self._authorized_session(exchange)
        message = wire.parse(exchange.body)
        running = self.executor.by_request.get((session.user, str(message.get("requestId") or "")))
        if running is not None:
            running.cancel(canceled())
        return wire.success()

    # --- sessions -----------------------------------------------------------------------------------------------------

    async def _login(self, exchange: HttpExchange) -> bytes:
        message = wire.parse(exchange.body)
        login = read_login_request(message, exchange.query, self.authenticator)
        await self._enforce_session_limit()
        session = self.executor.sessions.open(login.user, login.role, login.client)
        exchange.session = session
        try:
            await self.executor.enter(session, login)
        except BaseException:
            self.executor.sessions.close(session)
            raise
        return wire.login_answer(session)

    async def _enforce_session_limit(self) -> None:
        """Close unused sessions if the limit is reached; raises SqlError if none can be closed.

        Sessions that have been idle longer than the validity of a login are closed first; without such a session, the
        longest idle one that has not sent a statement.
        """
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
            raise NO_SESSION
        exchange.session = session
        await self.executor.close(session)
        return wire.success()

    async def _renew(self, exchange: HttpExchange) -> bytes:
        session = self.executor.sessions.by_master.get(exchange.token)
        if session is None:
            raise SqlError(390114, "08001", "Authentication token has expired.  The user must authenticate again.")
        exchange.session = session
        self.executor.sessions.renew(session)
        return wire.renewal_answer(session)

    async def _heartbeat(self, exchange: HttpExchange) -> bytes:
        self._authorized_session(exchange)
        return wire.success()

    async def _telemetry(self, exchange: HttpExchange) -> bytes:
        return wire.success("Log Received")


def _binds_and_parameters(message: dict[str, Any]) -> tuple[dict[str, dict[str, Any]] | None, dict[str, Any] | None]:
    """The binds and the parameters of a query request; each is an object or missing."""
    bindings, parameters = message.get("bindings"), message.get("parameters")
    if not isinstance(bindings, dict | None) or not all(isinstance(bind, dict) for bind in (bindings or {}).values()):
        raise wire.BadRequest("bindings is not an object of objects")
    if not isinstance(parameters, dict | None):
        raise wire.BadRequest("parameters is not an object")
    return bindings, parameters


class _RequestEnded(Exception):
    """A fault has ended the request."""
