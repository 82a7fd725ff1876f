"""What a measurement cost, estimated from looks at its warehouse: rate × clusters × seconds. Pure.

Between two looks the warehouse was as the first of them showed; before the first look, as that shows. Snowflake bills
at least 60 seconds for each cluster that starts; metering tells the billed credits hours later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from loadgen.model.credits import CreditRates, WarehouseKind

BILLED_MIN_S = 60.0  # of every cluster that starts
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseLook:
    """A warehouse at a moment."""

    at_s: float  # since the start of the run
    size: str | None
    kind: WarehouseKind
    clusters: int


def credits_between(looks: Sequence[WarehouseLook], begin_s: float, end_s: float, rates: CreditRates) -> float | None:
    """Credits of this span; None: the warehouse was not seen, or the table has no rate for it."""
    if not looks or end_s <= begin_s:
        return None
    looks = sorted(looks, key=lambda look: look.at_s)
    edges = [begin_s, *(min(max(look.at_s, begin_s), end_s) for look in looks[1:]), end_s]
    total = 0.0
    for look, (first_s, last_s) in zip(looks, pairwise(edges), strict=True):
        rate = rates.of(look.size, look.kind)
        if rate is None and last_s > first_s:
            return None
        total += (rate or 0.0) * look.clusters * (last_s - first_s) / HOUR_S
    return total


def billed_credits(looks: Sequence[WarehouseLook], end_s: float, rates: CreditRates) -> float | None:
    """Credits of a run from its first look to its end, with the least that is billed for clusters that started in it
    and stopped again. Clusters that run on at its end are billed until then."""
    if not looks:
        return None
    looks = sorted(looks, key=lambda look: look.at_s)
    used = credits_between(looks, looks[0].at_s, max(end_s, looks[-1].at_s), rates)
    if used is None:  # one look alone, at the very end
        return 0.0 if rates.of(looks[0].size, looks[0].kind) is not None else None
    return used + sum(_added_for_short_starts(looks, rates))


def _added_for_short_starts(looks: Sequence[WarehouseLook], rates: CreditRates) -> list[float]:
    """For each cluster that started after the first look and stopped within 60 seconds: the rest of them."""
    started: list[float] = []  # moments at which running clusters started, the oldest first
    added = []
    for before, look in pairwise(looks):
        started += [look.at_s] * max(0, look.clusters - before.clusters)
        for _ in range(max(0, before.clusters - look.clusters)):
            begun_s = started.pop() if started else -math.inf  # those started last stop first
            short_s = max(0.0, BILLED_MIN_S - (look.at_s - begun_s))
            added.append((rates.of(before.size, before.kind) or 0.0) * short_s / HOUR_S)
    return added


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedStatements:
    """One measurement of an arm."""

    credits: float
    statements: int  # that succeeded
    inside: bool  # every limit held


def price_per_thousand(measured: Sequence[ServedStatements], credit_price: float) -> float | None:
    """What 1,000 statements inside the limits cost. A measurement outside them costs, and serves nothing. None: none
    was served."""
    served = sum(one.statements for one in measured if one.inside)
    return sum(one.credits for one in measured) * credit_price * 1_000 / served if served else None
