"""The cost of a measurement: in the worst case, by the polls of its warehouse, and as metered. Pure.

Estimates are rate × clusters × seconds. The state of a sample is assumed to last until the next one; that of the first
sample also holds before it. Snowflake's metering views have the billed credits hours later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from loadgen.clock import utc_iso
from loadgen.model.warehouse import CreditRates, WarehouseKind, WarehouseValue, clusters_shown, kind_shown
from loadgen.units import HOUR_S
from loadgen.values import dataclass

BILLED_MIN_S = 60.0  # for each start

# --- The worst case, before a measurement ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWarehouse:
    """A warehouse, as far as it is known before a measurement."""

    size: str | None  # None: not known
    kinds: tuple[WarehouseKind, ...]  # more than one if it is not known which; the highest rate counts
    clusters_max: int


def standard_warehouse(size: str | None) -> PlannedWarehouse:
    """One cluster of a generation that is not known: the generation of a new warehouse depends on the account."""
    return PlannedWarehouse(size=size, kinds=(WarehouseKind.GEN1, WarehouseKind.GEN2), clusters_max=1)


NEW_WAREHOUSE = standard_warehouse("X-Small")  # by Snowflake's defaults


def shown_warehouse(shown: Mapping[str, Any]) -> PlannedWarehouse:
    """The warehouse of a row of SHOW WAREHOUSES."""
    size, (_, clusters_max) = shown.get("size"), clusters_shown(shown)
    kinds = (kind_shown(shown),)
    return PlannedWarehouse(size=None if size is None else str(size), kinds=kinds, clusters_max=clusters_max)


def planned_warehouse(
    settings: Mapping[str, WarehouseValue], shown: PlannedWarehouse | None, *, is_made: bool
) -> PlannedWarehouse | None:
    """A warehouse with these settings. `shown`: its current state; None: not known. `is_made`: it is created with
    these settings, whatever is shown."""
    before = NEW_WAREHOUSE if is_made else shown
    if before is None:
        return None
    kinds = {"1": (WarehouseKind.GEN1,), "2": (WarehouseKind.GEN2,)}
    size = settings.get("size", before.size)
    return PlannedWarehouse(
        size=None if size is None else str(size),
        kinds=kinds.get(str(settings.get("generation")), before.kinds),
        clusters_max=max(int(settings.get("max_clusters", before.clusters_max)), int(settings.get("min_clusters", 1))),
    )


def worst_case_credits(warehouse: PlannedWarehouse | None, lasting_s: float, rates: CreditRates) -> float | None:
    """The most credits of one measurement: all clusters for this time, and at least for the billed minimum. None: not
    known."""
    if warehouse is None:
        return None
    known = [rates.of(warehouse.size, kind) for kind in warehouse.kinds]
    highest = max((rate for rate in known if rate is not None), default=None)
    if highest is None:
        return None
    return highest * warehouse.clusters_max * max(lasting_s, BILLED_MIN_S) / HOUR_S


# --- By polls of the warehouse ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseSample:
    """The state of a warehouse at one poll."""

    at_s: float  # since the start of the run
    size: str | None
    kind: WarehouseKind
    clusters: int
    resumed_s: float | None = None  # when it was last resumed; None: not known


def credits_between(
    samples: Sequence[WarehouseSample], begin_s: float, end_s: float, rates: CreditRates
) -> float | None:
    """Credits of this span; None: there is no sample, or the table has no rate for it."""
    if not samples or end_s <= begin_s:
        return None
    samples = sorted(samples, key=lambda sample: sample.at_s)
    edges = [begin_s, *(min(max(sample.at_s, begin_s), end_s) for sample in samples[1:]), end_s]
    total = 0.0
    for sample, (first_s, last_s) in zip(samples, pairwise(edges), strict=True):
        rate = rates.of(sample.size, sample.kind)
        if rate is None and last_s > first_s:
            return None
        total += (rate or 0.0) * sample.clusters * (last_s - first_s) / HOUR_S
    return total


def billed_credits(samples: Sequence[WarehouseSample], end_s: float, rates: CreditRates) -> float | None:
    """Credits of a run as Snowflake bills them: by the second, and at least a minute for each start in it: a resume,
    a further cluster, the added part of a larger size. A cluster that still runs at the end of the run counts until
    then, or for its first minute. None: there is no sample, or the table has no rate for it."""
    if not samples:
        return None
    samples = sorted(samples, key=lambda sample: sample.at_s)
    known = [rates.of(sample.size, sample.kind) for sample in samples]
    if None in known:
        return None
    first, end_s = samples[0], max(end_s, samples[-1].at_s)
    run_s = min(0.0, first.at_s)  # an earlier resume is not a start of this run
    resumed_s = first.resumed_s if first.resumed_s is not None and run_s <= first.resumed_s < first.at_s else None
    totals = [(rate or 0.0) * sample.clusters for rate, sample in zip(known, samples, strict=True)]
    edges = [first.at_s if resumed_s is None else resumed_s, *(sample.at_s for sample in samples[1:]), end_s]
    used = math.fsum(
        total * (last_s - first_s) for total, (first_s, last_s) in zip(totals, pairwise(edges), strict=True)
    )
    starts = [(-math.inf if resumed_s is None else resumed_s, totals[0])]  # (time, credits per hour), the newest last
    for (before, total), sample in zip(pairwise(totals), samples[1:], strict=True):
        if total > before:
            starts.append((sample.at_s, total - before))
        else:
            used += _rest_of_first_minutes(starts, before - total, sample.at_s)
    return (used + _rest_of_first_minutes(starts, totals[-1], end_s)) / HOUR_S


def _rest_of_first_minutes(starts: list[tuple[float, float]], stopped: float, at_s: float) -> float:
    """Credits per hour × seconds. The newest starts are assumed to stop first, and are removed from `starts`."""
    added = 0.0
    while stopped > 1e-9 and starts:
        begun_s, rate = starts.pop()
        taken = min(rate, stopped)
        added += taken * max(0.0, BILLED_MIN_S - (at_s - begun_s))
        if rate > taken:
            starts.append((begun_s, rate - taken))
        stopped -= taken
    return added


def price_inside(prices: Sequence[float], inside: int) -> float | None:
    """The price of 1,000 statements of an arm inside the limits. `prices` are those of the statements of each
    measurement. `inside` measurements kept the limits; of the others only the credits count. A geometric mean, because
    arms are compared by ratios. None: no measurement kept the limits."""
    if not inside or not prices:
        return None
    return math.exp(math.fsum(map(math.log, prices)) / len(prices)) * len(prices) / inside


# --- Credits as Snowflake metered them: which hours count, and what belongs to which arm -----------------------------
# Metering has one row for each warehouse and hour. Other use of the warehouse in these hours is included, so it is an
# upper limit of what the experiment has cost; an arm has separate credits only on a separate warehouse.

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
    """The credits that were metered in the hours of an experiment. Times are texts in UTC."""

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
    """The metered credits of an experiment. `arms`: the warehouse of each. None: nothing is metered in these hours."""
    wanted, used = set(hours), set(arms.values())
    mine = [row for row in rows if row.start in wanted and row.warehouse in used]
    if not mine:
        return None
    by_warehouse = {name: sum(row.compute for row in mine if row.warehouse == name) for name in sorted(used)}
    alone = len(used) == len(arms)
    end = hours[-1] + HOUR
    return ExperimentMetering(
        read_at=utc_iso(now, "seconds"),
        source=metering_source(hours, now),
        begin=utc_iso(hours[0], "seconds"),
        end=utc_iso(end, "seconds"),
        hours=len(hours),
        complete=now >= end + latency,
        credits=sum(by_warehouse.values()),
        cloud_services=sum(row.cloud_services for row in mine),
        warehouses=by_warehouse,
        arms={arm: by_warehouse[warehouse] for arm, warehouse in arms.items()} if alone else None,
        note="" if alone else SHARED,
    )


def metering_document(one: ExperimentMetering) -> dict[str, Any]:
    """The metering as it is stored, and shown as JSON."""
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
    """Read a document of metering_document. Raises ValueError, TypeError, KeyError or AttributeError for others."""
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
