"""Background threads: each has a name and an owner, which learns when the thread fails."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

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
