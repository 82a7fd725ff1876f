"""A warehouse in a loop whose time jumps to the next timer."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

from loadgen.embedded.performance_model import PerformanceModel
from loadgen.embedded.warehouse import VirtualWarehouse, WarehouseModel, WarehouseSettings


class JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting for the next timer it moves the clock there, and by the scripted lateness beyond."""

    def __init__(self, lateness_s: Callable[[], float]) -> None:
        super().__init__()
        self.now_s = 1000.0
        self._lateness_s = lateness_s

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "everyone waits for ever"
        if timeout > 0:
            self.now_s += timeout + self._lateness_s()
        return super().select(0)


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self, lateness_s: Callable[[], float] = lambda: 0.0) -> None:
        self.jumping = JumpingSelector(lateness_s)
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now_s


class LoopSleeper:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def sleep_until(self, deadline_s: float) -> asyncio.Future[None]:
        sleeper = self._loop.create_future()
        self._loop.call_at(deadline_s, self._wake, sleeper)
        return sleeper

    def _wake(self, sleeper: asyncio.Future[None]) -> None:
        if not sleeper.done():
            sleeper.set_result(None)


def run(scenario: Callable[[], Coroutine[Any, Any, Any]], lateness_s: Callable[[], float] = lambda: 0.0) -> Any:
    loop = JumpingLoop(lateness_s)
    try:
        return loop.run_until_complete(scenario())
    finally:
        loop.close()


def a_warehouse(
    *,
    slots: int = 0,
    suspended: bool = False,
    performance: PerformanceModel | None = None,
    service_time: str | None = None,
    **changes: Any,
) -> VirtualWarehouse:
    loop = asyncio.get_running_loop()
    warehouse = VirtualWarehouse(
        WarehouseSettings(**{"name": "WH", **changes}),
        monotonic_s=loop.time,
        now_ms=lambda: loop.time() * 1000,
        sleeper=LoopSleeper(loop),
        suspended=suspended,
        performance=performance,
    )
    warehouse.set_model(WarehouseModel.of(slots, service_time))
    return warehouse


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
