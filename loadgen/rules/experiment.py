"""Experiments: the order of measurements, the comparison of every pair of arms, and when to stop. Pure.

Each block measures every arm once, in random order. Differences are logarithms of ratios within a block, so an effect
that all arms of a block share cancels. The error of an experiment is divided among all pairs and metrics (Bonferroni).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from loadgen.model.experiment import Decision, ExperimentEnding, ExperimentMetric, ExperimentMetricKind
from loadgen.rules.confidence import ABOVE, BELOW, WITHIN, confidence_sequence, half_width, judge
from loadgen.scenario.experiment import ExperimentFile

ERROR = 0.05  # probability of any wrong decision in an experiment, over all pairs and metrics
PERCENTILE_RESOLUTION = math.log(1.01)  # a percentile is exact to 1 %, half of a bucket
LOST_BLOCKS_MAX = 2  # in a row


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentDesign:
    """What was decided before the first measurement."""

    arms: tuple[str, ...]
    reference: str
    margins: Mapping[ExperimentMetric, float]  # fractions
    blocks_min: int
    blocks_max: int
    seed: int

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """(a, b): b is compared with a. The reference is always a."""
        others = [arm for arm in self.arms if arm != self.reference]
        return tuple(combinations((self.reference, *others), 2))

    @property
    def error_each(self) -> float:
        """The error of one pair in one metric."""
        return ERROR / (len(self.pairs) * len(self.margins))

    @property
    def frontier_metrics(self) -> tuple[ExperimentMetric, ExperimentMetric] | None:
        """Price and latency, when both are compared."""
        price = [metric for metric in self.margins if metric.kind is ExperimentMetricKind.PRICE]
        latency = [metric for metric in self.margins if metric.kind.is_latency]
        return (price[0], latency[0]) if price and latency else None


def design_of(file: ExperimentFile) -> ExperimentDesign:
    return ExperimentDesign(
        arms=tuple(file.arms),
        reference=file.reference,
        margins=file.margins,
        blocks_min=file.blocks.minimum,
        blocks_max=file.blocks.maximum,
        seed=file.seed,
    )


def block_order(design: ExperimentDesign, block: int) -> tuple[str, ...]:
    """The arms of a block in the order in which they are measured: the same seed gives the same order everywhere."""

    def rank(arm: str) -> bytes:
        return hashlib.sha256(f"{design.seed}\0{block}\0{arm}".encode()).digest()

    return tuple(sorted(design.arms, key=rank))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockValues:
    """A complete block: a positive number for every arm and metric."""

    number: int
    values: Mapping[str, Mapping[ExperimentMetric, float]]  # by arm


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmComparison:
    """Arm b compared with arm a in one metric. Changes are fractions: 0.05 means that b is 5 % above a."""

    metric: ExperimentMetric
    a: str
    b: str
    margin: float
    change: float | None  # None: there is no block yet
    low: float  # -1: no lower bound
    high: float  # inf: no upper bound
    decision: Decision  # about b
    by_block: tuple[float, ...]  # the change in each block


def compare_arms(design: ExperimentDesign, blocks: Sequence[BlockValues], *, final: bool) -> tuple[ArmComparison, ...]:
    """Every pair in every metric. `final`: all planned blocks are done, so this is the planned last look."""
    wanted = [(metric, a, b) for metric in design.margins for a, b in design.pairs]
    logs = np.array(
        [[math.log(block.values[b][metric] / block.values[a][metric]) for block in blocks] for metric, a, b in wanted]
    )
    resolution = np.array([PERCENTILE_RESOLUTION if metric.kind.is_percentile else 0.0 for metric, _, _ in wanted])
    bounds = [(-math.inf, math.inf)] * len(wanted)
    if blocks:
        last = len(blocks) if final else None
        lows, highs = confidence_sequence(logs, design.error_each, last=last, resolution=resolution)
        bounds = list(zip(lows[:, -1].tolist(), highs[:, -1].tolist(), strict=True))
    return tuple(
        _comparison(design.margins[metric], metric, (a, b), logs[number].tolist(), bounds[number])
        for number, (metric, a, b) in enumerate(wanted)
    )


def _comparison(
    margin: float, metric: ExperimentMetric, pair: tuple[str, str], logs: Sequence[float], bounds: tuple[float, float]
) -> ArmComparison:
    low, high = bounds
    verdict = int(judge(np.array(low), np.array(high), margin))
    return ArmComparison(
        metric=metric,
        a=pair[0],
        b=pair[1],
        margin=margin,
        change=math.expm1(math.fsum(logs) / len(logs)) if logs else None,
        low=math.expm1(low),
        high=math.expm1(high) if high < math.inf else math.inf,
        decision=_decision(verdict, metric),
        by_block=tuple(map(math.expm1, logs)),
    )


def blocks_to_decide(design: ExperimentDesign, one: ArmComparison) -> int | None:
    """The estimated number of complete blocks that decides this pair, if later blocks resemble those so far; None: more
    than the maximum, or fewer than two blocks so far."""
    logs = np.log1p(np.array(one.by_block))
    if len(logs) < 2:
        return None
    mean, deviation, edge = abs(float(logs.mean())), float(logs.std(ddof=1)), math.log1p(one.margin)
    for blocks in range(len(logs) + 1, design.blocks_max + 1):
        reach = half_width(blocks, design.error_each, last=blocks == design.blocks_max) * deviation
        if reach < mean or mean + reach < edge:
            return blocks
    return None


def _decision(verdict: int, metric: ExperimentMetric) -> Decision:
    if verdict == WITHIN:
        return Decision.EQUIVALENT
    if verdict not in (ABOVE, BELOW):
        return Decision.UNDECIDED
    return Decision.BETTER if (verdict == ABOVE) == metric.kind.more_is_better else Decision.WORSE


def decision_between(found: Sequence[ArmComparison], metric: ExperimentMetric, arm: str, other: str) -> Decision:
    """The decision about `arm` compared with `other`, whichever of them is `a`."""
    for one in found:
        if one.metric == metric and (one.a, one.b) == (other, arm):
            return one.decision
        if one.metric == metric and (one.a, one.b) == (arm, other):
            reversed_decision = {Decision.BETTER: Decision.WORSE, Decision.WORSE: Decision.BETTER}
            return reversed_decision.get(one.decision, one.decision)
    raise KeyError((metric, arm, other))


def dominated_arms(
    design: ExperimentDesign, found: Sequence[ArmComparison], serving: Sequence[str]
) -> dict[str, tuple[str, ...]] | None:
    """Arms that are not on the frontier of price and latency, each with the arms that dominate it: better in one of the
    two, and better or equivalent in the other; never undecided. None: price and latency are not both compared."""
    metrics = design.frontier_metrics
    if metrics is None:
        return None
    dominated = {}
    for arm in serving:
        by = [other for other in serving if other != arm and _dominates(found, metrics, other, arm)]
        if by:
            dominated[arm] = tuple(by)
    return dominated


def _dominates(found: Sequence[ArmComparison], metrics: Sequence[ExperimentMetric], other: str, arm: str) -> bool:
    decisions = [decision_between(found, metric, other, arm) for metric in metrics]
    good = all(one in (Decision.BETTER, Decision.EQUIVALENT) for one in decisions)
    return good and Decision.BETTER in decisions


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentProgress:
    """How far an experiment is, after a block or before the first one."""

    begun: int  # blocks, also those that do not count
    lost_in_a_row: int
    elapsed_s: float
    credits: float | None  # None: not known
    longest_block_s: float  # so far, or by the plan
    costliest_block_credits: float  # so far


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentBudget:
    """What an experiment may take; None: no limit."""

    time_s: float | None = None
    credits: float | None = None


def next_step(
    design: ExperimentDesign,
    blocks: Sequence[BlockValues],
    found: Sequence[ArmComparison],
    progress: ExperimentProgress,
    budget: ExperimentBudget,
) -> ExperimentEnding | None:
    """None: another block. It begins only if the budget has room for the longest and costliest block so far."""
    if len(blocks) >= design.blocks_min and all(one.decision is not Decision.UNDECIDED for one in found):
        return ExperimentEnding.DECIDED
    if progress.begun >= design.blocks_max:
        return ExperimentEnding.BLOCKS
    if progress.lost_in_a_row >= LOST_BLOCKS_MAX:
        return ExperimentEnding.LOST_BLOCKS
    if budget.time_s is not None and progress.elapsed_s + progress.longest_block_s > budget.time_s:
        return ExperimentEnding.TIME
    spent = progress.credits or 0.0
    if budget.credits is not None and spent + progress.costliest_block_credits > budget.credits:
        return ExperimentEnding.CREDITS
    return None
