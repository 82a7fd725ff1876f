"""The verdict of a step of find_max, rule by rule, and where the search goes next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadgen.metrics.histogram import Histogram
from loadgen.metrics.tally import StatementTally
from loadgen.metrics.window import ClientResourceUse
from loadgen.model.threshold import parse_threshold
from loadgen.rules.find_max import FindMaxSearch, SearchConfidence, SearchStage
from loadgen.rules.find_max_step import EXTEND_MAX, JudgedStep, StepOutcome
from loadgen.scenario.model import FindMaxSettings, Threshold
from loadgen.units import NS_PER_MS
from orchestrator.find_max_controller import observe_step
from tests.unit.orchestrator_builders import tally, window

CONFIG = FindMaxSettings(start=5, increment=10, step_s=30.0, maximum=100)


# --- steps by hand ---------------------------------------------------------------------------------------------------


def times(*, p95_ms: float = 20.0, count: int = 5_000, failed: int = 0) -> StatementTally:
    """All times lie in one bucket, so that bounds are as narrow as can be."""
    return tally((p95_ms,) * count, failed=failed)


def step(
    search: FindMaxSearch,
    seconds: float = 30.0,
    *,
    qps: float = 100.0,
    shown: StatementTally | None = None,
    thresholds: tuple[Threshold, ...] = (),
    queue_seen: bool = False,
    client_limit: str | None = None,
    late_ms: float = 0.0,
    machine_cores: float = 0.0,
    shares_machine: bool = True,
    **made: float,
) -> JudgedStep | None:
    assert search.target is not None
    found = times(**made) if shown is None else shown  # type: ignore[arg-type]
    late = Histogram.of(np.full(1_000, late_ms * NS_PER_MS, dtype=np.int64))
    own = replace(window({"s": found}, seconds=seconds), client=_client(late, machine_cores))
    observation, _ = observe_step(
        search.target,
        [[own]],
        thresholds,
        queue_seen=queue_seen,
        client_limit=client_limit,
        shares_machine=shares_machine,
    )
    return search.judge(replace(observation, qps=qps))


def _client(late: Histogram, machine_cores: float) -> ClientResourceUse:
    """One second on a machine of two cores."""
    return ClientResourceUse(elapsed_ms=1_000, machine_cpu_ms=int(1_000 * machine_cores), cores=2, late=late)


def took(search: FindMaxSearch, **shown: float) -> FindMaxSearch:
    judged = step(search, **shown)  # type: ignore[arg-type]
    assert judged is not None
    return search.after(judged)


def fails(search: FindMaxSearch) -> FindMaxSearch:
    return took(search, p95_ms=99.0)


def limited(search: FindMaxSearch) -> FindMaxSearch:
    judged = step(search, client_limit="a worker used 95 % of its core")
    assert judged is not None
    return search.after(judged)


# Most samples are below the limit of p95 (24 ms for a baseline of 20 ms), and those above it are few.
STRADDLING = tally((20.0,) * 90 + (30.0,) * 10)


@pytest.mark.parametrize(
    ("shown", "outcome"),
    [
        ({}, StepOutcome.STABLE),
        ({"queue_seen": True}, StepOutcome.QUEUE_DETECTED),
        ({"failed": 51}, StepOutcome.ERROR_THRESHOLD),  # a little over 1 %
        ({"failed": 50}, StepOutcome.STABLE),
        ({"p95_ms": 30.0}, StepOutcome.DEGRADED),
        ({"p95_ms": 23.0}, StepOutcome.STABLE),
        ({"qps": 94.0}, StepOutcome.DEGRADED),
        ({"qps": 95.5}, StepOutcome.STABLE),
        ({"queue_seen": True, "failed": 5_000, "p95_ms": 90.0}, StepOutcome.QUEUE_DETECTED),  # the first reason counts
        ({"failed": 5_000, "p95_ms": 90.0}, StepOutcome.ERROR_THRESHOLD),
        ({"client_limit": "busy", "queue_seen": True, "failed": 5_000, "p95_ms": 90.0}, StepOutcome.CLIENT_LIMIT),
    ],
)
def test_a_step_fails_by_the_first_reason(shown: dict[str, float], outcome: StepOutcome) -> None:
    second = took(FindMaxSearch(config=CONFIG))
    judged = step(second, **shown)  # type: ignore[arg-type]
    assert judged is not None
    assert judged.outcome is outcome
    assert judged.held == (outcome is StepOutcome.STABLE)
    assert judged.failed == (outcome not in (StepOutcome.STABLE, StepOutcome.CLIENT_LIMIT))
    assert judged.reason


@pytest.mark.parametrize(
    ("shown", "outcome"),
    [
        ({"p95_ms": 25.0, "late_ms": 1.5}, StepOutcome.CLIENT_LIMIT),  # at most 24 ms held
        ({"p95_ms": 25.0, "late_ms": 0.5}, StepOutcome.DEGRADED),
        ({"qps": 94.0, "late_ms": 0.5}, StepOutcome.CLIENT_LIMIT),  # 2.5 % of 20 ms; at least 95/s held
        ({"qps": 94.0, "late_ms": 0.1}, StepOutcome.DEGRADED),
        ({"qps": 95.5, "late_ms": 1.5}, StepOutcome.STABLE),
    ],
)
def test_a_step_that_may_fail_only_because_of_the_client_proves_nothing(
    shown: dict[str, float], outcome: StepOutcome
) -> None:
    judged = step(took(FindMaxSearch(config=CONFIG)), **shown)  # type: ignore[arg-type]

    assert judged is not None
    assert judged.outcome is outcome


@pytest.mark.parametrize(("late_ms", "outcome"), [(1.5, StepOutcome.CLIENT_LIMIT), (0.5, StepOutcome.SLO_FAILED)])
def test_a_threshold_missed_by_less_than_the_client_s_part_fails_no_step(late_ms: float, outcome: StepOutcome) -> None:
    limits = (Threshold(check=parse_threshold("p95 < 21ms")),)

    judged = step(took(FindMaxSearch(config=CONFIG)), p95_ms=22.0, late_ms=late_ms, thresholds=limits)

    assert judged is not None
    assert judged.outcome is outcome


def test_a_threshold_that_is_not_met_fails_the_step_before_latency_is_compared() -> None:
    limits = (Threshold(check=parse_threshold("p95 < 21ms")),)
    judged = step(took(FindMaxSearch(config=CONFIG)), p95_ms=50.0, thresholds=limits)
    assert judged is not None
    assert judged.outcome is StepOutcome.SLO_FAILED
    assert "p95 < 21ms" in judged.reason


def test_too_few_samples_for_a_threshold_fail_no_step() -> None:
    """It goes on for more of them; in the end the thresholds of the run are undecided, and its result INVALID."""
    limits = (Threshold(check=parse_threshold("p99 < 21ms")),)
    few = tally((20.0,) * 49 + (22.0,))

    assert step(FindMaxSearch(config=CONFIG), shown=few, thresholds=limits) is None
    judged = step(FindMaxSearch(config=CONFIG), seconds=90.0, shown=few, thresholds=limits)

    assert judged is not None
    assert (judged.outcome, judged.low_confidence) == (StepOutcome.STABLE, True)


def test_too_few_samples_that_all_miss_a_threshold_fail_the_step() -> None:
    limits = (Threshold(check=parse_threshold("p99 < 21ms")),)
    judged = step(FindMaxSearch(config=CONFIG), seconds=90.0, shown=tally((22.0,) * 50), thresholds=limits)

    assert judged is not None
    assert judged.outcome is StepOutcome.SLO_FAILED


def test_a_queue_ends_a_step_at_once_but_not_when_it_was_not_asked_for() -> None:
    assert step(FindMaxSearch(config=CONFIG), seconds=0.5, queue_seen=True) is not None
    unasked = FindMaxSearch(config=replace(CONFIG, stop_on_queue=False))
    assert step(unasked, seconds=0.5, queue_seen=True) is None
    judged = step(unasked, queue_seen=True)
    assert judged is not None
    assert judged.held


def test_nothing_is_judged_before_the_step_has_lasted() -> None:
    assert step(FindMaxSearch(config=CONFIG), seconds=29.9, failed=5_000) is None
    assert step(FindMaxSearch(config=CONFIG), seconds=29.9, client_limit="busy") is None


def test_a_step_near_the_limit_gets_more_time_and_is_marked_when_that_did_not_help() -> None:
    second = took(FindMaxSearch(config=CONFIG))
    for seconds in (30.0, 60.0, 89.0):
        assert step(second, seconds, shown=STRADDLING) is None
    judged = step(second, EXTEND_MAX * 30.0, shown=STRADDLING)
    assert judged is not None
    assert judged.low_confidence
    assert judged.outcome is StepOutcome.DEGRADED


# Nothing ended: that is not "no errors", but statements may take longer than the step.
@pytest.mark.parametrize(("count", "outcome"), [(10, StepOutcome.STABLE), (0, StepOutcome.ERROR_THRESHOLD)])
def test_a_step_with_too_few_samples_for_p95_is_extended(count: int, outcome: StepOutcome) -> None:
    for search in (took(FindMaxSearch(config=CONFIG)), FindMaxSearch(config=CONFIG))[: 1 if count else 2]:
        assert step(search, 89.0, count=count) is None
        judged = step(search, EXTEND_MAX * 30.0, count=count)
        assert judged is not None
        assert (judged.outcome, judged.low_confidence) == (outcome, True)


def test_the_bounds_of_all_steps_of_a_level_together_decide_whether_a_step_is_sure() -> None:
    """What one step alone leaves open is decided with the step before it."""
    search = took(FindMaxSearch(config=CONFIG))
    first = step(search, EXTEND_MAX * 30.0, shown=STRADDLING)
    assert first is not None
    repeated = replace(search.after(first), stopped=None)
    while repeated.target != first.target:  # the best level is confirmed before
        repeated = took(repeated)
    judged = step(repeated, shown=tally((20.0,) * 700 + (30.0,) * 300))
    assert judged is not None
    assert (judged.outcome, judged.low_confidence) == (StepOutcome.DEGRADED, False)


def test_a_disturbed_step_does_not_decide_the_next_one_of_its_level() -> None:
    search = fails(took(FindMaxSearch(config=CONFIG)))
    search = took(search)  # the best level, confirmed
    assert search.stage is SearchStage.VERIFY
    judged = step(search)
    assert judged is not None
    assert judged.held


def test_more_connections_without_more_throughput_are_a_plateau() -> None:
    search = took(took(FindMaxSearch(config=CONFIG), qps=100), qps=101, p95_ms=20.5)
    judged = step(search, qps=101.5, p95_ms=21.0)
    assert judged is not None
    assert judged.outcome is StepOutcome.PLATEAU


def test_small_increments_are_no_plateau_as_long_as_throughput_grows_with_them() -> None:
    search = FindMaxSearch(config=FindMaxSettings(start=200, increment=1, maximum=300))
    search = took(took(search, qps=200), qps=201, p95_ms=20.1)
    judged = step(search, qps=202, p95_ms=20.8)
    assert judged is not None
    assert judged.held


def test_a_slow_decline_is_seen_because_the_best_step_is_the_measure() -> None:
    search = took(took(took(FindMaxSearch(config=CONFIG), qps=100), qps=104, p95_ms=19), qps=101, p95_ms=18)
    judged = step(search, qps=98, p95_ms=17)
    assert judged is not None
    assert judged.outcome is StepOutcome.DEGRADED


def test_one_step_that_was_fast_by_chance_fails_no_higher_level_again_and_again() -> None:
    """The throughput of a level is that of all its steps. 106/s was by chance: the same level has 99/s afterwards."""
    search = took(took(FindMaxSearch(config=CONFIG), qps=90), qps=106)
    search = took(took(search, qps=100.5), qps=99)
    assert [one.outcome for one in search.steps[2:]] == [StepOutcome.DEGRADED, StepOutcome.STABLE]

    judged = step(search, qps=100.5)

    assert judged is not None
    assert (judged.target, judged.outcome) == (25, StepOutcome.STABLE)


def test_a_first_step_that_was_disturbed_is_no_baseline() -> None:
    search = took(took(FindMaxSearch(config=CONFIG), p95_ms=40.0), p95_ms=20.0, qps=300.0)
    assert search.baseline_p95_ms == pytest.approx(20.0, rel=0.02)
    judged = step(search, p95_ms=30.0, qps=400.0)
    assert judged is not None
    assert judged.outcome is StepOutcome.DEGRADED


# --- where it goes ---------------------------------------------------------------------------------------------------


def test_a_first_step_that_fails_twice_leaves_nothing() -> None:
    search = took(FindMaxSearch(config=CONFIG), failed=5_000)
    assert (search.stage, search.target) == (SearchStage.VERIFY, 5)
    search = took(search, failed=5_000)
    answer = search.answer()
    assert (search.stage, search.target, answer.best) == (SearchStage.DONE, None, None)
    assert "a step with 5 connections failed: 50.00 % of statements failed" in answer.reason


def test_the_maximum_is_confirmed_and_a_lower_bound() -> None:
    search = FindMaxSearch(config=FindMaxSettings(start=5, increment=10, maximum=20))
    for qps in (50, 150, 200, 200):
        search = took(search, qps=qps)
    answer = search.answer()
    assert [one.target for one in search.steps] == [5, 15, 20, 20]
    assert answer.best == search.steps[-1]
    assert (answer.is_true_max, answer.confidence) == (False, SearchConfidence.HIGH)
    assert answer.reason == "20 connections held, and more were not tried"


def test_both_ends_are_confirmed_before_the_gap_is_bisected() -> None:
    search = took(took(took(FindMaxSearch(config=CONFIG), qps=10), qps=20), qps=30)
    search = fails(search)
    assert (search.stage, search.target) == (SearchStage.CONFIRM, 25)
    search = took(search, qps=30)
    assert (search.stage, search.target) == (SearchStage.VERIFY, 35)
    search = fails(search)
    assert (search.stage, search.target) == (SearchStage.REFINE, 30)


def test_a_level_that_was_judged_both_ways_is_measured_until_one_verdict_has_two_votes_more() -> None:
    search = took(took(took(FindMaxSearch(config=CONFIG), qps=10), qps=20), qps=30)
    search = fails(fails(search))  # 35, then 25 when it is confirmed
    assert (search.stage, search.target) == (SearchStage.REPEAT, 25)
    search = fails(search)
    assert (search.stage, search.target) == (SearchStage.REPEAT, 25)
    search = fails(search)
    assert (search.stage, search.target) == (SearchStage.CONFIRM, 15), "25 failed by three to one"
    search = took(search, qps=20)
    assert (search.stage, search.target) == (SearchStage.REFINE, 20)
    assert search.answer().confidence is SearchConfidence.LOW


def test_without_refinement_it_ends_when_both_ends_are_confirmed() -> None:
    search = FindMaxSearch(config=replace(CONFIG, refine=False))
    search = fails(took(fails(took(took(search, qps=10), qps=20)), qps=20))
    answer = search.answer()
    assert (search.target, answer.is_true_max, answer.confidence) == (None, True, SearchConfidence.HIGH)
    assert answer.best is not None
    assert answer.best.number == 4, "the one that confirmed it"
    assert answer.failed is not None
    assert answer.failed.number == 5


# --- the client as the limit -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shown",
    [
        {"p95_ms": 90.0},
        {"qps": 10.0},
        {"failed": 5_000},
        {"thresholds": (Threshold(check=parse_threshold("p95 < 10ms")),)},
    ],
)
@pytest.mark.parametrize(
    ("machine_cores", "shares_machine", "is_evidence"), [(1.4, True, True), (1.9, False, True), (1.9, True, False)]
)
def test_a_step_that_fails_while_the_server_had_no_core_proves_nothing(
    shown: dict[str, Any], machine_cores: float, shares_machine: bool, is_evidence: bool
) -> None:
    judged = step(
        took(FindMaxSearch(config=CONFIG)), 90.0, machine_cores=machine_cores, shares_machine=shares_machine, **shown
    )

    assert judged is not None
    assert judged.failed == is_evidence
    assert is_evidence or "other processes used 1.9 of 2" in judged.reason


def test_a_queue_is_evidence_and_a_level_that_holds_is_weak_where_the_server_had_no_core() -> None:
    search = took(FindMaxSearch(config=CONFIG))

    queued, held = step(search, queue_seen=True, machine_cores=2.0), step(search, machine_cores=2.0)

    assert queued is not None
    assert queued.outcome is StepOutcome.QUEUE_DETECTED
    assert held is not None
    assert held.held
    assert held.low_confidence


def test_a_step_that_the_client_limited_is_measured_once_more() -> None:
    search = limited(took(FindMaxSearch(config=CONFIG), qps=10))
    assert (search.stage, search.target) == (SearchStage.REPEAT, 15)
    search = took(search, qps=20)
    assert (search.stage, search.target) == (SearchStage.CLIMB, 25)


def test_the_search_does_not_go_above_a_level_that_the_client_limits() -> None:
    search = limited(limited(took(took(FindMaxSearch(config=CONFIG), qps=10), qps=20)))
    assert (search.stage, search.target) == (SearchStage.CONFIRM, 15)
    search = took(search, qps=20)
    answer = search.answer()
    assert search.target is None
    assert answer.best == search.steps[-1]
    assert (answer.is_true_max, answer.confidence) == (False, SearchConfidence.HIGH)
    assert answer.reason == "at least 15 connections held: limited by the client at 25: a worker used 95 % of its core"


def test_a_best_level_that_cannot_be_confirmed_is_replaced_by_the_one_below() -> None:
    search = took(took(took(FindMaxSearch(config=CONFIG), qps=10), qps=20), qps=30)
    search = limited(limited(fails(search)))
    answer = search.answer()
    assert search.target is None, "15 needs no second step: 25 held once as well"
    assert answer.best is not None
    assert (answer.best.target, answer.is_true_max) == (15, False)
    assert answer.failed is not None
    assert answer.failed.target == 35


def test_a_client_that_limits_the_first_level_leaves_no_answer() -> None:
    search = limited(limited(FindMaxSearch(config=CONFIG)))
    answer = search.answer()
    assert (search.target, answer.best) == (None, None)
    assert answer.limited is not None
