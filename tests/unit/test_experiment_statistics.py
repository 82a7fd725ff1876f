"""Experiments, simulated: how often they decide wrongly, and how often they find what is there.

Noise is 3 % per measurement, at most 20 blocks, a look after every block; an experiment ends when all is decided.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import combinations

import numpy as np
import pytest

from loadgen.model.experiment import Decision, ExperimentMetric
from loadgen.rules.confidence_intervals import (
    ABOVE,
    BELOW,
    LAST_PART,
    MIXTURES,
    OPEN,
    WITHIN,
    confidence_sequence,
    half_width,
    judge,
    minimum_detectable_difference,
    student_quantile,
)
from loadgen.rules.experiment import (
    ERROR,
    BlockValues,
    ExperimentBudget,
    ExperimentDesign,
    ExperimentProgress,
    block_order,
    compare_arms,
    next_step,
)

EXPERIMENTS = 500
BLOCKS = 20
NOISE = 0.03
MINIMUM = 4
ORDERS = 25  # seeds of orders; experiments with drift take turns


@dataclass(frozen=True, slots=True)
class Simulated:
    """Verdicts at the end of each experiment, by experiment, pair and metric, and the number of blocks it took."""

    verdicts: np.ndarray
    blocks: np.ndarray


def noise_of(rng, shape, kind):
    deviation = math.sqrt(math.log1p(NOISE**2))
    if kind == "heavy tails":
        return rng.standard_t(3, shape) * deviation / math.sqrt(3)
    if kind == "skewed":
        return (rng.exponential(1.0, shape) - 1.0) * deviation
    return rng.normal(0.0, deviation, shape)


@dataclass(frozen=True, slots=True)
class Truth:
    """`effect` is of the last arm in every metric; `drift` goes from minus to plus this over the measurements."""

    arms: int = 3
    metrics: int = 2
    effect: float = 0.0
    drift: float = 0.0
    margin: float = 0.05
    kind: str = "normal"

    @property
    def design(self):
        metrics = [ExperimentMetric.parse(text) for text in ("avg", "a.avg", "b.avg")[: self.metrics]]
        return ExperimentDesign(
            arms=tuple(f"arm{number}" for number in range(self.arms)),
            reference="arm0",
            margins=dict.fromkeys(metrics, self.margin),
            blocks_min=MINIMUM,
            blocks_max=BLOCKS,
            seed=1,
        )

    def logs(self, seed, experiments):
        """Logarithms of what is measured, by experiment, arm, metric and block."""
        rng = np.random.default_rng(seed)
        logs = noise_of(rng, (experiments, self.arms, self.metrics, BLOCKS), self.kind)
        logs[:, -1] += math.log1p(self.effect)
        if self.drift:
            place = np.resize(orders(self.arms), (experiments, BLOCKS, self.arms))
            moment = (np.arange(BLOCKS)[None, :, None] * self.arms + place) / (BLOCKS * self.arms - 1) * 2.0 - 1.0
            logs += np.log1p(self.drift * moment).transpose(0, 2, 1)[:, :, None, :]
        return logs


@cache
def orders(arms):
    """The place of each arm in its block, by seed, block and arm."""
    design = Truth(arms=arms).design
    seeds = [replace(design, seed=seed) for seed in range(ORDERS)]
    found = [[block_order(one, number) for number in range(1, BLOCKS + 1)] for one in seeds]
    return np.array([[[order.index(arm) for arm in design.arms] for order in by_block] for by_block in found])


def simulate(seed, *, experiments=EXPERIMENTS, **truth):
    """All experiments at once; `carried_out` has the same by the rules that a real experiment calls."""
    told = Truth(**truth)
    design, logs = told.design, told.logs(seed, experiments)
    pairs = list(combinations(range(told.arms), 2))
    differences = np.stack([logs[:, b] - logs[:, a] for a, b in pairs], axis=1)
    lows, highs = confidence_sequence(differences, design.error_each, last=BLOCKS)
    verdicts = judge(lows, highs, told.margin)
    decided = (verdicts != OPEN).all(axis=(1, 2)) & (np.arange(BLOCKS) >= MINIMUM - 1)
    last = np.where(decided.any(axis=1), decided.argmax(axis=1), BLOCKS - 1)
    return Simulated(np.take_along_axis(verdicts, last[:, None, None, None], axis=3)[..., 0], last + 1)


def carried_out(truth, logs):
    """One experiment, block by block: its decisions by metric and pair, and its number of blocks."""
    design, ending = truth.design, None
    blocks: list[BlockValues] = []
    while ending is None:
        number = len(blocks)
        values = {
            arm: {metric: math.exp(logs[place, which, number]) for which, metric in enumerate(design.margins)}
            for place, arm in enumerate(design.arms)
        }
        blocks.append(BlockValues(number=number + 1, values=values))
        found = compare_arms(design, blocks, final=len(blocks) == BLOCKS)
        progress = ExperimentProgress(
            begun=len(blocks),
            lost_in_a_row=0,
            elapsed_s=0.0,
            credits=None,
            longest_block_s=1.0,
            costliest_block_credits=0.0,
        )
        ending = next_step(design, blocks, found, progress, ExperimentBudget())
    return [one.decision for one in found], len(blocks)


@pytest.mark.parametrize(
    "truth", [Truth(effect=0.05, drift=0.2, margin=0.02), Truth(arms=2, effect=0.3), Truth(arms=2, metrics=1)]
)
def test_an_experiment_carried_out_by_the_rules_decides_as_the_simulated_one(truth):
    many = 4
    simulated = simulate(20260, experiments=many, **asdict(truth))
    words = {ABOVE: Decision.WORSE, BELOW: Decision.BETTER, WITHIN: Decision.EQUIVALENT, OPEN: Decision.UNDECIDED}

    for number, logs in enumerate(truth.logs(20260, many)):
        decisions, blocks = carried_out(truth, logs)

        assert blocks == simulated.blocks[number]
        assert decisions == [words[int(verdict)] for verdict in simulated.verdicts[number].T.flat]


def wrong(simulated):
    """The fraction of experiments in which any pair is better or worse in any metric, though none is."""
    return float(np.isin(simulated.verdicts, (ABOVE, BELOW)).any(axis=(1, 2)).mean())


@pytest.mark.parametrize("drift", [0.0, 0.2])
@pytest.mark.parametrize(("arms", "metrics"), [(2, 1), (3, 2), (4, 3)])
def test_of_equal_arms_at_most_5_percent_of_experiments_decide_wrongly(arms, metrics, drift):
    assert wrong(simulate(20261, arms=arms, metrics=metrics, drift=drift)) <= 0.05


@pytest.mark.parametrize("kind", ["heavy tails", "skewed"])
def test_noise_that_is_not_normal_decides_no_more_often_wrongly(kind):
    assert wrong(simulate(20262, kind=kind, drift=0.2)) <= 0.05


@pytest.mark.parametrize("drift", [0.0, 0.2])
@pytest.mark.parametrize(("arms", "metrics"), [(2, 1), (3, 2), (4, 3)])
def test_a_difference_of_5_percent_is_found_in_at_least_90_percent(arms, metrics, drift):
    found = simulate(20263, arms=arms, metrics=metrics, effect=0.05, drift=drift, margin=0.02)
    with_the_last = [number for number, (_, b) in enumerate(combinations(range(arms), 2)) if b == arms - 1]

    # By symmetry all these comparisons have the same probability, so one rate is the best estimate of it.
    assert (found.verdicts[:, with_the_last] == ABOVE).mean() >= 0.90


def test_a_difference_is_almost_never_found_in_the_wrong_direction_or_called_equivalent():
    found = simulate(20264, arms=2, metrics=2, effect=0.05, margin=0.02)

    assert np.isin(found.verdicts, (BELOW, WITHIN)).mean() <= 0.005


def test_large_differences_end_an_experiment_early():
    assert np.median(simulate(20265, arms=2, metrics=2, effect=1.0).blocks) == MINIMUM
    assert np.median(simulate(20265, arms=2, metrics=2, effect=0.3).blocks) <= 6


def test_equal_arms_are_called_equivalent():
    found = simulate(20266, arms=2, metrics=1, margin=0.05)

    assert (found.verdicts == WITHIN).mean() >= 0.90


def test_looking_after_every_block_with_an_ordinary_interval_would_decide_wrongly_far_too_often():
    """What the sequence is for: the same experiments with Student's interval at every look."""
    rng = np.random.default_rng(20267)
    logs = rng.normal(0.0, NOISE * math.sqrt(2), (EXPERIMENTS, BLOCKS))
    fooled = np.zeros(EXPERIMENTS, bool)
    for blocks in range(2, BLOCKS + 1):
        seen = logs[:, :blocks]
        reach = student_quantile(ERROR, blocks - 1) * seen.std(axis=1, ddof=1) / math.sqrt(blocks)
        fooled |= abs(seen.mean(axis=1)) > reach

    lows, highs = confidence_sequence(logs, ERROR, last=BLOCKS)
    assert fooled.mean() > 0.20
    assert ((lows > 0) | (highs < 0)).any(axis=1).mean() <= 0.05


@pytest.mark.parametrize("kind", ["normal", "heavy tails"])
def test_the_true_difference_lies_in_all_intervals_of_at_least_95_percent(kind):
    rng = np.random.default_rng(20268)
    truth = math.log1p(0.08)
    logs = truth + noise_of(rng, (2_000, BLOCKS), kind) - noise_of(rng, (2_000, BLOCKS), kind)

    lows, highs = confidence_sequence(logs, ERROR, last=BLOCKS)

    assert ((lows <= truth) & (truth <= highs)).all(axis=1).mean() >= 0.95


def test_the_scale_of_the_noise_does_not_matter():
    logs = np.random.default_rng(1).normal(0.02, 0.04, 12)

    lows, highs = confidence_sequence(logs, 0.01, last=None)
    wider_lows, wider_highs = confidence_sequence(logs * 1_000, 0.01, last=None)

    np.testing.assert_allclose(wider_lows, lows * 1_000)
    np.testing.assert_allclose(wider_highs, highs * 1_000)


@pytest.mark.parametrize("blocks", [4, 9, 20])
def test_the_mixture_is_where_its_likelihood_ratio_reaches_the_bound(blocks):
    """The solution against the definition."""
    error = 0.02
    width = half_width(blocks, error / (1 - LAST_PART), last=False)
    u = blocks * width**2 / (blocks - 1)
    ratios = [
        weight * (1 + blocks * effects) ** -0.5 * ((1 + u) / (1 + u / (1 + blocks * effects))) ** (blocks / 2)
        for effects, weight in MIXTURES
    ]

    assert sum(ratios) == pytest.approx(1 / error)
    assert sum(weight for _, weight in MIXTURES) == 1


def test_bounds_are_those_of_the_blocks_so_far():
    """The running sums against the definition."""
    logs = np.random.default_rng(2).normal(0.3, 0.04, 15)

    lows, highs = confidence_sequence(logs, 0.01, last=15)

    means = [(logs[:n].mean(), half_width(n, 0.01, last=n == 15) * logs[:n].std(ddof=1)) for n in range(2, 16)]
    assert lows[1:] == pytest.approx(np.maximum.accumulate([mean - reach for mean, reach in means]))
    assert highs[1:] == pytest.approx(np.minimum.accumulate([mean + reach for mean, reach in means]))


@pytest.mark.parametrize(
    ("error", "freedom", "value"),
    [(0.05, 1, 12.7062), (0.05, 2, 4.3027), (0.05, 19, 2.0930), (0.01, 4, 4.6041), (0.001, 20, 3.8495)],
)
def test_quantiles_of_student_are_those_of_the_tables(error, freedom, value):
    assert student_quantile(error, freedom) == pytest.approx(value, abs=5e-5)


def test_nothing_is_known_from_one_or_two_blocks_and_the_planned_last_look_is_narrower():
    assert half_width(1, 0.05, last=True) == math.inf
    assert half_width(2, 0.05, last=False) == math.inf
    assert half_width(20, 0.05, last=True) < half_width(20, 0.05, last=False)


def test_equal_values_are_known_no_better_than_their_resolution():
    lows, highs = confidence_sequence(np.zeros(6), 0.05, last=None, resolution=0.01)

    assert (lows[-1], highs[-1]) == (-0.01, 0.01)


def test_looks_that_contradict_one_another_leave_the_newest():
    steady_then_elsewhere = np.array([0.1, 0.1001, 0.0999, 0.1, 0.1001, 0.1, *[-5.0] * 40])

    lows, highs = confidence_sequence(steady_then_elsewhere, 0.05, last=None)

    assert lows[5] > 0
    assert lows[-1] < highs[-1] < -1


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.01, 0.2, ABOVE), (-0.2, -0.01, BELOW), (-0.01, 0.02, WITHIN), (0.01, 0.02, WITHIN), (-0.01, 0.2, OPEN)],
)
def test_an_interval_inside_the_margin_is_equivalence_also_when_it_excludes_nought(low, high, verdict):
    assert judge(np.array(low), np.array(high), 0.05) == verdict


def test_what_a_plan_promises_is_found_in_about_nine_of_ten():
    effect = minimum_detectable_difference(BLOCKS, ERROR / 6, NOISE)

    found = simulate(20269, arms=3, metrics=2, effect=effect, margin=0.01)

    assert 0.86 <= (found.verdicts[:, 1:] == ABOVE).mean() <= 0.95
