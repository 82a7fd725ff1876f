"""report.html in a real browser: nothing foreign runs, nothing is fetched, nothing is complained about, hover works."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.metrics.recorder import ReplayTally, RowCount
from loadgen.report.records import RunRecord
from loadgen.report.run_page import report_html
from loadgen.workload.replay import PLAN_PARTS
from tests.browser.chromium import Chromium
from tests.browser.page_checks import (
    BROKEN_WORDS,
    COLLISIONS,
    COLOUR,
    CROSSED,
    HINTS,
    KEYS,
    channels,
    contrast,
    luminance,
)
from tests.unit.report_builders import HOSTILE_NAME, full, hostile, record
from tests.unit.test_replay_report import replay_record

IMAGE = '<img src="https://example.com/x.png" onerror="window.owned = 1">'
QPS = "document.querySelector('figure[data-chart=qps]')"


@pytest.fixture
def show(browser: Chromium, tmp_path: Path) -> Iterator[object]:
    def shown(run: RunRecord) -> Path:
        page = tmp_path / "report.html"
        page.write_text(report_html(run), "utf-8")
        browser.open(page)
        return page

    yield shown
    browser.call("Emulation.setScriptExecutionDisabled", value=False)
    browser.call("Emulation.setEmulatedMedia", media="", features=[])


def test_foreign_text_runs_nothing_and_shows_literally(browser, show):
    page = show(hostile())

    assert browser.evaluate("document.title").endswith("run 20261115-0200-orders-7f3a9c")
    assert browser.evaluate("document.querySelectorAll('script').length") == 2
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    assert HOSTILE_NAME in browser.evaluate("document.querySelector('#statements td').textContent")
    assert [request["request"]["url"] for request in browser.seen("Network.requestWillBeSent")] == [page.as_uri()]


def test_the_policy_stops_what_a_page_must_not_do(browser, show):
    """Even if something foreign became an element, it could neither run nor fetch nor style."""
    show(record())
    browser.evaluate("window.violations = 0")
    browser.evaluate("document.addEventListener('securitypolicyviolation', () => window.violations++)")
    browser.evaluate(
        "evil = document.createElement('script'); evil.textContent = 'owned = 1'; document.body.append(evil)"
    )
    browser.evaluate(f"document.body.insertAdjacentHTML('beforeend', '{IMAGE}')")
    waited = browser.call(
        "Runtime.evaluate",
        expression="fetch('https://example.com/').then(() => 'sent', () => 'refused')",
        awaitPromise=True,
        returnByValue=True,
    )

    assert waited["result"]["value"] == "refused"
    assert browser.evaluate("window.owned") is None
    assert browser.evaluate("window.violations") >= 3
    requests = browser.seen("Network.requestWillBeSent")
    tried = {one["requestId"] for one in requests if not one["request"]["url"].startswith("file:")}
    refused = {one["requestId"] for one in browser.seen("Network.loadingFailed") if one.get("blockedReason") == "csp"}
    assert tried <= refused  # Chromium lists one of them, and never sends it


@pytest.mark.parametrize("run", [record, hostile], ids=["plain", "hostile"])
def test_the_browser_has_nothing_to_complain_about(browser, show, run):
    show(run())
    browser.evaluate("1")  # all earlier messages of the page are in the events now

    assert browser.seen("Runtime.exceptionThrown") == []
    assert browser.seen("Runtime.consoleAPICalled") == []
    assert browser.seen("Log.entryAdded") == []


def test_hovering_shows_the_values_of_a_moment_in_every_chart_over_time(browser, show):
    show(record())
    browser.evaluate(f"{QPS}.scrollIntoView()")
    box = browser.evaluate(
        f"(r => [r.left, r.top, r.width, r.height])({QPS}.querySelector('.plot svg').getBoundingClientRect())"
    )
    browser.move_to(box[0] + box[2] * 0.5, box[1] + box[3] * 0.5)

    moment = browser.evaluate(f"{QPS}.querySelector('output').textContent")
    assert moment in ("at 5 s, measured", "at 6 s, measured")
    assert browser.evaluate(f"{QPS}.querySelector('.key b').textContent") == "200.0/s"
    latency = "document.querySelector('figure[data-chart=latency]')"
    assert browser.evaluate(f"{latency}.querySelector('output').textContent") == moment
    assert browser.evaluate(f"{latency}.querySelector('.key b').textContent").endswith(" ms")
    assert float(browser.evaluate(f"{latency}.querySelector('.cursor').getAttribute('x1')")) > 0

    browser.move_to(1, 1)
    assert browser.evaluate(f"{QPS}.querySelector('output').textContent") == ""


def test_the_keyboard_reaches_every_moment(browser, show):
    show(record())
    browser.evaluate(f"{QPS}.querySelector('.plot svg').focus()")
    for _ in range(4):
        browser.press("ArrowRight")

    assert browser.evaluate(f"{QPS}.querySelector('output').textContent") == "at 3 s, measured"
    browser.press("ArrowLeft")
    assert browser.evaluate(f"{QPS}.querySelector('output').textContent") == "at 2 s, measured"
    assert browser.evaluate(f"{QPS}.querySelector('.key b').textContent") == ""  # measured in part: no rate


def test_it_is_readable_without_its_script(browser, show):
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    show(record())

    read = browser.call("DOM.getDocument", depth=-1)
    assert str(read).count("'nodeName': 'svg'") >= 6
    assert "every threshold was met" in str(read)


def test_it_follows_the_colours_of_the_reader_and_keeps_contrast(browser, show, scheme):
    show(record())

    back, ink = (channels(browser.evaluate(COLOUR % ("body", name))) for name in ("backgroundColor", "color"))
    verdict = channels(browser.evaluate(COLOUR % (".verdict", "color")))
    behind = channels(browser.evaluate(COLOUR % (".verdict", "backgroundColor")))
    assert (luminance(back) < 0.2) is (scheme == "dark")
    assert contrast(back, ink) > 12
    assert contrast(behind, verdict) > 4.5
    for colour in ("s1", "s2", "s3", "s4", "s5"):
        shown = browser.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('--{colour}').trim()")
        assert contrast(back, [int(shown[at : at + 2], 16) for at in (1, 3, 5)]) > 3, colour


# --- positions, which need a browser ---------------------------------------------------------------------------------

# Names of facts and of tiles that reach into their values.
FACTS = """
[...document.querySelectorAll('dl > div')].flatMap(pair => {
  const [name, value] = ['dt', 'dd'].map(tag => {
    const range = document.createRange();
    range.selectNodeContents(pair.querySelector(tag));
    return range.getBoundingClientRect();
  });
  const beside = Math.min(name.right, value.right) - Math.max(name.left, value.left) > 0;
  const level = Math.min(name.bottom, value.bottom) - Math.max(name.top, value.top) > 3;
  return beside && level ? [pair.textContent] : [];
})
"""


def test_hostile_names_do_not_make_it_scroll_sideways(browser, show, width):
    show(hostile())

    assert browser.evaluate("document.documentElement.scrollWidth") <= width


def test_it_fits_the_screen_and_no_text_is_cut_broken_or_covered(browser, show, width):
    show(full())

    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate("document.querySelectorAll('.plot svg').length") >= 12
    assert browser.evaluate(COLLISIONS) == []
    assert browser.evaluate(CROSSED) == []
    assert browser.evaluate(BROKEN_WORDS) == []
    assert browser.evaluate(FACTS) == []
    boxes = browser.evaluate(HINTS)  # content that is wider than its box scrolls and is marked
    assert {box["wide"] for box in boxes} == ({True, False} if width == 390 else {False})
    assert all(box["scrolls"] for box in boxes)
    assert all(("scroll sideways" in box["hint"]) == box["wide"] for box in boxes)


def test_a_replay_fits_and_nothing_of_its_charts_collides(browser, show, width):
    sent = tuple(30 + number % 7 for number in range(PLAN_PARTS))
    show(replay_record(ReplayTally(sent=sent, rows={"look": RowCount(100, 250)})))

    assert browser.evaluate("document.querySelectorAll('#replay .plot svg').length") == 1
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(COLLISIONS) == browser.evaluate(BROKEN_WORDS) == []


def test_a_key_is_drawn_as_its_line_is(browser, show):
    show(full())
    drawn = browser.evaluate(KEYS)

    assert len(drawn) >= 15
    assert [key for key, line in drawn if key != line] == []
    assert {"none", "5px, 3px"} <= {key.split(" ", 4)[-1] for key, _ in drawn}


def test_the_reason_of_a_step_is_on_the_screen(browser, show, width):
    show(full())

    shown = browser.evaluate(REASONS)

    assert shown
    assert all(0 <= left < right <= width for left, right in shown)


REASONS = """
[...document.querySelectorAll('td.reason > span')].map(one => one.getBoundingClientRect()).map(
  box => [box.left, box.right])
"""
