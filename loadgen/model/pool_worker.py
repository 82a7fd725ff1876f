"""The life of a runner, a process that takes runs from the queue."""

from __future__ import annotations

from enum import StrEnum


class PoolWorkerStatus(StrEnum):
    ONLINE = "ONLINE"
    DRAINING = "DRAINING"  # ends what it does, takes nothing new
    OFFLINE = "OFFLINE"
