"""Counts that add up, and many workers as one."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.recorder import Outcome, WindowState
from loadgen.metrics.tally import ErrorKey, ErrorTally, StatementTally, Tally, Times
from loadgen.metrics.window import WindowResult, merge, window_discrepancy
from loadgen.model.counts import Counts, ErrorCategory, count_discrepancy
from loadgen.model.run import Phase
from tests.unit.metrics_builders import MS, histogram

numbers = st.integers(0, 1_000)
all_counts = st.builds(
    lambda skipped, succeeded, failed, cancelled, in_flight: Counts(
        scheduled=skipped + succeeded + failed + cancelled + in_flight,
        skipped=skipped,
        succeeded=succeeded,
        failed=failed,
        cancelled=cancelled,
        in_flight=in_flight,
    ),
    *[numbers] * 5,
)


def window(
    *,
    window_id: int = 1,
    seconds: float = 10.0,
    times_ms: list[int],
    failed: int = 0,
    scheduled: int | None = None,
    state: WindowState = WindowState.FINAL,
) -> WindowResult:
    times = histogram([time_ms * MS for time_ms in times_ms])
    outcomes = {Outcome.SUCCEEDED: Times(times, times)}
    if failed:
        slow = histogram([MS] * failed)
        outcomes[Outcome.CONNECTION] = Times(slow, slow)
    ended = len(times_ms) + failed
    return WindowResult(
        window_id=window_id,
        phase=Phase.MEASUREMENT,
        step_id=None,
        state=state,
        seconds=seconds,
        counts=Counts(scheduled=ended if scheduled is None else scheduled, succeeded=len(times_ms), failed=failed),
        tally=Tally(
            statements={"pay": StatementTally(times=outcomes)},
            errors={ErrorKey(ErrorCategory.CONNECTION, 7): ErrorTally(failed, "reset")} if failed else {},
        ),
    )


@given(all_counts, all_counts)
def test_counts_that_add_up_still_do_when_added(left, right):
    both = left + right

    assert count_discrepancy(both) is None
    assert both == right + left
    assert both.ended == left.ended + right.ended
    assert both.scheduled == left.scheduled + right.scheduled


@given(all_counts, st.sampled_from(Counts.__slots__), st.integers(1, 9), st.sampled_from([-1, 1]))
def test_every_single_discrepancy_is_named(counts, name, by, sign):
    values = {slot: getattr(counts, slot) for slot in Counts.__slots__}
    values[name] += by * sign

    assert count_discrepancy(Counts(**values)) is not None


def test_a_discrepancy_names_what_is_missing():
    assert (
        count_discrepancy(Counts(scheduled=10, skipped=1, succeeded=5, failed=1, cancelled=1, in_flight=1))
        == "scheduled 10 is not skipped 1 + succeeded 5 + failed 1 + cancelled 1 + in_flight 1: 1 lost"
    )
    assert str(count_discrepancy(Counts(scheduled=1, succeeded=2))).endswith("1 too many")


def test_the_rate_of_errors_is_of_those_that_ended_either_way():
    assert Counts(scheduled=9, skipped=5, succeeded=3, failed=1).error_rate == 0.25
    assert Counts(skipped=5, cancelled=1).error_rate is None


def test_a_window_whose_parts_disagree_is_named():
    good = window(times_ms=[1, 2], failed=1)
    assert window_discrepancy(good) is None

    assert window_discrepancy(window(times_ms=[1], scheduled=2)) == (
        "window 1: scheduled 2 is not skipped 0 + succeeded 1 + failed 0 + cancelled 0 + in_flight 0: 1 lost"
    )


def test_no_more_arrivals_have_an_age_than_were_skipped():
    old = histogram([MS] * 2)
    statement = StatementTally(skipped=1, unsent=old)
    bad = replace(
        window(times_ms=[]), counts=Counts(scheduled=1, skipped=1), tally=Tally(statements={"pay": statement})
    )

    assert window_discrepancy(bad) == "window 1: pay: 1 were skipped, and the age of 2 is known"


def test_percentiles_of_a_run_come_from_merged_buckets_and_rates_from_its_span():
    fast = window(times_ms=[10] * 90, seconds=10.0)
    slow = window(times_ms=[1_000] * 10, seconds=5.0)

    merged = merge([[fast], [slow]])

    whole = merged.tally.whole
    p90, p95 = whole.response_at(900), whole.response_at(950)
    assert p90 is not None
    assert p95 is not None
    assert p90.value_ns == pytest.approx(10 * MS, rel=0.01)  # the mean of the workers' p90 would be 505 ms
    assert p95.value_ns == pytest.approx(1_000 * MS, rel=0.01)
    assert merged.qps == pytest.approx(100 / 10)  # the slow one left after half of the span
    assert merged.statement_qps == {"pay": pytest.approx(10.0)}
    assert (merged.counts.succeeded, merged.seconds) == (100, 10.0)


def test_while_a_run_goes_on_beats_are_of_different_moments():
    late = window(times_ms=[1] * 90, seconds=9.0, state=WindowState.OPEN)
    fresh = window(times_ms=[1] * 100, seconds=10.0, state=WindowState.OPEN)
    left = window(times_ms=[1] * 50, seconds=5.0)

    assert merge([[late], [fresh], [left]], live=True).qps == pytest.approx(10 + 10 + 5)
    assert merge([[late], [fresh], [left]]).qps == pytest.approx(240 / 10)


def test_while_a_window_is_open_statements_in_flight_have_their_share_of_its_seconds():
    """16 connections, 200 ms each, 2 s: a statement of each was begun before the window, another will end after it."""
    young = window(times_ms=[200] * 144, seconds=2.0, state=WindowState.OPEN)
    young = replace(young, counts=young.counts + Counts(scheduled=16, in_flight=16))

    assert merge([[young]], live=True).qps == pytest.approx(80.0)
    assert merge([[young]]).qps == pytest.approx(72.0)


def test_windows_of_one_worker_follow_one_another():
    merged = merge([[window(times_ms=[1] * 30, seconds=10.0), window(window_id=2, times_ms=[1] * 10, seconds=30.0)]])

    assert merged.qps == 1.0
    assert merged.seconds == 40.0


def test_without_samples_there_is_no_rate():
    assert merge([]).qps == 0.0
    assert merge([[window(times_ms=[], seconds=0.0)]]).qps == 0.0


def test_the_example_of_an_error_is_the_same_in_every_order_of_merging():
    assert ErrorTally(1, "b") + ErrorTally(2, "a") == ErrorTally(2, "a") + ErrorTally(1, "b") == ErrorTally(3, "a")


def test_errors_of_workers_are_put_together():
    merged = merge([[window(times_ms=[1], failed=2)], [window(times_ms=[1], failed=3)]])

    assert merged.tally.errors == {ErrorKey(ErrorCategory.CONNECTION, 7): ErrorTally(5, "reset")}
    assert merged.counts.error_rate == pytest.approx(5 / 7)
    assert merged.tally.whole.failures[Outcome.CONNECTION].response.count == 5
