"""The missing rows of one table, in chunks; each is one autocommitted statement.

Nothing is ever executed blindly a second time: after any failure what may still run is cancelled, and the rows are
counted again. A duplicate key means that somebody else prepares the same hybrid table; counting again is the answer to
that, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from loadgen.clock import Clock
from loadgen.errors import RunFailed
from loadgen.prepare import statements
from loadgen.prepare.pace import ROWS_MAX, BatchSize
from loadgen.prepare.rows import BoundRows, rows_per_statement_max
from loadgen.prepare.session import PrepareSession
from loadgen.prepare.table_definition import TableDefinition, shown
from loadgen.prepare.table_survey import TableDamaged, beginning, count, rows_there
from loadgen.snowflake.failure import Failure, classify
from loadgen.units import NS_PER_S


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
                "for: somebody else inserted while it was filled, and no column tells his rows from ours",
                remedy="Let one prepare end before the next begins; --drop makes the table anew.",
            )
        if self.there < self._definition.rows:
            raise RunFailed(
                f"table {shown(self._definition.name)} has {self.there:,} rows of {self._definition.rows:,}: some were "
                "deleted while it was filled",
                remedy="Run the same command again when nobody else changes the table.",
            )

    def _key_taken(self) -> RunFailed:
        """Nobody else is filling it: the number of rows stays the same."""
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
    return failure.duplicate_key
