"""Workers that end before the run: what they measured counts, and no threshold waits for the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from loadgen.control.session import ControlSession
from loadgen.control.tables import run_measurements
from loadgen.control.tables.run_measurements import MetricsSnapshot
from loadgen.metrics.interval import KEY as JUDGED
from loadgen.metrics.interval import judged_data
from loadgen.metrics.recorder import WindowState
from loadgen.metrics.window import VERSION, WindowResult, dump
from loadgen.model.run import WorkerStatus
from loadgen.results.run_snapshot import WorkerHealth, WorkerSnapshot
from loadgen.scenario.model import Threshold
from loadgen.scenario.settings import GuardrailSettings, TimingSettings
from orchestrator.aggregation import BACKFILL_PERIOD_S, RunAggregator, SnapshotBackfill
from orchestrator.guardrails import LimitMonitor
from tests.unit.orchestrator_builders import end, live, tally, view, window
from tests.unit.test_orchestrator_limits import FAST, SLOW, threshold, told
from tests.unit.test_orchestrator_sliding import snapshot

COMPLETED: dict[str, Any] = {"health": WorkerHealth.DONE, "status": WorkerStatus.COMPLETED}
EXITED: dict[str, Any] = {"ended": end("worker-1", 0)}
DEAD: dict[str, Any] = {"health": WorkerHealth.DEAD}
OPEN = WindowState.OPEN


def watching(limit: Threshold, *views: WorkerSnapshot) -> tuple[LimitMonitor, RunAggregator]:
    progress = RunAggregator([limit], {"peak": 2})
    progress.note(views)
    return LimitMonitor([limit], GuardrailSettings(), TimingSettings(), progress), progress


@pytest.mark.parametrize("gone", [COMPLETED, EXITED, DEAD], ids=["completed", "exited", "dead"])
@pytest.mark.parametrize("check", ["p95 < 50ms", "peak.p95 < 50ms", "qps > 80", "peak.qps > 80"])
@pytest.mark.parametrize("left_s", [0.0, 0.4, 10.0])
def test_a_worker_that_has_ended_keeps_no_threshold_from_ending_the_run(
    gone: dict[str, Any], check: str, left_s: float
) -> None:
    """It measured nothing, a moment, or the first stage: less than a second of the run or of the peak."""
    calm = window({"s": tally(FAST * 10)}, seconds=10.0, step_id=1, window_id=1)
    peak = window({"s": tally(SLOW * 10)}, seconds=10.0, step_id=2, window_id=2, state=OPEN)
    own: list[WindowResult] = [replace(calm, seconds=left_s)] if left_s else []
    views = [view(live=live(calm, peak)), view(number=1, live=live(*own))]
    monitor, progress = watching(threshold(check, abort=True), *views)
    needed = left_s < 1.0 or check.startswith("peak")
    assert (monitor.check(views, 20.0) is None) or not needed

    views = [views[0], view(number=1, live=live(*own), **gone)]
    progress.note(views)

    assert monitor.check(views, 20.0) is not None


@pytest.mark.parametrize("is_over", [True, False])
@pytest.mark.parametrize("is_stored", [True, False])
def test_a_gap_of_an_ended_worker_that_no_snapshot_fills_holds_nothing_back(
    is_over: bool, is_stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats 6 to 10 did not arrive. A worker that could not store its snapshots has spooled them."""
    limit = threshold("p95 < 50ms", window_s=3.0, abort=True)
    lost = [told(number, {"s": tally(SLOW)}) for number in range(6, 11)]
    rows: list[MetricsSnapshot] = [
        snapshot("worker-1", dump({"version": VERSION, JUDGED: judged_data(one.judged)})) for one in lost if one.judged
    ]
    monkeypatch.setattr(run_measurements, "newest_snapshots", lambda *_: rows if is_stored else [])
    seconds = [told(number, {"s": tally(FAST)}) for number in (*range(1, 6), *range(11, 16))]
    whole = window({"s": tally(FAST * 10)}, seconds=15.0)
    left = view(number=1, live=replace(live(whole), seconds=tuple(seconds)), **(COMPLETED if is_over else {}))
    every = tuple(told(number, {"s": tally(FAST)}) for number in range(1, 21))
    views = [view(live=replace(live(window({"s": tally(FAST * 20)}, seconds=20.0, state=OPEN)), seconds=every)), left]
    monitor, progress = watching(limit, *views)
    backfill = SnapshotBackfill(cast(ControlSession, None), "run", progress.seconds)
    assert monitor.check(views, 20.0) is None
    assert progress.seconds.closed == 5

    backfill.fill(views, now_s=BACKFILL_PERIOD_S, measured_s=20.0)

    ending = monitor.check(views, 20.0)
    assert (ending is not None) is is_stored
    assert progress.seconds.closed == (20 if is_over else 15 if is_stored else 5)
    (checked,) = monitor.complete(progress.merged, {"worker-0": 20.0, "worker-1": 15.0}, 20.0)
    assert (checked.passed, checked.undecided) == (False, not is_stored)
