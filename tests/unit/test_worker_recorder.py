"""Begin, take back, skip: the counts of a window are complete for every outcome of arrivals, and become final."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.recorder import Outcome, WindowRegistry, WindowState
from loadgen.metrics.sample_collector import SampleCollector
from loadgen.metrics.window import window_discrepancy
from loadgen.model.run import Phase
from tests.unit.metrics_builders import sample, statement


@pytest.fixture
def windows():
    windows = WindowRegistry()
    windows.open(1, phase=Phase.MEASUREMENT, at_ns=0)
    return windows


@pytest.fixture
def harvester(windows):
    return SampleCollector(windows, [statement("a"), statement("b")], open_loop=True, started_ns=0)


def only(harvester, now_ns=10):
    harvester.harvest(now_ns)
    (result,) = harvester.results(now_ns)
    return result


def test_a_begin_that_is_taken_back_was_never_scheduled(windows, harvester):
    recorder = harvester.recorder()
    window = recorder.begin()
    assert only(harvester).counts.in_flight == 1

    recorder.unbegin(window)
    windows.close(at_ns=5)

    result = only(harvester)
    assert result.counts.scheduled == 0
    assert result.state is WindowState.FINAL


def test_a_skipped_arrival_is_scheduled_and_skipped_and_has_no_times(windows, harvester):
    recorder = harvester.recorder()
    window = recorder.begin()
    recorder.skip(window, 1)
    recorder.skip(window, 1)
    recorder.unbegin(window)
    windows.close(at_ns=5)

    result = only(harvester)

    assert (result.counts.scheduled, result.counts.skipped, result.counts.in_flight) == (2, 2, 0)
    assert result.tally.statements["b"].skipped == 2
    assert not result.tally.statements["b"].times
    assert result.tally.whole.lag.count == 0
    assert window_discrepancy(result) is None


def test_a_window_that_is_held_stays_open_to_skips_after_it_has_closed(windows, harvester):
    holder, client = harvester.recorder(), harvester.recorder()
    assert client.begin() == holder.begin() == 1
    windows.close(at_ns=5)
    client.append(sample(window=1))
    assert only(harvester).state is WindowState.CLOSED

    holder.skip(1, 0)
    assert only(harvester).state is WindowState.CLOSED
    holder.unbegin(1)

    result = only(harvester)
    assert result.state is WindowState.FINAL
    assert (result.counts.scheduled, result.counts.succeeded, result.counts.skipped) == (2, 1, 1)


def test_begin_gives_nothing_when_no_window_is_open(windows, harvester):
    recorder = harvester.recorder()
    windows.close(at_ns=5)

    assert recorder.begin() is None
    assert recorder.begun(1) == 0


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["begin", "end", "skip", "unbegin", "harvest", "next"])),
        max_size=60,
    )
)
def test_the_identity_holds_at_every_harvest_and_final_windows_never_change(script):
    windows = WindowRegistry()
    harvester = SampleCollector(windows, [statement("a")], open_loop=True, started_ns=0)
    recorders = [harvester.recorder() for _ in range(3)]
    windows.open(1, phase=Phase.MEASUREMENT, at_ns=0)
    begun: dict[int, list[int]] = {0: [], 1: [], 2: []}
    final: dict[int, object] = {}
    newest = now_ns = 1
    for who, what in script:
        now_ns += 1
        recorder, mine = recorders[who], begun[who]
        if what == "begin":
            window = recorder.begin()
            assert window == newest
            mine.append(window)
        elif what == "end" and mine:
            recorder.append(sample(window=mine.pop()))
        elif what == "skip" and mine:
            recorder.skip(mine[-1], 0)
        elif what == "unbegin" and mine:
            recorder.unbegin(mine.pop())
        elif what == "next":
            newest += 1
            windows.open(newest, phase=Phase.MEASUREMENT, at_ns=now_ns)
        elif what == "harvest":
            harvester.harvest(now_ns)
            for result in harvester.results(now_ns):
                assert window_discrepancy(result) is None
                if result.state is WindowState.FINAL:
                    assert final.setdefault(result.window_id, result.counts) == result.counts
    for who, mine in begun.items():
        for window in mine:
            recorders[who].append(sample(window=window, outcome=Outcome.CANCELLED))
    windows.close(at_ns=now_ns + 1)
    harvester.harvest(now_ns + 2)
    assert {result.state for result in harvester.results(now_ns + 2)} == {WindowState.FINAL}
