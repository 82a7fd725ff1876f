"""The scenario file: sections that only the file has, the file as a whole, the typed Scenario made of it, and the files
that it names."""

import dataclasses
import errno
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, ClassVar, TypeAlias

from loadgen.model import workload as model
from loadgen.model.capture import (
    MANIFEST_FILE,
    CaptureManifest,
    Replay,
    SessionReplay,
    WriteReplay,
    replay_s,
    replay_statements,
)
from loadgen.model.workload import LENGTH_MAX as SQL_LENGTH_MAX
from loadgen.model.workload import StatementKind, shape_of
from loadgen.scenario import model as typed
from loadgen.scenario.document import KeyPath
from loadgen.scenario.generators import Generator, RememberedGenerator, parameter
from loadgen.scenario.key_reader import CheckedFile, Section, declared_keys, key
from loadgen.scenario.model import (
    OPEN_LOOP,
    REPLAYED,
    SEARCH,
    Connections,
    EnrichmentSection,
    FindMaxSettings,
    LoadKeys,
    LoadMode,
    ScenarioKeys,
    TableType,
)
from loadgen.scenario.settings import SLOW_SPAWNERS, SLOW_TIMING, LabelText
from loadgen.scenario.value_types import (
    Duration,
    FreeText,
    Integer,
    InvalidValue,
    JsonSchema,
    Label,
    Number,
    ParsedText,
    SqlName,
    ValueType,
)

VERSION = 1
ROWS_MAX = 10**10


class FileName(ValueType):
    """The name of a file. Its variables are stored resolved, because the file is read before the run."""

    def parse(self, value: object) -> str:
        return str(FreeText(length_max=1_000).parse(value))


class LoadSection(LoadKeys):
    """The level of the load and its duration."""

    max_connections: Connections = key(
        "Mode rate, and mode replay with `sessions: spread`: the largest number of statements in flight.",
        default=64,
        applies=OPEN_LOOP,
    )
    max_lag_s: Annotated[float, Duration(low_s=0.001)] | None = key(
        "Modes rate and replay: statements that are later than this are dropped and counted; null: they are sent.",
        default=None,
        applies=OPEN_LOOP,
    )
    find_max: FindMaxSettings = key(default=FindMaxSettings(), applies=SEARCH)
    capture: Annotated[str, FileName()] | None = key(
        "Mode replay: a folder that `loadgen capture` has written, in or below the scenario's folder.",
        default=None,
        applies=REPLAYED,
    )
    speed: Annotated[float, Number(low=0.01, high=1_000)] = key(
        "Mode replay: multiple of the recorded speed; 2 takes half the recorded time.", default=1, applies=REPLAYED
    )
    sessions: SessionReplay = key(
        "Mode replay. keep: each recorded session is sent in order over a separate connection; spread: each statement "
        "is sent over the next free connection.",
        default="keep",
        applies=REPLAYED,
    )
    writes: WriteReplay = key(
        "Mode replay. skip: only reads are sent; replay: writes are sent too.", default="skip", applies=REPLAYED
    )
    users: Connections = key(
        "Mode replay: each recorded session is sent this number of times, at the same times, over "
        "separate connections; where values are pseudonyms, each time with different ones.",
        default=1,
        applies=REPLAYED,
    )

    @property
    def ceiling_key(self) -> str:
        """The key that sets the largest number of connections; for kept sessions it is the capture."""
        if self.mode is LoadMode.FIND_MAX:
            return "find_max"
        if self.is_open_loop:
            return "max_connections"
        return "stages" if self.stages else "connections"

    @property
    def ceiling(self) -> int:
        """The largest number of connections of the run."""
        if self.ceiling_key == "find_max":
            return self.find_max.maximum
        if self.ceiling_key == "max_connections":
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


# It becomes part of a CREATE TABLE, so nothing else is accepted.
ColumnType = Annotated[
    str,
    ParsedText(
        read=lambda text: text.strip() if _TYPE.fullmatch(text.strip().upper()) else None,
        what="is not a data type that loadgen knows",
        how='write for example "NUMBER(38,0)", VARCHAR or TIMESTAMP_NTZ',
    ),
]


class ColumnSection(Section):
    name: Annotated[str, SqlName()] = key("Name of the column.")
    type: ColumnType = key('For example "NUMBER(38,0)" or VARCHAR.')
    primary_key: bool = key("The column is part of the primary key.", default=False)
    generate: Generator | None = key("The generator of the column's values; null: NULL.", default=None)


class IndexSection(Section):
    columns: tuple[Annotated[str, SqlName()], ...] = key("Columns of the index, in order.")


class TableSection(Section):
    """A table that `loadgen prepare` creates and fills, or that must exist."""

    name: Annotated[str, SqlName(qualified=True)] = key("Name of the table; DATABASE.SCHEMA.NAME works too.")
    type: TableType = key("existing: the table must exist and is never changed.", default="hybrid")
    rows: Annotated[int, Integer(high=ROWS_MAX)] = key("Number of rows to insert: 100k, 1m.", default=0)
    columns: tuple[ColumnSection, ...] = key("Columns of a table that is created.", default=[])
    indexes: tuple[IndexSection, ...] = key("Secondary indexes of a hybrid table.", default=[])


class PrepareSection(Section):
    """What `loadgen prepare` creates before a run."""

    tables: tuple[TableSection, ...] = key("Tables that are created and filled, or that must exist.", default=[])
    statements: tuple[Annotated[str, FreeText()], ...] = key("SQL to execute once after the tables.", default=[])


class PoolSection(Section):
    """Values for parameters: the first column of a query, or a column of a CSV file."""

    query: Annotated[str, FreeText()] | None = key(
        "A query; with ORDER BY the order of the values is fixed.", default=None
    )
    file: Annotated[str, FileName()] | None = key(
        "A CSV file with a header, in or below the scenario's folder.", default=None
    )
    column: LabelText | None = key("Column of the file; null: the file has one column.", default=None)


class ShardingSection(Section):
    """Disjoint keys for each worker: generators with `sharded: true`, and the generator `shard`."""

    enabled: bool = key("Divide key_range among the workers.", default=False)
    total_partitions: Annotated[int, Integer(low=1, high=10**9)] = key(
        "Number of shards for the generator `shard`.", default=100
    )
    key_column: Annotated[str, SqlName()] = key(
        "The column with the keys in key_range. A table of prepare must have it, also one of type existing; without "
        "tables in prepare it is not checked. The plan shows it. Generators do not read it: put a sharded generator at "
        "the ? of this column.",
        default="ID",
    )
    key_range: tuple[Annotated[int, Integer(low=-(10**18))], ...] = key(
        "First and last key; the last is included.", default=[1, 1_000_000]
    )


# --- workload --------------------------------------------------------------------------------------------------------


class QuerySection(Section):
    """One SQL text of a transaction."""

    sql: Annotated[str, FreeText(length_max=SQL_LENGTH_MAX)] = key("One statement with ? for its parameters.")
    params: tuple[Generator, ...] = key("One generator for each ? in the SQL.", default=[])


class ExpectSection(Section):
    """Conditions on the result of a statement."""

    rows: Annotated[int, Integer(high=10**12)] = key("A statement with another number of rows fails.")


class StatementSection(Section):
    """One entry of the mix: an SQL text, or a transaction of several."""

    name: Annotated[str, Label()] = key("Name in results and thresholds.")
    kind: StatementKind | None = key("read or write; null: derived from the SQL.", default=None)
    weight: Annotated[int, Integer(high=1_000_000)] = key("Relative share of the mix; 0: never sent.", default=1)
    sql: Annotated[str, FreeText(length_max=SQL_LENGTH_MAX)] | None = key(
        "One statement with ? for its parameters.", default=None
    )
    params: tuple[Generator, ...] = key("One generator for each ? in the SQL.", default=[])
    transaction: tuple[QuerySection, ...] | None = key(
        "Instead of sql: statements that are sent between BEGIN and COMMIT and measured as one sample.", default=None
    )
    expect: ExpectSection | None = key(default=None)
    session: bool = key("Execute it as one of the users of `sessions`.", default=False)

    def texts(self, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str, tuple[Generator, ...]]]:
        """Its SQL texts, in order: the path of the mapping that has it, the text, the generators of its parameters."""
        if self.sql is not None:
            yield path, self.sql, self.params
        for number, query in enumerate(self.transaction or ()):
            yield (*path, "transaction", number), query.sql, query.params


class WorkloadSection(Section):
    """The statements to send."""

    think_time_s: Annotated[float, Duration(high_s=3_600)] = key(
        "Pause of each client between statements.", default="0ms"
    )
    statements: tuple[StatementSection, ...] = key("The mix of statements.", default=[])


# --- the file --------------------------------------------------------------------------------------------------------


class Version(ValueType):
    def parse(self, value: object) -> int:
        if value not in (VERSION, str(VERSION)) or isinstance(value, (bool, float)):
            raise InvalidValue(f"this loadgen reads version {VERSION}", f"write version: {VERSION}")
        return VERSION

    def schema(self) -> JsonSchema:
        return {"const": VERSION}


class ScenarioFile(ScenarioKeys):
    """A benchmark scenario of loadgen."""

    order: ClassVar[tuple[str, ...]] = (
        *("version", "name", "description", "labels", "connection", "control", "target", "prepare", "values"),
        *("workload", "sharding", "sessions", "seed", "load", "connections", "thresholds", "guardrails", "query_log"),
        *("enrichment", "spawner", "on_worker_loss", "notify", "timing", "embedded"),
    )
    version: Annotated[int, Version()] = key(f"Version of the file format: {VERSION}.")
    prepare: PrepareSection = key(default=PrepareSection())
    values: dict[LabelText, PoolSection] = key("Value pools, read once before the start.", default={})
    workload: WorkloadSection = key(default=WorkloadSection())
    sharding: ShardingSection = key(default=ShardingSection())
    seed: Annotated[int, Integer(high=2**63 - 1)] = key(
        "Seed of all random values; the same seed gives the same values.", default=1
    )
    load: LoadSection = key(default=LoadSection())
    enrichment: EnrichmentSection = key(default=EnrichmentSection())


CheckedScenario: TypeAlias = CheckedFile[ScenarioFile]


def build(file: ScenarioFile, given_timing: Collection[str], capture: CaptureManifest | None = None) -> typed.Scenario:
    """The typed scenario. `given_timing`: attributes of `timing` that the file sets; `capture`: that of mode replay."""
    scenario = typed.Scenario(
        **{name: getattr(file, name) for name in (one.attribute for one in declared_keys(ScenarioKeys).values())},
        prepare=typed.Prepare(tables=tuple(map(_table, file.prepare.tables)), statements=file.prepare.statements),
        pools=tuple(_pools(file)),
        workload=_workload(file, capture),
        load=load_of(file.load, capture),
        enrichment=file.enrichment.enabled,
    )
    if scenario.spawner.kind not in SLOW_SPAWNERS:
        return scenario
    slow = {name: value for name, value in SLOW_TIMING.items() if name not in given_timing}
    return dataclasses.replace(scenario, timing=dataclasses.replace(scenario.timing, **slow))


def _table(table: TableSection) -> typed.TableSpec:
    columns = tuple(
        typed.ColumnSpec(
            name=column.name,
            type=column.type,
            primary_key=column.primary_key,
            generate=None if column.generate is None else parameter(column.generate, {}),
        )
        for column in table.columns
    )
    indexes = tuple(index.columns for index in table.indexes)
    return typed.TableSpec(name=table.name, type=table.type, rows=table.rows, columns=columns, indexes=indexes)


def _pools(file: ScenarioFile) -> list[typed.PoolSource]:
    pools: list[typed.PoolSource] = []
    for name, pool in file.values.items():
        if pool.query is not None:
            pools.append(typed.QueryPool(name=name, query=pool.query))
        elif pool.file is not None:
            pools.append(typed.FilePool(name=name, file=pool.file, column=pool.column))
    return pools


def load_of(load: LoadSection, capture: CaptureManifest | None = None) -> typed.Load:
    """The typed form of a load without problems."""
    keys = {field.name: getattr(load, field.name) for field in dataclasses.fields(LoadKeys)}
    keys |= {"connections": load.ceiling, "duration_s": load.measured_s, "max_lag_s": load.max_lag_s}
    if load.mode is LoadMode.FIND_MAX:
        return typed.Load(**{**keys, "duration_s": None}, find_max=load.find_max)
    if capture is None:
        return typed.Load(**keys)
    keys |= {"duration_s": replay_s(capture, load.speed), "warmup_s": 0.0}
    if load.sessions is SessionReplay.KEEP:
        keys["connections"] = capture.sessions * load.users
    replay = Replay(
        capture=capture.statements_sha256,
        speed=load.speed,
        sessions=load.sessions,
        writes=load.writes,
        pseudonyms=capture.pseudonyms,
        users=load.users,
        folder=load.capture or "",
        coverage=capture.coverage,
    )
    return typed.Load(**keys, replay=replay)


def _workload(file: ScenarioFile, capture: CaptureManifest | None) -> model.Workload:
    sharding = file.sharding
    first, last = sharding.key_range
    remembered = _remembered(file.workload.statements)
    return model.Workload(
        statements=replay_statements(capture, file.load.writes)
        if capture is not None
        else tuple(_statement(statement, remembered) for statement in file.workload.statements),
        seed=file.seed,
        think_time_s=file.workload.think_time_s,
        sharding=model.Sharding(
            total_partitions=sharding.total_partitions,
            key_column=sharding.key_column,
            keys=model.KeyRange(low=first, high=last + 1),
        )
        if sharding.enabled
        else None,
    )


def _remembered(statements: Sequence[StatementSection]) -> dict[str, model.Parameter]:
    """The generators of remembered values, by name."""
    generators = [generator for statement in statements for _, _, params in statement.texts() for generator in params]
    return {
        generator.remembered: parameter(generator.of, {})
        for generator in generators
        if isinstance(generator, RememberedGenerator) and generator.of is not None
    }


def _statement(statement: StatementSection, remembered: Mapping[str, model.Parameter]) -> model.Statement:
    queries = tuple(
        model.Query(sql=sql, parameters=tuple(parameter(generator, remembered) for generator in params))
        for _, sql, params in statement.texts()
    )
    reads = all(shape_of(query.sql).reads for query in queries)
    return model.Statement(
        name=statement.name,
        kind=statement.kind or (StatementKind.READ if reads else StatementKind.WRITE),
        weight=statement.weight,
        queries=queries,
        transaction=statement.transaction is not None,
        expected_rows=None if statement.expect is None else statement.expect.rows,
        session=statement.session,
    )


# --- files that a scenario names -------------------------------------------------------------------------------------


def is_outside(name: str) -> bool:
    """Whether a name leads out of the scenario's folder, on any operating system."""
    path = PurePosixPath(name)
    return path.is_absolute() or bool(PureWindowsPath(name).drive) or ".." in path.parts or "\\" in name


def require_inside(folder: Path, file: str) -> None:
    """Raises PermissionError when a link leads out of the scenario's folder."""
    if not (folder / file).resolve().is_relative_to(folder.resolve()):
        raise PermissionError(errno.EACCES, "a link leads out of the scenario's folder", file)


def read_manifest(folder: Path, capture: str) -> CaptureManifest:
    """Raises OSError, or InvalidCapture."""
    require_inside(folder, capture)
    return CaptureManifest.of_text((folder / capture / MANIFEST_FILE).read_text("utf-8"))
