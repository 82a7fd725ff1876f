"""An experiment as report.md for a pull request, and as junit.xml for CI. Pure."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from typing import Any

from loadgen.log import printable
from loadgen.report import formatting
from loadgen.report.experiment import change_text, comparison_sentence
from loadgen.report.formatting import markdown

NAME_MAX = 100
TEXT_MAX = 300
_WORDS = re.compile(r"[A-Za-z0-9:.,%()+ -]+")
_MARKS = {"decided": "✅", "undecided": "❔", "invalid": "⚠️", "cancelled": "⏹️", "failed": "❌"}


def experiment_markdown(document: Mapping[str, Any]) -> str:
    """Verdict, answer, arms, pairs."""
    verdict = str(document["verdict"])
    parts = [
        f"## {_MARKS.get(verdict, '')} {markdown(document['name'], NAME_MAX)}: {_plain(verdict.upper())}",
        _plain(document["answer"]),
        _arms(document),
        _pairs(document),
    ]
    blocks = document["blocks"]
    parts.append(
        f"{len(blocks['complete'])} complete blocks of {blocks['begun']} begun, at most {blocks['maximum']}. Intervals"
        f" hold simultaneously, at every look, with {1 - document['error']:.0%} probability. Experiment"
        f" {markdown(document['experiment_id'])}."
    )
    if document["credits"] is not None:
        parts.append(
            f"Credits and prices are estimated, with the rates of {markdown(document['price']['rates_date'], 40)}."
        )
    return "\n\n".join(parts) + "\n"


def _plain(text: str) -> str:
    """Text of loadgen as it is; text with other characters as code."""
    return text if _WORDS.fullmatch(text) else markdown(text, 2_000)


def _arms(document: Mapping[str, Any]) -> str:
    currency = markdown(document["price"]["currency"], 10)
    rows = [f"| arm | statements/s | p95 ms | errors | inside the limits | price of 1,000 ({currency}) | frontier |"]
    rows.append("|---|---:|---:|---:|---:|---:|---|")
    for arm in document["arms"]:
        price = arm["price_per_1000"]
        cells = (
            markdown(arm["arm"], NAME_MAX),
            formatting.rate(arm["qps"]),
            formatting.ms(arm["latency_ms"]["p95"]),
            formatting.percent(arm["error_rate"]),
            f"{arm['limits_held']} of {arm['measurements']}",
            formatting.NONE if price is None else f"{price:.3g}",
            "" if arm["on_frontier"] is None else "yes" if arm["on_frontier"] else "no",
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _pairs(document: Mapping[str, Any]) -> str:
    rows = [
        "| metric | arm | compared with | change | interval | margin | decision |",
        "|---|---|---|---:|---:|---:|---|",
    ]
    for one in document["comparisons"]:
        cells = (
            *(markdown(one[key], NAME_MAX) for key in ("metric", "b", "a")),
            formatting.NONE if one["change"] is None else change_text(one["change"]),
            f"{change_text(one['low'])} to {change_text(one['high'])}",
            f"{one['margin']:.1%}",
            _plain(one["decision"]),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def experiment_junit(document: Mapping[str, Any]) -> str:
    """A test case for the experiment, and one for each comparison, which fails when it is undecided."""
    name = f"loadgen.experiment.{formatting.xml(str(document['name']), 200)}"
    suite = ElementTree.Element("testsuite", name=name)
    whole = ElementTree.SubElement(suite, "testcase", name="the experiment was carried through", classname=name)
    if document["verdict"] not in ("decided", "undecided"):
        _say(whole, "error", str(document["verdict"]), str(document["exit_reason"]))
    for one in document["comparisons"]:
        title = formatting.xml(f"{one['metric']}: {one['b']} compared with {one['a']}")
        case = ElementTree.SubElement(suite, "testcase", name=title, classname=name)
        if one["decision"] == "undecided":
            _say(case, "failure", "undecided", comparison_sentence(one))
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    suite.set("errors", str(sum(case.find("error") is not None for case in cases)))
    suite.set("skipped", "0")
    suite.set("time", formatting.exact(sum(one["seconds"] for one in document["measurements"])))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _say(case: ElementTree.Element, kind: str, category: str, text: str) -> None:
    message = printable(text, formatting.LINE_MAX)
    said = ElementTree.SubElement(case, kind, type=formatting.xml(category), message=message)
    said.text = formatting.xml(text, formatting.BLOCK_MAX)
