"""What a measurement found, the result of an experiment as a document and as text, and its plan."""

from __future__ import annotations

import json
import re

import pytest

from loadgen.metrics.window import MergedWindows, merge
from loadgen.model.experiment import ExperimentMetric
from loadgen.model.threshold import parse_threshold
from loadgen.model.warehouse import Cloud, WarehouseKind, kind_shown, shown_row, snowflake_rates
from loadgen.report.experiment import (
    ExperimentFacts,
    block_lines,
    experiment_document,
    experiment_text,
    interval_text,
)
from loadgen.report.exports import experiment_markdown
from loadgen.rules.experiment import (
    ExperimentDesign,
)
from loadgen.rules.measurement import (
    MeasuredWarehouse,
    Measurement,
    MeasurementFigures,
    MeasurementOutcome,
    MeasurementSource,
    complete_blocks,
    figures_document,
    figures_of,
    read_figures,
)
from loadgen.rules.price import WarehouseSample
from tests.unit.metrics_builders import MS, S, sample, worker

METRICS = [ExperimentMetric.parse(text) for text in ("p50", "a.p95", "avg", "qps", "price")]
RATES = snowflake_rates(Cloud.AWS)


def measured(times_ms) -> MergedWindows:
    """One worker's statements of kind `a`, in window 2."""
    many = [
        sample(window=2, due_ns=2 * S + number, service_ns=round(time * MS)) for number, time in enumerate(times_ms)
    ]
    harvester = worker(many)
    harvester.harvest(9 * S)
    windows = [one for one in harvester.live(9 * S).windows if one.window_id == 2]
    return merge([windows])


def source(merged: MergedWindows, *samples: WarehouseSample) -> MeasurementSource:
    return MeasurementSource(merged=merged, samples=samples, measures_s=10.0)


SMALL = WarehouseSample(at_s=0.0, size="Small", kind=WarehouseKind.GEN1, clusters=2)


def test_figures_are_those_of_the_measured_span():
    merged = measured([10.0 + 0.01 * number for number in range(1_000)])

    figures, missing = figures_of(source(merged, SMALL), METRICS, [parse_threshold("p95 < 1s")], RATES, 3.0)

    assert missing == []
    assert figures.values["p50"] == pytest.approx(15.0, rel=0.01)
    assert figures.values["a.p95"] == pytest.approx(19.5, rel=0.01)
    assert figures.values["avg"] == pytest.approx(14.995, rel=1e-6)
    assert figures.values["qps"] == pytest.approx(1_000 / merged.seconds)
    assert figures.credits is not None
    assert figures.credits == pytest.approx(2 * 2 * merged.seconds / 3600)
    assert figures.values["price"] == pytest.approx(3.0 * figures.credits)
    assert (figures.inside, figures.error_rate, figures.statements) == (True, 0.0, 1_000)
    assert figures.warehouse == MeasuredWarehouse(size="Small", kind=WarehouseKind.GEN1, clusters=2)


def test_percentiles_are_interpolated_within_their_bucket():
    """Two distributions that differ by 0.5 %, a quarter of a bucket."""
    first, second = ([shift * (10.0 + 0.02 * number) for number in range(1_000)] for shift in (1.0, 1.005))

    p50s = [
        figures_of(source(measured(times)), METRICS[:1], [], RATES, 1.0)[0].values["p50"] for times in (first, second)
    ]

    assert p50s[1] / p50s[0] == pytest.approx(1.005, abs=0.001)


def test_what_cannot_be_known_is_named():
    figures, missing = figures_of(source(measured([10.0] * 5)), METRICS, [parse_threshold("p50 < 1ms")], RATES, 1.0)

    assert [text.split(" is ")[0] for text in missing] == ["a.p95", "price"]
    assert (figures.credits, figures.price(1.0), figures.inside) == (None, None, False)


def test_figures_survive_being_stored():
    figures, _ = figures_of(source(measured([10.0] * 50), SMALL), METRICS, [parse_threshold("qps > 1")], RATES, 1.0)

    assert read_figures(json.loads(json.dumps(figures_document(figures)))) == figures


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (None, WarehouseKind.GEN1),
        ('{"type": "STANDARD", "generation": "1"}', WarehouseKind.GEN1),
        ('{"type": "STANDARD", "generation": "2"}', WarehouseKind.GEN2),
        ('{"type": "STANDARD", "resource_constraint": "STANDARD_GEN_2"}', WarehouseKind.GEN2),
        ('{"type": "SNOWPARK-OPTIMIZED", "generation": null}', WarehouseKind.SNOWPARK_OPTIMIZED),
        ("[1]", WarehouseKind.GEN1),
        ("{", WarehouseKind.GEN1),
    ],
)
def test_the_kind_of_a_warehouse_is_read_from_its_row(raw, kind):
    assert kind_shown(shown_row(raw)) is kind


# --- blocks ----------------------------------------------------------------------------------------------------------

P95, PRICE = ExperimentMetric.parse("p95"), ExperimentMetric.parse("price")


def design(arms=("a", "b"), maximum=20):
    return ExperimentDesign(
        arms=arms, reference=arms[0], margins={P95: 0.05, PRICE: 0.05}, blocks_min=2, blocks_max=maximum, seed=1
    )


def measurement(
    block, arm, *, p95=10.0, price=1.0, qps=100.0, attempt=1, outcome=MeasurementOutcome.OK, inside=True, **changes
):
    figures = MeasurementFigures(
        values={"p95": p95, "price": price},
        latency_ms={"p50": p95 / 2, "p95": p95, "p99": None},
        qps=qps,
        error_rate=0.0,
        statements=1_000,
        credits=price,
        limits={"p95 < 50ms": inside},
    )
    return Measurement(
        block=block,
        arm=arm,
        attempt=attempt,
        run_id=f"run-{block}-{arm}-{attempt}",
        outcome=outcome,
        seconds=10.0,
        billed=price,
        figures=figures if outcome is MeasurementOutcome.OK else None,
        **changes,
    )


def test_a_block_counts_when_every_arm_has_a_usable_measurement():
    failed = MeasurementOutcome.FAILED
    rows = [
        *(measurement(1, "a"), measurement(1, "b")),
        measurement(2, "a"),
        *(measurement(3, "a"), measurement(3, "b", outcome=failed), measurement(3, "b", attempt=2)),
        *(measurement(4, "a"), measurement(4, "b", outcome=failed), measurement(4, "b", attempt=2, outcome=failed)),
        *(measurement(5, "a"), measurement(5, "b", price=0.0)),
    ]

    assert [block.number for block in complete_blocks(design(), rows)] == [1, 3]


def test_a_block_names_the_arms_outside_the_limits():
    rows = [measurement(1, "a"), measurement(1, "b", inside=False), measurement(2, "a"), measurement(2, "b")]

    blocks = complete_blocks(design(), rows)

    assert [block.outside for block in blocks] == [{"b"}, set()]
    assert block_lines(design(), blocks, "USD")[-1] == "  price of b  outside the limits  1 USD"


def test_a_measurement_that_is_listed_twice_counts_once():
    rows = [measurement(1, "a"), measurement(1, "b")] * 2

    (block,) = complete_blocks(design(), rows)

    assert set(block.values) == {"a", "b"}


# --- the result ------------------------------------------------------------------------------------------------------


def facts(rows, *, arms=("a", "b"), begun=None, **changes):
    usual = {
        "experiment_id": "20261117-1700-e-abc",
        "name": "e",
        "scenario": "s",
        "design": design(arms),
        "limits": ("p95 < 50ms",),
        "credit_price": 3.0,
        "currency": "USD",
        "rates_date": "2026-09-16",
        "started_at": "2026-11-17T17:00:00Z",
        "ended_at": "2026-11-17T18:00:00Z",
        "begun": begun if begun is not None else max((row.block for row in rows), default=0),
        "measured": rows,
        "connections": {},
        "only_connections_differ": True,
        "verdict": "decided",
        "exit_code": 0,
        "reason": "every pair is decided in every metric",
    }
    return ExperimentFacts(**{**usual, **changes})


def eight_blocks(**of_b):
    wobble = [1.0, 1.02, 0.98, 1.01, 0.99, 1.0, 1.03, 0.97]
    rows = []
    for number, factor in enumerate(wobble, 1):
        changed = {name: value * factor if name != "inside" else value for name, value in of_b.items()}
        rows += [measurement(number, "a"), measurement(number, "b", **changed)]
    return rows


def test_a_better_and_cheaper_arm_is_the_answer():
    document = experiment_document(facts(eight_blocks(p95=5.0, price=0.5)))

    a, b = document["arms"]
    assert document["answer"].startswith("b is the best choice")
    assert (a["on_frontier"], a["dominated_by"], b["on_frontier"], b["dominated_by"]) == (False, ["b"], True, [])
    assert [one["decision"] for one in document["comparisons"]] == ["better", "better"]
    assert a["price_per_1000"] == pytest.approx(3.0)
    assert b["price_per_1000"] == pytest.approx(1.5, rel=0.02)
    assert document["credits"] == pytest.approx(12.0, rel=0.02)
    assert document["blocks"]["complete"] == list(range(1, 9))
    json.dumps(document, allow_nan=False)


def test_an_arm_outside_the_limits_is_not_on_the_frontier():
    document = experiment_document(facts(eight_blocks(p95=5.0, price=0.5, inside=False)))

    assert document["answer"].startswith(
        "Outside the limits: b. a is the only arm inside the limits. b compared with a:"
    )
    assert re.search(r" better in p95 \(50\.0 % lower, .*\), not decided in price \(", document["answer"])
    assert [arm["on_frontier"] for arm in document["arms"]] == [True, False]
    assert document["arms"][1]["price_per_1000"] is None


def test_a_trade_of_price_for_latency_has_no_best_arm():
    document = experiment_document(facts(eight_blocks(p95=5.0, price=2.0)))

    number = r"[+-]\d+\.\d %"
    spans = rf"{number} to {number}"
    assert re.fullmatch(
        r"No arm is best in both price and response time: a, b are on the frontier\. b compared with a: "
        rf"better in p95 \(50\.0 % lower, {spans}\), worse in price \(100\.0 % higher, {spans}\)\.",
        document["answer"],
    )


@pytest.mark.parametrize(
    ("price", "said"),
    [(1.4, "worse in price (40.0 % higher, "), (1.0, "equivalent in price (they differ by less than 5 %)")],
)
def test_the_answer_has_every_metric_also_when_another_is_not_decided(price, said):
    seven = [one for one in eight_blocks(p95=10.4) if one.block <= 7]
    for one in seven:
        one.figures.values["price"] = price if one.arm == "b" else 1.0

    document = experiment_document(facts(seven, verdict="undecided", exit_code=12))

    assert document["comparisons"][0]["decision"] == "undecided"
    assert "b compared with a: not decided in p95 (" in document["answer"]
    assert said in document["answer"]
    assert document["answer"] in experiment_text(document)


def test_without_a_block_there_is_no_result_of_arms():
    document = experiment_document(facts([], verdict="cancelled", exit_code=130))

    assert document["answer"] == "No block is complete, so the arms cannot be compared."
    assert {(one["change"], one["low"], one["high"]) for one in document["comparisons"]} == {(None, None, None)}
    assert "CANCELLED" in experiment_text(document)
    json.dumps(document, allow_nan=False)


def test_an_undecided_pair_is_shown_with_its_interval():
    rows = [one for one in eight_blocks(p95=10.4) if one.block <= 7]

    document = experiment_document(facts(rows, verdict="undecided", exit_code=12))

    assert re.search(r"b compared with a: not decided in p95 \([-+0-9. %]+ to ", document["answer"])


def test_the_text_has_verdict_answer_arms_and_pairs():
    text = experiment_text(experiment_document(facts(eight_blocks(p95=5.0, price=0.5))))

    lines = text.splitlines()
    assert lines[0] == "DECIDED  e  experiment 20261117-1700-e-abc: every pair is decided in every metric"
    assert lines[1].startswith("  b is the best choice")
    assert any(re.match(r"a\s+8\s+100\.0\s+5\.00\s+10\.00\s+–\s+0 %\s+8 of 8", line) for line in lines)
    assert any(re.match(r"p95\s+b\s+a\s+-50\.0 %", line) for line in lines)
    assert "estimated" in lines[-1]


def test_measurements_are_shown_block_by_block():
    blocks = complete_blocks(design(), [one for one in eight_blocks(p95=5.0, price=0.5) if one.block <= 2])

    assert block_lines(design(), blocks, "USD") == [
        "measured in blocks 1, 2:",
        "  p95 of a    10.00 ms  10.00 ms",
        "  p95 of b    5.00 ms  5.10 ms",
        "  price of a  1 USD  1 USD",
        "  price of b  0.5 USD  0.51 USD",
    ]
    assert block_lines(design(), [], "USD") == []


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (None, None, "no bound"),
        (None, 0.027, "at most +2.7 %"),
        (-0.1, None, "at least -10.0 %"),
        (-0.0001, 0.1, "+0.0 % to +10.0 %"),
    ],
)
def test_an_interval_names_the_bounds_that_it_has(low, high, shown):
    assert interval_text(low, high) == shown


def test_every_percentage_is_written_in_the_same_way():
    rows = [one for one in eight_blocks(p95=10.4) if one.block <= 7]
    document = experiment_document(facts(rows, verdict="undecided", exit_code=12))

    for text in (experiment_text(document), experiment_markdown(document)):
        assert "with 95 % probability" in text
        assert not re.search(r"\d%", text)
