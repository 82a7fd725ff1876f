"""Settings of a warehouse that an experiment may change: their SQL, and how SHOW tells them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from loadgen.model.credits import size_name

WarehouseValue = str | int | bool
CONCURRENCY = "MAX_CONCURRENCY_LEVEL"  # a parameter: SHOW PARAMETERS tells it, SHOW WAREHOUSES does not
STARTED, SUSPENDED = "STARTED", "SUSPENDED"


def _size(value: Any) -> str:
    found = size_name(str(value))
    if found is None:
        raise ValueError(f"{value!r} is no size of warehouses")
    return found


def _one_of(*allowed: str) -> Callable[[Any], str]:
    """Values become part of a statement, and rows of tables are input: no other text is read."""

    def read(value: Any) -> str:
        text = str(value).upper()
        if text not in allowed:
            raise ValueError(f"{text[:40]!r} is not one of {', '.join(allowed)}")
        return text

    return read


def _truth(value: Any) -> bool:
    return value if isinstance(value, bool) else str(value).strip().lower() in ("true", "y", "yes")


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseProperty:
    """One setting."""

    sql: str  # its name in ALTER WAREHOUSE
    column: str  # of SHOW WAREHOUSES, or the key of SHOW PARAMETERS
    read: Callable[[Any], WarehouseValue]  # one spelling for what SHOW says and for what a file says


# The keys of `warehouse` in an experiment file. Cluster counts are set together, in one statement.
PROPERTIES: Mapping[str, WarehouseProperty] = {
    "size": WarehouseProperty(sql="WAREHOUSE_SIZE", column="size", read=_size),
    "generation": WarehouseProperty(sql="GENERATION", column="generation", read=_one_of("1", "2")),
    "min_clusters": WarehouseProperty(sql="MIN_CLUSTER_COUNT", column="min_cluster_count", read=int),
    "max_clusters": WarehouseProperty(sql="MAX_CLUSTER_COUNT", column="max_cluster_count", read=int),
    "scaling_policy": WarehouseProperty(
        sql="SCALING_POLICY", column="scaling_policy", read=_one_of("STANDARD", "ECONOMY")
    ),
    "max_concurrency_level": WarehouseProperty(sql=CONCURRENCY, column=CONCURRENCY, read=int),
    "query_acceleration": WarehouseProperty(
        sql="ENABLE_QUERY_ACCELERATION", column="enable_query_acceleration", read=_truth
    ),
}


def alter_sql(warehouse_sql: str, settings: Mapping[str, WarehouseValue]) -> str:
    """One statement for all of them; `warehouse_sql` is a quoted name."""
    return f"ALTER WAREHOUSE {warehouse_sql} SET {_assignments(settings)}"


def create_sql(warehouse_sql: str, settings: Mapping[str, WarehouseValue], experiment_id: str) -> str:
    """A warehouse that costs nothing before it is used, and says who made it."""
    given = f" {_assignments(settings)}" if settings else ""
    usual = f"INITIALLY_SUSPENDED = TRUE AUTO_RESUME = TRUE AUTO_SUSPEND = 60 COMMENT = '{made_by(experiment_id)}'"
    return f"CREATE WAREHOUSE {warehouse_sql} WITH{given} {usual}"


def made_by(experiment_id: str) -> str:
    """The comment of a warehouse that an experiment has made; no other one is dropped."""
    return f"made by loadgen experiment {experiment_id}"


def undo_sql(warehouse_sql: str, settings: Mapping[str, WarehouseValue]) -> str:
    """What a warehouse was set to before; without any setting it was not there."""
    return alter_sql(warehouse_sql, settings) if settings else f"DROP WAREHOUSE IF EXISTS {warehouse_sql}"


def _assignments(settings: Mapping[str, WarehouseValue]) -> str:
    parts = [f"{PROPERTIES[key].sql} = {_literal(PROPERTIES[key], value)}" for key, value in sorted(settings.items())]
    return " ".join(parts)


def _literal(one: WarehouseProperty, value: WarehouseValue) -> str:
    checked = one.read(value)
    if isinstance(checked, bool):
        return str(checked).upper()
    if isinstance(checked, int):
        return str(checked)
    return f"'{checked}'"  # one of a closed list


def settings_from(
    shown: Mapping[str, Any], parameters: Mapping[str, Any], keys: frozenset[str]
) -> dict[str, WarehouseValue]:
    """What a warehouse is set to, by its row of SHOW WAREHOUSES and its parameters. ValueError: it does not say."""
    found = {}
    for key in sorted(keys):
        one = PROPERTIES[key]
        value = parameters.get(one.column) if one.column == CONCURRENCY else shown.get(one.column)
        if value is None:
            raise ValueError(f"{one.column} is not shown")
        found[key] = one.read(value)
    return found


def unsettled(
    shown: Mapping[str, Any], parameters: Mapping[str, Any], wanted: Mapping[str, WarehouseValue]
) -> str | None:
    """What is not as wanted yet; None: the warehouse is settled. A suspended one resumes with its settings."""
    try:
        found = settings_from(shown, parameters, frozenset(wanted))
    except ValueError as error:
        return str(error)
    for key, value in wanted.items():
        if found[key] != PROPERTIES[key].read(value):
            return f"{PROPERTIES[key].sql} is {found[key]}, and {value} is wanted"
    state = str(shown.get("state"))
    if state == SUSPENDED:
        return None
    if state != STARTED:
        return f"it is {state}"
    available, quiescing = _percent(shown.get("available"), 100.0), _percent(shown.get("quiescing"), 0.0)
    if available < 100.0 or quiescing > 0.0:
        return f"{available:g} % of it is available, {quiescing:g} % is being released"
    return None


def _percent(value: Any, nothing: float) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return nothing
