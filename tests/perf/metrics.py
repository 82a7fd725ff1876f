"""What measuring costs: the client's part around a statement, the harvest of a second, the beat.

    ./bin/bench metrics                     5,000 samples a second
    ./bin/bench metrics --samples 20000     more

The baseline is the least that keeping samples can cost: a tuple appended to a list. Processor time of the thread, the
fastest of several rounds. Wanted: at most 0.5 µs a sample for the client and as much for the harvest, 1 ms for a
second in which nothing happened.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from loadgen.metrics.live_metrics import read_live, write_live
from loadgen.metrics.recorder import FailedOutcome, Outcome, Recorder, Sample, WindowRegistry
from loadgen.metrics.sample_collector import SampleCollector
from loadgen.metrics.window import WindowRow
from loadgen.model.counts import ErrorCategory
from loadgen.model.run import Phase
from loadgen.model.workload import Query, Statement, StatementKind

Thing = TypeVar("Thing")
ROUNDS = 15
CLIENTS = 25
S = 10**9
FAILED = FailedOutcome(ErrorCategory.SNOWFLAKE_ERROR, 625, "lock not released within the time allowed")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Cost of recording, harvesting and saying what was measured.")
    parser.add_argument("--samples", type=int, default=5_000, help="in one harvest")
    count = parser.parse_args(arguments).samples
    bare_us = client_us(bare, count)
    print(f"{'client, a sample':44} {'µs':>8} {'× bare':>7}")
    for name, work in {"bare: a tuple, list.append": bare, "append": append, "begin + append": begin_append}.items():
        us = client_us(work, count)
        print(f"  {name:42} {us:8.3f} {us / bare_us:7.1f}")
    print(f"\n{f'harvest of {count:,}':44} {'µs/sample':>8} {'× bare':>6} {'ms':>8}")
    for statements in (1, 5, 20):
        for open_loop in (False, True):
            for failing in (0.0, 0.05) if statements == 5 else (0.0,):
                show_harvest(count, statements, open_loop=open_loop, failing=failing, bare_us=bare_us)
    idle_ms = best_ns(idle, lambda harvester: harvester.harvest(2 * S)) / 1e6
    print(f"  {'nothing happened':42} {'':9} {'':6} {idle_ms:8.3f}\n")
    heads = f"{'whole B':>9} {'beat B':>8} {'coarse':>7} {'write ms':>9} {'read ms':>8} {'row B':>8}"
    print(f"{'beat, two windows':30} {heads}")
    for statements in (1, 5, 20):
        for open_loop in (False, True):
            show_beat(statements, open_loop=open_loop)
    return 0


# --- the client ------------------------------------------------------------------------------------------------------


def client_us(work: Callable[[SampleCollector, int], int], count: int) -> float:
    """Microseconds a sample; an empty loop is taken off."""
    loop_ns = best_ns(lambda: started(1, open_loop=False), lambda harvester: empty(harvester, count))
    work_ns = best_ns(lambda: started(1, open_loop=False), lambda harvester: work(harvester, count))
    return (work_ns - loop_ns) / count / 1_000


def empty(_: SampleCollector, count: int) -> int:
    for _n in range(count):
        pass
    return count


def bare(_: SampleCollector, count: int) -> int:
    samples: list[Sample] = []
    keep, succeeded = samples.append, Outcome.SUCCEEDED
    for now_ns in range(count):
        keep((0, 1, now_ns, now_ns, now_ns, succeeded))
    return len(samples)


def append(harvester: SampleCollector, count: int) -> int:
    recorder, succeeded = harvester.recorder(), Outcome.SUCCEEDED
    for now_ns in range(count):
        recorder.append((0, 1, now_ns, now_ns, now_ns, succeeded))
    return count


def begin_append(harvester: SampleCollector, count: int) -> int:
    recorder, succeeded = harvester.recorder(), Outcome.SUCCEEDED
    for now_ns in range(count):
        window = recorder.begin()
        assert window is not None
        recorder.append((0, window, now_ns, now_ns, now_ns, succeeded))
    return count


# --- the harvest -----------------------------------------------------------------------------------------------------


def show_harvest(count: int, statements: int, *, open_loop: bool, failing: float, bare_us: float) -> None:
    def make() -> SampleCollector:
        harvester = started(statements, open_loop=open_loop)
        fill(harvester, count, statements, open_loop=open_loop, failing=failing)
        return harvester

    ns = best_ns(make, lambda harvester: harvester.harvest(S))
    name = f"{statements} statements, {'open' if open_loop else 'closed'} loop" + f", {failing:.0%} failing" * (
        failing > 0
    )
    print(f"  {name:42} {ns / count / 1_000:9.3f} {ns / count / 1_000 / bare_us:6.1f} {ns / 1e6:8.2f}")


def fill(harvester: SampleCollector, count: int, statements: int, *, open_loop: bool, failing: float = 0.0) -> None:
    """Samples of 25 clients as a busy second leaves them."""
    random = np.random.default_rng(count)
    services = random.lognormal(17, 0.5, count).astype(np.int64).tolist()
    lags = random.lognormal(14.5, 1.0, count).astype(np.int64).tolist() if open_loop else [0] * count
    fails = (random.random(count) < failing).tolist()
    recorders: list[Recorder] = [harvester.recorder() for _ in range(CLIENTS)]
    for n, (service_ns, lag_ns) in enumerate(zip(services, lags, strict=True)):
        recorder, due_ns = recorders[n % CLIENTS], 10**15 + n * 200_000
        window = recorder.begin()
        assert window is not None
        sent_ns = due_ns + lag_ns
        outcome = FAILED if fails[n] else Outcome.SUCCEEDED
        recorder.append((n % statements, window, due_ns, sent_ns, sent_ns + service_ns, outcome))


def idle() -> SampleCollector:
    """After a busy second, nothing."""
    harvester = started(20, open_loop=True)
    fill(harvester, 5_000, 20, open_loop=True)
    harvester.harvest(S)
    return harvester


# --- the beat --------------------------------------------------------------------------------------------------------


def show_beat(statements: int, *, open_loop: bool) -> None:
    """A minute at 1,000 a second in a window that is closed, half of it in the next one."""
    windows = WindowRegistry()
    windows.open(1, phase=Phase.MEASUREMENT, at_ns=0)
    harvester = SampleCollector(windows, mix(statements), open_loop=open_loop, started_ns=0)
    fill(harvester, 60_000, statements, open_loop=open_loop)
    harvester.harvest(60 * S)
    windows.open(2, phase=Phase.MEASUREMENT, at_ns=60 * S)
    fill(harvester, 30_000, statements, open_loop=open_loop)
    harvester.harvest(90 * S)
    live = harvester.live(90 * S)
    whole, text = write_live(live, limit_bytes=10**9), write_live(live)
    coarse = max(
        tally.succeeded.response.coarseness
        for window in read_live(text).windows
        for tally in window.tally.statements.values()
    )
    write_ms = best_ns(lambda: live, write_live) / 1e6
    read_ms = best_ns(lambda: text, read_live) / 1e6
    row = WindowRow.of(live.windows[0], worker_id="worker-0", epoch=1)
    name = f"{statements} statements, {'open' if open_loop else 'closed'} loop"
    sizes = f"{len(whole):9,} {len(text):8,} {coarse:7}"
    print(f"  {name:28} {sizes} {write_ms:9.2f} {read_ms:8.2f} {len(row.counts) + len(row.buckets):8,}")


# --- helpers ---------------------------------------------------------------------------------------------------------


def started(statements: int, *, open_loop: bool) -> SampleCollector:
    windows = WindowRegistry()
    windows.open(1, phase=Phase.MEASUREMENT, at_ns=0)
    return SampleCollector(windows, mix(statements), open_loop=open_loop, started_ns=0)


def mix(statements: int) -> list[Statement]:
    query = (Query(sql="select 1"),)
    return [
        Statement(name=f"statement_{n}", kind=StatementKind.READ, weight=1, queries=query) for n in range(statements)
    ]


def best_ns(make: Callable[[], Thing], work: Callable[[Thing], object]) -> int:
    """Nanoseconds of processor time that work takes, the best of several rounds; each has a thing made for it."""
    best = sys.maxsize
    for _ in range(ROUNDS):
        thing = make()
        begun_ns = time.thread_time_ns()
        work(thing)
        best = min(best, time.thread_time_ns() - begun_ns)
    return best


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
