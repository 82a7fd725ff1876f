"""One observation of a run as plain values, made by its leader or read from the tables."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from loadgen.control.tables.run_measurements import StepRecord, WarehousePoll
from loadgen.control.tables.run_status import Run
from loadgen.control.tables.test_logs import LogRow
from loadgen.control.tables.worker_heartbeats import HeartbeatRow
from loadgen.metrics.live_metrics import LiveMetrics
from loadgen.model.run import ProcessEnd, WorkerStatus
from loadgen.report.records import WorkerSecond
from loadgen.rules.thresholds import Checked
from loadgen.values import dataclass


class WorkerHealth(StrEnum):
    MISSING = "MISSING"  # no heartbeat yet
    ALIVE = "ALIVE"
    STALE = "STALE"
    DEAD = "DEAD"  # no heartbeat for too long, its process ended early, or its last heartbeat reported DEAD
    DONE = "DONE"  # its last heartbeat reported COMPLETED, or its result is stored as that


class WorkerDisplayState(StrEnum):
    """The status of a worker's last heartbeat, unless it is stale, dead or done."""

    MISSING = "awaited"  # no heartbeat yet
    STARTING = "starting"
    WAITING = "waiting"
    RUNNING = "running"
    DRAINING = "draining"
    DONE = "done"
    STALE = "stale"
    DEAD = "dead"

    @property
    def is_over(self) -> bool:
        return self in (WorkerDisplayState.DONE, WorkerDisplayState.DEAD)


_UNWELL = {
    WorkerHealth.MISSING: WorkerDisplayState.MISSING,
    WorkerHealth.STALE: WorkerDisplayState.STALE,
    WorkerHealth.DEAD: WorkerDisplayState.DEAD,
    WorkerHealth.DONE: WorkerDisplayState.DONE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSnapshot:
    """A worker as observed at one moment."""

    worker_id: str
    health: WorkerHealth
    row: HeartbeatRow | None
    live: LiveMetrics | None
    end: ProcessEnd | None
    silent_s: float

    @property
    def status(self) -> WorkerStatus | None:
        return None if self.row is None else self.row.beat.status

    @property
    def state(self) -> WorkerDisplayState:
        """Its state for display."""
        unwell = _UNWELL.get(self.health)
        if unwell is not None:
            return unwell
        return WorkerDisplayState.RUNNING if self.status is None else WorkerDisplayState(self.status.value.lower())

    @property
    def is_ready(self) -> bool:
        return self.health in (WorkerHealth.ALIVE, WorkerHealth.STALE) and self.status in (
            WorkerStatus.WAITING,
            WorkerStatus.RUNNING,
        )

    @property
    def is_over(self) -> bool:
        """Whether it has ended: it sends no heartbeat any more."""
        return self.health in (WorkerHealth.DEAD, WorkerHealth.DONE) or self.end is not None

    @property
    def is_storing(self) -> bool:
        """Whether its statements have ended, and it stores its results."""
        return self.row is not None and (
            self.health is WorkerHealth.ALIVE
            and self.status is WorkerStatus.DRAINING
            and self.row.beat.active_connections == 0
        )

    @property
    def unstored_rows(self) -> Mapping[str, int]:
        """Number of rows that it could not store, by kind. `loadgen upload` stores them later."""
        return {} if self.live is None else self.live.unstored

    @property
    def last_error(self) -> str | None:
        """The last error that its heartbeats reported."""
        return None if self.row is None else self.row.beat.last_error

    @property
    def why(self) -> str:
        """The state or the end of the worker, with the reason, in one sentence."""
        error = self.last_error
        if self.end is not None:
            why = self._reason_of_end(self.end)
            return f"{self.end.sentence}{f': {why}' if why else ''}"
        if self.health is WorkerHealth.MISSING:
            return f"{self.worker_id} never registered"
        if self.status is WorkerStatus.DEAD:
            return f"{self.worker_id} ended: {error or 'no reason was reported'}"
        if self.health is WorkerHealth.DEAD:
            return f"{self.worker_id} has been silent for {self.silent_s:.0f} s"
        return f"{self.worker_id} is {self.status}{f': {error}' if error else ''}"

    def _reason_of_end(self, end: ProcessEnd) -> str | None:
        """The error of its last heartbeat if that reported DEAD, or the error in its log. If it was not killed, also
        the last error of its heartbeats, or the last line of its log."""
        reported = self.last_error if self.status is WorkerStatus.DEAD else None
        if reported or end.error or end.code < 0:
            return reported or end.error
        return self.last_error or (end.last_lines[-1] if end.last_lines else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """`seen_s` is a time of the monotonic clock of this process; `moment` is the same time in UTC."""

    seen_s: float
    moment: datetime
    run: Run
    workers: tuple[WorkerSnapshot, ...] = ()
    elapsed_s: float | None = None  # since the plan began
    measures_s: float = 0.0  # planned beginning of the measurement
    ends_s: float | None = None  # planned end; None: unknown (a search for the maximum)
    ending: str | None = None  # why it is ending
    checked: tuple[Checked, ...] = ()  # thresholds, judged by the measurement so far
    warnings: tuple[str, ...] = ()
    steps: tuple[StepRecord, ...] = ()  # judged steps of a search for the maximum
    polls: tuple[WarehousePoll, ...] = ()  # the newest polls of the warehouse, oldest first
    # Only from the tables:
    stored: tuple[WorkerSecond, ...] = ()  # seconds before the first snapshot, in order
    logs: tuple[LogRow, ...] = ()  # warnings of workers that were read so far, oldest first
