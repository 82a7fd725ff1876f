"""How many runners a pool has, which of them go, and what the end of an attempt means."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadgen.control.tables.run_queue import ClaimedRun, QueueClaim, QueueDepth
from loadgen.errors import UsageError
from loadgen.model.nightly import AttemptStatus, ExitCodeMeaning, QueueStatus, exit_code_meaning, retry_pause_s
from orchestrator.nightly.attempt import AttemptOutcome, InvalidQueueRow, judge_attempt, start_attempt
from orchestrator.nightly.pool import (
    MISSES_MAX,
    START_MAX_S,
    PoolDecision,
    PoolRules,
    RunnerView,
    decide_pool_size,
    drain_text,
    start_pause_s,
)
from orchestrator.nightly.queue import SOONER_MAX, PollPace

RULES = PoolRules(min_runners=1, max_runners=4, scale_up_at=5, idle_s=300.0, max_age_s=3600.0, max_runs=1000)
NOTHING = PoolDecision()


def runner(name: str = "a", **more: Any) -> RunnerView:
    fields: dict[str, Any] = {
        "age_s": 10.0,
        "runs": 0,
        "idle_s": None,
        "draining": False,
        "misses": 0,
        "has_answered": True,
    }
    fields["busy"] = more.get("idle_s") is None
    return RunnerView(name=name, **(fields | more))


def depth_of(runs: int | None) -> QueueDepth | None:
    """This many runs on as many targets."""
    return None if runs is None else QueueDepth(waiting=runs, startable=runs)


def runners(count: int, **more: Any) -> list[RunnerView]:
    return [runner(f"r{number}", **more) for number in range(count)]


# --- how many --------------------------------------------------------------------------------------------------------


def test_a_pool_begins_with_the_minimum():
    assert decide_pool_size(PoolRules(min_runners=3, max_runners=4), None, []) == PoolDecision(start=3)


@pytest.mark.parametrize(
    ("depth", "there", "starts"),
    [(4, 1, 0), (5, 1, 1), (500, 1, 1), (500, 3, 1), (500, 4, 0), (None, 1, 0), (0, 1, 0)],
    ids=["few", "enough", "many: one at a time", "up to the maximum", "no more", "nobody has looked", "nothing"],
)
def test_the_pool_grows_by_one_for_each_poll_with_enough_waiting_runs(depth, there, starts):
    assert decide_pool_size(RULES, depth_of(depth), runners(there)) == PoolDecision(start=starts)


def test_a_pool_that_may_be_empty_begins_with_the_first_run():
    rules = PoolRules(min_runners=0, max_runners=2)

    assert [decide_pool_size(rules, depth_of(depth), []).start for depth in (None, 0, 1)] == [0, 0, 1]
    assert decide_pool_size(rules, depth_of(1), runners(1)) == NOTHING
    assert decide_pool_size(rules, depth_of(0), runners(1, idle_s=300.0)) == PoolDecision(drain=("r0",))


@pytest.mark.parametrize(
    ("waiting", "startable", "there", "starts"),
    [
        (100, 4, runners(1), 1),
        (100, 1, runners(3), 1),
        (4, 4, runners(1), 0),
        (100, 0, runners(1), 0),
        (100, 2, runners(2, idle_s=1.0), 0),
        (100, 2, [runner("a"), runner("b", idle_s=1.0)], 1),
        (100, 1, [runner("a"), runner("new", busy=False)], 0),
    ],
    ids=[
        *("many on few targets", "one is free", "few wait", "all targets are in use", "runners are free"),
        *("one is not enough", "one has just started"),
    ],
)
def test_it_grows_by_the_work_that_waits_as_far_as_targets_are_free(waiting, startable, there, starts):
    depth = QueueDepth(waiting=waiting, startable=startable)

    assert decide_pool_size(RULES, depth, there) == PoolDecision(start=starts)


@pytest.mark.parametrize(("idle_looks", "expected"), [(0, [5] * 6), (2, [600, 5, 10, 20, 40, 600])])
def test_a_failed_poll_is_repeated_sooner_but_not_for_ever(idle_looks, expected):
    pace = PollPace(poll_s=5.0, idle_poll_s=600.0)

    pauses = [pace.pause_s(idle_looks, failures) for failures in range(SOONER_MAX + 2)]

    assert pauses == expected


def test_dead_runners_are_replaced_up_to_the_minimum():
    assert decide_pool_size(PoolRules(min_runners=3, max_runners=4), None, runners(2)) == PoolDecision(start=1)


def test_an_unresponsive_runner_is_killed_and_replaced():
    silent = [runner("silent", misses=MISSES_MAX), runner("slow", misses=MISSES_MAX - 1)]

    assert decide_pool_size(PoolRules(min_runners=2, max_runners=2), None, silent) == PoolDecision(
        start=1, kill=("silent",)
    )


def test_a_starting_runner_has_longer_for_its_first_response():
    starting = runner("starting", misses=9, has_answered=False, age_s=START_MAX_S - 1)

    assert decide_pool_size(RULES, None, [starting]) == NOTHING
    assert decide_pool_size(RULES, None, [replace(starting, age_s=START_MAX_S)]).kill == ("starting",)


def test_it_shrinks_by_the_one_that_has_been_idle_longest():
    idle = [runner("a", idle_s=300.0), runner("b", idle_s=400.0), runner("busy")]

    assert decide_pool_size(RULES, depth_of(0), idle) == PoolDecision(drain=("b",))


@pytest.mark.parametrize(
    ("depth", "there"),
    [
        (1, runners(2, idle_s=999.0)),
        (None, runners(2, idle_s=999.0)),
        (0, runners(2, idle_s=299.0)),
        (0, runners(1, idle_s=999.0)),
        (0, runners(2)),
    ],
    ids=["something waits", "nobody has looked", "not for long", "the minimum", "all are at work"],
)
def test_it_does_not_shrink(depth, there):
    assert decide_pool_size(RULES, depth_of(depth), there) == NOTHING


def test_one_that_drains_is_no_help_but_still_needs_the_machine():
    draining = runner("old", draining=True)

    assert decide_pool_size(PoolRules(min_runners=1, max_runners=1), depth_of(9), [draining]) == NOTHING
    assert decide_pool_size(PoolRules(min_runners=1, max_runners=2), None, [draining]) == PoolDecision(start=1)
    assert decide_pool_size(PoolRules(min_runners=1, max_runners=2), depth_of(9), [draining, runner()]) == NOTHING


def test_a_runner_that_has_done_nothing_is_not_replaced_for_its_age():
    assert decide_pool_size(RULES, depth_of(0), [runner("a", age_s=90_000.0, idle_s=89_000.0)]) == NOTHING


@pytest.mark.parametrize("over", [{"age_s": 3600.0, "runs": 1}, {"runs": 1000}], ids=["age", "runs"])
def test_a_runner_that_is_over_its_time_is_recycled_and_replaced(over):
    assert decide_pool_size(RULES, None, [runner("old", **over)]) == PoolDecision(start=1, recycle=("old",))


def test_runners_are_recycled_one_after_the_other():
    old = [runner("a", age_s=3700.0, runs=1), runner("b", age_s=3800.0, runs=1)]
    rules = PoolRules(min_runners=2, max_runners=3)

    assert decide_pool_size(rules, None, old) == PoolDecision(start=1, recycle=("b",))
    assert decide_pool_size(rules, None, [old[0], runner("b", age_s=3801.0, draining=True), runner("c")]) == NOTHING


def test_a_recycled_runner_is_replaced_also_above_the_minimum():
    rules, depth = PoolRules(min_runners=1, max_runners=2), depth_of(1)
    old, other = runner("old", age_s=3700.0, runs=1), runner("other")

    first = decide_pool_size(rules, depth, [old, other])
    while_it_drains = decide_pool_size(rules, depth, [runner("old", age_s=3701.0, draining=True), other], first.size)
    after_it_ended = decide_pool_size(rules, depth, [other], while_it_drains.size)

    assert (first, while_it_drains, after_it_ended) == (PoolDecision(recycle=("old",)), NOTHING, PoolDecision(start=1))


def test_a_pool_that_shrank_does_not_grow_back():
    rules = PoolRules(min_runners=1, max_runners=3)
    shrunk = decide_pool_size(rules, depth_of(0), runners(2, idle_s=999.0), 2)

    assert len(shrunk.drain) == 1
    assert decide_pool_size(rules, None, [runner("r0", idle_s=1.0)], shrunk.size) == NOTHING


def test_starts_that_fail_are_tried_less_and_less_often():
    assert [start_pause_s(failures) for failures in (0, 1, 2, 3, 7, 1000)] == [0, 1, 2, 4, 60, 60]


@pytest.mark.parametrize(
    "wrong",
    [{"min_runners": 5}, {"max_runners": 0, "min_runners": 0}, {"scale_up_at": 0}, {"max_runs": 0}, {"max_age_s": 0.0}],
)
def test_rules_that_cannot_be_kept_are_refused(wrong):
    with pytest.raises(UsageError):
        PoolRules(**wrong)


# --- ends ------------------------------------------------------------------------------------------------------------


def judged(code: int, *, cancelled: bool = False, interrupted: bool = False) -> AttemptOutcome:
    return judge_attempt(code, attempts=1, cancelled=cancelled, interrupted=interrupted, chance=1.0)


@pytest.mark.parametrize("code", [0, 5, 10, 11])
def test_a_verdict_is_a_result_for_every_requester_of_the_end(code):
    done = AttemptOutcome(attempt=AttemptStatus.COMPLETED, final=QueueStatus.COMPLETED)

    assert judged(code) == judged(code, cancelled=True) == judged(code, interrupted=True) == done


def test_wrong_configuration_is_not_retried():
    assert judged(2) == AttemptOutcome(attempt=AttemptStatus.FAILED, final=QueueStatus.FAILED)


@pytest.mark.parametrize("code", [1, 3, 4, 137, 139, -9])
def test_every_other_failure_is_tried_again(code):
    assert judged(code) == AttemptOutcome(attempt=AttemptStatus.FAILED, final=None, pause_s=1.0)


def test_a_busy_warehouse_costs_no_attempt():
    outcome = judged(75)

    assert (outcome.attempt, outcome.final, outcome.counts) == (AttemptStatus.SKIPPED, None, False)
    assert outcome.pause_s > 0


@pytest.mark.parametrize("code", [130, 143])
def test_a_stopped_run_was_stopped_by_its_runner_or_by_a_user(code):
    assert judged(code) == AttemptOutcome(attempt=AttemptStatus.CANCELLED, final=QueueStatus.CANCELLED)
    assert judged(code, interrupted=True) == AttemptOutcome(attempt=AttemptStatus.INTERRUPTED, final=None, counts=False)


@pytest.mark.parametrize("code", [1, 2, 75, 143])
def test_a_run_with_a_cancel_request_is_not_retried(code):
    assert judged(code, cancelled=True).final is QueueStatus.CANCELLED


def test_pauses_double_up_to_a_minute_and_are_spread():
    assert [retry_pause_s(attempts, 1.0) for attempts in (1, 2, 3, 6, 7, 8, 10**6)] == [1, 2, 4, 32, 60, 60, 60]
    assert retry_pause_s(3, 0.0) == 2.0


def test_unknown_exit_codes_are_retried():
    assert exit_code_meaning(99) is ExitCodeMeaning.RETRY


@pytest.mark.parametrize("name", ["/etc/x", "../x.csv", "a/../../x", ""])
def test_a_value_file_never_lies_elsewhere(tmp_path: Path, name):
    wanted = ClaimedRun(name="n", scenario="s", files={name: "k"}, connection=None, attempts=1, number=1)

    with pytest.raises(InvalidQueueRow):
        start_attempt(QueueClaim(queue_id="q", epoch=1, owner="o"), wanted, tmp_path, program=["false"])
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


# --- the end of a pool -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signals", "runs", "text"),
    [
        (1, 0, "stopping: no run is under way"),
        (2, 0, "stopping: no run is under way"),
        (1, 1, "1 run under way finishes first, within 300 s; press Ctrl-C again to queue it again"),
        (1, 2, "2 runs under way finish first, within 300 s; press Ctrl-C again to queue them again"),
        (2, 1, "1 run under way is ended and queued again; press Ctrl-C again to end at once"),
        (2, 2, "2 runs under way are ended and queued again; press Ctrl-C again to end at once"),
    ],
)
def test_a_pool_that_ends_prints_what_it_waits_for(signals, runs, text):
    assert drain_text(signals, runs, 300.0).endswith(text)
