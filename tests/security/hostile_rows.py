"""Rows with hostile values, for every column of the tables that listings and runners read."""

from __future__ import annotations

import itertools
import json
from contextlib import suppress
from datetime import datetime
from typing import Any

from loadgen.control.session import ControlFailed
from tests.control_plane import ControlPlane

NOW = datetime(2026, 11, 15, 2)  # noqa: DTZ001  as the tables have it
TEXTS = ("", "bogus", "../../victim", "{", "[1, null]", '{"a": 1}', "[" * 5_000, "\x1b[31mred\x07", "x" * 2_000, "null")
NUMBERS = (-1, 0, 10**37)
TIMES = ("0001-01-01", "9999-12-31 23:59:59")
TABLES: dict[str, dict[str, Any]] = {
    "RUN_QUEUE": {
        "QUEUE_ID": "good",
        "IDEMPOTENCY_KEY": "good",
        "NAME": "orders",
        "SCENARIO": "version: 1",
        "FILES": "{}",
        "CONNECTION": "embedded",
        "TARGET": "",
        "REQUIRES": "[]",
        "PRIORITY": 0,
        "STATUS": "QUEUED",
        "AVAILABLE_AT": NOW,
        "OWNER": "host-1",
        "EPOCH": 0,
        "ATTEMPTS": 0,
        "MAX_ATTEMPTS": 5,
        "RUN_ID": "20261115-0200-orders-7f3a9c",
        "EXIT_CODE": 0,
        "REASON": "none",
        "CREATED_AT": NOW,
        "ENDED_AT": NOW,
        "UPDATED_AT": NOW,
    },
    "RUN_ATTEMPTS": {
        "QUEUE_ID": "good",
        "EPOCH": 1,
        "OWNER": "host-1",
        "RUN_ID": "20261115-0200-orders-7f3a9c",
        "STATUS": "COMPLETED",
        "EXIT_CODE": 0,
        "REASON": "none",
        "STARTED_AT": NOW,
        "ENDED_AT": NOW,
        "EXPIRES_AT": NOW,
        "ATTEMPTS": 1,
    },
    "RUN_ATTEMPT_ENDS": {
        "QUEUE_ID": "good",
        "EPOCH": 1,
        "STATUS": "COMPLETED",
        "QUEUE_STATUS": "COMPLETED",
        "RUN_ID": "20261115-0200-orders-7f3a9c",
        "EXIT_CODE": 0,
        "REASON": "none",
        "ATTEMPTS": 1,
        "AVAILABLE_AT": NOW,
        "ENDED_AT": NOW,
    },
    "POOL_WORKERS": {
        "WORKER_ID": "good",
        "HOSTNAME": "host",
        "PID": 7,
        "VERSION": "1",
        "TASK_QUEUE": "Q",
        "LABELS": '["zone=eu"]',
        "CAPABILITIES": "[]",
        "CAPACITY": 1,
        "STATUS": "ONLINE",
        "CURRENT_RUN": "orders-1",
        "TOTAL_COMPLETED": 1,
        "TOTAL_FAILED": 0,
        "REGISTERED_AT": NOW,
        "LAST_BEAT_AT": "2099-01-01",
        "DEREGISTERED_AT": NOW,
    },
    "SCHEDULES": {
        "SCHEDULE_ID": "good",
        "NAME": "good",
        "CRON": "0 2 * * *",
        "TIMEZONE": "UTC",
        "SCENARIO_NAME": "orders",
        "SCENARIO": "version: 1",
        "FILES": "{}",
        "CONNECTION": "embedded",
        "TARGET": "",
        "REQUIRES": "[]",
        "PRIORITY": 0,
        "ENABLED": True,
        "MAX_CATCHUP": 1,
        "OVERLAP": "queue",
        "LAST_FIRE_AT": NOW,
        "REASON": "none",
        "CREATED_AT": NOW,
        "UPDATED_AT": NOW,
    },
    "RUN_STATUS": {
        "RUN_ID": "good",
        "TEST_ID": "good",
        "TEMPLATE_ID": "t",
        "TEST_NAME": "orders",
        "SCENARIO_CONFIG": "{}",
        "STATUS": "COMPLETED",
        "PHASE": "PROCESSING",
        "START_TIME": NOW,
        "WARMUP_START_TIME": NOW,
        "WARMUP_END_TIME": NOW,
        "END_TIME": NOW,
        "TOTAL_WORKERS_EXPECTED": 1,
        "WORKERS_REGISTERED": 1,
        "WORKERS_ACTIVE": 0,
        "WORKERS_COMPLETED": 1,
        "TOTAL_OPS": 1,
        "ERROR_COUNT": 0,
        "CURRENT_QPS": 1.0,
        "FIND_MAX_STATE": "{}",
        "WORKER_TARGETS": "{}",
        "NEXT_SEQUENCE_ID": 1,
        "LEASE_EPOCH": 0,
        "REASON": "none",
        "VERDICT": "passed",
        "ENRICHMENT_STATUS": "DONE",
        "CREATED_AT": NOW,
        "UPDATED_AT": NOW,
    },
}
TABLES["WORKER_HEARTBEATS"] = {
    "RUN_ID": "good",
    "WORKER_ID": "worker-0",
    "WORKER_GROUP_ID": 0,
    "STATUS": "COMPLETED",
    "PHASE": "PROCESSING",
    "LAST_HEARTBEAT": NOW,
    "HEARTBEAT_COUNT": 1,
    "ACTIVE_CONNECTIONS": 0,
    "OPEN_CONNECTIONS": 0,
    "TARGET_CONNECTIONS": 0,
    "LAST_ERROR": "none",
    "ERROR_COUNT": 0,
    "LIVE_METRICS": "{}",
    "LAST_SEQUENCE_ID": 0,
    "HOSTNAME": "host",
    "PID": 7,
    "VERSION": "1",
    "LABELS": "[]",
    "CPU_PERCENT": 1.0,
    "MEMORY_PERCENT": 1.0,
    "CREATED_AT": NOW,
    "UPDATED_AT": NOW,
}
TABLES["RUN_LEASES"] = {"RUN_ID": "good", "EPOCH": 1, "OWNER": "host:7:x", "EXPIRES_AT": NOW}
KEYS = {"QUEUE_ID", "IDEMPOTENCY_KEY", "WORKER_ID", "SCHEDULE_ID", "RUN_ID", "TEST_ID"}
numbers = itertools.count(1)


def hostile_values(column: str, usual: Any) -> tuple[Any, ...]:
    if isinstance(usual, bool):
        return (None, False)
    if isinstance(usual, (int, float)):
        return (None, *NUMBERS)
    if isinstance(usual, datetime) or column.endswith("_AT"):
        return (None, *TIMES)
    return (None, *TEXTS)


def plant(plane: ControlPlane, table: str, **columns: Any) -> bool:
    """A row as loadgen writes it, but for these columns. False: the table itself refuses it."""
    row = TABLES[table] | columns
    names, binds = ", ".join(row), [str(value) if isinstance(value, datetime) else value for value in row.values()]
    times = ("_AT", "_TIME", "LAST_HEARTBEAT")
    marks = ", ".join("TO_TIMESTAMP_NTZ(?)" if name.endswith(times) else "?" for name in row)
    with suppress(ControlFailed):
        return plane.change(f"INSERT INTO {table} ({names}) SELECT {marks}", *binds) == 1
    return False


def plant_all(plane: ControlPlane, table: str) -> int:
    """Every hostile value in every column, one at a time, but those that the table itself refuses. How many rows."""
    rows, row = [], TABLES[table]
    described = {name: rest for name, *rest in plane.rows(DESCRIBED, plane.place.schema, table)}
    for column, usual in row.items():
        _, nullable, length = described[column]
        for value in hostile_values(column, usual):
            if (value is None and nullable == "NO") or (length is not None and len(str(value or "")) > length):
                continue
            number = next(numbers)
            own: dict[str, Any] = {name: f"h{number}" for name in row if name in KEYS and name != "RUN_ID"}
            if table == "RUN_STATUS":
                own["RUN_ID"] = f"h{number}"
            if table == "SCHEDULES":
                own["NAME"] = f"h{number}"
            if table in ("RUN_ATTEMPTS", "RUN_ATTEMPT_ENDS", "RUN_LEASES"):
                own = {"EPOCH": number}
            rows.append([None if one is None else str(one) for one in (row | own | {column: value}).values()])
    kinds = [described[column][0] for column in row]
    chosen = ", ".join(
        f"CAST(VALUE[{place}]::VARCHAR AS VARIANT)" if kind == "VARIANT" else _cast(kind, place)
        for place, kind in enumerate(kinds)
    )
    sql = f"INSERT INTO {table} ({', '.join(row)}) SELECT {chosen} FROM TABLE(FLATTEN(INPUT => PARSE_JSON(?)))"
    assert plane.change(sql, json.dumps(rows)) == len(rows)
    return len(rows)


# --- tables of runs --------------------------------------------------------------------------------------------------

DEEP = "[" * 500 + "]" * 500
VARIANTS = ("null", "7", '"text"', "[1, null]", '{"a": 1}', '{"version": 1}', DEEP)
OF_TYPES: dict[str, tuple[Any, ...]] = {
    "NUMBER": (-1, 0, 10**37),
    "FLOAT": (-1.0, 1e308, "NaN", "inf"),
    "BOOLEAN": ("false",),
    "TIMESTAMP_NTZ": TIMES,
    "VARIANT": VARIANTS,
    "TEXT": ("", "bogus", "\x1b[31mred\x07", "x" * 2_000),
}
# The columns that make a row another one, by table.
RESULT_TABLES = {
    "TEST_RESULTS": ("TEST_ID",),
    "WINDOW_RESULTS": ("WORKER_ID",),
    "FIND_MAX_STEP_HISTORY": ("STEP_NUMBER",),
    "WAREHOUSE_POLL_SNAPSHOTS": ("SNAPSHOT_ID",),
    "WORKER_METRICS_SNAPSHOTS": ("SNAPSHOT_ID",),
    "QUERY_EXECUTIONS": ("EXECUTION_ID",),
    "RUN_CONTROL_EVENTS": ("SEQUENCE_ID", "EVENT_ID"),
    "TEST_LOGS": ("LOG_ID",),
    "SCHEDULE_FIRES": ("FIRE_AT",),
}
DESCRIBED = (
    "SELECT COLUMN_NAME, DATA_TYPE, IS_NULLABLE, CHARACTER_MAXIMUM_LENGTH FROM INFORMATION_SCHEMA.COLUMNS"
    " WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? ORDER BY ORDINAL_POSITION"
)


def plant_copies(plane: ControlPlane, table: str, kept: str, run_id: str, *more_keys: str) -> list[str]:
    """A row of a run, as `kept` has it, again and again, each time with one hostile value in one column that takes it.
    Returns what the copies have as keys."""
    columns = plane.rows(DESCRIBED, plane.place.schema, table)
    names = [column[0] for column in columns]
    found = (dict(zip(names, one, strict=True)) for one in plane.rows(f"SELECT * FROM {kept}"))
    real = next(row for row in found if row.get("RUN_ID", run_id) == run_id)
    keys, rows, ids = (*RESULT_TABLES[table], *more_keys), [], []
    for name, kind, nullable, length in columns:
        values = TEXTS if kind == "TEXT" and str(real[name]).startswith("{") else OF_TYPES[kind]
        for value in (*([None] if nullable == "YES" else []), *values):
            if name == "RUN_ID" or (length is not None and len(str(value or "")) > length):
                continue  # of no run that is read; or refused by the table
            number = next(numbers)
            unique = {key: _unique(key, number) for key in keys}
            rows.append([None if one is None else str(one) for one in (real | unique | {name: value}).values()])
            ids.append(f"h{number}")
    chosen = ", ".join(_cast(kind, place) for place, (_, kind, _, _) in enumerate(columns))
    sql = f"INSERT INTO {table} ({', '.join(real)}) SELECT {chosen} FROM TABLE(FLATTEN(INPUT => PARSE_JSON(?)))"
    assert plane.change(sql, json.dumps(rows)) == len(rows)
    return ids


def _unique(key: str, number: int) -> str:
    if key == "FIRE_AT":
        return f"2026-11-{number % 28 + 1:02d} 02:{number // 60 % 60:02d}:{number % 60:02d}"
    return str(1_000 + number) if key in ("STEP_NUMBER", "SEQUENCE_ID") else f"h{number}"


def _cast(kind: str, place: int) -> str:
    column = f"VALUE[{place}]::VARCHAR"
    if kind == "VARIANT":
        return f"PARSE_JSON({column})"
    types = {"NUMBER": "NUMBER(38,0)", "TEXT": "VARCHAR"}
    return f"CAST({column} AS {types.get(kind, kind)})"
