"""The seconds of a run: put together over workers, joined for charts, written as CSV."""

from __future__ import annotations

import csv
import io
import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from loadgen.metrics.connections import LoginCounts, ReconnectReason
from loadgen.model.counts import Counts
from loadgen.report.exports import COLUMNS, intervals_csv
from loadgen.report.records import (
    StatementTimes,
    Stretch,
    WorkerSecond,
    merge_seconds,
    percentile_line,
    span_for,
    spans,
    thin,
)
from tests.unit.report_builders import HOSTILE_NAME, START, hostile, record, seconds, worker_second


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_seconds_of_workers_are_added() -> None:
    merged = merge_seconds(START, seconds(10))
    assert [second.at_s for second in merged] == list(range(10))
    assert {second.workers for second in merged} == {2}
    assert {second.counts.succeeded for second in merged} == {200}
    assert {second.executing for second in merged} == {8}
    assert merged[5].qps == pytest.approx(200.0)
    assert merged[5].response.count == 200


def test_percentiles_are_of_merged_samples_and_not_of_percentiles() -> None:
    fast = worker_second(5.5, ms=(1.0,) * 100)
    slow = worker_second(5.5, ms=(100.0,) * 100, worker_id="worker-1")
    (merged,) = merge_seconds(START, [fast, slow])
    assert merged.response_ms(950) == pytest.approx(100.0, rel=0.02)  # their mean would be 50
    assert merged.response_ms(500) == pytest.approx(1.0, rel=0.02)


def test_a_wobble_makes_neither_a_gap_nor_a_double() -> None:
    chance = random.Random(5)
    own = [worker_second(at + 1.0 + chance.uniform(-0.2, 0.2)) for at in range(200)]
    assert [second.at_s for second in merge_seconds(START, own)] == list(range(200))


def test_a_silent_worker_leaves_a_gap() -> None:
    merged = merge_seconds(START, [worker_second(1.5), worker_second(2.5), worker_second(9.5)])
    assert [second.at_s for second in merged] == [1, 2, 9]


def test_a_second_that_was_measured_in_part_has_no_rate() -> None:
    merged = merge_seconds(START, seconds(8))
    known = [second.qps is not None for second in merged]
    assert known == [False, True, False, True, True, True, True, False]  # first, change of phase, last
    assert merged[2].counts.succeeded == 200  # what was counted stays


def test_seconds_after_the_last_statement_are_left_out() -> None:
    idle = [worker_second(at, ms=(), statements={}, executing=0) for at in (4.5, 5.5)]
    merged = merge_seconds(START, [worker_second(2.5), worker_second(3.5), *idle])
    assert [second.at_s for second in merged] == [2, 3]


def test_a_statement_that_hangs_at_the_end_is_not_left_out() -> None:
    hanging = [worker_second(at, ms=(), statements={}, executing=1) for at in (4.5, 5.5)]
    assert len(merge_seconds(START, [worker_second(3.5), *hanging])) == 3


def test_joined_seconds_hold_the_same_samples_and_keep_phases_apart() -> None:
    merged = merge_seconds(START, seconds(100))
    joined = thin(merged, 5)
    assert len(joined) <= 22
    assert sum(point.length_s for point in joined) == 100
    assert sum(point.response.count for point in joined) == sum(second.response.count for second in merged)
    assert spans(joined) == spans(merged) == (("WARMUP", 0, 2), ("MEASUREMENT", 2, 100))
    assert joined[5].qps == pytest.approx(200.0)


def test_a_short_run_is_not_joined() -> None:
    merged = merge_seconds(START, seconds(10))
    assert thin(merged, span_for(len(merged))) == merged


def test_times_by_statement_are_summed_up_for_each_point_of_a_chart_and_phase() -> None:
    kept = StatementTimes(span_s=5)
    merged = merge_seconds(START, seconds(100), kept)
    joined = thin(merged, kept.span_s)
    assert set(kept.points) == {(point.at_s // 5, point.phase) for point in joined}
    assert kept.points[0, "WARMUP"]["pay"].count == 2 * 2 * 50
    assert kept.points[3, "MEASUREMENT"]["pay"].count == 5 * 2 * 50


def measured(*counts: int, first: int = 0, phase: str = "MEASUREMENT") -> list[WorkerSecond]:
    """Seconds with these numbers of samples of 10 ms, 20 ms and further."""
    return [
        worker_second(at + 1.02, ms=tuple(10.0 * (number + 1) for number in range(count)), phase=phase)
        for at, count in enumerate(counts, start=first)
    ]


def line_of(own: list[WorkerSecond], per_mille: int, reach_s: float = 100.0) -> tuple[Stretch, ...]:
    points = merge_seconds(START, own)
    return percentile_line(points, [point.response for point in points], per_mille, reach_s)


def test_a_percentile_takes_as_many_points_as_it_needs() -> None:
    p50, p95 = (line_of(measured(100, 100, 30, 12, 12, 30, 30), per_mille) for per_mille in (500, 950))
    assert [(one.first, one.last) for one in p50] == [(0, 1), (2, 2), (3, 3), (4, 4), (5, 6)]  # 0, 6: in part
    assert [(one.first, one.last) for one in p95] == [(0, 1), (2, 2), (3, 4), (5, 6)]
    assert p95[2].value == pytest.approx(120.0, rel=0.02)
    last = line_of(measured(100, 100, 30, 12), 950)[-1]
    assert (last.first, last.last) == (2, 3)  # what is left joins the last
    assert last.value == pytest.approx(280.0, rel=0.02)


def test_a_percentile_is_not_stated_from_too_few_samples_and_not_over_too_long() -> None:
    short = line_of(measured(*[3] * 8), 950, reach_s=4.0)
    assert short == (Stretch(0, 3, None), Stretch(4, 7, None))
    assert [one.value is not None for one in line_of(measured(*[3] * 8), 950)] == [True]


def test_a_percentile_never_takes_samples_of_another_phase_or_from_beyond_a_gap() -> None:
    own = [*measured(10, 10, phase="WARMUP"), *measured(10, 10, first=2), *measured(10, 10, first=9)]
    assert [(one.first, one.last, one.value) for one in line_of(own, 990)] == [(0, 1, None), (2, 3, None), (4, 5, None)]


def test_there_is_one_row_per_second_with_the_columns_that_were_promised() -> None:
    written = rows(intervals_csv(record(length=12)))
    assert list(written[0]) == [*COLUMNS, "look succeeded", "look failed", "pay succeeded", "pay failed"]
    assert [row["second"] for row in written] == list(map(str, range(12)))
    row = written[5]
    assert row["time"] == "2026-11-15T02:00:05.000Z"
    assert (row["phase"], row["workers"], row["succeeded"], row["failed"]) == ("MEASUREMENT", "2", "200", "8")
    assert float(row["qps"]) == pytest.approx(200.0)
    assert (row["look succeeded"], row["look failed"]) == ("100", "4")


def test_unknown_values_are_empty_cells() -> None:
    written = rows(intervals_csv(record(length=12)))
    assert written[0]["qps"] == ""
    assert written[5]["lag_p99_ms"] == ""
    few = merge_seconds(START, [worker_second(1.5, ms=(5.0,), statements={"look": Counts(succeeded=1)})])
    row = rows(intervals_csv(record(seconds=few)))[0]
    assert (row["p50_ms"], row["p99_ms"], row["max_ms"]) == ("", "", "5")


def test_logins_of_a_row_are_what_workers_counted_in_it() -> None:
    counted = [
        LoginCounts(opened=4),
        LoginCounts(opened=7, reopened={ReconnectReason.SESSION_LOST: 2, ReconnectReason.MAX_AGE: 1}, refused=5),
        LoginCounts(opened=7, reopened={ReconnectReason.SESSION_LOST: 2, ReconnectReason.MAX_AGE: 1}, refused=6),
    ]
    seconds = [replace(worker_second(at), logins=own) for at, own in zip((1.0, 2.0, 3.0), counted, strict=True)]
    other = [worker_second(at, worker_id="worker-1") for at in (1.0, 2.0, 3.0)]

    written = rows(intervals_csv(record(seconds=merge_seconds(START, [*seconds, *other]))))
    silent = rows(intervals_csv(record(seconds=merge_seconds(START, other))))

    names = ("logins", "reopened", "lost", "logins_refused")
    assert [[row[name] for name in names] for row in written] == [list("4000"), list("3325"), list("0001")]
    assert [silent[0][name] for name in names] == [""] * 4


def test_names_of_statements_are_neither_markup_nor_formulas() -> None:
    text = intervals_csv(hostile())
    head = next(csv.reader(io.StringIO(text)))
    assert head[len(COLUMNS)] == f"{HOSTILE_NAME} succeeded"
    assert all(cell[0] not in "=+-@" for cell in head)
    assert not set(text) & {"\x00", "\x1b", "\r"}


def test_a_run_without_seconds_has_a_heading_only() -> None:
    assert intervals_csv(record(seconds=(), started=None)).count("\n") == 1


def test_a_row_in_which_windows_close_stays_one_of_their_phase() -> None:
    """Of one worker in the middle of the row, of the others before and after it: what ended in it was measured."""
    measured = [worker_second(at, worker_id=worker) for at in (1.0, 2.0) for worker in ("worker-0", "worker-1")]
    cool: dict[str, Any] = {"ms": (), "statements": {}, "phase": "COOLDOWN"}
    closing = [
        worker_second(2.4, seconds=0.4, executing=1, **cool),
        worker_second(3.0, worker_id="worker-1"),
        worker_second(3.0, executing=1, **cool),
        worker_second(4.0, executing=1, **cool),
        worker_second(4.0, worker_id="worker-1", executing=1, **cool),
    ]

    merged = merge_seconds(START, [*measured, *closing])

    assert [(second.at_s, second.phase) for second in merged] == [
        (0, "MEASUREMENT"),
        (1, "MEASUREMENT"),
        (2, "MEASUREMENT"),
        (3, "COOLDOWN"),
    ]
    assert sum(second.counts.succeeded for second in merged if second.phase == "MEASUREMENT") == 500


def test_statements_of_the_warm_up_are_in_no_row_of_the_measurement() -> None:
    """A worker that was held up writes the end of its warm-up and the first of its measurement in one second."""
    ends_s = [0.98, 1.4, 1.7, 2.7, 3.7]
    phases = ["WARMUP", "WARMUP", *["MEASUREMENT"] * 3]
    lengths_s = [end_s - begin_s for begin_s, end_s in pairwise([0.0, *ends_s])]
    own = [
        worker_second(end_s, phase=phase, seconds=length_s)
        for end_s, phase, length_s in zip(ends_s, phases, lengths_s, strict=True)
    ]

    found = merge_seconds(START, own)

    assert sum(second.counts.succeeded for second in found if second.phase == "MEASUREMENT") == 300


@pytest.mark.parametrize("seed", range(20))
def test_rows_of_the_measurement_add_up_to_what_was_measured(seed: int) -> None:
    """Workers collect at different moments, so they change phase in different seconds; rows come in any order."""
    chance = random.Random(seed)
    of_workers: list[list[WorkerSecond]] = []
    for number in range(4):
        offset, change = chance.uniform(0.0, 1.0), 5 + chance.randrange(2)
        of_workers.append(
            [
                worker_second(
                    at + 1.0 + offset,
                    worker_id=f"worker-{number}",
                    phase="WARMUP" if at < change else "MEASUREMENT",
                    statements={"a": Counts(succeeded=chance.randrange(1, 9))},
                )
                for at in range(12)
            ]
        )
    every = [second for own in of_workers for second in own]
    in_time = sorted(every, key=lambda second: second.ended_at)

    for order in (every, in_time):
        for phase in ("WARMUP", "MEASUREMENT"):
            shown = sum(row.counts.succeeded for row in merge_seconds(START, order) if row.phase == phase)
            assert shown == sum(second.counts.succeeded for second in every if second.phase == phase)
