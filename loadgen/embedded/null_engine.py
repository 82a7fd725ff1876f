"""The null engine: any statement is answered with one row at the lowest cost, for measuring loadgen itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from loadgen.embedded import sql_errors
from loadgen.embedded.container_services import ContainerServices
from loadgen.embedded.login import DEFAULT_WAREHOUSE, LoginRequest
from loadgen.embedded.result import ResultCache, StatementResult, table
from loadgen.embedded.running import QueryRequest, RunningStatement
from loadgen.embedded.session import ServerSession, ServerSessions
from loadgen.embedded.sql_types import NUMBER
from loadgen.embedded.statement_history import StatementHistory, StatementRecord
from loadgen.embedded.warehouse import QueuedTooLong, VirtualWarehouses, WarehouseSettings

_ROW = table([("1", NUMBER)], [["1"]], 0x1000)


class NullEngine:
    """Sessions, warehouse slots, service time and history are real; there is no database."""

    def __init__(
        self,
        *,
        warehouses: VirtualWarehouses,
        history: StatementHistory,
        sessions: ServerSessions,
        services: ContainerServices,
        now_ms: Callable[[], float],
    ) -> None:
        self.warehouses = warehouses
        self.history = history
        self.sessions = sessions
        self.services = services
        self.running: dict[str, RunningStatement] = {}
        self.by_request: dict[str, Any] = {}
        self.results = ResultCache()
        self._now_ms = now_ms

    async def enter(self, session: ServerSession, wishes: LoginRequest) -> None:
        session.parameters = dict(wishes.session_parameters)
        session.database, session.schema = wishes.database, wishes.schema
        session.warehouse = wishes.warehouse or DEFAULT_WAREHOUSE
        if session.warehouse not in self.warehouses:
            self.warehouses.add(WarehouseSettings(name=session.warehouse, created_on_ms=self._now_ms()))

    async def execute(self, session: ServerSession, request: QueryRequest) -> tuple[StatementRecord, StatementResult]:
        statement = self.history.begin(session.context, request.text, self._now_ms())
        statement.query_type = "SELECT"
        try:
            warehouse = self.warehouses.get(session.warehouse or "")
            assert warehouse is not None
            ticket = warehouse.try_admit() or await warehouse.admit()
            try:
                statement.queued_ms = ticket.queued_s * 1000
                if warehouse.service_time is not None:
                    await ticket.serve(warehouse.service_time.sample_s())
            finally:
                ticket.release()
            statement.rows = 1
        except QueuedTooLong as error:
            raise sql_errors.queue_timed_out(int(error.timeout_s)) from None
        except asyncio.CancelledError:
            statement.error_code = 604
            raise
        finally:
            self.history.end(statement)
        return statement, _ROW

    async def close(self, session: ServerSession) -> None:
        self.sessions.close(session)
