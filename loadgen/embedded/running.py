"""A statement under way, and the request it came with."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadgen.embedded.backend_pool import Backend
from loadgen.embedded.session import ServerSession
from loadgen.embedded.session_parameters import Value, checked
from loadgen.embedded.sql_errors import SqlError
from loadgen.embedded.statement_history import StatementRecord
from loadgen.embedded.warehouse import WarehouseSlot


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
