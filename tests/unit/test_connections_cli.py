"""`loadgen connections`: results on stdout, the rest on stderr, JSON on every exit code, secrets nowhere."""

import json
import signal
import socket
import subprocess
import sys

import pytest

from tests.processes import PATIENCE_S

PASSWORD = "planted-Passw0rd-7193"


def section(name: str, port: int = 1) -> str:
    return (
        f'[{name}]\naccount = "acct"\nuser = "ann"\npassword = "{PASSWORD}"\n'
        f'host = "127.0.0.1"\nport = {port}\nprotocol = "http"\n'
    )


# --- list ------------------------------------------------------------------------------------------------------------


def test_the_list_shows_names_origins_and_the_default_but_no_secret(shell):
    path = shell.write(section("prod") + section("default"))

    done = shell.run("connections", "list")

    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert lines[0].split() == ["NAME", "ACCOUNT", "USER", "HOST", "AUTHENTICATOR", "SOURCE"]
    assert lines[1].split() == ["prod", "acct", "ann", "127.0.0.1:1", "snowflake", str(path), "[prod]"]
    assert lines[2].split()[:2] == ["*", "default"]
    assert lines[3].split()[0] == "embedded"
    assert done.stderr == ""
    assert PASSWORD not in done.stdout


def test_the_list_as_json(shell):
    path = shell.write(section("prod"))

    done = shell.run("connections", "list", "--format", "json", SNOWFLAKE_DEFAULT_CONNECTION_NAME="prod")

    listed = json.loads(done.stdout)
    assert listed["default"] == "prod"
    assert listed["connections"][0] == {
        "name": "prod",
        "account": "acct",
        "user": "ann",
        "host": "127.0.0.1:1",
        "authenticator": "snowflake",
        "source": f"{path} [prod]",
        "default": True,
    }
    assert PASSWORD not in done.stdout + done.stderr


def test_without_any_file_the_embedded_server_is_all_there_is(shell):
    done = shell.run("connections", "list", "--format", "json")

    assert [row["name"] for row in json.loads(done.stdout)["connections"]] == ["embedded"]


def test_warnings_go_to_stderr_once(shell):
    path = shell.write(section("a") + section("b"), 0o644)

    done = shell.run("connections", "list")

    assert done.returncode == 0
    assert done.stderr.count(f"chmod 600 {path}") == 1
    assert "warning:" not in done.stdout


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_file_that_cannot_be_used_ends_with_2_and_a_hint(shell, output):
    path = shell.write(section("prod"), 0o666)

    done = shell.run("connections", "list", "--format", output)

    assert done.returncode == 2
    assert done.stderr.splitlines()[1] == f"hint: Run: chmod 600 {path}"
    if output == "json":
        assert json.loads(done.stdout)["error"]["exit_code"] == 2
    else:
        assert done.stdout == ""


def test_hostile_names_reach_the_terminal_harmlessly(shell):
    shell.write('["evil\\u001b[2J"]\naccount = "a\\u001b[31m"\nuser = "\\u0007x"\npassword = "p"\n')

    done = shell.run("connections", "list")

    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr
    assert "\x07" not in done.stdout


def test_listing_does_not_import_the_driver(shell):
    shell.write(section("prod"))
    code = (
        "import sys; from loadgen.cli.main import main; main(['connections', 'list']);"
        " print(sorted(name for name in sys.modules if name.split('.')[0] in ('snowflake', 'numpy', 'cryptography')))"
    )

    done = subprocess.run([sys.executable, "-c", code], env=shell.environ, capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", [["connections"], ["connections", "list"], ["connections", "test"]])
def test_every_command_has_help_with_an_example(shell, command):
    done = shell.run(*command, "--help")

    assert done.returncode == 0
    assert "  loadgen connections " in done.stdout.split("Example:")[1]


# --- test ------------------------------------------------------------------------------------------------------------


def test_a_rejected_connection_ends_with_3_and_a_hint(shell):
    shell.write(section("prod"))

    done = shell.run("connections", "test", "-c", "prod", "--format", "json")

    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["exit_code"]) == (3, 3)
    assert "nothing listens at 127.0.0.1:1" in error["message"]
    assert error["hint"] == "Check host and port of [prod]."
    assert done.stderr.startswith("error: connection 'prod'")
    assert "Traceback" not in done.stderr
    assert PASSWORD not in done.stdout + done.stderr


def test_not_even_debug_output_shows_the_password(shell):
    shell.write(section("prod"))

    done = shell.run("--debug", "connections", "test", "-c", "prod")

    assert done.returncode == 3
    assert "Traceback" in done.stderr
    assert PASSWORD not in done.stdout + done.stderr


def test_an_unknown_connection_ends_with_2(shell):
    shell.write(section("prod"))

    done = shell.run("connections", "test", "-c", "prd")

    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "hint: Did you mean 'prod'?"


def test_ctrl_c_ends_a_test_that_gets_no_answer(shell):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        shell.write(section("prod", port=silent.getsockname()[1]))
        process = shell.start("connections", "test", "-c", "prod")
        try:
            silent.settimeout(PATIENCE_S)
            accepted, _ = silent.accept()  # the driver is connecting: it is inside a call now
            with accepted:
                process.send_signal(signal.SIGINT)
                _, errors = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
            process.wait()

    assert process.returncode == 130
    assert errors.strip() == "error: stopped"
