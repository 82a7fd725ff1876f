"""The loop of an experiment: signals and failures end it, and settings of warehouses are restored in any case."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from loadgen.cli.common import noted_signals
from loadgen.cli.experiment import _watched
from loadgen.errors import ConnectFailed, LoadgenError, RunFailed
from orchestrator.experiment.blocks import ArmRun
from tests.unit.experiment_loop_builders import LoopBench, raising


@pytest.fixture
def bench(tmp_path: Path) -> LoopBench:
    return LoopBench(tmp_path)


def test_a_signal_in_the_wash_out_ends_it_and_keeps_what_was_measured(bench: LoopBench) -> None:
    first, second = bench.order(1)

    def act() -> ArmRun:
        run = bench.arm_run(first)
        bench.signals.append(signal.SIGTERM)  # the run is complete: it counts
        return run

    bench.script[1, first, 1] = act

    result = bench.run()

    assert (result["verdict"], result["exit_code"]) == ("cancelled", 143)
    assert bench.outcomes() == [(1, first, 1, "OK")]
    assert bench.done == [f"set up {first}", f"measure 1 {first} 1", "restore"]
    assert bench.store.results == [result]
    assert f"set up {second}" not in bench.done


@pytest.mark.parametrize("fails", [True, False], ids=["that it ends", "that it does not end"])
def test_a_signal_during_set_up_begins_no_run(bench: LoopBench, fails: bool) -> None:
    def set_up(arm: str) -> None:
        bench.signals.append(signal.SIGINT)
        if fails:
            error = RunFailed("has not settled")
            error.exit_code = 130
            raise error

    bench.set_up = set_up

    result = bench.run()

    assert (result["verdict"], result["exit_code"], result["measurements"]) == ("cancelled", 130, [])
    assert bench.done == [f"set up {bench.order(1)[0]}", "restore"]


@pytest.mark.parametrize("code", [130, 4, 5])
def test_a_run_that_a_signal_ended_is_not_repeated_and_its_credits_are_kept(bench: LoopBench, code: int) -> None:
    """A worker that dies while it stops makes the run FAILED, which is no reason to measure again."""
    first = bench.order(1)[0]

    def act() -> ArmRun:
        bench.signals.append(signal.SIGINT)
        return bench.arm_run(first, code, merged=False)

    bench.script[1, first, 1] = act

    result = bench.run()

    assert (result["verdict"], result["exit_code"]) == ("cancelled", 130)
    assert bench.done == [f"set up {first}", f"measure 1 {first} 1", "restore"]
    (one,) = result["measurements"]
    assert (one["arm"], one["credits"]) == (first, pytest.approx(1 / 36))
    assert result["blocks"]["complete"] == []


def test_a_signal_ends_it_also_while_the_control_plane_is_gone(bench: LoopBench) -> None:
    first = bench.order(1)[0]

    def act() -> ArmRun:
        bench.store.fail_on = {"record": ConnectFailed("gone"), "finish": ConnectFailed("gone")}
        return bench.arm_run(first, 130)

    bench.script[1, first, 1] = act

    result = bench.run()

    assert (result["verdict"], result["exit_code"], result["measurements"]) == ("cancelled", 130, [])
    assert [line for line in bench.said if "gone" in line] == [
        "the interrupted measurement could not be recorded: gone",
        "the result could not be stored: gone",
    ]


@pytest.mark.parametrize("error", [RunFailed("lost"), KeyboardInterrupt(), ZeroDivisionError()])
@pytest.mark.parametrize("restores", [True, False])
def test_settings_are_restored_whatever_ends_it(bench: LoopBench, error: BaseException, restores: bool) -> None:
    bench.set_up = raising(error) if not isinstance(error, LoadgenError) else bench.set_up
    if isinstance(error, LoadgenError):
        bench.store.fail_on = {"record": error}
    if not restores:
        bench.restore = raising(RunFailed("not restored"))

    with pytest.raises(type(error)):
        bench.run()

    assert bench.done[-1] == "restore"
    assert bench.store.results == []


@pytest.mark.parametrize("code", [3, 75, 130])
@pytest.mark.parametrize("cancelled", [True, False])
def test_settings_that_are_not_restored_are_exit_code_4_whatever_was_decided(
    bench: LoopBench, code: int, cancelled: bool
) -> None:
    error = RunFailed("still Large")
    error.exit_code = code
    bench.restore = raising(error)
    if cancelled:
        bench.signals.append(signal.SIGINT)

    result = bench.run()

    assert (result["verdict"], result["exit_code"]) == ("failed", 4)
    assert result["exit_reason"] == "the settings of a warehouse are not restored: still Large"
    assert bench.store.results == [result]


def test_a_signal_stops_what_is_under_way_and_not_what_follows() -> None:
    """Settings are restored after a signal: waiting for the warehouse must not end at once."""
    received: list[int] = []

    def wait(stop: threading.Event) -> None:
        received.append(signal.SIGTERM)
        stop.wait()
        raise RunFailed("has not settled")

    with pytest.raises(RunFailed) as caught:
        _watched(wait, received)
    assert caught.value.exit_code == 143

    events: list[bool] = []
    _watched(lambda stop: events.append(stop.is_set()), received)
    assert events == [False]
    with pytest.raises(RunFailed) as caught:
        _watched(raising(RunFailed("failed by itself")), received)
    assert caught.value.exit_code == 4


def test_a_signal_that_a_run_hears_is_heard_by_its_experiment() -> None:
    with noted_signals() as outer:
        with noted_signals() as inner:
            signal.raise_signal(signal.SIGINT)
            assert (inner, outer) == ([signal.SIGINT], [signal.SIGINT])
        signal.raise_signal(signal.SIGTERM)

    assert (inner, outer) == ([signal.SIGINT], [signal.SIGINT, signal.SIGTERM])
