"""`loadgen validate`: check scenarios and experiments, and show their plan. `init`, `schema`, `completion`.

The commands connect to nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import get_completion_class

from loadgen.cli.common import echo
from loadgen.cli.options import override_option
from loadgen.errors import ConfigurationError, UsageError
from loadgen.log import printable
from loadgen.process import available_cores
from loadgen.units import counted
from loadgen.values import dataclass

if TYPE_CHECKING:
    from loadgen.rules.experiment import ExperimentPlan
    from loadgen.rules.scenario_plan import ScenarioPlan
    from loadgen.scenario.document import Problem
    from loadgen.scenario.experiment import LoadedExperiment
    from loadgen.scenario.read import LoadedScenario


INVALID = 2  # exit code


@dataclass(frozen=True, slots=True, kw_only=True)
class FileValidation:
    """The problems, the warnings and the plan of one file."""

    file: str
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    plan: ScenarioPlan | ExperimentPlan | None = None


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--plan", "with_plan", is_flag=True, help="Show the plan of a run, and values with their origin.")
@override_option("load.connections=64")
@click.option(
    "--format",
    "output",
    type=click.Choice(["text", "json", "github"]),
    default="text",
    show_default=True,
    help="Output format; github prints annotations of GitHub Actions.",
)
def validate(files: Sequence[Path], with_plan: bool, overrides: Sequence[str], output: str) -> int:
    """Check scenario and experiment files without connecting anywhere.

    Shows all problems with line and column; for an experiment also those of its scenario and of every arm. A file with
    `arms` is an experiment. Exit code 2 if a file has a problem.
    """
    results = [_validated(path, overrides, with_plan) for path in files]
    show: Callable[[list[FileValidation]], str] = {
        "text": validation_text,
        "json": validation_json,
        "github": validation_annotations,
    }[output]
    shown = show(results)
    if shown:
        echo(shown)
    return INVALID if any(result.problems for result in results) else 0


def _validated(path: Path, overrides: Sequence[str], with_plan: bool) -> FileValidation:
    from loadgen.scenario.document import Problem, ScenarioProblems
    from loadgen.scenario.read import compose, parse_scenario, read_text

    text = read_text(path)
    if isinstance(text, Problem):
        return FileValidation(file=str(path), problems=(text,))
    try:
        if compose(text, str(path)).is_experiment:
            return _validated_experiment(path, text, overrides, with_plan)
        loaded = parse_scenario(text, source=str(path), folder=path.parent, overrides=overrides, environ=os.environ)
        _require_capture(loaded, path.parent)
    except ScenarioProblems as found:
        return FileValidation(file=str(path), problems=found.problems)
    return FileValidation(file=str(path), warnings=loaded.warnings, plan=_plan(loaded) if with_plan else None)


def _require_capture(loaded: LoadedScenario, folder: Path) -> None:
    """Check the capture of a replay, which the checks of a scenario do not read. Raises ScenarioProblems."""
    if loaded.scenario.load.replay is not None:
        from loadgen.prepare.prepare import require_capture

        require_capture(loaded, folder, available_cores())


def _validated_experiment(path: Path, text: str, overrides: Sequence[str], with_plan: bool) -> FileValidation:
    from loadgen.scenario.experiment import read_experiment

    if overrides:
        raise UsageError(
            f"{printable(str(path), 100)} is an experiment, but --set changes scenarios",
            remedy="Write the change into the file: arms.NAME.set changes the scenario of an arm.",
        )
    loaded = read_experiment(path, environ=os.environ, text=text)
    for arm in loaded.arms.values():
        _require_capture(arm, loaded.folder)
    return FileValidation(
        file=str(path), warnings=loaded.warnings, plan=_experiment_plan(loaded) if with_plan else None
    )


def _plan(loaded: LoadedScenario) -> ScenarioPlan:
    from loadgen.rules.scenario_plan import plan

    return plan(loaded, cores=available_cores())


def _experiment_plan(loaded: LoadedExperiment) -> ExperimentPlan:
    from loadgen.rules.experiment import plan_loaded_experiment

    return plan_loaded_experiment(loaded, cores=available_cores())


def validation_text(results: list[FileValidation]) -> str:
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


def _plan_text(made: ScenarioPlan | ExperimentPlan) -> str:
    from loadgen.rules.experiment import ExperimentPlan, experiment_plan_text
    from loadgen.rules.scenario_plan import plan_text

    return experiment_plan_text(made) if isinstance(made, ExperimentPlan) else plan_text(made)


def _plan_data(made: ScenarioPlan | ExperimentPlan) -> dict[str, Any]:
    from loadgen.rules.experiment import ExperimentPlan, experiment_plan_data
    from loadgen.rules.scenario_plan import plan_data

    return experiment_plan_data(made) if isinstance(made, ExperimentPlan) else plan_data(made)


def validation_json(results: list[FileValidation]) -> str:
    files: list[dict[str, Any]] = []
    for result in results:
        entry: dict[str, Any] = {
            "file": result.file,
            "valid": not result.problems,
            "problems": [_problem_data(problem) for problem in result.problems],
            "warnings": [_problem_data(warning) for warning in result.warnings],
        }
        if result.plan is not None:
            entry["plan"] = _plan_data(result.plan)
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


def validation_annotations(results: list[FileValidation]) -> str:
    lines = []
    for result in results:
        for level, found in (("error", result.problems), ("warning", result.warnings)):
            lines += [_annotation(level, result.file, problem) for problem in found]
    return "\n".join(lines)


def _annotation(level: str, file: str, problem: Problem) -> str:
    from loadgen.scenario.document import dotted

    place = f",line={problem.mark.line},col={problem.mark.column}" if problem.mark else ""
    path = dotted(problem.path)
    message = f"{path}: {problem.message}" if path else problem.message
    text = _safe(message if problem.mark else f"{problem.source} {message}")
    return f"::{level} file={_escaped(_safe(file), ',:')}{place}::{_escaped(text)}"


def _escaped(text: str, more: str = "") -> str:
    """Escape text for GitHub's workflow commands: percent signs first, then line ends and separators of properties."""
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def _safe(text: str) -> str:
    return printable(text)


# --- `loadgen init`: a scenario to start with ------------------------------------------------------------------------

SCENARIO = "scenario.yaml"
SCHEMA = "scenario.schema.json"


@click.command()
@click.argument("directory", metavar="[DIR]", type=click.Path(file_okay=False, path_type=Path), default=".")
def init(directory: Path) -> None:
    """Write a commented scenario that is ready to run, and the schema for completion in editors.

    The files go to DIR, or to the current directory. No file is overwritten: an existing scenario.yaml is an error, and
    an existing schema is kept.
    """
    scenario = directory / SCENARIO
    if scenario.exists() or scenario.is_symlink():
        raise ConfigurationError(f"{scenario} already exists", remedy="Choose another directory: loadgen init DIR")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        new_schema = _write_new(directory / SCHEMA, resources.files("schemas").joinpath(SCHEMA).read_text("utf-8"))
        if not _write_new(scenario, resources.files("loadgen.scenario").joinpath("starter.yaml").read_text("utf-8")):
            raise ConfigurationError(f"{scenario} already exists", remedy="Choose another directory.")
    except OSError as error:
        raise ConfigurationError(
            f"cannot write to {directory}: {error.strerror}", remedy="Choose another directory: loadgen init DIR"
        ) from error
    for path in [directory / SCHEMA] * new_schema + [scenario]:
        echo(f"wrote {path}")
    echo(f"next: loadgen validate {scenario} --plan", err=True, wrap=False)
    echo(f"      loadgen run {scenario}", err=True, wrap=False)


def _write_new(path: Path, text: str) -> bool:
    """Write a new file. False: it already exists. A partly written file is deleted."""
    try:
        file = path.open("x", encoding="utf-8")  # also fails for links
    except FileExistsError:
        return False
    try:
        with file:
            file.write(text)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return True


# --- `loadgen schema`: the JSON Schema of scenario and experiment files ----------------------------------------------


@click.command()
@click.option("--experiment", is_flag=True, help="Print the schema of experiment files instead.")
def schema(experiment: bool) -> None:
    """Print the JSON Schema of scenario files, or of experiment files, for editors and other tools.

    Editors with the YAML language server complete and check a file with this first line:

    \b
      # yaml-language-server: $schema=./scenario.schema.json
    """
    name = "experiment.schema.json" if experiment else "scenario.schema.json"
    echo(resources.files("schemas").joinpath(name).read_text("utf-8"), nl=False)


# --- `loadgen completion`: the completion script of a shell -----------------------------------------------------------

PROGRAM = "loadgen"
VARIABLE = "_LOADGEN_COMPLETE"  # a variable of click


@click.command(
    epilog="\b\nExample:\n  loadgen completion bash > ~/.local/share/bash-completion/completions/loadgen\n"
    "  loadgen completion zsh > ~/.zfunc/_loadgen"
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script for SHELL that completes commands and options of `loadgen`.

    The program must be on the path under this name: `./bin/loadgen` is not completed. Each completion starts it once.
    """
    made = get_completion_class(shell)
    assert made is not None
    echo(made(click.get_current_context().find_root().command, {}, PROGRAM, VARIABLE).source(), nl=False)
