"""What `loadgen experiment --dry-run` shows: order, time, worst-case credits, detectable difference. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadgen.log import printable
from loadgen.rules.confidence import minimum_detectable_difference
from loadgen.rules.experiment import ExperimentDesign, block_order
from loadgen.rules.scenario_plan import CostEstimate, ScenarioPlan, format_span
from loadgen.scenario.experiment import ExperimentFile
from loadgen.scenario.model import Scenario
from loadgen.units import counted

SHOWN_BLOCKS = 5
REPEATS = 2  # a measurement that cannot be used is repeated once
NOISE = 0.03  # assumed deviation of a measurement, for the detectable difference


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentPlan:
    """Times are seconds; credits are those of the warehouses under test, by their size."""

    name: str
    arms: tuple[str, ...]
    comparisons: int
    orders: tuple[tuple[str, ...], ...]  # of the first blocks
    blocks_min: int
    blocks_max: int
    time_s: float | None  # that the experiment may take
    block_s: float  # wash-out, warm-up and measurement of all arms, without preparation and start
    longest_s: float  # all blocks, with every measurement repeated and the full drain time
    credits_max: tuple[tuple[str, float], ...] | None  # by size; None: nothing is billed
    detectable: float  # the difference that nine of ten experiments detect, with noise of 3 %


def plan_experiment(
    file: ExperimentFile, design: ExperimentDesign, scenarios: Mapping[str, Scenario], plans: Mapping[str, ScenarioPlan]
) -> ExperimentPlan:
    loads = [one.load for one in scenarios.values()]
    block_s = sum(file.washout_s + load.warmup_s + (load.duration_s or 0.0) for load in loads)
    measurements = design.blocks_max * REPEATS
    drains_s = sum(one.timing.drain_s for one in scenarios.values())
    costs = [plan.cost for plan in plans.values()]
    known = [cost for cost in costs if cost is not None]
    return ExperimentPlan(
        name=file.name,
        arms=design.arms,
        comparisons=len(design.pairs) * len(design.margins),
        orders=tuple(block_order(design, number) for number in range(1, min(SHOWN_BLOCKS, design.blocks_max) + 1)),
        blocks_min=design.blocks_min,
        blocks_max=design.blocks_max,
        time_s=file.budget.time_s,
        block_s=block_s,
        longest_s=(block_s + drains_s) * measurements,
        credits_max=_credits(known, measurements) if known else None,
        detectable=minimum_detectable_difference(design.blocks_max, design.error_each, NOISE),
    )


def _credits(costs: list[CostEstimate], measurements: int) -> tuple[tuple[str, float], ...]:
    sizes = [size for size, _ in costs[0].by_size]
    return tuple((size, measurements * sum(dict(cost.by_size)[size] for cost in costs)) for size in sizes)


def experiment_plan_text(plan: ExperimentPlan) -> str:
    """As text."""
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
    if plan.credits_max is None:
        lines.append("  None: the embedded server runs on this machine.")
    else:
        sizes = ", ".join(f"{size} {credits:.2f}" for size, credits in plan.credits_max)
        lines.append(f"  In the worst case, if every arm had a warehouse of this size: {sizes}.")
    lines += [
        "",
        "Detectable difference",
        f"  If measurements vary by {NOISE:.0%}, nine of ten experiments detect a difference of {plan.detectable:.1%}"
        f" within {counted(plan.blocks_max, 'block')}; larger ones sooner.",
    ]
    return "\n".join(lines)


def _time_left(plan: ExperimentPlan) -> list[str]:
    if plan.time_s is None:
        return []
    blocks = min(plan.blocks_max, int(plan.time_s // plan.block_s)) if plan.block_s else plan.blocks_max
    told = f"  budget.time, {format_span(round(plan.time_s))}, has room for {counted(blocks, 'block')} at most"
    return [f"{told}." if blocks >= plan.blocks_min else f"{told}, and {plan.blocks_min} are needed to decide."]


def experiment_plan_data(plan: ExperimentPlan) -> dict[str, Any]:
    """As JSON."""
    return {
        "name": plan.name,
        "arms": list(plan.arms),
        "comparisons": plan.comparisons,
        "orders": [list(order) for order in plan.orders],
        "blocks": {"minimum": plan.blocks_min, "maximum": plan.blocks_max},
        "block_seconds": plan.block_s,
        "longest_seconds": plan.longest_s,
        "credits_max": None if plan.credits_max is None else dict(plan.credits_max),
        "found_at_3_percent_noise": plan.detectable,
    }
