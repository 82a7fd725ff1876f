"""Windows beside the moments of the plan, and warm-ups that were cut: what is INVALID, and what a warning."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loadgen.metrics.connections import ConnectionTime
from loadgen.metrics.window import ClientResourceUse, WindowResult
from loadgen.model.run import Phase
from loadgen.rules.plan import PlannedWindow, RunPlan
from loadgen.rules.validity import judge_timing
from tests.unit.orchestrator_builders import window


def measured(seconds: float, uncertain_ms: int, step_id: int | None = None) -> WindowResult:
    return replace(window(), seconds=seconds, uncertain_ms=uncertain_ms, step_id=step_id)


def plan(*lengths_s: float, warmup_s: float = 0.0) -> RunPlan:
    """Of windows with these lengths, one after the other."""
    windows = [
        PlannedWindow(step_id=number if lengths_s[1:] else None, starts_s=0.0, duration_s=length_s)
        for number, length_s in enumerate(lengths_s, start=1)
    ]
    return RunPlan(measures_s=warmup_s, ends_s=None, windows=tuple(windows))


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

    found = judge_timing(windows, {}, plan(seconds))

    assert bool(found.invalid) == (verdict == "invalid")
    assert bool(found.warnings) == (verdict == "warning")
    for text in (*found.invalid, *found.warnings):
        assert text == (
            f"worker-1 may have been {uncertain_ms:,} ms away from the planned times, more than 1 % of"
            f" {seconds:.1f} s: the control plane answered slowly"
        )


@given(uncertain_ms=st.integers(0, 3_000), planned_s=st.floats(2.0, 300.0), share=st.floats(0.01, 1.0))
@example(uncertain_ms=250, planned_s=60.0, share=1 / 6)
def test_an_abort_does_not_change_the_tolerated_deviation(uncertain_ms: int, planned_s: float, share: float) -> None:
    """Neither in the stage that it cuts, nor in those before it."""
    planned, whole = plan(30.0, planned_s), measured(30.0, 0, 1)
    complete, cut = (measured(length_s, uncertain_ms, 2) for length_s in (planned_s, share * planned_s))

    found = judge_timing({"worker-0": [whole, cut]}, {}, planned)

    assert found == judge_timing({"worker-0": [whole, complete]}, {}, planned)


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 700)), min_size=1, max_size=4))
@example([(10, 150), (20, 210)])
@example([(10, 150), (20, 190)])
def test_a_run_is_invalid_when_one_of_its_windows_is_alone(windows: list[tuple[int, int]]) -> None:
    """However much the others deviate: (length, possible deviation in ms) of each stage."""
    known = [measured(length_s, uncertain_ms, step_id) for step_id, (length_s, uncertain_ms) in enumerate(windows, 1)]
    planned = plan(*(float(length_s) for length_s, _ in windows), 1.0)
    alone = [judge_timing({"worker-0": [one]}, {}, planned) for one in known]

    found = judge_timing({"worker-0": known}, {}, planned)

    assert bool(found.invalid) == any(one.invalid for one in alone)
    assert bool(found.warnings) == (not found.invalid and any(one.warnings for one in alone))
    assert {*found.invalid, *found.warnings} <= {text for one in alone for text in (*one.invalid, *one.warnings)}


def test_of_a_search_only_the_decisive_steps_are_judged() -> None:
    windows = {"worker-0": [measured(30.0, 0, 1), measured(30.0, 900, 2)]}

    assert not judge_timing(windows, {}, plan(), steps={1}).invalid
    assert "in step 2" in judge_timing(windows, {}, plan(), steps={2}).invalid[0]


@pytest.mark.parametrize(("seconds", "valid"), [(10.0, True), (9.5, True), (9.4, False), (0.0, False)])
def test_a_warmup_that_was_cut_is_invalid(seconds: float, valid: bool) -> None:
    windows = {name: [measured(60.0, 0)] for name in ("worker-0", "worker-1")}
    settled = warmed_up(9.0, step_id=3)  # before a step of a search
    warmups = {"worker-0": [warmed_up(10.0)], "worker-1": [warmed_up(seconds), settled]}

    found = judge_timing(windows, warmups, plan(60.0, warmup_s=10.0))

    expected = f"worker-1 warmed up for {seconds:.1f} of 10.0 s ({10 * seconds:.0f} %, at least 95 %): it began late"
    assert found.invalid == (() if valid else (expected,))


@pytest.mark.parametrize(
    ("missing_ms", "gap_ms", "valid"),
    [(0, 0, True), (500, 500, True), (500, 0, True), (600, 600, False), (600, 0, False), (8_000, 8_000, False)],
)
def test_a_warmup_in_which_connections_sent_nothing_is_invalid(missing_ms: int, gap_ms: int, valid: bool) -> None:
    """The time of a pause, and of a missing connection, is not warm-up."""
    there = ConnectionTime(planned_ms=80_000, delivered_ms=80_000 - 8 * missing_ms)
    paused = replace(warmed_up(10.0), connections=there, client=ClientResourceUse(elapsed_ms=10_000, gap_ms=gap_ms))

    found = judge_timing({"worker-0": [measured(60.0, 0)]}, {"worker-0": [paused]}, plan(60.0, warmup_s=10.0))

    own_s = 10.0 - missing_ms / 1_000
    why = f"its process was paused for {gap_ms / 1_000:.1f} s" if gap_ms else "connections were missing"
    expected = f"worker-0 warmed up for {own_s:.1f} of 10.0 s ({10 * own_s:.0f} %, at least 95 %): {why}"
    assert found.invalid == (() if valid else (expected,))


def test_late_begin_and_pauses_of_a_warmup_add_up() -> None:
    there = ConnectionTime(planned_ms=76_000, delivered_ms=72_000)
    late = replace(warmed_up(9.5), connections=there, client=ClientResourceUse(elapsed_ms=9_500, gap_ms=500))

    found = judge_timing({"worker-0": [measured(60.0, 0)]}, {"worker-0": [late]}, plan(60.0, warmup_s=10.0))

    assert found.invalid == (
        "worker-0 warmed up for 9.0 of 10.0 s (90 %, at least 95 %): it began late, its process was paused for 0.5 s",
    )


def test_a_pause_across_the_end_of_a_warmup_does_not_lengthen_it() -> None:
    """The window closes when the process runs again: 1 s of its 14 s was warm-up."""
    there = ConnectionTime(planned_ms=80_000, delivered_ms=80_000).while_running(13_000, 14_000)
    paused = replace(warmed_up(14.0), connections=there, client=ClientResourceUse(elapsed_ms=14_000, gap_ms=13_000))

    found = judge_timing({"worker-0": [measured(60.0, 0)]}, {"worker-0": [paused]}, plan(60.0, warmup_s=10.0))

    assert "warmed up for 1.0 of 10.0 s" in found.invalid[0]


@pytest.mark.parametrize(("seconds", "valid"), [(0.81, True), (0.79, False)])
def test_a_short_warmup_may_begin_200_ms_late(seconds: float, valid: bool) -> None:
    found = judge_timing(
        {"worker-0": [measured(60.0, 0)]}, {"worker-0": [warmed_up(seconds)]}, plan(60.0, warmup_s=1.0)
    )

    assert (found.invalid == ()) is valid


def test_a_worker_that_measured_nothing_has_other_reasons() -> None:
    assert not judge_timing({"worker-0": []}, {}, plan(60.0, warmup_s=10.0)).invalid


def test_many_workers_are_named_in_part() -> None:
    windows = {f"worker-{number}": [measured(60.0, 3_000)] for number in range(9)}

    found = judge_timing(windows, {}, plan(60.0)).invalid

    assert len(found) == 6
    assert found[-1] == "4 more workers had such a problem"
