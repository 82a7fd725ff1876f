"""`loadgen validate` and `loadgen schema` know experiment files."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from loadgen.cli.experiment import experiment
from loadgen.cli.main import main
from loadgen.cli.validate import schema, validate
from loadgen.errors import UsageError
from loadgen.scenario.key_reader import plain
from loadgen.scenario.read import compose
from tests.scenario_schema import experiment_schema, schema_text
from tests.unit.test_scenario_cli import run
from tests.unit.test_scenario_examples import wrong_by_schema

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples" / "experiments").glob("*.yaml"))
SCENARIO = "version: 1\nname: s\nload: {duration: 1m}\nworkload: {statements: [{name: a, sql: SELECT 1}]}\n"
GOOD = """version: 1
name: which
scenario: s.yaml
arms: {one: {}, two: {set: {load.connections: 2}}}
reference: one
metrics: {p95: 5%}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(SCENARIO)
    Path("good.yaml").write_text(GOOD)
    return tmp_path


def test_an_experiment_is_validated_like_a_scenario(home: Path) -> None:
    assert run(validate, "good.yaml", "s.yaml") == (0, "good.yaml: ok\ns.yaml: ok\n")


def test_problems_of_the_file_its_scenario_and_its_arms_are_shown_at_once(home: Path) -> None:
    Path("bad.yaml").write_text(GOOD.replace("reference: one", "reference: three").replace("connections: 2", "conn: 2"))

    code, text = run(validate, "good.yaml", "bad.yaml")

    assert code == 2
    assert text.splitlines()[0] == "good.yaml: ok"
    assert "bad.yaml:5:12 reference: is not an arm, got 'three'; arms are one, two" in text
    assert "bad.yaml:4:" in text
    assert text.splitlines()[-1] == "bad.yaml: 2 problems"
    code, github = run(validate, "bad.yaml", "--format", "github")
    assert code == 2
    assert "::error file=bad.yaml,line=5,col=12::reference" in github


def test_the_plan_is_that_of_a_dry_run(home: Path) -> None:
    _, planned = run(experiment, "good.yaml", "--dry-run")
    _, data = run(experiment, "good.yaml", "--dry-run", "--format", "json")

    assert run(validate, "good.yaml", "--plan") == (0, planned)
    (entry,) = json.loads(run(validate, "good.yaml", "--plan", "--format", "json")[1])["files"]
    assert (entry["valid"], entry["plan"]) == (True, json.loads(data))


def test_overrides_belong_to_scenarios(home: Path) -> None:
    with pytest.raises(UsageError, match=r"good.yaml is an experiment, but --set changes scenarios") as caught:
        run(validate, "good.yaml", "--set", "load.connections=5")

    assert caught.value.exit_code == 2
    assert "arms.NAME.set" in caught.value.remedy


# --- the schema ------------------------------------------------------------------------------------------------------


def resolved(part: Any, definitions: dict[str, Any]) -> Any:
    """Without references."""
    if isinstance(part, list):
        return [resolved(one, definitions) for one in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        return resolved(definitions[part["$ref"].split("/")[-1]], definitions)
    return {name: resolved(value, definitions) for name, value in part.items() if name != "$defs"}


SCHEMA = resolved(experiment_schema(), experiment_schema()["$defs"])


def wrong(text: str) -> list[str]:
    root = compose(text, "x").root
    assert root is not None
    return wrong_by_schema(SCHEMA, plain(root))


def test_the_stored_schema_of_experiments_is_up_to_date_and_printed() -> None:
    stored = resources.files("schemas").joinpath("experiment.schema.json").read_text("utf-8")

    assert stored == schema_text(experiment_schema()), "make it anew: see CONTRIBUTING.md, A new scenario key"
    assert run(schema, "--experiment") == (0, stored)
    assert run(schema)[1] != stored


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_of_experiments_name_their_schema_and_agree_with_it(path: Path) -> None:
    text = path.read_text("utf-8")
    modeline = re.match(r"# yaml-language-server: \$schema=(\S+)\n", text)

    assert modeline
    assert (path.parent / modeline[1]).resolve() == ROOT / "schemas" / "experiment.schema.json"
    assert wrong(text) == []
    assert run(validate, path) == (0, f"{path}: ok\n")


@pytest.mark.parametrize(
    "line",
    ["arm: {}", "arms: {a: {warehouse: {sizes: Small}}}", "metrics: {p95: much}", "blocks: {minimum: 1}", "seed: -1"],
)
def test_the_schema_of_experiments_refuses_what_is_wrong(line: str) -> None:
    others = [other for other in GOOD.splitlines() if other.split(":")[0] != line.split(":")[0]]

    assert wrong("\n".join([line, *others]))
    assert wrong(GOOD) == []


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        (["grants"], "loadgen grants --experiment FILE"),
        (["prepare"], "Prepare the file that it names"),
        (["doctor"], "Check the file that it names"),
        (["queue", "add"], "The queue takes scenarios"),
        (["run"], "Run it with `loadgen experiment FILE`."),
    ],
)
def test_a_command_for_scenarios_says_what_to_do_with_an_experiment(capfd, tmp_path, command, hint):
    (tmp_path / "e.yaml").write_text("version: 1\nname: e\nscenario: s.yaml\narms: {a: {}, b: {}}\n", "utf-8")

    assert main([*command, str(tmp_path / "e.yaml")]) == 2

    assert hint in capfd.readouterr().err
