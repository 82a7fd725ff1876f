"""Control sessions of simulated processes: their statements reach the tables at once, late, or never."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, Protocol

from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlFailed, NamedQuery
from loadgen.model.counts import ErrorCategory
from loadgen.snowflake.failure import Failure
from tests.unit.simulation.standard_tables import Commit
from tests.unit.simulation.tables import Tables, Taken

NO_ANSWER = Failure(category=ErrorCategory.CONNECTION, retryable=True, unknown_outcome=True)
DUPLICATE = Failure(category=ErrorCategory.SNOWFLAKE_ERROR, is_duplicate_key=True)
AT_ONCE_S = 0.05  # a response that takes no longer is one step of the simulation, not two


class RequestOutcome(Enum):
    """The outcome of a request."""

    ANSWERED = "executed, and answered"
    AWAY = "it does not arrive"
    LOST = "executed, and the answer lost"
    SLOW = "begun, no answer, and committed later"
    LATE = "no answer, and begun later, and committed later still"
    HELD_UP = "read late, and answered"
    HELD_BACK = "read, and answered late"


class Network(Protocol):
    """The current state of the network, for one session."""

    def note(self, query: NamedQuery) -> None:
        """A statement is sent."""

    def outcome(self, *, changes: bool) -> RequestOutcome: ...

    def refuses(self, query: NamedQuery) -> bool: ...

    def latency_s(self) -> float: ...

    def silence_s(self) -> float:
        """The timeout of a response that does not come."""

    def held_s(self) -> float:
        """The latency of a late response."""

    def later(self, outcome: RequestOutcome, happens: Callable[[], None]) -> None:
        """Schedule an effect that no caller waits for."""

    def sleep(self, seconds: float) -> None: ...


PLACE = ControlPlaneLocation(connection="embedded")


class Wire:
    """Replaces the ControlSession of a process."""

    place = PLACE

    def __init__(self, tables: Tables, network: Network) -> None:
        self._tables, self._network = tables, network

    def fetch(self, query: NamedQuery, *binds: Any) -> list[tuple[Any, ...]]:
        self._network.note(query)
        outcome = self._network.outcome(changes=False)
        if outcome in (RequestOutcome.HELD_UP, RequestOutcome.HELD_BACK):
            there_s, rest_s = self._network.held_s(), AT_ONCE_S
            there_s, rest_s = (there_s, rest_s) if outcome is RequestOutcome.HELD_UP else (rest_s, there_s)
            self._network.sleep(there_s)
        elif outcome is RequestOutcome.ANSWERED:
            rest_s = self._arrive()
        else:
            self._no_answer(query)
        rows = self._tables.fetch(query, tuple(map(_plain, binds)))
        self._network.sleep(rest_s)
        return rows

    def execute(self, query: NamedQuery, *binds: Any) -> int:
        bound = tuple(map(_plain, binds))
        return self._change(query, lambda: self._tables.begin(query, bound))

    def append(self, query: NamedQuery, rows: Sequence[Sequence[Any]]) -> int:
        bound = [tuple(map(_plain, row)) for row in rows]
        return self._change(query, lambda: self._tables.begin_many(query, bound))

    def close(self) -> None:
        """Nothing to release."""

    def _change(self, query: NamedQuery, begin: Callable[[], Commit]) -> int:
        network = self._network
        network.note(query)
        outcome = RequestOutcome.AWAY if network.refuses(query) else network.outcome(changes=True)
        if outcome is RequestOutcome.LATE:
            network.later(outcome, lambda: self._begin(begin))
        elif outcome is RequestOutcome.SLOW:
            self._begin(begin)
        elif outcome is not RequestOutcome.AWAY:
            rest_s = self._arrive()
            try:
                touched = begin()()
            except Taken as taken:
                raise ControlFailed(f"{query.name}: duplicate key", DUPLICATE) from taken
            if outcome is RequestOutcome.ANSWERED:
                network.sleep(rest_s)
                return touched
        return self._no_answer(query)

    def _arrive(self) -> float:
        """Wait for the request to arrive. Returns the latency of the response."""
        latency_s = self._network.latency_s()
        rest_s = latency_s / 2 if latency_s > AT_ONCE_S else 0.0
        self._network.sleep(latency_s - rest_s)
        return rest_s

    def _no_answer(self, query: NamedQuery) -> int:
        self._network.sleep(self._network.silence_s())
        raise ControlFailed(f"no answer to {query.name}", NO_ANSWER)

    def _begin(self, begin: Callable[[], Commit]) -> None:
        """No caller receives the result."""
        commit = begin()

        def unheard() -> None:
            with suppress(Taken):
                commit()

        self._network.later(RequestOutcome.SLOW, unheard)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value
