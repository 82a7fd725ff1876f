"""How statements of a simulated process reach the tables: at once, late, lost, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Any

from loadgen.control.queries import Query
from loadgen.control.session import ControlFailed
from tests.unit.orchestrator_tables import DUPLICATE, NO_ANSWER, Tables, Taken


class Fate(Enum):
    """What becomes of a request."""

    ANSWERED = "executed, and answered"
    AWAY = "it does not arrive"
    LOST = "executed, and the answer lost"
    SLOW = "begun, no answer, and committed later"
    LATE = "no answer, and begun later, and committed later still"


class Wire:
    """Stands where a process has its control session."""

    def __init__(
        self, tables: Tables, fate: Callable[[bool], Fate], later: Callable[[Fate, Callable[[], None]], None]
    ) -> None:
        """`fate` says what becomes of a request (True: a change); `later` does something when it is time for that."""
        self._tables, self._fate, self._later = tables, fate, later

    def fetch(self, query: Query, *binds: Any) -> list[tuple[Any, ...]]:
        if self._fate(False) is not Fate.ANSWERED:
            raise ControlFailed(f"no answer to {query.name}", NO_ANSWER)
        return self._tables.fetch(query, binds)

    def execute(self, query: Query, *binds: Any) -> int:
        fate = self._fate(True)
        if fate is Fate.LATE:
            self._later(fate, lambda: self._begin(query, binds))
        elif fate is Fate.SLOW:
            self._begin(query, binds)
        elif fate is not Fate.AWAY:
            try:
                touched = self._tables.begin(query, binds)()
            except Taken as taken:
                raise ControlFailed(f"{query.name}: duplicate key", DUPLICATE) from taken
            if fate is Fate.ANSWERED:
                return touched
        raise ControlFailed(f"no answer to {query.name}", NO_ANSWER)

    def close(self) -> None:
        """Nothing is held."""

    def _begin(self, query: Query, binds: tuple[Any, ...]) -> None:
        """Nobody hears what comes of it."""
        commit = self._tables.begin(query, binds)

        def unheard() -> None:
            with suppress(Taken):
                commit()

        self._later(Fate.SLOW, unheard)
