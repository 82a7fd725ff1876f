"""The missing rows of one table, in chunks; each is one autocommitted statement.

No statement is repeated blindly: after a failure, what may still run is cancelled, and the rows are counted again. A
duplicate key means that another program prepares the same hybrid table; then the rows are counted again, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import chain
from typing import Any, Self

from loadgen.clock import Clock
from loadgen.errors import ConfigurationError, RunFailed, ScenarioInvalid
from loadgen.model.workload import Choice, Literal, Parameter, Text
from loadgen.prepare import table_definition
from loadgen.prepare.session import PrepareSession
from loadgen.prepare.table_definition import (
    TableDefinition,
    TableMarker,
    alike,
    define,
    differences,
    is_ours,
    shown,
    table_number,
)
from loadgen.scenario.model import Scenario, TableType
from loadgen.snowflake.failure import Failure, classify
from loadgen.snowflake.ident import Identifier, QualifiedName
from loadgen.units import NS_PER_S
from loadgen.values import dataclass
from loadgen.workload.generator import DrawContext, Generator, Value
from loadgen.workload.generators import make_generator

# --- What is there: which tables of a scenario are missing, foreign, different, incomplete or ready ------------------


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
    current = session.read(table_definition.WHERE_AM_I)[0]
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
        session.read(table_definition.read_one_row(name))
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
        rows = session.read(table_definition.read_comment(database), (schema.name, table.name))
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
    sql, binds = table_definition.count_rows(definition)
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


ROWS_FIRST = 1_000
ROWS_MIN = 100
ROWS_MAX = 200_000
TARGET_S = 1.5
GROWTH_MAX = 4.0  # from one statement to the next: the first ones say little


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSize:
    rows: int = ROWS_FIRST
    rows_max: int = ROWS_MAX

    @classmethod
    def up_to(cls, rows_max: int) -> Self:
        return cls(rows=min(ROWS_FIRST, rows_max), rows_max=min(ROWS_MAX, rows_max))

    def after(self, rows: int, seconds: float) -> Self:
        """The pace after a statement that created `rows` in `seconds`."""
        wanted = rows * TARGET_S / max(seconds, 0.001)
        bounded = min(max(wanted, self.rows / GROWTH_MAX), self.rows * GROWTH_MAX)
        return replace(self, rows=self._within(bounded))

    def slower(self) -> Self:
        """After a failure: a smaller statement is likelier to get through."""
        return replace(self, rows=self._within(self.rows / GROWTH_MAX))

    def _within(self, rows: float) -> int:
        return int(min(max(rows, min(ROWS_MIN, self.rows_max)), self.rows_max))


# Above this number of bound values the driver uploads a file to a stage instead (CLIENT_STAGE_ARRAY_BINDING_THRESHOLD).
BOUND_VALUES_MAX = 65_000
BOUND_BYTES_MAX = 1_000_000  # of one statement, about; Snowflake's own limit for a statement with its binds
_VALUE_BYTES = 24  # of a number, a moment or an identifier with its separators


class BoundRows:
    """The rows of one table, any of them at any time."""

    def __init__(self, definition: TableDefinition) -> None:
        # The upper half of the numbers: a workload's statements have the lower one, and share no bits with us.
        table = table_number(definition.name.parts[-1].name) | 1 << 31
        source = DrawContext(seed=definition.seed, statement=table)
        self._columns = [
            make_generator(_plain(column.generate), replace(source, position=definition.table.columns.index(column)))
            for column in definition.filled
        ]

    def take(self, first: int, count: int) -> list[tuple[Value, ...]]:
        """The rows from `first` on."""
        return list(zip(*(_values(column, first, count) for column in self._columns), strict=True))


def rows_per_statement_max(definition: TableDefinition) -> int:
    """How many rows may be bound to one statement."""
    row_bytes = sum(_bytes(column.generate) for column in definition.filled)
    return max(1, min(BOUND_VALUES_MAX // len(definition.filled), BOUND_BYTES_MAX // row_bytes))


def _values(column: Generator, first: int, count: int) -> list[Value]:
    """Values may lie in several chunks of the generator."""
    size = column.chunk_items
    starts = chain([first], range((first // size + 1) * size, first + count, size))
    found: list[Value] = []
    for start in starts:
        end = min(first + count, (start // size + 1) * size)
        found += column.items(start, end - start)
    return found


def _plain(parameter: Parameter | None) -> Parameter:
    """As the driver can bind it: it takes the type of a whole column from one of its values."""
    match parameter:
        case None:
            return Literal(value=None)
        case Choice():
            return replace(parameter, values=alike(parameter.values))
        case _:
            return parameter


def _bytes(parameter: Parameter | None) -> int:
    match parameter:
        case Text():
            return _VALUE_BYTES + (parameter.length if parameter.length_max is None else parameter.length_max)
        case Literal(value=str() as value):
            return _VALUE_BYTES + len(value)
        case Choice():
            return _VALUE_BYTES + max(len(str(value)) for value in parameter.values)
        case _:
            return _VALUE_BYTES


class TableFiller:
    """Fills one table. Owner: the thread that prepares."""

    def __init__(self, session: PrepareSession, definition: TableDefinition, there: int, clock: Clock) -> None:
        self.there = there  # rows that are known to be there
        self._session = session
        self._definition = definition
        self._clock = clock
        self._bound = BoundRows(definition) if definition.values is None else None
        self._pace = BatchSize.up_to(ROWS_MAX if self._bound is None else rows_per_statement_max(definition))
        self._unsure = False  # the last statement failed; it may have been executed all the same

    def fill(self, stop: threading.Event, progress: Callable[[int], None]) -> None:
        """Insert until all rows are there or `stop` is set. Tells `progress` how many are, after each statement."""
        progress(self.there)
        while self.there < self._definition.rows and not stop.is_set():
            try:
                self._session.retried(
                    self._insert_some, f"INSERT INTO {shown(self._definition.name)}", also=_is_duplicate
                )
            except RunFailed as error:
                if error.__cause__ is not None and _is_duplicate(classify(error.__cause__)):
                    raise self._key_taken() from error
                raise
            progress(self.there)

    def verify(self) -> None:
        """Count everything once more; RunFailed when it is not what was asked for."""
        tally = count(self._session, self._definition)
        self.there = beginning(self._definition, tally)
        if self._definition.identity is None and tally.rows > self._definition.rows:
            raise TableDamaged(
                f"table {shown(self._definition.name)} has {tally.rows:,} rows, {self._definition.rows:,} were asked "
                "for: another program inserted rows while it was filled, and no column distinguishes them",
                remedy="Let one prepare end before the next begins; --drop makes the table anew.",
            )
        if self.there < self._definition.rows:
            raise RunFailed(
                f"table {shown(self._definition.name)} has {self.there:,} rows of {self._definition.rows:,}: some were "
                "deleted while it was filled",
                remedy="Run the same command again when no other program changes the table.",
            )

    def _key_taken(self) -> RunFailed:
        """The error for taken keys while the number of rows stays the same, so no other program fills the table."""
        return RunFailed(
            f"table {shown(self._definition.name)} has {self.there:,} of {self._definition.rows:,} rows, and refuses "
            "the next ones because their keys are there: rows were deleted, or others inserted in their place",
            remedy="--drop makes the table anew.",
        )

    def _insert_some(self) -> None:
        if self._unsure:
            self._session.cancel_lost()
            self.there = rows_there(self._session, self._definition)
            self._unsure = False
        count = min(self._pace.rows, self._definition.rows - self.there)
        if count == 0:
            return
        started_ns = self._clock.monotonic_ns()
        try:
            self._insert(self.there, count)
        except Exception:
            self._unsure = True
            self._pace = self._pace.slower()
            raise
        self.there += count
        self._pace = self._pace.after(count, (self._clock.monotonic_ns() - started_ns) / NS_PER_S)

    def _insert(self, first: int, count: int) -> None:
        if self._bound is None:
            self._session.execute_once(table_definition.insert_generated(self._definition, first, count))
        else:
            self._session.insert_once(table_definition.insert_bound(self._definition), self._bound.take(first, count))


def _is_duplicate(failure: Failure) -> bool:
    return failure.is_duplicate_key
