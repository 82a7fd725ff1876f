"""Comparing two runs: which differences of settings forbid it, and how they are described."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadgen.report.compare import differences_text
from loadgen.rules.comparability import (
    RunConditions,
    SettingDifference,
    differences,
    is_setting,
    key_as_written,
    unmatched_keys,
    why_not_comparable,
)
from loadgen.scenario.frozen import freeze
from loadgen.scenario.read import parse_scenario, read_scenario

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE_FOLDER = ROOT / "examples"
EXAMPLES = sorted(EXAMPLE_FOLDER.glob("*.yaml"))
SCHEMA = json.loads((ROOT / "schemas" / "scenario.schema.json").read_text("utf-8"))
CONFIG = {
    "name": "orders",
    "target": {"warehouse": "WH", "session": {}},
    "workload": {"load_mode": "CONCURRENCY", "statements": [{"name": "pay", "weight": 1, "sql": "update"}]},
}
SETTING = RunConditions(
    config=CONFIG,
    environment={"driver": "5.2.0", "cores": 8, "loadgen": "1", "python": "3.11.9", "platform": "Linux"},
    workers=2,
    warehouse_sizes=("X-Small",),
)
SUMMARY: dict[str, Any] = {"validity": {"valid": True, "reasons": []}, "find_max": None}


def varied(**changes: Any) -> RunConditions:
    return replace(SETTING, **changes)


def test_equal_settings_have_no_differences():
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


def test_a_setting_that_no_run_has_is_recognised():
    known = ["target", "target.warehouse", "load.workers", "workload.statements[pay]", "workload"]

    assert [name for name in (*known, "tgt.warehouse", "target.warehose") if not is_setting(name, SETTING)] == [
        "tgt.warehouse",
        "target.warehose",
    ]


def test_members_of_lists_are_named():
    other = json.loads(json.dumps(CONFIG))
    other["workload"]["statements"][0]["weight"] = 5

    (found,) = differences(SETTING, varied(config=other))

    assert (found.key, found.a, found.b) == ("workload.statements.pay.weight", 1, 5)
    assert unmatched_keys(["workload.statements", "workload.statements[pay]", "targt"], [found]) == ["targt"]


# Stored beside another key with the same meaning, or read from elsewhere.
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


def written(text: str) -> RunConditions:
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


def test_differences_are_described_in_the_words_of_the_scenario():
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
    many = [SettingDifference(key=f"target.session.P{number}", a=None, b=1, matters=True) for number in range(13)]
    assert differences_text(many).splitlines()[9:] == [
        "  target.session.P9: not set → 1",
        "  and 3 more; --format json lists all",
    ]


@pytest.mark.parametrize(
    ("status", "summary", "why"),
    [
        ("RUNNING", None, "has the status RUNNING, and not COMPLETED"),
        ("COMPLETED", None, "has no result"),
        ("COMPLETED", {"validity": {"valid": False, "reasons": ["worker lost"]}}, "is INVALID: worker lost"),
        ("COMPLETED", SUMMARY | {"find_max": {"max_concurrency": None, "reason": "step 1 failed"}}, "found no maximum"),
    ],
)
def test_a_run_that_is_not_fit_to_be_compared(status, summary, why):
    assert why in str(why_not_comparable("A", "r", status, summary))
    assert why_not_comparable("A", "r", "COMPLETED", SUMMARY) is None
