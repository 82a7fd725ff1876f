"""Statements on one warehouse of an experiment: make, alter until it is settled, undo. Each is seen to have worked."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.clock import Clock
from loadgen.control.tables.experiment_warehouses import ChangedWarehouse
from loadgen.errors import ConfigurationError, LoadgenError, RunFailed
from loadgen.log import printable
from loadgen.model.warehouse import (
    CONCURRENCY,
    WarehouseValue,
    alter_sql,
    create_sql,
    made_by,
    settings_from,
    undo_sql,
    unsettled,
)
from loadgen.prepare.session import PrepareSession
from loadgen.snowflake.ident import Identifier
from loadgen.units import NS_PER_S

SETTLE_MAX_S = 600.0  # large warehouses take minutes
SETTLE_POLL_S = 1.0


class WarehouseReplaced(RunFailed):
    """A warehouse that the experiment has made was dropped or replaced by others."""

    remedy = "Look at it with SHOW WAREHOUSES: it was left alone."


class NotSettled(RunFailed):
    """A warehouse did not take its settings."""

    remedy = "Look at it with SHOW WAREHOUSES; `loadgen runs recover` restores its settings."


def undo(session: PrepareSession, before: ChangedWarehouse, clock: Clock, stop: threading.Event) -> None:
    """Let a warehouse be as it was before the experiment."""
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
            raise  # else the answer was lost


def require_made(session: PrepareSession, warehouse: Identifier, experiment_id: str) -> None:
    """A warehouse of this name that others have made meanwhile is theirs: it is neither altered nor dropped."""
    row = _found(session, warehouse)
    if row is None or row.get("comment") != made_by(experiment_id):
        what = f"warehouse {printable(warehouse.name, 100)} is not the one that experiment {experiment_id} has made"
        raise WarehouseReplaced(what)


def require_absent(session: PrepareSession, warehouse: Identifier) -> None:
    if _found(session, warehouse) is not None:
        what = f"warehouse {printable(warehouse.name, 100)} is there already, and create: true makes a new one"
        raise ConfigurationError(what, remedy="Choose another name, or remove create.")


def alter_warehouse(
    session: PrepareSession,
    warehouse: Identifier,
    settings: Mapping[str, WarehouseValue],
    clock: Clock,
    stop: threading.Event,
) -> None:
    """Change what is different, and wait until SHOW says that it is settled."""
    shown = _look(session, warehouse, settings)
    if unsettled(*shown, settings) is None:
        return
    session.change(alter_sql(warehouse.sql, settings))
    until_ns = clock.monotonic_ns() + round(SETTLE_MAX_S * NS_PER_S)
    while (missing := unsettled(*_look(session, warehouse, settings), settings)) is not None:
        if clock.monotonic_ns() > until_ns or clock.wait(stop, SETTLE_POLL_S):
            raise NotSettled(f"warehouse {printable(warehouse.name, 100)} has not settled: {missing}")


def read_settings(session: PrepareSession, warehouse: Identifier, keys: frozenset[str]) -> dict[str, WarehouseValue]:
    try:
        return settings_from(*_look(session, warehouse, keys), keys)
    except ValueError as error:
        raise NotSettled(f"the settings of warehouse {printable(warehouse.name, 100)} are not known: {error}") from None


def _look(
    session: PrepareSession, warehouse: Identifier, keys: Mapping[str, Any] | frozenset[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The row of SHOW WAREHOUSES, and its parameters where they are needed."""
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
    """Its row of SHOW WAREHOUSES, if this role sees it."""
    shown = f"SHOW WAREHOUSES{warehouse.like}"
    rows: Sequence[dict[str, Any]] = session.retried(lambda: session.named_rows(shown), shown)
    return next((row for row in rows if row.get("name") == warehouse.name), None)
