"""Time zones and types that Snowflake accepts: the embedded server has them, with Snowflake's results."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.cases import in_one_test
from tests.contract.accepted_builders import (
    ntz,
)
from tests.contract.sql import Sql

pytestmark = pytest.mark.any_driver
PACIFIC = ZoneInfo("America/Los_Angeles")
SECOND = timedelta(seconds=1)


# --- time zones ------------------------------------------------------------------------------------------------------


def pacific_seconds() -> float:
    """By how many seconds Pacific wall time is behind UTC now."""
    offset = datetime.now(PACIFIC).utcoffset()
    assert offset is not None
    return -offset.total_seconds()


def test_row_20_current_timestamp_in_an_ntz_column_is_pacific_wall_time_by_default(sql: Sql) -> None:
    sql("CREATE HYBRID TABLE B (ID NUMBER PRIMARY KEY, T TIMESTAMP_NTZ DEFAULT CURRENT_TIMESTAMP(), U TIMESTAMP_NTZ)")
    sql("INSERT INTO B (ID, U) VALUES (1, SYSDATE())")
    sql("INSERT INTO B (ID, T, U) SELECT 2, CURRENT_TIMESTAMP(), SYSDATE()")

    gaps = sql("SELECT DATEDIFF(second, T, U) FROM B")

    assert all(abs(gap - pacific_seconds()) <= 60 for (gap,) in gaps)


def test_sysdate_is_utc_in_every_session(connect: Callable[..., Any]) -> None:
    for zone in ("America/Los_Angeles", "UTC", "Asia/Kolkata"):
        sql = Sql(connect(session_parameters={"TIMEZONE": zone}))

        before = datetime.now(UTC)
        now = sql.value("SELECT SYSDATE()")

        assert now.tzinfo is None
        assert before - SECOND <= now.replace(tzinfo=UTC) <= datetime.now(UTC) + SECOND


def test_two_sessions_with_different_time_zones_disagree_about_current_timestamp(connect: Callable[..., Any]) -> None:
    east, west = (Sql(connect(session_parameters={"TIMEZONE": z})) for z in ("Asia/Tokyo", "America/New_York"))
    east("CREATE TABLE X (WHO VARCHAR, T TIMESTAMP_NTZ, L TIMESTAMP_LTZ)")
    for who, session in (("east", east), ("west", west)):
        session("INSERT INTO X SELECT ?, CURRENT_TIMESTAMP(), CURRENT_TIMESTAMP()", who)

    hours = east.value(
        "SELECT ROUND(DATEDIFF(minute, W.T, E.T) / 60) FROM X E, X W WHERE E.WHO = 'east' AND W.WHO = 'west'"
    )
    instants = {session.value("SELECT MAX(L) FROM X") for session in (east, west)}

    assert hours in (13, 14)  # with and without daylight saving time in New York
    assert len(instants) == 1


def test_the_session_time_zone_can_be_changed_and_shown(sql: Sql) -> None:
    assert sql.dicts("SHOW PARAMETERS LIKE 'TIMEZONE'")[0]["value"] == "America/Los_Angeles"

    sql("ALTER SESSION SET TIMEZONE = 'Europe/Berlin'")

    assert sql.value("SELECT '2026-07-01 12:00:00'::TIMESTAMP_LTZ::VARCHAR") == "2026-07-01 12:00:00.000 +0200"
    assert sql.value("SELECT CURRENT_TIMESTAMP()").utcoffset() == datetime.now(ZoneInfo("Europe/Berlin")).utcoffset()
    sql("ALTER SESSION UNSET TIMEZONE")
    assert sql.dicts("SHOW PARAMETERS LIKE 'TIMEZONE'")[0]["value"] == "America/Los_Angeles"


def test_a_time_zone_changed_inside_a_transaction_outlives_its_rollback(connect: Callable[..., Any]) -> None:
    wall_time = "SELECT '2026-07-01 12:00:00'::TIMESTAMP_LTZ::VARCHAR"
    sql = Sql(connect())
    sql(wall_time)
    sql("CREATE TABLE X (A NUMBER)")
    sql("BEGIN")
    sql("INSERT INTO X VALUES (1)")
    sql("ALTER SESSION SET TIMEZONE = 'Asia/Tokyo'")
    sql("INSERT INTO X VALUES (2)")
    sql("ROLLBACK")

    mine = sql.value(wall_time)
    others = Sql(connect(session_parameters={"TIMEZONE": "Asia/Tokyo"})).value(wall_time)

    assert mine == others == "2026-07-01 12:00:00.000 +0900"


# --- types -----------------------------------------------------------------------------------------------------------


IMPLICIT = [
    ("NUMBER", "'5'", 5),
    ("NUMBER(5, 2)", "'1.255'", Decimal("1.26")),
    ("NUMBER(5, 1)", "2.25", Decimal("2.3")),
    ("NUMBER", "1.5", 2),
    ("FLOAT", "'1e3'", 1000.0),
    ("VARCHAR", "5", "5"),
    ("VARCHAR", "1.50", "1.50"),
    ("VARCHAR", "TRUE", "true"),
    ("VARCHAR", "'2026-01-02'::DATE", "2026-01-02"),
    ("BOOLEAN", "'true'", True),
    ("BOOLEAN", "1", True),
    ("BOOLEAN", "'no'", False),
    ("DATE", "'2026-01-02'", date(2026, 1, 2)),
    ("DATE", "'2026-01-02 03:04:05'::TIMESTAMP_NTZ", date(2026, 1, 2)),
    ("TIME", "'03:04:05'", time(3, 4, 5)),
    ("TIMESTAMP_NTZ", "'2026-01-02 03:04:05.678'", ntz("2026-01-02 03:04:05.678000")),
    ("TIMESTAMP_NTZ", "'2026-01-02T03:04:05'", ntz("2026-01-02 03:04:05")),
    ("TIMESTAMP_NTZ", "'2026-01-02'", ntz("2026-01-02 00:00:00")),
    ("TIMESTAMP_NTZ", "'2026-01-02'::DATE", ntz("2026-01-02 00:00:00")),
]


@in_one_test(("kind", "literal", "value"), IMPLICIT)
def test_a_value_is_converted_to_the_type_of_its_column(shared: Sql, kind: str, literal: str, value: Any) -> None:
    shared(f"CREATE OR REPLACE TABLE CONVERTED (A {kind})")

    shared(f"INSERT INTO CONVERTED VALUES ({literal})")
    shared(f"INSERT INTO CONVERTED SELECT {literal}")
    shared(f"UPDATE CONVERTED SET A = {literal}")

    assert shared("SELECT A FROM CONVERTED") == [(value,), (value,)]


def test_a_text_bind_fits_every_column(sql: Sql) -> None:
    sql("CREATE TABLE X (N NUMBER, D DATE, T TIMESTAMP_NTZ, B BOOLEAN, F FLOAT)")

    sql("INSERT INTO X VALUES (?, ?, ?, ?, ?)", "7", "2026-01-02", "2026-01-02 03:04:05", "false", "1.5")

    assert sql("SELECT * FROM X WHERE N = ? AND D >= ? AND T < ?", "7", "2026-01-01", "2027-01-01") == [
        (7, date(2026, 1, 2), ntz("2026-01-02 03:04:05"), False, 1.5)
    ]


EXPRESSIONS = [
    ("1 / 3", Decimal("0.333333")),
    ("10 / 4", Decimal("2.500000")),
    ("7 % 3", 1),
    ("-7 % 3", -1),
    ("1 + 1.5", Decimal("2.5")),
    ("2 * 1.25", Decimal("2.50")),
    ("ROUND(2.5)", 3),
    ("ROUND(-2.5)", -3),
    ("TRUNC(2.789, 1)", Decimal("2.7")),
    ("DIV0(1, 0)", Decimal("0.000000")),
    ("NULLIF(1, 1)", None),
    ("IFF(1 > 0, 'yes', 'no')", "yes"),
    ("CASE 2 WHEN 1 THEN 'a' WHEN 2 THEN 'b' END", "b"),
    ("DECODE(NULL, 1, 'a', NULL, 'n', 'x')", "n"),
    ("COALESCE(NULL, NULL, 3)", 3),
    ("ZEROIFNULL(NULL)", 0),
    ("GREATEST(1, 5, 3)", 5),
    ("'a' || 'b' || NULL", None),
    ("CONCAT('a', 'b')", "ab"),
    ("UPPER('aé')", "AÉ"),
    ("SUBSTR('hello', 2, 3)", "ell"),
    ("SUBSTRING('hello', -3, 2)", "ll"),
    ("LEFT('hello', 2) || RIGHT('hello', 2)", "helo"),
    ("LPAD('7', 3, '0')", "007"),
    ("SPLIT_PART('a-b-c', '-', 2)", "b"),
    ("REPLACE('banana', 'an', 'o')", "booa"),
    ("TRIM('  x ')", "x"),
    ("POSITION('l' IN 'hello')", 3),
    ("CHARINDEX('l', 'hello')", 3),
    ("LENGTH('😀é')", 2),
    ("'abc' LIKE 'a%'", True),
    ("'a_c' LIKE 'a\\\\_c' ESCAPE '\\\\'", True),
    ("'ABC' ILIKE 'a%'", True),
    ("'abc' LIKE ANY ('x%', '%c')", True),
    ("'abc' RLIKE 'a.c'", True),
    ("'xabcx' RLIKE 'a.c'", False),
    ("REGEXP_REPLACE('a1b2', '[0-9]', '#')", "a#b#"),
    ("REGEXP_SUBSTR('ab12', '[0-9]+')", "12"),
    ("CONTAINS('hello', 'ell')", True),
    ("STARTSWITH('hello', 'he')", True),
    ("MD5('a')", "0cc175b9c0f1b6a831c399e269772661"),
    ("SHA2('a')", "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"),
    ("LENGTH(UUID_STRING())", 36),
    ("TO_VARCHAR(1234.5)", "1234.5"),
    ("TO_CHAR('2026-01-02 03:04:05'::TIMESTAMP_NTZ, 'YYYY/MM/DD HH24:MI')", "2026/01/02 03:04"),
    ("TO_DATE('02.01.2026', 'DD.MM.YYYY')", date(2026, 1, 2)),
    ("TO_TIMESTAMP_NTZ(1767322800)", ntz("2026-01-02 03:00:00")),
    ("TRY_CAST('x' AS NUMBER)", None),
    ("TRY_CAST('x' AS DATE)", None),
    ("TRY_TO_NUMBER('12')", 12),
    ("DATEADD(month, 1, '2026-01-31'::DATE)", date(2026, 2, 28)),
    ("DATEADD('day', -1, '2026-01-01'::TIMESTAMP_NTZ)", ntz("2025-12-31 00:00:00")),
    ("DATEDIFF(day, '2026-01-01', '2026-03-01')", 59),
    ("DATE_TRUNC('month', '2026-05-17'::DATE)", date(2026, 5, 1)),
    ("DATE_PART(epoch_second, '2026-01-02 03:00:00'::TIMESTAMP_NTZ)", 1767322800),
    ("EXTRACT(year FROM '2026-01-02'::DATE)", 2026),
    ("YEAR('2026-01-02'::DATE) + MONTH('2026-01-02'::DATE)", 2027),
    ("LAST_DAY('2026-02-03'::DATE)", date(2026, 2, 28)),
    ("'2026-01-02'::DATE + 1", date(2026, 1, 3)),
    ("'2026-03-01'::DATE - '2026-02-01'::DATE", 28),
    ("1 IN (1, 2) AND 3 NOT IN (1, 2)", True),
    ("5 BETWEEN 1 AND 5", True),
    ("NULL = NULL", None),
    ("EQUAL_NULL(NULL, NULL)", True),
    ("1 IS DISTINCT FROM NULL", True),
    ("TRUE AND NULL", None),
    ("1 = 1.0", True),
    ("'1' = 1", True),
    ("X'00FF'::VARCHAR", "00FF"),
    ("HASH('a') = HASH('a')", True),
    ("BITAND(6, 3)", 2),
    ("POWER(2, 10)", 1024.0),
    ("WIDTH_BUCKET(5, 0, 10, 5)", 3),
]


@in_one_test(("expression", "value"), EXPRESSIONS)
def test_an_expression_has_snowflakes_value(shared: Sql, expression: str, value: Any) -> None:
    got = shared.value(f"SELECT {expression}")

    assert got == value
    assert type(got) is type(value) or isinstance(value, float | int)


def test_result_columns_are_named_as_snowflake_names_them(numbers: Sql) -> None:
    assert numbers.names("SELECT I, i + 1, COUNT(*), max(n.i), 'x', I AS \"mixed Case\" FROM N GROUP BY I") == [
        "I", "I + 1", "COUNT(*)", "MAX(N.I)", "'X'", "mixed Case",
    ]  # fmt: skip
