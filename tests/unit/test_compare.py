"""Comparing two runs: what forbids it, how metrics are judged, what is shown; the command where it needs no server."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from loadgen.cli.main import cli, main
from loadgen.control.worker_metrics_snapshots import Snapshot
from loadgen.errors import UsageError
from loadgen.metrics.tally import Tally
from loadgen.model.run import Phase
from loadgen.report import figures
from loadgen.report.bootstrap import (
    Series,
    Span,
    design_effect,
    log_quantile,
    quantile_difference,
    quantile_span,
    share_difference,
)
from loadgen.report.compare import Change, Verdict, compare, judge
from loadgen.report.compare_html import comparison_html
from loadgen.report.compare_json import comparison_data, refusal_data
from loadgen.report.compare_text import comparison_text, differences_text, interval
from loadgen.report.likeness import Difference, Setting, differences, unfit, unused
from loadgen.report.limits import Limits, Measure, parse_limits
from loadgen.report.seconds import series_of
from loadgen.scenario.as_written import key_as_written
from loadgen.scenario.frozen import freeze
from loadgen.scenario.read import parse_scenario, read_scenario
from tests.unit.orchestrator_builders import tally, times, window
from tests.unit.warehouse_runs import run_of, second_row

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE_FOLDER = ROOT / "examples"
EXAMPLES = sorted(EXAMPLE_FOLDER.glob("*.yaml"))
SCHEMA = json.loads((ROOT / "schemas" / "scenario.schema.json").read_text("utf-8"))
CONFIG = {
    "name": "orders",
    "target": {"warehouse": "WH", "session": {}},
    "workload": {"load_mode": "CONCURRENCY", "statements": [{"name": "pay", "weight": 1, "sql": "update"}]},
}
SETTING = Setting(
    config=CONFIG,
    environment={"driver": "5.2.0", "cores": 8, "loadgen": "1", "python": "3.11.9", "platform": "Linux"},
    workers=2,
    warehouse_sizes=("X-Small",),
)
SUMMARY: dict[str, Any] = {"validity": {"valid": True, "reasons": []}, "find_max": None}


# --- one metric ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("span", "verdict"),
    [
        (Span(0.01, -0.02, 0.04), Verdict.EQUIVALENT),
        (Span(0.05, 0.03, 0.07), Verdict.EQUIVALENT),  # a change, and a tolerated one
        (Span(0.05, -0.01, 0.11), Verdict.INCONCLUSIVE),
        (Span(0.09, 0.07, 0.11), Verdict.INCONCLUSIVE),
        (Span(0.12, 0.08, 0.16), Verdict.WORSE),
        (Span(0.30, -0.10, 0.70), Verdict.INCONCLUSIVE),
        (Span(-0.12, -0.16, -0.08), Verdict.BETTER),
        (Span(0.12, -math.inf, math.inf), Verdict.INCONCLUSIVE),
    ],
)
def test_a_change_is_judged_by_its_interval_and_its_limit(span, verdict):
    assert judge(span, 0.10, more_is_worse=True) is verdict


def test_less_throughput_is_worse():
    assert judge(Span(-0.12, -0.16, -0.08), 0.05, more_is_worse=False) is Verdict.WORSE
    assert judge(Span(0.12, 0.08, 0.16), 0.05, more_is_worse=False) is Verdict.BETTER


def test_an_interval_is_wider_for_one_of_many():
    alone = Span(0.0, -1.96, 1.96)

    assert alone.stretched(1) == alone
    assert alone.stretched(5).high == pytest.approx(2.576, abs=0.001)


def test_a_percentile_is_interpolated_between_the_bounds_of_its_bucket():
    even = times(*np.linspace(10.0, 20.0, 1_001))

    found_ms = math.exp(log_quantile(even.counts, 500)) / 1e6

    assert found_ms == pytest.approx(15.0, rel=0.002)


def test_dependent_samples_are_worth_less():
    counts = times(*np.linspace(10.0, 20.0, 1_001)).counts
    alone = quantile_span(counts, 500, 1.0)

    wide = quantile_span(counts, 500, 4.0)

    assert (wide.high - wide.low) / (alone.high - alone.low) == pytest.approx(2.0, rel=0.05)
    spread = np.linspace(alone.low - alone.point, alone.high - alone.point, 1_001) * 3
    assert design_effect(counts, 500, spread) == pytest.approx(9 * 0.95**2, rel=0.05)
    assert design_effect(counts, 500, np.zeros(100)) == 1.0


def test_few_samples_set_no_bound_to_a_high_percentile():
    counts = times(*np.linspace(10.0, 20.0, 120)).counts

    span = quantile_difference(*(quantile_span(counts, 990, 1.0) for _ in range(2)))

    assert span.point == 0.0
    assert (span.low, span.high) == (-math.inf, math.inf)


def test_no_failure_among_few_says_little_and_among_many_much():
    few, many = (share_difference((0, 0), (whole, whole)) for whole in (100, 100_000))

    assert few.high > 0.03
    assert 0 < many.high < 0.0001
    assert share_difference((0, 30), (1_000, 1_000)).low > 0.015


# --- limits ----------------------------------------------------------------------------------------------------------


def test_limits_are_the_defaults_but_for_what_is_said():
    limits = parse_limits(["p95=20%", "pay.p95=5 %", "a.b.p50=1%"])

    assert limits.of(None, Measure.P95) == limits.of("look", Measure.P95) == pytest.approx(0.20)
    assert limits.of("pay", Measure.P95) == pytest.approx(0.05)
    assert limits.of("a.b", Measure.P50) == pytest.approx(0.01)
    assert limits.of(None, Measure.QPS) == 0.05


@pytest.mark.parametrize("text", ["p95", "p95=10", "p95=0%", "p95=-1%", "p95=x%", "p96=1%", "=1%", "", "p95=1e3%"])
def test_what_is_no_limit_is_refused_with_a_way_to_write_it(text):
    with pytest.raises(UsageError) as refused:
        parse_limits([text])

    assert "such as --limit p95=10%" in refused.value.remedy


@pytest.mark.parametrize("text", ["ghost.p95=1%", "pay.avg=1%", "max_concurrency=1%"])
def test_a_limit_for_what_is_not_compared_is_refused(text):
    with pytest.raises(UsageError):
        compare(run_of(1, seconds=12), run_of(2, seconds=12), parse_limits([text]))


def test_a_metric_with_a_limit_counts():
    a, b = run_of(1, seconds=12), run_of(2, seconds=12)

    plain, asked = compare(a, b, Limits()), compare(a, b, parse_limits(["pay.p99=200%", "p99=1%"]))

    assert (plain.comparisons, asked.comparisons) == (8, 10)
    assert plain.verdict is Verdict.EQUIVALENT
    assert asked.verdict is Verdict.INCONCLUSIVE
    assert asked.reason.startswith("p99: ")


# --- over all --------------------------------------------------------------------------------------------------------


def test_what_is_inconclusive_says_how_much_longer_to_measure():
    runs = [run_of(seed, seconds=12, clients=2, service="lognormal(150ms,0.6)") for seed in (1, 2)]

    comparison = compare(runs[0], runs[1], Limits())

    assert comparison.verdict is Verdict.INCONCLUSIVE
    assert re.search(r"qps: the interval is too wide to tell; measuring \d+ times as long may tell", comparison.reason)


def test_a_long_run_is_compared_in_longer_spans():
    run = run_of(1, seconds=12)
    series = Series(
        seconds=np.tile(run.series.seconds, 400),
        buckets=np.tile(run.series.buckets, (400, 1)),
        sums_ns=np.tile(run.series.sums_ns, 400),
        succeeded={name: np.tile(counts, 400) for name, counts in run.series.succeeded.items()},
        failed={},
        stages=np.repeat([0, 1], 2_400),
    )

    joined = series.joined()

    assert (len(series), len(joined)) == (4_800, 1_200)
    assert joined.buckets.sum() == series.buckets.sum()
    assert joined.seconds.tolist() == [4.0] * 1_200
    assert np.bincount(joined.stages).tolist() == [600, 600]


def test_too_few_seconds_say_nothing():
    comparison = compare(run_of(1, seconds=8), run_of(2, seconds=60, slower=2.0), Limits())

    assert comparison.verdict is Verdict.INCONCLUSIVE
    why = "only 8 full seconds of measurement in A, at least 10 are needed"
    assert comparison.reason == f"qps, p50, p95, error_rate: {why}"
    assert {change.span for change in comparison.changes} == {None}
    (p95,) = [line for line in comparison_text(comparison).splitlines() if line.startswith("* p95")]
    assert re.search(r"\+\d+\.\d %  not enough data ", p95)
    assert comparison_text(comparison).count(why) == 2  # in the verdict, and below the table
    assert {entry["change"] for entry in comparison_data(comparison)["metrics"]} == {None}


def test_a_percentile_of_cancelled_statements_is_a_lower_bound_and_not_compared():
    a, b = run_of(1, seconds=12), run_of(2, seconds=12)
    hung = replace(
        b.merged, tally=Tally(statements={"look": tally((50.0,) * 100, cancelled_ms=(9_000.0,) * 20), "pay": tally()})
    )

    comparison = compare(a, replace(b, merged=hung), Limits())

    by_name = {(change.statement, change.measure): change for change in comparison.changes}
    assert (
        by_name["look", Measure.P95].why == "only a lower bound is known in B: statements timed out or were cancelled"
    )
    assert by_name["pay", Measure.P95].span is not None
    lines = comparison_text(comparison).splitlines()
    shown = next(line for line in lines[lines.index("look") :] if line.startswith("  * p95"))
    assert re.search(r" ms  ≥ [\d,.]+ ms +–  +cannot be bounded +10 %  inconclusive$", shown)
    (entry,) = [
        one for one in comparison_data(comparison)["metrics"] if (one["statement"], one["metric"]) == ("look", "p95")
    ]
    assert (entry["a_at_least"], entry["b_at_least"], entry["change"]) == (False, True, None)


@pytest.mark.parametrize(
    ("a", "b", "verdict", "code"),
    [
        ((40, 42), (40, 42), Verdict.EQUIVALENT, 0),
        ((40, 42), (30, 31), Verdict.WORSE, 11),
        ((30, 31), (40, 42), Verdict.BETTER, 0),
        ((40, None), (40, None), Verdict.INCONCLUSIVE, 0),  # the ceiling was reached: nobody knows where it ends
    ],
)
def test_searches_are_compared_by_the_maximum_they_found(a, b, verdict, code):
    runs = [
        replace(run_of(seed, seconds=12), find_max={"max_concurrency": held, "failed_at": failed})
        for seed, (held, failed) in ((1, a), (2, b))
    ]

    comparison = compare(runs[0], runs[1], Limits())

    assert [change.measure for change in comparison.changes] == [Measure.MAX_CONCURRENCY]
    assert (comparison.verdict, comparison.exit_code) == (verdict, code)
    assert re.search(r"max_concurrency +\d+ connections +\d+ connections", comparison_text(comparison))
    assert "<svg" in comparison_html(comparison)
    json.dumps(comparison_data(comparison), allow_nan=False)


# --- what is alike ---------------------------------------------------------------------------------------------------


def varied(**changes: Any) -> Setting:
    return replace(SETTING, **changes)


def test_what_is_alike_has_no_differences():
    assert differences(SETTING, varied()) == ()


@pytest.mark.parametrize(
    ("other", "key"),
    [
        ({"config": CONFIG | {"target": {"warehouse": "BIG", "session": {}}}}, "target.warehouse"),
        ({"config": CONFIG | {"target": {"warehouse": "WH", "session": {"X": 1}}}}, "target.session.X"),
        ({"environment": {**SETTING.environment, "driver": "4.8.1"}}, "environment.driver_major"),
        ({"environment": {**SETTING.environment, "cores": 2}}, "environment.cores"),
        ({"workers": 3}, "load.workers"),
        ({"warehouse_sizes": ("X-Small", "Small")}, "warehouse.size"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_difference_that_can_change_a_number_forbids_unless_it_is_what_is_compared(other, key):
    found = differences(SETTING, varied(**other))
    allowed = differences(SETTING, varied(**other), [key.partition(".")[0]])

    assert key in [one.key for one in found if one.forbids]
    assert [one for one in allowed if one.forbids] == []


@pytest.mark.parametrize(
    "other",
    [
        {"config": CONFIG | {"name": "orders-b", "labels": {"team": "x"}, "thresholds": [1]}},
        {"environment": {**SETTING.environment, "driver": "5.3.0", "loadgen": "2", "python": "3.12.1"}},
    ],
)
def test_names_thresholds_and_minor_versions_are_noted_only(other):
    found = differences(SETTING, varied(**other))

    assert found
    assert [one for one in found if one.forbids] == []


def test_members_of_lists_are_named():
    other = json.loads(json.dumps(CONFIG))
    other["workload"]["statements"][0]["weight"] = 5

    (found,) = differences(SETTING, varied(config=other))

    assert (found.key, found.a, found.b) == ("workload.statements.pay.weight", 1, 5)
    assert unused(["workload.statements", "workload.statements[pay]", "targt"], [found]) == ["targt"]


# Stored beside another key that says the same, or read from elsewhere.
TWICE = {"frozen_version", "scaling.worker_group_count"}


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Of a stored scenario: the key, and what holds the leaf."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for name, one in inner:
        below = f"{key}.{name}" if key else str(name)
        if isinstance(one, (dict, list)):
            yield from leaves(one, below)
        elif name != "name":
            yield below, (value, name)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_setting_that_is_stored_is_compared_under_a_key_of_the_file(path):
    text = freeze(read_scenario(path, environ={}).scenario)
    searched = json.loads(text)["workload"]["load_mode"] == "FIND_MAX_CONCURRENCY"
    for key, _ in leaves(json.loads(text)):
        changed = json.loads(text)
        holder, name = dict(leaves(changed))[key]
        holder[name] = not holder[name] if isinstance(holder[name], bool) else "something else"

        found = differences(replace(SETTING, config=json.loads(text)), replace(SETTING, config=changed))

        if (
            key in TWICE
            or re.fullmatch(r"values\.\d+\.type", key)
            or (searched and key == "workload.concurrent_connections")
        ):
            assert found == ()
        else:
            assert found, key
            assert [one.key for one in found if not is_key_of_the_file(one.key)] == []


def is_key_of_the_file(key: str) -> bool:
    """Does the JSON Schema of scenarios have it? Names of the user's own stand for any."""
    nodes = [SCHEMA]
    for part in key.split("."):
        nodes = [inner for node in nodes for inner in below(node, part)]
    return bool(nodes)


def below(node: Mapping[str, Any], part: str) -> Iterator[Mapping[str, Any]]:
    if "$ref" in node:
        yield from below(SCHEMA["$defs"][node["$ref"].rpartition("/")[2]], part)
    for option in (*node.get("anyOf", ()), *node.get("oneOf", ()), *node.get("allOf", ())):
        yield from below(option, part)
    if part in node.get("properties", {}):
        yield node["properties"][part]
    if isinstance(node.get("additionalProperties"), dict):
        yield node["additionalProperties"]
    if "items" in node:
        yield node["items"]


@pytest.mark.parametrize(
    ("stored", "written"),
    [
        ("workload.concurrent_connections", "load.connections"),
        ("workload.duration_seconds", "load.duration"),
        ("workload.statements[pay].weight", "workload.statements.pay.weight"),
        ("workload.seed", "seed"),
        ("scaling.worker_group_count", "load.workers"),
        ("find_max.step_duration_seconds", "load.find_max.step"),
        ("workload", "workload"),
        ("load.duration", "load.duration"),
        ("target.warehouse", "target.warehouse"),
    ],
)
def test_a_key_may_be_named_as_it_is_stored(stored, written):
    assert key_as_written(stored) == written


def written(text: str) -> Setting:
    return replace(SETTING, config=json.loads(freeze(parse_scenario(text, source="test", environ={}).scenario)))


ORDERS = """
version: 1
name: orders
connection: embedded
target: {warehouse: WH, database: BENCH, schema: PUBLIC}
workload:
  statements:
    - {name: look, sql: SELECT 1, weight: 3}
    - name: pay
      kind: write
      sql: UPDATE ORDERS SET STATUS = 'PAID' WHERE ID = ?
      params: [{uniform: {min: 1, max: 9}}]
load: {connections: 8, warmup: 1s, duration: 20s}
"""


def test_differences_are_told_in_the_words_of_the_scenario():
    other = ORDERS.replace("connections: 8", "connections: 16").replace("duration: 20s", "duration: 1m")
    other = other.replace("max: 9", "max: 99").replace("'PAID'", "'SENT'").replace("weight: 3", "weight: 4")

    found = differences(written(ORDERS), written(other))

    assert differences_text(found).splitlines() == [
        "  load.connections: 8 → 16",
        "  load.duration: 20s → 1m",
        "  workload.statements.look.weight: 3 → 4",
        "  workload.statements.pay.params changed",
        "  workload.statements.pay.sql changed",
    ]


def test_what_only_one_run_has_is_one_line_and_a_long_list_is_cut():
    quickstart, other = (
        replace(SETTING, config=json.loads(freeze(read_scenario(path, environ={}).scenario)))
        for path in (EXAMPLE_FOLDER / "quickstart.yaml", EXAMPLE_FOLDER / "oltp_mix.yaml")
    )

    found = [one for one in differences(quickstart, other) if one.forbids]
    lines = differences_text(found).splitlines()

    assert "  workload.statements.new_order: only in B" in lines
    assert len(lines) <= 11
    assert len(found) <= 30
    many = [Difference(key=f"target.session.P{number}", a=None, b=1, matters=True) for number in range(13)]
    assert differences_text(many).splitlines()[9:] == [
        "  target.session.P9: not set → 1",
        "  and 3 more; --format json lists all",
    ]


@pytest.mark.parametrize(
    ("status", "summary", "why"),
    [
        ("RUNNING", None, "is RUNNING, and not COMPLETED"),
        ("COMPLETED", None, "has no result"),
        ("COMPLETED", {"validity": {"valid": False, "reasons": ["worker lost"]}}, "is INVALID: worker lost"),
        ("COMPLETED", SUMMARY | {"find_max": {"max_concurrency": None, "reason": "step 1 failed"}}, "found no maximum"),
    ],
)
def test_a_run_that_is_not_fit_to_be_compared(status, summary, why):
    assert why in str(unfit("A", "r", status, summary))
    assert unfit("A", "r", "COMPLETED", SUMMARY) is None


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
    assert re.search(
        r"^\* qps +[\d.]+/s +[\d.]+/s +[+-][\d.]+ % +[+-][\d.]+ … [+-][\d.]+ % +5 % +equivalent$", text, re.M
    )


def test_every_number_has_its_unit():
    """A and B of every row, and no interval is infinite."""
    comparison = compare(run_of(1, seconds=12), run_of(2, seconds=12), Limits())
    lines = comparison_text(comparison).splitlines()
    units = {"qps": "/s", "error_rate": " %"}

    for change in comparison.changes:
        shown = [figures.value_of(change.measure, value) for value in (change.a, change.b)]
        assert all(text.endswith(units.get(change.measure.value, " ms")) for text in shown)
        assert any(f"{shown[0]}  " in line and f" {shown[1]}  " in line for line in lines)
    assert "∞" not in "".join(lines)
    assert max(map(len, lines)) <= 110


@pytest.mark.parametrize(
    ("span", "shown"),
    [
        (Span(0.02, -0.01, 0.05), "-1.0 … +5.0 %"),
        (Span(0.02, -math.inf, math.inf), "cannot be bounded"),
        (Span(0.02, -0.01, math.inf), "at least -1.0 %"),
        (Span(0.02, -math.inf, 0.05), "at most +5.0 %"),
        (None, "not enough data"),
    ],
)
def test_an_interval_without_an_end_is_told_in_words(span, shown):
    change = Change(
        statement="pay",
        measure=Measure.P99,
        a=1.0,
        b=1.02,
        span=span,
        limit=0.15,
        verdict=Verdict.INCONCLUSIVE,
        counts=False,
        certain=False,
    )

    assert interval(change) == shown


def test_a_percentile_that_few_samples_cannot_bound_has_no_bound_in_any_format():
    runs = [run_of(seed, seconds=12, clients=2, service="lognormal(150ms,0.6)") for seed in (1, 2)]

    comparison = compare(runs[0], runs[1], Limits())

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
    assert Span(0.0, -math.inf, math.inf).relative() == Span(0.0, -math.inf, math.inf)


def test_what_is_significant_alone_only_is_explained():
    comparison = compare(run_of(1, seconds=12), run_of(2, seconds=12), Limits())
    alone = replace(comparison.changes[0], verdict=Verdict.WORSE, certain=False)
    doubtful = replace(comparison, changes=(alone, *comparison.changes[1:]))

    for shown in (comparison_text(doubtful), comparison_html(doubtful)):
        assert "worse (uncorrected)" in shown
        assert "significant alone, not after correction for 8 comparisons (Bonferroni)" in shown
    assert "uncorrected" not in comparison_text(comparison)


def test_statements_of_one_run_alone_are_named():
    a, b = run_of(1, seconds=12), run_of(2, seconds=12)
    statements = {**b.merged.tally.statements, "refund": tally((5.0,) * 50)}
    more = replace(b, merged=replace(b.merged, tally=Tally(statements=statements)))

    comparison = compare(a, more, Limits())

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
