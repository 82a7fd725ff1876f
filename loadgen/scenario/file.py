"""The whole scenario file: the workload's sections, and all sections together."""

from typing import Annotated, Any, ClassVar

from loadgen.model.sql_text import LENGTH_MAX as SQL_LENGTH_MAX
from loadgen.model.threshold import InvalidThreshold, ThresholdCheck, parse_threshold
from loadgen.model.workload import StatementKind
from loadgen.scenario.generators import Generator
from loadgen.scenario.keys import ScenarioSection, key
from loadgen.scenario.model import ArrivalProcess, CorePinning, LoadMode, OnWorkerLoss, WorkerProfile
from loadgen.scenario.section import (
    ConnectionsSection,
    ControlSection,
    EmbeddedSection,
    EnrichmentSection,
    GuardrailsSection,
    NotifySection,
    PoolSection,
    PrepareSection,
    QueryLogSection,
    SessionsSection,
    ShardingSection,
    SpawnerSection,
    TargetSection,
    TimingSection,
)
from loadgen.scenario.types import (
    Boolean,
    Duration,
    FreeText,
    Integer,
    InvalidValue,
    JsonSchema,
    Label,
    Number,
    OneOf,
    Rate,
    ValueType,
)

CONNECTIONS_MAX = 10_000
WORKERS_MAX = 1_000

Connections = Annotated[int, Integer(low=1, high=CONNECTIONS_MAX)]
MaybeConnections = Annotated[int | None, Integer(low=1, high=CONNECTIONS_MAX, nullable=True)]
Ramp = Annotated[float, Duration(high_s=86_400)]

_LEVELS = frozenset({"min_connections", "duration", "ramp", "stages", "per_worker_connections"})
KEYS_OF_MODE: dict[LoadMode, frozenset[str]] = {
    LoadMode.CONCURRENCY: _LEVELS | {"connections"},
    LoadMode.RATE: _LEVELS - {"min_connections"} | {"rate", "arrival", "max_connections", "max_lag"},
    LoadMode.FIND_MAX: frozenset({"min_connections", "find_max"}),
}


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


class StageSection(ScenarioSection):
    duration: Annotated[float, Duration(low_s=0.1)] = key(description="How long it lasts.")
    connections: MaybeConnections = key(default=None, description="Mode concurrency: how many connections.")
    rate: Annotated[float | None, Rate(nullable=True)] = key(default=None, description="Mode rate: 200/s.")
    ramp: Ramp = key(default="0s", description="Part of the duration in which the level changes linearly.")
    name: Annotated[str | None, Label(nullable=True)] = key(
        default=None, description="For results and thresholds (peak.p95 < 50ms); null: stage 1, stage 2 …"
    )


class FindMaxSection(ScenarioSection):
    """The search for the largest number of connections that still holds."""

    start: Connections = key(default=5, description="Connections of the first step.")
    increment: Connections = key(default=10, description="How many more each step.")
    step: Annotated[float, Duration(low_s=0.1, high_s=86_400)] = key(default="30s", description="Measured per step.")
    settle: Annotated[float, Duration(high_s=3_600)] = key(default="3s", description="Not measured, before each step.")
    maximum: Connections = key(default=500, description="Never more than this.")
    qps_stability_pct: Annotated[float, Number(low=0, high=100, above=True)] = key(default=5)
    latency_stability_pct: Annotated[float, Number(low=0, high=10_000, above=True)] = key(default=20)
    max_error_rate_pct: Annotated[float, Number(low=0, high=100)] = key(default=1)
    stop_on_queue: Annotated[bool, Boolean()] = key(default=True, description="A step in which statements queue fails.")
    refine: Annotated[bool, Boolean()] = key(default=True, description="Bisect between the best and the failed step.")


class LoadSection(ScenarioSection):
    """How much load, and for how long."""

    containers: ClassVar[frozenset[str]] = frozenset({"stages", "find_max"})
    mode: Annotated[LoadMode, OneOf(words=LoadMode)] = key(
        default="concurrency",
        description="concurrency: so many connections (closed loop); rate: so many statements per second (open loop); "
        "find_max: search for the most connections that hold.",
    )
    connections: Connections = key(default=32, description="Mode concurrency: how many, over all workers.")
    min_connections: Connections = key(default=1, description="Where a ramp begins; no level may be below it.")
    profile: Annotated[WorkerProfile, OneOf(words=WorkerProfile)] = key(
        default="thread", description="process: one client per worker process, for isolation; with find_max at most 64."
    )
    pin: Annotated[CorePinning, OneOf(words=CorePinning)] = key(
        default="auto", description="auto: each local worker on one core."
    )
    workers: Annotated[int | None, WorkerCount()] = key(
        default="auto", description="Processes; auto: one per 25 connections, at most one per core."
    )
    per_worker_connections: MaybeConnections = key(
        default=None, description="Connections of each worker; null: an even split."
    )
    warmup: Annotated[float, Duration()] = key(default="10s", description="Load that is not measured, before.")
    duration: Annotated[float, Duration(low_s=0.1)] = key(default="60s", description="The measurement.")
    ramp: Ramp = key(default="0s", description="The first level is reached linearly in this time, from the start.")
    stages: list[StageSection] = key(default=[], description="Parts of the measurement with levels of their own.")
    rate: Annotated[float | None, Rate(nullable=True)] = key(default=None, description="Mode rate: 500/s.")
    arrival: Annotated[ArrivalProcess, OneOf(words=ArrivalProcess)] = key(
        default="poisson", description="Mode rate: gaps as of independent users, or all alike."
    )
    max_connections: Connections = key(default=64, description="Mode rate: the most statements under way at once.")
    max_lag: Annotated[float | None, Duration(low_s=0.001, nullable=True)] = key(
        default=None, description="Mode rate: give up (and count) what is later than this; null: wait."
    )
    find_max: FindMaxSection = key(default=FindMaxSection())


VERSION = 1
NAME_LENGTH_MAX = 128

Sql = Annotated[str, FreeText(length_max=SQL_LENGTH_MAX)]


class Version(ValueType):
    def parse(self, value: object) -> int:
        if value not in (VERSION, str(VERSION)) or isinstance(value, (bool, float)):
            raise InvalidValue(f"this loadgen reads version {VERSION}", f"write version: {VERSION}")
        return VERSION

    def schema(self) -> JsonSchema:
        return {"const": VERSION}


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


class QuerySection(ScenarioSection):
    """One SQL text of a transaction."""

    containers: ClassVar[frozenset[str]] = frozenset({"params"})
    sql: Sql
    params: list[Generator] = key(default=[], description="One generator for each ? in the SQL.")


class ExpectSection(ScenarioSection):
    rows: Annotated[int, Integer(high=10**12)] = key(description="Another number of rows is a failed sample.")


class StatementSection(ScenarioSection):
    """One entry of the mix: an SQL text, or a transaction of several."""

    containers: ClassVar[frozenset[str]] = frozenset({"params", "expect"})
    name: Annotated[str, Label()]
    kind: Annotated[StatementKind | None, OneOf(words=StatementKind, nullable=True)] = key(
        default=None, description="read or write; null: as its SQL says."
    )
    weight: Annotated[int, Integer(high=1_000_000)] = key(default=1, description="Its share of the mix.")
    sql: Annotated[str | None, FreeText(length_max=SQL_LENGTH_MAX, nullable=True)] = key(
        default=None, description="One statement with ? for its parameters."
    )
    params: list[Generator] = key(default=[], description="One generator for each ? in the SQL.")
    transaction: list[QuerySection] | None = key(
        default=None, description="Instead of sql: statements between BEGIN and COMMIT; one sample."
    )
    expect: ExpectSection | None = key(default=None)
    session: Annotated[bool, Boolean()] = key(
        default=False, description="Execute it as one of the users of `sessions`."
    )


class WorkloadSection(ScenarioSection):
    """What is sent."""

    containers: ClassVar[frozenset[str]] = frozenset({"statements"})
    think_time: Annotated[float, Duration(high_s=3_600)] = key(
        default="0ms", description="Pause of each client between statements."
    )
    statements: list[StatementSection] = key(default=[])


class ThresholdSection(ScenarioSection):
    """A check with a window of its own."""

    shorthand: ClassVar[JsonSchema | None] = {"type": "string", "description": "Such as p95 < 50ms."}
    check: Annotated[ThresholdCheck, CheckText()] = key(description="[statement.]metric op value, such as qps > 500.")
    window: Annotated[float | None, Duration(low_s=1, nullable=True)] = key(
        default=None, description="Over the last seconds instead of the whole measurement."
    )
    after: Annotated[float, Duration()] = key(default="0s", description="Not before this time of the measurement.")
    abort: Annotated[bool, Boolean()] = key(default=False, description="End the run when it fails.")

    @classmethod
    def accept(cls, data: Any) -> Any:
        return {"check": data} if isinstance(data, str) else super().accept(data)


class ScenarioFile(ScenarioSection):
    """A benchmark scenario of loadgen."""

    containers: ClassVar[frozenset[str]] = frozenset(
        [
            "labels",
            "control",
            "target",
            "prepare",
            "values",
            "workload",
            "sharding",
            "sessions",
            "load",
            "connections",
            "thresholds",
            "guardrails",
            "query_log",
            "enrichment",
            "spawner",
            "notify",
            "timing",
            "embedded",
        ]
    )
    version: Annotated[int, Version()] = key(description="Of this file format: 1.")
    name: Annotated[str, Label(length_max=NAME_LENGTH_MAX)] = key(description="What reports and trends call it.")
    description: Annotated[str | None, FreeText(length_max=10_000, nullable=True)] = key(default=None)
    labels: dict[str, Annotated[str, FreeText(length_max=1_000, empty=True)]] = key(
        default={}, description="Free texts, for finding runs again."
    )
    connection: Annotated[str | None, Label(nullable=True)] = key(
        default=None, description="embedded, or a name in connections.toml; null: the default one. -c overrides it."
    )
    control: ControlSection = key(default=ControlSection())
    target: TargetSection = key(default=TargetSection())
    prepare: PrepareSection = key(default=PrepareSection())
    values: dict[str, PoolSection] = key(default={}, description="Value pools, read once before the start.")
    workload: WorkloadSection
    sharding: ShardingSection = key(default=ShardingSection())
    sessions: SessionsSection = key(default=SessionsSection())
    seed: Annotated[int, Integer(high=2**63 - 1)] = key(default=1, description="Same seed, same statements.")
    load: LoadSection = key(default=LoadSection())
    connections: ConnectionsSection = key(default=ConnectionsSection())
    thresholds: list[ThresholdSection] = key(default=[], description="Checks that make the run fail (exit 10).")
    guardrails: GuardrailsSection = key(default=GuardrailsSection())
    query_log: QueryLogSection = key(default=QueryLogSection())
    enrichment: EnrichmentSection = key(default=EnrichmentSection())
    spawner: SpawnerSection = key(default=SpawnerSection())
    on_worker_loss: Annotated[OnWorkerLoss, OneOf(words=OnWorkerLoss)] = key(
        default="fail", description="continue: go on with the workers that are left; the result is flagged."
    )
    notify: list[NotifySection] = key(default=[], description="Whom to tell of the end of a run.")
    timing: TimingSection = key(default=TimingSection())
    embedded: EmbeddedSection = key(default=EmbeddedSection())
