"""Experiments: the order of measurements, the comparison of every pair of arms, and when to stop. Pure.

Each block measures every arm once, in random order. Differences are logarithms of ratios within a block, so an effect
that all arms of a block share cancels. The error of an experiment is divided among all pairs and metrics (Bonferroni).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from loadgen.log import printable
from loadgen.model.experiment import Decision, ExperimentEnding, ExperimentMetric, ExperimentMetricKind
from loadgen.model.warehouse import SIZES
from loadgen.rules.confidence_intervals import (
    ABOVE,
    BELOW,
    WITHIN,
    confidence_sequence,
    half_width,
    is_mostly,
    judge,
    minimum_detectable_difference,
)
from loadgen.rules.price import (
    PlannedWarehouse,
    planned_warehouse,
    standard_warehouse,
    worst_case_credits,
)
from loadgen.rules.scenario_plan import SHOWN_SIZES, CostEstimate, ScenarioPlan, format_span, plan
from loadgen.scenario.experiment import ArmSection, ExperimentFile, LoadedExperiment
from loadgen.scenario.model import Scenario
from loadgen.units import counted
from loadgen.values import dataclass

ERROR = 0.05  # probability of any wrong decision in an experiment, over all pairs and metrics
PERCENTILE_RESOLUTION = math.log(1.01)  # a percentile is exact to 1 %, half of a bucket
LIMITS_PART = 0.05  # of the error, for deciding which arms are outside the limits, if prices are compared
LOST_BLOCKS_MAX = 2  # consecutive


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentDesign:
    """The decisions that are made before the first measurement."""

    arms: tuple[str, ...]
    reference: str
    margins: Mapping[ExperimentMetric, float]  # fractions
    blocks_min: int
    blocks_max: int
    seed: int
    has_limits: bool = False

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """(a, b): b is compared with a. The reference is always a."""
        others = [arm for arm in self.arms if arm != self.reference]
        return tuple(combinations((self.reference, *others), 2))

    @property
    def error_each(self) -> float:
        """The error of one pair in one metric."""
        has_price = any(metric.kind is ExperimentMetricKind.PRICE for metric in self.margins)
        part = 1.0 - LIMITS_PART if self.has_limits and has_price else 1.0
        return ERROR * part / (len(self.pairs) * len(self.margins))

    @property
    def error_outside(self) -> float:
        """The error of calling one arm outside the limits."""
        return ERROR * LIMITS_PART / len(self.arms)

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
        has_limits=bool(file.limits),
    )


def makes_warehouse(arm: ArmSection) -> bool:
    """Whether the experiment creates the warehouse of the arm."""
    return arm.warehouse is not None and arm.warehouse.create


def block_order(design: ExperimentDesign, block: int) -> tuple[str, ...]:
    """The arms of a block in the order in which they are measured: the same seed gives the same order everywhere."""

    def rank(arm: str) -> bytes:
        return hashlib.sha256(f"{design.seed}\0{block}\0{arm}".encode()).digest()

    return tuple(sorted(design.arms, key=rank))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockValues:
    """A complete block: a positive number for every arm and metric. The price is that of all statements."""

    number: int
    values: Mapping[str, Mapping[ExperimentMetric, float]]  # by arm
    outside: frozenset[str] = frozenset()  # arms that broke a limit


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmComparison:
    """Arm b compared with arm a in one metric. Changes are fractions: 0.05 means that b is 5 % above a.

    A price is that of statements inside the limits: the credits of a measurement outside them count, its statements do
    not. So the price of an arm that broke its limits is at least what its statements cost, and has no upper bound.
    """

    metric: ExperimentMetric
    a: str
    b: str
    margin: float
    change: float | None  # None: there is no block yet, or an arm was never inside the limits
    low: float  # -1: no lower bound
    high: float  # inf: no upper bound
    decision: Decision  # about b, compared with a
    by_block: tuple[float, ...]  # the change in each block; a price is that of all statements
    broken: tuple[int, int] = (0, 0)  # for prices: blocks in which a and b were outside the limits


def compare_arms(design: ExperimentDesign, blocks: Sequence[BlockValues], *, final: bool) -> tuple[ArmComparison, ...]:
    """Compare every pair in every metric. `final`: all planned blocks are done, so this is the planned final check."""
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
        _comparison(design, metric, (a, b), logs[number].tolist(), bounds[number], blocks)
        for number, (metric, a, b) in enumerate(wanted)
    )


def _comparison(
    design: ExperimentDesign,
    metric: ExperimentMetric,
    pair: tuple[str, str],
    logs: Sequence[float],
    bounds: tuple[float, float],
    blocks: Sequence[BlockValues],
) -> ArmComparison:
    low, high = bounds
    margin, breaks = design.margins[metric], [[False] * len(blocks)] * 2
    if metric.kind is ExperimentMetricKind.PRICE:
        breaks = [[arm in block.outside for block in blocks] for arm in pair]
        low, high = -math.inf if any(breaks[0]) else low, math.inf if any(breaks[1]) else high
    inside_a, inside_b = (each.count(False) for each in breaks)
    is_outside = any(any(each) and is_mostly(each, design.error_outside) for each in breaks)
    verdict = int(judge(np.array(low), np.array(high), margin))
    known = math.fsum(logs) / len(logs) + math.log(inside_a / inside_b) if inside_a and inside_b else None
    return ArmComparison(
        metric=metric,
        a=pair[0],
        b=pair[1],
        margin=margin,
        change=None if known is None else math.expm1(known),
        low=math.expm1(low),
        high=math.expm1(high) if high < math.inf else math.inf,
        decision=Decision.OUTSIDE if is_outside else _decision(verdict, metric),
        by_block=tuple(map(math.expm1, logs)),
        broken=(breaks[0].count(True), breaks[1].count(True)),
    )


def blocks_to_decide(design: ExperimentDesign, one: ArmComparison) -> int | None:
    """The estimated number of complete blocks that decides this pair, if later blocks resemble those so far; None: more
    than the maximum, or fewer than two blocks so far."""
    logs = np.log1p(np.array(one.by_block))
    if len(logs) < 2:
        return None
    mean, deviation, edge = float(logs.mean()), float(logs.std(ddof=1)), math.log1p(one.margin)
    has_bound = not one.broken[0 if mean > 0 else 1]  # an arm outside the limits is never the cheaper one
    for blocks in range(len(logs) + 1, design.blocks_max + 1):
        reach = half_width(blocks, design.error_each, last=blocks == design.blocks_max) * deviation
        if (reach < abs(mean) and has_bound) or (abs(mean) + reach < edge and not any(one.broken)):
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
    """The progress of an experiment, after a block or before the first one."""

    begun: int  # blocks, also those that do not count
    lost_in_a_row: int
    elapsed_s: float
    credits: float | None  # None: not known
    longest_block_s: float  # so far, or by the plan
    costliest_block_credits: float  # so far, or by the plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentBudget:
    """The limits of an experiment; None: no limit."""

    time_s: float | None = None
    credits: float | None = None


def next_step(
    design: ExperimentDesign,
    blocks: Sequence[BlockValues],
    found: Sequence[ArmComparison],
    progress: ExperimentProgress,
    budget: ExperimentBudget,
) -> ExperimentEnding | None:
    """Why the experiment ends; None: another block begins. The budget must have room for the longest and the most
    expensive block so far."""
    if len(blocks) >= design.blocks_min and all(one.decision is not Decision.UNDECIDED for one in found):
        return ExperimentEnding.DECIDED
    if progress.lost_in_a_row >= LOST_BLOCKS_MAX:  # also after the last blocks: their failures are the result
        return ExperimentEnding.LOST_BLOCKS
    if progress.begun >= design.blocks_max:
        return ExperimentEnding.BLOCKS
    if budget.time_s is not None and progress.elapsed_s + progress.longest_block_s > budget.time_s:
        return ExperimentEnding.TIME
    spent = progress.credits or 0.0
    if budget.credits is not None and spent + progress.costliest_block_credits > budget.credits:
        return ExperimentEnding.CREDITS
    return None


# What `loadgen experiment --dry-run` shows: order, time, worst-case credits, detectable difference. Pure.

SHOWN_BLOCKS = 5
REPEATS = 2  # a measurement that cannot be used is repeated once
NOISE = 0.03  # assumed deviation of a measurement, for the detectable difference


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCredits:
    """Credits of the warehouses under test in the worst case: all blocks, with every measurement repeated and the
    full drain time. Query acceleration is not included, because its credits cannot be estimated."""

    by_arm: Mapping[str, float]  # arms whose size is in the file
    by_size: Mapping[str, float]  # of all arms, if those without a size in the file had this one; empty: there are none
    block: float | None  # of one block as planned; None: a size is not known
    accelerated: tuple[str, ...]  # arms with query acceleration

    @property
    def total(self) -> float | None:
        """Credits of all arms; None: a size is not known."""
        return None if self.by_size else math.fsum(self.by_arm.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentPlan:
    """Times are seconds."""

    name: str
    arms: tuple[str, ...]
    comparisons: int
    orders: tuple[tuple[str, ...], ...]  # of the first blocks
    blocks_min: int
    blocks_max: int
    budget: ExperimentBudget
    block_s: float  # wash-out, warm-up and measurement of all arms, without preparation and start
    longest_s: float  # all blocks, with every measurement repeated and the full drain time
    credits: PlannedCredits | None  # None: nothing is billed
    error_each: float  # of one comparison

    @property
    def blocks_in_time(self) -> int:
        """The number of blocks for which the budget has time."""
        is_limited = self.budget.time_s is not None and self.block_s
        return min(self.blocks_max, int((self.budget.time_s or 0.0) // self.block_s)) if is_limited else self.blocks_max

    @property
    def blocks_in_credits(self) -> int:
        """The number of blocks for which the budget has credits; None: the cost of a block is not known."""
        limit, each = self.budget.credits, None if self.credits is None else self.credits.block
        return self.blocks_max if limit is None or not each else min(self.blocks_max, int(limit / each + 1e-9))

    @property
    def blocks_possible(self) -> int:
        return min(self.blocks_in_time, self.blocks_in_credits)

    @property
    def detectable(self) -> float:
        """The difference that nine of ten experiments detect in the blocks that the budget allows, with noise of 3 %.
        The planned final check, which detects most, comes only after all planned blocks."""
        is_last = self.blocks_possible == self.blocks_max
        return minimum_detectable_difference(self.blocks_possible, self.error_each, NOISE, last=is_last)


def plan_loaded_experiment(loaded: LoadedExperiment, *, cores: int, connection: str | None = None) -> ExperimentPlan:
    """The plan of an experiment on a machine with this number of cores."""
    scenarios = loaded.scenarios(cores, connection)
    arms = {name: plan(replace(arm, scenario=scenarios[name]), cores=cores) for name, arm in loaded.arms.items()}
    return plan_experiment(loaded.file, design_of(loaded.file), scenarios, arms)


def plan_experiment(
    file: ExperimentFile, design: ExperimentDesign, scenarios: Mapping[str, Scenario], plans: Mapping[str, ScenarioPlan]
) -> ExperimentPlan:
    loads = [one.load for one in scenarios.values()]
    block_s = sum(file.washout_s + load.warmup_s + (load.duration_s or 0.0) for load in loads)
    drains_s = sum(one.timing.drain_s for one in scenarios.values())
    costs = {name: plan.cost for name, plan in plans.items() if plan.cost is not None}
    return ExperimentPlan(
        name=file.name,
        arms=design.arms,
        comparisons=len(design.pairs) * len(design.margins),
        orders=tuple(block_order(design, number) for number in range(1, min(SHOWN_BLOCKS, design.blocks_max) + 1)),
        blocks_min=design.blocks_min,
        blocks_max=design.blocks_max,
        budget=ExperimentBudget(time_s=file.budget.time_s, credits=file.budget.credits),
        block_s=block_s,
        longest_s=(block_s + drains_s) * design.blocks_max * REPEATS,
        credits=_credits(file, scenarios, costs, design.blocks_max * REPEATS) if costs else None,
        error_each=design.error_each,
    )


def _credits(
    file: ExperimentFile, scenarios: Mapping[str, Scenario], costs: Mapping[str, CostEstimate], measurements: int
) -> PlannedCredits:
    rates = file.price.table
    worst, planned = {}, {}
    for name, cost in costs.items():
        warehouse, load = _warehouse(file.arms[name], None), scenarios[name].load
        each = worst_case_credits(warehouse, cost.longest_s, rates)
        once = worst_case_credits(warehouse, load.warmup_s + (load.duration_s or 0.0), rates)
        if each is not None and once is not None:
            worst[name], planned[name] = measurements * each, once
    by_size = {}
    for size in SIZES[:SHOWN_SIZES] if len(worst) < len(costs) else ():
        others = [
            worst_case_credits(_warehouse(file.arms[name], size), cost.longest_s, rates) or 0.0
            for name, cost in costs.items()
            if name not in worst
        ]
        by_size[size] = math.fsum([*worst.values(), *(measurements * each for each in others)])
    return PlannedCredits(
        by_arm=worst,
        by_size=by_size,
        block=None if by_size else math.fsum(planned.values()),
        accelerated=tuple(name for name in costs if file.arms[name].settings.get("query_acceleration")),
    )


def _warehouse(arm: ArmSection, size: str | None) -> PlannedWarehouse | None:
    """The warehouse of an arm, if an existing one has this size."""
    return planned_warehouse(arm.settings, standard_warehouse(size), is_made=makes_warehouse(arm))


def experiment_plan_text(plan: ExperimentPlan) -> str:
    """The plan as text."""
    lines = [
        f"{printable(plan.name)}: {counted(len(plan.arms), 'arm')}, {counted(plan.comparisons, 'comparison')}",
        "",
        f"Order of the arms, the first {len(plan.orders)} of at most {counted(plan.blocks_max, 'block')}",
    ]
    lines += [f"  block {number}: {', '.join(map(printable, order))}" for number, order in enumerate(plan.orders, 1)]
    lines += [
        "",
        "Time",
        f"  A block takes about {format_span(round(plan.block_s))}, plus the start of one run for each arm.",
        f"  {counted(plan.blocks_min, 'block')} at least, about {format_span(round(plan.block_s * plan.blocks_min))};"
        f" all {plan.blocks_max}, about {format_span(round(plan.block_s * plan.blocks_max))}.",
        f"  At most {format_span(round(plan.longest_s))}: every measurement repeated, each with the full drain time.",
        *_time_left(plan),
        "",
        "Credits",
    ]
    lines += _credits_text(plan)
    lines += ["", "Detectable difference", *_detectable_text(plan)]
    return "\n".join(lines)


def _time_left(plan: ExperimentPlan) -> list[str]:
    if plan.budget.time_s is None:
        return []
    limit = f"budget.time, {format_span(round(plan.budget.time_s))}"
    return [_room(limit, plan.blocks_in_time, plan.blocks_min)]


def _room(limit: str, blocks: int, needed: int) -> str:
    room = f"  {limit}, has room for {counted(blocks, 'block')} at most"
    return f"{room}." if blocks >= needed else f"{room}, and {needed} are needed to decide."


def _credits_text(plan: ExperimentPlan) -> list[str]:
    credits, limit = plan.credits, plan.budget.credits
    if credits is None:
        return ["  None: the embedded server runs on this machine."]
    lines = []
    if credits.by_arm:
        arms = ", ".join(f"{printable(arm)} {each:.2f}" for arm, each in credits.by_arm.items())
        total = "" if credits.total is None else f"; together {credits.total:.2f}"
        lines.append(f"  In the worst case, by arm: {arms}{total}.")
    if credits.by_size:
        sizes = ", ".join(f"{size} {each:.2f}" for size, each in credits.by_size.items())
        who = "every other arm" if credits.by_arm else "every arm"
        lines.append(f"  In the worst case, if {who} had a warehouse of this size: {sizes}.")
    if credits.block is not None:
        lines.append(f"  A block takes about {credits.block:.2f}, plus what its warehouses cost while they are idle.")
    if limit is not None and credits.block is not None:
        lines.append(_room(f"budget.credits, {limit:g}", plan.blocks_in_credits, plan.blocks_min))
    elif limit is not None:
        lines.append(f"  budget.credits is {limit:g}: no block is begun that may exceed it.")
    if credits.accelerated:
        arms = ", ".join(map(printable, credits.accelerated))
        lines.append(f"  Without query acceleration, which is on for {arms}: its credits are not estimated.")
    return lines


def _detectable_text(plan: ExperimentPlan) -> list[str]:
    blocks, is_short = plan.blocks_possible, plan.blocks_possible < plan.blocks_max
    within = f"{'the ' if is_short else ''}{counted(blocks, 'block')}{' that the budget allows' if is_short else ''}"
    if plan.detectable == math.inf:
        lines = [f"  None within {within}."]
    else:
        lines = [
            f"  If measurements vary by {100 * NOISE:.3g} %, nine of ten experiments detect a difference of"
            f" {100 * plan.detectable:.1f} % within {within}; larger ones sooner."
        ]
    if is_short and blocks >= max(plan.blocks_min, 2):
        better = minimum_detectable_difference(blocks, plan.error_each, NOISE, last=True)
        lines.append(
            f"  With blocks.maximum: {blocks} the planned final check would be after them: {100 * better:.1f} %."
        )
    return lines


def experiment_plan_data(plan: ExperimentPlan) -> dict[str, Any]:
    """The plan as JSON data."""
    return {
        "name": plan.name,
        "arms": list(plan.arms),
        "comparisons": plan.comparisons,
        "orders": [list(order) for order in plan.orders],
        "blocks": {"minimum": plan.blocks_min, "maximum": plan.blocks_max},
        "block_seconds": plan.block_s,
        "longest_seconds": plan.longest_s,
        "credits": None
        if plan.credits is None
        else {
            "by_arm": dict(plan.credits.by_arm),
            "total": plan.credits.total,
            "by_size": dict(plan.credits.by_size),
            "block": plan.credits.block,
            "without_query_acceleration_of": list(plan.credits.accelerated),
        },
        "blocks_in_budget": plan.blocks_possible,
        "found_at_3_percent_noise": plan.detectable if math.isfinite(plan.detectable) else None,
    }
