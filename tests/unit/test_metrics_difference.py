"""What was measured between two moments is what was measured until the later without what was until the earlier."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from loadgen.metrics.difference import since
from loadgen.metrics.histogram import EMPTY
from loadgen.metrics.outcome import Outcome
from loadgen.metrics.tally import StatementTally, Times
from tests.unit.metrics_builders import histogram, time_lists


def tally(times: list[int], skipped: int = 0) -> StatementTally:
    one = histogram(times)
    return StatementTally(times={Outcome.SUCCEEDED: Times(one, one)}, lag=histogram(times), skipped=skipped)


@given(time_lists, time_lists)
def test_the_rest_has_the_counts_and_the_sum_of_what_came_later(before, after):
    found = since(tally(before, 2), tally(before + after, 5))

    assert found is not None
    rest, exact = found.succeeded.response, histogram(after)
    assert (rest.count, rest.sum_ns, found.skipped) == (exact.count, exact.sum_ns, 3)
    assert np.array_equal(rest.counts, exact.counts)
    assert rest.min_ns <= exact.min_ns
    assert rest.max_ns >= exact.max_ns
    assert found.lag.count == len(after)


def test_nothing_came_later():
    found = since(tally([5, 6]), tally([5, 6]))

    assert found is not None
    assert found.times == {}
    assert found.lag == EMPTY


def test_what_was_joined_in_different_ways_cannot_be_compared():
    fine = tally([1_000_000] * 9)
    coarse = histogram([1_000_000] * 20).coarse(3)

    assert since(fine, StatementTally(times={Outcome.SUCCEEDED: Times(coarse, coarse)})) is None
