"""What Snowflake metered for an experiment: which hours count, whose credits they are, and how they are shown."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest

from loadgen.report.experiment import (
    experiment_document,
    experiment_text,
    metering_text,
    with_metering,
)
from loadgen.report.experiment_page import experiment_html
from loadgen.report.exports import experiment_markdown
from loadgen.rules.price import (
    FUNCTION,
    LATENCY,
    VIEW,
    ExperimentMetering,
    MeteredHour,
    hours_of,
    metering_document,
    metering_of,
    metering_source,
    read_metering,
)
from tests.unit.test_experiment_result import eight_blocks, facts

NOON = datetime(2026, 11, 17, 12)  # noqa: DTZ001  naive UTC
HOURS = (NOON, NOON + timedelta(hours=1))
METERING = ExperimentMetering(
    read_at="2026-11-18T00:00:00Z",
    source=FUNCTION,
    begin="2026-11-17T12:00:00Z",
    end="2026-11-17T14:00:00Z",
    hours=2,
    complete=True,
    credits=3.5,
    cloud_services=0.25,
    warehouses={"A_WH": 1.5, "B_WH": 2.0},
    arms={"a": 1.5, "b": 2.0},
    note="",
)


def hour(warehouse: str, hours: float, credits: float) -> MeteredHour:
    return MeteredHour(
        warehouse=warehouse, start=NOON + timedelta(hours=hours), compute=credits, cloud_services=credits / 10
    )


def test_hours_are_those_that_measurements_touch():
    minute = timedelta(minutes=1)
    spans = [
        (NOON + 59 * minute, NOON + 61 * minute),
        (NOON + 5 * minute, NOON + 6 * minute),
        (NOON + timedelta(days=2), NOON + timedelta(days=2, minutes=5)),  # it was resumed
    ]

    assert hours_of(spans) == (*HOURS, NOON + timedelta(days=2))
    assert hours_of([]) == ()


def test_every_arm_has_its_credits_on_its_own_warehouse():
    rows = [hour("A_WH", 0, 1.0), hour("A_WH", 1, 0.5), hour("B_WH", 0, 2.0), hour("A_WH", 2, 7.0), hour("C_WH", 0, 9)]

    found = metering_of(rows, HOURS, {"a": "A_WH", "b": "B_WH"}, NOON + timedelta(hours=6), LATENCY)

    assert found is not None
    assert (found.arms, found.warehouses) == ({"a": 1.5, "b": 2.0}, {"A_WH": 1.5, "B_WH": 2.0})
    assert (found.credits, found.hours, found.complete, found.note) == (3.5, 2, True, "")
    assert found.cloud_services == pytest.approx(0.35)
    assert (found.begin, found.end) == ("2026-11-17T12:00:00Z", "2026-11-17T14:00:00Z")


def test_arms_on_one_warehouse_have_only_a_sum():
    now = NOON + timedelta(hours=4, minutes=59)

    found = metering_of([hour("A_WH", 0, 1.0)], HOURS, {"a": "A_WH", "b": "A_WH"}, now, LATENCY)

    assert found is not None
    assert (found.arms, found.credits, found.complete) == (None, 1.0, False)
    assert "share a warehouse" in found.note


def test_without_a_row_nothing_is_known():
    arms = {"a": "A_WH", "b": "B_WH"}

    assert metering_of([hour("A_WH", 5, 1.0), hour("C_WH", 0, 1.0)], HOURS, arms, NOON, LATENCY) is None


def test_the_view_of_account_usage_is_read_for_what_the_function_does_not_have():
    assert metering_source(HOURS, NOON + timedelta(days=179)) == FUNCTION
    assert metering_source(HOURS, NOON + timedelta(days=181)) == VIEW


def test_it_can_be_stored_and_read_back():
    for one in (METERING, with_sum()):
        assert read_metering(json.loads(json.dumps(metering_document(one)))) == one


def with_sum() -> ExperimentMetering:
    found = metering_of([hour("A_WH", 0, 1.0)], HOURS, {"a": "A_WH", "b": "A_WH"}, NOON, LATENCY)
    assert found is not None
    return found


def test_metered_credits_stand_beside_the_estimate():
    document = experiment_document(facts(eight_blocks(p95=5.0, price=0.5)))
    estimated = document["credits"]

    shown = with_metering(document, METERING)

    assert [arm["metered_credits"] for arm in shown["arms"]] == [1.5, 2.0]
    assert (shown["credits"], shown["metering"]["credits"]) == (estimated, 3.5)
    assert "metering" not in document
    sentence = "Metered: 3.5000 credits of A_WH, B_WH in 2 whole hours, including all other use; estimated: "
    sentence += f"{estimated:.4f}."
    text, page, marked = experiment_text(shown), experiment_html(shown), experiment_markdown(shown)
    assert sentence in text
    assert sentence in page
    assert "Metered: 3.5000 credits" in marked
    for output in (text, page, marked):
        assert "metered" in output
        assert "1.5000" in output
        assert "2.0000" in output
    rows = [line for line in marked.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows[:4]} == {10}


def test_a_sum_names_its_source_and_that_it_may_change():
    document = with_metering(experiment_document(facts(eight_blocks())), with_sum())

    said = metering_text(document)

    assert said is not None
    assert "Arms share a warehouse, so metered credits cannot be divided among them." in said
    assert said.endswith("The value may still change, because metering is up to 3 hours late.")
    assert [arm["metered_credits"] for arm in document["arms"]] == [None, None]
    assert metering_text(experiment_document(facts(eight_blocks()))) is None
