"""Short forms of what tests do with statements."""

from __future__ import annotations

from typing import Any


class Sql:
    """Short forms of what every test does with one session."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.cursor = connection.cursor()

    def __call__(self, statement: str, *binds: Any) -> list[tuple[Any, ...]]:
        self.cursor.execute(statement, binds) if binds else self.cursor.execute(statement)
        rows: list[tuple[Any, ...]] = self.cursor.fetchall()
        return rows

    def value(self, statement: str, *binds: Any) -> Any:
        ((value,),) = self(statement, *binds)
        return value

    def count(self, statement: str, *binds: Any) -> int:
        """How many rows a change has changed."""
        self(statement, *binds)
        return int(self.cursor.rowcount)

    def dicts(self, statement: str, *binds: Any) -> list[dict[str, Any]]:
        rows = self(statement, *binds)
        names = [column[0] for column in self.cursor.description]
        return [dict(zip(names, row, strict=True)) for row in rows]

    def names(self, statement: str) -> list[str]:
        self(statement)
        return [column[0] for column in self.cursor.description]

    def many(self, statement: str, rows: list[tuple[Any, ...]]) -> int:
        self.cursor.executemany(statement, rows)
        return int(self.cursor.rowcount)


def read(cursor: Any) -> list[Any]:
    """The values of T in the order of their numbers."""
    return [value for (value,) in cursor.execute("SELECT V FROM T ORDER BY N").fetchall()]


def one(cursor: Any, query: str, *binds: Any) -> Any:
    """The only value of a query."""
    rows = cursor.execute(query, binds).fetchall() if binds else cursor.execute(query).fetchall()
    assert [len(row) for row in rows] == [1]
    return rows[0][0]
