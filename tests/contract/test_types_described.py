"""The columns of `description`, which drivers need to read values: types, sizes, names."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from tests.contract.sql import one

# Numbers of the driver's FIELD_TYPES; both majors have the same.
FIXED, REAL, TEXT, DATE, VARIANT, LTZ, TZ, NTZ, OBJECT, ARRAY, BINARY, TIME, BOOLEAN = (
    0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13,
)  # fmt: skip
TEXT_LENGTH = 16_777_216
BINARY_LENGTH = 8_388_608


def shape(column: Any) -> tuple[Any, ...]:
    """The `description` of a column, without the parts that no server fills."""
    return (column.name, column.type_code, column.internal_size, column.precision, column.scale, column.is_nullable)


# --- description -----------------------------------------------------------------------------------------------------


COLUMNS: list[tuple[str, tuple[Any, ...]]] = [
    ("N0 NUMBER", (FIXED, None, 38, 0)),
    ("N1 INTEGER", (FIXED, None, 38, 0)),
    ("N2 NUMBER(12,2)", (FIXED, None, 12, 2)),
    ("N3 NUMBER(38,37)", (FIXED, None, 38, 37)),
    ("F FLOAT", (REAL, None, None, None)),
    ("S0 VARCHAR", (TEXT, TEXT_LENGTH, None, None)),
    ("S1 VARCHAR(20)", (TEXT, 20, None, None)),
    ("S2 CHAR", (TEXT, 1, None, None)),
    ("B BOOLEAN", (BOOLEAN, None, None, None)),
    ("X BINARY", (BINARY, BINARY_LENGTH, None, None)),
    ("D DATE", (DATE, None, None, None)),
    ("T0 TIME", (TIME, None, 0, 9)),
    ("T3 TIME(3)", (TIME, None, 0, 3)),
    ("P0 TIMESTAMP_NTZ", (NTZ, None, 0, 9)),
    ("P1 TIMESTAMP", (NTZ, None, 0, 9)),
    ("P6 TIMESTAMP_NTZ(6)", (NTZ, None, 0, 6)),
    ("L9 TIMESTAMP_LTZ", (LTZ, None, 0, 9)),
    ("L0 TIMESTAMP_LTZ(0)", (LTZ, None, 0, 0)),
    ("Z9 TIMESTAMP_TZ", (TZ, None, 0, 9)),
]


@pytest.mark.parametrize("rows", [0, 1])
def test_every_column_is_described_as_declared_with_and_without_rows(cursor, rows):
    cursor.execute(f"CREATE TABLE T ({', '.join(declared for declared, _ in COLUMNS)})")
    for number in range(rows):
        cursor.execute("INSERT INTO T (N0) VALUES (?)", (number,))

    cursor.execute("SELECT * FROM T")

    assert [shape(column) for column in cursor.description] == [
        (declared.split()[0], *expected, True) for declared, expected in COLUMNS
    ]
    assert len(cursor.fetchall()) == rows


@pytest.mark.parametrize(("declared", "code"), [("VARIANT", VARIANT), ("OBJECT", OBJECT), ("ARRAY", ARRAY)])
def test_semi_structured_columns_are_described_by_their_type(cursor, declared, code):
    cursor.execute(f"CREATE TABLE T (V {declared})")

    cursor.execute("SELECT V FROM T")

    assert [(column.name, column.type_code) for column in cursor.description] == [("V", code)]


def test_a_column_that_takes_no_null_is_described_so(cursor):
    cursor.execute("CREATE HYBRID TABLE H (K INTEGER NOT NULL, V VARCHAR NOT NULL, W VARCHAR, PRIMARY KEY (K))")

    cursor.execute("SELECT K, V, W FROM H")

    assert [(column.name, column.is_nullable) for column in cursor.description] == [
        ("K", False),
        ("V", False),
        ("W", True),
    ]


@pytest.mark.parametrize(
    ("expression", "code", "scale", "value"),
    [
        ("COUNT(*)", FIXED, 0, 4),
        ("COUNT(DISTINCT I)", FIXED, 0, 3),
        ("SUM(I)", FIXED, 0, 7),
        ("SUM(M)", FIXED, 2, Decimal("5.00")),
        ("AVG(I)", FIXED, 6, Decimal("1.750000")),
        ("AVG(M)", FIXED, 8, Decimal("1.25000000")),
        ("AVG(F)", REAL, None, 0.5),
        ("SUM(F)", REAL, None, 2.0),
        ("MIN(I)", FIXED, 0, 1),
        ("MAX(M)", FIXED, 2, Decimal("2.00")),
        ("MAX(S)", TEXT, None, "d"),
        ("MAX(D)", DATE, None, date(2024, 1, 4)),
    ],
)
def test_an_aggregate_has_snowflakes_type_and_scale(cursor, expression, code, scale, value):
    cursor.execute("CREATE TABLE T (I INTEGER, M NUMBER(10,2), F FLOAT, S VARCHAR, D DATE)")
    cursor.execute(
        "INSERT INTO T VALUES (1, 0.5, 0.5, 'a', '2024-01-01'), (2, 1, 0.5, 'b', '2024-01-02'),"
        " (2, 1.5, 0.5, 'c', '2024-01-03'), (2, 2, 0.5, 'd', '2024-01-04')"
    )
    if expression == "COUNT(DISTINCT I)":
        cursor.execute("UPDATE T SET I = 3 WHERE S = 'd'")

    returned = one(cursor, f"SELECT {expression} FROM T")

    assert returned == value
    assert str(returned) == str(value)
    assert (cursor.description[0].type_code, cursor.description[0].scale) == (code, scale)


@pytest.mark.parametrize("expression", ["SUM(M)", "AVG(M)", "MAX(M)", "M + 1", "M / 3", "M * M"])
def test_the_scale_of_an_expression_does_not_depend_on_the_rows(cursor, expression):
    cursor.execute("CREATE TABLE T (M NUMBER(10,2))")

    cursor.execute(f"SELECT {expression} FROM T")
    empty = cursor.description[0]
    cursor.execute("INSERT INTO T VALUES (3)")
    cursor.execute(f"SELECT {expression} FROM T")
    filled = cursor.description[0]

    assert (filled.type_code, filled.scale) == (empty.type_code, empty.scale)
    assert filled.scale == {"AVG(M)": 8, "M / 3": 8, "M * M": 4}.get(expression, 2)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1/3", Decimal("0.333333")),
        ("2/3", Decimal("0.666667")),
        ("6/3", Decimal("2.000000")),
        ("1.5/3", Decimal("0.5000000")),
        ("10.01*1.1", Decimal("11.011")),
        ("1.10+1", Decimal("2.10")),
        ("1+1", 2),
        ("7%3", 1),
        ("-(1.50)", Decimal("-1.50")),
        ("ROUND(2.345, 2)", Decimal("2.35")),
        ("1::FLOAT/3", 1 / 3),
    ],
)
def test_arithmetic_has_snowflakes_scale(cursor, expression, value):
    returned = one(cursor, f"SELECT {expression}")

    assert (returned, type(returned), str(returned)) == (value, type(value), str(value))
    if not isinstance(value, float):
        exponent = value.as_tuple().exponent if isinstance(value, Decimal) else 0
        assert cursor.description[0].scale == -int(exponent)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("'a'||'b'", (TEXT, None, None)),
        ("5::NUMBER(12,2)", (FIXED, 12, 2)),
        ("'x'::VARCHAR(7)", (TEXT, None, None)),
        ("1::FLOAT", (REAL, None, None)),
        ("TRUE AND FALSE", (BOOLEAN, None, None)),
        ("CURRENT_DATE()", (DATE, None, None)),
        ("CURRENT_TIMESTAMP()", (LTZ, 0, 9)),
        ("SYSDATE()", (NTZ, 0, 9)),
        ("'12:00'::TIME(3)", (TIME, 0, 3)),
        ("PARSE_JSON('1')", (VARIANT, None, None)),
        ("OBJECT_CONSTRUCT('a', 1)", (OBJECT, None, None)),
        ("ARRAY_CONSTRUCT(1)", (ARRAY, None, None)),
        ("TO_BINARY('ff', 'HEX')", (BINARY, None, None)),
    ],
)
def test_an_expression_is_described_by_its_type(cursor, expression, expected):
    cursor.execute(f"SELECT {expression}")

    column = cursor.description[0]
    assert (column.type_code, column.precision, column.scale) == expected


def test_a_length_given_in_a_cast_is_the_size_of_the_column(cursor):
    cursor.execute("SELECT 'x'::VARCHAR(7) AS A, 'y'::VARCHAR AS B")

    assert [column.internal_size for column in cursor.description] == [7, TEXT_LENGTH]


@pytest.mark.parametrize(
    ("statement", "names"),
    [
        ("INSERT INTO T VALUES (1, 2)", ["number of rows inserted"]),
        ("UPDATE T SET A = 2", ["number of rows updated", "number of multi-joined rows updated"]),
        ("DELETE FROM T", ["number of rows deleted"]),
        ("CREATE TABLE U (A INTEGER)", ["status"]),
    ],
)
def test_what_a_change_answers_has_snowflakes_column_names(cursor, statement, names):
    cursor.execute("CREATE TABLE T (A INTEGER, B INTEGER)")

    cursor.execute(statement)

    assert [column.name for column in cursor.description] == names


# --- names of columns ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "name"),
    [
        ("a", "A"),
        ("t.a", "A"),
        ('"mixed Case"', "mixed Case"),
        ("a AS total", "TOTAL"),
        ("a total", "TOTAL"),
        ('a AS "Total %"', "Total %"),
        ('a AS "say ""hi"""', 'say "hi"'),
        ("1", "1"),
        ("'text'", "'TEXT'"),
        ("a+1", "A+1"),
        ("a + 1", "A + 1"),
        ("count(*)", "COUNT(*)"),
        ("max(a)", "MAX(A)"),
        ("lower('Ab')", "LOWER('AB')"),
        ("a::varchar", "A::VARCHAR"),
        ("case when a=1 then 2 end", "CASE WHEN A=1 THEN 2 END"),
    ],
)
def test_a_column_is_named_as_snowflake_names_it(cursor, item, name):
    cursor.execute('CREATE TABLE T (A INTEGER, "mixed Case" INTEGER)')

    cursor.execute(f"SELECT {item} FROM T")

    assert [column.name for column in cursor.description] == [name]


def test_two_columns_may_have_the_same_name(cursor):
    cursor.execute('SELECT 1 AS A, 2 AS A, 3 AS "a"')

    assert [column.name for column in cursor.description] == ["A", "A", "a"]
    assert cursor.fetchall() == [(1, 2, 3)]


def test_a_star_gives_the_columns_in_their_order_of_declaration(cursor):
    cursor.execute('CREATE TABLE T (Z INTEGER, a VARCHAR, "b" DATE)')
    cursor.execute("ALTER TABLE T ADD COLUMN C INTEGER")

    cursor.execute("SELECT * FROM T")

    assert [column.name for column in cursor.description] == ["Z", "A", "b", "C"]


def test_a_long_expression_keeps_its_whole_text_as_name(cursor):
    expression = "+".join(["1"] * 60)

    cursor.execute(f"SELECT {expression}, 7 AS {'N' * 200}")

    assert [column.name for column in cursor.description] == [expression, "N" * 200]
