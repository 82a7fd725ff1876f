"""Session parameters: the ones the server knows, their types, defaults and limits.

A known parameter is checked as Snowflake checks it; an unknown name is refused as Snowflake refuses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from loadgen.embedded.sql_errors import SqlError, compilation
from loadgen.embedded.sql_types import is_number

Value = bool | int | str


@dataclass(frozen=True, slots=True)
class SessionParameter:
    name: str
    default: Value
    low: int = 0
    high: int = 2**31
    description: str = ""


_WEEK_S = 604_800

_LIST = (
    SessionParameter(
        "ABORT_DETACHED_QUERY", False, description="abort statements of a vanished client after 5 minutes"
    ),
    SessionParameter("AUTOCOMMIT", True, description="each statement is its own transaction"),
    SessionParameter("BINARY_INPUT_FORMAT", "HEX"),
    SessionParameter("BINARY_OUTPUT_FORMAT", "HEX"),
    SessionParameter("CLIENT_METADATA_REQUEST_USE_CONNECTION_CTX", False),
    SessionParameter("CLIENT_PREFETCH_THREADS", 4, 1, 10),
    SessionParameter("CLIENT_RESULT_CHUNK_SIZE", 160, 16, 160),
    SessionParameter("CLIENT_RESULT_PREFETCH_SLOTS", 2, 1, 100),
    SessionParameter("CLIENT_RESULT_PREFETCH_THREADS", 1, 1, 100),
    SessionParameter("CLIENT_SESSION_CLONE", False),
    SessionParameter("CLIENT_SESSION_KEEP_ALIVE", False),
    SessionParameter("CLIENT_SESSION_KEEP_ALIVE_HEARTBEAT_FREQUENCY", 3600, 900, 3600),
    SessionParameter("CLIENT_STAGE_ARRAY_BINDING_THRESHOLD", 0, description="0: array binds never go through a stage"),
    SessionParameter("CLIENT_TELEMETRY_ENABLED", True),
    SessionParameter("CLIENT_TELEMETRY_SESSIONLESS_ENABLED", False),
    SessionParameter("CLIENT_TIMESTAMP_TYPE_MAPPING", "TIMESTAMP_LTZ"),
    SessionParameter("DATE_INPUT_FORMAT", "AUTO"),
    SessionParameter("DATE_OUTPUT_FORMAT", "YYYY-MM-DD"),
    SessionParameter("ENABLE_UNLOAD_PHYSICAL_TYPE_OPTIMIZATION", True),
    SessionParameter("ERROR_ON_NONDETERMINISTIC_MERGE", True),
    SessionParameter("ERROR_ON_NONDETERMINISTIC_UPDATE", False),
    SessionParameter("GEOGRAPHY_OUTPUT_FORMAT", "GeoJSON"),
    SessionParameter("HYBRID_TABLE_LOCK_TIMEOUT", 3600, 0, _WEEK_S, "seconds a statement waits for a row lock"),
    SessionParameter("JDBC_QUERY_RESULT_FORMAT", "JSON"),
    SessionParameter("JSON_INDENT", 2, 0, 16),
    SessionParameter("LOCK_TIMEOUT", 43_200, 0, _WEEK_S, "seconds a statement waits for a table lock"),
    SessionParameter("MULTI_STATEMENT_COUNT", 1, 0, 1),
    SessionParameter("ODBC_QUERY_RESULT_FORMAT", "JSON"),
    SessionParameter("PYTHON_CONNECTOR_QUERY_RESULT_FORMAT", "JSON"),
    SessionParameter("PYTHON_CONNECTOR_USE_NANOARROW", True),
    SessionParameter("QUERY_TAG", "", 0, 2000),
    SessionParameter("QUOTED_IDENTIFIERS_IGNORE_CASE", False),
    SessionParameter("READ_LATEST_WRITES", False),
    SessionParameter("ROWS_PER_RESULTSET", 0),
    SessionParameter("STATEMENT_QUEUED_TIMEOUT_IN_SECONDS", 0, 0, _WEEK_S),
    SessionParameter("STATEMENT_TIMEOUT_IN_SECONDS", 172_800, 0, _WEEK_S),
    SessionParameter("STRICT_JSON_OUTPUT", False),
    SessionParameter("TIMESTAMP_DAY_IS_ALWAYS_24H", False),
    SessionParameter("TIMESTAMP_INPUT_FORMAT", "AUTO"),
    SessionParameter("TIMESTAMP_LTZ_OUTPUT_FORMAT", ""),
    SessionParameter("TIMESTAMP_NTZ_OUTPUT_FORMAT", "YYYY-MM-DD HH24:MI:SS.FF3"),
    SessionParameter("TIMESTAMP_OUTPUT_FORMAT", "YYYY-MM-DD HH24:MI:SS.FF3 TZHTZM"),
    SessionParameter("TIMESTAMP_TYPE_MAPPING", "TIMESTAMP_NTZ"),
    SessionParameter("TIMESTAMP_TZ_OUTPUT_FORMAT", ""),
    SessionParameter("TIMEZONE", "America/Los_Angeles"),
    SessionParameter("TIME_INPUT_FORMAT", "AUTO"),
    SessionParameter("TIME_OUTPUT_FORMAT", "HH24:MI:SS"),
    SessionParameter("TRANSACTION_ABORT_ON_ERROR", False),
    SessionParameter("TRANSACTION_DEFAULT_ISOLATION_LEVEL", "READ COMMITTED"),
    SessionParameter("TWO_DIGIT_CENTURY_START", 1970, 1900, 2100),
    SessionParameter("UNSUPPORTED_DDL_ACTION", "ignore"),
    SessionParameter("USE_CACHED_RESULT", True),
    SessionParameter("WEEK_OF_YEAR_POLICY", 0, 0, 1),
    SessionParameter("WEEK_START", 0, 0, 7),
)
PARAMETERS: dict[str, SessionParameter] = {parameter.name: parameter for parameter in _LIST}
DEFAULTS: dict[str, Value] = {parameter.name: parameter.default for parameter in _LIST}
# Settings that would change how results are read or written; this server has one way only.
_FIXED = {
    "BINARY_OUTPUT_FORMAT", "BINARY_INPUT_FORMAT", "MULTI_STATEMENT_COUNT", "TIMESTAMP_TYPE_MAPPING",
    "QUOTED_IDENTIFIERS_IGNORE_CASE", "ROWS_PER_RESULTSET", "TRANSACTION_DEFAULT_ISOLATION_LEVEL",
    "CLIENT_STAGE_ARRAY_BINDING_THRESHOLD", "PYTHON_CONNECTOR_QUERY_RESULT_FORMAT", "JDBC_QUERY_RESULT_FORMAT",
    "ODBC_QUERY_RESULT_FORMAT",
}  # fmt: skip


def checked(name: str, value: Any) -> Value:
    """The value as the parameter's own type; raises what Snowflake says of a bad name or value."""
    parameter = PARAMETERS.get(name)
    if parameter is None:
        raise compilation(1006, "22023", f"invalid parameter '{name}'")
    typed = _typed(parameter, value)
    if name == "TIMEZONE":
        typed = _zone(str(typed))
    if name in _FIXED and typed != parameter.default:
        raise SqlError(2, "0A000", f"SQL compilation error:\nUnsupported feature '{name} = {value}'.")
    return typed


def _typed(parameter: SessionParameter, value: Any) -> Value:
    text = str(value).strip()
    if isinstance(parameter.default, bool):
        if text.upper() in ("TRUE", "ON", "1", "YES"):
            return True
        if text.upper() in ("FALSE", "OFF", "0", "NO"):
            return False
    elif isinstance(parameter.default, int):
        if is_number(text) and parameter.low <= int(text) <= parameter.high:
            return int(text)
    elif parameter.name != "QUERY_TAG" or len(str(value)) <= parameter.high:
        return str(value)
    raise compilation(1008, "22023", f"invalid value [{text[:100]}] for parameter '{parameter.name}'")


def _zone(text: str) -> str:
    try:
        return str(ZoneInfo(text).key)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise compilation(1008, "22023", f"invalid value ['{text[:100]}'] for parameter 'TIMEZONE'") from None
