"""Semi-structured values, FLATTEN and GENERATOR: the embedded server runs them, with Snowflake's results."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, time
from decimal import Decimal
from typing import Any

import pytest
from snowflake.connector.errors import ProgrammingError

from tests.contract.accepted_builders import (
    PRIMARY_KEY,
    an_id,
    ntz,
)
from tests.contract.sql import Sql
from tests.embedded_server import EmbeddedServer

pytestmark = pytest.mark.any_driver


# --- semi-structured values and many rows -----------------------------------------------------------------------------


@pytest.fixture
def logs(sql: Sql) -> Sql:
    sql(
        "CREATE TABLE TEST_LOGS (LOG_ID VARCHAR, RUN_ID VARCHAR, LEVEL VARCHAR, DETAILS VARIANT,"
        ' "TIMESTAMP" TIMESTAMP_NTZ)'
    )
    return sql


def test_one_row_with_a_variant_is_inserted_by_select(logs: Sql) -> None:
    statement = 'INSERT INTO TEST_LOGS (LOG_ID, LEVEL, DETAILS, "TIMESTAMP") SELECT ?, ?, PARSE_JSON(?), SYSDATE()'

    assert logs.count(statement, "l1", "INFO", '{"a": {"b": [10, 20]}}') == 1
    assert logs.count(statement, "l2", "INFO", None) == 1

    assert logs("SELECT DETAILS:a.b[1]::NUMBER, DETAILS IS NULL FROM TEST_LOGS ORDER BY LOG_ID") == [
        (20, False),
        (None, True),
    ]


def test_many_rows_with_a_variant_are_inserted_by_one_bind(logs: Sql) -> None:
    rows = [[f"l{n}", json.dumps({"n": n}) if n % 3 else None] for n in range(100)]

    count = logs.count(
        "INSERT INTO TEST_LOGS (LOG_ID, DETAILS) SELECT VALUE[0]::VARCHAR, PARSE_JSON(VALUE[1]::VARCHAR)"
        " FROM TABLE(FLATTEN(INPUT => PARSE_JSON(?)))",
        json.dumps(rows),
    )

    assert count == 100
    assert logs.value("SELECT SUM(DETAILS:n::NUMBER) FROM TEST_LOGS") == sum(n for n in range(100) if n % 3)
    assert logs.value("SELECT COUNT(*) FROM TEST_LOGS WHERE DETAILS IS NULL") == 34


def test_a_variant_is_set_and_changed_by_update(logs: Sql) -> None:
    logs("INSERT INTO TEST_LOGS (LOG_ID) VALUES ('l')")
    insert_key = (
        "UPDATE TEST_LOGS SET DETAILS = OBJECT_INSERT(COALESCE(DETAILS, OBJECT_CONSTRUCT()), ?, PARSE_JSON(?), TRUE)"
    )

    logs(insert_key, "w1", '{"target": 1}')
    logs(insert_key, "w2", "2")
    logs(insert_key, "w1", '{"target": 3}')
    merged = json.loads(logs.value("SELECT DETAILS FROM TEST_LOGS"))
    logs("UPDATE TEST_LOGS SET DETAILS = PARSE_JSON(?) WHERE LOG_ID = ?", "[1, 2]", "l")

    assert merged == {"w1": {"target": 3}, "w2": 2}
    assert logs.value("SELECT ARRAY_SIZE(DETAILS) FROM TEST_LOGS") == 2


def test_object_insert_of_an_existing_key_needs_the_update_flag(sql: Sql) -> None:
    with pytest.raises(ProgrammingError):
        sql("SELECT OBJECT_INSERT(OBJECT_CONSTRUCT('a', 1), 'a', 2)")

    assert json.loads(sql.value("SELECT OBJECT_INSERT(OBJECT_CONSTRUCT('a', 1), 'a', 2, TRUE)")) == {"a": 2}
    assert json.loads(sql.value("SELECT OBJECT_INSERT(OBJECT_CONSTRUCT('a', 1), 'b', NULL)")) == {"a": 1}


PATHS = [
    ("V:name::VARCHAR", "Ann"),
    ("V:name", '"Ann"'),
    ("V['name']::STRING", "Ann"),
    ("V:address.city::VARCHAR", "Bern"),
    ("V:address['zip code']::NUMBER", 3000),
    ('V:address."zip code"::NUMBER', 3000),
    ("V:tags[0]::VARCHAR", "a"),
    ("V:tags[9]", None),
    ("V:none.of.it", None),
    ("V:NAME", None),
    ("V:big::NUMBER(38, 0)", 12345678901234567890123456789),
    ("V:price::NUMBER(10, 2)", Decimal("1.50")),
    ("V:flag::BOOLEAN", True),
    ("V:at::TIMESTAMP_NTZ", ntz("2026-01-02 03:04:05")),
    ("ARRAY_SIZE(V:tags)", 2),
    ("TYPEOF(V:tags)", "ARRAY"),
    ("GET(V, 'name')::VARCHAR", "Ann"),
    ("GET_PATH(V, 'address.city')::VARCHAR", "Bern"),
    ("OBJECT_KEYS(V:address)::VARCHAR", '["city","zip code"]'),
    ("V:nothing", "null"),
    ("IS_NULL_VALUE(V:nothing)", True),
    ("V:nothing IS NULL", False),
    ("V:nothing::VARCHAR IS NULL", True),
    ("V:name || '!'", "Ann!"),
    ("UPPER(V:name)", "ANN"),
    ("V:tags[0] = 'a'", True),
    ("V:price + 1", 2.5),
    ("NVL(V:none::VARCHAR, 'x')", "x"),
]


@pytest.mark.parametrize(("expression", "value"), PATHS, ids=[path for path, _ in PATHS])
def test_a_path_reaches_into_a_variant(shared: Sql, expression: str, value: Any) -> None:
    got = shared.value(f"SELECT {expression} FROM DOCUMENT")

    assert got == value or (isinstance(value, float) and float(got) == value)


def test_executemany_binds_columns_of_every_type(sql: Sql) -> None:
    sql(
        "CREATE TABLE X (I NUMBER, D NUMBER(10, 2), F FLOAT, S VARCHAR, B BOOLEAN, DT DATE, TM"
        " TIME, TS TIMESTAMP_NTZ, BI BINARY)"
    )
    landing = ntz("1969-07-20 20:17:40.123456")
    rows: list[tuple[Any, ...]] = [
        (1, Decimal("1.25"), 0.5, "a'b", True, date(2026, 1, 2), time(3, 4, 5), ntz("2026-01-02 03:04:05"), b"\0\xff"),
        (-(10**30), Decimal("-0.01"), 1e300, "", False, date(1969, 12, 31), time(23, 59, 59), landing, b""),
        (None, None, None, None, None, date(2000, 2, 29), time(0, 0), ntz("9999-12-31 23:59:59"), None),
    ]  # fmt: skip

    assert sql.many("INSERT INTO X VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows) == 3

    got = sql("SELECT * FROM X ORDER BY I NULLS LAST")
    assert [tuple(bytes(v) if isinstance(v, bytearray) else v for v in row) for row in got] == [
        rows[1],
        rows[0],
        rows[2],
    ]


def test_executemany_of_a_thousand_rows_is_one_statement(sql: Sql, server: EmbeddedServer) -> None:
    tag = an_id()
    sql("CREATE HYBRID TABLE X (ID NUMBER PRIMARY KEY, S VARCHAR)")
    sql(f"ALTER SESSION SET QUERY_TAG = '{tag}'")

    assert sql.many("INSERT INTO X (ID, S) VALUES (?, ?)", [(n, f"s{n}") for n in range(1000)]) == 1000

    assert sql("SELECT COUNT(*), SUM(ID), MIN(S) FROM X") == [(1000, 499500, "s0")]
    inserts = [
        e for e in server.ask(f"/__loadgen/history?tag={tag}") if e["sql_text"].startswith("INSERT") and e["rows"]
    ]
    assert [e["rows"] for e in inserts] == [1000]


def test_executemany_is_all_or_nothing(sql: Sql) -> None:
    sql("CREATE HYBRID TABLE X (ID NUMBER PRIMARY KEY)")
    sql("INSERT INTO X VALUES (3)")

    with pytest.raises(ProgrammingError) as caught:
        sql.many("INSERT INTO X VALUES (?)", [(1,), (2,), (3,), (4,)])

    assert caught.value.errno == PRIMARY_KEY
    assert sql("SELECT ID FROM X") == [(3,)]


def test_executemany_of_an_update_runs_for_every_row(sql: Sql) -> None:
    sql("CREATE HYBRID TABLE X (ID NUMBER PRIMARY KEY, S VARCHAR)")
    sql("INSERT INTO X VALUES (1, 'a'), (2, 'b'), (3, 'c')")

    sql.cursor.executemany("UPDATE X SET S = ? WHERE ID = ?", [("x", 1), ("y", 2)])

    assert sql("SELECT S FROM X ORDER BY ID") == [("x",), ("y",), ("c",)]


def test_a_values_list_of_several_rows_of_binds_is_a_fixed_insert(sql: Sql) -> None:
    sql("CREATE TABLE X (I NUMBER, S VARCHAR)")

    assert sql.count("INSERT INTO X (S, I) VALUES (?, ?), (?, ?), ('c', DEFAULT)", "a", 1, "b", 2) == 3

    assert sql("SELECT I, S FROM X ORDER BY S") == [(1, "a"), (2, "b"), (None, "c")]


def test_numeric_binds_may_be_used_twice(connect: Callable[..., Any]) -> None:
    sql = Sql(connect(paramstyle="numeric"))

    assert sql("SELECT :2, :1, :2", "a", 5) == [(5, "a", 5)]


# --- FLATTEN, GENERATOR -----------------------------------------------------------------------------------------------


def test_flatten_makes_rows_of_elements(sql: Sql) -> None:
    sql("CREATE TABLE X (ID NUMBER, V VARIANT)")
    sql(
        'INSERT INTO X SELECT 1, PARSE_JSON(\'{"items": [{"n": "a"}, {"n": "b"}]}\') UNION ALL'
        " SELECT 2, PARSE_JSON('{}')"
    )

    inner = sql(
        "SELECT X.ID, F.INDEX, F.VALUE:n::VARCHAR FROM X, LATERAL FLATTEN(INPUT => X.V:items) AS F ORDER BY F.INDEX"
    )
    outer = sql(
        "SELECT X.ID, F.VALUE:n::VARCHAR FROM X, LATERAL FLATTEN(INPUT => V:items, OUTER => TRUE) F ORDER BY 1, 2"
    )
    table = sql('SELECT KEY, VALUE::NUMBER FROM TABLE(FLATTEN(PARSE_JSON(\'{"a": 1, "b": 2}\'))) ORDER BY KEY')
    joined = sql("SELECT COUNT(*) FROM X JOIN LATERAL FLATTEN(X.V:items) AS F")

    assert inner == [(1, 0, "a"), (1, 1, "b")]
    assert outer == [(1, "a"), (1, "b"), (2, None)]
    assert table == [("a", 1), ("b", 2)]
    assert joined == [(2,)]


def test_flatten_knows_paths_and_recursion(sql: Sql) -> None:
    document = '{"a": {"b": [1, 2]}, "c": 3}'

    paths = sql("SELECT PATH FROM TABLE(FLATTEN(INPUT => PARSE_JSON(?), RECURSIVE => TRUE)) ORDER BY PATH", document)
    below = sql(
        "SELECT PATH, VALUE::NUMBER FROM TABLE(FLATTEN(INPUT => PARSE_JSON(?), PATH => 'a.b')) ORDER BY 2", document
    )

    assert [path for (path,) in paths] == ["a", "a.b", "a.b[0]", "a.b[1]", "c"]
    assert below == [("a.b[0]", 1), ("a.b[1]", 2)]


def test_generator_makes_benchmark_data(sql: Sql) -> None:
    sql(
        "CREATE TABLE X AS SELECT SEQ4() AS ID, UNIFORM(1, 10, RANDOM()) AS U, RANDSTR(8, RANDOM()) AS R,"
        " UNIFORM(0::FLOAT, 1::FLOAT, RANDOM()) AS F, DATEADD(second, SEQ4(),"
        " '2026-01-01'::TIMESTAMP_NTZ) AS T, RANDOM() AS X"
        " FROM TABLE(GENERATOR(ROWCOUNT => 2000))"
    )

    ((count, ids, first, last),) = sql("SELECT COUNT(*), COUNT(DISTINCT ID), MIN(ID), MAX(ID) FROM X")
    ((low, high, different),) = sql("SELECT MIN(U), MAX(U), COUNT(DISTINCT U) FROM X")
    ((shortest, longest, texts),) = sql("SELECT MIN(LENGTH(R)), MAX(LENGTH(R)), COUNT(DISTINCT R) FROM X")

    assert (count, ids, first, last) == (2000, 2000, 0, 1999)
    assert (low, high, different) == (1, 10, 10)
    assert (shortest, longest, texts) == (8, 8, 2000)
    assert sql("SELECT COUNT_IF(F < 0 OR F >= 1), COUNT(DISTINCT X), MAX(T) FROM X") == [
        (0, 2000, ntz("2026-01-01 00:33:19"))
    ]
    assert sql.value("SELECT COUNT(*) FROM X WHERE R REGEXP '[0-9A-Za-z]{8}'") == 2000


def test_random_numbers_with_a_seed_are_the_same_each_time(sql: Sql) -> None:
    query = "SELECT RANDOM(42), UNIFORM(1, 1000000, RANDOM(7)) FROM TABLE(GENERATOR(ROWCOUNT => 5)) ORDER BY SEQ4()"

    assert sql(query) == sql(query)
