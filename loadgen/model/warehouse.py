"""Settings of a warehouse that an experiment may change: their SQL, their values in SHOW WAREHOUSES. Credits. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from loadgen.units import DAY_S, HOUR_S
from loadgen.values import dataclass

# --- Credits per hour of one cluster, by size and kind of warehouse, in a dated table ---------------------------------

SIZES = ("X-Small", "Small", "Medium", "Large", "X-Large", *(f"{number}X-Large" for number in range(2, 7)))
IDLE_POLL_S = 600.0  # between polls of an idle pool
LOOK_AWAKE_S = 60.0  # running time of the warehouse per poll: AUTO_SUSPEND of `loadgen setup`, and the minimum billed
_SHORT = {"XS": "X-Small", "S": "Small", "M": "Medium", "L": "Large", "XL": "X-Large", "XXLARGE": "2X-Large"}
_NAMES = {size.upper().replace("-", ""): size for size in SIZES} | _SHORT | {"XXXLARGE": "3X-Large"}
_NAMES |= {f"X{number}LARGE": f"{number}X-Large" for number in range(2, 7)}


class WarehouseKind(StrEnum):
    """The kinds of warehouses with different rates; keys of a rate table."""

    GEN1 = "gen1"
    GEN2 = "gen2"
    SNOWPARK_OPTIMIZED = "snowpark_optimized"


class Cloud(StrEnum):
    AWS = "aws"
    AZURE = "azure"
    GCP = "gcp"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditRates:
    """Credits per hour and cluster."""

    date: str  # of the source
    per_hour: Mapping[WarehouseKind, Mapping[str, float]]  # by size

    def of(self, size: str | None, kind: WarehouseKind) -> float | None:
        """The rate of a size and kind; None: it is not in the table."""
        return self.per_hour.get(kind, {}).get(size_name(size or "") or "")


def size_name(text: str) -> str | None:
    """The name of a size: X-Small for XSMALL, X-Small and XS; None: there is no such size."""
    return _NAMES.get(text.strip().upper().replace("-", "").replace(" ", ""))


# Generation 1 as documented, 2 as quoted from the consumption tables of that date; Snowpark-optimized with MEMORY_16X.
RATES_DATE = "2026-09-16"
_GEN2_FACTOR = {Cloud.AWS: 1.35, Cloud.GCP: 1.35, Cloud.AZURE: 1.25}


def snowflake_rates(cloud: Cloud) -> CreditRates:
    """The table of RATES_DATE."""
    gen1 = {size: float(2**step) for step, size in enumerate(SIZES)}
    return CreditRates(
        date=RATES_DATE,
        per_hour={
            WarehouseKind.GEN1: gen1,
            WarehouseKind.GEN2: {size: gen1[size] * _GEN2_FACTOR[cloud] for size in SIZES[:8]},
            WarehouseKind.SNOWPARK_OPTIMIZED: {size: gen1[size] * 1.5 for size in SIZES[2:]},
        },
    )


# If the cloud is not known: on Azure generation 2 is cheaper.
RATES = snowflake_rates(Cloud.AWS)


def look_credits_per_day(every_s: float) -> float:
    """The credits per day of an X-Small that a poll of the tables starts at this interval."""
    return DAY_S / max(every_s, LOOK_AWAKE_S) * LOOK_AWAKE_S / HOUR_S


WarehouseValue = str | int | bool
CONCURRENCY = "MAX_CONCURRENCY_LEVEL"  # a parameter: in SHOW PARAMETERS, not in SHOW WAREHOUSES
STARTED, SUSPENDED = "STARTED", "SUSPENDED"


def _size(value: Any) -> str:
    found = size_name(str(value))
    if found is None:
        raise ValueError(f"{value!r} is not a warehouse size")
    return found


def _one_of(*allowed: str) -> Callable[[Any], str]:
    """A closed list of words: values become part of a statement, and may come from rows of tables."""

    def read(value: Any) -> str:
        text = str(value).upper()
        if text not in allowed:
            raise ValueError(f"{text[:40]!r} is not one of {', '.join(allowed)}")
        return text

    return read


def truth_shown(value: Any) -> bool:
    """A truth value of SHOW WAREHOUSES, or of a file."""
    return value if isinstance(value, bool) else str(value).strip().lower() in ("true", "y", "yes", "on")


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseProperty:
    """One setting."""

    sql: str  # its name in ALTER WAREHOUSE
    column: str  # of SHOW WAREHOUSES, or the key of SHOW PARAMETERS
    read: Callable[[Any], WarehouseValue]  # parses a value of SHOW or of a file


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
        sql="ENABLE_QUERY_ACCELERATION", column="enable_query_acceleration", read=truth_shown
    ),
}


def shown_row(raw: str | None) -> Mapping[str, Any]:
    """A stored row of SHOW WAREHOUSES; empty if there is none, or loadgen did not write it."""
    try:
        found = json.loads(raw or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def clusters_shown(shown: Mapping[str, Any]) -> tuple[int, int]:
    """The started clusters and the most clusters, by the row of SHOW WAREHOUSES. Accounts without multi-cluster
    warehouses may not have these columns: there a warehouse has one cluster, unless it is suspended."""
    started, most = (_whole(shown.get(name)) for name in ("started_clusters", "max_cluster_count"))
    if started is None:
        started = 0 if str(shown.get("state") or "").upper() == "SUSPENDED" else 1
    return started, most or 1


def _whole(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def kind_shown(shown: Mapping[str, Any]) -> WarehouseKind:
    """The kind of a warehouse, by its row of SHOW WAREHOUSES; generation 1 if the row has none."""
    said = {name: str(shown.get(name) or "").upper() for name in ("type", "generation", "resource_constraint")}
    if said["type"] == "SNOWPARK-OPTIMIZED":
        return WarehouseKind.SNOWPARK_OPTIMIZED
    is_gen2 = said["generation"] == "2" or said["resource_constraint"].endswith("GEN_2")
    return WarehouseKind.GEN2 if is_gen2 else WarehouseKind.GEN1


def alter_sql(warehouse_sql: str, settings: Mapping[str, WarehouseValue]) -> str:
    """The statement that changes all of these settings; `warehouse_sql` is a quoted name."""
    return f"ALTER WAREHOUSE {warehouse_sql} SET {_assignments(settings)}"


def create_sql(warehouse_sql: str, settings: Mapping[str, WarehouseValue], experiment_id: str) -> str:
    """CREATE for a warehouse that starts suspended, with a comment that names its experiment.

    Without the setting, new warehouses of generation 2 or of several clusters have query acceleration, whose credits
    no poll shows.
    """
    given = _assignments({"query_acceleration": False, **settings})
    usual = f"INITIALLY_SUSPENDED = TRUE AUTO_RESUME = TRUE AUTO_SUSPEND = 60 COMMENT = '{made_by(experiment_id)}'"
    return f"CREATE WAREHOUSE {warehouse_sql} WITH {given} {usual}"


def made_by(experiment_id: str) -> str:
    """The comment of a warehouse that an experiment created. Only such warehouses are dropped."""
    return f"made by loadgen experiment {experiment_id}"


def undo_sql(warehouse_sql: str, settings: Mapping[str, WarehouseValue]) -> str:
    """The statement that restores a warehouse. Without settings, it did not exist before, and is dropped."""
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
    """The settings of a warehouse, by its row of SHOW WAREHOUSES and its parameters. ValueError: one is missing."""
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
    """The settings that differ from their target; None: none. A suspended warehouse resumes with its settings."""
    try:
        found = settings_from(shown, parameters, frozenset(wanted))
    except ValueError as error:
        return str(error)
    for key, value in wanted.items():
        if found[key] != PROPERTIES[key].read(value):
            return f"{PROPERTIES[key].sql} is {found[key]} instead of {value}"
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
