"""An experiment as one HTML file: no script, nothing from the network, and a policy that forbids both. Pure.

It is made from experiment.json alone, so a stored result gives the same page anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.report import formatting
from loadgen.report.experiment import (
    arm_numbers,
    change_text,
    comparison_sentence,
    credits_head,
    frontier_text,
    metering_text,
)
from loadgen.report.experiment_charts import chart_sections, measured_value
from loadgen.report.formatting import html
from loadgen.report.page import note, section, short, table, text, verdict_page
from loadgen.units import counted

_CLASSES = {"decided": "passed", "failed": "failed", "cancelled": "cancelled"}
_CELLS = {"better": "ok", "worse": "miss", "equivalent": "ok"}
_ARM_HEAD = ("arm", "blocks", "statements/s", "p50", "p95", "p99", "errors", "limits held", "credits")
_PAIR_HEAD = ("metric", "arm", "compared with", "decision", "change", "interval", "margin")


def experiment_html(document: Mapping[str, Any]) -> str:
    """The whole file."""
    blocks = document["blocks"]
    told = (
        f"{counted(len(blocks['complete']), 'complete block')} of {blocks['begun']} begun, at most {blocks['maximum']}"
    )
    why, experiment_id = html(document["exit_reason"], 500), html(document["experiment_id"])
    about = f'<p class="sub">{why}. {told}. Experiment {experiment_id}.</p>'
    return verdict_page(
        str(document["verdict"]),
        html(document["name"], 200),
        str(document["answer"]),
        _arms(document),
        _pairs(document),
        *chart_sections(document),
        _measurements(document),
        css=_CLASSES.get(str(document["verdict"]), "invalid"),
        about=about,
        footer="Each measurement is an ordinary run: <code>loadgen runs show ID</code>.",
    )


def _arms(document: Mapping[str, Any]) -> str:
    currency = html(document["price"]["currency"], 10)
    head = (*credits_head(_ARM_HEAD, document), f"{currency} per 1,000", "frontier")
    rows = [_arm(arm, is_reference=arm["arm"] == document["reference"]) for arm in document["arms"]]
    said = []
    if document["limits"]:
        limits = ", ".join(html(limit, 100) for limit in document["limits"])
        said.append(note(f"Limits: {limits}. A measurement that breaks one costs, and serves nothing."))
    if document["credits"] is not None:
        date = html(document["price"]["rates_date"], 40)
        said.append(note(f"Credits and prices are estimated from polls of the warehouse, with the rates of {date}."))
    if (metered := metering_text(document)) is not None:
        said.append(note(html(metered, 1_000)))
    return section("arms", "Arms", table("arms", head, rows, last_words=1), *said)


def _arm(arm: Mapping[str, Any], *, is_reference: bool) -> Sequence[str]:
    name = f"{arm['arm']} (reference)" if is_reference else arm["arm"]
    numbers = (f'<td class="n">{number}</td>' for number in arm_numbers(arm, unit=" ms"))
    return (short(name), *numbers, short(frontier_text(arm), 200))


def _pairs(document: Mapping[str, Any]) -> str:
    rows = [
        (
            short(one["metric"]),
            short(one["b"]),
            short(one["a"]),
            f'<td class="{_CELLS.get(one["decision"], "w")}">{html(one["decision"])}</td>',
            f'<td class="n">{formatting.NONE if one["change"] is None else change_text(one["change"])}</td>',
            f'<td class="n">{change_text(one["low"])} to {change_text(one["high"])}</td>',
            f'<td class="n">{one["margin"]:.1%}</td>',
        )
        for one in document["comparisons"]
    ]
    rule = note(
        f"All intervals hold simultaneously, at every look, with {1 - document['error']:.0%} probability. Equivalent:"
        " the interval lies inside the margin. Undecided is not the same as equal."
    )
    sentences = "".join(f"<li>{html(comparison_sentence(one), 500)}</li>" for one in document["comparisons"])
    listed = f"<details><summary>In words</summary><ul>{sentences}</ul></details>"
    return section("pairs", "Every pair", table("pairs", _PAIR_HEAD, rows, words=4), rule, listed)


def _measurements(document: Mapping[str, Any]) -> str:
    head = ("block", "arm", "attempt", "run", "outcome", "seconds", *document["metrics"], "reason")
    rows = []
    for one in document["measurements"]:
        values = [measured_value(one, metric) for metric in document["metrics"]]
        shown = [formatting.NONE if value is None else f"{value:.4g}" for value in values]
        rows.append(
            [
                *(short(str(cell)) for cell in (one["block"], one["arm"], one["attempt"], one["run_id"] or "–")),
                short(one["outcome"]),
                f'<td class="n">{one["seconds"]:.0f}</td>',
                *(f'<td class="n">{cell}</td>' for cell in shown),
                text(one["reason"], 500),
            ]
        )
    heads = [html(str(title), 60) for title in head]
    return section("measurements", "Measurements", table("measurements", heads, rows, words=5, last_words=1))
