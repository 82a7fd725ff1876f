"""Reading a scenario: file → tree → variables → options → keys and types → checks → typed result."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.scenario.build import build
from loadgen.scenario.check import check
from loadgen.scenario.document import Document, YamlNode, compose, read_text
from loadgen.scenario.environment import substitute_variables
from loadgen.scenario.file import ScenarioFile
from loadgen.scenario.model import Scenario
from loadgen.scenario.override import apply_overrides
from loadgen.scenario.problem import KeyPath, Problem, ScenarioProblems
from loadgen.scenario.template import EnvironmentText, template_of
from loadgen.scenario.validation import validate

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
    check(checked, folder)
    if document.problems or checked.file is None:
        raise ScenarioProblems(source, sorted(document.problems, key=_position))
    return LoadedScenario(
        scenario=build(checked.file),
        file=checked.file,
        document=document,
        text=text,
        warnings=tuple(sorted(document.warnings, key=_position)),
    )


def portable_text(loaded: LoadedScenario) -> str:
    """The scenario for another machine: as it was written, or, where it uses variables or options, with them filled in.
    Secrets, and addresses that work for whoever knows them, stay references."""
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
