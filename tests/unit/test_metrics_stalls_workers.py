"""A server that freezes under an open loop of several workers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loadgen.metrics.recorder import Outcome, WindowState
from loadgen.metrics.stalls import Span, WindowStalls, common, merged, run_stalls, without
from loadgen.metrics.window import WindowResult, merge
from loadgen.results.run_snapshot import WorkerHealth
from orchestrator.aggregation import RunAggregator
from tests.unit.metrics_builders import MS, Loop
from tests.unit.orchestrator_builders import live, view, window


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


# --- while the run measures: heartbeats are not equally old -----------------------------------------------------------


def told(
    until_ms: int, *stalled: Span, idle: tuple[Span, ...] = (), state: WindowState = WindowState.OPEN
) -> WindowResult:
    """The window of a worker in a heartbeat that reaches to `until_ms`."""
    spans = [common(spans, [(0, until_ms)]) for spans in (stalled, idle)]
    known = WindowStalls(from_ms=0, until_ms=until_ms, stalled=tuple(spans[0]), idle=tuple(spans[1]))
    return replace(window(state=state, seconds=until_ms / 1_000), stalls=known)


def test_an_old_heartbeat_is_no_evidence_of_a_stall() -> None:
    """Whether the second worker was answered after its heartbeat is not known yet."""
    frozen, answered = told(20_000, (13_000, 20_000)), told(12_500)

    found = merge([[frozen], [answered]], live=True)

    assert found.longest_stall_ms == 0.0
    assert found.possible_stall_ms == 0.0
    later = told(20_000, (13_000, 20_000))
    assert merge([[frozen], [later]], live=True).stalls == ((13_000, 20_000),)


@pytest.mark.parametrize("health", [WorkerHealth.DEAD, WorkerHealth.DONE])
def test_a_worker_that_has_ended_does_not_hide_a_stall(health: WorkerHealth) -> None:
    progress = RunAggregator([])
    frozen, gone = view(live=live(told(20_000, (13_000, 20_000)))), view(number=1, live=live(told(12_500)))
    progress.note([frozen, gone])
    assert progress.merged.longest_stall_ms == 0.0

    progress.note([frozen, replace(gone, health=health)])

    assert progress.merged.stalls == ((13_000, 20_000),)


def test_the_newest_window_of_a_worker_tells_how_far_it_has_reported() -> None:
    """A window that is stored meanwhile is kept as it was reported last: open."""
    stage, next_stage = told(9_500), replace(told(20_000, (13_000, 20_000)), window_id=2)

    assert merge([[stage, next_stage]], live=True).stalls == ((13_000, 20_000),)


LENGTH_MS = 30_000
spans = st.lists(st.integers(0, LENGTH_MS // 100), max_size=6, unique=True).map(
    lambda edges: [
        (100 * start, 100 * end) for start, end in zip(sorted(edges)[::2], sorted(edges)[1::2], strict=False)
    ]
)


@given(st.lists(st.tuples(spans, spans, st.integers(100, LENGTH_MS)), min_size=1, max_size=4), st.booleans())
@example([([(13_000, 20_000)], [], 20_000), ([], [], 12_500)], False)
def test_a_stall_in_heartbeats_of_any_age_is_one_of_the_run(
    workers: list[tuple[list[Span], list[Span], int]], ends: bool
) -> None:
    """Workers that are stalled, idle or answered; `ends`: the first worker ended with its heartbeat."""
    whole: list[list[WindowResult]] = []
    heard: list[list[WindowResult]] = []
    for number, (stalled, idle, age_ms) in enumerate(workers):
        over = ends and number == 0
        state, length_ms = (WindowState.CLOSED, age_ms) if over else (WindowState.OPEN, LENGTH_MS)
        quiet = tuple(without(merged(idle), merged(stalled)))
        whole.append([told(length_ms, *merged(stalled), idle=quiet, state=WindowState.FINAL)])
        heard.append([told(age_ms, *merged(stalled), idle=quiet, state=state)])

    of_run, so_far = merge(whole).stalls or (), merge(heard, live=True).stalls or ()

    assert without(so_far, of_run) == []
