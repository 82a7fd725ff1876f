"""Background threads: each has a name and an owner, and none of them dies unnoticed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from loadgen.errors import LoadgenError
from loadgen.log import printable

log = logging.getLogger(__name__)


class ThreadDied(LoadgenError):
    """A background thread ended by an exception that its code does not handle: a bug."""


class Service:
    """One thread. Its owner calls start(), stop() and join(), and learns of its death by check() or `died`.

    A daemon: the process must be able to end while a call of the driver does not return.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], object],
        *,
        stopping: threading.Event | None = None,
        died: Callable[[ThreadDied], None] | None = None,
    ) -> None:
        """`work` returns soon after `stopping` is set. `died` is called in the thread."""
        self.stopping = stopping or threading.Event()
        self._work, self._died = work, died
        self._death: ThreadDied | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end. Safe to call twice, from any thread."""
        self.stopping.set()

    def join(self, limit_s: float) -> bool:
        """Wait for its end; False when it has not ended by then. One that was never started has ended."""
        if self._thread.is_alive():
            self._thread.join(max(0.0, limit_s))
        return not self._thread.is_alive()

    def check(self) -> None:
        """Raises ThreadDied when it died."""
        if self._death is not None:
            raise self._death

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # a panic of the driver's Rust core is no Exception
            name = self._thread.name
            log.error("thread_died thread=%s", name, exc_info=error)
            self._death = ThreadDied(f"thread {name}: {type(error).__name__}: {printable(str(error))}")
            self._death.__cause__ = error
            if self._died is not None:
                self._died(self._death)
