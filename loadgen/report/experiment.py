"""The result of an experiment as experiment.json and as text, and its progress while it runs. Pure.

Foreign text in the progress (names of arms) is unchanged: drawing makes it safe.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loadgen.log import printable
from loadgen.model.experiment import Decision, ExperimentMetric, ExperimentMetricKind
from loadgen.report import formatting
from loadgen.rules.experiment import (
    ERROR,
    ArmComparison,
    BlockValues,
    ExperimentBudget,
    ExperimentDesign,
    block_order,
    blocks_to_decide,
    compare_arms,
    dominated_arms,
)
from loadgen.rules.measurement import (
    Measurement,
    MeasurementFigures,
    MeasurementOutcome,
    complete_blocks,
    figures_document,
    warehouse_document,
)
from loadgen.rules.price import ExperimentMetering, metering_document, price_inside
from loadgen.rules.scenario_plan import format_span
from loadgen.units import counted
from loadgen.values import dataclass

SCHEMA_VERSION = 1
OUTSIDE_LIMITS = "outside the limits"
NO_BOUND = "no bound"
RUNNING = "running"  # the verdict of an experiment that a process leads
BLOCKS_SHOWN = 6  # newest blocks in the progress output
ANSWER_MAX = 10_000  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentFacts:
    """The input of a result document."""

    experiment_id: str
    name: str
    scenario: str
    design: ExperimentDesign
    limits: tuple[str, ...]
    credit_price: float
    currency: str
    rates_date: str
    started_at: str
    ended_at: str
    begun: int  # blocks
    measured: Sequence[Measurement]
    connections: Mapping[str, int]  # of arms with a closed loop, by arm
    only_connections_differ: bool  # between the arms
    verdict: str  # decided, undecided, cancelled, failed, invalid, running or unfinished
    exit_code: int
    reason: str

    @property
    def is_final(self) -> bool:
        """Whether this is the planned final check. It takes place once, after the last block."""
        return self.begun >= self.design.blocks_max and self.verdict != RUNNING


def experiment_document(facts: ExperimentFacts) -> dict[str, Any]:
    """experiment.json, schema version 1."""
    design = facts.design
    blocks = complete_blocks(design, facts.measured)
    found = compare_arms(design, blocks, final=facts.is_final)
    arms = _arms(facts, blocks)
    serving = [arm["arm"] for arm in arms if arm["serving"]]
    dominated = dominated_arms(design, found, serving)
    for arm in arms:
        by = (dominated or {}).get(arm["arm"], ())
        arm["dominated_by"] = list(by)
        arm["on_frontier"] = None if dominated is None else arm["serving"] and not by
    document = {
        "schema_version": SCHEMA_VERSION,
        "experiment_id": facts.experiment_id,
        "name": facts.name,
        "scenario": facts.scenario,
        "verdict": facts.verdict,
        "exit_code": facts.exit_code,
        "exit_reason": facts.reason,
        "answer": "",
        "started_at": facts.started_at,
        "ended_at": facts.ended_at,
        "reference": design.reference,
        "seed": design.seed,
        "error": ERROR,
        "blocks": {
            "minimum": design.blocks_min,
            "maximum": design.blocks_max,
            "begun": facts.begun,
            "complete": [block.number for block in blocks],
            "order": {str(number): list(block_order(design, number)) for number in range(1, facts.begun + 1)},
        },
        "metrics": {metric.text: margin for metric, margin in design.margins.items()},
        "limits": list(facts.limits),
        "price": {
            "estimated": True,
            "credit": facts.credit_price,
            "currency": facts.currency,
            "rates_date": facts.rates_date,
        },
        "credits": _total(one.billed for one in facts.measured),
        "only_connections_differ": facts.only_connections_differ,
        "arms": arms,
        "comparisons": [_comparison(one) for one in found],
        "measurements": [_measurement(one) for one in facts.measured],
    }
    document["answer"] = answer(document)
    return document


def with_metering(document: Mapping[str, Any], metering: ExperimentMetering) -> dict[str, Any]:
    """The document with metered credits, for each arm where they are known."""
    by_arm = metering.arms or {}
    arms = [{**arm, "metered_credits": by_arm.get(arm["arm"])} for arm in document["arms"]]
    return {**document, "arms": arms, "metering": metering_document(metering)}


def _arms(facts: ExperimentFacts, blocks: Sequence[BlockValues]) -> list[dict[str, Any]]:
    counted_blocks = {block.number for block in blocks}
    arms = []
    for name in facts.design.arms:
        mine = [one for one in facts.measured if one.arm == name]
        usable = [
            one.figures
            for one in mine
            if one.block in counted_blocks and one.outcome is MeasurementOutcome.OK and one.figures is not None
        ]
        inside = sum(one.inside for one in usable)
        prices = [price for one in usable if (price := one.price(facts.credit_price)) is not None]
        arms.append(
            {
                "arm": name,
                "connections": facts.connections.get(name),
                "warehouse": _warehouse(usable),
                "measurements": len(usable),
                "qps": _mean([one.qps for one in usable]),
                "latency_ms": {
                    key: _mean([one.latency_ms.get(key) for one in usable]) for key in ("p50", "p95", "p99")
                },
                "error_rate": math.fsum(one.error_rate for one in usable) / len(usable) if usable else None,
                "limits_held": inside,
                "serving": bool(usable) and 2 * inside > len(usable),
                "credits": _total(one.billed for one in mine),
                "price_per_1000": price_inside(prices, inside) if len(prices) == len(usable) else None,
            }
        )
    return arms


def _warehouse(usable: Sequence[MeasurementFigures]) -> dict[str, Any] | None:
    """The warehouse that polls saw, with the largest number of clusters; None: unknown, or its size changed."""
    seen = [one.warehouse for one in usable]
    if not seen or None in seen or len({(one.size, one.kind) for one in seen if one is not None}) > 1:
        return None
    return warehouse_document(max((one for one in seen if one is not None), key=lambda one: one.clusters))


def _mean(values: Sequence[float | None]) -> float | None:
    """The geometric mean, because ratios are compared; None if there are no values, or one is unknown."""
    known = [value for value in values if value]
    return math.exp(math.fsum(map(math.log, known)) / len(known)) if known and len(known) == len(values) else None


def _total(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) if known else None


def _comparison(one: ArmComparison) -> dict[str, Any]:
    return {
        "metric": one.metric.text,
        "a": one.a,
        "b": one.b,
        "margin": one.margin,
        "change": one.change,
        "low": one.low if one.low > -1 else None,
        "high": one.high if math.isfinite(one.high) else None,
        "decision": one.decision.value,
        "by_block": list(one.by_block),
    }


def _measurement(one: Measurement) -> dict[str, Any]:
    return {
        "block": one.block,
        "arm": one.arm,
        "attempt": one.attempt,
        "run_id": one.run_id,
        "outcome": one.outcome.value,
        "reason": one.reason,
        "seconds": round(one.seconds, 3),
        "credits": one.billed,
        "figures": None if one.figures is None else figures_document(one.figures),
    }


# --- text ------------------------------------------------------------------------------------------------------------


def answer(document: Mapping[str, Any]) -> str:
    """The answer of the experiment in a few sentences."""
    if not document["blocks"]["complete"]:
        return "No block is complete, so the arms cannot be compared."
    frontier = [arm["arm"] for arm in document["arms"] if arm["on_frontier"]]
    outside = [arm["arm"] for arm in document["arms"] if not arm["serving"]]
    parts = []
    if outside:
        parts.append(f"Outside the limits: {', '.join(outside)}.")
    if len(frontier) == 1 and len(document["arms"]) > len(outside) + 1:
        parts.append(
            f"{frontier[0]} is the best choice: every other arm inside the limits is dominated in price and"
            " response time."
        )
    elif len(frontier) == 1 and outside:
        parts.append(f"{frontier[0]} is the only arm inside the limits.")
    elif len(frontier) > 1 and document["verdict"] == "decided":
        parts.append(f"No arm is best in both price and response time: {', '.join(frontier)} are on the frontier.")
    for arm in document["arms"]:
        mine = [one for one in document["comparisons"] if (one["a"], one["b"]) == (document["reference"], arm["arm"])]
        parts += [comparison_sentence(*mine)] if mine else []
    return " ".join(parts)


def comparison_sentence(*results: Mapping[str, Any]) -> str:
    """One sentence that compares b with a in one metric or in several, which may disagree."""
    return f"{results[0]['b']} compared with {results[0]['a']}: {', '.join(map(_decision_words, results))}."


def _decision_words(one: Mapping[str, Any]) -> str:
    name, interval = ExperimentMetric.parse(one["metric"]).text, interval_text(one["low"], one["high"])
    match Decision(one["decision"]):
        case Decision.EQUIVALENT:
            return f"equivalent in {name} (they differ by less than {100 * one['margin']:.3g} %)"
        case Decision.UNDECIDED:
            return f"not decided in {name} ({interval})"
        case Decision.OUTSIDE:
            return f"not compared in {name} (an arm outside the limits has none)"
    change = "" if one["change"] is None else f"{_change_words(one['change'])}, "
    return f"{one['decision']} in {name} ({change}{interval})"


def _change_words(change: float) -> str:
    return f"{100 * abs(change):.1f} % {'higher' if change > 0 else 'lower'}"


def interval_text(low: float | None, high: float | None) -> str:
    """The bounds of a change; None: there is no bound on this side."""
    if low is None:
        return NO_BOUND if high is None else f"at most {change_text(high)}"
    return f"at least {change_text(low)}" if high is None else f"{change_text(low)} to {change_text(high)}"


def change_text(value: float) -> str:
    return f"{100 * value:+z.1f} %"


def confidence_text(document: Mapping[str, Any]) -> str:
    """The probability with which all intervals of the experiment hold."""
    return f"{100 * (1 - document['error']):.3g} %"


def value_text(metric: ExperimentMetric, value: float | None, currency: str) -> str:
    """The value with its unit."""
    if value is None:
        return formatting.NONE
    if metric.kind is ExperimentMetricKind.PRICE:
        return f"{value:.3g} {printable(currency, 10)}"
    return f"{formatting.rate(value)}/s" if metric.kind is ExperimentMetricKind.QPS else f"{formatting.ms(value)} ms"


_ARM_HEAD = ("arm", "blocks", "qps", "p50 ms", "p95 ms", "p99 ms", "error rate", "inside", "credits")
_PAIR_HEAD = ("metric", "arm", "compared with", "change", "interval", "margin", "decision")


def experiment_text(document: Mapping[str, Any]) -> str:
    """Verdict, answer, and numbers."""
    blocks, currency = document["blocks"], printable(document["price"]["currency"], 10)
    complete = counted(len(blocks["complete"]), "complete block")
    name, experiment_id = printable(document["name"], 80), printable(document["experiment_id"], 60)
    head = f"{document['verdict'].upper()}  {name}  experiment {experiment_id}"
    lines = [f"{head}: {printable(document['exit_reason'], 500)}", f"  {printable(document['answer'], ANSWER_MAX)}", ""]
    price = f"price of 1,000 in {currency}"
    head_of_arms = (*credits_head(_ARM_HEAD, document), price, "frontier")
    arms: list[tuple[str, ...]] = [head_of_arms, *map(_arm_row, document["arms"])]
    lines += formatting.aligned(arms, left=(0, len(arms[0]) - 1))
    lines.append("")
    pairs = [_PAIR_HEAD, *(_pair_row(one) for one in document["comparisons"])]
    lines += formatting.aligned(pairs, left=(0, 1, 2, 6))
    lines.append("")
    lines.append(
        f"{complete} of {blocks['begun']} begun, at most {blocks['maximum']}. Intervals hold simultaneously,"
        f" after every block, with {confidence_text(document)} probability."
    )
    if document["credits"] is not None:
        rates = f"rates of {printable(document['price']['rates_date'], 40)}"
        lines.append(f"Credits and prices are estimated from polls of the warehouse ({rates}).")
    if (metered := metering_text(document)) is not None:
        lines.append(printable(metered, 1_000))
    return "\n".join(lines)


def _arm_row(arm: Mapping[str, Any]) -> tuple[str, ...]:
    return (printable(arm["arm"], 40), *arm_numbers(arm), frontier_text(arm))


def arm_numbers(arm: Mapping[str, Any], *, unit: str = "") -> tuple[str, ...]:
    """The numbers of an arm, from blocks to the price of 1,000 statements. `unit` follows each latency."""
    times = [formatting.ms(arm["latency_ms"][name]) for name in ("p50", "p95", "p99")]
    price, credits = arm["price_per_1000"], arm["credits"]
    return (
        str(arm["measurements"]),
        formatting.rate(arm["qps"]),
        *(time if time == formatting.NONE else f"{time}{unit}" for time in times),
        formatting.percent(arm["error_rate"]),
        f"{arm['limits_held']} of {arm['measurements']}",
        credits_text(credits),
        *metered_cell(arm),
        formatting.NONE if price is None else f"{price:.3g}",
    )


def credits_text(credits: float | None) -> str:
    return formatting.NONE if credits is None else f"{credits:.4f}"


def credits_head(head: Sequence[str], document: Mapping[str, Any]) -> tuple[str, ...]:
    """The head of a table of arms, whose last column is credits, with a column for metered credits if known."""
    return (*head[:-1], "estimated credits", "metered") if document.get("metering") else tuple(head)


def metered_cell(arm: Mapping[str, Any]) -> tuple[str, ...]:
    """The metered credits; empty if metering was not read."""
    if "metered_credits" not in arm:
        return ()
    return (credits_text(arm["metered_credits"]),)


def metering_text(document: Mapping[str, Any]) -> str | None:
    """Metered and estimated credits in a sentence or two; None: metering was not read."""
    metering = document.get("metering")
    if not metering:
        return None
    estimated = credits_text(document["credits"])
    sentences = [
        f"Metered: {metering['credits']:.4f} credits of {', '.join(metering['warehouses'])} in"
        f" {counted(metering['hours'], 'whole hour')}, including all other use; estimated: {estimated}."
    ]
    if metering["note"]:
        sentences.append(f"{metering['note'][:1].upper()}{metering['note'][1:]}.")
    if not metering["complete"]:
        sentences.append("The value may still change, because metering is up to 3 hours late.")
    return " ".join(sentences)


def frontier_text(arm: Mapping[str, Any]) -> str:
    """The position of an arm relative to the frontier of price and latency; empty without a price."""
    if arm["on_frontier"] is None or not arm["measurements"]:
        return ""
    if arm["dominated_by"]:
        return f"dominated by {', '.join(map(printable, arm['dominated_by']))}"
    return "on it" if arm["on_frontier"] else OUTSIDE_LIMITS


def _pair_row(one: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        printable(one["metric"], 60),
        printable(one["b"], 40),
        printable(one["a"], 40),
        formatting.NONE if one["change"] is None else change_text(one["change"]),
        interval_text(one["low"], one["high"]),
        f"{100 * one['margin']:.1f} %",
        one["decision"],
    )


def block_lines(design: ExperimentDesign, blocks: Sequence[BlockValues], currency: str) -> list[str]:
    """The values of the newest blocks, one line for each metric and arm."""
    shown = blocks[-BLOCKS_SHOWN:]
    if not shown:
        return []
    titles = {(metric, arm): f"{metric.text} of {arm}" for metric in design.margins for arm in design.arms}
    width = max(map(len, titles.values()))
    numbers = ", ".join(str(block.number) for block in shown)
    return [f"measured in {'block' if len(shown) == 1 else 'blocks'} {numbers}:"] + [
        f"  {title:<{width}}  " + "  ".join(_block_text(metric, block, arm, currency) for block in shown)
        for (metric, arm), title in titles.items()
    ]


def _block_text(metric: ExperimentMetric, block: BlockValues, arm: str, currency: str) -> str:
    if metric.kind is ExperimentMetricKind.PRICE and arm in block.outside:
        return OUTSIDE_LIMITS
    return value_text(metric, block.values[arm][metric], currency)


# --- progress: for the live view and for lines -----------------------------------------------------------------------

BLOCKS_MAX = 40  # newest blocks; a screen shows fewer
PENDING, NOW, UNUSABLE = "·", "…", "✗"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairStatus:
    """One comparison: its interval and its decision."""

    text: str
    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentStatus:
    """The progress of an experiment while one of its runs is executed."""

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
        pairs=_pair_statuses(design, found),
    )


def _pair_statuses(design: ExperimentDesign, found: Sequence[ArmComparison]) -> tuple[PairStatus, ...]:
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
    """A comparison in one line: difference, interval, and decision or the expected number of blocks to it."""
    low = one.low if one.low > -1 else None
    high = one.high if math.isfinite(one.high) else None
    name = f"{one.metric.text} {one.b} / {one.a}"
    if not one.by_block:
        return f"{name}: no block yet"
    interval = "no bound yet" if low is None and high is None else interval_text(low, high)
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
    """Time and credits spent, with their budgets if there are any."""
    time = format_span(round(seconds)) if seconds >= 1 else "0s"
    time_limit = f" of {format_span(budget.time_s)}" if budget.time_s is not None else ""
    credits_limit = f" of {budget.credits:g}" if budget.credits is not None else ""
    return f"{time}{time_limit}, {credits:.3g}{credits_limit} credits"
