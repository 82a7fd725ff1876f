"""From snapshots to a history: seconds of workers put together, windows that are stored and forgotten."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pytest

from loadgen.metrics.histogram import EMPTY, Histogram
from loadgen.metrics.live_metrics import LiveSecond
from loadgen.model.run import Phase
from loadgen.report.records import WorkerSecond
from loadgen.results.run_snapshot import RunSnapshot, WorkerHealth
from loadgen.tui.history import KEPT_S, HistorySecond, LiveHistory, PeakThroughput, coarsen_second
from loadgen.units import NS_PER_MS
from tests.unit.orchestrator_builders import tally, window
from tests.unit.tui_builders import MOMENT, second, snapshot, worker


def stored(number: int, one: LiveSecond) -> WorkerSecond:
    """The same as a row of the tables has it."""
    return coarsen_second(
        WorkerSecond(
            worker_id=f"worker-{number}",
            ended_at=one.ended_at,
            seconds=one.seconds,
            phase=one.phase.value,
            statements=one.statements,
            response=reduce(add, one.times.values(), EMPTY),
            times=one.times,
            executing=one.executing,
        )
    )


def telling(seen_s: float, *lives: Sequence[LiveSecond], **more: Any) -> RunSnapshot:
    """A snapshot of workers whose heartbeats contain these seconds."""
    return snapshot(seen_s, *(worker(number, seconds=tuple(live)) for number, live in enumerate(lives)), **more)


def shown(history: LiveHistory) -> list[tuple[int, float | None]]:
    return [(one.at_s, one.qps) for one in history.seconds]


# --- seconds ---------------------------------------------------------------------------------------------------------


def test_seconds_of_all_workers_are_added_up_in_the_rows_of_the_run():
    history = LiveHistory()
    first = [second(number + 0.9, *[10.0] * 100) for number in range(4)]
    other = [second(number + 1.1, *[20.0] * 50) for number in range(4)]

    history.note(telling(5.0, first, other))

    assert shown(history) == [(0, None), (1, 150.0), (2, 150.0), (3, 150.0)]  # of the first, a part is not known
    assert history.seconds[-1].p50_ms == pytest.approx(10.0, rel=0.04)
    assert history.seconds[-1].p95_ms == pytest.approx(20.0, rel=0.04)


def test_p95_of_a_second_with_few_samples_is_taken_with_those_before_it_in_its_phase():
    history = LiveHistory()
    warm = [second(at_s + 1.0, *[90.0] * 10, phase=Phase.WARMUP) for at_s in range(3)]
    measured = [second(at_s + 1.0, *[10.0 + at_s] * 10) for at_s in range(3, 7)]

    history.note(telling(8.0, [*warm, *measured]))

    p95 = [None if one.p95_ms is None else round(one.p95_ms) for one in history.seconds]
    assert p95 == [None, 90, 90, None, 14, 15, 16]


def test_p95_of_the_only_statement_is_that_of_the_run():
    history = LiveHistory()
    draw = random.Random(1)
    counts = [draw.randrange(12) for _ in range(60)]
    seconds = [
        second(at_s + 1.0, s=(10.0 + at_s,) * count, phase=Phase.WARMUP if at_s < 20 else Phase.MEASUREMENT)
        for at_s, count in enumerate(counts)
    ]

    history.note(telling(61.0, seconds))

    shown = {one.at_s: one.p95_ms for one in history.seconds if one.p95_ms is not None}
    assert len(shown) > 40
    assert {one.at_s: one.statements[0].p95_ms for one in history.seconds if one.at_s in shown} == shown


def test_a_statement_without_an_end_in_a_second_keeps_its_p95_for_as_long_as_its_samples_are_recent():
    history = LiveHistory()
    seconds = [second(1.0, s=(10.0,) * 90), second(2.0, s=(10.0,) * 90, rare=(50.0,) * 30)]

    history.note(telling(15.0, [*seconds, *(second(at_s + 1.0, s=(10.0,) * 90) for at_s in range(2, 14))]))

    rare = [next((one for one in row.statements if one.name == "rare"), None) for row in history.seconds]
    known = [None if one is None or one.p95_ms is None else (one.qps, round(one.p95_ms)) for one in rare]
    assert known == [None, (30.0, 50), *[(0.0, 50)] * 9, *[None] * 3]


def test_a_row_is_shown_once_every_working_worker_has_reported_it():
    history = LiveHistory()
    seconds = [second(number + 1.0, *[10.0] * 10) for number in range(5)]

    history.note(telling(5.0, seconds, seconds[:3]))
    assert [at_s for at_s, _ in shown(history)] == [0, 1, 2]

    silent = worker(1, seconds=tuple(seconds[:3]), health=WorkerHealth.STALE)
    history.note(snapshot(6.0, worker(0, seconds=tuple(seconds)), silent))
    assert shown(history)[-1] == (4, 10.0)

    history.note(telling(7.0, seconds, seconds))
    assert shown(history)[-1] == (4, 20.0)  # its later reports belong to their seconds


def test_a_second_in_which_a_phase_begins_has_no_rate():
    history = LiveHistory()
    warm = [second(number + 1.0, *[10.0] * 10, phase=Phase.WARMUP) for number in range(3)]
    measured = [second(number + 4.0, *[10.0] * 30) for number in range(3)]

    history.note(telling(6.0, [*warm, *measured]))

    assert shown(history) == [(0, None), (1, 10.0), (2, 10.0), (3, None), (4, 30.0), (5, 30.0)]
    assert [one.phase for one in history.seconds][2:4] == [Phase.WARMUP, Phase.MEASUREMENT]


def test_a_missed_heartbeat_costs_nothing_and_an_unreported_second_is_a_gap():
    history = LiveHistory()
    seconds = [second(number + 1.0, *[10.0] * 10) for number in range(40)]

    history.note(telling(3.0, seconds[:3]))
    history.note(telling(9.0, seconds[:9]))
    assert [at_s for at_s, _ in shown(history)] == list(range(9))

    history.note(telling(30.0, seconds[20:30]))
    assert [at_s for at_s, _ in shown(history)] == [*range(9), *range(20, 30)]


def test_statements_have_separate_seconds():
    history = LiveHistory()
    history.note(telling(2.0, [second(1.0, s=(10.0,) * 9), second(2.0, s=(10.0,) * 90, rare=(50.0,) * 30)]))

    statements = {one.name: one for one in history.seconds[-1].statements}

    assert {name: one.qps for name, one in statements.items()} == {"s": 90.0, "rare": 30.0}
    assert statements["rare"].p95_ms == pytest.approx(50.0, rel=0.04)


def test_now_is_the_last_ten_seconds_of_this_phase():
    history = LiveHistory()
    slow = [second(number + 1.0, *[500.0] * 100) for number in range(10)]
    fast = [second(number + 11.0, *[5.0] * 100) for number in range(10)]

    history.note(telling(20.0, [*slow, *fast]))

    assert history.recent is not None
    assert history.recent.qps == 100.0
    assert history.recent.p99 is not None
    assert history.recent.p99.value_ns == pytest.approx(5.0 * NS_PER_MS, rel=0.04)


def test_times_that_are_lower_bounds_are_marked():
    history = LiveHistory()
    cut = Histogram.of(np.array([2_000 * NS_PER_MS] * 10, np.int64)).coarse(3)
    slow = [replace(second(number + 1.0, *[5.0] * 90), cut_off=cut) for number in range(10)]

    history.note(telling(10.0, slow))

    recent = history.recent
    assert recent is not None
    assert [one is not None and one.at_least for one in (recent.p50, recent.p95, recent.p99, recent.most)] == [
        False, True, True, True
    ]  # fmt: skip


def test_when_the_load_is_over_its_last_times_and_its_peak_stay():
    history = LiveHistory()
    load = [second(number + 1.0, *[5.0] * 100) for number in range(10)]
    history.note(telling(10.0, load))
    peak = history.peak

    history.note(telling(12.0, [*load, second(11.0, phase=Phase.COOLDOWN), second(12.0, phase=Phase.COOLDOWN)]))

    assert history.recent is not None
    assert history.recent.qps is None
    assert history.recent.p95 is not None
    assert history.peak == peak is not None


def test_only_the_last_minutes_are_kept():
    history = LiveHistory()
    for number in range(KEPT_S + 50):
        history.note(telling(float(number), [second(number + 1.0, *[10.0] * 10)]))

    assert [one.at_s for one in history.seconds] == list(range(50, KEPT_S + 50))


# --- the run's own view and one from elsewhere -----------------------------------------------------------------------


def lives(number: int) -> list[LiveSecond]:
    """Sixty seconds of a worker that collects at slightly early or late times."""
    draw = random.Random(number)
    offset_s = draw.uniform(0.05, 0.95)
    warm = [Phase.WARMUP] * 10 + [Phase.MEASUREMENT] * 50
    return [
        second(
            at_s + offset_s + draw.uniform(-0.1, 0.1),
            s=tuple(draw.uniform(5.0, 80.0) for _ in range(draw.randrange(20, 60))),
            rare=tuple(draw.uniform(50.0, 90.0) for _ in range(draw.randrange(5))),
            phase=warm[at_s],
        )
        for at_s in range(60)
    ]


def figures(second: HistorySecond) -> tuple[object, ...]:
    statements = {one.name: (one.qps, one.p95_ms) for one in second.statements}
    return second.phase, second.p50_ms, second.p95_ms, second.p99_ms, statements


@pytest.mark.parametrize("joined_s", [1, 4, 12, 30, 55])
def test_a_view_that_was_opened_later_shows_the_same_numbers(joined_s):
    """The view of the run polls every second. The other one is opened later, reads the stored rows (the last few
    seconds are not stored yet), polls at other times, and sometimes misses a heartbeat."""
    own, other = LiveHistory(), LiveHistory()
    workers = [lives(number) for number in range(3)]

    def told(moment_s: float) -> list[list[LiveSecond]]:
        return [[one for one in live if one.ended_at <= MOMENT + timedelta(seconds=moment_s)][-10:] for live in workers]

    rows = [
        stored(number, one)
        for number, live in enumerate(workers)
        for one in live
        if one.ended_at <= MOMENT + timedelta(seconds=joined_s - 6)
    ]
    rows.sort(key=lambda row: row.ended_at)
    draw = random.Random(joined_s)
    for moment_s in range(1, 62):
        own.note(telling(float(moment_s), *told(moment_s), measures_s=10.0))
        if moment_s >= joined_s and (draw.random() < 0.6 or moment_s == 61):
            other.note(telling(moment_s + 0.4, *told(moment_s), measures_s=10.0, stored=tuple(rows)))

    assert own.peak is not None
    assert not own.peak.at_least
    assert other.peak == own.peak
    assert other.recent == own.recent
    assert shown(other) == shown(own)
    assert [figures(one) for one in other.seconds] == [figures(one) for one in own.seconds]


def test_a_peak_with_missing_seconds_is_shown_as_at_least():
    history = LiveHistory()
    seconds = [second(number + 1.0, *[10.0] * 10) for number in range(40)]

    history.note(telling(40.0, seconds[30:]))

    assert history.peak == PeakThroughput(qps=10.0, at_least=True)


def test_the_peak_is_of_the_measurement_and_not_of_the_warm_up():
    history = LiveHistory()
    warm = [second(number + 1.0, *[10.0] * 90, phase=Phase.WARMUP) for number in range(5)]
    measured = [second(number + 6.0, *[10.0] * 30) for number in range(5)]

    history.note(telling(5.0, warm, measures_s=5.0))
    assert history.peak == PeakThroughput(qps=90.0, at_least=False)

    history.note(telling(10.0, [*warm, *measured], measures_s=5.0))
    assert history.peak == PeakThroughput(qps=30.0, at_least=False)


def test_a_peak_is_of_the_whole_phase_and_not_of_the_kept_seconds():
    history = LiveHistory()
    for number in range(2 * KEPT_S):
        qps = 50 if number == 20 else 10
        history.note(telling(float(number), [second(number + 1.0, *[10.0] * qps)]))

    assert 20 not in [one.at_s for one in history.seconds]
    assert history.peak == PeakThroughput(qps=50.0, at_least=False)


def test_the_peak_of_a_view_that_was_opened_late_is_a_lower_bound():
    history = LiveHistory()
    seconds = [second(number + 1.0, *[10.0] * 10) for number in range(KEPT_S + 60)]
    history.note(telling(KEPT_S + 60.0, stored=tuple(stored(0, one) for one in seconds[60:])))
    assert history.peak == PeakThroughput(qps=10.0, at_least=True)

    measured = LiveHistory()
    measured.note(telling(KEPT_S + 60.0, stored=tuple(stored(0, one) for one in seconds[60:]), measures_s=90.0))
    assert measured.peak == PeakThroughput(qps=10.0, at_least=False)  # what is not known was warm-up


# --- windows and errors ----------------------------------------------------------------------------------------------


def test_a_new_step_begins_with_empty_numbers_and_keeps_its_own_once_they_were_stored():
    history = LiveHistory()
    first = window({"s": tally((10.0,) * 50)}, step_id=1, window_id=1)
    second = window({"s": tally((10.0,) * 7)}, step_id=2, window_id=2)

    history.note(snapshot(1.0, worker(0, first, elapsed_s=1.0), worker(1, first, elapsed_s=1.0)))
    history.note(snapshot(2.0, worker(0, first, second, elapsed_s=2.0), worker(1, first, elapsed_s=2.0)))
    assert [[one.step_id for one in own] for own in history.newest_windows] == [[2]]

    history.note(snapshot(3.0, worker(0, elapsed_s=3.0), worker(1, elapsed_s=3.0)))
    assert [[one.step_id for one in own] for own in history.newest_windows] == [[2]]


def test_errors_stay_when_their_window_was_stored():
    history = LiveHistory()
    history.note(snapshot(1.0, worker(0, window({"s": tally(failed=3)}), elapsed_s=1.0)))
    history.note(snapshot(2.0, worker(0, window({"s": tally(failed=2)}, window_id=2), elapsed_s=2.0)))

    assert [errors.count for errors in history.errors.values()] == [5]


def test_errors_of_the_warm_up_are_none_of_the_measurement():
    history = LiveHistory()
    warm = window({"s": tally(failed=3)}, phase=Phase.WARMUP, window_id=0)
    history.note(snapshot(1.0, worker(0, warm, elapsed_s=1.0)))
    assert [errors.count for errors in history.errors.values()] == [3]

    history.note(snapshot(2.0, worker(0, warm, window({"s": tally(failed=1)}), elapsed_s=2.0), worker(1, warm)))

    assert [errors.count for errors in history.errors.values()] == [1]
