"""Scenarios in the keys of their files: stored ones, to show what differs between runs, and the origin of each value.

Elements of lists go by their name, durations are texts; generators stay as they are stored. What is stored is defined
in `frozen`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from loadgen.log import printable
from loadgen.scenario.document import Document, KeyPath, YamlNode, dotted
from loadgen.scenario.frozen import LOAD_MODES
from loadgen.scenario.generators import GENERATORS
from loadgen.scenario.keys import applies_to, is_section, values_of
from loadgen.scenario.model import EMBEDDED, LoadMode
from loadgen.scenario.read import LoadedScenario
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
    ("replay.", "load."),
)
# Shown as one value each.
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
    replay = sections.pop("replay", None)
    if replay is not None:
        load |= {name: value for name, value in replay.items() if name not in ("planned", "recorded")}
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


VALUE_SHOWN = 100  # characters
_DEFAULT = "default"
_COMPACT = {"columns", "indexes", "params"}  # lists whose elements take one line each


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveValue:
    path: str
    value: str
    origin: str  # `line 12`, `default`, `--set load.rate=5`, `line 12, environment variable WH`


def settings(loaded: LoadedScenario, effective: Mapping[KeyPath, tuple[str, str]]) -> tuple[EffectiveValue, ...]:
    """All values that have an effect. `effective` replaces defaults that were computed: auto → 2."""
    found = []
    for path, setting in _walk(loaded.document, loaded.file, ()):
        computed = effective.get(path) if setting.origin == _DEFAULT or setting.value in ("auto", "null") else None
        if computed is not None:
            setting = EffectiveValue(path=setting.path, value=computed[0], origin=computed[1])
        if _matters(path, loaded):
            found.append(setting)
    return tuple(found)


def _walk(document: Document, section: Any, path: KeyPath) -> Iterator[tuple[KeyPath, EffectiveValue]]:
    for name, declared, value in values_of(section):
        place: KeyPath = (*path, name)
        entry = document.entry(place)
        if not applies_to(section, declared):
            continue
        if is_section(type(value)) and type(value) not in GENERATORS.values():
            yield from _walk(document, value, place)
        elif isinstance(value, (tuple, dict)) and value and entry is not None:
            yield from _walk_container(document, value, place)
        elif entry is not None and (entry.node.value is not None or declared.default is None):
            yield place, _setting(document, place, entry.node)
        elif declared.default is not None or len(place) < 4 or name == "kind":  # others: alternatives, not chosen
            yield place, EffectiveValue(path=dotted(place), value=_written(declared.default), origin=_DEFAULT)


def _walk_container(document: Document, value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, EffectiveValue]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        place: KeyPath = (*path, key)
        entry = document.entry(place)
        if is_section(type(item)) and path[-1] not in _COMPACT and entry and isinstance(entry.node.value, dict):
            yield from _walk(document, item, place)
        elif entry is not None:
            yield place, _setting(document, place, entry.node)


def _setting(document: Document, path: KeyPath, node: YamlNode) -> EffectiveValue:
    origin = f"line {node.mark.line}" if node.mark is not None else printable(node.option or _DEFAULT, 60)
    variables = _variables(node)
    if variables:
        names = ", ".join(variables)
        origin += f", environment variable{'s' * (len(variables) > 1)} {names}"
    return EffectiveValue(path=dotted(path), value=_flow(node), origin=origin)


def _variables(node: YamlNode) -> list[str]:
    if isinstance(node.value, dict):
        return [name for entry in node.value.values() for name in _variables(entry.node)]
    if isinstance(node.value, list):
        return [name for element in node.value for name in _variables(element)]
    return list(dict.fromkeys(node.variables))


def _flow(node: YamlNode) -> str:
    """On one line, with variables unresolved."""
    return printable(" ".join(_flow_of(node).split()), VALUE_SHOWN)


def _flow_of(node: YamlNode) -> str:
    if isinstance(node.value, dict):
        return "{" + ", ".join(f"{key}: {_flow_of(entry.node)}" for key, entry in node.value.items()) + "}"
    if isinstance(node.value, list):
        return "[" + ", ".join(map(_flow_of, node.value)) + "]"
    return node.text or "null"


def _written(default: Any) -> str:
    if default is None:
        return "null"
    if isinstance(default, bool):
        return str(default).lower()
    return str(default) if default not in ({}, []) else "none"


def _matters(path: KeyPath, loaded: LoadedScenario) -> bool:
    """Has the value an effect in this scenario? Defaults of unused sections have none."""
    file = loaded.file
    key = path[-1] if len(path) == 2 else path[1] if len(path) > 1 else ""
    match path[0]:
        case "sessions":
            return file.sessions.count > 0
        case "notify":
            return bool(file.notify)
        case "load":
            replaced = {"connections", "duration", "rate"} if file.load.stages else set()
            return key not in replaced and not (key == "stages" and len(path) == 2)
        case "workload":
            if path[-1] == "session":
                return file.sessions.count > 0
            return key != "think_time" or file.load.mode not in (LoadMode.RATE, LoadMode.REPLAY)
        case "sharding":
            return file.sharding.enabled or key == "enabled"
        case "embedded":
            return file.connection == EMBEDDED
        case _:
            return True
