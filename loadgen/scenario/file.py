"""The whole scenario file: sections that only the file has, and all sections together."""

import re
from typing import Annotated

from loadgen.model.capture import SessionReplay, WriteReplay
from loadgen.model.workload import LENGTH_MAX as SQL_LENGTH_MAX
from loadgen.model.workload import StatementKind
from loadgen.scenario.generators import Generator
from loadgen.scenario.keys import key, section
from loadgen.scenario.model import (
    OPEN_LOOP,
    REPLAYED,
    SEARCH,
    Connections,
    EnrichmentMode,
    FindMaxSettings,
    LoadKeys,
    LoadMode,
    OnWorkerLoss,
    TableType,
    Threshold,
)
from loadgen.scenario.settings import (
    ConnectionPolicy,
    ControlPlaneSettings,
    EmbeddedSettings,
    GuardrailSettings,
    Notification,
    OnOff,
    OptionalLabel,
    QueryLogSettings,
    TargetSettings,
    TimingSettings,
    UserSessionSettings,
)
from loadgen.scenario.spawner import SpawnerSettings
from loadgen.scenario.types import (
    Duration,
    FreeText,
    Integer,
    InvalidValue,
    JsonSchema,
    Label,
    Number,
    OneOf,
    SqlName,
    ValueType,
)

VERSION = 1
NAME_LENGTH_MAX = 128
ROWS_MAX = 10**10


class FileName(ValueType):
    """The name of a file. It is stored resolved, because the file is read before the run."""

    def parse(self, value: object) -> str:
        return str(FreeText(length_max=1_000).parse(value))

    def schema(self) -> JsonSchema:
        return {"type": "string"}


@section
class LoadSection(LoadKeys):
    """How much load, and for how long."""

    max_connections: Connections = key(
        default=64,
        description="Mode rate, and replay with sessions spread: the largest number of statements in flight.",
        applies=OPEN_LOOP,
    )
    max_lag_s: Annotated[float | None, Duration(low_s=0.001, nullable=True)] = key(
        default=None,
        description="Modes rate and replay: drop (and count) statements that are later than this; null: send them "
        "late.",
        applies=OPEN_LOOP,
    )
    find_max: FindMaxSettings = key(default=FindMaxSettings(), applies=SEARCH)
    capture: Annotated[str | None, FileName(nullable=True)] = key(
        default=None,
        description="Mode replay: a folder that `loadgen capture` has written, in or below the scenario's folder.",
        applies=REPLAYED,
    )
    speed: Annotated[float, Number(low=0.01, high=1_000)] = key(
        default=1, description="Mode replay: 2 sends everything in half the recorded time.", applies=REPLAYED
    )
    sessions: Annotated[SessionReplay, OneOf(words=SessionReplay)] = key(
        default="keep",
        description="Mode replay: keep: each recorded session in order on a separate connection; spread: the next free "
        "connection sends.",
        applies=REPLAYED,
    )
    writes: Annotated[WriteReplay, OneOf(words=WriteReplay)] = key(
        default="skip", description="Mode replay: skip sends reads only.", applies=REPLAYED
    )
    users: Connections = key(
        default=1,
        description="Mode replay: each recorded session is sent this number of times at the same moments, over "
        "separate connections; where values are pseudonyms, each time with other ones.",
        applies=REPLAYED,
    )

    @property
    def ceiling(self) -> int:
        """The largest number of connections of the run."""
        if self.mode is LoadMode.FIND_MAX:
            return self.find_max.maximum
        if self.mode in (LoadMode.RATE, LoadMode.REPLAY):  # of kept sessions the capture knows how many there are
            return self.max_connections
        return max((stage.connections for stage in self.stages if stage.connections), default=self.connections)

    @property
    def measured_s(self) -> float:
        """The measurement, without warm-up; not for find_max."""
        return sum(stage.duration_s for stage in self.stages) if self.stages else self.duration_s or 0.0


# --- tables and values -----------------------------------------------------------------------------------------------

_TYPES = (
    "NUMBER|DECIMAL|NUMERIC|INT|INTEGER|BIGINT|SMALLINT|TINYINT|BYTEINT|FLOAT|FLOAT4|FLOAT8|DOUBLE|DOUBLE PRECISION|"
    "REAL|DECFLOAT|VARCHAR|CHAR|CHARACTER|NCHAR|STRING|TEXT|NVARCHAR|NVARCHAR2|BINARY|VARBINARY|BOOLEAN|DATE|DATETIME|"
    "TIME|TIMESTAMP|TIMESTAMP_LTZ|TIMESTAMP_NTZ|TIMESTAMP_TZ|VARIANT|OBJECT|ARRAY|UUID"
)
_TYPE = re.compile(rf"(?:{_TYPES})(?:\s*\(\s*\d{{1,9}}(?:\s*,\s*\d{{1,3}})?\s*\))?")


class ColumnType(ValueType):
    """A data type. It becomes part of a CREATE TABLE, so nothing else is accepted."""

    def parse(self, value: object) -> str:
        if not isinstance(value, str) or not _TYPE.fullmatch(value.strip().upper()):
            how = 'write for example "NUMBER(38,0)", VARCHAR or TIMESTAMP_NTZ'
            raise InvalidValue("is not a data type that loadgen knows", how)
        return value.strip()

    def schema(self) -> JsonSchema:
        return {"type": "string"}


@section
class ColumnSection:
    name: Annotated[str, SqlName()]
    type: Annotated[str, ColumnType()] = key(description='For example "NUMBER(38,0)" or VARCHAR.')
    primary_key: OnOff = key(default=False)
    generate: Generator | None = key(default=None, description="The generator of the column's values; null: NULL.")


@section
class IndexSection:
    columns: tuple[Annotated[str, SqlName()], ...]


@section
class TableSection:
    """A table that `loadgen prepare` creates, or expects."""

    name: Annotated[str, SqlName(qualified=True)]
    type: Annotated[TableType, OneOf(words=TableType)] = key(
        default="hybrid", description="existing: the table must exist and is never changed."
    )
    rows: Annotated[int, Integer(high=ROWS_MAX)] = key(default=0, description="Number of rows to insert: 100k, 1m.")
    columns: tuple[ColumnSection, ...] = key(default=[])
    indexes: tuple[IndexSection, ...] = key(default=[], description="Secondary indexes of a hybrid table.")


@section
class PrepareSection:
    """What `loadgen prepare` creates before a run."""

    tables: tuple[TableSection, ...] = key(default=[])
    statements: tuple[Annotated[str, FreeText()], ...] = key(
        default=[], description="SQL to execute once after the tables."
    )


@section
class PoolSection:
    """Values for parameters: the first column of a query, or a column of a CSV file."""

    query: Annotated[str | None, FreeText(nullable=True)] = key(
        default=None, description="A SELECT; with ORDER BY, its order is fixed."
    )
    file: Annotated[str | None, FileName(nullable=True)] = key(
        default=None, description="A CSV file with a header, in or below the scenario's folder."
    )
    column: OptionalLabel = key(default=None, description="The column of the file; null: its only one.")


@section
class ShardingSection:
    """Disjoint keys for each worker: generators with `sharded: true`, and the generator `shard`."""

    enabled: OnOff = key(default=False)
    total_partitions: Annotated[int, Integer(low=1, high=10**9)] = key(default=100)
    key_column: Annotated[str, SqlName()] = key(
        default="ID", description="The column that key_range is about: one of a prepared table."
    )
    key_range: tuple[Annotated[int, Integer(low=-(10**18))], ...] = key(
        default=[1, 1_000_000], description="First and last key; the last is included."
    )


# --- workload --------------------------------------------------------------------------------------------------------


@section
class QuerySection:
    """One SQL text of a transaction."""

    sql: Annotated[str, FreeText(length_max=SQL_LENGTH_MAX)]
    params: tuple[Generator, ...] = key(default=[], description="One generator for each ? in the SQL.")


@section
class ExpectSection:
    rows: Annotated[int, Integer(high=10**12)] = key(description="A statement with another number of rows fails.")


@section
class StatementSection:
    """One entry of the mix: an SQL text, or a transaction of several."""

    name: Annotated[str, Label()]
    kind: Annotated[StatementKind | None, OneOf(words=StatementKind, nullable=True)] = key(
        default=None, description="read or write; null: derived from the SQL."
    )
    weight: Annotated[int, Integer(high=1_000_000)] = key(default=1, description="Share of the mix.")
    sql: Annotated[str | None, FreeText(length_max=SQL_LENGTH_MAX, nullable=True)] = key(
        default=None, description="One statement with ? for its parameters."
    )
    params: tuple[Generator, ...] = key(default=[], description="One generator for each ? in the SQL.")
    transaction: tuple[QuerySection, ...] | None = key(
        default=None, description="Instead of sql: statements between BEGIN and COMMIT, measured as one sample."
    )
    expect: ExpectSection | None = key(default=None)
    session: OnOff = key(default=False, description="Execute it as one of the users of `sessions`.")


@section
class WorkloadSection:
    """The statements to send."""

    think_time_s: Annotated[float, Duration(high_s=3_600)] = key(
        default="0ms", description="Pause of each client between statements."
    )
    statements: tuple[StatementSection, ...] = key(default=[])


# --- the file --------------------------------------------------------------------------------------------------------


class Version(ValueType):
    def parse(self, value: object) -> int:
        if value not in (VERSION, str(VERSION)) or isinstance(value, (bool, float)):
            raise InvalidValue(f"this loadgen reads version {VERSION}", f"write version: {VERSION}")
        return VERSION

    def schema(self) -> JsonSchema:
        return {"const": VERSION}


@section
class EnrichmentSection:
    """Server-side times from Snowflake's query history, joined after the run."""

    enabled: Annotated[EnrichmentMode, OneOf(words=EnrichmentMode)] = key(
        default="auto", description="auto: where the history has them; not for hybrid tables."
    )


@section
class ScenarioFile:
    """A benchmark scenario of loadgen."""

    version: Annotated[int, Version()] = key(description=f"Version of the file format: {VERSION}.")
    name: Annotated[str, Label(length_max=NAME_LENGTH_MAX)] = key(description="The name in reports and trends.")
    description: Annotated[str | None, FreeText(length_max=10_000, nullable=True)] = key(default=None)
    labels: dict[str, Annotated[str, FreeText(length_max=1_000, empty=True)]] = key(
        default={}, description="Texts to find runs by."
    )
    connection: OptionalLabel = key(
        default=None, description="embedded, or a name in connections.toml; null: the default one. -c overrides it."
    )
    control: ControlPlaneSettings = key(default=ControlPlaneSettings())
    target: TargetSettings = key(default=TargetSettings())
    prepare: PrepareSection = key(default=PrepareSection())
    values: dict[str, PoolSection] = key(default={}, description="Value pools, read once before the start.")
    workload: WorkloadSection = key(default=WorkloadSection())
    sharding: ShardingSection = key(default=ShardingSection())
    sessions: UserSessionSettings = key(default=UserSessionSettings())
    seed: Annotated[int, Integer(high=2**63 - 1)] = key(default=1, description="The same seed gives the same values.")
    load: LoadSection = key(default=LoadSection())
    connections: ConnectionPolicy = key(default=ConnectionPolicy())
    thresholds: tuple[Threshold, ...] = key(default=[], description="Checks that make the run fail (exit 10).")
    guardrails: GuardrailSettings = key(default=GuardrailSettings())
    query_log: QueryLogSettings = key(default=QueryLogSettings())
    enrichment: EnrichmentSection = key(default=EnrichmentSection())
    spawner: SpawnerSettings = key(default=SpawnerSettings())
    on_worker_loss: Annotated[OnWorkerLoss, OneOf(words=OnWorkerLoss)] = key(
        default="fail", description="continue: continue with the remaining workers; the result is flagged."
    )
    notify: tuple[Notification, ...] = key(default=[], description="Messages at the end of a run.")
    timing: TimingSettings = key(default=TimingSettings())
    embedded: EmbeddedSettings = key(default=EmbeddedSettings())
