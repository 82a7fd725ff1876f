"""A search that another leader continues: its stored steps, the damage to them, and its result."""

from dataclasses import replace
from typing import Any

import pytest

from loadgen.control.session import ParsedRows, RowUnreadable
from loadgen.metrics.window import merge
from orchestrator.find_max_controller import FindMaxController
from orchestrator.lifecycle import (
    SearchFinished,
)
from tests.unit.find_max_builders import BAD, CALM, CONFIG, MISSING_S, UNCLEAR, Led
from tests.unit.orchestrator_builders import view


def test_a_search_that_is_led_on_knows_how_sure_its_steps_were() -> None:
    before = Led()
    for shown, seconds in ((CALM, 10.0), (UNCLEAR, 30.0), (CALM, 10.0), (BAD, 10.0)):
        before.step(shown, seconds)
    successor = FindMaxController(CONFIG, (), missing_s=MISSING_S)

    unknown = successor.restore(before.records, before.windows.__getitem__)

    assert unknown == ()
    assert successor.search == before.controller.search
    assert [step.low_confidence for step in successor.search.steps] == [False, True, False, False]
    assert successor.result(lambda step: merge(before.windows[step or 0]), valid=True) == before.result()


@pytest.mark.parametrize(("lost", "unsure"), [((2,), (2,)), ((2, 3), (2, 3)), ((1,), (1, 2, 3, 4))])
def test_a_search_whose_measurements_are_partly_lost_is_restored(
    lost: tuple[int, ...], unsure: tuple[int, ...]
) -> None:
    """A window may be unreadable. Without that of step 1, the baseline, no step can be judged again."""
    before = Led()
    for shown in (CALM, CALM, CALM, BAD):
        before.step(shown)
    successor = FindMaxController(CONFIG, (), missing_s=MISSING_S)

    unknown = successor.restore(before.records, lambda number: [] if number in lost else before.windows[number])

    assert unknown == unsure
    assert tuple(step.number for step in successor.search.steps if step.low_confidence) == unsure
    assert successor.search.target == before.controller.search.target
    assert successor.result(lambda step: merge(before.windows[step or 0]), valid=False) is not None


def test_a_client_limit_that_another_leader_found_stands() -> None:
    before = Led()
    before.step()
    before.step(cpu_percent=97)
    before.step(cpu_percent=97)
    successor = FindMaxController(CONFIG, (), missing_s=MISSING_S)

    assert successor.restore(before.records, before.windows.__getitem__) == ()
    assert successor.search.target == before.controller.search.target == 5


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"outcome": "\x1b[2J"}, "step 2 has an unknown outcome"),
        ({"target_connections": 10**37}, f"step 2 has {10**37} connections"),
        ({"target_connections": -1}, "step 2 has -1 connections"),
        ({"step_number": 10**37}, "step 2 is missing"),
        (None, "row 'run, step 2' of FIND_MAX_STEP_HISTORY is unreadable: qps is 'many'"),
    ],
)
def test_an_unreadable_step_ends_the_search_and_the_run_reports_it(change: Any, why: str) -> None:
    before = Led()
    for _ in range(3):
        before.step()
    first, second, third = before.records
    if change is None:
        error = RowUnreadable("FIND_MAX_STEP_HISTORY", "run, step 2", "qps is 'many'")
        records = ParsedRows([first, third], [error])
    else:
        records = ParsedRows([first, replace(second, **change), third])
    successor = FindMaxController(CONFIG, (), missing_s=MISSING_S)

    successor.restore(records, lambda number: before.windows.get(number, []))

    assert len(successor.search.steps) == 1
    assert why in (successor.obstacle or "")
    judged, order = successor.observe([view(number=0), view(number=1)], 1.0, queue_seen=False)
    assert judged is None
    assert isinstance(order, SearchFinished)
    found = successor.result(lambda step: merge(before.windows.get(step or 0, [])), valid=False)
    assert (found["max_concurrency"], found["result"], found["confidence"]) == (5, "BOUNDED_MAX", "low")


def test_a_search_whose_leader_was_lost_has_a_result_of_its_known_steps() -> None:
    """As recovery makes it, when no process leads the run any more."""
    before = Led()
    for _ in range(3):
        before.step()
    successor = FindMaxController(CONFIG, (), missing_s=MISSING_S)
    successor.restore(before.records, before.windows.__getitem__)

    successor.stop("its orchestrator was lost")

    found = successor.result(lambda step: merge(before.windows.get(step or 0, [])), valid=False)
    assert (found["max_concurrency"], found["result"], found["confidence"]) == (15, "BOUNDED_MAX", "low")
    assert (found["decisive_step"], len(found["steps"])) == (2, 3)
    assert found["reason"] == "at least 15 connections held: its orchestrator was lost"


def test_a_search_that_measured_nothing_has_no_decisive_step() -> None:
    controller = FindMaxController(CONFIG, (), missing_s=MISSING_S)
    controller.stop("its orchestrator was lost")
    found = controller.result(lambda _: merge([]), valid=False)
    assert (found["max_concurrency"], found["result"], found["decisive_step"]) == (None, None, None)
    assert "its orchestrator was lost" in found["reason"]
