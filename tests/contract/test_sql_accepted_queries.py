"""Queries and changes that users write: the embedded server runs them, with Snowflake's results."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from snowflake.connector.errors import ProgrammingError

from tests.cases import in_one_test
from tests.contract.sql import Sql

pytestmark = pytest.mark.any_driver


# --- changes ---------------------------------------------------------------------------------------------------------


def test_merge_updates_deletes_and_inserts_by_its_clauses(numbers: Sql) -> None:
    numbers("CREATE TABLE S AS SELECT * FROM VALUES (1, 'uno'), (2, NULL), (11, 'once') AS S(I, WORD)")

    counted = numbers.count(
        "MERGE INTO N USING S ON N.I = S.I"
        " WHEN MATCHED AND S.WORD IS NULL THEN DELETE"
        " WHEN MATCHED THEN UPDATE SET WORD = S.WORD, N.G = 'new'"
        " WHEN NOT MATCHED THEN INSERT (I, WORD) VALUES (S.I, S.WORD)"
    )

    assert counted == 3
    assert numbers("SELECT I, WORD, G FROM N WHERE I IN (1, 2, 11) ORDER BY I") == [
        (1, "uno", "new"),
        (11, "once", None),
    ]


def test_an_update_counts_the_rows_that_several_source_rows_met(numbers: Sql) -> None:
    counts = numbers(
        "UPDATE N SET G = S.W FROM (SELECT 1 AS K, 'x' AS W UNION ALL SELECT 1, 'x' UNION ALL"
        " SELECT 2, 'y') AS S WHERE N.I = S.K"
    )

    assert counts == [(2, 1)]


def test_merge_refuses_two_source_rows_for_one_target_row(numbers: Sql) -> None:
    with pytest.raises(ProgrammingError) as caught:
        numbers(
            "MERGE INTO N USING (SELECT 1 AS I, 'a' AS W UNION ALL SELECT 1, 'b') AS S ON N.I = S.I"
            " WHEN MATCHED THEN UPDATE SET WORD = S.W"
        )

    assert (caught.value.errno, caught.value.sqlstate) == (100090, "42P18")
    assert "Duplicate row detected during DML action" in str(caught.value)
    assert numbers.value("SELECT WORD FROM N WHERE I = 1") == "one"


def test_update_and_delete_can_read_other_tables(numbers: Sql) -> None:
    numbers("CREATE TABLE S AS SELECT * FROM VALUES (1, 'uno'), (3, 'tres') AS S(K, W)")

    updated = numbers.count("UPDATE N SET WORD = S.W, G = UPPER(N.G) FROM S WHERE N.I = S.K")
    deleted = numbers.count("DELETE FROM N USING S AS T WHERE N.I = T.K AND T.W = 'tres'")
    also = numbers.count("DELETE FROM N WHERE I IN (SELECT K + 1 FROM S)")

    assert (updated, deleted, also) == (2, 1, 2)
    assert numbers("SELECT I, WORD, G FROM N WHERE I <= 5 ORDER BY I") == [(1, "uno", "ODD"), (5, "five", "odd")]


def test_insert_takes_a_query_with_a_cte_and_leaves_columns_to_their_defaults(numbers: Sql) -> None:
    numbers("CREATE TABLE X (A NUMBER, B VARCHAR DEFAULT 'd')")

    count = numbers.count("INSERT INTO X (A) WITH C AS (SELECT I FROM N WHERE I > 8) SELECT I * 10 FROM C")

    assert count == 2
    assert numbers("SELECT * FROM X ORDER BY A") == [(90, "d"), (100, "d")]


# --- queries ---------------------------------------------------------------------------------------------------------


QUERIES = [
    ("a name with its schema", "SELECT PUBLIC.N.I FROM PUBLIC.N WHERE PUBLIC.N.I = 1", [(1,)]),
    ("an alias in WHERE", "SELECT I * 2 AS D FROM N WHERE D > 18", [(20,)]),
    (
        "an alias in GROUP BY and HAVING",
        "SELECT UPPER(G) AS U, COUNT(*) AS C FROM N GROUP BY U HAVING C = 5 ORDER BY U",
        [("EVEN", 5), ("ODD", 5)],
    ),
    ("an alias in the next column", "SELECT I AS A, A + 1 AS B, B * 2 FROM N WHERE I = 1", [(1, 2, 4)]),
    ("an alias in an ORDER BY expression", "SELECT I AS X FROM N WHERE I < 3 ORDER BY X * -1", [(2,), (1,)]),
    ("an alias over a subquery", "SELECT A AS X FROM (SELECT I AS A FROM N) WHERE X = 3", [(3,)]),
    ("GROUP BY ALL", "SELECT G, SUM(I) FROM N GROUP BY ALL ORDER BY G", [("even", 30), ("odd", 25)]),
    ("GROUP BY position", "SELECT G, MAX(WORD) FROM N GROUP BY 1 ORDER BY 2", [("odd", "three"), ("even", "two")]),
    ("LISTAGG", "SELECT LISTAGG(WORD, '-') WITHIN GROUP (ORDER BY I DESC) FROM N WHERE I < 4", [("three-two-one",)]),
    ("ARRAY_AGG", "SELECT ARRAY_AGG(I) WITHIN GROUP (ORDER BY I)::VARCHAR FROM N WHERE I < 4", [("[1,2,3]",)]),
    (
        "MEDIAN and percentiles",
        "SELECT MEDIAN(I), PERCENTILE_CONT(0.95) WITHIN GROUP (ORDER BY I) FROM N",
        [(Decimal("5.5"), Decimal("9.55"))],
    ),
    (
        "COUNT DISTINCT and COUNT_IF",
        "SELECT COUNT(DISTINCT G), COUNT_IF(I > 7), COUNT(NULLIF(G, 'odd')) FROM N",
        [(2, 3, 5)],
    ),
    ("averages", "SELECT AVG(I), AVG(I)::NUMBER(5, 1) FROM N", [(Decimal("5.500000"), Decimal("5.5"))]),
    ("an aggregate over nothing", "SELECT COUNT(*), SUM(I), MAX(WORD) FROM N WHERE I > 99", [(0, None, None)]),
    ("DISTINCT", "SELECT DISTINCT G FROM N ORDER BY G", [("even",), ("odd",)]),
    ("LIMIT and OFFSET", "SELECT I FROM N ORDER BY I LIMIT 2 OFFSET 3", [(4,), (5,)]),
    ("LIMIT NULL", "SELECT COUNT(*) FROM (SELECT I FROM N LIMIT NULL)", [(10,)]),
    ("an empty LIMIT", "SELECT COUNT(*) FROM (SELECT I FROM N LIMIT '')", [(10,)]),
    ("TOP", "SELECT TOP 2 I FROM N ORDER BY I DESC", [(10,), (9,)]),
    (
        "nulls first and last",
        "SELECT NULLIF(I, 2) AS X FROM N WHERE I < 4 ORDER BY X DESC NULLS LAST",
        [(3,), (1,), (None,)],
    ),
    ("nulls are the largest", "SELECT NULLIF(I, 2) AS X FROM N WHERE I < 4 ORDER BY X", [(1,), (3,), (None,)]),
    ("a scalar subquery", "SELECT I FROM N WHERE I = (SELECT MAX(I) FROM N)", [(10,)]),
    ("IN with a subquery", "SELECT COUNT(*) FROM N WHERE I IN (SELECT I + 1 FROM N)", [(9,)]),
    ("NOT IN with a subquery", "SELECT I FROM N WHERE I NOT IN (SELECT I + 1 FROM N)", [(1,)]),
    (
        "a correlated EXISTS",
        "SELECT I FROM N AS A WHERE NOT EXISTS (SELECT 1 FROM N AS B WHERE B.I = A.I + 1)",
        [(10,)],
    ),
    ("a pair in a list", "SELECT I FROM N WHERE (I, G) IN ((1, 'odd'), (2, 'odd'))", [(1,)]),
    (
        "a correlated scalar subquery",
        "SELECT I, (SELECT COUNT(*) FROM N AS B WHERE B.I < A.I) FROM N AS A WHERE I = 4",
        [(4, 3)],
    ),
    (
        "a join",
        "SELECT A.WORD, B.WORD FROM N AS A JOIN N AS B ON B.I = A.I * 5 ORDER BY A.I",
        [("one", "five"), ("two", "ten")],
    ),
    (
        "a left join",
        "SELECT A.I, B.I FROM N AS A LEFT JOIN N AS B ON B.I = A.I + 9 WHERE A.I < 3 ORDER BY 1",
        [(1, 10), (2, None)],
    ),
    ("a full join", "SELECT COUNT(*) FROM N AS A FULL OUTER JOIN N AS B ON B.I = A.I + 5", [(15,)]),
    ("a join USING", "SELECT COUNT(*), MAX(I) FROM N JOIN N AS B USING (I)", [(10, 10)]),
    ("a natural join", "SELECT COUNT(*) FROM N NATURAL JOIN (SELECT I FROM N WHERE I < 4) AS B", [(3,)]),
    ("a cross join", "SELECT COUNT(*) FROM N CROSS JOIN N AS B", [(100,)]),
    ("a comma join", "SELECT COUNT(*) FROM N, N AS B WHERE N.I = B.I", [(10,)]),
    (
        "a lateral subquery",
        "SELECT A.I, L.S FROM N AS A, LATERAL (SELECT SUM(I) AS S FROM N WHERE N.I <= A.I) AS L WHERE A.I = 4",
        [(4, 10)],
    ),
    (
        "a CTE",
        "WITH A AS (SELECT I FROM N WHERE I < 3), B(J) AS (SELECT I + 1 FROM A) SELECT J FROM B ORDER BY J",
        [(2,), (3,)],
    ),
    (
        "a recursive CTE",
        "WITH RECURSIVE R(X) AS (SELECT 1 UNION ALL SELECT X + 1 FROM R WHERE X < 5) SELECT SUM(X) FROM R",
        [(15,)],
    ),
    (
        "a recursive CTE without the word",
        "WITH R AS (SELECT 1 AS X UNION ALL SELECT X + 1 FROM R WHERE X < 5) SELECT SUM(X) FROM R",
        [(15,)],
    ),
    ("UNION", "SELECT G FROM N UNION SELECT 'x' ORDER BY 1", [("even",), ("odd",), ("x",)]),
    ("UNION ALL", "SELECT 1 AS A UNION ALL SELECT 1 UNION ALL SELECT 2 ORDER BY A", [(1,), (1,), (2,)]),
    ("EXCEPT and MINUS", "(SELECT I FROM N EXCEPT SELECT I FROM N WHERE I > 2) MINUS SELECT 1", [(2,)]),
    ("INTERSECT", "SELECT I FROM N WHERE I < 4 INTERSECT SELECT I FROM N WHERE I > 2", [(3,)]),
    (
        "parentheses around queries",
        "(SELECT 1 AS A) UNION ALL (SELECT I FROM N ORDER BY I DESC LIMIT 1) ORDER BY A",
        [(1,), (10,)],
    ),
    ("VALUES as a table", "SELECT COLUMN1 + COLUMN2 FROM VALUES (1, 2), (3, 4) ORDER BY 1", [(3,), (7,)]),
    ("VALUES with names", "SELECT T.B FROM (VALUES (1, 'x'), (2, 'y')) AS T(A, B) WHERE T.A = 2", [("y",)]),
    (
        "ROW_NUMBER",
        "SELECT I FROM (SELECT I, ROW_NUMBER() OVER (PARTITION BY G ORDER BY I) AS R FROM N) WHERE R = 2 ORDER BY I",
        [(3,), (4,)],
    ),
    (
        "RANK and DENSE_RANK",
        "SELECT I, RANK() OVER (ORDER BY G), DENSE_RANK() OVER (ORDER BY G) FROM N WHERE I IN (1, 2, 4) ORDER BY I",
        [(1, 3, 2), (2, 1, 1), (4, 1, 1)],
    ),
    (
        "LAG and LEAD",
        "SELECT I, LAG(I) OVER (ORDER BY I), LEAD(I, 2, -1) OVER (ORDER BY I) FROM N ORDER BY I DESC LIMIT 2",
        [(10, 9, -1), (9, 8, -1)],
    ),
    (
        "a running sum",
        "SELECT I, SUM(I) OVER (ORDER BY I ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) FROM N ORDER BY I LIMIT 3",
        [(1, 1), (2, 3), (3, 6)],
    ),
    (
        "a moving average",
        "SELECT AVG(I) OVER (ORDER BY I ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING)::NUMBER(5, 1)"
        " FROM N ORDER BY I LIMIT 2",
        [(Decimal("1.5"),), (Decimal("2.0"),)],
    ),
    (
        "FIRST_VALUE and NTILE",
        "SELECT FIRST_VALUE(WORD) OVER (PARTITION BY G ORDER BY I), NTILE(2) OVER (ORDER BY I)"
        " FROM N WHERE I > 8 ORDER BY I",
        [("nine", 1), ("ten", 2)],
    ),
    (
        "a share of the whole",
        "SELECT (I / SUM(I) OVER ())::NUMBER(5, 2) FROM N WHERE I IN (1, 3) ORDER BY I",
        [(Decimal("0.25"),), (Decimal("0.75"),)],
    ),
    (
        "QUALIFY",
        "SELECT I, G FROM N QUALIFY ROW_NUMBER() OVER (PARTITION BY G ORDER BY I DESC) = 1 ORDER BY I",
        [(9, "odd"), (10, "even")],
    ),
    (
        "QUALIFY with an alias",
        "SELECT I, RANK() OVER (ORDER BY I DESC) AS R FROM N QUALIFY R <= 2 ORDER BY R",
        [(10, 1), (9, 2)],
    ),
    ("QUALIFY with a star", "SELECT * FROM N QUALIFY ROW_NUMBER() OVER (ORDER BY I) = 1", [(1, "one", "odd")]),
    (
        "QUALIFY with a table's star",
        "SELECT A.* FROM N AS A QUALIFY ROW_NUMBER() OVER (ORDER BY I) = 1",
        [(1, "one", "odd")],
    ),
    (
        "QUALIFY with a star over a CTE",
        "WITH C AS (SELECT I, G FROM N) SELECT * FROM C QUALIFY ROW_NUMBER() OVER (ORDER BY I) = 2",
        [(2, "even")],
    ),
    (
        "QUALIFY after GROUP BY",
        "SELECT G, SUM(I) AS S FROM N GROUP BY G QUALIFY RANK() OVER (ORDER BY S DESC) = 1",
        [("even", 30)],
    ),
    (
        "QUALIFY, ORDER BY and LIMIT",
        "SELECT I FROM N QUALIFY ROW_NUMBER() OVER (ORDER BY I) > 3 ORDER BY I DESC LIMIT 2",
        [(10,), (9,)],
    ),
    ("a star beside a column", "SELECT N.*, I + 1 AS J FROM N WHERE I = 1", [(1, "one", "odd", 2)]),
    (
        "a CASE in an aggregate",
        "SELECT SUM(CASE WHEN G = 'odd' THEN I ELSE 0 END), SUM(IFF(G = 'odd', 0, I)) FROM N",
        [(25, 30)],
    ),
    (
        "positional ORDER BY of an expression",
        "SELECT I % 3, I FROM N WHERE I < 4 ORDER BY 1 DESC, 2",
        [(2, 2), (1, 1), (0, 3)],
    ),
]


@in_one_test(("query", "rows"), [row[1:] for row in QUERIES])
def test_a_query_has_snowflakes_answer(shared: Sql, query: str, rows: list[tuple[Any, ...]]) -> None:
    assert shared(query) == rows
