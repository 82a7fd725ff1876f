"""One observation of a run as plain values, from its leader or from the tables."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from loadgen.control.tables.run_measurements import StepRecord, WarehousePoll
from loadgen.control.tables.run_status import Run
from loadgen.control.tables.worker_heartbeats import HeartbeatRow
from loadgen.metrics.live_metrics import LiveMetrics
from loadgen.report.records import WorkerSecond
from loadgen.rules.thresholds import Checked
from loadgen.values import dataclass


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


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSnapshot:
    worker_id: str
    state: WorkerDisplayState
    row: HeartbeatRow | None
    live: LiveMetrics | None
    silent_s: float  # at the time of the snapshot
    why: str = ""  # why it is dead, in one sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class DisplaySnapshot:
    """`seen_s` is a time of the monotonic clock of this process; `moment` is the same time in UTC."""

    seen_s: float
    moment: datetime
    run: Run
    workers: tuple[WorkerSnapshot, ...] = ()
    elapsed_s: float | None = None  # since the plan began
    measures_s: float = 0.0  # planned beginning of the measurement
    ends_s: float | None = None  # planned end; None: unknown (a search for the maximum)
    ending: str | None = None  # why it is ending
    checked: tuple[Checked, ...] = ()
    warnings: tuple[str, ...] = ()
    steps: tuple[StepRecord, ...] = ()  # judged steps of a search for the maximum
    polls: tuple[WarehousePoll, ...] = ()  # the newest polls of the warehouse, oldest first
    stored: tuple[WorkerSecond, ...] = ()  # seconds before the first snapshot, in order
