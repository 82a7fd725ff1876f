"""Rules between keys of `workload`: statements, their generators, thresholds, sharding and user sessions."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence

from loadgen.identifiers import canonical
from loadgen.model.capture import CaptureManifest, replay_s, replay_statements
from loadgen.model.threshold import ThresholdMetric
from loadgen.model.workload import (
    CYCLE_MAX,
    NORMAL_KEPT_MIN,
    SqlShape,
    StatementKind,
    databases_of,
    shape_of,
    workload_refusal,
)
from loadgen.scenario.document import KeyPath
from loadgen.scenario.file import CheckedScenario, ScenarioFile, StatementSection, load_of
from loadgen.scenario.generators import (
    GENERATORS,
    Generator,
    HotspotGenerator,
    KeyRangeSection,
    LatestGenerator,
    NormalGenerator,
    PoolGenerator,
    PreviousGenerator,
    RememberedGenerator,
    SequenceGenerator,
    ShardGenerator,
    TextGenerator,
    TimestampGenerator,
    UniformGenerator,
    ZipfianGenerator,
    is_sharded,
    name_of,
)
from loadgen.scenario.key_reader import values_of
from loadgen.scenario.model import EMBEDDED, WORKERS_MAX, LoadMode, TableType, workers_of
from loadgen.scenario.settings import UserSessionSettings
from loadgen.units import format_duration_s
from loadgen.values import dataclass

_STATEMENTS: KeyPath = ("workload", "statements")
STATEMENTS_MAX = 500
PARAMETERS_MAX = 1_000  # of one statement


def check_workload(checked: CheckedScenario, file: ScenarioFile, capture: CaptureManifest | None) -> None:
    statements = file.workload.statements
    if file.load.mode is LoadMode.REPLAY:
        if statements:
            what = "belongs to other modes: a replay sends the statements of its capture"
            checked.key_problem(_STATEMENTS, what, "remove it")
        elif capture is not None:
            _check_thresholds(checked, file, [one.name for one in replay_statements(capture, file.load.writes)])
        return
    whole = checked.fine(_STATEMENTS)
    if not statements and whole:
        checked.problem(_STATEMENTS, "there is nothing to send", "add at least one statement under workload.statements")
    if len(statements) > STATEMENTS_MAX:
        checked.key_problem(_STATEMENTS, f"has more than {STATEMENTS_MAX} statements")
        return
    weights = [statement.weight for statement in statements]
    if statements and whole and not any(weights):
        checked.key_problem(_STATEMENTS, "all weights are 0, so nothing would be sent", "give one a weight")
    elif whole and any(weights) and sum(weights) // math.gcd(*weights) > CYCLE_MAX:
        what = f"the weights make a cycle of more than {CYCLE_MAX:,} statements"
        checked.key_problem(_STATEMENTS, what, "use smaller weights, or weights with a common factor")
    hint = "rename one: results are listed by name"
    checked.require_different_names(_STATEMENTS, [statement.name for statement in statements], "statement", hint)
    around = _context(checked, file)
    for number, statement in enumerate(statements):
        _check_statement(checked, (*_STATEMENTS, number), statement, around)
    _check_pools_are_used(checked, file)
    _check_sharding_is_used(checked, file)
    names = [checked.written((*_STATEMENTS, number, "name")) for number in range(len(statements))]
    _check_thresholds(checked, file, names)


def _context(checked: CheckedScenario, file: ScenarioFile) -> GeneratorContext:
    count = len(file.workload.statements)
    followed = {statement.name: _sequence_of(statement) for statement in file.workload.statements}
    return GeneratorContext(
        pools=frozenset(file.values) if checked.fine("values") else None,
        followed=followed if checked.fine(_STATEMENTS) else None,
        sharding=file.sharding.enabled if checked.fine("sharding.enabled") else None,
        written=tuple(checked.written((*_STATEMENTS, number, "name")) for number in range(count)),
        previous=None,
    )


def _sequence_of(statement: StatementSection) -> SequenceGenerator | None:
    """The sequence of a statement's new keys; None when it has none, or is never sent."""
    generators = (generator for _, generator in _placed_generators((), statement))
    sequences = (generator for generator in generators if isinstance(generator, SequenceGenerator))
    return next(sequences, None) if statement.weight else None


def _all_generators(file: ScenarioFile) -> Iterator[Generator]:
    """All generators, including those of remembered values."""
    for statement in file.workload.statements:
        for _, generator in _placed_generators((), statement):
            yield generator
            if isinstance(generator, RememberedGenerator) and generator.of is not None:
                yield generator.of


def _check_statement(
    checked: CheckedScenario, path: KeyPath, statement: StatementSection, around: GeneratorContext
) -> None:
    if statement.weight == 0 and checked.fine((*path, "weight")):
        checked.warn((*path, "weight"), "is 0, so this statement is never sent")
    sql_path, transaction_path = (*path, "sql"), (*path, "transaction")
    has_sql, has_transaction = checked.given(sql_path), statement.transaction is not None
    if not checked.fine(sql_path, transaction_path) and not (statement.sql or statement.transaction):
        return
    if has_sql and has_transaction:
        checked.key_problem(transaction_path, "a statement has sql or transaction, not both", "remove one")
    elif not has_sql and not has_transaction:
        checked.problem(sql_path, "is missing", "add sql: SELECT …, or transaction: with several")
    if has_transaction:
        if not statement.transaction and checked.fine(transaction_path):
            checked.key_problem(transaction_path, "is empty", "list at least one statement")
        for key, hint in (("params", "give each of its statements its own params"), ("expect", "remove it")):
            checked.require_absent((*path, key), "does not belong to a transaction", hint)
    shapes = [_check_text(checked, *text) for text in statement.texts(path)]
    _check_parameters(checked, path, statement, around)
    _check_kind(checked, path, statement, [shape for shape in shapes if shape is not None])


def _placed_generators(path: KeyPath, statement: StatementSection) -> Iterator[tuple[KeyPath, Generator]]:
    """The generators of a statement, or of the statements of a transaction, in order."""
    for place, _, parameters in statement.texts(path):
        for number, generator in enumerate(parameters):
            yield (*place, "params", number), generator


def _check_text(checked: CheckedScenario, path: KeyPath, sql: str, parameters: Sequence[Generator]) -> SqlShape | None:
    """Check one SQL text; None when its shape is not known."""
    if not checked.fine((*path, "sql")):
        return None
    shape = shape_of(sql)
    wrong = workload_refusal(shape)
    if wrong is not None:
        checked.problem((*path, "sql"), *wrong)
        return None
    if not checked.fine((*path, "params")):
        return shape
    if len(parameters) > PARAMETERS_MAX:
        checked.key_problem((*path, "params"), f"has more than {PARAMETERS_MAX:,} parameters")
    elif shape.binds != len(parameters):
        marks = "1 ? is" if shape.binds == 1 else f"{shape.binds} ? are"
        given = "1 parameter is" if len(parameters) == 1 else f"{len(parameters)} parameters are"
        place = "params" if checked.given((*path, "params")) else "sql"
        hint = "write one generator under params for each ? outside of texts and comments"
        checked.key_problem((*path, place), f"{marks} in the SQL, and {given} given", hint)
    return shape


def _check_parameters(
    checked: CheckedScenario, path: KeyPath, statement: StatementSection, around: GeneratorContext
) -> None:
    for number, (place, generator) in enumerate(_placed_generators(path, statement)):
        inside = place[len(path)] == "transaction"
        check_generator(checked, place, generator, dataclasses.replace(around, previous=number) if inside else around)


def _check_kind(checked: CheckedScenario, path: KeyPath, statement: StatementSection, shapes: list[SqlShape]) -> None:
    writing = [shape.verb for shape in shapes if not shape.reads and shape.verb != "CALL"]
    calls = [shape for shape in shapes if shape.verb == "CALL"]
    if not checked.fine((*path, "kind")):
        return
    if statement.kind is StatementKind.READ and writing:
        checked.problem((*path, "kind"), f"is read, but {writing[0]} writes", "write kind: write")
    elif statement.kind is None and calls and not writing:
        checked.problem((*path, "kind"), "is missing: CALL may read or write", "add kind: read or kind: write")


def _check_pools_are_used(checked: CheckedScenario, file: ScenarioFile) -> None:
    if not checked.fine(_STATEMENTS, "values"):
        return
    used = {generator.pool for generator in _all_generators(file) if isinstance(generator, PoolGenerator)}
    for name in file.values:
        if name not in used:
            checked.warn(("values", name), "is not used by any parameter")


def _check_sharding_is_used(checked: CheckedScenario, file: ScenarioFile) -> None:
    if not file.sharding.enabled or not checked.fine(_STATEMENTS, "sharding.enabled"):
        return
    if not any(map(is_sharded, _all_generators(file))):
        hint = "write sharded: true in a generator, use {shard: {}}, or set enabled: false"
        checked.problem("sharding.enabled", "sharding is enabled, and no parameter uses it", hint)


def _check_thresholds(checked: CheckedScenario, file: ScenarioFile, written: Sequence[str]) -> None:
    """`written`: the names of statements as they are in the file, for hints."""
    names = [statement.name for statement in file.workload.statements] or written
    never_sent = {statement.name for statement in file.workload.statements if statement.weight == 0}
    knows_names = all(names) and checked.members_fine(_STATEMENTS, "name")
    stages = file.load.stage_names
    for number, threshold in enumerate(file.thresholds):
        path: KeyPath = ("thresholds", number)
        check = threshold.check
        place: KeyPath = (*path, "check") if checked.given((*path, "check")) else path
        if check.statement is not None and check.statement in stages and checked.fine("load.stages"):
            if check.statement in names:
                checked.problem(place, "is the name of a statement and of a stage", "give one of them another name")
            elif threshold.window_s is not None:
                what = "a stage is judged as a whole"
                checked.key_problem((*path, "window"), what, "leave it out")
        elif check.statement is not None and check.statement not in names and knows_names:
            near = difflib.get_close_matches(check.statement, [*written, *stages], n=1)
            known = f"statements are {', '.join(written[:10])}" + (
                f"; stages are {', '.join(stages)}" if stages else ""
            )
            hint = f"did you mean {near[0]}?" if near else known
            kinds = "a statement or stage" if stages else "a statement"
            checked.problem(place, f"names {kinds} that does not exist", hint)
        elif check.statement in never_sent and checked.fine(_STATEMENTS):
            checked.problem(place, "names a statement that is never sent", "give it a weight, or remove the check")
        if check.metric is ThresholdMetric.LONGEST_STALL:
            if check.statement is not None and check.statement in names:
                checked.problem(place, "a stall is measured over all statements", "leave the statement out")
            elif threshold.window_s is not None:
                checked.key_problem((*path, "window"), "a stall is measured over the whole measurement", "leave it out")
        if check.metric is ThresholdMetric.LAG_P99 and not file.load.is_open_loop and checked.fine("load.mode"):
            checked.problem(place, "lag exists in modes rate and replay only", "use p99, or write load.mode: rate")


def check_threshold_times(checked: CheckedScenario, file: ScenarioFile, capture: CaptureManifest | None) -> None:
    if not checked.fine("load.mode", "load.duration", "load.stages"):
        return
    if file.load.mode is LoadMode.FIND_MAX:
        what = "belongs to modes concurrency and rate: find_max judges each step as a whole, and continues"
        for number, key in itertools.product(range(len(file.thresholds)), ("window", "after", "abort")):
            checked.require_absent(("thresholds", number, key), what, "remove it")
        return
    if file.load.mode is LoadMode.REPLAY and capture is None:
        return
    lasting_s = file.load.measured_s if capture is None else replay_s(capture, file.load.speed)
    for number, threshold in enumerate(file.thresholds):
        path: KeyPath = ("thresholds", number)
        rules = (
            ("window", (threshold.window_s or 0.0) <= lasting_s, "is longer than"),
            ("after", threshold.after_s < lasting_s, "is not shorter than"),
        )
        for key, holds, what in rules:
            what += f" the measurement, {format_duration_s(lasting_s)}"
            checked.require(holds, (*path, key), what, "the check would never be made; shorten it")


# --- databases ------------------------------------------------------------------------------------------------------


def check_databases(checked: CheckedScenario, file: ScenarioFile) -> None:
    """Snowflake limits the operations on hybrid tables per database: a load there would throttle the control plane."""
    control, used = file.control, canonical(file.control.database)
    if not checked.fine("control.database", "control.connection", "connection"):
        return
    if control.connection not in (None, file.connection) or file.connection == EMBEDDED:
        return
    for place, databases in _databases(file):
        if checked.fine(place) and used in databases:
            verb = "is" if place == ("target", "database") else "uses"
            what = f"{verb} the database of the control plane, and hybrid tables of a database share one limit"
            checked.warn(place, f"{what} of operations: name another one here or in control.database")
            return


def _databases(file: ScenarioFile) -> Iterator[tuple[KeyPath, tuple[str, ...]]]:
    """Paths that name databases, directly or in the names of tables."""
    if file.target.database is not None:
        yield ("target", "database"), (canonical(file.target.database),)
    for number, table in enumerate(file.prepare.tables):
        yield ("prepare", "tables", number, "name"), databases_of(table.name)
    for number, text in enumerate(file.prepare.statements):
        yield ("prepare", "statements", number), databases_of(text)
    for number, statement in enumerate(file.workload.statements):
        names = tuple(name for _, text, _ in statement.texts() for name in databases_of(text))
        yield ("workload", "statements", number), names


# --- sharding -----------------------------------------------------------------------------------------------------


def check_sharding(checked: CheckedScenario, file: ScenarioFile) -> None:
    _check_key_range(checked, file)
    _check_key_column(checked, file)


def _check_key_range(checked: CheckedScenario, file: ScenarioFile) -> None:
    path = "sharding.key_range"
    if not checked.fine(path):
        return
    keys = file.sharding.key_range
    if len(keys) != 2 or keys[0] > keys[1]:
        checked.problem(path, "must be [first, last] with first ≤ last", "for example key_range: [1, 1000000]")
        return
    if not file.sharding.enabled or not checked.fine("sharding.enabled", "load"):
        return
    workers = workers_of(load_of(file.load), cores=WORKERS_MAX)
    if keys[1] - keys[0] + 1 < workers:
        checked.problem(path, f"has fewer keys than the {workers:,} workers that may share it", "widen it")


def _check_key_column(checked: CheckedScenario, file: ScenarioFile) -> None:
    """Not with tables of type existing: their columns are read when the scenario is prepared."""
    path = "sharding.key_column"
    tables = file.prepare.tables
    if not file.sharding.enabled or not tables or not checked.fine(path, "sharding.enabled", "prepare"):
        return
    if any(table.type is TableType.EXISTING for table in tables):
        return
    columns = dict.fromkeys(column.name for table in tables for column in table.columns)
    if canonical(file.sharding.key_column) not in map(canonical, columns):
        hint = f"name one of their columns: {', '.join(columns)}"
        checked.problem(path, "is a column of no table of prepare", hint)


# --- user sessions -----------------------------------------------------------------------------------------------

METADATA_MAX = 1_000  # characters as JSON; a QUERY_TAG has at most 2,000, keys of loadgen included
_SESSION_COUNT: KeyPath = ("sessions", "count")


def check_sessions(checked: CheckedScenario, file: ScenarioFile) -> None:
    if checked.fine(_SESSION_COUNT):
        _check_count(checked, file)
        _check_marks(checked, file)
    _check_metadata(checked, file.sessions)
    if checked.fine(_STATEMENTS):
        _check_remembered(checked, file)


def _check_count(checked: CheckedScenario, file: ScenarioFile) -> None:
    sessions, unused = file.sessions, UserSessionSettings()
    if not sessions.count:
        for key, declared, value in values_of(sessions):
            if value != getattr(unused, declared.attribute) and checked.fine(("sessions", key)):
                what = "has no effect: there are no sessions"
                checked.key_problem(("sessions", key), what, "add count: …, or remove it")
        return
    count, most, connections = sessions.count, sessions.max, file.load.ceiling
    what = f"{count:,} sessions are over the quota: max is {most:,}"
    checked.require(count <= most, _SESSION_COUNT, what, "lower count, or raise max", "sessions.max")
    what = f"{count:,} users are too few for {connections:,} connections: each connection needs at least one"
    hint = "raise it, or have fewer connections under load"
    checked.require(count >= connections, _SESSION_COUNT, what, hint, "load")


def _check_marks(checked: CheckedScenario, file: ScenarioFile) -> None:
    if not checked.fine(_STATEMENTS):
        return
    marked = [number for number, statement in enumerate(file.workload.statements) if statement.session]
    if not file.sessions.count:
        for number in marked:
            path: KeyPath = (*_STATEMENTS, number, "session")
            checked.problem(path, "requires users, but sessions.count is 0", "write sessions: {count: 100}")
    elif not any(file.workload.statements[number].weight for number in marked):
        hint = "mark statements that are sent with session: true, or remove sessions"
        checked.problem(_SESSION_COUNT, "no statement is executed in a session", hint)


def _check_metadata(checked: CheckedScenario, sessions: UserSessionSettings) -> None:
    written = len(json.dumps(dict(sessions.metadata), separators=(",", ":")))
    if written > METADATA_MAX:
        what = f"has {written:,} characters as JSON, and QUERY_TAG has room for {METADATA_MAX:,}"
        checked.key_problem("sessions.metadata", what, "shorten it")


def _check_remembered(checked: CheckedScenario, file: ScenarioFile) -> None:
    """Each remembered name has one generator, and is used in sessions only."""
    uses: list[tuple[KeyPath, RememberedGenerator, bool]] = []
    for number, statement in enumerate(file.workload.statements):
        for path, generator in _placed_generators((*_STATEMENTS, number), statement):
            if isinstance(generator, RememberedGenerator):
                uses.append((path, generator, statement.session))
    drawn: set[str] = set()
    for path, generator, _ in uses:
        if generator.of is not None and generator.remembered in drawn:
            what = "has a generator in another place already"
            checked.key_problem((*path, "of"), what, "write of: once, and {remembered: name} elsewhere")
        elif generator.of is not None:
            drawn.add(generator.remembered)
    for path, generator, in_session in uses:
        place: KeyPath = (*path, "remembered")
        if not in_session:
            checked.problem(place, "needs a session", "add session: true to the statement")
        if generator.remembered not in drawn:
            checked.problem(place, "has no generator", "add of: {uniform: {min: 1, max: 10k}}")


# --- generators ------------------------------------------------------------------------------------------------------

WHOLE_NORMAL_MAX = float(1 << 62)
_NOT_FOR_COLUMNS = (PoolGenerator, PreviousGenerator, RememberedGenerator, ShardGenerator, LatestGenerator)


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorContext:
    """What a generator may refer to."""

    pools: frozenset[str] | None  # None: not known, because `values` has problems
    followed: Mapping[str, SequenceGenerator | None] | None  # statement → the sequence of its new keys, if it is sent
    written: tuple[str, ...]  # the names of statements as they are in the file
    sharding: bool | None
    previous: int | None  # number of earlier parameters of the transaction; None outside of one


def check_generator(checked: CheckedScenario, path: KeyPath, generator: Generator, around: GeneratorContext) -> None:
    """Check the parameter of a statement at `path`."""
    if not checked.fine(path):
        return
    name = name_of(generator)
    _check_numbers(checked, (*path, name), generator)
    if is_sharded(generator) and around.sharding is False:
        place: KeyPath = (*path, name) if isinstance(generator, ShardGenerator) else (*path, name, "sharded")
        checked.key_problem(place, "needs sharding", "write sharding: {enabled: true, key_range: [first, last]}")
    match generator:
        case PoolGenerator():
            _check_pool_generator(checked, path, generator, around.pools)
        case PreviousGenerator():
            _check_previous(checked, (*path, "previous"), generator.previous, around.previous)
        case LatestGenerator() if generator.follows is not None:
            _check_follows(checked, (*path, "latest", "follows"), generator, around)
        case RememberedGenerator() if generator.of is not None:
            _check_of(checked, (*path, "of"), generator.of, around)
        case _:
            pass


def check_column_generator(checked: CheckedScenario, path: KeyPath, generator: Generator) -> None:
    """Check the generator of a column of a table to prepare."""
    if not checked.fine(path):
        return
    name = name_of(generator)
    if isinstance(generator, _NOT_FOR_COLUMNS):
        *others, last = (key for key, one in GENERATORS.items() if one not in _NOT_FOR_COLUMNS)
        hint = f"columns take {', '.join(others)} or {last}"
        checked.key_problem((*path, name), f"{name} cannot fill a column", hint)
        return
    _check_numbers(checked, (*path, name), generator)
    if is_sharded(generator):
        checked.problem((*path, name, "sharded"), "rows are inserted before workers exist", "give min and max")


def _check_numbers(checked: CheckedScenario, path: KeyPath, generator: Generator) -> None:
    match generator:
        case UniformGenerator() | ZipfianGenerator() | HotspotGenerator() | LatestGenerator():
            _check_range(checked, path, generator)
        case SequenceGenerator() if generator.sharded:
            checked.require_absent((*path, "start"), "is set by sharding.key_range", "remove it, or remove sharded")
        case NormalGenerator():
            _check_normal(checked, path, generator)
        case TextGenerator():
            longest = generator.max_length
            if longest is not None and longest < generator.length:
                checked.problem((*path, "max_length"), "is below length", "raise it, or lower length")
        case TimestampGenerator() if generator.min >= generator.max:
            checked.problem((*path, "max"), "is not after min", "write a later time")
        case _:
            pass


def _check_range(checked: CheckedScenario, path: KeyPath, generator: UniformGenerator | KeyRangeSection) -> None:
    low, high = generator.min, generator.max
    if generator.sharded:
        for key in ("min", "max"):
            checked.require_absent((*path, key), "is set by sharding.key_range", "remove it, or remove sharded")
        return
    if low is None or high is None:
        missing = " and ".join(key for key, bound in (("min", low), ("max", high)) if bound is None)
        checked.key_problem(path, f"needs {missing}", "write {min: 1, max: 10k}, or sharded: true")
    elif high < low:
        checked.problem((*path, "max"), "is below min", "raise it, or lower min")
    elif high == low and float in (type(low), type(high)):
        checked.problem((*path, "max"), "equals min", "write {literal: …} for a fixed value")


def _check_normal(checked: CheckedScenario, path: KeyPath, settings: NormalGenerator) -> None:
    if settings.min is not None and settings.max is not None and settings.max <= settings.min:
        checked.problem((*path, "max"), "is not above min", "raise it, or lower min")
    elif settings.whole and not settings.has_whole_number():
        checked.key_problem((*path, "whole"), "there is no whole number between min and max", "widen them")
    elif settings.parameter().kept_fraction < NORMAL_KEPT_MIN:
        what = "draws less than one value in a hundred between min and max, and would draw again forever"
        checked.key_problem(path, what, "move mean between them, or change stddev")
    elif settings.whole and abs(settings.mean) + 40 * settings.stddev > WHOLE_NORMAL_MAX:
        checked.problem((*path, "whole"), "numbers as large as these do not fit 64 bits", "lower mean and stddev")


def _check_pool_generator(
    checked: CheckedScenario, path: KeyPath, generator: PoolGenerator, pools: frozenset[str] | None
) -> None:
    if pools is not None and generator.pool not in pools:
        known = f"pools are {', '.join(sorted(pools))}" if pools else "there are none"
        checked.problem((*path, "pool"), "is not a pool under values", known)


def _check_previous(checked: CheckedScenario, path: KeyPath, index: int, before: int | None) -> None:
    if before is None:
        checked.problem(path, "is only possible inside a transaction", "list the statements under transaction:")
    elif index >= before:
        parameters = "no parameter comes" if before == 0 else f"only parameters 0 to {before - 1} come"
        checked.problem(path, f"{parameters} before it in the transaction", "name an earlier parameter, counted from 0")


def _check_of(checked: CheckedScenario, path: KeyPath, of: Generator, around: GeneratorContext) -> None:
    follows = isinstance(of, LatestGenerator) and of.follows is not None
    if follows or isinstance(of, (PreviousGenerator, RememberedGenerator)):
        what = "belongs to one statement, and a remembered value is shared by several"
        checked.key_problem((*path, name_of(of)), what, "draw it from another generator")
    else:
        check_generator(checked, path, of, around)


def _check_follows(checked: CheckedScenario, path: KeyPath, latest: LatestGenerator, around: GeneratorContext) -> None:
    if latest.sharded:
        what = "does not go with sharded: new keys do not lie in this worker's part of the old ones"
        checked.key_problem(path, what, "remove one of them")
    if around.followed is None or latest.follows is None:
        return
    sequence = around.followed.get(latest.follows)
    if latest.follows not in around.followed:
        hint = f"statements are {', '.join(around.written[:10])}"
        checked.problem(path, "is not a statement of the workload", hint)
    elif sequence is None:
        checked.problem(path, "is a statement that inserts no new keys", "name one with a sequence and a weight")
    elif sequence.sharded:
        what = "is a statement with a sharded sequence, whose keys below the newest belong to other workers"
        checked.problem(path, what, "give that sequence a start instead of sharded")
