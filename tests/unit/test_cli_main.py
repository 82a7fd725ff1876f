"""The program as a whole: help without imports, errors as text and exit codes, nothing but results on stdout."""

import contextlib
import importlib.util
import io
import json
import logging
import os
import subprocess
import sys
import types
from graphlib import TopologicalSorter
from pathlib import Path

import click
import pytest

import loadgen
import loadgen.cli.main as program
from loadgen.cli.common import echo, print_lines, terminal_width
from loadgen.cli.main import COMMAND_HINTS, COMMANDS, FIRST_STEPS, SECTIONS, CommandEntry, cli, main
from loadgen.errors import Busy, ConnectFailed
from loadgen.report.run_text import TextLine, columns
from tests.unit.test_tidy import dotted_name, imported, modules_in

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ["snowflake.connector", "numpy", "sqlglot", "asyncpg", "rich", "ruamel.yaml", "asyncio", "uvicorn"]
SERVER_ONLY = ["sqlglot", "asyncpg", "asyncio", "uvicorn"]


@pytest.fixture(autouse=True)
def restored_logging():
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = [handler for handler in root.handlers if handler in handlers]
    root.setLevel(level)


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
        monkeypatch.setitem(COMMANDS, "probe", CommandEntry("loadgen_probe:probe", "Try something.", "loadgen probe"))
        code = main([*before, "probe", *arguments])
        return code, *capfd.readouterr()

    return run


def raising(error):
    def body():
        raise error

    return body


def python(*arguments, **options):
    """Runs this interpreter as a user would meet it: from elsewhere, finding the project by path."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)} | options.pop("env", {})
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, **options)


def test_help_imports_nothing_heavy_and_shows_every_command():
    done = python(
        "-c",
        "import sys\nfrom loadgen.cli.main import main\nmain(['--help'])\n"
        f"print('heavy:', [name for name in {HEAVY} if name in sys.modules])",
    )

    assert "heavy: []" in done.stdout
    for name, entry in COMMANDS.items():
        assert f"  {name} " in done.stdout
        assert entry.summary in " ".join(done.stdout.split())
    assert all(COMMANDS[name].example in done.stdout for name in FIRST_STEPS)


@pytest.mark.parametrize("module", ["orchestrator.job", "loadgen.results.run_record", "loadgen.embedded.client"])
def test_a_command_that_uses_a_server_imports_nothing_that_only_the_server_needs(module):
    done = python("-c", f"import sys, {module}\nprint([name for name in {SERVER_ONLY} if name in sys.modules])")

    assert done.stdout == "[]\n", done.stderr


def test_every_command_is_in_one_section_of_the_help():
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(COMMANDS)


def test_the_version_is_the_package_version(capfd):
    assert main(["--version"]) == 0
    assert capfd.readouterr().out == f"loadgen {loadgen.__version__}\n"


def test_a_command_that_just_returns_is_a_success(run_command):
    assert run_command(lambda: click.echo("the result")) == (0, "the result\n", "")


@pytest.mark.parametrize("end", [lambda: 10, lambda: click.get_current_context().exit(10)])
def test_a_verdict_becomes_the_exit_code(run_command, end):
    assert run_command(end) == (10, "", "")


def test_an_error_is_printed_with_its_hint_and_without_a_traceback(run_command):
    code, out, err = run_command(raising(ConnectFailed("prod refused the login", remedy="Renew the token.")))

    assert code == 3
    assert out == ""
    assert err == "error: prod refused the login\nhint: Renew the token.\n"


def test_an_unexpected_error_points_to_debug(run_command):
    code, out, err = run_command(raising(ZeroDivisionError("division by zero")))

    assert code == 1
    assert out == ""
    assert err.startswith("error: unexpected ZeroDivisionError: division by zero\nhint: ")
    assert "--debug" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("where", ["before", "after"])
def test_debug_shows_the_traceback_wherever_the_option_stands(run_command, where):
    body = raising(ZeroDivisionError("division by zero"))

    code, _, err = run_command(body, before=["--debug"]) if where == "before" else run_command(body, "--debug")

    assert code == 1
    assert "Traceback" in err
    assert err.rstrip().splitlines()[-2].startswith("error: unexpected ZeroDivisionError")


def test_a_log_file_gets_the_traceback_in_any_case(run_command, tmp_path):
    path = tmp_path / "loadgen.log"

    run_command(raising(Busy("another run has it")), "--log-file", str(path))

    (entry,) = [json.loads(line) for line in path.read_text().splitlines()]
    assert "Busy: another run has it" in entry["traceback"]


def test_the_log_level_decides_what_is_logged(run_command):
    def body():
        logging.getLogger("loadgen.probe").info("half way")

    assert run_command(body)[2] == ""
    assert "half way" in run_command(body, "--log-level", "INFO")[2]


def test_secrets_and_control_characters_stay_out_of_error_texts(run_command):
    text = "login failed: password=hunter22 \x1b[31m[/dim]"

    for body in (raising(ConnectFailed(text)), raising(RuntimeError(text))):
        _, out, err = run_command(body, "--debug", "--format", "json")
        assert "hunter22" not in out + err
        assert "\x1b" not in out + err
        assert "[/dim]" in err


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (raising(Busy("r1 has it")), 75),
        (raising(RuntimeError("boom")), 1),
        (raising(KeyboardInterrupt()), 130),
        (raising(click.UsageError("no such thing")), 2),
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
    code, out, err = run_command(raising(KeyboardInterrupt()))

    assert (code, out, err.strip()) == (130, "", "error: stopped")


def test_a_prompt_without_a_terminal_is_bad_usage(run_command):
    code, _, err = run_command(raising(EOFError()))

    assert code == 2
    assert "error: cannot prompt: stdin is not a terminal" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["conections"], "No such command 'conections'. Did you mean 'connections'?"),
        (["wacth"], "No such command 'wacth'. Did you mean 'watch'?"),
        (["sched"], "No such command 'sched'. Did you mean 'schedule'?"),
        (["plan"], "No such command 'plan'. Did you mean 'validate --plan'?"),
        (["zzz"], "No such command 'zzz'.\n"),
        (["--debgu"], "--debgu"),
        (["run", "--debu"], "'--debug'"),
        (["run", "--allow-webhok"], "No such option '--allow-webhok'.\n"),
        (["--log-level", "loud", "connections"], "loud"),
        (["--log-file", "/no/such/directory/x", "connections"], "/no/such/directory/x"),
    ],
)
def test_wrong_usage_is_an_error_with_a_hint(capfd, arguments, said):
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
            [sys.executable, "-c", script], stdout=pipe, stderr=subprocess.PIPE, timeout=60, env=environment
        )

    assert (done.returncode, done.stderr) == (141, b"")


def test_a_broken_connection_is_not_taken_for_a_reader_that_left(run_command):
    code, _, err = run_command(raising(BrokenPipeError(32, "Broken pipe")))

    assert code == 1
    assert err.startswith("error: unexpected ConnectionError: a connection broke")


def test_an_error_of_a_file_is_not_taken_for_one_of_the_output(run_command):
    code, _, err = run_command(raising(OSError(28, "No space left on device")))

    assert code == 1
    assert err.startswith("error: unexpected OSError")


def test_a_terminal_without_unicode_gets_escapes_instead_of_a_crash():
    script = "import sys\nfrom loadgen.cli.main import main\nsys.exit(main(['problem-表']))"

    done = python("-c", script, env={"PYTHONIOENCODING": "cp1252"})

    assert done.returncode == 2
    assert "problem-\\u8868" in done.stderr


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("environment", "colours"),
    [
        ({"TERM": "xterm-256color"}, True),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, False),
        ({"TERM": "xterm-256color", "NO_COLOR": ""}, True),  # as in no-color.org: an empty value has no effect
        ({"TERM": "dumb"}, False),
        ({}, False),
    ],
)
def test_results_have_colours_on_a_terminal_that_wants_them(monkeypatch, environment, colours):
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)

    print_lines([TextLine("PASSED  orders", "PASSED", "green"), TextLine("more")])

    passed = "\x1b[32m\x1b[1mPASSED\x1b[0m" if colours else "PASSED"
    assert screen.getvalue() == f"{passed}  orders\nmore\n"


def test_a_pipe_gets_neither_colours_nor_a_width(monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm-256color")

    print_lines([TextLine("PASSED  orders", "PASSED", "green")])

    assert capsys.readouterr().out == "PASSED  orders\n"
    assert terminal_width() is None


MESSAGE = "warning: process 19692 on vm keeps it; `loadgen runs stop 20261119 --yes` ends it, 数据目录 /var/lib/loadgen"


@pytest.mark.parametrize("width", range(34, 140, 5))
def test_messages_on_a_terminal_are_broken_between_words_and_never_inside_a_command(width, monkeypatch, capsys):
    monkeypatch.setattr("loadgen.cli.common.columns_of", lambda stream: width)

    echo(f"{MESSAGE}\n  {MESSAGE}", err=True)

    lines = capsys.readouterr().err.splitlines()
    assert " ".join(" ".join(lines).split()) == f"{MESSAGE} {MESSAGE}"
    assert max(map(columns, lines)) <= max(width, len("`loadgen runs stop 20261119 --yes`") + 4)
    assert sum("`loadgen runs stop 20261119 --yes`" in line for line in lines) == 2


def test_messages_elsewhere_and_commands_to_copy_are_not_broken(monkeypatch, capsys):
    echo(MESSAGE, err=True)
    monkeypatch.setattr("loadgen.cli.common.columns_of", lambda stream: 20)
    echo(MESSAGE, err=True, wrap=False)
    echo(MESSAGE)

    printed = capsys.readouterr()
    assert printed.err == f"{MESSAGE}\n" * 2
    assert printed.out == f"{MESSAGE}\n"


def commands_below(command, path):
    """The command and, of a group, everything below it."""
    children = command.commands.items() if isinstance(command, click.Group) else ()
    return [path, *(below for name, child in children for below in commands_below(child, [*path, name]))]


@pytest.mark.parametrize("name", list(COMMANDS))
def test_the_help_of_every_command_has_one_example_and_fits_80_columns_uncut(name, capfd, monkeypatch):
    module = COMMANDS[name].target.partition(":")[0]
    assert importlib.util.find_spec(module) is not None
    pytest.importorskip(module)  # not every environment has the packages of the embedded server
    monkeypatch.setenv("COLUMNS", "80")

    for path in commands_below(cli.get_command(click.Context(cli), name), [name]):
        assert main([*path, "--help"]) == 0
        usage, *lines = capfd.readouterr().out.splitlines()
        assert lines.count("  Example:") + lines.count("  Examples:") == 1, f"{path} has no example, or two"
        assert f"loadgen {path[0]}" in " ".join(lines[-3:]), f"no example for {path}"
        assert [line for line in (usage, *lines) if len(line) > 80] == []
        assert [line for line in lines if "..." in line] == []


@pytest.mark.parametrize(("word", "meant"), [("plan", None), ("uplaod", "upload"), ("rnu", "run"), ("runner", None)])
def test_only_a_near_spelling_is_suggested(word, meant):
    assert program._near(word, COMMANDS) == meant


def test_a_word_for_what_is_elsewhere_leads_to_a_command_that_exists():
    for word, meant in COMMAND_HINTS.items():
        assert word not in COMMANDS
        name, *rest = meant.split()
        if name in COMMANDS and rest and not rest[0].startswith("-"):
            group = cli.get_command(click.Context(cli), name)
            assert isinstance(group, click.Group)
            assert rest[0] in group.commands
        else:
            assert name in COMMANDS or name == "--help"


def test_the_errors_of_every_kind_are_described():
    assert program.describe_error(click.FileError("x.yaml", "gone")).exit_code == 2  # 1 is kept for bugs
    assert program.describe_error(click.Abort()).exit_code == 130
    assert program.describe_error(RuntimeError()).what == "unexpected RuntimeError"


def test_commands_import_one_another_without_cycles():
    """Also inside functions: a command does not depend on a command that depends on it."""
    needs = {dotted_name(path): {name for _, name in imported(path, tree)} for path, tree in modules_in("loadgen/cli")}

    assert list(TopologicalSorter({name: others & needs.keys() for name, others in needs.items()}).static_order())
