"""Refused statements: what holds for all of them."""

from __future__ import annotations

import re
from typing import Any

from snowflake.connector.errors import Error

INTERNAL_ERROR = 603
# Wordings of the database behind the server. A word that the statement itself brought may be repeated to the user.
FOREIGN_WORDS = (
    r"\brelation\b", r"ERROR:", r"asyncpg", r"postgres", r"\bpg_", r"column .* does not exist", r"\btuple\b",
    r"(function|operator|type|schema|table|role) .* does not exist$", r"at or near", r"double precision", r"jsonb",
    r"character varying", r"\bsf\.", r"\bmeta\.", r"plpgsql", r"PL/", r"CONTEXT", r"HINT", r"\bbackend\b", r"\$\d",
    r"[A-Za-z]+Error\b", r"invalid literal", r"sqlglot", r"J_S_O_N", r"PK~", r"FK~", r'"~',
)  # fmt: skip
FURNITURE = (
    "CREATE OR REPLACE DATABASE REFUSED",
    "CREATE TABLE T (A NUMBER, B VARCHAR, V VARIANT)",
    "INSERT INTO T SELECT 1, 'x', PARSE_JSON('{\"k\": [1, 2]}')",
    "CREATE TABLE U (A NUMBER, C VARCHAR)",
    "CREATE HYBRID TABLE H (ID NUMBER PRIMARY KEY, N NUMBER)",
    "INSERT INTO H VALUES (1, 10)",
    "CREATE HYBRID TABLE RUN_STATUS (RUN_ID VARCHAR(36) PRIMARY KEY, NEXT_SEQUENCE_ID NUMBER, STATUS VARCHAR,"
    " WORKER_TARGETS VARIANT, END_TIME TIMESTAMP_NTZ)",
    "CREATE HYBRID TABLE RUN_CONTROL_EVENTS (EVENT_ID VARCHAR(36) PRIMARY KEY, RUN_ID VARCHAR(36), EVENT_DATA VARIANT)",
    "CREATE TABLE WORKER_METRICS_SNAPSHOTS (SNAPSHOT_ID VARCHAR, CUSTOM_METRICS VARIANT)",
    'CREATE TABLE TEST_LOGS (LOG_ID VARCHAR, DETAILS VARIANT, "TIMESTAMP" TIMESTAMP_NTZ)',
)
INTACT = "SELECT (SELECT COUNT(*) FROM T WHERE A = 1 AND B = 'x'), (SELECT COUNT(*) FROM T), (SELECT SUM(N) FROM H)"


class Refusals:
    """One connection for the whole file: each refusal has to leave it, and the tables, as they were."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.furnish()

    def furnish(self) -> None:
        cursor = self.connection.cursor()
        for statement in FURNITURE:
            cursor.execute(statement)

    def run(self, statement: str, *binds: Any) -> list[tuple[Any, ...]]:
        cursor = self.connection.cursor()
        cursor.execute(statement, binds) if binds else cursor.execute(statement)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows

    def names(self, query: str) -> list[str]:
        """The names of a query's columns."""
        cursor = self.connection.cursor()
        return [column[0] for column in cursor.execute(query).description]

    def check(self) -> None:
        """The session goes on, and nothing has happened to the tables."""
        assert self.run(INTACT) == [(1, 1, 10)], "a refused statement has changed something"

    def refusal(self, statement: str, *binds: Any) -> Error:
        """The error of a refused statement, after checking what holds for all of them."""
        try:
            answer = self.run(statement, *binds)
        except Error as error:
            check_wording(error, statement)
            self.check()
            return error
        self.furnish()  # it did something; the next test shall find what it expects
        raise AssertionError(f"accepted, with the answer {str(answer)[:200]}")


def message(error: Error) -> str:
    """The server's text alone: the driver puts ids around it."""
    return re.sub(r"\(request_id=[^)]*\)|[0-9a-f]{8}-[0-9a-f-]{27}", "", str(error)).strip()


def check_wording(error: Error, statement: str) -> None:
    text = message(error)
    assert error.errno, text
    assert error.errno > 100 or error.errno in (2, 8), f"the driver could not read the answer: {text}"
    assert error.errno != INTERNAL_ERROR, text
    assert re.fullmatch(r"[0-9A-Z]{5}", error.sqlstate or ""), text
    for pattern in FOREIGN_WORDS:
        found = re.search(pattern, text)
        assert found is None or found.group().lower() in statement.lower(), f"{found.group()!r} in: {text}"
