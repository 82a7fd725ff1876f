"""The page of an experiment in a real browser: nothing is wider than the page, no word in a table is broken, no
label of a chart is cut."""

from __future__ import annotations

from pathlib import Path

from loadgen.report.experiment import experiment_document
from loadgen.report.experiment_page import experiment_html
from tests.browser.chromium import Chromium
from tests.browser.page_checks import BROKEN_WORDS, COLLISIONS
from tests.unit.test_experiment_result import facts, measurement

TRUTH = {"xs": (80.0, 1.0), "small": (45.0, 1.3), "medium_of_generation_2": (30.0, 2.1), "large": (34.0, 4.0)}
CUT_TEXTS = """[...document.querySelectorAll("svg text")].filter((text) => {
  const box = text.getBBox(), view = text.ownerSVGElement.viewBox.baseVal;
  return box.x < 0 || box.x + box.width > view.width;
}).map((text) => text.textContent).join()"""


def test_the_page_of_an_experiment_fits_and_breaks_no_word(browser: Chromium, tmp_path: Path, width: int) -> None:
    rows = [
        measurement(block, arm, p95=p95 * (1 + 0.02 * (block % 3)), price=price * (1 + 0.02 * (block % 2)))
        for block in range(1, 9)
        for arm, (p95, price) in TRUTH.items()
    ]
    page = tmp_path / "page.html"
    page.write_text(experiment_html(experiment_document(facts(rows, arms=tuple(TRUTH)))), "utf-8")

    browser.open(page)

    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(BROKEN_WORDS) == []
    assert browser.evaluate(COLLISIONS) == []
    assert browser.evaluate(CUT_TEXTS) == ""
    assert browser.evaluate("document.querySelectorAll('svg').length") == 5
    assert browser.seen("Log.entryAdded") == []
