"""Statements that Snowflake refuses, the embedded server refuses, and the session goes on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest

from tests.cases import in_one_test
from tests.contract.refused_builders import Refusals, message

pytestmark = pytest.mark.any_driver


@dataclass(frozen=True)
class Refused:
    row: str
    statement: str
    errno: int
    sqlstate: str
    wording: str
    binds: tuple[Any, ...] = ()


VALUES_CLAUSE = r"Invalid expression \[PARSE_JSON\(.*\)\] in VALUES clause"
REJECTED = [
    Refused("a call of nothing", "CALL::", 2, "0A000", r"Unsupported feature 'CALL'"),
    Refused("a wait into the past", "SELECT SYSTEM$WAIT(-1)", 1008, "22023", r"invalid value \[-1\] for SYSTEM\$WAIT"),
    Refused("a wait without end", "SELECT SYSTEM$WAIT(1e300)", 1008, "22023", r"for SYSTEM\$WAIT"),
    Refused(
        "qualify without a window function",
        "SELECT A FROM T QUALIFY A = 1",
        2,
        "0A000",
        r"QUALIFY needs a window function",
    ),
    Refused(
        "1-update-returning",
        "UPDATE RUN_STATUS SET NEXT_SEQUENCE_ID = NEXT_SEQUENCE_ID + 1 WHERE RUN_ID = 'r'"
        " RETURNING NEXT_SEQUENCE_ID - 1",
        1003,
        "42000",
        r"syntax error line 1 at position \d+ unexpected 'RETURNING'",
    ),
    Refused(
        "1-insert-returning",
        "INSERT INTO RUN_STATUS (RUN_ID) VALUES ('r') RETURNING RUN_ID",
        1003,
        "42000",
        "unexpected '(RETURNING|RUN_ID)'",
    ),
    Refused(
        "1-delete-returning",
        "DELETE FROM RUN_STATUS RETURNING RUN_ID",
        1003,
        "42000",
        "unexpected '(RETURNING|RUN_ID)'",
    ),
    Refused(
        "1-merge-returning",
        "MERGE INTO RUN_STATUS AS T USING (SELECT 'r' AS RUN_ID) AS S ON T.RUN_ID = S.RUN_ID"
        " WHEN MATCHED THEN UPDATE SET STATUS = 'x' RETURNING T.RUN_ID",
        1003,
        "42000",
        "unexpected 'RETURNING'",
    ),
    Refused(
        "2-event-values",
        "INSERT INTO RUN_CONTROL_EVENTS (EVENT_ID, RUN_ID, EVENT_DATA) VALUES (?, ?, PARSE_JSON(?))",
        2014,
        "22000",
        VALUES_CLAUSE,
        ("e", "r", "{}"),
    ),
    Refused(
        "2-event-values-literal",
        "INSERT INTO RUN_CONTROL_EVENTS VALUES ('e', 'r', PARSE_JSON('{\"a\": 1}'))",
        2014,
        "22000",
        VALUES_CLAUSE,
    ),
    Refused(
        "3-metrics-values",
        "INSERT INTO WORKER_METRICS_SNAPSHOTS VALUES (?, PARSE_JSON(?))",
        2014,
        "22000",
        VALUES_CLAUSE,
        ("s", "{}"),
    ),
    Refused(
        "4-log-values",
        "INSERT INTO TEST_LOGS VALUES (?, PARSE_JSON(?), CURRENT_TIMESTAMP())",
        2014,
        "22000",
        VALUES_CLAUSE,
        ("l", "{}"),
    ),
    Refused(
        "5-object-insert-of-two",
        "UPDATE RUN_STATUS SET WORKER_TARGETS = OBJECT_INSERT(COALESCE(WORKER_TARGETS, OBJECT_CONSTRUCT()), ?)",
        938,
        "22023",
        r"not enough arguments for function \[OBJECT_INSERT\(.*expected 3, got 2",
        ("{}",),
    ),
    Refused(
        "6-execute-service",
        "CALL SYSTEM$EXECUTE_SERVICE('pool', 'spec')",
        2140,
        "42601",
        r"Unknown function SYSTEM\$EXECUTE_SERVICE",
    ),
    Refused(
        "6-execute-service-selected",
        "SELECT SYSTEM$EXECUTE_SERVICE('pool', 'spec')",
        2140,
        "42601",
        r"Unknown function SYSTEM\$EXECUTE_SERVICE",
    ),
    Refused(
        "7-named-bind",
        "SELECT * FROM RUN_STATUS WHERE RUN_ID = :run_id",
        2049,
        "42601",
        "(?i)Bind variable :run_id not set",
    ),
    Refused(
        "7-named-bind-in-update",
        "UPDATE RUN_STATUS SET STATUS = :status WHERE RUN_ID = :run_id",
        2049,
        "42601",
        "(?i)Bind variable :status not set",
    ),
    Refused(
        "7-named-bind-beside-binds",
        "UPDATE RUN_STATUS SET STATUS = ? WHERE RUN_ID = :run_id",
        2049,
        "42601",
        "(?i)Bind variable :run_id not set",
        ("x",),
    ),
    Refused("8-now", "UPDATE RUN_STATUS SET END_TIME = NOW()", 2140, "42601", "Unknown function NOW"),
    Refused(
        "21-create-or-alter-hybrid",
        "CREATE OR ALTER HYBRID TABLE RUN_STATUS (RUN_ID VARCHAR(36) PRIMARY KEY, X NUMBER)",
        1003,
        "42000",
        "CREATE OR ALTER|unexpected",
    ),
    Refused(
        "21-create-or-alter-of-a-hybrid-table",
        "CREATE OR ALTER TABLE H (ID NUMBER PRIMARY KEY, N NUMBER, X NUMBER)",
        2,
        "0A000",
        "CREATE OR ALTER",
    ),
]


@in_one_test("rejected", REJECTED)
def test_a_statement_of_the_specification_that_snowflake_rejects_is_rejected(
    refusals: Refusals, rejected: Refused
) -> None:
    error = refusals.refusal(rejected.statement, *rejected.binds)

    assert (error.errno, error.sqlstate) == (rejected.errno, rejected.sqlstate), message(error)
    assert re.search(rejected.wording, message(error))


@in_one_test(
    "value",
    [
        "OBJECT_CONSTRUCT('a', 1)", "ARRAY_CONSTRUCT(1)", "[1, 2]", "{'a': 1}", "TO_VARIANT(1)", "'1'::VARIANT",
        "(SELECT 1)", "MAX(1)", "COUNT(*)", "ROW_NUMBER() OVER (ORDER BY 1)", "TRY_PARSE_JSON('1')",
        "COALESCE(PARSE_JSON('1'), NULL)",
    ],
)  # fmt: skip
def test_a_values_clause_takes_no_semi_structured_value_subquery_aggregate_or_window(
    refusals: Refusals, value: str
) -> None:
    error = refusals.refusal(f"INSERT INTO WORKER_METRICS_SNAPSHOTS VALUES ('s', {value})")

    assert (error.errno, error.sqlstate) == (2014, "22000"), message(error)
    assert "in VALUES clause" in message(error)


@in_one_test(
    ("statement", "line", "position", "word"),
    [
        ("SELEKT 1", 1, 0, "SELEKT"),
        ("UPDATE T SET A = 1 RETURNING A", 1, 19, "RETURNING"),
        ("INSERT INTO T (A) VALUES (1) ON CONFLICT DO NOTHING", 1, 29, "ON"),
        ("SELECT A\nFROM T\nWHERE A = = 1", 3, 10, "="),
        ("CREATE TABLE X (A NUMBER) INHERITS (T)", 1, 26, "INHERITS"),
    ],
)
def test_a_syntax_error_points_at_the_word_it_means(
    refusals: Refusals, statement: str, line: int, position: int, word: str
) -> None:
    error = refusals.refusal(statement)

    assert (error.errno, error.sqlstate) == (1003, "42000")
    assert f"syntax error line {line} at position {position} unexpected '{word}'." in message(error)


def test_an_unknown_column_is_named_with_its_place(refusals: Refusals) -> None:
    error = refusals.refusal("SELECT A,\n  NO_SUCH FROM T")

    assert (error.errno, error.sqlstate) == (904, "42000")
    assert "error line 2 at position 2" in message(error)
    assert "invalid identifier 'NO_SUCH'" in message(error)


@in_one_test(
    "statement",
    ["SELECT * FROM NO_SUCH", "INSERT INTO NO_SUCH VALUES (1)", "UPDATE NO_SUCH SET A = 1", "DELETE FROM NO_SUCH",
     "SELECT * FROM NO_SUCH.T", "SELECT * FROM NO_SUCH.PUBLIC.T", "DROP TABLE NO_SUCH", "DESCRIBE TABLE NO_SUCH",
     "ALTER TABLE NO_SUCH ADD COLUMN A NUMBER", "TRUNCATE TABLE NO_SUCH"],
)  # fmt: skip
def test_an_object_that_is_not_there_is_2003(refusals: Refusals, statement: str) -> None:
    error = refusals.refusal(statement)

    sqlstate = "02000" if "NO_SUCH." in statement else "42S02"  # of databases and schemas, and of what is in them
    assert (error.errno, error.sqlstate) == (2003, sqlstate), message(error)
    assert re.search(r"'(\w+\.)*NO_SUCH(\.\w+)*' does not exist or not authorized", message(error))


@in_one_test("statement", ["USE DATABASE NO_SUCH", "USE SCHEMA NO_SUCH", "USE WAREHOUSE NO_SUCH"])
def test_using_what_is_not_there_is_2043(refusals: Refusals, statement: str) -> None:
    error = refusals.refusal(statement)

    assert (error.errno, error.sqlstate) == (2043, "02000")
    assert "Object does not exist, or operation cannot be performed." in message(error)
