"""What was measured between two moments, from everything until the later and everything until the earlier one.

Counts and sums are exact. The shortest and longest time are those of the buckets: which sample was it is not known.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from loadgen.metrics.edges import HIGHEST_NS, LOWEST_NS
from loadgen.metrics.histogram import EMPTY, Histogram
from loadgen.metrics.outcome import Outcome
from loadgen.metrics.tally import NO_TIMES, StatementTally, Times


def since(earlier: StatementTally, later: StatementTally) -> StatementTally | None:
    """None when the two cannot be compared: their buckets were joined in different ways."""
    times: dict[Outcome, Times] = {}
    for outcome, total in later.times.items():
        before = earlier.times.get(outcome, NO_TIMES)
        response = _minus(total.response, before.response)
        service = response if total.service is total.response else _minus(total.service, before.service)
        if response is None or service is None:
            return None
        times[outcome] = Times(response, service)
    lag = _minus(later.lag, earlier.lag)
    unsent = _minus(later.unsent, earlier.unsent)
    if lag is None or unsent is None:
        return None
    return StatementTally(times=_some(times), lag=lag, skipped=later.skipped - earlier.skipped, unsent=unsent)


def _some(times: Mapping[Outcome, Times]) -> Mapping[Outcome, Times]:
    return {outcome: spent for outcome, spent in times.items() if spent.response.count}


def _minus(later: Histogram, earlier: Histogram) -> Histogram | None:
    if not earlier.count:
        return later
    counts = later.counts - earlier.counts
    if later.coarseness != earlier.coarseness or counts.min() < 0:
        return None
    buckets = np.flatnonzero(counts)
    if not len(buckets):
        return EMPTY
    return Histogram(
        counts=counts,
        count=later.count - earlier.count,
        sum_ns=later.sum_ns - earlier.sum_ns,
        min_ns=max(int(LOWEST_NS[buckets[0]]), later.min_ns),
        max_ns=min(int(HIGHEST_NS[buckets[-1]]), later.max_ns),
        coarseness=later.coarseness,
    )
