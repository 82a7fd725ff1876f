"""What the HTTP side needs of an engine: the real one, or the null engine."""

from __future__ import annotations

from typing import Any, Protocol

from loadgen.embedded.container_services import ContainerServices
from loadgen.embedded.login import LoginRequest
from loadgen.embedded.result import ResultCache, StatementResult
from loadgen.embedded.running import QueryRequest
from loadgen.embedded.session import ServerSession, ServerSessions
from loadgen.embedded.statement_history import StatementHistory, StatementRecord
from loadgen.embedded.warehouse import VirtualWarehouses


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
