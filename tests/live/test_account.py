"""The embedded server's claims about Snowflake, checked on a real account.

They have not been run yet. They need an account with hybrid tables, and a connection whose role may create a schema.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from loadgen.snowflake.connect import close, connect
from loadgen.snowflake.driver import major
from loadgen.snowflake.failure import classify
from loadgen.snowflake.profile_lookup import find_profile
from loadgen.snowflake.settings import control_settings

CONNECTION = os.environ.get("LOADGEN_LIVE_CONNECTION")
pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(CONNECTION is None, reason="needs a Snowflake account: set LOADGEN_LIVE_CONNECTION to its name"),
]


@pytest.fixture(scope="module")
def cursor() -> Iterator[Any]:
    profile = find_profile(CONNECTION)
    connection = connect(profile, control_settings(profile, major=major(), tag="loadgen live test"))
    cursor = connection.cursor()
    schema = f"LOADGEN_LIVE_{uuid.uuid4().hex[:8].upper()}"
    cursor.execute(f"CREATE SCHEMA {schema}")
    try:
        yield cursor
    finally:
        cursor.execute(f"DROP SCHEMA {schema}")
        close(connection)


def refused(cursor: Any, sql: str) -> int:
    with pytest.raises(Exception) as caught:  # the class differs between connector majors; the number does not
        cursor.execute(sql)
    return int(getattr(caught.value, "errno", 0) or 0)


def test_a_second_row_with_the_same_primary_key_is_200001(cursor: Any):
    cursor.execute("CREATE HYBRID TABLE K (ID NUMBER(38,0) PRIMARY KEY)")
    cursor.execute("INSERT INTO K VALUES (1)")

    with pytest.raises(Exception) as caught:
        cursor.execute("INSERT INTO K VALUES (1)")

    assert caught.value.errno == 200001  # type: ignore[attr-defined]
    assert classify(caught.value).is_duplicate_key


@pytest.mark.parametrize(
    ("sql", "errno"),
    [
        ("UPDATE K SET ID = 2 RETURNING ID", 1003),
        ("SELECT NO_SUCH_FUNCTION_OF_OURS()", 2140),
        ("SELECT * FROM NO_SUCH_TABLE_OF_OURS", 2003),
        ("SELECT 1; SELECT 2", 8),
    ],
)
def test_what_the_embedded_server_refuses_snowflake_refuses_with_the_same_number(cursor: Any, sql: str, errno: int):
    assert refused(cursor, sql) == errno


def test_control_sessions_are_in_utc_and_read_the_latest_writes(cursor: Any):
    cursor.execute("SHOW PARAMETERS LIKE 'TIMEZONE'")

    assert cursor.fetchone()[1] == "UTC"
