"""SNOWFLAKE.ACCOUNT_USAGE: QUERY_HISTORY and AGGREGATE_QUERY_HISTORY, as a model over the server's own history.

Rows are there at once; those of Snowflake are up to 45 minutes (QUERY_HISTORY) and 3 hours late. QUERY_HISTORY omits
what the table function omits; AGGREGATE_QUERY_HISTORY counts everything, by minute, session and text, since there
are no parameterized hashes here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import field

from loadgen.embedded.statement_history import (
    COLUMNS,
    RESULT_LIMIT_MAX,
    ROWS_CHARACTERS_MAX,
    StatementContext,
    StatementHistory,
)
from loadgen.values import dataclass

ACCOUNT_USAGE = ("SNOWFLAKE", "ACCOUNT_USAGE")
AGGREGATED_MAX = 20_000  # newest statements: more would hold up the event loop
MINUTE_MS = 60_000.0
_AGGREGATE_COLUMNS = """
CALLS NUMBER, INTERVAL_START_TIME TIMESTAMP_LTZ, INTERVAL_END_TIME TIMESTAMP_LTZ, QUERY_PARAMETERIZED_HASH VARCHAR,
QUERY_TEXT VARCHAR, DATABASE_NAME VARCHAR, SCHEMA_NAME VARCHAR, QUERY_TYPE VARCHAR, SESSION_ID NUMBER,
USER_NAME VARCHAR, ROLE_NAME VARCHAR, WAREHOUSE_NAME VARCHAR, WAREHOUSE_SIZE VARCHAR, WAREHOUSE_TYPE VARCHAR,
QUERY_TAG VARCHAR, IS_CLIENT_GENERATED_STATEMENT BOOLEAN, ERRORS VARIANT, TOTAL_ELAPSED_TIME VARIANT
"""
_AGGREGATED = tuple((name, type_) for name, type_ in (column.split() for column in _AGGREGATE_COLUMNS.split(",")))
USAGE_VIEWS = {
    "QUERY_HISTORY": (*COLUMNS, ("IS_CLIENT_GENERATED_STATEMENT", "BOOLEAN")),
    "AGGREGATE_QUERY_HISTORY": _AGGREGATED,
}
_STATUS = {"failed_with_error": "fail"}  # what the view says, where the function says otherwise

UsageRow = dict[str, object]


@dataclass(slots=True)
class _Group:
    """Calls of one text in one minute."""

    total_ms: list[int] = field(default_factory=list)
    errors: Counter[int] = field(default_factory=Counter)  # by code


def usage_rows(history: StatementHistory, view: str, now_ms: float) -> Iterator[UsageRow]:
    """The rows of a view; times are epoch milliseconds."""
    if view == "AGGREGATE_QUERY_HISTORY":
        yield from _aggregated(history)
        return
    for row in history.query_history(end_range_end_ms=now_ms, result_limit=RESULT_LIMIT_MAX):
        named: UsageRow = dict(zip((name for name, _ in COLUMNS), row, strict=True))
        status = str(named["EXECUTION_STATUS"])
        yield named | {"EXECUTION_STATUS": _STATUS.get(status, status), "IS_CLIENT_GENERATED_STATEMENT": False}


def _aggregated(history: StatementHistory) -> Iterator[UsageRow]:
    groups: dict[tuple[float, StatementContext, str, str], _Group] = {}
    characters = 0
    for one in history.newest(AGGREGATED_MAX):
        minute_ms = one.start_ms // MINUTE_MS * MINUTE_MS
        group = groups.setdefault((minute_ms, one.context, one.query_type, one.sql_text), _Group())
        if not group.total_ms:
            characters += len(one.sql_text) + len(one.context.query_tag)
        if characters > ROWS_CHARACTERS_MAX:
            raise ValueError(f"the texts of {len(groups)} statements have more than {ROWS_CHARACTERS_MAX:,} characters")
        group.total_ms.append(round(one.end_ms - one.start_ms))
        if one.error_code:
            group.errors[one.error_code] += 1
    for (minute_ms, context, query_type, text), group in groups.items():
        times = group.total_ms
        yield {
            "CALLS": len(times),
            "INTERVAL_START_TIME": minute_ms,
            "INTERVAL_END_TIME": minute_ms + MINUTE_MS,
            "QUERY_PARAMETERIZED_HASH": None,
            "QUERY_TEXT": text,
            "DATABASE_NAME": context.database,
            "SCHEMA_NAME": context.schema,
            "QUERY_TYPE": query_type,
            "SESSION_ID": context.session_id,
            "USER_NAME": context.user,
            "ROLE_NAME": context.role,
            "WAREHOUSE_NAME": context.warehouse,
            "WAREHOUSE_SIZE": context.warehouse_size,
            "WAREHOUSE_TYPE": context.warehouse_type,
            "QUERY_TAG": context.query_tag,
            "IS_CLIENT_GENERATED_STATEMENT": False,
            "ERRORS": [{"error_code": code, "count": count} for code, count in group.errors.items()],
            "TOTAL_ELAPSED_TIME": {
                "sum": sum(times), "avg": sum(times) / len(times), "min": min(times), "max": max(times)
            },
        }  # fmt: skip
