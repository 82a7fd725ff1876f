"""Sliding thresholds, by the seconds of several workers: some of their reports are late, or lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loadgen.control.tables.run_measurements import MetricsSnapshot
from loadgen.metrics.interval import KEY as JUDGED
from loadgen.metrics.interval import ThresholdSecond, judged_data
from loadgen.metrics.live_metrics import LiveMetrics, LiveSecond
from loadgen.metrics.recorder import WindowState
from loadgen.metrics.tally import Tally
from loadgen.metrics.window import ALL_STATEMENTS, VERSION, dump
from loadgen.results.run_snapshot import WorkerHealth
from loadgen.scenario.model import Threshold
from orchestrator.lifecycle import RunEnding
from tests.unit.orchestrator_builders import live, merged, tally, view, window
from tests.unit.test_orchestrator_limits import FAST, SLOW, limits, threshold, told


class Fleet:
    """Workers that measure this many statements in each second; some of their reports are lost."""

    def __init__(self, *thresholds: Threshold, workers: int = 2) -> None:
        self.limits, self.progress = limits(*thresholds)
        self.names = [f"worker-{number}" for number in range(workers)]
        self.seconds: dict[str, list[LiveSecond]] = {name: [] for name in self.names}
        self.heard: dict[str, LiveMetrics] = {name: live() for name in self.names}

    def measure(self, ms: Sequence[float], length_s: float = 1.0) -> None:
        for own in self.seconds.values():
            number = round(sum(one.seconds for one in own) + length_s)
            own.append(told(number, {"s": tally(tuple(ms))}, length_s))

    def tick(self, silent: Sequence[str] = (), lost: Sequence[str] = (), *, ended: bool = False) -> RunEnding | None:
        """One look: beats carry the last ten seconds, those of silent workers none."""
        for name in set(self.names) - set(silent):
            known = self.seconds[name]
            ms = [10.0] * 50
            whole = window({"s": tally(tuple(ms) * len(known))}, seconds=float(len(known)), state=WindowState.OPEN)
            self.heard[name] = replace(live(whole), seconds=tuple(known[-10:]))
        alive = WorkerHealth.DONE if ended else WorkerHealth.ALIVE
        views = [
            view(WorkerHealth.DEAD if name in lost else alive, number=number, live=self.heard[name])
            for number, name in enumerate(self.names)
        ]
        self.progress.note(views)
        return self.limits.check(views, float(len(self.seconds[self.names[0]])))

    def store(self) -> None:
        """All that was measured, in the snapshots."""
        self.progress.seconds.add_stored(
            [
                snapshot(name, dump({"version": VERSION, JUDGED: judged_data(one.judged)}))
                for name, own in self.seconds.items()
                for one in own
                if one.judged is not None
            ]
        )


def snapshot(worker_id: str, custom: str) -> MetricsSnapshot:
    columns: dict[str, Any] = dict.fromkeys(MetricsSnapshot.__slots__)
    return MetricsSnapshot(**{**columns, "snapshot_id": "s", "worker_id": worker_id, "custom_metrics": custom})


def test_a_worker_with_late_heartbeats_lowers_no_rate():
    fleet = Fleet(threshold("qps > 80", window_s=5.0, abort=True))

    for number in range(1, 31):
        fleet.measure((10.0,) * 50)
        assert fleet.tick(silent=["worker-1"] if 10 <= number < 18 else ()) is None

    (checked,) = fleet.limits.final(fleet.progress.merged)
    assert checked.value == pytest.approx(100.0)
    assert fleet.progress.seconds.closed == 30


def test_a_second_is_judged_when_every_worker_has_reported_it_or_was_lost():
    fleet = Fleet(threshold("qps > 80", window_s=5.0, abort=True))
    for _ in range(10):
        fleet.measure((10.0,) * 50)
        fleet.tick()
    for _ in range(5):
        fleet.measure((10.0,) * 50)
        assert fleet.tick(silent=["worker-1"]) is None
    assert fleet.progress.seconds.closed == 10

    ending = fleet.tick(silent=["worker-1"], lost=["worker-1"])

    assert ending is not None  # half of the load is not there
    assert fleet.progress.seconds.closed == 15


def test_seconds_during_an_outage_of_the_control_plane_are_judged_by_the_snapshots():
    fleet = Fleet(threshold("p50 < 50ms", window_s=5.0, abort=True))
    for _ in range(5):
        fleet.measure(FAST)
        assert fleet.tick() is None
    for number in range(25):
        fleet.measure(SLOW if 4 <= number < 11 else FAST)
    assert fleet.tick() is None  # beats bring the last ten seconds: nothing is decided about those before
    assert fleet.progress.seconds.missing_since_s(fleet.names) == 5.0

    fleet.store()

    ending = fleet.tick()
    assert ending is not None
    assert ending.reason.startswith("p50 < 50ms in every 5 s was not met (89.9")
    (checked,) = fleet.limits.final(fleet.progress.merged)
    assert not checked.passed


@pytest.mark.parametrize("abort", [False, True])
@pytest.mark.parametrize("ms", [FAST, SLOW, (), (10.0, 90.0)], ids=["met", "missed", "nothing ended", "too few"])
@pytest.mark.parametrize("check", ["p99 < 50ms", "qps > 80"])
def test_the_result_names_the_span_or_the_whole_measurement(check, ms, abort):
    fleet = Fleet(threshold(check, window_s=2.5, abort=abort), threshold("p50 < 50ms"))
    told_s = []
    for _ in range(4):
        fleet.measure(ms)
        fleet.tick()
        told_s.append([one.window_s for one in fleet.limits.current()])

    span_s = None if not ms and check != "qps > 80" else 3.0  # spans have whole seconds
    assert told_s == [[None, None], [None, None], [span_s, None], [span_s, None]]


def test_seconds_that_were_never_stored_do_not_stop_the_judging():
    fleet = Fleet(threshold("qps > 10", window_s=2.0, abort=True))
    for name, own in fleet.seconds.items():
        own.extend(told(number, {"s": tally()}) for number in range(1, 21) if name == "worker-0" or number > 3)

    fleet.store()

    assert fleet.tick() is None
    assert fleet.progress.seconds.closed == 20


def test_the_last_seconds_are_judged_after_the_end():
    fleet = Fleet(threshold("p50 < 50ms", window_s=3.0))
    for ms in (FAST, FAST, FAST, SLOW, SLOW, SLOW):
        fleet.measure(ms)
    fleet.tick(silent=["worker-1"])

    fleet.store()

    assert [checked.passed for checked in fleet.limits.complete(merged(seconds=6.0), {}, 6.0)] == [False]


def test_a_longer_second_is_divided_by_its_length():
    fleet = Fleet(threshold("qps > 80", window_s=4.0, abort=True), workers=1)
    for _ in range(4):
        fleet.measure((10.0,) * 100)
        assert fleet.tick() is None
    fleet.measure((10.0,) * 300, length_s=3.0)
    for _ in range(4):
        fleet.measure((10.0,) * 100)
        assert fleet.tick() is None

    (checked,) = fleet.limits.final(fleet.progress.merged)
    assert checked.value == pytest.approx(100.0)


def test_what_a_leader_missed_of_workers_that_have_ended_is_judged_by_the_snapshots() -> None:
    """Their last heartbeats carry the last ten seconds only."""
    fleet = Fleet(threshold("max < 50ms", window_s=2.0))
    for number in range(1, 31):
        fleet.measure(SLOW if number == 15 else FAST)
        fleet.tick(silent=fleet.names if 10 < number < 30 else (), ended=number == 30)

    fleet.store()

    (checked,) = fleet.limits.complete(merged(seconds=30.0), dict.fromkeys(fleet.names, 30.0), 30.0)
    assert (checked.passed, checked.undecided) == (False, False)


@pytest.mark.parametrize(("lost", "text"), [(range(8, 13), "p95 < 50ms"), (range(20, 21), "max < 1s"), ((), "")])
def test_a_span_that_a_worker_did_not_report_is_not_known_to_have_been_met(lost: Sequence[int], text: str) -> None:
    """What was slow in these seconds is neither in its heartbeats nor in its snapshots."""
    fleet = Fleet(threshold(text or "p95 < 50ms", window_s=5.0))
    for _ in range(20):
        fleet.measure(FAST)
    fleet.seconds["worker-1"] = [
        one for number, one in enumerate(fleet.seconds["worker-1"], start=1) if number not in lost
    ]
    fleet.store()

    (checked,) = fleet.limits.complete(merged(seconds=20.0), dict.fromkeys(fleet.names, 20.0), 20.0)

    assert (checked.passed, checked.undecided) == (not lost, bool(lost))
    assert checked.unmeasured == (
        f"undecided: {text} in every 5 s cannot be judged: worker-1 did not report {len(lost):.1f} of its 20.0 s"
        if lost
        else ""
    )


@example({10, 20, 30}, set(), 0.6)
@given(st.sets(st.integers(1, 39)), st.sets(st.integers(1, 40)), st.floats(0.51, 0.99))
def test_an_interval_that_ends_late_is_no_gap(late: set[int], silent: set[int], late_s: float) -> None:
    """A late collection ends in the middle of a second, and the next one at its end. Both parts count."""
    fleet = Fleet(threshold("p95 < 50ms", window_s=5.0), workers=1)
    ends = sorted({float(number) for number in range(1, 41) if number not in late} | {one + late_s for one in late})
    for from_s, until_s in pairwise([0.0, *ends]):
        fleet.seconds["worker-0"].append(part(from_s, until_s))
        fleet.tick(silent=fleet.names if round(until_s) in silent else ())
        fleet.store()

    (checked,) = fleet.limits.complete(merged({"s": tally(FAST)}, seconds=ends[-1]), {"worker-0": ends[-1]}, 40.0)

    assert (checked.passed, checked.unmeasured) == (True, "")


def test_a_measurement_that_begins_late_is_judged_to_its_end() -> None:
    fleet = Fleet(threshold("p95 < 50ms", window_s=5.0))
    for own in fleet.seconds.values():
        own.extend(part(max(number - 1.0, 1.5), float(number)) for number in range(2, 20))
        own.append(part(19.0, 20.0, SLOW))
    fleet.store()

    (checked,) = fleet.limits.complete(merged({"s": tally(FAST)}, seconds=18.5), dict.fromkeys(fleet.names, 18.5), 20.0)

    assert (checked.passed, checked.undecided) == (False, False)


def part(from_s: float, until_s: float, ms: tuple[float, ...] = FAST) -> LiveSecond:
    """The part of a heartbeat about an interval that does not end at a whole second."""
    counted = ThresholdSecond.of(Tally(statements={"s": tally(ms)}), {ALL_STATEMENTS}, from_s=from_s, until_s=until_s)
    return replace(told(1, {}), seconds=until_s - from_s, judged=counted)


def drained(until_s: float, **seconds: tuple[float, ...]) -> ThresholdSecond:
    """What ended in an interval of the drain, by the second in which it started: second_3=(…)."""
    tallies = {int(name.removeprefix("second_")): Tally(statements={"s": tally(ms)}) for name, ms in seconds.items()}
    return ThresholdSecond.of_drain(tallies, {ALL_STATEMENTS}, until_s=until_s)


def test_statements_that_end_in_the_drain_count_in_the_second_in_which_they_started():
    fleet = Fleet(threshold("p95 < 50ms", window_s=5.0), threshold("qps < 101", window_s=5.0))
    for _ in range(20):
        fleet.measure((10.0,) * 50)
        fleet.tick()
    whole = merged({"s": tally((10.0,) * 2_000)}, seconds=20.0)
    assert [one.passed for one in fleet.limits.final(whole)] == [True, True]

    slow = drained(32.0, second_16=(12_000.0,) * 20, second_17=(12_000.0,) * 20, second_20=(12_000.0,) * 5)
    for worker_id in fleet.names:  # by a beat, and by a snapshot: counted once
        fleet.progress.seconds.add(worker_id, slow)
        fleet.progress.seconds.add_stored([snapshot(worker_id, dump({"version": VERSION, JUDGED: judged_data(slow)}))])

    late, rate = fleet.limits.complete(whole, {}, 20.0)

    assert not late.passed
    assert late.value == pytest.approx(12_000.0, rel=0.02)
    assert rate.passed  # a rate is one of what ended
    spans = [fleet.progress.seconds.span(5.0, None, until=number) for number in (15, 20)]
    assert [span and span.counts.succeeded for span in spans] == [2 * 5 * 50, 2 * (5 * 50 + 45)]


def test_statements_started_before_the_kept_seconds_are_not_lost():
    fleet = Fleet(threshold("max < 50ms", window_s=2.0), workers=1)
    for _ in range(400):
        fleet.measure((10.0,))
        fleet.tick()
    fleet.progress.seconds.add("worker-0", drained(410.0, second_1=(400_000.0,)))

    (checked,) = fleet.limits.complete(merged({"s": tally((10.0,) * 400)}, seconds=400.0), {}, 400.0)

    assert not checked.passed


@given(closed_s=st.floats(0.001, 0.5), ended_s=st.floats(0.0, 0.5))
def test_a_statement_that_ends_around_the_end_of_the_measurement_is_judged(closed_s: float, ended_s: float) -> None:
    """The last second may be closed before the interval in which the measurement ends is reported."""
    fleet = Fleet(threshold("max < 50ms", window_s=1.0), workers=1)
    for _ in range(20):
        fleet.measure((10.0,))
        fleet.tick()
    slow, until_s = (3_000.0,), 20.0 + closed_s
    rest = part(20.0, until_s, slow if ended_s <= closed_s else ()).judged
    assert rest is not None
    fleet.progress.seconds.add(
        "worker-0", replace(rest, drained=drained(21.0, second_17=slow).drained if ended_s > closed_s else {})
    )

    (checked,) = fleet.limits.complete(merged({"s": tally((10.0,) * 20)}, seconds=until_s), {}, until_s)

    assert not checked.passed
