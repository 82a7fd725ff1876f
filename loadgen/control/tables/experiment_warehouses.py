"""EXPERIMENT_WAREHOUSES, EXPERIMENT_WAREHOUSE_RESTORES: warehouses as they were before experiments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from loadgen.control.session import (
    ControlFailed,
    ControlSession,
    ParsedRows,
    RowUnreadable,
    json_object,
    load_queries,
    parse_row,
    read_rows,
)
from loadgen.model.warehouse import PROPERTIES, WarehouseValue
from loadgen.snowflake.ident import Identifier, InvalidIdentifier
from loadgen.snowflake.session import RetryPolicy
from loadgen.values import dataclass

_Q = load_queries("experiment_warehouses")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedWarehouse:
    """A warehouse, and the settings to restore; none: the experiment has made it, and it is dropped."""

    experiment_id: str
    epoch: int
    warehouse_key: str
    warehouse: str  # its name in SQL, in double quotes
    connection: str | None
    settings: Mapping[str, WarehouseValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChangedRow:
    experiment_id: str
    epoch: int
    warehouse_key: str
    warehouse: str
    connection: str | None
    settings: str


def record(session: ControlSession, patience: RetryPolicy, one: ChangedWarehouse) -> None:
    """Before the first change."""
    key = (one.experiment_id, one.epoch, one.warehouse_key)

    def write() -> bool:
        try:
            settings = json.dumps(dict(one.settings))
            return session.execute(_Q["record"], *key, one.warehouse, one.connection, settings) == 1
        except ControlFailed as error:
            if error.failure.is_duplicate_key:
                return True  # by this process: its epoch is in the key
            raise

    patience.settle(write, lambda: session.fetch(_Q["recorded"], *key)[0][0] == 1 or None)


def restored(session: ControlSession, patience: RetryPolicy, one: ChangedWarehouse) -> None:
    """After they were seen to be restored."""

    def write() -> None:
        try:
            session.execute(_Q["restored"], one.experiment_id, one.epoch, one.warehouse_key)
        except ControlFailed as error:
            if not error.failure.is_duplicate_key:
                raise

    patience.call(write)


def changed(session: ControlSession) -> ParsedRows[ChangedWarehouse]:
    """Those that are not known to be restored, the oldest first."""
    return read_rows(session.fetch(_Q["changed"]), _changed)


def _changed(row: tuple[Any, ...]) -> ChangedWarehouse:
    found = parse_row("EXPERIMENT_WAREHOUSES", _ChangedRow, row)
    settings = json_object("EXPERIMENT_WAREHOUSES", found.experiment_id, "SETTINGS", found.settings)
    try:
        known = {key: PROPERTIES[key].read(value) for key, value in settings.items()}
        Identifier.parse(found.warehouse)
    except (KeyError, ValueError, TypeError) as error:
        raise RowUnreadable("EXPERIMENT_WAREHOUSES", found.experiment_id, f"SETTINGS: {error}") from None
    except InvalidIdentifier as error:  # a statement with it is executed, or shown to be executed
        raise RowUnreadable("EXPERIMENT_WAREHOUSES", found.experiment_id, f"WAREHOUSE: {error}") from None
    return ChangedWarehouse(
        experiment_id=found.experiment_id,
        epoch=found.epoch,
        warehouse_key=found.warehouse_key,
        warehouse=found.warehouse,
        connection=found.connection,
        settings=known,
    )
