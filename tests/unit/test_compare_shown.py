"""A comparison as it is shown, second by second and as a whole; the command where it needs no server."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import click
import numpy as np
import pytest

from loadgen.cli.main import cli, main
from loadgen.control.worker_metrics_snapshots import Snapshot
from loadgen.metrics.tally import Tally
from loadgen.model.run import Phase
from loadgen.report.compare import compare
from loadgen.report.compare_html import comparison_html
from loadgen.report.compare_json import comparison_data, refusal_data
from loadgen.report.compare_text import comparison_text
from loadgen.report.likeness import Difference
from loadgen.report.limits import Limits, Measure
from loadgen.report.seconds import series_of
from tests.unit.orchestrator_builders import tally, window
from tests.unit.warehouse_runs import run_of, second_row

# --- seconds ---------------------------------------------------------------------------------------------------------


def snapshot(worker: str, at_s: float, count: int, *, phase: Phase = Phase.MEASUREMENT, failed: int = 0) -> Snapshot:
    statements = {"s": tally((10.0,) * count, failed=failed)} if count else {}
    return second_row("r", worker, at_s, Tally(statements=statements), phase=phase)


def test_only_seconds_that_lie_wholly_in_the_measurement_are_used():
    """It began somewhere in the row that ends at 11 s, and lasted 5 s: until some moment between 15 and 16 s."""
    rows = [
        snapshot("w", at_s, count) for at_s, count in ((11, 3), (12, 4), (13, 5), (14, 6), (15, 7), (16, 2), (17, 0))
    ]

    series = series_of([snapshot("w", 10, 9, phase=Phase.WARMUP), *rows], {"w": [window(seconds=5.0)]})

    assert series.succeeded["s"].tolist() == [4, 5, 6, 7]
    assert series.seconds.tolist() == [1.0] * 4


def test_workers_are_added_and_stages_kept_apart():
    rows = [snapshot(worker, at_s, 2, failed=1) for at_s in range(9) for worker in ("w", "v")]
    windows = [window(seconds=3.0), window(seconds=5.0, window_id=2)]

    series = series_of(rows, {"w": windows, "v": windows})

    assert series.succeeded["s"].tolist() == [4] * 7
    assert series.failed["s"].tolist() == [2] * 7
    assert series.buckets.sum(axis=1).tolist() == [4] * 7
    assert series.seconds.tolist() == [1.0] * 7
    assert series.stages.tolist() == [0, 0, 0, 1, 1, 1, 1]


def test_a_worker_that_left_no_rows_leaves_no_seconds():
    assert len(series_of([snapshot("w", 1, 2)], {"w": [window()], "v": [window()]})) == 0
    assert len(series_of([], {})) == 0


def test_planned_stages_do_not_make_a_change_uncertain():
    """Half of the run at twice the rate: resampled as one, the rate would seem to vary by a third."""
    a = run_of(1)
    factor = np.where(np.arange(60) < 30, 1, 2)
    staged = replace(
        a.series,
        buckets=a.series.buckets * factor[:, np.newaxis],
        succeeded={name: counts * factor for name, counts in a.series.succeeded.items()},
    )
    blind, told = (replace(staged, stages=stages) for stages in (np.zeros(60, np.int64), np.arange(60) // 30))

    widths = [
        change.span.high - change.span.low
        for series in (blind, told)
        for change in compare(replace(a, series=series), replace(a, series=series), Limits()).changes
        if (change.statement, change.measure) == (None, Measure.QPS) and change.span is not None
    ]

    assert widths[1] < widths[0] / 5


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
    changed = Difference(key=HOSTILE, a=HOSTILE, b=None, matters=True, varied=True)
    return compare(runs[0], runs[1], Limits(), [changed])


def test_text_has_the_verdict_first_and_nothing_foreign_in_it_can_act():
    text = comparison_text(hostile_comparison())

    assert text.startswith("EQUIVALENT  every metric that counts is within its limit\n")
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert re.search(r"^\* qps +[\d.]+ +[\d.]+ +[+-][\d.]+ % +[+-][\d.]+ … [+-][\d.]+ % +5 % +equivalent$", text, re.M)


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


def test_html_is_one_file_that_loads_and_runs_nothing():
    text = comparison_html(hostile_comparison())

    page = Page(text)

    assert page.policy.startswith("default-src 'none'")
    assert page.risky == []
    assert {"script", "link", "img", "iframe", "object"}.isdisjoint(page.tags)
    assert page.tags.count("svg") == 5
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
def test_wrong_usage_is_told_before_anything_is_asked(words, capsys):
    code = main(["compare", *words, "--format", "json"])

    out, errors = capsys.readouterr()
    assert code == json.loads(out)["error"]["exit_code"] == 2
    assert errors.startswith("error: ")
    assert "\nhint: " in errors


def test_without_a_server_it_is_exit_code_3(capsys, monkeypatch):
    monkeypatch.setenv("LOADGEN_EMBEDDED_ADDRESS", "127.0.0.1:1")

    assert main(["compare", "a", "b", "-c", "embedded"]) == 3
    assert capsys.readouterr().err.startswith("error: no embedded server answers")
