"""The null engine: any statement is answered with one row at the lowest cost, for measuring loadgen itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from loadgen.embedded import failure
from loadgen.embedded.history import History, Statement
from loadgen.embedded.login import DEFAULT_WAREHOUSE, Wishes
from loadgen.embedded.result import KeptResults, Result, table
from loadgen.embedded.running import Request, Running
from loadgen.embedded.services import Services
from loadgen.embedded.session import Session, Sessions
from loadgen.embedded.types import NUMBER
from loadgen.embedded.warehouse import QueuedTooLong, Warehouses, WarehouseSettings

_ROW = table([("1", NUMBER)], [["1"]], 0x1000)


class NullEngine:
    """Sessions, warehouse slots, service time and history are real; there is no database."""

    def __init__(
        self,
        *,
        warehouses: Warehouses,
        history: History,
        sessions: Sessions,
        services: Services,
        now_ms: Callable[[], float],
    ) -> None:
        self.warehouses = warehouses
        self.history = history
        self.sessions = sessions
        self.services = services
        self.running: dict[str, Running] = {}
        self.by_request: dict[str, Any] = {}
        self.results = KeptResults()
        self._now_ms = now_ms

    async def enter(self, session: Session, wishes: Wishes) -> None:
        session.parameters = dict(wishes.session_parameters)
        session.database, session.schema = wishes.database, wishes.schema
        session.warehouse = wishes.warehouse or DEFAULT_WAREHOUSE
        if session.warehouse not in self.warehouses:
            self.warehouses.add(WarehouseSettings(name=session.warehouse, created_on_ms=self._now_ms()))

    async def execute(self, session: Session, request: Request) -> tuple[Statement, Result]:
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
            raise failure.queue_timed_out(int(error.timeout_s)) from None
        except asyncio.CancelledError:
            statement.error_code = 604
            raise
        finally:
            self.history.end(statement)
        return statement, _ROW

    async def close(self, session: Session) -> None:
        self.sessions.close(session)
