"""report.html in a real browser: nothing foreign runs, nothing is fetched, nothing is complained about, hover works."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.report.records import RunRecord
from loadgen.report.run_page import report_html
from tests.browser.chromium import Chromium
from tests.unit.report_builders import HOSTILE_NAME, full, hostile, record

IMAGE = '<img src="https://example.com/x.png" onerror="window.owned = 1">'
QPS = "document.querySelector('figure[data-chart=qps]')"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    started = Chromium(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


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
    browser.evaluate("1")  # whatever the page said before is in the events now

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


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_it_follows_the_colours_of_the_reader_and_keeps_contrast(browser, show, scheme, dark):
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    show(record())

    style = "getComputedStyle(document.querySelector('%s')).%s"
    back, ink = (channels(browser.evaluate(style % ("body", name))) for name in ("backgroundColor", "color"))
    verdict = channels(browser.evaluate(style % (".verdict", "color")))
    behind = channels(browser.evaluate(style % (".verdict", "backgroundColor")))
    assert (luminance(back) < 0.2) is dark
    assert contrast(back, ink) > 12
    assert contrast(behind, verdict) > 4.5
    for colour in ("s1", "s2", "s3", "s4", "s5"):
        shown = browser.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('--{colour}').trim()")
        assert contrast(back, [int(shown[at : at + 2], 16) for at in (1, 3, 5)]) > 3, colour


# --- what only a browser can tell: where things are ------------------------------------------------------------------

# Texts of each chart that lie on one another, or are cut off at the edge of their picture.
COLLISIONS = """
[...document.querySelectorAll('.plot svg')].flatMap(svg => {
  const frame = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll('text')].filter(one => one.textContent.trim());
  const boxes = texts.map(one => ({text: one.textContent, box: one.getBoundingClientRect()}));
  const cut = boxes.filter(({box}) => box.left < frame.left - 1 || box.right > frame.right + 1
                                   || box.top < frame.top - 1 || box.bottom > frame.bottom + 1);
  const over = boxes.flatMap((one, n) => boxes.slice(n + 1).filter(other =>
    Math.min(one.box.right, other.box.right) - Math.max(one.box.left, other.box.left) > 1 &&
    Math.min(one.box.bottom, other.box.bottom) - Math.max(one.box.top, other.box.top) > 2
  ).map(other => `${svg.id}: ${one.text} on ${other.text}`));
  return [...cut.map(({text}) => `${svg.id}: ${text} is cut off`), ...over];
})
"""
# Words of which a part is in the next line. Long texts, code and values of facts may be broken anywhere.
BROKEN_WORDS = """
(() => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), broken = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (node.parentElement.closest('script,style,svg,pre,dd,.t,details:not([open])')) continue;
    for (const word of node.data.matchAll(/[\\p{L}\\p{N}]+/gu)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const tops = [...range.getClientRects()].map(box => Math.round(box.top));
      if (new Set(tops).size > 1) broken.push(word[0]);
    }
  }
  return broken;
})()
"""
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
# Of boxes that are wider inside than outside: do they scroll, and say so? And of the others: do they say nothing?
HINTS = """
[...document.querySelectorAll('.scroll,.plot')].map(box => ({
  wide: box.scrollWidth > box.clientWidth + 1,
  scrolls: getComputedStyle(box).overflowX === 'auto',
  hint: getComputedStyle(box, '::before').content,
}))
"""


@pytest.fixture(params=[1280, 390])
def width(browser: Chromium, request: pytest.FixtureRequest) -> Iterator[int]:
    chosen: int = request.param
    browser.call("Emulation.setDeviceMetricsOverride", width=chosen, height=800, deviceScaleFactor=1, mobile=False)
    yield chosen
    browser.call("Emulation.clearDeviceMetricsOverride")


@pytest.mark.parametrize("run", [full, hostile], ids=["full", "hostile"])
def test_it_fits_the_screen_without_scrolling_sideways(browser, show, width, run):
    show(run())

    assert browser.evaluate("document.documentElement.scrollWidth") <= width


def test_no_text_of_a_chart_lies_on_another_or_is_cut_off(browser, show, width):
    show(full())

    assert browser.evaluate("document.querySelectorAll('.plot svg').length") >= 12
    assert browser.evaluate(COLLISIONS) == []


def test_no_word_is_broken(browser, show, width):
    show(full())

    assert browser.evaluate(BROKEN_WORDS) == []


def test_no_name_reaches_into_its_value(browser, show, width):
    show(full())

    assert browser.evaluate(FACTS) == []


def test_what_is_wider_than_its_box_scrolls_and_says_so(browser, show, width):
    show(full())
    boxes = browser.evaluate(HINTS)

    assert {box["wide"] for box in boxes} == ({True, False} if width == 390 else {False})
    assert all(box["scrolls"] for box in boxes)
    assert all(("scroll sideways" in box["hint"]) == box["wide"] for box in boxes)


def test_a_key_is_drawn_as_its_line_is(browser, show):
    show(full())
    drawn = browser.evaluate("""
        [...document.querySelectorAll('figure')].flatMap(figure =>
          [...figure.querySelectorAll('.stroke path')].map(key => {
            const line = figure.querySelector(`.plot path[class="${key.getAttribute('class')}"]`);
            return [key, line].map(one => one && ['stroke', 'strokeWidth', 'strokeDasharray'].map(
              name => getComputedStyle(one)[name]).join(' '));
          }))
    """)

    assert len(drawn) >= 15
    assert [key for key, line in drawn if key != line] == []
    assert {"none", "5px, 3px"} <= {key.split(" ", 4)[-1] for key, _ in drawn}


def channels(colour: str) -> list[int]:
    """rgb(1, 2, 3) → [1, 2, 3]."""
    return [int(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]


def luminance(colour: list[int]) -> float:
    """As WCAG defines it."""
    parts = [part / 255 for part in colour]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: list[int], other: list[int]) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
