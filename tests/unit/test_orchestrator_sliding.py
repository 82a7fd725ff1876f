"""Thresholds over a span, by the seconds of several workers: some of what they say is late, or lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from loadgen.control.worker_metrics_snapshots import Snapshot
from loadgen.metrics.document import VERSION, dump
from loadgen.metrics.judged import KEY as JUDGED
from loadgen.metrics.judged import judged_data
from loadgen.metrics.live import Live, LiveSecond
from loadgen.metrics.windows import WindowState
from loadgen.scenario.scenario import Threshold
from orchestrator.course import Ending
from orchestrator.crew import Health
from tests.unit.orchestrator_builders import live, merged, tally, view, window
from tests.unit.test_orchestrator_limits import FAST, SLOW, limits, threshold, told


class Fleet:
    """Workers that measure so many statements in each second; some of what they say is lost on the way."""

    def __init__(self, *thresholds: Threshold, workers: int = 2) -> None:
        self.limits, self.progress = limits(*thresholds)
        self.names = [f"worker-{number}" for number in range(workers)]
        self.seconds: dict[str, list[LiveSecond]] = {name: [] for name in self.names}
        self.heard: dict[str, Live] = {name: live() for name in self.names}

    def measure(self, ms: Sequence[float], length_s: float = 1.0) -> None:
        for own in self.seconds.values():
            number = round(sum(one.seconds for one in own) + length_s)
            own.append(told(number, {"s": tally(tuple(ms))}, length_s))

    def tick(self, silent: Sequence[str] = (), lost: Sequence[str] = ()) -> Ending | None:
        """One look: beats carry the last ten seconds, those of silent workers none."""
        for name in set(self.names) - set(silent):
            known = self.seconds[name]
            ms = [10.0] * 50
            whole = window({"s": tally(tuple(ms) * len(known))}, seconds=float(len(known)), state=WindowState.OPEN)
            self.heard[name] = replace(live(whole), seconds=tuple(known[-10:]))
        crew = [
            view(Health.DEAD if name in lost else Health.ALIVE, number=number, live=self.heard[name])
            for number, name in enumerate(self.names)
        ]
        self.progress.note(crew)
        return self.limits.look(crew, float(len(self.seconds[self.names[0]])))

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


def snapshot(worker_id: str, custom: str) -> Snapshot:
    columns: dict[str, Any] = dict.fromkeys(Snapshot.__slots__)
    return Snapshot(**{**columns, "snapshot_id": "s", "worker_id": worker_id, "custom_metrics": custom})


def test_a_worker_whose_beats_hang_lowers_no_rate():
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


def test_what_happened_while_the_control_plane_was_away_is_judged_by_the_snapshots():
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
    assert ending.reason.startswith("p50 < 50ms was not met (89.9")
    (checked,) = fleet.limits.final(fleet.progress.merged)
    assert not checked.passed


def test_what_was_never_stored_stops_no_judging():
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

    assert [checked.passed for checked in fleet.limits.complete(merged(seconds=6.0))] == [False]


def test_a_second_that_took_longer_is_divided_by_its_length():
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
