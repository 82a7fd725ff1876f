"""The end of the load: begin nothing new, wait for what is under way, cancel the rest, account for all of it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from loadgen.log import event
from loadgen.units import counted
from loadgen.worker.parts import WorkerComponents
from loadgen.worker.worker_state import WorkerSharedState

log = logging.getLogger(__name__)

CANCEL_S = 5.0  # how long statements that were cancelled on the server may take to come back
FORCED_CANCEL_S = 1.0  # the same, when nobody wants to wait


class DrainWait(Protocol):
    def __call__(
        self, done: Callable[[], bool], limit_s: Callable[[], float], unless: threading.Event | None = None
    ) -> None:
        """Until it is done, time is over, or `unless` is set; harvesting all the while."""


def drain(parts: WorkerComponents, board: WorkerSharedState, wait: DrainWait, *, hurry: threading.Event) -> None:
    """The main thread's. Afterwards no sample is missing, but for a harvest."""
    parts.conductor.finish()
    wait(lambda: parts.pool.drained, lambda: board.drain_s, unless=hurry)
    sessions = parts.pool.cancel()
    if sessions:
        board.say("WARNING", f"still running, and now cancelled: {counted(len(sessions), 'statement')}")
        work = threading.Thread(target=_cancel, args=(parts, sessions), name="cancel", daemon=True)
        work.start()
        wait(lambda: parts.pool.drained, lambda: FORCED_CANCEL_S if hurry.is_set() else CANCEL_S)
    abandoned = parts.pool.abandon()
    if abandoned:
        board.say("WARNING", f"never came back, and counted as cancelled: {counted(abandoned, 'statement')}")
    parts.conductor.settle_all()


def _cancel(parts: WorkerComponents, sessions: list[int]) -> None:
    try:
        parts.bench.sessions.cancel(sessions)
    except Exception as error:  # the statements have a time limit of their own
        event(log, logging.WARNING, "cancel_failed", what=str(error))
