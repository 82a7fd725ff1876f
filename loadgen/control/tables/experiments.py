"""The tables of experiments.

    EXPERIMENTS, EXPERIMENT_BLOCKS, EXPERIMENT_MEASUREMENTS     the definition of an experiment, and its progress
    EXPERIMENT_ENDS, EXPERIMENT_METERINGS                       its results, and what Snowflake metered
    EXPERIMENT_WAREHOUSES, EXPERIMENT_WAREHOUSE_RESTORES        the settings of warehouses before experiments

Rows are inserted and never rewritten. The key of a block lets exactly one process begin the block. The key of a
measurement makes it count once. A process that resumes an experiment begins the next block.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from loadgen.control.session import (
    REASON_MAX,
    ControlFailed,
    ControlSession,
    NamedQuery,
    ParsedRows,
    RowUnreadable,
    clip_text,
    json_object,
    load_queries,
    parse_row,
    read_rows,
)
from loadgen.errors import UsageError
from loadgen.model.run import chosen_id
from loadgen.model.warehouse import PROPERTIES, WarehouseValue
from loadgen.rules.measurement import (
    Measurement,
    MeasurementOutcome,
    figures_document,
    read_figures,
)
from loadgen.rules.price import ExperimentMetering, metering_document, read_metering
from loadgen.snowflake.ident import Identifier, InvalidIdentifier
from loadgen.snowflake.session import RetryPolicy
from loadgen.values import dataclass

LATEST = "latest"
LEASE_PREFIX = "experiment:"  # of the key in RUN_LEASES, which the id follows
_SHOW_IDS = "`loadgen experiments list` shows the ids."
FOUND_MAX = 1_000  # newest experiments in which a prefix is looked up

_Q = load_queries("experiments")
_WAREHOUSES = load_queries("experiment_warehouses")
_ID = re.compile(r"[a-z0-9-]{1,100}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentRow:
    """A row of EXPERIMENTS. The time is naive UTC."""

    experiment_id: str
    name: str
    config: str  # JSON
    fingerprint: str
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentEnd:
    """The result of an experiment as one process left it."""

    epoch: int
    verdict: str
    exit_code: int
    result: str  # JSON
    ended_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedExperiment:
    """An experiment with the result of its last process; None: no process has ended yet."""

    experiment_id: str
    name: str
    created_at: datetime
    verdict: str | None
    exit_code: int | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentRun:
    """A run of an experiment, as its labels describe it. The time is naive UTC."""

    run_id: str
    created_at: datetime
    config: str  # of its scenario: loadgen.scenario.frozen
    block: int
    arm: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _MeasurementRow:
    block: int
    arm: str
    attempt: int
    run_id: str | None
    outcome: MeasurementOutcome
    seconds: float
    billed: float | None
    reason: str
    figures: str | None


def create(
    session: ControlSession, retries: RetryPolicy, experiment_id: str, name: str, config: str, fingerprint: str
) -> None:
    binds = (experiment_id, name, config, fingerprint)
    _insert(session, retries, _Q["create"], binds, lambda: read(session, experiment_id) is not None)


def read(session: ControlSession, experiment_id: str) -> ExperimentRow | None:
    rows = session.fetch(_Q["read"], experiment_id)
    return _experiment(rows[0]) if rows else None


def newest(session: ControlSession, limit: int) -> ParsedRows[ExperimentRow]:
    """The newest first."""
    found = session.fetch(_Q["newest"].limited(limit))
    return read_rows(found, _experiment)


def _experiment(row: tuple[Any, ...]) -> ExperimentRow:
    found = parse_row("EXPERIMENTS", ExperimentRow, row)
    if _ID.fullmatch(found.experiment_id) is None:  # the id becomes the name of a folder
        raise RowUnreadable("EXPERIMENTS", found.experiment_id, "this is not an id of an experiment")
    return found


def listed(session: ControlSession, limit: int) -> ParsedRows[ListedExperiment]:
    """The newest first."""
    found = session.fetch(_Q["listed"].limited(limit))
    return read_rows(found, lambda row: parse_row("EXPERIMENTS", ListedExperiment, row))


def led(session: ControlSession) -> frozenset[str]:
    """The ids of the experiments that a process leads at present."""
    return frozenset(str(key).removeprefix(LEASE_PREFIX) for (key,) in session.fetch(_Q["led"]))


def find(session: ControlSession, retries: RetryPolicy, name: str) -> ExperimentRow:
    """The experiment with this id, the newest one (`latest`), or the only one whose id begins with `name`."""
    if name != LATEST and (exact := retries.call(lambda: read(session, name))) is not None:
        return exact
    rows = retries.call(lambda: newest(session, 1 if name == LATEST else FOUND_MAX))
    if name == LATEST:
        if not rows:
            raise UsageError("no experiments exist yet", remedy=_SHOW_IDS)
        return rows[0]
    found = {row.experiment_id: row for row in rows if row.experiment_id.startswith(name)}
    return found[chosen_id(name, sorted(found), noun="experiment", remedy=_SHOW_IDS)]


def begin_block(session: ControlSession, retries: RetryPolicy, experiment_id: str, block: int, epoch: int) -> bool:
    """Begin a block. False: another process has begun it."""

    def is_ours() -> bool:
        rows = session.fetch(_Q["block"], experiment_id, block)
        return bool(rows) and int(rows[0][0]) == epoch

    return _insert(session, retries, _Q["begin_block"], (experiment_id, block, epoch), is_ours)


def blocks(session: ControlSession, experiment_id: str) -> tuple[int, ...]:
    """The numbers of the blocks that have begun."""
    return tuple(int(number) for (number,) in session.fetch(_Q["blocks"], experiment_id))


def record(session: ControlSession, retries: RetryPolicy, experiment_id: str, one: Measurement) -> bool:
    """Store a measurement. False: it is stored already, with another run."""
    key = (experiment_id, one.block, one.arm, one.attempt)
    figures = None if one.figures is None else json.dumps(figures_document(one.figures))
    reason = clip_text(one.reason, REASON_MAX)

    def is_ours() -> bool:
        rows = session.fetch(_Q["recorded"], *key)
        return bool(rows) and rows[0][0] == one.run_id

    binds = (*key, one.run_id, one.outcome, one.seconds, one.billed, reason, figures)
    return _insert(session, retries, _Q["record"], binds, is_ours)


def measurements(session: ControlSession, experiment_id: str) -> ParsedRows[Measurement]:
    """The measurements in the order in which they ended."""
    return read_rows(session.fetch(_Q["measurements"], experiment_id), _measurement)


def runs(session: ControlSession, experiment_id: str) -> tuple[ExperimentRun, ...]:
    """All runs of an experiment, with or without a stored measurement; without runs whose labels are unreadable."""
    found = []
    for run_id, created_at, config in session.fetch(_Q["runs"], experiment_id):
        with suppress(ValueError, TypeError, KeyError):  # another scenario with the id in it, or of another version
            labels = json.loads(config)["labels"]
            if labels["experiment"] == experiment_id:
                found.append(
                    ExperimentRun(
                        run_id=str(run_id),
                        created_at=created_at,
                        config=str(config),
                        block=int(labels["block"]),
                        arm=str(labels["arm"]),
                        attempt=int(labels["attempt"]),
                    )
                )
    return tuple(found)


def spans(session: ControlSession, experiment_id: str) -> tuple[tuple[datetime, datetime], ...]:
    """Begin and end of every measurement with a run. Naive UTC."""
    found = session.fetch(_Q["spans"], experiment_id)
    return tuple((ended - timedelta(seconds=float(seconds)), ended) for seconds, ended in found)


def meter(session: ControlSession, retries: RetryPolicy, experiment_id: str, metering: ExperimentMetering) -> None:
    """Store what Snowflake metered. The newest row counts."""
    binds = (experiment_id, str(uuid.uuid4()), json.dumps(metering_document(metering)))
    _insert(session, retries, _Q["meter"], binds, lambda: session.fetch(_Q["metered"], *binds[:2])[0][0] == 1)


def metering(session: ControlSession, experiment_id: str) -> ExperimentMetering | None:
    """The newest metering; None: there is none yet."""
    rows = session.fetch(_Q["metering"], experiment_id)
    if not rows:
        return None
    table = "EXPERIMENT_METERINGS"
    try:
        return read_metering(json_object(table, experiment_id, "METERING", rows[0][0]))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise RowUnreadable(table, experiment_id, f"METERING: {error}") from None


def finish(
    session: ControlSession, retries: RetryPolicy, experiment_id: str, epoch: int, result: Mapping[str, Any]
) -> None:
    """Store the result of an experiment when a process ends its work on it."""
    binds = (experiment_id, epoch, str(result["verdict"]), int(result["exit_code"]), json.dumps(result))

    def is_ours() -> bool:
        end = last_end(session, experiment_id)
        return end is not None and end.epoch >= epoch

    _insert(session, retries, _Q["finish"], binds, is_ours)


def last_end(session: ControlSession, experiment_id: str) -> ExperimentEnd | None:
    rows = session.fetch(_Q["last_end"], experiment_id)
    return parse_row("EXPERIMENT_ENDS", ExperimentEnd, rows[0]) if rows else None


def _insert(
    session: ControlSession,
    retries: RetryPolicy,
    query: NamedQuery,
    binds: tuple[Any, ...],
    is_ours: Callable[[], bool],
) -> bool:
    """Insert a row once. False: another process has inserted a row with this key."""

    def write() -> bool:
        try:
            return session.execute(query, *binds) == 1
        except ControlFailed as error:
            if error.failure.is_duplicate_key:
                return is_ours()
            raise

    return retries.settle(write, lambda: is_ours() or None)


def _measurement(row: tuple[Any, ...]) -> Measurement:
    found = parse_row("EXPERIMENT_MEASUREMENTS", _MeasurementRow, row)
    key = f"{found.block}/{found.arm}/{found.attempt}"
    try:
        figures = None
        if found.figures is not None:
            figures = read_figures(json_object("EXPERIMENT_MEASUREMENTS", key, "FIGURES", found.figures))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RowUnreadable("EXPERIMENT_MEASUREMENTS", key, f"FIGURES: {error}") from None
    return Measurement(
        block=found.block,
        arm=found.arm,
        attempt=found.attempt,
        run_id=found.run_id,
        outcome=found.outcome,
        seconds=found.seconds,
        billed=found.billed,
        reason=found.reason,
        figures=figures,
    )


# --- Warehouses and their settings before experiments ----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedWarehouse:
    """A warehouse that an experiment changes, with the settings to restore. Empty settings: the experiment created the
    warehouse, which is dropped at the end."""

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


def record_warehouse(session: ControlSession, retries: RetryPolicy, one: ChangedWarehouse) -> None:
    """Store the settings of a warehouse. Called before its first change."""
    key = (one.experiment_id, one.epoch, one.warehouse_key)

    def write() -> bool:
        try:
            settings = json.dumps(dict(one.settings))
            return session.execute(_WAREHOUSES["record"], *key, one.warehouse, one.connection, settings) == 1
        except ControlFailed as error:
            if error.failure.is_duplicate_key:
                return True  # inserted by this process: the key contains its epoch
            raise

    retries.settle(write, lambda: session.fetch(_WAREHOUSES["recorded"], *key)[0][0] == 1 or None)


def record_restore(session: ControlSession, retries: RetryPolicy, one: ChangedWarehouse) -> None:
    """Store that the settings are restored. Called after they have been read back."""

    def write() -> None:
        try:
            session.execute(_WAREHOUSES["restored"], one.experiment_id, one.epoch, one.warehouse_key)
        except ControlFailed as error:
            if not error.failure.is_duplicate_key:
                raise

    retries.call(write)


def changed_warehouses(session: ControlSession) -> ParsedRows[ChangedWarehouse]:
    """Warehouses without a restore record, the oldest first."""
    return read_rows(session.fetch(_WAREHOUSES["changed"]), _changed_warehouse)


def _changed_warehouse(row: tuple[Any, ...]) -> ChangedWarehouse:
    found = parse_row("EXPERIMENT_WAREHOUSES", _ChangedRow, row)
    settings = json_object("EXPERIMENT_WAREHOUSES", found.experiment_id, "SETTINGS", found.settings)
    try:
        known = {key: PROPERTIES[key].read(value) for key, value in settings.items()}
        Identifier.parse(found.warehouse)
    except (KeyError, ValueError, TypeError) as error:
        raise RowUnreadable("EXPERIMENT_WAREHOUSES", found.experiment_id, f"SETTINGS: {error}") from None
    except InvalidIdentifier as error:  # the name becomes part of a statement that is executed or printed
        raise RowUnreadable("EXPERIMENT_WAREHOUSES", found.experiment_id, f"WAREHOUSE: {error}") from None
    return ChangedWarehouse(
        experiment_id=found.experiment_id,
        epoch=found.epoch,
        warehouse_key=found.warehouse_key,
        warehouse=found.warehouse,
        connection=found.connection,
        settings=known,
    )
