"""A worker and its beats."""

from __future__ import annotations

from typing import Any

from loadgen.control.session import ControlSession
from loadgen.control.tables.worker_heartbeats import HeartbeatRow, WorkerHeartbeat, WorkerIdentity, find
from loadgen.model.run import Phase, WorkerStatus
from tests.control_plane import ControlPlane

SILENT_MS = 600_000
LOST = ["drop_reply", "truncate"]  # it was executed
NEVER_SENT = ["reset", "http_status"]  # it was not; the worker cannot know


def identity(**more: Any) -> WorkerIdentity:
    fields: dict[str, Any] = {"run_id": "r", "worker_id": "w0", "worker_group_id": 0, "hostname": "host", "pid": 100}
    return WorkerIdentity(**(fields | {"version": "1.0", "labels": '{"team":"é"}'} | more))


def said(count: int, **more: Any) -> WorkerHeartbeat:
    fields: dict[str, Any] = {"status": WorkerStatus.RUNNING, "phase": Phase.MEASUREMENT, "count": count}
    return WorkerHeartbeat(**(fields | more))


def my_row(session: ControlSession, me: WorkerIdentity) -> HeartbeatRow:
    row = find(session, me.run_id, me.worker_id)
    assert row is not None
    return row


def grow_old(plane: ControlPlane, me: WorkerIdentity, age_ms: int) -> None:
    """Let a worker have been silent for so long. The server's clock cannot be set, but what it is compared with can."""
    plane.change(
        "UPDATE WORKER_HEARTBEATS SET LAST_HEARTBEAT = DATEADD(millisecond, ?, SYSDATE())"
        " WHERE RUN_ID = ? AND WORKER_ID = ?",
        *(-age_ms, me.run_id, me.worker_id),
    )
