"""Every command and the code shown in README.md and docs/ work as shown; only the port is a free one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from loadgen.cli.main import cli, main
from tests.embedded_server import READY
from tests.processes import PATIENCE_S, PROGRAM, ROOT, reachable_directory, wait_until

README = (ROOT / "README.md").read_text("utf-8")
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples" / "nightly" / "README.md")
TEXT = "\n".join(path.read_text("utf-8") for path in DOCUMENTS)
COMMANDS = sorted(
    {
        re.sub(r"^(?=loadgen )", "./bin/", line.removeprefix("$ "))
        for block in re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
        for line in block.splitlines()
    }
)
SHOWN_PORT = "8085"
SERVE = "./bin/loadgen embedded serve"
# Of runs beside the one that is shown, on a warehouse of their own.
SHORT = ("target.warehouse=SHORT_WH", "load.warmup=500ms", "load.duration=5s")
# Which test runs a command, by the longest beginning that fits.
OFFLINE, OWN_SERVER, RUN, SERVED, AFTER_RUNS, CONNECTED, HELP, WRITES = range(8)
TRIED_BY = {
    **dict.fromkeys(("validate", "schema", "grants", "schedule print", "experiment"), OFFLINE),
    **dict.fromkeys(
        ("runs", "watch", "report", "compare", "schedule", "queue", "trend", "workers", "pool"), AFTER_RUNS
    ),
    **dict.fromkeys(("connections", "doctor", "setup"), CONNECTED),
    "prepare": OWN_SERVER,
    "run": RUN,
    "embedded serve": SERVED,
    "schedule print --systemd --out": WRITES,  # into the home of the user: its options are checked
}


def tried_by(command: str) -> int | None:
    """The test that runs it; of `./bin/test` only the help is shown, from inside it."""
    if command == "./bin/test":
        return HELP
    rest = command.removeprefix("./bin/loadgen ")
    fitting = [name for name in TRIED_BY if f"{rest} ".startswith(f"{name} ")]
    return TRIED_BY[max(fitting, key=len)] if fitting else None


def commands(kind: int) -> list[str]:
    return [command for command in COMMANDS if tried_by(command) == kind]


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def words_of(command: str, port: str) -> list[str]:
    program, *words = shlex.split(command.replace(SHOWN_PORT, port))
    assert program == "./bin/loadgen"
    return [*PROGRAM, *words]


def environment(home: Path) -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "LOADGEN_EMBEDDED_DATA_DIR": str(home / "data"),
        "SNOWFLAKE_HOME": str(home),
        "HOME": str(home),
    }


@contextlib.contextmanager
def served(command: str, home: Path, port: str) -> Iterator[str]:
    words = words_of(command, port)
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment(home), start_new_session=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(READY)
        yield line.removeprefix(READY).strip()
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_every_command_of_the_documents_is_run_by_a_test():
    assert COMMANDS
    assert [command for command in COMMANDS if tried_by(command) is None] == []


INLINE = {text.removeprefix("./bin/") for text in re.findall(r"`((?:\./bin/)?loadgen [a-z][^`]*)`", TEXT)}


@pytest.mark.parametrize(
    "text", sorted(INLINE | {command.removeprefix("./bin/") for command in COMMANDS if "loadgen" in command})
)
def test_a_command_in_a_document_exists_with_its_options(text: str):
    """With placeholders, and over the end of a line: it cannot be run as it is."""
    command: click.Command = cli
    words = shlex.split(text)[1:]
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None, text
        command = found

    command.make_parser(click.Context(command)).parse_args(words)


@pytest.mark.parametrize("command", commands(OFFLINE))
def test_commands_without_a_server_run_as_shown_by_the_script_of_bin(command: str, scratch: Path):
    done = subprocess.run(
        shlex.split(command), capture_output=True, text=True, env=environment(scratch), cwd=ROOT, timeout=PATIENCE_S
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("command", commands(OWN_SERVER))
def test_commands_that_start_a_server_run_as_shown(command: str, scratch: Path):
    words = [word.replace("examples/", f"{ROOT}/examples/") for word in words_of(command, SHOWN_PORT)]

    done = subprocess.run(
        words, capture_output=True, text=True, env=environment(scratch), cwd=scratch, timeout=PATIENCE_S
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout


def set_latency(address: str, ms: int) -> None:
    """Of statements on the table of the quickstart; 0: as they are."""
    rule = {"match": "QUICKSTART_ORDERS WHERE|QUICKSTART_ORDERS SET", "kind": "latency", "ms": ms}
    for method, body in (("DELETE", None), *([("POST", json.dumps(rule).encode())] if ms else [])):
        request = urllib.request.Request(f"http://{address}/__loadgen/faults", method=method, data=body)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=PATIENCE_S):
            continue


def start_run(path: Path, *options: str) -> subprocess.Popen[str]:
    """The run of the README, in this folder."""
    (command,) = commands(RUN)
    words = [word.replace("examples/", f"{ROOT}/examples/") for word in words_of(command, SHOWN_PORT)]
    return subprocess.Popen(
        [*words, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(path),
        cwd=path,
        start_new_session=True,  # else it shares the processor's time with the tests of this session
    )


def check_run(run: subprocess.Popen[str], path: Path) -> None:
    out, errors = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 0, out + errors
    (report,) = re.findall(r"^report: (.*/report\.html)$", out, re.MULTILINE)
    assert (path / report).is_file()


@pytest.fixture(scope="module")
def after_runs() -> Iterator[Path]:
    """A folder with three runs of the README, and a server that stores them: one as it is shown, and beside it two
    short ones that are compared. The first of these is made slower than any machine makes the second, so that the
    comparison has one verdict."""
    short = [word for text in SHORT for word in ("--set", text)]
    with reachable_directory() as path, served(SERVE, path, SHOWN_PORT) as address:
        set_latency(address, 300)
        shown = start_run(path)
        try:
            wait_until(lambda: any(path.glob("runs/*")), "its tables are made", unless=shown.poll)
            for slower_ms in (300, 0):
                set_latency(address, slower_ms)
                check_run(start_run(path, *short), path)
            check_run(shown, path)
        finally:
            shown.kill()
        yield path


@pytest.mark.parametrize("command", commands(AFTER_RUNS))
def test_commands_about_earlier_runs_run_as_shown(
    command: str, after_runs: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """In this process: there are many."""
    words = [word.replace("examples/", f"{ROOT}/examples/") for word in words_of(command, SHOWN_PORT)]
    monkeypatch.chdir(after_runs)
    for name, value in environment(after_runs).items():
        monkeypatch.setenv(name, value)

    code = main(words[len(PROGRAM) :])

    out, errors = capfd.readouterr()
    assert code == 0, out + errors
    assert " compare " not in command or "better" in out
    known = ("quickstart", "worker-0", "reads", "payments", "compar", "runner")
    assert any(word in out + errors for word in known)


def test_every_example_is_listed_in_the_readme():
    examples = {path.relative_to(ROOT).parts[1] for path in (ROOT / "examples").rglob("*.yaml")}

    assert {name for name in examples if f"examples/{name}" not in README} == set()


(WITH_PORT,) = [command for command in commands(SERVED) if SHOWN_PORT in command]


@pytest.fixture(scope="module")
def documented() -> Iterator[tuple[Path, str]]:
    """A home, and the port of the server that the documents show with one."""
    with reachable_directory() as path:
        port = free_port()
        with served(WITH_PORT, path, port) as address:
            assert address == f"127.0.0.1:{port}"
            yield path, port


@pytest.mark.parametrize("command", [command for command in commands(SERVED) if command != WITH_PORT])
def test_a_server_is_served_as_shown(command: str, scratch: Path):
    with served(command, scratch, free_port()) as address:
        assert address.startswith("127.0.0.1:")


def test_the_code_of_the_documents_runs_against_the_server_of_the_documents(documented: tuple[Path, str]):
    _, port = documented
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code.replace(SHOWN_PORT, port)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )

    assert (done.stdout, done.stderr) == ("('PAID',)\n", ""), "no warning, no error"


@pytest.mark.parametrize("command", commands(CONNECTED))
def test_commands_with_a_connection_run_as_shown(command: str, documented: tuple[Path, str]):
    home, port = documented
    file = home / "connections.toml"
    file.write_text(
        '[prod]\naccount = "embedded"\nuser = "me"\npassword = "any"\nhost = "127.0.0.1"\nprotocol = "http"\n'
        f"port = {port}\n"
    )
    file.chmod(0o600)

    done = subprocess.run(
        words_of(command, port), capture_output=True, text=True, env=environment(home), timeout=PATIENCE_S
    )

    # 3: nothing was set up on this server, and doctor reports it; `setup` comes after it.
    assert done.returncode == (3 if "doctor" in command else 0), done.stderr
    assert "prod" in done.stdout or "CREATE HYBRID TABLE" in done.stdout
    assert "any" not in done.stdout.split()


def test_the_test_command_explains_itself():
    done = subprocess.run([str(ROOT / "bin" / "test"), "--help"], capture_output=True, text=True, timeout=PATIENCE_S)

    assert done.returncode == 0
    assert "./bin/test --slow" in done.stdout
