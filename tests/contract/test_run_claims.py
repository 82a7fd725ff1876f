"""Leases of claimed runs and how attempts end: real SQL through both majors of the connector."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadgen.control.tables import run_attempts, run_queue_claims
from loadgen.control.tables.run_queue_claims import QueueClaim
from loadgen.model.nightly import ATTEMPTS_MAX, AttemptStatus, QueueStatus
from tests.contract.queue_builders import LEASE_S, Queue, each_fault
from tests.control_plane import patience

pytestmark = pytest.mark.any_driver


def assert_powerless(queue: Queue, claim: QueueClaim) -> None:
    """Nothing that is done in the name of this claim changes the row."""
    before = queue.row(claim.queue_id)

    assert not queue.finish(claim, exit_code=0)
    assert not queue.give_back(claim)
    run_queue_claims.set_run(queue.session, patience(), replace(claim, epoch=claim.epoch), "some-run")
    assert run_queue_claims.look(queue.session, claim) is None

    after = queue.row(claim.queue_id)
    assert replace(after, available_in_ms=0) == replace(before, available_in_ms=0)


# --- leases ----------------------------------------------------------------------------------------------------------


def test_an_expired_lease_is_for_others_and_its_owner_is_powerless(queue):
    queue_id = queue.add()
    old = queue.claimed(queue.runner())
    queue.pass_time(queue_id)

    assert_powerless(queue, old)
    assert run_queue_claims.extend(queue.session, old.owner, LEASE_S) == 0
    new = queue.claimed(queue.runner())

    assert new.epoch == 2
    assert_powerless(queue, old)
    assert queue.history(queue_id) == [(1, "LOST"), (2, "RUNNING")]
    assert queue.finish(new, exit_code=0)
    assert queue.row(queue_id).status is QueueStatus.COMPLETED


def test_an_attempt_that_never_came_to_its_row_is_in_the_history(queue):
    queue_id = queue.add()
    queue.claimed(queue.runner())
    queue.plane.change("DELETE FROM RUN_ATTEMPTS")  # its owner was killed right after the claim
    queue.pass_time(queue_id)

    queue.claimed(queue.runner())

    assert queue.history(queue_id) == [(1, "LOST"), (2, "RUNNING")]


def test_a_beat_extends_all_leases_of_its_runner_from_now_and_no_others(queue):
    mine, others = [queue.add() for _ in range(2)], queue.add()
    runner = queue.runner()
    for _ in mine:
        queue.claimed(runner)
    queue.claimed(queue.runner())
    for queue_id in (*mine, others):
        queue.pass_time(queue_id, LEASE_S - 200)

    assert run_queue_claims.extend(queue.session, runner, LEASE_S) == 2
    assert run_queue_claims.extend(queue.session, runner, LEASE_S) == 2

    assert all(200_000 < queue.row(queue_id).available_in_ms <= LEASE_S * 1000 for queue_id in mine)
    assert queue.row(others).available_in_ms <= 200_000


def test_the_runs_of_a_runner_that_is_gone_are_to_be_had_at_once(queue):
    queue_id, runner = queue.add(), queue.runner()
    old = queue.claimed(runner)

    assert run_queue_claims.expire(queue.session, patience(), runner) == 1

    assert_powerless(queue, old)
    assert queue.claimed(queue.runner()).queue_id == queue_id


@pytest.mark.parametrize("field", ["queue_id", "epoch", "owner"])
def test_a_claim_that_differs_in_anything_ends_nothing(queue, field):
    queue.add()
    claim, other = queue.claimed(queue.runner()), queue.add()
    forged = replace(claim, **{field: {"queue_id": other, "epoch": 2, "owner": "me"}[field]})

    assert not queue.finish(forged, exit_code=0)
    assert not queue.give_back(forged)

    assert queue.finish(claim, exit_code=0)


# --- ends ------------------------------------------------------------------------------------------------------------


def test_what_fails_waits_for_its_pause_and_is_exhausted_after_the_last_attempt(queue):
    queue_id, runner = queue.add(), queue.runner()

    for attempt in range(1, ATTEMPTS_MAX + 1):
        claim = queue.claimed(runner)
        assert queue.give_back(claim, pause_s=300)
        row = queue.row(queue_id)
        assert row.attempts == attempt
        assert queue.claim(runner) is None
        queue.pass_time(queue_id, 301)

    assert (row.status, row.exit_code, row.reason) == (QueueStatus.EXHAUSTED, 4, "no")
    assert row.ended_at is not None
    assert queue.claim(runner) is None


def test_an_attempt_that_does_not_count_can_be_repeated_for_ever(queue):
    queue_id, runner = queue.add(max_attempts=1), queue.runner()

    for epoch in range(1, 4):
        claim = queue.claimed(runner)
        assert claim.epoch == epoch
        assert queue.give_back(claim, counts=False)

    assert (queue.row(queue_id).status, queue.row(queue_id).attempts) == (QueueStatus.QUEUED, 0)


def test_what_was_lost_with_its_last_attempt_is_exhausted(queue):
    queue_id = queue.add(max_attempts=1)
    claim = queue.claimed(queue.runner())
    assert run_queue_claims.end_abandoned(queue.session, patience()) == 0
    queue.pass_time(queue_id)
    assert queue.claim(queue.runner()) is None

    assert run_queue_claims.end_abandoned(queue.session, patience()) == 1

    assert queue.row(queue_id).status is QueueStatus.EXHAUSTED
    assert queue.history(queue_id) == [(1, "LOST")]
    assert_powerless(queue, claim)


@each_fault
@pytest.mark.parametrize("verb", ["finish", "give_back"])
def test_an_end_whose_answer_is_lost_is_known_and_counted_once(queue, fault, verb):
    queue_id = queue.add()
    claim = queue.claimed(queue.runner())
    queue.plane.server.fault(match="^UPDATE RUN_QUEUE SET", count=1, **fault)

    ended = queue.finish(claim, exit_code=10, run_id="r") if verb == "finish" else queue.give_back(claim, pause_s=60)

    row = queue.row(queue_id)
    assert ended
    assert (row.status, row.attempts) == (QueueStatus.COMPLETED if verb == "finish" else QueueStatus.QUEUED, 1)


def test_an_attempt_that_its_runner_could_not_end_is_ended_as_the_queue_knows_it(queue):
    done, moved_on = queue.add("a"), queue.add("b")
    runner = queue.runner()
    first, second = queue.claimed(runner), queue.claimed(runner)
    assert queue.finish(first, exit_code=10, run_id="r-1", reason="p95")
    assert queue.give_back(second)
    queue.claimed(runner)
    updated = "UPDATE RUN_QUEUE SET UPDATED_AT = DATEADD(second, ?, SYSDATE())"
    queue.plane.change(updated, 300)  # just now, however long this takes
    assert run_attempts.end_stale(queue.session, patience()) == 0  # they may be about to say so themselves
    queue.plane.change(updated, -11)

    assert run_attempts.end_stale(queue.session, patience()) == 2

    (ended,) = run_attempts.read(queue.session, done)
    assert (ended.status, ended.exit_code, ended.run_id) == (AttemptStatus.COMPLETED, 10, "r-1")
    assert queue.history(moved_on) == [(1, "LOST"), (2, "RUNNING")]
