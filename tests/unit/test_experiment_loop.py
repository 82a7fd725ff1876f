"""The loop of an experiment: repeated and lost measurements, and what ends it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from loadgen.errors import Busy, ConnectFailed, RunFailed
from loadgen.rules.measurement import Measurement, MeasurementOutcome
from tests.unit.experiment_loop_builders import RUN_S, FakeStore, LoopHarness, raising


@pytest.fixture
def harness(tmp_path: Path) -> LoopHarness:
    return LoopHarness(tmp_path)


# --- measurements ----------------------------------------------------------------------------------------------------


def test_a_clear_difference_is_decided_and_settings_are_restored_before_the_result_is_stored(
    harness: LoopHarness,
) -> None:
    stored: list[str] = []
    harness.restore = lambda: stored.extend(map(str, harness.store.results))

    result = harness.run()

    assert (result["verdict"], result["exit_code"]) == ("decided", 0)
    assert result["comparisons"][0]["decision"] == "worse"
    assert (harness.done[-1], stored, harness.store.results) == ("restore", [], [result])
    assert all(one.seconds == RUN_S + 5.0 for one in harness.store.rows)


@pytest.mark.parametrize(("code", "outcome"), [(3, "FAILED"), (4, "FAILED"), (5, "INVALID")])
def test_an_unusable_measurement_is_repeated_once(harness: LoopHarness, code: int, outcome: str) -> None:
    harness.fails(1, "b", 1, code=code)

    result = harness.run()

    assert result["verdict"] == "decided"
    assert [one for one in harness.outcomes() if one[:2] == (1, "b")] == [(1, "b", 1, outcome), (1, "b", 2, "OK")]
    assert 1 in result["blocks"]["complete"]


def test_missed_thresholds_make_no_measurement_unusable(harness: LoopHarness) -> None:
    harness.script[1, "a", 1] = lambda: harness.arm_run("a", 10, reason="not met: p95 < 1ms")

    harness.run()

    assert (1, "a", 1, "OK") in harness.outcomes()


def test_a_run_that_raises_is_repeated_and_one_without_a_readable_result_is_invalid(harness: LoopHarness) -> None:
    harness.raises(1, "a", 1, ConnectFailed("no answer"))
    harness.script[1, "b", 1] = lambda: replace(harness.arm_run("b"), record=None)

    result = harness.run()

    assert (1, "a", 1, "FAILED") in harness.outcomes()
    assert (1, "b", 1, "INVALID") in harness.outcomes()
    assert result["blocks"]["complete"][0] == 1


def test_a_block_with_two_unusable_measurements_of_an_arm_does_not_count_and_ends(harness: LoopHarness) -> None:
    first, second = harness.order(1)
    harness.fails(1, first, 1, 2)

    result = harness.run()

    assert (result["verdict"], result["blocks"]["complete"]) == ("decided", [2, 3, 4])
    assert [row[:3] for row in harness.outcomes() if row[0] == 1] == [(1, first, 1), (1, first, 2)]
    assert f"measure 1 {second} 1" not in harness.done
    assert "block 1 does not count" in harness.said


@pytest.mark.parametrize(("code", "verdict"), [(4, "failed"), (5, "invalid"), (3, "failed")])
@pytest.mark.parametrize("lost", [(1, 2), (3, 4)])
def test_two_lost_blocks_in_a_row_end_it_with_what_failed(
    tmp_path: Path, code: int, verdict: str, lost: tuple[int, int]
) -> None:
    """Also when they are the last ones: that all blocks are done would be less precise."""
    harness = LoopHarness(tmp_path, metrics={"p50": "0.1%"}, blocks={"minimum": 4, "maximum": 4})
    for block in lost:
        harness.fails(block, "a", 1, 2, code=code, reason="the disk is full")

    result = harness.run()

    assert (result["verdict"], result["exit_code"], result["blocks"]["begun"]) == (verdict, code, lost[1])
    assert result["exit_reason"] == "2 blocks in a row were lost: the disk is full"
    assert harness.done[-1] == "restore"


def test_a_complete_block_between_two_lost_ones_is_enough_to_go_on(harness: LoopHarness) -> None:
    harness.fails(1, "a", 1, 2)
    harness.fails(3, "a", 1, 2)

    result = harness.run()

    assert (result["verdict"], result["blocks"]["complete"]) == ("decided", [2, 4])


def test_what_cannot_be_repeated_ends_the_experiment_and_restores(harness: LoopHarness) -> None:
    harness.set_up = raising(Busy("another run uses the warehouse"))

    with pytest.raises(Busy):
        harness.run()

    assert harness.done == [f"set up {harness.order(1)[0]}", "restore"]
    assert (harness.store.rows, harness.store.results) == ([], [])


def test_settings_that_cannot_be_applied_are_a_failed_measurement_that_cost_nothing(harness: LoopHarness) -> None:
    failing = [RunFailed("has not settled")]
    harness.set_up = lambda arm: raising(failing.pop())() if failing else None

    harness.run()

    first = harness.order(1)[0]
    assert harness.outcomes()[:1] == [(1, "a", 1, "FAILED" if first == "a" else "OK")]
    (failed,) = [one for one in harness.store.rows if one.outcome is MeasurementOutcome.FAILED]
    assert (failed.arm, failed.run_id, failed.billed, failed.reason) == (first, None, 0.0, "has not settled")


# --- endings ---------------------------------------------------------------------------------------------------------


def test_equal_arms_end_by_blocks(tmp_path: Path) -> None:
    harness = LoopHarness(tmp_path, metrics={"p50": "0.1%"})
    harness.mean_ms["b"] = 10.0

    result = harness.run()

    assert (result["verdict"], result["exit_code"], result["exit_reason"]) == ("undecided", 12, "all blocks are done")
    assert (result["blocks"]["begun"], harness.store.begun) == (4, 4)


def test_no_block_begins_that_may_exceed_the_time(tmp_path: Path) -> None:
    """A block takes 210 s; the plan, 190 s, has room for three in 600 s."""
    harness = LoopHarness(tmp_path, metrics={"p50": "0.1%"}, budget={"time": "600s"})
    harness.mean_ms["b"] = 10.0

    result = harness.run()

    assert (result["exit_code"], result["exit_reason"]) == (12, "another block may exceed budget.time")
    assert result["blocks"]["complete"] == [1, 2]


def test_no_block_begins_that_may_exceed_the_credits(tmp_path: Path) -> None:
    """A block costs 2 / 36 credits: two X-Small for 100 s each."""
    harness = LoopHarness(tmp_path, metrics={"p50": "0.1%"}, budget={"credits": 5.9 / 36})
    harness.mean_ms["b"] = 10.0

    result = harness.run()

    assert (result["exit_code"], result["exit_reason"]) == (12, "another block may exceed budget.credits")
    assert result["blocks"]["complete"] == [1, 2]
    assert result["credits"] == pytest.approx(4 / 36)


def test_the_first_block_does_not_begin_if_its_worst_case_exceeds_the_credits(tmp_path: Path) -> None:
    """Both measurements may have to be repeated."""
    harness = LoopHarness(tmp_path, budget={"credits": 1.0})
    harness.worst = {"a": 0.2, "b": 0.31}

    result = harness.run()

    assert (result["exit_code"], result["exit_reason"]) == (12, "another block may exceed budget.credits")
    assert (harness.done, harness.store.begun) == (["restore"], 0)


def test_unknown_costs_are_reported_and_count_as_the_worst_case(tmp_path: Path) -> None:
    harness = LoopHarness(tmp_path, metrics={"p50": "0.1%"}, budget={"credits": 1.0})
    harness.mean_ms["b"], harness.clusters, harness.worst = 10.0, None, {"a": 0.2, "b": None}

    result = harness.run()

    assert [line for line in harness.said if line.startswith("warning")][:2] == [
        "warning: budget.credits: the cost of a measurement is not known for b; the first block may exceed the budget",
        "warning: the credits of 2 measurements are not known; for budget.credits they count with the worst case, if it"
        " is known",
    ]
    assert (result["exit_reason"], result["blocks"]["begun"]) == ("all blocks are done", 4)


def test_a_repeated_measurement_without_a_result_counts_with_what_it_cost(tmp_path: Path) -> None:
    harness = LoopHarness(tmp_path, budget={"credits": 10.0})
    harness.fails(1, "a", 1)

    result = harness.run()

    assert result["credits"] == pytest.approx(len(harness.store.rows) / 36)
    assert not [line for line in harness.said if line.startswith("warning")]


def test_runs_of_a_killed_process_are_recorded_once_and_count_against_the_budget(tmp_path: Path) -> None:
    harness = LoopHarness(tmp_path, metrics={"p50": "0.1%"}, budget={"credits": 1.0})
    harness.store = FakeStore(begun=1)
    harness.store.left = [
        Measurement(
            block=1,
            arm="a",
            attempt=1,
            run_id="killed",
            outcome=MeasurementOutcome.FAILED,
            seconds=50.0,
            billed=0.99,
            reason="the process that measured it has ended",
        )
    ]

    result = harness.run()

    assert (result["exit_reason"], harness.store.begun) == ("another block may exceed budget.credits", 1)
    assert [one["run_id"] for one in result["measurements"]] == ["killed"]
    assert [one.run_id for one in harness.store.rows] == ["killed"]


def test_an_experiment_that_is_resumed_goes_on_with_the_next_block(harness: LoopHarness) -> None:
    harness.run()
    again = harness.again(FakeStore(*harness.store.rows[:2], begun=2))

    result = again.run()

    assert result["blocks"]["complete"] == [1, 3, 4]
    assert again.done[1].startswith("measure 3")
