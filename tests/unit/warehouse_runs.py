"""Runs as the warehouse model would give them, without waiting: clients in a closed loop, slots, a FIFO queue."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from loadgen.control.tables.run_measurements import MetricsSnapshot
from loadgen.embedded.performance_model import ServiceTimeSampler
from loadgen.metrics.histogram import Histogram
from loadgen.metrics.interval import Interval
from loadgen.metrics.interval import MeasuredCounts as Samples
from loadgen.metrics.recorder import Outcome
from loadgen.metrics.tally import StatementTally, Tally, Times
from loadgen.metrics.window import merge
from loadgen.model.run import Phase
from loadgen.rules.comparison import MeasuredRun
from loadgen.rules.confidence_intervals import SecondSeries
from loadgen.service_time import parse_service_time
from loadgen.worker.arguments import WorkerArguments
from loadgen.worker.flush import snapshot_row
from loadgen.worker.self_monitor import ResourceReading
from tests.unit.orchestrator_builders import window

MOMENT = datetime(2026, 11, 16)  # noqa: DTZ001  naive UTC, as the tables have it
WARM_UP_S = 3
MIX = ("look", "look", "look", "pay")  # three reads to one write

Sample = tuple[int, float, float]  # number of the statement in the mix, sent, done; seconds


def simulate(
    seed: int,
    *,
    clients: int,
    slots: int,
    service: str,
    seconds: float,
    factor: Callable[[float], float] = lambda _: 1.0,
) -> Iterator[Sample]:
    """Every statement that ends in time. `factor` stretches the service times of statements that start at a moment."""
    spec = parse_service_time(service)
    assert spec is not None
    draw_s = ServiceTimeSampler(spec, seed).sample_s
    waiting = deque((number, 0.0) for number in range(clients))
    running: list[tuple[float, int, float]] = []  # done, statement, sent
    sent = clients
    now_s = 0.0
    while now_s < seconds:
        while waiting and len(running) < slots:
            number, sent_s = waiting.popleft()
            heapq.heappush(running, (now_s + draw_s() * factor(now_s), number, sent_s))
        now_s, number, sent_s = heapq.heappop(running)
        yield number, sent_s, now_s
        waiting.append((sent, now_s))
        sent += 1


def slow_spells(seed: int, seconds: int, spread: float) -> Callable[[float], float]:
    """Service times that drift: each second's factor leans on the one before."""
    rng = random.Random(seed)
    level, factors = 0.0, []
    for _ in range(seconds + 60):
        level = 0.7 * level + rng.gauss(0.0, spread)
        factors.append(1.0 + max(level, -0.5))
    return lambda at_s: factors[int(at_s)]


def run_of(
    seed: int,
    *,
    seconds: int = 60,
    clients: int = 12,
    slots: int = 8,
    service: str = "lognormal(40ms,0.3)",
    slower: float = 1.0,
    pay_slower: float = 1.0,
    spread: float = 0.0,
    failing: float = 0.0,
    name: str = "r",
) -> MeasuredRun:
    """A measured run; `slower` stretches all service times, `pay_slower` what one statement of the mix takes."""
    drift = slow_spells(seed, seconds, spread) if spread else lambda _: 1.0
    samples = np.array(
        [
            (number, sent_s, done_s)
            for number, sent_s, done_s in simulate(
                seed,
                clients=clients,
                slots=slots,
                service=service,
                seconds=WARM_UP_S + seconds,
                factor=lambda at_s: slower * drift(at_s),
            )
            if sent_s >= WARM_UP_S
        ]
    )
    kind = samples[:, 0].astype(int) % len(MIX)
    times_ns = np.rint((samples[:, 2] - samples[:, 1]) * 1e9).astype(np.int64)
    times_ns[kind == MIX.index("pay")] = np.rint(times_ns[kind == MIX.index("pay")] * pay_slower).astype(np.int64)
    failed = np.random.default_rng(seed).random(len(samples)) < failing
    return measured(np.array(MIX)[kind], times_ns, samples[:, 2] - WARM_UP_S, failed, seconds=seconds, name=name)


def measured(
    names: Any, times_ns: Any, done_s: Any, failed: Any, *, seconds: int, name: str = "r", **more: Any
) -> MeasuredRun:
    """The run with these samples."""
    statements = {}
    for one in dict.fromkeys(MIX):
        mine = names == one
        good, bad = Histogram.of(times_ns[mine & ~failed]), Histogram.of(times_ns[mine & failed])
        outcomes = {Outcome.SUCCEEDED: Times(good, good)} | ({Outcome.CHECK: Times(bad, bad)} if bad.count else {})
        statements[one] = StatementTally(times=outcomes)
    second = np.minimum(done_s.astype(int), seconds - 1)
    each = range(seconds)
    return MeasuredRun(
        run_id=name,
        scenario="orders",
        started_at=None,
        merged=merge([[window(statements, seconds=float(seconds))]]),
        series=SecondSeries(
            seconds=np.ones(seconds),
            buckets=np.array([Histogram.of(times_ns[(second == at) & ~failed]).counts for at in each]),
            sums_ns=np.array([float(times_ns[(second == at) & ~failed].sum()) for at in each]),
            succeeded={one: _per_second(second[(names == one) & ~failed], seconds) for one in statements},
            failed={one: _per_second(second[(names == one) & failed], seconds) for one in statements},
            stages=np.zeros(seconds, np.int64),
            earlier=np.zeros(seconds, np.int64),
        ),
        **more,
    )


def _per_second(second: Any, seconds: int) -> Any:
    return np.bincount(second, minlength=seconds)


def second_row(
    run_id: str, worker_id: str, ended_s: float, tally: Tally, *, phase: Phase = Phase.MEASUREMENT
) -> MetricsSnapshot:
    """A worker's row for one second, as it would write it."""
    interval = Interval(
        phase=phase,
        seconds=1.0,
        measured=Samples(),
        qps=0.0,
        p50_ms=None,
        p95_ms=None,
        p99_ms=None,
        avg_ms=None,
        min_ms=None,
        max_ms=None,
        tally=tally,
    )
    return snapshot_row(
        interval,
        ResourceReading(cpu_percent=1.0, memory_percent=1.0, wakeup_p99_ms=None),
        WorkerArguments(run_id=run_id, worker_id=worker_id, worker_group_id=0, worker_group_count=1),
        test_id=run_id,
        timestamp=MOMENT + timedelta(seconds=ended_s),
        elapsed_s=ended_s,
        executing=1,
        target=1,
    )
