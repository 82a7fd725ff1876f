"""Background threads: each has a name and an owner, which learns when the thread fails; calls in a thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from loadgen.errors import LoadgenError
from loadgen.log import printable

log = logging.getLogger(__name__)


class ThreadDied(LoadgenError):
    """A background thread ended by an unhandled exception, which is a bug."""


class Service:
    """One thread. Its owner calls start(), stop() and join(), and learns of a failure by check() or `died`.

    It is a daemon thread: the process must be able to end although a driver call does not return.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], object],
        *,
        stopping: threading.Event | None = None,
        died: Callable[[ThreadDied], None] | None = None,
    ) -> None:
        """`work` must return soon after `stopping` is set. `died` is called in the thread after a failure."""
        self.stopping = stopping or threading.Event()
        self._work, self._died = work, died
        self._death: ThreadDied | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end. Safe to call twice, from any thread."""
        self.stopping.set()

    def join(self, limit_s: float) -> bool:
        """Wait for the end of the thread. False: it has not ended within the limit. True if it was never started."""
        if self._thread.is_alive():
            self._thread.join(max(0.0, limit_s))
        return not self._thread.is_alive()

    def check(self) -> None:
        """Raise ThreadDied if the thread has failed."""
        if self._death is not None:
            raise self._death

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # a panic in the Rust core of the driver is not an Exception
            name = self._thread.name
            log.error("thread_died thread=%s", name, exc_info=error)
            self._death = ThreadDied(f"thread {name}: {type(error).__name__}: {printable(str(error))}")
            self._death.__cause__ = error
            if self._died is not None:
                self._died(self._death)


def exit_code_after(received: Sequence[int]) -> int:
    """The exit code of a program that the first of these signals has ended."""
    return 128 + received[0]


Result = TypeVar("Result")


def run_in_thread(action: Callable[[], Result], *, name: str) -> Result:
    """Run `action` in a thread and wait for it: during a call of the driver, the main thread cannot handle Ctrl-C."""
    done = threading.Event()
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(action())
        except BaseException as error:  # handed to the main thread, which raises it
            errors.append(error)
        finally:
            done.set()

    # A daemon: after Ctrl-C the program must not wait for the driver's time limits.
    threading.Thread(target=run, name=name, daemon=True).start()
    done.wait()
    try:
        if errors:
            raise errors[0]
        return results[0]
    finally:
        errors.clear()  # breaks the cycle of error, traceback, frame and list, which keeps objects of the driver alive
