"""A server that freezes under an open loop of several workers."""

from __future__ import annotations

import pytest

from loadgen.metrics.recorder import Outcome
from loadgen.metrics.stalls import run_stalls
from tests.unit.metrics_builders import MS, Loop


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("frozen", [(25_960, 31_580), (30_000, 33_700)])
def test_a_freeze_under_an_open_loop_is_as_long_with_any_number_of_workers(
    workers: int, frozen: tuple[int, int]
) -> None:
    """Two arrivals a second. With four workers each has one in two seconds: most of them have nothing in flight when
    the server freezes, and send while it is frozen."""
    loops = [Loop(open_loop=True) for _ in range(workers)]
    answers = []
    for number, sent_ms in enumerate(range(0, 60_000, 500)):
        done_ms = sent_ms + 300
        if sent_ms < frozen[1] and done_ms > frozen[0]:
            done_ms = frozen[1] + number % 5
        answers.append(done_ms)
        loops[number % workers].flights.append((0, sent_ms * MS, done_ms * MS, Outcome.SUCCEEDED))
    began_ms = max(done_ms for done_ms in answers if done_ms < frozen[0])

    (stall,) = run_stalls([[loop.until(62)] for loop in loops]) or ()

    # From the last answer, or the first statement that was in flight after it.
    assert began_ms <= stall[0] <= began_ms + 501
    assert frozen[1] <= stall[1] <= frozen[1] + 5


def test_an_open_loop_of_several_workers_is_not_stalled_while_one_of_them_is_answered() -> None:
    frozen, served = Loop(open_loop=True), Loop(open_loop=True)
    for sent_ms in range(0, 60_000, 500):
        done_ms = sent_ms + 300
        served.flights.append((0, sent_ms * MS, done_ms * MS, Outcome.SUCCEEDED))
        frozen.flights.append(
            (0, sent_ms * MS, (max(done_ms, 31_000) if sent_ms > 25_000 else done_ms) * MS, Outcome.SUCCEEDED)
        )

    assert run_stalls([[frozen.until(62)], [served.until(62)]]) == ()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_freeze_is_as_long_where_clients_think(workers: int) -> None:
    """Eight clients, 4 s of think time, statements of 300 ms; each goes on sending when its pause is over."""
    frozen = (40_000, 46_000)
    loops = [Loop(thinks=True) for _ in range(workers)]
    for client in range(8):
        at_ms = client * 530
        while at_ms < 80_000:
            done_ms = at_ms + 300
            if at_ms < frozen[1] and done_ms > frozen[0]:
                done_ms = frozen[1] + client
            loops[client % workers].flights.append((0, at_ms * MS, done_ms * MS, Outcome.SUCCEEDED))
            at_ms = done_ms + 4_000

    (stall,) = run_stalls([[loop.until(82)] for loop in loops]) or ()

    assert frozen[0] - 500 <= stall[0] <= frozen[0] + 600
    assert frozen[1] <= stall[1] <= frozen[1] + 8


def test_think_time_alone_is_no_stall() -> None:
    loop = Loop(thinks=True)
    for at_ms in range(0, 80_000, 4_300):
        loop.flights.append((0, at_ms * MS, (at_ms + 300) * MS, Outcome.SUCCEEDED))

    assert run_stalls([[loop.until(82)]]) == ()
