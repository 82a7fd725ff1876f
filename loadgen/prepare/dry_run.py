"""What a preparation would send, without a connection. Nothing is known then of what is already there."""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.prepare import statements
from loadgen.prepare.fill import ROWS_FIRST, ROWS_MAX, rows_per_statement_max
from loadgen.prepare.table_definition import TableDefinition, shown
from loadgen.prepare.table_survey import tables_of
from loadgen.scenario.model import Scenario
from loadgen.snowflake.ident import Identifier


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStatement:
    """One SQL text, and what there is to say about it."""

    note: str
    sql: str


def dry_run(scenario: Scenario, *, drop: bool) -> list[PlannedStatement]:
    """In the order in which they would be sent to a server where nothing is there yet."""
    target = scenario.target
    outer = [None if part is None else Identifier.parse(part) for part in (target.database, target.schema)]
    planned: list[PlannedStatement] = []
    tables = tables_of(scenario, *outer)
    if drop:
        planned += [
            PlannedStatement(note=f"drop {shown(name)} if loadgen has made it", sql=statements.drop_table(name))
            for name, definition in tables
            if definition is not None
        ]
    for name, definition in tables:
        if definition is None:
            planned.append(PlannedStatement(note=f"{shown(name)} must be there", sql=statements.read_one_row(name)))
            continue
        planned.append(
            PlannedStatement(note=f"make {shown(name)} unless it is there", sql=statements.create_table(definition))
        )
        if definition.rows:
            planned += [_rows(definition), _count(definition)]
    for number, sql in enumerate(scenario.prepare.statements):
        planned.append(PlannedStatement(note=f"prepare.statements[{number}], each time", sql=sql))
    return planned


def _rows(definition: TableDefinition) -> PlannedStatement:
    made_here = definition.values is None
    most = min(ROWS_MAX, rows_per_statement_max(definition) if made_here else ROWS_MAX)
    count = min(ROWS_FIRST, most, definition.rows)
    fewest = max(1, -(-definition.rows // most))
    where = "made here and bound" if made_here else "made by the server"
    number = "1 statement" if definition.rows <= count else f"statements of up to {most:,}, {fewest:,} or more"
    note = f"{definition.rows:,} rows, {where}, in {number}, each of a second or two; the first has {count:,}"
    if made_here:
        return PlannedStatement(note=note, sql=statements.insert_bound(definition))
    return PlannedStatement(note=note, sql=statements.insert_generated(definition, 0, count))


def _count(definition: TableDefinition) -> PlannedStatement:
    sql, binds = statements.count_rows(definition)
    values = f" with {' and '.join(map(str, binds))}" if binds else ""
    return PlannedStatement(note=f"before and after: how many rows are there{values}", sql=sql)
