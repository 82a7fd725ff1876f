"""What the processes of the simulated world have in common: a clock of their own, and a life that can be paused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar, cast

from loadgen.control.lease import LeaseTimes
from loadgen.control.retry import Patience
from loadgen.control.session import ControlSession
from loadgen.errors import LoadgenError
from loadgen.scenario.scenario import Timing
from loadgen.units import NS_PER_S
from tests.unit.orchestrator_tables import ZERO, Tables
from tests.unit.orchestrator_wires import Fate, Wire

if TYPE_CHECKING:
    from tests.unit.orchestrator_world import World

# As they are by default, but for the pace of looking: half as many steps, and the same history otherwise.
TIMING = Timing(tick_s=2.0, heartbeat_s=2.0, status_poll_s=2.0)
TIMES = LeaseTimes(ttl_s=TIMING.lease_ttl_s, renew_s=TIMING.lease_renew_s, margin_s=TIMING.lease_margin_s)
ATTEMPTS = 3  # of a statement, at one moment: the pauses between them are pauses of the process here
TRY_S = 3.0  # whoever stands by tries to lead so often
Result = TypeVar("Result")
Life = Generator[float, None, None]  # gives how long it waits; 0: a place where it may be paused
Turn = Generator[float, None, Result]  # a part of a life, that comes to something


class ProcessClock:
    """A process's own clocks. Waiting takes no time: a process that waits gives its time to the world."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.asleep_s = 0.0

    def monotonic_ns(self) -> int:
        return round((self._tables.now_s - self.asleep_s) * NS_PER_S)

    def boottime_ns(self) -> int:
        return round(self._tables.now_s * NS_PER_S)

    def utc_now(self) -> datetime:
        return ZERO.replace(tzinfo=UTC) + timedelta(seconds=self._tables.now_s)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.is_set()


class Process:
    """Something that lives, pauses, and dies; it may have several threads, which do all that together."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.clock = ProcessClock(world.tables)
        self.alive = True
        self.paused_until_s = self.cut_off_until_s = 0.0
        self.session = self.wire()
        self.patience = Patience(stop=threading.Event(), attempts=ATTEMPTS, clock=self.clock)

    @property
    def now_s(self) -> float:
        """By its own clock."""
        return self.clock.monotonic_ns() / NS_PER_S

    def wire(self, cut_off: Callable[[], bool] = lambda: False) -> ControlSession:
        """A connection; it fails with everything else, and by itself when it is cut off."""

        def fate(changes: bool) -> Fate:
            world = self.world
            if world.now_s >= world.faults_until_s:
                return Fate.ANSWERED
            if world.now_s < world.away_until_s:
                return Fate.AWAY
            if world.now_s < self.cut_off_until_s or cut_off():  # some of it is under way all the same
                return Fate.LATE if changes and world.rng.random() < 0.3 else Fate.AWAY
            return world.draw_fate(changes)

        return cast(ControlSession, Wire(self.world.tables, fate, self.world.later))

    def thread(self, life: Life, after_s: float = 0.0) -> None:
        self.world.at(self.world.now_s + after_s, lambda: self._go_on(life))

    def pause(self, seconds: float, *, asleep: bool) -> None:
        """Stopped; or the machine is asleep, and its monotonic clock stands still."""
        self.paused_until_s = max(self.paused_until_s, self.world.now_s + seconds)
        self.world.troubled_until(self.paused_until_s)
        if asleep:
            self.clock.asleep_s += seconds

    def crash(self) -> None:
        self.alive = False

    def ended(self, error: LoadgenError | None) -> None:
        """A thread of it has come to its end."""

    def _go_on(self, life: Life) -> None:
        world = self.world
        while self.alive:
            if self.paused_until_s > world.now_s:
                return world.at(self.paused_until_s, lambda: self._go_on(life))
            try:
                wait_s = next(life)
            except StopIteration:
                return self.ended(None)
            except LoadgenError as error:
                return self.ended(error)
            world.hiccup(self)
            if wait_s:
                return world.at(world.now_s + wait_s, lambda: self._go_on(life))
