"""The whole scenario file: the workload's sections, and all sections together."""

from typing import Annotated, Any, ClassVar

from loadgen.model.sql_text import LENGTH_MAX as SQL_LENGTH_MAX
from loadgen.model.threshold import InvalidThreshold, ThresholdCheck, parse_threshold
from loadgen.model.workload import StatementKind
from loadgen.scenario.generators import Generator
from loadgen.scenario.keys import ScenarioSection, key
from loadgen.scenario.load import LoadSection
from loadgen.scenario.model import OnWorkerLoss
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
    OneOf,
    ValueType,
)

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
