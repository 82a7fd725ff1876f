"""Leases and the faults of their statements."""

from __future__ import annotations

from typing import Any

from loadgen.control.tables.run_control_events import NewEvent
from loadgen.model.event import Start

TTL_S = 300.0
NOT_ANSWERED: list[dict[str, Any]] = [
    {"kind": "drop_reply"},
    {"kind": "truncate"},
    {"kind": "reset"},
    {"kind": "http_status", "status": 503},
    {"kind": "expire_session"},
]
FAULT_IDS = [fault["kind"] for fault in NOT_ANSWERED]


def start_event() -> NewEvent:
    return NewEvent(command=Start(expected_workers=2))
