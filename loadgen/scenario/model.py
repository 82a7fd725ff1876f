"""A scenario, read and checked: frozen values that nothing inside checks again.

Names of Snowflake objects are texts that `loadgen.snowflake.ident` accepts, as they were written. Times end in `_s`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, ClassVar

from loadgen.model.capture import Replay, SessionReplay
from loadgen.model.threshold import (
    InvalidThreshold,
    ThresholdCheck,
    ThresholdMetric,
    parse_threshold,
)
from loadgen.model.workload import Parameter, Workload
from loadgen.scenario.keys import AppliesWhen, key, section
from loadgen.scenario.settings import (
    ConnectionPolicy,
    ControlPlaneSettings,
    EmbeddedSettings,
    GuardrailSettings,
    Notification,
    OnOff,
    OptionalLabel,
    Percent,
    QueryLogSettings,
    TargetSettings,
    TimingSettings,
    UserSessionSettings,
)
from loadgen.scenario.spawner import SpawnerSettings
from loadgen.scenario.types import Duration, Integer, InvalidValue, JsonSchema, Number, OneOf, Rate, ValueType

EMBEDDED = "embedded"  # the connection that needs no account
CONNECTIONS_MAX = 10_000
WORKERS_MAX = 1_000
CONNECTIONS_PER_WORKER = 25  # more in one process cost throughput: the interpreter runs one thread at a time
SEARCHING_PROCESSES_MAX = 64  # profile process: a search starts all of its workers before the first step


class LoadMode(StrEnum):
    CONCURRENCY = "concurrency"  # closed loop: a number of connections, each sends when the last statement is done
    RATE = "rate"  # open loop: statements per second on schedule, whether or not the last have returned
    FIND_MAX = "find_max"  # closed loop in steps, until a step fails
    REPLAY = "replay"  # open loop: recorded statements at their recorded moments


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
    EXISTING = "existing"  # must exist; never created, filled or dropped


class EnrichmentMode(StrEnum):
    AUTO = "auto"
    ON = "true"
    OFF = "false"


class OnWorkerLoss(StrEnum):
    FAIL = "fail"
    CONTINUE = "continue"


# --- tables and pools ------------------------------------------------------------------------------------------------


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
    """Values of one column of a CSV file in or below the scenario's folder."""

    name: str
    file: str  # relative to the scenario's folder
    column: str | None  # None: the only one


Pool = QueryPool | FilePool


# --- load ------------------------------------------------------------------------------------------------------------

Connections = Annotated[int, Integer(low=1, high=CONNECTIONS_MAX)]
OptionalConnections = Annotated[int | None, Integer(low=1, high=CONNECTIONS_MAX, nullable=True)]
Ramp = Annotated[float, Duration(high_s=86_400)]
OptionalRate = Annotated[float | None, Rate(nullable=True)]

CLOSED_LOOP = AppliesWhen("mode", (LoadMode.CONCURRENCY,))
RATED = AppliesWhen("mode", (LoadMode.RATE,))
OPEN_LOOP = AppliesWhen("mode", (LoadMode.RATE, LoadMode.REPLAY))
REPLAYED = AppliesWhen("mode", (LoadMode.REPLAY,))
SEARCH = AppliesWhen("mode", (LoadMode.FIND_MAX,))
TIMED = AppliesWhen("mode", (LoadMode.CONCURRENCY, LoadMode.RATE))
WARMED_UP = AppliesWhen("mode", (LoadMode.CONCURRENCY, LoadMode.RATE, LoadMode.FIND_MAX))
NO_SCHEDULE = AppliesWhen("mode", (LoadMode.CONCURRENCY, LoadMode.FIND_MAX))


class WorkerCount(ValueType):
    """A number, or auto."""

    def parse(self, value: object) -> int | None:
        if value == "auto":
            return None
        try:
            return Integer(low=1, high=WORKERS_MAX).parse(value)
        except InvalidValue as wrong:
            raise InvalidValue(wrong.what, f"write auto or a number from 1 to {WORKERS_MAX}") from None

    def schema(self) -> JsonSchema:
        return {"anyOf": [{"type": "integer", "minimum": 1, "maximum": WORKERS_MAX}, {"enum": ["auto"]}]}


def stage_name(number: int) -> str:
    """Of a stage without a name, from 1."""
    return f"stage {number}"


@section
class LoadStage:
    """A part of the measurement with its own level, reached by a linear ramp from the level before."""

    duration_s: Annotated[float, Duration(low_s=0.1)] = key(description="Length of the stage.")
    connections: OptionalConnections = key(default=None, description="Mode concurrency: the number of connections.")
    rate_per_second: OptionalRate = key(default=None, description="Mode rate: 200/s.")
    ramp_s: Ramp = key(default="0s", description="Part of the duration in which the level changes linearly.")
    name: OptionalLabel = key(
        default=None, description="For results and thresholds (peak.p95 < 50ms); null: stage 1, stage 2 …"
    )


@section
class FindMaxSettings:
    """The search for the largest number of connections without a failed step."""

    start: Connections = key(default=5, description="Connections of the first step.")
    increment: Connections = key(default=10, description="Connections added by each step.")
    step_s: Annotated[float, Duration(low_s=0.1, high_s=86_400)] = key(
        default="30s", description="Measured time of each step."
    )
    settle_s: Annotated[float, Duration(high_s=3_600)] = key(
        default="3s", description="Time before each step that is not measured."
    )
    maximum: Connections = key(default=500, description="The largest number of connections to try.")
    qps_stability_pct: Percent = key(
        default=5,
        description="A step fails when throughput falls by more than this.",
    )
    latency_stability_pct: Annotated[float, Number(low=0, high=10_000, above=True)] = key(
        default=20,
        description="A step fails when latency rises by more than this.",
    )
    max_error_rate_pct: Annotated[float, Number(low=0, high=100)] = key(
        default=1, description="A step fails above this error rate."
    )
    stop_on_queue: OnOff = key(default=True, description="A step in which statements are queued fails.")
    refine: OnOff = key(default=True, description="Bisect between the best and the failed step.")

    def is_climbed(self, level: int) -> bool:
        """Is it a level of the climb, and not one between two of them?"""
        return level == self.maximum or (level - self.start) % self.increment == 0


@section
class LoadKeys:
    """Keys of `load` that the file and the typed load share."""

    mode: Annotated[LoadMode, OneOf(words=LoadMode)] = key(
        default="concurrency",
        description="concurrency: a fixed number of connections (closed loop); rate: statements per second on schedule "
        "(open loop); find_max: search for the largest number of connections without a failed step; replay: send the "
        "statements of a capture at their recorded moments (open loop).",
    )
    connections: Connections = key(
        default=32, description="Mode concurrency: the number of connections over all workers.", applies=CLOSED_LOOP
    )
    min_connections: Connections = key(
        default=1, description="Where a ramp begins; no level may be below it.", applies=NO_SCHEDULE
    )
    profile: Annotated[WorkerProfile, OneOf(words=WorkerProfile)] = key(
        default="thread",
        description="process: one client per worker process, for isolation; with find_max at most "
        f"{SEARCHING_PROCESSES_MAX}.",
    )
    pin: Annotated[CorePinning, OneOf(words=CorePinning)] = key(
        default="auto", description="auto: each local worker on one core."
    )
    workers: Annotated[int | None, WorkerCount()] = key(
        default="auto",
        description=f"Processes; auto: one per {CONNECTIONS_PER_WORKER} connections, at most one per core.",
    )
    per_worker_connections: OptionalConnections = key(
        default=None, description="Connections of each worker; null: an even split.", applies=TIMED
    )
    warmup_s: Annotated[float, Duration()] = key(
        default="10s", description="Load before the measurement, which is not measured.", applies=WARMED_UP
    )
    duration_s: Annotated[float | None, Duration(low_s=0.1)] = key(
        default="60s", description="Length of the measurement.", applies=TIMED
    )
    ramp_s: Ramp = key(
        default="0s", description="Time in which the first level is reached linearly, from the start.", applies=TIMED
    )
    stages: tuple[LoadStage, ...] = key(
        default=[], description="Parts of the measurement, each with its own level.", applies=TIMED
    )
    rate_per_second: OptionalRate = key(default=None, description="Mode rate: 500/s.", applies=RATED)
    arrival: Annotated[ArrivalProcess, OneOf(words=ArrivalProcess)] = key(
        default="poisson",
        description="Mode rate: gaps between statements: poisson as of independent users, or uniform.",
        applies=RATED,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(LoadKeys):
    """How much load, and for how long.

    `connections` is the ceiling of the run in every mode: load.connections or the largest stage, load.max_connections,
    find_max.maximum, the recorded sessions. `duration_s` is the measurement without warm-up: the sum of the stages;
    None with find_max, which ends with its search. `workers` None: auto, see loadgen.scenario.load.
    """

    max_lag_s: float | None = None
    find_max: FindMaxSettings | None = None
    replay: Replay | None = None

    @property
    def is_open_loop(self) -> bool:
        """Are statements sent on schedule, whether or not earlier ones have returned?"""
        return self.mode in (LoadMode.RATE, LoadMode.REPLAY)

    @property
    def keeps_sessions(self) -> bool:
        """Does each connection have statements that no other may send?"""
        return self.replay is not None and self.replay.sessions is SessionReplay.KEEP

    @property
    def levels(self) -> tuple[LoadStage, ...]:
        """The stages, or one stage for the whole measurement; empty with find_max."""
        if self.stages or self.duration_s is None:
            return self.stages
        connections = self.connections if self.mode is LoadMode.CONCURRENCY else None
        return (LoadStage(duration_s=self.duration_s, connections=connections, rate_per_second=self.rate_per_second),)


# --- thresholds ------------------------------------------------------------------------------------------------------


class CheckText(ValueType):
    def parse(self, value: object) -> ThresholdCheck:
        if not isinstance(value, str):
            raise InvalidValue("must be a text", "write a check such as p95 < 50ms")
        try:
            return parse_threshold(str(value))
        except InvalidThreshold as bad:
            raise InvalidValue(bad.what, bad.hint) from None

    def schema(self) -> JsonSchema:
        return {"type": "string"}


@section
class Threshold:
    """A check over the whole measurement or over a window, or its text alone: p95 < 50ms."""

    shorthand: ClassVar[str] = "check"
    check: Annotated[ThresholdCheck, CheckText()] = key(description="[statement.]metric op value, such as qps > 500.")
    window_s: Annotated[float | None, Duration(low_s=1, nullable=True)] = key(
        default=None, description="Judge the last seconds instead of the whole measurement."
    )
    after_s: Annotated[float, Duration()] = key(
        default="0s", description="Judge only after this time of the measurement."
    )
    abort: OnOff = key(default=False, description="Stop the run when the check fails.")


# Compared by identity: a file may have an equal one, and only `judged_thresholds` adds this one.
DEFAULT_THRESHOLD = Threshold(check=parse_threshold("error_rate < 5%"))


# --- the whole -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    name: str
    workload: Workload
    load: Load
    description: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    connection: str | None = None  # None: the default connection
    control: ControlPlaneSettings = field(default_factory=ControlPlaneSettings)
    target: TargetSettings = field(default_factory=TargetSettings)
    prepare: Prepare = Prepare()
    pools: tuple[Pool, ...] = ()
    sessions: UserSessionSettings = field(default_factory=UserSessionSettings)
    connections: ConnectionPolicy = field(default_factory=ConnectionPolicy)
    thresholds: tuple[Threshold, ...] = ()
    guardrails: GuardrailSettings = field(default_factory=GuardrailSettings)
    query_log: QueryLogSettings = field(default_factory=QueryLogSettings)
    enrichment: EnrichmentMode = EnrichmentMode.AUTO
    spawner: SpawnerSettings = field(default_factory=SpawnerSettings)
    on_worker_loss: OnWorkerLoss = OnWorkerLoss.FAIL
    notify: tuple[Notification, ...] = ()  # not stored: sent by the process that started the run
    timing: TimingSettings = field(default_factory=TimingSettings)
    embedded: EmbeddedSettings = field(default_factory=EmbeddedSettings)

    @property
    def judged_stages(self) -> dict[str, int]:
        """Stages that thresholds are about: name → number, from 1."""
        subjects = {one.check.statement for one in self.thresholds}
        named = {stage.name or stage_name(number): number for number, stage in enumerate(self.load.stages, 1)}
        return {name: number for name, number in named.items() if name in subjects}

    @property
    def judged_thresholds(self) -> tuple[Threshold, ...]:
        """The thresholds of the file, and a default if none limits all errors; a search has its own error limit."""
        errors = (ThresholdMetric.ERROR_RATE, ThresholdMetric.ERRORS)
        given = any(one.check.metric in errors and one.check.statement is None for one in self.thresholds)
        return self.thresholds if given or self.load.find_max is not None else (*self.thresholds, DEFAULT_THRESHOLD)
