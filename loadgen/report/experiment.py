"""The result of an experiment as experiment.json and as text. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.log import printable
from loadgen.model.experiment import Decision, ExperimentMetric, ExperimentMetricKind
from loadgen.report import formatting
from loadgen.rules.experiment import (
    ERROR,
    ArmComparison,
    BlockValues,
    ExperimentDesign,
    block_order,
    blocks_to_decide,
    compare_arms,
    dominated_arms,
)
from loadgen.rules.measurement import Measurement, MeasurementOutcome, complete_blocks, figures_document
from loadgen.rules.price import price_per_thousand
from loadgen.units import counted

SCHEMA_VERSION = 1
NO_BOUND = "no bound yet"
BLOCKS_SHOWN = 6  # newest blocks in the progress output


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentFacts:
    """The input of a result."""

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
    verdict: str  # decided, undecided, cancelled, failed or invalid
    exit_code: int
    reason: str

    @property
    def is_final(self) -> bool:
        return self.begun >= self.design.blocks_max


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
        "arms": arms,
        "comparisons": [_comparison(one) for one in found],
        "measurements": [_measurement(one) for one in facts.measured],
    }
    document["answer"] = answer(document)
    return document


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
        served = [one.served for one in usable if one.served is not None]
        arms.append(
            {
                "arm": name,
                "connections": facts.connections.get(name),
                "measurements": len(usable),
                "qps": _mean([one.qps for one in usable]),
                "latency_ms": {
                    key: _mean([one.latency_ms.get(key) for one in usable]) for key in ("p50", "p95", "p99")
                },
                "error_rate": math.fsum(one.error_rate for one in usable) / len(usable) if usable else None,
                "limits_held": sum(one.inside for one in usable),
                "serving": bool(usable) and 2 * sum(one.inside for one in usable) > len(usable),
                "credits": _total(one.billed for one in mine),
                "price_per_1000": price_per_thousand(served, facts.credit_price)
                if len(served) == len(usable)
                else None,
            }
        )
    return arms


def _mean(values: Sequence[float | None]) -> float | None:
    """The geometric mean, because ratios are compared; None: a value is unknown, or there is none."""
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
        return "No block is complete: nothing can be said about the arms."
    frontier = [arm["arm"] for arm in document["arms"] if arm["on_frontier"]]
    outside = [arm["arm"] for arm in document["arms"] if not arm["serving"]]
    said = []
    if outside:
        said.append(f"Outside the limits: {', '.join(outside)}.")
    if len(frontier) == 1 and len(document["arms"]) > len(outside) + 1:
        said.append(
            f"{frontier[0]} is the best choice: every other arm inside the limits is dominated in price and latency."
        )
    elif len(frontier) == 1 and outside:
        said.append(f"{frontier[0]} is the only arm inside the limits.")
    elif len(frontier) > 1 and document["verdict"] == "decided":
        said.append(f"No arm is best in both price and latency: {', '.join(frontier)} are on the frontier.")
    if len(said) == bool(outside):
        first = next(iter(document["metrics"]))
        mine = [one for one in document["comparisons"] if one["metric"] == first]
        said += [f"{comparison_sentence(one)}" for one in mine if one["a"] == document["reference"]]
    return " ".join(said)


def comparison_sentence(one: Mapping[str, Any]) -> str:
    """One sentence on b compared with a in one metric."""
    metric = ExperimentMetric.parse(one["metric"])
    name, a, b = metric.text, one["a"], one["b"]
    interval = f"{change_text(one['low'])} to {change_text(one['high'])}"
    match Decision(one["decision"]):
        case Decision.EQUIVALENT:
            return f"{b} and {a} are equivalent in {name}: they differ by less than {one['margin']:.0%}."
        case Decision.UNDECIDED:
            return f"Whether {b} is better than {a} in {name} is not decided: the difference is {interval}."
    more = "higher" if one["change"] > 0 else "lower"
    return f"{b} is {one['decision']} than {a}: {name} is {abs(one['change']):.1%} {more} ({interval})."


def change_text(value: float | None) -> str:
    return NO_BOUND if value is None else f"{100 * value:+.1f} %"


def value_text(metric: ExperimentMetric, value: float | None, currency: str) -> str:
    """The value with its unit."""
    if value is None:
        return formatting.NONE
    if metric.kind is ExperimentMetricKind.PRICE:
        return f"{value:.3g} {printable(currency, 10)}"
    return f"{formatting.rate(value)}/s" if metric.kind is ExperimentMetricKind.QPS else f"{formatting.ms(value)} ms"


_ARM_HEAD = ("arm", "blocks", "qps", "p50 ms", "p95 ms", "p99 ms", "errors", "inside", "credits")
_PAIR_HEAD = ("metric", "arm", "compared with", "change", "interval", "margin", "decision")


def experiment_text(document: Mapping[str, Any]) -> str:
    """Verdict first, then the answer, then the numbers."""
    blocks, currency = document["blocks"], printable(document["price"]["currency"], 10)
    complete = counted(len(blocks["complete"]), "complete block")
    name, experiment_id = printable(document["name"], 80), printable(document["experiment_id"], 60)
    head = f"{document['verdict'].upper()}  {name}  experiment {experiment_id}"
    lines = [f"{head}: {printable(document['exit_reason'], 500)}", f"  {printable(document['answer'], 2_000)}", ""]
    price = f"price of 1,000 in {currency}"
    arms: list[tuple[str, ...]] = [(*_ARM_HEAD, price, "frontier"), *map(_arm_row, document["arms"])]
    lines += formatting.aligned(arms, left=(0, len(arms[0]) - 1))
    lines.append("")
    pairs = [_PAIR_HEAD, *(_pair_row(one) for one in document["comparisons"])]
    lines += formatting.aligned(pairs, left=(0, 1, 2, 6))
    lines.append("")
    lines.append(
        f"{complete} of {blocks['begun']} begun, at most {blocks['maximum']}. Intervals hold simultaneously,"
        f" at every look, with {1 - document['error']:.0%} probability."
    )
    if document["credits"] is not None:
        rates = f"rates of {printable(document['price']['rates_date'], 40)}"
        lines.append(f"Credits and prices are estimated from polls of the warehouse ({rates}).")
    return "\n".join(lines)


def _arm_row(arm: Mapping[str, Any]) -> tuple[str, ...]:
    return (printable(arm["arm"], 40), *arm_numbers(arm), frontier_text(arm))


def arm_numbers(arm: Mapping[str, Any], *, unit: str = "") -> tuple[str, ...]:
    """From the number of blocks to the price of 1,000 statements; `unit` follows each latency."""
    times = [formatting.ms(arm["latency_ms"][name]) for name in ("p50", "p95", "p99")]
    price, credits = arm["price_per_1000"], arm["credits"]
    return (
        str(arm["measurements"]),
        formatting.rate(arm["qps"]),
        *(time if time == formatting.NONE else f"{time}{unit}" for time in times),
        formatting.percent(arm["error_rate"]),
        f"{arm['limits_held']} of {arm['measurements']}",
        formatting.NONE if credits is None else f"{credits:.4f}",
        formatting.NONE if price is None else f"{price:.3g}",
    )


def frontier_text(arm: Mapping[str, Any]) -> str:
    """Where an arm lies in price and latency; empty without a price."""
    if arm["on_frontier"] is None or not arm["measurements"]:
        return ""
    if arm["dominated_by"]:
        return f"dominated by {', '.join(map(printable, arm['dominated_by']))}"
    return "on it" if arm["on_frontier"] else "outside the limits"


def _pair_row(one: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        printable(one["metric"], 60),
        printable(one["b"], 40),
        printable(one["a"], 40),
        formatting.NONE if one["change"] is None else change_text(one["change"]),
        f"{change_text(one['low'])} to {change_text(one['high'])}",
        f"{one['margin']:.1%}",
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
        f"  {title:<{width}}  " + "  ".join(value_text(metric, block.values[arm][metric], currency) for block in shown)
        for (metric, arm), title in titles.items()
    ]


def progress_text(design: ExperimentDesign, found: Sequence[ArmComparison]) -> str:
    """After a block: what is decided, what is not, and what would decide it."""
    undecided = [one for one in found if one.decision is Decision.UNDECIDED and one.change is not None]
    done = sum(one.decision is not Decision.UNDECIDED for one in found)
    shown = "; ".join(_open_text(design, one) for one in undecided[:3])
    more = f"; and {len(undecided) - 3} more" if len(undecided) > 3 else ""
    return f"{done} of {len(found)} comparisons are decided{f'; open: {shown}{more}' if shown else ''}"


def _open_text(design: ExperimentDesign, one: ArmComparison) -> str:
    low, high = one.low if one.low > -1 else None, one.high if math.isfinite(one.high) else None
    interval = f"{change_text(low)} to {change_text(high)}" if low is not None and high is not None else NO_BOUND
    needed = blocks_to_decide(design, one)
    many = "" if len(one.by_block) < 2 else f", not by {design.blocks_max} blocks" if needed is None else ""
    likely = f", decided after about {needed} blocks" if needed is not None else many
    return f"{one.metric.text} of {one.b} compared with {one.a} {change_text(one.change)} ({interval}){likely}"
