"""Prints as JSON what statements answer that are executed again and again, for a comparison of the driver with and
without changes.

python -m tests.contract.repeated_statements HOST:PORT DATABASE
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import psutil

from loadgen.snowflake import driver
from loadgen.snowflake.connect import close, connect
from loadgen.worker.sessions import with_tag
from tests.contract.connection_builders import MAJOR, load_of, profile_of
from tests.contract.lightened_statements import told
from tests.embedded_server import EmbeddedServer
from tests.processes import PATIENCE_S, wait_until

FAULTS: list[dict[str, Any]] = [
    {"kind": "expire_session"},
    {"kind": "error", "errno": 390111, "sqlstate": "08001", "message": "lost"},
    {"kind": "error", "errno": 604, "sqlstate": "57014", "message": "ended"},
    {"kind": "http_status", "status": 503},
    {"kind": "reset"},
    {"kind": "truncate"},
]
TEXTS = 40  # more than are kept
CHUNKS, CHUNK = 3, 200
WAIT = "SELECT SYSTEM$WAIT(?)"


class Running(EmbeddedServer):
    """A server that another process has started."""

    def __init__(self, address: str) -> None:
        self.host, port = address.split(":")
        self.port = int(port)


class DriverHarness:
    def __init__(self, address: str, database: str) -> None:
        self.server, self.database = Running(address), database
        self.profile = profile_of(address, database=database, schema="PUBLIC")

    def connect(self, **limits: int) -> Any:
        settings = load_of(self.profile, tag=self.database)
        if not limits:
            return connect(self.profile, settings)
        if MAJOR < 5:
            return connect(self.profile, replace(settings, socket_timeout_s=limits["query_timeout"]))
        return connect(self.profile, replace(settings, arguments={**settings.arguments, **limits}))


def count_core_calls() -> Counter[str]:
    """From now on; driver 4 has no core."""
    calls: Counter[str] = Counter()
    if MAJOR >= 5:
        bridge: Any = importlib.import_module("snowflake.connector._internal.api_client.bridge")
        call = bridge.sf_core_python.call_proto

        def counted(api: str, method: str, message: bytes) -> Any:
            calls[method] += 1
            return call(api, method, message)

        bridge.sf_core_python = SimpleNamespace(call_proto=counted)
    return calls


def main(address: str, database: str) -> None:
    driver.load()
    calls = count_core_calls()
    harness = DriverHarness(address, database)
    said: dict[str, Any] = {}
    for scenario in (
        values,
        tags,
        many_texts,
        failures,
        definitions,
        two_cursors,
        transactions,
        arrays,
        limits,
        faults,
    ):
        connection = harness.connect()
        said |= {f"{scenario.__name__}: {name}": answer for name, answer in scenario(harness, connection)}
        close(connection)
    said |= {f"sessions: {name}": answer for name, answer in sessions(harness)}
    said["client limit"] = list(client_limit(harness))
    growth_kib = growth(harness)
    found = {"lightened": driver.telemetry_hooks_disabled(), "said": said, "calls": calls, "growth_kib": growth_kib}
    print(json.dumps(found).replace(database, "DATABASE"))


def rows(cursor: Any, sql: str, binds: Any = None) -> Any:
    cursor.execute(sql, binds)
    names = [tuple(column)[:2] for column in cursor.description or []]
    return cursor.rowcount, names, cursor.fetchall(), cursor.sqlstate


def values(harness: DriverHarness, connection: Any) -> Iterator[tuple[str, Any]]:
    cursor, ids = connection.cursor(), set()
    for number, given in enumerate([(1,), ("x",), (None,), [2.5], (), None, (1, 2), (3,), (b"\x01",), ([1, 2],), (4,)]):
        before = cursor.sfqid
        yield f"{number}", told(partial(rows, cursor, "SELECT ? AS V", given))
        ids |= {cursor.sfqid} - {before, None}
    yield "query ids", len(ids)
    yield "without values", [told(lambda: rows(cursor, "SELECT 7")) for _ in range(2)]
    yield "spaces", told(lambda: rows(cursor, " \n SELECT ? AS V\n", (5,)))


def tags(harness: DriverHarness, connection: Any) -> Iterator[tuple[str, Any]]:
    cursor = connection.cursor()
    ids = []
    for tag in ("A", "B", "A", "", "B", "A"):
        name = f"{harness.database} {tag}"
        (with_tag(cursor, name) if tag else cursor).execute("SELECT ? AS TAGGED", (1,))
        ids.append(cursor.sfqid)
    history = {line["query_id"]: line["query_tag"] for line in harness.server.history(harness.database)}
    yield "in history", [history.get(one) for one in ids]


def many_texts(harness: DriverHarness, connection: Any) -> Iterator[tuple[str, Any]]:
    cursor = connection.cursor()
    texts = [f"SELECT {number} + ?" for number in range(TEXTS)]
    for times in range(3):
        yield f"{times}", [rows(cursor, text, (times,))[2] for text in texts]


def failures(harness: DriverHarness, connection: Any) -> Iterator[tuple[str, Any]]:
    cursor = connection.cursor()
    for number, change in enumerate(
        ["", "CREATE TABLE F (A INTEGER)", "", "DROP TABLE F", "CREATE TABLE F (B VARCHAR)"]
    ):
        if change:
            cursor.execute(change)
        yield f"{number}", [told(lambda: rows(cursor, "SELECT * FROM F WHERE 1 = ?", (1,))) for _ in range(2)]
    yield "value of no type", [told(partial(rows, cursor, "SELECT ?", (one,))) for one in (1, object(), 2)]


def definitions(harness: DriverHarness, connection: Any) -> Iterator[tuple[str, Any]]:
    """What a text means may change between two executions."""
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE D (A INTEGER)")
    for change in ("INSERT INTO D VALUES (1)", "ALTER TABLE D ADD COLUMN B VARCHAR", "CREATE SCHEMA OTHER"):
        cursor.execute(change)
        yield change, told(lambda: rows(cursor, "SELECT * FROM D"))
    cursor.execute("CREATE TABLE OTHER.D (C VARCHAR)")
    cursor.execute("USE SCHEMA OTHER")
    yield "USE", told(lambda: rows(cursor, "SELECT * FROM D"))
    cursor.execute("ALTER SESSION SET TIMEZONE = 'Asia/Tokyo'")
    yield "TIMEZONE", told(lambda: rows(cursor, "SELECT '2026-01-01 00:00:00 +0000'::TIMESTAMP_LTZ"))
    cursor.execute("ALTER SESSION SET TIMEZONE = 'UTC'")
    yield "and back", told(lambda: rows(cursor, "SELECT '2026-01-01 00:00:00 +0000'::TIMESTAMP_LTZ"))


def two_cursors(harness: DriverHarness, connection: Any) -> Iterator[tuple[str, Any]]:
    one, other = connection.cursor(), connection.cursor()
    one.execute("SELECT ? AS V", (1,))
    other.execute("SELECT ? AS V", (2,))
    yield "rows", (one.fetchall(), other.fetchall(), one.sfqid != other.sfqid)
    one.execute("SELECT ? AS V", (3,))
    other.close()
    yield "after one was closed", (one.fetchall(), told(lambda: other.execute("SELECT ? AS V", (4,))))
    yield "errors handed on", told(lambda: with_handler(connection.cursor()))


def with_handler(cursor: Any) -> list[Any]:
    """What an error handler of the cursor is given, for a statement that fails."""
    seen: list[Any] = []

    def handler(connection: Any, cursor: Any, kind: type, value: dict[str, Any]) -> None:
        seen.append((connection is not None, cursor is not None, kind.__name__, value["errno"]))

    cursor.errorhandler = handler
    seen.append(told(lambda: cursor.execute("SELECT * FROM MISSING")))
    return seen


def transactions(harness: DriverHarness, connection: Any) -> Iterator[tuple[str, Any]]:
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE X (A INTEGER)")
    for number, end in enumerate(["COMMIT", "ROLLBACK", "COMMIT"]):
        for sql, binds in (("BEGIN", None), ("INSERT INTO X VALUES (?)", (number,)), (end, None)):
            cursor.execute(sql, binds)
        yield f"{number} {end}", rows(cursor, "SELECT * FROM X ORDER BY A")[2]
    yield "counts", [rows(cursor, "UPDATE X SET A = A WHERE A >= ?", (least,))[:1] for least in (0, 2, 5)]


def arrays(harness: DriverHarness, connection: Any) -> Iterator[tuple[str, Any]]:
    cursor, sql = connection.cursor(), "INSERT INTO Y VALUES (?, ?)"
    cursor.execute("CREATE TABLE Y (A INTEGER, B VARCHAR)")
    cursor.execute(sql, (1, "one"))
    yield "several", cursor.executemany(sql, [(2, "two"), (3, "three")]).rowcount
    cursor.execute(sql, (4, "four"))
    yield "described", told(lambda: [column[0] for column in cursor.describe("SELECT A, B FROM Y")])
    yield "rows", rows(cursor, "SELECT * FROM Y ORDER BY A")[2]


def limits(harness: DriverHarness, connection: Any) -> Iterator[tuple[str, Any]]:
    cursor, other = connection.cursor(), harness.connect()
    yield "before", told(lambda: rows(cursor, WAIT, (0,)))
    heard: list[Any] = []
    waiting = threading.Thread(target=lambda: heard.append(told(lambda: rows(cursor, WAIT, (240,)))))
    waiting.start()
    session = connection.session_id

    def cancelled() -> bool:
        other.cursor().execute("SELECT SYSTEM$CANCEL_ALL_QUERIES(?)", (session,))
        return not waiting.is_alive()

    wait_until(cancelled, "it is cancelled")
    waiting.join(PATIENCE_S)
    yield "cancelled", heard
    yield "after it", told(lambda: rows(cursor, WAIT, (0,)))
    cursor.execute("ALTER SESSION SET STATEMENT_TIMEOUT_IN_SECONDS = 1")
    yield "too long", told(lambda: rows(cursor, WAIT, (240,)))
    yield "and again", told(lambda: rows(cursor, WAIT, (0,)))
    close(other)


def faults(harness: DriverHarness, connection: Any) -> Iterator[tuple[str, Any]]:
    cursor = connection.cursor()
    for number, fault in enumerate(FAULTS):
        mark = f"FAULT_{number}_{harness.database}"
        sql = f"SELECT ? AS {mark}"
        cursor.execute(sql, (1,))
        harness.server.fault(match=mark, count=1, **fault)
        yield f"{fault}", [told(partial(rows, cursor, sql, (2,))) for _ in range(2)]


def sessions(harness: DriverHarness) -> Iterator[tuple[str, Any]]:
    """A session that ended on the server, its successor, and closing with everything open."""
    connection, other = harness.connect(), harness.connect()
    cursors = [connection.cursor() for _ in range(3)]
    for cursor in cursors:
        cursor.execute("SELECT ? AS V", (1,))
    other.cursor().execute("SELECT SYSTEM$ABORT_SESSION(?)", (connection.session_id,))
    yield "ended", [told(partial(rows, one, "SELECT ? AS V", (2,))) for one in cursors]
    close(connection)
    yield "closed", [told(partial(rows, one, "SELECT ? AS V", (2,))) for one in cursors]
    yield "the next one", told(lambda: rows(other.cursor(), "SELECT ? AS V", (3,)))
    close(other)
    close(other)
    yield "closed twice", other.is_closed()


def client_limit(harness: DriverHarness) -> Iterator[Any]:
    connection, mark = harness.connect(query_timeout=1), f"HANG_{harness.database}"
    cursor, sql = connection.cursor(), f"SELECT ? AS {mark}"
    cursor.execute(sql, (1,))
    harness.server.fault(match=mark, count=1, kind="hang")
    yield told(lambda: rows(cursor, sql, (2,)))
    harness.server.clear_faults()
    yield wait_until(lambda: works(cursor, sql), "it is answered again")
    close(connection)


def works(cursor: Any, sql: str) -> Any:
    try:
        return rows(cursor, sql, (3,))[2]
    except Exception:  # a second was not enough for it
        return None


def growth(harness: DriverHarness) -> float:
    """KiB of memory that the process gains with some hundred executions of a text, in the best of some attempts."""
    connection, process = harness.connect(), psutil.Process()
    cursor = connection.cursor()

    def execute() -> int:
        for number in range(CHUNK):
            cursor.execute("SELECT ? AS V", (number,))
            cursor.fetchall()
        gc.collect()
        return int(process.memory_info().rss)

    sizes = [execute() for _ in range(CHUNKS + 1)]
    close(connection)
    return min(after - before for before, after in pairwise(sizes)) / 1024


if __name__ == "__main__":
    main(*sys.argv[1:])
