"""RUN_LEASES: who is in charge of a run. A term is one row; the enforced key decides who gets it.

    claim     the next epoch, when the last term has been over for the takeover margin, or was released
    join      the next epoch beside terms that live: whoever holds one of them finds that he is not the newest any more
    renew     while it has not expired: a holder who slept past his term gets nothing, successor or not
    release   makes room for the next at once
    bury      the same, for a holder whose process has ended on this machine

`loadgen.control.lease` keeps a term; this is only its SQL.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from loadgen.control.queries import queries
from loadgen.control.retry import Patience
from loadgen.control.session import ControlFailed, ControlSession
from loadgen.log import printable
from loadgen.snowflake.settings import CONTROL_STATEMENT_S

# A statement of the last holder that began in time has ended by then; see schemas/queries/run_leases.sql.
TAKEOVER_MARGIN_S = 10
assert TAKEOVER_MARGIN_S > CONTROL_STATEMENT_S
OWNER_MAX = 100  # characters

_Q = queries("run_leases")


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One holder's period of office over `key`, a run's id: every write of the holder carries it."""

    key: str
    epoch: int
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The newest term, as the server sees it."""

    epoch: int
    owner: str
    remaining_ms: int  # negative: since when it has been over

    @property
    def may_be_succeeded(self) -> bool:
        return self.remaining_ms < -TAKEOVER_MARGIN_S * 1000


def new_owner() -> str:
    """A name that no other claimant has: a lost answer is resolved by looking for it."""
    token = f"{_here()}{secrets.token_hex(6)}"
    return f"{socket.gethostname()[: OWNER_MAX - 40]}:{os.getpid()}:{token}"


def process_of(owner: str) -> str:
    """`process 4711 on build-7`."""
    host, _, pid = owner.partition(" ")[0].rpartition(":")[0].rpartition(":")
    return f"process {printable(pid, 20)} on {printable(host, 80)}"


def is_gone(owner: str) -> bool:
    """Has this process run on this machine, and ended? False also where nobody can know."""
    name, _, token = owner.partition(" ")[0].rpartition(":")
    pid, here = name.rpartition(":")[2], _here()
    return bool(here) and token.startswith(here) and pid.isdigit() and not is_running(int(pid))


def is_running(pid: int) -> bool:
    """Is there such a process on this machine? One that only waits to be noticed by its parent is none."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


@cache
def _here() -> str:
    """This start of this machine, and which numbers of processes are seen: containers may share a name. Linux only."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return hashlib.sha256(f"{boot} {os.readlink('/proc/self/ns/pid')}".encode()).hexdigest()[:8]
    except OSError:
        return ""


def read(session: ControlSession, key: str) -> Holder | None:
    """The newest term; None: nobody has ever been in charge."""
    return _holder(session.fetch(_Q["newest"], key))


def living(session: ControlSession, key: str) -> Holder | None:
    """A term that is not over, whether or not it is the newest; None: there is none."""
    return _holder(session.fetch(_Q["living"], key))


def claim(session: ControlSession, patience: Patience, key: str, owner: str, ttl_s: float) -> Term | None:
    """The next term; None when somebody holds the last one, or was faster."""
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
            if error.failure.duplicate_key:
                return look() or False
            raise

    def look() -> bool | None:
        """After a lost answer: is the term mine, somebody else's, or still to be had?"""
        now = read(session, key)
        if now is None or now.epoch < epoch:
            return None
        return (now.epoch, now.owner) == (epoch, owner)

    won = patience.settle(write, look)
    return Term(key=key, epoch=epoch, owner=owner) if won else None


def join(session: ControlSession, patience: Patience, key: str, owner: str, ttl_s: float) -> Term:
    """The next term, whoever else has one."""
    while True:
        holder = patience.call(lambda: read(session, key))
        if holder is not None and holder.owner == owner:  # an attempt whose answer was lost
            return Term(key=key, epoch=holder.epoch, owner=owner)
        epoch = 1 if holder is None else holder.epoch + 1
        if patience.call(partial(_insert, session, key, epoch, owner, ttl_s)):
            return Term(key=key, epoch=epoch, owner=owner)


def _insert(session: ControlSession, key: str, epoch: int, owner: str, ttl_s: float) -> bool:
    """False: the number is taken."""
    try:
        return session.execute(_Q["join"], key, epoch, owner, round(ttl_s * 1000)) == 1
    except ControlFailed as error:
        if error.failure.duplicate_key:
            return False
        raise


def renew(session: ControlSession, term: Term, ttl_s: float) -> bool:
    """Extend the term from now. False: it is over. One attempt: whoever keeps the term tries again at his own pace."""
    return session.execute(_Q["renew"], round(ttl_s * 1000), term.key, term.epoch, term.owner) == 1


def release(session: ControlSession, term: Term) -> None:
    """Make room for a successor at once. Only when every other statement of the term has ended."""
    session.execute(_Q["release"], -(TAKEOVER_MARGIN_S + 1) * 1000, term.key, term.epoch, term.owner)


def bury(session: ControlSession, key: str, holder: Holder) -> None:
    """The process of this holder is gone. Only for keys under which nothing is written: a statement of a dead process
    may still be under way."""
    session.execute(_Q["bury"], -(TAKEOVER_MARGIN_S + 1) * 1000, key, holder.epoch, holder.owner)


def _holder(rows: Sequence[tuple[Any, ...]]) -> Holder | None:
    return Holder(epoch=int(rows[0][0]), owner=rows[0][1], remaining_ms=int(rows[0][2])) if rows else None
