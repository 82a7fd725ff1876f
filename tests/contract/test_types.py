"""Every data type there and back, by binds, array binds and literals, with the Python types the driver gives.

What is expected is what Snowflake answers; `description` is part of it, because drivers read values by it.
"""
# ruff: noqa: DTZ001  (a TIMESTAMP_NTZ is a time without a zone)

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import snowflake.connector
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from snowflake.connector.errors import ProgrammingError

MAJOR = int(snowflake.connector.__version__.split(".")[0])
# Numbers of the driver's FIELD_TYPES; both majors have the same.
FIXED, REAL, TEXT, DATE, VARIANT, LTZ, TZ, NTZ, OBJECT, ARRAY, BINARY, TIME, BOOLEAN = (
    0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13,
)  # fmt: skip
TEXT_LENGTH = 16_777_216
BINARY_LENGTH = 8_388_608
EAST, WEST = timezone(timedelta(hours=5, minutes=45)), timezone(timedelta(hours=-8))

# Each example starts its own statement, so the deadline would measure the machine.
few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def bound(cursor: Any, declared: str, values: list[Any]) -> list[Any]:
    """The values after a way through a column of that type, one bind each."""
    cursor.execute(f"CREATE OR REPLACE TABLE T (N INTEGER, V {declared})")
    for number, value in enumerate(values):
        cursor.execute("INSERT INTO T VALUES (?, ?)", (number, value))
    return read(cursor)


def array_bound(cursor: Any, declared: str, values: list[Any]) -> list[Any]:
    cursor.execute(f"CREATE OR REPLACE TABLE T (N INTEGER, V {declared})")
    cursor.executemany("INSERT INTO T VALUES (?, ?)", [(number, value) for number, value in enumerate(values)])
    return read(cursor)


def read(cursor: Any) -> list[Any]:
    return [value for (value,) in cursor.execute("SELECT V FROM T ORDER BY N").fetchall()]


def one(cursor: Any, query: str, *binds: Any) -> Any:
    """The only value of a query."""
    rows = cursor.execute(query, binds).fetchall() if binds else cursor.execute(query).fetchall()
    assert [len(row) for row in rows] == [1]
    return rows[0][0]


def python_type(value: Any) -> type:
    """What the driver gives back for such a value."""
    return bytearray if isinstance(value, bytes) and MAJOR >= 5 else type(value)


def shape(column: Any) -> tuple[Any, ...]:
    """What `description` says of a column, without the parts that no server fills."""
    return (column.name, column.type_code, column.internal_size, column.precision, column.scale, column.is_nullable)


VALUES: list[tuple[str, list[Any]]] = [
    ("NUMBER(38,0)", [0, 1, -1, 10**38 - 1, -(10**38) + 1]),
    ("INTEGER", [2**63, -(2**63) - 1]),
    ("NUMBER(12,2)", [Decimal("0.01"), Decimal("-9999999999.99"), Decimal("5.00"), Decimal("0.00")]),
    ("NUMBER(38,37)", [Decimal("1." + "0" * 36 + "1"), Decimal("-9." + "9" * 37)]),
    ("NUMBER(38,20)", [Decimal("123456789012345678.12345678901234567890")]),
    ("FLOAT", [0.0, 0.1, -1.5, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 1 / 3, math.inf, -math.inf]),
    ("BOOLEAN", [True, False]),
    ("BINARY", [b"", b"\x00\xff", bytes(range(256))]),
    ("DATE", [date(1, 1, 1), date(1582, 10, 4), date(1969, 12, 31), date(1970, 1, 1), date(2024, 2, 29), date.max]),
    ("TIME", [time(0), time(12, 34, 56), time(23, 59, 59, 999_999), time(0, 0, 0, 1)]),
    (
        "TIMESTAMP_NTZ",
        [
            datetime(1970, 1, 1),
            datetime(1969, 12, 31, 23, 59, 59, 999_999),
            datetime(1900, 1, 1, 0, 0, 0, 1),
            datetime(2024, 2, 29, 12, 30, 15, 123_456),
            datetime(9999, 12, 31, 23, 59, 59),
        ],
    ),
    (
        "VARCHAR",
        [
            "",
            " spaces around ",
            "O'Brien",
            'say "hi"',
            "back\\slash \\n \\' \\u0041",
            "line\nfeed\r\ttab",
            "čeština 日本語 עברית 😀 e\u0301",
            "NULL",
            "? :1 %s %(x)s $1",
            "-- no comment /* none */ $$",
        ],
    ),
]
IDS = [declared for declared, _ in VALUES]


# --- there and back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("declared", "values"), VALUES, ids=IDS)
def test_bound_values_come_back_as_they_went_in(cursor, declared, values):
    returned = bound(cursor, declared, values)

    assert returned == values
    assert [type(value) for value in returned] == [python_type(value) for value in values]


@pytest.mark.parametrize(("declared", "values"), VALUES, ids=IDS)
def test_array_bound_values_come_back_as_they_went_in(cursor, declared, values):
    returned = array_bound(cursor, declared, values)

    assert returned == values
    assert [type(value) for value in returned] == [python_type(value) for value in values]


@pytest.mark.parametrize("write", [bound, array_bound])
def test_not_a_number_is_stored_as_such(cursor, write):
    (returned,) = write(cursor, "FLOAT", [math.nan])

    assert math.isnan(returned)


@pytest.mark.parametrize("write", [bound, array_bound])
@pytest.mark.parametrize("declared", ["TIMESTAMP_LTZ", "TIMESTAMP_TZ"])
def test_instants_come_back_as_the_same_instants(cursor, write, declared):
    moments = [
        datetime(2024, 7, 1, 12, 0, 0, 123_456, tzinfo=UTC),
        datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=EAST),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(1960, 6, 1, 4, 5, 6, 500_000, tzinfo=WEST),
        datetime(9999, 12, 30, 23, 59, 59, tzinfo=UTC),
    ]

    returned = write(cursor, declared, [(declared, moment) for moment in moments])

    assert returned == moments


OFFSETS = [
    EAST,
    WEST,
    UTC,
    timezone(timedelta(hours=14)),
    timezone(timedelta(hours=-12)),
    timezone(timedelta(minutes=-30)),
]


def test_a_timestamp_tz_keeps_its_offset(cursor):
    moments = [datetime(2024, 3, 10, 1, 2, 3, 4, tzinfo=zone) for zone in OFFSETS]
    cursor.execute("CREATE TABLE T (N INTEGER, V TIMESTAMP_TZ)")
    for number, moment in enumerate(moments):
        cursor.execute("INSERT INTO T SELECT ?, ?::TIMESTAMP_TZ", (number, moment.isoformat(" ")))

    returned = read(cursor)

    assert [value.utcoffset() for value in returned] == [moment.utcoffset() for moment in moments]
    assert [value.replace(tzinfo=None) for value in returned] == [moment.replace(tzinfo=None) for moment in moments]


@pytest.mark.parametrize("write", [bound, array_bound])
def test_a_bound_timestamp_tz_keeps_the_offset_if_the_driver_sends_it(cursor, write):
    moments = [datetime(2024, 3, 10, 1, 2, 3, 4, tzinfo=zone) for zone in OFFSETS]

    returned = write(cursor, "TIMESTAMP_TZ", [("TIMESTAMP_TZ", moment) for moment in moments])

    # 5.x sends the instant alone; the server takes it for one in UTC.
    expected = [moment.astimezone(UTC) for moment in moments] if MAJOR >= 5 else moments
    assert [value.utcoffset() for value in returned] == [moment.utcoffset() for moment in expected]
    assert [value.replace(tzinfo=None) for value in returned] == [moment.replace(tzinfo=None) for moment in expected]


def test_a_megabyte_of_text_comes_back_whole(cursor):
    text = "0123456789abcde\u00e9" * 65_536

    assert bound(cursor, "VARCHAR", [text]) == [text]
    assert one(cursor, "SELECT LENGTH(V) FROM T") == 1_048_576


@pytest.mark.parametrize(
    "declared",
    ["NUMBER(38,0)", "NUMBER(12,2)", "FLOAT", "VARCHAR", "BOOLEAN", "BINARY", "DATE", "TIME", "TIMESTAMP_NTZ",
     "TIMESTAMP_LTZ", "TIMESTAMP_TZ", "VARIANT", "OBJECT", "ARRAY"],
)  # fmt: skip
def test_null_is_none_in_every_type(cursor, declared):
    cursor.execute(f"CREATE TABLE T (N INTEGER, V {declared})")
    cursor.execute("INSERT INTO T (N) VALUES (0)")
    cursor.execute("INSERT INTO T SELECT ?, ?", (1, None))
    cursor.execute(f"INSERT INTO T SELECT 2, NULL::{declared}")

    assert read(cursor) == [None, None, None]
    assert one(cursor, f"SELECT NULL::{declared}") is None


def test_an_array_bind_may_mix_values_and_nulls_in_every_column(cursor):
    """4.x sends a column with a NULL in it as text, dates and times as numbers: the server has to guess their unit.

    As Snowflake does, it takes numbers below 31536000000 for seconds, so dates of 1970 and before are no good here.
    """
    rows = [
        (1, "one", 1.5, True, date(2024, 1, 1), None),
        (2, None, None, None, None, datetime(2024, 1, 1, 1, 1, 1, 123_456)),
        (3, "", 0.0, False, date(1999, 12, 31), datetime(1999, 12, 31, 23, 59, 59)),
    ]
    cursor.execute("CREATE TABLE T (N INTEGER, A VARCHAR, B FLOAT, C BOOLEAN, D DATE, E TIMESTAMP_NTZ)")

    cursor.executemany("INSERT INTO T VALUES (?, ?, ?, ?, ?, ?)", rows)

    assert cursor.execute("SELECT * FROM T ORDER BY N").fetchall() == rows


def test_an_array_bound_column_of_nulls_only_is_accepted(cursor):
    cursor.execute("CREATE TABLE T (N INTEGER, A VARCHAR, B NUMBER(5,2), C TIMESTAMP_NTZ)")

    cursor.executemany("INSERT INTO T VALUES (?, ?, ?, ?)", [(1, None, None, None), (2, None, None, None)])

    assert cursor.execute("SELECT * FROM T ORDER BY N").fetchall() == [(1, None, None, None), (2, None, None, None)]


def test_an_array_bind_reaches_variants_through_a_values_clause(cursor):
    cursor.execute("CREATE TABLE T (N INTEGER, V VARIANT)")

    cursor.executemany(
        "INSERT INTO T SELECT column1, PARSE_JSON(column2) FROM VALUES (?, ?)", [(1, '{"a":1}'), (2, None), (3, "[2]")]
    )

    assert read(cursor) == ['{\n  "a": 1\n}', None, "[\n  2\n]"]


@few
@given(digits=st.integers(min_value=-(10**38) + 1, max_value=10**38 - 1), scale=st.integers(min_value=0, max_value=37))
def test_any_number_of_any_scale_is_exact(cursor, digits, scale):
    number = Decimal((int(digits < 0), tuple(map(int, str(abs(digits)))), -scale))

    returned = one(cursor, f"SELECT ?::NUMBER(38,{scale})", f"{number:f}")

    assert returned == number
    assert type(returned) is (int if scale == 0 else Decimal)


@few
@given(value=st.floats(allow_nan=False))
def test_any_float_is_exact(cursor, value):
    assert one(cursor, "SELECT ?::FLOAT", value) == value


@few
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=200))
def test_any_text_is_exact_as_bind(cursor, text):
    assert one(cursor, "SELECT ?", text) == text


# Statements are listed by the server line by line; what str.splitlines() takes for the end of a line stays out of them.
@few
@given(text=st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=200))
def test_any_text_is_exact_as_literal(cursor, text):
    literal = text.replace("\\", "\\\\").replace("'", "''")

    assert one(cursor, f"SELECT '{literal}'") == text


@few
@given(moment=st.datetimes(min_value=datetime(1700, 1, 1), max_value=datetime(2240, 1, 1)))
def test_any_timestamp_is_exact_to_the_microsecond(cursor, moment):
    """Within 2³³ seconds of 1970: beyond that both drivers lose a microsecond when they bind."""
    aware = moment.replace(tzinfo=UTC)

    row = cursor.execute(
        "SELECT ?, ?, ?", (moment, ("TIMESTAMP_LTZ", aware), ("TIMESTAMP_TZ", aware.astimezone(EAST)))
    ).fetchone()

    assert row == (moment, aware, aware)


# --- literals and casts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("0", 0),
        ("-17", -17),
        ("99999999999999999999999999999999999999", 10**38 - 1),
        ("1.50", Decimal("1.50")),
        ("-0.001", Decimal("-0.001")),
        ("TRUE", True),
        ("false", False),
        ("'it''s'", "it's"),
        (r"'back\\slash'", "back\\slash"),
        (r"'it\'s'", "it's"),
        (r"'a\nb\tc'", "a\nb\tc"),
        (r"'\u0041\u00e9'", "Aé"),
        (r"$$raw 'text' \n$$", r"raw 'text' \n"),
        ("''", ""),
        ("X'00fFaB'", b"\x00\xff\xab"),
        ("DATE '2024-02-29'", date(2024, 2, 29)),
        ("'0001-01-01'::DATE", date(1, 1, 1)),
        ("'9999-12-31'::DATE", date(9999, 12, 31)),
        ("'23:59:59.5'::TIME", time(23, 59, 59, 500_000)),
        ("TIMESTAMP '2024-02-29 01:02:03.004'", datetime(2024, 2, 29, 1, 2, 3, 4000)),
        ("'1950-11-27 12:34:56.123456'::TIMESTAMP_NTZ", datetime(1950, 11, 27, 12, 34, 56, 123_456)),
        ("'2024-02-29T01:02:03Z'::TIMESTAMP_TZ", datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC)),
        ("'2012-01-03 12:34:56.123456+07:00'::TIMESTAMP_TZ", datetime(2012, 1, 3, 5, 34, 56, 123_456, tzinfo=UTC)),
        ("'inf'::FLOAT", math.inf),
        ("'-inf'::FLOAT", -math.inf),
    ],
)
def test_a_literal_has_the_value_and_the_type_snowflake_gives_it(cursor, expression, value):
    returned = one(cursor, f"SELECT {expression}")

    assert returned == value
    assert type(returned) is python_type(value)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("'42'::NUMBER", 42),
        ("'1.25'::NUMBER(10,1)", Decimal("1.3")),
        ("-1.25::NUMBER(10,1)", Decimal("-1.3")),
        ("2.5::INTEGER", 3),
        ("'1.5'::FLOAT", 1.5),
        ("7::FLOAT", 7.0),
        ("1.50::VARCHAR", "1.50"),
        ("TRUE::VARCHAR", "true"),
        ("'yes'::BOOLEAN", True),
        ("0::BOOLEAN", False),
        ("'2024-02-29 23:59:59'::DATE", date(2024, 2, 29)),
        ("'2024-02-29'::DATE::TIMESTAMP_NTZ", datetime(2024, 2, 29)),
        ("'2024-02-29'::DATE::VARCHAR", "2024-02-29"),
        ("'12:30:00'::TIME::VARCHAR", "12:30:00"),
        ("'2024-02-29 01:02:03.456'::TIMESTAMP_NTZ::VARCHAR", "2024-02-29 01:02:03.456"),
        ("X'00ff'::VARCHAR", "00FF"),
        ("TO_BINARY('00ff', 'HEX')", b"\x00\xff"),
    ],
)
def test_a_cast_has_the_value_and_the_type_snowflake_gives_it(cursor, expression, value):
    returned = one(cursor, f"SELECT {expression}")

    assert returned == value
    assert type(returned) is python_type(value)


@pytest.mark.parametrize(
    ("expression", "errno"),
    [
        ("'abc'::NUMBER", 100038),
        ("'maybe'::BOOLEAN", 100037),
        ("'2024-02-30'::DATE", 100040),
        ("'2024-13-01 00:00:00'::TIMESTAMP_NTZ", 100035),
        ("1 / 0", 100051),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_snowflakes_number(cursor, expression, errno):
    with pytest.raises(ProgrammingError) as caught:
        cursor.execute(f"SELECT {expression}")

    assert caught.value.errno == errno


@pytest.mark.parametrize(
    ("declared", "value", "errno"), [("NUMBER(3,0)", 1000, 100046), ("VARCHAR(3)", "four", 100078)]
)
def test_a_value_too_big_for_its_column_is_refused(cursor, declared, value, errno):
    with pytest.raises(ProgrammingError) as caught:
        bound(cursor, declared, [value])

    assert caught.value.errno == errno
    assert read(cursor) == []


def test_numbers_are_rounded_to_the_scale_of_their_column(cursor):
    assert bound(cursor, "NUMBER(10,2)", [Decimal("1.005"), Decimal("-1.005"), 7]) == [
        Decimal("1.01"),
        Decimal("-1.01"),
        Decimal("7.00"),
    ]


# --- times -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["TIME", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "TIMESTAMP_TZ"])
@pytest.mark.parametrize(("scale", "microsecond"), [(0, 0), (3, 123_000), (6, 123_456), (9, 123_456)])
def test_a_time_has_as_many_decimals_as_its_type_says(cursor, kind, scale, microsecond):
    text = "12:34:56.123456" if kind == "TIME" else "2012-01-03 12:34:56.123456"
    cursor.execute(f"CREATE TABLE T (N INTEGER, V {kind}({scale}))")
    cursor.execute(f"INSERT INTO T SELECT 1, '{text}'::{kind}")

    (stored,) = read(cursor)

    assert stored.microsecond == microsecond
    assert cursor.description[0].scale == scale
    assert one(cursor, f"SELECT '{text}'::{kind}({scale})").microsecond == microsecond


@pytest.mark.parametrize("scale", [0, 3, 6, 9])
@pytest.mark.parametrize("kind", ["TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "TIMESTAMP_TZ"])
def test_times_before_1970_are_right_at_every_scale(cursor, kind, scale):
    expected = datetime(1950, 11, 27, 12, 34, 56, {0: 0, 3: 400_000, 6: 400_001, 9: 400_001}[scale])
    text = "1950-11-27 12:34:56.400001"

    returned = one(cursor, f"SELECT '{text}{'' if kind == 'TIMESTAMP_NTZ' else ' +0000'}'::{kind}({scale})")

    assert returned == (expected if kind == "TIMESTAMP_NTZ" else expected.replace(tzinfo=UTC))


def test_the_session_timezone_shows_in_ltz_values_only(connect):
    cursor = connect(session_parameters={"TIMEZONE": "Asia/Kolkata"}).cursor()
    moment = datetime(2024, 7, 1, 12, 0, tzinfo=UTC)

    ltz, ntz = cursor.execute("SELECT ?, ?", (("TIMESTAMP_LTZ", moment), moment.replace(tzinfo=None))).fetchone()

    assert ltz == moment
    assert ltz.utcoffset() == timedelta(hours=5, minutes=30)
    assert ntz == moment.replace(tzinfo=None)


def test_a_text_without_zone_is_read_in_the_session_timezone(cursor):
    cursor.execute("ALTER SESSION SET TIMEZONE = 'America/New_York'")
    expected = datetime(2024, 7, 1, 12, 0, tzinfo=ZoneInfo("America/New_York"))

    assert one(cursor, "SELECT '2024-07-01 12:00:00'::TIMESTAMP_LTZ") == expected
    assert one(cursor, "SELECT '2024-07-01 12:00:00'::TIMESTAMP_TZ") == expected


def test_an_instant_stays_the_same_when_the_session_timezone_changes(cursor):
    cursor.execute("CREATE TABLE T (N INTEGER, V TIMESTAMP_LTZ)")
    cursor.execute("ALTER SESSION SET TIMEZONE = 'Europe/Berlin'")
    cursor.execute("INSERT INTO T VALUES (1, '2024-07-01 12:00:00')")
    cursor.execute("ALTER SESSION SET TIMEZONE = 'Asia/Tokyo'")

    (stored,) = read(cursor)

    assert stored == datetime(2024, 7, 1, 10, 0, tzinfo=UTC)
    assert stored.utcoffset() == timedelta(hours=9)


@pytest.mark.parametrize(
    ("utc", "offset_hours"),
    [
        (datetime(2024, 3, 10, 9, 59, 59), -8),
        (datetime(2024, 3, 10, 10, 0, 0), -7),
        (datetime(2024, 11, 3, 8, 59, 59), -7),
        (datetime(2024, 11, 3, 9, 0, 0), -8),
    ],
)
def test_summer_time_begins_and_ends_at_the_right_second(cursor, utc, offset_hours):
    cursor.execute("ALTER SESSION SET TIMEZONE = 'America/Los_Angeles'")
    moment = utc.replace(tzinfo=UTC)
    local = (utc + timedelta(hours=offset_hours)).strftime("%Y-%m-%d %H:%M:%S")

    value, text = cursor.execute(
        "SELECT ?, ?::TIMESTAMP_LTZ::TIMESTAMP_NTZ::VARCHAR", [("TIMESTAMP_LTZ", moment)] * 2
    ).fetchone()

    assert value == moment
    assert value.utcoffset() == timedelta(hours=offset_hours)
    assert text == f"{local}.000"


def test_a_conversion_of_time_zones_and_a_tz_value_survive_storage(cursor):
    cursor.execute("CREATE TABLE T (N INTEGER, V TIMESTAMP_TZ)")
    cursor.execute("INSERT INTO T SELECT 1, '2024-07-01 12:00:00 +0545'::TIMESTAMP_TZ")
    cursor.execute("ALTER SESSION SET TIMEZONE = 'UTC'")

    (stored,) = read(cursor)

    assert stored.utcoffset() == timedelta(hours=5, minutes=45)
    assert one(cursor, "SELECT V::TIMESTAMP_NTZ FROM T") == datetime(2024, 7, 1, 12, 0)
    assert one(cursor, "SELECT V::TIMESTAMP_LTZ::TIMESTAMP_NTZ FROM T") == datetime(2024, 7, 1, 6, 15)


# --- semi-structured -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("json_text", "shown"),
    [
        ("1", "1"),
        ("-0.5", "-0.5"),
        ("12345678901234567890123456789012345678", "12345678901234567890123456789012345678"),
        ("0.1234567890123456789012345678901234567", "0.1234567890123456789012345678901234567"),
        ('"text"', '"text"'),
        ('"quote \\" slash \\\\ newline \\n é 😀"', '"quote \\" slash \\\\ newline \\n é 😀"'),
        ("true", "true"),
        ("null", "null"),
        ("[]", "[]"),
        ("{}", "{}"),
        ("[1,[2,3],{}]", "[\n  1,\n  [\n    2,\n    3\n  ],\n  {}\n]"),
        (
            '{"b":1,"a":{"d":null,"c":[true]}}',
            '{\n  "a": {\n    "c": [\n      true\n    ],\n    "d": null\n  },\n  "b": 1\n}',
        ),
    ],
)
def test_a_variant_arrives_as_json_text_with_sorted_keys_and_exact_numbers(cursor, json_text, shown):
    cursor.execute("CREATE TABLE T (N INTEGER, V VARIANT)")
    cursor.execute("INSERT INTO T SELECT 1, PARSE_JSON(?)", (json_text,))

    assert read(cursor) == [shown]


def test_objects_and_arrays_arrive_as_json_text(cursor):
    cursor.execute("CREATE TABLE T (O OBJECT, A ARRAY)")
    cursor.execute("INSERT INTO T SELECT OBJECT_CONSTRUCT('k', 1.50, 'a', 'x'), ARRAY_CONSTRUCT(1, 'two', TRUE)")

    row = cursor.execute("SELECT O, A, O:a, O:a::VARCHAR, A[0], A[0]::INTEGER FROM T").fetchone()

    assert row[0].startswith('{\n  "a": "x",\n  "k": 1.5')
    assert row[1:] == ('[\n  1,\n  "two",\n  true\n]', '"x"', "x", "1", 1)


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
