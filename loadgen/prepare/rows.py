"""Rows made here, for tables with a generator that has no SQL form. The n-th row is the n-th value of each column."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from loadgen.model.workload import Choice, Literal, Parameter, Text
from loadgen.prepare.sql_values import alike, table_number
from loadgen.prepare.table_definition import TableDefinition
from loadgen.workload.generator import DrawContext, Generator, Value
from loadgen.workload.generators import make_generator

# Above so many bound values the driver uploads a file to a stage instead (CLIENT_STAGE_ARRAY_BINDING_THRESHOLD).
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
