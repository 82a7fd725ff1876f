"""The end of a pool: it says at once what it waits for, and each further signal makes it end sooner."""

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
from tests.process.pool_bench import PoolBench, wait_for
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
def bench(server: EmbeddedServer, tmp_path: Path) -> Iterator[PoolBench]:
    plane = ControlPlane(server)
    made = PoolBench(plane, tmp_path)
    try:
        yield made
    finally:
        made.close()
        plane.close()


def row(bench: PoolBench, queue_id: str) -> run_queue.QueuedRun:
    found = run_queue.read(bench.plane.session, queue_id)
    assert found is not None
    return found


@pytest.mark.slow
def test_a_pool_that_is_told_to_end_says_what_it_waits_for_and_each_change_of_it(bench):
    release = bench.folder / "release"
    quick, slow = bench.add("quick", {"until": str(release)}), bench.add("slow", LONG)
    pool = bench.start("--min=2", "--max=2", "--grace=600s")
    wait_for(lambda: row(bench, quick).run_id and row(bench, slow).run_id, "both run", bench)

    pool.send_signal(signal.SIGTERM)
    two = "stopping: 2 runs under way finish first, within 600 s; press Ctrl-C again to queue them again"
    wait_for(lambda: two in bench.log(), two, bench)
    release.touch()
    one = "stopping: 1 run under way finishes first"
    wait_for(lambda: one in bench.log(), one, bench)
    pool.send_signal(signal.SIGTERM)

    assert pool.wait(PATIENCE_S) == 0
    assert "stopping: 1 run under way is ended and queued again; press Ctrl-C again to end at once" in bench.log()
    assert row(bench, quick).status is QueueStatus.COMPLETED
    assert (row(bench, slow).status, row(bench, slow).attempts) == (QueueStatus.QUEUED, 0)
    assert [attempt.status for attempt in run_attempts.read(bench.plane.session, slow)] == ["INTERRUPTED"]


@pytest.mark.slow
def test_a_second_signal_does_not_wait_for_the_statements_of_a_run(bench):
    """They take minutes, and the run would wait for them after one signal."""
    queue_id = bench.add("slow", SLOW)
    pool = bench.start("--min=1", "--max=1", "--grace=600s", stand_in=False, lease_s=600.0)
    wait_for(lambda: row(bench, queue_id).run_id, "it runs", bench)
    wait_for(lambda: _measures(bench, queue_id), "it measures", bench)

    pool.send_signal(signal.SIGINT)
    wait_for(lambda: "stopping: 1 run under way finishes first" in bench.log(), "it waits", bench)
    pool.send_signal(signal.SIGINT)

    assert pool.wait(PATIENCE_S) == 0
    assert (row(bench, queue_id).status, row(bench, queue_id).attempts) == (QueueStatus.QUEUED, 0)


def _measures(bench: PoolBench, queue_id: str) -> bool:
    found = bench.plane.rows("SELECT PHASE FROM RUN_STATUS WHERE RUN_ID = ?", row(bench, queue_id).run_id)
    return found == [("MEASUREMENT",)]


def test_three_times_ctrl_c_on_a_terminal_ends_a_pool_at_once(bench):
    queue_id = bench.add("long", LONG | {"deaf": True})
    words = [*PROGRAM, "pool", "run", "--min=1", "--max=1", "--poll=0.3s", f"--program={bench.stand_in}", *bench.place]
    pid, master = pty.fork()
    if pid == 0:  # the child: its terminal is the test's
        os.chdir(bench.folder)
        os.execve(words[0], words, bench.environ)
    said = bytearray()

    def has_said(text: str) -> bool:
        while select.select([master], [], [], 0)[0]:
            try:
                said.extend(os.read(master, 65_536))
            except OSError:  # it has ended
                break
        return text.encode() in said

    wait_for(lambda: has_said(f"started {queue_id}"), "it runs", bench)
    for heard in ("under way finishes first", "ended and queued again", "ended at once: 1 run under way"):
        os.write(master, b"\x03")
        wait_until(lambda: has_said(heard), heard)  # noqa: B023
    _, status = os.waitpid(pid, 0)
    os.close(master)

    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGINT
    begun = [json.loads(line) for line in bench.ledger.read_text("utf-8").splitlines()]
    assert [one["what"] for one in begun] == ["begin"]
    os.kill(begun[0]["pid"], signal.SIGKILL)  # it hears no signal; its leash would end it in a while
