"""Leases of claimed runs and how attempts end: real SQL through both majors of the connector."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from loadgen.control.session import ControlFailed
from loadgen.control.tables import pool_workers, run_attempts, run_queue
from loadgen.control.tables.run_queue import QueueClaim
from loadgen.model.nightly import ATTEMPTS_MAX, PoolWorkerStatus, QueueStatus
from orchestrator.nightly.queue import PollPace, QueueMaintenance
from tests.contract.queue_builders import LEASE_S, Queue, each_fault
from tests.control_plane import retries

pytestmark = pytest.mark.any_driver


def assert_powerless(queue: Queue, claim: QueueClaim) -> None:
    """Nothing that is done in the name of this claim changes the row."""
    before = queue.row(claim.queue_id)

    assert not queue.finish(claim, exit_code=0)
    assert not queue.release(claim)
    run_queue.set_run(queue.session, retries(), replace(claim, epoch=claim.epoch), "some-run")
    assert run_queue.claim_status(queue.session, claim) is None

    after = queue.row(claim.queue_id)
    assert replace(after, available_in_ms=0) == replace(before, available_in_ms=0)


# --- leases ----------------------------------------------------------------------------------------------------------


def test_an_expired_lease_is_for_others_and_its_owner_is_powerless(queue):
    queue_id = queue.add()
    old = queue.claimed(queue.runner())
    queue.pass_time(queue_id)

    assert_powerless(queue, old)
    assert not run_queue.extend(queue.session, old, LEASE_S)
    new = queue.claimed(queue.runner())

    assert new.epoch == 2
    assert_powerless(queue, old)
    assert queue.history(queue_id) == [(1, "LOST"), (2, "RUNNING")]
    assert queue.finish(new, exit_code=0)
    assert queue.row(queue_id).status is QueueStatus.COMPLETED


def test_an_expired_lease_is_for_others_after_a_margin(queue):
    """A statement of its owner that began in time may still be under way."""
    queue_id = queue.add()
    old = queue.claimed(queue.runner())
    queue.pass_time(queue_id, LEASE_S + 1)

    assert queue.claim(queue.runner()) is None
    assert run_queue.end_abandoned(queue.session, retries()) == 0
    assert_powerless(queue, old)
    assert queue.history(queue_id) == [(1, "RUNNING")]


def test_a_beat_extends_one_lease_from_now_and_keeps_its_run(queue):
    mine, others = queue.add(), queue.add()
    claim, other = queue.claimed(queue.runner()), queue.claimed(queue.runner())
    run_queue.set_run(queue.session, retries(), other, "r-2")
    for queue_id in (mine, others):
        queue.pass_time(queue_id, LEASE_S - 200)

    assert run_queue.extend(queue.session, claim, LEASE_S, run_id="r-1")
    assert run_queue.extend(queue.session, claim, LEASE_S)

    assert 200_000 < queue.row(mine).available_in_ms <= LEASE_S * 1000
    assert queue.row(others).available_in_ms <= 200_000
    assert [queue.row(queue_id).run_id for queue_id in (mine, others)] == ["r-1", "r-2"]


def test_the_runs_of_an_ended_runner_can_be_claimed_at_once(queue):
    queue_id, runner = queue.add(), queue.runner()
    old = queue.claimed(runner)

    assert run_queue.expire(queue.session, retries(), runner, "its runner was killed") == 1

    assert queue.row(queue_id).reason == "its runner was killed"
    assert_powerless(queue, old)
    assert queue.claimed(queue.runner()).queue_id == queue_id


def test_the_run_of_a_child_that_has_ended_is_given_back_at_once(queue, clock):
    """By the pool that is its parent, on any system: the id of this runner does not contain the scope of its process
    id."""
    queue_id, runner = queue.add(), queue.runner()
    old = queue.claimed(runner)
    upkeep = QueueMaintenance(queue.plane.open("queue"), (), share=False, pace=PollPace(), clock=clock)
    upkeep.step()
    before = queue.history(queue_id)
    queue.plane.server.fault(match="^INSERT INTO RUN_ATTEMPT_ENDS", count=1, kind="http_status", status=503)

    upkeep.release(runner, "its runner was killed by SIGKILL")
    with pytest.raises(ControlFailed):
        upkeep.step()
    upkeep.step()

    assert before == [(1, "RUNNING")]
    assert queue.history(queue_id) == [(1, "LOST")]
    assert queue.row(queue_id).reason == "its runner was killed by SIGKILL"
    assert_powerless(queue, old)
    assert pool_workers.find(queue.session, retries(), runner).status is PoolWorkerStatus.OFFLINE
    assert queue.claimed(queue.runner()).queue_id == queue_id


@pytest.mark.parametrize("field", ["queue_id", "epoch", "owner"])
def test_a_claim_that_differs_in_anything_ends_nothing(queue, field):
    queue.add()
    claim, other = queue.claimed(queue.runner()), queue.add()
    forged = replace(claim, **{field: {"queue_id": other, "epoch": 2, "owner": "me"}[field]})

    assert not queue.finish(forged, exit_code=0)
    assert not queue.release(forged)

    assert queue.finish(claim, exit_code=0)


# --- ends ------------------------------------------------------------------------------------------------------------


def test_a_failed_run_waits_for_its_pause_and_is_exhausted_after_the_last_attempt(queue):
    queue_id, runner = queue.add(), queue.runner()

    for attempt in range(1, ATTEMPTS_MAX + 1):
        claim = queue.claimed(runner)
        assert queue.release(claim, pause_s=300)
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
        assert queue.release(claim, counts=False)

    assert (queue.row(queue_id).status, queue.row(queue_id).attempts) == (QueueStatus.QUEUED, 0)


def test_a_run_that_was_lost_with_its_last_attempt_is_exhausted(queue):
    queue_id = queue.add(max_attempts=1)
    claim = queue.claimed(queue.runner())
    assert run_queue.end_abandoned(queue.session, retries()) == 0
    queue.pass_time(queue_id)
    assert queue.claim(queue.runner()) is None

    assert run_queue.end_abandoned(queue.session, retries()) == 1

    assert queue.row(queue_id).status is QueueStatus.EXHAUSTED
    assert queue.history(queue_id) == [(1, "LOST")]
    assert_powerless(queue, claim)


@each_fault
@pytest.mark.parametrize("verb", ["finish", "release"])
def test_an_end_whose_answer_is_lost_is_known_and_counted_once(queue, fault, verb):
    queue_id = queue.add()
    claim = queue.claimed(queue.runner())
    queue.plane.server.fault(match="^INSERT INTO RUN_ATTEMPT_ENDS", count=1, **fault)

    ended = queue.finish(claim, exit_code=10, run_id="r") if verb == "finish" else queue.release(claim, pause_s=60)

    row = queue.row(queue_id)
    assert ended
    assert (row.status, row.attempts) == (QueueStatus.COMPLETED if verb == "finish" else QueueStatus.QUEUED, 1)


@pytest.mark.parametrize("fact", ["claim", "end", "request"])
def test_an_end_that_its_owner_did_not_settle_is_settled_by_others(queue, fact):
    """The process that wrote the key ended before it changed RUN_QUEUE."""
    queue_id = queue.add()
    claim = queue.claimed(queue.runner()) if fact == "end" else None
    runner = queue.runner()
    decide = {
        "claim": lambda: queue.claim(runner),
        "end": lambda: claim and queue.finish(claim, exit_code=10, run_id="r-1", reason="p95"),
        "request": lambda: run_queue.cancel(queue.session, retries(), queue_id, "enough"),
    }
    queue.plane.server.fault(match="^UPDATE RUN_QUEUE SET", kind="error", errno=2003, sqlstate="02000")
    with pytest.raises(ControlFailed):
        decide[fact]()
    queue.plane.server.clear_faults()
    before = queue.row(queue_id).status

    assert queue.claim(queue.runner()) is None
    assert run_queue.end_abandoned(queue.session, retries()) == (1 if fact == "end" else 0)

    assert before is (QueueStatus.RUNNING if fact == "end" else QueueStatus.QUEUED)
    expected = {"claim": QueueStatus.RUNNING, "end": QueueStatus.COMPLETED, "request": QueueStatus.CANCELLED}
    assert queue.row(queue_id).status is expected[fact]


@pytest.mark.parametrize("seed", range(8))
def test_in_any_order_of_events_the_queue_repeats_the_decided_state(queue, seed):
    """Statements of processes that knew less arrive late: RUN_QUEUE is wrong for a while, and nothing happens twice."""
    choose = random.Random(seed)
    queue_id, runners = queue.add(max_attempts=2), [queue.runner() for _ in range(3)]
    claims: list[QueueClaim] = []
    stale = [queue.plane.rows("SELECT STATUS, EPOCH, ATTEMPTS FROM RUN_QUEUE WHERE QUEUE_ID = ?", queue_id)[0]]
    accepted: Counter[int] = Counter()
    for _ in range(25):
        step = choose.randrange(7)
        if step <= 1 and (claim := queue.claim(choose.choice(runners))) is not None:
            claims.append(claim)
        elif step == 2 and claims:
            claim = choose.choice(claims)
            accepted[claim.epoch] += queue.finish(claim, QueueStatus.FAILED, exit_code=4)
        elif step == 3 and claims:
            claim = choose.choice(claims)
            accepted[claim.epoch] += queue.release(claim)
        elif step == 4:
            run_queue.cancel(queue.session, retries(), queue_id, "enough")
        elif step == 5:
            run_queue.retry(queue.session, retries(), queue_id, "again")
        else:
            old = "UPDATE RUN_QUEUE SET STATUS = ?, EPOCH = ?, ATTEMPTS = ? WHERE QUEUE_ID = ?"
            queue.plane.change(old, *choose.choice(stale), queue_id)
        stale += queue.plane.rows("SELECT STATUS, EPOCH, ATTEMPTS FROM RUN_QUEUE WHERE QUEUE_ID = ?", queue_id)
    run_attempts.settle(queue.session, retries(), queue_id)

    facts = run_attempts.read_facts(queue.session, queue_id)
    assert facts is not None
    assert facts.repeated == facts.state
    assert len({claim.epoch for claim in claims}) == len(claims)
    assert max(accepted.values(), default=0) <= 1
    ended = [epoch for epoch, status in queue.history(queue_id) if status != "RUNNING"]
    assert sorted(ended) == sorted(epoch for epoch, count in accepted.items() if count)
