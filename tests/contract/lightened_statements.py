"""Prints as JSON what a cursor answers to many statements, for a comparison of the driver with and without changes.

python -m tests.contract.lightened_statements HOST:PORT DATABASE
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from loadgen.snowflake import driver

STATEMENTS: list[tuple[str, Any]] = [
    ("CREATE TABLE T (A INTEGER, B VARCHAR, C FLOAT)", None),
    ("INSERT INTO T VALUES (?, ?, ?)", (1, "it's ä日", 0.5)),
    ("INSERT INTO T VALUES (?, ?, ?)", [2, None, -1.25]),
    ("UPDATE T SET B = ? WHERE A > ?", ("x", 1)),
    ("UPDATE T SET B = ? WHERE A > ?", ("x", 100)),
    ("SELECT * FROM T WHERE A >= ? ORDER BY A", (1,)),
    ("SELECT * FROM T WHERE A > ?", (100,)),
    ("SELECT ?, ?, ?", (True, None, b"\x00\xff")),
    ("DELETE FROM T WHERE A = ?", (2,)),
    ("BEGIN", None),
    ("ROLLBACK", None),
    ("SELECT * FROM MISSING", None),
    ("SELECT FROM WHERE", None),
    ("SELECT 1 / 0", None),
    ("SELECT ?", ()),
    ("SELECT ?, ?", (1,)),
    ("SELECT ?", {"a": 1}),
    ("SELECT ?", 7),
    ("SELECT ?", ([1, 2],)),
    ("SELECT ?", (object(),)),
    ("", None),
]
ROWS: list[tuple[Any, ...]] = [(number, f"name {number}", number / 2) for number in range(10)]


def main(address: str, database: str) -> None:
    snowflake = driver.load()
    host, port = address.split(":")
    common = {"host": host, "port": int(port), "protocol": "http", "account": "embedded", "user": "tester"}
    given = {"password": "any", "paramstyle": "qmark", "database": database, "schema": "PUBLIC"}
    connection = snowflake.connect(**common, **given, session_parameters={"CLIENT_TELEMETRY_ENABLED": False})
    said = dict(answers(connection))
    print(json.dumps({"lightened": driver.telemetry_hooks_disabled(), "said": said}))


def answers(connection: Any) -> Iterator[tuple[str, Any]]:
    cursor, ids = connection.cursor(), []
    for number, (sql, binds) in enumerate(STATEMENTS):
        yield f"{number} {sql}", told(partial(executed, cursor, sql, binds))
        ids.append(cursor.sfqid)
        yield f"{number} again", told(cursor.fetchall)
    yield "query ids", len(set(filter(None, ids[:11])))
    for rows in (ROWS[:2], ROWS):
        yield f"array of {len(rows)}", told(partial(inserted, cursor, rows))
    yield "after arrays", told(lambda: executed(cursor, "SELECT COUNT(*), SUM(A) FROM T", None))
    yield "described", told(lambda: [column[0] for column in cursor.describe("SELECT A, B FROM T")])
    yield "open", (cursor.is_closed(), connection.is_closed())
    closed, left = connection.cursor(), connection.cursor()
    closed.close()
    yield "closed cursor", (closed.is_closed(), told(lambda: closed.execute("SELECT 1")))
    left.execute("SELECT 7")
    connection.close()
    yield "closed connection", (left.is_closed(), told(lambda: left.execute("SELECT 1")))
    yield "rows of a closed connection", told(left.fetchall)
    yield "another cursor", told(connection.cursor)


def inserted(cursor: Any, rows: list[tuple[Any, ...]]) -> Any:
    return cursor.executemany("INSERT INTO T VALUES (?, ?, ?)", rows).rowcount


def executed(cursor: Any, sql: str, binds: Any) -> Any:
    cursor.execute(sql, binds)
    names = [column[0] for column in cursor.description or []]
    return cursor.rowcount, names, repr(cursor.fetchmany(2)), cursor.sfqid is not None, cursor.sqlstate


def told(call: Callable[[], Any]) -> Any:
    """The answer, or what is known of the error."""
    try:
        return repr(call())
    except Exception as error:
        numbers = (getattr(error, "errno", None), getattr(error, "sqlstate", None))
        query_id = getattr(error, "sfqid", None) or ""
        return type(error).__name__, *numbers, bool(query_id), str(error).replace(query_id or "\0", "ID")


if __name__ == "__main__":
    main(*sys.argv[1:])
