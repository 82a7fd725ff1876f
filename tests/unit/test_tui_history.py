"""From looks to a view: seconds of workers put together, windows that are stored and forgotten, what is news."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import reduce
from operator import add
from typing import Any

import pytest

from loadgen.control.find_max_step_history import StepRecord
from loadgen.metrics.connections import Logins, Refusal
from loadgen.metrics.histogram import EMPTY
from loadgen.metrics.interval import Measured
from loadgen.metrics.live import LiveSecond
from loadgen.model.run import Phase, RunStatus
from loadgen.report.timeline import WorkerSecond
from loadgen.rules.find_max_step import FindMax
from loadgen.scenario.scenario import Arrival, LoadMode, Stage
from loadgen.tui.history import KEPT_S, History, Peak, coarse
from loadgen.tui.look import Look, WorkerState
from loadgen.tui.news import news
from loadgen.tui.viewer import Viewer
from loadgen.tui.words import clock, count, measured, ms, one_line, percent, rate, short, short_worker
from tests.unit.orchestrator_builders import tally, window
from tests.unit.tui_builders import MOMENT, look, run_row, scenario, worker


def second(
    end_s: float, *times_ms: float, phase: Phase = Phase.MEASUREMENT, **statements: tuple[float, ...]
) -> LiveSecond:
    """An interval of a worker that ended so long after the start of the run, with these response times."""
    tallies = {name: tally(times) for name, times in (statements or {"s": times_ms}).items()}
    return LiveSecond(
        ended_at=MOMENT + timedelta(seconds=end_s),
        seconds=1.0,
        phase=phase,
        executing=8,
        statements={name: one.ended for name, one in tallies.items()},
        times={name: one.succeeded.response.coarse(3) for name, one in tallies.items() if one.succeeded.response.count},
    )


def stored(number: int, one: LiveSecond) -> WorkerSecond:
    """The same as a row of the tables has it."""
    return coarse(
        WorkerSecond(
            worker_id=f"worker-{number}",
            ended_at=one.ended_at,
            seconds=one.seconds,
            phase=one.phase.value,
            statements=one.statements,
            response=reduce(add, one.times.values(), EMPTY),
            executing=one.executing,
        )
    )


def telling(seen_s: float, *lives: Sequence[LiveSecond], **more: Any) -> Look:
    """A look at workers whose beats carry these seconds."""
    return look(seen_s, *(worker(number, seconds=tuple(live)) for number, live in enumerate(lives)), **more)


def shown(history: History) -> list[tuple[int, float | None]]:
    return [(one.at_s, one.qps) for one in history.seconds]


# --- seconds ---------------------------------------------------------------------------------------------------------


def test_seconds_of_all_workers_are_added_up_in_the_rows_of_the_run():
    history = History()
    first = [second(number + 0.9, *[10.0] * 100) for number in range(4)]
    other = [second(number + 1.1, *[20.0] * 50) for number in range(4)]

    history.note(telling(5.0, first, other))

    assert shown(history) == [(0, None), (1, 150.0), (2, 150.0), (3, 150.0)]  # of the first, a part is not known
    assert history.seconds[-1].p50_ms == pytest.approx(10.0, rel=0.04)
    assert history.seconds[-1].p95_ms == pytest.approx(20.0, rel=0.04)


def test_a_row_is_shown_once_every_working_worker_has_told_of_it():
    history = History()
    seconds = [second(number + 1.0, *[10.0] * 10) for number in range(5)]

    history.note(telling(5.0, seconds, seconds[:3]))
    assert [at_s for at_s, _ in shown(history)] == [0, 1, 2]

    silent = worker(1, seconds=tuple(seconds[:3]), state=WorkerState.STALE)
    history.note(look(6.0, worker(0, seconds=tuple(seconds)), silent))
    assert shown(history)[-1] == (4, 10.0)

    history.note(telling(7.0, seconds, seconds))
    assert shown(history)[-1] == (4, 20.0)  # what it told later belongs to its second


def test_a_second_in_which_a_phase_begins_has_no_rate():
    history = History()
    warm = [second(number + 1.0, *[10.0] * 10, phase=Phase.WARMUP) for number in range(3)]
    measured = [second(number + 4.0, *[10.0] * 30) for number in range(3)]

    history.note(telling(6.0, [*warm, *measured]))

    assert shown(history) == [(0, None), (1, 10.0), (2, 10.0), (3, None), (4, 30.0), (5, 30.0)]
    assert [one.phase for one in history.seconds][2:4] == [Phase.WARMUP, Phase.MEASUREMENT]


def test_a_beat_that_was_missed_costs_nothing_and_what_nobody_told_is_a_gap():
    history = History()
    seconds = [second(number + 1.0, *[10.0] * 10) for number in range(40)]

    history.note(telling(3.0, seconds[:3]))
    history.note(telling(9.0, seconds[:9]))
    assert [at_s for at_s, _ in shown(history)] == list(range(9))

    history.note(telling(30.0, seconds[20:30]))
    assert [at_s for at_s, _ in shown(history)] == [*range(9), *range(20, 30)]


def test_statements_have_seconds_of_their_own():
    history = History()
    history.note(telling(2.0, [second(1.0, s=(10.0,) * 9), second(2.0, s=(10.0,) * 90, rare=(50.0,) * 30)]))

    statements = {one.name: one for one in history.seconds[-1].statements}

    assert {name: one.qps for name, one in statements.items()} == {"s": 90.0, "rare": 30.0}
    assert statements["rare"].p95_ms == pytest.approx(50.0, rel=0.04)


def test_now_is_the_last_ten_seconds_of_this_phase():
    history = History()
    slow = [second(number + 1.0, *[500.0] * 100) for number in range(10)]
    fast = [second(number + 11.0, *[5.0] * 100) for number in range(10)]

    history.note(telling(20.0, [*slow, *fast]))

    assert history.recent is not None
    assert history.recent.qps == 100.0
    assert history.recent.p99_ms == pytest.approx(5.0, rel=0.04)


def test_only_the_last_minutes_are_kept():
    history = History()
    for number in range(KEPT_S + 50):
        history.note(telling(float(number), [second(number + 1.0, *[10.0] * 10)]))

    assert [one.at_s for one in history.seconds] == list(range(50, KEPT_S + 50))


# --- the run's own view and one from elsewhere -----------------------------------------------------------------------


def lives(number: int) -> list[LiveSecond]:
    """Sixty seconds of a worker that harvests at moments of its own, a little early or late."""
    draw = random.Random(number)
    offset_s = draw.uniform(0.05, 0.95)
    warm = [Phase.WARMUP] * 10 + [Phase.MEASUREMENT] * 50
    return [
        second(
            at_s + offset_s + draw.uniform(-0.1, 0.1),
            s=tuple(draw.uniform(5.0, 80.0) for _ in range(draw.randrange(20, 60))),
            rare=tuple(draw.uniform(50.0, 90.0) for _ in range(draw.randrange(5))),
            phase=warm[at_s],
        )
        for at_s in range(60)
    ]


@pytest.mark.parametrize("joined_s", [1, 4, 12, 30, 55])
def test_a_view_that_was_opened_later_shows_the_same_numbers(joined_s):
    """The run's own view looks every second. The other one is opened later, reads what is stored by then (the last few
    seconds are not yet), looks at other moments, and now and then misses a beat."""
    own, other = History(), History()
    workers = [lives(number) for number in range(3)]

    def told(moment_s: float) -> list[list[LiveSecond]]:
        return [[one for one in live if one.ended_at <= MOMENT + timedelta(seconds=moment_s)][-10:] for live in workers]

    rows = [
        stored(number, one)
        for number, live in enumerate(workers)
        for one in live
        if one.ended_at <= MOMENT + timedelta(seconds=joined_s - 6)
    ]
    rows.sort(key=lambda row: row.ended_at)
    draw = random.Random(joined_s)
    for moment_s in range(1, 62):
        own.note(telling(float(moment_s), *told(moment_s), measures_s=10.0))
        if moment_s >= joined_s and (draw.random() < 0.6 or moment_s == 61):
            other.note(telling(moment_s + 0.4, *told(moment_s), measures_s=10.0, stored=tuple(rows)))

    assert own.peak is not None
    assert not own.peak.at_least
    assert other.peak == own.peak
    assert other.recent == own.recent
    assert shown(other) == shown(own)
    assert [(one.phase, one.p50_ms, one.p95_ms, one.p99_ms) for one in other.seconds] == [
        (one.phase, one.p50_ms, one.p95_ms, one.p99_ms) for one in own.seconds
    ]


def test_a_peak_of_which_seconds_are_missing_is_said_to_be_at_least_that():
    history = History()
    seconds = [second(number + 1.0, *[10.0] * 10) for number in range(40)]

    history.note(telling(40.0, seconds[30:]))

    assert history.peak == Peak(qps=10.0, at_least=True)


def test_the_peak_is_of_the_measurement_and_not_of_the_warm_up():
    history = History()
    warm = [second(number + 1.0, *[10.0] * 90, phase=Phase.WARMUP) for number in range(5)]
    measured = [second(number + 6.0, *[10.0] * 30) for number in range(5)]

    history.note(telling(5.0, warm, measures_s=5.0))
    assert history.peak == Peak(qps=90.0, at_least=False)

    history.note(telling(10.0, [*warm, *measured], measures_s=5.0))
    assert history.peak == Peak(qps=30.0, at_least=False)


# --- windows and errors ----------------------------------------------------------------------------------------------


def test_a_new_step_begins_with_empty_numbers_and_keeps_its_own_once_they_were_stored():
    history = History()
    first = window({"s": tally((10.0,) * 50)}, step_id=1, window_id=1)
    second = window({"s": tally((10.0,) * 7)}, step_id=2, window_id=2)

    history.note(look(1.0, worker(0, first, elapsed_s=1.0), worker(1, first, elapsed_s=1.0)))
    history.note(look(2.0, worker(0, first, second, elapsed_s=2.0), worker(1, first, elapsed_s=2.0)))
    assert [[one.step_id for one in own] for own in history.newest_windows] == [[2]]

    history.note(look(3.0, worker(0, elapsed_s=3.0), worker(1, elapsed_s=3.0)))
    assert [[one.step_id for one in own] for own in history.newest_windows] == [[2]]


def test_errors_stay_when_their_window_was_stored():
    history = History()
    history.note(look(1.0, worker(0, window({"s": tally(failed=3)}), elapsed_s=1.0)))
    history.note(look(2.0, worker(0, window({"s": tally(failed=2)}, window_id=2), elapsed_s=2.0)))

    assert [errors.count for errors in history.errors.values()] == [5]


def test_errors_of_the_warm_up_are_none_of_the_measurement():
    history = History()
    warm = window({"s": tally(failed=3)}, phase=Phase.WARMUP, window_id=0)
    history.note(look(1.0, worker(0, warm, elapsed_s=1.0)))
    assert [errors.count for errors in history.errors.values()] == [3]

    history.note(look(2.0, worker(0, warm, window({"s": tally(failed=1)}), elapsed_s=2.0), worker(1, warm)))

    assert [errors.count for errors in history.errors.values()] == [1]


# --- viewer ----------------------------------------------------------------------------------------------------------


def test_a_countdown_is_of_the_local_clock_and_never_jumps_forth():
    viewer = Viewer(scenario())
    plan = {"measures_s": 10.0, "ends_s": 70.0}

    first = viewer.look(look(100.0, elapsed_s=20.0, **plan))
    late = viewer.look(look(101.6, elapsed_s=21.0, **plan))  # this look took longer to reach us

    assert (first.since_s, first.until_s) == (90.0, 150.0)
    assert (late.since_s, late.until_s) == (90.0, 150.0)


def test_warm_up_lasts_until_the_measurement_and_a_search_has_no_end():
    viewer = Viewer(scenario(mode=LoadMode.FIND_MAX, duration_s=None, find_max=FindMax()))

    warm = viewer.look(look(5.0, run=run_row(phase=Phase.WARMUP), elapsed_s=5.0, measures_s=10.0))
    measuring = viewer.look(look(15.0, elapsed_s=15.0, measures_s=10.0))

    assert (warm.since_s, warm.until_s) == (0.0, 10.0)
    assert (measuring.since_s, measuring.until_s) == (10.0, None)
    assert measuring.doing == "until the maximum is known"


def test_what_was_seen_stays_while_the_report_is_written():
    viewer = Viewer(scenario())
    assert viewer.doing("connecting", 1.0).status == ""
    last = viewer.look(look(20.0, worker(0), elapsed_s=20.0))

    after = viewer.doing("writing the report", 30.0, run_id=last.run_id)

    assert (after.doing, after.seen_s, after.since_s, after.until_s) == ("writing the report", 30.0, 30.0, None)
    assert (after.status, after.workers, after.errors) == (last.status, last.workers, last.errors)


def test_the_planned_rate_follows_warm_up_stages_and_ramps():
    load = scenario(
        mode=LoadMode.RATE,
        arrival=Arrival.POISSON,
        warmup_s=10.0,
        duration_s=40.0,
        stages=(
            Stage(duration_s=20.0, rate_per_second=100.0),
            Stage(duration_s=20.0, rate_per_second=300.0, ramp_s=10.0),
        ),
    )
    viewer = Viewer(load)

    rates = [
        viewer.look(look(at_s, elapsed_s=at_s, measures_s=10.0, ends_s=50.0)).offered.rate_per_s
        for at_s in (1.0, 15.0, 35.0, 45.0)
    ]

    assert rates == [100.0, 100.0, 200.0, 300.0]


def test_connections_are_those_of_living_workers_and_what_the_dead_should_have_is_missing():
    alive = worker(0, target_connections=8, open_connections=6, active_connections=5)
    dead = worker(1, state=WorkerState.DEAD, target_connections=8, open_connections=8, active_connections=8)

    offered = Viewer(scenario()).look(look(1.0, alive, dead)).offered

    assert (offered.target, offered.open, offered.busy, offered.rate_per_s) == (16, 6, 5, None)


def test_the_mean_is_told_once_every_living_worker_has_begun():
    begun = window({"s": tally()}, seconds=4.0)
    viewer = Viewer(scenario())

    first = viewer.look(look(1.0, worker(0, begun), worker(1)))
    then = viewer.look(look(2.0, worker(0, begun), worker(1, state=WorkerState.DEAD)))

    assert first.window is not None
    assert then.window is not None
    assert (first.window.seconds, then.window.seconds) == (0.0, 4.0)


def test_statements_stand_in_the_order_of_their_weights():
    measured = window({"rare": tally((1.0,) * 90), "s": tally((1.0,) * 10)})

    view = Viewer(scenario()).look(look(1.0, worker(0, measured)))

    assert view.window is not None
    assert [line.name for line in view.window.statements] == ["s", "rare"]


def test_totals_are_of_the_whole_measurement_also_when_windows_were_stored():
    view = Viewer(scenario()).look(look(1.0, worker(0, measured=Measured(queries=50, reads=50, errors=2))))

    assert (view.tried, view.failed) == (50, 2)


def test_a_search_shows_its_state_and_what_comes_next():
    state = '{"step": 3, "target": 25, "best": 15, "failed": null, "next": "climb", "reason": "held"}'
    find = FindMax(start=5, increment=10, maximum=30)
    viewer = Viewer(scenario(mode=LoadMode.FIND_MAX, duration_s=None, find_max=find))

    ladder = viewer.look(look(1.0, run=run_row(find_max_state=state), steps=(step(1, 5), step(2, 15)))).ladder

    assert ladder is not None
    assert (ladder.step, ladder.target, ladder.best, ladder.failed) == (3, 25, 15, None)
    assert ladder.next_if_held == 30
    assert [(rung.target, rung.held) for rung in ladder.rungs] == [(5, True), (15, True)]


@pytest.mark.parametrize("state", [None, "", "[1]", "{", '{"step": "many", "target": true}'])
def test_a_state_of_the_search_that_cannot_be_read_is_no_obstacle(state):
    viewer = Viewer(scenario(mode=LoadMode.FIND_MAX, duration_s=None, find_max=FindMax()))

    ladder = viewer.look(look(1.0, run=run_row(find_max_state=state))).ladder

    assert ladder is not None
    assert (ladder.step, ladder.target) == (1, None)


def step(number: int, target: int, outcome: str = "STABLE") -> StepRecord:
    fields = dict.fromkeys(StepRecord.__slots__)
    known = {"step_number": number, "target_connections": target, "outcome": outcome, "reason": "held"}
    return StepRecord(**(fields | known))  # type: ignore[arg-type]


# --- news ------------------------------------------------------------------------------------------------------------


def texts(before, now):
    return [line.text for line in news(before, now)]


def test_a_change_is_told_once():
    first = look(1.0, worker(0), run=run_row(RunStatus.STARTING, Phase.PREPARING))
    second = look(2.0, worker(0), ending="threshold", warnings=("hot",), steps=(step(1, 5),))

    assert texts(None, first) == ["STARTING PREPARING"]
    assert texts(first, second) == [
        "RUNNING MEASUREMENT",
        "ending: threshold",
        "step 1: 5 connections STABLE: held",
        "hot",
    ]
    assert texts(second, second) == []


def test_workers_that_changed_alike_share_a_line():
    before = look(1.0, *(worker(number) for number in range(5)))
    stale = look(2.0, *(replace(one, state=WorkerState.STALE) for one in before.workers))
    dead = look(3.0, *(replace(one, state=WorkerState.DEAD, why="it was\nkilled") for one in before.workers))

    assert texts(before, stale) == ["worker-0 is stale (and 4 more)"]
    assert texts(stale, before) == ["worker-0 is back (and 4 more)"]
    assert texts(stale, dead) == ["it was killed (and 4 more)"]


def test_refused_logins_are_told_when_there_are_twice_as_many():
    def after(refused: int, *, text: str = "the token has\nexpired"):
        refusal = Refusal(at=MOMENT, code=390_144, text=text)
        logins = Logins(refused=refused, last_refused=(refusal,) if refused else ())
        one = worker(0)
        assert one.live is not None
        return look(1.0, replace(one, live=replace(one.live, logins=logins)), worker(1))

    assert texts(after(0), after(0)) == []
    assert texts(after(0), after(1)) == ["1 login refused, the last of worker-0: 390144: the token has expired"]
    assert texts(after(2), after(3)) == []
    assert texts(after(3), after(9)) == ["9 logins refused, the last of worker-0: 390144: the token has expired"]
    assert all(line.bad for line in news(after(0), after(1)))


# --- words -----------------------------------------------------------------------------------------------------------


def test_numbers_are_short_and_never_round_to_nothing():
    assert [rate(value) for value in (0.0, 3.14159, 99.96, 1234.5)] == ["0.0", "3.1", "100.0", "1,234"]
    assert [ms(value) for value in (None, 0.4567, 12.34, 123.4, 12345.6)] == ["–", "0.46", "12.3", "123", "12,346"]
    assert ms(5.0, at_least=True) == "≥5.00"
    assert [short(value) for value in (0.0, 0.25, 12.5, 840.0, 1250.0, 12_500.0, 150_000.0, 2.5e6)] == [
        "0", "0.25", "12.5", "840", "1,250", "12.5k", "150k", "2.5M"
    ]  # fmt: skip
    assert [percent(value) for value in (0.0, 0.00002, 0.015, 0.5)] == ["0 %", "0.002 %", "1.5 %", "50 %"]
    assert [count(value) for value in (999_999, 1_500_000, 2_500_000_000)] == ["999,999", "1.5M", "2.5G"]
    assert [clock(value) for value in (-1, 61, 3_661)] == ["00:00", "01:01", "1:01:01"]
    assert [short_worker(value) for value in ("worker-12", "pod/a\x1b-1")] == ["w12", "pod/a-1"]


def test_a_threshold_is_shown_in_its_own_unit():
    checks = [("p95 < 250ms", 77.43), ("error_rate < 1%", 0.0332), ("qps > 5", 812.4), ("errors < 5", 4.0), ("?", 1.5)]

    assert [measured(check, value) for check, value in checks] == ["77.4 ms", "3.3 %", "812/s", "4", "1.5"]


def test_foreign_text_becomes_one_line():
    assert one_line("a\n\x1b[31mb\u2028c\x00\t d") == "a [31mb c d"
    assert len(one_line("x" * 10**6)) == 200
