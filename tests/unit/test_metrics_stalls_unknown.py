"""Undetectable stalls: statements ran for more than 1 s, and had too few samples for a median."""

from __future__ import annotations

from dataclasses import replace

from loadgen.metrics.recorder import Outcome
from loadgen.metrics.stalls import WindowStalls, possible_stalls
from loadgen.metrics.window import MergedWindows, merge
from loadgen.model.threshold import parse_threshold
from loadgen.rules.client_health import ClientHealth, ClientHealthByScope
from loadgen.rules.thresholds import Checked, check_threshold
from loadgen.rules.validity import undecided
from loadgen.scenario.model import Threshold
from tests.unit.metrics_builders import MS, Loop, S, row_of

STALL = Threshold(check=parse_threshold("longest_stall < 5s"))


def judged(loop: Loop, end_s: int) -> tuple[Checked, MergedWindows]:
    """By what is stored."""
    found = loop.until(end_s)
    (result,) = loop.harvester.results(end_s * S)
    run = merge([[row_of(replace(result, stalls=found)).result()]])
    return check_threshold(STALL.check, run), run


def test_a_threshold_that_a_hidden_stall_may_have_missed_is_undecided_and_says_what_to_do() -> None:
    loop = Loop()
    for _ in range(5):
        loop.send(0, 10 * MS)
    loop.send(0, 20 * S)

    found, run = judged(loop, 15)

    assert run.longest_stall_ms == 0.0
    assert (found.passed, found.undecided, found.value) == (False, True, None)
    assert undecided([STALL], [found], ClientHealthByScope(run=ClientHealth()), run, open_loop=False) == [
        "undecided: longest_stall < 5s cannot be judged: for 14.9 s every statement in flight may have been stalled,"
        " but some had fewer than 10 samples for a median, or their worker was paused; use a longer warm-up, or"
        " leave the threshold out"
    ]


def test_a_server_that_never_answered_was_not_without_a_stall() -> None:
    loop = Loop(clients=2)
    for client in (0, 1):
        loop.send(client, 8 * S, ends=Outcome.CANCELLED)
        loop.send(client, 8 * S, ends=Outcome.CANCELLED)

    assert judged(loop, 20)[0].undecided


def test_slow_statements_pass_a_threshold_that_is_longer_than_they_are() -> None:
    loop = Loop(clients=2)
    for client in (0, 1):
        for _ in range(3):
            loop.send(client, 4 * S)

    found, _ = judged(loop, 20)

    assert (found.passed, found.at_most, found.value) == (True, True, 3_999.0)


def test_a_rare_slow_statement_is_no_doubt_while_others_are_answered() -> None:
    loop = Loop(clients=2, names=("fast", "rare"))
    loop.send(1, 15 * S, number=1)
    while loop.free_ns[0] < 15 * S:
        loop.send(0, 50 * MS)

    found, _ = judged(loop, 20)

    assert (found.passed, found.value) == (True, 0.0)


def test_a_stall_that_is_known_to_be_too_long_fails_whatever_is_not_known() -> None:
    loop = Loop(clients=2, names=("fast", "rare"))
    for _ in range(50):
        loop.send(0, 50 * MS)
    loop.send(0, 20 * S)
    loop.free_ns[1] = 30 * S
    loop.send(1, 9 * S, number=1)

    found, _ = judged(loop, 40)

    assert (found.passed, found.undecided, found.value) == (False, False, 19_999.0)


def test_without_an_answer_an_open_loop_does_not_know_either() -> None:
    loop = Loop(open_loop=True)
    loop.flights = [(0, sent_ms * MS, 9_000 * MS, Outcome.SUCCEEDED) for sent_ms in range(1_000, 9_000, 500)]

    assert judged(loop, 12)[0].undecided


def test_a_run_is_in_doubt_only_where_no_worker_was_answered() -> None:
    doubtful = WindowStalls(from_ms=0, until_ms=20_000, possible=((2_000, 12_000),))
    answered = WindowStalls(from_ms=0, until_ms=20_000)
    idle = WindowStalls(from_ms=0, until_ms=20_000, idle=((0, 9_000),))

    assert possible_stalls([[doubtful], [answered]]) == ()
    assert possible_stalls([[doubtful], [idle]]) == ((2_000, 9_000),)
