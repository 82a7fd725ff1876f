"""Comparison and trend in a real browser: nothing is wider than the page, and no word in a table is broken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.report.compare_page import comparison_html
from loadgen.report.trend_page import trend_html
from loadgen.rules.comparability import ChangeLimits, SettingDifference
from loadgen.rules.comparison import compare
from loadgen.rules.trend import OtherSeries, trend_of
from tests.browser.chromium import Chromium
from tests.unit.trend_builders import KEY, QUIET, hung, nights_of, trend
from tests.unit.warehouse_runs import run_of

APART = (
    SettingDifference(key="target.warehouse", a="BENCH_WH", b="BENCH_LARGE_WH", matters=True, varied=True),
    SettingDifference(key="workload.statements.point_lookup.sql", a="SELECT 1", b="SELECT " + "C, " * 60, matters=True),
    SettingDifference(key="workload.statements.refund", a={"sql": "SELECT 1"}, b=None, matters=True, varied=True),
)
NIGHTS = nights_of([*QUIET, 80.0, 41.0, 52.0, 52.0, 67.0, 67.0])
PAGES = {
    "comparison": lambda: comparison_html(
        compare(
            run_of(1, seconds=12, name="20261114-0200-orders-mix-7f3a9c"),
            run_of(2, seconds=12, name="20261115-0200-orders-mix-55aa01"),
            ChangeLimits(),
            APART,
        )
    ),
    "trend": lambda: trend_html(
        trend_of(
            "orders-mix",
            NIGHTS,
            {"are INVALID": 1},
            [OtherSeries(key=KEY, runs=3, newest=NIGHTS[0], differences=APART)],
        ),
        30,
    ),
    "undecided": lambda: trend_html(hung([*QUIET, 30.0]), 30),
    "one run": lambda: trend_html(trend(QUIET[:1]), 30),
}
BROKEN_WORDS = """(() => {
  const broken = [];
  for (const cell of document.querySelectorAll("th, td")) {
    const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      for (const word of node.data.matchAll(/[^\\s-]+/g)) {
        const range = document.createRange();
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        if (range.getClientRects().length > 1) broken.push(word[0]);
      }
    }
  }
  return broken.join(" ");
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    started = Chromium(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", PAGES)
def test_the_page_fits_and_breaks_no_word(browser, tmp_path: Path, name, width):
    page = tmp_path / "page.html"
    page.write_text(PAGES[name](), "utf-8")
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)

    browser.open(page)

    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(BROKEN_WORDS) == ""
    assert browser.seen("Log.entryAdded") == []
