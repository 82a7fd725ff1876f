"""The SQL of the control plane: one file per table in schemas/queries, a named block per statement.

-- name: renew
-- Why it is written like this.
UPDATE …;
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

LIMIT_MAX = 10_000_000
_LIMIT = "{limit}"  # in the text of a statement: see NamedQuery.limited
_NAME = re.compile(r"^-- name: ([a-z_]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class NamedQuery:
    """One statement with its binds."""

    name: str  # table.verb
    sql: str
    binds: int

    @property
    def takes_limit(self) -> bool:
        return _LIMIT in self.sql

    def limited(self, rows: int) -> NamedQuery:
        """The statement for this many rows at most. Snowflake documents LIMIT with a constant, not with a bind."""
        if type(rows) is not int or not 0 <= rows <= LIMIT_MAX:
            raise ValueError(f"{rows!r} is no number of rows")
        if not self.takes_limit:
            raise ValueError(f"{self.name} has no {_LIMIT}")
        return replace(self, sql=self.sql.replace(_LIMIT, str(rows)))


@cache
def load_queries(table: str) -> Mapping[str, NamedQuery]:
    """All statements of a table's file, by name."""
    text = (files("schemas") / "queries" / f"{table}.sql").read_text("utf-8")
    names, blocks = _NAME.findall(text), _NAME.split(text)[2::2]
    return {name: _query(f"{table}.{name}", block) for name, block in zip(names, blocks, strict=True)}


def query_files() -> tuple[str, ...]:
    """Every table that has a file."""
    found = (path.name for path in (files("schemas") / "queries").iterdir())
    return tuple(sorted(name.removesuffix(".sql") for name in found if name.endswith(".sql")))


def _query(name: str, block: str) -> NamedQuery:
    sql = without_comments(block).strip().removesuffix(";").strip()
    return NamedQuery(name=name, sql=sql, binds=sql.count("?"))


def without_comments(text: str) -> str:
    """SQL without its comment lines: they are for readers of the file, and cost bytes in every request."""
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
