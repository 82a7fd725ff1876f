"""Dealing the arrivals of a window: each number to one taker, and none is forgotten when the window closes."""

import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.scenario.model import ArrivalProcess
from loadgen.units import NS_PER_S
from loadgen.worker.client_context import ArrivalQueue
from loadgen.workload.arrivals import ArrivalSchedule, RateStage

OPENED_NS = 50 * NS_PER_S


def schedule(
    rate: float = 10.0, duration_s: float = 10.0, *, arrival: ArrivalProcess = ArrivalProcess.UNIFORM, before: int = 0
) -> ArrivalSchedule:
    stage = RateStage(duration_s=duration_s, rate_per_second=rate)
    return ArrivalSchedule([stage], arrival=arrival, worker=0, workers=1, seed=3, planned_before=before)


def taken_by(arrivals: ArrivalQueue, most: int = 10**9) -> list[int]:
    taken: list[int] = []
    while len(taken) < most and (number := arrivals.take()) is not None:
        taken.append(number)
    return taken


def second(value: float) -> int:
    return OPENED_NS + round(value * NS_PER_S)


schedules = st.builds(
    schedule, st.floats(0, 40), st.floats(0, 8), arrival=st.sampled_from(ArrivalProcess), before=st.integers(0, 5)
)


@given(schedules)
def test_every_arrival_of_the_window_is_taken_once_in_order(planned):
    arrivals = ArrivalQueue(4, planned, OPENED_NS)

    taken = taken_by(arrivals)

    assert taken == list(range(planned.first, planned.end))
    assert arrivals.take() is None
    assert arrivals.take() is None
    dues_ns = [arrivals.due_ns(number) for number in taken]
    assert dues_ns == sorted(dues_ns)
    assert all(OPENED_NS <= due_ns <= second(planned.duration_s) + 1 for due_ns in dues_ns)


@given(schedules, st.integers(0, 100), st.floats(0, 12))
def test_arrivals_that_are_left_at_the_close_were_due_and_not_taken(planned, clients, closes_s):
    arrivals = ArrivalQueue(4, planned, OPENED_NS)
    taken = taken_by(arrivals, clients)
    due = {n for n in range(planned.first, planned.end) if arrivals.due_ns(n) <= second(closes_s)}

    left = list(arrivals.close(second(closes_s)))

    assert sorted(left) == left
    assert len(left) == len(set(left))
    assert set(left) == due - set(taken)
    assert arrivals.take() is None


def test_a_window_that_closed_in_time_leaves_everything_that_was_not_taken():
    """Also arrivals that are due at its very end: as many are accounted for as were planned."""
    planned = schedule(rate=1 / 3, duration_s=10.0)
    arrivals = ArrivalQueue(4, planned, OPENED_NS)

    assert list(arrivals.close(second(10.0))) == list(range(planned.first, planned.end)) == [0, 1, 2]


def test_no_arrival_after_the_announced_end_is_taken():
    planned = schedule(rate=10.0, duration_s=10.0)
    arrivals = ArrivalQueue(4, planned, OPENED_NS, until_ns=second(2.55))

    assert taken_by(arrivals) == list(range(26))
    assert list(arrivals.close(second(2.6))) == []


@given(schedules, st.floats(0, 9), st.floats(0, 9))
def test_a_late_worker_gets_the_arrivals_that_are_due_from_then_on(planned, since_s, until_s):
    arrivals = ArrivalQueue(4, planned, OPENED_NS, since_ns=second(since_s), until_ns=second(until_s))
    everything = range(planned.first, planned.end)

    wanted = [
        n
        for n in everything
        if (arrivals.due_ns(n) >= second(since_s) or since_s == 0)
        and (arrivals.due_ns(n) <= second(until_s) or until_s >= planned.duration_s)
    ]

    assert taken_by(arrivals) == wanted


def test_a_worker_that_joined_before_the_window_opened_gets_all_of_it():
    planned = schedule()

    assert len(taken_by(ArrivalQueue(4, planned, OPENED_NS, since_ns=OPENED_NS - 5))) == planned.end


def test_an_empty_window_has_no_arrivals():
    arrivals = ArrivalQueue(4, schedule(rate=0.0), OPENED_NS, since_ns=second(1), until_ns=second(2))

    assert arrivals.take() is None
    assert list(arrivals.close(second(3))) == []


def test_closing_takes_no_time_for_arrivals_that_were_not_due():
    planned = schedule(rate=100_000.0, duration_s=9_000.0, arrival=ArrivalProcess.POISSON)
    arrivals = ArrivalQueue(4, planned, OPENED_NS)

    left = list(arrivals.close(second(0.001)))

    assert 50 < len(left) < 200
    assert planned.end == 900_000_000


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 8), st.floats(0, 2))
def test_many_takers_while_the_window_closes_take_each_number_once(clients, closes_s):
    """The ramp controller closes while clients take: of what was due, every number went to exactly one of them."""
    planned = schedule(rate=2_000.0, duration_s=2.0)
    arrivals = ArrivalQueue(4, planned, OPENED_NS)
    hands: list[list[int]] = [[] for _ in range(clients)]
    ready = threading.Barrier(clients + 1)

    def take(hand: list[int]) -> None:
        ready.wait()
        while (number := arrivals.take()) is not None:
            hand.append(number)

    threads = [threading.Thread(target=take, args=(hand,), name="taker") for hand in hands]
    for thread in threads:
        thread.start()
    ready.wait()
    left = list(arrivals.close(second(closes_s)))
    for thread in threads:
        thread.join()

    dealt = sorted([*left, *(number for hand in hands for number in hand)])
    due = [n for n in range(planned.first, planned.end) if arrivals.due_ns(n) <= second(closes_s)]
    assert len(dealt) == len(set(dealt))
    assert [n for n in dealt if arrivals.due_ns(n) <= second(closes_s)] == due
    assert all(arrivals.due_ns(n) <= second(closes_s) for n in left)
