"""Rows of the control plane, as tests append and expect them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from loadgen.control.tables.test_logs import LogRow
from tests.control_plane import ControlPlane
from tests.embedded_server import EmbeddedServer

MOMENT = datetime(2026, 11, 20, 1, 2, 3, 456789)  # noqa: DTZ001  naive UTC, as the tables have it
HOSTILE = 'it\'s "odd" \\ ; -- ? 😀 \0 \ud800 \x1b[31m </script>'
STORED = 'it\'s "odd" \\ ; -- ? 😀 \ufffd \ufffd \x1b[31m </script>'


def raw_count(plane: ControlPlane, table: str, run_id: str) -> int:
    return int(plane.rows(f"SELECT COUNT(*) FROM {table} WHERE RUN_ID = ?", run_id)[0][0])


def appends(server: EmbeddedServer, table: str) -> int:
    """How often rows of a table were sent. Driver 5.x asks first, without binds, what the statement is like."""
    lines = server.ask(f"/__loadgen/journal?match=INTO%20{table}")
    return sum(line["bind_count"] > 0 for line in lines)


def log_row(run_id: str, **more: Any) -> LogRow:
    fields: dict[str, Any] = {"run_id": run_id, "test_id": None, "worker_id": None, "level": "INFO", "message": "m"}
    return LogRow(**(fields | {"details": None, "timestamp": MOMENT} | more))
