"""report.html: what is drawn over time."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter as Count
from dataclasses import replace

import pytest

from loadgen.model.counts import Counts
from loadgen.report.records import EventKind, RunEvent, RunRecord, StatementTimes, merge_seconds, span_for
from loadgen.report.run_charts import MARKS_MAX, value_axis
from loadgen.report.run_page import report_html
from loadgen.rules.thresholds import Checked
from loadgen.scenario.model import Load, LoadMode
from tests.unit.orchestrator_builders import merged, tally
from tests.unit.report_builders import LONG_NAME, MANY, START, full, page, record, scenario, seconds, worker_second


def drawing(run: RunRecord, chart: str) -> ElementTree.Element:
    (found,) = re.findall(rf'<svg id="{chart}" .*?</svg>', report_html(run))
    return ElementTree.fromstring(found)


def lines(run: RunRecord, chart: str) -> dict[str, int]:
    """How many pieces each line of a chart has, by its class."""
    return Count(
        (path.get("class") or "") for path in drawing(run, chart).iter("path") if "line" in path.attrib["class"]
    )


def texts(run: RunRecord, chart: str) -> list[str]:
    return [text.text or "" for text in drawing(run, chart).iter("text")]


def test_a_change_of_phase_makes_neither_a_hole_nor_a_dot() -> None:
    phases = ["WARMUP"] * 3 + ["MEASUREMENT"] * 3 + ["WARMUP"] + ["MEASUREMENT"] * 4
    own = [worker_second(at + 1.02, phase=phase) for at, phase in enumerate(phases)]
    run = record(seconds=merge_seconds(START, own))
    assert [second.qps is None for second in run.seconds].count(True) == 5
    for chart in ("qps", "latency"):
        assert set(lines(run, chart).values()) == {1}
        assert not list(drawing(run, chart).iter("circle"))


def test_a_line_is_interrupted_where_nothing_was_stored() -> None:
    own = [worker_second(at + 1.02) for at in (*range(6), *range(12, 20))]
    run = record(seconds=merge_seconds(START, own))
    assert set(lines(run, "qps").values()) == {2}
    assert lines(run, "latency")["line s1"] == 2


def test_a_percentile_that_most_of_the_run_cannot_support_is_left_out() -> None:
    own = [worker_second(at + 1.02, ms=(10.0,) * 3, statements={"look": Counts(succeeded=3)}) for at in range(30)]
    run = record(seconds=merge_seconds(START, own))
    assert set(lines(run, "latency")) == {"line s1", "line s2"}  # p50 and p95, and no p99
    idle = [worker_second(at + 1.02, ms=()) for at in range(5)]
    assert "latency" not in page(record(seconds=merge_seconds(START, idle))).charts


def test_keys_are_drawn_as_their_lines_are() -> None:
    text = report_html(full())
    figures_of = re.findall(r'<figure data-chart="([^"]+)".*?</figure>', text)
    assert {"qps", "latency", "statements-p95", "curve", "error-rate"} <= set(figures_of)
    for figure in re.findall(r"<figure .*?</figure>", text):
        legend, plot = figure.split('<div class="plot">')
        keys = re.findall(r'<svg class="stroke".*?<path class="([^"]+)"', legend)
        drawn = re.findall(r'<path class="(line [^"]+)"', plot)
        assert set(keys) in (set(drawn), set()), figure[:80]  # a chart of steps has signs instead


def test_a_threshold_is_a_line_in_the_chart_of_its_metric() -> None:
    run = full()
    assert "✗ p95 < 25ms" in texts(run, "latency")
    assert "↑ above the chart: ✓ p99 < 10s" in texts(run, "latency")  # far above what was measured
    assert "✓ qps > 150" in texts(run, "qps")
    assert "✓ error_rate < 1%" in texts(run, "error-rate")
    assert "✗ pay.p95 < 24ms" in texts(run, "statements-p95")

    def limits(chart: str) -> int:
        return sum("limit" in (line.get("class") or "") for line in drawing(run, chart).iter("line"))

    assert [limits(chart) for chart in ("latency", "qps", "error-rate", "statements-p95")] == [1, 1, 1, 1]
    assert limits("statements-p50") == limits("connections") == 0


def test_events_are_marks_in_every_chart_over_time_and_rows_of_a_table() -> None:
    run = full()
    for chart in ("qps", "latency", "connections", "statements-qps", "cpu"):
        titles = [title.text or "" for title in drawing(run, chart).findall("g/title")]
        assert [title.split(": ", 1)[1] for title in titles] == [event.text for event in run.events], chart
    assert {"START", "STOP", "stage 1", "worker-1 lost"} <= set(texts(run, "qps"))
    words = page(run).words
    assert "12.4 s STOP: duration" in words
    assert "8.0 s worker-1 was lost" in words


@pytest.mark.parametrize(("stopped_s", "ends_s"), [(12.4, 12.0), (7.0, 7.0)], ids=["plan", "STOP"])
def test_planned_load_ends_with_the_plan_or_with_stop(stopped_s: float, ends_s: float) -> None:
    """Warm-up of 2 s, measurement of 10 s, and statements that end until 20 s."""
    stop = RunEvent(at_s=stopped_s, label="STOP", text="STOP", kind=EventKind.STOP)
    load = Load(mode=LoadMode.RATE, connections=8, workers=2, warmup_s=2.0, duration_s=10.0, rate_per_second=50.0)
    for chart, css, planned in (("connections", "s3", scenario()), ("qps", "s4", scenario(load=load))):
        run = record(length=20, events=(stop,), scenario=planned)
        picture = drawing(run, chart)
        (path,) = [one for one in picture.iter("path") if one.get("class") == f"line {css}"]
        (at,) = [one for one in picture.iter("text") if one.text == "10 s"]
        (zero,) = [one for one in picture.iter("text") if one.text == "0 s"]
        left, ten = float(zero.get("x") or 0), float(at.get("x") or 0)
        last = float(re.split("[MLH]", path.get("d") or "")[-1].split()[0])
        assert last == pytest.approx(left + (ten - left) * ends_s / 10, abs=0.2)


def test_what_decides_a_run_is_marked_in_charts_however_many_events_there_are() -> None:
    lost = tuple(
        RunEvent(at_s=1.0 + number / 50, label="", text=f"connection {number}", kind=EventKind.RECONNECT)
        for number in range(2 * MARKS_MAX)
    )
    decisive = (
        RunEvent(at_s=0.0, label="START", text="START", kind=EventKind.START),
        RunEvent(at_s=0.5, label="worker-1 lost", text="worker-1 was lost", kind=EventKind.LOST),
        RunEvent(at_s=11.9, label="STOP", text="STOP", kind=EventKind.STOP),
    )
    run = record(events=(*decisive[:2], *lost, decisive[2]))
    titles = [title.text or "" for title in drawing(run, "latency").findall("g/title")]

    assert len(titles) == MARKS_MAX
    assert [title.split(": ", 1)[1] for title in titles][:2] == ["START", "worker-1 was lost"]
    assert titles[-1].endswith("STOP")
    assert titles[-2].endswith(lost[-1].text)
    assert f"{len(lost) + len(decisive) - MARKS_MAX} earlier events" in page(run).words
    assert "not marked" not in page(full()).words


def test_statements_have_throughput_and_percentiles_over_time() -> None:
    run = full()
    assert {"statements-qps", "statements-p50", "statements-p95", "statements-p99"} <= page(run).charts
    assert len(lines(run, "statements-qps")) == len(lines(run, "statements-p95")) == 3
    assert not page(record(("look",))).charts & {"statements-qps", "statements-p95"}
    assert "Response times by statement were not stored" in page(record(point_times={})).words


def test_names_are_whole_wherever_a_statement_is_named() -> None:
    text = report_html(full()).replace("<wbr>", "")
    for place in (r'<section id="statements".*?</section>', r'<figure data-chart="curve".*?</figure>'):
        assert LONG_NAME in re.search(place, text, re.DOTALL)[0]  # type: ignore[index]
    assert f"{LONG_NAME[:8]}…" not in text


def test_a_limit_is_a_line_in_a_chart_up_to_four_times_its_values() -> None:
    """A limit of about twice the values, as in the examples, is drawn; a far one is named."""
    facts = {"checked": (Checked(check="p95 < 100ms", value=29.0, passed=True),)}
    (latency,) = [one for one in drawing(record(facts=facts), "latency").iter("line") if "limit" in one.attrib["class"]]

    assert float(latency.get("y1") or 0) > 0


def test_a_chart_has_limits_and_keys_of_drawn_lines_only_and_names_the_others() -> None:
    """One colour per statement: the percentile curve and the charts over time agree."""
    names = ("look", "pay", "rename")
    own = [replace(one, times={name: part for name, part in one.times.items() if name != "rename"})
           for one in seconds(30, names)]  # fmt: skip
    kept = StatementTimes(span_for(30))
    second = merge_seconds(START, own, kept)
    found = merged({name: tally(MANY if name != "rename" else (10.0,) * 3, cancelled_ms=(1.0,) * (name == "rename"))
                    for name in names})  # fmt: skip
    checked = tuple(Checked(check=f"{name}.p95 < 25ms", value=29.0, passed=False) for name in names)
    run = record(names, merged=found, seconds=second, span_s=kept.span_s, point_times=kept.points,
                 facts={"merged": found, "checked": checked})  # fmt: skip
    read = report_html(run)
    legends = dict(re.findall(r'<figure data-chart="([^"]+)".*?<span class="keys">(.*?)<output', read))

    assert {text for text in texts(run, "statements-p95") if "p95 <" in text} == {
        "✗ look.p95 < 25ms",
        "✗ pay.p95 < 25ms",
    }
    assert "not drawn: rename: too few samples" in legends["statements-p95"]
    assert "not drawn: all, rename: statements were cut off" in legends["curve"]
    colours = {chart: dict(re.findall(r'class="line (s\d)".*?<span>(\w+)</span>', legends[chart])) for chart in legends}
    assert colours["curve"] == colours["statements-p95"] == {"s1": "look", "s2": "pay"}
    assert "ink" in "".join(lines(record(), "curve"))


def test_the_warehouse_has_the_time_axis_of_the_other_charts() -> None:
    run = full()
    qps, polls = (
        {(text.get("x"), text.text) for text in drawing(run, chart).iter("text") if (text.text or "").endswith(" s")}
        for chart in ("qps", "polls")
    )

    assert qps == polls != set()
    assert [mark for mark in drawing(run, "polls").iter("g") if "mark" in mark.attrib["class"]]
    assert [band for band in drawing(run, "polls").iter("rect") if "band" in band.attrib["class"]]


def test_an_axis_of_counts_has_whole_ticks() -> None:
    assert [label for _, label in value_axis([0.0, 1.0]).ticks] == ["0", "1"]
    assert [label for _, label in value_axis([0.0, 0.5]).ticks] == ["0", "0.2", "0.4", "0.6"]


@pytest.mark.parametrize("warmup_s", [1, 2, 3])
def test_the_warm_up_is_shaded_from_the_start_to_the_measurement(warmup_s: int) -> None:
    phases = ["WARMUP"] * warmup_s + ["MEASUREMENT"] * 6
    own = [worker_second(at + 1.02, phase=phase) for at, phase in enumerate(phases)]
    begun = RunEvent(at_s=warmup_s + 0.01, label="8", text="8 connections", kind=EventKind.LEVEL)
    run = record(seconds=merge_seconds(START, own), events=(begun,))
    picture = drawing(run, "qps")
    (band,) = [one for one in picture.iter("rect") if one.get("class") == "band warmup"]
    (zero,) = [one for one in picture.iter("text") if one.text == "0 s"]
    (mark,) = picture.findall("g/line")
    assert float(band.get("x") or "") == pytest.approx(float(zero.get("x") or ""), abs=0.2)
    end = float(band.get("x") or "") + float(band.get("width") or "")
    assert end == pytest.approx(float(mark.get("x1") or ""), abs=0.2)
