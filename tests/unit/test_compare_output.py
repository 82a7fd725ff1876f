"""A comparison as text, JSON and HTML; the command where it needs no server."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import click
import pytest

from loadgen.cli.main import cli, main
from loadgen.metrics.tally import Tally
from loadgen.report import formatting
from loadgen.report.compare import charts, comparison_data, comparison_html, comparison_text, interval, refusal_data
from loadgen.report.run_text import verdict_lines
from loadgen.rules.comparability import ChangeLimits, Measure, SettingDifference
from loadgen.rules.comparison import ChangeVerdict, MetricChange, compare
from loadgen.rules.confidence_intervals import ConfidenceInterval
from tests.unit.orchestrator_builders import tally
from tests.unit.warehouse_runs import run_of

# --- what is shown ---------------------------------------------------------------------------------------------------

HOSTILE = "x</style><script>alert(1)</script>\x1b[31m\u202e"


def renamed(counts: Mapping[str, Any]) -> dict[str, Any]:
    return {HOSTILE if name == "pay" else name: value for name, value in counts.items()}


def hostile_comparison():
    runs = []
    for seed, name in ((1, "a"), (2, HOSTILE)):
        run = run_of(seed, seconds=12, name=name)
        merged = replace(
            run.merged,
            tally=Tally(statements=renamed(run.merged.tally.statements)),
            statement_qps=renamed(run.merged.statement_qps),
        )
        series = replace(run.series, succeeded=renamed(run.series.succeeded), failed=renamed(run.series.failed))
        runs.append(replace(run, scenario=HOSTILE, merged=merged, series=series))
    changed = SettingDifference(key=HOSTILE, a=HOSTILE, b=None, matters=True, varied=True)
    return compare(runs[0], runs[1], ChangeLimits(), [changed])


def test_text_has_the_verdict_first_and_nothing_foreign_in_it_can_act():
    text = comparison_text(hostile_comparison())

    assert text.startswith(
        "EQUIVALENT  all statements together are within their limits; 1 metric of single statements undecided\n"
    )
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert re.search(
        r"^\* qps +[\d.]+/s +[\d.]+/s +[+-][\d.]+ % +[+-][\d.]+ … [+-][\d.]+ % +5 % +equivalent$", text, re.M
    )


def test_a_narrow_terminal_keeps_the_columns_that_matter():
    comparison = compare(run_of(1, seconds=12), run_of(2, seconds=12), ChangeLimits())

    lines = verdict_lines(comparison_text(comparison, 80), comparison.verdict.value, 80)

    assert max(len(line.text) for line in lines) <= 80
    (head,) = [line.text for line in lines if line.text.split()[:2] == ["A", "B"]]
    assert head.split() == ["A", "B", "95", "%", "interval", "limit", "verdict"]
    assert "  not shown on this narrow terminal: change" in [line.text for line in lines]
    assert (lines[0].mark, lines[0].colour) == ("EQUIVALENT", "green")


def test_every_number_has_its_unit():
    """A and B of every row, and no interval is infinite."""
    comparison = compare(run_of(1, seconds=12), run_of(2, seconds=12), ChangeLimits())
    lines = comparison_text(comparison).splitlines()
    units = {"qps": "/s", "error_rate": " %"}

    for change in comparison.changes:
        shown = [formatting.value_of(change.measure, value) for value in (change.a, change.b)]
        assert all(text.endswith(units.get(change.measure.value, " ms")) for text in shown)
        assert any(f"{shown[0]}  " in line and f" {shown[1]}  " in line for line in lines)
    assert "∞" not in "".join(lines)
    assert max(map(len, lines)) <= 110


@pytest.mark.parametrize(
    ("span", "shown"),
    [
        (ConfidenceInterval(0.02, -0.01, 0.05), "-1.0 … +5.0 %"),
        (ConfidenceInterval(0.02, -math.inf, math.inf), "cannot be bounded"),
        (ConfidenceInterval(0.02, -0.01, math.inf), "at least -1.0 %"),
        (ConfidenceInterval(0.02, -math.inf, 0.05), "at most +5.0 %"),
        (None, "not enough data"),
    ],
)
def test_an_interval_without_an_upper_end_is_described_in_words(span, shown):
    change = MetricChange(
        statement="pay",
        measure=Measure.P99,
        a=1.0,
        b=1.02,
        span=span,
        limit=0.15,
        verdict=ChangeVerdict.INCONCLUSIVE,
        counts=False,
        certain=False,
    )

    assert interval(change) == shown


def test_a_percentile_that_few_samples_cannot_bound_has_no_bound_in_any_format():
    runs = [run_of(seed, seconds=12, clients=2, service="lognormal(150ms,0.6)") for seed in (1, 2)]

    comparison = compare(runs[0], runs[1], ChangeLimits())

    rows = [one for one in comparison.changes if (one.statement, one.measure) == ("pay", Measure.P95)]
    assert [(row.span.low, row.span.high) for row in rows if row.span] == [(-math.inf, math.inf)]
    assert rows[0].why == "there are too few samples to bound the change"
    text, page = comparison_text(comparison), comparison_html(comparison)
    for shown in (text, page):
        assert "cannot be bounded" in shown
        assert f"pay.p95: {rows[0].why}" in shown
        assert "∞" not in shown
        assert "-100.0" not in shown
    (entry,) = [
        one for one in comparison_data(comparison)["metrics"] if (one["statement"], one["metric"]) == ("pay", "p95")
    ]
    assert (entry["low"], entry["high"]) == (None, None)
    assert ConfidenceInterval(0.0, -math.inf, math.inf).relative() == ConfidenceInterval(0.0, -math.inf, math.inf)


def test_a_result_that_is_significant_only_alone_is_explained():
    comparison = compare(run_of(1, seconds=12), run_of(2, seconds=12), ChangeLimits())
    alone = replace(comparison.changes[0], verdict=ChangeVerdict.WORSE, certain=False)
    doubtful = replace(comparison, changes=(alone, *comparison.changes[1:]))

    for shown in (comparison_text(doubtful), comparison_html(doubtful)):
        assert "worse †" in shown
        assert "significant alone, not after correction for 8 comparisons (Bonferroni)" in shown
    assert "uncorrected" not in comparison_text(comparison)


def test_statements_of_one_run_alone_are_named():
    a, b = run_of(1, seconds=12), run_of(2, seconds=12)
    statements = {**b.merged.tally.statements, "refund": tally((5.0,) * 50)}
    more = replace(b, merged=replace(b.merged, tally=Tally(statements=statements)))

    comparison = compare(a, more, ChangeLimits())

    assert "only in B, not compared: refund" in comparison_text(comparison)
    assert "only in B, not compared: refund" in comparison_html(comparison)
    data = comparison_data(comparison)
    assert (data["only_in_a"], data["only_in_b"]) == ([], ["refund"])


class Page(HTMLParser):
    """Tags, and every attribute that could load or run something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.risky: list[str] = []
        self.policy = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        named = dict(attrs)
        self.risky += [name for name in named if name.startswith("on") or name in ("src", "href", "style")]
        if named.get("http-equiv") == "Content-Security-Policy":
            self.policy = named["content"] or ""


def test_a_percentile_of_few_samples_a_second_is_a_line_without_gaps():
    """About 12 statements a second: too few for p95 of one second."""
    a, b = (run_of(seed, seconds=40, clients=2, slots=2, service="lognormal(160ms,0.3)") for seed in (1, 2))

    drawn = {chart.chart_id: chart for chart in charts(compare(a, b, ChangeLimits(), ()))}

    for line in drawn["p95"].lines:
        assert len(line.points) >= 10
        assert None not in [value for _, value in line.points]
    assert len(drawn["rate"].lines[0].points) == 40


def test_html_is_one_file_that_loads_and_runs_nothing():
    text = comparison_html(hostile_comparison())

    page = Page(text)

    assert page.policy.startswith("default-src 'none'")
    assert page.risky == []
    assert {"script", "link", "img", "iframe", "object"}.isdisjoint(page.tags)
    assert page.tags.count("figure") == 5
    assert "\x1b" not in text
    assert "&lt;script&gt;" in text


def test_json_is_the_contract():
    data = json.loads(json.dumps(comparison_data(hostile_comparison()), allow_nan=False))

    assert (data["schema_version"], data["verdict"], data["exit_code"]) == (1, "equivalent", 0)
    assert (data["a"]["run_id"], data["a"]["compared_seconds"]) == ("a", 12)
    (p95,) = [entry for entry in data["metrics"] if entry["statement"] is None and entry["metric"] == "p95"]
    assert p95["low"] <= p95["change"] <= p95["high"]
    assert (p95["unit"], p95["limit"], p95["counts"]) == ("ms", 0.1, True)
    assert data["configuration"][0]["varied"] is True
    refused = refusal_data("a", "b", ["A is RUNNING"], "wait", [])
    assert (refused["verdict"], refused["exit_code"], refused["reasons"]) == ("not comparable", 2, ["A is RUNNING"])


# --- the command line ------------------------------------------------------------------------------------------------


def test_help_has_examples_that_the_command_accepts(capsys):
    assert main(["compare", "--help"]) == 0

    text = capsys.readouterr().out
    examples = re.findall(r"^ +loadgen (compare .*)$", text, re.M)
    assert len(examples) == 3
    command = cli.get_command(click.Context(cli), "compare")
    assert command is not None
    for example in examples:
        command.make_context(None, shlex.split(example)[1:])


@pytest.mark.parametrize("words", [[], ["one"], ["a", "b", "--limit", "p95=much"], ["a", "b", "--limit", "p59=1%"]])
def test_wrong_usage_is_rejected_before_the_first_query(words, capsys):
    code = main(["compare", *words, "--format", "json"])

    out, errors = capsys.readouterr()
    assert code == json.loads(out)["error"]["exit_code"] == 2
    assert errors.startswith("error: ")
    assert "\nhint: " in errors


def test_without_a_server_it_is_exit_code_3(capsys, monkeypatch):
    monkeypatch.setenv("LOADGEN_EMBEDDED_ADDRESS", "127.0.0.1:1")

    assert main(["compare", "a", "b", "-c", "embedded"]) == 3
    assert capsys.readouterr().err.startswith("error: no embedded server answers")
