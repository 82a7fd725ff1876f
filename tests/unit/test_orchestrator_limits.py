"""Limits while a run measures: thresholds over the whole and over sliding spans, guardrails of client and cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple, cast

import pytest

from loadgen.control.session import ControlFailed
from loadgen.errors import RunFailed
from loadgen.metrics.interval import ThresholdSecond
from loadgen.metrics.live_metrics import LiveSecond
from loadgen.metrics.recorder import WindowState
from loadgen.metrics.tally import StatementTally, Tally
from loadgen.metrics.window import ALL_STATEMENTS, merge
from loadgen.model.counts import ErrorCategory
from loadgen.model.run import Phase, RunStatus, WorkerStatus
from loadgen.model.threshold import parse_threshold
from loadgen.model.warehouse import WarehouseKind
from loadgen.results.run_snapshot import WorkerHealth, WorkerSnapshot
from loadgen.scenario.model import Load, Threshold
from loadgen.scenario.settings import GuardrailAction, GuardrailSettings, TimingSettings
from loadgen.snowflake.failure import Failure
from orchestrator.aggregation import RunAggregator, RunSeconds
from orchestrator.guardrails import CONSECUTIVE_BREACHES, WAREHOUSE_UNSEEN_MAX_S, LimitMonitor
from orchestrator.leader import Leader
from orchestrator.lifecycle import RunEnding
from orchestrator.warehouse import CreditMeter, WarehousePoller
from tests.fake_clock import FakeClock
from tests.unit.orchestrator_builders import end, live, tally, view, window
from tests.unit.worker_builders import scenario

FAST, SLOW = (10.0,) * 50, (90.0,) * 50  # a second of statements


class Cost(NamedTuple):
    """Of a warehouse."""

    credits: float
    unseen_s: float


def limits(*thresholds: Threshold, **guardrails: Any) -> tuple[LimitMonitor, RunAggregator]:
    progress = RunAggregator(thresholds)
    return LimitMonitor(thresholds, GuardrailSettings(**guardrails), TimingSettings(), progress), progress


def threshold(text: str, **more: Any) -> Threshold:
    return Threshold(check=parse_threshold(text), **more)


def told(number: int, statements: Mapping[str, StatementTally], length_s: float = 1.0) -> LiveSecond:
    """The part of a heartbeat about one second, for sliding thresholds."""
    counted = Tally(statements=statements)
    names = {ALL_STATEMENTS, *statements}
    judged = ThresholdSecond.of(counted, names, from_s=number - length_s, until_s=float(number))
    return LiveSecond(
        ended_at=datetime.fromisoformat("2026-11-17T02:00:00"),
        seconds=length_s,
        phase=Phase.MEASUREMENT,
        executing=1,
        statements={},
        times={},
        judged=judged,
    )


def second(number: int, ms: Sequence[float], last: Sequence[float]) -> WorkerSnapshot:
    """A worker after this many seconds; everything so far took `ms`, what ended in the last second `last`."""
    now = live(window({"s": tally(tuple(ms))}, seconds=float(number)))
    return view(live=replace(now, seconds=(told(number, {"s": tally(tuple(last))}),)))


def led(
    thresholds: Sequence[Threshold], seconds: Sequence[tuple[float, ...]], **more: Any
) -> tuple[LimitMonitor, list[int]]:
    """Look after every second of a run; the seconds at which it would have been ended."""
    watching, progress = limits(*thresholds, **more)
    so_far: tuple[float, ...] = ()
    ended = []
    for number, ms in enumerate(seconds, start=1):
        so_far += ms
        views = [second(number, so_far, ms)]
        progress.note(views)
        if watching.check(views, float(number)) is not None:
            ended.append(number)
    return watching, ended


def test_a_threshold_over_the_whole_is_judged_by_all_samples_so_far():
    watching, ended = led([threshold("p95 < 50ms", abort=True)], [FAST] * 10 + [SLOW] * 2)

    assert ended == [11, 12]  # a slow second is more than one in twenty
    assert [checked.passed for checked in watching.current()] == [False]


def test_a_sliding_threshold_is_judged_by_its_span_and_keeps_the_worst():
    calm = [FAST] * 10
    watching, ended = led([threshold("p50 < 50ms", window_s=3.0, abort=True)], calm + [SLOW] * 2 + calm)

    assert ended == [12, 13]  # two of the three seconds before were slow
    (checked,) = watching.final(RunAggregator([]).merged)
    assert not checked.passed
    assert checked.value == pytest.approx(90.0, rel=0.02)


def test_of_a_rate_the_lowest_span_is_the_worst():
    watching, ended = led([threshold("qps > 30", window_s=2.0)], [FAST] * 4 + [FAST[:5]] * 2 + [FAST] * 4)

    (checked,) = watching.current()
    assert not ended  # it does not abort
    assert not checked.passed
    assert checked.value == pytest.approx(5.0)


def test_a_span_in_which_nothing_ended_has_a_rate_of_zero():
    _, ended = led([threshold("qps > 10", window_s=2.0, abort=True)], [FAST] * 4 + [()] * 2)

    assert ended == [6]


@pytest.mark.parametrize(
    ("text", "passed"), [("error_rate < 50%", True), ("max < 60s", True), ("max < 5s", False), ("p50 < 5s", True)]
)
def test_a_span_in_which_nothing_ended_decides_no_time_and_no_error_rate(text, passed):
    """What was in flight counts where it ends: the second after the pause."""
    watching, _ = led([threshold(text, window_s=2.0)], [FAST] * 4 + [()] * 5 + [(6_000.0, *FAST)] * 1 + [FAST] * 2)

    (checked,) = watching.current()
    assert (checked.passed, checked.undecided, checked.value is None) == (passed, False, False)


def test_without_any_ended_statement_the_threshold_is_missed():
    watching, _ = led([threshold("max < 60s", window_s=2.0)], [()] * 6)

    (checked,) = watching.current()
    assert (checked.passed, checked.value) == (False, None)


def test_a_span_with_too_few_samples_ends_no_run_and_is_undecided_at_the_end():
    few = (10.0, 20.0, 90.0)
    watching, ended = led([threshold("p99 < 50ms", window_s=2.0, abort=True)], [few] * 10)

    assert not ended
    (checked,) = watching.current()
    assert (checked.passed, checked.undecided, checked.value) == (False, True, None)
    expected = "too few samples for p99 of all statements: 6, at least 100 are needed to decide p99 < 50ms"
    assert checked.too_few == f"{expected}, in each span of 2 s"


@pytest.mark.parametrize(
    ("seconds", "passed", "too_few"),
    [
        ([FAST] * 4 + [(10.0, 90.0)] * 2, False, True),  # the last span may have failed
        ([(10.0, 90.0)] * 2 + [SLOW] * 4, False, False),  # one certainly has
        ([FAST] * 4 + [(10.0, 20.0)] * 2, True, False),  # every sample of every span is below
    ],
)
def test_the_worst_span_is_one_that_failed_before_one_that_is_undecided(seconds, passed, too_few):
    watching, _ = led([threshold("p99 < 50ms", window_s=2.0)], seconds)

    (checked,) = watching.current()
    assert (checked.passed, bool(checked.too_few)) == (passed, too_few)


def test_before_its_time_nothing_is_judged():
    _, ended = led([threshold("p95 < 50ms", after_s=5.0, abort=True)], [SLOW] * 6)

    assert ended == [5, 6]


def test_a_span_longer_than_the_measurement_is_judged_by_the_whole_at_the_end():
    watching, ended = led([threshold("p50 < 50ms", window_s=60.0, abort=True)], [SLOW] * 4)

    assert not ended
    assert [(checked.passed, checked.window_s) for checked in watching.current()] == [(False, None)]


def test_a_threshold_of_one_statement_slides_too():
    seconds = RunSeconds([threshold("a.p50 < 50ms", window_s=1.0)])
    for number, ms in enumerate((FAST, FAST + SLOW), start=1):
        seconds.note([view(live=replace(live(), seconds=(told(number, {"a": tally(ms), "b": tally()}),)))])
        seconds.close(number)

    found = seconds.span(1.0, "a")

    assert found is not None
    assert (found.counts.succeeded, found.statement_qps) == (100, {"a": 100.0})


@pytest.mark.parametrize("text", ["slow.p95 < 1s", "slow.error_rate < 1%", "slow.qps > 1"])
@pytest.mark.parametrize("other", [{}, {"slow": tally(FAST)}], ids=["alone", "beside a worker with room"])
def test_a_statement_that_a_heartbeat_had_no_room_for_is_undecided(text, other):
    watching, progress = limits(threshold(text, abort=True))
    folded = live(window({ALL_STATEMENTS: tally()}, seconds=20.0, state=WindowState.OPEN))
    views = [view(live=folded), view(number=1, live=live(window(other, seconds=20.0, state=WindowState.OPEN)))]
    progress.note(views)

    assert watching.check(views, 20.0) is None
    (checked,) = watching.complete(progress.merged, {}, 20.0)
    assert (checked.passed, checked.undecided, checked.unmeasured != "") == (False, True, True)


@pytest.mark.parametrize(
    ("text", "ended"),
    [
        ("queries > 200", []),
        ("queries == 200", [5, 6]),  # 250 can never become 200
        ("queries < 200", [4, 5, 6]),
        ("max > 5s", []),
        ("min < 5ms", []),
        ("min > 50ms", [1, 2, 3, 4, 5, 6]),
        ("qps > 60", [1, 2, 3, 4, 5, 6]),
    ],
)
def test_a_count_that_still_grows_aborts_nothing(text, ended):
    assert led([threshold(text, abort=True)], [FAST] * 6)[1] == ended


def test_a_lower_bound_that_decides_nothing_aborts_nothing():
    watching, progress = limits(threshold("max < 1m", abort=True), threshold("p95 < 50s", abort=True))
    slow = {"s": tally((10.0,) * 10, timed_out_ms=(30_000.0,) * 10)}
    views = [view(live=live(window(slow, seconds=20.0, state=WindowState.OPEN)))]
    progress.note(views)

    assert watching.check(views, 20.0) is None
    assert [checked.passed for checked in watching.current()] == [False, False]


def test_stored_windows_are_kept():
    progress = RunAggregator([])
    progress.note([view(live=live(window(window_id=1, step_id=1), window(window_id=2, step_id=2, seconds=5.0)))])
    progress.note([view(live=live(window(window_id=2, step_id=2, seconds=6.0)))])  # the first was stored meanwhile

    assert progress.merged.counts.succeeded == 200
    assert progress.measured_s("worker-0") == 16.0
    assert [len(own) for own in progress.step(1)] == [1]


def test_warm_up_is_not_measured():
    progress = RunAggregator([])
    progress.note([view(live=live(window(phase=Phase.WARMUP)))])

    assert progress.merged.counts.succeeded == 0


# --- guardrails ------------------------------------------------------------------------------------------------------


def looks(watching: LimitMonitor, times: int, views: list[WorkerSnapshot]) -> list[RunEnding | None]:
    return [watching.check(views, 1.0) for _ in range(times)]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"cpu_percent": 91.0}, "worker-0 uses more than 90 % of its core"),
        ({"memory_percent": 86.0}, "worker-0 uses more than 85 % of the memory"),
    ],
)
def test_a_guardrail_of_the_client_ends_the_run_or_warns(said, reason):
    views = [view(**said)]
    aborting, _ = limits(action=GuardrailAction.ABORT)
    warning, _ = limits(action=GuardrailAction.WARN)

    *before, last = looks(aborting, CONSECUTIVE_BREACHES, views)
    assert before == [None] * (CONSECUTIVE_BREACHES - 1)
    assert last is not None
    assert (last.status, last.reason, last.stop) == (RunStatus.FAILED, reason, "guardrail")
    assert looks(warning, 2 * CONSECUTIVE_BREACHES, views) == [None] * 2 * CONSECUTIVE_BREACHES
    assert warning.warnings.count(reason) == 1


def test_a_guardrail_tolerates_a_busy_second():
    watching, _ = limits(action=GuardrailAction.ABORT)

    for _ in range(3):
        assert looks(watching, CONSECUTIVE_BREACHES - 1, [view(cpu_percent=99.0)]) == [None] * (
            CONSECUTIVE_BREACHES - 1
        )
        assert looks(watching, 1, [view(cpu_percent=1.0)]) == [None]


def test_a_rather_busy_worker_causes_a_warning():
    watching, _ = limits(action=GuardrailAction.ABORT)

    assert looks(watching, CONSECUTIVE_BREACHES, [view(cpu_percent=61.0)]) == [None] * CONSECUTIVE_BREACHES
    assert watching.warnings == ["worker-0 uses more than 60 % of its core: more workers would be safer"]


@pytest.mark.parametrize(
    "gone", [view(WorkerHealth.DONE, WorkerStatus.COMPLETED, cpu_percent=99.0), view(ended=end(), cpu_percent=99.0)]
)
def test_a_worker_that_has_ended_is_not_busy(gone):
    watching, _ = limits(action=GuardrailAction.ABORT)

    assert looks(watching, 2 * CONSECUTIVE_BREACHES, [gone]) == [None] * 2 * CONSECUTIVE_BREACHES
    assert watching.warnings == []


@pytest.mark.parametrize("action", list(GuardrailAction))
def test_the_cost_limit_ends_the_run_whatever_the_client_may_do(action):
    watching, _ = limits(action=action, max_credits=0.5)
    unlimited, _ = limits(action=action)

    assert watching.cost(Cost(0.49, WAREHOUSE_UNSEEN_MAX_S)) is None
    assert watching.cost(None) is None, "no warehouse is named"
    ending = watching.cost(Cost(0.5, 0.0))
    assert ending is not None
    assert (ending.status, ending.stop) == (RunStatus.FAILED, "guardrail")
    assert ending.reason == "the warehouse has cost 0.5 credits or more, which is guardrails.max_credits"
    blind = watching.cost(Cost(0.0, WAREHOUSE_UNSEEN_MAX_S + 1))
    assert blind is not None
    assert "could not be observed for 61 s" in blind.reason
    assert unlimited.cost(Cost(1e9, 1e9)) is None


def test_the_cost_ends_a_run_whose_control_plane_does_not_answer():
    limited = replace(scenario(Load(connections=1, workers=1)), guardrails=GuardrailSettings(max_credits=0.5))
    none: Any = None  # nothing is sent to the control plane, or to workers
    leader = Leader("run", limited, none, session=none, lease_session=none, clock=FakeClock())
    away = ControlFailed("no answer", Failure(category=ErrorCategory.CONNECTION, retryable=True))
    leader.warehouse_poller = cast(WarehousePoller, Cost(0.4, 0.0))
    leader._tick_failed(away)

    leader.warehouse_poller = cast(WarehousePoller, Cost(0.5, 0.0))
    with pytest.raises(RunFailed, match=r"guardrails\.max_credits; the control plane has been unreachable for 0 s"):
        leader._tick_failed(away)


def test_the_meter_counts_clusters_by_size_and_time():
    meter, second_ns = CreditMeter(), 10**9
    meter.observe("Medium", WarehouseKind.GEN1, 2, 0)
    assert meter.credits == 0.0
    meter.observe("X-Small", WarehouseKind.GEN1, 1, 1_800 * second_ns)
    meter.observe(None, WarehouseKind.GEN1, 1, 5_400 * second_ns)
    meter.observe("X-Small", WarehouseKind.GEN1, 1, 9_000 * second_ns)  # an unknown size shows no cost: as before

    assert meter.credits == pytest.approx(2 * 4 / 2 + 2)
    assert meter.credits_at(9_000 * second_ns) == meter.credits
    assert meter.credits_at(12_600 * second_ns) == pytest.approx(meter.credits + 1)  # as when it was last seen
    assert CreditMeter().credits_at(12_600 * second_ns) == 0.0
    later = CreditMeter()
    later.observe("X-Small", WarehouseKind.GEN2, 2, 0)
    assert later.credits_at(3_600 * second_ns) == pytest.approx(2 * 1.35)


# --- stages ----------------------------------------------------------------------------------------------------------


def test_a_threshold_of_a_stage_sees_its_windows_only():
    thresholds = [threshold("calm.p95 < 50ms"), threshold("peak.p95 < 50ms", abort=True), threshold("p95 < 1s")]
    progress = RunAggregator(thresholds, {"calm": 1, "peak": 2})
    watching = LimitMonitor(thresholds, GuardrailSettings(), TimingSettings(), progress)
    calm = window({"s": tally(FAST)}, window_id=1, step_id=1)
    views = [view(live=live(calm))]
    progress.note(views)

    assert watching.check(views, 10.0) is None  # nothing is known of the other
    assert [checked.passed for checked in watching.current()] == [True, False, True]

    views = [view(live=live(calm, window({"s": tally(SLOW)}, window_id=2, step_id=2)))]
    progress.note(views)

    ending = watching.check(views, 20.0)
    assert ending is not None
    assert ending.reason.startswith("peak.p95 < 50ms was not met")
    assert [checked.passed for checked in watching.current()] == [True, False, True]


def test_a_stage_is_judged_once_every_worker_has_measured_it():
    thresholds = [threshold("peak.qps > 80", abort=True)]
    progress = RunAggregator(thresholds, {"peak": 2})
    watching = LimitMonitor(thresholds, GuardrailSettings(), TimingSettings(), progress)
    before = window({"s": tally(FAST * 10)}, seconds=10.0, window_id=1, step_id=1)

    def ending(*peak_s: float) -> RunEnding | None:
        peaks = [window({"s": tally((10.0,) * round(50 * s))}, seconds=s, window_id=2, step_id=2) for s in peak_s]
        views = [view(number=number, live=live(before, peak)) for number, peak in enumerate(peaks)]
        views += [view(number=number, live=live(before)) for number in range(len(peaks), 2)]
        progress.note(views)
        return watching.check(views, 10.0 + max(peak_s))

    assert ending(0.9) is None
    assert ending(5.0) is None  # the other worker's heartbeat hangs
    assert ending(5.0, 0.9) is None
    assert ending(5.0, 5.0) is None


def test_a_threshold_that_ended_the_run_stays_missed():
    aborting = threshold("p95 < 50ms", abort=True)
    watching, ended = led([aborting], [FAST] * 10 + [SLOW] * 2)

    (checked,) = watching.complete(merge([[window({"s": tally(FAST * 1000)}, seconds=20.0)]]), {}, 20.0)

    assert ended
    assert not checked.passed
