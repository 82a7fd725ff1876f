"""What the HTTP side needs of an engine: the real one, or the null engine."""

from __future__ import annotations

from typing import Any, Protocol

from loadgen.embedded.history import History, Statement
from loadgen.embedded.login import Wishes
from loadgen.embedded.result import KeptResults, Result
from loadgen.embedded.running import Request
from loadgen.embedded.services import Services
from loadgen.embedded.session import Session, Sessions
from loadgen.embedded.warehouse import Warehouses


class Executor(Protocol):
    """Runs statements for sessions."""

    sessions: Sessions
    history: History
    warehouses: Warehouses
    services: Services
    by_request: Any
    running: Any
    results: KeptResults

    async def execute(self, session: Session, request: Request) -> tuple[Statement, Result]: ...

    async def close(self, session: Session) -> None: ...

    async def enter(self, session: Session, wishes: Wishes) -> None: ...
