"""The verdict of a step of find_max, rule by rule, and how often a search is right about a queue it cannot see into."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from loadgen.metrics.edges import BUCKETS, HIGHEST_NS, LOWEST_NS, buckets_of
from loadgen.metrics.histogram import Histogram
from loadgen.metrics.outcome import Outcome as Ended
from loadgen.metrics.result import WindowResult
from loadgen.metrics.tally import StatementTally, Times
from loadgen.rules.find_max import Confidence, Search, Stage
from loadgen.rules.find_max_step import EXTEND_MAX, FindMax, Outcome, Step
from loadgen.scenario.scenario import Threshold
from loadgen.scenario.threshold import parse_check
from orchestrator.find_max_observation import observe
from tests.unit.orchestrator_builders import tally, window

MS = 1_000_000
SAMPLES = 100_000  # of the model, per level: what infinitely many would show
CONFIG = FindMax(start=5, increment=10, step_s=30.0, maximum=100)


# --- steps by hand ---------------------------------------------------------------------------------------------------


def times(*, p95_ms: float = 20.0, count: int = 5_000, failed: int = 0) -> StatementTally:
    """All times lie in one bucket, so that bounds are as narrow as can be."""
    return tally((p95_ms,) * count, failed=failed)


def step(
    search: Search,
    seconds: float = 30.0,
    *,
    qps: float = 100.0,
    shown: StatementTally | None = None,
    thresholds: tuple[Threshold, ...] = (),
    queue_seen: bool = False,
    client_limit: str | None = None,
    **made: float,
) -> Step | None:
    assert search.target is not None
    found = times(**made) if shown is None else shown  # type: ignore[arg-type]
    own = window({"s": found}, seconds=seconds)
    observation, _ = observe(search.target, [[own]], thresholds, queue_seen=queue_seen, client_limit=client_limit)
    return search.judge(replace(observation, qps=qps))


def took(search: Search, **shown: float) -> Search:
    judged = step(search, **shown)  # type: ignore[arg-type]
    assert judged is not None
    return search.after(judged)


def fails(search: Search) -> Search:
    return took(search, p95_ms=99.0)


def limited(search: Search) -> Search:
    judged = step(search, client_limit="a worker used 95 % of its core")
    assert judged is not None
    return search.after(judged)


# Most samples are below the limit of p95 (24 ms for a baseline of 20 ms), and those above it are few.
STRADDLING = tally((20.0,) * 90 + (30.0,) * 10)


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
        ({"client_limit": "busy", "queue_seen": True, "failed": 5_000, "p95_ms": 90.0}, Outcome.CLIENT_LIMIT),
    ],
)
def test_a_step_fails_by_the_first_reason(shown: dict[str, float], outcome: Outcome) -> None:
    second = took(Search(config=CONFIG))
    judged = step(second, **shown)  # type: ignore[arg-type]
    assert judged is not None
    assert judged.outcome is outcome
    assert judged.held == (outcome is Outcome.STABLE)
    assert judged.failed == (outcome not in (Outcome.STABLE, Outcome.CLIENT_LIMIT))
    assert judged.reason


def test_a_threshold_that_is_not_met_fails_the_step_before_latency_is_compared() -> None:
    limits = (Threshold(check=parse_check("p95 < 21ms")),)
    judged = step(took(Search(config=CONFIG)), p95_ms=50.0, thresholds=limits)
    assert judged is not None
    assert judged.outcome is Outcome.SLO_FAILED
    assert "p95 < 21ms" in judged.reason


def test_a_queue_ends_a_step_at_once_but_not_when_it_was_not_asked_for() -> None:
    assert step(Search(config=CONFIG), seconds=0.5, queue_seen=True) is not None
    unasked = Search(config=replace(CONFIG, stop_on_queue=False))
    assert step(unasked, seconds=0.5, queue_seen=True) is None
    judged = step(unasked, queue_seen=True)
    assert judged is not None
    assert judged.held


def test_nothing_is_judged_before_the_step_has_lasted() -> None:
    assert step(Search(config=CONFIG), seconds=29.9, failed=5_000) is None
    assert step(Search(config=CONFIG), seconds=29.9, client_limit="busy") is None


def test_what_straddles_the_limit_gets_more_time_and_is_marked_when_that_did_not_help() -> None:
    second = took(Search(config=CONFIG))
    for seconds in (30.0, 60.0, 89.0):
        assert step(second, seconds, shown=STRADDLING) is None
    judged = step(second, EXTEND_MAX * 30.0, shown=STRADDLING)
    assert judged is not None
    assert judged.low_confidence
    assert judged.outcome is Outcome.DEGRADED


def test_too_few_samples_for_p95_are_no_proof_that_it_held() -> None:
    second = took(Search(config=CONFIG))
    assert step(second, count=10) is None
    judged = step(second, EXTEND_MAX * 30.0, count=10)
    assert judged is not None
    assert (judged.outcome, judged.low_confidence) == (Outcome.STABLE, True)


def test_the_bounds_of_all_steps_of_a_level_together_decide_whether_a_step_is_sure() -> None:
    """What one step alone leaves open is decided with the step before it."""
    search = took(Search(config=CONFIG))
    first = step(search, EXTEND_MAX * 30.0, shown=STRADDLING)
    assert first is not None
    repeated = replace(search.after(first), stopped=None)
    while repeated.target != first.target:  # the best level is confirmed before
        repeated = took(repeated)
    judged = step(repeated, shown=tally((20.0,) * 700 + (30.0,) * 300))
    assert judged is not None
    assert (judged.outcome, judged.low_confidence) == (Outcome.DEGRADED, False)


def test_a_disturbed_step_does_not_decide_the_next_one_of_its_level() -> None:
    search = fails(took(Search(config=CONFIG)))
    search = took(search)  # the best level, confirmed
    assert search.stage is Stage.VERIFY
    judged = step(search)
    assert judged is not None
    assert judged.held


def test_more_connections_without_more_throughput_are_a_plateau() -> None:
    search = took(took(Search(config=CONFIG), qps=100), qps=101, p95_ms=20.5)
    judged = step(search, qps=101.5, p95_ms=21.0)
    assert judged is not None
    assert judged.outcome is Outcome.PLATEAU


def test_small_increments_are_no_plateau_as_long_as_throughput_grows_with_them() -> None:
    search = Search(config=FindMax(start=200, increment=1, maximum=300))
    search = took(took(search, qps=200), qps=201, p95_ms=20.1)
    judged = step(search, qps=202, p95_ms=20.8)
    assert judged is not None
    assert judged.held


def test_a_slow_decline_is_seen_because_the_best_step_is_the_measure() -> None:
    search = took(took(took(Search(config=CONFIG), qps=100), qps=104, p95_ms=19), qps=101, p95_ms=18)
    judged = step(search, qps=98, p95_ms=17)
    assert judged is not None
    assert judged.outcome is Outcome.DEGRADED


def test_a_first_step_that_was_disturbed_is_no_baseline() -> None:
    search = took(took(Search(config=CONFIG), p95_ms=40.0), p95_ms=20.0, qps=300.0)
    assert search.baseline_p95_ms == pytest.approx(20.0, rel=0.02)
    judged = step(search, p95_ms=30.0, qps=400.0)
    assert judged is not None
    assert judged.outcome is Outcome.DEGRADED


# --- where it goes ---------------------------------------------------------------------------------------------------


def test_a_first_step_that_fails_twice_leaves_nothing() -> None:
    search = took(Search(config=CONFIG), failed=5_000)
    assert (search.stage, search.target) == (Stage.VERIFY, 5)
    search = took(search, failed=5_000)
    answer = search.answer()
    assert (search.stage, search.target, answer.best) == (Stage.DONE, None, None)
    assert "not even 5 connections held: 50.00 % of statements failed" in answer.reason


def test_the_maximum_is_confirmed_and_a_lower_bound() -> None:
    search = Search(config=FindMax(start=5, increment=10, maximum=20))
    for qps in (50, 150, 200, 200):
        search = took(search, qps=qps)
    answer = search.answer()
    assert [one.target for one in search.steps] == [5, 15, 20, 20]
    assert answer.best == search.steps[-1]
    assert (answer.is_true_max, answer.confidence) == (False, Confidence.HIGH)
    assert answer.reason == "20 connections held, and more were not tried"


def test_both_ends_are_confirmed_before_the_gap_is_bisected() -> None:
    search = took(took(took(Search(config=CONFIG), qps=10), qps=20), qps=30)
    search = fails(search)
    assert (search.stage, search.target) == (Stage.CONFIRM, 25)
    search = took(search, qps=30)
    assert (search.stage, search.target) == (Stage.VERIFY, 35)
    search = fails(search)
    assert (search.stage, search.target) == (Stage.REFINE, 30)


def test_a_level_that_was_judged_both_ways_is_measured_until_one_verdict_has_two_votes_more() -> None:
    search = took(took(took(Search(config=CONFIG), qps=10), qps=20), qps=30)
    search = fails(fails(search))  # 35, then 25 when it is confirmed
    assert (search.stage, search.target) == (Stage.REPEAT, 25)
    search = fails(search)
    assert (search.stage, search.target) == (Stage.REPEAT, 25)
    search = fails(search)
    assert (search.stage, search.target) == (Stage.CONFIRM, 15), "25 failed by three to one"
    search = took(search, qps=20)
    assert (search.stage, search.target) == (Stage.REFINE, 20)
    assert search.answer().confidence is Confidence.LOW


def test_without_refinement_it_ends_when_both_ends_are_confirmed() -> None:
    search = Search(config=replace(CONFIG, refine=False))
    search = fails(took(fails(took(took(search, qps=10), qps=20)), qps=20))
    answer = search.answer()
    assert (search.target, answer.is_true_max, answer.confidence) == (None, True, Confidence.HIGH)
    assert answer.best is not None
    assert answer.best.number == 4, "the one that confirmed it"
    assert answer.failed is not None
    assert answer.failed.number == 5


# --- the client as the limit -----------------------------------------------------------------------------------------


def test_a_step_that_the_client_limited_is_measured_once_more() -> None:
    search = limited(took(Search(config=CONFIG), qps=10))
    assert (search.stage, search.target) == (Stage.REPEAT, 15)
    search = took(search, qps=20)
    assert (search.stage, search.target) == (Stage.CLIMB, 25)


def test_the_search_does_not_go_above_a_level_that_the_client_limits() -> None:
    search = limited(limited(took(took(Search(config=CONFIG), qps=10), qps=20)))
    assert (search.stage, search.target) == (Stage.CONFIRM, 15)
    search = took(search, qps=20)
    answer = search.answer()
    assert search.target is None
    assert answer.best == search.steps[-1]
    assert (answer.is_true_max, answer.confidence) == (False, Confidence.HIGH)
    assert answer.reason == "at least 15 connections held: limited by the client at 25: a worker used 95 % of its core"


def test_a_best_level_that_cannot_be_confirmed_gives_way_to_the_one_below() -> None:
    search = took(took(took(Search(config=CONFIG), qps=10), qps=20), qps=30)
    search = limited(limited(fails(search)))
    answer = search.answer()
    assert search.target is None, "15 needs no second step: 25 held once as well"
    assert answer.best is not None
    assert (answer.best.target, answer.is_true_max) == (15, False)
    assert answer.failed is not None
    assert answer.failed.target == 35


def test_a_client_that_limits_the_first_level_leaves_no_answer() -> None:
    search = limited(limited(Search(config=CONFIG)))
    answer = search.answer()
    assert (search.target, answer.best) == (None, None)
    assert answer.limited is not None


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
        search = Search(config=self.config)
        while search.target is not None:
            search = search.after(self.step(search, search.target))
        return search

    def step(self, search: Search, target: int) -> Step:
        chances, qps = self.server.level(target)
        qps *= float(np.exp(self.server.drift * self.rng.standard_normal()))
        seconds, counts, failed = 0.0, np.zeros(BUCKETS, np.int64), 0
        while True:  # looked at every second once it has lasted, as a leader does
            more_s = self.config.step_s if not seconds else 1.0
            tried = int(self.rng.poisson(qps * more_s))
            wrong = int(self.rng.binomial(tried, self.server.error_rate)) if target >= self.server.errors_from else 0
            counts = counts + self.rng.multinomial(tried - wrong, chances)
            seconds, failed = seconds + more_s, failed + wrong
            shown, _ = observe(target, [[_window(counts, failed, seconds)]])
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


QUEUED = {Outcome.DEGRADED, Outcome.PLATEAU}
TRIALS = [
    # name, server, outcomes that are right, runs
    ("16 slots of 20 ms", Server(slots=16, service_ms=20.0), QUEUED, 120),
    ("40 slots of 50 ms", Server(slots=40, service_ms=50.0), QUEUED, 120),
    (
        "errors from 30 connections on",
        Server(slots=100, service_ms=20.0, errors_from=30),
        {Outcome.ERROR_THRESHOLD},
        120,
    ),
]


@pytest.mark.parametrize(("name", "server", "right", "runs"), TRIALS, ids=[trial[0] for trial in TRIALS])
def test_it_finds_what_a_noisy_server_takes(name: str, server: Server, right: set[Outcome], runs: int) -> None:
    off: list[float] = []  # in increments, 0 when within 10 %
    outcomes: Counter[Outcome | None] = Counter()
    for seed in range(runs):
        config = FindMax(start=(4, 5, 8)[seed % 3], increment=(4, 5, 10)[seed % 3], step_s=10.0, maximum=150)
        truth = server.truth(config)
        answer = Trial(server, config, seed).run().answer()
        found = 0 if answer.best is None else answer.best.target
        outcomes[None if answer.failed is None else answer.failed.outcome] += 1
        off.append(0.0 if abs(found - truth) <= 0.1 * truth else abs(found - truth) / config.increment)
    assert max(off) <= 1, (name, Counter(map(round, off)))
    assert sum(count for outcome, count in outcomes.items() if outcome in right) >= 0.95 * runs, outcomes
