"""How often find_max is right about a queue that it cannot see into."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest

from loadgen.metrics.histogram import BUCKETS, HIGHEST_NS, LOWEST_NS, Histogram, buckets_of
from loadgen.metrics.recorder import Outcome as Ended
from loadgen.metrics.tally import StatementTally, Times
from loadgen.metrics.window import WindowResult
from loadgen.rules.find_max import FindMaxSearch
from loadgen.rules.find_max_step import JudgedStep, StepOutcome
from loadgen.scenario.model import FindMaxSettings
from orchestrator.find_max_controller import observe_step
from tests.unit.orchestrator_builders import tally, window

MS = 1_000_000
SAMPLES = 100_000  # of the model, per level: what infinitely many would show


@dataclass(frozen=True, kw_only=True)
class Server:
    """Executes `slots` statements at a time, further ones are queued; errors begin at a number of connections."""

    slots: int
    service_ms: float
    sigma: float = 0.3
    errors_from: int = 10**9
    error_rate: float = 0.05
    drift: float = 0.01  # of one step against another: the speed of machines varies by the minute
    levels: dict[int, tuple[np.ndarray, float]] = field(default_factory=dict)

    def level(self, connections: int) -> tuple[np.ndarray, float]:
        """The probability of each bucket, and the throughput, with this many connections."""
        if connections not in self.levels:
            rng = np.random.default_rng([connections, self.slots])
            service = self.service_ms * np.exp(self.sigma * rng.standard_normal(SAMPLES))
            mean = float(service.mean())
            waiting = max(connections - self.slots, 0)
            spread = float(service.std()) / self.slots * waiting**0.5
            wait = np.maximum(waiting * mean / self.slots + spread * rng.standard_normal(SAMPLES), 0.0)
            buckets = buckets_of(np.sort(((service + wait) * MS).astype(np.int64)))
            chances = np.bincount(buckets, minlength=BUCKETS) / SAMPLES
            self.levels[connections] = chances, min(connections, self.slots) / mean * 1_000
        return self.levels[connections]

    def p95_ms(self, connections: int) -> float:
        chances, _ = self.level(connections)
        return float(LOWEST_NS[np.searchsorted(np.cumsum(chances), 0.95)]) / MS

    def truth(self, config: FindMaxSettings) -> int:
        """The most connections that hold, with infinitely many samples: no errors, p95 within its limit, and below the
        first level of the climb that brings no more throughput than two steps before."""
        limit_ms = self.p95_ms(config.start) * (1 + config.latency_stability_pct / 100)
        level = config.start
        while level < config.maximum and level + 1 < self.errors_from and self.p95_ms(level + 1) <= limit_ms:
            level += 1
        two = 2 * config.increment
        climb = range(config.start + two, config.maximum, config.increment)
        flat = next(top for top in climb if min(top, self.slots) < 1.02 * min(top - two, self.slots))
        return min(level, flat - 1)


class Trial:
    """One search against a server, with finite samples and separate noise."""

    def __init__(self, server: Server, config: FindMaxSettings, seed: int) -> None:
        self.server, self.config = server, config
        self.rng = np.random.default_rng(seed)

    def run(self) -> FindMaxSearch:
        search = FindMaxSearch(config=self.config)
        while search.target is not None:
            search = search.after(self.step(search, search.target))
        return search

    def step(self, search: FindMaxSearch, target: int) -> JudgedStep:
        chances, qps = self.server.level(target)
        qps *= float(np.exp(self.server.drift * self.rng.standard_normal()))
        seconds, counts, failed = 0.0, np.zeros(BUCKETS, np.int64), 0
        while True:  # judged every second once it has lasted, as a leader does
            more_s = self.config.step_s if not seconds else 1.0
            tried = int(self.rng.poisson(qps * more_s))
            wrong = int(self.rng.binomial(tried, self.server.error_rate)) if target >= self.server.errors_from else 0
            counts = counts + self.rng.multinomial(tried - wrong, chances)
            seconds, failed = seconds + more_s, failed + wrong
            shown, _ = observe_step(target, [[_window(counts, failed, seconds)]])
            judged = search.judge(shown)
            if judged is not None:
                return judged


def _window(counts: np.ndarray, failed: int, seconds: float) -> WindowResult:
    """Without going through single times: buckets are drawn, which is the same and a hundred times faster."""
    there = np.flatnonzero(counts)
    ended = Histogram(
        counts=counts.copy(),
        count=int(counts.sum()),
        sum_ns=int((counts * LOWEST_NS).sum()),
        min_ns=int(LOWEST_NS[there[0]]),
        max_ns=int(HIGHEST_NS[there[-1]]),
    )
    made = {Ended.SUCCEEDED: Times(ended, ended)}
    if failed:
        made |= tally((), failed=failed).failures
    return window({"s": StatementTally(times=made)}, seconds=seconds)


QUEUED = {StepOutcome.DEGRADED, StepOutcome.PLATEAU}
TRIALS = [
    # name, server, outcomes that are right
    ("16 slots of 20 ms", Server(slots=16, service_ms=20.0), QUEUED),
    ("40 slots of 50 ms", Server(slots=40, service_ms=50.0), QUEUED),
    (
        "errors from 30 connections on",
        Server(slots=100, service_ms=20.0, errors_from=30),
        {StepOutcome.ERROR_THRESHOLD},
    ),
]
# Of 1,600 seeds 0, 8 and 0 are off by more than one increment, those 8 with low confidence. At 0.5 % a set of 120 has
# none with a probability of 55 %: after a change of the search that shows one here, compare the rates of many seeds.
SEEDS = [range(40), pytest.param(range(40, 160), marks=pytest.mark.slow)]


@pytest.mark.parametrize("seeds", SEEDS, ids=["few", "many"])
@pytest.mark.parametrize(("name", "server", "right"), TRIALS, ids=[trial[0] for trial in TRIALS])
def test_the_maximum_of_a_noisy_server_is_found(
    name: str, server: Server, right: set[StepOutcome], seeds: range
) -> None:
    off: list[float] = []  # in increments, 0 when within 10 %
    outcomes: Counter[StepOutcome | None] = Counter()
    for seed in seeds:
        config = FindMaxSettings(start=(4, 5, 8)[seed % 3], increment=(4, 5, 10)[seed % 3], step_s=10.0, maximum=150)
        truth = server.truth(config)
        answer = Trial(server, config, seed).run().answer()
        found = 0 if answer.best is None else answer.best.target
        outcomes[None if answer.failed is None else answer.failed.outcome] += 1
        off.append(0.0 if abs(found - truth) <= 0.1 * truth else abs(found - truth) / config.increment)
    assert max(off) <= 1, (name, Counter(map(round, off)))
    assert sum(count for outcome, count in outcomes.items() if outcome in right) >= 0.95 * len(seeds), outcomes
