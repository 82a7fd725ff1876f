"""The run queue: added, claimed, cancelled, tried again. Real SQL through both majors of the connector."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from loadgen.cli.queue import as_json, as_text
from loadgen.control.tables import run_attempts, run_queue, run_status
from loadgen.control.tables.run_queue import QueueClaim, QueueRequest
from loadgen.errors import UsageError
from loadgen.model.nightly import BaselineCheck, QueueStatus
from tests.contract.queue_builders import LEASE_S, each_fault
from tests.control_plane import retries

pytestmark = pytest.mark.any_driver
JUDGING = BaselineCheck(baseline="trend", confirm=True)


# --- adding ----------------------------------------------------------------------------------------------------------


def test_an_added_run_waits_with_its_texts(queue):
    text, files = "name: ünïcode\nsql: 'a'", {"keys/a.csv": "k\r\n1\r\n"}
    queue_id = queue.add(
        "Orders & more", scenario=text, files=files, connection="prod", requires=("b=2", "a=1"), judging=JUDGING
    )

    row = queue.row(queue_id)
    claim = queue.claim(queue.runner(), "a=1", "b=2")
    assert claim is not None
    wanted = run_queue.claimed_run(queue.session, claim)

    assert (row.status, row.attempts, row.epoch, row.requires) == (QueueStatus.QUEUED, 0, 0, ("a=1", "b=2"))
    assert wanted == run_queue.ClaimedRun(
        name="Orders & more", scenario=text, files=files, connection="prod", attempts=1, number=1, judging=JUDGING
    )


def test_a_key_can_be_added_once(queue):
    first = run_queue.add(queue.session, retries(), QueueRequest(name="a", scenario="1", files={}, idempotency_key="k"))
    again = run_queue.add(queue.session, retries(), QueueRequest(name="a", scenario="1", files={}, idempotency_key="k"))
    other = run_queue.add(
        queue.session, retries(), QueueRequest(name="b", scenario="2", files={}, priority=1, idempotency_key="k")
    )

    assert (first.is_new, again.is_new, again.queue_id) == (True, False, first.queue_id)
    assert (again.differs, other.differs, other.queue_id) == ((), ("its scenario", "--priority"), first.queue_id)
    assert len(run_queue.newest(queue.session, 10)) == 1


@each_fault
def test_an_addition_whose_answer_is_lost_is_there_once(queue, fault):
    queue.plane.server.fault(match="^INSERT INTO RUN_QUEUE", count=1, **fault)

    added = run_queue.add(queue.session, retries(), QueueRequest(name="a", scenario="1", files={}))

    assert added.is_new
    assert [row.queue_id for row in run_queue.newest(queue.session, 10)] == [added.queue_id]


def test_a_run_that_is_not_due_is_not_claimed(queue):
    now = run_status.server_time(queue.session)
    later = queue.add(not_before=now + timedelta(hours=1))
    runner = queue.runner()

    assert queue.claim(runner) is None
    queue.pass_time(later, 3601)
    assert queue.claimed(runner).queue_id == later


def test_a_pool_knows_when_the_next_run_is_due_that_it_can_do(queue):
    def seen() -> tuple[bool, int, float | None]:
        found = run_queue.open_runs(queue.session, ("zone=eu",))
        return found.is_work, found.total, found.due_in_s

    def hours(number: float) -> dict[str, Any]:
        return {"not_before": run_status.server_time(queue.session) + timedelta(hours=number)}

    assert seen() == (False, 0, None)
    queue.add(requires=("zone=us",))  # of another pool
    assert seen() == (False, 1, None)
    later, sooner = queue.add(**hours(20)), queue.add(requires=("zone=eu",), **hours(10))
    is_work, total, due_in_s = seen()
    assert (is_work, total) == (False, 3)
    assert due_in_s is not None
    assert 9 * 3600 < due_in_s <= 10 * 3600
    queue.pass_time(sooner, 10 * 3600)
    assert seen()[0], "it is due"
    runner = queue.runner("zone=eu")
    claim = queue.claim(runner, "zone=eu")
    assert claim is not None
    assert claim.queue_id == sooner
    assert seen()[0], "it is under way"
    queue.finish(claim, exit_code=0)
    assert not seen()[0], f"{later} is for later"


@pytest.mark.parametrize("end", ["failed", "skipped"])
def test_a_run_in_its_pause_is_due_after_it(queue, end):
    queue.add()
    claim = queue.claimed(queue.runner())
    (queue.release if end == "failed" else queue.push_back)(claim, pause_s=7200.0)

    found = run_queue.open_runs(queue.session, ())

    assert not found.is_work
    assert found.due_in_s is not None
    assert 3600 < found.due_in_s <= 7200


def test_a_beginning_names_what_no_other_begins_with(queue):
    one, other = queue.add("alpha"), queue.add("beta")

    assert run_queue.find(queue.session, retries(), "alp") == one
    assert run_queue.find(queue.session, retries(), other) == other
    with pytest.raises(UsageError, match="there is no queued run gamma"):
        run_queue.find(queue.session, retries(), "gamma")
    with pytest.raises(UsageError, match="the name of a queued run is empty"):
        run_queue.find(queue.session, retries(), "")
    queue.add("alpha")
    with pytest.raises(UsageError, match="alp is the beginning of several queued runs"):
        run_queue.find(queue.session, retries(), "alp")


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
    for _ in range(run_queue.CANDIDATES + 2):
        queue.add("needs", requires=("zone=eu", "disk=ssd"), priority=9)
    plain = queue.add("plain")
    poor, rich = queue.runner(), queue.runner()

    got = queue.claim(poor, "zone=eu", "disk=hdd")
    nothing = queue.claim(poor, "zone=eu", "disk=hdd")
    rich_got = queue.claim(rich, "disk=ssd", "more=1", "zone=eu")

    assert (got and got.queue_id, nothing) == (plain, None)
    assert rich_got is not None
    assert rich_got.queue_id.startswith("needs")
    assert queue.depth("zone=eu") == (0, 0)
    assert queue.depth("zone=eu", "disk=ssd") == (run_queue.CANDIDATES + 1, run_queue.CANDIDATES + 1)


@pytest.mark.parametrize("requires", ["", "no JSON", "7", '{"zone":"eu"}', "null"])
def test_an_invalid_row_does_not_hide_the_others(queue, requires):
    broken, good = queue.add("broken", priority=9), queue.add("good")
    queue.plane.change("UPDATE RUN_QUEUE SET REQUIRES = ? WHERE QUEUE_ID = ?", requires, broken)
    runner = queue.runner()

    taken = [queue.claim(runner, "zone=eu"), queue.claim(runner, "zone=eu")]

    assert [claim and claim.queue_id for claim in taken] == [good, None]


def test_one_target_is_measured_by_one_run_at_a_time(queue):
    first, second = queue.add("a", target="prod/WH"), queue.add("b", target="prod/WH")
    other = queue.add("c", target="prod/OTHER")
    runner = queue.runner()

    depths = [queue.depth()]
    held = queue.claimed(runner)
    depths.append(queue.depth())
    beside = queue.claimed(runner)
    depths.append(queue.depth())
    nothing = queue.claim(runner)
    assert queue.finish(held)

    assert (held.queue_id, beside.queue_id, nothing) == (first, other, None)
    assert depths == [(3, 2), (2, 1), (1, 0)]
    assert queue.claimed(runner).queue_id == second


def test_a_target_that_a_run_outside_of_the_queue_uses_does_not_delay_runs_on_others(queue):
    urgent = [queue.add(f"a{number}", target="prod/WH", priority=9) for number in range(3)]
    other, unknown = queue.add("b", target="prod/OTHER"), queue.add("c")
    runner = queue.runner()

    refused = queue.claimed(runner)
    assert queue.push_back(refused, pause_s=15.0)
    depth = queue.depth()
    meanwhile = [queue.claimed(runner).queue_id for _ in range(2)]
    nothing = queue.claim(runner)
    shared = run_queue.claim(queue.session, retries(), runner, (), LEASE_S, share=True)
    queue.pass_time(refused.queue_id, 16.0)

    assert refused.queue_id == urgent[0]
    assert depth == (4, 2)
    assert (meanwhile, nothing) == ([other, unknown], None)
    assert shared is not None
    assert shared.queue_id == urgent[1]
    assert queue.finish(shared)
    assert queue.claimed(runner).queue_id == urgent[0]


def test_a_run_that_failed_delays_no_other_on_its_target(queue):
    first, second = queue.add("a", target="prod/WH"), queue.add("b", target="prod/WH")
    runner = queue.runner()

    failed = queue.claimed(runner)
    assert queue.release(failed, pause_s=60.0)

    assert failed.queue_id == first
    assert queue.claimed(runner).queue_id == second


def test_a_runner_executes_as_many_runs_at_a_time_as_its_capacity(queue):
    """Also when it does not know of one, because the answer to its claim was lost."""
    queue.add("a")
    second, runner = queue.add("b"), queue.runner(capacity=1)
    held = queue.claimed(runner)

    refused = queue.claim(runner)
    assert queue.finish(held, exit_code=0)

    assert refused is None
    assert queue.claimed(runner).queue_id == second


def test_sharing_runners_claim_runs_whose_target_is_being_measured(queue):
    first, second = queue.add("a", target="prod/WH"), queue.add("b", target="prod/WH")
    runner = queue.runner()

    depth = queue.depth(share=True)
    claims = [run_queue.claim(queue.session, retries(), runner, (), LEASE_S, share=True) for _ in range(3)]

    assert depth == (2, 2)
    assert [claim and claim.queue_id for claim in claims] == [first, second, None]


def test_of_many_simultaneous_claims_each_run_goes_to_one(queue):
    wanted = {queue.add(str(number)) for number in range(12)}
    runners = [queue.runner() for _ in range(4)]

    def take_all(runner: str) -> list[QueueClaim]:
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
    queue.plane.server.fault(match="^INSERT INTO RUN_ATTEMPTS", count=1, **fault)

    claim = queue.claim(runner)

    assert claim == QueueClaim(queue_id=queue_id, epoch=1, owner=runner)
    assert queue.row(queue_id).attempts == 1
    assert queue.history(queue_id) == [(1, "RUNNING")]


# --- wishes ----------------------------------------------------------------------------------------------------------


def test_a_waiting_run_is_cancelled_at_once_and_can_be_retried(queue):
    queue_id = queue.add()

    cancelled = run_queue.cancel(queue.session, retries(), queue_id, "enough")
    nothing = queue.claim(queue.runner())
    again = run_queue.retry(queue.session, retries(), queue_id, "after all")

    assert (cancelled.status, cancelled.reason, nothing) == (QueueStatus.CANCELLED, "enough", None)
    assert (again.status, again.attempts, again.ended_at) == (QueueStatus.QUEUED, 0, None)
    assert queue.claimed(queue.runner()).queue_id == queue_id


@pytest.mark.parametrize("end", ["obeyed", "failed", "done", "lost"])
def test_a_running_run_is_ended_by_its_owner(queue, end):
    queue_id = queue.add()
    claim = queue.claimed(queue.runner())

    asked = run_queue.cancel(queue.session, retries(), queue_id, "enough")
    seen = run_queue.claim_status(queue.session, claim)
    assert queue.claim(queue.runner()) is None
    if end == "obeyed":
        assert queue.finish(claim, QueueStatus.CANCELLED)
    elif end == "failed":
        assert queue.release(claim)
    elif end == "done":
        assert queue.finish(claim, exit_code=0)
    else:
        queue.pass_time(queue_id)
        assert queue.claim(queue.runner()) is None
        run_queue.end_abandoned(queue.session, retries())

    assert asked.status is seen is QueueStatus.CANCEL_REQUESTED
    row = queue.row(queue_id)
    assert row.status is (QueueStatus.COMPLETED if end == "done" else QueueStatus.CANCELLED)
    assert row.ended_at is not None


def test_an_ended_run_does_not_change(queue):
    queue_id = queue.add()
    assert queue.finish(queue.claimed(queue.runner()), exit_code=0, reason="passed")

    cancelled = run_queue.cancel(queue.session, retries(), queue_id, "late")
    again = run_queue.retry(queue.session, retries(), queue_id, "late")

    assert cancelled.status is again.status is QueueStatus.COMPLETED
    assert again.reason == "passed"


def test_attempts_have_the_same_numbers_for_runners_and_users(queue):
    """A cancellation and a retry are turns too, and no attempts."""
    queue_id, runner, numbers = queue.add(), queue.runner(), []
    for end in (QueueStatus.CANCELLED, QueueStatus.COMPLETED):
        claim = queue.claimed(runner)
        wanted = run_queue.claimed_run(queue.session, claim)
        assert wanted is not None
        numbers.append((wanted.number, wanted.attempts))
        if end is QueueStatus.CANCELLED:
            run_queue.cancel(queue.session, retries(), queue_id, "not wanted")
        assert queue.finish(claim, end, exit_code=0)
        run_queue.retry(queue.session, retries(), queue_id, "wanted again")

    found = run_attempts.read(queue.session, queue_id)
    row, judging = queue.row(queue_id), BaselineCheck()
    text = as_text(row, judging, found)

    assert numbers == [(1, 1), (2, 1)]
    assert [one["attempt"] for one in as_json(row, judging, found)["history"]] == [1, 2]
    assert [line.split()[:2] for line in text.splitlines()[-2:]] == [["1", "CANCELLED"], ["2", "COMPLETED"]]
    assert "attempts    1 of 5 counted, 2 in all" in text
