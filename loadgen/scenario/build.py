"""From a checked file to the typed Scenario. Nothing can fail here: everything was checked before."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from loadgen.model import workload as model
from loadgen.model.capture import CaptureManifest, Replay, SessionReplay
from loadgen.model.workload import StatementKind, shape_of
from loadgen.scenario import model as typed
from loadgen.scenario.file import LoadSection, ScenarioFile, StatementSection, TableSection
from loadgen.scenario.generators import Generator, RememberedGenerator, parameter
from loadgen.scenario.replay import replay_s, replay_statements
from loadgen.scenario.settings import SLOW_SPAWNERS, SLOW_TIMING

# Sections that the file and the typed Scenario have alike.
_ALIKE = (
    *("name", "description", "labels", "connection", "control", "target", "sessions", "connections", "thresholds"),
    *("guardrails", "query_log", "spawner", "on_worker_loss", "notify", "timing", "embedded"),
)


def build(file: ScenarioFile, given_timing: Collection[str], capture: CaptureManifest | None = None) -> typed.Scenario:
    """The typed scenario; `given_timing` names the attributes of `timing` that the file sets, `capture` is what mode
    replay sends."""
    scenario = typed.Scenario(
        **{name: getattr(file, name) for name in _ALIKE},
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


def _pools(file: ScenarioFile) -> list[typed.Pool]:
    pools: list[typed.Pool] = []
    for name, pool in file.values.items():
        if pool.query is not None:
            pools.append(typed.QueryPool(name=name, query=pool.query))
        elif pool.file is not None:
            pools.append(typed.FilePool(name=name, file=pool.file, column=pool.column))
    return pools


def load_of(load: LoadSection, capture: CaptureManifest | None = None) -> typed.Load:
    """The typed form of the load, once its keys fit together."""
    if capture is not None:
        return _replayed(load, capture)
    is_search = load.mode is typed.LoadMode.FIND_MAX
    settled: dict[str, Any] = {
        "connections": load.ceiling,
        "duration_s": None if is_search else load.measured_s,
        "rate_per_second": load.rate_per_second if load.mode is typed.LoadMode.RATE else None,
    }
    keys = {field.name: getattr(load, field.name) for field in dataclasses.fields(typed.LoadKeys)} | settled
    return typed.Load(**keys, max_lag_s=load.max_lag_s, find_max=load.find_max if is_search else None)


def _replayed(load: LoadSection, capture: CaptureManifest) -> typed.Load:
    keeps = load.sessions is SessionReplay.KEEP
    settled: dict[str, Any] = {
        "connections": capture.sessions * load.users if keeps else load.max_connections,
        "duration_s": replay_s(capture, load.speed),
        "warmup_s": 0.0,
    }
    keys = {field.name: getattr(load, field.name) for field in dataclasses.fields(typed.LoadKeys)} | settled
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
    return typed.Load(**keys, max_lag_s=load.max_lag_s, replay=replay)


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
    """What the values that sessions keep are drawn from, by name."""
    generators = [generator for statement in statements for _, params in _texts(statement) for generator in params]
    return {
        generator.remembered: parameter(generator.of, {})
        for generator in generators
        if isinstance(generator, RememberedGenerator) and generator.of is not None
    }


def _texts(statement: StatementSection) -> list[tuple[str, Sequence[Generator]]]:
    if statement.sql is not None:
        return [(statement.sql, statement.params)]
    return [(query.sql, query.params) for query in statement.transaction or ()]


def _statement(statement: StatementSection, remembered: Mapping[str, model.Parameter]) -> model.Statement:
    texts = _texts(statement)
    reads = all(shape_of(sql).reads for sql, _ in texts)
    queries = [
        model.Query(sql=sql, parameters=tuple(parameter(generator, remembered) for generator in params))
        for sql, params in texts
    ]
    return model.Statement(
        name=statement.name,
        kind=statement.kind or (StatementKind.READ if reads else StatementKind.WRITE),
        weight=statement.weight,
        queries=tuple(queries),
        transaction=statement.transaction is not None,
        expected_rows=None if statement.expect is None else statement.expect.rows,
        session=statement.session,
    )
