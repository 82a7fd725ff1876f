"""The search for the most connections: every rule of it, and how often it is right about a queue it cannot see into."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.metrics.edges import BUCKETS, HIGHEST_NS, LOWEST_NS, buckets_of
from loadgen.metrics.errors import Errors
from loadgen.metrics.histogram import Histogram
from loadgen.metrics.outcome import Outcome as Ended
from loadgen.metrics.result import Merged
from loadgen.metrics.tally import StatementTally, Tally, Times
from loadgen.model.counts import Counts
from loadgen.model.outcome import ErrorCategory
from loadgen.scenario.scenario import FindMax, Threshold
from loadgen.scenario.threshold import parse_check
from orchestrator.find_max import EXTEND_MAX, Judged, Outcome, Search, Seen, Stage

MS = 1_000_000
SAMPLES = 100_000  # of the model, per level: what infinitely many would show


# --- steps by hand ---------------------------------------------------------------------------------------------------


def merged(*, p95_ms: float = 20.0, qps: float = 100.0, count: int = 5_000, failed: int = 0) -> Merged:
    """A step whose times all lie in one bucket, so that its bounds are as narrow as can be."""
    times = Histogram.of(np.full(count, round(p95_ms * MS), np.int64))
    ended = {Ended.SUCCEEDED: Times(times, times)}
    if failed:
        lost = Histogram.of(np.full(failed, MS, np.int64))
        ended[Ended.SNOWFLAKE_ERROR] = Times(lost, lost)
    return Merged(
        seconds=30.0,
        counts=Counts(scheduled=count + failed, succeeded=count, failed=failed),
        tally=Tally(
            statements={"s": StatementTally(times=ended)},
            errors={(ErrorCategory.SNOWFLAKE_ERROR, 1): Errors(count=failed, example="x")} if failed else {},
        ),
        qps=qps,
        statement_qps={"s": qps},
    )


def step(search: Search, seconds: float = 30.0, *, queue_seen: bool = False, **shown: float) -> Judged | None:
    assert search.target is not None
    found = merged(**shown)  # type: ignore[arg-type]
    return search.judge(Seen(target=search.target, seconds=seconds, merged=found, queue_seen=queue_seen))


def took(search: Search, **shown: float) -> Search:
    judged = step(search, **shown)  # type: ignore[arg-type]
    assert judged is not None
    return search.after(judged)


def fails(search: Search) -> Search:
    return took(search, p95_ms=99.0)


def straddling_ms() -> Merged:
    """Half of the samples below the limit of p95 (24 ms for a baseline of 20 ms) by little, and few samples."""
    times_ns = np.concatenate([np.full(90, 20 * MS), np.full(10, 30 * MS)]).astype(np.int64)
    times = Histogram.of(times_ns)
    return Merged(
        seconds=30.0,
        counts=Counts(scheduled=100, succeeded=100),
        tally=Tally(statements={"s": StatementTally(times={Ended.SUCCEEDED: Times(times, times)})}),
        qps=100.0,
        statement_qps={"s": 100.0},
    )


CONFIG = FindMax(start=5, increment=10, step_s=30.0, maximum=100)


@pytest.mark.parametrize(
    ("shown", "outcome"),
    [
        ({}, Outcome.STABLE),
        ({"queue_seen": True}, Outcome.QUEUE_DETECTED),
        ({"failed": 51}, Outcome.ERROR_THRESHOLD),  # a little over 1 %
        ({"failed": 50}, Outcome.STABLE),
        ({"count": 0}, Outcome.ERROR_THRESHOLD),  # nothing ended: that is not "no errors"
        ({"p95_ms": 30.0}, Outcome.DEGRADED),
        ({"p95_ms": 23.0}, Outcome.STABLE),
        ({"qps": 94.0}, Outcome.DEGRADED),
        ({"qps": 95.5}, Outcome.STABLE),
        ({"queue_seen": True, "failed": 5_000, "p95_ms": 90.0}, Outcome.QUEUE_DETECTED),  # the first reason counts
        ({"failed": 5_000, "p95_ms": 90.0}, Outcome.ERROR_THRESHOLD),
    ],
)
def test_a_step_fails_by_the_first_reason(shown: dict[str, float], outcome: Outcome) -> None:
    second = took(Search.begin(CONFIG))
    judged = step(second, **shown)  # type: ignore[arg-type]
    assert judged is not None
    assert judged.outcome is outcome
    assert judged.held == (outcome is Outcome.STABLE)
    assert judged.reason


def test_a_threshold_that_is_not_met_fails_the_step_before_latency_is_compared() -> None:
    search = Search.begin(CONFIG, (Threshold(check=parse_check("p95 < 21ms")),))
    search = took(search)
    judged = step(search, p95_ms=50.0)
    assert judged is not None
    assert judged.outcome is Outcome.SLO_FAILED
    assert "p95 < 21ms" in judged.reason


def test_a_queue_ends_a_step_at_once_but_not_when_it_was_not_asked_for() -> None:
    assert step(Search.begin(CONFIG), seconds=0.5, queue_seen=True) is not None
    unasked = FindMax(start=5, increment=10, step_s=30.0, maximum=100, stop_on_queue=False)
    assert step(Search.begin(unasked), seconds=0.5, queue_seen=True) is None
    judged = step(Search.begin(unasked), queue_seen=True)
    assert judged is not None
    assert judged.held


def test_nothing_is_judged_before_the_step_has_lasted() -> None:
    assert step(Search.begin(CONFIG), seconds=29.9, failed=5_000) is None


def test_what_straddles_the_limit_gets_more_time_and_is_marked_when_that_did_not_help() -> None:
    second = took(Search.begin(CONFIG))
    target = second.target
    assert target is not None
    for seconds in (30.0, 60.0, 89.0):
        assert second.judge(Seen(target=target, seconds=seconds, merged=straddling_ms())) is None
    judged = second.judge(Seen(target=target, seconds=EXTEND_MAX * 30.0, merged=straddling_ms()))
    assert judged is not None
    assert judged.low_confidence
    assert judged.outcome is Outcome.DEGRADED


def test_more_connections_without_more_throughput_are_a_plateau() -> None:
    search = took(took(Search.begin(CONFIG), qps=100), qps=101, p95_ms=20.5)
    judged = step(search, qps=101.5, p95_ms=21.0)
    assert judged is not None
    assert judged.outcome is Outcome.PLATEAU


def test_a_slow_decline_is_seen_because_the_best_step_is_the_measure() -> None:
    search = took(took(took(Search.begin(CONFIG), qps=100), qps=104, p95_ms=19), qps=101, p95_ms=18)
    judged = step(search, qps=98, p95_ms=17)
    assert judged is not None
    assert judged.outcome is Outcome.DEGRADED


# --- where it goes ---------------------------------------------------------------------------------------------------


def walk(search: Search, holds: Callable[[int], bool]) -> Search:
    """The search to its end, where a level holds or does not."""
    for _ in range(200):
        if search.target is None:
            return search
        level = search.target
        search = took(search, qps=100.0 * level) if holds(level) else fails(search)
    pytest.fail("it did not end")


def test_not_even_the_first_step() -> None:
    search = walk(Search.begin(CONFIG), lambda level: False)
    # With no baseline there is nothing to be worse than: errors are what can fail a first step.
    assert search.steps[0].held
    failing = took(Search.begin(CONFIG), failed=5_000)
    assert failing.stage is Stage.DONE
    assert failing.best is None
    assert failing.target is None


def test_the_ceiling_is_confirmed_and_bounded() -> None:
    search = walk(Search.begin(CONFIG), lambda level: True)
    assert search.best is not None
    assert search.best.seen.target == 100
    assert search.bounded
    assert [judged.seen.target for judged in search.steps][-2:] == [100, 100]


def test_a_confirmation_that_fails_goes_down_to_the_next_level_that_held() -> None:
    search = took(took(took(Search.begin(CONFIG), qps=10), qps=20), qps=30)
    search = fails(search)
    assert (search.stage, search.target) == (Stage.CONFIRM, 25)
    search = fails(search)
    assert (search.stage, search.target) == (Stage.CONFIRM, 15)
    search = took(search, qps=20)
    assert search.stage is Stage.REFINE
    assert search.target == 20
    assert search.best is not None
    assert search.best.seen.target == 15
    assert search.best.number == 6


def test_a_confirmation_that_fails_at_the_lowest_level_leaves_nothing() -> None:
    search = fails(fails(took(Search.begin(CONFIG))))
    assert search.stage is Stage.DONE
    assert search.best is None


def test_without_refinement_it_ends_after_the_confirmation() -> None:
    coarse = FindMax(start=5, increment=10, step_s=30.0, maximum=100, refine=False)
    search = walk(Search.begin(coarse), lambda level: level <= 37)
    assert search.best is not None
    assert search.best.seen.target == 35


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 20), st.integers(1, 40), st.integers(0, 150), st.integers(1, 200))
def test_without_noise_the_answer_is_exact_to_five_percent(start: int, increment: int, above: int, truth: int) -> None:
    truth = max(truth, start)
    config = FindMax(start=start, increment=increment, step_s=30.0, maximum=start + above)
    search = walk(Search.begin(config), lambda level: level <= truth)
    assert search.best is not None
    found = search.best.seen.target
    assert found <= min(truth, config.maximum)
    if truth >= config.maximum:
        assert found == config.maximum
        assert search.bounded
    else:
        assert search.failed is not None
        assert search.failed.seen.target > truth
        assert truth - found <= max(0, 0.05 * found)
    assert all(judged.seen.target <= config.maximum for judged in search.steps)
    assert len(search.steps) <= above // increment + 14


# --- against a queue that it cannot see into -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Server:
    """`slots` statements at a time, the others wait in line; errors begin at so many connections."""

    slots: int
    service_ms: float
    sigma: float = 0.3
    errors_from: int = 10**9
    error_rate: float = 0.05
    drift: float = 0.01  # of one step against another: machines are not alike every minute
    levels: dict[int, tuple[np.ndarray, float]] = field(default_factory=dict)

    def level(self, connections: int) -> tuple[np.ndarray, float]:
        """How likely each bucket is, and the throughput, with so many connections."""
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

    def truth(self, config: FindMax) -> int:
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
    """One search against a server, with finite samples and noise of its own."""

    def __init__(self, server: Server, config: FindMax, seed: int) -> None:
        self.server, self.config = server, config
        self.rng = np.random.default_rng(seed)

    def run(self) -> Search:
        search = Search.begin(self.config)
        while search.target is not None:
            search = search.after(self.step(search, search.target))
        return search

    def step(self, search: Search, target: int) -> Judged:
        chances, qps = self.server.level(target)
        qps *= float(np.exp(self.server.drift * self.rng.standard_normal()))
        seconds, counts, failed = 0.0, np.zeros(BUCKETS, np.int64), 0
        while True:  # looked at every second once it has lasted, as a leader does
            more_s = self.config.step_s if not seconds else 1.0
            tried = int(self.rng.poisson(qps * more_s))
            wrong = int(self.rng.binomial(tried, self.server.error_rate)) if target >= self.server.errors_from else 0
            counts = counts + self.rng.multinomial(tried - wrong, chances)
            seconds, failed = seconds + more_s, failed + wrong
            judged = search.judge(Seen(target=target, seconds=seconds, merged=_merged(counts, failed, seconds)))
            if judged is not None:
                return judged


def _merged(counts: np.ndarray, failed: int, seconds: float) -> Merged:
    """Without going through single times: buckets are drawn, which is the same and a hundred times faster."""
    there = np.flatnonzero(counts)
    count = int(counts.sum())
    times = Histogram(
        counts=counts.copy(),
        count=count,
        sum_ns=int((counts * LOWEST_NS).sum()),
        min_ns=int(LOWEST_NS[there[0]]),
        max_ns=int(HIGHEST_NS[there[-1]]),
    )
    tally = Tally(statements={"s": StatementTally(times={Ended.SUCCEEDED: Times(times, times)})})
    return Merged(
        seconds=seconds,
        counts=Counts(scheduled=count + failed, succeeded=count, failed=failed),
        tally=tally,
        qps=count / seconds,
        statement_qps={"s": count / seconds},
    )


QUEUED = {Outcome.DEGRADED, Outcome.PLATEAU}
TRIALS = [
    # name, server, outcomes that are right, runs
    ("16 slots of 20 ms", Server(slots=16, service_ms=20.0), QUEUED, 340),
    ("40 slots of 50 ms", Server(slots=40, service_ms=50.0), QUEUED, 330),
    (
        "errors from 30 connections on",
        Server(slots=100, service_ms=20.0, errors_from=30),
        {Outcome.ERROR_THRESHOLD},
        330,
    ),
]


@pytest.mark.parametrize(("name", "noisy", "right", "runs"), TRIALS, ids=[trial[0] for trial in TRIALS])
def test_it_finds_what_a_noisy_server_takes(name: str, noisy: Server, right: set[Outcome], runs: int) -> None:
    off: list[float] = []  # in increments, 0 when within 10 %
    outcomes: Counter[Outcome | None] = Counter()
    for seed in range(runs):
        config = FindMax(start=(4, 5, 8)[seed % 3], increment=(4, 5, 10)[seed % 3], step_s=10.0, maximum=150)
        truth = noisy.truth(config)
        search = Trial(noisy, config, seed).run()
        found = 0 if search.best is None else search.best.seen.target
        outcomes[None if search.failed is None else search.failed.outcome] += 1
        off.append(0.0 if abs(found - truth) <= 0.1 * truth else abs(found - truth) / config.increment)
    assert sum(miss <= 1 for miss in off) >= 0.95 * runs, (name, Counter(map(round, off)))
    assert max(off) <= 2, (name, max(off))
    assert sum(count for outcome, count in outcomes.items() if outcome in right) >= 0.95 * runs, outcomes
