"""The page, the Markdown and the JUnit of an experiment: what they say, and that foreign text stays text."""

from __future__ import annotations

import copy
import re
import xml.etree.ElementTree as ElementTree

import pytest

from loadgen.report.experiment import experiment_document, experiment_text
from loadgen.report.experiment_exports import experiment_junit, experiment_markdown
from loadgen.report.experiment_page import experiment_html
from tests.unit.test_experiment_result import eight_blocks, facts, measurement

HOSTILE = '<script>alert(1)</script> & "x" | `y` \x1b[31m ]]>'


@pytest.fixture
def document():
    return experiment_document(facts(eight_blocks(p95=5.0, price=0.5)))


def test_the_page_has_the_answer_the_pairs_and_the_pictures(document):
    page = experiment_html(document)

    assert "b is the best choice" in page
    assert 'class="verdict">DECIDED' in page
    for chart in ("forest0", "forest1", "pareto", "blocks0", "blocks1"):
        assert f'<svg id="{chart}"' in page
    assert page.count('<td class="ok">better</td>') == 2
    assert "<script" not in page


def test_every_block_is_a_line_and_a_dot_of_each_pair(document):
    page = experiment_html(document)

    blocks = page[page.index('<svg id="blocks0"') : page.index('<svg id="blocks1"')]
    forest = page[page.index('<svg id="forest0"') : page.index('<svg id="forest1"')]
    assert blocks.count('<path class="line') == 8
    assert forest.count('r="1.8"') == 8


def test_the_dominated_arm_is_grey_and_one_outside_the_limits_is_a_cross(document):
    page = experiment_html(document)
    pareto = page[page.index('<svg id="pareto"') :]
    pareto = pareto[: pareto.index("</svg>")]
    assert re.search(r'class="dot limit"[^>]*/><title>a: p95', pareto)
    assert re.search(r'class="dot s1"[^>]*/><title>b: p95', pareto)

    outside = experiment_html(experiment_document(facts(eight_blocks(p95=5.0, price=0.5, inside=False))))

    assert re.search(r'class="cross limit"[^>]*/><title>b: p95', outside)


def test_arms_that_differ_in_connections_have_a_scaling_curve():
    """Throughput as the law has it: 10 per connection, contention 5 %."""
    levels = {f"c{n}": n for n in (1, 2, 4, 8, 16, 32)}
    rows = [measurement(block, arm, qps=10 * n / (1 + 0.05 * (n - 1))) for block in (1, 2) for arm, n in levels.items()]
    known = facts(rows, arms=tuple(levels), connections=levels)

    page = experiment_html(experiment_document(known))

    assert '<svg id="scaling"' in page
    assert "Universal Scalability Law: contention 5 %" in page
    few = experiment_html(experiment_document(facts(eight_blocks(p95=5.0), connections={"a": 4, "b": 8})))
    assert "No scaling curve: 2 levels of connections, and a scaling curve needs 6." in few
    for other in ({}, {"a": 4}, {"a": 4, "b": 4}, {"a": "x", "b": 4}):
        assert 'id="scaling"' not in experiment_html(experiment_document(facts(eight_blocks(), connections=other)))


def test_a_page_without_a_complete_block_has_no_pictures():
    page = experiment_html(experiment_document(facts([measurement(1, "a")], verdict="cancelled", exit_code=130)))

    assert "No block is complete" in page
    assert "<svg" not in page
    assert "run-1-a-1" in page


def test_long_names_of_arms_have_a_legend():
    rows = [measurement(block, arm) for block in (1, 2) for arm in ("all_columns", "two_columns")]

    page = experiment_html(experiment_document(facts(rows, arms=("all_columns", "two_columns"))))

    assert "1: two_columns / all_columns" in page


def test_foreign_text_stays_text_everywhere(document):
    hostile = copy.deepcopy(document)
    for key in ("name", "exit_reason", "answer"):
        hostile[key] = HOSTILE
    hostile["price"]["currency"] = hostile["price"]["rates_date"] = HOSTILE
    hostile["limits"] = [HOSTILE]
    hostile["measurements"][0]["reason"] = HOSTILE

    page = experiment_html(hostile)
    assert "<script" not in page
    assert "\x1b" not in page + experiment_markdown(hostile) + experiment_text(hostile)
    assert "| `y`" not in experiment_markdown(hostile)
    ElementTree.fromstring(experiment_junit({**hostile, "verdict": "failed"}))


def test_the_markdown_has_a_table_of_arms_and_of_pairs(document):
    text = experiment_markdown(document)

    assert text.startswith("## ✅ `e`: DECIDED\n\nb is the best choice")
    assert re.search(r"\| `a` \| 100\.0 \| 10\.00 \| 0 % \| 8 of 8 \| 3 \| no \|", text)
    assert re.search(r"\| `p95` \| `b` \| `a` \| -50\.0 % \|.*\| better \|", text)


def test_an_undecided_pair_fails_its_test_case():
    rows = [one for one in eight_blocks(p95=10.4) if one.block <= 3]
    document = experiment_document(facts(rows, verdict="undecided", exit_code=12))

    suite = ElementTree.fromstring(experiment_junit(document)).find("testsuite")

    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "2", "0")
    assert "not decided" in (suite.find("testcase/failure").get("message") or "")  # type: ignore[union-attr]
    failed = ElementTree.fromstring(experiment_junit({**document, "verdict": "failed"})).find("testsuite")
    assert failed is not None
    assert failed.get("errors") == "1"
