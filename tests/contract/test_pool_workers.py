"""The registry of runners: real SQL through both majors of the connector."""

from __future__ import annotations

import os

import pytest

from loadgen.control.tables import pool_workers
from loadgen.model.nightly import PoolWorkerStatus
from loadgen.process import process_mark
from tests.contract.queue_builders import LEASE_S
from tests.control_plane import retries

pytestmark = pytest.mark.any_driver


def test_a_beat_is_answered_with_the_wish_to_drain(queue):
    runner = queue.runner()

    def beat() -> pool_workers.RegistryReply | None:
        return pool_workers.beat(queue.session, runner, current_run="q", completed=3, failed=1, lease_s=LEASE_S)

    before = beat()
    assert pool_workers.drain(queue.session, retries(), runner)
    after = beat()

    assert before == pool_workers.RegistryReply(beat_s=10.0, should_drain=False)
    assert after == pool_workers.RegistryReply(beat_s=10.0, should_drain=True)
    seen = pool_workers.find(queue.session, retries(), runner)
    assert (seen.status, seen.current_run, seen.completed, seen.failed) == (PoolWorkerStatus.DRAINING, "q", 3, 1)
    assert pool_workers.totals(queue.session, retries()) == (3, 1)


def test_a_silent_runner_is_offline_and_comes_back_by_registering_again(queue):
    runner = queue.runner("zone=eu")
    me = pool_workers.find(queue.session, retries(), runner).identity
    queue.plane.change("UPDATE POOL_WORKERS SET LAST_BEAT_AT = DATEADD(second, -31, SYSDATE())")
    assert pool_workers.find(queue.session, retries(), runner).status is PoolWorkerStatus.OFFLINE

    assert pool_workers.silent_offline(queue.session, retries()) == 1
    refused = pool_workers.beat(queue.session, runner, current_run=None, completed=0, failed=0, lease_s=LEASE_S)
    pool_workers.register(queue.session, retries(), me, draining=False, lease_s=LEASE_S)

    assert refused is None
    assert pool_workers.find(queue.session, retries(), runner).status is PoolWorkerStatus.ONLINE
    assert pool_workers.silent_offline(queue.session, retries()) == 0


def test_a_request_to_drain_survives_a_runner_that_is_silent(queue):
    runner = queue.runner()
    pool_workers.drain(queue.session, retries(), runner)
    queue.plane.change(
        "UPDATE POOL_WORKERS SET LAST_BEAT_AT = DATEADD(minute, -5, SYSDATE()) WHERE WORKER_ID = ?", runner
    )

    pool_workers.silent_offline(queue.session, retries())
    seen = pool_workers.find(queue.session, retries(), runner).status
    known = pool_workers.find(queue.session, retries(), runner).identity
    answer = pool_workers.register(queue.session, retries(), known, draining=False, lease_s=LEASE_S)

    assert seen is PoolWorkerStatus.OFFLINE
    assert answer.should_drain
    assert pool_workers.find(queue.session, retries(), runner).status is PoolWorkerStatus.DRAINING


def test_a_runner_with_the_same_process_id_has_ended_and_one_of_another_container_has_not(queue):
    """An id is a host's name, a process id, where that is unique (8), when it started (10), and a random part (8)."""
    here, elsewhere = "0123abcd", "9876fedc"
    names = {
        "before": f"bench-12-{here}{1:010x}{'a' * 8}",
        "beside": f"bench-13-{here}{1:010x}{'b' * 8}",
        "container": f"bench-12-{elsewhere}{1:010x}{'c' * 8}",
        "unknown": f"bench-12-{'d' * 8}",
        "now": f"bench-12-{here}{2:010x}{'e' * 8}",
    }
    for name in names.values():
        queue.runner(worker_id=name, hostname="bench", pid=int(name.split("-")[1]))

    seen = {key: pool_workers.find(queue.session, retries(), name).status for key, name in names.items()}

    assert seen.pop("before") == "OFFLINE"
    assert set(seen.values()) == {"ONLINE"}


def test_ids_of_runners_contain_the_scope_of_their_process_id():
    mine, next_one = pool_workers.new_worker_id(), pool_workers.new_worker_id()

    assert mine != next_one
    assert mine[:-8] == next_one[:-8]
    assert mine[:-8].endswith(f"-{os.getpid()}-{process_mark(os.getpid())}")


def test_runners_that_have_been_offline_for_a_week_are_deleted(queue):
    gone, gone_lately, living = queue.runner(), queue.runner(), queue.runner()
    for name, days in ((gone, 8), (gone_lately, 6)):
        pool_workers.offline(queue.session, retries(), name)
        queue.plane.change(
            "UPDATE POOL_WORKERS SET LAST_BEAT_AT = DATEADD(day, ?, SYSDATE()) WHERE WORKER_ID = ?", -days, name
        )

    assert pool_workers.prune(queue.session, retries()) == 1

    left = {worker.identity.worker_id for worker in pool_workers.page(queue.session, retries(), 100).workers}
    assert left == {gone_lately, living}


def test_runners_come_in_pages_filtered_by_status_and_label(queue):
    eu = sorted(queue.runner("zone=eu", f"n={number}") for number in range(5))
    queue.runner("zone=us")
    pool_workers.drain(queue.session, retries(), eu[0])

    pages: list[list[str]] = []
    token: str | None = None
    while not pages or token is not None:
        page = pool_workers.page(queue.session, retries(), 2, token=token, labels=("zone=eu",))
        pages.append([worker.identity.worker_id for worker in page.workers])
        assert page.total == 5
        token = page.next_token

    assert pages == [eu[:2], eu[2:4], eu[4:]]
    draining = pool_workers.page(queue.session, retries(), 10, status=PoolWorkerStatus.DRAINING)
    assert [worker.identity.worker_id for worker in draining.workers] == [eu[0]]
    assert draining.total == 1
