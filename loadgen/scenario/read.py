"""Reading a scenario: file → tree → variables → options → keys and types → checks → typed result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadgen.scenario.build import build
from loadgen.scenario.check import check
from loadgen.scenario.document import Document, compose, read_text
from loadgen.scenario.environment import fill_in
from loadgen.scenario.file import ScenarioFile
from loadgen.scenario.override import apply_overrides
from loadgen.scenario.problem import Problem, ScenarioProblems
from loadgen.scenario.scenario import Scenario
from loadgen.scenario.validation import validate


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A scenario that can run, with where its values came from."""

    scenario: Scenario
    file: ScenarioFile
    document: Document
    text: str  # of the file, as it was read
    warnings: tuple[Problem, ...]


def read_scenario(path: Path, *, overrides: Sequence[str] = (), environ: Mapping[str, str]) -> Loaded:
    """Read and check a file. Raises ScenarioProblems with everything that is wrong with it."""
    text = read_text(path)
    if isinstance(text, Problem):
        raise ScenarioProblems(str(path), [text])
    return parse_scenario(text, source=str(path), folder=path.parent, overrides=overrides, environ=environ)


def parse_scenario(
    text: str,
    *,
    source: str,
    folder: Path | None = None,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str],
) -> Loaded:
    """The same for a text; files of value pools are looked for in `folder`, if there is one."""
    document = compose(text, source)
    fill_in(document, environ)
    apply_overrides(document, overrides)
    checked = validate(document)
    check(checked, folder)
    if document.problems or checked.file is None:
        raise ScenarioProblems(source, sorted(document.problems, key=_position))
    return Loaded(
        scenario=build(checked.file),
        file=checked.file,
        document=document,
        text=text,
        warnings=tuple(sorted(document.warnings, key=_position)),
    )


def _position(problem: Problem) -> tuple[int, int]:
    return (problem.mark.line, problem.mark.column) if problem.mark is not None else (0, 0)
