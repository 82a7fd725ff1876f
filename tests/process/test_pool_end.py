"""The end of a pool: it reports at once what it waits for, and each further signal makes it end sooner."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.control.tables import run_attempts, run_queue
from loadgen.model.nightly import QueueStatus
from tests.control_plane import ControlPlane
from tests.embedded_server import EmbeddedServer
from tests.process.pool_harness import PoolHarness, wait_for
from tests.processes import PATIENCE_S, PROGRAM, wait_until

LONG = {"ms": 600_000}
SLOW = {
    "version": 1,
    "name": "slow",
    "connection": "embedded",
    "target": {"warehouse": "POOL_END_WH", "database": "BENCH", "schema": "PUBLIC", "statement_timeout": "10m"},
    "workload": {"statements": [{"name": "slow", "sql": "SELECT SYSTEM$WAIT(500)"}]},
    "load": {"connections": 2, "workers": 1, "warmup": "0s", "duration": "10m"},
    "timing": {"drain_interrupt": "10m"},
}


@pytest.fixture
def harness(server: EmbeddedServer, tmp_path: Path) -> Iterator[PoolHarness]:
    plane = ControlPlane(server)
    made = PoolHarness(plane, tmp_path)
    try:
        yield made
    finally:
        made.close()
        plane.close()


def row(harness: PoolHarness, queue_id: str) -> run_queue.QueuedRun:
    found = run_queue.read(harness.plane.session, queue_id)
    assert found is not None
    return found


@pytest.mark.slow
def test_a_stopped_pool_reports_what_it_waits_for_and_each_change_of_it(harness):
    release = harness.folder / "release"
    quick, slow = harness.add("quick", {"until": str(release)}), harness.add("slow", LONG)
    pool = harness.start("--min=2", "--max=2", "--grace=600s")
    wait_for(lambda: row(harness, quick).run_id and row(harness, slow).run_id, "both run", harness)

    pool.send_signal(signal.SIGTERM)
    two = "stopping: 2 runs under way finish first, within 600 s; press Ctrl-C again to queue them again"
    wait_for(lambda: two in harness.log(), two, harness)
    release.touch()
    one = "stopping: 1 run under way finishes first"
    wait_for(lambda: one in harness.log(), one, harness)
    pool.send_signal(signal.SIGTERM)

    assert pool.wait(PATIENCE_S) == 0
    assert "stopping: 1 run under way is ended and queued again; press Ctrl-C again to end at once" in harness.log()
    assert row(harness, quick).status is QueueStatus.COMPLETED
    assert (row(harness, slow).status, row(harness, slow).attempts) == (QueueStatus.QUEUED, 0)
    assert [attempt.status for attempt in run_attempts.read(harness.plane.session, slow)] == ["INTERRUPTED"]


@pytest.mark.slow
def test_a_second_signal_does_not_wait_for_the_statements_of_a_run(harness):
    """They take minutes, and the run would wait for them after one signal."""
    queue_id = harness.add("slow", SLOW)
    pool = harness.start("--min=1", "--max=1", "--grace=600s", fake_program=False, lease_s=600.0)
    wait_for(lambda: row(harness, queue_id).run_id, "it runs", harness)
    wait_for(lambda: _measures(harness, queue_id), "it measures", harness)

    pool.send_signal(signal.SIGINT)
    wait_for(lambda: "stopping: 1 run under way finishes first" in harness.log(), "it waits", harness)
    pool.send_signal(signal.SIGINT)

    assert pool.wait(PATIENCE_S) == 0
    assert (row(harness, queue_id).status, row(harness, queue_id).attempts) == (QueueStatus.QUEUED, 0)


def _measures(harness: PoolHarness, queue_id: str) -> bool:
    found = harness.plane.rows("SELECT PHASE FROM RUN_STATUS WHERE RUN_ID = ?", row(harness, queue_id).run_id)
    return found == [("MEASUREMENT",)]


def test_three_times_ctrl_c_on_a_terminal_ends_a_pool_at_once(harness):
    queue_id = harness.add("long", LONG | {"deaf": True})
    words = [
        *PROGRAM,
        "pool",
        "run",
        "--min=1",
        "--max=1",
        "--poll=0.3s",
        f"--program={harness.fake_program}",
        *harness.place,
    ]
    pid, master = pty.fork()
    if pid == 0:  # the child: its terminal is the test's
        os.chdir(harness.folder)
        os.execve(words[0], words, harness.environ)
    said = bytearray()

    def has_said(text: str) -> bool:
        while select.select([master], [], [], 0)[0]:
            try:
                said.extend(os.read(master, 65_536))
            except OSError:  # it has ended
                break
        return text.encode() in said

    wait_for(lambda: has_said(f"started {queue_id}"), "it runs", harness)
    for heard in ("under way finishes first", "ended and queued again", "ended at once: 1 run under way"):
        os.write(master, b"\x03")
        wait_until(lambda: has_said(heard), heard)  # noqa: B023
    _, status = os.waitpid(pid, 0)
    os.close(master)

    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGINT
    begun = [json.loads(line) for line in harness.ledger.read_text("utf-8").splitlines()]
    assert [one["what"] for one in begun] == ["begin"]
    os.kill(begun[0]["pid"], signal.SIGKILL)  # it ignores signals; its process guard would end it after a while
