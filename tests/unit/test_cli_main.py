"""The program as a whole: help without imports, errors as text and exit codes, nothing but results on stdout."""

import contextlib
import json
import logging
import os
import subprocess
import sys
import types
from pathlib import Path
from unittest.mock import Mock

import click
import pytest

import loadgen
import loadgen.cli.main as program
from loadgen.cli.commands import COMMANDS, Entry
from loadgen.cli.main import cli, main
from loadgen.errors import Busy, ConnectFailed
from tests.processes import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ["snowflake.connector", "numpy", "pydantic", "sqlglot", "asyncpg", "rich", "ruamel.yaml", "asyncio", "uvicorn"]


pytestmark = pytest.mark.usefixtures("restored_logging")


@pytest.fixture
def run_command(monkeypatch, capfd):
    """Registers `loadgen probe`, whose body the test supplies, runs it, and gives (exit code, stdout, stderr)."""

    def run(body, *arguments, before=()):
        @click.command()
        @click.option("--format", "output_format", type=click.Choice(["text", "json"]), default="text")
        def probe(output_format):
            """Try something."""
            return body()

        module = types.ModuleType("loadgen_probe")
        module.probe = probe  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "loadgen_probe", module)
        monkeypatch.setitem(COMMANDS, "probe", Entry("loadgen_probe:probe", "Try something.", "loadgen probe"))
        code = main([*before, "probe", *arguments])
        return code, *capfd.readouterr()

    return run


def python(*arguments, **options):
    """Runs this interpreter as a user would meet it: from elsewhere, finding the project by path."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)} | options.pop("env", {})
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=environment, **options)


def test_help_imports_nothing_heavy_and_shows_every_command_with_an_example():
    done = python(
        "-c",
        "import sys\nfrom loadgen.cli.main import main\nmain(['--help'])\n"
        f"print('heavy:', [name for name in {HEAVY} if name in sys.modules])",
    )

    assert "heavy: []" in done.stdout
    for name, entry in COMMANDS.items():
        assert f"  {name} " in done.stdout
        assert entry.summary in " ".join(done.stdout.split())
        assert entry.example in done.stdout


def test_the_version_is_the_package_version(capfd):
    assert main(["--version"]) == 0
    assert capfd.readouterr().out == f"loadgen {loadgen.__version__}\n"


def test_a_command_that_just_returns_is_a_success(run_command):
    assert run_command(lambda: click.echo("the result")) == (0, "the result\n", "")


@pytest.mark.parametrize("end", [lambda: 10, lambda: click.get_current_context().exit(10)])
def test_a_verdict_becomes_the_exit_code(run_command, end):
    assert run_command(end) == (10, "", "")


def test_an_error_is_told_with_its_remedy_and_without_a_traceback(run_command):
    code, out, err = run_command(Mock(side_effect=ConnectFailed("prod refused the login", remedy="Renew the token.")))

    assert code == 3
    assert out == ""
    assert err == "error: prod refused the login\nhint: Renew the token.\n"


def test_an_unexpected_error_points_to_debug(run_command):
    code, out, err = run_command(Mock(side_effect=ZeroDivisionError("division by zero")))

    assert code == 1
    assert out == ""
    assert err.startswith("error: unexpected ZeroDivisionError: division by zero\nhint: ")
    assert "--debug" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("where", ["before", "after"])
def test_debug_shows_the_traceback_wherever_the_option_stands(run_command, where):
    body = Mock(side_effect=ZeroDivisionError("division by zero"))

    code, _, err = run_command(body, before=["--debug"]) if where == "before" else run_command(body, "--debug")

    assert code == 1
    assert "Traceback" in err
    assert err.rstrip().splitlines()[-2].startswith("error: unexpected ZeroDivisionError")


def test_a_log_file_gets_the_traceback_in_any_case(run_command, tmp_path):
    path = tmp_path / "loadgen.log"

    run_command(Mock(side_effect=Busy("another run has it")), "--log-file", str(path))

    (entry,) = [json.loads(line) for line in path.read_text().splitlines()]
    assert "Busy: another run has it" in entry["traceback"]


def test_the_log_level_decides_what_is_said_on_the_way(run_command):
    def body():
        logging.getLogger("loadgen.probe").info("half way")

    assert run_command(body)[2] == ""
    assert "half way" in run_command(body, "--log-level", "INFO")[2]


def test_secrets_and_control_characters_stay_out_of_error_texts(run_command):
    text = "login failed: password=hunter22 \x1b[31m[/dim]"

    for body in (Mock(side_effect=ConnectFailed(text)), Mock(side_effect=RuntimeError(text))):
        _, out, err = run_command(body, "--debug", "--format", "json")
        assert "hunter22" not in out + err
        assert "\x1b" not in out + err
        assert "[/dim]" in err


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (Mock(side_effect=Busy("r1 has it")), 75),
        (Mock(side_effect=RuntimeError("boom")), 1),
        (Mock(side_effect=KeyboardInterrupt()), 130),
        (Mock(side_effect=click.UsageError("no such thing")), 2),
    ],
)
def test_json_output_parses_however_it_ends(run_command, body, code):
    exit_code, out, err = run_command(body, "--format", "json")

    assert exit_code == code
    assert json.loads(out)["error"]["exit_code"] == code
    assert "error: " in err


def test_json_output_parses_after_a_usage_error(run_command):
    code, out, _ = run_command(lambda: None, "--format=json", "--bad")

    assert code == 2
    assert "--bad" in json.loads(out)["error"]["message"]


def test_ctrl_c_ends_with_130_and_no_traceback(run_command):
    code, out, err = run_command(Mock(side_effect=KeyboardInterrupt()))

    assert (code, out, err.strip()) == (130, "", "error: stopped")


def test_a_question_nobody_can_answer_is_bad_usage(run_command):
    code, _, err = run_command(Mock(side_effect=EOFError()))

    assert code == 2
    assert "error: an answer was needed" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["conections"], "no such command 'conections'; did you mean 'connections'?"),
        (["zzz"], "no such command 'zzz'"),
        (["--debgu"], "--debgu"),
        (["--log-level", "loud", "connections"], "loud"),
        (["--log-file", "/no/such/directory/x", "connections"], "/no/such/directory/x"),
    ],
)
def test_bad_usage_is_told_with_a_hint(capfd, arguments, said):
    assert main(arguments) == 2

    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert said in err
    assert "\nhint: " in err


def test_without_a_command_the_help_is_shown_as_bad_usage(capfd):
    assert main([]) == 2

    out, err = capfd.readouterr()
    assert out == ""
    assert "Usage: loadgen" in err


def test_a_reader_that_leaves_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    script = "import sys\nfrom loadgen.cli.main import main\nsys.exit(main(['--help']))"

    with contextlib.closing(os.fdopen(writing, "w")) as pipe:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", script], stdout=pipe, stderr=subprocess.PIPE, timeout=PATIENCE_S, env=environment
        )

    assert (done.returncode, done.stderr) == (141, b"")


def test_a_broken_connection_is_not_taken_for_a_reader_that_left(run_command):
    code, _, err = run_command(Mock(side_effect=BrokenPipeError(32, "Broken pipe")))

    assert code == 1
    assert err.startswith("error: unexpected ConnectionError: a connection broke")


def test_an_output_that_cannot_be_written_is_told():
    if not Path("/dev/full").exists():
        pytest.skip("needs a device that is always full")
    script = "import sys\nfrom loadgen.cli.main import main\nsys.exit(main(['--help']))"

    with open("/dev/full", "w") as full:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", script],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
            env=environment,
        )

    assert done.returncode == 1
    assert done.stderr.startswith("error: unexpected OSError")
    assert "Exception ignored" not in done.stderr


def test_a_terminal_without_unicode_gets_escapes_instead_of_a_crash():
    script = "import sys\nfrom loadgen.cli.main import main\nsys.exit(main(['problem-表']))"

    done = python("-c", script, env={"PYTHONIOENCODING": "cp1252"})

    assert done.returncode == 2
    assert "problem-\\u8868" in done.stderr


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_registered_command_loads_and_shows_an_example(name, capfd):
    pytest.importorskip(COMMANDS[name].target.partition(":")[0])

    def leaves(command, path):
        if isinstance(command, click.Group):
            return [leaf for child in command.commands for leaf in leaves(command.commands[child], [*path, child])]
        return [path]

    command = cli.get_command(click.Context(cli), name)
    for path in [[name], *leaves(command, [name])]:
        assert main([*path, "--help"]) == 0
        assert f"loadgen {path[0]}" in capfd.readouterr().out.partition("xample")[2], f"no example for {path}"


def test_the_errors_of_every_kind_are_described():
    assert program.describe(click.FileError("x.yaml", "gone")).exit_code == 2  # 1 is kept for bugs
    assert program.describe(click.Abort()).exit_code == 130
    assert program.describe(RuntimeError()).what == "unexpected RuntimeError"
