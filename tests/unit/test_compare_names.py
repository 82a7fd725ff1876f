"""One quantity has one name in comparisons, trends and reports; keys of JSON are in JSON only."""

from __future__ import annotations

import json
from dataclasses import replace

from loadgen.report.compare import comparison_data, comparison_html, comparison_text
from loadgen.report.formatting import fact_name
from loadgen.report.trend import trend_data, trend_html, trend_text
from loadgen.rules.comparability import FORBIDDING_KEYS, ChangeLimits, SettingDifference
from loadgen.rules.comparison import compare
from loadgen.rules.trend import OtherSeries, trend_of
from tests.unit.report_builders import page, record
from tests.unit.trend_builders import KEY, QUIET, night, nights_of
from tests.unit.warehouse_runs import run_of

KEYS = tuple(f"environment.{key}" for key in (*FORBIDDING_KEYS, "shared_warehouse"))
APART = tuple(SettingDifference(key=key, a=True, b=False, matters=True, varied=True) for key in KEYS)
COMPARED = compare(run_of(1, seconds=12), run_of(2, seconds=12), ChangeLimits(), APART)


def test_facts_have_the_names_of_the_report_and_private_keys_are_in_json_only() -> None:
    runs = [
        night(one, each.values, key=replace(KEY, driver_lightened=False), facts={"environment.driver_major": f"{one}"})
        for one, each in enumerate(nights_of([*QUIET, 80.0, 80.0]))
    ]
    found = trend_of("orders", runs, {}, [OtherSeries(key=KEY, runs=1, newest=runs[0], differences=APART)])

    for text in (comparison_text(COMPARED), comparison_html(COMPARED), trend_text(found, 30), trend_html(found, 30)):
        assert fact_name("driver_lightened") in text
        for private in ("environment.", "lightened", "driver_major", "shared_warehouse"):
            assert private not in text
    assert "yes → no" in comparison_text(COMPARED)
    assert all(key in json.dumps(document) for document in (comparison_data(COMPARED), trend_data(found, 30))
               for key in KEYS)  # fmt: skip


def test_a_report_and_a_comparison_name_a_fact_alike() -> None:
    words = page(record(facts={"environment": {"driver_lightened": True, "shared_warehouse": False}})).words

    assert all(fact_name(key) in words for key in ("driver_lightened", "shared_warehouse"))
    assert all(fact_name(key) in comparison_text(COMPARED) for key in ("driver_lightened", "shared_warehouse"))
