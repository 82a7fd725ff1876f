"""Every data type there and back, by binds, array binds and literals, with the Python types the driver gives."""
# ruff: noqa: DTZ001  (a TIMESTAMP_NTZ is a time without a zone)

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
import snowflake.connector
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from snowflake.connector.errors import ProgrammingError

from tests.contract.sql import one, read

MAJOR = int(snowflake.connector.__version__.split(".")[0])
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


def python_type(value: Any) -> type:
    """What the driver gives back for such a value."""
    return bytearray if isinstance(value, bytes) and MAJOR >= 5 else type(value)


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
