"""RUN_LEASES: which process leads a run. A lease is one row per epoch; the enforced key decides who gets it.

    claim     the next epoch, when the last lease has been over for the takeover margin, or was released
    join      the next epoch beside valid leases: their holders find that they are not the newest any more
    renew     while it has not expired: a holder that was suspended past its end gets nothing, successor or not
    release   makes room for the next at once
    expire    for a holder whose process has ended on this machine: its lease is over now, not when it would expire
    bury      the same, and a successor need not wait for the margin

`loadgen.control.lease` keeps a lease; this is only its SQL.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any

from loadgen.control.process_identity import MARK_LENGTH, has_ended, process_mark
from loadgen.control.session import ControlFailed, ControlSession, load_queries
from loadgen.log import printable
from loadgen.snowflake.session import RetryPolicy
from loadgen.snowflake.settings import CONTROL_STATEMENT_S
from loadgen.values import dataclass

# A statement of the last holder that began in time has ended by then; see schemas/queries/run_leases.sql.
TAKEOVER_MARGIN_S = 10
assert TAKEOVER_MARGIN_S > CONTROL_STATEMENT_S
OWNER_MAX = 100  # characters

_Q = load_queries("run_leases")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One holder's period of office over `key`, a run's id: every write of the holder carries it."""

    key: str
    epoch: int
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseHolder:
    """The newest lease, as the server sees it."""

    epoch: int
    owner: str
    remaining_ms: int  # negative: since when it has been over

    @property
    def may_be_succeeded(self) -> bool:
        return self.remaining_ms < -TAKEOVER_MARGIN_S * 1000


def new_owner() -> str:
    """A name that no other claimant has: a lost answer is resolved by looking for it."""
    token = f"{process_mark(os.getpid())}{secrets.token_hex(6)}"
    return f"{socket.gethostname()[: OWNER_MAX - 48]}:{os.getpid()}:{token}"


def describe_owner(owner: str) -> str:
    """`process 4711 on build-7`."""
    host, pid, _ = _parts(owner)
    return f"process {printable(pid, 20)} on {printable(host, 80)}"


def is_owner_dead(owner: str) -> bool:
    """Has this process run on this machine, and ended? False also where it cannot be known."""
    _, pid, token = _parts(owner)
    return pid.isdecimal() and has_ended(int(pid), token[:MARK_LENGTH])


def _parts(owner: str) -> tuple[str, str, str]:
    """Host, process id and token of an owner, whose scenario may follow after a space."""
    name, _, token = owner.partition(" ")[0].rpartition(":")
    host, _, pid = name.rpartition(":")
    return host, pid, token


def read(session: ControlSession, key: str) -> LeaseHolder | None:
    """The newest lease; None: there never was one."""
    return _holder(session.fetch(_Q["newest"], key))


def unexpired(session: ControlSession, key: str) -> LeaseHolder | None:
    """A lease that is not over, whether or not it is the newest; None: there is none."""
    return _holder(session.fetch(_Q["living"], key))


def claim(session: ControlSession, patience: RetryPolicy, key: str, owner: str, ttl_s: float) -> Lease | None:
    """The next epoch's lease; None when the last one is held, or another process was faster."""
    holder = patience.call(lambda: read(session, key))
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
                return look() or False
            raise

    def look() -> bool | None:
        """After a lost answer: is the lease ours, another's, or still free?"""
        now = read(session, key)
        if now is None or now.epoch < epoch:
            return None
        return (now.epoch, now.owner) == (epoch, owner)

    won = patience.settle(write, look)
    return Lease(key=key, epoch=epoch, owner=owner) if won else None


def claim_shared(session: ControlSession, patience: RetryPolicy, key: str, owner: str, ttl_s: float) -> Lease:
    """The next epoch's lease, beside those of others."""
    while True:
        holder = patience.call(lambda: read(session, key))
        if holder is not None and holder.owner == owner:  # an attempt whose answer was lost
            return Lease(key=key, epoch=holder.epoch, owner=owner)
        epoch = 1 if holder is None else holder.epoch + 1
        if patience.call(partial(_insert, session, key, epoch, owner, ttl_s)):
            return Lease(key=key, epoch=epoch, owner=owner)


def _insert(session: ControlSession, key: str, epoch: int, owner: str, ttl_s: float) -> bool:
    """False: the number is taken."""
    try:
        return session.execute(_Q["join"], key, epoch, owner, round(ttl_s * 1000)) == 1
    except ControlFailed as error:
        if error.failure.is_duplicate_key:
            return False
        raise


def renew(session: ControlSession, term: Lease, ttl_s: float) -> bool:
    """Extend the lease from now. False: it has expired. One attempt: the keeper retries at its own interval."""
    return session.execute(_Q["renew"], round(ttl_s * 1000), term.key, term.epoch, term.owner) == 1


def release(session: ControlSession, term: Lease) -> None:
    """Make room for a successor at once. Only when every other statement of the lease has ended."""
    session.execute(_Q["release"], -(TAKEOVER_MARGIN_S + 1) * 1000, term.key, term.epoch, term.owner)


def expire(session: ControlSession, key: str, holder: LeaseHolder) -> None:
    """The process of this holder is gone. Statements that it sent may still be under way, so a successor waits for the
    takeover margin from now on."""
    session.execute(_Q["expire"], key, holder.epoch, holder.owner)


def release_of_dead(session: ControlSession, key: str, holder: LeaseHolder) -> None:
    """The process of this holder is gone. Only for keys under which nothing is written: a statement of a dead process
    may still be under way."""
    session.execute(_Q["bury"], -(TAKEOVER_MARGIN_S + 1) * 1000, key, holder.epoch, holder.owner)


def _holder(rows: Sequence[tuple[Any, ...]]) -> LeaseHolder | None:
    return LeaseHolder(epoch=int(rows[0][0]), owner=rows[0][1], remaining_ms=int(rows[0][2])) if rows else None
