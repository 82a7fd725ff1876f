"""Windows beside the moments of the plan, and warm-ups that were cut: what is INVALID, and what a warning."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadgen.metrics.window import WindowResult
from loadgen.model.run import Phase
from loadgen.rules.validity import judge_timing
from tests.unit.orchestrator_builders import window


def measured(seconds: float, uncertain_ms: int, step_id: int | None = None) -> WindowResult:
    return replace(window(), seconds=seconds, uncertain_ms=uncertain_ms, step_id=step_id)


def warmed_up(seconds: float, step_id: int | None = None) -> WindowResult:
    return replace(window(), phase=Phase.WARMUP, seconds=seconds, step_id=step_id)


@pytest.mark.parametrize(
    ("seconds", "uncertain_ms", "verdict"),
    [
        (60.0, 600, "valid"),
        (60.0, 601, "invalid"),
        (60.0, 2_500, "invalid"),
        (10.0, 100, "valid"),
        (10.0, 101, "warning"),
        (10.0, 200, "warning"),
        (10.0, 201, "invalid"),
    ],
)
def test_the_tolerated_deviation_of_a_window_from_the_plan(seconds: float, uncertain_ms: int, verdict: str) -> None:
    windows = {"worker-0": [measured(seconds, 3)], "worker-1": [measured(seconds, uncertain_ms)]}

    found = judge_timing(windows, {}, warmup_s=0.0)

    assert bool(found.invalid) == (verdict == "invalid")
    assert bool(found.warnings) == (verdict == "warning")
    for text in (*found.invalid, *found.warnings):
        assert text == (
            f"worker-1 may have been {uncertain_ms:,} ms away from the moments of the plan, more than 1 % of"
            f" {seconds:.1f} s: the control plane answered slowly"
        )


def test_of_a_search_only_the_decisive_steps_are_judged() -> None:
    windows = {"worker-0": [measured(30.0, 0, 1), measured(30.0, 900, 2)]}

    assert not judge_timing(windows, {}, warmup_s=0.0, steps={1}).invalid
    assert "in step 2" in judge_timing(windows, {}, warmup_s=0.0, steps={2}).invalid[0]


@pytest.mark.parametrize(("seconds", "valid"), [(10.0, True), (9.5, True), (9.4, False), (0.0, False)])
def test_a_warmup_that_was_cut_is_invalid(seconds: float, valid: bool) -> None:
    windows = {name: [measured(60.0, 0)] for name in ("worker-0", "worker-1")}
    settled = warmed_up(9.0, step_id=3)  # before a step of a search
    warmups = {"worker-0": [warmed_up(10.0)], "worker-1": [warmed_up(seconds), settled]}

    found = judge_timing(windows, warmups, warmup_s=10.0)

    expected = f"worker-1 warmed up for {seconds:.1f} of 10.0 s ({10 * seconds:.0f} %, at least 95 %): it began late"
    assert found.invalid == (() if valid else (expected,))


@pytest.mark.parametrize(("seconds", "valid"), [(0.81, True), (0.79, False)])
def test_a_short_warmup_may_begin_200_ms_late(seconds: float, valid: bool) -> None:
    found = judge_timing({"worker-0": [measured(60.0, 0)]}, {"worker-0": [warmed_up(seconds)]}, warmup_s=1.0)

    assert (found.invalid == ()) is valid


def test_a_worker_that_measured_nothing_has_other_reasons() -> None:
    assert not judge_timing({"worker-0": []}, {}, warmup_s=10.0).invalid


def test_many_workers_are_named_in_part() -> None:
    windows = {f"worker-{number}": [measured(60.0, 3_000)] for number in range(9)}

    found = judge_timing(windows, {}, warmup_s=0.0).invalid

    assert len(found) == 6
    assert found[-1] == "4 more workers were like that"
