"""Rows of a run around the begin of the measurement, compared with the history of its statements."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.interval import EarlierSamples
from loadgen.model.counts import Counts
from loadgen.report.records import StatementTimes, WorkerSecond, merge_seconds
from tests.unit.report_builders import START, worker_second

LENGTH_S = 8
Ended = tuple[float, float]  # a statement: sent and answered, in seconds of the run


def history(service_s: float, first_s: float) -> list[Ended]:
    """The statements of one connection of a worker."""
    found, at_s = [], first_s
    while at_s < LENGTH_S:
        found.append((at_s, at_s + service_s))
        at_s += service_s
    return found


def worker_seconds(number: int, own: list[Ended], late_s: list[float], measures_s: int) -> list[WorkerSecond]:
    """The seconds of a worker that collects `late_s` after each whole second, and measures from `measures_s` on."""
    ends_s = [0.0, *(at + 1 + late for at, late in enumerate(late_s))]
    found = []
    for begin_s, end_s in pairwise(ends_s):
        ended = [sent_s < measures_s for sent_s, done_s in own if begin_s < done_s <= end_s]
        is_measured = end_s > measures_s
        before = sum(ended) if is_measured else 0
        took_ms = (own[0][1] - own[0][0]) * 1000
        times = worker_second(0, ms=(took_ms,) * before).response
        found.append(
            worker_second(
                end_s,
                worker_id=f"worker-{number}",
                seconds=end_s - begin_s,
                ms=(took_ms,) * (len(ended) - before),
                phase="MEASUREMENT" if is_measured else "WARMUP",
                times={"look": worker_second(0, ms=(took_ms,) * (len(ended) - before)).response},
                earlier=EarlierSamples(statements={"look": Counts(succeeded=before)}, times={"look": times})
                if is_measured and begin_s <= measures_s + 1
                else None,
            )
        )
    return found


LATE = st.lists(st.floats(0.001, 0.06), min_size=LENGTH_S, max_size=LENGTH_S)


@pytest.mark.parametrize("measures_s", [1, 3])
@given(
    late=st.lists(LATE, min_size=1, max_size=3), service_s=st.sampled_from([0.05, 0.21, 0.7]), by_worker=st.booleans()
)
def test_each_row_has_what_ended_in_its_second_and_tells_what_had_begun_in_the_warm_up(
    measures_s, late, service_s, by_worker
):
    histories = [history(service_s, 0.013 * number) for number in range(len(late))]
    of_workers = [
        worker_seconds(number, own, late_s, measures_s)
        for number, (own, late_s) in enumerate(zip(histories, late, strict=True))
    ]
    every = [second for own in of_workers for second in own]
    times = StatementTimes(span_s=1)

    merged = merge_seconds(
        START, every if by_worker else sorted(every, key=lambda one: one.ended_at), times, measures_s=measures_s
    )

    assert [row.phase for row in merged] == ["WARMUP" if row.at_s < measures_s else "MEASUREMENT" for row in merged]
    ends = [[0.0, *(at + 1 + one for at, one in enumerate(late_s))] for late_s in late]
    for row in merged:
        ended = [
            sent_s < measures_s
            for own, of_worker in zip(histories, ends, strict=True)
            for sent_s, done_s in own
            if of_worker[row.at_s] < done_s <= of_worker[row.at_s + 1]
        ]
        # Between the begin of the measurement and the collection after it, statements may end that it has begun.
        slack = len(late) * 2 if row.at_s in (measures_s - 1, measures_s) else 0
        assert abs(row.every_count.succeeded - len(ended)) <= slack
        assert row.earlier.counts.succeeded == (sum(ended) if row.at_s >= measures_s else 0)
        assert times.points[row.at_s, row.phase]["look"].count == row.every_count.succeeded
    begun_before = sum(
        sent_s < measures_s and done_s <= of_worker[-1]
        for own, of_worker in zip(histories, ends, strict=True)
        for sent_s, done_s in own
    )
    warmed_up = sum(row.counts.succeeded for row in merged if row.phase == "WARMUP")
    assert warmed_up + sum(row.earlier.counts.succeeded for row in merged) == begun_before
