"""The steps of a run: who may take them, how it ends, and what a user's wish does to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from loadgen.control.session import REASON_MAX, clean_text, load_queries
from loadgen.control.tables.run_leases import TAKEOVER_MARGIN_S, release
from loadgen.control.tables.run_status import (
    Fenced,
    Run,
    RunRollup,
    StatusChange,
    cancel,
    move,
    publish,
    server_time,
)
from loadgen.errors import UsageError
from loadgen.model.run import InvalidTransition, RunStatus
from tests.contract.run_builders import HOSTILE, Led, P, S, at_once
from tests.control_plane import ControlPlane, retries

pytestmark = pytest.mark.any_driver

RACES = 30


# --- a user's wish ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", list(RunStatus))
def test_a_run_can_be_cancelled_until_it_is_ending(plane, led, status):
    run = led(status)
    before = run.row

    after = cancel(plane.session, retries(), run.run_id, "enough")

    assert after == run.row
    if status in (S.PREPARED, S.STARTING, S.RUNNING):
        assert (after.status, after.phase, after.reason) == (S.CANCELLING, before.phase, "enough")
    else:
        assert after == before


def test_the_first_reason_to_cancel_stays(plane, led):
    run = led(S.RUNNING)
    cancel(plane.session, retries(), run.run_id, "first")

    assert cancel(plane.session, retries(), run.run_id, "second").reason == "first"


@pytest.mark.parametrize("kind", ["drop_reply", "reset"])
def test_a_stop_request_whose_response_was_lost_is_found(plane, led, kind):
    run = led(S.RUNNING)
    plane.server.fault(match="^UPDATE RUN_STATUS", kind=kind, count=1)

    assert cancel(plane.session, retries(), run.run_id, "enough").status is S.CANCELLING


def test_a_run_that_is_not_there_cannot_be_cancelled(plane):
    with pytest.raises(UsageError) as raised:
        cancel(plane.session, retries(), "no-such-run", "enough")

    assert "loadgen runs list" in raised.value.remedy


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_any_reason_can_be_given_and_is_kept_up_to_its_limit(plane, led, text):
    cancelled, failed = led(), led()

    cancel(plane.session, retries(), cancelled.run_id, text)
    failed.step(S.FAILED, reason=text)

    for kept in (cancelled.row.reason, failed.row.reason):
        assert kept is not None
        if len(text) <= REASON_MAX:
            assert kept == clean_text(text)
        else:
            assert len(kept) == REASON_MAX
            assert kept[: REASON_MAX - 20] == text[: REASON_MAX - 20]
    assert cancelled.row.status is S.CANCELLING
    assert failed.row.status is S.FAILED


def test_a_reason_of_exactly_the_limit_is_kept_whole(plane, led):
    run = led()

    cancel(plane.session, retries(), run.run_id, "🙂" * REASON_MAX)

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
    step = StatusChange(status=S.STARTING, phase=P.PREPARING, to=S.FAILED, to_phase=P.PREPARING, reason="late")

    assert not move(plane.session, retries(), run.term, step)
    assert not move(plane.session, retries(), run.term, replace(step, status=S.RUNNING))
    assert run.row == before


def test_a_step_that_does_not_exist_is_not_even_sent(plane, led):
    run = led(S.PREPARED)

    with pytest.raises(InvalidTransition):
        run.step(S.COMPLETED)

    assert run.row.status is S.PREPARED


@pytest.mark.parametrize("status", [S.COMPLETED, S.CANCELLED, S.FAILED])
def test_an_end_is_final_in_sql_too(plane, led, status):
    """Sends a step that `advance` rejects, with a valid lease."""
    run = led(status)
    before = run.row
    term = (run.term.epoch, run.term.owner)

    for to in RunStatus:
        binds = (to, before.phase, "again", "PASS", run.term.epoch, 1, None, 1, None, 1, 0)
        where = (run.run_id, before.status, before.status, before.phase, run.run_id, *term)
        assert plane.session.execute(load_queries("run_status")["move"], *binds, *where) == 0
    assert not publish(plane.session, run.term, RunRollup(targets={}, total_ops=5))
    cancel(plane.session, retries(), run.run_id, "again")

    assert run.row == before


def end_the_term(plane: ControlPlane, run: Led, how: str) -> None:
    if how == "released":
        release(plane.session, run.term)
    else:
        plane.expire(run.run_id, since_s=TAKEOVER_MARGIN_S + 1 if how == "succeeded" else 0.2)
    if how == "succeeded":
        assert plane.claim(run.run_id).epoch == 2


@pytest.mark.parametrize("how", ["expired", "released", "succeeded"])
def test_an_owner_that_lost_its_lease_takes_no_step(plane, led, how):
    run = led(S.RUNNING)
    before = run.row
    end_the_term(plane, run, how)

    with pytest.raises(Fenced):
        run.step(S.STOPPING)
    with pytest.raises(Fenced):
        run.step(S.RUNNING, P.MEASUREMENT)
    with pytest.raises(Fenced):  # a step that keeps the status, and only gives a reason
        run.step(S.RUNNING, reason="still here")
    assert not publish(plane.session, run.term, RunRollup(targets={}, total_ops=5))

    assert run.row == before


def test_a_step_that_keeps_the_status_can_give_a_reason(led):
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
    step = StatusChange(status=S.STARTING, phase=P.PREPARING, to=S.RUNNING, to_phase=P.WARMUP)
    wish = retries(note=lambda _: cancel(plane.session, retries(), run.run_id, "enough"))

    assert not move(plane.session, wish, run.term, step)

    assert (run.row.status, run.row.phase, run.row.reason) == (S.CANCELLING, P.WARMUP, "enough")


def mover(run: Led, step: StatusChange) -> Callable[[Any], bool]:
    return lambda session: move(session, retries(), run.term, step)


def canceller(run: Led) -> Callable[[Any], Run]:
    return lambda session: cancel(session, retries(), run.run_id, "enough")


def test_of_a_simultaneous_end_and_stop_request_one_comes_first(plane, led):
    for _ in range(RACES):
        run = led(S.RUNNING)
        step = StatusChange(status=S.RUNNING, phase=P.WARMUP, to=S.STOPPING, to_phase=P.COOLDOWN, reason="the end")

        moved, cancelled = at_once(
            plane,
            mover(run, step),
            canceller(run),
        )

        after = run.row
        assert moved is (after.status is S.STOPPING)
        assert cancelled.status in (S.CANCELLING, after.status)  # the end may come while the wish is under way
        assert (after.status, after.reason) in [(S.STOPPING, "the end"), (S.CANCELLING, "enough")]


def test_a_wish_that_meets_the_start_is_never_lost(plane, led):
    for _ in range(RACES):
        run = led(S.STARTING)
        step = StatusChange(status=S.STARTING, phase=P.PREPARING, to=S.RUNNING, to_phase=P.WARMUP, reason="go")

        moved, cancelled = at_once(
            plane,
            mover(run, step),
            canceller(run),
        )

        after = run.row
        assert (after.status, after.reason) == (cancelled.status, "enough") == (S.CANCELLING, "enough")
        assert moved is (after.start_time is not None)


@pytest.mark.parametrize("warm", [True, False])
def test_a_run_starts_at_the_zero_of_its_plan(plane, led, warm):
    """START has announced it; the row is moved before it or after it."""
    run = led(S.STARTING)
    zero = server_time(plane.session).replace(microsecond=125_000) + timedelta(seconds=3)
    first = P.WARMUP if warm else P.MEASUREMENT
    step = StatusChange(status=S.STARTING, phase=P.PREPARING, to=S.RUNNING, to_phase=first, zero=zero)

    assert move(plane.session, retries(), run.term, step)

    assert run.row.start_time == zero
    assert run.row.warmup_start_time == (zero if warm else None)
    later = StatusChange(
        status=S.RUNNING, phase=first, to=S.STOPPING, to_phase=P.COOLDOWN, zero=zero + timedelta(hours=1)
    )
    assert move(plane.session, retries(), run.term, later)
    assert run.row.start_time == zero, "it is written once"
