"""Windows and recorders: where a statement belongs, and when nothing can be added any more."""

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from loadgen.metrics.recorder import FailedOutcome, Outcome, Recorder, WindowRegistry, WindowState
from loadgen.metrics.sample_collector import SampleCollector
from loadgen.metrics.window import merge, window_discrepancy
from loadgen.model.counts import ErrorCategory
from loadgen.model.run import Phase
from loadgen.model.threshold import parse_threshold
from loadgen.rules.thresholds import check_threshold
from loadgen.rules.validity import surplus_warnings
from tests.unit.metrics_builders import sample, statement
from tests.unit.orchestrator_builders import tally, window

S = 10**9


def opened(window_id: int = 1) -> WindowRegistry:
    windows = WindowRegistry()
    windows.open(window_id, phase=Phase.MEASUREMENT, at_ns=0)
    return windows


def states(windows: WindowRegistry) -> dict[int, WindowState]:
    return {window.window_id: window.state for window in windows.held()}


def test_a_window_closes_when_the_next_one_opens():
    windows = opened()

    windows.open(2, phase=Phase.MEASUREMENT, step_id=7, at_ns=3 * S)

    first, second = windows.held()
    assert (first.state, first.closed_ns, first.seconds(9 * S)) == (WindowState.CLOSED, 3 * S, 3.0)
    assert (second.state, second.step_id, second.seconds(5 * S)) == (WindowState.OPEN, 7, 2.0)
    assert second.seconds(2 * S) == 0.0, "a caller may have read the clock before it was opened"
    assert windows.newest == second


def test_nothing_begins_while_no_window_is_open():
    windows = WindowRegistry()
    recorder = Recorder(windows)
    assert recorder.begin() is None

    windows.open(1, phase=Phase.WARMUP, at_ns=0)
    assert recorder.begin() == 1
    windows.close(at_ns=S)
    windows.close(at_ns=2 * S)

    assert recorder.begin() is None
    assert recorder.begun(1) == 1
    assert windows.held()[0].closed_ns == S


def test_steps_that_would_lose_or_repeat_something_are_refused():
    windows = opened()
    with pytest.raises(ValueError, match="opened before"):
        windows.open(1, phase=Phase.MEASUREMENT, at_ns=S)
    with pytest.raises(ValueError, match="not final"):
        windows.forget(1)
    with pytest.raises(ValueError, match="cannot become final"):
        windows.settle(1)
    with pytest.raises(ValueError, match="before it opened"):
        windows.close(at_ns=-1)
    assert (states(windows), windows.current) == ({1: WindowState.OPEN}, 1)

    windows.close(at_ns=S)
    windows.settle(1)
    windows.forget(1)

    with pytest.raises(ValueError, match="opened before"):
        windows.open(1, phase=Phase.MEASUREMENT, at_ns=S)


def test_a_window_is_final_when_its_last_statement_has_ended_and_not_before():
    windows = opened()
    harvester = SampleCollector(windows, [statement("a")], open_loop=False, started_ns=0)
    first, second = harvester.recorder(), harvester.recorder()
    assert (first.begin(), second.begin()) == (1, 1)
    first.append(sample())
    windows.open(2, phase=Phase.MEASUREMENT, at_ns=S)

    harvester.harvest(S)
    assert states(windows) == {1: WindowState.CLOSED, 2: WindowState.OPEN}
    assert [result.counts.in_flight for result in harvester.results(S)] == [1, 0]

    second.append(sample(outcome=Outcome.CANCELLED))
    harvester.harvest(2 * S)
    assert states(windows) == {1: WindowState.FINAL, 2: WindowState.OPEN}


class Watched(WindowRegistry):
    """Lets another thread act at the worst moment: just after a client has looked which window is open."""

    def __init__(self) -> None:
        self.after_look: list[Callable[[], None]] = []
        super().__init__()

    @property
    def current(self) -> int | None:
        seen = self._current
        if self.after_look:
            self.after_look.pop(0)()
        return seen

    @current.setter
    def current(self, window_id: int | None) -> None:
        self._current = window_id


def nothing() -> None:
    pass


@pytest.mark.parametrize("looks_before", [0, 1])
@pytest.mark.parametrize("next_window", [None, 2])
def test_a_statement_is_never_counted_in_a_window_that_closed_while_it_began(looks_before, next_window):
    windows = Watched()
    windows.open(1, phase=Phase.MEASUREMENT, at_ns=0)
    harvester = SampleCollector(windows, [statement("a")], open_loop=False, started_ns=0)
    recorder = harvester.recorder()

    def switch() -> None:
        if next_window is None:
            windows.close(at_ns=S)
        else:
            windows.open(next_window, phase=Phase.MEASUREMENT, at_ns=S)
        harvester.harvest(S)

    windows.after_look = [nothing] * looks_before + [switch]
    window = recorder.begin()

    # After the second look the statement counts as begun just before the switch; it is seen, and waited for.
    began_before = looks_before == 1
    assert window == (1 if began_before else next_window)
    harvester.harvest(2 * S)
    assert states(windows)[1] is (WindowState.CLOSED if began_before else WindowState.FINAL)
    counts = {result.window_id: result.counts for result in harvester.results(2 * S)}
    assert counts[1].scheduled == counts[1].in_flight == int(began_before)
    assert next_window is None or counts[next_window].scheduled == int(not began_before)


def test_clients_in_threads_and_a_harvester_lose_nothing_and_add_nothing():
    windows, each, clients = opened(), 3_000, 4
    harvester = SampleCollector(windows, [statement("a")], open_loop=False, started_ns=0)
    done: list[int] = []

    def client(recorder: Recorder) -> None:
        began = 0
        while began < each:
            window = recorder.begin()
            if window is not None:
                recorder.append(sample(window=window))
                began += 1
        done.append(began)

    threads = [
        threading.Thread(target=client, args=(harvester.recorder(),), name=f"client-{n}") for n in range(clients)
    ]
    for thread in threads:
        thread.start()
    window_id = 1
    while any(thread.is_alive() for thread in threads):
        window_id += 1
        windows.open(window_id, phase=Phase.MEASUREMENT, at_ns=window_id)
        harvester.harvest(window_id)
    for thread in threads:
        thread.join()
    windows.close(at_ns=window_id + 1)
    harvester.harvest(window_id + 1)

    results = harvester.results(window_id + 1)
    assert {result.state for result in results} == {WindowState.FINAL}
    assert all(window_discrepancy(result) is None for result in results)
    assert sum(result.counts.succeeded for result in results) == sum(done) == each * clients


def test_responses_after_a_window_are_reported_less_responses_to_earlier_statements() -> None:
    windows = WindowRegistry()
    harvester = SampleCollector(windows, [statement("a")], open_loop=False, started_ns=0)
    recorder = harvester.recorder()
    windows.open(1, phase=Phase.WARMUP, at_ns=0)
    recorder.begin()
    windows.open(2, phase=Phase.MEASUREMENT, at_ns=100)
    recorder.append((0, 1, 90, 90, 110, Outcome.SUCCEEDED))  # of the warm-up, answered in the measurement
    for done_ns in (150, 210, 220, 230):
        recorder.begin()
        recorder.append((0, 2, 120, 120, done_ns, Outcome.SUCCEEDED))
    recorder.begin()
    recorder.append((0, 2, 120, 120, 240, FailedOutcome(ErrorCategory.SNOWFLAKE_ERROR, 1, "no")))  # no throughput
    windows.close(at_ns=200)
    harvester.harvest(300)

    warmup, measured = harvester.results(300)

    assert (warmup.surplus, measured.surplus) == (1, 3 - 1)
    merged = merge([[measured]])
    assert merged.surplus_fraction == 2 / 4
    check = parse_threshold(f"qps > {0.6 * merged.qps}")
    assert not check_threshold(check, merged).passed, "in the measured time the server answered half of it"
    assert check_threshold(check, replace(merged, surplus=0)).passed


def test_a_surplus_that_hardly_shows_is_ignored() -> None:
    merged = merge([[replace(window({"s": tally((20.0,) * 1_000)}), surplus=10)]])

    assert merged.surplus_fraction == 0.0
    assert surplus_warnings(merged, replay=False) == []
    (warning,) = surplus_warnings(replace(merged, surplus=11), replay=False)
    assert "1.1 % too high" in warning
    assert "a longer warm-up" in warning
    assert "11 more statements were answered after" in warning
    (of_replay,) = surplus_warnings(replace(merged, surplus=11), replay=True)
    assert "a lower load.speed" in of_replay
    assert "warm-up" not in of_replay
    assert "stages" not in of_replay
