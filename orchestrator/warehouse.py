"""Polls the warehouse under test every few seconds, in a thread with two sessions: one polls the target, one stores the
answers in the control plane. Neither ever delays the leader."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Self

from loadgen.clock import Clock
from loadgen.control.lease import LeaseKeeper, LeaseTimes
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlSession, ParsedRows
from loadgen.control.tables import run_leases, run_measurements
from loadgen.control.tables.run_leases import OWNER_MAX, TAKEOVER_MARGIN_S, Lease, LeaseHolder
from loadgen.control.tables.run_measurements import WarehousePoll
from loadgen.errors import Busy, ConfigurationError, LoadgenError, RunFailed
from loadgen.log import event, printable
from loadgen.model.warehouse import Cloud, WarehouseKind, kind_shown, shown_row, snowflake_rates
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
from loadgen.units import NS_PER_S
from loadgen.values import dataclass
from orchestrator.guardrails import costs_too_much

HOUR_S = 3600.0
RATES = snowflake_rates(Cloud.AWS)  # a run does not know its cloud: generation 2 is cheaper on Azure only
POLLS_AGE_MAX = timedelta(days=31)  # of a run that is taken over


class CreditMeter:
    """look() with every look. One thread; `credits` may be read by others."""

    def __init__(self) -> None:
        self._since_ns: int | None = None
        self._rate = 0.0  # credits per hour, by the look before
        self.credits = 0.0

    def until(self, now_ns: int) -> float:
        """The same until now: since the last look it has been as that showed."""
        since_ns = now_ns if self._since_ns is None else self._since_ns
        return self.credits + self._rate * max(0, now_ns - since_ns) / NS_PER_S / HOUR_S

    def look(self, size: str | None, kind: WarehouseKind, clusters: int, now_ns: int) -> None:
        """Between two looks it was as the first of them showed."""
        self.credits = self.until(now_ns)
        self._since_ns = now_ns
        self._rate = (RATES.of(size, kind) or 0.0) * clusters


log = logging.getLogger(__name__)

UNSTORED_MAX = 1_000  # looks that wait to be stored
SHOWN = 60  # polls kept for the display
STORE_S = 30.0  # one statement of the standard table then
STORE_ATTEMPTS = 3
JOIN_S = 15.0  # longer than a look may take
_RAISE_COST = "Raise guardrails.max_credits, or prepare the tables with `loadgen prepare` first."


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseStatus:
    """What SHOW WAREHOUSES said."""

    running: int
    queued: int
    started_clusters: int
    max_clusters: int
    size: str | None
    kind: WarehouseKind

    @property
    def is_full(self) -> bool:
        """Statements wait, and no further cluster can help them."""
        return self.queued > 0 and self.started_clusters >= self.max_clusters


class WarehousePoller(Service):
    """forget(): the leader. Everything else that is public: any thread."""

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
        """`store` belongs to the thread, which closes it. `meter`: has counted before, and goes on."""
        super().__init__("warehouse-poll", self.run)
        self._run_id, self._store = run_id, store
        self._target = _target_session(profile, environ)
        self._warehouse = Identifier.parse(warehouse)
        self._clock, self._period_s = clock, period_s
        self._looks: deque[WarehouseStatus] = deque(maxlen=2)
        self._unstored: deque[WarehousePoll] = deque(maxlen=UNSTORED_MAX)
        self._shown: deque[WarehousePoll] = deque(maxlen=SHOWN)
        self._observed: list[WarehousePoll] = []  # all of the run: polls that cannot be stored were made all the same
        self._meter = meter or CreditMeter()
        self._seen_ns = clock.monotonic_ns()

    def queue_seen(self) -> bool:
        """Two looks in a row with a queue, the same clusters, and none left to start."""
        looks = tuple(self._looks)
        return (
            len(looks) == 2
            and all(look.is_full for look in looks)
            and looks[0].started_clusters == looks[1].started_clusters
        )

    def forget(self) -> None:
        """A new step has begun: what was seen before says nothing about it."""
        self._looks.clear()

    @property
    def polls(self) -> tuple[WarehousePoll, ...]:
        """The newest looks, oldest first."""
        return tuple(self._shown)

    @property
    def observed(self) -> tuple[WarehousePoll, ...]:
        """All polls of the run, those of an earlier leader included; without what the server said in full."""
        return tuple(self._observed)

    @property
    def credits(self) -> float:
        """What it has cost since the first look until now, estimated."""
        return self._meter.until(self._clock.monotonic_ns())

    @property
    def unseen_s(self) -> float:
        """For how long no look has worked."""
        return (self._clock.monotonic_ns() - self._seen_ns) / NS_PER_S

    def go_on(self, polls: ParsedRows[WarehousePoll]) -> list[str]:
        """Before start(): what another leader has seen, oldest first. Its clock is taken to be right. Which rows are
        left out, and why."""
        now_ns, now = self._clock.monotonic_ns(), self._clock.utc_now().replace(tzinfo=None)
        told = [str(error) for error in polls.unreadable]
        for poll in polls:
            if abs(now - poll.timestamp) > POLLS_AGE_MAX:  # it would be counted as the cost of years
                told.append(f"a poll of {poll.timestamp} is left out: the run is not as old")
                continue
            ago_s = max(0.0, (now - poll.timestamp).total_seconds())
            kind = kind_shown(shown_row(poll.raw))
            self._meter.look(poll.size, kind, poll.started_clusters or 0, now_ns - round(ago_s * NS_PER_S))
            self._shown.append(poll)
            self._observed.append(replace(poll, raw=None))
        return told

    def run(self) -> None:
        """Poll until told to stop. A poll that fails is followed by the next one."""
        stopping = self.stopping
        stored_ns = self._clock.monotonic_ns()
        while not self._clock.wait(stopping, self._period_s):
            try:
                self._look()
            except Exception as error:  # the driver leaks exceptions of its libraries
                event(log, logging.WARNING, "warehouse_poll_failed", code=classify(error).code)
                self._looks.clear()  # what was seen before it, and what will be after, are not two looks in a row
                self._target.close()
            if self._clock.monotonic_ns() - stored_ns >= STORE_S * NS_PER_S:
                self._keep(stopping)
                stored_ns = self._clock.monotonic_ns()
        self._keep(threading.Event())
        self._store.close()
        self._target.close()

    def _keep(self, stopping: threading.Event) -> None:
        """Store what was seen since the last time. What cannot be stored is not worth a run."""
        polls = [self._unstored.popleft() for _ in range(len(self._unstored))]
        if not polls:
            return
        try:
            patience = RetryPolicy(stop=stopping, clock=self._clock, attempts=STORE_ATTEMPTS)
            run_measurements.append_polls(self._store, patience, polls)
        except LoadgenError as error:
            event(log, logging.WARNING, "warehouse_polls_lost", polls=len(polls), why=str(error))

    def _look(self) -> None:
        found = _shown(self._target, self._warehouse)
        if found is None:
            return
        look, raw = found
        self._seen_ns = self._clock.monotonic_ns()
        self._meter.look(look.size, look.kind, look.started_clusters, self._seen_ns)
        poll = WarehousePoll(
            run_id=self._run_id,
            timestamp=self._clock.utc_now().replace(tzinfo=None),
            running=look.running,
            queued=look.queued,
            started_clusters=look.started_clusters,
            size=look.size,
            raw=raw,
        )
        self._looks.append(look)
        self._shown.append(poll)
        self._unstored.append(poll)
        self._observed.append(replace(poll, raw=None))


class PreparationCost(Service):
    """Before there is a run: polls the warehouse, and sets `stop` when it has cost what it may. One thread polls."""

    def __init__(self, scenario: Scenario, stop: threading.Event, clock: Clock, environ: Mapping[str, str]) -> None:
        super().__init__("preparation-cost", self.run)
        profile = target_profile(scenario, None, environ=environ)
        self._warehouse = Identifier.parse(profile.text("warehouse") or "")
        self._target = _target_session(profile, environ)
        self._most, self._period_s = scenario.guardrails.max_credits, scenario.timing.warehouse_poll_s
        self._stop, self._clock = stop, clock
        self._seen_ns = clock.monotonic_ns()
        self.meter = CreditMeter()
        self.reached: str | None = None  # why it has ended the preparation

    @property
    def credits(self) -> float:
        return self.meter.until(self._clock.monotonic_ns())

    @property
    def unseen_s(self) -> float:
        return (self._clock.monotonic_ns() - self._seen_ns) / NS_PER_S

    def run(self) -> None:
        while self.reached is None:
            try:
                found = _shown(self._target, self._warehouse)
                if found is not None:
                    self._seen_ns = self._clock.monotonic_ns()
                    look = found[0]
                    self.meter.look(look.size, look.kind, look.started_clusters, self._seen_ns)
            except Exception as error:  # the driver leaks exceptions of its libraries
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
    """The preparation of a run: with guardrails.max_credits it fails when that is reached. The block gets the meter,
    with which the run goes on. `stop` ends the preparation."""
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
    """The connection under test and its warehouse: the scenario's, else the connection's; None: none is named."""
    profile = find_profile(scenario.connection, environ=environ)
    return profile, scenario.target.warehouse or profile.text("warehouse")


def require_visible_cost(scenario: Scenario, environ: Mapping[str, str] = os.environ) -> None:
    """Refuse guardrails.max_credits where the cost of the warehouse cannot be seen: nothing would end the run."""
    name = target_profile(scenario, None, environ=environ).text("warehouse")
    if name is None:
        raise CostUnknown("guardrails.max_credits is set, and no warehouse is named whose cost could be seen")
    try:
        found = show_warehouse(scenario, environ)
    except WarehouseUnreadable as error:
        raise CostUnknown(f"guardrails.max_credits is set, and {error}") from error
    if found is None:
        raise CostUnknown(f"guardrails.max_credits is set, and this role does not see warehouse {printable(name, 100)}")
    if RATES.of(found[0].size, found[0].kind) is None:
        size = printable(found[0].size or "that it does not tell", 50)
        raise CostUnknown(f"guardrails.max_credits is set, and what a warehouse of size {size} costs is not known")


class WarehouseUnreadable(RunFailed):
    """SHOW WAREHOUSES failed."""


def show_warehouse(scenario: Scenario, environ: Mapping[str, str] = os.environ) -> tuple[WarehouseStatus, str] | None:
    """The scenario's warehouse as SHOW WAREHOUSES has it, also as it came; None: none is named, or the role does not
    see it. LoadgenError: the login failed, or WarehouseUnreadable."""
    profile = target_profile(scenario, None, environ=environ)
    name = profile.text("warehouse")
    if name is None:
        return None
    session = _target_session(profile, environ)
    session.open()
    try:
        return _shown(session, Identifier.parse(name))
    except Exception as error:  # the driver leaks exceptions of its libraries
        raise WarehouseUnreadable(f"warehouse {printable(name, 100)} cannot be looked at: {describe(error)}") from error
    finally:
        session.close()


class CostUnknown(ConfigurationError):
    """The cost of a run is limited, and cannot be seen."""

    remedy = "Name a warehouse on which the role has MONITOR or USAGE, or leave guardrails.max_credits out."


def _target_session(profile: ConnectionProfile, environ: Mapping[str, str]) -> SnowflakeSession:
    def open_connection() -> Connection:
        settings = control_settings(profile, major=driver.major(), tag=control_tag("warehouse-poll"))
        return connect(profile, settings, environ=environ)

    return SnowflakeSession(open_connection)


def _shown(session: SnowflakeSession, warehouse: Identifier) -> tuple[WarehouseStatus, str] | None:
    """What SHOW WAREHOUSES says of it, also as it came; None: this role does not see it."""
    rows = session.named_rows(f"SHOW WAREHOUSES{warehouse.like}")
    row = next((row for row in rows if row.get("name") == warehouse.name), None)
    if row is None:
        return None
    look = WarehouseStatus(
        running=_number(row.get("running")),
        queued=_number(row.get("queued")),
        started_clusters=_number(row.get("started_clusters")),
        max_clusters=_number(row.get("max_cluster_count")),
        size=None if row.get("size") is None else str(row["size"])[:50],
        kind=kind_shown(row),
    )
    return look, json.dumps(row, default=str)


def _number(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        return 0


# --- One run at a time on a warehouse: two runs at once would measure each other -------------------------------------
#
# The lease has the key `warehouse:<account>/<name>` in the control plane's RUN_LEASES. It is claimed before anything
# is prepared, and kept until the run has ended; the lease of a killed run expires.
#
# A run that shares the warehouse joins: it takes the next epoch beside the valid leases. A run that needs the
# warehouse exclusively finds at its end that there is a newer epoch.

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
        claimed_ns = clock.monotonic_ns()
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
