"""report.html: the numbers of summary.json, harmless with any text, small, and complete."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.log import printable
from loadgen.metrics.connections import LoginCounts, ReconnectReason
from loadgen.report import formatting
from loadgen.report.distribution import RANGES_MAX, range_counts, range_edges_ms
from loadgen.report.records import WorkerHost
from loadgen.report.run_page import report_html
from loadgen.rules.thresholds import Checked
from loadgen.scenario.model import Load, LoadMode
from tests.unit.metrics_builders import histogram
from tests.unit.report_builders import (
    FIND_MAX,
    FIND_MAX_STEPS,
    HOSTILE_NAME,
    HOSTILE_TEXT,
    full,
    hostile,
    page,
    record,
    scenario,
    timeline,
)


def _whole(value: float) -> float:
    return int(value) if value.is_integer() else value


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for item in value.values() for number in numbers(item)]
    if isinstance(value, list):
        return [number for item in value for number in numbers(item)]
    return [float(value)] if isinstance(value, (int, float)) and not isinstance(value, bool) else []


# --- true ------------------------------------------------------------------------------------------------------------


def test_every_number_is_that_of_the_summary_to_the_last_digit() -> None:
    run = record()
    shown = {value for value, _ in page(run).data}
    summary = run.summary
    parts = ("totals", "latency_ms", "statements", "thresholds", "worker_results", "measured_seconds", "connections")
    for part in parts:
        assert set(numbers(summary[part])) <= shown, part
    assert {summary["client"]["cpu_percent_of_core"], summary["client"]["wakeup_p99_ms"]} <= shown


def test_a_number_reads_as_it_does_in_every_other_file() -> None:
    run = record()
    read = page(run).data
    assert (run.summary["latency_ms"]["p95"], formatting.ms(run.summary["latency_ms"]["p95"])) in read
    assert (run.summary["totals"]["qps"], formatting.rate(run.summary["totals"]["qps"])) in read


def test_whole_numbers_are_the_same_whether_a_table_returned_them_as_such() -> None:
    run = record()
    returned = json.loads(json.dumps(run.summary), parse_float=lambda text: _whole(float(text)))
    assert report_html(record(summary=returned)) == report_html(run)


def test_the_verdict_and_its_reasons_come_first() -> None:
    for facts, verdict, reason in (
        ({}, "✓ PASSED", "every threshold was met"),
        ({"checked": (Checked(check="p99 < 1ms", value=29.0, passed=False),)}, "✗ MISSED", "not met: p99 < 1ms"),
        ({"invalid": ("the client was the limit",)}, "! INVALID", "the client was the limit"),
        ({"status": "FAILED", "reason": "worker-1 died"}, "✗ ERROR", "worker-1 died"),
        ({"status": "CANCELLED", "reason": "stopped by a user"}, "■ CANCELLED", "stopped by a user"),
    ):
        words = page(record(facts=facts)).words
        assert 0 <= words.index(verdict) < words.index(reason) < words.index("What was run") < words.index("Totals")


def test_a_threshold_with_a_window_names_it_and_the_worst_span() -> None:
    run = record(facts={"checked": (Checked(check="p99 < 100ms", value=230.2, passed=False, window_s=10.0),)})

    assert "✗ missed p99 < 100ms in every 10 s worst 230.2 ms" in page(run).words
    assert "✗ p99 &lt; 100ms in every 10 s" in report_html(run)  # in the chart


def test_percentiles_that_are_not_supported_are_dashes() -> None:
    run = record()
    run.summary["latency_ms"]["p99"] = None
    assert " p99 –" in page(run).words


def test_a_percentile_lies_between_its_bounds() -> None:
    run = record()
    assert run.merged is not None
    bounds = run.merged.tally.whole.response_bounds(950)
    assert bounds.low_ns is not None
    assert bounds.high_ns is not None
    assert bounds.low_ns / 1e6 < run.summary["latency_ms"]["p95"] < bounds.high_ns / 1e6
    assert f"{formatting.ms(bounds.low_ns / 1e6)} … {formatting.ms(bounds.high_ns / 1e6)}" in page(run).words


def test_missing_values_are_reported_and_not_drawn() -> None:
    run = record(seconds=(), merged=None, merged_missing="a worker died", polls=(), scenario=None, started=None)
    words = page(run).words
    assert "No seconds of this run are stored." in words
    assert "cannot be drawn: a worker died" in words
    assert "The warehouse was not polled" in words
    assert "the query history has not been read" in words
    assert not page(run).charts


def test_the_servers_times_are_shown_with_their_coverage() -> None:
    found = {
        "status": "PARTIAL",
        "coverage_percent": 93.5,
        "total": 200,
        "enriched": 187,
        "reason": "13 are not in the history",
        "ledger_samples": 187,
        "ledger_ms": {
            "execution": {"mean": 12.5, "p50": 11.0, "p95": None},
            "total": {"mean": 15.25, "p50": 14.0, "p95": 19.0},
        },
    }
    read = page(record(facts={"enrichment": found}))
    assert {93.5, 187.0, 200.0, 12.5, 15.25} <= {value for value, _ in read.data}
    (said,) = re.findall("13 are not in the history.*Warnings", read.words)
    assert said.index("total 15.25 14.00 19.00") < said.index("execution 12.50 11.00 –")


def test_a_search_shows_its_answer_and_every_step() -> None:
    read = page(record(facts={"find_max": FIND_MAX}, steps=FIND_MAX_STEPS))
    assert {"steps", "steps-qps", "steps-p95"} <= read.charts
    assert "the limit itself was found" in read.words
    assert read.words.count("DEGRADED") >= 2
    assert "limited by the client" not in read.words

    assert FIND_MAX_STEPS[2].reason in read.words
    assert "TRUE_MAX, 8 connections, confidence high; every threshold was met" in read.words

    limit = replace(FIND_MAX_STEPS[2], outcome="CLIENT_LIMIT")
    limited = page(record(facts={"find_max": FIND_MAX}, steps=(*FIND_MAX_STEPS[:2], limit)))
    assert "○ limited by the client" in limited.words
    assert limited.words.count("✕ did not") == 3  # the legend of each chart


def test_a_lower_bound_of_the_maximum_is_one_wherever_it_is_shown() -> None:
    why = "worker-1 was paused; " * 40
    found = FIND_MAX | {"result": "BOUNDED_MAX", "confidence": "low"}
    read = page(record(facts={"find_max": found}, steps=(replace(FIND_MAX_STEPS[2], reason=f"{why}end"),)))

    assert next(shown for value, shown in read.data if value == 8.0) == "≥ 8"
    assert "BOUNDED_MAX, at least 8 connections, confidence low; every threshold was met" in read.words
    assert f"{why}end" in read.words


def test_warnings_of_the_run_are_at_the_top() -> None:
    words = page(record(facts={"environment": {"warnings": ["the machine was busy"], "driver_lightened": True}})).words

    assert words.index("warning: the machine was busy") < words.index("What was run")
    assert "telemetry of the driver off yes" in words
    assert "lightened" not in words.split("Repeat this run")[-2]


def test_stalls_are_drawn_where_they_were() -> None:
    quiet = record()
    assert quiet.merged is not None
    stalled = record(facts={"merged": replace(quiet.merged, stalls=((1_000, 3_500),))})
    assert stalled.summary["stalls"]["spans_s"] == [[1.0, 3.5]]
    assert "<title>stall 2.5 s</title>" in report_html(stalled)
    assert "<title>stall" not in report_html(quiet)


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (Load(connections=8, workers=2, warmup_s=2.0, duration_s=10.0), "load.connections=8"),
        (
            Load(mode=LoadMode.RATE, connections=8, workers=1, duration_s=60.0, rate_per_second=100.0),
            "load.rate=100/s",
        ),
    ],
)
def test_the_command_that_repeats_it_has_the_settings_it_had(load: Load, expected: str) -> None:
    words = page(record(scenario=scenario(load=load))).words
    assert "loadgen run scenario.yaml -c embedded" in words
    assert expected in words
    assert "loadgen report 20261115-0200-orders-7f3a9c --format html" in words


# --- parts of a run --------------------------------------------------------------------------------------------------


def test_stages_have_a_table_when_there_are_any() -> None:
    words = page(full()).words
    assert "stage 1 8 connections 10.0 s to 30.0 s 2,000 0 % 100.0" in words
    assert "stage 2 100.0/s 30.0 s to 34.0 s 2,000 0.10 % 500.0" in words
    assert "Stages; times in milliseconds" not in page(record()).words


def test_labels_of_workers_are_shown_if_any_worker_has_labels() -> None:
    host = WorkerHost(hostname="build-7", version="0.1.0")
    labelled = page(record(machines={"worker-0": replace(host, labels=("zone=eu", "gpu"))}))

    assert "worker machine labels version" in labelled.words
    assert "build-7 zone=eu, gpu 0.1.0" in labelled.words
    assert "worker machine version" in page(record()).words


def test_an_error_names_its_statement() -> None:
    assert "pay SNOWFLAKE_ERROR 100051 2 it failed" in page(record()).words


def test_every_lost_connection_and_refused_login_that_is_kept_is_listed_with_its_error() -> None:
    known = {"worker_id": "worker-1", "at": "2026-11-15T02:00:05.000Z", "second": 5.0, "code": 390_111, "slot": 3}
    logins = {
        **LoginCounts(opened=9, refused=4, reopened={ReconnectReason.SESSION_LOST: 2}).counts(),
        "last_refused": [known | {"text": f"no {number}"} for number in range(4)],
        "last_lost": [known | {"text": "gone", "count": 2, "reason": "session_lost"}],
    }

    read = page(record(facts={"logins": logins}))

    assert all(f"no {number}" in read.words for number in range(4))
    assert "worker-1 2 connections lost (session lost) 5.0 s 390111 gone" in read.words
    assert "sends each measured statement once" in read.words
    assert "logins" not in read.charts, "no second of it has any"


def test_logins_again_are_drawn_when_there_were_any() -> None:
    own = [
        replace(one, logins=LoginCounts(opened=9, refused=1, reopened={ReconnectReason.ERROR: int(at > 4)}))
        for at, one in enumerate(record().seconds)
    ]

    assert "logins" in page(record(seconds=tuple(own))).charts


def test_reports_of_an_earlier_version_have_no_stages_and_no_statements_of_errors() -> None:
    run = record()
    earlier = {**run.summary, "errors": [{"category": "CHECK", "code": None, "count": 1, "example": "0 rows"}]}
    del earlier["stages"]
    assert "– CHECK – 1 0 rows" in page(record(summary=earlier, point_times={})).words


def test_the_context_of_a_run_is_described_in_words() -> None:
    words = page(full()).words
    assert "shared warehouse no" in words
    assert "shared_warehouse" not in words


@given(st.floats(0.001, 3e6), st.floats(0.001, 3e6))
def test_ranges_are_few_and_hold_every_time(one: float, other: float) -> None:
    low, high = sorted((one, other))
    edges = range_edges_ms(low, high)
    assert edges[0] <= low * 1.000001
    assert edges[-1] >= high
    assert edges == sorted(set(edges))
    assert 1 <= len(edges) - 1 <= RANGES_MAX


def test_ranges_follow_a_scale_of_1_2_5() -> None:
    assert range_edges_ms(7.0, 230.0) == [5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0]
    assert range_edges_ms(21.0, 44.0) == [20.0, 25.0, 30.0, 35.0, 40.0, 45.0]
    assert range_edges_ms(0.5, 60_000.0) == [0.1, 1.0, 10.0, 100.0, 1_000.0, 10_000.0, 100_000.0]


def test_every_sample_is_in_one_range() -> None:
    times = histogram([int(ms * 1e6) for ms in (6, 7, 15, 15, 18, 30, 230)])
    assert range_counts(times, [5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0]) == [2, 3, 1, 0, 0, 1]
    words = page(record()).words
    rows = re.findall(r"(\d+) ms to (\d+) ms ([\d,]+) \d", words)
    assert [int(low) for low, _, _ in rows] == list(range(10, 30, 2))
    assert sum(int(count.replace(",", "")) for _, _, count in rows) == 4_000


# --- harmless --------------------------------------------------------------------------------------------------------


def test_foreign_text_shows_literally_and_is_never_an_element() -> None:
    read = page(hostile())
    assert {tag for tag, _ in read.tags} <= {
        *("html", "head", "meta", "title", "style", "body", "header", "div", "span", "h1", "h2", "p", "nav", "a"),
        *("main", "dl", "dt", "dd", "data", "small", "section", "table", "caption", "thead", "tbody", "tr", "th", "td"),
        *("code", "figure", "figcaption", "strong", "i", "b", "output", "details", "summary", "pre", "footer"),
        *("script", "ul", "li", "wbr"),
        *("svg", "desc", "line", "text", "rect", "path", "circle", "g"),
    }  # fmt: skip
    assert HOSTILE_NAME in read.words
    assert " ".join(printable(HOSTILE_TEXT, multiline=True).split()) in read.words
    assert len(read.named("script")) == 2
    assert not [name for _, attributes in read.tags for name in attributes if name.startswith("on") or name == "style"]


def test_nothing_is_fetched_and_only_its_own_script_and_style_are_obeyed() -> None:
    text = report_html(hostile())
    read = page(hostile())
    (policy,) = [meta["content"] for meta in read.named("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert not {"src", "srcset", "action", "xlink:href", "background"} & {name for _, a in read.tags for name in a}
    assert all((link["href"] or "").startswith("#") for link in read.named("a"))
    assert not read.named("link")
    assert not re.search(r"url\(|@import", text)


def test_links_lead_to_sections_and_ids_are_unique() -> None:
    read = page(record())
    ids = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {link["href"] for link in read.named("a")} <= {f"#{name}" for name in ids}
    labelled = [name for _, a in read.tags for name in (a.get("aria-labelledby") or "").split()]
    assert set(labelled) <= set(ids)


# --- small -----------------------------------------------------------------------------------------------------------


def test_an_hour_with_fifty_statements_stays_small_and_holds_every_sample() -> None:
    names = tuple(f"statement {number} with a long name" for number in range(50))
    read = page(record(names, **timeline(3_600, names[:8])))  # page() checks the size
    (data,) = [text for tag, text in read.texts if tag == "script" and text.startswith("{")]
    hover = json.loads(data)
    for name in ("qps", "latency", "statements-qps", "statements-p95"):
        chart = hover["charts"][name]
        places = hover["axes"][chart["axis"]]["px"]
        assert len(places) <= 302
        assert all(len(line) == len(places) for line in chart["values"]), name
    assert "Each point joins up to 12 seconds." in read.words
