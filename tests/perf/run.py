"""Throughput of a whole `loadgen run`: leader, live display, control plane and workers, beside the bare driver.

    ./bin/bench run                         about two minutes
    ./bin/bench run --quick                 half a minute, to see that it works

A run with two workers is compared with two bare connector processes that have as many threads each. Worker n and bare
process n are pinned to the same core. The leader, which draws on a terminal, has these two cores and no others; what it
needs of them is the run's to pay. Both sides are one session each, because the kernel divides a core between sessions
first. The target (engine null) and the control plane are two servers on the cores that are left; where there are only
two cores they use both, beside either side. The sides take turns: the whole run, leader included, is paused while the
bare processes run, and the other way round, for less than two seconds, which no lease or beat takes amiss. The server
counts statements. Median of the pairs.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator

from tests.perf._cleanup import cleaned_up
from tests.perf._cores import Cores, on
from tests.perf._figures import Figure, report
from tests.perf._paired import Side, measure_pairs
from tests.perf._processes import Bare, worker_harness
from tests.perf._runs import WORKERS, LoadgenRun, document
from tests.process.worker_driver import WorkerHarness

THROUGHPUT_MIN = 0.93
CONNECTIONS = (16, 50)
YOUNG_S = 3.0  # caches fill, the display has been drawn
STOP_S = 60.0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench run", description="Throughput of a whole run beside the bare driver.")
    parser.add_argument("--quick", action="store_true", help="three pairs of spans at 16 connections")
    parser.add_argument("--pairs", type=int, help="pairs of spans per number of connections; 15")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args(arguments)
    levels = CONNECTIONS[:1] if options.quick else CONNECTIONS
    with cleaned_up():
        figures = list(run_figures(levels, options.pairs or (3 if options.quick else 15)))
    return report(figures, options.format)


def run_figures(levels: tuple[int, ...], pairs: int) -> Iterator[Figure]:
    cores = Cores.of_machine(WORKERS)
    with worker_harness(cores, "--engine", "null") as harness:
        for connections in levels:
            yield from level_figures(harness, cores, connections, pairs)


def level_figures(harness: WorkerHarness, cores: Cores, connections: int, pairs: int) -> Iterator[Figure]:
    load = {"connections": connections, "warmup": "0s", "duration": "1h"}
    with LoadgenRun(harness, document(harness, load, target={"warehouse": "BENCH_WH"}), cores) as run:
        run.wait_measuring()
        threading.Event().wait(YOUNG_S)
        drawn_bytes = run.drawn_bytes
        with on(cores.clients):
            loops = Bare.loops(harness, connections // WORKERS)
        with loops:
            ours, bare = (Side(pids=pids, clients=connections) for pids in (run.pids, loops.pids))
            found = measure_pairs(ours, bare, harness.server, pairs)
        drawn_bytes = run.drawn_bytes - drawn_bytes
        run.stop(STOP_S)
    yield found.figure(f"run, {connections} connections", THROUGHPUT_MIN)
    yield Figure(name=f"run, {connections} connections: drawn meanwhile", value=drawn_bytes / 1024, unit="KB")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
