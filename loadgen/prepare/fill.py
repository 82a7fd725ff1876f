"""The missing rows of one table, in chunks; each is one autocommitted statement.

No statement is repeated blindly: after a failure, what may still run is cancelled, and the rows are counted again. A
duplicate key means that another program prepares the same hybrid table; then the rows are counted again, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Self

from loadgen.clock import Clock
from loadgen.errors import RunFailed
from loadgen.model.workload import Choice, Literal, Parameter, Text
from loadgen.prepare import statements
from loadgen.prepare.session import PrepareSession
from loadgen.prepare.sql_values import alike, table_number
from loadgen.prepare.table_definition import TableDefinition, shown
from loadgen.prepare.table_survey import TableDamaged, beginning, count, rows_there
from loadgen.snowflake.failure import Failure, classify
from loadgen.units import NS_PER_S
from loadgen.workload.generator import DrawContext, Generator, Value
from loadgen.workload.generators import make_generator

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
            self._session.execute_once(statements.insert_generated(self._definition, first, count))
        else:
            self._session.insert_once(statements.insert_bound(self._definition), self._bound.take(first, count))


def _is_duplicate(failure: Failure) -> bool:
    return failure.is_duplicate_key
