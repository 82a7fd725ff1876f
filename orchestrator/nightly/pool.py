"""The manager of a pool: starts runners, pings them, and follows the decisions about them. Never calls the driver."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Sequence

from loadgen.clock import Clock
from loadgen.control.tables.run_queue_claims import QueueDepth
from loadgen.errors import LoadgenError
from loadgen.log import event
from loadgen.units import NS_PER_S, counted
from orchestrator.nightly.attempt import STOP_S
from orchestrator.nightly.pool_size import PoolRules, decide_pool_size, leaving_text, start_pause_s
from orchestrator.nightly.runner_process import RunnerProcess

log = logging.getLogger(__name__)

TICK_S = 0.2
AT_ONCE = 3  # signals
LEAVE_MARGIN_S = 30.0  # beyond the grace time and the end of a run: for last words


class PoolFailed(LoadgenError):
    """No runner of the pool could begin to work."""

    exit_code = 4
    remedy = "The lines above say what each of them met; `loadgen doctor` checks this machine and the control plane."


FAILURES_MAX = 8  # runners in a row that ended before they were registered, when none ever was


class PoolManager:
    """One thread's. `start_runner` makes the process of a runner with this name."""

    def __init__(
        self,
        rules: PoolRules,
        start_runner: Callable[[str], RunnerProcess],
        take_depth: Callable[[], QueueDepth | None],
        *,
        clock: Clock,
        idle_beat_s: Callable[[], float | None] = lambda: None,
        release: Callable[[str], None] = lambda _: None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._tell = tell  # one line per event, for the pool's user
        self._size: int | None = None  # how many runners should serve
        self._unstarted = 0  # starts in a row that failed
        self._rules, self._start_runner, self._take_depth, self._clock = rules, start_runner, take_depth, clock
        self._idle_beat_s = idle_beat_s  # None: there may be work
        self._release = release  # what this runner, whose process has ended, holds
        self._children: dict[str, RunnerProcess] = {}
        self._numbers = itertools.count(1)
        self._failures = 0  # runners in a row that ended before they were registered
        self._any_worked = False
        self._start_after_ns = clock.monotonic_ns()

    def run(self, received: Sequence[int], *, grace_s: float) -> None:
        """Keep the pool until a signal comes; then every runner may finish what it does, within `grace_s`. The second
        signal queues runs under way again, the third ends everything at once."""
        never = threading.Event()
        try:
            while not received:
                self.step()
                self._clock.wait(never, TICK_S)
            self._leave(received, grace_s)
        finally:
            for child in self._children.values():
                child.close()

    def step(self) -> None:
        """One look at every runner, and what follows from it."""
        self._collect()
        idle_beat_s = self._idle_beat_s()
        for child in self._children.values():
            child.idle_beat_s = idle_beat_s
            self._step(child)
            if child.state is not None and child.state.registered:
                self._failures, self._any_worked = 0, True
        views = [child.view() for child in self._children.values()]
        decision = decide_pool_size(self._rules, self._take_depth(), views, self._size)
        self._size = decision.size
        for name in decision.kill:
            event(log, logging.WARNING, "runner_killed", runner=name, why="it does not answer")
            self._tell(f"{name} killed: it does not answer")
            self._children[name].kill()
        for name in (*decision.recycle, *decision.drain):
            event(log, logging.INFO, "runner_drained", runner=name)
            self._tell(f"{name} {'recycled' if name in decision.recycle else 'drained: it is idle'}")
            self._children[name].drain()
        if self._clock.monotonic_ns() >= self._start_after_ns:
            for _ in range(decision.start):
                self._start()
                if self._unstarted:
                    break

    def _start(self) -> None:
        name = f"runner-{next(self._numbers)}"
        try:
            child = self._start_runner(name)
        except OSError as error:  # no memory, no process ids, no descriptors: those under way may end
            self._unstarted += 1
            pause_s = start_pause_s(self._unstarted)
            self._start_after_ns = self._clock.monotonic_ns() + round(pause_s * NS_PER_S)
            event(log, logging.WARNING, "runner_not_started", runner=name, why=str(error))
            self._tell(f"{name} could not be started: {error.strerror or error}; next attempt in {pause_s:.0f} s")
            return
        self._unstarted = 0
        self._children[name] = child
        event(log, logging.INFO, "runner_started", runner=name, pid=child.pid)
        self._tell(f"{name} started, pid {child.pid}")

    def _step(self, child: RunnerProcess) -> None:
        child.step()
        for line in child.take_told():
            self._tell(f"{child.name} {line}")

    def _collect(self) -> None:
        """Part with those that have ended; others take their place."""
        for child in [child for child in self._children.values() if child.exit_code is not None]:
            del self._children[child.name]
            self._step(child)  # its last words
            child.close()
            worked = child.state is not None and child.state.registered
            if child.state is not None and child.exit_code != 0:  # else it has given back what it held
                self._release(child.state.worker_id)
            level = logging.INFO if child.exit_code == 0 else logging.WARNING
            event(log, level, "runner_ended", runner=child.name, code=child.exit_code)
            self._tell(f"{child.name} ended, exit code {child.exit_code}")
            if not worked and child.exit_code != 0:
                self._failures += 1
                pause_ns = round(start_pause_s(self._failures) * NS_PER_S)
                self._start_after_ns = self._clock.monotonic_ns() + pause_ns
                if not self._any_worked and self._failures >= FAILURES_MAX:
                    raise PoolFailed(f"{self._failures} runners in a row ended before they could begin")

    def _leave(self, received: Sequence[int], grace_s: float) -> None:
        obeyed, told, never = 0, "", threading.Event()
        until_ns = self._clock.monotonic_ns() + round((grace_s + STOP_S + LEAVE_MARGIN_S) * NS_PER_S)
        while self._children and self._clock.monotonic_ns() < until_ns and len(received) < AT_ONCE:
            while obeyed < min(len(received), 2):
                obeyed += 1
                for child in self._children.values():
                    child.leave()
            for child in self._children.values():
                self._step(child)
            if (now := leaving_text(obeyed, self._runs_under_way(), grace_s)) != told:
                told = now
                self._tell(told)
            self._collect()
            self._clock.wait(never, TICK_S)
        if self._children:
            left = counted(self._runs_under_way(), "run")
            self._tell(f"ended at once: {left} under way, which the next pool on this machine takes again")

    def _runs_under_way(self) -> int:
        return sum(child.state is not None and child.state.queue_id is not None for child in self._children.values())
