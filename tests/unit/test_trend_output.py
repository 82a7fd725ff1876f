"""A trend as text, JSON and HTML."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import pytest

from loadgen.report import formatting
from loadgen.report.run_text import verdict_lines
from loadgen.report.trend import amount, bars, chart_of, trend_data, trend_html, trend_text
from loadgen.results.comparisons import _no_such_scenario
from loadgen.rules.comparability import Measure, SettingDifference, Subject
from loadgen.rules.trend import OtherSeries, trend_of
from tests.unit.trend_builders import KEY, P95, QUIET, night, nights_of, trend


def test_the_text_begins_with_the_verdict_and_shows_every_metric():
    lines = trend_text(trend([*QUIET, 50.0, 50.0]), 10).splitlines()

    assert lines[0].startswith("REGRESSION  p95 +2")
    (p95,) = [line for line in lines if line.startswith("p95 ")]
    assert p95.rstrip().endswith("REGRESSION")
    assert "██" in p95
    assert any(line.startswith("pay.p95") for line in lines)
    assert trend_text(trend_of("orders", [], {"have the verdict error": 2}), 10).splitlines() == [
        "LEARNING  orders has no run that counts: 2 have the verdict error; 6 comparable runs are needed",
        "  left out: 2 have the verdict error",
    ]


def test_a_run_is_listed_at_the_time_at_which_it_started() -> None:
    runs = [replace(run, started=run.created + timedelta(minutes=3)) for run in nights_of(QUIET[:2])]

    found = trend_of("orders", runs, {})

    assert "2026-01-01 02:03 to 2026-01-02 02:03 UTC" in trend_text(found, 10)
    assert '<td class="w">2026-01-01 02:03</td>' in trend_html(found, 10)
    assert trend_data(found, 10)["runs"][0]["created_at"].startswith("2026-01-01T02:00:00")


def test_a_change_that_rounds_to_zero_has_no_minus():
    assert amount(Measure.P95, -0.0001) == "+0.0 %"
    assert amount(Measure.P95, -0.001) == "-0.1 %"


def test_on_a_narrow_terminal_there_are_fewer_bars_and_no_line_is_too_long():
    found = trend([*QUIET, 50.0, 50.0])
    text = trend_text(found, 30, 80)
    lines = [line.text for line in verdict_lines(text, found.verdict.value, 80)]

    assert max(map(len, lines)) <= 80
    assert " ".join(" ".join(lines).split()) == " ".join(text.split())  # nothing is lost


def test_the_text_has_no_columns_without_numbers():
    one, few = (trend_text(trend(QUIET[:count]), 30).splitlines() for count in (1, 3))

    assert [line.split() for line in one if line.startswith(("metric", "p95"))] == [
        ["metric", "newest"],
        ["p95", *formatting.value_of(Measure.P95, QUIET[0]).split()],
    ]
    assert [line.split()[:4] for line in few if line.startswith("metric")] == [["metric", "oldest", "first", "newest"]]
    assert "1 comparable run, night-000, of 2026-01-01 02:00 UTC" in "\n".join(one)


def test_incomparable_runs_are_described_in_the_words_of_the_scenario():
    apart = (
        SettingDifference(key="load.connections", a=8, b=16, matters=True),
        SettingDifference(key="workload.statements.refund", a={"sql": "SELECT 1"}, b=None, matters=True),
    )
    runs = nights_of(QUIET[:2])
    other = OtherSeries(key=KEY, runs=1, newest=runs[0], differences=apart)

    found = trend_of("orders", runs, {"are INVALID": 1, "have the verdict error": 2}, [other])

    text = trend_text(found, 30)
    assert (
        "  not comparable: 1 run until 2026-01-01 02:00; load.connections: 8 → 16,"
        " workload.statements.refund: only in those" in text
    )
    assert "  left out: 1 is INVALID, 2 have the verdict error" in text
    assert "load.connections: 8 → 16; workload.statements.refund: only in those" in trend_html(found, 30)


class _Outline(HTMLParser):
    """Headings, and the rows of every table."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.sections: list[str] = []
        self.rows: list[int] = []
        self._body = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "section":
            self.sections.append(str(dict(attrs)["id"]))
        if tag == "table":
            self.rows.append(0)
        self._body = tag == "tbody" or (self._body and tag != "thead")
        if tag == "tr" and self._body:
            self.rows[-1] += 1


@pytest.mark.parametrize(
    ("found", "sections"),
    [
        (trend_of("orders", [], {}), []),
        (trend_of("orders", [], {"are INVALID": 1}), ["apart"]),
        (trend_of("orders", nights_of([40.0]), {}), ["numbers", "runs"]),
        (trend_of("orders", nights_of([40.0, 41.0]), {}), ["numbers", "pictures", "runs"]),
    ],
    ids=["nothing", "left-out", "one", "two"],
)
def test_the_page_has_no_empty_section_and_no_empty_table(found, sections):
    outline = _Outline(trend_html(found, 30))

    assert outline.sections == sections
    assert all(outline.rows)


def test_every_run_is_a_point_and_the_newest_has_a_ring():
    found = trend([*QUIET, 80.0, 42.0, 50.0, 50.0])
    track = found.tracks[0]

    dots = chart_of(found, track, "c", 30).dots

    rings = [dot for dot in dots if dot.ring]
    assert len(dots) - len(rings) == 30
    assert [(dot.x, dot.y) for dot in rings] == [(33.0, 50.0)]
    assert rings[0].label == "newest: worse: night-033, 2026-02-03 02:00 UTC, 50.00 ms"
    assert [dot.x for dot in dots if dot.cross] == [32.0, 33.0]
    assert [dot.x for dot in dots if not dot.ring and not dot.cross and dot.radius == 5.0] == [30.0]  # suspected


@pytest.mark.parametrize("count", [2, 5, 9, 30, 100])
@pytest.mark.parametrize(
    "apart",
    [
        timedelta(days=1),
        timedelta(hours=7),
        timedelta(minutes=3),
        timedelta(seconds=9),
        timedelta(days=366),
        timedelta(),
    ],
    ids=str,
)
def test_labels_below_a_chart_differ(apart, count):
    nights = [night(number, {P95: 40.0}, apart=apart) for number in range(count)]
    found = trend_of("orders", nights, {})

    labels = [label for _, label in chart_of(found, found.tracks[0], "c", 300).x.ticks]

    assert len(set(labels)) == len(labels) > 1
    assert len(labels) <= 8


@pytest.mark.parametrize("nights", [2, 7, 30, 36])
def test_the_newest_run_has_a_label_below_the_chart(nights):
    found = trend([40.0 + number / 10 for number in range(nights)])

    ticks = chart_of(found, found.tracks[0], "c", 30).x.ticks

    assert max(at for at, _ in ticks) == nights - 1
    assert len(ticks) <= 8


def test_bars_go_from_the_lowest_to_the_highest():
    assert bars([1.0, 2.0, 8.0]) == "▁▂█"
    assert bars([3.0, 3.0]) == "▁▁"


def test_the_data_is_json_with_the_deciding_values():
    data = json.loads(json.dumps(trend_data(trend([*QUIET, 50.0, 50.0]), 5), allow_nan=False))

    assert (data["verdict"], data["exit_code"], data["runs_in_series"]) == ("regression", 11, 32)
    assert [run["run_id"] for run in data["runs"]] == [f"night-{number:03d}" for number in range(27, 32)]
    (p95,) = [one for one in data["metrics"] if (one["statement"], one["metric"]) == (None, "p95")]
    assert p95["values"][-2:] == [50.0, 50.0]
    assert p95["state"] == "regression"
    change = next(one for one in data["changes"] if one["metric"] == "p95" and one["statement"] is None)
    assert (change["since"], change["confirmed_by"], change["worse"], change["new"]) == (
        "night-030",
        "night-031",
        True,
        True,
    )
    assert change["change"] == pytest.approx(0.25, abs=0.02)
    empty = trend_data(trend_of("orders", [], {}), 5)
    assert (empty["newest"], empty["series"], empty["metrics"]) == (None, None, [])


class _Page(HTMLParser):
    """Elements that are open, and what must not be there."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        if tag in ("script", "link", "img", "iframe") or {"src", "href", "style"} & set(names):
            self.wrong.append(tag)
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_loads_nothing_and_shows_foreign_text_as_text():
    runs = nights_of([*QUIET, 80.0, 42.0, 50.0, 50.0, 50.0])
    evil: dict[Subject, float] = {("<script>x</script>", Measure.P95): 9.0}
    runs = [
        night(number, {**one.values, **evil}, facts={"labels.<b>": f"<i>{number}"}) for number, one in enumerate(runs)
    ]
    other = OtherSeries(key=KEY, runs=2, newest=runs[0])

    page = trend_html(trend_of("<img src=x>", runs, {"are INVALID": 1}, [other]), 30)

    parsed = _Page()
    parsed.feed(page)
    assert (parsed.open, parsed.wrong) == ([], [])
    assert "default-src 'none'" in page.replace("&#x27;", "'")
    assert page.count("<svg ") == len(trend_of("x", runs, {}).tracks)
    assert "&lt;script&gt;" in page
    assert 'class="cross s2"' in page
    assert trend_html(trend_of("empty", [], {}), 30).endswith("</html>\n")


@pytest.mark.parametrize(("name", "shown"), [("", '""'), (" ", '" "'), ("nightly", "nightly")])
def test_a_scenario_without_runs_is_named(name, shown):
    retries: Any = SimpleNamespace(call=lambda read: ["orders"])
    no_session: Any = None

    error = _no_such_scenario(no_session, retries, name)

    assert str(error) == f"scenario {shown} has no run with a result"
