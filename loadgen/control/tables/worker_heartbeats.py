"""WORKER_HEARTBEATS: one row per worker, updated every second. The leader reads all rows of a run with one statement.

A row belongs to the process that registered it (host name and process id). A worker that was declared dead and replaced
finds that its row belongs to another process, and must end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any

from loadgen.control.session import (
    ControlFailed,
    ControlSession,
    ParsedRows,
    clean_text,
    clip_text,
    load_queries,
    parse_row,
    read_rows,
)
from loadgen.control.tables import run_leases
from loadgen.control.tables.run_leases import Lease
from loadgen.errors import LoadgenError
from loadgen.model.run import Phase, WorkerStatus
from loadgen.snowflake.session import RetryPolicy
from loadgen.values import dataclass

LAST_ERROR_MAX = 1_000  # characters, including the truncation mark
_REPLACE_S = 30.0  # of the lease for one statement, including its retries
_NAME_MAX = 60  # characters of a worker id in a key

_Q = load_queries("worker_heartbeats")


class DuplicateWorker(LoadgenError):
    """Another running process has the id of this worker."""

    exit_code = 1
    remedy = "Start each worker id once. A dead worker can be replaced after its heartbeats have timed out."


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerIdentity:
    """A worker of a run, and its process."""

    run_id: str
    worker_id: str
    worker_group_id: int
    hostname: str
    pid: int
    version: str
    labels: str | None = None  # a JSON list of key=value


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHeartbeat:
    """The complete state of a worker, written every second, so that a lost heartbeat loses nothing."""

    status: WorkerStatus
    phase: Phase | None
    count: int
    active_connections: int = 0
    open_connections: int = 0
    target_connections: int = 0
    last_error: str | None = None
    error_count: int = 0
    live_metrics: str | None = None
    last_sequence_id: int = 0
    cpu_percent: float | None = None
    memory_percent: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRow:
    """A worker as the leader reads it."""

    identity: WorkerIdentity
    beat: WorkerHeartbeat
    age_ms: int  # of the last heartbeat, by the clock of the server

    @property
    def labels(self) -> tuple[str, ...]:
        """LOADGEN_LABELS of the worker; empty if the column contains something else."""
        try:
            found = json.loads(self.identity.labels or "[]")
        except (ValueError, RecursionError):
            return ()
        return tuple(label for label in found if isinstance(label, str)) if isinstance(found, list) else ()


def register(
    session: ControlSession,
    retries: RetryPolicy,
    me: WorkerIdentity,
    *,
    silent_ms: int,
    check: Callable[[HeartbeatRow], None] = lambda _: None,
) -> bool:
    """Insert the row (True), or take it over from a process that has ended or sent no heartbeat for `silent_ms`
    (False).

    `check` is called with the row of that process before it is overwritten, and may raise.
    """

    def write() -> bool:
        binds = (me.run_id, me.worker_id, me.worker_group_id, me.hostname, me.pid, me.version, me.labels)
        return session.execute(_Q["register"], *binds) == 1

    def look_up() -> bool | None:
        row = find(session, me.run_id, me.worker_id)
        return True if row is not None and _same_process(row.identity, me) and row.beat.count == 1 else None

    try:
        retries.settle(write, look_up)
    except ControlFailed as error:
        if not error.failure.is_duplicate_key:
            raise
        _replace(session, retries, me, silent_ms, check)
        return False
    return True


def beat(session: ControlSession, me: WorkerIdentity, said: WorkerHeartbeat) -> bool:
    """Write a heartbeat, in one attempt. Its count starts at 2; registering is 1. False: another process has the
    row."""
    last_error = None if said.last_error is None else clip_text(said.last_error, LAST_ERROR_MAX)
    live_metrics = None if said.live_metrics is None else clean_text(said.live_metrics)
    touched = session.execute(
        _Q["beat"],
        *(said.status, said.phase, said.count, said.active_connections, said.open_connections),
        *(said.target_connections, last_error, said.error_count, live_metrics),
        *(said.last_sequence_id, said.cpu_percent, said.memory_percent),
        *(me.run_id, me.worker_id, me.hostname, me.pid, said.count),
    )
    return touched == 1


def read(session: ControlSession, run_id: str) -> ParsedRows[HeartbeatRow]:
    """The rows of all workers of a run, in the order of their numbers."""
    return read_rows(session.fetch(_Q["read"], run_id), lambda row: _row(run_id, row))


def last_beats(session: ControlSession, run_id: str) -> dict[str, datetime]:
    """The time of the last heartbeat of each worker of a run, naive UTC."""
    return dict(session.fetch(_Q["last_beats"], run_id))


def find(session: ControlSession, run_id: str, worker_id: str) -> HeartbeatRow | None:
    rows = read(session, run_id)
    for error in rows.unreadable:
        if error.key == worker_id:
            raise error
    return next((row for row in rows if row.identity.worker_id == worker_id), None)


def _replace(
    session: ControlSession,
    retries: RetryPolicy,
    me: WorkerIdentity,
    silent_ms: int,
    check: Callable[[HeartbeatRow], None],
) -> None:
    there = retries.call(lambda: find(session, me.run_id, me.worker_id))
    if there is None:
        raise DuplicateWorker(f"the row of worker {me.worker_id} of run {me.run_id} was deleted during registration")
    alive = DuplicateWorker(
        f"worker {me.worker_id} of run {me.run_id} is alive: the last heartbeat of process {there.identity.pid} on"
        f" {there.identity.hostname} was {there.age_ms / 1000:.1f} s ago"
    )
    if not there.beat.status.is_terminal and there.age_ms <= silent_ms:
        raise alive
    check(there)
    right = run_leases.claim(session, retries, _lease_key(me), run_leases.new_owner(), _REPLACE_S)
    if right is None:
        raise DuplicateWorker(f"worker {me.worker_id} of run {me.run_id} is being replaced by another process")
    try:
        replaced = _write(session, retries, me, there, silent_ms, right)
    finally:
        with suppress(LoadgenError):  # the lease expires without it
            run_leases.release(session, right)
    if not replaced:
        raise alive


def _write(
    session: ControlSession,
    retries: RetryPolicy,
    me: WorkerIdentity,
    there: HeartbeatRow,
    silent_ms: int,
    right: Lease,
) -> bool:
    binds = (
        *(me.hostname, me.pid, me.version, me.labels, me.run_id, me.worker_id, me.worker_group_id),
        *(there.beat.count, -silent_ms, right.key, right.epoch, right.owner),
    )

    def look_up() -> bool | None:
        row = find(session, me.run_id, me.worker_id)
        return True if row is not None and _same_process(row.identity, me) and row.beat.count == 1 else None

    return retries.settle(lambda: session.execute(_Q["replace"], *binds) == 1, look_up)


def _lease_key(me: WorkerIdentity) -> str:
    """The key of the lease for replacing this worker. Keys in RUN_LEASES have at most 100 characters."""
    name = me.worker_id if len(me.worker_id) <= _NAME_MAX else hashlib.sha256(me.worker_id.encode()).hexdigest()[:40]
    return f"{me.run_id}/{name}"


def _same_process(one: WorkerIdentity, other: WorkerIdentity) -> bool:
    return (one.hostname, one.pid) == (other.hostname, other.pid)


def _row(run_id: str, row: tuple[Any, ...]) -> HeartbeatRow:
    (worker_id, group, status, phase, age_ms, count, active, opened, target, last_error, errors,
     live_metrics, last_sequence_id, hostname, pid, version, labels, cpu, memory) = row  # fmt: skip
    identity = parse_row(
        "WORKER_HEARTBEATS", WorkerIdentity, (worker_id, group, hostname, pid, version, labels), run_id=run_id
    )
    said = (status, phase, count, active, opened, target, last_error, errors, live_metrics, last_sequence_id)
    return HeartbeatRow(
        identity=identity,
        beat=parse_row("WORKER_HEARTBEATS", WorkerHeartbeat, (*said, cpu, memory), key=worker_id),
        age_ms=int(age_ms),
    )
