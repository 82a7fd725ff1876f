"""Registering a worker through the real driver: whose row it is, and when another may have it."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest

from loadgen.control.session import ControlFailed
from loadgen.control.tables.run_status import server_time
from loadgen.control.tables.worker_heartbeats import (
    DuplicateWorker,
    WorkerHeartbeat,
    WorkerIdentity,
    beat,
    find,
    read,
    register,
)
from loadgen.model.run import WorkerStatus
from loadgen.snowflake.session import RetryInterrupted
from tests.contract.heartbeat_builders import LOST, NEVER_SENT, SILENT_MS, grow_old, my_row, said
from tests.control_plane import ControlPlane, retries

pytestmark = pytest.mark.any_driver


def test_a_registered_worker_is_starting_and_has_beaten_once(plane, session, me):
    began = server_time(session)
    register(session, retries(), me, silent_ms=SILENT_MS)

    row = my_row(session, me)

    assert row.identity == me
    assert row.beat == WorkerHeartbeat(status=WorkerStatus.STARTING, phase=None, count=1)
    assert 0 <= row.age_ms <= plane.passed_ms(began)


@pytest.mark.parametrize("kind", LOST + NEVER_SENT)
def test_a_worker_whose_registration_was_not_answered_is_not_its_own_duplicate(plane, server, session, me, kind):
    server.fault(match="INSERT INTO WORKER_HEARTBEATS", kind=kind, count=2)

    register(session, retries(), me, silent_ms=SILENT_MS)

    assert my_row(session, me).beat.count == 1
    assert plane.rows("SELECT COUNT(*) FROM WORKER_HEARTBEATS WHERE RUN_ID = ?", me.run_id) == [(1,)]
    assert beat(session, me, said(2))


@pytest.mark.parametrize("other", [{"pid": 101}, {"hostname": "other"}, {}], ids=["process", "host", "nothing"])
def test_a_living_duplicate_is_rejected_whatever_differs(session, me, other):
    register(session, retries(), me, silent_ms=SILENT_MS)
    beat(session, me, said(2))

    with pytest.raises(DuplicateWorker) as refused:
        register(session, retries(), replace(me, **other), silent_ms=SILENT_MS)

    assert refused.value.exit_code == 1
    assert "process 100 on host" in str(refused.value)
    assert refused.value.remedy
    assert my_row(session, me).beat.count == 2
    assert beat(session, me, said(3))


@pytest.mark.parametrize("status", [status for status in WorkerStatus if status not in ("DEAD", "COMPLETED")])
def test_only_a_worker_that_is_done_can_be_replaced_at_once(session, me, status):
    register(session, retries(), me, silent_ms=SILENT_MS)
    beat(session, me, said(2, status=status))

    with pytest.raises(DuplicateWorker):
        register(session, retries(), replace(me, pid=101), silent_ms=SILENT_MS)


def dead(plane: ControlPlane, me: WorkerIdentity) -> None:
    beat(plane.session, me, said(7, status=WorkerStatus.DEAD, last_error="no START"))


def completed(plane: ControlPlane, me: WorkerIdentity) -> None:
    beat(plane.session, me, said(7, status=WorkerStatus.COMPLETED))


def silent(plane: ControlPlane, me: WorkerIdentity) -> None:
    full = {"active_connections": 3, "open_connections": 4, "target_connections": 5, "live_metrics": "{}"}
    beat(plane.session, me, said(7, **full, last_sequence_id=9, cpu_percent=1.5, memory_percent=2.5, error_count=3))
    grow_old(plane, me, SILENT_MS + 1_000)


def silent_since_it_registered(plane: ControlPlane, me: WorkerIdentity) -> None:
    grow_old(plane, me, SILENT_MS + 1_000)


ENDINGS = [dead, completed, silent, silent_since_it_registered]


@pytest.mark.parametrize("ended", ENDINGS)
def test_a_predecessor_that_ended_is_replaced_and_finds_out(plane, session, me, ended: Callable[..., None]):
    register(session, retries(), me, silent_ms=SILENT_MS)
    ended(plane, me)
    successor = replace(me, pid=101, hostname="elsewhere", version="2.0", labels=None)

    began = server_time(session)
    register(session, retries(), successor, silent_ms=SILENT_MS)

    row = my_row(session, me)
    assert row.identity == successor
    assert row.beat == WorkerHeartbeat(
        status=WorkerStatus.STARTING, phase=None, count=1
    )  # nothing of the predecessor is left
    assert row.age_ms <= plane.passed_ms(began)
    assert beat(session, me, said(8)) is False
    assert beat(session, me, said(1_000_000)) is False
    assert beat(session, successor, said(2)) is True
    assert my_row(session, me).beat.count == 2


@pytest.mark.parametrize("ended", ENDINGS)
def test_a_container_that_starts_again_has_the_same_name_and_number(plane, session, me, ended: Callable[..., None]):
    register(session, retries(), me, silent_ms=SILENT_MS)
    ended(plane, me)

    register(session, retries(), me, silent_ms=SILENT_MS)

    assert my_row(session, me).beat == WorkerHeartbeat(status=WorkerStatus.STARTING, phase=None, count=1)
    assert beat(session, me, said(2))


def test_a_predecessor_is_silent_only_after_its_time(plane, session, me):
    register(session, retries(), me, silent_ms=SILENT_MS)
    grow_old(plane, me, SILENT_MS // 2)

    with pytest.raises(DuplicateWorker) as refused:
        register(session, retries(), replace(me, pid=101), silent_ms=SILENT_MS)

    heard = re.search(r"was ([\d.]+) s ago", str(refused.value))
    assert heard is not None
    assert SILENT_MS // 2 <= float(heard[1]) * 1000 <= my_row(session, me).age_ms + 100  # it is given in tenths


@pytest.mark.parametrize("ended", ENDINGS)
def test_of_two_successors_one_is_a_duplicate(plane, session, me, ended: Callable[..., None]):
    register(session, retries(), me, silent_ms=SILENT_MS)
    ended(plane, me)
    register(session, retries(), replace(me, pid=101), silent_ms=SILENT_MS)

    with pytest.raises(DuplicateWorker):
        register(session, retries(), replace(me, pid=102), silent_ms=SILENT_MS)

    assert my_row(session, me).identity.pid == 101


@pytest.mark.parametrize("ended", [dead, silent])
def test_of_many_successors_at_once_exactly_one_wins(plane, me, ended: Callable[..., None]):
    register(plane.session, retries(), me, silent_ms=SILENT_MS)
    ended(plane, me)
    barrier, won = threading.Barrier(6), []

    def contend(pid: int) -> None:
        session = plane.open(f"contender-{pid}")
        find(session, me.run_id, me.worker_id)  # connected, so that all are as fast
        barrier.wait()
        try:
            register(session, retries(), replace(me, pid=pid), silent_ms=SILENT_MS)
            won.append(pid)
        except DuplicateWorker:
            pass
        session.close()

    threads = [threading.Thread(target=contend, args=(pid,), name=f"contender-{pid}") for pid in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(won) == 1
    assert my_row(plane.session, me).identity.pid == won[0]


@pytest.mark.parametrize("kind", LOST + NEVER_SENT)
def test_a_replacement_that_was_not_answered_is_not_its_own_duplicate(plane, server, session, me, kind):
    register(session, retries(), me, silent_ms=SILENT_MS)
    dead(plane, me)
    successor = replace(me, pid=101)
    server.fault(match="UPDATE WORKER_HEARTBEATS", kind=kind, count=2)

    register(session, retries(), successor, silent_ms=SILENT_MS)

    server.clear_faults()
    assert my_row(session, me).identity == successor
    assert beat(session, successor, said(2))


def test_an_unanswered_registration_does_not_make_a_living_worker_mine(server, session, me):
    """The doubt is about my own statement; what is found is another's row."""
    register(session, retries(), me, silent_ms=SILENT_MS)
    server.fault(match="INSERT INTO WORKER_HEARTBEATS", kind="reset", count=1)

    with pytest.raises(DuplicateWorker):
        register(session, retries(), replace(me, pid=101), silent_ms=SILENT_MS)

    assert my_row(session, me).identity == me


def test_workers_of_other_runs_and_other_ids_are_no_duplicates(session, me):
    others = [replace(me, run_id=str(uuid.uuid4())), replace(me, worker_id="W0"), replace(me, worker_id="w0 ")]

    for one in (me, *others):
        register(session, retries(), one, silent_ms=SILENT_MS)

    assert [row.identity.worker_id for row in read(session, me.run_id)] == ["W0", "w0", "w0 "]


def test_registering_can_be_interrupted(server, session, me):
    server.fault(match="INSERT INTO WORKER_HEARTBEATS", kind="reset")
    waiting = retries(attempts=10)
    waiting.stop.set()

    with pytest.raises(RetryInterrupted):
        register(session, waiting, me, silent_ms=SILENT_MS)


def test_registering_gives_up_with_the_reason(server, session, me):
    server.fault(match="INSERT INTO WORKER_HEARTBEATS", kind="http_status", status=503)

    with pytest.raises(ControlFailed) as failed:
        register(session, retries(attempts=2), me, silent_ms=SILENT_MS)

    assert "worker_heartbeats.register" in str(failed.value)
