"""`loadgen validate`: is a scenario right, and what would it do? Connects to nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadgen.cli.common import echo
from loadgen.cli.options import override_option
from loadgen.log import printable
from loadgen.units import counted

if TYPE_CHECKING:
    from loadgen.rules.scenario_plan import ScenarioPlan
    from loadgen.scenario.document import Problem
    from loadgen.scenario.read import LoadedScenario

INVALID = 2  # exit code


@dataclass(frozen=True, slots=True, kw_only=True)
class FileValidation:
    """What is to be said about one file."""

    file: str
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    plan: ScenarioPlan | None = None


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--plan", "with_plan", is_flag=True, help="Show what a run would do, and every value with its origin.")
@override_option("load.connections=64")
@click.option(
    "--format",
    "output",
    type=click.Choice(["text", "json", "github"]),
    default="text",
    show_default=True,
    help="github: as annotations of GitHub Actions.",
)
def validate(files: Sequence[Path], with_plan: bool, overrides: Sequence[str], output: str) -> int:
    """Check scenario files without connecting anywhere.

    Shows every problem at once, with its line and column. Ends with exit code 2 when a file has one.
    """
    results = [_validated(path, overrides, with_plan) for path in files]
    show: Callable[[list[FileValidation]], str] = {"text": _as_text, "json": _as_json, "github": _as_github}[output]
    shown = show(results)
    if shown:
        echo(shown)
    return INVALID if any(result.problems for result in results) else 0


def _validated(path: Path, overrides: Sequence[str], with_plan: bool) -> FileValidation:
    from loadgen.scenario.document import ScenarioProblems
    from loadgen.scenario.read import read_scenario

    try:
        loaded = read_scenario(path, overrides=overrides, environ=os.environ)
    except ScenarioProblems as found:
        return FileValidation(file=str(path), problems=found.problems)
    return FileValidation(file=str(path), warnings=loaded.warnings, plan=_plan(loaded) if with_plan else None)


def _plan(loaded: LoadedScenario) -> ScenarioPlan:
    from loadgen.rules.scenario_plan import plan

    return plan(loaded, cores=_cores())


def _cores() -> int:
    """Those this process may use, where the system says so."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1


def _as_text(results: list[FileValidation]) -> str:
    from loadgen.scenario.document import SHOWN_MAX

    lines: list[str] = []
    for result in results:
        lines += [_safe(str(problem)) for problem in result.problems[:SHOWN_MAX]]
        lines += [f"warning: {_safe(str(warning))}" for warning in result.warnings]
        if result.problems:
            lines.append(f"{_safe(result.file)}: {counted(len(result.problems), 'problem')}")
        elif result.plan is not None:
            lines.append(_plan_text(result.plan))
        else:
            lines.append(f"{_safe(result.file)}: ok")
    return "\n".join(lines)


def _plan_text(made: ScenarioPlan) -> str:
    from loadgen.rules.scenario_plan import plan_text

    return plan_text(made)


def _as_json(results: list[FileValidation]) -> str:
    from loadgen.rules.scenario_plan import plan_data

    files: list[dict[str, Any]] = []
    for result in results:
        entry: dict[str, Any] = {
            "file": result.file,
            "valid": not result.problems,
            "problems": [_problem_data(problem) for problem in result.problems],
            "warnings": [_problem_data(warning) for warning in result.warnings],
        }
        if result.plan is not None:
            entry["plan"] = plan_data(result.plan)
        files.append(entry)
    return json.dumps({"valid": not any(result.problems for result in results), "files": files}, indent=2)


def _problem_data(problem: Problem) -> dict[str, Any]:
    from loadgen.scenario.document import dotted

    return {
        "source": problem.source,
        "line": problem.mark.line if problem.mark else None,
        "column": problem.mark.column if problem.mark else None,
        "path": dotted(problem.path),
        "message": problem.what,
        "hint": problem.hint,
    }


def _as_github(results: list[FileValidation]) -> str:
    lines = []
    for result in results:
        for level, found in (("error", result.problems), ("warning", result.warnings)):
            lines += [_annotation(level, result.file, problem) for problem in found]
    return "\n".join(lines)


def _annotation(level: str, file: str, problem: Problem) -> str:
    from loadgen.scenario.document import dotted

    place = f",line={problem.mark.line},col={problem.mark.column}" if problem.mark else ""
    path = dotted(problem.path)
    said = f"{path}: {problem.message}" if path else problem.message
    text = _safe(said if problem.mark else f"{problem.source} {said}")
    return f"::{level} file={_escaped(_safe(file), ',:')}{place}::{_escaped(text)}"


def _escaped(text: str, more: str = "") -> str:
    """As GitHub's workflow commands want it: percent first, then line ends, then what separates properties."""
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def _safe(text: str) -> str:
    return printable(text)
