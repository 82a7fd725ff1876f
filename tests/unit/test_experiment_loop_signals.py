"""The loop of an experiment: signals and failures end it, and settings of warehouses are restored in any case."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from loadgen.errors import ConnectFailed, LoadgenError, RunFailed
from orchestrator.experiment.job import ArmRun, stoppable
from tests.unit.experiment_loop_builders import LoopHarness, raising


@pytest.fixture
def harness(tmp_path: Path) -> LoopHarness:
    return LoopHarness(tmp_path)


def test_a_signal_in_the_wash_out_ends_it_and_keeps_what_was_measured(harness: LoopHarness) -> None:
    first, second = harness.order(1)

    def act() -> ArmRun:
        run = harness.arm_run(first)
        harness.signals.append(signal.SIGTERM)  # the run is complete: it counts
        return run

    harness.script[1, first, 1] = act

    result = harness.run()

    assert (result["verdict"], result["exit_code"]) == ("cancelled", 143)
    assert harness.outcomes() == [(1, first, 1, "OK")]
    assert harness.done == [f"set up {first}", f"measure 1 {first} 1", "restore"]
    assert harness.store.results == [result]
    assert f"set up {second}" not in harness.done


@pytest.mark.parametrize("fails", [True, False], ids=["that it ends", "that it does not end"])
def test_a_signal_during_set_up_begins_no_run(harness: LoopHarness, fails: bool) -> None:
    def set_up(arm: str) -> None:
        harness.signals.append(signal.SIGINT)
        if fails:
            error = RunFailed("has not settled")
            error.exit_code = 130
            raise error

    harness.set_up = set_up

    result = harness.run()

    assert (result["verdict"], result["exit_code"], result["measurements"]) == ("cancelled", 130, [])
    assert harness.done == [f"set up {harness.order(1)[0]}", "restore"]


@pytest.mark.parametrize("code", [130, 4, 5])
def test_a_run_that_a_signal_ended_is_not_repeated_and_its_credits_are_kept(harness: LoopHarness, code: int) -> None:
    """A worker that dies while it stops makes the run FAILED, which is no reason to measure again."""
    first = harness.order(1)[0]

    def act() -> ArmRun:
        harness.signals.append(signal.SIGINT)
        return harness.arm_run(first, code, merged=False)

    harness.script[1, first, 1] = act

    result = harness.run()

    assert (result["verdict"], result["exit_code"]) == ("cancelled", 130)
    assert harness.done == [f"set up {first}", f"measure 1 {first} 1", "restore"]
    (one,) = result["measurements"]
    assert (one["arm"], one["credits"]) == (first, pytest.approx(1 / 36))
    assert result["blocks"]["complete"] == []


def test_a_signal_ends_it_also_while_the_control_plane_is_unreachable(harness: LoopHarness) -> None:
    first = harness.order(1)[0]

    def act() -> ArmRun:
        harness.store.fail_on = {"record": ConnectFailed("gone"), "finish": ConnectFailed("gone")}
        return harness.arm_run(first, 130)

    harness.script[1, first, 1] = act

    result = harness.run()

    assert (result["verdict"], result["exit_code"], result["measurements"]) == ("cancelled", 130, [])
    assert [line for line in harness.said if "gone" in line] == [
        "the interrupted measurement could not be recorded: gone",
        "the result could not be stored: gone",
    ]


@pytest.mark.parametrize("error", [RunFailed("lost"), KeyboardInterrupt(), ZeroDivisionError()])
@pytest.mark.parametrize("restores", [True, False])
def test_settings_are_restored_at_every_end(harness: LoopHarness, error: BaseException, restores: bool) -> None:
    harness.set_up = raising(error) if not isinstance(error, LoadgenError) else harness.set_up
    if isinstance(error, LoadgenError):
        harness.store.fail_on = {"record": error}
    if not restores:
        harness.restore = raising(RunFailed("not restored"))

    with pytest.raises(type(error)):
        harness.run()

    assert harness.done[-1] == "restore"
    assert harness.store.results == []


@pytest.mark.parametrize("code", [3, 75, 130])
@pytest.mark.parametrize("cancelled", [True, False])
def test_settings_that_are_not_restored_are_exit_code_4_in_every_case(
    harness: LoopHarness, code: int, cancelled: bool
) -> None:
    error = RunFailed("still Large")
    error.exit_code = code
    harness.restore = raising(error)
    if cancelled:
        harness.signals.append(signal.SIGINT)

    result = harness.run()

    assert (result["verdict"], result["exit_code"]) == ("failed", 4)
    assert result["exit_reason"] == "the settings of a warehouse are not restored: still Large"
    assert harness.store.results == [result]


def test_a_signal_stops_the_current_action_and_not_the_cleanup() -> None:
    """Settings are restored after a signal: waiting for the warehouse must not end at once."""
    received: list[int] = []

    def wait(stop: threading.Event) -> None:
        received.append(signal.SIGTERM)
        stop.wait()
        raise RunFailed("has not settled")

    with pytest.raises(RunFailed) as caught:
        stoppable(wait, received)
    assert caught.value.exit_code == 143

    events: list[bool] = []
    stoppable(lambda stop: events.append(stop.is_set()), received)
    assert events == [False]
    with pytest.raises(RunFailed) as caught:
        stoppable(raising(RunFailed("failed by itself")), received)
    assert caught.value.exit_code == 4
