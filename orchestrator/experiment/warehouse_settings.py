"""Settings of warehouses that arms change or create: recorded before the first change, verified by SHOW, restored.

A warehouse is altered only while this process holds its lease, so no run measures on it meanwhile. The changes of a
killed experiment are undone by `loadgen runs recover`, and before another experiment changes the same warehouse. A
warehouse is dropped only if its comment names the experiment that has created it: rows of tables are not trusted.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from loadgen.clock import Clock
from loadgen.control.lease import LeaseTimes
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlSession
from loadgen.control.tables import experiments, run_leases
from loadgen.control.tables.experiments import LEASE_PREFIX, ChangedWarehouse
from loadgen.errors import Busy, ConfigurationError, LoadgenError, RunFailed
from loadgen.log import event, printable
from loadgen.model.warehouse import (
    CONCURRENCY,
    WarehouseValue,
    alter_sql,
    create_sql,
    made_by,
    settings_from,
    shown_row,
    undo_sql,
    unsettled,
)
from loadgen.prepare.session import PrepareSession, target_profile
from loadgen.rules.experiment import makes_warehouse
from loadgen.rules.price import PlannedWarehouse, planned_warehouse, shown_warehouse, worst_case_credits
from loadgen.rules.scenario_plan import longest_s
from loadgen.scenario.experiment import LoadedExperiment
from loadgen.scenario.model import Scenario
from loadgen.snowflake import driver
from loadgen.snowflake.connect import connect
from loadgen.snowflake.ident import Identifier
from loadgen.snowflake.profile import ConnectionProfile
from loadgen.snowflake.profile_lookup import find_profile
from loadgen.snowflake.session import RetryPolicy, warehouse_row
from loadgen.snowflake.settings import control_settings, control_tag
from loadgen.units import NS_PER_S
from loadgen.values import dataclass
from orchestrator.warehouse import TargetWarehouse, WarehouseWait, exclusive_warehouse, show_warehouse

log = logging.getLogger(__name__)

# --- Statements on one warehouse: create, alter and wait for the effect, undo ----------------------------------------

SETTLE_MAX_S = 600.0  # large warehouses take minutes
SETTLE_POLL_S = 1.0


class WarehouseReplaced(RunFailed):
    """A warehouse that the experiment has created was dropped or replaced by another user."""

    remedy = "Inspect it with SHOW WAREHOUSES: it was not changed."


class NotSettled(RunFailed):
    """The settings of a warehouse did not take effect, or could not be read."""

    remedy = "Inspect it with SHOW WAREHOUSES; `loadgen runs recover` restores its settings."


def undo(session: PrepareSession, before: ChangedWarehouse, clock: Clock, stop: threading.Event) -> None:
    """Restore a warehouse to its state before the experiment."""
    warehouse = Identifier.parse(before.warehouse)
    if before.settings:
        alter_warehouse(session, warehouse, before.settings, clock, stop)
    elif _found(session, warehouse) is not None:
        require_made(session, warehouse, before.experiment_id)
        session.change(undo_sql(warehouse.sql, {}))


def undone_text(before: ChangedWarehouse) -> str:
    if before.settings:
        return f"the settings of warehouse {before.warehouse} are restored"
    return f"warehouse {before.warehouse} is dropped"


def create_warehouse(
    session: PrepareSession, warehouse: Identifier, settings: Mapping[str, WarehouseValue], experiment_id: str
) -> None:
    try:
        session.change(create_sql(warehouse.sql, settings, experiment_id))
    except LoadgenError:
        row = _found(session, warehouse)
        if row is None or row.get("comment") != made_by(experiment_id):
            raise  # otherwise the warehouse was created, and the answer was lost


def require_made(session: PrepareSession, warehouse: Identifier, experiment_id: str) -> None:
    """Raises WarehouseReplaced unless the experiment has created the warehouse of this name."""
    row = _found(session, warehouse)
    if row is None or row.get("comment") != made_by(experiment_id):
        what = f"warehouse {printable(warehouse.name, 100)} is not the one that experiment {experiment_id} has created"
        raise WarehouseReplaced(what)


def require_absent(session: PrepareSession, warehouse: Identifier) -> None:
    if _found(session, warehouse) is not None:
        what = f"warehouse {printable(warehouse.name, 100)} already exists, and create: true makes a new one"
        raise ConfigurationError(what, remedy="Choose another name, or remove create.")


def alter_warehouse(
    session: PrepareSession,
    warehouse: Identifier,
    settings: Mapping[str, WarehouseValue],
    clock: Clock,
    stop: threading.Event,
) -> None:
    """Change the settings that differ, and wait until SHOW shows the new ones."""
    shown = _shown(session, warehouse, settings)
    if unsettled(*shown, settings) is None:
        return
    session.change(alter_sql(warehouse.sql, settings))
    until_ns = clock.monotonic_ns() + round(SETTLE_MAX_S * NS_PER_S)
    while (missing := unsettled(*_shown(session, warehouse, settings), settings)) is not None:
        if clock.monotonic_ns() > until_ns or clock.wait(stop, SETTLE_POLL_S):
            raise NotSettled(f"warehouse {printable(warehouse.name, 100)} has not settled: {missing}")


def read_settings(session: PrepareSession, warehouse: Identifier, keys: frozenset[str]) -> dict[str, WarehouseValue]:
    try:
        return settings_from(*_shown(session, warehouse, keys), keys)
    except ValueError as error:
        raise NotSettled(f"the settings of warehouse {printable(warehouse.name, 100)} are not known: {error}") from None


def _shown(
    session: PrepareSession, warehouse: Identifier, keys: Mapping[str, Any] | frozenset[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The row of SHOW WAREHOUSES, and the parameters of the warehouse if one of these keys needs them."""
    row = _found(session, warehouse)
    if row is None:
        what = f"this role does not see warehouse {printable(warehouse.name, 100)}"
        raise NotSettled(what, remedy="Create it, or grant MODIFY and MONITOR on it: see `loadgen grants`.")
    if "max_concurrency_level" not in keys:
        return row, {}
    asked = f"SHOW PARAMETERS LIKE '{CONCURRENCY}' IN WAREHOUSE {warehouse.sql}"
    found = session.retried(lambda: session.named_rows(asked), asked)
    return row, {str(one["key"]): one["value"] for one in found}


def _found(session: PrepareSession, warehouse: Identifier) -> dict[str, Any] | None:
    """The row of SHOW WAREHOUSES. None: this role does not see the warehouse."""
    return session.retried(lambda: warehouse_row(session.named_rows, warehouse), "SHOW WAREHOUSES")


# --- All warehouses of an experiment ---------------------------------------------------------------------------------

GOES_ON = "the experiment has not ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arm:
    """An arm on a warehouse that arms change or create."""

    profile: ConnectionProfile
    warehouse: Identifier
    settings: Mapping[str, WarehouseValue]
    is_made: bool  # created by the experiment

    @property
    def target(self) -> TargetWarehouse:
        return TargetWarehouse.of_profile(self.profile)


class ArmWarehouseSettings:
    """Call apply() before a measurement, restore() at the end. Both call the driver: never call them on the main
    thread."""

    def __init__(
        self,
        loaded: LoadedExperiment,
        scenarios: Mapping[str, Scenario],
        place: ControlPlaneLocation,
        *,
        clock: Clock,
        tell: Callable[[str], None],
        wait: bool,
    ) -> None:
        """`wait`: whether to wait for a warehouse that another run uses when the experiment begins. Later it always
        waits."""
        self._place, self._clock, self._tell, self._wait = place, clock, tell, wait
        self._name = loaded.file.name
        self._connection = next(iter(scenarios.values())).connection
        self._arms: dict[str, _Arm] = {}
        self._keys: dict[str, frozenset[str]] = {}  # settings that any arm changes, by key of the warehouse
        for name, scenario in scenarios.items():
            given = loaded.file.arms[name]
            settings, is_made = given.settings, makes_warehouse(given)
            warehouse = scenario.target.warehouse
            if warehouse is not None:
                profile = target_profile(scenario, None)
                wanted = Identifier.parse(warehouse)
                self._arms[name] = arm = _Arm(profile=profile, warehouse=wanted, settings=settings, is_made=is_made)
                key = arm.target.key
                self._keys[key] = self._keys.get(key, frozenset()) | settings.keys()
        self._arms = {name: arm for name, arm in self._arms.items() if arm.is_made or self._keys[arm.target.key]}
        self._before: dict[str, ChangedWarehouse] = {}
        self._made: set[str] = set()  # keys of created warehouses

    def apply(self, arm: str, experiment_id: str, epoch: int, stop: threading.Event) -> None:
        """Apply the settings of the arm to its warehouse. Settings that only other arms change are restored. Setting
        `stop` ends waiting for the warehouse and for its settings."""
        wait, self._wait = self._wait, True
        wanted = self._arms.get(arm)
        if wanted is None:
            return
        with self._altering(wanted.target, stop, wait=wait), closing(self._session(wanted)) as session:
            key = wanted.target.key
            if key not in self._before:
                self._before[key] = self._record(session, wanted, experiment_id, epoch, stop)
            if wanted.is_made and key not in self._made:  # also after an attempt that failed
                create_warehouse(session, wanted.warehouse, wanted.settings, experiment_id)
                self._made.add(key)
                self._tell(f"warehouse {wanted.warehouse.sql} is created")
            if wanted.is_made:
                require_made(session, wanted.warehouse, experiment_id)
            settings = {**self._before[key].settings, **wanted.settings}
            alter_warehouse(session, wanted.warehouse, settings, self._clock, stop)

    def restore(self, stop: threading.Event) -> None:
        """Restore all warehouses that were changed. Raises LoadgenError at the end if one could not be restored. `stop`
        ends waiting for a warehouse that a run uses: it must not be the event that has ended apply()."""
        errors: list[LoadgenError] = []
        for key, before in list(self._before.items()):
            arm = next(arm for arm in self._arms.values() if arm.target.key == key)
            try:
                with self._altering(arm.target, stop, wait=True):
                    with closing(self._session(arm)) as session:
                        undo(session, before, self._clock, threading.Event())
                    self._forget(before)
            except LoadgenError as error:
                errors.append(error)
                self._tell(f"warehouse {before.warehouse} could not be restored: {error}")
                if not isinstance(error, WarehouseReplaced):
                    self._tell(f"undo it with: {undo_sql(before.warehouse, before.settings)}")
            else:
                del self._before[key]
                self._made.discard(key)
                self._tell(undone_text(before))
        if errors:
            raise errors[0]

    def _record(
        self, session: PrepareSession, arm: _Arm, experiment_id: str, epoch: int, stop: threading.Event
    ) -> ChangedWarehouse:
        """Store the settings of the warehouse before the first change. The changes of killed experiments are undone
        first."""
        target = arm.target
        with closing(ControlSession(self._place, role="experiment")) as control:
            retries = RetryPolicy(stop=stop, clock=self._clock)
            for left in retries.call(lambda: experiments.changed_warehouses(control)):
                if left.warehouse_key == target.key:
                    self._restore_left(control, retries, session, left, own=left.experiment_id == experiment_id)
            if arm.is_made:
                require_absent(session, arm.warehouse)
            settings = {} if arm.is_made else read_settings(session, arm.warehouse, self._keys[target.key])
            before = ChangedWarehouse(
                experiment_id=experiment_id,
                epoch=epoch,
                warehouse_key=target.key,
                warehouse=arm.warehouse.sql,
                connection=self._connection,
                settings=settings,
            )
            experiments.record_warehouse(control, retries, before)
        return before

    def _restore_left(
        self,
        control: ControlSession,
        retries: RetryPolicy,
        session: PrepareSession,
        left: ChangedWarehouse,
        *,
        own: bool,
    ) -> None:
        """Restore settings that a killed process has left. `own`: it led this experiment, whose lease is held now."""
        lease = None
        if not own:
            lease = claim_left(control, retries, left)
            if lease is None:
                raise Busy(
                    f"experiment {left.experiment_id} changes warehouse {left.warehouse}",
                    remedy="Wait until it has ended.",
                )
        undo(session, left, self._clock, retries.stop)
        experiments.record_restore(control, retries, left)
        if lease is not None:
            retries.call(lambda: run_leases.release(control, lease))
        self._tell(f"{undone_text(left)}, which experiment {left.experiment_id} left")

    def _forget(self, before: ChangedWarehouse) -> None:
        with closing(ControlSession(self._place, role="experiment")) as control:
            experiments.record_restore(control, RetryPolicy(stop=threading.Event(), clock=self._clock), before)

    @contextmanager
    def _altering(self, target: TargetWarehouse, stop: threading.Event, *, wait: bool) -> Iterator[None]:
        queue = WarehouseWait(wait=wait, stop=stop, on_wait=self._tell)
        with exclusive_warehouse(target, self._name, self._place, LeaseTimes(), queue, clock=self._clock):
            yield

    def _session(self, arm: _Arm) -> PrepareSession:
        return open_session(arm.profile, is_made=arm.is_made, clock=self._clock, stop=threading.Event())


# --- The largest cost of a measurement -------------------------------------------------------------------------------


def worst_cases(loaded: LoadedExperiment, scenarios: Mapping[str, Scenario]) -> dict[str, float | None]:
    """The most credits of one measurement, by arm. None: not known. A warehouse that the experiment creates is not
    queried: a session that names it would create it on the embedded server."""
    found = {}
    for name, scenario in scenarios.items():
        arm = loaded.file.arms[name]
        shown = None if makes_warehouse(arm) else _planned(scenario)
        warehouse = planned_warehouse(arm.settings, shown, is_made=makes_warehouse(arm))
        found[name] = worst_case_credits(warehouse, longest_s(scenario, None), loaded.file.price.table)
    return found


def _planned(scenario: Scenario) -> PlannedWarehouse | None:
    """The current settings of the scenario's warehouse. None: not known."""
    try:
        found = show_warehouse(scenario)
    except LoadgenError as error:
        event(log, logging.WARNING, "warehouse_not_shown", why=str(error))
        return None
    if found is None:
        return None
    _, raw = found
    return shown_warehouse(shown_row(raw))


# --- Settings that an experiment without a process has left changed --------------------------------------------------


def open_session(profile: ConnectionProfile, *, is_made: bool, clock: Clock, stop: threading.Event) -> PrepareSession:
    """A session for statements about a warehouse. It uses the warehouse, except one that the experiment creates: the
    embedded server creates a warehouse when a session first uses it."""
    if is_made:
        fields = {name: field for name, field in profile.fields.items() if name != "warehouse"}
        profile = replace(profile, fields=MappingProxyType(fields))
    settings = control_settings(profile, major=driver.major(), tag=control_tag("experiment"))
    return PrepareSession(partial(connect, profile, settings, environ=os.environ), stop=stop, clock=clock)


def claim_left(control: ControlSession, retries: RetryPolicy, left: ChangedWarehouse) -> run_leases.Lease | None:
    """Claim the lease of an experiment whose process has ended. None: a process leads it."""
    key = f"{LEASE_PREFIX}{left.experiment_id}"
    holder = retries.call(lambda: run_leases.read(control, key))
    if holder is not None and not holder.may_be_succeeded and run_leases.is_owner_dead(holder.owner):
        retries.call(partial(run_leases.release_of_dead, control, key, holder))
    return run_leases.claim(control, retries, key, run_leases.new_owner(), run_leases.SHORT_TTL_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredWarehouse:
    """The outcome of `loadgen runs recover` for one warehouse."""

    experiment_id: str
    warehouse: str
    restored: bool
    is_made: bool = False  # created by the experiment: it is dropped
    is_led: bool = False  # the experiment continues
    why: str = ""  # why it was not restored


def restore_left_settings(
    control: ControlSession, retries: RetryPolicy, *, clock: Clock
) -> tuple[RestoredWarehouse, ...]:
    """Restore the settings that experiments without a process have left changed. Safe to repeat, also at the same time
    on several machines."""
    rows = retries.call(lambda: experiments.changed_warehouses(control))
    done = [
        RestoredWarehouse(experiment_id=str(error.key), warehouse="?", restored=False, why=str(error))
        for error in rows.unreadable
    ]
    for left in rows:
        why = ""
        try:
            lease = claim_left(control, retries, left)
            if lease is None:
                why = GOES_ON
            else:
                _restore_alone(control, retries, left, clock)
                retries.call(partial(run_leases.release, control, lease))
        except LoadgenError as error:
            why = str(error)
            if not isinstance(error, WarehouseReplaced):
                why += f"; undo it with: {undo_sql(left.warehouse, left.settings)}"
            event(log, logging.WARNING, "settings_not_restored", warehouse=left.warehouse, why=str(error))
        done.append(
            RestoredWarehouse(
                experiment_id=left.experiment_id,
                warehouse=left.warehouse,
                restored=not why,
                is_made=not left.settings,
                is_led=why == GOES_ON,
                why=why,
            )
        )
    return tuple(done)


def _restore_alone(control: ControlSession, retries: RetryPolicy, left: ChangedWarehouse, clock: Clock) -> None:
    """Restore a warehouse while no run measures on it. On this machine the name of the connection may mean another
    account."""
    warehouse = Identifier.parse(left.warehouse)
    profile = find_profile(left.connection, environ=os.environ).with_fields("the experiment", warehouse=warehouse.sql)
    target = TargetWarehouse.of_profile(profile)
    if target.key != left.warehouse_key:
        raise NotSettled(f"connection {printable(profile.name, 60)} of this machine leads to another warehouse")
    queue = WarehouseWait(wait=False, stop=retries.stop)
    with exclusive_warehouse(target, "recover", control.place, LeaseTimes(), queue, clock=clock):
        with closing(open_session(profile, is_made=not left.settings, clock=clock, stop=retries.stop)) as session:
            undo(session, left, clock, retries.stop)
        experiments.record_restore(control, retries, left)
