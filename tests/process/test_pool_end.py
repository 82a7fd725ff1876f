"""The end of a pool: it reports at once what it waits for, and each further signal makes it end sooner."""

from __future__ import annotations

import json
import os
import pty
import select
import signal

import pytest

from loadgen.control.tables import run_attempts
from loadgen.model.nightly import QueueStatus
from tests.process.pool_harness import PoolHarness
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


@pytest.mark.slow
def test_a_stopped_pool_reports_what_it_waits_for_and_each_change_of_it(pools):
    release = pools.folder / "release"
    quick, slow = pools.add("quick", {"until": str(release)}), pools.add("slow", LONG)
    pool = pools.start("--min=2", "--max=2", "--grace=600s")
    pools.wait_until(lambda: pools.row(quick).run_id and pools.row(slow).run_id, "both run")

    pool.send_signal(signal.SIGTERM)
    two = "stopping: 2 runs under way finish first, within 600 s; press Ctrl-C again to queue them again"
    pools.wait_until(lambda: two in pools.log(), two)
    release.touch()
    one = "stopping: 1 run under way finishes first"
    pools.wait_until(lambda: one in pools.log(), one)
    pool.send_signal(signal.SIGTERM)

    assert pool.wait(PATIENCE_S) == 0
    assert "stopping: 1 run under way is ended and queued again; press Ctrl-C again to end at once" in pools.log()
    assert pools.row(quick).status is QueueStatus.COMPLETED
    assert (pools.row(slow).status, pools.row(slow).attempts) == (QueueStatus.QUEUED, 0)
    assert [attempt.status for attempt in run_attempts.read(pools.plane.session, slow)] == ["INTERRUPTED"]


@pytest.mark.slow
def test_a_second_signal_does_not_wait_for_the_statements_of_a_run(pools):
    """They take minutes, and the run would wait for them after one signal."""
    queue_id = pools.add("slow", SLOW)
    pool = pools.start("--min=1", "--max=1", "--grace=600s", fake_program=False, lease_s=600.0)
    pools.wait_until(lambda: pools.row(queue_id).run_id, "it runs")
    pools.wait_until(lambda: _measures(pools, queue_id), "it measures")

    pool.send_signal(signal.SIGINT)
    pools.wait_until(lambda: "stopping: 1 run under way finishes first" in pools.log(), "it waits")
    pool.send_signal(signal.SIGINT)

    assert pool.wait(PATIENCE_S) == 0
    assert (pools.row(queue_id).status, pools.row(queue_id).attempts) == (QueueStatus.QUEUED, 0)


def _measures(pools: PoolHarness, queue_id: str) -> bool:
    found = pools.plane.rows("SELECT PHASE FROM RUN_STATUS WHERE RUN_ID = ?", pools.row(queue_id).run_id)
    return found == [("MEASUREMENT",)]


def test_three_times_ctrl_c_on_a_terminal_ends_a_pool_at_once(pools):
    queue_id = pools.add("long", LONG | {"deaf": True})
    words = [
        *PROGRAM,
        "pool",
        "run",
        "--min=1",
        "--max=1",
        "--poll=0.3s",
        f"--program={pools.fake_program}",
        *pools.place,
    ]
    pid, master = pty.fork()
    if pid == 0:  # the child: its terminal is the test's
        os.chdir(pools.folder)
        os.execve(words[0], words, pools.environ)
    said = bytearray()

    def has_said(text: str) -> bool:
        while select.select([master], [], [], 0)[0]:
            try:
                said.extend(os.read(master, 65_536))
            except OSError:  # it has ended
                break
        return text.encode() in said

    pools.wait_until(lambda: has_said(f"started {queue_id}"), "it runs")
    for heard in ("under way finishes first", "ended and queued again", "ended at once: 1 run under way"):
        os.write(master, b"\x03")
        wait_until(lambda: has_said(heard), heard)  # noqa: B023
    _, status = os.waitpid(pid, 0)
    os.close(master)

    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGINT
    begun = [json.loads(line) for line in pools.ledger.read_text("utf-8").splitlines()]
    assert [one["what"] for one in begun] == ["begin"]
    os.kill(begun[0]["pid"], signal.SIGKILL)  # it ignores signals; its process guard would end it after a while
