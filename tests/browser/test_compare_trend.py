"""Comparison and trend in a real browser: nothing is wider than the page, cut off, broken or too pale."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from loadgen.report.compare import comparison_html
from loadgen.report.run_page import report_html
from loadgen.report.trend import trend_html
from loadgen.rules.comparability import ChangeLimits, SettingDifference
from loadgen.rules.comparison import compare
from loadgen.rules.trend import OtherSeries, trend_of
from tests.browser.chromium import Chromium
from tests.browser.page_checks import (
    BROKEN_WORDS,
    COLLISIONS,
    COLOUR,
    HINTS,
    KEYS,
    TEXT_COLOURS,
    channels,
    contrast,
    luminance,
)
from tests.unit.report_builders import full
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


@pytest.fixture(params=PAGES)
def page(browser: Chromium, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    written = tmp_path / "page.html"
    written.write_text(html_of(request.param), "utf-8")
    return written


@cache
def html_of(name: str) -> str:
    return PAGES[name]()


def test_the_page_fits_breaks_no_word_and_marks_what_scrolls(browser: Chromium, page: Path, width: int) -> None:
    browser.open(page)

    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(BROKEN_WORDS) == []
    assert browser.evaluate(COLLISIONS) == []
    assert browser.seen("Log.entryAdded") == []
    boxes = browser.evaluate(HINTS)
    assert all(box["scrolls"] for box in boxes)
    assert [box for box in boxes if box["wide"] != ("scroll sideways" in box["hint"])] == []
    assert any(box["wide"] for box in boxes) is (width == 390)


def test_the_page_follows_the_colours_of_the_reader_and_keeps_contrast(
    browser: Chromium, page: Path, scheme: str
) -> None:
    browser.open(page)

    assert (luminance(channels(browser.evaluate(COLOUR % ("body", "backgroundColor")))) < 0.2) is (scheme == "dark")
    assert browser.evaluate(TEXT_COLOURS), "there are texts"
    behind = channels(browser.evaluate(COLOUR % ("body", "backgroundColor")))
    for shown in browser.evaluate(TEXT_COLOURS):
        assert contrast(behind, channels(shown)) > 4.5, shown


def test_a_key_of_a_comparison_is_drawn_as_its_line_is(browser: Chromium, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(html_of("comparison"), "utf-8")
    browser.open(page)

    drawn = browser.evaluate(KEYS)

    assert len(drawn) == 8
    assert [key for key, line in drawn if key != line] == []


@pytest.mark.parametrize("width", [390], indirect=True)
def test_a_trend_on_a_phone_shows_its_axis_beside_the_newest_run(browser: Chromium, tmp_path: Path, width: int) -> None:
    page = tmp_path / "page.html"
    page.write_text(html_of("trend"), "utf-8")
    browser.open(page)

    visible = browser.evaluate(AXES)

    assert visible, "there are charts"
    assert [one for one in visible if one["labels"] < 3] == []


SHOWN = {"report": lambda: report_html(full()), **{name: PAGES[name] for name in ("comparison", "trend")}}


@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.parametrize("width", [390], indirect=True)
def test_a_phone_shows_the_axis_at_both_ends_of_a_chart(
    browser: Chromium, tmp_path: Path, width: int, name: str
) -> None:
    page = tmp_path / "page.html"
    page.write_text(SHOWN[name](), "utf-8")
    browser.open(page)

    for end in ("scrollWidth", "-scrollWidth"):
        browser.evaluate(SCROLL % end.replace("scroll", "box.scroll"))
        visible = browser.evaluate(AXES)
        assert len(visible) >= 3
        assert [one for one in visible if one["labels"] < 3] == [], end


SCROLL = "document.querySelectorAll('.plot').forEach(box => { box.scrollLeft = %s; })"
# How many labels of the y axis are on the screen, by chart.
AXES = """
[...document.querySelectorAll('.plot')].map(box => {
  const frame = box.getBoundingClientRect(), svg = box.querySelector('svg');
  const across = [...svg.querySelectorAll('line.grid')].map(line => Math.round(line.getBoundingClientRect().top));
  return {chart: svg.id, labels: [...svg.querySelectorAll('text.tick')].map(one => one.getBoundingClientRect()).filter(
    one => one.left >= frame.left && one.right <= frame.right + 1 &&
    across.some(top => Math.abs(top - (one.top + one.bottom) / 2) < 5)).length};
})
"""


@pytest.mark.parametrize("width", [390], indirect=True)
def test_a_phone_shows_every_change_of_a_comparison_without_scrolling(
    browser: Chromium, tmp_path: Path, width: int
) -> None:
    page = tmp_path / "page.html"
    page.write_text(html_of("comparison"), "utf-8")
    browser.open(page)

    shown = browser.evaluate(DOTS)

    assert len(shown) >= 5
    assert all(0 < left < right < width for left, right in shown)


# The left and the right end of each dot in the chart of changes.
DOTS = """
[...document.querySelectorAll('#changes circle')].map(one => one.getBoundingClientRect()).map(
  box => [box.left, box.right])
"""
