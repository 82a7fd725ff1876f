"""Polls the warehouse under test every few seconds, in a thread with two sessions: one polls the target, one stores the
answers in the control plane. Neither ever delays the leader."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from loadgen.clock import Clock
from loadgen.control.rows import ParsedRows
from loadgen.control.session import ControlSession
from loadgen.control.tables import warehouse_poll_snapshots
from loadgen.control.tables.warehouse_poll_snapshots import WarehousePoll
from loadgen.errors import ConfigurationError, LoadgenError
from loadgen.log import event, printable
from loadgen.model.credits import credits_per_hour
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

HOUR_S = 3600.0
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

    def look(self, size: str | None, clusters: int, now_ns: int) -> None:
        """Between two looks it was as the first of them showed."""
        self.credits = self.until(now_ns)
        self._since_ns = now_ns
        self._rate = (credits_per_hour(size or "") or 0.0) * clusters


log = logging.getLogger(__name__)

UNSTORED_MAX = 1_000  # looks that wait to be stored
SHOWN = 60  # polls kept for the display
STORE_S = 30.0  # one statement of the standard table then
STORE_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseStatus:
    """What SHOW WAREHOUSES said."""

    running: int
    queued: int
    started_clusters: int
    max_clusters: int
    size: str | None

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
    ) -> None:
        """`store` belongs to the thread, which closes it."""
        super().__init__("warehouse-poll", self.run)
        self._run_id, self._store = run_id, store
        self._target = _target_session(profile, environ)
        self._warehouse = Identifier.parse(warehouse)
        self._clock, self._period_s = clock, period_s
        self._looks: deque[WarehouseStatus] = deque(maxlen=2)
        self._unstored: deque[WarehousePoll] = deque(maxlen=UNSTORED_MAX)
        self._shown: deque[WarehousePoll] = deque(maxlen=SHOWN)
        self._observed: list[WarehousePoll] = []  # all of the run: polls that cannot be stored were made all the same
        self._meter = CreditMeter()
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
            self._meter.look(poll.size, poll.started_clusters or 0, now_ns - round(ago_s * NS_PER_S))
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
            warehouse_poll_snapshots.append(self._store, patience, polls)
        except LoadgenError as error:
            event(log, logging.WARNING, "warehouse_polls_lost", polls=len(polls), why=str(error))

    def _look(self) -> None:
        found = _shown(self._target, self._warehouse)
        if found is None:
            return
        look, raw = found
        self._seen_ns = self._clock.monotonic_ns()
        self._meter.look(look.size, look.started_clusters, self._seen_ns)
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


def target_warehouse(
    scenario: Scenario, environ: Mapping[str, str] = os.environ
) -> tuple[ConnectionProfile, str | None]:
    """The connection under test and its warehouse: the scenario's, else the connection's; None: none is named."""
    profile = find_profile(scenario.connection, environ=environ)
    return profile, scenario.target.warehouse or profile.text("warehouse")


def require_visible_cost(scenario: Scenario, environ: Mapping[str, str] = os.environ) -> None:
    """Refuse guardrails.max_credits where the cost of the warehouse cannot be seen: nothing would end the run."""
    profile = target_profile(scenario, None, environ=environ)
    name = profile.text("warehouse")
    if name is None:
        raise CostUnknown("guardrails.max_credits is set, and no warehouse is named whose cost could be seen")
    session = _target_session(profile, environ)
    session.open()
    try:
        found = _shown(session, Identifier.parse(name))
    except Exception as error:  # the driver leaks exceptions of its libraries
        why = f"warehouse {printable(name, 100)} cannot be looked at: {describe(error)}"
        raise CostUnknown(f"guardrails.max_credits is set, and {why}") from error
    finally:
        session.close()
    if found is None:
        raise CostUnknown(f"guardrails.max_credits is set, and this role does not see warehouse {printable(name, 100)}")
    if credits_per_hour(found[0].size or "") is None:
        size = printable(found[0].size or "that it does not tell", 50)
        raise CostUnknown(f"guardrails.max_credits is set, and what a warehouse of size {size} costs is not known")


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
    )
    return look, json.dumps(row, default=str)


def _number(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        return 0
