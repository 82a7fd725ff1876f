"""The seconds of a worker that was killed before it stored them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.live_metrics import LiveSecond, write_live
from loadgen.model.counts import Counts
from loadgen.model.run import Phase
from loadgen.report.records import merge_seconds
from loadgen.results.run_record import with_last_seconds
from tests.unit.orchestrator_builders import live, row, times
from tests.unit.report_builders import START, worker_second

KEPT = 10  # seconds in a heartbeat


def live_second(at_s: float, counts: Counts) -> LiveSecond:
    return LiveSecond(
        ended_at=START + timedelta(seconds=at_s),
        seconds=1.0,
        phase=Phase.MEASUREMENT,
        executing=2,
        statements={"look": counts},
        times={"look": times(*[10.0] * counts.succeeded)} if counts.succeeded else {},
    )


@given(
    counts=st.lists(st.builds(Counts, succeeded=st.integers(0, 99), failed=st.integers(0, 9)), min_size=1, max_size=20),
    unstored=st.integers(0, KEPT),
    damaged=st.booleans(),
)
def test_rows_add_up_to_the_last_heartbeat_of_a_worker_that_was_killed(counts, unstored, damaged):
    every = [live_second(at + 1.01, one) for at, one in enumerate(counts)]
    stored = [
        worker_second(at + 1.01, ms=(), statements={"look": one}, target=4)
        for at, one in enumerate(counts[: max(0, len(counts) - unstored)])
    ]
    text = write_live(replace(live(), seconds=tuple(every[-KEPT:])))
    beats = [row(live_metrics=text), row("worker-1", live_metrics="{" if damaged else None)]

    merged = merge_seconds(START, with_last_seconds(stored, beats))

    total = sum(one.succeeded + one.failed for one in counts)
    assert sum(one.counts.succeeded + one.counts.failed for one in merged) == total
    assert {one.target for one in merged} <= ({4} if stored else {0})
