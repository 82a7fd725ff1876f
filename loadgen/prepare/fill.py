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
from loadgen.log import printable
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
from loadgen.workload.draw_context import DrawContext
from loadgen.workload.generators import Generator, Value, make_generator

# --- The state of the tables: missing, foreign, different, damaged, incomplete or ready ------------------------------


class TableState(StrEnum):
    MISSING = "missing"
    FOREIGN = "foreign"  # exists without the marker of loadgen
    DIFFERENT = "different"  # created by loadgen from another definition
    DAMAGED = "damaged"  # created by loadgen; prepared rows have gaps or duplicates
    INCOMPLETE = "incomplete"
    READY = "ready"


class TableDamaged(RunFailed):
    """The prepared rows of a table have gaps or duplicates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """The state of one table."""

    name: QualifiedName
    definition: TableDefinition | None  # None: a table of type existing
    state: TableState
    rows_there: int = 0  # prepared rows that exist
    differences: tuple[str, ...] = ()
    damage: TableDamaged | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """The result of count_rows: number of prepared rows, distinct ones, first and last row number."""

    rows: int
    different: int
    first: int | None
    last: int | None


def tables_of(
    scenario: Scenario, database: Identifier | None, schema: Identifier | None
) -> list[tuple[QualifiedName, TableDefinition | None]]:
    """Every table with its full name. The definition is None for a table of type existing."""
    outer = tuple(part for part in (database, schema) if part is not None)
    found: list[tuple[QualifiedName, TableDefinition | None]] = []
    for table in scenario.prepare.tables:
        name = QualifiedName.parse(table.name)
        name = name.within(*outer) if len(outer) == 2 or len(name.parts) == 2 else name
        found.append((name, None if table.type is TableType.EXISTING else define(table, scenario, name)))
    return found


def survey(session: PrepareSession, scenario: Scenario) -> list[TableStatus]:
    """The state of every table of the scenario."""
    if not scenario.prepare.tables:
        return []
    current = session.read(table_definition.WHERE_AM_I)[0]
    database, schema = (None if part is None else Identifier(str(part)) for part in current)
    found = []
    for name, definition in tables_of(scenario, database, schema):
        if len(name.parts) < 3:
            raise ConfigurationError(
                f"the database of table {shown(name)} is unknown: neither the scenario nor the connection sets one",
                remedy="Set target.database and target.schema.",
            )
        found.append(_existing(session, name) if definition is None else table_status(session, definition))
    _check_key_column(session, scenario, found)
    return found


def _check_key_column(session: PrepareSession, scenario: Scenario, found: Sequence[TableStatus]) -> None:
    """Check sharding.key_column against tables of type `existing`, whose columns a scenario does not declare. Nothing
    is known about a table whose columns this role does not see."""
    existing = [standing.name for standing in found if standing.definition is None]
    if scenario.workload.sharding is None or not existing:
        return
    wanted = Identifier.parse(scenario.workload.sharding.key_column).name
    columns = [Identifier.parse(one.name).name for table in scenario.prepare.tables for one in table.columns]
    for name in existing:
        database, schema, table = name.parts
        rows = session.read(table_definition.read_columns(database), (schema.name, table.name))
        if not rows:
            return
        columns += [str(row[0]) for row in rows]
    if wanted not in columns:
        raise ConfigurationError(
            f"no table of prepare has the column {printable(wanted, 100)}, which is sharding.key_column",
            remedy=f"Name one of their columns: {printable(', '.join(dict.fromkeys(columns)), 500)}.",
        )


def _existing(session: PrepareSession, name: QualifiedName) -> TableStatus:
    """Check that a table of type `existing` is readable."""
    try:
        session.read(table_definition.read_one_row(name))
    except ScenarioInvalid as error:
        raise ConfigurationError(
            f"table {shown(name)} has type existing, but cannot be read: {error}",
            remedy="Create it, or grant SELECT to the role; prepare never creates or fills a table of type existing.",
        ) from error
    return TableStatus(name=name, definition=None, state=TableState.READY)


def table_status(session: PrepareSession, definition: TableDefinition) -> TableStatus:
    """The state of a table that loadgen creates."""
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
    """The number of prepared rows, from row 0 on. Raises TableDamaged."""
    return beginning(definition, count(session, definition)) if definition.rows else 0


def count(session: PrepareSession, definition: TableDefinition) -> RowCounts:
    """Count the prepared rows."""
    sql, binds = table_definition.count_rows(definition)
    return _tally(session.read(sql, binds))


def beginning(definition: TableDefinition, tally: RowCounts) -> int:
    """The number of prepared rows, from row 0 on. Raises TableDamaged if they have gaps or duplicates."""
    name = definition.name
    if tally.rows > tally.different:
        raise TableDamaged(
            f"table {shown(name)} contains {tally.rows:,} rows, some with duplicate values in column "
            f"{definition.identity.column if definition.identity else ''}: two preparations ran at the same time, and "
            "a standard table does not enforce keys",
            remedy="Wait for one prepare to end before you start the next; --drop creates the table again.",
        )
    start = definition.identity.start if definition.identity is not None else None
    if start is not None and tally.rows and (tally.first, tally.last) != (start, start + tally.rows - 1):
        raise TableDamaged(
            f"table {shown(name)} has {tally.rows:,} of its {definition.rows:,} prepared rows, with gaps among them: "
            "rows were deleted, or their keys changed",
            remedy="--drop creates the table again.",
        )
    return min(tally.rows, definition.rows)


def _tally(rows: Sequence[tuple[Any, ...]]) -> RowCounts:
    try:
        ((count, different, first, last),) = rows
        numbers = [None if value is None else int(value) for value in (first, last)]
        return RowCounts(rows=int(count), different=int(different), first=numbers[0], last=numbers[1])
    except (ValueError, TypeError) as error:
        raise RunFailed(
            "the answer of the server to a COUNT is invalid",
            remedy="The null engine has no tables.",
        ) from error


ROWS_FIRST = 1_000
ROWS_MIN = 100
ROWS_MAX = 200_000
TARGET_S = 1.5
GROWTH_MAX = 4.0  # from one statement to the next: the times of the first ones are not representative


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
        """The pace after a failure: a smaller statement is more likely to succeed."""
        return replace(self, rows=self._within(self.rows / GROWTH_MAX))

    def _within(self, rows: float) -> int:
        return int(min(max(rows, min(ROWS_MIN, self.rows_max)), self.rows_max))


# With more bound values the driver uploads a file to a stage (CLIENT_STAGE_ARRAY_BINDING_THRESHOLD).
BOUND_VALUES_MAX = 65_000
BOUND_BYTES_MAX = 1_000_000  # per statement, approximately: the limit of Snowflake, including binds
_VALUE_BYTES = 24  # of a number, a time or an identifier with separators


class BoundRows:
    """Generates any rows of one table."""

    def __init__(self, definition: TableDefinition) -> None:
        # The upper half of the stream numbers: the statements of a workload use the lower half.
        table = table_number(definition.name.parts[-1].name) | 1 << 31
        source = DrawContext(seed=definition.seed, statement=table)
        self._columns = [
            make_generator(_plain(column.generate), replace(source, position=definition.table.columns.index(column)))
            for column in definition.filled
        ]

    def take(self, first: int, count: int) -> list[tuple[Value, ...]]:
        """`count` rows from row `first` on."""
        return list(zip(*(_values(column, first, count) for column in self._columns), strict=True))


def rows_per_statement_max(definition: TableDefinition) -> int:
    """The number of rows that can be bound to one statement."""
    row_bytes = sum(_bytes(column.generate) for column in definition.filled)
    return max(1, min(BOUND_VALUES_MAX // len(definition.filled), BOUND_BYTES_MAX // row_bytes))


def _values(column: Generator, first: int, count: int) -> list[Value]:
    """Values from several chunks of the generator."""
    size = column.chunk_items
    starts = chain([first], range((first // size + 1) * size, first + count, size))
    found: list[Value] = []
    for start in starts:
        end = min(first + count, (start // size + 1) * size)
        found += column.items(start, end - start)
    return found


def _plain(parameter: Parameter | None) -> Parameter:
    """A value that the driver can bind: it takes the type of a column from one of its values."""
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
    """Fills one table. Belongs to the thread that prepares."""

    def __init__(self, session: PrepareSession, definition: TableDefinition, there: int, clock: Clock) -> None:
        self.there = there  # rows that are known to exist
        self._session = session
        self._definition = definition
        self._clock = clock
        self._bound = BoundRows(definition) if definition.values is None else None
        self._pace = BatchSize.up_to(ROWS_MAX if self._bound is None else rows_per_statement_max(definition))
        self._unsure = False  # the last statement failed, but may have been executed

    def fill(self, stop: threading.Event, progress: Callable[[int], None]) -> None:
        """Insert until all rows exist or `stop` is set. Calls `progress` with their number after each statement."""
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
        """Count all rows again. Raises RunFailed if the number is not the planned one."""
        tally = count(self._session, self._definition)
        self.there = beginning(self._definition, tally)
        if self._definition.identity is None and tally.rows > self._definition.rows:
            raise TableDamaged(
                f"table {shown(self._definition.name)} has {tally.rows:,} rows instead of "
                f"{self._definition.rows:,}: another program inserted rows, and no unique column identifies them",
                remedy="Wait for one prepare to end before you start the next; --drop creates the table again.",
            )
        if self.there < self._definition.rows:
            raise RunFailed(
                f"table {shown(self._definition.name)} has {self.there:,} rows of {self._definition.rows:,}: some were "
                "deleted while it was filled",
                remedy="Repeat the command when no other program changes the table.",
            )

    def _key_taken(self) -> RunFailed:
        """The error for duplicate keys while the number of rows stays the same: no other program fills the table."""
        return RunFailed(
            f"table {shown(self._definition.name)} has {self.there:,} of {self._definition.rows:,} rows, and refuses "
            "the next ones because their keys are there: rows were deleted, or others inserted in their place",
            remedy="--drop creates the table again.",
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
