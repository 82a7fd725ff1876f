"""The cost of a measurement, estimated from polls of its warehouse: rate × clusters × seconds. Pure.

The state of a sample is assumed to last until the next one; that of the first sample also holds before it. Snowflake
bills at least 60 seconds for each cluster that starts; its metering views have the billed credits hours later.
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
class WarehouseSample:
    """The state of a warehouse at one poll."""

    at_s: float  # since the start of the run
    size: str | None
    kind: WarehouseKind
    clusters: int


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
    """Credits of a run from its first sample to its end, with the billed minimum of clusters that started and stopped
    in it. Clusters that still run at its end are billed until then."""
    if not samples:
        return None
    samples = sorted(samples, key=lambda sample: sample.at_s)
    used = credits_between(samples, samples[0].at_s, max(end_s, samples[-1].at_s), rates)
    if used is None:  # a single sample at the very end
        return 0.0 if rates.of(samples[0].size, samples[0].kind) is not None else None
    return used + sum(_added_for_short_starts(samples, rates))


def _added_for_short_starts(samples: Sequence[WarehouseSample], rates: CreditRates) -> list[float]:
    """For each cluster that started after the first sample and stopped within 60 seconds: credits of the rest."""
    started: list[float] = []  # start times of running clusters, oldest first
    added = []
    for before, sample in pairwise(samples):
        started += [sample.at_s] * max(0, sample.clusters - before.clusters)
        for _ in range(max(0, before.clusters - sample.clusters)):
            begun_s = started.pop() if started else -math.inf  # assumed: clusters stop in reverse order of their start
            short_s = max(0.0, BILLED_MIN_S - (sample.at_s - begun_s))
            added.append((rates.of(before.size, before.kind) or 0.0) * short_s / HOUR_S)
    return added


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedStatements:
    """What one measurement of an arm served, and its cost."""

    credits: float
    statements: int  # that succeeded
    inside: bool  # every limit held


def price_per_thousand(measured: Sequence[ServedStatements], credit_price: float) -> float | None:
    """The price of 1,000 statements inside the limits. A measurement outside them adds cost and no served statements.
    None: no statement was served."""
    served = sum(one.statements for one in measured if one.inside)
    return sum(one.credits for one in measured) * credit_price * 1_000 / served if served else None
