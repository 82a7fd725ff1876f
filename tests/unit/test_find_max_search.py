"""The search for the maximum over simulated servers: how far off it may be, and what it must not claim."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace

import pytest

from loadgen.rules.find_max import VOTE_MARGIN, FindMaxSearch, SearchConfidence, find_max_cap
from loadgen.rules.find_max_step import JudgedStep, StepOutcome
from loadgen.scenario.model import FindMaxSettings
from tests.unit.find_max_server import Server, connections

SEEDS = [range(500), pytest.param(range(500, 1_200), marks=pytest.mark.slow)]  # for everything at once
FEWER = 160  # for each thing alone


def drawn(rng: random.Random) -> tuple[FindMaxSettings, Server]:
    """A search, and a server that holds its first two levels."""
    start, increment = rng.randint(1, 12), rng.randint(1, 12)
    slots = rng.randint(start + increment, start + 12 * increment)
    config = FindMaxSettings(
        start=start,
        increment=increment,
        maximum=slots + rng.randint(0, 6 * increment),
        step_s=rng.choice((5.0, 30.0)),
        latency_stability_pct=rng.choice((20.0, 30.0)),
        refine=rng.random() < 0.8,
    )
    return config, Server(slots=slots, shows_queue=rng.choice((0.0, 1.0)))


def check(config: FindMaxSettings, server: Server, search: FindMaxSearch) -> None:
    """Properties of every search."""
    answer, found = search.answer(), connections(search.answer())
    assert len(search.steps) <= find_max_cap(config).steps
    assert all(step.target <= ceiling for step, ceiling in zip(search.steps, ceilings(config, search), strict=True))
    contradictory = [count for count in votes(search).values() if len(count) == 2]
    if answer.confidence is SearchConfidence.HIGH:
        assert not contradictory
        assert search.stopped is None
        assert not (answer.best and answer.best.low_confidence)
    if answer.is_true_max:
        assert found is not None
        assert server.slots - config.increment <= found <= server.most(config) + config.increment
        assert answer.failed is not None
        decided = [count for level, count in votes(search).items() if len(count) == 2 and level <= answer.failed.target]
        assert all(abs(count[True] - count[False]) >= VOTE_MARGIN for count in decided)
    elif found is not None:
        assert found <= server.most(config)


def votes(search: FindMaxSearch) -> dict[int, Counter[bool]]:
    """By level: how often it held, how often it failed."""
    found: dict[int, Counter[bool]] = {}
    for step in search.steps:
        if step.outcome is not StepOutcome.CLIENT_LIMIT:
            found.setdefault(step.target, Counter())[step.held] += 1
    return found


def ceilings(config: FindMaxSettings, search: FindMaxSearch) -> list[int]:
    """For each step: the highest level that it may have."""
    found, ceiling = [], config.maximum
    last: dict[int, StepOutcome] = {}
    for step in search.steps:
        found.append(ceiling)
        if step.outcome is last.get(step.target) is StepOutcome.CLIENT_LIMIT:
            ceiling = min(ceiling, step.target - 1)
        last[step.target] = step.outcome
    return found


def searches(seeds: range, change: str, rate: float = 0.0) -> list[tuple[FindMaxSettings, Server, FindMaxSearch]]:
    found = []
    for seed in seeds:
        rng = random.Random(seed)
        config, server = drawn(rng)
        if change == "client":
            server = replace(server, client_limits=rate)
        elif change:
            server = replace(server, **{change: rng.randint(1, 12)})
        found.append((config, server, server.search(config, seed)))
    return found


def test_without_noise_the_answer_is_exact_to_five_percent() -> None:
    for seed in range(FEWER):
        config, server = drawn(random.Random(seed))
        server = replace(server, noise=0.0, shows_queue=1.0)
        search = server.search(config, seed)
        answer, found = search.answer(), connections(search.answer())
        check(config, server, search)
        assert found is not None
        assert answer.confidence is SearchConfidence.HIGH, search
        assert answer.is_true_max == (server.slots < config.maximum)
        assert found <= server.slots
        if config.refine and answer.is_true_max:
            assert server.slots - found <= max(0, math.ceil(0.05 * found) - 1)


def test_on_a_quiet_machine_nine_of_ten_find_the_true_maximum() -> None:
    found = [one for one in searches(range(FEWER), "") if one[1].most(one[0]) < one[0].maximum]
    for config, server, search in found:
        check(config, server, search)
    assert sum(search.answer().is_true_max for _, _, search in found) >= 0.9 * len(found)


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.6, 1.0])
def test_a_client_that_is_the_limit_gives_a_lower_bound(rate: float) -> None:
    kinds: Counter[str] = Counter()
    for config, server, search in searches(range(FEWER), "client", rate):
        check(config, server, search)
        answer = search.answer()
        kinds["true" if answer.is_true_max else "none" if answer.best is None else "bounded"] += 1
        if answer.limited is not None:
            assert not answer.is_true_max
            assert "the client" in answer.reason
    assert kinds["none"] == FEWER if rate == 1.0 else kinds["true"] > 0 and kinds["bounded"] > 0, kinds


def test_one_disturbed_step_never_moves_the_answer_by_more_than_an_increment() -> None:
    unsure = 0
    for config, server, search in searches(range(FEWER), "disturbed"):
        check(config, server, search)
        unsure += search.answer().confidence is SearchConfidence.LOW
    assert unsure > FEWER / 4


def test_a_lost_worker_ends_the_search_with_a_lower_bound() -> None:
    for config, server, search in searches(range(FEWER), "lost_at"):
        check(config, server, search)
        answer = search.answer()
        if search.stopped is not None:
            assert not answer.is_true_max
            assert answer.confidence is SearchConfidence.LOW
            assert "a worker was lost" in answer.reason


@pytest.mark.parametrize("seeds", SEEDS, ids=["few", "many"])
def test_everything_at_once(seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        config, server = drawn(rng)
        server = replace(
            server,
            noise=rng.choice((0.0, 0.01, 0.02)),
            shows_queue=rng.choice((0.0, 0.5, 1.0)),
            client_limits=rng.choice((0.0, 0.1, 0.4)),
            disturbed=rng.choice((0, rng.randint(2, 12))),
            lost_at=rng.choice((0, 0, rng.randint(1, 20))),
        )
        search = server.search(config, seed)
        check(config, server, search)
        again = FindMaxSearch(config=config, stopped=search.stopped)
        for step in search.steps:  # a successor decides the same from the stored steps
            assert again.target is None or again.target == step.target or search.stopped is not None
            again = again.after(step)
        assert again.answer() == search.answer()


def test_a_level_that_is_never_decided_uses_up_the_steps_and_lowers_the_confidence() -> None:
    """Level 8 holds in every second step."""
    config = FindMaxSettings(start=4, increment=4, maximum=64)
    calm, flaky = Server(slots=64, noise=0.0), Server(slots=4, noise=0.0)
    search, rng = FindMaxSearch(config=config), random.Random(1)
    while search.target is not None:
        visits = sum(step.target == search.target for step in search.steps)
        server = flaky if search.target == 8 and visits % 2 == 0 else calm
        search = search.after(server.step(search, search.target, rng))
    answer = search.answer()
    assert len(search.steps) == find_max_cap(config).steps
    assert (connections(answer), answer.is_true_max, answer.confidence) == (4, False, SearchConfidence.LOW)
    assert "has used all of its 36 steps" in answer.reason


def outcomes(steps: tuple[JudgedStep, ...]) -> list[tuple[int, str]]:
    return [(step.target, step.outcome.value) for step in steps]


def test_one_false_failure_is_corrected_and_the_climb_continues() -> None:
    """A disturbed step at 8 once made the answer 7 where 16 hold."""
    config, server = (
        FindMaxSettings(start=4, increment=4, maximum=64),
        Server(slots=16, noise=0.0, disturbed=2, shows_queue=1.0),
    )
    search = server.search(config, seed=3)
    assert outcomes(search.steps)[:6] == [
        (4, "STABLE"),
        (8, "DEGRADED"),
        (4, "STABLE"),  # the best, confirmed
        (8, "STABLE"),  # the failed one, not confirmed
        (8, "STABLE"),
        (8, "STABLE"),  # two votes more
    ]
    answer = search.answer()
    assert (connections(answer), answer.is_true_max, answer.confidence) == (16, True, SearchConfidence.LOW)


def test_the_first_step_may_be_the_disturbed_one() -> None:
    config, server = FindMaxSettings(start=4, increment=4, maximum=64), Server(slots=16, noise=0.0, disturbed=1)
    search = server.search(config, seed=3)
    assert connections(search.answer()) in (16, 17, 18, 19)


@pytest.mark.parametrize(
    ("start", "increment", "maximum", "truth"), [(40, 2, 42, 40), (40, 2, 42, 41), (1, 1, 1, 1), (5, 10, 500, 250)]
)
def test_the_cap_is_one_rule_for_the_plan_and_the_search(start: int, increment: int, maximum: int, truth: int) -> None:
    config = FindMaxSettings(start=start, increment=increment, maximum=maximum)
    search = Server(slots=truth, noise=0.0, shows_queue=1.0).search(config, seed=1)
    cap = find_max_cap(config)
    clear = len(search.steps)
    assert connections(search.answer()) == pytest.approx(truth, rel=0.05)
    assert clear * (config.settle_s + config.step_s) <= cap.steps_s
    assert clear <= cap.steps
