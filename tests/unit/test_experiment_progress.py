"""How far an experiment is: in lines, and as a panel of the live view at several sizes."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from loadgen.model.experiment import Decision, ExperimentMetric
from loadgen.report.experiment import (
    ExperimentStatus,
    MeasuredNow,
    experiment_status,
    pair_text,
    spent_text,
)
from loadgen.rules.experiment import ExperimentBudget, ExperimentDesign, compare_arms
from loadgen.rules.measurement import MeasurementOutcome, complete_blocks
from loadgen.tui.draw import cut_between_words
from loadgen.tui.screen import ScreenPage, render
from tests.unit.test_experiment_result import design, eight_blocks, measurement
from tests.unit.tui_builders import MEASUREMENT, NOW_S

SIZES = [(80, 24), (120, 40), (200, 60)]


def status_of(rows, now, plan: ExperimentDesign | None = None) -> ExperimentStatus:
    plan = plan or design()
    found = compare_arms(plan, complete_blocks(plan, rows), final=False)
    return experiment_status(plan, rows, found, now, spent="12m of 4h, 0.1 of 2 credits", currency="USD")


def running() -> ExperimentStatus:
    rows = [one for one in eight_blocks(p95=10.5, price=0.5) if one.block <= 4]
    rows += [measurement(5, "a"), replace(measurement(6, "a"), outcome=MeasurementOutcome.INVALID, figures=None)]
    return status_of(rows, MeasuredNow(block=6, arm="b", attempt=2))


def text_of(status: ExperimentStatus | None, width: int, height: int, page: ScreenPage = ScreenPage.RUN) -> list[str]:
    image = render(replace(MEASUREMENT, experiment=status), width, height, NOW_S, page)
    return [cut_between_words(line, width).plain for line in image.lines]


def test_every_comparison_has_a_line_with_what_would_decide_it():
    rows = [one for one in eight_blocks(p95=10.5, price=0.5) if one.block <= 4]
    found = compare_arms(design(), complete_blocks(design(), rows), final=False)

    p95, price = (pair_text(design(), one) for one in found)

    assert re.fullmatch(r"p95 b / a: \+5\.3 % \(.* % to .* %\), about \d+ blocks", p95)
    assert re.fullmatch(r"price b / a: -\d+\.\d % \(.* % to .* %\), better", price)


def test_before_the_second_block_nothing_can_be_estimated():
    rows = [one for one in eight_blocks(p95=5.0) if one.block <= 1]
    none, one = (compare_arms(design(), complete_blocks(design(), part), final=False)[0] for part in ([], rows))

    assert pair_text(design(), none) == "p95 b / a: no block yet"
    assert pair_text(design(), one) == "p95 b / a: -50.0 % (no bound yet), open"


def test_an_undecidable_one_is_reported_as_such():
    noisy = [
        measurement(block, arm, p95=10.0 * (1 + 0.5 * ((block + (arm == "a")) % 2)))
        for block in range(1, 9)
        for arm in "ab"
    ]
    found = compare_arms(design(), complete_blocks(design(), noisy), final=False)

    assert pair_text(design(), found[0]).endswith(f"not by {design().blocks_max} blocks")


def test_the_status_has_every_arm_and_block():
    status = running()

    assert status.headline == "block 6 of 20, arm b, again; 1 of 2 decided"
    assert status.blocks == (1, 2, 3, 4, 5, 6)
    rows = dict(status.rows)
    assert list(rows) == ["p95 of a", "p95 of b", "price of a", "price of b"]
    assert rows["p95 of a"][4:] == ("10.00 ms", "✗")
    assert rows["p95 of b"][4:] == ("·", "…")
    assert [one.decision for one in status.pairs] == [Decision.UNDECIDED, Decision.BETTER]


@pytest.mark.parametrize(
    ("budget", "text"),
    [
        (ExperimentBudget(), "12m 5s, 0.123 credits"),
        (ExperimentBudget(time_s=14_400.0, credits=2.5), "12m 5s of 4h, 0.123 of 2.5 credits"),
    ],
)
def test_spent_credits_are_shown_against_the_budget(budget: ExperimentBudget, text: str):
    assert spent_text(725.2, 0.1234, budget) == text


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_panel_stands_above_the_run(width: int, height: int):
    lines = text_of(running(), width, height)
    text = "\n".join(lines)

    assert (len(lines), max(map(len, lines)) <= width) == (height, True)
    assert "block 6 of 20" in text
    assert "12m of 4h, 0.1 of 2 credits" in text
    assert "p95 b / a:" in text
    assert "load" in text
    assert "statement" in text
    assert lines[-1].startswith(" q stop   e errors   t thresholds   x experiment   ? help")
    if height >= 40:
        assert "price b / a:" in text
        assert re.search(r"price of b +\S+ USD +\S+ USD", text)
    without = text_of(None, width, height)
    assert "experiment" not in "\n".join(without)


@pytest.mark.parametrize(("width", "whole"), [(80, False), (120, True), (200, True)])
def test_a_name_is_cut_only_where_half_of_the_screen_has_no_room_for_it(width: int, whole: bool):
    name = "point_lookup.p50 of all_columns_of_the_table"
    status = running()
    rows = tuple((name if number == 0 else other, values) for number, (other, values) in enumerate(status.rows))

    text = "\n".join(text_of(replace(status, rows=rows), width, 60, ScreenPage.EXPERIMENT))

    assert (name in text) is whole
    assert f"  {status.rows[0][1][-1]}" in text


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_page_of_the_experiment_has_every_interval(width: int, height: int):
    text = "\n".join(text_of(running(), width, height, ScreenPage.EXPERIMENT))

    for part in ("p95 b / a:", "price b / a:", "p95 of a", "price of b", "✗", "…", "·"):
        assert part in text
    assert text_of(None, width, height, ScreenPage.EXPERIMENT) == text_of(None, width, height)


def test_many_comparisons_have_a_page_when_the_panel_has_no_room():
    arms = tuple(f"arm_{number}" for number in range(8))
    many = ExperimentDesign(
        arms=arms,
        reference=arms[0],
        margins={ExperimentMetric.parse(text): 0.05 for text in ("p50", "p95", "price")},
        blocks_min=2,
        blocks_max=20,
        seed=1,
    )

    lines = text_of(status_of([], MeasuredNow(block=1, arm="arm_0", attempt=1), many), 80, 24)

    assert any("no complete block yet, so 84 comparisons without an interval" in line for line in lines)
    assert any(re.search(r"… \d+ more lines: x", line) for line in lines)
    assert any("load" in line for line in lines)


def test_foreign_names_stay_on_one_line():
    status = replace(running(), headline="a\x1b[2J\nb" * 50)

    assert all("\x1b" not in line and "\n" not in line for line in text_of(status, 80, 24))
