"""What a worker adds to the driver that it drives: its own cost, and whether its numbers are those of the server.

    ./bin/bench worker                      about seven minutes
    ./bin/bench worker --quick              about one, to see that it works
    ./bin/bench worker --soak 10m           memory over ten minutes

loop         processor time of a client's thread around a statement that does nothing
throughput   a worker process against a bare connector loop with as many threads on the same core. Both stay connected;
             one is paused (SIGSTOP) while the other runs, in turn, and the server counts. Median of the pairs, and
             where it is with 95 % certainty. Beside it the processor time of a statement, by kind of thread: those of
             the clients, the others of Python, those of the driver. It suffers less from a machine that is busy. The
             driver does less for loadgen than for a bare loop (see loadgen.snowflake.driver_patches): a light bare loop
             has the same driver, and beside it stands what the worker's own work costs
memory       of a connection, from 8 to 50 of them; and how it grows at 8 of them, beside a bare loop. Driver 5.2 keeps
             some 55 bytes of every statement for ever; what it keeps in the bare loop is taken off the worker's growth
control      statements a second that the worker sends to the control plane while it measures
truth        statements of 20 ms, side by side with a bare loop. Each side's percentiles are compared with those of the
             server's own history of the same statements: what is left is what the client added. Compared directly the
             luck of the draw would decide: of two thousand such times the p99 is sure to 4 %
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

from loadgen.control.tables.run_leases import renew
from loadgen.metrics.histogram import IntArray
from loadgen.metrics.percentile import PERCENTILES, exact_quantile_ns
from loadgen.metrics.window import merge
from loadgen.model.event import SetWorkerTarget
from loadgen.model.run import Phase
from loadgen.units import NS_PER_MS, parse_duration_s
from tests.embedded_server import EmbeddedServer
from tests.perf._bare_loop import LIGHT, POINT_SELECT
from tests.perf._cleanup import cleaned_up
from tests.perf._client_cost import loop_cost
from tests.perf._cores import Cores, on
from tests.perf._figures import Figure, report
from tests.perf._paired import PairedMeasurement, Side, measure_pairs
from tests.perf._processes import GET, Bare, worker_harness
from tests.process.worker_driver import Led, Worker, WorkerHarness

LOOP_US_MAX = 15.0
THROUGHPUT_MIN = 0.95
MEMORY_RATIO_MAX = 1.5  # a client has parameters drawn ahead, and samples of a second, beside its connection
GROWTH_PERCENT_MAX = 2.0
CONTROL_PER_S_MAX = 2.6
TRUTH_PERCENT, TRUTH_MS = 2.0, 1.0

LEVELS = (1, 8, 25, 50)
FEW, MIDDLE, MANY = 8, 25, 50
WARM_PART = 0.25  # of the soak: caches, chunks and arenas of a young process fill up
STATEMENTS = "/queries/v1/query-request"
SERVICE_TIME = "lognormal(20ms,0.5)"
TIMING = {"heartbeat": "1s", "status_poll": "1s", "events_poll": "5s", "flush": "5s"}  # as a run has them by default
LEASE_S = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """How long everything takes."""

    loop_statements: int
    pairs: int
    soak_s: float
    truth_s: float


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench worker", description="What a worker adds to the driver.")
    parser.add_argument("--quick", action="store_true", help="three pairs, short spans: to see that it works")
    parser.add_argument("--pairs", type=int, help="pairs of spans per number of connections; 21")
    parser.add_argument("--soak", metavar="TIME", help="how long memory is watched; 2m")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args(arguments)
    length = Length(
        loop_statements=20_000 if options.quick else 100_000,
        pairs=options.pairs or (3 if options.quick else 21),
        soak_s=parse_duration_s(options.soak or ("12s" if options.quick else "2m")),
        truth_s=5.0 if options.quick else 10.0,
    )
    with cleaned_up():
        figures = [*loop_figures(length), *process_figures(length), *truth_figures(length)]
    return report(figures, options.format)


# --- the loop --------------------------------------------------------------------------------------------------------


def loop_figures(length: Length) -> Iterator[Figure]:
    cost = loop_cost(length.loop_statements)
    for name, us in (("closed", cost.closed_us), ("open", cost.overdue_us)):
        aim = f"≤ {LOOP_US_MAX:g}"
        yield Figure(name=f"loop, {name}", value=us, unit="µs CPU", aim=aim, met=us <= LOOP_US_MAX)
    note = f"waits included; a bare time.sleep() loop: {cost.sleep_us:.1f}"
    yield Figure(name="loop, open, each arrival waited for", value=cost.paced_us, unit="µs CPU", note=note)


# --- processes -------------------------------------------------------------------------------------------------------


def started(harness: WorkerHarness, cores: Cores, duration_s: float) -> tuple[Led, Worker]:
    """A worker that measures."""
    load = {"connections": FEW, "duration": f"{duration_s:g}s"}
    led = harness.run(load, statements=[GET], timing=TIMING, query_log={"mode": "sample", "sample_rate": 0.01})
    assert renew(led.plane.session, led.term, LEASE_S)
    with on(cores.clients):
        return led, led.started()


def process_figures(length: Length) -> Iterator[Figure]:
    """A worker for each number of connections, as young as the bare loop beside it: with age the driver slows down."""
    cores = Cores.of_machine()
    with worker_harness(cores, "--engine", "null") as harness:
        worker_rss, bare_rss = {}, {}
        for connections in LEVELS:
            with measuring(harness, cores) as (led, worker):
                with on(cores.clients):
                    bare = Bare.loop(harness, connections)
                with bare:
                    found = against(bare, led, worker, connections, length.pairs)
                    worker_rss[connections], bare_rss[connections] = rss(worker.process.pid), rss(*bare.pids)
            yield found.figure(f"throughput, {connections} connections", THROUGHPUT_MIN)
        with measuring(harness, cores) as (led, worker):
            with on(cores.clients):
                light = Bare.loop(harness, MIDDLE, LIGHT)
            with light:
                found = against(light, led, worker, MIDDLE, length.pairs)
        yield found.figure(f"the same, {MIDDLE} connections, a light bare loop", None)
        yield memory_figure(worker_rss, bare_rss)
        with measuring(harness, cores) as (led, worker):
            with on(cores.clients):
                beside = Bare.loop(harness, FEW)
            with beside:
                yield from soak_figures(led, worker, beside, length.soak_s)


@contextmanager
def measuring(harness: WorkerHarness, cores: Cores) -> Iterator[tuple[Led, Worker]]:
    led, worker = started(harness, cores, LEASE_S)
    yield led, worker
    led.stop()
    code = worker.exit_code()
    assert code == 0, f"the worker ended with {code}: {worker.said}"


def against(bare: Bare, led: Led, worker: Worker, connections: int, pairs: int) -> PairedMeasurement:
    ours = Side(pids=(worker.process.pid,), clients=connections)
    theirs = Side(pids=bare.pids, clients=connections)
    theirs.pause()
    resize(led, worker, connections)
    return measure_pairs(ours, theirs, led.harness.server, pairs)


def resize(led: Led, worker: Worker, connections: int) -> None:
    led.emit(SetWorkerTarget(target_connections=connections))
    led.wait_beat(
        lambda beat: beat.target_connections == connections == beat.open_connections,
        f"{connections} connections are open",
        worker,
    )


def rss(process: int) -> int:
    return int(psutil.Process(process).memory_info().rss)


def memory_figure(worker_rss: dict[int, int], bare_rss: dict[int, int]) -> Figure:
    worker_kb, bare_kb = ((found[MANY] - found[FEW]) / (MANY - FEW) / 1024 for found in (worker_rss, bare_rss))
    return Figure(
        name="memory of one more connection",
        value=worker_kb / bare_kb,
        unit="× bare loop",
        aim=f"≤ {MEMORY_RATIO_MAX}",
        met=worker_kb <= MEMORY_RATIO_MAX * bare_kb,
        note=f"{worker_kb:.0f} KB, bare {bare_kb:.0f} KB; {worker_rss[FEW] / 2**20:.0f} MB in all at {FEW}",
    )


def soak_figures(led: Led, worker: Worker, bare: Bare, seconds: float) -> Iterator[Figure]:
    """Let both run undisturbed: no other client uses the control plane, so its statements are the worker's."""
    wait, target, control = threading.Event(), led.harness.server, led.plane.server
    wait.wait(WARM_PART * seconds)
    done, everyone = led.totals().ended, target.ask("/__loadgen/stats")["statements"]
    begun_ms = control.ask("/__loadgen/stats")["now_ms"]
    sizes = []
    for _ in range(max(4, round((1 - WARM_PART) * seconds))):
        wait.wait(1.0)
        sizes.append((rss(worker.process.pid), rss(*bare.pids)))
    ended_ms = control.ask("/__loadgen/stats")["now_ms"]
    done, everyone = led.totals().ended - done, target.ask("/__loadgen/stats")["statements"] - everyone
    heard = [one for one in control.ask(f"/__loadgen/journal?since={begun_ms}") if one["at_ms"] <= ended_ms]
    yield growth_figure(np.array(sizes, np.float64), done, everyone - done)
    per_s = 1000 * sum(one["path"] == STATEMENTS for one in heard) / (ended_ms - begun_ms)
    name, note = "control, statements of one worker", f"{len(heard)} requests of any kind"
    aim, met = f"≤ {CONTROL_PER_S_MAX}", per_s <= CONTROL_PER_S_MAX
    yield Figure(name=name, value=per_s, unit="/s", aim=aim, met=met, note=note)


def growth_figure(sizes: NDArray[np.float64], worker_done: int, bare_done: int) -> Figure:
    """From sizes of worker and bare loop, second by second, and how many statements each did in that time."""
    part = max(1, len(sizes) // 10)
    first, last = np.median(sizes[:part], axis=0), np.median(sizes[-part:], axis=0)
    worker_grew, bare_grew = (float(size) for size in last - first)
    of_driver = bare_grew / bare_done * worker_done
    growth = 100 * (worker_grew - of_driver) / float(first[0])
    per_statement = f"{worker_grew / worker_done:.0f} B a statement, a bare loop {bare_grew / bare_done:.0f}"
    return Figure(
        name=f"memory growth in {len(sizes)} s, {FEW} connections",
        value=growth,
        unit="%",
        aim=f"≤ {GROWTH_PERCENT_MAX:g}",
        met=growth <= GROWTH_PERCENT_MAX,
        note=f"{first[0] / 2**20:.1f} → {last[0] / 2**20:.1f} MB with the driver's: {per_statement}",
    )


# --- truth -----------------------------------------------------------------------------------------------------------


def truth_figures(length: Length) -> Iterator[Figure]:
    cores = Cores.of_machine()
    with worker_harness(cores, "--service-time", SERVICE_TIME) as harness, tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times.json"
        led, worker = started(harness, cores, length.truth_s)
        with on(cores.clients):
            bare_loop = Bare.loop(harness, FEW, times)
        with bare_loop:
            led.wait_beat(lambda beat: beat.phase is Phase.COOLDOWN, "the window has closed", worker)
        led.stop()
        assert worker.exit_code() == 0
        tally = merge([led.seen().windows]).tally.whole
        bare = in_order(json.loads(times.read_text("ascii")))
        server, bare_server = served_ns(harness.server, "MEASUREMENT"), served_ns(harness.server, "bare")
    for name in ("p50", "p95", "p99"):
        per_mille = PERCENTILES[name]
        found = tally.service_at(per_mille)
        assert found is not None
        others = (exact(per_mille, times_ns) for times_ns in (server, bare, bare_server))
        yield truth_figure(name, found.value_ns / NS_PER_MS, *others)


def served_ns(server: EmbeddedServer, tag: str) -> IntArray:
    """How long the server says the measured statements of a tag took."""
    history = server.ask(f"/__loadgen/history?tag={tag}")
    return in_order([one["total_ms"] * NS_PER_MS for one in history if one["sql_text"] == POINT_SELECT])


def in_order(times_ns: list[float]) -> IntArray:
    return np.sort(np.array(times_ns)).astype(np.int64)


def exact(per_mille: int, times_ns: IntArray) -> float:
    found_ns = exact_quantile_ns(per_mille, times_ns)
    assert found_ns is not None, f"{len(times_ns)} are too few"
    return found_ns / NS_PER_MS


def truth_figure(name: str, ours_ms: float, server_ms: float, bare_ms: float, bare_server_ms: float) -> Figure:
    added_ms, bare_added_ms = ours_ms - server_ms, bare_ms - bare_server_ms
    allowed_ms = bare_added_ms + TRUTH_PERCENT / 100 * server_ms + TRUTH_MS
    return Figure(
        name=f"truth, {name}: what the worker adds",
        value=added_ms,
        unit="ms",
        aim=f"0 … {allowed_ms:.2f}",
        met=0.0 <= added_ms <= allowed_ms,
        note=f"to {server_ms:.2f} of the server; a bare loop adds {bare_added_ms:.2f} to {bare_server_ms:.2f}",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
