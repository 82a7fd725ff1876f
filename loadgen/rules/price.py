"""The cost of a measurement, estimated from polls of its warehouse: rate × clusters × seconds. Pure.

The state of a sample is assumed to last until the next one; that of the first sample also holds before it. Snowflake's
metering views have the billed credits hours later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from loadgen.model.warehouse import CreditRates, WarehouseKind
from loadgen.values import dataclass

BILLED_MIN_S = 60.0  # of whatever starts
HOUR_S = 3600.0


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
    """Credits of a run as Snowflake bills them: by the second, and at least a minute for whatever starts in it: a
    resume, a further cluster, the added part of a larger size. Of what runs on, the run has the time until its end, or
    the minute. None: there is no sample, or the table has no rate for it."""
    if not samples:
        return None
    samples = sorted(samples, key=lambda sample: sample.at_s)
    known = [rates.of(sample.size, sample.kind) for sample in samples]
    if None in known:
        return None
    first, end_s = samples[0], max(end_s, samples[-1].at_s)
    run_s = min(0.0, first.at_s)  # what was resumed before is a start of another run
    resumed_s = first.resumed_s if first.resumed_s is not None and run_s <= first.resumed_s < first.at_s else None
    totals = [(rate or 0.0) * sample.clusters for rate, sample in zip(known, samples, strict=True)]
    edges = [first.at_s if resumed_s is None else resumed_s, *(sample.at_s for sample in samples[1:]), end_s]
    used = math.fsum(
        total * (last_s - first_s) for total, (first_s, last_s) in zip(totals, pairwise(edges), strict=True)
    )
    starts = [(-math.inf if resumed_s is None else resumed_s, totals[0])]  # when, credits per hour; the newest last
    for (before, total), sample in zip(pairwise(totals), samples[1:], strict=True):
        if total > before:
            starts.append((sample.at_s, total - before))
        else:
            used += _rest_of_first_minutes(starts, before - total, sample.at_s)
    return (used + _rest_of_first_minutes(starts, totals[-1], end_s)) / HOUR_S


def _rest_of_first_minutes(starts: list[tuple[float, float]], stopped: float, at_s: float) -> float:
    """Credits per hour × seconds. What started last is assumed to stop first; it is removed from `starts`."""
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
    """The price of an arm: of 1,000 statements inside the limits. `prices` are those of each measurement's statements,
    `inside` of which held the limits: the others cost, and served nothing. A geometric mean, because arms are compared
    by ratios. None: nothing was served."""
    if not inside or not prices:
        return None
    return math.exp(math.fsum(map(math.log, prices)) / len(prices)) * len(prices) / inside
