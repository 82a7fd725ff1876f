"""From a history to a view: what is shown of a run, what is news, and in which words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadgen.control.tables.run_measurements import StepRecord
from loadgen.metrics.connections import ConnectionFailure, LoginCounts, ReconnectReason
from loadgen.metrics.interval import MeasuredCounts
from loadgen.model.run import Phase, ProcessEnd, RunStatus
from loadgen.results.run_snapshot import WorkerHealth
from loadgen.scenario.model import ArrivalProcess, FindMaxSettings, LoadMode, LoadStage
from loadgen.tui.draw import clock, count, measured, ms, one_line, percent, rate, short, short_worker, time_of
from loadgen.tui.history import PeakThroughput
from loadgen.tui.presenter import ScreenPresenter, new_log_entries
from tests.unit.orchestrator_builders import tally, window
from tests.unit.tui_builders import MOMENT, quantile_of, run_row, scenario, second, snapshot, worker

# --- viewer ----------------------------------------------------------------------------------------------------------


def test_a_countdown_is_of_the_local_clock_and_never_jumps_forth():
    viewer = ScreenPresenter(scenario())
    plan = {"measures_s": 10.0, "ends_s": 70.0}

    first = viewer.update(snapshot(100.0, elapsed_s=20.0, **plan))
    late = viewer.update(snapshot(101.6, elapsed_s=21.0, **plan))  # this snapshot took longer to reach us

    assert (first.since_s, first.until_s) == (90.0, 150.0)
    assert (late.since_s, late.until_s) == (90.0, 150.0)


def test_warm_up_lasts_until_the_measurement_and_a_search_has_no_end():
    viewer = ScreenPresenter(scenario(mode=LoadMode.FIND_MAX, duration_s=None, find_max=FindMaxSettings()))

    warm = viewer.update(snapshot(5.0, run=run_row(phase=Phase.WARMUP), elapsed_s=5.0, measures_s=10.0))
    measuring = viewer.update(snapshot(15.0, elapsed_s=15.0, measures_s=10.0))

    assert (warm.since_s, warm.until_s) == (0.0, 10.0)
    assert (measuring.since_s, measuring.until_s) == (10.0, None)
    assert measuring.doing == "until the maximum is known"


def test_what_was_seen_stays_while_the_report_is_written():
    viewer = ScreenPresenter(scenario())
    assert viewer.doing("connecting", 1.0).status == ""
    last = viewer.update(snapshot(20.0, worker(0), elapsed_s=20.0))

    after = viewer.doing("writing the report", 30.0, run_id=last.run_id)

    assert (after.doing, after.seen_s, after.since_s, after.until_s) == ("writing the report", 30.0, 30.0, None)
    assert (after.status, after.workers, after.errors) == (last.status, last.workers, last.errors)


@pytest.mark.parametrize("status", [RunStatus.STOPPING, RunStatus.CANCELLING])
def test_a_run_that_drains_has_no_rate_though_its_last_times_stay(status):
    """A worker that was stopped reports nothing new: its last second is not the current one."""
    viewer = ScreenPresenter(scenario())
    telling = worker(0, elapsed_s=2.0, seconds=(second(1.0, 5.0, 5.0), second(2.0, 5.0, 5.0)))

    measured = viewer.update(snapshot(2.0, telling, elapsed_s=2.0))
    drains = viewer.update(snapshot(3.0, telling, elapsed_s=3.0, run=run_row(status)))
    after = viewer.doing("writing the report", 4.0)

    assert measured.recent is not None
    assert measured.recent.qps == 2.0
    for view in (drains, after):
        assert view.recent is not None
        assert (view.recent.qps, view.recent.p95) == (None, measured.recent.p95)


def test_a_peak_is_never_below_the_average():
    """Seconds that are known in part, as the first and the newest one, count for the average only."""
    viewer = ScreenPresenter(scenario())
    seconds = (second(1.0, 5.0), second(2.0, 5.0, 5.0))
    busy = worker(0, window({"s": tally((5.0,) * 9)}, seconds=2.0), elapsed_s=2.0, seconds=seconds)

    shown = viewer.update(snapshot(2.0, busy, elapsed_s=2.0))

    assert shown.window is not None
    assert shown.window.qps == 4.5
    assert shown.peak == PeakThroughput(qps=4.5, at_least=True)


@pytest.mark.parametrize(
    ("status", "ending", "stops"),
    [
        (RunStatus.RUNNING, None, False),
        (RunStatus.RUNNING, "error_rate is above 1 %", True),
        (RunStatus.CANCELLING, None, True),
        (RunStatus.STOPPING, "the plan is complete", True),
        (RunStatus.CANCELLED, "stopped", False),
    ],
)
def test_a_run_with_a_reason_to_end_is_stopping_and_has_no_time_left(status, ending, stops):
    viewer = ScreenPresenter(scenario())

    viewer.update(snapshot(19.0, elapsed_s=19.0, ends_s=70.0))
    view = viewer.update(snapshot(20.0, run=run_row(status), elapsed_s=20.0, ends_s=70.0, ending=ending))

    assert view.stopping == stops
    assert (view.until_s is None) == (status is not RunStatus.RUNNING or stops)
    assert not stops or view.since_s == 20.0


def test_a_request_to_end_is_shown_before_the_run_confirms_it():
    viewer = ScreenPresenter(scenario())
    before = viewer.update(snapshot(20.0, elapsed_s=20.0, ends_s=70.0))
    viewer.interrupt(20.5)

    at_once = viewer.interrupted(before)
    next_snapshot = viewer.update(snapshot(21.0, elapsed_s=21.0, ends_s=70.0))
    viewer.interrupt(22.0)
    again = viewer.interrupted(next_snapshot)
    ended = viewer.doing("writing the report", 30.0)

    assert before.until_s == 70.0
    for view in (at_once, next_snapshot, again):
        assert (view.stopping, view.since_s, view.until_s) == (True, 20.5, None)
        assert view.doing == "running statements may finish"
    assert [view.interrupts for view in (before, at_once, next_snapshot, again, ended)] == [0, 1, 1, 2, 2]
    assert (ended.doing, ended.since_s) == ("writing the report", 30.0)


def test_a_request_to_end_before_the_run_exists_is_shown():
    viewer = ScreenPresenter(scenario())
    viewer.interrupt(1.0)

    view = viewer.doing("preparing tables", 2.0)

    assert (view.stopping, view.interrupts, view.doing) == (True, 1, "preparing tables")


def test_the_planned_rate_follows_warm_up_stages_and_ramps():
    load = scenario(
        mode=LoadMode.RATE,
        arrival=ArrivalProcess.POISSON,
        warmup_s=10.0,
        duration_s=40.0,
        stages=(
            LoadStage(duration_s=20.0, rate_per_second=100.0),
            LoadStage(duration_s=20.0, rate_per_second=300.0, ramp_s=10.0),
        ),
    )
    viewer = ScreenPresenter(load)

    rates = [
        viewer.update(snapshot(at_s, elapsed_s=at_s, measures_s=10.0, ends_s=50.0)).offered.rate_per_s
        for at_s in (1.0, 15.0, 35.0, 45.0)
    ]

    assert rates == [100.0, 100.0, 200.0, 300.0]


def test_connections_are_those_of_living_workers_and_those_of_lost_workers_are_missing():
    alive = worker(0, target_connections=8, open_connections=6, active_connections=5)
    dead = worker(1, health=WorkerHealth.DEAD, target_connections=8, open_connections=8, active_connections=8)

    offered = ScreenPresenter(scenario()).update(snapshot(1.0, alive, dead)).offered

    assert (offered.target, offered.open, offered.busy, offered.rate_per_s) == (16, 6, 5, None)


def test_the_line_of_a_worker_shows_why_it_is_dead_else_its_last_error():
    end = ProcessEnd(worker_id="worker-1", code=-9)
    lost = replace(worker(1, health=WorkerHealth.DEAD, last_error="timed out"), end=end)
    stale = worker(2, health=WorkerHealth.STALE, last_error="timed out")

    lines = ScreenPresenter(scenario()).update(snapshot(10.0, worker(0), lost, stale)).workers

    assert [line.state for line in lines] == ["running", "dead", "stale"]
    assert [line.said for line in lines] == ["", "worker-1 was killed by signal 9", "timed out"]
    assert [line.heard_s for line in lines] == [9.5, 9.5, 9.5]


def test_the_mean_is_shown_once_every_living_worker_has_begun():
    begun = window({"s": tally()}, seconds=4.0)
    viewer = ScreenPresenter(scenario())

    first = viewer.update(snapshot(1.0, worker(0, begun), worker(1)))
    then = viewer.update(snapshot(2.0, worker(0, begun), worker(1, health=WorkerHealth.DEAD)))

    assert first.window is not None
    assert then.window is not None
    assert (first.window.seconds, then.window.seconds) == (0.0, 4.0)


def test_statements_stand_in_the_order_of_their_weights():
    measured = window({"rare": tally((1.0,) * 90), "s": tally((1.0,) * 10)})

    view = ScreenPresenter(scenario()).update(snapshot(1.0, worker(0, measured)))

    assert view.window is not None
    assert [line.name for line in view.window.statements] == ["s", "rare"]


def test_totals_are_of_the_whole_measurement_also_when_windows_were_stored():
    view = ScreenPresenter(scenario()).update(
        snapshot(1.0, worker(0, measured=MeasuredCounts(queries=50, reads=50, errors=2)))
    )

    assert (view.tried, view.failed) == (50, 2)


def test_a_stage_is_named_and_its_beginning_is_an_event():
    stages = tuple(LoadStage(duration_s=10.0, connections=8, name=name) for name in ("calm", "peak"))
    viewer = ScreenPresenter(scenario(stages=stages, duration_s=20.0))

    first = viewer.update(snapshot(5.0, worker(0, window({"s": tally((9.0,))}, step_id=1)), elapsed_s=5.0))
    later = viewer.update(
        snapshot(15.0, worker(0, window({"s": tally((9.0,))}, step_id=2, window_id=2)), elapsed_s=15.0)
    )
    again = viewer.update(
        snapshot(16.0, worker(0, window({"s": tally((9.0,))}, step_id=2, window_id=2)), elapsed_s=16.0)
    )

    assert [view.window.name for view in (first, later) if view.window] == ["calm, stage 1 of 2", "peak, stage 2 of 2"]
    assert [line.text for line in again.log if "stage" in line.text] == ["peak, stage 2 of 2 begins"]


def test_an_error_of_one_statement_names_it():
    failed = tally((9.0,), failed=2)
    viewer = ScreenPresenter(scenario())

    (error,) = viewer.update(snapshot(5.0, worker(0, window({"s": failed})), elapsed_s=5.0)).errors

    assert error.statement == "s"


def test_a_search_shows_its_state_and_what_comes_next():
    state = '{"step": 3, "target": 25, "best": 15, "failed": null, "next": "climb", "reason": "held"}'
    find = FindMaxSettings(start=5, increment=10, maximum=30)
    viewer = ScreenPresenter(scenario(mode=LoadMode.FIND_MAX, duration_s=None, find_max=find))

    find_max = viewer.update(snapshot(1.0, run=run_row(find_max_state=state), steps=(step(1, 5), step(2, 15)))).find_max

    assert find_max is not None
    assert (find_max.step, find_max.target, find_max.best, find_max.failed) == (3, 25, 15, None)
    assert find_max.next_if_held == 30
    assert [(step.target, step.held) for step in find_max.steps] == [(5, True), (15, True)]


@pytest.mark.parametrize("state", [None, "", "[1]", "{", '{"step": "many", "target": true}'])
def test_a_state_of_the_search_that_cannot_be_read_is_no_obstacle(state):
    viewer = ScreenPresenter(scenario(mode=LoadMode.FIND_MAX, duration_s=None, find_max=FindMaxSettings()))

    find_max = viewer.update(snapshot(1.0, run=run_row(find_max_state=state))).find_max

    assert find_max is not None
    assert (find_max.step, find_max.target) == (1, None)


def step(number: int, target: int, outcome: str = "STABLE") -> StepRecord:
    fields = dict.fromkeys(StepRecord.__slots__)
    known = {"step_number": number, "target_connections": target, "outcome": outcome, "reason": "held"}
    return StepRecord(**(fields | known))  # type: ignore[arg-type]


# --- news ------------------------------------------------------------------------------------------------------------


def texts(before, now):
    return [line.text for line in new_log_entries(before, now)]


def test_a_change_is_shown_once():
    first = snapshot(1.0, worker(0), run=run_row(RunStatus.STARTING, Phase.PREPARING))
    second = snapshot(2.0, worker(0), ending="threshold", warnings=("hot",), steps=(step(1, 5),))

    assert texts(None, first) == ["STARTING PREPARING"]
    assert texts(first, second) == [
        "RUNNING MEASUREMENT",
        "ending: threshold",
        "step 1: 5 connections STABLE: held",
        "hot",
    ]
    assert texts(second, second) == []


def test_workers_with_the_same_change_share_a_line():
    before = snapshot(1.0, *(worker(number) for number in range(5)))
    stale = snapshot(2.0, *(replace(one, health=WorkerHealth.STALE) for one in before.workers))
    killed = [
        replace(one, health=WorkerHealth.DEAD, end=ProcessEnd(worker_id="it\n", code=-9)) for one in before.workers
    ]
    dead = snapshot(3.0, *killed)

    assert texts(before, stale) == ["worker-0 is stale (and 4 more)"]
    assert texts(stale, before) == ["worker-0 is back (and 4 more)"]
    assert texts(stale, dead) == ["it␊ was killed by signal 9 (and 4 more)"]


def test_rejected_logins_are_shown_when_their_number_has_doubled():
    def after(refused: int, *, text: str = "the token has\nexpired"):
        refusal = ConnectionFailure(at=MOMENT, code=390_144, text=text)
        logins = LoginCounts(refused=refused, last_refused=(refusal,) if refused else ())
        one = worker(0)
        assert one.live is not None
        return snapshot(1.0, replace(one, live=replace(one.live, logins=logins)), worker(1))

    assert texts(after(0), after(0)) == []
    assert texts(after(0), after(1)) == ["1 login refused, the last of worker-0: 390144: the token has␊expired"]
    assert texts(after(2), after(3)) == []
    assert texts(after(3), after(9)) == ["9 logins refused, the last of worker-0: 390144: the token has␊expired"]
    assert all(line.bad for line in new_log_entries(after(0), after(1)))


def test_lost_connections_and_refused_logins_of_all_workers_are_kept():
    def after(seen_s: float, logins: LoginCounts):
        workers = [worker(0), worker(1)]
        return snapshot(seen_s, *(replace(one, live=replace(one.live, logins=logins)) for one in workers if one.live))

    viewer = ScreenPresenter(scenario())
    lost = LoginCounts(reopened={ReconnectReason.SESSION_LOST: 2, ReconnectReason.MAX_AGE: 5}, refused=1)
    first = viewer.update(after(1.0, lost)).offered
    later = viewer.update(after(2.0, LoginCounts())).offered  # the workers were replaced

    assert (first.lost, first.refused) == (later.lost, later.refused) == (4, 2)


def test_lost_connections_are_shown_with_their_error():
    def after(lost: int):
        failure = ConnectionFailure(at=MOMENT, code=390_111, text="gone", reason=ReconnectReason.SESSION_LOST)
        logins = LoginCounts(
            reopened={ReconnectReason.SESSION_LOST: lost, ReconnectReason.MAX_AGE: 5}, last_lost=(failure,)
        )
        one = worker(0)
        assert one.live is not None
        return snapshot(1.0, replace(one, live=replace(one.live, logins=logins)))

    assert texts(after(0), after(1)) == ["1 connection lost, the last of worker-0: 390111: gone"]
    assert texts(after(1), after(1)) == []
    assert texts(after(2), after(4)) == ["4 connections lost, the last of worker-0: 390111: gone"]


# --- words -----------------------------------------------------------------------------------------------------------


def test_numbers_are_short_and_never_round_to_nothing():
    assert [rate(value) for value in (0.0, 3.14159, 99.96, 1234.5)] == ["0.0", "3.1", "100.0", "1,234"]
    assert [ms(value) for value in (None, 0.4567, 12.34, 123.4, 12345.6)] == ["–", "0.46", "12.3", "123", "12,346"]
    assert [time_of(one) for one in (None, quantile_of(5), quantile_of(5, at_least=True))] == ["–", "5.00", "≥ 5.00"]
    assert [short(value) for value in (0.0, 0.25, 12.5, 840.0, 1250.0, 12_500.0, 150_000.0, 2.5e6)] == [
        "0", "0.25", "12.5", "840", "1,250", "12.5k", "150k", "2.5M"
    ]  # fmt: skip
    assert [percent(value) for value in (0.0, 0.00002, 0.015, 0.5)] == ["0 %", "0.002 %", "1.5 %", "50 %"]
    assert [count(value) for value in (999_999, 1_500_000, 2_500_000_000)] == ["999,999", "1.5M", "2.5G"]
    assert [clock(value) for value in (-1, 61, 3_661)] == ["00:00", "01:01", "1:01:01"]
    assert [short_worker(value) for value in ("worker-12", "pod/a\x1b-1")] == ["w12", "pod/a␛-1"]


def test_a_threshold_is_shown_in_its_own_unit():
    checks = [("p95 < 250ms", 77.43), ("error_rate < 1%", 0.0332), ("qps > 5", 812.4), ("errors < 5", 4.0), ("?", 1.5)]

    assert [measured(check, value) for check, value in checks] == ["77.4 ms", "3.3 %", "812/s", "4", "1.5"]


def test_foreign_text_becomes_one_line():
    assert one_line("a\n\x1b[31mb\u2028c\x00\t d") == "a␊␛[31mb\\u2028c␀␉ d"
    assert len(one_line("x" * 10**6)) == 200
