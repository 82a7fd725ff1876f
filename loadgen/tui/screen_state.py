"""The content of the screen, as frozen values. Foreign text is unchanged here: drawing makes it safe.

Moments (`…_s`) are of the monotonic clock of this process, so a countdown needs no new snapshot.
"""

from __future__ import annotations

from datetime import datetime

from loadgen.metrics.percentile import Quantile
from loadgen.model.run import Phase
from loadgen.report.experiment import ExperimentStatus
from loadgen.results.run_snapshot import WorkerDisplayState
from loadgen.rules.thresholds import Checked
from loadgen.tui.history import HistorySecond, PeakThroughput, RecentFigures
from loadgen.values import dataclass

STALE_AFTER_S = 3.0  # snapshots come every second; an older one is marked as old


@dataclass(frozen=True, slots=True, kw_only=True)
class TableProgress:
    """The progress of a table that is being filled."""

    table: str
    rows_there: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadStatus:
    """Planned and actual load. `rate_per_s` None: a closed loop without a rate. `lost` connections and `refused` logins
    are those of the whole run."""

    target: int = 0
    open: int = 0
    busy: int = 0
    rate_per_s: float | None = None
    lost: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementLine:
    """Figures of a statement. None: too few samples. `cut_off` counts statements that timed out, were cancelled or
    never sent; percentiles include them as lower bounds."""

    name: str
    qps: float
    p50: Quantile | None
    p95: Quantile | None
    p99: Quantile | None
    succeeded: int
    failed: int
    cut_off: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyDistribution:
    """Response times of a window: `counts[n]` statements took from `edges_ms[n]` to `edges_ms[n + 1]`."""

    edges_ms: tuple[float, ...]
    counts: tuple[int, ...]
    percentiles: tuple[tuple[str, Quantile], ...]  # the known ones


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFigures:
    """Figures of the current window, from its beginning until now."""

    name: str  # "warm-up", "step 3"
    seconds: float = 0.0  # measured by every worker
    qps: float = 0.0
    succeeded: int = 0
    failed: int = 0
    skipped: int = 0
    statements: tuple[StatementLine, ...] = ()
    spread: LatencyDistribution | None = None  # None: nothing succeeded yet


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLine:
    worker_id: str
    state: WorkerDisplayState
    open: int
    target: int
    busy: int
    cpu_percent: float | None  # of one core
    heard_s: float | None  # time of the last heartbeat; None: none yet
    said: str = ""  # its last error


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseLine:
    """The last poll of the warehouse. `queued` are the numbers of queued statements, oldest first."""

    name: str
    size: str | None
    running: int | None
    queue: int | None
    clusters: int | None
    polled_at: datetime  # naive UTC
    queued: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FindMaxStepLine:
    """A judged step of a search for the maximum."""

    number: int
    target: int
    held: bool
    outcome: str
    qps: float | None
    p95_ms: float | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FindMaxStatus:
    step: int
    target: int | None  # None: the search is over
    stage: str  # climb, confirm, refine
    best: int | None
    failed: int | None
    step_s: float  # measured time of a step that is decided at once
    next_if_held: int | None
    steps: tuple[FindMaxStepLine, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorLine:
    category: str
    code: int | None
    count: int
    example: str
    statement: str | None = None  # None: of several statements, or not known


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    moment: datetime
    text: str
    bad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenState:
    """`doing` describes the current activity. Values that are not known yet have their defaults."""

    scenario: str
    place: str  # connection and warehouse
    doing: str
    seen_s: float  # time of the snapshot
    run_id: str | None = None
    status: str = ""
    phase: Phase | None = None
    since_s: float | None = None  # when this phase began
    until_s: float | None = None  # and when it ends, by the plan
    filling: TableProgress | None = None
    offered: LoadStatus = LoadStatus()
    window: WindowFigures | None = None
    recent: RecentFigures | None = None
    peak: PeakThroughput | None = None
    history: tuple[HistorySecond, ...] = ()
    plan_s: float | None = None  # planned duration of the load, with warm-up; None: unknown (a search for the maximum)
    tried: int = 0  # statements of the measurement so far
    failed: int = 0
    workers: tuple[WorkerLine, ...] = ()
    warehouse: WarehouseLine | None = None
    checked: tuple[Checked, ...] = ()
    find_max: FindMaxStatus | None = None
    errors: tuple[ErrorLine, ...] = ()  # most frequent first
    warnings: tuple[str, ...] = ()
    log: tuple[LogEntry, ...] = ()  # oldest first
    experiment: ExperimentStatus | None = None  # the experiment that the run belongs to
    quits: bool = False  # `q` leaves the view, and does not stop the run
    stopping: bool = False  # the run has a reason to end, or the user has requested the end
    interrupts: int = 0  # the number of requests of the user to end it
    waits: bool = False  # no new data are expected until the end

    @property
    def client_cpu_percent(self) -> float | None:
        """CPU of the busiest active worker, in percent of one core; None: not reported."""
        percents = (worker.cpu_percent for worker in self.workers if not worker.state.is_over)
        return max((percent for percent in percents if percent is not None), default=None)

    def old_s(self, now_s: float) -> float | None:
        """The age of the data in seconds, if they are old; else None."""
        age_s = now_s - self.seen_s
        return age_s if age_s > STALE_AFTER_S and not self.waits else None
