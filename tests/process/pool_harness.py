"""A pool as a process, a queue of short runs, faults of runners, and the checks that must pass afterwards."""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from loadgen.control.tables import run_attempts, run_queue, run_status
from loadgen.control.tables.run_attempts import AttemptRow
from loadgen.control.tables.run_queue import QueuedRun, QueueRequest
from loadgen.model.nightly import AttemptStatus, QueueStatus
from tests.control_plane import ControlPlane, retries
from tests.process import fake_run_program
from tests.processes import PATIENCE_S, PROGRAM, ROOT, wait_until

LEASE_S = 4.0
POLL_S = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """How often runners are killed and stopped."""

    kills: int
    stops: int
    every_s: float
    stopped_s: float = LEASE_S * 1.5  # long enough to lose a lease


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFault:
    """What was done to a runner, and when by the server's clock."""

    pid: int
    number: signal.Signals
    at: datetime


class PoolHarness:
    """`close()` ends every process that was started here."""

    def __init__(self, plane: ControlPlane, folder: Path, *, patience_s: float = PATIENCE_S) -> None:
        self.plane, self.folder, self.patience_s = plane, folder, patience_s
        self.ledger = folder / "ledger"
        self._pools: list[subprocess.Popen[bytes]] = []
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("LOADGEN_", "SNOWFLAKE_"))}
        self.environ = kept | plane.environ | {"PYTHONPATH": str(ROOT), "HOME": str(folder)}
        self.environ |= {fake_run_program.LEDGER: str(self.ledger)}
        self.fake_program = shlex.join([sys.executable, "-I", "-S", fake_run_program.__file__])
        self.place = ["-c", "embedded", "--database", plane.place.database]

    # --- the pool ----------------------------------------------------------------------------------------------------

    def start(self, *words: str, fake_program: bool = True, lease_s: float = LEASE_S) -> subprocess.Popen[bytes]:
        """A pool; its log goes to `pool-<n>.log`."""
        given = [
            *words,
            f"--lease={lease_s}s",
            f"--poll={POLL_S}s",
            f"--output-dir={self.folder / 'runs'}",
            *self.place,
        ]
        if fake_program:
            given.append(f"--program={self.fake_program}")
        with (self.folder / f"pool-{len(self._pools)}.log").open("wb") as log:
            process = subprocess.Popen(
                [*PROGRAM, "--log-level", "info", "pool", "run", *given],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environ,
                cwd=self.folder,
                start_new_session=True,  # else its runs share the processor's time with the tests of this session
            )
        self._pools.append(process)
        return process

    def runner_pids(self) -> list[int]:
        """The process ids of registered runners with a recent heartbeat."""
        rows = self.plane.rows(
            "SELECT PID FROM POOL_WORKERS WHERE STATUS = 'ONLINE' AND LAST_BEAT_AT > DATEADD(second, -2, SYSDATE())"
            " ORDER BY PID"
        )
        return [int(row[0]) for row in rows if alive_runner(int(row[0]))]

    def inject_faults(self, plan: FaultPlan, chance: random.Random) -> list[InjectedFault]:
        """Kill and pause runners at random, in any state; paused runners are resumed later."""
        signals = [signal.SIGKILL] * plan.kills + [signal.SIGSTOP] * plan.stops
        chance.shuffle(signals)
        pause, waking, done = threading.Event(), [], []
        for number in signals:
            pause.wait(plan.every_s)
            pids = self.runner_pids()
            if not pids:
                continue
            pid = chance.choice(pids)
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            done.append(InjectedFault(pid=pid, number=number, at=run_status.server_time(self.plane.session)))
            if number is signal.SIGSTOP:
                thread = threading.Thread(target=self._wake, args=(pid, plan.stopped_s), name="waker", daemon=True)
                thread.start()
                waking.append(thread)
        for thread in waking:
            thread.join()
        return done

    def _wake(self, pid: int, after_s: float) -> None:
        threading.Event().wait(after_s)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        for pool in self._pools:
            if pool.poll() is None:
                pool.terminate()
        for number, pool in enumerate(self._pools):
            try:
                pool.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                pool.kill()
                log = (self.folder / f"pool-{number}.log").read_text("utf-8", "replace")
                raise AssertionError(f"the pool did not end:\n{log[-4000:]}") from None

    def log(self) -> str:
        return "\n".join(path.read_text("utf-8", "replace") for path in sorted(self.folder.glob("pool-*.log")))

    def wait_until(self, happened: Callable[[], object], what: str) -> None:
        """Wait for a state of the queue. Fails with what the pools have logged."""
        wait_until(
            happened, what, details=lambda: f"{self.unfinished()}\n{self.log()[-6000:]}", patience_s=self.patience_s
        )

    # --- the queue ---------------------------------------------------------------------------------------------------

    def add(self, name: str, asked: dict[str, Any], **more: Any) -> str:
        wanted = QueueRequest(name=name, scenario=json.dumps(asked), files={}, **more)
        return run_queue.add(self.plane.session, retries(), wanted).queue_id

    def row(self, queue_id: str) -> QueuedRun:
        found = run_queue.read(self.plane.session, queue_id)
        assert found is not None
        return found

    def rows(self) -> tuple[QueuedRun, ...]:
        """The oldest first."""
        return tuple(reversed(run_queue.newest(self.plane.session, 10_000)))

    def unfinished(self) -> list[str]:
        return [f"{row.queue_id} {row.status}" for row in self.rows() if not row.status.is_terminal]

    def attempts(self) -> dict[str, tuple[AttemptRow, ...]]:
        return {row.queue_id: run_attempts.read(self.plane.session, row.queue_id) for row in self.rows()}

    def ended(self, queue_id: str) -> list[tuple[int, str]]:
        """(attempt, what) for each end that the stand-in wrote down."""
        lines = self.ledger.read_text("utf-8").splitlines() if self.ledger.exists() else []
        noted = [json.loads(line) for line in lines]
        return [
            (one["attempt"], one["what"]) for one in noted if one["queue_id"] == queue_id and one["what"] != "begin"
        ]


def alive_runner(pid: int) -> bool:
    """A process of this number lives, and is a runner."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"runner" in words


# --- what must be true -----------------------------------------------------------------------------------------------


def assert_all_is_well(harness: PoolHarness, queued: Sequence[str]) -> Counter[str]:
    """Each run has ended with exactly one accepted success or is EXHAUSTED; its history is complete. How they ended."""
    rows, histories = {row.queue_id: row for row in harness.rows()}, harness.attempts()
    assert sorted(rows) == sorted(queued)
    for queue_id, row in rows.items():
        history = histories[queue_id]
        assert [one.epoch for one in history] == list(range(1, row.epoch + 1)), (row, history)
        assert all(one.ended_at is not None for one in history), (row, history)
        assert all(one.status is not AttemptStatus.RUNNING for one in history), (row, history)
        successes = [one for one in history if one.status is AttemptStatus.COMPLETED]
        assert row.ended_at is not None
        if row.status is QueueStatus.COMPLETED:
            assert len(successes) == 1, (row, history)
            assert successes[0] == history[-1]
            assert (successes[0].epoch, f"exit {row.exit_code}") in harness.ended(queue_id), (row, history)
            assert successes[0].run_id == row.run_id
        else:
            assert row.status is QueueStatus.EXHAUSTED, (row, history)
            assert row.attempts == row.max_attempts
            assert successes == []
    return Counter(row.status.value for row in rows.values())


def assert_taken_in_order(harness: PoolHarness) -> None:
    """First attempts began in the order of priority, then age. (Later attempts had a pause before them.)"""
    rows, histories = harness.rows(), harness.attempts()
    ranks = {
        row.queue_id: rank
        for rank, row in enumerate(sorted(rows, key=lambda row: (-row.priority, row.created_at, row.queue_id)))
    }
    begun = sorted((history[0].started_at, ranks[queue_id]) for queue_id, history in histories.items())

    assert [rank for _, rank in begun] == sorted(ranks.values())
