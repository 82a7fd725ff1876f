"""The SQL of the control plane, read and parsed."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import sqlglot

from loadgen.control.session import NamedQuery, load_queries, query_files
from loadgen.control.setup.installer import migrations

QUERIES = [
    query.limited(1) if query.takes_limit else query
    for table in query_files()
    for query in load_queries(table).values()
]
MIGRATIONS = [statement for migration in migrations() for statement in migration.statements]
# An administrator's deletions: over every table, of all old runs at once, and sent one after the other by one module.
PRUNING = "prune."


@dataclass(frozen=True, slots=True)
class TableText:
    name: str
    hybrid: bool
    columns: dict[str, str]  # name: type and constraints
    key: tuple[str, ...]
    indexed: frozenset[str]


def read_table(sql: str) -> TableText:
    head, _, body = sql.partition("(\n")
    columns, key, indexed = {}, (), set()
    for line in body.rstrip(")").strip().splitlines():
        entry = line.strip().rstrip(",")
        listed = re.fullmatch(r"(PRIMARY KEY|UNIQUE|INDEX \w+) \(([\w, ]+)\)", entry)
        if listed:
            names = tuple(listed[2].split(", "))
            indexed |= set(names)
            key = names if listed[1] == "PRIMARY KEY" else key
        else:
            name, _, kind = entry.partition(" ")
            columns[name.strip('"')] = " ".join(kind.split())
    return TableText(head.split()[-1], "HYBRID" in head, columns, key, frozenset(indexed))


def all_tables() -> dict[str, TableText]:
    """The tables as all migrations together leave them."""
    found: dict[str, TableText] = {}
    for statement in MIGRATIONS:
        if re.match(r"CREATE (HYBRID )?TABLE ", statement.sql):
            table = read_table(statement.sql)
            found[table.name] = table
        elif added := re.fullmatch(r"ALTER TABLE (\w+) ADD COLUMN IF NOT EXISTS (\w+) (.+)", statement.sql):
            found[added[1]] = replace(found[added[1]], columns=found[added[1]].columns | {added[2]: added[3]})
        elif index := re.fullmatch(r"CREATE INDEX IF NOT EXISTS \w+ ON (\w+) \(([\w, ]+)\)", statement.sql):
            indexed = found[index[1]].indexed | set(index[2].split(", "))
            found[index[1]] = replace(found[index[1]], indexed=indexed)
        else:
            assert re.match(r"UPDATE|INSERT", statement.sql), statement.sql
    return found


TABLES = all_tables()


@cache
def parsed(query: NamedQuery) -> Any:
    """The statement as sqlglot reads it; it does not know hybrid tables, nor indexes inside of CREATE."""
    text = query.sql.replace("CREATE HYBRID TABLE", "CREATE TABLE")
    text = re.sub(r",\s*INDEX \w+ \([\w, ]+\)", "", text)
    statements = sqlglot.parse(text, read="snowflake")
    assert len(statements) == 1
    assert statements[0] is not None
    return statements[0]
