"""A server with a limit that is known, as a search for the maximum sees it: throughput and p95 by connections.

`slots` statements run at a time, the others wait in line. On top of that, as asked for: noise from step to step, one
step that is disturbed, steps in which the client is the limit (slow, and known as such), a worker that is lost.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from loadgen.rules.find_max import FindMaxSearch, SearchResult
from loadgen.rules.find_max_step import JudgedStep, PercentileEstimate, StepObservation
from loadgen.scenario.model import FindMaxSettings

SERVICE_MS = 20.0
SUPPORTED = 20  # samples, from which there is a p95
BOUNDED = 73  # and from which it has an upper bound
BAND = 0.04  # of p95: so close to the limit either verdict is right


@dataclass(frozen=True, slots=True)
class Times:
    """A number of samples with this p95."""

    count: int
    p95_ms: float

    @property
    def p95(self) -> PercentileEstimate | None:
        if self.count < SUPPORTED:
            return None
        spread = 1.5 / self.count**0.5
        low_ms, high_ms = self.p95_ms * (1 - spread), self.p95_ms * (1 + spread)
        return PercentileEstimate(
            value_ms=self.p95_ms, low_ms=low_ms, high_ms=high_ms if self.count >= BOUNDED else None
        )

    def __add__(self, other: Times) -> Times:
        count = self.count + other.count
        mean = (self.count * self.p95_ms + other.count * other.p95_ms) / max(count, 1)
        return Times(count, mean)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    slots: int
    noise: float = 0.01  # of a step, in throughput and in p95
    shows_queue: float = 0.0  # how likely a queue is seen
    client_limits: float = 0.0  # how likely the client is the limit in a step
    disturbed: int = 0  # the number of the one step that is; 0: none
    lost_at: int = 0  # the number of the step in which a worker is lost; 0: none

    def most(self, config: FindMaxSettings) -> int:
        """The highest right answer: p95 within its limit. From `slots` on, a queue or a plateau is right as well."""
        return int(self.slots * (1 + BAND) * (1 + config.latency_stability_pct / 100))

    def search(self, config: FindMaxSettings, seed: int) -> FindMaxSearch:
        """The whole search."""
        rng, search = random.Random(seed), FindMaxSearch(config=config)
        while search.target is not None:
            if len(search.steps) + 1 == self.lost_at:
                return replace(search, stopped="a worker was lost")
            search = search.after(self.step(search, search.target, rng))
        return search

    def step(self, search: FindMaxSearch, target: int, rng: random.Random) -> JudgedStep:
        limited = rng.random() < self.client_limits
        slower = rng.uniform(1.3, 3.0) if limited or len(search.steps) + 1 == self.disturbed else 1.0
        qps = min(target, self.slots) / SERVICE_MS * 1_000 / slower * rng.gauss(1.0, self.noise)
        p95_ms = SERVICE_MS * max(1.0, target / self.slots) * slower * rng.gauss(1.0, self.noise)
        queued = target > self.slots and rng.random() < self.shows_queue
        seconds = 0.0
        while True:
            seconds += search.config.step_s
            count = int(qps * seconds)
            shown = StepObservation(
                target=target,
                seconds=seconds,
                succeeded=count,
                failed=0,
                qps=qps,
                latency=Times(count, p95_ms * rng.gauss(1.0, min(self.noise, 0.7 / max(count, 1) ** 0.5))),
                queue_seen=queued,
                client_limit="a worker used 95 % of its core" if limited else None,
            )
            step = search.judge(shown)
            if step is not None:
                return step


def connections(answer: SearchResult) -> int | None:
    return None if answer.best is None else answer.best.target
