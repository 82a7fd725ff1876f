"""The typed Scenario, and the number of workers that its load needs.

Names of Snowflake objects are stored as they were written; `loadgen.snowflake.ident` accepts them.
"""

import dataclasses
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar

from loadgen.model.capture import Replay, SessionReplay
from loadgen.model.threshold import InvalidThreshold, Operator, ThresholdCheck, ThresholdMetric, parse_threshold
from loadgen.model.workload import Parameter, Workload
from loadgen.scenario.key_reader import AppliesWhen, Section, key
from loadgen.scenario.settings import (
    ConnectionPolicy,
    ControlPlaneSettings,
    EmbeddedSettings,
    GuardrailSettings,
    LabelText,
    Notification,
    Percent,
    QueryLogSettings,
    SpawnerSettings,
    TargetSettings,
    TimingSettings,
    UserSessionSettings,
)
from loadgen.scenario.value_types import (
    Duration,
    FreeText,
    Integer,
    InvalidValue,
    JsonSchema,
    Label,
    Number,
    Rate,
    ValueType,
)
from loadgen.values import dataclass

NAME_LENGTH_MAX = 128
EMBEDDED = "embedded"  # the connection that needs no account
CONNECTIONS_MAX = 10_000
WORKERS_MAX = 1_000
CONNECTIONS_PER_WORKER = 25  # more in one process cost throughput: the interpreter runs one thread at a time
SEARCHING_PROCESSES_MAX = 64  # profile process: a search starts all of its workers before the first step


class LoadMode(StrEnum):
    CONCURRENCY = "concurrency"  # closed loop: each connection sends when its previous statement has returned
    RATE = "rate"  # open loop: statements are sent on schedule, whether or not earlier ones have returned
    FIND_MAX = "find_max"  # closed loop in steps, until a step fails
    REPLAY = "replay"  # open loop: recorded statements at their recorded times


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


PoolSource = QueryPool | FilePool


# --- load ------------------------------------------------------------------------------------------------------------

Connections = Annotated[int, Integer(low=1, high=CONNECTIONS_MAX)]
Ramp = Annotated[float, Duration(high_s=86_400)]

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
    """The name of a stage that has none; numbers start at 1."""
    return f"stage {number}"


class LoadStage(Section):
    """A part of the measurement with its own level, reached by a linear ramp from the level before."""

    duration_s: Annotated[float, Duration(low_s=0.1)] = key("Length of the stage.")
    connections: Connections | None = key("Mode concurrency: the number of connections of the stage.", default=None)
    rate_per_second: Annotated[float, Rate()] | None = key("Mode rate: the rate of the stage: 200/s.", default=None)
    ramp_s: Ramp = key("Time at the beginning of the stage in which the level changes linearly.", default="0s")
    name: LabelText | None = key(
        "Name in results and thresholds (peak.p95 < 50ms); null: stage 1, stage 2 and so on.", default=None
    )


class FindMaxSettings(Section):
    """The search for the largest number of connections without a failed step."""

    start: Connections = key("Connections of the first step.", default=5)
    increment: Connections = key("Connections added by each step.", default=10)
    step_s: Annotated[float, Duration(low_s=0.1, high_s=86_400)] = key("Measured time of each step.", default="30s")
    settle_s: Annotated[float, Duration(high_s=3_600)] = key(
        "Time at the new level before the measured time of each step.", default="3s"
    )
    maximum: Connections = key("The largest number of connections to try.", default=500)
    qps_stability_pct: Percent = key(
        "A step fails when throughput is lower than in the best step by more than this percentage.", default=5
    )
    latency_stability_pct: Annotated[float, Number(low=0, high=10_000, above=True)] = key(
        "A step fails when p95 is higher than in the fastest step by more than this percentage.", default=20
    )
    max_error_rate_pct: Annotated[float, Number(low=0, high=100)] = key(
        "A step fails when more than this percentage of its statements fails.", default=1
    )
    stop_on_queue: bool = key("A step fails when statements queue in front of the warehouse.", default=True)
    refine: bool = key("Bisect between the best step and the failed step.", default=True)

    def is_climbed(self, level: int) -> bool:
        """Whether it is a level of the climb, not of the bisection between two levels."""
        return level == self.maximum or (level - self.start) % self.increment == 0


class LoadKeys(Section):
    """Keys of `load` that the file and the typed load share."""

    mode: LoadMode = key(
        "concurrency: a fixed number of connections (closed loop); rate: statements per second on schedule "
        "(open loop); find_max: search for the largest number of connections without a failed step; replay: send the "
        "statements of a capture at their recorded times (open loop).",
        default="concurrency",
    )
    connections: Connections = key(
        "Mode concurrency: the number of connections over all workers.", default=32, applies=CLOSED_LOOP
    )
    min_connections: Connections = key(
        "Number of connections at which a ramp begins; no level may be below it.", default=1, applies=NO_SCHEDULE
    )
    profile: WorkerProfile = key(
        "thread: the clients are threads of a few worker processes; process: one client per worker process, for "
        f"isolation; with find_max at most {SEARCHING_PROCESSES_MAX} processes.",
        default="thread",
    )
    pin: CorePinning = key(
        "auto: each local worker is pinned to one core; none: workers are not pinned.", default="auto"
    )
    workers: Annotated[int | None, WorkerCount()] = key(
        f"Number of worker processes; auto: one per {CONNECTIONS_PER_WORKER} connections, at most one per core.",
        default="auto",
    )
    per_worker_connections: Connections | None = key(
        "Connections of each worker; null: an even split.", default=None, applies=TIMED
    )
    warmup_s: Annotated[float, Duration()] = key(
        "Time under load before the measurement; it is not part of the result.", default="10s", applies=WARMED_UP
    )
    duration_s: Annotated[float | None, Duration(low_s=0.1)] = key(
        "Length of the measurement.", default="60s", applies=TIMED
    )
    ramp_s: Ramp = key(
        "Time from the start of the load in which the first level is reached linearly.", default="0s", applies=TIMED
    )
    stages: tuple[LoadStage, ...] = key("Parts of the measurement with different levels.", default=[], applies=TIMED)
    rate_per_second: Annotated[float, Rate()] | None = key(
        "Mode rate: the rate over all workers: 500/s.", default=None, applies=RATED
    )
    arrival: ArrivalProcess = key(
        "Mode rate: how arrivals are spaced. poisson: at random, as those of independent users; uniform: evenly.",
        default="poisson",
        applies=RATED,
    )

    @property
    def stage_names(self) -> tuple[str, ...]:
        return tuple(stage.name or stage_name(number) for number, stage in enumerate(self.stages, 1))

    @property
    def is_open_loop(self) -> bool:
        """Whether statements are sent on schedule, even if earlier ones have not returned."""
        return self.mode in OPEN_LOOP.values


class Load(LoadKeys):
    """How much load, and for how long.

    `connections` is the ceiling of the run in every mode: load.connections or the largest stage, load.max_connections,
    find_max.maximum, the recorded sessions. `duration_s` is the measurement without warm-up: the sum of the stages;
    None with find_max, which ends with its search. `workers` None: auto, see `workers_of`.
    """

    max_lag_s: float | None = None
    find_max: FindMaxSettings | None = None
    replay: Replay | None = None

    @property
    def keeps_sessions(self) -> bool:
        """Whether each connection has statements that no other may send."""
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


class Threshold(Section):
    """A limit that a metric must keep. The text of the check may stand for the section: p95 < 50ms."""

    shorthand: ClassVar[str] = "check"
    check: Annotated[ThresholdCheck, CheckText()] = key(
        "[statement or stage.]metric operator limit, such as p95 < 50ms or qps > 500."
    )
    window_s: Annotated[float, Duration(low_s=1, whole=True)] | None = key(
        "Length of a sliding window, in whole seconds. The check must hold in every window of this length that begins "
        "with a second of the measurement; null: over the whole measurement.",
        default=None,
    )
    after_s: Annotated[float, Duration()] = key(
        "Windows that end before this time of the measurement are not judged, and the run is not aborted before it.",
        default="0s",
    )
    abort: bool = key("Stop the run as soon as the check fails.", default=False)

    @property
    def covers_measurement(self) -> bool:
        """Whether the whole measurement is judged: `after` leaves no time out, or the first window begins with it."""
        return self.window_s is None or self.after_s <= self.window_s

    @property
    def limits_all_errors(self) -> bool:
        """Whether the errors of all statements have an upper limit in the whole measurement."""
        if self.check.metric not in (ThresholdMetric.ERROR_RATE, ThresholdMetric.ERRORS):
            return False
        is_upper = self.check.operator in (Operator.LT, Operator.LE, Operator.EQ)
        return is_upper and self.check.statement is None and self.covers_measurement


# Compared by identity, because a file may have an equal threshold.
DEFAULT_THRESHOLD = Threshold(check=parse_threshold("error_rate < 5%"))


# --- the whole -------------------------------------------------------------------------------------------------------


class EnrichmentSection(Section):
    """Server-side times from Snowflake's query history, joined after the run."""

    enabled: EnrichmentMode = key(
        "auto: statements that touch only hybrid tables are left out, because the history lists few of them; true: "
        "they are looked up too; false: none is.",
        default="auto",
    )


class ScenarioKeys(Section):
    """Keys that the file and the typed scenario share."""

    name: Annotated[str, Label(length_max=NAME_LENGTH_MAX)] = key("Name of the scenario in reports and trends.")
    description: Annotated[str, FreeText(length_max=10_000)] | None = key("Text for readers.", default=None)
    labels: Mapping[LabelText, Annotated[str, FreeText(length_max=1_000, empty=True)]] = key(
        "Texts by which runs are found.", default={}
    )
    connection: LabelText | None = key(
        "embedded, or a connection of connections.toml; null: the default connection. -c overrides it.", default=None
    )
    control: ControlPlaneSettings = key(default=ControlPlaneSettings())
    target: TargetSettings = key(default=TargetSettings())
    sessions: UserSessionSettings = key(default=UserSessionSettings())
    connections: ConnectionPolicy = key(default=ConnectionPolicy())
    thresholds: tuple[Threshold, ...] = key(
        "Limits that the result must keep; otherwise the exit code is 10.", default=[]
    )
    guardrails: GuardrailSettings = key(default=GuardrailSettings())
    query_log: QueryLogSettings = key(default=QueryLogSettings())
    spawner: SpawnerSettings = key(default=SpawnerSettings())
    on_worker_loss: OnWorkerLoss = key(
        "fail: the run fails; continue: it continues with the remaining workers, and its result is INVALID.",
        default="fail",
    )
    # Not stored: messages are sent by the process that started the run.
    notify: tuple[Notification, ...] = key("Messages at the end of a run.", default=[])
    timing: TimingSettings = key(default=TimingSettings())
    embedded: EmbeddedSettings = key(default=EmbeddedSettings())


class Scenario(ScenarioKeys):
    """What is measured, and how."""

    workload: Workload
    load: Load
    prepare: Prepare = Prepare()
    pools: tuple[PoolSource, ...] = ()
    enrichment: EnrichmentMode = EnrichmentSection().enabled

    @property
    def judged_stages(self) -> dict[str, int]:
        """Stages that thresholds are about: name → number, from 1."""
        subjects = {one.check.statement for one in self.thresholds}
        return {name: number for number, name in enumerate(self.load.stage_names, 1) if name in subjects}

    @property
    def judged_thresholds(self) -> tuple[Threshold, ...]:
        """The thresholds of the file, and a default if none limits all errors; a search has its own error limit."""
        given = self.load.find_max is not None or any(one.limits_all_errors for one in self.thresholds)
        return self.thresholds if given else (*self.thresholds, DEFAULT_THRESHOLD)


def workers_of(load: Load, cores: int) -> int:
    """The number of workers; `auto` is one per 25 connections, at most one per core, at least one."""
    if load.workers is not None:
        return load.workers
    if load.profile is WorkerProfile.PROCESS:
        return load.connections
    if load.per_worker_connections is not None:
        return load.connections // load.per_worker_connections
    return max(1, min(cores, -(-load.connections // CONNECTIONS_PER_WORKER)))


def with_workers(scenario: Scenario, cores: int) -> Scenario:
    """The scenario with its number of workers, which must be set before a run is created."""
    load = dataclasses.replace(scenario.load, workers=workers_of(scenario.load, cores))
    return dataclasses.replace(scenario, load=load)
