"""Queued runs and their attempts, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from loadgen.cli.common import text_table
from loadgen.log import printable
from loadgen.model.queue import QueueStatus

if TYPE_CHECKING:
    from loadgen.control.tables.run_attempts import AttemptRow
    from loadgen.control.tables.run_queue import QueuedRun
    from loadgen.model.queue import BaselineCheck


def table(found: Sequence[QueuedRun]) -> str:
    head = ("ID", "STATUS", "PRIORITY", "ATTEMPTS", "EXIT", "CREATED (UTC)", "WHAT")
    rows = [
        (
            row.queue_id,
            row.status.value,
            str(row.priority),
            f"{row.attempts}/{row.max_attempts}",
            "-" if row.exit_code is None else str(row.exit_code),
            _moment(row.created_at) or "",
            _what(row),
        )
        for row in found
    ]
    return text_table(head, rows, right=(2, 3, 4))


def as_text(row: QueuedRun, judging: BaselineCheck, attempts: Sequence[AttemptRow]) -> str:
    facts = {
        "scenario": printable(row.name, 100),
        "status": row.status.value,
        "reason": None if row.reason is None else printable(row.reason, 500),
        "exit code": None if row.exit_code is None else str(row.exit_code),
        "run": row.run_id,
        "priority": str(row.priority),
        "requires": printable(" ".join(row.requires), 500) or None,
        "connection": None if row.connection is None else printable(row.connection, 100),
        "target": printable(row.target, 200) or None,
        "judged by": printable(" ".join(judging.words), 200) or None,
        "attempts": f"{row.attempts} of {row.max_attempts}",
        "key": None if row.idempotency_key == row.queue_id else printable(row.idempotency_key, 200),
        "created": _moment(row.created_at),
        "not before": _moment(row.available_at) if row.status is QueueStatus.QUEUED else None,
        "ended": _moment(row.ended_at),
    }
    lines = [
        f"queued run {printable(row.queue_id)}",
        *(f"  {name:<10}  {printable(value)}" for name, value in facts.items() if value),
    ]
    return "\n".join([*lines, "", _attempts(attempts) if attempts else "nobody has tried yet"])


def queued_as_json(row: QueuedRun) -> dict[str, Any]:
    return {
        "queue_id": row.queue_id,
        "idempotency_key": row.idempotency_key,
        "scenario": row.name,
        "status": row.status.value,
        "priority": row.priority,
        "requires": list(row.requires),
        "connection": row.connection,
        "target": row.target,
        "attempts": row.attempts,
        "max_attempts": row.max_attempts,
        "epoch": row.epoch,
        "owner": row.owner,
        "run_id": row.run_id,
        "exit_code": row.exit_code,
        "reason": row.reason,
        "available_at": _stamp(row.available_at),
        "created_at": _stamp(row.created_at),
        "ended_at": _stamp(row.ended_at),
    }


def as_json(row: QueuedRun, judging: BaselineCheck, attempts: Sequence[AttemptRow]) -> dict[str, Any]:
    history = [
        {
            "epoch": attempt.epoch,
            "owner": attempt.owner,
            "run_id": attempt.run_id,
            "status": attempt.status.value,
            "exit_code": attempt.exit_code,
            "reason": attempt.reason,
            "started_at": _stamp(attempt.started_at),
            "ended_at": _stamp(attempt.ended_at),
        }
        for attempt in attempts
    ]
    return {**queued_as_json(row), **asdict(judging), "history": history}


def _attempts(attempts: Sequence[AttemptRow]) -> str:
    head = ("#", "STATUS", "EXIT", "RUN", "BEGUN (UTC)", "BY", "REASON")
    rows = [
        (
            str(attempt.epoch),
            attempt.status.value,
            "-" if attempt.exit_code is None else str(attempt.exit_code),
            attempt.run_id or "-",
            _moment(attempt.started_at) or "",
            printable(attempt.owner, 100),
            printable(attempt.reason or "-", 200),
        )
        for attempt in attempts
    ]
    return text_table(head, rows, right=(0, 2))


def _what(row: QueuedRun) -> str:
    """What matters of it now."""
    if row.status in (QueueStatus.RUNNING, QueueStatus.CANCEL_REQUESTED):
        return printable(f"by {row.owner}" + (f", run {row.run_id}" if row.run_id else ""), 120)
    if row.status is QueueStatus.QUEUED and row.available_in_ms > 0:
        return f"in {row.available_in_ms / 1000:.0f} s"
    return printable(row.run_id if row.status is QueueStatus.COMPLETED and row.run_id else row.reason or row.name, 120)


def _moment(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(sep=" ", timespec="seconds")


def _stamp(at: datetime | None) -> str | None:
    return None if at is None else f"{at.isoformat(timespec='milliseconds')}Z"
