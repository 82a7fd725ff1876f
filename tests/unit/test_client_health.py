"""Whether the client limited the measurement: both sides of every limit, and the messages."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loadgen.metrics.histogram import Histogram
from loadgen.metrics.recorder import WindowState
from loadgen.metrics.window import ClientResourceUse, WindowResult
from loadgen.model.threshold import parse_threshold
from loadgen.rules.client_health import ClientHealth, ClientHealthByScope, ClientPart, judge_client, worst
from loadgen.rules.find_max_step import SloCheck
from loadgen.rules.thresholds import check_slo, check_threshold
from loadgen.rules.validity import undecided
from loadgen.scenario.model import Threshold
from loadgen.scenario.settings import GuardrailSettings, TimingSettings
from loadgen.units import NS_PER_MS
from orchestrator.aggregation import RunAggregator
from orchestrator.guardrails import LimitMonitor
from orchestrator.lifecycle import RunEnding
from orchestrator.run_result import MeasuredWindows, client_parts
from tests.unit.orchestrator_builders import live, merged, tally, view, window
from tests.unit.test_orchestrator_limits import told

VALID, WARNED, INVALID = "valid", "warned", "invalid"


def part(service_mean_ms: float | None = 20.0, where: str = "worker-0", **health: float) -> ClientPart:
    return ClientPart(where=where, health=ClientHealth(**health), service_mean_ms=service_mean_ms)  # type: ignore[arg-type]


def grade(*parts: ClientPart) -> str:
    verdict = judge_client(parts)
    assert verdict.health.saturated == bool(verdict.invalid)
    return INVALID if verdict.invalid else WARNED if verdict.warnings else VALID


@pytest.mark.parametrize(
    ("judged", "expected"),
    [
        (part(), INVALID),  # the worker reported nothing
        (part(cpu_percent_of_core=59.9), VALID),
        (part(cpu_percent_of_core=60.0), WARNED),
        (part(cpu_percent_of_core=84.9), WARNED),
        (part(cpu_percent_of_core=85.0), INVALID),
        # 3 % of 20 ms is 0.6 ms, 10 % is 2 ms
        (part(wakeup_mean_ms=0.6), VALID),
        (part(wakeup_mean_ms=0.61), WARNED),
        (part(wakeup_mean_ms=2.0), WARNED),
        (part(wakeup_mean_ms=2.01), INVALID),
        # more than a tenth, but less than a millisecond: no client is more precise
        (part(service_mean_ms=5.0, wakeup_mean_ms=1.0), WARNED),
        (part(service_mean_ms=5.0, wakeup_mean_ms=1.01), INVALID),
        # statements that take long may wait for their client
        (part(service_mean_ms=1_000.0, wakeup_mean_ms=29.0), VALID),
        (part(service_mean_ms=None, wakeup_mean_ms=500.0), VALID),  # nothing was measured, which is reported elsewhere
        (part(wakeup_p99_ms=400.0, wakeup_max_ms=499.0), VALID),  # a bound of percentiles, no reason by itself
        (part(gap_percent=1.0), VALID),
        (part(gap_percent=1.01), INVALID),
        # many short pauses, with any service time
        (part(2_000.0, paused_percent=1.0), VALID),
        (part(2_000.0, paused_percent=1.01), WARNED),
        (part(2_000.0, paused_percent=5.0), WARNED),
        (part(2_000.0, paused_percent=5.01), INVALID),
    ],
)
def test_each_limit(judged: ClientPart, expected: str) -> None:
    assert grade(judged) == expected


@pytest.mark.parametrize(
    ("others_cores", "shares_machine", "warned"), [(2.0, True, True), (2.0, False, False), (0.5, True, False)]
)
def test_a_server_without_a_free_core_is_a_warning(others_cores: float, shares_machine: bool, warned: bool) -> None:
    busy = part(cpu_percent_of_core=10.0, others_cores=others_cores, cores=2)

    verdict = judge_client([busy], shares_machine=shares_machine)

    assert verdict.invalid == ()
    assert any("the server shares a machine" in text for text in verdict.warnings) is warned


def test_one_busy_stage_is_enough() -> None:
    calm = part(where="worker-0 in stage 1", cpu_percent_of_core=10.0)
    busy = part(where="worker-0 in stage 2", cpu_percent_of_core=90.0)

    verdict = judge_client([calm, busy])

    (reason,) = verdict.invalid
    assert reason.startswith("the client was the limit: worker-0 in stage 2 used 90 % of its core (at most 85 %)")


def test_lateness_is_judged_by_the_service_time_of_the_same_stage() -> None:
    """5 ms are nothing beside 200 ms, and too much beside 10 ms; the mean of both stages would hide it."""
    assert grade(part(200.0, wakeup_mean_ms=5.0)) == VALID
    assert grade(part(200.0, wakeup_mean_ms=5.0), part(10.0, wakeup_mean_ms=5.0)) == INVALID


@pytest.mark.parametrize(
    ("judged", "advice"),
    [
        (part(cpu_percent_of_core=90.0, others_cores=1.0), "more workers would be safer"),
        (
            part(wakeup_mean_ms=9.0, others_cores=1.93, cores=2),
            "other processes use this machine: 1.9 of its 2 cores; end them, or run the workers elsewhere",
        ),
        (
            part(wakeup_mean_ms=9.0, others_cores=0.1, stolen_cores=0.37, cores=2),
            "the host of this virtual machine withheld 0.4 of its 2 cores (steal time); run the workers on a machine",
        ),
        (
            part(wakeup_mean_ms=9.0, others_cores=1.0, stolen_cores=0.37, cores=2),
            "other processes use this machine: 1.0",
        ),
        (part(wakeup_mean_ms=9.0, others_cores=0.0, stolen_cores=0.09, cores=2), "run fewer connections per worker"),
        (part(wakeup_mean_ms=9.0, others_cores=0.1, cores=2), "run fewer connections per worker"),
        (
            part(gap_percent=33.0, others_cores=0.5, stolen_cores=0.8, cores=2),
            "frozen container, or its host withheld its cores: 0.8 of 2 (steal time)",
        ),
        (
            part(gap_percent=33.0, others_cores=0.8, stolen_cores=0.8, cores=2),
            "no core to run on: other processes used 0.8 of 2, the host of this virtual machine withheld 0.8",
        ),
        (part(wakeup_mean_ms=9.0), "run fewer connections per worker"),
        (part(gap_percent=33.0), "was paused for 33.0 % of the time (at most 1 %)"),
        (
            part(gap_percent=33.0, others_cores=1.0, cores=2),
            "its process was stopped and continued: SIGSTOP, a suspended machine or a frozen container",
        ),
        (
            part(gap_percent=33.0, others_cores=1.9, cores=2),
            "frozen container, or had no core to run on: other processes used 1.9 of 2",
        ),
    ],
)
def test_the_message_contains_a_remedy(judged: ClientPart, advice: str) -> None:
    (reason,) = judge_client([judged]).invalid
    assert advice in reason
    assert ("other processes use this machine" in reason) == ("other processes use this machine" in advice)


def test_many_workers_with_the_same_trouble_are_not_all_listed() -> None:
    verdict = judge_client([part(where=f"worker-{number}", cpu_percent_of_core=99.0) for number in range(100)])

    assert len(verdict.invalid) == 6
    assert verdict.invalid[-1] == "the client had such a problem 95 more times"


def test_the_worst_of_each_is_shown() -> None:
    one, other = ClientHealth(cpu_percent_of_core=10.0, wakeup_p99_ms=9.0), ClientHealth(cpu_percent_of_core=70.0)

    assert worst([one, other, ClientHealth()]) == ClientHealth(cpu_percent_of_core=70.0, wakeup_p99_ms=9.0)
    assert worst([]) == ClientHealth()


# --- lateness over time ----------------------------------------------------------------------------------------------


def effect(*waits: tuple[float, int], gap_ms: int = 0) -> ClientResourceUse:
    """Of waits that were so late (ms) and took so long (ms)."""
    late, weights = (np.array(column) for column in zip(*waits, strict=True))
    histogram = Histogram.weighted((late * NS_PER_MS).astype(np.int64), weights.astype(np.int64))
    return ClientResourceUse(elapsed_ms=int(weights.sum()), gap_ms=gap_ms, late=histogram)


def test_a_pause_counts_for_as_long_as_it_took() -> None:
    """20 of 60 s stopped: one wake-up among eight hundred, and a third of the time."""
    paused = effect(*[(0.1, 50)] * 800, (20_000.0, 20_050), gap_ms=20_050)

    health = ClientHealth.of(paused)

    assert health.wakeup_mean_ms == pytest.approx(20_000 * 20_050 / 60_050, rel=0.01)
    assert health.wakeup_p99_ms == pytest.approx(20_000, rel=0.011)
    assert health.gap_percent == pytest.approx(100 * 20_050 / 60_050)
    assert health.paused_percent == pytest.approx(100 * 20_050 / 60_050)
    assert ClientHealth.of(effect(*[(0.1, 50)] * 1_200)).gap_percent == 0.0


def test_ninety_pauses_of_200_ms_in_a_minute_are_seen_beside_statements_of_two_seconds() -> None:
    """They add less than 3 % to the mean, and p95 is still theirs."""
    health = ClientHealth.of(effect(*[(0.1, 50)] * 795, *[(175.0, 225)] * 90))

    assert health.paused_percent == pytest.approx(33.75, rel=0.01)
    assert (health.wakeup_mean_ms or 0.0) < 0.03 * 2_000.0
    (reason,) = judge_client([ClientPart(where="worker-0", health=health, service_mean_ms=2_000.0)]).invalid
    assert "worker-0 was paused again and again, for 33.8 % of the time (at most 5 %)" in reason
    assert "SIGSTOP" in reason


def test_effects_of_windows_add() -> None:
    first, second = effect((1.0, 100)), effect((3.0, 300))

    both = first + second

    assert both.late_mean_ms == pytest.approx(2.5)
    assert both.elapsed_ms == 400
    assert ClientHealth.of(None) == ClientHealth.of(ClientResourceUse()) == ClientHealth()


# --- thresholds that the client leaves open --------------------------------------------------------------------------

LATE = ClientHealth(wakeup_mean_ms=2.0, wakeup_p99_ms=8.0, wakeup_max_ms=30.0)
FIFTY = merged({"s": tally((50.0,) * 100)})  # 100 statements of 50 ms in ten seconds: 10/s


def reasons(*texts: str, health: ClientHealth = LATE, open_loop: bool = False) -> list[str]:
    thresholds = [Threshold(check=parse_threshold(text)) for text in texts]
    checked = [check_threshold(threshold.check, FIFTY) for threshold in thresholds]
    return undecided(thresholds, checked, ClientHealthByScope(run=health), FIFTY, open_loop=open_loop)


@pytest.mark.parametrize(
    ("text", "is_open"),
    [
        ("p95 < 60ms", False),  # met
        ("p95 < 49ms", True),
        ("p95 < 42.1ms", True),
        ("p95 < 41.9ms", False),  # missed by more than the client can have added
        ("p50 <= 45ms", True),
        ("s.p99 < 45ms", True),
        ("service_p95 < 45ms", True),
        ("max < 21ms", True),
        ("max < 19ms", False),
        ("avg < 48.1ms", True),
        ("avg < 47.9ms", False),
        ("qps > 10.4", True),  # 2 of 50 ms: without them 10.417/s
        ("qps > 10.5", False),
        ("p95 > 51ms", False),  # the client made it longer, and still it is too short
        ("errors > 0", False),
        ("queries >= 101", False),
        ("lag_p99 < 1ms", False),  # nothing was measured
    ],
)
def test_a_threshold_missed_by_less_than_the_client_may_have_added_is_undecided(text: str, is_open: bool) -> None:
    found = reasons(text)

    assert bool(found) == is_open
    if is_open:
        assert found[0].startswith(f"undecided: {text} was missed with ")


@given(
    check=st.sampled_from(["p95 < 50ms", "p50 <= 50ms", "avg < 50ms", "max < 50ms", "qps > 12", "peak.p95 < 50ms"]),
    ms=st.floats(40.0, 70.0),
    late_ms=st.floats(0.0, 12.0),
    sliding=st.booleans(),
    open_loop=st.booleans(),
    calm_late_ms=st.floats(0.0, 100.0),
)
@example(check="p95 < 50ms", ms=51.0, late_ms=6.0, sliding=False, open_loop=False, calm_late_ms=0.0)
@example(check="p95 < 50ms", ms=51.0, late_ms=6.0, sliding=True, open_loop=False, calm_late_ms=0.0)
@example(check="p95 < 50ms", ms=51.0, late_ms=0.0, sliding=True, open_loop=True, calm_late_ms=0.0)
@example(check="peak.p95 < 50ms", ms=51.0, late_ms=0.0, sliding=False, open_loop=False, calm_late_ms=100.0)
@example(check="p95 < 50ms", ms=51.0, late_ms=0.0, sliding=False, open_loop=False, calm_late_ms=100.0)
def test_a_threshold_ends_a_run_when_it_was_certainly_missed(
    check: str, ms: float, late_ms: float, sliding: bool, open_loop: bool, calm_late_ms: float
) -> None:
    """Exactly when the result of the same measurement would be failed, and not undecided. How late the client was in
    another stage (`calm_late_ms`) matters to thresholds on the run only."""
    sliding = sliding and not check.startswith("peak")
    limit = Threshold(check=parse_threshold(check), abort=True, window_s=3.0 if sliding else None)

    ending, monitor, progress = watched(limit, ms, late_ms, calm_late_ms, open_loop=open_loop)

    checked = monitor.current()
    share = undecided([limit], checked, progress.client, progress.merged, open_loop=open_loop)
    assert (ending is not None) == (not checked[0].passed and not share)
    if check.startswith("peak"):
        assert ending == watched(limit, ms, late_ms, 0.0, open_loop=open_loop)[0]


def watched(
    limit: Threshold, ms: float, late_ms: float, calm_late_ms: float, *, open_loop: bool
) -> tuple[RunEnding | None, LimitMonitor, RunAggregator]:
    """The ending of a run with a stage before its peak, and who decided it."""
    progress = RunAggregator([limit], {"peak": 2})
    monitor = LimitMonitor([limit], GuardrailSettings(), TimingSettings(), progress, open_loop=open_loop)
    second = tally((ms,) * 10)
    calm = window({"s": tally(())}, seconds=0.0, step_id=1)
    peak = window({"s": reduce(add, [second] * 10)}, step_id=2, window_id=2, state=WindowState.OPEN)
    measured = live(
        replace(calm, client=effect((calm_late_ms, 10_000))), replace(peak, client=effect((late_ms, 10_000)))
    )
    seconds = tuple(told(number, {"s": second}) for number in range(1, 11))
    views = [view(live=replace(measured, seconds=seconds))]
    progress.note(views)
    return monitor.check(views, 10.0), monitor, progress


@given(
    check=st.sampled_from(["p95 < 50ms", "p50 <= 50ms", "s.p99 < 50ms", "avg < 50ms", "max < 50ms"]),
    ms=st.floats(50.1, 90.0),
    wakeup_ms=st.floats(0.0, 40.0),
    lag_ms=st.floats(0.0, 40.0),
)
def test_a_response_time_of_an_open_loop_may_be_off_by_the_client_lag(
    check: str, ms: float, wakeup_ms: float, lag_ms: float
) -> None:
    """As by late threads; a service time begins when the statement is sent."""
    found = merged({"s": tally((ms,) * 100)})
    lags = Histogram.of(np.full(50, round(lag_ms * NS_PER_MS), np.int64))
    health = ClientHealth.of(replace(effect((wakeup_ms, 1_000)), sent_late=lags))

    def is_open(text: str) -> bool:
        thresholds = [Threshold(check=parse_threshold(text))]
        checked = [check_threshold(thresholds[0].check, found)]
        return bool(undecided(thresholds, checked, ClientHealthByScope(run=health), found, open_loop=True))

    missed_ms, band_ms = ms - 50.0, 0.02 * (ms + 50.0)  # histograms are exact to 1 %
    if missed_ms < max(wakeup_ms, lag_ms) - band_ms:
        assert is_open(check)
    if missed_ms > max(wakeup_ms, lag_ms) + band_ms:
        assert not is_open(check)
    if missed_ms > wakeup_ms + band_ms:
        assert not is_open("service_p95 < 50ms")


def test_a_rate_of_arrivals_does_not_depend_on_the_client() -> None:
    assert reasons("qps > 10.4", open_loop=True) == []


def test_one_certainly_missed_threshold_is_decisive() -> None:
    assert len(reasons("p95 < 49ms", "p99 < 48ms", "p50 < 1s")) == 2
    assert reasons("p95 < 49ms", "p99 < 20ms") == []


def test_a_client_of_which_nothing_is_known_leaves_nothing_open() -> None:
    assert reasons("p95 < 49ms", health=ClientHealth()) == []


# --- from the windows of workers -------------------------------------------------------------------------------------


def measured(step_id: int | None, service_ms: float, late_ms: float, window_id: int = 1) -> WindowResult:
    found = window({"s": tally((service_ms,) * 50)}, step_id=step_id, window_id=window_id)
    return replace(found, client=effect((late_ms, 1_000)))


def test_each_worker_is_judged_in_each_of_its_stages() -> None:
    stages = (measured(1, 100.0, 1.0), measured(2, 10.0, 3.0, window_id=2))
    gathered = MeasuredWindows(windows={"worker-0": stages, "worker-1": (measured(None, 50.0, 0.5),)}, gaps=())

    parts = client_parts(gathered)

    assert [(part.where, part.service_mean_ms, part.health.wakeup_mean_ms) for part in parts] == [
        ("worker-0 in stage 1", 100.0, 1.0),
        ("worker-0 in stage 2", 10.0, 3.0),
        ("worker-1", 50.0, 0.5),
    ]


def test_of_a_search_only_the_decisive_steps_are_judged() -> None:
    steps = (measured(1, 100.0, 1.0), measured(2, 10.0, 3.0, window_id=2))

    (found,) = client_parts(MeasuredWindows(windows={"worker-0": steps}, gaps=()), {2})

    assert found.where == "worker-0 in step 2"


def test_a_worker_without_a_self_monitor_does_not_count_as_idle() -> None:
    (found,) = client_parts(MeasuredWindows(windows={"worker-0": (window(),)}, gaps=()))

    assert found.health == ClientHealth()


@pytest.mark.parametrize("text", ["other.p95 < 21ms", "p95 < 21ms"])
def test_a_step_without_samples_of_a_threshold_misses_it_without_certainty(text: str) -> None:
    """The step is extended, whether the threshold is about all statements or about one of them."""
    limits = (Threshold(check=parse_threshold(text)),)
    known = {} if "." not in text else {"s": tally((20.0,) * 100)}

    assert check_slo(limits, merged(known), ClientHealth(), None) == SloCheck(missed=text, sure=False)
