"""The warehouse under test: polled in a thread during the run, its credits estimated, and leased to one run at a time.

The polling thread has two sessions: one polls the target, the other stores the polls in the control plane. Neither
delays the leader.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Self

from loadgen.clock import Clock
from loadgen.control.lease import LeaseKeeper, LeaseTimes
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlSession, ParsedRows
from loadgen.control.tables import run_leases, run_measurements
from loadgen.control.tables.run_leases import (
    OWNER_MAX,
    RELEASED_S,
    TAKEOVER_MARGIN_S,
    Lease,
    LeaseHolder,
    StoredLease,
)
from loadgen.control.tables.run_measurements import WarehousePoll
from loadgen.errors import Busy, ConfigurationError, LoadgenError, RunFailed
from loadgen.log import event, printable
from loadgen.model.warehouse import RATES, WarehouseKind, clusters_shown, kind_shown, shown_row
from loadgen.prepare.session import target_profile
from loadgen.scenario.model import Scenario
from loadgen.snowflake import driver
from loadgen.snowflake.connect import connect
from loadgen.snowflake.driver import Connection
from loadgen.snowflake.failure import classify, describe
from loadgen.snowflake.ident import Identifier
from loadgen.snowflake.profile import ConnectionProfile
from loadgen.snowflake.profile_lookup import find_profile
from loadgen.snowflake.session import RetryPolicy, SnowflakeSession
from loadgen.snowflake.settings import control_settings, control_tag
from loadgen.threads import Service
from loadgen.units import HOUR_S, NS_PER_S
from loadgen.values import dataclass
from orchestrator.guardrails import costs_too_much

log = logging.getLogger(__name__)

POLLS_AGE_MAX = timedelta(days=31)  # of a run that is taken over


class CreditMeter:
    """Estimates credits: between two polls the warehouse was as the first poll showed. A poll of a size without a
    known price is left out.

    observe() belongs to one thread; `credits` may be read by others.
    """

    def __init__(self) -> None:
        self._since_ns: int | None = None
        self._rate = 0.0  # credits per hour, by the last poll
        self.credits = 0.0  # up to the last poll

    def credits_at(self, now_ns: int) -> float:
        """The credits up to this moment."""
        since_ns = now_ns if self._since_ns is None else self._since_ns
        return self.credits + self._rate * max(0, now_ns - since_ns) / NS_PER_S / HOUR_S

    def observe(self, size: str | None, kind: WarehouseKind, clusters: int, now_ns: int) -> bool:
        """Add a poll. Returns False if it shows no cost."""
        each = RATES.of(size, kind) if clusters else 0.0
        if each is None:
            event(log, logging.WARNING, "warehouse_cost_unknown", size=printable(size or "unknown", 50))
            return False
        self.credits = self.credits_at(now_ns)
        self._since_ns = now_ns
        self._rate = each * clusters
        return True


UNSTORED_MAX = 1_000  # polls that wait to be stored
SHOWN = 60  # polls kept for the display
STORE_RETRY_S = 30.0  # after an INSERT that failed
STORE_ATTEMPTS = 3  # when the poller is closed
JOIN_S = 15.0  # longer than a poll may take
_RAISE_COST = "Raise guardrails.max_credits, or prepare the tables with `loadgen prepare` first."


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseStatus:
    """The answer of SHOW WAREHOUSES."""

    running: int
    queued: int
    started_clusters: int
    max_clusters: int
    size: str | None
    kind: WarehouseKind

    @property
    def is_full(self) -> bool:
        """Statements are queued, and every cluster is started."""
        return self.queued > 0 and self.started_clusters >= self.max_clusters


class WarehousePoller(Service):
    """Polls the warehouse of a run. forget() is called by the leader; other public methods by any thread."""

    def __init__(
        self,
        profile: ConnectionProfile,
        warehouse: str,
        run_id: str,
        store: ControlSession,
        *,
        clock: Clock,
        period_s: float,
        environ: Mapping[str, str],
        meter: CreditMeter | None = None,
    ) -> None:
        """`store` belongs to the thread, which closes it. `meter` has counted the preparation, and continues."""
        super().__init__("warehouse-poll", self.run)
        self._run_id, self._store = run_id, store
        self._target = _target_session(profile, environ)
        self._warehouse = Identifier.parse(warehouse)
        self._clock, self._period_s = clock, period_s
        self._last: deque[WarehouseStatus] = deque(maxlen=2)
        self._unstored: deque[WarehousePoll] = deque(maxlen=UNSTORED_MAX)
        self._shown: deque[WarehousePoll] = deque(maxlen=SHOWN)
        self._observed: list[WarehousePoll] = []  # all polls of the run, stored or not
        self._store_ns = 0  # not before then, after a failure
        self._meter = meter or CreditMeter()
        self._seen_ns = clock.monotonic_ns()

    def queue_seen(self) -> bool:
        """Whether two polls in a row show a queue, the same number of clusters, and all clusters started."""
        last = tuple(self._last)
        return (
            len(last) == 2
            and all(status.is_full for status in last)
            and last[0].started_clusters == last[1].started_clusters
        )

    def forget(self) -> None:
        """A new step has begun: earlier polls do not describe it."""
        self._last.clear()

    @property
    def polls(self) -> tuple[WarehousePoll, ...]:
        """The newest polls, oldest first."""
        return tuple(self._shown)

    @property
    def observed(self) -> tuple[WarehousePoll, ...]:
        """All polls of the run, including those of an earlier leader, without the server's full answers."""
        return tuple(self._observed)

    @property
    def credits(self) -> float:
        """Estimated credits from the first poll until now."""
        return self._meter.credits_at(self._clock.monotonic_ns())

    @property
    def unseen_s(self) -> float:
        """Time since the last poll that showed the cost."""
        return (self._clock.monotonic_ns() - self._seen_ns) / NS_PER_S

    def restore(self, polls: ParsedRows[WarehousePoll]) -> list[str]:
        """Before start(): add the polls of an earlier leader, oldest first. The clocks of both machines are assumed to
        agree. Returns a warning for each row that is left out."""
        now_ns, now = self._clock.monotonic_ns(), self._clock.utc_now().replace(tzinfo=None)
        warnings = [str(error) for error in polls.unreadable]
        for poll in polls:
            if abs(now - poll.timestamp) > POLLS_AGE_MAX:  # it would count as a cost of years
                warnings.append(f"a poll of {poll.timestamp} is left out: it is older than the run")
                continue
            ago_s = max(0.0, (now - poll.timestamp).total_seconds())
            kind = kind_shown(shown_row(poll.raw))
            self._meter.observe(poll.size, kind, poll.started_clusters or 0, now_ns - round(ago_s * NS_PER_S))
            self._shown.append(poll)
            self._observed.append(replace(poll, raw=None))
        return warnings

    def run(self) -> None:
        """Poll until stopped, at once for the first time. A failed poll is logged, and the next one follows."""
        while True:
            try:
                self._poll()
            except Exception as error:  # the driver also raises exceptions of its libraries
                event(log, logging.WARNING, "warehouse_poll_failed", code=classify(error).code)
                self._last.clear()  # the polls before and after a failed one do not count as two in a row
                self._target.close()
            if self._clock.monotonic_ns() >= self._store_ns:
                self._store_polls(attempts=1)  # the next poll must not wait for long
            if self._clock.wait(self.stopping, self._period_s):
                break
        self._store_polls(attempts=STORE_ATTEMPTS)
        self._store.close()
        self._target.close()

    def _store_polls(self, *, attempts: int) -> None:
        """Store the polls since the last time: a successor of this leader knows only what is stored. After a failure
        they are kept for a later attempt; it does not fail the run."""
        polls = tuple(self._unstored)
        if not polls:
            return
        try:
            retries = RetryPolicy(stop=threading.Event(), clock=self._clock, attempts=attempts)
            run_measurements.append_polls(self._store, retries, polls)
            self._unstored.clear()
        except LoadgenError as error:
            event(log, logging.WARNING, "warehouse_polls_not_stored", polls=len(polls), why=str(error))
            self._store_ns = self._clock.monotonic_ns() + round(STORE_RETRY_S * NS_PER_S)

    def _poll(self) -> None:
        found = _shown(self._target, self._warehouse)
        if found is None:
            return
        status, raw = found
        now_ns = self._clock.monotonic_ns()
        if self._meter.observe(status.size, status.kind, status.started_clusters, now_ns):
            self._seen_ns = now_ns
        poll = WarehousePoll(
            run_id=self._run_id,
            timestamp=self._clock.utc_now().replace(tzinfo=None),
            running=status.running,
            queued=status.queued,
            started_clusters=status.started_clusters,
            size=status.size,
            raw=raw,
        )
        self._last.append(status)
        self._shown.append(poll)
        self._unstored.append(poll)
        self._observed.append(replace(poll, raw=None))


class PreparationCost(Service):
    """Polls the warehouse before the run is created, and sets `stop` when the cost limit is reached."""

    def __init__(self, scenario: Scenario, stop: threading.Event, clock: Clock, environ: Mapping[str, str]) -> None:
        super().__init__("preparation-cost", self.run)
        profile = target_profile(scenario, None, environ=environ)
        self._warehouse = Identifier.parse(profile.text("warehouse") or "")
        self._target = _target_session(profile, environ)
        self._most, self._period_s = scenario.guardrails.max_credits, scenario.timing.warehouse_poll_s
        self._stop, self._clock = stop, clock
        self._seen_ns = clock.monotonic_ns()
        self.meter = CreditMeter()
        self.reached: str | None = None  # why the preparation was stopped

    @property
    def credits(self) -> float:
        return self.meter.credits_at(self._clock.monotonic_ns())

    @property
    def unseen_s(self) -> float:
        return (self._clock.monotonic_ns() - self._seen_ns) / NS_PER_S

    def run(self) -> None:
        while self.reached is None:
            try:
                found = _shown(self._target, self._warehouse)
                if found is not None:
                    status, now_ns = found[0], self._clock.monotonic_ns()
                    if self.meter.observe(status.size, status.kind, status.started_clusters, now_ns):
                        self._seen_ns = now_ns
            except Exception as error:  # the driver also raises exceptions of its libraries
                event(log, logging.WARNING, "warehouse_poll_failed", code=classify(error).code)
                self._target.close()
            self.reached = costs_too_much(self, self._most)
            if self.reached is None and self._clock.wait(self.stopping, self._period_s):
                break
        if self.reached is not None:
            self._stop.set()
        self._target.close()


@contextmanager
def limited_cost(
    scenario: Scenario, stop: threading.Event, clock: Clock, environ: Mapping[str, str] = os.environ
) -> Iterator[CreditMeter]:
    """Limits the cost of the preparation: it fails when guardrails.max_credits is reached. Yields the meter, which the
    run continues to use. Setting `stop` ends the preparation."""
    if scenario.guardrails.max_credits is None:
        yield CreditMeter()
        return
    watch = PreparationCost(scenario, stop, clock, environ)
    watch.start()
    try:
        yield watch.meter
    except LoadgenError as error:
        if watch.reached is not None:
            raise RunFailed(f"{watch.reached}; the run has not begun", remedy=_RAISE_COST) from error
        raise
    finally:
        watch.stop()
        watch.join(JOIN_S)
    if watch.reached is not None:
        raise RunFailed(f"{watch.reached}; the run has not begun", remedy=_RAISE_COST)


def target_warehouse(
    scenario: Scenario, environ: Mapping[str, str] = os.environ
) -> tuple[ConnectionProfile, str | None]:
    """The connection under test, and the warehouse: that of the scenario, else that of the connection, else None."""
    profile = find_profile(scenario.connection, environ=environ)
    return profile, scenario.target.warehouse or profile.text("warehouse")


def require_visible_cost(scenario: Scenario, environ: Mapping[str, str] = os.environ) -> None:
    """Reject guardrails.max_credits if the cost of the warehouse cannot be observed: the limit would have no effect."""
    name = target_profile(scenario, None, environ=environ).text("warehouse")
    if name is None:
        raise CostUnknown("guardrails.max_credits is set, and no warehouse is named, so the cost cannot be observed")
    try:
        found = show_warehouse(scenario, environ)
    except WarehouseUnreadable as error:
        raise CostUnknown(f"guardrails.max_credits is set, and {error}") from error
    if found is None:
        raise CostUnknown(f"guardrails.max_credits is set, and this role does not see warehouse {printable(name, 100)}")
    if RATES.of(found[0].size, found[0].kind) is None:
        size = printable(found[0].size or "unknown", 50)
        raise CostUnknown(f"guardrails.max_credits is set, and the cost of a warehouse of size {size} is not known")


class WarehouseUnreadable(RunFailed):
    """SHOW WAREHOUSES failed."""


def show_warehouse(scenario: Scenario, environ: Mapping[str, str] = os.environ) -> tuple[WarehouseStatus, str] | None:
    """The status of the scenario's warehouse, and its row of SHOW WAREHOUSES as JSON. None: no warehouse is named, or
    the role does not see it. Raises LoadgenError when the login fails, WarehouseUnreadable when the statement fails."""
    profile = target_profile(scenario, None, environ=environ)
    name = profile.text("warehouse")
    if name is None:
        return None
    session = _target_session(profile, environ)
    session.open()
    try:
        return _shown(session, Identifier.parse(name))
    except Exception as error:  # the driver also raises exceptions of its libraries
        raise WarehouseUnreadable(f"warehouse {printable(name, 100)} could not be read: {describe(error)}") from error
    finally:
        session.close()


class CostUnknown(ConfigurationError):
    """The cost of a run is limited, but cannot be observed."""

    remedy = "Name a warehouse on which the role has MONITOR or USAGE, or leave guardrails.max_credits out."


def _target_session(profile: ConnectionProfile, environ: Mapping[str, str]) -> SnowflakeSession:
    def open_connection() -> Connection:
        settings = control_settings(profile, major=driver.major(), tag=control_tag("warehouse-poll"))
        return connect(profile, settings, environ=environ)

    return SnowflakeSession(open_connection)


def _shown(session: SnowflakeSession, warehouse: Identifier) -> tuple[WarehouseStatus, str] | None:
    """The status of the warehouse, and its row of SHOW WAREHOUSES as JSON. None: this role does not see it."""
    rows = session.named_rows(f"SHOW WAREHOUSES{warehouse.like}")
    row = next((row for row in rows if row.get("name") == warehouse.name), None)
    if row is None:
        return None
    started, most = clusters_shown(row)
    status = WarehouseStatus(
        running=_number(row.get("running")),
        queued=_number(row.get("queued")),
        started_clusters=started,
        max_clusters=most,
        size=None if row.get("size") is None else str(row["size"])[:50],
        kind=kind_shown(row),
    )
    return status, json.dumps(row, default=str)


def _number(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        return 0


# --- The lease of a warehouse: one run at a time, because two runs would measure each other --------------------------
#
# The lease has the key `warehouse:<account>/<name>` in the control plane's RUN_LEASES. It is claimed before anything
# is prepared, and kept until the run has ended; the lease of a killed run expires.
#
# A run that shares the warehouse takes the next epoch although other leases are valid. A run that needs the warehouse
# exclusively finds at its end that there is a newer epoch. A leader that has taken a run over finds it in the leases
# that are stored.

KEY_MAX = 100  # characters; as wide as the column
WAIT_POLL_S = 1.0
FINAL_CHECK_ATTEMPTS = 4  # to check whether another run claimed the warehouse; after that it is unknown
_DIGEST = 16  # characters


class WaitStopped(LoadgenError):
    """The user ended the wait."""

    exit_code = 130
    remedy = "Run the same command again."


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetWarehouse:
    """The warehouse under test."""

    account: str
    name: str

    @classmethod
    def of_profile(cls, profile: ConnectionProfile) -> Self:
        """The warehouse of the connection; if none is named, the default warehouse of the user."""
        named = profile.text("warehouse")
        name = f"default of {profile.text('user') or 'the user'}" if named is None else Identifier.parse(named).name
        return cls(account=(profile.text("account") or profile.host).upper(), name=name)

    @property
    def key(self) -> str:
        """The key of its lease. A key that is too long is shortened and ends with a digest."""
        key = f"warehouse:{self.account}/{self.name}"
        if len(key) <= KEY_MAX:
            return key
        digest = hashlib.sha256(key.encode()).hexdigest()[:_DIGEST]
        return f"{key[: KEY_MAX - _DIGEST - 1]}~{digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseWait:
    """What to do while another run holds the warehouse."""

    wait: bool  # False: raise Busy at once
    share: bool = False  # measure at the same time as the other run
    stop: threading.Event  # ends the wait
    on_wait: Callable[[str], None] = lambda _: None  # called with the reason of the wait
    leaderless: Callable[[ControlSession], str | None] = lambda _: None  # active workers of a run without a leader


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
    """Hold the warehouse lease while the block runs. Yields a function that returns whether the run has been alone
    so far: whether no other run has claimed the next epoch, for example because the lease was not renewed in time.
    For a run that shares the warehouse it always returns True."""
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
        yield lambda: queue.share or _is_newest(term, place, environ, clock)
    finally:
        keeper.stop(releasing=True)


def _is_newest(term: Lease, place: ControlPlaneLocation, environ: Mapping[str, str], clock: Clock) -> bool:
    """Whether no other process has claimed the warehouse since. False also if that cannot be read."""
    session = ControlSession(place, role="warehouse-lease", environ=environ)
    retries = RetryPolicy(stop=threading.Event(), attempts=FINAL_CHECK_ATTEMPTS, clock=clock)
    try:
        holder = retries.call(lambda: run_leases.read(session, term.key))
    except LoadgenError:
        return False
    finally:
        session.close()
    return holder is not None and (holder.epoch, holder.owner) == (term.epoch, term.owner)


def held_by_run_only(
    leases: Sequence[StoredLease], led: Sequence[StoredLease], scenario: str, created_at: datetime, started_at: datetime
) -> bool:
    """Whether no other run can have used the warehouse while a run measured that was taken over. Pure.

    `leases`: all leases on the warehouse; `led`: all leases of the run, which was created and has started at these
    times. Each leader has held the warehouse by its first lease there that had not ended when the run was created. A
    run whose first lease there is not found cannot show that it was alone.
    """
    released = timedelta(seconds=RELEASED_S)
    unended = [lease for lease in leases if lease.expires_at > created_at - released]
    own: dict[str, int] = {}
    for lease in unended:
        if lease.is_of({run_leases.process_of(one.owner) for one in led}, scenario):
            own.setdefault(run_leases.process_of(lease.owner), lease.epoch)
    first = own.get(run_leases.process_of(led[0].owner)) if led else None
    if first is None:
        return False
    others = [lease for lease in leases if lease.epoch not in own.values()]
    return all(one.epoch < first and one.expires_at <= started_at - released for one in others)


def _claim(
    session: ControlSession,
    warehouse: TargetWarehouse,
    owner: str,
    times: LeaseTimes,
    queue: WarehouseWait,
    clock: Clock,
) -> tuple[int, Lease]:
    retries = RetryPolicy(stop=queue.stop, clock=clock)
    while True:
        claimed_ns = clock.monotonic_ns()
        if queue.share:
            return claimed_ns, run_leases.claim_shared(session, retries, warehouse.key, owner, times.ttl_s)
        _release_dead_holders(session, retries, warehouse.key)
        holder = retries.call(lambda: run_leases.unexpired(session, warehouse.key))
        active = queue.leaderless(session) if holder is None else None
        if holder is None and active is None:
            term = run_leases.claim(session, retries, warehouse.key, owner, times.ttl_s)
            if term is not None:
                return claimed_ns, term
            holder = retries.call(lambda: run_leases.read(session, warehouse.key))
        reason = active or busy_text(warehouse, holder)
        if not queue.wait:
            raise Busy(reason, remedy="Add --wait to wait for it; `loadgen runs list` shows the runs.")
        queue.on_wait(reason)
        if clock.wait(queue.stop, WAIT_POLL_S):
            raise WaitStopped(f"stopped while waiting: {reason}")


def _release_dead_holders(session: ControlSession, retries: RetryPolicy, key: str) -> None:
    """Release leases whose holder's process has ended on this machine without releasing them."""
    for read in (run_leases.unexpired, run_leases.read):
        while (holder := retries.call(partial(read, session, key))) is not None:
            if holder.may_be_succeeded or not run_leases.is_owner_dead(holder.owner):
                break
            retries.call(partial(run_leases.release_of_dead, session, key, holder))


def busy_text(warehouse: TargetWarehouse, holder: LeaseHolder | None) -> str:
    """Which run holds the warehouse, in one sentence."""
    what = f"warehouse {printable(warehouse.name, 100)}"
    if holder is None:
        return f"{what} is being claimed by another run"
    scenario = holder.owner.partition(" ")[2]
    by = f"scenario {printable(scenario, 60)}, {run_leases.describe_owner(holder.owner)}"
    if holder.remaining_ms > 0:
        return f"{what} is in use by another run: {by}"
    free_s = max(0.0, TAKEOVER_MARGIN_S + holder.remaining_ms / 1000)
    return f"{what} was in use by a run that has ended: {by}; it is free in {free_s:.0f} s"
