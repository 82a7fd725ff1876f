"""The sections of a scenario file but `load` and the workload: keys, types, defaults, a line of help each."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar

from loadgen.log import register_secret
from loadgen.scenario.document import EnvironmentText, Scalar
from loadgen.scenario.generators import Generator
from loadgen.scenario.keys import ScenarioSection, key
from loadgen.scenario.model import (
    EmbeddedEngine,
    EnrichmentMode,
    GuardrailAction,
    NotifyEvent,
    QueryLogMode,
    SessionAffinity,
    SpawnerKind,
    TableType,
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
    ScalarValue,
    SqlName,
    ValueType,
)
from loadgen.units import parse_duration_s

SERVICE_S_MAX = 3600.0
SIGMA_MAX = 3.0

_CALL = re.compile(r"(?P<kind>[a-z]+)\s*\((?P<arguments>[^()]*)\)", re.IGNORECASE)


def check_service_time(text: str) -> bool:
    """Is it `20ms`, `lognormal(20ms,0.3)`, `exponential(20ms)` or `uniform(10ms,30ms)`?"""
    text = text.strip()
    call = _CALL.fullmatch(text)
    if call is None:
        return _duration_s(text) is not None
    kind = call["kind"].lower()
    arguments = [argument.strip() for argument in call["arguments"].split(",")]
    first_s = _duration_s(arguments[0])
    if first_s is None or len(arguments) != {"lognormal": 2, "exponential": 1, "uniform": 2}.get(kind):
        return False
    if kind == "uniform":
        second_s = _duration_s(arguments[1])
        return second_s is not None and first_s <= second_s
    return first_s > 0 and (kind == "exponential" or _is_sigma(arguments[1]))


def _duration_s(text: str) -> float | None:
    try:
        duration_s = parse_duration_s(text)
    except (ValueError, OverflowError):
        return None
    return duration_s if duration_s <= SERVICE_S_MAX else None


def _is_sigma(text: str) -> bool:
    try:
        return 0 <= float(text) <= SIGMA_MAX
    except ValueError:
        return False


_TYPES = (
    "NUMBER|DECIMAL|NUMERIC|INT|INTEGER|BIGINT|SMALLINT|TINYINT|BYTEINT|FLOAT|FLOAT4|FLOAT8|DOUBLE|DOUBLE PRECISION|"
    "REAL|DECFLOAT|VARCHAR|CHAR|CHARACTER|NCHAR|STRING|TEXT|NVARCHAR|NVARCHAR2|BINARY|VARBINARY|BOOLEAN|DATE|DATETIME|"
    "TIME|TIMESTAMP|TIMESTAMP_LTZ|TIMESTAMP_NTZ|TIMESTAMP_TZ|VARIANT|OBJECT|ARRAY|UUID"
)
_TYPE = re.compile(rf"(?:{_TYPES})(?:\s*\(\s*\d{{1,9}}(?:\s*,\s*\d{{1,3}})?\s*\))?")
_URL = re.compile(r"https?://[^\s/?#]+[^\s]*")
ROWS_MAX = 10**10
USERS_MAX = 10**6


class ColumnType(ValueType):
    """A data type. It becomes part of a CREATE TABLE, so nothing else gets through."""

    def parse(self, value: object) -> str:
        if not isinstance(value, str) or not _TYPE.fullmatch(value.strip().upper()):
            raise InvalidValue(
                "is not a data type we know", 'write for example "NUMBER(38,0)", VARCHAR or TIMESTAMP_NTZ'
            )
        return value.strip()

    def schema(self) -> JsonSchema:
        return {"type": "string"}


class ServiceTimeText(ValueType):
    def parse(self, value: object) -> str:
        if not isinstance(value, str) or not check_service_time(value):
            raise InvalidValue(
                "is not a service time",
                "write 20ms, lognormal(20ms,0.3), exponential(20ms) or uniform(10ms,30ms)",
            )
        return str(value)

    def schema(self) -> JsonSchema:
        return {"type": "string"}


class FileName(ValueType):
    """The name of a file, stored as it was resolved: it is looked for before the run."""

    def parse(self, value: object) -> str:
        return str(FreeText(length_max=1_000).parse(value))

    def schema(self) -> JsonSchema:
        return {"type": "string"}


MaybeName = Annotated[str | None, SqlName(nullable=True)]
MaybeWord = Annotated[str | None, Label(nullable=True)]
OnOff = Annotated[bool, Boolean()]
Percent = Annotated[float, Number(low=0, high=100, above=True)]
Seconds = Annotated[float, Duration(low_s=0.001, high_s=86_400)]


class ControlSection(ScenarioSection):
    """Where the tables of the control plane are."""

    connection: MaybeWord = key(default=None, description="Another connection; null: that of the scenario.")
    database: Annotated[str, SqlName()] = key(default="LOADGEN")
    schema_: Annotated[str, SqlName()] = key(default="CONTROL", alias="schema")
    warehouse: MaybeName = key(default=None, description="null: LOADGEN_CONTROL_WH.")
    share_warehouse: OnOff = key(
        default=False, description="Allow the target's own warehouse, although that disturbs the measurement."
    )


class TargetSection(ScenarioSection):
    """What the load sessions use; null: what the connection says."""

    containers: ClassVar[frozenset[str]] = frozenset({"session"})
    warehouse: MaybeName = key(default=None, description="The warehouse under test.")
    database: MaybeName = key(default=None)
    schema_: MaybeName = key(default=None, alias="schema")
    use_cached_result: OnOff = key(default=False, description="true lets Snowflake answer from its result cache.")
    statement_timeout: Annotated[float, Duration(low_s=1, high_s=604_800, whole=True)] = key(
        default="30s", description="The server ends a statement after this time."
    )
    session: dict[str, Annotated[Scalar, ScalarValue()]] = key(default={}, description="Further session parameters.")


class ColumnSection(ScenarioSection):
    name: Annotated[str, SqlName()]
    type: Annotated[str, ColumnType()] = key(description='For example "NUMBER(38,0)" or VARCHAR.')
    primary_key: OnOff = key(default=False)
    generate: Generator | None = key(default=None, description="How rows get their value; null: NULL.")


class IndexSection(ScenarioSection):
    columns: list[Annotated[str, SqlName()]]


class TableSection(ScenarioSection):
    """A table that `loadgen prepare` makes, or expects."""

    containers: ClassVar[frozenset[str]] = frozenset({"columns", "indexes"})
    name: Annotated[str, SqlName(qualified=True)]
    type: Annotated[TableType, OneOf(words=TableType)] = key(
        default="hybrid", description="existing: it must be there, and is never touched."
    )
    rows: Annotated[int, Integer(high=ROWS_MAX)] = key(default=0, description="How many rows to make: 100k, 1m.")
    columns: list[ColumnSection] = key(default=[])
    indexes: list[IndexSection] = key(default=[], description="Secondary indexes of a hybrid table.")


class PrepareSection(ScenarioSection):
    """What must be there before a run."""

    containers: ClassVar[frozenset[str]] = frozenset({"tables", "statements"})
    tables: list[TableSection] = key(default=[])
    statements: list[Annotated[str, FreeText()]] = key(default=[], description="SQL to run once after the tables.")


class PoolSection(ScenarioSection):
    """Values that parameters are taken from: the first column of a query, or a column of a CSV file."""

    query: Annotated[str | None, FreeText(nullable=True)] = key(default=None, description="A SELECT; ORDER BY it.")
    file: Annotated[str | None, FileName(nullable=True)] = key(
        default=None, description="A CSV file with a header, beside or below the scenario."
    )
    column: MaybeWord = key(default=None, description="Which column of the file; null: its only one.")


class ShardingSection(ScenarioSection):
    """Each worker its own keys, for generators with `sharded: true` and the generator `shard`."""

    enabled: OnOff = key(default=False)
    total_partitions: Annotated[int, Integer(low=1, high=10**9)] = key(default=100)
    key_column: Annotated[str, SqlName()] = key(default="ID", description="What key_range is about; kept with the run.")
    key_range: list[Annotated[int, Integer(low=-(10**18))]] = key(
        default=[1, 1_000_000], description="First and last key; the last is included."
    )


class SessionsSection(ScenarioSection):
    """Logical users, as whom statements with `session: true` are executed, each over one connection."""

    containers: ClassVar[frozenset[str]] = frozenset({"metadata"})
    count: Annotated[int, Integer(high=USERS_MAX)] = key(default=0, description="Users of the whole run; 0: none.")
    affinity: Annotated[SessionAffinity, OneOf(words=SessionAffinity)] = key(
        default="hint", description="strict: a session ends with its connection. hint: it goes on over the next one."
    )
    ttl: Seconds = key(default="1h", description="A session expires that was not used for so long.")
    max: Annotated[int, Integer(low=1, high=USERS_MAX)] = key(
        default=10_000, description="Quota: count must not be above."
    )
    metadata: dict[str, Annotated[str, Label()]] = key(
        default={}, description="Free texts, in QUERY_TAG of the statements of sessions."
    )


class ConnectionsSection(ScenarioSection):
    """How load connections are opened, and when they are replaced between statements."""

    open_parallel: Annotated[int, Integer(low=1, high=1_000)] = key(default=16, description="Opened at the same time.")
    max_age: Annotated[float | None, Duration(low_s=1, nullable=True)] = key(
        default=None, description="Replace a connection that is older; null: never."
    )
    max_statements: Annotated[int | None, Integer(low=1, nullable=True)] = key(
        default=None, description="Replace a connection after so many statements; null: never."
    )


class GuardrailsSection(ScenarioSection):
    max_cpu_percent: Percent = key(default=90, description="Of this machine.")
    max_memory_percent: Percent = key(default=85, description="Of this machine.")
    action: Annotated[GuardrailAction, OneOf(words=GuardrailAction)] = key(default="warn")
    max_credits: Annotated[float | None, Number(low=0, high=10**6, above=True, nullable=True)] = key(
        default=None, description="End the run when the warehouse may have cost this much; action has no say in it."
    )


class QueryLogSection(ScenarioSection):
    """Which executed statements are kept one by one, in QUERY_EXECUTIONS."""

    mode: Annotated[QueryLogMode, OneOf(words=QueryLogMode)] = key(default="sample")
    sample_rate: Annotated[float, Number(low=0, high=1, above=True)] = key(default=0.01, description="Mode sample.")
    max_rows: Annotated[int, Integer(low=1, high=10**9)] = key(default="1m")


class EnrichmentSection(ScenarioSection):
    """Times from Snowflake's own history, joined after the run."""

    enabled: Annotated[EnrichmentMode, OneOf(words=EnrichmentMode)] = key(
        default="auto", description="auto: where the history can tell; not for hybrid tables."
    )


class SpawnerSection(ScenarioSection):
    kind: Annotated[SpawnerKind, OneOf(words=SpawnerKind)] = key(
        default="local", description="Where workers run. external: you start them, with `loadgen worker`."
    )
    compute_pool: MaybeName = key(default=None, description="With spcs: where the containers run.")
    image: Annotated[str | None, FreeText(length_max=1_000, nullable=True)] = key(
        default=None, description="With spcs: the path of the image in its repository."
    )


class TimingSection(ScenarioSection):
    """The times of the machinery, for tests and slow networks."""

    tick: Seconds = key(default="1s", description="How often the orchestrator decides.")
    heartbeat: Seconds = key(default="1s")
    status_poll: Seconds = key(default="1s")
    events_poll: Seconds = key(default="5s")
    warehouse_poll: Seconds = key(default="5s")
    flush: Seconds = key(default="5s", description="How often snapshots and logs are written.")
    announce: Seconds = key(
        default="2s",
        description="How long ahead a change is announced, beside one status_poll and the control plane's latency.",
    )
    registration: Annotated[float | None, Duration(low_s=0.001, high_s=86_400, nullable=True)] = key(
        default=None, description="Workers must be there by then; 60s, or 600s with spcs and external."
    )
    start: Annotated[float | None, Duration(low_s=0.001, high_s=86_400, nullable=True)] = key(
        default=None, description="A worker waits so long for START; 120s, or 900s with spcs and external."
    )
    stale: Seconds = key(default="30s")
    dead: Seconds = key(default="60s")
    no_connection: Seconds = key(
        default="60s",
        description="A worker without the control plane, or without any load connection, ends after this.",
    )
    orchestrator_lost: Seconds = key(default="60s", description="A worker whose run nobody leads ends after this.")
    metrics_missing: Seconds = key(default="30s")
    drain: Seconds = key(default="120s", description="Statements under way may go on for this long after STOP.")
    drain_interrupt: Seconds = key(default="20s", description="The same after Ctrl-C.")
    terminate_after: Seconds = key(default="5s", description="After the drain: SIGTERM.")
    kill_after: Seconds = key(default="2s", description="After SIGTERM: SIGKILL.")
    lease_ttl: Seconds = key(default="30s")
    lease_renew: Seconds = key(default="5s")
    lease_margin: Seconds = key(default="5s")


class EmbeddedSection(ScenarioSection):
    """The target warehouse on the embedded server; only read for `connection: embedded`."""

    service_time: Annotated[str | None, ServiceTimeText(nullable=True)] = key(
        default=None, description="Added to each statement: 20ms, or lognormal(20ms,0.3)."
    )
    slots: Annotated[int, Integer(high=10_000)] = key(
        default=0, description="Statements that run at once; 0: MAX_CONCURRENCY_LEVEL × clusters."
    )
    engine: Annotated[EmbeddedEngine, OneOf(words=EmbeddedEngine)] = key(default="postgres")


class SecretUrl(ValueType):
    """A URL that whoever knows it can use, so that it stands in the environment and not in the file."""

    keeps_variables: ClassVar[bool] = True

    def parse(self, value: object) -> str:
        if not isinstance(value, EnvironmentText):
            raise InvalidValue("must come from the environment: whoever knows it can use it", "write ${NAME}")
        if not _URL.fullmatch(value):
            raise InvalidValue("is not a URL that begins with https:// or http://", "look at the variable's value")
        register_secret(str(value))
        return value

    def schema(self) -> JsonSchema:
        return {"type": "string", "pattern": r"\$\{"}


class NotifySection(ScenarioSection):
    """Whom to tell of the end of a run: one of webhook, command and ping."""

    containers: ClassVar[frozenset[str]] = frozenset({"command", "on"})
    webhook: Annotated[str | None, SecretUrl(nullable=True)] = key(
        default=None, description="Gets a small JSON document by POST; write ${NAME}."
    )
    command: list[Annotated[str, FreeText(length_max=1_000)]] = key(
        default=[], description="A program and its arguments; gets the same document as its input."
    )
    ping: Annotated[str | None, SecretUrl(nullable=True)] = key(default=None, description="Gets a GET; write ${NAME}.")
    on: list[Annotated[NotifyEvent, OneOf(words=NotifyEvent)]] = key(
        default=["failed", "invalid", "regression"], description="When; always: after every run."
    )
