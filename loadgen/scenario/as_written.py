"""A stored scenario in the words of its file: its keys, elements of lists by their name, durations as text.

For showing what differs between runs, not for running them: `frozen` and `codec` define what is stored. Generators
and the like are left as they are stored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from loadgen.scenario.frozen import LOAD_MODES
from loadgen.scenario.model import LoadMode
from loadgen.units import format_duration_s, format_rate_per_second

# Of the stored `workload`; everything else in it is `load` in the file.
_WORKLOAD = ("statements", "think_time_seconds")
_MODES = {stored: mode.value for mode, stored in LOAD_MODES.items()}
_RENAMED = {
    "load_mode": "mode",
    "concurrent_connections": "connections",
    "worker_group_count": "workers",
    "rate_per_second": "rate",
    "step_duration_seconds": "step",
}
_MOVED = (  # what keys begin with as stored, and in the file
    ("workload.statements.", "workload.statements."),
    ("workload.think_time", "workload.think_time"),
    ("workload.seed.", "seed."),
    ("workload.", "load."),
    ("scaling.", "load."),
    ("find_max.", "load.find_max."),
    ("workers.", "load.workers."),
)
# With a language of their own inside: each is one value.
ONE_VALUE = frozenset({"generate", "params", "transaction", "thresholds", "stages", "indexes", "key_range"})
_SECONDS = "_seconds"
_MEMBER = re.compile(r"\[([^\]]*)\]")


def as_written(config: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a scenario file. Lists whose elements have names are mappings by name."""
    sections = {name: value for name, value in config.items() if name != "frozen_version"}
    stored = dict(sections.pop("workload", {}))
    workload = {name: stored.pop(name) for name in _WORKLOAD if name in stored}
    load = {**stored, **sections.pop("scaling", {}), "find_max": sections.pop("find_max", None)}
    if load.get("load_mode") == LOAD_MODES[LoadMode.RATE]:
        load["max_connections"] = load.pop("concurrent_connections", None)
    elif load.get("load_mode") == LOAD_MODES[LoadMode.FIND_MAX]:
        load.pop("concurrent_connections", None)  # find_max.maximum
    workload["statements"] = [_statement(one) for one in workload.get("statements", ())]
    pools = [{key: pool[key] for key in pool if key != "type"} for pool in sections.get("values", ())]  # query or file
    sections |= {"values": pools, "seed": load.pop("seed", None), "workload": workload, "load": load}
    return {_key(name): _value(name, value) for name, value in sections.items()}


def key_as_written(stored: str) -> str:
    """The same for one key: workload.statements[pay].weight, workload.duration_seconds, scaling.worker_group_count."""
    key = _MEMBER.sub(r".\1", stored)
    if key == "workload":  # a section of the file too
        return key
    before, after = next(((old, new) for old, new in _MOVED if f"{key}.".startswith(old)), ("", ""))
    return ".".join(map(_key, (after + f"{key}."[len(before) :]).rstrip(".").split(".")))


def _statement(stored: Mapping[str, Any]) -> dict[str, Any]:
    written = {name: value for name, value in stored.items() if name not in ("queries", "transaction", "expected_rows")}
    queries = [
        {"sql": query["sql"], "params": query["parameters"]} if "parameters" in query else dict(query)
        for query in stored.get("queries", ())
    ]
    if stored.get("expected_rows") is not None:
        written["expect"] = {"rows": stored["expected_rows"]}
    if stored.get("transaction"):
        return {**written, "transaction": queries}
    return written | (queries[0] if queries else {})


def _key(name: str) -> str:
    return _RENAMED.get(name) or name.removesuffix(_SECONDS)


def _value(name: str, value: Any) -> Any:
    if name == "load_mode":
        return _MODES.get(value, value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        write = format_rate_per_second if name == "rate_per_second" else format_duration_s
        return write(value) if name == "rate_per_second" or name.endswith(_SECONDS) else value
    if name in ONE_VALUE:
        return value
    if isinstance(value, Mapping):
        return {_key(inner): _value(inner, one) for inner, one in value.items()}
    if isinstance(value, list) and value and all(isinstance(one, Mapping) and "name" in one for one in value):
        return {str(one["name"]): _value("", {key: one[key] for key in one if key != "name"}) for one in value}
    return value
