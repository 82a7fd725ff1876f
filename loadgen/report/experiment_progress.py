"""How far an experiment is, for the live view and for lines: arms × blocks, every interval, the budget. Pure.

Foreign text (names of arms) is unchanged here: drawing makes it safe.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from loadgen.model.experiment import Decision, ExperimentMetricKind
from loadgen.report.experiment import OUTSIDE_LIMITS, change_text, value_text
from loadgen.rules.experiment import ArmComparison, ExperimentBudget, ExperimentDesign, blocks_to_decide
from loadgen.rules.measurement import Measurement, MeasurementOutcome
from loadgen.rules.scenario_plan import format_span
from loadgen.units import counted
from loadgen.values import dataclass

BLOCKS_MAX = 40  # newest blocks; a screen shows fewer
PENDING, NOW, UNUSABLE = "·", "…", "✗"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairStatus:
    """One comparison: its interval, and what would decide it."""

    text: str
    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentStatus:
    """Everything that is shown of an experiment while one of its runs goes on."""

    headline: str
    spent: str
    blocks: tuple[int, ...]  # numbers, oldest first
    rows: tuple[tuple[str, tuple[str, ...]], ...]  # metric and arm, and the value of each block
    pairs: tuple[PairStatus, ...]  # open ones first


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredNow:
    block: int
    arm: str
    attempt: int


def experiment_status(
    design: ExperimentDesign,
    measured: Sequence[Measurement],
    found: Sequence[ArmComparison],
    now: MeasuredNow,
    *,
    spent: str,
    currency: str,
) -> ExperimentStatus:
    blocks = tuple(range(max(1, now.block - BLOCKS_MAX + 1), now.block + 1))
    again = ", again" if now.attempt > 1 else ""
    decided = sum(one.decision is not Decision.UNDECIDED for one in found)
    return ExperimentStatus(
        headline=f"block {now.block} of {design.blocks_max}, arm {now.arm}{again}; {decided} of {len(found)} decided",
        spent=spent,
        blocks=blocks,
        rows=_rows(design, measured, blocks, now, currency),
        pairs=_pairs(design, found),
    )


def _pairs(design: ExperimentDesign, found: Sequence[ArmComparison]) -> tuple[PairStatus, ...]:
    if not any(one.by_block for one in found):
        text = f"no complete block yet, so {counted(len(found), 'comparison')} without an interval"
        return (PairStatus(text=text, decision=Decision.UNDECIDED),)
    return tuple(
        PairStatus(text=pair_text(design, one), decision=one.decision)
        for one in sorted(found, key=lambda one: one.decision is not Decision.UNDECIDED)
    )


def _rows(
    design: ExperimentDesign, measured: Sequence[Measurement], blocks: Sequence[int], now: MeasuredNow, currency: str
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    last = {(one.block, one.arm): one for one in sorted(measured, key=lambda one: one.attempt)}
    rows = []
    for metric in design.margins:
        for arm in design.arms:
            cells = []
            for block in blocks:
                one = last.get((block, arm))
                if (block, arm) == (now.block, now.arm):
                    cells.append(NOW)
                elif one is None:
                    cells.append(PENDING)
                elif one.outcome is not MeasurementOutcome.OK or one.figures is None:
                    cells.append(UNUSABLE)
                elif metric.kind is ExperimentMetricKind.PRICE and not one.figures.inside:
                    cells.append(OUTSIDE_LIMITS)
                else:
                    cells.append(value_text(metric, one.figures.values.get(metric.text), currency))
            rows.append((f"{metric.text} of {arm}", tuple(cells)))
    return tuple(rows)


def pair_text(design: ExperimentDesign, one: ArmComparison) -> str:
    """A comparison in a line: difference, interval, decision, or the number of blocks that would decide it."""
    low = one.low if one.low > -1 else None
    high = one.high if math.isfinite(one.high) else None
    name = f"{one.metric.text} {one.b} / {one.a}"
    if not one.by_block:
        return f"{name}: no block yet"
    if low is None and high is None:
        interval = "no bound yet"
    else:
        interval = f"{change_text(low)} to {change_text(high)}"
    change = "" if one.change is None else f"{change_text(one.change)} "
    return f"{name}: {change}({interval}), {_outlook(design, one)}"


def _outlook(design: ExperimentDesign, one: ArmComparison) -> str:
    if one.decision is Decision.OUTSIDE:
        return OUTSIDE_LIMITS
    if one.decision is not Decision.UNDECIDED:
        return str(one.decision)
    if len(one.by_block) < 2:
        return "open"
    needed = blocks_to_decide(design, one)
    return f"not by {counted(design.blocks_max, 'block')}" if needed is None else f"about {needed} blocks"


def spent_text(seconds: float, credits: float, budget: ExperimentBudget) -> str:
    """Time and credits, each against its budget where there is one."""
    time = format_span(round(seconds)) if seconds >= 1 else "0s"
    time_limit = f" of {format_span(budget.time_s)}" if budget.time_s is not None else ""
    credits_limit = f" of {budget.credits:g}" if budget.credits is not None else ""
    return f"{time}{time_limit}, {credits:.3g}{credits_limit} credits"
