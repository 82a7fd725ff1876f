"""The SQL of the control plane, read and parsed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from loadgen.control.setup.migrations import migrations
from loadgen.control.sql import load_queries, query_files

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


TABLES = {table.name: table for table in (read_table(statement.sql) for statement in MIGRATIONS)}
