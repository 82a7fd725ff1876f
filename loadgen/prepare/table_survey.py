"""What is there: which tables of a scenario are missing, foreign, different, incomplete or ready."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from loadgen.errors import ConfigurationError, RunFailed, ScenarioInvalid
from loadgen.prepare import statements
from loadgen.prepare.session import PrepareSession
from loadgen.prepare.table_definition import TableDefinition, TableMarker, define, differences, is_ours, shown
from loadgen.scenario.model import Scenario, TableType
from loadgen.snowflake.ident import Identifier, QualifiedName


class TableState(StrEnum):
    MISSING = "missing"
    FOREIGN = "foreign"  # there, without our marker
    DIFFERENT = "different"  # ours, made from another definition
    DAMAGED = "damaged"  # ours, with gaps or duplicates among its prepared rows
    INCOMPLETE = "incomplete"
    READY = "ready"


class TableDamaged(RunFailed):
    """A table of ours whose prepared rows are not a beginning without gaps and duplicates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """How one table stands."""

    name: QualifiedName
    definition: TableDefinition | None  # None: type existing
    state: TableState
    rows_there: int = 0  # of the prepared ones
    differences: tuple[str, ...] = ()
    damage: TableDamaged | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """The answer of count_rows for the prepared rows: number, distinct number, first and last row number."""

    rows: int
    different: int
    first: int | None
    last: int | None


def tables_of(
    scenario: Scenario, database: Identifier | None, schema: Identifier | None
) -> list[tuple[QualifiedName, TableDefinition | None]]:
    """Every table with its full name; the definition is None where the table must exist already."""
    outer = tuple(part for part in (database, schema) if part is not None)
    found: list[tuple[QualifiedName, TableDefinition | None]] = []
    for table in scenario.prepare.tables:
        name = QualifiedName.parse(table.name)
        name = name.within(*outer) if len(outer) == 2 or len(name.parts) == 2 else name
        found.append((name, None if table.type is TableType.EXISTING else define(table, scenario, name)))
    return found


def survey(session: PrepareSession, scenario: Scenario) -> list[TableStatus]:
    """Look at every table of the scenario; changes nothing."""
    if not scenario.prepare.tables:
        return []
    current = session.read(statements.WHERE_AM_I)[0]
    database, schema = (None if part is None else Identifier(str(part)) for part in current)
    found = []
    for name, definition in tables_of(scenario, database, schema):
        if len(name.parts) < 3:
            raise ConfigurationError(
                f"table {shown(name)} is in no database: neither the scenario nor the connection names one",
                remedy="Set target.database and target.schema.",
            )
        found.append(_existing(session, name) if definition is None else look(session, definition))
    return found


def _existing(session: PrepareSession, name: QualifiedName) -> TableStatus:
    """A table of type `existing` must be readable; nothing else is asked of it."""
    try:
        session.read(statements.read_one_row(name))
    except ScenarioInvalid as error:
        raise ConfigurationError(
            f"table {shown(name)} has type existing, but cannot be read: {error}",
            remedy="Create it, or let the role read it; prepare never makes or fills a table of type existing.",
        ) from error
    return TableStatus(name=name, definition=None, state=TableState.READY)


def look(session: PrepareSession, definition: TableDefinition) -> TableStatus:
    """How a table that we make stands."""
    database, schema, table = definition.name.parts
    try:
        rows = session.read(statements.read_comment(database), (schema.name, table.name))
    except ScenarioInvalid as error:
        raise ConfigurationError(
            f"database {database} cannot be used: {error}",
            remedy="Create it, and grant USAGE on it to the role; or set target.database.",
        ) from error
    if not rows:
        return TableStatus(name=definition.name, definition=definition, state=TableState.MISSING)
    comment = rows[0][0]
    if not is_ours(comment):
        return TableStatus(name=definition.name, definition=definition, state=TableState.FOREIGN)
    made = TableMarker.parse(str(comment))
    if made != definition.marker:
        differing = tuple(differences(made, definition.marker))
        return TableStatus(
            name=definition.name, definition=definition, state=TableState.DIFFERENT, differences=differing
        )
    try:
        there = rows_there(session, definition)
    except TableDamaged as damage:
        return TableStatus(name=definition.name, definition=definition, state=TableState.DAMAGED, damage=damage)
    state = TableState.READY if there >= definition.rows else TableState.INCOMPLETE
    return TableStatus(name=definition.name, definition=definition, state=state, rows_there=there)


def rows_there(session: PrepareSession, definition: TableDefinition) -> int:
    """How many rows, from row 0 on, are there. Raises TableDamaged."""
    return beginning(definition, count(session, definition)) if definition.rows else 0


def count(session: PrepareSession, definition: TableDefinition) -> RowCounts:
    """What of the prepared rows is there."""
    sql, binds = statements.count_rows(definition)
    return _tally(session.read(sql, binds))


def beginning(definition: TableDefinition, tally: RowCounts) -> int:
    """How many of the prepared rows are there, from row 0 on."""
    name = definition.name
    if tally.rows > tally.different:
        raise TableDamaged(
            f"table {shown(name)} has {tally.rows - tally.different:,} of its rows twice, by column "
            f"{definition.identity.column if definition.identity else ''}: two preparations ran at the same time, and "
            "a standard table takes any key",
            remedy="Let one prepare end before the next begins; --drop makes the table anew.",
        )
    start = definition.identity.start if definition.identity is not None else None
    if start is not None and tally.rows and (tally.first, tally.last) != (start, start + tally.rows - 1):
        raise TableDamaged(
            f"table {shown(name)} has {tally.rows:,} of its {definition.rows:,} prepared rows, with gaps among them: "
            "rows were deleted, or their keys changed",
            remedy="--drop makes the table anew.",
        )
    return min(tally.rows, definition.rows)


def _tally(rows: Sequence[tuple[Any, ...]]) -> RowCounts:
    try:
        ((count, different, first, last),) = rows
        numbers = [None if value is None else int(value) for value in (first, last)]
        return RowCounts(rows=int(count), different=int(different), first=numbers[0], last=numbers[1])
    except (ValueError, TypeError) as error:
        raise RunFailed(
            "the server's answer to a COUNT makes no sense", remedy="The embedded server's engine null has no tables."
        ) from error
