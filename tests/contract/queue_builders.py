"""The run queue of a control plane."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from loadgen.control.session import ControlSession
from loadgen.control.tables import pool_workers, run_attempts, run_queue
from loadgen.control.tables.pool_workers import PoolWorkerIdentity
from loadgen.control.tables.run_leases import TAKEOVER_MARGIN_S
from loadgen.control.tables.run_queue import AttemptResult, QueueClaim, QueueRequest
from loadgen.model.nightly import AttemptStatus, QueueStatus
from tests.control_plane import ControlPlane, retries

LEASE_S = 600.0
TAKEOVER_S = TAKEOVER_MARGIN_S + 1
NOT_ANSWERED: list[dict[str, Any]] = [{"kind": "drop_reply"}, {"kind": "reset"}, {"kind": "http_status", "status": 503}]
each_fault = pytest.mark.parametrize("fault", NOT_ANSWERED, ids=[fault["kind"] for fault in NOT_ANSWERED])


TIMES = (("RUN_QUEUE", "AVAILABLE_AT"), ("RUN_ATTEMPTS", "EXPIRES_AT"), ("RUN_ATTEMPT_ENDS", "AVAILABLE_AT"))


def register(plane: ControlPlane, me: PoolWorkerIdentity) -> None:
    """A runner that is ONLINE, and does not fall silent however long the test takes."""
    pool_workers.register(plane.session, retries(), me, draining=False, lease_s=LEASE_S)
    plane.change(
        "UPDATE POOL_WORKERS SET LAST_BEAT_AT = DATEADD(hour, 1, LAST_BEAT_AT) WHERE WORKER_ID = ?", me.worker_id
    )


def shift_queue_times(plane: ControlPlane, seconds: float, queue_id: str) -> None:
    """For one queued run: leases and pauses."""
    for table, column in TIMES:
        plane.change(
            f"UPDATE {table} SET {column} = DATEADD(millisecond, ?, {column}) WHERE QUEUE_ID = ?",
            -round(seconds * 1000),
            queue_id,
        )


class Queue:
    """The queue of a control plane, emptied for each test."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane, self.session = plane, plane.session
        for table in ("RUN_QUEUE", "RUN_ATTEMPTS", "RUN_ATTEMPT_ENDS", "POOL_WORKERS", "STOP_REQUESTS"):
            plane.change(f"DELETE FROM {table}")

    def add(self, name: str = "orders", **more: Any) -> str:
        wanted = QueueRequest(**{"name": name, "scenario": "name: x", "files": {}} | more)
        return run_queue.add(self.session, retries(), wanted).queue_id

    def runner(self, *offers: str, **more: Any) -> str:
        """A runner that is ONLINE. Its id."""
        name = f"host-{uuid.uuid4()}"
        fields: dict[str, Any] = {"hostname": name, "pid": 7, "version": "1", "task_queue": "Q", "labels": offers}
        fields["capacity"] = 100  # few tests are about that
        me = PoolWorkerIdentity(**{"worker_id": name, "capabilities": offers, **fields, **more})
        register(self.plane, me)
        return me.worker_id

    def claim(self, owner: str, *offers: str, session: ControlSession | None = None) -> QueueClaim | None:
        return run_queue.claim(session or self.session, retries(), owner, offers, LEASE_S)

    def claimed(self, owner: str) -> QueueClaim:
        got = self.claim(owner)
        assert got is not None
        return got

    def row(self, queue_id: str) -> run_queue.QueuedRun:
        row = run_queue.read(self.session, queue_id)
        assert row is not None
        return row

    def history(self, queue_id: str) -> list[tuple[int, str]]:
        return [(one.epoch, one.status.value) for one in run_attempts.read(self.session, queue_id)]

    def pass_time(self, queue_id: str, seconds: float = LEASE_S + TAKEOVER_S) -> None:
        """For this row: its lease, its pause."""
        shift_queue_times(self.plane, seconds, queue_id)

    def finish(self, claim: QueueClaim, status: QueueStatus = QueueStatus.COMPLETED, **result: Any) -> bool:
        return run_queue.finish(self.session, retries(), claim, status, AttemptResult(**result))

    def release(self, claim: QueueClaim, *, counts: bool = True, pause_s: float = 0.0) -> bool:
        failed = AttemptResult(exit_code=4, reason="no")
        return run_queue.release(self.session, retries(), claim, failed, pause_s=pause_s, counts=counts)

    def push_back(self, claim: QueueClaim, *, pause_s: float) -> bool:
        """Its run ended with 75: another one, outside of the queue, has the warehouse."""
        busy, status = AttemptResult(exit_code=75, reason="the warehouse is in use"), AttemptStatus.SKIPPED
        return run_queue.release(self.session, retries(), claim, busy, pause_s=pause_s, counts=False, status=status)

    def depth(self, *offers: str, share: bool = False) -> tuple[int, int]:
        """Runs that wait, and those of them that could begin."""
        found = run_queue.depth(self.session, offers, share=share)
        return found.waiting, found.startable
