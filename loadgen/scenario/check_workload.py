"""What must fit together in `workload`, and between it and thresholds, pools and sharding."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
from collections.abc import Iterator, Sequence

from loadgen.model.capture import CaptureManifest
from loadgen.model.threshold import ThresholdMetric
from loadgen.model.workload import CYCLE_MAX, SqlShape, StatementKind, shape_of, workload_refusal
from loadgen.scenario.check_data import GeneratorContext, check_generator
from loadgen.scenario.document import KeyPath
from loadgen.scenario.file import ScenarioFile, StatementSection
from loadgen.scenario.generators import Generator, PoolGenerator, RememberedGenerator, SequenceGenerator, is_sharded
from loadgen.scenario.keys import values_of
from loadgen.scenario.model import LoadMode, stage_name
from loadgen.scenario.replay import replay_statements
from loadgen.scenario.settings import UserSessionSettings
from loadgen.scenario.types import InvalidValue, Label
from loadgen.scenario.validation import CheckedDocument

_STATEMENTS: KeyPath = ("workload", "statements")
STATEMENTS_MAX = 500
PARAMETERS_MAX = 1_000  # of one statement
Text = tuple[KeyPath, str, list[Generator]]  # where its mapping is, the SQL, its parameters


def check_workload(checked: CheckedDocument, file: ScenarioFile, capture: CaptureManifest | None) -> None:
    statements = file.workload.statements
    if file.load.mode is LoadMode.REPLAY:
        if statements:
            what = "belongs to other modes: a replay sends the statements of its capture"
            checked.problem(_STATEMENTS, what, "remove it", at_key=True)
        elif capture is not None:
            _check_thresholds(checked, file, [one.name for one in replay_statements(capture, file.load.writes)])
        return
    whole = checked.fine(_STATEMENTS)
    if not statements and whole:
        checked.problem(_STATEMENTS, "there is nothing to send", "add at least one statement under workload.statements")
    if len(statements) > STATEMENTS_MAX:
        checked.problem(_STATEMENTS, f"has more than {STATEMENTS_MAX} statements", at_key=True)
        return
    weights = [statement.weight for statement in statements]
    if statements and whole and not any(weights):
        checked.problem(_STATEMENTS, "all weights are 0, so nothing would be sent", "give one a weight", at_key=True)
    elif whole and any(weights) and sum(weights) // math.gcd(*weights) > CYCLE_MAX:
        what = f"the weights make a cycle of more than {CYCLE_MAX:,} statements"
        checked.problem(_STATEMENTS, what, "use smaller weights, or weights with a common factor", at_key=True)
    _check_names(checked, statements)
    around = _surroundings(checked, file)
    for number, statement in enumerate(statements):
        _check_statement(checked, (*_STATEMENTS, number), statement, around)
    _check_pools_are_used(checked, file)
    _check_sharding_is_used(checked, file)
    names = [checked.written((*_STATEMENTS, number, "name")) for number in range(len(statements))]
    _check_thresholds(checked, file, names)


def _surroundings(checked: CheckedDocument, file: ScenarioFile) -> GeneratorContext:
    count = len(file.workload.statements)
    followed = {statement.name: _sequence_of(statement) for statement in file.workload.statements}
    return GeneratorContext(
        pools=frozenset(file.values) if checked.fine(("values",)) else None,
        followed=followed if checked.fine(_STATEMENTS) else None,
        sharding=file.sharding.enabled if checked.fine(("sharding", "enabled")) else None,
        written=tuple(checked.written((*_STATEMENTS, number, "name")) for number in range(count)),
        previous=None,
    )


def _sequence_of(statement: StatementSection) -> SequenceGenerator | None:
    """What makes the new keys of a statement; None when it makes none, or is never sent."""
    sequences = (generator for generator in _generators(statement) if isinstance(generator, SequenceGenerator))
    return next(sequences, None) if statement.weight else None


def _generators(statement: StatementSection) -> Iterator[Generator]:
    yield from statement.params
    for query in statement.transaction or []:
        yield from query.params


def _all_generators(file: ScenarioFile) -> Iterator[Generator]:
    """Also those that remembered values are drawn from."""
    for statement in file.workload.statements:
        for generator in _generators(statement):
            yield generator
            if isinstance(generator, RememberedGenerator) and generator.of is not None:
                yield generator.of


def _check_names(checked: CheckedDocument, statements: Sequence[StatementSection]) -> None:
    seen: set[str] = set()
    for number, statement in enumerate(statements):
        path: KeyPath = (*_STATEMENTS, number, "name")
        if statement.name in seen and checked.fine(path):
            checked.problem(path, "is the name of another statement too", "names tell them apart in results")
        seen.add(statement.name)


def _check_statement(
    checked: CheckedDocument, path: KeyPath, statement: StatementSection, around: GeneratorContext
) -> None:
    if statement.weight == 0 and checked.fine((*path, "weight")):
        checked.warn((*path, "weight"), "is 0, so this statement is never sent")
    sql_path, transaction_path = (*path, "sql"), (*path, "transaction")
    has_sql, has_transaction = checked.given(sql_path), statement.transaction is not None
    if not checked.fine(sql_path, transaction_path) and not (statement.sql or statement.transaction):
        return
    if has_sql and has_transaction:
        checked.problem(transaction_path, "a statement has sql or transaction, not both", "remove one", at_key=True)
    elif not has_sql and not has_transaction:
        checked.problem(sql_path, "is missing", "add sql: SELECT …, or transaction: with several")
    if has_transaction:
        if not statement.transaction and checked.fine(transaction_path):
            checked.problem(transaction_path, "is empty", "list at least one statement", at_key=True)
        for key in ("params", "expect"):
            if checked.given((*path, key)):
                checked.problem((*path, key), "does not belong to a transaction", _INNER[key], at_key=True)
    shapes = [_check_text(checked, text) for text in _texts(path, statement)]
    _check_parameters(checked, path, statement, around)
    _check_kind(checked, path, statement, [shape for shape in shapes if shape is not None])


_INNER = {"params": "give each of its statements its own params", "expect": "remove it"}


def _texts(path: KeyPath, statement: StatementSection) -> Iterator[Text]:
    if statement.sql is not None:
        yield path, statement.sql, list(statement.params)
    for number, query in enumerate(statement.transaction or []):
        yield (*path, "transaction", number), query.sql, list(query.params)


def _check_text(checked: CheckedDocument, text: Text) -> SqlShape | None:
    """Check one SQL text; None when its shape is not known."""
    path, sql, parameters = text
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
        checked.problem((*path, "params"), f"has more than {PARAMETERS_MAX:,} parameters", at_key=True)
    elif shape.binds != len(parameters):
        marks = "1 ? is" if shape.binds == 1 else f"{shape.binds} ? are"
        given = "1 parameter is" if len(parameters) == 1 else f"{len(parameters)} parameters are"
        place = "params" if checked.given((*path, "params")) else "sql"
        hint = "write one generator under params for each ? outside of texts and comments"
        checked.problem((*path, place), f"{marks} in the SQL, and {given} given", hint, at_key=True)
    return shape


def _check_parameters(
    checked: CheckedDocument, path: KeyPath, statement: StatementSection, around: GeneratorContext
) -> None:
    for number, generator in enumerate(statement.params):
        check_generator(checked, (*path, "params", number), generator, around)
    before = 0
    for query_number, query in enumerate(statement.transaction or []):
        for number, generator in enumerate(query.params):
            inside = dataclasses.replace(around, previous=before)
            check_generator(checked, (*path, "transaction", query_number, "params", number), generator, inside)
            before += 1


def _check_kind(checked: CheckedDocument, path: KeyPath, statement: StatementSection, shapes: list[SqlShape]) -> None:
    writing = [shape.verb for shape in shapes if not shape.reads and shape.verb != "CALL"]
    calls = [shape for shape in shapes if shape.verb == "CALL"]
    if not checked.fine((*path, "kind")):
        return
    if statement.kind is StatementKind.READ and writing:
        checked.problem((*path, "kind"), f"is read, but {writing[0]} writes", "write kind: write")
    elif statement.kind is None and calls and not writing:
        checked.problem((*path, "kind"), "is missing: CALL may read or write", "add kind: read or kind: write")


def _check_pools_are_used(checked: CheckedDocument, file: ScenarioFile) -> None:
    if not checked.fine(_STATEMENTS, ("values",)):
        return
    used = {generator.pool for generator in _all_generators(file) if isinstance(generator, PoolGenerator)}
    for name in file.values:
        if name not in used:
            checked.warn(("values", name), "no parameter takes values from this pool")


def _check_sharding_is_used(checked: CheckedDocument, file: ScenarioFile) -> None:
    if not file.sharding.enabled or not checked.fine(_STATEMENTS, ("sharding", "enabled")):
        return
    if not any(map(is_sharded, _all_generators(file))):
        hint = "write sharded: true in a generator, use {shard: {}}, or set enabled: false"
        checked.problem(("sharding", "enabled"), "sharding is enabled, and no parameter uses it", hint)


def _check_thresholds(checked: CheckedDocument, file: ScenarioFile, written: Sequence[str]) -> None:
    """`written`: the names of statements as the file has them, to be shown."""
    names = [statement.name for statement in file.workload.statements] or written
    never_sent = {statement.name for statement in file.workload.statements if statement.weight == 0}
    stages = [stage.name or stage_name(number) for number, stage in enumerate(file.load.stages, 1)]
    for number, threshold in enumerate(file.thresholds):
        path: KeyPath = ("thresholds", number)
        check = threshold.check
        place: KeyPath = (*path, "check") if checked.given((*path, "check")) else path
        if check.statement is not None and check.statement in stages and checked.fine(("load", "stages")):
            if check.statement in names:
                checked.problem(place, "is the name of a statement and of a stage", "give one of them another name")
            elif threshold.window_s is not None:
                what = "a stage is judged as a whole"
                checked.problem((*path, "window"), what, "leave it out", at_key=True)
        elif check.statement is not None and check.statement not in names and checked.fine(_STATEMENTS):
            near = difflib.get_close_matches(check.statement, [*written, *stages], n=1)
            known = f"statements are {', '.join(written[:10])}" + (
                f"; stages are {', '.join(stages)}" if stages else ""
            )
            hint = f"did you mean {near[0]}?" if near else known
            kinds = "a statement or stage" if stages else "a statement"
            checked.problem(place, f"is about {kinds} that does not exist", hint)
        elif check.statement in never_sent and checked.fine(_STATEMENTS):
            checked.problem(place, "is about a statement that is never sent", "give it a weight, or remove the check")
        if check.metric is ThresholdMetric.LONGEST_STALL:
            if check.statement is not None and check.statement in names:
                checked.problem(place, "a stall is one of all statements", "leave the statement out")
            elif threshold.window_s is not None:
                checked.problem(
                    (*path, "window"), "a stall is one of the whole measurement", "leave it out", at_key=True
                )
        if (
            check.metric is ThresholdMetric.LAG_P99
            and file.load.mode not in (LoadMode.RATE, LoadMode.REPLAY)
            and checked.fine(("load", "mode"))
        ):
            checked.problem(place, "lag exists in modes rate and replay only", "use p99, or write load.mode: rate")


# --- user sessions -----------------------------------------------------------------------------------------------

METADATA_MAX = 1_000  # characters as JSON; a QUERY_TAG has at most 2,000, and holds our own keys too
_SESSION_COUNT: KeyPath = ("sessions", "count")


def check_sessions(checked: CheckedDocument, file: ScenarioFile) -> None:
    if checked.fine(_SESSION_COUNT):
        _check_count(checked, file)
        _check_marks(checked, file)
    _check_metadata(checked, file.sessions)
    if checked.fine(_STATEMENTS):
        _check_remembered(checked, file)


def _check_count(checked: CheckedDocument, file: ScenarioFile) -> None:
    sessions, unused = file.sessions, UserSessionSettings()
    if not sessions.count:
        for key, declared, value in values_of(sessions):
            if value != getattr(unused, declared.attribute) and checked.fine(("sessions", key)):
                what = "has no effect: there are no sessions"
                checked.problem(("sessions", key), what, "add count: …, or remove it", at_key=True)
        return
    if sessions.count > sessions.max and checked.fine(("sessions", "max")):
        what = f"{sessions.count:,} sessions are over the quota: max is {sessions.max:,}"
        checked.problem(_SESSION_COUNT, what, "lower count, or raise max")
    connections = file.load.ceiling
    if checked.fine(("load",)) and sessions.count < connections:
        what = f"{sessions.count:,} users are too few for {connections:,} connections: each has one at least"
        checked.problem(_SESSION_COUNT, what, "raise it, or have fewer connections under load")


def _check_marks(checked: CheckedDocument, file: ScenarioFile) -> None:
    if not checked.fine(_STATEMENTS):
        return
    marked = [number for number, statement in enumerate(file.workload.statements) if statement.session]
    if not file.sessions.count:
        for number in marked:
            path: KeyPath = (*_STATEMENTS, number, "session")
            checked.problem(path, "needs users, and there are none", "write sessions: {count: 100}")
    elif not any(file.workload.statements[number].weight for number in marked):
        hint = "mark statements that are sent with session: true, or remove sessions"
        checked.problem(_SESSION_COUNT, "no statement is executed in a session", hint)


def _check_metadata(checked: CheckedDocument, sessions: UserSessionSettings) -> None:
    path: KeyPath = ("sessions", "metadata")
    for key in sessions.metadata:
        try:
            Label().parse(key)
        except InvalidValue as wrong:
            checked.problem((*path, key), f"as a key {wrong.what}", wrong.hint, at_key=True)
    written = len(json.dumps(dict(sessions.metadata), separators=(",", ":")))
    if written > METADATA_MAX:
        what = f"has {written:,} characters as JSON, and QUERY_TAG has room for {METADATA_MAX:,}"
        checked.problem(path, what, "shorten it", at_key=True)


def _check_remembered(checked: CheckedDocument, file: ScenarioFile) -> None:
    """Each name is drawn from one place, and used in sessions only."""
    uses: list[tuple[KeyPath, RememberedGenerator, bool]] = []
    for number, statement in enumerate(file.workload.statements):
        for path, generator in _placed_generators((*_STATEMENTS, number), statement):
            if isinstance(generator, RememberedGenerator):
                uses.append((path, generator, statement.session))
    drawn: set[str] = set()
    for path, generator, _ in uses:
        if generator.of is not None and generator.remembered in drawn:
            what = "has a generator in another place already"
            checked.problem((*path, "of"), what, "write of: once, and {remembered: name} elsewhere", at_key=True)
        elif generator.of is not None:
            drawn.add(generator.remembered)
    for path, generator, in_session in uses:
        place: KeyPath = (*path, "remembered")
        if not in_session:
            checked.problem(place, "only a session can remember", "add session: true to the statement")
        if generator.remembered not in drawn:
            checked.problem(place, "has no generator", "add of: {uniform: {min: 1, max: 10k}}")


def _placed_generators(path: KeyPath, statement: StatementSection) -> Iterator[tuple[KeyPath, Generator]]:
    for number, generator in enumerate(statement.params):
        yield (*path, "params", number), generator
    for query_number, query in enumerate(statement.transaction or []):
        for number, generator in enumerate(query.params):
            yield (*path, "transaction", query_number, "params", number), generator
