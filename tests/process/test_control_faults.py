"""Every appended table, and heartbeats, while the control plane loses responses, resets, delays and rejects.

Every acknowledged row exists exactly once. Raw rows are counted, not the deduplicated rows of readers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from loadgen.control.session import ControlFailed, ControlSession
from loadgen.control.tables import run_status, test_results, worker_heartbeats
from loadgen.model.run import Phase, WorkerStatus
from tests.control_plane import ControlPlane
from tests.embedded_server import EmbeddedServer
from tests.process.appended_tables import KINDS, Kind, raw, result, retries

TABLES = "|".join(kind.table for kind in KINDS)
WRITES = f"INSERT INTO ({TABLES}|WORKER_HEARTBEATS)|UPDATE WORKER_HEARTBEATS"
ANYTHING = f"(INTO|FROM|UPDATE) ({TABLES}|WORKER_HEARTBEATS)"


def break_the_control_plane(server: EmbeddedServer) -> None:
    server.fault(match=WRITES, kind="latency", ms=5_000, count=4)
    server.fault(match=WRITES, kind="drop_reply", probability=0.1)
    server.fault(match=WRITES, kind="truncate", probability=0.03)
    server.fault(match=ANYTHING, kind="reset", probability=0.04)
    server.fault(match=ANYTHING, kind="http_status", status=503, probability=0.04)
    server.fault(match=ANYTHING, kind="error", errno=625, sqlstate="57014", probability=0.02)
    server.fault(match=ANYTHING, kind="expire_session", probability=0.02)


class Writers:
    """A thread with a separate session for each task; join() raises the error of a task."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def start(self, name: str, work: Callable[[ControlSession], None]) -> None:
        thread = threading.Thread(target=self._run, args=(name, work), name=name)
        self._threads.append(thread)
        thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _run(self, name: str, work: Callable[[ControlSession], None]) -> None:
        session = ControlSession(self._plane.place, role=name, environ=self._plane.environ)
        try:
            work(session)
        except BaseException as error:
            self._errors.append(error)
        finally:
            session.close()


def append_all(kind: Kind, run_id: str) -> Callable[[ControlSession], None]:
    def work(session: ControlSession) -> None:
        for arguments in kind.make(run_id):
            kind.append(session, retries(), run_id, arguments)

    return work


def beat_on(me: worker_heartbeats.WorkerIdentity, beats: int) -> Callable[[ControlSession], None]:
    """A worker's heartbeat: one attempt per beat, the next number for the next; the last one has to arrive."""

    def work(session: ControlSession) -> None:
        worker_heartbeats.register(session, retries(), me, silent_ms=60_000)
        said = worker_heartbeats.WorkerHeartbeat(status=WorkerStatus.RUNNING, phase=Phase.WARMUP, count=1)
        arrived = False
        while said.count <= beats or not arrived:
            said = replace(said, count=said.count + 1, error_count=said.count, last_error="it's odd\0")
            try:
                assert worker_heartbeats.beat(session, me, said), "taken for another's"
                arrived = True
            except ControlFailed as error:
                if not error.failure.retryable:
                    raise
                arrived = False

    return work


def test_nothing_is_lost_and_nothing_is_written_twice(plane):
    run_id = plane.new_run()
    workers = [
        worker_heartbeats.WorkerIdentity(
            run_id=run_id, worker_id=f"w{number}", worker_group_id=number, hostname="h", pid=number, version="1"
        )
        for number in range(2)
    ]
    writers = Writers(plane)

    break_the_control_plane(plane.server)
    for kind in KINDS:
        writers.start(kind.table, append_all(kind, run_id))
    for me in workers:
        writers.start(me.worker_id, beat_on(me, beats=60))
    writers.join()
    struck = {rule["kind"]: rule["fired"] for rule in plane.server.ask("/__loadgen/faults")}
    plane.server.clear_faults()

    assert {kind.table: raw(plane, kind, run_id) for kind in KINDS} == {
        kind.table: (kind.rows, kind.rows) for kind in KINDS
    }
    assert {kind.table: kind.read(plane.session, run_id) for kind in KINDS} == {kind.table: kind.rows for kind in KINDS}
    beats = [row.beat for row in worker_heartbeats.read(plane.session, run_id)]
    assert [beat.error_count for beat in beats] == [beat.count - 1 for beat in beats]
    assert len(beats) == 2
    assert min(beat.count for beat in beats) > 60
    assert struck["latency"] == 4
    assert struck["drop_reply"] >= 15
    assert min(struck.values()) > 0


ALWAYS = ("WINDOW_RESULTS", "TEST_RESULTS", "QUERY_EXECUTIONS")


def marked(kind: Kind) -> Any:
    """What a verdict is made of is tried every time."""
    return pytest.param(kind, id=kind.table, marks=[] if kind.table in ALWAYS else [pytest.mark.slow])


NOT_LOOKED_FOR = ("VALUE_POOLS", "WORKER_METRICS_SNAPSHOTS", "TEST_LOGS", "WAREHOUSE_POLL_SNAPSHOTS")


@pytest.mark.parametrize("kind", [marked(kind) for kind in KINDS])
def test_a_retry_after_giving_up_adds_nothing(plane, kind):
    """The rows landed, the answer did not, and retries was over: later the same is given once more."""
    run_id = plane.new_run()
    plane.server.fault(match=f"INSERT INTO {kind.table}", kind="drop_reply", probability=0.5)
    landed = 0

    for arguments in kind.make(run_id):
        before, _ = raw(plane, kind, run_id)
        while gave_up(lambda: kind.append(plane.session, retries(attempts=1), run_id, arguments)):  # noqa: B023
            landed += raw(plane, kind, run_id)[0] > before

    assert landed > 0
    rows, keys = raw(plane, kind, run_id)
    assert (rows > keys) is (kind.table in NOT_LOOKED_FOR)  # their readers take one row of each key
    assert keys == kind.read(plane.session, run_id) == kind.rows


def gave_up(action: Callable[[], None]) -> bool:
    try:
        action()
    except ControlFailed as error:
        if not error.failure.unknown_outcome:
            raise
        return True
    return False


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.table)
def test_a_refusal_is_not_tried_again(plane, kind):
    """A statement that cannot work is an error at once, not after ten attempts."""
    run_id = plane.new_run()
    plane.server.fault(
        match=f"INSERT INTO {kind.table}", kind="error", errno=2003, sqlstate="02000", message="no table"
    )

    with pytest.raises(ControlFailed) as refused:
        kind.append(plane.session, retries(), run_id, kind.make(run_id)[1])

    assert "loadgen setup" in refused.value.remedy
    (rule,) = plane.server.ask("/__loadgen/faults")
    assert rule["fired"] == 1
    assert raw(plane, kind, run_id) == (0, 0)


def test_two_that_finish_the_same_run_at_once_leave_one_result_to_readers(plane):
    """A leader and its successor: nothing enforces the key of a standard table, so both may get through."""
    run_id = plane.new_run()
    mine = replace(result(run_id, 0), test_id=run_id)
    barrier = threading.Barrier(4)
    writers = Writers(plane)

    def work(session: ControlSession) -> None:
        run_status.server_time(session)
        barrier.wait()
        test_results.append(session, retries(), mine)

    for number in range(4):
        writers.start(f"finisher-{number}", work)
    writers.join()

    assert len(test_results.read(plane.session, run_id)) == 1
