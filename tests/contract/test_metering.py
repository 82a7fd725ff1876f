"""WAREHOUSE_METERING_HISTORY of the embedded server: credits of its model, by hour."""

from __future__ import annotations

from typing import Any

import pytest
from snowflake.connector import DictCursor
from snowflake.connector.errors import ProgrammingError

pytestmark = pytest.mark.any_driver

FUNCTION = "INFORMATION_SCHEMA.WAREHOUSE_METERING_HISTORY"


@pytest.fixture
def named(connect: Any, database: str) -> Any:
    """A cursor that gives rows by name, in the test's own database."""
    return connect(database=database).cursor(DictCursor)


def metered(cursor: Any, arguments: str) -> list[dict[str, Any]]:
    return list(cursor.execute(f"SELECT * FROM TABLE({FUNCTION}({arguments})) ORDER BY START_TIME").fetchall())


def test_a_warehouse_that_ran_is_metered_for_at_least_a_minute(connect: Any, named: Any, database: str) -> None:
    name, maker = f"{database}_WH", connect().cursor()  # a session uses the warehouse that it creates
    maker.execute(f"CREATE WAREHOUSE {name} WAREHOUSE_SIZE = MEDIUM GENERATION = '1'")
    maker.execute(f"ALTER WAREHOUSE {name} SUSPEND")

    by_position = metered(named, f"DATEADD(hour, -2, CURRENT_TIMESTAMP()), CURRENT_TIMESTAMP(), '{name}'")
    by_name = metered(
        named, f"DATE_RANGE_START => DATEADD(hour, -2, CURRENT_TIMESTAMP()), WAREHOUSE_NAME => '{name.lower()}'"
    )

    assert by_position == by_name
    assert {row["WAREHOUSE_NAME"] for row in by_name} == {name}
    credits = sum(row["CREDITS_USED"] for row in by_name)
    assert 4 / 60 <= credits < 4  # a minute of Medium, and less than an hour
    assert credits == sum(row["CREDITS_USED_COMPUTE"] for row in by_name)
    assert all((row["END_TIME"] - row["START_TIME"]).total_seconds() == 3600 for row in by_name)


def test_an_unknown_argument_is_rejected(named: Any) -> None:
    with pytest.raises(ProgrammingError, match="Invalid argument name 'RESULT_LIMIT'"):
        metered(named, "RESULT_LIMIT => 3")
    with pytest.raises(ProgrammingError, match="Missing argument 'DATE_RANGE_START'"):
        metered(named, "")
