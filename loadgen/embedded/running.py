"""A statement under way, and the request it came with."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from loadgen.embedded.backend_pool import Backend
from loadgen.embedded.container_services import ContainerServices
from loadgen.embedded.login import LoginRequest
from loadgen.embedded.result import ResultCache, StatementResult
from loadgen.embedded.session import ServerSession, ServerSessions, Value, checked
from loadgen.embedded.sql_errors import SqlError
from loadgen.embedded.statement_history import StatementHistory, StatementRecord
from loadgen.embedded.warehouse import VirtualWarehouses, WarehouseSlot


@dataclass(slots=True)
class RunningStatement:
    """A statement under way. Owned by its task; others only call cancel()."""

    statement: StatementRecord
    session: ServerSession
    task: asyncio.Task[Any]
    backend: Backend | None = None  # set while PostgreSQL works on it
    ticket: WarehouseSlot | None = None
    reason: SqlError | None = None
    blocked_since_s: float = 0.0

    def check(self) -> None:
        """Raises why it was cancelled, if it was."""
        if self.reason is not None:
            raise self.reason

    def cancel(self, reason: SqlError) -> None:
        if self.reason is not None:
            return
        self.reason = reason
        if self.backend is None:
            self.task.cancel()
            return
        self.backend.cancel()


RequestKey = tuple[str, str]  # user, request id: nobody reaches the statements of another user


@dataclass(frozen=True, slots=True)
class QueryRequest:
    """One query request as the driver sent it."""

    text: str
    bindings: Mapping[str, Mapping[str, Any]] | None = None
    parameters: Mapping[str, Any] | None = None
    describe_only: bool = False
    request_id: str = ""


def parameter_for(session: ServerSession, request: QueryRequest, name: str) -> Value:
    """A parameter's value for one statement: the statement's own, else the session's."""
    given = request.parameters.get(name) if request.parameters else None
    return session.get(name) if given is None else checked(name, given)


class Executor(Protocol):
    """Runs statements for sessions."""

    sessions: ServerSessions
    history: StatementHistory
    warehouses: VirtualWarehouses
    services: ContainerServices
    by_request: Any
    running: Any
    results: ResultCache

    async def execute(
        self, session: ServerSession, request: QueryRequest
    ) -> tuple[StatementRecord, StatementResult]: ...

    async def close(self, session: ServerSession) -> None: ...

    async def enter(self, session: ServerSession, wishes: LoginRequest) -> None: ...
