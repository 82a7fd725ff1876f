"""Stalls: what a worker finds, what a run of several workers makes of it, and what is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadgen.metrics.recorder import Outcome
from loadgen.metrics.stalls import WindowStalls, possible_stalls, run_stalls, stall_warnings, stalls_document
from loadgen.metrics.window import merge
from loadgen.model.run import Phase
from loadgen.model.threshold import parse_threshold
from loadgen.rules.thresholds import check_threshold
from tests.unit.metrics_builders import MS, Loop, S, row_of
from tests.unit.scenario_builders import problems_of


def busy(loop: Loop, until_s: float, service_ns: int) -> None:
    for client in range(len(loop.free_ns)):
        while loop.free_ns[client] < until_s * S:
            loop.send(client, service_ns)


def close_window(loop: Loop) -> None:
    """At 10 s."""
    loop.until(10)
    loop.windows.close(at_ns=10 * S)


def test_a_stall_is_as_long_as_what_froze_the_server():
    loop = Loop(clients=8)
    busy(loop, 5.0, 50 * MS)
    for client in range(8):
        loop.send(client, 23 * S)

    assert loop.until(20).stalled == ((5_001, 20_000),)  # while it goes on
    busy(loop, 32.0, 50 * MS)
    assert loop.until(31).stalled == ((5_001, 28_000),)


@pytest.mark.parametrize("service_ms", [50, 400, 2_500])
def test_a_worker_that_was_paused_is_no_server_that_stalled(service_ms: int) -> None:
    loop = Loop(clients=4)
    busy(loop, 35.0, service_ms * MS)
    loop.pause(35.2, 65.5)
    busy(loop, 80.0, service_ms * MS)

    found = loop.until(78)

    assert found.stalled == ()
    assert found.paused == ((35_200, 65_500),)


def test_a_stall_around_a_pause_is_as_long_as_the_worker_could_see_it() -> None:
    loop = Loop(clients=4)
    busy(loop, 5.0, 50 * MS)
    for client in range(4):
        loop.send(client, 20 * S)
    loop.pause(8.0, 16.0)
    busy(loop, 30.0, 50 * MS)

    found = loop.until(28)

    assert found.stalled == ((5_001, 8_000), (16_000, 25_000))
    assert (found.idle, found.paused) == (((8_000, 16_000),), ()), "the pause belongs to the stall"
    assert possible_stalls([[found]]) == ((5_001, 25_000),)  # the server may not have answered in the pause either


def test_a_pause_of_one_worker_does_not_hide_a_stall_that_another_saw() -> None:
    stalled = WindowStalls(from_ms=0, until_ms=20_000, stalled=((5_000, 15_000),))
    paused = WindowStalls(from_ms=0, until_ms=20_000, stalled=((5_000, 8_000),), idle=((8_000, 15_000),))

    assert run_stalls([[stalled], [paused]]) == ((5_000, 15_000),)
    assert run_stalls([[paused], [paused]]) == ((5_000, 8_000),)


def test_a_pause_of_one_worker_makes_a_slow_statement_of_another_no_stall() -> None:
    """What it had in flight is answered when it runs again; whether it was answered before is not known."""
    slow = WindowStalls(from_ms=0, until_ms=20_000, stalled=((5_000, 11_000),))
    paused = WindowStalls(from_ms=0, until_ms=20_000, paused=((7_000, 9_500),))

    assert run_stalls([[slow], [paused]]) == ()
    assert possible_stalls([[slow], [paused]]) == ((7_000, 9_500),)


@pytest.mark.parametrize(
    ("clients", "sent", "from_ms"),
    [
        # a server that has others in flight: the last answer, at 5.7 s, after the last statement was sent, at 5.4 s
        (3, [(10 * S, 0), (700 * MS, 0), (10 * S, 400 * MS)], 5_701),
        (2, [(10 * S, 0), (10 * S, 800 * MS)], 5_800),  # the last statement that was sent
        (2, [(10 * S, 0), (10 * S, 2_500 * MS)], 5_001),  # a statement sent into a stall goes on with it
    ],
)
def test_a_stall_counts_from_the_last_answer_or_the_last_statement_that_was_sent(
    clients: int, sent: list[tuple[int, int]], from_ms: int
) -> None:
    loop = Loop(clients=clients)
    busy(loop, 5.0, 50 * MS)
    for client, (service_ns, think_ns) in enumerate(sent):
        loop.send(client, service_ns, think_ns=think_ns)

    assert loop.until(12).stalled == ((from_ms, 12_000),)


def test_an_answer_ends_a_stall_also_when_the_next_statement_is_as_slow():
    loop = Loop()
    busy(loop, 2.0, 50 * MS)
    loop.send(0, 5 * S)
    loop.send(0, 5 * S)

    found = loop.until(12)

    assert found.stalled == ((2_001, 7_000), (7_001, 12_000))
    assert run_stalls([[found]]) == found.stalled


def test_a_statement_that_timed_out_was_not_answered():
    loop = Loop(clients=2)
    busy(loop, 2.0, 50 * MS)
    for _ in range(3):
        loop.send(0, 5 * S, ends=Outcome.QUERY_TIMEOUT, think_ns=MS)
        loop.send(1, 5 * S, ends=Outcome.QUERY_TIMEOUT, think_ns=MS)

    assert loop.until(17).stalled == ((2_001, 17_000),)


def test_while_one_statement_answers_in_time_nothing_is_stalled():
    loop = Loop(clients=2)
    busy(loop, 5.0, 50 * MS)
    loop.send(0, 20 * S)
    while loop.free_ns[1] < 30 * S:
        loop.send(1, 50 * MS)

    assert loop.until(29).stalled == ()


@pytest.mark.parametrize("service_ns", [2 * S, 900 * MS])
def test_slow_statements_are_no_stall(service_ns):
    loop = Loop(clients=2)
    busy(loop, 60.0, service_ns)
    loop.send(0, 5 * service_ns)  # a rather slow one
    loop.send(1, 5 * service_ns)

    assert loop.until(80).stalled == ()


def test_think_time_and_low_rates_are_no_stall():
    loop = Loop()
    for _ in range(12):
        loop.send(0, 20 * MS, think_ns=5 * S)

    found = loop.until(60)

    assert found.stalled == ()
    assert found.idle  # nothing was in flight


def test_without_a_median_nothing_is_overdue():
    loop = Loop()
    for _ in range(5):
        loop.send(0, 10 * MS)
    loop.send(0, 20 * S)

    assert loop.until(15).stalled == ()


def test_a_rare_statement_in_flight_hides_no_stall():
    loop = Loop(clients=2, names=("a", "rare"))
    busy(loop, 5.0, 50 * MS)
    loop.send(0, 20 * S)
    loop.send(1, 20 * S, number=1)

    assert loop.until(20).stalled == ((5_001, 20_000),)


def test_each_statement_is_held_against_its_own_median():
    loop = Loop(clients=2, names=("fast", "slow"))
    for _ in range(20):
        loop.send(0, 50 * MS)
        loop.send(1, 500 * MS, number=1)
    loop.free_ns = [10 * S, 10 * S]
    loop.send(0, 10 * S)  # overdue after 1 s
    loop.send(1, 10 * S, number=1)  # after 5 s

    assert loop.until(20).stalled == ((10_001, 20_000),)  # the last answer came at 10 s


def test_a_stall_goes_on_behind_its_window_until_a_statement_is_answered():
    loop = Loop(clients=8)
    busy(loop, 7.0, 50 * MS)
    for client in range(8):
        loop.send(client, (20 + client) * S)
    close_window(loop)

    assert loop.until(15).stalled == ((7_001, 15_000),)
    found = loop.until(40)
    assert found.stalled == ((7_001, 27_000),)
    assert (found.from_ms, found.until_ms) == (0, 10_000)
    assert run_stalls([[found]]) == ((7_001, 27_000),)


@pytest.mark.parametrize(
    ("busy_until_s", "service_s", "ends", "stalled"),
    [
        (9.5, 7, Outcome.SUCCEEDED, (9_501, 16_500)),  # overdue only behind the window, it began in it
        (7.0, 20, Outcome.CANCELLED, (7_001, 27_000)),  # never answered: until it is cut off
    ],
)
def test_a_stall_that_began_in_its_window_ends_behind_it(
    busy_until_s: float, service_s: int, ends: Outcome, stalled: tuple[int, int]
) -> None:
    loop = Loop(clients=2)
    busy(loop, busy_until_s, 50 * MS)
    for client in range(2):
        loop.send(client, service_s * S, ends=ends)
    close_window(loop)

    assert loop.until(30).stalled == (stalled,)


def test_the_slowest_statement_of_the_drain_is_no_stall():
    loop = Loop(clients=2)
    busy(loop, 7.0, 50 * MS)
    loop.send(0, 20 * S)
    while loop.free_ns[1] < 10 * S:
        loop.send(1, 50 * MS)
    close_window(loop)

    assert loop.until(30).stalled == ()


def test_a_stall_that_began_before_its_window_counts_from_its_beginning():
    loop = Loop(clients=2)
    busy(loop, 5.0, 50 * MS)
    loop.send(0, 10 * S)
    loop.send(1, 10 * S)
    loop.until(8)
    loop.windows.open(2, phase=Phase.MEASUREMENT, at_ns=8 * S)
    loop.until(16)

    found = loop.harvester.stalls(2, 8 * S)

    assert found is not None
    assert (found.from_ms, found.stalled) == (0, ((-2_999, 7_000),))
    (result,) = (one for one in loop.harvester.results(16 * S) if one.window_id == 2)
    assert row_of(replace(result, stalls=found)).result().stalls == found


def stalls(*stalled: tuple[int, int], idle: tuple[tuple[int, int], ...] = (), until_ms: int = 60_000) -> WindowStalls:
    return WindowStalls(from_ms=0, until_ms=until_ms, stalled=stalled, idle=idle)


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        ([[stalls((5_000, 20_000))]], ((5_000, 20_000),)),
        ([[stalls((5_000, 20_000))], [stalls((8_000, 30_000))]], ((8_000, 20_000),)),
        ([[stalls((5_000, 20_000))], [stalls()]], ()),  # the other worker was answered
        ([[stalls((5_000, 20_000))], [stalls(idle=((0, 60_000),))]], ((5_000, 20_000),)),  # it had nothing in flight
        ([[stalls((5_000, 20_000))], [stalls(until_ms=10_000)]], ((10_000, 20_000),)),  # it had left
        ([[stalls((5_000, 20_000))], [None]], ((5_000, 20_000),)),  # of an older version
        ([[stalls((5_000, 5_050))]], ()),
        ([[stalls((50_000, 80_000))], [stalls((50_000, 79_000))]], ((50_000, 79_000),)),  # behind the windows as well
        ([[stalls((50_000, 80_000))], [stalls((50_000, 62_000))]], ((50_000, 62_000),)),  # the other one was answered
        ([[stalls((50_000, 80_000))], [stalls()]], ()),
        ([[stalls((-9_000, 4_000))], [stalls((-8_000, 5_000))]], ((-8_000, 4_000),)),
        ([[stalls(until_ms=0)], [stalls((5_000, 20_000))]], ((5_000, 20_000),)),  # it has just opened its window
        ([[None], []], None),
    ],
)
def test_a_run_is_stalled_where_no_worker_was_answered(workers, expected):
    assert run_stalls(workers) == expected


def test_stalls_are_stored_with_the_window_merged_and_judged():
    loop = Loop()
    busy(loop, 2.0, 50 * MS)
    loop.send(0, 20 * S)
    found = loop.until(10)
    (result,) = loop.harvester.results(10 * S)
    stored = row_of(replace(result, stalls=found)).result()

    run = merge([[stored]])

    assert stored.stalls == found
    assert run.longest_stall_ms == 7_999.0
    assert not check_threshold(parse_threshold("longest_stall < 5s"), run).passed
    assert check_threshold(parse_threshold("longest_stall <= 8s"), run).passed
    assert stalls_document(run.stalls) == {
        "count": 1, "longest_ms": 7_999.0, "total_ms": 7_999.0, "spans_s": [[2.001, 10.0]],
    }  # fmt: skip
    assert stall_warnings(run.stalls)[0].startswith(
        "the server stalled for 8.0 s from second 2.0 of the measurement on:"
    )
    assert stall_warnings(((0, 500),)) == stall_warnings(()) == stall_warnings(None) == []


@pytest.mark.parametrize(
    ("threshold", "what"),
    [
        ("a.longest_stall < 5s", "a stall is measured over all statements"),
        ("{check: longest_stall < 5s, window: 10s}", "a stall is measured over the whole measurement"),
        ("longest_stall < 5", "has a limit that does not fit longest_stall"),
    ],
)
def test_a_threshold_on_stalls_is_one_of_the_whole_run(threshold, what):
    (problem,) = problems_of(top=f"thresholds: [{threshold}]")
    assert what in problem


# --- open loop: arrivals go on while the server does not answer ------------------------------------------------------


def arrivals(loop: Loop, until_s: int, every_ms: int, service_ms: int, frozen: tuple[int, int] = (0, 0)) -> None:
    """What would be answered while the server is frozen is answered when it goes on."""
    for sent_ms in range(0, 1_000 * until_s, every_ms):
        done_ms = sent_ms + service_ms
        done_ms = frozen[1] + service_ms if frozen[0] < done_ms and sent_ms < frozen[1] else done_ms
        loop.flights.append((0, sent_ms * MS, done_ms * MS, Outcome.SUCCEEDED))


@pytest.mark.parametrize("every_ms", [10, 50, 400])
def test_a_server_that_freezes_in_an_open_loop_stalls_as_long_as_it_was_frozen(every_ms: int) -> None:
    loop = Loop(open_loop=True)
    arrivals(loop, 30, every_ms, 50, frozen=(10_000, 14_000))

    ((start_ms, end_ms),) = loop.until(25).stalled

    assert 10_000 - every_ms <= start_ms <= 10_000 + every_ms
    assert end_ms == 14_050


@pytest.mark.parametrize(
    ("every_ms", "service_ms", "frozen"),
    [
        (5_000, 50, (0, 0)),  # a low rate: seconds without an answer, and nothing in flight
        (500, 3_000, (0, 0)),  # slow statements
        (50, 50, (10_000, 10_900)),  # less than a second
        (500, 300, (10_000, 12_000)),  # not 10 times the median
    ],
)
def test_what_is_no_stall_in_an_open_loop(every_ms: int, service_ms: int, frozen: tuple[int, int]) -> None:
    loop = Loop(open_loop=True)
    arrivals(loop, 100, every_ms, service_ms, frozen)

    assert loop.until(90).stalled == ()
