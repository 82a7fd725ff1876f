"""Statements that a fuzz run found (tests.security.fuzz_sql): each is refused by name, none is an internal error."""

from __future__ import annotations

import pytest

from tests.cases import in_one_test
from tests.contract.refused_builders import Refusals, message

pytestmark = pytest.mark.any_driver


@in_one_test(
    ("text", "errno"),
    [
        ("SELECT 1::VECTOR(FLOAT, 3)", 2),
        ("SELECT REGR_R2(1, 2) WITHIN GROUP ()", 1003),
        ("SELECT ABS(V:k[0.5], 1) FROM T", 939),
        ("SELECT ('day', '[1]') AS X", 1003),
        ("SELECT IFF(TRUE, (1, 2), (3, 4))", 2016),
        ("SELECT * FROM VALUES ((1, 2))", 2016),
        (f"SELECT OBJECT_DELETE({{}}{', 1' * 150})", 1005),
        (f"SELECT COUNT(DISTINCT A{', A' * 1_700}) FROM T", 1005),
        (f"CREATE TABLE WIDE ({', '.join(f'C{number} NUMBER' for number in range(1_700))})", 1005),
        ("SELECT TO_NUMERIC('1', CURRENT_SCHEMAS())", 2),
        ("SELECT 1,, 2", 1003),
        ("SELECT , 1", 1003),
        ("SELECT ABS(, 1)", 1003),
        ("SELECT ABS(1,)", 1003),
        ("SELECT 1 WHERE 1 IN (1,)", 1003),
        ("INSERT INTO U VALUES (1,, 'x')", 1003),
        ("SELECT A FROM T GROUP BY , A", 1003),
        ("SELECT T.A FROM T JOIN U ON", 1003),
        ("SELECT * FROM (SELECT T.A FROM T JOIN U ON)", 1003),
        ("SELECT T.A FROM T JOIN U ON WHERE T.A = 1", 1003),
        ("SELECT T.A FROM T JOIN U USING ()", 1003),
        ("SELECT ROW_NUMBER() OVER (PARTITION BY) FROM T", 1003),
        ("SELECT V ? 'k' FROM T", 1003),
        ("SELECT COUNT(DISTINCT) FROM T", 1003),
        ("SELECT BIT_OR_AGG(DISTINCT ()) FROM T", 1003),
        ("SELECT :²", 2049),
        ("SELECT SYSTEM$ABORT_SESSION('²')", 2003),
        ("SELECT * FROM TABLE(INFORMATION_SCHEMA.QUERY_HISTORY(RESULT_LIMIT => 'abc'))", 1008),
        ("WITH RECURSIVE R AS (SELECT 1 AS X UNION ALL SELECT MAX(X) FROM R WHERE X < 3) SELECT X FROM R", 2),
        ("CREATE TABLE X (A NUMBER(²))", 1003),
        (f"SHOW TABLES LIMIT {'9' * 5_000}", 1003),
        ("CREATE TABLE X AS", 1003),
        ("CREATE VIEW X AS", 1003),
    ],
)
def test_what_a_fuzz_run_found_is_refused(refusals: Refusals, text: str, errno: int) -> None:
    error = refusals.refusal(text)

    assert error.errno == errno, message(error)


def test_the_lines_of_a_log_are_a_number(refusals: Refusals) -> None:
    refusals.run("EXECUTE JOB SERVICE IN COMPUTE POOL P NAME = FUZZED ASYNC = TRUE FROM SPECIFICATION $$spec: {}$$")

    error = refusals.refusal("SELECT SYSTEM$GET_SERVICE_LOGS('FUZZED', '0', 'main', 'x')")

    assert error.errno == 1008, message(error)


def test_an_array_has_more_elements_than_postgresql_has_arguments(refusals: Refusals) -> None:
    literal = f"[1{', 2' * 200}]"

    assert refusals.run(f"SELECT ARRAY_SIZE({literal}), {literal}[0], {literal}[200]") == [(201, "1", "2")]
