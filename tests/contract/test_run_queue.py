"""The run queue, its attempts and the registry of runners: real SQL through both majors of the connector."""

from __future__ import annotations

import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from loadgen.control import pool_workers, run_attempts, run_claims, run_queue, run_status
from loadgen.control.pool_workers import PoolWorkerIdentity
from loadgen.control.run_claims import Claim, Result
from loadgen.control.run_queue import NewQueued
from loadgen.control.session import ControlSession
from loadgen.errors import UsageError
from loadgen.model.pool_worker import PoolWorkerStatus
from loadgen.model.queue import ATTEMPTS_MAX, AttemptStatus, Judging, QueueStatus
from tests.control_plane import ControlPlane, patience

pytestmark = pytest.mark.any_driver

LEASE_S = 600.0
JUDGING = Judging(baseline="trend", confirm=True)
NOT_ANSWERED: list[dict[str, Any]] = [{"kind": "drop_reply"}, {"kind": "reset"}, {"kind": "http_status", "status": 503}]
each_fault = pytest.mark.parametrize("fault", NOT_ANSWERED, ids=[fault["kind"] for fault in NOT_ANSWERED])


class Queue:
    """The queue of a control plane, emptied for each test."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane, self.session = plane, plane.session
        for table in ("RUN_QUEUE", "RUN_ATTEMPTS", "POOL_WORKERS"):
            plane.change(f"DELETE FROM {table}")

    def add(self, name: str = "orders", **more: Any) -> str:
        wanted = NewQueued(**{"name": name, "scenario": "name: x", "files": {}} | more)
        return run_queue.add(self.session, patience(), wanted).queue_id

    def runner(self, *offers: str, **more: Any) -> str:
        """A runner that is ONLINE. Its id."""
        name = f"host-{uuid.uuid4()}"
        fields: dict[str, Any] = {"hostname": name, "pid": 7, "version": "1", "task_queue": "Q", "labels": offers}
        me = PoolWorkerIdentity(**{"worker_id": name, "capabilities": offers, **fields, **more})
        pool_workers.register(self.session, patience(), me, draining=False, lease_s=LEASE_S)
        return me.worker_id

    def claim(self, owner: str, *offers: str, session: ControlSession | None = None) -> Claim | None:
        return run_claims.claim(session or self.session, patience(), owner, offers, LEASE_S)

    def claimed(self, owner: str) -> Claim:
        got = self.claim(owner)
        assert got is not None
        return got

    def row(self, queue_id: str) -> run_queue.Queued:
        row = run_queue.read(self.session, queue_id)
        assert row is not None
        return row

    def history(self, queue_id: str) -> list[tuple[int, str]]:
        return [(one.epoch, one.status.value) for one in run_attempts.read(self.session, queue_id)]

    def pass_time(self, queue_id: str, seconds: float = LEASE_S + 1) -> None:
        """For this row: its lease, its pause."""
        self.plane.change(
            "UPDATE RUN_QUEUE SET AVAILABLE_AT = DATEADD(millisecond, ?, AVAILABLE_AT) WHERE QUEUE_ID = ?",
            -round(seconds * 1000),
            queue_id,
        )

    def finish(self, claim: Claim, status: QueueStatus = QueueStatus.COMPLETED, **result: Any) -> bool:
        return run_claims.finish(self.session, patience(), claim, status, Result(**result))

    def give_back(self, claim: Claim, *, counts: bool = True, pause_s: float = 0.0) -> bool:
        failed = Result(exit_code=4, reason="no")
        return run_claims.give_back(self.session, patience(), claim, failed, pause_s=pause_s, counts=counts)


@pytest.fixture
def queue(plane: ControlPlane) -> Queue:
    return Queue(plane)


def assert_powerless(queue: Queue, claim: Claim) -> None:
    """Nothing that is done in the name of this claim changes the row."""
    before = queue.row(claim.queue_id)

    assert not queue.finish(claim, exit_code=0)
    assert not queue.give_back(claim)
    run_claims.set_run(queue.session, patience(), replace(claim, epoch=claim.epoch), "some-run")
    assert run_claims.look(queue.session, claim) is None

    after = queue.row(claim.queue_id)
    assert replace(after, available_in_ms=0) == replace(before, available_in_ms=0)


# --- adding ----------------------------------------------------------------------------------------------------------


def test_what_is_added_waits_with_its_texts(queue):
    text, files = "name: ünïcode\nsql: 'a'", {"keys/a.csv": "k\r\n1\r\n"}
    queue_id = queue.add(
        "Orders & more", scenario=text, files=files, connection="prod", requires=("b=2", "a=1"), judging=JUDGING
    )

    row = queue.row(queue_id)
    claim = queue.claim(queue.runner(), "a=1", "b=2")
    assert claim is not None
    wanted = run_claims.wanted(queue.session, claim)

    assert (row.status, row.attempts, row.epoch, row.requires) == (QueueStatus.QUEUED, 0, 0, ("a=1", "b=2"))
    assert wanted == run_claims.Wanted(
        name="Orders & more", scenario=text, files=files, connection="prod", attempts=1, judging=JUDGING
    )


def test_of_two_with_one_key_there_is_one(queue):
    first = run_queue.add(queue.session, patience(), NewQueued(name="a", scenario="1", files={}, idempotency_key="k"))
    again = run_queue.add(queue.session, patience(), NewQueued(name="b", scenario="2", files={}, idempotency_key="k"))

    assert (first.is_new, again.is_new, again.queue_id) == (True, False, first.queue_id)
    assert len(run_queue.newest(queue.session, 10)) == 1


@each_fault
def test_an_addition_whose_answer_is_lost_is_there_once(queue, fault):
    queue.plane.server.fault(match="^INSERT INTO RUN_QUEUE", count=1, **fault)

    added = run_queue.add(queue.session, patience(), NewQueued(name="a", scenario="1", files={}))

    assert added.is_new
    assert [row.queue_id for row in run_queue.newest(queue.session, 10)] == [added.queue_id]


def test_what_is_not_due_is_not_taken(queue):
    now = run_status.server_time(queue.session)
    later = queue.add(not_before=now + timedelta(hours=1))
    runner = queue.runner()

    assert queue.claim(runner) is None
    queue.pass_time(later, 3601)
    assert queue.claimed(runner).queue_id == later


def test_a_beginning_names_what_no_other_begins_with(queue):
    one, other = queue.add("alpha"), queue.add("beta")

    assert run_queue.find(queue.session, patience(), "alp") == one
    assert run_queue.find(queue.session, patience(), other) == other
    with pytest.raises(UsageError, match="there is no queued run 'gamma'"):
        run_queue.find(queue.session, patience(), "gamma")
    with pytest.raises(UsageError, match="several"):
        run_queue.find(queue.session, patience(), "")


# --- claiming --------------------------------------------------------------------------------------------------------


def test_the_urgent_come_first_then_the_oldest(queue):
    low, first, second, high = (queue.add(priority=priority) for priority in (-1, 0, 0, 9))
    runner = queue.runner()

    taken = [queue.claimed(runner).queue_id for _ in range(4)]

    assert taken == [high, first, second, low]


@pytest.mark.parametrize("state", ["unknown", "DRAINING", "OFFLINE", "silent"])
def test_only_a_runner_that_is_online_gets_anything(queue, state):
    queue.add()
    runner = queue.runner() if state != "unknown" else "nobody"
    if state == "silent":
        queue.plane.change("UPDATE POOL_WORKERS SET LAST_BEAT_AT = DATEADD(second, -31, SYSDATE())")
    else:
        queue.plane.change("UPDATE POOL_WORKERS SET STATUS = ?", state)

    assert queue.claim(runner) is None
    assert queue.claim(queue.runner()) is not None


def test_a_runner_never_gets_what_it_cannot_do_and_what_it_can_is_not_held_up(queue):
    for _ in range(run_claims.CANDIDATES + 2):
        queue.add("needs", requires=("zone=eu", "disk=ssd"), priority=9)
    plain = queue.add("plain")
    poor, rich = queue.runner(), queue.runner()

    got = queue.claim(poor, "zone=eu", "disk=hdd")
    nothing = queue.claim(poor, "zone=eu", "disk=hdd")
    rich_got = queue.claim(rich, "disk=ssd", "more=1", "zone=eu")

    assert (got and got.queue_id, nothing) == (plain, None)
    assert rich_got is not None
    assert rich_got.queue_id.startswith("needs")
    assert run_claims.depth(queue.session, ("zone=eu",)) == 0
    assert run_claims.depth(queue.session, ("zone=eu", "disk=ssd")) == run_claims.CANDIDATES + 1


@pytest.mark.parametrize("requires", ["", "no JSON", "7", '{"zone":"eu"}', "null"])
def test_a_row_that_makes_no_sense_keeps_nobody_from_the_others(queue, requires):
    broken, good = queue.add("broken", priority=9), queue.add("good")
    queue.plane.change("UPDATE RUN_QUEUE SET REQUIRES = ? WHERE QUEUE_ID = ?", requires, broken)
    runner = queue.runner()

    taken = [queue.claim(runner, "zone=eu"), queue.claim(runner, "zone=eu")]

    assert [claim and claim.queue_id for claim in taken] == [good, None]


def test_one_target_is_measured_by_one_run_at_a_time(queue):
    first, second = queue.add("a", target="prod/WH"), queue.add("b", target="prod/WH")
    other = queue.add("c", target="prod/OTHER")
    runner = queue.runner()

    depths = [run_claims.depth(queue.session, ())]
    held = queue.claimed(runner)
    depths.append(run_claims.depth(queue.session, ()))
    beside = queue.claimed(runner)
    depths.append(run_claims.depth(queue.session, ()))
    nothing = queue.claim(runner)
    assert queue.finish(held)

    assert (held.queue_id, beside.queue_id, nothing) == (first, other, None)
    assert depths == [2, 1, 0]  # that could begin
    assert queue.claimed(runner).queue_id == second


def test_who_shares_takes_runs_whose_target_is_being_measured(queue):
    first, second = queue.add("a", target="prod/WH"), queue.add("b", target="prod/WH")
    runner = queue.runner()

    depth = run_claims.depth(queue.session, (), share=True)
    claims = [run_claims.claim(queue.session, patience(), runner, (), LEASE_S, share=True) for _ in range(3)]

    assert depth == 2
    assert [claim and claim.queue_id for claim in claims] == [first, second, None]


def test_of_many_that_claim_at_once_each_run_goes_to_one(queue):
    wanted = {queue.add(str(number)) for number in range(12)}
    runners = [queue.runner() for _ in range(4)]

    def take_all(runner: str) -> list[Claim]:
        session = queue.plane.open("claimer")
        taken = []
        while (claim := queue.claim(runner, session=session)) is not None:
            taken.append(claim)
        session.close()
        return taken

    with ThreadPoolExecutor(4) as threads:
        taken = [claim for claims in threads.map(take_all, runners) for claim in claims]

    assert Counter(claim.queue_id for claim in taken) == Counter(wanted)
    assert all(claim.epoch == 1 for claim in taken)
    assert all(queue.history(queue_id) == [(1, "RUNNING")] for queue_id in wanted)


@each_fault
def test_a_claim_whose_answer_is_lost_is_known_and_counted_once(queue, fault):
    queue_id, runner = queue.add(), queue.runner()
    queue.plane.server.fault(match="^UPDATE RUN_QUEUE SET\\s+STATUS = 'RUNNING'", count=1, **fault)

    claim = queue.claim(runner)

    assert claim == Claim(queue_id=queue_id, epoch=1, owner=runner)
    assert queue.row(queue_id).attempts == 1
    assert queue.history(queue_id) == [(1, "RUNNING")]


# --- leases ----------------------------------------------------------------------------------------------------------


def test_an_expired_lease_is_for_others_and_its_owner_is_powerless(queue):
    queue_id = queue.add()
    old = queue.claimed(queue.runner())
    queue.pass_time(queue_id)

    assert_powerless(queue, old)
    assert run_claims.extend(queue.session, old.owner, LEASE_S) == 0
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

    assert run_claims.extend(queue.session, runner, LEASE_S) == 2
    assert run_claims.extend(queue.session, runner, LEASE_S) == 2

    assert all(200_000 < queue.row(queue_id).available_in_ms <= LEASE_S * 1000 for queue_id in mine)
    assert queue.row(others).available_in_ms <= 200_000


def test_the_runs_of_a_runner_that_is_gone_are_to_be_had_at_once(queue):
    queue_id, runner = queue.add(), queue.runner()
    old = queue.claimed(runner)

    assert run_claims.expire(queue.session, patience(), runner) == 1

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
    assert run_claims.end_abandoned(queue.session, patience()) == 0
    queue.pass_time(queue_id)
    assert queue.claim(queue.runner()) is None

    assert run_claims.end_abandoned(queue.session, patience()) == 1

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
    assert run_attempts.settle(queue.session, patience()) == 0  # they may be about to say so themselves
    queue.plane.change(updated, -11)

    assert run_attempts.settle(queue.session, patience()) == 2

    (ended,) = run_attempts.read(queue.session, done)
    assert (ended.status, ended.exit_code, ended.run_id) == (AttemptStatus.COMPLETED, 10, "r-1")
    assert queue.history(moved_on) == [(1, "LOST"), (2, "RUNNING")]


# --- wishes ----------------------------------------------------------------------------------------------------------


def test_what_waits_is_cancelled_at_once_and_can_be_tried_again(queue):
    queue_id = queue.add()

    cancelled = run_queue.cancel(queue.session, patience(), queue_id, "enough")
    nothing = queue.claim(queue.runner())
    again = run_queue.retry(queue.session, patience(), queue_id, "after all")

    assert (cancelled.status, cancelled.reason, nothing) == (QueueStatus.CANCELLED, "enough", None)
    assert (again.status, again.attempts, again.ended_at) == (QueueStatus.QUEUED, 0, None)
    assert queue.claimed(queue.runner()).queue_id == queue_id


@pytest.mark.parametrize("end", ["obeyed", "failed", "done", "lost"])
def test_what_runs_is_its_owners_to_end(queue, end):
    queue_id = queue.add()
    claim = queue.claimed(queue.runner())

    asked = run_queue.cancel(queue.session, patience(), queue_id, "enough")
    seen = run_claims.look(queue.session, claim)
    assert queue.claim(queue.runner()) is None
    if end == "obeyed":
        assert queue.finish(claim, QueueStatus.CANCELLED)
    elif end == "failed":
        assert queue.give_back(claim)
    elif end == "done":
        assert queue.finish(claim, exit_code=0)
    else:
        queue.pass_time(queue_id)
        assert queue.claim(queue.runner()) is None
        run_claims.end_abandoned(queue.session, patience())

    assert asked.status is seen is QueueStatus.CANCEL_REQUESTED
    row = queue.row(queue_id)
    assert row.status is (QueueStatus.COMPLETED if end == "done" else QueueStatus.CANCELLED)
    assert row.ended_at is not None


def test_what_was_done_stays_as_it_is(queue):
    queue_id = queue.add()
    assert queue.finish(queue.claimed(queue.runner()), exit_code=0, reason="passed")

    cancelled = run_queue.cancel(queue.session, patience(), queue_id, "late")
    again = run_queue.retry(queue.session, patience(), queue_id, "late")

    assert cancelled.status is again.status is QueueStatus.COMPLETED
    assert again.reason == "passed"


# --- runners ---------------------------------------------------------------------------------------------------------


def test_a_beat_is_answered_with_the_wish_to_drain(queue):
    runner = queue.runner()

    def beat() -> pool_workers.Answer | None:
        return pool_workers.beat(queue.session, runner, current_run="q", completed=3, failed=1, lease_s=LEASE_S)

    before = beat()
    assert pool_workers.drain(queue.session, patience(), runner)
    after = beat()

    assert before == pool_workers.Answer(beat_s=10.0, should_drain=False)
    assert after == pool_workers.Answer(beat_s=10.0, should_drain=True)
    seen = pool_workers.find(queue.session, patience(), runner)
    assert (seen.status, seen.current_run, seen.completed, seen.failed) == (PoolWorkerStatus.DRAINING, "q", 3, 1)
    assert pool_workers.totals(queue.session, patience()) == (3, 1)


def test_a_silent_runner_is_offline_and_comes_back_by_registering_again(queue):
    runner = queue.runner("zone=eu")
    me = pool_workers.find(queue.session, patience(), runner).identity
    queue.plane.change("UPDATE POOL_WORKERS SET LAST_BEAT_AT = DATEADD(second, -31, SYSDATE())")
    assert pool_workers.find(queue.session, patience(), runner).status is PoolWorkerStatus.OFFLINE

    assert pool_workers.silent_offline(queue.session, patience()) == 1
    refused = pool_workers.beat(queue.session, runner, current_run=None, completed=0, failed=0, lease_s=LEASE_S)
    pool_workers.register(queue.session, patience(), me, draining=False, lease_s=LEASE_S)

    assert refused is None
    assert pool_workers.find(queue.session, patience(), runner).status is PoolWorkerStatus.ONLINE
    assert pool_workers.silent_offline(queue.session, patience()) == 0


def test_who_had_the_same_host_and_process_id_is_gone(queue):
    old = queue.runner(hostname="bench", pid=12)
    beside = queue.runner(hostname="bench", pid=13)
    new = queue.runner(hostname="bench", pid=12)

    seen = {name: pool_workers.find(queue.session, patience(), name).status for name in (old, beside, new)}

    assert seen == {old: "OFFLINE", beside: "ONLINE", new: "ONLINE"}


def test_runners_that_have_been_gone_for_a_week_are_forgotten(queue):
    gone, gone_lately, living = queue.runner(), queue.runner(), queue.runner()
    for name, days in ((gone, 8), (gone_lately, 6)):
        pool_workers.offline(queue.session, patience(), name)
        queue.plane.change(
            "UPDATE POOL_WORKERS SET LAST_BEAT_AT = DATEADD(day, ?, SYSDATE()) WHERE WORKER_ID = ?", -days, name
        )

    assert pool_workers.prune(queue.session, patience()) == 1

    left = {worker.identity.worker_id for worker in pool_workers.page(queue.session, patience(), 100).workers}
    assert left == {gone_lately, living}


def test_runners_come_in_pages_filtered_by_status_and_label(queue):
    eu = sorted(queue.runner("zone=eu", f"n={number}") for number in range(5))
    queue.runner("zone=us")
    pool_workers.drain(queue.session, patience(), eu[0])

    pages: list[list[str]] = []
    token: str | None = None
    while not pages or token is not None:
        page = pool_workers.page(queue.session, patience(), 2, token=token, labels=("zone=eu",))
        pages.append([worker.identity.worker_id for worker in page.workers])
        assert page.total == 5
        token = page.next_token

    assert pages == [eu[:2], eu[2:4], eu[4:]]
    draining = pool_workers.page(queue.session, patience(), 10, status=PoolWorkerStatus.DRAINING)
    assert [worker.identity.worker_id for worker in draining.workers] == [eu[0]]
    assert draining.total == 1
