"""The life of a worker process: its states, the steps between them, and how it ends."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class WorkerStatus(StrEnum):
    STARTING = "STARTING"  # connecting
    WAITING = "WAITING"  # every connection is open; START may come
    RUNNING = "RUNNING"
    DRAINING = "DRAINING"  # no new statements
    COMPLETED = "COMPLETED"
    DEAD = "DEAD"  # written by the worker with its last heartbeat; missing heartbeats are judged by the leader

    @property
    def is_terminal(self) -> bool:
        return self in (WorkerStatus.COMPLETED, WorkerStatus.DEAD)


_S = WorkerStatus
WORKER_TRANSITIONS: dict[WorkerStatus, frozenset[WorkerStatus]] = {
    _S.STARTING: frozenset({_S.WAITING, _S.DRAINING, _S.DEAD}),
    _S.WAITING: frozenset({_S.RUNNING, _S.DRAINING, _S.DEAD}),
    _S.RUNNING: frozenset({_S.DRAINING, _S.DEAD}),
    _S.DRAINING: frozenset({_S.COMPLETED, _S.DEAD}),
    _S.COMPLETED: frozenset(),
    _S.DEAD: frozenset(),
}


class WorkerExit(IntEnum):
    """The exit code of a worker."""

    CLEAN = 0
    CONFIGURATION = 1  # arguments, scenario, SQL that cannot work, a living duplicate
    NO_CONTROL_PLANE = 2  # nothing of the control plane has answered for too long
    NO_START = 3  # no START in time
    FATAL = 4  # a bug, or the run has no leader any more


def worker_share(total: int, index: int, count: int) -> int:
    """Part `index` of `total`. Parts add up exactly and differ by at most one; the remainder goes to the low ids."""
    if count < 1 or not 0 <= index < count:
        raise ValueError(f"there is no part {index} of {count}")
    if total < 0:
        raise ValueError(f"cannot split {total}: it is negative")
    base, extra = divmod(total, count)
    return base + (index < extra)
