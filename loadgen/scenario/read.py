"""Reading a scenario: file → tree → variables → options → keys and types → checks → typed result."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.log import printable, redact
from loadgen.scenario.build import build
from loadgen.scenario.check_replay import check_replay
from loadgen.scenario.checks import check
from loadgen.scenario.document import (
    Document,
    EnvironmentText,
    KeyPath,
    MappingEntry,
    OptionText,
    Problem,
    ScenarioProblems,
    YamlNode,
    dotted,
    substitute_variables,
    template_of,
)
from loadgen.scenario.file import ScenarioFile
from loadgen.scenario.frozen import LOAD_MODES
from loadgen.scenario.generators import GENERATORS
from loadgen.scenario.keys import applies_to, declared_keys, is_section, values_of
from loadgen.scenario.model import EMBEDDED, LoadMode, Scenario
from loadgen.scenario.settings import TimingSettings
from loadgen.scenario.validation import CheckedDocument, validate
from loadgen.scenario.yaml_reader import compose, read_text
from loadgen.units import format_duration_s, format_rate_per_second

TEXT_MAX = 100_000  # characters of one --set
PARTS_MAX = 16  # of a path


def apply_overrides(document: Document, overrides: Sequence[str]) -> None:
    """Put each `path=value` into the document; those that do not fit become problems."""
    for text in overrides:
        wrong = _apply(document, text)
        if wrong is not None:
            what, hint = wrong
            problem = Problem(source=printable(redact(f"--set {text}"), 60), mark=None, path=(), what=what, hint=hint)
            document.problems.append(problem)


def _apply(document: Document, text: str) -> tuple[str, str] | None:
    """None when it worked, else what is wrong and what to do."""
    path, equals, value = text.partition("=")
    parts = path.strip().split(".")
    if not equals or not all(parts) or len(parts) > PARTS_MAX or len(text) > TEXT_MAX:
        return "is not path=value", "write for example --set load.connections=64"
    option = f"--set {text}"
    node = _value(value.strip(), option)
    if node is None:
        return "the value cannot be read as YAML", "quote it for the shell: --set 'thresholds=[p95 < 50ms]'"
    if document.root is None or not isinstance(document.root.value, dict):
        return None  # the file itself has a problem, which is reported
    return _put(document.root, parts, node)


def _put(root: YamlNode, parts: list[str], new: YamlNode) -> tuple[str, str] | None:
    node = root
    for depth, part in enumerate(parts):
        last = depth == len(parts) - 1
        if node.value is None:
            node.value = {}
        if isinstance(node.value, dict):
            if last or part not in node.value:
                node.value[part] = MappingEntry(None, new if last else YamlNode(None, {}, option=new.option))
            node = node.value[part].node
        elif isinstance(node.value, list):
            number = _number(node.value, part)
            if number is None:
                return f"{'.'.join(parts[:depth])} has no element {part!r}", _elements(node.value)
            if last:
                node.value[number] = new
            node = node.value[number]
        else:
            return f"{'.'.join(parts[:depth])} is one value and has no keys", "shorten the path"
    return None


def _number(elements: list[YamlNode], part: str) -> int | None:
    """The position of an element by its number or its name."""
    if part.isascii() and part.isdigit() and len(part) < 6:
        return int(part) if int(part) < len(elements) else None
    names = [_name(element) for element in elements]
    return names.index(part) if part in names else None


def _name(element: YamlNode) -> object:
    entry = element.value.get("name") if isinstance(element.value, dict) else None
    return entry.node.value if entry is not None else None


def _elements(elements: list[YamlNode]) -> str:
    if not elements:
        return "the list is empty"
    names = [printable(name, 30) for element in elements if isinstance(name := _name(element), str)]
    numbers = "0" if len(elements) == 1 else f"0 to {len(elements) - 1}"
    return f"it has {numbers}" + (f", or by name: {', '.join(names[:10])}" if names else "")


def _value(text: str, option: str) -> YamlNode | None:
    if text in ("null", "~"):
        return YamlNode(None, None, text, option)
    if not text.startswith(("[", "{")):
        return YamlNode(None, OptionText(text), text or '""', option)
    read = compose(text, option)
    if read.root is None or read.problems:
        return None
    _mark(read.root, option)
    return read.root


def _mark(node: YamlNode, option: str) -> None:
    node.mark, node.option = None, option
    children = node.value.values() if isinstance(node.value, dict) else node.value
    for child in children if isinstance(node.value, (dict, list)) else ():  # type: ignore[union-attr]
        if isinstance(child, MappingEntry):
            child.mark = None
            _mark(child.node, option)
        elif isinstance(child, YamlNode):
            _mark(child, option)


_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedScenario:
    """A scenario that can run, with where its values came from."""

    scenario: Scenario
    file: ScenarioFile
    document: Document
    text: str  # of the file, as it was read
    warnings: tuple[Problem, ...]


def read_scenario(
    path: Path,
    *,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str],
    variables: Collection[str] | None = None,
) -> LoadedScenario:
    """Read and check a file. Raises ScenarioProblems with everything that is wrong with it."""
    text = read_text(path)
    if isinstance(text, Problem):
        raise ScenarioProblems(str(path), [text])
    return parse_scenario(
        text, source=str(path), folder=path.parent, overrides=overrides, environ=environ, variables=variables
    )


def parse_scenario(
    text: str,
    *,
    source: str,
    folder: Path | None = None,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str],
    variables: Collection[str] | None = None,
) -> LoadedScenario:
    """The same for a text; files of value pools are looked for in `folder`, if there is one. Only `variables` may be
    used, when they are given."""
    document = compose(text, source)
    substitute_variables(document, environ, variables)
    apply_overrides(document, overrides)
    checked = validate(document)
    capture = check_replay(checked, folder)
    check(checked, folder, capture)
    if document.problems or checked.file is None:
        raise ScenarioProblems(source, sorted(document.problems, key=_position))
    return LoadedScenario(
        scenario=build(checked.file, _given_timing(checked), capture),
        file=checked.file,
        document=document,
        text=text,
        warnings=tuple(sorted(document.warnings, key=_position)),
    )


def _given_timing(checked: CheckedDocument) -> set[str]:
    keys = declared_keys(TimingSettings)
    return {one.attribute for name, one in keys.items() if checked.given(("timing", name))}


def portable_text(loaded: LoadedScenario) -> str:
    """The scenario for another machine: as it was written, or with its variables and options resolved.
    Secrets and the addresses of `notify` stay `${NAME}`."""
    root = loaded.document.root
    if root is None or not _was_changed(root):
        return loaded.text
    written = json.dumps(_settled(root, ()), indent=2, ensure_ascii=False)  # JSON is YAML, but for these characters
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", written) + "\n"


def _was_changed(node: YamlNode) -> bool:
    inner = [entry.node for entry in node.value.values()] if isinstance(node.value, dict) else node.value
    changed = bool(node.variables) or node.option is not None
    return changed or (isinstance(inner, list) and any(map(_was_changed, inner)))


def _settled(node: YamlNode, path: KeyPath) -> Any:
    value = node.value
    if isinstance(value, dict):
        return {key: _settled(entry.node, (*path, key)) for key, entry in value.items()}
    if isinstance(value, list):
        return [_settled(element, (*path, number)) for number, element in enumerate(value)]
    if isinstance(value, EnvironmentText) and path[0] == "notify" and path[-1] in ("webhook", "ping"):
        return value.template
    return template_of(value) if isinstance(value, str) else value


def _position(problem: Problem) -> tuple[int, int]:
    return (problem.mark.line, problem.mark.column) if problem.mark is not None else (0, 0)


# Scenarios in the keys of their files: stored ones, to show what differs between runs, and the origin of each value.
#
# Elements of lists go by their name, durations are texts; generators stay as they are stored. What is stored is
# defined in `frozen`.

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
_DEALT = ("planned", "recorded", "coverage")  # of a replay: made from its capture, never written
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
        load |= {name: value for name, value in replay.items() if name not in _DEALT}
    workload["statements"] = [_statement(one) for one in workload.get("statements", ())]
    pools = [{key: pool[key] for key in pool if key != "type"} for pool in sections.get("values", ())]  # query or file
    sections |= {"values": pools, "seed": load.pop("seed", None), "workload": workload, "load": load}
    return {_key(name): _as_value(name, value) for name, value in sections.items()}


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


def _as_value(name: str, value: Any) -> Any:
    if name == "load_mode":
        return _MODES.get(value, value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        write = format_rate_per_second if name == "rate_per_second" else format_duration_s
        return write(value) if name == "rate_per_second" or name.endswith(_SECONDS) else value
    if name in ONE_VALUE:
        return value
    if isinstance(value, Mapping):
        return {_key(inner): _as_value(inner, one) for inner, one in value.items()}
    if isinstance(value, list) and value and all(isinstance(one, Mapping) and "name" in one for one in value):
        return {str(one["name"]): _as_value("", {key: one[key] for key in one if key != "name"}) for one in value}
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
