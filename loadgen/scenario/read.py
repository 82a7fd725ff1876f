"""Reading a scenario: file → tree → variables → options → keys and types → checks → typed result."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
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
    substitute_variables,
    template_of,
)
from loadgen.scenario.file import ScenarioFile
from loadgen.scenario.keys import declared_keys
from loadgen.scenario.model import Scenario
from loadgen.scenario.settings import TimingSettings
from loadgen.scenario.validation import CheckedDocument, validate
from loadgen.scenario.yaml_reader import compose, read_text

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
