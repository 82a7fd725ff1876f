"""Simulated time. Every thread of the product is a task with a thread, and exactly one task runs at a time.

A task that waits passes control to the task or event that is due next, and time jumps there. So a history depends on
its seed only, and takes no longer than its computations. `simulated()` redirects waits, threads and semaphores to the
scheduler; threads outside of the simulation keep the real ones.
"""

from __future__ import annotations

import _thread
import heapq
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from threading import get_ident
from typing import Any, Protocol
from unittest.mock import patch

from loadgen.units import NS_PER_S

STEPS_MAX = 2_000_000  # a history that needs more does not end
WAITERS_MAX = 32  # of an event, before expired waiters are removed
_REAL_WAIT, _REAL_SET, _REAL_THREAD = threading.Event.wait, threading.Event.set, threading.Thread


class Killed(BaseException):
    """The process of this task was killed."""


class Owner(Protocol):
    """A process, as the owner of tasks."""

    gone: bool
    paused_until_ns: int


class Task:
    """A thread of the product: it runs, waits, and continues."""

    __slots__ = ("baton", "done", "name", "over", "owner", "turn", "work")

    def __init__(self, owner: Owner | None, work: Callable[[], object], name: str) -> None:
        self.owner, self.work, self.name = owner, work, name
        self.baton = _thread.allocate_lock()
        self.baton.acquire()
        self.turn = 0  # entries for an earlier turn are obsolete
        self.over = False
        self.done = threading.Event()


class Scheduler:
    """The simulated time of one world."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.steps = 0
        self.failure: BaseException | None = None
        self.stopped = False
        self._heap: list[tuple[int, int, Task | Callable[[], None], int]] = []
        self._order = count()
        self._main = Task(None, lambda: None, "main")
        self._tasks: list[Task] = []
        self._closing = False
        self.current: Task = self._main

    @property
    def now_s(self) -> float:
        return self.now_ns / NS_PER_S

    # --- the queue of events ------------------------------------------------------------------------------------------

    def at(self, at_s: float, happens: Callable[[], None]) -> None:
        """Call a function outside of all tasks; it must not wait."""
        self._push(max(self.now_ns, round(at_s * NS_PER_S)), happens, 0)

    def spawn(self, owner: Owner, work: Callable[[], object], name: str) -> Task:
        task = Task(owner, work, name)
        self._tasks.append(task)
        self._push(self.now_ns, task, 0)
        _CARRIERS.carry(lambda: self._carry(task))
        return task

    def wake(self, owner: Owner) -> None:
        """Wake every task of a process: it may have been killed."""
        for task in self._tasks:
            if task.owner is owner and not task.over:
                self._push(self.now_ns, task, task.turn)

    def wake_waiter(self, task: Task, turn: int) -> None:
        self._push(self.now_ns, task, turn)

    def postpone(self, owner: Owner, by_ns: int) -> None:
        """Every wait of a process is extended by this time."""
        self._heap = [
            (at_ns + by_ns if isinstance(what, Task) and what.owner is owner else at_ns, order, what, turn)
            for at_ns, order, what, turn in self._heap
        ]
        heapq.heapify(self._heap)

    # --- time --------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until `stopped` is set, or a task fails; then every task is ended."""
        _SIMULATIONS[get_ident()] = self
        try:
            self._hand_on(self._main)
            self._closing = True
            for task in self._tasks:
                if not task.over:
                    self.current = task
                    task.baton.release()
                    self._main.baton.acquire()
        finally:
            del _SIMULATIONS[get_ident()]
        if self.failure is not None:
            raise self.failure

    def wait(self, event: threading.Event | None, timeout_s: float | None) -> bool:
        """The calling task passes control."""
        task = self.current
        self._check(task)
        if event is not None and event._flag:  # type: ignore[attr-defined]
            return True
        task.turn += 1
        if timeout_s is not None:
            # Never shorter than requested: a caller that waits for a moment repeats its wait until then.
            self._push(self.now_ns + max(0, math.ceil(min(timeout_s, 1e9) * NS_PER_S)), task, task.turn)
        if event is not None:
            waiters = event.__dict__.setdefault("_waiters", [])
            if len(waiters) > WAITERS_MAX:
                waiters[:] = [waiter for waiter in waiters if waiter[1].turn == waiter[2]]
            waiters.append((self, task, task.turn))
        self._hand_on(task)
        self._check(task)
        task.turn += 1
        return event is not None and event.is_set()

    def sleep(self, seconds: float) -> None:
        self.wait(None, seconds)

    def _check(self, task: Task) -> None:
        if self._closing or (task.owner is not None and task.owner.gone):
            raise Killed

    def _push(self, at_ns: int, what: Task | Callable[[], None], turn: int) -> None:
        heapq.heappush(self._heap, (at_ns, next(self._order), what, turn))

    def _hand_on(self, me: Task) -> None:
        """Pass control to the next task, and return at the next turn of this task. A task that has ended does not
        return."""
        following = self._main if self._closing else self._next()
        self.current = following
        if following is me:
            return
        following.baton.release()
        if not me.over:
            me.baton.acquire()

    def _next(self) -> Task:
        """Run the events that are due, up to the next task that continues."""
        while not self.stopped and self.failure is None:
            self.steps += 1
            if not self._heap or self.steps > STEPS_MAX:
                self.failure = AssertionError("nothing is left to happen" if not self._heap else "it goes on for ever")
                break
            at_ns, _, what, turn = heapq.heappop(self._heap)
            if not isinstance(what, Task):
                self.now_ns = at_ns
                try:
                    what()
                except BaseException as error:
                    self.failure = error
                continue
            if what.over or what.turn != turn:
                continue
            owner = what.owner
            if owner is not None and owner.paused_until_ns > at_ns and not owner.gone:
                self._push(owner.paused_until_ns, what, turn)
                continue
            self.now_ns = at_ns
            return what
        return self._main

    def _carry(self, task: Task) -> None:
        task.baton.acquire()
        _SIMULATIONS[get_ident()] = self
        try:
            self._check(task)
            task.work()
        except Killed:
            pass
        except BaseException as error:
            self.failure = self.failure or error
        del _SIMULATIONS[get_ident()]
        task.over = True
        if not self._closing:
            task.done.set()
        self._hand_on(task)


# --- threads of the operating system ---------------------------------------------------------------------------------


class _Carriers:
    """Threads that run one task after the other: creating a thread costs more than most tasks do."""

    def __init__(self) -> None:
        self._idle: list[tuple[Any, list[Callable[[], None]]]] = []

    def carry(self, work: Callable[[], None]) -> None:
        if self._idle:
            lock, box = self._idle.pop()
        else:
            lock, box = _thread.allocate_lock(), []
            lock.acquire()
            _thread.start_new_thread(self._live, (lock, box))
        box.append(work)
        lock.release()

    def _live(self, lock: Any, box: list[Callable[[], None]]) -> None:
        while True:
            lock.acquire()
            box.pop()()
            self._idle.append((lock, box))


_CARRIERS = _Carriers()
_SIMULATIONS: dict[int, Scheduler] = {}  # by the thread that runs one of its tasks


def here() -> Scheduler:
    """The simulation of the current thread."""
    return _SIMULATIONS[get_ident()]


# --- replacements for the product ------------------------------------------------------------------------------------


class SimulatedThread:
    """Replaces threads that the product starts: a task of the same process."""

    def __init__(self, target: Callable[..., object], args: tuple[Any, ...] = (), name: str = "", **_: Any) -> None:
        self._work, self.name = lambda: target(*args), name
        self._task: Task | None = None

    def start(self) -> None:
        scheduler = here()
        assert scheduler.current.owner is not None
        self._task = scheduler.spawn(scheduler.current.owner, self._work, self.name)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.over

    def join(self, timeout: float | None = None) -> None:
        if self._task is not None:
            self._task.done.wait(timeout)


class SimulatedSemaphore:
    """For tasks: at most this many at a time."""

    def __init__(self, free: int) -> None:
        self._free = free
        self._released = threading.Event()

    def acquire(self, *, blocking: bool = True) -> bool:
        while not self._free:
            if not blocking:
                return False
            self._released.clear()
            self._released.wait()
        self._free -= 1
        return True

    def release(self) -> None:
        self._free += 1
        self._released.set()


def _thread_of(*arguments: Any, **more: Any) -> Any:
    return (SimulatedThread if get_ident() in _SIMULATIONS else _REAL_THREAD)(*arguments, **more)


def _wait(event: threading.Event, timeout: float | None = None) -> bool:
    simulation = _SIMULATIONS.get(get_ident())
    return _REAL_WAIT(event, timeout) if simulation is None else simulation.wait(event, timeout)


def _set(event: threading.Event) -> None:
    _REAL_SET(event)
    for scheduler, task, turn in event.__dict__.pop("_waiters", ()):
        scheduler.wake_waiter(task, turn)


@contextmanager
def simulated() -> Iterator[None]:
    """Events, threads and semaphores of tasks belong to their simulation."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(threading.Event, "wait", _wait))
        stack.enter_context(patch.object(threading.Event, "set", _set))
        stack.enter_context(patch.object(threading, "Thread", _thread_of))
        stack.enter_context(patch.object(threading, "Semaphore", SimulatedSemaphore))
        yield
