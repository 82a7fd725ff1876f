"""From a checked file to the typed Scenario. Nothing can fail here: everything was checked before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from loadgen.model import workload as model
from loadgen.model.run import CONTROL_WAREHOUSE
from loadgen.scenario import model as typed
from loadgen.scenario.check_load import ceiling, duration_s
from loadgen.scenario.check_workload import kind_of
from loadgen.scenario.file import LoadSection, ScenarioFile, StatementSection
from loadgen.scenario.generators import (
    ChoiceGenerator,
    HotspotGenerator,
    LatestGenerator,
    LiteralGenerator,
    NormalGenerator,
    PoolGenerator,
    PreviousGenerator,
    RememberedGenerator,
    SequenceGenerator,
    ShardGenerator,
    TextGenerator,
    TimestampGenerator,
    UniformGenerator,
    UniformSettings,
    ZipfianGenerator,
)
from loadgen.scenario.keys import ScenarioSection
from loadgen.scenario.model import FindMaxSettings
from loadgen.scenario.section import ControlSection, SessionsSection, TableSection, TimingSection

SLOW_SPAWNERS = (typed.SpawnerKind.SPCS, typed.SpawnerKind.EXTERNAL)
_NOTHING: Mapping[str, model.Parameter] = MappingProxyType({})


def build(file: ScenarioFile) -> typed.Scenario:
    return typed.Scenario(
        name=file.name,
        description=file.description,
        labels=dict(file.labels),
        connection=file.connection,
        control=_control(file.control),
        target=typed.TargetSettings(
            warehouse=file.target.warehouse,
            database=file.target.database,
            schema=file.target.schema_,
            use_cached_result=file.target.use_cached_result,
            statement_timeout_s=int(file.target.statement_timeout),
            session=dict(file.target.session),
        ),
        prepare=typed.Prepare(
            tables=tuple(map(_table, file.prepare.tables)), statements=tuple(file.prepare.statements)
        ),
        pools=tuple(_pools(file)),
        workload=_workload(file),
        load=load_of(file.load),
        thresholds=tuple(
            typed.Threshold(check=item.check, window_s=item.window, after_s=item.after, abort=item.abort)
            for item in file.thresholds
        ),
        sessions=_sessions(file.sessions),
        connections=typed.ConnectionPolicy(
            open_parallel=file.connections.open_parallel,
            max_age_s=file.connections.max_age,
            max_statements=file.connections.max_statements,
        ),
        guardrails=typed.GuardrailSettings(**_values(file.guardrails)),
        query_log=typed.QueryLogSettings(**_values(file.query_log)),
        enrichment=file.enrichment.enabled,
        spawner=typed.SpawnerSettings(**_values(file.spawner)),
        on_worker_loss=file.on_worker_loss,
        notify=tuple(
            typed.Notification(webhook=one.webhook, command=tuple(one.command), ping=one.ping, on=tuple(one.on))
            for one in file.notify
        ),
        timing=_timing(file.timing, file.spawner.kind),
        embedded=typed.EmbeddedSettings(**_values(file.embedded)),
    )


def _values(section: ScenarioSection) -> dict[str, Any]:
    """A section whose keys and values are those of the typed class."""
    return {name: getattr(section, name) for name in type(section).declared_keys()}


def _control(control: ControlSection) -> typed.ControlPlaneSettings:
    return typed.ControlPlaneSettings(
        connection=control.connection,
        database=control.database,
        schema=control.schema_,
        warehouse=control.warehouse or CONTROL_WAREHOUSE,
        share_warehouse=control.share_warehouse,
    )


def _table(table: TableSection) -> typed.TableSpec:
    columns = tuple(
        typed.ColumnSpec(
            name=column.name,
            type=column.type,
            primary_key=column.primary_key,
            generate=None if column.generate is None else parameter(column.generate),
        )
        for column in table.columns
    )
    indexes = tuple(tuple(index.columns) for index in table.indexes)
    return typed.TableSpec(name=table.name, type=table.type, rows=table.rows, columns=columns, indexes=indexes)


def _pools(file: ScenarioFile) -> list[typed.Pool]:
    pools: list[typed.Pool] = []
    for name, pool in file.values.items():
        if pool.query is not None:
            pools.append(typed.QueryPool(name=name, query=pool.query))
        elif pool.file is not None:
            pools.append(typed.FilePool(name=name, file=pool.file, column=pool.column))
    return pools


def _sessions(sessions: SessionsSection) -> typed.UserSessionSettings:
    return typed.UserSessionSettings(
        count=sessions.count,
        affinity=sessions.affinity,
        ttl_s=sessions.ttl,
        max=sessions.max,
        metadata=dict(sessions.metadata),
    )


def load_of(load: LoadSection) -> typed.Load:
    """The typed form of the load, once its keys fit together."""
    is_rate, is_search = load.mode is typed.LoadMode.RATE, load.mode is typed.LoadMode.FIND_MAX
    stages = tuple(
        typed.LoadStage(
            duration_s=stage.duration,
            connections=stage.connections,
            rate_per_second=stage.rate,
            ramp_s=stage.ramp,
            name=stage.name,
        )
        for stage in load.stages
    )
    find_max = FindMaxSettings(
        **{name + "_s" * (name in ("step", "settle")): value for name, value in _values(load.find_max).items()}
    )
    return typed.Load(
        mode=load.mode,
        connections=ceiling(load),
        min_connections=load.min_connections,
        profile=load.profile,
        pin=load.pin,
        workers=load.workers,
        per_worker_connections=load.per_worker_connections,
        warmup_s=load.warmup,
        duration_s=None if is_search else duration_s(load),
        ramp_s=load.ramp,
        stages=stages,
        rate_per_second=load.rate if is_rate else None,
        arrival=load.arrival,
        max_lag_s=load.max_lag,
        find_max=find_max if is_search else None,
    )


def _timing(timing: TimingSection, spawner: typed.SpawnerKind) -> typed.TimingSettings:
    slow = spawner in SLOW_SPAWNERS
    values = {f"{name}_s": value for name, value in _values(timing).items()}
    values["registration_s"] = timing.registration or (600.0 if slow else 60.0)
    values["start_s"] = timing.start or (900.0 if slow else 120.0)
    return typed.TimingSettings(**values)


def _workload(file: ScenarioFile) -> model.Workload:
    sharding = file.sharding
    first, last = sharding.key_range
    remembered = _remembered(file.workload.statements)
    return model.Workload(
        statements=tuple(_statement(statement, remembered) for statement in file.workload.statements),
        seed=file.seed,
        think_time_s=file.workload.think_time,
        sharding=model.Sharding(
            total_partitions=sharding.total_partitions,
            key_column=sharding.key_column,
            keys=model.KeyRange(low=first, high=last + 1),
        )
        if sharding.enabled
        else None,
    )


def _remembered(statements: list[StatementSection]) -> dict[str, model.Parameter]:
    """What the values that sessions keep are drawn from, by name."""
    generators = [generator for statement in statements for _, params in _texts(statement) for generator in params]
    return {
        generator.remembered: parameter(generator.of)
        for generator in generators
        if isinstance(generator, RememberedGenerator) and generator.of is not None
    }


def _texts(statement: StatementSection) -> list[tuple[str, Sequence[ScenarioSection]]]:
    if statement.sql is not None:
        return [(statement.sql, statement.params)]
    return [(query.sql, query.params) for query in statement.transaction or []]


def _statement(statement: StatementSection, remembered: Mapping[str, model.Parameter]) -> model.Statement:
    queries = [
        model.Query(sql=sql, parameters=tuple(parameter(generator, remembered) for generator in params))
        for sql, params in _texts(statement)
    ]
    return model.Statement(
        name=statement.name,
        kind=kind_of(statement),
        weight=statement.weight,
        queries=tuple(queries),
        transaction=statement.transaction is not None,
        expected_rows=None if statement.expect is None else statement.expect.rows,
        session=statement.session,
    )


def parameter(generator: ScenarioSection, remembered: Mapping[str, model.Parameter] = _NOTHING) -> model.Parameter:
    """The typed form of one generator."""
    match generator:
        case LiteralGenerator():
            return model.Literal(value=generator.literal)
        case ChoiceGenerator():
            return model.Choice(values=generator.choice.values, weights=generator.choice.weights)
        case UniformGenerator():
            return _uniform(generator.uniform)
        case NormalGenerator():
            return generator.normal.parameter()
        case ZipfianGenerator(zipfian=s):
            return model.Zipfian(keys=_keys(s), theta=s.theta, scrambled=s.scrambled, sharded=s.sharded)
        case HotspotGenerator(hotspot=s):
            return model.Hotspot(keys=_keys(s), hot_fraction=s.hot_fraction, hot_share=s.hot_share, sharded=s.sharded)
        case LatestGenerator(latest=s):
            return model.Latest(keys=_keys(s), theta=s.theta, follows=s.follows, sharded=s.sharded)
        case SequenceGenerator(sequence=s):
            return model.Sequence(start=1 if s.start is None else s.start, sharded=s.sharded)
        case TextGenerator(text=s):
            return model.Text(length=s.length, length_max=s.max_length, alphabet=s.alphabet)
        case TimestampGenerator(timestamp=s):
            return model.Timestamp(low=s.min, high=s.max)
        case PoolGenerator():
            theta = 0.99 if generator.theta is None else generator.theta
            return model.PoolValue(pool=generator.pool, order=generator.distribution, theta=theta)
        case PreviousGenerator():
            return model.Previous(index=generator.previous)
        case RememberedGenerator(remembered=name):
            return model.Remembered(name=name, of=remembered[name])
        case ShardGenerator():
            return model.Shard()
        case _:
            return model.Uuid()


def _uniform(settings: UniformSettings) -> model.Uniform | model.UniformFloat:
    if isinstance(settings.min, float) or isinstance(settings.max, float):
        return model.UniformFloat(low=float(settings.min or 0), high=float(settings.max or 0))
    return model.Uniform(keys=_keys(settings), sharded=settings.sharded)


def _keys(settings: Any) -> model.KeyRange | None:
    return None if settings.sharded else model.KeyRange(low=settings.min, high=settings.max + 1)
