"""What a run of a scenario would do, computed without a connection. Pure; `plan_text` makes the text."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loadgen.log import printable
from loadgen.model.run import CONTROL_WAREHOUSE, worker_share
from loadgen.model.warehouse import RATES, SIZES, WarehouseKind
from loadgen.model.workload import Sharding
from loadgen.rules.find_max import FindMaxCap, find_max_cap
from loadgen.rules.price import NEW_WAREHOUSE, standard_warehouse, worst_case_credits
from loadgen.scenario.document import Document, KeyPath, YamlNode, dotted, scalar_text, walk
from loadgen.scenario.file import ScenarioFile, ShardingSection
from loadgen.scenario.generators import GENERATORS
from loadgen.scenario.key_reader import applies_to, declared_keys, is_section, values_of
from loadgen.scenario.model import (
    CONNECTIONS_PER_WORKER,
    DEFAULT_THRESHOLD,
    EMBEDDED,
    Load,
    LoadMode,
    LoadStage,
    QueryPool,
    Scenario,
    WorkerProfile,
    workers_of,
)
from loadgen.scenario.read import LoadedScenario
from loadgen.units import counted, format_duration_s, format_rate_per_second
from loadgen.values import dataclass
from loadgen.workload.arrivals import planned_arrivals, rate_windows

SHOWN_SIZES = 5  # of warehouses, in the list of costs


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPhase:
    """A part of the run, in order."""

    name: str
    start_s: float
    duration_s: float
    level: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementShare:
    """The share of one statement in the mix."""

    name: str
    kind: str
    fraction: float
    queries: int
    expected: int | None  # statements in the measurement; None in a closed loop


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePreparation:
    table: str
    type: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """An upper limit in credits, because sizes, generations and suspending are not known without a connection."""

    longest_s: float
    by_size: tuple[tuple[str, float], ...]
    control: float  # of an X-Small control warehouse


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveValue:
    """A value of the scenario, and where it comes from."""

    path: str
    value: str
    origin: str  # `line 12`, `default`, `--set load.rate=5`, `line 12, environment variable WH`


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioPlan:
    source: str
    name: str
    summary: tuple[str, ...]
    phases: tuple[PlannedPhase, ...]
    shares: tuple[StatementShare, ...]
    workers: int
    workers_reason: str
    sharding: str | None  # how keys are divided among the workers
    connections_per_worker: tuple[int, ...]
    preparation: tuple[TablePreparation, ...]
    pools: tuple[tuple[str, str], ...]
    find_max: FindMaxCap | None
    cost: CostEstimate | None
    settings: tuple[EffectiveValue, ...]


def plan(loaded: LoadedScenario, *, cores: int) -> ScenarioPlan:
    """What a run does on a machine with this number of cores."""
    scenario = loaded.scenario
    load = scenario.load
    workers = workers_of(load, cores)
    cap = find_max_cap(load.find_max) if load.find_max is not None else None
    reason = _workers_reason(load, cores)
    prepared = tuple(
        TablePreparation(table=table.name, type=table.type, rows=table.rows) for table in scenario.prepare.tables
    )
    return ScenarioPlan(
        source=loaded.document.source,
        name=scenario.name,
        summary=tuple(_summary(scenario, cap)),
        phases=tuple(_phases(load, cap)),
        shares=tuple(_shares(scenario)),
        workers=workers,
        workers_reason=reason,
        sharding=_sharding(scenario.workload.sharding, workers),
        connections_per_worker=tuple(worker_share(load.connections, worker, workers) for worker in range(workers)),
        preparation=prepared,
        pools=tuple(
            (pool.name, "query" if isinstance(pool, QueryPool) else f"file {pool.file}") for pool in scenario.pools
        ),
        find_max=cap,
        cost=None if scenario.connection == EMBEDDED else _cost(scenario, cap),
        settings=tuple(_settings(loaded, _worked_out(scenario, workers, reason))),
    )


def longest_s(scenario: Scenario, cap: FindMaxCap | None) -> float:
    """The longest duration of a run from its first statement, including statements that end slowly."""
    load = scenario.load
    measured_s = cap.longest_s if cap is not None else load.duration_s or 0.0
    return load.warmup_s + measured_s + scenario.timing.drain_s


def format_span(duration_s: float) -> str:
    """3661 → '1h 1m 1s'; times below a minute and fractions of seconds as in a scenario."""
    if duration_s < 60 or duration_s % 1:
        return format_duration_s(duration_s)
    minutes, seconds = divmod(int(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "m"), (seconds, "s"))
    return " ".join(f"{number}{unit}" for number, unit in parts if number)


def _worked_out(scenario: Scenario, workers: int, reason: str) -> dict[KeyPath, tuple[str, str]]:
    """Settings whose default is a computed value."""
    found: dict[KeyPath, tuple[str, str]] = {
        ("control", "warehouse"): (CONTROL_WAREHOUSE, "default"),
        ("timing", "registration"): (format_duration_s(scenario.timing.registration_s), "default"),
        ("timing", "start"): (format_duration_s(scenario.timing.start_s), "default"),
    }
    if scenario.load.workers is None:
        found["load", "workers"] = (str(workers), f"computed: {reason}")
    for number, statement in enumerate(scenario.workload.statements):
        found["workload", "statements", number, "kind"] = (statement.kind.value, "derived from its SQL")
    return found


def _summary(scenario: Scenario, cap: FindMaxCap | None) -> list[str]:
    load = scenario.load
    after = f"after a warm-up of {format_span(load.warmup_s)}" if load.warmup_s else "without warm-up"
    measured = f"for {format_span(load.duration_s)}, {after}" if load.duration_s is not None else after
    connections = counted(load.connections, "connection")
    if load.mode is LoadMode.RATE:
        levels = load.levels
        rate = _rate(levels[0]) if len(levels) == 1 else f"{len(levels)} stages of different rates"
        first = f"Sends {rate} on schedule ({load.arrival} arrivals) over at most {connections}, {measured}."
    elif load.replay is not None:
        users = load.replay.users
        due = counted(sum(one.weight for one in scenario.workload.statements), "recorded statement")
        due += "" if users == 1 else f" for each of {users:,} users"
        each = "session" if users == 1 else "session of each user"
        over = f"over {connections}, one for each {each}" if load.keeps_sessions else f"over at most {connections}"
        first = f"Sends {due} at speed {load.replay.speed:g} {over}, {measured}."
    elif cap is not None:
        ladder = f"from {cap.levels[0]} to at most {counted(cap.levels[-1], 'connection')}"
        first = f"Searches for the largest number of connections without a failed step, {ladder}, {measured}."
    elif load.stages:
        first = f"Keeps up to {connections} busy in {counted(len(load.stages), 'stage')}, {measured}."
    else:
        first = f"Keeps {connections} busy, {measured}."
    named = scenario.target.warehouse
    where = "the warehouse of the connection" if named is None else f"warehouse {named}"
    connection = scenario.connection or "the default connection"
    second = f"Runs against {connection}, {where}."
    return [first, second, _demands(scenario)]


def _demands(scenario: Scenario) -> str:
    judged = scenario.judged_thresholds
    if not judged:
        return "Has no thresholds: any valid result passes."
    default = f", with the default {DEFAULT_THRESHOLD.check.text}" if judged[-1] is DEFAULT_THRESHOLD else ""
    holds = "holds" if len(judged) == 1 else "hold"
    return f"Passes if {counted(len(judged), 'threshold')} {holds}{default}."


def _phases(load: Load, cap: FindMaxCap | None) -> list[PlannedPhase]:
    phases: list[PlannedPhase] = []
    now_s = 0.0
    levels = load.levels
    if load.warmup_s:
        first = counted(load.find_max.start, "connection") if load.find_max else _level(levels[0])
        ramp = f", reached in {format_span(load.ramp_s)}" if load.ramp_s else ""
        phases.append(
            PlannedPhase(name="warm-up", start_s=0.0, duration_s=load.warmup_s, level=f"{first}{ramp}, not measured")
        )
        now_s = load.warmup_s
    if cap is not None:
        level = f"steps {', '.join(map(str, cap.levels[:4]))}{' …' if len(cap.levels) > 4 else ''} connections"
        phases.append(
            PlannedPhase(name="search", start_s=now_s, duration_s=cap.longest_s, level=f"{level}; at the longest")
        )
    for number, stage in enumerate(levels, 1):
        name = load.stage_names[number - 1] if load.stages else "measurement"
        ramp_s = stage.ramp_s or (load.ramp_s if number == 1 and not load.warmup_s else 0.0)
        ramp = f", reached in {format_span(ramp_s)}" if ramp_s else ""
        phases.append(
            PlannedPhase(name=name, start_s=now_s, duration_s=stage.duration_s, level=f"{_level(stage)}{ramp}")
        )
        now_s += stage.duration_s
    return phases


def _shares(scenario: Scenario) -> list[StatementShare]:
    load, statements = scenario.load, scenario.workload.statements
    total = sum(statement.weight for statement in statements)
    due = total * load.replay.users if load.replay is not None else 0
    if load.mode is LoadMode.RATE:
        _, *measured = rate_windows(load)
        due = sum(map(planned_arrivals, measured))
    return [
        StatementShare(
            name=statement.name,
            kind=statement.kind.value,
            fraction=statement.weight / total,
            queries=len(statement.queries),
            expected=round(due * statement.weight / total) if load.is_open_loop else None,
        )
        for statement in statements
    ]


def _cost(scenario: Scenario, cap: FindMaxCap | None) -> CostEstimate:
    lasting_s = longest_s(scenario, cap)
    by_size = {size: worst_case_credits(standard_warehouse(size), lasting_s, RATES) for size in SIZES[:SHOWN_SIZES]}
    return CostEstimate(
        longest_s=lasting_s,
        by_size=tuple((size, credits or 0.0) for size, credits in by_size.items()),
        control=worst_case_credits(NEW_WAREHOUSE, lasting_s, RATES) or 0.0,
    )


def _sharding(sharding: Sharding | None, workers: int) -> str | None:
    if sharding is None:
        return None
    first, last = sharding.keys.low, sharding.keys.high - 1
    each = sharding.keys.size // workers
    return f"keys {first:,} to {last:,} of {printable(sharding.key_column, 60)}: {each:,} for each worker"


def _workers_reason(load: Load, cores: int) -> str:
    if load.workers is not None:
        return "as written"
    if load.profile is WorkerProfile.PROCESS:
        return "one per connection, because of profile process"
    if load.per_worker_connections is not None:
        return f"{counted(load.per_worker_connections, 'connection')} each, as written"
    return f"one per {CONNECTIONS_PER_WORKER} connections, at most one per core, {counted(cores, 'core')} here"


def _level(stage: LoadStage) -> str:
    if stage.rate_per_second is None and stage.connections is None:
        return "as recorded"
    return _rate(stage) if stage.connections is None else counted(stage.connections, "connection")


def _rate(stage: LoadStage) -> str:
    return format_rate_per_second(stage.rate_per_second or 0.0)


# --- values in effect ------------------------------------------------------------------------------------------------

VALUE_SHOWN = 100  # characters
_DEFAULT = "default"
_COMPACT = {"columns", "indexes", "params"}  # lists whose elements take one line each


def _settings(loaded: LoadedScenario, computed: Mapping[KeyPath, tuple[str, str]]) -> Iterator[EffectiveValue]:
    """All values that have an effect. `computed` values replace defaults: auto → 2."""
    unused = _unused(loaded.file)
    for path, setting in _walk(loaded.document, loaded.file, ()):
        if any(path[:depth] in unused for depth in range(1, len(path) + 1)):
            continue
        if path in computed and (setting.origin == _DEFAULT or setting.value in ("auto", "null")):
            value, origin = computed[path]
            setting = EffectiveValue(path=setting.path, value=value, origin=origin)
        yield setting


def _unused(file: ScenarioFile) -> set[KeyPath]:
    """The keys that have no effect because of another key, with everything below them."""
    unused: set[KeyPath] = {("load", key) for key in ("connections", "duration", "rate") if file.load.stages}
    absent: list[tuple[bool, KeyPath]] = [
        (not file.load.stages, ("load", "stages")),
        (file.load.is_open_loop, ("workload", "think_time")),
        (file.connection != EMBEDDED, ("embedded",)),
        (not file.notify, ("notify",)),
        (not file.sessions.count, ("sessions",)),
    ]
    unused |= {path for is_absent, path in absent if is_absent}
    if not file.sessions.count:
        unused |= {("workload", "statements", number, "session") for number in range(len(file.workload.statements))}
    if not file.sharding.enabled:
        unused |= {("sharding", key) for key in declared_keys(ShardingSection) if key != "enabled"}
    return unused


def _walk(document: Document, section: Any, path: KeyPath) -> Iterator[tuple[KeyPath, EffectiveValue]]:
    for name, declared, value in values_of(section):
        place: KeyPath = (*path, name)
        entry = document.entry(place)
        if not applies_to(section, declared):
            continue
        if is_section(type(value)) and type(value) not in GENERATORS.values():
            yield from _walk(document, value, place)
        elif isinstance(value, (tuple, dict)) and value and entry is not None:
            yield from _walk_container(document, value, place)
        elif entry is not None and (entry.node.value is not None or declared.default is None):
            yield place, _setting(place, entry.node)
        elif declared.default is not None or len(place) < 4 or name == "kind":  # the rest are unused alternatives
            default = "none" if declared.default in ({}, []) else scalar_text(declared.default)
            yield place, EffectiveValue(path=dotted(place), value=default, origin=_DEFAULT)


def _walk_container(document: Document, value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, EffectiveValue]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        place: KeyPath = (*path, key)
        entry = document.entry(place)
        if is_section(type(item)) and path[-1] not in _COMPACT and entry and isinstance(entry.node.value, dict):
            yield from _walk(document, item, place)
        elif entry is not None:
            yield place, _setting(place, entry.node)


def _setting(path: KeyPath, node: YamlNode) -> EffectiveValue:
    origin = f"line {node.mark.line}" if node.mark is not None else printable(node.option or _DEFAULT, 60)
    variables = dict.fromkeys(name for _, inner in walk(node) for name in inner.variables)
    if variables:
        origin += f", environment variable{'s' * (len(variables) > 1)} {', '.join(variables)}"
    return EffectiveValue(path=dotted(path), value=_flow(node), origin=origin)


def _flow(node: YamlNode) -> str:
    """The value on one line, with variables unresolved."""
    return printable(" ".join(_flow_of(node).split()), VALUE_SHOWN)


def _flow_of(node: YamlNode) -> str:
    if isinstance(node.value, dict):
        return "{" + ", ".join(f"{key}: {_flow_of(entry.node)}" for key, entry in node.value.items()) + "}"
    if isinstance(node.value, list):
        return "[" + ", ".join(map(_flow_of, node.value)) + "]"
    return node.text or "null"


# --- text ------------------------------------------------------------------------------------------------------------

VALUE_WIDTH = 24  # longer values push their origin to the right


def plan_text(plan: ScenarioPlan) -> str:
    """The plan as text."""
    return "\n".join(line.rstrip() for line in _lines_text(plan))


def plan_data(plan: ScenarioPlan) -> dict[str, Any]:
    """The plan as JSON data."""
    return dataclasses.asdict(plan)


def _lines_text(plan: ScenarioPlan) -> Iterator[str]:
    yield f"{plan.source}: {printable(plan.name)}"
    yield ""
    yield from (f"  {printable(sentence)}" for sentence in plan.summary)
    yield from _titled("Timeline", _phases_text(plan))
    yield from _titled("Statements", _shares_text(plan))
    yield from _titled("Workers", [_workers_text(plan), *([plan.sharding] if plan.sharding else [])])
    yield from _titled("To prepare", _preparation_text(plan))
    yield from _titled("Find max", _find_max_text(plan))
    yield from _titled("Cost", _cost_text(plan.cost))
    yield from _titled("Values and where they come from", _settings_text(plan))


def _titled(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield ""
        yield title
        yield from (f"  {line}" for line in lines)


def _phases_text(plan: ScenarioPlan) -> list[str]:
    rows = [
        (
            f"at {format_span(phase.start_s)}",
            phase.name,
            f"for {format_span(phase.duration_s)}",
            phase.level,
        )
        for phase in plan.phases
    ]
    return _table(rows)


def _shares_text(plan: ScenarioPlan) -> list[str]:
    rows = []
    for share in plan.shares:
        queries = "" if share.queries == 1 else f"transaction of {share.queries}"
        expected = "" if share.expected is None else f"{share.expected:,} expected"
        rows.append((f"{share.fraction:7.2%}", share.kind, printable(share.name, 60), expected, queries))
    return _table(rows)


def _workers_text(plan: ScenarioPlan) -> str:
    sizes = Counter(plan.connections_per_worker)
    parts = " and ".join(
        f"{count} × {counted(size, 'connection')}" for size, count in sorted(sizes.items(), reverse=True)
    )
    return f"{plan.workers} ({plan.workers_reason}): {parts}"


def _preparation_text(plan: ScenarioPlan) -> list[str]:
    rows = [
        (
            printable(table.table, 80),
            table.type,
            "must exist" if table.type == "existing" else counted(table.rows, "row"),
        )
        for table in plan.preparation
    ]
    lines = _table(rows)
    total = sum(table.rows for table in plan.preparation)
    if len(rows) > 1 and total:
        lines.append(f"{total:,} rows in total, unless they exist")
    lines += [f"value pool {printable(name, 60)} from a {printable(origin, 80)}" for name, origin in plan.pools]
    return lines


def _find_max_text(plan: ScenarioPlan) -> list[str]:
    cap = plan.find_max
    if cap is None:
        return []
    return [
        f"At most {counted(cap.steps, 'step')}: {len(cap.levels)} of the climb, then confirming and bisecting;"
        " the others repeat steps with contradictory results, or steps that the client limited.",
        f"At most {format_span(cap.steps_s)} when no step is repeated or extended,"
        f" never more than {format_span(cap.longest_s)}.",
    ]


def _cost_text(cost: CostEstimate | None) -> list[str]:
    if cost is None:
        return ["None: the embedded server runs on this machine."]
    sizes = ", ".join(f"{size} {credits:.2f}" for size, credits in cost.by_size)
    return [
        f"At most, in credits by the size of the warehouse: {sizes}.",
        f"Plus {cost.control:.2f} for the control warehouse, if it is X-Small.",
        f"Assumed: one cluster of a standard warehouse of generation 2, at {RATES.of('X-Small', WarehouseKind.GEN2):g}"
        " credits per hour for X-Small and twice that for each size up (generation 1: 1 credit), running for"
        f" {format_span(cost.longest_s)}; costs of preparing and of idling until it suspends are added.",
    ]


def _settings_text(plan: ScenarioPlan) -> list[str]:
    """Every value but the defaults of `timing`, which only few scenarios change."""
    shown = [each for each in plan.settings if each.origin != _DEFAULT or not each.path.startswith("timing.")]
    width = max(len(setting.path) for setting in shown)
    lines = [f"{each.path.ljust(width)}  {each.value.ljust(VALUE_WIDTH)}  {each.origin}" for each in shown]
    left_out = len(plan.settings) - len(shown)
    if left_out:
        lines.append(f"and {counted(left_out, 'default')} of timing: `validate --plan --format json` shows every value")
    return lines


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table as text; no value is cut off."""
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
