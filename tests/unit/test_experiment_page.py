"""The page, the Markdown and the JUnit of an experiment: their content, and that foreign text stays text."""

from __future__ import annotations

import copy
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from loadgen.model.warehouse import WarehouseKind
from loadgen.report.experiment import experiment_document, experiment_text
from loadgen.report.experiment_page import experiment_html
from loadgen.report.exports import experiment_junit, experiment_markdown
from loadgen.rules.measurement import MeasuredWarehouse
from tests.unit.test_experiment_result import design, eight_blocks, facts, measurement

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
    assert "one connection 10/s (10 to 10)" in page
    mixed = experiment_html(experiment_document(replace(known, only_connections_differ=False)))
    assert "No scaling curve: arms differ in more than connections." in mixed
    few = experiment_html(experiment_document(facts(eight_blocks(p95=5.0), connections={"a": 4, "b": 8})))
    assert "No scaling curve: 2 levels of connections, and a scaling curve needs 6." in few
    for other in ({}, {"a": 4}, {"a": 4, "b": 4}, {"a": "x", "b": 4}):
        assert 'id="scaling"' not in experiment_html(experiment_document(facts(eight_blocks(), connections=other)))


def on(size, clusters=1):
    return MeasuredWarehouse(size=size, kind=WarehouseKind.GEN1, clusters=clusters)


def test_arms_that_differ_in_size_have_throughput_over_size_and_no_law():
    sizes = {"a": on("X-Small"), "b": on("Medium", 2)}
    rows = [replace(one, figures=replace(one.figures, warehouse=sizes[one.arm])) for one in eight_blocks()]
    document = experiment_document(facts(rows))

    page = experiment_html(document)

    chart = page[page.index('<svg id="sizes"') :].partition("</svg>")[0]
    assert [arm["warehouse"] for arm in document["arms"]] == [
        {"size": "X-Small", "kind": "gen1", "clusters": 1},
        {"size": "Medium", "kind": "gen1", "clusters": 2},
    ]
    ticks = re.findall(r'<text class="tick" x="([\d.]+)"[^>]*>(X-Small|Small|Medium)<', chart)
    first, second, third = (float(x) for x, _ in ticks)
    assert second - first == pytest.approx(third - second, abs=0.2)
    assert chart.count("<title>b: Medium, gen1, clusters 2: 100.0/s</title>") == 8
    assert "Scalability" not in page
    for other in (sizes["a"], None):  # no difference, not known
        same = [replace(one, figures=replace(one.figures, warehouse=other)) for one in rows]
        assert 'id="sizes"' not in experiment_html(experiment_document(facts(same)))


def pareto_of(document):
    page = experiment_html(document)
    return page[page.index('<svg id="pareto"') :].partition("</svg>")[0]


def test_every_arm_of_the_frontier_has_an_interval_also_the_reference(document):
    lines = re.findall(r'<path class="line (limit|s1)" d="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)"/>', pareto_of(document))

    assert [css for css, *_ in lines] == ["limit", "limit", "s1", "s1"]
    for css, *ends in lines:
        x1, y1, x2, y2 = map(float, ends)
        assert x2 - x1 > 2 or y1 - y2 > 2, css


def test_table_comparison_and_frontier_have_the_same_price():
    rows = eight_blocks(p95=5.0, price=0.5)
    rows = [one if (one.block, one.arm) != (1, "b") else measurement(1, "b", price=0.5, inside=False) for one in rows]

    document = experiment_document(facts(rows, design=replace(facts(rows).design, has_limits=True)))

    a, b = document["arms"]
    price = document["comparisons"][1]
    assert b["price_per_1000"] / a["price_per_1000"] - 1 == pytest.approx(price["change"])
    assert (price["high"], price["decision"]) == (None, "undecided")
    assert f"<title>b: p95 {5.0:.2f} ms, price {b['price_per_1000']:.3g} USD</title>" in re.sub(
        r"p95 [\d.]+ ms", "p95 5.00 ms", pareto_of(document)
    )
    assert (a["dominated_by"], b["on_frontier"]) == ([], True)


def test_an_arm_without_a_statement_inside_the_limits_has_no_price():
    first = eight_blocks(p95=5.0, price=0.5, inside=False)
    document = experiment_document(facts([*first, *(replace(one, block=one.block + 8) for one in first)]))

    assert document["arms"][1]["price_per_1000"] is None
    assert document["comparisons"][1]["decision"] == "outside"
    assert "b: p95 5.00 ms, price –" in re.sub(r"p95 [\d.]+ ms", "p95 5.00 ms", pareto_of(document))
    assert "b compared with a: not compared in price (an arm outside the limits has none)." in experiment_html(document)
    assert "outside" in experiment_text(document) + experiment_markdown(document)


def test_the_last_label_of_an_axis_is_inside_the_chart():
    page = experiment_html(experiment_document(facts(eight_blocks(p95=100.0))))

    forest = page[page.index('<svg id="forest0"') :].partition("</svg>")[0]
    assert re.search(r'text-anchor="end">\+1000 %</text>', forest)


def test_while_the_last_block_runs_the_planned_last_look_has_not_come():
    rows = [one for one in eight_blocks(p95=10.4) if one.block <= 7]
    ended = facts(rows, begun=8, design=design(maximum=8), verdict="undecided")
    running = replace(ended, verdict="running")

    final, before = (experiment_document(one)["comparisons"][0] for one in (ended, running))

    assert before["low"] < final["low"]


def test_a_page_without_a_complete_block_has_no_pictures():
    page = experiment_html(experiment_document(facts([measurement(1, "a")], verdict="cancelled", exit_code=130)))

    assert "No block is complete" in page
    assert "<svg" not in page
    assert "run-1-a-1" in page


def test_long_names_of_arms_stand_beside_their_interval():
    arms = ("all_columns", "two_columns_of_a_table_with_forty_others")
    rows = [measurement(block, arm) for block in (1, 2) for arm in arms]

    page = experiment_html(experiment_document(facts(rows, arms=arms)))

    assert 'text-anchor="end">two_columns_of_a_tabl… / all_columns</text>' in page


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
