"""Whether a pool loses or repeats runs: many runners, many short runs, and runners that are killed and paused.

    ./bin/bench pool                          20 runners, 200 runs
    ./bin/bench pool --runners 6 --runs 40    smaller

The runs are stand-ins that take a moment; everything around them is real. Every run must end with exactly one accepted
success or EXHAUSTED, in the order of priority and age, with a complete history: that is checked, and ends the benchmark
when it is not so. Failover is the time from killing a runner to the next attempt at what it did: the lease and one poll
at most, when a runner is free then.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from loadgen.clock import SystemClock
from loadgen.model.nightly import AttemptStatus, QueueStatus
from tests.control_plane import ControlPlane
from tests.embedded_server import EmbeddedServer
from tests.perf._cleanup import cleaned_up
from tests.perf._figures import Figure, report
from tests.process.pool_harness import (
    LEASE_S,
    POLL_S,
    FaultPlan,
    InjectedFault,
    PoolHarness,
    assert_all_is_well,
    assert_taken_in_order,
)

PATIENCE_S = 600.0  # only a hang reaches it


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runners", type=int, default=20)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--format", choices=["text", "json"], default="text")
    given = parser.parse_args()
    with cleaned_up(), EmbeddedServer() as server:
        plane = ControlPlane(server)
        harness = PoolHarness(plane, Path(tempfile.mkdtemp()), patience_s=PATIENCE_S)
        try:
            figures = measure(harness, given.runners, given.runs, random.Random(given.seed))
        finally:
            harness.close()
            plane.close()
    return report(figures, given.format)


def measure(harness: PoolHarness, runners: int, runs: int, chance: random.Random) -> list[Figure]:
    queued = [
        harness.add(f"r{number}", {"ms": chance.randint(50, 2000), "fails": number % 10 == 0}, priority=number % 3)
        for number in range(runs)
    ]
    clock = SystemClock()
    began_ns = clock.monotonic_ns()
    harness.start(f"--min={runners}", f"--max={runners}", "--grace=10s")
    harness.wait_until(lambda: len(harness.runner_pids()) >= runners // 2, "half of the runners register")
    faults = harness.inject_faults(FaultPlan(kills=runners // 2, stops=runners // 2, every_s=1.0), chance)
    harness.wait_until(lambda: not harness.unfinished(), "every run ends")
    took_s = (clock.monotonic_ns() - began_ns) / 1e9
    harness.wait_until(
        lambda: all(one.ended_at for each in harness.attempts().values() for one in each), "attempts end"
    )
    how = assert_all_is_well(harness, queued)
    assert_taken_in_order(harness)
    histories = harness.attempts()
    lost = sum(one.status is AttemptStatus.LOST for each in histories.values() for one in each)
    gaps_s = failovers_s(harness, faults)
    aim_s = LEASE_S + POLL_S * 1.2
    return [
        Figure(name="runs completed", value=how[QueueStatus.COMPLETED], unit="runs", note="each of them once"),
        Figure(name="runs exhausted", value=how[QueueStatus.EXHAUSTED], unit="runs"),
        Figure(name="attempts", value=sum(map(len, histories.values())), unit="attempts"),
        Figure(name="attempts lost", value=lost, unit="attempts"),
        Figure(name="runners killed", value=_count(faults, signal.SIGKILL), unit="runners"),
        Figure(name="runners stopped for a while", value=_count(faults, signal.SIGSTOP), unit="runners"),
        Figure(name="failovers seen", value=len(gaps_s), unit="attempts"),
        Figure(
            name="longest failover", value=max(gaps_s, default=0.0), unit="s", note=f"lease and poll: {aim_s:.1f} s"
        ),
        Figure(name="all of it", value=took_s, unit="s"),
    ]


def failovers_s(harness: PoolHarness, faults: Sequence[InjectedFault]) -> list[float]:
    """From the death of a runner to the next attempt at what it did."""
    killed = {fault.pid: fault.at for fault in faults if fault.number is signal.SIGKILL}
    found = []
    for history in harness.attempts().values():
        for lost, following in pairwise(history):
            pid = int(lost.owner.split("-")[-2])
            if lost.status is AttemptStatus.LOST and pid in killed and lost.started_at <= killed[pid]:
                found.append((following.started_at - killed[pid]).total_seconds())
    return found


def _count(faults: Sequence[InjectedFault], number: signal.Signals) -> int:
    return sum(fault.number is number for fault in faults)


if __name__ == "__main__":
    sys.exit(main())
