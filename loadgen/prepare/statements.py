"""Every SQL text that a preparation sends. Names are always quoted identifiers; numbers come from loadgen."""

from __future__ import annotations

from loadgen.prepare.table_definition import ROW, TableDefinition, literal
from loadgen.snowflake.ident import LENGTH_MAX, Identifier, QualifiedName

WHERE_AM_I = "SELECT CURRENT_DATABASE(), CURRENT_SCHEMA()"


def read_comment(database: Identifier) -> str:
    """Takes schema and name as binds. No row: no such table, or none that the role may see."""
    return f"SELECT COMMENT FROM {database.sql}.INFORMATION_SCHEMA.TABLES WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?"


def read_one_row(name: QualifiedName) -> str:
    return f"SELECT 1 FROM {name.sql} LIMIT 1"


def create_table(definition: TableDefinition) -> str:
    """With its indexes inside: those made later are built in the background, and not there when a run begins."""
    table = definition.table
    key = [Identifier.parse(column.name).sql for column in table.columns if column.primary_key]
    parts = [
        f"{Identifier.parse(column.name).sql} {column.type}{' NOT NULL' if column.primary_key else ''}"
        for column in table.columns
    ]
    if key:
        parts.append(f"PRIMARY KEY ({', '.join(key)})")
    for number, index in enumerate(table.indexes, 1):
        columns = ", ".join(Identifier.parse(column).sql for column in index)
        parts.append(f"INDEX {_index_name(definition.name, number).sql} ({columns})")
    kind = "HYBRID TABLE" if definition.is_hybrid else "TABLE"
    body = ",\n  ".join(parts)
    return (
        f"CREATE {kind} IF NOT EXISTS {definition.name.sql} (\n  {body}\n) COMMENT = {literal(definition.marker.text)}"
    )


def _index_name(table: QualifiedName, number: int) -> Identifier:
    ending = f"_IDX{number}"
    return Identifier(table.parts[-1].name[: LENGTH_MAX - len(ending)] + ending)


def drop_table(name: QualifiedName) -> str:
    return f"DROP TABLE IF EXISTS {name.sql}"


def insert_generated(definition: TableDefinition, first: int, count: int) -> str:
    """Rows that the server makes. SEQ8 alone may leave gaps; numbering its rows closes them."""
    values = ",\n  ".join(definition.values or ())
    number = f"ROW_NUMBER() OVER (ORDER BY SEQ8()) - 1 + {first} AS {ROW}"
    return (
        f"INSERT INTO {definition.name.sql} ({_columns(definition)})\nSELECT\n  {values}\n"
        f"FROM (SELECT {number} FROM TABLE(GENERATOR(ROWCOUNT => {count})))"
    )


def insert_bound(definition: TableDefinition) -> str:
    """Rows that are made here, one array of binds per column."""
    binds = ", ".join("?" for _ in definition.filled)
    return f"INSERT INTO {definition.name.sql} ({_columns(definition)}) VALUES ({binds})"


def _columns(definition: TableDefinition) -> str:
    return ", ".join(Identifier.parse(column.name).sql for column in definition.filled)


def count_rows(definition: TableDefinition) -> tuple[str, tuple[int, ...]]:
    """How many of the prepared rows are there: number, different ones, smallest and largest of a sequence.

    What a constraint enforces is not counted a second time.
    """
    identity = definition.identity
    if identity is None:
        return f"SELECT COUNT(*), COUNT(*), NULL, NULL FROM {definition.name.sql}", ()
    column = identity.column.sql
    different = "COUNT(*)" if definition.identity_enforced else f"COUNT(DISTINCT {column})"
    bounds = identity.bounds(definition.rows)
    if bounds is None:
        return f"SELECT COUNT(*), {different}, NULL, NULL FROM {definition.name.sql}", ()
    return (
        f"SELECT COUNT(*), {different}, MIN({column}), MAX({column}) FROM {definition.name.sql}"
        f" WHERE {column} BETWEEN ? AND ?"
    ), bounds
