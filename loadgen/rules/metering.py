"""Credits of an experiment as Snowflake metered them: which hours count, and what belongs to which arm. Pure.

Metering has one row for each warehouse and hour. Whatever else used the warehouse in these hours is part of it, so it
is an upper limit of what the experiment has cost; an arm has separate credits only on a separate warehouse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from loadgen.values import dataclass

HOUR = timedelta(hours=1)
LATENCY = timedelta(hours=3)  # of Snowflake's metering
FUNCTION_REACH = timedelta(days=180)  # of the table function: six months; the view of ACCOUNT_USAGE has a year
FUNCTION, VIEW = "INFORMATION_SCHEMA", "ACCOUNT_USAGE"
SHARED = "arms share a warehouse, so metered credits cannot be divided among them"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeteredHour:
    """Credits of a warehouse in an hour. Times are naive UTC."""

    warehouse: str
    start: datetime
    compute: float
    cloud_services: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentMetering:
    """What was metered in the hours of an experiment. Times are texts of UTC."""

    read_at: str
    source: str  # FUNCTION or VIEW
    begin: str
    end: str
    hours: int
    complete: bool  # False: metering of the last hours may still change
    credits: float  # of compute
    cloud_services: float
    warehouses: Mapping[str, float]
    arms: Mapping[str, float] | None  # None: they share warehouses
    note: str


def hours_of(spans: Iterable[tuple[datetime, datetime]]) -> tuple[datetime, ...]:
    """The beginnings of all hours that measurements touch, in order."""
    found: set[datetime] = set()
    for begin, end in spans:
        hour = begin.replace(minute=0, second=0, microsecond=0)
        while hour <= end:
            found.add(hour)
            hour += HOUR
    return tuple(sorted(found))


def metering_source(hours: Sequence[datetime], now: datetime) -> str:
    return FUNCTION if hours[0] > now - FUNCTION_REACH else VIEW


def metering_of(
    rows: Iterable[MeteredHour], hours: Sequence[datetime], arms: Mapping[str, str], now: datetime, latency: timedelta
) -> ExperimentMetering | None:
    """`arms`: the warehouse of each. None: nothing is metered in these hours."""
    wanted, used = set(hours), set(arms.values())
    mine = [row for row in rows if row.start in wanted and row.warehouse in used]
    if not mine:
        return None
    by_warehouse = {name: sum(row.compute for row in mine if row.warehouse == name) for name in sorted(used)}
    alone = len(used) == len(arms)
    end = hours[-1] + HOUR
    return ExperimentMetering(
        read_at=_text(now),
        source=metering_source(hours, now),
        begin=_text(hours[0]),
        end=_text(end),
        hours=len(hours),
        complete=now >= end + latency,
        credits=sum(by_warehouse.values()),
        cloud_services=sum(row.cloud_services for row in mine),
        warehouses=by_warehouse,
        arms={arm: by_warehouse[warehouse] for arm, warehouse in arms.items()} if alone else None,
        note="" if alone else SHARED,
    )


def _text(moment: datetime) -> str:
    return f"{moment.isoformat(timespec='seconds')}Z"


def metering_document(one: ExperimentMetering) -> dict[str, Any]:
    """As stored, and as shown in JSON."""
    return {
        "read_at": one.read_at,
        "source": one.source,
        "begin": one.begin,
        "end": one.end,
        "hours": one.hours,
        "complete": one.complete,
        "credits": one.credits,
        "cloud_services": one.cloud_services,
        "warehouses": dict(one.warehouses),
        "arms": None if one.arms is None else dict(one.arms),
        "note": one.note,
    }


def read_metering(document: Mapping[str, Any]) -> ExperimentMetering:
    """Raises ValueError, TypeError, KeyError or AttributeError if metering_document did not write it."""
    arms = document["arms"]
    return ExperimentMetering(
        read_at=str(document["read_at"]),
        source=str(document["source"]),
        begin=str(document["begin"]),
        end=str(document["end"]),
        hours=int(document["hours"]),
        complete=bool(document["complete"]),
        credits=float(document["credits"]),
        cloud_services=float(document["cloud_services"]),
        warehouses=_numbers(document["warehouses"]),
        arms=None if arms is None else _numbers(arms),
        note=str(document["note"]),
    )


def _numbers(found: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): float(value) for name, value in found.items()}
