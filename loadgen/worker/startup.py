"""Getting ready: every statement described, every connection open, before the worker says that it waits."""

from __future__ import annotations

import gc
import random

from loadgen.clock import Clock
from loadgen.model.outcome import ErrorCategory
from loadgen.snowflake.failure import classify, describe
from loadgen.worker.arguments import WorkerArguments
from loadgen.worker.control_loop import ControlLoop
from loadgen.worker.parts import WorkerComponents, first_target
from loadgen.worker.worker_state import WorkerSharedState

LOOK_S = 0.05
PAUSE_S = 1.0  # before a server that was away is asked again


def open_connections(
    parts: WorkerComponents, arguments: WorkerArguments, loop: ControlLoop, board: WorkerSharedState, clock: Clock
) -> bool:
    """False: the worker is ending. Raises what cannot be helped: a statement, or a login, that is refused."""
    if not _describe(parts, loop, board, clock):
        return False
    parts.conductor.aim(first_target(parts.scenario, arguments))
    if parts.pool.wanted == 0:
        board.say("INFO", "this worker's part of the connections is 0: it waits with nothing to do")
    while not parts.pool.settled:
        refused = parts.pool.refused()
        if refused is not None:
            raise refused
        loop.look()
        if clock.wait(board.ended, LOOK_S):
            return False
    gc.collect()
    gc.freeze()  # what is there now stays; the collector need not look at it in every measured second
    return True


def _describe(parts: WorkerComponents, loop: ControlLoop, board: WorkerSharedState, clock: Clock) -> bool:
    """Until it has worked once: a server that is away for a moment is no reason to give a run up."""
    while True:
        try:
            parts.bench.sessions.describe(parts.scenario.workload.statements)
            return True
        except Exception as error:  # the driver leaks exceptions of its libraries
            cause = error.__cause__ or error
            failure = classify(cause)
            if not failure.retryable:
                raise
            board.failed("", ErrorCategory.CONNECTION, failure.code, describe(cause))
        loop.look()
        if clock.wait(board.ended, random.uniform(PAUSE_S / 2, PAUSE_S)):
            return False
