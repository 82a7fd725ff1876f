"""The row of a run: who may change it, how it ends, and what a user's wish does to it. Both majors of the connector."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import pytest

from loadgen.control import prune, run_status, test_logs
from loadgen.control.queries import queries
from loadgen.control.run_leases import TAKEOVER_MARGIN_S, release
from loadgen.control.run_status import (
    REASON_MAX,
    Fenced,
    Move,
    NewRun,
    Rollup,
    Run,
    RunExists,
    Target,
    cancel,
    create,
    move,
    publish,
    read,
)
from loadgen.control.session import ControlFailed
from loadgen.control.storable import clean
from loadgen.control.test_logs import LogRow
from loadgen.errors import UsageError
from loadgen.model.run import BadStep, Phase, RunStatus
from tests.control_plane import ControlPlane, patience
from tests.processes import PATIENCE_S

S, P = RunStatus, Phase
Result = TypeVar("Result")
RACES = 30

# How a run gets to each state, step by step.
WAY: dict[RunStatus, list[tuple[RunStatus, Phase]]] = {
    S.PREPARED: [],
    S.STARTING: [(S.STARTING, P.PREPARING)],
    S.RUNNING: [(S.STARTING, P.PREPARING), (S.RUNNING, P.WARMUP)],
    S.STOPPING: [(S.STARTING, P.PREPARING), (S.RUNNING, P.WARMUP), (S.STOPPING, P.COOLDOWN)],
    S.CANCELLING: [(S.CANCELLING, P.PREPARING)],
    S.COMPLETED: [(S.STARTING, P.PREPARING), (S.STOPPING, P.COOLDOWN), (S.COMPLETED, P.PROCESSING)],
    S.CANCELLED: [(S.CANCELLING, P.PREPARING), (S.CANCELLED, P.PREPARING)],
    S.FAILED: [(S.FAILED, P.PREPARING)],
}
HOSTILE = {
    "quotes": 'it\'s "quoted" \\ `and` $$ ; -- ? :1 %s {}',
    "injection": "'); DROP TABLE RUN_STATUS; --",
    "emoji": "🙂🏳️‍🌈é中" * 10,
    "NUL": "before\0after",
    "half a character": "\ud800 and \udfff",
    "escape": "\x1b[2J\x1b]0;title\x07",
    "direction": "\u202egnihtyna",
    "lines": "a\nb\r\nc\td",
    "empty": "",
    "1 MB": "x" * 1_000_000,
    "1 MB of emoji": "🙂" * 250_000,
}


class Led:
    """A run with a holder of its lease, who takes its steps."""

    def __init__(self, plane: ControlPlane, status: RunStatus = S.PREPARED) -> None:
        self.plane = plane
        self.run_id = plane.new_run()
        self.term = plane.claim(self.run_id)
        for to, to_phase in WAY[status]:
            assert self.step(to, to_phase)
        assert self.row.status is status

    @property
    def row(self) -> Run:
        row = read(self.plane.session, self.run_id)
        assert row is not None
        return row

    def step(self, to: RunStatus, to_phase: Phase | None = None, **more: Any) -> bool:
        """The next step, from where the run really is."""
        row = self.row
        step = Move(status=row.status, phase=row.phase, to=to, to_phase=to_phase or row.phase, **more)
        return move(self.plane.session, patience(), self.term, step)


@pytest.fixture
def led(plane: ControlPlane) -> Callable[..., Led]:
    return lambda status=S.PREPARED: Led(plane, status)


def at_once(plane: ControlPlane, *actions: Callable[[Any], Any]) -> list[Any]:
    """The results of actions that begin together, each in a thread with a session of its own."""
    barrier = threading.Barrier(len(actions))

    def run(action: Callable[[Any], Result]) -> Result:
        session = plane.open("racer")
        session.fetch(queries("run_status")["server_time"])  # logged in before the start
        barrier.wait(PATIENCE_S)
        return action(session)

    with ThreadPoolExecutor(len(actions), thread_name_prefix="racer") as pool:
        return list(pool.map(run, actions))


# --- making a run ----------------------------------------------------------------------------------------------------


def test_a_new_run_is_prepared_with_everything_it_was_given(plane):
    run_id = plane.new_run(test_name="a name", scenario_config='{"a": 1}', workers=7)

    row = read(plane.session, run_id)

    assert row is not None
    assert (row.run_id, row.test_name, row.status, row.phase) == (run_id, "a name", S.PREPARED, P.PREPARING)
    assert (row.workers_expected, row.next_sequence_id, row.lease_epoch) == (7, 1, 0)
    assert (row.start_time, row.end_time, row.reason) == (None, None, None)
    assert run_status.read_config(plane.session, run_id) == '{"a": 1}'


def new_run(run_id: str, **more: Any) -> NewRun:
    fields: dict[str, Any] = {"template_id": "t", "test_name": "n", "scenario_config": "{}", "workers": 1}
    return NewRun(run_id=run_id, **(fields | more))


def test_an_id_can_be_used_once(plane):
    run_id = plane.new_run(test_name="the first")

    with pytest.raises(RunExists) as raised:
        create(plane.session, patience(), new_run(run_id))

    assert raised.value.exit_code == 2
    assert run_id in str(raised.value)
    row = read(plane.session, run_id)
    assert row is not None
    assert row.test_name == "the first"


@pytest.mark.parametrize("kind", ["drop_reply", "truncate", "reset", "http_status", "expire_session"])
def test_a_run_whose_creation_was_not_answered_is_there_once(plane, kind):
    run_id = str(uuid.uuid4())
    plane.server.fault(match="^INSERT INTO RUN_STATUS", kind=kind, count=1)

    create(plane.session, patience(), new_run(run_id))

    assert plane.rows("SELECT COUNT(*) FROM RUN_STATUS WHERE RUN_ID = ?", run_id) == [(1,)]
    with pytest.raises(RunExists):
        create(plane.session, patience(), new_run(run_id))


def test_somebody_elses_run_is_not_taken_for_ones_own_after_a_lost_answer(plane):
    run_id = plane.new_run(scenario_config='{"theirs": 1}')
    plane.server.fault(match="^INSERT INTO RUN_STATUS", kind="reset", count=1)

    with pytest.raises(RunExists):
        create(plane.session, patience(), new_run(run_id, scenario_config='{"mine": 1}'))


def test_of_two_who_make_the_same_run_one_does(plane):
    for _ in range(10):
        run_id = str(uuid.uuid4())

        def make(session: Any, run_id: str = run_id) -> bool:
            try:
                create(session, patience(), new_run(run_id))
            except RunExists:
                return False
            return True

        assert sorted(at_once(plane, make, make)) == [False, True]


def test_a_name_that_does_not_fit_is_refused_and_nothing_is_written(plane):
    run_id = str(uuid.uuid4())

    with pytest.raises(ControlFailed) as raised:
        create(plane.session, patience(), new_run(run_id, test_name="x" * 300))

    assert not raised.value.failure.retryable
    assert read(plane.session, run_id) is None


@pytest.mark.parametrize("text", ["quotes", "injection", "emoji", "lines", "empty"])
def test_a_hostile_name_is_a_name(plane, text):
    name = HOSTILE[text][:255]

    row = read(plane.session, plane.new_run(test_name=name))

    assert row is not None
    assert row.test_name == name


# --- a user's wish ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", list(RunStatus))
def test_a_run_can_be_cancelled_until_it_is_ending(plane, led, status):
    run = led(status)
    before = run.row

    after = cancel(plane.session, patience(), run.run_id, "enough")

    assert after == run.row
    if status in (S.PREPARED, S.STARTING, S.RUNNING):
        assert (after.status, after.phase, after.reason) == (S.CANCELLING, before.phase, "enough")
    else:
        assert after == before


def test_the_first_reason_to_cancel_stays(plane, led):
    run = led(S.RUNNING)
    cancel(plane.session, patience(), run.run_id, "first")

    assert cancel(plane.session, patience(), run.run_id, "second").reason == "first"


@pytest.mark.parametrize("kind", ["drop_reply", "reset"])
def test_a_wish_whose_answer_was_lost_is_heard(plane, led, kind):
    run = led(S.RUNNING)
    plane.server.fault(match="^UPDATE RUN_STATUS", kind=kind, count=1)

    assert cancel(plane.session, patience(), run.run_id, "enough").status is S.CANCELLING


def test_a_run_that_is_not_there_cannot_be_cancelled(plane):
    with pytest.raises(UsageError) as raised:
        cancel(plane.session, patience(), "no-such-run", "enough")

    assert "loadgen runs list" in raised.value.remedy


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_any_reason_can_be_given_and_is_kept_up_to_its_limit(plane, led, text):
    cancelled, failed = led(), led()

    cancel(plane.session, patience(), cancelled.run_id, text)
    failed.step(S.FAILED, reason=text)

    for kept in (cancelled.row.reason, failed.row.reason):
        assert kept is not None
        if len(text) <= REASON_MAX:
            assert kept == clean(text)
        else:
            assert len(kept) == REASON_MAX
            assert kept[: REASON_MAX - 20] == text[: REASON_MAX - 20]
    assert cancelled.row.status is S.CANCELLING
    assert failed.row.status is S.FAILED


def test_a_reason_of_exactly_the_limit_is_kept_whole(plane, led):
    run = led()

    cancel(plane.session, patience(), run.run_id, "🙂" * REASON_MAX)

    assert run.row.reason == "🙂" * REASON_MAX


# --- steps -----------------------------------------------------------------------------------------------------------


def test_a_life_is_written_down_with_its_times_once_each(led):
    run = led(S.STARTING)
    assert run.row.start_time is None

    assert run.step(S.RUNNING, P.WARMUP)
    warm = run.row
    assert run.step(S.RUNNING, P.MEASUREMENT)
    measured = run.row
    assert run.step(S.STOPPING, P.COOLDOWN, reason="the end")
    assert run.step(S.COMPLETED, P.PROCESSING, verdict="PASS")
    done = run.row

    assert None not in (warm.start_time, warm.warmup_start_time)
    assert (warm.warmup_end_time, warm.end_time) == (None, None)
    assert (measured.start_time, measured.warmup_start_time) == (warm.start_time, warm.warmup_start_time)
    assert measured.warmup_end_time is not None
    assert (done.start_time, done.warmup_end_time) == (warm.start_time, measured.warmup_end_time)
    assert done.end_time is not None
    assert (done.reason, done.verdict, done.lease_epoch) == ("the end", "PASS", 1)


def test_a_run_without_warm_up_has_no_times_of_one(led):
    run = led(S.STARTING)

    assert run.step(S.RUNNING, P.MEASUREMENT)

    assert run.row.start_time is not None
    assert (run.row.warmup_start_time, run.row.warmup_end_time) == (None, None)


def test_a_step_from_where_the_run_is_not_changes_nothing(plane, led):
    run = led(S.RUNNING)
    before = run.row
    step = Move(status=S.STARTING, phase=P.PREPARING, to=S.FAILED, to_phase=P.PREPARING, reason="late")

    assert not move(plane.session, patience(), run.term, step)
    assert not move(plane.session, patience(), run.term, replace(step, status=S.RUNNING))
    assert run.row == before


def test_a_step_that_does_not_exist_is_not_even_sent(plane, led):
    run = led(S.PREPARED)

    with pytest.raises(BadStep):
        run.step(S.COMPLETED)

    assert run.row.status is S.PREPARED


@pytest.mark.parametrize("status", [S.COMPLETED, S.CANCELLED, S.FAILED])
def test_an_end_is_final_in_sql_too(plane, led, status):
    """What `advance` refuses is sent here all the same, by the holder of a living term."""
    run = led(status)
    before = run.row
    term = (run.term.epoch, run.term.owner)

    for to in RunStatus:
        binds = (to, before.phase, "again", "PASS", run.term.epoch, 1, 1, 1, 0)
        where = (run.run_id, before.status, before.phase, run.run_id, *term)
        assert plane.session.execute(queries("run_status")["move"], *binds, *where) == 0
    assert not publish(plane.session, run.term, Rollup(targets={}, total_ops=5))
    cancel(plane.session, patience(), run.run_id, "again")

    assert run.row == before


def end_the_term(plane: ControlPlane, run: Led, how: str) -> None:
    if how == "released":
        release(plane.session, run.term)
    else:
        plane.expire(run.run_id, since_s=TAKEOVER_MARGIN_S + 1 if how == "succeeded" else 0.2)
    if how == "succeeded":
        assert plane.claim(run.run_id).epoch == 2


@pytest.mark.parametrize("how", ["expired", "released", "succeeded"])
def test_who_is_not_in_charge_any_more_takes_no_step(plane, led, how):
    run = led(S.RUNNING)
    before = run.row
    end_the_term(plane, run, how)

    with pytest.raises(Fenced):
        run.step(S.STOPPING)
    with pytest.raises(Fenced):
        run.step(S.RUNNING, P.MEASUREMENT)
    with pytest.raises(Fenced):  # a step that stays where it is, and only says why
        run.step(S.RUNNING, reason="still here")
    assert not publish(plane.session, run.term, Rollup(targets={}, total_ops=5))

    assert run.row == before


def test_a_step_that_stays_where_it_is_can_say_why(led):
    run = led(S.RUNNING)

    assert run.step(S.RUNNING, reason="slow")
    assert run.step(S.RUNNING, reason="slower")

    assert (run.row.status, run.row.reason) == (S.RUNNING, "slower")


@pytest.mark.parametrize("kind", ["drop_reply", "truncate", "reset", "http_status", "expire_session"])
def test_a_step_whose_answer_was_lost_is_taken_once(plane, led, kind):
    run = led(S.STARTING)
    plane.server.fault(match="^UPDATE RUN_STATUS", kind=kind, count=1)

    assert run.step(S.RUNNING, P.WARMUP)

    assert (run.row.status, run.row.phase) == (S.RUNNING, P.WARMUP)


def test_a_step_whose_answer_was_lost_and_that_a_user_has_overtaken_is_not_taken_again(plane, led):
    run = led(S.STARTING)
    plane.server.fault(match="^UPDATE RUN_STATUS", kind="drop_reply", count=1)
    step = Move(status=S.STARTING, phase=P.PREPARING, to=S.RUNNING, to_phase=P.WARMUP)
    wish = patience(note=lambda _: cancel(plane.session, patience(), run.run_id, "enough"))

    assert not move(plane.session, wish, run.term, step)

    assert (run.row.status, run.row.phase, run.row.reason) == (S.CANCELLING, P.WARMUP, "enough")


def mover(run: Led, step: Move) -> Callable[[Any], bool]:
    return lambda session: move(session, patience(), run.term, step)


def canceller(run: Led) -> Callable[[Any], Run]:
    return lambda session: cancel(session, patience(), run.run_id, "enough")


def test_of_the_end_and_a_users_wish_at_once_one_comes_first(plane, led):
    for _ in range(RACES):
        run = led(S.RUNNING)
        step = Move(status=S.RUNNING, phase=P.WARMUP, to=S.STOPPING, to_phase=P.COOLDOWN, reason="the end")

        moved, cancelled = at_once(
            plane,
            mover(run, step),
            canceller(run),
        )

        after = run.row
        assert moved is (after.status is S.STOPPING)
        assert cancelled.status is after.status
        assert (after.status, after.reason) in [(S.STOPPING, "the end"), (S.CANCELLING, "enough")]


def test_a_wish_that_meets_the_start_is_never_lost(plane, led):
    for _ in range(RACES):
        run = led(S.STARTING)
        step = Move(status=S.STARTING, phase=P.PREPARING, to=S.RUNNING, to_phase=P.WARMUP, reason="go")

        moved, cancelled = at_once(
            plane,
            mover(run, step),
            canceller(run),
        )

        after = run.row
        assert (after.status, after.reason) == (cancelled.status, "enough") == (S.CANCELLING, "enough")
        assert moved is (after.start_time is not None)


# --- what the leader makes known -------------------------------------------------------------------------------------

TARGETS = {
    "w-1": Target(target_connections=64, sequence_id=9, step_id=2, ramp_s=1.5, effective_at="2026-01-01T00:00:00"),
    "w'2 🙂": Target(target_connections=0, sequence_id=1),
}


def test_what_is_published_is_read_by_everybody(plane, led):
    run = led(S.RUNNING)
    rollup = Rollup(
        workers_registered=3,
        workers_active=2,
        workers_completed=1,
        total_ops=10**15,
        error_count=4,
        current_qps=123.5,
        find_max_state='{"step": 1}',
        targets=TARGETS,
        next_sequence_id=10,
    )

    assert publish(plane.session, run.term, rollup)

    row, seen = run.row, run_status.poll(plane.session, run.run_id)
    assert (row.workers_registered, row.workers_active, row.workers_completed) == (3, 2, 1)
    assert (row.total_ops, row.error_count, row.current_qps) == (10**15, 4, 123.5)
    assert (row.find_max_state, row.lease_epoch) == ('{"step": 1}', 1)
    assert seen is not None
    assert (seen.status, seen.phase, seen.next_sequence_id) == (S.RUNNING, P.WARMUP, 10)
    assert seen.targets == TARGETS


def test_the_published_number_of_the_next_event_never_goes_down(plane, led):
    run = led(S.RUNNING)

    seen = []
    for number in (5, 3, 8, 1):
        assert publish(plane.session, run.term, Rollup(targets={}, next_sequence_id=number))
        seen.append(run.row.next_sequence_id)

    assert seen == [5, 5, 8, 8]


def test_what_is_published_does_not_touch_the_state(plane, led):
    run = led(S.CANCELLING)

    assert publish(plane.session, run.term, Rollup(targets={}))

    assert run.row.status is S.CANCELLING


# --- looking ---------------------------------------------------------------------------------------------------------


def test_everybody_sees_for_how_long_nobody_has_been_in_charge(plane):
    run_id = plane.new_run()

    def lease_over_ms() -> int | None:
        seen = run_status.poll(plane.session, run_id)
        assert seen is not None
        return seen.lease_over_ms

    assert lease_over_ms() is None
    plane.claim(run_id, ttl_s=600)
    held_ms = lease_over_ms()
    assert held_ms is not None
    assert -600_000 <= held_ms < 0
    plane.expire(run_id, since_s=60)
    over_ms = lease_over_ms()
    assert over_ms is not None
    assert over_ms >= 60_000
    plane.claim(run_id)
    again_ms = lease_over_ms()
    assert again_ms is not None
    assert again_ms < 0


def test_a_run_that_is_not_there_is_none_and_no_error(plane):
    assert read(plane.session, "no") is None
    assert run_status.read_config(plane.session, "no") is None
    assert run_status.poll(plane.session, "no") is None


def test_unfinished_runs_are_those_without_an_end(plane, led):
    never_led, leading, finished = plane.new_run(), led(S.RUNNING), led(S.FAILED)
    plane.expire(leading.run_id, since_s=5)

    found = {run.run_id: run for run in run_status.unfinished(plane.session)}

    assert finished.run_id not in found
    assert (found[never_led].lease_over_ms, found[never_led].beat_age_ms) == (None, None)
    assert found[never_led].update_age_ms >= 0
    over_ms = found[leading.run_id].lease_over_ms
    assert over_ms is not None
    assert over_ms >= 5_000
    assert found[leading.run_id].status is S.RUNNING


def test_the_newest_runs_come_first(plane):
    made = [plane.new_run() for _ in range(4)]

    newest = run_status.newest(plane.session, 3)

    assert [run.run_id for run in newest] == made[:0:-1]


def test_runs_are_found_by_status_scenario_and_age(plane, led):
    stopped, waiting = led(S.CANCELLED), plane.new_run()
    name = stopped.row.test_name

    def ids(**wanted: Any) -> set[str]:
        return {run.run_id for run in run_status.newest(plane.session, 1_000, **wanted)}

    assert stopped.run_id in ids(status=S.CANCELLED)
    assert waiting not in ids(status=S.CANCELLED)
    assert {stopped.run_id, waiting} <= ids(scenario=name, within_s=3_600.0)
    assert not ids(scenario=f"{name} of others")
    assert not ids(within_s=-60.0)


def test_only_runs_that_ended_long_enough_ago_are_deleted_and_all_of_them(plane, led):
    ended, living = led(S.COMPLETED), led(S.RUNNING)
    session = plane.session
    test_logs.append(session, patience(), [log_row(ended.run_id), log_row(living.run_id)])

    assert prune.look(session, patience(), 3_600.0).runs == ()
    found = prune.look(session, patience(), -60.0)
    assert ended.run_id in {run.id for run in found.runs}
    assert living.run_id not in {run.id for run in found.runs}
    deleted = prune.delete(session, patience(), found.before)

    assert deleted["RUN_STATUS"] >= 1
    assert deleted["TEST_LOGS"] == 1
    assert deleted["RUN_LEASES"] >= 1
    assert read(session, ended.run_id) is None
    assert read(session, living.run_id) is not None
    assert len(test_logs.newest(session, living.run_id, 10)) == 1
    assert set(prune.delete(session, patience(), found.before).values()) == {0}


def log_row(run_id: str) -> LogRow:
    moment = datetime(2026, 11, 15, 2, tzinfo=UTC).replace(tzinfo=None)
    return LogRow(
        log_id=str(uuid.uuid4()),
        run_id=run_id,
        test_id=run_id,
        worker_id=None,
        level="INFO",
        message="x",
        details=None,
        timestamp=moment,
    )


def test_enrichment_is_the_one_thing_that_changes_after_the_end(plane, led):
    run = led(S.COMPLETED)
    before = run.row

    run_status.set_enrichment(plane.session, patience(), run.run_id, "DONE")

    assert replace(run.row, updated_at=before.updated_at) == replace(before, enrichment_status="DONE")


def test_server_time_is_the_time_of_the_tables(plane):
    before = run_status.server_time(plane.session)
    row = read(plane.session, plane.new_run())
    after = run_status.server_time(plane.session)

    assert row is not None
    assert before <= row.created_at <= after
