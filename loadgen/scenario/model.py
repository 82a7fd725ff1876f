"""A scenario, read and checked: frozen values that nothing inside re-checks.

Names of Snowflake objects are texts that `loadgen.snowflake.ident` accepts, as they were written. Times end in `_s`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from loadgen.model.run import CONTROL_WAREHOUSE
from loadgen.model.threshold import ThresholdCheck, ThresholdMetric, parse_threshold
from loadgen.model.workload import Parameter, Scalar, Workload

EMBEDDED = "embedded"  # the connection that needs no account


class LoadMode(StrEnum):
    CONCURRENCY = "concurrency"  # closed loop: so many connections, as fast as they go
    RATE = "rate"  # open loop: so many statements per second, whether or not the last have come back
    FIND_MAX = "find_max"  # closed loop in steps, until it no longer holds


class WorkerProfile(StrEnum):
    THREAD = "thread"  # a worker is a process with many clients
    PROCESS = "process"  # a worker is a process with one client


class CorePinning(StrEnum):
    AUTO = "auto"
    NONE = "none"


class ArrivalProcess(StrEnum):
    POISSON = "poisson"
    UNIFORM = "uniform"


class TableType(StrEnum):
    HYBRID = "hybrid"
    STANDARD = "standard"
    EXISTING = "existing"  # must be there; never made, filled or dropped


class GuardrailAction(StrEnum):
    WARN = "warn"
    ABORT = "abort"


class QueryLogMode(StrEnum):
    ALL = "all"
    SAMPLE = "sample"
    ERRORS = "errors"
    NONE = "none"


class EnrichmentMode(StrEnum):
    AUTO = "auto"
    ON = "true"
    OFF = "false"


class SpawnerKind(StrEnum):
    LOCAL = "local"
    SUBPROCESS = "subprocess"
    SPCS = "spcs"
    EXTERNAL = "external"


class SessionAffinity(StrEnum):
    """What binds a user session to its connection."""

    STRICT = "strict"  # it ends with it
    HINT = "hint"  # it goes on over the next connection of the same client


class OnWorkerLoss(StrEnum):
    FAIL = "fail"
    CONTINUE = "continue"


class NotifyEvent(StrEnum):
    """What somebody may want to be told of."""

    FAILED = "failed"  # the run or a threshold
    INVALID = "invalid"
    REGRESSION = "regression"
    ALWAYS = "always"


class EmbeddedEngine(StrEnum):
    POSTGRES = "postgres"
    NULL = "null"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlaneSettings:
    """Where the tables of the control plane are. `connection` None: the scenario's own."""

    connection: str | None = None
    database: str = "LOADGEN"
    schema: str = "CONTROL"
    warehouse: str = CONTROL_WAREHOUSE
    share_warehouse: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSettings:
    """What the load sessions use. None: what the connection says."""

    warehouse: str | None = None
    database: str | None = None
    schema: str | None = None
    use_cached_result: bool = False
    statement_timeout_s: int = 30
    session: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSpec:
    name: str
    type: str
    primary_key: bool = False
    generate: Parameter | None = None  # None: NULL


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    name: str
    type: TableType
    rows: int = 0
    columns: tuple[ColumnSpec, ...] = ()
    indexes: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    tables: tuple[TableSpec, ...] = ()
    statements: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPool:
    """Values of the first column of a query."""

    name: str
    query: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePool:
    """Values of one column of a CSV file that lies beside or below the scenario."""

    name: str
    file: str  # relative to the scenario's folder
    column: str | None  # None: the only one


Pool = QueryPool | FilePool


def stage_name(number: int) -> str:
    """Of a stage without a name, from 1."""
    return f"stage {number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadStage:
    """A part of the measurement with its own level, reached by a linear ramp from the level before."""

    duration_s: float
    connections: int | None = None  # mode concurrency
    rate_per_second: float | None = None  # mode rate
    ramp_s: float = 0.0
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FindMaxSettings:
    """`load.find_max` of a scenario."""

    start: int = 5
    increment: int = 10
    step_s: float = 30.0
    settle_s: float = 3.0
    maximum: int = 500
    qps_stability_pct: float = 5.0
    latency_stability_pct: float = 20.0
    max_error_rate_pct: float = 1.0
    stop_on_queue: bool = True
    refine: bool = True

    def is_climbed(self, level: int) -> bool:
        """Is it a level of the climb, and not one between two of them?"""
        return level == self.maximum or (level - self.start) % self.increment == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much load, and for how long.

    `connections` is the ceiling of the run in every mode: load.connections or the largest stage, load.max_connections,
    find_max.maximum. `duration_s` is the measurement without warm-up: the sum of the stages; None with find_max, which
    ends when it knows.
    """

    mode: LoadMode = LoadMode.CONCURRENCY
    connections: int
    min_connections: int = 1  # where a ramp begins; no level is below it
    profile: WorkerProfile = WorkerProfile.THREAD
    pin: CorePinning = CorePinning.AUTO
    workers: int | None = None  # None: auto, see loadgen.scenario.load
    per_worker_connections: int | None = None
    warmup_s: float = 10.0
    duration_s: float | None = 60.0
    ramp_s: float = 0.0
    stages: tuple[LoadStage, ...] = ()
    rate_per_second: float | None = None  # mode rate without stages
    arrival: ArrivalProcess = ArrivalProcess.POISSON
    max_lag_s: float | None = None
    find_max: FindMaxSettings | None = None

    @property
    def levels(self) -> tuple[LoadStage, ...]:
        """The stages; one that lasts the whole measurement when none are written. None with find_max."""
        if self.stages or self.duration_s is None:
            return self.stages
        connections = self.connections if self.mode is LoadMode.CONCURRENCY else None
        return (LoadStage(duration_s=self.duration_s, connections=connections, rate_per_second=self.rate_per_second),)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSessionSettings:
    """Logical users of the whole run, and the sessions they have one after the other. No users: nothing is used."""

    count: int = 0
    affinity: SessionAffinity = SessionAffinity.HINT
    ttl_s: float = 3_600.0  # without a statement, after which a session expires
    max: int = 10_000
    metadata: Mapping[str, str] = field(default_factory=dict)  # in QUERY_TAG of their statements


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionPolicy:
    """How load connections are opened, and when they are replaced between statements."""

    open_parallel: int = 16
    max_age_s: float | None = None
    max_statements: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A check over the last `window_s` (None: the whole measurement), not before `after_s` of it."""

    check: ThresholdCheck
    window_s: float | None = None
    after_s: float = 0.0
    abort: bool = False


# Told from an equal one that a file has by identity: only `judged_thresholds` adds it.
DEFAULT_THRESHOLD = Threshold(check=parse_threshold("error_rate < 5%"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailSettings:
    max_cpu_percent: float = 90.0
    max_memory_percent: float = 85.0
    action: GuardrailAction = GuardrailAction.WARN
    max_credits: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLogSettings:
    mode: QueryLogMode = QueryLogMode.SAMPLE
    sample_rate: float = 0.01
    max_rows: int = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnerSettings:
    kind: SpawnerKind = SpawnerKind.LOCAL
    compute_pool: str | None = None  # spcs only
    image: str | None = None  # spcs only


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """Whom to tell of the end of a run, and when: exactly one of the three ways is there."""

    webhook: str | None = None  # a URL; kept out of logs
    command: tuple[str, ...] = ()
    ping: str | None = None  # a URL
    on: tuple[NotifyEvent, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingSettings:
    """The times of the machinery; a scenario changes them for tests and slow networks."""

    tick_s: float = 1.0
    heartbeat_s: float = 1.0
    status_poll_s: float = 1.0
    events_poll_s: float = 5.0
    warehouse_poll_s: float = 5.0
    flush_s: float = 5.0
    announce_s: float = 2.0
    registration_s: float = 60.0  # 600 with spcs and external
    start_s: float = 120.0  # 900 with spcs and external
    stale_s: float = 30.0
    dead_s: float = 60.0
    no_connection_s: float = 60.0
    orchestrator_lost_s: float = 60.0
    metrics_missing_s: float = 30.0
    drain_s: float = 120.0
    drain_interrupt_s: float = 20.0
    terminate_after_s: float = 5.0
    kill_after_s: float = 2.0
    lease_ttl_s: float = 30.0
    lease_renew_s: float = 5.0
    lease_margin_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedSettings:
    """How the target warehouse serves on the embedded server. Without any value: as the server was started."""

    service_time: str | None = None
    slots: int = 0
    engine: EmbeddedEngine = EmbeddedEngine.POSTGRES


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    name: str
    workload: Workload
    load: Load
    description: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    connection: str | None = None  # None: the default connection
    control: ControlPlaneSettings = ControlPlaneSettings()
    target: TargetSettings = field(default_factory=TargetSettings)
    prepare: Prepare = Prepare()
    pools: tuple[Pool, ...] = ()
    sessions: UserSessionSettings = field(default_factory=UserSessionSettings)
    connections: ConnectionPolicy = ConnectionPolicy()
    thresholds: tuple[Threshold, ...] = ()
    guardrails: GuardrailSettings = GuardrailSettings()
    query_log: QueryLogSettings = QueryLogSettings()
    enrichment: EnrichmentMode = EnrichmentMode.AUTO
    spawner: SpawnerSettings = SpawnerSettings()
    on_worker_loss: OnWorkerLoss = OnWorkerLoss.FAIL
    notify: tuple[Notification, ...] = ()  # not stored with the run: only who started it tells
    timing: TimingSettings = TimingSettings()
    embedded: EmbeddedSettings = EmbeddedSettings()

    @property
    def judged_stages(self) -> dict[str, int]:
        """The numbers, from 1, of stages that thresholds are about, by name."""
        subjects = {one.check.statement for one in self.thresholds}
        named = {stage.name or stage_name(number): number for number, stage in enumerate(self.load.stages, 1)}
        return {name: number for name, number in named.items() if name in subjects}

    @property
    def judged_thresholds(self) -> tuple[Threshold, ...]:
        """Those of the file. Without one on errors of all statements there is a default; a search has its own limit."""
        errors = (ThresholdMetric.ERROR_RATE, ThresholdMetric.ERRORS)
        given = any(one.check.metric in errors and one.check.statement is None for one in self.thresholds)
        return self.thresholds if given or self.load.find_max is not None else (*self.thresholds, DEFAULT_THRESHOLD)
