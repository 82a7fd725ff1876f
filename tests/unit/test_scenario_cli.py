"""`loadgen init`, `loadgen validate`, `loadgen schema`, and the labels of `loadgen run`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadgen.cli.common import run_labels
from loadgen.cli.run import run as run_command
from loadgen.cli.validate import init, schema, validate
from loadgen.errors import ConfigurationError, UsageError
from loadgen.scenario.read import read_scenario

ROOT = Path(__file__).resolve().parents[2]
GOOD = "version: 1\nname: good\nworkload: {statements: [{name: a, sql: SELECT 1}]}\n"
BAD = "version: 1\nnaem: bad\nlabels: {a: 5%}\nload: {conections: 5, duration: 0s}\nworkload: {statements: []}\n"


def run(command, *arguments):
    """(exit code, stdout)"""
    result = CliRunner().invoke(command, [str(argument) for argument in arguments], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.return_value or 0, result.stdout


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("good.yaml").write_text(GOOD)
    Path("bad.yaml").write_text(BAD)
    return tmp_path


# --- validate --------------------------------------------------------------------------------------------------------


def test_a_good_file_is_ok(files):
    assert run(validate, "good.yaml") == (0, "good.yaml: ok\n")


def test_a_bad_file_shows_every_problem_and_ends_with_2(files):
    code, text = run(validate, "good.yaml", "bad.yaml")

    assert code == 2
    assert text.splitlines() == [
        "good.yaml: ok",
        "bad.yaml:2:1 naem: 'naem' is not a known key; did you mean name?",
        "bad.yaml:4:8 load.conections: 'conections' is not a known key; did you mean connections?",
        "bad.yaml:4:33 load.duration: must be from 100ms to 7d, got '0s'",
        "bad.yaml:5:24 workload.statements: there is nothing to send; add at least one statement under "
        "workload.statements",
        "bad.yaml: 4 problems",
    ]


def test_json_contains_the_same_on_every_exit_code(files):
    code, text = run(validate, "--format", "json", "good.yaml", "bad.yaml", "gone.yaml")

    data = json.loads(text)

    assert code == 2
    assert data["valid"] is False
    assert [(entry["file"], entry["valid"]) for entry in data["files"]] == [
        ("good.yaml", True),
        ("bad.yaml", False),
        ("gone.yaml", False),
    ]
    assert data["files"][1]["problems"][1] == {
        "source": "bad.yaml",
        "line": 4,
        "column": 8,
        "path": "load.conections",
        "message": "'conections' is not a known key",
        "hint": "did you mean connections?",
    }
    assert data["files"][2]["problems"][0]["line"] is None
    assert json.loads(run(validate, "--format=json", "--plan", "good.yaml")[1])["files"][0]["plan"]["name"] == "good"


def test_github_annotations_stand_at_their_lines(files):
    Path("odd,name.yaml").write_text(GOOD + 'labels: {a: "50%\\n", b: 5}\n')

    code, text = run(validate, "--format", "github", "good.yaml", "bad.yaml", "odd,name.yaml")

    lines = text.splitlines()
    assert code == 2
    assert lines[0] == "::error file=bad.yaml,line=2,col=1::naem: 'naem' is not a known key; did you mean name?"
    assert lines[-1].startswith("::error file=odd%2Cname.yaml,line=4,col=")
    assert run(validate, "--format", "github", "good.yaml") == (0, "")


def test_set_overrides_values_and_the_plan_shows_it(files):
    code, text = run(validate, "good.yaml", "--plan", "--set", "load.connections=5", "--set", "connection=embedded")

    assert code == 0
    assert "Keeps 5 connections busy" in text
    assert "--set load.connections=5" in text
    assert run(validate, "good.yaml", "--set", "load.connections=0")[0] == 2


def test_warnings_do_not_fail(files):
    Path("warn.yaml").write_text(GOOD + "values: {p: {query: SELECT 1}}\n")

    code, text = run(validate, "warn.yaml")

    assert code == 0
    assert text.splitlines()[0].startswith("warning: warn.yaml:4:10 values.p: is not used by any parameter")


def test_hostile_text_reaches_the_terminal_harmlessly(files):
    Path("evil.yaml").write_text(
        'version: 1\nname: x\n"\\e[31m\\n": 1\nworkload: {statements: [{name: a, sql: "\\e]0;x"}]}\n'
    )

    _, text = run(validate, "evil.yaml")

    assert "\x1b" not in text
    assert len(text.splitlines()) == 3


def test_looking_for_commands_imports_nothing_heavy():
    code = (
        "import sys, loadgen.cli.validate, loadgen.cli.validate, loadgen.cli.validate; "
        "sys.exit(any(name.split('.')[0] in ('ruamel', 'numpy') for name in sys.modules))"
    )

    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


# --- init and schema -------------------------------------------------------------------------------------------------


def test_init_writes_a_scenario_that_validates_and_the_schema_its_first_line_names(tmp_path):
    code, text = run(init, tmp_path / "new" / "folder")

    scenario = tmp_path / "new" / "folder" / "scenario.yaml"
    assert code == 0
    assert str(scenario) in text
    assert scenario.read_text().startswith("# yaml-language-server: $schema=./scenario.schema.json\n")
    assert json.loads((scenario.parent / "scenario.schema.json").read_text())["title"] == "loadgen scenario"
    assert read_scenario(scenario, environ={}).scenario.connection == "embedded"


def test_init_never_overwrites(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("scenario.yaml").write_text("mine")
    with pytest.raises(ConfigurationError, match="already exists"):
        run(init)
    Path("scenario.yaml").unlink()
    Path("scenario.yaml").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="already exists"):
        run(init)
    Path("other").mkdir()
    Path("other/scenario.schema.json").write_text("mine")

    run(init, "other")

    assert not Path("scenario.schema.json").exists()
    assert not Path("elsewhere").exists()
    assert Path("other/scenario.schema.json").read_text() == "mine"


def test_schema_prints_the_schema():
    _, text = run(schema)

    assert json.loads(text)["properties"]["load"]


# --- the labels of a run ---------------------------------------------------------------------------------------------


def test_labels_of_the_command_are_added_to_those_of_the_scenario():
    assert run_labels(["team=checkout", "note=a=b", "empty="], ["team"]) == {
        "team": "checkout",
        "note": "a=b",
        "empty": "",
    }


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("team", "--label 'team' is not KEY=VALUE"),
        ("=checkout", "--label '=checkout' is not KEY=VALUE"),
        (" team=a", "the key must not be empty, nor begin or end with a space"),
        ("te\x1bam=a", "the key contains a control character"),
        ("team=\0", "the value contains a character that cannot be stored"),
        ("team=" + "x" * 1_001, "the value has more than 1,000 characters"),
    ],
)
def test_a_label_that_a_scenario_could_not_have_is_bad_usage(files, label, message):
    with pytest.raises(UsageError) as caught:
        run(run_command, "good.yaml", "--label", label)

    assert message in str(caught.value)
    assert (caught.value.exit_code, caught.value.remedy) == (2, "Write --label team=checkout.")


def test_a_run_has_no_more_labels_than_a_scenario():
    given = [f"l{number}=x" for number in range(30)]

    assert len(run_labels(given, [f"l{number}" for number in range(50)])) == 30
    with pytest.raises(UsageError, match="the run has more than 50 labels"):
        run_labels(given, [f"s{number}" for number in range(21)])
