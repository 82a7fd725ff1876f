"""Looks at the warehouse under test: what two of them in a row say, and one that fails."""

from __future__ import annotations

import threading
from typing import cast

import pytest
from snowflake.connector.errors import OperationalError

from loadgen.clock import FakeClock
from loadgen.control.session import ControlSession
from loadgen.snowflake.profile import ConnectionProfile
from orchestrator import warehouse
from orchestrator.warehouse import WarehousePoller
from tests.unit.simulation.target import Warehouse

FULL, EMPTY = 5, 0  # statements that wait


class Shown(Warehouse):
    """Shows one number of waiting statements after the other; None: the look fails."""

    def __init__(self, *queued: int | None) -> None:
        super().__init__(1, rejects=False)
        self.queued = list(queued)

    def connect(self, *_: object, **__: object) -> Warehouse:
        return self

    def execute(self, sql: str, _: object = None) -> Warehouse:
        if self.queued[0] is None:
            self.queued.pop(0)
            raise OperationalError("no answer", errno=250003)
        return self

    def fetchall(self) -> list[tuple[object, ...]]:
        return [("WH", 1, self.queued.pop(0), 1, 1, "X-Small")]


class Looks(FakeClock):
    """Time for as many looks as there are."""

    def __init__(self, shown: Shown) -> None:
        super().__init__()
        self._shown = shown

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self.advance(timeout_s)
        return not self._shown.queued


class Closed:
    """Stores nothing."""

    def close(self) -> None:
        """Nothing is held."""

    def append(self, *_: object) -> int:
        return 0

    def fetch(self, *_: object) -> list[tuple[int]]:
        return [(1,)]


@pytest.mark.parametrize(
    ("queued", "seen"),
    [
        ([FULL, FULL], True),
        ([FULL, EMPTY], False),
        ([EMPTY, FULL], False),
        ([FULL, None, FULL], False),  # nobody knows what was between them
        ([None, FULL, FULL], True),
        ([FULL, FULL, None], False),
    ],
)
def test_a_queue_is_seen_by_two_looks_in_a_row(
    queued: list[int | None], seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Shown(*queued)
    monkeypatch.setattr(warehouse, "connect", shown.connect)
    store, profile = cast(ControlSession, Closed()), ConnectionProfile(name="x", fields={})
    watch = WarehousePoller(profile, "WH", "run", store, clock=Looks(shown), period_s=1.0, environ={})

    watch.run()

    assert watch.queue_seen() is seen
