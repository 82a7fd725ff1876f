"""What must fit together in `sessions`, and between it, the statements marked for it, and what they remember."""

from __future__ import annotations

import json
from collections.abc import Iterator

from loadgen.scenario.check_load import ceiling
from loadgen.scenario.file import ScenarioFile, StatementSection
from loadgen.scenario.generators import RememberedGenerator
from loadgen.scenario.keys import ScenarioSection
from loadgen.scenario.problem import KeyPath
from loadgen.scenario.section import SessionsSection
from loadgen.scenario.types import InvalidValue, Label
from loadgen.scenario.validation import CheckedDocument

METADATA_MAX = 1_000  # characters as JSON; a QUERY_TAG has at most 2,000, and holds our own keys too
_COUNT: KeyPath = ("sessions", "count")
_STATEMENTS: KeyPath = ("workload", "statements")


def check_sessions(checked: CheckedDocument, file: ScenarioFile) -> None:
    if checked.fine(_COUNT):
        _check_count(checked, file)
        _check_marks(checked, file)
    _check_metadata(checked, file.sessions)
    if checked.fine(_STATEMENTS):
        _check_remembered(checked, file)


def _check_count(checked: CheckedDocument, file: ScenarioFile) -> None:
    sessions, unused = file.sessions, SessionsSection()
    if not sessions.count:
        for key in SessionsSection.declared_keys():
            if getattr(sessions, key) != getattr(unused, key) and checked.fine(("sessions", key)):
                what = "has no effect: there are no sessions"
                checked.problem(("sessions", key), what, "add count: …, or remove it", at_key=True)
        return
    if sessions.count > sessions.max and checked.fine(("sessions", "max")):
        what = f"{sessions.count:,} sessions are over the quota: max is {sessions.max:,}"
        checked.problem(_COUNT, what, "lower count, or raise max")
    connections = ceiling(file.load)
    if checked.fine(("load",)) and sessions.count < connections:
        what = f"{sessions.count:,} users are too few for {connections:,} connections: each has one at least"
        checked.problem(_COUNT, what, "raise it, or have fewer connections under load")


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
        checked.problem(_COUNT, "no statement is executed in a session", hint)


def _check_metadata(checked: CheckedDocument, sessions: SessionsSection) -> None:
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
        for path, generator in _generators((*_STATEMENTS, number), statement):
            if isinstance(generator, RememberedGenerator):
                uses.append((path, generator, statement.session))
    drawn: set[str] = set()
    for path, generator, _ in uses:
        if generator.of is not None and generator.remembered in drawn:
            what = "is drawn from something in another place already"
            checked.problem((*path, "of"), what, "say it once, and write {remembered: name} elsewhere", at_key=True)
        elif generator.of is not None:
            drawn.add(generator.remembered)
    for path, generator, in_session in uses:
        place: KeyPath = (*path, "remembered")
        if not in_session:
            checked.problem(place, "only a session can remember", "add session: true to the statement")
        if generator.remembered not in drawn:
            checked.problem(place, "is not said what it is drawn from", "add of: {uniform: {min: 1, max: 10k}}")


def _generators(path: KeyPath, statement: StatementSection) -> Iterator[tuple[KeyPath, ScenarioSection]]:
    for number, generator in enumerate(statement.params):
        yield (*path, "params", number), generator
    for query_number, query in enumerate(statement.transaction or []):
        for number, generator in enumerate(query.params):
            yield (*path, "transaction", query_number, "params", number), generator
