"""POOL_WORKERS: the registry of runners. Each runner has one row, which its heartbeats update.

The id of a runner is unique to its process. So a runner that was declared dead and sends heartbeats again continues
with its row. It keeps its run only if the lease of the run has not expired.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from contextlib import suppress
from datetime import datetime
from typing import Any

from loadgen.control.session import (
    ControlFailed,
    ControlSession,
    ParsedRows,
    RowUnreadable,
    load_queries,
    parse_row,
    read_rows,
    text_list,
)
from loadgen.control.tables.run_queue import labels_json
from loadgen.errors import UsageError
from loadgen.log import printable
from loadgen.model.nightly import PoolWorkerStatus
from loadgen.model.run import IDS_SHOWN, chosen_id
from loadgen.process import MARK_LENGTH, PLACE_LENGTH, has_ended, process_mark
from loadgen.snowflake.session import RetryPolicy
from loadgen.values import dataclass

BEAT_S = 10.0
STALE_S = 30  # default, also in the SQL
PAGE_MAX = 100
_HOST_MAX = 60  # characters
_TOKEN_BYTES = 4
_TOKEN_LENGTH = MARK_LENGTH + 2 * _TOKEN_BYTES
_SHOW_IDS = "`loadgen workers list` shows the ids."

_TOKEN = "after:"  # prefix of page tokens, which rejects texts that are no token

_Q = load_queries("pool_workers")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolWorkerIdentity:
    """The process of a runner, and its capabilities."""

    worker_id: str
    hostname: str
    pid: int
    version: str
    task_queue: str  # location of the queue
    labels: tuple[str, ...]  # key=value, from the command line
    capabilities: tuple[str, ...]  # key=value: labels, and properties that the runner detects
    capacity: int = 1  # runs at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryReply:
    """The answer of the registry to a registration or a heartbeat."""

    beat_s: float  # until the next heartbeat
    should_drain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolWorker:
    """A row. The status is OFFLINE also when the last heartbeat is too old. Times are naive UTC."""

    identity: PoolWorkerIdentity
    status: PoolWorkerStatus
    current_run: str | None  # the queued run that it executes
    completed: int
    failed: int
    registered_at: datetime
    last_beat_at: datetime
    deregistered_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolWorkerPage:
    workers: ParsedRows[PoolWorker]
    next_token: str | None  # of the next page; None: this is the last page
    total: int  # number of runners on all pages


def new_worker_id() -> str:
    """An id that no other runner has, on any host and at any time."""
    host = re.sub(r"[^a-z0-9]+", "-", socket.gethostname().lower()).strip("-")[:_HOST_MAX]
    return f"{host or 'host'}-{os.getpid()}-{process_mark(os.getpid())}{secrets.token_hex(_TOKEN_BYTES)}"


def is_gone(worker_id: str) -> bool:
    """Whether the process of this runner ran on this machine and has ended. False if that is not certain."""
    name, _, token = worker_id.rpartition("-")
    pid = name.rpartition("-")[2]
    return pid.isdecimal() and len(token) == _TOKEN_LENGTH and has_ended(int(pid), token[:MARK_LENGTH])


def _same_process_id(worker_id: str) -> str | None:
    """The prefix of the ids of earlier runners with the same process id on this machine; None: it is unknown."""
    name, _, token = worker_id.rpartition("-")
    return f"{name}-{token[:PLACE_LENGTH]}" if len(token) == _TOKEN_LENGTH else None


def register(
    session: ControlSession, retries: RetryPolicy, me: PoolWorkerIdentity, *, draining: bool, lease_s: float
) -> RegistryReply:
    """Register a runner, or register it again. An earlier runner with the same process id is set OFFLINE."""
    status = PoolWorkerStatus.DRAINING if draining else PoolWorkerStatus.ONLINE
    before = _same_process_id(me.worker_id)

    def write() -> bool:
        """Returns whether the runner should drain: a request may be older than this registration."""
        if before is not None:
            session.execute(_Q["retire"], before, me.worker_id)
        try:
            session.execute(
                _Q["register"],
                *(me.worker_id, me.hostname, me.pid, me.version, me.task_queue),
                *(labels_json(me.labels), labels_json(me.capabilities), me.capacity, status),
            )
        except ControlFailed as error:
            if not error.failure.is_duplicate_key:
                raise
            session.execute(_Q["come_back"], status, me.worker_id)
            return _is_draining(session, me.worker_id)
        return draining

    return RegistryReply(beat_s=beat_s(lease_s), should_drain=retries.call(write))


def beat(
    session: ControlSession,
    worker_id: str,
    *,
    current_run: str | None,
    completed: int,
    failed: int,
    lease_s: float,
    idle_s: float | None = None,
    draining: bool = False,
) -> RegistryReply | None:
    """Send a heartbeat: one attempt, and one statement until a user asks the runner to drain. None: the runner is not
    registered any more and must register again.

    `draining`: the runner knows of that request. `idle_s`: the interval while there is no work; two heartbeats may be
    missed.
    """
    stale_s = STALE_S if idle_s is None else round(2 * idle_s) + STALE_S
    said = (stale_s, current_run, completed, failed, worker_id)
    if not (draining or session.execute(_Q["beat"], *said, worker_id) == 1):
        draining = _is_draining(session, worker_id)  # otherwise the runner is not registered any more
        if not draining:
            return None
    if draining and session.execute(_Q["beat_draining"], *said) == 0:
        return None
    return RegistryReply(beat_s=beat_s(lease_s) if idle_s is None else idle_s, should_drain=draining)


def _is_draining(session: ControlSession, worker_id: str) -> bool:
    rows = session.fetch(_Q["status"], worker_id)
    return bool(rows) and rows[0][0] == PoolWorkerStatus.DRAINING


def beat_s(lease_s: float) -> float:
    """The interval of heartbeats: short enough that a lease survives some failed heartbeats."""
    return min(BEAT_S, lease_s / 4)


def drain(session: ControlSession, retries: RetryPolicy, worker_id: str) -> bool:
    """Ask a runner to take no new run. Its next heartbeat returns the request. False: it was not ONLINE."""

    def write() -> bool:
        try:
            return session.execute(_Q["drain"], worker_id) == 1
        except ControlFailed as error:
            if error.failure.is_duplicate_key:  # requested before
                return False
            raise

    return retries.call(write)


def offline(session: ControlSession, retries: RetryPolicy, worker_id: str) -> bool:
    """Set a runner OFFLINE. False: it was OFFLINE already."""
    return retries.call(lambda: session.execute(_Q["offline"], worker_id)) == 1


def silent_offline(session: ControlSession, retries: RetryPolicy) -> int:
    """Set runners OFFLINE whose last heartbeat is too old. Returns the number of changed rows."""
    return retries.call(lambda: session.execute(_Q["silent_offline"]))


def prune(session: ControlSession, retries: RetryPolicy) -> int:
    """Delete runners that have been OFFLINE for a week."""
    return retries.call(lambda: session.execute(_Q["prune"]))


def page(
    session: ControlSession,
    retries: RetryPolicy,
    size: int,
    *,
    token: str | None = None,
    status: PoolWorkerStatus | None = None,
    labels: tuple[str, ...] = (),
) -> PoolWorkerPage:
    """A page of runners in the order of their ids. `token` comes from the previous page."""
    words, after, wanted = labels_json(labels), _after(token), "" if status is None else status.value
    rows = retries.call(lambda: session.fetch(_Q["page"].limited(size + 1), after, words, wanted, wanted))
    total = retries.call(lambda: session.fetch(_Q["count"], words, wanted, wanted))[0][0]
    next_token = f"{_TOKEN}{rows[size - 1][0]}" if len(rows) > size else None
    return PoolWorkerPage(workers=read_rows(rows[:size], _worker), next_token=next_token, total=int(total))


def _after(token: str | None) -> str:
    """The runner id in a token. The runner may have been deleted since."""
    if token is None:
        return ""
    if not token.startswith(_TOKEN):
        raise UsageError(
            f"{printable(token, 80)!r} is not a page token",
            remedy="Use the token of the previous page unchanged; without a token the first page is shown.",
        )
    return token.removeprefix(_TOKEN)


def find(session: ControlSession, retries: RetryPolicy, name: str) -> PoolWorker:
    """The runner with this id, or the only one whose id begins with `name`."""
    some = _Q["beginning_with"].limited(IDS_SHOWN + 1)
    ids = retries.call(lambda: [str(row[0]) for row in session.fetch(some, name)])
    worker_id = chosen_id(name, ids, noun="runner", remedy=_SHOW_IDS)
    rows = retries.call(lambda: session.fetch(_Q["read"], worker_id))
    if not rows:
        raise UsageError(f"there is no runner {printable(worker_id, 80)} any more", remedy=_SHOW_IDS)
    return _worker(rows[0])


def offers(session: ControlSession) -> tuple[tuple[str, ...], ...]:
    """The capabilities of each runner that may take a run at present."""
    found = []
    for (written,) in session.fetch(_Q["offers"]):
        with suppress(ValueError):  # an unreadable row
            found.append(text_list(written))
    return tuple(found)


def totals(session: ControlSession, retries: RetryPolicy) -> tuple[int, int]:
    """The numbers of successful and of failed attempts of all stored runners."""
    completed, failed = retries.call(lambda: session.fetch(_Q["totals"]))[0]
    return int(completed), int(failed)


def _worker(row: tuple[Any, ...]) -> PoolWorker:
    columns = len(PoolWorkerIdentity.__slots__)
    identity = parse_row("POOL_WORKERS", PoolWorkerIdentity, row[:columns])
    return parse_row("POOL_WORKERS", PoolWorker, row[columns:], key=row[0], identity=identity)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """The runners that are not OFFLINE, and the attempts of all stored runners."""

    workers: ParsedRows[PoolWorker]
    completed: int
    failed: int

    @property
    def busy(self) -> int:
        return sum(worker.current_run is not None for worker in self.workers)


def read_stats(session: ControlSession, retries: RetryPolicy) -> PoolStats:
    found: list[PoolWorker] = []
    unreadable: list[RowUnreadable] = []
    for status in (PoolWorkerStatus.ONLINE, PoolWorkerStatus.DRAINING):
        token: str | None = None
        while True:
            one = page(session, retries, PAGE_MAX, token=token, status=status)
            found += one.workers
            unreadable += one.workers.unreadable
            token = one.next_token
            if token is None:
                break
    completed, failed = totals(session, retries)
    return PoolStats(workers=ParsedRows(found, tuple(unreadable)), completed=completed, failed=failed)
