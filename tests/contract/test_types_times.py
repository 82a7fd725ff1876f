"""Times with and without a zone, and semi-structured values, as the driver gives them."""
# ruff: noqa: DTZ001  (a TIMESTAMP_NTZ is a time without a zone)

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from tests.contract.sql import one, read

# --- times -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["TIME", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "TIMESTAMP_TZ"])
@pytest.mark.parametrize(("scale", "microsecond"), [(0, 0), (3, 123_000), (6, 123_456), (9, 123_456)])
def test_a_time_has_as_many_decimals_as_its_type(cursor, kind, scale, microsecond):
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
