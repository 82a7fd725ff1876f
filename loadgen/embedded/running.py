"""A statement under way, and the request it came with."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loadgen.embedded.backends import Backend, Backends
from loadgen.embedded.failure import SqlError
from loadgen.embedded.history import Statement
from loadgen.embedded.parameters import Value, checked
from loadgen.embedded.session import Session
from loadgen.embedded.warehouse import Ticket


@dataclass(slots=True)
class Running:
    """A statement under way. Owned by its task; others only call cancel()."""

    statement: Statement
    session: Session
    task: asyncio.Task[Any]
    backends: Backends
    backend: Backend | None = None  # set while PostgreSQL works on it
    ticket: Ticket | None = None
    reason: SqlError | None = None
    blocked_since_s: float = 0.0
    helpers: set[asyncio.Task[None]] = field(default_factory=set)

    def cancel(self, reason: SqlError) -> None:
        if self.reason is not None:
            return
        self.reason = reason
        if self.backend is None:
            self.task.cancel()
            return
        self.backend.disturbed = True
        helper = asyncio.get_running_loop().create_task(self.backends.cancel(self.backend), name="cancel-statement")
        self.helpers.add(helper)
        helper.add_done_callback(self.helpers.discard)


RequestKey = tuple[str, str]  # user, request id: nobody reaches the statements of another user


@dataclass(frozen=True, slots=True)
class Request:
    """One query request as the driver sent it."""

    text: str
    bindings: Mapping[str, Mapping[str, Any]] | None = None
    parameters: Mapping[str, Any] | None = None
    describe_only: bool = False
    request_id: str = ""


def setting(session: Session, request: Request, name: str) -> Value:
    """A parameter's value for one statement: the statement's own, else the session's."""
    given = request.parameters.get(name) if request.parameters else None
    return session.get(name) if given is None else checked(name, given)
