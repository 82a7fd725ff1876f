"""A thread in which one thing is done after another, each in bounded time.

The thread owns what `make` made for it: connections, which belong to one thread. When something takes too long, thread
and belongings are left behind, and the next thing gets new ones. Should the call return after all, the thread closes
what it owns and ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    def close(self) -> None: ...


Resources = TypeVar("Resources", bound=Closable)
Result = TypeVar("Result")


class CheckTimeout(Exception):
    """Not done in time, and not waited for any longer."""


@dataclass(frozen=True, slots=True)
class _Hand(Generic[Resources]):
    """The thread that works at present, and what it is to do; None is the end."""

    thread: threading.Thread
    jobs: SimpleQueue[Callable[[Resources], None] | None]


class BoundedExecutor(Generic[Resources]):
    """`do` and `close` are called by one thread, the main one."""

    def __init__(self, make: Callable[[], Resources], *, name: str) -> None:
        self._make = make
        self._name = name
        self._hand: _Hand[Resources] | None = None

    def do(self, action: Callable[[Resources], Result], *, limit_s: float) -> Result:
        """The action's result; raises what it raises, and TookTooLong."""
        done = threading.Event()
        results: list[Result] = []
        errors: list[BaseException] = []

        def run(belongings: Resources) -> None:
            try:
                results.append(action(belongings))
            except BaseException as error:  # handed to the thread that waits
                errors.append(error)
            finally:
                done.set()

        hand = self._hand = self._hand or self._start()
        hand.jobs.put(run)
        if not done.wait(limit_s):
            self.close(limit_s=0)
            raise CheckTimeout
        try:
            if errors:
                raise errors[0]
            return results[0]
        finally:
            errors.clear()  # else error, traceback, frame and list would keep one another and the sessions alive

    def close(self, *, limit_s: float) -> None:
        """Let the thread close what it owns, and wait for it so long at most. Safe to call twice."""
        hand, self._hand = self._hand, None
        if hand is not None:
            hand.jobs.put(None)
            hand.thread.join(limit_s)

    def _start(self) -> _Hand[Resources]:
        jobs: SimpleQueue[Callable[[Resources], None] | None] = SimpleQueue()

        def work() -> None:
            belongings = self._make()
            while (job := jobs.get()) is not None:
                job(belongings)
            belongings.close()

        # A daemon: the program must not wait for a driver's call that does not return.
        thread = threading.Thread(target=work, name=self._name, daemon=True)
        thread.start()
        return _Hand(thread, jobs)
