"""RUN_LEASES: which process leads a run. One row per lease; the enforced key decides which process gets an epoch.

    claim     get the next epoch, if the last lease expired more than the takeover margin ago, or was released
    join      get the next epoch although other leases are valid; their holders find that theirs is not the newest
    renew     extend a lease that has not expired; an expired lease is never extended
    release   end a lease so that a successor can claim the next one at once
    expire    end the lease of a process that has ended on this machine; a successor waits for the takeover margin
    release_of_dead
              the same, without the wait

This module contains the statements. `loadgen.control.lease` keeps a lease.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Collection, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from loadgen.control.session import ControlFailed, ControlSession, load_queries
from loadgen.log import printable
from loadgen.process import MARK_LENGTH, has_ended, process_mark
from loadgen.snowflake.session import RetryPolicy
from loadgen.snowflake.settings import CONTROL_STATEMENT_S
from loadgen.values import dataclass

# By then, every statement that the last holder sent in time has ended; see schemas/queries/run_leases.sql.
TAKEOVER_MARGIN_S = 10
assert TAKEOVER_MARGIN_S > CONTROL_STATEMENT_S
OWNER_MAX = 100  # characters
RELEASED_S = TAKEOVER_MARGIN_S + 1  # a released lease has been expired for so long: a successor need not wait
_RANDOM_LENGTH = 12  # characters of a token after the mark of the process
SHORT_TTL_S = 60.0  # of a lease that is held for a moment, and not renewed

_Q = load_queries("run_leases")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A lease of one holder on `key`, for example the id of a run. Every write of the holder contains it."""

    key: str
    epoch: int
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseHolder:
    """The newest lease, as the server sees it."""

    epoch: int
    owner: str
    remaining_ms: int  # negative: the time since it expired

    @property
    def may_be_succeeded(self) -> bool:
        return self.remaining_ms < -TAKEOVER_MARGIN_S * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLease:
    """A row: a lease that may have expired or been released."""

    epoch: int
    owner: str
    expires_at: datetime  # naive UTC; a release sets it to RELEASED_S before the release

    def is_of(self, processes: Collection[str], scenario: str) -> bool:
        """Whether one of these processes (see process_of) holds it on the warehouse of a run of this scenario."""
        return process_of(self.owner) in processes and scenario.startswith(self.owner.partition(" ")[2])


def new_owner() -> str:
    """A unique owner name: after a lost answer the claim is looked up by it."""
    token = f"{process_mark(os.getpid())}{secrets.token_hex(_RANDOM_LENGTH // 2)}"
    return f"{socket.gethostname()[: OWNER_MAX - 48]}:{os.getpid()}:{token}"


def describe_owner(owner: str) -> str:
    """`process 4711 on build-7`."""
    host, pid, _ = _parts(owner)
    return f"process {printable(pid, 20)} on {printable(host, 80)}"


def process_of(owner: str) -> str:
    """The part of an owner that all leases of one process have in common."""
    host, pid, token = _parts(owner)
    return f"{host}:{pid}:{token[:-_RANDOM_LENGTH]}"


def is_owner_dead(owner: str) -> bool:
    """Whether the process of this owner ran on this machine and has ended. False if that is not certain."""
    _, pid, token = _parts(owner)
    return pid.isdecimal() and has_ended(int(pid), token[:MARK_LENGTH])


def _parts(owner: str) -> tuple[str, str, str]:
    """Host, process id and token of an owner, whose scenario may follow after a space."""
    name, _, token = owner.partition(" ")[0].rpartition(":")
    host, _, pid = name.rpartition(":")
    return host, pid, token


def read(session: ControlSession, key: str) -> LeaseHolder | None:
    """The newest lease; None: there was none yet."""
    return _holder(session.fetch(_Q["newest"], key))


def every(session: ControlSession, key: str) -> tuple[StoredLease, ...]:
    """All leases of a key that are stored, in order of their epochs."""
    rows = session.fetch(_Q["every"], key)
    return tuple(StoredLease(epoch=int(epoch), owner=owner, expires_at=at) for epoch, owner, at in rows)


def unexpired(session: ControlSession, key: str) -> LeaseHolder | None:
    """A valid lease, the newest or an older one; None: there is none."""
    return _holder(session.fetch(_Q["unexpired"], key))


def claim(session: ControlSession, retries: RetryPolicy, key: str, owner: str, ttl_s: float) -> Lease | None:
    """Claim the lease of the next epoch. None: the last lease is held, or another process was faster."""
    holder = retries.call(lambda: read(session, key))
    if holder is not None and not holder.may_be_succeeded:
        return None
    epoch = 1 if holder is None else holder.epoch + 1
    ttl_ms = round(ttl_s * 1000)

    def write() -> bool:
        try:
            if holder is None:
                return session.execute(_Q["claim_first"], key, owner, ttl_ms) == 1
            margin_ms = -TAKEOVER_MARGIN_S * 1000
            return session.execute(_Q["claim_next"], owner, ttl_ms, key, holder.epoch, margin_ms) == 1
        except ControlFailed as error:
            if error.failure.is_duplicate_key:
                return look_up() or False
            raise

    def look_up() -> bool | None:
        """After a lost answer: True if the lease is ours, False if another process has it, None if it is free."""
        now = read(session, key)
        if now is None or now.epoch < epoch:
            return None
        return (now.epoch, now.owner) == (epoch, owner)

    won = retries.settle(write, look_up)
    return Lease(key=key, epoch=epoch, owner=owner) if won else None


def claim_shared(session: ControlSession, retries: RetryPolicy, key: str, owner: str, ttl_s: float) -> Lease:
    """Get the lease of the next epoch, although other leases may be valid."""
    while True:
        holder = retries.call(lambda: read(session, key))
        if holder is not None and holder.owner == owner:  # inserted by an attempt whose answer was lost
            return Lease(key=key, epoch=holder.epoch, owner=owner)
        epoch = 1 if holder is None else holder.epoch + 1
        if retries.call(partial(_insert, session, key, epoch, owner, ttl_s)):
            return Lease(key=key, epoch=epoch, owner=owner)


def _insert(session: ControlSession, key: str, epoch: int, owner: str, ttl_s: float) -> bool:
    """Insert a lease. False: another process has inserted this epoch."""
    try:
        return session.execute(_Q["join"], key, epoch, owner, round(ttl_s * 1000)) == 1
    except ControlFailed as error:
        if error.failure.is_duplicate_key:
            return False
        raise


def renew(session: ControlSession, lease: Lease, ttl_s: float) -> bool:
    """Extend the lease, counted from now. False: it has expired. One attempt: LeaseKeeper repeats it."""
    return session.execute(_Q["renew"], round(ttl_s * 1000), lease.key, lease.epoch, lease.owner) == 1


def release(session: ControlSession, lease: Lease) -> None:
    """End the lease, so that a successor need not wait. All other statements of the holder must have ended."""
    session.execute(_Q["release"], -RELEASED_S * 1000, lease.key, lease.epoch, lease.owner)


def expire(session: ControlSession, key: str, holder: LeaseHolder) -> None:
    """End the lease of a process that has ended. Its last statements may still execute, so a successor waits for the
    takeover margin from now."""
    session.execute(_Q["expire"], key, holder.epoch, holder.owner)


def release_of_dead(session: ControlSession, key: str, holder: LeaseHolder) -> None:
    """End the lease of a process that has ended, without a wait for a successor. Only for keys under which nothing is
    written: the last statements of the process may still execute."""
    session.execute(_Q["release_of_dead"], -RELEASED_S * 1000, key, holder.epoch, holder.owner)


def _holder(rows: Sequence[tuple[Any, ...]]) -> LeaseHolder | None:
    return LeaseHolder(epoch=int(rows[0][0]), owner=rows[0][1], remaining_ms=int(rows[0][2])) if rows else None
