"""One run at a time on a warehouse: two runs at once would measure each other.

The lease has the key `warehouse:<account>/<name>` in the control plane's RUN_LEASES. It is claimed before anything is
prepared, and kept until the run has ended; the lease of a killed run expires.

A run that shares the warehouse joins: it takes the next epoch beside the valid leases. A run that needs the warehouse
exclusively finds at its end that there is a newer epoch.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Self

from loadgen.clock import Clock
from loadgen.control.lease import LeaseKeeper, LeaseTimes
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlSession
from loadgen.control.tables import run_leases
from loadgen.control.tables.run_leases import OWNER_MAX, TAKEOVER_MARGIN_S, Lease, LeaseHolder
from loadgen.errors import Busy, LoadgenError
from loadgen.log import printable
from loadgen.snowflake.ident import Identifier
from loadgen.snowflake.profile import ConnectionProfile
from loadgen.snowflake.session import RetryPolicy

KEY_MAX = 100  # characters; as wide as the column
WAIT_POLL_S = 1.0
FINAL_CHECK_ATTEMPTS = 4  # whether another run took the warehouse; after that it is unknown
_DIGEST = 16  # characters


class WaitStopped(LoadgenError):
    """The user did not want to wait any longer."""

    exit_code = 130
    remedy = "Run the same command again."


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetWarehouse:
    """The warehouse under test."""

    account: str
    name: str

    @classmethod
    def of_profile(cls, profile: ConnectionProfile) -> Self:
        """The connection's warehouse; where none is named, the one that the user gets by default."""
        named = profile.text("warehouse")
        name = f"default of {profile.text('user') or 'the user'}" if named is None else Identifier.parse(named).name
        return cls(account=(profile.text("account") or profile.host).upper(), name=name)

    @property
    def key(self) -> str:
        """The same warehouse has the same key, however long its names are."""
        key = f"warehouse:{self.account}/{self.name}"
        if len(key) <= KEY_MAX:
            return key
        digest = hashlib.sha256(key.encode()).hexdigest()[:_DIGEST]
        return f"{key[: KEY_MAX - _DIGEST - 1]}~{digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseWait:
    """What to do while another run has the warehouse."""

    wait: bool  # False: Busy at once
    share: bool = False  # measure at the same time
    stop: threading.Event  # ends the waiting
    told: Callable[[str], None] = lambda _: None  # whom we wait for
    deserted: Callable[[ControlSession], str | None] = lambda _: None  # workers there that are not led any more


@contextmanager
def exclusive_warehouse(
    warehouse: TargetWarehouse,
    scenario: str,
    place: ControlPlaneLocation,
    times: LeaseTimes,
    queue: WarehouseWait,
    *,
    clock: Clock,
    environ: Mapping[str, str] = os.environ,
) -> Iterator[Callable[[], bool]]:
    """Hold the warehouse lease while the block runs. It gets a function that says whether the run was alone so far: a
    lease that was not renewed in time matters once another run has claimed the next epoch. A sharing run is not
    checked."""
    owner = f"{run_leases.new_owner()} {scenario}"[:OWNER_MAX]
    session = ControlSession(place, role="warehouse-lease", environ=environ)
    try:
        claimed_ns, term = _claim(session, warehouse, owner, times, queue, clock)
    finally:
        session.close()
    keeper = LeaseKeeper(
        ControlSession(place, role="warehouse-lease", environ=environ), term, times, claimed_ns=claimed_ns, clock=clock
    )
    keeper.start()
    try:
        yield lambda: queue.share or _nobody_else_came(term, place, environ, clock)
    finally:
        keeper.stop(releasing=True)


def _nobody_else_came(term: Lease, place: ControlPlaneLocation, environ: Mapping[str, str], clock: Clock) -> bool:
    session = ControlSession(place, role="warehouse-lease", environ=environ)
    patience = RetryPolicy(stop=threading.Event(), attempts=FINAL_CHECK_ATTEMPTS, clock=clock)
    try:
        holder = patience.call(lambda: run_leases.read(session, term.key))
    except LoadgenError:
        return False  # unknown
    finally:
        session.close()
    return holder is not None and (holder.epoch, holder.owner) == (term.epoch, term.owner)


def _claim(
    session: ControlSession,
    warehouse: TargetWarehouse,
    owner: str,
    times: LeaseTimes,
    queue: WarehouseWait,
    clock: Clock,
) -> tuple[int, Lease]:
    patience = RetryPolicy(stop=queue.stop, clock=clock)
    while True:
        claimed_ns = clock.boottime_ns()
        if queue.share:
            return claimed_ns, run_leases.claim_shared(session, patience, warehouse.key, owner, times.ttl_s)
        _bury_the_gone(session, patience, warehouse.key)
        holder = patience.call(lambda: run_leases.unexpired(session, warehouse.key))
        working = queue.deserted(session) if holder is None else None
        if holder is None and working is None:
            term = run_leases.claim(session, patience, warehouse.key, owner, times.ttl_s)
            if term is not None:
                return claimed_ns, term
            holder = patience.call(lambda: run_leases.read(session, warehouse.key))
        said = working or busy_text(warehouse, holder)
        if not queue.wait:
            raise Busy(said, remedy="Add --wait to wait for it; `loadgen runs list` shows the runs.")
        queue.told(said)
        if clock.wait(queue.stop, WAIT_POLL_S):
            raise WaitStopped(f"stopped while waiting: {said}")


def _bury_the_gone(session: ControlSession, patience: RetryPolicy, key: str) -> None:
    """Whose process has ended on this machine, without a word, does not keep the warehouse any longer."""
    for look in (run_leases.unexpired, run_leases.read):
        while (holder := patience.call(partial(look, session, key))) is not None:
            if holder.may_be_succeeded or not run_leases.is_owner_dead(holder.owner):
                break
            patience.call(partial(run_leases.release_of_dead, session, key, holder))


def busy_text(warehouse: TargetWarehouse, holder: LeaseHolder | None) -> str:
    """Who has it, in one sentence."""
    what = f"warehouse {printable(warehouse.name, 100)}"
    if holder is None:
        return f"{what} is being taken by another run"
    scenario = holder.owner.partition(" ")[2]
    by = f"scenario {printable(scenario, 60)}, {run_leases.describe_owner(holder.owner)}"
    if holder.remaining_ms > 0:
        return f"{what} is in use by another run: {by}"
    free_s = max(0.0, TAKEOVER_MARGIN_S + holder.remaining_ms / 1000)
    return f"{what} was in use by a run that is gone: {by}; it is free in {free_s:.0f} s"
