"""Is a worker alive? Decided by its heartbeats and its process, for leader, watcher and recovery. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from loadgen.model.run import WorkerStatus


class WorkerHealth(StrEnum):
    MISSING = "MISSING"  # no heartbeat yet
    ALIVE = "ALIVE"
    STALE = "STALE"
    DEAD = "DEAD"  # no heartbeat for too long, its process ended early, or its last heartbeat was DEAD
    DONE = "DONE"


def worker_health(
    status: WorkerStatus | None, *, process_ended: bool, silent_s: float, stale_s: float, dead_s: float
) -> WorkerHealth:
    """`status`: of the last heartbeat, None without one; `silent_s`: seconds without a new heartbeat."""
    if status is WorkerStatus.COMPLETED:
        return WorkerHealth.DONE
    if status is WorkerStatus.DEAD or process_ended or silent_s > dead_s:
        return WorkerHealth.DEAD
    if status is None:
        return WorkerHealth.MISSING
    return WorkerHealth.STALE if silent_s > stale_s else WorkerHealth.ALIVE


class LivenessTracker:
    """For how long each worker's heartbeat count has not changed, in seconds of successful observation.

    Neither an outage of the control plane nor a pause of this process makes a worker look dead.
    """

    def __init__(self, *, longest_gap_s: float) -> None:
        self._longest_gap_s = longest_gap_s
        self._counts: dict[str, int] = {}
        self._silent_s: dict[str, float] = {}
        self._last_s: float | None = None

    def observe(self, counts: Mapping[str, int], now_s: float) -> Mapping[str, float]:
        """Seconds of silence per worker, after one more successful read of all heartbeat counts."""
        gap_s = 0.0 if self._last_s is None else min(now_s - self._last_s, self._longest_gap_s)
        self._last_s = now_s
        for worker_id, count in counts.items():
            changed = self._counts.get(worker_id) != count
            self._silent_s[worker_id] = 0.0 if changed else self._silent_s.get(worker_id, 0.0) + gap_s
        self._counts.update(counts)
        return dict(self._silent_s)
