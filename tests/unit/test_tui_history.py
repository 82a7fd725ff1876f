"""From looks to a view: differences of totals, windows that are stored and forgotten, what is news and what is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadgen.control.find_max_step_history import StepRecord
from loadgen.metrics.connections import Logins, Refusal
from loadgen.metrics.interval import Measured
from loadgen.model.run import Phase, RunStatus
from loadgen.scenario.scenario import Arrival, FindMax, LoadMode, Stage
from loadgen.tui.history import History
from loadgen.tui.look import WorkerState
from loadgen.tui.news import news
from loadgen.tui.viewer import Viewer
from loadgen.tui.words import clock, count, measured, ms, one_line, percent, rate, short_worker
from tests.unit.orchestrator_builders import tally, window
from tests.unit.tui_builders import MOMENT, look, run_row, scenario, worker


def sent(number: int, elapsed_s: float, samples: int, time_ms: float = 10.0, **more: object):
    """A worker that has measured so many samples, all of the same time."""
    measured = window({"s": tally((time_ms,) * samples)}, seconds=elapsed_s)
    return worker(number, measured, elapsed_s=elapsed_s, succeeded=samples, **more)  # type: ignore[arg-type]


# --- history ---------------------------------------------------------------------------------------------------------


def test_a_second_is_the_difference_of_two_beats_by_the_workers_own_clock():
    history = History()

    history.note(look(10.0, sent(0, 5.0, 500), sent(1, 7.0, 100)))
    history.note(look(11.0, sent(0, 6.0, 650), sent(1, 9.0, 140)))

    assert [second.qps for second in history.seconds] == [0.0, 150.0 + 20.0]
    assert history.seconds[-1].p50_ms == pytest.approx(10.0, rel=0.01)


def test_what_was_there_before_the_view_was_opened_is_not_taken_for_the_last_second():
    history = History()

    history.note(look(10.0, sent(0, 500.0, 100_000)))

    assert history.seconds[-1].qps == 0.0
    assert history.seconds[-1].p95_ms is None


def test_percentiles_are_of_the_last_seconds_and_not_of_the_whole():
    history = History()
    slow = window({"s": tally((100.0,) * 200)})
    then_fast = window({"s": tally((100.0,) * 200 + (5.0,) * 200)})

    history.note(look(1.0, worker(0, slow, elapsed_s=1.0, succeeded=200)))
    history.note(look(20.0, worker(0, then_fast, elapsed_s=20.0, succeeded=400)))

    assert history.recent is not None
    assert history.recent.p99_ms == pytest.approx(5.0, rel=0.02)


def test_a_worker_between_two_beats_keeps_its_rate_for_a_moment_and_then_counts_as_nothing():
    history = History()
    for moment, elapsed_s, samples in ((1.0, 1.0, 0), (2.0, 2.0, 100), (3.0, 2.0, 100), (9.0, 2.0, 100)):
        history.note(look(moment, sent(0, elapsed_s, samples), sent(1, moment, 10 * round(moment))))

    assert [second.qps for second in history.seconds] == [0.0, 100.0 + 10.0, 100.0 + 10.0, 10.0]


def test_a_look_between_two_beats_is_no_second_of_its_own_but_silence_is():
    history = History()
    for moment, elapsed_s, samples in (
        (1.0, 1.0, 0),
        (2.0, 2.0, 50),
        (2.95, 2.0, 50),
        (4.0, 4.0, 150),
        (8.0, 4.0, 150),
    ):
        history.note(look(moment, sent(0, elapsed_s, samples)))

    assert [(second.qps, second.span_s) for second in history.seconds] == [
        (0.0, 1.0),
        (50.0, 1.0),
        (50.0, 2.0),
        (0.0, 4.0),
    ]


def test_a_worker_that_is_over_has_no_rate():
    history = History()
    history.note(look(1.0, sent(0, 1.0, 0)))
    history.note(look(2.0, sent(0, 2.0, 100)))
    history.note(look(5.0, sent(0, 2.0, 100, state=WorkerState.DEAD)))

    assert history.seconds[-1].qps == 0.0


def test_a_worker_that_began_again_is_a_new_one():
    history = History()
    history.note(look(1.0, sent(0, 100.0, 5_000)))
    history.note(look(2.0, sent(0, 1.0, 10)))
    history.note(look(3.0, sent(0, 2.0, 30)))

    assert [second.qps for second in history.seconds] == [0.0, 0.0, 20.0]


def test_looks_that_come_more_often_than_once_a_second_are_put_together():
    history = History()
    for tenths in range(0, 31, 2):
        history.note(look(tenths / 10, sent(0, tenths / 10, tenths * 10)))

    assert len(history.seconds) == 4
    assert [round(second.qps) for second in history.seconds][1:] == [100, 100, 100]


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
