"""Whether an open loop delivers what it offers, and says so when it cannot.

    ./bin/bench rate                        about a minute and a half
    ./bin/bench rate --quick                less than one, to see that it works

capacity    what the machine can do, measured first: a closed loop on the same servers, of two workers. The target has
            no service time (engine null), so processors are the limit
a third     arrivals at a third of it must all be delivered, and sent when they were due
too much    arrivals at twice the capacity cannot be. The run must be INVALID for that reason; and response times, which
            count from when a statement was due, must grow as long as it lasts
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from loadgen.control.tables import run_measurements
from loadgen.control.tables.run_measurements import MetricsSnapshot
from tests.perf._cleanup import cleaned_up
from tests.perf._cores import Cores
from tests.perf._figures import Figure, report
from tests.perf._processes import worker_harness
from tests.perf._runs import WORKERS, document, ran
from tests.process.worker_driver import WorkerHarness

DELIVERED_MIN = 0.999
LAG_MS_MAX = 5.0
GROWTH_MIN = 2.0  # of response times from the first third of the seconds to the last; without an end it would be five
CONNECTIONS = 32
PART, TOO_MUCH = 1 / 3, 2.0
WARM_UP_S = 2
RUN_S = 120.0  # beyond what it measures; only a hang reaches it
INVALID = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """How long is measured."""

    capacity_s: int
    third_s: int
    too_much_s: int


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench rate", description="What an open loop delivers of what it offers.")
    parser.add_argument("--quick", action="store_true", help="shorter: to see that it works")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args(arguments)
    quick, full = Length(capacity_s=4, third_s=6, too_much_s=8), Length(capacity_s=10, third_s=30, too_much_s=12)
    with cleaned_up():
        figures = list(rate_figures(quick if options.quick else full))
    return report(figures, options.format)


def rate_figures(length: Length) -> Iterator[Figure]:
    cores = Cores.of_machine(WORKERS)
    with worker_harness(cores, "--engine", "null") as harness:
        load = {"connections": CONNECTIONS, **times(length.capacity_s)}
        found = ran(harness, document(harness, load), cores, length.capacity_s + RUN_S)
        per_s = found["totals"]["qps"]
        yield Figure(name="capacity, closed loop", value=per_s, unit="/s", note=f"{CONNECTIONS} connections")
        yield from third_figures(harness, cores, round(PART * per_s), length.third_s)
        yield from too_much_figures(harness, cores, round(TOO_MUCH * per_s), length.too_much_s)


def times(duration_s: int) -> dict[str, str]:
    return {"warmup": f"{WARM_UP_S}s", "duration": f"{duration_s}s"}


def open_loop(harness: WorkerHarness, cores: Cores, per_s: int, duration_s: int) -> dict[str, Any]:
    load = {"mode": "rate", "rate": f"{per_s}/s", "max_connections": CONNECTIONS, **times(duration_s)}
    return ran(harness, document(harness, load), cores, duration_s + RUN_S)


def delivered_part(summary: Mapping[str, Any], offered: int) -> float:
    return float((summary["totals"]["succeeded"] + summary["totals"]["failed"]) / offered)


def third_figures(harness: WorkerHarness, cores: Cores, per_s: int, duration_s: int) -> Iterator[Figure]:
    summary = open_loop(harness, cores, per_s, duration_s)
    part = delivered_part(summary, per_s * duration_s)
    lag, service, client = summary["lag_ms"], summary["service_ms"], summary["client"]
    yield Figure(
        name="a third of it: delivered of offered",
        value=part,
        unit="",
        aim=f"≥ {DELIVERED_MIN}",
        met=part >= DELIVERED_MIN,
        note=f"{per_s}/s for {duration_s} s: {summary['verdict']}, {summary['exit_reason']}",
    )
    p99_ms = lag["p99"]
    yield Figure(
        name="a third of it: lag p99",
        value=p99_ms,
        unit="ms",
        aim=f"≤ {LAG_MS_MAX:g}",
        met=p99_ms <= LAG_MS_MAX,
        note=f"p50 {lag['p50']:.2f}, service p50 {service['p50']:.2f} and p99 {service['p99']:.2f};"
        f" threads woke up {client['wakeup_p99_ms']:.2f} late (p99)",
    )


def too_much_figures(harness: WorkerHarness, cores: Cores, per_s: int, duration_s: int) -> Iterator[Figure]:
    summary = open_loop(harness, cores, per_s, duration_s)
    reasons = summary["validity"]["reasons"]
    said = any("because every connection was executing" in reason for reason in reasons)
    yield Figure(
        name="too much: delivered of offered",
        value=delivered_part(summary, per_s * duration_s),
        unit="",
        aim="INVALID",
        met=summary["exit_code"] == INVALID and said,
        note=f"{per_s}/s for {duration_s} s: {summary['verdict']}, {summary['exit_reason']}",
    )
    seconds = run_measurements.read_snapshots(harness.plane.session, summary["run_id"])
    for name in ("p50", "p95", "p99"):
        yield growth_figure(name, [second for second in seconds if second.phase == "MEASUREMENT"])


def growth_figure(name: str, seconds: list[MetricsSnapshot]) -> Figure:
    """From the seconds of all workers, in order of time."""
    found = [getattr(second, f"{name}_latency_ms") for second in sorted(seconds, key=lambda one: one.elapsed_seconds)]
    known = [float(value) for value in found if value is not None]
    part = len(known) // 3
    assert part, f"only {len(known)} seconds were measured"
    first_ms, last_ms = median(known[:part]), median(known[-part:])
    return Figure(
        name=f"too much: growth of response {name}",
        value=last_ms / first_ms,
        unit="×",
        aim=f"≥ {GROWTH_MIN:g}",
        met=last_ms >= GROWTH_MIN * first_ms,
        note=f"{first_ms:.0f} → {last_ms:.0f} ms",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
